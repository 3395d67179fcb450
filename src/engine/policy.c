/* From a policy string to numbers (plan.c: from numbers to a plan). One table says of every key what it is, what it may be, and
 * when it has a meaning; a key that was written where it has none is an error, a default where it has none is dropped.
 *
 * Defaults come first (the row of policy_table.c), then those of the modifiers, then the preset's, then what was written. */
#include "engine/policy.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/policy_table.h"
#include "engine/predict.h"

#define MAX_TEXT 512
#define MAX_TOKENS 100000000

/* A policy on its way. */
struct draft {
    struct butler_policy policy;
    const struct butler_policy_row *row; /* NULL: a plug-in's */
    const struct butler_engine *engine;
    const struct butler_model *model; /* the engine's, or NULL */
    const char *text;                 /* as written, for messages */
    uint64_t given;                   /* keys that were written, by their place in the table */
    uint32_t given_params;
    bool given_preset;
    bool vatp, entropystop;
    struct butler_error *err;
};

static int fail(const struct draft *draft, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int fail(const struct draft *draft, const char *format, ...)
{
    char sentence[420];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return butler_fail(draft->err, BUTLER_ERROR_ARGUMENT, "policy \"%.72s%s\": %s", draft->text,
                       strlen(draft->text) > 72 ? "..." : "", sentence);
}

/* ------------------------------------------------------------------------------- when a key has a meaning
 * Each returns why not, or NULL. */

static bool is_prune(const struct draft *draft)
{
    return draft->row && draft->row->prunes;
}

static const char *refuse_dense(const struct draft *draft)
{
    return draft->policy.metric ? NULL : "this policy reads everything, so it has no axes";
}

static const char *refuse_budget(const struct draft *draft)
{
    if (is_prune(draft))
        return "the budget of this policy is set by ratio= and min=";
    return refuse_dense(draft);
}

static const char *refuse_mass(const struct draft *draft)
{
    if (refuse_budget(draft))
        return refuse_budget(draft);
    if (draft->policy.method == BUTLER_EVICT)
        return "an evicting policy holds its memory at a budget; mass= needs method=retrieve";
    return draft->policy.metric->weighing == BUTLER_WEIGH_ATTENTION ? NULL : "this metric's scores are no shares of attention";
}

static const char *refuse_prune(const struct draft *draft)
{
    return is_prune(draft) ? NULL : "only softprune has it";
}

static const char *refuse_with_mass(const struct draft *draft)
{
    if (draft->policy.budget_kind == BUTLER_BUDGET_MASS)
        return "a mass is no number of tokens";
    return refuse_dense(draft);
}

static const char *refuse_on_top(const struct draft *draft)
{
    if (draft->policy.heavy >= 0)
        return "heavy= divides the budget itself; give recent= instead of heavy=";
    return refuse_with_mass(draft);
}

static const char *refuse_heavy(const struct draft *draft)
{
    if (draft->policy.metric && draft->policy.metric->by_position)
        return "by recency the highest scores are the recent tokens";
    return refuse_with_mass(draft);
}

static const char *refuse_unless_evict(const struct draft *draft)
{
    if (refuse_dense(draft))
        return refuse_dense(draft);
    return draft->policy.method == BUTLER_EVICT ? NULL : "it needs method=evict";
}

static const char *refuse_unless_retrieve(const struct draft *draft)
{
    if (refuse_dense(draft))
        return refuse_dense(draft);
    return draft->policy.method == BUTLER_RETRIEVE ? NULL : "it needs method=retrieve";
}

static const char *refuse_rope(const struct draft *draft)
{
    if (refuse_unless_evict(draft))
        return refuse_unless_evict(draft);
    return draft->policy.metric->reads_keys ? "this metric reads keys, which rope=cache would store unrotated" : NULL;
}

static const char *refuse_fused(const struct draft *draft)
{
    if (!draft->policy.metric || !draft->policy.metric->fuses || draft->policy.method != BUTLER_RETRIEVE)
        return "one pass over pages needs page bounds and method=retrieve (quest, tinyserve)";
    if (draft->policy.share != BUTLER_SHARE_KV)
        return "one pass is made for each KV head; it needs share=kv";
    return NULL;
}

static int find_param(const struct butler_metric *metric, const char *name)
{
    for (int i = 0; metric && metric->params && metric->params[i].name; i++)
        if (!strcmp(metric->params[i].name, name))
            return i;
    return -1;
}

static const char *refuse_scan(const struct draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    const int page = find_param(policy->metric, "page");
    if (!policy->metric || !policy->metric->scan || policy->method != BUTLER_RETRIEVE)
        return "only one-bit keys (fier) that are retrieved have bounds beside them";
    if (policy->share != BUTLER_SHARE_KV || (page >= 0 && policy->values[page] > 1) || draft->vatp)
        return "pages are chosen for each KV head and tokens in them; it needs share=kv, page=1 and no +vatp";
    return policy->budget_kind == BUTLER_BUDGET_MASS ? "a mass is no number of tokens" : NULL;
}

static const char *refuse_norm(const struct draft *draft)
{
    return draft->vatp ? NULL : "it needs +vatp";
}
static const char *refuse_stop(const struct draft *draft)
{
    return draft->entropystop ? NULL : "it needs +entropystop";
}

/* --------------------------------------------------------------------------------------------- the keys */

enum key_type {
    KEY_COUNT,  /* a whole number, an int */
    KEY_NUMBER, /* a double */
    KEY_WORD,   /* an enum: the place of the word plus base */
    KEY_SWITCH, /* a bool: the place of the word */
    KEY_BUDGET, /* > 1 tokens, <= 1 a share */
    KEY_MASS,
};

struct key {
    const char *name;
    enum key_type type;
    size_t offset;
    double min, max;
    double neutral; /* its value where it has no meaning */
    const char *words[3];
    int base;
    const char *(*refuse)(const struct draft *draft);
};

#define FIELD(field) offsetof(struct butler_policy, field)

enum {
    K_METHOD,
    K_BUDGET,
    K_MASS,
    K_RATIO,
    K_MIN,
    K_ON_TOP,
    K_SINKS,
    K_RECENT,
    K_HEAVY,
    K_SHARE,
    K_GROUP,
    K_DENSE, /* metric params are written before this one */
    K_PYRAMID,
    K_PREFILL,
    K_ROLLING,
    K_ROPE,
    K_FUSED,
    K_SCAN,
    K_EVERY,
    K_NORM,
    K_ENTROPY,
    K_AFTER,
    N_KEYS,
};

static const struct key keys[N_KEYS] = {
    [K_METHOD] = {"method", KEY_WORD, FIELD(method), 0, 0, BUTLER_DENSE, {"evict", "retrieve"}, BUTLER_EVICT, refuse_dense},
    [K_BUDGET] = {"budget", KEY_BUDGET, FIELD(budget), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_budget},
    [K_MASS] = {"mass", KEY_MASS, FIELD(budget), 0, 1, 0, {NULL}, 0, refuse_mass},
    [K_RATIO] = {"ratio", KEY_NUMBER, FIELD(prune_ratio), 0, 0.999, -1, {NULL}, 0, refuse_prune},
    [K_MIN] = {"min", KEY_COUNT, FIELD(prune_min), 1, MAX_TOKENS, 0, {NULL}, 0, refuse_prune},
    [K_ON_TOP] = {"on_top", KEY_SWITCH, FIELD(on_top), 0, 0, 0, {"0", "1"}, 0, refuse_on_top},
    [K_SINKS] = {"sinks", KEY_COUNT, FIELD(sinks), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_dense},
    [K_RECENT] = {"recent", KEY_COUNT, FIELD(recent), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_dense},
    [K_HEAVY] = {"heavy", KEY_NUMBER, FIELD(heavy), 0, 1, -1, {NULL}, 0, refuse_heavy},
    [K_SHARE] = {"share", KEY_WORD, FIELD(share), 0, 0, BUTLER_SHARE_KV, {"query", "kv", "layer"}, 0, refuse_dense},
    [K_GROUP] = {"group", KEY_WORD, FIELD(reduce), 0, 0, BUTLER_REDUCE_MAX, {"max", "mean"}, 0, refuse_dense},
    [K_DENSE] = {"dense", KEY_COUNT, FIELD(dense_layers), 0, 65536, 0, {NULL}, 0, refuse_dense},
    [K_PYRAMID] = {"pyramid", KEY_NUMBER, FIELD(pyramid), 0, 1000, 0, {NULL}, 0, refuse_with_mass},
    [K_PREFILL] = {"prefill", KEY_SWITCH, FIELD(prefill_evict), 0, 0, 0, {"dense", "evict"}, 0, refuse_unless_evict},
    [K_ROLLING] = {"rolling", KEY_SWITCH, FIELD(evict_at_prefill_only), 0, 0, 0, {"1", "0"}, 0, refuse_unless_evict},
    [K_ROPE] = {"rope", KEY_SWITCH, FIELD(rope_in_cache), 0, 0, 0, {"original", "cache"}, 0, refuse_rope},
    [K_FUSED] = {"fused", KEY_SWITCH, FIELD(fused), 0, 0, 0, {"0", "1"}, 0, refuse_fused},
    [K_SCAN] = {"scan", KEY_COUNT, FIELD(scan), 0, 1024, 0, {NULL}, 0, refuse_scan},
    [K_EVERY] = {"every", KEY_COUNT, FIELD(every), 1, 1024, 1, {NULL}, 0, refuse_unless_retrieve},
    [K_NORM] = {"norm", KEY_WORD, FIELD(value_norm), 0, 0, BUTLER_NORM_NONE, {"l1", "l2", "linf"}, BUTLER_NORM_L1, refuse_norm},
    [K_ENTROPY] = {"entropy", KEY_NUMBER, FIELD(stop_entropy), 0, 100, -1, {NULL}, 0, refuse_stop},
    [K_AFTER] = {"after", KEY_COUNT, FIELD(stop_after), 0, MAX_TOKENS, 0, {NULL}, 0, refuse_stop},
};
/* defaults NULL: those of the policy of that name. */
enum { VATP, ENTROPYSTOP, N_MODIFIERS };
static const struct {
    const char *name, *defaults;
} modifiers[N_MODIFIERS] = {[VATP] = {"vatp", "norm=l1,sinks=20"}, [ENTROPYSTOP] = {"entropystop", NULL}};

static int find_modifier(const char *name)
{
    int i = 0;
    while (i < N_MODIFIERS && strcmp(modifiers[i].name, name))
        i++;
    return i < N_MODIFIERS ? i : -1;
}

static const struct butler_param_form *form_of(const struct butler_metric *metric, int i)
{
    static const struct butler_param_form number = {0, {NULL}};
    return metric->forms ? &metric->forms[i] : &number;
}

/* Whether some metric has a parameter of this name. */
static bool is_param(const struct butler_engine *engine, const char *name)
{
    const struct butler_metric *const *metrics = engine->registry->metrics;
    const struct butler_metric_list *plugins = engine->plugins;
    for (int i = 0; metrics[i]; i++)
        if (find_param(metrics[i], name) >= 0)
            return true;
    for (int i = 0; plugins && i < plugins->n; i++)
        if (find_param(plugins->entries[i].metric, name) >= 0)
            return true;
    return false;
}

static int find_key(const char *name)
{
    if (!strcmp(name, "reduce")) /* what "group" does with the heads of a group */
        return K_GROUP;
    for (int k = 0; k < N_KEYS; k++)
        if (!strcmp(keys[k].name, name))
            return k;
    return -1;
}

bool butler_policy_is_key(const char *name)
{
    return find_key(name) >= 0 || !strcmp(name, "preset");
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
    return butler_policy_row_find(registry, name) || find_modifier(name) >= 0;
}

static void *field(struct butler_policy *policy, int k)
{
    return (char *)policy + keys[k].offset;
}

static void set_key(struct butler_policy *policy, int k, double value)
{
    switch (keys[k].type) {
    case KEY_COUNT:
        *(int *)field(policy, k) = (int)value;
        break;
    case KEY_WORD: {
        _Static_assert(sizeof(enum butler_share) == sizeof(int) && sizeof(enum butler_method) == sizeof(int), "enums are ints");
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

/* --------------------------------------------------------------------------------------------- reading */

static int read_number(const struct draft *draft, const char *name, const char *value, double *out)
{
    char *end;
    if (!*value || value[strspn(value, "0123456789.eE+-")])
        return fail(draft, "%s=%.40s: not a number", name, value);
    *out = strtod(value, &end);
    if (*end || !isfinite(*out))
        return fail(draft, "%s=%.40s: not a number", name, value);
    return 0;
}

static int read_word(const struct draft *draft, const char *name, const char *value, const char *const *words, int n, double *out)
{
    char allowed[80] = "";
    for (int i = 0; i < n && words[i]; i++) {
        if (!strcmp(words[i], value)) {
            *out = i;
            return 0;
        }
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s", i ? " or " : "", words[i]);
    }
    return fail(draft, "%s=%.40s: %s", name, value, allowed);
}

static int read_key(const struct draft *draft, int k, const char *value, double *out)
{
    const struct key *key = &keys[k];
    if (key->type == KEY_WORD || key->type == KEY_SWITCH) {
        int rc = read_word(draft, key->name, value, key->words, BUTLER_COUNT(key->words), out);
        if (!rc)
            *out += key->base;
        return rc;
    }
    int rc = read_number(draft, key->name, value, out);
    if (rc)
        return rc;
    if (key->type == KEY_BUDGET && !(*out > 0))
        return fail(draft, "budget=%.40s: must be above 0 (up to 1 a share of the length, beyond it a number of tokens)", value);
    if (key->type == KEY_MASS && !(*out > 0 && *out <= 1))
        return fail(draft, "mass=%.40s: must be above 0 and at most 1", value);
    if (*out < key->min || *out > key->max)
        return fail(draft, "%s=%.40s: must be from %.10g to %.10g", key->name, value, key->min, key->max);
    if ((key->type == KEY_COUNT || (key->type == KEY_BUDGET && *out > 1)) && *out != floor(*out))
        return fail(draft, "%s=%.40s: a number of tokens is whole", key->name, value);
    if (k == K_PYRAMID && *out > 0 && *out < 1)
        return fail(draft, "pyramid=%.40s: must be 0 (off) or at least 1", value);
    return 0;
}

static int read_param(const struct draft *draft, int i, const char *value, double *out)
{
    const struct butler_param *param = &draft->policy.metric->params[i];
    const struct butler_param_form *form = form_of(draft->policy.metric, i);
    if (form->words[0])
        return read_word(draft, param->name, value, form->words, BUTLER_COUNT(form->words), out);
    int rc = read_number(draft, param->name, value, out);
    if (rc)
        return rc;
    if (*out < param->min || *out > param->max)
        return fail(draft, "%s=%.40s: must be from %.10g to %.10g", param->name, value, param->min, param->max);
    if (form->step > 0 && fmod(*out - param->min, form->step) != 0)
        return fail(draft, "%s=%.40s: must be %g and a multiple of %g", param->name, value, param->min, form->step);
    return 0;
}

static int fail_unknown(const struct draft *draft, const char *what, const char *name, const char *where, const char *known)
{
    char mean[80];
    butler_did_you_mean(mean, sizeof mean, name, known);
    return fail(draft, "no %s \"%.40s\"%s;%s there are %s", what, name, where, mean, known);
}

static int fail_unknown_key(const struct draft *draft, const char *name)
{
    char allowed[320] = "preset";
    for (int k = 0; k < N_KEYS; k++)
        if (!keys[k].refuse(draft))
            snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), ", %s", keys[k].name);
    const struct butler_param *params = draft->policy.metric ? draft->policy.metric->params : NULL;
    for (int i = 0; params && params[i].name; i++)
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), ", %s", params[i].name);
    return fail_unknown(draft, "key", name, " here", allowed);
}

