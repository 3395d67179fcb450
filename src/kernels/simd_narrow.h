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

/* Scores of VEC / n_q F16 rows from `first` of a tile on for n_q queries from i on, a compile-time constant as rows.step is; n is a
 * multiple of VEC. Queries are loaded where they are used. */
INLINE void narrow_scores(float *p, const struct butler_vectors *queries, int i, int n_q, struct butler_rows rows,
                          const struct to_prefetch *to_prefetch, int first, int n)
{
    const int n_rows = VEC / n_q;
    const float *q = queries->at + i * queries->stride;
    const uint8_t *row[VEC];
    vec acc[VEC];
    _Alignas(64) float sums[VEC];
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    UNROLL
    for (int r = 0; r < n_rows; r++)
        row[r] = row_at(rows, first + r);
    if (n_rows <= 2)
        prefetch_narrow(ROW_F16, to_prefetch, n_q, rows.step, first, n_rows, n);
    else
        for (int r = 0; r < n_rows; r++) /* more at once took a fifth longer where rows come from memory */
            prefetch_narrow(ROW_F16, to_prefetch, n_q, rows.step, first + r, 1, n);
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

INLINE void scores_tile(float *p, const struct butler_vectors *queries, int i, int n_q, struct butler_rows rows,
                        const struct to_prefetch *to_prefetch, int n)
{
    for (int r = 0; r < TILE_ROWS; r += VEC / n_q)
        narrow_scores(p, queries, i, n_q, rows, to_prefetch, r, n);
}

/* The lengths of most models are constants, and so is the step of their rows. */
#define SCORES_LENGTH(n_q, name, length)                                                                                           \
    static __attribute__((noinline)) void scores_##n_q##_##name(float *p, const struct butler_vectors *queries, int i,             \
                                                                const struct butler_rows *rows,                                    \
                                                                const struct to_prefetch *to_prefetch, int n)                      \
    {                                                                                                                              \
        (void)n;                                                                                                                   \
        if (rows->step)                                                                                                            \
            scores_tile(p, queries, i, n_q, tile_rows(rows->list, TILE_ROWS, dense_step(ROW_F16, length), 0), to_prefetch,         \
                        length);                                                                                                   \
        else                                                                                                                       \
            scores_tile(p, queries, i, n_q, tile_rows(rows->list, TILE_ROWS, 0, 0), to_prefetch, length);                          \
    }
#define SCORES(n_q) SCORES_LENGTH(n_q, 64, 64) SCORES_LENGTH(n_q, 128, 128) SCORES_LENGTH(n_q, other, n)
#define OF_LENGTH(name) (n == 64 ? name##_64 : n == 128 ? name##_128 : name##_other)
SCORES(1)
SCORES(2)
SCORES(4)

