/* Decode attention for groups of four or eight query heads a key, whose arithmetic takes longer than memory: simd_attend.h's tiles
 * and, bit for bit, its results, written once for every vector width. Scores and weights lie token by token, the heads of a
 * token side by side: so sums over lanes come, one exponential serves all heads, and values ask for them one after the other. */
#ifndef BUTLER_SIMD_GROUP_H
#define BUTLER_SIMD_GROUP_H

enum { GROUP_HEADS = 8, GROUP_LENGTH = 128, GROUP_BLOCKS = GROUP_LENGTH / BLOCK };

/* Everything of the heads in one place, heads or tokens one after the other. */
struct group {
    _Alignas(64) float acc[GROUP_HEADS * GROUP_LENGTH], sums[TILE_ROWS * GROUP_HEADS], p[2][TILE_ROWS * GROUP_HEADS], top[VEC];
};

/* Queries as they come, [heads][n], for scores of F16 rows. */
struct group_queries {
    _Alignas(64) float q[GROUP_HEADS * GROUP_LENGTH];
};

INLINE void lay_queries(struct group_queries *queries, struct butler_vectors q, int n)
{
    for (int i = 0; i < q.n; i++)
        memcpy(queries->q + i * n, q.at + (size_t)i * q.stride, (size_t)n * sizeof *q.at);
}

/* The tokens that fill a vector with a number for each head. */
#define TOKENS (VEC / heads)

/* Prefetches part `part` of `parts` of what to_prefetch names, both tiles lying as the one in use does. */
INLINE void prefetch_part(enum row_type type, const struct to_prefetch *to_prefetch, size_t step, int part, int parts, int n)
{
    const int lines = (int)(row_offset(type, n) * TILE_ROWS / 64), each = lines / parts, rest = lines % parts;
    if (step) {
        const uint8_t *a = (const uint8_t *)to_prefetch->near[0] + to_prefetch->skip,
                      *b = (const uint8_t *)to_prefetch->far[0] + to_prefetch->skip;
        UNROLL
        for (int k = 0; k < each; k++) {
            prefetch(a, (size_t)(part * each + k) * 64);
            prefetch_second(b + (size_t)(part * each + k) * 64);
        }
        if (part < rest) {
            prefetch(a, (size_t)(parts * each + part) * 64);
            prefetch_second(b + (size_t)(parts * each + part) * 64);
        }
        return;
    }
    prefetch_tile(type, *to_prefetch, part * TILE_ROWS / parts, TILE_ROWS / parts, 0, n);
}

/* p[TILE_ROWS][heads] of F16 rows from q[heads][n]; prefetches all of to_prefetch. */
INLINE void group_scores_f16(float *p, const float *q, int heads, struct butler_rows rows, const struct to_prefetch *to_prefetch,
                             int n)
{
    const struct to_prefetch all = *to_prefetch;
    const uint8_t *first = row_at(rows, 0);
    for (int r = 0; r < TILE_ROWS; r += TOKENS) {
        const uint8_t *row[VEC];
        vec acc[VEC];
        prefetch_part(ROW_F16, &all, rows.step, r / TOKENS, TILE_ROWS / TOKENS, n);
        UNROLL
        for (int t = 0; t < TOKENS; t++)
            row[t] = rows.step ? first + (size_t)(r + t) * rows.step : row_at(rows, r + t);
        UNROLL
        for (int k = 0; k < VEC; k++)
            acc[k] = vec_zero();
        UNROLL
        for (int i = 0; i < n; i += VEC) {
            vec x[VEC];
            UNROLL
            for (int t = 0; t < TOKENS; t++)
                x[t] = vec_load_half(row[t] + (size_t)i * 2);
            UNROLL
            for (int k = 0; k < heads; k++) {
                const vec w = vec_load(q + k * n + i);
                UNROLL
                for (int t = 0; t < TOKENS; t++)
                    acc[t * heads + k] = vec_fma(x[t], w, acc[t * heads + k]);
            }
        }
        vec_store(p + r * heads, vec_sum_each(acc));
    }
}

/* Adds a row's two vectors of columns. wide: where they lie as floats, or NULL; `first` to pass writes them there. */
INLINE void add_row(enum row_type type, vec a[VEC], const float *w, int heads, const uint8_t *row, float *wide, bool first)
{
    UNROLL
    for (int v = 0; v < 2; v++) {
        const vec x = wide && !first     ? vec_load(wide + v * VEC)
                      : type == ROW_Q8_0 ? vec_load_i8(row + v * VEC)
                                         : vec_load_half(row + (size_t)(v * VEC) * 2);
        if (wide && first)
            vec_store(wide + v * VEC, x);
        UNROLL
        for (int k = 0; k < heads; k++)
            a[2 * k + v] = vec_fma(vec_set1(w[k]), x, a[2 * k + v]);
    }
}

/* Adds the tokens' values, which rows are, to acc[heads][n]: two vectors of columns for as many heads as there are sums in
 * registers. weights[token][heads]: for block b of Q8_0 rows TILE_ROWS GROUP_HEADS b further on. Of whole tiles prefetches all that
 * is to_prefetch. */
