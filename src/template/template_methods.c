/* Methods of strings, dicts and loops, and the functions that templates may call. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "template/template_parts.h"

#define BUILTIN(name)                                                                                                              \
    static struct template_value name(struct template_run *run, struct template_value self, const struct template_call *call)

/* ----------------------------------------------------------------------------------------- strings: ends */

static struct template_value strip(struct template_run *run, struct template_value self, const struct template_call *call,
                                   bool left, bool right)
{
    const struct template_value *set = butler_template_argument(run, call, 0, NULL);
    if (!set || set->kind == VALUE_NONE)
        return template_string(butler_template_strip(run, self.text, NULL, left, right));
    const struct template_text chars = butler_template_text_argument(run, call, 0, NULL, NULL);
    return template_string(butler_template_strip(run, self.text, &chars, left, right));
}

BUILTIN(string_strip)
{
    return strip(run, self, call, true, true);
}

BUILTIN(string_lstrip)
{
    return strip(run, self, call, true, false);
}

BUILTIN(string_rstrip)
{
    return strip(run, self, call, false, true);
}

/* The part of the text that the arguments at places 1 and 2 mark, from one character to another as in a slice. *first: the index of
 * its first character. False: it begins behind the text's end. */
static bool window(struct template_run *run, struct template_text *text, const struct template_call *call, int64_t *first)
{
    if (call->n < 2) {
        *first = 0;
        return true;
    }
    const int64_t n = (int64_t)butler_template_n_chars(run, *text);
    int64_t from = butler_template_integer_argument(run, call, 1, NULL, 0),
            to = butler_template_integer_argument(run, call, 2, NULL, n);
    from = from < 0 ? BUTLER_MAX(from + n, 0) : from;
    to = to < 0 ? BUTLER_MAX(to + n, 0) : BUTLER_MIN(to, n);
    if (from > n || from > to)
        return false;
    size_t begin = 0, end;
    for (int64_t i = 0; i < from; i++)
        begin += butler_template_char(text->bytes + begin, text->n - begin);
    end = begin;
    for (int64_t i = from; i < to; i++)
        end += butler_template_char(text->bytes + end, text->n - end);
    *text = template_part(*text, begin, end - begin);
    *first = from;
    return true;
}

static bool has_end(struct template_text text, struct template_text what, bool at_end)
{
    return what.n <= text.n && butler_template_same(template_part(text, at_end ? text.n - what.n : 0, what.n), what);
}

/* startswith and endswith: of a string, or of one of a tuple. */
static struct template_value has_ends(struct template_run *run, struct template_value self, const struct template_call *call,
                                      bool at_end)
{
    const struct template_value *what = butler_template_argument(run, call, 0, NULL);
    int64_t first;
    if (!window(run, &self.text, call, &first))
        return template_bool(false);
    if (!what || what->kind != VALUE_TUPLE)
        return template_bool(has_end(self.text, butler_template_text_argument(run, call, 0, NULL, NULL), at_end));
    for (size_t i = 0; i < what->list->n; i++)
        if (what->list->items[i].kind == VALUE_STRING && has_end(self.text, what->list->items[i].text, at_end))
            return template_bool(true);
    return template_bool(false);
}

BUILTIN(string_startswith)
{
    return has_ends(run, self, call, false);
}

BUILTIN(string_endswith)
{
    return has_ends(run, self, call, true);
}

BUILTIN(string_removeprefix)
{
    const struct template_text what = butler_template_text_argument(run, call, 0, NULL, NULL);
    const size_t n = has_end(self.text, what, false) ? what.n : 0;
    return template_string(template_part(self.text, n, self.text.n - n));
}

BUILTIN(string_removesuffix)
{
    const struct template_text what = butler_template_text_argument(run, call, 0, NULL, NULL);
    const size_t n = has_end(self.text, what, true) ? what.n : 0;
    return template_string(template_part(self.text, 0, self.text.n - n));
}

/* ----------------------------------------------------------------------------------------- strings: pieces */

static void push_part(struct template_run *run, struct template_value list, struct template_text text, size_t from, size_t to)
{
    butler_template_push(run, list.list, template_string(template_part(text, from, to - from)));
}

