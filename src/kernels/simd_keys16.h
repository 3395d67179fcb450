/* Predicted keys of 16 bits, written once for every vector width: included behind simd_keys.h by the files that take them from
 * here. */
#ifndef BUTLER_SIMD_KEYS16_H
#define BUTLER_SIMD_KEYS16_H

/* n_q is a compile-time constant. */
INLINE void keys16_queries(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *records, size_t record_bytes,
                           int n_records, int n)
{
    for (int r = 0; r < n_records; r++, records += record_bytes) {
        vec acc[4][V16];
        for (size_t line = 0; line < (size_t)(TOKENS * n * 2); line += 64)
            prefetch(records, AHEAD + line);
        for (int a = 0; a < n_q; a++)
            for (int p = 0; p < V16; p++)
                acc[a][p] = vec_zero();
        for (int d = 0; d < n; d++)
            for (int p = 0; p < V16; p++) {
                const vec k = vec_load_half(records + ((size_t)d * TOKENS + (size_t)(p * VEC)) * sizeof(uint16_t));
                for (int a = 0; a < n_q; a++)
                    acc[a][p] = vec_fma(vec_set1(q[(size_t)a * (size_t)n + (size_t)d]), k, acc[a][p]);
            }
        for (int a = 0; a < n_q; a++)
            for (int p = 0; p < V16; p++)
                vec_store(s + (size_t)a * s_stride + (size_t)(r * TOKENS + p * VEC), acc[a][p]);
    }
}

static void keys16(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                   int n)
{
    BY_QUERIES(n_q, keys16_queries(s + (size_t)at * s_stride, s_stride, q + (size_t)at * (size_t)n, count, records, record_bytes,
                                   n_records, n));
}

#endif
