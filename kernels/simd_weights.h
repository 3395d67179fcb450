/* Products with weights, written once for every vector width: included by each ISA file after its vec*.h. Weights are
 * widened in registers and multiplied by float activations. Four rows go together and share the loads of x; each row has
 * accumulators of its own and the same order of additions in any company, so its result does not depend on how rows are
 * grouped or split over threads.
 *
 * The four rows are a quarter of the matrix apart. A core keeps as many cache lines in flight as one hardware prefetcher
 * asks for, some twenty, while memory needs twice that to be busy; four long streams, each also prefetched by us across
 * the ends of pages, are read as fast as memory is, and one stream, or four neighbouring rows, at two thirds of it. */
#ifndef BUTLER_SIMD_WEIGHTS_H
#define BUTLER_SIMD_WEIGHTS_H

#ifndef ROWS
#define ROWS 4
#endif

/* How far ahead of its loads a row is fetched; beyond its end lie the next rows. */
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

/* Two accumulators a row: one alone would wait for its own last addition when the row comes from cache. */
INLINE void plain_rows(enum plain type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    size_t size = plain_bytes(type);
    vec a[ROWS], b[ROWS];
    for (int r = 0; r < n_rows; r++)
        a[r] = b[r] = vec_zero();
    int i = 0;
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        vec x0 = vec_load(x + i), x1 = vec_load(x + i + VEC);
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *p = w + r * row_bytes + i * size;
            prefetch(p, AHEAD);
            if (2 * VEC * size > 64)
                prefetch(p, AHEAD + 64);
            a[r] = vec_fma(plain_load(type, p), x0, a[r]);
            b[r] = vec_fma(plain_load(type, p + VEC * size), x1, b[r]);
        }
    }
    for (; i < n; i += VEC) {
        int count = BUTLER_MIN(n - i, VEC);
        vec x0 = vec_load_some(x + i, count);
        for (int r = 0; r < n_rows; r++)
            a[r] = vec_fma(plain_load_some(type, w + r * row_bytes + i * size, count), x0, a[r]);
    }
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = vec_sum(vec_add(a[r], b[r]));
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
        bool minimum = block_has_minimum(type);
        uint32_t high = load_u32(block + (minimum ? Q5_1_HIGH : Q5_0_HIGH));
        vec_load_nibbles(block + (minimum ? Q5_1_QUANTS : Q5_0_QUANTS), minimum ? 0 : 16, q, q + V16);
        for (int k = 0; k < V32; k++)
            q[k] = vec_add_masked(q[k], vec_set1(16), vec_mask_of(high >> (k * VEC) & ((1u << VEC) - 1)));
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

/* sum of x w over a block is d (q . x) + m (1 . x): the scale is applied once to a vector of partial sums. */
INLINE void block_rows(enum block_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x,
                       int n)
{
    vec acc[ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r] = vec_zero();
    for (int i = 0; i < n; i += BLOCK, w += block_bytes(type)) {
        vec xs[V32], sum = vec_zero();
        for (int k = 0; k < V32; k++)
            xs[k] = vec_load(x + i + k * VEC);
        if (block_has_minimum(type)) {
            sum = xs[0];
            for (int k = 1; k < V32; k++)
                sum = vec_add(sum, xs[k]);
        }
        for (int r = 0; r < n_rows; r++) {
            const uint8_t *b = w + r * row_bytes;
            vec q[V32];
            prefetch(b, AHEAD);
            block_quants(type, q, b);
            vec t = vec_mul(q[0], xs[0]);
            for (int k = 1; k < V32; k++)
                t = vec_fma(q[k], xs[k], t);
            acc[r] = vec_fma(vec_set1_half(b), t, acc[r]);
            if (block_has_minimum(type))
                acc[r] = vec_fma(vec_set1_half(b + 2), sum, acc[r]);
        }
    }
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = vec_sum(acc[r]);
}

/* ----------------------------------------------------------------------------------- blocks of 256 elements */

enum super_type { SUPER_Q4_K, SUPER_Q5_K, SUPER_Q6_K };

INLINE size_t super_bytes(enum super_type type)
{
    return type == SUPER_Q4_K ? Q4_K_BYTES : type == SUPER_Q5_K ? Q5_K_BYTES : Q6_K_BYTES;
}

/* Scales of all groups as floats: d s and m t of 8 groups, or d s of 16 groups (Q6_K). */
struct super_scales {
    float scale[16], minimum[8];
};

INLINE __m256 widen_u8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE __m256 widen_i8(const uint8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
}
INLINE __m256 broadcast_half(const uint8_t *p)
{
    return _mm256_broadcastss_ps(_mm_cvtph_ps(_mm_cvtsi32_si128(load_u16(p))));
}

