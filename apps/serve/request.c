/* From the body of a request to jobs: every field is read here, with its limits. Fields that nobody knows are ignored; fields whose
 * meaning the server does not have are refused by name, for an answer that silently lacks it would be wrong. */
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xxhash.h>

#include "serve/api_parts.h"

int serve_fail(struct serve_error *error, int status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
    const char *end = error->message[0] == '\'' ? strchr(error->message + 1, '\'') : NULL;
    error->n_param = end ? (int)(end - error->message) - 1 : 0;
    error->status = status;
    error->type = status == 429   ? "rate_limit_error"
                  : status == 503 ? "unavailable_error"
                  : status == 500 ? "server_error"
                  : status == 404 ? "not_found_error"
                                  : "invalid_request_error";
    return -status;
}

/* ------------------------------------------------------------------------------------------------------ fields */

/* The first error stays: readers go on with the default after it. */
static double read_number(json_t *body, const char *name, double min, double max, double missing, struct serve_error *error)
{
    json_t *value = json_object_get(body, name);
    if (!value || json_is_null(value) || error->status)
        return missing;
    const double number = json_number_value(value);
    if (json_is_number(value) && number >= min && number <= max)
        return number;
    serve_fail(error, 400, "'%s' must be a number from %g to %g", name, min, max);
    return missing;
}

static int read_int(json_t *body, const char *name, int min, int max, int missing, struct serve_error *error)
{
    const double number = read_number(body, name, min, max, missing, error);
    if (number == floor(number))
        return (int)number;
    if (!error->status)
        serve_fail(error, 400, "'%s' must be a whole number", name);
    return missing;
}

bool serve_read_bool(json_t *body, const char *name, bool missing, struct serve_error *error)
{
    json_t *value = json_object_get(body, name);
    if (!value || json_is_null(value) || error->status)
        return missing;
    if (!json_is_boolean(value))
        serve_fail(error, 400, "'%s' must be true or false", name);
    return json_is_true(value);
}

int serve_read_count(json_t *body, const char *name, bool required, struct serve_error *error)
{
    json_t *value = json_object_get(body, name);
    const double number = json_number_value(value);
    if (error->status || ((!value || json_is_null(value)) && !required))
        return 0;
    if (json_is_number(value) && number >= 1 && number <= INT_MAX && number == floor(number))
        return (int)number;
    serve_fail(error, 400, "'%s' must be a whole number, 1 or more", name);
    return 0;
}

static bool is_given(const json_t *value)
{
    return value && !json_is_null(value);
}

bool serve_is_neutral(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

int serve_refuse_fields(json_t *body, const char *const *names, size_t n, struct serve_error *error)
{
    for (size_t i = 0; i < n; i++) {
        const json_t *value = json_object_get(body, names[i]);
        const bool is_one = strcmp(names[i], "length_penalty") == 0 && json_number_value(value) == 1;
        if (!serve_is_neutral(value) && !is_one)
            return serve_fail(error, 400, "'%s' is not supported by this server", names[i]);
    }
    return 0;
}

void serve_add_message(json_t *messages, const char *role, json_t *content)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const char *last_role = json_string_value(json_object_get(last, "role"));
    json_t *parts = json_is_string(content) ? json_pack("[{s:s, s:O}]", "type", "text", "text", content) : json_incref(content);
    if (last_role && strcmp(last_role, role) == 0) {
        if (json_array_size(json_object_get(last, "content")) > 0)
            json_array_append_new(json_object_get(last, "content"), json_pack("{s:s, s:s}", "type", "text", "text", "\n\n"));
        json_array_extend(json_object_get(last, "content"), parts);
    } else {
        json_array_append_new(messages, json_pack("{s:s, s:o}", "role", role, "content", json_copy(parts)));
    }
    json_decref(parts);
}

json_t *serve_copy_body(json_t *body, json_t *messages)
{
    /* Of OpenAI's chats: several answers, their scores, and other names for the length. */
    static const char *const dropped[] = {
        "n", "n_cmpl", "best_of", "echo", "logprobs", "top_logprobs", "stream_options", "max_completion_tokens", "n_predict"};
    json_t *copy = json_copy(body);
    for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
        json_object_del(copy, dropped[i]);
    json_object_set_new(copy, "messages", messages);
    json_object_del(copy, "reasoning_format"); /* their answers have a place of their own for it */
    return copy;
}

