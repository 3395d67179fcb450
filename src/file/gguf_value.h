/* What the GGUF reader and writer share: sizes of values, and reading them from bytes. */
#ifndef BUTLER_GGUF_VALUE_H
#define BUTLER_GGUF_VALUE_H

#include "file/gguf.h"

enum { BUTLER_GGUF_N_TYPES = BUTLER_GGUF_FLOAT64 + 1 };

/* Bytes of a scalar; 0 for strings and arrays, whose length is in the file. */
extern const unsigned char butler_gguf_value_bytes[BUTLER_GGUF_N_TYPES];
extern const char *const butler_gguf_value_names[BUTLER_GGUF_N_TYPES];

/* Little-endian integers at any alignment. */
uint32_t butler_gguf_load_u32(const unsigned char *p);
uint64_t butler_gguf_load_u64(const unsigned char *p);
/* The integer or bool at p. False if type is neither, or if the value is unsigned and exceeds int64_t (*out then wraps). */
bool butler_gguf_load_int(enum butler_gguf_type type, const unsigned char *p, int64_t *out);

#endif
