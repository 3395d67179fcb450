/* What metrics scan in every step, written once for every vector width: included by each ISA file after its vec*.h. Records
 * are read once for all query heads of a group. */
#ifndef BUTLER_SIMD_METRICS_H
#define BUTLER_SIMD_METRICS_H

/* ------------------------------------------------------------------------------------------- page bounds */

/* max[n] of a record and min[n] at element i. */
INLINE void bounds_load(vec *high, vec *low, const uint8_t *record, int i, int count, int n)
{
    const uint8_t *h = record + (size_t)i * 2, *l = h + (size_t)n * 2;
    *high = count == VEC ? vec_load_half(h) : vec_load_half_some(h, count);
    *low = count == VEC ? vec_load_half(l) : vec_load_half_some(l, count);
}

/* n_q and n_records are compile-time constants with n_q n_records <= VEC; the first n_stored records are stored, those beyond
 * repeat one that exists. due: as many records to fetch meanwhile, or NULL. */
INLINE void bounds_tile(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *const *records,
                        const uint8_t *const *due, int n_records, int n_stored, int n)
{
    vec acc[VEC];
    _Alignas(64) float sums[VEC];
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    for (int i = 0; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        vec x[4];
        UNROLL
        for (int a = 0; a < n_q; a++)
            x[a] = vec_load_some(q + (size_t)a * n + i, count);
        UNROLL
        for (int r = 0; r < n_records; r++) {
            vec high, low;
            if (due)
                prefetch_second(due[r] + (size_t)i * 4);
            bounds_load(&high, &low, records[r], i, count, n);
            UNROLL
            for (int a = 0; a < n_q; a++)
                acc[a * n_records + r] = vec_fma(x[a], vec_pick(x[a], high, low), acc[a * n_records + r]);
        }
    }
    vec_store(sums, vec_sum_each(acc));
    for (int a = 0; a < n_q; a++)
        for (int r = 0; r < n_stored; r++)
            s[a * s_stride + r] = sums[a * n_records + r];
}

/* Records fetched together. */
#define FETCH_RECORDS 32

/* A tile of records meets all queries, four at a time, before the next: it comes from memory once. `group` is the number of
 * queries that go together, tile the number of records, both compile-time constants. */
INLINE void bounds_scan(float *s, size_t s_stride, const float *q, int n_q, int group, int tile, const uint8_t *p,
                        size_t record_bytes, int n_records, int n)
{
    for (int j = 0; j < n_records; j += tile) {
        const uint8_t *records[VEC], *due[VEC];
        const int stored = BUTLER_MIN(n_records - j, tile);
        int a = 0;
        for (int r = 0; r < tile; r++) {
            const int at = BUTLER_MIN(j + r, n_records - 1);
            records[r] = p + (size_t)at * record_bytes;
            due[r] = p + (size_t)due_index(at, n_records, FETCH_RECORDS) * record_bytes;
        }
        bounds_tile(s + j, s_stride, q, group, records, due, tile, stored, n);
        for (a = group; a + group <= n_q; a += group)
            bounds_tile(s + a * s_stride + j, s_stride, q + (size_t)a * n, group, records, NULL, tile, stored, n);
        for (; a < n_q; a++)
            bounds_tile(s + a * s_stride + j, s_stride, q + (size_t)a * n, 1, records, NULL, tile, stored, n);
    }
}

static void page_bounds(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                        int n)
{
    if (n_q >= 4)
        bounds_scan(s, s_stride, q, n_q, 4, VEC / 4, records, record_bytes, n_records, n);
    else if (n_q >= 2)
        bounds_scan(s, s_stride, q, n_q, 2, VEC / 2, records, record_bytes, n_records, n);
    else
        bounds_scan(s, s_stride, q, n_q, 1, VEC / 2, records, record_bytes, n_records, n);
}

static void page_bounds_max(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                            int n_records, int n)
{
    for (int j = 0; j < n_records; j++) {
        const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes;
        for (int a = 0; a < n_q; a++) {
            vec most = vec_set1(-INFINITY);
            for (int i = 0; i < n; i += VEC) {
                int count = BUTLER_MIN(n - i, VEC);
                vec high, low, x = vec_load_some(q + (size_t)a * n + i, count);
                bounds_load(&high, &low, record, i, count, n);
                most = vec_keep(vec_max(most, vec_mul(x, vec_pick(x, high, low))), most, count);
            }
            s[a * s_stride + j] = vec_max_all(most);
        }
    }
}

INLINE void fill_metrics(struct butler_kernels *table)
{
    table->page_bounds = page_bounds;
    table->page_bounds_max = page_bounds_max;
}

#endif
