/* From the command line to a run: the task's options, and every policy with every budget. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts.h"

#define ADDRESS(name) &eval_##name,
const struct eval_task *const eval_tasks[] = {EVAL_TASKS(ADDRESS) NULL};

const struct eval_task *eval_task_find(const char *name)
{
    for (int i = 0; eval_tasks[i]; i++)
        if (strcmp(eval_tasks[i]->name, name) == 0)
            return eval_tasks[i];
    return NULL;
}

/* ------------------------------------------------------------------------------------------- task's options */

static int option_index(const struct eval_task *task, const char *name, size_t n_name)
{
    for (int i = 0; task->options && task->options[i].name; i++)
        if (strlen(task->options[i].name) == n_name && memcmp(task->options[i].name, name, n_name) == 0)
            return i;
    return -1;
}

/* "key=value,key=value", split in place. A key "before" takes the rest: it is a text, which may have commas. */
static int take_settings(struct eval_run *run, char *text, struct butler_error *err)
{
    while (*text) {
        const bool rest = strncmp(text, "before=", strlen("before=")) == 0;
        char *end = text + (rest ? strlen(text) : strcspn(text, ",")), *next = *end ? end + 1 : end;
        *end = 0;
        const size_t n = strcspn(text, "=");
        const int i = option_index(run->task, text, n);
        if (i < 0 || !text[n]) {
            char names[256] = "none";
            for (int k = 0, at = 0; run->task->options && run->task->options[k].name && at < (int)sizeof names; k++)
                at += snprintf(names + at, sizeof names - (size_t)at, "%s%s", k ? ", " : "", run->task->options[k].name);
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set: '%s' is not KEY=VALUE of task %s, whose keys are: %s", text,
                               run->task->name, names);
        }
        run->option_values[i] = text + n + 1;
        text = next;
    }
    return 0;
}

int eval_take_options(struct eval_run *run, struct butler_error *err)
{
    const struct eval_params *params = run->params;
    size_t bytes = 1;
    for (int i = 0; run->task->options && run->task->options[i].name; i++)
        run->option_values[i] = run->task->options[i].value;
    if (params->subset)
        run->option_values[option_index(run->task, "subset", strlen("subset"))] = params->subset;
    for (int i = 0; i < params->n_settings; i++)
        bytes += strlen(params->settings[i]) + 1;
    char *at = run->settings = butler_alloc(bytes, err);
    if (!at)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < params->n_settings; i++) {
        strcpy(at, params->settings[i]);
        const size_t n = strlen(at);
        const int code = take_settings(run, at, err);
        if (code < 0)
            return code;
        at += n + 1;
    }
    return 0;
}

const char *eval_option_text(const struct eval_run *run, const char *name)
{
    const int i = option_index(run->task, name, strlen(name));
    return i < 0 ? NULL : run->option_values[i];
}

int eval_option_int(const struct eval_run *run, const char *name, int min, int max, int *out, struct butler_error *err)
{
    const char *text = eval_option_text(run, name);
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < min || value > max)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set %s: '%s' is not a whole number from %d to %d", name, text, min, max);
    *out = (int)value;
    return 0;
}

int eval_skip(const struct eval_run *run, const char *format, ...)
{
    char why[256], text[384];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    snprintf(text, sizeof text, "%s %s: not measured: %s", run->task->name, run->subset ? run->subset : "", why);
    if (run->events->note)
        run->events->note(run->events->user, text);
    return EVAL_SKIPPED;
}

int eval_option_chat(const struct eval_run *run, bool *chat, struct butler_error *err)
{
    const char *text = eval_option_text(run, "chat");
    const bool has = run->info->chat_template != NULL;
    *chat = strcmp(text, "on") == 0 || (strcmp(text, "auto") == 0 && has);
    if (strcmp(text, "on") == 0 && !has)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set chat=on: the model has no chat template");
    if (!*chat && strcmp(text, "off") != 0 && strcmp(text, "auto") != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "--set chat: '%s' is not allowed; it takes auto, on, off", text);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ policies */

static bool is_budget(const char *key)
{
    return strncmp(key, "budget=", 7) == 0 || strncmp(key, "mass=", 5) == 0;
}

/* The policy string with its budget replaced. Owned. */
static char *with_budget(const char *text, double budget, struct butler_error *err)
{
    char *out = butler_alloc(strlen(text) + 48, err), *at = out;
    if (!out)
        return NULL;
    const size_t n_name = strcspn(text, ":");
    const char *key = text + n_name + (text[n_name] == ':');
    at += sprintf(at, "%.*s:", (int)n_name, text);
    while (*key) {
        const size_t n = strcspn(key, ",");
        if (!is_budget(key))
            at += sprintf(at, "%.*s,", (int)n, key);
        key += n + (key[n] == ',');
    }
    sprintf(at, "budget=%.9g", budget);
    return out;
}

/* budget 0: the policy as given. A policy that is already in the list is not added again, so one without a budget is run once. */
static int add_policy(struct eval_run *run, int given, double budget, struct butler_error *err)
{
    struct eval_policy *policy = &run->policies[run->n_policies];
    const char *text = run->params->policies[given];
    *policy = (struct eval_policy){.given = given};
    policy->parts.struct_size = sizeof policy->parts;
    int code = butler_policy_read(run->engine, text, &policy->parts, err);
    if (code < 0)
        return code;
    strcpy(policy->runs, policy->parts.text);
    const bool has_budget = eval_text_has(policy->runs, "budget") || eval_text_has(policy->runs, "mass");
    policy->text = budget > 0 && has_budget ? with_budget(text, budget, err) : strdup(text);
    if (!policy->text)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a policy");
    code = butler_policy_read(run->engine, policy->text, &policy->parts, err);
    strcpy(policy->runs, policy->parts.text);
    policy->dense = (int)eval_text_number(policy->runs, "dense");
    policy->budget = policy->parts.budget;
    for (int i = 0; i < run->n_policies && code == 0; i++)
        if (strcmp(run->policies[i].text, policy->text) == 0)
            code = 1;
    if (code == 0)
        run->n_policies++;
    else
        free(policy->text);
    return BUTLER_MIN(code, 0);
}

int eval_take_policies(struct eval_run *run, struct butler_error *err)
{
    const struct eval_params *params = run->params;
    const int n_budgets = BUTLER_MAX(params->n_budgets, 1);
    run->policies = butler_alloc((size_t)(params->n_policies * n_budgets) * sizeof *run->policies, err);
    if (!run->policies)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < params->n_policies; i++)
        for (int b = 0; b < n_budgets; b++) {
            const int code = add_policy(run, i, params->n_budgets > 0 ? params->budgets[b] : 0, err);
            if (code < 0)
                return code;
        }
    return 0;
}
