/* A device behind OpenCL, as the files of this folder share it. Addresses that operations are given are those of reserved address
 * space that nobody can read or write (device memory), or of weights in host memory; a table says which buffer of the device each
 * belongs to. After the first error (fault) nothing is launched any more: check() gives it to the engine before a result is used.
 */
#ifndef BUTLER_GPU_H
#define BUTLER_GPU_H

#include "engine/backend.h"
#include "gpu/opencl_api.h"

#define GPU_KERNELS(each)                                                                                                          \
    each(embed) each(matmul_1) each(matmul_8) each(norm_rows) each(rope) each(activate) each(elementwise) each(gather_rows)        \
        each(scatter_add) each(finite_top_k) each(append) each(bound_pages) each(score_pages) each(score_keys) each(choose_units)  \
            each(repeat) each(attend) each(merge) each(retrieve_pages)

#define GPU_ENUM(name) GPU_##name,
enum butler_gpu_kernel { GPU_KERNELS(GPU_ENUM) GPU_N_KERNELS };
#undef GPU_ENUM
extern const char *const butler_gpu_kernel_names[];

/* The constants of kernels.cl and cache.cl that the host must know too. */
enum { GPU_THREADS = 128, GPU_TOKENS = 8, GPU_SLICE = 256, GPU_MOST_HEADS = 8 };

/* Addresses [from, from + n_bytes) lie in a buffer. */
struct butler_gpu_region {
    const unsigned char *from;
    size_t n_bytes;
    void *buffer;
    bool owned; /* address space that was reserved here; else weights */
};

struct butler_gpu {
    struct butler_backend backend; /* first: a struct butler_backend * of it is one of this */
    const struct butler_opencl *cl;
    void *device, *context, *queue, *program;
    void *kernels[GPU_N_KERNELS];
    uint64_t launches[GPU_N_KERNELS];
    struct butler_gpu_region *regions; /* [n_regions], ascending */
    int n_regions, max_regions;
    void *staging; /* numbers that an operation is given in host memory, or gives there */
    size_t staging_bytes;
    int index; /* of opencl:N */
    char name[160];
    struct butler_error fault;
};

/* Notes the first error. what: an operation's or a kernel's name. */
void butler_gpu_fail(struct butler_gpu *gpu, const char *what, cl_int code);

/* Runs a kernel over x * y * z groups. A parameter a letter of format: b an address or NULL (BUFFER of the dialect), s the staging
 * buffer, i an int, l a uint64_t, f a double that the kernel gets as a float. */
void butler_gpu_launch(struct butler_gpu *gpu, enum butler_gpu_kernel kernel, int x, int y, int z, const char *format, ...);

/* n_bytes of host memory go to the staging buffer at an offset; together with what `offset` bytes before hold. */
void butler_gpu_stage(struct butler_gpu *gpu, const void *host, size_t offset, size_t n_bytes);
/* Makes the staging buffer at least so large; its contents are lost then. */
bool butler_gpu_reserve_staging(struct butler_gpu *gpu, size_t n_bytes);
void butler_gpu_read_staging(struct butler_gpu *gpu, void *host, size_t n_bytes);

/* Fills in the operations: on memory (memory_gpu.c), on the cache (cache_gpu.c). */
void butler_gpu_use_memory(struct butler_backend *backend);
void butler_gpu_use_cache(struct butler_backend *backend);
void butler_gpu_free_memory(struct butler_gpu *gpu);

#endif
