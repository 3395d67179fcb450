/* A driver of OpenCL for tests, in this process: memory of its device is the host's, each buffer by itself, so that a sanitizer
 * sees its ends; kernels are those of simt.h. It fails where it is told to. */
#ifndef SIMT_OPENCL_H
#define SIMT_OPENCL_H

#include "gpu/opencl_api.h"
#include "simt.h"

/* When calls fail, and what is held; a test may set and read them. */
struct simt_driver {
    int n_devices;            /* 0: there is no device */
    bool does_not_compile;    /* the kernels */
    uint64_t memory;          /* bytes that all buffers may have; 0: any number */
    int launches_left;        /* until the device is lost; -1: it is not */
    uint64_t held, n_objects; /* bytes of buffers; buffers, contexts, queues, programs and kernels that are not released */
};
static struct simt_driver simt_driver = {.n_devices = 1, .launches_left = -1};

struct simt_buffer {
    size_t n_bytes;
    unsigned char *bytes;
};

struct simt_arg {
    size_t n_bytes;
    unsigned char bytes[8];
};

struct simt_kernel {
    int index; /* in GPU_KERNELS */
    struct simt_arg args[SIMT_INTS + SIMT_FLOATS];
};

static int simt_object; /* stands for the platform, the device, contexts and so on */

static cl_int simt_platforms(cl_uint n, void **platforms, cl_uint *n_platforms)
{
    if (n > 0)
        platforms[0] = &simt_object;
    *n_platforms = 1;
    return 0;
}

static cl_int simt_devices(void *platform, cl_ulong type, cl_uint n, void **devices, cl_uint *n_devices)
{
    (void)platform, (void)type;
    *n_devices = (cl_uint)simt_driver.n_devices;
    if (n > 0 && simt_driver.n_devices > 0)
        devices[0] = &simt_object;
    return simt_driver.n_devices > 0 ? 0 : -1;
}

static cl_int simt_device_info(void *device, cl_uint name, size_t size, void *value, size_t *size_ret)
{
    const cl_ulong memory = (cl_ulong)1 << 30, type = CL_DEVICE_TYPE_GPU;
    (void)device, (void)size_ret;
    if (name == CL_DEVICE_NAME || name == CL_DRIVER_VERSION)
        snprintf(value, size, "simt");
    else if (name == CL_DEVICE_MAX_COMPUTE_UNITS)
        *(cl_uint *)value = 1;
    else
        memcpy(value, name == CL_DEVICE_TYPE ? &type : &memory, sizeof memory);
    return 0;
}

static void *simt_make(cl_int *code)
{
    *code = 0;
    simt_driver.n_objects++;
    return &simt_object;
}

static cl_int simt_release(void *object)
{
    (void)object;
    simt_driver.n_objects--;
    return 0;
}

static void *simt_context(const intptr_t *properties, cl_uint n, void *const *devices, void *notify, void *user, cl_int *code)
{
    (void)properties, (void)n, (void)devices, (void)notify, (void)user;
    return simt_make(code);
}

static void *simt_queue(void *context, void *device, cl_ulong properties, cl_int *code)
{
    (void)context, (void)device, (void)properties;
    return simt_make(code);
}

static void *simt_program(void *context, cl_uint n, const char **texts, const size_t *lengths, cl_int *code)
{
    (void)context, (void)n, (void)texts, (void)lengths;
    return simt_make(code);
}

static cl_int simt_build(void *program, cl_uint n, void *const *devices, const char *options, void *notify, void *user)
{
    (void)program, (void)n, (void)devices, (void)options, (void)notify, (void)user;
    return simt_driver.does_not_compile ? -11 : 0;
}

static cl_int simt_build_info(void *program, void *device, cl_uint name, size_t size, void *value, size_t *size_ret)
{
    (void)program, (void)device, (void)name, (void)size_ret;
    snprintf(value, size, "kernels.cl:1: no such type");
    return 0;
}

static void *simt_make_kernel(void *program, const char *name, cl_int *code)
{
    (void)program;
    struct simt_kernel *kernel = calloc(1, sizeof *kernel);
    while (kernel && kernel->index < GPU_N_KERNELS && strcmp(butler_gpu_kernels[kernel->index].name, name))
        kernel->index++;
    if (!kernel || kernel->index == GPU_N_KERNELS)
        abort();
    simt_make(code);
    return kernel;
}

static cl_int simt_release_kernel(void *kernel)
{
    const cl_int code = simt_release(kernel);
    free(kernel);
    return code;
}

static cl_int simt_set_arg(void *kernel, cl_uint i, size_t size, const void *value)
{
    struct simt_arg *arg = &((struct simt_kernel *)kernel)->args[i];
    memset(arg, 0, sizeof *arg);
    arg->n_bytes = size;
    if (value)
        memcpy(arg->bytes, value, size);
    return 0;
}

static void *simt_make_buffer(void *context, cl_ulong flags, size_t size, void *host, cl_int *code)
{
    (void)context, (void)flags, (void)host;
    struct simt_buffer *buffer = malloc(sizeof *buffer);
    const bool fits = simt_driver.memory == 0 || simt_driver.held + size <= simt_driver.memory;
    if (!fits || !buffer || !(buffer->bytes = malloc(size))) {
        free(buffer);
        *code = -4;
        return NULL;
    }
    memset(buffer->bytes, 0xa5, size); /* contents are undefined: NaN as a half, a large number as an index */
    buffer->n_bytes = size;
    simt_driver.held += size;
    simt_make(code);
    return buffer;
}

