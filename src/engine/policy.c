/* From a policy string to numbers (plan.c: from numbers to a plan). A key that was written where it has no meaning is an error, a
 * default where it has none is dropped (policy_keys.c, policy_check.c).
 *
 * Defaults come first (the row of policy_table.c), then those of the modifiers, then the preset's, then what was written. */
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/policy_parts.h"

/* Whether some metric has a parameter of this name. */
static bool is_param(const struct butler_engine *engine, const char *name)
{
    const struct butler_metric *const *metrics = engine->registry->metrics;
    const struct butler_metric_list *plugins = engine->plugins;
    for (int i = 0; metrics[i]; i++)
        if (butler_policy_find_param(metrics[i], name) >= 0)
            return true;
    for (int i = 0; plugins && i < plugins->n; i++)
        if (butler_policy_find_param(plugins->entries[i].metric, name) >= 0)
            return true;
    return false;
}

static int read_number(const struct butler_policy_draft *draft, const char *name, const char *value, double *out)
{
    char *end;
    if (!*value || value[strspn(value, "0123456789.eE+-")])
        return butler_policy_fail(draft, "%s=%.40s: not a number", name, value);
    *out = strtod(value, &end);
    if (*end || !isfinite(*out))
        return butler_policy_fail(draft, "%s=%.40s: not a number", name, value);
    return 0;
}

/* more: what else it may be, for the message. */
static int read_word(const struct butler_policy_draft *draft, const char *name, const char *value, const char *const *words, int n,
                     const char *more, double *out)
{
    char allowed[80] = "";
    for (int i = 0; i < n && words[i]; i++) {
        if (!strcmp(words[i], value)) {
            *out = i;
            return 0;
        }
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), "%s%s", i ? " or " : "", words[i]);
    }
    return butler_policy_fail(draft, "%s=%.40s: %s%s", name, value, allowed, more);
}

static int read_key(const struct butler_policy_draft *draft, int k, const char *value, double *out)
{
    const struct butler_key *key = &butler_keys[k];
    const bool heads = key->type == KEY_HEADS && *value && strchr("-0123456789", *value);
    if (key->type == KEY_WORD || key->type == KEY_SWITCH || (key->type == KEY_HEADS && !heads)) {
        int rc = read_word(draft, key->name, value, key->words, BUTLER_COUNT(key->words),
                           key->type == KEY_HEADS ? ", or a number of query heads" : "", out);
        if (!rc)
            *out += key->base;
        return rc;
    }
    int rc = read_number(draft, key->name, value, out);
    if (rc)
        return rc;
    if (key->type == KEY_BUDGET && !(*out > 0))
        return butler_policy_fail(
            draft, "budget=%.40s: must be above 0 (up to 1 a share of the length, beyond it a number of tokens)", value);
    if (key->type == KEY_MASS && !(*out > 0 && *out <= 1))
        return butler_policy_fail(draft, "mass=%.40s: must be above 0 and at most 1", value);
    if (*out < key->min || *out > key->max)
        return butler_policy_fail(draft, "%s=%.40s: must be from %.10g to %.10g", key->name, value, key->min, key->max);
    if (heads && *out != floor(*out))
        return butler_policy_fail(draft, "%s=%.40s: a number of query heads is whole", key->name, value);
    if ((key->type == KEY_COUNT || ((key->type == KEY_BUDGET || k == K_PROMPT) && *out > 1)) && *out != floor(*out))
        return butler_policy_fail(draft, "%s=%.40s: a number of tokens is whole", key->name, value);
    if (k == K_PYRAMID && *out > 0 && *out < 1)
        return butler_policy_fail(draft, "pyramid=%.40s: must be 0 (off) or at least 1", value);
    return 0;
}

static int read_param(const struct butler_policy_draft *draft, int i, const char *value, double *out)
{
    const struct butler_param *param = &draft->policy.metric->params[i];
    const struct butler_param_form *form = butler_policy_form(draft->policy.metric, i);
    if (form->words[0])
        return read_word(draft, param->name, value, form->words, BUTLER_COUNT(form->words), "", out);
    int rc = read_number(draft, param->name, value, out);
    if (rc)
        return rc;
    if (*out < param->min || *out > param->max)
        return butler_policy_fail(draft, "%s=%.40s: must be from %.10g to %.10g", param->name, value, param->min, param->max);
    if (form->step > 0 && fmod(*out - param->min, form->step) != 0)
        return butler_policy_fail(draft, "%s=%.40s: must be %g and a multiple of %g", param->name, value, param->min, form->step);
    return 0;
}

static int fail_unknown(const struct butler_policy_draft *draft, const char *what, const char *name, const char *where,
                        const char *known)
{
    char mean[80];
    butler_did_you_mean(mean, sizeof mean, name, known);
    return butler_policy_fail(draft, "no %s \"%.40s\"%s;%s there are %s", what, name, where, mean, known);
}

static int fail_unknown_key(const struct butler_policy_draft *draft, const char *name)
{
    char allowed[320] = "preset";
    for (int k = 0; k < N_KEYS; k++)
        if (!butler_keys[k].refuse(draft))
            snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), ", %s", butler_keys[k].name);
    const struct butler_param *params = draft->policy.metric ? draft->policy.metric->params : NULL;
    for (int i = 0; params && params[i].name; i++)
        snprintf(allowed + strlen(allowed), sizeof allowed - strlen(allowed), ", %s", params[i].name);
    return fail_unknown(draft, "key", name, " here", allowed);
}

