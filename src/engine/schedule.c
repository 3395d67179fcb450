/* See schedule.h. */
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
    const bool after_prompt = session->policy.prompt > 0 && session->n_decoded == 0;
    return after_prompt || at == 0 || age <= 0 || age >= every || (position + group_of(layer)) % every == 0;
}

int butler_schedule_summarise(const struct butler_session *session, int layer, int n)
{
    const struct butler_policy *policy = &session->policy;
    const int n_slots = butler_kv_at(&session->kv, layer, 0)->n_slots, first = n_slots - n, n_layers = session->shape.n_layers;
    if (!butler_policy_applies(policy, layer) || butler_policy_defers(policy, layer, n_layers, n_slots))
        return INT32_MAX;
    return first > 0 && butler_policy_defers(policy, layer, n_layers, first) ? 0 : first;
}

int butler_schedule_observe(const struct butler_part *part, int layer)
{
    const struct butler_policy *policy = &part->session->policy;
    if (part->exact) /* the one query that what is checked next begins from; of a token by itself nobody asks for drafts */
        return part->n > 1 && policy->plan.guided && butler_policy_applies(policy, layer) ? part->session->n_past + part->n - 1
                                                                                          : INT32_MAX;
    const int window = butler_policy_applies(policy, layer) ? policy->plan.observe[part->decode] : 0;
    /* A cut of up to `reach` tokens, at which this query is still one of the latest, drops nothing. */
    const int reach = part->session->n_past + 1 + BUTLER_MIN(window, 1 << 24);
    if (part->decode && window > 0 && !part->session->evicted &&
        butler_policy_keeps_all(policy, layer, part->session->shape.n_layers, reach))
        return INT32_MAX;
    return window == 0 ? INT32_MAX : BUTLER_MAX(part->cut_end - BUTLER_MIN(window, part->cut_end), 0);
}

/* ------------------------------------------------------------------------------------------------ retrieve */

/* Of units of so many slots, in a head with n of them: those with the first and last tokens that are always read. */
static struct butler_choice units_of(const struct butler_limits *limits, int unit, int n)
{
    struct butler_choice choice = {.n_units = BUTLER_CEIL_DIV(n, unit), .budget = BUTLER_MAX(limits->budget / unit, 1)};
    choice.first = BUTLER_MIN(BUTLER_CEIL_DIV(limits->sinks, unit), choice.n_units);
    choice.last = choice.n_units - BUTLER_MAX(n - BUTLER_MAX(limits->recent, 1), 0) / unit;
    if (limits->budget >= n) /* a budget that holds the text holds its unfinished page too */
        choice.budget = choice.n_units;
    return choice;
}

/* What a step selects with n tokens, its own included; what retrieves holds all. */
static struct butler_selecting selecting_of(const struct butler_session *session, int layer, int n)
{
    const struct butler_policy *policy = &session->policy;
    const struct butler_limits limits = butler_policy_limits(policy, layer, session->shape.n_layers, n);
    const int n_pages = butler_policy_scan_pages(policy, &limits, n);
    struct butler_selecting selecting = {.n = n, .choice = units_of(&limits, policy->unit, n)};
    selecting.choice.mass = policy->budget_kind == BUTLER_BUDGET_MASS ? policy->budget : 0;
    if (n_pages > 0) {
        selecting.pages = units_of(&limits, policy->metric->scan->page_slots, n);
        selecting.pages.budget = n_pages;
    }
    return selecting;
}

/* How many layers from this one on select now. The records of later layers must be there: in the step that outgrows the budget each
 * makes them when it appends. */
static int n_together(const struct butler_session *session, int layer)
{
    const struct butler_policy *policy = &session->policy;
    const int n_layers = session->shape.n_layers;
    int next = layer + 1;
    if (!session->predict || !policy->plan.ahead)
        return 1;
    while (next < session->predict->known_end && butler_policy_applies(policy, next) && group_of(next) == group_of(layer) &&
           butler_schedule_selects(session, next) && !butler_policy_defers(policy, next, n_layers, session->n_past))
        next++;
    return next - layer;
}

