/* The vector of the AVX-512 kernels: 16 floats. The simd_*.h files are written in these words and in nothing else; vec256.h
 * says the same in AVX2, vec128x2.h in NEON. Every name is static, so they may exist in one program. */
#ifndef BUTLER_VEC512_H
#define BUTLER_VEC512_H

#include <immintrin.h>

#include "kernels/blocks.h"

#define VEC 16
#define INLINE static inline __attribute__((always_inline))
/* Arrays of vectors become registers only when all their indices are constants. */
#define UNROLL _Pragma("GCC unroll 16")

typedef __m512 vec;

/* Which of the 16 lanes hold something: the first count. */
INLINE __mmask16 vec_first(int count)
{
    return (__mmask16)((1u << count) - 1);
}

/* Vectors in 16 and in 32 elements. */
#define V16 (16 / VEC)
#define V32 (32 / VEC)

#include "kernels/vec_x86.h"

/* Transposes 16 lines of 16 words of 32 bits: word w of all lines becomes line w. */
INLINE void transpose(__m512i v[16])
{
    __m512i a[16], b[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    /* b[4 g + c] holds words c, c + 4, c + 8, c + 12 of lines 4 g .. 4 g + 3 in its quarters. */
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i even01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88), odd23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        v[c] = _mm512_shuffle_i32x4(even01, even23, 0x88);
        v[c + 4] = _mm512_shuffle_i32x4(odd01, odd23, 0x88);
        v[c + 8] = _mm512_shuffle_i32x4(even01, even23, 0xdd);
        v[c + 12] = _mm512_shuffle_i32x4(odd01, odd23, 0xdd);
    }
}

INLINE vec vec_zero(void)
{
    return _mm512_setzero_ps();
}
INLINE vec vec_set1(float f)
{
    return _mm512_set1_ps(f);
}
INLINE vec vec_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
INLINE void vec_store(float *p, vec v)
{
    _mm512_storeu_ps(p, v);
}
/* count in [0, VEC]; the lanes beyond are zero and their memory is not touched. */
INLINE vec vec_load_some(const float *p, int count)
{
    return _mm512_maskz_loadu_ps(vec_first(count), p);
}
INLINE void vec_store_some(float *p, vec v, int count)
{
    _mm512_mask_storeu_ps(p, vec_first(count), v);
}

INLINE vec vec_add(vec a, vec b)
{
    return _mm512_add_ps(a, b);
}
INLINE vec vec_sub(vec a, vec b)
{
    return _mm512_sub_ps(a, b);
}
INLINE vec vec_mul(vec a, vec b)
{
    return _mm512_mul_ps(a, b);
}
INLINE vec vec_div(vec a, vec b)
{
    return _mm512_div_ps(a, b);
}
INLINE vec vec_max(vec a, vec b)
{
    return _mm512_max_ps(a, b);
} /* b where one of them is NaN */
INLINE vec vec_min(vec a, vec b)
{
    return _mm512_min_ps(a, b);
}
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return _mm512_fmadd_ps(a, b, c);
} /* a b + c */
INLINE vec vec_fnma(vec a, vec b, vec c)
{
    return _mm512_fnmadd_ps(a, b, c);
} /* c - a b */
INLINE vec vec_round(vec v)
{
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
/* To nearest, halves away from zero: what roundf does. */
INLINE vec vec_round_away(vec v)
{
    vec t = _mm512_roundscale_ps(v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    __mmask16 more = _mm512_cmp_ps_mask(_mm512_abs_ps(_mm512_sub_ps(v, t)), _mm512_set1_ps(0.5f), _CMP_GE_OQ);
    __m512i one = _mm512_or_si512(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32((int)0x80000000)),
                                  _mm512_set1_epi32(0x3f800000));
    return _mm512_mask_add_ps(t, more, t, _mm512_castsi512_ps(one));
}
/* v * 2^n for n in [-252, 252], rounded down where it is not whole */
INLINE vec vec_scale2(vec v, vec n)
{
    return _mm512_scalef_ps(v, n);
}
/* The same where v and the result are normal numbers. */
INLINE vec vec_scale2_normal(vec v, vec n)
{
    return _mm512_scalef_ps(v, n);
}
INLINE vec vec_abs(vec v)
{
    return _mm512_abs_ps(v);
}
/* where q >= 0 a, else b (also for NaN) */
INLINE vec vec_pick(vec q, vec a, vec b)
{
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(q, vec_zero(), _CMP_GE_OQ), b, a);
}
/* the first count lanes of a, the others of b */
INLINE vec vec_keep(vec a, vec b, int count)
{
    return _mm512_mask_blend_ps(vec_first(count), b, a);
}

