/* The CPU backend: memory and dense operations (this file, products in matmul.c) and attention (attend_*.c, retrieve.c, evict.c),
 * run by the pool's threads over the kernel table. Outputs are split, never sums, so that the number of threads changes no bit. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/attend.h"
#include "cpu/backend_cpu.h"
#include "cpu/matmul.h"
#include "cpu/methods.h"

static void cpu_embed(struct butler_backend *backend, float *y, const struct butler_matrix *table, const int32_t *ids, int n)
{
    for (int t = 0; t < n; t++)
        backend->kernels->dequant[table->type](y + (size_t)t * (size_t)table->n_cols,
                                               (const unsigned char *)table->data + (size_t)ids[t] * table->row_bytes,
                                               table->n_cols);
}

/* Operations on every row of a block by itself share one way of being split: some rows a task. */
struct rows_job {
    const struct butler_kernels *kernels;
    float *y, *gate;
    const float *x;
    const struct butler_rotation *rotations;
    const struct butler_angles *angles;
    const struct butler_vector *vector;
    size_t stride;
    int n, dim, n_rotations, kind;
    float eps;
    void (*row)(const struct rows_job *job, int row);
};

enum { ROWS_PER_TASK = 8 };

static void rows_task(void *context, int task, int thread)
{
    const struct rows_job *job = context;
    (void)thread;
    for (int r = task * ROWS_PER_TASK; r < BUTLER_MIN(job->n, (task + 1) * ROWS_PER_TASK); r++)
        job->row(job, r);
}

static void run_rows(struct butler_backend *backend, struct rows_job *job)
{
    job->kernels = backend->kernels;
    butler_pool_run(backend->pool, rows_task, job, BUTLER_CEIL_DIV(job->n, ROWS_PER_TASK));
}

static void norm_row(const struct rows_job *job, int row)
{
    float *y = job->y + (size_t)row * (size_t)job->dim;
    const float *x = job->x + (size_t)row * (size_t)job->dim;
    const int part = job->vector->n_parts > 1 ? row % job->vector->n_parts : 0;
    const float *weight = job->vector->weight + (size_t)part * (size_t)job->dim;
    if (job->kind == BUTLER_NORM_RMS)
        job->kernels->rms_norm(y, x, weight, job->dim, job->eps);
    else
        job->kernels->layer_norm(y, x, weight, job->vector->bias, job->dim, job->eps);
}

static void cpu_norm(struct butler_backend *backend, float *y, const float *x, const struct butler_vector *v, int n, int dim,
                     enum butler_norm kind, float eps)
{
    run_rows(backend,
             &(struct rows_job){.y = y, .x = x, .vector = v, .n = n, .dim = dim, .kind = (int)kind, .eps = eps, .row = norm_row});
}

static void rope_row(const struct rows_job *job, int row)
{
    const struct butler_angles *angles = job->angles;
    const size_t at = (size_t)row * (size_t)angles->n_rot / 2;
    for (int i = 0; i < job->n_rotations; i++) {
        const struct butler_rotation *r = &job->rotations[i];
        for (int h = 0; h < r->n_heads; h++)
            butler_rotate(job->kernels, angles->kind, r->x + (size_t)(row * r->n_heads + h) * (size_t)angles->head_dim,
                          angles->cos + at, angles->sin + at, angles->n_rot);
    }
}

static void cpu_rope(struct butler_backend *backend, const struct butler_rotation *rotations, int n_rotations,
                     const struct butler_angles *angles, int n)
{
    run_rows(backend,
             &(struct rows_job){.rotations = rotations, .n_rotations = n_rotations, .angles = angles, .n = n, .row = rope_row});
}

enum { PIECE = 1024 }; /* of a row that is activated */

