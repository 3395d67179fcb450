/* A conversation is parsed once, whichever interface it comes by: the linker puts counters before what parses and writes JSON (WRAP
 * in the Makefile). The prompts have every kind of value, so that what the template got is known too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/api_parts.h"

static struct serve_api api;

/* Since the last body. */
static struct {
    int n_loads, n_dumps, n_renders;
    char prompt[4096];
} seen;

json_t *__real_json_loadb(const char *bytes, size_t n, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *bytes, size_t n, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *bytes, size_t n, size_t flags, json_error_t *error)
{
    seen.n_loads++;
    return __real_json_loadb(bytes, n, flags, error);
}

json_t *__real_json_loads(const char *text, size_t flags, json_error_t *error);
json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error);
json_t *__wrap_json_loads(const char *text, size_t flags, json_error_t *error)
{
    seen.n_loads++;
    return __real_json_loads(text, flags, error);
}

char *__real_json_dumps(const json_t *value, size_t flags);
char *__wrap_json_dumps(const json_t *value, size_t flags);
char *__wrap_json_dumps(const json_t *value, size_t flags)
{
    seen.n_dumps += seen.n_renders == 0; /* what a grammar needs comes later */
    return __real_json_dumps(value, flags);
}

/* The parser of the library, which texts would go to. Nothing that it returns can be made here. */
_Noreturn void __wrap_butler_template_read_json(void);
_Noreturn void __wrap_butler_template_read_json(void)
{
    fail_msg("the template's parser read a text");
    abort();
}

int __real_butler_chat_render(const struct butler_model *model, const struct butler_chat_message *messages, size_t n,
                              const struct butler_chat_options *options, struct butler_chat_text *text, struct butler_error *err);
int __wrap_butler_chat_render(const struct butler_model *model, const struct butler_chat_message *messages, size_t n,
                              const struct butler_chat_options *options, struct butler_chat_text *text, struct butler_error *err);
int __wrap_butler_chat_render(const struct butler_model *model, const struct butler_chat_message *messages, size_t n,
                              const struct butler_chat_options *options, struct butler_chat_text *text, struct butler_error *err)
{
    const int rc = __real_butler_chat_render(model, messages, n, options, text, err);
    seen.n_renders++;
    snprintf(seen.prompt, sizeof seen.prompt, "%s", rc == 0 ? text->bytes : err->message);
    return rc;
}

static int load(void **state)
{
    (void)state;
    api.model = butler_model_load("tests/data/models/llama-gqa.gguf", &(struct butler_model_params){.vocabulary_only = true}, NULL);
    if (!api.model)
        return -1;
    api.info = butler_model_get_info(api.model);
    api.n_ctx = 1 << 20;
    api.config.model_name = "model";
    api.config.chat_template = "{{ tools | tojson }}\n{{ messages | tojson }}\n{{ v | tojson }}";
    serve_measure_tokens(&api);
    return 0;
}

static int unload(void **state)
{
    (void)state;
    butler_model_free(api.model);
    return 0;
}

/* A body on its way to a prompt: by post, or as a request of the surface. n_texts: arguments of calls in it that are texts of JSON.
 */
static void check(const char *text, json_t *(*post)(struct serve_api *, json_t *, struct serve_error *),
                  const struct serve_surface *surface, int n_texts, const char *prompt)
{
    struct serve_error error = {0};
    memset(&seen, 0, sizeof seen);
    json_t *body = serve_parse_body(text, strlen(text), &error);
    json_t *answer = body && post ? post(&api, body, &error) : NULL;
    struct serve_request *request = NULL;
    if (body && !post)
        request = serve_parse(&api, surface, SERVE_CHAT, body, &(struct serve_client){.key = ""}, &error);
    assert_string_equal(error.message, "");
    assert_true(answer || request);
    assert_int_equal(seen.n_renders, 1);
    assert_string_equal(seen.prompt, prompt);
    assert_int_equal(seen.n_loads, 1 + n_texts);
    assert_int_equal(seen.n_dumps, 0);
    if (request)
        serve_request_free(request);
    json_decref(answer);
    json_decref(body);
}

#define VALUES                                                                                                                     \
    "{\"z\": 1.0, \"a\": [1, -2, 1e2, 0.1, 9223372036854775807, -9223372036854775808, 12345678901234567890, true, false, null], "  \
    "\"\\u00e9\": \"q\\\"\\\\\\n\\u0001\\u007f \\ud83d\\ude00\", \"\": {}, \"e\": []}"
#define RENDERED                                                                                                                   \
    "{\"z\": 1.0, \"a\": [1, -2, 100.0, 0.1, 9223372036854775807, -9223372036854775808, 1.234567890123456e+19, true, false, "      \
    "null], "                                                                                                                      \
    "\"\xC3\xA9\": \"q\\\"\\\\\\n\\u0001\x7F \xF0\x9F\x98\x80\", \"\": {}, \"e\": []}"
