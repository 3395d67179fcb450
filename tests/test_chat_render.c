/* The contract of butler_chat_render and butler_chat_tokenize that tests/test_template.py does not see: what is refused, what NULL
 * and zeroed options mean, and text that goes on behind what a session holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "butler.h"

static struct butler_model *model; /* without a template; "<s>" is 1, "</s>" is 2 */

static int load(void **state)
{
    (void)state;
    model = butler_model_load("tests/data/models/llama-gqa.gguf", &(struct butler_model_params){.vocabulary_only = true}, NULL);
    return model ? 0 : -1;
}

static int unload(void **state)
{
    (void)state;
    butler_model_free(model);
    return 0;
}

static const struct butler_chat_message hello = {.role = "user", .content = "Hello"};

/* Renders one message, which must fail with this code and these words. */
static void refused(struct butler_chat_message message, const struct butler_chat_options *options, int code, const char *words)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    memset(&text, 0xAA, sizeof text);
    assert_int_equal(butler_chat_render(model, &message, 1, options, &text, &err), code);
    assert_int_equal(err.code, code);
    if (!strstr(err.message, words))
        fail_msg("'%s' is not in: %s", words, err.message);
    assert_true(!text.bytes && !text.segments && text.n == 0 && text.n_segments == 0);
}

static void test_refusals(void **state)
{
    const struct butler_chat_options plain = {.jinja = "{{ messages[0].content }}"};
    (void)state;
    refused(hello, NULL, BUTLER_ERROR_UNSUPPORTED, "llama-gqa.gguf has no chat template");
    refused(hello, &(struct butler_chat_options){.struct_size = 3}, BUTLER_ERROR_ARGUMENT, "butler_chat_options");
    refused((struct butler_chat_message){.content = "x"}, &plain, BUTLER_ERROR_FORMAT, "role");
    refused((struct butler_chat_message){"user", "x", "[1]"}, &plain, BUTLER_ERROR_FORMAT, "JSON object");
    refused((struct butler_chat_message){"user", "x", "{\"a\": }"}, &plain, BUTLER_ERROR_FORMAT, "byte 6");
    refused(hello, &(struct butler_chat_options){.jinja = "x", .tools = "nope"}, BUTLER_ERROR_FORMAT, "tools");
    refused(hello, &(struct butler_chat_options){.jinja = "\n{{"}, BUTLER_ERROR_FORMAT, "line 2");
}

static struct butler_chat_text rendered(const char *jinja, struct butler_chat_message message)
{
    struct butler_error err = {0};
    struct butler_chat_text text;
    const struct butler_chat_options options = {.jinja = jinja, .now = 86400};
    if (butler_chat_render(model, &message, 1, &options, &text, &err) < 0)
        fail_msg("%s", err.message);
    return text;
}

static void test_defaults(void **state)
{
    (void)state;
    struct butler_chat_text text =
        rendered("{{ add_generation_prompt }} {{ tools is none }} {{ messages[0].content is none }} {{ messages[0].n }} "
                 "{{ strftime_now('%Y-%m-%d') }} {{ bos_token }}{{ eos_token }}",
                 (struct butler_chat_message){"user", NULL, "{\"n\": 7}"});
    assert_string_equal(text.bytes, "False True True 7 1970-01-02 <s></s>");
    butler_chat_text_free(&text);
    assert_null(text.bytes);
    butler_chat_text_free(&text); /* a freed one is empty */
    text = rendered("", hello);
    assert_int_equal(text.n + text.n_segments, 0);
    assert_int_equal(butler_chat_tokenize(model, &text, 0, NULL, 0, NULL), 1); /* the BOS that this vocabulary asks for */
    butler_chat_text_free(&text);
    assert_int_equal(butler_chat_tokenize(model, &text, 0, NULL, 0, NULL), 1);
}

/* Parsed values: each takes the place of its text, and what is no value is refused. That they render as texts do is in
 * tests/test_template.py. */
