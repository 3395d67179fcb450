/* Internal interfaces of the framework: set up, results on disk, the loop over items. */
#ifndef EVAL_PARTS_H
#define EVAL_PARTS_H

#include "eval.h"

int eval_take_options(struct eval_run *run, struct butler_error *err);
int eval_take_policies(struct eval_run *run, struct butler_error *err);

/* The last prompt that was read to be shared. */
struct eval_donor {
    const struct eval_item *item;
    bool observes;
    struct butler_session *session;
};

/* Whether a policy's metric must see the prompt's attention, so that it cannot share a dense reading. */
bool eval_policy_observes(const struct butler_policy *policy);
/* A session that has read the item's prompt (mode simulate: nothing). *out may be set even where it fails. */
int eval_session_begin(const struct eval_run *run, const struct eval_item *item, const struct butler_policy *policy,
                       struct eval_donor *donor, struct butler_session **out, struct butler_error *err);
void eval_donor_free(struct eval_donor *donor);

/* The file of results: rows are appended a policy at a time. */
struct eval_results {
    const char *path; /* NULL: none */
    int fd;
    json_t *done; /* set of keys: an object */
};

/* Opens or creates the file, reads its rows, and cuts off an incomplete policy at its end. */
int eval_results_open(struct eval_results *results, const char *path, struct butler_error *err);
bool eval_results_has(const struct eval_results *results, const struct eval_run *run, const struct eval_policy *policy);
/* Appends the rows of one policy (an array), synced to the disk before it returns. */
int eval_results_append(struct eval_results *results, const json_t *rows, struct butler_error *err);
void eval_results_close(struct eval_results *results);

/* The rows of a policy whose items are done; an array, or NULL. cost: the sum over the items. */
json_t *eval_make_rows(const struct eval_run *run, const struct eval_policy *policy, const double *values,
                       const struct eval_cost *cost, struct butler_error *err);

#endif
