/* Schemas that hold at once, allOf and what stands beside $ref, become one schema. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/parts.h"

enum merge {
    MERGE_TYPE, /* a mask of SCHEMA_TYPE_... in a flat schema */
    MERGE_MAXIMUM,
    MERGE_MINIMUM,
    MERGE_SAME,     /* must be equal */
    MERGE_TRUE,     /* a boolean; false means nothing */
    MERGE_MULTIPLE, /* the least number that is a multiple of both */
    MERGE_UNION,    /* of names */
    MERGE_COMMON,   /* enum */
    MERGE_PRODUCT,  /* anyOf: each with each */
    MERGE_TOGETHER, /* with the keywords it depends on, below */
    MERGE_GONE,     /* schema_flatten replaces it */
};

/* types: those whose values the keyword describes; the others satisfy it. 0: it does not depend on the type. */
static const struct keyword {
    const char *name;
    enum merge merge;
    unsigned types;
} keywords[] = {
    {"type", MERGE_TYPE, 0},
    {"enum", MERGE_COMMON, 0},
    {"anyOf", MERGE_PRODUCT, 0},
    {"oneOf", MERGE_PRODUCT, 0},
    {"allOf", MERGE_GONE, 0},
    {"$ref", MERGE_GONE, 0},
    {"const", MERGE_GONE, 0},
    {"nullable", MERGE_GONE, 0},
    {"properties", MERGE_TOGETHER, SCHEMA_TYPE_OBJECT},
    {"additionalProperties", MERGE_TOGETHER, SCHEMA_TYPE_OBJECT},
    {"required", MERGE_UNION, SCHEMA_TYPE_OBJECT},
    {"items", MERGE_TOGETHER, SCHEMA_TYPE_ARRAY},
    {"prefixItems", MERGE_TOGETHER, SCHEMA_TYPE_ARRAY},
    {"minProperties", MERGE_MAXIMUM, SCHEMA_TYPE_OBJECT},
    {"maxProperties", MERGE_MINIMUM, SCHEMA_TYPE_OBJECT},
    {"uniqueItems", MERGE_TRUE, SCHEMA_TYPE_ARRAY},
    {"minItems", MERGE_MAXIMUM, SCHEMA_TYPE_ARRAY},
    {"maxItems", MERGE_MINIMUM, SCHEMA_TYPE_ARRAY},
    {"minLength", MERGE_MAXIMUM, SCHEMA_TYPE_STRING},
    {"maxLength", MERGE_MINIMUM, SCHEMA_TYPE_STRING},
    {"pattern", MERGE_SAME, SCHEMA_TYPE_STRING},
    {"format", MERGE_SAME, SCHEMA_TYPE_STRING},
    {"multipleOf", MERGE_MULTIPLE, SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION},
    {"minimum", MERGE_MAXIMUM, SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION},
    {"exclusiveMinimum", MERGE_MAXIMUM, SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION},
    {"maximum", MERGE_MINIMUM, SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION},
    {"exclusiveMaximum", MERGE_MINIMUM, SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION},
};

static const char *const annotations[] = {
    "$schema",  "$id",     "$comment",   "$defs",    "definitions", "title",           "description",      "default",
    "examples", "example", "deprecated", "readOnly", "writeOnly",   "contentEncoding", "contentMediaType", "discriminator",
};

static const struct keyword *find(const char *name)
{
    for (size_t i = 0; i < sizeof keywords / sizeof *keywords; i++)
        if (strcmp(keywords[i].name, name) == 0)
            return &keywords[i];
    return NULL;
}

static bool is_annotation(const char *name)
{
    for (size_t i = 0; i < sizeof annotations / sizeof *annotations; i++)
        if (strcmp(annotations[i], name) == 0)
            return true;
    return strncmp(name, "x-", 2) == 0;
}

bool schema_is_assertion(const char *keyword)
{
    return !is_annotation(keyword);
}

static void set(struct schema_compiler *c, json_t *object, const char *key, const json_t *value)
{
    schema_step(c, 1);
    if (json_object_set_nocheck(object, key, (json_t *)value) != 0)
        schema_no_memory(c);
}

static void push(struct schema_compiler *c, json_t *array, const json_t *value)
{
    schema_step(c, 1);
    if (json_array_append(array, (json_t *)value) != 0)
        schema_no_memory(c);
}

