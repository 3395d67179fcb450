/* Draws what `butler eval sparsity` and `norms` found of a model's own attention: how much of it the most attended tokens hold
 * (H2O, figure 2), and of a text, token by token, attention above the norms of values (VATP, figure 1). */
#include "report.h"

#include <math.h>
#include <stdlib.h>

#include "base/util.h"

/* ------------------------------------------------------------------------------------- held by the top tokens */

/* Layers with a colour: the first, those at a quarter, half and three quarters, the last. -1: none. */
static int colour_of(int layer, int n_layers)
{
    for (int k = 0; k < 5; k++)
        if (layer == (n_layers - 1) * k / 4)
            return k;
    return REPORT_MARK_OTHER;
}

static void held_curve(struct report_curve *curve, const json_t *tops, const json_t *held)
{
    curve->n = (int)json_array_size(tops);
    curve->x = report_alloc((size_t)curve->n * 4 + 1, sizeof *curve->x);
    curve->y = curve->x + curve->n, curve->lo = curve->y + curve->n, curve->hi = curve->lo + curve->n;
    for (int k = 0; k < curve->n; k++) {
        curve->x[k] = report_value(json_array_get(tops, (size_t)k));
        curve->y[k] = report_value(json_array_get(held, (size_t)k));
        curve->lo[k] = curve->hi[k] = NAN;
    }
}

static void key_write(FILE *out, int mark, const char *name)
{
    fprintf(out, "<span class=\"policy\">");
    report_mark_write(out, mark);
    fprintf(out, "%s</span>", name);
}

static void held_write(FILE *out, const json_t *detail, int index)
{
    const json_t *held = json_object_get(detail, "held"), *tops = json_object_get(detail, "tops");
    const int n_layers = (int)json_array_size(held);
    struct report_plot plot = {.title = "Attention held by the most attended tokens",
                               .x_label = "most attended tokens of a text (logarithmic)",
                               .y_label = "accumulated attention they hold",
                               .share_x = true,
                               .share_y = true,
                               .log_x = true,
                               .dense = NAN,
                               .curves = report_alloc((size_t)n_layers + 1, sizeof *plot.curves)};
    char(*names)[24] = report_alloc((size_t)n_layers + 1, sizeof *names);
    snprintf(plot.id, sizeof plot.id, "held%d", index);
    for (int l = 0; l < n_layers; l++) {
        struct report_curve *curve = &plot.curves[plot.n++];
        snprintf(names[l], sizeof names[l], "layer %d", l);
        *curve = (struct report_curve){.policy = -1, .name = names[l], .mark = colour_of(l, n_layers)};
        held_curve(curve, tops, json_array_get(held, (size_t)l));
    }
    fprintf(out, "<article class=\"half\"><h3>Attention held by the most attended tokens</h3><p class=\"legend\">");
    for (int l = 0; l < n_layers; l++)
        if (plot.curves[l].mark >= 0)
            key_write(out, plot.curves[l].mark, names[l]);
    key_write(out, REPORT_MARK_OTHER, "other layers");
    fprintf(out, "</p>\n");
    report_plot_write(out, &plot);
    fprintf(out, "</article>\n");
    for (int i = 0; i < plot.n; i++)
        free(plot.curves[i].x);
    free(plot.curves);
    free(names);
}

/* ---------------------------------------------------------------------------------------- a text, token by token */

enum {
    WIDTH = 560,
    HEIGHT = 316,
    LEFT = 58,
    RIGHT = 10,
    TOP = 20,
    GAP = 28,
    PANEL = 116,
    MARKED = 100 /* one of so many tokens */
};

/* A token's numbers along one layer. */
struct strip {
    int n;
    double *values; /* [n], NAN where there is none; owned */
    double lo, hi;
    bool log;
};

static struct strip strip_of(const json_t *numbers, bool log)
{
    struct strip strip = {.n = (int)json_array_size(numbers), .lo = log ? INFINITY : 0, .hi = -INFINITY, .log = log};
    strip.values = report_alloc((size_t)strip.n + 1, sizeof *strip.values);
    for (int i = 0; i < strip.n; i++) {
        const double value = strip.values[i] = report_value(json_array_get(numbers, (size_t)i));
        if (!isfinite(value) || (log && value <= 0))
            continue;
        strip.lo = fmin(strip.lo, value);
        strip.hi = fmax(strip.hi, value);
    }
    return strip;
}

static double height_of(const struct strip *strip, double value, int top)
{
    const double t = strip->log ? log(fmax(value, strip->lo) / strip->lo) / log(strip->hi / strip->lo)
                                : (value - strip->lo) / (strip->hi - strip->lo);
    return top + PANEL * (1 - fmin(fmax(t, 0), 1));
}

