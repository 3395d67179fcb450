/* Windowed attention (Scissorhands): the sum over the last w queries of a_jk, vatp eq. 3. The window counts queries. */
#include "kernels/kernels.h"
#include "metrics/window.h"

#define ONE 16777216.0f /* 2^24 units */
/* Prefetch distance in records. Records are long, and a step touches two cache lines of each: the hardware does not prefetch
 * them. */
#define AHEAD 16

void butler_window_record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    const size_t bytes = (size_t)shape->group * (sizeof(uint64_t) + (size_t)values[0] * sizeof(uint16_t));
    *n_slots = 1;
    *n_bytes = (bytes + 7) / 8 * 8;
}

int butler_window_length(const double *values)
{
    return (int)values[0];
}

/* A half >= 0 in units of 2^-24, from its exponent and mantissa. */
static uint64_t units(uint16_t half)
{
    const unsigned exponent = half >> 10 & 31, mantissa = half & 1023;
    return exponent ? (uint64_t)(mantissa | 1024) << (exponent - 1) : mantissa;
}

void butler_window_observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                           int position, const float *weights, size_t stride, int n)
{
    const int group = shape->group, window = butler_window_length(values);
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

void butler_window_sums(const struct butler_head_view *view, int head, int first, int n, float *out)
{
    const unsigned char *record = butler_view_record(view, first);
    for (int i = 0; i < n; i++, record += view->record_bytes) {
        if (i + AHEAD < n)
            __builtin_prefetch(record + AHEAD * view->record_bytes);
        out[i] = (float)((const uint64_t *)record)[head] / ONE;
    }
}

uint64_t butler_window_score_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return (uint64_t)n_slots * (uint64_t)shape->group * sizeof(uint64_t);
}

uint64_t butler_window_observe_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots)
{
    (void)values;
    return (uint64_t)n_slots * (uint64_t)shape->group * (sizeof(uint64_t) + sizeof(uint16_t));
}

static const struct butler_param params[] = {
    {"window", 400, 1, 65536, "latest queries that count"},
    {NULL, 0, 0, 0, NULL},
};

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)values, (void)q;
    for (int head = 0; head < n_q; head++)
        butler_window_sums(view, head, first, n, out + (size_t)head * stride);
}

const struct butler_metric butler_metric_windowed = {
    .name = "windowed",
    .summary = "attention received from the last w queries",
    .scale = BUTLER_SCORE_WEIGHT,
    .params = params,
    .record = butler_window_record,
    .attention_window = butler_window_length,
    .observe = butler_window_observe,
    .score = score,
    .score_bytes = butler_window_score_bytes,
    .observe_bytes = butler_window_observe_bytes,
};
