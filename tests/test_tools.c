/* The parser of answers: every form of calls and reasoning, what is none of them, and every way of cutting the text into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/tools.h"

#define ALL_CALLS                                                                                                                  \
    (SERVE_CALLS_TAGGED | SERVE_CALLS_BARE | SERVE_CALLS_MISTRAL | SERVE_CALLS_ACTION | SERVE_CALLS_BARRED | SERVE_CALLS_XML)

enum { RECIPIENT = 1 << 16 }; /* as `open`: the prompt ends with >>> */

/* Parts as a text: content as it is, reasoning in (...), a call as <name|arguments>. */
static const struct {
    unsigned calls, reasoning, open;
    const char *in, *out;
} cases[] = {
    {ALL_CALLS, 7, 0, "plain text, no { call }\n", "plain text, no { call }\n"},
    {0, 0, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"},
    /* tagged */
    {1, 0, 0, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\\\"{\", \"b\": [1, {}]}}\n</tool_call>",
     "<f|{\"a\": \"}\\\"{\", \"b\": [1, {}]}>"},
    {1, 0, 0,
     "Two:\n<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":1}}</tool_call>\n<tool_call>{\"arguments\":{},\"name\":\"g\"}</"
     "tool_call>",
     "Two:<f|{\"a\":1}><tool_call>{\"arguments\":{},\"name\":\"g\"}</tool_call>"},
    {1, 0, 0, "\n<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}</tool_call>\nDone.\n",
     "<f|{}><g|{}>Done.\n"},
    {1, 0, 0, "a <tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call> b",
     "a <tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call> b"},
    {1, 0, 0, "a <tool_call>{name: f}</tool_call>", "a <tool_call>{name: f}</tool_call>"},
    {1, 0, 0, "a <tool_call>{\"name\": \"f\", \"argum", "a <tool_call>{\"name\": \"f\", \"argum"},
    {1, 0, 0, "a <tool_call><tool_call>{\"name\": \"f\", \"arguments\": {}}", "a <tool_call><f|{}>"},
    {1, 0, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"cut", "<f|{\"a\": \"cut>"},
    {1, 0, 0, "a <tool_cal", "a <tool_cal"},
    {1, 0, 0, "a <tool_ <tool_call", "a <tool_ <tool_call"},
    {1, 0, 0, "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{}\"}</tool_call>"},
    /* bare */
    {2, 0, 0, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "<f|{\"a\": 1}>"},
    {2, 0, 0, " \n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}} ", "<f|{}>"},
    {2, 0, 0, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"parameters\": {\"b\": 2}}",
     "<f|{}><g|{\"b\": 2}>"},
    {2, 0, 0, "{\"name\": \"Ann\", \"age\": 5}", "{\"name\": \"Ann\", \"age\": 5}"},
    {2, 0, 0, "{\"x\": {\"name\": \"f\", \"parameters\": {}}}", "{\"x\": {\"name\": \"f\", \"parameters\": {}}}"},
    {2, 0, 0, "It is {\"name\": \"f\", \"parameters\": {}}", "It is {\"name\": \"f\", \"parameters\": {}}"},
    {2, 0, 0, "<|python_tag|>print(1)", "<|python_tag|>print(1)"},
    {2, 0, 0, "{", "{"},
    /* Mistral */
    {4, 0, 0,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abcdefghi\"}, {\"name\": \"g\", \"arguments\": {}}]",
     "<f|{\"a\": 1}><g|{}>"},
    {4, 0, 0, "Hm.[TOOL_CALLS]f[ARGS]{\"a\": [1]}[TOOL_CALLS]g[ARGS]{}", "Hm.<f|{\"a\": [1]}><g|{}>"},
    {4, 0, 0, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"x\"}]", "<f|{}>, {\"name\": \"x\"}]"},
    {4, 0, 0, "[TOOL_CALLS]f(1)", "[TOOL_CALLS]f(1)"},
    {4, 0, 0, "[TOOL_CALLS]", "[TOOL_CALLS]"},
    /* Command R7B */
    {8, 4, 0,
     "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n  {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
     "\"parameters\": {}}\n]"
     "<|END_ACTION|>",
     "(I look.)<f|{}>"},
    /* Granite 3 */
    {16, 0, 0, "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]",
     "<f|{\"a\": 1}><g|{}>"},
    {16, 0, 0, "<|tool_call|> [{\"name\": \"f\", \"arguments\": {}}]<|/tool_call|>\nDone", "<f|{}>Done"},
    {17, 0, 0, "<tool_call|>[{\"name\": \"f\", \"arguments\": {}}]", "<tool_call|>[{\"name\": \"f\", \"arguments\": {}}]"},
    {16, 0, 0, "<|tool_call|>[]", "<|tool_call|>[]"},
    /* Phi-4-mini, GLM-4 */
    {16, 0, 0, "functools[{\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "<f|{\"a\": 1}>"},
    {16, 0, 0, "functools are tools", "functools are tools"},
    {128, 0, 0, "f\n{\"a\": [1]}", "<f|{\"a\": [1]}>"},
    {128, 0, 0, "\ng\n {} ", "<g|{}>"},
    {128, 0, 0, "for f\n{}", "for f\n{}"},
    {128, 0, 0, "f", "f"},
    {128, 0, 0, "f\nno", "f\nno"},
    {129, 0, 0, "f: <tool_call>{\"name\": \"f\", \"arguments\": {}}", "f:<f|{}>"},
    /* Functionary */
    {256, 0, 0, "I do.<function=f>{\"a\": \"</function>\"}</function><function=g>\n{}\n</function>\nSo.",
     "I do.<f|{\"a\": \"</function>\"}><g|{}>So."},
    {256, 0, 0, "<function=unknown>{}</function><function=f>[]</function>",
     "<function=unknown>{}</function><function=f>[]</function>"},
    {256, 0, 0, "<function=f>{\"a\": 1", "<f|{\"a\": 1>"},
    {256, 0, 0, "a <function=f", "a <function=f"},
    {512, 0, RECIPIENT, "all\nI look.\n>>>f\n{\"a\": [1]}\n>>>g\n{}>>>all\nSo.", "I look.<f|{\"a\": [1]}><g|{}>So."},
    {512, 0, RECIPIENT, "g\n{\"all\": 1}", "<g|{\"all\": 1}>"},
    {512, 0, RECIPIENT, "all\n\n>>> f\n{} >>>h\n{} >>>f{} >>", "\n>>> f\n{} >>>h\n{} >>>f{} >>"},
    {512, 0, RECIPIENT, "f is all", "f is all"},
    {512, 0, RECIPIENT, "f\n no", "f\n no"},
    {512, 0, RECIPIENT, "al", "al"},
    {512, 0, 0, "all\nf", "all\nf"},
    {512, 0, 0, ">>>f\n{}", "<f|{}>"},
    /* Qwen3-Coder: x of f is text */
    {33, 0, 0,
     "I do.\n<tool_call>\n<function=f>\n<parameter=x>\na \"b\"\n\tc</p>\n\n</parameter>\n<parameter=y>\n[1, {}]\n</parameter>\n"
     "</function>\n</tool_call>",
     "I do.<f|{\"x\": \"a \\\"b\\\"\\n\\tc</p>\\n\", \"y\": [1, {}]}>"},
    {33, 0, 0,
     "<function=g>\n<parameter=x>\n5\n</parameter>\n</function>\n</tool_call>\n<tool_call><function=f></function></tool_call>.",
     "<g|{\"x\": 5}><f|{}>."},
    {33, 0, 0,
     "<tool_call><function=g><parameter=x>True</parameter><parameter=y>a\x01 b</parameter><parameter=z>\n</parameter></function>",
     "<g|{\"x\": true, \"y\": \"a\\u0001 b\", \"z\": \"\"}>"},
    {33, 0, 0, "<tool_call>\n<function=f>\n<parameter=x>\ncut </para", "<f|{\"x\": \"cut </para>"},
    {33, 0, 0, "<tool_call>\n<function=f>\n<parameter=x", "<f|><parameter=x"},
    {33, 0, 0, "<tool_call>\n<function=f>\nHm.</function>", "<f|{}>Hm.</function>"},
    {33, 0, 0, "<tool_call>\n<function=unknown>\n</function>", "<tool_call>\n<function=unknown>\n</function>"},
    {33, 0, 0, "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>", "<f|{}>"},
    {1, 0, 0, "<tool_call><function=f></function>", "<tool_call><function=f></function>"},
    /* gpt-oss */
    {64, 8, 0, "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>Yes <b>.\n",
     "(I look.)Yes <b>.\n"},
    {64, 8, 0,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"a\": 1}"
     "<|call|>",
     "(A)<f|{\"a\": 1}>"},
    {64, 8, 0, " to=functions.g<|channel|>commentary json<|message|>{}<|start|>assistant<|channel|>commentary<|message|>So.<|end|>",
     "<g|{}>So."},
    {64, 8, 0, "<|start|>assistant<|channel|>final<|message|>a <|x|> b<|return|>", "a <|x|> b"},
    {64, 0, 0, "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>B",
     "<|channel|>analysis<|message|>A<|end|>B"},
    {64, 8, 0, "<|channel|>commentary to=functions.unknown<|message|>{}<|call|>",
     "<|channel|>commentary to=functions.unknown<|message|>{}<|call|>"},
    {64, 8, 0, "<|channel|>final<|message|>Yes<|end|> No", "Yes No"},
    {64, 8, 0, "Plain <|channel|>x<|message|>y", "Plain <|channel|>x<|message|>y"},
    {64, 8, 0, "<|channel|>fin", "<|channel|>fin"},
    {0, 8, 0, "<|channel|>commentary to=functions.f<|message|>{}", "<|channel|>commentary to=functions.f<|message|>{}"},
    /* the whole answer, without marks: texts of Qwen2.5-Coder, and what is none */
    {1025, 0, 0, "```json\n{\n  \"name\": \"f\",\n  \"arguments\": {\n    \"a\": \"}```\"\n  }\n}\n```\n",
     "<f|{\n    \"a\": \"}```\"\n  }>"},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": {}}", "<f|{}>"},
    {1025, 0, 0, " {\"name\": \"f\", \"arguments\": {}} \n{\"name\": \"g\", \"arguments\": {\"b\": [1]}}\n",
     "<f|{}><g|{\"b\": [1]}>"},
    {1025, 0, 0, "```\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {\"b\": [1]}}",
     "<f|{}><g|{\"b\": [1]}>"},
    {1025, 0, 0, "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {\"b\": [1]}}]",
     "<f|{}><g|{\"b\": [1]}>"},
    {1025, 1, 0, "<think>a</think>\n```json\n{\"name\": \"f\", \"arguments\": {}}\n```", "(a)<f|{}>"},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": {}}\n<tool_call>{\"name\": \"g\", \"arguments\": {\"b\": [1]}}</tool_call>",
     "{\"name\": \"f\", \"arguments\": {}}<g|{\"b\": [1]}>"},
    {1025, 0, 0, "<tool_call>{\"name\": \"g\", \"arguments\": {\"b\": [1]}}</tool_call>", "<g|{\"b\": [1]}>"},
    {1025, 0, 0, "{\"name\": \"unknown\", \"arguments\": {}}", "{\"name\": \"unknown\", \"arguments\": {}}"},
    {1025, 0, 0, "```json\n{\"name\": \"unknown\", \"arguments\": {}}\n```",
     "```json\n{\"name\": \"unknown\", \"arguments\": {}}\n```"},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": {}} is how.", "{\"name\": \"f\", \"arguments\": {}} is how."},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": {}}{\"name\": \"unknown\", \"arguments\": {}}",
     "{\"name\": \"f\", \"arguments\": {}}{\"name\": \"unknown\", \"arguments\": {}}"},
    {1025, 0, 0, "```json\n{\"name\": \"f\", \"arguments\": {}}\n``` So.",
     "```json\n{\"name\": \"f\", \"arguments\": {}}\n``` So."},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": \"x\"}", "{\"name\": \"f\", \"arguments\": \"x\"}"},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": {\"a\": 1", "{\"name\": \"f\", \"arguments\": {\"a\": 1"},
    {1025, 0, 0, "{\"name\": \"f\", \"arguments\": {a: 1}}", "{\"name\": \"f\", \"arguments\": {a: 1}}"},
    {1025, 0, 0, "{\"name\": \"f\"}", "{\"name\": \"f\"}"},
    {1025, 0, 0, "```python\nprint({})\n```", "```python\nprint({})\n```"},
    {1025, 0, 0, "Hm. {\"name\": \"f\", \"arguments\": {}}", "Hm. {\"name\": \"f\", \"arguments\": {}}"},
    {1025, 0, 0, "[1, 2]", "[1, 2]"},
    {1025, 0, 0, "{", "{"},
    {1025, 0, 0, "```", "```"},
    {1025, 0, 0, "[", "["},
    {1025, 0, 0, "{\"name\": \"Ann\", \"age\": 5}", "{\"name\": \"Ann\", \"age\": 5}"},
    {1025, 0, 0, "[{\"name\": \"f\", \"arguments\": {}}", "[{\"name\": \"f\", \"arguments\": {}}"},
    {5, 0, 0, "{\"name\": \"f\", \"arguments\": {}}", "{\"name\": \"f\", \"arguments\": {}}"},
    /* reasoning */
    {0, 1, 0, "<think>\nHm </thin.\n</think>\n\nYes.", "(Hm </thin.)Yes."},
    {0, 1, 1, "Hm.</think>Yes <think>.", "(Hm.)Yes <think>."},
    {0, 1, 0, "<think>\n\n</think>\n\nYes.", "Yes."},
    {0, 1, 0, "<think>Hm.", "(Hm.)"},
    {0, 1, 0, "<thin", "<thin"},
    {0, 1, 0, "No <think>x</think>", "No <think>x</think>"},
    {0, 1, 0, "<think>a</think><think>b</think>", "(a)<think>b</think>"},
    {0, 2, 0, " [THINK]a [/THI[/THINK]b ", "(a [/THI)b "},
    {3, 1, 0, "<think>a</think>\n{\"name\": \"f\", \"parameters\": {}}", "(a)<f|{}>"},
    {1, 1, 1, "<tool_call> is how.</think><tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "(<tool_call> is how.)<f|{}>"},
};

