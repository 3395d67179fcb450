/* Products with weights as floats, written once for every vector width: included by each ISA file after its vec*.h and simd_gemm.h.
 * Weights are widened in registers; quantised types, where simd_matmul.h has no faster product, a chunk of rows at a time. Four
 * rows go together and share the loads of x; each row has an accumulator of its own and is added up as gemm does, so that its
 * result depends neither on how rows are grouped or split over threads nor on the number of tokens.
 *
 * The four rows are a quarter of the matrix apart. A core keeps as many cache lines in flight as one hardware prefetcher
 * asks for, some twenty, while memory needs twice that to be busy; four long streams, each also prefetched by us across
 * the ends of pages, are read as fast as memory is, and one stream, or four neighbouring rows, at two thirds of it. */
#ifndef BUTLER_SIMD_WEIGHTS_H
#define BUTLER_SIMD_WEIGHTS_H

#ifndef ROWS
#define ROWS 4
#endif

/* How far ahead of its loads a row is prefetched; beyond its end lie the next rows. */
#ifndef AHEAD
#define AHEAD 1536
#endif

/* ------------------------------------------------------------------------------------- plain number types */

enum plain { PLAIN_F32, PLAIN_F16, PLAIN_BF16 };

INLINE size_t plain_bytes(enum plain type)
{
    return type == PLAIN_F32 ? 4 : 2;
}

INLINE vec plain_load(enum plain type, const uint8_t *p)
{
    return type == PLAIN_F32 ? vec_load((const float *)p) : type == PLAIN_F16 ? vec_load_half(p) : vec_load_bf16(p);
}

INLINE vec plain_load_some(enum plain type, const uint8_t *p, int count)
{
    return type == PLAIN_F32   ? vec_load_some((const float *)p, count)
           : type == PLAIN_F16 ? vec_load_half_some(p, count)
                               : vec_load_bf16_some(p, count);
}

INLINE void plain_dequant(enum plain type, float *y, const uint8_t *row, int n)
{
    int i = 0;
    for (; i + VEC <= n; i += VEC)
        vec_store(y + i, plain_load(type, row + i * plain_bytes(type)));
    if (i < n)
        vec_store_some(y + i, plain_load_some(type, row + i * plain_bytes(type), n - i), n - i);
}

/* As gemm adds: one accumulator a row for GEMM_CHUNK columns, whose lanes are then summed and added to y. */
INLINE void plain_rows(enum plain type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    const size_t size = plain_bytes(type);
    for (int first = 0; first < n; first += GEMM_CHUNK) {
        const int end = BUTLER_MIN(n, first + GEMM_CHUNK);
        vec acc[ROWS];
        for (int r = 0; r < n_rows; r++)
            acc[r] = vec_zero();
        int i = first;
        for (; i + VEC <= end; i += VEC) {
            const vec xs = vec_load(x + i);
            for (int r = 0; r < n_rows; r++) {
                const uint8_t *p = w + r * row_bytes + i * size;
                prefetch(p, AHEAD);
                acc[r] = vec_fma(plain_load(type, p), xs, acc[r]);
            }
        }
        if (i < end) {
            const vec xs = vec_load_some(x + i, end - i);
            for (int r = 0; r < n_rows; r++)
                acc[r] = vec_fma(plain_load_some(type, w + r * row_bytes + i * size, end - i), xs, acc[r]);
        }
        for (int r = 0; r < n_rows; r++) {
            const float sum = vec_sum(acc[r]);
            y[r * y_step] = first > 0 ? y[r * y_step] + sum : sum;
        }
    }
}

/* ------------------------------------------------------------------------------------ blocks of 32 elements */

enum block_type { BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_Q4_1, BLOCK_Q5_0, BLOCK_Q5_1 };

INLINE size_t block_bytes(enum block_type type)
{
    return type == BLOCK_Q8_0   ? Q8_0_BYTES
           : type == BLOCK_Q4_0 ? Q4_0_BYTES
           : type == BLOCK_Q4_1 ? Q4_1_BYTES
           : type == BLOCK_Q5_0 ? Q5_0_BYTES
                                : Q5_1_BYTES;
}

INLINE bool block_has_minimum(enum block_type type)
{
    return type == BLOCK_Q4_1 || type == BLOCK_Q5_1;
}

/* The block's numbers before the scale is applied. */
INLINE void block_quants(enum block_type type, vec q[V32], const uint8_t *block)
{
    if (type == BLOCK_Q8_0) {
        for (int k = 0; k < V32; k++)
            q[k] = vec_load_i8(block + Q8_0_QUANTS + k * VEC);
    } else if (type == BLOCK_Q4_0) {
        vec_load_nibbles(block + Q4_0_QUANTS, 8, q, q + V16);
    } else if (type == BLOCK_Q4_1) {
        vec_load_nibbles(block + Q4_1_QUANTS, 0, q, q + V16);
    } else {
        bool minimum = type == BLOCK_Q5_1;
        uint32_t fifths = load_u32(block + (minimum ? Q5_1_HIGH : Q5_0_HIGH));
        vec_load_nibbles5(block + (minimum ? Q5_1_QUANTS : Q5_0_QUANTS), fifths, minimum ? 0 : 16, q, q + V16);
    }
}

