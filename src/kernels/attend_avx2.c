/* Decode attention over Q8_0 rows for CPUs with AVX2. Keys are bytes widened to 16 bits, queries are quantised to 16-bit integers
 * (kernels.h, attend_q16); one instruction adds pairs of their products. The sums of eight (row, query) pairs are then reduced
 * together into one vector. Transposing the rows, so that a lane is a token, would avoid this reduction but costs more for up to
 * four queries. All x86-64 processors with AVX2 win, those with AVX-512 too; by how much: `bench_kernels --compare --only attend`.
 */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AVX2)

#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec256.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_attend.h"
#include "kernels/simd_group.h"
#include "kernels/simd_narrow.h"

/* Of every block of 32 channels the numbers, and the scale. */
struct q16_queries {
    _Alignas(32) int16_t words[TILE_BLOCKS][TILE_QUERIES][BLOCK];
    float scales[TILE_BLOCKS][TILE_QUERIES];
};

static void quantise_queries(struct q16_queries *fixed, struct butler_vectors q, int n)
{
    for (int i = 0; i < q.n; i++) {
        for (int b = 0; b < n / BLOCK; b++) {
            const float *x = q.at + i * q.stride + (size_t)b * BLOCK;
            float inverse;
            fixed->scales[b][i] = scale32(x, BUTLER_Q16_MAX, &inverse);
            for (int c = 0; c < BLOCK; c += 2 * VEC) {
                const __m256i first = _mm256_cvtps_epi32(vec_mul(vec_load(x + c), vec_set1(inverse)));
                const __m256i second = _mm256_cvtps_epi32(vec_mul(vec_load(x + c + VEC), vec_set1(inverse)));
                _mm256_store_si256((__m256i *)&fixed->words[b][i][c],
                                   _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), _MM_SHUFFLE(3, 1, 2, 0)));
            }
        }
    }
}

INLINE __m256i either_half(__m256i a, __m256i b)
{
    return _mm256_add_epi32(_mm256_blend_epi32(a, b, 0xf0), _mm256_permute2x128_si256(a, b, 0x21));
}

/* vec_sum_each for integers: lane k is the sum of a[k]. */
INLINE __m256i sum_each(const __m256i a[VEC])
{
    __m256i b[4], c[2];
    UNROLL
    for (int i = 0; i < 4; i++)
        b[i] = either_half(a[i], a[i + 4]);
    UNROLL
    for (int i = 0; i < 2; i++)
        c[i] = _mm256_add_epi32(_mm256_unpacklo_epi64(b[2 * i], b[2 * i + 1]), _mm256_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
    const vec x = _mm256_castsi256_ps(c[0]), y = _mm256_castsi256_ps(c[1]);
    return _mm256_add_epi32(_mm256_castps_si256(_mm256_shuffle_ps(x, y, 0x88)), _mm256_castps_si256(_mm256_shuffle_ps(x, y, 0xdd)));
}

INLINE vec four_twice(const float *p)
{
    return _mm256_broadcast_ps((const __m128 *)p);
}
INLINE vec two_often(const float *p)
{
    return _mm256_castsi256_ps(_mm256_broadcastq_epi64(_mm_loadl_epi64((const __m128i *)p)));
}

/* Scores of VEC / n_q rows from `first` of a tile on for n_q queries from i on, a compile-time constant as rows.step is. Lanes are
 * rows, query by query. */
INLINE vec narrow_products(const struct tile_scales *scales, const struct q16_queries *fixed, int i, int n_q,
                           struct butler_rows rows, int first, int n)
{
    const int n_rows = VEC / n_q;
    const __m256i query = _mm256_srli_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), n_q == 1 ? 3 : n_q == 2 ? 2 : 1);
    vec total = vec_zero();
    for (int b = 0; b < n / BLOCK; b++) {
        const __m256i *q = (const __m256i *)fixed->words[b][i];
        __m256i sum[VEC];
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *row = row_at(rows, first + r) + (size_t)b * Q8_0_BYTES + Q8_0_QUANTS;
            const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)row));
            const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)row + 1));
            UNROLL
            for (int k = 0; k < n_q; k++)
                sum[k * n_rows + r] = _mm256_add_epi32(_mm256_madd_epi16(low, q[2 * k]), _mm256_madd_epi16(high, q[2 * k + 1]));
        }
        const float *keys = scales->keys[b] + first, *queries = &fixed->scales[b][i];
        const vec key_scales = n_q == 1 ? vec_load(keys) : n_q == 2 ? four_twice(keys) : two_often(keys);
        const vec query_scales =
            n_q == 1 ? vec_set1(*queries) : _mm256_permutevar8x32_ps(n_q == 2 ? two_often(queries) : four_twice(queries), query);
        total = vec_fma(_mm256_cvtepi32_ps(sum_each(sum)), vec_mul(key_scales, query_scales), total);
    }
    return total;
}

