/* The CPU as a backend. */
#ifndef BUTLER_BACKEND_CPU_H
#define BUTLER_BACKEND_CPU_H

#include "engine/backend.h"

/* With the kernels of an isa (NULL: the best it has). The pool stays the caller's and must outlive it. */
struct butler_backend *butler_backend_cpu(struct butler_pool *pool, const char *isa, struct butler_error *err);

#endif
