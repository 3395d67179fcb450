/* butler_run: spans of tokens of many sessions, cut into passes that the forward pass takes whole. Which tokens share a pass
 * changes no result: products and attention of a row do not depend on the other rows, and policies cut caches at positions of the
 * text. */
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "engine/library.h"
#include "engine/prefix.h"
#include "engine/schedule.h"
#include "engine/session.h"

/* How far a span is. */
struct progress {
    const struct butler_span *span;
    struct butler_error *err;
    int done;
    bool ended; /* with an error, or whole */
};

/* Everything that can be wrong with a span, before anything changes. */
static int check_span(const struct butler_engine *engine, const struct butler_span *span, struct butler_error *err)
{
    const struct butler_session *session = span->session;
    if (!session)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a span without a session");
    if (session->engine != engine)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "the session belongs to another engine");
    if (session->failed)
        return butler_session_fault(session, err);
    if (span->n < 1 || !span->ids)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "no tokens to run");
    if (span->n > session->n_ctx - session->n_past)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%d tokens after %d do not fit in a context of %d", span->n, session->n_past,
                           session->n_ctx);
    if (span->prompt_end > session->n_ctx)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "a prompt of %d tokens does not fit in a context of %d", span->prompt_end,
                           session->n_ctx);
    if (span->exact && session->policy.method == BUTLER_EVICT)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s evicts tokens: none of them can be exact", session->policy.name);
    for (int i = 0; i < span->n; i++)
        if (span->ids[i] < 0 || span->ids[i] >= session->model->hp.n_vocab)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "token %d is %d: the vocabulary ends at %d", i, span->ids[i],
                               session->model->hp.n_vocab - 1);
    return 0;
}

static int check_spans(const struct butler_engine *engine, const struct butler_span *spans, int n, struct butler_error *errs)
{
    int first = 0;
    for (int s = 0; s < n; s++) {
        struct butler_error own = {0}, *err = errs ? &errs[s] : &own;
        err->code = 0;
        int code = check_span(engine, &spans[s], err);
        for (int i = 0; i < s && code == 0; i++)
            if (spans[i].session == spans[s].session)
                code = butler_fail(err, BUTLER_ERROR_ARGUMENT, "spans %d and %d are of the same session", i, s);
        first = first == 0 ? code : first;
    }
    return first;
}

/* The next tokens of a span as a part of a pass that has room for so many rows; false where it has none. */
static bool next_part(const struct progress *progress, int room, struct butler_part *part)
{
    const struct butler_span *span = progress->span;
    struct butler_session *session = span->session;
    const struct butler_policy *policy = &session->policy;
    const int n_past = session->n_past, n_left = span->n - progress->done;
    *part = (struct butler_part){.session = session,
                                 .ids = span->ids + progress->done,
                                 .n = 1,
                                 .decode = n_past >= span->prompt_end,
                                 .exact = span->exact && n_past >= span->prompt_end,
                                 .each = span->each,
                                 .hidden = span->hidden,
                                 .user = span->user,
                                 .err = progress->err};
    if (part->decode) {
        if (part->exact)
            part->n = BUTLER_MIN(BUTLER_MIN(n_left, room), BUTLER_CHECK_ROWS);
        part->cut_end = n_past + part->n;
        part->cuts = !part->exact && !policy->evict_at_prefill_only;
        part->logits = !span->no_logits || policy->stop_entropy >= 0 || (session->steps && !part->exact);
        return room > 0;
    }
    part->cut_end = span->prompt_end;
    if (policy->prefill_evict)
        part->cut_end = BUTLER_MIN(part->cut_end, (n_past / BUTLER_PREFILL_CUT + 1) * BUTLER_PREFILL_CUT);
    part->n = BUTLER_MIN(BUTLER_MIN(n_left, part->cut_end - n_past), room);
    const int split = butler_shelf_split(session, span->prompt_end);
    part->n = BUTLER_MIN(part->n, split - n_past);
    part->n = butler_schedule_prompt_tokens(policy, n_past, span->prompt_end, part->n);
    part->shared_end = butler_schedule_shared_end(policy, span->prompt_end);
    part->sparse = butler_schedule_sparse(policy, n_past, span->prompt_end);
    part->cuts = n_past + part->n == part->cut_end;
    part->ends_prompt = n_past + part->n == span->prompt_end;
    part->logits = !span->no_logits && part->ends_prompt;
    return part->n > 0;
}

