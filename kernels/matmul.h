/* Products of activations with weight matrices on the CPU: the backend's matmul. */
#ifndef BUTLER_MATMUL_H
#define BUTLER_MATMUL_H

#include "backend.h"

enum {
    BUTLER_PANEL_FLOATS = 172 << 10, /* floats of scratch a task has */
    BUTLER_PACKED_TOKENS = 512,      /* tokens that are packed at a time */
};

/* What n tokens of n_cols numbers take as the left operand of the matrix unit. */
size_t butler_matmul_packed_bytes(int n, int n_cols);

/* What they take in fixed point where there is none, and the fewest rows that a task turns for them. */
size_t butler_matmul_fixed_bytes(int n, int n_cols);
size_t butler_matmul_turned_bytes(int n_cols);

/* x[n][n_cols] with up to BUTLER_MOST_PRODUCTS matrices. apart: each row has the bits that it would have alone. */
void butler_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n, bool apart);

/* The next product but one will be of a few tokens with these matrices: backend.h, expect. */
void butler_matmul_expect(struct butler_backend *backend, const struct butler_matrix *const *matrices, int n);

#endif
