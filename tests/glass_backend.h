/* A backend whose memory nobody can touch outside its operations: the CPU's operations, over address space that is unreadable
 * between them. An engine that reads or writes device memory by itself ends with a segmentation fault. */
#ifndef BUTLER_TESTS_GLASS_BACKEND_H
#define BUTLER_TESTS_GLASS_BACKEND_H

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "cpu/backend_cpu.h"
#include "engine/abi.h"
#include "engine/engine.h"
#include "metrics/registry.h"

/* All memory is one range of address space, so that one call protects it: a stack, from which what is freed goes when all above it
 * is free too. */
#define GLASS_BYTES ((size_t)1 << 34)
enum { GLASS_REGIONS = 1024, GLASS_OPERATIONS = 40 };
/* Protecting memory is slow: a long test does it after every n-th operation, n no divisor of those of a layer. */
#ifndef GLASS_EVERY
#define GLASS_EVERY 1
#endif

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
    int n_regions, depth; /* depth: operations that are running, for some call others */
    uint64_t n_left;      /* operations that have ended */
    struct butler_weights *bound;
    int n_bound;
    struct {
        const char *operation; /* NULL: the end */
        uint64_t n;
    } counts[GLASS_OPERATIONS + 1];
};

static inline void glass_protect(struct glass *glass, int protection)
{
    if (glass->used > 0 && mprotect(glass->base, glass->used, protection) != 0)
        abort();
}

static inline struct butler_backend *glass_enter(struct butler_backend *backend, const char *operation)
{
    struct glass *glass = (struct glass *)backend;
    int i = 0;
    while (glass->counts[i].operation && strcmp(glass->counts[i].operation, operation) != 0)
        i++;
    glass->counts[i].operation = operation;
    glass->counts[i].n += glass->depth == 0;
    if (glass->depth++ == 0)
        glass_protect(glass, PROT_READ | PROT_WRITE);
    glass->inner->batch = backend->batch;
    return glass->inner;
}

static inline void glass_leave(struct butler_backend *backend)
{
    struct glass *glass = (struct glass *)backend;
    if (--glass->depth == 0 && ++glass->n_left % GLASS_EVERY == 0)
        glass_protect(glass, PROT_NONE);
}

static void *glass_alloc(struct butler_backend *backend, size_t n_bytes, bool sparse, struct butler_error *err)
{
    struct glass *glass = (struct glass *)backend;
    (void)sparse;
    (void)err;
    if (glass->used + n_bytes + 8192 > GLASS_BYTES || glass->depth > 0 || glass->n_regions == GLASS_REGIONS)
        abort();
    unsigned char *address = glass->base + glass->used;
    glass->regions[glass->n_regions].free = false;
    glass->regions[glass->n_regions++].from = glass->used;
    glass->used += (BUTLER_MAX(n_bytes, 1) + 4095) / 4096 * 4096;
    return address;
}

static void glass_free(struct butler_backend *backend, void *address, size_t n_bytes)
{
    struct glass *glass = (struct glass *)backend;
    if (!address)
        return;
    int i = 0;
    while (i < glass->n_regions && glass->base + glass->regions[i].from != (unsigned char *)address)
        i++;
    if (i == glass->n_regions || glass->regions[i].free) /* not one of ours, or freed twice */
        abort();
    butler_reserve_discard(address, (BUTLER_MAX(n_bytes, 1) + 4095) / 4096 * 4096); /* what is there next reads as zero */
    glass->regions[i].free = true;
    while (glass->n_regions > 0 && glass->regions[glass->n_regions - 1].free)
        glass->used = glass->regions[--glass->n_regions].from;
}

#define GLASS(name, parameters, arguments)                                                                                         \
    static void glass_##name parameters                                                                                            \
    {                                                                                                                              \
        struct butler_backend *inner = glass_enter(backend, #name);                                                                \
        inner->name arguments;                                                                                                     \
        glass_leave(backend);                                                                                                      \
    }

GLASS(discard, (struct butler_backend * backend, void *address, size_t n_bytes), (inner, address, n_bytes))
GLASS(upload, (struct butler_backend * backend, void *to, const void *host, size_t n_bytes), (inner, to, host, n_bytes))
GLASS(download, (struct butler_backend * backend, void *host, const void *from, size_t n_bytes), (inner, host, from, n_bytes))
GLASS(copy, (struct butler_backend * backend, void *to, const void *from, size_t n_bytes), (inner, to, from, n_bytes))
GLASS(zero_many, (struct butler_backend * backend, const struct butler_piece *pieces, int n), (inner, pieces, n))

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
    inner->embed(inner, y, table, ids, n);
    glass_leave(backend);
}

static void glass_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                         int n_products, const float *x, int n)
{
    for (int i = 0; i < n_products; i++)
        glass_matrix(backend, products[i].w);
    struct butler_backend *inner = glass_enter(backend, "matmul");
    inner->activation_bits = backend->activation_bits; /* which the engine sets after it was made */
    inner->matmul(inner, work, products, n_products, x, n);
    glass_leave(backend);
}

