/* See text.h. */
#include "serve/text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void give_up(void)
{
    fprintf(stderr, "butler serve: out of memory\n");
    _Exit(1);
}

void *serve_alloc(size_t count, size_t size)
{
    void *memory = calloc(count ? count : 1, size);
    if (!memory)
        give_up();
    return memory;
}

void serve_text_reserve(struct serve_text *text, size_t n)
{
    if (n <= text->capacity - text->n)
        return;
    const size_t capacity = 2 * text->capacity + n + 64;
    char *bytes = realloc(text->bytes, capacity);
    if (!bytes)
        give_up();
    text->bytes = bytes;
    text->capacity = capacity;
}

void serve_text_append(struct serve_text *text, const char *bytes, size_t n)
{
    serve_text_reserve(text, n);
    if (n)
        memcpy(text->bytes + text->n, bytes, n);
    text->n += n;
}

void serve_text_free(struct serve_text *text)
{
    free(text->bytes);
    *text = (struct serve_text){0};
}
