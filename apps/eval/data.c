/* Data files: read whole, checked, split into lines of JSON. An error names file, line and field. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "eval.h"
#include "base/buffer.h"
#include "base/utf8.h"

static int check_packing(const char *path, const struct eval_text *text, struct butler_error *err)
{
    static const struct {
        const char *magic, *tool;
    } packed[] = {{"\x1f\x8b", "gzip -d"},
                  {"BZh", "bzip2 -d"},
                  {"\xfd"
                   "7zXZ",
                   "xz -d"}};
    for (int i = 0; i < BUTLER_COUNT(packed); i++)
        if (text->n >= strlen(packed[i].magic) && memcmp(text->bytes, packed[i].magic, strlen(packed[i].magic)) == 0)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: a compressed file; unpack it first (%s)", path, packed[i].tool);
    return 0;
}

static int check_utf8(const char *path, const struct eval_text *text, struct butler_error *err)
{
    int line = 1;
    for (size_t i = 0; i < text->n;) {
        const int length = butler_utf8_decode(text->bytes + i, text->n - i, NULL);
        if (length == 0)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not UTF-8 (byte 0x%02x at offset %zu)", path, line,
                               (unsigned char)text->bytes[i], i);
        line += text->bytes[i] == '\n';
        i += (size_t)length;
    }
    return 0;
}

static int read_all(FILE *file, const char *path, struct eval_text *text, struct butler_error *err)
{
    size_t capacity = 0;
    for (;;) {
        if (!butler_grow(&text->bytes, text->n + 4096, &capacity, 1))
            return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for it", path);
        const size_t n = fread(text->bytes + text->n, 1, capacity - text->n - 1, file);
        text->n += n;
        if (n == 0)
            break;
    }
    text->bytes[text->n] = 0;
    if (ferror(file))
        return butler_fail(err, BUTLER_ERROR_IO, "%s: %s", path, strerror(errno));
    return 0;
}

int eval_text_read(struct eval_run *run, const char *path, struct eval_text *text, struct butler_error *err)
{
    *text = (struct eval_text){0};
    FILE *file = fopen(path, "rb");
    if (!file)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: %s", path, strerror(errno));
    int code = read_all(file, path, text, err);
    fclose(file);
    if (code == 0 && text->n == 0)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the file is empty", path);
    if (code == 0)
        code = check_packing(path, text, err);
    if (code == 0)
        code = check_utf8(path, text, err);
    if (code == 0 && memchr(text->bytes, 0, text->n))
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: byte %zu is zero: this is no text", path, strlen(text->bytes));
    if (code < 0)
        eval_text_free(text);
    else {
        run->data_digest = XXH3_64bits_withSeed(text->bytes, text->n, run->data_digest);
        run->reads_data = run->reads_data || (run->params->data && strcmp(path, run->params->data) == 0);
    }
    return code;
}

void eval_text_free(struct eval_text *text)
{
    free(text->bytes);
    *text = (struct eval_text){0};
}

/* ------------------------------------------------------------------------------------------------- JSON */

int eval_jsonl_open(struct eval_run *run, struct eval_jsonl *lines, const char *path, struct butler_error *err)
{
    *lines = (struct eval_jsonl){.path = path};
    return eval_text_read(run, path, &lines->text, err);
}

int eval_jsonl_next(struct eval_jsonl *lines, struct butler_error *err)
{
    json_error_t fault;
    json_decref(lines->object);
    lines->object = NULL;
    while (lines->at < lines->text.n) {
        const char *start = lines->text.bytes + lines->at;
        const size_t n = strcspn(start, "\n"), blank = strspn(start, " \t\r");
        lines->at += n + 1;
        lines->line++;
        if (blank >= n)
            continue;
        lines->object = json_loadb(start, n, 0, &fault);
        if (!lines->object)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not JSON: %s (column %d)", lines->path, lines->line, fault.text,
                               fault.column);
        if (!json_is_object(lines->object))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not a JSON object", lines->path, lines->line);
        return 1;
    }
    return 0;
}

void eval_jsonl_close(struct eval_jsonl *lines)
{
    json_decref(lines->object);
    lines->object = NULL;
    eval_text_free(&lines->text);
}

int eval_jsonl_fail(const struct eval_jsonl *lines, const char *field, struct butler_error *err, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: field \"%s\": %s", lines->path, lines->line, field, what);
}

int eval_jsonl_string(const struct eval_jsonl *lines, const char *field, bool filled, const char **out, struct butler_error *err)
{
    const json_t *value = json_object_get(lines->object, field);
    if (!value)
        return eval_jsonl_fail(lines, field, err, "missing");
    if (!json_is_string(value))
        return eval_jsonl_fail(lines, field, err, "not a string");
    *out = json_string_value(value);
    if (filled && !**out)
        return eval_jsonl_fail(lines, field, err, "empty");
    return 0;
}

int eval_jsonl_int(const struct eval_jsonl *lines, const char *field, json_int_t min, json_int_t max, json_int_t *out,
                   struct butler_error *err)
{
    const json_t *value = json_object_get(lines->object, field);
    if (!value)
        return eval_jsonl_fail(lines, field, err, "missing");
    if (!json_is_integer(value))
        return eval_jsonl_fail(lines, field, err, "not a whole number");
    *out = json_integer_value(value);
    if (*out < min || *out > max)
        return eval_jsonl_fail(lines, field, err,
                               "%" JSON_INTEGER_FORMAT " is not between %" JSON_INTEGER_FORMAT " and %" JSON_INTEGER_FORMAT, *out,
                               min, max);
    return 0;
}

int eval_jsonl_array(const struct eval_jsonl *lines, const char *field, size_t at_least, json_t **out, struct butler_error *err)
{
    *out = json_object_get(lines->object, field);
    if (!*out)
        return eval_jsonl_fail(lines, field, err, "missing");
    if (!json_is_array(*out))
        return eval_jsonl_fail(lines, field, err, "not an array");
    if (json_array_size(*out) < at_least)
        return eval_jsonl_fail(lines, field, err, "%zu entries, at least %zu are needed", json_array_size(*out), at_least);
    return 0;
}
