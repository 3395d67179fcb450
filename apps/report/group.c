/* Groups and ranks the rows: comparable rows become charts, a policy's budgets become a series, and policies are ordered by the
 * quality that they reach for the bytes they read. Nothing here draws. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static const char *const lower_is_better[] = {"ppl", "bpb", "nll", "loss", "seconds", "ms", "kl"};
static const char *const shares[] = {
    "accuracy",     "coverage", "acc_norm",  "f1",         "rouge_1",  "rouge_2", "rouge_l",
    "em",           "edit_sim", "recall",    "mass",       "page_hit", "reuse",   "top_half_accuracy",
    "string_match", "sparsity", "top_tenth", "first_norm", "top_norm"};

/* Metrics for which `full` is no reference: it reads every token, so it does not classify them. */
static const char *const without_dense[] = {"top_half_accuracy", "page_hit",   "reuse",    "correlation",     "sparsity",
                                            "top_tenth",         "first_norm", "top_norm", "rank_correlation"};
/* Tasks with texts of different lengths: a row's length is that of the longest item, so rows are not grouped by it. */
static const char *const lengths_vary[] = {"coref", "kv", "lines", "mc", "longbench", "summary"};

static bool among(const char *word, const char *const *words, int n)
{
    for (int i = 0; i < n; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

/* Grows an array, whose capacity doubles, by one element. */
static void *grow(void *array, int n, size_t size)
{
    if (n & (n - 1))
        return array;
    void *grown = report_alloc(n ? (size_t)n * 2 : 1, size);
    if (n)
        memcpy(grown, array, (size_t)n * size);
    free(array);
    return grown;
}

static bool same_number(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

bool report_same_model(const char *name, const char *fingerprint, const char *other_name, const char *other_fingerprint)
{
    return strcmp(name, other_name) == 0 && (!*fingerprint || !*other_fingerprint || strcmp(fingerprint, other_fingerprint) == 0);
}

static struct report_chart *chart_of(struct report *report, const struct report_row *row)
{
    double length = among(row->task, lengths_vary, BUTLER_COUNT(lengths_vary)) ? NAN : row->length;
    for (int i = 0; i < report->n_charts; i++) {
        struct report_chart *chart = &report->charts[i];
        if (strcmp(chart->task, row->task) == 0 && strcmp(chart->subset, row->subset) == 0 &&
            strcmp(chart->metric, row->metric) == 0 && strcmp(chart->data, row->data) == 0 &&
            strcmp(chart->config, row->config) == 0 &&
            report_same_model(chart->model, chart->fingerprint, row->model, row->fingerprint) && same_number(chart->length, length))
            return chart;
    }
    report->charts = grow(report->charts, report->n_charts, sizeof *report->charts);
    struct report_chart *chart = &report->charts[report->n_charts++];
    *chart = (struct report_chart){.task = row->task,
                                   .subset = row->subset,
                                   .metric = row->metric,
                                   .data = row->data,
                                   .config = row->config,
                                   .model = row->model,
                                   .fingerprint = row->fingerprint,
                                   .length = length,
                                   .lower = among(row->metric, lower_is_better, BUTLER_COUNT(lower_is_better)),
                                   .share = among(row->metric, shares, BUTLER_COUNT(shares))};
    return chart;
}

static enum report_kind kind_of(const char *family)
{
    static const struct {
        const char *name;
        enum report_kind kind;
    } references[] = {{"full", REPORT_DENSE}, {"oracle", REPORT_UPPER}, {"random", REPORT_LOWER}};
    size_t n = strcspn(family, ":+");
    for (int i = 0; i < BUTLER_COUNT(references); i++)
        if (strlen(references[i].name) == n && strncmp(family, references[i].name, n) == 0)
            return references[i].kind;
    return REPORT_POLICY;
}

static int policy_of(struct report *report, const char *family)
{
    for (int i = 0; i < report->n_policies; i++)
        if (strcmp(report->policies[i].name, family) == 0)
            return i;
    report->policies = grow(report->policies, report->n_policies, sizeof *report->policies);
    report->policies[report->n_policies] =
        (struct report_policy){.name = family, .kind = kind_of(family), .score = NAN, .colour = REPORT_MARK_OTHER};
    return report->n_policies++;
}

/* Of two rows of the same measurement, the one with more items counts, else the one that was measured beside `full`, else the
 * later. */
static bool supersedes(const struct report_row *later, const struct report_row *earlier)
{
    if (later->n != earlier->n)
        return !(later->n < earlier->n);
    return !isnan(later->difference) || isnan(earlier->difference);
}

static void add_row(struct report *report, struct report_row *row)
{
    struct report_chart *chart = chart_of(report, row);
    int policy = policy_of(report, row->family);
    struct report_series *series = NULL;
    for (int i = 0; i < chart->n && !series; i++)
        if (chart->series[i].policy == policy)
            series = &chart->series[i];
    if (!series) {
        chart->series = grow(chart->series, chart->n, sizeof *chart->series);
        series = &chart->series[chart->n++];
        *series = (struct report_series){.policy = policy, .area = NAN};
    }
    for (int i = 0; i < series->n; i++) {
        struct report_row *other = (struct report_row *)series->rows[i];
        if (strcmp(other->policy, row->policy) != 0 || !same_number(other->budget, row->budget))
            continue;
        if (supersedes(row, other)) {
            other->superseded = true;
            series->rows[i] = row;
        } else {
            row->superseded = true;
        }
        return;
    }
    series->rows = grow(series->rows, series->n, sizeof(void *));
    series->rows[series->n++] = row;
}

double report_dense(const struct report_chart *chart, const struct report_row *row)
{
    if (!chart->dense)
        return NAN;
    return isnan(row->difference) ? chart->dense->value : row->value - row->difference;
}

double report_relative(const struct report_chart *chart, const struct report_row *row)
{
    double dense = report_dense(chart, row), above = chart->lower ? dense : row->value, below = chart->lower ? row->value : dense;
    return below > 0 && above >= 0 ? above / below : NAN;
}

bool report_is_near(const struct report_chart *chart, const struct report_row *row)
{
    double dense = report_dense(chart, row);
    return chart->lower ? row->value <= (1 + REPORT_NEAR) * dense : row->value >= (1 - REPORT_NEAR) * dense;
}

const struct report_series *report_series_find(const struct report_chart *chart, int policy)
{
    for (int i = 0; i < chart->n; i++)
        if (chart->series[i].policy == policy)
            return &chart->series[i];
    return NULL;
}

static int by_bytes(const void *a, const void *b)
{
    const struct report_row *x = *(const struct report_row *const *)a, *y = *(const struct report_row *const *)b;
    /* Rows without kv_read come last. */
    double p = isnan(x->kv_read) ? INFINITY : x->kv_read, q = isnan(y->kv_read) ? INFINITY : y->kv_read;
    if (p != q)
        return p < q ? -1 : 1;
    if (x->budget != y->budget && !isnan(x->budget) && !isnan(y->budget))
        return x->budget < y->budget ? -1 : 1;
    return x->line - y->line;
}

static void judge_series(const struct report_chart *chart, struct report_series *series)
{
    double best = 0, at = 0;
    qsort(series->rows, (size_t)series->n, sizeof(void *), by_bytes);
    if (!chart->dense)
        return;
    series->area = 0;
    for (int i = 0; i < series->n; i++) {
        const struct report_row *row = series->rows[i];
        double quality = report_relative(chart, row);
        if (isnan(row->kv_read) || isnan(quality))
            continue;
        if (row->kv_read < 1) {
            series->area += best * (row->kv_read - at);
            at = row->kv_read;
            best = fmax(best, fmin(quality, 1));
        }
        if (report_is_near(chart, row) && !series->cheapest)
            series->cheapest = row;
    }
    series->area += best * (1 - at);
}

static void judge_chart(const struct report *report, struct report_chart *chart)
{
    bool reference = !among(chart->metric, without_dense, BUTLER_COUNT(without_dense));
    for (int i = 0; i < chart->n && reference; i++) {
        const struct report_series *series = &chart->series[i];
        if (report->policies[series->policy].kind != REPORT_DENSE)
            continue;
        for (int k = 0; k < series->n; k++)
            if (!isnan(series->rows[k]->value) && (!chart->dense || supersedes(series->rows[k], chart->dense)))
                chart->dense = series->rows[k];
    }
    for (int i = 0; i < chart->n; i++)
        judge_series(chart, &chart->series[i]);
}

/* A policy's area minus the mean area of all policies of the chart, averaged so that each task counts once. */
static void score_policy(const struct report *report, int policy)
{
    double sum = 0;
    int n_tasks = 0;
    for (int t = 0; t < report->n_tasks; t++) {
        double task_sum = 0;
        int n = 0;
        for (int i = 0; i < report->n_charts; i++) {
            const struct report_chart *chart = &report->charts[i];
            const struct report_series *mine = report_series_find(chart, policy);
            if (strcmp(chart->task, report->tasks[t]) != 0 || !mine || isnan(mine->area))
                continue;
            double all = 0;
            int n_all = 0;
            for (int k = 0; k < chart->n; k++)
                if (report->policies[chart->series[k].policy].kind == REPORT_POLICY) {
                    all += chart->series[k].area;
                    n_all++;
                }
            task_sum += mine->area - (n_all ? all / n_all : 0);
            n++;
        }
        if (n) {
            sum += task_sum / n;
            n_tasks++;
        }
    }
    report->policies[policy].score = n_tasks ? sum / n_tasks : NAN;
}

static int by_rank(const void *a, const void *b)
{
    static const int order[] = {[REPORT_DENSE] = 0, [REPORT_UPPER] = 1, [REPORT_POLICY] = 2, [REPORT_LOWER] = 3};
    const struct report_policy *p = a, *q = b;
    if (order[p->kind] != order[q->kind])
        return order[p->kind] - order[q->kind];
    double x = isnan(p->score) ? -INFINITY : p->score, y = isnan(q->score) ? -INFINITY : q->score;
    if (x != y)
        return x > y ? -1 : 1;
    return strcmp(p->name, q->name);
}

static int by_policy(const void *a, const void *b)
{
    return ((const struct report_series *)a)->policy - ((const struct report_series *)b)->policy;
}

/* Sorting moves the policies, so the indices in the series are updated. */
static void rank(struct report *report)
{
    int n_colours = 0;
    const char **names = report_alloc((size_t)report->n_policies + 1, sizeof *names);
    for (int i = 0; i < report->n_policies; i++) {
        score_policy(report, i);
        names[i] = report->policies[i].name;
    }
    if (report->n_policies)
        qsort(report->policies, (size_t)report->n_policies, sizeof *report->policies, by_rank);
    for (int i = 0; i < report->n_policies; i++)
        if (report->policies[i].kind == REPORT_POLICY && n_colours < REPORT_N_COLOURS)
            report->policies[i].colour = n_colours++;
    for (int i = 0; i < report->n_charts; i++) {
        struct report_chart *chart = &report->charts[i];
        for (int k = 0; k < chart->n; k++)
            chart->series[k].policy = policy_of(report, names[chart->series[k].policy]);
        qsort(chart->series, (size_t)chart->n, sizeof *chart->series, by_policy);
    }
    free(names);
}

void report_build(struct report *report, struct report_rows *rows)
{
    *report = (struct report){.rows = rows};
    for (int i = 0; i < rows->n; i++) {
        struct report_row *row = &rows->rows[i];
        if (!among(row->task, report->tasks, report->n_tasks)) {
            report->tasks = grow(report->tasks, report->n_tasks, sizeof *report->tasks);
            report->tasks[report->n_tasks++] = row->task;
        }
        if (*row->metric && strcmp(row->task, "heat") != 0) /* heat has one text: its tokens are shown, no chart */
            add_row(report, row);
    }
    for (int i = 0; i < report->n_charts; i++)
        judge_chart(report, &report->charts[i]);
    rank(report);
}

void report_free(struct report *report)
{
    for (int i = 0; i < report->n_charts; i++) {
        for (int k = 0; k < report->charts[i].n; k++)
            free(report->charts[i].series[k].rows);
        free(report->charts[i].series);
    }
    free(report->charts);
    free(report->policies);
    free(report->tasks);
    *report = (struct report){0};
}
