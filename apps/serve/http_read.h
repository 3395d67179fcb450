/* Reads requests from the bytes of a connection, which come in pieces of any size. Knows nothing of sockets, so that tests can feed
 * it by hand. */
#ifndef SERVE_HTTP_READ_H
#define SERVE_HTTP_READ_H

#include "serve/http_parse.h"
#include "serve/text.h"

struct evbuffer;

enum http_read {
    HTTP_READ_MORE,  /* what has come is taken; the request goes on */
    HTTP_READ_HEAD,  /* reader->head is there; once for each request */
    HTTP_READ_WHOLE, /* the body is there too */
    HTTP_READ_WRONG, /* reader->status and reader->message refuse it; where the next request begins is not known */
};

/* Zeroed at first, but for the limits. */
struct http_reader {
    size_t max_header, max_body; /* bytes */
    struct http_head head;       /* its strings point into `bytes` and are valid until http_reader_next */
    struct butler_buffer body;
    bool begun; /* a byte of the request has come */
    int status;
    const char *message;
    enum { HTTP_HEAD, HTTP_BODY, HTTP_CHUNK_SIZE, HTTP_CHUNK, HTTP_CHUNK_END, HTTP_TRAILER, HTTP_WHOLE } state;
    struct butler_buffer bytes; /* of the head */
    size_t n_expected;          /* bytes of the body, or of the chunk, that are still to come; in trailers: lines so far */
};

/* Takes from `in` what belongs to the request, up to the next thing to report. */
enum http_read http_read(struct http_reader *reader, struct evbuffer *in);
/* After a whole request: the next one may be read. */
void http_reader_next(struct http_reader *reader);
void http_reader_free(struct http_reader *reader);

#endif
