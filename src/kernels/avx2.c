/* The table for CPUs with AVX2, FMA and F16C: Intel's from 2013 on, AMD's from 2015 on. By how much each entry gains over plain C
 * and over the other tables: `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AVX2)

#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec256.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_gemm.h"
#include "kernels/simd_prompt.h"
#include "kernels/simd_weights.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_attend.h"
#include "kernels/simd_group.h"
#include "kernels/simd_narrow.h"
#include "kernels/simd_rows.h"
#include "kernels/simd_attend_rows.h"
#include "kernels/simd_metrics.h"
#include "kernels/simd_select.h"

void butler_kernels_avx2(struct butler_kernels *table)
{
    table->isa = "avx2";
    fill_vectors(table);
    fill_prompt(table);
    fill_weights(table);
    fill_cache(table);
    fill_attend(table);
    fill_metrics(table);
    fill_select(table);
    table->gemm = gemm;
}
BUTLER_TARGET_END
#endif
