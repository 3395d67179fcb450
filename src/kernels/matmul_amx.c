/* Products of unpacked weights with activations in 8-bit integers for CPUs with AMX: a tile product has the integers of a unit for
 * 16 tokens and 16 rows; they are scaled and added in the order of the other kernels (simd_q8.h), whose bits these are. The scaling
 * takes longer than the tile product: three vector operations for 16 rows. Intel's servers from 2023 on win; docs/prompts.md has by
 * how much over VNNI and AVX2. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AMX_BYTES)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

/* Weights are unpacked as signed bytes. */
INLINE int zero_of(enum butler_type type)
{
    (void)type;
    return 0;
}

#include "kernels/q8_units.h"

enum {
    TOKENS = BUTLER_Q8_TOKENS,
    UNITS = VEC / 4, /* as in simd_matmul.h: units u, u + UNITS, ... are one chain */
    GROUP = 4,       /* units of a chain whose tiles are made together */
};

/* Tiles 0 to 3: integers; 4, 6: activations [16 tokens][32 or 16 columns]; 5, 7: weights [8 or 4 words][16 rows]. Constant, because
 * compilers drop stores to what tile instructions read. */
static const _Alignas(64) uint8_t configs[2][64] = {
    {[0] = 1,
     [16] = 64,
     [18] = 64,
     [20] = 64,
     [22] = 64,
     [24] = 32,
     [26] = 64,
     [28] = 32,
     [30] = 64,
     [48] = 16,
     [49] = 16,
     [50] = 16,
     [51] = 16,
     [52] = 16,
     [53] = 8,
     [54] = 16,
     [55] = 8},
    {[0] = 1,
     [16] = 64,
     [18] = 64,
     [20] = 64,
     [22] = 64,
     [24] = 16,
     [26] = 64,
     [28] = 16,
     [30] = 64,
     [48] = 16,
     [49] = 16,
     [50] = 16,
     [51] = 16,
     [52] = 16,
     [53] = 4,
     [54] = 16,
     [55] = 4},
};

/* The integers of GROUP units of a chain, or of the `count` that there are: tiles of their own, so that none waits for another. */
INLINE void tile_products(enum butler_type type, int32_t integers[GROUP][TOKENS * VEC], const uint8_t *w, const uint8_t *x,
                          int count)
{
    const size_t w_step = UNITS * unit_bytes(type), x_step = UNITS * butler_q8_unit_bytes(unit_columns(type));
#define PRODUCT(i, of_x, of_w)                                                                                                     \
    if (i < count) {                                                                                                               \
        _tile_zero(i);                                                                                                             \
        _tile_loadd(of_x, x + i * x_step, unit_columns(type));                                                                     \
        _tile_loadd(of_w, w + i * w_step, 64);                                                                                     \
        _tile_dpbssd(i, of_x, of_w);                                                                                               \
    }
    PRODUCT(0, 4, 5)
    PRODUCT(1, 6, 7)
    PRODUCT(2, 4, 5)
    PRODUCT(3, 6, 7)
#undef PRODUCT
    _tile_stored(0, integers[0], 64);
    if (count > 1)
        _tile_stored(1, integers[1], 64);
    if (count > 2)
        _tile_stored(2, integers[2], 64);
    if (count > 3)
        _tile_stored(3, integers[3], 64);
}

/* Adds a unit's integers, scaled. */
INLINE void add_unit(enum butler_type type, vec acc[TOKENS], const int32_t *integers, const uint8_t *w, const uint8_t *x)
{
    const int columns = unit_columns(type);
    const float *scales = (const float *)(x + columns * TOKENS), *rest = scales + TOKENS;
    const vec row_scales = vec_load((const float *)(w + columns * VEC));
    UNROLL
    for (int t = 0; t < TOKENS; t++) {
        const vec whole = _mm512_cvtepi32_ps(_mm512_load_si512(integers + t * VEC));
        acc[t] = vec_fma(whole, vec_mul(row_scales, vec_set1(scales[t])), acc[t]);
        if (has_minimum(type))
            acc[t] = vec_fma(vec_load((const float *)(w + (columns + 4) * VEC)), vec_set1(rest[t]), acc[t]);
    }
}