/* One `key=value`. Only what was written can repeat itself. */
static int read_item(struct draft *draft, const char *name, const char *value, bool written)
{
    double number = 0;
    int rc, k = find_key(name), i = find_param(draft->policy.metric, name);
    if (!strcmp(name, "preset")) {
        if (draft->given_preset)
            return fail(draft, "preset= is given twice");
        draft->given_preset = true;
        return 0; /* applied before everything that was written */
    }
    if (k >= 0) {
        if (written && draft->given & (uint64_t)1 << k)
            return fail(draft, "%s= is given twice", name);
        if ((rc = read_key(draft, k, value, &number)))
            return rc;
        set_key(&draft->policy, k, number);
        draft->given |= written ? (uint64_t)1 << k : 0;
        return 0;
    }
    if (i < 0) {
        if (is_param(draft->engine, name))
            return fail(draft, "%s= has no meaning here: %s has no such parameter", name,
                        draft->policy.metric ? draft->policy.metric->name : "full");
        return fail_unknown_key(draft, name);
    }
    if (written && draft->given_params & (uint32_t)1 << i)
        return fail(draft, "%s= is given twice", name);
    if ((rc = read_param(draft, i, value, &number)))
        return rc;
    draft->policy.values[i] = number;
    draft->given_params |= written ? (uint32_t)1 << i : 0;
    return 0;
}

