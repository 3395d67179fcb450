/* Decode attention over Q8_0 rows for CPUs with AVX-512 VNNI: keys stay the bytes that they are, queries are in 16-bit fixed
 * point (kernels.h, fix). A tile's keys are turned so that a lane is a token: an instruction then adds four of its channels, sums
 * over lanes fall away, and what is turned serves all queries of a group. */
#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_attend.h"
#include "kernels/simd_group.h"

_Static_assert(TILE_ROWS == VEC, "a lane is a token");

enum { QUADS = BLOCK / 4 };

/* Of every block of 32 channels the high bytes and the low ones, four channels a word; what it costs that the instruction takes
 * keys as unsigned, 128 too great; and the scale. */
struct fixed_queries {
    int32_t parts[TILE_BLOCKS][TILE_QUERIES][QUADS][2], offsets[TILE_BLOCKS][TILE_QUERIES];
    float scales[TILE_BLOCKS][TILE_QUERIES];
};

/* Four channels a lane of 16 numbers in 32 bits: the bytes of the numbers' lowest bytes, in order. */
INLINE void put_words(int32_t *out, __m512i q)
{
    _Alignas(16) int32_t words[4];
    _mm_store_si128((__m128i *)words, _mm512_cvtepi32_epi8(q));
    for (int k = 0; k < 4; k++)
        out[2 * k] = words[k];
}

static void fix_queries(struct fixed_queries *fixed, const float *q, size_t q_stride, int n_q, int n)
{
    for (int i = 0; i < n_q; i++) {
        for (int b = 0; b < n / BLOCK; b++) {
            const float *x = q + i * q_stride + (size_t)b * BLOCK;
            float inverse;
            fixed->scales[b][i] = scale32(x, BUTLER_FIXED_MOST, &inverse);
            __m512i sum = _mm512_setzero_si512();
            for (int k = 0; k < 2; k++) {
                const __m512i v = _mm512_cvtps_epi32(vec_mul(vec_load(x + k * VEC), vec_set1(inverse)));
                put_words(&fixed->parts[b][i][4 * k][0], _mm512_srai_epi32(_mm512_add_epi32(v, _mm512_set1_epi32(128)), 8));
                put_words(&fixed->parts[b][i][4 * k][1], v);
                sum = _mm512_add_epi32(sum, v);
            }
            fixed->offsets[b][i] = (int32_t)(-128 * (uint32_t)_mm512_reduce_add_epi32(sum));
        }
    }
}

/* Half the channels of four rows a lane, from four vectors: word w of all 16 rows in quads[w]. */
INLINE void turn_words(__m512i quads[4], const __m512i x[4])
{
    const __m512i a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpackhi_epi32(x[0], x[1]);
    const __m512i c = _mm512_unpacklo_epi32(x[2], x[3]), d = _mm512_unpackhi_epi32(x[2], x[3]);
    quads[0] = _mm512_unpacklo_epi64(a, c), quads[1] = _mm512_unpackhi_epi64(a, c);
    quads[2] = _mm512_unpacklo_epi64(b, d), quads[3] = _mm512_unpackhi_epi64(b, d);
}

INLINE __m512i two_rows(const void *const *rows, size_t step, size_t skip, int r)
{
    const __m256i a = _mm256_loadu_si256((const __m256i *)(row_at(rows, step, r) + skip));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), _mm256_loadu_si256((const __m256i *)(row_at(rows, step, r + 8) + skip)),
                              1);
}

/* 32 bytes of each of 16 rows, 128 more than they are: bytes 4 w .. 4 w + 3 of all in quads[w]. */
INLINE void turn_block(__m512i quads[QUADS], const void *const *rows, size_t step, size_t skip)
{
    const __m512i sign = _mm512_set1_epi8((char)0x80);
    __m512i x[4], y[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        const __m512i a = _mm512_xor_si512(two_rows(rows, step, skip, i), sign),
                      b = _mm512_xor_si512(two_rows(rows, step, skip, i + 4), sign);
        x[i] = _mm512_mask_permutex_epi64(a, 0xcc, b, 0x4e); /* first halves of rows i, i + 4, i + 8, i + 12 */
        y[i] = _mm512_mask_permutex_epi64(b, 0x33, a, 0x4e); /* second halves */
    }
    turn_words(quads, x);
    turn_words(quads + 4, y);
}

/* Adds to each lane its four channels times those of a word. Compilers spread the word over a vector first, which is one more
 * instruction where there are hardly others. */
INLINE __m512i add_quads(__m512i sum, __m512i quads, const int32_t *word)
{
    __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(quads), "m"(*word));
    return sum;
}

/* Products of block b with n_q queries from i on, a compile-time constant, a token a lane. */
INLINE void block_products(vec *sums, const struct fixed_queries *fixed, int b, int i, int n_q, const __m512i quads[QUADS])
{
    __m512i high[4], low[4];
    UNROLL
    for (int k = 0; k < n_q; k++) {
        high[k] = _mm512_setzero_si512();
        low[k] = _mm512_set1_epi32(fixed->offsets[b][i + k]);
    }
    UNROLL
    for (int w = 0; w < QUADS; w++) {
        UNROLL
        for (int k = 0; k < n_q; k++) {
            high[k] = add_quads(high[k], quads[w], &fixed->parts[b][i + k][w][0]);
            low[k] = add_quads(low[k], quads[w], &fixed->parts[b][i + k][w][1]);
        }
    }
    UNROLL
    for (int k = 0; k < n_q; k++)
        sums[k] = _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(high[k], 8), low[k]));
}

