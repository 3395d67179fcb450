/* A backend for a device behind a driver: its making, and the operations on rows of activations. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/backend_gpu.h"
#include "gpu/gpu.h"

/* ----------------------------------------------------------------------------------------------- operations on rows */

static void gpu_embed(struct butler_backend *backend, float *y, const struct butler_matrix *table, const int32_t *ids, int n)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    butler_gpu_stage(gpu, ids, 0, (size_t)n * sizeof *ids);
    butler_gpu_launch(gpu, GPU_embed, n, BUTLER_CEIL_DIV(table->n_cols, 32 * GPU_THREADS), 1, y, table->data, GPU_STAGING(gpu),
                      (int)table->type, (int)table->row_bytes, table->n_cols);
}

static void gpu_matmul(struct butler_backend *backend, struct butler_workspace *work, const struct butler_product *products,
                       int n_products, const float *x, int n)
{
    static const struct butler_matrix none;
    const struct butler_matrix *w[BUTLER_MAX_PRODUCTS] = {&none, &none, &none};
    float *y[BUTLER_MAX_PRODUCTS] = {NULL};
    int n_groups = 0;
    (void)work;
    for (int i = 0; i < n_products; i++) {
        y[i] = products[i].y;
        w[i] = products[i].w;
        n_groups += BUTLER_CEIL_DIV(w[i]->n_rows, GPU_THREADS / GPU_LANES);
    }
#define PRODUCT(i) y[i], w[i]->data, w[i]->bias, (int)w[i]->type, (int)w[i]->row_bytes, w[i]->n_rows
    butler_gpu_launch((struct butler_gpu *)backend, n == 1 ? GPU_matmul_1 : GPU_matmul_8, n_groups,
                      n == 1 ? 1 : BUTLER_CEIL_DIV(n, GPU_TOKENS), 1, PRODUCT(0), PRODUCT(1), PRODUCT(2), x, w[0]->n_cols, n);
#undef PRODUCT
}

static void gpu_norm(struct butler_backend *backend, float *y, const float *x, const struct butler_vector *v, int n, int dim,
                     enum butler_norm kind, float eps)
{
    butler_gpu_launch((struct butler_gpu *)backend, GPU_norm_rows, n, 1, 1, y, x, v->weight, v->bias, BUTLER_MAX(v->n_parts, 1),
                      dim, (int)kind, (double)eps);
}

static void gpu_rope(struct butler_backend *backend, const struct butler_rotation *rotations, int n_rotations,
                     const struct butler_angles *angles, int n)
{
    const struct butler_rotation none = {0}, *more = n_rotations > 1 ? &rotations[1] : &none;
    const int n_pairs = (rotations[0].n_heads + more->n_heads) * (angles->n_rot / 2);
    butler_gpu_launch((struct butler_gpu *)backend, GPU_rope, n, BUTLER_CEIL_DIV(n_pairs, GPU_THREADS), 1, rotations[0].x, more->x,
                      angles->cos, angles->sin, rotations[0].n_heads, more->n_heads, angles->head_dim, angles->n_rot,
                      angles->kind == BUTLER_ROPE_ADJACENT);
}

static void gpu_activate(struct butler_backend *backend, float *up, size_t up_stride, float *gate, int n, int dim,
                         enum butler_activation kind)
{
    /* The kernel's kinds: gated ones by their place, relu last. */
    butler_gpu_launch((struct butler_gpu *)backend, GPU_activate, n, BUTLER_CEIL_DIV(dim, GPU_THREADS), 1, up, gate, (int)up_stride,
                      dim, (int)kind);
}

static void elementwise(struct butler_backend *backend, float *y, const float *x, size_t n, int kind, float factor)
{
    butler_gpu_launch((struct butler_gpu *)backend, GPU_elementwise, (int)BUTLER_CEIL_DIV(n, (size_t)GPU_THREADS), 1, 1, y, x,
                      (uint64_t)n, kind, (double)factor);
}

static void gpu_add(struct butler_backend *backend, float *y, const float *x, size_t n)
{
    elementwise(backend, y, x, n, 0, 0);
}

static void gpu_scale(struct butler_backend *backend, float *x, float factor, size_t n)
{
    elementwise(backend, x, NULL, n, 1, factor);
}

static void gpu_softcap(struct butler_backend *backend, float *x, float cap, size_t n)
{
    elementwise(backend, x, NULL, n, 2, cap);
}

static void gpu_gather_rows(struct butler_backend *backend, float *to, const float *from, const int *rows, int n, int dim)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    butler_gpu_stage(gpu, rows, 0, (size_t)n * sizeof *rows);
    butler_gpu_launch(gpu, GPU_gather_rows, BUTLER_CEIL_DIV(dim, GPU_THREADS), 1, 1, to, from, GPU_STAGING(gpu), n, dim);
}

static void gpu_scatter_add(struct butler_backend *backend, float *to, const float *from, const int *rows, const float *factors,
                            int n, int dim)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    const size_t bytes = (size_t)n * sizeof *rows;
    butler_gpu_reserve_staging(gpu, 2 * bytes);
    butler_gpu_stage(gpu, rows, 0, bytes);
    butler_gpu_stage(gpu, factors, bytes, bytes);
    butler_gpu_launch(gpu, GPU_scatter_add, n, BUTLER_CEIL_DIV(dim, GPU_THREADS), 1, to, from, GPU_STAGING(gpu), n, dim);
}