INLINE void block_dequant(enum block_type type, float *y, const uint8_t *b, int n)
{
    for (; n > 0; n -= BLOCK, y += BLOCK, b += block_bytes(type)) {
        vec q[V32], d = vec_set1_half(b), m = vec_set1_half(b + 2);
        block_quants(type, q, b);
        for (int k = 0; k < V32; k++) {
            vec v = vec_mul(d, q[k]);
            vec_store(y + k * VEC, block_has_minimum(type) ? vec_add(v, m) : v);
        }
    }
}

/* ----------------------------------------------------------------------------------- blocks of 256 elements */

enum super_type { SUPER_Q4_K, SUPER_Q5_K, SUPER_Q6_K };

INLINE size_t super_bytes(enum super_type type)
{
    return type == SUPER_Q4_K ? Q4_K_BYTES : type == SUPER_Q5_K ? Q5_K_BYTES : Q6_K_BYTES;
}

/* Scales of all groups as floats: d s of 8 groups and m t of 8 groups, or d s of 16 groups (Q6_K). */
INLINE void super_load_scales(enum super_type type, float scales[16], const uint8_t *b)
{
    float d[ROWS];
    bool six = type == SUPER_Q6_K;
    bytes16 bytes = six ? bytes16_load(b + Q6_K_SCALES) : k_scales(b + Q4_K_SCALES);
    load_halves(d, b + (six ? Q6_K_SCALE : 0), 2, six ? 1 : 2);
    for (int k = 0; k < V16; k++) {
        vec factor = vec_set1(d[0]);
        if (!six)
            factor = vec_keep(factor, vec_set1(d[1]), 8 - k * VEC);
        vec_store(scales + k * VEC, vec_mul(factor, vec_from_i8(bytes, k)));
    }
    __asm__("" : "+m"(*(float(*)[16])scales));
}

/* Numbers of groups 2 pair and 2 pair + 1 of 32 (Q4_K, Q5_K): the low and high nibbles of the same 32 bytes, and two bits of
 * the 32 bytes of fifth bits. */
INLINE void k_quants(enum super_type type, vec low[V32], vec high[V32], const uint8_t *b, int pair)
{
    if (type == SUPER_Q5_K) {
        vec_load_fives(b + Q5_K_QUANTS + pair * 32, b + Q5_K_HIGH, pair, low, high);
        return;
    }
    for (int h = 0; h < 2; h++)
        vec_load_nibbles(b + Q4_K_QUANTS + pair * 32 + h * 16, 0, low + h * V16, high + h * V16);
}

/* Numbers of half `half` of a Q6_K block, columns 16 c .. 16 c + 15 of its four rows (quarters) of 32. */
INLINE void q6_k_quants(vec q[4][V16], const uint8_t *b, int half, int c)
{
    vec_load_sixes(b + half * 64 + c * 16, b + Q6_K_HIGH + half * 32 + c * 16, q);
}

INLINE void super_dequant(enum super_type type, float *y, const uint8_t *b, int n)
{
    for (; n > 0; n -= SUPER, y += SUPER, b += super_bytes(type)) {
        float scales[16];
        super_load_scales(type, scales, b);
        if (type == SUPER_Q6_K) {
            for (int i = 0; i < 4; i++) {
                vec q[4][V16];
                q6_k_quants(q, b, i / 2, i % 2);
                for (int r = 0; r < 4; r++)
                    for (int k = 0; k < V16; k++)
                        vec_store(y + i / 2 * 128 + r * 32 + i % 2 * 16 + k * VEC,
                                  vec_mul(vec_set1(scales[i / 2 * 8 + r * 2 + i % 2]), q[r][k]));
            }
            continue;
        }
        for (int pair = 0; pair < 4; pair++) {
            vec q[2][V32];
            k_quants(type, q[0], q[1], b, pair);
            for (int h = 0; h < 2; h++)
                for (int k = 0; k < V32; k++)
                    vec_store(y + pair * 64 + h * 32 + k * VEC,
                              vec_sub(vec_mul(vec_set1(scales[2 * pair + h]), q[h][k]), vec_set1(scales[8 + 2 * pair + h])));
        }
    }
}

/* ----------------------------------------------------------------------------------------------- entries */

/* Rows r, r + quarter, ... together; those that are left over alone. */
INLINE void plain_gemv(enum plain type, float *y, const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    const int quarter = n_rows / ROWS;
    for (int r = 0; r < quarter; r++)
        plain_rows(type, y + r, quarter, w + r * row_bytes, quarter * row_bytes, ROWS, x, n);
    for (int r = quarter * ROWS; r < n_rows; r++)
        plain_rows(type, y + r, 0, w + r * row_bytes, 0, 1, x, n);
}

