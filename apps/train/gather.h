/* Sums over one process or many (an all-reduce): of the gradients of several texts, added in the order of the texts, so that the
 * result does not depend, bit for bit, on the number of processes; and of numbers that one process each has. */
#ifndef BUTLER_GATHER_H
#define BUTLER_GATHER_H

#include "butler.h"

struct butler_gather {
    int rank, n_ranks;
    /* total[n] = ((part_0 + part_1) + ...) over all ranks' parts[n_parts][n], in order of rank; the same on every rank. */
    int (*sum)(const struct butler_gather *reduce, const float *const *parts, int n_parts, float *total, size_t n,
               struct butler_error *err);
    /* values[n] becomes the sum over all ranks, the same on every rank: exact where at most one rank's value is not 0. */
    int (*share)(const struct butler_gather *reduce, double *values, size_t n, struct butler_error *err);
    void (*end)(const struct butler_gather *reduce); /* after the last sum */
};

/* One process. */
extern const struct butler_gather butler_gather_local;

/* Type of butler-mpi.so's butler_gather_begin: fills *reduce for this rank of those that mpirun started. */
typedef int butler_gather_begin_fn(struct butler_gather *reduce, struct butler_error *err);

#endif
