/* Whether a schema has values that end: one that requires itself (a list whose every node must have a next one) has none. Finds
 * only what is certain from $ref, properties with required, items with minItems and alternatives; the rest counts as ending. */
#include <stdio.h>
#include <string.h>

#include "schema/parts.h"

struct search {
    struct schema_compiler *c;
    const json_t *open[SCHEMA_MAX_DEPTH]; /* targets of $ref around the present schema */
    int n_open, depth;
    size_t n_steps;
    char closed[256]; /* the $ref by which the first cycle closes */
};

enum { MAX_SEARCH = 20000 }; /* schemas; a larger search finds nothing */

static bool ends(struct search *s, const json_t *schema);

static bool reference_ends(struct search *s, const json_t *ref)
{
    struct schema_compiler *c = s->c;
    char path[sizeof c->path];
    memcpy(path, c->path, sizeof path);
    const size_t n_path = c->n_path;
    const json_t *target = schema_resolve(c, ref);
    memcpy(c->path, path, sizeof path);
    c->n_path = n_path;
    for (int i = 0; i < s->n_open; i++)
        if (s->open[i] == target) {
            if (!*s->closed)
                snprintf(s->closed, sizeof s->closed, "%s", json_string_value(ref));
            return false;
        }
    if (s->n_open == SCHEMA_MAX_DEPTH)
        return true;
    s->open[s->n_open++] = target;
    const bool result = ends(s, target);
    s->n_open--;
    return result;
}

/* Whether one of the alternatives, or each part of allOf, ends. */
static bool list_ends(struct search *s, const json_t *list, bool all)
{
    const json_t *schema;
    size_t i;
    json_array_foreach((json_t *)list, i, schema)
    {
        if (ends(s, schema) != all)
            return !all;
    }
    return all || json_array_size(list) == 0;
}

static bool object_ends(struct search *s, const json_t *schema)
{
    const json_t *properties = json_object_get(schema, "properties"), *name;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, name)
    {
        const json_t *property = json_is_string(name) ? json_object_get(properties, json_string_value(name)) : NULL;
        if (property && !ends(s, property))
            return false;
    }
    return true;
}

static bool array_ends(struct search *s, const json_t *schema)
{
    const json_t *items = json_object_get(schema, "items"), *first = json_object_get(schema, "prefixItems"),
                 *least = json_object_get(schema, "minItems");
    if (!json_is_number(least) || json_number_value(least) < 1)
        return true;
    if (json_array_size(first) > 0)
        return ends(s, json_array_get(first, 0));
    return !json_is_object(items) || ends(s, items);
}

static bool ends(struct search *s, const json_t *schema)
{
    static const char *const alternatives[] = {"anyOf", "oneOf"};
    if (!json_is_object(schema) || ++s->n_steps > MAX_SEARCH || s->depth == SCHEMA_MAX_DEPTH)
        return true;
    const json_t *ref = json_object_get(schema, "$ref"), *type = json_object_get(schema, "type");
    const char *name = json_string_value(type);
    bool result = true;
    s->depth++;
    if (json_is_string(ref))
        result = reference_ends(s, ref);
    if (result && json_object_get(schema, "allOf"))
        result = list_ends(s, json_object_get(schema, "allOf"), true);
    for (size_t i = 0; i < 2 && result; i++)
        if (json_object_get(schema, alternatives[i]))
            result = list_ends(s, json_object_get(schema, alternatives[i]), false);
    if (result && (name ? strcmp(name, "object") == 0 : !type && json_object_get(schema, "properties")))
        result = object_ends(s, schema);
    if (result && (name ? strcmp(name, "array") == 0 : !type && !json_object_get(schema, "properties")))
        result = array_ends(s, schema);
    s->depth--;
    return result;
}

void schema_check_ends(struct schema_compiler *c, const json_t *schema)
{
    struct search search = {.c = c, .open = {schema}, .n_open = 1};
    if (!ends(&search, schema) && search.n_steps <= MAX_SEARCH)
        schema_fail(c, "no value ends: by $ref '%.200s' the schema requires itself", search.closed);
}
