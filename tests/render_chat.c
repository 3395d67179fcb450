/* Renders and tokenises the conversations that tests/test_template.py writes to its standard input: render_chat MODEL.
 *
 * A field is its length in bytes as decimal digits, a newline, and the bytes; length -1 is NULL. A request: template, now,
 * add_generation_prompt ("1" or "0"), tools, variables, number of messages, and of each role, content and fields. The answer: code,
 * text (or the error's message), segments ("OFFSET LENGTH IS_TEMPLATE" a line), ids of the text (one a line), and whether the same
 * came of tools, variables and fields as parsed values: "same", "different", or "-" where there is no text or they are not
 * JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/api_parts.h"

/* false: the end of input. */
static bool read_field(char **field)
{
    long n;
    *field = NULL;
    if (scanf("%ld", &n) != 1 || getchar() != '\n')
        return false;
    if (n < 0)
        return true;
    *field = calloc((size_t)n + 1, 1);
    if (!*field || fread(*field, 1, (size_t)n, stdin) != (size_t)n)
        exit(2);
    return true;
}

static char *require_field(void)
{
    char *field;
    if (!read_field(&field))
        exit(2);
    return field;
}

static void write_field(const char *bytes, size_t n)
{
    printf("%zu\n", n);
    fwrite(bytes, 1, n, stdout);
}

static void write_numbers(const struct butler_chat_text *text, const int32_t *ids, int n_ids)
{
    const size_t size = 64 * (text->n_segments + (size_t)n_ids + 1);
    char *out = calloc(size, 1);
    size_t n = 0;
    if (!out)
        exit(2);
    for (size_t i = 0; i < text->n_segments; i++)
        n += (size_t)snprintf(out + n, size - n, "%zu %zu %d\n", text->segments[i].offset, text->segments[i].n,
                              text->segments[i].is_template);
    write_field(out, n);
    n = 0;
    for (int i = 0; i < n_ids; i++)
        n += (size_t)snprintf(out + n, size - n, "%d\n", ids[i]);
    write_field(out, n);
    free(out);
}

/* false: a text that jansson does not read. */
static bool load(const char *text, json_t **value)
{
    *value = text ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    return !text || *value;
}

static bool same(const struct butler_chat_text *a, const struct butler_chat_text *b)
{
    bool is_same = a->n == b->n && a->n_segments == b->n_segments && memcmp(a->bytes, b->bytes, a->n) == 0;
    for (size_t i = 0; is_same && i < a->n_segments; i++)
        is_same = a->segments[i].offset == b->segments[i].offset && a->segments[i].n == b->segments[i].n &&
                  a->segments[i].is_template == b->segments[i].is_template;
    return is_same;
}

/* Renders again from parsed values, as the server does. text: what came of texts. */
static const char *compare(const struct butler_model *model, const struct butler_chat_message *messages, size_t n,
                           struct butler_chat_options options, const struct butler_chat_text *text)
{
    json_t *tools, *variables, *fields = json_array(), *rest;
    struct butler_chat_message *bare = calloc(n + 1, sizeof *bare);
    struct butler_chat_text parsed;
    if (!bare)
        exit(2);
    bool is_json = load(options.tools, &tools) & load(options.variables, &variables);
    for (size_t i = 0; i < n; i++) {
        bare[i] = (struct butler_chat_message){messages[i].role, messages[i].content, NULL};
        is_json &= load(messages[i].fields, &rest);
        json_array_append_new(fields, rest ? rest : json_null());
    }
    struct butler_json *values[] = {serve_template_json(tools), serve_template_json(variables), serve_template_json(fields)};
    options.tools = options.variables = NULL;
    options.parsed_tools = values[0];
    options.parsed_variables = values[1];
    options.parsed_fields = values[2]->items;
    const char *result = !is_json                                                          ? "-"
                         : butler_chat_render(model, bare, n, &options, &parsed, NULL) < 0 ? "different"
                         : same(text, &parsed)                                             ? "same"
                                                                                           : "different";
    if (is_json)
        butler_chat_text_free(&parsed);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        free(values[i]);
    json_decref(tools);
    json_decref(variables);
    json_decref(fields);
    free(bare);
    return result;
}

static void answer(const struct butler_model *model, char *jinja)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    char *now = require_field(), *prompt = require_field(), *tools = require_field(), *variables = require_field();
    char *count = require_field(), code[16];
    const size_t n = strtoul(count, NULL, 10);
    struct butler_chat_message *messages = calloc(n + 1, sizeof *messages);
    const struct butler_chat_options options = {BUTLER_INIT(butler_chat_options),
                                                .jinja = jinja,
                                                .add_generation_prompt = prompt[0] == '1',
                                                .tools = tools,
                                                .variables = variables,
                                                .now = strtoll(now, NULL, 10)};
    if (!messages)
        exit(2);
    for (size_t i = 0; i < n; i++) {
        messages[i].role = require_field();
        messages[i].content = require_field();
        messages[i].fields = require_field();
    }
    const int rc = butler_chat_render(model, messages, n, &options, &text, &err);
    const int n_ids = rc < 0 ? 0 : butler_chat_tokenize(model, &text, 0, NULL, 0, &err);
    int32_t *ids = calloc((size_t)(n_ids > 0 ? n_ids : 0) + 1, sizeof *ids);
    if (!ids || n_ids < 0 || (n_ids > 0 && butler_chat_tokenize(model, &text, 0, ids, n_ids, &err) != n_ids))
        exit(2);
    write_field(code, (size_t)snprintf(code, sizeof code, "%d", rc));
    write_field(rc < 0 ? err.message : text.bytes, rc < 0 ? strlen(err.message) : text.n);
    write_numbers(&text, ids, n_ids);
    const char *parsed = rc < 0 ? "-" : compare(model, messages, n, options, &text);
    write_field(parsed, strlen(parsed));
    fflush(stdout);
    for (size_t i = 0; i < n; i++) {
        free((char *)messages[i].role);
        free((char *)messages[i].content);
        free((char *)messages[i].fields);
    }
    free(messages);
    free(ids);
    butler_chat_text_free(&text);
    free(now);
    free(prompt);
    free(tools);
    free(variables);
    free(count);
}

int main(int argc, char **argv)
{
    struct butler_error err = {0};
    const struct butler_model_params params = {.vocabulary_only = true};
    struct butler_model *model = argc == 2 ? butler_model_load(argv[1], &params, &err) : NULL;
    char *jinja;
    if (!model) {
        fprintf(stderr, "render_chat MODEL: %s\n", err.message);
        return 2;
    }
    while (read_field(&jinja)) {
        answer(model, jinja);
        free(jinja);
    }
    butler_model_free(model);
    return 0;
}
