/* The table for CPUs with AMX: that of AVX-512 with a matrix unit for blocks of tokens. The unit multiplies bfloat16 and
 * adds in float; a float is two bfloat16, high and low, to 16 bits, and three of their four products make a product that
 * is right to about 2^-16: a third of the unit's rate, several times that of float arithmetic, and logits that need no
 * tolerance of their own. */
#include "kernels.h"

#if defined(__x86_64__)
#include "vec512.h"

/* All eight tiles: 16 rows of 64 bytes. Constant, because compilers drop stores to what tile instructions read. */
static const _Alignas(64) uint8_t config[64] = {
    [0] = 1,   [16] = 64, [18] = 64, [20] = 64, [22] = 64, [24] = 64, [26] = 64, [28] = 64, [30] = 64,
    [48] = 16, [49] = 16, [50] = 16, [51] = 16, [52] = 16, [53] = 16, [54] = 16, [55] = 16,
};

#define TILE 16            /* lines of a tile */
#define HALF 1024          /* bytes of its high or low parts */
#define STEP BUTLER_TILE_K /* of k */

/* Words 0..15 or 16..31 of bfloat16 as floats. */
INLINE __m512 widen(__m512i b, int half)
{
    const __m512i each =
        _mm512_set_epi16(15, 0, 14, 0, 13, 0, 12, 0, 11, 0, 10, 0, 9, 0, 8, 0, 7, 0, 6, 0, 5, 0, 4, 0, 3, 0, 2, 0, 1, 0, 0, 0);
    const __m512i from = half ? _mm512_add_epi16(each, _mm512_set1_epi16(16)) : each;
    return _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaa, from, b));
}

/* Two vectors as 32 high and 32 low parts, a's first. */
INLINE void split(__m512 a, __m512 b, __m512i *high, __m512i *low)
{
    *high = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    *low = (__m512i)_mm512_cvtne2ps_pbh(_mm512_sub_ps(b, widen(*high, 1)), _mm512_sub_ps(a, widen(*high, 0)));
}

/* STEP numbers of a line, count of which exist. */
INLINE void split_line(const float *x, int count, __m512i *high, __m512i *low)
{
    if (count >= STEP)
        split(_mm512_loadu_ps(x), _mm512_loadu_ps(x + VEC), high, low);
    else
        split(vec_load_some(x, BUTLER_MIN(count, VEC)), count > VEC ? vec_load_some(x + VEC, count - VEC) : vec_zero(), high, low);
}

static void pack_rows(void *packed, const float *x, size_t stride, int n, int k)
{
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE)
        for (int s = 0; s < k; s += STEP, p += BUTLER_TILE_BYTES)
            for (int r = 0; r < TILE; r++) {
                __m512i high = _mm512_setzero_si512(), low = high;
                if (first + r < n)
                    split_line(x + (size_t)(first + r) * stride + s, k - s, &high, &low);
                _mm512_store_si512(p + r * 64, high);
                _mm512_store_si512(p + HALF + r * 64, low);
            }
}

/* 16 lines of 16 words of 32 bits, turned. */
INLINE void store_turned(uint8_t *p, const __m512i v[16])
{
    __m512i a[16], b[16];
    UNROLL
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
    UNROLL
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    /* b[4 g + c] holds words c, c + 4, c + 8, c + 12 of lines 4 g .. 4 g + 3 in its quarters. */
    UNROLL
    for (int c = 0; c < 4; c++) {
        __m512i even01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x88), odd01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xdd);
        __m512i even23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x88), odd23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xdd);
        _mm512_store_si512(p + c * 64, _mm512_shuffle_i32x4(even01, even23, 0x88));
        _mm512_store_si512(p + (c + 4) * 64, _mm512_shuffle_i32x4(odd01, odd23, 0x88));
        _mm512_store_si512(p + (c + 8) * 64, _mm512_shuffle_i32x4(even01, even23, 0xdd));
        _mm512_store_si512(p + (c + 12) * 64, _mm512_shuffle_i32x4(odd01, odd23, 0xdd));
    }
}

static void pack_columns(void *packed, const float *x, size_t stride, int n, int k)
{
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE)
        for (int s = 0; s < k; s += STEP, p += BUTLER_TILE_BYTES) {
            __m512i high[TILE], low[TILE];
            for (int r = 0; r < TILE; r++) {
                high[r] = low[r] = _mm512_setzero_si512();
                if (first + r < n)
                    split_line(x + (size_t)(first + r) * stride + s, k - s, &high[r], &low[r]);
            }
            store_turned(p, high);
            store_turned(p + HALF, low);
        }
}

