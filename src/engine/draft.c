/* Drafts and their checks (self-speculative decoding): the same session drafts tokens under its policy, is cut back, and decodes
 * all of them again in one exact pass, whose rows take the place of the drafts' in the cache. The sampler draws every token of the
 * text from exact logits; drafts are drawn with the same random numbers, and are right where both agree. */
#include <stdlib.h>
#include <string.h>

#include "engine/sampler.h"
#include "engine/session.h"

enum { DEFAULT_DRAFTS = 8, MOST_DRAFTS = BUTLER_CHECK_ROWS - 1 };

struct butler_draft {
    struct butler_session *session;
    int n_max;
    bool fixed;
    float *logits; /* [n_vocab] of the last token that was confirmed */
};

/* One call of butler_draft_step. */
struct round {
    struct butler_draft *draft;
    struct butler_sampler *sampler;
    int32_t rows[BUTLER_CHECK_ROWS]; /* the token that is given, and the drafts behind it */
    int n_drafts, first;             /* first: position of rows[0] */
    int32_t *ids;
    int n; /* tokens drawn from exact logits */
    bool ended;
    struct butler_error *err;
    int code;
};

static int check_session(const struct butler_session *session, struct butler_error *err)
{
    const struct butler_policy *policy = &session->policy;
    if (policy->method != BUTLER_RETRIEVE)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s does not retrieve: it drafts no tokens for an exact check",
                           policy->name);
    if (butler_policy_observes(policy, true) > 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s observes the attention of every token: drafts that are wrong cannot be taken back", policy->text);
    return 0;
}

struct butler_draft *butler_draft_new(struct butler_session *session, const struct butler_draft_params *params,
                                      struct butler_error *err)
{
    static const struct butler_draft_params defaults = {0};
    if (BUTLER_IS_NULL(session, err))
        return NULL;
    if (!params)
        params = &defaults;
    if (butler_check_struct(params->struct_size, sizeof *params, "butler_draft_params", err) < 0 || check_session(session, err) < 0)
        return NULL;
    if (params->n_max < 0 || params->n_max > MOST_DRAFTS) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d drafts for a check: there may be 1 to %d", params->n_max, MOST_DRAFTS);
        return NULL;
    }
    struct butler_draft *draft = butler_alloc(sizeof *draft, err);
    if (!draft)
        return NULL;
    draft->session = session;
    draft->n_max = params->n_max ? params->n_max : DEFAULT_DRAFTS;
    draft->fixed = params->fixed;
    draft->logits = butler_alloc((size_t)session->model->hp.n_vocab * sizeof *draft->logits, err);
    if (!draft->logits) {
        butler_draft_free(draft);
        return NULL;
    }
    return draft;
}

void butler_draft_free(struct butler_draft *draft)
{
    if (!draft)
        return;
    free(draft->logits);
    free(draft);
}

