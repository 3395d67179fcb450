/* Memory, and bytes that are appended (base/buffer.h). Without memory the program prints an error and exits. */
#ifndef SERVE_TEXT_H
#define SERVE_TEXT_H

#include "base/buffer.h"

void *serve_alloc(size_t count, size_t size); /* zeroed */
/* Room for n more bytes. */
void serve_text_reserve(struct butler_buffer *text, size_t n);
void serve_text_append(struct butler_buffer *text, const char *bytes, size_t n);

#endif