/* VEC rows with TOKENS tokens. A group's integers are used while the next group's are computed. */
INLINE void multiply_tile(enum butler_type type, vec sums[TOKENS], const uint8_t *panel, const uint8_t *x, int n_units)
{
    const size_t w_step = UNITS * unit_bytes(type), x_step = UNITS * butler_q8_unit_bytes(unit_columns(type));
    _Alignas(64) float chains[UNITS][TOKENS][VEC];
    _Alignas(64) int32_t integers[2][GROUP][TOKENS * VEC];
    for (int chain = 0; chain < UNITS; chain++) {
        const uint8_t *w = panel + (size_t)chain * unit_bytes(type),
                      *tokens = x + (size_t)chain * butler_q8_unit_bytes(unit_columns(type));
        const int n = n_units > chain ? (n_units - chain + UNITS - 1) / UNITS : 0;
        vec acc[TOKENS];
        UNROLL
        for (int t = 0; t < TOKENS; t++)
            acc[t] = vec_zero();
        for (int i = 0; i < n + GROUP; i += GROUP) {
            const int count = BUTLER_MIN(n - i, (int)GROUP), before = i == 0 ? 0 : BUTLER_MIN(n - i + GROUP, (int)GROUP);
            if (count == GROUP)
                tile_products(type, integers[i / GROUP % 2], w + (size_t)i * w_step, tokens + (size_t)i * x_step, GROUP);
            else if (count > 0)
                tile_products(type, integers[i / GROUP % 2], w + (size_t)i * w_step, tokens + (size_t)i * x_step, count);
            for (int k = i - GROUP; k < i - GROUP + before; k++)
                add_unit(type, acc, integers[k / GROUP % 2][k % GROUP], w + (size_t)k * w_step, tokens + (size_t)k * x_step);
        }
        UNROLL
        for (int t = 0; t < TOKENS; t++)
            vec_store(chains[chain][t], acc[t]);
    }
    UNROLL
    for (int t = 0; t < TOKENS; t++)
        sums[t] = vec_add(vec_add(vec_load(chains[0][t]), vec_load(chains[2][t])),
                          vec_add(vec_load(chains[1][t]), vec_load(chains[3][t])));
}

INLINE void multiply_panel(enum butler_type type, float *y, size_t y_stride, const uint8_t *panel, int n_rows, const uint8_t *q8,
                           int n_tokens, int n)
{
    const int n_units = n / unit_columns(type);
    _tile_loadconfig(configs[narrow_units(type)]);
    for (int t = 0; t < n_tokens; t += TOKENS, q8 += butler_q8_bytes(n))
        for (int r = 0; r < n_rows; r += VEC) {
            vec sums[TOKENS];
            for (int i = 0; i < BUTLER_MIN((int)TOKENS, n_tokens - t); i++) /* each is a page of its own */
                __builtin_prefetch(y + (size_t)(t + i) * y_stride + r, 1);
            multiply_tile(type, sums, panel + (size_t)(r / VEC) * (size_t)n_units * unit_bytes(type), q8, n_units);
            for (int i = 0; i < BUTLER_MIN((int)TOKENS, n_tokens - t); i++)
                vec_store_some(y + (size_t)(t + i) * y_stride + r, sums[i], BUTLER_MIN(n_rows - r, VEC));
        }
    _tile_release();
}

static void quantise_q8(void *q8, enum butler_type type, const float *x, int n_tokens, int n)
{
    quantise_tokens(q8, type, x, n_tokens, n, true);
}

#define MULTIPLY(name, type)                                                                                                       \
    static void multiply_##name(float *y, size_t y_stride, const void *panel, int n_rows, const void *q8, int n_tokens, int n)     \
    {                                                                                                                              \
        multiply_panel(type, y, y_stride, panel, n_rows, q8, n_tokens, n);                                                         \
    }
MULTIPLY(wide, BUTLER_Q8_0)
MULTIPLY(wide_minimum, BUTLER_Q4_1)
MULTIPLY(narrow, BUTLER_Q6_K)
MULTIPLY(narrow_minimum, BUTLER_Q2_K)

void butler_kernels_matmul_amx(struct butler_kernels *table)
{
    table->q8_signed = true;
    table->quantise_q8 = quantise_q8;
    for (int type = 0; type < BUTLER_N_TYPES; type++)
        if (table->multiply_q8[type]) {
            const bool narrow = narrow_units((enum butler_type)type), minimum = has_minimum((enum butler_type)type);
            table->multiply_q8[type] =
                narrow ? (minimum ? multiply_narrow_minimum : multiply_narrow) : (minimum ? multiply_wide_minimum : multiply_wide);
        }
}
BUTLER_TARGET_END
#endif
