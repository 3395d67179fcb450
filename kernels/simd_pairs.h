/* Bytes against 16-bit fixed point with AVX2, whose instruction multiplies and adds neighbouring 16-bit numbers: how both lie for
 * it. Of four neighbours first and third are a pair, then second and fourth, because bytes widen so without crossing lanes.
 * Included after vec256.h. */
#ifndef BUTLER_SIMD_PAIRS_H
#define BUTLER_SIMD_PAIRS_H

/* Eight numbers of fixed point in the order of pairs. */
INLINE void store_pairs(void *to, __m256i numbers)
{
    const __m256i apart = _mm256_shuffle_epi32(numbers, _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(apart, apart), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128(to, _mm256_castsi256_si128(words));
}

INLINE void widen_quads(__m256i *pairs, int stride, __m256i quads)
{
    pairs[0] = _mm256_maddubs_epi16(_mm256_set1_epi16(1), quads);
    pairs[stride] = _mm256_srai_epi16(quads, 8);
}

/* x[i]: 16 signed bytes of row i, and of row i + 4. pairs[k * stride], k < 8: pair k of all eight rows, a row a lane. */
INLINE void turn_pairs(__m256i *pairs, int stride, const __m256i x[4])
{
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
    const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    widen_quads(pairs, stride, _mm256_unpacklo_epi64(a, c));
    widen_quads(pairs + 2 * stride, stride, _mm256_unpackhi_epi64(a, c));
    widen_quads(pairs + 4 * stride, stride, _mm256_unpacklo_epi64(b, d));
    widen_quads(pairs + 6 * stride, stride, _mm256_unpackhi_epi64(b, d));
}

#endif
