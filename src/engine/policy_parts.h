/* What the files that read a policy's text share: the keys (policy_keys.c), the text (policy.c), what keys say to one another
 * (policy_check.c). */
#ifndef BUTLER_POLICY_PARTS_H
#define BUTLER_POLICY_PARTS_H

#include "engine/engine.h"
#include "engine/policy.h"
#include "engine/policy_table.h"

#define BUTLER_MAX_POLICY 512 /* bytes of a text */

/* A policy on its way. */
struct butler_policy_draft {
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

/* "policy TEXT: " and the sentence, as an argument's error. */
int butler_policy_fail(const struct butler_policy_draft *draft, const char *format, ...) __attribute__((format(printf, 2, 3)));

enum butler_key_type {
    KEY_COUNT,  /* a whole number, an int */
    KEY_NUMBER, /* a double */
    KEY_WORD,   /* an enum: the place of the word plus base */
    KEY_HEADS,  /* the same, or a number of query heads: an int */
    KEY_SWITCH, /* a bool: the place of the word */
    KEY_BUDGET, /* > 1 tokens, <= 1 a share */
    KEY_MASS,
};

struct butler_key {
    const char *name;
    enum butler_key_type type;
    size_t offset;
    double min, max;
    double neutral; /* its value where it has no meaning */
    const char *words[3];
    int base;
    const char *(*refuse)(const struct butler_policy_draft *draft);
};

/* In the order in which they are written. */
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
    K_PROMPT,
    K_NORM,
    K_ENTROPY,
    K_AFTER,
    N_KEYS,
};

extern const struct butler_key butler_keys[N_KEYS];

/* -1: there is none. */
int butler_key_find(const char *name);
void butler_key_set(struct butler_policy *policy, int k, double value);
/* Whether the text has the key, rather than a default. */
static inline bool butler_policy_given(const struct butler_policy_draft *draft, int k)
{
    return draft->given & (uint64_t)1 << k;
}
/* The place of a metric's parameter; -1: it has none of that name. metric may be NULL. */
int butler_policy_find_param(const struct butler_metric *metric, const char *name);
const struct butler_param_form *butler_policy_form(const struct butler_metric *metric, int i);
/* Whether its budget is set by ratio= and min=. */
bool butler_policy_prunes(const struct butler_policy_draft *draft);

/* defaults NULL: those of the policy of that name. */
enum { VATP, ENTROPYSTOP, N_MODIFIERS };
struct butler_modifier {
    const char *name, *defaults;
};
extern const struct butler_modifier butler_modifiers[N_MODIFIERS];
int butler_modifier_find(const char *name);

/* Settles what keys say to one another and to the model, refuses what has no meaning and drops defaults that have none. */
int butler_policy_resolve(struct butler_policy_draft *draft);
/* policy->text: every key and parameter that has a meaning. */
int butler_policy_write(struct butler_policy_draft *draft);

#endif
