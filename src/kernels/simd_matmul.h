/* Products of quantised weights with activations in 16-bit integers (kernels.h, matmul_q16), written once for AVX2 and AVX-512
 * VNNI. Weights are read as they lie in the file and unpacked in registers: to bytes, which meet the high and the low bytes of one
 * token, or to words, which cost more to unpack and less to multiply, for TOKENS of them.
 *
 * A unit is 32 columns (Q2_K, Q3_K, Q6_K: 16) that share one scale. A step takes UNITS units of four rows: their products with a
 * token are integers, four lanes a unit and row; three additions of shuffled vectors reduce four such vectors, one a row, into one
 * that has the exact sum of unit u and row r in lane 4 u + r. One multiplication by the scales then serves UNITS units of four
 * rows, and lane 4 u + r accumulates the units u, u + UNITS, ... of row r in their order. That is the same whatever the number of
 * tokens.
 *
 * The four rows are a quarter of the matrix apart: simd_weights.h says why.
 *
 * The file that includes this has, `bytes` being its vector of BYTES = 4 VEC bytes and `ints` the same as VEC integers:
 *   load_bytes(p), load_ints(p), add_ints(a, b), ints_to_floats(v)
 *   quantise16(q, x, inverse, most)    16 numbers times inverse, to nearest, NaN to -most; returns their sum
 *   load_weights(type, w, row, step)   step `step` of a row's chunk: w[0] the first 16 columns of each unit, w[1] the others
 *   widen_weights(type, words, w)      the same as signed words: words[k] columns [8 k, 8 k + 8) of each unit
 *   dots(type, w, x)                   products of bytes with one token's step: four lanes a unit
 *   low_dots(type, w, x)               the same where high bytes are 0
 *   word_dots(type, words, x)          products of words with a step of one of many tokens: the same
 *   sum_rows(v)                        of four vectors the sums of each four lanes, as above
 *   halves_of_rows(p, row_bytes, size) the half at p + r row_bytes + u size in lane 4 u + r
 *   exponents_of_rows(p, row_bytes, size) the same of bytes as mxfp4_scale() reads them
 *   spread_rows(v)                     four floats, repeated
 *   q8_zero                            what is added to weights of eight_bits() to have no sign, or 0 where they keep it: then
 *                                      w[u] of load_weights is all of unit u
 *   store_rows(sums, v)                sums[r] = sum over u of lane 4 u + r */
#ifndef BUTLER_SIMD_MATMUL_H
#define BUTLER_SIMD_MATMUL_H

enum {
    ROWS = 4,
    TOKENS = 16, /* that meet weights together: their 16-bit integers stay in the first-level cache for most row lengths */
    UNITS = VEC / 4,
    MAX_STEPS = 16 / UNITS, /* of a chunk */
    CHUNK_BYTES = 256,      /* of a row's chunk, at least */
    NEAR = 512,             /* prefetch distance in bytes for the first-level cache, */
    FAR = 1536,             /* and for the second: that keeps more cache lines under way. Beyond a row's end lie the next rows. */
};

/* What q16 has for a step: for a token alone high and low bytes of 16 columns of each unit, then of the other 16; for one of many
 * words of 8 columns of each unit, then of the next 8. Behind that each unit's scale four times; and four times, for types with
 * minima, scale times sum, for others, as an integer, the sum times what bytes of weights have too much. */
INLINE int step_vectors(enum butler_type type)
{
    return narrow_units(type) ? 2 : 4;
}

INLINE size_t step_bytes(enum butler_type type)
{
    return (size_t)step_vectors(type) * BYTES + 2 * VEC * sizeof(float);
}

INLINE bool is_super(enum butler_type type)
{
    return butler_type_block(type) == SUPER;
}

/* The weights of a chunk get their scales together: a step of blocks of 32, or a block of 256. */
INLINE int chunk_steps(enum butler_type type)
{
    return is_super(type) ? (narrow_units(type) ? 16 : 8) / UNITS : 1;
}

INLINE int chunk_columns(enum butler_type type)
{
    return is_super(type) ? SUPER : UNITS * BLOCK;
}

