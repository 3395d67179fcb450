/* The server's own page (serve/page/): a chat about files, and which tokens its answers read. */
#ifndef SERVE_PAGE_H
#define SERVE_PAGE_H

#include <stdbool.h>

struct http_exchange;

/* Whether a path is one of the page's. */
bool serve_page_has(const char *path);
/* Answers GET "/" and what that page loads. False: the request is another. */
bool serve_page_reply(struct http_exchange *exchange);

#endif
