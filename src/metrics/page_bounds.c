/* Page bounds (Quest, arXiv 2406.10774; TinyServe, arXiv 2509.12211, eq. 2): per page and channel the maximum M and minimum m
 * of the keys. The score is an upper bound of q.k over all keys in that box: sum_d max(q_d M_d, q_d m_d). `bound=max` takes
 * the maximum over d instead of the sum (FIER, eq. 3). A record is {half M[head_dim], half m[head_dim]}, as the kernels
 * expect. `bounds=deviation` keeps mean + deviation and mean - deviation of the keys in their place (page_stats.c, std=1): what the
 * kernel then gives is no bound but what keys of the page are expected to reach, and one outlier does not widen the page for every
 * query.
 *
 * A page's bounds are always computed anew from its keys: a box that was only ever widened would keep the marks of tokens
 * that are gone. */
#include "kernels/kernels.h"
#include "engine/metric.h"
#include "metrics/page_deviation.h"

static const struct butler_param params[] = {
    {"page", 16, 1, 1024, "tokens per page"},
    {"bound", 0, 0, 1, "sum or max over channels"},
    {"bounds", 0, 0, 1, "box: lowest and highest key of a channel; deviation: their mean and standard deviation"},
    {NULL, 0, 0, 0, NULL},
};
/* In their order. */
static const struct butler_param_form forms[] = {{1, {NULL}}, {1, {"sum", "max"}}, {1, {"box", "deviation"}}};

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    *n_slots = (int)values[0];
    *n_bytes = (size_t)shape->head_dim * 2 * sizeof(uint16_t);
}

/* Avoids infinity, which gives NaN if the query's channel is 0. */
static uint16_t finite_half(float x)
{
    return butler_float_to_half(BUTLER_MAX(-65504.0f, BUTLER_MIN(x, 65504.0f)));
}

static void append(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view, int first,
                   int n)
{
    int dim = shape->head_dim, page = (int)values[0], n_slots = butler_view_n_slots(view);
    float max[BUTLER_MAX_HEAD_DIM], min[BUTLER_MAX_HEAD_DIM], key[BUTLER_MAX_HEAD_DIM];
    for (int r = first / page; r * page < first + n; r++) {
        int end = BUTLER_MIN((r + 1) * page, n_slots);
        if (values[2] != 0) {
            butler_page_deviation(view, dim, r * page, end - r * page, 1, butler_view_record(view, r));
            continue;
        }
        butler_view_key(view, r * page, max);
        for (int d = 0; d < dim; d++)
            min[d] = max[d];
        for (int slot = r * page + 1; slot < end; slot++) {
            butler_view_key(view, slot, key);
            for (int d = 0; d < dim; d++) {
                max[d] = BUTLER_MAX(max[d], key[d]);
                min[d] = BUTLER_MIN(min[d], key[d]);
            }
        }
        uint16_t *bounds = butler_view_record(view, r);
        for (int d = 0; d < dim; d++) {
            bounds[d] = finite_half(max[d]);
            bounds[dim + d] = finite_half(min[d]);
        }
    }
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    const struct butler_kernels *kernels = butler_view_kernels(view);
    size_t record_bytes = (size_t)shape->head_dim * 2 * sizeof(uint16_t);
    (values[1] != 0 ? kernels->page_bounds_max : kernels->page_bounds)(request->out, request->stride, request->q, request->n_q,
                                                                       butler_view_record(view, request->first), record_bytes,
                                                                       request->n, shape->head_dim);
}

const struct butler_metric butler_metric_page_bounds = {
    .name = "page_bounds",
    .summary = "upper bound of q.k over the keys of a page",
    .scale = BUTLER_SCORE_LOGIT,
    .page_scores = true,
    .reads_keys = true,
    .params = params,
    .forms = forms,
    .fuses = true,
    .record = record,
    .append = append,
    .score = score,
};
