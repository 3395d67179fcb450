/* See text.h. */
#include "serve/text.h"

#include <stdio.h>
#include <stdlib.h>

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

void serve_text_reserve(struct butler_buffer *text, size_t n)
{
    if (!butler_buffer_reserve(text, n))
        give_up();
}

void serve_text_append(struct butler_buffer *text, const char *bytes, size_t n)
{
    butler_buffer_append(text, bytes, n);
    if (text->failed)
        give_up();
}
