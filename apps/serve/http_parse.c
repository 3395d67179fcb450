/* The head of a request, see http_parse.h. */
#include "serve/http_parse.h"

#include <string.h>
#include <strings.h>

static bool is_token(const char *text)
{
    if (!*text)
        return false;
    for (; *text; text++)
        if (!strchr("!#$%&'*+-.^_`|~", *text) && !(*text >= '0' && *text <= '9') && !((*text | 32) >= 'a' && (*text | 32) <= 'z'))
            return false;
    return true;
}

static bool parse_length(const char *text, size_t *length)
{
    size_t value = 0;
    if (!*text || strlen(text) > 18)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = 10 * value + (size_t)(*text - '0');
    }
    *length = value;
    return true;
}

/* What headers say of a request. */
struct headers {
    const char *length, *encoding, *connection, *expect, *authorization, *api_key;
    bool twice; /* one of those that may come once */
};

bool http_parse_field(char *line, char **value)
{
    char *colon = strchr(line, ':');
    if (!colon)
        return false;
    *colon = 0;
    *value = colon + 1 + strspn(colon + 1, " \t");
    char *end = *value + strlen(*value);
    while (end > *value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = 0;
    for (const char *p = *value; *p; p++)
        if (((unsigned char)*p < 0x20 && *p != '\t') || *p == 0x7f)
            return false;
    return is_token(line); /* nothing between the name and the colon */
}

/* A line into the headers. False: malformed. */
static bool parse_header(struct http_head *head, struct headers *headers, char *line)
{
    char *value;
    if (!http_parse_field(line, &value))
        return false;
    const struct {
        const char *name;
        const char **value;
    } known[] = {{"content-length", &headers->length},
                 {"transfer-encoding", &headers->encoding},
                 {"host", &head->host},
                 {"connection", &headers->connection},
                 {"expect", &headers->expect},
                 {"authorization", &headers->authorization},
                 {"x-api-key", &headers->api_key},
                 {"origin", &head->origin},
                 {"sec-fetch-site", &head->fetch_site},
                 {"access-control-request-headers", &head->asked_headers}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcasecmp(line, known[i].name) == 0) {
            const bool again = *known[i].value != NULL, lists = known[i].value == &headers->connection;
            headers->twice |= again && !lists;
            if (!again || !lists || strcasestr(value, "close")) /* a list in several lines: only "close" changes anything */
                *known[i].value = value;
        }
    return true;
}

/* The next line of the head, ended at its CR LF; NULL: a control byte stands alone in it. */
static char *next_line(char **at)
{
    char *line = *at, *end = strstr(line, "\r\n");
    if (!end)
        return NULL;
    *end = 0;
    *at = end + 2;
    return strpbrk(line, "\r\n") ? NULL : line;
}

/* The path of a target: as it is; of "http://host/path", which clients send to proxies and servers have to accept; or "*", which
 * stands for the whole server in OPTIONS. NULL: no target. */
static char *find_path(const char *method, char *target)
{
    if (*target == '/' || (strcmp(target, "*") == 0 && strcmp(method, "OPTIONS") == 0))
        return target;
    const size_t n_scheme = strncasecmp(target, "http://", 7) == 0 ? 7 : strncasecmp(target, "https://", 8) == 0 ? 8 : 0;
    if (n_scheme == 0 || strchr("/?", target[n_scheme]))
        return NULL;
    char *path = target + n_scheme + strcspn(target + n_scheme, "/?");
    if (!*path) { /* "http://host" is "/": the last one of the scheme */
        target[n_scheme] = 0;
        path = target + n_scheme - 1;
    }
    return *path == '/' ? path : NULL;
}

/* "METHOD /path?query HTTP/1.1". 0, or the status of the answer. */
static int parse_request_line(struct http_head *head, char *line)
{
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version)
        return 400;
    *target++ = 0;
    *version++ = 0;
    for (const char *p = target; *p; p++)
        if ((unsigned char)*p <= 0x20 || (unsigned char)*p >= 0x7f)
            return 400;
    if (strcmp(version, "HTTP/1.1") != 0 && strcmp(version, "HTTP/1.0") != 0)
        return strncmp(version, "HTTP/", 5) == 0 ? 505 : 400;
    if (!is_token(line) || !(target = find_path(line, target)))
        return 400;
    head->http_1_0 = version[7] == '0';
    head->method = line;
    head->path = target;
    char *query = strchr(target, '?');
    head->query = query ? query + 1 : "";
    if (query)
        *query = 0;
    return 0;
}

/* What the headers say about the body and the connection. 0, or the status of the answer. */
static int read_headers(const struct headers *headers, struct http_head *head, const char **message)
{
    *message = "a header that may come once comes twice";
    if (headers->twice)
        return 400;
    *message = "no Host header";
    if (!head->http_1_0 && !head->host)
        return 400;
    *message = "Transfer-Encoding with Content-Length, or in HTTP/1.0";
    if (headers->encoding && (headers->length || head->http_1_0))
        return 400;
    *message = "Transfer-Encoding other than chunked";
    if (headers->encoding && strcasecmp(headers->encoding, "chunked") != 0)
        return 501;
    *message = "Content-Length is not a number";
    if (headers->length && !parse_length(headers->length, &head->length))
        return 400;
    *message = "Expect other than 100-continue";
    if (headers->expect && !head->http_1_0 && strcasecmp(headers->expect, "100-continue") != 0)
        return 417;
    head->chunked = headers->encoding != NULL;
    head->expect = headers->expect && !head->http_1_0; /* which has no interim answers */
    head->keep_alive = !head->http_1_0;
    if (headers->connection && head->http_1_0)
        head->keep_alive = strcasecmp(headers->connection, "keep-alive") == 0;
    else if (headers->connection)
        head->keep_alive = !strcasestr(headers->connection, "close");
    if (headers->authorization && strncasecmp(headers->authorization, "Bearer ", 7) == 0)
        head->key = headers->authorization + 7 + strspn(headers->authorization + 7, " ");
    else if (headers->api_key)
        head->key = headers->api_key;
    return 0;
}

int http_parse_head(char *bytes, size_t n, struct http_head *head, const char **message)
{
    struct headers headers = {0};
    *head = (struct http_head){.method = "-", .path = "-", .query = "", .key = ""};
    *message = "a zero byte in the head";
    if (strlen(bytes) != n)
        return 400;
    char *at = bytes, *line = next_line(&at);
    const int wrong = line ? parse_request_line(head, line) : 400;
    *message = wrong == 505 ? "HTTP version other than 1.0 and 1.1" : "malformed request line";
    if (wrong)
        return wrong;
    *message = "malformed header";
    while (*at)
        if (!(line = next_line(&at)) || !parse_header(head, &headers, line))
            return 400;
    return read_headers(&headers, head, message);
}
