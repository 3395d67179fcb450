/* One-bit keys for CPUs with AVX-512 VNNI and a matrix unit: for the query heads of a group, whose products with a record's bits
 * cost the unit as much as one query. Its left operand has a row for each query and stays what it is; the right
 * one is the record, its bits spread as bytes. Intel's servers from 2023 on win; by how much over VNNI:
 * `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AMX_BYTES)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/simd_one_bit512.h"

enum {
    TILE_CHANNELS = 64, /* of a row of the left operand, in 16 rows of the right one */
    TILE_BYTES = 1024,
    MOST_TILES = CHANNELS / TILE_CHANNELS,
};

/* Tiles 0 and 1: sums for tokens 0 to 15 and for the others; 4: queries; 6 and 7: the record. Rows of the first three are as
 * many as queries. Constant, because compilers drop stores to what tile instructions read. */
#define CONFIG(rows)                                                                                                               \
    {                                                                                                                              \
        [0] = 1, [16] = 64, [18] = 64, [24] = 64, [28] = 64, [30] = 64, [48] = (rows), [49] = (rows), [52] = (rows), [54] = 16,    \
        [55] = 16                                                                                                                  \
    }
static const _Alignas(64) uint8_t configs[2][64] = {CONFIG(4), CONFIG(8)};

/* What a record becomes and what comes of it, twice: the unit is at one while vectors are at another. */
struct unit_buffers {
    _Alignas(64) uint8_t queries[MOST_TILES][QUERIES * TILE_CHANNELS];
    _Alignas(64) uint8_t spread[2][MOST_TILES][2][TILE_BYTES]; /* rows: four channels of 16 tokens */
    _Alignas(64) int32_t sums[2][2][QUERIES * LANES];
    float factor[VEC];
};

static void pack_queries(struct unit_buffers *buffers, const float *q, int n_q, int n)
{
    struct one_bit_queries queries;
    one_bit_prepare(&queries, q, n_q, n);
    memset(buffers->factor, 0, sizeof buffers->factor);
    memcpy(buffers->factor, queries.factor, sizeof queries.factor);
    for (int i = 0; i < BUTLER_CEIL_DIV(n, TILE_CHANNELS); i++)
        for (int a = 0; a < n_q; a++)
            memcpy(buffers->queries[i] + a * TILE_CHANNELS, queries.x[a] + i * TILE_CHANNELS, TILE_CHANNELS);
    /* Rows beyond the last channel, which are never written. */
    for (int k = 0; k < 2 && n % TILE_CHANNELS; k++)
        memset(buffers->spread[k][n / TILE_CHANNELS], 0, sizeof buffers->spread[k][0]);
}

INLINE void spread_record(uint8_t spread[MOST_TILES][2][TILE_BYTES], const uint8_t *record, int n)
{
    const uint8_t *range = one_bit_ranges(record, n), *bits = one_bit_bits(record, n);
    for (int first = 0; first < n; first += TILE_CHANNELS, spread++) {
        UNROLL
        for (int row = 0; row < 16; row++) {
            const int d = first + row * 4;
            __m512i x[2];
            if (d >= n)
                break;
            one_bit_spread(x, range + d, bits + (size_t)d * 4);
            _mm512_store_si512((*spread)[0] + row * 64, x[0]);
            _mm512_store_si512((*spread)[1] + row * 64, x[1]);
        }
    }
}

INLINE void multiply_record(int32_t sums[2][QUERIES * LANES], const uint8_t queries[MOST_TILES][QUERIES * TILE_CHANNELS],
                            const uint8_t spread[MOST_TILES][2][TILE_BYTES], int n_tiles)
{
    __asm__ volatile("" ::: "memory"); /* the tile instructions do not say what they read */
    _tile_zero(0);
    _tile_zero(1);
    for (int i = 0; i < n_tiles; i++) {
        if (n_tiles > 1) /* else it is there */
            _tile_loadd(4, queries[i], TILE_CHANNELS);
        _tile_loadd(6, spread[i][0], TILE_CHANNELS);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, spread[i][1], TILE_CHANNELS);
        _tile_dpbsud(1, 4, 7);
    }
    _tile_stored(0, sums[0], TILE_CHANNELS);
    _tile_stored(1, sums[1], TILE_CHANNELS);
    __asm__ volatile("" ::: "memory");
}

