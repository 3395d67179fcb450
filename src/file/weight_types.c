/* Weights as files store them: the types, what a row of each means, and rounding to those that we write. This is the
 * definition that the kernels of every ISA are compared with. */
#include "file/weight_types.h"

#include <math.h>
#include <string.h>

#include "base/util.h"
#include "file/weight_blocks.h"

#define ROW(type, name, block, bytes) [BUTLER_##type] = {#type, block, bytes, butler_dequantize_##name},
const struct butler_type_info butler_types[BUTLER_N_TYPES] = {BUTLER_WEIGHT_TYPES(ROW)};

bool butler_type_known(uint32_t type)
{
    return type < BUTLER_N_TYPES && butler_types[type].name;
}

const char *butler_type_name(uint32_t type)
{
    static const char *const others[] = {[9] = "Q8_1",   [15] = "Q8_K",  [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
                                         [19] = "IQ1_S", [21] = "IQ3_S", [22] = "IQ2_S",   [24] = "I8",     [25] = "I16",
                                         [26] = "I32",   [27] = "I64",   [28] = "F64",     [29] = "IQ1_M",  [40] = "NVFP4"};
    if (butler_type_known(type))
        return butler_types[type].name;
    return type < BUTLER_COUNT(others) && others[type] ? others[type] : "unknown";
}

size_t butler_row_bytes(enum butler_type type, int64_t n)
{
    return (size_t)n / (size_t)butler_types[type].block * (size_t)butler_types[type].block_bytes;
}

float butler_half_to_float(uint16_t h)
{
    return half_to_float(h);
}

uint16_t butler_float_to_half(float f)
{
    return float_to_half(f);
}

/* ---------------------------------------------------------------------------------------- dequantisation */

void butler_dequantize_f32(float *y, const void *row, int n)
{
    memcpy(y, row, (size_t)n * 4);
}

void butler_dequantize_f16(float *y, const void *row, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = load_half((const uint8_t *)row + (size_t)i * 2);
}

void butler_dequantize_bf16(float *y, const void *row, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = bf16_to_float(load_u16((const uint8_t *)row + (size_t)i * 2));
}

void butler_dequantize_q8_0(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += Q8_0_BYTES) {
        float d = load_half(b);
        for (int i = 0; i < BLOCK; i++)
            y[i] = d * (float)(int8_t)b[Q8_0_QUANTS + i];
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

void butler_dequantize_q4_0(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += Q4_0_BYTES)
        decode_nibbles(y, b + Q4_0_QUANTS, 0, load_half(b), 8, 0);
}

void butler_dequantize_q4_1(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += Q4_1_BYTES)
        decode_nibbles(y, b + Q4_1_QUANTS, 0, load_half(b), 0, load_half(b + 2));
}

void butler_dequantize_q5_0(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += Q5_0_BYTES)
        decode_nibbles(y, b + Q5_0_QUANTS, load_u32(b + Q5_0_HIGH), load_half(b), 16, 0);
}

void butler_dequantize_q5_1(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += Q5_1_BYTES)
        decode_nibbles(y, b + Q5_1_QUANTS, load_u32(b + Q5_1_HIGH), load_half(b), 0, load_half(b + 2));
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

void butler_dequantize_q4_k(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += Q4_K_BYTES)
        decode_k(y, b, NULL, b + Q4_K_QUANTS);
}

void butler_dequantize_q5_k(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += Q5_K_BYTES)
        decode_k(y, b, b + Q5_K_HIGH, b + Q5_K_QUANTS);
}

void butler_dequantize_q6_k(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += Q6_K_BYTES) {
        float d = load_half(b + Q6_K_SCALE);
        for (int i = 0; i < SUPER; i++) {
            /* A half of 128 elements is four rows of 32 (quarter): rows 0 and 1 lie in the low nibbles of 64 bytes, rows 2
             * and 3 in the high ones; a byte of pairs serves one column of all four rows. */
            int half = i / 128, quarter = i / 32 % 4, column = i % 32;
            int low = b[half * 64 + quarter % 2 * 32 + column] >> (quarter / 2 * 4) & 15;
            int high = b[Q6_K_HIGH + half * 32 + column] >> (quarter * 2) & 3;
            y[i] = d * (float)(int8_t)b[Q6_K_SCALES + i / 16] * (float)((low | high << 4) - 32);
        }
    }
}

