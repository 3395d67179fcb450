/* How a benchmark names the kernels that a model runs with: NAME, NAME+bytes (activations that meet quantised weights in 8 bits),
 * or +bytes (the best there are, with these). */
#ifndef BUTLER_BENCH_LOAD_H
#define BUTLER_BENCH_LOAD_H

#include <stdio.h>
#include <string.h>

#include "butler.h"

/* isa may be NULL. */
static inline struct butler_model *load_with(const char *path, const char *isa, int n_threads, struct butler_error *err)
{
    char name[16];
    const char *plus = isa ? strchr(isa, '+') : NULL;
    const int length = !isa ? 0 : plus ? (int)(plus - isa) : (int)strlen(isa);
    snprintf(name, sizeof name, "%.*s", length, isa ? isa : "");
    if (plus && strcmp(plus, "+bytes") != 0) {
        err->code = BUTLER_ERROR_UNSUPPORTED;
        snprintf(err->message, sizeof err->message, "isa '%s': NAME, NAME+bytes or +bytes", isa);
        return NULL;
    }
    return butler_model_load(
        path, &(struct butler_model_params){.n_threads = n_threads, .isa = name[0] ? name : NULL, .byte_activations = plus != NULL},
        err);
}

#endif
