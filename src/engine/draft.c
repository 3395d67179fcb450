/* Drafts and their checks (self-speculative decoding): the same session drafts tokens under its policy, is cut back, and decodes
 * all of them again in one exact pass, whose rows take the place of the drafts' in the cache. The sampler draws every token of the
 * text from exact logits; drafts are drawn with the same random numbers, and are right where both agree.
 *
 * How many drafts: one more costs a step under the policy and a row of the check, C together. It is right with a probability P,
 * that of all drafts so far being right, and then saves what a token costs now, T = time of the latest rounds / tokens that they
 * gave. So drafting goes on while P T > C, which maximises the tokens for the time of a round. Nothing of this changes the text. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/sampler.h"
#include "engine/session.h"

enum {
    DEFAULT_DRAFTS = 8,
    MOST_DRAFTS = BUTLER_CHECK_ROWS - 1,
    FIRST_DRAFTS = 2, /* of a round that is to learn what drafts cost and how many are right */
    FIRST_PAUSE = 64, /* tokens without drafts, where they do not pay, before the next attempt; then twice as many each time, */
    LONGEST_PAUSE = 512,
    PRIOR = 4,     /* drafts that an assumed rate counts as much as */
    N_CLASSES = 5, /* of drafts, by how far their logits are above all others */
};

/* What is known of drafts and checks. Sums fade: what is older counts less. */
struct pace {
    double draft_s, n_drafts;                    /* time of drafts */
    double rows, rows2, checks, check_s, rows_s; /* of checks: sums of rows, of their squares, 1, time, rows times time */
    double round_s, n_tokens;                    /* of rounds, and the tokens that they gave */
    double right[N_CLASSES], tried[N_CLASSES];   /* of drafts behind right ones only */
    int pause, n_paused;                         /* tokens until the next attempt; since the last drafts */
};

struct butler_draft {
    struct butler_session *session;
    int n_max;
    bool fixed;
    float *logits; /* [n_vocab] of the last token that was confirmed */
    struct pace pace;
    /* Of the latest step, for butler_draft_keep. */
    int first, n_ids;                                        /* position of its first token; ids that it gave */
    struct butler_sampler_mark marks[BUTLER_CHECK_ROWS + 1]; /* the sampler before them, and after each */
};

/* One call of butler_draft_step. */
struct round {
    struct butler_draft *draft;
    struct butler_sampler *sampler;
    int32_t rows[BUTLER_CHECK_ROWS]; /* the token that is given, and the drafts behind it */
    int classes[BUTLER_CHECK_ROWS];  /* of the drafts, by their index in rows */
    bool attempt;                    /* drafts are made to learn from them */
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
    if (session->steps) /* what a plug-in remembers of a draft could not be taken back */
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a session with step plug-ins cannot draft");
    if (policy->method == BUTLER_EVICT)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s evicts tokens, which an exact check needs: %s:method=retrieve drafts by the same scores",
                           policy->name, policy->name);
    if (policy->method != BUTLER_RETRIEVE)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s does not retrieve: it drafts no tokens for an exact check",
                           policy->name);
    return 0;
}

struct butler_draft *butler_draft_new(struct butler_session *session, const struct butler_draft_params *params,
                                      struct butler_error *err)
{
    struct butler_draft_params own;
    if (BUTLER_IS_NULL(session, err))
        return NULL;
    if (butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_draft_params, fixed), "butler_draft_params", err) < 0 ||
        check_session(session, err) < 0)
        return NULL;
    params = &own;
    if (params->n_max < 0 || params->n_max > MOST_DRAFTS) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d drafts for a check: there may be 1 to %d", params->n_max, MOST_DRAFTS);
        return NULL;
    }
    struct butler_draft *draft = butler_alloc(sizeof *draft, err);
    if (!draft)
        return NULL;
    draft->session = session;
    butler_plan_guide(&session->policy.plan);
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

/* -------------------------------------------------------------------------------------------- how many drafts */

