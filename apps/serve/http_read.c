/* See http_read.h. RFC 9112 is followed where it leaves no choice; where it lets a server repair what is malformed, the request is
 * refused instead. */
#include "serve/http_read.h"

#include <event2/buffer.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_CHUNK_LINE = 256, /* the line with a chunk's size, or of a trailer */
    MAX_TRAILERS = 64,
};

static const char too_large[] = "the body is larger than this server accepts";

static enum http_read refuse(struct http_reader *reader, int status, const char *message)
{
    reader->status = status;
    reader->message = message;
    return HTTP_READ_WRONG;
}

/* Empty lines before a request are skipped: some clients end a body with one. */
static void skip_empty_lines(struct evbuffer *in)
{
    char start[2];
    while (evbuffer_copyout(in, start, 2) == 2 && memcmp(start, "\r\n", 2) == 0)
        evbuffer_drain(in, 2);
}

static enum http_read read_head(struct http_reader *reader, struct evbuffer *in)
{
    skip_empty_lines(in);
    const size_t n = evbuffer_get_length(in);
    reader->begun |= n > 0;
    const struct evbuffer_ptr end = evbuffer_search(in, "\r\n\r\n", 4, NULL);
    if ((end.pos < 0 && n > reader->max_header + 3) || end.pos > (ev_ssize_t)reader->max_header)
        return refuse(reader, 431, "the head of the request is larger than this server accepts");
    if (end.pos < 0)
        return HTTP_READ_MORE;
    serve_text_reserve(&reader->bytes, (size_t)end.pos + 3);
    evbuffer_remove(in, reader->bytes.bytes, (size_t)end.pos + 2);
    evbuffer_drain(in, 2);
    reader->bytes.n = (size_t)end.pos + 2;
    reader->bytes.bytes[reader->bytes.n] = 0;
    const int wrong = http_parse_head(reader->bytes.bytes, reader->bytes.n, &reader->head, &reader->message);
    if (wrong)
        return refuse(reader, wrong, reader->message);
    if (reader->head.length > reader->max_body)
        return refuse(reader, 413, too_large);
    reader->n_expected = reader->head.length;
    reader->state = reader->head.chunked ? HTTP_CHUNK_SIZE : HTTP_BODY;
    return HTTP_READ_HEAD;
}

/* Some of the body, or of a chunk. True: all of it is there. */
static bool read_bytes(struct http_reader *reader, struct evbuffer *in)
{
    const size_t have = evbuffer_get_length(in), n = have < reader->n_expected ? have : reader->n_expected;
    if (n > 0) {
        serve_text_reserve(&reader->body, n);
        evbuffer_remove(in, reader->body.bytes + reader->body.n, n);
        reader->body.n += n;
        reader->n_expected -= n;
    }
    return reader->n_expected == 0;
}

/* A line of a chunked body without its end, to be freed. NULL with *result HTTP_READ_MORE or HTTP_READ_WRONG. Control bytes are
 * refused: another program may take a lone CR or LF for the end of the line. */
static char *read_line(struct http_reader *reader, struct evbuffer *in, enum http_read *result)
{
    size_t n = 0;
    char *line = evbuffer_readln(in, &n, EVBUFFER_EOL_CRLF_STRICT);
    bool right = line ? n <= MAX_CHUNK_LINE : evbuffer_get_length(in) <= MAX_CHUNK_LINE + 1;
    for (size_t i = 0; line && i < n && right; i++)
        right = ((unsigned char)line[i] >= 0x20 || line[i] == '\t') && line[i] != 0x7f;
    *result = right ? HTTP_READ_MORE : refuse(reader, 400, "malformed chunk");
    if (right)
        return line;
    free(line);
    return NULL;
}

/* "1a2b;name=value": extensions are ignored. */
static enum http_read take_chunk_size(struct http_reader *reader, const char *line)
{
    const size_t n = strspn(line, "0123456789abcdefABCDEF"), n_blank = strspn(line + n, " \t");
    if (n == 0 || n > 15 || (line[n] && line[n + n_blank] != ';'))
        return refuse(reader, 400, "malformed chunk");
    const size_t size = strtoull(line, NULL, 16);
    if (size > reader->max_body - reader->body.n)
        return refuse(reader, 413, too_large);
    reader->n_expected = size;
    reader->state = size ? HTTP_CHUNK : HTTP_TRAILER;
    return HTTP_READ_MORE;
}

/* Trailers are checked and not read. */
static enum http_read take_trailer(struct http_reader *reader, char *line)
{
    char *value;
    if (!*line) {
        reader->state = HTTP_WHOLE;
        return HTTP_READ_WHOLE;
    }
    if (!http_parse_field(line, &value))
        return refuse(reader, 400, "malformed trailer");
    return ++reader->n_expected > MAX_TRAILERS ? refuse(reader, 431, "too many trailers") : HTTP_READ_MORE;
}

/* A line between the bytes of chunks. *taken: there was one. */
static enum http_read take_line(struct http_reader *reader, struct evbuffer *in, bool *taken)
{
    enum http_read result;
    char *line = read_line(reader, in, &result);
    *taken = line != NULL;
    if (!line)
        return result;
    if (reader->state == HTTP_CHUNK_SIZE)
        result = take_chunk_size(reader, line);
    else if (reader->state == HTTP_TRAILER)
        result = take_trailer(reader, line);
    else if (*line)
        result = refuse(reader, 400, "malformed chunk");
    else
        reader->state = HTTP_CHUNK_SIZE;
    free(line);
    return result;
}

enum http_read http_read(struct http_reader *reader, struct evbuffer *in)
{
    enum http_read result = HTTP_READ_MORE;
    bool goes_on = true;
    if (reader->state == HTTP_HEAD)
        return read_head(reader, in);
    while (goes_on && result == HTTP_READ_MORE && reader->state != HTTP_WHOLE) {
        if (reader->state != HTTP_BODY && reader->state != HTTP_CHUNK) {
            result = take_line(reader, in, &goes_on);
        } else {
            goes_on = read_bytes(reader, in);
            if (goes_on)
                reader->state = reader->state == HTTP_BODY ? HTTP_WHOLE : HTTP_CHUNK_END;
        }
    }
    return reader->state == HTTP_WHOLE ? HTTP_READ_WHOLE : result;
}

void http_reader_next(struct http_reader *reader)
{
    const struct http_reader next = {.max_header = reader->max_header,
                                     .max_body = reader->max_body,
                                     .bytes = {.bytes = reader->bytes.bytes, .capacity = reader->bytes.capacity}};
    butler_buffer_free(&reader->body);
    *reader = next;
}

void http_reader_free(struct http_reader *reader)
{
    butler_buffer_free(&reader->body);
    butler_buffer_free(&reader->bytes);
}
