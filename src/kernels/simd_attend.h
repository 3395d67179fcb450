/* Attention of a decode step in one pass, written once for every vector width: included by each ISA file after simd_cache.h.
 * Keys and values are read in the order in which they lie, a page of both after the other, each once for all queries of its
 * group. The exponentials of a tile are computed while the values of the tile before are added and the scores of the next
 * begin, so that neither waits for them; the sums so far are scaled down whenever a tile has a new maximum. */
#ifndef BUTLER_SIMD_ATTEND_H
#define BUTLER_SIMD_ATTEND_H

#define TILE_QUERIES 16 /* of a group that go together */
#define TILE_BLOCKS (PIECE / BLOCK)

/* Tiles between the rows in use and those that are prefetched: into the second-level cache early, into the first when they are
 * there. Fetched into the first only, they keep its few places for lines under way until memory answers. Short rows are done with
 * so soon where vectors are wide that twice as many are on their way. */
INLINE int tiles_near(size_t row_bytes)
{
    return VEC == 16 && row_bytes < 128 ? 2 : 1;
}
INLINE int tiles_far(size_t row_bytes)
{
    return 3 * tiles_near(row_bytes);
}

/* Whether a tile's rows lie `step` bytes apart, which saves looking up where each is. NULL: not wanted. */
typedef bool dense_fn(const void *const *rows, size_t step);

INLINE bool rows_lie_dense(const void *const *rows, size_t step)
{
    uintptr_t apart = 0;
    _Pragma("GCC unroll 1") for (size_t r = 0; r < TILE_ROWS; r++) /* so that compilers see vectors */
        apart |= (uintptr_t)rows[r] ^ ((uintptr_t)rows[0] + r * step);
    return apart == 0;
}

/* A list of keys as tiles. */
struct tiles {
    const void *const *keys, *last[TILE_ROWS]; /* the last tile; what does not fill one, its last row repeated */
    int whole, begin, end;                     /* rows in tiles before the last, before the next call's rows, and with these */
    int missing;                               /* rows that the last tile lacks */
    int dense;                                 /* the last `dense` tiles up to the one prefetched latest are contiguous */
};

/* The tile from row j on; where there is none, the last. */
INLINE const void *const *tile_at(const struct tiles *tiles, int j)
{
    return j < tiles->whole                      ? tiles->keys + j
           : j >= tiles->begin && j < tiles->end ? tiles->keys + (j - tiles->missing)
                                                 : tiles->last;
}

INLINE void next_is_dense(struct tiles *tiles, dense_fn *lie_dense, const void *const *rows, size_t step)
{
    tiles->dense = lie_dense && lie_dense(rows, step) ? tiles->dense + 1 : 0;
}

/* Prefetches the first tiles, too. */
INLINE void begin_tiles(struct tiles *tiles, enum row_type type, dense_fn *lie_dense, const struct butler_pairs *pairs, int n)
{
    const size_t row_bytes = row_offset(type, n);
    const int whole = pairs->n / TILE_ROWS * TILE_ROWS, begin = BUTLER_CEIL_DIV(pairs->n, TILE_ROWS) * TILE_ROWS;
    *tiles = (struct tiles){.keys = pairs->keys,
                            .whole = whole,
                            .begin = begin,
                            .end = begin + pairs->n_next / TILE_ROWS * TILE_ROWS,
                            .missing = begin - pairs->n,
                            .dense = 1};
    for (int r = 0; r < TILE_ROWS; r++)
        tiles->last[r] = pairs->keys[BUTLER_MIN((whole < pairs->n ? whole : whole - TILE_ROWS) + r, pairs->n - 1)];
    for (int j = 0; j < tiles_far(row_bytes) * TILE_ROWS; j += TILE_ROWS) {
        const void *const *rows = tile_at(tiles, j);
        next_is_dense(tiles, lie_dense, rows, dense_step(type, n));
        for (int r = 0; j < pairs->n && r < 2 * TILE_ROWS; r++)
            prefetch_row(type, (const uint8_t *)rows[r % TILE_ROWS] + (r < TILE_ROWS ? 0 : pairs->value_offset), 0, n);
    }
}

/* What to prefetch while keys of the tile from row `next` on are used, and values of the one before. dense: all of these lie so. */
INLINE struct to_prefetch tiles_to_prefetch(struct tiles *tiles, enum row_type type, dense_fn *lie_dense, int next, int n)
{
    const size_t row_bytes = row_offset(type, n);
    struct to_prefetch to_prefetch = {.near = tile_at(tiles, next + tiles_near(row_bytes) * TILE_ROWS),
                                      .far = tile_at(tiles, next + tiles_far(row_bytes) * TILE_ROWS)};
    next_is_dense(tiles, lie_dense, to_prefetch.far, dense_step(type, n));
    to_prefetch.dense = tiles->dense > tiles_far(row_bytes) + 1;
    return to_prefetch;
}

