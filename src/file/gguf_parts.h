/* A parsed GGUF file as gguf.c, which reads it, and gguf_query.c, which answers from it, know it. */
#ifndef BUTLER_GGUF_PARTS_H
#define BUTLER_GGUF_PARTS_H

#include "file/gguf_value.h"

enum { MAX_WARNINGS = 2048 }; /* bytes; what comes after them is left out */

struct entry {
    struct butler_gguf_value value;
    const char *text; /* strings without embedded NUL: a terminated copy */
};

struct slot {
    struct butler_tensor tensor;
    uint64_t offset, n_bytes; /* offset from the start of the data section */
    uint64_t at;              /* offset of the tensor's description in the file, for errors */
};

struct text_chunk {
    struct text_chunk *next;
    size_t used, size;
    char text[];
};

struct name_index {
    size_t *places; /* index + 1, or 0 for a free slot */
    size_t mask;
};

struct butler_gguf {
    char *path;
    struct butler_map map;
    uint64_t alignment;
    uint64_t header_bytes, data_offset;
    struct entry *entries;
    size_t n_entries, max_entries;
    struct slot *slots;
    size_t n_slots, max_slots;
    struct name_index entry_index, slot_index;
    struct text_chunk *texts;
    char *warnings;             /* [MAX_WARNINGS] */
    struct butler_gguf **parts; /* [n_parts] the other files of a split model, whose tensors are among the slots */
    int64_t n_parts;
};

/* Keys and tensors both begin with their name: that of element i of array, whose elements have so many bytes. */
const char *butler_gguf_name(const void *array, size_t element, size_t i);
/* The cell of the index that has the name, or the free one where it belongs. */
size_t *butler_gguf_cell(const struct name_index *index, const void *array, size_t element, const char *name);

#endif
