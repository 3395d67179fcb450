/* Any bytes as a chat template, and after a zero byte as JSON of variables: it is refused with a reason that says so, or its text
 * has segments that cover it and tokens that do not depend on the size of the buffer. */
#include <string.h>

#include "fuzz.h"

static struct butler_model *model;

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    (void)argc, (void)argv;
    model = fuzz_model("tests/data/models/llama-gqa.gguf");
    return 0;
}

static void check(const struct butler_chat_text *text)
{
    struct butler_error err = {0};
    size_t at = 0;
    for (size_t i = 0; i < text->n_segments; i++) {
        fuzz_require(text->segments[i].offset == at && text->segments[i].n > 0, "segments are in order and not empty");
        fuzz_require(i == 0 || text->segments[i].is_template != text->segments[i - 1].is_template, "neighbours differ");
        at += text->segments[i].n;
    }
    fuzz_require(at == text->n, "segments cover the text");
    fuzz_require(text->bytes[text->n] == 0, "a zero byte ends the text");
    if (text->n > 1 << 16) /* a long text makes nothing new, but takes long */
        return;
    const int n = butler_chat_tokenize(model, text, 0, NULL, 0, &err);
    int32_t *ids = calloc((size_t)(n > 0 ? n : 0) + 1, sizeof *ids), first = -1;
    fuzz_require(ids && n >= 0, "this vocabulary has a token for every byte");
    fuzz_require(butler_chat_tokenize(model, text, 0, ids, n, &err) == n, "the count does not depend on the buffer's size");
    fuzz_require(butler_chat_tokenize(model, text, 0, &first, 1, &err) == n, "nor on there being too little");
    fuzz_require(n == 0 || first == ids[0], "a buffer that is too small gets the first ids");
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct butler_chat_message messages[] = {
        {"system", "Be <b>brief</b>.", NULL},
        {"user", "What's \"this\"?\n\n  \xC3\xBC \xF0\x9F\x98\x80 </s>",
         "{\"name\": \"N\", \"n\": [1, 2.5, null, true, {\"k\": \"v\"}]}"},
        {"assistant", "<think>\nHm.\n</think>\n\nIt is.",
         "{\"tool_calls\": [{\"id\": \"c1\", \"function\": {\"name\": \"f\", "
         "\"arguments\": {\"x\": \"\\u00e9\"}}}]}"},
        {"tool", "\xFF\xC3 invalid", "{\"tool_call_id\": \"c1\"}"},
        {"user", "bye", NULL},
    };
    struct butler_error err = {0};
    struct butler_chat_text text;
    char *input = malloc(size + 2);
    fuzz_require(input != NULL, "memory");
    memcpy(input, data, size);
    input[size] = input[size + 1] = 0;
    const size_t n = strlen(input);
    const struct butler_chat_options options = {
        .jinja = input,
        .add_generation_prompt = size % 2,
        .tools = "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {}}}]",
        .variables = n < size ? input + n + 1 : NULL,
        .now = 1753920000};
    const int rc = butler_chat_render(model, messages, sizeof messages / sizeof *messages, &options, &text, &err);
    fuzz_require(rc <= 0, "a code is 0 or negative");
    fuzz_require(rc == 0 || (err.code == rc && strncmp(err.message, "chat template", 13) == 0), "a refused template has a reason");
    fuzz_require(rc == 0 || (!text.bytes && !text.segments), "a refused template leaves nothing");
    if (rc == 0)
        check(&text);
    butler_chat_text_free(&text);
    free(input);
    return 0;
}
