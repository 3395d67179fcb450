/* Products with quantised weights for CPUs with AVX-512 VNNI: weights stay the small integers that they are, activations are in
 * 16-bit fixed point (kernels.h, fix), and an instruction multiplies and adds 64 bytes or 32 words. A product costs half of what
 * widening to floats does: a block of 32 weights takes 4 to 6 slots of the two vector ports.
 *
 * Weights of 4 to 6 bits are unsigned bytes, 64 to a vector; activations come as high and low bytes, and sums with the high
 * ones are shifted before those with the low ones are added. What is to be subtracted from a weight (8 of Q4_0) or added (a
 * minimum) meets the sums of activations, 16 groups at a time. Weights of 8 bits are widened to words, so that they keep their
 * sign.
 *
 * Four rows, a quarter of the matrix apart, go together: simd_weights.h says why. */
#include "kernels.h"

#if defined(__x86_64__)
#include "vec512.h"

enum {
    ROWS = 4,
    SOON = 512,        /* bytes ahead: a row is fetched into the first-level cache from here on, */
    LATER = 1536,      /* and into the second from here: that keeps more lines under way. Beyond its end lie the next rows. */
    PIECE = 128,       /* columns whose activations lie together, in 256 bytes */
    CHUNK = 16 * BLOCK /* columns whose scales are made at a time: a vector of them */
};
_Static_assert((int)BUTLER_FIXED_X_COLUMNS == (int)PIECE, "of what fix makes, whole pieces");

/* How a type wants its activations: 16 columns after 16 in the order in which a vector of its weights has them. */
enum order { WORDS, SIXTEENS, THIRTY_TWOS, AS_THEY_ARE };

INLINE enum order order_of(enum butler_type type)
{
    return type == BUTLER_Q8_0                          ? WORDS
           : type == BUTLER_Q4_K || type == BUTLER_Q5_K ? THIRTY_TWOS
           : type == BUTLER_Q6_K                        ? AS_THEY_ARE
                                                        : SIXTEENS;
}

/* ------------------------------------------------------------------------------------------ activations */

/* Fixed x: the pieces, a scale for 32 columns, and the scaled sum of each 32 columns (Q6_K: of each 16, at both scales' places). */
struct fixed_x {
    const int8_t *pieces;
    const float *scales, *sums;
};

INLINE struct fixed_x fixed_parts(const void *fixed, int n)
{
    const size_t n_pieces = BUTLER_CEIL_DIV((size_t)n, PIECE);
    const int8_t *pieces = fixed;
    const float *scales = (const float *)(pieces + n_pieces * 2 * PIECE);
    return (struct fixed_x){pieces, scales, scales + n_pieces * (PIECE / BLOCK)};
}

/* 16 columns, which are number `part` of the piece's eight: of the two vectors with their high bytes and their low bytes, a lane.
 */
INLINE void put_bytes(int8_t *piece, enum order order, int part, __m512i q)
{
    if (order == WORDS) {
        _mm256_storeu_si256((__m256i *)(piece + part * 32), _mm512_cvtepi32_epi16(q));
        return;
    }
    const int at = order == SIXTEENS      ? part / 2 + part % 2 * 4
                   : order == THIRTY_TWOS ? part / 4 * 2 + part % 4 / 2 * 4 + part % 2
                                          : part;
    int8_t *lane = piece + at / 4 * 128 + at % 4 * 16;
    const __m512i high = _mm512_srai_epi32(_mm512_add_epi32(q, _mm512_set1_epi32(128)), 8);
    _mm_storeu_si128((__m128i *)lane, _mm512_cvtepi32_epi8(high));
    _mm_storeu_si128((__m128i *)(lane + 64), _mm512_cvtepi32_epi8(q));
}

