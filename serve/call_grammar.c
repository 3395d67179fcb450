/* The grammar of an answer that must be a call: the reasoning that the model may write first, then calls in its own form whose
 * arguments match the schemas of the tools. The parser of tools.c reads every text of it as calls. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/schema.h"
#include "serve/api_parts.h"

/* How calls of a form are written: before the name, between name and arguments, behind them; before the first call and behind the
 * last one; between two calls. */
static const struct frame {
    enum serve_call_form form;
    const char *before, *between, *behind, *first, *last, *join;
} frames[] = {
    {SERVE_CALLS_TAGGED, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "", "", "\n"},
    {SERVE_CALLS_MISTRAL, "{\"name\": \"", "\", \"arguments\": ", "}", "[TOOL_CALLS][", "]", ", "},
    {SERVE_CALLS_ACTION, "{\"tool_name\": \"", "\", \"parameters\": ", "}", "<|START_ACTION|>[", "]<|END_ACTION|>", ", "},
    {SERVE_CALLS_BARRED, "{\"name\": \"", "\", \"arguments\": ", "}", "<|tool_call|>[", "]", ", "},
    {SERVE_CALLS_BARE, "{\"name\": \"", "\", \"parameters\": ", "}", "", "", "; "},
};

/* Mistral's later form: the name without quotes. */
static const struct frame named_frame = {SERVE_CALLS_MISTRAL, "[TOOL_CALLS]", "[ARGS]", "", "", "", ""};

static void put(struct serve_text *text, const char *bytes)
{
    serve_text_append(text, bytes, strlen(bytes));
}

/* A literal of GBNF. */
static void put_literal(struct serve_text *text, const char *bytes)
{
    char code[8];
    put(text, " \"");
    for (; *bytes; bytes++)
        serve_text_append(text, code, (size_t)snprintf(code, sizeof code, "\\x%02x", (unsigned char)*bytes));
    put(text, "\"");
}

/* Any text up to the mark, and the mark. Its first character comes in it once, so that a text that begins the mark in vain can
 * begin it again only there: rule `miss-i` is what follows i characters of the mark and is not the whole mark. */
static void put_text_to_mark(struct serve_text *text, const char *mark)
{
    char rule[128];
    const size_t n = strlen(mark);
    const unsigned first = (unsigned char)mark[0];
    for (size_t i = 1; i < n; i++) {
        const unsigned next = (unsigned char)mark[i];
        snprintf(rule, sizeof rule, "miss-%zu ::= [^\\x%02x\\x%02x] | \"\\x%02x\" miss-1", i, first, next, first);
        put(text, rule);
        if (i + 1 < n) {
            snprintf(rule, sizeof rule, " | \"\\x%02x\" miss-%zu", next, i + 1);
            put(text, rule);
        }
        put(text, "\n");
    }
    snprintf(rule, sizeof rule, "thought ::= ( [^\\x%02x] | \"\\x%02x\" miss-1 )*", first, first);
    put(text, rule);
    put_literal(text, mark);
    put(text, " \"\\n\"{0,2}\n");
}

/* Appends a grammar with each rule's name behind a prefix, so that those of several tools can stand in one. */
static void put_renamed(struct serve_text *text, const char *grammar, size_t tool)
{
    char prefix[24], quote = 0;
    bool in_name = false;
    const int n = snprintf(prefix, sizeof prefix, "tool-%zu-", tool);
    for (const char *c = grammar; *c; c++) {
        const bool is_letter = (*c >= 'a' && *c <= 'z');
        if (!quote && is_letter && !in_name)
            serve_text_append(text, prefix, (size_t)n);
        in_name = !quote && (is_letter || (in_name && ((*c >= '0' && *c <= '9') || *c == '-')));
        serve_text_append(text, c, 1);
        if (quote && *c == '\\' && c[1])
            serve_text_append(text, ++c, 1);
        else if (quote)
            quote = *c == quote ? 0 : quote;
        else if (*c == '"' || *c == '[')
            quote = *c == '"' ? '"' : ']';
    }
}

