/* From a job's events to the answer of its request: whole, or in pieces while they come, in the shape of each interface. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"
#include "serve/choice.h"

/* --------------------------------------------------------------------------------------------------- logprobs */

/* JSON has no infinity: a token that cannot come has this log-probability, as in other servers. */
static json_t *logprob_json(double logprob)
{
    return json_real(isfinite(logprob) ? logprob : -9999.0);
}

static json_t *bytes_json(const struct butler_model *model, int32_t id)
{
    size_t n;
    const char *bytes = butler_token_bytes(model, id, &n);
    json_t *array = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(array, json_integer((unsigned char)bytes[i]));
    return array;
}

static size_t count_characters(const struct butler_model *model, int32_t id)
{
    size_t n, count = 0;
    const char *bytes = butler_token_bytes(model, id, &n);
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return count;
}

static json_t *logprobs_new(enum serve_kind kind)
{
    return kind == SERVE_COMPLETION
               ? json_pack("{s:[], s:[], s:[], s:[]}", "tokens", "token_logprobs", "top_logprobs", "text_offset")
           : kind == SERVE_CHAT ? json_pack("{s:[], s:n}", "content", "refusal")
                                : json_array();
}

/* {token: logprob} of the most probable tokens and the one that is there. */
static json_t *top_object(const struct butler_model *model, int32_t id, const struct serve_score *score)
{
    json_t *top = json_object();
    for (int i = -1; i < score->n_top; i++) {
        json_t *name = serve_token_name(model, i < 0 ? id : score->top[i].id);
        json_object_set_new(top, json_string_value(name), logprob_json(i < 0 ? score->logprob : score->top[i].logprob));
        json_decref(name);
    }
    return top;
}

static json_t *token_object(const struct serve_request *request, int32_t id, double logprob)
{
    const struct butler_model *model = request->api->model;
    json_t *token = json_pack("{s:o, s:o, s:o}", "token", serve_token_name(model, id), "logprob", logprob_json(logprob), "bytes",
                              bytes_json(model, id));
    if (request->kind == SERVE_NATIVE)
        json_object_set_new(token, "id", json_integer(id));
    return token;
}

/* Appends a token. score NULL: nothing comes before it that could have told how probable it is. */
static void add_logprob(const struct serve_request *request, struct serve_answer *answer, json_t *into, int32_t id,
                        const struct serve_score *score)
{
    const struct butler_model *model = request->api->model;
    if (request->kind == SERVE_COMPLETION) {
        json_array_append_new(json_object_get(into, "tokens"), serve_token_name(model, id));
        json_array_append_new(json_object_get(into, "token_logprobs"), score ? logprob_json(score->logprob) : json_null());
        json_array_append_new(json_object_get(into, "top_logprobs"), score ? top_object(model, id, score) : json_null());
        json_array_append_new(json_object_get(into, "text_offset"), json_integer((json_int_t)answer->offset));
        answer->offset += count_characters(model, id);
        return;
    }
    json_t *token = token_object(request, id, score->logprob), *top = json_array();
    for (int i = 0; i < score->n_top; i++)
        json_array_append_new(top, token_object(request, score->top[i].id, score->top[i].logprob));
    json_object_set_new(token, "top_logprobs", top);
    json_array_append_new(request->kind == SERVE_CHAT ? json_object_get(into, "content") : into, token);
}

/* ------------------------------------------------------------------------------------------------ parts of bodies */

/* "receipt", where steps were compared: of one prompt's texts. */
static void add_receipt(json_t *kv, const struct serve_job *job)
{
    const struct butler_receipt *compared = &job->compared;
    if (compared->n_steps == 0)
        return;
    json_t *passages = json_array();
    for (int i = 0; i < job->n_passages; i++)
        json_array_append_new(passages, json_pack("{s:s, s:f}", "text", job->passages[i].text, "share", job->passages[i].share));
    json_object_set_new(kv, "receipt",
                        json_pack("{s:i, s:f, s:f, s:f, s:o}", "steps", compared->n_steps, "attention_read", compared->read,
                                  "attention_evicted_at_prompt", compared->prompt_evicted, "attention_evicted_at_step",
                                  compared->step_evicted, "passages", passages));
}

