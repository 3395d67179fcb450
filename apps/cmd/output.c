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
    struct butler_buffer clean = {0};
    struct butler_utf8 stream = {0};
    char piece[32];
    for (size_t i = 0; i < n; i++)
        cmd_append(&clean, piece, butler_utf8_push(&stream, bytes + i, 1, piece, sizeof piece));
    cmd_append(&clean, piece, butler_utf8_push(&stream, NULL, 0, piece, sizeof piece));
    text = json_stringn(clean.bytes, clean.n);
    butler_buffer_free(&clean);
    return text;
}

char *cmd_plain(char *out, size_t n_out, const char *text, size_t n)
{
    size_t used = 0;
    for (size_t i = 0; i < n && used + 8 < n_out; i++) {
        const unsigned char c = (unsigned char)text[i], next = i + 1 < n ? (unsigned char)text[i + 1] : 0;
        if (c == 0xc2 && next >= 0x80 && next < 0xa0) /* U+0080 to U+009F */
            used += (size_t)snprintf(out + used, n_out - used, "\\x%02x", (unsigned char)text[++i]);
        else if (c < 0x20 || c == 0x7f)
            used += (size_t)snprintf(out + used, n_out - used, "\\x%02x", c);
        else
            out[used++] = (char)c;
    }
    out[used] = '\0';
    return out;
}

void cmd_say(const struct cmd_options *options, const char *format, ...)
{
    char message[2048], line[sizeof message * 4];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    fprintf(stderr, "butler %s:", options->command->name);
    for (const char *at = message, *end; at; at = end ? end + 1 : NULL) { /* names in messages come from files */
        end = strchr(at, '\n');
        fprintf(stderr, "%s%s\n", at == message ? " " : "",
                cmd_plain(line, sizeof line, at, end ? (size_t)(end - at) : strlen(at)));
    }
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

double cmd_per_second(uint64_t n, double seconds)
{
    return n && seconds > 0 ? (double)n / seconds : 0;
}

const char *const cmd_end_names[] = {
    [CMD_END_TOKEN] = "end of text", [CMD_END_LENGTH] = "-n reached",       [CMD_END_CONTEXT] = "context full",
    [CMD_END_POLICY] = "policy",     [CMD_END_INTERRUPTED] = "interrupted", [CMD_END_STOP] = "--stop"};

/* What came from the disk. */
static void say_disk(const struct butler_engine *engine, const struct butler_stats *s)
{
    char a[32], b[32], c[32];
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &info);
    if (!info.kv_disk)
        return;
    const bool cpu = !strcmp(info.device, "cpu");
    const char *where = cpu ? "on the disk" : "in host memory", *from = cpu ? "the disk" : "host memory";
    fprintf(stderr, "  KV pages: %s %s, %s %s (%s), of which the prompt read %s\n", cmd_bytes(a, sizeof a, info.kv_resident),
            cpu ? "in memory" : "on the device", cmd_bytes(b, sizeof b, info.kv_on_disk), where, info.kv_disk,
            cmd_bytes(c, sizeof c, s->prompt_disk_bytes));
    if (s->n_decode)
        fprintf(stderr, "  a token wanted %.0f pages, %.1f %% of them from %s (%s), and waited %.3f ms for these\n",
                (double)s->pages_wanted / (double)s->n_decode,
                s->pages_wanted ? 100 * (double)s->pages_fetched / (double)s->pages_wanted : 0.0, from,
                cmd_bytes(a, sizeof a, s->disk_bytes / s->n_decode), 1e3 * s->disk_s / (double)s->n_decode);
    const double of_disk = (double)(s->pages_guessed + s->pages_fetched);
    if (s->pages_prefetched)
        fprintf(
            stderr,
            "  %.0f pages a token were read ahead, %.1f %% of them rightly (precision), %.1f %% of what was to be read (recall)\n",
            (double)s->pages_prefetched / (double)s->n_decode, 100 * (double)s->pages_guessed / (double)s->pages_prefetched,
            of_disk > 0 ? 100 * (double)s->pages_guessed / of_disk : 0.0);
}

void cmd_say_cost(const struct butler_engine *engine, const char *policy, const struct butler_stats *s, enum cmd_end end)
{
    char a[32], b[32], c[32];
    double n = s->n_decode ? (double)s->n_decode : 1;
    fprintf(stderr, "[%s] %llu prompt tokens in %.2f s (%.1f tokens/s), %llu decoded in %.2f s (%.1f tokens/s); ended: %s\n",
            policy, (unsigned long long)s->n_prefill, s->prefill_s, cmd_per_second(s->n_prefill, s->prefill_s),
            (unsigned long long)s->n_decode, s->decode_s, cmd_per_second(s->n_decode, s->decode_s), cmd_end_names[end]);
    if (s->full_kv_bytes)
        fprintf(stderr, "  read %.1f %% of the KV cache: keys and values %s, metric %s, of %s\n", 100 * cmd_kv_read(s),
                cmd_bytes(a, sizeof a, s->kv_bytes), cmd_bytes(b, sizeof b, s->metric_bytes),
                cmd_bytes(c, sizeof c, s->full_kv_bytes));
    if (cmd_kv_read(s) > 1)
        fprintf(stderr, "  that is more than full attention reads: the budget leaves out too few tokens to pay for the metric\n");
    if (s->upkeep_bytes)
        fprintf(stderr, "  while the budget covered the text the metric read %s for later steps\n",
                cmd_bytes(a, sizeof a, s->upkeep_bytes));
    fprintf(stderr, "  KV memory %s (peak %s), metric %s\n", cmd_bytes(a, sizeof a, s->kv_memory),
            cmd_bytes(b, sizeof b, s->kv_memory_peak), cmd_bytes(c, sizeof c, s->metric_memory));
    say_disk(engine, s);
    if (s->n_decode)
        fprintf(stderr, "  a token took %.3f ms: score %.3f, select %.3f, attend %.3f, the rest %.3f\n", 1e3 * s->decode_s / n,
                1e3 * s->score_s / n, 1e3 * s->select_s / n, 1e3 * s->attend_s / n,
                1e3 * (s->decode_s - s->score_s - s->select_s - s->attend_s - s->predict_s) / n);
    if (s->n_checks)
        fprintf(stderr,
                "  %llu exact checks took %.2f s and confirmed %llu of %llu drafts, which took %.2f s: %.2f tokens a check\n",
                (unsigned long long)s->n_checks, s->check_s, (unsigned long long)s->n_accepted, (unsigned long long)s->n_drafted,
                s->draft_s, 1 + (double)s->n_accepted / (double)s->n_checks);
    if (s->predict_bytes)
        fprintf(stderr, "  the predictor took %.3f ms a token and read %s of its weights\n", 1e3 * s->predict_s / n,
                cmd_bytes(a, sizeof a, (uint64_t)((double)s->predict_bytes / n)));
}

double cmd_kv_read(const struct butler_stats *stats)
{
    return stats->full_kv_bytes ? (double)(stats->kv_bytes + stats->metric_bytes) / (double)stats->full_kv_bytes : 0;
}
