/* Draws the details of rows as small maps, a row for each policy and a column for each budget: recall of every head, grids of pass
 * keys, correlations; and perplexity by position. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

enum { N_COLOURS = 10 };

/* --------------------------------------------------------------------------------------------------- cells */

/* A grid of numbers from 0 (or -1) to 1. */
struct cells {
    int n_rows, n_columns;
    double *values; /* [n_rows][n_columns], NAN where there is none; owned */
};

/* A matrix [[...], ...]; rows may differ in length. */
static struct cells cells_of_matrix(const json_t *matrix)
{
    struct cells cells = {.n_rows = (int)json_array_size(matrix)};
    for (int i = 0; i < cells.n_rows; i++)
        cells.n_columns = BUTLER_MAX(cells.n_columns, (int)json_array_size(json_array_get(matrix, (size_t)i)));
    cells.values = report_alloc((size_t)cells.n_rows * (size_t)cells.n_columns, sizeof *cells.values);
    for (int i = 0; i < cells.n_rows; i++)
        for (int k = 0; k < cells.n_columns; k++)
            cells.values[i * cells.n_columns + k] = report_value(json_array_get(json_array_get(matrix, (size_t)i), (size_t)k));
    return cells;
}

static double cells_mean(const struct cells *cells)
{
    double sum = 0;
    int n = 0;
    for (int i = 0; i < cells->n_rows * cells->n_columns; i++)
        if (!isnan(cells->values[i])) {
            sum += cells->values[i];
            n++;
        }
    return n ? sum / n : NAN;
}

/* One of the classes h0 .. h9 (0 to 1) or d0 .. d9 (-1 to 1), or none. */
static void colour_write(FILE *out, double value, bool diverging)
{
    if (isnan(value)) {
        fprintf(out, "none");
        return;
    }
    double t = diverging ? (value + 1) / 2 : value;
    fprintf(out, "%c%d", diverging ? 'd' : 'h', (int)fmin(fmax(floor(t * N_COLOURS), 0), N_COLOURS - 1));
}

static void cells_write(FILE *out, const struct cells *cells, const char *row_name, const char *column_name, bool diverging)
{
    int size = BUTLER_MIN(BUTLER_MAX(96 / BUTLER_MAX(BUTLER_MAX(cells->n_columns, cells->n_rows), 1), 3), 14);
    fprintf(out, "<svg class=\"cells\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" aria-hidden=\"true\">",
            size * cells->n_columns, size * cells->n_rows, cells->n_columns, cells->n_rows);
    for (int i = 0; i < cells->n_rows; i++)
        for (int k = 0; k < cells->n_columns; k++) {
            double value = cells->values[i * cells->n_columns + k];
            fprintf(out, "<rect class=\"");
            colour_write(out, value, diverging);
            fprintf(out, "\" x=\"%d\" y=\"%d\" width=\"1\" height=\"1\"><title>%s %d, %s %d: %.2f</title></rect>", k, i, row_name,
                    i, column_name, k, value);
        }
    fprintf(out, "</svg>");
}

static void scale_write(FILE *out, bool diverging)
{
    fprintf(out, "<p class=\"scale\">%s<span class=\"ramp\">",
            diverging ? "\xe2\x88\x92"
                        "1"
                      : "0\xc2\xa0%");
    for (int i = 0; i < N_COLOURS; i++)
        fprintf(out, "<i class=\"%c%d\"></i>", diverging ? 'd' : 'h', i);
    fprintf(out, "</span>%s</p>\n", diverging ? "1" : "100\xc2\xa0%");
}

static const json_t *detail_at(const struct report_series *series, double budget, const char *key)
{
    const struct report_row *row = report_row_at(series, budget);
    return row ? json_object_get(row->detail, key) : NULL;
}

