/* Renders a chat template: what a rendering starts with, its memory and its bounds, and its result. */
#include "template/template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "template/template_parts.h"

/* ------------------------------------------------------------------------------------- memory and bounds */

enum { BLOCK_BYTES = 64 << 10 };

struct template_block {
    struct template_block *next;
    size_t n, size;
    _Alignas(16) unsigned char bytes[];
};

void butler_template_fail(struct template_run *run, const char *format, ...)
{
    char reason[sizeof run->err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    if (run->line)
        butler_fail(run->err, BUTLER_ERROR_FORMAT, "chat template, line %d: %.460s", run->line, reason);
    else
        butler_fail(run->err, BUTLER_ERROR_FORMAT, "chat template: %.480s", reason);
    longjmp(run->failed, 1);
}

void *butler_template_alloc(struct template_run *run, size_t n_bytes)
{
    struct template_block *block = run->blocks;
    if (n_bytes > run->max_allocated || run->n_allocated > run->max_allocated - n_bytes)
        butler_template_fail(run, "it needs more than the limit of memory, %zu bytes", run->max_allocated);
    n_bytes = (n_bytes + 15) / 16 * 16;
    if (!block || n_bytes > block->size - block->n) {
        const size_t size = BUTLER_MAX(n_bytes, (size_t)BLOCK_BYTES);
        block = calloc(1, sizeof *block + size);
        if (!block)
            butler_template_fail(run, "no memory for %zu bytes", size);
        block->size = size;
        block->next = run->blocks;
        run->blocks = block;
    }
    block->n += n_bytes;
    run->n_allocated += n_bytes;
    return block->bytes + block->n - n_bytes;
}

void *butler_template_grow(struct template_run *run, void *array, size_t n, size_t *capacity, size_t element)
{
    if (n < *capacity)
        return array;
    *capacity = 2 * n + 4;
    void *grown = butler_template_alloc(run, *capacity * element);
    if (n)
        memcpy(grown, array, n * element);
    return grown;
}

void butler_template_allow(struct template_run *run, size_t n)
{
    const size_t room = (SIZE_MAX / 2 - run->max_allocated) / TEMPLATE_MEMORY_PER_BYTE;
    run->max_allocated += BUTLER_MIN(n, room) * TEMPLATE_MEMORY_PER_BYTE;
    run->max_steps += n;
}

void butler_template_step(struct template_run *run, size_t n)
{
    if (n > run->max_steps - run->n_steps)
        butler_template_fail(run, "it takes more than the limit of %llu steps", (unsigned long long)run->max_steps);
    run->n_steps += n;
}

void butler_template_enter(struct template_run *run)
{
    if (run->depth == TEMPLATE_MAX_DEPTH)
        butler_template_fail(run, "it is nested deeper than %d levels", TEMPLATE_MAX_DEPTH);
    run->depth++;
}

/* ------------------------------------------------------------------------------------------------- input */

/* Programs write roles, and templates make special tokens of them ("<|" + role + "|>"): a role that is a plain word counts as
 * the template's text. */
static bool is_word(const char *role)
{
    return strspn(role, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == strlen(role);
}

/* A parsed value, or else the one that its text says; none where there is neither. */
static struct template_value take_value(struct template_run *run, const struct butler_json *parsed, const char *what,
                                        const char *json)
{
    if (parsed)
        return butler_template_take_json(run, parsed);
    return json ? butler_template_read_json(run, what, json) : template_none();
}

static void put_fields(struct template_run *run, struct template_dict *dict, const char *what, struct template_value fields)
{
    if (fields.kind != VALUE_DICT)
        butler_template_fail(run, "%s is %s; it must be a JSON object", what, butler_template_kind_name(fields));
    for (size_t i = 0; i < fields.dict->n; i++)
        butler_template_put(run, dict, fields.dict->entries[i].key, fields.dict->entries[i].value);
}

static struct template_value make_message(struct template_run *run, const struct butler_chat_message *message,
                                          const struct butler_json *parsed_fields)
{
    static const char what[] = "the field list of a message";
    struct template_value dict = butler_template_dict(run, VALUE_DICT);
    const char *role = message->role, *content = message->content;
    if (!role)
        butler_template_fail(run, "a message has no role");
    butler_template_put_name(run, dict.dict, "role", template_string(butler_template_copy(run, role, strlen(role), is_word(role))));
    butler_template_put_name(run, dict.dict, "content",
                             content ? template_string(butler_template_copy(run, content, strlen(content), false))
                                     : template_none());
    if (parsed_fields ? parsed_fields->kind != BUTLER_JSON_NULL : message->fields != NULL)
        put_fields(run, dict.dict, what, take_value(run, parsed_fields, what, message->fields));
    return dict;
}

static struct template_scope *make_scope(struct template_run *run, const struct butler_template_input *input)
{
    static const char named[] = "the list of variables";
    const struct butler_chat_options *options = input->options;
    struct template_scope *scope = butler_template_alloc(run, sizeof *scope);
    struct template_dict *variables = &scope->variables;
    struct template_value messages = butler_template_list(run, VALUE_LIST);
    for (size_t i = 0; i < input->n_messages; i++)
        butler_template_push(run, messages.list,
                             make_message(run, &input->messages[i], options->parsed_fields ? &options->parsed_fields[i] : NULL));
    butler_template_put_name(run, variables, "messages", messages);
    butler_template_put_name(run, variables, "add_generation_prompt", template_bool(options->add_generation_prompt));
    butler_template_put_name(run, variables, "bos_token", template_string(butler_template_literal(run, input->bos)));
    butler_template_put_name(run, variables, "eos_token", template_string(butler_template_literal(run, input->eos)));
    butler_template_put_name(run, variables, "tools", take_value(run, options->parsed_tools, "the list of tools", options->tools));
    butler_template_put_name(run, variables, "documents", template_none());
    if (options->parsed_variables || options->variables)
        put_fields(run, variables, named, take_value(run, options->parsed_variables, named, options->variables));
    return scope;
}

/* Of a text that is read: none where a parsed value takes its place. */
static size_t text_bytes(const struct butler_json *parsed, const char *text)
{
    return parsed || !text ? 0 : strlen(text);
}

/* Bytes of the texts that a caller gives; parsed values are counted as they are taken. */
static size_t input_bytes(const struct butler_template_input *input)
{
    const struct butler_chat_options *options = input->options;
    size_t n = strlen(input->source) + text_bytes(options->parsed_tools, options->tools) +
               text_bytes(options->parsed_variables, options->variables);
    for (size_t i = 0; i < input->n_messages; i++) {
        const struct butler_chat_message *m = &input->messages[i];
        n += 64 + text_bytes(NULL, m->content) + text_bytes(options->parsed_fields, m->fields);
    }
    return n;
}

/* ------------------------------------------------------------------------------------------------- result */

static bool fill_segments(const struct template_buffer *text, struct butler_chat_text *out)
{
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++)
        n += i == 0 || text->marks[i] != text->marks[i - 1];
    out->segments = calloc(n + 1, sizeof *out->segments);
    if (!out->segments)
        return false;
    for (size_t i = 0; i < text->n; i++) {
        if (i == 0 || text->marks[i] != text->marks[i - 1])
            out->segments[out->n_segments++] = (struct butler_chat_segment){i, 0, text->marks[i]};
        out->segments[out->n_segments - 1].n++;
    }
    return true;
}

static int fill_result(const struct template_buffer *text, struct butler_chat_text *out, struct butler_error *err)
{
    *out = (struct butler_chat_text){.bytes = malloc(text->n + 1), .n = text->n};
    if (!out->bytes || !fill_segments(text, out)) {
        butler_chat_text_free(out);
        return butler_fail(err, BUTLER_ERROR_MEMORY, "chat template: no memory for a text of %zu bytes", text->n);
    }
    if (text->n)
        memcpy(out->bytes, text->bytes, text->n);
    out->bytes[text->n] = 0;
    return 0;
}

/* Everything that may fail by longjmp; its variables are not used after one. */
static int render(struct template_run *run, const struct butler_template_input *input)
{
    const size_t n = strlen(input->source);
    if (setjmp(run->failed))
        return run->err->code;
    if (n > TEMPLATE_MAX_BYTES)
        butler_template_fail(run, "it has %zu bytes; the maximum is %d", n, TEMPLATE_MAX_BYTES);
    struct template_scope *scope = make_scope(run, input);
    const struct template_token *tokens = butler_template_lex(run, input->source, n);
    butler_template_eval(run, butler_template_parse(run, tokens), scope);
    return 0;
}

int butler_template_render(const struct butler_template_input *input, struct butler_chat_text *out, struct butler_error *err)
{
    struct butler_error own;
    struct template_buffer text = {0};
    struct template_run run = {.err = err ? err : &own,
                               .max_steps = TEMPLATE_MAX_STEPS,
                               .max_allocated = TEMPLATE_MEMORY,
                               .out = &text,
                               .now = input->options->now};
    if (run.now == 0)
        run.now = (int64_t)time(NULL);
    butler_template_allow(&run, input_bytes(input));
    int rc = render(&run, input);
    if (rc == 0)
        rc = fill_result(&text, out, err);
    while (run.blocks) {
        struct template_block *next = run.blocks->next;
        free(run.blocks);
        run.blocks = next;
    }
    return rc;
}

void butler_chat_text_free(struct butler_chat_text *text)
{
    if (!text)
        return;
    free(text->bytes);
    free(text->segments);
    *text = (struct butler_chat_text){0};
}
