/* The order and the middle of measured numbers, for all benchmarks. */
#ifndef BUTLER_MEDIAN_H
#define BUTLER_MEDIAN_H

#include <stdlib.h>

/* For qsort: ascending doubles. */
static inline int median_order(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Of values[n], which it sorts. */
static inline double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, median_order);
    return n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

#endif
