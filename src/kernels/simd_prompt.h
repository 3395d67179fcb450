/* Attention of a prompt, written once for every vector width: included by each ISA file after simd_vectors.h. Keys lie transposed
 * in panels, so that a vector has one element of as many keys: a tile of queries x keys needs no sums across lanes, and its sums
 * stay in registers. A panel passes all queries while it is in the first-level cache. Each score, and each sum of values, is added
 * up in one order, whatever tile it falls into. */
#ifndef BUTLER_SIMD_PROMPT_H
#define BUTLER_SIMD_PROMPT_H

/* Queries of a tile two vectors wide: their sums fill the registers but for what they are computed from. */
#define PROMPT_QUERIES (VEC == 16 ? 12 : 6)

static void pack_keys(float *packed, const float *keys, int n_keys, int dim)
{
    for (int first = 0; first < n_keys;
         first += BUTLER_KEY_PANEL, packed += BUTLER_KEY_PANEL * dim, keys += BUTLER_KEY_PANEL * dim) {
        const int count = BUTLER_MIN(n_keys - first, BUTLER_KEY_PANEL);
        if (count < BUTLER_KEY_PANEL)
            memset(packed, 0, (size_t)(BUTLER_KEY_PANEL * dim) * sizeof *packed);
        for (int j = 0; j < count; j++)
            for (int d = 0; d < dim; d++)
                packed[d * BUTLER_KEY_PANEL + j] = keys[j * dim + d];
    }
}

/* Scores of n_q queries, a compile-time constant, with 2 VEC keys of a panel; the first count of them are stored, all if whole, a
 * constant too. */
INLINE void score_tile(float *s, size_t s_stride, const float *q, int n_q, const float *keys, bool whole, int count, int dim)
{
    vec a[2 * PROMPT_QUERIES];
    UNROLL
    for (int i = 0; i < 2 * n_q; i++)
        a[i] = vec_zero();
    for (int d = 0; d < dim; d++) {
        const vec k[2] = {vec_load(keys + d * BUTLER_KEY_PANEL), vec_load(keys + d * BUTLER_KEY_PANEL + VEC)};
        UNROLL
        for (int i = 0; i < n_q; i++) {
            const vec x = vec_set1(q[(size_t)i * (size_t)dim + (size_t)d]);
            a[2 * i] = vec_fma(x, k[0], a[2 * i]);
            a[2 * i + 1] = vec_fma(x, k[1], a[2 * i + 1]);
        }
    }
    UNROLL
    for (int i = 0; i < n_q; i++) {
        float *to = s + (size_t)i * s_stride;
        if (whole) {
            vec_store(to, a[2 * i]);
            vec_store(to + VEC, a[2 * i + 1]);
        } else {
            vec_store_some(to, a[2 * i], BUTLER_MIN(count, VEC));
            if (count > VEC)
                vec_store_some(to + VEC, a[2 * i + 1], count - VEC);
        }
    }
}

/* All queries with 2 VEC keys. */
INLINE void score_all(float *s, size_t s_stride, const float *q, int n_q, const float *keys, bool whole, int count, int dim)
{
    int i = 0;
#define SCORE_TILE(queries)                                                                                                        \
    for (; i + (queries) <= n_q; i += (queries))                                                                                   \
    score_tile(s + (size_t)i * s_stride, s_stride, q + (size_t)i * (size_t)dim, queries, keys, whole, count, dim)
    SCORE_TILE(PROMPT_QUERIES);
    SCORE_TILE(3);
    SCORE_TILE(1);
#undef SCORE_TILE
}

static void score_keys(float *s, size_t s_stride, const float *q, int n_q, const float *keys, int n_keys, int dim)
{
    for (int j = 0; j < n_keys; j += 2 * VEC) {
        const float *panel = keys + (size_t)(j / BUTLER_KEY_PANEL * BUTLER_KEY_PANEL) * (size_t)dim + j % BUTLER_KEY_PANEL;
        if (n_keys - j >= 2 * VEC)
            score_all(s + j, s_stride, q, n_q, panel, true, 2 * VEC, dim);
        else
            score_all(s + j, s_stride, q, n_q, panel, false, n_keys - j, dim);
    }
}

