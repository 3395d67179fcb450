/* What stands before and behind the arguments of a call, in every form but gpt-oss's. See tools_parts.h. */
#include <string.h>

#include "serve/tools_parts.h"

void serve_skip_space(struct cursor *c)
{
    c->at += serve_count_space(c->at, (size_t)(c->end - c->at));
}

int serve_read_text(struct cursor *c, const char *text)
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
    int rc = serve_read_text(c, "\"");
    if (rc <= 0)
        return rc;
    *bytes = c->at;
    for (; c->at < c->end && *c->at != '"'; c->at++)
        if (*c->at == '\\' && ++c->at == c->end)
            return 0;
    *n = (size_t)(c->at - *bytes);
    return serve_read_text(c, "\"");
}

/* "key": */
static int read_key(struct cursor *c, const char **key, size_t *n)
{
    serve_skip_space(c);
    int rc = read_string(c, key, n);
    if (rc <= 0)
        return rc;
    serve_skip_space(c);
    rc = serve_read_text(c, ":");
    serve_skip_space(c);
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

/* From behind the brace of the call's object to the arguments. */
static int read_members(struct cursor *c, struct call_head *head)
{
    const char *key;
    size_t n;
    for (;;) {
        int rc = read_key(c, &key, &n);
        if (rc <= 0)
            return rc;
        if (serve_is_text("arguments", key, n) || serve_is_text("parameters", key, n)) {
            head->has_arguments = true;
            if (c->at == c->end)
                return 0;
            return head->name && *c->at == '{' ? 1 : -1;
        }
        const bool is_name = serve_is_text("name", key, n) || serve_is_text("tool_name", key, n);
        rc = is_name ? read_string(c, &head->name, &head->n_name) : skip_scalar(c);
        if (rc <= 0)
            return rc;
        serve_skip_space(c);
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

/* The name, the separator, and the brace behind it. */
static int read_named(struct cursor *c, struct call_head *head, const char *separator)
{
    head->name = c->at;
    head->n_name = serve_count_name(c->at, (size_t)(c->end - c->at));
    c->at += head->n_name;
    head->is_object = false;
    head->has_arguments = true;
    const int rc = serve_read_text(c, separator);
    if (rc <= 0)
        return rc;
    serve_skip_space(c);
    return c->at == c->end ? 0 : *c->at == '{' ? 1 : -1;
}

/* Behind <function= */
static int read_xml_name(struct cursor *c, struct call_head *head)
{
    head->name = c->at;
    head->n_name = serve_count_name(c->at, (size_t)(c->end - c->at));
    c->at += head->n_name;
    head->is_object = false;
    head->is_xml = head->has_arguments = true;
    return serve_read_text(c, ">");
}

/* Behind >>> */
static int read_recipient(struct cursor *c, struct call_head *head)
{
    struct cursor copy = *c;
    const int rc = serve_read_text(&copy, "all\n");
    if (rc < 0)
        return read_named(c, head, "\n");
    *c = copy;
    head->is_text = true;
    return rc;
}

int serve_read_head(const struct serve_parser *parser, const char *bytes, size_t n, struct call_head *head)
{
    struct cursor c = {bytes, bytes + n};
    *head = (struct call_head){.is_object = true};
    serve_skip_space(&c);
    int rc = 1;
    const bool has_xml = parser->syntax->calls & SERVE_CALLS_XML;
    if (parser->form->is_list && parser->is_first && parser->form->form == SERVE_CALLS_MISTRAL && c.at < c.end && *c.at != '[')
        rc = read_named(&c, head, "[ARGS]");
    else if (parser->form->form == SERVE_CALLS_LINE)
        rc = read_named(&c, head, "\n");
    else if (parser->form->form == SERVE_CALLS_FUNCTION)
        rc = read_named(&c, head, ">");
    else if (parser->form->form == SERVE_CALLS_RECIPIENT) /* no space before it: a prompt of Python has one */
        rc = c.at == bytes ? read_recipient(&c, head) : -1;
    else if (parser->form->form == SERVE_CALLS_XML)
        rc = read_xml_name(&c, head);
    else if (has_xml && parser->form->form == SERVE_CALLS_TAGGED && c.at < c.end && *c.at == '<')
        rc = (rc = serve_read_text(&c, "<function=")) > 0 ? read_xml_name(&c, head) : rc;
    else {
        if (parser->form->is_list && parser->is_first)
            rc = serve_read_text(&c, "[");
        serve_skip_space(&c);
        rc = rc > 0 ? serve_read_text(&c, "{") : rc;
        rc = rc > 0 ? read_members(&c, head) : rc;
    }
    head->n = (size_t)(c.at - bytes);
    return rc;
}

int serve_read_tail(struct cursor *c)
{
    const char *key;
    size_t n;
    for (;;) {
        serve_skip_space(c);
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
