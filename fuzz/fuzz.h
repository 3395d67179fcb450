/* What the fuzz targets share: the input as a file that has a path but no place on a disk, and an engine to work with. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "butler.h"

struct fuzz_file {
    int fd;
    char path[32];
};

static inline struct fuzz_file fuzz_file_make(const void *data, size_t size)
{
    struct fuzz_file file = {.fd = memfd_create("fuzz", 0)};
    if (file.fd < 0 || write(file.fd, data, size) != (ssize_t)size)
        abort();
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    return file;
}

static inline struct butler_model *fuzz_model(const char *path)
{
    struct butler_error err = {0};
    struct butler_model *model = butler_model_load(path, NULL, &err);
    if (!model) {
        fprintf(stderr, "%s (run the target from the root of the repository)\n", err.message);
        abort();
    }
    return model;
}

static inline struct butler_engine *fuzz_engine(const char *path)
{
    struct butler_error err = {0};
    struct butler_engine *engine = butler_engine_new(fuzz_model(path), &(struct butler_engine_params){.n_threads = 1}, &err);
    if (!engine) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    return engine;
}

/* A call that fails must give a reason. A property that does not hold aborts, so that the fuzzer keeps the input. */
static inline void fuzz_require(int condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "does not hold: %s\n", what);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

#endif
