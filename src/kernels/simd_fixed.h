/* Products of quantised weights with activations in 16-bit fixed point (kernels.h, fix), written once for every vector width:
 * included by weights_vnni.c and weights_avx2.c behind their vector and the operations below. Weights stay the small integers
 * that they are, so that a product costs half of what widening to floats does.
 *
 * Weights of 4 to 6 bits are unsigned bytes, a vector of them meeting activations as high and low bytes. What is to be subtracted
 * from a weight (8 of Q4_0) or added (a minimum) meets the sums of activations, a vector of blocks at a time. Weights of 8 bits are
 * widened to words, so that they keep their sign.
 *
 * Four rows, a quarter of the matrix apart, go together: simd_weights.h says why.
 *
 * The file that includes this has, `bytes` being its vector of BYTES = 4 VEC bytes:
 *   fix16(q, x, inverse)                    16 numbers times inverse to whole ones, a NaN to the least; their sum
 *   scale32(x, most, &inverse), split_words(high, low, q)   of 32 numbers in fixed point; 16 words as high and low bytes
 * (vec_x86.h) words_dot(weights, x)                   32 signed bytes with 32 words: sums of four load_bytes(p) a vector of bytes
 *   dot_two(w0, w1, x, low)                 unsigned bytes with x[0], high bytes for w0, x[1], low bytes for w0, then those for
 *                                           w1, or with the low bytes alone: sums over the four bytes of a lane of each
 *   lane_of(block)                          the lane that has what belongs to a block, of VEC; in_lanes(v) puts VEC of them there
 *   small_halves(w, size, n_blocks)         the halves at w, w + size, ... of VEC blocks at most, in the lanes of their blocks
 *   spread_group(v, k)                      four lanes for each of the VEC / 4 blocks from block k on
 *   small_nibbles(low, high, quants, size)  16 bytes of nibbles of each of VEC / 4 blocks
 *   small_fifths(low, high, fifths, size)   adds the fifth bits of as many
 *   super_block, super_total                a block of 256 of a row, and what it all adds up to
 *   put_sums(y, y_step, v, n_rows)          y[r * y_step] = sum of lanes of v[r], in one order whatever n_rows */
#ifndef BUTLER_SIMD_FIXED_H
#define BUTLER_SIMD_FIXED_H

enum {
    ROWS = 4,
    SOON = 512,      /* bytes ahead: a row is fetched into the first-level cache from here on, */
    LATER = 1536,    /* and into the second from here: that keeps more lines under way. Beyond its end lie the next rows. */
    GROUP = VEC / 4, /* blocks of 32 whose nibbles fill a vector */
};

enum { PIECE = 2 * BYTES /* columns whose activations lie together, as words or in both vectors of bytes */ };

/* How a type wants its activations: 16 columns after 16 in the order in which vectors of its weights have them. */
enum order { WORDS, SIXTEENS, THIRTY_TWOS, AS_THEY_ARE };

INLINE enum order order_of(enum butler_type type)
{
    return type == BUTLER_Q8_0                          ? WORDS
           : type == BUTLER_Q4_K || type == BUTLER_Q5_K ? THIRTY_TWOS
           : type == BUTLER_Q6_K                        ? AS_THEY_ARE
                                                        : SIXTEENS;
}

/* ------------------------------------------------------------------------------------------ activations */

/* 16 columns, number `part` of a piece: in both of its vectors, high bytes and low bytes, one place. */
INLINE void put_bytes(int8_t *piece, enum order order, int part, const int16_t q[16])
{
    enum { PLACES = BYTES / 16 };
    const int at = order == SIXTEENS                     ? part / 2 + part % 2 * PLACES
                   : order == THIRTY_TWOS && PLACES == 4 ? part / 4 * 2 + part % 4 / 2 * 4 + part % 2
                                                         : part;
    int8_t *high = piece + at / PLACES * 2 * BYTES + at % PLACES * 16, *low = high + BYTES;
    split_words(high, low, q);
}

