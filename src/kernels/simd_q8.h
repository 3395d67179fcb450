/* Products of quantised weights with activations in 8-bit integers for many tokens (kernels.h, multiply_q8), written once for AVX2
 * and AVX-512 VNNI. Included behind simd_matmul.h, whose words and whose order of sums these are: a pair (token, row) has the bits
 * that matmul_q16 gives it for few tokens.
 *
 * Rows are unpacked once per call, VEC of them together: of each unit first columns 0 to 3 of every row, then columns 4 to 7, ...,
 * then the rows' scales and, for types with minima, these. A lane of a sum is then a row, and nothing is added across lanes.
 * Activations of 16 tokens lie together likewise: columns 0 to 3 of every token, ..., the scales, and what put_unit() has beside
 * them. Units u, u + UNITS, ... are one chain of additions; chains are added as store_rows() does.
 *
 * The file that includes this has, beside what simd_matmul.h lists:
 *   TILE_TOKENS                  that are held in registers, a divisor of BUTLER_Q8_TOKENS
 *   transpose_words(v)           word w of v[r] becomes word r of v[w]
 *   unit_dots(type, w, x, rest)  of VEC rows with one token: 32 (narrow_units() 16) products a lane, and rest for types without
 *                                minima
 *   add_chains(chains)           the sum of UNITS vectors, in the order of store_rows() */
#ifndef BUTLER_SIMD_Q8_H
#define BUTLER_SIMD_Q8_H

#include "kernels/q8_units.h"

/* Units of VEC rows of a chunk from `units` on, n_units of which exist. */
INLINE void unpack_chunk(enum butler_type type, uint8_t *units, const uint8_t *from, size_t stride, int n_units, bool is_signed)
{
    const int columns = unit_columns(type);
    vec scales[VEC / ROWS][MAX_STEPS], minima[VEC / ROWS][MAX_STEPS];
    UNROLL
    for (int g = 0; g < VEC / ROWS; g++)
        load_scales(type, scales[g], minima[g], from + (size_t)(g * ROWS) * stride, stride);
    UNROLL
    for (int s = 0; s < chunk_steps(type); s++) {
        bytes weights[VEC][2];
        const bytes zero = set_bytes(is_signed ? zero_of(type) : 0);
        for (int r = 0; r < VEC; r++)
            load_weights(type, weights[r], from + (size_t)r * stride, s);
        for (int half = 0; half < columns / 16; half++) {
            bytes v[VEC];
            UNROLL
            for (int r = 0; r < VEC; r++)
                v[r] = sub_bytes(weights[r][half], zero);
            transpose_words(v);
            /* v[w]: word w of 16 columns of each unit, or where weights keep their sign on AVX2 of all 32 columns of unit `half` */
            const bool whole = eight_bits(type) && !q8_zero;
            UNROLL
            for (int w = 0; w < VEC; w++) {
                const int unit = s * UNITS + (whole ? half : w / 4), word = whole ? w : half * 4 + w % 4;
                if (unit < n_units)
                    store_bytes(units + (size_t)unit * unit_bytes(type) + (size_t)word * BYTES, v[w]);
            }
        }
        for (int u = 0; u < UNITS; u++) {
            uint8_t *to = units + (size_t)(s * UNITS + u) * unit_bytes(type) + (size_t)(columns * VEC);
            for (int g = 0; s * UNITS + u < n_units && g < VEC / ROWS; g++) {
                memcpy(to + g * 16, (const float *)&scales[g][s] + 4 * u, 16);
                if (has_minimum(type))
                    memcpy(to + BYTES + g * 16, (const float *)&minima[g][s] + 4 * u, 16);
            }
        }
    }
}

