/* One-bit keys by masks for NEON: included after vec128x2.h. Sums of integers are taken in floats. */
#ifndef BUTLER_ONE_BIT_NEON_H
#define BUTLER_ONE_BIT_NEON_H

#include "kernels/one_bit.h"

/* Queries that share the masks. */
#define ONE_BIT_QUERIES 2
#define ONE_BIT_AHEAD 2048 /* bytes */

/* Adds the steps of four channels to the tokens whose bits are set. */
INLINE void one_bit_add(vec (*acc)[V32], const float *steps, int n_q, const uint8_t *bits)
{
    UNROLL
    for (int k = 0; k < V32; k++) {
        const uint32_t word = load_u32(bits + k * 4);
        UNROLL
        for (int j = 0; j < 4; j++) {
            const vec_mask mask = vec_mask_of_nibbles(word, j);
            UNROLL
            for (int a = 0; a < n_q; a++)
                acc[a][k] = vec_add_masked(acc[a][k], vec_set1(steps[a * BUTLER_ONE_BIT_CHANNELS + j]), mask);
        }
    }
}

/* x: the queries' integers, BUTLER_ONE_BIT_CHANNELS apart, 0 beyond n; factor: their scale. n_q is a compile-time
 * constant. */
INLINE void one_bit_tile(float *s, size_t s_stride, const float *q, const float *x, const float *factor, int n_q,
                         const uint8_t *record, int n)
{
    _Alignas(64) float steps[ONE_BIT_QUERIES * BUTLER_ONE_BIT_CHANNELS];
    const uint8_t *range = one_bit_ranges(record, n), *bits = one_bit_bits(record, n);
    vec low[ONE_BIT_QUERIES], acc[ONE_BIT_QUERIES][V32];
    UNROLL
    for (int a = 0; a < n_q; a++) {
        low[a] = vec_zero();
        UNROLL
        for (int k = 0; k < V32; k++)
            acc[a][k] = vec_zero();
    }
    for (int i = 0; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        const vec least = count == VEC ? vec_load_half(record + (size_t)i * 2) : vec_load_half_some(record + (size_t)i * 2, count);
        /* Beyond the ranges come bits, which a query's 0 takes out again. */
        const vec width = vec_load_u8(range + i);
        UNROLL
        for (int a = 0; a < n_q; a++) {
            low[a] = vec_fma(vec_load_some(q + (size_t)a * n + i, count), least, low[a]);
            vec_store(steps + a * BUTLER_ONE_BIT_CHANNELS + i, vec_mul(vec_load(x + a * BUTLER_ONE_BIT_CHANNELS + i), width));
        }
    }
    for (int d = 0; d < n; d += 4)
        one_bit_add(acc, steps + d, n_q, bits + (size_t)d * 4);
    const float unit = one_bit_unit(record, n);
    UNROLL
    for (int a = 0; a < n_q; a++) {
        const vec clear = vec_set1(vec_sum(low[a])), scale = vec_set1(unit * factor[a]);
        for (int k = 0; k < V32; k++)
            vec_store(s + a * s_stride + k * VEC, vec_fma(acc[a][k], scale, clear));
    }
}

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    for (int i = 0; i < n_q; i += ONE_BIT_QUERIES) {
        float x[ONE_BIT_QUERIES * BUTLER_ONE_BIT_CHANNELS] = {0}, factor[ONE_BIT_QUERIES];
        const int count = BUTLER_MIN(n_q - i, ONE_BIT_QUERIES);
        for (int a = 0; a < count; a++) {
            int8_t integers[BUTLER_ONE_BIT_CHANNELS];
            factor[a] = one_bit_query(integers, q + (size_t)(i + a) * (size_t)n, n);
            for (int d = 0; d < n; d++)
                x[a * BUTLER_ONE_BIT_CHANNELS + d] = integers[d];
        }
        for (int j = 0; j < n_records; j++) {
            const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes;
            float *out = s + (size_t)i * s_stride + (size_t)j * 32;
            for (size_t line = 0; line < butler_one_bit_bytes(n); line += 64)
                prefetch(record, ONE_BIT_AHEAD + line);
            if (count == ONE_BIT_QUERIES)
                one_bit_tile(out, s_stride, q + (size_t)i * (size_t)n, x, factor, ONE_BIT_QUERIES, record, n);
            else
                one_bit_tile(out, s_stride, q + (size_t)i * (size_t)n, x, factor, 1, record, n);
        }
    }
}

#endif
