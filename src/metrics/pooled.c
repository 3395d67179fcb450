/* Pooled attention (SnapKV, arXiv 2404.14469): the attention of the last w queries, then the mean or maximum over `kernel`
 * adjacent positions, so that the neighbours of an important token are kept too.
 *
 * Neighbours are text positions, not slots. A position that was evicted, or lies outside the text, counts as 0 in the mean
 * (the divisor is always `kernel`), and is ignored in the maximum. SnapKV pools only the tokens before the observation window
 * (the last w positions); so a neighbour counts only on the token's own side of the window's edge.
 *
 * After evictions slots may be in any order. Scoring goes through the text in blocks of positions and scatters the slots of a
 * block into a table on the stack. */
#include <limits.h>

#include "metrics/window.h"

#define BLOCK 2048
#define MAX_KERNEL 63

static const struct butler_param params[] = {
    {"window", 32, 1, 4096, "latest queries that count"},
    {"kernel", 7, 1, MAX_KERNEL, "neighbouring positions pooled, odd"},
    {"pool", 1, 0, 1, "avg or max"},
    {NULL, 0, 0, 0, NULL},
};

/* table[p - from] = the sum at position p, p in [from, from + n); -1 if no slot holds p. */
static void scatter(const struct butler_head_view *view, int head, int from, int n, float *table)
{
    for (int i = 0; i < n; i++)
        table[i] = -1;
    int first = 0, last = butler_view_n_slots(view);
    if (!view->positions) {
        first = BUTLER_MAX(from, 0);
        last = BUTLER_MIN(from + n, last);
    }
    float sums[64];
    for (int slot = first; slot < last; slot += BUTLER_COUNT(sums)) {
        int m = BUTLER_MIN(last - slot, BUTLER_COUNT(sums));
        butler_window_sums(view, head, slot, m, sums);
        for (int j = 0; j < m; j++) {
            int p = butler_view_position(view, slot + j) - from;
            if (p >= 0 && p < n)
                table[p] = sums[j];
        }
    }
}

static int newest_position(const struct butler_head_view *view)
{
    int newest = butler_view_n_slots(view) - 1;
    for (int slot = 0; view->positions && slot < view->n_slots; slot++)
        newest = BUTLER_MAX(newest, view->positions[slot]);
    return newest;
}

static float pool(const float *table, int low, int high, int kernel, bool maximum)
{
    float sum = 0, max = 0;
    for (int p = low; p <= high; p++)
        if (table[p] >= 0) {
            sum += table[p];
            max = BUTLER_MAX(max, table[p]);
        }
    return maximum ? max : sum / (float)kernel;
}

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const float *q, int n_q, int first, int n, float *out, size_t stride)
{
    (void)shape, (void)q;
    int kernel = (int)values[1], half = kernel / 2;
    int edge = newest_position(view) - (int)values[0] + 1; /* first position of the observation window */
    float table[BLOCK + MAX_KERNEL - 1];
    int lowest = INT_MAX, highest = -1;
    for (int i = 0; i < n; i++) {
        int p = butler_view_position(view, first + i);
        lowest = BUTLER_MIN(lowest, p);
        highest = BUTLER_MAX(highest, p);
    }
    for (int head = 0; head < n_q; head++)
        for (int from = lowest; from <= highest; from += BLOCK) {
            scatter(view, head, from - half, BLOCK + 2 * half, table);
            for (int i = 0; i < n; i++) {
                int p = butler_view_position(view, first + i) - from;
                if (p < 0 || p >= BLOCK)
                    continue;
                int low = p, high = p + 2 * half; /* its neighbours in the table; itself at p + half */
                if (from + p < edge)
                    high = BUTLER_MIN(high, edge - 1 - from + half);
                else
                    low = BUTLER_MAX(low, edge - from + half);
                out[(size_t)head * stride + i] = pool(table, low, high, kernel, values[2] != 0);
            }
        }
}

const struct butler_metric butler_metric_pooled = {
    .name = "pooled",
    .summary = "attention of the last w queries, pooled over adjacent positions",
    .scale = BUTLER_SCORE_WEIGHT,
    .params = params,
    .record = butler_window_record,
    .attention_window = butler_window_length,
    .observe = butler_window_observe,
    .score = score,
    .score_bytes = butler_window_score_bytes,
    .observe_bytes = butler_window_observe_bytes,
};