INLINE size_t chunk_bytes(enum butler_type type)
{
    return (size_t)butler_type_bytes(type) * (is_super(type) ? 1 : UNITS);
}

/* The stored integer of weight 0, in a type without minimum. */
INLINE int zero_of(enum butler_type type)
{
    return type == BUTLER_Q4_0    ? 8
           : type == BUTLER_Q5_0  ? 16
           : type == BUTLER_Q3_K  ? 4
           : type == BUTLER_Q6_K  ? 32
           : type == BUTLER_MXFP4 ? 12
           : type == BUTLER_TQ1_0 ? 1
           : type == BUTLER_TQ2_0 ? 1
           : eight_bits(type)     ? q8_zero
                                  : 0;
}

/* ------------------------------------------------------------------------------------------ activations */

INLINE void put_unit(int8_t *step, enum butler_type type, int unit, float scale, int32_t sum)
{
    float *scales = (float *)(step + (size_t)step_vectors(type) * BYTES) + 4 * unit;
    for (int i = 0; i < 4; i++) {
        scales[i] = scale;
        if (has_minimum(type))
            scales[VEC + i] = scale * (float)sum;
        else
            ((int32_t *)scales)[VEC + i] = -zero_of(type) * sum;
    }
}

/* Columns [16 half, 16 half + 16) of a unit of 32, or all of one of 16. */
INLINE void put_columns(int8_t *step, enum butler_type type, int unit, int half, const int16_t q[16], bool alone)
{
    int8_t *to = step + half * 2 * BYTES;
    if (!alone) {
        memcpy(to + unit * 16, q, 16);
        memcpy(to + BYTES + unit * 16, q + 8, 16);
    } else if (eight_bits(type) && !q8_zero)
        memcpy(step + unit * 64 + half * 32, q, 32); /* weights are widened to words here, too */
    else
        split_words(to + unit * 16, to + BYTES + unit * 16, q);
}

/* Columns beyond n are 0, their scales too. */
static void quantise_q16(void *q16, enum butler_type type, const float *x, int n, bool alone, float most)
{
    static const float zeros[BLOCK] = {0};
    const int n_blocks = BUTLER_CEIL_DIV(n, chunk_columns(type)) * (chunk_columns(type) / BLOCK);
    for (int b = 0; b < n_blocks; b++) {
        const float *from = b * BLOCK < n ? x + (size_t)b * BLOCK : zeros;
        float inverse;
        const float scale = scale32(from, most, &inverse);
        int16_t q[BLOCK];
        const int32_t sum[2] = {quantise16(q, from, inverse, most), quantise16(q + 16, from + 16, inverse, most)};
        for (int half = 0; half < 2; half++) {
            const int u = narrow_units(type) ? 2 * b + half : b;
            int8_t *step = (int8_t *)q16 + (size_t)(u / UNITS) * step_bytes(type);
            put_columns(step, type, u % UNITS, narrow_units(type) ? 0 : half, q + 16 * half, alone);
            if (narrow_units(type))
                put_unit(step, type, u % UNITS, scale, sum[half]);
            else if (half == 1)
                put_unit(step, type, u % UNITS, scale, sum[0] + sum[1]);
        }
    }
}

/* -------------------------------------------------------------------------------------------- weights */

/* v[i]: number j of row r in byte 4 (j - 4 i) + r. */
INLINE void bytes_of_rows(bytes16 v[4], const bytes16 rows[ROWS])
{
    const bytes16 a = _mm_unpacklo_epi8(rows[0], rows[1]), b = _mm_unpacklo_epi8(rows[2], rows[3]);
    const bytes16 c = _mm_unpackhi_epi8(rows[0], rows[1]), d = _mm_unpackhi_epi8(rows[2], rows[3]);
    v[0] = _mm_unpacklo_epi16(a, b);
    v[1] = _mm_unpackhi_epi16(a, b);
    v[2] = _mm_unpacklo_epi16(c, d);
    v[3] = _mm_unpackhi_epi16(c, d);
}

