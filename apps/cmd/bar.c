/* The progress of a long job on standard error: a bar on a terminal, a line every ten seconds in a log. */
#include <stdio.h>
#include <unistd.h>

#include "cmd.h"
#include "base/util.h"

void cmd_bar_begin(struct cmd_bar *bar, const struct cmd_options *options, const char *what)
{
    *bar = (struct cmd_bar){
        .options = options, .what = what, .terminal = isatty(STDERR_FILENO), .start = butler_seconds(), .resumed = -1};
}

void cmd_bar_wipe(const struct cmd_bar *bar)
{
    if (bar->terminal) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
}

void cmd_bar_show(struct cmd_bar *bar, double done)
{
    enum { WIDTH = 30 };
    const double t = butler_seconds();
    if (bar->resumed < 0) {
        bar->resumed = done;
        bar->shown = t;
    }
    const double own = done - bar->resumed, remaining = own > 0 ? (t - bar->start) * (1 - done) / own : 0;
    if (t - bar->shown < (bar->terminal ? 0.2 : 10) && !(bar->terminal && done >= 1))
        return;
    bar->shown = t;
    const char *gap = *bar->what ? ": " : "";
    if (!bar->terminal) {
        cmd_say(bar->options, "%s%s%.0f %% done, %d:%02d remaining", bar->what, gap, 100 * done, (int)remaining / 60,
                (int)remaining % 60);
        return;
    }
    char cells[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++)
        cells[i] = i < (int)(done * WIDTH) ? '#' : '.';
    cells[WIDTH] = 0;
    fprintf(stderr, "\r%s%s[%s] %3.0f %%, %d:%02d remaining\033[K", bar->what, gap, cells, 100 * done, (int)remaining / 60,
            (int)remaining % 60);
    fflush(stderr);
}
