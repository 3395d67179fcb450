/* The report's page: a summary in sentences, the table of smallest sufficient budgets, then a section for every task. The page is
 * complete without the script, which only sorts tables and highlights policies. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static const struct {
    const char *task, *title, *says;
} tasks[] = {
    {"ppl", "Perplexity", "How well the model predicts text it has not seen. Lower is better."},
    {"coref", "Co-reference",
     "A place is described and named, other sentences follow, and the name is asked for by its description."},
    {"passkey", "Pass key", "A number is hidden in a long text and asked for at its end."},
    {"kv", "Key-value retrieval", "One value out of a list of pairs."},
    {"lines", "Line retrieval", "One line's number out of many lines."},
    {"turns", "One text, many questions",
     "The number in one line after the other: what is left of a text after the first question."},
    {"chain", "A long procedure", "A route is written down; each step needs another line of the text."},
    {"mc", "Multiple choice", "The correct continuation must be the most probable."},
    {"longbench", "LongBench", "Questions about long documents."},
    {"summary", "Summaries", "Summaries of news against those of their writers: common words, pairs of words, subsequences."},
    {"ruler", "RULER",
     "Needles in a long text, chains of variables, words to count, questions: the share of the expected strings."},
    {"recall", "Recall", "The share of the tokens with the most attention that a policy selects."},
    {"consensus", "Consensus of heads", "Whether heads agree on which tokens matter: correlation of their attention."},
    {"sparsity", "Sparsity of attention",
     "The share of attention weights below 1 % of the largest that the same query gives, and how much of the attention of a text "
     "its most attended tokens hold: of the model itself."},
    {"norms", "Attention and norms of values",
     "Whether tokens that get much attention have small values: norms of values as shares of the mean, of the model itself."},
};

static const char *task_title(const char *task)
{
    for (int i = 0; i < BUTLER_COUNT(tasks); i++)
        if (strcmp(tasks[i].task, task) == 0)
            return tasks[i].title;
    return task;
}

static void policy_write(FILE *out, const struct report *report, int policy)
{
    fprintf(out, "<span class=\"policy\" data-p=\"%d\">", policy);
    if (report->policies[policy].kind != REPORT_DENSE)
        report_mark_write(out, report_mark(&report->policies[policy]));
    report_text(out, report->policies[policy].name);
    fprintf(out, "</span>");
}

/* ------------------------------------------------------------------------------------------------- summary */

/* Whether there is a dense value and another policy to compare with it. */
static bool is_compared(const struct report *report, const struct report_chart *chart)
{
    bool any = false;
    for (int i = 0; i < chart->n; i++)
        any = any || report->policies[chart->series[i].policy].kind != REPORT_DENSE;
    return any && chart->dense;
}

static int by_cheapest(const void *a, const void *b)
{
    const struct report_series *x = *(const struct report_series *const *)a, *y = *(const struct report_series *const *)b;
    return x->cheapest->kv_read < y->cheapest->kv_read ? -1 : x->cheapest->kv_read > y->cheapest->kv_read;
}

static void chart_sentence(FILE *out, const struct report *report, const struct report_chart *chart)
{
    char number[64];
    int n = 0, n_judged = 0;
    const struct report_series **near = report_alloc((size_t)chart->n + 1, sizeof(void *));
    for (int i = 0; i < chart->n; i++) {
        const struct report_series *series = &chart->series[i];
        if (report->policies[series->policy].kind != REPORT_POLICY)
            continue;
        n_judged++;
        if (series->cheapest && series->cheapest->kv_read < 1)
            near[n++] = series;
    }
    qsort(near, (size_t)n, sizeof(void *), by_cheapest);
    fprintf(out, "<li><b>");
    report_text(out, task_title(chart->task));
    fprintf(out, "</b> (");
    report_chart_title(out, report, chart);
    fprintf(out, "): dense %s. ", report_number(number, sizeof number, chart->dense->value, chart->share));
    if (!n)
        fprintf(out, "None of %d policies is within 2 %% of it with fewer bytes.", n_judged);
    else
        fprintf(out, "Within 2 %% of it: ");
    for (int i = 0; i < n && i < 3; i++) {
        fprintf(out, "%s", i ? ", " : "");
        policy_write(out, report, near[i]->policy);
        fprintf(out, " with %s of the bytes", report_number(number, sizeof number, near[i]->cheapest->kv_read, true));
    }
    if (n)
        fprintf(out, "; %d of %d policies reach that at some budget.", n, n_judged);
    fprintf(out, "</li>\n");
    free(near);
}

