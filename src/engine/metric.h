/* How a metric looks at the cache: the view of one (layer, KV head), and the list of metrics. The functions of butler.h
 * named butler_view_* are implemented in metric.c over the few things below, so the KV store and a test over plain
 * arrays serve the same metric code. */
#ifndef BUTLER_METRIC_H
#define BUTLER_METRIC_H

#include "base/util.h"
#include "butler_plugin.h"

struct butler_kernels; /* the CPU backend's; metrics are functions of the CPU */

/* Most params a metric may have; a policy keeps that many values. */
#define BUTLER_METRIC_MAX_PARAMS 16

struct butler_centres;
struct butler_predict;

/* Made on the caller's stack for one call (or one task of the pool): it is not shared between threads, records are. */
struct butler_head_view {
    int layer, kv_head, head_dim;
    int n_heads, group;       /* query heads of a layer, of this KV head */
    int n_slots;              /* slots in use, [0, n_slots) */
    int query_position;       /* position of the newest token in the cache (in a cut before an append: of the one before) */
    const int32_t *positions; /* [n_slots] text position of each slot; NULL: slot i holds position i */
    unsigned char *records;   /* [ceil(n_slots / record_slots)][record_bytes]; zeroed when their first slot is filled */
    size_t record_bytes;
    int record_slots;
    void *state; /* of the KV head, or NULL */
    enum butler_kv_type kv_type;
    const struct butler_kernels *kernels;
    /* out[i] = the stored row (head_dim elements of kv_type) of slot first + i, i < n: keys, or values. */
    void (*rows)(const struct butler_head_view *view, int first, int n, bool values, const void **out);
    const void *store;                    /* what rows() needs */
    bool hadamard;                        /* rows of keys hold H k - shift (kv.h) */
    const float *key_shifts;              /* [n_layers][n_kv_heads][head_dim], or NULL */
    const struct butler_predict *predict; /* the session's predictor at work, or NULL */
    const struct butler_centres *centres; /* the engine's query centres, or NULL */
    const float *queries;                 /* [n_layers][n_heads][head_dim] of the newest token, up to the layer at work; or NULL */
    uint64_t *bytes;                      /* rows read through the view are added here; NULL: not counted */
};

const struct butler_kernels *butler_view_kernels(const struct butler_head_view *view);
/* Bytes of one stored row. */
size_t butler_view_row_bytes(const struct butler_head_view *view);

struct butler_policy_row;
/* What the library brings: made above the engine (src/metrics/registry.c), given to it when it is made. */
struct butler_registry {
    const struct butler_metric *const *metrics; /* ends with NULL */
    const struct butler_policy_row *policies;   /* ends with name NULL (policy_table.h) */
};

struct butler_metric_entry {
    const struct butler_metric *metric;
    char *defaults; /* its policy string with every parameter written out */
    void *handle;   /* dlopen, or NULL */
};
/* Metrics registered by the caller or loaded from shared objects, owned by an engine (engine->plugins). */
struct butler_metric_list {
    int n;
    struct butler_metric_entry *entries;
};
void butler_metric_list_free(struct butler_metric_list *list);

/* What names of plug-ins and their parameters are: 1 to 31 of a-z, 0-9 and _, a letter first. text may be NULL. */
bool butler_is_word(const char *text);
/* Parameters of a plug-in, named in errors as "kind name". At most BUTLER_METRIC_MAX_PARAMS. */
int butler_params_check(const char *kind, const char *name, const struct butler_param *params, struct butler_error *err);

/* Slots and bytes of its records for these shapes and values, 0 where it keeps none. BUTLER_ERROR_ARGUMENT, with its name, for
 * sizes that no record has: a plug-in may say anything. */
int butler_metric_record(const struct butler_metric *metric, const struct butler_metric_shape *shape, const double *values,
                         int *n_slots, size_t *n_bytes, struct butler_error *err);
/* Bytes of the state of a KV head; *n_bytes 0: none. */
int butler_metric_state(const struct butler_metric *metric, const struct butler_metric_shape *shape, const double *values,
                        size_t *n_bytes, struct butler_error *err);
const struct butler_metric *butler_metric_find(const struct butler_registry *registry, const struct butler_metric_list *plugins,
                                               const char *name);

#endif
