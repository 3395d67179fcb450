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

void butler_ref_pack_transposed(void *packed, const float *x, size_t stride, int n, int k)
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

/* high, low: two parts of one factor; y: the two parts of the other. */
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
