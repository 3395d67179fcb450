/* From the text of an answer to its parts: an incremental parser of the forms in which models write reasoning and calls of tools.
 */
#include <stdlib.h>
#include <string.h>

#include "serve/tools.h"

enum { MAX_HEAD = 1024 }; /* bytes before the arguments of a call: what is longer is no call */

static const struct call_form {
    enum serve_call_form form;
    const char *open, *close; /* close: behind the call or the list, may be missing; NULL: there is none */
    bool is_list;
} call_forms[] = {
    {SERVE_CALLS_TAGGED, "<tool_call>", "</tool_call>", false},
    {SERVE_CALLS_BARE, "<|python_tag|>", NULL, false},
    {SERVE_CALLS_MISTRAL, "[TOOL_CALLS]", NULL, true},
    {SERVE_CALLS_ACTION, "<|START_ACTION|>", "<|END_ACTION|>", true},
    {SERVE_CALLS_BARRED, "<|tool_call|>", "<|/tool_call|>", true},
};

static const struct reasoning_form {
    enum serve_reasoning_form form;
    const char *open, *close;
} reasoning_forms[] = {
    {SERVE_REASONING_THINK, "<think>", "</think>"},
    {SERVE_REASONING_MISTRAL, "[THINK]", "[/THINK]"},
    {SERVE_REASONING_COMMAND, "<|START_THINKING|>", "<|END_THINKING|>"},
};

#define COUNT(array) (sizeof(array) / sizeof *(array))

enum state {
    IN_TEXT,
    IN_REASONING,
    IN_HEAD,      /* from the opening mark to the arguments */
    IN_ARGUMENTS, /* JSON: passed on as it comes */
    IN_TAIL,      /* from the arguments to the end of the call's object */
    BEHIND_CALL,  /* a closing mark, or the next call of a list */
    BEHIND_LIST,  /* a closing mark */
    DROPPING,
};

struct serve_parser {
    const struct serve_syntax *syntax;
    void (*write)(void *user, const struct serve_part *part);
    void *user;
    struct serve_text held; /* bytes that are not certain yet, from `at` on */
    size_t at;
    enum state state;
    const struct call_form *form;
    const struct reasoning_form *reasoning;
    size_t lead;    /* bytes before the head: white space and the mark, which are content if it is no call */
    bool is_first;  /* of a list */
    bool is_object; /* the call is an object with a name: a brace follows the arguments */
    bool has_begun; /* there was content: reasoning and bare calls come before it */
    bool has_thought;
    bool skip_space; /* behind reasoning and calls */
    int n_calls, depth;
    bool in_string, escaped;
};

/* ------------------------------------------------------------------------------------------------------- syntax */

unsigned serve_syntax_calls(const char *template)
{
    unsigned forms = 0;
    for (size_t i = 0; i < COUNT(call_forms); i++)
        if (call_forms[i].form != SERVE_CALLS_BARE && strstr(template, call_forms[i].open))
            forms |= call_forms[i].form;
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
    return forms;
}

