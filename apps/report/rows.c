/* Reads lines of JSON into rows and checks them. A field may be absent; one of the wrong type is an error, because the page must
 * not silently omit rows. */
#include "report.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"

static int bad(const struct report_row *row, struct butler_error *err, const char *key, const char *wanted)
{
    return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: \"%s\" must be %s", row->file, row->line, key, wanted);
}

static int take_string(struct report_row *row, const char *key, bool required, const char **out, struct butler_error *err)
{
    const json_t *value = json_object_get(row->object, key);
    *out = "";
    if (!required && (!value || json_is_null(value)))
        return 0;
    if (!value)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: \"%s\" is missing", row->file, row->line, key);
    if (!json_is_string(value) || (required && !json_string_length(value)))
        return bad(row, err, key, required ? "a string that is not empty" : "a string");
    *out = json_string_value(value);
    return 0;
}

static int take_number(struct report_row *row, const char *key, double min, double *out, struct butler_error *err)
{
    const json_t *value = json_object_get(row->object, key);
    *out = NAN;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_number(value))
        return bad(row, err, key, "a number");
    *out = json_number_value(value);
    if (*out < min)
        return bad(row, err, key, "0 or more");
    return 0;
}

double report_value(const json_t *value)
{
    return json_is_number(value) ? json_number_value(value) : NAN;
}

double report_field(const json_t *object, const char *key)
{
    return report_value(json_object_get(object, key));
}

/* The difference to `full`; one to another policy says nothing about dense. */
static void take_difference(struct report_row *row)
{
    const json_t *difference = json_object_get(row->object, "difference"), *ci = json_object_get(difference, "ci");
    const char *to = json_string_value(json_object_get(difference, "to"));
    const bool is_dense = to && strcmp(to, "full") == 0;
    row->difference = is_dense ? report_field(difference, "value") : NAN;
    row->difference_lo = is_dense ? report_value(json_array_get(ci, 0)) : NAN;
    row->difference_hi = is_dense ? report_value(json_array_get(ci, 1)) : NAN;
}

static int take_interval(struct report_row *row, struct butler_error *err)
{
    const json_t *ci = json_object_get(row->object, "ci");
    row->lo = row->hi = NAN;
    if (!ci || json_is_null(ci))
        return 0;
    if (!json_is_array(ci) || json_array_size(ci) != 2)
        return bad(row, err, "ci", "two numbers, [low, high]");
    const json_t *lo = json_array_get(ci, 0), *hi = json_array_get(ci, 1);
    if (json_is_null(lo) && json_is_null(hi))
        return 0;
    if (!json_is_number(lo) || !json_is_number(hi) || json_number_value(lo) > json_number_value(hi))
        return bad(row, err, "ci", "two numbers, [low, high]");
    row->lo = json_number_value(lo);
    row->hi = json_number_value(hi);
    return 0;
}

/* "quest:page=8,budget=0.1,group=mean" without the budget: "quest:page=8,group=mean". */
static char *family_of(const char *policy)
{
    char *family = report_alloc(strlen(policy) + 1, 1);
    size_t at = strcspn(policy, ":"), n = at;
    memcpy(family, policy, n);
    while (policy[at]) {
        const char *item = policy + at + 1;
        size_t length = strcspn(item, ",");
        if (length && strncmp(item, "budget=", 7) != 0 && strncmp(item, "mass=", 5) != 0) {
            family[n] = memchr(family, ':', n) ? ',' : ':';
            memcpy(family + n + 1, item, length);
            n += length + 1;
        }
        at += length + 1;
    }
    family[n] = 0;
    return family;
}

/* A policy's predictor is not a setting of the task: its rows are compared with those of policies without one. */
static void drop_predictor(struct report_row *row)
{
    const char *at = strstr(row->config, ",predictor=");
    if (!at)
        return;
    json_object_set_new(row->object, "config", json_stringn(row->config, (size_t)(at - row->config)));
    row->config = json_string_value(json_object_get(row->object, "config"));
}

