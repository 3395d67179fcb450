/* Connections, requests and answers on libevent's buffers. A connection reads one request, waits for its answer to be complete, and
 * reads the next. See http.h. */
#include "serve/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/listener.h>
#include <limits.h>
#include <netdb.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "serve/http_access.h"
#include "serve/http_read.h"
#include "serve/notice.h"
#include "serve/text.h"

enum {
    IDLE_SECONDS = 75,     /* between two requests of a connection */
    LINGER_SECONDS = 2,    /* for a client to stop sending what is not read */
    MAX_PIPELINED = 65536, /* bytes of later requests that are read while one is answered */
    REST_MS = 100,         /* without accepting, where that failed: each try would fail at once, again and again */
    SPARE_FILES = 64,      /* the process's own */
    CLIENT_GONE = 499,     /* status of answers that nobody waits for any more, as nginx calls it */
};

enum state {
    READ,   /* a request */
    ANSWER, /* it is being answered */
    FLUSH,  /* the last answer is being sent */
    LINGER, /* all is sent; what the client still sends is dropped. Closing at once would reset the connection, and the client could
               lose the answer (RFC 9112, 9.6) */
};

struct http_connection {
    struct http_server *server;
    struct http_connection *next, **link; /* of the server's list */
    struct bufferevent *events;
    struct event *deadline;
    enum state state;
    struct http_exchange *exchange; /* the request that is answered, or NULL */
    struct http_reader reader;
    bool keep_alive, refused; /* refused: the request was not read to its end */
    struct http_client client;
    int status;
    size_t n_sent;
    size_t n_pending; /* of the answer, when the deadline was set */
    struct timespec begin;
    char peer[64];
};

struct http_server {
    struct http_params params;
    struct event_base *base;
    struct evconnlistener *listener;
    struct event *wake, *signals[2], *rest; /* rest: from a failure to accept until the next try */
    int wake_fd, n_connections, port;
    bool loopback; /* only this machine reaches it */
    struct serve_notices notices;
    struct http_connection *connections;
    bool draining;
    char unix_path[sizeof((struct sockaddr_un *)0)->sun_path];
};

/* ---------------------------------------------------------------------------------------------- connections */

static void set_deadline(struct http_connection *c, int seconds)
{
    const struct timeval time = {.tv_sec = seconds};
    c->n_pending = evbuffer_get_length(bufferevent_get_output(c->events));
    event_add(c->deadline, &time);
}

static void drop_exchange(struct http_connection *c)
{
    free(c->exchange);
    c->exchange = NULL;
    http_reader_next(&c->reader);
}

/* An answer has ended: a line of the log. */
static void note_answer(const struct http_connection *c)
{
    const struct http_head *head = &c->reader.head;
    const struct http_params *params = &c->server->params;
    const char *path = head->path ? head->path : "-";
    struct timespec now;
    struct tm utc;
    char when[32], key[9];
    if (params->on_answer)
        params->on_answer(params->user, path, c->status);
    if (!params->log)
        return;
    clock_gettime(CLOCK_MONOTONIC, &now);
    const double ms = 1e3 * (double)(now.tv_sec - c->begin.tv_sec) + 1e-6 * (double)(now.tv_nsec - c->begin.tv_nsec);
    const time_t seconds = time(NULL);
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    http_name_key(&c->client, head->key ? head->key : "", key);
    fprintf(params->log, "%s %s %s %s %d %zu bytes %.1f ms key %s\n", when, c->peer, head->method ? head->method : "-", path,
            c->status, c->n_sent, ms, key);
    fflush(params->log);
}

/* The connection ends, whatever it was doing. gone: an exchange that had not ended is told. */
static void close_connection(struct http_connection *c, bool gone)
{
    struct http_server *server = c->server;
    if (gone && c->exchange && c->state == ANSWER && c->exchange->on_close)
        c->exchange->on_close(c->exchange);
    if (gone && c->exchange && c->state == ANSWER) {
        c->status = CLIENT_GONE;
        note_answer(c);
    }
    *c->link = c->next;
    if (c->next)
        c->next->link = c->link;
    server->n_connections--;
    event_free(c->deadline);
    bufferevent_free(c->events);
    free(c->exchange);
    http_reader_free(&c->reader);
    free(c);
    if (server->draining && !server->connections)
        event_base_loopbreak(server->base);
}

