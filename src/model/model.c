/* Binds the tensors of a file to the layers. Each shape is compared with the one that the hyperparameters require. No tensor
 * may remain unbound: it would be an unknown part that silently changes the output. */
#include "model/arch.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Upper bounds of hyperparameters: far above any model, and low enough that products of a few of them fit in 64 bits, and any
 * one times a small factor fits in an int. */
enum {
    MAX_LAYERS = 4096,
    MAX_EMBD = 1 << 20,
    MAX_FF = 1 << 24,
    MAX_EXPERTS = 1 << 10,
    MAX_HEADS = 1 << 14,
    MAX_VOCAB = 1 << 24,
    MAX_CTX = 1 << 28,
};

/* ---------------------------------------------------------------------------------------- hyperparameters */

static int get_int(struct butler_model *model, const char *suffix, bool required, int min, int max, int *out,
                   struct butler_error *err)
{
    struct butler_arch_key key = butler_arch_key(model, suffix);
    const struct butler_gguf_value *array = butler_gguf_value(model->gguf, key.text);
    int64_t value = *out;
    if (!array || array->type != BUTLER_GGUF_ARRAY || array->n == 0 || array->element_type == BUTLER_GGUF_STRING ||
        array->element_type == BUTLER_GGUF_FLOAT32 || array->element_type == BUTLER_GGUF_FLOAT64) {
        int rc = butler_gguf_int(model->gguf, key.text, required, min, max, &value, err);
        *out = (int)value;
        return rc;
    }
    /* One value a layer: all the same. */
    value = butler_gguf_array_int(array, 0);
    if (model->hp.n_layers == 0 || array->n != (uint64_t)model->hp.n_layers)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': an array of %llu values for %d layers", model->path,
                           key.text, (unsigned long long)array->n, model->hp.n_layers);
    for (uint64_t i = 1; i < array->n; i++)
        if (butler_gguf_array_int(array, i) != value)
            return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: key '%s': layers with different values are not supported",
                               model->path, key.text);
    if (value < min || value > max)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %lld is not in [%d, %d]", model->path, key.text,
                           (long long)value, min, max);
    *out = (int)value;
    return 0;
}

static int read_head_dim(struct butler_model *model, struct butler_error *err)
{
    struct butler_hparams *hp = &model->hp;
    int rc = get_int(model, "attention.key_length", false, 2, 1 << 16, &hp->head_dim, err);
    if (rc < 0)
        return rc;
    if (hp->head_dim == 0) {
        if (hp->n_embd % hp->n_heads)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %d heads do not divide an embedding of %d", model->path,
                               butler_arch_key(model, "attention.head_count").text, hp->n_heads, hp->n_embd);
        hp->head_dim = hp->n_embd / hp->n_heads;
    }
    if (hp->head_dim % 2 || hp->head_dim > BUTLER_MAX_HEAD_DIM || hp->head_dim < 2)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "%.160s: key '%s': heads of %d dimensions; expected an even number up to %d", model->path,
                           butler_arch_key(model, "attention.head_count").text, hp->head_dim, BUTLER_MAX_HEAD_DIM);
    int value_length = hp->head_dim;
    if ((rc = get_int(model, "attention.value_length", false, 1, INT_MAX, &value_length, err)) < 0)
        return rc;
    if (value_length != hp->head_dim)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: key '%s': values of %d dimensions, keys of %d", model->path,
                           butler_arch_key(model, "attention.value_length").text, value_length, hp->head_dim);
    if ((int64_t)hp->n_heads * hp->head_dim > MAX_EMBD)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: key '%s': %d heads of %d dimensions", model->path,
                           butler_arch_key(model, "attention.head_count").text, hp->n_heads, hp->head_dim);
    return 0;
}

