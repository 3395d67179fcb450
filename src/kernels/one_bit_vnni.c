/* One-bit keys for CPUs with AVX-512 VNNI. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/simd_one_bit512.h"

void butler_kernels_one_bit_vnni(struct butler_kernels *table)
{
    table->one_bit = one_bit_vnni;
    table->one_bit_step = 1;
}
#endif
