/* The interface between the engine and the hardware: memory, and coarse operations on it.
 *
 * Memory belongs to the backend. What `alloc` returns is a device address: the engine may add to it and pass it to operations,
 * but it never reads or writes there itself. Activations, KV rows, page tables, positions, records, norms of values, scores, lists
 * of slots and logits live in such memory. Tokens, numbers of slots and counters are host memory.
 *
 * Operations run in the order in which they are called. Only `alloc` and `bind_weights` can fail, and where pages lie on a disk
 * (src/devices/spill.c) operations on rows. src/cpu/backend_cpu.c implements all of this.
 */
#ifndef BUTLER_BACKEND_H
#define BUTLER_BACKEND_H

#include "base/threads.h"
#include "engine/kv.h"
#include "engine/plan.h"
#include "model/model.h"

/* An arena in device memory. */
struct butler_buffers {
    struct butler_arena pieces;
    struct butler_backend *backend;
};

/* What one decode step reads in one layer: for every list, which slots. A list belongs to `heads` neighbours among the query heads
 * of a KV head: to all of them, a subgroup or one. A KV head's last list may have fewer. */
struct butler_lists {
    int n_lists, heads;
    uint32_t **slots; /* [n_lists]; NULL: the head's newest n (where a metric observes, all) */
    int *n;           /* [n_lists] slots in the list */
    uint32_t *memory; /* [n_lists][stride] where they are put */
    size_t stride;
};

/* The query heads of a list, of KV heads with `group` each: returns how many, and the first at *head. */
static inline int butler_lists_heads(const struct butler_lists *lists, int group, int list, int *head)
{
    const int per_head = BUTLER_CEIL_DIV(group, lists->heads), at = list % per_head * lists->heads;
    *head = list / per_head * group + at;
    return BUTLER_MIN(lists->heads, group - at);
}

/* Scratch for scoring, selecting and attending: made for the longest text of an engine's sessions, used by one after the other. */
struct butler_workspace {
    int max_slots, n_threads;
    size_t score_stride; /* floats per query head in scores */
    float *scores;       /* [n_heads][score_stride] scores of units; attention weights when a metric observes */
    uint32_t *slots;     /* [n_heads][max_slots] behind the lists */
    uint32_t **list_slots;
    int *list_n;
    int *turns;                     /* [max_rows][n_kv_heads] of the tiles of prompts, whose metrics see them in order */
    uint32_t *units;                /* [n_threads][4 * max_slots] selected units, orders, new places */
    float *ordered;                 /* [n_threads][2 * max_slots] scores by position, for eviction, and values of a selection */
    float *row_scales, *row_shifts; /* [n_heads]: scale * score - shift is comparable between heads */
    float *partial;                 /* [BUTLER_CHECK_ROWS][n_heads][n_slices][head_dim + 2] what each slice of an attention gives */
    float *tile;                    /* [n_threads][tile_rows][score_stride] attention weights that a metric will see */
    float *tile_q, *tile_out;       /* [n_threads][tile_rows][head_dim] */
    int tile_rows;
    float *block; /* [n_threads][block_floats] of the attention of a prompt's block */
    size_t block_floats;
    float *panel; /* [n_threads][panel_floats] dequantised weights in prefill */
    size_t panel_floats;
    size_t packed_bytes;
    unsigned char *packed; /* up to BUTLER_PACKED_TOKENS tokens of a block as the left operand of a matrix unit */
    float *rotated;        /* [n_threads][BUTLER_CHUNK][head_dim] keys that are stored unrotated, rotated */
    struct butler_buffers memory;
};

/* What a session remembers of its selections between steps. */
struct butler_selection {
    /* Which units each list read in the step before, one bit a unit: [n_layers][n_heads][words]. */
    uint64_t *units;
    size_t words;
    int32_t *at; /* host, [n_layers]: the position after that of the step whose selection a layer goes by; 0: there is none */
    /* Host: in the step at ahead_position the lists of layers [ahead_layer, ahead_end) were made together. */
    int ahead_layer, ahead_end, ahead_position;
    /* Where a predictor's policy puts these lists: BUTLER_AHEAD layers of [n_kv_heads]; NULL: in the workspace. */
    uint32_t *slots; /* [BUTLER_AHEAD][n_kv_heads][max_slots] */
    uint32_t **list_slots;
    int *list_n;
};

