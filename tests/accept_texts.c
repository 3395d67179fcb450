/* Says which texts a grammar or a JSON schema accepts, for tests that know it from elsewhere: accept_texts MODEL. The model's
 * vocabulary has a token for every byte.
 *
 * A line of standard input is {"schema": any JSON, or "grammar": GBNF, "texts": [strings]}. The answer is a line too: {"error":
 * message}, or {"verdicts": [1: accepted, 0: the beginning of an accepted text, -1: neither, -2: too much work]}. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "butler.h"
#include "schema/schema.h"
#include "grammar/grammar.h"

static int32_t token_of_byte[256];

static int32_t end_token;

static void find_tokens(const struct butler_model *model)
{
    const char *bytes;
    size_t n;
    int n_found = 0;
    for (int32_t id = 0; (bytes = butler_token_bytes(model, id, &n)); id++) {
        end_token = butler_token_is_end(model, id) ? id : end_token;
        if (n == 1 && token_of_byte[(unsigned char)bytes[0]] == 0) {
            token_of_byte[(unsigned char)bytes[0]] = id;
            n_found++;
        }
    }
    if (n_found < 256) {
        fprintf(stderr, "accept_texts: a token for %d of 256 bytes\n", n_found);
        exit(2);
    }
}

static int verdict(const struct butler_grammar *grammar, const char *text, size_t n)
{
    struct butler_error err = {0};
    int32_t state = butler_grammar_start(grammar);
    for (size_t i = 0; i < n && state > 0; i++)
        state = butler_grammar_advance(grammar, state, token_of_byte[(unsigned char)text[i]], &err);
    if (state <= 0)
        return state < 0 ? -2 : -1;
    return butler_grammar_advance(grammar, state, end_token, &err) > 0;
}

static json_t *answer(const struct butler_model *model, const json_t *request)
{
    const json_t *schema = json_object_get(request, "schema");
    struct butler_error err = {0};
    char *made = schema ? schema_to_grammar(schema, &err) : NULL;
    const char *gbnf = schema ? made : json_string_value(json_object_get(request, "grammar"));
    struct butler_grammar *grammar = gbnf ? butler_grammar_new(model, gbnf, &err) : NULL;
    free(made);
    if (!grammar)
        return json_pack("{s:s}", "error", err.message);
    json_t *verdicts = json_array(), *text;
    size_t i;
    json_array_foreach(json_object_get(request, "texts"), i, text)
        json_array_append_new(verdicts, json_integer(verdict(grammar, json_string_value(text), json_string_length(text))));
    butler_grammar_free(grammar);
    return json_pack("{s:o}", "verdicts", verdicts);
}

int main(int argc, char **argv)
{
    const struct butler_model_params params = {.vocabulary_only = true};
    struct butler_error err = {0};
    struct butler_model *model = argc == 2 ? butler_model_load(argv[1], &params, &err) : NULL;
    char *line = NULL;
    size_t size = 0;
    if (!model) {
        fprintf(stderr, "accept_texts: %s\n", argc == 2 ? err.message : "accept_texts MODEL");
        return 2;
    }
    find_tokens(model);
    while (getline(&line, &size, stdin) > 0) {
        json_error_t where;
        json_t *request = json_loads(line, JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
        json_t *result = request ? answer(model, request) : json_pack("{s:s}", "error", where.text);
        json_dumpf(result, stdout, JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(result);
        json_decref(request);
    }
    free(line);
    butler_model_free(model);
    return 0;
}
