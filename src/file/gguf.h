/* A mapped GGUF file (version 2 or 3): keys and tensors. Each length and offset in the file is checked before it is used. An
 * error names the file, the key or tensor, and the byte offset. */
#ifndef BUTLER_GGUF_H
#define BUTLER_GGUF_H

#include "base/util.h"
#include "file/weight_types.h"

/* A matrix of n_rows rows of n_cols elements (GGUF dimension 0 is n_cols). A vector has n_rows 1. Borrowed. */
struct butler_tensor {
    const char *name; /* NUL-terminated, owned by the gguf */
    enum butler_type type;
    int64_t n_cols, n_rows;
    int n_dims;
    int64_t dims[4];
    size_t row_bytes;
    const void *data;
};

struct butler_gguf;

/* Of a model that is split into several files: the first; the others are opened too, and the tensors are those of all. */
struct butler_gguf *butler_gguf_open(const char *path, struct butler_error *err);
/* The same for size bytes of memory at any alignment, which must outlive the gguf. name replaces the path in errors. */
struct butler_gguf *butler_gguf_open_memory(const void *data, size_t size, const char *name, struct butler_error *err);
void butler_gguf_free(struct butler_gguf *gguf);
const char *butler_gguf_path(const struct butler_gguf *gguf);
/* Odd things in the file that do not keep it from being used: a sentence a line, "" if there are none. butler_gguf_warn adds one;
 * the file's path is not to be repeated. */
const char *butler_gguf_warnings(const struct butler_gguf *gguf);
void butler_gguf_warn(const struct butler_gguf *gguf, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* BUTLER_ERROR_IO once a file of the model has shrunk or could not be read: see butler_map_check. NULL: 0. */
int butler_gguf_check(const struct butler_gguf *gguf, struct butler_error *err);
/* XXH3-64 of all bytes of the file; of a split model that of the pair (fingerprint so far, the next file's), file by file. folder,
 * if not NULL, is where fingerprints are kept between processes; it is made if need be, and one that cannot be used is no error. */
int butler_gguf_fingerprint(const struct butler_gguf *gguf, const char *folder, uint64_t *fingerprint, struct butler_error *err);
/* XXH3-64 of the header and of the first and last 4 KiB of every tensor: what older files name a model by. */
uint64_t butler_gguf_sampled_fingerprint(const struct butler_gguf *gguf);

int64_t butler_gguf_n_tensors(const struct butler_gguf *gguf);
const struct butler_tensor *butler_gguf_tensor(const struct butler_gguf *gguf, int64_t i);
const struct butler_tensor *butler_gguf_find(const struct butler_gguf *gguf, const char *name); /* NULL if absent */

/* GGUF value types, with the format's numbers. */
enum butler_gguf_type {
    BUTLER_GGUF_U8,
    BUTLER_GGUF_I8,
    BUTLER_GGUF_U16,
    BUTLER_GGUF_I16,
    BUTLER_GGUF_U32,
    BUTLER_GGUF_I32,
    BUTLER_GGUF_FLOAT32,
    BUTLER_GGUF_BOOL,
    BUTLER_GGUF_STRING,
    BUTLER_GGUF_ARRAY,
    BUTLER_GGUF_U64,
    BUTLER_GGUF_I64,
    BUTLER_GGUF_FLOAT64,
};

/* A value of the header. An array has n elements of element_type; butler_gguf_array_string returns the strings of an array. A
 * key is not NUL-terminated in the file; `key` is a terminated copy. */
struct butler_gguf_value {
    const char *key;
    enum butler_gguf_type type, element_type;
    uint64_t n;                     /* elements of an array, bytes of a string, else 1 */
    const unsigned char *data;      /* unaligned, little endian */
    const uint64_t *string_offsets; /* arrays of strings: offset of each string's length field from `data` */
};
int64_t butler_gguf_n_values(const struct butler_gguf *gguf);
const struct butler_gguf_value *butler_gguf_value_at(const struct butler_gguf *gguf, int64_t i);
const struct butler_gguf_value *butler_gguf_value(const struct butler_gguf *gguf, const char *key); /* NULL if absent */
const char *butler_gguf_array_string(const struct butler_gguf_value *value, uint64_t i, size_t *n_bytes);
float butler_gguf_array_float(const struct butler_gguf_value *value, uint64_t i); /* float32 arrays */
int64_t butler_gguf_array_int(const struct butler_gguf_value *value, uint64_t i); /* any integer or bool array */

/* Scalars. Any integer type is converted if the value is in [min, max]. The required forms fail if the key is absent. The
 * optional forms then leave *out unchanged; they fail if the key is present with a wrong type or value. */
int butler_gguf_int(const struct butler_gguf *gguf, const char *key, bool required, int64_t min, int64_t max, int64_t *out,
                    struct butler_error *err);
int butler_gguf_float(const struct butler_gguf *gguf, const char *key, bool required, double *out, struct butler_error *err);
/* A NUL-terminated copy owned by the gguf. Embedded NUL bytes are an error. */
int butler_gguf_string(const struct butler_gguf *gguf, const char *key, bool required, const char **out, struct butler_error *err);

/* ------------------------------------------------------------------------------------------------ writing */

/* Writes GGUF version 3: first values (add_*), then the declarations of all tensors, then their data in the same order. Used
 * by convert, quantize and the tests. The file appears under `path` only with butler_gguf_writer_commit. */
struct butler_gguf_writer;
struct butler_gguf_writer *butler_gguf_writer_new(const char *path, struct butler_error *err);
void butler_gguf_writer_free(struct butler_gguf_writer *writer); /* without a commit, leaves no file */
int butler_gguf_put_int(struct butler_gguf_writer *writer, const char *key, enum butler_gguf_type type, int64_t value,
                        struct butler_error *err);
int butler_gguf_put_float(struct butler_gguf_writer *writer, const char *key, float value, struct butler_error *err);
int butler_gguf_put_string(struct butler_gguf_writer *writer, const char *key, const char *value, struct butler_error *err);
int butler_gguf_put_strings(struct butler_gguf_writer *writer, const char *key, const char *const *values, const size_t *n_bytes,
                            uint64_t n, struct butler_error *err);
int butler_gguf_put_array(struct butler_gguf_writer *writer, const char *key, enum butler_gguf_type element_type,
                          const void *values, uint64_t n, struct butler_error *err);
int butler_gguf_put_value(struct butler_gguf_writer *writer, const struct butler_gguf_value *value, struct butler_error *err);
int butler_gguf_put_tensor(struct butler_gguf_writer *writer, const char *name, enum butler_type type, int n_dims,
                           const int64_t *dims, struct butler_error *err);
/* Data of the next declared tensor, in one or several consecutive calls. */
int butler_gguf_put_data(struct butler_gguf_writer *writer, const void *data, size_t n_bytes, struct butler_error *err);
int butler_gguf_writer_commit(struct butler_gguf_writer *writer, struct butler_error *err);

#endif
