/* Which endpoint answers what, and those that need no engine. */
#include "serve/api_parts.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "serve/choice.h"
#include "serve/page.h"

enum { N_WORKERS = 3 }; /* threads that read bodies */

static const char content_type[] = "application/json; charset=utf-8";

/* -------------------------------------------------------------------------------------------------- answers */

void serve_reply_json(struct http_exchange *exchange, int status, const char *header, json_t *body)
{
    char *text = body ? json_dumps(body, JSON_COMPACT) : NULL;
    json_decref(body);
    http_reply(exchange, text ? status : 500, content_type, header, text ? text : "{}", text ? strlen(text) : 2);
    free(text);
}

json_t *serve_error_json(const struct serve_api *api, const struct serve_error *error)
{
    /* A message may quote bytes of the request, cut anywhere. */
    struct butler_utf8 stream = {0};
    char clean[3 * sizeof error->message + 16];
    size_t n = butler_utf8_push(&stream, error->message, strlen(error->message), clean, sizeof clean);
    n += butler_utf8_push(&stream, NULL, 0, clean + n, sizeof clean - n);
    json_t *body = json_pack("{s:i, s:s%, s:s, s:n}", "code", error->status, "message", clean, n, "type", error->type, "param");
    if (error->n_param > 0)
        json_object_set_new(body, "param", json_stringn(error->message + 1, (size_t)error->n_param));
    if (error->n_prompt) {
        json_object_set_new(body, "n_prompt_tokens", json_integer(error->n_prompt));
        json_object_set_new(body, "n_ctx", json_integer(api->n_ctx));
    }
    return json_pack("{s:s, s:o}", "type", "error", "error", body); /* the first is Anthropic's */
}

void serve_reply_error(struct serve_api *api, struct http_exchange *exchange, const struct serve_error *error)
{
    serve_reply_json(exchange, error->status, error->status == 429 ? "Retry-After: 1\r\n" : error->header,
                     serve_error_json(api, error));
}

json_t *serve_token_name(const struct butler_model *model, int32_t id)
{
    size_t n;
    const char *bytes = butler_token_bytes(model, id, &n);
    json_t *name = n ? json_stringn(bytes, n) : json_sprintf("token_id:%d", (int)id);
    if (name)
        return name;
    struct butler_buffer text = {0};
    char hex[8];
    serve_text_append(&text, "bytes:", 6);
    for (size_t i = 0; i < n; i++)
        serve_text_append(&text, hex, (size_t)snprintf(hex, sizeof hex, "\\x%02x", (unsigned char)bytes[i]));
    name = json_stringn(text.bytes, text.n);
    butler_buffer_free(&text);
    return name;
}

/* As llama.cpp has it: a string, or an array of bytes that are no UTF-8. */
static json_t *piece_json(const struct butler_model *model, int32_t id)
{
    size_t n;
    const char *bytes = butler_token_bytes(model, id, &n);
    if (n == 0)
        bytes = butler_token_spelling(model, id, &n);
    json_t *piece = bytes ? json_stringn(bytes, n) : json_string("");
    if (piece)
        return piece;
    piece = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(piece, json_integer((unsigned char)bytes[i]));
    return piece;
}

/* ------------------------------------------------------------------------------------------------ without a body */

static json_t *get_health(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    (void)exchange;
    if (serve_devices_all_fail(api->devices)) {
        serve_fail(error, 503, "requests fail with input or output errors; where a device was lost, only a restart helps");
        return NULL;
    }
    return json_pack("{s:s}", "status", "ok");
}

static json_t *model_json(const struct serve_api *api)
{
    const struct butler_model_info *info = api->info;
    return json_pack("{s:s, s:s, s:I, s:s, s:{s:i, s:i, s:i, s:i, s:I, s:I, s:s}}", "id", api->config.model_name, "object", "model",
                     "created", (json_int_t)api->begun, "owned_by", "butler", "meta", "n_vocab", info->n_vocab, "n_ctx", api->n_ctx,
                     "n_ctx_train", info->n_ctx_train, "n_embd", info->n_embd, "n_params", (json_int_t)info->n_params, "size",
                     (json_int_t)info->weight_bytes, "ftype", info->file_type);
}

static json_t *get_models(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    (void)error;
    (void)exchange;
    return json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(api));
}

