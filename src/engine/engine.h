/* The engine: a model on a device. It owns the threads, the backend, the scratch that all its sessions use one after the other, the
 * page pools, the prefix cache, and what callers added: plug-ins and predictors. */
#ifndef BUTLER_ENGINE_H
#define BUTLER_ENGINE_H

#include "butler_tools.h"
#include "engine/audit.h"
#include "engine/backend.h"
#include "engine/scratch.h"
#include "engine/steps.h"

struct butler_centres;
struct butler_prefix;
struct butler_predictor;
struct butler_predict_scratch;

struct butler_engine {
    struct butler_model *model;
    struct butler_pool *pool;
    struct butler_backend *backend;
    struct butler_scratch scratch;
    struct butler_pages *pages;             /* one pool for each size of extent */
    struct butler_prefix *prefix;           /* NULL: none */
    const struct butler_registry *registry; /* built-in metrics and policies */
    struct butler_metric_list *plugins;
    struct butler_step_registry *steps;                /* NULL: none */
    struct butler_predictor *predictors[2];            /* of version 1 and 2, or NULL */
    struct butler_centres *centres;                    /* query centres, or NULL */
    struct butler_predict_scratch *predict_scratch[2]; /* of these, where sessions use them; or NULL */
    struct butler_audit_scratch audit;
    bool borrows; /* plug-ins, predictors and centres are another engine's */
    int n_block;
    uint64_t kv_bytes; /* most bytes of a page pool */
    uint64_t kv_ram;   /* most of them that are resident; 0: all */
};

/* An engine on a backend of the caller's, which it then owns, with the pool (also on failure). */
struct butler_engine *butler_engine_new_on(struct butler_model *model, const struct butler_engine_params *params,
                                           const struct butler_registry *registry, struct butler_pool *pool,
                                           struct butler_backend *backend, struct butler_error *err);

/* How many threads a caller's number stands for: 0 is those of the machine. */
int butler_engine_threads(int n_threads);

/* The pool for extents of rows of this type and length; made at its first use. spills: for keys and values of texts; else what a
 * metric keeps, which is always resident. NULL with *err filled on failure. */
struct butler_pages *butler_engine_pages(struct butler_engine *engine, enum butler_kv_type type, int head_dim, bool spills,
                                         struct butler_error *err);

#endif