/* Fields that mean something which this server does not do. */
int serve_refuse_unsupported(json_t *body, struct serve_error *error)
{
    static const char *const names[] = {
        "guided_json",
        "guided_regex",
        "guided_grammar",
        "grammar_lazy",
        "guided_choice",
        "structured_outputs",
        "functions",
        "function_call",
        "mirostat",
        "dry_multiplier",
        "xtc_probability",
        "dynatemp_range",
        "audio",
        "lora",
        "use_beam_search",
        "post_sampling_probs",
        "n_keep",
        "prompt_logprobs",
        "top_n_sigma",
        "image_data",
        "length_penalty",
        "bad_words",
        "allowed_token_ids",
        "stop_token_ids",
        "include_stop_str_in_output",
        "truncate_prompt_tokens",
        "web_search_options",
        "chat_template",
        "documents",
        "logits_processors",
        "return_token_ids",
        "return_tokens_as_token_ids",
    };
    return serve_refuse_fields(body, names, sizeof names / sizeof *names, error);
}

/* -------------------------------------------------------------------------------------------------- text to ids */

int serve_tokenize(struct serve_api *api, json_t *text, int flags, int32_t **ids, struct serve_error *error)
{
    struct butler_error err = {0};
    const char *bytes = json_string_value(text);
    const size_t n_bytes = json_string_length(text), room = n_bytes / 2 + 16; /* mostly enough for a single pass */
    *ids = serve_alloc(room, sizeof **ids);
    int n = butler_tokenize(api->model, bytes, n_bytes, flags, *ids, (int)room, &err);
    if (n > (int)room) {
        free(*ids);
        *ids = serve_alloc((size_t)n, sizeof **ids);
        n = butler_tokenize(api->model, bytes, n_bytes, flags, *ids, n, &err);
    }
    if (n >= 0)
        return n;
    free(*ids);
    *ids = NULL;
    return serve_fail(error, 400, "%s", err.message);
}

/* Ids of a prompt, or of a part of one. */
static int tokenize_prompt(const struct serve_api *api, json_t *text, int flags, int32_t **ids, struct serve_error *error)
{
    const struct butler_chat_text whole = {.bytes = (char *)json_string_value(text), .n = json_string_length(text)};
    return serve_tokenize_prompt(api, &whole, false, flags, ids, error);
}

/* A token's id: a whole number, which clients in some languages write as 5.0. < 0: it is none. */
static int32_t read_id(const struct serve_api *api, const json_t *value)
{
    const double id = json_is_number(value) ? json_number_value(value) : -1;
    return id >= 0 && id < api->info->n_vocab && id == floor(id) ? (int32_t)id : -1;
}

int serve_read_ids(struct serve_api *api, json_t *array, int32_t **ids, struct serve_error *error)
{
    const size_t n = json_array_size(array);
    *ids = NULL;
    if (n > INT_MAX / 8)
        return serve_fail(error, 400, "too many tokens");
    int32_t *out = serve_alloc(n, sizeof *out);
    for (size_t i = 0; i < n; i++) {
        out[i] = read_id(api, json_array_get(array, i));
        if (out[i] < 0) {
            free(out);
            return serve_fail(error, 400, "token %zu must be a whole number from 0 to %d", i, api->info->n_vocab - 1);
        }
    }
    *ids = out;
    return (int)n;
}

static bool has(json_t *array, bool (*is)(const json_t *value))
{
    for (size_t i = 0; i < json_array_size(array); i++)
        if (is(json_array_get(array, i)))
            return true;
    return false;
}

static bool is_string(const json_t *value)
{
    return json_is_string(value);
}

static bool is_number(const json_t *value)
{
    return json_is_number(value);
}