/* json_equal, whose work counts: schemas of many alternatives are compared pair by pair. */
static bool equal(struct schema_compiler *c, const json_t *a, const json_t *b)
{
    const char *key;
    const json_t *value;
    size_t i;
    bool same = true;
    if (++c->n_compared % 64 == 0)
        schema_step(c, 1);
    if (a == b)
        return true;
    if (!json_is_object(a) && !json_is_array(a))
        return json_equal(a, b);
    if (json_typeof(a) != json_typeof(b) || json_object_size(a) != json_object_size(b) || json_array_size(a) != json_array_size(b))
        return false;
    if (json_is_array(a)) {
        json_array_foreach(a, i, value) if (!(same = equal(c, value, json_array_get(b, i)))) break;
        return same;
    }
    json_object_foreach((json_t *)a, key, value)
    {
        const json_t *other = json_object_get(b, key);
        if (!(same = other && equal(c, value, other)))
            break;
    }
    return same;
}

/* A schema for what both accept. NULL: true. */
static const json_t *both(struct schema_compiler *c, const json_t *a, const json_t *b)
{
    if (!a || !b)
        return a ? a : b;
    if (json_is_true(a) || json_is_false(b) || equal(c, a, b))
        return b;
    if (json_is_true(b) || json_is_false(a))
        return a;
    json_t *parts = schema_keep(c, json_array()), *result = schema_keep(c, json_object());
    push(c, parts, a);
    push(c, parts, b);
    set(c, result, "allOf", parts);
    return result;
}

/* ------------------------------------------------------------------------------------------ one keyword */

static unsigned type_mask(struct schema_compiler *c, const json_t *type)
{
    static const struct {
        const char *name;
        unsigned mask;
    } names[] = {
        {"null", SCHEMA_TYPE_NULL},       {"boolean", SCHEMA_TYPE_BOOLEAN}, {"object", SCHEMA_TYPE_OBJECT},
        {"array", SCHEMA_TYPE_ARRAY},     {"string", SCHEMA_TYPE_STRING},   {"number", SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION},
        {"integer", SCHEMA_TYPE_INTEGER},
    };
    unsigned mask = 0;
    if (json_is_array(type)) {
        size_t i;
        const json_t *one;
        json_array_foreach(type, i, one) mask |= json_is_array(one) ? type_mask(c, NULL) : type_mask(c, one);
        return mask;
    }
    const char *name = json_string_value(type);
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0)
            return names[i].mask;
    schema_fail(c, "'type' must be null, boolean, object, array, string, number, integer or a list of these");
}

unsigned schema_types(const json_t *flat)
{
    const json_t *type = json_object_get(flat, "type"), *value;
    if (type)
        return (unsigned)json_integer_value(type);
    unsigned described = 0;
    const char *key;
    json_object_foreach((json_t *)flat, key, value)
    {
        const struct keyword *keyword = find(key);
        described |= keyword ? keyword->types : 0;
    }
    return described ? described : SCHEMA_TYPE_ALL;
}

bool schema_contains(const json_t *array, const json_t *value)
{
    size_t i;
    const json_t *item;
    json_array_foreach(array, i, item)
    {
        const bool numbers = json_is_number(item) && json_is_number(value) && json_typeof(item) != json_typeof(value);
        if (numbers ? json_number_value(item) == json_number_value(value) : json_equal(item, value))
            return true;
    }
    return false;
}

static const json_t *merge_lists(struct schema_compiler *c, enum merge how, const json_t *a, const json_t *b)
{
    json_t *result = schema_keep(c, json_array());
    size_t i, k;
    const json_t *x, *y;
    if (how == MERGE_PRODUCT && equal(c, a, b))
        return a;
    json_array_foreach(a, i, x)
    {
        if (how == MERGE_PRODUCT)
            json_array_foreach(b, k, y) push(c, result, both(c, x, y));
        else {
            schema_step(c, json_array_size(b) / 16);
            if (how == MERGE_UNION || schema_contains(b, x))
                push(c, result, x);
        }
    }
    json_array_foreach(b, i, x)
    {
        schema_step(c, json_array_size(a) / 16);
        if (how == MERGE_UNION && !schema_contains(a, x))
            push(c, result, x);
    }
    return result;
}

/* The least common multiple; of fractions, or where it is too large, that of the first one, which is noted. */
static const json_t *merge_multiples(struct schema_compiler *c, const json_t *a, const json_t *b)
{
    json_int_t x = json_integer_value(a), y = json_integer_value(b);
    const json_int_t first = x, second = y;
    while (y > 0) {
        const json_int_t rest = x % y;
        x = y;
        y = rest;
    }
    if (x > 0 && second > 0 && first / x <= 1000000 && second <= 1000000)
        return schema_keep(c, json_integer(first / x * second));
    if (!json_equal(a, b))
        schema_cannot(c, "multipleOf", "two different 'multipleOf' that must both hold are not supported");
    return a;
}

