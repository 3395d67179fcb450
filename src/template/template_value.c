/* Values of the template interpreter, with the meaning that Python gives them: truth, equality, order, str() and repr(). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/template_parts.h"

/* ------------------------------------------------------------------------------------- lists and dictionaries */

struct template_value butler_template_list(struct template_run *run, enum template_kind kind)
{
    return (struct template_value){.kind = kind, .list = butler_template_alloc(run, sizeof(struct template_list))};
}

void butler_template_push(struct template_run *run, struct template_list *list, struct template_value value)
{
    list->items = butler_template_grow(run, list->items, list->n, &list->capacity, sizeof *list->items);
    list->items[list->n++] = value;
}

struct template_value butler_template_dict(struct template_run *run, enum template_kind kind)
{
    return (struct template_value){.kind = kind, .dict = butler_template_alloc(run, sizeof(struct template_dict))};
}

struct template_value *butler_template_get(struct template_run *run, const struct template_dict *dict, struct template_value key)
{
    butler_template_step(run, dict->n / 16);
    for (size_t i = 0; i < dict->n; i++) {
        const struct template_value *other = &dict->entries[i].key;
        if (key.kind == VALUE_STRING && other->kind == VALUE_STRING ? butler_template_same(key.text, other->text)
                                                                    : butler_template_equal(run, key, *other))
            return &dict->entries[i].value;
    }
    return NULL;
}

void butler_template_put(struct template_run *run, struct template_dict *dict, struct template_value key,
                         struct template_value value)
{
    struct template_value *there = butler_template_get(run, dict, key);
    if (there) {
        *there = value;
        return;
    }
    dict->entries = butler_template_grow(run, dict->entries, dict->n, &dict->capacity, sizeof *dict->entries);
    dict->entries[dict->n++] = (struct template_entry){key, value};
}

void butler_template_put_name(struct template_run *run, struct template_dict *dict, const char *name, struct template_value value)
{
    butler_template_put(run, dict, template_string(butler_template_literal(run, name)), value);
}

const struct template_list *butler_template_items(struct template_run *run, struct template_value value)
{
    struct template_list *items = butler_template_list(run, VALUE_LIST).list;
    size_t n;
    switch (value.kind) {
    case VALUE_LIST:
    case VALUE_TUPLE:
        butler_template_step(run, value.list->n);
        return value.list;
    case VALUE_DICT:
        butler_template_step(run, value.dict->n);
        for (size_t i = 0; i < value.dict->n; i++)
            butler_template_push(run, items, value.dict->entries[i].key);
        return items;
    case VALUE_STRING:
        butler_template_step(run, value.text.n);
        for (size_t i = 0; i < value.text.n; i += n) {
            n = butler_template_char(value.text.bytes + i, value.text.n - i);
            butler_template_push(run, items, template_string(template_part(value.text, i, n)));
        }
        return items;
    case VALUE_UNDEFINED:
        return items;
    default:
        butler_template_fail(run, "%s cannot be iterated over", butler_template_kind_name(value));
    }
}

bool butler_template_contains(struct template_run *run, struct template_value container, struct template_value item)
{
    if (container.kind == VALUE_STRING) {
        if (item.kind != VALUE_STRING)
            butler_template_fail(run, "'in' looks for a string in a string, not for %s", butler_template_kind_name(item));
        return butler_template_find(run, container.text, item.text, 0) != SIZE_MAX;
    }
    if (container.kind == VALUE_DICT)
        return butler_template_get(run, container.dict, item) != NULL;
    const struct template_list *items = butler_template_items(run, container);
    for (size_t i = 0; i < items->n; i++)
        if (butler_template_equal(run, items->items[i], item))
            return true;
    return false;
}

/* ---------------------------------------------------------------------------------------- truth and order */

const char *butler_template_kind_name(struct template_value value)
{
    static const char *const names[] = {
        [VALUE_UNDEFINED] = "an undefined value",
        [VALUE_NONE] = "none",
        [VALUE_BOOL] = "a boolean",
        [VALUE_INTEGER] = "an integer",
        [VALUE_FLOAT] = "a float",
        [VALUE_STRING] = "a string",
        [VALUE_LIST] = "a list",
        [VALUE_TUPLE] = "a tuple",
        [VALUE_DICT] = "a dict",
        [VALUE_NAMESPACE] = "a namespace",
        [VALUE_LOOP] = "loop",
        [VALUE_FUNCTION] = "a function",
    };
    return names[value.kind];
}