static void recall_write(FILE *out, const struct report_series *series, double budget, const char *key)
{
    char number[64];
    struct cells cells = cells_of_matrix(detail_at(series, budget, key));
    cells_write(out, &cells, "layer", "head", false);
    fprintf(out, "<small>mean %s</small>", report_number(number, sizeof number, cells_mean(&cells), true));
    free(cells.values);
}

static void correlation_write(FILE *out, const struct report_series *series, double budget, const char *key)
{
    const json_t *layers = detail_at(series, budget, key);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        struct cells cells = cells_of_matrix(json_array_get(layers, i));
        fprintf(out, "<figure class=\"inline\">");
        cells_write(out, &cells, "head", "head", true);
        fprintf(out, "<figcaption>%zu</figcaption></figure>", i);
        free(cells.values);
    }
}

/* The same of numbers from -1 to 1. */
static void signed_write(FILE *out, const struct report_series *series, double budget, const char *key)
{
    char number[64];
    struct cells cells = cells_of_matrix(detail_at(series, budget, key));
    cells_write(out, &cells, "layer", "head", true);
    fprintf(out, "<small>mean %s</small>", report_number(number, sizeof number, cells_mean(&cells), false));
    free(cells.values);
}

/* The different values of one coordinate in a list of pairs, ascending. */
static int distinct(const json_t *grid, const char *key, double *out, int max)
{
    int n = 0;
    for (size_t i = 0; i < json_array_size(grid); i++) {
        double value = report_field(json_array_get(grid, i), key);
        int at = 0;
        while (at < n && out[at] < value)
            at++;
        if (isnan(value) || (at < n && out[at] == value) || n == max)
            continue;
        memmove(out + at + 1, out + at, (size_t)(n - at) * sizeof *out);
        out[at] = value;
        n++;
    }
    return n;
}

/* Correct answers by length (columns) and depth (rows), as percentages in coloured cells. The series has a row for every length. */
static void grid_write(FILE *out, const struct report_series *series, double budget, const char *key)
{
    enum { MAX = 64 };
    char number[64];
    double lengths[MAX], depths[MAX];
    json_t *grid = json_array();
    for (int i = 0; i < series->n; i++) {
        json_t *part = json_object_get(series->rows[i]->detail, key);
        if (json_is_array(part) && (budget < 0 ? isnan(series->rows[i]->budget) : series->rows[i]->budget == budget))
            json_array_extend(grid, part);
    }
    int n_lengths = distinct(grid, "length", lengths, MAX), n_depths = distinct(grid, "depth", depths, MAX);
    fprintf(out, "<table class=\"grid\"><tbody>");
    for (int d = 0; d < n_depths; d++) {
        fprintf(out, "<tr><th>%s</th>", report_number(number, sizeof number, depths[d] > 1 ? depths[d] / 100 : depths[d], true));
        for (int l = 0; l < n_lengths; l++) {
            double right = 0, n = 0;
            for (size_t i = 0; i < json_array_size(grid); i++) {
                const json_t *at = json_array_get(grid, i);
                if (report_field(at, "length") != lengths[l] || report_field(at, "depth") != depths[d] ||
                    isnan(report_field(at, "right")))
                    continue;
                right += report_field(at, "right");
                n += report_field(at, "n");
            }
            fprintf(out, "<td class=\"");
            colour_write(out, n > 0 ? right / n : NAN, false);
            fprintf(out, "\" title=\"%.4g of %.0f\">", right, n);
            if (n > 0)
                fprintf(out, "%.0f", 100 * right / n);
            fprintf(out, "</td>");
        }
        fprintf(out, "</tr>");
    }
    fprintf(out, "<tr><th></th>");
    for (int l = 0; l < n_lengths; l++)
        fprintf(out, "<th>%.4g%s</th>", lengths[l] >= 1000 ? lengths[l] / 1024 : lengths[l], lengths[l] >= 1000 ? "k" : "");
    fprintf(out, "</tr></tbody></table>");
    json_decref(grid);
}

