/* Decode attention over F16 rows for eight query heads a key, with AVX-512: simd_group.h's tiles. With registers enough a key
 * meets all eight at once, two tokens together, and a value half of its columns after the other, so that each is converted once. */
#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

#include "kernels/simd_vectors.h"
#include "kernels/simd_cache.h"
#include "kernels/simd_attend.h"
#include "kernels/simd_group.h"

enum { HEADS = 8, COLUMNS = 2 * VEC /* of values that pass together */ };

/* Line `line` of the rows that are due, counted through all of a tile. */
INLINE void fetch_line(const struct due *due, int line, int n)
{
    const int row = line / (n / 32), at = line % (n / 32) * 64;
    prefetch((const uint8_t *)due->soon[row] + due->skip, (size_t)at);
    prefetch_second((const uint8_t *)due->later[row] + due->skip + at);
}

/* Adds values of count tokens, which begin `skip` bytes after their keys, to acc[HEADS][n]; of whole tiles fetches what is due,
 * each line with one row's columns. */
INLINE void eight_values(float *acc, const float *p, const void *const *rows, const struct due *due, size_t skip, int count, int n)
{
    for (int i = 0; i < n; i += COLUMNS) {
        vec a[2 * HEADS];
        UNROLL
        for (int k = 0; k < 2 * HEADS; k++)
            a[k] = vec_load(acc + k / 2 * n + i + k % 2 * VEC);
#pragma GCC unroll 4
        for (int j = 0; j < count; j++) {
            const uint8_t *row = (const uint8_t *)rows[j] + skip + 2 * i;
            const vec x = vec_load_half(row), y = vec_load_half(row + 2 * VEC);
            fetch_line(due, i / COLUMNS * TILE_ROWS + j, n);
            UNROLL
            for (int k = 0; k < HEADS; k++) {
                const vec w = vec_set1(p[j * HEADS + k]);
                a[2 * k] = vec_fma(w, x, a[2 * k]);
                a[2 * k + 1] = vec_fma(w, y, a[2 * k + 1]);
            }
        }
        UNROLL
        for (int k = 0; k < 2 * HEADS; k++)
            vec_store(acc + k / 2 * n + i + k % 2 * VEC, a[k]);
    }
}

#define EIGHT(name, n)                                                                                                             \
    GROUP_SCORES(name##_scores, group_scores_f16, ROW_F16, HEADS, n)                                                               \
    static void name##_values(float *acc, const float *p, const void *const *rows, size_t step, const struct due *due,             \
                              size_t skip, int count)                                                                              \
    {                                                                                                                              \
        (void)step;                                                                                                                \
        if (count == TILE_ROWS)                                                                                                    \
            eight_values(acc, p, rows, due, skip, TILE_ROWS, n);                                                                   \
        else                                                                                                                       \
            eight_values(acc, p, rows, due, skip, count, n);                                                                       \
    }                                                                                                                              \
    GROUP_ATTEND(name, ROW_F16, HEADS, n, NULL, group_queries, lay_queries)
EIGHT(eight_64, 64)
EIGHT(eight_128, 128)

/* n is 64 or 128. */
void butler_attend_eight(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                         size_t q_stride, const struct butler_pairs *pairs, int n)
{
    (n == 64 ? eight_64 : eight_128)(acc, acc_stride, top, sum, s, s_stride, q, q_stride, pairs);
}
#endif
