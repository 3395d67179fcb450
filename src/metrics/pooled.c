/* Pooled attention (SnapKV, arXiv 2404.14469): the attention of the last w queries, then the mean or maximum over `kernel`
 * adjacent positions, so that the neighbours of an important token are kept too.
 *
 * Neighbours are text positions, not slots. A position that was evicted, or lies outside the text, counts as 0 in the mean
 * (the divisor is always `kernel`), and is ignored in the maximum. SnapKV pools only the tokens before the observation window
 * (the last w positions); so a neighbour counts only on the token's own side of the window's edge.
 *
 * After evictions slots may be in any order. Scoring goes through the text in blocks of positions and scatters the slots of a
 * block into a table on the stack.
 *
 * A record (one slot) is {uint64 sum[group], half ring[group][w]}. The weight given by the query at position t is
 * ring[head][t mod w], as a half. Each half in [0, 1] is a multiple of 2^-24, so the running sum is an integer in that unit:
 * a weight that leaves the window is subtracted exactly, and no error accumulates. */
#include <limits.h>
#include <string.h>

#include "engine/metric.h"
#include "kernels/kernels.h"

#define BLOCK 2048
#define MAX_KERNEL 63

static const struct butler_param params[] = {
    {"window", 32, 1, 4096, "latest queries that count"},
    {"kernel", 7, 1, MAX_KERNEL, "neighbouring positions pooled, odd"},
    {"pool", 1, 0, 1, "avg or max"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{1, {NULL}}, {2, {NULL}}, {1, {"avg", "max"}}};

#define ONE 16777216.0f /* 2^24 units */
/* Prefetch distance in records. Records are long, and a step touches two cache lines of each: the hardware does not prefetch
 * them. */
#define AHEAD 16

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    const size_t bytes = (size_t)shape->group * (sizeof(uint64_t) + (size_t)values[0] * sizeof(uint16_t));
    *n_slots = 1;
    *n_bytes = (bytes + 7) / 8 * 8;
}

static int attention_window(const double *values)
{
    return (int)values[0];
}

/* A half >= 0 in units of 2^-24, from its exponent and mantissa. */
static uint64_t units(uint16_t half)
{
    const unsigned exponent = half >> 10 & 31, mantissa = half & 1023;
    return exponent ? (uint64_t)(mantissa | 1024) << (exponent - 1) : mantissa;
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    const int group = shape->group, window = attention_window(values);
    unsigned char *record = butler_view_record(view, 0);
    const size_t entry = (size_t)group * sizeof(uint64_t) + (size_t)(position % window) * sizeof(uint16_t);
    for (int slot = 0; slot < n; slot++, record += view->record_bytes) {
        if (slot + AHEAD < n) {
            __builtin_prefetch(record + AHEAD * view->record_bytes, 1);
            __builtin_prefetch(record + AHEAD * view->record_bytes + entry, 1);
        }
        uint64_t *sums = (uint64_t *)record;
        uint16_t *ring = (uint16_t *)(record + entry);
        for (int head = 0; head < group; head++, ring += window) {
            uint16_t seen = butler_float_to_half(weights[(size_t)head * stride + slot]);
            sums[head] += units(seen) - units(*ring);
            *ring = seen;
        }
    }
}

enum { CHUNK = 64, QUERIES = 32, HEADS = 8, NEAR = 4 }; /* slots, queries and query heads at a time; records ahead */

/* Queries [first, first + n) of a block, and what they and some query heads gave to a chunk of slots. */
struct some {
    const struct butler_block_weights *block;
    int first, n;
    int entry; /* the first one's, in a ring of `window` */
    uint16_t halves[HEADS][QUERIES][CHUNK];
    uint32_t sums[HEADS][CHUNK];
};

/* Weights in [0, 1] as halves, and added to sums in units of 2^-24. It is butler_float_to_half and units(), for a compiler to do
 * for many numbers at once. */
static void round_weights(const float *weights, float factor, uint16_t *halves, uint32_t *sums)
{
    union {
        float f[CHUNK];
        uint32_t bits[CHUNK];
    } weight, small, rounded;
    for (int i = 0; i < CHUNK; i++) {
        weight.f[i] = weights[i] * factor;
        small.f[i] = weight.f[i] + 0.5f; /* its last bit is 2^-24, the unit of subnormals: the addition rounds */
    }
    for (int i = 0; i < CHUNK; i++) {
        const uint32_t bits = weight.bits[i], all = bits + 0xfff + (bits >> 13 & 1);
        rounded.bits[i] = all & ~(uint32_t)0x1fff;
        weight.bits[i] = (all - 0x38000000) >> 13;
        small.bits[i] -= 0x3f000000;
    }
    for (int i = 0; i < CHUNK; i++) {
        const uint32_t high = (uint32_t)(int32_t)(rounded.f[i] * ONE),
                       is_small = -(uint32_t)(rounded.f[i] < 0x1p-14f); /* a weight below it that is rounded to it: either way */
        sums[i] += (small.bits[i] & is_small) | (high & ~is_small);
        halves[i] = (uint16_t)((small.bits[i] & is_small) | (weight.bits[i] & ~is_small));
    }
}