/* A selection is made now, or was with that of an earlier layer. */
static void select_layers(struct butler_session *session, int layer, bool alone, struct butler_attend_span *span)
{
    struct butler_selection *selection = &session->selection;
    if (selection->ahead_position == session->n_past && selection->ahead_layer < layer && layer < selection->ahead_end) {
        span->made_before = layer - selection->ahead_layer;
        return;
    }
    span->n_together = alone ? n_together(session, layer) : 1;
    for (int i = 0; i < span->n_together; i++)
        span->selecting[i] = selecting_of(session, layer + i, session->n_past + 1);
    selection->ahead_layer = layer;
    selection->ahead_end = layer + span->n_together;
    selection->ahead_position = session->n_past;
}

void butler_schedule_span(struct butler_session *session, int layer, bool alone, struct butler_attend_span *span)
{
    span->retrieves = span->decode && !span->exact && butler_schedule_retrieves(session, layer);
    span->selects = span->retrieves && butler_schedule_selects(session, layer);
    if (span->selects)
        select_layers(session, layer, alone, span);
    else if (span->retrieves) {
        span->selected_at = session->selection.at[layer];
        span->selecting[0] = selecting_of(session, layer, span->selected_at);
        span->selecting[0].n = session->n_past + 1;
    }
    if (!span->retrieves && !span->sparse)
        session->selection.at[layer] = 0;
    else if (span->selects)
        session->selection.at[layer] = session->n_past + 1;
}

/* ------------------------------------------------------------------------------------------ sparse prompts */

/* After published sparse prompts (kekzl/imp): past pages scored once for some tokens, first and latest pages forced, the chosen
 * ones gathered and attended to densely, nothing below the budget. Other than there: one query chooses, the first of a block with a
 * fixed place in the text, so that the choice can be made wherever a caller cuts the text; and every metric of a policy can score.
 */
enum {
    PROMPT_SINKS = 16,   /* first tokens that a block always reads */
    PROMPT_RECENT = 256, /* and those before it, but at most a quarter of the budget */
};

static int block_start(int position)
{
    return position / BUTLER_PROMPT_BLOCK * BUTLER_PROMPT_BLOCK;
}

bool butler_schedule_sparse(const struct butler_policy *policy, int position, int prompt_end)
{
    const int start = block_start(position);
    return position < block_start(BUTLER_MAX(prompt_end - BUTLER_PROMPT_BLOCK, 0)) &&
           butler_policy_prompt_tokens(policy, start) < start;
}

int butler_schedule_shared_end(const struct butler_policy *policy, int prompt_end)
{
    const int dense_from = block_start(BUTLER_MAX(prompt_end - BUTLER_PROMPT_BLOCK, 0));
    const int last = block_start(prompt_end - 1); /* a longer prompt's block here begins behind as many tokens as this one's */
    return butler_policy_prompt_tokens(policy, last) < last ? dense_from : prompt_end;
}

int butler_schedule_prompt_tokens(const struct butler_policy *policy, int n_past, int prompt_end, int n)
{
    const bool sparse = butler_schedule_sparse(policy, n_past, prompt_end);
    int end = block_start(n_past) + BUTLER_PROMPT_BLOCK, n_blocks = 1;
    if (!(policy->prompt > 0))
        return n;
    while (end < n_past + n && butler_schedule_sparse(policy, end, prompt_end) == sparse &&
           (!sparse || (n_past % BUTLER_PROMPT_BLOCK == 0 && n_blocks < BUTLER_PROMPT_BLOCKS))) {
        end += BUTLER_PROMPT_BLOCK;
        n_blocks++;
    }
    return BUTLER_MIN(n, end - n_past);
}

/* The first slot that a block reads whatever the scores are: no record of those before it has a later token. */
static int base_of(const struct butler_session *session, int position)
{
    const int unit = session->policy.unit, slots = BUTLER_MAX(session->kv.record_slots, 1);
    int base = position / unit * unit;
    while (base % slots != 0)
        base -= unit;
    return BUTLER_MAX(base, 0);
}

