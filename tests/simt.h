/* The dialect of the .cl files of src/gpu as plain C: a group's threads are fibers of one thread, which run in turns from barrier
 * to barrier. So sanitizers see what kernels do, and a barrier that not all threads of a group come to is found. Between two
 * barriers the order is now ascending, now descending: what depends on it differs from what it is compared with.
 *
 * The kernels are functions of this file's includer, simt_kernels the table of them in the order of GPU_KERNELS. */
#ifndef SIMT_H
#define SIMT_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <tgmath.h>
#include <ucontext.h>

#include "file/weight_blocks.h"
#include "gpu/gpu.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/common_interface_defs.h>
#endif

#define THREADS 128
#define KERNEL static void
#define LARGE_KERNEL KERNEL
#define GLOBAL
#define LOCAL
#define INLINE
#define UNROLL
#define SHARED static
#define GROUP(axis) simt.group[axis]
#define THREAD simt.thread
#define BARRIER() simt_barrier(__LINE__)
#define BUFFER(name) uchar *name##_base, ulong name##_at
#define AT(type, name) ((type *)(void *)(name##_base + name##_at))
#define GIVEN(name) (name##_base != 0)
#define LOAD_HALF(p) load_half(simt_even(p))
#define HALF_TO_FLOAT(bits) load_half(&(const uint16_t){(uint16_t)(bits)})
#define STORE_HALF(p, x) store_half((void *)(uintptr_t)simt_even(p), x)
#define FUNNEL(low, high, n) ((uint)(((ulong)(high) << 32 | (ulong)(low)) >> (n)))
#define BYTE_TO_FLOAT(word, i, less) ((float)((int)((word) >> (i)*8 & 255) - (less)))
#define BITS_TO_FLOAT(u) bits_to_float(u)
#define FLOAT_TO_BITS(f) float_to_bits(f)
#define ATOMIC_ADD(p, n) (*(p) += (n))
#define ATOMIC_OR(p, n) (*(p) |= (n))

typedef unsigned char uchar;
typedef struct {
    uint x, y;
} uint2;
typedef struct {
    uint x, y, z, w;
} uint4;
typedef struct {
    float x, y, z, w;
} float4;

/* CUDA reads and writes a half at an even address only. (UBSan sees the same of floats and integers.) */
static const void *simt_even(const void *p)
{
    if ((uintptr_t)p % 2 != 0) {
        fprintf(stderr, "a half at an odd address\n");
        abort();
    }
    return p;
}

enum { SIMT_STACK = 128 << 10, SIMT_INTS = 64, SIMT_FLOATS = 8 };

/* A kernel as any function of this many arguments: where it has fewer, those behind them are not looked at. Integers and addresses
 * are passed apart from floats, each in their order and 8 bytes wide, by the calling conventions that SIMT_CALLS stands for. */
#if defined(__x86_64__) || (defined(__aarch64__) && defined(__linux__))
#define SIMT_CALLS 1
#else
#define SIMT_CALLS 0
#endif
#define SIMT_8(each) each, each, each, each, each, each, each, each
typedef void simt_call(SIMT_8(uint64_t), SIMT_8(uint64_t), SIMT_8(uint64_t), SIMT_8(uint64_t), SIMT_8(uint64_t), SIMT_8(uint64_t),
                       SIMT_8(uint64_t), SIMT_8(uint64_t), SIMT_8(float));

struct simt_fiber {
    void *context[5]; /* of __builtin_setjmp */
    void *stack, *fake_stack;
    int barrier; /* line of the one that it stands at */
    bool done;
};

struct simt {
    struct simt_fiber fibers[THREADS];
    void *scheduler[5];
    void *fake_stack;
    const void *scheduler_stack;
    size_t scheduler_bytes;
    int thread, group[3];
    bool descending;
    simt_call *call;
    uint64_t ints[SIMT_INTS];
    float floats[SIMT_FLOATS];
};
static struct simt simt;

/* Of no interest to the sanitizer, which else clears what it knows of the stack at every jump. */
#define SIMT_PLAIN __attribute__((noinline, no_sanitize_address))

