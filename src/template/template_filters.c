/* Filters and tests of the template interpreter, with the meaning that jinja2 gives them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "template/template_parts.h"

#define BUILTIN(name)                                                                                                              \
    static struct template_value name(struct template_run *run, struct template_value self, const struct template_call *call)

/* ---------------------------------------------------------------------------------------------- arguments */

const struct template_value *butler_template_argument(struct template_run *run, const struct template_call *call, size_t i,
                                                      const char *name)
{
    if (i < call->n)
        return &call->args[i];
    return name && call->named->n ? butler_template_get(run, call->named, template_string(butler_template_literal(run, name)))
                                  : NULL;
}

struct template_text butler_template_text_argument(struct template_run *run, const struct template_call *call, size_t i,
                                                   const char *name, const char *otherwise)
{
    const struct template_value *value = butler_template_argument(run, call, i, name);
    if (!value && otherwise)
        return butler_template_literal(run, otherwise);
    if (!value)
        butler_template_fail(run, "argument %zu (%s) is missing", i + 1, name ? name : "a string");
    if (value->kind != VALUE_STRING)
        butler_template_fail(run, "argument %zu is %s; it must be a string", i + 1, butler_template_kind_name(*value));
    return value->text;
}

int64_t butler_template_integer_argument(struct template_run *run, const struct template_call *call, size_t i, const char *name,
                                         int64_t otherwise)
{
    const struct template_value *value = butler_template_argument(run, call, i, name);
    return value && value->kind != VALUE_NONE ? butler_template_to_integer(run, *value, "an argument") : otherwise;
}

bool butler_template_bool_argument(struct template_run *run, const struct template_call *call, size_t i, const char *name)
{
    const struct template_value *value = butler_template_argument(run, call, i, name);
    return value && butler_template_true(*value);
}

static const struct template_value *required(struct template_run *run, const struct template_call *call, size_t i)
{
    if (i >= call->n)
        butler_template_fail(run, "argument %zu is missing", i + 1);
    return &call->args[i];
}

const struct template_builtin *butler_template_find_builtin(const struct template_builtin *table, struct template_text name)
{
    for (; table->name; table++)
        if (butler_template_is(name, table->name))
            return table;
    return NULL;
}

/* ------------------------------------------------------------------------------------------ filters of text */

BUILTIN(filter_trim)
{
    const struct template_value *set = butler_template_argument(run, call, 0, "chars");
    const struct template_text text = butler_template_to_text(run, self);
    if (set && set->kind != VALUE_STRING && set->kind != VALUE_NONE)
        butler_template_fail(run, "trim: the characters are %s; they must be a string", butler_template_kind_name(*set));
    return template_string(butler_template_strip(run, text, set && set->kind == VALUE_STRING ? &set->text : NULL, true, true));
}

static struct template_value to_case(struct template_run *run, struct template_value self, enum template_case which)
{
    return template_string(butler_template_to_case(run, butler_template_to_text(run, self), which));
}

BUILTIN(filter_upper)
{
    (void)call;
    return to_case(run, self, CASE_UPPER);
}

BUILTIN(filter_lower)
{
    (void)call;
    return to_case(run, self, CASE_LOWER);
}

BUILTIN(filter_title)
{
    (void)call;
    return to_case(run, self, CASE_TITLE_FILTER);
}

BUILTIN(filter_capitalize)
{
    (void)call;
    return to_case(run, self, CASE_CAPITAL);
}

BUILTIN(filter_string)
{
    (void)call;
    return template_string(butler_template_to_text(run, self));
}

BUILTIN(filter_replace)
{
    return template_string(butler_template_replace(
        run, butler_template_to_text(run, self), butler_template_text_argument(run, call, 0, "old", NULL),
        butler_template_text_argument(run, call, 1, "new", NULL), butler_template_integer_argument(run, call, 2, "count", -1)));
}

