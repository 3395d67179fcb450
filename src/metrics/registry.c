/* The tables of built-in metrics and policies, and a policy's check without an engine. */
#include "metrics/registry.h"

#include "engine/engine.h"

#define ADDRESS(name) &butler_metric_##name,
static const struct butler_metric *const metrics[] = {BUTLER_METRICS(ADDRESS) NULL};

const struct butler_registry butler_builtin = {metrics, butler_policy_rows};

int butler_policy_check(const struct butler_engine *engine, const char *policy, struct butler_error *err)
{
    static const struct butler_engine bare = {.registry = &butler_builtin};
    return butler_policy_parse(engine ? engine : &bare, policy, NULL, err);
}