static int read_norm(struct butler_model *model, struct butler_error *err)
{
    bool rms = model->hp.norm == BUTLER_NORM_RMS;
    struct butler_arch_key key = butler_arch_key(model, rms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon");
    double eps = 0;
    int rc = butler_gguf_float(model->gguf, key.text, true, &eps, err);
    if (rc < 0)
        return rc;
    if (!(eps >= 0 && eps <= 1))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %g is not in [0, 1]", model->path, key.text, eps);
    model->hp.norm_eps = (float)eps;
    return 0;
}

/* The embedding defines the number of tokens; a larger vocabulary would name rows that do not exist. */
static int read_vocab(struct butler_model *model, struct butler_error *err)
{
    const struct butler_tensor *tensor = butler_gguf_find(model->gguf, "token_embd.weight");
    if (!tensor)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: tensor 'token_embd.weight' is missing", model->path);
    if (tensor->n_rows > MAX_VOCAB)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: tensor 'token_embd.weight': %lld rows, at most %d", model->path,
                           (long long)tensor->n_rows, MAX_VOCAB);
    model->hp.n_vocab = (int)tensor->n_rows;
    const struct butler_gguf_value *tokens = butler_gguf_value(model->gguf, "tokenizer.ggml.tokens");
    if (tokens && tokens->type == BUTLER_GGUF_ARRAY && tokens->n > (uint64_t)tensor->n_rows)
        return butler_fail(err, BUTLER_ERROR_FORMAT,
                           "%.160s: key 'tokenizer.ggml.tokens': %llu tokens, tensor 'token_embd.weight' has %lld rows",
                           model->path, (unsigned long long)tokens->n, (long long)tensor->n_rows);
    return 0;
}

static int read_experts(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err)
{
    struct butler_hparams *hp = &model->hp;
    int rc = get_int(model, "expert_count", arch->layer == NULL, arch->layer == NULL, MAX_EXPERTS, &hp->n_experts, err);
    if (rc < 0 || hp->n_experts == 0)
        return rc;
    if (!arch->expert_layer)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: key '%s': %s with a mixture of %d experts is not supported",
                           model->path, butler_arch_key(model, "expert_count").text, arch->name, hp->n_experts);
    hp->n_expert_ff = hp->n_ff;
    hp->experts_normalised = !arch->experts_unnormalised;
    if ((rc = get_int(model, "expert_used_count", true, 1, hp->n_experts, &hp->n_experts_used, err)) < 0 ||
        (rc = get_int(model, "expert_feed_forward_length", false, 1, MAX_FF, &hp->n_expert_ff, err)) < 0)
        return rc;
    hp->n_shared_ff = hp->n_ff;
    return get_int(model, "expert_shared_feed_forward_length", false, 1, MAX_FF, &hp->n_shared_ff, err);
}

static int read_hparams(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err)
{
    struct butler_hparams *hp = &model->hp;
    hp->norm = arch->norm;
    hp->activation = arch->activation;
    hp->rope = arch->rope;
    int rc;
    if ((rc = get_int(model, "block_count", true, 1, MAX_LAYERS, &hp->n_layers, err)) < 0 ||
        (rc = get_int(model, "context_length", true, 1, MAX_CTX, &hp->n_ctx_train, err)) < 0 ||
        (rc = get_int(model, "embedding_length", true, 1, MAX_EMBD, &hp->n_embd, err)) < 0 ||
        (rc = get_int(model, "feed_forward_length", true, 1, MAX_FF, &hp->n_ff, err)) < 0 ||
        (rc = get_int(model, "attention.head_count", true, 1, MAX_HEADS, &hp->n_heads, err)) < 0)
        return rc;
    if ((rc = read_experts(model, arch, err)) < 0)
        return rc;
    hp->n_kv_heads = hp->n_heads;
    if ((rc = get_int(model, "attention.head_count_kv", false, 1, MAX_HEADS, &hp->n_kv_heads, err)) < 0)
        return rc;
    if (hp->n_heads % hp->n_kv_heads)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %d KV heads do not divide %d heads", model->path,
                           butler_arch_key(model, "attention.head_count_kv").text, hp->n_kv_heads, hp->n_heads);
    if ((rc = read_head_dim(model, err)) < 0 || (rc = read_norm(model, err)) < 0 || (rc = read_vocab(model, err)) < 0)
        return rc;
    if (arch->rope == BUTLER_ROPE_NONE)
        return 0;
    hp->n_rot = hp->head_dim;
    if ((rc = get_int(model, "rope.dimension_count", false, 2, hp->head_dim, &hp->n_rot, err)) < 0)
        return rc;
    if (hp->n_rot % 2)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %d dimensions cannot be rotated in pairs", model->path,
                           butler_arch_key(model, "rope.dimension_count").text, hp->n_rot);
    return 0;
}

