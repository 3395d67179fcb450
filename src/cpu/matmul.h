/* Products of activations with weight matrices on the CPU: the backend's matmul. */
#ifndef BUTLER_MATMUL_H
#define BUTLER_MATMUL_H

#include "engine/backend.h"
#include "kernels/kernels.h"

enum {
    BUTLER_PACKED_TOKENS = 512, /* that are packed at a time */
};

/* What these kernels make of n tokens of n_cols numbers before they meet weights, and floats of scratch that a task has for its
 * rows of weights. */
size_t butler_matmul_packed_bytes(const struct butler_kernels *kernels, int n, int n_cols);
size_t butler_matmul_panel_floats(const struct butler_kernels *kernels, int n_cols);

/* Operation of backend.h. */
void butler_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n, bool decode);

#endif
