/* Decode attention over Q8_0 rows with queries in fixed point, what the files of instruction sets have alike: included behind their
 * struct fixed_queries, fix_queries, lie_dense, scores_of_rows and FIXED_VALUES, a values_fn or NULL. */
#ifndef BUTLER_SIMD_ATTEND_FIXED_H
#define BUTLER_SIMD_ATTEND_FIXED_H

INLINE void fixed_scores(float (*p)[TILE_ROWS], struct tile_scales *scales, const void *queries, int n_q, const void *const *rows,
                         size_t step, struct due due, int n)
{
    if (step)
        scores_of_rows(p, scales, queries, n_q, rows, row_offset(ROW_Q8_0, n), due, n);
    else
        scores_of_rows(p, scales, queries, n_q, rows, 0, due, n);
}

/* At most TILE_QUERIES queries. Each length that is a constant has a function of its own: compilers do badly with all in one. */
typedef void attend_fn(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                       size_t q_stride, int n_q, const void *const *keys, size_t apart, int n_rows, int n);

#define ATTEND(name, queries, length)                                                                                              \
    static __attribute__((noinline)) void name(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride,   \
                                               const float *q, size_t q_stride, int n_q, const void *const *keys, size_t apart,    \
                                               int n_rows, int n)                                                                  \
    {                                                                                                                              \
        struct fixed_queries fixed;                                                                                                \
        (void)n_q, (void)n;                                                                                                        \
        fix_queries(&fixed, q, q_stride, queries, length);                                                                         \
        attend_queries(ROW_Q8_0, acc, acc_stride, top, sum, s, s_stride, q, q_stride, fixed_scores, lie_dense, FIXED_VALUES,       \
                       &fixed, queries, keys, apart, n_rows, length);                                                              \
    }
ATTEND(attend_32_one, 1, 32)
ATTEND(attend_64_one, 1, 64)
ATTEND(attend_64, n_q, 64)
ATTEND(attend_128, n_q, 128)
ATTEND(attend_some, n_q, n)
#undef ATTEND

static void attend_long(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                        size_t q_stride, int n_q, const void *const *keys, size_t apart, int n_rows, int n)
{
    attend_queries(ROW_Q8_0, acc, acc_stride, top, sum, s, s_stride, q, q_stride, NULL, NULL, NULL, NULL, n_q, keys, apart, n_rows,
                   n);
}

static void attend_q8_0(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                        size_t q_stride, int n_q, const void *const *keys, size_t apart, int n_rows, int n)
{
    for (int i = 0; i < n_q; i += TILE_QUERIES) {
        const int count = BUTLER_MIN(n_q - i, TILE_QUERIES);
        attend_fn *attend = n == 32 && count == 1 ? attend_32_one /* a predictor's own heads */
                            : n == 64             ? (count == 1 ? attend_64_one : attend_64)
                            : n == 128            ? attend_128
                            : n <= PIECE          ? attend_some
                                                  : attend_long;
        attend(acc + i * acc_stride, acc_stride, top + i, sum + i, s ? s + i * s_stride : NULL, s_stride, q + i * q_stride,
               q_stride, count, keys, apart, n_rows, n);
    }
}

#endif
