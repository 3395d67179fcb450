/* Attention over cache rows that lie anywhere, written once for every vector width: included by each ISA file after its
 * vec*.h. In decode a row comes from memory and meets the few query heads of its group: it is read and widened once for
 * all of them. In prefill rows are few and queries many: rows are widened once into floats. Both run the same tiles, in
 * which a (query, row) pair has an accumulator of its own, so its value does not depend on the other pairs of the call. */
#ifndef BUTLER_SIMD_CACHE_H
#define BUTLER_SIMD_CACHE_H

enum row_type { ROW_F32, ROW_F16, ROW_Q8_0 };

/* Rows are processed in pieces of at most this many elements; a head is rarely longer. */
#define PIECE 256
#define STEP (2 * VEC)

INLINE size_t row_offset(enum row_type type, int i)
{
    return type == ROW_F32 ? (size_t)i * 4 : type == ROW_F16 ? (size_t)i * 2 : (size_t)(i / BLOCK) * Q8_0_BYTES;
}

/* Elements [i, i + STEP), i a multiple of STEP: of one Q8_0 block. */
INLINE void row_load_step(enum row_type type, vec v[2], const uint8_t *row, int i)
{
    const uint8_t *p = row + row_offset(type, i);
    vec d = type == ROW_Q8_0 ? vec_set1_half(p) : vec_zero();
    UNROLL
    for (int k = 0; k < 2; k++) {
        if (type == ROW_F32)
            v[k] = vec_load((const float *)p + k * VEC);
        else if (type == ROW_F16)
            v[k] = vec_load_half(p + k * VEC * 2);
        else
            v[k] = vec_mul(d, vec_load_i8(p + Q8_0_QUANTS + i % BLOCK + k * VEC));
    }
}

/* Elements [i, i + VEC) of a Q8_0 row without their scale. */
INLINE vec quants_load(const uint8_t *row, int i)
{
    return vec_load_i8(row + row_offset(ROW_Q8_0, i) + Q8_0_QUANTS + i % BLOCK);
}

/* Elements [i, i + VEC), i a multiple of VEC. */
INLINE vec row_load(enum row_type type, const uint8_t *row, int i)
{
    const uint8_t *p = row + row_offset(type, i);
    if (type == ROW_F32)
        return vec_load((const float *)p);
    if (type == ROW_F16)
        return vec_load_half(p);
    return vec_mul(vec_set1_half(p), vec_load_i8(p + Q8_0_QUANTS + i % BLOCK));
}

/* The tail of a row; Q8_0 rows have none that is not a whole vector. */
INLINE vec row_load_some(enum row_type type, const uint8_t *row, int i, int count)
{
    const uint8_t *p = row + row_offset(type, i);
    if (type == ROW_F32)
        return vec_load_some((const float *)p, count);
    if (type == ROW_F16)
        return vec_load_half_some(p, count);
    return row_load(type, row, i);
}

INLINE void row_widen(enum row_type type, float *t, const uint8_t *row, int n)
{
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        vec v[2];
        row_load_step(type, v, row, i);
        vec_store(t + i, v[0]);
        vec_store(t + i + VEC, v[1]);
    }
    for (; i < n; i += VEC) {
        int count = BUTLER_MIN(n - i, VEC);
        vec_store_some(t + i, row_load_some(type, row, i, count), count);
    }
}

/* --------------------------------------------------------------------------------------------- prefetching
 *
 * A core keeps as many lines in flight as its prefetchers ask for, some twenty a stream, and memory is only busy with twice
 * as many. So lists are read in four places at once, where that leaves the result alone (q . k), and otherwise prefetched in
 * four places of the next block while one is used (p . v). All into the second-level cache: the first is small, and
 * the few lines on their way into it would wait for memory instead of for the second. */

#define STREAMS 4
#define FETCH_AHEAD 4096
#define PREFETCH_BLOCK 16384

/* Whether byte `at` of what ends at `last` is to be prefetched for itself: Q8_0 rows begin and end within lines, and their last
 * byte's is prefetched anyway. */
INLINE bool line_wanted(enum row_type type, size_t at, size_t last)
{
    return at + (type == ROW_Q8_0 ? BLOCK : 0) < last;
}

INLINE void prefetch_row(enum row_type type, const void *row, int begin, int end)
{
    const size_t last = row_offset(type, end);
    for (size_t at = row_offset(type, begin); line_wanted(type, at, last); at += 64)
        prefetch_second((const uint8_t *)row + at);
    if (type == ROW_Q8_0)
        prefetch_second((const uint8_t *)row + last - 1);
}

