/* Products of a prompt's tokens with quantised weights in integers, written once for AVX2 and AVX-512 VNNI: integers of weights
 * meet tokens in fixed point, a few neighbours at once: pairs of 16 bits or fours of 8. As many rows as a vector has lanes are
 * turned so that a lane is a row: a few of a token's numbers meet all of them, and there are no sums over lanes. With 16 bits twice
 * the rate of float arithmetic. Included behind the vector and
 *   TOKENS                     that rows meet at a time
 *   STEP, number, MOST         neighbours that meet at once, what a token's are stored as, and the greatest of them
 *   step_weights(steps, q)     of eight rows four integers of weights each become 4 / STEP steps, VEC / 8 from one to the next
 *   store_eight(to, v)         eight of a token's numbers, in the order of steps
 *   start_of(sum)              what a sum of products begins with, by the sum of the token's numbers in it
 *   words_start(start)         the same in all lanes of `words`, integers in a vector
 *   words_spread(x)            STEP numbers in every lane; words_add adds a product of them, words_floats gives floats */
#ifndef BUTLER_SIMD_GEMM_FIXED_H
#define BUTLER_SIMD_GEMM_FIXED_H

enum {
    STEPS = BLOCK / STEP,
    GROUPS = 2, /* of rows that meet tokens together */
};

/* How a type's 32 columns are numbers: x = scale q, scale q + minimum, or scale q and for the second 16 another scale q. */
enum form { PLAIN, MINIMA, HALVES };

/* Block of 32 columns of VEC rows. */
struct turned {
    __m256i steps[STEPS][VEC / 8]; /* of eight rows each */
    vec scales, others;            /* minima, or scales of second halves */
};
_Static_assert(sizeof(struct turned) <= VEC / 8 * BUTLER_TURNED_BYTES, "butler_turned_bytes");
_Static_assert(BUTLER_TURNED_ROWS % (GROUPS * VEC) == 0, "butler_turned_bytes");

/* ------------------------------------------------------------------------------------------------- weights */

/* x[i]: 16 signed bytes of row i, and of row i + 4. Their steps for all eight rows, a row a lane. */
INLINE void turn_steps(__m256i *steps, const __m256i x[4])
{
    const __m256i a = _mm256_unpacklo_epi32(x[0], x[1]), b = _mm256_unpackhi_epi32(x[0], x[1]);
    const __m256i c = _mm256_unpacklo_epi32(x[2], x[3]), d = _mm256_unpackhi_epi32(x[2], x[3]);
    const int apart = 4 / STEP * (VEC / 8);
    step_weights(steps, _mm256_unpacklo_epi64(a, c));
    step_weights(steps + apart, _mm256_unpackhi_epi64(a, c));
    step_weights(steps + 2 * apart, _mm256_unpacklo_epi64(b, d));
    step_weights(steps + 3 * apart, _mm256_unpackhi_epi64(b, d));
}

INLINE enum form form_of(enum butler_type type)
{
    return type == BUTLER_Q4_1 || type == BUTLER_Q5_1 || type == BUTLER_Q4_K || type == BUTLER_Q5_K ? MINIMA
           : type == BUTLER_Q6_K                                                                    ? HALVES
                                                                                                    : PLAIN;
}

/* Bit i of a word in byte i, as 16. */
INLINE __m256i fifths_of(uint32_t bits)
{
    const __m256i place =
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32((int)bits), place), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi8(set, bit), _mm256_set1_epi8(16));
}

/* 32 integers of a block of 32, low nibbles before high ones. */
INLINE __m256i nibbles_of(const uint8_t *quants)
{
    const __m128i both = _mm_loadu_si128((const __m128i *)quants), mask = _mm_set1_epi8(15);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_and_si128(both, mask)), _mm_and_si128(_mm_srli_epi16(both, 4), mask),
                                   1);
}

