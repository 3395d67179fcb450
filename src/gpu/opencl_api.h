/* What of OpenCL 1.2 the library calls, declared here: libOpenCL is opened when a device is asked for, and a build needs no header
 * of it. Types, constants and parameters are those of the specification. */
#ifndef BUTLER_OPENCL_API_H
#define BUTLER_OPENCL_API_H

#include <stddef.h>
#include <stdint.h>

typedef int32_t cl_int;
typedef uint32_t cl_uint;
typedef uint64_t cl_ulong;

enum {
    CL_DEVICE_TYPE_GPU = 1 << 2,
    CL_DEVICE_TYPE_ALL = -1,
    CL_DEVICE_TYPE = 0x1000,
    CL_DEVICE_MAX_COMPUTE_UNITS = 0x1002,
    CL_DEVICE_MAX_MEM_ALLOC_SIZE = 0x1010,
    CL_DEVICE_GLOBAL_MEM_SIZE = 0x101f,
    CL_DEVICE_NAME = 0x102b,
    CL_DRIVER_VERSION = 0x102d,
    CL_MEM_READ_WRITE = 1,
    CL_PROGRAM_BUILD_LOG = 0x1183,
};

/* Each function: its result, name without "cl", parameters. */
#define OPENCL_FUNCTIONS(each)                                                                                                     \
    each(cl_int, GetPlatformIDs, (cl_uint n, void **platforms, cl_uint *n_platforms)) each(                                        \
        cl_int, GetDeviceIDs, (void *platform, cl_ulong type, cl_uint n, void **devices, cl_uint *n_devices))                      \
        each(cl_int, GetDeviceInfo, (void *device, cl_uint name, size_t size, void *value, size_t *size_ret)) each(                \
            void *, CreateContext,                                                                                                 \
            (const intptr_t *properties, cl_uint n, void *const *devices, void *notify, void *user, cl_int *code))                 \
            each(cl_int, ReleaseContext, (void *context)) each(void *, CreateCommandQueue,                                         \
                                                               (void *context, void *device, cl_ulong properties, cl_int *code))   \
                each(cl_int, ReleaseCommandQueue,                                                                                  \
                     (void *queue)) each(void *, CreateProgramWithSource,                                                          \
                                         (void *context, cl_uint n, const char **texts, const size_t *lengths, cl_int *code))      \
                    each(cl_int, BuildProgram,                                                                                     \
                         (void *program, cl_uint n, void *const *devices, const char *options, void *notify, void *user))          \
                        each(cl_int, GetProgramBuildInfo,                                                                          \
                             (void *program, void *device, cl_uint name, size_t size, void *value,                                 \
                              size_t *size_ret)) each(cl_int, ReleaseProgram, (void *program))                                     \
                            each(void *, CreateKernel,                                                                             \
                                 (void *program, const char *name, cl_int *code)) each(cl_int, ReleaseKernel, (void *kernel))      \
                                each(cl_int, SetKernelArg, (void *kernel, cl_uint i, size_t size, const void *value)) each(        \
                                    void *, CreateBuffer, (void *context, cl_ulong flags, size_t size, void *host, cl_int *code))  \
                                    each(cl_int, ReleaseMemObject, (void *buffer)) each(cl_int, Finish, (void *queue))             \
                                        each(cl_int, Flush, (void *queue))                                                         \
                                            each(cl_int, EnqueueWriteBuffer,                                                       \
                                                 (void *queue, void *buffer, cl_uint blocking, size_t offset, size_t size,         \
                                                  const void *host, cl_uint n_events, const void *events, void *event))            \
                                                each(cl_int, EnqueueReadBuffer,                                                    \
                                                     (void *queue, void *buffer, cl_uint blocking, size_t offset, size_t size,     \
                                                      void *host, cl_uint n_events, const void *events, void *event))              \
                                                    each(cl_int, EnqueueCopyBuffer,                                                \
                                                         (void *queue, void *from, void *to, size_t from_offset, size_t to_offset, \
                                                          size_t size, cl_uint n_events, const void *events, void *event))         \
                                                        each(cl_int, EnqueueFillBuffer,                                            \
                                                             (void *queue, void *buffer, const void *pattern, size_t pattern_size, \
                                                              size_t offset, size_t size, cl_uint n_events, const void *events,    \
                                                              void *event))                                                        \
                                                            each(cl_int, EnqueueNDRangeKernel,                                     \
                                                                 (void *queue, void *kernel, cl_uint n_axes, const size_t *offset, \
                                                                  const size_t *global, const size_t *local, cl_uint n_events,     \
                                                                  const void *events, void *event))

#define OPENCL_POINTER(type, name, parameters) type(*name) parameters;
struct butler_opencl {
    OPENCL_FUNCTIONS(OPENCL_POINTER)
};
#undef OPENCL_POINTER

/* The functions of this machine's libOpenCL, opened at the first call; NULL where there is none, or it lacks one of them. */
const struct butler_opencl *butler_opencl_open(void);

/* For tests, while there is no engine on a device: these functions instead of this machine's, or NULL: these again. A table without
 * functions stands for a machine without a driver. */
void butler_opencl_use(const struct butler_opencl *driver);

#endif