/* Rows of quantised types are widened a chunk at a time. */
static void widened_gemv(enum butler_type type, void (*dequant)(float *y, const void *row, int n), float *y, const uint8_t *w,
                         size_t row_bytes, int n_rows, const float *x, int n)
{
    _Alignas(64) float sums[GEMM_SUMS], rows[GEMM_ROWS * GEMM_CHUNK];
    for (int r = 0; r < n_rows; r += GEMM_ROWS) {
        const int n_stored = BUTLER_MIN(n_rows - r, GEMM_ROWS);
        for (int first = 0; first < n; first += GEMM_CHUNK) {
            const int count = BUTLER_MIN(n - first, GEMM_CHUNK);
            for (int k = 0; k < n_stored; k++)
                dequant(rows + k * GEMM_CHUNK, w + (size_t)(r + k) * row_bytes + butler_row_bytes(type, first), count);
            gemm_tokens((struct gemm_out){sums, y + r, 0, first > 0}, (struct butler_vectors){rows, GEMM_CHUNK, n_stored},
                        (struct butler_vectors){x + first, 0, 1}, NULL, count);
        }
    }
}

#define DEQUANT(name, family, type)                                                                                                \
    static void dequant_##name(float *y, const void *row, int n)                                                                   \
    {                                                                                                                              \
        family##_dequant(type, y, row, n);                                                                                         \
    }
#define PLAIN_TYPE(name, type)                                                                                                     \
    DEQUANT(name, plain, type)                                                                                                     \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                          \
    {                                                                                                                              \
        plain_gemv(type, y, w, row_bytes, n_rows, x, n);                                                                           \
    }
#define QUANTISED_TYPE(name, NAME, family, type)                                                                                   \
    DEQUANT(name, family, type)                                                                                                    \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                          \
    {                                                                                                                              \
        widened_gemv(BUTLER_##NAME, dequant_##name, y, w, row_bytes, n_rows, x, n);                                                \
    }

/* Rows are dequantised by plain C: only ISAs without the products of simd_matmul.h come here. */
#define OTHER_TYPE(name, NAME)                                                                                                     \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                          \
    {                                                                                                                              \
        widened_gemv(BUTLER_##NAME, butler_dequantize_##name, y, w, row_bytes, n_rows, x, n);                                      \
    }

PLAIN_TYPE(f32, PLAIN_F32)
PLAIN_TYPE(f16, PLAIN_F16)
PLAIN_TYPE(bf16, PLAIN_BF16)
QUANTISED_TYPE(q8_0, Q8_0, block, BLOCK_Q8_0)
QUANTISED_TYPE(q4_0, Q4_0, block, BLOCK_Q4_0)
QUANTISED_TYPE(q4_1, Q4_1, block, BLOCK_Q4_1)
QUANTISED_TYPE(q5_0, Q5_0, block, BLOCK_Q5_0)
QUANTISED_TYPE(q5_1, Q5_1, block, BLOCK_Q5_1)
QUANTISED_TYPE(q4_k, Q4_K, super, SUPER_Q4_K)
QUANTISED_TYPE(q5_k, Q5_K, super, SUPER_Q5_K)
QUANTISED_TYPE(q6_k, Q6_K, super, SUPER_Q6_K)
OTHER_TYPE(q2_k, Q2_K)
OTHER_TYPE(q3_k, Q3_K)
OTHER_TYPE(iq4_nl, IQ4_NL)
OTHER_TYPE(iq4_xs, IQ4_XS)
OTHER_TYPE(mxfp4, MXFP4)
OTHER_TYPE(tq1_0, TQ1_0)
OTHER_TYPE(tq2_0, TQ2_0)

INLINE void fill_weights(struct butler_kernels *table)
{
#define ENTRY(TYPE, name) table->gemv[BUTLER_##TYPE] = gemv_##name, table->dequant[BUTLER_##TYPE] = dequant_##name
    ENTRY(F32, f32);
    ENTRY(F16, f16);
    ENTRY(BF16, bf16);
    ENTRY(Q8_0, q8_0);
    ENTRY(Q4_0, q4_0);
    ENTRY(Q4_1, q4_1);
    ENTRY(Q5_0, q5_0);
    ENTRY(Q5_1, q5_1);
    ENTRY(Q4_K, q4_k);
    ENTRY(Q5_K, q5_k);
    ENTRY(Q6_K, q6_k);
    table->gemv[BUTLER_Q2_K] = gemv_q2_k;
    table->gemv[BUTLER_Q3_K] = gemv_q3_k;
    table->gemv[BUTLER_IQ4_NL] = gemv_iq4_nl;
    table->gemv[BUTLER_IQ4_XS] = gemv_iq4_xs;
    table->gemv[BUTLER_MXFP4] = gemv_mxfp4;
    table->gemv[BUTLER_TQ1_0] = gemv_tq1_0;
    table->gemv[BUTLER_TQ2_0] = gemv_tq2_0;
#undef ENTRY
}

#endif