enum {
    BUTLER_CHUNK = 64,         /* cache rows handed to a kernel at a time in prefill */
    BUTLER_SLICE = 1024,       /* tokens of a list one task attends to; fixed, so that no result depends on the threads */
    BUTLER_AHEAD = 4,          /* most layers that select together, where a predictor knows their queries */
    BUTLER_CHECK_ROWS = 16,    /* most tokens of an exact span in a pass */
    BUTLER_PROMPT_BLOCK = 64,  /* prompt=: tokens that share a selection, from multiples of it on */
    BUTLER_PROMPT_BLOCKS = 16, /* most such blocks of a span */
};

/* Counters of what the kernels were asked to read, and of selection. Operations add to them atomically. */
struct butler_traffic {
    uint64_t weight_bytes, kv_bytes, metric_bytes, predict_bytes;
    uint64_t upkeep_bytes; /* butler_stats; operations count all as metric_bytes */
    uint64_t units_selected, units_reused;
    uint64_t full_kv_bytes;                  /* of sparse prompts: what dense ones would have read */
    uint64_t score_ns, select_ns, attend_ns; /* inside fused passes, summed over threads */
    /* Where not all pages are resident: how many pieces of them were wanted, how many came from the file; the wait for these. */
    uint64_t n_wanted, n_fetched, disk_bytes, disk_ns;
    uint64_t n_prefetched, n_guessed; /* pieces that were read ahead; of these, that were wanted then */
};

/* One layer of the cache with what an operation needs beside it. */
struct butler_layer_state {
    const struct butler_plan *plan;
    const struct butler_metric_shape *shape;
    struct butler_kv *kv;
    struct butler_workspace *work;
    struct butler_selection *selection; /* NULL: a cache that is always read whole (a predictor's own) */
    struct butler_traffic *traffic;
    int layer, n_heads;
    int position;       /* of the (first) token being processed */
    int summarise_from; /* append: the metric summarises slots from here on: the new ones, all (0) where it was put off before them,
                           or (INT32_MAX) none */
    const float *sinks; /* [n_heads] logits in the softmax's denominator that belong to no token; NULL: none */
    float softcap;      /* of attention scores s: softcap tanh(s / softcap); 0: none */
};

/* How many of n_units units of a list stay: the first and the last, and those with the highest scores up to the budget. Units are
 * plan->unit slots each, in the order of the text. */
struct butler_choice {
    int n_units, budget, first, last;
    double mass; /* > 0: in place of the budget, as many as hold this share of the attention */
};

/* What a layer's step selects from n slots of each KV head. */
struct butler_selecting {
    int n; /* the newest token's included */
    struct butler_choice choice;
    struct butler_choice pages; /* budget > 0: two stages, first pages by bounds, then tokens of these */
};

/* What every head of a layer keeps when its cache is cut: of its full units. The unit being filled stays. */
struct butler_cut {
    struct butler_choice choice;
    int n_left;  /* slots in use afterwards */
    bool newest; /* nothing is scored: first and last are all that stays */
};

/* One of the products that some rows have with several matrices: y[n][n_rows] = x[n][n_cols] W^T + bias. */
struct butler_product {
    float *y;
    const struct butler_matrix *w;
};
enum { BUTLER_MAX_PRODUCTS = 3, BUTLER_MAX_ROTATIONS = 2 };

/* Heads that are rotated together: x[n][n_heads][head_dim]. */
struct butler_rotation {
    float *x;
    int n_heads;
};

/* By what: the first n_rot of head_dim channels, row i by cos and sin [i][n_rot / 2]. */
struct butler_angles {
    const float *cos, *sin;
    int head_dim, n_rot;
    enum butler_rope kind;
};

/* Exact attention of one query of every query head over the newest n tokens of its KV head, in the order of the text. All of it is
 * host memory; what is NULL is not wanted. */
struct butler_exact {
    int n;
    size_t stride;  /* >= n */
    float *scores;  /* [n_heads][stride] q . k, neither scaled nor capped */
    float *weights; /* [n_heads][stride] softmax of the scores, scaled and capped as the model does it, beside its learned sinks */
    float *sinks;   /* [n_heads] weight of the learned sink; 0 where there is none */
    int32_t *positions; /* [n_kv_heads][stride] positions in the text */
};

/* The highest of a row of numbers. */
enum { BUTLER_MOST_TOP = 8 };
struct butler_top {
    int32_t not_finite; /* index of the first number that is not finite; -1: all are */
    float value;        /* that number */
    int32_t ids[BUTLER_MOST_TOP];
    float values[BUTLER_MOST_TOP];
};

/* Tokens of a sparse prompt that share a selection, or some of them: tokens [first, first + n) of a span. They attend to the units
 * that were chosen among slots [0, base) of their KV head by the query at `position`, and to all from slot base up to themselves.
 */
