/* The end of a pass: logits and hidden states of the rows that somebody wants, tested and handed over; the stopping rule; the text.
 */
#include <math.h>
#include <string.h>

#include "engine/pass.h"
#include "engine/predict.h"
#include "engine/schedule.h"

/* scratch logits [n][n_vocab] of x[n][n_embd] */
static void logits_of(const struct butler_pass *pass, const float *x, int n)
{
    const struct butler_hparams *hp = pass->hp;
    const size_t n_logits = (size_t)n * (size_t)hp->n_vocab;
    butler_pass_norm(pass, pass->s->h, x, &pass->model->output_norm, n, hp->n_embd);
    butler_pass_matmul(pass, pass->s->logits, &pass->model->output, pass->s->h, n);
    if (hp->logit_scale != 1)
        pass->backend->scale(pass->backend, pass->s->logits, hp->logit_scale, n_logits);
    if (hp->logit_softcap > 0)
        pass->backend->softcap(pass->backend, pass->s->logits, hp->logit_softcap, n_logits);
}

double butler_entropy(const float *logits, int n)
{
    double max = -INFINITY, sum = 0, weighted = 0;
    for (int i = 0; i < n; i++)
        max = (double)logits[i] > max ? (double)logits[i] : max;
    for (int i = 0; i < n; i++) {
        const double x = (double)logits[i] - max, e = exp(x);
        sum += e;
        weighted += e * x;
    }
    return log(sum) - weighted / sum;
}

static bool stops(const struct butler_session *session, const float *logits)
{
    return session->policy.stop_entropy >= 0 && session->n_decoded >= session->policy.stop_after &&
           butler_entropy(logits, session->model->hp.n_vocab) < session->policy.stop_entropy;
}

/* Whether the numbers of rows that the model made are finite. what, of: their name, and what each belongs to. */
static int check_finite(const struct butler_session *session, const struct butler_top *top, const char *what, const char *of,
                        int position, struct butler_error *err)
{
    if (top->not_finite < 0)
        return 0;
    return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: the model's %s are not numbers: %f for %s %d at position %d",
                       session->model->path, what, (double)top->value, of, top->not_finite, position);
}

/* Whether the device works and all files that the part was computed from are still whole: a row computed from a file that shrank,
 * or without some rows of the cache, is worthless. */
static bool files_are_whole(struct butler_part *part)
{
    const struct butler_session *session = part->session;
    if (session->kv.fault.code < 0)
        butler_fail(part->err, session->kv.fault.code, "%s", session->kv.fault.message);
    else if (butler_backend_check(session->engine->backend, part->err) == 0 &&
             butler_gguf_check(session->model->gguf, part->err) == 0 &&
             (!session->predict || butler_gguf_check(session->predict->predictor->gguf, part->err) == 0))
        return true;
    butler_part_fail(part);
    return false;
}

/* One row of logits goes to its session, and to who asked for it. t: which of the part's tokens. */
static void deliver(const struct butler_pass *pass, struct butler_part *part, int t, const float *device,
                    const struct butler_top *top)
{
    struct butler_session *session = part->session;
    const int position = session->n_past + t;
    if (part->failed || !files_are_whole(part))
        return;
    if (check_finite(session, top, "logits", "token", position, part->err) < 0) {
        butler_part_fail(part);
        return;
    }
    pass->backend->download(pass->backend, session->logits, device, (size_t)pass->hp->n_vocab * sizeof(float));
    session->top = *top;
    session->has_logits = true;
    if (part->each && !part->cancelled && !part->each(part->user, position, session->logits))
        part->cancelled = true;
}

/* Final norm of a part's rows, for who asked for hidden states. */
static void deliver_hidden(const struct butler_pass *pass, struct butler_part *part)
{
    const size_t n_embd = (size_t)pass->hp->n_embd;
    const float *hidden = pass->s->host_h;
    if (part->failed || !files_are_whole(part))
        return;
    butler_pass_norm(pass, pass->s->h, pass->s->x + (size_t)part->kept_row * n_embd, &pass->model->output_norm, part->n,
                     pass->hp->n_embd);
    pass->backend->finite_top_k(pass->backend, pass->s->h, part->n, pass->hp->n_embd, 0, pass->s->tops);
    pass->backend->download(pass->backend, pass->s->host_h, pass->s->h, (size_t)part->n * n_embd * sizeof(float));
    for (int t = 0; t < part->n && !part->cancelled; t++, hidden += n_embd) {
        const int position = part->session->n_past + t;
        if (check_finite(part->session, &pass->s->tops[t], "hidden states", "channel", position, part->err) < 0) {
            butler_part_fail(part);
            return;
        }
        part->cancelled = !part->hidden(part->user, position, hidden);
    }
}

