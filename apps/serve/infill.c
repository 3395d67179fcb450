/* Texts with a gap that the model fills: /infill of llama.cpp, whose fields /completion takes too, and "suffix" of /v1/completions.
 * The prompt is made of the vocabulary's own tokens for it. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* Ids of a text, which grow. */
struct ids {
    struct butler_buffer bytes; /* of int32_t */
};

static void put_id(struct ids *ids, int32_t id)
{
    serve_text_append(&ids->bytes, (const char *)&id, sizeof id);
}

static size_t count_ids(const struct ids *ids)
{
    return ids->bytes.n / sizeof(int32_t);
}

/* The last n ids of `from`, or the first ones. */
static void put_some(struct ids *ids, const struct ids *from, size_t n, bool last)
{
    const size_t all = count_ids(from);
    serve_text_append(&ids->bytes, from->bytes.bytes + (last ? all - n : 0) * sizeof(int32_t), n * sizeof(int32_t));
}

/* A text, in which special tokens are plain. */
static void put_text(struct serve_api *api, struct ids *ids, const char *text, size_t n, struct serve_error *error)
{
    json_t *string = json_stringn(text, n);
    int32_t *own = NULL;
    const int n_own = string && n > 0 ? serve_tokenize(api, string, 0, &own, error) : 0;
    if (n_own > 0)
        serve_text_append(&ids->bytes, (const char *)own, (size_t)n_own * sizeof *own);
    free(own);
    json_decref(string);
}

static void put_field(struct serve_api *api, struct ids *ids, json_t *value, const char *name, struct serve_error *error)
{
    if (json_is_string(value))
        put_text(api, ids, json_string_value(value), json_string_length(value), error);
    else if (value && !json_is_null(value))
        serve_fail(error, 400, "'%s' must be a string", name);
}

/* Another file: its mark and name where the vocabulary has a mark for files, else a line that separates it. */
static void put_file(struct serve_api *api, struct ids *ids, json_t *file, size_t i, int32_t mark, struct serve_error *error)
{
    json_t *text = json_object_get(file, "text"), *name = json_object_get(file, "filename");
    if (!json_is_string(text) || (name && !json_is_null(name) && !json_is_string(name))) {
        serve_fail(error, 400, "'input_extra[%zu]' must have a string 'text', and may have a string 'filename'", i);
        return;
    }
    const char *called = json_is_string(name) ? json_string_value(name) : "tmp";
    if (mark >= 0) {
        put_id(ids, mark);
        put_text(api, ids, called, strlen(called), error);
        put_text(api, ids, "\n", 1, error);
    } else {
        put_text(api, ids, "\n\n--- snippet ---\n\n", 19, error);
    }
    put_field(api, ids, text, "input_extra", error);
}

/* The latest of the files that have room, behind the mark of a repository. */
static void put_files(struct serve_api *api, struct ids *out, json_t *files, const struct butler_fim_tokens *fim, size_t room,
                      struct serve_error *error)
{
    const size_t n = json_array_size(files);
    struct ids *each = serve_alloc(n, sizeof *each), head = {0};
    size_t first = n;
    if (files && !json_is_null(files) && !json_is_array(files))
        serve_fail(error, 400, "'input_extra' must be an array of objects with a 'text'");
    if (n > 0 && fim->repository >= 0) {
        put_id(&head, fim->repository);
        put_text(api, &head, "repository\n", 11, error);
    }
    room -= count_ids(&head) < room ? count_ids(&head) : room;
    for (size_t i = 0; i < n && !error->status; i++)
        put_file(api, &each[i], json_array_get(files, i), i, fim->file, error);
    while (first > 0 && count_ids(&each[first - 1]) <= room)
        room -= count_ids(&each[--first]);
    if (first < n)
        put_some(out, &head, count_ids(&head), false);
    for (size_t i = 0; i < n; i++) {
        if (i >= first)
            put_some(out, &each[i], count_ids(&each[i]), false);
        butler_buffer_free(&each[i].bytes);
    }
    butler_buffer_free(&head.bytes);
    free(each);
}

static bool is_given(json_t *body, const char *name)
{
    const json_t *value = json_object_get(body, name);
    return value && !json_is_null(value);
}

