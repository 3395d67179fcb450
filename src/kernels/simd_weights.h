/* Products with weights, written once for every vector width: included by each ISA file after its vec*.h. Weights are
 * widened in registers and multiplied by float activations; where simd_fixed.h has a faster product of a quantised type, this one
 * serves those who want it exact. Four rows go together and share the loads of x; each row has
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

/* One block of each row. The sum of x w over it is d (q . x) + m (1 . x): the scale is applied once to a vector of partial
 * sums. */
INLINE void block_step(enum block_type type, vec acc[ROWS], const uint8_t *w, size_t row_bytes, int n_rows, const float *x)
{
    float d[ROWS], m[ROWS];
    vec xs[V32], sum = vec_zero();
    load_halves(d, w, row_bytes, n_rows);
    for (int k = 0; k < V32; k++)
        xs[k] = vec_load(x + k * VEC);
    if (block_has_minimum(type)) {
        load_halves(m, w + 2, row_bytes, n_rows);
        sum = xs[0];
        for (int k = 1; k < V32; k++)
            sum = vec_add(sum, xs[k]);
    }
    for (int r = 0; r < n_rows; r++) {
        vec q[V32];
        block_quants(type, q, w + r * row_bytes);
        vec t = vec_mul(q[0], xs[0]);
        for (int k = 1; k < V32; k++)
            t = vec_fma(q[k], xs[k], t);
        acc[r] = vec_fma(vec_set1(d[r]), t, acc[r]);
        if (block_has_minimum(type))
            acc[r] = vec_fma(vec_set1(m[r]), sum, acc[r]);
    }
}

