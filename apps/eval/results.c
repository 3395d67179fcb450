/* The file of results: rows, those that it already has, and what identifies them. The rows of one policy are written together;
 * `more` is the number of rows that follow, so that a truncated file is recognised. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "parts.h"

enum { N_KEYS = 9 };
/* The fields that identify a measurement. */
static const char *const keys[N_KEYS] = {"task", "policy", "budget", "length", "limit", "seed", "fingerprint", "data", "config"};

static char *key_of(const json_t *row)
{
    json_t *parts = json_array();
    for (int i = 0; i < N_KEYS; i++) {
        json_t *value = json_object_get(row, keys[i]);
        json_array_append(parts, value ? value : json_null());
    }
    char *text = json_dumps(parts, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    json_decref(parts);
    return text;
}

static bool is_complete(const json_t *rows)
{
    const json_t *last = json_array_get(rows, json_array_size(rows) - 1);
    return last && json_integer_value(json_object_get(last, "more")) == 0;
}

/* A row that eval_results_append wrote. Those of one policy are complete with the last, whose `more` is 0. */
static int take_row(void *user, json_t *row)
{
    struct eval_results *results = user;
    const json_t *more = json_object_get(row, "more");
    if (!json_is_string(json_object_get(row, "task")) || !json_is_string(json_object_get(row, "policy")) ||
        !json_is_string(json_object_get(row, "metric")) || !json_is_integer(more))
        return -1;
    char *key = key_of(row);
    json_t *rows = key ? json_object_get(results->done, key) : NULL;
    if (key && (!rows || is_complete(rows)))
        json_object_set_new(results->done, key, rows = json_array());
    json_array_append(rows, row);
    free(key);
    return json_integer_value(more) == 0;
}

int eval_results_open(struct eval_results *results, const char *path, struct butler_error *err)
{
    *results = (struct eval_results){.log = {.fd = -1}, .done = json_object()};
    if (!path)
        return 0;
    const struct eval_log_kind kind = {"{\"task\":\"", "no task, policy, metric and more in it", take_row, results};
    const int code = eval_log_open(&results->log, path, &kind, err);
    results->log.precision = 9;
    return code;
}

void eval_results_close(struct eval_results *results)
{
    eval_log_close(&results->log);
    json_decref(results->done);
}

int eval_results_append(struct eval_results *results, const json_t *rows, struct butler_error *err)
{
    return results->log.path ? eval_log_append(&results->log, rows, err) : 0;
}

/* ------------------------------------------------------------------------------------------------- rows */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* What else a measurement depends on. Owned; NULL: no memory. */
static char *config_text(const struct eval_run *run, const struct eval_policy *policy, const char *kv_type)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return NULL;
    fprintf(out, "mode=%s,kv-type=%s", run->simulate ? "simulate" : "prefill", kv_type);
    for (int i = 0; run->task->options && run->task->options[i].name; i++)
        if (strcmp(run->task->options[i].name, "memory") != 0 &&
            strcmp(run->task->options[i].name, "write") != 0) /* change nothing */
            fprintf(out, ",%s=%s", run->task->options[i].name, run->option_values[i]);
    if (run->params->activation_bits == 16) /* 8 is the default, and was so before rows said it */
        fprintf(out, ",prompt-precision=16");
    fputs(run->params->conditions ? run->params->conditions : "", out);
    if (run->params->centres && strcmp(policy->parts.name, "triattention") == 0)
        fprintf(out, ",centres=%016" PRIx64, run->params->centres);
    if (run->info->rope_scaling[0])
        fprintf(out, ",rope-scaling=%s", run->info->rope_scaling);
    struct butler_predictor_info predictor = {BUTLER_INIT(butler_predictor_info)};
    if (policy->parts.predictor && butler_predictor_describe(run->engine, policy->parts.predictor, &predictor))
        fprintf(out, ",predictor=%016" PRIx64, predictor.fingerprint);
    if (fclose(out) == 0)
        return text;
    free(text);
    return NULL;
}

/* Files' names need not be UTF-8, nor what %.40s leaves of one. */
static json_t *named(const char *name)
{
    return eval_text(name, strlen(name));
}

/* The fields that name a measurement. */
static json_t *name_fields(const struct eval_run *run, const struct eval_policy *policy)
{
    const struct eval_params *params = run->params;
    static const char *const kv_types[BUTLER_N_KV_TYPES] = {
        [BUTLER_KV_F16] = "f16", [BUTLER_KV_F32] = "f32", [BUTLER_KV_Q8_0] = "q8_0"};
    char fingerprint[24], data[64] = "", *config = config_text(run, policy, kv_types[params->kv_type]);
    uint64_t whole;
    if (!config || butler_model_fingerprint(run->model, &whole, NULL) < 0) {
        free(config);
        return NULL;
    }
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, whole);
    if (run->data_digest) { /* of --data, or of other files, which have no name here */
        const char *name = run->reads_data ? params->data : "", *slash = strrchr(name, '/');
        snprintf(data, sizeof data, "%.40s#%016" PRIx64, slash ? slash + 1 : name, run->data_digest);
    }
    json_t *row = json_pack("{s:s, s:s*, s:o, s:o, s:f, s:i, s:i, s:I, s:s, s:o, s:o}", "task", run->task->name, "subset",
                            run->subset, "model", named(params->model_name), "policy", named(policy->text), "budget",
                            policy->budget, "length", run->length, "limit", run->limit, "seed", (json_int_t)run->seed,
                            "fingerprint", fingerprint, "data", named(data), "config", named(config));
    free(config);
    return row;
}