/* A part of a path with %2F and the like resolved, to be freed; NULL: malformed. */
static char *decode_path(const char *text)
{
    static const char digits[] = "0123456789abcdef";
    char *out = serve_alloc(strlen(text) + 1, 1), *to = out;
    for (; *text; text++) {
        const char *high = *text == '%' && text[1] ? strchr(digits, text[1] | 32) : NULL,
                   *low = high && text[2] ? strchr(digits, text[2] | 32) : NULL;
        if (*text == '%' && (!low || (high == digits && low == digits))) {
            free(out);
            return NULL;
        }
        *to++ = low ? (char)((high - digits) << 4 | (low - digits)) : *text;
        text += low ? 2 : 0;
    }
    return out;
}

/* The model under its name in answers, or its file's. */
static json_t *get_model(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    const char *id = exchange->path + strlen("/v1/models/");
    char *name = decode_path(id);
    const bool here = name && (strcmp(name, api->config.model_name) == 0 || strcmp(name, api->config.file_name) == 0);
    if (!here)
        serve_fail(error, 404, "the model '%.256s' is not here; this server has '%.256s'", name ? name : id,
                   api->config.model_name);
    free(name);
    return here ? model_json(api) : NULL;
}

/* Spelling of the model's token by the name that templates have for it; "" where there is none. */
static json_t *special_token(struct serve_api *api, const char *jinja)
{
    static const struct butler_chat_message nothing = {.role = "user", .content = ""};
    const struct butler_chat_options options = {.jinja = jinja};
    struct butler_chat_text text;
    if (butler_chat_render(api->model, &nothing, 1, &options, &text, NULL) < 0)
        return json_string("");
    json_t *name = json_stringn(text.bytes, text.n);
    butler_chat_text_free(&text);
    return name ? name : json_string("");
}

static json_t *template_json(const struct serve_api *api)
{
    const char *jinja = api->config.chat_template ? api->config.chat_template : api->info->chat_template;
    return jinja ? json_string(jinja) : json_null();
}

static json_t *get_tokenizer_info(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    (void)error;
    (void)exchange;
    json_t *eos = special_token(api, "{{ eos_token }}");
    return json_pack("{s:o, s:o, s:O, s:o, s:s, s:i}", "bos_token", special_token(api, "{{ bos_token }}"), "eos_token", eos,
                     "pad_token", eos, "chat_template", template_json(api), "tokenizer_class", api->info->tokenizer, "vocab_size",
                     api->info->n_vocab);
}

/* Names for the "policy" of requests. */
static json_t *policies_json(const struct serve_api *api)
{
    struct butler_policy_info policy = {BUTLER_INIT(butler_policy_info)};
    json_t *names = json_array();
    for (int i = 0; butler_policy_describe(api->engine, i, &policy); i++)
        json_array_append_new(names, json_string(policy.name));
    return names;
}

static json_t *get_props(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    (void)error;
    (void)exchange;
    const struct serve_params *params = serve_devices_params(api->devices);
    const struct butler_sampler_params *s = &api->config.sampling;
    return json_pack("{s:{s:i, s:{s:f, s:i, s:f, s:f, s:f}}, s:i, s:s, s:o, s:o, s:o, s:s, s:o, s:b, s:s}",
                     "default_generation_settings", "n_ctx", api->n_ctx, "params", "temperature", (double)s->temperature, "top_k",
                     s->top_k, "top_p", (double)s->top_p, "min_p", (double)s->min_p, "max_stall_ms", 1e3 * params->max_stall_s,
                     "total_slots", params->max_jobs, "model_path", api->config.model_name, "chat_template", template_json(api),
                     "bos_token", special_token(api, "{{ bos_token }}"), "eos_token", special_token(api, "{{ eos_token }}"),
                     "kv_policy", params->policy_for ? "auto" : params->policy, "kv_policies", policies_json(api), "kv_lossless",
                     (int)api->lossless, "build_info", "butler-" BUTLER_VERSION);
}