/* What the decoding of some jobs read. */
static json_t *kv_json(struct serve_job *const *jobs, int n)
{
    struct butler_stats sum = {0};
    for (int j = 0; j < n; j++) {
        const struct butler_stats *stats = &jobs[j]->stats;
        sum.kv_bytes += stats->kv_bytes;
        sum.metric_bytes += stats->metric_bytes;
        sum.upkeep_bytes += stats->upkeep_bytes;
        sum.full_kv_bytes += stats->full_kv_bytes;
        sum.units_selected += stats->units_selected;
        sum.units_reused += stats->units_reused;
        sum.n_drafted += stats->n_drafted;
        sum.n_accepted += stats->n_accepted;
        sum.pages_wanted += stats->pages_wanted;
        sum.pages_fetched += stats->pages_fetched;
        sum.disk_s += stats->disk_s;
        sum.kv_memory += stats->kv_memory;
        sum.metric_memory += stats->metric_memory;
    }
    const double dense = (double)sum.full_kv_bytes, units = (double)sum.units_selected;
    json_t *kv = json_pack("{s:s, s:I, s:I, s:I, s:f, s:f, s:I}", "policy", jobs[0]->policy, "bytes_read", (json_int_t)sum.kv_bytes,
                           "metric_bytes_read", (json_int_t)sum.metric_bytes, "dense_bytes", (json_int_t)sum.full_kv_bytes,
                           "read_share", dense > 0 ? (double)(sum.kv_bytes + sum.metric_bytes) / dense : 0.0, "reuse",
                           units > 0 ? (double)sum.units_reused / units : 0.0, "memory_bytes",
                           (json_int_t)(sum.kv_memory + sum.metric_memory));
    if (sum.upkeep_bytes)
        json_object_set_new(kv, "upkeep_bytes_read", json_integer((json_int_t)sum.upkeep_bytes));
    if (sum.pages_wanted) {
        json_object_set_new(kv, "pages", json_integer((json_int_t)sum.pages_wanted));
        json_object_set_new(kv, "pages_from_disk", json_integer((json_int_t)sum.pages_fetched));
        json_object_set_new(kv, "disk_wait_ms", json_real(1e3 * sum.disk_s));
    }
    add_receipt(kv, jobs[0]);
    if (jobs[0]->map)
        json_object_set_new(kv, "map", json_integer(jobs[0]->id));
    if (jobs[0]->lossless) {
        json_object_set_new(kv, "drafted", json_integer((json_int_t)sum.n_drafted));
        json_object_set_new(kv, "accepted", json_integer((json_int_t)sum.n_accepted));
    }
    return kv;
}

json_t *serve_kv_json(const struct serve_request *request)
{
    return kv_json(request->jobs, request->n_jobs);
}

static json_t *usage_json(const struct serve_request *request)
{
    json_int_t prompt = 0, cached = 0, generated = 0;
    for (int j = 0; j < request->n_jobs; j++) {
        prompt += request->jobs[j]->n_prompt;
        cached += request->jobs[j]->n_cached;
        generated += request->jobs[j]->n_generated;
    }
    return json_pack("{s:I, s:I, s:I, s:{s:I}, s:o}", "prompt_tokens", prompt, "completion_tokens", generated, "total_tokens",
                     prompt + generated, "prompt_tokens_details", "cached_tokens", cached, "kv", serve_kv_json(request));
}

json_t *serve_text_json(const struct butler_buffer *text)
{
    return json_stringn(text->n ? text->bytes : "", text->n);
}

json_t *serve_id_json(const struct serve_request *request, const char *prefix)
{
    return json_sprintf("%s%s", prefix, strchr(request->id, '-') + 1);
}

/* n: tokens of the answer. */
static json_t *timings_json(const struct serve_job *job, int n)
{
    const double prompt_n = job->n_prompt - job->n_cached, prompt_s = job->prompt_s, s = job->decode_s;
    return json_pack("{s:i, s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:f}", "cache_n", job->n_cached, "prompt_n",
                     job->n_prompt - job->n_cached, "prompt_ms", 1e3 * prompt_s, "prompt_per_token_ms",
                     prompt_n > 0 ? 1e3 * prompt_s / prompt_n : 0.0, "prompt_per_second", prompt_s > 0 ? prompt_n / prompt_s : 0.0,
                     "predicted_n", n, "predicted_ms", 1e3 * s, "predicted_per_token_ms", n > 0 ? 1e3 * s / n : 0.0,
                     "predicted_per_second", s > 0 ? n / s : 0.0);
}

