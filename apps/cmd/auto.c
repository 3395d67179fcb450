/* `--kv auto`, the default: the policy that the model's gate allows for a text of this length, on this machine; full attention
 * where no gate has run or nothing passed. The verdict is looked up by the length that the text will have at most. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "eval/eval.h"
#include "verdict.h"

enum { SHORT = 4096 }; /* below it nobody is told about the gate: there is little to win */

static bool holds_for(const json_t *verdict, const char *key, const char *text)
{
    const char *found = json_string_value(json_object_get(verdict, key));
    return found && strcmp(found, text) == 0;
}

/* NULL: every policy of the verdict can be used, by the predictor that it was measured with. */
static const char *why_not(const struct butler_engine *engine, const json_t *on)
{
    size_t i;
    json_t *one;
    json_array_foreach(on, i, one)
    {
        struct butler_policy_parts parts = {BUTLER_INIT(butler_policy_parts)};
        struct butler_predictor_info predictor = {BUTLER_INIT(butler_predictor_info)};
        char own[24];
        if (butler_policy_check(engine, json_string_value(json_object_get(one, "policy")), NULL) < 0 ||
            butler_policy_read(engine, json_string_value(json_object_get(one, "policy")), &parts, NULL) < 0)
            return "the model's gate allows a policy that is not to be had now";
        if (!parts.predictor || !butler_predictor_describe(engine, parts.predictor, &predictor))
            continue;
        snprintf(own, sizeof own, "%016" PRIx64, predictor.fingerprint);
        if (!holds_for(one, "predictor", own))
            return "the model's gate ran with another predictor";
    }
    return NULL;
}

static void read_verdict(struct cmd_auto *automatic, const struct cmd_options *options, struct butler_engine *engine)
{
    char machine[EVAL_MACHINE];
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    uint64_t fingerprint;
    automatic->why = "no gate has run for this model";
    if (!options->model || butler_model_fingerprint(butler_engine_model(engine), &fingerprint, NULL) < 0)
        return;
    json_t *verdict = verdict_read(options, options->model, fingerprint), *on = json_object_get(verdict, "on");
    if (!verdict)
        return;
    butler_engine_get_info(engine, &info);
    eval_machine(engine, info.n_threads, machine, sizeof machine);
    if (!holds_for(verdict, "kv_type", cmd_kv_type_name((enum butler_kv_type)options->kv_type)))
        automatic->why = "the model's gate ran with another --kv-type";
    else if (!holds_for(verdict, "machine", machine))
        automatic->why = "the model's gate ran on another processor or with another number of threads";
    else if (!(automatic->why = why_not(engine, on)))
        automatic->on = json_incref(on);
    json_decref(verdict);
}

void cmd_auto_open(struct cmd_options *options, struct butler_engine *engine)
{
    bool accepts = false;
    for (const struct cmd_use *use = options->command->uses; use->flag; use++)
        accepts = accepts || (use->flag == CMD_KV && use->value && strcmp(use->value, "auto") == 0);
    for (int i = 0; accepts && i < options->kv.n; i++)
        if (strcmp(options->kv.values[i], "auto") == 0) {
            options->automatic = (struct cmd_auto){.open = true, .at = i};
            options->kv.values[i] = "full";
            read_verdict(&options->automatic, options, engine);
            return; /* twice would be the same policy twice */
        }
}

const char *cmd_auto_policy(const struct cmd_auto *automatic, int n_tokens)
{
    const char *policy = "full";
    size_t i;
    json_t *one;
    json_array_foreach(automatic->on, i, one)
    {
        if (json_integer_value(json_object_get(one, "length")) <= n_tokens)
            policy = json_string_value(json_object_get(one, "policy"));
    }
    return policy;
}

void cmd_auto_say_why(struct cmd_options *options, int n_tokens)
{
    struct cmd_auto *automatic = &options->automatic;
    if (!automatic->open || automatic->on || n_tokens < SHORT || automatic->said)
        return;
    cmd_say(options, "--kv auto: full; %s. butler gate -m MODEL finds whether a faster policy holds", automatic->why);
    automatic->said = true;
}

void cmd_auto_choose(struct cmd_options *options, int n_tokens)
{
    const struct cmd_auto *automatic = &options->automatic;
    if (!automatic->open)
        return;
    const char *policy = cmd_auto_policy(automatic, n_tokens);
    options->kv.values[automatic->at] = policy;
    if (strcmp(policy, "full") != 0)
        cmd_say(options, "--kv auto: %s, which the model's gate allows at this length; --kv full reads everything", policy);
    else
        cmd_auto_say_why(options, n_tokens);
}
