/* How panels of unpacked weights and blocks of tokens in 8-bit integers lie in memory on x86 (simd_q8.h says why), and the making
 * of the latter. Included behind vec256.h or vec512.h by files that have zero_of(type): what bytes of unpacked weights have too
 * much. */
#ifndef BUTLER_Q8_UNITS_H
#define BUTLER_Q8_UNITS_H

INLINE int unit_columns(enum butler_type type)
{
    return narrow_units(type) ? 16 : 32;
}

/* Of VEC rows. */
INLINE size_t unit_bytes(enum butler_type type)
{
    return (size_t)VEC * (size_t)(unit_columns(type) + (has_minimum(type) ? 8 : 4));
}

/* 32 numbers times inverse to nearest, NaN to the least; sums: of 16 each. */
INLINE void quantise8(int8_t q[BLOCK], int32_t sums[2], const float *x, float inverse)
{
    const __m256 factor = _mm256_set1_ps(inverse), least = _mm256_set1_ps(-BUTLER_Q8_MAX);
    __m256i v[4];
    UNROLL
    for (int i = 0; i < 4; i++)
        v[i] = _mm256_cvtps_epi32(_mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), factor), least));
    UNROLL
    for (int half = 0; half < 2; half++) {
        const __m256i both = _mm256_add_epi32(v[2 * half], v[2 * half + 1]);
        __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
        sums[half] = _mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 1);
    }
    const __m256i mixed = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    _mm256_storeu_si256((__m256i *)q, _mm256_permutevar8x32_epi32(mixed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

/* by_token: for a matrix unit, each token's columns one after the other. */
INLINE void quantise_tokens(uint8_t *q8, enum butler_type type, const float *x, int n_tokens, int n, bool by_token)
{
    const int columns = unit_columns(type);
    const size_t size = butler_q8_unit_bytes(columns);
    for (int b = 0; b < n / BLOCK; b++)
        for (int t = 0; t < BUTLER_Q8_TOKENS; t++) {
            _Alignas(32) int8_t q[BLOCK] = {0};
            int32_t sums[2] = {0};
            float inverse, scale = 0;
            if (t < n_tokens) {
                const float *from = x + (size_t)t * (size_t)n + b * BLOCK;
                scale = scale32(from, BUTLER_Q8_MAX, &inverse);
                quantise8(q, sums, from, inverse);
            }
            for (int k = 0; k < BLOCK / columns; k++) {
                uint8_t *unit = q8 + (size_t)(b * (BLOCK / columns) + k) * size;
                float *scales = (float *)(unit + columns * BUTLER_Q8_TOKENS), *rest = scales + BUTLER_Q8_TOKENS;
                const int32_t sum = columns == BLOCK ? sums[0] + sums[1] : sums[k];
                if (by_token)
                    memcpy(unit + t * columns, q + k * columns, (size_t)columns);
                else
                    for (int w = 0; w < columns / 4; w++)
                        memcpy(unit + (w * BUTLER_Q8_TOKENS + t) * 4, q + k * columns + w * 4, 4);
                scales[t] = scale;
                if (has_minimum(type))
                    rest[t] = scale * (float)sum;
                else
                    ((int32_t *)rest)[t] = -zero_of(type) * sum;
            }
        }
}

#endif
