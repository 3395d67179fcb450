/* Attention of a prompt's queries in the matrix unit. A block of 32 queries meets 64 keys at a time in three steps: scores,
 * weights, values. The unit is at the scores of the next 64 and at the values of those before, four products at a time, and between
 * any two such groups vectors make a few pairs of weights: done one after the other, either would wait for the other.
 *
 * Scores lie as the unit gives them with keys as its left operand, a lane for each query, so that maxima, sums and factors need no
 * work across lanes; and two lines of scores become one of high and one of low parts, just what the unit takes as its right
 * operand, in the same place. Keys and values pass by the first-level cache, in which queries, scores and results stay: a store
 * that misses it costs the unit more than a load that does.
 *
 * Intel's servers from 2023 on win; by how much over AVX-512: `bench_kernels --compare`, docs/prompts.md (the column attention). */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AMX_FLOATS)

#include <math.h>

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/amx.h"

enum {
    ROWS = BUTLER_ATTEND_ROWS,
    KEYS = BUTLER_ATTEND_KEYS,
    N_PAIRS = KEYS / 2,        /* of keys, for 16 queries: one line of high parts, one of low */
    LOW = N_PAIRS * 64,        /* bytes from a pair's first line of scores, or its high parts, to the other */
    QUERIES = 2 * LOW,         /* bytes of 16 queries */
    LINE = 64,                 /* bytes */
    TILE_FLOATS = TILE * TILE, /* of sums */
};

/* 32 queries and 64 keys on their way through the pipeline. */
struct item {
    _Alignas(64) uint8_t scores[2 * QUERIES]; /* then weights */
    float factor[ROWS];                       /* of what was summed before */
    float minus_max[ROWS];
    int row, key;
    bool exists, masked, grew; /* grew: some factor is not 1 */
};

/* Where the queries and keys of an item lie, and what comes next. */
struct walk {
    const struct butler_attention *a;
    int row, key;
};

/* 2^(x log2(e) - max), with one rounding of the argument: 2^f, 0 <= f < 1, fitted for the least relative error, 1.6e-7, and what is
 * whole (of an infinity f is 0). */
