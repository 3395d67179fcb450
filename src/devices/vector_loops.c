/* Loops over numbers for training beside an engine (butler_tools.h): those of the CPU's kernels that the engine uses. */
#include "engine/abi.h"
#include "engine/engine.h"
#include "kernels/kernels.h"

void butler_engine_vector_loops(const struct butler_engine *engine, struct butler_vector_loops *loops)
{
    if (!engine || !loops)
        return;
    const struct butler_kernels *kernels = engine->backend->kernels;
    const struct butler_vector_loops own = {.dot = kernels->dot,
                                            .add = kernels->add,
                                            .axpy = kernels->axpy,
                                            .scale = kernels->scale,
                                            .max = kernels->max,
                                            .exp_sum = kernels->exp_sum};
    butler_give_struct(loops, &own, sizeof own, BUTLER_END_OF(butler_vector_loops, exp_sum));
}