INLINE void group_values(enum row_type type, float *acc, const float *weights, int heads, struct butler_rows rows,
                         const struct to_prefetch *to_prefetch, int n)
{
    const size_t skip = rows.skip;
    const int together = BUTLER_MIN(heads, VEC / 2), parts = n / (2 * VEC) * (heads / together);
    const bool twice = type == ROW_Q8_0 && together < heads; /* a byte takes two instructions to widen, a half one */
    const struct to_prefetch all = *to_prefetch;
    _Alignas(64) float wide[TILE_ROWS][2 * VEC];
    for (int i = 0; i < n; i += 2 * VEC) {
        rows.skip = skip + row_offset(type, i) + (type == ROW_Q8_0 ? Q8_0_QUANTS + (size_t)(i % BLOCK) : 0);
        UNROLL
        for (int h = 0; h < heads; h += together) {
            const float *w = weights + h + (type == ROW_Q8_0 ? i / BLOCK * TILE_ROWS * GROUP_HEADS : 0);
            float *sums = acc + h * n + i;
            vec a[VEC];
            if (twice)
                __asm__ volatile("" : : "r"(wide) : "memory"); /* or compilers keep in registers what was to lie in memory */
            prefetch_part(type, &all, rows.step, (i / (2 * VEC) * heads + h) / together, parts, n);
            UNROLL
            for (int k = 0; k < 2 * together; k++)
                a[k] = vec_load(sums + k / 2 * n + k % 2 * VEC);
            if (rows.step) {
                UNROLL
                for (int j = 0; j < TILE_ROWS; j++)
                    add_row(type, a, w + j * heads, together, row_at(rows, j), twice ? wide[j] : NULL, h == 0);
            } else
                for (int j = 0; j < rows.n; j++)
                    add_row(type, a, w + j * heads, together, row_at(rows, j), twice ? wide[j] : NULL, h == 0);
            UNROLL
            for (int k = 0; k < 2 * together; k++)
                vec_store(sums + k / 2 * n + k % 2 * VEC, a[k]);
        }
    }
}

/* Lanes of vector k that belong to the first count tokens of a tile. */
INLINE int lanes_within(int k, int heads, int count)
{
    return BUTLER_MIN(BUTLER_MAX((count - k * TOKENS) * heads, 0), VEC);
}

/* What tile_exp does, for all heads: top[TOKENS][heads] has each maximum TOKENS times, sums[TILE_ROWS][heads] lie as p does. */
INLINE void group_exp(float *p, int heads, int count, float *acc, float *top, float *sums, int n)
{
    const int n_vecs = TILE_ROWS / TOKENS;
    vec most = vec_set1(-INFINITY), highest = vec_load(top);
    if (count < TILE_ROWS)
        for (int k = 0; k < n_vecs; k++)
            vec_store(p + k * VEC, vec_keep(vec_load(p + k * VEC), vec_set1(-INFINITY), lanes_within(k, heads, count)));
    UNROLL
    for (int k = 0; k < n_vecs; k++)
        most = vec_max(vec_load(p + k * VEC), most);
    if (vec_reaches(most, highest)) {
        if (TOKENS >= 2)
            most = vec_max(most, vec_swap_halves(most));
        if (TOKENS == 4)
            most = vec_max(most, vec_swap_fours(most));
        const vec now = vec_max(highest, most), factor = exp_normal(vec_sub(highest, now));
        const uint32_t reached = vec_reaches(most, highest);
        float factors[VEC];
        vec_store(factors, factor);
        for (int i = 0; i < heads; i++)
            if (reached >> i & 1)
                scale(acc + i * n, factors[i], n);
        for (int k = 0; k < n_vecs; k++)
            vec_store(sums + k * VEC, vec_mul(vec_load(sums + k * VEC), factor));
        vec_store(top, highest = now);
    }
    if (count == TILE_ROWS) {
        UNROLL
        for (int k = 0; k < n_vecs; k++)
            vec_store(p + k * VEC, exp_normal(vec_sub(vec_load(p + k * VEC), highest)));
    } else
        for (int k = 0; k < n_vecs; k++)
            vec_store(p + k * VEC,
                      vec_keep(exp_normal(vec_sub(vec_load(p + k * VEC), highest)), vec_zero(), lanes_within(k, heads, count)));
    UNROLL
    for (int k = 0; k < n_vecs; k++)
        vec_store(sums + k * VEC, vec_add(vec_load(sums + k * VEC), vec_load(p + k * VEC)));
}

typedef void group_scores_fn(float *p, const void *queries, struct butler_rows rows, const struct to_prefetch *to_prefetch);
typedef void group_values_fn(float *acc, const float *p, struct butler_rows rows, const struct to_prefetch *to_prefetch);

