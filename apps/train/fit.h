/* Where a predictor of version 2 begins: by least squares from a few texts instead of at random. */
#ifndef BUTLER_FIT_H
#define BUTLER_FIT_H

#include "train.h"

/* Adds up over the first round of texts (BUTLER_TRAIN_KEPT batches) what `add` writes for each: total[n] is the sum in the order of
 * the texts, over all processes. add: out[n] is zero; called by several threads at once. */
typedef int butler_text_fn(void *user, const struct butler_states *states, float *out, struct butler_error *err);
int butler_trainer_sum(struct butler_trainer *trainer, butler_text_fn *add, void *user, size_t n, float *total,
                       struct butler_error *err);

enum { BUTLER_FIT_PASSES = 3 }; /* over these texts */

/* Sets every parameter of trainer->predictor (version 2, head_freq):
 *
 * key.l and rope_freq  each KV head's predicted key is d/2 of the pairs of channels that the model rotates together: those whose
 *                      part of the scores varies most over a text's tokens. Divided by their spread, sigma.
 * targets              the model's queries in those channels, times sigma sqrt(d / head_dim), rotated back to position 0: then
 *                      q̂ . k̂ / sqrt(d) is these pairs' part of q . k / sqrt(head_dim) at every distance.
 * query_1, norm.bias   ridge regression of the targets of all layers that a producer serves on its normed input, reduced to the
 *                      n_mid directions in which the fitted targets are largest; scaled to where silu is nearly linear.
 * query_2              ridge regression of the targets on the hidden layer that this gives. */
int butler_fit(struct butler_trainer *trainer, const struct butler_vector_loops *loops, struct butler_error *err);

/* x[n][m] with (a[n][n] + ridge times the mean of its diagonal) x = b[n][m]; a is positive semidefinite. b becomes x; a is
 * overwritten. BUTLER_ERROR_NUMERIC if it is not positive definite. */
int butler_solve(int n, double *a, double ridge, int m, double *b, struct butler_error *err);

#endif
