/* Weights in plain C: what a row of each type means, and products with it. Defines correct for the other kernels. */
#include <math.h>

#include "kernels/ref.h"

/* Rows are decoded a piece at a time: a whole number of blocks of any type. */
#define PIECE SUPER

/* Elements [first, first + count) of a row, first a multiple of the block, count one too and at most PIECE. */
typedef void decode_fn(float *t, const uint8_t *row, int first, int count);

static void decode_f32(float *t, const uint8_t *row, int first, int count)
{
    memcpy(t, row + (size_t)first * 4, (size_t)count * 4);
}

static void decode_f16(float *t, const uint8_t *row, int first, int count)
{
    for (int i = 0; i < count; i++)
        t[i] = load_half(row + ((size_t)first + i) * 2);
}

static void decode_bf16(float *t, const uint8_t *row, int first, int count)
{
    for (int i = 0; i < count; i++)
        t[i] = bf16_to_float(load_u16(row + ((size_t)first + i) * 2));
}

static void decode_q8_0(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / BLOCK) * Q8_0_BYTES;
    for (; count > 0; count -= BLOCK, t += BLOCK, b += Q8_0_BYTES) {
        float d = load_half(b);
        for (int i = 0; i < BLOCK; i++)
            t[i] = d * (float)(int8_t)b[Q8_0_QUANTS + i];
    }
}

/* The four nibble types: x = d (q - offset) + m. */
static inline void decode_nibbles(float *t, const uint8_t *quants, uint32_t high, float d, int offset, float m)
{
    for (int i = 0; i < 16; i++) {
        int low = (quants[i] & 15) | (int)(high >> i & 1) << 4;
        int top = quants[i] >> 4 | (int)(high >> (i + 16) & 1) << 4;
        t[i] = d * (float)(low - offset) + m;
        t[i + 16] = d * (float)(top - offset) + m;
    }
}

static void decode_q4_0(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / BLOCK) * Q4_0_BYTES;
    for (; count > 0; count -= BLOCK, t += BLOCK, b += Q4_0_BYTES)
        decode_nibbles(t, b + Q4_0_QUANTS, 0, load_half(b), 8, 0);
}

static void decode_q4_1(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / BLOCK) * Q4_1_BYTES;
    for (; count > 0; count -= BLOCK, t += BLOCK, b += Q4_1_BYTES)
        decode_nibbles(t, b + Q4_1_QUANTS, 0, load_half(b), 0, load_half(b + 2));
}

static void decode_q5_0(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / BLOCK) * Q5_0_BYTES;
    for (; count > 0; count -= BLOCK, t += BLOCK, b += Q5_0_BYTES)
        decode_nibbles(t, b + Q5_0_QUANTS, load_u32(b + Q5_0_HIGH), load_half(b), 16, 0);
}

static void decode_q5_1(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / BLOCK) * Q5_1_BYTES;
    for (; count > 0; count -= BLOCK, t += BLOCK, b += Q5_1_BYTES)
        decode_nibbles(t, b + Q5_1_QUANTS, load_u32(b + Q5_1_HIGH), load_half(b), 0, load_half(b + 2));
}

/* One Q4_K (high NULL) or Q5_K block. */
static void decode_k(float *t, const uint8_t *b, const uint8_t *high, const uint8_t *quants)
{
    uint8_t scales[8], minima[8];
    float d = load_half(b), m = load_half(b + 2);
    unpack_k_scales(b + Q4_K_SCALES, scales, minima);
    for (int g = 0; g < 8; g++) {
        float ds = d * scales[g], mt = m * minima[g];
        for (int i = 0; i < 32; i++) {
            int q = quants[g / 2 * 32 + i] >> (g % 2 * 4) & 15;
            if (high)
                q |= (high[i] >> g & 1) << 4;
            t[g * 32 + i] = ds * (float)q - mt;
        }
    }
}

static void decode_q4_k(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / SUPER) * Q4_K_BYTES;
    for (; count > 0; count -= SUPER, t += SUPER, b += Q4_K_BYTES)
        decode_k(t, b, NULL, b + Q4_K_QUANTS);
}

static void decode_q5_k(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / SUPER) * Q5_K_BYTES;
    for (; count > 0; count -= SUPER, t += SUPER, b += Q5_K_BYTES)
        decode_k(t, b, b + Q5_K_HIGH, b + Q5_K_QUANTS);
}

