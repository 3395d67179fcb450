/* What the table has for cache rows, from the loops of simd_cache.h: storing and products. Included by each ISA file after it. */
#ifndef BUTLER_SIMD_ROWS_H
#define BUTLER_SIMD_ROWS_H

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
        vec extreme = vec_zero(), zeros = vec_zero(); /* zeros: 0 times every number, NaN if one is not finite */
        for (int k = 0; k < V32; k++) {
            extreme = vec_max(vec_abs(vec_load(x + k * VEC)), extreme);
            zeros = vec_fma(vec_load(x + k * VEC), vec_zero(), zeros);
        }
        if (vec_sum(zeros) != 0) {
            store_q8_0_not_finite(b);
            continue;
        }
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
        qk_any(type, (struct butler_results){s, s_stride}, (struct butler_vectors){q, q_stride, n_q},                              \
               tile_rows(rows, n_rows, 0, 0), n);                                                                                  \
    }                                                                                                                              \
    static void av_##name(float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q, const void *const *rows,        \
                          int n_rows, int n)                                                                                       \
    {                                                                                                                              \
        av_any(type, (struct butler_results){acc, acc_stride}, (struct butler_row_weights){p, p_stride, 0, n_q},                   \
               tile_rows(rows, n_rows, 0, 0), n);                                                                                  \
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
