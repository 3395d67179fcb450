/* Memory that grows: bytes that are appended, and arrays. */
#ifndef BUTLER_BUFFER_H
#define BUTLER_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that are appended. Zeroed at first. The error is sticky: once memory was lacking, nothing more is appended, so that one
 * look at `failed` (or at what butler_buffer_take returns) after many calls is enough. */
struct butler_buffer {
    char *bytes; /* [n]; NULL while nothing was appended */
    size_t n, capacity;
    bool failed;
};

/* Room for n more bytes behind the n that are there; false: no memory. */
bool butler_buffer_reserve(struct butler_buffer *buffer, size_t n);
void butler_buffer_append(struct butler_buffer *buffer, const void *bytes, size_t n);
void butler_buffer_printf(struct butler_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The bytes with a terminating 0, the caller's to free; NULL: memory was lacking. The buffer is empty then. */
char *butler_buffer_take(struct butler_buffer *buffer);
void butler_buffer_free(struct butler_buffer *buffer);

/* Room for n elements in the array *where (a T **, NULL at first) of *capacity elements, which grows by half at least. false: no
 * memory, and nothing has changed. */
bool butler_grow(void *where, size_t n, size_t *capacity, size_t element);

#endif