/* What belongs to a tile of Q8_0 rows: their scales, row by row for every block; of values, multiplied with the weights. */
struct tile_scales {
    _Alignas(64) float keys[TILE_BLOCKS][TILE_ROWS], values[TILE_QUERIES][TILE_BLOCKS][TILE_ROWS];
};

INLINE void load_scales(float (*scales)[TILE_ROWS], struct butler_rows rows, int n)
{
    for (int b = 0; b < n / BLOCK; b++, rows.skip += Q8_0_BYTES) {
        for (int r = 0; r < TILE_ROWS; r += VEC) {
            const uint8_t *at[VEC];
            UNROLL
            for (int k = 0; k < VEC; k++)
                at[k] = row_at(rows, r + k);
            vec_store(scales[b] + r, vec_load_halves(at, rows.step));
        }
    }
}

/* Scores of a tile of rows, rows.step a compile-time constant, for some queries: p[query][TILE_ROWS]. to_prefetch: as many rows to
 * prefetch meanwhile. */
INLINE void tile_scores(enum row_type type, float (*p)[TILE_ROWS], struct tile_scales *scales, struct butler_vectors q,
                        struct butler_rows rows, struct to_prefetch to_prefetch, int n)
{
    const bool apart = type == ROW_Q8_0 && n <= PIECE;
    const int n_q = q.n;
    int i = 0;
    if (apart)
        load_scales(scales->keys, rows, n);
#define TILE_PART(queries, first)                                                                                                  \
    qk_tile(type, (struct tile_scores_at){p[i] + (first), TILE_ROWS, VEC / (queries), 0, VEC / (queries), false},                  \
            butler_vectors_from(q, i, queries), tile_rows(rows.list + (first), VEC / (queries), rows.step, 0),                     \
            apart ? scales->keys[0] + (first) : NULL, to_prefetch_from(slice_to_prefetch(to_prefetch, i, n_q), first), n)
    for (; i + 4 <= n_q; i += 4)
        for (int r = 0; r < TILE_ROWS; r += VEC / 4)
            TILE_PART(4, r);
    for (; i + 2 <= n_q; i += 2)
        for (int r = 0; r < TILE_ROWS; r += VEC / 2)
            TILE_PART(2, r);
    for (; i < n_q; i++)
        for (int r = 0; r < TILE_ROWS; r += VEC)
            TILE_PART(1, r);
#undef TILE_PART
}

/* The smallest number that is not subnormal. Less of a weight adds nothing to a sum that has a 1 in it, and a product with a
 * subnormal number takes a hundred times as long as another. */
#define LEAST_NORMAL 0x1p-126f

/* e^x, x <= 0, and no subnormal number; off by 2^-24 |x| of itself, which adds nothing to speak of to a sum that has a 1 in it. */
INLINE vec exp_normal(vec x)
{
    return exp2_normal(vec_mul(x, vec_set1(1.44269504f)));
}

/* Turns count scores of a tile into exponentials against the maximum so far, 0 beyond count. */
INLINE void tile_exp(float p[TILE_ROWS], int count, float *acc, float *top, float sums[TILE_ROWS], int n)
{
    vec x[V16], most = vec_set1(-INFINITY);
    for (int k = 0; k < V16; k++) {
        x[k] = vec_load(p + k * VEC);
        if (count < TILE_ROWS)
            x[k] = vec_keep(x[k], vec_set1(-INFINITY), BUTLER_MIN(BUTLER_MAX(count - k * VEC, 0), VEC));
        most = vec_max(x[k], most);
    }
    if (vec_reaches(most, vec_set1(*top))) { /* which of them is most, and by how much, matters rarely */
        const float m = vec_max_all(most);
        float factor[VEC];
        vec_store(factor, exp_normal(vec_set1(*top - m)));
        scale(acc, factor[0], n);
        for (int k = 0; k < V16; k++)
            vec_store(sums + k * VEC, vec_mul(vec_load(sums + k * VEC), vec_set1(factor[0])));
        *top = m;
    }
    for (int k = 0; k < V16; k++) {
        vec e = exp_normal(vec_sub(x[k], vec_set1(*top)));
        if (count < TILE_ROWS)
            e = vec_keep(e, vec_zero(), BUTLER_MIN(BUTLER_MAX(count - k * VEC, 0), VEC));
        vec_store(p + k * VEC, e);
        vec_store(sums + k * VEC, vec_add(vec_load(sums + k * VEC), e));
    }
}

INLINE float sum_of_tile(const float sums[TILE_ROWS])
{
    vec total = vec_load(sums);
    for (int k = 1; k < V16; k++)
        total = vec_add(total, vec_load(sums + k * VEC));
    return vec_sum(total);
}

/* Queries, and the same in a form that an ISA's own scores_fn takes, or NULL. */
struct tile_queries {
    struct butler_vectors plain;
    const void *prepared;
};

/* What an ISA has of its own; NULL: as tile_scores and av_queries do, and rows lie anywhere. Scores of a tile of keys from n_q
 * queries in a form of its own; and weighted values of a tile. */
typedef void scores_fn(float (*p)[TILE_ROWS], struct tile_scales *scales, const void *queries, int n_q, struct butler_rows rows,
                       struct to_prefetch to_prefetch, int n);