static struct template_value split_at_space(struct template_run *run, struct template_text text, int64_t max)
{
    struct template_value out = butler_template_list(run, VALUE_LIST);
    for (int64_t k = 0;; k++) {
        size_t n = 0;
        text = butler_template_strip(run, text, NULL, true, false);
        if (text.n == 0)
            return out;
        if (max >= 0 && k >= max) {
            butler_template_push(run, out.list, template_string(text));
            return out;
        }
        while (n < text.n && butler_template_space(template_part(text, n, text.n - n), false) == 0)
            n += butler_template_char(text.bytes + n, text.n - n);
        butler_template_step(run, 1 + n / TEMPLATE_STEP_BYTES);
        push_part(run, out, text, 0, n);
        text = template_part(text, n, text.n - n);
    }
}

static struct template_text separator(struct template_run *run, const struct template_call *call)
{
    const struct template_text what = butler_template_text_argument(run, call, 0, "sep", NULL);
    if (what.n == 0)
        butler_template_fail(run, "split: the separator is empty");
    return what;
}

static bool splits_at_space(struct template_run *run, const struct template_call *call)
{
    const struct template_value *given = butler_template_argument(run, call, 0, "sep");
    return !given || given->kind == VALUE_NONE;
}

BUILTIN(string_split)
{
    const int64_t max = butler_template_integer_argument(run, call, 1, "maxsplit", -1);
    struct template_value out = butler_template_list(run, VALUE_LIST);
    size_t at = 0, found;
    if (splits_at_space(run, call))
        return split_at_space(run, self.text, max);
    const struct template_text what = separator(run, call);
    for (int64_t k = 0; (max < 0 || k < max) && (found = butler_template_find(run, self.text, what, at)) != SIZE_MAX; k++) {
        push_part(run, out, self.text, at, found);
        at = found + what.n;
    }
    push_part(run, out, self.text, at, self.text.n);
    return out;
}

/* Where `what` begins last in the first `end` bytes, or SIZE_MAX. */
static size_t find_last(struct template_run *run, struct template_text text, struct template_text what, size_t end)
{
    butler_template_step(run, end / 4); /* every place is compared */
    for (size_t at = end >= what.n ? end - what.n + 1 : 0; at-- > 0;) {
        if (what.n > 0 && text.bytes[at] != what.bytes[0])
            continue;
        butler_template_step(run, what.n / TEMPLATE_STEP_BYTES);
        if (butler_template_same(template_part(text, at, what.n), what))
            return at;
    }
    return SIZE_MAX;
}

BUILTIN(string_rsplit)
{
    const int64_t max = butler_template_integer_argument(run, call, 1, "maxsplit", -1);
    struct template_value out = butler_template_list(run, VALUE_LIST);
    size_t end = self.text.n, found;
    if (splits_at_space(run, call)) {
        if (max >= 0)
            butler_template_fail(run, "rsplit with maxsplit needs a separator");
        return split_at_space(run, self.text, max);
    }
    const struct template_text what = separator(run, call);
    for (int64_t k = 0; (max < 0 || k < max) && (found = find_last(run, self.text, what, end)) != SIZE_MAX; k++) {
        push_part(run, out, self.text, found + what.n, end);
        end = found;
    }
    push_part(run, out, self.text, 0, end);
    for (size_t i = 0, n = out.list->n; i < n / 2; i++) {
        const struct template_value swap = out.list->items[i];
        out.list->items[i] = out.list->items[n - 1 - i];
        out.list->items[n - 1 - i] = swap;
    }
    return out;
}

BUILTIN(string_splitlines)
{
    const bool keep_ends = butler_template_bool_argument(run, call, 0, "keepends");
    struct template_value out = butler_template_list(run, VALUE_LIST);
    for (size_t at = 0, n, n_end; at < self.text.n; at += n + n_end) {
        n = butler_template_line(template_part(self.text, at, self.text.n - at), &n_end);
        butler_template_step(run, 1 + n / TEMPLATE_STEP_BYTES);
        push_part(run, out, self.text, at, at + n + (keep_ends ? n_end : 0));
    }
    return out;
}

