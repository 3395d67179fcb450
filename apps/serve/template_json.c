/* Values of jansson as those that the library takes: a conversation gets to its template without being written as text. */
#include "serve/api_parts.h"

static size_t count_values(json_t *value)
{
    const char *key;
    json_t *item;
    size_t i, n = 1;
    json_array_foreach(value, i, item) n += count_values(item);
    json_object_foreach(value, key, item) n += count_values(item);
    return n;
}

/* What *out says beside its key; *next: where the memory for items begins. */
static void fill(struct butler_json *out, json_t *value, struct butler_json **next)
{
    static const enum butler_json_kind kinds[] = {
        [JSON_OBJECT] = BUTLER_JSON_OBJECT,   [JSON_ARRAY] = BUTLER_JSON_ARRAY, [JSON_STRING] = BUTLER_JSON_STRING,
        [JSON_INTEGER] = BUTLER_JSON_INTEGER, [JSON_REAL] = BUTLER_JSON_REAL,   [JSON_TRUE] = BUTLER_JSON_BOOL,
        [JSON_FALSE] = BUTLER_JSON_BOOL,      [JSON_NULL] = BUTLER_JSON_NULL,
    };
    struct butler_json *items = *next;
    const char *key;
    json_t *item;
    size_t i = 0;
    out->kind = kinds[json_typeof(value)];
    out->integer = json_is_true(value) ? 1 : json_integer_value(value);
    out->real = json_real_value(value);
    out->string = json_string_value(value);
    out->items = items;
    out->n = json_string_length(value) + json_array_size(value) + json_object_size(value); /* at most one is not 0 */
    *next += json_array_size(value) + json_object_size(value);
    json_array_foreach(value, i, item) fill(&items[i], item, next);
    i = 0;
    json_object_foreach(value, key, item)
    {
        items[i].key = key;
        fill(&items[i++], item, next);
    }
}

struct butler_json *serve_template_json(json_t *value)
{
    if (!value)
        return NULL;
    struct butler_json *values = serve_alloc(count_values(value), sizeof *values), *next = values + 1;
    fill(values, value, &next);
    return values;
}