/* Calls read_item for every `key=value` of a list, or only finds the preset. */
static int read_list(struct draft *draft, const char *list, bool written, const char **preset)
{
    char item[MAX_TEXT + 1];
    while (*list) {
        size_t n = strcspn(list, ",");
        memcpy(item, list, n);
        item[n] = 0;
        list += n;
        if (*list == ',' && !*++list)
            return fail(draft, "nothing follows the last comma");
        char *equals = strchr(item, '=');
        if (!equals || equals == item)
            return fail(draft, "\"%.60s\" is not key=value", item);
        *equals = 0;
        if (preset) {
            if (!strcmp(item, "preset"))
                *preset = !strcmp(equals + 1, "paper") ? "paper" : !strcmp(equals + 1, "code") ? "code" : "";
            continue;
        }
        int rc = read_item(draft, item, equals + 1, written);
        if (rc)
            return rc;
    }
    return 0;
}

static int fail_unknown_name(const struct draft *draft, const char *name)
{
    char known[320] = "";
    for (const struct butler_policy_row *row = draft->engine->registry->policies; row->name; row++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? ", " : "", row->name);
    const struct butler_metric_list *list = draft->engine->plugins;
    for (int i = 0; list && i < list->n; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), ", %s", list->entries[i].metric->name);
    return fail_unknown(draft, "policy", name, "", known);
}