/* ------------------------------------------------------------------------------------------------ binding */

struct binder {
    struct butler_model *model;
    const struct butler_arch *arch;
    int64_t dims[BUTLER_N_DIMS];
    struct butler_error *err;
};

static void fill_dims(struct binder *b)
{
    const struct butler_hparams *hp = &b->model->hp;
    int64_t q = (int64_t)hp->n_heads * hp->head_dim, kv = (int64_t)hp->n_kv_heads * hp->head_dim;
    b->dims[BUTLER_DIM_NONE] = 0;
    b->dims[BUTLER_DIM_EMBD] = hp->n_embd;
    b->dims[BUTLER_DIM_FF] = hp->n_ff;
    b->dims[BUTLER_DIM_2FF] = 2 * (int64_t)hp->n_ff;
    b->dims[BUTLER_DIM_Q] = q;
    b->dims[BUTLER_DIM_KV] = kv;
    b->dims[BUTLER_DIM_Q_KV] = q + kv;
    b->dims[BUTLER_DIM_QKV] = q + 2 * kv;
    b->dims[BUTLER_DIM_HEAD] = hp->head_dim;
    b->dims[BUTLER_DIM_ONE] = 1;
    b->dims[BUTLER_DIM_HEADS] = hp->n_heads;
    b->dims[BUTLER_DIM_EXPERTS] = hp->n_experts;
    b->dims[BUTLER_DIM_EXPERT_FF] = hp->n_expert_ff;
    b->dims[BUTLER_DIM_EXPERTS_FF] = (int64_t)hp->n_experts * hp->n_expert_ff;
    b->dims[BUTLER_DIM_EXPERTS_EMBD] = (int64_t)hp->n_experts * hp->n_embd;
    b->dims[BUTLER_DIM_SHARED_FF] = hp->n_shared_ff;
    b->dims[BUTLER_DIM_Q_NORM] = hp->wide_qk_norm ? q : hp->head_dim;
    b->dims[BUTLER_DIM_K_NORM] = hp->wide_qk_norm ? kv : hp->head_dim;
    b->dims[BUTLER_DIM_Q_HEADS] = q;
    b->dims[BUTLER_DIM_KV_HEADS] = kv;
    b->dims[BUTLER_DIM_VOCAB] = hp->n_vocab;
    b->dims[BUTLER_DIM_CTX] = hp->n_ctx_train;
}

int butler_model_vector(struct butler_model *model, const struct butler_tensor *tensor, int64_t first, int64_t n, const float **out,
                        struct butler_error *err)
{
    const unsigned char *data = tensor->data;
    if (tensor->type == BUTLER_F32 && (uintptr_t)data % _Alignof(float) == 0) {
        *out = (const float *)tensor->data + first;
        return 0;
    }
    if (tensor->type != BUTLER_F32 && tensor->type != BUTLER_F16 && tensor->type != BUTLER_BF16)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: tensor '%s': a vector of type %s; expected F32, F16 or BF16",
                           model->path, tensor->name, butler_types[tensor->type].name);
    struct butler_weights *grown = realloc(model->owned_vectors, ((size_t)model->n_owned_vectors + 2) * sizeof *grown);
    if (!grown)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%.160s: tensor '%s': no memory", model->path, tensor->name);
    model->owned_vectors = grown;
    float *wide = butler_alloc((size_t)n * sizeof *wide, err);
    if (!wide)
        return BUTLER_ERROR_MEMORY;
    model->owned_vectors[model->n_owned_vectors++] = (struct butler_weights){wide, (size_t)n * sizeof *wide, BUTLER_F32};
    *out = wide;
    butler_types[tensor->type].dequantize(wide, data + butler_row_bytes(tensor->type, first), (int)n);
    return 0;
}

