/* Quantises the matrices of a GGUF file and copies the rest. Rows are converted one at a time, so memory does not grow with
 * the size of the model. */
#include "file/quantize.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const float MAX_HALF = 65504;

static bool is_float(enum butler_type type)
{
    return type == BUTLER_F32 || type == BUTLER_F16 || type == BUTLER_BF16;
}

int butler_quantize_file_type(enum butler_type type)
{
    return type == BUTLER_F16    ? 1
           : type == BUTLER_Q4_0 ? 2
           : type == BUTLER_Q8_0 ? 7
           : type == BUTLER_Q4_K ? 14
           : type == BUTLER_Q6_K ? 18
                                 : -1;
}

/* Whether it stays as exact as it is: a vector, or one vector for each expert or head; or the small matrix that chooses experts. */
static bool is_vector(const struct butler_tensor *tensor)
{
    const size_t n = strlen(tensor->name);
    return tensor->n_dims == 1 || n < 7 || strcmp(tensor->name + n - 7, ".weight") != 0 || strstr(tensor->name, "norm.weight") ||
           strstr(tensor->name, "ffn_gate_inp.weight");
}

/* The type a tensor gets, and the reason if it is not the requested one. */
static enum butler_type choose_type(const struct butler_tensor *tensor, enum butler_type type, const char **note)
{
    *note = NULL;
    if (is_vector(tensor))
        return is_float(tensor->type) ? BUTLER_F32 : tensor->type;
    if (strcmp(tensor->name, "position_embd.weight") == 0) {
        *note = "a step reads one row of it: nothing to gain";
        return tensor->type;
    }
    if (tensor->n_cols % butler_types[type].block) {
        if (is_float(tensor->type) && tensor->n_cols % butler_types[BUTLER_Q8_0].block == 0) {
            *note = "its rows are no multiple of 256";
            return BUTLER_Q8_0;
        }
        *note = "its rows are no multiple of the block";
        return tensor->type;
    }
    if (!is_float(tensor->type) && tensor->type != type)
        *note = "was quantised before: loses a second time";
    return type;
}

struct job {
    const char *in;
    enum butler_type type;
    struct butler_gguf *gguf;
    struct butler_gguf_writer *writer;
    struct butler_error *err;
};

/* Of the numbers that a type can hold: blocks have a scale in half precision, by which the largest is divided. */
static float largest(enum butler_type type)
{
    return type == BUTLER_F32    ? FLT_MAX
           : type == BUTLER_Q8_0 ? 127.0F * MAX_HALF
           : type == BUTLER_Q4_0 ? 8.0F * MAX_HALF
                                 : MAX_HALF;
}

static int write_row(const struct job *job, const struct butler_tensor *tensor, int64_t r, enum butler_type type, float *row,
                     void *out)
{
    int n = (int)tensor->n_cols;
    butler_types[tensor->type].dequantize(row, (const unsigned char *)tensor->data + (size_t)r * tensor->row_bytes, n);
    for (int c = 0; c < n; c++) {
        bool finite = isfinite(row[c]);
        if (!finite || fabsf(row[c]) > largest(type))
            return butler_fail(job->err, BUTLER_ERROR_NUMERIC, "%.160s: tensor '%s': element %d of row %lld is %g, %s%s", job->in,
                               tensor->name, c, (long long)r, (double)row[c], finite ? "beyond " : "not a number to round",
                               finite ? butler_types[type].name : "");
    }
    if (!butler_quantize_row(type, out, row, n))
        return butler_fail(job->err, BUTLER_ERROR_UNSUPPORTED, "%.160s: tensor '%s': rows of %d cannot be %s", job->in,
                           tensor->name, n, butler_types[type].name);
    return butler_gguf_put_data(job->writer, out, butler_row_bytes(type, n), job->err);
}

static int write_tensor(const struct job *job, const struct butler_tensor *tensor, enum butler_type type)
{
    if (type == tensor->type)
        return butler_gguf_put_data(job->writer, tensor->data, tensor->row_bytes * (size_t)tensor->n_rows, job->err);
    if (tensor->n_cols > INT_MAX)
        return butler_fail(job->err, BUTLER_ERROR_UNSUPPORTED, "%.160s: tensor '%s': rows of %lld elements", job->in, tensor->name,
                           (long long)tensor->n_cols);
    float *row = butler_alloc((size_t)tensor->n_cols * sizeof *row, job->err);
    void *out = butler_alloc(butler_row_bytes(type, tensor->n_cols), job->err);
    int rc = row && out ? 0 : BUTLER_ERROR_MEMORY;
    for (int64_t r = 0; r < tensor->n_rows && rc == 0; r++)
        rc = write_row(job, tensor, r, type, row, out);
    free(row);
    free(out);
    return rc;
}

static int copy_values(const struct job *job)
{
    int rc;
    for (int64_t i = 0; i < butler_gguf_n_values(job->gguf); i++) {
        const struct butler_gguf_value *value = butler_gguf_value_at(job->gguf, i);
        if (strcmp(value->key, "general.file_type") == 0 || strcmp(value->key, "general.quantization_version") == 0 ||
            strncmp(value->key, "split.", 6) == 0) /* what is written is one file */
            continue;
        if ((rc = butler_gguf_put_value(job->writer, value, job->err)) < 0)
            return rc;
    }
    if ((rc = butler_gguf_put_int(job->writer, "general.file_type", BUTLER_GGUF_U32, butler_quantize_file_type(job->type),
                                  job->err)) < 0)
        return rc;
    return butler_gguf_put_int(job->writer, "general.quantization_version", BUTLER_GGUF_U32, 2, job->err);
}

static int write_tensors(const struct job *job, butler_quantize_fn *progress, void *user)
{
    int64_t n = butler_gguf_n_tensors(job->gguf);
    int rc;
    for (int64_t i = 0; i < n; i++) {
        const struct butler_tensor *tensor = butler_gguf_tensor(job->gguf, i);
        const char *note;
        enum butler_type type = choose_type(tensor, job->type, &note);
        if ((rc = butler_gguf_put_tensor(job->writer, tensor->name, type, tensor->n_dims, tensor->dims, job->err)) < 0)
            return rc;
    }
    for (int64_t i = 0; i < n; i++) {
        struct butler_quantize_step step = {.i = i, .n = n, .tensor = butler_gguf_tensor(job->gguf, i)};
        step.type = choose_type(step.tensor, job->type, &step.note);
        if (progress)
            progress(user, &step);
        if ((rc = write_tensor(job, step.tensor, step.type)) < 0)
            return rc;
    }
    return 0;
}

int butler_quantize_file(const char *in, const char *out, enum butler_type type, butler_quantize_fn *progress, void *user,
                         struct butler_error *err)
{
    if (butler_quantize_file_type(type) < 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "type %s: " BUTLER_QUANTIZE_TYPES " can be written", butler_type_name(type));
    struct butler_error why = {0}; /* returned if opening fails */
    struct job job = {.in = in, .type = type, .err = &why};
    int rc = -1;
    if ((job.gguf = butler_gguf_open(in, &why)) && (job.writer = butler_gguf_writer_new(out, &why)) &&
        (rc = copy_values(&job)) == 0 && (rc = write_tensors(&job, progress, user)) == 0 &&
        (rc = butler_gguf_check(job.gguf, &why)) == 0)
        rc = butler_gguf_writer_commit(job.writer, &why);
    butler_gguf_writer_free(job.writer);
    butler_gguf_free(job.gguf);
    if (rc < 0 && err)
        *err = why;
    return rc < 0 ? why.code : 0;
}
