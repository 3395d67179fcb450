/* One-bit keys: what the kernels of every ISA share, the integers that queries become and where a record's parts lie. */
#ifndef BUTLER_ONE_BIT_H
#define BUTLER_ONE_BIT_H

#include <math.h>

#include "kernels/blocks.h"
#include "kernels/kernels.h"

static inline size_t one_bit_padded(int n)
{
    return ((size_t)n + 3) / 4 * 4;
}

static inline const uint8_t *one_bit_ranges(const uint8_t *record, int n)
{
    return record + (size_t)n * 2;
}
static inline const uint8_t *one_bit_bits(const uint8_t *record, int n)
{
    return one_bit_ranges(record, n) + one_bit_padded(n);
}
static inline float one_bit_unit(const uint8_t *record, int n)
{
    return load_f32(record + butler_one_bit_bytes(n) - sizeof(float));
}

/* x[n] = the integers that q[n] becomes; returns what 1 of them stands for. All are 0 where q has nothing finite to scale by:
 * the sum with the lowest keys is infinite or NaN then. */
static inline float one_bit_query(int8_t *x, const float *q, int n)
{
    float most = 0;
    for (int d = 0; d < n; d++)
        most = fabsf(q[d]) > most || q[d] != q[d] ? fabsf(q[d]) : most;
    const bool usable = most >= 0x1p-100f && most <= 0x1p+127f;
    const float factor = usable ? (float)BUTLER_ONE_BIT_MOST / most : 0;
    for (int d = 0; d < n; d++)
        x[d] = usable ? (int8_t)rintf(q[d] * factor) : 0;
    return usable ? most / (float)BUTLER_ONE_BIT_MOST : 0;
}

#endif