static void fix(void *fixed, enum butler_type type, const float *x, int n)
{
    const struct fixed_x parts = fixed_parts(fixed, n);
    const enum order order = order_of(type);
    int8_t *pieces = (int8_t *)parts.pieces;
    float *scales = (float *)parts.scales, *sums = (float *)parts.sums;
    const int n_blocks = BUTLER_CEIL_DIV(n, PIECE) * (PIECE / BLOCK);
    for (int b = 0; b < n_blocks; b++) {
        vec x0 = vec_zero(), x1 = vec_zero();
        if (b * BLOCK < n) {
            x0 = vec_load(x + (size_t)b * BLOCK);
            x1 = vec_load(x + (size_t)b * BLOCK + VEC);
        }
        /* As integers magnitudes have the order of numbers, and infinities and NaN are greatest. */
        const __m512i most = _mm512_max_epu32(_mm512_castps_si512(vec_abs(x0)), _mm512_castps_si512(vec_abs(x1)));
        const float extreme = bits_to_float(_mm512_reduce_max_epu32(most));
        const bool any = !(extreme < BUTLER_FIXED_LEAST);
        const vec inverse = vec_set1(any ? BUTLER_FIXED_MOST / extreme : 0);
        const __m512i q0 = _mm512_cvtps_epi32(vec_mul(x0, inverse)), q1 = _mm512_cvtps_epi32(vec_mul(x1, inverse));
        const float scale = any ? extreme / BUTLER_FIXED_MOST : 0;
        const int part = b % (PIECE / BLOCK) * 2;
        put_bytes(pieces + (size_t)(b / (PIECE / BLOCK)) * 2 * PIECE, order, part, q0);
        put_bytes(pieces + (size_t)(b / (PIECE / BLOCK)) * 2 * PIECE, order, part + 1, q1);
        scales[b] = scale;
        if (type == BUTLER_Q6_K) {
            sums[2 * b] = scale * (float)_mm512_reduce_add_epi32(q0);
            sums[2 * b + 1] = scale * (float)_mm512_reduce_add_epi32(q1);
        } else
            sums[b] = scale * (float)_mm512_reduce_add_epi32(_mm512_add_epi32(q0, q1));
    }
}

/* ------------------------------------------------------------------------------------- 64 weights at a time */

/* Sums over a lane's weights, of one vector of weights or of two with lanes alike. x: high bytes, low bytes, then those of w1. */
INLINE vec dot_one(__m512i w, const int8_t *x)
{
    __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w, _mm512_loadu_si512(x));
    s = _mm512_dpbusd_epi32(_mm512_slli_epi32(s, 8), w, _mm512_loadu_si512(x + 64));
    return _mm512_cvtepi32_ps(s);
}

INLINE vec dot_two(__m512i w0, __m512i w1, const int8_t *x)
{
    __m512i s = _mm512_dpbusd_epi32(_mm512_setzero_si512(), w0, _mm512_loadu_si512(x));
    s = _mm512_slli_epi32(_mm512_dpbusd_epi32(s, w1, _mm512_loadu_si512(x + 128)), 8);
    s = _mm512_dpbusd_epi32(s, w0, _mm512_loadu_si512(x + 64));
    return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(s, w1, _mm512_loadu_si512(x + 192)));
}

INLINE __m512i low_nibbles(__m512i bytes)
{
    return _mm512_and_si512(bytes, _mm512_set1_epi8(15));
}

INLINE __m512i high_nibbles(__m512i bytes)
{
    return low_nibbles(_mm512_srli_epi16(bytes, 4));
}

/* Each of four scales, from number `first` of 16, in four lanes; each of two, `apart` from each other, in eight. */
INLINE vec spread4(vec scales, int first)
{
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(first)), scales);
}

INLINE vec spread8(vec scales, int first, int apart)
{
    const __m512i lane = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, apart, apart, apart, apart, apart, apart, apart, apart);
    return _mm512_permutexvar_ps(_mm512_add_epi32(lane, _mm512_set1_epi32(first)), scales);
}

INLINE void fetch(const uint8_t *p)
{
    prefetch_second((const void *)((uintptr_t)p + LATER));
    prefetch(p, SOON);
}

