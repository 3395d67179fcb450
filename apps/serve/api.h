/* The server's interfaces: OpenAI's and llama.cpp's endpoints over http.h and scheduler.h. */
#ifndef SERVE_API_H
#define SERVE_API_H

#include "serve/http.h"
#include "serve/scheduler.h"

enum { SERVE_SECRET = 192 /* bytes */ };

struct serve_config {
    struct http_params http;                 /* handler, on_wake and user are the server's */
    struct serve_params scheduler;           /* wake, user and library are the server's */
    struct butler_library *const *libraries; /* [n], where prompts are kept, one an engine; NULL: nowhere */
    struct butler_sampler_params sampling;   /* of requests that do not say otherwise; without seed */
    const char *model_name;                  /* in answers */
    const char *file_name;                   /* of the model, another name that it is known by */
    const char *chat_template;               /* Jinja; NULL: the model's own */
    const char *chat_stop;                   /* text that ends an answer of a conversation; NULL: none */
    const char *const *stops;                /* [n_stops] that end every answer, beside a request's own */
    int n_stops;
    const unsigned char *secret;         /* [SERVE_SECRET] that salts of prompts follow from; NULL: made for this start */
    void (*ready)(void *user, int port); /* the server listens; or NULL */
    void *user;
};

/* Serves until SIGTERM or SIGINT, on n engines of one model, at most SERVE_MAX_DEVICES. 0; or < 0 with *err when it cannot
 * begin. */
int serve_run(struct butler_engine *const *engines, int n, const struct serve_config *config, struct butler_error *err);

#endif
