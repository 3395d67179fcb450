/* The keys of policies: one table says of every key what it is, what it may be, and when it has a meaning. And how they are
 * written. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/policy_parts.h"

#define MAX_TOKENS 100000000

int butler_policy_fail(const struct butler_policy_draft *draft, const char *format, ...)
{
    char sentence[420];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return butler_fail(draft->err, BUTLER_ERROR_ARGUMENT, "policy \"%.72s%s\": %s", draft->text,
                       strlen(draft->text) > 72 ? "..." : "", sentence);
}

int butler_policy_find_param(const struct butler_metric *metric, const char *name)
{
    for (int i = 0; metric && metric->params && metric->params[i].name; i++)
        if (!strcmp(metric->params[i].name, name))
            return i;
    return -1;
}

/* ------------------------------------------------------------------------------- when a key has a meaning
 * Each returns why not, or NULL. */

bool butler_policy_prunes(const struct butler_policy_draft *draft)
{
    return draft->row && draft->row->prunes;
}

static const char *refuse_dense(const struct butler_policy_draft *draft)
{
    return draft->policy.metric ? NULL : "this policy reads everything, so it has no axes";
}

static const char *refuse_budget(const struct butler_policy_draft *draft)
{
    if (butler_policy_prunes(draft))
        return "the budget of this policy is set by ratio= and min=";
    return refuse_dense(draft);
}

static const char *refuse_mass(const struct butler_policy_draft *draft)
{
    if (refuse_budget(draft))
        return refuse_budget(draft);
    if (draft->policy.method == BUTLER_EVICT)
        return "an evicting policy holds its memory at a budget; mass= needs method=retrieve";
    return draft->policy.metric->weighing == BUTLER_WEIGH_ATTENTION ? NULL : "this metric's scores are no shares of attention";
}

static const char *refuse_prune(const struct butler_policy_draft *draft)
{
    return butler_policy_prunes(draft) ? NULL : "only softprune has it";
}

static const char *refuse_with_mass(const struct butler_policy_draft *draft)
{
    if (draft->policy.budget_kind == BUTLER_BUDGET_MASS)
        return "a mass is no number of tokens";
    return refuse_dense(draft);
}

static const char *refuse_on_top(const struct butler_policy_draft *draft)
{
    if (draft->policy.heavy >= 0)
        return "heavy= divides the budget itself; give recent= instead of heavy=";
    return refuse_with_mass(draft);
}

static const char *refuse_heavy(const struct butler_policy_draft *draft)
{
    if (draft->policy.metric && draft->policy.metric->by_position)
        return "by recency the highest scores are the recent tokens";
    return refuse_with_mass(draft);
}

static const char *refuse_unless_evict(const struct butler_policy_draft *draft)
{
    if (refuse_dense(draft))
        return refuse_dense(draft);
    return draft->policy.method == BUTLER_EVICT ? NULL : "it needs method=evict";
}

static const char *refuse_unless_retrieve(const struct butler_policy_draft *draft)
{
    if (refuse_dense(draft))
        return refuse_dense(draft);
    return draft->policy.method == BUTLER_RETRIEVE ? NULL : "it needs method=retrieve";
}

static const char *refuse_rope(const struct butler_policy_draft *draft)
{
    if (refuse_unless_evict(draft))
        return refuse_unless_evict(draft);
    return draft->policy.metric->reads_keys ? "this metric reads keys, which rope=cache would store unrotated" : NULL;
}

static const char *refuse_fused(const struct butler_policy_draft *draft)
{
    if (!draft->policy.metric || !draft->policy.metric->fuses || draft->policy.method != BUTLER_RETRIEVE)
        return "one pass over pages needs page bounds and method=retrieve (quest, tinyserve)";
    if (draft->policy.share != BUTLER_SHARE_KV)
        return "one pass is made for each KV head; it needs share=kv";
    return NULL;
}

static const char *refuse_scan(const struct butler_policy_draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    const int page = butler_policy_find_param(policy->metric, "page"), levels = butler_policy_find_param(policy->metric, "levels");
    if (!policy->metric || !policy->metric->scan || policy->method != BUTLER_RETRIEVE)
        return "only one-bit keys (fier) that are retrieved have bounds beside them";
    if (policy->share != BUTLER_SHARE_KV || (page >= 0 && policy->values[page] > 1) || draft->vatp)
        return "pages are chosen for each KV head and tokens in them; it needs share=kv, page=1 and no +vatp";
    if (levels >= 0 && policy->values[levels] != 0)
        return "means are no bounds; it needs levels=ends";
    return policy->budget_kind == BUTLER_BUDGET_MASS ? "a mass is no number of tokens" : NULL;
}

static const char *refuse_prompt(const struct butler_policy_draft *draft)
{
    const struct butler_metric *metric = draft->policy.metric;
    if (refuse_unless_retrieve(draft))
        return refuse_unless_retrieve(draft);
    if (metric->predictor || metric->earlier_layers)
        return "this metric scores by what other layers say of one decoded token";
    if (metric->observe || metric->guided)
        return "this metric observes attention, of which a sparse prompt leaves out most";
    if (metric->begin_score)
        return "this metric prepares a head for one query after the other";
    return draft->policy.share == BUTLER_SHARE_KV ? NULL : "pages are chosen for each KV head; it needs share=kv";
}

