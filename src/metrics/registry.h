/* The built-in metrics and policies. Who makes an engine gives them to it. */
#ifndef BUTLER_REGISTRY_H
#define BUTLER_REGISTRY_H

#include "engine/metric.h"
#include "engine/policy_table.h"

/* Every built-in metric, by the name of its variable without butler_metric_. Listed only here: declarations and table follow. */
/* clang-format off */
#define BUTLER_METRICS(each) \
    each(recency) \
    each(attention) \
    each(windowed) \
    each(pooled) \
    each(last_query) \
    each(verified) \
    each(page_bounds) \
    each(page_stats) \
    each(one_bit) \
    each(exact) \
    each(key_norm) \
    each(key_diff) \
    each(query_centre) \
    each(random) \
    each(predicted) \
    each(predicted2) \
    each(first_layer) \
    each(previous_layer)
/* clang-format on */

#define BUTLER_DECLARE_METRIC(name) extern const struct butler_metric butler_metric_##name;
BUTLER_METRICS(BUTLER_DECLARE_METRIC)
#undef BUTLER_DECLARE_METRIC

extern const struct butler_registry butler_builtin;

/* policy_table.c */
extern const struct butler_policy_row butler_policy_rows[]; /* ends with name NULL */

#endif
