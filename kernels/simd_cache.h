/* Attention over cache rows that lie anywhere, written once for every vector width: included by each ISA file after its
 * vec*.h. In decode a row comes from memory and meets the few query heads of its group: it is read and widened once for
 * all of them, and rows a little further down the list are prefetched, because no hardware prefetcher can guess a gathered
 * list. In prefill rows are few and queries many: rows are widened once into floats. Both run the same tiles, in which a
 * (query, row) pair has an accumulator of its own, so its value does not depend on the company. */
#ifndef BUTLER_SIMD_CACHE_H
#define BUTLER_SIMD_CACHE_H

enum row_type { ROW_F32, ROW_F16, ROW_Q8_0 };

/* Rows are processed in pieces of at most this many elements; a head is rarely longer. */
#define PIECE 256
#define STEP (2 * VEC)
/* Rows between use and prefetch: at 128-256 bytes a row, the few kilobytes that cover a trip to memory. */
#define ROWS_AHEAD 16

INLINE size_t row_offset(enum row_type type, int i)
{
    return type == ROW_F32 ? (size_t)i * 4 : type == ROW_F16 ? (size_t)i * 2 : (size_t)(i / BLOCK) * Q8_0_BYTES;
}

/* Elements [i, i + STEP), i a multiple of STEP. */
INLINE void row_load_step(enum row_type type, vec v[2], const uint8_t *row, int i)
{
    const uint8_t *p = row + row_offset(type, i);
    vec d = type == ROW_Q8_0 ? vec_set1_half(p) : vec_zero();
    for (int k = 0; k < 2; k++) {
        if (type == ROW_F32)
            v[k] = vec_load((const float *)p + k * VEC);
        else if (type == ROW_F16)
            v[k] = vec_load_half(p + k * VEC * 2);
        else
            v[k] = vec_mul(d, vec_load_i8(p + Q8_0_QUANTS + i % BLOCK + k * VEC));
    }
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

/* [i, i + STEP) of a row: its cache lines. */
INLINE void row_prefetch(enum row_type type, const uint8_t *row, int i)
{
    size_t begin = row_offset(type, i);
    prefetch(row, begin);
    if (row_offset(type, STEP) > 64)
        prefetch(row, begin + 64);
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

/* -------------------------------------------------------------------------------------------------- q . k */

/* s[i * s_stride + r] (+)= q_i . rows[r], i < n_q, r < n_rows, both compile-time constants with n_q n_rows <= VEC; only the
 * first n_stored rows are stored. `ahead` are rows to prefetch. */
INLINE void qk_tile(enum row_type type, float *s, size_t s_stride, const float *q, size_t q_stride, int n_q,
                    const uint8_t *const *rows, const uint8_t *const *ahead, int n_rows, int n_stored, int n, bool more)
{
    vec acc[VEC];
    float sums[VEC];
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    int i = 0;
    for (; i + STEP <= n; i += STEP) {
        vec x[4][2], v[2];
        for (int a = 0; a < n_q; a++)
            for (int k = 0; k < 2; k++)
                x[a][k] = vec_load(q + a * q_stride + i + k * VEC);
        for (int r = 0; r < n_rows; r++) {
            if (ahead)
                row_prefetch(type, ahead[r], i);
            row_load_step(type, v, rows[r], i);
            for (int k = 0; k < 2; k++)
                for (int a = 0; a < n_q; a++)
                    acc[a * n_rows + r] = vec_fma(v[k], x[a][k], acc[a * n_rows + r]);
        }
    }
    for (; i < n; i += VEC) {
        int count = BUTLER_MIN(n - i, VEC);
        vec x[4];
        for (int a = 0; a < n_q; a++)
            x[a] = vec_load_some(q + a * q_stride + i, count);
        for (int r = 0; r < n_rows; r++) {
            vec v = row_load_some(type, rows[r], i, count);
            for (int a = 0; a < n_q; a++)
                acc[a * n_rows + r] = vec_fma(v, x[a], acc[a * n_rows + r]);
        }
    }
    vec_store(sums, vec_sum_each(acc));
    for (int a = 0; a < n_q; a++)
        for (int r = 0; r < n_stored; r++)
            s[a * s_stride + r] = more ? s[a * s_stride + r] + sums[a * n_rows + r] : sums[a * n_rows + r];
}

/* Few queries: tiles straight from the cache, as many rows at once as there are accumulators. The last tile repeats the
 * last row. */
INLINE void qk_direct(enum row_type type, float *s, size_t s_stride, const float *q, size_t q_stride, int n_q, int tile_rows,
                      const void *const *rows, int n_rows, int first, int n, bool more)
{
    for (int j = 0; j < n_rows; j += tile_rows) {
        const uint8_t *here[VEC], *ahead[VEC];
        for (int r = 0; r < tile_rows; r++) {
            here[r] = (const uint8_t *)rows[BUTLER_MIN(j + r, n_rows - 1)] + row_offset(type, first);
            ahead[r] = (const uint8_t *)rows[BUTLER_MIN(j + r + ROWS_AHEAD, n_rows - 1)] + row_offset(type, first);
        }
        qk_tile(type, s + j, s_stride, q, q_stride, n_q, here, ahead, tile_rows, BUTLER_MIN(n_rows - j, tile_rows), n, more);
    }
}

/* Many queries: rows as floats, four queries at a time. */
INLINE void qk_widened(enum row_type type, float *s, size_t s_stride, const float *q, size_t q_stride, int n_q,
                       const void *const *rows, int n_rows, int first, int n, bool more)
{
    enum { TILE = VEC / 4 };
    float t[TILE][PIECE];
    const uint8_t *here[TILE];
    for (int r = 0; r < TILE; r++)
        here[r] = (const uint8_t *)t[r];
    for (int j = 0; j < n_rows; j += TILE) {
        int count = BUTLER_MIN(n_rows - j, TILE), i = 0;
        for (int r = 0; r < TILE; r++) {
            const void *ahead = rows[BUTLER_MIN(j + r + ROWS_AHEAD, n_rows - 1)];
            for (size_t line = 0; line < row_offset(type, n); line += 64)
                prefetch(ahead, row_offset(type, first) + line);
            row_widen(type, t[r], (const uint8_t *)rows[BUTLER_MIN(j + r, n_rows - 1)] + row_offset(type, first), n);
        }
        for (; i + 4 <= n_q; i += 4)
            qk_tile(ROW_F32, s + i * s_stride + j, s_stride, q + i * q_stride, q_stride, 4, here, NULL, TILE, count, n, more);
        for (; i < n_q; i++)
            qk_tile(ROW_F32, s + i * s_stride + j, s_stride, q + i * q_stride, q_stride, 1, here, NULL, TILE, count, n, more);
    }
}

INLINE void qk_any(enum row_type type, float *s, size_t s_stride, const float *q, size_t q_stride, int n_q, const void *const *rows,
                   int n_rows, int n)
{
    for (int first = 0; first < n; first += PIECE) {
        int count = BUTLER_MIN(n - first, PIECE);
        const float *x = q + first;
        bool more = first > 0;
        if (n_q == 1)
            qk_direct(type, s, s_stride, x, q_stride, 1, VEC, rows, n_rows, first, count, more);
        else if (n_q == 2)
            qk_direct(type, s, s_stride, x, q_stride, 2, VEC / 2, rows, n_rows, first, count, more);
        else if (n_q == 3)
            qk_direct(type, s, s_stride, x, q_stride, 3, VEC / 4, rows, n_rows, first, count, more);
        else if (n_q == 4)
            qk_direct(type, s, s_stride, x, q_stride, 4, VEC / 4, rows, n_rows, first, count, more);
        else
            qk_widened(type, s, s_stride, x, q_stride, n_q, rows, n_rows, first, count, more);
    }
}

/* -------------------------------------------------------------------------------------------------- p . v */

/* Elements [i, i + n_vecs VEC) of acc_0 .. acc_(n_q - 1) over the rows; n_q and n_vecs are compile-time constants. */
INLINE void av_tile(enum row_type type, float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q, int n_vecs,
                    const void *const *rows, const void *const *ahead, int n_rows, int i)
{
    vec a[4][VEC / 2];
    for (int k = 0; k < n_q; k++)
        for (int v = 0; v < n_vecs; v++)
            a[k][v] = vec_load(acc + k * acc_stride + i + v * VEC);
    for (int j = 0; j < n_rows; j++) {
        vec x[VEC / 2];
        for (int v = 0; v < n_vecs; v += 2) {
            if (ahead)
                row_prefetch(type, ahead[j], i + v * VEC);
            if (n_vecs == 1)
                x[0] = row_load(type, rows[j], i);
            else
                row_load_step(type, x + v, rows[j], i + v * VEC);
        }
        for (int k = 0; k < n_q; k++)
            for (int v = 0; v < n_vecs; v++)
                a[k][v] = vec_fma(vec_set1(p[k * p_stride + j]), x[v], a[k][v]);
    }
    for (int k = 0; k < n_q; k++)
        for (int v = 0; v < n_vecs; v++)
            vec_store(acc + k * acc_stride + i + v * VEC, a[k][v]);
}

INLINE void av_tail(enum row_type type, float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q,
                    const void *const *rows, int n_rows, int i, int count)
{
    for (int k = 0; k < n_q; k++) {
        vec a = vec_load_some(acc + k * acc_stride + i, count);
        for (int j = 0; j < n_rows; j++)
            a = vec_fma(vec_set1(p[k * p_stride + j]), row_load_some(type, rows[j], i, count), a);
        vec_store_some(acc + k * acc_stride + i, a, count);
    }
}

/* All elements for a constant number of queries: as wide as the accumulators allow, then narrower. */
INLINE void av_columns(enum row_type type, float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q,
                       const void *const *rows, const void *const *ahead, int n_rows, int n)
{
    enum { WIDE = VEC / 2, NARROW = VEC / 4 };
    int i = 0;
    if (n_q <= 2)
        for (; i + WIDE * VEC <= n; i += WIDE * VEC)
            av_tile(type, acc, acc_stride, p, p_stride, n_q, WIDE, rows, ahead, n_rows, i);
    for (; i + NARROW * VEC <= n; i += NARROW * VEC)
        av_tile(type, acc, acc_stride, p, p_stride, n_q, NARROW, rows, ahead, n_rows, i);
    for (; i + VEC <= n; i += VEC)
        av_tile(type, acc, acc_stride, p, p_stride, n_q, 1, rows, ahead, n_rows, i);
    if (i < n)
        av_tail(type, acc, acc_stride, p, p_stride, n_q, rows, n_rows, i, n - i);
}

INLINE void av_queries(enum row_type type, float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q,
                       const void *const *rows, const void *const *ahead, int n_rows, int n)
{
    int k = 0;
    for (; k + 4 <= n_q; k += 4)
        av_columns(type, acc + k * acc_stride, acc_stride, p + k * p_stride, p_stride, 4, rows, ahead, n_rows, n);
    if (n_q - k >= 2) {
        av_columns(type, acc + k * acc_stride, acc_stride, p + k * p_stride, p_stride, 2, rows, ahead, n_rows, n);
        k += 2;
    }
    if (n_q - k == 1)
        av_columns(type, acc + k * acc_stride, acc_stride, p + k * p_stride, p_stride, 1, rows, ahead, n_rows, n);
}

/* A chunk of rows passes through all columns while the next is fetched; the sums rest in memory between chunks. */
INLINE void av_any(enum row_type type, float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q,
                   const void *const *rows, int n_rows, int n)
{
    float t[ROWS_AHEAD][PIECE];
    for (int j = 0; j < n_rows; j += ROWS_AHEAD) {
        const void *here[ROWS_AHEAD], *ahead[ROWS_AHEAD];
        int count = BUTLER_MIN(n_rows - j, ROWS_AHEAD);
        for (int first = 0; first < n; first += PIECE) {
            int length = BUTLER_MIN(n - first, PIECE);
            for (int r = 0; r < count; r++) {
                here[r] = (const uint8_t *)rows[j + r] + row_offset(type, first);
                ahead[r] = (const uint8_t *)rows[BUTLER_MIN(j + r + ROWS_AHEAD, n_rows - 1)] + row_offset(type, first);
            }
            if (n_q <= 4) {
                av_queries(type, acc + first, acc_stride, p + j, p_stride, n_q, here, ahead, count, length);
                continue;
            }
            for (int r = 0; r < count; r++) {
                for (size_t line = 0; line < row_offset(type, length); line += 64)
                    prefetch(ahead[r], line);
                row_widen(type, t[r], here[r], length);
                here[r] = t[r];
            }
            av_queries(ROW_F32, acc + first, acc_stride, p + j, p_stride, n_q, here, NULL, count, length);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- storing */

static void store_f16(void *row, const float *x, int n)
{
    uint8_t *p = row;
    int i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store_half(p + i * 2, vec_load(x + i));
    if (i < n)
        vec_store_half_some(p + i * 2, vec_load_some(x + i, n - i), n - i);
}

/* Bit for bit what the definition stores. */
static void store_q8_0(void *row, const float *x, int n)
{
    uint8_t *b = row;
    for (; n > 0; n -= BLOCK, x += BLOCK, b += Q8_0_BYTES) {
        vec extreme = vec_zero();
        for (int k = 0; k < V32; k++)
            extreme = vec_max(vec_abs(vec_load(x + k * VEC)), extreme);
        float d = vec_max_all(extreme) / 127, inverse = d != 0 ? 1 / d : 0;
        store_half(b, d);
        for (int k = 0; k < V32; k++) {
            vec q = vec_round_away(vec_mul(vec_load(x + k * VEC), vec_set1(inverse)));
            vec_store_i8(b + Q8_0_QUANTS + k * VEC, vec_min(vec_max(q, vec_set1(-127)), vec_set1(127)));
        }
    }
}

/* ----------------------------------------------------------------------------------------------- entries */

#define CACHE_TYPE(name, type)                                                                                                     \
    static void qk_##name(float *s, size_t s_stride, const float *q, size_t q_stride, int n_q, const void *const *rows,            \
                          int n_rows, int n)                                                                                       \
    {                                                                                                                              \
        qk_any(type, s, s_stride, q, q_stride, n_q, rows, n_rows, n);                                                              \
    }                                                                                                                              \
    static void av_##name(float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q, const void *const *rows,        \
                          int n_rows, int n)                                                                                       \
    {                                                                                                                              \
        av_any(type, acc, acc_stride, p, p_stride, n_q, rows, n_rows, n);                                                          \
    }

CACHE_TYPE(f32, ROW_F32)
CACHE_TYPE(f16, ROW_F16)
CACHE_TYPE(q8_0, ROW_Q8_0)

INLINE void fill_cache(struct butler_kernels *table)
{
#define ENTRY(TYPE, name) table->qk[BUTLER_KV_##TYPE] = qk_##name, table->av[BUTLER_KV_##TYPE] = av_##name
    ENTRY(F32, f32);
    ENTRY(F16, f16);
    ENTRY(Q8_0, q8_0);
#undef ENTRY
    table->store_row[BUTLER_KV_F16] = store_f16;
    table->store_row[BUTLER_KV_Q8_0] = store_q8_0;
    table->load_row[BUTLER_KV_F16] = table->dequant[BUTLER_F16];
    table->load_row[BUTLER_KV_Q8_0] = table->dequant[BUTLER_Q8_0];
}

#endif
