/* Predicted keys for 64-bit ARMs with the dot product instructions: one of them adds the products of sixteen bytes. */
#include "kernels/kernels.h"

#if defined(__aarch64__)
#include "kernels/vec128x2.h"

INLINE int32x4_t quad_add(int32x4_t sum, int8x16_t a, int8x16_t b)
{
    return vdotq_s32(sum, a, b);
}

#include "kernels/keys_neon.h"

void butler_kernels_keys_dot(struct butler_kernels *table)
{
    fill_keys(table);
}
#endif
