/* A GGUF file with its matrices in another type. */
#ifndef BUTLER_QUANTIZE_H
#define BUTLER_QUANTIZE_H

#include "file/gguf.h"

/* One tensor about to be written, the i-th of n. */
struct butler_quantize_step {
    int64_t i, n;
    const struct butler_tensor *tensor; /* as it was */
    enum butler_type type;              /* as it will be */
    const char *note;                   /* why it differs from what was asked for, or NULL */
};
typedef void butler_quantize_fn(void *user, const struct butler_quantize_step *step);

/* Copies the file `in` to `out` with its matrices as type (F16, Q8_0 or Q4_0). Vectors become F32; a matrix whose rows
 * are no multiple of the type's block, and the table of positions, stay as they are. Nothing appears under `out` before
 * it is complete; it may be the same path as `in`. progress may be NULL. */
int butler_quantize_file(const char *in, const char *out, enum butler_type type, butler_quantize_fn *progress, void *user,
                         struct butler_error *err);

#endif
