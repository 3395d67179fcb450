/* From the text of an answer to its parts: an incremental parser of the forms in which models write reasoning and calls of tools.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/tools_parts.h"

/* Marks of gpt-oss's messages. */
static const char *const message_marks[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>"};

static bool has_messages(const char *template)
{
    return strstr(template, "<|channel|>") && strstr(template, "<|message|>");
}

static const struct call_form call_forms[] = {
    {SERVE_CALLS_TAGGED, "<tool_call>", "</tool_call>", false},
    {SERVE_CALLS_BARE, "<|python_tag|>", NULL, false},
    {SERVE_CALLS_MISTRAL, "[TOOL_CALLS]", NULL, true},
    {SERVE_CALLS_ACTION, "<|START_ACTION|>", "<|END_ACTION|>", true},
    {SERVE_CALLS_BARRED, "<|tool_call|>", "<|/tool_call|>", true},
    {SERVE_CALLS_BARRED, "functools", NULL, true},
    {SERVE_CALLS_LINE, "", NULL, false},
    {SERVE_CALLS_XML, "<function=", "</tool_call>", false}, /* where <tool_call> before it is missing */
    {SERVE_CALLS_FUNCTION, "<function=", "</function>", false},
    {SERVE_CALLS_RECIPIENT, ">>>", NULL, false},
};

static const struct reasoning_form reasoning_forms[] = {
    {SERVE_REASONING_THINK, "<think>", "</think>"},
    {SERVE_REASONING_MISTRAL, "[THINK]", "[/THINK]"},
    {SERVE_REASONING_COMMAND, "<|START_THINKING|>", "<|END_THINKING|>"},
};

/* ------------------------------------------------------------------------------------------------------- syntax */

unsigned serve_syntax_calls(const char *template)
{
    unsigned forms = 0;
    for (size_t i = 0; i < COUNT(call_forms); i++)
        if (!(call_forms[i].form & (SERVE_CALLS_BARE | SERVE_CALLS_RECIPIENT)) && *call_forms[i].open &&
            strstr(template, call_forms[i].open))
            forms |= call_forms[i].form;
    if (forms & SERVE_CALLS_XML)
        forms &= ~(unsigned)(strstr(template, "<tool_call>") ? SERVE_CALLS_FUNCTION : SERVE_CALLS_XML);
    if (strstr(template, ">>>all"))
        forms |= SERVE_CALLS_RECIPIENT;
    if (strstr(template, "<|tool|>")) /* Phi-4-mini's shows how tools are told, not how they are called */
        forms |= SERVE_CALLS_BARRED;
    if (has_messages(template))
        forms |= SERVE_CALLS_MESSAGE;
    if (!forms && strstr(template, "<|observation|>") && strstr(template, "<|assistant|>"))
        forms |= SERVE_CALLS_LINE;
    /* Templates of Llama 3.1 tell the form in words: an object with these names. */
    if (!forms && strstr(template, "\"name\"") && strstr(template, "\"parameters\""))
        forms |= SERVE_CALLS_BARE;
    return forms;
}

unsigned serve_syntax_reasoning(const char *template)
{
    unsigned forms = 0;
    for (size_t i = 0; i < COUNT(reasoning_forms); i++)
        if (strstr(template, reasoning_forms[i].open) || strstr(template, reasoning_forms[i].close))
            forms |= reasoning_forms[i].form;
    return has_messages(template) ? forms | SERVE_REASONING_MESSAGE : forms;
}

void serve_reasoning_marks(enum serve_reasoning_form form, const char **open, const char **close)
{
    for (size_t i = 0; i < COUNT(reasoning_forms); i++)
        if (reasoning_forms[i].form == form) {
            *open = reasoning_forms[i].open;
            *close = reasoning_forms[i].close;
        }
    if (form == SERVE_REASONING_MESSAGE) {
        *open = "<|channel|>analysis<|message|>";
        *close = "<|end|><|start|>assistant";
    }
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Bytes without the white space at their end. */
static size_t trim_end(const char *bytes, size_t n)
{
    while (n > 0 && is_space(bytes[n - 1]))
        n--;
    return n;
}

size_t serve_count_space(const char *bytes, size_t n)
{
    size_t i = 0;
    while (i < n && is_space(bytes[i]))
        i++;
    return i;
}

/* The form, of the set, one of whose marks ends a prompt, but for white space; 0: none. */
static unsigned form_at_end(unsigned reasoning, const char *prompt, size_t n, bool closes)
{
    n = trim_end(prompt, n);
    for (size_t i = 0; i < COUNT(reasoning_forms); i++) {
        const char *mark = closes ? reasoning_forms[i].close : reasoning_forms[i].open;
        const size_t n_mark = strlen(mark);
        if ((reasoning & reasoning_forms[i].form) && n >= n_mark && memcmp(prompt + n - n_mark, mark, n_mark) == 0)
            return reasoning_forms[i].form;
    }
    return 0;
}

unsigned serve_syntax_open(unsigned reasoning, const char *prompt, size_t n)
{
    return form_at_end(reasoning, prompt, n, false);
}

unsigned serve_syntax_closed(unsigned reasoning, const char *prompt, size_t n)
{
    return form_at_end(reasoning, prompt, n, true);
}

bool serve_syntax_in_recipient(unsigned calls, const char *prompt, size_t n)
{
    return (calls & SERVE_CALLS_RECIPIENT) && n >= 3 && memcmp(prompt + n - 3, ">>>", 3) == 0;
}

bool serve_is_text(const char *text, const char *bytes, size_t n)
{
    return text && strlen(text) == n && memcmp(text, bytes, n) == 0;
}

bool serve_syntax_is_mark(const char *bytes, size_t n)
{
    for (size_t i = 0; i < COUNT(call_forms); i++)
        if (serve_is_text(call_forms[i].open, bytes, n) || serve_is_text(call_forms[i].close, bytes, n))
            return true;
    for (size_t i = 0; i < COUNT(reasoning_forms); i++)
        if (serve_is_text(reasoning_forms[i].open, bytes, n) || serve_is_text(reasoning_forms[i].close, bytes, n))
            return true;
    for (size_t i = 0; i < COUNT(message_marks); i++)
        if (serve_is_text(message_marks[i], bytes, n))
            return true;
    return serve_is_text("[ARGS]", bytes, n);
}

/* ------------------------------------------------------------------------------------------------------ states */

void serve_write_part(struct serve_parser *parser, enum serve_part_kind kind, const char *bytes, size_t n)
{
    const struct serve_part part = {kind, kind >= SERVE_CALL_BEGIN ? parser->n_calls - 1 : 0, bytes, n};
    if (n > 0 || kind == SERVE_CALL_END)
        parser->write(parser->user, &part);
}

const char *serve_rest(const struct serve_parser *parser, size_t *n)
{
    *n = parser->held.n - parser->at;
    return *n ? parser->held.bytes + parser->at : "";
}

/* The rest, without the white space behind reasoning or a call. */
static const char *rest_behind_space(struct serve_parser *parser, size_t *n)
{
    const char *bytes = serve_rest(parser, n);
    if (parser->skip_space) {
        const size_t space = serve_count_space(bytes, *n);
        parser->skip_space = space == *n;
        parser->at += space;
        bytes += space;
        *n -= space;
    }
    return bytes;
}

static void write_content(struct serve_parser *parser, size_t n)
{
    size_t all;
    const char *bytes = serve_rest(parser, &all);
    parser->has_begun |= serve_count_space(bytes, n) < n;
    serve_write_part(parser, SERVE_CONTENT, bytes, n);
    parser->at += n;
}

size_t serve_count_partial(const char *bytes, size_t n, const char *mark)
{
    for (size_t k = strlen(mark) - 1; k > 0; k--)
        if (k <= n && memcmp(bytes + n - k, mark, k) == 0)
            return k;
    return 0;
}

/* Whether the bytes may be a tool's name, as far as they go. */
static bool begins_name(const struct serve_syntax *syntax, const char *bytes, size_t n)
{
    for (int i = 0; i < syntax->n_names; i++) {
        const size_t n_name = strlen(syntax->names[i]);
        if (n > 0 && memcmp(syntax->names[i], bytes, n < n_name ? n : n_name) == 0)
            return true;
    }
    return false;
}

/* The earliest mark of the syntax: its place, and *form or *reasoning; n: none. *certain: bytes before what may become one. */
static size_t find_mark(const struct serve_parser *parser, const char *bytes, size_t n, const struct call_form **form,
                        const struct reasoning_form **reasoning, size_t *certain)
{
    const struct serve_syntax *syntax = parser->syntax;
    const size_t space = serve_count_space(bytes, n);
    const bool at_start = !parser->has_begun;
    size_t first = n;
    *certain = n;
    *form = NULL;
    *reasoning = NULL;
    for (size_t i = 0; i < COUNT(call_forms); i++) {
        if (!(syntax->calls & call_forms[i].form))
            continue;
        if (call_forms[i].form == SERVE_CALLS_LINE) {
            if (at_start && begins_name(syntax, bytes + space, n - space)) {
                first = space;
                *form = &call_forms[i];
            }
            continue;
        }
        const char *at = memmem(bytes, n, call_forms[i].open, strlen(call_forms[i].open));
        const size_t left = n - serve_count_partial(bytes, n, call_forms[i].open);
        *certain = left < *certain ? left : *certain;
        if (at && (size_t)(at - bytes) < first) {
            first = (size_t)(at - bytes);
            *form = &call_forms[i];
        }
        if (call_forms[i].form == SERVE_CALLS_BARE && at_start && space < n && bytes[space] == '{') {
            first = space;
            *form = &call_forms[i];
        }
    }
    for (size_t i = 0; i < COUNT(reasoning_forms) && at_start && !parser->has_thought; i++) {
        const size_t n_mark = strlen(reasoning_forms[i].open), n_left = n - space < n_mark ? n - space : n_mark;
        if (!(syntax->reasoning & reasoning_forms[i].form) || memcmp(bytes + space, reasoning_forms[i].open, n_left) != 0)
            continue;
        if (n_left < n_mark)
            *certain = space < *certain ? space : *certain;
        else
            *reasoning = &reasoning_forms[i];
    }
    return *reasoning ? space : first;
}

/* Whether the text may be a call as a whole. */
static bool begins_whole(const struct serve_parser *parser, const char *bytes, size_t n)
{
    const struct serve_syntax *syntax = parser->syntax;
    const size_t space = serve_count_space(bytes, n);
    /* Mistral's marks begin with a bracket too. */
    const bool has_lists = !(syntax->calls & SERVE_CALLS_MISTRAL) && !(syntax->reasoning & SERVE_REASONING_MISTRAL);
    return (syntax->calls & SERVE_CALLS_WHOLE) && !parser->has_begun && space < n &&
           (bytes[space] == '{' || bytes[space] == '`' || (bytes[space] == '[' && has_lists));
}

static bool step_text(struct serve_parser *parser, bool end)
{
    const struct call_form *form;
    const struct reasoning_form *reasoning;
    size_t n, certain;
    const char *bytes = rest_behind_space(parser, &n);
    if (n == 0)
        return false;
    if (begins_whole(parser, bytes, n)) {
        parser->state = IN_WHOLE;
        return true;
    }
    const size_t at = find_mark(parser, bytes, n, &form, &reasoning, &certain);
    if (reasoning) {
        parser->at += at + strlen(reasoning->open);
        parser->reasoning = reasoning;
        parser->state = IN_REASONING;
        parser->skip_space = true;
        return true;
    }
    if (form) {
        const size_t n_text = trim_end(bytes, at);
        parser->lead = at - n_text + (bytes[at] == '{' ? 0 : strlen(form->open));
        parser->form = form;
        parser->is_first = true;
        parser->state = IN_HEAD;
        write_content(parser, n_text);
        return true;
    }
    /* White space waits too: before a call it is no content. */
    const size_t n_text = end ? n : trim_end(bytes, certain);
    write_content(parser, n_text);
    return n_text > 0;
}

static bool step_reasoning(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = rest_behind_space(parser, &n), *close = parser->reasoning->close;
    const char *at = n ? memmem(bytes, n, close, strlen(close)) : NULL;
    size_t certain = at ? (size_t)(at - bytes) : n - serve_count_partial(bytes, n, close);
    if (at || !end)
        certain = trim_end(bytes, certain);
    serve_write_part(parser, SERVE_REASONING, bytes, certain);
    parser->at += at ? (size_t)(at - bytes) + strlen(close) : end ? n : certain;
    if (!at)
        return certain > 0;
    parser->has_thought = parser->skip_space = true;
    parser->state = IN_TEXT;
    return true;
}

int serve_find_tool(const struct serve_syntax *syntax, const char *name, size_t n)
{
    for (int i = 0; i < syntax->n_names; i++)
        if (serve_is_text(syntax->names[i], name, n))
            return i;
    return -1;
}

void serve_begin_call(struct serve_parser *parser, int tool)
{
    const char *name = parser->syntax->names[tool];
    parser->n_calls++;
    parser->tool = tool;
    parser->has_begun = true;
    serve_write_part(parser, SERVE_CALL_BEGIN, name, strlen(name));
}

void serve_end_call(struct serve_parser *parser, enum serve_parser_state next)
{
    serve_write_part(parser, SERVE_CALL_END, "", 0);
    parser->skip_space = true;
    parser->state = parser->syntax->one_call ? DROPPING : next;
}

static bool step_head(struct serve_parser *parser, bool end)
{
    struct call_head head;
    size_t n;
    const char *bytes = serve_rest(parser, &n);
    int rc = serve_read_head(parser, bytes + parser->lead, n - parser->lead, &head);
    if (rc == 0 && !end && n - parser->lead <= SERVE_MAX_HEAD)
        return false;
    if (rc > 0 && head.is_text) {
        parser->at += parser->lead + head.n;
        parser->has_begun = true;
        parser->skip_space = false;
        parser->state = IN_TEXT;
        return true;
    }
    const int tool = rc > 0 && head.n <= SERVE_MAX_HEAD ? serve_find_tool(parser->syntax, head.name, head.n_name) : -1;
    if (tool < 0) {
        const size_t n_more =
            parser->lead < n && parser->form->form == SERVE_CALLS_BARE; /* the brace, or it would be found again */
        parser->state = IN_TEXT;
        write_content(parser, parser->lead + n_more);
        parser->has_begun = true;
        parser->skip_space = false;
        return true;
    }
    parser->at += parser->lead + head.n;
    parser->is_object = head.is_object;
    parser->depth = 0;
    parser->in_string = parser->escaped = parser->in_value = parser->has_value = false;
    parser->state = head.is_xml ? IN_PARAMETERS : IN_ARGUMENTS;
    serve_begin_call(parser, tool);
    if (!head.has_arguments) {
        serve_write_part(parser, SERVE_CALL_ARGUMENTS, "{}", 2);
        serve_end_call(parser, IN_TAIL); /* an object: a name alone has arguments */
    }
    return true;
}

static bool step_arguments(struct serve_parser *parser, bool end)
{
    size_t n, i = 0;
    const char *bytes = serve_rest(parser, &n);
    bool is_complete = false;
    while (i < n && !is_complete) {
        const char c = bytes[i++];
        if (parser->in_string) {
            parser->in_string = parser->escaped || c != '"';
            parser->escaped = !parser->escaped && c == '\\';
        } else if (c == '"') {
            parser->in_string = true;
        } else if (c == '{' || c == '[') {
            parser->depth++;
        } else if (c == '}' || c == ']') {
            is_complete = --parser->depth == 0;
        }
    }
    serve_write_part(parser, SERVE_CALL_ARGUMENTS, bytes, i);
    parser->at += i;
    parser->is_cut = end && !is_complete;
    if (is_complete || end)
        serve_end_call(parser, parser->is_object ? IN_TAIL : BEHIND_LIST);
    return i > 0 || end;
}

static bool step_tail(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = serve_rest(parser, &n);
    struct cursor c = {bytes, bytes + n};
    const int rc = serve_read_tail(&c);
    if (rc == 0 && !end && n <= SERVE_MAX_HEAD)
        return false;
    parser->at += rc > 0 ? (size_t)(c.at - bytes) : 0;
    parser->state = rc > 0 ? BEHIND_CALL : IN_TEXT;
    return true;
}

static bool step_behind_call(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = serve_rest(parser, &n);
    size_t next = serve_count_space(bytes, n);
    if (!parser->form->is_list && parser->form->form != SERVE_CALLS_BARE) {
        parser->state = BEHIND_LIST;
        return true;
    }
    if (next == n && !end)
        return false;
    parser->state = IN_TEXT;
    if (next == n)
        return true;
    if (parser->form->is_list && bytes[next] == ']') {
        parser->at += next + 1;
        parser->state = BEHIND_LIST;
    } else if (bytes[next] == (parser->form->is_list ? ',' : ';')) {
        parser->lead = next + 1;
        parser->is_first = false;
        parser->state = IN_HEAD;
    } else if (parser->form->form == SERVE_CALLS_BARE && bytes[next] == '{') {
        parser->lead = next;
        parser->state = IN_HEAD;
    }
    return true;
}

static bool step_behind_list(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = serve_rest(parser, &n);
    struct cursor c = {bytes, bytes + n};
    serve_skip_space(&c);
    const int rc = parser->form->close ? serve_read_text(&c, parser->form->close) : -1;
    if (rc == 0 && !end)
        return false;
    parser->at += rc > 0 ? (size_t)(c.at - bytes) : 0;
    parser->state = IN_TEXT;
    return true;
}

static bool step_dropping(struct serve_parser *parser, bool end)
{
    (void)end;
    parser->at = parser->held.n;
    return false;
}

/* ------------------------------------------------------------------------------------------------------ parser */

struct serve_parser *serve_parser_new(const struct serve_syntax *syntax, void (*write)(void *user, const struct serve_part *part),
                                      void *user)
{
    struct serve_parser *parser = serve_alloc(1, sizeof *parser);
    *parser = (struct serve_parser){.syntax = syntax, .write = write, .user = user};
    for (size_t i = 0; i < COUNT(reasoning_forms); i++)
        if (syntax->open == (unsigned)reasoning_forms[i].form) {
            parser->reasoning = &reasoning_forms[i];
            parser->state = IN_REASONING;
            parser->skip_space = true;
        }
    for (size_t i = 0; i < COUNT(call_forms) && syntax->in_recipient; i++)
        if (call_forms[i].form == SERVE_CALLS_RECIPIENT) {
            parser->form = &call_forms[i];
            parser->state = IN_HEAD;
        }
    if ((syntax->calls & SERVE_CALLS_MESSAGE) || (syntax->reasoning & SERVE_REASONING_MESSAGE))
        parser->state = IN_HEADER;
    return parser;
}

static void run(struct serve_parser *parser, bool end)
{
    static bool (*const steps[])(struct serve_parser * parser, bool end) = {
        [IN_TEXT] = step_text,
        [IN_REASONING] = step_reasoning,
        [IN_HEAD] = step_head,
        [IN_ARGUMENTS] = step_arguments,
        [IN_PARAMETERS] = serve_step_parameters,
        [IN_TAIL] = step_tail,
        [BEHIND_CALL] = step_behind_call,
        [BEHIND_LIST] = step_behind_list,
        [IN_WHOLE] = serve_step_whole,
        [IN_HEADER] = serve_step_header,
        [IN_MESSAGE] = serve_step_message,
        [DROPPING] = step_dropping,
    };
    while (steps[parser->state](parser, end)) {
    }
    const size_t n = parser->held.n - parser->at;
    if (n)
        memmove(parser->held.bytes, parser->held.bytes + parser->at, n);
    parser->held.n = n;
    parser->at = 0;
}

void serve_parser_push(struct serve_parser *parser, const char *bytes, size_t n)
{
    if (n == 0)
        return;
    serve_text_append(&parser->held, bytes, n);
    run(parser, false);
}

void serve_parser_end(struct serve_parser *parser)
{
    run(parser, true);
}

bool serve_parser_thinks(const struct serve_parser *parser)
{
    return parser->state == IN_REASONING || (parser->state == IN_MESSAGE && parser->message == SERVE_REASONING);
}

int serve_parser_n_calls(const struct serve_parser *parser)
{
    return parser->n_calls;
}

bool serve_parser_has_whole_calls(const struct serve_parser *parser)
{
    return parser->n_calls > 0 && !parser->is_cut;
}

void serve_parser_free(struct serve_parser *parser)
{
    if (!parser)
        return;
    butler_buffer_free(&parser->held);
    free(parser);
}