static json_t *get_slots(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    (void)error;
    const int max = serve_devices_count(api->devices) * serve_devices_params(api->devices)->max_jobs;
    struct serve_slot *slots = serve_alloc((size_t)max, sizeof *slots);
    struct serve_metrics metrics;
    json_t *list = json_array();
    const int n = serve_devices_inspect(api->devices, &metrics, slots, max);
    for (int i = 0; i < n; i++)
        if (serve_may_see(exchange, slots[i].owner))
            json_array_append_new(list,
                                  json_pack("{s:i, s:b, s:s, s:i, s:i, s:i, s:i, s:s}", "id", slots[i].id, "is_processing",
                                            !slots[i].parked, "state",
                                            slots[i].parked        ? "parked"
                                            : slots[i].prompt_done ? "generating"
                                                                   : "reading",
                                            "n_ctx", api->n_ctx, "n_prompt_tokens", slots[i].n_prompt, "n_prompt_tokens_processed",
                                            slots[i].n_read, "n_decoded", slots[i].n_generated, "policy", slots[i].policy));
    free(slots);
    return list;
}

/* -------------------------------------------------------------------------------------------------- with a body */

json_t *serve_post_tokenize(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *content = json_object_get(body, "content"), *prompt = json_object_get(body, "prompt"), *list, *pieces;
    json_t *text = content ? content : prompt;
    int32_t *ids;
    /* llama.cpp adds no BOS unless it is asked to; vLLM does unless it is asked not to. */
    const bool special =
        content ? serve_read_bool(body, "add_special", false, error) : serve_read_bool(body, "add_special_tokens", true, error);
    const bool parse = serve_read_bool(body, "parse_special", true, error);
    const bool with_pieces = serve_read_bool(body, "with_pieces", false, error);
    if (!json_is_string(text) && !error->status)
        serve_fail(error, 400, "'content' or 'prompt' must be a string");
    if (error->status)
        return NULL;
    const int n = serve_tokenize(api, text, (special ? BUTLER_ADD_SPECIAL : 0) | (parse ? BUTLER_PARSE_SPECIAL : 0), &ids, error);
    if (n < 0)
        return NULL;
    list = json_array();
    pieces = json_array();
    for (int i = 0; i < n; i++) {
        json_array_append_new(list, json_integer(ids[i]));
        if (with_pieces)
            json_array_append_new(pieces, json_pack("{s:i, s:o}", "id", (int)ids[i], "piece", piece_json(api->model, ids[i])));
    }
    free(ids);
    json_t *answer = json_pack("{s:O, s:i, s:i}", "tokens", with_pieces ? pieces : list, "count", n, "max_model_len", api->n_ctx);
    json_decref(list);
    json_decref(pieces);
    return answer;
}

json_t *serve_post_detokenize(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *tokens = json_object_get(body, "tokens");
    struct butler_buffer text = {0};
    int32_t *ids;
    if (!json_is_array(tokens)) {
        serve_fail(error, 400, "'tokens' must be an array of token ids");
        return NULL;
    }
    const int n = serve_read_ids(api, tokens, &ids, error);
    if (n < 0)
        return NULL;
    serve_detokenize(api->model, ids, n, true, &text);
    free(ids);
    /* One body for both of its users: llama.cpp's clients read "content", vLLM's "prompt". */
    json_t *answer = json_pack("{s:s%, s:s%}", "content", text.bytes, text.n, "prompt", text.bytes, text.n);
    butler_buffer_free(&text);
    return answer;
}

json_t *serve_post_apply_template(struct serve_api *api, json_t *body, struct serve_error *error)
{
    struct butler_chat_text text;
    struct serve_chat chat;
    const bool made = serve_read_chat(api, body, &chat, error) == 0 && serve_render_chat(api, &chat, &text, error) == 0;
    serve_chat_free(&chat);
    if (!made)
        return NULL;
    json_t *answer = json_pack("{s:s%}", "prompt", text.bytes, text.n);
    butler_chat_text_free(&text);
    if (!answer)
        serve_fail(error, 400, "the conversation is no UTF-8");
    return answer;
}

/* ------------------------------------------------------------------------------------------------------- routes */

static void reply_metrics(struct serve_api *api, struct http_exchange *exchange)
{
    struct butler_buffer text = {0};
    serve_write_metrics(api, &text);
    http_reply(exchange, 200, "text/plain; version=0.0.4; charset=utf-8", NULL, text.bytes, text.n);
    butler_buffer_free(&text);
}

