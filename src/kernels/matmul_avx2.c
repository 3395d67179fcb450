/* Products of quantised weights with activations in 16-bit integers for CPUs with AVX2, FMA and F16C: unsigned bytes of weights
 * and signed ones of activations are multiplied and added in pairs, which fits 16 bits for weights of up to 6 bits, and pairs of
 * those by a multiplication by 1 or, with high bytes, by 256. Weights of 8 bits are widened to words. Processors without VNNI win;
 * by how much over plain C: `bench_kernels --compare --only matmul`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AVX2)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec256.h"

enum { BYTES = 4 * VEC, q8_zero = 0 };
typedef __m256i bytes, ints;

INLINE bytes load_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

INLINE ints load_ints(const void *p)
{
    return load_bytes(p);
}

INLINE ints add_ints(ints a, ints b)
{
    return _mm256_add_epi32(a, b);
}

INLINE vec ints_to_floats(ints v)
{
    return _mm256_cvtepi32_ps(v);
}

INLINE int32_t quantise16(int16_t q[16], const float *x, float inverse, float most)
{
    const __m256i a = _mm256_cvtps_epi32(vec_max(vec_mul(vec_load(x), vec_set1(inverse)), vec_set1(-most)));
    const __m256i b = _mm256_cvtps_epi32(vec_max(vec_mul(vec_load(x + VEC), vec_set1(inverse)), vec_set1(-most)));
    _mm256_storeu_si256((__m256i *)q, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
    const __m256i both = _mm256_add_epi32(a, b);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(sum) + _mm_extract_epi32(sum, 1);
}

/* 32 signed bytes with 32 words. */
INLINE ints words_dot(bytes w, const int8_t *x)
{
    const __m256i a = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w)), b = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1));
    return _mm256_add_epi32(_mm256_madd_epi16(a, load_bytes(x)), _mm256_madd_epi16(b, load_bytes(x + BYTES)));
}

INLINE ints dots(enum butler_type type, const bytes w[2], const int8_t *x)
{
    if (eight_bits(type)) { /* w[u] is all of unit u */
        const ints a = words_dot(w[0], x), b = words_dot(w[1], x + 2 * BYTES);
        return _mm256_add_epi32(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31));
    }
    __m256i high = _mm256_maddubs_epi16(w[0], load_bytes(x)), low = _mm256_maddubs_epi16(w[0], load_bytes(x + BYTES));
    if (!narrow_units(type)) { /* weights of up to 5 bits: four products still fit */
        high = _mm256_add_epi16(high, _mm256_maddubs_epi16(w[1], load_bytes(x + 2 * BYTES)));
        low = _mm256_add_epi16(low, _mm256_maddubs_epi16(w[1], load_bytes(x + 3 * BYTES)));
    }
    return _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(256)), _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

INLINE ints low_dots(enum butler_type type, const bytes w[2], const int8_t *x)
{
    __m256i s = _mm256_maddubs_epi16(w[0], load_bytes(x + BYTES));
    if (!narrow_units(type))
        s = _mm256_add_epi16(s, _mm256_maddubs_epi16(w[1], load_bytes(x + 3 * BYTES)));
    return _mm256_madd_epi16(s, _mm256_set1_epi16(1));
}

INLINE ints word_dots(enum butler_type type, const bytes words[4], const int8_t *x)
{
    ints s = _mm256_madd_epi16(words[0], load_bytes(x));
    const int n = narrow_units(type) ? 2 : 4;
    UNROLL
    for (int k = 1; k < n; k++)
        s = _mm256_add_epi32(s, _mm256_madd_epi16(words[k], load_bytes(x + k * BYTES)));
    return s;
}

INLINE ints sum_rows(const ints v[4])
{
    const ints a = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    const ints b = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    return _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
}

INLINE void store_rows(float sums[4], vec v)
{
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1)));
}

INLINE vec halves_of_rows(const uint8_t *p, size_t row_bytes, size_t size)
{
    return _mm256_cvtph_ps(eight_words(p, row_bytes, size));
}

