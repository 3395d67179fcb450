/* One-bit keys with AVX-512 VNNI, for the files that have it: a lane is a token, and one instruction adds four of its channels.
 * A mask of 64 bits, four channels of 16 tokens, spreads the four channels' ranges over the tokens whose bits are set; what
 * remains are products with a query's bytes, which are the same for all records. */
#ifndef BUTLER_SIMD_ONE_BIT512_H
#define BUTLER_SIMD_ONE_BIT512_H

#include "one_bit.h"
#include "vec512.h"

enum {
    TOKENS = 32,
    LANES = 16,                         /* tokens of a vector */
    CHANNELS = BUTLER_ONE_BIT_CHANNELS,
    QUERIES = 8,                        /* at a time */
    AHEAD = 8192,                       /* bytes fetched into the second-level cache before they are into the first */
};

/* Queries as bytes: channel d is 128 high[d] + low[d] times factor. */
struct one_bit_parts {
    _Alignas(64) int8_t high[QUERIES][CHANNELS], low[QUERIES][CHANNELS];
    float factor[QUERIES];
};

INLINE void one_bit_split(struct one_bit_parts *parts, const float *q, int n_q, int n)
{
    int16_t x[CHANNELS];
    memset(parts, 0, sizeof *parts);
    for (int a = 0; a < n_q; a++) {
        parts->factor[a] = one_bit_query(x, q + (size_t)a * (size_t)n, n);
        for (int d = 0; d < n; d++) {
            const int high = (x[d] + ONE_BIT_PART / 2) >> 7;
            parts->high[a][d] = (int8_t)high;
            parts->low[a][d] = (int8_t)(x[d] - high * ONE_BIT_PART);
        }
    }
}

/* clear[a * n_records + r] = q_a . the lowest keys of record r; n_q n_records = VEC, both compile-time constants. Records beyond
 * `last` repeat it. */
INLINE void one_bit_clear(float clear[VEC], const float *q, int n_q, const uint8_t *first, const uint8_t *last, size_t record_bytes,
                          int n_records, int n)
{
    const uint8_t *record[VEC];
    vec acc[VEC];
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    for (int r = 0; r < n_records; r++)
        record[r] = (size_t)(last - first) < (size_t)r * record_bytes ? last : first + (size_t)r * record_bytes;
    for (int i = 0; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        vec x[QUERIES];
        UNROLL
        for (int a = 0; a < n_q; a++)
            x[a] = vec_load_some(q + (size_t)a * (size_t)n + i, count);
        UNROLL
        for (int r = 0; r < n_records; r++) {
            const uint8_t *p = record[r] + (size_t)i * 2;
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

/* Lanes of sums of both parts as scores. */
INLINE vec one_bit_score(__m512i high, __m512i low, float scale, float clear)
{
    return vec_fma(_mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high, 7), low)), vec_set1(scale), vec_set1(clear));
}

/* Adds the products of four channels to the sums of both parts. */
INLINE void one_bit_add(__m512i (*high)[2], __m512i (*low)[2], const struct one_bit_parts *parts, int n_q, const uint8_t *range,
                        const uint8_t *bits, int d)
{
    __m512i x[2];
    one_bit_spread(x, range + d, bits + (size_t)d * 4);
    UNROLL
    for (int a = 0; a < n_q; a++) {
        const __m512i h = _mm512_set1_epi32((int)load_u32(&parts->high[a][d]));
        const __m512i l = _mm512_set1_epi32((int)load_u32(&parts->low[a][d]));
        UNROLL
        for (int half = 0; half < 2; half++) {
            high[a][half] = _mm512_dpbusd_epi32(high[a][half], x[half], h);
            low[a][half] = _mm512_dpbusd_epi32(low[a][half], x[half], l);
        }
    }
}

/* Scores of one record; clear_a = clear[a * clear_stride]. n_q, up to four, is a compile-time constant. */
INLINE void one_bit_record(float *s, size_t s_stride, const struct one_bit_parts *parts, int n_q, const uint8_t *record,
                           const float *clear, size_t clear_stride, int n)
{
    const uint8_t *range = one_bit_ranges(record, n), *bits = one_bit_bits(record, n);
    __m512i high[4][2], low[4][2];
    int d = 0;
    UNROLL
    for (int a = 0; a < n_q; a++)
        high[a][0] = high[a][1] = low[a][0] = low[a][1] = _mm512_setzero_si512();
    for (; d + 16 <= n; d += 16) {
        UNROLL
        for (int k = 0; k < 16; k += 4)
            one_bit_add(high, low, parts, n_q, range, bits, d + k);
    }
    for (; d < n; d += 4)
        one_bit_add(high, low, parts, n_q, range, bits, d);
    const float unit = one_bit_unit(record, n);
    UNROLL
    for (int a = 0; a < n_q; a++)
        for (int half = 0; half < 2; half++)
            vec_store(s + (size_t)a * s_stride + half * LANES,
                      one_bit_score(high[a][half], low[a][half], unit * parts->factor[a], clear[(size_t)a * clear_stride]));
}

/* Fetches a record's lines `soon` bytes further on, and those AHEAD of that. */
INLINE void one_bit_fetch(const uint8_t *record, size_t soon, size_t record_bytes)
{
    for (size_t line = 0; line < record_bytes; line += 64) {
        prefetch_second((const void *)((uintptr_t)record + soon + AHEAD + line));
        prefetch(record, soon + line);
    }
}

/* n_q up to four. What stands before the bits is read for as many records together as give a vector of sums. */
INLINE void one_bit_queries(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *records, size_t record_bytes,
                            int n_records, int n)
{
    const int together = VEC / n_q;
    const uint8_t *last = records + (size_t)(n_records - 1) * record_bytes;
    struct one_bit_parts parts;
    one_bit_split(&parts, q, n_q, n);
    for (int j = 0; j < n_records; j += together, records += (size_t)together * record_bytes) {
        float clear[VEC];
        one_bit_clear(clear, q, n_q, records, last, record_bytes, together, n);
        for (int r = 0; r < BUTLER_MIN(together, n_records - j); r++) {
            const uint8_t *record = records + (size_t)r * record_bytes;
            one_bit_fetch(record, (size_t)VEC * record_bytes, record_bytes);
            one_bit_record(s + (size_t)(j + r) * TOKENS, s_stride, &parts, n_q, record, clear + r, (size_t)together, n);
        }
    }
}

static void one_bit_vnni(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                         int n_records, int n)
{
    for (; n_q >= 4; n_q -= 4, q += 4 * (size_t)n, s += 4 * s_stride)
        one_bit_queries(s, s_stride, q, 4, records, record_bytes, n_records, n);
    for (; n_q >= 2; n_q -= 2, q += 2 * (size_t)n, s += 2 * s_stride)
        one_bit_queries(s, s_stride, q, 2, records, record_bytes, n_records, n);
    if (n_q > 0)
        one_bit_queries(s, s_stride, q, 1, records, record_bytes, n_records, n);
}

#endif
