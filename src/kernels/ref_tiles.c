/* Products of packed blocks in plain C: how a packed operand lies in memory, and what becomes of its two parts. */
#include "kernels/ref.h"

/* Element c of line i of an operand, n lines of k, as its high part and the rest. at: words from its tile to the element. */
static void put(uint16_t *packed, int i, int c, int k, size_t at, float x)
{
    uint16_t *tile = packed + ((size_t)(i / 16) * BUTLER_CEIL_DIV((size_t)k, BUTLER_TILE_K) + (size_t)(c / BUTLER_TILE_K)) * 1024;
    tile[at] = float_to_bf16(x);
    tile[512 + at] = float_to_bf16(x - bf16_to_float(tile[at]));
}

/* Rows lie one after the other; of columns, pairs of neighbours in k do. */
static size_t row_at(int i, int c)
{
    return (size_t)(i % 16 * BUTLER_TILE_K + c % BUTLER_TILE_K);
}

static size_t column_at(int i, int c)
{
    return (size_t)(c % BUTLER_TILE_K / 2 * 32 + i % 16 * 2 + c % 2);
}

void butler_ref_pack_rows(void *packed, const float *x, size_t stride, int n, int k)
{
    memset(packed, 0, butler_packed_bytes(n, k));
    for (int i = 0; i < n; i++)
        for (int c = 0; c < k; c++)
            put(packed, i, c, k, row_at(i, c), x[(size_t)i * stride + (size_t)c]);
}

void butler_ref_pack_columns(void *packed, const float *x, size_t stride, int n, int k)
{
    memset(packed, 0, butler_packed_bytes(n, k));
    for (int i = 0; i < n; i++)
        for (int c = 0; c < k; c++)
            put(packed, i, c, k, column_at(i, c), x[(size_t)i * stride + (size_t)c]);
}

void butler_ref_pack_turned(void *packed, const float *x, size_t stride, int n, int k)
{
    memset(packed, 0, butler_packed_bytes(n, k));
    for (int i = 0; i < n; i++)
        for (int c = 0; c < k; c++)
            put(packed, i, c, k, row_at(i, c), x[(size_t)c * stride + (size_t)i]);
}

/* Element c of line i of an operand, lines of k: its high part, and its low one 512 words further on. */
static const uint16_t *part_of(const void *packed, int i, int c, int k, bool column)
{
    return (const uint16_t *)packed +
           ((size_t)(i / 16) * BUTLER_CEIL_DIV((size_t)k, BUTLER_TILE_K) + (size_t)(c / BUTLER_TILE_K)) * 1024 +
           (column ? column_at(i, c) : row_at(i, c));
}

/* high, low: two parts of one factor; y: those of the other. */
static float product(float high, float low, const uint16_t *y)
{
    return high * bf16_to_float(y[512]) + high * bf16_to_float(*y) + low * bf16_to_float(*y);
}

/* The scores of the keys [first, first + n) that a row sees, and the whole number above all so far. */
static float scores_of(const struct butler_attention *a, int row, int first, int n, float *scores)
{
    float max = a->max[row];
    for (int j = 0; j < n; j++) {
        const int key = first + j;
        float sum = 0;
        for (int d = 0; d < a->dim; d++) {
            const uint16_t *x = part_of(a->queries, row, d, a->dim, true);
            sum += product(bf16_to_float(*x), bf16_to_float(x[512]), part_of(a->keys, butler_attend_place(key), d, a->dim, false));
        }
        scores[j] = key >= a->begin[row] && key < a->end[row] ? sum : -INFINITY;
        const float up = ceilf(scores[j] * 1.44269504f);
        max = up <= max ? max : up; /* a NaN stays */
    }
    return max;
}

void butler_ref_attend_packed(const struct butler_attention *a)
{
    const int n_packed = BUTLER_CEIL_DIV(a->n_keys, BUTLER_ATTEND_KEYS) * BUTLER_ATTEND_KEYS;
    for (int row = 0; row < a->n_rows; row++)
        for (int first = 0; first < a->n_keys; first += BUTLER_ATTEND_KEYS) {
            const int n = BUTLER_MIN(a->n_keys - first, BUTLER_ATTEND_KEYS);
            float weights[BUTLER_ATTEND_KEYS];
            const float max = scores_of(a, row, first, n, weights), factor = exp2f(a->max[row] - max);
            a->max[row] = max;
            a->sum[row] *= factor;
            for (int j = 0; j < n; j++) {
                const double e = exp2((double)weights[j] * 1.4426950408889634 - (double)max);
                weights[j] = e < 0x1p-126 ? 0 : (float)e;
                a->sum[row] += weights[j];
                if (a->kept)
                    a->kept[(size_t)row * a->kept_stride + (size_t)(first + j)] = weights[j];
            }
            if (a->kept)
                a->maxima[(size_t)(first / BUTLER_ATTEND_KEYS) * a->maxima_stride + (size_t)row] = max;
            for (int d = 0; d < a->dim; d++) {
                float *out = a->out + butler_attend_at(row, d, a->dim), sum = *out * factor;
                for (int j = 0; j < n; j++) {
                    const float high = bf16_to_float(float_to_bf16(weights[j]));
                    const float low = bf16_to_float(float_to_bf16(weights[j] - high));
                    sum += product(high, low, part_of(a->values, d, first + j, n_packed, false));
                }
                *out = sum;
            }
        }
}

/* ------------------------------------------------------------------------------- 16-bit fixed point in two bytes */

static size_t fixed_row_at(int i, int c)
{
    return (size_t)(i % 16 * BUTLER_FIXED_K + c % BUTLER_FIXED_K);
}

