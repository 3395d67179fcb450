/* The table for CPUs with AMX: that of AVX-512 with a matrix unit for blocks of tokens. The unit multiplies bfloat16 and
 * adds in float, or bytes and adds in 32 bits, at twice the rate. For attention, a float is two bfloat16, high and low, to
 * 16 bits, and three of their four products make a product that is right to about 2^-16. For weights, which are rounded
 * already, a float is two bytes of fixed point with a scale for many of them, and three products again. */
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

INLINE void store_turned(uint8_t *p, __m512i v[16])
{
    turn(v);
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
            store_turned(p, high);
            store_turned(p + HALF, low);
        }
}

/* ------------------------------------------------------------------------------- 16-bit fixed point in two bytes */

#define FIXED_STEP BUTLER_FIXED_K

/* The greatest magnitude in x[n]; infinity and NaN win, so that they are not lost in a finite product. */
INLINE float greatest(const float *x, int n)
{
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    __m512i most = _mm512_setzero_si512();
    int i = 0;
    for (; i + VEC <= n; i += VEC)
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(vec_load(x + i)), magnitude));
    if (i < n)
        most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(vec_load_some(x + i, n - i)), magnitude));
    return bits_to_float((uint32_t)_mm512_reduce_max_epi32(most));
}

/* Up to 64 numbers of a line times factor, as their upper and their lower bytes. */
INLINE void fix_line(const float *x, int count, float factor, __m512i *high, __m512i *low)
{
    const __m512i in_order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i half = _mm512_set1_epi16(128), byte = _mm512_set1_epi16(255);
    __m512i v[4];
    UNROLL
    for (int i = 0; i < 4; i++) {
        const vec part = count >= FIXED_STEP ? vec_load(x + i * VEC)
                                             : vec_load_some(x + i * VEC, BUTLER_MIN(BUTLER_MAX(count - i * VEC, 0), VEC));
        v[i] = _mm512_cvtps_epi32(vec_mul(part, vec_set1(factor)));
    }
    /* Quarter l of a and b has words 4 l .. 4 l + 3 of the vectors that went in. */
    const __m512i a = _mm512_packs_epi32(v[0], v[1]), b = _mm512_packs_epi32(v[2], v[3]);
    *high = _mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8), _mm512_srai_epi16(_mm512_add_epi16(b, half), 8));
    *low = _mm512_packus_epi16(_mm512_and_si512(a, byte), _mm512_and_si512(b, byte));
    *high = _mm512_permutexvar_epi32(in_order, *high);
    *low = _mm512_permutexvar_epi32(in_order, *low);
}

/* Scales of up to 16 lines, 0 for those that are missing, and the factors that bring their numbers into range. */
INLINE void fix_scales(float scales[TILE], float factors[TILE], const float *x, size_t stride, int n, int k)
{
    vec_store(scales, vec_zero());
    for (int r = 0; r < n; r++) {
        const float most = greatest(x + (size_t)r * stride, k);
        scales[r] = most < BUTLER_FIXED_LEAST ? 0 : most / BUTLER_FIXED_MOST;
        factors[r] = most < BUTLER_FIXED_LEAST ? 0 : BUTLER_FIXED_MOST / most;
    }
}

static void pack_fixed_rows(void *packed, float *scales, const float *x, size_t stride, int n, int k)
{
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE, x += TILE * stride) {
        float factors[TILE];
        const int count = BUTLER_MIN(n - first, TILE);
        fix_scales(scales + first, factors, x, stride, count, k);
        for (int s = 0; s < k; s += FIXED_STEP, p += BUTLER_TILE_BYTES)
            for (int r = 0; r < TILE; r++) {
                __m512i high = _mm512_setzero_si512(), low = high;
                if (r < count)
                    fix_line(x + (size_t)r * stride + s, k - s, factors[r], &high, &low);
                _mm512_store_si512(p + r * 64, high);
                _mm512_store_si512(p + HALF + r * 64, low);
            }
    }
}

static void pack_fixed_columns(void *packed, float *scales, const float *x, size_t stride, int n, int k)
{
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE, x += TILE * stride) {
        float factors[TILE];
        const int count = BUTLER_MIN(n - first, TILE);
        fix_scales(scales + first, factors, x, stride, count, k);
        for (int s = 0; s < k; s += FIXED_STEP, p += BUTLER_TILE_BYTES) {
            __m512i high[TILE], low[TILE];
            for (int r = 0; r < TILE; r++) {
                high[r] = low[r] = _mm512_setzero_si512();
                if (r < count)
                    fix_line(x + (size_t)r * stride + s, k - s, factors[r], &high[r], &low[r]);
            }
            store_turned(p, high);
            store_turned(p + HALF, low);
        }
    }
}