struct record {
    struct butler_buffer text;
    int open; /* the kind of the last part + 1 */
    int n_calls;
};

static void put(struct record *record, const char *text)
{
    serve_text_append(&record->text, text, strlen(text));
}

static void write_record(void *user, const struct serve_part *part)
{
    struct record *record = user;
    if (record->open == SERVE_REASONING + 1 && part->kind != SERVE_REASONING)
        put(record, ")");
    if (part->kind == SERVE_REASONING && record->open != SERVE_REASONING + 1)
        put(record, "(");
    if (part->kind == SERVE_CALL_BEGIN) {
        assert_int_equal(part->call, record->n_calls++);
        put(record, "<");
    }
    serve_text_append(&record->text, part->bytes, part->n);
    if (part->kind == SERVE_CALL_BEGIN || part->kind == SERVE_CALL_END)
        put(record, part->kind == SERVE_CALL_BEGIN ? "|" : ">");
    record->open = (int)part->kind + 1;
}

/* Pieces of `step` bytes, the first of `first`. */
static void expect_parts(size_t which, size_t first, size_t step, bool one_call, const char *out)
{
    char *names[] = {(char[]){"f"}, (char[]){"g"}}, *texts[] = {(char[]){"x\0"}, (char[]){""}};
    const struct serve_syntax syntax = {.calls = cases[which].calls,
                                        .reasoning = cases[which].reasoning,
                                        .open = cases[which].open & ~(unsigned)RECIPIENT,
                                        .in_recipient = cases[which].open & RECIPIENT,
                                        .one_call = one_call,
                                        .names = cases[which].calls ? names : NULL,
                                        .texts = texts,
                                        .n_names = cases[which].calls ? 2 : 0};
    struct record record = {0};
    struct serve_parser *parser = serve_parser_new(&syntax, write_record, &record);
    const size_t n = strlen(cases[which].in);
    for (size_t at = 0, size = first; at < n; at += size, size = step)
        serve_parser_push(parser, cases[which].in + at, size < n - at ? size : n - at);
    serve_parser_end(parser);
    put(&record, record.open == SERVE_REASONING + 1 ? ")" : "");
    serve_text_append(&record.text, "", 1);
    assert_string_equal(record.text.bytes, out);
    assert_int_equal(serve_parser_n_calls(parser), record.n_calls);
    serve_parser_free(parser);
    butler_buffer_free(&record.text);
}

