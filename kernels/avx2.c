/* The table for CPUs with AVX2, FMA and F16C. */
#include "kernels.h"

#if defined(__x86_64__)
void butler_kernels_avx2(struct butler_kernels *table)
{
    table->isa = "avx2";
}
#endif
