/* Products of a prompt's tokens with quantised weights for CPUs with AVX-512 VNNI: one instruction multiplies pairs and adds them
 * to what there is. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

enum { TOKENS = 8 };

#include "kernels/gemm_pairs.h"

typedef __m512i words;

INLINE words words_start(const int32_t *start)
{
    (void)start;
    return _mm512_setzero_si512();
}
INLINE words words_spread(const number *pair)
{
    return _mm512_set1_epi32((int)load_u32(pair));
}
/* Sums stay in their registers: compilers that may choose copy them there and back. */
INLINE void words_add(words *sum, words pairs, words x)
{
    __asm__("vpdpwssd %2, %1, %0" : "+v"(*sum) : "v"(pairs), "v"(x));
}
INLINE vec words_floats(words sum)
{
    return _mm512_cvtepi32_ps(sum);
}

#include "kernels/simd_gemm_fixed.h"

void butler_kernels_gemm_vnni(struct butler_kernels *table)
{
    fill_gemm_fixed(table);
}
#endif