/* Adds what was found in a part behind those before: {index of a number that is not finite, its bits, k indices, k values}. */
static void add_top(struct butler_top *top, const int32_t *found, int n, int k)
{
    if (found[0] >= 0 && top->not_finite < 0) {
        top->not_finite = found[0];
        memcpy(&top->value, found + 1, sizeof top->value);
    }
    for (int i = 0; i < k && found[2 + i] < n; i++) {
        float value;
        int at = k;
        memcpy(&value, found + 2 + k + i, sizeof value);
        for (; at > 0 && (top->ids[at - 1] < 0 || top->values[at - 1] < value); at--)
            if (at < k) {
                top->ids[at] = top->ids[at - 1];
                top->values[at] = top->values[at - 1];
            }
        if (at < k) {
            top->ids[at] = found[2 + i];
            top->values[at] = value;
        }
    }
}

/* A group of threads has a part of a row, so that all multiprocessors read. */
static void gpu_finite_top_k(struct butler_backend *backend, const float *x, int n_rows, int n, int k, struct butler_top *tops)
{
    enum { LEAST_PART = 2048, MOST_PARTS = 128, FOUND = MOST_PARTS * (2 + 2 * BUTLER_MOST_TOP) };
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    const int part = BUTLER_MAX(LEAST_PART, BUTLER_CEIL_DIV(n, MOST_PARTS)), n_parts = BUTLER_CEIL_DIV(n, part);
    k = BUTLER_MIN(k, n);
    const int each = n_parts * (2 + 2 * k), at_once = FOUND / each;
    for (int r = 0, m; r < n_rows; r += m) {
        int32_t found[FOUND];
        m = BUTLER_MIN(n_rows - r, at_once);
        butler_gpu_reserve_staging(gpu, sizeof found);
        butler_gpu_launch(gpu, GPU_finite_top_k, m, n_parts, 1, GPU_STAGING(gpu), x + (size_t)r * (size_t)n, n, part, n_parts, k);
        butler_gpu_read_staging(gpu, found, (size_t)(m * each) * sizeof *found);
        for (int i = 0; i < m; i++) {
            tops[r + i] = (struct butler_top){.not_finite = -1};
            memset(tops[r + i].ids, -1, sizeof tops[r + i].ids);
            for (int p = 0; p < n_parts && gpu->fault.code == 0; p++)
                add_top(&tops[r + i], found + i * each + p * (2 + 2 * k), n, k);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- making */

static void gpu_destroy(struct butler_backend *backend)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    if (gpu->queue)
        gpu->driver->finish(gpu);
    butler_gpu_free_memory(gpu);
    gpu->driver->stop(gpu);
    free(gpu);
}

bool butler_gpu_describe(const struct butler_gpu_driver *driver, int index, struct butler_gpu_info *info, struct butler_error *err)
{
    return driver->find(index, info, err) == 0;
}

static int start(struct butler_gpu *gpu, struct butler_error *err)
{
    const struct butler_gpu_info *info = &gpu->info;
    if (gpu->driver->find(gpu->index, &gpu->info, err) < 0)
        return BUTLER_ERROR_UNSUPPORTED;
    snprintf(gpu->label, sizeof gpu->label, "device %s:%d (%s)", gpu->driver->name, gpu->index, info->name);
    gpu->backend.kv_bytes = BUTLER_MIN(info->most_at_once - GPU_BEHIND, info->memory / 2);
    if (gpu->driver->start(gpu, err) < 0)
        return BUTLER_ERROR_UNSUPPORTED;
    gpu->backend.matmul_prompt = gpu->products ? butler_gpu_matmul_prompt : NULL;
    return 0;
}

static struct butler_backend *gpu_another(const struct butler_backend *backend, struct butler_pool *pool, struct butler_error *err)
{
    const struct butler_gpu *gpu = (const struct butler_gpu *)backend;
    return butler_backend_gpu(pool, backend->kernels, gpu->driver, gpu->index, gpu->folder, err);
}

struct butler_backend *butler_backend_gpu(struct butler_pool *pool, const struct butler_kernels *kernels,
                                          const struct butler_gpu_driver *driver, int index, const char *folder,
                                          struct butler_error *err)
{
    struct butler_gpu *gpu = butler_alloc(sizeof *gpu, err);
    if (!gpu)
        return NULL;
    gpu->driver = driver;
    gpu->index = index;
    gpu->folder = folder;
    gpu->backend = (struct butler_backend){
        .name = driver->name,
        .isa = gpu->info.name,
        .pool = pool,
        .kernels = kernels,
        .block_rows = 256,
        .embed = gpu_embed,
        .matmul = gpu_matmul,
        .norm = gpu_norm,
        .rope = gpu_rope,
        .activate = gpu_activate,
        .add = gpu_add,
        .gather_rows = gpu_gather_rows,
        .scatter_add = gpu_scatter_add,
        .scale = gpu_scale,
        .softcap = gpu_softcap,
        .finite_top_k = gpu_finite_top_k,
        .another = gpu_another,
        .destroy = gpu_destroy,
    };
    butler_gpu_use_memory(&gpu->backend);
    butler_gpu_use_cache(&gpu->backend);
    if (start(gpu, err) < 0) {
        gpu_destroy(&gpu->backend);
        return NULL;
    }
    return &gpu->backend;
}