/* attend of kernels.h; the number of heads and of channels is fixed in scores_of and values_of. queries: laid out for scores_of. */
INLINE void attend_group(enum row_type type, struct butler_attended out, const void *queries, int heads, group_scores_fn *scores_of,
                         group_values_fn *values_of, const struct butler_pairs *pairs, int n)
{
    struct group g;
    const size_t row_bytes = row_offset(type, n);
    struct tiles tiles;
    begin_tiles(&tiles, type, rows_lie_dense, pairs, n);
    memset(g.acc, 0, (size_t)(heads * n) * sizeof *g.acc);
    memset(g.sums, 0, sizeof g.sums);
    vec_store(g.top, vec_set1(-INFINITY));
    for (int j = -TILE_ROWS, buffer = 0; j < pairs->n; j += TILE_ROWS, buffer ^= 1) {
        const int next = j + TILE_ROWS, n_next = BUTLER_MIN(pairs->n - next, TILE_ROWS);
        struct to_prefetch to_prefetch = tiles_to_prefetch(&tiles, type, rows_lie_dense, next, n);
        const size_t step = to_prefetch.dense ? dense_step(type, n) : 0;
        if (n_next > 0) {
            scores_of(g.p[buffer], queries, tile_rows(tile_at(&tiles, next), TILE_ROWS, step, 0), &to_prefetch);
            for (int i = 0; out.s.at && i < heads * n_next; i++)
                out.s.at[(size_t)(i % heads) * out.s.stride + (size_t)(next + i / heads)] = g.p[buffer][i];
        }
        to_prefetch.skip = to_prefetch.dense ? TILE_ROWS * row_bytes : pairs->value_offset;
        if (j >= 0)
            values_of(g.acc, g.p[buffer ^ 1],
                      tile_rows(tile_at(&tiles, j), BUTLER_MIN(pairs->n - j, TILE_ROWS), step, pairs->value_offset), &to_prefetch);
        if (n_next > 0)
            group_exp(g.p[buffer], heads, n_next, g.acc, g.top, g.sums, n);
    }
    for (int i = 0; i < heads; i++) {
        float each[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++)
            each[r] = g.sums[r * heads + i];
        out.sum[i] = sum_of_tile(each);
        out.top[i] = g.top[i];
        memcpy(out.acc.at + (size_t)i * out.acc.stride, g.acc + i * n, (size_t)n * sizeof *out.acc.at);
    }
}

/* Functions for fixed numbers of heads and channels. Scores and values are two functions: in one, compilers spill registers. */
#define GROUP_SCORES(name, scores, type, heads, n)                                                                                 \
    static __attribute__((noinline)) void name(float *p, const void *q, struct butler_rows rows,                                   \
                                               const struct to_prefetch *to_prefetch)                                              \
    {                                                                                                                              \
        if (rows.step)                                                                                                             \
            scores(p, q, heads, tile_rows(rows.list, TILE_ROWS, dense_step(type, n), 0), to_prefetch, n);                          \
        else                                                                                                                       \
            scores(p, q, heads, tile_rows(rows.list, TILE_ROWS, 0, 0), to_prefetch, n);                                            \
    }
#define GROUP_VALUES(name, type, heads, length)                                                                                    \
    static __attribute__((noinline)) void name(float *acc, const float *weights, struct butler_rows rows,                          \
                                               const struct to_prefetch *to_prefetch)                                              \
    {                                                                                                                              \
        if (rows.step)                                                                                                             \
            group_values(type, acc, weights, heads, tile_rows(rows.list, TILE_ROWS, dense_step(type, length), rows.skip),          \
                         to_prefetch, length);                                                                                     \
        else                                                                                                                       \
            group_values(type, acc, weights, heads, tile_rows(rows.list, rows.n, 0, rows.skip), to_prefetch, length);              \
    }

typedef void attend_group_fn(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs);

/* attend of a group by name_scores and name_values, its queries made a struct of `queries` by prepare. */
#define GROUP_ATTEND(name, type, heads, n, queries, prepare)                                                                       \
    static void name(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs)                        \
    {                                                                                                                              \
        struct queries prepared;                                                                                                   \
        prepare(&prepared, butler_vectors_from(q, 0, heads), n);                                                                   \
        attend_group(type, out, &prepared, heads, name##_scores, name##_values, pairs, n);                                         \
    }

/* GROUP(name, heads, n) for each number of heads and channels that has a function of its own, and name_of: that for n_q heads of n
 * channels, or NULL. */
#define GROUPS_OF(GROUP, name)                                                                                                     \
    GROUP(name##_4_64, 4, 64)                                                                                                      \
    GROUP(name##_4_128, 4, 128)                                                                                                    \
    GROUP(name##_8_64, 8, 64)                                                                                                      \
    GROUP(name##_8_128, 8, 128)                                                                                                    \
    static attend_group_fn *name##_of(int n_q, int n)                                                                              \
    {                                                                                                                              \
        return n_q == 4 && n == 64    ? name##_4_64                                                                                \
               : n_q == 4 && n == 128 ? name##_4_128                                                                               \
               : n_q == 8 && n == 64  ? name##_8_64                                                                                \
               : n_q == 8 && n == 128 ? name##_8_128                                                                               \
                                      : NULL;                                                                                      \
    }

#endif
