/* Writes GGUF files; used by convert, quantize and the tests. The header has counts and offsets of what follows it. So it is
 * collected in memory and written together with the first data. The data are written through and not kept. */
#include "file/gguf_value.h"
#include "base/buffer.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION = 3, DEFAULT_ALIGNMENT = 32 };

struct declared {
    char *name;
    uint64_t n_bytes;
};

struct butler_gguf_writer {
    struct butler_writer out;
    bool is_open, started;
    uint64_t alignment;
    struct butler_buffer values, infos;
    char **keys;
    size_t n_keys, max_keys;
    struct declared *tensors;
    size_t n_tensors, max_tensors;
    uint64_t data_end;  /* offset of the next declared tensor's data from the start of the data section */
    size_t current;     /* index of the tensor whose data are being written */
    uint64_t n_current; /* bytes of it written so far */
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* The low n_bytes of value, little endian. */
static void append_int(struct butler_buffer *buffer, uint64_t value, size_t n_bytes)
{
    unsigned char le[8];
    for (size_t i = 0; i < n_bytes; i++)
        le[i] = (unsigned char)(value >> (8 * i));
    butler_buffer_append(buffer, le, n_bytes);
}

static void append_string(struct butler_buffer *buffer, const char *text, size_t n)
{
    append_int(buffer, n, 8);
    butler_buffer_append(buffer, text, n);
}

static int grow(const struct butler_gguf_writer *writer, void *array, size_t n, size_t *max, size_t element,
                struct butler_error *err)
{
    return butler_grow(array, n + 1, max, element)
               ? 0
               : butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for %zu entries", writer->out.path, n + 1);
}

struct butler_gguf_writer *butler_gguf_writer_new(const char *path, struct butler_error *err)
{
    struct butler_gguf_writer *writer = calloc(1, sizeof *writer);
    if (!writer) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a writer", path);
        return NULL;
    }
    writer->alignment = DEFAULT_ALIGNMENT;
    if (butler_writer_open(&writer->out, path, 0, err) < 0) {
        free(writer);
        return NULL;
    }
    writer->is_open = true;
    return writer;
}

void butler_gguf_writer_free(struct butler_gguf_writer *writer)
{
    if (!writer)
        return;
    if (writer->is_open)
        butler_writer_abort(&writer->out);
    for (size_t i = 0; i < writer->n_keys; i++)
        free(writer->keys[i]);
    for (size_t i = 0; i < writer->n_tensors; i++)
        free(writer->tensors[i].name);
    free(writer->keys);
    free(writer->tensors);
    butler_buffer_free(&writer->values);
    butler_buffer_free(&writer->infos);
    free(writer);
}

/* ------------------------------------------------------------------------------------------------ values */

/* Starts an entry: checks and remembers its key, writes its type. */
static int put_key(struct butler_gguf_writer *writer, const char *key, enum butler_gguf_type type, struct butler_error *err)
{
    if (writer->n_tensors > 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: key '%s' comes after the tensors", writer->out.path, key);
    for (size_t i = 0; i < writer->n_keys; i++)
        if (strcmp(writer->keys[i], key) == 0)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: key '%s' is written twice", writer->out.path, key);
    if (grow(writer, &writer->keys, writer->n_keys, &writer->max_keys, sizeof *writer->keys, err) < 0)
        return BUTLER_ERROR_MEMORY;
    if (!(writer->keys[writer->n_keys] = strdup(key)))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for key '%s'", writer->out.path, key);
    writer->n_keys++;
    append_string(&writer->values, key, strlen(key));
    append_int(&writer->values, type, 4);
    return 0;
}

/* general.alignment is not only a value: the data section must obey it. */
static int obey_alignment(struct butler_gguf_writer *writer, const char *key, uint64_t value, struct butler_error *err)
{
    if (strcmp(key, "general.alignment") != 0)
        return 0;
    if (value == 0 || value > 1 << 30 || (value & (value - 1)))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: general.alignment %llu is not a power of two up to 2^30",
                           writer->out.path, (unsigned long long)value);
    writer->alignment = value;
    return 0;
}

