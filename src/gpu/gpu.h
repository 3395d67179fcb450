/* A device behind a driver, as the files of this folder share it. Addresses that operations are given are those of reserved address
 * space that nobody can read or write (device memory), or of weights in host memory; a table says which buffer of the device each
 * belongs to. After the first error (fault) nothing is launched any more: check() gives it to the engine before a result is used.
 */
#ifndef BUTLER_GPU_H
#define BUTLER_GPU_H

#include "engine/backend.h"
#include "gpu/backend_gpu.h"

/* Every kernel, and what it is given, a letter a parameter: b BUFFER of the dialect, i an int, l a ulong, f a float. */
/* clang-format off */
#define GPU_ROWS "biiiif" /* ROWS of cache.cl */
#define GPU_KERNELS(each) \
    each(embed, "bbbiii") \
    each(matmul_1, "bbbiiibbbiiibbbiiibii") \
    each(matmul_8, "bbbiiibbbiiibbbiiibii") \
    each(unpack, "bbiii") \
    each(take_product, "bbbii") \
    each(norm_rows, "bbbbiiif") \
    each(rope, "bbbbiiiii") \
    each(activate, "bbiii") \
    each(elementwise, "bblif") \
    each(gather_rows, "bbbii") \
    each(scatter_add, "bbbii") \
    each(finite_top_k, "bbiiii") \
    each(append, "bbbbbbbbli" GPU_ROWS "iiii") \
    each(bound_pages, "bbbbli" GPU_ROWS "iiif") \
    each(move_pages, "bbbliii") \
    each(score_pages, "bbbbbbbbbfilli" GPU_ROWS "iiiiifi") \
    each(score_keys, "bbbbbbfili" GPU_ROWS "iii") \
    each(combine_rows, "bbbfiliii") \
    each(choose_units, "bbbbllliiiiiiii") \
    each(repeat, "bbblliii") \
    each(attend, "bbbbbbliiiii" GPU_ROWS "fiii") \
    each(merge, "bbbbiiiiii") \
    each(retrieve_pages, "bbbbbbbbbbbbbblllli" GPU_ROWS "iiiiiiifffiii") \
    each(record_bits, "bbbbli" GPU_ROWS "iiii") \
    each(score_bits, "bbbbfilliii") \
    each(record_predicted, "bbbbbblli" GPU_ROWS "iiii") \
    each(score_predicted, "bbbbfilliiiiiif") \
    each(choose_leaving, "bbbblliiiiiii") \
    each(compact, "bbbbbbbbllliiii") \
    each(observe, "bbbbbliii" GPU_ROWS "ffiiiii") \
    each(score_sums, "bblliii")
/* clang-format on */

#define GPU_ENUM(name, format) GPU_##name,
enum butler_gpu_kernel { GPU_KERNELS(GPU_ENUM) GPU_N_KERNELS };
#undef GPU_ENUM
struct butler_gpu_kernel_info {
    const char *name, *format;
};
extern const struct butler_gpu_kernel_info butler_gpu_kernels[GPU_N_KERNELS];

/* The constants of the .cl files that the host must know too. */
enum {
    GPU_THREADS = 128,
    GPU_LANES = 16,
    GPU_TOKENS = 8,
    GPU_SLICE = 256,
    GPU_MOST_HEADS = 8,
    GPU_PAGES = 32,
    GPU_KEY_FLOATS = 4096,
    GPU_QUERY_FLOATS = 1536
};
#define GPU_PARTIAL_FLOATS(dim) (((dim) + 5) / 4 * 4)
enum { GPU_MOST_GROUPS = 65535 }; /* of a launch along y and z: CUDA's limit */
enum { GPU_BEHIND = 16 };         /* bytes behind each buffer's own, which loads of 16 bytes may read */

/* Addresses [from, from + n_bytes) lie in a buffer. */
struct butler_gpu_region {
    const unsigned char *from;
    size_t n_bytes;
    void *buffer;
    bool owned; /* address space that was reserved here; else weights */
};