/* Rows that are attended to together: as many as a page of the cache has. */
#define TILE_ROWS 16

/* Bytes from a key to the next where they lie dense: a key's value lies between, as the cache has them. */
INLINE size_t dense_step(enum row_type type, int n)
{
    return 2 * row_offset(type, n);
}

INLINE const uint8_t *row_at(struct butler_rows rows, int r)
{
    return (rows.step ? (const uint8_t *)rows.list[0] + (size_t)r * rows.step : (const uint8_t *)rows.list[r]) + rows.skip;
}

INLINE struct butler_rows tile_rows(const void *const *list, int n, size_t step, size_t skip)
{
    return (struct butler_rows){list, step, skip, n};
}

/* Rows to prefetch while others are used, each array as long as the tile that uses them or NULL: `near` into the first cache,
 * `far` into the second. A row comes whole and rows in order, so that the prefetchers see one stream. */
struct to_prefetch {
    const void *const *near, *const *far;
    size_t skip;     /* added to the address of each row, in bytes */
    int parts, part; /* rows r are prefetched for which r & parts is part; parts: 0 or 1 */
    int first;       /* of a dense tile: index of the first row to prefetch */
    bool dense; /* both are tiles that lie dense: keys and values are lines one after the other, of which half are prefetched */
};

/* Prefetches line k of the nearer dense tile and of the farther one: every other line if parts is 1. */
INLINE void prefetch_dense_line(struct to_prefetch to_prefetch, size_t k)
{
    if ((k & (size_t)to_prefetch.parts) == (size_t)to_prefetch.part) {
        prefetch((const uint8_t *)to_prefetch.near[0] + to_prefetch.skip, k * 64);
        prefetch_second((const uint8_t *)to_prefetch.far[0] + to_prefetch.skip + k * 64);
    }
}

/* Prefetches what to_prefetch names with rows [r, r + count) of a tile: elements [begin, end) of as many rows, or of a dense tile
 * its part of the lines that all rows would fill, every other one if parts is 1. */
INLINE void prefetch_tile(enum row_type type, struct to_prefetch to_prefetch, int r, int count, int begin, int end)
{
    const size_t first = row_offset(type, begin), last = row_offset(type, end), lines = (last - first) * TILE_ROWS / 64;
    if (to_prefetch.dense) {
        to_prefetch.skip += first * TILE_ROWS;
        for (size_t k = (size_t)(to_prefetch.first + r) * lines / TILE_ROWS;
             k < (size_t)(to_prefetch.first + r + count) * lines / TILE_ROWS; k++)
            prefetch_dense_line(to_prefetch, k);
        return;
    }
    for (; count > 0; count--, r++) {
        if ((r & to_prefetch.parts) != to_prefetch.part)
            continue;
        if (to_prefetch.near) {
            for (size_t at = first; line_wanted(type, at, last); at += 64)
                prefetch((const uint8_t *)to_prefetch.near[r] + to_prefetch.skip, at);
            if (type == ROW_Q8_0)
                prefetch((const uint8_t *)to_prefetch.near[r] + to_prefetch.skip, last - 1);
        }
        if (to_prefetch.far)
            prefetch_row(type, (const uint8_t *)to_prefetch.far[r] + to_prefetch.skip, begin, end);
    }
}

/* The same of a dense tile that is prefetched whole, r and count compile-time constants. */
INLINE void prefetch_known(enum row_type type, struct to_prefetch to_prefetch, int r, int count, int begin, int end)
{
    to_prefetch.dense = true;
    to_prefetch.parts = to_prefetch.part = 0;
    prefetch_tile(type, to_prefetch, r, count, begin, end);
}

/* What n_q queries prefetch while those from k on pass, of which four go together: of eight each four every other row, since memory
 * would have nothing to do while the second pass if the first prefetched all. */
INLINE struct to_prefetch slice_to_prefetch(struct to_prefetch to_prefetch, int k, int n_q)
{
    to_prefetch.parts = n_q >= 8;
    to_prefetch.part = k / 4;
    return k % 4 == 0 && k / 4 <= to_prefetch.parts ? to_prefetch : (struct to_prefetch){0};
}

