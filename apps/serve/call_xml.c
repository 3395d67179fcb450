/* Parameters of calls in the form of Qwen3-Coder, <parameter=KEY>VALUE</parameter>: which of them are text, and their grammar where
 * tool_choice requires a call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/schema.h"
#include "serve/call_grammar.h"

/* A schema behind its references to definitions; NULL: behind none. */
static json_t *resolved(json_t *parameters, json_t *schema)
{
    for (int i = 0; i < 8 && schema; i++) {
        const char *path = json_string_value(json_object_get(schema, "$ref"));
        if (!path)
            return schema;
        schema = strncmp(path, "#/$defs/", 8) == 0          ? json_object_get(json_object_get(parameters, "$defs"), path + 8)
                 : strncmp(path, "#/definitions/", 14) == 0 ? json_object_get(json_object_get(parameters, "definitions"), path + 14)
                                                            : NULL;
    }
    return NULL;
}

/* Whether a value is written as it is: its schema has strings alone. */
static bool is_text(json_t *parameters, json_t *property)
{
    json_t *schema = resolved(parameters, property), *values = json_object_get(schema, "enum"), *value;
    const char *type = json_string_value(json_object_get(schema, "type"));
    size_t i;
    json_array_foreach(values, i, value)
    {
        if (!json_is_string(value))
            return false;
    }
    return (type && strcmp(type, "string") == 0) || json_array_size(values) > 0 || json_is_string(json_object_get(schema, "const"));
}

char *serve_text_parameters(json_t *tool)
{
    json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters"), *property;
    struct butler_buffer names = {0};
    const char *key;
    json_object_foreach(json_object_get(parameters, "properties"), key, property)
    {
        if (*key && is_text(parameters, property))
            serve_text_append(&names, key, strlen(key) + 1);
    }
    serve_text_append(&names, "", 1);
    return names.bytes;
}

/* The rule `NAME ::= ...` of a text whose schema is known to be right. 0 or a negative status. */
static int put_text_rule(struct butler_buffer *text, const struct butler_model *model, const char *name, json_t *schema,
                         const char *key, json_t *dropped, struct serve_error *error)
{
    static const char *const unknown[] = {"pattern", "format", "minLength", "maxLength"};
    json_t *values = json_object_get(schema, "enum"), *single = json_object_get(schema, "const"), *value;
    size_t i;
    for (i = 0; i < sizeof unknown / sizeof *unknown; i++)
        if (json_object_get(schema, unknown[i]) && dropped)
            json_array_append_new(dropped, json_sprintf("#/%s", unknown[i]));
        else if (json_object_get(schema, unknown[i]))
            return serve_fail(error, 400, "'%s' of parameter '%.64s' is not supported in the form of calls of this model",
                              unknown[i], key);
    if (!values && !single) {
        serve_put_text_to_mark(text, model, name, "\n</parameter>");
        return 0;
    }
    serve_put(text, name);
    serve_put(text, " ::= (");
    json_t *list = single ? json_pack("[O]", single) : json_incref(values);
    json_array_foreach(list, i, value)
    {
        const char *words = json_is_string(value) ? json_string_value(value) : "";
        if (strstr(words, "</parameter>"))
            serve_fail(error, 400, "a value of parameter '%.64s' has '</parameter>' in it", key);
        serve_put(text, i ? " |" : "");
        serve_put_literal(text, words);
    }
    json_decref(list);
    serve_put(text, " )");
    serve_put_literal(text, "\n</parameter>");
    serve_put(text, "\n");
    return -error->status;
}

/* The same of a value that is JSON, from the grammar of its schema. */
static void put_json_rule(struct butler_buffer *text, const char *name, const char *grammar)
{
    serve_put_renamed(text, grammar, name);
    serve_put(text, name);
    serve_put(text, " ::= ");
    serve_put(text, name);
    serve_put(text, "-root");
    serve_put_literal(text, "\n</parameter>");
    serve_put(text, "\n");
}

/* The rule of a parameter's value and of what ends it. 0 or a negative status. */
static int put_value_rule(struct butler_buffer *text, const struct butler_model *model, const char *name, json_t *parameters,
                          json_t *property, const char *key, json_t *dropped, struct serve_error *error)
{
    struct butler_error err = {0};
    json_t *schema = json_is_object(property) ? json_copy(property) : json_object();
    int code = 0;
    for (int i = 0; i < 2; i++) { /* references begin at the root */
        const char *definitions = i ? "definitions" : "$defs";
        if (json_object_get(parameters, definitions))
            json_object_set(schema, definitions, json_object_get(parameters, definitions));
    }
    json_t *notes = dropped ? json_array() : NULL, *place;
    char *grammar = schema_to_wide_grammar(schema, notes, &err);
    if (!grammar)
        code = serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "parameter '%.64s': %s", key, err.message);
    else if (is_text(parameters, property))
        code = put_text_rule(text, model, name, resolved(parameters, property), key, notes, error);
    else
        put_json_rule(text, name, grammar);
    size_t i;
    json_array_foreach(notes, i, place) /* from the parameter's schema to that of all */
    {
        json_array_append_new(dropped, json_sprintf("#/properties/%s%s", key, json_string_value(place) + 1));
    }
    json_decref(notes);
    json_decref(schema);
    free(grammar);
    return code;
}

int serve_put_xml_parameters(struct butler_buffer *text, const struct butler_model *model, json_t *schema, const char *prefix,
                             json_t *dropped, struct serve_error *error)
{
    json_t *required = json_object_get(schema, "required"), *property, *value;
    struct butler_buffer all = {0};
    const char *key;
    size_t i, n = 0;
    json_object_foreach(json_object_get(schema, "properties"), key, property)
    {
        char name[64];
        bool is_required = false;
        json_array_foreach(required, i, value)
        {
            is_required |= json_is_string(value) && strcmp(json_string_value(value), key) == 0;
        }
        if (strpbrk(key, ">\n"))
            serve_fail(error, 400, "parameter '%.64s' has '>' or a line end in its name", key);
        snprintf(name, sizeof name, "%s-p%zu", prefix, n++);
        if (error->status || put_value_rule(text, model, name, schema, property, key, dropped, error) < 0)
            break;
        serve_put(&all, " (");
        serve_put_literal(&all, "<parameter=");
        serve_put_literal(&all, key);
        serve_put_literal(&all, ">\n");
        serve_put(&all, " ");
        serve_put(&all, name);
        serve_put_literal(&all, "\n");
        serve_put(&all, is_required ? " )" : " )?");
    }
    serve_put(text, prefix);
    serve_put(text, "-root ::=");
    serve_text_append(text, all.bytes ? all.bytes : "", all.n);
    serve_put(text, all.n ? "\n" : " \"\"\n");
    butler_buffer_free(&all);
    return -error->status;
}
