/* The table for CPUs with AMX: AVX-512's, with a matrix unit for a prompt's attention. The unit multiplies bfloat16 and adds
 * in float; a float is two bfloat16, high and low, to 16 bits, and three of their four products make a product that is right to
 * about 2^-16. Products with weights stay as in AVX-512: their bits do not depend on the number of tokens.
 * Intel's servers from 2023 on win; by how much over AVX-512: `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AMX_FLOATS)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/amx.h"

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

INLINE void store_transposed(uint8_t *p, __m512i v[16])
{
    transpose(v);
    UNROLL
    for (int i = 0; i < 16; i++)
        _mm512_store_si512(p + i * 64, v[i]);
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
            store_transposed(p, high);
            store_transposed(p + HALF, low);
        }
}

static void pack_transposed(void *packed, const float *x, size_t stride, int n, int k)
{
    const __m512i pairs = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                           19, 3, 18, 2, 17, 1, 16, 0);
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE)
        for (int s = 0; s < k; s += STEP, p += BUTLER_TILE_BYTES) {
            __m512i high[TILE], low[TILE]; /* a word: two of k; a line: words of all rows */
            for (int c = 0; c < TILE; c++) {
                const float *at = x + (size_t)(s + 2 * c) * stride + first;
                const int count = BUTLER_MIN(n - first, TILE);
                split(s + 2 * c < k ? vec_load_some(at, count) : vec_zero(),
                      s + 2 * c + 1 < k ? vec_load_some(at + stride, count) : vec_zero(), &high[c], &low[c]);
                high[c] = _mm512_permutexvar_epi16(pairs, high[c]);
                low[c] = _mm512_permutexvar_epi16(pairs, low[c]);
            }
            store_transposed(p, high);
            store_transposed(p + HALF, low);
        }
}

void butler_kernels_amx(struct butler_kernels *table)
{
    table->isa = "amx";
    table->tiles = true;
    table->pack_rows = pack_rows;
    table->pack_columns = pack_columns;
    table->pack_transposed = pack_transposed;
    table->attend_packed = butler_amx_attend_packed;
}
BUTLER_TARGET_END
#endif