static const char *row_defaults(const struct butler_policy_row *row)
{
    const char *colon = strchr(row->text, ':');
    return colon ? colon + 1 : "";
}

/* `name[+modifier...]`: the row or the plug-in, its defaults and the modifiers'. */
static int read_name(struct draft *draft, char *head)
{
    struct butler_policy *policy = &draft->policy;
    char *plus = strchr(head, '+'), *next;
    if (plus)
        *plus++ = 0;
    draft->row = butler_policy_row_find(draft->engine->registry, head);
    if (draft->row) {
        policy->metric = draft->row->metric ? butler_metric_find(draft->engine->registry, NULL, draft->row->metric) : NULL;
    } else {
        const struct butler_metric_list *list = draft->engine->plugins;
        for (int i = 0; list && i < list->n; i++)
            if (!strcmp(list->entries[i].metric->name, head))
                policy->metric = list->entries[i].metric;
        if (!policy->metric)
            return fail_unknown_name(draft, head);
    }
    for (int i = 0; policy->metric && policy->metric->params && policy->metric->params[i].name; i++)
        policy->values[i] = policy->metric->params[i].value;
    const bool named = draft->entropystop = find_modifier(head) == ENTROPYSTOP;
    int rc = read_list(draft, draft->row ? row_defaults(draft->row) : BUTLER_POLICY_PLUGIN_DEFAULTS, false, NULL);
    policy->dense_layers += !draft->row && policy->metric->earlier_layers; /* nothing comes before the first layer */
    for (; !rc && plus; plus = next) {
        if ((next = strchr(plus, '+')))
            *next++ = 0;
        const int m = find_modifier(plus);
        if (m < 0) {
            char known[64];
            snprintf(known, sizeof known, "%s, %s", modifiers[VATP].name, modifiers[ENTROPYSTOP].name);
            return fail_unknown(draft, "modifier", plus, "", known);
        }
        bool *has = m == VATP ? &draft->vatp : &draft->entropystop;
        if (*has)
            return fail(draft, "+%s is there twice", plus);
        *has = true;
        const char *defaults = modifiers[m].defaults;
        rc = read_list(draft, defaults ? defaults : row_defaults(butler_policy_row_find(draft->engine->registry, plus)), false,
                       NULL);
    }
    /* One spelling for one policy. */
    snprintf(policy->name, sizeof policy->name, "%.31s%s%s", head, draft->vatp ? "+vatp" : "",
             draft->entropystop && !named ? "+entropystop" : "");
    return rc;
}

