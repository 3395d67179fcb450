/* A step plug-in that prunes tokens by how sure the model is: a sure step is followed by one with a small budget, an unsure one by
 * one with a large budget. TinyServe (arXiv 2509.12211) has such a plug-in for token pruning.
 *
 *     cc -shared -fPIC step_budget.c $(pkg-config --cflags butler) -o step_budget.so
 *     butler run -m MODEL.gguf -f TEXT --kv fier:budget=256 --plugin ./step_budget.so --step step_budget:small=64,large=512
 */
#include <stdio.h>
#include <string.h>

#include <butler_plugin.h>

enum { SMALL, LARGE, NATS };
static const struct butler_param params[] = {{"small", 64, 1, 1e9, "budget after a sure step, tokens"},
                                             {"large", 512, 1, 1e9, "budget after an unsure step, tokens"},
                                             {"nats", 1, 0, 100, "entropy from which a step is unsure"},
                                             {0}};

/* The policy must be there until it is parsed: the text is part of the session's state. */
struct state {
    char policy[768];
};

static void after(const double *values, void *memory, const struct butler_step_view *view, struct butler_step_action *action)
{
    struct state *state = memory;
    const char *now = butler_policy_of(view->session), *budget = strstr(now, "budget=");
    if (!budget) /* full attention, or mass=: there is no budget to change */
        return;
    snprintf(state->policy, sizeof state->policy, "%.*sbudget=%.0f%s", (int)(budget - now), now,
             values[view->entropy < values[NATS] ? SMALL : LARGE], budget + strcspn(budget, ","));
    action->policy = state->policy;
}

static const struct butler_step_plugin plugin = {
    .abi = BUTLER_STEP_ABI,
    .name = "step_budget",
    .summary = "a small budget after sure steps, a large one after unsure ones",
    .params = params,
    .state_bytes = sizeof(struct state),
    .after = after,
};

const struct butler_step_plugin *butler_plugin_step(void);
const struct butler_step_plugin *butler_plugin_step(void)
{
    return &plugin;
}
