/* A backend whose memory nobody can touch outside its operations: the CPU's operations, on addresses to which a secret is added. An
 * engine that reads or writes device memory by itself ends with a segmentation fault, one that gives an operation host memory
 * for device memory with an abort. What operations are given is translated here: so it can be seen where device addresses are. */
#ifndef BUTLER_TESTS_GLASS_BACKEND_H
#define BUTLER_TESTS_GLASS_BACKEND_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu/backend_cpu.h"
#include "engine/abi.h"
#include "engine/engine.h"
#include "engine/predict.h"
#include "metrics/registry.h"

/* All memory is one range of address space: a stack, from which what is freed goes when all above it is free too. */
#define GLASS_BYTES ((size_t)1 << 34)
#define GLASS_SECRET ((uintptr_t)1 << 50) /* no process has memory there */
enum { GLASS_REGIONS = 1024, GLASS_OPERATIONS = 40, GLASS_THREADS = 64 };

/* Whether engines that are made get what the CPU does at once (backend.h); else they call operation by operation. */
static bool glass_fuses;

struct glass {
    struct butler_backend backend; /* first: a struct butler_backend * of it is one of this */
    struct butler_backend *inner;  /* the CPU's */
    unsigned char *base;           /* [GLASS_BYTES] */
    size_t used;
    struct {
        size_t from;
        bool free;
    } regions[GLASS_REGIONS];
    int n_regions;
    struct butler_workspace batch[GLASS_THREADS];
    struct butler_weights *bound;
    int n_bound;
    struct {
        const char *operation; /* NULL: the end */
        uint64_t n;
    } counts[GLASS_OPERATIONS + 1];
};

/* ------------------------------------------------------------------------------------------------ addresses */

static inline void *glass_address(const void *device)
{
    if (device && (uintptr_t)device < GLASS_SECRET) /* host memory */
        abort();
    return device ? (void *)((uintptr_t)device - GLASS_SECRET) : NULL;
}

#define GLASS_OPEN(pointer) ((pointer) = glass_address(pointer))

static inline void glass_open_workspace(struct butler_workspace *work)
{
    GLASS_OPEN(work->scores), GLASS_OPEN(work->slots), GLASS_OPEN(work->list_slots), GLASS_OPEN(work->list_n);
    GLASS_OPEN(work->turns), GLASS_OPEN(work->units), GLASS_OPEN(work->ordered);
    GLASS_OPEN(work->row_scales), GLASS_OPEN(work->row_shifts), GLASS_OPEN(work->partial);
    GLASS_OPEN(work->tile), GLASS_OPEN(work->tile_q), GLASS_OPEN(work->tile_out);
    GLASS_OPEN(work->block), GLASS_OPEN(work->panel), GLASS_OPEN(work->packed), GLASS_OPEN(work->rotated);
}

/* What an operation on a layer is given, with addresses that it can use. */
struct glass_layer {
    struct butler_layer_state state;
    struct butler_kv kv;
    struct butler_kv_head *heads;
    struct butler_workspace work;
    struct butler_selection selection;
    struct butler_predict predict;
    struct butler_predict_scratch predict_scratch;
};