/* -------------------------------------------------------------------------------------------- resolving */

static bool given(const struct draft *draft, int k)
{
    return draft->given & (uint64_t)1 << k;
}

static int check_vatp(const struct draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    if (!draft->vatp)
        return 0;
    if (!policy->metric)
        return fail(draft, "+vatp weighs tokens before some are chosen; this policy reads everything");
    if (policy->metric->page_scores)
        return fail(draft, "+vatp multiplies a token's score by the norm of its value; this metric scores pages");
    if (policy->metric->weighing == BUTLER_WEIGH_NOTHING)
        return fail(draft, "+vatp multiplies attention by the norm of the value; %s is no attention", policy->metric->name);
    return 0;
}

/* Settles what keys say to one another, refuses what has no meaning and drops defaults that have none. */
static int resolve_keys(struct draft *draft)
{
    struct butler_policy *policy = &draft->policy;
    if (!policy->metric)
        policy->method = BUTLER_DENSE;
    if (given(draft, K_BUDGET) && given(draft, K_MASS))
        return fail(draft, "budget= and mass= exclude one another");
    if (given(draft, K_RECENT) && given(draft, K_HEAVY))
        return fail(draft, "recent= and heavy= exclude one another: heavy= leaves the rest of the budget to recent tokens");
    if (given(draft, K_RECENT) || (policy->budget_kind == BUTLER_BUDGET_MASS && !given(draft, K_HEAVY)))
        policy->heavy = keys[K_HEAVY].neutral;
    int window = draft->row && draft->row->keeps_window ? find_param(policy->metric, "window") : -1;
    if (window >= 0 && !given(draft, K_RECENT))
        policy->recent = policy->evict_at_prefill_only ? (int)policy->values[window] : 0;
    int rc = check_vatp(draft);
    for (int k = 0; !rc && k < N_KEYS; k++) {
        const char *why = keys[k].refuse(draft);
        if (why && given(draft, k))
            rc = fail(draft, "%s= has no meaning here: %s", keys[k].name, why);
        else if (why && keys[k].type != KEY_BUDGET && keys[k].type != KEY_MASS)
            set_key(policy, k, keys[k].neutral);
    }
    if (policy->heavy >= 0)
        policy->recent = 0;
    if (!given(draft, K_SINKS) && policy->metric && policy->metric->page_scores && policy->budget_kind == BUTLER_BUDGET_COUNT)
        policy->sinks = BUTLER_MIN(policy->sinks, (int)policy->budget - 1); /* whole pages are read anyway */
    if (is_prune(draft)) {
        policy->budget_kind = BUTLER_BUDGET_FRACTION;
        policy->budget = 1 - policy->prune_ratio;
    }
    return rc;
}