/* The smallest share of bytes with which any policy, without the bounds, is near dense. */
static double fewest(const struct report *report, const struct report_chart *chart)
{
    double least = INFINITY;
    for (int i = 0; i < chart->n; i++)
        if (chart->series[i].cheapest && report->policies[chart->series[i].policy].kind == REPORT_POLICY)
            least = fmin(least, chart->series[i].cheapest->kv_read);
    return least;
}

/* Whether a loss of more than REPORT_NEAR is possible, by the interval of a row's difference to dense on the same items. Where no
 * item differs, the rule of three bounds the share of items that could. */
static bool is_unsure(const struct report_chart *chart, const struct report_row *row)
{
    double lo = row->difference_lo, hi = row->difference_hi, items = report_field(row->object, "limit");
    if (!chart->dense || isnan(row->difference) || isnan(lo) || isnan(hi))
        return false;
    double loss = chart->lower ? hi : -lo;
    if (lo == hi && items > 0)
        loss += 3 / items;
    return loss > REPORT_NEAR * fabs(report_dense(chart, row));
}

static void matrix_cell(FILE *out, const struct report *report, const struct report_chart *chart, int policy)
{
    char number[64];
    const struct report_series *series = report_series_find(chart, policy);
    if (!series) {
        fprintf(out, "<td class=\"none\"></td>");
    } else if (!series->cheapest) {
        fprintf(out, "<td class=\"none\" data-v=\"9\">\xe2\x80\x93</td>");
    } else { /* the fewer bytes, the stronger; beyond dense, nothing */
        double read = series->cheapest->kv_read;
        bool best = report->policies[policy].kind == REPORT_POLICY && read <= fewest(report, chart);
        bool unsure = is_unsure(chart, series->cheapest);
        fprintf(out, "<td class=\"h%d%s\" data-v=\"%.6g\">%s%s</td>", (int)lround(9 * fmax(0, 1 - read)),
                best && !unsure ? " best" : "", read, report_number(number, sizeof number, read, true), unsure ? " ?" : "");
    }
}

/* The summary table: for every policy and chart the smallest share of bytes that is near dense. */
static void matrix_write(FILE *out, const struct report *report)
{
    fprintf(out,
            "<div class=\"scroll\"><table class=\"matrix sortable\"><caption>The smallest share of the dense KV bytes with "
            "which each policy is "
            "within 2 %% of dense. ?: the interval of the difference to dense also holds a larger loss. A dash: at no measured "
            "budget.</caption><thead><tr><th "
            "scope=\"col\">policy</th>");
    for (int i = 0; i < report->n_charts; i++)
        if (is_compared(report, &report->charts[i])) {
            fprintf(out, "<th scope=\"col\"><a href=\"#chart%d\">", i);
            report_text(out, task_title(report->charts[i].task));
            fprintf(out, "</a><small>");
            report_text(out, report->charts[i].metric);
            fprintf(out, "</small><small>");
            report_chart_data(out, report, &report->charts[i]);
            fprintf(out, "</small></th>");
        }
    fprintf(out, "</tr></thead><tbody>\n");
    for (int p = 0; p < report->n_policies; p++) {
        if (report->policies[p].kind == REPORT_DENSE)
            continue;
        fprintf(out, "<tr><th scope=\"row\">");
        policy_write(out, report, p);
        fprintf(out, "</th>");
        for (int i = 0; i < report->n_charts; i++)
            if (is_compared(report, &report->charts[i]))
                matrix_cell(out, report, &report->charts[i], p);
        fprintf(out, "</tr>\n");
    }
    fprintf(out, "</tbody></table></div>\n");
}

static void summary_write(FILE *out, const struct report *report)
{
    int n_dense = 0;
    fprintf(out, "<section id=\"summary\"><h2>Summary</h2><ul class=\"summary\">\n");
    for (int i = 0; i < report->n_charts; i++)
        if (is_compared(report, &report->charts[i])) {
            chart_sentence(out, report, &report->charts[i]);
            n_dense++;
        }
    if (!n_dense)
        fprintf(out,
                "<li>There is no row of <code>full</code> with the same measurement as another policy's, so the values cannot be "
                "compared with dense.</li>\n");
    fprintf(out, "</ul>\n");
    if (n_dense)
        matrix_write(out, report);
    fprintf(out, "</section>\n");
}