/* Rows that are missing, and what a last chunk lacks, are zeros. */
INLINE void unpack_rows(enum butler_type type, uint8_t *panel, const uint8_t *w, size_t row_bytes, int n_rows, int n,
                        bool is_signed)
{
    const int columns = chunk_columns(type);
    const size_t size = chunk_bytes(type);
    for (int first = 0; first < n_rows; first += VEC, w += VEC * row_bytes)
        for (int c = 0; c < n; c += columns) {
            _Alignas(64) uint8_t copy[VEC][CHUNK_BYTES];
            const uint8_t *from = w + (size_t)(c / columns) * size;
            const int rows = BUTLER_MIN(n_rows - first, VEC), chunk_units = BUTLER_MIN(n - c, columns) / unit_columns(type);
            size_t stride = row_bytes;
            if (rows < VEC || n - c < columns || type == BUTLER_TQ1_0) {
                memset(copy, 0, sizeof copy);
                for (int r = 0; r < rows; r++)
                    if (type == BUTLER_TQ1_0)
                        tq2_of_tq1(copy[r], from + (size_t)r * row_bytes);
                    else
                        memcpy(copy[r], from + (size_t)r * row_bytes,
                               is_super(type) ? size : (size_t)(BUTLER_MIN(n - c, columns) / BLOCK * butler_type_bytes(type)));
                from = copy[0];
                stride = CHUNK_BYTES;
            }
            unpack_chunk(type == BUTLER_TQ1_0 ? BUTLER_TQ2_0 : type, panel, from, stride, chunk_units, is_signed);
            panel += (size_t)chunk_units * unit_bytes(type);
        }
}

/* VEC rows with TILE_TOKENS tokens: x is the first one's first word, so the same step leads to its scale. */
INLINE void multiply_tile(enum butler_type type, vec sums[TILE_TOKENS], const uint8_t *panel, const uint8_t *x, int n_units)
{
    const int columns = unit_columns(type), words = columns / 4;
    _Alignas(64) float chains[UNITS][TILE_TOKENS][VEC];
    for (int chain = 0; chain < UNITS; chain++) {
        vec acc[TILE_TOKENS];
        UNROLL
        for (int t = 0; t < TILE_TOKENS; t++)
            acc[t] = vec_zero();
        for (int u = chain; u < n_units; u += UNITS) {
            const uint8_t *w = panel + (size_t)u * unit_bytes(type), *unit = x + (size_t)u * butler_q8_unit_bytes(columns);
            const float *scales = (const float *)(unit + columns * BUTLER_Q8_TOKENS), *rest = scales + BUTLER_Q8_TOKENS;
            const vec row_scales = vec_load((const float *)(w + columns * VEC));
            bytes weights[8];
            UNROLL
            for (int k = 0; k < words; k++)
                weights[k] = load_bytes(w + k * BYTES);
            UNROLL
            for (int t = 0; t < TILE_TOKENS; t++) {
                const ints sum = unit_dots(type, weights, unit + t * 4, (const int32_t *)rest + t);
                acc[t] = vec_fma(ints_to_floats(sum), vec_mul(row_scales, vec_set1(scales[t])), acc[t]);
                if (has_minimum(type))
                    acc[t] = vec_fma(vec_load((const float *)(w + (columns + 4) * VEC)), vec_set1(rest[t]), acc[t]);
            }
        }
        UNROLL
        for (int t = 0; t < TILE_TOKENS; t++)
            vec_store(chains[chain][t], acc[t]);
    }
    UNROLL
    for (int t = 0; t < TILE_TOKENS; t++) {
        vec parts[UNITS];
        UNROLL
        for (int chain = 0; chain < UNITS; chain++)
            parts[chain] = vec_load(chains[chain][t]);
        sums[t] = add_chains(parts);
    }
}

INLINE void multiply_panel(enum butler_type type, float *y, size_t y_stride, const uint8_t *panel, int n_rows, const uint8_t *q8,
                           int n_tokens, int n)
{
    const int n_units = n / unit_columns(type);
    for (int t = 0; t < n_tokens; t += TILE_TOKENS) {
        const uint8_t *x = q8 + (size_t)(t / BUTLER_Q8_TOKENS) * butler_q8_bytes(n) + (size_t)(t % BUTLER_Q8_TOKENS) * 4;
        for (int r = 0; r < n_rows; r += VEC) {
            vec sums[TILE_TOKENS];
            for (int i = 0; i < BUTLER_MIN(TILE_TOKENS, n_tokens - t); i++) /* each is a page of its own */
                __builtin_prefetch(y + (size_t)(t + i) * y_stride + r, 1);
            multiply_tile(type, sums, panel + (size_t)(r / VEC) * (size_t)n_units * unit_bytes(type), x, n_units);
            for (int i = 0; i < BUTLER_MIN(TILE_TOKENS, n_tokens - t); i++)
                vec_store_some(y + (size_t)(t + i) * y_stride + r, sums[i], BUTLER_MIN(n_rows - r, VEC));
        }
    }
}

