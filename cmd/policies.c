/* butler policies: every policy, its axes, its parameters and their defaults. */
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

/* "quest:page=16,group=max" as {"page": 16, "group": "max"}. */
static json_t *parameters(const char *policy)
{
    json_t *object = json_object();
    const char *at = strchr(policy, ':');
    while (at && *at) {
        at++;
        size_t n = strcspn(at, ","), n_key = strcspn(at, "=");
        if (n_key < n) {
            char key[64], value[64], *end;
            snprintf(key, sizeof key, "%.*s", (int)n_key, at);
            snprintf(value, sizeof value, "%.*s", (int)(n - n_key - 1), at + n_key + 1);
            double number = strtod(value, &end);
            bool whole = !*end && number > -1e15 && number < 1e15 && number == (double)(long long)number;
            json_object_set_new(object, key,
                                *end    ? json_string(value)
                                : whole ? json_integer((json_int_t)number)
                                        : json_real(number));
        }
        at += n;
    }
    return object;
}

static int run(struct cmd_options *options)
{
    struct butler_engine *engine = NULL;
    struct butler_policy_info info;
    if (options->model || options->plugins.n) {
        int status = CMD_DONE;
        engine = cmd_engine_load(options, &status);
        if (!engine)
            return status;
    }
    if (!options->json)
        cmd_printf("%-14s %-14s %-10s %s\n", "policy", "metric", "method", "what it does, and its parameters with their defaults");
    for (int i = 0; butler_policy_describe(engine, i, &info); i++) {
        if (options->json)
            cmd_row(json_pack("{s:s, s:s?, s:s?, s:s, s:s, s:o}", "policy", info.name, "metric", info.metric, "method", info.method,
                              "summary", info.summary, "defaults", info.defaults, "parameters", parameters(info.defaults)));
        else
            cmd_printf("%-14s %-14s %-10s %s\n%-40s %s\n", info.name, info.metric, info.method, info.summary, "", info.defaults);
    }
    cmd_engine_free(engine);
    return CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_MODEL, NULL}, {CMD_PLUGIN, NULL}, {CMD_JSON, NULL}, {CMD_HELP, NULL}, {CMD_NONE, NULL}};

const struct cmd_command cmd_policies = {
    .name = "policies",
    .synopsis = "[-m FILE] [--plugin FILE] [--json]",
    .summary = "every policy, its axes, its parameters and defaults",
    .details =
        "A policy is written NAME[+MODIFIER...][:KEY=VALUE,...], for example\n\n"
        "  full                                  everything is read\n"
        "  quest:budget=1024                     1024 tokens of every head's cache, in pages\n"
        "  h2o+vatp:budget=0.5,sinks=20          half of the tokens stay in memory\n\n"
        "A budget up to 1 is a fraction of the current length, above 1 a number of tokens; mass=0.95 takes the smallest set\n"
        "expected to carry that share of the attention.\n\n"
        "No model is needed, unless --plugin loads a metric of your own.\n\n"
        "With --json one row a policy: {\"policy\", \"metric\", \"method\", \"summary\", \"defaults\", \"parameters\": {...}}.\n",
    .uses = uses,
    .run = run,
};
