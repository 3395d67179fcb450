/* The vector of the AVX2 kernels: 8 floats. The same words as vec512.h, which explains them. */
#ifndef BUTLER_VEC256_H
#define BUTLER_VEC256_H

#include <immintrin.h>

#include "kernels/blocks.h"

#define VEC 8
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef __m256 vec;

INLINE __m256i vec_first(int count)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* Vectors in 16 and in 32 elements. */
#define V16 (16 / VEC)
#define V32 (32 / VEC)

#include "kernels/vec_x86.h"

INLINE vec vec_zero(void)
{
    return _mm256_setzero_ps();
}
INLINE vec vec_set1(float f)
{
    return _mm256_set1_ps(f);
}
INLINE vec vec_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
INLINE void vec_store(float *p, vec v)
{
    _mm256_storeu_ps(p, v);
}
INLINE vec vec_load_some(const float *p, int count)
{
    return _mm256_maskload_ps(p, vec_first(count));
}
INLINE void vec_store_some(float *p, vec v, int count)
{
    _mm256_maskstore_ps(p, vec_first(count), v);
}

INLINE vec vec_add(vec a, vec b)
{
    return _mm256_add_ps(a, b);
}
INLINE vec vec_sub(vec a, vec b)
{
    return _mm256_sub_ps(a, b);
}
INLINE vec vec_mul(vec a, vec b)
{
    return _mm256_mul_ps(a, b);
}
INLINE vec vec_div(vec a, vec b)
{
    return _mm256_div_ps(a, b);
}
INLINE vec vec_max(vec a, vec b)
{
    return _mm256_max_ps(a, b);
}
INLINE vec vec_min(vec a, vec b)
{
    return _mm256_min_ps(a, b);
}
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm256_fmadd_ps(a, b, c);
}
INLINE vec vec_fnma(vec a, vec b, vec c)
{
    return _mm256_fnmadd_ps(a, b, c);
}
INLINE vec vec_round(vec v)
{
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
INLINE vec vec_round_away(vec v)
{
    vec t = _mm256_round_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC), sign = _mm256_set1_ps(-0.0f);
    vec more = _mm256_cmp_ps(_mm256_andnot_ps(sign, _mm256_sub_ps(v, t)), _mm256_set1_ps(0.5f), _CMP_GE_OQ);
    vec one = _mm256_or_ps(_mm256_and_ps(v, sign), _mm256_set1_ps(1.0f));
    return _mm256_add_ps(t, _mm256_and_ps(more, one));
}
/* In two steps, because 2^n alone may be no normal number where v 2^n is one, or is subnormal. */
INLINE vec vec_scale2(vec v, vec n)
{
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1), rest = _mm256_sub_epi32(k, half);
    __m256i bias = _mm256_set1_epi32(127);
    vec a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vec b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(v, a), b);
}
INLINE vec vec_scale2_normal(vec v, vec n)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23)));
}
INLINE vec vec_abs(vec v)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}
INLINE vec vec_pick(vec q, vec a, vec b)
{
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(q, vec_zero(), _CMP_GE_OQ));
}
INLINE uint32_t vec_reaches(vec a, vec b)
{
    return (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GE_OQ));
}
/* The numbers of the bits that are set, ascending, then zeros: a table, for no branch can tell which lanes reach a bound. */
INLINE __m256i lanes_set(uint32_t bits)
{
#define BEFORE(b, i) (8 * __builtin_popcount((b) & ((1u << (i)) - 1)))
#define LANE(b, i) ((b) >> (i)&1 ? (uint64_t)(i) << BEFORE(b, i) : 0)
#define ONE(b) (LANE(b, 0) | LANE(b, 1) | LANE(b, 2) | LANE(b, 3) | LANE(b, 4) | LANE(b, 5) | LANE(b, 6) | LANE(b, 7))
#define FOUR(b) ONE(b), ONE((b) + 1), ONE((b) + 2), ONE((b) + 3)
#define SIXTEEN(b) FOUR(b), FOUR((b) + 4), FOUR((b) + 8), FOUR((b) + 12)
#define ALL(b) SIXTEEN(b), SIXTEEN((b) + 16), SIXTEEN((b) + 32), SIXTEEN((b) + 48)
    static const uint64_t lanes[256] = {ALL(0u), ALL(64u), ALL(128u), ALL(192u)};
#undef BEFORE
#undef LANE
#undef ONE
#undef FOUR
#undef SIXTEEN
#undef ALL
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)&lanes[bits]));
}
INLINE void vec_store_set(uint32_t *ids, uint32_t first, uint32_t bits)
{
    _mm256_storeu_si256((__m256i *)ids, _mm256_add_epi32(_mm256_set1_epi32((int)first), lanes_set(bits)));
}
/* Which of 64 bytes are not 0. */
INLINE uint64_t vec_bits_of_bytes(const uint8_t *p)
{
    const __m256i zero = _mm256_setzero_si256(), *half = (const __m256i *)p;
    const uint32_t low = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(half), zero));
    const uint32_t high = (uint32_t)_mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_loadu_si256(half + 1), zero));
    return ~(low | (uint64_t)high << 32);
}