INLINE struct to_prefetch to_prefetch_from(struct to_prefetch to_prefetch, int r)
{
    if (to_prefetch.dense) {
        to_prefetch.first = r;
        return to_prefetch;
    }
    return (struct to_prefetch){to_prefetch.near ? to_prefetch.near + r : NULL,
                                to_prefetch.far ? to_prefetch.far + r : NULL,
                                to_prefetch.skip,
                                to_prefetch.parts,
                                to_prefetch.part,
                                0,
                                false};
}

/* Rows prefetched together: a power of two, of some PREFETCH_BLOCK bytes. */
INLINE int prefetch_rows(enum row_type type, int n)
{
    int rows = 32;
    while (rows < 256 && (size_t)rows * row_offset(type, n) < PREFETCH_BLOCK * 3 / 4)
        rows *= 2;
    return rows;
}

/* What to prefetch when item j of n is used, in a list prefetched `block` items at a time; past its end item j itself. */
INLINE int index_ahead(int j, int n, int block)
{
    const int k = j & (block - 1), t = j - k + block + k % STREAMS * (block / STREAMS) + k / STREAMS;
    return t < n ? t : BUTLER_MAX(j, 0);
}

INLINE const void *row_ahead(const void *const *rows, int n_rows, int block, int j)
{
    return rows[index_ahead(j, n_rows, block)];
}

/* The first block has no block before it. */
INLINE void prefetch_first(enum row_type type, const void *const *rows, int n_rows, int block, int n)
{
    for (int j = -block; j < 0 && n_rows > STREAMS; j++)
        prefetch_row(type, row_ahead(rows, n_rows, block, j), 0, n);
}

/* -------------------------------------------------------------------------------------------------- q . k */

/* Where the scores of a tile are stored: for query i the first n of them from at + i * stride on, `run` to neighbouring places,
 * then as many `apart` places further on. run: a compile-time constant. more: they are added to what lies there. */
struct tile_scores_at {
    float *at;
    size_t stride;
    int run, apart, n;
    bool more;
};

/* Scores of q.n queries with rows.n rows, both compile-time constants with q.n rows.n <= VEC, as rows.step is. scales: NULL, or
 * the scales of Q8_0 rows, [block][TILE_ROWS]; then the scales in the rows are not read. to_prefetch: as many rows to prefetch
 * meanwhile; with a step, a step of a F16 row, a line itself where a vector is 64 bytes, prefetches a line. */
INLINE void qk_tile(enum row_type type, struct tile_scores_at s, struct butler_vectors q, struct butler_rows rows,
                    const float *scales, struct to_prefetch to_prefetch, int n)
{
    const uint8_t *row[VEC];
    vec acc[VEC];
    _Alignas(64) float sums[VEC];
    int i = 0, prefetched = 0;
    UNROLL
    for (int r = 0; r < rows.n; r++)
        row[r] = row_at(rows, r);
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    for (; i + STEP <= n; i += STEP) {
        for (; !rows.step && (to_prefetch.near || to_prefetch.far) && prefetched * n < (i + STEP) * rows.n; prefetched++)
            prefetch_tile(type, to_prefetch, prefetched, 1, 0, n);
        vec x[VEC], v[2];
        UNROLL
        for (int a = 0; a < 2 * q.n; a++)
            x[a] = vec_load(q.at + a / 2 * q.stride + i + a % 2 * VEC);
        UNROLL
        for (int r = 0; r < rows.n; r++) {
            if (scales) {
                const vec d = vec_set1(scales[(size_t)(i / BLOCK) * TILE_ROWS + (size_t)r]);
                v[0] = vec_mul(quants_load(row[r], i), d);
                v[1] = vec_mul(quants_load(row[r], i + VEC), d);
            } else
                row_load_step(type, v, row[r], i);
            if (rows.step && to_prefetch.dense)
                prefetch_dense_line(to_prefetch, (size_t)(to_prefetch.first * (n / STEP) + i / STEP * rows.n + r));
            UNROLL
            for (int a = 0; a < 2 * q.n; a++)
                acc[a / 2 * rows.n + r] = vec_fma(v[a % 2], x[a], acc[a / 2 * rows.n + r]);
        }
    }
    for (; i < n; i += VEC) {
        int count = BUTLER_MIN(n - i, VEC);
        vec x[VEC];
        UNROLL
        for (int a = 0; a < q.n; a++)
            x[a] = vec_load_some(q.at + a * q.stride + i, count);
        UNROLL
        for (int r = 0; r < rows.n; r++) {
            vec v = row_load_some(type, row[r], i, count);
            UNROLL
            for (int a = 0; a < q.n; a++)
                acc[a * rows.n + r] = vec_fma(v, x[a], acc[a * rows.n + r]);
        }
    }
    vec_store(sums, vec_sum_each(acc));
    if (s.n == rows.n && !s.more) {
        UNROLL
        for (int a = 0; a < q.n * rows.n / s.run; a++)
            memcpy(s.at + a * s.run / rows.n * s.stride + a * s.run % rows.n / s.run * s.apart, sums + a * s.run,
                   (size_t)s.run * sizeof *s.at);
        return;
    }
    for (int a = 0; a < q.n; a++) {
        for (int r = 0; r < s.n; r++) {
            float *out = s.at + a * s.stride + r / s.run * s.apart + r % s.run;
            *out = sums[a * rows.n + r] + (s.more ? *out : 0);
        }
    }
}