/* Bit i: whether lane i of a is >= that of b; and the numbers first + i of the bits set, into ids, which has room for VEC. */
INLINE uint32_t vec_reaches(vec a, vec b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ);
}
INLINE void vec_store_set(uint32_t *ids, uint32_t first, uint32_t bits)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    _mm512_storeu_si512(ids, _mm512_maskz_compress_epi32((__mmask16)bits, _mm512_add_epi32(lane, _mm512_set1_epi32((int)first))));
}

/* Which of 64 bytes are not 0. */
INLINE uint64_t vec_bits_of_bytes(const uint8_t *p)
{
    const __m512i v = _mm512_loadu_si512(p);
    return _mm512_test_epi8_mask(v, v);
}

INLINE void vec_store_kept(void *y, const void *x, uint32_t bits)
{
    _mm512_storeu_si512(y, _mm512_maskz_compress_epi32((__mmask16)bits, _mm512_loadu_si512(x)));
}

/* The lower half of the lanes above the upper one. */
INLINE vec vec_swap_halves(vec v)
{
    return _mm512_shuffle_f32x4(v, v, 0x4e);
}
/* Each four lanes change places with their neighbours. */
INLINE vec vec_swap_fours(vec v)
{
    return _mm512_shuffle_f32x4(v, v, 0xb1);
}
/* (a0 a1 a2 a3 ...) -> (a1 a0 a3 a2 ...), and half a vector of numbers, each twice */
INLINE vec vec_swap(vec v)
{
    return _mm512_permute_ps(v, 0xb1);
}
/* VEC / times numbers, each `times` over, 4 or 8 */
INLINE vec vec_load_each(const float *p, int times)
{
    const __m512i each =
        _mm512_srli_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), times == 8 ? 3 : 2);
    return _mm512_permutexvar_ps(each, times == 8 ? _mm512_castps128_ps512(_mm_castsi128_ps(_mm_loadl_epi64((const __m128i *)p)))
                                                  : _mm512_castps128_ps512(_mm_loadu_ps(p)));
}
INLINE vec vec_load_twice(const float *p)
{
    const __m512i each = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    return _mm512_permutexvar_ps(each, _mm512_castps256_ps512(_mm256_loadu_ps(p)));
}
/* a b - c in even lanes, a b + c in odd ones */
INLINE vec vec_fma_sub_add(vec a, vec b, vec c)
{
    return _mm512_fmaddsub_ps(a, b, c);
}

INLINE vec vec_load_half(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}
/* VEC scales of predicted keys, a byte each (blocks.h, key_scale) */
INLINE vec vec_load_key_scales(const uint8_t *p)
{
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)), KEY_SCALE_SHIFT);
    return _mm512_castsi512_ps(_mm512_add_epi32(bits, _mm512_set1_epi32(KEY_SCALE_BASE)));
}
/* The halves at p, p + step, ...; reads what lies between, too. */
INLINE vec vec_load_halves_apart(const uint8_t *p, size_t step)
{
    return _mm512_cvtph_ps(_mm256_set_m128i(eight_words(p + 8 * step, step, 4 * step), eight_words(p, step, 4 * step)));
}
/* VEC halves from anywhere; step: how far apart they lie where that is known, or 0. From anywhere they are put together by integer
 * instructions: stored one by one, a load of all would wait for the stores. */
