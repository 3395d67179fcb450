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
    int first = 0, last = butler_view_n_slots(view);
    if (!view->positions) {
        first = BUTLER_MAX(from, 0);
        last = BUTLER_MIN(from + n, last);
    }
    float sums[64];
    for (int slot = first; slot < last; slot += BUTLER_COUNT(sums)) {
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

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const int first = request->first, n = request->n;
    (void)shape;
    int kernel = (int)values[1], half = kernel / 2;
    int edge = newest_position(view) - (int)values[0] + 1; /* first position of the observation window */
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
    .score = score,
    .score_bytes = score_bytes,
    .observe_bytes = observe_bytes,
};
