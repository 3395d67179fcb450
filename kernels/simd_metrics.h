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

/* ------------------------------------------------------------------------------------------ one-bit keys */

/* Channels at a time whose steps are prepared. */
#define CHANNELS 256
/* Queries that share the masks of a word, and accumulators for each of the 32 tokens: as many as there are registers, and
 * enough for an addition not to wait for the one before. */
#define ONE_BIT_QUERIES (VEC == 16 ? 4 : 2)
#define ONE_BIT_CHAINS (VEC == 16 ? 2 : 1)

/* Adds a channel's step for each query to the tokens whose bit is set in the channel's word. */
INLINE void one_bit_add(vec (*acc)[V32], const float *steps, int n_q, const uint8_t *word)
{
    UNROLL
    for (int k = 0; k < V32; k++) {
        vec_mask mask = vec_load_mask(word + k * VEC / 8);
        UNROLL
        for (int a = 0; a < n_q; a++)
            acc[a][k] = vec_add_masked(acc[a][k], vec_set1(steps[a * CHANNELS]), mask);
    }
}

/* Every token starts from all bits clear, sum of q (zero - scale), and a set bit adds 2 q scale. n_q is a compile-time constant.
 * due: a record to fetch meanwhile, a line each eight channels. */
INLINE void one_bit_tile(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *record, const uint8_t *due, int n)
{
    _Alignas(64) float steps[ONE_BIT_QUERIES * CHANNELS];
    vec clear[ONE_BIT_QUERIES], even[ONE_BIT_QUERIES][V32], odd[ONE_BIT_QUERIES][V32];
    UNROLL
    for (int a = 0; a < n_q; a++) {
        clear[a] = vec_zero();
        UNROLL
        for (int k = 0; k < V32; k++)
            even[a][k] = odd[a][k] = vec_zero();
    }
    for (int first = 0; first < n; first += CHANNELS) {
        const int length = BUTLER_MIN(n - first, CHANNELS);
        for (int i = 0; i < length; i += VEC) {
            const int count = BUTLER_MIN(length - i, VEC);
            vec scale, zero;
            bounds_load(&scale, &zero, record, first + i, count, n);
            UNROLL
            for (int a = 0; a < n_q; a++) {
                vec x = vec_load_some(q + (size_t)a * n + first + i, count);
                clear[a] = vec_fma(x, vec_sub(zero, scale), clear[a]);
                vec_store(steps + a * CHANNELS + i, vec_mul(vec_add(x, x), scale));
            }
        }
        const uint8_t *words = record + (size_t)n * 4 + (size_t)first * 4;
        for (int d = 0; d < length; d += 2) {
            if (due && d % 8 == 0)
                prefetch_second(due + (size_t)(first + d) * 8);
            one_bit_add(even, steps + d, n_q, words + (size_t)d * 4);
            if (d + 1 < length)
                one_bit_add(ONE_BIT_CHAINS == 2 ? odd : even, steps + d + 1, n_q, words + (size_t)d * 4 + 4);
        }
    }
    UNROLL
    for (int a = 0; a < n_q; a++)
        for (int k = 0; k < V32; k++)
            vec_store(s + a * s_stride + k * VEC, vec_add(vec_set1(vec_sum(clear[a])), vec_add(even[a][k], odd[a][k])));
}

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    const uint8_t *p = records;
    for (int j = 0; j < n_records; j++) {
        const uint8_t *record = p + (size_t)j * record_bytes;
        const uint8_t *due = p + (size_t)due_index(j, n_records, FETCH_RECORDS) * record_bytes;
        float *out = s + (size_t)j * 32;
        int i = 0;
        for (; i + ONE_BIT_QUERIES <= n_q; i += ONE_BIT_QUERIES)
            one_bit_tile(out + i * s_stride, s_stride, q + (size_t)i * n, ONE_BIT_QUERIES, record, i ? NULL : due, n);
        for (; i + 2 <= n_q && ONE_BIT_QUERIES > 2; i += 2)
            one_bit_tile(out + i * s_stride, s_stride, q + (size_t)i * n, 2, record, i ? NULL : due, n);
        for (; i < n_q; i++)
            one_bit_tile(out + i * s_stride, s_stride, q + (size_t)i * n, 1, record, i ? NULL : due, n);
    }
}

INLINE void fill_metrics(struct butler_kernels *table)
{
    table->page_bounds = page_bounds;
    table->page_bounds_max = page_bounds_max;
    table->one_bit = one_bit;
}

#endif
