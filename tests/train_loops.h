/* Loops for the trainer's functions, without an engine. */
#ifndef TRAIN_LOOPS_H
#define TRAIN_LOOPS_H

#include "butler_tools.h"
#include "kernels/kernels.h"

static inline const struct butler_vector_loops *train_loops(void)
{
    static struct butler_vector_loops loops;
    const struct butler_kernels *kernels = butler_kernels_get(NULL);
    loops = (struct butler_vector_loops){sizeof loops,   kernels->dot, kernels->add,    kernels->axpy,
                                         kernels->scale, kernels->max, kernels->exp_sum};
    return &loops;
}

#endif