/* Memory of the products of prompts (prompt_gpu.c): rows of x, weights, results. */
enum butler_gpu_tile { GPU_TILE_X, GPU_TILE_W, GPU_TILE_Y, GPU_N_TILES };

struct butler_gpu {
    struct butler_backend backend; /* first: a struct butler_backend * of it is one of this */
    const struct butler_gpu_driver *driver;
    const void *api; /* the functions of the driver's library; this and the following are the driver's */
    void *device, *context, *queue, *program, *kernels[GPU_N_KERNELS];
    void *aside;                          /* a second queue, from its first use on */
    struct butler_cuda_launches *waiting; /* launches that CUDA's driver was not given yet (cuda_graph.h); NULL: none so far */
    uint64_t launches[GPU_N_KERNELS];
    struct butler_gpu_region *regions; /* [n_regions], ascending */
    int n_regions, max_regions;
    struct butler_gpu_tiles {
        float *at; /* an address, or NULL */
        size_t n_floats;
    } tiles[GPU_N_TILES];
    void *products; /* the driver's library of products, for this device; NULL: it has none */
    void *staging;  /* numbers that an operation is given in host memory, or gives there */
    size_t staging_bytes;
    unsigned char given[1 << 16]; /* copies of host memory that uploads may read until the next wait */
    size_t n_given;
    struct butler_gpu_host *host;       /* pages of the cache that are in host memory (host_gpu.h); or NULL */
    struct butler_gpu_metrics *metrics; /* what runs metrics without kernels (metric_gpu.h); or NULL */
    int index;                          /* of opencl:N or cuda:N */
    const char *folder;                 /* where compiled kernels may be kept between processes, the caller's; or NULL */
    struct butler_gpu_info info;
    char label[192]; /* "device cuda:0 (its name)", for errors */
    struct butler_error fault;
};

/* An argument of a kernel. BUFFER of the dialect is two: a buffer, or NULL, and the offset in it. */
struct butler_gpu_arg {
    bool is_buffer;
    uint8_t n_bytes;
    union {
        void *buffer;
        uint64_t l;
        int32_t i;
        float f;
    } value;
};
enum { GPU_MOST_ARGS = 64, GPU_CODE = 80 };

/* Of buffers. */
struct butler_gpu_product {
    struct butler_gpu_place {
        void *buffer;
        size_t offset;
    } y, w, x;
    int shape[3];
};

/* What is asked of a driver, by whichever thread: opencl_driver.c and cuda_driver.c are the two. Functions whose result is called a
 * code give the driver's, 0 if they worked. Work on a device is done in the order in which it was given. */
struct butler_gpu_driver {
    const char *name; /* of --device: "opencl" */
    /* As butler_gpu_describe; <0 on failure. */
    int (*find)(int index, struct butler_gpu_info *info, struct butler_error *err);
    /* Starts device gpu->index and compiles the kernels: fills in api, device, context, queue, program, kernels. *err may get a
     * note, with code 0. */
    int (*start)(struct butler_gpu *gpu, struct butler_error *err);
    void (*stop)(struct butler_gpu *gpu); /* undoes what of start was done; all buffers are free by then */
    int (*alloc)(struct butler_gpu *gpu, size_t n_bytes, void **buffer); /* a code; contents are undefined */
    uint64_t (*memory_left)(struct butler_gpu *gpu);    /* NULL, or bytes that alloc can still give; UINT64_MAX: it does not say */
    void (*free)(struct butler_gpu *gpu, void *buffer); /* once what runs no longer needs it */
    int (*alloc_host)(struct butler_gpu *gpu, size_t n_bytes, void **memory); /* a code; host memory that copies are fastest with */
    void (*free_host)(struct butler_gpu *gpu, void *memory);                  /* after finish */
    int (*upload)(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n); /* a code; host is read until finish */
    int (*download)(struct butler_gpu *gpu, void *host, void *from, size_t at, size_t n);   /* a code; waits for the bytes */
    /* As upload, and finish, of a second queue, whose work is done beside that of the first, which has begun by then. Codes. */
    int (*upload_aside)(struct butler_gpu *gpu, void *to, size_t at, const void *host, size_t n);
    int (*finish_aside)(struct butler_gpu *gpu);
    int (*copy)(struct butler_gpu *gpu, void *to, size_t to_at, void *from, size_t from_at, size_t n); /* a code */
    int (*zero)(struct butler_gpu *gpu, void *buffer, size_t at, size_t n);                            /* a code */
    /* A code. The launch may wait until another of these functions but alloc is called, and fail there. */
    int (*launch)(struct butler_gpu *gpu, int kernel, const int groups[3], const struct butler_gpu_arg *args, int n);
    /* NULL, or where gpu->products is not: y[n][n_rows] = x[n][n_cols] w[n_rows][n_cols]^T of floats, shape: n_rows, n, n_cols. The
     * same call has the same bits. A code. */
    int (*multiply)(struct butler_gpu *gpu, const struct butler_gpu_product *product);
    int (*finish)(struct butler_gpu *gpu);                             /* a code; waits for everything */
    bool (*is_memory)(int code);                                       /* says that there is not enough of it */
    void (*name_code)(const void *api, int code, char text[GPU_CODE]); /* "OpenCL error -36" */
};

