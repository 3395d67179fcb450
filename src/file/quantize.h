/* Converts the matrices of a GGUF file to another type. */
#ifndef BUTLER_QUANTIZE_H
#define BUTLER_QUANTIZE_H

#include "file/gguf.h"

/* What matrices can be converted to. */
#define BUTLER_QUANTIZE_TYPES "F16, Q8_0, Q6_K, Q4_K or Q4_0"
/* The value of general.file_type that means "mostly this type", or -1 for a type that matrices cannot be converted to. */
int butler_quantize_file_type(enum butler_type type);

/* Reports one tensor before it is written: the i-th of n. */
struct butler_quantize_step {
    int64_t i, n;
    const struct butler_tensor *tensor; /* the old type */
    enum butler_type type;              /* the new type */
    const char *note;                   /* why it differs from the requested type, or NULL */
};
typedef void butler_quantize_fn(void *user, const struct butler_quantize_step *step);

/* Copies the file `in` to `out` and converts its matrices to type (BUTLER_QUANTIZE_TYPES). Vectors become F32. A matrix whose
 * rows are not a multiple of the type's block, and the table of positions, keep their type; but F32, F16 and BF16 become Q8_0
 * where rows are a multiple of 32 and Q6_K or Q4_K would need one of 256. `out` appears only when it is
 * complete, and may be the same path as `in`. progress may be NULL. */
int butler_quantize_file(const char *in, const char *out, enum butler_type type, butler_quantize_fn *progress, void *user,
                         struct butler_error *err);

#endif