static int check_numbers(struct draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    if (!policy->metric || policy->budget_kind != BUTLER_BUDGET_COUNT || policy->on_top)
        return 0;
    /* The newest token is always kept. */
    int recent = BUTLER_MAX(1, policy->recent), budget = (int)policy->budget;
    if (policy->heavy >= 0)
        recent = BUTLER_MAX(1, budget - (int)floor(policy->heavy * budget + 0.5));
    if (policy->sinks > budget)
        return fail(draft, "sinks=%d are more than budget=%d", policy->sinks, budget);
    if (policy->sinks > budget - recent)
        return fail(draft, "budget=%d cannot hold sinks=%d and %d recent tokens", budget, policy->sinks, recent);
    return 0;
}

/* Metrics that look at other layers: where they can, and whether the model has the predictor they need. */
static int check_lookahead(struct draft *draft)
{
    const struct butler_policy *policy = &draft->policy;
    const struct butler_metric *metric = policy->metric;
    if (!metric || (!metric->predictor && !metric->earlier_layers))
        return 0;
    if (metric->earlier_layers && policy->method == BUTLER_EVICT)
        return fail(draft, "%s reads by what other layers hold, so no layer may forget; it needs method=retrieve", metric->name);
    if (metric->earlier_layers && draft->model && draft->model->hp.n_windowed > 0)
        return fail(draft, "%s reads by what other layers hold; %d layers of this model have a window of %d tokens", metric->name,
                    draft->model->hp.n_windowed, draft->model->hp.window);
    if (policy->dense_layers < 1)
        return fail(draft, "dense=0: nothing comes before the first layer that could say what it will read; dense= is at least 1");
    if (metric->predictor && draft->model && draft->model->layers && !draft->engine->predictors[metric->predictor - 1])
        return fail(
            draft,
            "there is no predictor of version %d for this model; `butler train --predictor v%d` makes one, which lies beside "
            "the model as NAME.%s.gguf or is named by --predictor (in a program: butler_predictor_attach)",
            metric->predictor, metric->predictor, metric->predictor == 1 ? "tokenbutler" : "tokenbutler2");
    return 0;
}