/* indent(width=4, first=false, blank=false): every line but the first, and those that are empty, is indented. */
BUILTIN(filter_indent)
{
    const struct template_value *given = butler_template_argument(run, call, 0, "width");
    const bool first = butler_template_bool_argument(run, call, 1, "first");
    const bool blank = butler_template_bool_argument(run, call, 2, "blank");
    struct template_buffer width = {0}, out = {0};
    if (self.kind != VALUE_STRING)
        butler_template_fail(run, "indent: the value is %s; it must be a string", butler_template_kind_name(self));
    const struct template_text text = self.text;
    const int64_t n_spaces = given && given->kind == VALUE_STRING ? 0 : butler_template_integer_argument(run, call, 0, "width", 4);
    for (int64_t i = 0; i < n_spaces; i++)
        butler_template_append_made(run, &width, " ", 1);
    const struct template_text indent = given && given->kind == VALUE_STRING ? given->text : template_taken(&width);
    for (size_t at = 0, n, n_end;; at += n + n_end) {
        n = butler_template_line(template_part(text, at, text.n - at), &n_end);
        butler_template_step(run, 1 + n / TEMPLATE_STEP_BYTES);
        if (at == 0 ? first : n > 0 || blank)
            butler_template_append(run, &out, indent);
        butler_template_append(run, &out, template_part(text, at, n));
        if (n_end == 0 || (at + n + n_end == text.n && text.bytes[at + n] == '\r' && n_end == 1))
            return template_string(template_taken(&out));
        butler_template_append(run, &out, butler_template_literal(run, "\n"));
    }
}

BUILTIN(filter_escape)
{
    static const char *const from[] = {"&", "<", ">", "'", "\""}, *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    struct template_text text = butler_template_to_text(run, self);
    (void)call;
    for (int i = 0; i < BUTLER_COUNT(from); i++)
        text = butler_template_replace(run, text, butler_template_literal(run, from[i]), butler_template_literal(run, to[i]), -1);
    return template_string(text);
}

BUILTIN(filter_wordcount)
{
    struct template_text text = butler_template_to_text(run, self);
    int64_t n = 0;
    bool in_word = false;
    (void)call;
    butler_template_step(run, text.n / TEMPLATE_STEP_BYTES);
    for (size_t i = 0; i < text.n; i++) {
        const bool letter = strchr(" \t\r\n.,;:!?()[]{}<>\"'-+*/=&|", text.bytes[i]) == NULL;
        n += letter && !in_word;
        in_word = letter;
    }
    return template_integer(n);
}

/* --------------------------------------------------------------------------------------- filters of numbers */

enum { MAX_DIGITS = 64 };

/* Reads a string as a decimal number, as Python's float() does; its text without blanks into digits[MAX_DIGITS]. */
static bool read_number(struct template_run *run, struct template_value value, char *digits, double *real)
{
    char *end;
    if (value.kind == VALUE_UNDEFINED)
        butler_template_fail(run, "an undefined value is no number");
    if (value.kind != VALUE_STRING)
        return false;
    const struct template_text text = butler_template_strip(run, value.text, NULL, true, true);
    if (text.n == 0 || text.n >= MAX_DIGITS)
        return false;
    memcpy(digits, text.bytes, text.n);
    digits[text.n] = 0;
    *real = strtod(digits, &end);
    return end == digits + text.n && !strpbrk(digits, "xXpP");
}

/* A text of digits to a base, with the prefix that Python allows for it. False: it is none. */
static bool read_digits(struct template_run *run, struct template_text text, int base, int64_t *integer)
{
    char digits[MAX_DIGITS], *end;
    text = butler_template_strip(run, text, NULL, true, true);
    if (text.n == 0 || text.n >= MAX_DIGITS || base < 2 || base > 36)
        return false;
    memcpy(digits, text.bytes, text.n);
    digits[text.n] = 0;
    const size_t sign = digits[0] == '-' || digits[0] == '+';
    const char letter = digits[sign] == '0' ? (char)(digits[sign + 1] | 32) : 0;
    if ((base == 16 && letter == 'x') || (base == 8 && letter == 'o') || (base == 2 && letter == 'b'))
        memmove(digits + sign, digits + sign + 2, text.n - sign - 1);
    errno = 0;
    *integer = strtoll(digits, &end, base);
    return errno == 0 && end > digits + sign && !*end;
}

BUILTIN(filter_int)
{
    const struct template_value *otherwise = butler_template_argument(run, call, 0, "default");
    const int64_t base = butler_template_integer_argument(run, call, 1, "base", 10);
    int64_t integer;
    char digits[MAX_DIGITS] = ".";
    if (self.kind == VALUE_STRING && base != 10 && read_digits(run, self.text, (int)BUTLER_MIN(BUTLER_MAX(base, 0), 37), &integer))
        return template_integer(integer);
    double real = self.kind == VALUE_FLOAT ? self.real : NAN;
    if (self.kind == VALUE_INTEGER || self.kind == VALUE_BOOL)
        return template_integer(butler_template_to_integer(run, self, ""));
    if (self.kind != VALUE_FLOAT && !read_number(run, self, digits, &real))
        real = NAN;
    if (!(fabs(real) < 9e18))
        return otherwise ? *otherwise : template_integer(0);
    return template_integer(strpbrk(digits, ".eE") ? (int64_t)real : strtoll(digits, NULL, 10));
}