static const json_t *merge_keyword(struct schema_compiler *c, const struct keyword *keyword, const json_t *a, const json_t *b)
{
    switch (keyword->merge) {
    case MERGE_TYPE:
        return schema_keep(c, json_integer(json_integer_value(a) & json_integer_value(b)));
    case MERGE_MAXIMUM:
        return json_number_value(a) > json_number_value(b) ? a : b;
    case MERGE_MINIMUM:
        return json_number_value(a) < json_number_value(b) ? a : b;
    case MERGE_SAME:
        if (!json_equal(a, b))
            schema_cannot(c, keyword->name, "two different '%s' that must both hold are not supported", keyword->name);
        return a;
    case MERGE_TRUE:
        return a;
    case MERGE_MULTIPLE:
        return merge_multiples(c, a, b);
    default:
        return merge_lists(c, keyword->merge, a, b);
    }
}

/* ------------------------------------------------------------------------------------- keywords together */

static void merge_properties(struct schema_compiler *c, json_t *result, const json_t *a, const json_t *b)
{
    json_t *merged = schema_keep(c, json_object());
    for (int side = 0; side < 2; side++) {
        const json_t *mine = side ? b : a, *other = side ? a : b, *value;
        const char *name;
        json_object_foreach(json_object_get(mine, "properties"), name, value)
        {
            const json_t *theirs = json_object_get(json_object_get(other, "properties"), name);
            if (side && theirs)
                continue;
            set(c, merged, name, both(c, value, theirs ? theirs : json_object_get(other, "additionalProperties")));
        }
    }
    const json_t *more = both(c, json_object_get(a, "additionalProperties"), json_object_get(b, "additionalProperties"));
    if (more)
        set(c, result, "additionalProperties", more);
    if (json_object_get(a, "properties") || json_object_get(b, "properties"))
        set(c, result, "properties", merged);
}

static void merge_items(struct schema_compiler *c, json_t *result, const json_t *a, const json_t *b)
{
    const json_t *prefix[2] = {json_object_get(a, "prefixItems"), json_object_get(b, "prefixItems")};
    const json_t *items[2] = {json_object_get(a, "items"), json_object_get(b, "items")};
    const size_t n_a = json_array_size(prefix[0]), n_b = json_array_size(prefix[1]);
    json_t *merged = schema_keep(c, json_array());
    for (size_t i = 0; i < n_a || i < n_b; i++) {
        const json_t *item =
            both(c, i < n_a ? json_array_get(prefix[0], i) : items[0], i < n_b ? json_array_get(prefix[1], i) : items[1]);
        push(c, merged, item ? item : schema_keep(c, json_true()));
    }
    const json_t *more = both(c, items[0], items[1]);
    if (more)
        set(c, result, "items", more);
    if (n_a || n_b)
        set(c, result, "prefixItems", merged);
}

json_t *schema_merge(struct schema_compiler *c, const json_t *a, const json_t *b)
{
    json_t *result = schema_keep(c, json_object());
    for (int side = 0; side < 2; side++) {
        const json_t *value;
        const char *key;
        json_object_foreach((json_t *)(side ? b : a), key, value)
        {
            const struct keyword *keyword = find(key);
            const json_t *before = json_object_get(result, key);
            if (keyword->merge != MERGE_TOGETHER)
                set(c, result, key, before ? merge_keyword(c, keyword, before, value) : value);
        }
    }
    merge_properties(c, result, a, b);
    merge_items(c, result, a, b);
    return result;
}

/* ------------------------------------------------------------------------------------------------ flatten */

/* Checks the keyword's value as far as merging relies on it. */
static void check(struct schema_compiler *c, const struct keyword *keyword, const json_t *value)
{
    const char *name = keyword->name;
    const bool is_map = strcmp(name, "properties") == 0;
    size_t i;
    const json_t *item;
    if (is_map && !json_is_object(value))
        schema_fail(c, "'%s' must be an object", name);
    if (keyword->merge == MERGE_TRUE && !json_is_boolean(value))
        schema_fail(c, "'%s' must be true or false", name);
    if (keyword->merge == MERGE_MULTIPLE && !(json_number_value(value) > 0))
        schema_fail(c, "'%s' must be a number above 0", name);
    if ((keyword->merge == MERGE_UNION || keyword->merge == MERGE_COMMON || keyword->merge == MERGE_PRODUCT ||
         strcmp(name, "allOf") == 0 || strcmp(name, "prefixItems") == 0) &&
        !json_is_array(value))
        schema_fail(c, "'%s' must be a list", name);
    if (keyword->merge == MERGE_UNION)
        json_array_foreach(value, i, item) if (!json_is_string(item)) schema_fail(c, "'%s' must be a list of strings", name);
    if ((keyword->merge == MERGE_PRODUCT || strcmp(name, "allOf") == 0) && json_array_size(value) == 0)
        schema_fail(c, "'%s' must not be empty", name);
    if ((keyword->merge == MERGE_MAXIMUM || keyword->merge == MERGE_MINIMUM) && !json_is_number(value))
        schema_fail(c, "'%s' must be a number", name);
    if (keyword->merge == MERGE_SAME && !json_is_string(value))
        schema_fail(c, "'%s' must be a string", name);
}