static json_t *finish_json(const struct serve_answer *answer)
{
    const enum serve_finish finish = answer->finish;
    const bool has_calls = answer->parser && serve_parser_has_whole_calls(answer->parser);
    return finish == SERVE_FINISH_NONE     ? json_null()
           : finish == SERVE_FINISH_LENGTH ? json_string("length")
                                           : json_string(has_calls ? "tool_calls" : "stop");
}

/* What the whole answer of OpenAI's interface, or its last piece, tells of the work. */
static void add_usage(const struct serve_request *request, json_t *body)
{
    json_object_set_new(body, "usage", usage_json(request));
    if (request->n_jobs * request->n_choices == 1)
        json_object_set_new(body, "timings", timings_json(request->jobs[0], request->jobs[0]->n_generated));
}

/* What every OpenAI body has, whole or in pieces. Takes the choices. */
static json_t *openai_json(const struct serve_request *request, json_t *choices)
{
    const char *object = request->kind == SERVE_COMPLETION ? "text_completion"
                         : request->stream                 ? "chat.completion.chunk"
                                                           : "chat.completion";
    return json_pack("{s:s, s:s, s:I, s:s, s:s, s:o}", "id", request->id, "object", object, "created", (json_int_t)request->created,
                     "model", request->api->config.model_name, "system_fingerprint", "butler-" BUTLER_VERSION, "choices", choices);
}

/* llama.cpp's. n: tokens in this body. */
static json_t *native_json(const struct serve_request *request, int index, const char *text, size_t n, json_t *tokens, bool stop)
{
    return json_pack("{s:i, s:s%, s:o, s:b, s:I, s:I}", "index", index, "content", text, n, "tokens", tokens, "stop", stop,
                     "id_slot", (json_int_t)request->jobs[index / request->n_choices]->id, "tokens_evaluated",
                     (json_int_t)request->jobs[index / request->n_choices]->n_prompt);
}

static void add_native_end(const struct serve_request *request, int index, json_t *body)
{
    static const char *const types[] = {"none", "eos", "word", "limit", "entropy"};
    const struct serve_job *job = request->jobs[index / request->n_choices];
    const struct serve_answer *answer = &request->answers[index];
    const int n = request->n_choices > 1 ? answer->n_tokens : job->n_generated;
    json_object_set_new(body, "stop", json_true());
    json_object_set_new(body, "stop_type", json_string(types[answer->finish]));
    json_object_set_new(body, "stopping_word",
                        json_string(answer->finish == SERVE_FINISH_STOP && answer->stop ? answer->stop : ""));
    json_object_set_new(body, "model", json_string(request->api->config.model_name));
    json_object_set_new(body, "tokens_predicted", json_integer(n));
    json_object_set_new(body, "tokens_cached", json_integer(job->n_cached));
    json_object_set_new(body, "truncated", json_false());
    json_object_set_new(body, "timings", timings_json(job, n));
    json_object_set_new(body, "kv", kv_json(&request->jobs[index / request->n_choices], 1)); /* others may still run */
}

/* ---------------------------------------------------------------------------------------------------- streams */

static void cancel_jobs(struct serve_request *request)
{
    for (int j = 0; j < request->n_jobs; j++)
        serve_cancel(request->jobs[j]);
}

static void on_client_gone(struct http_exchange *exchange)
{
    struct serve_request *request = exchange->user;
    request->exchange = NULL;
    cancel_jobs(request);
}

void serve_write_event(struct serve_request *request, const char *event, json_t *body)
{
    struct butler_buffer piece = {0};
    char *text = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    if (text && request->exchange) {
        if (event) {
            serve_text_append(&piece, "event: ", 7);
            serve_text_append(&piece, event, strlen(event));
            serve_text_append(&piece, "\n", 1);
        }
        serve_text_append(&piece, "data: ", 6);
        serve_text_append(&piece, text, strlen(text));
        serve_text_append(&piece, "\n\n", 2);
        if (!http_stream_write(request->exchange, piece.bytes, piece.n)) {
            request->exchange = NULL;
            cancel_jobs(request);
        }
    }
    butler_buffer_free(&piece);
    free(text);
}

static void write_piece(struct serve_request *request, json_t *body)
{
    serve_write_event(request, NULL, body);
}

