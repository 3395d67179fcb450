/* A growing array of bytes, and memory. Without memory the program prints an error and exits. */
#ifndef SERVE_TEXT_H
#define SERVE_TEXT_H

#include <stddef.h>

/* Zeroed at first; bytes is NULL while nothing was appended. */
struct serve_text {
    char *bytes;
    size_t n, capacity;
};

void *serve_alloc(size_t count, size_t size); /* zeroed */
/* Room for n more bytes. */
void serve_text_reserve(struct serve_text *text, size_t n);
void serve_text_append(struct serve_text *text, const char *bytes, size_t n);
void serve_text_free(struct serve_text *text);

#endif
