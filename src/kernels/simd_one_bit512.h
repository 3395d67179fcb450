/* One-bit keys with AVX-512 VNNI, for the files that have it: a lane is a token, and one instruction adds four of its channels.
 * A mask of 64 bits, four channels of 16 tokens, spreads the four channels' ranges over the tokens whose bits are set; what
 * remains are products with the query, a byte a channel, which is the same for all records. */
#ifndef BUTLER_SIMD_ONE_BIT512_H
#define BUTLER_SIMD_ONE_BIT512_H

#include "kernels/one_bit.h"
#include "kernels/vec512.h"

#include "kernels/simd_prefetch.h"

enum {
    TOKENS = 32,
    LANES = 16, /* tokens of a vector */
    CHANNELS = BUTLER_ONE_BIT_CHANNELS,
    QUERIES = 8, /* at a time */
};

/* Queries as bytes times a factor each, 0 beyond the last channel. */
struct one_bit_queries {
    _Alignas(64) int8_t x[QUERIES][CHANNELS];
    float factor[QUERIES];
};

INLINE void one_bit_prepare(struct one_bit_queries *queries, const float *q, int n_q, int n)
{
    memset(queries, 0, sizeof *queries);
    for (int a = 0; a < n_q; a++)
        queries->factor[a] = one_bit_query(queries->x[a], q + (size_t)a * (size_t)n, n);
}

/* clear[a * n_records + r] = q_a . the lowest keys of record r; n_q n_records = VEC, both compile-time constants. */
INLINE void one_bit_clear(float clear[VEC], const float *q, int n_q, const uint8_t *const *records, int n_records, int n)
{
    vec acc[VEC];
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    for (int i = 0; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        vec x[QUERIES];
        UNROLL
        for (int a = 0; a < n_q; a++)
            x[a] = vec_load_some(q + (size_t)a * (size_t)n + i, count);
        UNROLL
        for (int r = 0; r < n_records; r++) {
            const uint8_t *p = records[r] + (size_t)i * 2;
            const vec low = count == VEC ? vec_load_half(p) : vec_load_half_some(p, count);
            UNROLL
            for (int a = 0; a < n_q; a++)
                acc[a * n_records + r] = vec_fma(x[a], low, acc[a * n_records + r]);
        }
    }
    vec_store(clear, vec_sum_each(acc));
}

INLINE __mmask64 load_mask64(const uint8_t *p)
{
    __mmask64 mask;
    __asm__("kmovq %1, %0" : "=k"(mask) : "m"(*(const char(*)[8])p));
    return mask;
}

/* The ranges of four channels, at the tokens whose bits are set: of tokens 0 to 15, and of the others. */
INLINE void one_bit_spread(__m512i x[2], const uint8_t *range, const uint8_t *bits)
{
    const __m512i four = _mm512_set1_epi32((int)load_u32(range));
    x[0] = _mm512_maskz_mov_epi8(load_mask64(bits), four);
    x[1] = _mm512_maskz_mov_epi8(load_mask64(bits + 8), four);
}

/* Lanes of sums as scores. */
INLINE vec one_bit_score(__m512i sum, float scale, float clear)
{
    return vec_fma(_mm512_cvtepi32_ps(sum), vec_set1(scale), vec_set1(clear));
}

/* Adds the products of four channels. */
INLINE void one_bit_add(__m512i (*sum)[2], const struct one_bit_queries *queries, int n_q, const uint8_t *range,
                        const uint8_t *bits, int d)
{
    __m512i x[2];
    one_bit_spread(x, range + d, bits + (size_t)d * 4);
    UNROLL
    for (int a = 0; a < n_q; a++) {
        const __m512i y = _mm512_set1_epi32((int)load_u32(&queries->x[a][d]));
        UNROLL
        for (int half = 0; half < 2; half++)
            sum[a][half] = _mm512_dpbusd_epi32(sum[a][half], x[half], y);
    }
}

/* A record, and what it scores where no bit is set: clear[a * clear_stride] for query a. */
struct one_bit_record {
    const uint8_t *at;
    size_t bytes;
    const float *clear;
    size_t clear_stride;
};

