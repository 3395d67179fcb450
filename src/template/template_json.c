/* JSON for the template interpreter: reads what callers give as JSON, writes as Python's json.dumps does. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "template/template_parts.h"

/* ------------------------------------------------------------------------------------------------ reading */

struct reader {
    struct template_run *run;
    const char *what, *start, *at; /* NUL-terminated */
};

static _Noreturn void refuse(const struct reader *r)
{
    butler_template_fail(r->run, "%s is not JSON at byte %zu", r->what, (size_t)(r->at - r->start));
}

static void skip_space(struct reader *r)
{
    r->at += strspn(r->at, " \t\r\n");
}

static bool accept(struct reader *r, const char *word)
{
    const size_t n = strlen(word);
    skip_space(r);
    if (strncmp(r->at, word, n) != 0)
        return false;
    r->at += n;
    return true;
}

static uint32_t read_hex(struct reader *r)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        const char *digits = "0123456789abcdef", c = *r->at | 0x20, *found = c == ' ' ? NULL : strchr(digits, c);
        if (!found)
            refuse(r);
        value = value * 16 + (uint32_t)(found - digits);
    }
    return value;
}

static void read_escape(struct reader *r, struct template_buffer *out)
{
    static const char letters[] = "\"\\/bfnrt", meanings[] = "\"\\/\b\f\n\r\t";
    const char c = *++r->at, *found = c ? strchr(letters, c) : NULL;
    char bytes[4];
    if (found) {
        butler_template_append_made(r->run, out, &meanings[found - letters], 1);
        r->at++;
        return;
    }
    if (c != 'u')
        refuse(r);
    r->at++;
    uint32_t code = read_hex(r);
    if (code >= 0xD800 && code < 0xDC00 && r->at[0] == '\\' && r->at[1] == 'u') {
        const char *second = r->at;
        r->at += 2;
        const uint32_t low = read_hex(r);
        if (low >= 0xDC00 && low < 0xE000)
            code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        else
            r->at = second; /* a character of its own */
    }
    if (code >= 0xD800 && code < 0xE000) /* a lone surrogate is no character */
        code = 0xFFFD;
    butler_template_append_made(r->run, out, bytes, butler_utf8_encode(code, bytes));
}

static struct template_value read_string(struct reader *r)
{
    struct template_buffer out = {0};
    r->at++;
    while (*r->at != '"') {
        const size_t n = strcspn(r->at, "\"\\");
        for (size_t i = 0; i < n; i++)
            if ((unsigned char)r->at[i] < ' ') {
                r->at += i;
                refuse(r);
            }
        butler_template_append_made(r->run, &out, r->at, n);
        r->at += n;
        if (*r->at == '\\')
            read_escape(r, &out);
        else if (*r->at != '"')
            refuse(r);
    }
    r->at++;
    return template_string(template_taken(&out));
}

static struct template_value read_number(struct reader *r)
{
    const char *end = r->at + (*r->at == '-');
    const size_t n_digits = strspn(end, "0123456789");
    if (n_digits == 0 || (*end == '0' && n_digits > 1))
        refuse(r);
    end += n_digits;
    const bool whole = *end != '.' && *end != 'e' && *end != 'E';
    int64_t integer = 0;
    bool fits = true;
    for (const char *c = r->at + (*r->at == '-'); whole && c < end; c++)
        fits = fits && !__builtin_mul_overflow(integer, 10, &integer) &&
               !__builtin_sub_overflow(integer, *c - '0', &integer); /* negative: holds the least integer too */
    fits = fits && (*r->at == '-' || integer != INT64_MIN);
    char *stop = (char *)end;
    const double real = whole && fits ? 0 : strtod(r->at, &stop);
    const bool negative = *r->at == '-';
    r->at = stop;
    return whole && fits ? template_integer(negative ? integer : -integer) : template_real(real);
}

static struct template_value read_value(struct reader *r);

static struct template_value read_items(struct reader *r, bool is_dict)
{
    struct template_value items = is_dict ? butler_template_dict(r->run, VALUE_DICT) : butler_template_list(r->run, VALUE_LIST);
    const char *close = is_dict ? "}" : "]";
    butler_template_enter(r->run);
    r->at++;
    if (!accept(r, close))
        do {
            struct template_value key = {0};
            skip_space(r);
            if (is_dict && *r->at != '"')
                refuse(r);
            if (is_dict)
                key = read_string(r);
            if (is_dict && !accept(r, ":"))
                refuse(r);
            const struct template_value value = read_value(r);
            if (is_dict)
                butler_template_put(r->run, items.dict, key, value);
            else
                butler_template_push(r->run, items.list, value);
            if (accept(r, close))
                break;
        } while (accept(r, ",") || (refuse(r), false));
    r->run->depth--;
    return items;
}

