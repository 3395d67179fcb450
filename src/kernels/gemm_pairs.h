/* Steps of pairs of 16 bits, as simd_gemm_fixed.h takes them: included behind the vector, before it. */
#ifndef BUTLER_GEMM_PAIRS_H
#define BUTLER_GEMM_PAIRS_H

enum { STEP = 2 };
typedef int16_t number;
#define MOST BUTLER_FIXED_MOST

/* Of four neighbours first and third are a pair, then second and fourth, because bytes widen so without crossing lanes. */
INLINE void step_weights(__m256i *steps, __m256i q)
{
    steps[0] = _mm256_maddubs_epi16(_mm256_set1_epi16(1), q);
    steps[VEC / 8] = _mm256_srai_epi16(q, 8);
}

INLINE void store_eight(number *to, __m256i v)
{
    const __m256i apart = _mm256_shuffle_epi32(v, _MM_SHUFFLE(3, 1, 2, 0));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi32(apart, apart), _MM_SHUFFLE(3, 1, 2, 0));
    _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(packed));
}

INLINE int32_t start_of(int32_t sum)
{
    (void)sum;
    return 0;
}

#endif