static const char *refuse_norm(const struct butler_policy_draft *draft)
{
    return draft->vatp ? NULL : "it needs +vatp";
}
static const char *refuse_stop(const struct butler_policy_draft *draft)
{
    return draft->entropystop ? NULL : "it needs +entropystop";
}

/* --------------------------------------------------------------------------------------------- the keys */

#define FIELD(field) offsetof(struct butler_policy, field)

const struct butler_key butler_keys[N_KEYS] = {
    [K_METHOD] = {"method", KEY_WORD, FIELD(method), 0, 0, BUTLER_DENSE, {"evict", "retrieve"}, BUTLER_EVICT, refuse_dense},
    [K_BUDGET] = {"budget", KEY_BUDGET, FIELD(budget), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_budget},
    [K_MASS] = {"mass", KEY_MASS, FIELD(budget), 0, 1, 0, {NULL}, 0, refuse_mass},
    [K_RATIO] = {"ratio", KEY_NUMBER, FIELD(prune_ratio), 0, 0.999, -1, {NULL}, 0, refuse_prune},
    [K_MIN] = {"min", KEY_COUNT, FIELD(prune_min), 1, MAX_TOKENS, 0, {NULL}, 0, refuse_prune},
    [K_ON_TOP] = {"on_top", KEY_SWITCH, FIELD(on_top), 0, 0, 0, {"0", "1"}, 0, refuse_on_top},
    [K_SINKS] = {"sinks", KEY_COUNT, FIELD(sinks), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_dense},
    [K_RECENT] = {"recent", KEY_COUNT, FIELD(recent), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_dense},
    [K_HEAVY] = {"heavy", KEY_NUMBER, FIELD(heavy), 0, 1, -1, {NULL}, 0, refuse_heavy},
    [K_SHARE] =
        {"share", KEY_HEADS, FIELD(share), 1, 65536, BUTLER_SHARE_KV, {"layer", "kv", "query"}, BUTLER_SHARE_LAYER, refuse_dense},
    [K_GROUP] = {"group", KEY_WORD, FIELD(reduce), 0, 0, BUTLER_REDUCE_MAX, {"max", "mean"}, 0, refuse_dense},
    [K_DENSE] = {"dense", KEY_COUNT, FIELD(dense_layers), 0, 65536, 0, {NULL}, 0, refuse_dense},
    [K_PYRAMID] = {"pyramid", KEY_NUMBER, FIELD(pyramid), 0, 1000, 0, {NULL}, 0, refuse_with_mass},
    [K_PREFILL] = {"prefill", KEY_SWITCH, FIELD(prefill_evict), 0, 0, 0, {"dense", "evict"}, 0, refuse_unless_evict},
    [K_ROLLING] = {"rolling", KEY_SWITCH, FIELD(evict_at_prefill_only), 0, 0, 0, {"1", "0"}, 0, refuse_unless_evict},
    [K_ROPE] = {"rope", KEY_SWITCH, FIELD(rope_in_cache), 0, 0, 0, {"original", "cache"}, 0, refuse_rope},
    [K_FUSED] = {"fused", KEY_SWITCH, FIELD(fused), 0, 0, 0, {"0", "1"}, 0, refuse_fused},
    [K_SCAN] = {"scan", KEY_COUNT, FIELD(scan), 0, 1024, 0, {NULL}, 0, refuse_scan},
    [K_EVERY] = {"every", KEY_COUNT, FIELD(every), 1, 1024, 1, {NULL}, 0, refuse_unless_retrieve},
    [K_PROMPT] = {"prompt", KEY_NUMBER, FIELD(prompt), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_prompt},
    [K_NORM] = {"norm", KEY_WORD, FIELD(value_norm), 0, 0, BUTLER_NORM_NONE, {"l1", "l2", "linf"}, BUTLER_NORM_L1, refuse_norm},
    [K_ENTROPY] = {"entropy", KEY_NUMBER, FIELD(stop_entropy), 0, 100, -1, {NULL}, 0, refuse_stop},
    [K_AFTER] = {"after", KEY_COUNT, FIELD(stop_after), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_stop},
};

const struct butler_modifier butler_modifiers[N_MODIFIERS] = {
    [VATP] = {"vatp", "norm=l1,sinks=20"}, [ENTROPYSTOP] = {"entropystop", NULL}};

int butler_modifier_find(const char *name)
{
    int i = 0;
    while (i < N_MODIFIERS && strcmp(butler_modifiers[i].name, name))
        i++;
    return i < N_MODIFIERS ? i : -1;
}

const struct butler_param_form *butler_policy_form(const struct butler_metric *metric, int i)
{
    static const struct butler_param_form number = {0, {NULL}};
    return metric->forms ? &metric->forms[i] : &number;
}

