/* Any bytes as a model file: opening and binding must end in a model or an error. Then all of the model's data are read, so
 * that a pointer out of bounds is detected. */
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned sink; /* so that reads happen */

static void read_values(const struct butler_gguf *gguf)
{
    for (int64_t i = 0; i < butler_gguf_n_values(gguf); i++) {
        const struct butler_gguf_value *value = butler_gguf_value_at(gguf, i);
        if (butler_gguf_value(gguf, value->key) != value)
            abort();
        if (value->type != BUTLER_GGUF_ARRAY)
            continue;
        for (uint64_t k = 0; k < value->n; k++) {
            size_t n = 0;
            if (value->element_type == BUTLER_GGUF_STRING) {
                const char *text = butler_gguf_array_string(value, k, &n);
                for (size_t b = 0; b < n; b++)
                    sink += (unsigned char)text[b];
            } else if (value->element_type == BUTLER_GGUF_FLOAT32) {
                sink += butler_gguf_array_float(value, k) > 0;
            } else if (value->element_type != BUTLER_GGUF_FLOAT64) {
                sink += (unsigned)butler_gguf_array_int(value, k);
            }
        }
    }
}

static void read_matrix(const struct butler_matrix *matrix)
{
    if (matrix->data) {
        const unsigned char *data = matrix->data;
        sink += data[0] + data[matrix->row_bytes * (size_t)matrix->n_rows - 1];
    }
    if (matrix->bias)
        sink += matrix->bias[0] > 0 && matrix->bias[matrix->n_rows - 1] > 0;
}

static void read_vector(const struct butler_vector *vector, int n)
{
    if (vector->weight)
        sink += vector->weight[0] > 0 && vector->weight[n - 1] > 0;
    if (vector->bias)
        sink += vector->bias[0] > 0 && vector->bias[n - 1] > 0;
}

static void read_model(const struct butler_model *model)
{
    read_matrix(&model->tok_embd);
    read_matrix(&model->pos_embd);
    read_matrix(&model->output);
    read_vector(&model->output_norm, model->hp.n_embd);
    for (int l = 0; l < model->hp.n_layers; l++) {
        const struct butler_layer *layer = &model->layers[l];
        const struct butler_matrix *matrices[] = {&layer->wq,     &layer->wk,   &layer->wv,    &layer->wo,
                                                  &layer->w_gate, &layer->w_up, &layer->w_down};
        for (int i = 0; i < BUTLER_COUNT(matrices); i++)
            read_matrix(matrices[i]);
        read_vector(&layer->attn_norm, model->hp.n_embd);
        read_vector(&layer->ffn_norm, model->hp.n_embd);
        read_vector(&layer->q_norm, model->hp.head_dim);
        read_vector(&layer->k_norm, model->hp.head_dim);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct butler_error err = {0};
    struct butler_gguf *gguf = butler_gguf_open_memory(data, size, "fuzz", &err);
    if (!gguf) {
        if (err.code >= 0 || strncmp(err.message, "fuzz: ", 6) != 0)
            abort();
        return 0;
    }
    read_values(gguf);
    char path[] = "fuzz";
    struct butler_model model = {.path = path, .gguf = gguf};
    if (butler_model_bind(&model, &err) == 0)
        read_model(&model);
    else if (err.code >= 0 || strncmp(err.message, "fuzz: ", 6) != 0)
        abort();
    butler_model_unbind(&model);
    butler_gguf_free(gguf);
    return 0;
}
