/* What gpu.h asks of a driver, by OpenCL. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/gpu.h"
#include "gpu/opencl_api.h"

static const struct butler_opencl *cl_of(const struct butler_gpu *gpu)
{
    return gpu->api;
}

static void name_code(const void *api, int code, char text[GPU_CODE])
{
    (void)api;
    snprintf(text, GPU_CODE, "OpenCL error %d", code);
}

static bool is_memory(int code)
{
    return code == -4 || code == -5 || code == -6; /* of the object, of the device's resources, of the host */
}

/* ---------------------------------------------------------------------------------------------- start and stop */

/* Device `index` of all platforms, in their order; NULL: there is none. */
static void *device_at(const struct butler_opencl *cl, int index)
{
    enum { MOST = 16 };
    void *platforms[MOST], *devices[MOST];
    cl_uint n_platforms = 0, n_devices;
    if (index < 0 || cl->GetPlatformIDs(MOST, platforms, &n_platforms) != 0)
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

static int find(int index, struct butler_gpu_info *info, struct butler_error *err)
{
    const struct butler_opencl *cl = butler_opencl_open();
    cl_ulong type = 0;
    cl_uint processors = 0;
    if (!cl)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device opencl:%d: there is no OpenCL driver (libOpenCL.so.1)", index);
    void *device = device_at(cl, index);
    if (!device)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "device opencl:%d: OpenCL has no such device here", index);
    memset(info, 0, sizeof *info);
    cl->GetDeviceInfo(device, CL_DEVICE_NAME, sizeof info->name - 1, info->name, NULL);
    cl->GetDeviceInfo(device, CL_DRIVER_VERSION, sizeof info->driver - 1, info->driver, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof info->memory, &info->memory, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof info->most_at_once, &info->most_at_once, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof processors, &processors, NULL);
    cl->GetDeviceInfo(device, CL_DEVICE_TYPE, sizeof type, &type, NULL);
    info->processors = (int)processors;
    info->is_gpu = (type & CL_DEVICE_TYPE_GPU) != 0;
    return 0;
}

/* The driver compiles the kernels. */
static int build(struct butler_gpu *gpu, struct butler_error *err)
{
    static const enum butler_gpu_text which[] = {GPU_TEXT_OPENCL, GPU_TEXT_KERNELS, GPU_TEXT_CACHE,     GPU_TEXT_ATTEND,
                                                 GPU_TEXT_FUSED,  GPU_TEXT_ONE_BIT, GPU_TEXT_PREDICTED, GPU_TEXT_EVICT};
    const struct butler_opencl *cl = cl_of(gpu);
    const char *texts[BUTLER_COUNT(which)];
    size_t lengths[BUTLER_COUNT(which)];
    char log[512] = "";
    cl_int code;
    for (size_t i = 0; i < BUTLER_COUNT(which); i++)
        texts[i] = butler_gpu_text(which[i], &lengths[i]);
    gpu->program = cl->CreateProgramWithSource(gpu->context, BUTLER_COUNT(texts), texts, lengths, &code);
    if (gpu->program)
        code = cl->BuildProgram(gpu->program, 1, &gpu->device, "-cl-std=CL1.2", NULL, NULL);
    if (code != 0) {
        if (gpu->program) /* a longer log than that gives nothing */
            cl->GetProgramBuildInfo(gpu->program, gpu->device, CL_PROGRAM_BUILD_LOG, sizeof log - 1, log, NULL);
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: its driver does not compile the kernels (OpenCL error %d) %s",
                           gpu->label, code, log);
    }
    for (int i = 0; i < GPU_N_KERNELS; i++)
        if (!(gpu->kernels[i] = cl->CreateKernel(gpu->program, butler_gpu_kernels[i].name, &code)))
            return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: no kernel %s (OpenCL error %d)", gpu->label,
                               butler_gpu_kernels[i].name, code);
    return 0;
}

static int start(struct butler_gpu *gpu, struct butler_error *err)
{
    const struct butler_opencl *cl = butler_opencl_open();
    cl_int code = 0;
    gpu->api = cl;
    gpu->device = device_at(cl, gpu->index);
    gpu->context = cl->CreateContext(NULL, 1, &gpu->device, NULL, NULL, &code);
    if (gpu->context)
        gpu->queue = cl->CreateCommandQueue(gpu->context, gpu->device, 0, &code);
    if (!gpu->queue)
        return butler_fail(err, BUTLER_ERROR_IO, "%s does not start (OpenCL error %d)", gpu->label, code);
    return build(gpu, err);
}

