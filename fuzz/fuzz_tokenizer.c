/* Any bytes as text, for both families of tokenizers: counts agree however large the room, and the bytes come back. */
#include <string.h>

#include "fuzz.h"

static struct butler_model *models[2];

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    models[0] = fuzz_model("tests/data/models/llama-gqa.gguf");
    models[1] = fuzz_model("tests/data/models/gpt2.gguf");
    return 0;
}

static void decode(const struct butler_model *model, const int32_t *ids, int n, const char *text, size_t n_text, bool whole)
{
    struct butler_utf8 stream = {0};
    size_t at = 0;
    for (int i = 0; i < n; i++) {
        size_t n_bytes;
        char out[4096];
        const char *bytes = butler_token_bytes(model, ids[i], &n_bytes);
        fuzz_require(bytes != NULL && n_bytes + 16 <= sizeof out, "every id of a text is a token");
        fuzz_require(butler_utf8_push(&stream, bytes, n_bytes, out, n_bytes + 16) <= n_bytes + 16,
                     "a token fits where it is said to");
        if (whole)
            fuzz_require(at + n_bytes <= n_text && memcmp(text + at, bytes, n_bytes) == 0, "byte-level tokens spell the text");
        at += n_bytes;
    }
    fuzz_require(!whole || at == n_text, "byte-level tokens spell all of the text");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct butler_error err = {0};
    if (size < 1)
        return 0;
    const struct butler_model *model = models[data[0] & 1];
    const int flags = data[0] >> 1 & (BUTLER_ADD_SPECIAL | BUTLER_PARSE_SPECIAL);
    const char *text = (const char *)data + 1;
    const size_t n_text = size - 1;
    const int n = butler_tokenize(model, text, n_text, flags, NULL, 0, &err);
    fuzz_require(n >= 0 || (err.code < 0 && err.message[0]), "a refused text is refused with a reason");
    if (n < 0)
        return 0;
    int32_t *ids = calloc((size_t)n + 1, sizeof *ids);
    int32_t first = -1;
    fuzz_require(butler_tokenize(model, text, n_text, flags, ids, n, &err) == n, "the count does not depend on the room");
    fuzz_require(butler_tokenize(model, text, n_text, flags, &first, 1, &err) == n, "nor on there being too little");
    fuzz_require(n == 0 || first == ids[0], "too little room still gets the first ids");
    decode(model, ids, n, text, n_text, flags == 0 && model == models[1]);
    free(ids);
    return 0;
}