/* Number of parts of a tensor that holds one matrix, bias or norm for each expert or head. */
static int64_t parts_of(const struct binder *b, const struct butler_binding *binding)
{
    switch (binding->n_stored) {
    case BUTLER_DIM_EXPERTS_FF:
    case BUTLER_DIM_EXPERTS_EMBD:
        return b->dims[BUTLER_DIM_EXPERTS];
    case BUTLER_DIM_Q_HEADS:
        return b->model->hp.n_heads;
    case BUTLER_DIM_KV_HEADS:
        return b->model->hp.n_kv_heads;
    default:
        return 1;
    }
}

static int check_shape(struct binder *b, const struct butler_binding *binding, const struct butler_tensor *tensor)
{
    int64_t n_stored = b->dims[binding->n_stored], n_cols = b->dims[binding->n_cols];
    bool vector = binding->n_cols == BUTLER_DIM_NONE;
    const int64_t n_parts = parts_of(b, binding); /* more than 1: one more dimension */
    bool fits = vector ? tensor->n_cols == n_stored / n_parts && tensor->n_rows == n_parts
                       : tensor->n_cols == n_cols && tensor->dims[1] == n_stored / n_parts && tensor->n_rows == n_stored;
    if (fits)
        return 0;
    char has[96];
    int n = snprintf(has, sizeof has, "[%lld", (long long)tensor->dims[0]);
    for (int d = 1; d < tensor->n_dims && n < (int)sizeof has; d++)
        n += snprintf(has + n, sizeof has - (size_t)n, ", %lld", (long long)tensor->dims[d]);
    if (vector && n_parts > 1)
        return butler_fail(b->err, BUTLER_ERROR_FORMAT, "%.160s: tensor '%s': shape %s], %s needs [%lld, %lld]", b->model->path,
                           tensor->name, has, b->arch->name, (long long)(n_stored / n_parts), (long long)n_parts);
    if (vector)
        return butler_fail(b->err, BUTLER_ERROR_FORMAT, "%.160s: tensor '%s': shape %s], %s needs [%lld]", b->model->path,
                           tensor->name, has, b->arch->name, (long long)n_stored);
    return butler_fail(b->err, BUTLER_ERROR_FORMAT, "%.160s: tensor '%s': shape %s], %s needs [%lld, %lld]", b->model->path,
                       tensor->name, has, b->arch->name, (long long)n_cols, (long long)n_stored);
}

/* The pointer that a binding fills; not NULL if an earlier alternative has filled it. */
static const void *bound(const struct butler_binding *binding, const void *place)
{
    const struct butler_matrix *matrix = place;
    const struct butler_vector *vector = place;
    switch (binding->part) {
    case BUTLER_PART_MATRIX:
        return matrix->data;
    case BUTLER_PART_BIAS:
        return matrix->bias;
    case BUTLER_PART_WEIGHT:
        return vector->weight;
    case BUTLER_PART_SHIFT:
        return vector->bias;
    case BUTLER_PART_NUMBERS:
        return *(const float *const *)place;
    default:
        return NULL;
    }
}

/* Another name that could have filled the same place: an earlier row of the table. NULL: there is none. */
static const char *alternative(const struct butler_binding *table, const struct butler_binding *binding)
{
    for (const struct butler_binding *row = table; row < binding; row++)
        if (row->part == binding->part && row->where == binding->where)
            return row->name;
    return NULL;
}