static void activate_piece(const struct rows_job *job, int piece)
{
    const int n_pieces = BUTLER_CEIL_DIV(job->dim, PIECE), first = piece % n_pieces * PIECE,
              n = BUTLER_MIN(job->dim - first, PIECE);
    float *y = job->y + (size_t)(piece / n_pieces) * job->stride + first;
    float *gate = job->gate ? job->gate + (size_t)(piece / n_pieces) * (size_t)job->dim + first : NULL, *x = gate ? gate : y;
    float ones[PIECE];
    switch ((enum butler_activation)job->kind) {
    case BUTLER_SILU:
        for (int i = 0; !gate && i < n; i++)
            ones[i] = 1;
        job->kernels->silu_mul(y, x, gate ? y : ones, n);
        return;
    case BUTLER_GELU:
        job->kernels->gelu(x, n);
        break;
    case BUTLER_GELU_ERF:
        for (int i = 0; i < n; i++)
            x[i] = 0.5f * x[i] * (1 + erff(x[i] * 0.70710678f));
        break;
    case BUTLER_SWIGLU_CLAMPED:
        for (int i = 0; gate && i < n; i++) {
            const float g = gate[i] > 7 ? 7 : gate[i], u = y[i] > 7 ? 7 : y[i] < -7 ? -7 : y[i]; /* NaN stays, and is found */
            y[i] = (u + 1) * g / (1 + expf(-1.702f * g));
        }
        return;
    case BUTLER_RELU:
        for (int i = 0; i < n; i++)
            x[i] = x[i] < 0 ? 0 : x[i];
        break;
    }
    for (int i = 0; gate && i < n; i++)
        y[i] *= gate[i];
}

static void cpu_activate(struct butler_backend *backend, float *up, size_t up_stride, float *gate, int n, int dim,
                         enum butler_activation kind)
{
    run_rows(backend, &(struct rows_job){.y = up,
                                         .gate = gate,
                                         .stride = up_stride,
                                         .n = n * BUTLER_CEIL_DIV(dim, PIECE),
                                         .dim = dim,
                                         .kind = (int)kind,
                                         .row = activate_piece});
}

static void cpu_add(struct butler_backend *backend, float *y, const float *x, size_t n)
{
    backend->kernels->add(y, x, (int)n);
}

static void cpu_gather_rows(struct butler_backend *backend, float *to, const float *from, const int *rows, int n, int dim)
{
    (void)backend;
    for (int i = 0; i < n; i++)
        if (to != from || rows[i] != i)
            memcpy(to + (size_t)i * (size_t)dim, from + (size_t)rows[i] * (size_t)dim, (size_t)dim * sizeof *to);
}

static void cpu_scatter_add(struct butler_backend *backend, float *to, const float *from, const int *rows, const float *factors,
                            int n, int dim)
{
    for (int i = 0; i < n; i++)
        backend->kernels->axpy(to + (size_t)rows[i] * (size_t)dim, factors[i], from + (size_t)i * (size_t)dim, dim);
}

/* Integer operations and no early return, so that compilers vectorise the loop: a third of the time. */
static bool all_finite(const float *x, int n)
{
    const int32_t exponent = 0x7f800000;
    int32_t others = 0;
    for (int i = 0; i < n; i++) {
        int32_t bits;
        memcpy(&bits, x + i, sizeof bits);
        others |= (bits & exponent) == exponent;
    }
    return !others;
}

static void find_highest(const float *x, int n, int k, struct butler_top *top)
{
    int n_top = 0;
    for (int i = 0; i < n && k > 0; i++) {
        if (n_top == k && !(x[i] > top->values[k - 1]))
            continue;
        n_top += n_top < k;
        int at = n_top - 1;
        for (; at > 0 && x[i] > top->values[at - 1]; at--) {
            top->values[at] = top->values[at - 1];
            top->ids[at] = top->ids[at - 1];
        }
        top->values[at] = x[i];
        top->ids[at] = i;
    }
}

