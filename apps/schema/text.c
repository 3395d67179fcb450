/* The state of a compilation: errors, bounds, and the text of the grammar. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/parts.h"
#include "base/buffer.h"

static _Noreturn void fail_with(struct schema_compiler *c, int code, const char *message)
{
    if (c->err) {
        c->err->code = code;
        snprintf(c->err->message, sizeof c->err->message, "schema at %.80s%s: %s", c->path, c->n_path > 80 ? "..." : "", message);
    }
    longjmp(c->failed, 1);
}

void schema_no_memory(struct schema_compiler *c)
{
    fail_with(c, BUTLER_ERROR_MEMORY, "out of memory");
}

void schema_fail(struct schema_compiler *c, const char *format, ...)
{
    char message[200];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    fail_with(c, BUTLER_ERROR_FORMAT, message);
}

void schema_cannot(struct schema_compiler *c, const char *keyword, const char *format, ...)
{
    enum { MAX_NOTES = 64 };
    char message[200], place[sizeof c->path + 80];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    if (!c->dropped)
        fail_with(c, BUTLER_ERROR_FORMAT, message);
    snprintf(place, sizeof place, "%s/%.64s", c->path, keyword);
    for (size_t i = 0; i < json_array_size(c->dropped); i++)
        if (strcmp(json_string_value(json_array_get(c->dropped, i)), place) == 0)
            return;
    if (json_array_size(c->dropped) < MAX_NOTES && json_array_append_new(c->dropped, json_string_nocheck(place)) != 0)
        schema_no_memory(c);
}

void schema_step(struct schema_compiler *c, size_t n)
{
    c->n_steps += n;
    if (c->n_steps > SCHEMA_MAX_STEPS)
        schema_fail(c, "the schema is too large, or its combinations of allOf, anyOf and $ref are too many");
}

void schema_enter(struct schema_compiler *c)
{
    if (++c->depth > SCHEMA_MAX_DEPTH)
        schema_fail(c, "nested deeper than %d levels", SCHEMA_MAX_DEPTH);
}

size_t schema_path_push(struct schema_compiler *c, const char *word)
{
    const size_t before = c->n_path;
    if (c->n_path + 1 < sizeof c->path)
        c->path[c->n_path++] = '/';
    for (; *word && c->n_path + 2 < sizeof c->path; word++) {
        if (*word == '~' || *word == '/') {
            c->path[c->n_path++] = '~';
            c->path[c->n_path++] = *word == '~' ? '0' : '1';
        } else
            c->path[c->n_path++] = *word;
    }
    c->path[c->n_path] = 0;
    return before;
}

size_t schema_path_push_index(struct schema_compiler *c, const char *word, size_t index)
{
    char digits[24];
    snprintf(digits, sizeof digits, "%zu", index);
    const size_t before = schema_path_push(c, word);
    schema_path_push(c, digits);
    return before;
}

json_t *schema_keep(struct schema_compiler *c, json_t *made)
{
    if (!made || json_array_append_new(c->made, made) != 0)
        schema_no_memory(c);
    return made;
}

/* ------------------------------------------------------------------------------------------------ bodies */

struct schema_text *schema_begin(struct schema_compiler *c)
{
    struct schema_text *text = calloc(1, sizeof *text);
    if (!text)
        schema_no_memory(c);
    text->below = c->open;
    c->open = text;
    return text;
}

void schema_put_bytes(struct schema_compiler *c, struct schema_text *text, const char *bytes, size_t n)
{
    if (n > SCHEMA_MAX_TEXT || text->n > SCHEMA_MAX_TEXT - n)
        schema_fail(c, "its grammar has more than %d bytes", SCHEMA_MAX_TEXT);
    if (!butler_grow(&text->bytes, text->n + n + 1, &text->max, 1))
        schema_no_memory(c);
    memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
    text->bytes[text->n] = 0;
}

void schema_put(struct schema_compiler *c, struct schema_text *text, const char *format, ...)
{
    char piece[256];
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(piece, sizeof piece, format, list);
    va_end(list);
    schema_put_bytes(c, text, piece, n < (int)sizeof piece ? (size_t)n : sizeof piece - 1);
}

const char *schema_value_text(struct schema_compiler *c, const json_t *value)
{
    char *dump = NULL;
    for (size_t digits = 15; digits <= 17; digits++) { /* the shortest one that gives a number back */
        free(dump);
        dump = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits));
        if (!dump || !json_is_real(value) || strtod(dump, NULL) == json_real_value(value))
            break;
    }
    json_t *kept = dump ? json_string_nocheck(dump) : NULL; /* freed also where what follows fails */
    free(dump);
    return json_string_value(schema_keep(c, kept));
}

void schema_put_literal(struct schema_compiler *c, struct schema_text *text, const char *bytes, size_t n)
{
    schema_put_bytes(c, text, " \"", 2);
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] == '"' || bytes[i] == '\\')
            schema_put_bytes(c, text, "\\", 1);
        schema_put_bytes(c, text, bytes + i, 1);
    }
    schema_put_bytes(c, text, "\"", 1);
}

void schema_put_value(struct schema_compiler *c, struct schema_text *text, const json_t *value)
{
    const char *own = schema_value_text(c, value);
    schema_put_literal(c, text, own, strlen(own));
}

void schema_put_character(struct schema_compiler *c, struct schema_text *text, uint32_t code)
{
    schema_put(c, text, code < 0x80 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
}

void schema_drop(struct schema_compiler *c)
{
    struct schema_text *text = c->open;
    c->open = text->below;
    free(text->bytes);
    free(text);
}

void schema_end_as(struct schema_compiler *c, struct schema_text *text, int rule)
{
    schema_put(c, &c->rules, "r%d ::=", rule);
    schema_put_bytes(c, &c->rules, text->bytes ? text->bytes : "", text->n);
    schema_put_bytes(c, &c->rules, "\n", 1);
    schema_drop(c);
}

int schema_end(struct schema_compiler *c, struct schema_text *text)
{
    const int rule = SCHEMA_N_FIXED + c->n_rules++;
    schema_end_as(c, text, rule);
    return rule;
}
