/* The report's curves as SVG: quality against bytes read, values by position. The first policies have a colour and a marker each,
 * so that colours need not be distinguished; the others are grey until the pointer is on them. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

enum { WIDTH = 560, HEIGHT = 350, LEFT = 66, RIGHT = 14, TOP = 16, BOTTOM = 52, MAX_TICKS = 12 };

struct axis {
    double lo, hi, from, to; /* range of values, and its coordinates in the plot */
    bool log;
    int n;
    double ticks[MAX_TICKS];
};

static double place(const struct axis *axis, double value)
{
    double t =
        axis->log ? log(fmax(value, axis->lo) / axis->lo) / log(axis->hi / axis->lo) : (value - axis->lo) / (axis->hi - axis->lo);
    return axis->from + fmin(fmax(t, 0), 1) * (axis->to - axis->from);
}

/* 1, 2 and 5 times powers of ten inside the range. */
static void log_ticks(struct axis *axis)
{
    static const double steps[] = {1, 2, 5};
    axis->n = 0;
    for (int power = (int)floor(log10(axis->lo)); power <= (int)ceil(log10(axis->hi)); power++)
        for (int i = 0; i < 3; i++) {
            double value = steps[i] * pow(10, power);
            if (value >= axis->lo * (1 - 1e-9) && value <= axis->hi * (1 + 1e-9) && axis->n < MAX_TICKS)
                axis->ticks[axis->n++] = value;
        }
}

static void linear_ticks(struct axis *axis)
{
    double rough = (axis->hi - axis->lo) / 5, unit = pow(10, floor(log10(rough)));
    double step = rough <= unit ? unit : rough <= 2 * unit ? 2 * unit : rough <= 5 * unit ? 5 * unit : 10 * unit;
    axis->n = 0;
    for (double k = ceil(axis->lo / step - 1e-9); k * step <= axis->hi + 1e-9 * step && axis->n < MAX_TICKS; k++)
        axis->ticks[axis->n++] = k * step;
}

/* A range around [lo, hi] with a margin. */
static void axis_set(struct axis *axis, double lo, double hi, bool want_log)
{
    axis->log = want_log && lo > 0;
    if (!(hi > lo)) {
        double air = fabs(lo) > 0 ? fabs(lo) * 0.05 : 0.05;
        lo -= air;
        hi += air;
    }
    if (axis->log) {
        double air = pow(hi / lo, 0.05);
        axis->lo = lo / air;
        axis->hi = hi * air;
        log_ticks(axis);
        if (axis->n >= 3)
            return;
        axis->log = false;
    }
    axis->lo = lo - 0.06 * (hi - lo);
    axis->hi = hi + 0.06 * (hi - lo);
    linear_ticks(axis);
}

static void span(double value, double *lo, double *hi)
{
    if (isfinite(value)) {
        *lo = fmin(*lo, value);
        *hi = fmax(*hi, value);
    }
}

static bool axes_set(const struct report_plot *plot, struct axis *x, struct axis *y)
{
    double lo = INFINITY, hi = -INFINITY, values_lo, values_hi;
    for (int i = 0; i < plot->n; i++)
        for (int k = 0; k < plot->curves[i].n; k++)
            span(plot->curves[i].x[k], &lo, &hi);
    if (!(lo <= hi))
        return false;
    if (plot->share_x)
        span(1, &lo, &hi);
    /* 0 bytes: not on a logarithmic axis, so it is drawn at its start. */
    *x = (struct axis){.from = LEFT, .to = WIDTH - RIGHT};
    axis_set(x, plot->log_x ? fmax(lo, hi / 1000) : lo, hi, plot->log_x);
    lo = INFINITY, hi = -INFINITY;
    span(plot->dense, &lo, &hi);
    for (int i = 0; i < plot->n; i++)
        for (int k = 0; k < plot->curves[i].n; k++)
            span(plot->curves[i].y[k], &lo, &hi);
    values_lo = lo, values_hi = hi;
    for (int i = 0; i < plot->n; i++)
        for (int k = 0; k < plot->curves[i].n; k++) {
            span(plot->curves[i].lo[k], &lo, &hi);
            span(plot->curves[i].hi[k], &lo, &hi);
        }
    if (!(lo <= hi))
        return false;
    /* An infinite interval must not determine the range. */
    lo = fmax(lo, values_lo - (values_hi - values_lo)), hi = fmin(hi, values_hi + (values_hi - values_lo));
    if (plot->lower && lo > 0) /* space for the label below the dense line */
        lo *= pow(lo / hi, 0.1);
    *y = (struct axis){.from = HEIGHT - BOTTOM, .to = TOP};
    axis_set(y, lo, hi, plot->log_y && lo > 0 && hi > 3 * lo);
    return true;
}

