/* How much a policy differs from another one on the same items. Items are hard for both or easy for both, so the interval of the
 * difference is much narrower than the intervals of the two values. It is a jackknife: each group of items is left out in turn, for
 * both policies, and the task computes its metrics from the rest. So it holds for every metric, ratios and perplexities too. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

enum { MAX_GROUPS = 200 };

/* The task's metrics without the items of one group (-1: with all). items, rest: scratch of the size of all. */
static int rows_without(const struct eval_run *run, const double *values, int group, int n_groups, struct eval_item *items,
                        double *rest, double out[EVAL_MAX_ROWS], struct butler_error *err)
{
    struct eval_row rows[EVAL_MAX_ROWS] = {{0}};
    struct eval_run part = *run;
    const size_t n_values = (size_t)run->n_values;
    part.items = (struct eval_items){.items = items};
    for (int i = 0; i < run->items.n; i++)
        if (i % n_groups != group) {
            memcpy(rest + (size_t)part.items.n * n_values, values + (size_t)i * n_values, n_values * sizeof *rest);
            items[part.items.n++] = run->items.items[i];
        }
    const int n = run->task->rows(&part, rest, rows, err);
    for (int k = 0; k < n; k++) {
        out[k] = rows[k].value;
        json_decref(rows[k].detail);
    }
    return n;
}

int eval_paired(const struct eval_run *run, const double *values, const double *base, struct eval_difference *out,
                struct butler_error *err)
{
    const int n_items = run->items.n, n_groups = BUTLER_MIN(n_items, MAX_GROUPS);
    double ours[EVAL_MAX_ROWS], theirs[EVAL_MAX_ROWS], whole[EVAL_MAX_ROWS];
    struct eval_item *items = butler_alloc((size_t)n_items * sizeof *items, err);
    double *rest = butler_alloc((size_t)n_items * (size_t)run->n_values * sizeof *rest, err);
    double *seen = butler_alloc((size_t)n_groups * 2 * EVAL_MAX_ROWS * sizeof *seen, err); /* pseudo-values, and their weights 1 */
    int n = items && rest && seen ? 0 : BUTLER_ERROR_MEMORY;
    for (int g = -1; g < (n_items > 1 ? n_groups : 0) && n >= 0; g++) {
        n = rows_without(run, values, g, n_groups, items, rest, ours, err);
        if (n >= 0)
            n = rows_without(run, base, g, n_groups, items, rest, theirs, err);
        for (int k = 0; k < n && g < 0; k++)
            whole[k] = ours[k] - theirs[k];
        for (int k = 0; k < n && g >= 0; k++) {
            double *at = seen + 2 * ((size_t)k * (size_t)n_groups + (size_t)g);
            at[0] = n_groups * whole[k] - (n_groups - 1) * (ours[k] - theirs[k]);
            at[1] = 1;
        }
    }
    for (int k = 0; k < n; k++) {
        double *at = seen + 2 * (size_t)k * (size_t)n_groups, lo = NAN, hi = NAN;
        if (n_items > 1)
            eval_ratio_interval(at, at + 1, 2, n_groups, &lo, &hi);
        out[k] = (struct eval_difference){whole[k], whole[k] - (hi - lo) / 2, whole[k] + (hi - lo) / 2};
    }
    free(items);
    free(rest);
    free(seen);
    return BUTLER_MIN(n, 0);
}
