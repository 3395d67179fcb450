/* Products of activations with weight matrices on the CPU: the backend's matmul. */
#ifndef BUTLER_MATMUL_H
#define BUTLER_MATMUL_H

#include "engine/backend.h"
#include "kernels/kernels.h"

enum {
    BUTLER_PACKED_TOKENS = 512, /* that are packed at a time */
};

/* Bytes for n tokens of n_cols numbers in 16-bit integers, and floats of scratch that a task has for rows that it widens. */
size_t butler_matmul_packed_bytes(int n, int n_cols);
size_t butler_matmul_panel_floats(int n_cols);

/* Operation of backend.h. */
void butler_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n);

#endif