INLINE vec vec_load_halves(const uint8_t *const at[VEC], size_t step)
{
    if (step)
        return vec_load_halves_apart(at[0], step);
    return _mm512_cvtph_ps(_mm256_set_epi64x((long long)four_halves(at + 12), (long long)four_halves(at + 8),
                                             (long long)four_halves(at + 4), (long long)four_halves(at)));
}
INLINE vec vec_load_half_some(const void *p, int count)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(vec_first(count), p));
}
INLINE void vec_store_half(void *p, vec v)
{
    _mm256_storeu_si256(p, _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE void vec_store_half_some(void *p, vec v, int count)
{
    _mm256_mask_storeu_epi16(p, vec_first(count), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}
INLINE vec vec_from_bf16(__m256i b)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}
INLINE vec vec_load_bf16(const void *p)
{
    return vec_from_bf16(_mm256_loadu_si256(p));
}
INLINE vec vec_load_bf16_some(const void *p, int count)
{
    return vec_from_bf16(_mm256_maskz_loadu_epi16(vec_first(count), p));
}
INLINE vec vec_load_i8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p)));
}
INLINE vec vec_load_u8(const void *p)
{
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p)));
}
/* 16-byte groups of small numbers in registers: part 0 is all of it here. */
INLINE vec vec_from_i8(__m128i b, int part)
{
    return (void)part, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(b));
}
/* Rounds to nearest; every lane is known to be within [-127, 127]. */
INLINE void vec_store_i8(void *p, vec v)
{
    _mm_storeu_si128(p, _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
}

/* The half at p in all lanes; 8 bytes can be read there. Compilers load first and convert then, which takes the shuffle
 * unit that the instruction does not need when it loads by itself. */
INLINE vec vec_set1_half(const void *p)
{
    __m128 v;
    __asm__("vcvtph2ps %1, %0" : "=x"(v) : "m"(*(const char(*)[8])p));
    return _mm512_broadcastss_ps(v);
}

/* 16 nibble bytes: the low halves, less offset, are elements 0..15, the high ones 16..31. A table look-up by the lowest four
 * bits of each lane is mask, conversion and subtraction in one. */
INLINE void vec_load_nibbles(const void *p, int offset, vec low[1], vec high[1])
{
    const vec table = _mm512_sub_ps(_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), vec_set1((float)offset));
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(p));
    low[0] = _mm512_permutexvar_ps(bytes, table);
    high[0] = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table);
}

/* v + a in the lanes of a mask; a mask from one bit per lane. */
typedef __mmask16 vec_mask;
INLINE vec_mask vec_mask_of(uint32_t bits)
{
    return (__mmask16)bits;
}
INLINE vec vec_add_masked(vec v, vec a, vec_mask mask)
{
    return _mm512_mask_add_ps(v, mask, v, a);
}
/* The same with a fifth bit each: bit i of fifths belongs to element i. */
INLINE void vec_load_nibbles5(const void *p, uint32_t fifths, int offset, vec low[1], vec high[1])
{
    vec_load_nibbles(p, offset, low, high);
    low[0] = vec_add_masked(low[0], vec_set1(16), vec_mask_of(fifths & 0xffff));
    high[0] = vec_add_masked(high[0], vec_set1(16), vec_mask_of(fifths >> 16));
}

/* Small numbers in the bytes of a vector, 16 at a time. */
INLINE void vec_widen_bytes(__m512i bytes, vec out[4])
{
    out[0] = vec_from_i8(_mm512_castsi512_si128(bytes), 0);
    out[1] = vec_from_i8(_mm512_extracti32x4_epi32(bytes, 1), 0);
    out[2] = vec_from_i8(_mm512_extracti32x4_epi32(bytes, 2), 0);
    out[3] = vec_from_i8(_mm512_extracti32x4_epi32(bytes, 3), 0);
}