INLINE void super_load_scales(enum super_type type, struct super_scales *s, const uint8_t *b)
{
    if (type == SUPER_Q6_K) {
        __m256 d = broadcast_half(b + Q6_K_SCALE);
        for (int i = 0; i < 16; i += 8)
            _mm256_storeu_ps(s->scale + i, _mm256_mul_ps(d, widen_i8(b + Q6_K_SCALES + i)));
    } else {
        uint8_t scales[8], minima[8];
        unpack_k_scales(b + Q4_K_SCALES, scales, minima);
        _mm256_storeu_ps(s->scale, _mm256_mul_ps(broadcast_half(b), widen_u8(scales)));
        _mm256_storeu_ps(s->minimum, _mm256_mul_ps(broadcast_half(b + 2), widen_u8(minima)));
    }
}

/* Numbers of groups 2 pair and 2 pair + 1 of 32 (Q4_K, Q5_K): the low and high nibbles of the same 32 bytes. */
INLINE void k_quants(enum super_type type, vec low[V32], vec high[V32], const uint8_t *b, int pair)
{
    const uint8_t *quants = b + (type == SUPER_Q4_K ? Q4_K_QUANTS : Q5_K_QUANTS) + pair * 32;
    for (int h = 0; h < 2; h++)
        vec_load_nibbles(quants + h * 16, 0, low + h * V16, high + h * V16);
    if (type == SUPER_Q5_K) {
        for (int k = 0; k < V32; k++) {
            low[k] = vec_add_where_bytes(low[k], 16, b + Q5_K_HIGH + k * VEC, 2 * pair);
            high[k] = vec_add_where_bytes(high[k], 16, b + Q5_K_HIGH + k * VEC, 2 * pair + 1);
        }
    }
}

/* Numbers of half `half` of a Q6_K block, columns 16 c .. 16 c + 15 of its four rows (quarters) of 32. */
INLINE void q6_k_quants(vec q[4][V16], const uint8_t *b, int half, int c)
{
    const __m128i nibble = _mm_set1_epi8(15), pair = _mm_set1_epi8(0x30), offset = _mm_set1_epi8(32);
    const uint8_t *low = b + half * 64 + c * 16;
    __m128i a = _mm_loadu_si128((const __m128i *)low), e = _mm_loadu_si128((const __m128i *)(low + 32));
    __m128i high = _mm_loadu_si128((const __m128i *)(b + Q6_K_HIGH + half * 32 + c * 16));
    __m128i rows[4] = {
        _mm_or_si128(_mm_and_si128(a, nibble), _mm_and_si128(_mm_slli_epi16(high, 4), pair)),
        _mm_or_si128(_mm_and_si128(e, nibble), _mm_and_si128(_mm_slli_epi16(high, 2), pair)),
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), nibble), _mm_and_si128(high, pair)),
        _mm_or_si128(_mm_and_si128(_mm_srli_epi16(e, 4), nibble), _mm_and_si128(_mm_srli_epi16(high, 2), pair)),
    };
    for (int r = 0; r < 4; r++)
        for (int k = 0; k < V16; k++)
            q[r][k] = vec_from_i8(_mm_sub_epi8(rows[r], offset), k);
}

INLINE void super_dequant(enum super_type type, float *y, const uint8_t *b, int n)
{
    for (; n > 0; n -= SUPER, y += SUPER, b += super_bytes(type)) {
        struct super_scales s;
        super_load_scales(type, &s, b);
        if (type == SUPER_Q6_K) {
            for (int i = 0; i < 4; i++) {
                vec q[4][V16];
                q6_k_quants(q, b, i / 2, i % 2);
                for (int r = 0; r < 4; r++)
                    for (int k = 0; k < V16; k++)
                        vec_store(y + i / 2 * 128 + r * 32 + i % 2 * 16 + k * VEC,
                                  vec_mul(vec_set1(s.scale[i / 2 * 8 + r * 2 + i % 2]), q[r][k]));
            }
            continue;
        }
        for (int pair = 0; pair < 4; pair++) {
            vec q[2][V32];
            k_quants(type, q[0], q[1], b, pair);
            for (int h = 0; h < 2; h++)
                for (int k = 0; k < V32; k++)
                    vec_store(y + pair * 64 + h * 32 + k * VEC,
                              vec_sub(vec_mul(vec_set1(s.scale[2 * pair + h]), q[h][k]), vec_set1(s.minimum[2 * pair + h])));
        }
    }
}

/* One row's share of 64 elements of a Q4_K or Q5_K block; sums holds the lane sums of x over each group of 32. */
INLINE vec k_product(enum super_type type, vec acc, const uint8_t *b, const struct super_scales *s, int pair, const vec xs[2][V32],
                     const vec sums[2])
{
    vec q[2][V32];
    k_quants(type, q[0], q[1], b, pair);
    for (int h = 0; h < 2; h++) {
        vec t = vec_mul(q[h][0], xs[h][0]);
        for (int k = 1; k < V32; k++)
            t = vec_fma(q[h][k], xs[h][k], t);
        acc = vec_fma(vec_set1(s->scale[2 * pair + h]), t, acc);
        acc = vec_fnma(vec_set1(s->minimum[2 * pair + h]), sums[h], acc);
    }
    return acc;
}

