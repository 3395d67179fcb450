/* butler convert: a llama2.c checkpoint and its tokenizer become one GGUF file. */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "file/convert.h"

static int run(struct cmd_options *options)
{
    struct butler_error err = {0};
    const char *in = options->positional.values[0], *tokenizer = options->tokenizer;
    char beside[PATH_MAX];
    if (!options->output) {
        cmd_say(options, "no output; name it with -o OUT");
        return CMD_USAGE;
    }
    if (access(in, R_OK) != 0) {
        cmd_say(options, "%s: %s", in, strerror(errno));
        return CMD_FAILED;
    }
    if (!tokenizer) {
        const char *slash = strrchr(in, '/');
        snprintf(beside, sizeof beside, "%.*stokenizer.bin", slash ? (int)(slash - in + 1) : 0, in);
        if (access(beside, R_OK) != 0) {
            cmd_say(options, "no tokenizer; name it with --tokenizer FILE (there is no %s)", beside);
            return CMD_USAGE;
        }
        tokenizer = beside;
    }
    if (cmd_check_output(options, options->output, (const char *const[]){in, tokenizer}, 2) != CMD_DONE)
        return CMD_USAGE;
    if (butler_convert_llama2c(in, tokenizer, options->output, &err) < 0)
        return cmd_fail(options, &err);
    return CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_OUTPUT, NULL}, {CMD_TOKENIZER, NULL}, {CMD_HELP, NULL}, {CMD_NONE, NULL}};

const struct cmd_command cmd_convert = {
    .name = "convert",
    .synopsis = "IN -o OUT [--tokenizer FILE]",
    .summary = "a llama2.c checkpoint to GGUF",
    .details = "IN is a llama2.c checkpoint (.bin, float32). Its tokenizer is tokenizer.bin beside it, or what --tokenizer names.\n"
               "OUT appears only when it is complete.\n",
    .uses = uses,
    .min_positional = 1,
    .max_positional = 1,
    .run = run,
};
