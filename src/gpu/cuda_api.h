/* What of CUDA's driver and of its compiler NVRTC the library calls, declared here: both libraries are opened when a device is
 * asked for, and a build needs no header of them. Types, constants and parameters are those of NVIDIA's documentation: results are
 * codes, contexts, modules, functions, streams and programs are pointers, devices are ints, addresses of device memory are 64 bits.
 */
#ifndef BUTLER_CUDA_API_H
#define BUTLER_CUDA_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    CUDA_OLDEST = 12, /* major version: the oldest that the library asks for NVRTC of */
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_NO_DEVICE = 100,
    CUDA_STREAM_NON_BLOCKING = 1, /* does not wait for the default stream of the process */
    CUDA_PROCESSORS = 16,         /* attributes of a device */
    CUDA_CAPABILITY_MAJOR = 75,
    CUDA_CAPABILITY_MINOR = 76,
};

/* Each function: its result, name without "cu", parameters. */
/* clang-format off */
#define CUDA_FUNCTIONS(each) \
    each(int, Init, (unsigned flags)) \
    each(int, DriverGetVersion, (int *version)) \
    each(int, GetErrorName, (int code, const char **name)) \
    each(int, DeviceGetCount, (int *n)) \
    each(int, DeviceGet, (int *device, int index)) \
    each(int, DeviceGetName, (char *name, int n_bytes, int device)) \
    each(int, DeviceTotalMem_v2, (size_t *n_bytes, int device)) \
    each(int, DeviceGetAttribute, (int *value, int attribute, int device)) \
    each(int, DevicePrimaryCtxRetain, (void **context, int device)) \
    each(int, DevicePrimaryCtxRelease_v2, (int device)) \
    each(int, CtxPushCurrent_v2, (void *context)) \
    each(int, CtxPopCurrent_v2, (void **context)) \
    each(int, ModuleLoadData, (void **module, const void *image)) \
    each(int, ModuleUnload, (void *module)) \
    each(int, ModuleGetFunction, (void **function, void *module, const char *name)) \
    each(int, StreamCreate, (void **stream, unsigned flags)) \
    each(int, StreamDestroy_v2, (void *stream)) \
    each(int, StreamSynchronize, (void *stream)) \
    each(int, MemAlloc_v2, (uint64_t *address, size_t n_bytes)) \
    each(int, MemGetInfo_v2, (size_t *n_free, size_t *n_bytes)) \
    each(int, MemFree_v2, (uint64_t address)) \
    each(int, MemHostAlloc, (void **memory, size_t n_bytes, unsigned flags)) \
    each(int, MemFreeHost, (void *memory)) \
    each(int, MemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t n_bytes, void *stream)) \
    each(int, MemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t n_bytes, void *stream)) \
    each(int, MemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t n_bytes, void *stream)) \
    each(int, MemsetD8Async, (uint64_t to, unsigned char byte, size_t n_bytes, void *stream)) \
    each(int, LaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **args, void **extra))
/* clang-format on */

/* Those for graphs, which a driver may lack. A node's parameters are CUDA_KERNEL_NODE_PARAMS of CUDA 12. */
struct butler_cuda_node_params {
    void *function;
    unsigned grid[3], block[3], shared_bytes;
    void **args, **extra;
    void *kernel, *context; /* NULL: the function's, the current one */
};
/* clang-format off */
#define CUDA_GRAPH_FUNCTIONS(each) \
    each(int, GraphCreate, (void **graph, unsigned flags)) \
    each(int, GraphDestroy, (void *graph)) \
    each(int, GraphAddKernelNode_v2, (void **node, void *graph, void *const *before, size_t n_before, const struct butler_cuda_node_params *params)) \
    each(int, GraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long flags)) \
    each(int, GraphExecDestroy, (void *exec)) \
    each(int, GraphExecKernelNodeSetParams_v2, (void *exec, void *node, const struct butler_cuda_node_params *params)) \
    each(int, GraphLaunch, (void *exec, void *stream))
/* clang-format on */

/* The same without "nvrtc". */
/* clang-format off */
#define NVRTC_FUNCTIONS(each) \
    each(int, Version, (int *major, int *minor)) \
    each(int, GetNumSupportedArchs, (int *n)) \
    each(int, GetSupportedArchs, (int *architectures)) \
    each(int, CreateProgram, (void **program, const char *text, const char *name, int n_headers, const char *const *headers, const char *const *names)) \
    each(int, DestroyProgram, (void **program)) \
    each(int, CompileProgram, (void *program, int n_options, const char *const *options)) \
    each(int, GetProgramLogSize, (void *program, size_t *n_bytes)) \
    each(int, GetProgramLog, (void *program, char *log)) \
    each(int, GetCUBINSize, (void *program, size_t *n_bytes)) \
    each(int, GetCUBIN, (void *program, char *cubin)) \
    each(int, GetPTXSize, (void *program, size_t *n_bytes)) \
    each(int, GetPTX, (void *program, char *ptx)) \
    each(const char *, GetErrorString, (int code))
/* clang-format on */

/* cuBLAS, without "cublas". Products are of columns: c[n][m] = alpha a b + beta c, a [k][m] or, transposed, [m][k], b [n][k]. */
enum {
    CUBLAS_NOT_TRANSPOSED = 0,
    CUBLAS_TRANSPOSED = 1,
    CUBLAS_FLOATS = 0,   /* CUDA_R_32F */
    CUBLAS_BY_TF32 = 77, /* CUBLAS_COMPUTE_32F_FAST_TF32: factors are rounded to 11 bits, sums are floats */
    CUBLAS_DEFAULT = -1, /* CUBLAS_GEMM_DEFAULT: an algorithm by the shape */
    CUBLAS_NO_MEMORY = 3
};
/* clang-format off */
#define CUBLAS_FUNCTIONS(each) \
    each(int, Create_v2, (void **handle)) \
    each(int, Destroy_v2, (void *handle)) \
    each(int, SetStream_v2, (void *handle, void *stream)) \
    each(int, GemmEx, (void *handle, int a_operation, int b_operation, int m, int n, int k, const void *alpha, const void *a, int a_type, int a_stride, const void *b, int b_type, int b_stride, const void *beta, void *c, int c_type, int c_stride, int compute, int algorithm))
/* clang-format on */

#define CUDA_POINTER(type, name, parameters) type(*name) parameters;
struct butler_cuda {
    CUDA_FUNCTIONS(CUDA_POINTER)
    CUDA_GRAPH_FUNCTIONS(CUDA_POINTER)
    bool has_graphs; /* all functions for them */
};
struct butler_nvrtc {
    NVRTC_FUNCTIONS(CUDA_POINTER)
};
struct butler_cublas {
    CUBLAS_FUNCTIONS(CUDA_POINTER)
};
#undef CUDA_POINTER

/* The functions of this machine's libcuda.so.1, opened at the first call; NULL: there is none, or, if *lacks is not NULL then, it
 * is so old that it has no function of that name. */
const struct butler_cuda *butler_cuda_open(const char **lacks);

/* Those of libnvrtc.so.N, N a major version of CUDA; NULL: there is none. */
const struct butler_nvrtc *butler_nvrtc_open(int major);

/* Those of libcublas.so.N of the highest major version N up to `newest`, opened at the first call; NULL: there is none. */
const struct butler_cublas *butler_cublas_open(int newest);

/* For tests, while there is no engine on a device: as if there was no driver, no compiler, or no longer so. */
void butler_cuda_hide(bool driver, bool compiler);
void butler_cublas_hide(bool hidden);

#endif