/* Texts and ids of one prompt, one behind the other, as llama.cpp's server takes them: a text that is not the first gets no BOS. */
static int read_mixed(struct serve_api *api, json_t *array, int flags, int32_t **ids, struct serve_error *error)
{
    struct butler_buffer all = {0}; /* of int32_t */
    *ids = NULL;
    for (size_t i = 0; i < json_array_size(array) && !error->status; i++) {
        json_t *part = json_array_get(array, i);
        int32_t id = read_id(api, part), *some = NULL;
        int n = id < 0 ? 0 : 1;
        if (json_is_string(part))
            n = tokenize_prompt(api, part, i ? flags & ~BUTLER_ADD_SPECIAL : flags, &some, error);
        else if (n == 0)
            serve_fail(error, 400, "token %zu must be a whole number from 0 to %d", i, api->info->n_vocab - 1);
        if (n > 0)
            serve_text_append(&all, (const char *)(some ? some : &id), (size_t)n * sizeof id);
        free(some);
    }
    if (error->status) {
        butler_buffer_free(&all);
        return -error->status;
    }
    *ids = (int32_t *)(void *)all.bytes;
    return (int)(all.n / sizeof **ids);
}

int serve_read_prompt(struct serve_api *api, json_t *prompt, int flags, int32_t **ids, struct serve_error *error)
{
    if (json_is_string(prompt))
        return tokenize_prompt(api, prompt, flags, ids, error);
    if (!json_is_array(prompt))
        return serve_fail(error, 400, "'prompt' must be a string, an array of token ids, or an array of those");
    return has(prompt, is_string) ? read_mixed(api, prompt, flags, ids, error) : serve_read_ids(api, prompt, ids, error);
}

/* ------------------------------------------------------------------------------------------- parts of a job */

static void add_stop(struct serve_job *job, const char *text, struct serve_error *error)
{
    if (job->n_stops == SERVE_MAX_STOPS)
        serve_fail(error, 400, "'stop' has more than %d texts", SERVE_MAX_STOPS);
    else if (*text) /* an empty one would end every text at once; clients send it for "none" */
        job->stops[job->n_stops++] = strdup(text);
}

static void read_stops(json_t *body, struct serve_job *job, struct serve_error *error)
{
    json_t *stop = json_object_get(body, "stop"), *text;
    size_t i;
    if (!stop || json_is_null(stop))
        return;
    if (json_is_string(stop))
        add_stop(job, json_string_value(stop), error);
    else if (!json_is_array(stop))
        serve_fail(error, 400, "'stop' must be a string or an array of strings");
    json_array_foreach(json_is_array(stop) ? stop : NULL, i, text)
    {
        if (json_is_string(text))
            add_stop(job, json_string_value(text), error);
        else
            serve_fail(error, 400, "'stop' must be a string or an array of strings");
    }
}

/* A bias: a number, or false for a token that is never drawn. */
static bool read_bias(const json_t *value, float *bias)
{
    *bias = json_is_false(value) ? -INFINITY : (float)json_number_value(value);
    return json_is_false(value) || (json_is_number(value) && fabs(json_number_value(value)) <= 1e30);
}

/* A bias of a token, by its id or its spelling in digits, or of all tokens of a text. False: it makes no sense. */
static bool add_bias(struct serve_api *api, json_t *token, const json_t *value, struct butler_buffer *out)
{
    struct butler_logit_bias bias = {.id = read_id(api, token)};
    struct serve_error error = {0};
    int32_t *ids = NULL;
    if (!read_bias(value, &bias.bias))
        return false;
    if (!json_is_string(token)) {
        serve_text_append(out, (const char *)&bias, sizeof bias);
        return bias.id >= 0;
    }
    const int n = serve_tokenize(api, token, 0, &ids, &error);
    for (int i = 0; i < n; i++) {
        bias.id = ids[i];
        serve_text_append(out, (const char *)&bias, sizeof bias);
    }
    free(ids);
    return n > 0;
}