/* -------------------------------------------------------------------------------------------------- tables */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

int report_budgets(const struct report_chart *chart, double *budgets, int max)
{
    int n = 0;
    for (int i = 0; i < chart->n; i++)
        for (int k = 0; k < chart->series[i].n; k++) {
            /* Fractions (up to 1) sort before numbers of tokens; a row without a budget comes first. */
            double budget = isnan(chart->series[i].rows[k]->budget) ? -1 : chart->series[i].rows[k]->budget;
            bool known = false;
            for (int j = 0; j < n; j++)
                known = known || budgets[j] == budget;
            if (!known && n < max)
                budgets[n++] = budget;
        }
    qsort(budgets, (size_t)n, sizeof *budgets, by_value);
    return n;
}

const struct report_row *report_row_at(const struct report_series *series, double budget)
{
    for (int k = 0; k < series->n; k++)
        if (budget < 0 ? isnan(series->rows[k]->budget) : series->rows[k]->budget == budget)
            return series->rows[k];
    return NULL;
}

static void pivot_write(FILE *out, const struct report *report, const struct report_chart *chart)
{
    char number[64];
    double budgets[REPORT_MAX_BUDGETS];
    int n = report_budgets(chart, budgets, REPORT_MAX_BUDGETS);
    fprintf(out, "<div class=\"scroll\"><table class=\"pivot\"><caption>Value at each budget, and below it the share of the KV "
                 "bytes read; "
                 "<span class=\"good\">marked</span>: within 2 %% of dense.</caption><thead><tr><th scope=\"col\">policy</th>");
    for (int i = 0; i < n; i++)
        fprintf(out, "<th scope=\"col\">%s</th>", report_budget(number, sizeof number, budgets[i] < 0 ? NAN : budgets[i]));
    fprintf(out, "</tr></thead><tbody>\n");
    for (int i = 0; i < chart->n; i++) {
        fprintf(out, "<tr><th scope=\"row\">");
        policy_write(out, report, chart->series[i].policy);
        fprintf(out, "</th>");
        for (int k = 0; k < n; k++) {
            const struct report_row *row = report_row_at(&chart->series[i], budgets[k]);
            if (!row) {
                fprintf(out, "<td></td>");
                continue;
            }
            fprintf(out, "<td%s>%s", report_is_near(chart, row) ? " class=\"good\"" : "",
                    report_number(number, sizeof number, row->value, chart->share));
            fprintf(out, "<small>%s</small></td>", report_number(number, sizeof number, row->kv_read, true));
        }
        fprintf(out, "</tr>\n");
    }
    fprintf(out, "</tbody></table></div>\n");
}

static void cell(FILE *out, double value, const char *text)
{
    if (isnan(value))
        fprintf(out, "<td>\xe2\x80\x93</td>");
    else
        fprintf(out, "<td data-v=\"%.9g\">%s</td>", value, text);
}

static void full_row_write(FILE *out, const struct report *report, const struct report_chart *chart, int policy,
                           const struct report_row *row)
{
    char a[64], b[64];
    const json_t *bytes = json_object_get(row->object, "bytes");
    fprintf(out, "<tr><th scope=\"row\">");
    policy_write(out, report, policy);
    fprintf(out, "</th>");
    cell(out, isnan(row->budget) ? 0 : row->budget, report_budget(a, sizeof a, row->budget));
    cell(out, row->value, report_number(a, sizeof a, row->value, chart->share));
    if (isnan(row->lo))
        fprintf(out, "<td>\xe2\x80\x93</td>");
    else
        fprintf(out, "<td data-v=\"%.9g\">%s \xe2\x80\xa6 %s</td>", row->lo, report_number(a, sizeof a, row->lo, chart->share),
                report_number(b, sizeof b, row->hi, chart->share));
    double dense = report_dense(chart, row), change = dense != 0 ? row->value / dense - 1 : NAN;
    snprintf(a, sizeof a, "%+.1f\xc2\xa0%%", 100 * change);
    cell(out, change, a);
    cell(out, row->kv_read, report_number(a, sizeof a, row->kv_read, true));
    double kv = report_field(bytes, "kv"), metric = report_field(bytes, "metric"), seconds = report_field(row->object, "seconds");
    cell(out, kv, report_count(a, sizeof a, kv));
    cell(out, metric, report_count(a, sizeof a, metric));
    cell(out, row->n, report_count(a, sizeof a, row->n));
    snprintf(a, sizeof a, "%.1f", seconds);
    cell(out, seconds, a);
    fprintf(out, "</tr>\n");
}

