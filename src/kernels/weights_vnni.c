/* Products of quantised weights with activations in 16-bit fixed point for CPUs with AVX-512 VNNI, whose instructions multiply and
 * add 64 bytes or 32 words: a block of 32 weights takes 4 to 6 slots of the two vector ports. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

enum { BYTES = 4 * VEC };
typedef __m512i bytes;

#include "kernels/fixed_x.h"

INLINE bytes load_bytes(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE int32_t fix16(int16_t q[16], const float *x, float inverse)
{
    const __m512i whole = _mm512_cvtps_epi32(vec_max(vec_mul(vec_load(x), vec_set1(inverse)), vec_set1(-BUTLER_FIXED_MOST)));
    _mm256_storeu_si256((__m256i *)q, _mm512_cvtepi32_epi16(whole));
    return _mm512_reduce_add_epi32(whole);
}

INLINE vec words_dot(const uint8_t *weights, const int8_t *x)
{
    const __m512i q = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)weights));
    return _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(_mm512_setzero_si512(), q, load_bytes(x)));
}

/* Sums with high bytes are shifted before those with low ones are added. */
INLINE vec dot_one(bytes w, const int8_t *x, bool low)
{
    __m512i s = _mm512_setzero_si512();
    if (!low)
        s = _mm512_slli_epi32(_mm512_dpbusd_epi32(s, w, load_bytes(x)), 8);
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(s, w, load_bytes(x + 64)));
}

INLINE vec dot_two(bytes w0, bytes w1, const bytes x[4], bool low)
{
    __m512i s = _mm512_setzero_si512();
    if (!low) {
        s = _mm512_dpbusd_epi32(s, w0, x[0]);
        s = _mm512_slli_epi32(_mm512_dpbusd_epi32(s, w1, x[2]), 8);
    }
    s = _mm512_dpbusd_epi32(s, w0, x[1]);
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(s, w1, x[3]));
}

/* Each of four lanes of v from number `first` on in four lanes; each of two, `apart` from each other, in eight. */
INLINE vec spread4(vec v, int first)
{
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(first)), v);
}

INLINE vec spread8(vec v, int first, int apart)
{
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, apart, apart, apart, apart, apart, apart, apart, apart);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(first)), v);
}

INLINE void put_sums(float *y, int y_step, const vec *v, int n_rows)
{
    const vec a = v[0], b = n_rows > 1 ? v[1] : a, c = n_rows > 1 ? v[2] : a, d = n_rows > 1 ? v[3] : a;
    const vec ab = vec_add(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    const vec cd = vec_add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const vec four = vec_add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    float sums[4];
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = sums[r];
}

/* ----------------------------------------------------------------------------------------- blocks of 32 */

INLINE int lane_of(int block)
{
    return block;
}

INLINE vec in_lanes(vec v)
{
    return v;
}

INLINE vec spread_group(vec v, int k)
{
    return spread4(v, k);
}

/* Without the instruction that gathers, which a Zen 4 takes longer for than for a load and a blend each (docs/speed.md). */
INLINE vec small_halves(const uint8_t *w, int size, int n_blocks)
{
    const size_t step = (size_t)size;
    if (n_blocks == VEC)
        return vec_load_halves_apart(w, step);
    const __m128i low = n_blocks >= 8 ? eight_words(w, step, 4 * step) : some_words(w, step, n_blocks);
    const __m128i high = n_blocks > 8 ? some_words(w + 8 * step, step, n_blocks - 8) : _mm_setzero_si128();
    return _mm512_cvtph_ps(_mm256_set_m128i(high, low));
}

INLINE bytes low_nibbles(bytes b)
{
    return _mm512_and_si512(b, _mm512_set1_epi8(15));
}

INLINE bytes high_nibbles(bytes b)
{
    return low_nibbles(_mm512_srli_epi16(b, 4));
}

/* 16 bytes of a block and of the next. */
INLINE __m256i two_blocks(const uint8_t *p, int size)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p)),
                                   _mm_loadu_si128((const __m128i *)(p + size)), 1);
}

/* By halves: an insertion into a whole vector takes twice as long. */
INLINE void small_nibbles(bytes *low, bytes *high, const uint8_t *quants, int size)
{
    const bytes b = _mm512_inserti64x4(_mm512_castsi256_si512(two_blocks(quants, size)), two_blocks(quants + 2 * size, size), 1);
    *low = low_nibbles(b);
    *high = high_nibbles(b);
}

INLINE void small_fifths(bytes *low, bytes *high, const uint8_t *fifths, int size)
{
    uint64_t lows = 0, highs = 0;
    UNROLL
    for (int b = 0; b < 4; b++) {
        const uint64_t word = load_u32(fifths + b * size);
        lows |= (word & 0xffff) << 16 * b;
        highs |= (word >> 16) << 16 * b;
    }
    *low = _mm512_mask_add_epi8(*low, lows, *low, _mm512_set1_epi8(16));
    *high = _mm512_mask_add_epi8(*high, highs, *high, _mm512_set1_epi8(16));
}

