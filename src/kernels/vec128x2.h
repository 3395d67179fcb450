/* The vector of the NEON kernels: 8 floats in two registers of four. The same words as vec512.h, which explains them. 8 and
 * not 4, because the tiles of the simd_*.h files take their shape from the width, and sixteen such pairs, the registers of
 * AVX2, are what these have. */
#ifndef BUTLER_VEC128X2_H
#define BUTLER_VEC128X2_H

#include <arm_neon.h>

#include "kernels/blocks.h"

#define VEC 8
#define INLINE static inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 16")

typedef struct {
    float32x4_t a, b;
} vec;

/* Vectors in 16 and in 32 elements. */
#define V16 (16 / VEC)
#define V32 (32 / VEC)

/* Loads by bytes, because rows may start at any. */
INLINE float32x4_t load4(const void *p)
{
    return vreinterpretq_f32_u8(vld1q_u8(p));
}
INLINE float16x4_t load4_half(const void *p)
{
    return vreinterpret_f16_u8(vld1_u8(p));
}
INLINE float to_float(const void *half)
{
    __fp16 h;
    memcpy(&h, half, sizeof h);
    return h;
}

INLINE void prefetch(const void *p, size_t ahead)
{
    __builtin_prefetch((const void *)((uintptr_t)p + ahead), 0, 3);
}
INLINE void prefetch_second(const void *p)
{
    __builtin_prefetch(p, 0, 2);
}

INLINE vec vec_set1(float f)
{
    return (vec){vdupq_n_f32(f), vdupq_n_f32(f)};
}
INLINE vec vec_zero(void)
{
    return vec_set1(0);
}
INLINE vec vec_load(const float *p)
{
    return (vec){load4(p), load4(p + 4)};
}
INLINE void vec_store(float *p, vec v)
{
    vst1q_f32(p, v.a);
    vst1q_f32(p + 4, v.b);
}
/* There are no masked loads: a tail goes through memory of our own, and not in line, because it is rare. */
__attribute__((noinline, unused)) static vec vec_load_tail(const void *p, int count)
{
    float t[VEC] = {0};
    memcpy(t, p, (size_t)count * sizeof *t);
    return vec_load(t);
}
__attribute__((noinline, unused)) static void vec_store_tail(void *p, vec v, int count)
{
    float t[VEC];
    vec_store(t, v);
    memcpy(p, t, (size_t)count * sizeof *t);
}
INLINE vec vec_load_some(const float *p, int count)
{
    return count == VEC ? vec_load(p) : vec_load_tail(p, count);
}
INLINE void vec_store_some(float *p, vec v, int count)
{
    if (count == VEC)
        vec_store(p, v);
    else
        vec_store_tail(p, v, count);
}

INLINE vec vec_add(vec a, vec b)
{
    return (vec){vaddq_f32(a.a, b.a), vaddq_f32(a.b, b.b)};
}
INLINE vec vec_sub(vec a, vec b)
{
    return (vec){vsubq_f32(a.a, b.a), vsubq_f32(a.b, b.b)};
}
INLINE vec vec_mul(vec a, vec b)
{
    return (vec){vmulq_f32(a.a, b.a), vmulq_f32(a.b, b.b)};
}
INLINE vec vec_div(vec a, vec b)
{
    return (vec){vdivq_f32(a.a, b.a), vdivq_f32(a.b, b.b)};
}
/* By comparison, because the instructions for it give NaN wherever there is one. */
INLINE vec vec_max(vec a, vec b)
{
    return (vec){vbslq_f32(vcgtq_f32(a.a, b.a), a.a, b.a), vbslq_f32(vcgtq_f32(a.b, b.b), a.b, b.b)};
}
INLINE vec vec_min(vec a, vec b)
{
    return (vec){vbslq_f32(vcltq_f32(a.a, b.a), a.a, b.a), vbslq_f32(vcltq_f32(a.b, b.b), a.b, b.b)};
}
INLINE vec vec_fma(vec a, vec b, vec c)
{
    return (vec){vfmaq_f32(c.a, a.a, b.a), vfmaq_f32(c.b, a.b, b.b)};
}
INLINE vec vec_fnma(vec a, vec b, vec c)
{
    return (vec){vfmsq_f32(c.a, a.a, b.a), vfmsq_f32(c.b, a.b, b.b)};
}
INLINE vec vec_round(vec v)
{
    return (vec){vrndnq_f32(v.a), vrndnq_f32(v.b)};
}
INLINE vec vec_round_away(vec v)
{
    return (vec){vrndaq_f32(v.a), vrndaq_f32(v.b)};
}
INLINE float32x4_t scale2(float32x4_t v, float32x4_t n)
{
    int32x4_t k = vcvtq_s32_f32(n), half = vshrq_n_s32(k, 1), rest = vsubq_s32(k, half), bias = vdupq_n_s32(127);
    float32x4_t a = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(half, bias), 23));
    float32x4_t b = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(rest, bias), 23));
    return vmulq_f32(vmulq_f32(v, a), b);
}
/* In two steps, because 2^n alone may be no normal number where v 2^n is one, or is subnormal. */
INLINE vec vec_scale2(vec v, vec n)
{
    return (vec){scale2(v.a, n.a), scale2(v.b, n.b)};
}
INLINE float32x4_t scale2_normal(float32x4_t v, float32x4_t n)
{
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(v), vshlq_n_s32(vcvtq_s32_f32(n), 23)));
}
INLINE vec vec_scale2_normal(vec v, vec n)
{
    return (vec){scale2_normal(v.a, n.a), scale2_normal(v.b, n.b)};
}
INLINE vec vec_abs(vec v)
{
    return (vec){vabsq_f32(v.a), vabsq_f32(v.b)};
}
INLINE vec vec_pick(vec q, vec a, vec b)
{
    return (vec){vbslq_f32(vcgezq_f32(q.a), a.a, b.a), vbslq_f32(vcgezq_f32(q.b), a.b, b.b)};
}

