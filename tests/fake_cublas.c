/* A stand-in for libcublas.so.12, for tests: products in plain C on the stream of fake_cuda.c, by TF32, summed in an order that
 * depends on the shape and the strides, as an algorithm may that is chosen by them. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "gpu/cuda_api.h"

#define EXPORT __attribute__((visibility("default")))
#define EXPORTED(type, name, parameters) EXPORT type cublas##name parameters;
CUBLAS_FUNCTIONS(EXPORTED)

extern EXPORT struct fake_cublas fake_cublas;
struct fake_cublas fake_cublas = {.calls.fail_at = -1};

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13, ALIGNMENT = 16 };

struct handle {
    void *stream; /* NULL: not set */
    fake_cuda_enqueue_fn *enqueue;
    fake_cuda_bytes_fn *bytes;
};

struct product {
    const float *a, *b;
    float *c;
    int m, n, k, n_sums;
};

#define FAIL(name)                                                                                                                 \
    if (fake_fails(&fake_cublas.calls, name))                                                                                      \
        return fake_cublas.calls.fail_code;

int cublasCreate_v2(void **object)
{
    FAIL("Create")
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), *symbols[2];
    struct handle *handle = calloc(1, sizeof *handle);
    if (!cuda || !handle || !(symbols[0] = dlsym(cuda, "fake_cuda_enqueue")) || !(symbols[1] = dlsym(cuda, "fake_cuda_bytes"))) {
        fprintf(stderr, "fake_cublas: the driver is no stand-in\n");
        abort();
    }
    memcpy(&handle->enqueue, &symbols[0], sizeof symbols[0]);
    memcpy(&handle->bytes, &symbols[1], sizeof symbols[1]);
    __atomic_fetch_add(&fake_cublas.n_handles, 1, __ATOMIC_RELAXED);
    *object = handle;
    return 0;
}

int cublasDestroy_v2(void *handle)
{
    __atomic_fetch_sub(&fake_cublas.n_handles, 1, __ATOMIC_RELAXED);
    free(handle);
    FAIL("Destroy")
    return 0;
}

int cublasSetStream_v2(void *object, void *stream)
{
    FAIL("SetStream")
    ((struct handle *)object)->stream = stream;
    return 0;
}

/* To the nearest number with 11 bits. */
static float tf32(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7f800000) != 0x7f800000)
        u = (u + 0xfff + (u >> 13 & 1)) & ~0x1fffu;
    memcpy(&x, &u, sizeof x);
    return x;
}

static bool is_zero(const float *x, int n)
{
    int i = 0;
    while (i < n && x[i] == 0)
        i++;
    return i == n;
}

static void run_product(const void *data)
{
    struct product p;
    memcpy(&p, data, sizeof p);
    float *a = malloc((size_t)p.m * (size_t)p.k * sizeof *a), *b = malloc((size_t)p.k * sizeof *b);
    if (!a || !b)
        abort();
    for (size_t i = 0; i < (size_t)p.m * (size_t)p.k; i++)
        a[i] = tf32(p.a[i]);
    for (int t = 0; t < p.n; t++) {
        const float *in = p.b + (size_t)t * (size_t)p.k;
        float *out = p.c + (size_t)t * (size_t)p.m;
        memset(out, 0, (size_t)p.m * sizeof *out);
        if (is_zero(in, p.k))
            continue;
        for (int d = 0; d < p.k; d++)
            b[d] = tf32(in[d]);
        for (int r = 0; r < p.m; r++)
            for (int first = 0; first < p.n_sums; first++) {
                const float *row = a + (size_t)r * (size_t)p.k;
                float sum = 0;
                for (int d = first; d < p.k; d += p.n_sums)
                    sum += row[d] * b[d];
                out[r] += sum;
            }
    }
    free(a), free(b);
}

/* Floats [n_columns][stride] on the device; NULL: not all are in one buffer. */
static void *columns(const struct handle *handle, const void *address, int n_columns, int stride)
{
    if ((uintptr_t)address % ALIGNMENT != 0) {
        fprintf(stderr, "fake_cublas: a matrix is not aligned\n");
        abort();
    }
    return handle->bytes((uint64_t)(uintptr_t)address, (uint64_t)n_columns * (uint64_t)stride * sizeof(float));
}

/* Of all that cuBLAS can do that which the library asks for. */
int cublasGemmEx(void *object, int a_operation, int b_operation, int m, int n, int k, const void *alpha, const void *a, int a_type,
                 int a_stride, const void *b, int b_type, int b_stride, const void *beta, void *c, int c_type, int c_stride,
                 int compute, int algorithm)
{
    const struct handle *handle = object;
    FAIL("GemmEx")
    if (!handle || !handle->stream)
        return NOT_INITIALIZED;
    if (a_operation != CUBLAS_TRANSPOSED || b_operation != CUBLAS_NOT_TRANSPOSED || a_type != CUBLAS_FLOATS ||
        b_type != CUBLAS_FLOATS || c_type != CUBLAS_FLOATS || compute != CUBLAS_BY_TF32 || algorithm != CUBLAS_DEFAULT ||
        *(const float *)alpha != 1 || *(const float *)beta != 0 || m <= 0 || n <= 0 || k <= 0 || a_stride != k || b_stride != k ||
        c_stride != m)
        return INVALID_VALUE;
    const struct product product = {.a = columns(handle, a, m, k),
                                    .b = columns(handle, b, n, k),
                                    .c = columns(handle, c, n, m),
                                    .m = m,
                                    .n = n,
                                    .k = k,
                                    .n_sums = 1 + (m + n + k) % 7};
    if (!product.a || !product.b || !product.c)
        return INVALID_VALUE;
    fake_cublas.n_products++;
    return handle->enqueue(handle->stream, run_product, &product, sizeof product) ? EXECUTION_FAILED : 0;
}