/* Few queries: tiles straight from the cache, as many rows at once as there are accumulators, from as many places of the list
 * as there are streams. What does not divide comes last, in neighbouring rows, the last of them repeated. */
INLINE void qk_direct(enum row_type type, struct butler_results s, struct butler_vectors q, struct butler_rows rows, int tile,
                      int n, bool more)
{
    const int streams = BUTLER_MIN(STREAMS, tile), run = tile / streams, long_apart = rows.n / streams / run * run;
    const int ahead = (int)(FETCH_AHEAD / row_offset(type, BUTLER_MAX(n, BLOCK))) / streams + run;
    for (int j = 0; j < BUTLER_MIN(ahead, long_apart); j++)
        for (int k = 0; k < streams; k++)
            prefetch_row(type, row_at(rows, k * long_apart + j), 0, n);
    for (int j = 0; j < rows.n;) {
        const bool rest = j >= long_apart;
        const int apart = rest ? run : long_apart;
        const void *here[VEC], *to_prefetch[VEC];
        if (rest)
            j = BUTLER_MAX(j, streams * long_apart);
        if (j >= rows.n)
            break;
        UNROLL
        for (int r = 0; r < tile; r++) {
            const int at = r / run * apart + j + r % run;
            here[r] = rows.list[BUTLER_MIN(at, rows.n - 1)];
            to_prefetch[r] = rows.list[BUTLER_MIN(at + ahead, rows.n - 1)];
        }
        qk_tile(type, (struct tile_scores_at){s.at + j, s.stride, run, apart, BUTLER_MIN(rows.n - j, tile), more}, q,
                tile_rows(here, tile, 0, rows.skip), NULL, (struct to_prefetch){NULL, to_prefetch, rows.skip, 0, 0, 0, false}, n);
        j += rest ? tile : run;
    }
}

/* VEC / 4 rows of floats, the same for every type that was widened into them; the scores of the first n_stored are stored. */
static __attribute__((noinline)) void qk_floats(struct butler_results s, struct butler_vectors q, const void *const *rows,
                                                int n_stored, int n, bool more)
{
    const struct butler_rows tile = tile_rows(rows, VEC / 4, 0, 0);
    int i = 0;
#define QK_TILE(queries)                                                                                                           \
    qk_tile(ROW_F32, (struct tile_scores_at){s.at + (size_t)i * s.stride, s.stride, VEC / 4, 0, n_stored, more},                   \
            butler_vectors_from(q, i, queries), tile, NULL, (struct to_prefetch){0}, n)
    for (; i + 4 <= q.n; i += 4)
        QK_TILE(4);
    for (; i < q.n; i++)
        QK_TILE(1);
#undef QK_TILE
}

/* Many queries: rows as floats, four queries at a time. */
INLINE void qk_widened(enum row_type type, struct butler_results s, struct butler_vectors q, struct butler_rows rows, int n,
                       bool more)
{
    enum { TILE = VEC / 4 };
    _Alignas(64) float t[TILE][PIECE];
    const void *here[TILE];
    const int block = prefetch_rows(type, n);
    prefetch_first(type, rows.list, rows.n, block, n);
    for (int r = 0; r < TILE; r++)
        here[r] = t[r];
    for (int j = 0; j < rows.n; j += TILE) {
        const int count = BUTLER_MIN(rows.n - j, TILE);
        for (int r = 0; r < TILE; r++) {
            const int at = BUTLER_MIN(j + r, rows.n - 1);
            prefetch_row(type, (const uint8_t *)row_ahead(rows.list, rows.n, block, at) + rows.skip, 0, n);
            row_widen(type, t[r], row_at(rows, at), n);
        }
        qk_floats((struct butler_results){s.at + j, s.stride}, q, here, count, n, more);
    }
}

