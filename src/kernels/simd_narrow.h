/* Attention of a decode step where a vector is eight floats: tiles for sixteen registers, eight of them sums and few of the others
 * kept across a tile. Included after simd_group.h by the files of such ISAs. Functions of their own, for compilers that see
 * all of a tile's work at once keep sums in memory. */
#ifndef BUTLER_SIMD_NARROW_H
#define BUTLER_SIMD_NARROW_H

/* slice_to_prefetch for functions that are called: NULL where there is nothing to prefetch. */
INLINE const struct to_prefetch *part_to_prefetch(struct to_prefetch *part, const struct to_prefetch *to_prefetch, int k, int n_q)
{
    *part = *to_prefetch;
    part->parts = n_q >= 8;
    part->part = k / 4;
    return k % 4 == 0 && k / 4 <= part->parts ? part : NULL;
}

/* prefetch_tile where the number of queries and the step are constants, of which it follows how: fewer than four have all to
 * prefetch. */
INLINE void prefetch_narrow(enum row_type type, const struct to_prefetch *to_prefetch, int n_q, size_t step, int r, int count,
                            int n)
{
    if (to_prefetch) {
        struct to_prefetch known = *to_prefetch;
        known.dense = step != 0;
        if (n_q < 4)
            known.parts = known.part = 0;
        prefetch_tile(type, known, r, count, 0, n);
    }
}

/* -------------------------------------------------------------------------------------------------- scores */

/* Queries as they come, for scores of F16 rows. */
struct plain_queries {
    const float *q;
    size_t stride;
};

/* Scores of VEC / n_q F16 rows from `first` of a tile on for n_q queries, a compile-time constant as `step` is; n is a multiple
 * of VEC. Queries are loaded where they are used. */
INLINE void narrow_scores(float *p, const struct plain_queries *queries, int i, int n_q, const void *const *rows, size_t step,
                          const struct to_prefetch *to_prefetch, int first, int n)
{
    const int n_rows = VEC / n_q;
    const float *q = queries->q + i * queries->stride;
    const uint8_t *row[VEC];
    vec acc[VEC];
    _Alignas(64) float sums[VEC];
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    UNROLL
    for (int r = 0; r < n_rows; r++)
        row[r] = row_at(rows, step, first + r);
    if (n_rows <= 2)
        prefetch_narrow(ROW_F16, to_prefetch, n_q, step, first, n_rows, n);
    else
        for (int r = 0; r < n_rows; r++) /* more at once took a fifth longer where rows come from memory */
            prefetch_narrow(ROW_F16, to_prefetch, n_q, step, first + r, 1, n);
    for (int d = 0; d < n; d += VEC) {
        vec v[VEC];
        UNROLL
        for (int r = 0; r < n_rows; r++)
            v[r] = vec_load_half(row[r] + (size_t)d * 2);
        UNROLL
        for (int a = 0; a < n_q; a++) {
            vec x = vec_load(q + a * queries->stride + d);
            __asm__("" : "+x"(x)); /* loaded once, and not by each product */
            UNROLL
            for (int r = 0; r < n_rows; r++)
                acc[a * n_rows + r] = vec_fma(v[r], x, acc[a * n_rows + r]);
        }
    }
    vec_store(sums, vec_sum_each(acc));
    UNROLL
    for (int a = 0; a < n_q; a++)
        memcpy(p + a * TILE_ROWS + first, sums + a * n_rows, (size_t)n_rows * sizeof *p);
}

INLINE void scores_tile(float *p, const struct plain_queries *queries, int i, int n_q, const void *const *rows, size_t step,
                        const struct to_prefetch *to_prefetch, int n)
{
    for (int r = 0; r < TILE_ROWS; r += VEC / n_q)
        narrow_scores(p, queries, i, n_q, rows, step, to_prefetch, r, n);
}

/* The lengths of most models are constants, and so is the step of their rows. */
#define SCORES_LENGTH(n_q, name, length)                                                                                           \
    static __attribute__((noinline)) void scores_##n_q##_##name(float *p, const struct plain_queries *queries, int i,              \
                                                                const void *const *rows, size_t step,                              \
                                                                const struct to_prefetch *to_prefetch, int n)                      \
    {                                                                                                                              \
        (void)n;                                                                                                                   \
        if (step)                                                                                                                  \
            scores_tile(p, queries, i, n_q, rows, dense_step(ROW_F16, length), to_prefetch, length);                               \
        else                                                                                                                       \
            scores_tile(p, queries, i, n_q, rows, 0, to_prefetch, length);                                                         \
    }
#define SCORES(n_q) SCORES_LENGTH(n_q, 64, 64) SCORES_LENGTH(n_q, 128, 128) SCORES_LENGTH(n_q, other, n)
#define OF_LENGTH(name) (n == 64 ? name##_64 : n == 128 ? name##_128 : name##_other)
SCORES(1)
SCORES(2)
SCORES(4)