/* Parts of a pass: decode steps first, for they are few rows that somebody waits for. spans_of: which span each part is of. */
static int make_pass(struct butler_engine *engine, struct progress *progress, int n, int *spans_of)
{
    int n_parts = 0, n_rows = 0;
    for (int decode = 1; decode >= 0; decode--)
        for (int s = 0; s < n; s++) {
            struct butler_part *part = &engine->scratch.parts[n_parts];
            if (progress[s].ended || n_rows == engine->n_block || !next_part(&progress[s], engine->n_block - n_rows, part) ||
                part->decode != (bool)decode)
                continue;
            n_rows += part->n;
            spans_of[n_parts++] = s;
        }
    return n_parts;
}

static bool is_cancelled(struct butler_session *session)
{
    return __atomic_exchange_n(&session->cancelled, 0, __ATOMIC_ACQ_REL) != 0;
}

static void cancel(struct progress *progress)
{
    progress->ended = true;
    butler_shelf_keep(progress->span->session, progress->span->prompt_end, true);
    butler_fail(progress->err, BUTLER_ERROR_CANCELLED, "cancelled after %d of %d tokens", progress->done, progress->span->n);
}

/* After a pass: counts, and tells who asked. */
static void account(struct progress *progress, const struct butler_part *part, double seconds)
{
    struct butler_session *session = part->session;
    const struct butler_hparams *hp = &session->model->hp;
    *(part->decode ? &session->stats.decode_s : &session->stats.prefill_s) += seconds;
    if (part->failed) {
        progress->ended = true;
        return;
    }
    progress->done += part->n;
    progress->ended = progress->done == progress->span->n;
    if (part->decode) {
        session->stats.n_decode += (uint64_t)part->n;
        for (int n = session->n_past - part->n + 1; n <= session->n_past; n++)
            session->stats.full_kv_bytes +=
                2 * (uint64_t)session->kv.row_bytes * (uint64_t)hp->n_kv_heads * butler_model_layer_tokens(session->model, n);
        if (!part->exact) {
            butler_audit_end(session);
            butler_receipt_end_step(session);
        }
    } else {
        session->stats.n_prefill += (uint64_t)part->n;
        if (session->engine->prefix)
            butler_prefix_add(session->engine->prefix, session, part->ends_prompt);
        butler_shelf_keep(session, progress->span->prompt_end, part->ends_prompt);
        if (session->progress && !session->progress(session->progress_user, progress->done, progress->span->n) && !progress->ended)
            cancel(progress);
    }
    if (!session->drafting)
        butler_session_release_windows(session); /* after the prefix cache has taken its share */
    if (part->cancelled && !part->failed)        /* also in the last pass: rows may have been left out */
        cancel(progress);
}

/* A part has failed. Where that was because rows that lie in the library's files cannot be had, and all that the session had before
 * this span is such rows, what it had is read again, and the span goes on. */
static void read_again(struct progress *progress)
{
    struct butler_session *session = progress->span->session;
    const int n = session->n_past, n_adopted = session->n_adopted;
    struct butler_error *err = progress->err;
    if (n - progress->done != n_adopted || n_adopted == 0 || n >= progress->span->prompt_end)
        return;
    /* As many tokens as gave n_adopted; what those behind n are does not matter. */
    const int n_ids = n_adopted + (butler_shelf_has_states(session) ? 1 : BUTLER_MAX(session->policy.plan.observe[0], 1));
    int32_t *ids = calloc((size_t)BUTLER_MAX(n_ids, n), sizeof *ids);
    if (!ids)
        return;
    memcpy(ids, session->tokens, (size_t)n * sizeof *ids);
    if (butler_shelf_start_again(session)) {
        const int n_known = butler_session_adopt_prefix(session, ids, n_ids, err);
        const struct butler_span span = {.struct_size = sizeof span,
                                         .session = session,
                                         .ids = ids + n_known,
                                         .n = n - n_known,
                                         .prompt_end = progress->span->prompt_end,
                                         .no_logits = true};
        if (n_known >= 0 && (n_known == n || butler_run(session->engine, &span, 1, err) == 0)) {
            err->code = 0;
            progress->ended = false;
        }
    }
    free(ids);
}

static int run_spans(struct butler_engine *engine, struct progress *progress, int n, int *spans_of)
{
    int n_parts, n_rows, code = 0;
    do {
        for (int s = 0; s < n; s++)
            if (!progress[s].ended && is_cancelled(progress[s].span->session))
                cancel(&progress[s]);
        n_parts = make_pass(engine, progress, n, spans_of);
        if (n_parts == 0)
            break;
        const double start = butler_seconds();
        butler_forward(engine, n_parts);
        const double seconds = butler_seconds() - start;
        n_rows = 0;
        for (int i = 0; i < n_parts; i++)
            n_rows += engine->scratch.parts[i].n;
        for (int i = 0; i < n_parts; i++)
            account(&progress[spans_of[i]], &engine->scratch.parts[i], seconds * engine->scratch.parts[i].n / n_rows);
        for (int s = 0; s < n; s++)
            if (progress[s].err->code < 0 && progress[s].span->session->kv.lost) {
                read_again(&progress[s]);
                progress[s].span->session->kv.lost = false; /* one attempt */
            }
    } while (n_parts > 0);
    for (int s = 0; s < n && code == 0; s++)
        code = progress[s].err->code;
    return code;
}