typedef void values_fn(struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,
                       struct to_prefetch to_prefetch, int n);

/* Adds a tile's values, which `rows` are, with weights p, in which are no scales of theirs. */
INLINE void tile_values(enum row_type type, values_fn *values_of, struct butler_results acc, struct butler_row_weights p,
                        struct tile_scales *scales, struct butler_rows rows, struct to_prefetch to_prefetch, int n)
{
    if (type == ROW_Q8_0 && n <= PIECE) {
        _Alignas(64) float d[TILE_BLOCKS][TILE_ROWS];
        load_scales(d, rows, n);
        for (int i = 0; i < p.n; i++)
            for (int b = 0; b < n / BLOCK; b++)
                for (int r = 0; r < TILE_ROWS; r += VEC)
                    vec_store(scales->values[i][b] + r,
                              vec_max(vec_set1(LEAST_NORMAL), vec_mul(vec_load(d[b] + r), vec_load(p.at + i * p.stride + r))));
        p = (struct butler_row_weights){scales->values[0][0], TILE_BLOCKS * TILE_ROWS, TILE_ROWS, p.n};
    }
    if (values_of)
        values_of(acc, p, rows, to_prefetch, n);
    else
        av_queries(type, acc, p, rows, to_prefetch, n);
}

/* `attend` of at most TILE_QUERIES queries. */
INLINE void attend_queries(enum row_type type, struct butler_attended out, struct tile_queries q, scores_fn *scores_of,
                           values_fn *values_of, dense_fn *lie_dense, const struct butler_pairs *pairs, int n)
{
    const int n_q = q.plain.n;
    _Alignas(64) float p[2][TILE_QUERIES][TILE_ROWS], sums[TILE_QUERIES][TILE_ROWS] = {{0}};
    struct tile_scales scales;
    const size_t row_bytes = row_offset(type, n);
    struct tiles tiles;
    begin_tiles(&tiles, type, lie_dense, pairs, n);
    for (int i = 0; i < n_q; i++) {
        out.top[i] = -INFINITY;
        memset(out.acc.at + i * out.acc.stride, 0, (size_t)n * sizeof *out.acc.at);
    }
    for (int j = -TILE_ROWS, buffer = 0; j < pairs->n; j += TILE_ROWS, buffer ^= 1) {
        const int next = j + TILE_ROWS, n_next = BUTLER_MIN(pairs->n - next, TILE_ROWS);
        struct to_prefetch to_prefetch = tiles_to_prefetch(&tiles, type, lie_dense, next, n);
        const size_t step = to_prefetch.dense ? dense_step(type, n) : 0;
        if (n_next > 0) {
            const void *const *keys = tile_at(&tiles, next);
            if (scores_of)
                scores_of(p[buffer], &scales, q.prepared, n_q, tile_rows(keys, TILE_ROWS, step, 0), to_prefetch, n);
            else if (step)
                tile_scores(type, p[buffer], &scales, q.plain, tile_rows(keys, TILE_ROWS, dense_step(type, n), 0), to_prefetch, n);
            else
                tile_scores(type, p[buffer], &scales, q.plain, tile_rows(keys, TILE_ROWS, 0, 0), to_prefetch, n);
            for (int i = 0; out.s.at && i < n_q; i++)
                memcpy(out.s.at + i * out.s.stride + next, p[buffer][i], (size_t)n_next * sizeof *out.s.at);
        }
        to_prefetch.skip = to_prefetch.dense ? TILE_ROWS * row_bytes : pairs->value_offset;
        const struct butler_row_weights weights = {p[buffer ^ 1][0], TILE_ROWS, 0, n_q};
        if (j >= 0 && to_prefetch.dense)
            tile_values(type, values_of, out.acc, weights, &scales,
                        tile_rows(tile_at(&tiles, j), TILE_ROWS, dense_step(type, n), pairs->value_offset), to_prefetch, n);
        else if (j >= 0)
            tile_values(type, values_of, out.acc, weights, &scales,
                        tile_rows(tile_at(&tiles, j), BUTLER_MIN(pairs->n - j, TILE_ROWS), 0, pairs->value_offset), to_prefetch, n);
        for (int i = 0; n_next > 0 && i < n_q; i++)
            tile_exp(p[buffer][i], n_next, out.acc.at + i * out.acc.stride, &out.top[i], sums[i], n);
    }
    for (int i = 0; i < n_q; i++)
        out.sum[i] = sum_of_tile(sums[i]);
}

INLINE void attend_any(enum row_type type, struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs,
                       int n)
{
    for (int i = 0; i < q.n; i += TILE_QUERIES) {
        const struct tile_queries queries = {butler_vectors_from(q, i, BUTLER_MIN(q.n - i, TILE_QUERIES)), NULL};
        attend_queries(type, butler_attended_from(out, i), queries, NULL, NULL,
                       type == ROW_F16 && n % STEP == 0 ? rows_lie_dense : NULL, pairs, n);
    }
}

#endif
