/* Products of quantised weights with activations in 16-bit fixed point for CPUs with AVX2, FMA and F16C: bytes are multiplied and
 * added in pairs, which fits 16 bits for weights of up to 6, and pairs of those by a multiplication by 1 or, with high bytes, by
 * 256. */
#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec256.h"

enum { BYTES = 4 * VEC };
typedef __m256i bytes;

#include "kernels/fixed_x.h"

INLINE bytes load_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE int32_t fix16(int16_t q[16], const float *x, float inverse)
{
    const __m256i a = _mm256_cvtps_epi32(vec_max(vec_mul(vec_load(x), vec_set1(inverse)), vec_set1(-BUTLER_FIXED_MOST)));
    const __m256i b = _mm256_cvtps_epi32(vec_max(vec_mul(vec_load(x + VEC), vec_set1(inverse)), vec_set1(-BUTLER_FIXED_MOST)));
    _mm256_storeu_si256((__m256i *)q, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    const __m256i both = _mm256_add_epi32(a, b);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 1);
}

INLINE vec words_dot(const uint8_t *weights, const int8_t *x)
{
    const __m256i a = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)weights));
    const __m256i b = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(weights + 16)));
    return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_madd_epi16(a, load_bytes(x)), _mm256_madd_epi16(b, load_bytes(x + 32))));
}

/* From sums of pairs with high bytes and with low ones. */
INLINE vec from_pairs(__m256i high, __m256i low)
{
    return _mm256_cvtepi32_ps(
        _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)), _mm256_madd_epi16(low, _mm256_set1_epi16(1))));
}

INLINE vec from_low(__m256i low)
{
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

INLINE vec dot_one(bytes w, const int8_t *x, bool low)
{
    if (low)
        return from_low(_mm256_maddubs_epi16(w, load_bytes(x + 32)));
    return from_pairs(_mm256_maddubs_epi16(w, load_bytes(x)), _mm256_maddubs_epi16(w, load_bytes(x + 32)));
}

/* Weights of up to 5 bits: four products still fit. */
INLINE vec dot_two(bytes w0, bytes w1, const bytes x[4], bool low)
{
    if (low)
        return from_low(_mm256_add_epi16(_mm256_maddubs_epi16(w0, x[1]), _mm256_maddubs_epi16(w1, x[3])));
    return from_pairs(_mm256_add_epi16(_mm256_maddubs_epi16(w0, x[0]), _mm256_maddubs_epi16(w1, x[2])),
                      _mm256_add_epi16(_mm256_maddubs_epi16(w0, x[1]), _mm256_maddubs_epi16(w1, x[3])));
}

INLINE vec spread4(vec v, int first)
{
    return _mm256_permutevar8x32_ps(v, _mm256_add_epi32(_mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1), _mm256_set1_epi32(first)));
}

INLINE void put_sums(float *y, int y_step, const vec *v, int n_rows)
{
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = vec_sum(v[r]);
}

/* ----------------------------------------------------------------------------------------- blocks of 32 */

/* Blocks 0, 2, 4, 6, then the odd ones: two that are neighbours spread over half a vector each without crossing halves. */
INLINE int lane_of(int block)
{
    return block / 2 + block % 2 * 4;
}

INLINE vec in_lanes(vec v)
{
    return _mm256_permutevar8x32_ps(v, _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
}

INLINE vec small_halves(const uint8_t *w, int size, int n_blocks)
{
    if (n_blocks < VEC)
        return in_lanes(_mm256_cvtph_ps(some_words(w, (size_t)size, n_blocks)));
    return _mm256_cvtph_ps(eight_words(w, (size_t)size * 2, (size_t)size));
}

INLINE vec spread_group(vec v, int k)
{
    return k == 0   ? _mm256_permute_ps(v, 0x00)
           : k == 2 ? _mm256_permute_ps(v, 0x55)
           : k == 4 ? _mm256_permute_ps(v, 0xaa)
                    : _mm256_permute_ps(v, 0xff);
}

INLINE bytes low_nibbles(bytes b)
{
    return _mm256_and_si256(b, _mm256_set1_epi8(15));
}

INLINE bytes high_nibbles(bytes b)
{
    return low_nibbles(_mm256_srli_epi16(b, 4));
}

INLINE void small_nibbles(bytes *low, bytes *high, const uint8_t *quants, int size)
{
    const bytes b = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)quants)),
                                            _mm_loadu_si128((const __m128i *)(quants + size)), 1);
    *low = low_nibbles(b);
    *high = high_nibbles(b);
}

