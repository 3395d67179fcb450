/* Confidence intervals of counts and means. */
#include <math.h>

#include "eval.h"

void eval_wilson(double k, double n, double *lo, double *hi)
{
    const double z = 1.959963984540054;
    if (n <= 0) {
        *lo = 0;
        *hi = 1;
        return;
    }
    const double p = k / n, d = 1 + z * z / n, middle = p + z * z / (2 * n);
    const double half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n));
    *lo = fmax(0, (middle - half) / d);
    *hi = fmin(1, (middle + half) / d);
}

/* 97.5 % quantile of Student's t. */
static double student(int df)
{
    static const double small[] = {12.706205, 4.302653, 3.182446, 2.776445, 2.570582,
                                   2.446912,  2.364624, 2.306004, 2.262157, 2.228139};
    if (df <= BUTLER_COUNT(small))
        return small[df - 1];
    /* Cornish-Fisher expansion around the normal quantile: error below 1e-4 from here on */
    const double z = 1.959963984540054, z3 = z * z * z, z5 = z3 * z * z, z7 = z5 * z * z, v = df;
    return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v) +
           (3 * z7 + 19 * z5 + 17 * z3 - 15 * z) / (384 * v * v * v);
}

void eval_ratio_interval(const double *x, const double *w, size_t stride, int n, double *lo, double *hi)
{
    double sum_x = 0, sum_w = 0, squares = 0;
    *lo = *hi = NAN;
    for (int i = 0; i < n; i++) {
        sum_x += x[(size_t)i * stride];
        sum_w += w[(size_t)i * stride];
    }
    if (n < 2 || sum_w <= 0)
        return;
    const double ratio = sum_x / sum_w;
    for (int i = 0; i < n; i++) {
        const double deviation = x[(size_t)i * stride] - ratio * w[(size_t)i * stride];
        squares += deviation * deviation;
    }
    const double half = student(n - 1) * sqrt(squares / (n - 1) * n) / sum_w;
    *lo = ratio - half;
    *hi = ratio + half;
}

void eval_share_interval(const double *x, const double *w, size_t stride, int n, double *lo, double *hi)
{
    bool all = true, none = true;
    for (int i = 0; i < n; i++) {
        all = all && x[(size_t)i * stride] >= w[(size_t)i * stride];
        none = none && x[(size_t)i * stride] <= 0;
    }
    if (n > 0 && (all || none)) {
        eval_wilson(all ? n : 0, n, lo, hi);
        return;
    }
    eval_ratio_interval(x, w, stride, n, lo, hi);
    *lo = *lo < 0 ? 0 : *lo; /* NaN stays */
    *hi = *hi > 1 ? 1 : *hi;
}

struct eval_row eval_mean_row(const struct eval_run *run, const char *metric, const double *values, int which)
{
    const int n = run->items.n, stride = run->n_values;
    double sum = 0, lo, hi;
    bool counts = true; /* every score is 0 or 1: a mean of 1 is not certain */
    for (int i = 0; i < n; i++) {
        const double value = values[i * stride + which];
        sum += value;
        counts = counts && (value <= 0 || value >= 1);
    }
    if (counts)
        eval_wilson(sum, n, &lo, &hi);
    else
        eval_share_interval(values + which, values + stride - 1, (size_t)stride, n, &lo, &hi);
    return (struct eval_row){metric, sum / n, lo, hi, n, NULL};
}