static void full_table_write(FILE *out, const struct report *report, const struct report_chart *chart)
{
    static const char *const heads[] = {"policy",   "budget",  "value",          "95 % interval",
                                        "to dense", "KV read", "KV bytes/token", "metric bytes/token",
                                        "items",    "seconds"};
    fprintf(out,
            "<details><summary>Every value with its interval</summary><div class=\"scroll\"><table class=\"sortable\"><thead><tr>");
    for (int i = 0; i < BUTLER_COUNT(heads); i++)
        fprintf(out, "<th scope=\"col\">%s</th>", heads[i]);
    fprintf(out, "</tr></thead><tbody>\n");
    for (int i = 0; i < chart->n; i++)
        for (int k = 0; k < chart->series[i].n; k++)
            full_row_write(out, report, chart, chart->series[i].policy, chart->series[i].rows[k]);
    fprintf(out, "</tbody></table></div></details>\n");
}

/* ------------------------------------------------------------------------------------------------ sections */

static void curve_fill(struct report_curve *curve, const struct report *report, const struct report_series *series)
{
    *curve = (struct report_curve){.policy = series->policy,
                                   .mark = report_mark(&report->policies[series->policy]),
                                   .name = report->policies[series->policy].name,
                                   .n = series->n};
    curve->x = report_alloc((size_t)series->n * 4, sizeof *curve->x);
    curve->y = curve->x + series->n;
    curve->lo = curve->y + series->n;
    curve->hi = curve->lo + series->n;
    for (int k = 0; k < series->n; k++) {
        curve->x[k] = series->rows[k]->kv_read;
        curve->y[k] = series->rows[k]->value;
        curve->lo[k] = series->rows[k]->lo;
        curve->hi[k] = series->rows[k]->hi;
    }
}

static void chart_write(FILE *out, const struct report *report, int index)
{
    const struct report_chart *chart = &report->charts[index];
    struct report_plot plot = {.title = "Quality against bytes read",
                               .x_label = "KV bytes read, share of dense (logarithmic)",
                               .y_label = report_metric_name(chart->metric),
                               .share_x = true,
                               .share_y = chart->share,
                               .log_x = true,
                               .log_y = chart->lower,
                               .lower = chart->lower,
                               .dense = chart->dense ? chart->dense->value : NAN,
                               .curves = report_alloc((size_t)chart->n + 1, sizeof *plot.curves)};
    snprintf(plot.id, sizeof plot.id, "lines%d", index);
    for (int i = 0; i < chart->n; i++)
        if (report->policies[chart->series[i].policy].kind != REPORT_DENSE)
            curve_fill(&plot.curves[plot.n++], report, &chart->series[i]);
    fprintf(out, "<article id=\"chart%d\"><h3>", index);
    report_chart_title(out, report, chart);
    fprintf(out, "</h3>\n");
    if (*chart->config) {
        fprintf(out, "<p class=\"config\">");
        report_text(out, chart->config);
        fprintf(out, "</p>\n");
    }
    report_plot_write(out, &plot);
    report_plot_small(out, &plot);
    fprintf(out, "<details%s><summary>Values by budget</summary>", plot.n ? "" : " open=\"open\"");
    pivot_write(out, report, chart);
    fprintf(out, "</details>\n");
    full_table_write(out, report, chart);
    fprintf(out, "</article>\n");
    for (int i = 0; i < plot.n; i++)
        free(plot.curves[i].x);
    free(plot.curves);
}