struct butler_prompt_block {
    int first, n, position, base;
    bool selects; /* the query at `position` is that of token `first`; else the choice is the one noted in state->selection */
    struct butler_choice choice;
};

/* Attention of one token. */
struct butler_attend_token {
    const float *q;                   /* [n_heads][head_dim] */
    const float *k, *v;               /* [n_kv_heads][head_dim], appended before; NULL: they are in the cache already */
    const struct butler_lists *lists; /* that it reads; NULL: the newest slots of every KV head */
    int newest;                       /* how many those are */
    float *out;                       /* [n_heads][head_dim] */
    bool observe;                     /* the metric sees the weights */
};

/* What the tokens of one session do in one layer of a pass. All of it is decided in the engine (schedule.c). */
struct butler_attend_span {
    struct butler_layer_state state; /* position: that of the first token */
    const float *q, *k, *v;          /* [n][n_heads or n_kv_heads][head_dim] */
    float *out;                      /* [n][n_heads][head_dim] */
    int n;
    int window;      /* a token attends to the last `window` tokens, itself included; INT32_MAX: to all */
    bool decode;     /* one token under the policy; else dense, causal attention */
    bool exact;      /* decode: each of the n <= BUTLER_CHECK_ROWS tokens attends to all slots up to its own */
    bool retrieves;  /* decode: over a selection */
    bool selects;    /* retrieves: it is made now; else it is that of an earlier step, and the tokens since */
    int made_before; /* selects: > 0: made with the selection of layer - made_before, and is in the session's memory */
    int n_together;  /* selects: how many layers, this one included, select now by the queries that a predictor gave */
    int selected_at; /* retrieves, does not select: position after that of the step whose selection it repeats */
    struct butler_selecting selecting[BUTLER_AHEAD]; /* [n_together], or what is repeated, by now's n */
    int observe_from; /* the metric observes the attention of queries at positions from here on; INT32_MAX: of none. exact: of the
                         last alone */
    bool sparse;      /* of a prompt: by blocks */
    int n_blocks;
    struct butler_prompt_block blocks[BUTLER_PROMPT_BLOCKS];
};

/* Scratch for texts of at most max_slots tokens, passes of max_rows rows, attention by n_threads threads. products: also for
 * matmul. rotates: some session stores keys unrotated. */
struct butler_workspace_sizes {
    int max_slots, max_rows, n_threads;
    bool products, rotates;
};

struct butler_backend {
    const char *name, *isa;
    struct butler_pool *pool;
    const struct butler_kernels *kernels; /* CPU functions: of host memory, or inside operations */
    int block_rows;                       /* rows of a pass that products are fastest with */
    uint64_t kv_bytes;                    /* most bytes of a pool of KV pages, unless the caller says; 0: the machine's memory */
    int activation_bits;            /* 8 or 16: of the integers that rows are quantised to for products with quantised weights */
    struct butler_workspace *batch; /* [threads] for attend_spans and evict_spans; the engine's scratch */

    /* ---- memory. What alloc returns is aligned to 64 bytes and reads as zero. An address is a number, and need not be a pointer
     * that the host can follow: the engine adds bytes to it, within one allocation, and gives it to operations. So an operand is
     * one parameter, and the CPU needs no look-up. A device whose memory is objects with offsets gives each object a range of
     * numbers, and finds object and offset by the range. ---- */

