/* Dense products of a prompt's tokens with widened weights, written once for every vector width: included by each ISA file
 * after its vec*.h. Rows of both operands run along k, so a tile of rows x tokens needs no transposition: an accumulator per
 * pair, and one sum over lanes at the end of a chunk of k. A chunk of the tile's rows stays in the first-level cache while
 * all tokens pass by. Each pair is summed in the same order whatever tile it falls into. */
#ifndef BUTLER_SIMD_GEMM_H
#define BUTLER_SIMD_GEMM_H

#ifndef GEMM_ROWS
#define GEMM_ROWS 4
#define GEMM_TOKENS (VEC == 16 ? 6 : 2)
#endif
#define GEMM_CHUNK 1024
/* Accumulators, rounded up to whole vectors of sums. */
#define GEMM_SUMS ((GEMM_ROWS * GEMM_TOKENS + VEC - 1) / VEC * VEC)

/* y (+)= w x over n elements of k; n_tokens is a compile-time constant. Rows beyond n_stored repeat one that exists. */
INLINE void gemm_tile(float *y, size_t y_stride, const float *const w[GEMM_ROWS], const float *x, size_t x_stride, int n_tokens,
                      int n_stored, int n, bool more)
{
    vec acc[GEMM_SUMS];
    float sums[GEMM_SUMS];
    for (int a = 0; a < GEMM_SUMS; a++)
        acc[a] = vec_zero();
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec v[GEMM_ROWS];
        for (int r = 0; r < GEMM_ROWS; r++)
            v[r] = vec_load(w[r] + i);
        for (int t = 0; t < n_tokens; t++) {
            vec u = vec_load(x + t * x_stride + i);
            for (int r = 0; r < GEMM_ROWS; r++)
                acc[t * GEMM_ROWS + r] = vec_fma(v[r], u, acc[t * GEMM_ROWS + r]);
        }
    }
    if (i < n) {
        for (int t = 0; t < n_tokens; t++) {
            vec u = vec_load_some(x + t * x_stride + i, n - i);
            for (int r = 0; r < GEMM_ROWS; r++)
                acc[t * GEMM_ROWS + r] = vec_fma(vec_load_some(w[r] + i, n - i), u, acc[t * GEMM_ROWS + r]);
        }
    }
    for (int a = 0; a < n_tokens * GEMM_ROWS; a += VEC)
        vec_store(sums + a, vec_sum_each(acc + a));
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < n_stored; r++)
            y[t * y_stride + r] = more ? y[t * y_stride + r] + sums[t * GEMM_ROWS + r] : sums[t * GEMM_ROWS + r];
}

static void gemm(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n)
{
    for (int first = 0; first < n; first += GEMM_CHUNK) {
        int count = BUTLER_MIN(n - first, GEMM_CHUNK);
        for (int r = 0; r < n_rows; r += GEMM_ROWS) {
            const float *rows[GEMM_ROWS];
            int stored = BUTLER_MIN(n_rows - r, GEMM_ROWS), t = 0;
            for (int k = 0; k < GEMM_ROWS; k++)
                rows[k] = w + (size_t)BUTLER_MIN(r + k, n_rows - 1) * (size_t)n + first;
            for (; t + GEMM_TOKENS <= n_tokens; t += GEMM_TOKENS)
                gemm_tile(y + t * y_stride + r, y_stride, rows, x + t * x_stride + first, x_stride, GEMM_TOKENS, stored, count,
                          first > 0);
            for (; t + 2 <= n_tokens; t += 2)
                gemm_tile(y + t * y_stride + r, y_stride, rows, x + t * x_stride + first, x_stride, 2, stored, count, first > 0);
            if (t < n_tokens)
                gemm_tile(y + t * y_stride + r, y_stride, rows, x + t * x_stride + first, x_stride, 1, stored, count, first > 0);
        }
    }
}

#endif