#define UNPACK(name, type)                                                                                                         \
    static void unpack_##name(void *panel, const void *w, size_t row_bytes, int n_rows, int n, bool is_signed)                     \
    {                                                                                                                              \
        unpack_rows(type, panel, w, row_bytes, n_rows, n, is_signed);                                                              \
    }
#define MULTIPLY(name, type)                                                                                                       \
    static void multiply_##name(float *y, size_t y_stride, const void *panel, int n_rows, const void *q8, int n_tokens, int n)     \
    {                                                                                                                              \
        multiply_panel(type, y, y_stride, panel, n_rows, q8, n_tokens, n);                                                         \
    }

UNPACK(q8_0, BUTLER_Q8_0)
UNPACK(q4_0, BUTLER_Q4_0)
UNPACK(q4_1, BUTLER_Q4_1)
UNPACK(q5_0, BUTLER_Q5_0)
UNPACK(q5_1, BUTLER_Q5_1)
UNPACK(q4_k, BUTLER_Q4_K)
UNPACK(q5_k, BUTLER_Q5_K)
UNPACK(q6_k, BUTLER_Q6_K)
UNPACK(q2_k, BUTLER_Q2_K)
UNPACK(q3_k, BUTLER_Q3_K)
UNPACK(iq4_nl, BUTLER_IQ4_NL)
UNPACK(iq4_xs, BUTLER_IQ4_XS)
UNPACK(mxfp4, BUTLER_MXFP4)
UNPACK(tq1_0, BUTLER_TQ1_0)
UNPACK(tq2_0, BUTLER_TQ2_0)
/* Once unpacked, types differ by the width of a unit, by minima, and on AVX2 by how many products fit 16 bits. */
MULTIPLY(q8_0, BUTLER_Q8_0)
MULTIPLY(q4_0, BUTLER_Q4_0)
MULTIPLY(q4_1, BUTLER_Q4_1)
MULTIPLY(q5_0, BUTLER_Q5_0)
MULTIPLY(q5_1, BUTLER_Q5_1)
MULTIPLY(q6_k, BUTLER_Q6_K)
MULTIPLY(q2_k, BUTLER_Q2_K)
MULTIPLY(q3_k, BUTLER_Q3_K)
#undef UNPACK
#undef MULTIPLY

static void quantise_q8(void *q8, enum butler_type type, const float *x, int n_tokens, int n)
{
    quantise_tokens(q8, type, x, n_tokens, n, false);
}

INLINE void fill_q8(struct butler_kernels *table)
{
    table->quantise_q8 = quantise_q8;
#define ENTRY(TYPE, name, as) table->unpack_q8[BUTLER_##TYPE] = unpack_##name, table->multiply_q8[BUTLER_##TYPE] = multiply_##as
    ENTRY(Q8_0, q8_0, q8_0);
    ENTRY(Q4_0, q4_0, q4_0);
    ENTRY(Q4_1, q4_1, q4_1);
    ENTRY(Q5_0, q5_0, q5_0);
    ENTRY(Q5_1, q5_1, q5_1);
    ENTRY(Q4_K, q4_k, q4_1);
    ENTRY(Q5_K, q5_k, q5_1);
    ENTRY(Q6_K, q6_k, q6_k);
    ENTRY(Q2_K, q2_k, q2_k);
    ENTRY(Q3_K, q3_k, q3_k);
    ENTRY(IQ4_NL, iq4_nl, q8_0);
    ENTRY(IQ4_XS, iq4_xs, q8_0);
    ENTRY(MXFP4, mxfp4, q5_0);
    ENTRY(TQ1_0, tq1_0, q4_0);
    ENTRY(TQ2_0, tq2_0, q4_0);
#undef ENTRY
}

#endif