/* What the queries gave to slots [from, from + n), n <= CHUNK, under query heads [head, head + n_heads); to those that they do not
 * see, 0. */
static void round_all(struct some *some, int group, int head, int n_heads, int from, int n)
{
    const struct butler_block_weights *block = some->block;
    const float *factors = block->factors + (size_t)(from / block->keys) * block->factor_stride;
    memset(some->sums, 0, sizeof some->sums);
    for (int t = 0; t < some->n; t++) {
        const int seen = BUTLER_MAX(BUTLER_MIN(n, block->n_seen + some->first + t - from), 0);
        for (int h = 0; h < n_heads; h++) {
            const int row = (some->first + t) * group + head + h;
            if (seen == 0) { /* its factor is of another chunk */
                memset(some->halves[h][t], 0, sizeof some->halves[h][t]);
                continue;
            }
            const float *weights = block->weights + (size_t)row * block->stride + from;
            float padded[CHUNK];
            if (seen < CHUNK) {
                memset(padded, 0, sizeof padded);
                weights = memcpy(padded, weights, (size_t)seen * sizeof *weights);
            }
            round_weights(weights, factors[row], some->halves[h][t], some->sums[h]);
        }
    }
}

/* They go into the records. */
static void keep_all(const struct some *some, const struct butler_head_view *view, int group, int window, int head, int n_heads,
                     int from, int n)
{
    unsigned char *record = butler_view_record(view, from);
    const int n_queries = some->n, entry = some->entry;
    for (int i = 0; i < n; i++, record += view->record_bytes) {
        /* Later queries of the block see the slot; the earlier ones came before it and leave its ring as it is. */
        const int t_first = BUTLER_MAX(from + i + 1 - some->block->n_seen - some->first, 0);
        uint64_t *sums = (uint64_t *)record + head;
        uint16_t *ring = (uint16_t *)(record + (size_t)group * sizeof *sums) + (size_t)head * (size_t)window;
        for (int h = 0; h < n_heads; h++, ring += window) {
            const uint16_t *seen = &some->halves[h][0][i];
            uint64_t sum = some->sums[h][i];
            if (i + NEAR < n)
                __builtin_prefetch((unsigned char *)(ring + entry) + NEAR * view->record_bytes, 1);
            for (int t = t_first, at = entry + t_first; t < n_queries; t++, at++) {
                uint16_t *kept = &ring[at < window ? at : at - window];
                sum -= *kept ? units(*kept) : 0;
                *kept = seen[t * CHUNK];
            }
            sums[h] += sum;
        }
    }
}

/* observe() for many queries: a record is read once for all of them. */
static void observe_block(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                          const struct butler_block_weights *block)
{
    const int group = shape->group, window = attention_window(values), n_slots = block->n_seen + block->n_queries - 1,
              position = butler_view_query_position(view) + 1 - block->n_queries;
    struct some some;
    some.block = block;
    for (some.first = BUTLER_MAX(block->n_queries - window, 0); some.first < block->n_queries; some.first += some.n) {
        some.n = BUTLER_MIN(BUTLER_MIN(block->n_queries - some.first, QUERIES), window);
        some.entry = (position + some.first) % window;
        for (int from = 0, n; from < n_slots; from += n) {
            n = BUTLER_MIN(BUTLER_MIN(CHUNK, block->keys - from % block->keys), n_slots - from);
            for (int head = 0; head < group; head += HEADS) {
                const int n_heads = BUTLER_MIN(group - head, HEADS);
                round_all(&some, group, head, n_heads, from, n);
                keep_all(&some, view, group, window, head, n_heads, from, n);
            }
        }
    }
}

static void window_sums(const struct butler_head_view *view, int head, int first, int n, float *out)
{
    const unsigned char *record = butler_view_record(view, first);
    for (int i = 0; i < n; i++, record += view->record_bytes) {
        if (i + AHEAD < n)
            __builtin_prefetch(record + AHEAD * view->record_bytes);
        out[i] = (float)((const uint64_t *)record)[head] / ONE;
    }
}

static uint64_t score_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return (uint64_t)n_slots * (uint64_t)shape->group * sizeof(uint64_t);
}

static uint64_t observe_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return (uint64_t)n_slots * (uint64_t)shape->group * (sizeof(uint64_t) + sizeof(uint16_t));
}

