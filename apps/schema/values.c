/* Objects and arrays. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "schema/parts.h"

enum { MAX_NAME = 1000, MAX_OPTIONAL_ITEMS = 100 };

/* ------------------------------------------------------------------------------------------------- keys */

/* The character of name behind its first n bytes; 0: none. */
static uint32_t next_char(const char *name, size_t n, int *n_bytes)
{
    uint32_t code = 0;
    *n_bytes = name[n] ? butler_utf8_decode(name + n, strlen(name + n), &code) : 0;
    return *n_bytes ? code : 0;
}

/* A rule for the rest of a key (with its closing quote) that began with prefix[n] and is none of names. */
static int compile_other_key(struct schema_compiler *c, const json_t *names, const char *prefix, size_t n)
{
    if (n > MAX_NAME)
        schema_fail(c, "a property's name above %d bytes beside 'additionalProperties' is not supported", MAX_NAME);
    schema_step(c, 1 + json_object_size(names) / 16);
    struct schema_text *text = schema_begin(c);
    json_t *seen = schema_keep(c, json_object());
    bool can_end = true, can_escape = true;
    const char *name;
    const json_t *value;
    schema_put(c, text, " [^\\x22\\x5c\\x00-\\x1f");
    json_object_foreach((json_t *)names, name, value)
    {
        int n_bytes;
        if (strncmp(name, prefix, n) != 0)
            continue;
        const uint32_t code = next_char(name, n, &n_bytes);
        char key[8];
        snprintf(key, sizeof key, "%x", (unsigned)code);
        can_end &= code != 0;
        if (!code || json_object_get(seen, key))
            continue;
        if (json_object_set_nocheck(seen, key, json_true()) != 0)
            schema_no_memory(c);
        can_escape &= code >= ' ' && code != '"' && code != '\\';
        schema_put_character(c, text, code);
    }
    schema_put(c, text, "]");
    schema_put_rule(c, text, SCHEMA_KEY_CHAR);
    schema_put(c, text, "* \"\\\"\"");
    if (can_end)
        schema_put(c, text, " | \"\\\"\"");
    if (can_escape)
        schema_put(c, text, " | \"\\\\\" ( [\\x22\\x5cbfnrt] | \"u00\" [01] [0-9a-fA-F] ) key-char* \"\\\"\"");
    json_object_clear(seen);
    json_object_foreach((json_t *)names, name, value)
    {
        int n_bytes;
        const uint32_t code = strncmp(name, prefix, n) == 0 ? next_char(name, n, &n_bytes) : 0;
        char key[8];
        snprintf(key, sizeof key, "%x", (unsigned)code);
        /* A character that is written as an escape is not followed: those keys are left out. */
        if (code < ' ' || code == '"' || code == '\\' || json_object_get(seen, key))
            continue;
        json_object_set_nocheck(seen, key, json_true());
        const int rest = compile_other_key(c, names, name, n + (size_t)n_bytes);
        schema_put(c, text, " | [");
        schema_put_character(c, text, code);
        schema_put(c, text, "]");
        schema_put_rule(c, text, rest);
    }
    return schema_end(c, text);
}

/* ----------------------------------------------------------------------------------------------- objects */

static int compile_named_member(struct schema_compiler *c, const char *name, int value)
{
    struct schema_text *text = schema_begin(c);
    schema_put_value(c, text, schema_keep(c, json_string_nocheck(name)));
    schema_put(c, text, " \":\" \" \"?");
    schema_put_rule(c, text, value);
    return schema_end(c, text);
}

/* Members in their order; with none that is required the first one is the one that has no comma before it. */
static int compile_optional_members(struct schema_compiler *c, const json_t *members, int extra, bool is_empty_right)
{
    struct schema_text *text = schema_begin(c);
    if (extra != SCHEMA_NEVER) {
        schema_put(c, text, " ( \",\" ws");
        schema_put_rule(c, text, extra);
        schema_put(c, text, " )*");
    }
    schema_put(c, text, " ws \"}\"");
    int rest = schema_end(c, text);
    int first = SCHEMA_NEVER;
    if (is_empty_right || extra != SCHEMA_NEVER) {
        text = schema_begin(c);
        schema_put(c, text, is_empty_right ? " \"}\"" : "");
        if (extra != SCHEMA_NEVER) {
            schema_put(c, text, is_empty_right ? " | ws" : " ws");
            schema_put_rule(c, text, extra);
            schema_put_rule(c, text, rest);
        }
        first = schema_end(c, text);
    }
    for (size_t i = json_array_size(members); i-- > 0;) {
        const int member = (int)json_integer_value(json_array_get(members, i));
        text = schema_begin(c);
        schema_put(c, text, " ws");
        schema_put_rule(c, text, member);
        schema_put_rule(c, text, rest);
        if (first != SCHEMA_NEVER) {
            schema_put(c, text, " |");
            schema_put_rule(c, text, first);
        }
        first = schema_end(c, text);
        if (i == 0)
            break;
        text = schema_begin(c);
        schema_put(c, text, " ( \",\" ws");
        schema_put_rule(c, text, member);
        schema_put(c, text, " )?");
        schema_put_rule(c, text, rest);
        rest = schema_end(c, text);
    }
    if (first == SCHEMA_NEVER)
        return SCHEMA_NEVER;
    text = schema_begin(c);
    schema_put(c, text, " \"{\"");
    schema_put_rule(c, text, first);
    return schema_end(c, text);
}

