/* Any bytes as a JSON schema: it is refused with a reason, or the grammar that is made of it can be parsed, unless that is too
 * large. */
#include <stdlib.h>
#include <string.h>

#include "fuzz.h"
#include "schema/schema.h"

static struct butler_model *model;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    model = fuzz_model("tests/data/models/llama-gqa.gguf");
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct butler_error err = {0};
    char *text = schema_text_to_grammar((const char *)data, size, &err);
    if (!text) {
        fuzz_require(err.code < 0 && err.message[0], "a schema that is refused has a reason");
        return 0;
    }
    struct butler_grammar *grammar = butler_grammar_new(model, text, &err);
    if (!grammar && strlen(text) < 2000)
        fprintf(stderr, "%s\n%s\n", err.message, text);
    fuzz_require(grammar || strlen(text) >= 2000, "a small grammar is well formed");
    butler_grammar_free(grammar);
    free(text);
    return 0;
}