static struct template_value read_value(struct reader *r)
{
    butler_template_step(r->run, 1);
    skip_space(r);
    if (*r->at == '"')
        return read_string(r);
    if (*r->at == '{' || *r->at == '[')
        return read_items(r, *r->at == '{');
    if (accept(r, "true"))
        return template_bool(true);
    if (accept(r, "false"))
        return template_bool(false);
    if (accept(r, "null"))
        return template_none();
    return read_number(r);
}

struct template_value butler_template_read_json(struct template_run *run, const char *what, const char *json)
{
    struct reader r = {run, what, json, json};
    const struct template_value value = read_value(&r);
    skip_space(&r);
    if (*r.at)
        refuse(&r);
    return value;
}

/* ------------------------------------------------------------------------------------------- parsed values */

struct template_value butler_template_take_json(struct template_run *run, const struct butler_json *json)
{
    enum { VALUE_BYTES = 4 }; /* of input that a value counts as, beside its text: about what it has in JSON */
    butler_template_allow(run,
                          VALUE_BYTES + (json->key ? strlen(json->key) : 0) + (json->kind == BUTLER_JSON_STRING ? json->n : 0));
    butler_template_step(run, 1);
    switch (json->kind) {
    case BUTLER_JSON_NULL:
        return template_none();
    case BUTLER_JSON_BOOL:
        return template_bool(json->integer != 0);
    case BUTLER_JSON_INTEGER:
        return template_integer(json->integer);
    case BUTLER_JSON_REAL:
        return template_real(json->real);
    case BUTLER_JSON_STRING:
        return template_string(butler_template_copy(run, json->string, json->n, false));
    case BUTLER_JSON_ARRAY:
    case BUTLER_JSON_OBJECT:
        break;
    default:
        butler_template_fail(run, "a parsed value has the unknown kind %d", (int)json->kind);
    }
    const bool is_dict = json->kind == BUTLER_JSON_OBJECT;
    struct template_value items = is_dict ? butler_template_dict(run, VALUE_DICT) : butler_template_list(run, VALUE_LIST);
    butler_template_enter(run);
    for (size_t i = 0; i < json->n; i++) {
        const char *key = json->items[i].key;
        const struct template_value value = butler_template_take_json(run, &json->items[i]);
        if (!is_dict)
            butler_template_push(run, items.list, value);
        else if (key)
            butler_template_put(run, items.dict, template_string(butler_template_copy(run, key, strlen(key), false)), value);
        else
            butler_template_fail(run, "a value of a parsed object has no key");
    }
    run->depth--;
    return items;
}

/* ------------------------------------------------------------------------------------------------ writing */

struct writer {
    struct template_run *run;
    struct template_buffer out;
    struct template_text between, after_key;
    int64_t indent; /* < 0: all on one line */
    int64_t level;
    bool ascii, sort_keys;
};

static void write_made(struct writer *w, const char *text)
{
    butler_template_append_made(w->run, &w->out, text, strlen(text));
}

static void write_string(struct writer *w, struct template_text text)
{
    static const char letters[] = "\"\\bfnrt", meanings[] = "\"\\\b\f\n\r\t";
    write_made(w, "\"");
    for (size_t i = 0, n; i < text.n; i += n) {
        char escape[16] = "";
        uint32_t c = (unsigned char)text.bytes[i];
        n = butler_template_char(text.bytes + i, text.n - i);
        const char *found = c ? strchr(meanings, text.bytes[i]) : NULL;
        if (c >= 0x80 && w->ascii)
            butler_utf8_decode(text.bytes + i, n, &c);
        if (found)
            snprintf(escape, sizeof escape, "\\%c", letters[found - meanings]);
        else if (c >= 0x10000 && w->ascii)
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)),
                     (unsigned)(0xDC00 + (c & 0x3FF)));
        else if (c < ' ' || (c >= 0x7F && w->ascii))
            snprintf(escape, sizeof escape, "\\u%04x", (unsigned)c);
        if (*escape)
            write_made(w, escape);
        else
            butler_template_append(w->run, &w->out, template_part(text, i, n));
    }
    write_made(w, "\"");
}

static void write_line(struct writer *w)
{
    if (w->indent < 0)
        return;
    write_made(w, "\n");
    for (int64_t i = 0; i < w->indent * w->level; i++)
        write_made(w, " ");
}