static struct butler_prompt_block block_of(const struct butler_session *session, int position)
{
    const struct butler_policy *policy = &session->policy;
    struct butler_prompt_block block = {.position = position, .base = base_of(session, position)};
    const int unit = policy->unit, budget = butler_policy_prompt_tokens(policy, block_start(position));
    const int n_units = block.base / unit, n = BUTLER_MIN(BUTLER_CEIL_DIV(budget, unit), n_units);
    block.choice = (struct butler_choice){.n_units = n_units, .budget = n};
    block.choice.first = BUTLER_MIN(BUTLER_CEIL_DIV(PROMPT_SINKS, unit), n);
    block.choice.last = BUTLER_MIN(BUTLER_MIN(PROMPT_RECENT, budget / 4) / unit, n - block.choice.first);
    return block;
}

/* Where the tokens at n_past go on in a block: the position whose query has selected for it; -1: nothing has. */
static int selected_for(const struct butler_session *session, int layer)
{
    const int at = session->selection.at[layer] - 1, start = block_start(session->n_past);
    return session->n_past > start && session->n_decoded == 0 && at >= start && at < session->n_past ? at : -1;
}

bool butler_schedule_can_go_on(const struct butler_session *session, int n)
{
    const int start = block_start(n);
    bool can = true;
    for (int l = 0; l < session->shape.n_layers && n > start && butler_policy_prompt_tokens(&session->policy, start) < start; l++) {
        const int at = session->selection.at[l] - 1;
        can = can && (!butler_policy_applies(&session->policy, l) || (session->n_decoded == 0 && at >= start && at < n));
    }
    return can;
}

void butler_schedule_blocks(const struct butler_part *part, int layer, struct butler_attend_span *span)
{
    struct butler_session *session = part->session;
    const int at = selected_for(session, layer);
    for (int first = 0; first < part->n; span->n_blocks++) {
        const int position = session->n_past + first, rest = block_start(position) + BUTLER_PROMPT_BLOCK - position;
        struct butler_prompt_block *block = &span->blocks[span->n_blocks];
        *block = block_of(session, first == 0 && at >= 0 ? at : position);
        block->selects = first > 0 || at < 0;
        block->first = first;
        block->n = BUTLER_MIN(rest, part->n - first);
        first += block->n;
        session->selection.at[layer] = block->position + 1;
    }
}

/* --------------------------------------------------------------------------------------------------- evict */

bool butler_schedule_cut(const struct butler_session *session, int layer, int n, int free_slots, struct butler_cut *cut)
{
    const struct butler_policy *policy = &session->policy;
    if (policy->method != BUTLER_EVICT || !butler_policy_applies(policy, layer))
        return false;
    const struct butler_limits limits = butler_policy_limits(policy, layer, session->shape.n_layers, n);
    const int n_slots = butler_kv_at(&session->kv, layer, 0)->n_slots; /* heads of a layer hold equally many */
    const int unit = policy->unit, rest = n_slots % unit, n_keep = BUTLER_MAX(limits.budget - free_slots, 0);
    const int recent = BUTLER_MAX(limits.recent - free_slots - rest, 0);
    struct butler_choice *choice = &cut->choice;
    if (n_slots <= n_keep)
        return false;
    *cut = (struct butler_cut){.newest = policy->plan.newest};
    choice->n_units = n_slots / unit;
    choice->budget = BUTLER_MAX(n_keep - rest, 0) / unit;
    choice->first = BUTLER_MIN(BUTLER_CEIL_DIV(limits.sinks, unit), choice->n_units);
    choice->last = BUTLER_MAX(BUTLER_CEIL_DIV(recent, unit), cut->newest ? choice->budget - choice->first : 0);
    choice->last = BUTLER_MIN(choice->last, choice->n_units - choice->first);
    const int kept = BUTLER_MAX(choice->budget, choice->first + choice->last);
    cut->n_left = BUTLER_MIN(kept, choice->n_units) * unit + rest;
    return true;
}