    /* May be NULL. Bytes that alloc can still give, beside what other engines and programs hold; UINT64_MAX: nobody knows. */
    uint64_t (*memory_left)(struct butler_backend *backend);
    /* sparse: much of it may never be written, and costs nothing until it is. NULL with *err filled when there is none. */
    void *(*alloc)(struct butler_backend *backend, size_t n_bytes, bool sparse, struct butler_error *err);
    void (*free)(struct butler_backend *backend, void *address, size_t n_bytes); /* address may be NULL */
    /* May be NULL. Memory for n extents that need not all be resident, whose addresses nobody but the backend's operations can use;
     * *places says where rows are. Operations on a layer that cannot get at rows fill its cache's fault; those on memory leave an
     * error for check(). */
    void *(*alloc_extents)(struct butler_backend *backend, size_t extent_bytes, uint64_t n, struct butler_places *places,
                           struct butler_error *err);
    /* May be NULL. Extents [n_chunks][per_chunk] of a pool (its base), whose contents are undefined, get the rows of a file. These
     * are read when an operation first wants them, and compared with their checksums then; an operation on a layer that cannot have
     * them fills its cache's fault and sets `lost`. Takes fd, and copies the rest. False: nothing was done; they are to be
     * uploaded. */
    bool (*map_extents)(struct butler_backend *backend, const void *pool, const uint32_t *extents,
                        const struct butler_row_file *file);
    /* May be NULL. The error that operations on memory have left since it was last asked for: they then did nothing. */
    int (*check)(struct butler_backend *backend, struct butler_error *err);
    /* May be NULL: it has all operations for any plan. Else BUTLER_ERROR_UNSUPPORTED where a session of this plan and type would
     * need one that it has not; the message names it. group: query heads of a KV head. */
    int (*check_plan)(const struct butler_backend *backend, const struct butler_plan *plan, enum butler_kv_type type, int group,
                      struct butler_error *err);
    /* May be NULL. Bytes of KV pages that are resident, and in the file; *method: how that is read. */
    void (*spilled)(const struct butler_backend *backend, uint64_t *resident, uint64_t *on_disk, const char **method);
    /* Contents of [address, address + n_bytes) are lost, and its memory may go back to the system. */
    void (*discard)(struct butler_backend *backend, void *address, size_t n_bytes);
    void (*upload)(struct butler_backend *backend, void *to, const void *host, size_t n_bytes);
    void (*download)(struct butler_backend *backend, void *host, const void *from, size_t n_bytes);
    void (*copy)(struct butler_backend *backend, void *to, const void *from, size_t n_bytes); /* no overlap */
    void (*upload_many)(struct butler_backend *backend, const struct butler_upload *uploads, int n);
    void (*zero_many)(struct butler_backend *backend, const struct butler_piece *pieces, int n);

    /* Scratch of attention, in its memory; butler_workspace_free gives it back. */
    int (*make_workspace)(struct butler_backend *backend, struct butler_workspace *work, const struct butler_hparams *hp,
                          const struct butler_workspace_sizes *sizes, struct butler_error *err);

    /* ---- weights: matrices, vectors and sinks that operations are given lie in host memory that was bound before. A device copies
     * what it is given here and finds its copy by the address; the host's stays as it is until the backend is destroyed. ---- */

    int (*bind_weights)(struct butler_backend *backend, const struct butler_weights *weights, int n, struct butler_error *err);

    /* ---- rows of activations ---- */

    /* y[n][n_embd] = rows ids[n] of the table; ids in host memory */
    void (*embed)(struct butler_backend *backend, float *y, const struct butler_matrix *table, const int32_t *ids, int n);
    /* x[n][n_cols] with up to BUTLER_MAX_PRODUCTS matrices. A row of the result has the same bits whatever n and the other rows
     * are. */
    void (*matmul)(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                   int n_products, const float *x, int n);
    /* May be NULL: as matmul. The same for rows of prompts, whose last bits may be others than matmul's. */
    void (*matmul_prompt)(struct butler_backend *backend, const struct butler_product *products, int n_products, const float *x,
                          int n);
    /* y[n][dim] from x[n][dim], each row by itself; y may be x */
    void (*norm)(struct butler_backend *backend, float *y, const float *x, const struct butler_vector *v, int n, int dim,
                 enum butler_norm kind, float eps);
    /* Rotates each head of n rows of up to BUTLER_MAX_ROTATIONS arrays */
    void (*rope)(struct butler_backend *backend, const struct butler_rotation *rotations, int n_rotations,
                 const struct butler_angles *angles, int n);
    /* up = activation(gate) * up, or activation(up) where gate is NULL: n rows of dim, up_stride apart in up, dim in gate, whose
     * contents may be lost */
    void (*activate)(struct butler_backend *backend, float *up, size_t up_stride, float *gate, int n, int dim,
                     enum butler_activation kind);
    void (*add)(struct butler_backend *backend, float *y, const float *x, size_t n);
    /* to[i] = from[rows[i]], rows of dim numbers; rows[n]: host memory. to may be from where rows[i] >= i ascend: rows then move to
     * the front. */
    void (*gather_rows)(struct butler_backend *backend, float *to, const float *from, const int *rows, int n, int dim);
    /* to[rows[i]] += factors[i] from[i], rows of dim numbers; rows[n], none twice, and factors[n]: host memory */
    void (*scatter_add)(struct butler_backend *backend, float *to, const float *from, const int *rows, const float *factors, int n,
                        int dim);
    void (*scale)(struct butler_backend *backend, float *x, float factor, size_t n);
    void (*softcap)(struct butler_backend *backend, float *x, float cap, size_t n); /* x -> cap tanh(x / cap) */
    /* Of each of n_rows rows x[n]: whether all numbers are finite, and the k <= BUTLER_MOST_TOP highest of them, highest first,
     * ties to the lower index. tops[n_rows]: host memory */
    void (*finite_top_k)(struct butler_backend *backend, const float *x, int n_rows, int n, int k, struct butler_top *tops);

