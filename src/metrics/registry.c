/* All built-in metrics. A new metric is a file in this folder and a line below. */
#include "engine/metric.h"

const struct butler_metric *const butler_metrics_builtin[] = {
    &butler_metric_recency,    &butler_metric_attention,   &butler_metric_windowed,   &butler_metric_pooled,
    &butler_metric_last_query, &butler_metric_page_bounds, &butler_metric_page_stats, &butler_metric_one_bit,
    &butler_metric_exact,      &butler_metric_key_norm,    &butler_metric_random,     &butler_metric_predicted,
    &butler_metric_predicted2, &butler_metric_first_layer, &butler_metric_previous_layer, NULL,
};