/* y[r * y_step] = the sum of the lanes of v[r], in the same order for one row and for four. */
INLINE void put_sums(float *y, int y_step, const vec v[ROWS], int n_rows)
{
    const vec b = n_rows > 1 ? v[1] : v[0], c = n_rows > 1 ? v[2] : v[0], d = n_rows > 1 ? v[3] : v[0];
    const vec ab = vec_add(_mm512_unpacklo_ps(v[0], b), _mm512_unpackhi_ps(v[0], b));
    const vec cd = vec_add(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    const vec four = vec_add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(four), _mm512_extractf32x8_ps(four, 1));
    float sums[4];
    _mm_storeu_ps(sums, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = sums[r];
}

/* ----------------------------------------------------------------------------------------- blocks of 32 */

INLINE int small_bytes(enum butler_type type)
{
    return type == BUTLER_Q8_0   ? Q8_0_BYTES
           : type == BUTLER_Q4_0 ? Q4_0_BYTES
           : type == BUTLER_Q4_1 ? Q4_1_BYTES
           : type == BUTLER_Q5_0 ? Q5_0_BYTES
                                 : Q5_1_BYTES;
}

INLINE bool has_minimum(enum butler_type type)
{
    return type == BUTLER_Q4_1 || type == BUTLER_Q5_1;
}

/* What stands for 0 in a type without minimum. */
INLINE float zero_of(enum butler_type type)
{
    return type == BUTLER_Q4_0 ? 8 : type == BUTLER_Q5_0 ? 16 : 0;
}

/* The first two bytes of each of 16 blocks as halves, or the second two; of the first n_blocks, which may be fewer, else 0. */
INLINE void small_halves(vec *first, vec *second, enum butler_type type, const uint8_t *w, int n_blocks)
{
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i at = _mm512_mullo_epi32(lane, _mm512_set1_epi32(small_bytes(type)));
    const __m512i both = n_blocks == VEC ? _mm512_i32gather_epi32(at, w, 1)
                                         : _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), vec_first(n_blocks), at, w, 1);
    *first = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(both));
    if (has_minimum(type))
        *second = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(both, 16)));
}

/* Four blocks of nibbles, 16 bytes each: elements 0..15 of each and 16..31. */
INLINE void small_quad(__m512i *low, __m512i *high, enum butler_type type, const uint8_t *w)
{
    const int size = small_bytes(type), quants = size - 16;
    __m512i bytes = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(w + quants)));
    bytes = _mm512_inserti32x4(bytes, _mm_loadu_si128((const __m128i *)(w + quants + size)), 1);
    bytes = _mm512_inserti32x4(bytes, _mm_loadu_si128((const __m128i *)(w + quants + 2 * size)), 2);
    bytes = _mm512_inserti32x4(bytes, _mm_loadu_si128((const __m128i *)(w + quants + 3 * size)), 3);
    *low = low_nibbles(bytes);
    *high = high_nibbles(bytes);
    if (type == BUTLER_Q5_0 || type == BUTLER_Q5_1) {
        const uint8_t *fifths = w + (type == BUTLER_Q5_0 ? Q5_0_HIGH : Q5_1_HIGH);
        const uint64_t a = load_u32(fifths), b = load_u32(fifths + size), c = load_u32(fifths + 2 * size),
                       d = load_u32(fifths + 3 * size);
        const uint64_t lows = (a & 0xffff) | (b & 0xffff) << 16 | (c & 0xffff) << 32 | d << 48;
        const uint64_t highs = a >> 16 | (b >> 16) << 16 | (c >> 16) << 32 | (d >> 16) << 48;
        *low = _mm512_mask_add_epi8(*low, lows, *low, _mm512_set1_epi8(16));
        *high = _mm512_mask_add_epi8(*high, highs, *high, _mm512_set1_epi8(16));
    }
}

/* Blocks 4 k .. 4 k + 3 of a chunk of n_rows rows; scales: of the chunk, a vector a row. */
INLINE void small_four(enum butler_type type, vec acc[ROWS], const vec scales[ROWS], const float (*single)[VEC], const uint8_t *w,
                       size_t row_bytes, int n_rows, const int8_t *piece, int k)
{
    if (type == BUTLER_Q8_0) {
        UNROLL
        for (int b = 0; b < 4; b++) {
            const __m512i x = _mm512_loadu_si512(piece + b * 64);
            UNROLL
            for (int r = 0; r < n_rows; r++) {
                const uint8_t *block = w + (size_t)r * row_bytes + (size_t)(b * Q8_0_BYTES);
                const __m512i q = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(block + Q8_0_QUANTS)));
                const __m512i s = _mm512_dpwssd_epi32(_mm512_setzero_si512(), q, x);
                acc[r] = vec_fma(_mm512_cvtepi32_ps(s), vec_set1(single[r][4 * k + b]), acc[r]);
            }
        }
        return;
    }
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        __m512i low, high;
        small_quad(&low, &high, type, w + (size_t)r * row_bytes);
        acc[r] = vec_fma(dot_two(low, high, piece), spread4(scales[r], 4 * k), acc[r]);
    }
}