typedef struct {
    uint32x4_t a, b;
} vec_mask;
INLINE vec_mask vec_mask_of(uint32_t bits)
{
    const uint32x4_t a = {1, 2, 4, 8}, b = {16, 32, 64, 128};
    return (vec_mask){vtstq_u32(vdupq_n_u32(bits), a), vtstq_u32(vdupq_n_u32(bits), b)};
}
/* From bit j of each nibble of a word. */
INLINE vec_mask vec_mask_of_nibbles(uint32_t word, int j)
{
    const uint32x4_t low = {1, 1 << 4, 1 << 8, 1 << 12}, both = vshlq_u32(low, vdupq_n_s32(j));
    return (vec_mask){vtstq_u32(vdupq_n_u32(word), both), vtstq_u32(vdupq_n_u32(word >> 16), both)};
}
INLINE vec vec_add_masked(vec v, vec a, vec_mask mask)
{
    return (vec){vaddq_f32(v.a, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.a), mask.a))),
                 vaddq_f32(v.b, vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(a.b), mask.b)))};
}
INLINE vec vec_keep(vec a, vec b, int count)
{
    const vec_mask first = vec_mask_of((1u << BUTLER_MIN(BUTLER_MAX(count, 0), VEC)) - 1);
    return (vec){vbslq_f32(first.a, a.a, b.a), vbslq_f32(first.b, a.b, b.b)};
}

INLINE uint32_t vec_reaches(vec a, vec b)
{
    const uint32x4_t low = {1, 2, 4, 8}, high = {16, 32, 64, 128};
    return vaddvq_u32(vorrq_u32(vandq_u32(vcgeq_f32(a.a, b.a), low), vandq_u32(vcgeq_f32(a.b, b.b), high)));
}
INLINE void vec_store_set(uint32_t *ids, uint32_t first, uint32_t bits)
{
    for (uint32_t lane = 0; bits; lane++, bits >>= 1) { /* no branch inside: it would be unpredictable */
        *ids = first + lane;
        ids += bits & 1;
    }
}

/* Which of 64 bytes are not 0. */
INLINE uint64_t vec_bits_of_bytes(const uint8_t *p)
{
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    uint8x16_t quarter[4];
    for (int i = 0; i < 4; i++) {
        const uint8x16_t v = vld1q_u8(p + i * 16);
        quarter[i] = vandq_u8(vtstq_u8(v, v), bit);
    }
    /* Three times neighbours are added: eight bytes become one. */
    const uint8x16_t sum = vpaddq_u8(vpaddq_u8(quarter[0], quarter[1]), vpaddq_u8(quarter[2], quarter[3]));
    return vgetq_lane_u64(vreinterpretq_u64_u8(vpaddq_u8(sum, sum)), 0);
}

INLINE void vec_store_kept(void *y, const void *x, uint32_t bits)
{
    uint8_t *to = y;
    for (const uint8_t *from = x; bits; from += 4, bits >>= 1) {
        memcpy(to, from, 4);
        to += (bits & 1) * 4;
    }
}