static void every_split_says_the_same(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t first = 1; first <= strlen(cases[i].in); first++) {
            expect_parts(i, first, strlen(cases[i].in), false, cases[i].out); /* in two */
            expect_parts(i, first, 1, false, cases[i].out);                   /* then byte by byte */
            expect_parts(i, first, 3, false, cases[i].out);
        }
}

static void one_call_leaves_out_the_rest(void **state)
{
    (void)state;
    expect_parts(4, 1, 1, true, "<f|{}>");
    expect_parts(4, 1000, 1, true, "<f|{}>");
}

/* What is certain comes at once: text before a mark, arguments while they are written. */
static void parts_come_early(void **state)
{
    static const struct {
        const char *piece, *so_far;
    } steps[] = {{"Let me ", "Let me"},
                 {"look <", "Let me look"},
                 {"b>", "Let me look <b>"},
                 {"<tool_call>{\"name\": \"f\", ", "Let me look <b>"},
                 {"\"arguments\": {\"te", "Let me look <b><f|{\"te"},
                 {"xt\": 1", "Let me look <b><f|{\"text\": 1"},
                 {"}", "Let me look <b><f|{\"text\": 1}>"}};
    char *names[] = {(char[]){"f"}};
    const struct serve_syntax syntax = {.calls = SERVE_CALLS_TAGGED, .names = names, .n_names = 1};
    struct record record = {0};
    struct serve_parser *parser = serve_parser_new(&syntax, write_record, &record);
    (void)state;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        serve_parser_push(parser, steps[i].piece, strlen(steps[i].piece));
        assert_int_equal(record.text.n, strlen(steps[i].so_far));
        assert_memory_equal(record.text.bytes, steps[i].so_far, record.text.n);
    }
    serve_parser_free(parser);
    butler_buffer_free(&record.text);
}

