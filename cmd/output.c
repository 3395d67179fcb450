/* The command's output: rows and text on standard output, messages on standard error. Every write is checked: a full disk is an
 * error, a closed pipe is no crash. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"

/* Called when writing to standard output failed. */
static _Noreturn void give_up(int error)
{
    if (error != EPIPE)
        fprintf(stderr, "butler: standard output: %s\n", strerror(error));
    _Exit(CMD_FAILED);
}

void cmd_out(const char *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, stdout) != n)
        give_up(errno);
}

void cmd_printf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vprintf(format, args);
    va_end(args);
    if (n < 0)
        give_up(errno);
}

void cmd_out_flush(void)
{
    if (fflush(stdout) != 0)
        give_up(errno);
}

static int write_piece(const char *buffer, size_t n, void *user)
{
    (void)user;
    cmd_out(buffer, n);
    return 0;
}

void cmd_row(json_t *row)
{
    if (!row || json_dump_callback(row, write_piece, NULL, JSON_COMPACT | JSON_REAL_PRECISION(9)) != 0) {
        fprintf(stderr, "butler: out of memory\n");
        _Exit(CMD_FAILED);
    }
    json_decref(row);
    cmd_out("\n", 1);
    cmd_out_flush();
}

json_t *cmd_json_text(const char *bytes, size_t n)
{
    json_t *text = json_stringn(bytes, n);
    if (text)
        return text;
    struct cmd_text clean = {0};
    struct butler_utf8 stream = {0};
    char piece[32];
    for (size_t i = 0; i < n; i++)
        cmd_text_append(&clean, piece, butler_utf8_push(&stream, bytes + i, 1, piece, sizeof piece));
    cmd_text_append(&clean, piece, butler_utf8_push(&stream, NULL, 0, piece, sizeof piece));
    text = json_stringn(clean.bytes, clean.n);
    cmd_text_free(&clean);
    return text;
}

void cmd_say(const struct cmd_options *options, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    fprintf(stderr, "butler %s: ", options->command->name);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

int cmd_fail(const struct cmd_options *options, const struct butler_error *err)
{
    cmd_say(options, "%s", err->message);
    return err->code == BUTLER_ERROR_ARGUMENT ? CMD_USAGE : CMD_FAILED;
}

const char *cmd_bytes(char *out, size_t n_out, uint64_t bytes)
{
    static const char *const units[] = {"B", "kB", "MB", "GB", "TB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.5 && unit < 4) {
        value /= 1000;
        unit++;
    }
    snprintf(out, n_out, unit == 0 || value >= 99.95 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return out;
}

double cmd_kv_read(const struct butler_stats *stats)
{
    return stats->full_kv_bytes ? (double)(stats->kv_bytes + stats->metric_bytes) / (double)stats->full_kv_bytes : 0;
}
