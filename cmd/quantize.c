/* butler quantize: the same model with its matrices in a smaller type. */
#include <string.h>
#include <strings.h>

#include "cmd.h"
#include "file/quantize.h"

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
    uint32_t t = 0;
    while (t < BUTLER_N_TYPES && (!butler_type_known(t) || strcasecmp(butler_types[t].name, type) != 0))
        t++;
    if (butler_quantize_file_type((enum butler_type)t) < 0) {
        cmd_say(options, "TYPE: '%s' is not allowed; it takes " BUTLER_QUANTIZE_TYPES, type);
        return CMD_USAGE;
    }
    if (butler_quantize_file(in, out, (enum butler_type)t, say_step, NULL, &err) < 0)
        return cmd_fail(options, &err);
    return CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_HELP, NULL}, {CMD_NONE, NULL}};

const struct cmd_command cmd_quantize = {
    .name = "quantize",
    .synopsis = "IN OUT TYPE",
    .summary = "the same model with its matrices as " BUTLER_QUANTIZE_TYPES,
    .details = "Writes the GGUF file IN again as OUT, its matrices as TYPE: " BUTLER_QUANTIZE_TYPES ".\n"
               "Vectors become F32. A matrix whose rows are no multiple of the type's block (Q6_K and Q4_K: 256 columns, Q8_0 and\n"
               "Q4_0: 32) stays as it is, or becomes Q8_0 where it was not quantised before; it is named. OUT appears only when\n"
               "it is complete.\n",
    .uses = uses,
    .min_positional = 3,
    .max_positional = 3,
    .run = run,
};