int butler_key_find(const char *name)
{
    if (!strcmp(name, "reduce")) /* what "group" does with the heads of a group */
        return K_GROUP;
    for (int k = 0; k < N_KEYS; k++)
        if (!strcmp(butler_keys[k].name, name))
            return k;
    return -1;
}

bool butler_policy_is_key(const char *name)
{
    return butler_key_find(name) >= 0 || !strcmp(name, "preset");
}

const struct butler_policy_row *butler_policy_row_find(const struct butler_registry *registry, const char *name)
{
    for (const struct butler_policy_row *row = registry->policies; row->name; row++)
        if (!strcmp(row->name, name))
            return row;
    return NULL;
}

bool butler_policy_is_name(const struct butler_registry *registry, const char *name)
{
    return butler_policy_row_find(registry, name) || butler_modifier_find(name) >= 0;
}

static void *field(struct butler_policy *policy, int k)
{
    return (char *)policy + butler_keys[k].offset;
}

void butler_key_set(struct butler_policy *policy, int k, double value)
{
    switch (butler_keys[k].type) {
    case KEY_COUNT:
    case KEY_HEADS:
        *(int *)field(policy, k) = (int)value;
        break;
    case KEY_WORD: {
        _Static_assert(sizeof(enum butler_reduce) == sizeof(int) && sizeof(enum butler_method) == sizeof(int), "enums are ints");
        int word = (int)value;
        memcpy(field(policy, k), &word, sizeof word);
        break;
    }
    case KEY_SWITCH:
        *(bool *)field(policy, k) = value != 0;
        break;
    case KEY_NUMBER:
        *(double *)field(policy, k) = value;
        break;
    case KEY_BUDGET:
        policy->budget = value;
        policy->budget_kind = value > 1 ? BUTLER_BUDGET_COUNT : BUTLER_BUDGET_FRACTION;
        break;
    case KEY_MASS:
        policy->budget = value;
        policy->budget_kind = BUTLER_BUDGET_MASS;
        break;
    }
}

/* ---------------------------------------------------------------------------------------------- writing */

static void write_number(char *out, size_t max, double value)
{
    snprintf(out, max, "%.15g", value);
    if (strtod(out, NULL) != value)
        snprintf(out, max, "%.17g", value);
}

static void write_item(char *text, size_t max, int *n_items, const char *name, const char *value)
{
    size_t n = strlen(text);
    snprintf(text + n, max - n, "%c%s=%s", (*n_items)++ ? ',' : ':', name, value);
}

static void write_key(const struct butler_policy_draft *draft, int k, char *text, size_t max, int *n_items)
{
    const struct butler_policy *policy = &draft->policy;
    const void *at = (const char *)policy + butler_keys[k].offset;
    char value[40] = "";
    bool mass = policy->budget_kind == BUTLER_BUDGET_MASS;
    if (butler_keys[k].refuse(draft) || (k == K_BUDGET && mass) || (k == K_MASS && !mass) ||
        (k == K_RECENT && policy->heavy >= 0) || (k == K_HEAVY && policy->heavy < 0) || (k == K_PROMPT && policy->prompt == 0))
        return;
    const bool number = butler_keys[k].type == KEY_HEADS && *(const int *)at > BUTLER_SHARE_QUERY;
    if (butler_keys[k].type == KEY_COUNT || number)
        snprintf(value, sizeof value, "%d", *(const int *)at);
    else if (butler_keys[k].type == KEY_SWITCH)
        snprintf(value, sizeof value, "%s", butler_keys[k].words[*(const bool *)at]);
    else if (butler_keys[k].type == KEY_WORD || butler_keys[k].type == KEY_HEADS) {
        int word;
        memcpy(&word, at, sizeof word);
        snprintf(value, sizeof value, "%s", butler_keys[k].words[word - butler_keys[k].base]);
    } else
        write_number(value, sizeof value, *(const double *)at);
    write_item(text, max, n_items, butler_keys[k].name, value);
}

int butler_policy_write(struct butler_policy_draft *draft)
{
    struct butler_policy *policy = &draft->policy;
    char *text = policy->text;
    size_t max = sizeof policy->text;
    int n_items = 0;
    snprintf(text, max, "%s", policy->name);
    for (int k = 0; k < N_KEYS; k++) {
        const struct butler_param *params = k == K_DENSE && policy->metric ? policy->metric->params : NULL;
        for (int i = 0; params && params[i].name; i++) {
            char value[40];
            const struct butler_param_form *form = butler_policy_form(policy->metric, i);
            if (form->words[0])
                snprintf(value, sizeof value, "%s", form->words[(int)policy->values[i]]);
            else
                write_number(value, sizeof value, policy->values[i]);
            write_item(text, max, &n_items, params[i].name, value);
        }
        write_key(draft, k, text, max, &n_items);
    }
    if (strlen(text) > BUTLER_MAX_POLICY)
        return butler_policy_fail(draft, "written out in full it is longer than %d bytes", BUTLER_MAX_POLICY);
    return 0;
}
