/* Texts that end an answer: what may be shown of it so far. See cmd.h. */
#include <string.h>

#include "base/util.h"
#include "cmd.h"

static size_t up_to(const char *bytes, size_t n, size_t end, const char *stop, bool last, bool *found)
{
    const size_t n_stop = strlen(stop);
    const char *at = n ? memmem(bytes, n, stop, n_stop) : NULL;
    if (at) {
        *found = true;
        return BUTLER_MIN(end, (size_t)(at - bytes));
    }
    for (size_t k = last ? 0 : BUTLER_MIN(n_stop - 1, n); k > 0; k--)
        if (memcmp(bytes + n - k, stop, k) == 0)
            return BUTLER_MIN(end, n - k);
    return end;
}

size_t cmd_stop_find(const struct cmd_options *options, const char *own, const char *bytes, size_t n, bool last, bool *found)
{
    size_t end = n;
    *found = false;
    if (own)
        end = up_to(bytes, n, end, own, last, found);
    for (int i = 0; i < options->stops.n; i++)
        end = up_to(bytes, n, end, options->stops.values[i], last, found);
    return end;
}