BUILTIN(filter_float)
{
    const struct template_value *otherwise = butler_template_argument(run, call, 0, "default");
    char digits[MAX_DIGITS];
    double real = 0;
    if (butler_template_is_number(self))
        return template_real(butler_template_to_real(self));
    if (read_number(run, self, digits, &real))
        return template_real(real);
    return otherwise ? *otherwise : template_real(0);
}

static void require_number(struct template_run *run, struct template_value value, const char *what)
{
    if (!butler_template_is_number(value))
        butler_template_fail(run, "%s of %s is not possible", what, butler_template_kind_name(value));
}

BUILTIN(filter_abs)
{
    (void)call;
    require_number(run, self, "abs");
    if (self.kind == VALUE_FLOAT)
        return template_real(fabs(self.real));
    const int64_t value = butler_template_to_integer(run, self, "");
    return template_integer(value < 0 && value != INT64_MIN ? -value : value);
}

/* round(precision=0, method="common"): "common" takes the even neighbour of a tie, as Python does. */
BUILTIN(filter_round)
{
    const int64_t precision = butler_template_integer_argument(run, call, 0, "precision", 0);
    const struct template_text method = butler_template_text_argument(run, call, 1, "method", "common");
    char digits[400];
    require_number(run, self, "round");
    if (precision < 0 || precision > 17)
        butler_template_fail(run, "round: the precision must be between 0 and 17");
    const double value = butler_template_to_real(self), scale = pow(10, (double)precision);
    if (butler_template_is(method, "ceil") || butler_template_is(method, "floor"))
        return template_real((butler_template_is(method, "ceil") ? ceil(value * scale) : floor(value * scale)) / scale);
    if (self.kind != VALUE_FLOAT)
        return template_integer(butler_template_to_integer(run, self, ""));
    snprintf(digits, sizeof digits, "%.*f", (int)precision, value); /* exact, and ties go to the even digit */
    return template_real(strtod(digits, NULL));
}

/* ---------------------------------------------------------------------------------- filters of sequences */

BUILTIN(filter_length)
{
    (void)call;
    if (self.kind == VALUE_STRING)
        return template_integer((int64_t)butler_template_n_chars(run, self.text));
    if (self.kind == VALUE_DICT)
        return template_integer((int64_t)self.dict->n);
    return template_integer((int64_t)butler_template_items(run, self)->n);
}

BUILTIN(filter_list)
{
    (void)call;
    struct template_value out = {.kind = VALUE_LIST};
    *(out.list = butler_template_list(run, VALUE_LIST).list) = *butler_template_items(run, self);
    return out;
}

/* The end of a sequence: the first or the last item. */
static struct template_value end_item(struct template_run *run, struct template_value self, bool last)
{
    const struct template_list *items = butler_template_items(run, self);
    return items->n ? items->items[last ? items->n - 1 : 0]
                    : template_undefined(butler_template_literal(run, "an item of nothing"));
}

BUILTIN(filter_first)
{
    (void)call;
    return end_item(run, self, false);
}

BUILTIN(filter_last)
{
    (void)call;
    return end_item(run, self, true);
}

/* The field "a" of the value, or a.b, or a.0. */
static struct template_value attribute_of(struct template_run *run, struct template_value value, struct template_value path)
{
    if (path.kind == VALUE_INTEGER)
        return butler_template_item(run, value, path);
    if (path.kind != VALUE_STRING)
        butler_template_fail(run, "the name of an attribute is %s", butler_template_kind_name(path));
    struct template_text rest = path.text;
    for (;;) {
        const char *dot = rest.n ? memchr(rest.bytes, '.', rest.n) : NULL;
        const size_t n = dot ? (size_t)(dot - rest.bytes) : rest.n;
        struct template_value key = template_string(template_part(rest, 0, n));
        int64_t place = 0;
        bool is_place = n > 0 && n < 10;
        for (size_t i = 0; i < n && is_place; i++) {
            is_place = rest.bytes[i] >= '0' && rest.bytes[i] <= '9';
            place = place * 10 + (rest.bytes[i] - '0');
        }
        if (is_place)
            key = template_integer(place);
        value = butler_template_item(run, value, key);
        if (!dot)
            return value;
        rest = template_part(rest, n + 1, rest.n - n - 1);
    }
}