/* Texts of the kernels, which lie in the library. A driver's compiler reads its dialect's first, then the others. */
enum butler_gpu_text {
    GPU_TEXT_OPENCL,
    GPU_TEXT_CUDA,
    GPU_TEXT_KERNELS,
    GPU_TEXT_CACHE,
    GPU_TEXT_ATTEND,
    GPU_TEXT_FUSED,
    GPU_TEXT_ONE_BIT,
    GPU_TEXT_PREDICTED,
    GPU_TEXT_EVICT,
    GPU_N_TEXTS
};
const char *butler_gpu_text(enum butler_gpu_text text, size_t *n_bytes);

/* Notes the first error. what: an operation's or a kernel's name. */
void butler_gpu_fail(struct butler_gpu *gpu, const char *what, int code);

/* Runs a kernel over x * y * z groups; y and z at most GPU_MOST_GROUPS. Its parameters follow, by its format: b an address or NULL,
 * or GPU_STAGING for the staging buffer; i an int, l a uint64_t, f a double. */
#define GPU_STAGING(gpu) ((const void *)(gpu))
void butler_gpu_launch(struct butler_gpu *gpu, enum butler_gpu_kernel kernel, int x, int y, int z, ...);

/* The driver's product of three addresses. */
void butler_gpu_multiply(struct butler_gpu *gpu, float *y, const float *w, const float *x, const int shape[3]);

/* host_memory goes to an address of the device beside what the device does, which must not touch it until finish. */
void butler_gpu_upload_aside(struct butler_gpu *gpu, void *to, const void *host, size_t n_bytes);
void butler_gpu_finish_aside(struct butler_gpu *gpu);

/* Products of prompts' rows, where gpu->products is not NULL. */
void butler_gpu_matmul_prompt(struct butler_backend *backend, const struct butler_product *products, int n_products, const float *x,
                              int n);

/* n_bytes of host memory go to the staging buffer at an offset; together with what `offset` bytes before hold. */
void butler_gpu_stage(struct butler_gpu *gpu, const void *host, size_t offset, size_t n_bytes);
/* Makes the staging buffer at least so large; its contents are lost then. */
bool butler_gpu_reserve_staging(struct butler_gpu *gpu, size_t n_bytes);
void butler_gpu_read_staging(struct butler_gpu *gpu, void *host, size_t n_bytes);

/* Whether all that a plan needs of a device has kernels; group: query heads of a KV head. If not, whether the CPU does the rest
 * (metric_gpu.c). */
bool butler_gpu_has_kernels(const struct butler_plan *plan, int group);
bool butler_gpu_metric_on_cpu(const struct butler_gpu *gpu, const struct butler_plan *plan, int group);

/* Fills in the operations: on memory (memory_gpu.c), on the cache (cache_gpu.c). */
void butler_gpu_use_memory(struct butler_backend *backend);
void butler_gpu_use_cache(struct butler_backend *backend);
void butler_gpu_free_memory(struct butler_gpu *gpu);

#endif