    /* ---- one layer of one session ---- */

    /* Writes k, v [n][n_kv_heads][head_dim] into the newest n slots of the layer (butler_kv_grow has made them), and where heads
     * have them their positions, from state->position on, and their order; lets the metric summarise slots from
     * state->summarise_from on. Records whose first slot is among the new ones are zeros before that. */
    void (*append)(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v, int n);
    /* Makes records and norms of the values of slots [first, n_slots) of all heads of the layer anew, from the rows. */
    void (*summarise)(struct butler_backend *backend, const struct butler_layer_state *state, int first);
    /* Causal attention of the newest n tokens, each over the `window` newest up to itself (INT32_MAX: over all). The metric
     * observes the attention of the queries at positions >= observe_from, which see all. q, out [n][n_heads][head_dim]. */
    void (*attend_block)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out, int n,
                         int window, int observe_from);
    /* May be NULL. The same of a span with blocks, whose tokens have been appended: scores, chooses units, notes the last block's
     * in state.selection, and attends to them. Reads no other keys and values. One list for each KV head. */
    void (*attend_sparse)(struct butler_backend *backend, const struct butler_attend_span *span);
    /* workspace scores for q[n_heads][head_dim], raw: of every slot or page, as the metric gives them, or bounds of the pages of
     * its first stage */
    void (*score)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, bool bounds);
    /* workspace scores -> lists: reduced over the heads that share a selection (plan->reduction), chosen, noted in
     * state->selection. In two stages the tokens of the chosen pages are scored for q in between. */
    void (*select)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                   const struct butler_selecting *selecting, const struct butler_lists *lists);
    /* The lists of the step before position selected_at, and the tokens that came since. */
    void (*repeat)(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                   const struct butler_selecting *selecting, const struct butler_lists *lists);
    /* workspace scores -> lists of the full units of each KV head that do not stay, ascending. */
    void (*select_leaving)(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_cut *cut,
                           const struct butler_lists *lists);
    /* Takes the units of the lists out of the cache: the metric forgets them, rows and records of later ones move into the holes.
     */
    void (*compact)(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_lists *lists);
    void (*attend)(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_attend_token *token);

    /* Appends, and attends to all slots up to each token's own (span->exact). */
    void (*attend_exact)(struct butler_backend *backend, const struct butler_attend_span *span);
    /* What exact attention of q[n_heads][head_dim] (host memory) gives. state.position: that of the newest token in the cache. */
    void (*exact_weights)(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                          const struct butler_exact *exact);

    /* ---- several of these at once, with the same results; each may be NULL: the engine then calls them one by one (method.c) ----
     */

    /* append, score, select or repeat, and attend of a span that retrieves. False: nothing was done, for it would be no faster. */
    bool (*retrieve_fused)(struct butler_backend *backend, const struct butler_attend_span *span);
    /* Everything that the spans of several sessions do in a layer. A span's result does not depend on the others. */
    void (*attend_spans)(struct butler_backend *backend, const struct butler_attend_span *spans, int n_spans);
    /* score, select_leaving and compact of one session or several, for the last query of each span. */
    void (*evict_spans)(struct butler_backend *backend, const struct butler_attend_span *spans, const struct butler_cut *cuts,
                        int n_spans);

    /* ---- itself ---- */

    /* Another backend of this kind for another pool of threads, which must outlive it. NULL with *err filled on failure. */
    struct butler_backend *(*another)(const struct butler_backend *backend, struct butler_pool *pool, struct butler_error *err);
    void (*destroy)(struct butler_backend *backend);
};

static inline int butler_backend_check(struct butler_backend *backend, struct butler_error *err)
{
    return backend->check ? backend->check(backend, err) : 0;
}

static inline int butler_backend_check_plan(const struct butler_backend *backend, const struct butler_plan *plan,
                                            enum butler_kv_type type, int group, struct butler_error *err)
{
    return backend->check_plan ? backend->check_plan(backend, plan, type, group, err) : 0;
}

static inline void butler_backend_free(struct butler_backend *backend) /* may be NULL */
{
    if (backend)
        backend->destroy(backend);
}

/* Arrays in device memory, allocated together: first every piece is requested, then the whole is made. */
int butler_buffers_make(struct butler_buffers *buffers, struct butler_backend *backend, struct butler_error *err);
void butler_buffers_free(struct butler_buffers *buffers);

void butler_workspace_free(struct butler_workspace *work);

/* Where the lists of a step of the layer `ahead` layers after state's are put (method.c). */
struct butler_lists butler_lists_of(const struct butler_layer_state *state, int ahead);

#endif