/* Decodes under the policy and draws; the session and the sampler are then as they were. */
static int make_drafts(struct round *round, int n)
{
    struct butler_session *session = round->draft->session;
    const struct butler_sampler_mark mark = butler_sampler_mark(round->sampler);
    const int n_vocab = session->model->hp.n_vocab;
    int code = 0;
    for (round->n_drafts = 0; round->n_drafts < n && code == 0;) {
        const int32_t *last = &round->rows[round->n_drafts];
        if (round->n_drafts > 0 && butler_token_is_end(session->model, *last))
            break;
        const struct butler_span span = {.session = session, .ids = last, .n = 1};
        code = butler_run(session->engine, &span, 1, round->err);
        const int32_t id = code < 0 ? code : butler_sample(round->sampler, session->logits, n_vocab, round->err);
        if (id < 0)
            code = id;
        else
            round->rows[++round->n_drafts] = id;
    }
    butler_sampler_rewind(round->sampler, &mark);
    if (!session->failed && butler_session_truncate(session, round->first, code < 0 ? NULL : round->err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    return code;
}

/* Exact logits behind row n of the round: the next token of the text is drawn, as long as all drafts before were right. */
static bool take_logits(void *user, int position, const float *logits)
{
    struct round *round = user;
    const struct butler_session *session = round->draft->session;
    const size_t n_vocab = (size_t)session->model->hp.n_vocab;
    (void)position;
    if (round->ended)
        return true;
    const int32_t id = butler_sample(round->sampler, logits, (int)n_vocab, round->err);
    round->ended =
        id < 0 || round->n == round->n_drafts || id != round->rows[round->n + 1] || butler_token_is_end(session->model, id);
    if (id < 0) {
        round->code = id;
        return true;
    }
    if (round->ended && round->n < round->n_drafts) /* later rows overwrite the session's */
        memcpy(round->draft->logits, logits, n_vocab * sizeof *logits);
    round->ids[round->n++] = id;
    return true;
}

static int check_drafts(struct round *round)
{
    struct butler_session *session = round->draft->session;
    const struct butler_sampler_mark mark = butler_sampler_mark(round->sampler);
    const size_t n_vocab = (size_t)session->model->hp.n_vocab;
    const int n_rows = round->n_drafts + 1;
    const struct butler_span span = {
        .session = session, .ids = round->rows, .n = n_rows, .exact = true, .each = take_logits, .user = round};
    int code = butler_run(session->engine, &span, 1, round->err);
    if (code == 0)
        code = round->code;
    if (code < 0)
        butler_sampler_rewind(round->sampler, &mark);
    const int n_held = code < 0 ? 0 : round->n;
    if (session->failed || n_held == n_rows)
        return code;
    if (butler_session_truncate(session, round->first + n_held, code < 0 ? NULL : round->err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    if (code == 0) {
        memcpy(session->logits, round->draft->logits, n_vocab * sizeof *session->logits);
        session->has_logits = true;
    }
    return code;
}

/* Tokens count that stayed. */
static void count_tokens(struct butler_session *session, const struct butler_stats *before, int first, const struct round *round)
{
    struct butler_stats *stats = &session->stats;
    stats->n_decode = before->n_decode;
    stats->full_kv_bytes = before->full_kv_bytes;
    for (int n = first + 1; n <= session->n_past; n++) {
        stats->n_decode++;
        stats->full_kv_bytes += 2 * (uint64_t)session->kv.row_bytes * (uint64_t)session->shape.n_kv_heads *
                                butler_model_layer_tokens(session->model, n);
    }
    if (round->n_drafts > 0) {
        stats->n_checks++;
        stats->n_drafted += (uint64_t)round->n_drafts;
        stats->n_accepted += (uint64_t)BUTLER_MAX(round->n - 1, 0);
    }
}

int butler_draft_step(struct butler_draft *draft, struct butler_sampler *sampler, int32_t id, int32_t *ids, int max_ids,
                      struct butler_error *err)
{
    if (BUTLER_IS_NULL(draft, err) || BUTLER_IS_NULL(sampler, err) || BUTLER_IS_NULL(ids, err))
        return BUTLER_ERROR_ARGUMENT;
    if (max_ids < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "room for %d tokens: a step gives 1 or more", max_ids);
    struct butler_session *session = draft->session;
    struct round round = {.draft = draft, .sampler = sampler, .rows = {id}, .first = session->n_past, .ids = ids, .err = err};
    const struct butler_stats before = session->stats;
    const int n = BUTLER_MIN(BUTLER_MIN(draft->n_max, max_ids - 1), session->n_ctx - session->n_past - 1);
    session->drafting = true;
    double start = butler_seconds();
    int code = n > 0 ? make_drafts(&round, n) : 0;
    session->stats.draft_s += butler_seconds() - start;
    start = butler_seconds();
    if (code == 0)
        code = check_drafts(&round);
    session->stats.check_s += butler_seconds() - start;
    session->drafting = false;
    if (!session->failed) {
        butler_session_release_windows(session);
        count_tokens(session, &before, round.first, &round);
    }
    return code < 0 ? code : round.n;
}