static int bind_one(struct binder *b, const struct butler_binding *table, const struct butler_binding *binding, const char *name,
                    void *place)
{
    if (binding->part == BUTLER_PART_OTHER || bound(binding, place))
        return 0;
    const struct butler_tensor *tensor = butler_gguf_find(b->model->gguf, name);
    if (!tensor && binding->optional)
        return 0;
    const char *other = tensor ? NULL : alternative(table, binding);
    if (!tensor)
        return butler_fail(b->err, BUTLER_ERROR_FORMAT, "%.160s: tensor '%s' is missing%s%s%s", b->model->path, name,
                           other ? ", and so is '" : "", other ? other : "", other ? "'" : "");
    int rc = check_shape(b, binding, tensor);
    if (rc < 0)
        return rc;
    int64_t first = b->dims[binding->first], n_rows = b->dims[binding->n_rows];
    if (binding->part == BUTLER_PART_MATRIX) {
        struct butler_matrix *matrix = place;
        matrix->type = tensor->type;
        matrix->n_rows = (int)n_rows;
        matrix->n_cols = (int)tensor->n_cols;
        matrix->row_bytes = tensor->row_bytes;
        matrix->data = (const unsigned char *)tensor->data + (size_t)first * tensor->row_bytes;
        return 0;
    }
    const float *vector;
    if ((rc = butler_model_vector(b->model, tensor, first, n_rows, &vector, b->err)) < 0)
        return rc;
    if (binding->part == BUTLER_PART_BIAS)
        ((struct butler_matrix *)place)->bias = vector;
    else if (binding->part == BUTLER_PART_NUMBERS)
        *(const float **)place = vector;
    else if (binding->part == BUTLER_PART_WEIGHT)
        *(struct butler_vector *)place = (struct butler_vector){vector, NULL, (int)parts_of(b, binding)};
    else
        ((struct butler_vector *)place)->bias = vector;
    return 0;
}

static int bind_tensors(struct binder *b)
{
    struct butler_model *model = b->model;
    int rc;
    const struct butler_binding *table = butler_arch_model(b->arch);
    for (const struct butler_binding *binding = table; binding->name; binding++)
        if ((rc = bind_one(b, table, binding, binding->name, (char *)model + binding->where)) < 0)
            return rc;
    if (!model->output.data) {
        const float *bias = model->output.bias;
        model->output = model->tok_embd;
        model->output.bias = bias;
    }
    table = butler_arch_layer(b->arch, &model->hp);
    for (int l = 0; l < model->hp.n_layers; l++)
        for (const struct butler_binding *binding = table; binding->name; binding++) {
            char name[96];
            snprintf(name, sizeof name, "blk.%d.%s", l, binding->name);
            if ((rc = bind_one(b, table, binding, name, (char *)&model->layers[l] + binding->where)) < 0)
                return rc;
        }
    return 0;
}

static bool in_table(const struct butler_binding *table, const char *name)
{
    for (; table->name; table++)
        if (strcmp(table->name, name) == 0)
            return true;
    return false;
}