BUILTIN(string_join)
{
    const struct template_value *given = butler_template_argument(run, call, 0, NULL);
    const struct template_list *items = butler_template_items(run, given ? *given : template_none());
    struct template_buffer out = {0};
    for (size_t i = 0; i < items->n; i++) {
        if (items->items[i].kind != VALUE_STRING)
            butler_template_fail(run, "join: item %zu is %s", i, butler_template_kind_name(items->items[i]));
        if (i)
            butler_template_append(run, &out, self.text);
        butler_template_append(run, &out, items->items[i].text);
    }
    return template_string(template_taken(&out));
}

/* ------------------------------------------------------------------------------------- strings: questions */

/* The index in characters of a place in bytes of the text, which begins at character `first`; -1: not found. */
static struct template_value place(struct template_run *run, struct template_text text, int64_t first, size_t found)
{
    return template_integer(found == SIZE_MAX ? -1 : first + (int64_t)butler_template_n_chars(run, template_part(text, 0, found)));
}

BUILTIN(string_find)
{
    const struct template_text what = butler_template_text_argument(run, call, 0, NULL, NULL);
    int64_t first;
    if (!window(run, &self.text, call, &first))
        return template_integer(-1);
    return place(run, self.text, first, butler_template_find(run, self.text, what, 0));
}

BUILTIN(string_rfind)
{
    const struct template_text what = butler_template_text_argument(run, call, 0, NULL, NULL);
    int64_t first;
    if (!window(run, &self.text, call, &first))
        return template_integer(-1);
    return place(run, self.text, first, find_last(run, self.text, what, self.text.n));
}

BUILTIN(string_index)
{
    const struct template_value found = string_find(run, self, call);
    if (found.integer < 0)
        butler_template_fail(run, "index: the string is not found");
    return found;
}

BUILTIN(string_count)
{
    const struct template_text what = butler_template_text_argument(run, call, 0, NULL, NULL);
    int64_t n = 0, first;
    if (!window(run, &self.text, call, &first))
        return template_integer(0);
    if (what.n == 0)
        return template_integer((int64_t)butler_template_n_chars(run, self.text) + 1);
    for (size_t at = 0; (at = butler_template_find(run, self.text, what, at)) != SIZE_MAX; at += what.n)
        n++;
    return template_integer(n);
}

/* Whether there is text and all of it is letters, or ASCII digits, as asked for. */
static struct template_value all_are(struct template_run *run, struct template_text text, bool letters, bool digits)
{
    butler_template_step(run, text.n / TEMPLATE_STEP_BYTES);
    for (size_t i = 0, n; i < text.n; i += n) {
        n = butler_template_char(text.bytes + i, text.n - i);
        const bool digit = text.bytes[i] >= '0' && text.bytes[i] <= '9';
        if (!(digit ? digits : letters && butler_template_is_letter(template_part(text, i, n))))
            return template_bool(false);
    }
    return template_bool(text.n > 0);
}

BUILTIN(string_isdigit)
{
    (void)call;
    return all_are(run, self.text, false, true);
}

BUILTIN(string_isalpha)
{
    (void)call;
    return all_are(run, self.text, true, false);
}

BUILTIN(string_isalnum)
{
    (void)call;
    return all_are(run, self.text, true, true);
}

BUILTIN(string_isspace)
{
    (void)call;
    return template_bool(self.text.n > 0 && butler_template_strip(run, self.text, NULL, true, false).n == 0);
}

BUILTIN(string_title)
{
    (void)call;
    return template_string(butler_template_to_case(run, self.text, CASE_TITLE_METHOD));
}

/* "{} {0} {name}".format(...), without format specifications. */
BUILTIN(string_format)
{
    const struct template_text text = self.text;
    struct template_buffer out = {0};
    size_t next = 0;
    for (size_t at = 0; at < text.n; at++) {
        const char c = text.bytes[at];
        if (c != '{' && c != '}') {
            butler_template_append(run, &out, template_part(text, at, 1));
            continue;
        }
        if (at + 1 < text.n && text.bytes[at + 1] == c) { /* a doubled brace is one */
            butler_template_append(run, &out, template_part(text, at++, 1));
            continue;
        }
        const char *close = c == '{' ? memchr(text.bytes + at, '}', text.n - at) : NULL;
        if (!close)
            butler_template_fail(run, "format: a brace stands alone");
        const struct template_text name = template_part(text, at + 1, (size_t)(close - text.bytes) - at - 1);
        size_t i = name.n ? 0 : next++;
        bool by_place = true;
        for (size_t k = 0; k < name.n && by_place; k++) {
            by_place = name.bytes[k] >= '0' && name.bytes[k] <= '9' && k < 9;
            i = i * 10 + (size_t)(name.bytes[k] - '0');
        }
        const struct template_value *value =
            by_place ? (i < call->n ? &call->args[i] : NULL) : butler_template_get(run, call->named, template_string(name));
        if (!value)
            butler_template_fail(run, "format: there is no argument '%.*s'", (int)BUTLER_MIN(name.n, 60), name.bytes);
        butler_template_append(run, &out, butler_template_to_text(run, *value));
        at = (size_t)(close - text.bytes);
    }
    return template_string(template_taken(&out));
}

