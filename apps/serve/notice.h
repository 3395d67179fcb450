/* What the server tells its operator while it runs. A message that comes again and again, as when files run out, is told once, and
 * then every ten seconds how often it came. All in the loop's thread. */
#ifndef SERVE_NOTICE_H
#define SERVE_NOTICE_H

#include <stdint.h>

struct serve_notices {
    void (*say)(void *user, const char *message); /* NULL: nothing is told */
    void *user;
    char latest[256];
    uint64_t n_untold; /* times that the latest came and was not told */
    double told;       /* when it was, seconds */
};

void serve_notice(struct serve_notices *notices, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Tells how often the latest message came since, if it did. */
void serve_notices_flush(struct serve_notices *notices);

#endif