static const struct route {
    const char *path, *method; /* a path that ends with "/": all that begin with it */
    enum http_open open;
    /* One of the three: what JSON answers, what text, or */
    json_t *(*get)(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error);
    void (*text)(struct serve_api *api, struct http_exchange *exchange);
    json_t *(*post)(struct serve_api *api, json_t *body, struct serve_error *error);
    /* what the engine answers. */
    enum serve_kind kind;
    const struct serve_surface *surface; /* or NULL */
} routes[] = {
    {"/health", "GET", HTTP_OPEN, .get = get_health},
    {"/v1/health", "GET", HTTP_OPEN, .get = get_health},
    {"/models", "GET", HTTP_OPEN, .get = get_models},
    {"/v1/models", "GET", HTTP_OPEN, .get = get_models},
    {"/v1/models/", "GET", HTTP_OPEN, .get = get_model},
    {"/props", "GET", HTTP_NEEDS_KEY, .get = get_props},
    {"/slots", "GET", HTTP_SHOWS_TEXTS, .get = get_slots},
    {"/metrics", "GET", HTTP_NEEDS_KEY, .text = reply_metrics},
    {"/kv/trace", "GET", HTTP_SHOWS_TEXTS, .get = serve_traces_json},
    {"/kv/map", "GET", HTTP_SHOWS_TEXTS, .get = serve_map_json},
    {"/tokenizer_info", "GET", HTTP_NEEDS_KEY, .get = get_tokenizer_info},
    {"/tokenize", "POST", HTTP_NEEDS_KEY, .post = serve_post_tokenize},
    {"/detokenize", "POST", HTTP_NEEDS_KEY, .post = serve_post_detokenize},
    {"/apply-template", "POST", HTTP_NEEDS_KEY, .post = serve_post_apply_template},
    {"/completion", "POST", HTTP_NEEDS_KEY, .kind = SERVE_NATIVE},
    {"/completions", "POST", HTTP_NEEDS_KEY, .kind = SERVE_NATIVE},
    {"/infill", "POST", HTTP_NEEDS_KEY, .kind = SERVE_NATIVE, .surface = &serve_infill},
    {"/v1/completions", "POST", HTTP_NEEDS_KEY, .kind = SERVE_COMPLETION},
    {"/v1/chat/completions", "POST", HTTP_NEEDS_KEY, .kind = SERVE_CHAT},
    {"/chat/completions", "POST", HTTP_NEEDS_KEY, .kind = SERVE_CHAT},
    {"/v1/responses", "POST", HTTP_NEEDS_KEY, .kind = SERVE_CHAT, .surface = &serve_responses},
    {"/v1/messages", "POST", HTTP_NEEDS_KEY, .kind = SERVE_CHAT, .surface = &serve_messages},
    {"/v1/messages/count_tokens", "POST", HTTP_NEEDS_KEY, .post = serve_post_count_tokens},
    {"/v1/embeddings", "POST", HTTP_NEEDS_KEY, .kind = SERVE_COMPLETION, .surface = &serve_embeddings},
};

static bool is_at(const struct route *route, const char *path)
{
    const size_t n = strlen(route->path);
    return strncmp(route->path, path, n) == 0 && (path[n] == 0 || route->path[n - 1] == '/');
}

static enum http_open open_to(const char *path)
{
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (is_at(&routes[i], path))
            return routes[i].open;
    return serve_page_has(path) ? HTTP_OPEN : HTTP_NEEDS_KEY;
}

/* The answer to a request that is refused before it is read, in the shape of all errors. */
static size_t refusal(int status, const char *message, char *out, size_t n_out)
{
    const char *type = status == 401   ? "authentication_error"
                       : status == 403 ? "permission_error"
                       : status == 501 ? "not_supported_error"
                       : status == 503 ? "unavailable_error"
                                       : "invalid_request_error";
    return (size_t)snprintf(out, n_out, "{\"type\":\"error\",\"error\":{\"code\":%d,\"message\":\"%s\",\"type\":\"%s\"}}", status,
                            message, type);
}

static const struct route *find_route(const struct http_exchange *exchange, struct serve_error *error)
{
    const bool get = strcmp(exchange->method, "GET") == 0 || strcmp(exchange->method, "HEAD") == 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (!is_at(&routes[i], exchange->path))
            continue;
        if (strcmp(routes[i].method, get ? "GET" : exchange->method) == 0)
            return &routes[i];
        error->header = routes[i].method[0] == 'G' ? "Allow: GET, HEAD, OPTIONS\r\n" : "Allow: POST, OPTIONS\r\n";
    }
    if (error->header)
        serve_fail(error, 405, "%.16s is not a method of %.256s", exchange->method, exchange->path);
    else
        serve_fail(error, 404, "there is no %.256s", exchange->path);
    return NULL;
}