INLINE void score_record(float *s, size_t s_stride, const int32_t sums[2][QUERIES * LANES], const float *factor, int n_q,
                         float unit, const float *clear, size_t clear_stride)
{
    float scale[VEC];
    vec_store(scale, vec_mul(vec_load(factor), vec_set1(unit)));
    UNROLL
    for (int a = 0; a < n_q; a++)
        for (int half = 0; half < 2; half++)
            vec_store(s + (size_t)a * s_stride + half * LANES,
                      one_bit_score(_mm512_load_si512(sums[half] + a * LANES), scale[a], clear[(size_t)a * clear_stride]));
}

/* n_q is 4 or 8. A record is spread while the unit multiplies the one before, and the one before that gets its scores. */
INLINE void one_bit_unit_queries(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *records, size_t record_bytes,
                                 int n_records, int n)
{
    const int together = VEC / n_q, n_tiles = BUTLER_CEIL_DIV(n, TILE_CHANNELS);
    struct walk walk = walk_from(records);
    struct unit_buffers buffers;
    float clear[2][VEC];
    pack_queries(&buffers, q, n_q, n);
    _tile_loadconfig(configs[n_q / 8]);
    _tile_loadd(4, buffers.queries[0], TILE_CHANNELS);
    for (int j = 0; j < n_records + 2; j++) {
        const uint8_t *record = records + (size_t)j * record_bytes;
        if (j < n_records) {
            if (j % together == 0) {
                const uint8_t *next[VEC];
                for (int r = 0; r < together; r++)
                    next[r] = records + (size_t)BUTLER_MIN(j + r, n_records - 1) * record_bytes;
                one_bit_clear(clear[j / together % 2], q, n_q, next, together, n);
            }
            walk_to(&walk, (uintptr_t)record + (VEC + 1) * record_bytes);
            spread_record(buffers.spread[j % 2], record, n);
        }
        if (j >= 1 && j <= n_records)
            multiply_record(buffers.sums[(j - 1) % 2], buffers.queries, buffers.spread[(j - 1) % 2], n_tiles);
        if (j >= 2)
            score_record(s + (size_t)(j - 2) * TOKENS, s_stride, buffers.sums[j % 2], buffers.factor, n_q,
                         one_bit_unit(records + (size_t)(j - 2) * record_bytes, n),
                         clear[(j - 2) / together % 2] + (j - 2) % together, (size_t)together);
    }
    _tile_release();
}

/* n_q is a compile-time constant. */
INLINE void one_bit_lengths(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *records, size_t record_bytes,
                            int n_records, int n)
{
    if (n == 64) /* the lengths of most models */
        one_bit_unit_queries(s, s_stride, q, n_q, records, record_bytes, n_records, 64);
    else if (n == 128)
        one_bit_unit_queries(s, s_stride, q, n_q, records, record_bytes, n_records, 128);
    else
        one_bit_unit_queries(s, s_stride, q, n_q, records, record_bytes, n_records, n);
}

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    for (; n_q >= 8; n_q -= 8, q += 8 * (size_t)n, s += 8 * s_stride)
        one_bit_lengths(s, s_stride, q, 8, records, record_bytes, n_records, n);
    for (; n_q >= 4; n_q -= 4, q += 4 * (size_t)n, s += 4 * s_stride)
        one_bit_lengths(s, s_stride, q, 4, records, record_bytes, n_records, n);
    if (n_q > 0)
        one_bit_vnni(s, s_stride, q, n_q, records, record_bytes, n_records, n);
}

void butler_kernels_one_bit_amx(struct butler_kernels *table)
{
    table->one_bit = one_bit;
}
BUTLER_TARGET_END
#endif
