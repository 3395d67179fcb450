/* Prompts are read once for all policies that can share them. A donor session reads all but the last token of a prompt; the
 * policy's session copies it and reads the last token, after which an evicting policy cuts its cache. The donor is a dense
 * session, or one with the policy's metric if that must see the prompt's attention. What was read before comes from the prefix
 * cache, for the second kind all but the end that its metric observes. Which of the two a policy gets does not depend on the other
 * policies of the run, nor does its result. */
#include <math.h>
#include <stdlib.h>

#include "parts.h"
#include "engine/session.h"

/* In mode simulate a fraction is a fraction of the whole text, as a count, for evicting policies. A fraction of the current
 * length would keep one token at the start, and evicted tokens never come back. H2O's published code does the same. */
static void fix_budget(const struct eval_item *item, struct butler_policy *policy)
{
    if (policy->method != BUTLER_EVICT || policy->budget_kind != BUTLER_BUDGET_FRACTION)
        return;
    const double share = policy->budget * (item->n_ids + item->n_extra);
    policy->budget_kind = BUTLER_BUDGET_COUNT;
    policy->budget = BUTLER_MAX(BUTLER_MAX(1, policy->prune_min), floor(share + 0.5));
}

static struct butler_session *make(const struct eval_run *run, const struct butler_policy *policy, int n_ctx,
                                   struct butler_error *err)
{
    const struct butler_session_params params = {.n_ctx = n_ctx, .kv_type = run->params->kv_type, .seed = run->seed};
    return butler_session_make(run->engine, policy, &params, err);
}

/* Cannot share a prompt: what it keeps of one part determines how it reads the next. */
static bool reads_alone(const struct butler_policy *policy)
{
    return policy->prefill_evict || policy->rope_in_cache || !butler_session_can_adopt(policy, policy);
}

bool eval_policy_observes(const struct butler_policy *policy)
{
    struct butler_policy dense = {.text = ""};
    return reads_alone(policy) || !butler_session_can_adopt(policy, &dense);
}

void eval_donor_free(struct eval_donor *donor)
{
    butler_session_free(donor->session);
    *donor = (struct eval_donor){0};
}

/* Reads what is left of ids[0, n) of a prompt of prompt_end tokens in parts, after each of which the run may be stopped. */
static int read_prompt(const struct eval_run *run, struct butler_session *session, const int32_t *ids, int n, int prompt_end,
                       struct butler_error *err)
{
    enum { PART = 128 };
    int code = 0;
    for (int at = butler_n_past(session); at < n && code == 0; at += PART) {
        const struct butler_span span = {
            .session = session, .ids = ids + at, .n = BUTLER_MIN(PART, n - at), .prompt_end = prompt_end};
        code = eval_check_stop(run, err);
        if (code == 0)
            code = butler_run(run->engine, &span, 1, err);
    }
    return code;
}

static int read_donor(const struct eval_run *run, const struct eval_item *item, const struct butler_policy *policy,
                      struct eval_donor *donor, struct butler_error *err)
{
    struct butler_policy dense;
    const bool observes = eval_policy_observes(policy);
    if (donor->session && donor->item == item && donor->observes == observes &&
        (!observes || butler_session_can_adopt(policy, &donor->session->policy)))
        return 0;
    eval_donor_free(donor);
    int code = butler_policy_parse(run->engine, "full", &dense, err);
    if (code < 0)
        return code;
    donor->session = make(run, observes ? policy : &dense, item->n_ids + item->n_extra, err);
    donor->item = item;
    donor->observes = observes;
    if (!donor->session)
        return BUTLER_ERROR_MEMORY;
    if (run->library && (code = butler_session_use_library(donor->session, run->library, err)) < 0)
        return code;
    code = butler_session_adopt_prefix(donor->session, item->ids, item->n_prompt, err);
    return code < 0 ? code : read_prompt(run, donor->session, item->ids, item->n_prompt - 1, item->n_prompt, err);
}

/* Whether unread_last can take the last token out: every record is one token's, and layers with a window still hold what the token
 * before reads. */
static bool can_unread(const struct butler_session *session, int n)
{
    const struct butler_model *model = session->model;
    for (int l = 0; l < session->kv.n_layers; l++)
        if (model->layers[l].window > 0 &&
            butler_kv_window_start(n, model->layers[l].window) != butler_kv_window_start(n - 1, model->layers[l].window))
            return false;
    return session->policy.unit == 1 && session->kv.record_slots <= 1 && !session->predict;
}

/* Takes the prompt's last token out of the cache, after the policy has observed it and cut the prompt: every head loses the newest
 * of its tokens. The text is then one token shorter, and the same token can be decoded. */
static int unread_last(struct butler_session *session, struct butler_error *err)
{
    const int n = session->n_past;
    uint32_t *scratch = butler_alloc((size_t)n * sizeof *scratch, err);
    int code = scratch ? 0 : BUTLER_ERROR_MEMORY;
    for (int l = 0; l < session->kv.n_layers && code == 0; l++) {
        code = butler_kv_unshare(&session->kv, l, err);
        for (int h = 0; h < session->kv.n_kv_heads && code == 0; h++) {
            struct butler_kv_head *head = butler_kv_at(&session->kv, l, h);
            const uint32_t newest = head->order[head->n_slots - 1];
            if (butler_kv_position(head, newest) == n - 1)
                butler_kv_drop(&session->kv, head, 1, &newest, 1, scratch, NULL, NULL);
        }
    }
    free(scratch);
    session->n_past = n - 1;
    session->n_dense = BUTLER_MIN(session->n_dense, n - 1);
    session->has_logits = false;
    return code;
}

int eval_session_begin(const struct eval_run *run, const struct eval_item *item, const struct butler_policy *policy,
                       struct eval_donor *donor, struct butler_session **out, struct butler_error *err)
{
    const int n = run->simulate ? 0 : item->n_prompt;
    struct butler_policy own = *policy;
    if (run->simulate)
        fix_budget(item, &own);
    struct butler_session *session = make(run, &own, item->n_ids + item->n_extra, err);
    *out = session;
    if (!session)
        return err->code;
    if (n == 0)
        return 0;
    /* Where nothing was cut, taking the last token out again is the same as not reading it. Where it cannot be taken out, the
     * prompt ends before it. */
    const bool cuts = policy->method == BUTLER_EVICT, unreads = item->repeats_last && cuts && can_unread(session, n);
    if (item->repeats_last && !unreads && n == 1)
        return 0;
    int code = 0;
    if (n == 1 || reads_alone(policy)) {
        const int n_read = n - (item->repeats_last && !unreads);
        code = read_prompt(run, session, item->ids, n_read, n_read, err);
    } else {
        code = read_donor(run, item, policy, donor, err);
        if (code == 0)
            code = butler_session_adopt(session, donor->session, err);
        if (code == 0 && (unreads || !item->repeats_last))
            code = butler_prefill(session, item->ids + n - 1, 1, NULL, NULL, err);
    }
    return code == 0 && unreads ? unread_last(session, err) : code;
}
