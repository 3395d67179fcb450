/* The table for CPUs with NEON: every 64-bit ARM. */
#include <math.h>

#include "kernels/kernels.h"

#if defined(__aarch64__)
#include "kernels/vec128x2.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_gemm.h"
#include "kernels/simd_prompt.h"
#include "kernels/simd_weights.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_attend.h"
#include "kernels/simd_rows.h"
#include "kernels/simd_attend_rows.h"
#include "kernels/simd_metrics.h"
#include "kernels/one_bit_neon.h"
#include "kernels/simd_select.h"

void butler_kernels_neon(struct butler_kernels *table)
{
    table->isa = "neon";
    fill_vectors(table);
    fill_prompt(table);
    fill_weights(table);
    fill_cache(table);
    fill_attend(table);
    fill_metrics(table);
    fill_select(table);
    table->gemm = gemm;
    table->one_bit = one_bit;
}
#endif
