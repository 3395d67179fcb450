/* Page mean and deviation (arXiv 2605.27740): score = sum_d (q_d mean_d + std_coef |q_d| std_d), with the mean and standard
 * deviation (divisor: number of tokens) of the page's keys. Quest's bound is the same formula with the centre of the box as
 * mean and half its width as deviation; there one outlier widens the page for every query.
 *
 * So the record is {half (mean + std_coef std)[head_dim], half (mean - std_coef std)[head_dim]}, and the kernel for page
 * bounds computes the score. */
#include <math.h>

#include "kernels/kernels.h"
#include "engine/metric.h"

static const struct butler_param params[] = {
    {"page", 16, 1, 1024, "tokens per page"},
    {"std", 1, 0, 16, "weight of the standard deviation"},
    {NULL, 0, 0, 0, NULL},
};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    *n_slots = (int)values[0];
    *n_bytes = (size_t)shape->head_dim * 2 * sizeof(uint16_t);
}

static uint16_t finite_half(double x)
{
    return butler_float_to_half((float)BUTLER_MAX(-65504.0, BUTLER_MIN(x, 65504.0)));
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    int dim = shape->head_dim, page = (int)values[0], n_slots = butler_view_n_slots(view);
    float key[BUTLER_METRIC_MAX_HEAD_DIM];
    double sum[BUTLER_METRIC_MAX_HEAD_DIM], squares[BUTLER_METRIC_MAX_HEAD_DIM];
    for (int r = first / page; r * page < first + n; r++) {
        int end = BUTLER_MIN((r + 1) * page, n_slots), count = end - r * page;
        for (int d = 0; d < dim; d++)
            sum[d] = squares[d] = 0;
        for (int slot = r * page; slot < end; slot++) {
            butler_view_key(view, slot, key);
            for (int d = 0; d < dim; d++) {
                sum[d] += key[d];
                squares[d] += (double)key[d] * key[d];
            }
        }
        uint16_t *pair = butler_view_record(view, r);
        for (int d = 0; d < dim; d++) {
            double mean = sum[d] / count, spread = values[1] * sqrt(BUTLER_MAX(0.0, squares[d] / count - mean * mean));
            pair[d] = finite_half(mean + spread);
            pair[dim + d] = finite_half(mean - spread);
        }
    }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)values;
    size_t record_bytes = (size_t)shape->head_dim * 2 * sizeof(uint16_t);
    butler_view_kernels(view)->page_bounds(out, stride, q, n_q, butler_view_record(view, first), record_bytes, n, shape->head_dim);
}

const struct butler_metric butler_metric_page_stats = {
    .name = "page_stats",
    .summary = "mean and standard deviation of q.k over the keys of a page, channels taken as independent",
    .scale = BUTLER_SCORE_LOGIT,
    .page_scores = true,
    .reads_keys = true,
    .params = params,
    .record = record,
    .append = append,
    .score = score,
};
