/* The table for CPUs with AVX-512 F, BW, DQ and VL. */
#include "kernels.h"

#if defined(__x86_64__)
void butler_kernels_avx512(struct butler_kernels *table)
{
    table->isa = "avx512";
}
#endif