static void decode_q6_k(float *t, const uint8_t *row, int first, int count)
{
    const uint8_t *b = row + (size_t)(first / SUPER) * Q6_K_BYTES;
    for (; count > 0; count -= SUPER, t += SUPER, b += Q6_K_BYTES) {
        float d = load_half(b + Q6_K_SCALE);
        for (int i = 0; i < SUPER; i++) {
            /* A half of 128 elements is four rows of 32 (quarter): rows 0 and 1 lie in the low nibbles of 64 bytes, rows 2
             * and 3 in the high ones; a byte of pairs serves one column of all four rows. */
            int half = i / 128, quarter = i / 32 % 4, column = i % 32;
            int low = b[half * 64 + quarter % 2 * 32 + column] >> (quarter / 2 * 4) & 15;
            int high = b[Q6_K_HIGH + half * 32 + column] >> (quarter * 2) & 3;
            t[i] = d * (float)(int8_t)b[Q6_K_SCALES + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- products */

static inline void dequant_with(decode_fn *decode, float *y, const void *row, int n)
{
    for (int c = 0; c < n; c += PIECE)
        decode(y + c, row, c, BUTLER_MIN(n - c, PIECE));
}

static inline void gemv_with(decode_fn *decode, float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    float t[PIECE];
    for (int r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w + (size_t)r * row_bytes;
        float lanes[REF_LANES] = {0};
        for (int c = 0; c < n; c += PIECE) {
            int count = BUTLER_MIN(n - c, PIECE);
            decode(t, row, c, count);
            ref_dot_lanes(lanes, t, x + c, count);
        }
        y[r] = ref_sum_lanes(lanes);
    }
}

/* Here: the floats that the integers stand for. */
void butler_ref_quantise_q16(void *q16, enum butler_type type, const float *x, int n, bool alone)
{
    float *out = q16;
    (void)type, (void)alone;
    for (int c = 0; c < n; c += BLOCK) {
        uint32_t bits = 0; /* as integers magnitudes have the order of numbers, and infinities and NaN are greatest */
        for (int i = c; i < c + BLOCK; i++)
            bits = BUTLER_MAX(bits, float_to_bits(fabsf(x[i])));
        const float most = bits_to_float(bits);
        for (int i = c; i < c + BLOCK; i++)
            out[i] = most < BUTLER_FIXED_LEAST ? 0 : most / BUTLER_FIXED_MOST * rintf(x[i] * (BUTLER_FIXED_MOST / most));
    }
}

#define WEIGHT_TYPE(name)                                                                                                          \
    void butler_ref_matmul_##name(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16,         \
                                  int n_tokens, int n)                                                                             \
    {                                                                                                                              \
        for (int t = 0; t < n_tokens; t++)                                                                                         \
            gemv_with(decode_##name, y + (size_t)t * y_stride, w, row_bytes, n_rows,                                               \
                      (const float *)q16 + (size_t)t * butler_q16_bytes(n) / sizeof(float), n);                                    \
    }                                                                                                                              \
    void butler_ref_dequant_##name(float *y, const void *row, int n)                                                               \
    {                                                                                                                              \
        dequant_with(decode_##name, y, row, n);                                                                                    \
    }                                                                                                                              \
    void butler_ref_gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                      \
    {                                                                                                                              \
        gemv_with(decode_##name, y, w, row_bytes, n_rows, x, n);                                                                   \
    }
REF_WEIGHT_TYPES(WEIGHT_TYPE)

void butler_ref_gemm(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n)
{
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < n_rows; r++)
            y[t * y_stride + r] = ref_dot(w + (size_t)r * n, x + t * x_stride, n);
}

/* ------------------------------------------------------------------------------------------ quantisation */

static void quantize_q4_0(uint8_t *b, const float *x, int n)
{
    for (; n > 0; n -= BLOCK, x += BLOCK, b += Q4_0_BYTES) {
        float extreme = 0;
        for (int i = 0; i < BLOCK; i++)
            extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
        /* The range is -8..7: the largest magnitude takes -8, whatever its sign, so d may be negative. */
        float d = extreme / -8, inverse = d != 0 ? 1 / d : 0;
        store_half(b, d);
        for (int i = 0; i < 16; i++) {
            int low = ref_clamp(x[i] * inverse + 8.5f, 0, 15), high = ref_clamp(x[i + 16] * inverse + 8.5f, 0, 15);
            b[Q4_0_QUANTS + i] = (uint8_t)(low | high << 4);
        }
    }
}

bool butler_quantize_row(enum butler_type type, void *row, const float *x, int n)
{
    uint8_t *out = row;
    switch (type) {
    case BUTLER_F32:
        memcpy(row, x, (size_t)n * 4);
        return true;
    case BUTLER_F16:
        for (int i = 0; i < n; i++)
            store_half(out + (size_t)i * 2, x[i]);
        return true;
    case BUTLER_BF16:
        for (int i = 0; i < n; i++) {
            uint16_t b = float_to_bf16(x[i]);
            memcpy(out + (size_t)i * 2, &b, 2);
        }
        return true;
    case BUTLER_Q8_0:
        if (n % BLOCK != 0)
            return false;
        ref_quantize_q8_0(out, x, n);
        return true;
    case BUTLER_Q4_0:
        if (n % BLOCK != 0)
            return false;
        quantize_q4_0(out, x, n);
        return true;
    default:
        return false;
    }
}
