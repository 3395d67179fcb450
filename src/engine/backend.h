/* The seam between the forward pass and the hardware: coarse operations on buffers that live where the backend likes. The
 * CPU implements it in cpu.c. Buffers are addresses that only the backend may follow; `read` brings numbers to the host.
 * Nothing here allocates, except where it says so, and nothing can fail once the workspace is made. */
#ifndef BUTLER_BACKEND_H
#define BUTLER_BACKEND_H

#include "engine/kv.h"
#include "model/model.h"
#include "engine/policy.h"

/* What one decode step reads in one layer: for every list, which slots. A list belongs to a KV head (its query heads
 * share it) or, with BUTLER_SHARE_QUERY, to one query head. */
struct butler_lists {
    int n_lists;
    uint32_t **slots; /* [n_lists]; NULL: the head's newest n (where a metric observes, all) */
    int *n;           /* [n_lists] slots in the list */
};

/* Scratch of one session for scoring, selecting and attending, made for the longest text. */
struct butler_workspace {
    int max_slots, n_threads;
    size_t score_stride; /* floats per query head in scores */
    float *scores;       /* [n_heads][score_stride] scores of units; attention weights when a metric observes */
    uint32_t *slots;     /* [n_lists][max_slots] behind the lists: n_heads of them, or BUTLER_AHEAD layers' n_kv_heads */
    uint32_t **list_slots;
    int *list_n;
    uint32_t *units;                /* [n_threads][4 * max_slots] selected units, orders, new places */
    float *ordered;                 /* [n_threads][2 * max_slots] scores by position, for eviction, and values of a selection */
    float *row_scales, *row_shifts; /* [n_heads]: scale * score - shift is comparable between heads */
    float *partial;                 /* [n_heads][n_slices][head_dim + 2] what each slice of an attention gives */
    float *tile;                    /* [n_threads][tile_rows][score_stride] attention weights that a metric will see */
    float *tile_q, *tile_out;       /* [n_threads][tile_rows][head_dim] */
    int tile_rows;
    float *block; /* [n_threads][block_floats] of the attention of a prompt's block */
    size_t block_floats;
    float *panel; /* [n_threads][panel_floats] dequantised weights in prefill */
    size_t panel_floats;
    size_t packed_bytes;
    unsigned char *packed; /* up to BUTLER_PACKED_TOKENS tokens of a block as the left operand of a matrix unit */
    /* Which units each list read in the step before, one bit a unit: [n_layers][n_heads][selected_words]. */
    uint64_t *selected;
    size_t selected_words;
    int32_t *selected_at; /* [n_layers]: the position after that of the step whose selection a layer goes by; 0: there is none */
    /* In the step at ahead_position the lists of layers [ahead_layer, ahead_end) were made together. */
    int ahead_layer, ahead_end, ahead_position;
    /* Keys stored unrotated (rope=cache): rotations by place in the cache, [max_slots][n_rot / 2]; NULL otherwise. */
    float *rope_cos, *rope_sin;
    float *rotated; /* [n_threads][BUTLER_CHUNK][head_dim] */
    int n_rot;
    enum butler_rope rope;
    struct butler_arena arena;
};

enum {
    BUTLER_CHUNK = 64,   /* cache rows handed to a kernel at a time in prefill */
    BUTLER_SLICE = 1024, /* tokens of a list one task attends to; fixed, so that no result depends on the threads */
    BUTLER_AHEAD = 4,    /* most layers that select together, where a predictor knows their queries */
};

/* Counters of what the kernels were asked to read, and of selection. Operations add to them atomically. */
struct butler_traffic {
    uint64_t weight_bytes, kv_bytes, metric_bytes, predict_bytes;
    uint64_t units_selected, units_reused;
    uint64_t score_ns, select_ns, attend_ns; /* inside fused passes, summed over threads */
};

/* One layer of the cache with what an operation needs beside it. */
struct butler_layer_state {
    const struct butler_policy *policy;
    const struct butler_metric_shape *shape;
    struct butler_kv *kv;
    struct butler_workspace *work;
    struct butler_traffic *traffic;
    int layer, n_heads;
    int position; /* of the (first) token being processed */
};