/* Element i of group g of 16, of two bits. */
static inline int pair_of(const uint8_t *quants, int g, int i)
{
    return quants[g / 8 * 32 + g % 2 * 16 + i] >> (g / 2 % 4 * 2) & 3;
}

void butler_dequantize_q2_k(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += Q2_K_BYTES) {
        float d = load_half(b + Q2_K_SCALE), m = load_half(b + Q2_K_SCALE + 2);
        for (int g = 0; g < 16; g++) {
            float ds = d * (float)(b[g] & 15), mt = m * (float)(b[g] >> 4);
            for (int i = 0; i < 16; i++)
                y[g * 16 + i] = ds * (float)pair_of(b + Q2_K_QUANTS, g, i) - mt;
        }
    }
}

void butler_dequantize_q3_k(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += Q3_K_BYTES) {
        float d = load_half(b + Q3_K_SCALE);
        uint64_t words[2];
        unpack_q3_scales(b + Q3_K_SCALES, words);
        for (int g = 0; g < 16; g++) {
            float ds = d * (float)(int8_t)(words[g / 8] >> g % 8 * 8);
            for (int i = 0; i < 16; i++) {
                int third = b[g % 2 * 16 + i] >> (g / 2) & 1;
                y[g * 16 + i] = ds * (float)((pair_of(b + Q3_K_QUANTS, g, i) | third << 2) - 4);
            }
        }
    }
}

void butler_dequantize_tq2_0(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += TQ2_0_BYTES) {
        float d = load_half(b + TQ2_0_SCALE);
        for (int g = 0; g < 16; g++)
            for (int i = 0; i < 16; i++)
                y[g * 16 + i] = d * (float)(pair_of(b, g, i) - 1);
    }
}

void butler_dequantize_tq1_0(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += TQ1_0_BYTES) {
        uint8_t digits[SUPER];
        float d = load_half(b + TQ1_0_SCALE);
        tq1_digits(digits, b);
        for (int i = 0; i < SUPER; i++)
            y[i] = d * (float)(digits[i] - 1);
    }
}

/* 32 nibbles that are indices of a table of values. */
static inline void decode_table(float *t, const uint8_t *quants, const int8_t values[16], float d)
{
    for (int i = 0; i < 16; i++) {
        t[i] = d * (float)values[quants[i] & 15];
        t[i + 16] = d * (float)values[quants[i] >> 4];
    }
}

void butler_dequantize_iq4_nl(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += IQ4_NL_BYTES)
        decode_table(y, b + IQ4_NL_QUANTS, IQ4_VALUES, load_half(b));
}

void butler_dequantize_iq4_xs(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= SUPER, y += SUPER, b += IQ4_XS_BYTES) {
        uint64_t scales = unpack_iq4_scales(b + IQ4_XS_SCALES);
        for (int g = 0; g < 8; g++)
            decode_table(y + g * 32, b + IQ4_XS_QUANTS + g * 16, IQ4_VALUES, load_half(b) * (float)(int8_t)(scales >> g * 8));
    }
}

void butler_dequantize_mxfp4(float *y, const void *row, int n)
{
    const uint8_t *b = row;
    for (; n > 0; n -= BLOCK, y += BLOCK, b += MXFP4_BYTES)
        decode_table(y, b + MXFP4_QUANTS, MXFP4_VALUES, mxfp4_scale(b[0]));
}

/* ------------------------------------------------------------------------------------------ quantisation */