static double across(const struct strip *strip, int token)
{
    return LEFT + (double)(WIDTH - LEFT - RIGHT) * token / BUTLER_MAX(strip->n - 1, 1);
}

/* Three digits; without an exponent from 1000 on. */
static const char *number_of(char out[32], double value)
{
    snprintf(out, 32, fabs(value) >= 100 ? "%.0f" : "%.3g", value);
    return out;
}

/* One panel: a frame, the ends of its range, a line through all tokens. */
static void panel_write(FILE *out, const struct strip *strip, int top, const char *label)
{
    char high[32], low[32];
    fprintf(out,
            "<rect class=\"frame\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/><text class=\"label\" x=\"%d\" y=\"%d\">%s</text>"
            "<text class=\"tick\" x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text><text class=\"tick\" x=\"%d\" y=\"%d\" "
            "text-anchor=\"end\">%s</text><polyline class=\"line thin\" points=\"",
            LEFT, top, WIDTH - LEFT - RIGHT, PANEL, LEFT, top - 6, label, LEFT - 6, top + 10, number_of(high, strip->hi), LEFT - 6,
            top + PANEL, number_of(low, strip->lo));
    for (int i = 0; i < strip->n; i++)
        if (isfinite(strip->values[i]))
            fprintf(out, "%.1f,%.1f ", across(strip, i), height_of(strip, strip->values[i], top));
    fprintf(out, "\"/>\n");
}

static int larger_first(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x > y ? -1 : x < y;
}

/* The attention of the last token that is marked. */
static double marked_from(const struct strip *attention)
{
    double *sorted = report_alloc((size_t)attention->n, sizeof *sorted);
    for (int i = 0; i < attention->n; i++)
        sorted[i] = isfinite(attention->values[i]) ? attention->values[i] : 0;
    qsort(sorted, (size_t)attention->n, sizeof *sorted, larger_first);
    const double least = sorted[BUTLER_MAX(1, (attention->n + MARKED / 2) / MARKED) - 1];
    free(sorted);
    return least;
}

/* The hundredth of the tokens with the most attention, marked in both panels. */
static void marks_write(FILE *out, const struct strip *attention, const struct strip *norm)
{
    const double least = marked_from(attention);
    char numbers[2][32];
    for (int i = 0; i < attention->n && i < norm->n; i++) {
        if (!(attention->values[i] >= least) || !isfinite(attention->values[i]) || !isfinite(norm->values[i]))
            continue;
        const double x = across(attention, i), high = height_of(attention, attention->values[i], TOP),
                     low = height_of(norm, norm->values[i], TOP + PANEL + GAP);
        fprintf(out,
                "<g class=\"top\"><title>token %d: attention %s, norm %s</title><circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>"
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/></g>\n",
                i, number_of(numbers[0], attention->values[i]), number_of(numbers[1], norm->values[i]), x, high, x, low);
    }
}

static void layer_write(FILE *out, const json_t *shown)
{
    struct strip attention = strip_of(json_object_get(shown, "attention"), true),
                 norm = strip_of(json_object_get(shown, "norm"), false);
    if (attention.lo < attention.hi && norm.lo < norm.hi) {
        const double layer = report_field(shown, "layer");
        fprintf(out,
                "<article><h3>Layer %.0f</h3><svg class=\"plot s0\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"attention and "
                "value norms of layer %.0f\">\n",
                isnan(layer) ? 0 : layer, WIDTH, HEIGHT, isnan(layer) ? 0 : layer);
        panel_write(out, &attention, TOP, "accumulated attention (logarithmic)");
        panel_write(out, &norm, TOP + PANEL + GAP, "L1 norm of the value");
        marks_write(out, &attention, &norm);
        fprintf(out, "<text class=\"label\" x=\"%d\" y=\"%d\" text-anchor=\"middle\">token, 0 to %d</text></svg></article>\n",
                (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, attention.n - 1);
    }
    free(attention.values);
    free(norm.values);
}

static void shown_write(FILE *out, const json_t *shown)
{
    fprintf(out,
            "<p class=\"says\">The first text, mean of a layer's KV heads. <span class=\"top\">Marked</span>: the hundredth of "
            "the tokens that got the most attention.</p><div class=\"charts\">\n");
    for (size_t k = 0; k < json_array_size(shown); k++)
        layer_write(out, json_array_get(shown, k));
    fprintf(out, "</div>\n");
}

bool report_attention_has(const json_t *detail)
{
    return json_array_size(json_object_get(detail, "held")) > 0 || json_array_size(json_object_get(detail, "shown")) > 0;
}

void report_attention_write(FILE *out, const json_t *detail, int index)
{
    if (json_array_size(json_object_get(detail, "held")) > 0)
        held_write(out, detail, index);
    if (json_array_size(json_object_get(detail, "shown")) > 0)
        shown_write(out, json_object_get(detail, "shown"));
}