/* Spans of a program that knows more or fewer fields, as spans of this library. */
static int run_converted(struct butler_engine *engine, const struct butler_span *spans, size_t stride, int n,
                         struct butler_error *errs)
{
    struct butler_span *own = butler_alloc((size_t)n * sizeof *own, errs);
    int code = own ? 0 : BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n && code == 0; i++)
        code = butler_take_struct(&own[i], sizeof *own, (const char *)spans + (size_t)i * stride, stride, "butler_span", errs);
    if (code == 0)
        code = butler_run(engine, own, n, errs);
    free(own);
    return code;
}

int butler_run(struct butler_engine *engine, const struct butler_span *spans, int n, struct butler_error *errs)
{
    enum { FEW = 64 }; /* up to so many nothing is allocated */
    struct progress few[FEW], *progress = few;
    struct butler_error few_errors[FEW], *errors = few_errors;
    int few_parts[FEW], *spans_of = few_parts;
    if (BUTLER_IS_NULL(engine, errs) || BUTLER_IS_NULL(spans, errs))
        return BUTLER_ERROR_ARGUMENT;
    if (n < 1)
        return butler_fail(errs, BUTLER_ERROR_ARGUMENT, "a run of %d spans", n);
    const size_t stride = spans->struct_size ? spans->struct_size : BUTLER_END_OF(butler_span, hidden);
    if (stride != sizeof *spans)
        return run_converted(engine, spans, stride, n, errs);
    int code = check_spans(engine, spans, n, errs);
    if (code < 0)
        return code;
    if (n > FEW) {
        const size_t size = sizeof *progress + sizeof *errors + sizeof *spans_of;
        progress = butler_alloc((size_t)n * size, errs);
        if (!progress)
            return BUTLER_ERROR_MEMORY;
        errors = (struct butler_error *)(progress + n);
        spans_of = (int *)(errors + n);
    }
    for (int s = 0; s < n; s++) {
        errors[s].code = 0;
        progress[s] = (struct progress){.span = &spans[s], .err = errs ? &errs[s] : &errors[s]};
    }
    code = run_spans(engine, progress, n, spans_of);
    if (progress != few)
        free(progress);
    return code;
}

int butler_prefill(struct butler_session *session, const int32_t *ids, int n, butler_logits_fn *each, void *user,
                   struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    struct butler_error own;
    const struct butler_span span = {
        .session = session, .ids = ids, .n = n, .prompt_end = session->n_past + n, .each = each, .user = user};
    return butler_run(session->engine, &span, 1, err ? err : &own);
}

int butler_step(struct butler_session *session, int32_t id, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    const struct butler_span span = {.session = session, .ids = &id, .n = 1};
    return butler_run(session->engine, &span, 1, err);
}

int butler_step_batch(struct butler_session *const *sessions, const int32_t *ids, int n, struct butler_error *errs)
{
    enum { FEW = 64 }; /* up to so many nothing is allocated */
    struct butler_span few[FEW], *spans = few;
    if (BUTLER_IS_NULL(sessions, errs) || BUTLER_IS_NULL(ids, errs))
        return BUTLER_ERROR_ARGUMENT;
    if (n < 1)
        return butler_fail(errs, BUTLER_ERROR_ARGUMENT, "a batch of %d sessions", n);
    if (n > FEW && !(spans = butler_alloc((size_t)n * sizeof *spans, errs)))
        return BUTLER_ERROR_MEMORY;
    for (int s = 0; s < n; s++)
        spans[s] = (struct butler_span){.session = sessions[s], .ids = &ids[s], .n = 1};
    const int code = sessions[0] ? butler_run(sessions[0]->engine, spans, n, errs)
                                 : butler_fail(errs, BUTLER_ERROR_ARGUMENT, "session 0 of the batch is NULL");
    if (spans != few)
        free(spans);
    return code;
}

void butler_session_on_progress(struct butler_session *session, butler_progress_fn *fn, void *user)
{
    if (!session)
        return;
    session->progress = fn;
    session->progress_user = user;
}

void butler_session_cancel(struct butler_session *session)
{
    if (!session)
        return;
    __atomic_store_n(&session->cancelled, 1, __ATOMIC_RELEASE);
}