/* Whether a keyword that is not in the table says nothing: every name of a member is a string. */
static bool is_void(const char *key, const json_t *value)
{
    const char *type = json_string_value(json_object_get(value, "type"));
    const bool any = json_is_true(value) || (json_is_object(value) && json_object_size(value) == 0) ||
                     (json_object_size(value) == 1 && type && strcmp(type, "string") == 0);
    return (strcmp(key, "propertyNames") == 0 && any) ||
           ((strcmp(key, "patternProperties") == 0 || strcmp(key, "dependentRequired") == 0) && json_is_object(value) &&
            json_object_size(value) == 0);
}

static json_t *own_keywords(struct schema_compiler *c, const json_t *schema)
{
    json_t *flat = schema_keep(c, json_object());
    const json_t *value, *nullable = json_object_get(schema, "nullable"), *constant = json_object_get(schema, "const");
    const char *key;
    json_object_foreach((json_t *)schema, key, value)
    {
        const struct keyword *keyword = find(key);
        if (is_annotation(key) || is_void(key, value) || (strcmp(key, "uniqueItems") == 0 && json_is_false(value)))
            continue;
        if (!keyword) {
            schema_cannot(c, key, "'%.64s' is not supported", key);
            continue;
        }
        if (strcmp(key, "items") == 0 && json_is_array(value)) {
            schema_cannot(c, key, "'items' as a list is not supported: it is 'prefixItems' since 2020");
            continue;
        }
        check(c, keyword, value);
        if (keyword->merge == MERGE_TYPE) {
            const unsigned mask = type_mask(c, value) | (json_is_true(nullable) ? SCHEMA_TYPE_NULL : 0u);
            set(c, flat, key, schema_keep(c, json_integer(mask)));
        } else if (keyword->merge != MERGE_GONE)
            set(c, flat, key, value);
    }
    if (nullable && !(json_is_boolean(nullable) && (json_object_get(flat, "type") || json_is_false(nullable))))
        schema_cannot(c, "nullable", "'nullable' must be true or false and stand beside 'type'");
    if (constant) {
        json_t *list = schema_keep(c, json_array());
        push(c, list, constant);
        const json_t *before = json_object_get(flat, "enum");
        set(c, flat, "enum", before ? merge_lists(c, MERGE_COMMON, before, list) : list);
    }
    return flat;
}

json_t *schema_flatten(struct schema_compiler *c, const json_t *schema)
{
    schema_step(c, 1);
    if (json_is_boolean(schema)) {
        json_t *flat = schema_keep(c, json_object());
        if (json_is_false(schema))
            set(c, flat, "type", schema_keep(c, json_integer(0)));
        return flat;
    }
    if (!json_is_object(schema))
        schema_fail(c, "a schema must be an object or a boolean");
    schema_enter(c);
    json_t *flat = own_keywords(c, schema);
    const json_t *ref = json_object_get(schema, "$ref"), *part;
    if (ref) {
        char path[sizeof c->path];
        const size_t n = c->n_path;
        memcpy(path, c->path, n + 1);
        const json_t *target = schema_resolve(c, ref);
        for (int i = 0; i < c->n_flattening; i++)
            if (c->flattening[i] == target)
                schema_fail(c, "cyclic $ref: the schema refers to itself");
        c->flattening[c->n_flattening++] = target; /* at most one a level, and schema_enter counts levels */
        flat = schema_merge(c, flat, schema_flatten(c, target));
        c->n_flattening--;
        memcpy(c->path, path, n + 1);
        c->n_path = n;
    }
    size_t i;
    json_array_foreach(json_object_get(schema, "allOf"), i, part)
    {
        const size_t n = schema_path_push_index(c, "allOf", i);
        flat = schema_merge(c, flat, schema_flatten(c, part));
        c->path[c->n_path = n] = 0;
    }
    c->depth--;
    return flat;
}