static int check_model(struct draft *draft)
{
    struct butler_policy *policy = &draft->policy;
    struct butler_metric_shape shape = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 64, .group = 1};
    bool known = draft->model && draft->model->hp.n_kv_heads > 0;
    if (known) {
        const struct butler_hparams *hp = &draft->model->hp;
        shape = (struct butler_metric_shape){
            hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, hp->n_heads / hp->n_kv_heads, 0, 0, 0};
        if (given(draft, K_DENSE) && policy->dense_layers > hp->n_layers)
            return fail(draft, "dense=%d: the model has %d layers", policy->dense_layers, hp->n_layers);
        policy->dense_layers = BUTLER_MIN(policy->dense_layers, hp->n_layers);
        if (policy->rope_in_cache && hp->rope == BUTLER_ROPE_NONE)
            return fail(draft, "rope=cache: the model does not rotate its keys");
        for (int l = 0; policy->rope_in_cache && draft->model->layers && l < hp->n_layers; l++)
            if (draft->model->layers[l].rope != BUTLER_LAYER_ROTATES || draft->model->layers[l].window > 0)
                return fail(draft, "rope=cache: layers of this model rotate their keys in different ways");
        policy->layers = hp->n_windowed > 0 ? draft->model->layers : NULL;
        if (policy->metric && policy->method == BUTLER_EVICT && policy->share == BUTLER_SHARE_QUERY && shape.group > 1)
            return fail(draft,
                        "share=query cannot evict here: %d query heads of this model share each KV head, which forgets a token "
                        "for all of them (share=kv or share=layer)",
                        shape.group);
    }
    const int version = policy->metric ? policy->metric->predictor : 0;
    if (version > 0 && draft->engine->predictors[version - 1])
        butler_predictor_shape(draft->engine->predictors[version - 1], &shape);
    return butler_policy_compile(policy, &shape, draft->err);
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

