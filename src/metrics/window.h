/* The attention of the last w queries, kept exactly: what windowed and pooled share.
 *
 * A record (one slot) is {uint64 sum[group], half ring[group][w]}: the weight that the query at position t paid stands at
 * ring[head][t mod w] as a half. Every half in [0, 1] is a whole multiple of 2^-24, so the running sum is kept in that
 * unit as an integer: what enters leaves again exactly, and nothing drifts however long the text. */
#ifndef BUTLER_WINDOW_H
#define BUTLER_WINDOW_H

#include "engine/metric.h"

/* Functions of a metric (metric.h) whose first parameter is the window. */
void butler_window_record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes);
int butler_window_length(const double *values);
void butler_window_observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                           int position, const float *weights, size_t stride, int n);
/* A score reads the sums; an observation the sums and one entry of each ring. */
uint64_t butler_window_score_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots);
uint64_t butler_window_observe_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots);

/* out[i] = the sum over the window of slot first + i, i < n, for one query head. */
void butler_window_sums(const struct butler_head_view *view, int head, int first, int n, float *out);

#endif