INLINE vec exponents_of_rows(const uint8_t *p, size_t row_bytes, size_t size)
{
    const __m256i e = _mm256_and_si256(_mm256_cvtepu16_epi32(eight_words(p, row_bytes, size)), _mm256_set1_epi32(255));
    const __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    const __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

INLINE vec spread_rows(__m128 v)
{
    return _mm256_set_m128(v, v);
}

INLINE int zero_of(enum butler_type type);

INLINE void widen_weights(enum butler_type type, bytes words[4], const bytes w[2])
{
    const int n = narrow_units(type) ? 2 : 4;
    UNROLL
    for (int k = 0; k < n; k++) {
        if (eight_bits(type)) { /* signed already */
            const __m256i half = k < 2 ? _mm256_permute2x128_si256(w[0], w[1], 0x20) : _mm256_permute2x128_si256(w[0], w[1], 0x31);
            const __m256i upper = k % 2 ? _mm256_unpackhi_epi8(half, half) : _mm256_unpacklo_epi8(half, half);
            words[k] = _mm256_srai_epi16(upper, 8);
            continue;
        }
        const __m256i v =
            k % 2 ? _mm256_unpackhi_epi8(w[k / 2], _mm256_setzero_si256()) : _mm256_unpacklo_epi8(w[k / 2], _mm256_setzero_si256());
        words[k] = _mm256_sub_epi16(v, _mm256_set1_epi16((short)zero_of(type)));
    }
}

/* ----------------------------------------------------------------------------------------- blocks of 32 */

INLINE bytes low_nibbles(bytes b)
{
    return _mm256_and_si256(b, _mm256_set1_epi8(15));
}

INLINE bytes high_nibbles(bytes b)
{
    return low_nibbles(_mm256_srli_epi16(b, 4));
}

INLINE bytes both_halves(__m128i low, __m128i high)
{
    return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* Bytes 0, 1 of each word, and 2, 3, each spread over 8 bytes that keep a bit each. */
INLINE void add_fifths(bytes w[2], const uint8_t *fifths, int size)
{
    const bytes words = both_halves(_mm_cvtsi32_si128((int)load_u32(fifths)), _mm_cvtsi32_si128((int)load_u32(fifths + size)));
    const bytes place =
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const bytes bit = _mm256_set1_epi64x((long long)0x8040201008040201), fifth = _mm256_set1_epi8(16);
    for (int half = 0; half < 2; half++) {
        const bytes spread = _mm256_shuffle_epi8(words, _mm256_add_epi8(place, _mm256_set1_epi8((char)(2 * half))));
        w[half] = _mm256_or_si256(w[half], _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(spread, bit), bit), fifth));
    }
}

/* The weights that nibbles are indices of: 16 bytes of nibbles of each of two units. */
INLINE void table_weights(enum butler_type type, bytes w[2], bytes nibbles)
{
    const __m128i values = bytes16_load((const uint8_t *)(type == BUTLER_MXFP4 ? MXFP4_VALUES : IQ4_VALUES));
    const bytes table = _mm256_broadcastsi128_si256(_mm_add_epi8(values, _mm_set1_epi8((char)zero_of(type))));
    const bytes low = _mm256_shuffle_epi8(table, low_nibbles(nibbles)), high = _mm256_shuffle_epi8(table, high_nibbles(nibbles));
    w[0] = eight_bits(type) ? _mm256_permute2x128_si256(low, high, 0x20) : low;
    w[1] = eight_bits(type) ? _mm256_permute2x128_si256(low, high, 0x31) : high;
}

INLINE void small_weights(enum butler_type type, bytes w[2], const uint8_t *blocks, int size)
{
    if (type == BUTLER_Q8_0) {
        w[0] = load_bytes(blocks + Q8_0_QUANTS);
        w[1] = load_bytes(blocks + size + Q8_0_QUANTS);
        return;
    }
    const bytes nibbles = both_halves(bytes16_load(blocks + size - 16), bytes16_load(blocks + 2 * size - 16));
    if (type == BUTLER_IQ4_NL || type == BUTLER_MXFP4) {
        table_weights(type, w, nibbles);
        return;
    }
    w[0] = low_nibbles(nibbles);
    w[1] = high_nibbles(nibbles);
    if (type == BUTLER_Q5_0 || type == BUTLER_Q5_1)
        add_fifths(w, blocks + (type == BUTLER_Q5_0 ? Q5_0_HIGH : Q5_1_HIGH), size);
}