static cl_int simt_release_buffer(void *object)
{
    struct simt_buffer *buffer = object;
    const cl_int code = simt_release(object);
    simt_driver.held -= buffer->n_bytes;
    free(buffer->bytes);
    free(buffer);
    return code;
}

static cl_int simt_finish(void *queue)
{
    (void)queue;
    return 0;
}

/* Bytes [offset, offset + size) of a buffer. */
static unsigned char *simt_bytes(void *object, size_t offset, size_t size)
{
    struct simt_buffer *buffer = object;
    if (offset > buffer->n_bytes || size > buffer->n_bytes - offset)
        abort();
    return buffer->bytes + offset;
}

static cl_int simt_write(void *queue, void *buffer, cl_uint blocking, size_t offset, size_t size, const void *host,
                         cl_uint n_events, const void *events, void *event)
{
    (void)queue, (void)blocking, (void)n_events, (void)events, (void)event;
    memcpy(simt_bytes(buffer, offset, size), host, size);
    return 0;
}

static cl_int simt_read(void *queue, void *buffer, cl_uint blocking, size_t offset, size_t size, void *host, cl_uint n_events,
                        const void *events, void *event)
{
    (void)queue, (void)blocking, (void)n_events, (void)events, (void)event;
    memcpy(host, simt_bytes(buffer, offset, size), size);
    return 0;
}

static cl_int simt_copy(void *queue, void *from, void *to, size_t from_offset, size_t to_offset, size_t size, cl_uint n_events,
                        const void *events, void *event)
{
    (void)queue, (void)n_events, (void)events, (void)event;
    memmove(simt_bytes(to, to_offset, size), simt_bytes(from, from_offset, size), size);
    return 0;
}

static cl_int simt_fill(void *queue, void *buffer, const void *pattern, size_t pattern_size, size_t offset, size_t size,
                        cl_uint n_events, const void *events, void *event)
{
    (void)queue, (void)pattern_size, (void)n_events, (void)events, (void)event;
    memset(simt_bytes(buffer, offset, size), *(const unsigned char *)pattern, size);
    return 0;
}

/* The kernel's arguments into simt.ints and simt.floats, by its format. */
static void simt_load_args(const struct simt_kernel *kernel)
{
    const struct simt_arg *arg = kernel->args;
    int n_ints = 0, n_floats = 0;
    for (const char *format = butler_gpu_kernels[kernel->index].format; *format; format++) {
        uint64_t number = 0;
        if (*format == 'f') {
            memcpy(&simt.floats[n_floats++], arg++->bytes, sizeof(float));
            continue;
        }
        if (*format == 'b') {
            struct simt_buffer *buffer;
            memcpy(&buffer, arg++->bytes, sizeof buffer);
            simt.ints[n_ints++] = buffer ? (uint64_t)(uintptr_t)buffer->bytes : 0;
        }
        memcpy(&number, arg->bytes, arg->n_bytes); /* an int in its low half */
        arg++;
        simt.ints[n_ints++] = number;
    }
}

static cl_int simt_run(void *queue, void *object, cl_uint n_axes, const size_t *offset, const size_t *global, const size_t *local,
                       cl_uint n_events, const void *events, void *event)
{
    const struct simt_kernel *kernel = object;
    (void)queue, (void)n_axes, (void)offset, (void)n_events, (void)events, (void)event;
    if (simt_driver.launches_left == 0)
        return -36;
    simt_driver.launches_left -= simt_driver.launches_left > 0;
    simt_load_args(kernel);
    simt.call = simt_kernels[kernel->index];
    for (simt.group[2] = 0; simt.group[2] < (int)global[2]; simt.group[2]++)
        for (simt.group[1] = 0; simt.group[1] < (int)global[1]; simt.group[1]++)
            for (simt.group[0] = 0; simt.group[0] < (int)(global[0] / local[0]); simt.group[0]++)
                simt_group(butler_gpu_kernels[kernel->index].name);
    return 0;
}

static const struct butler_opencl simt_opencl = {
    .GetPlatformIDs = simt_platforms,
    .GetDeviceIDs = simt_devices,
    .GetDeviceInfo = simt_device_info,
    .CreateContext = simt_context,
    .ReleaseContext = simt_release,
    .CreateCommandQueue = simt_queue,
    .ReleaseCommandQueue = simt_release,
    .CreateProgramWithSource = simt_program,
    .BuildProgram = simt_build,
    .GetProgramBuildInfo = simt_build_info,
    .ReleaseProgram = simt_release,
    .CreateKernel = simt_make_kernel,
    .ReleaseKernel = simt_release_kernel,
    .SetKernelArg = simt_set_arg,
    .CreateBuffer = simt_make_buffer,
    .ReleaseMemObject = simt_release_buffer,
    .Finish = simt_finish,
    .Flush = simt_finish,
    .EnqueueWriteBuffer = simt_write,
    .EnqueueReadBuffer = simt_read,
    .EnqueueCopyBuffer = simt_copy,
    .EnqueueFillBuffer = simt_fill,
    .EnqueueNDRangeKernel = simt_run,
};

#endif