int butler_gguf_put_int(struct butler_gguf_writer *writer, const char *key, enum butler_gguf_type type, int64_t value,
                        struct butler_error *err)
{
    bool is_signed = type == BUTLER_GGUF_I8 || type == BUTLER_GGUF_I16 || type == BUTLER_GGUF_I32 || type == BUTLER_GGUF_I64;
    bool is_unsigned = type == BUTLER_GGUF_U8 || type == BUTLER_GGUF_U16 || type == BUTLER_GGUF_U32 || type == BUTLER_GGUF_U64 ||
                       type == BUTLER_GGUF_BOOL;
    int n_bits = is_signed || is_unsigned ? 8 * butler_gguf_value_bytes[type] : 0;
    int64_t max = type == BUTLER_GGUF_BOOL ? 1
                  : n_bits == 64           ? INT64_MAX
                                           : (int64_t)(((uint64_t)1 << (n_bits - is_signed * (n_bits > 0))) - 1);
    int64_t min = is_signed ? -max - 1 : 0;
    if (n_bits == 0 || value < min || value > max)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: key '%s': %lld does not fit value type %d", writer->out.path, key,
                           (long long)value, (int)type);
    int rc = obey_alignment(writer, key, (uint64_t)value, err);
    if (rc < 0 || (rc = put_key(writer, key, type, err)) < 0)
        return rc;
    append_int(&writer->values, (uint64_t)value, butler_gguf_value_bytes[type]);
    return 0;
}

int butler_gguf_put_float(struct butler_gguf_writer *writer, const char *key, float value, struct butler_error *err)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    int rc = put_key(writer, key, BUTLER_GGUF_FLOAT32, err);
    if (rc == 0)
        append_int(&writer->values, bits, 4);
    return rc;
}

int butler_gguf_put_string(struct butler_gguf_writer *writer, const char *key, const char *value, struct butler_error *err)
{
    int rc = put_key(writer, key, BUTLER_GGUF_STRING, err);
    if (rc == 0)
        append_string(&writer->values, value, strlen(value));
    return rc;
}

static int put_array_key(struct butler_gguf_writer *writer, const char *key, enum butler_gguf_type element_type, uint64_t n,
                         struct butler_error *err)
{
    int rc = put_key(writer, key, BUTLER_GGUF_ARRAY, err);
    if (rc < 0)
        return rc;
    append_int(&writer->values, element_type, 4);
    append_int(&writer->values, n, 8);
    return 0;
}

int butler_gguf_put_strings(struct butler_gguf_writer *writer, const char *key, const char *const *values, const size_t *n_bytes,
                            uint64_t n, struct butler_error *err)
{
    int rc = put_array_key(writer, key, BUTLER_GGUF_STRING, n, err);
    for (uint64_t i = 0; i < n && rc == 0; i++)
        append_string(&writer->values, values[i], n_bytes[i]);
    return rc;
}

int butler_gguf_put_array(struct butler_gguf_writer *writer, const char *key, enum butler_gguf_type element_type,
                          const void *values, uint64_t n, struct butler_error *err)
{
    size_t n_bytes = (unsigned)element_type < BUTLER_GGUF_N_TYPES ? butler_gguf_value_bytes[element_type] : 0;
    if (n_bytes == 0 || !butler_mul_size(n_bytes, (size_t)n, &n_bytes))
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: key '%s': no array of %llu elements of type %d", writer->out.path, key,
                           (unsigned long long)n, (int)element_type);
    int rc = put_array_key(writer, key, element_type, n, err);
    if (rc == 0)
        butler_buffer_append(&writer->values, values, n_bytes);
    return rc;
}

int butler_gguf_put_value(struct butler_gguf_writer *writer, const struct butler_gguf_value *value, struct butler_error *err)
{
    int rc;
    if (value->type == BUTLER_GGUF_ARRAY) {
        if (value->element_type != BUTLER_GGUF_STRING)
            return butler_gguf_put_array(writer, value->key, value->element_type, value->data, value->n, err);
        size_t n_last = 0;
        if (value->n > 0)
            butler_gguf_array_string(value, value->n - 1, &n_last);
        size_t n_bytes = value->n > 0 ? (size_t)value->string_offsets[value->n - 1] + 8 + n_last : 0;
        rc = put_array_key(writer, value->key, BUTLER_GGUF_STRING, value->n, err);
        if (rc == 0)
            butler_buffer_append(&writer->values, value->data, n_bytes);
        return rc;
    }
    if (value->type != BUTLER_GGUF_STRING) {
        rc = obey_alignment(writer, value->key, (uint64_t)butler_gguf_array_int(value, 0), err);
        if (rc < 0 || (rc = put_key(writer, value->key, value->type, err)) < 0)
            return rc;
        butler_buffer_append(&writer->values, value->data, butler_gguf_value_bytes[value->type]);
        return 0;
    }
    rc = put_key(writer, value->key, BUTLER_GGUF_STRING, err);
    if (rc == 0)
        append_string(&writer->values, (const char *)value->data, (size_t)value->n);
    return rc;
}

/* ----------------------------------------------------------------------------------------------- tensors */