INLINE vec vec_swap(vec v)
{
    return (vec){vrev64q_f32(v.a), vrev64q_f32(v.b)};
}
INLINE vec vec_load_twice(const float *p)
{
    const float32x4_t v = load4(p);
    return (vec){vzip1q_f32(v, v), vzip2q_f32(v, v)};
}
INLINE vec vec_fma_sub_add(vec a, vec b, vec c)
{
    const uint32x4_t even = {0x80000000, 0, 0x80000000, 0};
    c.a = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(c.a), even));
    c.b = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(c.b), even));
    return vec_fma(a, b, c);
}

INLINE vec vec_load_half(const void *p)
{
    return (vec){vcvt_f32_f16(load4_half(p)), vcvt_f32_f16(load4_half((const uint8_t *)p + 8))};
}
INLINE vec vec_load_bf16(const void *p)
{
    const uint16x8_t b = vreinterpretq_u16_u8(vld1q_u8(p));
    return (vec){vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(b), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(b, 16))};
}
INLINE void vec_store_half(void *p, vec v)
{
    vst1_u8(p, vreinterpret_u8_f16(vcvt_f16_f32(v.a)));
    vst1_u8((uint8_t *)p + 8, vreinterpret_u8_f16(vcvt_f16_f32(v.b)));
}
INLINE vec vec_load_key_scales(const uint8_t *p)
{
    const uint16x8_t bytes = vmovl_u8(vld1_u8(p));
    const uint32x4_t base = vdupq_n_u32(KEY_SCALE_BASE);
    return (vec){vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(bytes)), KEY_SCALE_SHIFT), base)),
                 vreinterpretq_f32_u32(vaddq_u32(vshlq_n_u32(vmovl_high_u16(bytes), KEY_SCALE_SHIFT), base))};
}
/* VEC halves from anywhere; step: how far apart they lie where that is known, or 0. */
INLINE vec vec_load_halves(const uint8_t *const at[VEC], size_t step)
{
    (void)step;
    const uint64_t words[VEC / 4] = {four_halves(at), four_halves(at + 4)};
    return vec_load_half(words);
}
INLINE vec vec_load_half_some(const void *p, int count)
{
    uint16_t t[VEC] = {0};
    if (count == VEC)
        return vec_load_half(p);
    memcpy(t, p, (size_t)count * 2);
    return vec_load_half(t);
}
INLINE vec vec_load_bf16_some(const void *p, int count)
{
    uint16_t t[VEC] = {0};
    memcpy(t, p, (size_t)count * 2);
    return vec_load_bf16(t);
}
INLINE void vec_store_half_some(void *p, vec v, int count)
{
    uint16_t t[VEC];
    vec_store_half(t, v);
    memcpy(p, t, (size_t)count * 2);
}
INLINE vec vec_set1_half(const void *p)
{
    return vec_set1(to_float(p));
}
/* The halves at b, b + stride, ..., at most four, as floats. */
INLINE void load_halves(float t[4], const uint8_t *b, size_t stride, int n)
{
    for (int i = 0; i < n; i++)
        t[i] = to_float(b + (size_t)i * stride);
}

INLINE vec widen_i8(int8x8_t b)
{
    const int16x8_t w = vmovl_s8(b);
    return (vec){vcvtq_f32_s32(vmovl_s16(vget_low_s16(w))), vcvtq_f32_s32(vmovl_high_s16(w))};
}
INLINE vec vec_load_i8(const void *p)
{
    return widen_i8(vld1_s8(p));
}
INLINE vec vec_load_u8(const void *p)
{
    const uint16x8_t w = vmovl_u8(vld1_u8(p));
    return (vec){vcvtq_f32_u32(vmovl_u16(vget_low_u16(w))), vcvtq_f32_u32(vmovl_high_u16(w))};
}
typedef int8x16_t bytes16; /* 16 small numbers */
INLINE bytes16 bytes16_load(const uint8_t *p)
{
    return vreinterpretq_s8_u8(vld1q_u8(p));
}
/* Half `part` of 16 small numbers. */
INLINE vec vec_from_i8(bytes16 b, int part)
{
    return widen_i8(part ? vget_high_s8(b) : vget_low_s8(b));
}
INLINE void vec_store_i8(void *p, vec v)
{
    vst1_s8(p, vqmovn_s16(vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(v.a)), vqmovn_s32(vcvtnq_s32_f32(v.b)))));
}
/* The 6-bit scales and minima of 8 groups, a byte each. */
INLINE bytes16 k_scales(const uint8_t *packed)
{
    uint8_t t[16];
    unpack_k_scales(packed, t, t + 8);
    return bytes16_load(t);
}

