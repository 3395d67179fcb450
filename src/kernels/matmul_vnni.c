/* Products of quantised weights with activations in 16-bit integers for CPUs with AVX-512 VNNI: one instruction multiplies 64
 * unsigned bytes of weights with signed bytes of activations and adds fours of them. Intel's servers from 2019 on and AMD's from
 * Zen 4 on win: docs/prompts.md has prompts with it, with AVX2 and with AMX on one machine. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_VNNI)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

enum { BYTES = 4 * VEC, q8_zero = 128 };
typedef __m512i bytes, ints;

INLINE bytes load_bytes(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE ints load_ints(const void *p)
{
    return _mm512_loadu_si512(p);
}

INLINE ints add_ints(ints a, ints b)
{
    return _mm512_add_epi32(a, b);
}

INLINE vec ints_to_floats(ints v)
{
    return _mm512_cvtepi32_ps(v);
}

INLINE int32_t quantise16(int16_t q[16], const float *x, float inverse, float most)
{
    const __m512i whole = _mm512_cvtps_epi32(vec_max(vec_mul(vec_load(x), vec_set1(inverse)), vec_set1(-most)));
    _mm256_storeu_si256((__m256i *)q, _mm512_cvtepi32_epi16(whole));
    return _mm512_reduce_add_epi32(whole);
}

/* Sums with high bytes are shifted before those with low ones are added. */
INLINE ints dots(enum butler_type type, const bytes w[2], const int8_t *x)
{
    ints s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w[0], load_bytes(x));
    if (!narrow_units(type))
        s = _mm512_dpbusd_epi32(s, w[1], load_bytes(x + 2 * BYTES));
    s = _mm512_dpbusd_epi32(_mm512_slli_epi32(s, 8), w[0], load_bytes(x + BYTES));
    return narrow_units(type) ? s : _mm512_dpbusd_epi32(s, w[1], load_bytes(x + 3 * BYTES));
}

INLINE ints low_dots(enum butler_type type, const bytes w[2], const int8_t *x)
{
    return dots(type, w, x); /* not used: matmul_low is NULL here */
}

INLINE ints word_dots(enum butler_type type, const bytes words[4], const int8_t *x)
{
    ints s = _mm512_dpwssd_epi32(_mm512_setzero_si512(), words[0], load_bytes(x));
    const int n = narrow_units(type) ? 2 : 4;
    UNROLL
    for (int k = 1; k < n; k++)
        s = _mm512_dpwssd_epi32(s, words[k], load_bytes(x + k * BYTES));
    return s;
}

INLINE ints sum_rows(const ints v[4])
{
    const ints a = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    const ints b = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
}

INLINE void store_rows(float sums[4], vec v)
{
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

INLINE vec halves_of_rows(const uint8_t *p, size_t row_bytes, size_t size)
{
    return _mm512_cvtph_ps(_mm256_set_m128i(eight_words(p + 2 * size, row_bytes, size), eight_words(p, row_bytes, size)));
}

INLINE vec exponents_of_rows(const uint8_t *p, size_t row_bytes, size_t size)
{
    const __m256i words = _mm256_set_m128i(eight_words(p + 2 * size, row_bytes, size), eight_words(p, row_bytes, size));
    const __m512i e = _mm512_and_si512(_mm512_cvtepu16_epi32(words), _mm512_set1_epi32(255));
    const __m512i normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const __mmask16 small = _mm512_cmplt_epi32_mask(e, _mm512_set1_epi32(2));
    return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, small, _mm512_set1_epi32(0x200000), e));
}

INLINE vec spread_rows(__m128 v)
{
    return _mm512_broadcast_f32x4(v);
}

INLINE int zero_of(enum butler_type type);

INLINE void widen_weights(enum butler_type type, bytes words[4], const bytes w[2])
{
    const __m512i zero = _mm512_set1_epi16((short)zero_of(type));
    const int n = narrow_units(type) ? 2 : 4;
    UNROLL
    for (int k = 0; k < n; k++) {
        const __m512i v =
            k % 2 ? _mm512_unpackhi_epi8(w[k / 2], _mm512_setzero_si512()) : _mm512_unpacklo_epi8(w[k / 2], _mm512_setzero_si512());
        words[k] = zero_of(type) ? _mm512_sub_epi16(v, zero) : v;
    }
}

/* ----------------------------------------------------------------------------------------- blocks of 32 */

INLINE bytes low_nibbles(bytes b)
{
    return _mm512_and_si512(b, _mm512_set1_epi8(15));
}