/* Numbers of members, as far as the other keywords do not give them: one member or more of optional ones. Returns the least. */
static int64_t check_count(struct schema_compiler *c, const json_t *flat, const json_t *members, const json_t *needed, int extra)
{
    const int64_t min = schema_count(c, flat, "minProperties", 0), max = schema_count(c, flat, "maxProperties", -1);
    int64_t n_needed = 0;
    size_t i;
    const json_t *must;
    json_array_foreach(needed, i, must) n_needed += json_is_true(must);
    if (min > (n_needed ? n_needed : 1))
        schema_cannot(c, "minProperties", "'minProperties' above what is required is not supported");
    if (max >= 0 && (extra != SCHEMA_NEVER || (int64_t)json_array_size(members) > max))
        schema_cannot(c, "maxProperties", "'maxProperties' below the number of properties is not supported");
    return min;
}

/* members: rules; needed: booleans of the same length; first: the first that is required. */
static int compile_members(struct schema_compiler *c, const json_t *members, const json_t *needed, size_t first, int extra)
{
    struct schema_text *text = schema_begin(c);
    schema_put(c, text, " \"{\"");
    size_t i;
    const json_t *member;
    json_array_foreach(members, i, member)
    {
        const bool optional = !json_is_true(json_array_get(needed, i));
        schema_put(c, text, "%s%s ws", optional ? " (" : "", i > first ? " \",\"" : "");
        schema_put_rule(c, text, (int)json_integer_value(member));
        schema_put(c, text, "%s%s", i < first ? " \",\"" : "", optional ? " )?" : "");
    }
    if (extra != SCHEMA_NEVER) {
        schema_put(c, text, " ( \",\" ws");
        schema_put_rule(c, text, extra);
        schema_put(c, text, " )*");
    }
    schema_put(c, text, " ws \"}\"");
    return schema_end(c, text);
}

static int compile_extra(struct schema_compiler *c, const json_t *names, const json_t *additional)
{
    const size_t n = schema_path_push(c, "additionalProperties");
    const int value = schema_compile(c, additional);
    c->path[c->n_path = n] = 0;
    if (value == SCHEMA_NEVER)
        return value;
    c->used[SCHEMA_KEY_CHAR] = true;
    const int key = json_object_size(names) ? compile_other_key(c, names, "", 0) : SCHEMA_NEVER;
    struct schema_text *text = schema_begin(c);
    if (key == SCHEMA_NEVER)
        schema_put_rule(c, text, SCHEMA_STRING);
    else {
        schema_put(c, text, " \"\\\"\"");
        schema_put_rule(c, text, key);
    }
    schema_put(c, text, " \":\" \" \"?");
    schema_put_rule(c, text, value);
    return schema_end(c, text);
}

int schema_compile_object(struct schema_compiler *c, const json_t *flat)
{
    const json_t *properties = json_object_get(flat, "properties"), *required = json_object_get(flat, "required"), *value;
    const json_t *additional = json_object_get(flat, "additionalProperties");
    if (!properties && !required && !additional && !json_object_get(flat, "minProperties") &&
        !json_object_get(flat, "maxProperties"))
        return SCHEMA_OBJECT;
    json_t *names = schema_keep(c, properties ? json_copy((json_t *)properties) : json_object());
    json_t *is_required = schema_keep(c, json_object());
    size_t i;
    json_array_foreach(required, i, value)
    {
        const char *name = json_string_value(value);
        schema_step(c, 1);
        json_t *free_value = additional ? json_incref((json_t *)additional) : json_true();
        if (json_object_set_nocheck(is_required, name, json_true()) != 0 ||
            (!json_object_get(names, name) && json_object_set_nocheck(names, name, free_value) != 0))
            schema_no_memory(c);
        json_decref(free_value);
    }
    json_t *members = schema_keep(c, json_array()), *needed = schema_keep(c, json_array());
    const char *name;
    size_t first = SIZE_MAX;
    bool possible = true;
    const size_t n_properties = schema_path_push(c, "properties");
    json_object_foreach(names, name, value)
    {
        const size_t n = schema_path_push(c, name);
        const int rule = schema_compile(c, value);
        c->path[c->n_path = n] = 0;
        const bool must = json_object_get(is_required, name);
        possible &= rule != SCHEMA_NEVER || !must;
        if (rule == SCHEMA_NEVER)
            continue;
        if (must && first == SIZE_MAX)
            first = json_array_size(members);
        if (json_array_append_new(members, json_integer(compile_named_member(c, name, rule))) != 0 ||
            json_array_append_new(needed, json_boolean(must)) != 0)
            schema_no_memory(c);
    }
    c->path[c->n_path = n_properties] = 0;
    if (!possible)
        return SCHEMA_NEVER;
    const int extra = additional   ? compile_extra(c, names, additional)
                      : properties ? SCHEMA_NEVER
                                   : compile_extra(c, names, schema_keep(c, json_true()));
    const int64_t least = check_count(c, flat, members, needed, extra);
    return first == SIZE_MAX ? compile_optional_members(c, members, extra, least == 0)
                             : compile_members(c, members, needed, first, extra);
}