/* Of the rows that were kept, those whose logits are wanted move to the front of x. Returns how many there are. */
static int keep_logits_rows(const struct butler_pass *pass)
{
    bool moves = false;
    int n_rows = 0;
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        const int n = part->each ? part->n : part->logits ? 1 : 0, first = part->kept_row + part->n_kept - n;
        part->kept_row = n_rows;
        part->n_kept = n;
        for (int t = 0; t < n; t++, n_rows++) {
            pass->s->rows[n_rows] = first + t;
            moves = moves || first + t != n_rows;
        }
    }
    if (moves)
        pass->backend->gather_rows(pass->backend, pass->s->x, pass->s->x, pass->s->rows, n_rows, pass->hp->n_embd);
    return n_rows;
}

/* Whether somebody looks at how far the highest logit is above the next. */
static bool drafts(const struct butler_pass *pass)
{
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].session->drafting)
            return true;
    return false;
}

/* Final norm and output of the rows that somebody wants, logits of as many at a time as there is room for. */
void butler_pass_deliver(const struct butler_pass *pass)
{
    int i = 0;
    for (int p = 0; p < pass->n_parts; p++)
        if (pass->parts[p].hidden)
            deliver_hidden(pass, &pass->parts[p]);
    const int n_rows = keep_logits_rows(pass);
    for (int row = 0, m; row < n_rows; row += m) {
        m = BUTLER_MIN(pass->s->logit_rows, n_rows - row);
        logits_of(pass, pass->s->x + (size_t)row * (size_t)pass->hp->n_embd, m);
        pass->backend->finite_top_k(pass->backend, pass->s->logits, m, pass->hp->n_vocab, drafts(pass) ? 2 : 0, pass->s->tops);
        for (int r = row; r < row + m; r++) {
            while (r >= pass->parts[i].kept_row + pass->parts[i].n_kept)
                i++;
            struct butler_part *part = &pass->parts[i];
            deliver(pass, part, part->n - part->n_kept + r - part->kept_row,
                    pass->s->logits + (size_t)(r - row) * (size_t)pass->hp->n_vocab, &pass->s->tops[r - row]);
        }
    }
}

/* The tokens are part of the text now. */
void butler_part_note_tokens(struct butler_part *part)
{
    struct butler_session *session = part->session;
    if (part->failed || !files_are_whole(part))
        return;
    memcpy(session->tokens + session->n_past, part->ids, (size_t)part->n * sizeof *part->ids);
    if (!part->decode && session->n_dense == session->n_past && !session->evicted)
        session->n_dense += BUTLER_MIN(part->n, BUTLER_MAX(part->shared_end - session->n_past, 0));
    session->n_past += part->n;
    if (part->sparse)
        session->sparse_end = session->n_past;
    if (part->ends_prompt && session->kv.prompt_records) {
        butler_kv_end_records(&session->kv);
        session->n_observed = 0;
    }
    const bool notes = !session->policy.plan.guided && !session->kv.records_off,
               may_skip = part->decode && session->policy.plan.observe[1] > 0;
    for (int l = 0; l < session->shape.n_layers && (notes || may_skip); l++) {
        const int first = butler_schedule_observe(part, l);
        if (notes && first < session->n_past)
            session->n_observed = session->n_past;
        if (may_skip && first == INT32_MAX && butler_policy_applies(&session->policy, l))
            session->n_skipped = session->n_past;
    }
    session->observed_more = session->observed_more || (part->exact && part->n > 1 && session->policy.plan.guided);
    session->steered = session->steered || session->capture;
    if (!part->logits && !part->each)
        session->has_logits = false;
    session->n_decoded = part->decode ? session->n_decoded + part->n : 0;
    session->stop = part->decode && part->logits && stops(session, session->logits);
    if (session->steps && part->logits && !part->exact && butler_steps_after(session, part->err) < 0)
        butler_part_fail(part);
}
