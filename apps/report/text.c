/* Text and numbers of the report. Every string from a file goes through report_text. */
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

void *report_alloc(size_t count, size_t size)
{
    size_t n_bytes;
    struct butler_error err = {0};
    void *memory = butler_mul_size(count, size, &n_bytes) ? butler_alloc(n_bytes, &err) : NULL;
    if (!memory) {
        fprintf(stderr, "butler: out of memory\n");
        exit(1);
    }
    return memory;
}

/* One character of UTF-8; its length in bytes. What is not UTF-8 counts as one byte. */
static size_t decode(const unsigned char *text, unsigned *out)
{
    size_t n = text[0] < 0x80 ? 1 : text[0] >= 0xf0 ? 4 : text[0] >= 0xe0 ? 3 : text[0] >= 0xc2 ? 2 : 0;
    *out = 0xfffd;
    if (n == 1)
        *out = text[0];
    if (n <= 1)
        return 1;
    unsigned value = text[0] & (0x7fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 1;
        value = value << 6 | (text[i] & 0x3fu);
    }
    *out = value;
    return n;
}

/* Characters that XML forbids, and those that change the direction of the text. */
static bool forbidden(unsigned c)
{
    return (c < 0x20 && c != '\t' && c != '\n') || (c >= 0x7f && c < 0xa0) || (c >= 0xd800 && c < 0xe000) ||
           (c & 0xfffe) == 0xfffe || c > 0x10ffff || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void report_text(FILE *out, const char *text)
{
    for (const unsigned char *at = (const unsigned char *)text; *at;) {
        unsigned c;
        size_t n = decode(at, &c);
        if (c == 0xfffd || forbidden(c))
            fputs("\xef\xbf\xbd", out);
        else if (c == '&')
            fputs("&amp;", out);
        else if (c == '<')
            fputs("&lt;", out);
        else if (c == '>')
            fputs("&gt;", out);
        else if (c == '"')
            fputs("&quot;", out);
        else if (c == '\'')
            fputs("&#39;", out);
        else
            fwrite(at, 1, n, out);
        at += n;
    }
}

const char *report_number(char *out, size_t n_out, double value, bool share)
{
    if (isnan(value))
        snprintf(out, n_out, "\xe2\x80\x93");
    else if (share)
        snprintf(out, n_out, "%.*f\xc2\xa0%%", fabs(value) < 0.0995 ? 1 : 0, 100 * value);
    else if (fabs(value) >= 1e6)
        snprintf(out, n_out, "%.2e", value);
    else
        snprintf(out, n_out, "%.*f", fabs(value) >= 1000 ? 0 : fabs(value) >= 100 ? 1 : fabs(value) >= 10 ? 2 : 3, value);
    return out;
}

const char *report_count(char *out, size_t n_out, double value)
{
    char digits[64];
    size_t at = 0;
    if (isnan(value) || fabs(value) >= 1e15) {
        snprintf(out, n_out, "\xe2\x80\x93");
        return out;
    }
    int n = snprintf(digits, sizeof digits, "%.0f", value);
    for (int i = 0; i < n && at + 2 < n_out; i++) {
        if (i > (digits[0] == '-') && (n - i) % 3 == 0)
            out[at++] = ',';
        out[at++] = digits[i];
    }
    out[at] = 0;
    return out;
}

const char *report_budget(char *out, size_t n_out, double budget)
{
    char number[64];
    if (isnan(budget))
        snprintf(out, n_out, "own");
    else if (budget <= 1)
        snprintf(out, n_out, "%.3g\xc2\xa0%%", 100 * budget);
    else
        snprintf(out, n_out, "%s tokens", report_count(number, sizeof number, budget));
    return out;
}

const char *report_metric_name(const char *metric)
{
    static const struct {
        const char *metric, *name;
    } names[] = {{"ppl", "perplexity"},
                 {"bpb", "bits per byte"},
                 {"acc_norm", "accuracy, normalised by length"},
                 {"f1", "F1"},
                 {"rouge_1", "Rouge-1"},
                 {"rouge_2", "Rouge-2"},
                 {"rouge_l", "Rouge-L"},
                 {"em", "exact match"},
                 {"string_match", "expected strings found"},
                 {"edit_sim", "edit similarity"},
                 {"recall", "recall of the tokens with most attention"},
                 {"mass", "attention mass covered"},
                 {"top_half_accuracy", "tokens classified into the correct half"},
                 {"sparsity", "attention weights below 1 % of their row's largest"},
                 {"top_tenth", "attention held by the most attended tenth of the tokens"},
                 {"first_norm", "norm of the first token's value"},
                 {"top_norm", "norm of the values with the most attention"},
                 {"rank_correlation", "rank correlation of attention and norms"},
                 {"page_hit", "page hit rate"},
                 {"reuse", "share of selected tokens that were selected in the step before"}};
    for (int i = 0; i < BUTLER_COUNT(names); i++)
        if (strcmp(names[i].metric, metric) == 0)
            return names[i].name;
    return metric;
}

/* The part after the last slash. */
static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* Whether a chart needs its model's name: others are of another model. */
static bool names_model(const struct report *report, const struct report_chart *chart)
{
    for (int i = 0; i < report->n_charts && *chart->model; i++)
        if (!report_same_model(report->charts[i].model, report->charts[i].fingerprint, chart->model, chart->fingerprint))
            return true;
    return false;
}

/* Whether another chart is of another file with the same name. */
static bool names_file(const struct report *report, const struct report_chart *chart)
{
    for (int i = 0; i < report->n_charts; i++)
        if (strcmp(report->charts[i].model, chart->model) == 0 &&
            !report_same_model(report->charts[i].model, report->charts[i].fingerprint, chart->model, chart->fingerprint))
            return true;
    return false;
}

void report_chart_data(FILE *out, const struct report *report, const struct report_chart *chart)
{
    char number[64];
    const char *name = base_name(chart->data);
    const size_t n_name = strcspn(name, "#"); /* a digest follows */
    bool named = false;
    if (*chart->subset && !memmem(name, n_name, chart->subset, strlen(chart->subset))) {
        report_text(out, chart->subset);
        named = true;
    }
    if (n_name > 0) {
        char data[256];
        snprintf(data, sizeof data, "%.*s", (int)BUTLER_MIN(n_name, sizeof data - 1), name);
        fprintf(out, "%s", named ? ", " : "");
        report_text(out, data);
        named = true;
    }
    if (!isnan(chart->length)) {
        fprintf(out, "%s%s tokens", named ? ", " : "", report_count(number, sizeof number, chart->length));
        named = true;
    }
    if (names_model(report, chart)) {
        fprintf(out, "%s", named ? ", " : "");
        report_text(out, base_name(chart->model));
        if (names_file(report, chart)) {
            fprintf(out, ", file ");
            report_text(out, chart->fingerprint);
        }
    }
}

void report_chart_title(FILE *out, const struct report *report, const struct report_chart *chart)
{
    report_text(out, report_metric_name(chart->metric));
    if (*chart->subset || *chart->data || !isnan(chart->length) || names_model(report, chart))
        fprintf(out, ": ");
    report_chart_data(out, report, chart);
}