static void glass_norm(struct butler_backend *backend, float *y, const float *x, const struct butler_vector *v, int n, int dim,
                       enum butler_norm kind, float eps)
{
    const size_t bytes = (size_t)BUTLER_MAX(v->n_parts, 1) * (size_t)dim * sizeof(float);
    glass_weights(backend, v->weight, bytes);
    glass_weights(backend, v->bias, bytes);
    struct butler_backend *inner = glass_enter(backend, "norm");
    inner->norm(inner, y, x, v, n, dim, kind, eps);
    glass_leave(backend);
}

GLASS(rope,
      (struct butler_backend * backend, const struct butler_rotation *rotations, int n_rotations, const float *cos,
       const float *sin, int n, int head_dim, int n_rot, enum butler_rope kind),
      (inner, rotations, n_rotations, cos, sin, n, head_dim, n_rot, kind))
GLASS(activate,
      (struct butler_backend * backend, float *up, size_t up_stride, float *gate, int n, int dim, enum butler_activation kind),
      (inner, up, up_stride, gate, n, dim, kind))
GLASS(add, (struct butler_backend * backend, float *y, const float *x, size_t n), (inner, y, x, n))
GLASS(gather_rows, (struct butler_backend * backend, float *to, const float *from, const int *rows, int n, int dim),
      (inner, to, from, rows, n, dim))
GLASS(scatter_add,
      (struct butler_backend * backend, float *to, const float *from, const int *rows, const float *factors, int n, int dim),
      (inner, to, from, rows, factors, n, dim))
GLASS(finite_top_k, (struct butler_backend * backend, const float *x, int n_rows, int n, int k, struct butler_top *tops),
      (inner, x, n_rows, n, k, tops))
GLASS(exact_weights,
      (struct butler_backend * backend, const struct butler_layer_state *state, const float *q, const struct butler_exact *exact),
      (inner, state, q, exact))
GLASS(scale, (struct butler_backend * backend, float *x, float factor, size_t n), (inner, x, factor, n))
GLASS(softcap, (struct butler_backend * backend, float *x, float cap, size_t n), (inner, x, cap, n))

static inline void glass_sinks(struct butler_backend *backend, const struct butler_layer_state *state)
{
    glass_weights(backend, state->sinks, (size_t)state->n_heads * sizeof(float));
}

GLASS(append, (struct butler_backend * backend, const struct butler_layer_state *state, const float *k, const float *v, int n),
      (inner, state, k, v, n))
GLASS(summarise, (struct butler_backend * backend, const struct butler_layer_state *state, int first), (inner, state, first))

static void glass_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out,
                               int n, int window, int observe_from)
{
    glass_sinks(backend, state);
    struct butler_backend *inner = glass_enter(backend, "attend_block");
    inner->attend_block(inner, state, q, out, n, window, observe_from);
    glass_leave(backend);
}

GLASS(score, (struct butler_backend * backend, const struct butler_layer_state *state, const float *q, bool bounds),
      (inner, state, q, bounds))
GLASS(select,
      (struct butler_backend * backend, const struct butler_layer_state *state, const float *q,
       const struct butler_selecting *selecting, const struct butler_lists *lists),
      (inner, state, q, selecting, lists))
GLASS(repeat,
      (struct butler_backend * backend, const struct butler_layer_state *state, int selected_at,
       const struct butler_selecting *selecting, const struct butler_lists *lists),
      (inner, state, selected_at, selecting, lists))
GLASS(select_leaving,
      (struct butler_backend * backend, const struct butler_layer_state *state, const struct butler_cut *cut,
       const struct butler_lists *lists),
      (inner, state, cut, lists))
GLASS(compact, (struct butler_backend * backend, const struct butler_layer_state *state, const struct butler_lists *lists),
      (inner, state, lists))
GLASS(attend_exact, (struct butler_backend * backend, const struct butler_attend_span *span), (inner, span))

static void glass_attend(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, const float *k,
                         const float *v, const struct butler_lists *lists, int newest, float *out, bool observe)
{
    glass_sinks(backend, state);
    struct butler_backend *inner = glass_enter(backend, "attend");
    inner->attend(inner, state, q, k, v, lists, newest, out, observe);
    glass_leave(backend);
}

static bool glass_retrieve_fused(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct butler_backend *inner = glass_enter(backend, "retrieve_fused");
    const bool done = inner->retrieve_fused(inner, span);
    glass_leave(backend);
    return done;
}

GLASS(attend_spans, (struct butler_backend * backend, const struct butler_attend_span *spans, int n_spans), (inner, spans, n_spans))
GLASS(evict_spans,
      (struct butler_backend * backend, const struct butler_attend_span *spans, const struct butler_cut *cuts, int n_spans),
      (inner, spans, cuts, n_spans))
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
    glass->base = mmap(NULL, GLASS_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
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
