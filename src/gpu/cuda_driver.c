/* What gpu.h asks of a driver, by CUDA. Work goes to one stream of the device's primary context, which is the calling thread's
 * current context only while a function of this file runs: a program may use CUDA itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda_api.h"
#include "gpu/cuda_compile.h"
#include "gpu/cuda_graph.h"
#include "gpu/gpu.h"

static const struct butler_cuda *cuda_of(const struct butler_gpu *gpu)
{
    return gpu->api;
}

static int device_of(const struct butler_gpu *gpu)
{
    return (int)(intptr_t)gpu->device;
}

/* Buffers are addresses of the device. */
static uint64_t address_of(const void *buffer, size_t at)
{
    return (uint64_t)(uintptr_t)buffer + at;
}

/* cuBLAS's codes are above the driver's. */
enum { CUBLAS_CODES = 1 << 16 };

static int cublas_code(int status)
{
    return status ? CUBLAS_CODES + status : 0;
}

static bool is_memory(int code)
{
    return code == CUDA_OUT_OF_MEMORY || code == CUBLAS_CODES + CUBLAS_NO_MEMORY;
}

static void name_code(const void *api, int code, char text[GPU_CODE])
{
    const char *name = NULL;
    if (code >= CUBLAS_CODES) {
        snprintf(text, GPU_CODE, "cuBLAS error %d", code - CUBLAS_CODES);
        return;
    }
    if (((const struct butler_cuda *)api)->GetErrorName(code, &name) != 0 || !name)
        name = "unknown";
    snprintf(text, GPU_CODE, "CUDA error %d, %s", code, name);
}

/* -------------------------------------------------------------------------------------------------------- find */

/* The driver, which is new enough and has begun; NULL with *err filled: a driver that is there but of no use is BUTLER_ERROR_IO. */
static const struct butler_cuda *open_driver(int index, int *version, struct butler_error *err)
{
    const char *lacks;
    char text[GPU_CODE];
    const struct butler_cuda *cuda = butler_cuda_open(&lacks);
    int code;
    if (!cuda && !lacks)
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device cuda:%d: there is no CUDA driver (libcuda.so.1)", index);
    else if (!cuda)
        butler_fail(err, BUTLER_ERROR_IO, "device cuda:%d: the CUDA driver is too old: it has no %s, CUDA %d.0 is needed", index,
                    lacks, CUDA_OLDEST);
    if (!cuda)
        return NULL;
    *version = 0;
    if ((code = cuda->DriverGetVersion(version)) == 0 && *version < CUDA_OLDEST * 1000)
        butler_fail(err, BUTLER_ERROR_IO, "device cuda:%d: the CUDA driver is too old: it is of CUDA %d.%d, %d.0 is needed", index,
                    *version / 1000, *version % 1000 / 10, CUDA_OLDEST);
    else if (code == 0 && (code = cuda->Init(0)) == 0)
        return cuda;
    else if (code == CUDA_NO_DEVICE)
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device cuda:%d: the CUDA driver has no device here", index);
    else {
        name_code(cuda, code, text);
        butler_fail(err, BUTLER_ERROR_IO, "device cuda:%d: the CUDA driver does not start (%s)", index, text);
    }
    return NULL;
}

static int find(int index, struct butler_gpu_info *info, struct butler_error *err)
{
    int version, n = 0, device, processors = 0, code;
    size_t memory = 0;
    char text[GPU_CODE];
    const struct butler_cuda *cuda = open_driver(index, &version, err);
    if (!cuda)
        return BUTLER_ERROR_UNSUPPORTED;
    memset(info, 0, sizeof *info);
    code = cuda->DeviceGetCount(&n);
    if (code == 0 && (index < 0 || index >= n))
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device cuda:%d: CUDA has no such device here, but %d", index, n);
    if (code == 0)
        code = cuda->DeviceGet(&device, index);
    if (code == 0)
        code = cuda->DeviceGetName(info->name, sizeof info->name - 1, device);
    if (code == 0)
        code = cuda->DeviceTotalMem_v2(&memory, device);
    if (code == 0)
        code = cuda->DeviceGetAttribute(&processors, CUDA_PROCESSORS, device);
    if (code != 0) {
        name_code(cuda, code, text);
        return butler_fail(err, BUTLER_ERROR_IO, "device cuda:%d cannot be described (%s)", index, text);
    }
    snprintf(info->driver, sizeof info->driver, "CUDA %d.%d, %s", version / 1000, version % 1000 / 10,
             butler_cublas_open(version / 1000) ? "cuBLAS" : "no cuBLAS");
    info->memory = info->most_at_once = memory;
    info->processors = processors;
    info->is_gpu = true;
    return 0;
}

/* ---------------------------------------------------------------------------------------------- start and stop */

/* Between these two the device's context is the thread's. */
static int enter(const struct butler_gpu *gpu)
{
    return cuda_of(gpu)->CtxPushCurrent_v2(gpu->context);
}

/* Gives `code`. What popping gives says nothing of the call before it, and a kernel's error comes again with the next call. */
static int leave(const struct butler_gpu *gpu, int code)
{
    void *context;
    cuda_of(gpu)->CtxPopCurrent_v2(&context);
    return code;
}

