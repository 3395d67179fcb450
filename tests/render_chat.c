/* Renders and tokenises the conversations that tests/test_template.py writes to its standard input: render_chat MODEL.
 *
 * A field is its length in bytes as decimal digits, a newline, and the bytes; length -1 is NULL. A request: template, now,
 * add_generation_prompt ("1" or "0"), tools, variables, number of messages, and of each role, content and fields. The answer: code,
 * text (or the error's message), segments ("OFFSET LENGTH IS_TEMPLATE" a line), ids of the text (one a line). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "butler.h"

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

static void answer(const struct butler_model *model, char *jinja)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    char *now = require_field(), *prompt = require_field(), *tools = require_field(), *variables = require_field();
    char *count = require_field(), code[16];
    const size_t n = strtoul(count, NULL, 10);
    struct butler_chat_message *messages = calloc(n + 1, sizeof *messages);
    const struct butler_chat_options options = {sizeof options, jinja, prompt[0] == '1', tools, variables, strtoll(now, NULL, 10)};
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
