/* Products of a prompt's tokens with quantised weights for CPUs with AVX2: one instruction multiplies and adds pairs. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec256.h"

enum { TOKENS = 6 };

#include "kernels/gemm_pairs.h"

typedef __m256i words;

INLINE words words_start(const int32_t *start)
{
    (void)start;
    return _mm256_setzero_si256();
}
INLINE words words_spread(const number *pair)
{
    return _mm256_set1_epi32((int)load_u32(pair));
}
INLINE void words_add(words *sum, words pairs, words x)
{
    add_dwords(sum, _mm256_madd_epi16(pairs, x));
}
INLINE vec words_floats(words sum)
{
    return _mm256_cvtepi32_ps(sum);
}

#include "kernels/simd_gemm_fixed.h"

void butler_kernels_gemm_avx2(struct butler_kernels *table)
{
    fill_gemm_fixed(table);
}
#endif
