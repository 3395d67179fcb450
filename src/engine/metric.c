/* Between the KV store and the metrics: what butler.h promises a metric about one head of the cache, and the list of
 * metrics a model knows. */
#include "engine/metric.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/policy.h"

/* ------------------------------------------------------------------------------------------------ metrics */

const struct butler_metric *butler_metric_find(const struct butler_registry *registry, const struct butler_metric_list *plugins,
                                               const char *name)
{
    for (int i = 0; registry->metrics[i]; i++)
        if (!strcmp(registry->metrics[i]->name, name))
            return registry->metrics[i];
    for (int i = 0; plugins && i < plugins->n; i++)
        if (!strcmp(plugins->entries[i].metric->name, name))
            return plugins->entries[i].metric;
    return NULL;
}

void butler_metric_list_free(struct butler_metric_list *list)
{
    if (!list)
        return;
    for (int i = 0; i < list->n; i++) {
        free(list->entries[i].defaults);
        if (list->entries[i].handle)
            dlclose(list->entries[i].handle);
    }
    free(list->entries);
    free(list);
}

bool butler_is_word(const char *text)
{
    const size_t n = text ? strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
    return n > 0 && n < 32 && !text[n] && text[0] >= 'a';
}

int butler_params_check(const char *kind, const char *name, const struct butler_param *params, struct butler_error *err)
{
    for (int i = 0; params && params[i].name; i++) {
        const struct butler_param *param = &params[i];
        if (i == BUTLER_METRIC_MAX_PARAMS)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s %s: more than %d params", kind, name, i);
        if (!butler_is_word(param->name))
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s %s: param \"%.40s\": a name is 1 to 31 of a-z, 0-9 and _", kind,
                               name, param->name);
        for (int j = 0; j < i; j++)
            if (!strcmp(param->name, params[j].name))
                return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s %s: two params named %s", kind, name, param->name);
        if (!(param->min <= param->value && param->value <= param->max))
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s %s: param %s: default %g is not in [%g, %g]", kind, name,
                               param->name, param->value, param->min, param->max);
    }
    return 0;
}

/* A change of these needs another BUTLER_METRIC_ABI. */
_Static_assert(BUTLER_METRIC_ABI == 2 &&
                   (sizeof(void *) != 8 ||
                    (sizeof(struct butler_metric) == 192 && offsetof(struct butler_metric, name) == sizeof(size_t) &&
                     offsetof(struct butler_metric, forms) == 128 && sizeof(struct butler_param) == 40 &&
                     sizeof(struct butler_param_form) == 32 && sizeof(struct butler_metric_scan) == 32 &&
                     sizeof(struct butler_metric_shape) == 40)),
               "what a plug-in is built against has changed, its ABI number has not");

/* Reads nothing but the first field, which every struct of every version has. Before it was a number it was a pointer to the
 * name: no pointer to a string is so small. */
static int check_abi(const struct butler_metric *metric, const char *who, struct butler_error *err)
{
    enum { MAX_ABI = 1 << 10 };
    if (metric->abi == BUTLER_METRIC_ABI)
        return 0;
    if (metric->abi == 0 || metric->abi > MAX_ABI)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "%s: its struct butler_metric begins with no ABI number (.abi = BUTLER_METRIC_ABI): it was built for "
                           "butler 0.1; this is butler %s, ABI %d: build it with this version's butler.h",
                           who, BUTLER_VERSION, BUTLER_METRIC_ABI);
    return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                       "%s: built for metric ABI %zu; this is butler %s, ABI %d: build it with this version's butler.h", who,
                       metric->abi, BUTLER_VERSION, BUTLER_METRIC_ABI);
}

static int check_metric(const struct butler_engine *engine, const struct butler_metric *metric, struct butler_error *err)
{
    if (!butler_is_word(metric->name))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a metric's name is 1 to 31 of a-z, 0-9 and _, a letter first");
    if (butler_metric_find(engine->registry, engine->plugins, metric->name) ||
        butler_policy_is_name(engine->registry, metric->name))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: the name is taken", metric->name);
    if (!metric->score)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s has no score()", metric->name);
    if (metric->scale != BUTLER_SCORE_LOGIT && metric->scale != BUTLER_SCORE_WEIGHT)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: scale %d is neither LOGIT nor WEIGHT", metric->name,
                           (int)metric->scale);
    if (!metric->observe != !metric->attention_window)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: observe() and attention_window() come together", metric->name);
    if (metric->predictor)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: only built-in metrics have a predictor", metric->name);
    if (metric->centres)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: only built-in metrics have query centres", metric->name);
    if (metric->observe_block && !metric->observe)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: observe_block() without observe()", metric->name);
    if (metric->leave && !metric->head_bytes)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: leave() without a state", metric->name);
    if ((unsigned)metric->weighing > BUTLER_WEIGH_NOTHING)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: weighing %d is none of the three", metric->name,
                           (int)metric->weighing);
    if (metric->scan &&
        (metric->scan->page_slots < 1 || !metric->scan->bounds || !metric->scan->score_pages || !metric->scan->bytes))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: its scan lacks a function, or the tokens of a page",
                           metric->name);
    if (!metric->record && (metric->page_scores || (metric->append && !metric->head_bytes) || metric->observe))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s has no record() but page scores, append() or observe()",
                           metric->name);
    for (int i = 0; metric->params && metric->params[i].name; i++)
        if (butler_policy_is_key(metric->params[i].name))
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: param %s is a key every policy has", metric->name,
                               metric->params[i].name);
    return butler_params_check("metric", metric->name, metric->params, err);
}

