/* Writes rows to the file of results and reads those that it already has, so that an interrupted run continues where it stopped.
 * The rows of one policy are written together; `more` is the number of rows that follow, so that a truncated file is recognised.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "model/model.h"
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

static void remember(json_t *done, const json_t *row)
{
    char *key = key_of(row);
    if (key)
        json_object_set_new(done, key, json_true());
    free(key);
}

/* Whether an object is a row that eval_results_append wrote. */
static bool is_row(const json_t *row)
{
    return json_is_string(json_object_get(row, "task")) && json_is_string(json_object_get(row, "policy")) &&
           json_is_string(json_object_get(row, "metric")) && json_is_integer(json_object_get(row, "more"));
}

/* Reads every complete line; *keep is the end of the last complete result. What follows it is cut off later, so every byte of the
 * file must be what this program writes. */
static int learn(struct eval_results *results, const char *bytes, size_t n, size_t *keep, struct butler_error *err)
{
    int line = 0;
    *keep = 0;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(bytes + at, '\n', n - at);
        json_error_t fault;
        if (!end) { /* a row that was not completely written: it begins as every row does */
            static const char begin[] = "{\"task\":\"";
            if (memcmp(bytes + at, begin, BUTLER_MIN(n - at, sizeof begin - 1)) != 0)
                return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not a row of results (nothing was changed)", results->path,
                                   line + 1);
            break;
        }
        line++;
        json_t *row = json_loadb(bytes + at, (size_t)(end - bytes) - at, 0, &fault);
        if (!is_row(row)) {
            const bool is_json = row != NULL;
            json_decref(row);
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not a row of results (nothing was changed): %s", results->path, line,
                               is_json ? "no task, policy, metric and more in it" : fault.text);
        }
        at = (size_t)(end - bytes) + 1;
        if (json_integer_value(json_object_get(row, "more")) == 0) {
            remember(results->done, row);
            *keep = at;
        }
        json_decref(row);
    }
    return 0;
}

static int read_results(struct eval_results *results, struct butler_error *err)
{
    const off_t size = lseek(results->fd, 0, SEEK_END);
    char *bytes = size < 0 ? NULL : malloc((size_t)size + 1);
    size_t keep = 0;
    int code = bytes ? 0 : butler_fail(err, BUTLER_ERROR_IO, "%s: %s", results->path, strerror(errno));
    for (off_t at = 0; code == 0 && at < size;) {
        const ssize_t n = pread(results->fd, bytes + at, (size_t)(size - at), at);
        if (n <= 0)
            code = butler_fail(err, BUTLER_ERROR_IO, "%s: %s", results->path, n < 0 ? strerror(errno) : "it shrank");
        at += n;
    }
    if (code == 0)
        code = learn(results, bytes, (size_t)size, &keep, err);
    if (code == 0 && keep < (size_t)size && ftruncate(results->fd, (off_t)keep) < 0)
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: %s", results->path, strerror(errno));
    free(bytes);
    return code;
}