/* {"5": -1.5} of OpenAI, or [[5, -1.5], ["text", false]] of llama.cpp, which takes texts as names too. */
static void read_logit_bias(struct serve_api *api, json_t *body, struct serve_job *job, struct serve_error *error)
{
    json_t *map = json_object_get(body, "logit_bias"), *value, *pairs = json_array();
    struct butler_buffer out = {0}; /* of struct butler_logit_bias */
    const char *name;
    size_t i;
    bool right = true;
    json_object_foreach(json_is_object(map) ? map : NULL, name, value)
    {
        const bool is_id = *name && strspn(name, "0123456789") == strlen(name);
        json_array_append_new(pairs, json_pack("[o, O]", is_id ? json_integer(strtol(name, NULL, 10)) : json_string(name), value));
    }
    if (json_is_array(map))
        json_array_extend(pairs, map);
    else if (is_given(map) && !json_is_object(map))
        serve_fail(error, 400, "'logit_bias' must be an object or an array");
    json_array_foreach(pairs, i, value)
    {
        right = right && add_bias(api, json_array_get(value, 0), json_array_get(value, 1), &out);
    }
    if (!right)
        serve_fail(error, 400, "'logit_bias' must give numbers (or false) for token ids from 0 to %d, or for texts",
                   api->info->n_vocab - 1);
    job->sampling.logit_bias = (struct butler_logit_bias *)(void *)out.bytes;
    job->sampling.n_logit_bias = (int)(out.n / sizeof(struct butler_logit_bias));
    json_decref(pairs);
}

/* Exact up to 2^63 - 1, which a double is not. -1: none. */
static int64_t read_seed(json_t *body, struct serve_error *error)
{
    json_t *value = json_object_get(body, "seed");
    const double real = json_is_real(value) ? json_real_value(value) : -1;
    if (!is_given(value) || error->status)
        return -1;
    if (json_is_integer(value) && json_integer_value(value) >= -1)
        return json_integer_value(value);
    if (json_is_real(value) && real >= -1 && real <= 9007199254740992.0 && real == floor(real)) /* 5.0 */
        return (int64_t)real;
    serve_fail(error, 400, "'seed' must be a whole number from -1 to 9223372036854775807");
    return -1;
}

static void read_sampling(struct serve_api *api, json_t *body, struct serve_job *job, struct serve_error *error)
{
    const struct butler_sampler_params *base = &api->config.sampling;
    struct butler_sampler_params *p = &job->sampling;
    *p = *base;
    p->temperature = (float)read_number(body, "temperature", 0, 1000, (double)base->temperature, error);
    p->top_k = read_int(body, "top_k", -1, INT_MAX, base->top_k, error);
    p->top_k = p->top_k < 0 ? 0 : p->top_k;
    p->top_p = (float)read_number(body, "top_p", 0, 1, (double)base->top_p, error);
    if (p->top_p <= 0) /* the most probable token alone; to the library 0 is off */
        p->top_p = FLT_MIN;
    p->min_p = (float)read_number(body, "min_p", 0, 1, (double)base->min_p, error);
    p->typical_p = (float)read_number(body, "typical_p", 0, 1, (double)base->typical_p, error);
    p->repeat_penalty = (float)read_number(body, "repeat_penalty", 0, 1000, (double)base->repeat_penalty, error);
    p->repeat_penalty = (float)read_number(body, "repetition_penalty", 0, 1000, (double)p->repeat_penalty, error);
    p->frequency_penalty = (float)read_number(body, "frequency_penalty", -100, 100, (double)base->frequency_penalty, error);
    p->presence_penalty = (float)read_number(body, "presence_penalty", -100, 100, (double)base->presence_penalty, error);
    p->penalty_last_n = read_int(body, "repeat_last_n", -1, INT_MAX, base->penalty_last_n, error);
    p->min_tokens = read_int(body, "min_tokens", 0, INT_MAX, 0, error);
    job->ignore_end = serve_read_bool(body, "ignore_eos", false, error);
    if (job->ignore_end)
        p->min_tokens = INT_MAX;
    const int64_t seed = read_seed(body, error);
    /* A seed that nobody chose: another each time. */
    const uint64_t random = __atomic_add_fetch(&api->random, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED);
    p->seed = seed < 0 ? (random ^ random >> 31) : (uint64_t)seed;
    read_logit_bias(api, body, job, error);
}

