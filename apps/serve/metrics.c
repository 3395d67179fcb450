/* /metrics: counters, gauges and histograms in Prometheus's text format. Names that begin with llamacpp: are those of llama.cpp's
 * server, which dashboards know. And /kv/trace: what recent texts read, step by step, as JSON. */
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"
#include "serve/trace.h"

static void put(struct butler_buffer *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct butler_buffer *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    serve_text_reserve(text, 512);
    const int n = vsnprintf(text->bytes + text->n, 512, format, args);
    text->n += n > 0 && n < 512 ? (size_t)n : 0;
    va_end(args);
}

static void put_head(struct butler_buffer *text, const char *name, const char *type, const char *help)
{
    put(text, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* label: name="value" with nothing around it, or "". */
static void put_histogram(struct butler_buffer *text, const char *name, const char *label, const double *bounds,
                          const struct serve_histogram *h)
{
    const char *comma = *label ? "," : "", *open = *label ? "{" : "", *close = *label ? "}" : "";
    uint64_t sum = 0;
    for (int i = 0; i < SERVE_BUCKETS - 1; i++)
        put(text, "%s_bucket{%s%sle=\"%g\"} %llu\n", name, label, comma, bounds[i], (unsigned long long)(sum += h->counts[i]));
    put(text, "%s_bucket{%s%sle=\"+Inf\"} %llu\n", name, label, comma, (unsigned long long)h->n);
    put(text, "%s_sum%s%s%s %.9g\n%s_count%s%s%s %llu\n", name, open, label, close, h->sum, name, open, label, close,
        (unsigned long long)h->n);
}

enum { POLICY_LABEL = 2 * SERVE_POLICY_NAME + 16 };

/* A policy as a label. */
static void label_policy(char label[POLICY_LABEL], const char *policy)
{
    char *out = stpcpy(label, "policy=\"");
    for (; *policy; policy++) {
        if (*policy == '"' || *policy == '\\')
            *out++ = '\\';
        *out++ = *policy == '\n' ? ' ' : *policy;
    }
    strcpy(out, "\"");
}

/* A counter by policy, of the policies for which it was measured: for which `measured` is not 0. */
static void put_counts(struct butler_buffer *text, const char *name, const char *help, const struct serve_policy_metrics *rows,
                       int n, double (*count)(const struct serve_policy_metrics *row),
                       double (*measured)(const struct serve_policy_metrics *row))
{
    char label[POLICY_LABEL];
    bool begun = false;
    for (int i = 0; i < n; i++) {
        if (measured(&rows[i]) <= 0)
            continue;
        if (!begun)
            put_head(text, name, "counter", help);
        begun = true;
        label_policy(label, rows[i].policy);
        put(text, "%s{%s} %.15g\n", name, label, count(&rows[i]));
    }
}

static void put_audits(struct butler_buffer *text, const char *name, const char *help, const struct serve_policy_metrics *rows,
                       int n, size_t at)
{
    char label[POLICY_LABEL];
    bool begun = false;
    for (int i = 0; i < n; i++) {
        const struct serve_histogram *h = (const struct serve_histogram *)((const char *)&rows[i] + at);
        if (h->n == 0) /* no audit looked at it: 0 would be a wrong answer */
            continue;
        if (!begun)
            put_head(text, name, "histogram", help);
        begun = true;
        label_policy(label, rows[i].policy);
        put_histogram(text, name, label, serve_share_bounds, h);
    }
}

#define COUNT(field)                                                                                                               \
    static double count_##field(const struct serve_policy_metrics *row)                                                            \
    {                                                                                                                              \
        return (double)row->field;                                                                                                 \
    }
COUNT(n_jobs)
COUNT(prompt_tokens)
COUNT(cached_tokens)
COUNT(read_bytes)
COUNT(dense_bytes)
COUNT(audit_s)
#undef COUNT

/* What jobs of each policy brought, what their decode steps read, and what audits found. */
static void put_policies(struct butler_buffer *text, struct serve_traces *traces)
{
    struct serve_policy_metrics *rows = serve_alloc(SERVE_POLICIES, sizeof *rows);
    const int n = serve_traces_policies(traces, rows);
    put_counts(text, "butler:policy_jobs_total", "Jobs whose prompts were read", rows, n, count_n_jobs, count_n_jobs);
    put_counts(text, "butler:policy_prompt_tokens_total", "Tokens of their prompts", rows, n, count_prompt_tokens, count_n_jobs);
    put_counts(text, "butler:policy_prompt_tokens_cached_total", "Of those, tokens that the prefix cache had", rows, n,
               count_cached_tokens, count_n_jobs);
    put_counts(text, "butler:policy_read_bytes_total", "Bytes that decode steps read: keys, values and metrics", rows, n,
               count_read_bytes, count_dense_bytes);
    put_counts(text, "butler:policy_dense_bytes_total", "Bytes that dense attention would have read", rows, n, count_dense_bytes,
               count_dense_bytes);
    put_counts(text, "butler:audit_seconds_total", "Time that audits took", rows, n, count_audit_s, count_audit_s);
    put_audits(text, "butler:audit_recall", "Of the tokens with the highest exact attention the share that was read", rows, n,
               offsetof(struct serve_policy_metrics, recall));
    put_audits(text, "butler:audit_mass", "Exact attention to the tokens that were read", rows, n,
               offsetof(struct serve_policy_metrics, mass));
    free(rows);
}

static void put_answers(struct butler_buffer *text, const struct serve_api *api)
{
    if (api->n_counts > 0)
        put_head(text, "butler:http_answers_total", "counter",
                 "Answers by endpoint and HTTP status; 499: the client went away before");
    for (int i = 0; i < api->n_counts; i++)
        put(text, "butler:http_answers_total{endpoint=\"%s\",status=\"%d\"} %llu\n", api->counts[i].path, api->counts[i].status,
            (unsigned long long)api->counts[i].n);
}

/* Where jobs were placed, if there is more than one device. */
static void put_devices(struct butler_buffer *text, const struct serve_devices *devices)
{
    const int n = serve_devices_count(devices);
    if (n == 1)
        return;
    put_head(text, "butler:device_jobs_total", "counter", "Jobs that each device was given");
    for (int i = 0; i < n; i++)
        put(text, "butler:device_jobs_total{device=\"%d\"} %llu\n", i, (unsigned long long)serve_devices_get(devices, i).n_jobs);
    put_head(text, "butler:device_texts", "gauge", "Texts of each device that run or wait");
    for (int i = 0; i < n; i++)
        put(text, "butler:device_texts{device=\"%d\"} %d\n", i, serve_devices_get(devices, i).n_texts);
    put_head(text, "butler:device_failing", "gauge",
             "1: a job failed within the last minute, as all do once a device is lost, and none succeeded since");
    for (int i = 0; i < n; i++)
        put(text, "butler:device_failing{device=\"%d\"} %d\n", i, serve_devices_get(devices, i).failing);
}

void serve_write_metrics(struct serve_api *api, struct butler_buffer *text)
{
    struct serve_metrics m;
    serve_devices_inspect(api->devices, &m, NULL, 0);
    const struct serve_params *params = serve_devices_params(api->devices);
    const double n_devices = serve_devices_count(api->devices);
    const struct {
        const char *name, *type, *help;
        double value;
    } rows[] = {
        {"llamacpp:prompt_tokens_total", "counter", "Prompt tokens that were read", (double)m.prompt_tokens},
        {"llamacpp:prompt_seconds_total", "counter", "Time from admission to the end of prompts", m.prompt_s},
        {"llamacpp:tokens_predicted_total", "counter", "Tokens that were generated", (double)m.generated_tokens},
        {"llamacpp:tokens_predicted_seconds_total", "counter", "Time from first tokens to the ends of answers", m.decode_s},
        {"llamacpp:n_decode_total", "counter", "Steps of the engine", (double)m.n_steps},
        {"llamacpp:n_busy_slots_per_decode", "gauge", "Texts that a step generates a token of, on average",
         m.n_steps ? (double)m.busy / (double)m.n_steps : 0},
        {"llamacpp:requests_processing", "gauge", "Jobs that run", m.n_running},
        {"llamacpp:requests_deferred", "gauge", "Jobs that wait", m.n_waiting},
        {"butler:jobs_total", "counter", "Jobs that are over", (double)m.n_jobs},
        {"butler:jobs_failed_total", "counter", "Jobs that ended with an error", (double)m.n_failed},
        {"butler:jobs_cancelled_total", "counter", "Jobs whose client went away", (double)m.n_cancelled},
        {"butler:jobs_refused_total", "counter", "Jobs that found the queue full", (double)m.n_refused},
        {"butler:prompt_tokens_cached_total", "counter", "Prompt tokens that the prefix cache had", (double)m.cached_tokens},
        {"butler:prefix_lookups_total", "counter", "Prompts that were looked up in the prefix cache",
         (double)m.engine.prefix_lookups},
        {"butler:prefix_hits_total", "counter", "Prompts of which it had a beginning", (double)m.engine.prefix_hits},
        {"butler:prefix_bytes", "gauge", "Bytes that the prefix cache holds", (double)m.engine.prefix_memory},
        {"butler:prefix_limit_bytes", "gauge", "Most bytes that it may hold", n_devices * (double)params->prefix_bytes},
        {"butler:kv_bytes", "gauge", "Bytes of KV pages in use", (double)m.engine.kv_memory},
        {"butler:kv_reserved_bytes", "gauge", "Bytes that running jobs may come to need", (double)m.reserved},
        {"butler:kv_limit_bytes", "gauge", "Most bytes that jobs may reserve together", n_devices * (double)params->kv_bytes},
        {"butler:parked", "gauge", "Jobs that have left memory for a while", m.n_parked},
        {"butler:parked_total", "counter", "How often a job left memory", (double)m.parked_total},
        {"butler:parked_bytes_total", "counter", "Bytes that were written for that", (double)m.parked_bytes},
        {"butler:park_failures_total", "counter", "How often that could not be done", (double)m.park_failures},
        {"butler:park_seconds_total", "counter", "Time that jobs took to leave memory and come back", m.park_s},
        {"butler:kv_read_bytes_total", "counter", "Keys and values that decode steps read", (double)m.kv_bytes},
        {"butler:metric_read_bytes_total", "counter", "Bytes that metrics read", (double)m.metric_bytes},
        {"butler:dense_read_bytes_total", "counter", "Keys and values that dense attention would have read",
         (double)m.full_kv_bytes},
        {"butler:library_tokens_total", "counter", "Prompt tokens of jobs that are over that the library's folder had",
         (double)m.library_tokens},
        {"butler:answer_tokens_reread_total", "counter", "Tokens that were read as prompts for the next turn",
         (double)m.reread_tokens},
        {"butler:kv_resident_bytes", "gauge", "Bytes of KV pages in memory, where others lie on the disk",
         (double)m.engine.kv_resident},
        {"butler:kv_disk_bytes", "gauge", "Bytes of KV pages in the file", (double)m.engine.kv_on_disk},
        {"butler:kv_pages_wanted_total", "counter", "Pages that decode steps wanted, where not all are in memory",
         (double)m.pages_wanted},
        {"butler:kv_pages_fetched_total", "counter", "Pages of these that came from the file", (double)m.pages_fetched},
        {"butler:kv_disk_read_bytes_total", "counter", "Bytes that decode steps read there", (double)m.disk_bytes},
        {"butler:kv_disk_wait_seconds_total", "counter", "Time that decode steps waited for these", m.disk_s},
        {"butler:prompt_chunk_tokens", "gauge", "Prompt tokens of a step while texts are generated", m.chunk},
        {"butler:longest_step_seconds", "gauge", "The longest step in which texts were generated", m.longest_step_s},
        {"butler:connections", "gauge", "Connections that are open", http_server_n_connections(api->http)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_head(text, rows[i].name, rows[i].type, rows[i].help);
        put(text, "%s %.15g\n", rows[i].name, rows[i].value);
    }
    put_answers(text, api);
    put_devices(text, api->devices);
    put_head(text, "butler:queue_seconds", "histogram", "From a request's submission until it runs");
    put_histogram(text, "butler:queue_seconds", "", serve_bounds, &m.queue);
    put_head(text, "butler:time_to_first_token_seconds", "histogram", "From a request's submission to its first token");
    put_histogram(text, "butler:time_to_first_token_seconds", "", serve_bounds, &m.first);
    put_head(text, "butler:time_between_tokens_seconds", "histogram", "Between two tokens of a job");
    put_histogram(text, "butler:time_between_tokens_seconds", "", serve_bounds, &m.between);
    put_policies(text, serve_devices_params(api->devices)->traces);
}

/* ------------------------------------------------------------------------------------------------------- /kv/trace */

bool serve_may_see(const struct http_exchange *exchange, int owner)
{
    return exchange->admin || exchange->owner == owner;
}

const char *serve_query_text(const char *query, const char *name)
{
    const size_t n = strlen(name);
    for (const char *at = query; at; at = strchr(at, '&')) {
        at += *at == '&';
        if (strncmp(at, name, n) == 0 && at[n] == '=')
            return at + n + 1;
    }
    return NULL;
}

int serve_query_number(const char *query, const char *name, int missing, int max, struct serve_error *error)
{
    const char *value = serve_query_text(query, name);
    const size_t n_digits = value ? strspn(value, "0123456789") : 0;
    if (!value)
        return missing;
    if (n_digits >= 1 && n_digits <= 10 && strchr("&", value[n_digits]) && strtoll(value, NULL, 10) <= max)
        return (int)strtoll(value, NULL, 10);
    serve_fail(error, 400, "'%s' must be a whole number from 0 to %d", name, max);
    return missing;
}

static json_t *share_json(double share)
{
    return isnan(share) ? json_null() : json_real(share);
}

/* The latest n steps, a list for each quantity. */
static json_t *trace_json(const struct serve_trace *trace, uint64_t n)
{
    json_t *tokens = json_array(), *shares = json_array(), *kv = json_array(), *metric = json_array(), *dense = json_array(),
           *reuse = json_array(), *recall = json_array(), *mass = json_array();
    const uint64_t kept = trace->n_steps < SERVE_TRACE_STEPS ? trace->n_steps : SERVE_TRACE_STEPS, shown = n < kept ? n : kept;
    for (uint64_t i = trace->n_steps - shown; i < trace->n_steps; i++) {
        const struct serve_trace_step *step = &trace->steps[i % SERVE_TRACE_STEPS];
        json_array_append_new(tokens, json_integer(step->n_tokens));
        json_array_append_new(shares,
                              step->dense_bytes ? json_real((double)step->kv_bytes / (double)step->dense_bytes) : json_null());
        json_array_append_new(kv, json_integer((json_int_t)step->kv_bytes));
        json_array_append_new(metric, json_integer((json_int_t)step->metric_bytes));
        json_array_append_new(dense, json_integer((json_int_t)step->dense_bytes));
        json_array_append_new(reuse, share_json((double)step->reuse));
        json_array_append_new(recall, share_json((double)step->recall));
        json_array_append_new(mass, share_json((double)step->mass));
    }
    return json_pack("{s:s?, s:i, s:i, s:s, s:b, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "id",
                     *trace->answer_id ? trace->answer_id : NULL, "id_slot", trace->id, "choice", trace->choice, "policy",
                     trace->policy, "running", (int)trace->running, "n_prompt_tokens", trace->n_prompt, "n_steps",
                     (json_int_t)trace->n_steps, "n_tokens", tokens, "read_share", shares, "kv_bytes", kv, "metric_bytes", metric,
                     "dense_bytes", dense, "reuse", reuse, "recall", recall, "mass", mass);
}

/* A trace is asked for by its answer's id, or by the number of its slot. *number -1: by neither. */
static void read_trace_id(const char *query, int *number, char id[48], struct serve_error *error)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    const char *value = serve_query_text(query, "id");
    const size_t n = value ? strspn(value, letters) : 0, n_begin = value ? strcspn(value, "_-") : 0;
    memset(id, 0, 48);
    *number = -1;
    if (n < 48 && n_begin > 0 && n_begin < n && strchr("&", value[n])) /* "cmpl-1a2b" */
        memcpy(id, value, n);
    else
        *number = serve_query_number(query, "id", -1, INT_MAX, error);
}

json_t *serve_traces_json(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    const char *query = exchange->query;
    char answer_id[48];
    int id;
    read_trace_id(query, &id, answer_id, error);
    const int steps = serve_query_number(query, "steps", SERVE_TRACE_STEPS, SERVE_TRACE_STEPS, error);
    if (error->status)
        return NULL;
    struct serve_trace *traces = serve_alloc(SERVE_TRACES, sizeof *traces);
    const int n = serve_traces_copy(serve_devices_params(api->devices)->traces, traces);
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        if (serve_may_see(exchange, traces[i].owner) && (id < 0 || traces[i].id == id) &&
            (!*answer_id || strcmp(traces[i].answer_id, answer_id) == 0))
            json_array_append_new(list, trace_json(&traces[i], (uint64_t)steps));
    free(traces);
    return json_pack("{s:i, s:o}", "kept_steps", SERVE_TRACE_STEPS, "traces", list);
}