INLINE vec half_of_rows(const uint8_t *p, size_t row_bytes)
{
    const int64_t words = (int64_t)((uint64_t)load_u16(p) | (uint64_t)load_u16(p + row_bytes) << 16 |
                                    (uint64_t)load_u16(p + 2 * row_bytes) << 32 | (uint64_t)load_u16(p + 3 * row_bytes) << 48);
    return spread_rows(_mm_cvtph_ps(_mm_cvtsi64_si128(words)));
}

/* The scales of a block's groups before d, and the minima of eight groups behind the scales. */
INLINE bytes16 group_scales(enum butler_type type, const uint8_t *b)
{
    uint64_t words[2] = {0};
    if (type == BUTLER_Q2_K)
        return _mm_and_si128(bytes16_load(b), _mm_set1_epi8(15));
    if (type == BUTLER_Q6_K)
        return bytes16_load(b + Q6_K_SCALES);
    if (type == BUTLER_TQ2_0)
        return _mm_set1_epi8(1);
    if (type == BUTLER_Q4_K || type == BUTLER_Q5_K)
        return k_scales(b + Q4_K_SCALES);
    if (type == BUTLER_Q3_K)
        unpack_q3_scales(b + Q3_K_SCALES, words);
    else
        words[0] = unpack_iq4_scales(b + IQ4_XS_SCALES);
    return _mm_set_epi64x((long long)words[1], (long long)words[0]);
}

INLINE int scale_at(enum butler_type type)
{
    return type == BUTLER_Q2_K    ? Q2_K_SCALE
           : type == BUTLER_Q3_K  ? Q3_K_SCALE
           : type == BUTLER_Q6_K  ? Q6_K_SCALE
           : type == BUTLER_TQ2_0 ? TQ2_0_SCALE
                                  : 0;
}

/* Scales of a chunk's steps, and minima: unit u of row r in lane 4 u + r. */
INLINE void load_scales(enum butler_type type, vec scales[MAX_STEPS], vec minima[MAX_STEPS], const uint8_t *w, size_t row_bytes)
{
    const size_t size = (size_t)butler_type_bytes(type);
    if (!is_super(type)) {
        scales[0] = type == BUTLER_MXFP4 ? exponents_of_rows(w, row_bytes, size) : halves_of_rows(w, row_bytes, size);
        if (has_minimum(type))
            minima[0] = halves_of_rows(w + 2, row_bytes, size);
        return;
    }
    bytes16 rows[ROWS], quants[4];
    UNROLL
    for (int r = 0; r < ROWS; r++)
        rows[r] = group_scales(type, w + (size_t)r * row_bytes);
    bytes_of_rows(quants, rows);
    const vec d = half_of_rows(w + scale_at(type), row_bytes);
    UNROLL
    for (int s = 0; s < chunk_steps(type); s++)
        scales[s] = vec_mul(d, vec_from_i8(quants[s * UNITS / 4], s % (4 / UNITS)));
    if (!has_minimum(type))
        return;
    if (narrow_units(type)) { /* Q2_K: the high nibbles of the same bytes */
        UNROLL
        for (int r = 0; r < ROWS; r++)
            rows[r] = _mm_and_si128(_mm_srli_epi16(bytes16_load(w + (size_t)r * row_bytes), 4), _mm_set1_epi8(15));
        bytes_of_rows(quants, rows);
    }
    const int first = narrow_units(type) ? 0 : 2;
    const vec m = vec_sub(vec_zero(), half_of_rows(w + scale_at(type) + 2, row_bytes));
    UNROLL
    for (int s = 0; s < chunk_steps(type); s++)
        minima[s] = vec_mul(m, vec_from_i8(quants[first + s * UNITS / 4], s % (4 / UNITS)));
}

/* Rows of weights, `bytes` apart. Two words, so that functions that are not inlined get them in registers. */
struct weight_rows {
    const uint8_t *at;
    size_t bytes;
};

/* Which bytes of weights meet: those of one token, the low ones of few tokens, each quantised alone, or words of many. */
enum form { ALONE, LOW, WORDS };