/* ------------------------------------------------------------------------------------------------ arrays */

/* items that follow the prefix: at least min, at most max (-1: any number) */
static void put_more_items(struct schema_compiler *c, struct schema_text *text, int item, int64_t min, int64_t max)
{
    if (item == SCHEMA_NEVER || max == 0)
        return;
    schema_put(c, text, " ( \",\" ws");
    schema_put_rule(c, text, item);
    if (max < 0)
        schema_put(c, text, " ){%lld,}", (long long)min);
    else
        schema_put(c, text, " ){%lld,%lld}", (long long)min, (long long)max);
}

/* The values without those that come again. */
static const json_t *different(struct schema_compiler *c, const json_t *values)
{
    json_t *result = schema_keep(c, json_array()), *value;
    size_t i;
    json_array_foreach((json_t *)values, i, value)
    {
        schema_step(c, 1 + json_array_size(result) / 16);
        if (!schema_contains(result, value) && json_array_append(result, value) != 0)
            schema_no_memory(c);
    }
    return result;
}

/* Of "uniqueItems" true: the rule, where the items are few values. SCHEMA_MANY: it says nothing, or cannot be held. */
static int compile_unique(struct schema_compiler *c, const json_t *flat, int64_t min, int64_t max)
{
    const json_t *items = json_object_get(flat, "items");
    int rule = SCHEMA_MANY;
    if (!json_object_get(flat, "uniqueItems") || (max >= 0 && max <= 1))
        return SCHEMA_MANY;
    const json_t *inner = json_is_object(items) ? schema_flatten(c, items) : NULL, *values = json_object_get(inner, "enum");
    if (values && !json_object_get(flat, "prefixItems") && !json_object_get(inner, "anyOf") && !json_object_get(inner, "oneOf"))
        rule = schema_compile_unique(c, different(c, schema_possible_values(c, inner)), min, max);
    if (rule == SCHEMA_MANY)
        schema_cannot(c, "uniqueItems", "'uniqueItems' is supported only where 'items' has an 'enum' of few values");
    return rule;
}

int schema_compile_array(struct schema_compiler *c, const json_t *flat)
{
    const json_t *prefix = json_object_get(flat, "prefixItems"), *items = json_object_get(flat, "items"), *value;
    int64_t min = schema_count(c, flat, "minItems", 0), max = schema_count(c, flat, "maxItems", -1);
    json_t *rules = schema_keep(c, json_array());
    const int unique = compile_unique(c, flat, min, max);
    size_t i;
    bool more = true;
    if (unique != SCHEMA_MANY)
        return unique;
    json_array_foreach(prefix, i, value)
    {
        const size_t n = schema_path_push_index(c, "prefixItems", i);
        const int rule = more ? schema_compile(c, value) : SCHEMA_NEVER;
        c->path[c->n_path = n] = 0;
        more &= rule != SCHEMA_NEVER;
        if (more && json_array_append_new(rules, json_integer(rule)) != 0)
            schema_no_memory(c);
    }
    const size_t n_path = schema_path_push(c, "items");
    int item = !more ? SCHEMA_NEVER : items ? schema_compile(c, items) : SCHEMA_VALUE;
    c->path[c->n_path = n_path] = 0;
    int64_t n = (int64_t)json_array_size(rules);
    if (n == 0 && item != SCHEMA_NEVER) { /* the first item has no comma before it, and then is like a prefix */
        if (json_array_append_new(rules, json_integer(item)) != 0)
            schema_no_memory(c);
        n = 1;
    }
    const int64_t most = item == SCHEMA_NEVER ? n : max; /* that can be written; -1: no bound */
    if (max < 0 || (most >= 0 && most < max))
        max = most;
    if (max >= 0 && min > max)
        return SCHEMA_NEVER;
    if (max >= 0 && n > max)
        n = max;
    if (n - min > MAX_OPTIONAL_ITEMS)
        schema_fail(c, "more than %d prefixItems that 'minItems' does not require are not supported", MAX_OPTIONAL_ITEMS);
    struct schema_text *text = schema_begin(c);
    schema_put(c, text, " \"[\"");
    for (int64_t k = 0; k < n; k++) {
        schema_put(c, text, "%s%s ws", k < min ? "" : " (", k ? " \",\"" : "");
        schema_put_rule(c, text, (int)json_integer_value(json_array_get(rules, (size_t)k)));
    }
    put_more_items(c, text, item, min > n ? min - n : 0, max < 0 ? -1 : max - n);
    for (int64_t k = n; k-- > 0;) /* the space before "]" is there where an item is */
        schema_put(c, text, "%s%s", k ? "" : " ws", k < min ? "" : " )?");
    schema_put(c, text, " \"]\"");
    return schema_end(c, text);
}
