/* Texts that are longer than a model's context: which policy still reads them, and what there is to choose for the others. */
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

/* streaming with positions inside the cache, as it was published: how far the text goes on does not matter then. NULL: the policy
 * is another one, or is told otherwise. */
static char *with_places(const char *policy)
{
    static const char name[] = "streaming", rope[] = "rope=cache";
    static const char *const others[] = {"rope=original", "method=", "prefill=", "rolling="};
    const size_t n = strcspn(policy, ":+");
    bool is_it = n == sizeof name - 1 && memcmp(policy, name, n) == 0 && policy[n] != '+';
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        is_it = is_it && !strstr(policy, others[i]);
    if (!is_it)
        return NULL;
    if (strstr(policy, rope))
        return cmd_copy(policy);
    char *out = cmd_alloc(strlen(policy) + sizeof rope + 1, 1);
    sprintf(out, "%s%c%s", policy, policy[n] ? ',' : ':', rope);
    return out;
}

/* Whether the model can: its keys rotate alike in all layers, and what the policy keeps fits into what it was trained for, also
 * while a prompt is read. */
static bool holds(const struct cmd_options *options, struct butler_engine *engine, const char *policy)
{
    const int n_train = butler_model_get_info(butler_engine_model(engine))->n_ctx_train;
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    struct butler_error err;
    return butler_policy_check(engine, policy, &err) == 0 &&
           butler_policy_estimate(engine, policy, (enum butler_kv_type)options->kv_type, n_train, &cost, &err) == 0 &&
           cost.prompt_memory < cost.full_kv_bytes;
}

char *cmd_stream(const struct cmd_options *options, struct butler_engine *engine, const char *policy, int64_t n_tokens, int *n_ctx)
{
    enum { MOST = 1 << 24 }; /* tokens of a session */
    const int n_train = butler_model_get_info(butler_engine_model(engine))->n_ctx_train;
    if (n_tokens <= n_train || n_tokens > MOST)
        return NULL;
    char *places = with_places(policy);
    if (!places || !holds(options, engine, places)) {
        free(places);
        return NULL;
    }
    *n_ctx = (int)n_tokens;
    cmd_say(options,
            "note: %lld tokens are more than the %d that the model was trained for: %s keeps the first and the latest and "
            "forgets what is between",
            (long long)n_tokens, n_train, places);
    return places;
}

void cmd_say_choices(const struct cmd_options *options, struct butler_engine *engine, const char *what, int64_t n_tokens,
                     int n_answer, int n_ctx)
{
    enum { LONG_MODEL = 32768 }; /* of qwen2.5-coder-0.5b, which ./setup fetches */
    const int n_train = butler_model_get_info(butler_engine_model(engine))->n_ctx_train;
    const int64_t n_all = n_tokens + n_answer;
    cmd_say(options, "%s %lld tokens, but the context holds %d, and the model was trained for %d", what, (long long)n_tokens, n_ctx,
            n_train);
    if (n_all <= n_train) {
        cmd_say(options, "-c %lld holds them, with an answer of %d", (long long)n_all, n_answer);
        return;
    }
    if (n_train < LONG_MODEL && n_all <= LONG_MODEL)
        cmd_say(options, "- another model: `./setup --model qwen2.5-coder-0.5b` fetches one that was trained for %d", LONG_MODEL);
    else
        cmd_say(options, "- another model, which was trained for %lld tokens or more", (long long)n_all);
    cmd_say(options, "- in parts: cut the text, and ask about each part");
    if (strcmp(options->command->name, "plan") == 0) /* which has times for texts that are read once */
        return;
    char policy[64] = "streaming";
    if (!holds(options, engine, "streaming:rope=cache"))
        snprintf(policy, sizeof policy, "streaming:budget=%d", n_train > 200 ? n_train / 2 - 64 : 2);
    char *places = with_places(policy);
    if (holds(options, engine, places))
        cmd_say(options, "- --kv %s: any length, but it keeps only the first and the latest tokens and forgets what is between",
                policy);
    free(places);
}