/* 16 bytes and the number to take from each of them, as two vectors. */
INLINE void widen_less(vec out[2], uint8x16_t bytes, int offset)
{
    const int8x16_t less = vsubq_s8(vreinterpretq_s8_u8(bytes), vdupq_n_s8((int8_t)offset));
    out[0] = vec_from_i8(less, 0);
    out[1] = vec_from_i8(less, 1);
}
INLINE void vec_load_nibbles(const void *p, int offset, vec low[2], vec high[2])
{
    const uint8x16_t bytes = vld1q_u8(p);
    widen_less(low, vandq_u8(bytes, vdupq_n_u8(15)), offset);
    widen_less(high, vshrq_n_u8(bytes, 4), offset);
}
/* 16 where a bit of `bits` is set, else 0. */
INLINE uint8x16_t fifth_of(uint32_t bits)
{
    const uint8x16_t bit = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t spread = vcombine_u8(vdup_n_u8((uint8_t)bits), vdup_n_u8((uint8_t)(bits >> 8)));
    return vandq_u8(vtstq_u8(spread, bit), vdupq_n_u8(16));
}
INLINE void vec_load_nibbles5(const void *p, uint32_t fifths, int offset, vec low[2], vec high[2])
{
    const uint8x16_t bytes = vld1q_u8(p);
    widen_less(low, vorrq_u8(vandq_u8(bytes, vdupq_n_u8(15)), fifth_of(fifths)), offset);
    widen_less(high, vorrq_u8(vshrq_n_u8(bytes, 4), fifth_of(fifths >> 16)), offset);
}
INLINE void vec_load_fives(const uint8_t *nibbles, const uint8_t *fifths, int pair, vec low[4], vec high[4])
{
    /* The bit in question comes to bit 4 of its byte. */
    const int8x16_t shift = vdupq_n_s8((int8_t)(4 - 2 * pair)), shift_next = vdupq_n_s8((int8_t)(3 - 2 * pair));
    for (int i = 0; i < 2; i++) {
        const uint8x16_t q = vld1q_u8(nibbles + i * 16), h = vld1q_u8(fifths + i * 16), fifth = vdupq_n_u8(16);
        widen_less(low + i * 2, vorrq_u8(vandq_u8(q, vdupq_n_u8(15)), vandq_u8(vshlq_u8(h, shift), fifth)), 0);
        widen_less(high + i * 2, vorrq_u8(vshrq_n_u8(q, 4), vandq_u8(vshlq_u8(h, shift_next), fifth)), 0);
    }
}
INLINE void vec_load_sixes(const uint8_t *nibbles, const uint8_t *pairs, vec q[4][2])
{
    const uint8x16_t a = vld1q_u8(nibbles), e = vld1q_u8(nibbles + 32), h = vld1q_u8(pairs);
    const uint8x16_t nibble = vdupq_n_u8(15), pair = vdupq_n_u8(0x30);
    widen_less(q[0], vorrq_u8(vandq_u8(a, nibble), vandq_u8(vshlq_n_u8(h, 4), pair)), 32);
    widen_less(q[1], vorrq_u8(vandq_u8(e, nibble), vandq_u8(vshlq_n_u8(h, 2), pair)), 32);
    widen_less(q[2], vorrq_u8(vshrq_n_u8(a, 4), vandq_u8(h, pair)), 32);
    widen_less(q[3], vorrq_u8(vshrq_n_u8(e, 4), vandq_u8(vshrq_n_u8(h, 2), pair)), 32);
}

INLINE float vec_sum(vec v)
{
    return vaddvq_f32(vaddq_f32(v.a, v.b));
}
INLINE float vec_max_all(vec v)
{
    return vmaxvq_f32(vec_max(v, (vec){v.b, v.b}).a);
}
INLINE vec vec_sum_each(const vec a[VEC])
{
    float32x4_t s[VEC];
    UNROLL
    for (int i = 0; i < VEC; i++)
        s[i] = vaddq_f32(a[i].a, a[i].b);
    return (vec){vpaddq_f32(vpaddq_f32(s[0], s[1]), vpaddq_f32(s[2], s[3])),
                 vpaddq_f32(vpaddq_f32(s[4], s[5]), vpaddq_f32(s[6], s[7]))};
}

#endif
