/* See notice.h. */
#include "serve/notice.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

static const double QUIET = 10; /* seconds in which a message is not repeated */

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

void serve_notices_flush(struct serve_notices *notices)
{
    char text[sizeof notices->latest + 64];
    if (!notices->say || notices->n_untold == 0)
        return;
    snprintf(text, sizeof text, "%s (%llu times more)", notices->latest, (unsigned long long)notices->n_untold);
    notices->n_untold = 0;
    notices->told = now();
    notices->say(notices->user, text);
}

void serve_notice(struct serve_notices *notices, const char *format, ...)
{
    char text[sizeof notices->latest];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (!notices->say)
        return;
    if (strcmp(text, notices->latest) == 0) {
        notices->n_untold++;
        if (now() - notices->told >= QUIET)
            serve_notices_flush(notices);
        return;
    }
    serve_notices_flush(notices);
    strcpy(notices->latest, text);
    notices->told = now();
    notices->say(notices->user, text);
}