bool butler_template_true(struct template_value value)
{
    switch (value.kind) {
    case VALUE_UNDEFINED:
    case VALUE_NONE:
        return false;
    case VALUE_BOOL:
        return value.boolean;
    case VALUE_INTEGER:
        return value.integer != 0;
    case VALUE_FLOAT:
        return value.real != 0;
    case VALUE_STRING:
        return value.text.n != 0;
    case VALUE_LIST:
    case VALUE_TUPLE:
        return value.list->n != 0;
    case VALUE_DICT:
        return value.dict->n != 0;
    default:
        return true;
    }
}

bool butler_template_is_number(struct template_value value)
{
    return value.kind == VALUE_BOOL || value.kind == VALUE_INTEGER || value.kind == VALUE_FLOAT;
}

double butler_template_to_real(struct template_value value)
{
    return value.kind == VALUE_FLOAT ? value.real : value.kind == VALUE_BOOL ? value.boolean : (double)value.integer;
}

int64_t butler_template_to_integer(struct template_run *run, struct template_value value, const char *what)
{
    if (value.kind == VALUE_BOOL)
        return value.boolean;
    if (value.kind != VALUE_INTEGER)
        butler_template_fail(run, "%s is %s; it must be an integer", what, butler_template_kind_name(value));
    return value.integer;
}

static bool same_lists(struct template_run *run, const struct template_list *a, const struct template_list *b)
{
    bool same = a->n == b->n;
    butler_template_enter(run);
    for (size_t i = 0; same && i < a->n; i++)
        same = butler_template_equal(run, a->items[i], b->items[i]);
    run->depth--;
    return same;
}

static bool same_dicts(struct template_run *run, const struct template_dict *a, const struct template_dict *b)
{
    bool same = a->n == b->n;
    butler_template_enter(run);
    for (size_t i = 0; same && i < a->n; i++) {
        const struct template_value *other = butler_template_get(run, b, a->entries[i].key);
        same = other && butler_template_equal(run, a->entries[i].value, *other);
    }
    run->depth--;
    return same;
}

bool butler_template_equal(struct template_run *run, struct template_value a, struct template_value b)
{
    butler_template_step(run, 1);
    if (butler_template_is_number(a) && butler_template_is_number(b))
        return a.kind == VALUE_FLOAT || b.kind == VALUE_FLOAT
                   ? butler_template_to_real(a) == butler_template_to_real(b)
                   : butler_template_to_integer(run, a, "") == butler_template_to_integer(run, b, "");
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case VALUE_STRING:
        butler_template_step(run, a.text.n / TEMPLATE_STEP_BYTES);
        return butler_template_same(a.text, b.text);
    case VALUE_LIST:
    case VALUE_TUPLE:
        return same_lists(run, a.list, b.list);
    case VALUE_DICT:
        return same_dicts(run, a.dict, b.dict);
    case VALUE_NAMESPACE:
        return a.dict == b.dict;
    case VALUE_FUNCTION:
        return a.function == b.function;
    case VALUE_LOOP:
        return a.loop == b.loop;
    default: /* undefined and none */
        return true;
    }
}

static int compare_lists(struct template_run *run, const struct template_list *a, const struct template_list *b)
{
    size_t i = 0;
    butler_template_enter(run);
    while (i < a->n && i < b->n && butler_template_equal(run, a->items[i], b->items[i]))
        i++;
    const int order = i < a->n && i < b->n ? butler_template_compare(run, a->items[i], b->items[i]) : (a->n > b->n) - (a->n < b->n);
    run->depth--;
    return order;
}

int butler_template_compare(struct template_run *run, struct template_value a, struct template_value b)
{
    butler_template_step(run, 1);
    if (butler_template_is_number(a) && butler_template_is_number(b)) {
        if (a.kind != VALUE_FLOAT && b.kind != VALUE_FLOAT) {
            const int64_t x = butler_template_to_integer(run, a, ""), y = butler_template_to_integer(run, b, "");
            return (x > y) - (x < y);
        }
        const double x = butler_template_to_real(a), y = butler_template_to_real(b);
        return (x > y) - (x < y);
    }
    if (a.kind == VALUE_STRING && b.kind == VALUE_STRING) {
        const size_t n = BUTLER_MIN(a.text.n, b.text.n);
        butler_template_step(run, n / TEMPLATE_STEP_BYTES);
        const int order = n ? memcmp(a.text.bytes, b.text.bytes, n) : 0;
        return order ? order : (a.text.n > b.text.n) - (a.text.n < b.text.n);
    }
    if ((a.kind == VALUE_LIST && b.kind == VALUE_LIST) || (a.kind == VALUE_TUPLE && b.kind == VALUE_TUPLE))
        return compare_lists(run, a.list, b.list);
    butler_template_fail(run, "%s and %s have no order", butler_template_kind_name(a), butler_template_kind_name(b));
}