static int take_fields(struct report_row *row, struct butler_error *err)
{
    int code;
    const char *settings;
    if ((code = take_string(row, "task", true, &row->task, err)) < 0 ||
        (code = take_string(row, "policy", true, &row->policy, err)) < 0 ||
        (code = take_string(row, "subset", false, &row->subset, err)) < 0 ||
        (code = take_string(row, "metric", false, &row->metric, err)) < 0 ||
        (code = take_string(row, "data", false, &row->data, err)) < 0 ||
        (code = take_string(row, "config", false, &row->config, err)) < 0 ||
        (code = take_string(row, "model", false, &row->model, err)) < 0 ||
        (code = take_string(row, "fingerprint", false, &row->fingerprint, err)) < 0 ||
        (code = take_string(row, "settings", false, &settings, err)) < 0 ||
        (code = take_string(row, "date", false, &row->date, err)) < 0)
        return code;
    if ((code = take_number(row, "budget", 0, &row->budget, err)) < 0 ||
        (code = take_number(row, "value", -INFINITY, &row->value, err)) < 0 ||
        (code = take_number(row, "n", 0, &row->n, err)) < 0 || (code = take_number(row, "length", 0, &row->length, err)) < 0 ||
        (code = take_number(row, "kv_read", 0, &row->kv_read, err)) < 0 || (code = take_interval(row, err)) < 0)
        return code;
    take_difference(row);
    drop_predictor(row);
    row->detail = json_object_get(row->object, "detail");
    if (row->detail && json_is_null(row->detail))
        row->detail = NULL;
    if (row->detail && !json_is_object(row->detail))
        return bad(row, err, "detail", "an object");
    row->family = family_of(row->policy);
    row->settings = family_of(settings);
    return 0;
}

static int take_line(struct report_rows *rows, const char *path, int line, const char *text, size_t n, struct butler_error *err)
{
    struct report_row row = {.file = path, .line = line};
    json_error_t parsed;
    row.object = json_loadb(text, n, JSON_REJECT_DUPLICATES, &parsed);
    if (!row.object)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not JSON: %s (column %d)", path, line, parsed.text, parsed.column);
    int code = json_is_object(row.object) ? take_fields(&row, err)
                                          : butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not a JSON object", path, line);
    if (code < 0) {
        json_decref(row.object);
        return code;
    }
    if (rows->n == rows->capacity) {
        int capacity = rows->capacity ? 2 * rows->capacity : 256;
        struct report_row *grown = report_alloc((size_t)capacity, sizeof *grown);
        if (rows->n)
            memcpy(grown, rows->rows, (size_t)rows->n * sizeof *grown);
        free(rows->rows);
        rows->rows = grown;
        rows->capacity = capacity;
    }
    rows->rows[rows->n++] = row;
    return 0;
}

int report_rows_read(struct report_rows *rows, const char *path, struct butler_error *err)
{
    int code = 0, before = rows->n;
    char *text = NULL;
    size_t capacity = 0;
    ssize_t n = 0;
    FILE *file = fopen(path, "rb");
    if (!file)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    errno = 0;
    for (int line = 1; code == 0 && (n = getline(&text, &capacity, file)) >= 0; line++)
        if (strspn(text, " \t\r\n") < (size_t)n)
            code = take_line(rows, path, line, text, (size_t)n, err);
    if (code == 0 && ferror(file))
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (code == 0 && rows->n == before)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: holds no rows", path);
    rows->n_files++;
    free(text);
    fclose(file);
    return code;
}

void report_rows_free(struct report_rows *rows)
{
    for (int i = 0; i < rows->n; i++) {
        json_decref(rows->rows[i].object);
        free(rows->rows[i].family);
        free(rows->rows[i].settings);
    }
    free(rows->rows);
    *rows = (struct report_rows){0};
}