/* Most tokens of an answer; -1, or nothing where the interface has no default: what the context holds. */
static int read_max_tokens(json_t *body, enum serve_kind kind, struct serve_error *error)
{
    static const char *const names[] = {"max_completion_tokens", "max_tokens", "n_predict"};
    int n = kind == SERVE_COMPLETION ? 16 : -1;
    for (int i = 2; i >= 0; i--) /* the first that is given counts */
        n = read_int(body, names[i], -1, INT_MAX, n, error);
    return n < 0 ? INT_MAX / 2 : n;
}

/* A request that names neither is as the server's flags say; one that names a policy is lossless only if it says so. */
static void read_lossless(const struct serve_api *api, json_t *lossless, struct serve_job *job, struct serve_error *error)
{
    const double n = json_number_value(lossless); /* 2.0 is an integer of JSON */
    if (!is_given(lossless)) {
        job->lossless = api->lossless && !job->policy;
        job->n_drafts = api->n_drafts;
    } else if (!json_is_boolean(lossless) && !(n >= 1 && n <= 15 && n == floor(n))) {
        serve_fail(error, 400, "'kv.lossless' must be true, false, or drafts for a check: 1 to 15");
    } else {
        job->lossless = !json_is_false(lossless);
        job->n_drafts = (int)n;
    }
    if (!job->policy && job->lossless != api->lossless)
        job->policy = strdup(job->lossless ? "verified" : "full");
}

static void read_policy(const struct serve_api *api, json_t *body, struct serve_job *job, struct serve_error *error)
{
    json_t *kv = json_object_get(body, "kv"), *value;
    const char *name;
    if (kv && !json_is_null(kv) && !json_is_object(kv))
        serve_fail(error, 400, "'kv' must be an object");
    json_object_foreach(json_is_object(kv) ? kv : NULL, name, value)
    {
        if (strcmp(name, "lossless") == 0 || strcmp(name, "map") == 0 || strcmp(name, "receipt") == 0)
            continue;
        if (strcmp(name, "policy") != 0)
            serve_fail(error, 400, "'kv.%.64s' is not supported by this server", name);
        else if (!json_is_string(value))
            serve_fail(error, 400, "'kv.policy' must be a string");
        else if (!job->policy)
            job->policy = strdup(json_string_value(value));
    }
    read_lossless(api, json_object_get(kv, "lossless"), job, error);
    job->map = serve_read_bool(kv, "map", false, error);
    job->receipt = json_is_object(kv) ? read_int(kv, "receipt", 0, INT_MAX, 0, error) : 0;
    if (job->map && job->lossless && !error->status)
        serve_fail(error, 400, "'kv.map' shows what a policy reads; a lossless text reads everything");
}

/* How many of the most probable tokens to report: OpenAI's completions have a number, its chats a flag and a number. */
static int read_n_top(json_t *body, enum serve_kind kind, struct serve_error *error)
{
    if (kind == SERVE_NATIVE) {
        const int n = read_int(body, "n_probs", 0, SERVE_MAX_TOP, 0, error);
        return n > 0 ? n : -1;
    }
    const bool is_flag = kind == SERVE_CHAT || json_is_boolean(json_object_get(body, "logprobs"));
    const int n = !is_flag                                          ? read_int(body, "logprobs", 0, SERVE_MAX_TOP, -1, error)
                  : serve_read_bool(body, "logprobs", false, error) ? 0
                                                                    : -1;
    const int top = read_int(body, "top_logprobs", 0, SERVE_MAX_TOP, 0, error);
    if (top > 0 && n < 0 && !error->status)
        serve_fail(error, 400, "'top_logprobs' needs 'logprobs'");
    return n >= 0 && top > n ? top : n;
}

/* ------------------------------------------------------------------------------------------------- the request */

