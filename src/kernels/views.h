/* Views: what the kernels take as one parameter, by value. A view has a pointer, the distance between its items and their number;
 * it owns nothing. Elements are floats and a `stride` counts them; `step` and `skip` count bytes. The loops of simd_*.h are inlined
 * where their views are made, so that a member that is a constant there is one to the compiler. */
#ifndef BUTLER_KERNELS_VIEWS_H
#define BUTLER_KERNELS_VIEWS_H

#include <stddef.h>
#include <stdint.h>

/* n vectors: queries, the activations of tokens, rows of widened weights. The elements of vector i begin at at + i * stride. */
struct butler_vectors {
    const float *at;
    size_t stride;
    int n;
};

/* n queries in 8-bit integers, one after the other: what query i is, is its integers times factor[i]. */
struct butler_byte_queries {
    const int8_t *at;
    const float *factor; /* [n] */
    int n;
};

/* A row of floats for each query, at + i * stride: its scores, one for each key, or its sum of values. */
struct butler_results {
    float *at;
    size_t stride;
};

/* A row of weights for each of n queries: that of query i for row j is at[i * stride + j]. block: 0, or the scales of Q8_0 rows are
 * multiplied into them, and the weights for block b of the rows lie `block` * b further on. */
struct butler_row_weights {
    const float *at;
    size_t stride, block;
    int n;
};

/* n rows of the cache: row j begins `skip` bytes after list[j] or, where step is not 0, after list[0] + j * step. */
struct butler_rows {
    const void *const *list;
    size_t step, skip;
    int n;
};

/* n records of a metric, `bytes` apart. */
struct butler_records {
    const void *at;
    size_t bytes;
    int n;
};

/* What one pass of decode attention makes of a list of keys, for each query i. */
struct butler_attended {
    struct butler_results acc; /* sum of exp(score - top) times the value */
    float *top, *sum;          /* the largest score, and the sum of exp(score - top) */
    struct butler_results s;   /* the scores; s.at NULL: not wanted */
};

/* Vectors [i, i + n). */
static inline struct butler_vectors butler_vectors_from(struct butler_vectors q, int i, int n)
{
    return (struct butler_vectors){q.at + (size_t)i * q.stride, q.stride, n};
}

/* The rows of queries from i on. */
static inline struct butler_results butler_results_from(struct butler_results r, int i)
{
    return (struct butler_results){r.at + (size_t)i * r.stride, r.stride};
}

static inline struct butler_row_weights butler_row_weights_from(struct butler_row_weights p, int i, int n)
{
    return (struct butler_row_weights){p.at + (size_t)i * p.stride, p.stride, p.block, n};
}

static inline struct butler_attended butler_attended_from(struct butler_attended a, int i)
{
    return (struct butler_attended){butler_results_from(a.acc, i), a.top + i, a.sum + i,
                                    a.s.at ? butler_results_from(a.s, i) : a.s};
}

#endif