/* A request with a body, from its arrival until its jobs are submitted or it is answered. */
struct body_task {
    struct serve_task task;
    struct serve_api *api;
    const struct route *route;
    struct http_exchange *exchange; /* of the loop's thread alone; NULL: the client has gone */
    char *body, *key;
    int owner;
    /* What comes of it, one of the three. */
    struct serve_error error;
    struct serve_request *request;
    char *answer; /* JSON */
};

struct serve_request *serve_parse(struct serve_api *api, const struct serve_surface *surface, enum serve_kind kind, json_t *body,
                                  const struct serve_client *client, struct serve_error *error)
{
    json_t *own = surface ? surface->translate(api, body, error) : NULL;
    struct serve_request *request = error->status ? NULL : serve_request_parse(api, kind, own ? own : body, client, error);
    json_decref(own);
    if (request && surface && surface->whole) {
        request->surface = surface;
        serve_name_answer(request, surface->id_prefix);
        if (surface->prepare)
            surface->prepare(request, body);
    }
    return request;
}

/* In a worker's thread. What it uses of the API is constant or atomic. */
static void run_task(struct serve_task *task)
{
    struct body_task *t = (struct body_task *)task;
    json_t *body = serve_parse_body(t->body, task->n_bytes, &t->error), *answer = NULL;
    free(t->body);
    t->body = NULL;
    if (serve_worker_is_dropped(task)) {
        json_decref(body);
        return;
    }
    if (!t->error.status && !t->route->post)
        t->request = serve_parse(t->api, t->route->surface, t->route->kind, body,
                                 &(struct serve_client){.key = t->key, .owner = t->owner}, &t->error);
    else if (!t->error.status)
        answer = t->route->post(t->api, body, &t->error);
    json_decref(body);
    t->answer = answer ? json_dumps(answer, JSON_COMPACT) : NULL;
    if (!t->request && !t->answer && !t->error.status)
        serve_fail(&t->error, 500, "the answer is no JSON");
    json_decref(answer);
}

static void on_close(struct http_exchange *exchange)
{
    struct body_task *t = exchange->user;
    t->exchange = NULL;
    serve_worker_drop(&t->task);
}

static void post(struct serve_api *api, const struct route *route, struct http_exchange *exchange)
{
    struct body_task *t = serve_alloc(1, sizeof *t);
    *t = (struct body_task){
        .api = api, .route = route, .exchange = exchange, .key = strdup(exchange->key), .owner = exchange->owner};
    t->body = serve_alloc(exchange->n_body + 1, 1);
    memcpy(t->body, exchange->body, exchange->n_body);
    t->task.n_bytes = exchange->n_body;
    t->task.key = t->key;
    exchange->user = t;
    exchange->on_close = on_close;
    serve_worker_submit(api->worker, &t->task);
}

static void end_task(struct serve_api *api, struct body_task *t)
{
    struct http_exchange *exchange = t->exchange;
    if (exchange)
        exchange->on_close = NULL;
    if (exchange && t->error.status)
        serve_reply_error(api, exchange, &t->error);
    else if (exchange && t->request)
        serve_request_start(t->request, exchange);
    else if (exchange)
        http_reply(exchange, 200, content_type, NULL, t->answer, strlen(t->answer));
    else if (t->request)
        serve_request_free(t->request);
    free(t->body); /* of a task that was dropped */
    free(t->answer);
    free(t->key);
    free(t);
}

static void answer_get(struct serve_api *api, const struct route *route, struct http_exchange *exchange)
{
    struct serve_error error = {0};
    json_t *found = route->get(api, exchange, &error);
    if (found)
        serve_reply_json(exchange, 200, NULL, found);
    else
        serve_reply_error(api, exchange, &error);
}

static void handle(void *user, struct http_exchange *exchange)
{
    struct serve_api *api = user;
    struct serve_error error = {0};
    if (serve_page_reply(exchange))
        return;
    const struct route *route = find_route(exchange, &error);
    if (!route)
        serve_reply_error(api, exchange, &error);
    else if (route->text)
        route->text(api, exchange);
    else if (route->get)
        answer_get(api, route, exchange);
    else
        post(api, route, exchange);
}