INLINE vec weight(vec x, vec minus_max)
{
    const vec t = vec_fma(x, vec_set1(1.44269504f), minus_max);
    const vec f = _mm512_reduce_ps(t, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec g = vec_set1(0x1.ec320ap-10f);
    g = vec_fma(g, f, vec_set1(0x1.26900cp-7f));
    g = vec_fma(g, f, vec_set1(0x1.c95446p-5f));
    g = vec_fma(g, f, vec_set1(0x1.ebd5a8p-3f));
    g = vec_fma(g, f, vec_set1(0x1.62e4f6p-1f));
    g = vec_fma(g, f, vec_set1(0x1.fffffep-1f));
    return vec_scale2(g, t);
}

/* Scores of two keys for 16 queries become weights; a word is the first key's part and the second's. */
INLINE void weigh_pair(uint8_t *pair, vec minus_max, vec *even, vec *odd, float *kept)
{
    const __m512i half = _mm512_set1_epi32(0x8000), upper = _mm512_set1_epi32((int)0xffff0000);
    const vec a = weight(vec_load((const float *)pair), minus_max), b = weight(vec_load((const float *)(pair + LOW)), minus_max);
    *even = vec_add(*even, a);
    *odd = vec_add(*odd, b);
    /* To the nearest bfloat16: half of one is added and what is below it cut off. */
    const __m512i high_a = _mm512_add_epi32(_mm512_castps_si512(a), half), high_b = _mm512_add_epi32(_mm512_castps_si512(b), half);
    const vec rest_a = vec_sub(a, _mm512_castsi512_ps(_mm512_and_si512(high_a, upper)));
    const vec rest_b = vec_sub(b, _mm512_castsi512_ps(_mm512_and_si512(high_b, upper)));
    const __m512i low_a = _mm512_add_epi32(_mm512_castps_si512(rest_a), half),
                  low_b = _mm512_add_epi32(_mm512_castps_si512(rest_b), half);
    /* a | b & c */
    _mm512_store_si512(pair, _mm512_ternarylogic_epi32(_mm512_srli_epi32(high_a, 16), high_b, upper, 0xf8));
    _mm512_store_si512(pair + LOW, _mm512_ternarylogic_epi32(_mm512_srli_epi32(low_a, 16), low_b, upper, 0xf8));
    if (kept) {
        vec_store(kept, a);
        vec_store(kept + N_PAIRS * TILE, b);
    }
}

/* The maxima of two keys' scores so far. */
INLINE void look(vec most[2], const float *scores)
{
    most[0] = vec_max(most[0], vec_load(scores));
    most[1] = vec_max(most[1], vec_load(scores + LOW / 4));
}

/* The scores of keys that a query does not see, as if they were -infinity. */
static void hide(struct item *item, const struct butler_attention *a)
{
    for (int part = 0; part < 4; part++) {
        const int row = item->row + part / 2 * TILE;
        const __m512i begin = _mm512_loadu_si512(a->begin + row), end = _mm512_loadu_si512(a->end + row);
        float *scores = (float *)(item->scores + part / 2 * QUERIES + part % 2 * LOW);
        for (int i = 0; i < N_PAIRS; i++, scores += TILE) {
            const __m512i key = _mm512_set1_epi32(item->key + 2 * i + part % 2);
            const __mmask16 sees = _mm512_cmple_epi32_mask(begin, key) & _mm512_cmpgt_epi32_mask(end, key);
            vec_store(scores, _mm512_mask_blend_ps(sees, vec_set1(-INFINITY), vec_load(scores)));
        }
    }
}

/* Where 16 lines of weights for 16 queries each, of even keys and of odd ones, are 32 weights of each query. */
static void keep_weights(const float *kept, const struct item *item, const struct butler_attention *a)
{
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int part = 0; part < 4; part++) {
        const int row = item->row + part / 2 * TILE, key = item->key + part % 2 * STEP, n = BUTLER_MIN(a->n_keys - key, STEP);
        const float *lines = kept + part / 2 * 2 * N_PAIRS * TILE + part % 2 * TILE_FLOATS;
        __m512i even[TILE], odd[TILE];
        for (int i = 0; i < TILE; i++) {
            even[i] = _mm512_loadu_si512(lines + i * TILE);
            odd[i] = _mm512_loadu_si512(lines + N_PAIRS * TILE + i * TILE);
        }
        transpose(even);
        transpose(odd);
        for (int i = 0; i < BUTLER_MIN(a->n_rows - row, TILE) && n > 0; i++) {
            float *to = a->kept + (size_t)(row + i) * a->kept_stride + key;
            vec_store_some(to, _mm512_castsi512_ps(_mm512_permutex2var_epi32(even[i], first, odd[i])), BUTLER_MIN(n, VEC));
            if (n > VEC)
                vec_store_some(to + VEC, _mm512_castsi512_ps(_mm512_permutex2var_epi32(even[i], last, odd[i])), n - VEC);
        }
    }
}

/* The item's maxima are known: the maxima of its rows grow, in whole powers of 2, so that factors are exact and rare. */
INLINE void grow(struct item *item, const struct butler_attention *a, const vec most[2])
{
    item->grew = false;
    for (int h = 0; h < 2; h++) {
        float *max = a->max + item->row + h * TILE;
        const vec old = vec_load(max), up = vec_mul(most[h], vec_set1(1.44269504f));
        const vec now = vec_max(old, _mm512_roundscale_ps(up, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC));
        item->grew |= _mm512_cmp_ps_mask(old, now, _CMP_NEQ_UQ) != 0;
        vec_store(max, now);
        vec_store(item->factor + h * TILE, vec_scale2(vec_set1(1), vec_sub(old, now)));
        vec_store(item->minus_max + h * TILE, vec_sub(vec_zero(), now));
        if (a->kept) {
            const int n = BUTLER_MIN(BUTLER_MAX(a->n_rows - item->row - h * TILE, 0), TILE);
            vec_store_some(a->maxima + (size_t)(item->key / KEYS) * a->maxima_stride + item->row + h * TILE, now, n);
        }
    }
}

/* Where four tiles of sums lie: bytes from one of 16 queries to one of the next 16, and from 16 keys or channels to the next 16. */
struct sums {
    uint8_t *at; /* NULL: nowhere */
    size_t right, down;
};

INLINE struct sums sums_of_scores(uint8_t *at)
{
    return (struct sums){at, QUERIES, LOW};
}

INLINE struct sums sums_of_values(float *at)
{
    return (struct sums){(uint8_t *)at, TILE_FLOATS * sizeof *at, 2 * TILE_FLOATS * sizeof *at};
}

INLINE void store_sums(struct sums sums)
{
    if (!sums.at)
        return;
    _tile_stored(0, sums.at, LINE);
    _tile_stored(1, sums.at + sums.right, LINE);
    _tile_stored(2, sums.at + sums.down, LINE);
    _tile_stored(3, sums.at + sums.down + sums.right, LINE);
}