static void test_parsed_values(void **state)
{
    static const struct butler_json numbers[] = {{.kind = BUTLER_JSON_INTEGER, .key = "n", .integer = INT64_MIN},
                                                 {.kind = BUTLER_JSON_BOOL, .key = "b", .integer = 1},
                                                 {.kind = BUTLER_JSON_STRING, .key = "s", .string = "</s>|", .n = 4},
                                                 {.key = "none"}};
    static const struct butler_json fields[] = {{.kind = BUTLER_JSON_OBJECT, .items = numbers, .n = 4}};
    static const struct butler_json variables[] = {{.kind = BUTLER_JSON_REAL, .key = "v", .real = 2}},
                                    tools = {.kind = BUTLER_JSON_ARRAY, .items = numbers, .n = 2},
                                    named = {.kind = BUTLER_JSON_OBJECT, .items = variables, .n = 1};
    struct butler_chat_message message = {"user", "x", "no JSON"};
    struct butler_error err = {0};
    struct butler_chat_text text;
    struct butler_chat_options options = {BUTLER_INIT(butler_chat_options),
                                          .jinja = "{{ messages[0] | tojson }} {{ tools }} {{ v }}",
                                          .tools = "no JSON",
                                          .variables = "no JSON",
                                          .parsed_tools = &tools,
                                          .parsed_variables = &named,
                                          .parsed_fields = fields};
    (void)state;
    if (butler_chat_render(model, &message, 1, &options, &text, &err) < 0)
        fail_msg("%s", err.message);
    assert_string_equal(text.bytes, "{\"role\": \"user\", \"content\": \"x\", \"n\": -9223372036854775808, \"b\": true, "
                                    "\"s\": \"</s>\", \"none\": null} [-9223372036854775808, True] 2.0");
    butler_chat_text_free(&text);

    options.parsed_fields = &(struct butler_json){0}; /* null: no fields, and no text is read */
    options.jinja = "{{ messages }}";
    assert_int_equal(butler_chat_render(model, &message, 1, &options, &text, &err), 0);
    assert_string_equal(text.bytes, "[{'role': 'user', 'content': 'x'}]");
    butler_chat_text_free(&text);

    options.parsed_fields = &tools;
    refused(message, &options, BUTLER_ERROR_FORMAT, "the field list of a message is a list");
    options.parsed_fields = fields;
    options.parsed_variables = &tools;
    refused(message, &options, BUTLER_ERROR_FORMAT, "the list of variables is a list");
    options.parsed_variables = &(struct butler_json){.kind = BUTLER_JSON_OBJECT, .items = &(struct butler_json){0}, .n = 1};
    refused(message, &options, BUTLER_ERROR_FORMAT, "no key");
    options.parsed_variables = &named;
    options.parsed_tools = &(struct butler_json){.kind = BUTLER_JSON_OBJECT + 1};
    refused(message, &options, BUTLER_ERROR_FORMAT, "kind 7");
    struct butler_json endless = {.kind = BUTLER_JSON_ARRAY, .n = 1};
    endless.items = &endless;
    options.parsed_tools = &endless;
    refused(message, &options, BUTLER_ERROR_FORMAT, "nested");
}

/* A text cut between two special tokens has the tokens of both parts; the second gets no BOS and no space of its own. */
static void test_text_that_goes_on(void **state)
{
    enum { MAX = 64 };
    int32_t whole[MAX], part[MAX];
    struct butler_error err = {0};
    (void)state;
    struct butler_chat_text text = rendered("{{ messages[0].content }}{{ eos_token }}a b", hello);
    const int n = butler_chat_tokenize(model, &text, 0, whole, MAX, NULL);
    const size_t from = strlen("Hello");
    const int n_part = butler_chat_tokenize(model, &text, from, part, MAX, NULL);
    assert_true(n_part > 1 && n_part < n && n <= MAX);
    assert_int_equal(whole[0], butler_token_bos(model));
    assert_int_equal(part[0], 2);
    assert_memory_equal(part, whole + n - n_part, (size_t)n_part * sizeof *part);
    assert_int_equal(butler_chat_tokenize(model, &text, text.n, part, MAX, NULL), 0);
    assert_int_equal(butler_chat_tokenize(model, &text, text.n + 1, part, MAX, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "from byte"));
    butler_chat_text_free(&text);

    text = rendered("xy", hello); /* behind a text, "y" has no space before it */
    int32_t letter[4];
    size_t n_bytes;
    assert_int_equal(butler_chat_tokenize(model, &text, 1, letter, 4, NULL), 1);
    const char *bytes = butler_token_bytes(model, letter[0], &n_bytes);
    assert_true(n_bytes == 1 && *bytes == 'y');
    butler_chat_text_free(&text);
}

/* A buffer that is too small gets the first ids, also where the first is a BOS that nobody wrote. */
static void test_small_buffers(void **state)
{
    int32_t ids[16], first[4] = {-1, -1, -1, -1};
    (void)state;
    struct butler_chat_text text = rendered("{{ messages[0].content }}", hello);
    const int n = butler_chat_tokenize(model, &text, 0, ids, 16, NULL);
    assert_in_range(n, 3, 16);
    for (int max = 1; max <= 3; max++) {
        assert_int_equal(butler_chat_tokenize(model, &text, 0, first, max, NULL), n);
        assert_memory_equal(first, ids, (size_t)max * sizeof *ids);
        assert_int_equal(first[max], -1);
    }
    butler_chat_text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_refusals), cmocka_unit_test(test_defaults),
                                       cmocka_unit_test(test_parsed_values), cmocka_unit_test(test_text_that_goes_on),
                                       cmocka_unit_test(test_small_buffers)};
    return cmocka_run_group_tests(tests, load, unload);
}