static inline void glass_open_kv(struct glass_layer *layer)
{
    struct butler_kv *kv = &layer->kv;
    const int n_heads = kv->n_layers * kv->n_kv_heads;
    layer->heads = malloc((size_t)n_heads * sizeof *layer->heads);
    if (!layer->heads)
        abort();
    memcpy(layer->heads, kv->heads, (size_t)n_heads * sizeof *layer->heads);
    for (int i = 0; i < n_heads; i++) {
        struct butler_kv_head *head = &layer->heads[i];
        head->extents = NULL; /* the host's */
        GLASS_OPEN(head->table), GLASS_OPEN(head->positions), GLASS_OPEN(head->order);
        GLASS_OPEN(head->value_norms), GLASS_OPEN(head->records), GLASS_OPEN(head->state);
    }
    kv->heads = layer->heads;
    kv->extents = NULL;
    GLASS_OPEN(kv->pool), GLASS_OPEN(kv->records), GLASS_OPEN(kv->norms), GLASS_OPEN(kv->states), GLASS_OPEN(kv->tables);
    GLASS_OPEN(kv->rope_cos), GLASS_OPEN(kv->rope_sin), GLASS_OPEN(kv->queries);
    if (kv->predict) {
        layer->predict = *kv->predict;
        layer->predict_scratch = *kv->predict->scratch;
        GLASS_OPEN(layer->predict.queries), GLASS_OPEN(layer->predict.keys), GLASS_OPEN(layer->predict_scratch.projections);
        layer->predict.scratch = &layer->predict_scratch;
        kv->predict = &layer->predict;
    }
}

static inline void glass_open_layer(struct glass_layer *layer, const struct butler_layer_state *state)
{
    layer->state = *state;
    layer->kv = *state->kv;
    layer->work = *state->work;
    glass_open_kv(layer);
    glass_open_workspace(&layer->work);
    layer->state.kv = &layer->kv;
    layer->state.work = &layer->work;
    if (state->selection) {
        layer->selection = *state->selection;
        GLASS_OPEN(layer->selection.units), GLASS_OPEN(layer->selection.slots);
        GLASS_OPEN(layer->selection.list_slots), GLASS_OPEN(layer->selection.list_n);
        layer->state.selection = &layer->selection;
    }
}

static inline struct butler_lists glass_lists(const struct butler_lists *lists)
{
    struct butler_lists open = *lists;
    GLASS_OPEN(open.slots), GLASS_OPEN(open.n), GLASS_OPEN(open.memory);
    return open;
}

/* ----------------------------------------------------------------------------------------------- operations */

static inline struct butler_backend *glass_enter(struct butler_backend *backend, const char *operation)
{
    struct glass *glass = (struct glass *)backend;
    int i = 0;
    while (glass->counts[i].operation && strcmp(glass->counts[i].operation, operation) != 0)
        i++;
    glass->counts[i].operation = operation;
    glass->counts[i].n++;
    glass->inner->activation_bits = backend->activation_bits; /* which the engine sets after it was made */
    return glass->inner;
}

static void *glass_alloc(struct butler_backend *backend, size_t n_bytes, bool sparse, struct butler_error *err)
{
    struct glass *glass = (struct glass *)backend;
    (void)sparse;
    (void)err;
    if (glass->used + n_bytes + 8192 > GLASS_BYTES || glass->n_regions == GLASS_REGIONS)
        abort();
    unsigned char *address = glass->base + glass->used;
    glass->regions[glass->n_regions].free = false;
    glass->regions[glass->n_regions++].from = glass->used;
    glass->used += (BUTLER_MAX(n_bytes, 1) + 4095) / 4096 * 4096;
    return (void *)((uintptr_t)address + GLASS_SECRET);
}

static void glass_free(struct butler_backend *backend, void *device, size_t n_bytes)
{
    struct glass *glass = (struct glass *)backend;
    unsigned char *address = glass_address(device);
    if (!address)
        return;
    int i = 0;
    while (i < glass->n_regions && glass->base + glass->regions[i].from != address)
        i++;
    if (i == glass->n_regions || glass->regions[i].free) /* not one of ours, or freed twice */
        abort();
    butler_reserve_discard(address, (BUTLER_MAX(n_bytes, 1) + 4095) / 4096 * 4096); /* what is there next reads as zero */
    glass->regions[i].free = true;
    while (glass->n_regions > 0 && glass->regions[glass->n_regions - 1].free)
        glass->used = glass->regions[--glass->n_regions].from;
}