/* A draft's class: the farther its logit is above all others, the likelier is it right. */
static int class_of(const struct butler_session *session, int32_t id)
{
    static const float margins[N_CLASSES - 1] = {0.5f, 1, 2, 4};
    const struct butler_top *top = &session->top;
    const float others = session->model->hp.n_vocab < 2 ? -INFINITY : top->values[top->ids[0] == id];
    int class = 0;
    while (class < N_CLASSES - 1 && session->logits[id] - others >= margins[class])
        class ++;
    return class;
}

/* How many drafts of a class are right. Before any is known: nearly all, so that they are tried. */
static double rate_of(const struct pace *pace, int class)
{
    static const double assumed[N_CLASSES] = {0.6, 0.7, 0.8, 0.9, 0.97};
    return (pace->right[class] + PRIOR * assumed[class]) / (pace->tried[class] + PRIOR);
}

/* Of the first draft of a round, before its class is known. */
static double rate_of_any(const struct pace *pace)
{
    double right = 0, tried = 0;
    for (int i = 0; i < N_CLASSES; i++) {
        right += pace->right[i];
        tried += pace->tried[i];
    }
    return (right + PRIOR * 0.8) / (tried + PRIOR);
}

/* What one more draft costs, in seconds: the step, and the slope of the check's time over its rows. */
static double cost_of_draft(const struct pace *pace)
{
    const double spread = pace->checks * pace->rows2 - pace->rows * pace->rows;
    const double slope = spread > 0 ? (pace->checks * pace->rows_s - pace->rows * pace->check_s) / spread : 0;
    return pace->draft_s / pace->n_drafts + fmax(slope, 0);
}

/* Whether the round goes on to draft: there are n_drafts, all right with probability `rate`. */
static bool drafts_more(struct round *round, double rate)
{
    const struct butler_draft *draft = round->draft;
    const struct pace *pace = &draft->pace;
    if (draft->fixed)
        return true;
    if (round->n_drafts == 0) {
        round->attempt = pace->checks > 0 && pace->n_paused >= pace->pause;
        rate = rate_of_any(pace);
    }
    if (round->attempt && round->n_drafts < FIRST_DRAFTS)
        return true;
    return pace->n_drafts > 0 && rate * pace->round_s / pace->n_tokens > cost_of_draft(pace);
}

static void fade(double *sum, double x)
{
    *sum = *sum * 0.95 + x;
}

/* Times and acceptance of a round become part of what is known. */
static void learn(const struct round *round, double draft_s, double check_s)
{
    struct pace *pace = &round->draft->pace;
    const double rows = round->n_drafts + 1;
    fade(&pace->rows, rows);
    fade(&pace->rows2, rows * rows);
    fade(&pace->checks, 1);
    fade(&pace->check_s, check_s);
    fade(&pace->rows_s, rows * check_s);
    fade(&pace->round_s, draft_s + check_s);
    fade(&pace->n_tokens, round->n);
    if (round->n_drafts == 0) {
        pace->n_paused++;
        return;
    }
    fade(&pace->draft_s, draft_s);
    fade(&pace->n_drafts, round->n_drafts);
    for (int i = 1; i <= BUTLER_MIN(round->n, round->n_drafts); i++) {
        fade(&pace->tried[round->classes[i]], 1);
        fade(&pace->right[round->classes[i]], i < round->n);
    }
    pace->n_paused = 0;
    pace->pause = round->attempt ? BUTLER_MAX(BUTLER_MIN(2 * pace->pause, (int)LONGEST_PAUSE), (int)FIRST_PAUSE) : (int)FIRST_PAUSE;
}

/* ------------------------------------------------------------------------------------------------- a round */

