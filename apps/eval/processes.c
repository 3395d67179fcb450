/* Items spread over processes: each measures its own, and all have all numbers in the end. A number is contributed by one process,
 * and the others add 0, so that it arrives unchanged. */
#include <stdlib.h>
#include <string.h>

#include "parts.h"

static bool is_one(const struct eval_processes *processes)
{
    return !processes || processes->n_ranks == 1;
}

bool eval_is_root(const struct eval_params *params)
{
    return !params->processes || params->processes->rank == 0;
}

int eval_share_root(const struct eval_params *params, double *numbers, size_t n, struct butler_error *err)
{
    if (is_one(params->processes))
        return 0;
    if (!eval_is_root(params))
        memset(numbers, 0, n * sizeof *numbers);
    return params->processes->share(params->processes->user, numbers, n, err);
}

/* Gives every process the measurement at `at` of the process owner[at], for all n with an owner. */
static int spread(struct eval_shares *shares, const int *owner, size_t n, struct butler_error *err)
{
    const size_t n_values = (size_t)shares->n_values, size = n_values + EVAL_N_COSTS;
    double *all = butler_alloc(n * size * sizeof *all, err);
    if (!all)
        return BUTLER_ERROR_MEMORY;
    for (size_t at = 0; at < n; at++)
        if (owner[at] == shares->processes->rank) {
            memcpy(all + at * size, shares->values + at * n_values, n_values * sizeof *all);
            memcpy(all + at * size + n_values, &shares->costs[at], sizeof shares->costs[at]);
        }
    const int code = shares->processes->share(shares->processes->user, all, n * size, err);
    for (size_t at = 0; at < n && code == 0; at++)
        if (owner[at] >= 0) {
            memcpy(shares->values + at * n_values, all + at * size, n_values * sizeof *all);
            memcpy(&shares->costs[at], all + at * size + n_values, sizeof shares->costs[at]);
            shares->have[at] = true;
        }
    free(all);
    return code;
}

/* The first process that has each measurement; -1: none. */
static int find_owners(const struct eval_shares *shares, int *owner, size_t n, struct butler_error *err)
{
    const size_t n_ranks = (size_t)shares->processes->n_ranks;
    double *has = butler_alloc(n * n_ranks * sizeof *has, err);
    if (!has)
        return BUTLER_ERROR_MEMORY;
    for (size_t at = 0; at < n; at++)
        has[at * n_ranks + (size_t)shares->processes->rank] = shares->have[at];
    const int code = shares->processes->share(shares->processes->user, has, n * n_ranks, err);
    for (size_t at = 0; at < n; at++) {
        owner[at] = -1;
        for (size_t rank = n_ranks; rank-- > 0;)
            owner[at] = has[at * n_ranks + rank] > 0 ? (int)rank : owner[at];
    }
    free(has);
    return code;
}

int eval_share_begin(struct eval_shares *shares, struct butler_error *err)
{
    const size_t n = (size_t)shares->n * (size_t)shares->n_items;
    const int n_ranks = is_one(shares->processes) ? 1 : shares->processes->n_ranks;
    int code = 0, next = 0;
    if (n_ranks > 1) {
        int *owner = butler_alloc(n * sizeof *owner, err);
        code = owner ? find_owners(shares, owner, n, err) : BUTLER_ERROR_MEMORY;
        if (code == 0)
            code = spread(shares, owner, n, err);
        free(owner);
    }
    for (int i = 0; i < shares->n_items; i++) {
        int lacking = 0;
        for (int p = 0; p < shares->n; p++)
            lacking += !shares->have[(size_t)p * (size_t)shares->n_items + (size_t)i];
        shares->n_have += shares->n - lacking;
        shares->mine[i] = lacking > 0 && (n_ranks == 1 || next++ % n_ranks == shares->processes->rank);
    }
    return code;
}

int eval_share_end(struct eval_shares *shares, struct butler_error *err)
{
    const size_t n = (size_t)shares->n * (size_t)shares->n_items;
    if (is_one(shares->processes))
        return 0;
    int *owner = butler_alloc(n * sizeof *owner, err);
    int code = owner ? find_owners(shares, owner, n, err) : BUTLER_ERROR_MEMORY;
    if (code == 0)
        code = spread(shares, owner, n, err);
    free(owner);
    return code;
}
