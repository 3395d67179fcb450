/* Decode attention over Q8_0 rows with queries in fixed point, what the files of instruction sets have alike: included behind their
 * struct fixed_queries, fix_queries, scores_of_rows, FIXED_VALUES, a values_fn or NULL, and, for groups of four or eight
 * heads a key, group_scores_q8_0. */
#ifndef BUTLER_SIMD_ATTEND_FIXED_H
#define BUTLER_SIMD_ATTEND_FIXED_H

INLINE void fixed_scores(float (*p)[TILE_ROWS], struct tile_scales *scales, const void *queries, int n_q, const void *const *rows,
                         size_t step, struct due due, int n)
{
    if (step)
        scores_of_rows(p, scales, queries, n_q, rows, dense_step(ROW_Q8_0, n), due, n);
    else
        scores_of_rows(p, scales, queries, n_q, rows, 0, due, n);
}

/* At most TILE_QUERIES queries. Each length that is a constant has a function of its own: compilers do badly with all in one. */
typedef void attend_fn(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                       size_t q_stride, int n_q, const struct butler_pairs *pairs, int n);

#define ATTEND(name, queries, length)                                                                                              \
    static __attribute__((noinline)) void name(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride,   \
                                               const float *q, size_t q_stride, int n_q, const struct butler_pairs *pairs, int n)  \
    {                                                                                                                              \
        struct fixed_queries fixed;                                                                                                \
        (void)n_q, (void)n;                                                                                                        \
        fix_queries(&fixed, q, q_stride, queries, length);                                                                         \
        attend_queries(ROW_Q8_0, acc, acc_stride, top, sum, s, s_stride, q, q_stride, fixed_scores, rows_lie_dense, FIXED_VALUES,  \
                       &fixed, queries, pairs, length);                                                                            \
    }
ATTEND(attend_32_one, 1, 32)
ATTEND(attend_64_one, 1, 64)
ATTEND(attend_64, n_q, 64)
ATTEND(attend_128, n_q, 128)
ATTEND(attend_some, n_q, n)
#undef ATTEND

static void attend_long(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                        size_t q_stride, int n_q, const struct butler_pairs *pairs, int n)
{
    attend_queries(ROW_Q8_0, acc, acc_stride, top, sum, s, s_stride, q, q_stride, NULL, NULL, NULL, NULL, n_q, pairs, n);
}

static void attend_q8_0(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                        size_t q_stride, int n_q, const struct butler_pairs *pairs, int n)
{
    for (int i = 0; i < n_q; i += TILE_QUERIES) {
        const int count = BUTLER_MIN(n_q - i, TILE_QUERIES);
        attend_fn *attend = n == 32 && count == 1 ? attend_32_one /* a predictor's own heads */
                            : n == 64             ? (count == 1 ? attend_64_one : attend_64)
                            : n == 128            ? attend_128
                            : n <= PIECE          ? attend_some
                                                  : attend_long;
        attend(acc + i * acc_stride, acc_stride, top + i, sum + i, s ? s + i * s_stride : NULL, s_stride, q + i * q_stride,
               q_stride, count, pairs, n);
    }
}

/* ------------------------------------------------------------------------------------- four or eight heads a key */

/* weights[block][token][head] = p[token][head] times the scale of that token's values. */
INLINE void group_weights(float (*weights)[TILE_ROWS * GROUP_HEADS], const float *p, int heads, const void *const *rows,
                          size_t step, size_t skip, int n)
{
    _Alignas(64) float d[GROUP_BLOCKS][TILE_ROWS];
    if (step)
        load_scales(d, rows, dense_step(ROW_Q8_0, n), skip, n);
    else
        load_scales(d, rows, 0, skip, n);
    for (int b = 0; b < n / BLOCK; b++)
        for (int r = 0; r < TILE_ROWS; r += TOKENS)
            vec_store(weights[b] + r * heads,
                      vec_max(vec_set1(LEAST_NORMAL), vec_mul(vec_load_each(d[b] + r, heads), vec_load(p + r * heads))));
}

#define GROUP_Q8_0(name, heads, n)                                                                                                 \
    GROUP_SCORES(name##_scores, group_scores_q8_0, ROW_Q8_0, heads, n)                                                             \
    GROUP_VALUES(name##_weighted, ROW_Q8_0, heads, n)                                                                              \
    static void name##_values(float *acc, const float *p, const void *const *rows, size_t step, const struct due *due,             \
                              size_t skip, int count)                                                                              \
    {                                                                                                                              \
        _Alignas(64) float weights[GROUP_BLOCKS][TILE_ROWS * GROUP_HEADS];                                                         \
        group_weights(weights, p, heads, rows, step, skip, n);                                                                     \
        name##_weighted(acc, weights[0], rows, step, due, skip, count);                                                            \
    }                                                                                                                              \
    GROUP_ATTEND(name, ROW_Q8_0, heads, n, rows_lie_dense, fixed_queries, fix_queries)
GROUPS_OF(GROUP_Q8_0, group_q8_0)

static void attend_groups(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                          size_t q_stride, int n_q, const struct butler_pairs *pairs, int n)
{
    attend_group_fn *attend = group_q8_0_of(n_q, n);
    if (attend)
        attend(acc, acc_stride, top, sum, s, s_stride, q, q_stride, pairs);
    else
        attend_q8_0(acc, acc_stride, top, sum, s, s_stride, q, q_stride, n_q, pairs, n);
}

#endif