INLINE void small_chunk(enum butler_type type, vec acc[ROWS], vec rest[ROWS], const uint8_t *w, size_t row_bytes, int n_rows,
                        const struct fixed_x *x, int first, int n_blocks)
{
    const int size = small_bytes(type);
    const vec x_scales = vec_load_some(x->scales + first, n_blocks), x_sums = vec_load_some(x->sums + first, n_blocks);
    vec scales[ROWS];
    _Alignas(64) float single[ROWS][VEC];
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        vec d, m;
        small_halves(&d, &m, type, w + (size_t)r * row_bytes, n_blocks);
        scales[r] = vec_mul(d, x_scales);
        if (type == BUTLER_Q8_0)
            vec_store(single[r], scales[r]);
        else
            rest[r] = vec_fma(has_minimum(type) ? m : d, x_sums, rest[r]);
    }
    const int8_t *piece = x->pieces + (size_t)first * (2 * BLOCK);
    int k = 0;
    for (; 4 * k + 4 <= n_blocks; k++) {
        for (int r = 0; r < n_rows; r++)
            for (int line = 0; line < 4 * size; line += 64)
                fetch(w + (size_t)r * row_bytes + (size_t)(4 * k * size + line));
        small_four(type, acc, scales, (const float(*)[VEC])single, w + (size_t)(4 * k * size), row_bytes, n_rows,
                   piece + k * 2 * PIECE, k);
    }
    if (4 * k < n_blocks) { /* what is left of four blocks, with blocks of zeros */
        uint8_t four[ROWS][4 * Q8_0_BYTES] = {{0}};
        for (int r = 0; r < n_rows; r++)
            memcpy(four[r], w + (size_t)r * row_bytes + (size_t)(4 * k * size), (size_t)((n_blocks - 4 * k) * size));
        small_four(type, acc, scales, (const float(*)[VEC])single, four[0], sizeof four[0], n_rows, piece + k * 2 * PIECE, k);
    }
}

INLINE void small_rows(enum butler_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows,
                       const struct fixed_x *x, int n)
{
    const int n_blocks = n / BLOCK;
    vec acc[ROWS], rest[ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r] = rest[r] = vec_zero();
    int b = 0;
    for (; b + VEC <= n_blocks; b += VEC)
        small_chunk(type, acc, rest, w + (size_t)(b * small_bytes(type)), row_bytes, n_rows, x, b, VEC);
    if (b < n_blocks)
        small_chunk(type, acc, rest, w + (size_t)(b * small_bytes(type)), row_bytes, n_rows, x, b, n_blocks - b);
    for (int r = 0; r < n_rows && type != BUTLER_Q8_0; r++)
        acc[r] = has_minimum(type) ? vec_add(acc[r], rest[r]) : vec_fnma(rest[r], vec_set1(zero_of(type)), acc[r]);
    put_sums(y, y_step, acc, n_rows);
}

/* ---------------------------------------------------------------------------------------- blocks of 256 */

INLINE int super_size(enum butler_type type)
{
    return type == BUTLER_Q4_K ? Q4_K_BYTES : type == BUTLER_Q5_K ? Q5_K_BYTES : Q6_K_BYTES;
}

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
INLINE void k_half(__m512i *even, __m512i *odd, enum butler_type type, const uint8_t *w, int half)
{
    const __m512i bytes = _mm512_loadu_si512(w + (type == BUTLER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + half * 64);
    *even = low_nibbles(bytes);
    *odd = high_nibbles(bytes);
    if (type == BUTLER_Q5_K) {
        /* Rotated until the bit in question is bit 4 of its byte; what crosses into other bytes is masked away. */
        const __m512i fifths = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(w + Q5_K_HIGH)));
        const int a = (36 - 4 * half) % 32, b = (34 - 4 * half) % 32;
        const __m512i turn = _mm512_setr_epi32(a, a, a, a, a, a, a, a, b, b, b, b, b, b, b, b);
        const __m512i turn1 = _mm512_sub_epi32(turn, _mm512_set1_epi32(1)), bit = _mm512_set1_epi8(16);
        *even = _mm512_or_si512(*even, _mm512_and_si512(_mm512_rolv_epi32(fifths, turn), bit));
        *odd = _mm512_or_si512(*odd, _mm512_and_si512(_mm512_rolv_epi32(fifths, turn1), bit));
    }
}

