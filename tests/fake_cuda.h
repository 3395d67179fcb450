/* How a test steers the stand-ins for libcuda.so.1 (fake_cuda.c) and libnvrtc.so.12 (fake_nvrtc.c), which it finds in them as
 * fake_cuda and fake_nvrtc. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stdint.h>

/* Which call fails, and what was called. */
struct fake_calls {
    const char *only; /* functions of this name are counted, without cu or nvrtc; NULL: all */
    int n;            /* counted so far; a test sets it to 0 */
    int fail_at;      /* this one of those counted, from 0 on, fails by fail_code; -1: none */
    int fail_code;
};

struct fake_cuda {
    struct fake_calls calls;
    int version, n_devices, capability; /* 12040: CUDA 12.4; 90: 9.0 */
    uint64_t memory;                    /* bytes that all buffers may have; 0: any number */
    int kernels_left;                   /* until one fails while it runs, and the context is lost; -1: none does */
    int n_contexts, n_streams, n_modules, n_buffers, n_graphs; /* that are not released; executable graphs are graphs too */
    int n_current;                                             /* contexts that threads have pushed and not popped */
    bool loads_ptx;                                            /* the latest module was PTX */
    int n_left;                                                /* of the last four, when the context ended last */
    int n_launched, n_graphs_launched, n_patched;              /* kernels one by one; graphs; nodes */
};

/* What fake_cublas.c asks of fake_cuda.c: a function for the stream, which is called with a copy of data[n_bytes] when its turn
 * comes (a code); the n_bytes at an address of device memory, or NULL. */
enum { FAKE_DATA = 128 };
typedef int fake_cuda_enqueue_fn(void *stream, void (*call)(const void *data), const void *data, uint64_t n_bytes);
typedef void *fake_cuda_bytes_fn(uint64_t address, uint64_t n_bytes);

struct fake_cublas {
    struct fake_calls calls;
    int n_handles, n_products; /* not destroyed; since the beginning */
};

struct fake_nvrtc {
    struct fake_calls calls;
    bool does_not_compile;
    int minor, newest;          /* 4: NVRTC 12.4; 90: no architecture above sm_90 is known */
    int n_programs, n_compiled; /* not destroyed; since the beginning */
};

/* True: this call fails. */
static inline bool fake_fails(struct fake_calls *calls, const char *name)
{
    if (calls->only) {
        const char *a = calls->only, *b = name;
        for (; *a && *a == *b; a++)
            b++;
        if (*a != *b)
            return false;
    }
    return calls->n++ == calls->fail_at;
}

#endif