/* Dense has a map if it is the only policy, or if the map is of answers: others beside others say nothing about it. */
static bool has_picture(const struct report *report, const struct report_chart *chart, int series, const char *key)
{
    bool any = false, alone = chart->n == 1 || strcmp(key, "grid") == 0;
    for (int k = 0; k < chart->series[series].n; k++)
        any = any || json_is_array(json_object_get(chart->series[series].rows[k]->detail, key));
    return any && (alone || report->policies[chart->series[series].policy].kind != REPORT_DENSE);
}

static bool has_pictures(const struct report *report, const struct report_chart *chart, double budget, const char *key)
{
    bool any = false;
    for (int i = 0; i < chart->n; i++) {
        if (!has_picture(report, chart, i, key))
            continue;
        const struct report_row *row = report_row_at(&chart->series[i], budget);
        any = any || (row && json_is_array(json_object_get(row->detail, key)));
    }
    return any;
}

/* A table of maps: a row for each policy, a column for each budget. Only policies whose rows have `key`. */
static void gallery_write(FILE *out, const struct report *report, const struct report_chart *chart, const char *key,
                          const char *caption, void (*write)(FILE *, const struct report_series *, double, const char *))
{
    char number[64];
    double budgets[REPORT_MAX_BUDGETS];
    int n = 0, n_all = report_budgets(chart, budgets, REPORT_MAX_BUDGETS);
    for (int i = 0; i < n_all; i++)
        if (has_pictures(report, chart, budgets[i], key))
            budgets[n++] = budgets[i];
    fprintf(out, "<div class=\"scroll\"><table class=\"gallery\"><caption>%s</caption><thead><tr><th scope=\"col\">policy</th>",
            caption);
    for (int i = 0; i < n; i++)
        fprintf(out, "<th scope=\"col\">%s</th>", report_budget(number, sizeof number, budgets[i] < 0 ? NAN : budgets[i]));
    fprintf(out, "</tr></thead><tbody>\n");
    for (int i = 0; i < chart->n; i++) {
        if (!has_picture(report, chart, i, key))
            continue;
        fprintf(out, "<tr><th scope=\"row\">");
        report_text(out, report->policies[chart->series[i].policy].name);
        fprintf(out, "</th>");
        for (int k = 0; k < n; k++) {
            const struct report_row *row = report_row_at(&chart->series[i], budgets[k]);
            fprintf(out, "<td>");
            if (row && json_is_array(json_object_get(row->detail, key)))
                write(out, &chart->series[i], budgets[k], key);
            fprintf(out, "</td>");
        }
        fprintf(out, "</tr>\n");
    }
    fprintf(out, "</tbody></table></div>\n");
}

/* --------------------------------------------------------------------------------------------- by position */

static void position_curve(struct report_curve *curve, const json_t *places)
{
    int n = curve->n = (int)json_array_size(places);
    curve->x = report_alloc((size_t)n * 4, sizeof *curve->x);
    curve->y = curve->x + n, curve->lo = curve->y + n, curve->hi = curve->lo + n;
    for (int i = 0; i < n; i++) {
        const json_t *at = json_array_get(places, (size_t)i);
        curve->x[i] = (report_field(at, "from") + report_field(at, "to")) / 2;
        curve->y[i] = report_field(at, "ppl");
        curve->lo[i] = curve->hi[i] = NAN;
    }
}

