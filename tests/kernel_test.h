/* What the tests of kernels share: memory that ends where the system says it ends, data of every awkward kind, and a
 * comparison against sums taken in double precision. A test loops over the tables of this CPU, plain C among them. */
#ifndef BUTLER_KERNEL_TEST_H
#define BUTLER_KERNEL_TEST_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "kernels/kernels.h"
#include "share.h"

/* Half a unit in the last place of 1: what one rounding may do. */
#define EPS 0x1p-24

/* Bytes between two pages that cannot be touched. */
struct guarded {
    unsigned char *base;
    size_t size;
};

static inline struct guarded guarded_new(size_t size)
{
    const size_t page = 4096;
    size = (size + page - 1) / page * page;
    unsigned char *p = mmap(NULL, size + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    assert_int_equal(mprotect(p, page, PROT_NONE), 0);
    assert_int_equal(mprotect(p + page + size, page, PROT_NONE), 0);
    return (struct guarded){p + page, size};
}

static inline void guarded_free(struct guarded *g)
{
    if (g->base)
        munmap(g->base - 4096, g->size + 2 * 4096);
    *g = (struct guarded){0};
}

/* n bytes that begin `skip` after the first guard page (end false) or end `skip` before the second. */
static inline void *guarded_at(const struct guarded *g, size_t n, bool end, size_t skip)
{
    assert_true(n + skip <= g->size);
    return end ? g->base + g->size - n - skip : g->base + skip;
}

/* Gives a block of a quantised type the scale and, where it has one, the minimum. */
static inline void put_scales(enum butler_type type, unsigned char *block, float scale, float minimum)
{
    static const short at[BUTLER_N_TYPES] = {
        [BUTLER_Q2_K] = 80, [BUTLER_Q3_K] = 108, [BUTLER_Q6_K] = 208, [BUTLER_TQ1_0] = 52, [BUTLER_TQ2_0] = 64};
    const uint16_t d = butler_float_to_half(scale), m = butler_float_to_half(minimum);
    int exponent;
    if (type == BUTLER_MXFP4) { /* a byte: the nearest power of two below, doubled values */
        frexp((double)scale, &exponent);
        block[0] = (unsigned char)(scale == 0 ? 0 : 128 + BUTLER_MIN(BUTLER_MAX(exponent - 1, -128), 127));
        return;
    }
    memcpy(block + at[type], &d, 2);
    if (type == BUTLER_Q4_1 || type == BUTLER_Q5_1 || type == BUTLER_Q2_K || type == BUTLER_Q4_K || type == BUTLER_Q5_K)
        memcpy(block + at[type] + 2, &m, 2);
}

enum kind { NORMAL, ZEROS, SUBNORMAL, HUGE_VALUES, MIXED, N_KINDS };

static inline float random_value(uint64_t *seed, enum kind kind)
{
    float v = butler_random_normal(seed);
    if (kind == MIXED)
        kind = (enum kind)(butler_random(seed) % MIXED);
    return kind == ZEROS ? 0 : kind == SUBNORMAL ? v * 1e-40f : kind == HUGE_VALUES ? v * 1e15f : v;
}

static inline void fill_random(float *x, size_t n, enum kind kind, uint64_t *seed)
{
    for (size_t i = 0; i < n; i++)
        x[i] = random_value(seed, kind);
}

/* What rounding may do to a sum of n terms: every partial sum is at most the sum of magnitudes. Partial sums run in at
 * least eight lanes, so a chain has n / 8 additions and a few more where lanes meet, and each term was rounded itself.
 * The last part is for products and sums below the normal numbers, whose roundings are absolute. */
static inline double sum_bound(int n, double magnitude)
{
    return (n / 8 + 12) * EPS * magnitude + (n + 1) * 0x1p-149;
}

static inline void assert_near(const char *what, const char *isa, int n, int i, double got, double expected, double bound)
{
    if (!(fabs(got - expected) <= bound))
        fail_msg("%s (%s), n %d, element %d: %.9g, not %.9g +- %.3g", what, isa, n, i, got, expected, bound);
}

static inline void assert_same_bits(const char *what, const char *isa, int n, int i, float a, float b)
{
    if (memcmp(&a, &b, sizeof a) != 0)
        fail_msg("%s (%s), n %d, element %d: %.9g and %.9g differ", what, isa, n, i, (double)a, (double)b);
}

/* Independent of the kernels: the value of a half, by its definition. */
static inline double half_value(unsigned h)
{
    double sign = h & 0x8000 ? -1 : 1;
    int exponent = h >> 10 & 31, mantissa = h & 1023;
    if (exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24));
}

/* The half at p. Worked out once, because tests read millions of them. */
static inline double half_at(const unsigned char *p)
{
    static double values[65536];
    if (values[0x3c00] == 0)
        for (unsigned h = 0; h < 65536; h++)
            values[h] = half_value(h);
    return values[p[0] | (unsigned)p[1] << 8];
}

#define FOR_EACH_ISA(table)                                                                                                        \
    for (const char *const *isa_ = butler_kernels_available(); *isa_; isa_++)                                                      \
        for (const struct butler_kernels *table = butler_kernels_get(*isa_); table; table = NULL)

/* Of 32 columns the greatest is so many steps, worked out here in the same roundings. */
static inline void fixed_by_definition(double *out, const float *x, int n, float steps)
{
    for (int first = 0; first < n; first += 32) {
        float most = 0;
        for (int i = first; i < first + 32; i++)
            most = fmaxf(most, fabsf(x[i]));
        for (int i = first; i < first + 32; i++)
            out[i] = most < 0x1p-100f ? 0 : (double)(most / steps) * (double)rintf(x[i] * (steps / most));
    }
}

#endif
