/* Products of packed blocks in plain C: how a packed operand lies in memory, and what becomes of its two parts. */
#include "ref.h"

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
            put(packed, i, c, k, column_at(i, c), x[(size_t)c * stride + (size_t)i]);
}

void butler_ref_multiply(float *c, size_t c_stride, const void *a, const void *b, int m, int n, int k, bool more)
{
    const size_t line = BUTLER_CEIL_DIV((size_t)k, BUTLER_TILE_K) * 1024;
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            float sum = more ? c[(size_t)i * c_stride + (size_t)j] : 0;
            for (int d = 0; d < k; d++) {
                const size_t tile = (size_t)(d / BUTLER_TILE_K) * 1024;
                const uint16_t *x = (const uint16_t *)a + (size_t)(i / 16) * line + tile + row_at(i, d);
                const uint16_t *y = (const uint16_t *)b + (size_t)(j / 16) * line + tile + column_at(j, d);
                const float high = bf16_to_float(*x), other = bf16_to_float(*y);
                sum += high * bf16_to_float(y[512]) + high * other + bf16_to_float(x[512]) * other;
            }
            c[(size_t)i * c_stride + (size_t)j] = sum;
        }
}
