/* Token ids of texts, items, and log-probabilities of logits. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"
#include "base/buffer.h"

static int reserve(struct eval_ids *ids, int more, struct butler_error *err)
{
    if (more > INT32_MAX / 4 - ids->n)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "more tokens than a text may have");
    if (!butler_grow(&ids->ids, (size_t)(ids->n + more), &ids->capacity, sizeof *ids->ids))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d tokens", ids->n + more);
    return 0;
}

int eval_ids_text(struct eval_ids *ids, const struct butler_model *model, const char *text, struct butler_error *err)
{
    const size_t n_text = strlen(text);
    if (n_text > INT32_MAX / 8)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "more tokens than a text may have");
    if (reserve(ids, (int)n_text / 2 + 8, err) < 0)
        return BUTLER_ERROR_MEMORY;
    for (;;) {
        const int max = (int)ids->capacity - ids->n, n = butler_tokenize(model, text, n_text, 0, ids->ids + ids->n, max, err);
        if (n < 0)
            return n;
        if (n <= max) {
            ids->n += n;
            return 0;
        }
        if (reserve(ids, n, err) < 0)
            return BUTLER_ERROR_MEMORY;
    }
}

static bool adds_bos(const struct butler_model *model)
{
    int32_t ids[8];
    const int n = butler_tokenize(model, "a", 1, BUTLER_ADD_SPECIAL, ids, BUTLER_COUNT(ids), NULL);
    return n > 0 && ids[0] == butler_token_bos(model);
}

int eval_ids_begin(struct eval_ids *ids, const struct butler_model *model, struct butler_error *err)
{
    const int32_t bos = butler_token_bos(model);
    ids->n = 0;
    return adds_bos(model) ? eval_ids_append(ids, &bos, 1, err) : 0;
}

int eval_ids_chat(struct eval_ids *ids, const struct butler_model *model, const char *text, struct butler_error *err)
{
    const struct butler_chat_message message = {.role = "user", .content = text};
    struct butler_chat_text rendered;
    int n = butler_chat_render(model, &message, 1, &(struct butler_chat_options){.add_generation_prompt = true}, &rendered, err);
    if (n == 0)
        n = butler_chat_tokenize(model, &rendered, 0, NULL, 0, err);
    if (n > 0)
        n = reserve(ids, n, err) < 0
                ? BUTLER_ERROR_MEMORY
                : butler_chat_tokenize(model, &rendered, 0, ids->ids + ids->n, (int)ids->capacity - ids->n, err);
    butler_chat_text_free(&rendered);
    ids->n += BUTLER_MAX(n, 0);
    return BUTLER_MIN(n, 0);
}

/* Tokens of a text that the template wrote; continues: it stands behind other text. */
static int template_ids(struct eval_ids *ids, const struct butler_model *model, char *bytes, size_t n, bool continues,
                        struct butler_error *err)
{
    struct butler_chat_segment segment = {0, n, true};
    const struct butler_chat_text text = {bytes, n, &segment, 1};
    const size_t from = continues ? 1 : 0; /* a first byte that is not read says that the text continues */
    int n_ids = butler_chat_tokenize(model, &text, from, NULL, 0, err);
    if (n_ids > 0)
        n_ids = reserve(ids, n_ids, err) < 0
                    ? BUTLER_ERROR_MEMORY
                    : butler_chat_tokenize(model, &text, from, ids->ids + ids->n, (int)ids->capacity - ids->n, err);
    ids->n += BUTLER_MAX(n_ids, 0);
    return BUTLER_MIN(n_ids, 0);
}

int eval_ids_frame(struct eval_ids *before, struct eval_ids *after, const struct butler_model *model, struct butler_error *err)
{
    static const char mark[] = "butler-text-of-the-user";
    const struct butler_chat_message message = {.role = "user", .content = mark};
    struct butler_chat_text text;
    int code = butler_chat_render(model, &message, 1, &(struct butler_chat_options){.add_generation_prompt = true}, &text, err);
    char *at = code == 0 ? strstr(text.bytes, mark) : NULL;
    if (code == 0 && !at)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "the chat template does not write the user's text");
    if (code == 0)
        code = template_ids(before, model, text.bytes, (size_t)(at - text.bytes), false, err);
    if (code == 0) {
        at += sizeof mark - 2;
        code = template_ids(after, model, at, text.n - (size_t)(at - text.bytes), true, err);
    }
    butler_chat_text_free(&text);
    return code;
}

