/* A device behind OpenCL, as the files of this folder share it. Addresses that operations are given are those of reserved address
 * space that nobody can read or write (device memory), or of weights in host memory; a table says which buffer of the device each
 * belongs to. After the first error (fault) nothing is launched any more: check() gives it to the engine before a result is used.
 */
#ifndef BUTLER_GPU_H
#define BUTLER_GPU_H

#include "engine/backend.h"
#include "gpu/opencl_api.h"

/* Every kernel, and what it is given, a letter a parameter: b BUFFER of the dialect, i an int, l a ulong, f a float. */
/* clang-format off */
#define GPU_ROWS "iiiif" /* ROWS of cache.cl */
#define GPU_KERNELS(each) \
    each(embed, "bbbiii") \
    each(matmul_1, "bbbbiiiii") \
    each(matmul_8, "bbbbiiiii") \
    each(norm_rows, "bbbbiiif") \
    each(rope, "bbbiiii") \
    each(activate, "bbiii") \
    each(elementwise, "bblif") \
    each(gather_rows, "bbbii") \
    each(scatter_add, "bbbii") \
    each(finite_top_k, "bbii") \
    each(append, "bbbbbi" GPU_ROWS "ii") \
    each(bound_pages, "bbbbli" GPU_ROWS "iii") \
    each(score_pages, "bbblliiii") \
    each(score_keys, "bbbbli" GPU_ROWS "iii") \
    each(choose_units, "bbbbbllliiiiiiifi") \
    each(repeat, "bbblliii") \
    each(attend, "bbbbbbliiiii" GPU_ROWS "fiii") \
    each(merge, "bbbbiiiiii") \
    each(retrieve_pages, "bbbbbbbbbbbbbblllli" GPU_ROWS "iiiiiiiffiii")
/* clang-format on */

#define GPU_ENUM(name, format) GPU_##name,
enum butler_gpu_kernel { GPU_KERNELS(GPU_ENUM) GPU_N_KERNELS };
#undef GPU_ENUM
struct butler_gpu_kernel_info {
    const char *name, *format;
};
extern const struct butler_gpu_kernel_info butler_gpu_kernels[GPU_N_KERNELS];

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

/* Runs a kernel over x * y * z groups. Its parameters follow, by its format: b an address or NULL, or GPU_STAGING for the staging
 * buffer; i an int, l a uint64_t, f a double. */
#define GPU_STAGING(gpu) ((const void *)(gpu))
void butler_gpu_launch(struct butler_gpu *gpu, enum butler_gpu_kernel kernel, int x, int y, int z, ...);

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