/* Blocks of 32 small integers with one scale, as right operands. */
enum block_type { BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_Q5_0 };

INLINE int block_bytes(enum block_type type)
{
    return type == BLOCK_Q8_0 ? Q8_0_BYTES : type == BLOCK_Q4_0 ? Q4_0_BYTES : Q5_0_BYTES;
}

/* Integers of two blocks as bytes: from -128 to 127 whatever the type. */
INLINE __m512i block_integers(enum block_type type, const uint8_t *first, const uint8_t *second)
{
    if (type == BLOCK_Q8_0)
        return _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)(first + Q8_0_QUANTS))),
                                  _mm256_loadu_si256((const void *)(second + Q8_0_QUANTS)), 1);
    const int quants = type == BLOCK_Q4_0 ? Q4_0_QUANTS : Q5_0_QUANTS, left = type == BLOCK_Q4_0 ? 4 : 3;
    const __m512i up = _mm512_setr_epi32(left, left, left, left, left - 4, left - 4, left - 4, left - 4, left, left, left, left,
                                         left - 4, left - 4, left - 4, left - 4);
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const void *)(first + quants)));
    v = _mm512_mask_broadcast_i32x4(v, 0xff00, _mm_loadu_si128((const void *)(second + quants)));
    v = _mm512_and_si512(_mm512_rolv_epi32(v, up), _mm512_set1_epi8((char)(15 << left)));
    const uint64_t fifths = type == BLOCK_Q4_0 ? 0 : load_u32(first + Q5_0_HIGH) | (uint64_t)load_u32(second + Q5_0_HIGH) << 32;
    return type == BLOCK_Q4_0 ? _mm512_xor_si512(v, _mm512_set1_epi8(-128))
                              : _mm512_mask_add_epi8(v, (__mmask64)~fifths, v, _mm512_set1_epi8(-128));
}

/* Scales of a block of up to 16 rows as floats, 0 for rows that are missing. */
INLINE vec block_scales(const uint8_t *block, size_t row_bytes, int count)
{
    const __m512i step = _mm512_set1_epi64((long long)row_bytes);
    const __m512i rows = _mm512_mullo_epi64(_mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7), step);
    const __mmask16 mask = vec_first(count);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i first = _mm512_mask_i64gather_epi32(zero, (__mmask8)mask, rows, block, 1);
    const __m256i last = _mm512_mask_i64gather_epi32(zero, (__mmask8)(mask >> 8), rows, block + 8 * row_bytes, 1);
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_inserti64x4(_mm512_castsi256_si512(first), last, 1)));
}

/* 64 integers as bytes, times factors of 15 bits in words, as their upper and their lower bytes. */
INLINE void fix_integers(__m512i v, __m512i factor, uint8_t *p)
{
    const __m512i upper = _mm512_set1_epi16((short)0xff00), half = _mm512_set1_epi16(128);
    const __m512i even = _mm512_mulhrs_epi16(_mm512_slli_epi16(v, 8), factor);
    const __m512i odd = _mm512_mulhrs_epi16(_mm512_and_si512(v, upper), factor);
    const __m512i even_high = _mm512_srli_epi16(_mm512_add_epi16(even, half), 8), odd_high = _mm512_add_epi16(odd, half);
    /* a | b & c, and b | c & ~a */
    _mm512_store_si512(p, _mm512_ternarylogic_epi32(even_high, odd_high, upper, 0xf8));
    _mm512_store_si512(p + HALF, _mm512_ternarylogic_epi32(upper, _mm512_slli_epi16(odd, 8), even, 0xce));
}

