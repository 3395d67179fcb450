/* Who may ask for what: keys of clients, and pages of other origins. */
#ifndef SERVE_HTTP_ACCESS_H
#define SERVE_HTTP_ACCESS_H

#include "serve/http.h"
#include "serve/http_parse.h"

enum http_access {
    HTTP_ALLOWED,
    HTTP_WRONG_KEY,    /* 401 */
    HTTP_FOREIGN_PAGE, /* 403: what a page of another origin asks for shows what others wrote */
};

struct http_client {
    int owner;  /* 1 + the number of its key; 0: the server has no keys, or the path needs none */
    bool admin; /* sees what all owners have: it has the admin key, or the server has no keys */
};

/* loopback: the server listens at an address of this machine alone. Takes a time that does not tell how much of a key is right. */
enum http_access http_check_access(const struct http_params *params, const struct http_head *head, bool loopback,
                                   struct http_client *client);

/* What logs call an accepted key: the first 8 of the 16 digits that `printf %s KEY | xxh64sum` prints; "-" without one. */
void http_name_key(const struct http_client *client, const char *key, char name[9]);

#endif