/* Beginnings of prompts are shared among requests of one key, and of one "cache_salt" where there is one. */
static uint64_t read_salt(const struct serve_api *api, json_t *body, const struct serve_client *client, struct serve_error *error)
{
    const json_t *given = json_object_get(body, "cache_salt");
    struct butler_buffer text = {0};
    if (is_given(given) && json_string_length(given) == 0 && !error->status)
        serve_fail(error, 400, "'cache_salt' must be a string that is not empty");
    if (client->owner == 0 && !is_given(given))
        return 0;
    if (client->owner > 0) { /* the key and not its number, which another start may give to another key */
        const struct http_params *http = &api->config.http;
        const char *key = client->owner <= http->n_keys ? http->keys[client->owner - 1] : http->admin_key;
        serve_text_append(&text, key ? key : "", key ? strlen(key) : 0);
    }
    serve_text_append(&text, "", 1);
    serve_text_append(&text, json_string_value(given), json_string_length(given));
    const uint64_t salt = XXH3_64bits_withSecret(text.bytes, text.n, api->secret, sizeof api->secret);
    butler_buffer_free(&text);
    return salt;
}

void serve_name_answer(struct serve_request *request, const char *prefix)
{
    for (int j = 0; j < request->n_jobs && request->kind != SERVE_NATIVE; j++)
        snprintf(request->jobs[j]->answer_id, sizeof request->jobs[j]->answer_id, "%s%s", prefix ? prefix : "",
                 prefix ? strchr(request->id, '-') + 1 : request->id);
}

static struct serve_job *make_job(struct serve_request *request, json_t *body, int32_t *ids, int n,
                                  const struct serve_client *client, struct serve_error *error)
{
    struct serve_api *api = request->api;
    struct serve_job *job = serve_alloc(1, sizeof *job);
    job->prompt = ids;
    job->n_prompt = n;
    job->n_choices = request->n_choices;
    job->n_top = request->n_top;
    job->score_prompt = request->echo && request->n_top >= 0;
    job->max_tokens = read_max_tokens(body, request->kind, error);
    if (request->kind == SERVE_NATIVE) {
        job->n_indent = read_int(body, "n_indent", 0, INT_MAX, 0, error);
        job->max_line_s = 1e-3 * read_number(body, "t_max_predict_ms", -1, 1e9, 0, error);
    }
    job->no_cache = !serve_read_bool(body, "cache_prompt", true, error);
    job->progress = serve_read_bool(body, "return_progress", false, error) && request->stream;
    job->user = request;
    const char *format = json_string_value(json_object_get(body, "reasoning_format"));
    const bool raw = request->kind == SERVE_CHAT && format && strcmp(format, "none") == 0; /* its marks are content */
    job->is_shown = request->syntax.calls || request->syntax.reasoning || raw ? serve_syntax_is_mark : NULL;
    job->key = *client->key ? strdup(client->key) : NULL;
    job->owner = client->owner;
    job->salt = read_salt(api, body, client, error);
    read_sampling(api, body, job, error);
    job->sampling.grammar = request->grammar;
    read_policy(api, body, job, error);
    read_stops(body, job, error);
    for (int i = 0; i < api->config.n_stops; i++)
        add_stop(job, api->config.stops[i], error);
    if (request->kind == SERVE_CHAT && api->config.chat_stop)
        add_stop(job, api->config.chat_stop, error);
    if (n == 0 && !error->status)
        serve_fail(error, 400, "the prompt is empty: there is nothing to continue");
    if (!error->status)
        serve_check_length(api, n, error);
    return job;
}

/* Ids of the conversation, and what its answers may be. */
static int add_chat(struct serve_request *request, json_t *body, int32_t **ids, struct serve_error *error)
{
    struct serve_chat chat;
    json_t *place;
    size_t i;
    int n = serve_read_chat(request->api, body, &chat, error);
    if (n == 0)
        n = serve_tokenize_chat(request->api, &chat, &request->syntax, ids, error);
    if (n >= 0) {
        request->not_held = json_array();
        json_array_foreach(chat.left_out, i, place)
        {
            json_array_append_new(request->not_held, json_sprintf("tools[%d]", (int)json_integer_value(place)));
        }
        request->grammar = serve_make_chat_grammar(request->api, &chat, body, &request->syntax, request->not_held, error);
    }
    serve_chat_free(&chat);
    return n;
}

