/* Decode attention over F16 rows for eight query heads a key, with AVX-512: simd_attend.h's tiles and, bit for bit, its results.
 * There each four heads convert keys and values for themselves; arithmetic takes longer than memory then. Here a key meets all
 * eight at once and a value half of its columns after the other, so that each is converted once; weights lie token by token,
 * which is how sums over lanes come and how values ask for them. */
#include <math.h>

#include "kernels.h"

#if defined(__x86_64__)
#include "vec512.h"

#include "simd_vectors.h"
#include "simd_cache.h"
#include "simd_attend.h"

enum {
    HEADS = 8,
    TOKENS = VEC / HEADS, /* that fill a vector with a number for each head */
    COLUMNS = 2 * VEC,    /* of values that pass together */
    TILE_VECS = TILE_ROWS / TOKENS,
    LONGEST = 128
};

/* Line `line` of the rows that are due, counted through all of a tile. */
INLINE void fetch_line(const struct due *due, int line, int n)
{
    const int row = line / (n / 32), at = line % (n / 32) * 64;
    prefetch((const uint8_t *)due->soon[row] + due->skip, (size_t)at);
    prefetch_second((const uint8_t *)due->later[row] + due->skip + at);
}

/* p[TILE_ROWS][HEADS] from q[HEADS][n]; fetches all that is due. */
INLINE void eight_scores(float *p, const float *q, const void *const *rows, const struct due *due, int n)
{
    for (int r = 0; r < TILE_ROWS; r += TOKENS) {
        const uint8_t *first = rows[r], *second = rows[r + 1];
        vec acc[VEC];
        for (int k = 0; k < TOKENS * n / 32; k++)
            fetch_line(due, r * n / 32 + k, n);
        UNROLL
        for (int k = 0; k < VEC; k++)
            acc[k] = vec_zero();
        UNROLL
        for (int i = 0; i < n; i += VEC) {
            const vec x = vec_load_half(first + 2 * i), y = vec_load_half(second + 2 * i);
            UNROLL
            for (int k = 0; k < HEADS; k++) {
                const vec w = vec_load(q + k * n + i);
                acc[k] = vec_fma(x, w, acc[k]);
                acc[HEADS + k] = vec_fma(y, w, acc[HEADS + k]);
            }
        }
        vec_store(p + r * HEADS, vec_sum_each(acc));
    }
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

/* Lanes of vector k that belong to the first count tokens of a tile. */
INLINE int lanes_within(int k, int count)
{
    return BUTLER_MIN(BUTLER_MAX((count - k * TOKENS) * HEADS, 0), VEC);
}

/* What tile_exp does, for all heads: top[TOKENS][HEADS] has each maximum TOKENS times, sums[TILE_ROWS][HEADS] lie as p does. */
INLINE void eight_exp(float *p, int count, float *acc, float top[VEC], float *sums, int n)
{
    vec x[TILE_VECS], most = vec_set1(-INFINITY), highest = vec_load(top);
    UNROLL
    for (int k = 0; k < TILE_VECS; k++) {
        x[k] = vec_load(p + k * VEC);
        if (count < TILE_ROWS)
            x[k] = vec_keep(x[k], vec_set1(-INFINITY), lanes_within(k, count));
        most = vec_max(x[k], most);
    }
    if (vec_reaches(most, highest)) {
        const vec both = vec_max(most, _mm512_shuffle_f32x4(most, most, 0x4e)), now = vec_max(highest, both);
        const uint32_t reached = vec_reaches(both, highest);
        const vec factor = exp_normal(vec_sub(highest, now));
        float factors[VEC];
        vec_store(factors, factor);
        for (int i = 0; i < HEADS; i++)
            if (reached >> i & 1)
                scale(acc + i * n, factors[i], n);
        for (int k = 0; k < TILE_VECS; k++)
            vec_store(sums + k * VEC, vec_mul(vec_load(sums + k * VEC), factor));
        vec_store(top, highest = now);
    }
    UNROLL
    for (int k = 0; k < TILE_VECS; k++) {
        vec e = exp_normal(vec_sub(x[k], highest));
        if (count < TILE_ROWS)
            e = vec_keep(e, vec_zero(), lanes_within(k, count));
        vec_store(p + k * VEC, e);
        vec_store(sums + k * VEC, vec_add(vec_load(sums + k * VEC), e));
    }
}

/* Everything of the heads in one place, heads or tokens one after the other. */
struct eight {
    _Alignas(64) float q[HEADS * LONGEST], acc[HEADS * LONGEST], p[2][TILE_ROWS * HEADS], sums[TILE_ROWS * HEADS], top[VEC];
};

INLINE void eight_begin(struct eight *e, const float *q, size_t q_stride, int n)
{
    for (int i = 0; i < HEADS; i++)
        memcpy(e->q + i * n, q + (size_t)i * q_stride, (size_t)n * sizeof *q);
    memset(e->acc, 0, sizeof e->acc);
    memset(e->sums, 0, sizeof e->sums);
    vec_store(e->top, vec_set1(-INFINITY));
}

INLINE void eight_end(const struct eight *e, float *acc, size_t acc_stride, float *top, float *sum, int n)
{
    for (int i = 0; i < HEADS; i++) {
        float each[TILE_ROWS];
        for (int r = 0; r < TILE_ROWS; r++)
            each[r] = e->sums[r * HEADS + i];
        sum[i] = vec_sum(vec_load(each));
        top[i] = e->top[i];
        memcpy(acc + (size_t)i * acc_stride, e->acc + i * n, (size_t)n * sizeof *acc);
    }
}

INLINE void attend_tiles(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                         size_t q_stride, const void *const *keys, size_t apart, int n_rows, int n)
{
    struct eight e;
    const int whole = n_rows / TILE_ROWS * TILE_ROWS;
    const void *last[TILE_ROWS]; /* the last tile; what does not fill one, its last row repeated */
    for (int r = 0; r < TILE_ROWS; r++)
        last[r] = keys[BUTLER_MIN((whole < n_rows ? whole : whole - TILE_ROWS) + r, n_rows - 1)];
#define TILE(j) ((j) < whole ? keys + (j) : last)
    for (int j = 0; j < TILES_LATER * TILE_ROWS && j < n_rows; j += TILE_ROWS)
        for (int r = 0; r < 2 * TILE_ROWS; r++)
            fetch(ROW_F16, (const uint8_t *)TILE(j)[r % TILE_ROWS] + (r < TILE_ROWS ? 0 : apart), 0, n);
    eight_begin(&e, q, q_stride, n);
    for (int j = -TILE_ROWS, turn = 0; j < n_rows; j += TILE_ROWS, turn ^= 1) {
        const int next = j + TILE_ROWS, n_next = BUTLER_MIN(n_rows - next, TILE_ROWS);
        struct due due = {TILE(next + TILES_SOON * TILE_ROWS), TILE(next + TILES_LATER * TILE_ROWS), 0, 0, 0, false};
        if (n_next > 0) {
            eight_scores(e.p[turn], e.q, TILE(next), &due, n);
            for (int i = 0; s && i < HEADS * n_next; i++)
                s[(size_t)(i % HEADS) * s_stride + (size_t)(next + i / HEADS)] = e.p[turn][i];
        }
        due.skip = apart;
        if (j >= 0 && j < whole)
            eight_values(e.acc, e.p[turn ^ 1], TILE(j), &due, apart, TILE_ROWS, n);
        else if (j >= 0)
            eight_values(e.acc, e.p[turn ^ 1], TILE(j), &due, apart, n_rows - j, n);
        if (n_next > 0)
            eight_exp(e.p[turn], n_next, e.acc, e.top, e.sums, n);
    }
#undef TILE
    eight_end(&e, acc, acc_stride, top, sum, n);
}

/* n is 64 or 128. */
void butler_attend_eight(float *acc, size_t acc_stride, float *top, float *sum, float *s, size_t s_stride, const float *q,
                         size_t q_stride, const void *const *keys, size_t apart, int n_rows, int n)
{
    if (n == 64)
        attend_tiles(acc, acc_stride, top, sum, s, s_stride, q, q_stride, keys, apart, n_rows, 64);
    else
        attend_tiles(acc, acc_stride, top, sum, s, s_stride, q, q_stride, keys, apart, n_rows, 128);
}
#endif
