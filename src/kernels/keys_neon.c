/* Predicted keys for every 64-bit ARM. Two products of bytes overflow 16 bits, so they are added in 32. */
#include "kernels/kernels.h"

#if defined(__aarch64__)
#include "kernels/vec128x2.h"

INLINE int32x4_t quad_add(int32x4_t sum, int8x16_t a, int8x16_t b)
{
    const int16x8_t low = vmull_s8(vget_low_s8(a), vget_low_s8(b)), high = vmull_high_s8(a, b);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high)));
}

#include "kernels/keys_neon.h"

void butler_kernels_keys_neon(struct butler_kernels *table)
{
    fill_keys(table);
}
#endif
