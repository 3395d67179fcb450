/* Answers of gpt-oss, which are messages: a header with a channel and perhaps a recipient, <|message|>, a body, and a mark that
 * ends it. The channel `analysis` is reasoning, bodies to functions.NAME are calls, all other bodies content. The prompt ends with
 * <|start|>assistant. See tools_parts.h. */
#include <stdlib.h>
#include <string.h>

#include "serve/tools_parts.h"

static const char start[] = "<|start|>", channel[] = "<|channel|>", body[] = "<|message|>";

/* Whether bytes may begin a header, as far as they go: 1 yes, 0 more text is needed, -1 no. */
static int begins_header(const struct serve_parser *parser, struct cursor c)
{
    static const char *const first[] = {channel, "to=", start, "<|constrain|>", body};
    int found = -1;
    serve_skip_space(&c);
    for (size_t i = 0; i < COUNT(first) && found < 1; i++) {
        struct cursor copy = c;
        const int rc = parser->has_message && first[i] != start && first[i] != channel ? -1 : serve_read_text(&copy, first[i]);
        found = rc > found ? rc : found;
    }
    return found;
}

/* The word behind a mark in a header; NULL: it has no such mark. */
static const char *word_behind(const char *header, size_t n, const char *mark, size_t *n_word)
{
    const char *at = memmem(header, n, mark, strlen(mark));
    if (!at)
        return NULL;
    at += strlen(mark);
    size_t i = 0;
    while (at + i < header + n && at[i] != ' ' && at[i] != '<')
        i++;
    *n_word = i;
    return at;
}

/* What the body behind a header is. */
static void begin_message(struct serve_parser *parser, const char *header, size_t n)
{
    static const char functions[] = "functions.";
    const size_t n_functions = sizeof functions - 1;
    size_t n_to = 0, n_channel = 0;
    const char *to = word_behind(header, n, "to=", &n_to), *of = word_behind(header, n, channel, &n_channel);
    const bool is_call = n_to > n_functions && memcmp(to, functions, n_functions) == 0;
    const int tool = is_call ? serve_find_tool(parser->syntax, to + n_functions, n_to - n_functions) : -1;
    const bool thinks = of && serve_is_text("analysis", of, n_channel);
    parser->has_message = true;
    parser->state = IN_MESSAGE;
    parser->is_raw = false;
    if (tool >= 0) {
        parser->message = SERVE_CALL_ARGUMENTS;
        serve_begin_call(parser, tool);
        return;
    }
    parser->message = thinks && !to && (parser->syntax->reasoning & SERVE_REASONING_MESSAGE) ? SERVE_REASONING : SERVE_CONTENT;
    parser->is_raw = parser->message == SERVE_CONTENT && (to || thinks);
    if (parser->is_raw)
        serve_write_part(parser, SERVE_CONTENT, header, n + strlen(body));
}

bool serve_step_header(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = serve_rest(parser, &n);
    const struct cursor c = {bytes, bytes + n};
    const int begins = begins_header(parser, c);
    const char *at = n ? memmem(bytes, n, body, strlen(body)) : NULL;
    if (n == 0)
        return false;
    if (begins > 0 && at && at - bytes <= SERVE_MAX_HEAD) {
        parser->at += (size_t)(at - bytes) + strlen(body);
        begin_message(parser, bytes, (size_t)(at - bytes));
        return true;
    }
    if (begins >= 0 && !end && n <= SERVE_MAX_HEAD + strlen(body))
        return false;
    parser->state = IN_TEXT;
    return true;
}

bool serve_step_message(struct serve_parser *parser, bool end)
{
    static const char *const marks[] = {start, channel, "<|end|>", "<|call|>", "<|return|>"};
    enum { N_NEXT = 2 }; /* the first ones belong to the next header */
    size_t n, n_body, n_mark = 0;
    bool has_mark = false;
    const char *bytes = serve_rest(parser, &n);
    n_body = n;
    for (size_t i = 0; i < COUNT(marks); i++) {
        const char *at = n ? memmem(bytes, n, marks[i], strlen(marks[i])) : NULL;
        if (at && (size_t)(at - bytes) < n_body) {
            n_body = (size_t)(at - bytes);
            n_mark = i < N_NEXT ? 0 : strlen(marks[i]);
            has_mark = true;
        }
    }
    for (size_t i = 0; i < COUNT(marks) && !has_mark && !end; i++) {
        const size_t left = n - serve_count_partial(bytes, n, marks[i]);
        n_body = left < n_body ? left : n_body;
    }
    serve_write_part(parser, parser->message, bytes, n_body + (parser->is_raw ? n_mark : 0));
    parser->at += n_body + n_mark;
    if (has_mark || end) {
        parser->state = IN_HEADER;
        if (parser->message == SERVE_CALL_ARGUMENTS)
            serve_end_call(parser, IN_HEADER);
    }
    return has_mark || n_body > 0;
}
