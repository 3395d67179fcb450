/* Converts the matrices of a GGUF file to another type. */
#ifndef BUTLER_QUANTIZE_H
#define BUTLER_QUANTIZE_H

#include "file/gguf.h"

/* Reports one tensor before it is written: the i-th of n. */
struct butler_quantize_step {
    int64_t i, n;
    const struct butler_tensor *tensor; /* the old type */
    enum butler_type type;              /* the new type */
    const char *note;                   /* why it differs from the requested type, or NULL */
};
typedef void butler_quantize_fn(void *user, const struct butler_quantize_step *step);

/* Copies the file `in` to `out` and converts its matrices to type (F16, Q8_0 or Q4_0). Vectors become F32. A matrix whose
 * rows are not a multiple of the type's block, and the table of positions, keep their type. `out` appears only when it is
 * complete, and may be the same path as `in`. progress may be NULL. */
int butler_quantize_file(const char *in, const char *out, enum butler_type type, butler_quantize_fn *progress, void *user,
                         struct butler_error *err);

#endif
