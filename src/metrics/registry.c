/* The table of built-in metrics, made from the list in engine/metric.h. */
#include "engine/metric.h"

#define ADDRESS(name) &butler_metric_##name,
const struct butler_metric *const butler_metrics_builtin[] = {BUTLER_METRICS(ADDRESS) NULL};
