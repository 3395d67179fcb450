/* The framework's own seams: set up, results on disk, the loop over items. */
#ifndef EVAL_PARTS_H
#define EVAL_PARTS_H

#include "eval.h"

int eval_take_options(struct eval_run *run, struct butler_error *err);
int eval_take_policies(struct eval_run *run, struct butler_error *err);

/* What decoding one item under one policy cost. */
struct eval_cost {
    uint64_t n_decode, kv_bytes, metric_bytes, full_kv_bytes, units_selected, units_reused;
    double seconds;
};

/* The file of results: rows are appended a policy at a time. */
struct eval_results {
    const char *path; /* NULL: none */
    int fd;
    json_t *done; /* set of keys: an object */
};

/* Opens or makes the file, learns what it holds, and cuts off rows of a policy that were not all written. */
int eval_results_open(struct eval_results *results, const char *path, struct butler_error *err);
bool eval_results_has(const struct eval_results *results, const struct eval_run *run, const struct eval_policy *policy);
/* Appends the rows of one policy (an array), synced to the disk before it returns. */
int eval_results_append(struct eval_results *results, const json_t *rows, struct butler_error *err);
void eval_results_close(struct eval_results *results);

/* The rows of a policy whose items are done; an array, or NULL. cost: the sum over the items. */
json_t *eval_make_rows(const struct eval_run *run, const struct eval_policy *policy, const double *values,
                       const struct eval_cost *cost, struct butler_error *err);

#endif