static float weigh(float *s, float most, int n)
{
    const vec log2_e = vec_set1(1.44269504f), minus = vec_set1(-most);
    vec a = vec_zero(), b = a;
    int i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        const vec e = exp2_normal(vec_fma(vec_load(s + i), log2_e, minus)),
                  f = exp2_normal(vec_fma(vec_load(s + i + VEC), log2_e, minus));
        vec_store(s + i, e);
        vec_store(s + i + VEC, f);
        a = vec_add(a, e);
        b = vec_add(b, f);
    }
    for (; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        const vec e = vec_keep(exp2_normal(vec_fma(vec_load_some(s + i, count), log2_e, minus)), vec_zero(), count);
        vec_store_some(s + i, e, count);
        a = vec_add(a, e);
    }
    return vec_sum(vec_add(a, b));
}

/* Columns of p.n queries' sums: n_vecs vectors of them, or the first count of one. p.n and n_vecs are compile-time constants. */
INLINE void add_tile(float *acc, struct butler_row_weights p, const float *values, int n_keys, int n_vecs, int count, int dim)
{
    const int n_q = p.n;
    vec a[2 * PROMPT_QUERIES];
    UNROLL
    for (int i = 0; i < n_q * n_vecs; i++) {
        const float *from = acc + (size_t)(i / n_vecs) * (size_t)dim + i % n_vecs * VEC;
        a[i] = count < VEC ? vec_load_some(from, count) : vec_load(from);
    }
    for (int j = 0; j < n_keys; j++) {
        const float *from = values + (size_t)j * (size_t)dim;
        vec v[2];
        UNROLL
        for (int k = 0; k < n_vecs; k++)
            v[k] = count < VEC ? vec_load_some(from, count) : vec_load(from + k * VEC);
        UNROLL
        for (int i = 0; i < n_q; i++) {
            const vec x = vec_set1(p.at[(size_t)i * p.stride + (size_t)j]);
            UNROLL
            for (int k = 0; k < n_vecs; k++)
                a[i * n_vecs + k] = vec_fma(x, v[k], a[i * n_vecs + k]);
        }
    }
    UNROLL
    for (int i = 0; i < n_q * n_vecs; i++) {
        float *to = acc + (size_t)(i / n_vecs) * (size_t)dim + i % n_vecs * VEC;
        if (count < VEC)
            vec_store_some(to, a[i], count);
        else
            vec_store(to, a[i]);
    }
}

/* All columns for a constant number of queries. */
INLINE void add_columns(float *acc, struct butler_row_weights p, const float *values, int n_keys, int dim)
{
    int c = 0;
    for (; c + 2 * VEC <= dim; c += 2 * VEC)
        add_tile(acc + c, p, values + c, n_keys, 2, VEC, dim);
    if (c + VEC <= dim) {
        add_tile(acc + c, p, values + c, n_keys, 1, VEC, dim);
        c += VEC;
    }
    if (c < dim)
        add_tile(acc + c, p, values + c, n_keys, 1, dim - c, dim);
}

static void add_values(float *acc, const float *p, size_t p_stride, int n_q, const float *values, int n_keys, int dim)
{
    const struct butler_row_weights weights = {p, p_stride, 0, n_q};
    int i = 0;
#define ADD_COLUMNS(queries)                                                                                                       \
    for (; i + (queries) <= n_q; i += (queries))                                                                                   \
    add_columns(acc + (size_t)i * (size_t)dim, butler_row_weights_from(weights, i, queries), values, n_keys, dim)
    ADD_COLUMNS(PROMPT_QUERIES);
    ADD_COLUMNS(3);
    ADD_COLUMNS(1);
#undef ADD_COLUMNS
}

INLINE void fill_prompt(struct butler_kernels *table)
{
    table->pack_keys = pack_keys;
    table->score_keys = score_keys;
    table->weigh = weigh;
    table->add_values = add_values;
}

#endif
