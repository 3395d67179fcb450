/* A step plug-in that ends the text when the model has been sure of several tokens in a row, or at a token of one's choice.
 *
 *     cc -shared -fPIC step_stop.c $(pkg-config --cflags butler) -o step_stop.so
 *     butler run -m MODEL.gguf -f TEXT --plugin ./step_stop.so --step step_stop:nats=0.05,steps=8
 */
#include <butler_plugin.h>

enum { NATS, STEPS, AT };
static const struct butler_param params[] = {{"nats", 0.1, 0, 100, "a step is sure below this entropy"},
                                             {"steps", 8, 1, 1e9, "sure steps in a row that end the text"},
                                             {"at", -1, -1, 1e9, "also ends behind this token id; -1: none"},
                                             {0}};

static void after(const double *values, void *memory, const struct butler_step_view *view, struct butler_step_action *action)
{
    int *n_sure = memory;
    const bool decoded = view->n_decoded > 0; /* else this is the end of a prompt */
    *n_sure = decoded && view->entropy < values[NATS] ? *n_sure + 1 : 0;
    action->stop = *n_sure >= values[STEPS] || (decoded && view->ids[view->n_ids - 1] == (int)values[AT]);
}

static const struct butler_step_plugin plugin = {
    .abi = BUTLER_STEP_ABI,
    .name = "step_stop",
    .summary = "ends the text after sure steps in a row, or at a token",
    .params = params,
    .state_bytes = sizeof(int),
    .after = after,
};

const struct butler_step_plugin *butler_plugin_step(void);
const struct butler_step_plugin *butler_plugin_step(void)
{
    return &plugin;
}