/* One handle for one stream: then equal calls have equal bits. Where it does not start, as on a driver that is too old for it, the
 * device's own kernels do its work, and *err says so, with code 0. */
static int start_cublas(struct butler_gpu *gpu, int major, struct butler_error *err)
{
    const struct butler_cublas *cublas = butler_cublas_open(major);
    char text[GPU_CODE];
    if (!cublas)
        return 0;
    const int created = cublas->Create_v2(&gpu->products);
    const int code = cublas_code(created ? created : cublas->SetStream_v2(gpu->products, gpu->queue));
    if (code == 0)
        return 0;
    if (created == 0)
        cublas->Destroy_v2(gpu->products);
    gpu->products = NULL;
    if (is_memory(code))
        return code;
    name_code(gpu->api, code, text);
    butler_fail(err, 0, "%s reads prompts slowly, by its own kernels: cuBLAS does not start (%s)", gpu->label, text);
    return 0;
}

/* The device's context is current. */
static int load(struct butler_gpu *gpu, const char *image, int major, struct butler_error *err)
{
    const struct butler_cuda *cuda = cuda_of(gpu);
    int code = cuda->StreamCreate(&gpu->queue, CUDA_STREAM_NON_BLOCKING);
    if (code == 0)
        code = cuda->ModuleLoadData(&gpu->program, image);
    for (int i = 0; i < GPU_N_KERNELS && code == 0; i++)
        code = cuda->ModuleGetFunction(&gpu->kernels[i], gpu->program, butler_gpu_kernels[i].name);
    return code ? code : start_cublas(gpu, major, err);
}

static int start(struct butler_gpu *gpu, struct butler_error *err)
{
    const char *lacks, *image;
    char text[GPU_CODE];
    const struct butler_cuda *cuda = butler_cuda_open(&lacks);
    int version = 0, major = 0, minor = 0, device = 0;
    gpu->api = cuda;
    int code = cuda->DriverGetVersion(&version);
    if (code == 0)
        code = cuda->DeviceGet(&device, gpu->index);
    gpu->device = (void *)(intptr_t)device;
    if (code == 0)
        code = cuda->DeviceGetAttribute(&major, CUDA_CAPABILITY_MAJOR, device);
    if (code == 0)
        code = cuda->DeviceGetAttribute(&minor, CUDA_CAPABILITY_MINOR, device);
    if (code == 0 && !(image = butler_cuda_image(gpu, version, 10 * major + minor, err)))
        return BUTLER_ERROR_UNSUPPORTED;
    if (code == 0)
        code = cuda->DevicePrimaryCtxRetain(&gpu->context, device);
    if (code == 0)
        code = enter(gpu);
    if (code == 0)
        code = leave(gpu, load(gpu, image, version / 1000, err));
    if (code == 0)
        return 0;
    name_code(cuda, code, text);
    return butler_fail(err, is_memory(code) ? BUTLER_ERROR_MEMORY : BUTLER_ERROR_IO, "%s does not start: %s (%s)", gpu->label,
                       is_memory(code) ? "out of memory" : "the driver failed", text);
}

static void stop(struct butler_gpu *gpu)
{
    const struct butler_cuda *cuda = cuda_of(gpu);
    if (!gpu->context)
        return;
    if ((gpu->program || gpu->queue) && enter(gpu) == 0) {
        butler_cuda_free_launches(gpu);
        if (gpu->products)
            butler_cublas_open(0)->Destroy_v2(gpu->products);
        if (gpu->program)
            cuda->ModuleUnload(gpu->program);
        if (gpu->aside)
            cuda->StreamDestroy_v2(gpu->aside);
        if (gpu->queue)
            cuda->StreamDestroy_v2(gpu->queue);
        leave(gpu, 0);
    }
    cuda->DevicePrimaryCtxRelease_v2(device_of(gpu));
}

/* ------------------------------------------------------------------------------------------- memory and launches */

static int alloc_buffer(struct butler_gpu *gpu, size_t n_bytes, void **buffer)
{
    uint64_t address = 0;
    int code = enter(gpu);
    if (code == 0)
        code = leave(gpu, cuda_of(gpu)->MemAlloc_v2(&address, n_bytes));
    *buffer = (void *)(uintptr_t)address;
    return code;
}

static uint64_t memory_left(struct butler_gpu *gpu)
{
    size_t left = 0, all;
    int code = enter(gpu);
    if (code == 0)
        code = leave(gpu, cuda_of(gpu)->MemGetInfo_v2(&left, &all));
    return code ? UINT64_MAX : left;
}

static void free_buffer(struct butler_gpu *gpu, void *buffer)
{
    if (enter(gpu) != 0)
        return;
    butler_cuda_flush(gpu);
    cuda_of(gpu)->StreamSynchronize(gpu->queue);
    if (gpu->aside)
        cuda_of(gpu)->StreamSynchronize(gpu->aside);
    cuda_of(gpu)->MemFree_v2(address_of(buffer, 0));
    leave(gpu, 0);
}

