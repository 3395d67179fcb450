/* Calls of models that leave out the marks of their template: the whole answer is JSON, bare or in a fence, one or several objects
 * {"name": ..., "arguments": {...}} (Qwen2.5-Coder, and others in long conversations). Whether nothing else follows is known at the
 * end only, so such an answer is held until then. Any other is let go as soon as it cannot be one: at its first letter, mostly. */
#include <string.h>

#include <jansson.h>

#include "serve/tools_parts.h"

/* The opening mark of a fence, with a word of letters such as json. 1: read, or there is none. */
static int read_fence(struct cursor *c, bool *is_fenced)
{
    *is_fenced = c->at < c->end && *c->at == '`';
    if (!*is_fenced)
        return c->at < c->end;
    const int rc = serve_read_text(c, "```");
    if (rc <= 0)
        return rc;
    while (c->at < c->end && (((*c->at | 0x20) >= 'a' && (*c->at | 0x20) <= 'z') || *c->at == '_'))
        c->at++;
    return c->at < c->end;
}

/* Up to the arguments of a call of an offered tool. */
static int read_call(const struct serve_parser *parser, struct cursor *c, struct call_head *head)
{
    static const struct call_form form = {SERVE_CALLS_WHOLE, "", NULL, false};
    struct serve_parser copy = {.syntax = parser->syntax, .form = &form};
    const int rc = serve_read_head(&copy, c->at, (size_t)(c->end - c->at), head);
    if (rc <= 0)
        return rc;
    c->at += head->n;
    return head->has_arguments && serve_find_tool(parser->syntax, head->name, head->n_name) >= 0 ? 1 : -1;
}

/* The call in the object, an object of the text with a name and arguments, whose bytes are given as they are. */
static bool write_object(struct serve_parser *parser, const char *bytes, size_t n, bool writes)
{
    struct cursor c = {bytes, bytes + n};
    struct call_head head;
    if (read_call(parser, &c, &head) <= 0)
        return false;
    json_error_t wrong;
    json_t *arguments = json_loadb(c.at, (size_t)(c.end - c.at), JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &wrong);
    const size_t n_arguments = arguments ? (size_t)wrong.position : 0;
    json_decref(arguments);
    if (!arguments)
        return false;
    if (writes && parser->state != DROPPING) {
        serve_begin_call(parser, serve_find_tool(parser->syntax, head.name, head.n_name));
        serve_write_part(parser, SERVE_CALL_ARGUMENTS, c.at, n_arguments);
        serve_end_call(parser, IN_WHOLE);
    }
    return true;
}

/* Reads the answer from the beginning to its end. False: it is not such a text. */
static bool read_whole(struct serve_parser *parser, const char *bytes, size_t n, bool writes)
{
    struct cursor c = {bytes, bytes + n};
    bool is_fenced, is_list;
    serve_skip_space(&c);
    if (read_fence(&c, &is_fenced) <= 0)
        return false;
    serve_skip_space(&c);
    is_list = c.at < c.end && *c.at == '[';
    c.at += is_list;
    for (bool more = true; more;) {
        json_error_t wrong;
        serve_skip_space(&c);
        json_t *object = json_loadb(c.at, (size_t)(c.end - c.at), JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, &wrong);
        const bool right = json_is_object(object) && write_object(parser, c.at, (size_t)wrong.position, writes);
        json_decref(object);
        if (!right)
            return false;
        c.at += wrong.position;
        serve_skip_space(&c);
        more = c.at < c.end && (is_list ? *c.at == ',' : *c.at == '{');
        c.at += more && is_list;
    }
    if (is_list && serve_read_text(&c, "]") <= 0)
        return false;
    serve_skip_space(&c);
    if (is_fenced && c.at < c.end && serve_read_text(&c, "```") <= 0)
        return false;
    serve_skip_space(&c);
    return c.at == c.end;
}

static bool write_whole(struct serve_parser *parser, const char *bytes, size_t n)
{
    if (!read_whole(parser, bytes, n, false))
        return false;
    read_whole(parser, bytes, n, true);
    parser->at = parser->held.n;
    parser->state = IN_TEXT;
    return true;
}

bool serve_step_whole(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = serve_rest(parser, &n);
    struct cursor c = {bytes, bytes + n};
    struct call_head head;
    bool is_fenced;
    serve_skip_space(&c);
    int rc = read_fence(&c, &is_fenced);
    serve_skip_space(&c);
    if (rc > 0 && c.at < c.end && *c.at == '[')
        c.at++;
    rc = rc > 0 ? read_call(parser, &c, &head) : rc;
    if (!end && rc == 0 && n > SERVE_MAX_HEAD)
        rc = -1;
    if (!end && rc >= 0)
        return false;
    if (rc > 0 && write_whole(parser, bytes, n))
        return true;
    parser->state = IN_TEXT;
    parser->has_begun = true; /* it is not looked for again */
    return true;
}
