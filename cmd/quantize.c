/* butler quantize: the same model with its matrices in a smaller type. */
#include <string.h>
#include <strings.h>

#include "cmd.h"
#include "file/quantize.h"

static const struct {
    const char *name;
    enum butler_type type;
} types[] = {{"F16", BUTLER_F16}, {"Q8_0", BUTLER_Q8_0}, {"Q4_0", BUTLER_Q4_0}};
enum { N_TYPES = sizeof types / sizeof *types };

static void say_step(void *user, const struct butler_quantize_step *step)
{
    (void)user;
    fprintf(stderr, "%3lld/%lld %-32s %6s -> %s%s%s\n", (long long)step->i + 1, (long long)step->n, step->tensor->name,
            butler_types[step->tensor->type].name, butler_types[step->type].name, step->note ? ": " : "",
            step->note ? step->note : "");
}

static int run(struct cmd_options *options)
{
    struct butler_error err = {0};
    const char *in = options->positional.values[0], *out = options->positional.values[1], *type = options->positional.values[2];
    int t = 0;
    while (t < N_TYPES && strcasecmp(types[t].name, type) != 0)
        t++;
    if (t == N_TYPES) {
        cmd_say(options, "TYPE: '%s' is not allowed; it takes F16, Q8_0 or Q4_0", type);
        return CMD_USAGE;
    }
    if (butler_quantize_file(in, out, types[t].type, say_step, NULL, &err) < 0)
        return cmd_fail(options, &err);
    return CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_HELP, NULL}, {CMD_NONE, NULL}};

const struct cmd_command cmd_quantize = {
    .name = "quantize",
    .synopsis = "IN OUT TYPE",
    .summary = "the same model with its matrices as F16, Q8_0 or Q4_0",
    .details = "Writes the GGUF file IN again as OUT, its matrices as TYPE: F16, Q8_0 or Q4_0. Vectors become F32; a matrix whose\n"
               "rows are no multiple of the type's block stays as it is, and is named. OUT appears only when it is complete.\n",
    .uses = uses,
    .min_positional = 3,
    .max_positional = 3,
    .run = run,
};