BUILTIN(filter_join)
{
    const struct template_list *items = butler_template_items(run, self);
    const struct template_value *given = butler_template_argument(run, call, 0, "d");
    const struct template_value *attribute = butler_template_argument(run, call, 1, "attribute");
    const struct template_text between = given ? butler_template_to_text(run, *given) : butler_template_literal(run, "");
    struct template_buffer out = {0};
    for (size_t i = 0; i < items->n; i++) {
        const bool has_attribute = attribute && attribute->kind != VALUE_NONE;
        const struct template_value item = has_attribute ? attribute_of(run, items->items[i], *attribute) : items->items[i];
        butler_template_append(run, &out, i ? between : butler_template_literal(run, ""));
        butler_template_append(run, &out, butler_template_to_text(run, item));
    }
    return template_string(template_taken(&out));
}

BUILTIN(filter_reverse)
{
    const struct template_list *items = butler_template_items(run, self);
    struct template_value out = butler_template_list(run, VALUE_LIST);
    struct template_buffer text = {0};
    (void)call;
    for (size_t i = items->n; i-- > 0;) {
        butler_template_push(run, out.list, items->items[i]);
        if (self.kind == VALUE_STRING)
            butler_template_append(run, &text, items->items[i].text);
    }
    return self.kind == VALUE_STRING ? template_string(template_taken(&text)) : out;
}

BUILTIN(filter_items)
{
    struct template_value out = butler_template_list(run, VALUE_LIST);
    (void)call;
    if (self.kind == VALUE_UNDEFINED)
        return out;
    if (self.kind != VALUE_DICT)
        butler_template_fail(run, "items of %s are not possible", butler_template_kind_name(self));
    butler_template_step(run, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++) {
        struct template_value pair = butler_template_list(run, VALUE_TUPLE);
        butler_template_push(run, pair.list, self.dict->entries[i].key);
        butler_template_push(run, pair.list, self.dict->entries[i].value);
        butler_template_push(run, out.list, pair);
    }
    return out;
}

/* ------------------------------------------------------------------------------------------------- order */

/* What an item is sorted by: itself or an attribute, and strings without their case. */
static struct template_value sort_key(struct template_run *run, struct template_value item, const struct template_value *attribute,
                                      bool case_sensitive)
{
    if (attribute && attribute->kind != VALUE_NONE)
        item = attribute_of(run, item, *attribute);
    return item.kind == VALUE_STRING && !case_sensitive ? to_case(run, item, CASE_LOWER) : item;
}

/* Stable: merges halves. Sorts items[n] by keys[n]; other and other_keys are room for as many. */
static void merge_sort(struct template_run *run, struct template_value *items, struct template_value *keys,
                       struct template_value *other, struct template_value *other_keys, size_t n, bool reverse)
{
    const size_t half = n / 2;
    if (n < 2)
        return;
    merge_sort(run, items, keys, other, other_keys, half, reverse);
    merge_sort(run, items + half, keys + half, other + half, other_keys + half, n - half, reverse);
    for (size_t i = 0, a = 0, b = half; i < n; i++) {
        bool second = a == half;
        if (!second && b < n) {
            const int order = butler_template_compare(run, keys[b], keys[a]);
            second = reverse ? order > 0 : order < 0;
        }
        const size_t from = second ? b++ : a++;
        other[i] = items[from];
        other_keys[i] = keys[from];
    }
    memcpy(items, other, n * sizeof *items);
    memcpy(keys, other_keys, n * sizeof *keys);
}

static struct template_value sort_items(struct template_run *run, const struct template_list *items,
                                        const struct template_value *attribute, bool case_sensitive, bool reverse)
{
    struct template_value out = butler_template_list(run, VALUE_LIST);
    const size_t n = items->n;
    if (n == 0)
        return out;
    struct template_value *memory = butler_template_alloc(run, 4 * n * sizeof *memory);
    for (size_t i = 0; i < n; i++) {
        memory[i] = items->items[i];
        memory[n + i] = sort_key(run, items->items[i], attribute, case_sensitive);
    }
    merge_sort(run, memory, memory + n, memory + 2 * n, memory + 3 * n, n, reverse);
    *out.list = (struct template_list){memory, n, n};
    return out;
}