/* ---------------------------------------------------------------------------------------------- as text */

/* The shortest decimal that reads back as the same double, with an exponent where Python writes one. */
void butler_template_write_float(struct template_run *run, struct template_buffer *out, double value)
{
    char text[64], digits[32];
    int precision = 0;
    if (!isfinite(value)) {
        const char *name = isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
        butler_template_append_made(run, out, name, strlen(name));
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision, value);
    while (strtod(digits, NULL) != value && ++precision < 17);
    const int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16)
        snprintf(text, sizeof text, "%s", digits);
    else
        snprintf(text, sizeof text, "%.*f", BUTLER_MAX(precision - exponent, 1), value);
    butler_template_append_made(run, out, text, strlen(text));
}

static void repr_string(struct template_run *run, struct template_buffer *out, struct template_text text)
{
    const bool has_single = text.n && memchr(text.bytes, '\'', text.n), has_double = text.n && memchr(text.bytes, '"', text.n);
    const char quote = has_single && !has_double ? '"' : '\'';
    butler_template_append_made(run, out, &quote, 1);
    for (size_t i = 0, n; i < text.n; i += n) {
        const unsigned char c = (unsigned char)text.bytes[i];
        char escape[8] = "";
        n = butler_template_char(text.bytes + i, text.n - i);
        if (c == '\n' || c == '\r' || c == '\t')
            snprintf(escape, sizeof escape, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c == '\\' || c == (unsigned char)quote)
            snprintf(escape, sizeof escape, "\\%c", c);
        else if (c < ' ' || c == 0x7F)
            snprintf(escape, sizeof escape, "\\x%02x", c);
        if (*escape)
            butler_template_append_made(run, out, escape, strlen(escape));
        else
            butler_template_append(run, out, template_part(text, i, n));
    }
    butler_template_append_made(run, out, &quote, 1);
}

static void repr_items(struct template_run *run, struct template_buffer *out, struct template_value value)
{
    const bool is_dict = value.kind == VALUE_DICT, is_tuple = value.kind == VALUE_TUPLE;
    const size_t n = is_dict ? value.dict->n : value.list->n;
    butler_template_enter(run);
    butler_template_append_made(run, out, is_dict ? "{" : is_tuple ? "(" : "[", 1);
    for (size_t i = 0; i < n; i++) {
        if (i)
            butler_template_append_made(run, out, ", ", 2);
        if (is_dict) {
            butler_template_repr(run, out, value.dict->entries[i].key);
            butler_template_append_made(run, out, ": ", 2);
        }
        butler_template_repr(run, out, is_dict ? value.dict->entries[i].value : value.list->items[i]);
    }
    if (is_tuple && n == 1)
        butler_template_append_made(run, out, ",", 1);
    butler_template_append_made(run, out, is_dict ? "}" : is_tuple ? ")" : "]", 1);
    run->depth--;
}

void butler_template_repr(struct template_run *run, struct template_buffer *out, struct template_value value)
{
    char number[32];
    const char *word = number;
    butler_template_step(run, 1);
    switch (value.kind) {
    case VALUE_STRING:
        repr_string(run, out, value.text);
        return;
    case VALUE_FLOAT:
        butler_template_write_float(run, out, value.real);
        return;
    case VALUE_LIST:
    case VALUE_TUPLE:
    case VALUE_DICT:
        repr_items(run, out, value);
        return;
    case VALUE_INTEGER:
        snprintf(number, sizeof number, "%lld", (long long)value.integer);
        break;
    case VALUE_NONE:
        word = "None";
        break;
    case VALUE_BOOL:
        word = value.boolean ? "True" : "False";
        break;
    case VALUE_UNDEFINED:
        word = "Undefined";
        break;
    default:
        butler_template_fail(run, "%s cannot be written as text", butler_template_kind_name(value));
    }
    butler_template_append_made(run, out, word, strlen(word));
}

struct template_text butler_template_to_text(struct template_run *run, struct template_value value)
{
    struct template_buffer out = {0};
    if (value.kind == VALUE_STRING)
        return value.text;
    if (value.kind != VALUE_UNDEFINED)
        butler_template_repr(run, &out, value);
    return template_taken(&out);
}