/* ---------------------------------------------------------------------------------------------------- answers */

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {{200, "OK"},
                   {204, "No Content"},
                   {400, "Bad Request"},
                   {401, "Unauthorized"},
                   {403, "Forbidden"},
                   {404, "Not Found"},
                   {405, "Method Not Allowed"},
                   {408, "Request Timeout"},
                   {413, "Content Too Large"},
                   {417, "Expectation Failed"},
                   {429, "Too Many Requests"},
                   {431, "Request Header Fields Too Large"},
                   {500, "Internal Server Error"},
                   {501, "Not Implemented"},
                   {503, "Service Unavailable"},
                   {505, "HTTP Version Not Supported"}};
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Unknown";
}

/* The head of an answer. length < 0: it comes in pieces. */
static void write_head(struct http_connection *c, int status, const char *type, const char *extra, long long length)
{
    struct evbuffer *out = bufferevent_get_output(c->events);
    c->status = status;
    evbuffer_add_printf(out, "HTTP/1.1 %d %s\r\nServer: butler\r\n", status, reason(status));
    if (type)
        evbuffer_add_printf(out, "Content-Type: %s\r\n", type);
    if (c->reader.head.origin)
        evbuffer_add_printf(out, "Access-Control-Allow-Origin: %s\r\nVary: Origin\r\n", c->reader.head.origin);
    if (status == 401)
        evbuffer_add_printf(out, "WWW-Authenticate: Bearer\r\n");
    if (length >= 0 && status != 204)
        evbuffer_add_printf(out, "Content-Length: %lld\r\n", length);
    else if (length < 0 && !c->reader.head.http_1_0)
        evbuffer_add_printf(out, "Cache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n");
    evbuffer_add_printf(out, "%sConnection: %s\r\n\r\n", extra ? extra : "", c->keep_alive ? "keep-alive" : "close");
}

/* The connection ends when all is sent. */
static void flush(struct http_connection *c)
{
    c->state = FLUSH;
    set_deadline(c, c->server->params.timeout_s);
    bufferevent_trigger(c->events, EV_WRITE, BEV_TRIG_DEFER_CALLBACKS);
}

/* The answer is complete: the next request, or the end when all is sent. */
static void end_answer(struct http_connection *c)
{
    note_answer(c);
    drop_exchange(c);
    c->client = (struct http_client){0};
    c->n_sent = 0;
    if (c->keep_alive && !c->server->draining) {
        c->state = READ;
        set_deadline(c, IDLE_SECONDS);
        /* Later: the caller may be inside the loop over a request that came with the next one. */
        bufferevent_trigger(c->events, EV_READ, BEV_TRIG_IGNORE_WATERMARKS | BEV_TRIG_DEFER_CALLBACKS);
        return;
    }
    flush(c);
}

void http_reply(struct http_exchange *x, int status, const char *type, const char *extra, const char *body, size_t n)
{
    struct http_connection *c = x->connection;
    const bool head = strcmp(x->method, "HEAD") == 0;
    if (c->server->draining)
        c->keep_alive = false;
    write_head(c, status, type, extra, (long long)n);
    if (!head && n)
        bufferevent_write(c->events, body, n);
    c->n_sent = head ? 0 : n;
    end_answer(c);
}

void http_stream_begin(struct http_exchange *x, const char *extra)
{
    struct http_connection *c = x->connection;
    if (c->reader.head.http_1_0 || c->server->draining)
        c->keep_alive = false;
    write_head(c, 200, "text/event-stream", extra, -1);
}