BUILTIN(filter_sort)
{
    return sort_items(run, butler_template_items(run, self), butler_template_argument(run, call, 2, "attribute"),
                      butler_template_bool_argument(run, call, 1, "case_sensitive"),
                      butler_template_bool_argument(run, call, 0, "reverse"));
}

/* dictsort(case_sensitive=false, by="key", reverse=false) */
BUILTIN(filter_dictsort)
{
    const struct template_text by = butler_template_text_argument(run, call, 1, "by", "key");
    const struct template_value place = template_integer(butler_template_is(by, "value"));
    if (self.kind != VALUE_DICT)
        butler_template_fail(run, "dictsort of %s is not possible", butler_template_kind_name(self));
    return sort_items(run, filter_items(run, self, call).list, &place,
                      butler_template_bool_argument(run, call, 0, "case_sensitive"),
                      butler_template_bool_argument(run, call, 2, "reverse"));
}

BUILTIN(filter_unique)
{
    const struct template_list *items = butler_template_items(run, self);
    const struct template_value *attribute = butler_template_argument(run, call, 1, "attribute");
    const bool case_sensitive = butler_template_bool_argument(run, call, 0, "case_sensitive");
    struct template_value out = butler_template_list(run, VALUE_LIST);
    struct template_dict *seen = butler_template_dict(run, VALUE_DICT).dict;
    for (size_t i = 0; i < items->n; i++) {
        const struct template_value key = sort_key(run, items->items[i], attribute, case_sensitive);
        if (butler_template_get(run, seen, key))
            continue;
        butler_template_put(run, seen, key, key);
        butler_template_push(run, out.list, items->items[i]);
    }
    return out;
}

/* min and max take (case_sensitive=false, attribute=none). */
static struct template_value extreme(struct template_run *run, struct template_value self, const struct template_call *call,
                                     int sign)
{
    const struct template_list *items = butler_template_items(run, self);
    const struct template_value *attribute = butler_template_argument(run, call, 1, "attribute");
    const bool case_sensitive = butler_template_bool_argument(run, call, 0, "case_sensitive");
    struct template_value best = template_undefined(butler_template_literal(run, "an item of nothing")), best_key = best;
    for (size_t i = 0; i < items->n; i++) {
        const struct template_value key = sort_key(run, items->items[i], attribute, case_sensitive);
        if (i == 0 || sign * butler_template_compare(run, key, best_key) > 0) {
            best = items->items[i];
            best_key = key;
        }
    }
    return best;
}

BUILTIN(filter_min)
{
    return extreme(run, self, call, -1);
}

BUILTIN(filter_max)
{
    return extreme(run, self, call, 1);
}

BUILTIN(filter_sum)
{
    const struct template_list *items = butler_template_items(run, self);
    const struct template_value *attribute = butler_template_argument(run, call, 0, "attribute");
    const struct template_value *start = butler_template_argument(run, call, 1, "start");
    struct template_value sum = start ? *start : template_integer(0);
    for (size_t i = 0; i < items->n; i++) {
        const bool has_attribute = attribute && attribute->kind != VALUE_NONE;
        sum = butler_template_add(run, sum, has_attribute ? attribute_of(run, items->items[i], *attribute) : items->items[i]);
    }
    return sum;
}

/* ---------------------------------------------------------------------- filters that apply filters and tests */

static struct template_call call_rest(const struct template_call *call, size_t from)
{
    return from < call->n ? (struct template_call){call->args + from, call->n - from, call->named}
                          : (struct template_call){.named = call->named};
}

/* What map, select and their like go through; what is false counts as empty. */
static const struct template_list *items_of(struct template_run *run, struct template_value value)
{
    return butler_template_items(run, butler_template_true(value) ? value : template_undefined(butler_template_literal(run, "")));
}

