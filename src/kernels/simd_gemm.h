/* Dense products of a prompt's tokens with widened weights, written once for every vector width: included by each ISA file
 * after its vec*.h. Rows of both operands run along k, so a tile of rows x tokens needs no transposition: an accumulator per
 * pair, and one sum over lanes at the end of a chunk of k. A chunk of a few tokens stays in the first-level cache while
 * all rows pass by, and the next tokens are on their way. Each pair is summed in the same order whatever tile it falls into. */
#ifndef BUTLER_SIMD_GEMM_H
#define BUTLER_SIMD_GEMM_H

/* A tile: as many accumulators as leave registers for a row each and a token. */
#define GEMM_ROWS (VEC == 16 ? 4 : 3)
#define GEMM_TOKENS (VEC == 16 ? 6 : 4)
#define GEMM_CHUNK 1024
/* Accumulators, rounded up to whole vectors of sums. */
#define GEMM_SUMS ((GEMM_ROWS * GEMM_TOKENS + VEC - 1) / VEC * VEC)

/* y (+)= w x over n elements of k; n_tokens is a compile-time constant. Rows beyond n_stored repeat one that exists. sums:
 * scratch that outlives the tile, because gcc 12 below -O3 gives an array of its own to something else too soon. */
INLINE void gemm_tile(float sums[GEMM_SUMS], float *y, size_t y_stride, const float *const w[GEMM_ROWS], const float *x,
                      size_t x_stride, int n_tokens, const float *next, int n_stored, int n, bool more)
{
    vec acc[GEMM_SUMS];
    UNROLL
    for (int a = 0; a < GEMM_SUMS; a++)
        acc[a] = vec_zero();
    int i = 0;
    for (; i + VEC <= n; i += VEC) {
        vec v[GEMM_ROWS];
        UNROLL
        for (int r = 0; r < GEMM_ROWS; r++)
            v[r] = vec_load(w[r] + i);
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            vec u = vec_load(x + t * x_stride + i);
            if (next)
                prefetch_second(next + t * x_stride + i);
            UNROLL
            for (int r = 0; r < GEMM_ROWS; r++)
                acc[t * GEMM_ROWS + r] = vec_fma(v[r], u, acc[t * GEMM_ROWS + r]);
        }
    }
    if (i < n) {
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            vec u = vec_load_some(x + t * x_stride + i, n - i);
            UNROLL
            for (int r = 0; r < GEMM_ROWS; r++)
                acc[t * GEMM_ROWS + r] = vec_fma(vec_load_some(w[r] + i, n - i), u, acc[t * GEMM_ROWS + r]);
        }
    }
    UNROLL
    for (int a = 0; a < n_tokens * GEMM_ROWS; a += VEC)
        vec_store(sums + a, vec_sum_each(acc + a));
    if (n_stored == GEMM_ROWS && !more) {
        UNROLL
        for (int t = 0; t < n_tokens; t++)
            memcpy(y + t * y_stride, sums + t * GEMM_ROWS, GEMM_ROWS * sizeof *y);
        return;
    }
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < n_stored; r++)
            y[t * y_stride + r] = more ? y[t * y_stride + r] + sums[t * GEMM_ROWS + r] : sums[t * GEMM_ROWS + r];
}

/* One chunk of k: a tile of tokens meets all rows while it is in the first-level cache. Rows that are missing in the last
 * group repeat one that exists. n_tokens is a compile-time constant; next: where the tokens to come begin, or NULL. */
INLINE void gemm_tokens(float sums[GEMM_SUMS], float *y, size_t y_stride, const float *w, size_t w_stride, int n_rows,
                        const float *x, size_t x_stride, int n_tokens, const float *next, int n, bool more)
{
    for (int r = 0; r < n_rows; r += GEMM_ROWS) {
        const float *rows[GEMM_ROWS];
        for (int k = 0; k < GEMM_ROWS; k++)
            rows[k] = w + (size_t)BUTLER_MIN(r + k, n_rows - 1) * w_stride;
        gemm_tile(sums, y + r, y_stride, rows, x, x_stride, n_tokens, r == 0 ? next : NULL, BUTLER_MIN(n_rows - r, GEMM_ROWS), n,
                  more);
    }
}

static void gemm(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n)
{
    _Alignas(64) float sums[GEMM_SUMS];
    for (int first = 0; first < n; first += GEMM_CHUNK) {
        const int count = BUTLER_MIN(n - first, GEMM_CHUNK);
        const bool more = first > 0;
        int t = 0;
        for (; t + GEMM_TOKENS <= n_tokens; t += GEMM_TOKENS) {
            const float *tile = x + t * x_stride + first;
            const float *next = t + 2 * GEMM_TOKENS <= n_tokens ? tile + GEMM_TOKENS * x_stride : NULL;
            gemm_tokens(sums, y + t * y_stride, y_stride, w + first, (size_t)n, n_rows, tile, x_stride, GEMM_TOKENS, next, count,
                        more);
        }
        for (; t + 2 <= n_tokens; t += 2)
            gemm_tokens(sums, y + t * y_stride, y_stride, w + first, (size_t)n, n_rows, x + t * x_stride + first, x_stride, 2, NULL,
                        count, more);
        if (t < n_tokens)
            gemm_tokens(sums, y + t * y_stride, y_stride, w + first, (size_t)n, n_rows, x + t * x_stride + first, x_stride, 1, NULL,
                        count, more);
    }
}

#endif
