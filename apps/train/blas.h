/* Matrix products for training, by the system's BLAS. It is loaded when training begins: no other command needs it. */
#ifndef BUTLER_BLAS_H
#define BUTLER_BLAS_H

#include "base/util.h"

struct butler_blas;

/* NULL if there is no BLAS; the error names the package to install. The BLAS is set to one thread: each text is one thread's
 * work, and sums must not depend on the number of threads. */
struct butler_blas *butler_blas_load(struct butler_error *err);
/* BUTLER_ERROR_MEMORY if n_threads threads could not get their buffers now: without memory for them OpenBLAS tries for ever. To be
 * called before a thread's first product. */
int butler_blas_check_room(int n_threads, struct butler_error *err);
void butler_blas_free(struct butler_blas *blas);

/* A product of row-major matrices, each with its row stride in floats; c += with add. */
struct butler_gemm {
    int m, n, k;
    float alpha;
    const float *a;
    int lda;
    const float *b;
    int ldb;
    bool add;
    float *c;
    int ldc;
};

/* The three products of a layer y = x W^T.
 *   nt: c[m][n] (+)= alpha a[m][k] b[n][k]^T     forward
 *   nn: c[m][n] (+)= alpha a[m][k] b[k][n]       gradient of x
 *   tn: c[m][n] (+)= alpha a[k][m]^T b[k][n]     gradient of W */
void butler_blas_nt(const struct butler_blas *blas, const struct butler_gemm *product);
void butler_blas_nn(const struct butler_blas *blas, const struct butler_gemm *product);
void butler_blas_tn(const struct butler_blas *blas, const struct butler_gemm *product);

#endif