/* Ties away from zero, as writers of GGUF files round, so that they and we agree bit for bit. */
static void quantize_q8_0(uint8_t *b, const float *x, int n)
{
    for (; n > 0; n -= BLOCK, x += BLOCK, b += Q8_0_BYTES) {
        float extreme = 0;
        bool finite = true;
        for (int i = 0; i < BLOCK; i++) {
            extreme = fabsf(x[i]) > extreme ? fabsf(x[i]) : extreme;
            finite = finite && isfinite(x[i]);
        }
        if (!finite) {
            store_q8_0_not_finite(b);
            continue;
        }
        float d = extreme / 127, inverse = d != 0 ? 1 / d : 0;
        store_half(b, d);
        for (int i = 0; i < BLOCK; i++)
            b[Q8_0_QUANTS + i] = (uint8_t)(int8_t)clamp_to_int(roundf(x[i] * inverse), -127, 127);
    }
}

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
            int low = clamp_to_int(x[i] * inverse + 8.5f, 0, 15), high = clamp_to_int(x[i + 16] * inverse + 8.5f, 0, 15);
            b[Q4_0_QUANTS + i] = (uint8_t)(low | high << 4);
        }
    }
}

/* In eight partial sums, which a compiler can keep in a vector. */
static double dot_quants(const float *x, const int *q, int n)
{
    float lanes[8] = {0};
    for (int i = 0; i < n; i += 8)
        for (int k = 0; k < 8; k++)
            lanes[k] += x[i + k] * (float)q[i + k];
    return (double)(lanes[0] + lanes[4] + (lanes[2] + lanes[6])) + (double)(lanes[1] + lanes[5] + (lanes[3] + lanes[7]));
}

/* Steps tried on both sides of the one that takes the greatest number to the end of the range: a smaller step is finer and clips.
 */
enum { TRIES = 10 };

/* The scale and minimum, both >= 0, for which scale q - minimum, q a whole number of 0 to 15, is close to x[32]: of several steps,
 * each with the least squares for what it rounds to, the one of the smallest error. */
static float fit_q4_k(const float x[32], float *minimum)
{
    float low = 0, high = 0, scale = 0;
    double sum = 0, best = 0; /* by how much the sum of squares becomes smaller */
    *minimum = 0;
    for (int i = 0; i < 32; i++) {
        low = x[i] < low ? x[i] : low;
        high = x[i] > high ? x[i] : high;
        sum += x[i];
    }
    /* Nothing but zeros, or something that is no number or would overflow. */
    if (!isfinite(sum) || !isfinite(high - low) || !isfinite(32 / (high - low)))
        return 0;
    for (int try = -TRIES; try <= TRIES; try++) {
        const float inverse = (15 + 0.1f * (float)try) / (high - low);
        int q[32], q1 = 0, q2 = 0; /* sums of q and of q squared */
        for (int i = 0; i < 32; i++) {
            const int rounded = (int)((x[i] - low) * inverse + 0.5f);
            q[i] = rounded < 15 ? rounded : 15;
            q1 += q[i];
            q2 += q[i] * q[i];
        }
        const double xq = dot_quants(x, q, 32);
        /* x = a q + b */
        const double det = 32.0 * q2 - (double)q1 * q1;
        double a = det > 0 ? (32 * xq - q1 * sum) / det : 0, b = (sum - a * q1) / 32;
        if (b > 0) {
            b = 0;
            a = q2 > 0 ? xq / q2 : 0;
        }
        const double gain = 2 * a * xq + 2 * b * sum - a * a * q2 - 2 * a * b * q1 - 32 * b * b;
        if (gain > best && a >= 0) {
            best = gain;
            scale = (float)a;
            *minimum = (float)-b;
        }
    }
    return scale;
}

/* Stores a scale and gives what a reader will multiply by, and its inverse. */
static float put_scale(uint8_t *p, float scale, float *inverse)
{
    store_half(p, scale);
    const float d = load_half(p);
    *inverse = d != 0 ? 1 / d : 0;
    return d;
}