static void legend_write(FILE *out, const struct report *report)
{
    fprintf(out, "<p class=\"legend\">");
    for (int i = 0; i < report->n_policies; i++)
        if (report_mark(&report->policies[i]) != REPORT_MARK_OTHER)
            policy_write(out, report, i);
    fprintf(out, "<span class=\"policy\">");
    report_mark_write(out, REPORT_MARK_OTHER);
    fprintf(out, "other policies</span></p>\n");
}

static void section_write(FILE *out, const struct report *report, int task)
{
    const char *name = report->tasks[task];
    int n = 0;
    for (int i = 0; i < report->n_charts; i++)
        n += strcmp(report->charts[i].task, name) == 0;
    if (!n)
        return;
    fprintf(out, "<section id=\"task%d\"><h2>", task);
    report_text(out, task_title(name));
    fprintf(out, "</h2>\n");
    for (int i = 0; i < BUTLER_COUNT(tasks); i++)
        if (strcmp(tasks[i].task, name) == 0)
            fprintf(out, "<p class=\"says\">%s</p>\n", tasks[i].says);
    legend_write(out, report);
    fprintf(out, "<div class=\"charts\">\n");
    for (int i = 0; i < report->n_charts; i++)
        if (strcmp(report->charts[i].task, name) == 0)
            chart_write(out, report, i);
    fprintf(out, "</div>\n");
    for (int i = 0; i < report->n_charts; i++)
        if (strcmp(report->charts[i].task, name) == 0)
            report_maps_write(out, report, i);
    fprintf(out, "</section>\n");
}

static const struct report_row *row_with_settings(const struct report *report, const char *family)
{
    for (int i = 0; i < report->rows->n; i++)
        if (*report->rows->rows[i].settings && strcmp(report->rows->rows[i].family, family) == 0)
            return &report->rows->rows[i];
    return NULL;
}

static bool has_settings(const struct report *report)
{
    for (int p = 0; p < report->n_policies; p++)
        if (row_with_settings(report, report->policies[p].name))
            return true;
    return false;
}

/* What a short name such as "quest" stood for when it was measured: defaults can change between versions. */
static void settings_write(FILE *out, const struct report *report)
{
    if (!has_settings(report))
        return;
    fprintf(out,
            "<section id=\"settings\"><h2>Settings</h2><p class=\"says\">Every key of each policy as it was measured, defaults "
            "included, without the budget.</p><div class=\"scroll\"><table class=\"settings\"><thead><tr><th "
            "scope=\"col\">policy</th><th scope=\"col\">settings</th></tr></thead><tbody>\n");
    for (int p = 0; p < report->n_policies; p++) {
        const struct report_row *row = row_with_settings(report, report->policies[p].name);
        if (!row)
            continue;
        fprintf(out, "<tr><th scope=\"row\">");
        policy_write(out, report, p);
        fprintf(out, "</th><td class=\"raw\"><code>");
        report_text(out, row->settings);
        fprintf(out, "</code></td></tr>\n");
    }
    fprintf(out, "</tbody></table></div></section>\n");
}

/* Rows without a known metric are shown as JSON. */
static void others_write(FILE *out, const struct report *report)
{
    int n = 0;
    for (int i = 0; i < report->rows->n; i++) {
        const struct report_row *row = &report->rows->rows[i];
        if (*row->metric || strcmp(row->task, "heat") == 0)
            continue;
        if (!n++)
            fprintf(
                out,
                "<section id=\"others\"><h2>Other rows</h2><div class=\"scroll\"><table><thead><tr><th scope=\"col\">task</th><th "
                "scope=\"col\">policy</th><th scope=\"col\">row</th></tr></thead><tbody>\n");
        char *text = json_dumps(row->object, JSON_COMPACT);
        fprintf(out, "<tr><th scope=\"row\">");
        report_text(out, row->task);
        fprintf(out, "</th><td>");
        report_text(out, row->policy);
        fprintf(out, "</td><td class=\"raw\"><code>");
        report_text(out, text ? text : "");
        fprintf(out, "</code></td></tr>\n");
        free(text);
    }
    if (n)
        fprintf(out, "</tbody></table></div></section>\n");
}