static void positions_write(FILE *out, const struct report *report, int index, double budget)
{
    const struct report_chart *chart = &report->charts[index];
    char number[64];
    struct report_plot plot = {.title = "Perplexity by position in the text",
                               .x_label = "position in the text, tokens",
                               .y_label = "perplexity",
                               .log_y = true,
                               .lower = true,
                               .dense = NAN,
                               .curves = report_alloc((size_t)chart->n + 1, sizeof *plot.curves)};
    snprintf(plot.id, sizeof plot.id, "places%d-%.6g", index, budget < 0 ? 0 : budget);
    for (int i = 0; i < chart->n; i++) {
        const struct report_policy *policy = &report->policies[chart->series[i].policy];
        const struct report_row *row = policy->kind == REPORT_DENSE ? chart->dense : report_row_at(&chart->series[i], budget);
        const json_t *places = row ? json_object_get(row->detail, "by_position") : NULL;
        if (!json_array_size(places))
            continue;
        struct report_curve *curve = &plot.curves[plot.n++];
        *curve = (struct report_curve){.policy = chart->series[i].policy, .name = policy->name, .mark = report_mark(policy)};
        if (policy->kind == REPORT_DENSE)
            curve->mark = REPORT_MARK_DENSE;
        position_curve(curve, places);
    }
    fprintf(out, "<article><h3>By position, budget %s</h3>", report_budget(number, sizeof number, budget < 0 ? NAN : budget));
    report_plot_write(out, &plot);
    fprintf(out, "</article>\n");
    for (int i = 0; i < plot.n; i++)
        free(plot.curves[i].x);
    free(plot.curves);
}

static bool has_detail(const struct report_series *series, int k, const char *key)
{
    return json_array_size(json_object_get(series->rows[k]->detail, key)) > 0;
}

/* A plot for every budget at which a policy other than full has values by position. */
static void all_positions_write(FILE *out, const struct report *report, int index)
{
    const struct report_chart *chart = &report->charts[index];
    double budgets[REPORT_MAX_BUDGETS];
    int n = report_budgets(chart, budgets, REPORT_MAX_BUDGETS);
    fprintf(out, "<details><summary>Perplexity by position, for every budget</summary><div class=\"charts thirds\">\n");
    for (int b = 0; b < n; b++) {
        bool any = false;
        for (int i = 0; i < chart->n; i++) {
            const struct report_row *row = report_row_at(&chart->series[i], budgets[b]);
            any = any || (report->policies[chart->series[i].policy].kind != REPORT_DENSE && row &&
                          json_array_size(json_object_get(row->detail, "by_position")) > 0);
        }
        if (any)
            positions_write(out, report, index, budgets[b]);
    }
    fprintf(out, "</div></details>\n");
}

/* ------------------------------------------------------------------------------------------- by length and depth */

static bool differ_in_length(const struct report_chart *a, const struct report_chart *b)
{
    return strcmp(a->task, b->task) == 0 && strcmp(a->subset, b->subset) == 0 && strcmp(a->metric, b->metric) == 0 &&
           strcmp(a->data, b->data) == 0 && strcmp(a->config, b->config) == 0 &&
           report_same_model(a->model, a->fingerprint, b->model, b->fingerprint);
}

/* The rows of all charts that differ from this one in length alone, as one chart, for a grid; free_joined frees it. false: an
 * earlier chart has them. */
static bool join_lengths(const struct report *report, int index, struct report_chart *out)
{
    *out = report->charts[index];
    out->n = 0;
    for (int i = 0; i < index; i++)
        if (differ_in_length(&report->charts[i], out))
            return false;
    out->series = report_alloc((size_t)report->n_policies + 1, sizeof *out->series);
    for (int p = 0; p < report->n_policies; p++) {
        struct report_series joined = {.policy = p, .rows = report_alloc((size_t)report->rows->n + 1, sizeof(void *))};
        for (int i = index; i < report->n_charts; i++) {
            const struct report_series *part = report_series_find(&report->charts[i], p);
            if (!part || !differ_in_length(&report->charts[i], out))
                continue;
            memcpy(joined.rows + joined.n, part->rows, (size_t)part->n * sizeof *part->rows);
            joined.n += part->n;
            if (i > index)
                out->length = NAN; /* the title names none */
        }
        if (joined.n)
            out->series[out->n++] = joined;
        else
            free(joined.rows);
    }
    return true;
}

