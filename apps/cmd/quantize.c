/* butler quantize: the same model with its matrices in a smaller type. */
#include <string.h>
#include <strings.h>

#include "cmd.h"
#include "file/quantize.h"

enum { MAX_REASONS = 8 };

/* What became of the matrices. */
struct summary {
    enum butler_type type; /* what was asked for */
    int64_t n_matrices, n_changed, n_had_it;
    struct reason {
        const char *note; /* the library's, a literal */
        enum butler_type type;
        bool kept; /* else another type was taken */
        int64_t n;
    } reasons[MAX_REASONS]; /* of those that do not have the type now */
    int n_reasons;
};

static void count_other(struct summary *summary, const struct butler_quantize_step *step)
{
    const bool kept = step->type == step->tensor->type;
    for (int i = 0; i < MAX_REASONS; i++) {
        struct reason *reason = &summary->reasons[i];
        if (reason->n == 0)
            *reason = (struct reason){step->note ? step->note : "", step->type, kept, 0};
        if (reason->type != step->type || reason->kept != kept || strcmp(reason->note, step->note ? step->note : "") != 0)
            continue;
        summary->n_reasons = i + 1 > summary->n_reasons ? i + 1 : summary->n_reasons;
        reason->n++;
        return;
    }
}

static void say_step(void *user, const struct butler_quantize_step *step)
{
    struct summary *summary = user;
    fprintf(stderr, "%3lld/%lld %-32s %6s -> %s%s%s\n", (long long)step->i + 1, (long long)step->n, step->tensor->name,
            butler_types[step->tensor->type].name, butler_types[step->type].name, step->note ? ": " : "",
            step->note ? step->note : "");
    if (step->tensor->n_dims == 1)
        return;
    summary->n_matrices++;
    if (step->type != summary->type)
        count_other(summary, step);
    else if (step->type == step->tensor->type)
        summary->n_had_it++;
    else
        summary->n_changed++;
}

static void say_summary(const struct cmd_options *options, const struct summary *summary)
{
    const char *name = butler_types[summary->type].name;
    cmd_say(options, "%lld of %lld matrices became %s", (long long)summary->n_changed, (long long)summary->n_matrices, name);
    if (summary->n_had_it)
        cmd_say(options, "%lld were %s before", (long long)summary->n_had_it, name);
    for (int i = 0; i < summary->n_reasons; i++) {
        const struct reason *reason = &summary->reasons[i];
        cmd_say(options, "%lld %s %s%s%s", (long long)reason->n, reason->kept ? "were not changed and are still" : "became",
                butler_types[reason->type].name, *reason->note ? ": " : "", reason->note);
    }
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
    if (cmd_check_output(options, out, &in, 1) != CMD_DONE)
        return CMD_USAGE;
    struct summary summary = {.type = (enum butler_type)t};
    if (butler_quantize_file(in, out, (enum butler_type)t, say_step, &summary, &err) < 0)
        return cmd_fail(options, &err);
    say_summary(options, &summary);
    return CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_HELP, NULL}, {CMD_NONE, NULL}};

const struct cmd_command cmd_quantize = {
    .name = "quantize",
    .synopsis = "IN OUT TYPE",
    .summary = "the same model with its matrices as " BUTLER_QUANTIZE_TYPES,
    .details = "Writes the GGUF file IN again as OUT, its matrices as TYPE: " BUTLER_QUANTIZE_TYPES ".\n"
               "Vectors become F32. A matrix whose rows are no multiple of the type's block (Q6_K and Q4_K: 256 columns, Q8_0 and\n"
               "Q4_0: 32) stays as it is, or becomes Q8_0 where it was not quantised before; it is named, and what did not\n"
               "get the type is summed up at the end. OUT appears only when it is complete, and must be another file than IN.\n",
    .uses = uses,
    .min_positional = 3,
    .max_positional = 3,
    .run = run,
};