/* Half a block of Q6_K: columns 0..63 and 64..127 of it. */
INLINE void q6_half(__m512i *low, __m512i *high, const uint8_t *w, int half)
{
    const __m512i bytes = _mm512_loadu_si512(w + half * 64), two = _mm512_set1_epi8(0x30);
    const __m512i pairs = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i *)(w + Q6_K_HIGH + half * 32)));
    const __m512i turn = _mm512_setr_epi32(4, 4, 4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 2, 2);
    const __m512i turn4 = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 30, 30, 30, 30, 30, 30, 30, 30);
    *low = _mm512_or_si512(low_nibbles(bytes), _mm512_and_si512(_mm512_rolv_epi32(pairs, turn), two));
    *high = _mm512_or_si512(high_nibbles(bytes), _mm512_and_si512(_mm512_rolv_epi32(pairs, turn4), two));
}

/* One block of a row. Scaled minima gather in the upper lanes of rest; what is in its lower ones is of no use. */
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
        const int8_t *piece = x->pieces + (size_t)first * 2 + half * 2 * PIECE;
        __m512i a, b;
        if (six)
            q6_half(&a, &b, w, half);
        else
            k_half(&a, &b, type, w, half);
        acc[0] = vec_fma(dot_one(a, piece), six ? spread4(scales, 8 * half) : spread8(scales, 4 * half, 2), acc[0]);
        acc[1] = vec_fma(dot_one(b, piece + 128), six ? spread4(scales, 8 * half + 4) : spread8(scales, 4 * half + 1, 2), acc[1]);
    }
}

INLINE void super_rows(enum butler_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows,
                       const struct fixed_x *x, int n)
{
    vec acc[ROWS][2], rest[ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r][0] = acc[r][1] = rest[r] = vec_zero();
    for (int i = 0; i < n; i += SUPER, w += super_size(type))
        UNROLL
    for (int r = 0; r < n_rows; r++) {
        for (int line = 0; line < super_size(type); line += 64)
            fetch(w + (size_t)r * row_bytes + line);
        super_block(type, acc[r], &rest[r], w + (size_t)r * row_bytes, x, i);
    }
    vec sum[ROWS];
    for (int r = 0; r < n_rows; r++) {
        sum[r] = vec_add(acc[r][0], acc[r][1]);
        sum[r] =
            type == BUTLER_Q6_K ? vec_fnma(rest[r], vec_set1(32), sum[r]) : vec_sub(sum[r], _mm512_maskz_mov_ps(0xff00, rest[r]));
    }
    put_sums(y, y_step, sum, n_rows);
}

/* ---------------------------------------------------------------------------------------------- entries */

#define WEIGHT_TYPE(name, family, type)                                                                                            \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const void *fixed, int n)                       \
    {                                                                                                                              \
        const struct fixed_x x = fixed_parts(fixed, n);                                                                            \
        const int quarter = n_rows / ROWS;                                                                                         \
        const uint8_t *rows = w;                                                                                                   \
        for (int r = 0; r < quarter; r++)                                                                                          \
            family##_rows(type, y + r, quarter, rows + (size_t)r * row_bytes, (size_t)quarter * row_bytes, ROWS, &x, n);           \
        for (int r = quarter * ROWS; r < n_rows; r++)                                                                              \
            family##_rows(type, y + r, 0, rows + (size_t)r * row_bytes, 0, 1, &x, n);                                              \
    }

WEIGHT_TYPE(q8_0, small, BUTLER_Q8_0)
WEIGHT_TYPE(q4_0, small, BUTLER_Q4_0)
WEIGHT_TYPE(q4_1, small, BUTLER_Q4_1)
WEIGHT_TYPE(q5_0, small, BUTLER_Q5_0)
WEIGHT_TYPE(q5_1, small, BUTLER_Q5_1)
WEIGHT_TYPE(q4_k, super, BUTLER_Q4_K)
WEIGHT_TYPE(q5_k, super, BUTLER_Q5_K)
WEIGHT_TYPE(q6_k, super, BUTLER_Q6_K)

void butler_kernels_weights_vnni(struct butler_kernels *table)
{
    table->fixed = true;
    table->fix = fix;
    table->gemv_fixed[BUTLER_Q8_0] = gemv_q8_0;
    table->gemv_fixed[BUTLER_Q4_0] = gemv_q4_0;
    table->gemv_fixed[BUTLER_Q4_1] = gemv_q4_1;
    table->gemv_fixed[BUTLER_Q5_0] = gemv_q5_0;
    table->gemv_fixed[BUTLER_Q5_1] = gemv_q5_1;
    table->gemv_fixed[BUTLER_Q4_K] = gemv_q4_k;
    table->gemv_fixed[BUTLER_Q5_K] = gemv_q5_k;
    table->gemv_fixed[BUTLER_Q6_K] = gemv_q6_k;
}
#endif