char *eval_items_key(const struct eval_run *run, const struct eval_policy *policy)
{
    json_t *row = name_fields(run, policy);
    json_object_set_new(row, "length", json_integer(run->params->length)); /* without --length the row's follows from all items */
    json_object_set_new(row, "limit", json_null());
    char *key = row ? key_of(row) : NULL;
    json_decref(row);
    return key;
}

int eval_results_has(const struct eval_results *results, const struct eval_run *run, const struct eval_policy *policy,
                     const json_t **rows)
{
    json_t *row = name_fields(run, policy);
    char *key = row ? key_of(row) : NULL;
    const bool known = key != NULL;
    *rows = key ? json_object_get(results->done, key) : NULL;
    free(key);
    json_decref(row);
    return known ? *rows && is_complete(*rows) : BUTLER_ERROR_MEMORY;
}

static double sum_of(const double *x)
{
    double sum = 0;
    for (int i = 0; i < EVAL_CURVE; i++)
        sum += x[i];
    return sum;
}

/* Shares of units that the step before selected too, and of the best tokens that were read, along the texts. */
static json_t *curve(const struct eval_cost *cost)
{
    json_t *out = json_array();
    for (int i = 0; i < EVAL_CURVE; i++)
        if (cost->selected[i] > 0 || cost->wanted[i] > 0)
            json_array_append_new(out, json_pack("{s:i, s:o, s:o}", "part", i, "found", number(cost->found[i] / cost->wanted[i]),
                                                 "page_hit", number(cost->reused[i] / cost->selected[i])));
    return out;
}

static json_t *cost_fields(const struct eval_cost *cost)
{
    const double n = cost->n_decode > 0 ? cost->n_decode : 1;
    const double selected = sum_of(cost->selected), hit = sum_of(cost->reused) / selected;
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:f, s:{s:f, s:f, s:f}, s:o, s:o, s:o, s:o, s:o, s:o, s:f, s:s, s:s, s:s}", "kv_read",
                     cost->full_kv_bytes > 0 ? (cost->kv_bytes + cost->metric_bytes) / cost->full_kv_bytes : 0.0, "bytes", "kv",
                     cost->kv_bytes / n, "metric", cost->metric_bytes / n, "full_kv", cost->full_kv_bytes / n, "found",
                     number(sum_of(cost->found) / sum_of(cost->wanted)), "page_hit", number(hit), "reuse", number(1 - hit), "kl",
                     number(cost->kl / cost->compared), "agreement", number(cost->agreed / cost->compared), "curve", curve(cost),
                     "seconds", cost->seconds, "date", date, "version", BUTLER_VERSION, "commit", eval_commit());
}

json_t *eval_make_rows(const struct eval_run *run, const struct eval_policy *policy, const double *values,
                       const struct eval_cost *cost, const struct eval_base *base, struct butler_error *err)
{
    struct eval_difference differences[EVAL_MAX_ROWS];
    const bool compares = base->values && base->policy != policy;
    struct eval_row rows[EVAL_MAX_ROWS] = {{0}};
    int n = run->task->rows(run, values, rows, err);
    if (n > 0 && compares && eval_paired(run, values, base->values, differences, err) < 0) {
        for (int i = 0; i < n; i++)
            json_decref(rows[i].detail);
        n = BUTLER_ERROR_MEMORY;
    }
    json_t *out = n < 0 ? NULL : json_array();
    for (int i = 0; i < n && out; i++) {
        json_t *row = name_fields(run, policy), *costs = cost_fields(cost);
        json_object_set_new(row, "settings", named(policy->parts.text));
        json_object_set_new(row, "metric", json_string(rows[i].metric));
        json_object_set_new(row, "value", number(rows[i].value));
        json_object_set_new(row, "ci", json_pack("[o, o]", number(rows[i].lo), number(rows[i].hi)));
        json_object_set_new(row, "n", json_integer(rows[i].n));
        json_object_set_new(row, "items", json_integer(run->items.n));
        if (compares)
            json_object_set_new(row, "difference",
                                json_pack("{s:o, s:o, s:[o, o]}", "to", named(base->policy->text), "value",
                                          number(differences[i].value), "ci", number(differences[i].lo),
                                          number(differences[i].hi)));
        if (row && costs)
            json_object_update(row, costs);
        json_decref(costs);
        if (json_object_get(rows[i].detail, "tokens")) {
            json_object_update(row, rows[i].detail);
            json_decref(rows[i].detail);
        } else if (rows[i].detail)
            json_object_set_new(row, "detail", rows[i].detail);
        json_object_set_new(row, "more", json_integer(n - 1 - i));
        if (json_array_append_new(out, row) < 0) {
            json_decref(out);
            out = NULL;
        }
    }
    if (n >= 0 && !out)
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a row");
    return out;
}
