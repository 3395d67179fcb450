/* Windowed attention (Scissorhands): the sum over the last w queries of a_jk, vatp eq. 3. The window counts queries. */
#include "window.h"

#define ONE 16777216.0f /* 2^24 units */

size_t butler_window_bytes(int group, int window)
{
    size_t bytes = (size_t)group * (sizeof(uint64_t) + (size_t)window * sizeof(uint16_t));
    return (bytes + 7) / 8 * 8;
}

static uint64_t units(uint16_t half)
{
    return (uint64_t)(butler_half_to_float(half) * ONE);
}

void butler_window_observe(const struct butler_head_view *view, int group, int window, int position, const float *weights,
                           size_t stride, int n)
{
    int at = position % window;
    for (int slot = 0; slot < n; slot++) {
        uint64_t *sums = butler_view_record(view, slot);
        uint16_t *ring = (uint16_t *)(sums + group) + at;
        for (int head = 0; head < group; head++, ring += window) {
            uint16_t seen = butler_float_to_half(weights[(size_t)head * stride + slot]);
            sums[head] += units(seen) - units(*ring);
            *ring = seen;
        }
    }
}

float butler_window_sum(const struct butler_head_view *view, int slot, int head)
{
    const uint64_t *sums = butler_view_record(view, slot);
    return (float)sums[head] / ONE;
}

uint64_t butler_window_score_bytes(int group, int n_slots)
{
    return (uint64_t)n_slots * (uint64_t)group * sizeof(uint64_t);
}

uint64_t butler_window_observe_bytes(int group, int n_slots)
{
    return (uint64_t)n_slots * (uint64_t)group * (sizeof(uint64_t) + sizeof(uint16_t));
}

static const struct butler_param params[] = {
    {"window", 400, 1, 65536, "latest queries that count"},
    {NULL, 0, 0, 0, NULL},
};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    *n_slots = 1;
    *n_bytes = butler_window_bytes(shape->group, (int)values[0]);
}

static int attention_window(const double *values)
{
    return (int)values[0];
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    butler_window_observe(view, shape->group, (int)values[0], position, weights, stride, n);
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)values, (void)q;
    for (int head = 0; head < n_q; head++)
        for (int i = 0; i < n; i++)
            out[(size_t)head * stride + i] = butler_window_sum(view, first + i, head);
}

static uint64_t score_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return butler_window_score_bytes(shape->group, n_slots);
}

static uint64_t observe_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return butler_window_observe_bytes(shape->group, n_slots);
}

const struct butler_metric butler_metric_windowed = {
    .name = "windowed",
    .summary = "attention received from the last w queries",
    .scale = BUTLER_SCORE_WEIGHT,
    .params = params,
    .record = record,
    .attention_window = attention_window,
    .observe = observe,
    .score = score,
    .score_bytes = score_bytes,
    .observe_bytes = observe_bytes,
};