static void fix(void *fixed, enum butler_type type, const float *x, int n)
{
    const struct fixed_x parts = fixed_parts(fixed, n, false);
    const enum order order = order_of(type);
    float *scales = (float *)parts.scales, *sums = (float *)parts.sums;
    const int n_blocks = BUTLER_CEIL_DIV(n, PIECE) * (PIECE / BLOCK);
    for (int b = 0; b < n_blocks; b++) {
        static const float none[BLOCK] = {0};
        const float *from = b * BLOCK < n ? x + (size_t)b * BLOCK : none;
        float inverse;
        const float scale = scale32(from, BUTLER_FIXED_MOST, &inverse);
        int8_t *piece = (int8_t *)parts.pieces + (size_t)(b / (PIECE / BLOCK)) * 2 * PIECE;
        const int part = b % (PIECE / BLOCK) * 2;
        int16_t q[BLOCK];
        const int32_t sum[2] = {fix16(q, from, inverse), fix16(q + 16, from + 16, inverse)};
        if (order == WORDS)
            memcpy(piece + part * 32, q, sizeof q);
        for (int half = 0; half < 2 && order != WORDS; half++)
            put_bytes(piece, order, part + half, q + 16 * half);
        scales[b] = scale;
        if (type == BUTLER_Q6_K) {
            sums[2 * b] = scale * (float)sum[0];
            sums[2 * b + 1] = scale * (float)sum[1];
        } else
            sums[b] = scale * ((float)sum[0] + (float)sum[1]);
    }
}

/* ----------------------------------------------------------------------------------------- blocks of 32 */

INLINE void fetch(const uint8_t *p)
{
    prefetch_second((const void *)((uintptr_t)p + LATER));
    prefetch(p, SOON);
}

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

/* GROUP blocks of n_rows rows from block k of a chunk on. scales: of the chunk's blocks, a vector a row, also as numbers; both in
 * the order of lane_of. */
INLINE void small_group(enum butler_type type, vec acc[ROWS], const vec scales[ROWS], const float (*single)[VEC], const uint8_t *w,
                        size_t row_bytes, int n_rows, const int8_t *x, bool low, int k)
{
    const int size = small_bytes(type);
    UNROLL
    for (int b = 0; b < GROUP && type == BUTLER_Q8_0; b++)
        UNROLL
    for (int r = 0; r < n_rows; r++)
        acc[r] = vec_fma(words_dot(w + (size_t)r * row_bytes + (size_t)(b * size + Q8_0_QUANTS), x + b * 2 * BLOCK),
                         vec_set1(single[r][lane_of(k + b)]), acc[r]);
    if (type == BUTLER_Q8_0)
        return;
    const bytes both[4] = {load_bytes(x), load_bytes(x + BYTES), load_bytes(x + 2 * BYTES), load_bytes(x + 3 * BYTES)};
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        const uint8_t *blocks = w + (size_t)r * row_bytes;
        bytes nibbles, highs;
        small_nibbles(&nibbles, &highs, blocks + size - 16, size);
        if (type == BUTLER_Q5_0 || type == BUTLER_Q5_1)
            small_fifths(&nibbles, &highs, blocks + (type == BUTLER_Q5_0 ? Q5_0_HIGH : Q5_1_HIGH), size);
        acc[r] = vec_fma(dot_two(nibbles, highs, both, low), spread_group(scales[r], k), acc[r]);
    }
}

INLINE void fetch_group(const uint8_t *w, size_t row_bytes, int n_rows, int size)
{
    for (int r = 0; r < n_rows; r++)
        for (int line = 0; line < GROUP * size; line += 64)
            fetch(w + (size_t)r * row_bytes + (size_t)line);
}

/* VEC blocks where `whole`, a compile-time constant, or the n_blocks that are left, from block `first` of the rows on, where w is.
 */
