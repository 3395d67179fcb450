/* Products with weights in plain C: defines correct for the other kernels. What a row means is in file/weight_types.c. */
#include <math.h>

#include "kernels/ref.h"

/* Rows are decoded a piece at a time: a whole number of blocks of any type. */
#define PIECE SUPER

static void gemv_with(enum butler_type type, float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)
{
    float t[PIECE];
    for (int r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w + (size_t)r * row_bytes;
        float lanes[REF_LANES] = {0};
        for (int c = 0; c < n; c += PIECE) {
            int count = BUTLER_MIN(n - c, PIECE);
            butler_types[type].dequantize(t, row + butler_row_bytes(type, c), count);
            ref_dot_lanes(lanes, t, x + c, count);
        }
        y[r] = ref_sum_lanes(lanes);
    }
}

/* As integers magnitudes have the order of numbers, and infinities and NaN are greatest. */
static float largest_of(const float x[BLOCK])
{
    uint32_t bits = 0;
    for (int i = 0; i < BLOCK; i++)
        bits = BUTLER_MAX(bits, float_to_bits(fabsf(x[i])));
    return bits_to_float(bits);
}

/* Here: the integers times their scale, as floats. */
void butler_ref_quantise_q16(void *q16, enum butler_type type, const float *x, int n, bool alone, float largest)
{
    float *out = q16;
    (void)type, (void)alone;
    for (int c = 0; c < n; c += BLOCK) {
        const float most = largest_of(x + c);
        for (int i = c; i < c + BLOCK; i++)
            out[i] = most < BUTLER_Q16_LEAST_ABSMAX ? 0 : most / largest * rintf(x[i] * (largest / most));
    }
}

/* Here: the tokens' integers, [BUTLER_Q8_TOKENS][n], then their scales, [BUTLER_Q8_TOKENS][n / BLOCK]. */
static const float *scales_of(const void *q8, int token, int n)
{
    return (const float *)((const int8_t *)q8 + (size_t)BUTLER_Q8_TOKENS * (size_t)n) + (size_t)token * (size_t)(n / BLOCK);
}

void butler_ref_quantise_q8(void *q8, enum butler_type type, const float *x, int n_tokens, int n)
{
    int8_t *out = q8;
    (void)type;
    for (int t = 0; t < n_tokens; t++) {
        float *scales = (float *)scales_of(q8, t, n);
        for (int c = 0; c < n; c++) {
            const float *block = x + (size_t)t * (size_t)n + c / BLOCK * BLOCK, absmax = largest_of(block);
            const bool any = !(absmax < BUTLER_Q16_LEAST_ABSMAX);
            const float q = any ? rintf(block[c % BLOCK] * (BUTLER_Q8_MAX / absmax)) : 0;
            scales[c / BLOCK] = any ? absmax / BUTLER_Q8_MAX : 0;
            out[(size_t)t * (size_t)n + (size_t)c] = (int8_t)clamp_to_int(q, -127, 127);
        }
    }
}

/* Here: the rows as they are. */
static void unpack_with(enum butler_type type, void *panel, const void *w, size_t row_bytes, int n_rows, int n)
{
    const size_t size = butler_row_bytes(type, n);
    for (int r = 0; r < n_rows; r++)
        memcpy((uint8_t *)panel + (size_t)r * size, (const uint8_t *)w + (size_t)r * row_bytes, size);
}

static void multiply_with(enum butler_type type, float *y, size_t y_stride, const void *panel, int n_rows, const void *q8,
                          int n_tokens, int n)
{
    float x[PIECE], rows[PIECE];
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < n_rows; r++) {
            const void *block = (const uint8_t *)q8 + (size_t)(t / BUTLER_Q8_TOKENS) * butler_q8_bytes(n);
            const int8_t *q = (const int8_t *)block + (size_t)(t % BUTLER_Q8_TOKENS) * (size_t)n;
            const float *scales = scales_of(block, t % BUTLER_Q8_TOKENS, n);
            float lanes[REF_LANES] = {0};
            for (int c = 0; c < n; c += PIECE) {
                const int count = BUTLER_MIN(n - c, PIECE);
                for (int i = 0; i < count; i++)
                    x[i] = scales[(c + i) / BLOCK] * (float)q[c + i];
                butler_types[type].dequantize(
                    rows, (const uint8_t *)panel + (size_t)r * butler_row_bytes(type, n) + butler_row_bytes(type, c), count);
                ref_dot_lanes(lanes, rows, x, count);
            }
            y[(size_t)t * y_stride + (size_t)r] = ref_sum_lanes(lanes);
        }
}

#define WEIGHT_TYPE(type, name, ...)                                                                                               \
    void butler_ref_matmul_##name(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16,         \
                                  int n_tokens, int n)                                                                             \
    {                                                                                                                              \
        for (int t = 0; t < n_tokens; t++)                                                                                         \
            gemv_with(BUTLER_##type, y + (size_t)t * y_stride, w, row_bytes, n_rows,                                               \
                      (const float *)q16 + (size_t)t * butler_q16_bytes(n) / sizeof(float), n);                                    \
    }                                                                                                                              \
    void butler_ref_unpack_##name(void *panel, const void *w, size_t row_bytes, int n_rows, int n, bool is_signed)                 \
    {                                                                                                                              \
        (void)is_signed;                                                                                                           \
        unpack_with(BUTLER_##type, panel, w, row_bytes, n_rows, n);                                                                \
    }                                                                                                                              \
    void butler_ref_multiply_##name(float *y, size_t y_stride, const void *panel, int n_rows, const void *q8, int n_tokens, int n) \
    {                                                                                                                              \
        multiply_with(BUTLER_##type, y, y_stride, panel, n_rows, q8, n_tokens, n);                                                 \
    }                                                                                                                              \
    void butler_ref_gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n)                      \
    {                                                                                                                              \
        gemv_with(BUTLER_##type, y, w, row_bytes, n_rows, x, n);                                                                   \
    }
BUTLER_WEIGHT_TYPES(WEIGHT_TYPE)

void butler_ref_gemm(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n)
{
    for (int t = 0; t < n_tokens; t++)
        for (int r = 0; r < n_rows; r++)
            y[t * y_stride + r] = ref_dot(w + (size_t)r * n, x + t * x_stride, n);
}
