/* Beside the rows of GGUF files (file/weight_blocks.h): what kernels alone read. */
#ifndef BUTLER_BLOCKS_H
#define BUTLER_BLOCKS_H

#include <math.h>

#include "file/weight_blocks.h"

static inline uint64_t four_halves(const uint8_t *const at[4])
{
    return load_u16(at[0]) | (uint64_t)load_u16(at[1]) << 16 | (uint64_t)load_u16(at[2]) << 32 | (uint64_t)load_u16(at[3]) << 48;
}

/* The integers of a Q8_0 block have no NaN. Where one of x[n] is NaN or infinite, the scales of its block in the row become NaN:
 * what comes from a key or value that is not a number must be none, as with halves, or the fault would never be seen. */
static inline void keep_non_finite(uint8_t *row, const float *x, int n)
{
    const uint32_t exponent = 0x7f800000;
    for (; n > 0; n -= BLOCK, x += BLOCK, row += Q8_0_BYTES) {
        uint32_t others = 0;
        for (int i = 0; i < BLOCK; i++)
            others |= (float_to_bits(x[i]) & exponent) == exponent;
        if (others)
            store_half(row, NAN);
    }
}

/* Scales of predicted keys are a byte: five bits of exponent and three of fraction, 2^-23 to 480. The lowest that is no less than
 * x, or the highest. */
enum { KEY_SCALE_BASE = (127 - 23) << 23, KEY_SCALE_SHIFT = 20 /* from a byte to a float's bits */ };

static inline float key_scale(uint8_t b)
{
    return bits_to_float(((uint32_t)b << KEY_SCALE_SHIFT) + KEY_SCALE_BASE);
}

static inline uint8_t to_key_scale(float x)
{
    const uint32_t bits = float_to_bits(x), one = 1u << KEY_SCALE_SHIFT;
    if (!(x > key_scale(0)))
        return 0;
    return bits > float_to_bits(key_scale(255)) ? 255 : (uint8_t)((bits - KEY_SCALE_BASE + one - 1) / one);
}

#endif