bool http_stream_write(struct http_exchange *x, const char *bytes, size_t n)
{
    struct http_connection *c = x->connection;
    struct evbuffer *out = bufferevent_get_output(c->events);
    if (n == 0) /* a chunk without bytes would end the answer */
        return true;
    if (!c->reader.head.http_1_0)
        evbuffer_add_printf(out, "%zx\r\n", n);
    evbuffer_add(out, bytes, n);
    if (!c->reader.head.http_1_0)
        evbuffer_add(out, "\r\n", 2);
    c->n_sent += n;
    if (evbuffer_get_length(out) <= c->server->params.max_unread)
        return true;
    c->status = CLIENT_GONE;
    note_answer(c);
    close_connection(c, false);
    return false;
}

void http_stream_end(struct http_exchange *x)
{
    struct http_connection *c = x->connection;
    if (!c->reader.head.http_1_0)
        bufferevent_write(c->events, "0\r\n\r\n", 5);
    end_answer(c);
}

/* Answers a request that is not read to its end: the connection cannot go on, for where the next begins is not known. */
static void refuse(struct http_connection *c, int status, const char *message)
{
    const char *method = c->reader.head.method;
    char body[512];
    const size_t n = c->server->params.refusal(status, message, body, sizeof body);
    c->keep_alive = false;
    c->refused = true;
    bufferevent_disable(c->events, EV_READ);
    write_head(c, status, c->server->params.refusal_type, NULL, (long long)n);
    if (!method || strcmp(method, "HEAD") != 0) {
        bufferevent_write(c->events, body, n);
        c->n_sent = n;
    }
    end_answer(c);
}

/* ------------------------------------------------------------------------------------------------ the request */

/* The head is there: whoever may not ask is told before the body takes memory. */
static void take_head(struct http_connection *c)
{
    const struct http_head *head = &c->reader.head;
    c->keep_alive = head->keep_alive;
    const enum http_access access = http_check_access(&c->server->params, head, c->server->loopback, &c->client);
    if (access == HTTP_WRONG_KEY)
        refuse(c, 401, "Invalid API Key");
    else if (access == HTTP_FOREIGN_PAGE)
        refuse(c, 403, "without API keys this is shown only to the server's own page, and to programs that are no browser");
    else if (head->expect && (head->chunked || head->length))
        bufferevent_write(c->events, "HTTP/1.1 100 Continue\r\n\r\n", 25);
}

/* The request is whole. */
static void handle(struct http_connection *c)
{
    const struct http_head *head = &c->reader.head;
    struct butler_buffer *body = &c->reader.body;
    struct http_exchange *x = c->exchange = serve_alloc(1, sizeof *x);
    char extra[2048];
    c->state = ANSWER;
    event_del(c->deadline);
    serve_text_append(body, "", 1);
    *x = (struct http_exchange){.connection = c,
                                .method = head->method,
                                .path = head->path,
                                .query = head->query,
                                .key = head->key,
                                .owner = c->client.owner,
                                .admin = c->client.admin,
                                .body = body->bytes,
                                .n_body = body->n - 1};
    if (c->server->draining) {
        refuse(c, 503, "the server is shutting down");
    } else if (strcmp(x->method, "OPTIONS") == 0) {
        snprintf(extra, sizeof extra,
                 "Access-Control-Allow-Methods: GET, POST, OPTIONS\r\nAccess-Control-Allow-Headers: %.1024s\r\n"
                 "Access-Control-Max-Age: 600\r\n",
                 head->asked_headers ? head->asked_headers : "*");
        http_reply(x, 204, NULL, extra, NULL, 0);
    } else {
        c->server->params.handler(c->server->params.user, x);
    }
}

/* Takes what has come as far as it goes. A handler may answer, and the connection go on to its next request, or be freed: then
 * nothing here touches it again. */
static void read_request(struct http_connection *c)
{
    struct evbuffer *in = bufferevent_get_input(c->events);
    enum http_read result = HTTP_READ_HEAD;
    while (c->state == READ && result == HTTP_READ_HEAD) {
        const bool begun = c->reader.begun;
        result = http_read(&c->reader, in);
        if (c->reader.begun && !begun) { /* from now on it has to come */
            clock_gettime(CLOCK_MONOTONIC, &c->begin);
            set_deadline(c, c->server->params.timeout_s);
        }
        if (result == HTTP_READ_HEAD)
            take_head(c);
        else if (result == HTTP_READ_WRONG)
            refuse(c, c->reader.status, c->reader.message);
    }
    if (c->state == READ && result == HTTP_READ_WHOLE)
        handle(c);
}