static void pack_turned(void *packed, const float *x, size_t stride, int n, int k)
{
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                           19, 3, 18, 2, 17, 1, 16, 0);
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE)
        for (int s = 0; s < k; s += STEP, p += BUTLER_TILE_BYTES)
            for (int c = 0; c < STEP; c += 2) {
                const float *at = x + (size_t)(s + c) * stride + first;
                const int count = BUTLER_MIN(n - first, TILE);
                __m512i high, low;
                split(s + c < k ? vec_load_some(at, count) : vec_zero(),
                      s + c + 1 < k ? vec_load_some(at + stride, count) : vec_zero(), &high, &low);
                _mm512_store_si512(p + c * 32, _mm512_permutexvar_epi16(pairs, high));
                _mm512_store_si512(p + HALF + c * 32, _mm512_permutexvar_epi16(pairs, low));
            }
}

/* One or two tiles of rows by one or two of columns, both known to the compiler, over all of k. The next tiles are a whole
 * line of tiles further on. Each pair of parts uses the tiles that its neighbour loaded. */
INLINE void product(float *c, size_t c_stride, const uint8_t *a, const uint8_t *b, size_t line, int rows, int columns, bool more)
{
    const size_t c_bytes = c_stride * sizeof *c;
    if (more) {
        _tile_loadd(0, c, c_bytes);
        if (columns == 2)
            _tile_loadd(1, c + TILE, c_bytes);
        if (rows == 2)
            _tile_loadd(2, c + TILE * c_stride, c_bytes);
        if (rows == 2 && columns == 2)
            _tile_loadd(3, c + TILE * c_stride + TILE, c_bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
#define LOAD_A(part)                                                                                                               \
    do {                                                                                                                           \
        _tile_loadd(4, a + (part), 64);                                                                                            \
        if (rows == 2)                                                                                                             \
            _tile_loadd(5, a + line + (part), 64);                                                                                 \
    } while (0)
#define LOAD_B(part)                                                                                                               \
    do {                                                                                                                           \
        _tile_loadd(6, b + (part), 64);                                                                                            \
        if (columns == 2)                                                                                                          \
            _tile_loadd(7, b + line + (part), 64);                                                                                 \
    } while (0)
#define MULTIPLY                                                                                                                   \
    do {                                                                                                                           \
        _tile_dpbf16ps(0, 4, 6);                                                                                                   \
        if (columns == 2)                                                                                                          \
            _tile_dpbf16ps(1, 4, 7);                                                                                               \
        if (rows == 2)                                                                                                             \
            _tile_dpbf16ps(2, 5, 6);                                                                                               \
        if (rows == 2 && columns == 2)                                                                                             \
            _tile_dpbf16ps(3, 5, 7);                                                                                               \
    } while (0)
    for (size_t s = 0; s < line; s += BUTLER_TILE_BYTES, a += BUTLER_TILE_BYTES, b += BUTLER_TILE_BYTES) {
        LOAD_A(0);
        LOAD_B(HALF);
        MULTIPLY;
        LOAD_B(0);
        MULTIPLY;
        LOAD_A(HALF);
        MULTIPLY;
    }
    _tile_stored(0, c, c_bytes);
    if (columns == 2)
        _tile_stored(1, c + TILE, c_bytes);
    if (rows == 2)
        _tile_stored(2, c + TILE * c_stride, c_bytes);
    if (rows == 2 && columns == 2)
        _tile_stored(3, c + TILE * c_stride + TILE, c_bytes);
}

static void multiply(float *c, size_t c_stride, const void *a, const void *b, int m, int n, int k, bool more)
{
    const size_t line = (size_t)BUTLER_CEIL_DIV(k, STEP) * BUTLER_TILE_BYTES;
    __asm__ volatile("" ::: "memory"); /* the tile instructions do not say what they read */
    _tile_loadconfig(config);
    for (int i = 0; i < m; i += 2 * TILE) {
        const uint8_t *rows = (const uint8_t *)a + (size_t)(i / TILE) * line, *columns = b;
        float *out = c + (size_t)i * c_stride;
        const bool two = i + TILE < m;
        int j = 0;
        for (; j + TILE < n; j += 2 * TILE, columns += 2 * line)
            if (two)
                product(out + j, c_stride, rows, columns, line, 2, 2, more);
            else
                product(out + j, c_stride, rows, columns, line, 1, 2, more);
        if (j < n && two)
            product(out + j, c_stride, rows, columns, line, 2, 1, more);
        else if (j < n)
            product(out + j, c_stride, rows, columns, line, 1, 1, more);
    }
    _tile_release();
}

void butler_kernels_amx(struct butler_kernels *table)
{
    table->isa = "amx";
    table->tiles = true;
    table->pack_rows = pack_rows;
    table->pack_columns = pack_columns;
    table->pack_turned = pack_turned;
    table->multiply = multiply;
}
#endif
