/* A backend for a device behind OpenCL: its making, and the operations on rows of activations. The kernels are compiled by the
 * device's driver from the text of opencl.h and of the .cl files, which lies in the library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/backend_gpu.h"
#include "gpu/gpu.h"

#define EMBED(name, path)                                                                                                          \
    extern const char name[], name##_end[];                                                                                        \
    __asm__(".pushsection .rodata\n.globl " #name ", " #name "_end\n.hidden " #name ", " #name "_end\n" #name ":\n.incbin \"" path \
            "\"\n" #name "_end:\n.popsection\n")

EMBED(butler_gpu_text_dialect, "gpu/opencl.h");
EMBED(butler_gpu_text_kernels, "gpu/kernels.cl");
EMBED(butler_gpu_text_cache, "gpu/cache.cl");
EMBED(butler_gpu_text_fused, "gpu/fused.cl");

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
    const int rows = GPU_THREADS / 32; /* of a matrix that a group computes */
    (void)work;
    for (int i = 0; i < n_products; i++) {
        const struct butler_matrix *w = products[i].w;
        butler_gpu_launch((struct butler_gpu *)backend, n == 1 ? GPU_matmul_1 : GPU_matmul_8, BUTLER_CEIL_DIV(w->n_rows, rows),
                          n == 1 ? 1 : BUTLER_CEIL_DIV(n, GPU_TOKENS), 1, products[i].y, w->data, w->bias, x, (int)w->type,
                          (int)w->row_bytes, w->n_rows, w->n_cols, n);
    }
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
    for (int i = 0; i < n_rotations; i++)
        butler_gpu_launch((struct butler_gpu *)backend, GPU_rope, n, 1, 1, rotations[i].x, angles->cos, angles->sin,
                          rotations[i].n_heads, angles->head_dim, angles->n_rot, angles->kind == BUTLER_ROPE_ADJACENT);
}

static void gpu_activate(struct butler_backend *backend, float *up, size_t up_stride, float *gate, int n, int dim,
                         enum butler_activation kind)
{
    /* The kernel's kinds: gated ones by their place, relu last. */
    butler_gpu_launch((struct butler_gpu *)backend, GPU_activate, BUTLER_CEIL_DIV(dim, GPU_THREADS), n, 1, up, gate, (int)up_stride,
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
    butler_gpu_launch(gpu, GPU_scatter_add, BUTLER_CEIL_DIV(dim, GPU_THREADS), n, 1, to, from, GPU_STAGING(gpu), n, dim);
}

static void gpu_finite_top_k(struct butler_backend *backend, const float *x, int n_rows, int n, int k, struct butler_top *tops)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    k = BUTLER_MIN(k, n);
    for (int r = 0, m; r < n_rows; r += m) {
        int32_t found[16 * (2 + 2 * BUTLER_MOST_TOP)];
        m = BUTLER_MIN(n_rows - r, 16);
        butler_gpu_reserve_staging(gpu, sizeof found);
        butler_gpu_launch(gpu, GPU_finite_top_k, m, 1, 1, GPU_STAGING(gpu), x + (size_t)r * (size_t)n, n, k);
        butler_gpu_read_staging(gpu, found, (size_t)(m * (2 + 2 * k)) * sizeof *found);
        for (int i = 0; i < m; i++) {
            const int32_t *own = found + i * (2 + 2 * k);
            tops[r + i].not_finite = gpu->fault.code < 0 ? -1 : own[0];
            memcpy(&tops[r + i].value, own + 1, sizeof(float));
            memcpy(tops[r + i].ids, own + 2, (size_t)k * sizeof *own);
            memcpy(tops[r + i].values, own + 2 + k, (size_t)k * sizeof *own);
        }
    }
}

/* ----------------------------------------------------------------------------------------------------- making */

static void gpu_destroy(struct butler_backend *backend)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    if (gpu->queue)
        gpu->cl->Finish(gpu->queue);
    butler_gpu_free_memory(gpu);
    for (int i = 0; i < GPU_N_KERNELS; i++)
        if (gpu->kernels[i])
            gpu->cl->ReleaseKernel(gpu->kernels[i]);
    if (gpu->program)
        gpu->cl->ReleaseProgram(gpu->program);
    if (gpu->queue)
        gpu->cl->ReleaseCommandQueue(gpu->queue);
    if (gpu->context)
        gpu->cl->ReleaseContext(gpu->context);
    free(gpu);
}

