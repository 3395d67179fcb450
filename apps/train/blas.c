/* Loads a BLAS with the C interface and calls its matrix product. */
#include "blas.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* What OpenBLAS maps for a thread's products on a 64-bit machine, 128 MiB, and something for its bookkeeping. */
#define BUFFER_BYTES (((size_t)128 << 20) + ((size_t)1 << 20))

/* The library's own mapping and those of what it needs: up to 90 MB (0.3.29 of Debian 13). */
#define LIBRARY_BYTES ((size_t)128 << 20)

/* Constants of the C interface, the same in every BLAS. */
enum { ROW_MAJOR = 101, PLAIN = 111, TRANSPOSED = 112 };

typedef void gemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                     int ldb, float beta, float *c, int ldc);
typedef void set_threads_fn(int n);

struct butler_blas {
    void *library;
    gemm_fn *gemm;
};

/* dlsym returns an object pointer: ISO C has no cast to a function pointer, so the bytes are copied. */
static void find(void *library, const char *name, void *where, size_t n_bytes)
{
    void *address = dlsym(library, name);
    memcpy(where, &address, n_bytes);
}

static int check_room(size_t size, int n_threads, struct butler_error *err)
{
    void *room = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED)
        return butler_fail(
            err, BUTLER_ERROR_MEMORY,
            "the BLAS needs %zu bytes of address space for the products of %d threads: %s; raise the limit (ulimit -v) "
            "or use fewer threads (-t)",
            size, n_threads, strerror(errno));
    munmap(room, size);
    return 0;
}

int butler_blas_check_room(int n_threads, struct butler_error *err)
{
    return check_room((size_t)n_threads * BUFFER_BYTES, n_threads, err);
}

struct butler_blas *butler_blas_load(struct butler_error *err)
{
    static const char *const names[] = {"libopenblas.so.0", "libblas.so.3"};
    struct butler_blas *blas = butler_alloc(sizeof *blas, err);
    if (!blas)
        return NULL;
    /* It takes a buffer as it is loaded, and would start threads, each of which takes one. */
    if (check_room(BUFFER_BYTES + LIBRARY_BYTES, 1, err) < 0) {
        free(blas);
        return NULL;
    }
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    for (int i = 0; i < BUTLER_COUNT(names); i++) {
        set_threads_fn *set_threads = NULL;
        blas->library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (!blas->library)
            continue;
        find(blas->library, "cblas_sgemm", &blas->gemm, sizeof blas->gemm);
        find(blas->library, "openblas_set_num_threads", &set_threads, sizeof set_threads);
        if (set_threads)
            set_threads(1);
        if (blas->gemm)
            return blas;
        dlclose(blas->library);
        blas->library = NULL;
    }
    butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                "training needs a BLAS with the C interface: neither %s nor %s was found; install libopenblas0", names[0],
                names[1]);
    butler_blas_free(blas);
    return NULL;
}

/* The library stays loaded: it may have running threads, whose code must not be unmapped. */
void butler_blas_free(struct butler_blas *blas)
{
    free(blas);
}

static void multiply(const struct butler_blas *blas, int trans_a, int trans_b, const struct butler_gemm *p)
{
    blas->gemm(ROW_MAJOR, trans_a, trans_b, p->m, p->n, p->k, p->alpha, p->a, p->lda, p->b, p->ldb, p->add ? 1.0f : 0.0f, p->c,
               p->ldc);
}

void butler_blas_nt(const struct butler_blas *blas, const struct butler_gemm *product)
{
    multiply(blas, PLAIN, TRANSPOSED, product);
}

void butler_blas_nn(const struct butler_blas *blas, const struct butler_gemm *product)
{
    multiply(blas, PLAIN, PLAIN, product);
}

void butler_blas_tn(const struct butler_blas *blas, const struct butler_gemm *product)
{
    multiply(blas, TRANSPOSED, PLAIN, product);
}
