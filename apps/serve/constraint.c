/* What all answers of a request must be: a grammar, JSON, or JSON of a schema. */
#include <stdlib.h>
#include <string.h>

#include "schema/schema.h"
#include "serve/api_parts.h"

/* The schema of "response_format": a borrowed reference into it, or *any made here. NULL: none, or *error. */
static const json_t *format_schema(json_t *body, json_t **any, struct serve_error *error)
{
    json_t *format = json_object_get(body, "response_format");
    const json_t *type = json_object_get(format, "type"), *schema = json_object_get(format, "schema");
    const char *kind = json_string_value(type);
    if (serve_is_neutral(format))
        return NULL;
    if (!kind) {
        serve_fail(error, 400, "'response_format' must be an object with a string 'type'");
    } else if (strcmp(kind, "json_schema") == 0) {
        json_t *named = json_object_get(format, "json_schema");
        schema = json_is_object(named) ? json_object_get(named, "schema") : schema;
        if (!schema)
            serve_fail(error, 400, "'response_format' of type 'json_schema' must have 'json_schema' with a 'schema'");
        return schema;
    } else if (strcmp(kind, "json_object") == 0) {
        return schema && !json_is_null(schema) ? schema : (*any = json_pack("{s:s}", "type", "object"));
    } else if (strcmp(kind, "text") != 0) {
        serve_fail(error, 400, "'response_format' of type '%.64s' is not known: text, json_object or json_schema", kind);
    }
    return NULL;
}

char *serve_read_constraint_text(json_t *body, bool *is_json, struct serve_error *error)
{
    json_t *gbnf = json_object_get(body, "grammar"), *own = json_object_get(body, "json_schema"), *any = NULL;
    struct butler_error err = {0};
    char *text = NULL;
    *is_json = false;
    if (error->status)
        return NULL;
    const bool has_gbnf = !serve_is_neutral(gbnf), has_own = own && !json_is_null(own);
    const json_t *of_format = format_schema(body, &any, error), *schema = has_own ? own : of_format;
    const char *field = has_own ? "json_schema" : "response_format";
    if (!error->status && has_gbnf + has_own + (of_format != NULL) > 1)
        serve_fail(error, 400, "'grammar', 'json_schema' and 'response_format' exclude each other");
    else if (!error->status && has_gbnf && !json_is_string(gbnf))
        serve_fail(error, 400, "'grammar' must be a string");
    if (!error->status && schema) {
        *is_json = true;
        if (!(text = schema_to_grammar(schema, &err)))
            serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "'%s': %s", field, err.message);
    } else if (!error->status && has_gbnf) {
        text = strdup(json_string_value(gbnf));
    }
    json_decref(any);
    return text;
}

struct butler_grammar *serve_read_constraint(const struct serve_api *api, json_t *body, struct serve_error *error)
{
    struct butler_error err = {0};
    bool is_json;
    char *text = serve_read_constraint_text(body, &is_json, error);
    struct butler_grammar *grammar = text ? butler_grammar_new(api->model, text, &err) : NULL;
    if (text && !grammar)
        serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "'%s': %s", is_json ? "response_format" : "grammar",
                   err.message);
    free(text);
    return grammar;
}