/* queries: a struct butler_vectors. */
INLINE void scores_f16(float (*p)[TILE_ROWS], struct tile_scales *scales, const void *queries, int n_q, struct butler_rows rows,
                       struct to_prefetch to_prefetch, int n)
{
    const struct butler_vectors *plain = queries;
    struct to_prefetch part;
    int i = 0;
    if (n % VEC) {
        tile_scores(ROW_F16, p, scales, butler_vectors_from(*plain, 0, n_q), tile_rows(rows.list, TILE_ROWS, 0, 0), to_prefetch, n);
        return;
    }
    for (; i + 4 <= n_q; i += 4)
        OF_LENGTH(scores_4)(p[i], plain, i, &rows, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
    for (; i + 2 <= n_q; i += 2)
        OF_LENGTH(scores_2)(p[i], plain, i, &rows, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
    if (i < n_q)
        OF_LENGTH(scores_1)(p[i], plain, i, &rows, part_to_prefetch(&part, &to_prefetch, i, n_q), n);
}

/* -------------------------------------------------------------------------------------------------- values */

/* Adds one row's weighted values: a[query * n_vecs + v]. weights: from those for this row on. */
INLINE void narrow_row(enum row_type type, vec a[8], const float *weights, size_t p_stride, int n_q, const uint8_t *row)
{
    const int n_vecs = 8 / n_q;
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

/* Elements [i, i + VEC 8 / p.n) of a tile's weighted values for p.n queries; p.n, the type and rows.step are compile-time
 * constants, and i is a multiple of their number. to_prefetch: rows to prefetch whole meanwhile. */
INLINE void narrow_columns(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,
                           const struct to_prefetch *to_prefetch, int i, int n)
{
    const int n_q = p.n, n_vecs = 8 / n_q;
    const float *weights = p.at + (type == ROW_Q8_0 ? i / BLOCK * TILE_ROWS : 0);
    vec a[8];
    rows.skip += row_offset(type, i) + (type == ROW_Q8_0 ? Q8_0_QUANTS + (size_t)(i % BLOCK) : 0);
    UNROLL
    for (int k = 0; k < 8; k++)
        a[k] = vec_load(acc.at + k / n_vecs * acc.stride + i + k % n_vecs * VEC);
    if (rows.step) {
        const int together = n <= 64 ? 4 : 2; /* rows whose successors are prefetched at once */
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            if (r % together == 0)
                prefetch_narrow(type, to_prefetch, n_q, rows.step, r, together, n);
            narrow_row(type, a, weights + r, p.stride, n_q, row_at(rows, r));
        }
    } else
        for (int r = 0; r < rows.n; r++) {
            prefetch_narrow(type, to_prefetch, n_q, rows.step, r, 1, n);
            narrow_row(type, a, weights + r, p.stride, n_q, row_at(rows, r));
        }
    UNROLL
    for (int k = 0; k < 8; k++)
        vec_store(acc.at + k / n_vecs * acc.stride + i + k % n_vecs * VEC, a[k]);
}

INLINE void values_tile(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,
                        const struct to_prefetch *to_prefetch, int n)
{
    for (int i = 0; i < n; i += 8 / p.n * VEC, to_prefetch = NULL)
        narrow_columns(type, acc, p, rows, to_prefetch, i, n);
}

#define VALUES_LENGTH(function, type, n_q, length)                                                                                 \
    static __attribute__((noinline)) void function(struct butler_results acc, const float *p, const struct butler_rows *rows,      \
                                                   const struct to_prefetch *to_prefetch, int n)                                   \
    {                                                                                                                              \
        const struct butler_row_weights weights = {p, (type) == ROW_Q8_0 ? TILE_BLOCKS * TILE_ROWS : TILE_ROWS,                    \
                                                   (type) == ROW_Q8_0 ? TILE_ROWS : 0, n_q};                                       \
        (void)n;                                                                                                                   \
        if (rows->step)                                                                                                            \
            values_tile(type, acc, weights, tile_rows(rows->list, TILE_ROWS, dense_step(type, length), rows->skip), to_prefetch,   \
                        length);                                                                                                   \
        else                                                                                                                       \
            values_tile(type, acc, weights, tile_rows(rows->list, rows->n, 0, rows->skip), to_prefetch, length);                   \
    }

#define VALUES_PART(name)                                                                                                          \
    OF_LENGTH(name)                                                                                                                \
    (butler_results_from(acc, k), p.at + k * p.stride, &rows, part_to_prefetch(&part, &to_prefetch, k, p.n), n)

/* n that is not a multiple of what eight sums of one query cover goes as ever. */
#define VALUES(name, type)                                                                                                         \
    INLINE void name(struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,                              \
                     struct to_prefetch to_prefetch, int n)                                                                        \
    {                                                                                                                              \
        struct to_prefetch part;                                                                                                   \
        int k = 0;                                                                                                                 \
        if (n % (8 * VEC)) {                                                                                                       \
            av_queries(type, acc, p, rows, to_prefetch, n);                                                                        \
            return;                                                                                                                \
        }                                                                                                                          \
        for (; k + 4 <= p.n; k += 4)                                                                                               \
            VALUES_PART(name##_4);                                                                                                 \
        for (; k + 2 <= p.n; k += 2)                                                                                               \
            VALUES_PART(name##_2);                                                                                                 \
        if (k < p.n)                                                                                                               \
            VALUES_PART(name##_1);                                                                                                 \
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
    GROUP_ATTEND(name, ROW_F16, heads, n, group_queries, lay_queries)
GROUPS_OF(GROUP_F16, group_f16)

/* attend_any, F16 rows by the tiles of this file. */
INLINE void attend_narrow(enum row_type type, struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs,
                          int n)
{
    attend_group_fn *attend = type == ROW_F16 ? group_f16_of(q.n, n) : NULL;
    if (attend) {
        attend(out, q, pairs);
        return;
    }
    if (type != ROW_F16) {
        attend_any(type, out, q, pairs, n);
        return;
    }
    for (int i = 0; i < q.n; i += TILE_QUERIES) {
        const struct butler_vectors plain = butler_vectors_from(q, i, BUTLER_MIN(q.n - i, TILE_QUERIES));
        attend_queries(type, butler_attended_from(out, i), (struct tile_queries){plain, &plain}, scores_f16, values_f16,
                       rows_lie_dense, pairs, n);
    }
}
#define ATTEND_ANY attend_narrow

#endif