INLINE void small_chunk(enum butler_type type, vec acc[ROWS], vec rest[ROWS], const uint8_t *w, size_t row_bytes, int n_rows,
                        const struct fixed_x *x, int first, int n_blocks, bool whole)
{
    const int size = small_bytes(type);
    const vec x_scales = in_lanes(vec_load_some(x->scales + first, n_blocks));
    const vec x_sums = in_lanes(vec_load_some(x->sums + first, n_blocks));
    const int8_t *pieces = x->pieces + (size_t)first * (2 * BLOCK);
    vec scales[ROWS];
    _Alignas(64) float single[ROWS][VEC];
    UNROLL
    for (int r = 0; r < n_rows; r++) {
        const vec d = small_halves(w + (size_t)r * row_bytes, size, n_blocks);
        scales[r] = vec_mul(d, x_scales);
        if (type == BUTLER_Q8_0)
            vec_store(single[r], scales[r]);
        else
            rest[r] = vec_fma(has_minimum(type) ? small_halves(w + (size_t)r * row_bytes + 2, size, n_blocks) : d, x_sums, rest[r]);
    }
    const float(*numbers)[VEC] = (const float(*)[VEC])single;
    int k = 0;
    if (whole && type != BUTLER_Q8_0)
        UNROLL
    for (; k < VEC; k += GROUP) { /* spread_group takes constants; what is fetched stays spread, too */
        fetch_group(w + (size_t)(k * size), row_bytes, n_rows, size);
        small_group(type, acc, scales, numbers, w + (size_t)(k * size), row_bytes, n_rows, pieces + k * 2 * BLOCK, x->low, k);
        __asm__ volatile("" ::: "memory");
    }
    for (; k + GROUP <= n_blocks; k += GROUP) {
        fetch_group(w + (size_t)(k * size), row_bytes, n_rows, size);
        small_group(type, acc, scales, numbers, w + (size_t)(k * size), row_bytes, n_rows, pieces + k * 2 * BLOCK, x->low, k);
    }
    if (!whole && k < n_blocks) { /* what is left of a group, with blocks of zeros */
        uint8_t group[ROWS][GROUP * Q8_0_BYTES] = {{0}};
        for (int r = 0; r < n_rows; r++)
            memcpy(group[r], w + (size_t)r * row_bytes + (size_t)(k * size), (size_t)((n_blocks - k) * size));
        small_group(type, acc, scales, numbers, group[0], sizeof group[0], n_rows, pieces + k * 2 * BLOCK, x->low, k);
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
        small_chunk(type, acc, rest, w + (size_t)(b * small_bytes(type)), row_bytes, n_rows, x, b, VEC, true);
    if (b < n_blocks)
        small_chunk(type, acc, rest, w + (size_t)(b * small_bytes(type)), row_bytes, n_rows, x, b, n_blocks - b, false);
    for (int r = 0; r < n_rows && type != BUTLER_Q8_0; r++)
        acc[r] = has_minimum(type) ? vec_add(acc[r], rest[r]) : vec_fnma(rest[r], vec_set1(zero_of(type)), acc[r]);
    put_sums(y, y_step, acc, n_rows);
}

/* ---------------------------------------------------------------------------------------- blocks of 256 */

INLINE int super_size(enum butler_type type)
{
    return type == BUTLER_Q4_K ? Q4_K_BYTES : type == BUTLER_Q5_K ? Q5_K_BYTES : Q6_K_BYTES;
}

INLINE void super_rows(enum butler_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows,
                       const struct fixed_x *x, int n)
{
    vec acc[ROWS][2], rest[ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r][0] = acc[r][1] = rest[r] = vec_zero();
    for (int i = 0; i < n; i += SUPER, w += super_size(type)) {
        UNROLL
        for (int r = 0; r < n_rows; r++) {
            for (int line = 0; line < super_size(type); line += 64)
                fetch(w + (size_t)r * row_bytes + line);
            super_block(type, acc[r], &rest[r], w + (size_t)r * row_bytes, x, i);
        }
    }
    vec sum[ROWS];
    for (int r = 0; r < n_rows; r++)
        sum[r] = super_total(type, acc[r], rest[r]);
    put_sums(y, y_step, sum, n_rows);
}

/* ---------------------------------------------------------------------------------------------- entries */

#define WEIGHT_TYPE(name, family, type)                                                                                            \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const void *fixed, int n)                       \
    {                                                                                                                              \
        const struct fixed_x x = fixed_parts(fixed, n, false);                                                                     \
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

INLINE void fill_fixed(struct butler_kernels *table)
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
