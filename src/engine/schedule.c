/* See schedule.h. Decided once, before the operations of a layer, for every backend. */
#include "engine/schedule.h"

#include "engine/predict.h"

/* Layers that select together: 0; 1 to 4; 5 to 8; ... as predictors of version 2 serve them. */
static int group_of(int layer)
{
    return (layer + BUTLER_AHEAD - 1) / BUTLER_AHEAD;
}

bool butler_schedule_covered(const struct butler_session *session, int layer, int n)
{
    const struct butler_policy *policy = &session->policy;
    return policy->metric && butler_policy_applies(policy, layer) && !session->evicted &&
           butler_policy_covers(policy, layer, session->shape.n_layers, session->n_past + n);
}

bool butler_schedule_retrieves(const struct butler_session *session, int layer)
{
    const struct butler_policy *policy = &session->policy;
    return policy->method == BUTLER_RETRIEVE && butler_policy_applies(policy, layer) &&
           !butler_policy_covers(policy, layer, session->shape.n_layers, session->n_past + 1);
}

bool butler_schedule_selects(const struct butler_session *session, int layer)
{
    const int position = session->n_past, every = session->policy.every, at = session->selection.at[layer], age = position + 1 - at;
    return at == 0 || age <= 0 || age >= every || (position + group_of(layer)) % every == 0;
}

static int n_together(const struct butler_session *session, int layer)
{
    const struct butler_policy *policy = &session->policy;
    int next = layer + 1;
    if (!session->predict || !policy->plan.ahead)
        return 1;
    while (next < session->predict->known_end && butler_policy_applies(policy, next) && group_of(next) == group_of(layer) &&
           butler_schedule_selects(session, next))
        next++;
    return next - layer;
}

void butler_schedule_span(struct butler_session *session, int layer, struct butler_attend_span *span)
{
    span->retrieves = span->decode && !span->exact && butler_schedule_retrieves(session, layer);
    span->selects = span->retrieves && butler_schedule_selects(session, layer);
    span->n_together = span->selects ? n_together(session, layer) : 0;
    if (!span->retrieves)
        session->selection.at[layer] = 0;
    else if (span->selects)
        session->selection.at[layer] = session->n_past + 1;
}

struct butler_cut butler_schedule_cut(const struct butler_session *session, int layer, int n, int free_slots)
{
    const struct butler_limits limits = butler_policy_limits(&session->policy, layer, session->shape.n_layers, n);
    return (struct butler_cut){.n_keep = BUTLER_MAX(limits.budget - free_slots, 0),
                               .sinks = limits.sinks,
                               .recent = BUTLER_MAX(limits.recent - free_slots, 0),
                               .newest = session->policy.plan.newest};
}