INLINE void scores_of_tile(float (*p)[TILE_ROWS], const struct tile_scales *scales, const struct q16_queries *fixed, int i, int n_q,
                           struct butler_rows rows, const struct to_prefetch *to_prefetch, int n)
{
    const int n_rows = VEC / n_q;
    for (int first = 0; first < TILE_ROWS; first += n_rows) {
        _Alignas(32) float s[VEC];
        prefetch_narrow(ROW_Q8_0, to_prefetch, n_q, rows.step, first, n_rows, n);
        vec_store(s, narrow_products(scales, fixed, i, n_q, rows, first, n));
        UNROLL
        for (int k = 0; k < n_q; k++)
            memcpy(p[i + k] + first, s + k * n_rows, (size_t)n_rows * sizeof *s);
    }
}

#define FIXED_LENGTH(n_q, name, length)                                                                                            \
    static __attribute__((noinline)) void fixed_##n_q##_##name(                                                                    \
        float(*p)[TILE_ROWS], const struct tile_scales *scales, const struct q16_queries *fixed, int i,                            \
        const struct butler_rows *rows, const struct to_prefetch *to_prefetch, int n)                                              \
    {                                                                                                                              \
        (void)n;                                                                                                                   \
        if (rows->step)                                                                                                            \
            scores_of_tile(p, scales, fixed, i, n_q, tile_rows(rows->list, TILE_ROWS, dense_step(ROW_Q8_0, length), 0),            \
                           to_prefetch, length);                                                                                   \
        else                                                                                                                       \
            scores_of_tile(p, scales, fixed, i, n_q, tile_rows(rows->list, TILE_ROWS, 0, 0), to_prefetch, length);                 \
    }
#define FIXED_SCORES(n_q) FIXED_LENGTH(n_q, 64, 64) FIXED_LENGTH(n_q, 128, 128) FIXED_LENGTH(n_q, other, n)
FIXED_SCORES(1)
FIXED_SCORES(2)
FIXED_SCORES(4)

/* rows.step: a compile-time constant. */
INLINE void scores_of_rows(float (*p)[TILE_ROWS], struct tile_scales *scales, const struct q16_queries *fixed, int n_q,
                           struct butler_rows rows, struct to_prefetch to_prefetch, int n)
{
    struct to_prefetch part;
    int i = 0;
    load_scales(scales->keys, rows, n);
    for (; i + 4 <= n_q; i += 4)
        OF_LENGTH(fixed_4)(p, scales, fixed, i, &rows, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
    for (; i + 2 <= n_q; i += 2)
        OF_LENGTH(fixed_2)(p, scales, fixed, i, &rows, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
    if (i < n_q)
        OF_LENGTH(fixed_1)(p, scales, fixed, i, &rows, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
}

/* ------------------------------------------------------------------------------------- four or eight heads a key */

/* p[TILE_ROWS][heads]; prefetches all of to_prefetch. */
INLINE void group_scores_q8_0(float *p, const struct q16_queries *fixed, int heads, struct butler_rows rows,
                              const struct to_prefetch *to_prefetch, int n)
{
    const struct to_prefetch all = *to_prefetch;
    const uint8_t *first = row_at(rows, 0);
    _Alignas(32) float scales[GROUP_BLOCKS][TILE_ROWS];
    load_scales(scales, rows, n);
    for (int r = 0; r < TILE_ROWS; r += TOKENS) {
        vec total = vec_zero();
        prefetch_part(ROW_Q8_0, &all, rows.step, r / TOKENS, TILE_ROWS / TOKENS, n);
        UNROLL
        for (int b = 0; b < n / BLOCK; b++) {
            const __m256i *q = (const __m256i *)fixed->words[b][0];
            __m256i sum[VEC];
            UNROLL
            for (int t = 0; t < TOKENS; t++) {
                const uint8_t *row =
                    (rows.step ? first + (size_t)(r + t) * rows.step : row_at(rows, r + t)) + (size_t)b * Q8_0_BYTES;
                const __m256i low = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + Q8_0_QUANTS)));
                const __m256i high = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(row + Q8_0_QUANTS) + 1));
                UNROLL
                for (int k = 0; k < heads; k++)
                    sum[t * heads + k] = _mm256_add_epi32(_mm256_madd_epi16(low, q[2 * k]), _mm256_madd_epi16(high, q[2 * k + 1]));
            }
            const vec queries = heads == VEC ? vec_load(fixed->scales[b]) : four_twice(fixed->scales[b]);
            total = vec_fma(_mm256_cvtepi32_ps(sum_each(sum)), vec_mul(vec_load_each(scales[b] + r, heads), queries), total);
        }
        vec_store(p + r * heads, total);
    }
}