/* Bytes [0, 32) of two blocks. */
INLINE bytes two_blocks(const uint8_t *p, int size)
{
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)p)),
                              _mm256_loadu_si256((const __m256i *)(p + size)), 1);
}

/* Bytes [0, 16) of four blocks; by halves, because an insertion into a whole vector takes twice as long. */
INLINE bytes four_blocks(const uint8_t *p, int size)
{
    const __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes16_load(p)), bytes16_load(p + size), 1);
    const __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(bytes16_load(p + 2 * size)), bytes16_load(p + 3 * size), 1);
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* The weights that nibbles are indices of: 16 bytes of nibbles of each of four units. */
INLINE void table_weights(enum butler_type type, bytes w[2], bytes nibbles)
{
    const __m128i values = bytes16_load((const uint8_t *)(type == BUTLER_MXFP4 ? MXFP4_VALUES : IQ4_VALUES));
    const bytes table = _mm512_broadcast_i32x4(_mm_add_epi8(values, _mm_set1_epi8((char)zero_of(type))));
    w[0] = _mm512_shuffle_epi8(table, low_nibbles(nibbles));
    w[1] = _mm512_shuffle_epi8(table, low_nibbles(_mm512_srli_epi16(nibbles, 4)));
}

INLINE void small_weights(enum butler_type type, bytes w[2], const uint8_t *blocks, int size)
{
    if (type == BUTLER_Q8_0) {
        const bytes a = two_blocks(blocks + Q8_0_QUANTS, size), b = two_blocks(blocks + 2 * size + Q8_0_QUANTS, size);
        const bytes sign = _mm512_set1_epi8((char)0x80);
        w[0] = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0x88), sign);
        w[1] = _mm512_xor_si512(_mm512_shuffle_i64x2(a, b, 0xdd), sign);
        return;
    }
    const bytes nibbles = four_blocks(blocks + size - 16, size);
    if (type == BUTLER_IQ4_NL || type == BUTLER_MXFP4) {
        table_weights(type, w, nibbles);
        return;
    }
    w[0] = low_nibbles(nibbles);
    w[1] = low_nibbles(_mm512_srli_epi16(nibbles, 4));
    if (type == BUTLER_Q5_0 || type == BUTLER_Q5_1) {
        uint64_t first = 0, second = 0;
        UNROLL
        for (int b = 0; b < 4; b++) {
            const uint64_t fifths = load_u32(blocks + b * size + (type == BUTLER_Q5_0 ? Q5_0_HIGH : Q5_1_HIGH));
            first |= (fifths & 0xffff) << 16 * b;
            second |= (fifths >> 16) << 16 * b;
        }
        w[0] = _mm512_mask_add_epi8(w[0], first, w[0], _mm512_set1_epi8(16));
        w[1] = _mm512_mask_add_epi8(w[1], second, w[1], _mm512_set1_epi8(16));
    }
}

/* ---------------------------------------------------------------------------------------- blocks of 256 */

/* Units 4 step to 4 step + 3. Even units are the low nibbles of their bytes, odd units the high nibbles; bit u of the 32 bytes of
 * fifth bits is that of unit u: rotated until it is bit 4 of its byte, what crosses into other bytes masked away. */
INLINE void k_weights(enum butler_type type, bytes w[2], const uint8_t *block, int step)
{
    const bytes b = load_bytes(block + (type == BUTLER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + step * 64);
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 0, 0, 0, 0, 4, 4, 4, 4);
    w[0] = low_nibbles(_mm512_srlv_epi32(_mm512_shuffle_i64x2(b, b, 0xa0), shift));
    w[1] = low_nibbles(_mm512_srlv_epi32(_mm512_shuffle_i64x2(b, b, 0xf5), shift));
    if (type == BUTLER_Q5_K) {
        const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        const __m512i rotation = _mm512_sub_epi32(_mm512_set1_epi32(36 - 4 * step), lane), bit = _mm512_set1_epi8(16);
        for (int half = 0; half < 2; half++) {
            const bytes fifths = _mm512_broadcast_i32x4(bytes16_load(block + Q5_K_HIGH + half * 16));
            w[half] = _mm512_or_si512(w[half], _mm512_and_si512(_mm512_rolv_epi32(fifths, rotation), bit));
        }
    }
}

