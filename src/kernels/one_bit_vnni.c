/* One-bit keys for CPUs with AVX-512 VNNI: Intel's servers from 2019 on, AMD's from Zen 4 on. By how much they win over AVX2:
 * `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_VNNI)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/simd_one_bit512.h"

void butler_kernels_one_bit_vnni(struct butler_kernels *table)
{
    table->one_bit = one_bit_vnni;
    table->one_bit_step = 1;
}
BUTLER_TARGET_END
#endif
