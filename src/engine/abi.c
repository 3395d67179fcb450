/* See abi.h. */
#include "engine/abi.h"

#include <string.h>

static size_t size_of(const void *theirs, size_t first_size)
{
    size_t size;
    memcpy(&size, theirs, sizeof size);
    return size ? size : first_size;
}

int butler_take_struct(void *to, size_t n_bytes, const void *from, size_t first_size, const char *what, struct butler_error *err)
{
    memset(to, 0, n_bytes);
    memcpy(to, &n_bytes, sizeof n_bytes);
    if (!from)
        return 0;
    const size_t theirs = size_of(from, first_size);
    if (theirs < sizeof(size_t) || theirs > 1 << 16)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "struct %s has a struct_size of %zu bytes: set it to sizeof, or to 0", what,
                           theirs);
    for (size_t i = n_bytes; i < theirs; i++)
        if (((const unsigned char *)from)[i])
            return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                               "struct %s sets byte %zu, but this library (%s) knows only %zu: the program needs a newer one", what,
                               i, BUTLER_VERSION, n_bytes);
    memcpy(to, from, BUTLER_MIN(theirs, n_bytes));
    memcpy(to, &n_bytes, sizeof n_bytes);
    return 0;
}

void butler_give_struct(void *to, const void *from, size_t n_bytes, size_t first_size)
{
    const size_t n = BUTLER_MIN(size_of(to, first_size), n_bytes);
    if (n > sizeof(size_t))
        memcpy((unsigned char *)to + sizeof(size_t), (const unsigned char *)from + sizeof(size_t), n - sizeof(size_t));
}
