/* A conversation becomes text by the model's template, and the text becomes tokens. */
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/engine.h"
#include "template/template.h"

/* A zero-terminated copy of how the token is written, "" for none; NULL: no memory. */
static char *spelling(const struct butler_model *model, int32_t id)
{
    size_t n;
    const char *bytes = butler_tokenizer_spelling(model->tokenizer, id, &n);
    return strndup(bytes, n);
}

int butler_chat_render(const struct butler_model *model, const struct butler_chat_message *messages, size_t n,
                       const struct butler_chat_options *options, struct butler_chat_text *text, struct butler_error *err)
{
    struct butler_chat_options own;
    if (BUTLER_IS_NULL(text, err))
        return BUTLER_ERROR_ARGUMENT;
    *text = (struct butler_chat_text){0};
    if (BUTLER_IS_NULL(model, err) || (n > 0 && BUTLER_IS_NULL(messages, err)))
        return BUTLER_ERROR_ARGUMENT;
    const int code = butler_take_struct(&own, sizeof own, options, BUTLER_END_OF(butler_chat_options, parsed_fields),
                                        "butler_chat_options", err);
    if (code < 0)
        return code;
    options = &own;
    if (!model->tokenizer)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s has no tokenizer", model->path);
    const char *source = options->jinja ? options->jinja : model->info.chat_template;
    if (!source)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s has no chat template", model->path);
    char *bos = spelling(model, butler_tokenizer_bos(model->tokenizer));
    char *eos = spelling(model, butler_tokenizer_eos(model->tokenizer));
    int rc;
    if (!bos || !eos)
        rc = butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a conversation");
    else
        rc = butler_template_render(&(struct butler_template_input){source, bos, eos, messages, n, options}, text, err);
    free(bos);
    free(eos);
    return rc;
}

/* A byte for each of the text: 1 where the template wrote it. NULL: no memory. */
static char *make_marks(const struct butler_chat_text *text)
{
    char *marks = calloc(text->n + 1, 1);
    for (size_t i = 0; marks && i < text->n_segments; i++)
        memset(marks + text->segments[i].offset, text->segments[i].is_template, text->segments[i].n);
    return marks;
}

static bool begins_with_bos(const struct butler_model *model, const struct butler_chat_text *text)
{
    size_t n;
    const char *bos = butler_tokenizer_spelling(model->tokenizer, butler_tokenizer_bos(model->tokenizer), &n);
    return n > 0 && text->n_segments > 0 && text->segments[0].is_template && text->segments[0].n >= n &&
           memcmp(text->bytes, bos, n) == 0;
}

int butler_chat_tokenize(const struct butler_model *model, const struct butler_chat_text *text, size_t from, int32_t *ids,
                         int max_ids, struct butler_error *err)
{
    if (BUTLER_IS_NULL(model, err) || BUTLER_IS_NULL(text, err))
        return BUTLER_ERROR_ARGUMENT;
    if (!model->tokenizer)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s has no tokenizer", model->path);
    if (from > text->n || max_ids < 0 || (max_ids > 0 && !ids))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "chat: from byte %zu of %zu, space for %d ids", from, text->n, max_ids);
    char *marks = make_marks(text);
    if (!marks)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a conversation of %zu bytes", text->n);
    const int n_bos = from == 0 && butler_tokenizer_adds_bos(model->tokenizer) && !begins_with_bos(model, text);
    const int n_room = max_ids > n_bos ? max_ids - n_bos : 0;
    if (n_bos && max_ids > 0)
        ids[0] = butler_tokenizer_bos(model->tokenizer);
    const struct butler_marked_text rest = {text->bytes ? text->bytes + from : "", text->n - from, marks + from, from > 0};
    const int n =
        butler_tokenizer_encode_marked(model->tokenizer, &rest, BUTLER_PARSE_SPECIAL, n_room ? ids + n_bos : NULL, n_room, err);
    free(marks);
    return n < 0 ? n : n + n_bos;
}