INLINE void scores_f16(float (*p)[TILE_ROWS], struct tile_scales *scales, const void *queries, int n_q, const void *const *rows,
                       size_t step, struct to_prefetch to_prefetch, int n)
{
    const struct plain_queries *plain = queries;
    struct to_prefetch part;
    int i = 0;
    if (n % VEC) {
        tile_scores(ROW_F16, p, scales, plain->q, plain->stride, n_q, rows, 0, to_prefetch, n);
        return;
    }
    for (; i + 4 <= n_q; i += 4)
        OF_LENGTH(scores_4)(p[i], plain, i, rows, step, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
    for (; i + 2 <= n_q; i += 2)
        OF_LENGTH(scores_2)(p[i], plain, i, rows, step, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
    if (i < n_q)
        OF_LENGTH(scores_1)(p[i], plain, i, rows, step, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
}

/* -------------------------------------------------------------------------------------------------- values */

/* Adds one row's weighted values: a[query * n_vecs + v]. */
INLINE void narrow_row(enum row_type type, vec a[8], const float *weights, int n_q, int n_vecs, const uint8_t *row)
{
    const size_t p_stride = (size_t)(type == ROW_Q8_0 ? TILE_BLOCKS * TILE_ROWS : TILE_ROWS);
    UNROLL
    for (int v = 0; v < n_vecs; v++) {
        const uint8_t *at = row + row_offset(type, v * VEC) + (type == ROW_Q8_0 ? v * VEC % BLOCK : 0);
        const vec x = type == ROW_Q8_0 ? vec_load_i8(at) : vec_load_half(at);
        const int block = type == ROW_Q8_0 ? v * VEC / BLOCK : 0;
        UNROLL
        for (int k = 0; k < n_q; k++)
            a[k * n_vecs + v] =
                vec_fma(vec_set1(weights[(size_t)k * p_stride + (size_t)(block * TILE_ROWS)]), x, a[k * n_vecs + v]);
    }
}

/* Elements [i, i + n_vecs VEC) of a tile's weighted values for n_q queries, n_q n_vecs = 8; these, the type and `step` are
 * compile-time constants, and i is a multiple of n_vecs VEC. to_prefetch: rows to prefetch whole meanwhile. */
INLINE void narrow_columns(enum row_type type, float *acc, size_t acc_stride, const float *p, int n_q, int n_vecs,
                           const void *const *rows, size_t step, const struct to_prefetch *to_prefetch, size_t skip, int n_rows,
                           int i, int n)
{
    const size_t first = skip + row_offset(type, i) + (type == ROW_Q8_0 ? Q8_0_QUANTS + (size_t)(i % BLOCK) : 0);
    const float *weights = p + (type == ROW_Q8_0 ? i / BLOCK * TILE_ROWS : 0);
    vec a[8];
    UNROLL
    for (int k = 0; k < 8; k++)
        a[k] = vec_load(acc + k / n_vecs * acc_stride + i + k % n_vecs * VEC);
    if (step) {
        const int together = n <= 64 ? 4 : 2; /* rows whose successors are prefetched at once */
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            if (r % together == 0)
                prefetch_narrow(type, to_prefetch, n_q, step, r, together, n);
            narrow_row(type, a, weights + r, n_q, n_vecs, row_at(rows, step, r) + first);
        }
    } else
        for (int r = 0; r < n_rows; r++) {
            prefetch_narrow(type, to_prefetch, n_q, step, r, 1, n);
            narrow_row(type, a, weights + r, n_q, n_vecs, row_at(rows, step, r) + first);
        }
    UNROLL
    for (int k = 0; k < 8; k++)
        vec_store(acc + k / n_vecs * acc_stride + i + k % n_vecs * VEC, a[k]);
}

INLINE void values_tile(enum row_type type, float *acc, size_t acc_stride, const float *p, int n_q, const void *const *rows,
                        size_t step, const struct to_prefetch *to_prefetch, size_t skip, int n_rows, int n)
{
    const int n_vecs = 8 / n_q;
    for (int i = 0; i < n; i += n_vecs * VEC, to_prefetch = NULL)
        narrow_columns(type, acc, acc_stride, p, n_q, n_vecs, rows, step, to_prefetch, skip, n_rows, i, n);
}

#define VALUES_LENGTH(function, type, n_q, length)                                                                                 \
    static __attribute__((noinline)) void function(float *acc, size_t acc_stride, const float *p, const void *const *rows,         \
                                                   size_t step, const struct to_prefetch *to_prefetch, size_t skip, int n_rows,    \
                                                   int n)                                                                          \
    {                                                                                                                              \
        (void)n;                                                                                                                   \
        if (step)                                                                                                                  \
            values_tile(type, acc, acc_stride, p, n_q, rows, dense_step(type, length), to_prefetch, skip, TILE_ROWS, length);      \
        else                                                                                                                       \
            values_tile(type, acc, acc_stride, p, n_q, rows, 0, to_prefetch, skip, n_rows, length);                                \
    }

/* n that is not a multiple of what eight sums of one query cover goes as ever. */
#define VALUES(name, type)                                                                                                         \
    INLINE void name(float *acc, size_t acc_stride, const float *p, int n_q, const void *const *rows, size_t step,                 \
                     struct to_prefetch to_prefetch, size_t skip, int n_rows, int n)                                               \
    {                                                                                                                              \
        const size_t p_stride = (size_t)((type) == ROW_Q8_0 ? TILE_BLOCKS * TILE_ROWS : TILE_ROWS);                                \
        struct to_prefetch part;                                                                                                   \
        int k = 0;                                                                                                                 \
        if (n % (8 * VEC)) {                                                                                                       \
            av_queries(type, acc, acc_stride, p, p_stride, (type) == ROW_Q8_0 ? TILE_ROWS : 0, n_q, rows, step, to_prefetch, skip, \
                       n_rows, n);                                                                                                 \
            return;                                                                                                                \
        }                                                                                                                          \
        for (; k + 4 <= n_q; k += 4)                                                                                               \
            OF_LENGTH(name##_4)                                                                                                    \
        (acc + k * acc_stride, acc_stride, p + k * p_stride, rows, step, part_to_prefetch(&part, &to_prefetch, k, n_q), skip,      \
         n_rows, n);                                                                                                               \
        for (; k + 2 <= n_q; k += 2)                                                                                               \
            OF_LENGTH(name##_2)                                                                                                    \
        (acc + k * acc_stride, acc_stride, p + k * p_stride, rows, step, part_to_prefetch(&part, &to_prefetch, k, n_q), skip,      \
         n_rows, n);                                                                                                               \
        if (k < n_q)                                                                                                               \
            OF_LENGTH(name##_1)                                                                                                    \
        (acc + k * acc_stride, acc_stride, p + k * p_stride, rows, step, part_to_prefetch(&part, &to_prefetch, k, n_q), skip,      \
         n_rows, n);                                                                                                               \
    }
#define VALUES_QUERIES(name, type, n_q)                                                                                            \
    VALUES_LENGTH(name##_##n_q##_64, type, n_q, 64)                                                                                \
    VALUES_LENGTH(name##_##n_q##_128, type, n_q, 128) VALUES_LENGTH(name##_##n_q##_other, type, n_q, n)
VALUES_QUERIES(values_q8_0, ROW_Q8_0, 1)
VALUES_QUERIES(values_q8_0, ROW_Q8_0, 2)
VALUES_QUERIES(values_q8_0, ROW_Q8_0, 4)
VALUES(values_q8_0, ROW_Q8_0)

/* --------------------------------------------------------------------------------------------------- all */

VALUES_QUERIES(values_f16, ROW_F16, 1)
VALUES_QUERIES(values_f16, ROW_F16, 2)
VALUES_QUERIES(values_f16, ROW_F16, 4)
VALUES(values_f16, ROW_F16)

#define GROUP_F16(name, heads, n)                                                                                                  \
    GROUP_SCORES(name##_scores, group_scores_f16, ROW_F16, heads, n)                                                               \
    GROUP_VALUES(name##_values, ROW_F16, heads, n)                                                                                 \
    GROUP_ATTEND(name, ROW_F16, heads, n, rows_lie_dense, group_queries, lay_queries)
GROUPS_OF(GROUP_F16, group_f16)

/* attend_any, F16 rows by the tiles of this file. */
INLINE void attend_narrow(enum row_type type, float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride,
                          const float *q, size_t q_stride, int n_q, const struct butler_pairs *pairs, int n)
{
    attend_group_fn *attend = type == ROW_F16 ? group_f16_of(n_q, n) : NULL;
    if (attend) {
        attend(acc, acc_stride, top, sum, s, s_stride, q, q_stride, pairs);
        return;
    }
    if (type != ROW_F16) {
        attend_any(type, acc, acc_stride, top, sum, s, s_stride, q, q_stride, n_q, pairs, n);
        return;
    }
    for (int i = 0; i < n_q; i += TILE_QUERIES) {
        const int count = BUTLER_MIN(n_q - i, TILE_QUERIES);
        const struct plain_queries plain = {q + i * q_stride, q_stride};
        attend_queries(type, acc + i * acc_stride, acc_stride, top + i, sum + i, s ? s + i * s_stride : NULL, s_stride, plain.q,
                       q_stride, scores_f16, rows_lie_dense, values_f16, &plain, count, pairs, n);
    }
}
#define ATTEND_ANY attend_narrow

#endif