/* ------------------------------------------------------------------------------------------------------ events */

static void on_read(struct bufferevent *events, void *user)
{
    struct http_connection *c = user;
    struct evbuffer *in = bufferevent_get_input(events);
    if (c->state == LINGER)
        evbuffer_drain(in, evbuffer_get_length(in));
    else
        read_request(c);
}

static void on_written(struct bufferevent *events, void *user)
{
    struct http_connection *c = user;
    if (c->state != FLUSH || evbuffer_get_length(bufferevent_get_output(events)) > 0)
        return;
    if (!c->refused || shutdown(bufferevent_getfd(events), SHUT_WR) < 0) {
        close_connection(c, false);
        return;
    }
    c->state = LINGER;
    set_deadline(c, LINGER_SECONDS);
    bufferevent_enable(events, EV_READ);
}

static void on_event(struct bufferevent *events, short what, void *user)
{
    (void)events;
    (void)what; /* the end, an error, or nothing was read of an answer for too long */
    close_connection(user, true);
}

static void on_deadline(evutil_socket_t fd, short what, void *user)
{
    struct http_connection *c = user;
    const size_t n = evbuffer_get_length(bufferevent_get_output(c->events));
    (void)fd;
    (void)what;
    if ((c->state == FLUSH || (c->state == READ && !c->reader.begun)) && n > 0 && n < c->n_pending) {
        set_deadline(c, c->server->params.timeout_s); /* it is slow, but it reads */
        return;
    }
    /* Between requests there is nothing to answer, and of a client that does not read nothing can be told. */
    if (c->state != READ || !c->reader.begun)
        close_connection(c, true);
    else
        refuse(c, 408, "the request did not come in whole in time");
}