INLINE void vec_store_kept(void *y, const void *x, uint32_t bits)
{
    _mm256_storeu_si256(y, _mm256_permutevar8x32_epi32(_mm256_loadu_si256(x), lanes_set(bits)));
}
INLINE vec vec_keep(vec a, vec b, int count)
{
    return _mm256_blendv_ps(b, a, _mm256_castsi256_ps(vec_first(count)));
}

INLINE vec vec_swap(vec v)
{
    return _mm256_permute_ps(v, 0xb1);
}
INLINE vec vec_swap_halves(vec v)
{
    return _mm256_permute2f128_ps(v, v, 1);
}
INLINE vec vec_swap_fours(vec v) /* of which there are two */
{
    return vec_swap_halves(v);
}
/* VEC / times numbers, each so often; times is VEC / 2 or VEC. */
INLINE vec vec_load_each(const float *p, int times)
{
    return times == VEC ? _mm256_broadcast_ss(p) : _mm256_set_m128(_mm_broadcast_ss(p + 1), _mm_broadcast_ss(p));
}
INLINE vec vec_load_twice(const float *p)
{
    return _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
}
INLINE vec vec_fma_sub_add(vec a, vec b, vec c)
{
    return _mm256_fmaddsub_ps(a, b, c);
}

/* AVX2 cannot mask 16-bit loads: a tail goes through memory of our own. */
INLINE __m128i load_u16_some(const void *p, int count)
{
    uint16_t t[VEC] = {0};
    memcpy(t, p, (size_t)count * 2);
    return _mm_loadu_si128((const __m128i *)t);
}
INLINE vec vec_load_half(const void *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}
INLINE vec vec_load_key_scales(const uint8_t *p)
{
    const __m256i bits = _mm256_slli_epi32(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)), KEY_SCALE_SHIFT);
    return _mm256_castsi256_ps(_mm256_add_epi32(bits, _mm256_set1_epi32(KEY_SCALE_BASE)));
}
/* VEC halves from anywhere; step: how far apart they lie where that is known, or 0. Put together by integer instructions they take
 * twice as many, which compilers vectorise at that; loaded into their lanes they take as long. */
INLINE vec vec_load_halves(const uint8_t *const at[VEC], size_t step)
{
    (void)step;
    __m128i words = _mm_cvtsi32_si128(load_u16(at[0]));
    words = _mm_insert_epi16(words, load_u16(at[1]), 1);
    words = _mm_insert_epi16(words, load_u16(at[2]), 2);
    words = _mm_insert_epi16(words, load_u16(at[3]), 3);
    words = _mm_insert_epi16(words, load_u16(at[4]), 4);
    words = _mm_insert_epi16(words, load_u16(at[5]), 5);
    words = _mm_insert_epi16(words, load_u16(at[6]), 6);
    return _mm256_cvtph_ps(_mm_insert_epi16(words, load_u16(at[7]), 7));
}
INLINE vec vec_load_half_some(const void *p, int count)
{
    return _mm256_cvtph_ps(load_u16_some(p, count));
}
INLINE void vec_store_half(void *p, vec v)
{
    _mm_storeu_si128(p, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE void vec_store_half_some(void *p, vec v, int count)
{
    uint16_t t[VEC];
    vec_store_half(t, v);
    memcpy(p, t, (size_t)count * 2);
}
INLINE vec vec_from_bf16(__m128i b)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(b), 16));
}
INLINE vec vec_load_bf16(const void *p)
{
    return vec_from_bf16(_mm_loadu_si128(p));
}
INLINE vec vec_load_bf16_some(const void *p, int count)
{
    return vec_from_bf16(load_u16_some(p, count));
}
INLINE vec vec_load_i8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p)));
}
INLINE vec vec_load_u8(const void *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p)));
}
/* Half `part` of 16 small numbers. */
INLINE vec vec_from_i8(__m128i b, int part)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(part ? _mm_unpackhi_epi64(b, b) : b));
}
INLINE void vec_store_i8(void *p, vec v)
{
    __m256i n = _mm256_cvtps_epi32(v);
    __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(n), _mm256_extracti128_si256(n, 1));
    _mm_storel_epi64(p, _mm_packs_epi16(words, words));
}

/* The half at p in all lanes; 8 bytes can be read there. Compilers load first and convert then, which takes the shuffle
 * unit that the instruction does not need when it loads by itself. */
INLINE vec vec_set1_half(const void *p)
{
    __m128 v;
    __asm__("vcvtph2ps %1, %0" : "=x"(v) : "m"(*(const char(*)[8])p));
    return _mm256_broadcastss_ps(v);
}

