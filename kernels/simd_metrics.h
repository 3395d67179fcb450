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
 * repeat one that exists. */
INLINE void bounds_tile(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *const *records, int n_records,
                        int n_stored, int n)
{
    vec acc[VEC];
    _Alignas(64) float sums[VEC];
    for (int a = 0; a < VEC; a++)
        acc[a] = vec_zero();
    for (int i = 0; i < n; i += VEC) {
        int count = BUTLER_MIN(n - i, VEC);
        vec x[4];
        for (int a = 0; a < n_q; a++)
            x[a] = vec_load_some(q + (size_t)a * n + i, count);
        for (int r = 0; r < n_records; r++) {
            vec high, low;
            bounds_load(&high, &low, records[r], i, count, n);
            for (int a = 0; a < n_q; a++)
                acc[a * n_records + r] = vec_fma(x[a], vec_pick(x[a], high, low), acc[a * n_records + r]);
        }
    }
    vec_store(sums, vec_sum_each(acc));
    for (int a = 0; a < n_q; a++)
        for (int r = 0; r < n_stored; r++)
            s[a * s_stride + r] = sums[a * n_records + r];
}

INLINE void bounds_queries(float *s, size_t s_stride, const float *q, int n_q, int tile, const uint8_t *p, size_t record_bytes,
                           int n_records, int n)
{
    for (int j = 0; j < n_records; j += tile) {
        const uint8_t *records[VEC];
        for (int r = 0; r < tile; r++)
            records[r] = p + (size_t)BUTLER_MIN(j + r, n_records - 1) * record_bytes;
        bounds_tile(s + j, s_stride, q, n_q, records, tile, BUTLER_MIN(n_records - j, tile), n);
    }
}

static void page_bounds(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                        int n)
{
    int i = 0;
    for (; i + 4 <= n_q; i += 4)
        bounds_queries(s + i * s_stride, s_stride, q + (size_t)i * n, 4, VEC / 4, records, record_bytes, n_records, n);
    for (; i + 2 <= n_q; i += 2)
        bounds_queries(s + i * s_stride, s_stride, q + (size_t)i * n, 2, VEC / 2, records, record_bytes, n_records, n);
    if (i < n_q)
        bounds_queries(s + i * s_stride, s_stride, q + (size_t)i * n, 1, VEC, records, record_bytes, n_records, n);
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
/* Queries that share the masks of a word: what the registers hold at two accumulators for each of the 32 tokens. */
#define ONE_BIT_QUERIES (VEC == 16 ? 4 : 1)

/* Adds a channel's step to the tokens whose bit is set in its word. */
INLINE void one_bit_add(vec acc[V32], float step, const uint8_t *word)
{
    uint32_t bits = load_u32(word);
    for (int k = 0; k < V32; k++)
        acc[k] = vec_add_masked(acc[k], vec_set1(step), vec_mask_of(bits >> (k * VEC) & ((1u << VEC) - 1)));
}

/* Every token starts from all bits clear, sum of q (zero - scale), and a set bit adds 2 q scale. Even and odd channels go to
 * accumulators of their own, or each addition would wait for the one before. n_q is a compile-time constant. */
INLINE void one_bit_tile(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *record, int n)
{
    float steps[ONE_BIT_QUERIES][CHANNELS];
    vec clear[ONE_BIT_QUERIES], acc[ONE_BIT_QUERIES][2][V32];
    for (int a = 0; a < n_q; a++) {
        clear[a] = vec_zero();
        for (int k = 0; k < V32; k++)
            acc[a][0][k] = acc[a][1][k] = vec_zero();
    }
    for (int first = 0; first < n; first += CHANNELS) {
        int length = BUTLER_MIN(n - first, CHANNELS);
        for (int i = 0; i < length; i += VEC) {
            int count = BUTLER_MIN(length - i, VEC);
            vec scale, zero;
            bounds_load(&scale, &zero, record, first + i, count, n);
            for (int a = 0; a < n_q; a++) {
                vec x = vec_load_some(q + (size_t)a * n + first + i, count);
                clear[a] = vec_fma(x, vec_sub(zero, scale), clear[a]);
                vec_store(steps[a] + i, vec_mul(vec_add(x, x), scale));
            }
        }
        const uint8_t *words = record + (size_t)n * 4 + (size_t)first * 4;
        int d = 0;
        for (; d + 2 <= length; d += 2) {
            for (int a = 0; a < n_q; a++)
                one_bit_add(acc[a][0], steps[a][d], words + (size_t)d * 4);
            for (int a = 0; a < n_q; a++)
                one_bit_add(acc[a][1], steps[a][d + 1], words + (size_t)d * 4 + 4);
        }
        if (d < length)
            for (int a = 0; a < n_q; a++)
                one_bit_add(acc[a][0], steps[a][d], words + (size_t)d * 4);
    }
    for (int a = 0; a < n_q; a++)
        for (int k = 0; k < V32; k++)
            vec_store(s + a * s_stride + k * VEC, vec_add(vec_set1(vec_sum(clear[a])), vec_add(acc[a][0][k], acc[a][1][k])));
}

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    for (int j = 0; j < n_records; j++) {
        const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes;
        float *out = s + (size_t)j * 32;
        int i = 0;
        for (; i + ONE_BIT_QUERIES <= n_q; i += ONE_BIT_QUERIES)
            one_bit_tile(out + i * s_stride, s_stride, q + (size_t)i * n, ONE_BIT_QUERIES, record, n);
        for (; i < n_q; i++)
            one_bit_tile(out + i * s_stride, s_stride, q + (size_t)i * n, 1, record, n);
    }
}

INLINE void fill_metrics(struct butler_kernels *table)
{
    table->page_bounds = page_bounds;
    table->page_bounds_max = page_bounds_max;
    table->one_bit = one_bit;
}

#endif