SIMT_PLAIN __attribute__((noreturn)) static void simt_jump(void **to)
{
    __builtin_longjmp(to, 1);
}

/* From a fiber to the scheduler or back, without the system calls of swapcontext. */
SIMT_PLAIN static void simt_switch(void **from, void **to, void **fake_stack, const void *stack, size_t bytes)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
    if (!__builtin_setjmp(from))
        simt_jump(to);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(*fake_stack, NULL, NULL);
#endif
    (void)fake_stack, (void)stack, (void)bytes;
}

static void simt_barrier(int line)
{
    struct simt_fiber *own = &simt.fibers[simt.thread];
    own->barrier = line;
    simt_switch(own->context, simt.scheduler, &own->fake_stack, simt.scheduler_stack, simt.scheduler_bytes);
}

#define SIMT_INTS_FROM(i)                                                                                                          \
    simt.ints[i], simt.ints[i + 1], simt.ints[i + 2], simt.ints[i + 3], simt.ints[i + 4], simt.ints[i + 5], simt.ints[i + 6],      \
        simt.ints[i + 7]

/* A fiber: one thread of each group after the other. */
static void simt_enter(void)
{
    const float *f = simt.floats;
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(NULL, &simt.scheduler_stack, &simt.scheduler_bytes);
#endif
    for (;;) {
        simt.call(SIMT_INTS_FROM(0), SIMT_INTS_FROM(8), SIMT_INTS_FROM(16), SIMT_INTS_FROM(24), SIMT_INTS_FROM(32),
                  SIMT_INTS_FROM(40), SIMT_INTS_FROM(48), SIMT_INTS_FROM(56), f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7]);
        simt.fibers[simt.thread].done = true;
        simt_barrier(0);
    }
}

/* Lets a fiber go on, or begin. */
static void simt_resume(struct simt_fiber *fiber)
{
    if (fiber->stack) {
        simt_switch(simt.scheduler, fiber->context, &simt.fake_stack, fiber->stack, SIMT_STACK);
        return;
    }
    ucontext_t context;
    if (!(fiber->stack = malloc(SIMT_STACK)))
        abort();
    getcontext(&context);
    context.uc_stack.ss_sp = fiber->stack;
    context.uc_stack.ss_size = SIMT_STACK;
    context.uc_link = NULL;
    makecontext(&context, simt_enter, 0);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(&simt.fake_stack, fiber->stack, SIMT_STACK);
#endif
    if (!__builtin_setjmp(simt.scheduler))
        setcontext(&context);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(simt.fake_stack, NULL, NULL);
#endif
}

/* All threads of a group up to their next barrier, or to their end. True: they are at their end. */
static bool simt_round(const char *name)
{
    const int first = simt.descending ? THREADS - 1 : 0, step = simt.descending ? -1 : 1;
    simt.descending = !simt.descending;
    for (int i = 0; i < THREADS; i++) {
        simt.thread = first + i * step;
        struct simt_fiber *fiber = &simt.fibers[simt.thread];
        simt_resume(fiber);
    }
    for (int i = 1; i < THREADS; i++)
        if (simt.fibers[i].barrier != simt.fibers[0].barrier) {
            fprintf(stderr, "%s: thread 0 is at the barrier of line %d, thread %d at that of line %d (0: none)\n", name,
                    simt.fibers[0].barrier, i, simt.fibers[i].barrier);
            abort();
        }
    return simt.fibers[0].done;
}

static void simt_group(const char *name)
{
    for (int i = 0; i < THREADS; i++)
        simt.fibers[i].done = false;
    while (!simt_round(name))
        ;
}

static void simt_free(void)
{
    for (int i = 0; i < THREADS; i++)
        free(simt.fibers[i].stack);
    memset(&simt, 0, sizeof simt);
}

#include "gpu/kernels.cl"
#include "gpu/cache.cl"
#include "gpu/attend.cl"
#include "gpu/fused.cl"
#include "gpu/one_bit.cl"
#include "gpu/predicted.cl"
#include "gpu/evict.cl"

#define SIMT_KERNEL(name, format) (simt_call *)(void (*)(void))name,
static simt_call *const simt_kernels[] = {GPU_KERNELS(SIMT_KERNEL)};

#endif
