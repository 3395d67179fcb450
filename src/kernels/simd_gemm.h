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

/* Where products are stored: y[token * stride + row], or with `more` added to what lies there. sums: scratch that outlives a tile,
 * because gcc 12 below -O3 gives an array of its own to something else too soon. */
struct gemm_out {
    float *sums; /* [GEMM_SUMS] */
    float *y;
    size_t stride;
    bool more;
};

/* y (+)= w x over n elements of k for x.n tokens, a compile-time constant. Rows beyond n_stored repeat one that exists. next: where
 * the tokens to come begin, or NULL. */
INLINE void gemm_tile(struct gemm_out out, const float *const w[GEMM_ROWS], struct butler_vectors x, const float *next,
                      int n_stored, int n)
{
    float *sums = out.sums, *y = out.y;
    const int n_tokens = x.n;
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
            vec u = vec_load(x.at + t * x.stride + i);
            if (next)
                prefetch_second(next + t * x.stride + i);
            UNROLL
            for (int r = 0; r < GEMM_ROWS; r++)
                acc[t * GEMM_ROWS + r] = vec_fma(v[r], u, acc[t * GEMM_ROWS + r]);
        }
    }
    if (i < n) {
        UNROLL
        for (int t = 0; t < n_tokens; t++) {
            vec u = vec_load_some(x.at + t * x.stride + i, n - i);
            UNROLL
            for (int r = 0; r < GEMM_ROWS; r++)
                acc[t * GEMM_ROWS + r] = vec_fma(vec_load_some(w[r] + i, n - i), u, acc[t * GEMM_ROWS + r]);
        }
    }
    UNROLL
    for (int a = 0; a < n_tokens * GEMM_ROWS; a += VEC)
        vec_store(sums + a, vec_sum_each(acc + a));
    if (n_stored == GEMM_ROWS && !out.more) {
        UNROLL
        for (int t = 0; t < n_tokens; t++)
            memcpy(y + t * out.stride, sums + t * GEMM_ROWS, GEMM_ROWS * sizeof *y);
        return;
    }
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < n_stored; r++)
            y[t * out.stride + r] = out.more ? y[t * out.stride + r] + sums[t * GEMM_ROWS + r] : sums[t * GEMM_ROWS + r];
}

/* One chunk of k: a tile of tokens meets all rows of w while it is in the first-level cache. Rows that are missing in the last
 * group repeat one that exists. x.n is a compile-time constant; next: where the tokens to come begin, or NULL. */
INLINE void gemm_tokens(struct gemm_out out, struct butler_vectors w, struct butler_vectors x, const float *next, int n)
{
    for (int r = 0; r < w.n; r += GEMM_ROWS) {
        const float *rows[GEMM_ROWS];
        const struct gemm_out here = {out.sums, out.y + r, out.stride, out.more};
        for (int k = 0; k < GEMM_ROWS; k++)
            rows[k] = w.at + (size_t)BUTLER_MIN(r + k, w.n - 1) * w.stride;
        gemm_tile(here, rows, x, r == 0 ? next : NULL, BUTLER_MIN(w.n - r, GEMM_ROWS), n);
    }
}

static void gemm(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n)
{
    _Alignas(64) float sums[GEMM_SUMS];
    for (int first = 0; first < n; first += GEMM_CHUNK) {
        const int n_k = BUTLER_MIN(n - first, GEMM_CHUNK);
        const struct butler_vectors rows = {w + first, (size_t)n, n_rows};
        int t = 0;
#define GEMM_TOKENS_OF(count, next)                                                                                                \
    gemm_tokens((struct gemm_out){sums, y + t * y_stride, y_stride, first > 0}, rows,                                              \
                (struct butler_vectors){x + t * x_stride + first, x_stride, count}, next, n_k)
        for (; t + GEMM_TOKENS <= n_tokens; t += GEMM_TOKENS) {
            const float *tile = x + t * x_stride + first;
            const float *next = t + 2 * GEMM_TOKENS <= n_tokens ? tile + GEMM_TOKENS * x_stride : NULL;
            GEMM_TOKENS_OF(GEMM_TOKENS, next);
        }
        for (; t + 2 <= n_tokens; t += 2)
            GEMM_TOKENS_OF(2, NULL);
        if (t < n_tokens)
            GEMM_TOKENS_OF(1, NULL);
#undef GEMM_TOKENS_OF
    }
}

#endif
