/* Policies as text: their keys in the canonical spelling, which names all of them, and what two policies can share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

/* The value of a key in "name:key=value,..."; NULL: there is none. */
static const char *value_of(const char *text, const char *key)
{
    const size_t n = strlen(key);
    for (const char *at = strchr(text, ':'); at; at = strchr(at + 1, ','))
        if (strncmp(at + 1, key, n) == 0 && at[1 + n] == '=')
            return at + n + 2;
    return NULL;
}

bool eval_text_has(const char *text, const char *key)
{
    return value_of(text, key) != NULL;
}

bool eval_text_is(const char *text, const char *key, const char *word)
{
    const char *value = value_of(text, key);
    const size_t n = strlen(word);
    return value && strncmp(value, word, n) == 0 && (value[n] == ',' || value[n] == 0);
}

double eval_text_number(const char *text, const char *key)
{
    const char *value = value_of(text, key);
    return value ? strtod(value, NULL) : 0;
}

void eval_text_set(char text[EVAL_POLICY_TEXT], const char *key, const char *item)
{
    const char *value = value_of(text, key);
    if (!value)
        return;
    char rest[EVAL_POLICY_TEXT];
    const size_t at = (size_t)(value - text) - strlen(key) - 1;
    strcpy(rest, value + strcspn(value, ","));
    snprintf(text + at, EVAL_POLICY_TEXT - at, "%s%s", item, rest);
}

void eval_policy_set_dense(struct eval_policy *policy, int n)
{
    char item[32];
    snprintf(item, sizeof item, "dense=%d", n);
    eval_text_set(policy->runs, "dense", item);
    policy->dense = n;
}

bool eval_policy_applies(const struct eval_run *run, const struct eval_policy *policy, int layer)
{
    return layer >= policy->dense && butler_model_window(run->model, layer) == 0;
}

bool eval_policy_reads_alone(const struct eval_run *run, const char *text)
{
    return eval_text_is(text, "prefill", "evict") || eval_text_is(text, "rope", "cache") ||
           !butler_policy_can_adopt(run->engine, text, text);
}

bool eval_policy_observes(const struct eval_run *run, const char *text)
{
    return eval_policy_reads_alone(run, text) || !butler_policy_can_adopt(run->engine, text, "full");
}