INLINE void pack_blocks(enum block_type type, void *packed, float *scales, const uint8_t *rows, size_t row_bytes, int n, int k)
{
    enum { MOST_BLOCKS = BUTLER_FIXED_COLUMNS / BLOCK };
    const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
    const int size = block_bytes(type), n_blocks = k / BLOCK;
    uint8_t *p = packed;
    for (int first = 0; first < n; first += TILE, rows += TILE * row_bytes) {
        const int count = BUTLER_MIN(n - first, TILE);
        __m512i most = _mm512_setzero_si512(), factors[MOST_BLOCKS + 1];
        vec d[MOST_BLOCKS];
        for (int b = 0; b < n_blocks; b++) {
            d[b] = block_scales(rows + b * size, row_bytes, count);
            most = _mm512_max_epi32(most, _mm512_and_si512(_mm512_castps_si512(d[b]), magnitude));
        }
        const vec top = _mm512_castsi512_ps(most), fixed_most = vec_set1(BUTLER_FIXED_MOST);
        const __mmask16 counts = _mm512_cmp_ps_mask(top, vec_set1(BUTLER_FIXED_LEAST), _CMP_NLT_UQ);
        const vec factor = _mm512_maskz_div_ps(counts, fixed_most, top);
        const float range = type == BLOCK_Q8_0 ? 128 : type == BLOCK_Q4_0 ? 8 : 16;
        vec_store(scales + first, vec_mul(_mm512_maskz_div_ps(counts, top, fixed_most), vec_set1(range)));
        for (int b = 0; b < n_blocks; b++) { /* what is no number becomes 0, its line's scale remains */
            const __m512i f = _mm512_cvtps_epi32(vec_mul(d[b], factor));
            factors[b] = _mm512_or_si512(_mm512_slli_epi32(f, 16), _mm512_and_si512(f, _mm512_set1_epi32(0xffff)));
        }
        factors[n_blocks] = _mm512_setzero_si512();
        for (int b = 0; b < n_blocks; b += 2, p += BUTLER_TILE_BYTES) {
            const uint8_t *block = rows + b * size, *next = b + 1 < n_blocks ? block + size : block;
            __m512i v[TILE];
            UNROLL
            for (int r = 0; r < TILE; r++) { /* a row that is missing counts 0 times another */
                const size_t at = (size_t)(r < count ? r : 0) * row_bytes;
                v[r] = block_integers(type, block + at, next + at);
            }
            turn(v);
            UNROLL
            for (int i = 0; i < TILE; i++)
                fix_integers(v[i], factors[b + i / 8], p + i * 64);
        }
    }
}

#define PACK_BLOCKS(name, type)                                                                                                    \
    static void pack_##name(void *packed, float *scales, const void *rows, size_t row_bytes, int n, int k)                         \
    {                                                                                                                              \
        pack_blocks(type, packed, scales, rows, row_bytes, n, k);                                                                  \
    }
PACK_BLOCKS(q8_0, BLOCK_Q8_0)
PACK_BLOCKS(q4_0, BLOCK_Q4_0)
PACK_BLOCKS(q5_0, BLOCK_Q5_0)

/* Up to 2 x 2 tiles of sums in integers: of the products of upper bytes, and of an upper and a lower one. They lie where a page
 * of packed tiles has lower bytes: a load waits for a store not yet done at the same place of another page, and the next
 * block begins with upper bytes. */
struct fixed_sums {
    struct {
        _Alignas(4096) uint8_t upper_bytes[HALF];
        int32_t mixed[TILE * TILE];
        uint8_t more_upper_bytes[HALF];
        int32_t upper[TILE * TILE];
    } of[4];
    float *c; /* where they belong */
    const float *a_scales, *b_scales;
    int rows, columns;
};

/* Parts of all k into tiles 0 to 3. The next lines are `line` bytes further on. */
INLINE void fixed_part(const uint8_t *a, const uint8_t *b, size_t line, int rows, int columns)
{
    _tile_stream_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    _tile_dpbssd(0, 4, 6);
    if (columns == 2) {
        _tile_loadd(7, b + line, 64);
        _tile_dpbssd(1, 4, 7);
    }
    if (rows == 2) {
        _tile_stream_loadd(5, a + line, 64);
        _tile_dpbssd(2, 5, 6);
    }
    if (rows == 2 && columns == 2)
        _tile_dpbssd(3, 5, 7);
}

INLINE void store_tiles(int32_t *to)
{
    const size_t next = sizeof(((struct fixed_sums *)NULL)->of[0]) / sizeof *to;
    _tile_stored(0, to, 64);
    _tile_stored(1, to + next, 64);
    _tile_stored(2, to + 2 * next, 64);
    _tile_stored(3, to + 3 * next, 64);
}

/* As fixed_part, where sums begin anew; those before are stored, all four tiles, whatever is in them. A store waits for the last
 * product of its tile and fills the window of instructions meanwhile: four in a row, and operands loaded after them, keep the unit
 * idle for 60 cycles; two and two among the next products, none. */