bool serve_is_infill(json_t *body, enum serve_kind kind)
{
    if (kind == SERVE_NATIVE)
        return is_given(body, "input_prefix") || is_given(body, "input_suffix") || is_given(body, "input_extra");
    return kind == SERVE_COMPLETION && !serve_is_neutral(json_object_get(body, "suffix"));
}

/* Text around the gap, in its order. Of the fields of editors, which send whole files, what is nearest to the gap stays where the
 * context has no room for all: three quarters of it before the gap, one behind. */
static void put_gap(struct ids *out, const struct ids *before, const struct ids *behind, const struct butler_fim_tokens *fim,
                    size_t room)
{
    size_t n_before = count_ids(before), n_behind = count_ids(behind);
    if (n_before + n_behind > room) {
        const size_t least = room / 4, left = room - (n_before < room ? n_before : room);
        n_behind = n_behind < (left > least ? left : least) ? n_behind : left > least ? left : least;
        n_before = n_before < room - n_behind ? n_before : room - n_behind;
    }
    put_id(out, fim->prefix);
    put_some(out, before, n_before, true);
    put_id(out, fim->suffix);
    put_some(out, behind, n_behind, false);
    put_id(out, fim->middle);
}

int serve_read_infill(struct serve_api *api, json_t *body, json_t *prompt, enum serve_kind kind, int32_t **ids,
                      struct serve_error *error)
{
    const struct butler_fim_tokens fim = butler_model_fim(api->model);
    const bool by_editor = kind == SERVE_NATIVE;
    struct ids before = {0}, behind = {0}, out = {0};
    const int32_t bos = butler_token_bos(api->model);
    int32_t *own = NULL, probe = -1;
    *ids = NULL;
    if (fim.prefix < 0 || fim.suffix < 0 || fim.middle < 0)
        return serve_fail(error, 400, "'%s' needs a model with tokens for fill-in-the-middle, which this one has not",
                          by_editor ? "input_suffix" : "suffix");
    if (by_editor) {
        put_field(api, &before, json_object_get(body, "input_prefix"), "input_prefix", error);
        put_field(api, &before, prompt, "prompt", error);
        put_field(api, &behind, json_object_get(body, "input_suffix"), "input_suffix", error);
    } else {
        const int n = serve_read_prompt(api, prompt, 0, &own, error);
        if (n > 0)
            serve_text_append(&before.bytes, (const char *)own, (size_t)n * sizeof *own);
        free(own);
        put_field(api, &behind, json_object_get(body, "suffix"), "suffix", error);
    }
    /* BOS, where texts of this model begin with it. */
    if (butler_tokenize(api->model, "", 0, BUTLER_ADD_SPECIAL, &probe, 1, NULL) > 0 && probe == bos && bos >= 0)
        put_id(&out, bos);
    const json_int_t wanted = json_integer_value(json_object_get(body, "n_predict"));
    const size_t n_ctx = (size_t)api->n_ctx, marks = count_ids(&out) + 3,
                 answer = wanted > 0 && (size_t)wanted < n_ctx / 2 ? (size_t)wanted : n_ctx / 4;
    const size_t room = by_editor ? (n_ctx > answer + marks ? n_ctx - answer - marks : 0) : SIZE_MAX;
    const size_t n_gap = count_ids(&before) + count_ids(&behind);
    if (by_editor && !error->status)
        put_files(api, &out, json_object_get(body, "input_extra"), &fim, n_gap < room ? room - n_gap : 0, error);
    put_gap(&out, &before, &behind, &fim, room);
    butler_buffer_free(&before.bytes);
    butler_buffer_free(&behind.bytes);
    if (!error->status && count_ids(&out) > INT_MAX / 8)
        serve_fail(error, 400, "too many tokens");
    if (error->status) {
        butler_buffer_free(&out.bytes);
        return -error->status;
    }
    *ids = (int32_t *)(void *)out.bytes.bytes;
    return (int)count_ids(&out);
}

static json_t *translate(struct serve_api *api, json_t *body, struct serve_error *error)
{
    json_t *copy = json_copy(body);
    (void)api;
    if (!json_is_string(json_object_get(body, "input_prefix")))
        serve_fail(error, 400, "'input_prefix' must be a string: the text before the gap");
    else if (!json_is_string(json_object_get(body, "input_suffix")))
        serve_fail(error, 400, "'input_suffix' must be a string: the text behind the gap");
    return copy;
}

const struct serve_surface serve_infill = {.translate = translate};