/* table[p - from] = the sum at position p, p in [from, from + n); -1 if no slot holds p. */
static void scatter(const struct butler_head_view *view, int head, int from, int n, float *table)
{
    for (int i = 0; i < n; i++)
        table[i] = -1;
    const int last = butler_view_n_slots(view);
    float sums[64];
    for (int slot = 0; slot < last; slot += BUTLER_COUNT(sums)) {
        int m = BUTLER_MIN(last - slot, BUTLER_COUNT(sums));
        window_sums(view, head, slot, m, sums);
        for (int j = 0; j < m; j++) {
            int p = butler_view_position(view, slot + j) - from;
            if (p >= 0 && p < n)
                table[p] = sums[j];
        }
    }
}

static int newest_position(const struct butler_head_view *view)
{
    int newest = butler_view_n_slots(view) - 1;
    for (int slot = 0; view->positions && slot < view->n_slots; slot++)
        newest = BUTLER_MAX(newest, view->positions[slot]);
    return newest;
}

static float pool(const float *table, int low, int high, int kernel, bool maximum)
{
    float sum = 0, max = 0;
    for (int p = low; p <= high; p++)
        if (table[p] >= 0) {
            sum += table[p];
            max = BUTLER_MAX(max, table[p]);
        }
    return maximum ? max : sum / (float)kernel;
}

/* Whether all tokens are there in the order of the text, as where a prompt ends. */
static bool in_order(const struct butler_head_view *view)
{
    int differ = 0;
    for (int slot = 0; view->positions && slot < view->n_slots; slot++)
        differ |= view->positions[slot] ^ slot;
    return differ == 0;
}

/* Slots in the order of the text: a record is read once for its query heads. edge: the first of the observation window. */
static void score_in_order(const struct butler_head_view *view, const struct butler_score_request *request, const double *values,
                           int edge)
{
    enum { SLOTS = 256 };
    const int kernel = (int)values[1], half = kernel / 2, n_slots = butler_view_n_slots(view);
    float tables[HEADS][SLOTS + MAX_KERNEL - 1];
    for (int i = 0, n; i < request->n; i += n) {
        n = BUTLER_MIN(request->n - i, SLOTS);
        const int from = request->first + i, low = BUTLER_MAX(from - half, 0), end = BUTLER_MIN(from + n + half, n_slots);
        for (int head = 0; head < request->n_q; head += HEADS) {
            const int n_heads = BUTLER_MIN(request->n_q - head, HEADS);
            const unsigned char *record = butler_view_record(view, low);
            for (int slot = low; slot < end; slot++, record += view->record_bytes)
                for (int h = 0; h < n_heads; h++)
                    tables[h][slot - low] = (float)((const uint64_t *)record)[head + h] / ONE;
            for (int h = 0; h < n_heads; h++)
                for (int slot = from; slot < from + n; slot++) {
                    const int first = BUTLER_MAX(slot - half, slot < edge ? low : BUTLER_MAX(edge, low)),
                              last = BUTLER_MIN(slot + half, slot < edge ? BUTLER_MIN(edge, end) - 1 : end - 1);
                    request->out[(size_t)(head + h) * request->stride + (slot - request->first)] =
                        pool(tables[h], first - low, last - low, kernel, values[2] != 0);
                }
        }
    }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const int first = request->first, n = request->n;
    (void)shape;
    int kernel = (int)values[1], half = kernel / 2;
    int edge = newest_position(view) - (int)values[0] + 1; /* first position of the observation window */
    if (in_order(view)) {
        score_in_order(view, request, values, edge);
        return;
    }
    float table[BLOCK + MAX_KERNEL - 1];
    int lowest = INT_MAX, highest = -1;
    for (int i = 0; i < n; i++) {
        int p = butler_view_position(view, first + i);
        lowest = BUTLER_MIN(lowest, p);
        highest = BUTLER_MAX(highest, p);
    }
    for (int head = 0; head < request->n_q; head++)
        for (int from = lowest; from <= highest; from += BLOCK) {
            scatter(view, head, from - half, BLOCK + 2 * half, table);
            for (int i = 0; i < n; i++) {
                int p = butler_view_position(view, first + i) - from;
                if (p < 0 || p >= BLOCK)
                    continue;
                int low = p, high = p + 2 * half; /* its neighbours in the table; itself at p + half */
                if (from + p < edge)
                    high = BUTLER_MIN(high, edge - 1 - from + half);
                else
                    low = BUTLER_MAX(low, edge - from + half);
                request->out[(size_t)head * request->stride + i] = pool(table, low, high, kernel, values[2] != 0);
            }
        }
}

const struct butler_metric butler_metric_pooled = {
    .name = "pooled",
    .summary = "attention of the last w queries, pooled over adjacent positions",
    .scale = BUTLER_SCORE_WEIGHT,
    .params = params,
    .forms = forms,
    .record = record,
    .attention_window = attention_window,
    .observe = observe,
    .observe_block = observe_block,
    .score = score,
    .score_bytes = score_bytes,
    .observe_bytes = observe_bytes,
};