/* The schema of a tool's arguments, which are an object; a tool without parameters has none. A new reference; NULL: *error. */
static json_t *arguments_schema(json_t *tool, size_t i, struct serve_error *error)
{
    json_t *parameters = json_object_get(json_object_get(tool, "function"), "parameters");
    if (!parameters || json_is_null(parameters))
        return json_pack("{s:s, s:{}}", "type", "object", "properties");
    const json_t *type = json_object_get(parameters, "type");
    if (type && !(json_is_string(type) && strcmp(json_string_value(type), "object") == 0)) {
        serve_fail(error, 400, "'tools[%zu].function.parameters' must have the type 'object'", i);
        return NULL;
    }
    json_t *schema = json_copy(parameters);
    json_object_set_new(schema, "type", json_string("object"));
    return schema;
}

/* The rules of a tool's arguments and of a call of it, `call-i`. 0 or a negative status. */
static int put_tool(struct serve_text *text, json_t *tool, size_t i, const struct frame *frame, struct serve_error *error)
{
    struct butler_error err = {0};
    char rule[48];
    json_t *schema = arguments_schema(tool, i, error);
    if (!schema)
        return -error->status;
    char *grammar = schema_to_grammar(schema, &err);
    json_decref(schema);
    if (!grammar)
        return serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "'tools[%zu].function.parameters': %s", i,
                          err.message);
    put_renamed(text, grammar, i);
    free(grammar);
    snprintf(rule, sizeof rule, "call-%zu ::=", i);
    put(text, rule);
    put_literal(text, frame->before);
    put_literal(text, serve_tool_name(tool));
    put_literal(text, frame->between);
    snprintf(rule, sizeof rule, " tool-%zu-root", i);
    put(text, rule);
    put_literal(text, frame->behind);
    put(text, "\n");
    return 0;
}

static const struct frame *find_frame(const struct serve_api *api, unsigned forms)
{
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++)
        if (forms & frames[i].form)
            return frames[i].form == SERVE_CALLS_MISTRAL && strstr(serve_chat_template(api), "[ARGS]") ? &named_frame : &frames[i];
    return NULL;
}

/* The rule of the whole answer. */
static void put_root(struct serve_text *text, const struct serve_syntax *syntax, const struct frame *frame, bool one_call)
{
    const unsigned reasoning = syntax->open ? syntax->open : syntax->reasoning & (~syntax->reasoning + 1);
    const char *open = NULL, *close = NULL;
    serve_reasoning_marks((enum serve_reasoning_form)reasoning, &open, &close);
    if (close)
        put_text_to_mark(text, close);
    put(text, "root ::=");
    if (close && syntax->open) {
        put(text, " thought");
    } else if (close) {
        put(text, " (");
        put_literal(text, open);
        put(text, " thought )?");
    }
    put_literal(text, frame->first);
    put(text, " call");
    if (!one_call) {
        put(text, " (");
        put_literal(text, frame->join);
        put(text, " call )*");
    }
    put_literal(text, frame->last);
    put(text, "\n");
}

struct butler_grammar *serve_read_call_grammar(const struct serve_api *api, json_t *body, const struct serve_syntax *syntax,
                                               struct serve_error *error)
{
    json_t *tools, *tool;
    struct serve_tool_choice choice;
    struct serve_text text = {0}, calls = {0};
    struct butler_error err = {0};
    struct butler_grammar *grammar = NULL;
    char name[48];
    size_t i;
    if (error->status || serve_read_tools(body, &tools, error) < 0 || serve_read_tool_choice(body, &choice, error) < 0 ||
        !choice.required)
        return NULL;
    const struct frame *frame = find_frame(api, syntax->calls);
    if (!frame) {
        serve_fail(error, 501,
                   "'tool_choice' that requires a call is not supported with this chat template: it does not show a "
                   "form of calls that this server knows");
        return NULL;
    }
    json_array_foreach(tools, i, tool)
    {
        if (choice.name && strcmp(serve_tool_name(tool), choice.name) != 0)
            continue;
        if (put_tool(&text, tool, i, frame, error) < 0)
            goto done;
        snprintf(name, sizeof name, "%s call-%zu", calls.n ? " |" : "call ::=", i);
        put(&calls, name);
    }
    serve_text_append(&text, calls.bytes, calls.n);
    put(&text, "\n");
    put_root(&text, syntax, frame, syntax->one_call || choice.name);
    serve_text_append(&text, "", 1);
    grammar = butler_grammar_new(api->model, text.bytes, &err);
    if (!grammar)
        serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "'tools': %s", err.message);
done:
    serve_text_free(&text);
    serve_text_free(&calls);
    return grammar;
}