static void name_peer(struct http_connection *c, const struct sockaddr *address, int n)
{
    char host[48];
    if (address->sa_family == AF_UNIX || getnameinfo(address, (socklen_t)n, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
        snprintf(host, sizeof host, "unix");
    snprintf(c->peer, sizeof c->peer, "%s", host);
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int n, void *user)
{
    struct http_server *server = user;
    (void)listener;
    if (server->n_connections >= server->params.max_connections) {
        static const char text[] =
            "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        if (write(fd, text, sizeof text - 1) < 0)
            errno = 0; /* it is closed in any case */
        evutil_closesocket(fd);
        return;
    }
    struct http_connection *c = serve_alloc(1, sizeof *c);
    c->server = server;
    c->reader.max_header = server->params.max_header;
    c->reader.max_body = server->params.max_body;
    c->events = bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE);
    c->deadline = c->events ? evtimer_new(server->base, on_deadline, c) : NULL;
    if (!c->deadline) {
        if (c->events)
            bufferevent_free(c->events);
        else
            evutil_closesocket(fd);
        free(c);
        return;
    }
    c->link = &server->connections;
    c->next = server->connections;
    if (c->next)
        c->next->link = &c->next;
    server->connections = c;
    server->n_connections++;
    name_peer(c, address, n);
    const struct timeval unread = {.tv_sec = server->params.timeout_s};
    bufferevent_setcb(c->events, on_read, on_written, on_event, c);
    bufferevent_setwatermark(c->events, EV_READ, 0, server->params.max_header + MAX_PIPELINED);
    bufferevent_set_timeouts(c->events, NULL, &unread);
    bufferevent_enable(c->events, EV_READ | EV_WRITE);
    set_deadline(c, server->params.timeout_s);
}

static void on_rested(evutil_socket_t fd, short what, void *user)
{
    struct http_server *server = user;
    (void)fd;
    (void)what;
    if (server->listener)
        evconnlistener_enable(server->listener);
}

/* Accepting failed: files or memory have run out. The connection still waits, so that without a rest the next try would follow at
 * once. */
static void on_accept_error(struct evconnlistener *listener, void *user)
{
    struct http_server *server = user;
    const struct timeval rest = {.tv_usec = 1000 * REST_MS};
    serve_notice(&server->notices, "a connection cannot be accepted now: %s", strerror(EVUTIL_SOCKET_ERROR()));
    evconnlistener_disable(listener);
    event_add(server->rest, &rest);
}

/* Clients are refused from now on, or find the server that takes over. */
static void stop_listening(struct http_server *server)
{
    if (server->listener)
        evconnlistener_free(server->listener);
    if (server->unix_path[0])
        unlink(server->unix_path);
    server->listener = NULL;
    server->unix_path[0] = 0;
}

/* The first signal lets answers end, the second does not. */
static void on_signal(evutil_socket_t signal_number, short what, void *user)
{
    struct http_server *server = user;
    (void)signal_number;
    (void)what;
    if (server->draining) {
        event_base_loopbreak(server->base);
        return;
    }
    server->draining = true;
    stop_listening(server);
    for (struct http_connection *c = server->connections, *next; c; c = next) {
        next = c->next;
        if (c->state == READ && evbuffer_get_length(bufferevent_get_output(c->events)) > 0)
            flush(c); /* the answer before has been written, but not all of it sent */
        else if (c->state != ANSWER && c->state != FLUSH)
            close_connection(c, false);
    }
    if (!server->connections)
        event_base_loopbreak(server->base);
}

static void on_wake(evutil_socket_t fd, short what, void *user)
{
    struct http_server *server = user;
    uint64_t count;
    (void)what;
    if (read(fd, &count, sizeof count) > 0)
        server->params.on_wake(server->params.user);
}

void http_server_wake(struct http_server *server)
{
    const uint64_t one = 1;
    /* It fails only when the counter is full: then a wake is due already. */
    if (write(server->wake_fd, &one, sizeof one) < 0)
        return;
}

/* ------------------------------------------------------------------------------------------------------ server */

static bool is_unix(const char *host)
{
    const size_t n = strlen(host);
    return n > 5 && strcmp(host + n - 5, ".sock") == 0;
}

/* A socket file that nobody listens at is left from a server that was killed. */
static void remove_stale(const struct sockaddr_un *address)
{
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)address, sizeof *address) < 0 && errno == ECONNREFUSED)
        unlink(address->sun_path);
    if (fd >= 0)
        close(fd);
}

static bool listen_unix(struct http_server *server, unsigned flags, char *error, size_t n_error)
{
    const char *path = server->params.host;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(error, n_error, "%s: the path of a unix socket has at most %zu bytes", path, sizeof address.sun_path - 1);
        return false;
    }
    strcpy(address.sun_path, path);
    remove_stale(&address);
    server->listener =
        evconnlistener_new_bind(server->base, on_accept, server, flags, 128, (struct sockaddr *)&address, sizeof address);
    if (server->listener)
        strcpy(server->unix_path, path);
    else
        snprintf(error, n_error, "%s: %s", path, strerror(errno));
    return server->listener != NULL;
}

static bool listen_tcp(struct http_server *server, unsigned flags, char *error, size_t n_error)
{
    const struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *found = NULL;
    struct sockaddr_storage bound;
    socklen_t n_bound = sizeof bound;
    char port[16];
    snprintf(port, sizeof port, "%d", server->params.port);
    const int code = getaddrinfo(server->params.host, port, &hints, &found);
    if (code != 0) {
        snprintf(error, n_error, "--host %s: %s", server->params.host, gai_strerror(code));
        return false;
    }
    for (const struct addrinfo *a = found; a && !server->listener; a = a->ai_next)
        server->listener = evconnlistener_new_bind(server->base, on_accept, server, flags, 128, a->ai_addr, (int)a->ai_addrlen);
    if (!server->listener)
        snprintf(error, n_error, "%s port %s: %s", server->params.host, port, strerror(errno));
    freeaddrinfo(found);
    if (server->listener && getsockname(evconnlistener_get_fd(server->listener), (struct sockaddr *)&bound, &n_bound) == 0) {
        const struct sockaddr_in *v4 = (struct sockaddr_in *)&bound;
        server->loopback = bound.ss_family == AF_INET6 ? IN6_IS_ADDR_LOOPBACK(&((struct sockaddr_in6 *)&bound)->sin6_addr)
                                                       : ntohl(v4->sin_addr.s_addr) >> 24 == 127;
        server->port = ntohs(bound.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&bound)->sin6_port : v4->sin_port);
    }
    return server->listener != NULL;
}