static void write_value(struct writer *w, struct template_value value);

static void write_items(struct writer *w, struct template_value value)
{
    const bool is_dict = value.kind == VALUE_DICT;
    const size_t n = is_dict ? value.dict->n : value.list->n;
    butler_template_enter(w->run);
    write_made(w, is_dict ? "{" : "[");
    w->level++;
    for (size_t i = 0; i < n; i++) {
        if (i)
            butler_template_append(w->run, &w->out, w->between);
        write_line(w);
        if (is_dict) {
            const struct template_value key = value.dict->entries[i].key;
            if (key.kind == VALUE_STRING)
                write_string(w, key.text);
            else if (butler_template_is_number(key) || key.kind == VALUE_NONE) {
                write_made(w, "\"");
                write_value(w, key);
                write_made(w, "\"");
            } else
                butler_template_fail(w->run, "tojson: %s cannot be a key", butler_template_kind_name(key));
            butler_template_append(w->run, &w->out, w->after_key);
        }
        write_value(w, is_dict ? value.dict->entries[i].value : value.list->items[i]);
    }
    w->level--;
    if (n)
        write_line(w);
    write_made(w, is_dict ? "}" : "]");
    w->run->depth--;
}

static struct template_value sorted_by_key(struct writer *w, struct template_value dict)
{
    struct template_value sorted = butler_template_dict(w->run, VALUE_DICT);
    for (size_t i = 0; i < dict.dict->n; i++)
        butler_template_put(w->run, sorted.dict, dict.dict->entries[i].key, dict.dict->entries[i].value);
    for (size_t i = 1; i < sorted.dict->n; i++)
        for (size_t k = i; k > 0; k--) {
            struct template_entry *entry = &sorted.dict->entries[k], swap = *entry;
            if (butler_template_compare(w->run, entry[-1].key, entry->key) <= 0)
                break;
            *entry = entry[-1];
            entry[-1] = swap;
        }
    return sorted;
}

static void write_value(struct writer *w, struct template_value value)
{
    butler_template_step(w->run, 1);
    switch (value.kind) {
    case VALUE_STRING:
        write_string(w, value.text);
        break;
    case VALUE_DICT:
        write_items(w, w->sort_keys ? sorted_by_key(w, value) : value);
        break;
    case VALUE_LIST:
    case VALUE_TUPLE:
        write_items(w, value);
        break;
    case VALUE_NONE:
        write_made(w, "null");
        break;
    case VALUE_BOOL:
        write_made(w, value.boolean ? "true" : "false");
        break;
    case VALUE_INTEGER:
        butler_template_repr(w->run, &w->out, value);
        break;
    case VALUE_FLOAT:
        if (isfinite(value.real))
            butler_template_write_float(w->run, &w->out, value.real);
        else
            write_made(w, isnan(value.real) ? "NaN" : value.real < 0 ? "-Infinity" : "Infinity");
        break;
    default:
        butler_template_fail(w->run, "tojson: %s cannot be written as JSON", butler_template_kind_name(value));
    }
}

/* tojson(indent=none, separators=none, sort_keys=false, ensure_ascii=false), as transformers defines it. */
struct template_value butler_template_to_json(struct template_run *run, struct template_value self,
                                              const struct template_call *call)
{
    const struct template_value *indent = butler_template_argument(run, call, 1, "indent");
    const struct template_value *separators = butler_template_argument(run, call, 2, "separators");
    struct writer w = {.run = run,
                       .indent = -1,
                       .ascii = butler_template_bool_argument(run, call, 0, "ensure_ascii"),
                       .sort_keys = butler_template_bool_argument(run, call, 3, "sort_keys")};
    if (indent && indent->kind != VALUE_NONE) {
        const int64_t width = butler_template_to_integer(run, *indent, "tojson: indent");
        w.indent = BUTLER_MIN(BUTLER_MAX(width, 0), 1000);
    }
    w.between = butler_template_literal(run, w.indent < 0 ? ", " : ",");
    w.after_key = butler_template_literal(run, ": ");
    if (separators && separators->kind != VALUE_NONE) {
        const struct template_list *both = butler_template_items(run, *separators);
        if (both->n != 2 || both->items[0].kind != VALUE_STRING || both->items[1].kind != VALUE_STRING)
            butler_template_fail(run, "tojson: separators must be two strings");
        w.between = both->items[0].text;
        w.after_key = both->items[1].text;
    }
    write_value(&w, self);
    return template_string(template_taken(&w.out));
}