static void cpu_finite_top_k(struct butler_backend *backend, const float *x, int n_rows, int n, int k, struct butler_top *tops)
{
    (void)backend;
    for (int r = 0; r < n_rows; r++, x += n) {
        int i = all_finite(x, n) ? n : 0;
        while (i < n && isfinite(x[i]))
            i++;
        tops[r].not_finite = i < n ? i : -1;
        tops[r].value = i < n ? x[i] : 0;
        find_highest(x, n, BUTLER_MIN(k, n), &tops[r]);
    }
}

static void cpu_scale(struct butler_backend *backend, float *x, float factor, size_t n)
{
    backend->kernels->scale(x, factor, (int)n);
}

static void cpu_softcap(struct butler_backend *backend, float *x, float cap, size_t n)
{
    (void)backend;
    butler_softcap(x, (int)n, cap);
}

/* -------------------------------------------------------------------------------------------------- memory */

static void *cpu_alloc(struct butler_backend *backend, size_t n_bytes, bool sparse, struct butler_error *err)
{
    (void)backend;
    return butler_reserve(n_bytes, !sparse, err);
}

static void cpu_free(struct butler_backend *backend, void *address, size_t n_bytes)
{
    (void)backend;
    butler_unreserve(address, n_bytes);
}

static void cpu_discard(struct butler_backend *backend, void *address, size_t n_bytes)
{
    (void)backend;
    butler_reserve_discard(address, n_bytes);
}

static void cpu_move(struct butler_backend *backend, void *to, const void *from, size_t n_bytes)
{
    (void)backend;
    memcpy(to, from, n_bytes);
}

static void cpu_upload_many(struct butler_backend *backend, const struct butler_upload *uploads, int n)
{
    (void)backend;
    for (int i = 0; i < n; i++)
        memcpy(uploads[i].to, uploads[i].host, uploads[i].n_bytes);
}

static void cpu_zero_many(struct butler_backend *backend, const struct butler_piece *pieces, int n)
{
    (void)backend;
    for (int i = 0; i < n; i++)
        memset(pieces[i].address, 0, pieces[i].n_bytes);
}

/* The CPU reads weights where they are. */
static int cpu_bind_weights(struct butler_backend *backend, const struct butler_weights *weights, int n, struct butler_error *err)
{
    (void)backend, (void)weights, (void)n, (void)err;
    return 0;
}

static int cpu_make_workspace(struct butler_backend *backend, struct butler_workspace *work, const struct butler_hparams *hp,
                              const struct butler_workspace_sizes *sizes, struct butler_error *err)
{
    const size_t slots = (size_t)sizes->max_slots, heads = (size_t)hp->n_heads, threads = (size_t)sizes->n_threads,
                 dim = (size_t)hp->head_dim;
    const int group = hp->n_heads / hp->n_kv_heads;
    struct butler_arena *pieces = &work->memory.pieces;
    memset(work, 0, sizeof *work);
    work->max_slots = sizes->max_slots;
    work->n_threads = sizes->n_threads;
    work->score_stride = (slots + 15) / 16 * 16;
    work->tile_rows = butler_attend_kept_rows(group, sizes->max_slots);
    work->block_floats = butler_attend_block_floats(group, hp->head_dim, sizes->max_slots);
    butler_arena_want(pieces, &work->scores, heads * work->score_stride, sizeof(float));
    butler_arena_want(pieces, &work->slots, heads * slots, sizeof(uint32_t));
    butler_arena_want(pieces, &work->list_slots, heads, sizeof(uint32_t *));
    butler_arena_want(pieces, &work->list_n, heads, sizeof(int));
    butler_arena_want(pieces, &work->turns, (size_t)sizes->max_rows * (size_t)hp->n_kv_heads, sizeof(int));
    butler_arena_want(pieces, &work->units, threads * 4 * slots, sizeof(uint32_t));
    butler_arena_want(pieces, &work->ordered, threads * 2 * slots, sizeof(float));
    butler_arena_want(pieces, &work->row_scales, heads, sizeof(float));
    butler_arena_want(pieces, &work->row_shifts, heads, sizeof(float));
    butler_arena_want(pieces, &work->partial, BUTLER_CHECK_ROWS * heads * BUTLER_CEIL_DIV(slots, BUTLER_SLICE) * (dim + 2),
                      sizeof(float));
    butler_arena_want(pieces, &work->tile, threads * (size_t)work->tile_rows * work->score_stride, sizeof(float));
    butler_arena_want(pieces, &work->tile_q, threads * (size_t)work->tile_rows * dim, sizeof(float));
    butler_arena_want(pieces, &work->tile_out, threads * (size_t)work->tile_rows * dim, sizeof(float));
    butler_arena_want(pieces, &work->block, threads * work->block_floats, sizeof(float));
    if (sizes->products) {
        const int n_columns = BUTLER_MAX(BUTLER_MAX(hp->n_embd, butler_widest_ff(hp)), hp->n_heads * hp->head_dim);
        work->panel_floats = butler_matmul_panel_floats(n_columns);
        work->packed_bytes = butler_matmul_packed_bytes(BUTLER_MIN(sizes->max_rows, BUTLER_PACKED_TOKENS), n_columns);
        butler_arena_want(pieces, &work->panel, threads * work->panel_floats, sizeof(float));
        butler_arena_want(pieces, &work->packed, work->packed_bytes, 1);
    }
    if (sizes->rotates)
        butler_arena_want(pieces, &work->rotated, threads * BUTLER_CHUNK * dim, sizeof(float));
    return butler_buffers_make(&work->memory, backend, err);
}