INLINE void first_part(const uint8_t *a, const uint8_t *b, size_t line, int rows, int columns, int32_t *to)
{
    const size_t next = sizeof(((struct fixed_sums *)NULL)->of[0]) / sizeof *to;
    _tile_stream_loadd(4, a, 64);
    _tile_loadd(6, b, 64);
    if (columns == 2)
        _tile_loadd(7, b + line, 64);
    if (rows == 2)
        _tile_stream_loadd(5, a + line, 64);
    _tile_stored(0, to, 64);
    _tile_stored(1, to + next, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_dpbssd(0, 4, 6);
    if (columns == 2)
        _tile_dpbssd(1, 4, 7);
    _tile_stored(2, to + 2 * next, 64);
    _tile_stored(3, to + 3 * next, 64);
    _tile_zero(2);
    _tile_zero(3);
    if (rows == 2)
        _tile_dpbssd(2, 5, 6);
    if (rows == 2 && columns == 2)
        _tile_dpbssd(3, 5, 7);
}

/* Sums of tiles [first, end) with their scales into c. */
INLINE void scale_sums(const struct fixed_sums *sums, int first, int end, size_t c_stride, bool more)
{
    for (int t = first; t < end; t++) {
        if (t / 2 >= sums->rows || t % 2 >= sums->columns)
            continue;
        const int32_t *upper = sums->of[t].upper, *mixed = sums->of[t].mixed;
        const float *a_scales = sums->a_scales + t / 2 * TILE;
        const vec b_scales = vec_mul(vec_load(sums->b_scales + t % 2 * TILE), vec_set1(256));
        float *c = sums->c + (size_t)(t / 2 * TILE) * c_stride + t % 2 * TILE;
        UNROLL
        for (int r = 0; r < TILE; r++, c += c_stride) {
            const __m512i sum =
                _mm512_add_epi32(_mm512_slli_epi32(_mm512_load_si512(upper + r * TILE), 8), _mm512_load_si512(mixed + r * TILE));
            const vec v = vec_mul(_mm512_cvtepi32_ps(sum), vec_set1(a_scales[r]));
            vec_store(c, more ? vec_fma(v, b_scales, vec_load(c)) : vec_mul(v, b_scales));
        }
    }
}

/* The sums of the block before, the second half of which are still in the tiles, are scaled while the unit is at the first half of
 * this one. */
INLINE void fixed_product(struct fixed_sums *sums, const uint8_t *a, const uint8_t *b, size_t line, int rows, int columns,
                          size_t c_stride, bool more)
{
    first_part(a, b, line, rows, columns, sums->of[0].mixed);
    int scaled = 0;
    for (size_t s = BUTLER_TILE_BYTES; s < line; s += BUTLER_TILE_BYTES) {
        scale_sums(sums, scaled, scaled + 1, c_stride, more);
        scaled++;
        fixed_part(a + s, b + s, line, rows, columns);
    }
    scale_sums(sums, scaled, 4, c_stride, more);
    first_part(a, b + HALF, line, rows, columns, sums->of[0].upper);
    fixed_part(a + HALF, b, line, rows, columns);
    for (size_t s = BUTLER_TILE_BYTES; s < line; s += BUTLER_TILE_BYTES) {
        fixed_part(a + s, b + s + HALF, line, rows, columns);
        fixed_part(a + s + HALF, b + s, line, rows, columns);
    }
}

static void multiply_fixed(float *c, size_t c_stride, const void *a, const float *a_scales, const void *b, const float *b_scales,
                           int m, int n, int k, bool more)
{
    const size_t line = butler_fixed_bytes(TILE, k);
    struct fixed_sums sums;
    sums.rows = 0;
    __asm__ volatile("" ::: "memory"); /* the tile instructions do not say what they read */
    _tile_loadconfig(amx_config);
    for (int i = 0; i < m; i += 2 * TILE)
        for (int j = 0; j < n; j += 2 * TILE) {
            const uint8_t *rows = (const uint8_t *)a + (size_t)(i / TILE) * line;
            const uint8_t *columns = (const uint8_t *)b + (size_t)(j / TILE) * line;
            const int n_rows = i + TILE < m ? 2 : 1, n_columns = j + TILE < n ? 2 : 1;
            if (n_rows == 2 && n_columns == 2)
                fixed_product(&sums, rows, columns, line, 2, 2, c_stride, more);
            else if (n_rows == 2)
                fixed_product(&sums, rows, columns, line, 2, 1, c_stride, more);
            else if (n_columns == 2)
                fixed_product(&sums, rows, columns, line, 1, 2, c_stride, more);
            else
                fixed_product(&sums, rows, columns, line, 1, 1, c_stride, more);
            sums.c = c + (size_t)i * c_stride + j;
            sums.a_scales = a_scales + i;
            sums.b_scales = b_scales + j;
            sums.rows = n_rows;
            sums.columns = n_columns;
        }
    store_tiles(sums.of[0].mixed);
    scale_sums(&sums, 0, 4, c_stride, more);
    _tile_release();
}

void butler_kernels_amx(struct butler_kernels *table)
{
    table->isa = "amx";
    table->tiles = true;
    table->pack_rows = pack_rows;
    table->pack_columns = pack_columns;
    table->pack_turned = pack_turned;
    table->attend_packed = butler_amx_attend_packed;
    table->pack_fixed_rows = pack_fixed_rows;
    table->pack_fixed_columns = pack_fixed_columns;
    table->pack_fixed_blocks[BUTLER_Q8_0] = pack_q8_0;
    table->pack_fixed_blocks[BUTLER_Q4_0] = pack_q4_0;
    table->pack_fixed_blocks[BUTLER_Q5_0] = pack_q5_0;
    table->multiply_fixed = multiply_fixed;
}
#endif