INLINE void qk_any(enum row_type type, struct butler_results s, struct butler_vectors q, struct butler_rows rows, int n)
{
    for (int first = 0; first < n; first += PIECE) {
        const int count = BUTLER_MIN(n - first, PIECE);
        const struct butler_vectors x = {q.at + first, q.stride, q.n};
        const bool more = first > 0;
        rows.skip = row_offset(type, first);
        if (type == ROW_F32) /* a type of tests: the tiles of the others do */
            qk_widened(type, s, x, rows, count, more);
        else if (q.n == 1)
            qk_direct(type, s, butler_vectors_from(x, 0, 1), rows, VEC, count, more);
        else if (q.n == 2)
            qk_direct(type, s, butler_vectors_from(x, 0, 2), rows, VEC / 2, count, more);
        else if (q.n == 3)
            qk_direct(type, s, butler_vectors_from(x, 0, 3), rows, VEC / 4, count, more);
        else if (q.n == 4)
            qk_direct(type, s, butler_vectors_from(x, 0, 4), rows, VEC / 4, count, more);
        else
            qk_widened(type, s, x, rows, count, more);
    }
}

/* -------------------------------------------------------------------------------------------------- p . v */

/* Rows that pass through all columns before the next come: their part of the sums stays in registers meanwhile. */
#define CHUNK_ROWS 32

/* Adds row j's weighted elements [i, i + n_vecs VEC): a[query * n_vecs + v]. */
INLINE void av_row(enum row_type type, vec *a, struct butler_row_weights p, struct butler_rows rows, int j, int n_vecs, int i)
{
    const uint8_t *row = row_at(rows, j);
    const float *weights = p.at + j;
    vec x[VEC / 2];
    if (n_vecs == 1)
        x[0] = p.block ? quants_load(row, i) : row_load(type, row, i);
    UNROLL
    for (int v = 0; v + 2 <= n_vecs; v += 2) {
        if (p.block) {
            x[v] = quants_load(row, i + v * VEC);
            x[v + 1] = quants_load(row, i + (v + 1) * VEC);
        } else
            row_load_step(type, x + v, row, i + v * VEC);
    }
    UNROLL
    for (int k = 0; k < p.n * n_vecs; k++) {
        const size_t block = (size_t)((i + k % n_vecs * VEC) / BLOCK) * p.block;
        a[k] = vec_fma(vec_set1(weights[(size_t)(k / n_vecs) * p.stride + block]), x[k % n_vecs], a[k]);
    }
}

/* Elements [i, i + n_vecs VEC) of acc_0 .. acc_(p.n - 1) over the rows; p.n, rows.step and n_vecs, 1 or even, are compile-time
 * constants. to_prefetch: as many rows to prefetch meanwhile. */
INLINE void av_tile(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,
                    struct to_prefetch to_prefetch, int n_vecs, int i)
{
    vec a[2 * VEC];
    UNROLL
    for (int k = 0; k < p.n * n_vecs; k++)
        a[k] = vec_load(acc.at + k / n_vecs * acc.stride + i + k % n_vecs * VEC);
    if (rows.step && p.n < 4) {
        UNROLL
        for (int j = 0; j < TILE_ROWS; j++) {
            const int together = type == ROW_F16 ? 1 : 4; /* whole lines are to_prefetch with every row */
            if (j % together == 0 && to_prefetch.dense)
                prefetch_known(type, to_prefetch, j, together, i, i + n_vecs * VEC);
            av_row(type, a, p, rows, j, n_vecs, i);
        }
    } else
        for (int j = 0; j < rows.n; j++) {
            prefetch_tile(type, to_prefetch, j, 1, i, i + n_vecs * VEC);
            av_row(type, a, p, rows, j, n_vecs, i);
        }
    UNROLL
    for (int k = 0; k < p.n * n_vecs; k++)
        vec_store(acc.at + k / n_vecs * acc.stride + i + k % n_vecs * VEC, a[k]);
}