/* Columns 64 step to 64 step + 63 of a Q6_K block. */
INLINE void q6_weights(bytes w[2], const uint8_t *block, int step)
{
    const bytes b = load_bytes(block + step / 2 * 64);
    const bytes pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(block + Q6_K_HIGH + step / 2 * 32)));
    const __m512i shift = step % 2 ? _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 30, 30, 30, 30, 30, 30, 30, 30)
                                   : _mm512_setr_epi32(4, 4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2);
    w[0] = _mm512_or_si512(low_nibbles(step % 2 ? _mm512_srli_epi16(b, 4) : b),
                           _mm512_and_si512(_mm512_rolv_epi32(pairs, shift), _mm512_set1_epi8(0x30)));
}

/* Columns 64 step to 64 step + 63 of a Q2_K or Q3_K block. Bit i / 32 of the 32 bytes of third bits belongs to column i. */
INLINE void q2_weights(enum butler_type type, bytes w[2], const uint8_t *block, int step)
{
    const uint8_t *pairs = block + (type == BUTLER_Q2_K ? Q2_K_QUANTS : Q3_K_QUANTS) + step / 2 * 32;
    const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i shift = _mm512_add_epi32(_mm512_add_epi32(row, row), _mm512_set1_epi32(step % 2 * 4));
    const bytes b = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)pairs));
    w[0] = _mm512_and_si512(_mm512_srlv_epi32(b, shift), _mm512_set1_epi8(3));
    if (type == BUTLER_Q3_K) {
        const bytes thirds = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)block));
        const bytes here = _mm512_rolv_epi32(thirds, _mm512_sub_epi32(_mm512_set1_epi32(34 - 2 * step), row));
        w[0] = _mm512_or_si512(w[0], _mm512_and_si512(here, _mm512_set1_epi8(4)));
    }
}

/* Units 4 step to 4 step + 3 of a TQ2_0 block. */
INLINE void tq2_weights(bytes w[2], const uint8_t *block, int step)
{
    const __m512i shift = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
    for (int half = 0; half < 2; half++) {
        const bytes b = _mm512_broadcast_i32x4(bytes16_load(block + step * 32 + half * 16));
        w[half] = _mm512_and_si512(_mm512_srlv_epi32(b, shift), _mm512_set1_epi8(3));
    }
}

INLINE void load_weights(enum butler_type type, bytes w[2], const uint8_t *row, int step)
{
    if (type == BUTLER_Q6_K)
        q6_weights(w, row, step);
    else if (type == BUTLER_Q2_K || type == BUTLER_Q3_K)
        q2_weights(type, w, row, step);
    else if (type == BUTLER_Q4_K || type == BUTLER_Q5_K)
        k_weights(type, w, row, step);
    else if (type == BUTLER_TQ2_0)
        tq2_weights(w, row, step);
    else if (type == BUTLER_IQ4_XS)
        table_weights(type, w, load_bytes(row + IQ4_XS_QUANTS + step * 64));
    else
        small_weights(type, w, row, butler_type_bytes(type));
}

#include "kernels/simd_matmul.h"

/* ------------------------------------------------------------------------------- activations in 8-bit integers */

enum { TILE_TOKENS = 16 };

INLINE bytes set_bytes(int byte)
{
    return _mm512_set1_epi8((char)byte);
}

INLINE bytes sub_bytes(bytes a, bytes b)
{
    return _mm512_sub_epi8(a, b);
}

INLINE void store_bytes(void *p, bytes v)
{
    _mm512_store_si512(p, v);
}

INLINE void transpose_words(bytes v[VEC])
{
    transpose(v);
}

INLINE ints unit_dots(enum butler_type type, const bytes w[8], const uint8_t *x, const int32_t *rest)
{
    const int n = narrow_units(type) ? 4 : 8;
    ints s = has_minimum(type) ? _mm512_setzero_si512() : _mm512_set1_epi32(*rest);
    UNROLL
    for (int k = 0; k < n; k++)
        s = _mm512_dpbusd_epi32(s, w[k], _mm512_set1_epi32((int)load_u32(x + k * BUTLER_Q8_TOKENS * 4)));
    return s;
}

INLINE vec add_chains(const vec v[4])
{
    return vec_add(vec_add(v[0], v[2]), vec_add(v[1], v[3]));
}

#include "kernels/simd_q8.h"

void butler_kernels_matmul_vnni(struct butler_kernels *table)
{
    fill_matmul(table);
    memset(table->matmul_low, 0, sizeof table->matmul_low); /* those of AVX2 take tokens in another form */
    fill_q8(table);
}
BUTLER_TARGET_END
#endif
