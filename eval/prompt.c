/* Prompts are read once for all policies that can share them. A donor session reads all but the last token of a prompt; the
 * policy's session copies it and reads the last token, after which an evicting policy cuts its cache. The donor is a dense
 * session, or one with the policy's metric if that must see the prompt's attention. Which of the two a policy gets does not
 * depend on the other policies of the run, nor does its result. */
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
    const struct butler_span span = {
        .session = donor->session, .ids = item->ids, .n = item->n_prompt - 1, .prompt_end = item->n_prompt};
    return donor->session ? butler_run(run->engine, &span, 1, err) : BUTLER_ERROR_MEMORY;
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
    if (n == 1 || reads_alone(policy))
        return butler_prefill(session, item->ids, n, NULL, NULL, err);
    int code = read_donor(run, item, policy, donor, err);
    if (code == 0)
        code = butler_session_adopt(session, donor->session, err);
    return code < 0 ? code : butler_prefill(session, item->ids + n - 1, 1, NULL, NULL, err);
}
