/* butler policies: every policy, its axes, its parameters and their defaults; or one, explained, with what it costs on a model. */
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

static json_t *describe(const struct butler_policy_info *info)
{
    return json_pack("{s:s, s:s?, s:s?, s:s, s:s, s:o}", "policy", info->name, "metric", info->metric, "method", info->method,
                     "summary", info->summary, "defaults", info->defaults, "parameters", parameters(info->defaults));
}

static const int depths[] = {8192, 32768, 131072}; /* tokens at which costs are shown */
enum { N_DEPTHS = sizeof depths / sizeof *depths };

/* The costs of a policy on the model, one row a depth; NULL after a message. */
static json_t *cost_rows(const struct cmd_options *options, const struct butler_engine *engine, const char *policy, int *status)
{
    json_t *rows = json_array();
    for (int i = 0; i < N_DEPTHS; i++) {
        struct butler_error err;
        struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
        if (butler_policy_estimate(engine, policy, (enum butler_kv_type)options->kv_type, depths[i], &cost, &err) < 0) {
            *status = cmd_fail(options, &err);
            json_decref(rows);
            return NULL;
        }
        json_array_append_new(
            rows, json_pack("{s:i, s:f, s:I, s:I, s:o, s:I, s:I}", "tokens", depths[i], "record_bytes", cost.record_bytes,
                            "kv_memory", (json_int_t)cost.kv_memory, "metric_memory", (json_int_t)cost.metric_memory, "kv_bytes",
                            cost.budget_known ? json_integer((json_int_t)cost.kv_bytes) : json_null(), "metric_bytes",
                            (json_int_t)cost.metric_bytes, "full_kv_bytes", (json_int_t)cost.full_kv_bytes));
    }
    return rows;
}

static void print_costs(const struct cmd_options *options, const json_t *costs)
{
    json_t *row;
    size_t i;
    char a[32], b[32], c[32], d[32];
    cmd_printf("\non this model, keys and values in %s; the metric keeps %.0f bytes a token:\n\n"
               "%10s %12s %12s %14s %14s %9s\n",
               cmd_kv_type_name((enum butler_kv_type)options->kv_type),
               json_real_value(json_object_get(json_array_get(costs, 0), "record_bytes")), "tokens", "KV memory", "metric",
               "read a step", "full reads", "share");
    json_array_foreach(costs, i, row)
    {
        const uint64_t kv_memory = (uint64_t)json_integer_value(json_object_get(row, "kv_memory")),
                       metric = (uint64_t)json_integer_value(json_object_get(row, "metric_memory")),
                       full = (uint64_t)json_integer_value(json_object_get(row, "full_kv_bytes")),
                       read = (uint64_t)(json_integer_value(json_object_get(row, "kv_bytes")) +
                                         json_integer_value(json_object_get(row, "metric_bytes")));
        const bool known = !json_is_null(json_object_get(row, "kv_bytes"));
        cmd_printf("%10d %12s %12s %14s %14s", depths[i], cmd_bytes(a, sizeof a, kv_memory), cmd_bytes(b, sizeof b, metric),
                   known ? cmd_bytes(c, sizeof c, read) : "by the text", cmd_bytes(d, sizeof d, full));
        if (known)
            cmd_printf(" %7.1f %%", 100 * (double)read / (double)full);
        cmd_printf("\n");
    }
}

/* One parameter a line: what it is called, its value, what it is. */
static void print_parameters(const struct butler_engine *engine, const struct butler_policy_parts *policy)
{
    const char *key;
    json_t *value, *all = parameters(policy->text);
    json_object_foreach(all, key, value)
    {
        const char *help = butler_policy_help(engine, policy->metric, key);
        char number[40];
        snprintf(number, sizeof number, json_is_real(value) ? "%.10g" : "%.0f", json_number_value(value));
        cmd_printf("  %-10s %-9s %s\n", key, json_is_string(value) ? json_string_value(value) : number, help ? help : "");
    }
    json_decref(all);
}

/* A policy by its name, or by a policy string, whose parameters then stand for the defaults. */
static int explain(const struct cmd_options *options, const struct butler_engine *engine, const char *policy)
{
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    struct butler_policy_parts parts = {BUTLER_INIT(butler_policy_parts)};
    struct butler_error err;
    const size_t n_name = strcspn(policy, "+:");
    int i = 0, status = CMD_DONE;
    while (butler_policy_describe(engine, i, &info) && (strlen(info.name) != n_name || strncmp(info.name, policy, n_name) != 0))
        i++;
    const bool known = butler_policy_describe(engine, i, &info);
    if (engine && butler_policy_read(engine, policy, &parts, &err) < 0) {
        cmd_say(options, "%s", err.message);
        return CMD_USAGE;
    }
    if (!known) {
        butler_policy_check(engine, policy, &err);
        cmd_say(options, "%s", err.message);
        return CMD_USAGE;
    }
    if (!engine) { /* a name alone */
        parts.metric = info.metric;
        snprintf(parts.name, sizeof parts.name, "%s", info.name);
        snprintf(parts.text, sizeof parts.text, "%s", info.defaults);
    }
    const char *paper = butler_policy_paper(info.name);
    json_t *costs = options->model ? cost_rows(options, engine, policy, &status) : NULL;
    if (status != CMD_DONE)
        return status;
    if (options->json) {
        json_t *row = describe(&info);
        json_object_set_new(row, "policy", json_string(parts.name));
        json_object_set_new(row, "parameters", parameters(parts.text));
        json_object_set_new(row, "paper", paper ? json_string(paper) : json_null());
        json_object_set_new(row, "costs", costs ? json_incref(costs) : json_null());
        cmd_row(row);
    } else {
        cmd_printf("%s: %s\n\nmetric %s, method %s\n", parts.name, info.summary, info.metric,
                   parts.evicts      ? "evict"
                   : parts.retrieves ? "retrieve"
                                     : info.method);
        cmd_printf("paper  %s\n\n", paper ? paper : "none");
        print_parameters(engine, &parts);
        if (costs)
            print_costs(options, costs);
    }
    json_decref(costs);
    return CMD_DONE;
}