/* Bytes 0, 1 of each word, and 2, 3, each spread over 8 bytes that keep a bit each. */
INLINE void small_fifths(bytes *low, bytes *high, const uint8_t *fifths, int size)
{
    const bytes words = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_cvtsi32_si128((int)load_u32(fifths))),
                                                _mm_cvtsi32_si128((int)load_u32(fifths + size)), 1);
    const bytes place =
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const bytes bit = _mm256_set1_epi64x((long long)0x8040201008040201), fifth = _mm256_set1_epi8(16);
    const bytes lows = _mm256_and_si256(_mm256_shuffle_epi8(words, place), bit);
    const bytes highs = _mm256_and_si256(_mm256_shuffle_epi8(words, _mm256_add_epi8(place, _mm256_set1_epi8(2))), bit);
    *low = _mm256_or_si256(*low, _mm256_and_si256(_mm256_cmpeq_epi8(lows, bit), fifth));
    *high = _mm256_or_si256(*high, _mm256_and_si256(_mm256_cmpeq_epi8(highs, bit), fifth));
}

/* ---------------------------------------------------------------------------------------- blocks of 256 */

/* 32 columns of a block of Q4_K or Q5_K. Bit g of the 32 bytes of fifths is that of group g. */
INLINE bytes k_group(enum butler_type type, const uint8_t *w, int group)
{
    const bytes b = load_bytes(w + (type == BUTLER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + group / 2 * 32);
    const bytes q = group % 2 ? high_nibbles(b) : low_nibbles(b);
    if (type == BUTLER_Q4_K)
        return q;
    const bytes fifths = load_bytes(w + Q5_K_HIGH), bit = _mm256_set1_epi8(16);
    const bytes here = group < 4 ? _mm256_slli_epi16(fifths, 4 - group) : _mm256_srli_epi16(fifths, group - 4);
    return _mm256_or_si256(q, _mm256_and_si256(here, bit)); /* what crossed into other bytes is masked away */
}

/* Row `row` of half a block of Q6_K. */
INLINE bytes q6_row(const uint8_t *w, int half, int row)
{
    const bytes b = load_bytes(w + half * 64 + row % 2 * 32), pairs = load_bytes(w + Q6_K_HIGH + half * 32);
    const bytes here = row < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * row) : _mm256_srli_epi16(pairs, 2 * row - 4);
    return _mm256_or_si256(row < 2 ? low_nibbles(b) : high_nibbles(b), _mm256_and_si256(here, _mm256_set1_epi8(0x30)));
}

INLINE vec half_of(const uint8_t *p)
{
    return vec_set1(_mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p)))));
}

INLINE void q6_block(vec acc[2], vec *rest, const uint8_t *w, const struct fixed_x *x, int first)
{
    const vec d = half_of(w + Q6_K_SCALE);
    const bytes16 quants = bytes16_load(w + Q6_K_SCALES);
    vec scales[2];
    for (int k = 0; k < 2; k++) {
        scales[k] = vec_mul(d, vec_from_i8(quants, k));
        *rest = vec_fma(scales[k], vec_load(x->sums + first / 16 + k * VEC), *rest);
        scales[k] = vec_mul(scales[k], vec_load_twice(x->scales + first / BLOCK + k * 4));
    }
    UNROLL
    for (int row = 0; row < 8; row++)
        acc[row % 2] = vec_fma(dot_one(q6_row(w, row / 4, row % 4), x->pieces + (size_t)first * 2 + row * 64, x->low),
                               spread4(scales[row / 4], row % 4 * 2), acc[row % 2]);
}

INLINE void super_block(enum butler_type type, vec acc[2], vec *rest, const uint8_t *w, const struct fixed_x *x, int first)
{
    if (type == BUTLER_Q6_K) {
        q6_block(acc, rest, w, x, first);
        return;
    }
    const bytes16 quants = k_scales(w + Q4_K_SCALES);
    const vec scales = vec_mul(vec_mul(half_of(w), vec_from_i8(quants, 0)), vec_load(x->scales + first / BLOCK));
    *rest = vec_fma(vec_mul(half_of(w + 2), vec_from_i8(quants, 1)), vec_load(x->sums + first / BLOCK), *rest);
    UNROLL
    for (int g = 0; g < 8; g++)
        acc[g % 2] = vec_fma(dot_one(k_group(type, w, g), x->pieces + (size_t)first * 2 + g * 64, x->low),
                             _mm256_permutevar8x32_ps(scales, _mm256_set1_epi32(g)), acc[g % 2]);
}

INLINE vec super_total(enum butler_type type, const vec acc[2], vec rest)
{
    const vec sum = vec_add(acc[0], acc[1]);
    return type == BUTLER_Q6_K ? vec_fnma(rest, vec_set1(32), sum) : vec_sub(sum, rest);
}

#include "kernels/simd_fixed.h"

void butler_kernels_weights_avx2(struct butler_kernels *table)
{
    fill_fixed(table);
}
#endif
