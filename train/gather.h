/* How gradients of several texts, in one process or in many, become one sum. The order of additions is the order of the texts,
 * wherever they are, so that the same texts give the same bits however many processes share them. */
#ifndef BUTLER_GATHER_H
#define BUTLER_GATHER_H

#include "butler.h"

struct butler_gather {
    int rank, n_ranks;
    /* total[n] = ((part_0 + part_1) + ...) over all ranks' parts[n_parts][n], in order of rank; the same on every rank. */
    int (*sum)(const struct butler_gather *reduce, const float *const *parts, int n_parts, float *total, size_t n,
               struct butler_error *err);
    void (*end)(const struct butler_gather *reduce); /* nothing more will be summed */
};

/* One process. */
extern const struct butler_gather butler_gather_local;

/* What butler-mpi.so has under the name butler_gather_begin: this process among those that mpirun started. */
typedef int butler_gather_begin_fn(struct butler_gather *reduce, struct butler_error *err);

#endif
