/* Products of a prompt's tokens with quantised weights for CPUs with AVX-512 VNNI where tokens are held in bytes: one instruction
 * multiplies fours, twice the rate of pairs. It takes one side without a sign, so weights are 128 more than they are, and products
 * begin with what that is too much. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

enum { TOKENS = 8, STEP = 4 };
typedef int8_t number;
#define MOST BUTLER_FIXED_MOST_BYTE

INLINE void step_weights(__m256i *steps, __m256i q)
{
    steps[0] = _mm256_xor_si256(q, _mm256_set1_epi8((char)0x80));
}

INLINE void store_eight(number *to, __m256i v)
{
    _mm_storel_epi64((__m128i *)to, _mm256_cvtepi32_epi8(v));
}

INLINE int32_t start_of(int32_t sum)
{
    return (int32_t)(0 - 128 * (uint32_t)sum);
}

typedef __m512i words;

INLINE words words_start(const int32_t *start)
{
    return _mm512_set1_epi32(*start);
}
INLINE words words_spread(const number *four)
{
    return _mm512_set1_epi32((int)load_u32(four));
}
/* Sums stay in their registers: compilers that may choose copy them there and back. */
INLINE void words_add(words *sum, words weights, words x)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(*sum) : "v"(weights), "v"(x));
}
INLINE vec words_floats(words sum)
{
    return _mm512_cvtepi32_ps(sum);
}

#include "kernels/simd_gemm_fixed.h"

void butler_kernels_gemm_vnni_bytes(struct butler_kernels *table)
{
    fill_gemm_fixed(table);
}
#endif