/* Names in `arguments` are those of `parameters`, or `inner`. */
#define GLASS(name, parameters, arguments)                                                                                         \
    static void glass_##name parameters                                                                                            \
    {                                                                                                                              \
        struct butler_backend *inner = glass_enter(backend, #name);                                                                \
        inner->name arguments;                                                                                                     \
    }
#define GLASS_AT glass_address

GLASS(discard, (struct butler_backend * backend, void *address, size_t n_bytes), (inner, GLASS_AT(address), n_bytes))
GLASS(upload, (struct butler_backend * backend, void *to, const void *host, size_t n_bytes), (inner, GLASS_AT(to), host, n_bytes))
GLASS(download, (struct butler_backend * backend, void *host, const void *from, size_t n_bytes),
      (inner, host, GLASS_AT(from), n_bytes))
GLASS(copy, (struct butler_backend * backend, void *to, const void *from, size_t n_bytes),
      (inner, GLASS_AT(to), GLASS_AT(from), n_bytes))

static void glass_upload_many(struct butler_backend *backend, const struct butler_upload *uploads, int n)
{
    struct butler_backend *inner = glass_enter(backend, "upload_many");
    for (int i = 0; i < n; i++)
        inner->upload_many(inner, &(struct butler_upload){glass_address(uploads[i].to), uploads[i].host, uploads[i].n_bytes}, 1);
}

static void glass_zero_many(struct butler_backend *backend, const struct butler_piece *pieces, int n)
{
    struct butler_backend *inner = glass_enter(backend, "zero_many");
    for (int i = 0; i < n; i++)
        inner->zero_many(inner, &(struct butler_piece){glass_address(pieces[i].address), pieces[i].n_bytes}, 1);
}

/* Weights must have been bound, whole. */
static inline void glass_weights(struct butler_backend *backend, const void *data, size_t n_bytes)
{
    const struct glass *glass = (struct glass *)backend;
    const unsigned char *from = data;
    int i = 0;
    while (data && i < glass->n_bound &&
           !(from >= (const unsigned char *)glass->bound[i].data &&
             from + n_bytes <= (const unsigned char *)glass->bound[i].data + glass->bound[i].n_bytes))
        i++;
    if (data && i == glass->n_bound)
        abort();
}

static inline void glass_matrix(struct butler_backend *backend, const struct butler_matrix *w)
{
    glass_weights(backend, w->data, (size_t)w->n_rows * w->row_bytes);
    glass_weights(backend, w->bias, (size_t)w->n_rows * sizeof *w->bias);
}

static int glass_bind_weights(struct butler_backend *backend, const struct butler_weights *weights, int n, struct butler_error *err)
{
    struct glass *glass = (struct glass *)backend;
    (void)err;
    glass->bound = realloc(glass->bound, ((size_t)glass->n_bound + (size_t)n) * sizeof *weights);
    if (!glass->bound)
        abort();
    memcpy(glass->bound + glass->n_bound, weights, (size_t)n * sizeof *weights);
    glass->n_bound += n;
    return 0;
}

static void glass_embed(struct butler_backend *backend, float *y, const struct butler_matrix *table, const int32_t *ids, int n)
{
    glass_matrix(backend, table);
    struct butler_backend *inner = glass_enter(backend, "embed");
    inner->embed(inner, glass_address(y), table, ids, n);
}

static void glass_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                         int n_products, const float *x, int n)
{
    struct butler_backend *inner = glass_enter(backend, "matmul");
    struct butler_product own[BUTLER_MAX_PRODUCTS];
    struct butler_workspace open = *work;
    glass_open_workspace(&open);
    for (int i = 0; i < n_products; i++) {
        glass_matrix(backend, products[i].w);
        own[i] = (struct butler_product){glass_address(products[i].y), products[i].w};
    }
    inner->matmul(inner, &open, own, n_products, glass_address(x), n);
}