/* Adds what block b of n_q queries, a compile-time constant, gives. */
INLINE void block_scores(float (*p)[TILE_ROWS], const struct fixed_queries *fixed, int b, int i, int n_q,
                         const __m512i quads[QUADS], vec key_scales)
{
    vec sums[4];
    block_products(sums, fixed, b, i, n_q, quads);
    UNROLL
    for (int k = 0; k < n_q; k++) {
        const vec scale = vec_mul(key_scales, vec_set1(fixed->scales[b][i + k]));
        vec_store(p[i + k], b ? vec_fma(sums[k], scale, vec_load(p[i + k])) : vec_mul(sums[k], scale));
    }
}

/* step: as for row_at, a compile-time constant. */
INLINE void scores_of_rows(float (*p)[TILE_ROWS], struct tile_scales *scales, const struct fixed_queries *fixed, int n_q,
                           const void *const *rows, size_t step, struct due due, int n)
{
    const int n_blocks = n / BLOCK;
    load_scales(scales->keys, rows, step, 0, n);
    for (int b = 0, fetched = 0; b < n_blocks; b++) {
        __m512i quads[QUADS];
        const vec key_scales = vec_load(scales->keys[b]);
        int i = 0;
        if (step && n == 64)
            fetch_known(ROW_Q8_0, due, b * TILE_ROWS / 2, TILE_ROWS / 2, 0, n);
        else
            for (; fetched * n_blocks < (b + 1) * TILE_ROWS; fetched++)
                fetch_due(ROW_Q8_0, due, fetched, 1, 0, n);
        turn_block(quads, rows, step, (size_t)b * Q8_0_BYTES + Q8_0_QUANTS);
        for (; i + 4 <= n_q; i += 4)
            block_scores(p, fixed, b, i, 4, quads, key_scales);
        for (; i < n_q; i++)
            block_scores(p, fixed, b, i, 1, quads, key_scales);
    }
}

/* ------------------------------------------------------------------------------------- four or eight heads a key */

/* i is a compile-time constant, but not to every compiler's mind when the instruction wants one. */
INLINE __m128i quarter_of(__m512i v, int i)
{
    return i == 0   ? _mm512_castsi512_si128(v)
           : i == 1 ? _mm512_extracti32x4_epi32(v, 1)
           : i == 2 ? _mm512_extracti32x4_epi32(v, 2)
                    : _mm512_extracti32x4_epi32(v, 3);
}

/* Heads by tokens becomes tokens by heads: p[TILE_ROWS][heads]. */
INLINE void store_by_tokens(float *p, const vec *scores, int heads)
{
    __m512i v[GROUP_HEADS];
    UNROLL
    for (int k = 0; k < heads; k += 4) { /* four heads of a token in each quarter: tokens i, i + 4, i + 8, i + 12 */
        const __m512i x[4] = {_mm512_castps_si512(scores[k]), _mm512_castps_si512(scores[k + 1]),
                              _mm512_castps_si512(scores[k + 2]), _mm512_castps_si512(scores[k + 3])};
        turn_words(v + k, x);
    }
    UNROLL
    for (int r = 0; r < TILE_ROWS; r += 4) {
        UNROLL
        for (int i = 0; i < 4; i++) {
            UNROLL
            for (int k = 0; k < heads; k += 4)
                _mm_store_si128((__m128i *)(p + (r + i) * heads + k), quarter_of(v[k + i], r / 4));
        }
    }
}

/* p[TILE_ROWS][heads]; fetches all that is due. */
INLINE void group_scores_q8_0(float *p, const struct fixed_queries *fixed, int heads, const void *const *rows, size_t step,
                              const struct due *due, int n)
{
    const int n_blocks = n / BLOCK;
    const struct due all = *due;
    _Alignas(64) float scales[GROUP_BLOCKS][TILE_ROWS];
    vec total[GROUP_HEADS];
    load_scales(scales, rows, step, 0, n);
    UNROLL
    for (int b = 0; b < n_blocks; b++) {
        __m512i quads[QUADS];
        fetch_part(ROW_Q8_0, &all, step, b, n_blocks, n);
        turn_block(quads, rows, step, (size_t)b * Q8_0_BYTES + Q8_0_QUANTS);
        const vec key_scales = vec_load(scales[b]);
        UNROLL
        for (int i = 0; i < heads; i += 4) {
            vec sums[4];
            block_products(sums, fixed, b, i, 4, quads);
            UNROLL
            for (int k = 0; k < 4; k++) {
                const vec scale = vec_mul(key_scales, vec_set1(fixed->scales[b][i + k]));
                total[i + k] = b ? vec_fma(sums[k], scale, total[i + k]) : vec_mul(sums[k], scale);
            }
        }
    }
    store_by_tokens(p, total, heads);
}

#define FIXED_VALUES NULL
#include "kernels/simd_attend_fixed.h"

void butler_kernels_attend_vnni(struct butler_kernels *table)
{
    table->attend[BUTLER_KV_Q8_0] = attend_groups;
    table->attend_fixed = true;
}
#endif