/* ---------------------------------------------------------------------------------------- blocks of 256 */

/* Scales of 16 groups (Q6_K), or of 8 groups and then their minima, both with that of the block. */
INLINE vec super_scales(enum butler_type type, const uint8_t *w)
{
    if (type == BUTLER_Q6_K) { /* the block ends behind its scale: no load of more */
        const vec d = vec_set1(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(w + Q6_K_SCALE)))));
        return vec_mul(d, vec_from_i8(bytes16_load(w + Q6_K_SCALES), 0));
    }
    const __m128 both = _mm_cvtph_ps(_mm_cvtsi32_si128((int)load_u32(w)));
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    return vec_mul(_mm512_permutexvar_ps(lane, _mm512_castps128_ps512(both)), vec_from_i8(k_scales(w + Q4_K_SCALES), 0));
}

/* Half a block of Q4_K or Q5_K: its even groups, its odd groups. Bit g of the 32 bytes of fifths is that of group g. */
INLINE void k_half(bytes *even, bytes *odd, enum butler_type type, const uint8_t *w, int half)
{
    const bytes b = _mm512_loadu_si512(w + (type == BUTLER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + half * 64);
    *even = low_nibbles(b);
    *odd = high_nibbles(b);
    if (type == BUTLER_Q5_K) {
        /* Rotated until the bit in question is bit 4 of its byte; what crosses into other bytes is masked away. */
        const bytes fifths = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(w + Q5_K_HIGH)));
        const int here = (36 - 4 * half) % 32, next = (34 - 4 * half) % 32;
        const __m512i turn =
            _mm512_setr_epi32(here, here, here, here, here, here, here, here, next, next, next, next, next, next, next, next);
        const __m512i turn1 = _mm512_sub_epi32(turn, _mm512_set1_epi32(1)), bit = _mm512_set1_epi8(16);
        *even = _mm512_or_si512(*even, _mm512_and_si512(_mm512_rolv_epi32(fifths, turn), bit));
        *odd = _mm512_or_si512(*odd, _mm512_and_si512(_mm512_rolv_epi32(fifths, turn1), bit));
    }
}

/* Half a block of Q6_K: columns 0..63 and 64..127 of it. */
INLINE void q6_half(bytes *low, bytes *high, const uint8_t *w, int half)
{
    const bytes b = _mm512_loadu_si512(w + half * 64), two = _mm512_set1_epi8(0x30);
    const bytes pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(w + Q6_K_HIGH + half * 32)));
    const __m512i turn = _mm512_setr_epi32(4, 4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i turn4 = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 30, 30, 30, 30, 30, 30, 30, 30);
    *low = _mm512_or_si512(low_nibbles(b), _mm512_and_si512(_mm512_rolv_epi32(pairs, turn), two));
    *high = _mm512_or_si512(high_nibbles(b), _mm512_and_si512(_mm512_rolv_epi32(pairs, turn4), two));
}

/* Scaled minima gather in the upper lanes of rest; what is in its lower ones is of no use. */
INLINE void super_block(enum butler_type type, vec acc[2], vec *rest, const uint8_t *w, const struct fixed_x *x, int first)
{
    const bool six = type == BUTLER_Q6_K;
    vec scales = super_scales(type, w);
    if (six) {
        *rest = vec_fma(scales, vec_load(x->sums + first / 16), *rest);
        scales = vec_mul(scales, vec_load_twice(x->scales + first / BLOCK));
    } else {
        const vec x_scales = _mm512_castps256_ps512(_mm256_loadu_ps(x->scales + first / BLOCK));
        scales = vec_mul(scales, _mm512_insertf32x8(x_scales, _mm256_loadu_ps(x->sums + first / BLOCK), 1));
        *rest = vec_add(*rest, scales);
    }
    UNROLL
    for (int half = 0; half < 2; half++) {
        const int8_t *piece = x->pieces + (size_t)first * 2 + half * SUPER;
        bytes a, b;
        if (six)
            q6_half(&a, &b, w, half);
        else
            k_half(&a, &b, type, w, half);
        acc[0] = vec_fma(dot_one(a, piece, x->low), six ? spread4(scales, 8 * half) : spread8(scales, 4 * half, 2), acc[0]);
        acc[1] = vec_fma(dot_one(b, piece + 128, x->low), six ? spread4(scales, 8 * half + 4) : spread8(scales, 4 * half + 1, 2),
                         acc[1]);
    }
}

INLINE vec super_total(enum butler_type type, const vec acc[2], vec rest)
{
    const vec sum = vec_add(acc[0], acc[1]);
    return type == BUTLER_Q6_K ? vec_fnma(rest, vec_set1(32), sum) : vec_sub(sum, _mm512_maskz_mov_ps(0xff00, rest));
}

#include "kernels/simd_fixed.h"

void butler_kernels_weights_vnni(struct butler_kernels *table)
{
    fill_fixed(table);
}
#endif