static const struct template_builtin string_methods[] = {
    {"count", string_count},
    {"endswith", string_endswith},
    {"find", string_find},
    {"format", string_format},
    {"index", string_index},
    {"isalnum", string_isalnum},
    {"isalpha", string_isalpha},
    {"isdigit", string_isdigit},
    {"isspace", string_isspace},
    {"join", string_join},
    {"lstrip", string_lstrip},
    {"removeprefix", string_removeprefix},
    {"removesuffix", string_removesuffix},
    {"rfind", string_rfind},
    {"rsplit", string_rsplit},
    {"rstrip", string_rstrip},
    {"split", string_split},
    {"splitlines", string_splitlines},
    {"startswith", string_startswith},
    {"strip", string_strip},
    {"title", string_title},
    {NULL, NULL},
};

/* ------------------------------------------------------------------------------------- dicts, lists, loops */

BUILTIN(dict_get)
{
    const struct template_value *key = butler_template_argument(run, call, 0, NULL);
    const struct template_value *otherwise = butler_template_argument(run, call, 1, NULL);
    if (!key)
        butler_template_fail(run, "get: the key is missing");
    const struct template_value *found = butler_template_get(run, self.dict, *key);
    return found ? *found : otherwise ? *otherwise : template_none();
}

BUILTIN(dict_keys)
{
    (void)call;
    return (struct template_value){.kind = VALUE_LIST, .list = (struct template_list *)butler_template_items(run, self)};
}

BUILTIN(dict_values)
{
    struct template_value out = butler_template_list(run, VALUE_LIST);
    (void)call;
    butler_template_step(run, self.dict->n);
    for (size_t i = 0; i < self.dict->n; i++)
        butler_template_push(run, out.list, self.dict->entries[i].value);
    return out;
}

static const struct template_builtin dict_methods[] = {
    {"get", dict_get}, {"keys", dict_keys}, {"values", dict_values}, {NULL, NULL}};

BUILTIN(list_index)
{
    const struct template_value *item = butler_template_argument(run, call, 0, NULL);
    const int64_t n = (int64_t)self.list->n;
    int64_t from = butler_template_integer_argument(run, call, 1, NULL, 0),
            to = butler_template_integer_argument(run, call, 2, NULL, n);
    from = from < 0 ? BUTLER_MAX(from + n, 0) : from;
    to = to < 0 ? to + n : BUTLER_MIN(to, n);
    for (int64_t i = from; item && i < to; i++)
        if (butler_template_equal(run, self.list->items[i], *item))
            return template_integer(i);
    butler_template_fail(run, "index: the item is not in the list");
}

BUILTIN(list_count)
{
    const struct template_value *item = butler_template_argument(run, call, 0, NULL);
    int64_t n = 0;
    for (size_t i = 0; item && i < self.list->n; i++)
        n += butler_template_equal(run, self.list->items[i], *item);
    return template_integer(n);
}

static const struct template_builtin list_methods[] = {{"count", list_count}, {"index", list_index}, {NULL, NULL}};

BUILTIN(loop_cycle)
{
    if (call->n == 0)
        butler_template_fail(run, "cycle: there are no values");
    return call->args[self.loop->index % call->n];
}

static const struct template_builtin loop_methods[] = {{"cycle", loop_cycle}, {NULL, NULL}};

/* Methods that are the same as the filters of their names. */
static const char *const string_filters[] = {"capitalize", "lower", "replace", "upper", NULL};
static const char *const dict_filters[] = {"items", NULL};