/* Scores of one record. n_q, up to four, is a compile-time constant. Meanwhile `walk` goes on to where the record of `soon` bytes
 * later ends. */
INLINE void one_bit_record(struct butler_results s, const struct one_bit_queries *queries, int n_q, struct one_bit_record one,
                           int n, struct walk *walk, size_t soon)
{
    const uint8_t *record = one.at;
    const uint8_t *range = one_bit_ranges(record, n), *bits = one_bit_bits(record, n);
    const uintptr_t begin = (uintptr_t)record + soon;
    __m512i sum[4][2];
    int d = 0;
    UNROLL
    for (int a = 0; a < n_q; a++)
        sum[a][0] = sum[a][1] = _mm512_setzero_si512();
    for (; d + 16 <= n; d += 16) {
        walk_to(walk, begin + butler_one_bit_bytes(d));
        UNROLL
        for (int k = 0; k < 16; k += 4)
            one_bit_add(sum, queries, n_q, range, bits, d + k);
    }
    for (; d < n; d += 4)
        one_bit_add(sum, queries, n_q, range, bits, d);
    walk_to(walk, begin + one.bytes);
    const float unit = one_bit_unit(record, n);
    UNROLL
    for (int a = 0; a < n_q; a++)
        for (int half = 0; half < 2; half++)
            vec_store(s.at + (size_t)a * s.stride + half * LANES,
                      one_bit_score(sum[a][half], unit * queries->factor[a], one.clear[(size_t)a * one.clear_stride]));
}

/* n_q up to four. The bytes before the bits are read for as many records together as give a vector of sums. These are half of
 * them from the list's first half and half from its second: of two streams the core keeps more lines under way than of one. */
INLINE void one_bit_scan(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *records, size_t record_bytes,
                         int n_records, int n)
{
    const int together = VEC / n_q, half = n_records / together * (together / 2);
    const size_t soon = (size_t)VEC * record_bytes;
    const uint8_t *others = records + (size_t)half * record_bytes, *record[VEC];
    struct walk walk = walk_from(records), walk_others = walk_from(others);
    struct one_bit_queries queries;
    float clear[VEC];
    one_bit_prepare(&queries, q, n_q, n);
#define SCORE(j, r, walk)                                                                                                          \
    one_bit_record((struct butler_results){s + (size_t)(j)*TOKENS, s_stride}, &queries, n_q,                                       \
                   (struct one_bit_record){record[r], record_bytes, clear + (r), (size_t)together}, n, walk, soon)
    for (int j = 0; j < half; j += together / 2) {
        for (int r = 0; r < together; r += 2, records += record_bytes, others += record_bytes) {
            record[r] = records;
            record[r + 1] = others;
        }
        one_bit_clear(clear, q, n_q, record, together, n);
        for (int r = 0; r < together; r += 2) {
            SCORE(j + r / 2, r, &walk);
            SCORE(j + r / 2 + half, r + 1, &walk_others);
        }
    }
    if (2 * half < n_records) {
        for (int r = 0; r < together; r++)
            record[r] = others + (size_t)BUTLER_MIN(r, n_records - 2 * half - 1) * record_bytes;
        one_bit_clear(clear, q, n_q, record, together, n);
        for (int r = 0; r < n_records - 2 * half; r++)
            SCORE(2 * half + r, r, &walk_others);
    }
#undef SCORE
}

static void one_bit_vnni(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                         int n_records, int n)
{
    for (int i = 0, count; i < n_q; i += count, q += count * (size_t)n, s += count * s_stride) {
        count = n_q - i >= 4 ? 4 : n_q - i >= 2 ? 2 : 1;
        if (count == 4)
            one_bit_scan(s, s_stride, q, 4, records, record_bytes, n_records, n);
        else if (count == 2)
            one_bit_scan(s, s_stride, q, 2, records, record_bytes, n_records, n);
        else if (n == 64) /* the lengths of most models */
            one_bit_scan(s, s_stride, q, 1, records, record_bytes, n_records, 64);
        else if (n == 128)
            one_bit_scan(s, s_stride, q, 1, records, record_bytes, n_records, 128);
        else
            one_bit_scan(s, s_stride, q, 1, records, record_bytes, n_records, n);
    }
}

#endif