/* map(attribute=..., default=...) or map("filter", arguments) */
BUILTIN(filter_map)
{
    const struct template_list *items = items_of(run, self);
    const struct template_value *attribute = butler_template_argument(run, call, SIZE_MAX, "attribute");
    const struct template_value *otherwise = butler_template_argument(run, call, SIZE_MAX, "default");
    struct template_value out = butler_template_list(run, VALUE_LIST);
    const struct template_builtin *filter =
        attribute ? NULL : butler_template_find_filter(run, butler_template_text_argument(run, call, 0, NULL, NULL));
    const struct template_call rest = call_rest(call, 1);
    for (size_t i = 0; i < items->n; i++) {
        struct template_value value =
            filter ? filter->fn(run, items->items[i], &rest) : attribute_of(run, items->items[i], *attribute);
        if (!filter && value.kind == VALUE_UNDEFINED && otherwise)
            value = *otherwise;
        butler_template_push(run, out.list, value);
    }
    return out;
}

/* The items that pass (or do not pass) a test, themselves or by an attribute. */
static struct template_value select_items(struct template_run *run, struct template_value self, const struct template_call *call,
                                          bool by_attribute, bool passes)
{
    const struct template_list *items = items_of(run, self);
    struct template_value out = butler_template_list(run, VALUE_LIST);
    const struct template_value attribute = by_attribute ? *required(run, call, 0) : template_none();
    const size_t n_own = by_attribute ? 1 : 0;
    const struct template_builtin *test =
        call->n > n_own ? butler_template_find_test(run, butler_template_text_argument(run, call, n_own, NULL, NULL)) : NULL;
    const struct template_call rest = call_rest(call, n_own + 1);
    for (size_t i = 0; i < items->n; i++) {
        const struct template_value value = by_attribute ? attribute_of(run, items->items[i], attribute) : items->items[i];
        if (butler_template_true(test ? test->fn(run, value, &rest) : value) == passes)
            butler_template_push(run, out.list, items->items[i]);
    }
    return out;
}

BUILTIN(filter_select)
{
    return select_items(run, self, call, false, true);
}

BUILTIN(filter_reject)
{
    return select_items(run, self, call, false, false);
}

BUILTIN(filter_selectattr)
{
    return select_items(run, self, call, true, true);
}

BUILTIN(filter_rejectattr)
{
    return select_items(run, self, call, true, false);
}

/* default(value="", boolean=false) */
BUILTIN(filter_default)
{
    const struct template_value *otherwise = butler_template_argument(run, call, 0, "default_value");
    const bool also_false = butler_template_bool_argument(run, call, 1, "boolean");
    if (self.kind != VALUE_UNDEFINED && !(also_false && !butler_template_true(self)))
        return self;
    return otherwise ? *otherwise : template_string(butler_template_literal(run, ""));
}

BUILTIN(filter_attr)
{
    return butler_template_field(run, self, butler_template_text_argument(run, call, 0, "name", NULL));
}

const struct template_builtin butler_template_filters[] = {
    {"abs", filter_abs},
    {"attr", filter_attr},
    {"capitalize", filter_capitalize},
    {"count", filter_length},
    {"d", filter_default},
    {"default", filter_default},
    {"dictsort", filter_dictsort},
    {"e", filter_escape},
    {"escape", filter_escape},
    {"first", filter_first},
    {"float", filter_float},
    {"indent", filter_indent},
    {"int", filter_int},
    {"items", filter_items},
    {"join", filter_join},
    {"last", filter_last},
    {"length", filter_length},
    {"list", filter_list},
    {"lower", filter_lower},
    {"map", filter_map},
    {"max", filter_max},
    {"min", filter_min},
    {"reject", filter_reject},
    {"rejectattr", filter_rejectattr},
    {"replace", filter_replace},
    {"reverse", filter_reverse},
    {"round", filter_round},
    {"safe", filter_string},
    {"select", filter_select},
    {"selectattr", filter_selectattr},
    {"sort", filter_sort},
    {"string", filter_string},
    {"sum", filter_sum},
    {"title", filter_title},
    {"tojson", butler_template_to_json},
    {"trim", filter_trim},
    {"unique", filter_unique},
    {"upper", filter_upper},
    {"wordcount", filter_wordcount},
    {NULL, NULL},
};

const struct template_builtin *butler_template_find_filter(struct template_run *run, struct template_text name)
{
    const struct template_builtin *filter = butler_template_find_builtin(butler_template_filters, name);
    if (!filter)
        butler_template_fail(run, "the filter '%.*s' is not known", (int)BUTLER_MIN(name.n, 60), name.bytes);
    return filter;
}

/* ------------------------------------------------------------------------------------------------- tests */

