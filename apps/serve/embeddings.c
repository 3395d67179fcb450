/* /v1/embeddings: a vector for each text. A text is a prompt of which only hidden states are made, under the policy `full`. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* One text, as a string or as token ids. */
static bool is_text(const json_t *value)
{
    bool right = json_is_string(value) ? json_string_length(value) > 0 : json_array_size(value) > 0;
    for (size_t i = 0; i < json_array_size(value) && right; i++)
        right = json_is_number(json_array_get(value, i));
    return right;
}

static enum serve_pooling read_pooling(json_t *body, struct serve_error *error)
{
    json_t *value = json_object_get(body, "pooling");
    const char *word = json_string_value(value);
    if (serve_is_neutral(value) || (word && strcmp(word, "mean") == 0))
        return SERVE_POOL_MEAN;
    if (word && strcmp(word, "last") == 0)
        return SERVE_POOL_LAST;
    if (word && strcmp(word, "cls") == 0)
        return SERVE_POOL_FIRST;
    if (word && (strcmp(word, "none") == 0 || strcmp(word, "rank") == 0))
        serve_fail(error, 400, "'pooling' of '%s' is not supported by this server", word);
    else
        serve_fail(error, 400, "'pooling' must be 'mean', 'last' or 'cls'");
    return SERVE_POOL_NONE;
}

/* Whether vectors are to be base64 of little-endian floats. */
static bool read_encoding(json_t *body, struct serve_error *error)
{
    json_t *value = json_object_get(body, "encoding_format");
    const char *word = json_string_value(value);
    const bool base64 = word && strcmp(word, "base64") == 0;
    if (value && !json_is_null(value) && !base64 && (!word || strcmp(word, "float") != 0))
        serve_fail(error, 400, "'encoding_format' must be 'float' or 'base64'");
    return base64;
}

static json_t *translate(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *input = json_object_get(body, "input"), *model = json_object_get(body, "model");
    const bool is_one = is_text(input);
    const size_t n_texts = is_one ? 1 : json_array_size(input);
    bool right = n_texts > 0;
    for (size_t i = 0; i < n_texts && !is_one && right; i++)
        right = is_text(json_array_get(input, i));
    const int n = serve_read_count(body, "dimensions", false, error);
    if (!right)
        serve_fail(error, 400, "'input' must be a string, an array of token ids, or an array of those, none of them empty");
    else if (n_texts > SERVE_MAX_PROMPTS)
        serve_fail(error, 400, "'input' has more than %d texts", SERVE_MAX_PROMPTS);
    else if (n > 0 && n != api->info->n_embd)
        serve_fail(error, 400, "'dimensions' other than %d, those of the model, are not supported by this server",
                   api->info->n_embd);
    else if (!error->status && read_pooling(body, error) != SERVE_POOL_NONE)
        read_encoding(body, error);
    if (error->status)
        return NULL;
    json_t *own =
        json_pack("{s:O, s:i, s:b, s:{s:s}}", "prompt", input, "max_tokens", 0, "cache_prompt", 0, "kv", "policy", "full");
    if (model)
        json_object_set(own, "model", model);
    return own;
}

static void prepare(struct serve_request *request, json_t *body)
{
    struct serve_error error = {0}; /* translate found none */
    for (int j = 0; j < request->n_jobs; j++)
        request->jobs[j]->pooling = read_pooling(body, &error);
    request->fields = json_boolean(read_encoding(body, &error));
}

/* RFC 4648, with padding. */
static json_t *base64_json(const unsigned char *bytes, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char *text = serve_alloc((n + 2) / 3 * 4, 1), *to = text;
    for (size_t i = 0; i < n; i += 3) {
        const unsigned more = i + 1 < n ? bytes[i + 1] : 0, last = i + 2 < n ? bytes[i + 2] : 0,
                       bits = (unsigned)bytes[i] << 16 | more << 8 | last;
        *to++ = digits[bits >> 18];
        *to++ = digits[bits >> 12 & 63];
        *to++ = i + 1 < n ? digits[bits >> 6 & 63] : '=';
        *to++ = i + 2 < n ? digits[bits & 63] : '=';
    }
    json_t *value = json_stringn(text, (size_t)(to - text));
    free(text);
    return value;
}

/* Numbers are those of floats in both encodings. */
static json_t *vector_json(const double *vector, int n, bool base64)
{
    unsigned char *bytes = serve_alloc((size_t)n, 4);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        const float x = (float)vector[i];
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        for (int b = 0; b < 4; b++)
            bytes[4 * i + b] = (unsigned char)(bits >> 8 * b);
        if (!base64)
            json_array_append_new(list, json_real((double)x));
    }
    json_t *value = base64 ? base64_json(bytes, 4 * (size_t)n) : json_incref(list);
    json_decref(list);
    free(bytes);
    return value;
}

static json_t *whole(const struct serve_request *request)
{
    const struct serve_api *api = request->api;
    json_t *data = json_array();
    json_int_t n_tokens = 0;
    for (int j = 0; j < request->n_jobs; j++) {
        json_t *vector = vector_json(request->jobs[j]->embedding, api->info->n_embd, json_is_true(request->fields));
        json_array_append_new(data, json_pack("{s:s, s:i, s:o}", "object", "embedding", "index", j, "embedding", vector));
        n_tokens += request->jobs[j]->n_prompt;
    }
    return json_pack("{s:s, s:o, s:s, s:{s:I, s:I}}", "object", "list", "data", data, "model", api->config.model_name, "usage",
                     "prompt_tokens", n_tokens, "total_tokens", n_tokens);
}

const struct serve_surface serve_embeddings = {.translate = translate, .prepare = prepare, .whole = whole};
