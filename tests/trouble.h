/* Engines whose KV pages lie on a disk, and what its requests meet. Include stdarg.h, setjmp.h and cmocka.h first. */
#ifndef BUTLER_TESTS_TROUBLE_H
#define BUTLER_TESTS_TROUBLE_H

#include <errno.h>
#include <unistd.h>

#include "random_predictor.h"
#include "cpu/backend_cpu.h"
#include "devices/spill.h"
#include "metrics/registry.h"

struct trouble {
    uint64_t random; /* atomic */
    int n, n_writes; /* requests so far; atomic */
    int at;          /* which of them fails; -1: none */
    int error;       /* how */
    bool shaky;      /* late, interrupted, short */
};

static inline int64_t meet(void *user, bool write, int64_t result)
{
    struct trouble *trouble = user;
    uint64_t random = __atomic_fetch_add(&trouble->random, 0x9e3779b97f4a7c15, __ATOMIC_RELAXED);
    const int n = __atomic_fetch_add(&trouble->n, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&trouble->n_writes, write, __ATOMIC_RELAXED);
    if (n == trouble->at)
        return -trouble->error;
    if (!trouble->shaky || result <= 0)
        return result;
    switch (butler_random(&random) % 16) {
    case 0:
        usleep((useconds_t)(butler_random(&random) % 300));
        return result;
    case 1:
        return -EINTR;
    case 2:
        return -EAGAIN;
    case 3:
        return BUTLER_MIN(result, 512);
    case 4:
        return BUTLER_MAX(result / 2, 1);
    default:
        return result;
    }
}

/* Bytes that a layer of a context of n_ctx tokens has in memory, at most. */
static inline uint64_t layer_bytes(const struct butler_model *model, enum butler_kv_type type, int n_ctx)
{
    size_t piece = butler_kv_extent_bytes(type, model->hp.head_dim);
    piece = (piece + BUTLER_DISK_ALIGN - 1) / BUTLER_DISK_ALIGN * BUTLER_DISK_ALIGN;
    return (uint64_t)(BUTLER_CEIL_DIV(n_ctx, BUTLER_EXTENT_TOKENS) * model->hp.n_kv_heads) * piece;
}

static inline struct butler_engine *spilled_engine(struct butler_model *model, struct trouble *trouble,
                                                   const struct butler_engine_params *params, bool threads)
{
    struct butler_error err = {0};
    const struct butler_spill_params spill = {.memory = params->kv_ram,
                                              .disk = {.folder = "/var/tmp", .threads = threads, .fault = meet, .user = trouble}};
    struct butler_pool *pool = butler_pool_new(2, &err);
    struct butler_backend *backend = pool ? butler_backend_cpu(pool, NULL, &err) : NULL;
    struct butler_engine *engine = butler_engine_new_on(model, params, &butler_builtin, pool,
                                                        backend ? butler_spill_backend(backend, &spill, &err) : NULL, &err);
    if (!engine)
        fail_msg("%s", err.message);
    attach_both(engine, false);
    return engine;
}

#endif
