/* See steps.h. Nothing is allocated between the steps of a text. */
#include "engine/steps.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

/* A change of these needs another BUTLER_STEP_ABI. */
_Static_assert(BUTLER_STEP_ABI == 1 &&
                   (sizeof(void *) != 8 || (sizeof(struct butler_step_plugin) == 56 && sizeof(struct butler_step_view) == 56 &&
                                            sizeof(struct butler_step_action) == 24)),
               "what a plug-in is built against has changed, its ABI number has not");

/* ------------------------------------------------------------------------------------------ of an engine */

void butler_step_registry_free(struct butler_step_registry *registry)
{
    for (int i = 0; registry && i < registry->n; i++)
        if (registry->entries[i].handle)
            dlclose(registry->entries[i].handle);
    if (registry)
        free(registry->entries);
    free(registry);
}

static const struct butler_step_plugin *find(const struct butler_engine *engine, const char *name, size_t n)
{
    for (int i = 0; engine->steps && i < engine->steps->n; i++) {
        const struct butler_step_plugin *plugin = engine->steps->entries[i].plugin;
        if (strlen(plugin->name) == n && strncmp(plugin->name, name, n) == 0)
            return plugin;
    }
    return NULL;
}

static int check(const struct butler_engine *engine, const struct butler_step_plugin *plugin, const char *who,
                 struct butler_error *err)
{
    if (plugin->abi != BUTLER_STEP_ABI)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "%s: built for step ABI %zu; this is butler %s, ABI %d: build it with this version's butler.h", who,
                           plugin->abi, BUTLER_VERSION, BUTLER_STEP_ABI);
    if (!butler_is_word(plugin->name))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: its name is not 1 to 31 of a-z, 0-9 and _, a letter first", who);
    if (find(engine, plugin->name, strlen(plugin->name)))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "step plug-in %s: the name is taken", plugin->name);
    if (!plugin->before && !plugin->after)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "step plug-in %s has neither before() nor after()", plugin->name);
    if (plugin->state_bytes > BUTLER_MAX_STEP_STATE)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "step plug-in %s: a state of %zu bytes: there may be %d", plugin->name,
                           plugin->state_bytes, BUTLER_MAX_STEP_STATE);
    return butler_params_check("step plug-in", plugin->name, plugin->params, err);
}

int butler_step_add_entry(struct butler_engine *engine, const struct butler_step_plugin *plugin, const char *who, void *handle,
                          struct butler_error *err)
{
    const int code = check(engine, plugin, who, err);
    if (code < 0)
        return code;
    if (!engine->steps && !(engine->steps = calloc(1, sizeof *engine->steps)))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "step plug-in %s: no memory", plugin->name);
    struct butler_step_registry *registry = engine->steps;
    struct butler_step_entry *entries = realloc(registry->entries, ((size_t)registry->n + 1) * sizeof *entries);
    if (!entries)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "step plug-in %s: no memory", plugin->name);
    registry->entries = entries;
    entries[registry->n++] = (struct butler_step_entry){plugin, handle};
    return 0;
}

int butler_step_register(struct butler_engine *engine, const struct butler_step_plugin *plugin, struct butler_error *err)
{
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(plugin, err))
        return BUTLER_ERROR_ARGUMENT;
    return butler_step_add_entry(engine, plugin, "a step plug-in", NULL, err);
}

int butler_step_list(const struct butler_engine *engine, const struct butler_step_plugin **out, int max_out)
{
    const int n = engine && engine->steps && (out || max_out == 0) ? engine->steps->n : 0;
    for (int i = 0; i < n && i < max_out; i++)
        out[i] = engine->steps->entries[i].plugin;
    return n;
}

/* ------------------------------------------------------------------------------------------ of a session */

void butler_steps_free(struct butler_steps *steps)
{
    for (int i = 0; steps && i < steps->n; i++)
        free(steps->list[i].state);
    if (steps)
        free(steps->raw);
    free(steps);
}

static struct butler_steps *steps_new(int n_vocab, struct butler_error *err)
{
    struct butler_steps *steps = butler_alloc(sizeof *steps, err);
    if (!steps)
        return NULL;
    *steps = (struct butler_steps){.raw = butler_alloc((size_t)n_vocab * sizeof *steps->raw, err)};
    if (!steps->raw) {
        butler_steps_free(steps);
        return NULL;
    }
    return steps;
}

/* Appends a plug-in with these values and a copy of the state, NULL: zeros. */
static int append(struct butler_steps *steps, const struct butler_step *from, struct butler_error *err)
{
    struct butler_step *step = &steps->list[steps->n];
    const size_t n_state = from->plugin->state_bytes;
    *step = *from;
    step->state = n_state ? butler_alloc(n_state, err) : NULL;
    if (n_state && !step->state)
        return BUTLER_ERROR_MEMORY;
    if (n_state && from->state)
        memcpy(step->state, from->state, n_state);
    else if (n_state)
        memset(step->state, 0, n_state);
    steps->n++;
    return 0;
}