/* One `key=value`. Only what was written can repeat itself. */
static int read_item(struct butler_policy_draft *draft, const char *name, const char *value, bool written)
{
    double number = 0;
    int rc, k = butler_key_find(name), i = butler_policy_find_param(draft->policy.metric, name);
    if (!strcmp(name, "preset")) {
        if (draft->given_preset)
            return butler_policy_fail(draft, "preset= is given twice");
        draft->given_preset = true;
        return 0; /* applied before everything that was written */
    }
    if (k >= 0) {
        if (written && draft->given & (uint64_t)1 << k)
            return butler_policy_fail(draft, "%s= is given twice", name);
        if ((rc = read_key(draft, k, value, &number)))
            return rc;
        butler_key_set(&draft->policy, k, number);
        draft->given |= written ? (uint64_t)1 << k : 0;
        return 0;
    }
    if (i < 0) {
        if (is_param(draft->engine, name))
            return butler_policy_fail(draft, "%s= has no meaning here: %s has no such parameter", name,
                                      draft->policy.metric ? draft->policy.metric->name : "full");
        return fail_unknown_key(draft, name);
    }
    if (written && draft->given_params & (uint32_t)1 << i)
        return butler_policy_fail(draft, "%s= is given twice", name);
    if ((rc = read_param(draft, i, value, &number)))
        return rc;
    draft->policy.values[i] = number;
    draft->given_params |= written ? (uint32_t)1 << i : 0;
    return 0;
}

/* Calls read_item for every `key=value` of a list, or only finds the preset. */
static int read_list(struct butler_policy_draft *draft, const char *list, bool written, const char **preset)
{
    char item[BUTLER_MAX_POLICY + 1];
    while (*list) {
        size_t n = strcspn(list, ",");
        memcpy(item, list, n);
        item[n] = 0;
        list += n;
        if (*list == ',' && !*++list)
            return butler_policy_fail(draft, "nothing follows the last comma");
        char *equals = strchr(item, '=');
        if (!equals || equals == item)
            return butler_policy_fail(draft, "\"%.60s\" is not key=value", item);
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

static int fail_unknown_name(const struct butler_policy_draft *draft, const char *name)
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
static int read_name(struct butler_policy_draft *draft, char *head)
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
    const bool named = draft->entropystop = butler_modifier_find(head) == ENTROPYSTOP;
    int rc = read_list(draft, draft->row ? row_defaults(draft->row) : BUTLER_POLICY_PLUGIN_DEFAULTS, false, NULL);
    policy->dense_layers += !draft->row && policy->metric->earlier_layers; /* nothing comes before the first layer */
    for (; !rc && plus; plus = next) {
        if ((next = strchr(plus, '+')))
            *next++ = 0;
        const int m = butler_modifier_find(plus);
        if (m < 0) {
            char known[64];
            snprintf(known, sizeof known, "%s, %s", butler_modifiers[VATP].name, butler_modifiers[ENTROPYSTOP].name);
            return fail_unknown(draft, "modifier", plus, "", known);
        }
        bool *has = m == VATP ? &draft->vatp : &draft->entropystop;
        if (*has)
            return butler_policy_fail(draft, "+%s is there twice", plus);
        *has = true;
        const char *defaults = butler_modifiers[m].defaults;
        rc = read_list(draft, defaults ? defaults : row_defaults(butler_policy_row_find(draft->engine->registry, plus)), false,
                       NULL);
    }
    /* One spelling for one policy. */
    snprintf(policy->name, sizeof policy->name, "%.31s%s%s", head, draft->vatp ? "+vatp" : "",
             draft->entropystop && !named ? "+entropystop" : "");
    return rc;
}

static int parse(struct butler_policy_draft *draft)
{
    char head[BUTLER_MAX_POLICY + 1];
    const char *list = strchr(draft->text, ':'), *preset = NULL;
    size_t n = list ? (size_t)(list - draft->text) : strlen(draft->text);
    if (strlen(draft->text) > BUTLER_MAX_POLICY)
        return butler_policy_fail(draft, "longer than %d bytes", BUTLER_MAX_POLICY);
    memcpy(head, draft->text, n);
    head[n] = 0;
    for (int k = 0; k < N_KEYS; k++)
        if (butler_keys[k].type != KEY_BUDGET && butler_keys[k].type != KEY_MASS)
            butler_key_set(&draft->policy, k, butler_keys[k].neutral);
    int rc = read_name(draft, head);
    if (!rc && list && !list[1])
        rc = butler_policy_fail(draft, "nothing follows the colon");
    if (!rc && list)
        rc = read_list(draft, list + 1, true, &preset);
    if (!rc && preset && !*preset)
        rc = butler_policy_fail(draft, "preset=: paper or code");
    const char *changes = !preset || !draft->row ? NULL : *preset == 'p' ? draft->row->paper : draft->row->code;
    if (!rc && changes)
        rc = read_list(draft, changes, false, NULL);
    if (!rc && list)
        rc = read_list(draft, list + 1, true, NULL);
    if (!rc)
        rc = butler_policy_resolve(draft);
    if (!rc)
        rc = butler_policy_write(draft);
    return rc;
}

int butler_policy_parse(const struct butler_engine *engine, const char *text, struct butler_policy *policy,
                        struct butler_error *err)
{
    struct butler_policy_draft draft = {.engine = engine, .model = engine->model, .text = text ? text : "full", .err = err};
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