/* Decodes under the policy and draws; the session and the sampler are then as they were. */
static int make_drafts(struct round *round, int n)
{
    struct butler_session *session = round->draft->session;
    const struct butler_sampler_mark mark = butler_sampler_mark(round->sampler);
    const int n_vocab = session->model->hp.n_vocab;
    double rate = 1;
    int code = 0;
    while (round->n_drafts < n && code == 0 && drafts_more(round, rate)) {
        const int32_t *last = &round->rows[round->n_drafts];
        if (round->n_drafts > 0 && butler_token_is_end(session->model, *last))
            break;
        const struct butler_span span = {.session = session, .ids = last, .n = 1};
        code = butler_run(session->engine, &span, 1, round->err);
        if (code < 0)
            break;
        struct butler_error refused; /* by a grammar, say, what only a wrong draft leads to: the exact text will tell */
        const int32_t id = butler_sample(round->sampler, session->logits, n_vocab, &refused);
        if (id < 0)
            break;
        round->rows[++round->n_drafts] = id;
        round->classes[round->n_drafts] = class_of(session, id);
        rate *= rate_of(&round->draft->pace, round->classes[round->n_drafts]);
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
    round->draft->marks[round->n] = butler_sampler_mark(round->sampler);
    return true;
}

static int check_drafts(struct round *round)
{
    struct butler_session *session = round->draft->session;
    const size_t n_vocab = (size_t)session->model->hp.n_vocab;
    const int n_rows = round->n_drafts + 1;
    const struct butler_span span = {
        .session = session, .ids = round->rows, .n = n_rows, .exact = true, .each = take_logits, .user = round};
    round->draft->marks[0] = butler_sampler_mark(round->sampler);
    int code = butler_run(session->engine, &span, 1, round->err);
    if (code == 0)
        code = round->code;
    if (code < 0)
        butler_sampler_rewind(round->sampler, &round->draft->marks[0]);
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
    if (session->steps && check_session(session, err) < 0) /* added since */
        return BUTLER_ERROR_ARGUMENT;
    draft->n_ids = 0;
    struct round round = {.draft = draft, .sampler = sampler, .rows = {id}, .first = session->n_past, .ids = ids, .err = err};
    const struct butler_stats before = session->stats;
    int n = BUTLER_MIN(BUTLER_MIN(draft->n_max, max_ids - 1), session->n_ctx - session->n_past - 1);
    while (n > 0 && !butler_kv_has_room(&session->kv, n + 1)) /* where dense decoding has room, so has this */
        n--;
    butler_session_release_windows(session); /* not behind the step: butler_draft_keep may go back to its first token */
    session->drafting = true;
    const double start = butler_seconds();
    int code = make_drafts(&round, n);
    const double drafted = butler_seconds();
    if (code == 0)
        code = check_drafts(&round);
    const double checked = butler_seconds();
    session->drafting = false;
    if (!session->failed)
        count_tokens(session, &before, round.first, &round);
    if (code < 0)
        return code;
    if (round.n_drafts > 0) {
        session->stats.draft_s += drafted - start;
        session->stats.check_s += checked - drafted;
    }
    learn(&round, drafted - start, checked - drafted);
    draft->first = round.first;
    draft->n_ids = round.n;
    return round.n;
}

int butler_draft_keep(struct butler_draft *draft, struct butler_sampler *sampler, int n, struct butler_error *err)
{
    if (BUTLER_IS_NULL(draft, err) || BUTLER_IS_NULL(sampler, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_session *session = draft->session;
    if (n < 0 || n > draft->n_ids || session->n_past != draft->first + draft->n_ids)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%d of the %d tokens of the latest step, after which the session held %d: it holds %d", n, draft->n_ids,
                           draft->first + draft->n_ids, session->n_past);
    if (n == draft->n_ids)
        return 0;
    /* The last token that stays is decoded again, for its logits. */
    const int last = draft->first + BUTLER_MAX(n - 1, 0);
    const int32_t id = session->tokens[last];
    const struct butler_span span = {.session = session, .ids = &id, .n = 1, .exact = true};
    const struct butler_stats before = session->stats;
    int code = butler_session_truncate(session, last, err);
    if (code == 0)
        code = butler_run(session->engine, &span, 1, err);
    if (code < 0)
        return code;
    const uint64_t bytes = session->stats.full_kv_bytes - before.full_kv_bytes; /* nearly those of each token that goes */
    const uint64_t n_gone = (uint64_t)(draft->first + draft->n_ids - session->n_past);
    session->stats.n_decode = before.n_decode - n_gone;
    session->stats.full_kv_bytes = before.full_kv_bytes - bytes * n_gone;
    butler_sampler_rewind(sampler, &draft->marks[n]);
    draft->n_ids = 0;
    return 0;
}