/* A piece of an answer of OpenAI's interface: name is "text" or "delta". Takes value, and logprobs, which may be NULL. */
static void write_openai(struct serve_request *request, int index, const char *name, json_t *value, json_t *logprobs)
{
    json_t *choice = json_pack("{s:i, s:o, s:o, s:o}", "index", index, "finish_reason", finish_json(&request->answers[index]),
                               "logprobs", logprobs ? logprobs : json_null(), name, value);
    json_t *body = openai_json(request, json_pack("[o]", choice));
    if (request->include_usage)
        json_object_set_new(body, "usage", json_null());
    write_piece(request, body);
}

/* A piece of the text of one answer. Takes logprobs, which may be NULL. */
static void write_choice(struct serve_request *request, int index, const char *text, size_t n, json_t *logprobs, json_t *tokens)
{
    if (request->surface) { /* its parts are written */
        json_decref(logprobs);
        json_decref(tokens);
        return;
    }
    if (request->kind == SERVE_NATIVE) {
        json_t *body = native_json(request, index, text, n, tokens, false);
        if (logprobs)
            json_object_set_new(body, "completion_probabilities", logprobs);
        write_piece(request, body);
        return;
    }
    json_decref(tokens);
    if (request->kind == SERVE_COMPLETION)
        write_openai(request, index, "text", json_stringn(text, n), logprobs);
    else
        write_openai(request, index, "delta", n ? json_pack("{s:s%}", "content", text, n) : json_object(), logprobs);
}

static void begin_stream(struct serve_request *request)
{
    char *header = serve_not_held_header(request->not_held);
    http_stream_begin(request->exchange, header);
    free(header);
    request->begun = true;
    if (request->surface) {
        request->surface->begin(request);
        return;
    }
    for (int i = 0; i < request->n_jobs * request->n_choices && request->kind == SERVE_CHAT; i++) {
        json_t *body = openai_json(request, json_pack("[{s:i, s:{s:s, s:n}, s:n, s:n}]", "index", i, "delta", "role", "assistant",
                                                      "content", "logprobs", "finish_reason"));
        if (request->include_usage)
            json_object_set_new(body, "usage", json_null());
        write_piece(request, body);
    }
}

static void end_stream(struct serve_request *request)
{
    if (request->surface) {
        request->surface->end(request);
        if (request->exchange)
            http_stream_end(request->exchange);
        return;
    }
    if (request->include_usage && request->kind != SERVE_NATIVE) {
        json_t *body = openai_json(request, json_array());
        add_usage(request, body);
        write_piece(request, body);
    }
    if (request->exchange && request->kind != SERVE_NATIVE && !http_stream_write(request->exchange, "data: [DONE]\n\n", 14))
        request->exchange = NULL;
    if (request->exchange)
        http_stream_end(request->exchange);
}

/* ----------------------------------------------------------------------------------------------- whole answers */

static json_t *message_json(const struct serve_answer *answer)
{
    json_t *content = answer->calls && answer->text.n == 0 ? json_null() : serve_text_json(&answer->text);
    json_t *message = json_pack("{s:s, s:o}", "role", "assistant", "content", content);
    if (answer->calls)
        json_object_set(message, "tool_calls", answer->calls);
    if (answer->reasoning.n)
        json_object_set_new(message, "reasoning_content", serve_text_json(&answer->reasoning));
    return message;
}

static json_t *whole_choice(const struct serve_request *request, int index)
{
    const struct serve_answer *answer = &request->answers[index];
    json_t *choice = json_pack("{s:i, s:o, s:o}", "index", index, "finish_reason", finish_json(answer), "logprobs",
                               answer->logprobs ? json_incref(answer->logprobs) : json_null());
    if (request->kind == SERVE_COMPLETION)
        json_object_set_new(choice, "text", serve_text_json(&answer->text));
    else
        json_object_set_new(choice, "message", message_json(answer));
    return choice;
}

static json_t *whole_native(const struct serve_request *request, int index)
{
    const struct serve_answer *answer = &request->answers[index];
    json_t *body =
        native_json(request, index, answer->text.n ? answer->text.bytes : "", answer->text.n, json_incref(answer->tokens), true);
    if (answer->logprobs)
        json_object_set(body, "completion_probabilities", answer->logprobs);
    add_native_end(request, index, body);
    return body;
}

