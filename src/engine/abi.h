/* Public structs that begin with their size: a program and the library may have been built with headers that know different numbers
 * of fields. A size of 0 means the fields of the version that first had the struct with a size, which never changes. */
#ifndef BUTLER_ABI_H
#define BUTLER_ABI_H

#include "base/util.h"

/* The size up to and including a field: given as first_size, the last field of 0.3.0. */
#define BUTLER_END_OF(type, field) (offsetof(struct type, field) + sizeof(((struct type *)0)->field))

/* *to (of n_bytes, a struct this library knows) = a program's struct; NULL: one without any field. Fields that the program does not
 * know are zero, which means the default. BUTLER_ERROR_ARGUMENT where it has a size that is no size, or sets fields that this
 * library does not know. */
int butler_take_struct(void *to, size_t n_bytes, const void *from, size_t first_size, const char *what, struct butler_error *err);

/* Copies *from to a program's struct, of which nothing behind its own size is written; the size itself stays. */
void butler_give_struct(void *to, const void *from, size_t n_bytes, size_t first_size);

#endif