/* A chunk of four rows with one token, or with n_tokens of them, x_bytes apart. Of blocks of 32, units from n_units on are of
 * another row and do not count, whatever their scales are. */
INLINE void chunk(enum butler_type type, vec *acc, struct weight_rows w, int n_units, const int8_t *x, size_t x_bytes, int n_tokens,
                  enum form form)
{
    vec scales[MAX_STEPS], minima[MAX_STEPS];
    load_scales(type, scales, minima, w.at, w.bytes);
    if (!is_super(type) && n_units < UNITS) {
        scales[0] = vec_keep(scales[0], vec_zero(), 4 * n_units);
        if (has_minimum(type))
            minima[0] = vec_keep(minima[0], vec_zero(), 4 * n_units);
    }
    UNROLL
    for (int s = 0; s < chunk_steps(type); s++) {
        bytes weights[ROWS][2], words[ROWS][4];
        UNROLL
        for (int r = 0; r < ROWS; r++) {
            load_weights(type, weights[r], w.at + (size_t)r * w.bytes, s);
            if (form == WORDS)
                widen_weights(type, words[r], weights[r]);
        }
        for (int t = 0; t < n_tokens; t++) {
            const int8_t *step = x + (size_t)t * x_bytes + (size_t)s * step_bytes(type);
            const float *x_scales = (const float *)(step + (size_t)step_vectors(type) * BYTES), *rest = x_scales + VEC;
            ints products[ROWS];
            UNROLL
            for (int r = 0; r < ROWS; r++)
                products[r] = form == ALONE ? dots(type, weights[r], step)
                              : form == LOW ? low_dots(type, weights[r], step)
                                            : word_dots(type, words[r], step);
            ints sum = sum_rows(products);
            if (form != WORDS && zero_of(type))
                sum = add_ints(sum, load_ints(rest));
            acc[t] = vec_fma(ints_to_floats(sum), vec_mul(scales[s], vec_load(x_scales)), acc[t]);
            if (has_minimum(type))
                acc[t] = vec_fma(minima[s], vec_load(rest), acc[t]);
        }
    }
}

INLINE void prefetch_chunk(enum butler_type type, const uint8_t *w, size_t row_bytes)
{
    for (int r = 0; r < ROWS; r++)
        for (size_t line = 0; line < chunk_bytes(type); line += 64) {
            const uintptr_t p = (uintptr_t)w + (size_t)r * row_bytes + line;
            prefetch_second((const void *)(p + FAR));
            prefetch((const void *)p, NEAR);
        }
}

INLINE bytes16 triple(bytes16 v)
{
    return _mm_add_epi8(v, _mm_add_epi8(v, v));
}

/* 3 v / 256: how many of 86 and 171 a byte reaches. */
INLINE bytes16 first_digits(bytes16 v)
{
    const bytes16 one = _mm_cmpeq_epi8(_mm_max_epu8(v, _mm_set1_epi8(86)), v);
    const bytes16 two = _mm_cmpeq_epi8(_mm_max_epu8(v, _mm_set1_epi8((char)171)), v);
    return _mm_sub_epi8(_mm_setzero_si128(), _mm_add_epi8(one, two));
}

/* A TQ1_0 block as one of TQ2_0: its digits as tq1_digits() reads them, 16 elements a vector, then packed to pairs of bits. */
INLINE void tq2_of_tq1(uint8_t *out, const uint8_t *block)
{
    bytes16 q[16], v = _mm_set1_epi32((int)load_u32(block + 48));
    v = _mm_blend_epi16(v, triple(v), 0xfc); /* four bytes times 1, 3, 9 and 27 */
    v = _mm_blend_epi16(v, triple(v), 0xf0);
    q[15] = first_digits(_mm_blend_epi16(v, triple(v), 0xc0));
    UNROLL
    for (int i = 0; i < 3; i++) {
        v = bytes16_load(block + i * 16);
        UNROLL
        for (int r = 0; r < 5; r++, v = triple(v))
            q[i < 2 ? 2 * r + i : 10 + r] = first_digits(v);
    }
    UNROLL
    for (int i = 0; i < 4; i++) {
        const bytes16 *of_four = q + i / 2 * 8 + i % 2;
        const bytes16 low = _mm_or_si128(of_four[0], _mm_slli_epi16(of_four[2], 2));
        const bytes16 high = _mm_or_si128(of_four[4], _mm_slli_epi16(of_four[6], 2));
        _mm_storeu_si128((__m128i *)(out + i * 16), _mm_or_si128(low, _mm_slli_epi16(high, 4)));
    }
    memcpy(out + TQ2_0_SCALE, block + TQ1_0_SCALE, 2);
}