/* The last count elements, fewer than a vector. */
INLINE void av_tail(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows, int i,
                    int count)
{
    for (int k = 0; k < p.n; k++) {
        vec a = vec_load_some(acc.at + k * acc.stride + i, count);
        for (int j = 0; j < rows.n; j++)
            a = vec_fma(vec_set1(p.at[k * p.stride + j]), row_load_some(type, row_at(rows, j), i, count), a);
        vec_store_some(acc.at + k * acc.stride + i, a, count);
    }
}

/* All elements for a constant number of queries: as wide as the accumulators allow, then narrower. */
INLINE void av_columns(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,
                       struct to_prefetch to_prefetch, int n)
{
    const int wide = p.n <= 2 ? VEC / 2 : p.n <= 4 ? VEC / 4 : VEC / 8;
    int i = 0;
    for (; i + wide * VEC <= n; i += wide * VEC)
        av_tile(type, acc, p, rows, to_prefetch, wide, i);
    for (; i + VEC / 4 * VEC <= n && wide > VEC / 4; i += VEC / 4 * VEC)
        av_tile(type, acc, p, rows, to_prefetch, VEC / 4, i);
    for (; i + VEC <= n; i += VEC)
        av_tile(type, acc, p, rows, to_prefetch, 1, i);
    if (i < n)
        av_tail(type, acc, p, rows, i, n - i);
}

INLINE void av_queries(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows,
                       struct to_prefetch to_prefetch, int n)
{
    int k = 0;
#define AV_COLUMNS(queries, part)                                                                                                  \
    av_columns(type, butler_results_from(acc, k), butler_row_weights_from(p, k, queries), rows, part, n)
    /* Widened once for all, where there are registers enough; of rows that lie anywhere halves would be prefetched twice. */
    for (; VEC == 16 && type == ROW_Q8_0 && rows.step && k + 8 <= p.n; k += 8)
        AV_COLUMNS(8, k == 0 ? to_prefetch : (struct to_prefetch){0});
    for (; k + 4 <= p.n; k += 4)
        AV_COLUMNS(4, slice_to_prefetch(to_prefetch, k, p.n));
    if (p.n - k >= 2) {
        AV_COLUMNS(2, slice_to_prefetch(to_prefetch, k, p.n));
        k += 2;
    }
    if (p.n - k == 1)
        AV_COLUMNS(1, slice_to_prefetch(to_prefetch, k, p.n));
#undef AV_COLUMNS
}

/* Rows of floats, the same for every type that was widened into them. */
static __attribute__((noinline)) void av_floats(struct butler_results acc, struct butler_row_weights p, const void *const *rows,
                                                int n_rows, int n)
{
    p.block = 0;
    av_queries(ROW_F32, acc, p, tile_rows(rows, n_rows, 0, 0), (struct to_prefetch){0}, n);
}

INLINE void av_any(enum row_type type, struct butler_results acc, struct butler_row_weights p, struct butler_rows rows, int n)
{
    _Alignas(64) float t[CHUNK_ROWS][PIECE];
    const int block = prefetch_rows(type, n);
    const bool widen = p.n > 4 || type == ROW_F32;
    prefetch_first(type, rows.list, rows.n, block, n);
    for (int j = 0; j < rows.n; j += CHUNK_ROWS) {
        const int count = BUTLER_MIN(rows.n - j, CHUNK_ROWS);
        const struct butler_row_weights weights = {p.at + j, p.stride, 0, p.n};
        for (int first = 0; first < n; first += PIECE) {
            const int length = BUTLER_MIN(n - first, PIECE);
            const size_t skip = row_offset(type, first);
            const struct butler_results sums = {acc.at + first, acc.stride};
            const void *here[CHUNK_ROWS], *to_prefetch[CHUNK_ROWS];
            for (int r = 0; r < count; r++) {
                to_prefetch[r] = (const uint8_t *)row_ahead(rows.list, rows.n, block, j + r) + skip;
                here[r] = (const uint8_t *)rows.list[j + r] + skip;
                if (widen) {
                    prefetch_row(type, to_prefetch[r], 0, length);
                    row_widen(type, t[r], here[r], length);
                    here[r] = t[r];
                }
            }
            if (widen || type == ROW_F32)
                av_floats(sums, weights, here, count, length);
            else
                av_queries(type, sums, weights, tile_rows(here, count, 0, 0),
                           (struct to_prefetch){NULL, to_prefetch, 0, 0, 0, 0, false}, length);
        }
    }
}

#endif