#define TEST(name, holds)                                                                                                          \
    BUILTIN(name)                                                                                                                  \
    {                                                                                                                              \
        (void)run, (void)call;                                                                                                     \
        return template_bool(holds);                                                                                               \
    }

static bool is_container(struct template_value value)
{
    return value.kind == VALUE_STRING || value.kind == VALUE_LIST || value.kind == VALUE_TUPLE || value.kind == VALUE_DICT ||
           value.kind == VALUE_UNDEFINED;
}

static int64_t remainder_of(struct template_run *run, struct template_value value, int64_t divisor)
{
    const int64_t integer = butler_template_to_integer(run, value, "the tested value");
    if (divisor == 0)
        butler_template_fail(run, "division by zero");
    return divisor == -1 ? 0 : integer % divisor;
}

TEST(test_defined, self.kind != VALUE_UNDEFINED)
TEST(test_undefined, self.kind == VALUE_UNDEFINED)
TEST(test_none, self.kind == VALUE_NONE)
TEST(test_string, self.kind == VALUE_STRING)
TEST(test_mapping, self.kind == VALUE_DICT)
TEST(test_iterable, is_container(self))
TEST(test_sequence, is_container(self))
TEST(test_number, butler_template_is_number(self))
TEST(test_integer, self.kind == VALUE_INTEGER)
TEST(test_float, self.kind == VALUE_FLOAT)
TEST(test_boolean, self.kind == VALUE_BOOL)
TEST(test_true, self.kind == VALUE_BOOL && self.boolean)
TEST(test_false, self.kind == VALUE_BOOL && !self.boolean)
TEST(test_callable, self.kind == VALUE_FUNCTION || self.kind == VALUE_UNDEFINED)
TEST(test_odd, remainder_of(run, self, 2) != 0)
TEST(test_even, remainder_of(run, self, 2) == 0)
TEST(test_divisible, remainder_of(run, self, butler_template_to_integer(run, *required(run, call, 0), "the divisor")) == 0)
TEST(test_eq, butler_template_equal(run, self, *required(run, call, 0)))
TEST(test_ne, !butler_template_equal(run, self, *required(run, call, 0)))
TEST(test_lt, butler_template_compare(run, self, *required(run, call, 0)) < 0)
TEST(test_le, butler_template_compare(run, self, *required(run, call, 0)) <= 0)
TEST(test_gt, butler_template_compare(run, self, *required(run, call, 0)) > 0)
TEST(test_ge, butler_template_compare(run, self, *required(run, call, 0)) >= 0)
TEST(test_in, butler_template_contains(run, *required(run, call, 0), self))
TEST(test_sameas, self.kind == required(run, call, 0)->kind && butler_template_equal(run, self, *required(run, call, 0)))

TEST(test_lower, butler_template_has_case(run, butler_template_to_text(run, self), false))
TEST(test_upper, butler_template_has_case(run, butler_template_to_text(run, self), true))

static const struct template_builtin tests[] = {
    {"boolean", test_boolean},
    {"callable", test_callable},
    {"defined", test_defined},
    {"divisibleby", test_divisible},
    {"eq", test_eq},
    {"equalto", test_eq},
    {"even", test_even},
    {"false", test_false},
    {"float", test_float},
    {"ge", test_ge},
    {"greaterthan", test_gt},
    {"gt", test_gt},
    {"in", test_in},
    {"integer", test_integer},
    {"iterable", test_iterable},
    {"le", test_le},
    {"lessthan", test_lt},
    {"lower", test_lower},
    {"lt", test_lt},
    {"mapping", test_mapping},
    {"ne", test_ne},
    {"none", test_none},
    {"number", test_number},
    {"odd", test_odd},
    {"sameas", test_sameas},
    {"sequence", test_sequence},
    {"string", test_string},
    {"true", test_true},
    {"undefined", test_undefined},
    {"upper", test_upper},
    {"==", test_eq},
    {"!=", test_ne},
    {"<", test_lt},
    {"<=", test_le},
    {">", test_gt},
    {">=", test_ge},
    {NULL, NULL},
};

const struct template_builtin *butler_template_find_test(struct template_run *run, struct template_text name)
{
    const struct template_builtin *test = butler_template_find_builtin(tests, name);
    if (!test)
        butler_template_fail(run, "the test '%.*s' is not known", (int)BUTLER_MIN(name.n, 60), name.bytes);
    return test;
}