struct q16_tokens {
    const int8_t *at;
    int n;
    enum form form;
};

/* n_rows rows, ROWS or fewer: what is missing, and what a last chunk lacks, is filled up with zeros in a copy. is_followed: each
 * row has another one behind it, which may be read instead. y: the results of a token, `step` apart. */
INLINE void rows_with_tokens(enum butler_type type, struct butler_results y, size_t step, struct weight_rows rows, int n_rows,
                             bool is_followed, struct q16_tokens x, int n)
{
    const size_t x_bytes = butler_q16_bytes(n), size = chunk_bytes(type);
    const int columns = chunk_columns(type);
    const uint8_t *w = rows.at;
    const int8_t *at = x.at;
    vec acc[TOKENS];
    for (int t = 0; t < x.n; t++)
        acc[t] = vec_zero();
    for (int c = 0; c < n; c += columns) {
        uint8_t copy[ROWS][CHUNK_BYTES];
        const uint8_t *from = w;
        size_t stride = rows.bytes;
        if (x.form != WORDS)
            prefetch_chunk(type, w, rows.bytes);
        const bool is_part = n - c < columns && (!is_followed || n < columns);
        if (n_rows < ROWS || is_part || type == BUTLER_TQ1_0) {
            if (n_rows < ROWS || is_part)
                memset(copy, 0, sizeof copy);
            for (int r = 0; r < n_rows; r++)
                if (type == BUTLER_TQ1_0)
                    tq2_of_tq1(copy[r], w + (size_t)r * rows.bytes);
                else
                    memcpy(copy[r], w + (size_t)r * rows.bytes,
                           is_super(type) ? size : (size_t)(BUTLER_MIN(n - c, columns) / BLOCK * butler_type_bytes(type)));
            from = copy[0];
            stride = CHUNK_BYTES;
        }
        chunk(type == BUTLER_TQ1_0 ? BUTLER_TQ2_0 : type, acc, (struct weight_rows){from, stride}, (n - c) / BLOCK, at, x_bytes,
              x.n, x.form);
        w += size;
        at += (size_t)chunk_steps(type) * step_bytes(type);
    }
    for (int t = 0; t < x.n; t++) {
        float sums[ROWS];
        store_rows(sums, acc[t]);
        for (int r = 0; r < n_rows; r++)
            y.at[(size_t)t * y.stride + (size_t)r * step] = sums[r];
    }
}

/* -------------------------------------------------------------------------------------------- entries */

typedef void rows_fn(struct butler_results y, size_t step, struct weight_rows w, int n_rows, bool is_followed, const int8_t *x,
                     int n_tokens, int n);

static void each_rows(rows_fn *one, rows_fn *some, struct butler_results y, struct weight_rows w, int n_rows, const int8_t *x,
                      int n_tokens, int n)
{
    const int quarter = n_rows / ROWS, rest = n_rows % ROWS;
    rows_fn *rows = n_tokens == 1 ? one : some;
    for (int t = 0, count; t < n_tokens; t += count, y.at += (size_t)count * y.stride, x += (size_t)count * butler_q16_bytes(n)) {
        count = BUTLER_MIN(TOKENS, n_tokens - t);
        for (int r = 0; r < quarter; r++)
            rows((struct butler_results){y.at + r, y.stride}, (size_t)quarter,
                 (struct weight_rows){w.at + (size_t)r * w.bytes, (size_t)quarter * w.bytes}, ROWS, r + 1 < quarter || rest, x,
                 count, n);
        if (rest)
            rows((struct butler_results){y.at + n_rows - rest, y.stride}, 1,
                 (struct weight_rows){w.at + (size_t)(n_rows - rest) * w.bytes, w.bytes}, rest, false, x, count, n);
    }
}