static void quantize_q4_k(uint8_t *b, const float *x, int n)
{
    for (; n > 0; n -= SUPER, x += SUPER, b += Q4_K_BYTES) {
        float scales[8], minima[8], most = 0, most_minimum = 0, inverse, inverse_minimum;
        for (int g = 0; g < 8; g++) {
            scales[g] = fit_q4_k(x + g * 32, &minima[g]);
            most = scales[g] > most ? scales[g] : most;
            most_minimum = minima[g] > most_minimum ? minima[g] : most_minimum;
        }
        memset(b, 0, Q4_K_BYTES);
        const float d = put_scale(b, most / 63, &inverse), m = put_scale(b + 2, most_minimum / 63, &inverse_minimum);
        uint8_t *packed = b + Q4_K_SCALES;
        for (int g = 0; g < 8; g++) {
            const int s = clamp_to_int(scales[g] * inverse + 0.5f, 0, 63);
            const int t = clamp_to_int(minima[g] * inverse_minimum + 0.5f, 0, 63);
            packed[g < 4 ? g : g + 4] |= (uint8_t)(g < 4 ? s : (s & 15) | (t & 15) << 4); /* as unpack_k_scales() reads them */
            if (g < 4)
                packed[g + 4] |= (uint8_t)t;
            else {
                packed[g - 4] |= (uint8_t)(s >> 4 << 6);
                packed[g] |= (uint8_t)(t >> 4 << 6);
            }
            const float step = d * (float)s, to_q = step > 0 ? 1 / step : 0, offset = m * (float)t;
            for (int i = 0; i < 32; i++) {
                const int q = clamp_to_int((x[g * 32 + i] + offset) * to_q + 0.5f, 0, 15);
                b[Q4_K_QUANTS + g / 2 * 32 + i] |= (uint8_t)(q << (g % 2 * 4));
            }
        }
    }
}

/* The scale for which scale q, q a whole number of -32 to 31, is close to x[16], found as above. */
static float fit_q6_k(const float x[16])
{
    float extreme = 0, scale = 0;
    double best = 0;
    for (int i = 0; i < 16; i++)
        extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
    if (!isfinite(32 / extreme)) /* 0 or nearly */
        return 0;
    for (int try = -TRIES; try <= TRIES; try++) {
        const float inverse = -(32 + 0.1f * (float)try) / extreme; /* the greatest takes -32, whatever its sign */
        int q[16], q2 = 0;
        for (int i = 0; i < 16; i++) {
            q[i] = clamp_to_int(x[i] * inverse + 32.5f, 0, 63) - 32;
            q2 += q[i] * q[i];
        }
        const double xq = dot_quants(x, q, 16);
        if (q2 > 0 && xq * xq / q2 > best) {
            best = xq * xq / q2;
            scale = (float)(xq / q2);
        }
    }
    return scale;
}

static void quantize_q6_k(uint8_t *b, const float *x, int n)
{
    for (; n > 0; n -= SUPER, x += SUPER, b += Q6_K_BYTES) {
        float scales[16], extreme = 0, inverse;
        for (int g = 0; g < 16; g++) {
            scales[g] = fit_q6_k(x + g * 16);
            extreme = fabsf(scales[g]) > fabsf(extreme) ? scales[g] : extreme;
        }
        memset(b, 0, Q6_K_BYTES);
        const float d = put_scale(b + Q6_K_SCALE, extreme / -128, &inverse);
        for (int g = 0; g < 16; g++) {
            const int s = clamp_to_int(roundf(scales[g] * inverse), -128, 127);
            const float step = d * (float)s, to_q = step != 0 ? 1 / step : 0;
            b[Q6_K_SCALES + g] = (uint8_t)(int8_t)s;
            for (int i = 0; i < 16; i++) { /* where each part lies: butler_dequantize_q6_k() */
                const int q = clamp_to_int(x[g * 16 + i] * to_q + 32.5f, 0, 63);
                const int half = g / 8, quarter = g / 2 % 4, column = g % 2 * 16 + i;
                b[half * 64 + quarter % 2 * 32 + column] |= (uint8_t)((q & 15) << (quarter / 2 * 4));
                b[Q6_K_HIGH + half * 32 + column] |= (uint8_t)(q >> 4 << (quarter * 2));
            }
        }
    }
}

bool butler_quantize_row(enum butler_type type, void *row, const float *x, int n)
{
    uint8_t *out = row;
    if (n % butler_type_block(type) != 0)
        return false;
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
        quantize_q8_0(out, x, n);
        return true;
    case BUTLER_Q4_0:
        quantize_q4_0(out, x, n);
        return true;
    case BUTLER_Q4_K:
        quantize_q4_k(out, x, n);
        return true;
    case BUTLER_Q6_K:
        quantize_q6_k(out, x, n);
        return true;
    default:
        return false;
    }
}
