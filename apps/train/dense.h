/* The layers of predictors, forward and backward, over a text of n tokens. Gradients of parameters are accumulated; gradients of
 * inputs are written. All matrices are row-major and contiguous unless they have a stride. */
#ifndef BUTLER_DENSE_H
#define BUTLER_DENSE_H

#include "blas.h"
#include "butler_tools.h"

/* Of a layer y = f(x): dy is given, dw and dbias are added to, dx is written, or with add added to. What is NULL is not computed.
 */
struct butler_gradients {
    const float *dy;
    float *dw, *dbias, *dx;
    bool add;
};

/* y[n][n_out] = x[n][n_in] w[n_out][n_in]^T */
void butler_linear(const struct butler_blas *blas, int n, int n_in, int n_out, const float *x, const float *w, float *y);
/* dw += dy^T x; dx (+)= dy w. */
void butler_linear_back(const struct butler_blas *blas, int n, int n_in, int n_out, const float *x, const float *w,
                        const struct butler_gradients *d);

/* y = (x - mean) / sqrt(variance + eps) * weight + bias, each of n rows of dim; bias may be NULL. */
void butler_norm_rows(int n, int dim, const float *x, const float *weight, const float *bias, float eps, float *y);
/* dx, which is written, may be dy. dbias is NULL where bias was. */
void butler_norm_rows_back(int n, int dim, const float *x, const float *weight, float eps, const struct butler_gradients *d);

/* y = x sigmoid(x); dx = dy times the derivative at x (dx may be dy). */
void butler_silu(size_t n, const float *x, float *y);
void butler_silu_back(size_t n, const float *x, const float *dy, float *dx);
/* GELU by its tanh approximation. */
void butler_gelu(size_t n, const float *x, float *y);
void butler_gelu_back(size_t n, const float *x, const float *dy, float *dx);

/* Rotates the pairs (i, i + dim / 2) of every head of x[n][n_heads * dim] by cos, sin [n][dim / 2]; back: by the opposite angle,
 * which is the gradient of the rotation. */
void butler_rotate_heads(int n, int n_heads, int dim, const float *cosines, const float *sines, bool back, float *x);

/* Causal self-attention of n_heads heads of size dim over a sliding window of `window` tokens. */
struct butler_self_attention {
    int n, n_heads, dim, window;
    const float *q, *k, *v; /* [n][n_heads * dim] */
    float *panels;          /* scratch, 2 * BUTLER_LOSS_ROWS * n floats */
};

/* out, and its gradient dout: as q. */
void butler_self_attention(const struct butler_blas *blas, const struct butler_vector_loops *loops,
                           const struct butler_self_attention *attention, float *out);
/* dq, dk, dv are written. */
void butler_self_attention_back(const struct butler_blas *blas, const struct butler_vector_loops *loops,
                                const struct butler_self_attention *attention, const float *dout, float *dq, float *dk, float *dv);

#endif