static void add_prompt(struct serve_request *request, json_t *body, json_t *prompt, const struct serve_client *client,
                       struct serve_error *error)
{
    int32_t *ids = NULL;
    const bool special = serve_read_bool(body, "add_special_tokens", true, error);
    const int flags = BUTLER_PARSE_SPECIAL | (special ? BUTLER_ADD_SPECIAL : 0);
    const int n = request->kind == SERVE_CHAT            ? add_chat(request, body, &ids, error)
                  : serve_is_infill(body, request->kind) ? serve_read_infill(request->api, body, prompt, request->kind, &ids, error)
                                                         : serve_read_prompt(request->api, prompt, flags, &ids, error);
    if (n < 0 || error->status)
        free(ids);
    else
        request->jobs[request->n_jobs++] = make_job(request, body, ids, n, client, error);
}

struct serve_request *serve_request_parse(struct serve_api *api, enum serve_kind kind, json_t *body,
                                          const struct serve_client *client, struct serve_error *error)
{
    json_t *prompt = json_object_get(body, "prompt"), *options = json_object_get(body, "stream_options");
    const bool is_list = kind != SERVE_CHAT && json_array_size(prompt) > 0 && !has(prompt, is_number);
    const size_t n = is_list ? json_array_size(prompt) : 1;
    struct serve_request *request = serve_alloc(1, sizeof *request);
    *request = (struct serve_request){.api = api, .kind = kind, .created = time(NULL)};
    serve_refuse_unsupported(body, error);
    request->grammar = kind == SERVE_CHAT ? NULL : serve_read_constraint(api, body, error);
    if (kind != SERVE_CHAT && !serve_is_neutral(json_object_get(body, "tools")) && !error->status)
        serve_fail(error, 400, "'tools' is not supported by this server outside conversations");
    request->stream = serve_read_bool(body, "stream", false, error);
    if (is_given(options) && !json_is_object(options) && !error->status)
        serve_fail(error, 400, "'stream_options' must be an object");
    request->include_usage = serve_read_bool(options, "include_usage", false, error);
    request->echo = kind == SERVE_COMPLETION && serve_read_bool(body, "echo", false, error);
    request->n_top = read_n_top(body, kind, error);
    request->n_choices = read_int(body, "n", 1, SERVE_MAX_CHOICES, 1, error);
    request->n_choices = read_int(body, "n_cmpl", 1, SERVE_MAX_CHOICES, request->n_choices, error);
    if (read_int(body, "best_of", 0, INT_MAX, 1, error) > request->n_choices)
        serve_fail(error, 400, "'best_of' above 'n' is not supported by this server");
    if (request->echo && serve_is_infill(body, kind))
        serve_fail(error, 400, "'echo' is not supported by this server with 'suffix'");
    if (kind == SERVE_CHAT && serve_read_bool(body, "echo", false, error))
        serve_fail(error, 400, "'echo' is not supported by this server in conversations");
    if (is_given(json_object_get(body, "model")) && !json_is_string(json_object_get(body, "model")))
        serve_fail(error, 400, "'model' must be a string");
    if (n > SERVE_MAX_PROMPTS)
        serve_fail(error, 400, "'prompt' has more than %d prompts", SERVE_MAX_PROMPTS);
    request->jobs = serve_alloc(SERVE_MAX_PROMPTS, sizeof(struct serve_job *));
    for (size_t i = 0; i < n && !error->status; i++)
        add_prompt(request, body, is_list ? json_array_get(prompt, i) : prompt, client, error);
    if (error->status) {
        serve_request_free(request);
        return NULL;
    }
    request->answers = serve_alloc((size_t)(request->n_jobs * request->n_choices), sizeof *request->answers);
    snprintf(request->id, sizeof request->id, "%s-%llx%06llx", kind == SERVE_CHAT ? "chatcmpl" : "cmpl",
             (unsigned long long)request->created, (unsigned long long)__atomic_add_fetch(&api->n_requests, 1, __ATOMIC_RELAXED));
    serve_name_answer(request, NULL);
    return request;
}