int eval_results_open(struct eval_results *results, const char *path, struct butler_error *err)
{
    *results = (struct eval_results){.path = path, .fd = -1, .done = json_object()};
    if (!path)
        return 0;
    results->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (results->fd < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: %s", path, strerror(errno));
    if (flock(results->fd, LOCK_EX | LOCK_NB) < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: another run is writing to it", path);
    return read_results(results, err);
}

void eval_results_close(struct eval_results *results)
{
    if (results->path && results->fd >= 0)
        close(results->fd);
    json_decref(results->done);
    *results = (struct eval_results){.fd = -1};
}

int eval_results_append(struct eval_results *results, const json_t *rows, struct butler_error *err)
{
    char *text = NULL;
    size_t n_text = 0, i;
    json_t *row;
    if (!results->path)
        return 0;
    FILE *memory = open_memstream(&text, &n_text);
    if (!memory)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a row", results->path);
    json_array_foreach(rows, i, row)
    {
        json_dumpf(row, memory, JSON_COMPACT | JSON_REAL_PRECISION(9));
        fputc('\n', memory);
    }
    int code = fclose(memory) == 0 ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a row", results->path);
    for (size_t at = 0; code == 0 && at < n_text;) {
        const ssize_t n = write(results->fd, text + at, n_text - at);
        if (n < 0 && errno != EINTR)
            code = butler_fail(err, BUTLER_ERROR_IO, "%s: %s", results->path, strerror(errno));
        at += n > 0 ? (size_t)n : 0;
    }
    if (code == 0 && fsync(results->fd) < 0 && errno != EINVAL && errno != EROFS) /* EINVAL: a pipe, a device */
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: %s", results->path, strerror(errno));
    free(text);
    return code;
}

/* ------------------------------------------------------------------------------------------------- rows */

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

/* The fields that name a measurement. */
static json_t *name_fields(const struct eval_run *run, const struct eval_policy *policy)
{
    const struct eval_params *params = run->params;
    static const char *const kv_types[BUTLER_N_KV_TYPES] = {
        [BUTLER_KV_F16] = "f16", [BUTLER_KV_F32] = "f32", [BUTLER_KV_Q8_0] = "q8_0"};
    char fingerprint[24], data[64] = "", config[512];
    int at =
        snprintf(config, sizeof config, "mode=%s,kv-type=%s", run->simulate ? "simulate" : "prefill", kv_types[params->kv_type]);
    for (int i = 0; run->task->options && run->task->options[i].name && at < (int)sizeof config; i++)
        at += snprintf(config + at, sizeof config - (size_t)at, ",%s=%s", run->task->options[i].name, run->option_values[i]);
    struct butler_predictor_info predictor;
    if (policy->parsed.metric && policy->parsed.metric->predictor && at < (int)sizeof config &&
        butler_predictor_describe(run->engine, policy->parsed.metric->predictor, &predictor))
        snprintf(config + at, sizeof config - (size_t)at, ",predictor=%" PRIu64 "/%" PRId64 "/%.9g", predictor.n_params,
                 predictor.n_tokens, predictor.loss);
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, run->model->fingerprint);
    if (params->data) {
        const char *slash = strrchr(params->data, '/');
        snprintf(data, sizeof data, "%.40s#%016" PRIx64, slash ? slash + 1 : params->data, run->data_digest);
    }
    return json_pack("{s:s, s:s*, s:s, s:s, s:f, s:i, s:i, s:I, s:s, s:s, s:s}", "task", run->task->name, "subset", run->subset,
                     "model", params->model_name, "policy", policy->text, "budget", policy->budget, "length", run->length, "limit",
                     run->limit, "seed", (json_int_t)run->seed, "fingerprint", fingerprint, "data", data, "config", config);
}

bool eval_results_has(const struct eval_results *results, const struct eval_run *run, const struct eval_policy *policy)
{
    json_t *row = name_fields(run, policy);
    char *key = row ? key_of(row) : NULL;
    const bool has = key && json_object_get(results->done, key);
    free(key);
    json_decref(row);
    return has;
}

static json_t *cost_fields(const struct eval_cost *cost)
{
    const double n = cost->n_decode ? (double)cost->n_decode : 1;
    const double read = (double)(cost->kv_bytes + cost->metric_bytes);
    char date[32];
    const time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:f, s:{s:f, s:f, s:f}, s:f, s:s, s:s}", "kv_read",
                     cost->full_kv_bytes ? read / (double)cost->full_kv_bytes : 0.0, "bytes", "kv", (double)cost->kv_bytes / n,
                     "metric", (double)cost->metric_bytes / n, "full_kv", (double)cost->full_kv_bytes / n, "seconds", cost->seconds,
                     "date", date, "version", BUTLER_VERSION);
}

json_t *eval_make_rows(const struct eval_run *run, const struct eval_policy *policy, const double *values,
                       const struct eval_cost *cost, struct butler_error *err)
{
    struct eval_row rows[EVAL_MAX_ROWS] = {{0}};
    const int n = run->task->rows(run, values, rows, err);
    json_t *out = n < 0 ? NULL : json_array();
    for (int i = 0; i < n && out; i++) {
        json_t *row = name_fields(run, policy), *costs = cost_fields(cost);
        json_object_set_new(row, "metric", json_string(rows[i].metric));
        json_object_set_new(row, "value", number(rows[i].value));
        json_object_set_new(row, "ci", json_pack("[o, o]", number(rows[i].lo), number(rows[i].hi)));
        json_object_set_new(row, "n", json_integer(rows[i].n));
        if (row && costs)
            json_object_update(row, costs);
        json_decref(costs);
        if (rows[i].detail && cost->units_selected > 0) {
            const double hit = (double)cost->units_reused / (double)cost->units_selected;
            json_object_set_new(rows[i].detail, "page_hit", json_real(hit));
            json_object_set_new(rows[i].detail, "reuse", json_real(1 - hit));
        }
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