/* Columns [32 b, 32 b + 32) of a row in their form. */
INLINE __m256i block_of(enum butler_type type, const uint8_t *row, int b, float *scale, float *other)
{
    if (type == BUTLER_Q6_K) {
        const uint8_t *p = row + (size_t)(b / 8) * Q6_K_BYTES;
        const int half = b % 8 / 4, quarter = b % 4;
        const float d = load_half(p + Q6_K_SCALE);
        *scale = d * (float)(int8_t)p[Q6_K_SCALES + b % 8 * 2];
        *other = d * (float)(int8_t)p[Q6_K_SCALES + b % 8 * 2 + 1];
        const __m256i both = _mm256_loadu_si256((const __m256i *)(p + half * 64 + quarter % 2 * 32));
        const __m256i low = _mm256_and_si256(_mm256_srl_epi16(both, _mm_cvtsi32_si128(quarter / 2 * 4)), _mm256_set1_epi8(15));
        const __m256i pairs = _mm256_loadu_si256((const __m256i *)(p + Q6_K_HIGH + half * 32));
        const __m256i high = _mm256_and_si256(_mm256_srl_epi16(pairs, _mm_cvtsi32_si128(quarter * 2)), _mm256_set1_epi8(3));
        return _mm256_sub_epi8(_mm256_or_si256(low, _mm256_slli_epi16(high, 4)), _mm256_set1_epi8(32));
    }
    if (type == BUTLER_Q4_K || type == BUTLER_Q5_K) {
        const uint8_t *p = row + (size_t)(b / 8) * (type == BUTLER_Q4_K ? Q4_K_BYTES : Q5_K_BYTES);
        const int g = b % 8;
        uint8_t scales[8], minima[8];
        unpack_k_scales(p + Q4_K_SCALES, scales, minima);
        *scale = load_half(p) * (float)scales[g];
        *other = -(load_half(p + 2) * (float)minima[g]);
        const __m256i both =
            _mm256_loadu_si256((const __m256i *)(p + (type == BUTLER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + g / 2 * 32));
        const __m256i q = _mm256_and_si256(g % 2 ? _mm256_srli_epi16(both, 4) : both, _mm256_set1_epi8(15));
        if (type == BUTLER_Q4_K)
            return q;
        const __m256i high = _mm256_srl_epi16(_mm256_loadu_si256((const __m256i *)(p + Q5_K_HIGH)), _mm_cvtsi32_si128(g));
        return _mm256_or_si256(q, _mm256_slli_epi16(_mm256_and_si256(high, _mm256_set1_epi8(1)), 4));
    }
    const uint8_t *p = row + (size_t)b * (size_t)(type == BUTLER_Q8_0   ? Q8_0_BYTES
                                                  : type == BUTLER_Q4_0 ? Q4_0_BYTES
                                                  : type == BUTLER_Q4_1 ? Q4_1_BYTES
                                                  : type == BUTLER_Q5_0 ? Q5_0_BYTES
                                                                        : Q5_1_BYTES);
    *scale = load_half(p);
    *other = form_of(type) == MINIMA ? load_half(p + 2) : 0;
    switch (type) {
    case BUTLER_Q4_0:
        return _mm256_sub_epi8(nibbles_of(p + Q4_0_QUANTS), _mm256_set1_epi8(8));
    case BUTLER_Q4_1:
        return nibbles_of(p + Q4_1_QUANTS);
    case BUTLER_Q5_0:
        return _mm256_sub_epi8(_mm256_or_si256(nibbles_of(p + Q5_0_QUANTS), fifths_of(load_u32(p + Q5_0_HIGH))),
                               _mm256_set1_epi8(16));
    case BUTLER_Q5_1:
        return _mm256_or_si256(nibbles_of(p + Q5_1_QUANTS), fifths_of(load_u32(p + Q5_1_HIGH)));
    default:
        return _mm256_loadu_si256((const __m256i *)(p + Q8_0_QUANTS));
    }
}

INLINE void turn_block(enum butler_type type, struct turned *out, const uint8_t *const rows[VEC], int b)
{
    _Alignas(64) float scales[VEC], others[VEC];
    for (int eight = 0; eight < VEC / 8; eight++) {
        __m256i q[8];
        UNROLL
        for (int r = 0; r < 8; r++)
            q[r] = block_of(type, rows[eight * 8 + r], b, &scales[eight * 8 + r], &others[eight * 8 + r]);
        UNROLL
        for (int half = 0; half < 2; half++) {
            __m256i x[4];
            UNROLL
            for (int r = 0; r < 4; r++)
                x[r] = half ? _mm256_permute2x128_si256(q[r], q[r + 4], 0x31) : _mm256_permute2x128_si256(q[r], q[r + 4], 0x20);
            turn_steps(&out->steps[half * STEPS / 2][eight], x);
        }
    }
    out->scales = vec_load(scales);
    out->others = vec_load(others);
}

#define TURN(name, type)                                                                                                           \
    static void turn_##name(void *turned, const void *rows, size_t row_bytes, int n_rows, int n)                                   \
    {                                                                                                                              \
        struct turned *out = turned;                                                                                               \
        for (int r = 0; r < BUTLER_CEIL_DIV(n_rows, GROUPS * VEC) * GROUPS * VEC; r += VEC) {                                      \
            const uint8_t *lanes[VEC];                                                                                             \
            for (int k = 0; k < VEC; k++) /* what is missing repeats a row that exists */                                          \
                lanes[k] = (const uint8_t *)rows + (size_t)BUTLER_MIN(r + k, n_rows - 1) * row_bytes;                              \
            for (int b = 0; b < n / BLOCK; b++)                                                                                    \
                turn_block(type, out++, lanes, b);                                                                                 \
        }                                                                                                                          \
    }
TURN(q8_0, BUTLER_Q8_0)
TURN(q4_0, BUTLER_Q4_0)
TURN(q4_1, BUTLER_Q4_1)
TURN(q5_0, BUTLER_Q5_0)
TURN(q5_1, BUTLER_Q5_1)
TURN(q4_k, BUTLER_Q4_K)
TURN(q5_k, BUTLER_Q5_K)
TURN(q6_k, BUTLER_Q6_K)
#undef TURN

/* -------------------------------------------------------------------------------------------------- tokens */

/* A token: q[n] in the order of steps, then, of each 32 columns, the scale, the scaled sum and what products with all of them begin
 * with, and with each half. */
struct token {
    const number *q;
    const float *scales, *sums;
    const int32_t (*starts)[3];
};

INLINE struct token token_at(const void *fixed, int t, int n)
{
    const number *q = (const void *)((const uint8_t *)fixed + (size_t)t * butler_fixed_token_bytes(n));
    const float *scales = (const float *)(q + n);
    return (struct token){q, scales, scales + n / BLOCK, (const int32_t(*)[3])(scales + n / BLOCK * 2)};
}

INLINE int32_t sum_of_eight(__m256i v)
{
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

static void fix_tokens(void *fixed, const float *x, size_t x_stride, int n_tokens, int n)
{
    for (int t = 0; t < n_tokens; t++, x += x_stride) {
        const struct token token = token_at(fixed, t, n);
        for (int b = 0; b < n / BLOCK; b++) {
            const float *from = x + (size_t)b * BLOCK;
            float inverse;
            const float scale = scale32(from, MOST, &inverse);
            __m256i sums[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
            for (int c = 0; c < BLOCK; c += 8) {
                const __m256i v = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(from + c), _mm256_set1_ps(inverse)));
                store_eight((number *)token.q + b * BLOCK + c, v);
                sums[c / 16] = _mm256_add_epi32(sums[c / 16], v);
            }
            const int32_t whole = sum_of_eight(_mm256_add_epi32(sums[0], sums[1]));
            int32_t *starts = (int32_t *)token.starts[b];
            starts[0] = start_of(whole);
            starts[1] = start_of(sum_of_eight(sums[0]));
            starts[2] = start_of(sum_of_eight(sums[1]));
            ((float *)token.scales)[b] = scale;
            ((float *)token.sums)[b] = scale * (float)whole;
        }
    }
}

/* ------------------------------------------------------------------------------------------------ products */

/* sum[t * GROUPS + g] = GROUPS groups of rows times n_tokens tokens, a compile-time constant as `form` is. w: each group's first
 * block. A row's blocks are gone through at once: with sums put down every 512 columns, so that the rows stay in the nearest cache,
 * it takes a tenth longer. */
INLINE void tile(vec *sum, const struct turned *const *w, const struct token *tokens, int n_tokens, enum form form, int n_blocks)
{
    UNROLL
    for (int k = 0; k < n_tokens * GROUPS; k++)
        sum[k] = vec_zero();
    const int n_parts = form == HALVES ? 2 : 1;
    for (int part = 0; part < n_blocks * n_parts; part++) {
        const int b = part / n_parts, half = part % n_parts;
        words products[TOKENS * GROUPS];
        UNROLL
        for (int k = 0; k < n_tokens * GROUPS; k++)
            products[k] = words_start(&tokens[k / GROUPS].starts[b][form == HALVES ? 1 + half : 0]);
        for (int i = half * STEPS / 2; i < (half + 1) * STEPS / n_parts; i++) {
            words weights[GROUPS];
            UNROLL
            for (int g = 0; g < GROUPS; g++)
                memcpy(&weights[g], w[g][b].steps[i], sizeof weights[g]);
            UNROLL
            for (int t = 0; t < n_tokens; t++) {
                const words x = words_spread(tokens[t].q + b * BLOCK + STEP * i);
                UNROLL
                for (int g = 0; g < GROUPS; g++)
                    words_add(&products[t * GROUPS + g], weights[g], x);
            }
        }
        UNROLL
        for (int k = 0; k < n_tokens * GROUPS; k++) {
            const struct turned *block = &w[k % GROUPS][b];
            const struct token *token = &tokens[k / GROUPS];
            const vec scales = half ? block->others : block->scales;
            vec s = vec_fma(words_floats(products[k]), vec_mul(scales, vec_set1(token->scales[b])), sum[k]);
            sum[k] = form == MINIMA ? vec_fma(block->others, vec_set1(token->sums[b]), s) : s;
        }
    }
}

/* y[t][r], r < n_rows <= GROUPS VEC. */
INLINE void tile_of_rows(float *y, size_t y_stride, const struct turned *const *w, int n_rows, const struct token *tokens,
                         int n_tokens, enum form form, int n_blocks)
{
    _Alignas(64) float row[GROUPS * VEC];
    vec sum[TOKENS * GROUPS];
    tile(sum, w, tokens, n_tokens, form, n_blocks);
    for (int t = 0; t < n_tokens; t++, y += y_stride) {
        float *out = n_rows == GROUPS * VEC ? y : row;
        for (int g = 0; g < GROUPS; g++)
            vec_store(out + g * VEC, sum[t * GROUPS + g]);
        if (out == row)
            memcpy(y, row, (size_t)n_rows * sizeof *y);
    }
}

typedef void tile_fn(float *y, size_t y_stride, const struct turned *const *w, int n_rows, const struct token *tokens,
                     int n_blocks);

#define TILE(name, n_tokens, form)                                                                                                 \
    static __attribute__((noinline)) void name(float *y, size_t y_stride, const struct turned *const *w, int n_rows,               \
                                               const struct token *tokens, int n_blocks)                                           \
    {                                                                                                                              \
        tile_of_rows(y, y_stride, w, n_rows, tokens, n_tokens, form, n_blocks);                                                    \
    }
TILE(tile_most_plain, TOKENS, PLAIN)
TILE(tile_four_plain, 4, PLAIN)
TILE(tile_two_plain, 2, PLAIN)
TILE(tile_one_plain, 1, PLAIN)
TILE(tile_most_minima, TOKENS, MINIMA)
TILE(tile_four_minima, 4, MINIMA)
TILE(tile_two_minima, 2, MINIMA)
TILE(tile_one_minima, 1, MINIMA)
TILE(tile_most_halves, TOKENS, HALVES)
TILE(tile_four_halves, 4, HALVES)
TILE(tile_two_halves, 2, HALVES)
TILE(tile_one_halves, 1, HALVES)
#undef TILE

static void gemm_fixed(float *y, size_t y_stride, enum butler_type type, const void *turned, int n_rows, const void *fixed,
                       int n_tokens, int n)
{
    static const int counts[] = {TOKENS, 4, 2, 1};
    static tile_fn *const tiles[][4] = {[PLAIN] = {tile_most_plain, tile_four_plain, tile_two_plain, tile_one_plain},
                                        [MINIMA] = {tile_most_minima, tile_four_minima, tile_two_minima, tile_one_minima},
                                        [HALVES] = {tile_most_halves, tile_four_halves, tile_two_halves, tile_one_halves}};
    const int n_blocks = n / BLOCK;
    for (int r = 0; r < n_rows; r += GROUPS * VEC) {
        const struct turned *w[GROUPS];
        for (int g = 0; g < GROUPS; g++)
            w[g] = (const struct turned *)turned + (size_t)(r / VEC + g) * (size_t)n_blocks;
        for (int t = 0, k = 0; t < n_tokens; t += counts[k]) {
            struct token tokens[TOKENS];
            while (t + counts[k] > n_tokens)
                k++;
            for (int i = 0; i < counts[k]; i++)
                tokens[i] = token_at(fixed, t + i, n);
            tiles[form_of(type)][k](y + (size_t)t * y_stride + r, y_stride, w, BUTLER_MIN(n_rows - r, GROUPS * VEC), tokens,
                                    n_blocks);
        }
    }
}

INLINE void fill_gemm_fixed(struct butler_kernels *table)
{
    table->fix_tokens = fix_tokens;
    table->gemm_fixed = gemm_fixed;
    table->turned_rows = GROUPS * VEC;
    table->turn_rows[BUTLER_Q8_0] = turn_q8_0;
    table->turn_rows[BUTLER_Q4_0] = turn_q4_0;
    table->turn_rows[BUTLER_Q4_1] = turn_q4_1;
    table->turn_rows[BUTLER_Q5_0] = turn_q5_0;
    table->turn_rows[BUTLER_Q5_1] = turn_q5_1;
    table->turn_rows[BUTLER_Q4_K] = turn_q4_k;
    table->turn_rows[BUTLER_Q5_K] = turn_q5_k;
    table->turn_rows[BUTLER_Q6_K] = turn_q6_k;
}

#endif