static void glass_norm(struct butler_backend *backend, float *y, const float *x, const struct butler_vector *v, int n, int dim,
                       enum butler_norm kind, float eps)
{
    const size_t bytes = (size_t)BUTLER_MAX(v->n_parts, 1) * (size_t)dim * sizeof(float);
    glass_weights(backend, v->weight, bytes);
    glass_weights(backend, v->bias, bytes);
    struct butler_backend *inner = glass_enter(backend, "norm");
    inner->norm(inner, glass_address(y), glass_address(x), v, n, dim, kind, eps);
}

static void glass_rope(struct butler_backend *backend, const struct butler_rotation *rotations, int n_rotations,
                       const struct butler_angles *angles, int n)
{
    struct butler_backend *inner = glass_enter(backend, "rope");
    struct butler_rotation own[BUTLER_MAX_ROTATIONS];
    for (int i = 0; i < n_rotations; i++)
        own[i] = (struct butler_rotation){glass_address(rotations[i].x), rotations[i].n_heads};
    struct butler_angles opened = *angles;
    GLASS_OPEN(opened.cos), GLASS_OPEN(opened.sin);
    inner->rope(inner, own, n_rotations, &opened, n);
}

GLASS(activate,
      (struct butler_backend * backend, float *up, size_t up_stride, float *gate, int n, int dim, enum butler_activation kind),
      (inner, GLASS_AT(up), up_stride, GLASS_AT(gate), n, dim, kind))
GLASS(add, (struct butler_backend * backend, float *y, const float *x, size_t n), (inner, GLASS_AT(y), GLASS_AT(x), n))
GLASS(gather_rows, (struct butler_backend * backend, float *to, const float *from, const int *rows, int n, int dim),
      (inner, GLASS_AT(to), GLASS_AT(from), rows, n, dim))
GLASS(scatter_add,
      (struct butler_backend * backend, float *to, const float *from, const int *rows, const float *factors, int n, int dim),
      (inner, GLASS_AT(to), GLASS_AT(from), rows, factors, n, dim))
GLASS(finite_top_k, (struct butler_backend * backend, const float *x, int n_rows, int n, int k, struct butler_top *tops),
      (inner, GLASS_AT(x), n_rows, n, k, tops))
GLASS(scale, (struct butler_backend * backend, float *x, float factor, size_t n), (inner, GLASS_AT(x), factor, n))
GLASS(softcap, (struct butler_backend * backend, float *x, float cap, size_t n), (inner, GLASS_AT(x), cap, n))

