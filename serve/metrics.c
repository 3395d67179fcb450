/* /metrics: counters, gauges and histograms in Prometheus's text format. Names that begin with llamacpp: are those of llama.cpp's
 * server, which dashboards know. */
#include "serve/api_parts.h"

#include <stdarg.h>

static void put(struct serve_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(struct serve_text *text, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    serve_text_reserve(text, 512);
    const int n = vsnprintf(text->bytes + text->n, 512, format, args);
    text->n += n > 0 && n < 512 ? (size_t)n : 0;
    va_end(args);
}

static void put_histogram(struct serve_text *text, const char *name, const char *help, const struct serve_histogram *h)
{
    uint64_t sum = 0;
    put(text, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name);
    for (int i = 0; i < SERVE_BUCKETS - 1; i++)
        put(text, "%s_bucket{le=\"%g\"} %llu\n", name, serve_bounds[i], (unsigned long long)(sum += h->counts[i]));
    put(text, "%s_bucket{le=\"+Inf\"} %llu\n%s_sum %.9g\n%s_count %llu\n", name, (unsigned long long)h->n, name, h->sum, name,
        (unsigned long long)h->n);
}

void serve_write_metrics(struct serve_api *api, struct serve_text *text)
{
    struct serve_metrics m;
    serve_inspect(api->scheduler, &m, NULL, 0);
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
        {"butler:kv_bytes", "gauge", "Bytes of KV pages in use", (double)m.engine.kv_memory},
        {"butler:kv_reserved_bytes", "gauge", "Bytes that running jobs may come to need", (double)m.reserved},
        {"butler:parked", "gauge", "Jobs that have left memory for a while", m.n_parked},
        {"butler:parked_total", "counter", "How often a job left memory", (double)m.parked_total},
        {"butler:parked_bytes_total", "counter", "Bytes that were written for that", (double)m.parked_bytes},
        {"butler:park_failures_total", "counter", "How often that could not be done", (double)m.park_failures},
        {"butler:park_seconds_total", "counter", "Time that jobs took to leave memory and come back", m.park_s},
        {"butler:kv_read_bytes_total", "counter", "Keys and values that decode steps read", (double)m.kv_bytes},
        {"butler:metric_read_bytes_total", "counter", "Bytes that metrics read", (double)m.metric_bytes},
        {"butler:dense_read_bytes_total", "counter", "Keys and values that dense attention would have read",
         (double)m.full_kv_bytes},
        {"butler:prompt_chunk_tokens", "gauge", "Prompt tokens of a step while texts are generated", m.chunk},
        {"butler:longest_step_seconds", "gauge", "The longest step in which texts were generated", m.longest_step_s},
        {"butler:connections", "gauge", "Connections that are open", http_server_n_connections(api->http)},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        put(text, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", rows[i].name, rows[i].help, rows[i].name, rows[i].type, rows[i].name,
            rows[i].value);
    put_histogram(text, "butler:time_to_first_token_seconds", "From a request's submission to its first token", &m.first);
    put_histogram(text, "butler:time_between_tokens_seconds", "Between two tokens of a job", &m.between);
}
