/* Reading a prompt: what of it was read before, how fast the rest goes and how long it will take. */
#include <math.h>
#include <unistd.h>

#include "cmd.h"
#include "base/util.h"

enum {
    WORTH_SAYING = 256, /* tokens */
    LONG_S = 10,        /* reading that takes longer is announced */
    EVERY_S = 10,       /* from one line of a log to the next */
};

struct reading {
    const struct cmd_options *options;
    bool terminal, announced;
    int first, done;            /* tokens before this prompt's new ones; of these, read */
    double start, latest, said; /* when it began, when the latest pass ended, when a line was last written */
    struct cmd_speed speed;
};

const char *cmd_duration(char *out, size_t n_out, double seconds)
{
    const long s = lround(seconds);
    if (s < 10)
        snprintf(out, n_out, "%.1f s", seconds);
    else if (s < 120)
        snprintf(out, n_out, "%ld s", s);
    else if (s < 7200)
        snprintf(out, n_out, "%ld min %ld s", s / 60, s % 60);
    else
        snprintf(out, n_out, "%ld h %ld min", s / 3600, s % 3600 / 60);
    return out;
}

/* Once, before the first pass where an earlier reading tells how long this one takes, else after two passes. */
static void announce(struct reading *reading, int n, double seconds)
{
    char about[32];
    if (reading->announced || seconds <= 0)
        return;
    reading->announced = true;
    if (seconds > LONG_S)
        cmd_say(reading->options, "%s%d tokens to read take about %s", reading->terminal ? "\r" : "", n,
                cmd_duration(about, sizeof about, seconds));
}

static void show(struct reading *reading, int done, int n, double now)
{
    char left[32];
    const double rate = done / fmax(now - reading->start, 1e-6);
    cmd_duration(left, sizeof left, cmd_speed_predict(&reading->speed, reading->first + done, reading->first + n));
    if (reading->speed.n >= 2)
        announce(reading, n, now - reading->start + cmd_speed_predict(&reading->speed, reading->first + done, reading->first + n));
    if (reading->terminal) {
        fprintf(stderr, "\rprompt: %d of %d tokens, %.1f a second, %s left\033[K", done, n, rate, left);
        fflush(stderr);
    } else if (now - reading->said >= EVERY_S) {
        cmd_say(reading->options, "%d of %d tokens read, %.1f a second, %s left", done, n, rate, left);
        reading->said = now;
    }
}

static bool on_progress(void *user, int done, int n)
{
    struct reading *reading = user;
    const double now = butler_seconds();
    const int m = done - reading->done;
    if (m > 0)
        cmd_speed_add(&reading->speed, reading->first + reading->done + m / 2.0, (now - reading->latest) / m);
    reading->done = done;
    reading->latest = now;
    if (done < n)
        show(reading, done, n, now);
    else if (reading->terminal)
        fputs("\r\033[K", stderr); /* clears the line at the end */
    return !cmd_interrupted();
}

/* What is known of a text that begins: *n_known. */
static int adopt(const struct cmd_options *options, struct butler_session *session, const struct cmd_integers *ids, int *n_known)
{
    struct butler_error err = {0};
    char time[32];
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    *n_known = butler_n_past(session) == 0 ? butler_session_adopt_prefix(session, ids->values, ids->n, &err) : 0;
    if (*n_known < 0)
        return cmd_fail(options, &err);
    butler_session_stats(session, &stats);
    if (*n_known >= WORTH_SAYING)
        cmd_say(options, "%d of %d tokens were read before: loaded in %s", *n_known, ids->n,
                cmd_duration(time, sizeof time, stats.library_s));
    return CMD_DONE;
}

int cmd_prefill(const struct cmd_options *options, struct butler_engine *engine, struct butler_session *session,
                const struct cmd_integers *ids)
{
    struct butler_error err = {0};
    int n_known;
    const int status = adopt(options, session, ids, &n_known);
    if (status != CMD_DONE)
        return status;
    struct reading reading = {.options = options, .terminal = isatty(STDERR_FILENO), .first = butler_n_past(session)};
    const bool is_long = ids->n - n_known >= WORTH_SAYING;
    if (is_long) {
        cmd_speed_load(options, engine, &reading.speed);
        announce(&reading, ids->n - n_known, cmd_speed_predict(&reading.speed, reading.first, reading.first + ids->n - n_known));
    }
    reading.start = reading.latest = reading.said = butler_seconds();
    butler_session_on_progress(session, on_progress, &reading);
    const int code = butler_prefill(session, ids->values + n_known, ids->n - n_known, NULL, NULL, &err);
    butler_session_on_progress(session, NULL, NULL);
    if (is_long)
        cmd_speed_keep(options, engine, &reading.speed);
    if (code != BUTLER_ERROR_CANCELLED)
        return code < 0 ? cmd_fail(options, &err) : CMD_DONE;
    if (reading.terminal)
        fputs("\r\033[K", stderr);
    return CMD_INTERRUPTED;
}