static bool is_one_of(struct template_text name, const char *const *names)
{
    while (*names && !butler_template_is(name, *names))
        names++;
    return *names;
}

const struct template_builtin *butler_template_find_method(enum template_kind kind, struct template_text name)
{
    switch (kind) {
    case VALUE_STRING:
        if (is_one_of(name, string_filters))
            return butler_template_find_builtin(butler_template_filters, name);
        return butler_template_find_builtin(string_methods, name);
    case VALUE_DICT:
        if (is_one_of(name, dict_filters))
            return butler_template_find_builtin(butler_template_filters, name);
        return butler_template_find_builtin(dict_methods, name);
    case VALUE_LIST:
    case VALUE_TUPLE:
        return butler_template_find_builtin(list_methods, name);
    case VALUE_LOOP:
        return butler_template_find_builtin(loop_methods, name);
    default:
        return NULL;
    }
}

/* -------------------------------------------------------------------------------------------- functions */

BUILTIN(function_raise)
{
    const struct template_text text = butler_template_text_argument(run, call, 0, "message", NULL);
    (void)self;
    butler_template_fail(run, "the template refuses the conversation: %.*s", (int)BUTLER_MIN(text.n, 300), text.bytes);
}

BUILTIN(function_strftime)
{
    const struct template_text format = butler_template_text_argument(run, call, 0, "format", NULL);
    char zero_terminated[128], out[256];
    const time_t now = (time_t)run->now;
    struct tm parts;
    (void)self;
    if (format.n >= sizeof zero_terminated || !gmtime_r(&now, &parts))
        butler_template_fail(run, "strftime_now: the format is too long, or the date cannot be written");
    memcpy(zero_terminated, format.bytes, format.n);
    zero_terminated[format.n] = 0;
    const size_t n = strftime(out, sizeof out, zero_terminated, &parts);
    return template_string(butler_template_copy(run, out, n, true));
}

/* range(stop), range(start, stop), range(start, stop, step) */
BUILTIN(function_range)
{
    const bool has_start = call->n > 1;
    const int64_t start = has_start ? butler_template_integer_argument(run, call, 0, NULL, 0) : 0;
    const int64_t stop = butler_template_integer_argument(run, call, has_start, NULL, 0);
    const int64_t step = butler_template_integer_argument(run, call, 2, NULL, 1);
    struct template_value out = butler_template_list(run, VALUE_LIST);
    (void)self;
    if (call->n == 0 || step == 0)
        butler_template_fail(run, call->n ? "range: the step is 0" : "range: the end is missing");
    int64_t i = start;
    while (step > 0 ? i < stop : i > stop) {
        if (out.list->n == TEMPLATE_MAX_RANGE)
            butler_template_fail(run, "range: more than %d numbers", TEMPLATE_MAX_RANGE);
        butler_template_step(run, 1);
        butler_template_push(run, out.list, template_integer(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return out;
}

/* dict and namespace: the fields of a dict that is given, then the named arguments. */
static struct template_value make_dict(struct template_run *run, const struct template_call *call, enum template_kind kind)
{
    struct template_value out = butler_template_dict(run, kind);
    const struct template_value *given = butler_template_argument(run, call, 0, NULL);
    if (given && given->kind != VALUE_DICT)
        butler_template_fail(run, "a dict cannot be made of %s", butler_template_kind_name(*given));
    for (size_t i = 0; given && i < given->dict->n; i++)
        butler_template_put(run, out.dict, given->dict->entries[i].key, given->dict->entries[i].value);
    for (size_t i = 0; i < call->named->n; i++)
        butler_template_put(run, out.dict, call->named->entries[i].key, call->named->entries[i].value);
    return out;
}

BUILTIN(function_dict)
{
    (void)self;
    return make_dict(run, call, VALUE_DICT);
}

BUILTIN(function_namespace)
{
    (void)self;
    return make_dict(run, call, VALUE_NAMESPACE);
}

static const struct template_builtin functions[] = {
    {"dict", function_dict},   {"namespace", function_namespace},   {"raise_exception", function_raise},
    {"range", function_range}, {"strftime_now", function_strftime}, {NULL, NULL},
};

const struct template_builtin *butler_template_find_function(struct template_text name)
{
    return butler_template_find_builtin(functions, name);
}