INLINE void q16_scores(float (*p)[TILE_ROWS], struct tile_scales *scales, const void *queries, int n_q, struct butler_rows rows,
                       struct to_prefetch to_prefetch, int n)
{
    if (rows.step)
        scores_of_rows(p, scales, queries, n_q, tile_rows(rows.list, TILE_ROWS, dense_step(ROW_Q8_0, n), 0), to_prefetch, n);
    else
        scores_of_rows(p, scales, queries, n_q, tile_rows(rows.list, TILE_ROWS, 0, 0), to_prefetch, n);
}

/* At most TILE_QUERIES queries. Each length that is a constant has a function of its own: compilers do badly with all in one. */
typedef void attend_fn(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n);

#define ATTEND(name, queries, length)                                                                                              \
    static __attribute__((noinline)) void name(struct butler_attended out, struct butler_vectors q,                                \
                                               const struct butler_pairs *pairs, int n)                                            \
    {                                                                                                                              \
        struct q16_queries fixed;                                                                                                  \
        const struct butler_vectors known = butler_vectors_from(q, 0, queries);                                                    \
        (void)n;                                                                                                                   \
        quantise_queries(&fixed, known, length);                                                                                   \
        attend_queries(ROW_Q8_0, out, (struct tile_queries){known, &fixed}, q16_scores, values_q8_0, rows_lie_dense, pairs,        \
                       length);                                                                                                    \
    }
ATTEND(attend_32_one, 1, 32)
ATTEND(attend_64_one, 1, 64)
ATTEND(attend_64, q.n, 64)
ATTEND(attend_128, q.n, 128)
ATTEND(attend_some, q.n, n)
#undef ATTEND

static void attend_long(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n)
{
    attend_queries(ROW_Q8_0, out, (struct tile_queries){q, NULL}, NULL, NULL, NULL, pairs, n);
}

static void attend_q8_0(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n)
{
    for (int i = 0; i < q.n; i += TILE_QUERIES) {
        const int count = BUTLER_MIN(q.n - i, TILE_QUERIES);
        attend_fn *attend = n == 32 && count == 1 ? attend_32_one /* a predictor's own heads */
                            : n == 64             ? (count == 1 ? attend_64_one : attend_64)
                            : n == 128            ? attend_128
                            : n <= PIECE          ? attend_some
                                                  : attend_long;
        attend(butler_attended_from(out, i), butler_vectors_from(q, i, count), pairs, n);
    }
}

/* weights[block][token][head] = p[token][head] times the scale of that token's values. */
INLINE void group_weights(float (*weights)[TILE_ROWS * GROUP_HEADS], const float *p, int heads, struct butler_rows rows, int n)
{
    _Alignas(64) float d[GROUP_BLOCKS][TILE_ROWS];
    if (rows.step)
        load_scales(d, tile_rows(rows.list, TILE_ROWS, dense_step(ROW_Q8_0, n), rows.skip), n);
    else
        load_scales(d, tile_rows(rows.list, TILE_ROWS, 0, rows.skip), n);
    for (int b = 0; b < n / BLOCK; b++)
        for (int r = 0; r < TILE_ROWS; r += TOKENS)
            vec_store(weights[b] + r * heads,
                      vec_max(vec_set1(LEAST_NORMAL), vec_mul(vec_load_each(d[b] + r, heads), vec_load(p + r * heads))));
}

#define GROUP_Q8_0(name, heads, n)                                                                                                 \
    GROUP_SCORES(name##_scores, group_scores_q8_0, ROW_Q8_0, heads, n)                                                             \
    GROUP_VALUES(name##_weighted, ROW_Q8_0, heads, n)                                                                              \
    static void name##_values(float *acc, const float *p, struct butler_rows rows, const struct to_prefetch *to_prefetch)          \
    {                                                                                                                              \
        _Alignas(64) float weights[GROUP_BLOCKS][TILE_ROWS * GROUP_HEADS];                                                         \
        group_weights(weights, p, heads, rows, n);                                                                                 \
        name##_weighted(acc, weights[0], rows, to_prefetch);                                                                       \
    }                                                                                                                              \
    GROUP_ATTEND(name, ROW_Q8_0, heads, n, q16_queries, quantise_queries)
GROUPS_OF(GROUP_Q8_0, group_q8_0)

static void attend_groups(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n)
{
    attend_group_fn *attend = group_q8_0_of(q.n, n);
    if (attend)
        attend(out, q, pairs);
    else
        attend_q8_0(out, q, pairs, n);
}

void butler_kernels_attend_avx2(struct butler_kernels *table)
{
    table->attend[BUTLER_KV_Q8_0] = attend_groups;
    table->attend_q16 = true;
}
BUTLER_TARGET_END
#endif