/* ---------------------------------------------------------------------------------------- blocks of 256 */

/* Columns 32 row to 32 row + 31 of a block's two-bit numbers. */
INLINE bytes pair_row(const uint8_t *pairs, int row)
{
    return _mm256_and_si256(_mm256_srli_epi16(load_bytes(pairs + row / 4 * 32), row % 4 * 2), _mm256_set1_epi8(3));
}

/* The same of a Q3_K block, with bit `row` of its 32 bytes of third bits. */
INLINE bytes q3_row(const uint8_t *w, int row)
{
    const bytes thirds = load_bytes(w), bit = _mm256_set1_epi8(4);
    const bytes here = row < 2 ? _mm256_slli_epi16(thirds, 2 - row) : _mm256_srli_epi16(thirds, row - 2);
    return _mm256_or_si256(pair_row(w + Q3_K_QUANTS, row), _mm256_and_si256(here, bit));
}

/* Unit u of a Q4_K, Q5_K or TQ2_0 block. Bit u of the 32 bytes of fifth bits is that of unit u. */
INLINE bytes k_unit(enum butler_type type, const uint8_t *w, int u)
{
    if (type == BUTLER_TQ2_0)
        return pair_row(w, u);
    const bytes b = load_bytes(w + (type == BUTLER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + u / 2 * 32);
    const bytes q = u % 2 ? high_nibbles(b) : low_nibbles(b);
    if (type == BUTLER_Q4_K)
        return q;
    const bytes fifths = load_bytes(w + Q5_K_HIGH), bit = _mm256_set1_epi8(16);
    const bytes here = u < 4 ? _mm256_slli_epi16(fifths, 4 - u) : _mm256_srli_epi16(fifths, u - 4);
    return _mm256_or_si256(q, _mm256_and_si256(here, bit)); /* what crossed into other bytes is masked away */
}

/* Columns 32 step to 32 step + 31 of a Q6_K block. */
INLINE bytes q6_row(const uint8_t *w, int step)
{
    const int half = step / 4, row = step % 4;
    const bytes b = load_bytes(w + half * 64 + row % 2 * 32), pairs = load_bytes(w + Q6_K_HIGH + half * 32);
    const bytes here = row < 2 ? _mm256_slli_epi16(pairs, 4 - 2 * row) : _mm256_srli_epi16(pairs, 2 * row - 4);
    return _mm256_or_si256(row < 2 ? low_nibbles(b) : high_nibbles(b), _mm256_and_si256(here, _mm256_set1_epi8(0x30)));
}

INLINE void load_weights(enum butler_type type, bytes w[2], const uint8_t *row, int step)
{
    if (type == BUTLER_Q6_K)
        w[0] = q6_row(row, step);
    else if (type == BUTLER_Q2_K)
        w[0] = pair_row(row + Q2_K_QUANTS, step);
    else if (type == BUTLER_Q3_K)
        w[0] = q3_row(row, step);
    else if (type == BUTLER_IQ4_XS)
        table_weights(type, w, load_bytes(row + IQ4_XS_QUANTS + step * 32));
    else if (butler_type_block(type) == SUPER) {
        const bytes a = k_unit(type, row, 2 * step), b = k_unit(type, row, 2 * step + 1);
        w[0] = _mm256_permute2x128_si256(a, b, 0x20);
        w[1] = _mm256_permute2x128_si256(a, b, 0x31);
    } else
        small_weights(type, w, row, butler_type_bytes(type));
}

#include "kernels/simd_matmul.h"

/* ------------------------------------------------------------------------------- activations in 8-bit integers */

enum { TILE_TOKENS = 4 };

INLINE bytes set_bytes(int byte)
{
    return _mm256_set1_epi8((char)byte);
}

INLINE bytes sub_bytes(bytes a, bytes b)
{
    return _mm256_sub_epi8(a, b);
}

INLINE void store_bytes(void *p, bytes v)
{
    _mm256_store_si256((__m256i *)p, v);
}

INLINE void transpose_words(bytes v[VEC])
{
    bytes a[8], b[8];
    UNROLL
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

/* How many products of pairs fit 16 bits: each is at most 2 * 127 times the greatest weight. */
INLINE int pairs_in_words(enum butler_type type)
{
    return type == BUTLER_Q6_K ? 2 : type == BUTLER_Q5_0 || type == BUTLER_Q5_1 ? 4 : eight_bits(type) ? 1 : 8;
}

INLINE bytes word_of(const uint8_t *x, int k)
{
    return _mm256_set1_epi32((int)load_u32(x + k * BUTLER_Q8_TOKENS * 4));
}

INLINE ints unit_dots(enum butler_type type, const bytes w[8], const uint8_t *x, const int32_t *rest)
{
    const int n = narrow_units(type) ? 4 : 8, most = BUTLER_MIN(pairs_in_words(type), n);
    ints s = has_minimum(type) || eight_bits(type) ? _mm256_setzero_si256() : _mm256_set1_epi32(*rest);
    UNROLL
    for (int first = 0; first < n; first += most) {
        bytes words;
        UNROLL
        for (int k = 0; k < most; k++) {
            const bytes v = word_of(x, first + k);
            const bytes product = eight_bits(type)
                                      ? _mm256_maddubs_epi16(_mm256_abs_epi8(w[first + k]), _mm256_sign_epi8(v, w[first + k]))
                                      : _mm256_maddubs_epi16(w[first + k], v);
            words = k == 0 ? product : _mm256_add_epi16(words, product);
        }
        s = _mm256_add_epi32(s, _mm256_madd_epi16(words, _mm256_set1_epi16(1)));
    }
    return s;
}

INLINE vec add_chains(const vec v[2])
{
    return vec_add(v[0], v[1]);
}

#include "kernels/simd_q8.h"

/* Weights of 8 bits meet words here, in which there is nothing to leave out. */
#define MATMUL_LOW(name, type)                                                                                                     \
    static void name##_rows(struct butler_results y, size_t step, struct weight_rows w, int n_rows, bool is_followed,              \
                            const int8_t *x, int n_tokens, int n)                                                                  \
    {                                                                                                                              \
        rows_with_tokens(type, y, step, w, n_rows, is_followed, (struct q16_tokens){x, n_tokens, LOW}, n);                         \
    }                                                                                                                              \
    static void name(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16, int n_tokens, int n) \
    {                                                                                                                              \
        each_rows(name##_rows, name##_rows, (struct butler_results){y, y_stride}, (struct weight_rows){w, row_bytes}, n_rows, q16, \
                  n_tokens, n);                                                                                                    \
    }

MATMUL_LOW(low_q4_0, BUTLER_Q4_0)
MATMUL_LOW(low_q4_1, BUTLER_Q4_1)
MATMUL_LOW(low_q5_0, BUTLER_Q5_0)
MATMUL_LOW(low_q4_k, BUTLER_Q4_K)
MATMUL_LOW(low_q6_k, BUTLER_Q6_K)
#undef MATMUL_LOW

void butler_kernels_matmul_avx2(struct butler_kernels *table)
{
    fill_matmul(table);
    table->matmul_low[BUTLER_Q4_0] = low_q4_0;
    table->matmul_low[BUTLER_Q4_1] = low_q4_1;
    table->matmul_low[BUTLER_Q5_0] = low_q5_0;
    table->matmul_low[BUTLER_Q4_K] = low_q4_k;
    table->matmul_low[BUTLER_Q6_K] = low_q6_k;
    fill_q8(table);
}
BUTLER_TARGET_END
#endif
