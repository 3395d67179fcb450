/* From a prompt's text to ids, as far as the context can hold them: work for a text that cannot fit ends early. */
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* The beginning of a long text that is tried first, in bytes for each token of the context: texts have about four. */
enum { TRIED = 16 };

void serve_measure_tokens(struct serve_api *api)
{
    size_t n;
    for (int32_t id = 0; id < api->info->n_vocab; id++) {
        butler_token_bytes(api->model, id, &n);
        api->longest_token = n > api->longest_token ? n : api->longest_token;
        butler_token_spelling(api->model, id, &n);
        api->longest_token = n > api->longest_token ? n : api->longest_token;
    }
    api->longest_token = api->longest_token ? api->longest_token : 1;
}

static int tokenize(const struct serve_api *api, const struct butler_chat_text *text, bool is_chat, int flags, int32_t *ids,
                    int max, struct butler_error *err)
{
    return is_chat ? butler_chat_tokenize(api->model, text, 0, ids, max, err)
                   : butler_tokenize(api->model, text->bytes, text->n, flags, ids, max, err);
}

/* Tokens of the text's beginning; < 0: *err. */
static int try_beginning(const struct serve_api *api, const struct butler_chat_text *text, bool is_chat, int flags, size_t n_bytes,
                         struct butler_error *err)
{
    struct butler_chat_text begin = {.bytes = text->bytes, .n = n_bytes};
    while (begin.n > 0 && ((unsigned char)text->bytes[begin.n] & 0xc0) == 0x80) /* of whole characters */
        begin.n--;
    begin.segments = serve_alloc(text->n_segments, sizeof *begin.segments);
    while (begin.n_segments < text->n_segments && text->segments[begin.n_segments].offset < begin.n) {
        struct butler_chat_segment segment = text->segments[begin.n_segments];
        segment.n = segment.n < begin.n - segment.offset ? segment.n : begin.n - segment.offset;
        begin.segments[begin.n_segments++] = segment;
    }
    const int n = tokenize(api, &begin, is_chat, flags, NULL, 0, err);
    free(begin.segments);
    return n;
}

static int refuse(const struct serve_api *api, const char *least, int n, struct serve_error *error)
{
    serve_fail(error, 400, "request (%s%d tokens) exceeds the available context size (%d tokens), try increasing it", least, n,
               api->n_ctx);
    error->type = "exceed_context_size_error";
    error->n_prompt = n;
    return -error->status;
}

int serve_check_length(const struct serve_api *api, int n, struct serve_error *error)
{
    return n > api->n_ctx ? refuse(api, "", n, error) : 0;
}

int serve_tokenize_prompt(const struct serve_api *api, const struct butler_chat_text *text, bool is_chat, int flags, int32_t **ids,
                          struct serve_error *error)
{
    struct butler_error err = {0};
    const size_t n_ctx = (size_t)api->n_ctx;
    *ids = NULL;
    if (text->n / api->longest_token > n_ctx) /* whatever the tokens are */
        return refuse(api, "at least ", (int)(text->n / api->longest_token), error);
    if (text->n > TRIED * n_ctx) {
        const int n = try_beginning(api, text, is_chat, flags, TRIED * n_ctx, &err);
        if (n > 2 * api->n_ctx) /* not by the few tokens that change where it is cut */
            return refuse(api, "at least ", n, error);
    }
    *ids = serve_alloc(n_ctx, sizeof **ids);
    const int n = tokenize(api, text, is_chat, flags, *ids, api->n_ctx, &err);
    if (n >= 0 && n <= api->n_ctx)
        return n;
    free(*ids);
    *ids = NULL;
    return n < 0 ? serve_fail(error, 400, "%s", err.message) : refuse(api, "", n, error);
}