static int list(const struct cmd_options *options, const struct butler_engine *engine)
{
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    if (!options->json)
        cmd_printf("%-14s %-14s %-10s %s\n", "policy", "metric", "method", "what it does, and its parameters with their defaults");
    for (int i = 0; butler_policy_describe(engine, i, &info); i++) {
        if (options->json)
            cmd_row(describe(&info));
        else
            cmd_printf("%-14s %-14s %-10s %s\n%-40s %s\n", info.name, info.metric, info.method, info.summary, "", info.defaults);
    }
    return CMD_DONE;
}

/* The step plug-ins that were loaded, as --step takes them. */
static void list_steps(const struct cmd_options *options, const struct butler_engine *engine)
{
    const int n = butler_step_list(engine, NULL, 0);
    const struct butler_step_plugin **plugins = cmd_alloc((size_t)n + 1, sizeof *plugins);
    butler_step_list(engine, plugins, n);
    if (n && !options->json)
        cmd_printf("\n%-14s %s\n", "step plug-in", "what it does, and its parameters with their defaults");
    for (int i = 0; i < n; i++) {
        const struct butler_param *params = plugins[i]->params;
        char text[1024] = "";
        for (int k = 0, at = 0; params && params[k].name && at < (int)sizeof text - 64; k++)
            at += snprintf(text + at, sizeof text - (size_t)at, "%s%s=%g", k ? "," : ":", params[k].name, params[k].value);
        const char *summary = plugins[i]->summary ? plugins[i]->summary : "";
        if (options->json)
            cmd_row(json_pack("{s:s, s:s, s:o}", "step", plugins[i]->name, "summary", summary, "defaults",
                              json_sprintf("%s%s", plugins[i]->name, text)));
        else
            cmd_printf("%-14s %s\n%-14s %s%s\n", plugins[i]->name, summary, "", plugins[i]->name, text);
    }
    free(plugins);
}

/* What a policy string with keys or modifiers comes to is found out on a model, the small one where none is named. */
static struct butler_engine *load_any(struct cmd_options *options, int *status)
{
    const bool given = options->model != NULL;
    if (!given && (*status = cmd_choose_model(options)) != CMD_DONE)
        return NULL;
    struct butler_engine *engine = cmd_engine_load(options, status);
    if (!given)
        options->model = NULL; /* nobody asked for costs on it */
    return engine;
}

static int run(struct cmd_options *options)
{
    struct butler_engine *engine = NULL;
    int status = CMD_DONE;
    const char *policy = options->positional.n ? options->positional.values[0] : NULL;
    if (options->model || options->plugins.n || (policy && strpbrk(policy, "+:"))) {
        engine = load_any(options, &status);
        if (!engine)
            return status;
    }
    status = options->positional.n ? explain(options, engine, options->positional.values[0]) : list(options, engine);
    if (engine && !options->positional.n && status == CMD_DONE)
        list_steps(options, engine);
    cmd_engine_free(engine);
    return status;
}

static const struct cmd_use uses[] = {{CMD_MODEL, NULL}, {CMD_KV_TYPE, "f16"}, {CMD_PLUGIN, NULL}, {CMD_PREDICTOR, NULL},
                                      {CMD_JSON, NULL},  {CMD_HELP, NULL},     {CMD_NONE, NULL}};

const struct cmd_command cmd_policies = {
    .name = "policies",
    .synopsis = "[POLICY] [-m FILE] [--kv-type TYPE] [--plugin FILE] [--json]",
    .summary = "every policy, its axes, its parameters and defaults; or one, explained",
    .details =
        "A policy is written NAME[+MODIFIER...][:KEY=VALUE,...], for example\n\n"
        "  full                                  everything is read\n"
        "  quest:budget=1024                     1024 tokens of every head's cache, in pages\n"
        "  h2o+vatp:budget=0.5,sinks=20          half of the tokens stay in memory\n\n"
        "A budget up to 1 is a fraction of the current length, above 1 a number of tokens; mass=0.95 takes the smallest set\n"
        "expected to carry that share of the attention.\n\n"
        "With POLICY: its paper and what every parameter means; with -m also its memory and the bytes that a decode step reads of\n"
        "texts of 8k, 32k and 128k tokens, beside what full reads. These are computed from the model's shape, nothing is run.\n\n"
        "Otherwise no model is needed, unless --plugin loads a metric of your own.\n\n"
        "With --json one row a policy: {\"policy\", \"metric\", \"method\", \"summary\", \"defaults\", \"parameters\": {...}}; of "
        "a\n"
        "single POLICY also \"paper\" and \"costs\", one object a length.\n",
    .uses = uses,
    .max_positional = 1,
    .run = run,
};