static void reply_whole(struct serve_request *request)
{
    const int n = request->n_jobs * request->n_choices;
    char *header = serve_not_held_header(request->not_held);
    if (request->surface) {
        serve_reply_json(request->exchange, 200, header, request->surface->whole(request));
        free(header);
        return;
    }
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, request->kind == SERVE_NATIVE ? whole_native(request, i) : whole_choice(request, i));
    json_t *body = list;
    if (request->kind == SERVE_NATIVE && n == 1) {
        body = json_incref(json_array_get(list, 0));
        json_decref(list);
    } else if (request->kind != SERVE_NATIVE) {
        body = openai_json(request, list);
        add_usage(request, body);
    }
    serve_reply_json(request->exchange, 200, header, body);
    free(header);
}

/* ---------------------------------------------------------------------------------------------------- events */

/* The id of a call: nine letters and digits (Mistral's templates take no other) that follow from the request's id, the choice and
 * the number of the call. */
void serve_call_id(const struct serve_request *request, int index, int call, char id[10])
{
    char text[96];
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    snprintf(text, sizeof text, "%s/%d/%d", request->id, index, call);
    for (const char *c = text; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001b3u;
    for (int i = 0; i < 9; i++, hash /= 36)
        id[i] = "0123456789abcdefghijklmnopqrstuvwxyz"[hash % 36];
    id[9] = 0;
}

static json_t *call_json(const struct serve_request *request, int index, const struct serve_part *part)
{
    char id[10];
    serve_call_id(request, index, part->call, id);
    return json_pack("{s:s, s:s, s:{s:s%, s:s}}", "id", id, "type", "function", "function", "name", part->bytes, part->n,
                     "arguments", "");
}

/* A part of a whole answer. */
static void keep_part(struct serve_answer *answer, int index, const struct serve_part *part)
{
    if (part->kind == SERVE_CONTENT)
        serve_text_append(&answer->text, part->bytes, part->n);
    else if (part->kind == SERVE_REASONING)
        serve_text_append(&answer->reasoning, part->bytes, part->n);
    else if (part->kind == SERVE_CALL_ARGUMENTS)
        serve_text_append(&answer->arguments, part->bytes, part->n);
    else if (part->kind == SERVE_CALL_BEGIN) {
        answer->calls = answer->calls ? answer->calls : json_array();
        json_array_append_new(answer->calls, call_json(answer->request, index, part));
        answer->arguments.n = 0;
    } else {
        json_t *function = json_object_get(json_array_get(answer->calls, (size_t)part->call), "function");
        json_object_set_new(function, "arguments", serve_text_json(&answer->arguments));
    }
}

static void on_part(void *user, const struct serve_part *part)
{
    struct serve_answer *answer = user;
    struct serve_request *request = answer->request;
    const int index = (int)(answer - request->answers);
    json_t *call;
    if (request->surface) {
        serve_add_part(answer, part);
    } else if (!request->stream) {
        keep_part(answer, index, part);
    } else if (part->kind == SERVE_CONTENT) {
        write_choice(request, index, part->bytes, part->n, NULL, json_array());
    } else if (part->kind == SERVE_REASONING) {
        write_openai(request, index, "delta", json_pack("{s:s%}", "reasoning_content", part->bytes, part->n), NULL);
    } else if (part->kind != SERVE_CALL_END) {
        call = part->kind == SERVE_CALL_BEGIN ? call_json(request, index, part)
                                              : json_pack("{s:{s:s%}}", "function", "arguments", part->bytes, part->n);
        json_object_set_new(call, "index", json_integer(part->call));
        write_openai(request, index, "delta", json_pack("{s:[o]}", "tool_calls", call), NULL);
    }
}

/* A job failed: the request does, with all its jobs. */
static void fail_request(struct serve_request *request, const struct butler_error *err)
{
    struct serve_error error = {0};
    /* What is not supported is the request's: a grammar that nothing can follow. */
    const bool is_ours =
        err->code != BUTLER_ERROR_ARGUMENT && err->code != BUTLER_ERROR_LENGTH && err->code != BUTLER_ERROR_UNSUPPORTED;
    serve_fail(&error, err->code == BUTLER_ERROR_CANCELLED ? 503 : is_ours ? 500 : 400, "%s", err->message);
    request->failed = true;
    if (request->exchange && request->begun) {
        serve_write_event(request, request->surface ? "error" : NULL, serve_error_json(request->api, &error));
        if (request->exchange)
            http_stream_end(request->exchange);
    } else if (request->exchange) {
        serve_reply_error(request->api, request->exchange, &error);
    }
    request->exchange = NULL;
    cancel_jobs(request);
}

/* The text and the scores of the prompt, before those of the answer. */
static void add_echo(struct serve_request *request, const struct serve_job *job, int index)
{
    struct serve_answer *answer = &request->answers[index];
    const size_t before = answer->text.n;
    json_t *logprobs = NULL;
    serve_detokenize(request->api->model, job->prompt, job->n_prompt, false, &answer->text);
    if (request->n_top >= 0)
        logprobs = answer->logprobs = logprobs_new(request->kind);
    for (int i = 0; i < job->n_prompt && logprobs; i++)
        add_logprob(request, answer, logprobs, job->prompt[i], i ? &job->scores[i] : NULL);
    if (request->stream) {
        answer->logprobs = NULL;
        write_choice(request, index, answer->text.bytes + before, answer->text.n - before, logprobs, json_array());
    }
}

/* llama.cpp's: how much of a prompt was read. */
static void write_progress(struct serve_request *request, const struct serve_job *job, int index, int n_read, int n_cached,
                           double seconds)
{
    if (!request->begun)
        begin_stream(request);
    json_t *body =
        request->kind == SERVE_NATIVE
            ? native_json(request, index, "", 0, json_array(), false)
            : openai_json(request,
                          json_pack("[{s:i, s:o, s:n, s:n}]", "index", index, request->kind == SERVE_CHAT ? "delta" : "text",
                                    request->kind == SERVE_CHAT ? json_object() : json_string(""), "finish_reason", "logprobs"));
    json_object_set_new(body, "prompt_progress",
                        json_pack("{s:i, s:i, s:i, s:I}", "total", job->n_prompt, "cache", n_cached, "processed", n_read, "time_ms",
                                  (json_int_t)(1e3 * seconds)));
    if (request->include_usage && request->kind != SERVE_NATIVE)
        json_object_set_new(body, "usage", json_null());
    write_piece(request, body);
}

static void add_token(struct serve_request *request, const struct serve_event *event, int index)
{
    struct serve_answer *answer = &request->answers[index];
    json_t *logprobs = answer->logprobs;
    answer->n_tokens++;
    const bool thinks = answer->parser && serve_parser_thinks(answer->parser);
    if (answer->parser)
        serve_parser_push(answer->parser, event->text, event->n_text);
    answer->n_reasoning += thinks || (answer->parser && serve_parser_thinks(answer->parser));
    if (!request->stream) {
        if (!answer->parser)
            serve_text_append(&answer->text, event->text, event->n_text);
        if (!answer->tokens)
            answer->tokens = json_array();
        json_array_append_new(answer->tokens, json_integer(event->id));
        if (request->n_top >= 0 && !logprobs)
            logprobs = answer->logprobs = logprobs_new(request->kind);
    } else if (request->n_top >= 0) {
        logprobs = logprobs_new(request->kind);
    }
    if (request->n_top >= 0)
        add_logprob(request, answer, logprobs, event->id, &event->score);
    const size_t n = answer->parser ? 0 : event->n_text; /* its parts are written */
    if (request->stream && (n || logprobs || request->kind != SERVE_CHAT))
        write_choice(request, index, event->text, n, logprobs, json_pack("[i]", (int)event->id));
}

static void add_end(struct serve_request *request, const struct serve_event *event, int index)
{
    struct serve_answer *answer = &request->answers[index];
    if (!answer->tokens)
        answer->tokens = json_array();
    if (request->surface)
        answer->finish = event->finish; /* the last block says how it ended */
    if (answer->parser) {
        serve_parser_push(answer->parser, event->text, event->n_text);
        serve_parser_end(answer->parser);
        if (request->surface)
            serve_end_blocks(answer);
    } else if (!request->stream)
        serve_text_append(&answer->text, event->text, event->n_text);
    else if (event->n_text)
        write_choice(request, index, event->text, event->n_text, NULL, json_array());
    answer->finish = event->finish;
    answer->stop = event->stop;
    if (request->stream && request->kind != SERVE_NATIVE)
        write_choice(request, index, "", 0, NULL, json_array());
}

static void end_job(struct serve_request *request, const struct serve_job *job, int first)
{
    request->n_done++;
    if (job->error.code != 0 && !request->failed)
        fail_request(request, &job->error);
    for (int i = 0; i < request->n_choices && request->stream && request->kind == SERVE_NATIVE && request->exchange; i++) {
        json_t *body = native_json(request, first + i, "", 0, json_array(), true);
        add_native_end(request, first + i, body);
        write_piece(request, body);
    }
    if (request->n_done < request->n_jobs)
        return;
    if (request->exchange && request->stream)
        end_stream(request);
    else if (request->exchange)
        reply_whole(request);
    serve_request_free(request);
}

void serve_on_event(struct serve_event *event)
{
    struct serve_request *request = event->job->user;
    int j = 0;
    while (request->jobs[j] != event->job)
        j++;
    const int first = j * request->n_choices, index = first + event->choice;
    if (event->kind == SERVE_DONE) {
        end_job(request, event->job, first);
        return;
    }
    if (!request->exchange)
        return;
    const struct serve_job *job = event->job;
    if (event->kind == SERVE_PROGRESS && !request->surface)
        write_progress(request, job, first, event->n_read, event->n_cached, event->read_s);
    if (event->kind == SERVE_PROMPT && request->stream && !request->begun)
        begin_stream(request);
    if (event->kind == SERVE_PROMPT && job->progress && !request->surface)
        write_progress(request, job, first, job->n_prompt, job->n_cached, job->prompt_s);
    for (int i = 0; i < request->n_choices && event->kind == SERVE_PROMPT && request->echo && request->exchange; i++)
        add_echo(request, event->job, first + i);
    if (event->kind == SERVE_TOKEN)
        add_token(request, event, index);
    else if (event->kind == SERVE_END)
        add_end(request, event, index);
}

/* ---------------------------------------------------------------------------------------------------- requests */

static void free_answers(struct serve_request *request)
{
    for (int i = 0; request->answers && i < request->n_jobs * request->n_choices; i++) {
        butler_buffer_free(&request->answers[i].text);
        butler_buffer_free(&request->answers[i].reasoning);
        butler_buffer_free(&request->answers[i].arguments);
        serve_parser_free(request->answers[i].parser);
        serve_free_blocks(&request->answers[i]);
        json_decref(request->answers[i].calls);
        json_decref(request->answers[i].logprobs);
        json_decref(request->answers[i].tokens);
    }
    free(request->answers);
    request->answers = NULL;
}

void serve_request_start(struct serve_request *request, struct http_exchange *exchange)
{
    struct serve_error error = {0};
    const struct serve_params *params = serve_devices_params(request->api->devices);
    const int most = serve_devices_count(request->api->devices) * (params->max_jobs + params->max_queue);
    if (request->n_jobs > most) {
        serve_fail(&error, 400, "%d prompts in one request, but this server takes %d at a time (--parallel and --queue)",
                   request->n_jobs, most);
        serve_reply_error(request->api, exchange, &error);
        serve_request_free(request);
        return;
    }
    exchange->user = request;
    exchange->on_close = on_client_gone;
    request->exchange = exchange;
    for (int i = 0; i < request->n_jobs * request->n_choices; i++) {
        request->answers[i].request = request;
        if (request->syntax.calls || request->syntax.reasoning || (request->surface && request->surface->begin_block))
            request->answers[i].parser = serve_parser_new(&request->syntax, on_part, &request->answers[i]);
    }
    for (int j = 0; j < request->n_jobs; j++) {
        if (serve_devices_submit(request->api->devices, request->jobs[j]) == 0)
            continue;
        for (int k = j; k < request->n_jobs; k++)
            serve_job_free(request->jobs[k]);
        free_answers(request); /* which counts jobs */
        request->n_jobs = j;
        serve_fail(&error, 429, "too many requests wait; try again later");
        serve_reply_error(request->api, exchange, &error);
        request->exchange = NULL;
        cancel_jobs(request);
        if (j == 0)
            serve_request_free(request);
        return;
    }
}

void serve_request_free(struct serve_request *request)
{
    free_answers(request);
    for (int j = 0; j < request->n_jobs; j++)
        serve_job_free(request->jobs[j]);
    for (int i = 0; i < request->syntax.n_names; i++) {
        free(request->syntax.names[i]);
        free(request->syntax.texts[i]);
    }
    free(request->syntax.names);
    free(request->syntax.texts);
    json_decref(request->fields);
    json_decref(request->not_held);
    butler_grammar_free(request->grammar);
    free(request->jobs);
    free(request);
}