INLINE void vec_load_nibbles(const void *p, int offset, vec low[2], vec high[2])
{
    const __m128i mask = _mm_set1_epi8(15), less = _mm_set1_epi8((char)offset);
    __m128i bytes = _mm_loadu_si128(p);
    __m128i a = _mm_sub_epi8(_mm_and_si128(bytes, mask), less);
    __m128i b = _mm_sub_epi8(_mm_and_si128(_mm_srli_epi16(bytes, 4), mask), less);
    for (int i = 0; i < 2; i++) {
        low[i] = vec_from_i8(a, i);
        high[i] = vec_from_i8(b, i);
    }
}

/* Sums of integers that stay in their register: compilers that may choose where a new sum goes run out of registers and keep
 * some in memory. */
INLINE void add_words(__m256i *sum, __m256i x)
{
    __asm__("vpaddw %1, %0, %0" : "+x"(*sum) : "x"(x));
}
INLINE void add_dwords(__m256i *sum, __m256i x)
{
    __asm__("vpaddd %1, %0, %0" : "+x"(*sum) : "x"(x));
}

INLINE void vec_load_nibbles5(const void *p, uint32_t fifths, int offset, vec low[2], vec high[2])
{
    const __m128i mask = _mm_set1_epi8(15), less = _mm_set1_epi8((char)offset), sixteen = _mm_set1_epi8(16);
    const __m128i spread = _mm_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m128i bit = _mm_set1_epi64x((int64_t)0x8040201008040201);
    __m128i bytes = _mm_loadu_si128(p), bits = _mm_cvtsi32_si128((int)fifths);
    __m128i a = _mm_shuffle_epi8(bits, spread), b = _mm_shuffle_epi8(bits, _mm_add_epi8(spread, _mm_set1_epi8(2)));
    a = _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(a, bit), bit), sixteen);
    b = _mm_and_si128(_mm_cmpeq_epi8(_mm_and_si128(b, bit), bit), sixteen);
    a = _mm_sub_epi8(_mm_or_si128(a, _mm_and_si128(bytes, mask)), less);
    b = _mm_sub_epi8(_mm_or_si128(b, _mm_and_si128(_mm_srli_epi16(bytes, 4), mask)), less);
    for (int i = 0; i < 2; i++) {
        low[i] = vec_from_i8(a, i);
        high[i] = vec_from_i8(b, i);
    }
}

INLINE void vec_load_fives(const uint8_t *nibbles, const uint8_t *fifths, int pair, vec low[4], vec high[4])
{
    const __m128i nibble = _mm_set1_epi8(15), fifth = _mm_set1_epi8(16);
    for (int i = 0; i < 2; i++) {
        __m128i q = _mm_loadu_si128((const __m128i *)(nibbles + i * 16)), h = _mm_loadu_si128((const __m128i *)(fifths + i * 16));
        /* The two bits at bits 4 and 5 of their byte; what crosses into other bytes is masked away. */
        h = pair <= 2 ? _mm_slli_epi16(h, 4 - 2 * pair) : _mm_srli_epi16(h, 2);
        __m128i a = _mm_or_si128(_mm_and_si128(q, nibble), _mm_and_si128(h, fifth));
        __m128i b = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(q, 4), nibble), _mm_and_si128(_mm_srli_epi16(h, 1), fifth));
        for (int k = 0; k < 2; k++) {
            low[i * 2 + k] = vec_from_i8(a, k);
            high[i * 2 + k] = vec_from_i8(b, k);
        }
    }
}

INLINE void vec_load_sixes(const uint8_t *nibbles, const void *pairs, vec q[4][2])
{
    const __m128i nibble = _mm_set1_epi8(15), pair = _mm_set1_epi8(0x30), offset = _mm_set1_epi8(32);
    __m128i a = _mm_loadu_si128((const __m128i *)nibbles), e = _mm_loadu_si128((const __m128i *)(nibbles + 32));
    __m128i h = _mm_loadu_si128(pairs);
    __m128i rows[4] = {
        _mm_or_si128(_mm_and_si128(a, nibble), _mm_and_si128(_mm_slli_epi16(h, 4), pair)),
        _mm_or_si128(_mm_and_si128(e, nibble), _mm_and_si128(_mm_slli_epi16(h, 2), pair)),
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), nibble), _mm_and_si128(h, pair)),
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(e, 4), nibble), _mm_and_si128(_mm_srli_epi16(h, 2), pair)),
    };
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < 2; k++)
            q[r][k] = vec_from_i8(_mm_sub_epi8(rows[r], offset), k);
}

INLINE float vec_sum(vec v)
{
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}
INLINE float vec_max_all(vec v)
{
    __m128 a = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_max_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

INLINE vec vec_sum_each(const vec a[VEC])
{
    vec b[4], c[2];
    for (int i = 0; i < 4; i++)
        b[i] = vec_add(_mm256_blend_ps(a[i], a[i + 4], 0xf0), _mm256_permute2f128_ps(a[i], a[i + 4], 0x21));
    for (int i = 0; i < 2; i++)
        c[i] = vec_add(_mm256_blend_ps(b[2 * i], b[2 * i + 1], 0xcc), _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x4e));
    return vec_add(_mm256_shuffle_ps(c[0], c[1], 0x88), _mm256_shuffle_ps(c[0], c[1], 0xdd));
}

#endif