INLINE void block_rows(enum block_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x,
                       int n)
{
    const size_t size = block_bytes(type);
    vec acc[ROWS];
    int i = 0;
    for (int r = 0; r < n_rows; r++)
        acc[r] = vec_zero();
    /* Two small blocks share a cache line and one prefetch. */
    for (; i + 2 * BLOCK <= n; i += 2 * BLOCK, w += 2 * size) {
        for (int r = 0; r < n_rows; r++) {
            prefetch(w + r * row_bytes, AHEAD);
            if (2 * size > 64)
                prefetch(w + r * row_bytes, AHEAD + size);
        }
        block_step(type, acc, w, row_bytes, n_rows, x + i);
        block_step(type, acc, w + size, row_bytes, n_rows, x + i + BLOCK);
    }
    if (i < n)
        block_step(type, acc, w, row_bytes, n_rows, x + i);
    for (int r = 0; r < n_rows; r++)
        y[r * y_step] = vec_sum(acc[r]);
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

INLINE void super_prefetch(enum super_type type, const uint8_t *w, size_t row_bytes, int n_rows)
{
    for (int r = 0; r < n_rows; r++)
        for (size_t line = 0; line < super_bytes(type); line += 64)
            prefetch(w + r * row_bytes, AHEAD + line);
}

/* Products with one Q4_K or Q5_K block but for its minima, and with one Q6_K block. Several partial sums, because one alone
 * would wait for each of its additions. */
INLINE vec k_block(enum super_type type, const uint8_t *b, const float scales[16], const float *x)
{
    vec part[4];
    UNROLL
    for (int pair = 0; pair < 4; pair++) {
        vec q[2][V32];
        k_quants(type, q[0], q[1], b, pair);
        UNROLL
        for (int h = 0; h < 2; h++) {
            vec t = vec_mul(q[h][0], vec_load(x + pair * 64 + h * 32));
            UNROLL
            for (int k = 1; k < V32; k++)
                t = vec_fma(q[h][k], vec_load(x + pair * 64 + h * 32 + k * VEC), t);
            vec scale = vec_set1(scales[2 * pair + h]);
            part[pair % 2 * 2 + h] = pair < 2 ? vec_mul(scale, t) : vec_fma(scale, t, part[pair % 2 * 2 + h]);
        }
    }
    return vec_add(vec_add(part[0], part[1]), vec_add(part[2], part[3]));
}

INLINE vec q6_k_block(const uint8_t *b, const float scales[16], const float *x)
{
    vec part[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        const int half = i / 2, c = i % 2;
        vec q[4][V16];
        q6_k_quants(q, b, half, c);
        UNROLL
        for (int row = 0; row < 4; row++) {
            const float *xs = x + half * 128 + row * 32 + c * 16;
            vec t = vec_mul(q[row][0], vec_load(xs)), scale = vec_set1(scales[half * 8 + row * 2 + c]);
            UNROLL
            for (int k = 1; k < V16; k++)
                t = vec_fma(q[row][k], vec_load(xs + k * VEC), t);
            part[row] = i == 0 ? vec_mul(scale, t) : vec_fma(scale, t, part[row]);
        }
    }
    return vec_add(vec_add(part[0], part[1]), vec_add(part[2], part[3]));
}

/* y (+)= w x. sums[n / 32] are the sums of x over each group, so that the minima of a whole block cost one multiplication of
 * eight lanes (Q6_K has none). */
INLINE void super_rows(enum super_type type, float *y, int y_step, const uint8_t *w, size_t row_bytes, int n_rows, const float *x,
                       const float *sums, int n, bool more)
{
    vec acc[ROWS];
    vec8 minima[ROWS];
    for (int r = 0; r < n_rows; r++) {
        acc[r] = vec_zero();
        minima[r] = vec8_zero();
    }
    for (int i = 0; i < n; i += SUPER, w += super_bytes(type)) {
        super_prefetch(type, w, row_bytes, n_rows);
        for (int r = 0; r < n_rows; r++) {
            float scales[16];
            super_load_scales(type, scales, w + r * row_bytes);
            if (type == SUPER_Q6_K) {
                acc[r] = vec_add(acc[r], q6_k_block(w + r * row_bytes, scales, x + i));
            } else {
                acc[r] = vec_add(acc[r], k_block(type, w + r * row_bytes, scales, x + i));
                minima[r] = vec8_load_fnma(scales + 8, sums + i / 32, minima[r]);
            }
        }
    }
    for (int r = 0; r < n_rows; r++) {
        float sum = vec_sum(acc[r]);
        if (type != SUPER_Q6_K)
            sum += vec8_sum(minima[r]);
        y[r * y_step] = more ? y[r * y_step] + sum : sum;
    }
}

/* Columns at a time, for which sums of x fit the stack. A multiple of SUPER. */
#define K_COLUMNS 32768

INLINE void super_gemv(enum super_type type, float *y, const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    const int quarter = n_rows / ROWS;
    float sums[K_COLUMNS / 32];
    for (int first = 0; first < n; first += K_COLUMNS, w += K_COLUMNS / SUPER * super_bytes(type)) {
        const int count = BUTLER_MIN(n - first, K_COLUMNS);
        const float *xs = x + first;
        for (int g = 0; g < count / 32 && type != SUPER_Q6_K; g++) {
            vec sum = vec_load(xs + g * 32);
            for (int k = 1; k < V32; k++)
                sum = vec_add(sum, vec_load(xs + g * 32 + k * VEC));
            sums[g] = vec_sum(sum);
        }
        for (int r = 0; r < quarter; r++)
            super_rows(type, y + r, quarter, w + r * row_bytes, quarter * row_bytes, ROWS, xs, sums, count, first > 0);
        for (int r = quarter * ROWS; r < n_rows; r++)
            super_rows(type, y + r, 0, w + r * row_bytes, 0, 1, xs, sums, count, first > 0);
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

INLINE void block_gemv(enum block_type type, float *y, const uint8_t *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    const int quarter = n_rows / ROWS;
    for (int r = 0; r < quarter; r++)
        block_rows(type, y + r, quarter, w + r * row_bytes, quarter * row_bytes, ROWS, x, n);
    for (int r = quarter * ROWS; r < n_rows; r++)
        block_rows(type, y + r, 0, w + r * row_bytes, 0, 1, x, n);
}

#define WEIGHT_TYPE(name, family, type)                                                                                            \
    static void gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                          \
    {                                                                                                                              \
        family##_gemv(type, y, w, row_bytes, n_rows, x, n);                                                                        \
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