/* What may be a call as a whole is held no longer than it may be one. */
static void other_texts_are_not_held(void **state)
{
    static const char *const texts[] = {"Y", "{\"age", "{\"name\": \"h\", \"arguments\": {", "```python\nx", "[1"};
    char *names[] = {(char[]){"f"}};
    const struct serve_syntax syntax = {.calls = SERVE_CALLS_TAGGED | SERVE_CALLS_WHOLE, .names = names, .n_names = 1};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct record record = {0};
        struct serve_parser *parser = serve_parser_new(&syntax, write_record, &record);
        serve_parser_push(parser, texts[i], strlen(texts[i]));
        serve_parser_push(parser, "\": {", 5);
        assert_true(record.text.n >= strlen(texts[i]));
        serve_parser_free(parser);
        butler_buffer_free(&record.text);
    }
}

static void templates_show_their_forms(void **state)
{
    (void)state;
    assert_int_equal(serve_syntax_calls("{{ '\\n<tool_call>\\n{\"name\": \"' }}"), SERVE_CALLS_TAGGED);
    assert_int_equal(serve_syntax_calls("{\"name\": name, \"parameters\": {}}"), SERVE_CALLS_BARE);
    assert_int_equal(serve_syntax_calls("[TOOL_CALLS] <|START_ACTION|>"), SERVE_CALLS_MISTRAL | SERVE_CALLS_ACTION);
    assert_int_equal(serve_syntax_calls("write '<|tool_call|>' and a list"), SERVE_CALLS_BARRED);
    assert_int_equal(serve_syntax_calls("<tool_call>\\n<function='"), SERVE_CALLS_TAGGED | SERVE_CALLS_XML);
    assert_int_equal(serve_syntax_calls("'<|channel|>final<|message|>'"), SERVE_CALLS_MESSAGE);
    assert_int_equal(serve_syntax_reasoning("'<|channel|>final<|message|>'"), SERVE_REASONING_MESSAGE);
    assert_int_equal(serve_syntax_calls("'<|tool|>' + message['tools']"), SERVE_CALLS_BARRED);
    assert_int_equal(serve_syntax_calls("<|observation|> <|assistant|>"), SERVE_CALLS_LINE);
    assert_int_equal(serve_syntax_calls("'<function=example>{...}</function>' \"name\" \"parameters\""), SERVE_CALLS_FUNCTION);
    assert_int_equal(serve_syntax_calls("'>>>all\\n' + content"), SERVE_CALLS_RECIPIENT);
    assert_int_equal(serve_syntax_calls("{{ tools }} >>>"), 0);
    assert_true(serve_syntax_in_recipient(512, "assistant\n\n>>>", 14) && !serve_syntax_in_recipient(512, ">>", 2) &&
                !serve_syntax_in_recipient(1, ">>>", 3));
    assert_int_equal(serve_syntax_reasoning("split('</think>')"), SERVE_REASONING_THINK);
    assert_int_equal(serve_syntax_reasoning("[THINK] <|END_THINKING|>"), SERVE_REASONING_MISTRAL | SERVE_REASONING_COMMAND);
    assert_int_equal(serve_syntax_open(1, "x<think>\n", 9), SERVE_REASONING_THINK);
    assert_int_equal(serve_syntax_open(2, "x<think>\n", 9), 0);
    assert_int_equal(serve_syntax_open(1, "<think></think>\n", 16), 0);
    assert_true(serve_syntax_is_mark("[ARGS]", 6) && serve_syntax_is_mark("</think>", 8) && !serve_syntax_is_mark("</thin", 6));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_says_the_same),  cmocka_unit_test(one_call_leaves_out_the_rest),
        cmocka_unit_test(parts_come_early),           cmocka_unit_test(other_texts_are_not_held),
        cmocka_unit_test(templates_show_their_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
