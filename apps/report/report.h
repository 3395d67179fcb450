/* From rows of `butler eval` to one page: rows.c reads and checks them, group.c groups and ranks them, page.c writes text and
 * tables, plot.c, maps.c, attention.c and tokens.c draw, style.c has the style sheet. Only the last six know HTML. */
#ifndef REPORT_H
#define REPORT_H

#include <jansson.h>
#include <stdbool.h>
#include <stdio.h>

#include "butler.h"

/* --------------------------------------------------------------------------------------------------- rows */

/* One line of results. Strings are borrowed from `object`, "" where absent; numbers are NAN where absent. */
struct report_row {
    const char *file; /* borrowed from the caller of report_rows_read */
    int line;
    json_t *object; /* owned */
    const char *task, *subset, *metric, *data, *config, *model, *fingerprint, *policy, *date;
    char *family;   /* the policy without its budget; owned */
    char *settings; /* every key of the policy, written out, without its budget; "" where the row does not say; owned */
    double budget, value, lo, hi, n, length, kv_read;
    double difference, difference_lo,
        difference_hi;    /* to `full` on the same items, and its interval; NAN: not measured beside it */
    const json_t *detail; /* an object, or NULL; borrowed */
    bool superseded;      /* another row of the same measurement has more items, or is later */
};

struct report_rows {
    int n, capacity, n_files;
    struct report_row *rows;
};

/* Appends the rows of a file, one JSON object a line. A bad line is an error naming the file, the line and the field; what
 * was appended before it stays. */
int report_rows_read(struct report_rows *rows, const char *path, struct butler_error *err);
void report_rows_free(struct report_rows *rows);

/* A JSON number, or the number of an object's key; NAN: it is none. */
double report_value(const json_t *value);
double report_field(const json_t *object, const char *key);

/* ------------------------------------------------------------------------------------------------- groups */

enum report_kind { REPORT_POLICY, REPORT_UPPER, REPORT_LOWER, REPORT_DENSE }; /* oracle, random and full are references */

enum {
    REPORT_N_COLOURS = 6, /* policies with a colour and a marker each */
};

/* A policy in one chart: its rows, by bytes read. */
struct report_series {
    int policy; /* of report.policies */
    int n;
    const struct report_row **rows; /* owned array */
    double area; /* the best quality, relative to dense and at most 1, within a limit of bytes, averaged over limits from none to
                    all; NAN without a dense row */
    const struct report_row *cheapest; /* that reads least among those within REPORT_NEAR of dense; NULL: none */
};

#define REPORT_NEAR 0.02

/* Whether two rows or charts may be of one model's file: rows of old versions have no fingerprint. */
bool report_same_model(const char *name, const char *fingerprint, const char *other_name, const char *other_fingerprint);

/* Comparable rows: one metric of one task, on the same data, length and model, with the same settings. */
struct report_chart {
    const char *task, *subset, *metric, *data, *config, *model, *fingerprint; /* borrowed from a row */
    double length;
    bool lower;                     /* the metric is better when lower */
    bool share;                     /* its values are fractions, shown in per cent */
    const struct report_row *dense; /* NULL: not measured */
    int n;
    struct report_series *series; /* in the order of report.policies */
};

/* A policy over all charts. */
struct report_policy {
    const char *name; /* a row's family; borrowed */
    enum report_kind kind;
    double score; /* its area minus the mean area of all policies of the chart, averaged over tasks; NAN: unknown */
    int colour;   /* below REPORT_N_COLOURS; -1: grey */
};

struct report {
    const struct report_rows *rows;
    int n_charts, n_policies, n_tasks;
    struct report_chart *charts;
    struct report_policy *policies; /* full and oracle first, then by score, the best first; random last */
    const char **tasks;             /* as they first occur */
};

/* Arranges rows, which must outlive the report; marks those that others supersede. */
void report_build(struct report *report, struct report_rows *rows);
void report_free(struct report *report);

/* The dense value on the items of a row: of those only, where it was measured beside `full`; NAN: there is no dense row. */
double report_dense(const struct report_chart *chart, const struct report_row *row);
/* A row's value as a share of that, or that of it where lower is better; NAN where this is not defined. */
double report_relative(const struct report_chart *chart, const struct report_row *row);
/* Whether a row loses at most REPORT_NEAR. */
bool report_is_near(const struct report_chart *chart, const struct report_row *row);
/* The same policy, metric and data, whatever the budget: the series of a policy in a chart, or NULL. */
const struct report_series *report_series_find(const struct report_chart *chart, int policy);

/* ---------------------------------------------------------------------------------------------- the page */

void report_page_write(FILE *out, const struct report *report);

/* Draws the details of a chart's rows: grids, maps, values by position. Writes nothing if there are none. */
void report_maps_write(FILE *out, const struct report *report, int chart);
/* Draws the parts "held" and "shown" of a row's details (tasks sparsity and norms), with ids that end in index. */
bool report_attention_has(const json_t *detail);
void report_attention_write(FILE *out, const json_t *detail, int index);
/* Which tokens each policy kept, from the rows of task "heat". */
void report_tokens_write(FILE *out, const struct report *report);

/* One curve: points of (x, y) with an interval, NAN where there is none; `mark` is a colour, or one of these. */
enum { REPORT_MARK_OTHER = -1, REPORT_MARK_UPPER = -2, REPORT_MARK_LOWER = -3, REPORT_MARK_DENSE = -4 };
struct report_curve {
    int policy, mark, n;
    const char *name;
    double *x, *y, *lo, *hi; /* [n] */
};

struct report_plot {
    char id[24]; /* of the element that small copies refer to */
    const char *title, *x_label, *y_label;
    bool share_x, share_y; /* numbers are written in per cent */
    bool log_x, log_y;     /* wanted; used if the values allow it */
    bool lower;            /* better is down */
    double dense;          /* drawn as a horizontal line with a band of REPORT_NEAR; NAN: none */
    int n;
    struct report_curve *curves;
};
void report_plot_write(FILE *out, const struct report_plot *plot);
/* The same plot, small, once for each curve, which is highlighted. After report_plot_write, on the same page. */
void report_plot_small(FILE *out, const struct report_plot *plot);
int report_mark(const struct report_policy *policy);
void report_mark_write(FILE *out, int mark); /* as a legend shows it */

/* The budgets of a chart's rows, ascending; -1 for a row without one. Returns the number of budgets. */
enum { REPORT_MAX_BUDGETS = 32 };
int report_budgets(const struct report_chart *chart, double *budgets, int max);
const struct report_row *report_row_at(const struct report_series *series, double budget); /* NULL: none */

/* Escaped text, for element content and attributes; what XML forbids, and control characters of text direction, become U+FFFD. */
void report_text(FILE *out, const char *text);
/* "25 %", "1,024 tokens", "-" into a buffer of the caller's, which is returned. */
const char *report_budget(char *out, size_t n_out, double budget);
const char *report_number(char *out, size_t n_out, double value, bool share);
const char *report_count(char *out, size_t n_out, double value); /* 12,345 */
/* The data of a chart: "test.txt, 1,024 tokens", the subset where the file's name does not say it, and the model if there are
 * several. The title has the metric before it: "perplexity: ...". */
void report_chart_data(FILE *out, const struct report *report, const struct report_chart *chart);
void report_chart_title(FILE *out, const struct report *report, const struct report_chart *chart);
const char *report_metric_name(const char *metric);

extern const char report_style[], report_script[];

/* Zeroed memory for count elements. Without memory the program prints an error and exits. */
void *report_alloc(size_t count, size_t size);

#endif
