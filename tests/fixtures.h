/* Reading tests/data: whole files, and manifests of one case a line. Tests run in the repository root, or find the data
 * through BUTLER_TEST_DATA. And an engine from a model's file in one call. */
#ifndef BUTLER_TESTS_FIXTURES_H
#define BUTLER_TESTS_FIXTURES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "butler.h"
#include "butler_plugin.h"
#include "share.h"

enum { FIXTURE_PATH = 512 };

static inline void fixture_path(char out[FIXTURE_PATH], const char *name)
{
    const char *folder = getenv("BUTLER_TEST_DATA");
    snprintf(out, FIXTURE_PATH, "%s/%s", folder ? folder : "tests/data", name);
}

/* The whole file in a buffer of exactly its size, so that a sanitizer sees any byte read past it; NULL if it cannot be
 * read. Freed by the caller. */
static inline void *fixture_read(const char *name, size_t *n_bytes)
{
    char path[FIXTURE_PATH];
    void *bytes = NULL;
    fixture_path(path, name);
    FILE *file = fopen(path, "rb");
    if (!file) {
        fprintf(stderr, "cannot open %s (tests run in the repository root)\n", path);
        return NULL;
    }
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        rewind(file);
        bytes = size > 0 ? malloc((size_t)size) : NULL;
        if (bytes && fread(bytes, 1, (size_t)size, file) != (size_t)size) {
            free(bytes);
            bytes = NULL;
        }
        *n_bytes = (size_t)size;
    }
    fclose(file);
    return bytes;
}

/* The model of this file on an engine with the kernels of an isa (NULL: the best). It works, or the test fails. */
static inline struct butler_engine *load_engine(const char *path, int n_threads, const char *isa)
{
    struct butler_error err = {0};
    const struct butler_engine_params params = {.n_threads = n_threads, .isa = isa};
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, &params, &err) : NULL;
    if (!engine)
        fail_msg("%s: %s", path, err.message);
    return engine;
}

/* The engine and its model. May be NULL. */
static inline void free_engine(struct butler_engine *engine)
{
    struct butler_model *model = engine ? butler_engine_model(engine) : NULL;
    butler_engine_free(engine);
    butler_model_free(model);
}

#endif
