/* Page mean and deviation (arXiv 2605.27740): score = sum_d (q_d mean_d + std_coef |q_d| std_d), with the mean and standard
 * deviation (divisor: number of tokens) of the page's keys. Quest's bound is the same formula with the centre of the box as
 * mean and half its width as deviation; there one outlier widens the page for every query.
 *
 * So the record is {half (mean + std_coef std)[head_dim], half (mean - std_coef std)[head_dim]}, and the kernel for page
 * bounds computes the score. */
#include "kernels/kernels.h"
#include "engine/metric.h"
#include "metrics/page_deviation.h"

static const struct butler_param params[] = {
    {"page", 16, 1, 1024, "tokens per page"},
    {"std", 1, 0, 16, "weight of the standard deviation"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{1, {NULL}}, {0, {NULL}}};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    *n_slots = (int)values[0];
    *n_bytes = (size_t)shape->head_dim * 2 * sizeof(uint16_t);
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    const int page = (int)values[0], n_slots = butler_view_n_slots(view);
    for (int r = first / page; r * page < first + n; r++)
        butler_page_deviation(view, shape->head_dim, r * page, BUTLER_MIN(page, n_slots - r * page), values[1],
                              butler_view_record(view, r));
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)values;
    size_t record_bytes = (size_t)shape->head_dim * 2 * sizeof(uint16_t);
    butler_view_kernels(view)->page_bounds(request->out, request->stride, request->q, request->n_q,
                                           butler_view_record(view, request->first), record_bytes, request->n, shape->head_dim);
}

const struct butler_metric butler_metric_page_stats = {
    .name = "page_stats",
    .summary = "mean and standard deviation of q.k over the keys of a page, channels taken as independent",
    .scale = BUTLER_SCORE_LOGIT,
    .page_scores = true,
    .reads_keys = true,
    .params = params,
    .forms = forms,
    .record = record,
    .append = append,
    .score = score,
};