static int check_tensor(const struct butler_gguf_writer *writer, const char *name, enum butler_type type, int n_dims,
                        const int64_t *dims, uint64_t *n_bytes, struct butler_error *err)
{
    const char *path = writer->out.path;
    if (writer->started)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: tensor '%s' is declared after the first data", path, name);
    if (!butler_type_known(type) || n_dims < 1 || n_dims > 4)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: tensor '%s': type %d, %d dimensions", path, name, (int)type, n_dims);
    size_t total = 1;
    for (int d = 0; d < n_dims; d++)
        if (dims[d] < 1 || !butler_mul_size(total, (size_t)dims[d], &total))
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: tensor '%s': dimension %d is %lld", path, name, d,
                               (long long)dims[d]);
    if (dims[0] % butler_types[type].block)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: tensor '%s': rows of %lld elements cannot be %s", path, name,
                           (long long)dims[0], butler_types[type].name);
    for (size_t i = 0; i < writer->n_tensors; i++)
        if (strcmp(writer->tensors[i].name, name) == 0)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: tensor '%s' is declared twice", path, name);
    *n_bytes = (uint64_t)butler_row_bytes(type, dims[0]) * (total / (size_t)dims[0]);
    return 0;
}

int butler_gguf_put_tensor(struct butler_gguf_writer *writer, const char *name, enum butler_type type, int n_dims,
                           const int64_t *dims, struct butler_error *err)
{
    uint64_t n_bytes = 0;
    int rc = check_tensor(writer, name, type, n_dims, dims, &n_bytes, err);
    if (rc < 0)
        return rc;
    if (grow(writer, &writer->tensors, writer->n_tensors, &writer->max_tensors, sizeof *writer->tensors, err) < 0)
        return BUTLER_ERROR_MEMORY;
    struct declared *tensor = &writer->tensors[writer->n_tensors];
    *tensor = (struct declared){.name = strdup(name), .n_bytes = n_bytes};
    if (!tensor->name)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for tensor '%s'", writer->out.path, name);
    writer->n_tensors++;

    struct butler_buffer *infos = &writer->infos;
    append_string(infos, name, strlen(name));
    append_int(infos, (uint64_t)n_dims, 4);
    for (int d = 0; d < n_dims; d++)
        append_int(infos, (uint64_t)dims[d], 8);
    append_int(infos, type, 4);
    append_int(infos, writer->data_end, 8);
    writer->data_end = round_up(writer->data_end + n_bytes, writer->alignment);
    return 0;
}

static int pad(struct butler_gguf_writer *writer, struct butler_error *err)
{
    static const unsigned char zeros[4096];
    uint64_t n = round_up(writer->out.n_written, writer->alignment) - writer->out.n_written;
    int rc = 0;
    while (n > 0 && rc == 0) {
        size_t part = (size_t)BUTLER_MIN(n, (uint64_t)sizeof zeros);
        rc = butler_write(&writer->out, zeros, part, err);
        n -= part;
    }
    return rc;
}

static int write_header(struct butler_gguf_writer *writer, struct butler_error *err)
{
    struct butler_buffer head = {0};
    int rc;
    butler_buffer_append(&head, "GGUF", 4);
    append_int(&head, VERSION, 4);
    append_int(&head, writer->n_tensors, 8);
    append_int(&head, writer->n_keys, 8);
    butler_buffer_append(&head, writer->values.bytes, writer->values.n);
    butler_buffer_append(&head, writer->infos.bytes, writer->infos.n);
    if (head.failed || writer->values.failed || writer->infos.failed)
        rc = butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for the header", writer->out.path);
    else
        rc = butler_write(&writer->out, head.bytes, head.n, err);
    butler_buffer_free(&head);
    if (rc < 0)
        return rc;
    writer->started = true;
    if (writer->n_tensors > 0)
        rc = pad(writer, err);
    return rc;
}

int butler_gguf_put_data(struct butler_gguf_writer *writer, const void *data, size_t n_bytes, struct butler_error *err)
{
    int rc = writer->started ? 0 : write_header(writer, err);
    if (rc < 0)
        return rc;
    if (writer->current >= writer->n_tensors)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: data after the last tensor", writer->out.path);
    struct declared *tensor = &writer->tensors[writer->current];
    if (n_bytes > tensor->n_bytes - writer->n_current)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: tensor '%s' has %llu bytes, more were given", writer->out.path,
                           tensor->name, (unsigned long long)tensor->n_bytes);
    if ((rc = butler_write(&writer->out, data, n_bytes, err)) < 0)
        return rc;
    writer->n_current += n_bytes;
    if (writer->n_current < tensor->n_bytes)
        return 0;
    writer->current++;
    writer->n_current = 0;
    return pad(writer, err);
}

int butler_gguf_writer_commit(struct butler_gguf_writer *writer, struct butler_error *err)
{
    if (writer->current < writer->n_tensors)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: the data of tensor '%s' are not complete", writer->out.path,
                           writer->tensors[writer->current].name);
    int rc = writer->started ? 0 : write_header(writer, err);
    return rc < 0 ? rc : butler_writer_commit(&writer->out, err);
}