#define TOOL(parameters)                                                                                                           \
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": null, \"parameters\": " parameters "}}"

static const char chat_body[] =
    "{\"messages\": [{\"role\": \"user\", \"name\": \"N\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, "
    "{\"type\": \"text\", \"text\": \"b\"}]}, "
    "{\"role\": \"assistant\", \"reasoning_content\": null, \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\", "
    "\"function\": {\"name\": \"f\", \"arguments\": " VALUES "}}]}, "
    "{\"content\": \"\", \"tool_call_id\": \"c\", \"role\": \"tool\"}], \"tools\": [" TOOL(
        VALUES) "], "
                "\"chat_template_kwargs\": {\"v\": " VALUES "}}";
static const char chat_prompt[] =
    "[" TOOL(RENDERED) "]\n[{\"role\": \"user\", \"content\": \"ab\", \"name\": \"N\"}, "
                       "{\"role\": \"assistant\", \"content\": null, \"reasoning_content\": null, \"tool_calls\": [{\"id\": \"c\", "
                       "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " RENDERED "}}]}, "
                       "{\"role\": \"tool\", \"content\": \"\", \"tool_call_id\": \"c\"}]\n" RENDERED;

static void test_chat(void **state)
{
    (void)state;
    check(chat_body, NULL, NULL, 0, chat_prompt);
}

static void test_apply_template(void **state)
{
    (void)state;
    check(chat_body, serve_post_apply_template, NULL, 0, chat_prompt);
}

/* Nothing but messages. */
static void test_bare(void **state)
{
    (void)state;
    check("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"chat_template_kwargs\": {\"v\": null}}", NULL, NULL, 0,
          "null\n[{\"role\": \"user\", \"content\": \"a\"}]\nnull");
}

/* What a client sends as a text of JSON is parsed once too. */
static void test_responses(void **state)
{
    (void)state;
    check(
        "{\"instructions\": \"s\", \"input\": [{\"role\": \"user\", \"content\": \"a\"}, "
        "{\"type\": \"function_call\", \"call_id\": \"c\", \"name\": \"f\", \"arguments\": \"{\\\"z\\\": 1.0, \\\"a\\\": null}\"}, "
        "{\"type\": \"function_call_output\", \"call_id\": \"c\", \"output\": \"r\"}], "
        "\"tools\": [{\"type\": \"function\", \"name\": \"f\", \"parameters\": " VALUES "}], "
        "\"chat_template_kwargs\": {\"v\": " VALUES "}}",
        NULL, &serve_responses, 1,
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": " RENDERED "}}]\n"
        "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}, "
        "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"c\", \"type\": \"function\", "
        "\"function\": {\"name\": \"f\", \"arguments\": {\"z\": 1.0, \"a\": null}}}]}, "
        "{\"role\": \"tool\", \"content\": \"r\", \"tool_call_id\": \"c\"}]\n" RENDERED);
}

static const char messages_body[] =
    "{\"max_tokens\": 1, \"system\": \"s\", \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
    "{\"role\": \"assistant\", \"content\": [{\"type\": \"thinking\", \"thinking\": \"t\"}, "
    "{\"type\": \"tool_use\", \"id\": \"c\", \"name\": \"f\", \"input\": " VALUES "}]}, "
    "{\"role\": \"user\", \"content\": [{\"type\": \"tool_result\", \"tool_use_id\": \"c\", \"content\": \"r\"}]}], "
    "\"tools\": [{\"name\": \"f\", \"input_schema\": " VALUES "}], \"chat_template_kwargs\": {\"v\": " VALUES "}}";
static const char messages_prompt[] = "[" TOOL(
    RENDERED) "]\n[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"a\"}, "
              "{\"role\": \"assistant\", \"content\": \"\", \"reasoning_content\": \"t\", \"tool_calls\": [{\"id\": \"c\", "
              "\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": " RENDERED "}}]}, "
              "{\"role\": \"tool\", \"content\": \"r\", \"tool_call_id\": \"c\"}]\n" RENDERED;

static void test_messages(void **state)
{
    (void)state;
    check(messages_body, NULL, &serve_messages, 0, messages_prompt);
}

static void test_count_tokens(void **state)
{
    (void)state;
    check(messages_body, serve_post_count_tokens, NULL, 0, messages_prompt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_chat),     cmocka_unit_test(test_apply_template),
                                       cmocka_unit_test(test_bare),     cmocka_unit_test(test_responses),
                                       cmocka_unit_test(test_messages), cmocka_unit_test(test_count_tokens)};
    return cmocka_run_group_tests(tests, load, unload);
}