int butler_steps_copy(struct butler_steps **to, const struct butler_steps *from, int n_vocab, struct butler_error *err)
{
    struct butler_steps *copy = from ? steps_new(n_vocab, err) : NULL;
    if (from && !copy)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; from && i < from->n; i++)
        if (append(copy, &from->list[i], err) < 0) {
            butler_steps_free(copy);
            return BUTLER_ERROR_MEMORY;
        }
    butler_steps_free(*to);
    *to = copy;
    return 0;
}

/* "key=value,..." into values, which hold the defaults. */
static int parse_values(const struct butler_step_plugin *plugin, const char *text, double *values, struct butler_error *err)
{
    while (*text) {
        const size_t n = strcspn(text, ","), n_key = strcspn(text, "=,");
        char *end;
        int at = 0;
        while (plugin->params && plugin->params[at].name &&
               (strlen(plugin->params[at].name) != n_key || strncmp(plugin->params[at].name, text, n_key) != 0))
            at++;
        if (!plugin->params || !plugin->params[at].name || text[n_key] != '=')
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "step plug-in %s: \"%.*s\" is no key=value of it", plugin->name,
                               (int)(n < 60 ? n : 60), text);
        const struct butler_param *param = &plugin->params[at];
        const double value = strtod(text + n_key + 1, &end);
        if (end != text + n || n == n_key + 1 || !(value >= param->min && value <= param->max))
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "step plug-in %s: %s must be a number from %g to %g", plugin->name,
                               param->name, param->min, param->max);
        values[at] = value;
        text += n + (text[n] == ',');
    }
    return 0;
}

int butler_session_add_step(struct butler_session *session, const char *text, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(text, err))
        return BUTLER_ERROR_ARGUMENT;
    const size_t n_name = strcspn(text, ":");
    struct butler_step step = {.plugin = find(session->engine, text, n_name)};
    if (!step.plugin)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "there is no step plug-in \"%.*s\"", (int)(n_name < 60 ? n_name : 60), text);
    if (session->steps && session->steps->n == BUTLER_MAX_STEPS)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "step plug-in %s: a session can have %d", step.plugin->name,
                           BUTLER_MAX_STEPS);
    for (int i = 0; step.plugin->params && step.plugin->params[i].name; i++)
        step.values[i] = step.plugin->params[i].value;
    const int code = parse_values(step.plugin, text + n_name + (text[n_name] == ':'), step.values, err);
    if (code < 0)
        return code;
    if (!session->steps && !(session->steps = steps_new(session->model->hp.n_vocab, err)))
        return BUTLER_ERROR_MEMORY;
    return append(session->steps, &step, err);
}

/* ------------------------------------------------------------------------------------------ around a step */

static struct butler_step_view view_of(const struct butler_session *session)
{
    return (struct butler_step_view){.model = session->model,
                                     .session = session,
                                     .ids = session->tokens,
                                     .n_ids = session->n_past,
                                     .n_decoded = session->n_decoded,
                                     .n_vocab = session->model->hp.n_vocab,
                                     .entropy = NAN};
}

static int follow(struct butler_session *session, const struct butler_step *step, const struct butler_step_action *action,
                  struct butler_error *err)
{
    struct butler_error why;
    if (!action->policy || butler_session_set_policy(session, action->policy, &why) == 0)
        return 0;
    return butler_fail(err, why.code, "step plug-in %s: %.440s", step->plugin->name, why.message);
}

int butler_steps_before(struct butler_session *session, struct butler_error *err)
{
    const struct butler_step_view view = view_of(session);
    int code = 0;
    for (int i = 0; i < session->steps->n && code == 0; i++) {
        const struct butler_step *step = &session->steps->list[i];
        struct butler_step_action action = {0};
        if (step->plugin->before) {
            step->plugin->before(step->values, step->state, &view, &action);
            code = follow(session, step, &action, err);
        }
    }
    return code;
}

int butler_steps_after(struct butler_session *session, struct butler_error *err)
{
    struct butler_steps *steps = session->steps;
    struct butler_step_view view = view_of(session);
    int code = 0, n_after = 0;
    for (int i = 0; i < steps->n; i++)
        n_after += steps->list[i].plugin->after != NULL;
    if (n_after == 0) /* no copy of the logits, no entropy */
        return 0;
    memcpy(steps->raw, session->logits, (size_t)view.n_vocab * sizeof *steps->raw);
    view.logits = steps->raw;
    view.entropy = butler_entropy(steps->raw, view.n_vocab);
    for (int i = 0; i < steps->n && code == 0; i++) {
        const struct butler_step *step = &steps->list[i];
        struct butler_step_action action = {.logits = session->logits};
        if (step->plugin->after) {
            step->plugin->after(step->values, step->state, &view, &action);
            session->stop = session->stop || action.stop;
            code = follow(session, step, &action, err);
        }
    }
    return code;
}
