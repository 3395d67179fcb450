/* The table for CPUs with NEON: every 64-bit ARM. */
#include <math.h>

#include "kernels.h"

#if defined(__aarch64__)
#include "vec128x2.h"

#include "simd_vectors.h"
#include "simd_weights.h"
#include "simd_cache.h"
#include "simd_attend.h"
#include "simd_rows.h"
#include "simd_gemm.h"
#include "simd_metrics.h"
#include "one_bit_neon.h"
#include "simd_select.h"

void butler_kernels_neon(struct butler_kernels *table)
{
    table->isa = "neon";
    fill_vectors(table);
    fill_weights(table);
    fill_cache(table);
    fill_attend(table);
    fill_metrics(table);
    fill_select(table);
    table->gemm = gemm;
    table->one_bit = one_bit;
}
#endif