/* enter, and what waits is given to the stream before anything else is. */
static int enter_stream(struct butler_gpu *gpu)
{
    const int code = enter(gpu), flushed = code ? code : butler_cuda_flush(gpu);
    return code || !flushed ? code : leave(gpu, flushed);
}

/* Page-locked, so that the device reads it by itself. */
static int alloc_host(struct butler_gpu *gpu, size_t n_bytes, void **memory)
{
    const int code = enter(gpu);
    return code ? code : leave(gpu, cuda_of(gpu)->MemHostAlloc(memory, n_bytes, 0));
}

static void free_host(struct butler_gpu *gpu, void *memory)
{
    if (enter(gpu) == 0)
        leave(gpu, cuda_of(gpu)->MemFreeHost(memory));
}

static int upload(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n)
{
    const int code = enter_stream(gpu);
    return code ? code : leave(gpu, cuda_of(gpu)->MemcpyHtoDAsync_v2(address_of(to, at), host, n, gpu->queue));
}

static int download(struct butler_gpu *gpu, void *host, void *from, size_t at, size_t n)
{
    int code = enter_stream(gpu);
    if (code != 0)
        return code;
    code = cuda_of(gpu)->MemcpyDtoHAsync_v2(host, address_of(from, at), n, gpu->queue);
    return leave(gpu, code ? code : cuda_of(gpu)->StreamSynchronize(gpu->queue));
}

static int upload_aside(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n)
{
    int code = enter_stream(gpu);
    if (code != 0)
        return code;
    if (!gpu->aside)
        code = cuda_of(gpu)->StreamCreate(&gpu->aside, CUDA_STREAM_NON_BLOCKING);
    return leave(gpu, code ? code : cuda_of(gpu)->MemcpyHtoDAsync_v2(address_of(to, at), host, n, gpu->aside));
}

static int copy(struct butler_gpu *gpu, void *to, size_t to_at, void *from, size_t from_at, size_t n)
{
    const int code = enter_stream(gpu);
    return code ? code
                : leave(gpu, cuda_of(gpu)->MemcpyDtoDAsync_v2(address_of(to, to_at), address_of(from, from_at), n, gpu->queue));
}

static int zero(struct butler_gpu *gpu, void *buffer, size_t at, size_t n)
{
    const int code = enter_stream(gpu);
    return code ? code : leave(gpu, cuda_of(gpu)->MemsetD8Async(address_of(buffer, at), 0, n, gpu->queue));
}

static int launch(struct butler_gpu *gpu, int kernel, const int groups[3], const struct butler_gpu_arg *args, int n)
{
    int code = butler_cuda_add_launch(gpu, kernel, groups, args, n);
    if (code == 0 && butler_cuda_has_piece(gpu) && (code = enter(gpu)) == 0)
        code = leave(gpu, butler_cuda_flush_piece(gpu));
    return code;
}

/* Rows of ours are columns of cuBLAS. */
static int multiply(struct butler_gpu *gpu, const struct butler_gpu_product *product)
{
    const float one = 1, zero_factor = 0;
    const int n_rows = product->shape[0], n = product->shape[1], n_cols = product->shape[2];
    const void *w = (const char *)product->w.buffer + product->w.offset, *x = (const char *)product->x.buffer + product->x.offset;
    const int code = enter_stream(gpu);
    if (code != 0)
        return code;
    return leave(gpu, cublas_code(butler_cublas_open(0)->GemmEx(gpu->products, CUBLAS_TRANSPOSED, CUBLAS_NOT_TRANSPOSED, n_rows, n,
                                                                n_cols, &one, w, CUBLAS_FLOATS, n_cols, x, CUBLAS_FLOATS, n_cols,
                                                                &zero_factor, (char *)product->y.buffer + product->y.offset,
                                                                CUBLAS_FLOATS, n_rows, CUBLAS_BY_TF32, CUBLAS_DEFAULT)));
}

static int finish(struct butler_gpu *gpu)
{
    int code = enter(gpu);
    if (code != 0)
        return code;
    code = butler_cuda_flush(gpu);
    const int waited = cuda_of(gpu)->StreamSynchronize(gpu->queue); /* whatever came of that: host memory may be read until then */
    return leave(gpu, code ? code : waited);
}

/* What waits for the first stream goes there before the wait. */
static int finish_aside(struct butler_gpu *gpu)
{
    const int code = enter(gpu);
    if (code != 0 || !gpu->aside)
        return code ? code : leave(gpu, 0);
    butler_cuda_flush(gpu);
    return leave(gpu, cuda_of(gpu)->StreamSynchronize(gpu->aside));
}

const struct butler_gpu_driver butler_gpu_cuda = {
    .name = "cuda",
    .find = find,
    .start = start,
    .stop = stop,
    .alloc = alloc_buffer,
    .memory_left = memory_left,
    .free = free_buffer,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .upload = upload,
    .download = download,
    .upload_aside = upload_aside,
    .finish_aside = finish_aside,
    .copy = copy,
    .zero = zero,
    .launch = launch,
    .multiply = multiply,
    .finish = finish,
    .is_memory = is_memory,
    .name_code = name_code,
};
