/* What the vectors of AVX2 and AVX-512 have in common: included by vec256.h and vec512.h. */
#ifndef BUTLER_VEC_X86_H
#define BUTLER_VEC_X86_H

/* Prefetches what will be read `ahead` bytes from p. That may be no memory of ours: a prefetch never faults, but no pointer
 * may point there, hence the integer. */
INLINE void prefetch(const void *p, size_t ahead)
{
    _mm_prefetch((const char *)((uintptr_t)p + ahead), _MM_HINT_T0);
}

/* Prefetches the line of p into the second-level cache and no nearer. */
INLINE void prefetch_second(const void *p)
{
    _mm_prefetch((const char *)p, _MM_HINT_T1);
}

/* The halves at b, b + stride, ..., at most four, as floats in memory: put together by integer instructions, converted by one
 * that loads by itself, and later spread over a vector by the multiplication's own load. In registers each would take the
 * shuffle unit, which the quants need. The empty statement hides from the compiler that it could keep them there. */
INLINE void load_halves(float t[4], const uint8_t *b, size_t stride, int n)
{
    uint64_t halves = 0;
    __m128 floats;
    for (int i = 0; i < n; i++)
        halves |= (uint64_t)load_u16(b + i * stride) << (16 * i);
    __asm__("vcvtph2ps %1, %0" : "=x"(floats) : "m"(halves));
    _mm_storeu_ps(t, floats);
    __asm__("" : "+m"(*(float(*)[4])t));
}

/* The n words at p, p + step, ..., at most eight, as lanes; the others are 0. */
INLINE __m128i some_words(const uint8_t *p, size_t step, int n)
{
    uint64_t words[2] = {0};
    for (int i = 0; i < n; i++)
        words[i / 4] |= (uint64_t)load_u16(p + (size_t)i * step) << i % 4 * 16;
    return _mm_set_epi64x((long long)words[1], (long long)words[0]);
}

/* The words at p, p + step, p + 2 step, p + 3 step as four lanes, and those `four` bytes behind them as four more: each is loaded
 * into its lane, and what is loaded around it left out, which takes an instruction a word and no shuffle. Reads up to the last
 * word, step >= 16 and four >= 10. */
INLINE __m128i eight_words(const uint8_t *p, size_t step, size_t four)
{
#define AROUND(lane) _mm_loadu_si128((const __m128i *)(p + (lane) % 4 * step + (lane) / 4 * four - (lane)*2))
    __m128i v = _mm_blend_epi16(AROUND(0), AROUND(1), 0x02);
    v = _mm_blend_epi16(v, AROUND(2), 0x04);
    v = _mm_blend_epi16(v, AROUND(3), 0x08);
    v = _mm_blend_epi16(v, AROUND(4), 0x10);
    v = _mm_blend_epi16(v, AROUND(5), 0x20);
    v = _mm_blend_epi16(v, AROUND(6), 0x40);
    return _mm_blend_epi16(v, AROUND(7), 0x80);
#undef AROUND
}

typedef __m128i bytes16; /* 16 small numbers, for vec_from_i8 */

INLINE bytes16 bytes16_load(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)p);
}

/* The 6-bit scales and minima of 8 groups, a byte each: what unpack_k_scales does, on one vector. */
INLINE bytes16 k_scales(const uint8_t *packed)
{
    __m128i v = bytes16_load(packed); /* words a b c, and four bytes of what follows in the block */
    __m128i low = _mm_srlv_epi32(_mm_shuffle_epi32(v, _MM_SHUFFLE(2, 1, 2, 0)), _mm_setr_epi32(0, 0, 0, 4));
    __m128i high = _mm_srli_epi32(_mm_shuffle_epi32(v, _MM_SHUFFLE(1, 1, 0, 0)), 2);
    low = _mm_and_si128(low, _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f));
    return _mm_or_si128(low, _mm_and_si128(high, _mm_setr_epi32(0, 0x30303030, 0, 0x30303030)));
}

/* Types that have a scale for each 16 columns, and those whose weights are signed bytes once read. */
INLINE bool narrow_units(enum butler_type type)
{
    return type == BUTLER_Q2_K || type == BUTLER_Q3_K || type == BUTLER_Q6_K;
}

INLINE bool has_minimum(enum butler_type type)
{
    return type == BUTLER_Q4_1 || type == BUTLER_Q5_1 || type == BUTLER_Q2_K || type == BUTLER_Q4_K || type == BUTLER_Q5_K;
}

INLINE bool eight_bits(enum butler_type type)
{
    return type == BUTLER_Q8_0 || type == BUTLER_IQ4_NL || type == BUTLER_IQ4_XS;
}

/* The greatest magnitude of x[32]; infinities and NaN are greatest: as integers magnitudes have the order of numbers. */
INLINE float extreme32(const float *x)
{
    __m256i most = _mm256_setzero_si256();
    UNROLL
    for (int i = 0; i < 32; i += 8)
        most =
            _mm256_max_epu32(most, _mm256_and_si256(_mm256_loadu_si256((const __m256i *)(x + i)), _mm256_set1_epi32(0x7fffffff)));
    __m128i m = _mm_max_epu32(_mm256_castsi256_si128(most), _mm256_extracti128_si256(most, 1));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epu32(m, _mm_shuffle_epi32(m, 0xb1));
    return bits_to_float((uint32_t)_mm_cvtsi128_si32(m));
}

/* The scale that quantises x[32] to integers of magnitude at most `most`; *inverse: 1 / scale. */
INLINE float scale32(const float *x, float most, float *inverse)
{
    const float extreme = extreme32(x);
    const bool any = !(extreme < BUTLER_Q16_LEAST_ABSMAX);
    *inverse = any ? most / extreme : 0;
    return any ? extreme / most : 0;
}

/* q[16] = 256 high + low, low signed */
INLINE void split_words(int8_t high[16], int8_t low[16], const int16_t q[16])
{
    const __m256i words = _mm256_loadu_si256((const __m256i *)q);
    const __m256i tops = _mm256_srai_epi16(_mm256_add_epi16(words, _mm256_set1_epi16(128)), 8);
    const __m256i bottoms = _mm256_and_si256(words, _mm256_set1_epi16(255));
    _mm_storeu_si128((__m128i *)high, _mm_packs_epi16(_mm256_castsi256_si128(tops), _mm256_extracti128_si256(tops, 1)));
    _mm_storeu_si128((__m128i *)low, _mm_packus_epi16(_mm256_castsi256_si128(bottoms), _mm256_extracti128_si256(bottoms, 1)));
}

#endif