static void stop(struct butler_gpu *gpu)
{
    const struct butler_opencl *cl = cl_of(gpu);
    if (!cl)
        return;
    for (int i = 0; i < GPU_N_KERNELS; i++)
        if (gpu->kernels[i])
            cl->ReleaseKernel(gpu->kernels[i]);
    if (gpu->program)
        cl->ReleaseProgram(gpu->program);
    if (gpu->aside)
        cl->ReleaseCommandQueue(gpu->aside);
    if (gpu->queue)
        cl->ReleaseCommandQueue(gpu->queue);
    if (gpu->context)
        cl->ReleaseContext(gpu->context);
}

/* ------------------------------------------------------------------------------------------- memory and launches */

static int alloc_buffer(struct butler_gpu *gpu, size_t n_bytes, void **buffer)
{
    cl_int code = 0;
    *buffer = cl_of(gpu)->CreateBuffer(gpu->context, CL_MEM_READ_WRITE, n_bytes, NULL, &code);
    return code;
}

static void free_buffer(struct butler_gpu *gpu, void *buffer)
{
    cl_of(gpu)->ReleaseMemObject(buffer); /* the driver keeps it for what runs */
}

/* OpenCL has no memory of the host's that is not a buffer's too. */
static int alloc_host(struct butler_gpu *gpu, size_t n_bytes, void **memory)
{
    (void)gpu;
    *memory = malloc(n_bytes);
    return *memory ? 0 : -6; /* CL_OUT_OF_HOST_MEMORY */
}

static void free_host(struct butler_gpu *gpu, void *memory)
{
    (void)gpu;
    free(memory);
}

static int upload(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n)
{
    return cl_of(gpu)->EnqueueWriteBuffer(gpu->queue, to, 0, at, n, host, 0, NULL, NULL);
}

static int download(struct butler_gpu *gpu, void *host, void *from, size_t at, size_t n)
{
    return cl_of(gpu)->EnqueueReadBuffer(gpu->queue, from, 1, at, n, host, 0, NULL, NULL);
}

static int upload_aside(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n)
{
    const struct butler_opencl *cl = cl_of(gpu);
    cl_int code = cl->Flush(gpu->queue);
    if (code == 0 && !gpu->aside)
        gpu->aside = cl->CreateCommandQueue(gpu->context, gpu->device, 0, &code);
    code = code ? code : cl->EnqueueWriteBuffer(gpu->aside, to, 0, at, n, host, 0, NULL, NULL);
    return code ? code : cl->Flush(gpu->aside);
}

static int finish_aside(struct butler_gpu *gpu)
{
    const cl_int code = cl_of(gpu)->Flush(gpu->queue), waited = gpu->aside ? cl_of(gpu)->Finish(gpu->aside) : 0;
    return code ? code : waited;
}

static int copy(struct butler_gpu *gpu, void *to, size_t to_at, void *from, size_t from_at, size_t n)
{
    return cl_of(gpu)->EnqueueCopyBuffer(gpu->queue, from, to, from_at, to_at, n, 0, NULL, NULL);
}

static int zero(struct butler_gpu *gpu, void *buffer, size_t at, size_t n)
{
    const unsigned char none = 0;
    return cl_of(gpu)->EnqueueFillBuffer(gpu->queue, buffer, &none, 1, at, n, 0, NULL, NULL);
}

static int launch(struct butler_gpu *gpu, int kernel, const int groups[3], const struct butler_gpu_arg *args, int n)
{
    const size_t global[3] = {(size_t)groups[0] * GPU_THREADS, (size_t)groups[1], (size_t)groups[2]},
                 local[3] = {GPU_THREADS, 1, 1};
    void *const own = gpu->kernels[kernel];
    cl_int code = 0;
    for (int i = 0; i < n && code == 0; i++) {
        const bool none = args[i].is_buffer && !args[i].value.buffer;
        code = cl_of(gpu)->SetKernelArg(own, (cl_uint)i, args[i].n_bytes, none ? NULL : &args[i].value);
    }
    return code ? code : cl_of(gpu)->EnqueueNDRangeKernel(gpu->queue, own, 3, NULL, global, local, 0, NULL, NULL);
}

static int finish(struct butler_gpu *gpu)
{
    return cl_of(gpu)->Finish(gpu->queue);
}

const struct butler_gpu_driver butler_gpu_opencl = {
    .name = "opencl",
    .find = find,
    .start = start,
    .stop = stop,
    .alloc = alloc_buffer,
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
    .finish = finish,
    .is_memory = is_memory,
    .name_code = name_code,
};