/* An operation on a layer: `arguments` follow the backend and its state. */
#define GLASS_LAYER(name, parameters, arguments)                                                                                   \
    static void glass_##name parameters                                                                                            \
    {                                                                                                                              \
        struct butler_backend *inner = glass_enter(backend, #name);                                                                \
        struct glass_layer layer;                                                                                                  \
        glass_weights(backend, state->sinks, (size_t)state->n_heads * sizeof(float));                                              \
        glass_open_layer(&layer, state);                                                                                           \
        inner->name arguments;                                                                                                     \
        free(layer.heads);                                                                                                         \
    }

GLASS_LAYER(append,
            (struct butler_backend * backend, const struct butler_layer_state *state, const float *k, const float *v, int n),
            (inner, &layer.state, GLASS_AT(k), GLASS_AT(v), n))
GLASS_LAYER(summarise, (struct butler_backend * backend, const struct butler_layer_state *state, int first),
            (inner, &layer.state, first))
GLASS_LAYER(attend_block,
            (struct butler_backend * backend, const struct butler_layer_state *state, const float *q, float *out, int n, int window,
             int observe_from),
            (inner, &layer.state, GLASS_AT(q), GLASS_AT(out), n, window, observe_from))
GLASS_LAYER(score, (struct butler_backend * backend, const struct butler_layer_state *state, const float *q, bool bounds),
            (inner, &layer.state, GLASS_AT(q), bounds))
GLASS_LAYER(exact_weights,
            (struct butler_backend * backend, const struct butler_layer_state *state, const float *q,
             const struct butler_exact *exact),
            (inner, &layer.state, q, exact))

#define GLASS_LISTS (&(struct butler_lists[]){glass_lists(lists)}[0])
GLASS_LAYER(select,
            (struct butler_backend * backend, const struct butler_layer_state *state, const float *q,
             const struct butler_selecting *selecting, const struct butler_lists *lists),
            (inner, &layer.state, GLASS_AT(q), selecting, GLASS_LISTS))
GLASS_LAYER(repeat,
            (struct butler_backend * backend, const struct butler_layer_state *state, int selected_at,
             const struct butler_selecting *selecting, const struct butler_lists *lists),
            (inner, &layer.state, selected_at, selecting, GLASS_LISTS))
GLASS_LAYER(select_leaving,
            (struct butler_backend * backend, const struct butler_layer_state *state, const struct butler_cut *cut,
             const struct butler_lists *lists),
            (inner, &layer.state, cut, GLASS_LISTS))
GLASS_LAYER(compact, (struct butler_backend * backend, const struct butler_layer_state *state, const struct butler_lists *lists),
            (inner, &layer.state, GLASS_LISTS))
GLASS_LAYER(attend,
            (struct butler_backend * backend, const struct butler_layer_state *state, const struct butler_attend_token *token),
            (inner, &layer.state,
             &(struct butler_attend_token){GLASS_AT(token->q), GLASS_AT(token->k), GLASS_AT(token->v),
                                           token->lists ? &(struct butler_lists[]){glass_lists(token->lists)}[0] : NULL,
                                           token->newest, GLASS_AT(token->out), token->observe}))

/* Opens n spans, and the scratch of threads. */
static inline struct glass_layer *glass_spans(struct butler_backend *backend, const struct butler_attend_span *spans, int n,
                                              struct butler_attend_span *open)
{
    struct glass *glass = (struct glass *)backend;
    struct glass_layer *layers = malloc((size_t)n * sizeof *layers);
    if (!layers || butler_pool_size(backend->pool) > GLASS_THREADS)
        abort();
    for (int i = 0; i < n; i++) {
        open[i] = spans[i];
        glass_weights(backend, spans[i].state.sinks, (size_t)spans[i].state.n_heads * sizeof(float));
        glass_open_layer(&layers[i], &spans[i].state);
        open[i].state = layers[i].state;
        GLASS_OPEN(open[i].q), GLASS_OPEN(open[i].k), GLASS_OPEN(open[i].v), GLASS_OPEN(open[i].out);
    }
    for (int i = 0; backend->batch && i < butler_pool_size(backend->pool); i++) {
        glass->batch[i] = backend->batch[i];
        glass_open_workspace(&glass->batch[i]);
    }
    glass->inner->batch = glass->batch;
    return layers;
}

static inline void glass_close_spans(struct glass_layer *layers, int n)
{
    for (int i = 0; i < n; i++)
        free(layers[i].heads);
    free(layers);
}

static void glass_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct butler_backend *inner = glass_enter(backend, "attend_exact");
    struct butler_attend_span open;
    struct glass_layer *layers = glass_spans(backend, span, 1, &open);
    inner->attend_exact(inner, &open);
    glass_close_spans(layers, 1);
}

static void glass_attend_sparse(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct butler_backend *inner = glass_enter(backend, "attend_sparse");
    struct butler_attend_span open;
    struct glass_layer *layers = glass_spans(backend, span, 1, &open);
    inner->attend_sparse(inner, &open);
    glass_close_spans(layers, 1);
}

static bool glass_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct butler_backend *inner = glass_enter(backend, "retrieve_fused");
    struct butler_attend_span open;
    struct glass_layer *layers = glass_spans(backend, span, 1, &open);
    const bool done = inner->retrieve_fused(inner, &open);
    glass_close_spans(layers, 1);
    return done;
}