static void free_joined(struct report_chart *chart)
{
    for (int i = 0; i < chart->n; i++)
        free(chart->series[i].rows);
    free(chart->series);
}

/* ------------------------------------------------------------------------------------------------ a chart's maps */

/* What a number for each head is, of metrics whose rows have "heads". */
static const struct {
    const char *metric, *caption;
    void (*write)(FILE *, const struct report_series *, double, const char *);
} heads[] = {
    {"sparsity", "Sparsity of every query head (columns) in every layer (rows, the first on top).", recall_write},
    {"first_norm", "Norm of the first token's value, as a share of the mean (darkest: 90 % and more), by KV head and layer.",
     recall_write},
    {"top_norm", "Norm of the most attended tokens' values, as a share of the mean (darkest: 90 % and more), by KV head and layer.",
     recall_write},
    {"rank_correlation", "Rank correlation of a token's attention with the norm of its value, by KV head and layer.", signed_write},
};

/* The map of heads, and pictures of attention. */
static void own_attention_write(FILE *out, const struct report *report, int index)
{
    const struct report_chart *chart = &report->charts[index];
    for (int i = 0; i < BUTLER_COUNT(heads); i++)
        if (strcmp(chart->metric, heads[i].metric) == 0) {
            fprintf(out, "<div class=\"galleries large\">\n");
            gallery_write(out, report, chart, "heads", heads[i].caption, heads[i].write);
            fprintf(out, "</div>\n");
            scale_write(out, heads[i].write == signed_write);
        }
    for (int i = 0; i < chart->n; i++)
        for (int k = 0; k < chart->series[i].n; k++)
            report_attention_write(out, chart->series[i].rows[k]->detail, index);
}

void report_maps_write(FILE *out, const struct report *report, int index)
{
    const struct report_chart *chart = &report->charts[index];
    struct report_chart joined = *chart;
    bool places = false, grid = false, layers = false, mass = false, correlation = false, own = false;
    for (int i = 0; i < chart->n; i++)
        for (int k = 0; k < chart->series[i].n; k++) {
            const struct report_series *series = &chart->series[i];
            places = places || has_detail(series, k, "by_position");
            grid = grid || has_detail(series, k, "grid");
            mass = mass || has_detail(series, k, "mass");
            own = own || has_detail(series, k, "heads") || report_attention_has(series->rows[k]->detail);
            if (!has_detail(series, k, "layers"))
                continue;
            const json_t *first = json_array_get(json_object_get(series->rows[k]->detail, "layers"), 0);
            correlation = correlation || json_is_array(json_array_get(first, 0));
            layers = layers || json_is_number(json_array_get(first, 0));
        }
    grid = grid && join_lengths(report, index, &joined);
    if (!(places || grid || layers || mass || correlation || own))
        return;
    fprintf(out, "<h3 class=\"maps\">");
    report_chart_title(out, report, &joined);
    fprintf(out, "</h3>\n");
    if (places)
        all_positions_write(out, report, index);
    if (own)
        own_attention_write(out, report, index);
    fprintf(out, "<div class=\"galleries\">\n");
    if (grid) {
        gallery_write(out, report, &joined, "grid",
                      "Correct answers in per cent: depth of what is asked for (rows, 0 % is the start) by length (columns).",
                      grid_write);
        free_joined(&joined);
    }
    if (layers)
        gallery_write(out, report, chart, "layers", "Recall of every query head (columns) in every layer (rows, the first on top).",
                      recall_write);
    if (mass)
        gallery_write(out, report, chart, "mass",
                      "Attention mass that the selection covers, by query head (columns) and layer (rows).", recall_write);
    if (correlation)
        gallery_write(out, report, chart, "layers", "Correlation of query heads' attention, layer by layer.", correlation_write);
    fprintf(out, "</div>\n");
    if (layers || mass || grid)
        scale_write(out, false);
    if (correlation)
        scale_write(out, true);
}