/* One of the products that some rows have with several matrices: y[n][n_rows] = x[n][n_cols] W^T + bias. */
struct butler_product {
    float *y;
    const struct butler_matrix *w;
};
enum { BUTLER_MOST_PRODUCTS = 3 };

struct butler_backend {
    const char *name;
    struct butler_pool *pool;
    const struct butler_kernels *kernels;

    /* y[n][n_embd] = rows ids[n] of the table */
    void (*embed)(struct butler_backend *backend, float *y, const struct butler_matrix *table, const int32_t *ids, int n);
    /* x[n][n_cols] with up to BUTLER_MOST_PRODUCTS matrices. apart: each row has the bits that it would have alone. */
    void (*matmul)(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n, bool apart);
    /* A hint: after the coming product there will be one of few rows with these matrices. */
    void (*expect)(struct butler_backend *backend, const struct butler_matrix *const *matrices, int n);
    /* y[n][dim] from x[n][dim], each row by itself; y may be x */
    void (*norm)(struct butler_backend *backend, float *y, const float *x, const struct butler_vector *v, int n, int dim,
                 enum butler_norm kind, float eps);
    /* Rotates the first n_rot of each head of x[n][n_heads][head_dim]; cos, sin: [n][n_rot / 2] */
    void (*rope)(struct butler_backend *backend, float *x, const float *cos, const float *sin, int n, int n_heads, int head_dim,
                 int n_rot, enum butler_rope kind);
    /* up = activation(gate) * up, or activation(up) where gate is NULL: n rows of dim, up_stride apart in up, dim in gate */
    void (*activate)(struct butler_backend *backend, float *up, size_t up_stride, const float *gate, int n, int dim,
                     enum butler_activation kind);
    void (*add)(struct butler_backend *backend, float *y, const float *x, size_t n);

    /* Writes k, v [n][n_kv_heads][head_dim] into the newest n slots of the layer and lets the metric summarise them. */
    void (*append)(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v, int n);
    /* Causal attention of the newest n tokens, each over the `window` newest up to itself (INT32_MAX: over all). The metric
     * observes the attention of the queries at positions >= observe_from, which see all. q, out [n][n_heads][head_dim]. */
    void (*attend_block)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out, int n,
                         int window, int observe_from);
    /* workspace scores of every unit for q[n_heads][head_dim], raw, as the metric gives them */
    void (*score)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q);
    /* Appends the newest token's k, v [n_kv_heads][head_dim]; scores for q[n_heads][head_dim] and from them lists, under the
     * policy's budget (src/cpu/retrieve.c). Returns which share of its time the former two took. */
    double (*retrieve)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, const float *k,
                       const float *v, struct butler_lists *lists);
    /* scores -> fewer slots in the store, so that `room` more stay within the budget (src/cpu/evict.c) */
    void (*evict)(struct butler_backend *backend, const struct butler_layer_state *state, int room);
    /* score, select and attend in one pass per KV head (TinyServe, Algorithm 1) */
    void (*attend_fused)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                         struct butler_lists *lists, float *out);
    /* Attention of one token over the lists, once its k, v [n_kv_heads][head_dim] are appended (NULL: they are already).
     * observe: the metric sees the weights. q, out [n_heads][head_dim]. */
    void (*attend)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, const float *k,
                   const float *v, const struct butler_lists *lists, float *out, bool observe);

    void (*read)(struct butler_backend *backend, float *host, const float *buffer, size_t n);
};

struct butler_backend *butler_backend_cpu(struct butler_pool *pool, const struct butler_kernels *kernels, struct butler_error *err);
void butler_backend_free(struct butler_backend *backend);

/* Scratch for a session of at most max_slots tokens, n_block at a time. Rotations for rope=cache are filled by the
 * forward pass. */
int butler_workspace_make(struct butler_workspace *work, const struct butler_hparams *hp, const struct butler_policy *policy,
                          int max_slots, int n_block, const struct butler_backend *backend, struct butler_error *err);
void butler_workspace_free(struct butler_workspace *work);

#endif