/* Paths are those of routes, so that their number has a bound. */
static void on_answer(void *user, const char *path, int status)
{
    enum { SOME = 64 };
    struct serve_api *api = user;
    const char *name = "other";
    int i = 0;
    for (size_t r = 0; r < sizeof routes / sizeof *routes; r++)
        if (is_at(&routes[r], path))
            name = routes[r].path;
    while (i < api->n_counts && (strcmp(api->counts[i].path, name) != 0 || api->counts[i].status != status))
        i++;
    if (i == api->n_counts) {
        if (i % SOME == 0) {
            struct serve_answer_count *more = serve_alloc((size_t)i + SOME, sizeof *more);
            if (i > 0)
                memcpy(more, api->counts, (size_t)i * sizeof *more);
            free(api->counts);
            api->counts = more;
        }
        api->counts[api->n_counts++] = (struct serve_answer_count){.path = name, .status = status};
    }
    api->counts[i].n++;
}

static void on_wake(void *user)
{
    struct serve_api *api = user;
    for (struct serve_task *task = serve_worker_collect(api->worker), *next; task; task = next) {
        next = task->next;
        end_task(api, (struct body_task *)task);
    }
    for (struct serve_event *event = serve_devices_collect(api->devices), *next; event; event = next) {
        next = event->next;
        serve_on_event(event);
        serve_event_free(event);
    }
}

static void wake(void *user)
{
    struct serve_api *api = user;
    http_server_wake(api->http);
}

/* Requests whose answers were cut short by a second signal still wait for their jobs' last events. */
static void free_rest(struct serve_api *api)
{
    serve_worker_stop(api->worker);
    on_wake(api); /* no client is there any more: nothing is submitted */
    serve_devices_stop(api->devices);
    on_wake(api);
}

int serve_run(struct butler_engine *const *engines, int n, const struct serve_config *config, struct butler_error *err)
{
    struct serve_api api = {.config = *config, .engine = engines[0], .model = butler_engine_model(engines[0]), .begun = time(NULL)};
    struct http_params http = config->http;
    struct serve_params scheduler = config->scheduler;
    struct timespec seed;
    clock_gettime(CLOCK_REALTIME, &seed);
    if (config->secret)
        memcpy(api.secret, config->secret, sizeof api.secret);
    else if (getrandom(api.secret, sizeof api.secret, 0) != (ssize_t)sizeof api.secret) {
        *err = (struct butler_error){BUTLER_ERROR_IO, "the system gives no random numbers"};
        return err->code;
    }
    api.random = (uint64_t)seed.tv_sec * 1000000007u ^ (uint64_t)seed.tv_nsec;
    api.info = butler_model_get_info(api.model);
    http.handler = handle;
    http.open_to = open_to;
    http.refusal = refusal;
    http.refusal_type = content_type;
    http.on_wake = on_wake;
    http.on_answer = on_answer;
    http.user = &api;
    scheduler.wake = wake;
    scheduler.user = &api;
    err->code = BUTLER_ERROR_IO;
    api.http = http_server_new(&http, err->message, sizeof err->message);
    if (!api.http)
        return err->code;
    json_object_seed(0); /* before two threads make objects */
    api.devices = serve_devices_new(engines, config->libraries, n, &scheduler, err);
    api.worker = api.devices ? serve_worker_new(N_WORKERS, run_task, wake, &api) : NULL;
    if (!api.worker) {
        if (api.devices) {
            *err = (struct butler_error){BUTLER_ERROR_MEMORY, "the threads that read requests cannot be started"};
            serve_devices_stop(api.devices);
            serve_devices_free(api.devices);
        }
        http_server_free(api.http);
        return err->code;
    }
    err->code = 0;
    const struct serve_params *const given = serve_devices_params(api.devices);
    api.n_ctx = given->n_ctx;
    serve_measure_tokens(&api);
    api.lossless = given->lossless;
    api.n_drafts = given->n_drafts;
    if (config->ready)
        config->ready(config->user, http_server_port(api.http));
    http_server_run(api.http);
    /* Connections first: exchanges that are open tell their requests that the client has gone. */
    http_server_close(api.http);
    free_rest(&api);
    serve_worker_free(api.worker);
    serve_devices_free(api.devices);
    http_server_free(api.http);
    free(api.counts);
    return 0;
}