void serve_reasoning_marks(enum serve_reasoning_form form, const char **open, const char **close)
{
    for (size_t i = 0; i < COUNT(reasoning_forms); i++)
        if (reasoning_forms[i].form == form) {
            *open = reasoning_forms[i].open;
            *close = reasoning_forms[i].close;
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

static size_t count_space(const char *bytes, size_t n)
{
    size_t i = 0;
    while (i < n && is_space(bytes[i]))
        i++;
    return i;
}

unsigned serve_syntax_open(unsigned reasoning, const char *prompt, size_t n)
{
    n = trim_end(prompt, n);
    for (size_t i = 0; i < COUNT(reasoning_forms); i++) {
        const size_t n_mark = strlen(reasoning_forms[i].open);
        if ((reasoning & reasoning_forms[i].form) && n >= n_mark &&
            memcmp(prompt + n - n_mark, reasoning_forms[i].open, n_mark) == 0)
            return reasoning_forms[i].form;
    }
    return 0;
}

static bool is_text(const char *text, const char *bytes, size_t n)
{
    return text && strlen(text) == n && memcmp(text, bytes, n) == 0;
}

bool serve_syntax_is_mark(const char *bytes, size_t n)
{
    for (size_t i = 0; i < COUNT(call_forms); i++)
        if (is_text(call_forms[i].open, bytes, n) || is_text(call_forms[i].close, bytes, n))
            return true;
    for (size_t i = 0; i < COUNT(reasoning_forms); i++)
        if (is_text(reasoning_forms[i].open, bytes, n) || is_text(reasoning_forms[i].close, bytes, n))
            return true;
    return is_text("[ARGS]", bytes, n);
}

/* ---------------------------------------------------------------------------------------------- heads of calls
 *
 * Readers take a cursor and return 1: read; 0: more text is needed; -1: it is something else. */

struct cursor {
    const char *at, *end;
};

static void skip_space(struct cursor *c)
{
    c->at += count_space(c->at, (size_t)(c->end - c->at));
}

static int read_text(struct cursor *c, const char *text)
{
    for (; *text; text++, c->at++) {
        if (c->at == c->end)
            return 0;
        if (*c->at != *text)
            return -1;
    }
    return 1;
}

/* A string of JSON; *bytes[*n]: what is between the quotes. */
static int read_string(struct cursor *c, const char **bytes, size_t *n)
{
    int rc = read_text(c, "\"");
    if (rc <= 0)
        return rc;
    *bytes = c->at;
    for (; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && ++c->at == c->end)
            return 0;
    *n = (size_t)(c->at - *bytes);
    return read_text(c, "\"");
}

/* "key": */
static int read_key(struct cursor *c, const char **key, size_t *n)
{
    skip_space(c);
    int rc = read_string(c, key, n);
    if (rc <= 0)
        return rc;
    skip_space(c);
    rc = read_text(c, ":");
    skip_space(c);
    return rc;
}

/* A string or a number, which is of no interest. */
static int skip_scalar(struct cursor *c)
{
    const char *bytes;
    size_t n;
    if (c->at < c->end && *c->at == '"')
        return read_string(c, &bytes, &n);
    const char *start = c->at;
    while (c->at < c->end && ((*c->at >= '0' && *c->at <= '9') || *c->at == '-' || *c->at == '.'))
        c->at++;
    return c->at == c->end ? 0 : c->at > start ? 1 : -1;
}

struct head {
    const char *name;
    size_t n_name, n; /* n: bytes up to the arguments */
    bool is_object, has_arguments;
};

/* From behind the brace of the call's object to the arguments. */
static int read_members(struct cursor *c, struct head *head)
{
    const char *key;
    size_t n;
    for (;;) {
        int rc = read_key(c, &key, &n);
        if (rc <= 0)
            return rc;
        if (is_text("arguments", key, n) || is_text("parameters", key, n)) {
            head->has_arguments = true;
            if (c->at == c->end)
                return 0;
            return head->name && *c->at == '{' ? 1 : -1;
        }
        const bool is_name = is_text("name", key, n) || is_text("tool_name", key, n);
        rc = is_name ? read_string(c, &head->name, &head->n_name) : skip_scalar(c);
        if (rc <= 0)
            return rc;
        skip_space(c);
        if (c->at == c->end)
            return 0;
        if (*c->at == '}')
            return head->name ? 1 : -1;
        if (*c->at++ != ',')
            return -1;
    }
}

size_t serve_count_name(const char *bytes, size_t n)
{
    size_t i = 0;
    while (i < n && bytes[i] && strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.:/", bytes[i]))
        i++;
    return i;
}

/* name[ARGS]{ */
static int read_named(struct cursor *c, struct head *head)
{
    head->name = c->at;
    head->n_name = serve_count_name(c->at, (size_t)(c->end - c->at));
    c->at += head->n_name;
    head->is_object = false;
    head->has_arguments = true;
    const int rc = read_text(c, "[ARGS]");
    if (rc <= 0)
        return rc;
    skip_space(c);
    return c->at == c->end ? 0 : *c->at == '{' ? 1 : -1;
}

static int read_head(const struct serve_parser *parser, const char *bytes, size_t n, struct head *head)
{
    struct cursor c = {bytes, bytes + n};
    *head = (struct head){.is_object = true};
    skip_space(&c);
    int rc = 1;
    if (parser->form->is_list && parser->is_first && parser->form->form == SERVE_CALLS_MISTRAL && c.at < c.end && *c.at != '[')
        rc = read_named(&c, head);
    else {
        if (parser->form->is_list && parser->is_first)
            rc = read_text(&c, "[");
        skip_space(&c);
        rc = rc > 0 ? read_text(&c, "{") : rc;
        rc = rc > 0 ? read_members(&c, head) : rc;
    }
    head->n = (size_t)(c.at - bytes);
    return rc;
}

/* What may follow the arguments in the call's object, and its brace. */
static int read_tail(struct cursor *c)
{
    const char *key;
    size_t n;
    for (;;) {
        skip_space(c);
        if (c->at == c->end)
            return 0;
        if (*c->at++ == '}')
            return 1;
        if (c->at[-1] != ',')
            return -1;
        int rc = read_key(c, &key, &n);
        rc = rc > 0 ? skip_scalar(c) : rc;
        if (rc <= 0)
            return rc;
    }
}

/* ------------------------------------------------------------------------------------------------------ states
 *
 * Each takes what it can from the held bytes, end: there will be no more. False: nothing changed. */

static void write_part(struct serve_parser *parser, enum serve_part_kind kind, const char *bytes, size_t n)
{
    const struct serve_part part = {kind, kind >= SERVE_CALL_BEGIN ? parser->n_calls - 1 : 0, bytes, n};
    if (n > 0 || kind == SERVE_CALL_END)
        parser->write(parser->user, &part);
}

static const char *rest(const struct serve_parser *parser, size_t *n)
{
    *n = parser->held.n - parser->at;
    return *n ? parser->held.bytes + parser->at : "";
}

/* The rest, without the white space behind reasoning or a call. */
static const char *rest_behind_space(struct serve_parser *parser, size_t *n)
{
    const char *bytes = rest(parser, n);
    if (parser->skip_space) {
        const size_t space = count_space(bytes, *n);
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
    const char *bytes = rest(parser, &all);
    parser->has_begun |= count_space(bytes, n) < n;
    write_part(parser, SERVE_CONTENT, bytes, n);
    parser->at += n;
}

/* How many bytes at the end may be the beginning of the mark. */
static size_t count_partial(const char *bytes, size_t n, const char *mark)
{
    for (size_t k = strlen(mark) - 1; k > 0; k--)
        if (k <= n && memcmp(bytes + n - k, mark, k) == 0)
            return k;
    return 0;
}

/* The earliest mark of the syntax: its place, and *form or *reasoning; n: none. *certain: bytes before what may become one. */
static size_t find_mark(const struct serve_parser *parser, const char *bytes, size_t n, const struct call_form **form,
                        const struct reasoning_form **reasoning, size_t *certain)
{
    const struct serve_syntax *syntax = parser->syntax;
    const size_t space = count_space(bytes, n);
    const bool at_start = !parser->has_begun;
    size_t first = n;
    *certain = n;
    *form = NULL;
    *reasoning = NULL;
    for (size_t i = 0; i < COUNT(call_forms); i++) {
        if (!(syntax->calls & call_forms[i].form))
            continue;
        const char *at = memmem(bytes, n, call_forms[i].open, strlen(call_forms[i].open));
        const size_t left = n - count_partial(bytes, n, call_forms[i].open);
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

static bool step_text(struct serve_parser *parser, bool end)
{
    const struct call_form *form;
    const struct reasoning_form *reasoning;
    size_t n, certain;
    const char *bytes = rest_behind_space(parser, &n);
    if (n == 0)
        return false;
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
    size_t certain = at ? (size_t)(at - bytes) : n - count_partial(bytes, n, close);
    if (at || !end)
        certain = trim_end(bytes, certain);
    write_part(parser, SERVE_REASONING, bytes, certain);
    parser->at += at ? (size_t)(at - bytes) + strlen(close) : end ? n : certain;
    if (!at)
        return certain > 0;
    parser->has_thought = parser->skip_space = true;
    parser->state = IN_TEXT;
    return true;
}

static bool is_tool(const struct serve_syntax *syntax, const char *name, size_t n)
{
    for (int i = 0; i < syntax->n_names; i++)
        if (is_text(syntax->names[i], name, n))
            return true;
    return false;
}

static void end_call(struct serve_parser *parser)
{
    write_part(parser, SERVE_CALL_END, "", 0);
    parser->skip_space = true;
    parser->state = parser->syntax->one_call ? DROPPING : parser->is_object ? IN_TAIL : IN_TEXT;
}

static bool step_head(struct serve_parser *parser, bool end)
{
    struct head head;
    size_t n;
    const char *bytes = rest(parser, &n);
    int rc = read_head(parser, bytes + parser->lead, n - parser->lead, &head);
    if (rc == 0 && !end && n - parser->lead <= MAX_HEAD)
        return false;
    if (rc <= 0 || !is_tool(parser->syntax, head.name, head.n_name) || head.n > MAX_HEAD) {
        const size_t n_more =
            parser->lead < n && parser->form->form == SERVE_CALLS_BARE; /* the brace, or it would be found again */
        parser->state = IN_TEXT;
        write_content(parser, parser->lead + n_more);
        parser->has_begun = true;
        parser->skip_space = false;
        return true;
    }
    parser->at += parser->lead + head.n;
    parser->n_calls++;
    parser->has_begun = true;
    parser->is_object = head.is_object;
    write_part(parser, SERVE_CALL_BEGIN, head.name, head.n_name);
    if (head.has_arguments) {
        parser->depth = 0;
        parser->in_string = parser->escaped = false;
        parser->state = IN_ARGUMENTS;
    } else {
        write_part(parser, SERVE_CALL_ARGUMENTS, "{}", 2);
        end_call(parser);
    }
    return true;
}

static bool step_arguments(struct serve_parser *parser, bool end)
{
    size_t n, i = 0;
    const char *bytes = rest(parser, &n);
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
    write_part(parser, SERVE_CALL_ARGUMENTS, bytes, i);
    parser->at += i;
    if (is_complete || end)
        end_call(parser);
    return i > 0 || end;
}

static bool step_tail(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = rest(parser, &n);
    struct cursor c = {bytes, bytes + n};
    const int rc = read_tail(&c);
    if (rc == 0 && !end && n <= MAX_HEAD)
        return false;
    parser->at += rc > 0 ? (size_t)(c.at - bytes) : 0;
    parser->state = rc > 0 ? BEHIND_CALL : IN_TEXT;
    return true;
}

static bool step_behind_call(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = rest(parser, &n);
    size_t next = count_space(bytes, n);
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
    const char *bytes = rest(parser, &n);
    struct cursor c = {bytes, bytes + n};
    skip_space(&c);
    const int rc = parser->form->close ? read_text(&c, parser->form->close) : -1;
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
    return parser;
}

static void run(struct serve_parser *parser, bool end)
{
    static bool (*const steps[])(struct serve_parser * parser, bool end) = {
        [IN_TEXT] = step_text,
        [IN_REASONING] = step_reasoning,
        [IN_HEAD] = step_head,
        [IN_ARGUMENTS] = step_arguments,
        [IN_TAIL] = step_tail,
        [BEHIND_CALL] = step_behind_call,
        [BEHIND_LIST] = step_behind_list,
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

int serve_parser_n_calls(const struct serve_parser *parser)
{
    return parser->n_calls;
}

void serve_parser_free(struct serve_parser *parser)
{
    if (!parser)
        return;
    serve_text_free(&parser->held);
    free(parser);
}