static const char *tick(char *out, size_t n_out, double value, bool share)
{
    snprintf(out, n_out, share ? "%.3g\xc2\xa0%%" : "%.6g", (share ? 100 : 1) * (fabs(value) < 1e-12 ? 0 : value));
    return out;
}

static void frame_write(FILE *out, const struct report_plot *plot, const struct axis *x, const struct axis *y)
{
    char number[64];
    for (int i = 0; i < y->n; i++) {
        double at = place(y, y->ticks[i]);
        fprintf(out,
                "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text class=\"tick\" x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
                LEFT, at, WIDTH - RIGHT, LEFT - 7, at + 4, tick(number, sizeof number, y->ticks[i], plot->share_y));
    }
    for (int i = 0; i < x->n; i++) {
        double at = place(x, x->ticks[i]);
        fprintf(
            out,
            "<path class=\"grid\" d=\"M%.1f %dV%d\"/><text class=\"tick\" x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
            at, TOP, HEIGHT - BOTTOM, at, HEIGHT - BOTTOM + 18, tick(number, sizeof number, x->ticks[i], plot->share_x));
    }
    fprintf(out, "<text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8);
    report_text(out, plot->x_label);
    fprintf(out, "</text><text class=\"label y\" x=\"14\" y=\"%d\" text-anchor=\"middle\" transform=\"rotate(-90 14 %d)\">",
            (TOP + HEIGHT - BOTTOM) / 2, (TOP + HEIGHT - BOTTOM) / 2);
    report_text(out, plot->y_label);
    fprintf(out, "</text>\n");
}

static void dense_write(FILE *out, const struct report_plot *plot, const struct axis *y, bool label)
{
    char number[64];
    if (isnan(plot->dense))
        return;
    double at = place(y, plot->dense), edge = place(y, plot->dense * (plot->lower ? 1 + REPORT_NEAR : 1 - REPORT_NEAR));
    fprintf(out, "<rect class=\"near\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/><path class=\"dense\" d=\"M%d %.1fH%d\"/>",
            LEFT, fmin(at, edge), WIDTH - LEFT - RIGHT, fabs(at - edge), LEFT, at, WIDTH - RIGHT);
    if (label) /* on the side of the line without curves */
        fprintf(out, "<text class=\"dense-label\" x=\"%d\" y=\"%.1f\">dense %s</text>\n", LEFT + 4,
                plot->lower ? fmin(at + 15, HEIGHT - BOTTOM - 3) : fmax(at - 5, TOP + 10),
                report_number(number, sizeof number, plot->dense, plot->share_y));
}

/* Marker shapes around a point; each belongs to one colour. */
static const char *const marks[REPORT_N_COLOURS] = {
    "m-5 0a5 5 0 1 0 10 0a5 5 0 1 0-10 0z",
    "m-4.5-4.5h9v9h-9z",
    "m0-6.2l6.2 6.2l-6.2 6.2l-6.2-6.2z",
    "m0-6l5.8 10h-11.6z",
    "m0 6l5.8-10h-11.6z",
    "m-2-6h4v4h4v4h-4v4h-4v-4h-4v-4h4z",
};
static const char small_mark[] = "m-2.6 0a2.6 2.6 0 1 0 5.2 0a2.6 2.6 0 1 0-5.2 0z";

static const char *mark_class(int mark)
{
    static const char *const names[REPORT_N_COLOURS] = {"s0", "s1", "s2", "s3", "s4", "s5"};
    return mark >= 0                   ? names[mark]
           : mark == REPORT_MARK_UPPER ? "su"
           : mark == REPORT_MARK_LOWER ? "sl"
           : mark == REPORT_MARK_DENSE ? "sd"
                                       : "so";
}

void report_mark_write(FILE *out, int mark)
{
    fprintf(
        out,
        "<svg class=\"key %s\" viewBox=\"0 0 26 14\" width=\"26\" height=\"14\" aria-hidden=\"true\"><path class=\"line\" d=\"M1 "
        "7H25\"/><path class=\"mark\" d=\"M13 7%s\"/></svg>",
        mark_class(mark), mark >= 0 ? marks[mark] : small_mark);
}

int report_mark(const struct report_policy *policy)
{
    return policy->kind == REPORT_UPPER ? REPORT_MARK_UPPER : policy->kind == REPORT_LOWER ? REPORT_MARK_LOWER : policy->colour;
}

static void points_write(FILE *out, const struct report_curve *curve, const struct axis *x, const struct axis *y)
{
    fprintf(out, "<polyline class=\"line\" points=\"");
    for (int k = 0; k < curve->n; k++)
        if (isfinite(curve->x[k]) && isfinite(curve->y[k]))
            fprintf(out, "%.1f,%.1f ", place(x, curve->x[k]), place(y, curve->y[k]));
    fprintf(out, "\"/>");
}

static void curve_write(FILE *out, const struct report_plot *plot, const struct report_curve *curve, const struct axis *x,
                        const struct axis *y)
{
    char a[64], b[64], c[64], d[64];
    fprintf(out, "<g class=\"curve %s\" data-p=\"%d\">", mark_class(curve->mark), curve->policy);
    points_write(out, curve, x, y);
    fprintf(out, "<path class=\"whisker\" d=\"M0 0");
    for (int k = 0; k < curve->n; k++)
        if (isfinite(curve->x[k]) && isfinite(curve->lo[k]) && isfinite(curve->hi[k]))
            fprintf(out, "M%.1f %.1fV%.1f", place(x, curve->x[k]), place(y, curve->lo[k]), place(y, curve->hi[k]));
    fprintf(out, "\"/>");
    for (int k = 0; k < curve->n; k++) {
        if (!isfinite(curve->x[k]) || !isfinite(curve->y[k]))
            continue;
        fprintf(out, "<path class=\"mark\" d=\"M%.1f %.1f%s\"><title>", place(x, curve->x[k]), place(y, curve->y[k]),
                curve->mark >= 0 ? marks[curve->mark] : small_mark);
        report_text(out, curve->name);
        fprintf(out, ": %s", report_number(a, sizeof a, curve->y[k], plot->share_y));
        if (isfinite(curve->lo[k]) && isfinite(curve->hi[k]))
            fprintf(out, " [%s, %s]", report_number(b, sizeof b, curve->lo[k], plot->share_y),
                    report_number(c, sizeof c, curve->hi[k], plot->share_y));
        fprintf(out, " at %s</title></path>",
                plot->share_x ? report_number(d, sizeof d, curve->x[k], true) : report_count(d, sizeof d, curve->x[k]));
    }
    fprintf(out, "</g>\n");
}

/* Drawing order: grey curves first, then references, then coloured curves, the best last. */
static int layer_of(int mark)
{
    return mark == REPORT_MARK_OTHER ? 0 : mark < 0 ? 1 : 2 + REPORT_N_COLOURS - mark;
}

void report_plot_write(FILE *out, const struct report_plot *plot)
{
    struct axis x, y;
    if (!axes_set(plot, &x, &y))
        return;
    fprintf(out, "<svg class=\"plot\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    report_text(out, plot->title);
    fprintf(out, "\">\n<defs><g id=\"%s\">", plot->id);
    for (int i = 0; i < plot->n; i++)
        points_write(out, &plot->curves[i], &x, &y);
    fprintf(out, "</g></defs>\n");
    frame_write(out, plot, &x, &y);
    dense_write(out, plot, &y, true);
    for (int layer = 0; layer <= 2 + REPORT_N_COLOURS; layer++)
        for (int i = 0; i < plot->n; i++)
            if (layer_of(plot->curves[i].mark) == layer)
                curve_write(out, plot, &plot->curves[i], &x, &y);
    fprintf(out, "</svg>\n");
}

void report_plot_small(FILE *out, const struct report_plot *plot)
{
    struct axis x, y;
    if (plot->n < 2 || !axes_set(plot, &x, &y))
        return;
    fprintf(out, "<details><summary>Each policy by itself</summary><div class=\"smalls\">\n");
    for (int i = 0; i < plot->n; i++) {
        const struct report_curve *curve = &plot->curves[i];
        fprintf(out,
                "<figure class=\"small\"><svg viewBox=\"%d %d %d %d\" aria-hidden=\"true\"><rect class=\"frame\" x=\"%d\" y=\"%d\" "
                "width=\"%d\" "
                "height=\"%d\"/>",
                LEFT - 6, TOP - 6, WIDTH - LEFT - RIGHT + 12, HEIGHT - TOP - BOTTOM + 12, LEFT, TOP, WIDTH - LEFT - RIGHT,
                HEIGHT - TOP - BOTTOM);
        dense_write(out, plot, &y, false);
        fprintf(out, "<use class=\"all\" href=\"#%s\"/>", plot->id);
        curve_write(out, plot, curve, &x, &y);
        fprintf(out, "</svg><figcaption>");
        report_text(out, curve->name);
        fprintf(out, "</figcaption></figure>\n");
    }
    fprintf(out, "</div></details>\n");
}
