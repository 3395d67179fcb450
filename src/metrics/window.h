/* The attention of the last w queries, stored exactly; shared by windowed and pooled.
 *
 * A record (one slot) is {uint64 sum[group], half ring[group][w]}. The weight given by the query at position t is
 * ring[head][t mod w], as a half. Each half in [0, 1] is a multiple of 2^-24, so the running sum is an integer in that unit:
 * a weight that leaves the window is subtracted exactly, and no error accumulates. */
#ifndef BUTLER_WINDOW_H
#define BUTLER_WINDOW_H

#include "engine/metric.h"

/* Functions of struct butler_metric for metrics whose first parameter is the window. */
void butler_window_record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes);
int butler_window_length(const double *values);
void butler_window_observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                           int position, const float *weights, size_t stride, int n);
/* score() reads the sums; observe() reads the sums and one entry of each ring. */
uint64_t butler_window_score_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots);
uint64_t butler_window_observe_bytes(const struct butler_metric_shape *shape, const double *values, int n_slots);

/* out[i] = the sum over the window for slot first + i, i < n, of one query head. */
void butler_window_sums(const struct butler_head_view *view, int head, int first, int n, float *out);

#endif