int butler_metric_record(const struct butler_metric *metric, const struct butler_metric_shape *shape, const double *values,
                         int *n_slots, size_t *n_bytes, struct butler_error *err)
{
    enum { MAX_SLOTS = 1 << 24, MAX_BYTES = 1 << 30 }; /* the longest context; products of both fit in 64 bits */
    *n_slots = 0;
    *n_bytes = 0;
    if (metric->record)
        metric->record(shape, values, n_slots, n_bytes);
    if (*n_slots < 0 || *n_slots > MAX_SLOTS || *n_bytes > MAX_BYTES)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "metric %s: records of %zu bytes for %d slots: at most %d bytes and %d slots", metric->name, *n_bytes,
                           *n_slots, MAX_BYTES, MAX_SLOTS);
    return 0;
}

int butler_metric_state(const struct butler_metric *metric, const struct butler_metric_shape *shape, const double *values,
                        size_t *n_bytes, struct butler_error *err)
{
    enum { MAX_BYTES = 1 << 24 };
    *n_bytes = metric->head_bytes ? metric->head_bytes(shape, values) : 0;
    if (*n_bytes > MAX_BYTES)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "metric %s: a state of %zu bytes for a KV head: at most %d", metric->name,
                           *n_bytes, MAX_BYTES);
    return 0;
}

/* Its records and state under the policy of its own name. */
static int check_record(const struct butler_engine *engine, const struct butler_policy *policy, struct butler_error *err)
{
    const struct butler_hparams *hp = &engine->model->hp;
    const struct butler_metric_shape shape = {
        hp->n_layers, hp->n_heads, hp->n_kv_heads, hp->head_dim, hp->n_heads / hp->n_kv_heads, 0, 0, 0};
    int n_slots;
    size_t n_bytes;
    const int rc = butler_metric_record(policy->metric, &shape, policy->values, &n_slots, &n_bytes, err);
    return rc < 0 ? rc : butler_metric_state(policy->metric, &shape, policy->values, &n_bytes, err);
}

/* who names it in errors before it has a name that can be read. */
static int register_metric(struct butler_engine *engine, const struct butler_metric *metric, const char *who, void *handle,
                           struct butler_error *err)
{
    int rc = check_abi(metric, who, err);
    if (rc || (rc = check_metric(engine, metric, err)))
        return rc;
    if (!engine->plugins && !(engine->plugins = calloc(1, sizeof *engine->plugins)))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "metric %s: no memory", metric->name);
    struct butler_metric_list *list = engine->plugins;
    struct butler_metric_entry *entries = realloc(list->entries, ((size_t)list->n + 1) * sizeof *entries);
    if (!entries)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "metric %s: no memory", metric->name);
    list->entries = entries;
    entries[list->n] = (struct butler_metric_entry){.metric = metric};
    list->n++;
    struct butler_policy policy;
    rc = butler_policy_parse(engine, metric->name, &policy, err);
    if (!rc)
        rc = check_record(engine, &policy, err);
    if (!rc && !(entries[list->n - 1].defaults = strdup(policy.text)))
        rc = butler_fail(err, BUTLER_ERROR_MEMORY, "metric %s: no memory", metric->name);
    if (rc)
        list->n--;
    else
        entries[list->n - 1].handle = handle;
    return rc;
}

int butler_metric_register(struct butler_engine *engine, const struct butler_metric *metric, struct butler_error *err)
{
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(metric, err))
        return BUTLER_ERROR_ARGUMENT;
    return register_metric(engine, metric, "a metric", NULL, err);
}

int butler_plugin_load(struct butler_engine *engine, const char *path, struct butler_error *err)
{
    int rc;
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(path, err))
        return BUTLER_ERROR_ARGUMENT;
    /* Without a slash the loader would look in the system's library folders, not here. */
    char *file = malloc(strlen(path) + 3);
    if (!file)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%.200s: no memory", path);
    strcpy(file, strchr(path, '/') ? "" : "./");
    strcat(file, path);
    void *handle = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    free(file);
    if (!handle) {
        const char *why = dlerror();
        return butler_fail(err, BUTLER_ERROR_IO, "%.200s: cannot load the plug-in: %.250s", path, why ? why : "unknown error");
    }
    const struct butler_metric *(*plugin_metric)(void);
    const struct butler_step_plugin *(*plugin_step)(void);
    void *of_metric = dlsym(handle, "butler_plugin_metric"), *of_step = dlsym(handle, "butler_plugin_step");
    memcpy(&plugin_metric, &of_metric, sizeof plugin_metric);
    memcpy(&plugin_step, &of_step, sizeof plugin_step);
    const struct butler_metric *metric = of_metric ? plugin_metric() : NULL;
    const struct butler_step_plugin *step = of_step ? plugin_step() : NULL;
    char who[240];
    snprintf(who, sizeof who, "%.200s: the plug-in", path);
    if (!of_metric && !of_step)
        rc = butler_fail(err, BUTLER_ERROR_FORMAT, "%s has neither butler_plugin_metric() nor butler_plugin_step()", who);
    else if (!metric != !of_metric || !step != !of_step)
        rc = butler_fail(err, BUTLER_ERROR_FORMAT, "%s's butler_plugin_%s() returned nothing", who,
                         !metric != !of_metric ? "metric" : "step");
    else
        rc = metric ? register_metric(engine, metric, who, handle, err) : 0;
    if (!rc && step && (rc = butler_step_add_entry(engine, step, who, metric ? NULL : handle, err)) && metric) {
        engine->plugins->n--; /* both or none */
        free(engine->plugins->entries[engine->plugins->n].defaults);
    }
    if (rc)
        dlclose(handle);
    return rc;
}
