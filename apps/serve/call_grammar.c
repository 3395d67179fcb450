/* The grammar of an answer that must be a call, or a call or JSON of a format: the reasoning that the model may write first, then
 * calls in its own form whose arguments match the schemas of the tools, or the text. The parser of tools.c reads every text of the
 * calls as such. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/schema.h"
#include "serve/call_grammar.h"

/* How calls of a form are written: before the name, between name and arguments, behind them; before the first call and behind the
 * last one; between two calls, NULL: there is only one. */
static const struct frame {
    enum serve_call_form form;
    const char *before, *between, *behind, *first, *last, *join;
} frames[] = {
    {SERVE_CALLS_XML, "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "", "", "\n"},
    {SERVE_CALLS_TAGGED, "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "", "", "\n"},
    {SERVE_CALLS_MISTRAL, "{\"name\": \"", "\", \"arguments\": ", "}", "[TOOL_CALLS][", "]", ", "},
    {SERVE_CALLS_ACTION, "{\"tool_name\": \"", "\", \"parameters\": ", "}", "<|START_ACTION|>[", "]<|END_ACTION|>", ", "},
    {SERVE_CALLS_BARRED, "{\"name\": \"", "\", \"arguments\": ", "}", "<|tool_call|>[", "]", ", "},
    {SERVE_CALLS_MESSAGE, "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", "", "", NULL},
    {SERVE_CALLS_LINE, "", "\n", "", "", "", NULL},
    {SERVE_CALLS_FUNCTION, "<function=", ">", "</function>", "", "", ""},
    {SERVE_CALLS_RECIPIENT, "", "\n", "", ">>>", "", ">>>"},
    {SERVE_CALLS_BARE, "{\"name\": \"", "\", \"parameters\": ", "}", "", "", "; "},
};

/* Mistral's later form: the name without quotes. */
static const struct frame named_frame = {SERVE_CALLS_MISTRAL, "[TOOL_CALLS]", "[ARGS]", "", "", "", ""};

void serve_put(struct butler_buffer *text, const char *bytes)
{
    serve_text_append(text, bytes, strlen(bytes));
}

void serve_put_literal(struct butler_buffer *text, const char *bytes)
{
    char code[8];
    serve_put(text, " \"");
    for (; *bytes; bytes++) {
        const unsigned char c = (unsigned char)*bytes;
        const int n = snprintf(code, sizeof code, c < 0x80 ? "\\x%02x" : "%c", c);
        serve_text_append(text, code, (size_t)n);
    }
    serve_put(text, "\"");
}

/* The control token that is spelled by the mark at the beginning of the text, *n bytes of it; -1: there is none. */
static int32_t find_control(const struct butler_model *model, const char *bytes, size_t *n)
{
    int32_t id = -1;
    size_t n_text;
    for (*n = strnlen(bytes, 24); *n > 0 && !serve_syntax_is_mark(bytes, *n); --*n) {
    }
    if (*n == 0 || butler_tokenize(model, bytes, *n, BUTLER_PARSE_SPECIAL, &id, 1, NULL) != 1)
        return -1;
    butler_token_bytes(model, id, &n_text);
    return n_text == 0 ? id : -1;
}

void serve_put_marked(struct butler_buffer *text, const struct butler_model *model, const char *bytes)
{
    char part[256];
    size_t n_part = 0, n;
    for (;; bytes += n) {
        const int32_t id = find_control(model, bytes, &n);
        if ((id >= 0 || !*bytes || n_part + 1 == sizeof part) && n_part > 0) {
            part[n_part] = 0;
            serve_put_literal(text, part);
            n_part = 0;
        }
        if (!*bytes)
            return;
        if (id >= 0) {
            snprintf(part, sizeof part, " <[%d]>", (int)id);
            serve_put(text, part);
        } else {
            part[n_part++] = *bytes;
            n = 1;
        }
    }
}

/* The first character of the mark comes in it once, so that a text that begins the mark in vain can begin it again only there: rule
 * `NAME-miss-i` is what follows i characters of the mark and is not the whole mark. */
void serve_put_text_to_mark(struct butler_buffer *text, const struct butler_model *model, const char *name, const char *mark)
{
    char rule[256];
    const size_t n = strlen(mark);
    const unsigned first = (unsigned char)mark[0];
    for (size_t i = 1; i < n; i++) {
        const unsigned next = (unsigned char)mark[i];
        snprintf(rule, sizeof rule, "%s-miss-%zu ::= [^\\x%02x\\x%02x] | \"\\x%02x\" %s-miss-1", name, i, first, next, first, name);
        serve_put(text, rule);
        if (i + 1 < n) {
            snprintf(rule, sizeof rule, " | \"\\x%02x\" %s-miss-%zu", next, name, i + 1);
            serve_put(text, rule);
        }
        serve_put(text, "\n");
    }
    snprintf(rule, sizeof rule, "%s ::= ( [^\\x%02x] | \"\\x%02x\" %s-miss-1 )*", name, first, first, name);
    serve_put(text, rule);
    serve_put_marked(text, model, mark);
    serve_put(text, "\n");
}

void serve_put_renamed(struct butler_buffer *text, const char *grammar, const char *prefix)
{
    char quote = 0;
    bool in_name = false;
    for (const char *c = grammar; *c; c++) {
        const bool is_letter = (*c >= 'a' && *c <= 'z');
        if (!quote && is_letter && !in_name) {
            serve_put(text, prefix);
            serve_put(text, "-");
        }
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

/* What an answer may be behind its reasoning: calls, if there is a frame, or a text, if `prefix` is the beginning of it. */
struct answer {
    const struct frame *frame; /* or NULL */
    bool one_call, has_bare;   /* has_bare: rule "bare" is a call without the template's marks */
    const char *text;          /* before rule "text-root"; NULL: no text */
    json_t *not_held;          /* array, see serve_make_chat_grammar */
    const json_t *left_out;    /* of the chat */
};

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

/* The rules of a tool's arguments, `tool-i-root`. 0 or a negative status. */
static int put_arguments(struct butler_buffer *text, const struct butler_model *model, json_t *tool, size_t i, const char *prefix,
                         const struct answer *answer, struct serve_error *error)
{
    struct butler_error err = {0};
    const bool strict = json_is_true(json_object_get(json_object_get(tool, "function"), "strict"));
    json_t *dropped = strict ? NULL : json_array(), *place;
    size_t k;
    json_t *schema = arguments_schema(tool, i, error);
    if (!schema) {
        json_decref(dropped);
        return -error->status;
    }
    char *grammar = NULL;
    if (answer->frame->form == SERVE_CALLS_XML)
        serve_put_xml_parameters(text, model, schema, prefix, dropped, error);
    else if ((grammar = schema_to_wide_grammar(schema, dropped, &err)))
        serve_put_renamed(text, grammar, prefix);
    else
        serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "%s", err.message);
    json_array_foreach(dropped, k, place)
    {
        json_array_append_new(answer->not_held,
                              json_sprintf("tools[%zu]%s", serve_tool_place(answer->left_out, i), json_string_value(place)));
    }
    json_decref(dropped);
    json_decref(schema);
    free(grammar);
    if (!error->status)
        return 0;
    char why[sizeof error->message];
    memcpy(why, error->message, sizeof why);
    return serve_fail(error, error->status, "'tools[%zu].function.parameters': %.500s", i, why);
}

/* The rules of a tool's arguments and of a call of it, `call-i`. 0 or a negative status. */
static int put_tool(struct butler_buffer *text, const struct butler_model *model, json_t *tool, size_t i,
                    const struct answer *answer, struct serve_error *error)
{
    const struct frame *frame = answer->frame;
    char prefix[32], rule[64];
    snprintf(prefix, sizeof prefix, "tool-%zu", i);
    if (put_arguments(text, model, tool, i, prefix, answer, error) < 0)
        return -error->status;
    snprintf(rule, sizeof rule, "call-%zu ::=", i);
    serve_put(text, rule);
    serve_put_marked(text, model, frame->before);
    serve_put_literal(text, serve_tool_name(tool));
    serve_put_marked(text, model, frame->between);
    snprintf(rule, sizeof rule, " %s-root", prefix);
    serve_put(text, rule);
    serve_put_marked(text, model, frame->behind);
    serve_put(text, "\n");
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
static void put_root(struct butler_buffer *text, const struct butler_model *model, const struct serve_syntax *syntax,
                     const struct answer *answer)
{
    const unsigned reasoning = syntax->open ? syntax->open : syntax->reasoning & (~syntax->reasoning + 1);
    const char *open = NULL, *close = NULL, *space = reasoning == SERVE_REASONING_MESSAGE ? "" : " \"\\n\"{0,2}";
    const struct frame *frame = answer->frame;
    serve_reasoning_marks((enum serve_reasoning_form)reasoning, &open, &close);
    if (close)
        serve_put_text_to_mark(text, model, "thought", close);
    serve_put(text, "root ::=");
    if (close && !syntax->open) {
        serve_put(text, " (");
        serve_put_marked(text, model, open);
    }
    if (close) {
        serve_put(text, " thought");
        serve_put(text, space);
        serve_put(text, syntax->open ? "" : " )?");
    }
    serve_put(text, " (");
    if (frame) {
        if (!syntax->in_recipient)
            serve_put_marked(text, model, frame->first);
        serve_put(text, " call");
        if (!answer->one_call && frame->join) {
            serve_put(text, " (");
            serve_put_marked(text, model, frame->join);
            serve_put(text, " call )*");
        }
        serve_put_marked(text, model, frame->last);
        serve_put(text, answer->has_bare ? " | bare" : "");
        serve_put(text, answer->text ? " |" : "");
    }
    if (answer->text) {
        serve_put_marked(text, model, answer->text);
        serve_put(text, " text-root");
    }
    serve_put(text, " )\n");
}

/* Rules "call" of the tools that may be called, and "bare" where the parser reads such calls. 0 or a negative status. */
static int put_calls(struct butler_buffer *text, const struct serve_api *api, json_t *tools, const char *only,
                     struct answer *answer, struct serve_error *error)
{
    struct butler_buffer calls = {0}, bare = {0};
    json_t *tool;
    char name[48];
    size_t i;
    json_array_foreach(tools, i, tool)
    {
        if (only && strcmp(serve_tool_name(tool), only) != 0)
            continue;
        if (put_tool(text, api->model, tool, i, answer, error) < 0)
            break;
        snprintf(name, sizeof name, "%s call-%zu", calls.n ? " |" : "call ::=", i);
        serve_put(&calls, name);
        serve_put(&bare, bare.n ? " |" : "bare ::=");
        serve_put_literal(&bare, "{\"name\": \"");
        serve_put_literal(&bare, serve_tool_name(tool));
        serve_put_literal(&bare, "\", \"arguments\": ");
        snprintf(name, sizeof name, " tool-%zu-root", i);
        serve_put(&bare, name);
        serve_put_literal(&bare, "}");
    }
    serve_text_append(text, calls.bytes, calls.n);
    serve_put(text, "\n");
    if (answer->has_bare && bare.n) {
        serve_text_append(text, bare.bytes, bare.n);
        serve_put(text, "\n");
    }
    butler_buffer_free(&calls);
    butler_buffer_free(&bare);
    return -error->status;
}

/* The grammar of calls, where they are required or tools stand beside a format; format: GBNF of the text, or NULL. */
static struct butler_grammar *make_grammar(const struct serve_api *api, const struct serve_chat *chat,
                                           const struct serve_syntax *syntax, const char *format, json_t *not_held,
                                           struct serve_error *error)
{
    json_t *tools = chat->tools;
    const struct serve_tool_choice *choice = &chat->choice;
    const bool is_message = (syntax->calls & SERVE_CALLS_MESSAGE) || (syntax->reasoning & SERVE_REASONING_MESSAGE);
    struct answer answer = {.frame = tools ? find_frame(api, syntax->calls) : NULL,
                            .one_call = syntax->one_call || choice->name,
                            .not_held = not_held,
                            .left_out = chat->left_out};
    struct butler_buffer text = {0};
    struct butler_error err = {0};
    struct butler_grammar *grammar = NULL;
    if (choice->required && !answer.frame) {
        serve_fail(error, 400,
                   "'tool_choice' that requires a call is not supported with this chat template: it does not show a "
                   "form of calls that this server knows");
        return NULL;
    }
    if (format) {
        answer.text = is_message ? "<|channel|>final<|message|>" : syntax->in_recipient ? "all\n" : "";
        answer.has_bare = (syntax->calls & SERVE_CALLS_WHOLE) && answer.frame && answer.frame->form != SERVE_CALLS_XML;
        serve_put_renamed(&text, format, "text");
        serve_put(&text, "\n");
    }
    if (answer.frame && put_calls(&text, api, tools, choice->name, &answer, error) < 0)
        goto done;
    put_root(&text, api->model, syntax, &answer);
    serve_text_append(&text, "", 1);
    grammar = butler_grammar_new(api->model, text.bytes, &err);
    if (!grammar)
        serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "'%s': %s", tools ? "tools" : "response_format",
                   err.message);
done:
    butler_buffer_free(&text);
    return grammar;
}

struct butler_grammar *serve_make_chat_grammar(const struct serve_api *api, const struct serve_chat *chat, json_t *body,
                                               const struct serve_syntax *syntax, json_t *not_held, struct serve_error *error)
{
    const bool required = chat->choice.required;
    struct butler_error err = {0};
    struct butler_grammar *grammar = NULL;
    bool is_json;
    if (error->status)
        return NULL;
    char *format = serve_read_constraint_text(body, &is_json, error);
    if (!error->status && required && format && !is_json)
        serve_fail(error, 400, "'tool_choice' that requires a call excludes 'grammar'");
    else if (!error->status && (required || is_json))
        grammar = make_grammar(api, chat, syntax, required ? NULL : format, not_held, error);
    else if (!error->status && format && !(grammar = butler_grammar_new(api->model, format, &err)))
        serve_fail(error, err.code == BUTLER_ERROR_MEMORY ? 500 : 400, "'grammar': %s", err.message);
    free(format);
    return grammar;
}

char *serve_not_held_header(const json_t *not_held)
{
    enum { MAX_LINE = 1000 };
    struct butler_buffer text = {0};
    const json_t *place;
    size_t i;
    json_array_foreach((json_t *)not_held, i, place)
    {
        serve_put(&text, i ? ", " : "Butler-Not-Held: ");
        if (text.n > MAX_LINE) {
            serve_put(&text, "...");
            break;
        }
        for (const char *c = json_string_value(place); *c; c++) { /* names come from the client: no bytes that end a line */
            char code[8];
            const bool plain = *c > ' ' && *c < 0x7f && *c != ',' && *c != '%';
            snprintf(code, sizeof code, plain ? "%c" : "%%%02X", (unsigned char)*c);
            serve_put(&text, code);
        }
    }
    serve_text_append(&text, text.n ? "\r\n" : "", text.n ? 3 : 1);
    if (text.n > 1)
        return text.bytes;
    butler_buffer_free(&text);
    return NULL;
}
