/* What metrics scan in every step, written once for every vector width: included by each ISA file after its vec*.h. Records
 * are read once for all query heads of a group. */
#ifndef BUTLER_SIMD_METRICS_H
#define BUTLER_SIMD_METRICS_H

#include "kernels/one_bit.h"
#include "kernels/simd_prefetch.h"

/* ------------------------------------------------------------------------------------------- page bounds */

/* max[n] of a record and min[n] at element i. */
INLINE void bounds_load(vec *high, vec *low, const uint8_t *record, int i, int count, int n)
{
    const uint8_t *h = record + (size_t)i * 2, *l = h + (size_t)n * 2;
    *high = count == VEC ? vec_load_half(h) : vec_load_half_some(h, count);
    *low = count == VEC ? vec_load_half(l) : vec_load_half_some(l, count);
}

/* The same of a record of one-bit keys. Beyond the ranges come bits, which a query's 0 takes out again. */
INLINE void one_bit_bounds_load(vec *high, vec *low, const uint8_t *record, int i, int count, int n)
{
    *low = count == VEC ? vec_load_half(record + (size_t)i * 2) : vec_load_half_some(record + (size_t)i * 2, count);
    *high = vec_fma(vec_load_u8(one_bit_ranges(record, n) + i), vec_set1(one_bit_unit(record, n)), *low);
}

/* Records that go together, and where their scores belong; beyond the first n_stored they repeat one that exists. */
struct bounds {
    const uint8_t *records[VEC];
    int at[VEC], n_stored;
};

/* What is prefetched meanwhile: a part of the records that follow in each half of the list, a step for each vector of channels. */
struct bounds_to_prefetch {
    struct walk walks[2];
    uintptr_t ends[2];
    size_t step;
};

/* q.n, n_records, with q.n n_records <= VEC, and one_bit are compile-time constants. to_prefetch: or NULL. */
INLINE void bounds_tile(struct butler_results s, struct butler_vectors q, const struct bounds *tile, int n_records, bool one_bit,
                        struct bounds_to_prefetch *to_prefetch, int n)
{
    const int n_q = q.n;
    vec acc[VEC];
    _Alignas(64) float sums[VEC];
    UNROLL
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    for (int i = 0; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        vec x[4];
        UNROLL
        for (int k = 0; to_prefetch && k < 2; k++) {
            to_prefetch->ends[k] += to_prefetch->step;
            walk_to(&to_prefetch->walks[k], to_prefetch->ends[k]);
        }
        UNROLL
        for (int a = 0; a < n_q; a++)
            x[a] = vec_load_some(q.at + (size_t)a * n + i, count);
        UNROLL
        for (int r = 0; r < n_records; r++) {
            vec high, low;
            (one_bit ? one_bit_bounds_load : bounds_load)(&high, &low, tile->records[r], i, count, n);
            UNROLL
            for (int a = 0; a < n_q; a++)
                acc[a * n_records + r] = vec_fma(x[a], vec_pick(x[a], high, low), acc[a * n_records + r]);
        }
    }
    vec_store(sums, vec_sum_each(acc));
    for (int a = 0; a < n_q; a++)
        for (int r = 0; r < tile->n_stored; r++)
            s.at[a * s.stride + tile->at[r]] = sums[a * n_records + r];
}

#define BOUNDS_AHEAD 2048 /* bytes */

/* A tile of records meets all queries, `group` at a time, before the next: it comes from memory once. Half of it are from the
 * list's first half and half from its second: of two streams the core keeps more lines under way than of one. group, n_tile,
 * the number of records, and one_bit are compile-time constants. Of one-bit records the bits are prefetched too: lines between
 * those that are read cost less than a stream with gaps. */
INLINE void bounds_scan(struct butler_results s, struct butler_vectors q, int group, int n_tile, bool one_bit,
                        struct butler_records records, int n)
{
    const uint8_t *p = records.at;
    const int side = n_tile / 2, half = records.n / n_tile * side;
    const uint8_t *others = p + (size_t)half * records.bytes;
    struct bounds_to_prefetch to_prefetch = {
        {walk_from(p), walk_from(others)}, {0, 0}, (size_t)side * records.bytes * VEC / (size_t)n};
    for (int j = 0; j < records.n; j += n_tile) {
        struct bounds tile = {.n_stored = BUTLER_MIN(records.n - j, n_tile)};
        int a = 0;
        for (int r = 0; r < n_tile; r++) {
            tile.at[r] = j < 2 * half ? j / 2 + r % side + r / side * half : BUTLER_MIN(j + r, records.n - 1);
            tile.records[r] = p + (size_t)tile.at[r] * records.bytes;
        }
        to_prefetch.ends[0] = (uintptr_t)tile.records[0] + BOUNDS_AHEAD;
        to_prefetch.ends[1] = (uintptr_t)tile.records[side] + BOUNDS_AHEAD;
        bounds_tile(s, butler_vectors_from(q, 0, group), &tile, n_tile, one_bit, &to_prefetch, n);
        for (a = group; a + group <= q.n; a += group)
            bounds_tile(butler_results_from(s, a), butler_vectors_from(q, a, group), &tile, n_tile, one_bit, NULL, n);
        for (; a < q.n; a++)
            bounds_tile(butler_results_from(s, a), butler_vectors_from(q, a, 1), &tile, n_tile, one_bit, NULL, n);
    }
}

INLINE void bounds_scan_all(struct butler_results s, struct butler_vectors q, bool one_bit, struct butler_records records, int n)
{
    if (q.n >= 4)
        bounds_scan(s, q, 4, VEC / 4, one_bit, records, n);
    else if (q.n >= 2)
        bounds_scan(s, q, 2, VEC / 2, one_bit, records, n);
    else
        bounds_scan(s, q, 1, VEC / 2, one_bit, records, n);
}

static void page_bounds(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                        int n)
{
    bounds_scan_all((struct butler_results){s, s_stride}, (struct butler_vectors){q, (size_t)n, n_q}, false,
                    (struct butler_records){records, record_bytes, n_records}, n);
}

static void one_bit_bounds(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                           int n_records, int n)
{
    bounds_scan_all((struct butler_results){s, s_stride}, (struct butler_vectors){q, (size_t)n, n_q}, true,
                    (struct butler_records){records, record_bytes, n_records}, n);
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
    table->one_bit_bounds = one_bit_bounds;
}

#endif
