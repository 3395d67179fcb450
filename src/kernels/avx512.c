/* The table for CPUs with AVX-512 F, BW, DQ and VL. */
#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_gemm.h"
#include "kernels/simd_weights.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_attend.h"
#include "kernels/simd_rows.h"
#include "kernels/simd_metrics.h"
#include "kernels/simd_select.h"

/* Eight queries, whose arithmetic takes longer than memory, have a function of their own, where they may. */
static void attend_f16_eight(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                             size_t q_stride, int n_q, const struct butler_pairs *pairs, int n)
{
    if (n_q == 8 && (n == 64 || n == 128))
        butler_attend_eight(acc, acc_stride, top, sum, s, s_stride, q, q_stride, pairs, n);
    else
        attend_f16(acc, acc_stride, top, sum, s, s_stride, q, q_stride, n_q, pairs, n);
}

void butler_kernels_avx512(struct butler_kernels *table)
{
    table->isa = "avx512";
    fill_vectors(table);
    fill_weights(table);
    fill_cache(table);
    fill_attend(table);
    table->attend[BUTLER_KV_F16] = attend_f16_eight;
    fill_metrics(table);
    fill_select(table);
    table->gemm = gemm;
}
#endif
