/* Parameters of a call in the form of Qwen3-Coder: from <parameter=KEY>VALUE</parameter> to a JSON object. Values of strings come
 * as they are written; others are JSON, or become a string where they are none. See tools_parts.h. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "serve/tools_parts.h"

static const char value_end[] = "\n</parameter>";

static void write_arguments(struct serve_parser *parser, const char *bytes, size_t n)
{
    serve_write_part(parser, SERVE_CALL_ARGUMENTS, bytes, n);
}

/* The inside of a JSON string. */
static void write_escaped(struct serve_parser *parser, const char *bytes, size_t n)
{
    static const char plain[] = "\"\\\b\f\n\r\t", letters[] = "\"\\bfnrt", hex[] = "0123456789abcdef";
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        const unsigned char c = (unsigned char)bytes[i];
        const char *at = c ? strchr(plain, c) : NULL;
        if (c >= 0x20 && !at)
            continue;
        char escape[6] = {'\\', at ? letters[at - plain] : 'u', '0', '0', hex[c >> 4], hex[c & 15]};
        write_arguments(parser, bytes + from, i - from);
        write_arguments(parser, escape, at ? 2 : 6);
        from = i + 1;
    }
    write_arguments(parser, bytes + from, n - from);
}

static bool is_text_parameter(const struct serve_parser *parser, const char *key, size_t n)
{
    const char *names = parser->syntax->texts ? parser->syntax->texts[parser->tool] : NULL;
    for (; names && *names; names += strlen(names) + 1)
        if (serve_is_text(names, key, n))
            return true;
    return false;
}

static void write_value(struct serve_parser *parser, const char *bytes, size_t n)
{
    static const char *const words[][2] = {{"True", "true"}, {"False", "false"}, {"None", "null"}};
    const size_t lead = serve_count_space(bytes, n);
    bytes += lead;
    n -= lead;
    while (n > 0 && serve_count_space(bytes + n - 1, 1))
        n--;
    for (size_t i = 0; i < COUNT(words); i++)
        if (serve_is_text(words[i][0], bytes, n)) {
            bytes = words[i][1];
            n = strlen(bytes);
        }
    json_t *value = json_loadb(bytes, n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    if (value)
        write_arguments(parser, bytes, n);
    else {
        write_arguments(parser, "\"", 1);
        write_escaped(parser, bytes, n);
        write_arguments(parser, "\"", 1);
    }
    json_decref(value);
}

static bool step_value(struct serve_parser *parser, bool end)
{
    size_t n;
    const char *bytes = serve_rest(parser, &n), *mark = value_end + 1; /* the line end before it may be missing */
    const char *at = n ? memmem(bytes, n, mark, strlen(mark)) : NULL;
    size_t n_value = at ? (size_t)(at - bytes) : n, n_taken = at ? n_value + strlen(mark) : n;
    if (at && n_value > 0 && at[-1] == '\n')
        n_value--;
    if (!at && !end) {
        const size_t partial = serve_count_partial(bytes, n, mark), longer = serve_count_partial(bytes, n, value_end);
        n_value = n_taken = parser->is_text ? n - (longer > partial ? longer : partial) : 0;
    }
    if (parser->is_text)
        write_escaped(parser, bytes, n_value);
    else if (at || end)
        write_value(parser, bytes, n_value);
    if (at && parser->is_text)
        write_arguments(parser, "\"", 1);
    parser->at += n_taken;
    parser->in_value = !at && !end;
    if (end && !at) { /* so are the arguments */
        parser->is_cut = true;
        serve_end_call(parser, IN_TEXT);
    }
    return n_taken > 0 || end;
}

/* <parameter=KEY> and the line end behind it; as the readers of heads. */
static int read_parameter(struct cursor *c, const char **key, size_t *n, bool end)
{
    int rc = serve_read_text(c, "<parameter=");
    if (rc <= 0)
        return rc;
    *key = c->at;
    while (c->at < c->end && *c->at != '>' && *c->at != '\n')
        c->at++;
    *n = (size_t)(c->at - *key);
    if ((rc = serve_read_text(c, ">")) <= 0)
        return rc;
    if (c->at == c->end)
        return end;
    c->at += *c->at == '\n';
    return 1;
}

bool serve_step_parameters(struct serve_parser *parser, bool end)
{
    if (parser->in_value)
        return step_value(parser, end);
    size_t n, n_key = 0;
    const char *bytes = serve_rest(parser, &n), *key = NULL;
    struct cursor c = {bytes, bytes + n}, parameter;
    serve_skip_space(&c);
    parameter = c;
    int closed = serve_read_text(&c, "</function>"), opened = read_parameter(&parameter, &key, &n_key, end);
    closed = c.at - bytes > SERVE_MAX_HEAD ? -1 : closed;
    opened = parameter.at - bytes > SERVE_MAX_HEAD ? -1 : opened;
    if (closed <= 0 && opened <= 0 && (closed == 0 || opened == 0) && !end && n <= SERVE_MAX_HEAD)
        return false;
    if (opened > 0) {
        write_arguments(parser, parser->has_value ? ", \"" : "{\"", parser->has_value ? 3 : 2);
        write_escaped(parser, key, n_key);
        parser->is_text = is_text_parameter(parser, key, n_key);
        write_arguments(parser, parser->is_text ? "\": \"" : "\": ", parser->is_text ? 4 : 3);
        parser->in_value = parser->has_value = true;
        parser->at += (size_t)(parameter.at - bytes);
        return true;
    }
    /* The end, or text that is no parameter. */
    parser->is_cut = closed <= 0 && end;
    if (!parser->is_cut)
        write_arguments(parser, parser->has_value ? "}" : "{}", parser->has_value ? 1 : 2);
    parser->at += closed > 0 ? (size_t)(c.at - bytes) : 0;
    serve_end_call(parser, closed > 0 ? BEHIND_CALL : IN_TEXT);
    return true;
}
