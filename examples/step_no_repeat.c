/* A step plug-in that lets no n tokens follow each other twice in the text: what would complete such a repetition is never drawn.
 *
 *     cc -shared -fPIC step_no_repeat.c $(pkg-config --cflags butler) -lm -o step_no_repeat.so
 *     butler run -m MODEL.gguf -f TEXT --plugin ./step_no_repeat.so --step step_no_repeat:n=4
 */
#include <math.h>
#include <string.h>

#include <butler_plugin.h>

static const struct butler_param params[] = {{"n", 3, 2, 64, "tokens of a sequence that may not occur twice"}, {0}};

static void after(const double *values, void *memory, const struct butler_step_view *view, struct butler_step_action *action)
{
    const int n_before = (int)values[0] - 1; /* tokens before the one that would complete it */
    const int32_t *last = view->ids + view->n_ids - n_before;
    (void)memory;
    for (int i = 0; i + n_before < view->n_ids; i++)
        if (memcmp(view->ids + i, last, (size_t)n_before * sizeof *last) == 0 && view->ids[i + n_before] >= 0)
            action->logits[view->ids[i + n_before]] = -INFINITY;
}

static const struct butler_step_plugin plugin = {
    .abi = BUTLER_STEP_ABI,
    .name = "step_no_repeat",
    .summary = "no n tokens twice",
    .params = params,
    .after = after,
};

const struct butler_step_plugin *butler_plugin_step(void);
const struct butler_step_plugin *butler_plugin_step(void)
{
    return &plugin;
}