/* The first third of the products of new sums, which go on `from` (nowhere: from 0); those before belong `to`. A store waits for
 * the last product of its tile and fills the window of instructions meanwhile: four in a row, and operands loaded after them, keep
 * the unit idle for 60 cycles; two and two among the next products, none. */
INLINE void multiply_first(const uint8_t *a, size_t a_line, const uint8_t *b, size_t b_line, struct sums to, struct sums from)
{
    _tile_stream_loadd(4, a, LINE);
    _tile_stream_loadd(5, a + a_line, LINE);
    _tile_loadd(6, b, LINE);
    _tile_loadd(7, b + b_line, LINE);
    if (to.at) {
        _tile_stored(0, to.at, LINE);
        _tile_stored(1, to.at + to.right, LINE);
    }
    if (from.at) {
        _tile_loadd(0, from.at, LINE);
        _tile_loadd(1, from.at + from.right, LINE);
    } else {
        _tile_zero(0);
        _tile_zero(1);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (to.at) {
        _tile_stored(2, to.at + to.down, LINE);
        _tile_stored(3, to.at + to.down + to.right, LINE);
    }
    if (from.at) {
        _tile_loadd(2, from.at + from.down, LINE);
        _tile_loadd(3, from.at + from.down + from.right, LINE);
    } else {
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* A third of the products of one step of k: left operands that are not used again soon, in 2 x 2 tiles, line bytes apart. Each pair
 * of parts uses what its neighbour loaded. */
INLINE void multiply_third(int third, const uint8_t *a, size_t a_line, const uint8_t *b, size_t b_line, size_t low)
{
    if (third != 1) {
        const uint8_t *part = a + (third == 2 ? HALF : 0);
        _tile_stream_loadd(4, part, LINE);
        _tile_stream_loadd(5, part + a_line, LINE);
    }
    if (third != 2) {
        const uint8_t *part = b + (third == 0 ? low : 0);
        _tile_loadd(6, part, LINE);
        _tile_loadd(7, part + b_line, LINE);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* One step of the pipeline: scores of item a, weights of item b, values of item c. steps: of 32 channels. Where `all`, all three
 * exist and no weights are kept: compilers make one piece of the loop's body then. pending: where results belong that the step
 * before left in tiles 0 to 3, and those that this step leaves. */
INLINE float *advance_pipeline(const struct butler_attention *attention, struct item *a, struct item *b, struct item *c, int steps,
                               bool all, float *pending)
{
    const bool has_a = all || a->exists, has_b = all || b->exists, has_c = all || c->exists;
    const size_t line = (size_t)steps * BUTLER_TILE_BYTES; /* of 16 queries or keys */
    const int pairs = BUTLER_CEIL_DIV(N_PAIRS / 2, steps), looks = BUTLER_CEIL_DIV(N_PAIRS, steps);
    const uint8_t *keys = (const uint8_t *)attention->keys + (size_t)(has_a ? a->key / TILE : 0) * line;
    const uint8_t *queries = (const uint8_t *)attention->queries + (size_t)(has_a ? a->row / TILE : 0) * line;
    /* Of values, all keys of 16 channels lie together. */
    const size_t value_line = (size_t)BUTLER_CEIL_DIV(attention->n_keys, KEYS) * KEYS / STEP * BUTLER_TILE_BYTES;
    const uint8_t *values = (const uint8_t *)attention->values + (size_t)(has_c ? c->key / STEP : 0) * BUTLER_TILE_BYTES;
    float *out = attention->out + (size_t)(has_c ? c->row / TILE : 0) * (size_t)steps * 2 * TILE_FLOATS;
    vec even = vec_zero(), odd = even, minus_max = even, most[2][2];
    _Alignas(64) float kept[2 * 2 * N_PAIRS * TILE];
    const bool keeps = !all && has_b && attention->kept;
#define START_WEIGHTS(half)                                                                                                        \
    do {                                                                                                                           \
        if (has_b) {                                                                                                               \
            even = vec_mul(vec_load(attention->sum + b->row + (half)*TILE), vec_load(b->factor + (half)*TILE));                    \
            odd = vec_zero();                                                                                                      \
            minus_max = vec_load(b->minus_max + (half)*TILE);                                                                      \
        }                                                                                                                          \
    } while (0)
#define END_WEIGHTS(half)                                                                                                          \
    do {                                                                                                                           \
        if (has_b)                                                                                                                 \
            vec_store(attention->sum + b->row + (half)*TILE, vec_add(even, odd));                                                  \
    } while (0)
/* Some pairs of step x of 2 * steps, between products. */
#define WEIGH(half, x, third)                                                                                                      \
    do {                                                                                                                           \
        const int begin = (third) == 0 ? 0 : (third) == 1 ? (pairs + 2) / 3 : (2 * pairs + 2) / 3;                                 \
        const int end = (third) == 0 ? (pairs + 2) / 3 : (third) == 1 ? (2 * pairs + 2) / 3 : pairs;                               \
        __asm__ volatile("" ::: "memory");                                                                                         \
        if (all) {                                                                                                                 \
            UNROLL                                                                                                                 \
            for (int i = begin; i < end; i++)                                                                                      \
                weigh_pair(b->scores + (half)*QUERIES + ((x)*pairs + i) * LINE, minus_max, &even, &odd, NULL);                     \
        } else                                                                                                                     \
            for (int i = (x)*pairs + begin; i < BUTLER_MIN((x)*pairs + end, N_PAIRS) && has_b; i++)                                \
                weigh_pair(b->scores + (half)*QUERIES + i * LINE, minus_max, &even, &odd,                                          \
                           keeps ? kept + (half)*2 * N_PAIRS * TILE + i * TILE : NULL);                                            \
        __asm__ volatile("" ::: "memory");                                                                                         \
    } while (0)
/* Some maxima of item a; the maxima of the last scores come last. */
#define LOOK(group, half, third)                                                                                                   \
    do {                                                                                                                           \
        const int begin = (third) == 0 ? 0 : (third) == 1 ? (looks + 2) / 3 : (2 * looks + 2) / 3;                                 \
        const int end = (third) == 0 ? (looks + 2) / 3 : (third) == 1 ? (2 * looks + 2) / 3 : looks;                               \
        const float *scores = (const float *)(a->scores + (half)*QUERIES) + (group)*looks * TILE;                                  \
        if (all) {                                                                                                                 \
            UNROLL                                                                                                                 \
            for (int i = begin; i < end; i++)                                                                                      \
                look(most[half], scores + i * TILE);                                                                               \
        } else                                                                                                                     \
            for (int i = begin; i < BUTLER_MIN(end, N_PAIRS - (group)*looks) && has_a; i++)                                        \
                look(most[half], scores + i * TILE);                                                                               \
    } while (0)
    most[0][0] = most[0][1] = most[1][0] = most[1][1] = vec_set1(-INFINITY);
    struct sums sums = sums_of_values(pending);
    if (!has_a) {
        store_sums(sums);
        sums.at = NULL;
    }
    __asm__ volatile("" ::: "memory");
    START_WEIGHTS(0);
    for (int x = 0, group = 0; group < 2; group++, keys += 2 * line) {
        for (int s = 0; s < steps; s++, x++) {
            const uint8_t *left = keys + (size_t)s * BUTLER_TILE_BYTES, *right = queries + (size_t)s * BUTLER_TILE_BYTES;
            if (has_a && s == 0)
                multiply_first(left, line, right + HALF, line, sums, (struct sums){0});
            else if (has_a)
                multiply_third(0, left, line, right, line, HALF);
            WEIGH(0, x, 0);
            if (has_a)
                multiply_third(1, left, line, right, line, HALF);
            WEIGH(0, x, 1);
            if (has_a)
                multiply_third(2, left, line, right, line, HALF);
            WEIGH(0, x, 2);
        }
        if (has_a)
            sums = sums_of_scores(a->scores + group * TILE * LINE);
    }
    END_WEIGHTS(0);
    START_WEIGHTS(1);
    if (has_a && (!has_c || a->masked)) { /* they are wanted now */
        store_sums(sums);
        sums.at = NULL;
    }
    __asm__ volatile("" ::: "memory");
    if (has_a && a->masked)
        hide(a, attention);
    if (has_c && c->grew) {
        const vec factors[2] = {vec_load(c->factor), vec_load(c->factor + TILE)};
        for (int i = 0; i < steps * 4 * TILE; i++)
            vec_store(out + i * TILE, vec_mul(vec_load(out + i * TILE), factors[i / TILE % 2]));
    }
    __asm__ volatile("" ::: "memory");
    for (int x = 0, group = 0; group < steps; group++, values += 2 * value_line, out += 4 * TILE_FLOATS) {
        for (int s = 0; s < 2; s++, x++) {
            const uint8_t *left = values + (size_t)s * BUTLER_TILE_BYTES, *right = has_c ? c->scores + s * TILE * LINE : NULL;
            if (has_c && s == 0)
                multiply_first(left, value_line, right + LOW, QUERIES, sums, sums_of_values(out));
            else if (has_c)
                multiply_third(0, left, value_line, right, QUERIES, LOW);
            WEIGH(1, x, 0);
            LOOK(group, s, 0);
            if (has_c)
                multiply_third(1, left, value_line, right, QUERIES, LOW);
            WEIGH(1, x, 1);
            LOOK(group, s, 1);
            if (has_c)
                multiply_third(2, left, value_line, right, QUERIES, LOW);
            WEIGH(1, x, 2);
            LOOK(group, s, 2);
        }
        if (has_c)
            sums = sums_of_values(out);
    }
    END_WEIGHTS(1);
    if (keeps)
        keep_weights(kept, b, attention);
    if (has_a) {
        most[0][0] = vec_max(most[0][0], most[0][1]);
        most[0][1] = vec_max(most[1][0], most[1][1]);
        grow(a, attention, most[0]);
    }
    return has_c ? (float *)sums.at : NULL;
}

/* The next queries and keys of which some see some. All keys first: queries and results stay in the first-level cache. */
static void next_item(struct walk *walk, struct item *item)
{
    const struct butler_attention *a = walk->a;
    for (item->exists = false; walk->row < a->n_rows && !item->exists; walk->key += KEYS) {
        if (walk->key >= a->n_keys) {
            walk->key = -KEYS;
            walk->row += ROWS;
            continue;
        }
        const __m512i key = _mm512_set1_epi32(walk->key), last = _mm512_set1_epi32(walk->key + KEYS);
        __mmask16 any = 0, all = 0xffff;
        for (int i = walk->row; i < walk->row + ROWS; i += TILE) {
            const __m512i begin = _mm512_loadu_si512(a->begin + i), end = _mm512_loadu_si512(a->end + i);
            any |= _mm512_cmplt_epi32_mask(begin, last) & _mm512_cmpgt_epi32_mask(end, key) & _mm512_cmplt_epi32_mask(begin, end);
            all &= _mm512_cmple_epi32_mask(begin, key) & _mm512_cmpge_epi32_mask(end, last);
        }
        item->exists = any != 0;
        item->row = walk->row;
        item->key = walk->key;
        item->masked = all != 0xffff;
    }
}

#define ADVANCE(name, steps, all)                                                                                                  \
    static float *advance_##name(const struct butler_attention *attention, struct item *a, struct item *b, struct item *c,         \
                                 float *pending)                                                                                   \
    {                                                                                                                              \
        return advance_pipeline(attention, a, b, c, steps, all, pending);                                                          \
    }
ADVANCE(1, 1, true)
ADVANCE(2, 2, true)
ADVANCE(4, 4, true)
ADVANCE(any, BUTLER_CEIL_DIV(attention->dim, STEP), false)

void butler_amx_attend_packed(const struct butler_attention *attention)
{
    const int steps = BUTLER_CEIL_DIV(attention->dim, STEP);
    float *(*const whole)(const struct butler_attention *, struct item *, struct item *, struct item *, float *) =
        steps == 1   ? advance_1
        : steps == 2 ? advance_2
        : steps == 4 ? advance_4
                     : advance_any;
    struct walk walk = {.a = attention};
    struct item items[3], *a = items, *b = items + 1, *c = items + 2;
    b->exists = c->exists = false;
    float *pending = NULL;
    /* Weights and what is summed of them: subnormal numbers count as 0, as they do in the unit. */
    const unsigned state = _mm_getcsr();
    _mm_setcsr(state | _MM_FLUSH_ZERO_ON | _MM_DENORMALS_ZERO_ON);
    __asm__ volatile("" ::: "memory"); /* the tile instructions do not say what they read */
    _tile_loadconfig(amx_config);
    for (;;) {
        next_item(&walk, a);
        if (!a->exists && !b->exists && !c->exists)
            break;
        pending = (a->exists && b->exists && c->exists && !attention->kept ? whole : advance_any)(attention, a, b, c, pending);
        struct item *free = c;
        c = b, b = a, a = free;
    }
    store_sums(sums_of_values(pending));
    _tile_release();
    _mm_setcsr(state);
}
BUTLER_TARGET_END
#endif