/* Whether the vocabulary puts a space before a text. */
static bool adds_space(const struct butler_model *model)
{
    int32_t ids[4];
    size_t n_bytes;
    const int n = butler_tokenize(model, "a", 1, 0, ids, BUTLER_COUNT(ids), NULL);
    const char *bytes = n > 0 ? butler_token_bytes(model, ids[0], &n_bytes) : NULL;
    return bytes && n_bytes > 0 && bytes[0] == ' ';
}

int eval_ids_piece(struct eval_ids *ids, const struct butler_model *model, const char *text, struct butler_error *err)
{
    struct eval_ids line = {0};
    char *led = NULL;
    const int before = ids->n;
    if (!adds_space(model))
        return eval_ids_text(ids, model, text, err);
    if (text[0] == ' ') /* the added space replaces it */
        return eval_ids_text(ids, model, text + 1, err);
    /* No space is added after a newline, whose token is removed again. */
    if (asprintf(&led, "\n%s", text) < 0)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a text");
    int code = eval_ids_text(&line, model, "\n", err);
    if (code == 0)
        code = eval_ids_text(ids, model, led, err);
    if (code == 0 && ids->n - before >= line.n && memcmp(ids->ids + before, line.ids, (size_t)line.n * sizeof *line.ids) == 0) {
        ids->n -= line.n;
        memmove(ids->ids + before, ids->ids + before + line.n, (size_t)(ids->n - before) * sizeof *ids->ids);
    }
    eval_ids_free(&line);
    free(led);
    return code;
}

int eval_ids_append(struct eval_ids *ids, const int32_t *more, int n, struct butler_error *err)
{
    const int code = reserve(ids, n, err);
    if (code < 0)
        return code;
    if (n > 0) /* more may be NULL where it is empty */
        memcpy(ids->ids + ids->n, more, (size_t)n * sizeof *more);
    ids->n += n;
    return 0;
}

void eval_ids_free(struct eval_ids *ids)
{
    free(ids->ids);
    *ids = (struct eval_ids){0};
}

struct eval_item *eval_item_add(struct eval_run *run, const int32_t *ids, int n, int n_prompt, struct butler_error *err)
{
    struct eval_items *items = &run->items;
    if (!butler_grow(&items->items, (size_t)items->n + 1, &items->capacity, sizeof *items->items)) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d items", items->n + 1);
        return NULL;
    }
    struct eval_item *item = &items->items[items->n];
    *item = (struct eval_item){.n_ids = n, .n_prompt = n_prompt, .ids = butler_alloc((size_t)n * sizeof *ids, err)};
    if (!item->ids)
        return NULL;
    memcpy(item->ids, ids, (size_t)n * sizeof *ids);
    items->n++;
    return item;
}

int eval_windows_load(struct eval_run *run, int n_decode, struct butler_error *err)
{
    const int length = run->length - adds_bos(run->model);
    struct eval_text text;
    struct eval_ids ids = {0}, window = {0};
    if (!run->params->data)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--data: %s needs a text file", run->task->name);
    int code = eval_text_read(run, run->params->data, &text, err);
    if (code < 0)
        return code;
    code = eval_ids_text(&ids, run->model, text.bytes, err);
    eval_text_free(&text);
    if (code == 0 && ids.n < length)
        code = butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: %d tokens, less than one text of --length %d", run->params->data, ids.n,
                           run->length);
    const int n = BUTLER_MIN(run->limit, ids.n / length);
    for (int i = 0; i < n && code == 0; i++) {
        const int at = n > 1 ? (int)((int64_t)(ids.n - length) * i / (n - 1)) : 0;
        code = eval_ids_begin(&window, run->model, err);
        if (code == 0)
            code = eval_ids_append(&window, ids.ids + at, length, err);
        if (code == 0 && !eval_item_add(run, window.ids, window.n, window.n - n_decode, err))
            code = BUTLER_ERROR_MEMORY;
    }
    eval_ids_free(&ids);
    eval_ids_free(&window);
    return code;
}

double eval_log_prob(const float *logits, int n, int32_t id)
{
    float max = logits[0];
    double sum = 0;
    for (int i = 1; i < n; i++)
        max = logits[i] > max ? logits[i] : max;
    for (int i = 0; i < n; i++)
        sum += (double)expf(logits[i] - max);
    return (double)logits[id] - (double)max - log(sum);
}

int32_t eval_argmax(const float *logits, int n)
{
    int32_t best = 0;
    for (int i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}
