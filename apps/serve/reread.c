/* See reread.h. Between two passes nothing is held but tokens: what a pass has read is in the prefix cache, and in the library. */
#include "serve/reread.h"

#include <stdlib.h>
#include <string.h>

#include "serve/choice.h"

enum {
    MOST = 16,  /* texts; of more the oldest are given up */
    BLOCK = 64, /* tokens: the prefix cache keeps whole ones. A pass ends with one, and is short: a job may come meanwhile */
};

struct text {
    int32_t *ids;
    int n, known; /* known: when the pass before began */
    uint64_t salt;
};

struct serve_reread {
    struct butler_engine *engine;
    const struct serve_params *params;
    struct text texts[MOST]; /* the oldest first */
    int n;
    uint64_t n_lookups, n_hits;
};

struct serve_reread *serve_reread_new(struct butler_engine *engine, const struct serve_params *params)
{
    struct serve_reread *reread = serve_alloc(1, sizeof *reread);
    reread->engine = engine;
    reread->params = params;
    return reread;
}

static void drop(struct serve_reread *reread, int i)
{
    free(reread->texts[i].ids);
    reread->n--;
    memmove(reread->texts + i, reread->texts + i + 1, (size_t)(reread->n - i) * sizeof *reread->texts);
}

void serve_reread_free(struct serve_reread *reread)
{
    while (reread && reread->n > 0)
        drop(reread, 0);
    free(reread);
}

void serve_reread_add(struct serve_reread *reread, const struct serve_job *job, const struct serve_choice *choice)
{
    const int n = job->n_prompt + (int)(choice->ids.n / sizeof(int32_t));
    if (!reread->params->rereads || job->no_cache || job->error.code < 0 || n == job->n_prompt || n >= reread->params->n_ctx)
        return;
    if (reread->n == MOST)
        drop(reread, 0);
    struct text *text = &reread->texts[reread->n++];
    *text = (struct text){.ids = serve_alloc((size_t)n, sizeof *text->ids), .n = n, .known = -1, .salt = job->salt};
    memcpy(text->ids, job->prompt, (size_t)job->n_prompt * sizeof *text->ids);
    memcpy(text->ids + job->n_prompt, choice->ids.bytes, choice->ids.n);
}

bool serve_reread_pending(const struct serve_reread *reread)
{
    return reread->n > 0;
}

/* The next tokens of a text that are not known. Returns how many tokens; *ended: it is all, or it cannot be read. */
static int read_some(struct serve_reread *reread, struct text *text, bool *ended)
{
    struct butler_error err;
    const struct butler_session_params params = {
        .n_ctx = reread->params->n_ctx, .kv_type = (enum butler_kv_type)reread->params->kv_type, .policy = "full"};
    struct butler_session *session = butler_session_new(reread->engine, &params, &err);
    *ended = true;
    int n = 0;
    if (session && butler_session_set_prefix_salt(session, text->salt, &err) == 0 &&
        butler_session_use_library(session, reread->params->library, &err) == 0) {
        const int known = butler_session_adopt_prefix(session, text->ids, text->n, &err);
        const int end = (known + BLOCK + BLOCK / 2) / BLOCK * BLOCK;
        n = known <= text->known ? 0 : /* the cache has no room for more of it */ (end < text->n ? end : text->n) - known;
        const struct butler_span span = {
            .session = session, .ids = text->ids + known, .n = n, .prompt_end = text->n, .no_logits = true};
        n = n > 0 && butler_run(reread->engine, &span, 1, &err) == 0 ? n : 0;
        *ended = n == 0 || known + n == text->n;
        text->known = known;
    }
    butler_session_free(session);
    return n;
}

int serve_reread_step(struct serve_reread *reread)
{
    struct butler_engine_info before = {BUTLER_INIT(butler_engine_info)}, after = before;
    bool ended;
    butler_engine_get_info(reread->engine, &before);
    const int last = reread->n - 1, n = read_some(reread, &reread->texts[last], &ended);
    butler_engine_get_info(reread->engine, &after);
    reread->n_lookups += after.prefix_lookups - before.prefix_lookups;
    reread->n_hits += after.prefix_hits - before.prefix_hits;
    if (ended)
        drop(reread, last);
    return n;
}

void serve_reread_discount(const struct serve_reread *reread, struct butler_engine_info *info)
{
    info->prefix_lookups -= reread ? reread->n_lookups : 0;
    info->prefix_hits -= reread ? reread->n_hits : 0;
}
