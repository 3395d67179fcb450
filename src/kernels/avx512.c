/* The table for CPUs with AVX-512 F, BW, DQ and VL: Intel's servers from 2017 on, AMD's from Zen 4 on. What it gains over AVX2's:
 * `bench_kernels --compare`. Decode attention stays AVX2's: longer vectors gain less than 10 % there. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AVX512)

#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_gemm.h"
#include "kernels/simd_prompt.h"
#include "kernels/simd_weights.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_rows.h"
#include "kernels/simd_metrics.h"
#include "kernels/simd_select.h"

void butler_kernels_avx512(struct butler_kernels *table)
{
    table->isa = "avx512";
    fill_vectors(table);
    fill_prompt(table);
    fill_weights(table);
    fill_cache(table);
    fill_metrics(table);
    fill_select(table);
    table->gemm = gemm;
}
BUTLER_TARGET_END
#endif