/* --------------------------------------------------------------------------------------------------- making */

static void cpu_destroy(struct butler_backend *backend)
{
    free(backend);
}

static struct butler_backend *cpu_another(const struct butler_backend *backend, struct butler_pool *pool, struct butler_error *err)
{
    return butler_backend_cpu(pool, backend->isa, err);
}

struct butler_backend *butler_backend_cpu(struct butler_pool *pool, const char *isa, struct butler_error *err)
{
    const struct butler_kernels *kernels = butler_kernels_get(isa);
    if (!kernels) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "no kernels for isa '%s' on this CPU", isa);
        return NULL;
    }
    struct butler_backend *backend = butler_alloc(sizeof *backend, err);
    if (!backend)
        return NULL;
    *backend = (struct butler_backend){
        .name = "cpu",
        .isa = kernels->isa,
        .pool = pool,
        .kernels = kernels,
        /* A matrix unit is faster than weights can be made ready for it: more tokens for each. */
        .block_rows = kernels->tiles ? 512 : 256,
        .alloc = cpu_alloc,
        .free = cpu_free,
        .discard = cpu_discard,
        .upload = cpu_move,
        .download = cpu_move,
        .copy = cpu_move,
        .upload_many = cpu_upload_many,
        .zero_many = cpu_zero_many,
        .make_workspace = cpu_make_workspace,
        .bind_weights = cpu_bind_weights,
        .embed = cpu_embed,
        .matmul = butler_matmul,
        .norm = cpu_norm,
        .rope = cpu_rope,
        .activate = cpu_activate,
        .add = cpu_add,
        .gather_rows = cpu_gather_rows,
        .scatter_add = cpu_scatter_add,
        .scale = cpu_scale,
        .softcap = cpu_softcap,
        .finite_top_k = cpu_finite_top_k,
        .append = butler_attend_append,
        .summarise = butler_attend_summarise,
        .attend_block = butler_attend_block,
        .attend_sparse = butler_attend_sparse,
        .score = butler_attend_score,
        .attend = butler_attend,
        .attend_exact = butler_attend_exact,
        .exact_weights = butler_exact_weights,
        .select = butler_select_lists,
        .repeat = butler_repeat_lists,
        .select_leaving = butler_select_leaving,
        .compact = butler_compact,
        .retrieve_fused = butler_retrieve_fused,
        .attend_spans = butler_attend_spans,
        .evict_spans = butler_evict_spans,
        .another = cpu_another,
        .destroy = cpu_destroy,
    };
    return backend;
}