/* The different values of a field in all rows: "a, b". */
static void distinct_write(FILE *out, const struct report *report, const char *key)
{
    for (int i = 0, n = 0; i < report->rows->n; i++) {
        const char *value = json_string_value(json_object_get(report->rows->rows[i].object, key));
        bool known = !value || !*value;
        for (int k = 0; k < i && !known; k++) {
            const char *other = json_string_value(json_object_get(report->rows->rows[k].object, key));
            known = other && strcmp(other, value) == 0;
        }
        if (!known) {
            fprintf(out, "%s", n++ ? ", " : "");
            report_text(out, value);
        }
    }
}

static void header_write(FILE *out, const struct report *report)
{
    const char *first = "", *last = "";
    int n_superseded = 0, n_policies = 0;
    for (int i = 0; i < report->rows->n; i++) {
        const struct report_row *row = &report->rows->rows[i];
        first = *row->date && (!*first || strcmp(row->date, first) < 0) ? row->date : first;
        last = *row->date && strcmp(row->date, last) > 0 ? row->date : last;
        n_superseded += row->superseded;
    }
    for (int i = 0; i < report->n_policies; i++)
        n_policies += report->policies[i].kind != REPORT_DENSE;
    fprintf(out, "<header><h1>Quality and bytes read</h1><p>%d policies on %d tasks, %d rows", n_policies, report->n_tasks,
            report->rows->n);
    if (n_superseded)
        fprintf(out, ", of which %d are not shown because another measurement replaces them", n_superseded);
    fprintf(out, ". Model: <b>");
    distinct_write(out, report, "model");
    fprintf(out, "</b>. butler ");
    distinct_write(out, report, "version");
    if (*first) {
        fprintf(out, ". Measured ");
        report_text(out, first);
        if (strcmp(first, last) != 0) {
            fprintf(out, " to ");
            report_text(out, last);
        }
    }
    fprintf(out, ".</p><nav aria-label=\"Contents\"><a href=\"#summary\">Summary</a>");
    for (int i = 0; i < report->n_tasks; i++)
        if (strcmp(report->tasks[i], "heat") != 0) {
            fprintf(out, " <a href=\"#task%d\">", i);
            report_text(out, task_title(report->tasks[i]));
            fprintf(out, "</a>");
        }
    if (has_settings(report))
        fprintf(out, " <a href=\"#settings\">Settings</a>");
    fprintf(out, " <a href=\"#reading\">How to read this</a></nav></header>\n<main>\n");
}

static const char reading[] =
    "<section id=\"reading\"><h2>How to read this</h2><dl>"
    "<dt>KV bytes read</dt><dd>Bytes of the cache that decode steps read, divided by those of a dense decode. Bytes that a policy "
    "reads to score tokens (page bounds, 1-bit keys, predicted keys, the oracle's keys) are included. It can exceed 100 %.</dd>"
    "<dt>Budget</dt><dd>Up to 100 %: tokens per head as a share of the current length. The bytes can differ: dense layers "
    "and the metric's bytes are added.</dd>"
    "<dt>Dense</dt><dd>The policy <code>full</code>, drawn as a line; the band beside it is within 2 % of it.</dd>"
    "<dt>Intervals</dt><dd>95 %. Where two intervals overlap, the order of the points is not reliable.</dd>"
    "<dt>Order</dt><dd>Policies are ordered by the best quality, relative to dense and at most 1, that they reach within a limit "
    "of bytes, averaged over limits from 0 to 100 %, minus the mean of all policies; each task counts once. The first six have "
    "colours. The order says nothing about policies whose intervals overlap. <code>oracle</code> selects by the true attention and "
    "<code>random</code> selects random tokens: they are bounds and "
    "are not ranked.</dd></dl></section>\n";

void report_page_write(FILE *out, const struct report *report)
{
    fprintf(out,
            "<!DOCTYPE html>\n<html xmlns=\"http://www.w3.org/1999/xhtml\" lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<meta name=\"color-scheme\" "
            "content=\"light dark\"/>\n"
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
            "'unsafe-inline'\"/>\n<title>butler: quality and bytes read</title>\n<style>\n%s</style>\n</head>\n<body>\n",
            report_style);
    header_write(out, report);
    summary_write(out, report);
    for (int i = 0; i < report->n_tasks; i++)
        section_write(out, report, i);
    report_tokens_write(out, report);
    settings_write(out, report);
    others_write(out, report);
    fprintf(out, "%s</main>\n<script>\n%s</script>\n</body>\n</html>\n", reading, report_script);
}