/* 32 nibble bytes of Q5_K, low halves and high halves, with bits 2 pair and 2 pair + 1 of 32 other bytes as their fifth. */
INLINE void vec_load_fives(const void *nibbles, const void *fifths, int pair, vec low[2], vec high[2])
{
    const __m512i down = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    __m512i q = _mm512_srlv_epi32(_mm512_broadcast_i64x4(_mm256_loadu_si256(nibbles)), down);
    /* Rotates the bit in question to bit 4 of its byte; what crosses into other bytes is masked away. */
    __m512i shift = _mm512_sub_epi32(_mm512_set1_epi32(4 - 2 * pair), _mm512_srli_epi32(down, 2));
    __m512i h = _mm512_rolv_epi32(_mm512_broadcast_i64x4(_mm256_loadu_si256(fifths)), shift);
    vec out[4];
    q = _mm512_and_si512(q, _mm512_set1_epi8(15));
    vec_widen_bytes(_mm512_or_si512(q, _mm512_and_si512(h, _mm512_set1_epi8(16))), out);
    low[0] = out[0], low[1] = out[1], high[0] = out[2], high[1] = out[3];
}

/* 16 columns of the four rows of half a Q6_K block, less 32: nibbles of 16 bytes and of 16 bytes 32 further on, low halves
 * and high halves, with two bits each of 16 other bytes. */
INLINE void vec_load_sixes(const uint8_t *nibbles, const void *pairs, vec q[4][1])
{
    const __m512i down = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4);
    const __m512i shift = _mm512_setr_epi32(4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30);
    __m512i a = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)nibbles));
    a = _mm512_mask_broadcast_i32x4(a, 0xf0f0, _mm_loadu_si128((const __m128i *)(nibbles + 32)));
    a = _mm512_and_si512(_mm512_srlv_epi32(a, down), _mm512_set1_epi8(15));
    __m512i h = _mm512_rolv_epi32(_mm512_broadcast_i32x4(_mm_loadu_si128(pairs)), shift);
    a = _mm512_or_si512(a, _mm512_and_si512(h, _mm512_set1_epi8(0x30)));
    vec_widen_bytes(_mm512_sub_epi8(a, _mm512_set1_epi8(32)), &q[0][0]);
}

INLINE float vec_sum(vec v)
{
    return _mm512_reduce_add_ps(v);
}
INLINE float vec_max_all(vec v)
{
    return _mm512_reduce_max_ps(v);
}

/* Lane i of the result is the sum of a[i]'s lanes, each summed in the same order. A fold blends the half that stays in place
 * with its partner's and adds the other two halves, so that one shuffle serves two vectors. */
INLINE vec vec_sum_each(const vec a[VEC])
{
    vec b[8], c[4], e[2];
    for (int i = 0; i < 8; i++) {
        vec x = a[i / 4 * 8 + i % 4], y = a[i / 4 * 8 + i % 4 + 4];
        b[i] = vec_add(_mm512_mask_blend_ps(0xff00, x, y), _mm512_shuffle_f32x4(x, y, 0x4e));
    }
    for (int i = 0; i < 4; i++)
        c[i] = vec_add(_mm512_shuffle_f32x4(b[i], b[i + 4], 0x88), _mm512_shuffle_f32x4(b[i], b[i + 4], 0xdd));
    for (int i = 0; i < 2; i++)
        e[i] = vec_add(_mm512_mask_blend_ps(0xcccc, c[2 * i], c[2 * i + 1]), _mm512_shuffle_ps(c[2 * i], c[2 * i + 1], 0x4e));
    return vec_add(_mm512_shuffle_ps(e[0], e[1], 0x88), _mm512_shuffle_ps(e[0], e[1], 0xdd));
}

#endif
