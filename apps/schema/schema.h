/* JSON Schema -> GBNF, for answers that must be JSON. It stands beside cmd/ and serve/, which both use it, and not in the library:
 * it reads schemas with jansson, as they do, and the library depends on no JSON reader. */
#ifndef BUTLER_SCHEMA_H
#define BUTLER_SCHEMA_H

#include <jansson.h>

#include "butler.h"

/* GBNF whose texts are JSON that the schema accepts, or NULL with BUTLER_ERROR_FORMAT and the place in the schema, as
 * "schema at #/properties/x: ...". docs/serve/structured.md lists the keywords; one that is not there is an error. The caller frees
 * the text. Work and memory are bounded: a schema that needs more is an error too. */
char *schema_to_grammar(const json_t *schema, struct butler_error *err);

/* The same without keywords that are not supported: their places, such as "#/properties/x/not", are appended to the array. So some
 * texts may not be what the schema accepts. What makes no sense is an error still. */
char *schema_to_wide_grammar(const json_t *schema, json_t *dropped, struct butler_error *err);

/* The same for JSON text of n bytes. */
char *schema_text_to_grammar(const char *json, size_t n, struct butler_error *err);

#endif