static size_t fixed_column_at(int i, int c)
{
    return (size_t)(c % BUTLER_FIXED_K / 4 * 64 + i % 16 * 4 + c % 4);
}

static int8_t *fixed_tile(const void *packed, int i, int c, int k)
{
    return (int8_t *)packed + (size_t)(i / 16) * butler_fixed_bytes(16, k) + (size_t)(c / BUTLER_FIXED_K) * BUTLER_TILE_BYTES;
}

static void put_fixed(int8_t *at, int q)
{
    const int high = (q + 128 + 32768) / 256 - 128;
    at[0] = (int8_t)high;
    at[1024] = (int8_t)(q - 256 * high);
}

static void pack_fixed(void *packed, float *scales, const float *x, size_t stride, int n, int k, size_t (*at)(int, int))
{
    memset(packed, 0, butler_fixed_bytes(n, k));
    memset(scales, 0, BUTLER_CEIL_DIV((size_t)n, 16) * 16 * sizeof *scales);
    for (int i = 0; i < n; i++) {
        uint32_t most_bits = 0;
        for (int c = 0; c < k; c++)
            most_bits = BUTLER_MAX(most_bits, float_to_bits(fabsf(x[(size_t)i * stride + (size_t)c])));
        const float most = bits_to_float(most_bits);
        if (most < BUTLER_FIXED_LEAST)
            continue;
        scales[i] = most / BUTLER_FIXED_MOST;
        for (int c = 0; c < k; c++) {
            const float scaled = x[(size_t)i * stride + (size_t)c] * (BUTLER_FIXED_MOST / most);
            put_fixed(fixed_tile(packed, i, c, k) + at(i, c), clamp_to_int(nearbyintf(scaled), -32639, 32639));
        }
    }
}

void butler_ref_pack_fixed_rows(void *packed, float *scales, const float *x, size_t stride, int n, int k)
{
    pack_fixed(packed, scales, x, stride, n, k, fixed_row_at);
}

void butler_ref_pack_fixed_columns(void *packed, float *scales, const float *x, size_t stride, int n, int k)
{
    pack_fixed(packed, scales, x, stride, n, k, fixed_column_at);
}

/* Element i of a block. */
typedef int block_element(const uint8_t *block, int i);

static int element_q8_0(const uint8_t *block, int i)
{
    return (int8_t)block[Q8_0_QUANTS + i];
}

static int element_q4_0(const uint8_t *block, int i)
{
    return (block[Q4_0_QUANTS + i % 16] >> i / 16 * 4 & 15) - 8;
}

static int element_q5_0(const uint8_t *block, int i)
{
    return (block[Q5_0_QUANTS + i % 16] >> i / 16 * 4 & 15) + (int)(load_u32(block + Q5_0_HIGH) >> i & 1) * 16 - 16;
}

static void pack_blocks(void *packed, float *scales, const uint8_t *row, size_t row_bytes, int n, int k, int size, int range,
                        block_element *element)
{
    memset(packed, 0, butler_fixed_bytes(n, k));
    memset(scales, 0, BUTLER_CEIL_DIV((size_t)n, 16) * 16 * sizeof *scales);
    for (int i = 0; i < n; i++, row += row_bytes) {
        uint32_t top_bits = 0;
        for (int b = 0; b < k / BLOCK; b++)
            top_bits = BUTLER_MAX(top_bits, float_to_bits(fabsf(load_half(row + b * size))));
        const float top = bits_to_float(top_bits);
        if (top < BUTLER_FIXED_LEAST)
            continue;
        scales[i] = top / BUTLER_FIXED_MOST * (float)range;
        for (int c = 0; isfinite(top) && c < k; c++) {
            const uint8_t *block = row + c / BLOCK * size;
            const int f = clamp_to_int(nearbyintf(load_half(block) * (BUTLER_FIXED_MOST / top)), -32639, 32639);
            const int doubled = 2 * f * element(block, c % BLOCK) + range; /* of q, and a half to round down from */
            put_fixed(fixed_tile(packed, i, c, k) + fixed_column_at(i, c), (doubled + 65536 * range) / (2 * range) - 32768);
        }
    }
}

void butler_ref_pack_fixed_q8_0(void *packed, float *scales, const void *rows, size_t row_bytes, int n, int k)
{
    pack_blocks(packed, scales, rows, row_bytes, n, k, Q8_0_BYTES, 128, element_q8_0);
}

void butler_ref_pack_fixed_q4_0(void *packed, float *scales, const void *rows, size_t row_bytes, int n, int k)
{
    pack_blocks(packed, scales, rows, row_bytes, n, k, Q4_0_BYTES, 8, element_q4_0);
}

void butler_ref_pack_fixed_q5_0(void *packed, float *scales, const void *rows, size_t row_bytes, int n, int k)
{
    pack_blocks(packed, scales, rows, row_bytes, n, k, Q5_0_BYTES, 16, element_q5_0);
}

void butler_ref_multiply_fixed(float *c, size_t c_stride, const void *a, const float *a_scales, const void *b,
                               const float *b_scales, int m, int n, int k, bool more)
{
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            int32_t upper = 0, mixed = 0;
            for (int d = 0; d < k; d++) {
                const int8_t *x = fixed_tile(a, i, d, k) + fixed_row_at(i, d);
                const int8_t *y = fixed_tile(b, j, d, k) + fixed_column_at(j, d);
                upper += x[0] * y[0];
                mixed += x[0] * y[1024] + x[1024] * y[0];
            }
            const float v = (float)(256 * upper + mixed) * a_scales[i];
            float *to = c + (size_t)i * c_stride + (size_t)j;
            *to = more ? fmaf(v, 256 * b_scales[j], *to) : v * (256 * b_scales[j]);
        }
}
