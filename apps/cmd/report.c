/* butler report: writes the rows of `butler eval` as one self-contained page. */
#include <stdlib.h>

#include "report/report.h"
#include "cmd.h"
#include "base/util.h"

/* The page is built in memory, so that the file appears only when it is complete. */
static int write_page(const struct report *report, const char *path, struct butler_error *err)
{
    struct butler_writer writer = {0};
    char *text = NULL;
    size_t n_text = 0;
    FILE *memory = open_memstream(&text, &n_text);
    if (!memory)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the page", path);
    report_page_write(memory, report);
    bool failed = ferror(memory) != 0;
    if (fclose(memory) != 0 || failed) {
        free(text);
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the page", path);
    }
    int code = butler_writer_open(&writer, path, 0, err);
    if (code == 0)
        code = butler_write(&writer, text, n_text, err);
    if (code == 0)
        code = butler_writer_commit(&writer, err);
    butler_writer_abort(&writer);
    free(text);
    return code;
}

static int run(struct cmd_options *options)
{
    struct report_rows rows = {0};
    struct report report = {0};
    struct butler_error err;
    int code = 0;
    if (!options->output) {
        cmd_say(options, "no output; name it with -o REPORT.html");
        return CMD_USAGE;
    }
    if (cmd_check_output(options, options->output, options->positional.values, options->positional.n) != CMD_DONE)
        return CMD_USAGE;
    for (int i = 0; i < options->positional.n && code == 0; i++)
        code = report_rows_read(&rows, options->positional.values[i], &err);
    if (code == 0) {
        report_build(&report, &rows);
        code = write_page(&report, options->output, &err);
    }
    report_free(&report);
    report_rows_free(&rows);
    return code < 0 ? cmd_fail(options, &err) : CMD_DONE;
}

static const struct cmd_use uses[] = {{CMD_OUTPUT, NULL}, {CMD_HELP, NULL}, {CMD_NONE, NULL}};

const struct cmd_command cmd_report = {
    .name = "report",
    .synopsis = "RESULTS.jsonl [MORE.jsonl]... -o REPORT.html",
    .summary = "results of eval as a page with charts and tables",
    .details =
        "RESULTS are files of rows that `butler eval -o` or `--json` wrote. REPORT is one HTML file that needs no network and no "
        "other\n"
        "file. Where two rows measured the same, the one with more items counts, else the later. REPORT appears only when it is\n"
        "complete.\n",
    .uses = uses,
    .min_positional = 1,
    .max_positional = CMD_MAX_LIST,
    .run = run,
};
