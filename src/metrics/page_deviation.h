/* Mean and deviation of the keys of a page, as records of page_stats and of page_bounds with bounds=deviation. */
#ifndef BUTLER_PAGE_DEVIATION_H
#define BUTLER_PAGE_DEVIATION_H

#include <math.h>

#include "engine/metric.h"
#include "kernels/kernels.h"

/* pair = {half (mean + factor deviation)[dim], half (mean - factor deviation)[dim]} of the keys of slots [first, first + n);
 * divisor of the variance: n. Finite: infinity gives NaN where the query's channel is 0. */
static inline void butler_page_deviation(const struct butler_head_view *view, int dim, int first, int n, double factor,
                                         void *record)
{
    float key[BUTLER_MAX_HEAD_DIM];
    double sum[BUTLER_MAX_HEAD_DIM] = {0}, squares[BUTLER_MAX_HEAD_DIM] = {0};
    uint16_t *pair = record;
    for (int slot = first; slot < first + n; slot++) {
        butler_view_key(view, slot, key);
        for (int d = 0; d < dim; d++) {
            sum[d] += key[d];
            squares[d] += (double)key[d] * key[d];
        }
    }
    for (int d = 0; d < dim; d++) {
        const double mean = sum[d] / n, spread = factor * sqrt(BUTLER_MAX(0.0, squares[d] / n - mean * mean));
        pair[d] = butler_float_to_half((float)BUTLER_MAX(-65504.0, BUTLER_MIN(mean + spread, 65504.0)));
        pair[dim + d] = butler_float_to_half((float)BUTLER_MAX(-65504.0, BUTLER_MIN(mean - spread, 65504.0)));
    }
}

#endif