INLINE void k_rows(enum super_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x,
                   int n)
{
    vec acc[ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r] = vec_zero();
    for (int i = 0; i < n; i += SUPER, w += super_bytes(type)) {
        struct super_scales s[ROWS];
        for (int r = 0; r < n_rows; r++) {
            super_load_scales(type, &s[r], w + r * row_bytes);
            for (size_t line = 0; line < super_bytes(type); line += 64)
                prefetch(w + r * row_bytes, AHEAD + line);
        }
        for (int pair = 0; pair < 4; pair++) {
            vec xs[2][V32], sums[2];
            for (int h = 0; h < 2; h++) {
                for (int k = 0; k < V32; k++) {
                    xs[h][k] = vec_load(x + i + pair * 64 + h * 32 + k * VEC);
                    sums[h] = k ? vec_add(sums[h], xs[h][k]) : xs[h][k];
                }
            }
            for (int r = 0; r < n_rows; r++)
                acc[r] = k_product(type, acc[r], w + r * row_bytes, &s[r], pair, xs, sums);
        }
    }
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = vec_sum(acc[r]);
}

INLINE void q6_k_rows(float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    vec acc[ROWS];
    for (int r = 0; r < n_rows; r++)
        acc[r] = vec_zero();
    for (int i = 0; i < n; i += SUPER, w += Q6_K_BYTES) {
        struct super_scales s[ROWS];
        for (int r = 0; r < n_rows; r++) {
            super_load_scales(SUPER_Q6_K, &s[r], w + r * row_bytes);
            for (size_t line = 0; line < Q6_K_BYTES; line += 64)
                prefetch(w + r * row_bytes, AHEAD + line);
        }
        for (int part = 0; part < 4; part++) {
            int half = part / 2, c = part % 2;
            const float *xp = x + i + half * 128 + c * 16;
            for (int r = 0; r < n_rows; r++) {
                vec q[4][V16];
                q6_k_quants(q, w + r * row_bytes, half, c);
                for (int row = 0; row < 4; row++) {
                    vec t = vec_mul(q[row][0], vec_load(xp + row * 32));
                    for (int k = 1; k < V16; k++)
                        t = vec_fma(q[row][k], vec_load(xp + row * 32 + k * VEC), t);
                    acc[r] = vec_fma(vec_set1(s[r].scale[half * 8 + row * 2 + c]), t, acc[r]);
                }
            }
        }
    }
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = vec_sum(acc[r]);
}

INLINE void super_rows(enum super_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x,
                       int n)
{
    if (type == SUPER_Q6_K)
        q6_k_rows(y, y_step, w, row_bytes, n_rows, x, n);
    else
        k_rows(type, y, y_step, w, row_bytes, n_rows, x, n);
}

/* ----------------------------------------------------------------------------------------------- entries */

#define WEIGHT_TYPE(name, family, type)                                                                                            \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                          \
    {                                                                                                                              \
        const uint8_t *p = w;                                                                                                      \
        const int quarter = n_rows / ROWS;                                                                                         \
        for (int r = 0; r < quarter; r++)                                                                                          \
            family##_rows(type, y + r, quarter, p + r * row_bytes, quarter * row_bytes, ROWS, x, n);                               \
        for (int r = quarter * ROWS; r < n_rows; r++)                                                                              \
            family##_rows(type, y + r, 0, p + r * row_bytes, 0, 1, x, n);                                                          \
    }                                                                                                                              \
    static void dequant_##name(float *y, const void *row, int n)                                                                   \
    {                                                                                                                              \
        family##_dequant(type, y, row, n);                                                                                         \
    }

WEIGHT_TYPE(f32, plain, PLAIN_F32)
WEIGHT_TYPE(f16, plain, PLAIN_F16)
WEIGHT_TYPE(bf16, plain, PLAIN_BF16)
WEIGHT_TYPE(q8_0, block, BLOCK_Q8_0)
WEIGHT_TYPE(q4_0, block, BLOCK_Q4_0)
WEIGHT_TYPE(q4_1, block, BLOCK_Q4_1)
WEIGHT_TYPE(q5_0, block, BLOCK_Q5_0)
WEIGHT_TYPE(q5_1, block, BLOCK_Q5_1)
WEIGHT_TYPE(q4_k, super, SUPER_Q4_K)
WEIGHT_TYPE(q5_k, super, SUPER_Q5_K)
WEIGHT_TYPE(q6_k, super, SUPER_Q6_K)

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
#undef ENTRY
}

#endif