static int refuse_strangers(struct binder *b)
{
    for (int64_t i = 0; i < butler_gguf_n_tensors(b->model->gguf); i++) {
        const char *name = butler_gguf_tensor(b->model->gguf, i)->name;
        char head[32];
        int layer, n = 0;
        /* The number is printed again to distinguish "blk.7." from "blk.07.". */
        bool in_layer = sscanf(name, "blk.%9d.%n", &layer, &n) == 1 && n > 0 && layer >= 0 && layer < b->model->hp.n_layers &&
                        snprintf(head, sizeof head, "blk.%d.", layer) == n && strncmp(head, name, (size_t)n) == 0;
        if (in_layer ? in_table(butler_arch_layer(b->arch, &b->model->hp), name + n) : in_table(butler_arch_model(b->arch), name))
            continue;
        return butler_fail(b->err, BUTLER_ERROR_UNSUPPORTED, "%.160s: tensor '%s' has no place in a %s model of %d layers",
                           b->model->path, name, b->arch->name, b->model->hp.n_layers);
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------------- info */

static uint64_t matrix_bytes(const struct butler_matrix *matrix)
{
    uint64_t n = matrix->data ? (uint64_t)matrix->n_rows * matrix->row_bytes : 0;
    return n + (matrix->bias ? 4 * (uint64_t)matrix->n_rows : 0);
}

static uint64_t vector_bytes(const struct butler_vector *vector, int n)
{
    return 4 * (uint64_t)n * (uint64_t)BUTLER_MAX(vector->n_parts, 1) * ((vector->weight != NULL) + (vector->bias != NULL));
}

/* What one step reads: every matrix and vector once, and one row of the embedding. */
static uint64_t step_bytes(const struct butler_model *model)
{
    uint64_t n = model->tok_embd.row_bytes + matrix_bytes(&model->output) + vector_bytes(&model->output_norm, model->hp.n_embd);
    if (model->pos_embd.data)
        n += model->pos_embd.row_bytes;
    for (int l = 0; l < model->hp.n_layers; l++) {
        const struct butler_layer *layer = &model->layers[l];
        n += matrix_bytes(&layer->wq) + matrix_bytes(&layer->wk) + matrix_bytes(&layer->wv) + matrix_bytes(&layer->wo) +
             matrix_bytes(&layer->w_gate) + matrix_bytes(&layer->w_up) + matrix_bytes(&layer->w_down) +
             matrix_bytes(&layer->router) + matrix_bytes(&layer->shared_gate);
        if (layer->router.data)
            n += (matrix_bytes(&layer->expert_gate) + matrix_bytes(&layer->expert_up) + matrix_bytes(&layer->expert_down)) *
                 (uint64_t)model->hp.n_experts_used / (uint64_t)model->hp.n_experts;
        n += vector_bytes(&layer->attn_norm, model->hp.n_embd) + vector_bytes(&layer->ffn_norm, model->hp.n_embd) +
             vector_bytes(&layer->attn_post_norm, model->hp.n_embd) + vector_bytes(&layer->ffn_post_norm, model->hp.n_embd) +
             vector_bytes(&layer->q_norm, model->hp.head_dim) + vector_bytes(&layer->k_norm, model->hp.head_dim);
    }
    return n;
}

static int fill_info(struct butler_model *model, struct butler_error *err)
{
    struct butler_model_info *info = &model->info;
    const struct butler_hparams *hp = &model->hp;
    int rc;
    info->struct_size = sizeof *info;
    info->name = "";
    if ((rc = butler_gguf_string(model->gguf, "general.name", false, &info->name, err)) < 0 ||
        (rc = butler_gguf_string(model->gguf, "tokenizer.chat_template", false, &info->chat_template, err)) < 0)
        return rc;
    info->n_layers = hp->n_layers;
    info->n_embd = hp->n_embd;
    info->n_ff = hp->n_ff;
    info->n_heads = hp->n_heads;
    info->n_kv_heads = hp->n_kv_heads;
    info->head_dim = hp->head_dim;
    info->n_vocab = hp->n_vocab;
    info->n_ctx_train = hp->n_ctx_train;
    info->n_windowed = hp->n_windowed;
    info->window = hp->n_windowed > 0 ? hp->window : 0;
    uint64_t by_type[BUTLER_N_TYPES] = {0};
    for (int64_t i = 0; i < butler_gguf_n_tensors(model->gguf); i++) {
        const struct butler_tensor *tensor = butler_gguf_tensor(model->gguf, i);
        info->n_params += (uint64_t)tensor->n_rows * (uint64_t)tensor->n_cols;
        info->weight_bytes += (uint64_t)tensor->n_rows * tensor->row_bytes;
        by_type[tensor->type] += (uint64_t)tensor->n_rows * (uint64_t)tensor->n_cols;
    }
    int largest = 0;
    for (int t = 1; t < BUTLER_N_TYPES; t++)
        if (by_type[t] > by_type[largest])
            largest = t;
    info->file_type = butler_types[largest].name;
    info->step_weight_bytes = step_bytes(model);
    info->rope_scaling = model->rope_given.text;
    return 0;
}

/* Another fingerprint where another scaling of positions was given. */
static uint64_t with_scaling(const struct butler_model *model, uint64_t fingerprint)
{
    const char *text = model->rope_given.text;
    return *text ? XXH3_64bits_withSeed(text, strlen(text), fingerprint) : fingerprint;
}

int butler_model_bind(struct butler_model *model, struct butler_error *err)
{
    const char *name;
    int rc = butler_gguf_string(model->gguf, "general.architecture", true, &name, err);
    if (rc < 0)
        return rc;
    const struct butler_arch *arch = butler_arch_find(name);
    if (!arch)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: key 'general.architecture': '%.64s' is none of %s", model->path,
                           name, butler_arch_names());
    model->info.architecture = arch->name;
    if ((rc = read_hparams(model, arch, err)) < 0)
        return rc;
    /* Each layer has tensors, so the size of the file bounds the allocation for a claimed number of layers. */
    if (model->hp.n_layers > butler_gguf_n_tensors(model->gguf))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %d layers, the file has %lld tensors", model->path,
                           butler_arch_key(model, "block_count").text, model->hp.n_layers,
                           (long long)butler_gguf_n_tensors(model->gguf));
    model->layers = butler_alloc((size_t)model->hp.n_layers * sizeof *model->layers, err);
    if (!model->layers)
        return BUTLER_ERROR_MEMORY;
    if ((rc = butler_model_variants(model, arch, err)) < 0)
        return rc;
    struct binder binder = {.model = model, .arch = arch, .err = err};
    fill_dims(&binder);
    if ((rc = bind_tensors(&binder)) < 0 || (rc = refuse_strangers(&binder)) < 0 || (rc = butler_rope_init(model, err)) < 0 ||
        (rc = butler_key_shifts_init(model, err)) < 0 || (rc = fill_info(model, err)) < 0)
        return rc;
    model->sampled_fingerprint = with_scaling(model, butler_gguf_sampled_fingerprint(model->gguf));
    return 0;
}

