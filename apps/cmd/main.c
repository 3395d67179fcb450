/* Finds the subcommand, parses its flags, runs it and checks that all of its output was written. */
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"

#include "base/util.h"

#define ADDRESS(name) &cmd_##name,
static const struct cmd_command *const commands[] = {CMD_COMMANDS(ADDRESS)};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void print_usage(FILE *out)
{
    fprintf(out, "butler runs language models and, while decoding, reads only the part of the KV cache that matters.\n\n"
                 "usage: butler COMMAND [FLAGS]\n\n");
    for (int i = 0; i < N_COMMANDS; i++)
        fprintf(out, "  %-10s %s\n", commands[i]->name, commands[i]->summary);
    fprintf(out, "\n`butler COMMAND --help` lists what a command takes. `butler --version` prints the version.\n"
                 "Results go to standard output, progress and messages to standard error.\n"
                 "Exit status: 0 done, 1 failed, 2 bad usage.\n");
}

static const struct cmd_command *find(const char *name)
{
    for (int i = 0; i < N_COMMANDS; i++)
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    return NULL;
}

static int dispatch(int argc, char **argv)
{
    const double start_s = butler_seconds();
    if (argc < 2) {
        print_usage(stderr);
        return CMD_USAGE;
    }
    const char *name = argv[1];
    bool help = strcmp(name, "help") == 0;
    if (strcmp(name, "--version") == 0) {
        cmd_printf("butler %s\n", BUTLER_VERSION);
        return CMD_DONE;
    }
    if (strcmp(name, "-h") == 0 || strcmp(name, "--help") == 0 || (help && argc == 2)) {
        print_usage(stdout);
        return CMD_DONE;
    }
    if (help)
        name = argv[2];
    const struct cmd_command *command = find(name);
    if (!command) {
        char names[256] = "", mean[80];
        for (int i = 0; i < N_COMMANDS; i++)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s, ", commands[i]->name);
        fprintf(stderr, "butler: unknown %s '%s';%s `butler --help` lists the commands\n", name[0] == '-' ? "flag" : "command",
                name, butler_did_you_mean(mean, sizeof mean, name, names));
        return CMD_USAGE;
    }
    if (help) {
        cmd_help_print(command);
        return CMD_DONE;
    }
    struct cmd_options options;
    int status = cmd_options_parse(&options, command, argc - 2, argv + 2);
    options.start_s = start_s;
    if (status == CMD_DONE && options.help)
        cmd_help_print(command);
    else if (status == CMD_DONE)
        status = command->run(&options);
    cmd_options_free(&options);
    return status;
}

/* Descriptors 0 to 2 that are closed would go to the next files that are opened, and messages into a model that is written. Each is
 * opened for the other direction, so that using it stays an error. */
static void hold_standard_files(void)
{
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0)
            open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

int main(int argc, char **argv)
{
    hold_standard_files();
    /* A write to a closed pipe is an error like any other: see output.c. */
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* so is one beyond the largest size of a file */
    int status = dispatch(argc, argv);
    cmd_out_flush();
    return status;
}