static void glass_attend_spans(struct butler_backend *backend, const struct butler_attend_span *spans, int n_spans)
{
    struct butler_backend *inner = glass_enter(backend, "attend_spans");
    struct butler_attend_span *open = malloc((size_t)n_spans * sizeof *open);
    struct glass_layer *layers = open ? glass_spans(backend, spans, n_spans, open) : NULL;
    if (!layers)
        abort();
    inner->attend_spans(inner, open, n_spans);
    glass_close_spans(layers, n_spans);
    free(open);
}

static void glass_evict_spans(struct butler_backend *backend, const struct butler_attend_span *spans, const struct butler_cut *cuts,
                              int n_spans)
{
    struct butler_backend *inner = glass_enter(backend, "evict_spans");
    struct butler_attend_span *open = malloc((size_t)n_spans * sizeof *open);
    struct glass_layer *layers = open ? glass_spans(backend, spans, n_spans, open) : NULL;
    if (!layers)
        abort();
    inner->evict_spans(inner, open, cuts, n_spans);
    glass_close_spans(layers, n_spans);
    free(open);
}

static void glass_destroy(struct butler_backend *backend)
{
    struct glass *glass = (struct glass *)backend;
    if (glass->n_regions != 0) /* something was not given back */
        abort();
    munmap(glass->base, GLASS_BYTES);
    butler_backend_free(glass->inner);
    free(glass->bound);
    free(glass);
}

/* Takes the place of butler_engine_new: an engine on it; NULL with *err filled on failure. */
static inline struct butler_engine *glass_engine(struct butler_model *model, const struct butler_engine_params *wanted,
                                                 struct butler_error *err)
{
    struct butler_engine_params own, *params = &own;
    if (butler_take_struct(&own, sizeof own, wanted, sizeof own, "butler_engine_params", err) < 0)
        return NULL;
    if (own.kv_bytes == 0)
        own.kv_bytes = 1 << 28;
    own.n_threads = own.n_threads > 0 ? own.n_threads : 2;
    struct butler_pool *pool = butler_pool_new(BUTLER_MAX(params->n_threads, 1), err);
    struct glass *glass = pool ? calloc(1, sizeof *glass) : NULL;
    if (!glass || !(glass->inner = butler_backend_cpu(pool, params->isa, err)))
        abort();
    glass->base = mmap(NULL, GLASS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (glass->base == MAP_FAILED)
        abort();
    struct butler_backend *b = &glass->backend;
    *b = *glass->inner;
    b->name = "glass";
    b->alloc = glass_alloc;
    b->free = glass_free;
    b->discard = glass_discard;
    b->upload = glass_upload;
    b->download = glass_download;
    b->copy = glass_copy;
    b->upload_many = glass_upload_many;
    b->zero_many = glass_zero_many;
    b->bind_weights = glass_bind_weights;
    b->embed = glass_embed;
    b->matmul = glass_matmul;
    b->norm = glass_norm;
    b->rope = glass_rope;
    b->activate = glass_activate;
    b->add = glass_add;
    b->gather_rows = glass_gather_rows;
    b->scatter_add = glass_scatter_add;
    b->scale = glass_scale;
    b->softcap = glass_softcap;
    b->finite_top_k = glass_finite_top_k;
    b->select = glass_select;
    b->repeat = glass_repeat;
    b->select_leaving = glass_select_leaving;
    b->compact = glass_compact;
    b->attend_exact = glass_attend_exact;
    b->attend_sparse = glass_attend_sparse;
    b->retrieve_fused = glass_fuses ? glass_retrieve_fused : NULL;
    b->attend_spans = glass_fuses ? glass_attend_spans : NULL;
    b->evict_spans = glass_fuses ? glass_evict_spans : NULL;
    b->append = glass_append;
    b->summarise = glass_summarise;
    b->attend_block = glass_attend_block;
    b->score = glass_score;
    b->attend = glass_attend;
    b->exact_weights = glass_exact_weights;
    b->destroy = glass_destroy;
    return butler_engine_new_on(model, params, &butler_builtin, pool, b, err);
}

#endif
