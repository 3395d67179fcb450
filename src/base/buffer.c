/* See buffer.h. */
#include "base/buffer.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool butler_grow(void *where, size_t n, size_t *capacity, size_t element)
{
    void *array, *grown;
    size_t wanted, bytes;
    if (n <= *capacity)
        return true;
    if (__builtin_add_overflow(*capacity, *capacity / 2 + 16, &wanted) || wanted < n)
        wanted = n;
    if (__builtin_mul_overflow(wanted, element, &bytes))
        return false;
    memcpy(&array, where, sizeof array); /* where points to a T *, which may not be read through a void ** */
    grown = realloc(array, bytes);
    if (!grown)
        return false;
    memcpy(where, &grown, sizeof grown);
    *capacity = wanted;
    return true;
}

bool butler_buffer_reserve(struct butler_buffer *buffer, size_t n)
{
    size_t all;
    if (!buffer->failed && (__builtin_add_overflow(buffer->n, n, &all) || !butler_grow(&buffer->bytes, all, &buffer->capacity, 1)))
        buffer->failed = true;
    return !buffer->failed;
}

void butler_buffer_append(struct butler_buffer *buffer, const void *bytes, size_t n)
{
    if (n == 0 || !butler_buffer_reserve(buffer, n))
        return;
    memcpy(buffer->bytes + buffer->n, bytes, n);
    buffer->n += n;
}

void butler_buffer_printf(struct butler_buffer *buffer, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0)
        buffer->failed = true;
    else if (butler_buffer_reserve(buffer, (size_t)n + 1)) {
        vsnprintf(buffer->bytes + buffer->n, (size_t)n + 1, format, again);
        buffer->n += (size_t)n;
    }
    va_end(again);
}

char *butler_buffer_take(struct butler_buffer *buffer)
{
    butler_buffer_append(buffer, "", 1);
    char *bytes = buffer->failed ? NULL : buffer->bytes;
    if (!bytes)
        free(buffer->bytes);
    *buffer = (struct butler_buffer){0};
    return bytes;
}

void butler_buffer_free(struct butler_buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct butler_buffer){0};
}