#define MATMUL(name, type)                                                                                                         \
    static void name##_one(struct butler_results y, size_t step, struct weight_rows w, int n_rows, bool is_followed,               \
                           const int8_t *x, int n_tokens, int n)                                                                   \
    {                                                                                                                              \
        (void)n_tokens;                                                                                                            \
        rows_with_tokens(type, y, step, w, n_rows, is_followed, (struct q16_tokens){x, 1, ALONE}, n);                              \
    }                                                                                                                              \
    static void name##_some(struct butler_results y, size_t step, struct weight_rows w, int n_rows, bool is_followed,              \
                            const int8_t *x, int n_tokens, int n)                                                                  \
    {                                                                                                                              \
        rows_with_tokens(type, y, step, w, n_rows, is_followed, (struct q16_tokens){x, n_tokens, WORDS}, n);                       \
    }                                                                                                                              \
    static void name(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16, int n_tokens, int n) \
    {                                                                                                                              \
        each_rows(name##_one, name##_some, (struct butler_results){y, y_stride}, (struct weight_rows){w, row_bytes}, n_rows, q16,  \
                  n_tokens, n);                                                                                                    \
    }

MATMUL(matmul_q8_0, BUTLER_Q8_0)
MATMUL(matmul_q4_0, BUTLER_Q4_0)
MATMUL(matmul_q4_1, BUTLER_Q4_1)
MATMUL(matmul_q5_0, BUTLER_Q5_0)
MATMUL(matmul_q5_1, BUTLER_Q5_1)
MATMUL(matmul_q4_k, BUTLER_Q4_K)
MATMUL(matmul_q5_k, BUTLER_Q5_K)
MATMUL(matmul_q6_k, BUTLER_Q6_K)
MATMUL(matmul_q2_k, BUTLER_Q2_K)
MATMUL(matmul_q3_k, BUTLER_Q3_K)
MATMUL(matmul_iq4_nl, BUTLER_IQ4_NL)
MATMUL(matmul_iq4_xs, BUTLER_IQ4_XS)
MATMUL(matmul_mxfp4, BUTLER_MXFP4)
MATMUL(matmul_tq1_0, BUTLER_TQ1_0)
MATMUL(matmul_tq2_0, BUTLER_TQ2_0)
#undef MATMUL

INLINE void fill_matmul(struct butler_kernels *table)
{
    table->q16 = true;
    table->quantise_q16 = quantise_q16;
    table->matmul_q16[BUTLER_Q8_0] = matmul_q8_0;
    table->matmul_q16[BUTLER_Q4_0] = matmul_q4_0;
    table->matmul_q16[BUTLER_Q4_1] = matmul_q4_1;
    table->matmul_q16[BUTLER_Q5_0] = matmul_q5_0;
    table->matmul_q16[BUTLER_Q5_1] = matmul_q5_1;
    table->matmul_q16[BUTLER_Q4_K] = matmul_q4_k;
    table->matmul_q16[BUTLER_Q5_K] = matmul_q5_k;
    table->matmul_q16[BUTLER_Q6_K] = matmul_q6_k;
    table->matmul_q16[BUTLER_Q2_K] = matmul_q2_k;
    table->matmul_q16[BUTLER_Q3_K] = matmul_q3_k;
    table->matmul_q16[BUTLER_IQ4_NL] = matmul_iq4_nl;
    table->matmul_q16[BUTLER_IQ4_XS] = matmul_iq4_xs;
    table->matmul_q16[BUTLER_MXFP4] = matmul_mxfp4;
    table->matmul_q16[BUTLER_TQ1_0] = matmul_tq1_0;
    table->matmul_q16[BUTLER_TQ2_0] = matmul_tq2_0;
}

#endif
