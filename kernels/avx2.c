/* The table for CPUs with AVX2, FMA and F16C. */
#include <math.h>

#include "kernels.h"

#if defined(__x86_64__)
#include "vec256.h"

#include "simd_vectors.h"
#include "simd_weights.h"
#include "simd_cache.h"
#include "simd_attend.h"
#include "simd_group.h"
#include "simd_narrow.h"
#include "simd_rows.h"
#include "simd_gemm.h"
#include "simd_metrics.h"
#include "simd_select.h"

void butler_kernels_avx2(struct butler_kernels *table)
{
    table->isa = "avx2";
    fill_vectors(table);
    fill_weights(table);
    fill_cache(table);
    fill_attend(table);
    fill_metrics(table);
    fill_select(table);
    table->gemm = gemm;
}
#endif