/* Raises the limit on open files as far as it goes; what it leaves beside the other files are connections. */
static bool limit_connections(struct http_server *server, char *error, size_t n_error)
{
    struct rlimit files;
    const long long others = SPARE_FILES + server->params.n_files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return true;
    if (files.rlim_cur != files.rlim_max) {
        files.rlim_cur = files.rlim_max;
        if (setrlimit(RLIMIT_NOFILE, &files) < 0 && getrlimit(RLIMIT_NOFILE, &files) < 0)
            return true;
    }
    const long long most = files.rlim_cur > INT_MAX ? INT_MAX : (long long)files.rlim_cur;
    if (most - others >= server->params.max_connections)
        return true;
    if (most <= others) {
        snprintf(error, n_error, "the limit on open files is %lld (ulimit -n); the server needs more than %lld", most, others);
        return false;
    }
    server->params.max_connections = (int)(most - others);
    serve_notice(&server->notices, "at most %d connections: the limit on open files is %lld (ulimit -n), and %lld are for others",
                 server->params.max_connections, most, others);
    return true;
}

struct http_server *http_server_new(const struct http_params *params, char *error, size_t n_error)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    const unsigned flags = LEV_OPT_CLOSE_ON_FREE | LEV_OPT_CLOSE_ON_EXEC | LEV_OPT_REUSEABLE;
    struct http_server *server = serve_alloc(1, sizeof *server);
    bool ready = true;
    server->params = *params;
    server->notices = (struct serve_notices){.say = params->say, .user = params->say_user};
    server->wake_fd = -1;
    if (!limit_connections(server, error, n_error)) {
        http_server_free(server);
        return NULL;
    }
    server->base = event_base_new();
    server->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    snprintf(error, n_error, "the event loop: %s", strerror(errno));
    if (!server->base || server->wake_fd < 0 ||
        !(is_unix(params->host) ? listen_unix : listen_tcp)(server, flags, error, n_error)) {
        http_server_free(server);
        return NULL;
    }
    server->wake = event_new(server->base, server->wake_fd, EV_READ | EV_PERSIST, on_wake, server);
    server->rest = evtimer_new(server->base, on_rested, server);
    ready = server->rest && server->wake && event_add(server->wake, NULL) == 0;
    evconnlistener_set_error_cb(server->listener, on_accept_error);
    for (int i = 0; i < 2; i++) {
        server->signals[i] = evsignal_new(server->base, numbers[i], on_signal, server);
        ready = ready && server->signals[i] && event_add(server->signals[i], NULL) == 0;
    }
    if (ready)
        return server;
    snprintf(error, n_error, "the event loop cannot be set up");
    http_server_free(server);
    return NULL;
}

void http_server_close(struct http_server *server)
{
    while (server->connections)
        close_connection(server->connections, true);
}

void http_server_free(struct http_server *server)
{
    if (!server)
        return;
    http_server_close(server);
    stop_listening(server);
    if (server->wake)
        event_free(server->wake);
    if (server->rest)
        event_free(server->rest);
    for (int i = 0; i < 2; i++)
        if (server->signals[i])
            event_free(server->signals[i]);
    if (server->wake_fd >= 0)
        close(server->wake_fd);
    if (server->base)
        event_base_free(server->base);
    serve_notices_flush(&server->notices);
    free(server);
}

int http_server_port(const struct http_server *server)
{
    return server->port;
}

int http_server_n_connections(const struct http_server *server)
{
    return server->n_connections;
}

void http_server_run(struct http_server *server)
{
    event_base_dispatch(server->base);
}