static void write_key(const struct draft *draft, int k, char *text, size_t max, int *n_items)
{
    const struct butler_policy *policy = &draft->policy;
    const void *at = (const char *)policy + keys[k].offset;
    char value[40] = "";
    bool mass = policy->budget_kind == BUTLER_BUDGET_MASS;
    if (keys[k].refuse(draft) || (k == K_BUDGET && mass) || (k == K_MASS && !mass) || (k == K_RECENT && policy->heavy >= 0) ||
        (k == K_HEAVY && policy->heavy < 0))
        return;
    if (keys[k].type == KEY_COUNT)
        snprintf(value, sizeof value, "%d", *(const int *)at);
    else if (keys[k].type == KEY_SWITCH)
        snprintf(value, sizeof value, "%s", keys[k].words[*(const bool *)at]);
    else if (keys[k].type == KEY_WORD) {
        int word;
        memcpy(&word, at, sizeof word);
        snprintf(value, sizeof value, "%s", keys[k].words[word - keys[k].base]);
    } else
        write_number(value, sizeof value, *(const double *)at);
    write_item(text, max, n_items, keys[k].name, value);
}

static int write_text(struct draft *draft)
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
            const struct butler_param_form *form = form_of(policy->metric, i);
            if (form->words[0])
                snprintf(value, sizeof value, "%s", form->words[(int)policy->values[i]]);
            else
                write_number(value, sizeof value, policy->values[i]);
            write_item(text, max, &n_items, params[i].name, value);
        }
        write_key(draft, k, text, max, &n_items);
    }
    if (strlen(text) > MAX_TEXT)
        return fail(draft, "written out in full it is longer than %d bytes", MAX_TEXT);
    return 0;
}

static int parse(struct draft *draft)
{
    char head[MAX_TEXT + 1];
    const char *list = strchr(draft->text, ':'), *preset = NULL;
    size_t n = list ? (size_t)(list - draft->text) : strlen(draft->text);
    if (strlen(draft->text) > MAX_TEXT)
        return fail(draft, "longer than %d bytes", MAX_TEXT);
    memcpy(head, draft->text, n);
    head[n] = 0;
    for (int k = 0; k < N_KEYS; k++)
        if (keys[k].type != KEY_BUDGET && keys[k].type != KEY_MASS)
            set_key(&draft->policy, k, keys[k].neutral);
    int rc = read_name(draft, head);
    if (!rc && list && !list[1])
        rc = fail(draft, "nothing follows the colon");
    if (!rc && list)
        rc = read_list(draft, list + 1, true, &preset);
    if (!rc && preset && !*preset)
        rc = fail(draft, "preset=: paper or code");
    const char *changes = !preset || !draft->row ? NULL : *preset == 'p' ? draft->row->paper : draft->row->code;
    if (!rc && changes)
        rc = read_list(draft, changes, false, NULL);
    if (!rc && list)
        rc = read_list(draft, list + 1, true, NULL);
    int (*const stages[])(struct draft *) = {resolve_keys, check_numbers, check_lookahead, check_model, write_text};
    for (int i = 0; !rc && i < BUTLER_COUNT(stages); i++)
        rc = stages[i](draft);
    return rc;
}

int butler_policy_parse(const struct butler_engine *engine, const char *text, struct butler_policy *policy,
                        struct butler_error *err)
{
    struct draft draft = {.engine = engine, .model = engine->model, .text = text ? text : "full", .err = err};
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0); /* a decimal point is a point, whatever the language */
    if (!c)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "policy \"%.72s\": no memory", draft.text);
    locale_t before = uselocale(c);
    int rc = parse(&draft);
    uselocale(before);
    freelocale(c);
    if (!rc && policy)
        *policy = draft.policy;
    return rc;
}
