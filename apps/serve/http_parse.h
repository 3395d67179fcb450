/* The head of a request: its first line and its headers, by RFC 9112. */
#ifndef SERVE_HTTP_PARSE_H
#define SERVE_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>

struct http_head {
    const char *method, *path, *query, *key;    /* as in struct http_exchange */
    const char *host;                           /* NULL: none, in HTTP/1.0 */
    const char *origin, *asked_headers;         /* of CORS; NULL: none */
    const char *fetch_site;                     /* of Sec-Fetch-Site, how the page that asks is related; NULL: no browser says */
    size_t length;                              /* of the body, where it is not chunked */
    bool chunked, expect, keep_alive, http_1_0; /* expect: the client waits for "100 Continue" */
};

/* Parses bytes[n], lines that each end with CR LF, and a zero byte after them; they are cut up and pointed into. 0, or the status
 * of the answer that refuses it, with a message; what was read until then is in *head. */
int http_parse_head(char *bytes, size_t n, struct http_head *head, const char **message);
/* "name: value" without its CR LF; the line is cut into both. False: malformed. */
bool http_parse_field(char *line, char **value);

#endif
