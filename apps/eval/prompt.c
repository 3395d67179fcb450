/* Prompts are read once for all policies that can share them. A donor session reads all but the last token of a prompt; the
 * policy's session copies it and reads the last token, after which an evicting policy cuts its cache. The donor is a dense
 * session, or one with the policy's metric if that must see the prompt's attention. What was read before comes from the prefix
 * cache, for the second kind all but the end that its metric observes. Which of the two a policy gets does not depend on the other
 * policies of the run, nor does its result. */
#include <math.h>
#include <stdlib.h>

#include "butler_plugin.h"
#include "parts.h"

/* In mode simulate a fraction is a fraction of the whole text, as a count, for evicting policies. A fraction of the current
 * length would keep one token at the start, and evicted tokens never come back. H2O's published code does the same. 0: the policy's
 * budget stays. */
static int simulated_budget(const struct eval_item *item, const struct butler_policy_parts *parts)
{
    if (!parts->evicts || parts->budget_kind != BUTLER_BUDGET_FRACTION)
        return 0;
    const double share = parts->budget * (item->n_ids + item->n_extra), least = eval_text_number(parts->text, "min");
    return (int)BUTLER_MAX(BUTLER_MAX(1, least), floor(share + 0.5));
}

static struct butler_session *make(const struct eval_run *run, const char *policy, int n_ctx, struct butler_error *err)
{
    const struct butler_session_params params = {BUTLER_INIT(butler_session_params), .policy = policy, .n_ctx = n_ctx,
                                                 .kv_type = run->params->kv_type, .seed = run->seed};
    return butler_session_new(run->engine, &params, err);
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

static int read_donor(const struct eval_run *run, const struct eval_item *item, const char *policy, struct eval_donor *donor,
                      struct butler_error *err)
{
    const bool observes = eval_policy_observes(run, policy);
    if (donor->session && donor->item == item && donor->observes == observes &&
        (!observes || butler_policy_can_adopt(run->engine, policy, butler_policy_of(donor->session))))
        return 0;
    eval_donor_free(donor);
    int code = 0;
    donor->session = make(run, observes ? policy : "full", item->n_ids + item->n_extra, err);
    donor->item = item;
    donor->observes = observes;
    if (!donor->session)
        return BUTLER_ERROR_MEMORY;
    if (run->library && (code = butler_session_use_library(donor->session, run->library, err)) < 0)
        return code;
    code = butler_session_adopt_prefix(donor->session, item->ids, item->n_prompt, err);
    return code < 0 ? code : read_prompt(run, donor->session, item->ids, item->n_prompt - 1, item->n_prompt, err);
}

int eval_session_begin(const struct eval_run *run, const struct eval_item *item, const char *policy, int budget,
                       struct eval_donor *donor, struct butler_session **out, struct butler_error *err)
{
    const int n = run->simulate ? 0 : item->n_prompt;
    struct butler_policy_parts parts = {BUTLER_INIT(butler_policy_parts)};
    struct butler_session *session = make(run, policy, item->n_ids + item->n_extra, err);
    *out = session;
    if (!session)
        return err->code;
    int code = butler_policy_read(run->engine, policy, &parts, err);
    if (code == 0 && run->simulate && budget == 0)
        budget = simulated_budget(item, &parts);
    if (code == 0 && budget > 0)
        code = butler_session_set_budget(session, budget, err);
    if (code < 0 || n == 0)
        return code;
    /* Question-aware: the policy has observed the prompt and cut it, and the last token is decoded once more. Where nothing was
     * cut, taking it out again is the same as not reading it. Where it cannot be taken out, the prompt ends before it. */
    const bool unreads = item->repeats_last && parts.evicts && butler_session_can_unread(session, n);
    if (item->repeats_last && !unreads && n == 1)
        return 0;
    if (n == 1 || eval_policy_reads_alone(run, policy)) {
        const int n_read = n - (item->repeats_last && !unreads);
        code = read_prompt(run, session, item->ids, n_read, n_read, err);
    } else {
        code = read_donor(run, item, policy, donor, err);
        if (code == 0 && (code = butler_session_adopt(session, donor->session, err)) < 0 && donor->observes) {
            eval_donor_free(donor); /* its budget covered the text, so that it observed nothing */
            code = read_donor(run, item, policy, donor, err);
            if (code == 0)
                code = butler_session_adopt(session, donor->session, err);
        }
        if (code == 0 && (unreads || !item->repeats_last))
            code = butler_prefill(session, item->ids + n - 1, 1, NULL, NULL, err);
    }
    return code == 0 && unreads ? butler_session_unread(session, err) : code;
}
