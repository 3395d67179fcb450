/* HTTP/1.1 for the server: one thread, one event loop, no waiting. A handler gets whole requests; it answers at once, or later, and
 * whole or piece by piece. All functions belong to the loop's thread, http_server_wake alone to any.
 *
 * The parser is strict, because a proxy in front may read a request otherwise: lines end with CR LF, a header is not folded, a
 * length is given once and is not given beside chunks. Everything that a client sends or leaves unread has a limit. */
#ifndef SERVE_HTTP_H
#define SERVE_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct http_server;

/* A request, and the answer to it. */
struct http_exchange {
    /* Strings end with a zero byte and live as long as the exchange. */
    const char *method, *path, *query; /* query: behind the "?", or "" */
    const char *key;                   /* of Authorization: Bearer or X-Api-Key, or "" */
    int owner;                         /* whose request it is: 1 + the number of its key; 0 where the server has none */
    bool admin;                        /* the client sees what all owners have */
    char *body;                        /* [n_body], then a zero byte */
    size_t n_body;
    void *user; /* the handler's; NULL at first */
    /* Set by the handler: the client has gone before the answer ended; the exchange is freed when it returns. NULL: nothing to do
     */
    void (*on_close)(struct http_exchange *exchange);
    struct http_connection *connection;
};

/* To whom a path is open. */
enum http_open {
    HTTP_NEEDS_KEY,   /* to clients with a key, where the server has keys */
    HTTP_OPEN,        /* to all */
    HTTP_SHOWS_TEXTS, /* it shows prompts and answers, where there are no keys of all clients: not to pages of other origins then */
};

typedef void http_handler_fn(void *user, struct http_exchange *exchange);

struct http_params {
    const char *host;        /* an address, or a path that ends with ".sock": a unix socket */
    int port;                /* 0: any that is free */
    const char *const *keys; /* [n_keys] that are accepted; none: every client is */
    int n_keys;
    const char *admin_key;                   /* is accepted too, and sees what all keys have; NULL: none */
    size_t max_header, max_body, max_unread; /* bytes; max_unread: of an answer that the client has not read yet */
    int max_connections;                     /* fewer where the limit on open files leaves less; that is raised as far as it goes */
    int n_files;                             /* other files that may be open at the same time */
    int timeout_s;                           /* for a request to come in whole, and for a client to read some of its answer */
    FILE *log;                               /* a line for every answer; NULL: none */
    void (*say)(void *user, const char *message); /* for the operator, with say_user; repeated ones rarely; NULL: nothing is told */
    void *say_user;
    http_handler_fn *handler;
    enum http_open (*open_to)(const char *path);
    /* The body, of refusal_type, of an answer to a request that is not read to its end: bytes written to out. */
    size_t (*refusal)(int status, const char *message, char *out, size_t n_out);
    const char *refusal_type;
    void (*on_wake)(void *user); /* after http_server_wake, in the loop's thread */
    /* An answer is complete, or (status 499) its client went away before; or NULL. path: "-" where there is none. */
    void (*on_answer)(void *user, const char *path, int status);
    void *user;
};

/* Listens. NULL: error[n_error] says why. */
struct http_server *http_server_new(const struct http_params *params, char *error, size_t n_error);
/* Closes every connection; on_close is called for exchanges that are open. */
void http_server_close(struct http_server *server);
void http_server_free(struct http_server *server);
int http_server_port(const struct http_server *server); /* 0 for a unix socket */
/* Serves until SIGTERM or SIGINT, then until every answer that had begun is complete, or a second signal comes. */
void http_server_run(struct http_server *server);
/* From any thread: on_wake is called soon, once for any number of calls. */
void http_server_wake(struct http_server *server);
int http_server_n_connections(const struct http_server *server);

/* The whole answer, which ends the exchange: it is freed. extra: header lines, each with CR LF; or NULL. */
void http_reply(struct http_exchange *exchange, int status, const char *type, const char *extra, const char *body, size_t n);
/* An answer in pieces, as text/event-stream: begin (extra: as above), any number of writes, end. A client that leaves more than
 * max_unread bytes unread is cut off: http_stream_write returns false, on_close was not called, and the exchange is freed. */
void http_stream_begin(struct http_exchange *exchange, const char *extra);
bool http_stream_write(struct http_exchange *exchange, const char *bytes, size_t n);
void http_stream_end(struct http_exchange *exchange);

#endif
