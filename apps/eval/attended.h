/* For tasks that measure the model's own attention: what tokens get of it while a text is decoded. */
#ifndef EVAL_ATTENDED_H
#define EVAL_ATTENDED_H

#include "eval.h"

/* Of an item, for every layer and query head. */
struct eval_attended {
    int n, n_layers, n_heads; /* tokens; heads of a layer */
    double *sums;             /* [n_layers][n_heads][n] attention that a token got, summed over all queries (H2O's score) */
    double *sparsity; /* [n_layers][n_heads] share of weights below EVAL_SPARSE of the largest of their row, mean over rows */
};
#define EVAL_SPARSE 0.01f

/* Decodes the whole item and observes its attention. After a failure too eval_attended_free is called. */
int eval_attended_read(struct eval_trial *trial, struct eval_attended *out, struct butler_error *err);
void eval_attended_free(struct eval_attended *attended);

/* For load: an error if a policy is not `full`. */
int eval_only_full(const struct eval_run *run, struct butler_error *err);
/* order[n] becomes the indices of values[n], the largest value first, ties to the lower index. 0 or BUTLER_ERROR_MEMORY. */
int eval_order(const double *values, int n, int *order, struct butler_error *err);
/* Tokens that are this share of n: rounded, at least one. */
int eval_share_of(double share, int n);

/* A row of the mean of the items' values[which], with Student's interval. The items' last value must be 1. */
struct eval_row eval_item_row(const struct eval_run *run, const char *metric, const double *values, int which);
/* Means over the items of values [n_layers][n] from `first` on, as a JSON array of arrays. */
json_t *eval_layer_means(const struct eval_run *run, const double *values, int first, int n);

#endif
