/* Decode attention over Q8_0 rows for CPUs with AVX2: keys are bytes widened to 16 bits, queries are in 16-bit fixed point
 * (kernels.h, fix), and pairs of their products are added by one instruction. Eight rows are turned so that a lane is a token: sums
 * over lanes fall away, and what is turned serves all queries of a group. */
#include <math.h>

#include "kernels.h"

#if defined(__x86_64__)
#include "vec256.h"

#include "simd_vectors.h"
#include "simd_cache.h"
#include "simd_attend.h"
#include "simd_narrow.h"
#include "simd_pairs.h"

enum { PAIRS = BLOCK / 2, SIDES = TILE_ROWS / VEC };

/* Of every block of 32 channels the numbers in pairs, and the scale. */
struct fixed_queries {
    int32_t pairs[TILE_BLOCKS][TILE_QUERIES][PAIRS];
    float scales[TILE_BLOCKS][TILE_QUERIES];
};

static void fix_queries(struct fixed_queries *fixed, const float *q, size_t q_stride, int n_q, int n)
{
    for (int i = 0; i < n_q; i++) {
        for (int b = 0; b < n / BLOCK; b++) {
            const float *x = q + i * q_stride + (size_t)b * BLOCK;
            const float extreme = extreme32(x);
            const bool any = !(extreme < BUTLER_FIXED_LEAST);
            const vec inverse = vec_set1(any ? BUTLER_FIXED_MOST / extreme : 0);
            for (int c = 0; c < BLOCK; c += VEC)
                store_pairs(&fixed->pairs[b][i][c / 2], _mm256_cvtps_epi32(vec_mul(vec_load(x + c), inverse)));
            fixed->scales[b][i] = any ? extreme / BUTLER_FIXED_MOST : 0;
        }
    }
}

/* 16 bytes at p and 16 at other. A blend, because an insertion takes a unit that turning needs. */
INLINE __m256i two_rows(const uint8_t *p, const uint8_t *other)
{
    const __m256i high = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)other));
    return _mm256_blend_epi32(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)), high, 0xf0);
}

/* 32 bytes of each of 16 rows: pair p of rows 8 s .. 8 s + 7 in pairs[p][s]. */
INLINE void turn_block(__m256i pairs[PAIRS][SIDES], const void *const *rows, size_t step, size_t skip)
{
    UNROLL
    for (int side = 0; side < SIDES; side++) {
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m256i x[4];
            UNROLL
            for (int r = 0; r < 4; r++)
                x[r] = two_rows(row_at(rows, step, side * VEC + r) + skip + half * 16,
                                row_at(rows, step, side * VEC + r + 4) + skip + half * 16);
            turn_pairs(&pairs[half * 8][side], SIDES, x);
        }
    }
}

/* What block b of n_q queries from i on, a compile-time constant, gives, on top of the blocks before. */
INLINE void block_scores(float (*p)[TILE_ROWS], const struct fixed_queries *fixed, int b, int i, int n_q,
                         const __m256i pairs[PAIRS][SIDES], const float key_scales[TILE_ROWS])
{
    __m256i sum[4][SIDES];
    UNROLL
    for (int k = 0; k < n_q * SIDES; k++)
        sum[k / SIDES][k % SIDES] = _mm256_setzero_si256();
    for (int w = 0; w < PAIRS; w++) {
        UNROLL
        for (int k = 0; k < n_q; k++) {
            const __m256i x = _mm256_set1_epi32(fixed->pairs[b][i + k][w]);
            UNROLL
            for (int side = 0; side < SIDES; side++)
                add_dwords(&sum[k][side], _mm256_madd_epi16(pairs[w][side], x));
        }
    }
    UNROLL
    for (int k = 0; k < n_q; k++) {
        UNROLL
        for (int side = 0; side < SIDES; side++) {
            float *out = p[i + k] + side * VEC;
            const vec scale = vec_mul(vec_load(key_scales + side * VEC), vec_set1(fixed->scales[b][i + k]));
            const vec product = _mm256_cvtepi32_ps(sum[k][side]);
            vec_store(out, b ? vec_fma(product, scale, vec_load(out)) : vec_mul(product, scale));
        }
    }
}

#define BLOCK_SCORES(n_q)                                                                                                          \
    static __attribute__((noinline)) void block_scores_##n_q(float(*p)[TILE_ROWS], const struct fixed_queries *fixed, int b,       \
                                                             int i, const __m256i pairs[PAIRS][SIDES], const float *key_scales)    \
    {                                                                                                                              \
        block_scores(p, fixed, b, i, n_q, pairs, key_scales);                                                                      \
    }
BLOCK_SCORES(1)
BLOCK_SCORES(2)
BLOCK_SCORES(4)

/* step: as for row_at, a compile-time constant. */
INLINE void scores_of_rows(float (*p)[TILE_ROWS], struct tile_scales *scales, const struct fixed_queries *fixed, int n_q,
                           const void *const *rows, size_t step, struct due due, int n)
{
    const int n_blocks = n / BLOCK;
    load_scales(scales->keys, rows, step, 0, n);
    for (int b = 0, fetched = 0; b < n_blocks; b++) {
        __m256i pairs[PAIRS][SIDES];
        int i = 0;
        for (; fetched * n_blocks < (b + 1) * TILE_ROWS; fetched++)
            fetch_row(ROW_Q8_0, due, fetched, 0, n);
        turn_block(pairs, rows, step, (size_t)b * Q8_0_BYTES + Q8_0_QUANTS);
        for (; i + 4 <= n_q; i += 4)
            block_scores_4(p, fixed, b, i, pairs, scales->keys[b]);
        for (; i + 2 <= n_q; i += 2)
            block_scores_2(p, fixed, b, i, pairs, scales->keys[b]);
        if (i < n_q)
            block_scores_1(p, fixed, b, i, pairs, scales->keys[b]);
    }
}

#define FIXED_VALUES values_q8_0
#include "simd_attend_fixed.h"

void butler_kernels_attend_avx2(struct butler_kernels *table)
{
    table->attend[BUTLER_KV_Q8_0] = attend_q8_0;
    table->attend_fixed = true;
}
#endif