/* Device `index` of all platforms, in their order; NULL: there is none. */
static void *find_device(const struct butler_opencl *cl, int index)
{
    enum { MOST = 16 };
    void *platforms[MOST], *devices[MOST];
    cl_uint n_platforms = 0, n_devices;
    if (cl->GetPlatformIDs(MOST, platforms, &n_platforms) != 0)
        return NULL;
    for (cl_uint p = 0; p < BUTLER_MIN(n_platforms, MOST); p++) {
        if (cl->GetDeviceIDs(platforms[p], 0xffffffff, MOST, devices, &n_devices) != 0)
            continue;
        if (index < (int)n_devices)
            return index < MOST ? devices[index] : NULL;
        index -= (int)n_devices;
    }
    return NULL;
}

bool butler_gpu_describe(int index, struct butler_gpu_info *info)
{
    const struct butler_opencl *cl = butler_opencl_open();
    void *device = cl && index >= 0 ? find_device(cl, index) : NULL;
    cl_ulong type = 0;
    if (!device)
        return false;
    memset(info, 0, sizeof *info);
    cl->GetDeviceInfo(device, CL_DEVICE_NAME, sizeof info->name - 1, info->name, NULL);
    cl->GetDeviceInfo(device, CL_DRIVER_VERSION, sizeof info->driver - 1, info->driver, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof info->memory, &info->memory, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof info->most_at_once, &info->most_at_once, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    info->is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
    return true;
}

/* Bytes between two symbols of the linker. */
static size_t length_of(const char *text, const char *end)
{
    return (uintptr_t)end - (uintptr_t)text;
}

/* The driver compiles the kernels. */
static int build(struct butler_gpu *gpu, struct butler_error *err)
{
    const char *texts[] = {butler_gpu_text_dialect, butler_gpu_text_kernels, butler_gpu_text_cache, butler_gpu_text_fused};
    const size_t lengths[] = {length_of(butler_gpu_text_dialect, butler_gpu_text_dialect_end),
                              length_of(butler_gpu_text_kernels, butler_gpu_text_kernels_end),
                              length_of(butler_gpu_text_cache, butler_gpu_text_cache_end),
                              length_of(butler_gpu_text_fused, butler_gpu_text_fused_end)};
    char log[512] = "";
    cl_int code;
    gpu->program = gpu->cl->CreateProgramWithSource(gpu->context, BUTLER_COUNT(texts), texts, lengths, &code);
    if (gpu->program)
        code = gpu->cl->BuildProgram(gpu->program, 1, &gpu->device, "-cl-std=CL1.2", NULL, NULL);
    if (code != 0) {
        if (gpu->program) /* a longer log than that gives nothing */
            gpu->cl->GetProgramBuildInfo(gpu->program, gpu->device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "device opencl:%d (%s): its driver does not compile the kernels (OpenCL error %d) %s", gpu->index,
                           gpu->name, code, log);
    }
    for (int i = 0; i < GPU_N_KERNELS; i++)
        if (!(gpu->kernels[i] = gpu->cl->CreateKernel(gpu->program, butler_gpu_kernels[i].name, &code)))
            return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device opencl:%d (%s): no kernel %s (OpenCL error %d)", gpu->index,
                               gpu->name, butler_gpu_kernels[i].name, code);
    return 0;
}

static int start(struct butler_gpu *gpu, struct butler_error *err)
{
    struct butler_gpu_info info;
    cl_int code = 0;
    gpu->cl = butler_opencl_open();
    if (!gpu->cl)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device opencl:%d: there is no OpenCL driver (libOpenCL.so.1)",
                           gpu->index);
    gpu->device = find_device(gpu->cl, gpu->index);
    if (!gpu->device || !butler_gpu_describe(gpu->index, &info))
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device opencl:%d: OpenCL has no such device here", gpu->index);
    memcpy(gpu->name, info.name, sizeof gpu->name);
    gpu->backend.kv_bytes = BUTLER_MIN(info.most_at_once, info.memory / 2);
    gpu->context = gpu->cl->CreateContext(NULL, 1, &gpu->device, NULL, NULL, &code);
    if (gpu->context)
        gpu->queue = gpu->cl->CreateCommandQueue(gpu->context, gpu->device, 0, &code);
    if (!gpu->queue)
        return butler_fail(err, BUTLER_ERROR_IO, "device opencl:%d (%s) does not start (OpenCL error %d)", gpu->index, gpu->name,
                           code);
    return build(gpu, err);
}

static struct butler_backend *gpu_another(const struct butler_backend *backend, struct butler_pool *pool, struct butler_error *err)
{
    return butler_backend_gpu(pool, backend->kernels, ((const struct butler_gpu *)backend)->index, err);
}

struct butler_backend *butler_backend_gpu(struct butler_pool *pool, const struct butler_kernels *kernels, int index,
                                          struct butler_error *err)
{
    struct butler_gpu *gpu = butler_alloc(sizeof *gpu, err);
    if (!gpu)
        return NULL;
    gpu->index = index;
    gpu->backend = (struct butler_backend){
        .name = "opencl",
        .isa = gpu->name,
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
