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

/* Here: the integers times their scale, as floats. */
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
            out[i] = most < BUTLER_Q16_LEAST_ABSMAX ? 0 : most / BUTLER_Q16_MAX * rintf(x[i] * (BUTLER_Q16_MAX / most));
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
