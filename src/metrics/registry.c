/* The tables of built-in metrics and policies, and a policy's check without an engine. */
#include "metrics/registry.h"

#include "engine/engine.h"

#define ADDRESS(name) &butler_metric_##name,
static const struct butler_metric *const metrics[] = {BUTLER_METRICS(ADDRESS) NULL};

const struct butler_registry butler_builtin = {metrics, butler_policy_rows};

/* What the engine's device says of a policy that it takes: a note, with code 0, or nothing. */
static void note_of_device(const struct butler_engine *engine, struct butler_policy *policy, struct butler_error *err)
{
    const struct butler_hparams *hp = &engine->model->hp;
    const int group = hp->n_heads / hp->n_kv_heads;
    const struct butler_metric_shape shape = {hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, group, 0, 0, 0};
    struct butler_error note = {0};
    if (err && butler_policy_compile(policy, &shape, NULL) == 0 &&
        butler_backend_check_plan(engine->backend, &policy->plan, BUTLER_KV_F16, group, &note) == 0 && note.message[0])
        *err = note;
}

int butler_policy_check(const struct butler_engine *engine, const char *policy, struct butler_error *err)
{
    static const struct butler_engine bare = {.registry = &butler_builtin};
    struct butler_policy own;
    const int code = butler_policy_parse(engine ? engine : &bare, policy, &own, err);
    if (code == 0 && engine && engine->backend)
        note_of_device(engine, &own, err);
    return code;
}