/* Threads that come here at the same time all read the file, and find the same. */
int butler_model_fingerprint(struct butler_model *model, uint64_t *fingerprint, struct butler_error *err)
{
    if (BUTLER_IS_NULL(model, err) || BUTLER_IS_NULL(fingerprint, err))
        return BUTLER_ERROR_ARGUMENT;
    if (!__atomic_load_n(&model->has_fingerprint, __ATOMIC_ACQUIRE)) {
        uint64_t found;
        const int code = butler_gguf_fingerprint(model->gguf, model->cache_folder, &found, err);
        if (code < 0)
            return code;
        __atomic_store_n(&model->fingerprint, with_scaling(model, found), __ATOMIC_RELAXED);
        __atomic_store_n(&model->has_fingerprint, true, __ATOMIC_RELEASE);
    }
    *fingerprint = __atomic_load_n(&model->fingerprint, __ATOMIC_RELAXED);
    return 0;
}

void butler_model_unbind(struct butler_model *model)
{
    if (!model)
        return;
    for (int i = 0; i < model->n_owned_vectors; i++)
        free((void *)model->owned_vectors[i].data);
    free(model->owned_vectors);
    free(model->layers);
    free(model->key_shifts);
    free(model->rope_freq);
    free(model->rope_freq_long);
    free(model->rope_freq_local);
    model->owned_vectors = NULL;
    model->n_owned_vectors = 0;
    model->layers = NULL;
    model->key_shifts = NULL;
    model->rope_freq = model->rope_freq_long = model->rope_freq_local = NULL;
}

struct butler_weights *butler_model_weights(const struct butler_model *model, int *n, struct butler_error *err)
{
    const int64_t n_tensors = butler_gguf_n_tensors(model->gguf);
    struct butler_weights *weights = butler_alloc(((size_t)n_tensors + (size_t)model->n_owned_vectors + 1) * sizeof *weights, err);
    *n = 0;
    for (int64_t i = 0; weights && i < n_tensors; i++) {
        const struct butler_tensor *tensor = butler_gguf_tensor(model->gguf, i);
        weights[(*n)++] = (struct butler_weights){tensor->data, (size_t)tensor->n_rows * tensor->row_bytes, tensor->type};
    }
    for (int i = 0; weights && i < model->n_owned_vectors; i++)
        weights[(*n)++] = model->owned_vectors[i];
    if (weights && model->key_shifts)
        weights[(*n)++] = (struct butler_weights){
            model->key_shifts, (size_t)(model->hp.n_layers * model->hp.n_kv_heads * model->hp.head_dim) * sizeof(float),
            BUTLER_F32};
    return weights;
}
