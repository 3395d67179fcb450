/* A predictor's sizes, its parameters by name, and its file. */
#include "model/predictor.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARCHITECTURE BUTLER_PREDICTOR_ARCHITECTURE
#define KEY(name) ARCHITECTURE "." name
#define HEAD_FREQ "rope_freq" /* the parameter */
/* Fingerprints of the model as 16 hexadecimal digits: of the whole file, and as version 0.1 wrote it. */
#define WHOLE_KEY KEY("model_xxh3")
#define SAMPLED_KEY KEY("model_fingerprint")

enum { MAX_DIM = 1 << 20, MAX_LAYERS = 4096 };

/* ------------------------------------------------------------------------------------------------- sizes */

struct butler_predictor_sizes butler_predictor_sizes_for(const struct butler_model *model, int version)
{
    const struct butler_hparams *hp = &model->hp;
    struct butler_predictor_sizes sizes = {
        .version = version,
        .n_layers = hp->n_layers,
        .n_embd = hp->n_embd,
        .n_heads = hp->n_heads,
        .n_kv_heads = hp->n_kv_heads,
        .head_dim = hp->head_dim,
        .d = hp->n_embd >= 4096 ? 32 : 16,
        .n_mid = BUTLER_MIN(BUTLER_MAX(hp->n_embd / 4 / 32 * 32, 64), 1024),
        .n_key_heads = hp->n_kv_heads,
    };
    if (version == 1) {
        sizes.n_inner = BUTLER_MAX(hp->n_embd / 8 / 2 * 2, 2);
        sizes.n_inner_heads = sizes.n_inner % (2 * hp->n_heads) == 0 ? hp->n_heads : 1;
        sizes.rope_base = hp->rope_theta > 0 ? hp->rope_theta : 10000;
    } else
        sizes.stride = 4;
    butler_predictor_rotate(&sizes, model, BUTLER_PREDICTOR_TEXT);
    return sizes;
}

struct butler_predictor_pair butler_predictor_pair_of(const struct butler_model *model, int layer, int i)
{
    const struct butler_hparams *hp = &model->hp;
    const int n_rotated = model->rope_freq ? hp->n_rot / 2 : 0;
    if (i >= n_rotated)
        return (struct butler_predictor_pair){2 * i, 2 * i + 1, 0};
    const enum butler_layer_rope rope = model->layers[layer].rope;
    const float *freq = rope == BUTLER_LAYER_ROTATES_LOCAL ? model->rope_freq_local : model->rope_freq;
    struct butler_predictor_pair pair = {i, i + n_rotated, rope == BUTLER_LAYER_UNROTATED ? 0 : freq[i]};
    if (hp->rope == BUTLER_ROPE_ADJACENT)
        pair = (struct butler_predictor_pair){2 * i, 2 * i + 1, pair.freq};
    return pair;
}

static bool completes_turn(float freq, int n_tokens)
{
    return freq * (float)n_tokens >= 6.2831853f;
}

void butler_predictor_rotate(struct butler_predictor_sizes *sizes, const struct butler_model *model, int n_tokens)
{
    memset(sizes->rope_freq, 0, sizeof sizes->rope_freq);
    if (sizes->version == 1) {
        sizes->rope_length = n_tokens;
        return;
    }
    for (int i = 0; model->rope_freq && i < BUTLER_MIN(sizes->d / 2, BUTLER_COUNT(sizes->rope_freq)); i++) {
        const float freq = model->rope_freq[i * model->hp.n_rot / sizes->d];
        sizes->rope_freq[i] = completes_turn(freq, n_tokens) ? freq : 0;
    }
}

void butler_predictor_frequencies(const struct butler_predictor_sizes *sizes, int dim, float *freq)
{
    for (int i = 0; i < dim / 2; i++) {
        freq[i] = (float)pow((double)sizes->rope_base, -2.0 * i / dim);
        if (sizes->rope_length > 0 && !completes_turn(freq[i], sizes->rope_length))
            freq[i] = 0;
    }
}

int butler_predictor_window(const struct butler_predictor_sizes *sizes)
{
    enum { LENGTHS = 4 };
    const int length = sizes->rope_length;
    return length > 0 && length <= INT32_MAX / LENGTHS ? LENGTHS * length : INT32_MAX;
}

bool butler_predictor_rotates(const struct butler_predictor_sizes *sizes)
{
    bool any = sizes->version == 1 || sizes->head_freq;
    for (int i = 0; i < sizes->d / 2; i++)
        any = any || sizes->rope_freq[i] != 0;
    return any;
}

int butler_predictor_serves(const struct butler_predictor_sizes *sizes, int producer, int *first)
{
    const int last = sizes->n_layers - 1;
    if (producer < 0 || (sizes->version == 1 && producer > 0))
        return 0;
    *first = sizes->version == 1 ? 1 : producer * sizes->stride + 1;
    return sizes->version == 1 ? last : BUTLER_MIN(BUTLER_MAX(last - *first + 1, 0), sizes->stride);
}

static bool within(int value, int min, int max)
{
    return value >= min && value <= max;
}

/* name: the file, or a replacement for it in errors. */
static int check_sizes(const struct butler_predictor_sizes *s, const char *name, int code, struct butler_error *err)
{
    if (s->version != 1 && s->version != 2)
        return butler_fail(err, code, "%s: predictor version %d: there are 1 and 2", name, s->version);
    if (!within(s->n_layers, 2, MAX_LAYERS) || !within(s->n_embd, 1, MAX_DIM) || !within(s->n_heads, 1, MAX_DIM) ||
        !within(s->n_kv_heads, 1, s->n_heads) || s->n_heads % s->n_kv_heads || !within(s->head_dim, 1, MAX_DIM))
        return butler_fail(err, code, "%s: no predictor for a model of %d layers, width %d, %d heads, %d KV heads of %d", name,
                           s->n_layers, s->n_embd, s->n_heads, s->n_kv_heads, s->head_dim);
    if (!within(s->d, 4, BUTLER_PREDICTOR_MAX_D) || s->d % 4)
        return butler_fail(err, code, "%s: predicted heads of %d: a multiple of 4 up to %d", name, s->d, BUTLER_PREDICTOR_MAX_D);
    if (!within(s->n_mid, 1, MAX_DIM) || !within((int)s->input, 0, 1))
        return butler_fail(err, code, "%s: n_mid %d or input %d is impossible", name, s->n_mid, (int)s->input);
    if (s->version == 1 &&
        (!within(s->n_inner, 2, MAX_DIM) || !within(s->n_inner_heads, 1, s->n_inner / 2) || s->n_inner % (2 * s->n_inner_heads)))
        return butler_fail(err, code, "%s: %d inner heads do not divide an inner width of %d into even parts", name,
                           s->n_inner_heads, s->n_inner);
    if (s->n_key_heads != s->n_kv_heads && (s->version == 2 || s->n_key_heads != s->n_heads))
        return butler_fail(err, code, "%s: %d key heads for %d heads, %d KV heads", name, s->n_key_heads, s->n_heads,
                           s->n_kv_heads);
    if (s->version == 1 && !(s->rope_base > 1 && s->rope_base < 1e12f))
        return butler_fail(err, code, "%s: rope base %g", name, (double)s->rope_base);
    if (!within(s->rope_length, 0, s->version == 1 ? INT32_MAX : 0))
        return butler_fail(err, code, "%s: rope_length %d in version %d", name, s->rope_length, s->version);
    if (s->head_freq && s->version != 2)
        return butler_fail(err, code, "%s: version %d has no frequencies of heads", name, s->version);
    if (s->version == 2 && !within(s->stride, 1, MAX_LAYERS))
        return butler_fail(err, code, "%s: stride %d", name, s->stride);
    for (int i = 0; i < s->d / 2; i++)
        if (!(s->rope_freq[i] >= 0 && s->rope_freq[i] <= 10) || (s->version == 1 && s->rope_freq[i] != 0))
            return butler_fail(err, code, "%s: rope_freq: %g radians a position for pair %d of version %d", name,
                               (double)s->rope_freq[i], i, s->version);
    return 0;
}

/* ------------------------------------------------------------------------------------------- parameters */

/* Called twice: with params NULL it only counts them. */
struct list {
    struct butler_predictor_param *params;
    int n;
};

static void add(struct list *list, int n_rows, int n_cols, const char *format, ...) __attribute__((format(printf, 4, 5)));
static void add(struct list *list, int n_rows, int n_cols, const char *format, ...)
{
    if (list->params) {
        struct butler_predictor_param *param = &list->params[list->n];
        va_list args;
        va_start(args, format);
        vsnprintf(param->name, sizeof param->name, format, args);
        va_end(args);
        param->n_rows = n_rows;
        param->n_cols = n_cols;
    }
    list->n++;
}

static void list_params(const struct butler_predictor_sizes *s, struct list *list)
{
    const int layers = s->n_layers - 1, inner = s->n_inner;
    int first, n_served;
    if (s->version == 1) {
        add(list, inner, s->n_embd, "down.weight");
        add(list, inner, inner, "attn_q.weight");
        add(list, inner, inner, "attn_k.weight");
        add(list, inner, inner, "attn_v.weight");
        add(list, 1, inner, "norm.weight");
        add(list, 1, inner, "norm.bias");
        add(list, 2 * inner, inner, "ffn_up.weight");
        add(list, 1, 2 * inner, "ffn_up.bias");
        add(list, s->n_embd, 2 * inner, "ffn_down.weight");
        add(list, 1, s->n_embd, "ffn_down.bias");
        add(list, s->n_mid, s->n_embd, "query_1.weight");
        add(list, layers * s->n_heads * s->d, s->n_mid, "query_2.weight");
        add(list, s->n_mid, s->n_embd, "key_1.weight");
        add(list, layers * s->n_key_heads * s->d, s->n_mid, "key_2.weight");
        return;
    }
    for (int b = 0; (n_served = butler_predictor_serves(s, b, &first)) > 0; b++) {
        add(list, 1, s->n_embd, "producer.%d.norm.weight", b);
        add(list, 1, s->n_embd, "producer.%d.norm.bias", b);
        add(list, s->n_mid, s->n_embd, "producer.%d.query_1.weight", b);
        add(list, n_served * s->n_heads * s->d, s->n_mid, "producer.%d.query_2.weight", b);
    }
    for (int l = 1; l <= layers; l++)
        add(list, s->n_kv_heads * s->d, s->head_dim, "key.%d.weight", l);
    if (s->head_freq)
        add(list, 1, layers * s->n_kv_heads * s->d / 2, HEAD_FREQ);
}

static bool is_vector(const struct butler_predictor_param *param)
{
    return strstr(param->name, "norm.") || strstr(param->name, ".bias") || !strcmp(param->name, HEAD_FREQ);
}

const float *butler_predictor_layer_freq(const struct butler_predictor *predictor, int layer, int *n_sets)
{
    const struct butler_predictor_sizes *s = &predictor->sizes;
    *n_sets = s->head_freq ? s->n_kv_heads : 1;
    if (!s->head_freq)
        return s->rope_freq;
    const float *all = predictor->params[predictor->n_params - 1].matrix.data;
    return all + (size_t)(layer - 1) * (size_t)(s->n_kv_heads * s->d / 2);
}

const struct butler_predictor_param *butler_predictor_find(const struct butler_predictor *predictor, const char *name)
{
    for (int i = 0; i < predictor->n_params; i++)
        if (!strcmp(predictor->params[i].name, name))
            return &predictor->params[i];
    return NULL;
}

/* A predictor with its list of parameters, but without their values. */
static struct butler_predictor *make(const struct butler_predictor_sizes *sizes, const char *name, struct butler_error *err)
{
    struct list list = {NULL, 0};
    struct butler_predictor *predictor = butler_alloc(sizeof *predictor, err);
    if (!predictor)
        return NULL;
    predictor->sizes = *sizes;
    list_params(sizes, &list);
    predictor->n_params = list.n;
    list = (struct list){butler_alloc((size_t)list.n * sizeof *list.params, err), 0};
    predictor->params = list.params;
    if (!list.params)
        goto fail;
    list_params(sizes, &list);
    for (int i = 0; i < list.n; i++) {
        size_t n;
        const struct butler_predictor_param *param = &list.params[i];
        if (param->n_rows < 1 || !butler_mul_size((size_t)param->n_rows, (size_t)param->n_cols, &n) || n > (size_t)1 << 34) {
            butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s would have %d rows of %d", name, param->name, param->n_rows,
                        param->n_cols);
            goto fail;
        }
        predictor->n_weights += n;
    }
    return predictor;
fail:
    butler_predictor_free(predictor);
    return NULL;
}

/* Allocates the values as floats, and makes the matrices refer to them. */
static int make_weights(struct butler_predictor *predictor, struct butler_error *err)
{
    float *at = butler_alloc(predictor->n_weights * sizeof *at, err);
    if (!at)
        return BUTLER_ERROR_MEMORY;
    predictor->weights = at;
    for (int i = 0; i < predictor->n_params; i++) {
        struct butler_predictor_param *param = &predictor->params[i];
        param->data = at;
        param->matrix =
            (struct butler_matrix){BUTLER_F32, param->n_rows, param->n_cols, (size_t)param->n_cols * sizeof *at, param->data, NULL};
        at += (size_t)param->n_rows * (size_t)param->n_cols;
    }
    predictor->run_bytes = predictor->n_weights * sizeof *at;
    return 0;
}

struct butler_predictor *butler_predictor_new(const struct butler_predictor_sizes *sizes, uint64_t seed, struct butler_error *err)
{
    struct butler_predictor *predictor = NULL;
    uint64_t random = seed;
    if (check_sizes(sizes, "a new predictor", BUTLER_ERROR_ARGUMENT, err) < 0 ||
        !(predictor = make(sizes, "a new predictor", err)) || make_weights(predictor, err) < 0)
        goto fail;
    for (int i = 0; i < predictor->n_params; i++) {
        const struct butler_predictor_param *param = &predictor->params[i];
        const size_t n = (size_t)param->n_rows * (size_t)param->n_cols;
        const float bound = sqrtf(6.0f / (float)(param->n_rows + param->n_cols));
        for (size_t j = 0; j < n; j++)
            param->data[j] = !strcmp(param->name, HEAD_FREQ) ? sizes->rope_freq[j % (size_t)(sizes->d / 2)]
                             : is_vector(param)              ? (strstr(param->name, ".bias") ? 0.0f : 1.0f)
                                                             : bound * (2 * butler_random_float(&random) - 1);
    }
    return predictor;
fail:
    butler_predictor_free(predictor);
    return NULL;
}

void butler_predictor_free(struct butler_predictor *predictor)
{
    if (!predictor)
        return;
    butler_gguf_free(predictor->gguf);
    free(predictor->params);
    free(predictor->weights);
    free(predictor);
}

/* ----------------------------------------------------------------------------------------------- writing */

static enum butler_type type_of(const struct butler_predictor_param *param, enum butler_type type)
{
    if (is_vector(param))
        return BUTLER_F32;
    return type != BUTLER_F32 && param->n_cols % 32 ? BUTLER_F16 : type;
}

/* The keys of the file in the order in which they are written; the reader uses the same table. */
static const struct size_key {
    const char *name;
    size_t offset;
    int version; /* 0: both */
} size_keys[] = {
#define SIZE(field, version)                                                                                                       \
    {                                                                                                                              \
        KEY(#field), offsetof(struct butler_predictor_sizes, field), version                                                       \
    }
    SIZE(version, 0),       SIZE(input, 0),       SIZE(n_layers, 0), SIZE(n_embd, 0), SIZE(n_heads, 0),
    SIZE(n_kv_heads, 0),    SIZE(head_dim, 0),    SIZE(d, 0),        SIZE(n_mid, 0),  SIZE(n_inner, 1),
    SIZE(n_inner_heads, 1), SIZE(n_key_heads, 0), SIZE(stride, 2),
#undef SIZE
};

static int put_values(struct butler_gguf_writer *writer, const struct butler_predictor *predictor, struct butler_error *err)
{
    const struct butler_predictor_sizes *s = &predictor->sizes;
    const struct butler_predictor_training *training = &predictor->training;
    char fingerprint[17];
    int code = butler_gguf_put_string(writer, "general.architecture", ARCHITECTURE, err);
    for (int i = 0; i < BUTLER_COUNT(size_keys) && code == 0; i++) {
        int value;
        memcpy(&value, (const char *)s + size_keys[i].offset, sizeof value);
        if (size_keys[i].version == 0 || size_keys[i].version == s->version)
            code = butler_gguf_put_int(writer, size_keys[i].name, BUTLER_GGUF_U32, value, err);
    }
    snprintf(fingerprint, sizeof fingerprint, "%016" PRIx64, predictor->model_fingerprint);
    if (code == 0 && s->version == 1)
        code = butler_gguf_put_float(writer, KEY("rope_base"), s->rope_base, err);
    if (code == 0 && s->rope_length > 0)
        code = butler_gguf_put_int(writer, KEY("rope_length"), BUTLER_GGUF_U32, s->rope_length, err);
    if (code == 0 && s->version == 2 && !s->head_freq && butler_predictor_rotates(s))
        code = butler_gguf_put_array(writer, KEY("rope_freq"), BUTLER_GGUF_FLOAT32, s->rope_freq, (uint64_t)(s->d / 2), err);
    if (code < 0 ||
        (code = butler_gguf_put_string(writer, predictor->model_sampled ? SAMPLED_KEY : WHOLE_KEY, fingerprint, err)) < 0 ||
        (code = butler_gguf_put_int(writer, KEY("training.n_tokens"), BUTLER_GGUF_I64, training->n_tokens, err)) < 0 ||
        (code = butler_gguf_put_int(writer, KEY("training.n_steps"), BUTLER_GGUF_I64, training->n_steps, err)) < 0 ||
        (code = butler_gguf_put_float(writer, KEY("training.loss"), (float)training->loss, err)) < 0)
        return code;
    return butler_gguf_put_string(writer, KEY("training.text"), training->text, err);
}

static int put_param(struct butler_gguf_writer *writer, const struct butler_predictor_param *param, enum butler_type type,
                     struct butler_error *err)
{
    const size_t row_bytes = butler_row_bytes(type, param->n_cols);
    unsigned char *row = butler_alloc(row_bytes, err);
    int code = row ? 0 : BUTLER_ERROR_MEMORY;
    for (int r = 0; r < param->n_rows && code == 0; r++) {
        butler_quantize_row(type, row, param->data + (size_t)r * (size_t)param->n_cols, param->n_cols);
        code = butler_gguf_put_data(writer, row, row_bytes, err);
    }
    free(row);
    return code;
}

int butler_predictor_save(const struct butler_predictor *predictor, const char *path, enum butler_type type,
                          struct butler_error *err)
{
    if (type != BUTLER_F32 && type != BUTLER_F16 && type != BUTLER_Q8_0 && type != BUTLER_Q4_0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: a predictor is written as F32, F16, Q8_0 or Q4_0", path);
    if (!predictor->weights)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: a predictor that was opened to be run cannot be written", path);
    for (size_t i = 0; i < predictor->n_weights; i++)
        if (!isfinite(predictor->weights[i]))
            return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: the predictor's weight %zu is not a number", path, i);
    struct butler_gguf_writer *writer = butler_gguf_writer_new(path, err);
    if (!writer)
        return BUTLER_ERROR_IO;
    int code = put_values(writer, predictor, err);
    for (int i = 0; i < predictor->n_params && code == 0; i++) {
        const struct butler_predictor_param *param = &predictor->params[i];
        const int64_t dims[2] = {param->n_cols, param->n_rows};
        code = butler_gguf_put_tensor(writer, param->name, type_of(param, type), is_vector(param) ? 1 : 2, dims, err);
    }
    for (int i = 0; i < predictor->n_params && code == 0; i++)
        code = put_param(writer, &predictor->params[i], type_of(&predictor->params[i], type), err);
    if (code == 0)
        code = butler_gguf_writer_commit(writer, err);
    butler_gguf_writer_free(writer);
    return code;
}

/* ----------------------------------------------------------------------------------------------- reading */

/* Absent: queries are not rotated, or each KV head has frequencies of its own. */
static int read_frequencies(const struct butler_gguf *gguf, struct butler_predictor_sizes *sizes, struct butler_error *err)
{
    const struct butler_gguf_value *value = butler_gguf_value(gguf, KEY("rope_freq"));
    const int n = BUTLER_MIN(sizes->d / 2, BUTLER_COUNT(sizes->rope_freq));
    sizes->head_freq = butler_gguf_find(gguf, HEAD_FREQ) != NULL;
    if (!value)
        return 0;
    if (value->type != BUTLER_GGUF_ARRAY || value->element_type != BUTLER_GGUF_FLOAT32 || value->n != (uint64_t)n)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: key '%s' is not an array of %d float32", butler_gguf_path(gguf),
                           value->key, n);
    for (int i = 0; i < n; i++)
        sizes->rope_freq[i] = butler_gguf_array_float(value, (uint64_t)i);
    return 0;
}

static int read_sizes(const struct butler_gguf *gguf, struct butler_predictor_sizes *sizes, struct butler_error *err)
{
    const char *architecture;
    double rope_base = 0;
    int64_t rope_length = 0;
    int code = butler_gguf_string(gguf, "general.architecture", true, &architecture, err);
    if (code < 0)
        return code;
    if (strcmp(architecture, ARCHITECTURE) != 0)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: general.architecture is \"%.40s\", not " ARCHITECTURE,
                           butler_gguf_path(gguf), architecture);
    for (int i = 0; i < BUTLER_COUNT(size_keys); i++) {
        int64_t value = 0;
        int number;
        if (size_keys[i].version != 0 && size_keys[i].version != sizes->version)
            continue;
        if ((code = butler_gguf_int(gguf, size_keys[i].name, true, 0, MAX_DIM, &value, err)) < 0)
            return code;
        number = (int)value;
        memcpy((char *)sizes + size_keys[i].offset, &number, sizeof number);
    }
    if (sizes->version == 1 && ((code = butler_gguf_float(gguf, KEY("rope_base"), true, &rope_base, err)) < 0 ||
                                (code = butler_gguf_int(gguf, KEY("rope_length"), false, 0, INT32_MAX, &rope_length, err)) < 0))
        return code;
    sizes->rope_base = (float)rope_base;
    sizes->rope_length = (int)rope_length;
    if (sizes->version == 2 && (code = read_frequencies(gguf, sizes, err)) < 0)
        return code;
    if (sizes->version == 2)
        sizes->n_key_heads = sizes->n_kv_heads;
    return check_sizes(sizes, butler_gguf_path(gguf), BUTLER_ERROR_FORMAT, err);
}

static int read_training(const struct butler_gguf *gguf, struct butler_predictor *predictor, struct butler_error *err)
{
    struct butler_predictor_training *training = &predictor->training;
    const bool sampled = predictor->model_sampled = !butler_gguf_value(gguf, WHOLE_KEY);
    const char *text = "", *fingerprint, *key = sampled ? SAMPLED_KEY : WHOLE_KEY;
    char *end;
    int code;
    if ((code = butler_gguf_int(gguf, KEY("training.n_tokens"), false, 0, INT64_MAX, &training->n_tokens, err)) < 0 ||
        (code = butler_gguf_int(gguf, KEY("training.n_steps"), false, 0, INT64_MAX, &training->n_steps, err)) < 0 ||
        (code = butler_gguf_float(gguf, KEY("training.loss"), false, &training->loss, err)) < 0 ||
        (code = butler_gguf_string(gguf, KEY("training.text"), false, &text, err)) < 0 ||
        (code = butler_gguf_string(gguf, key, true, &fingerprint, err)) < 0)
        return code;
    snprintf(training->text, sizeof training->text, "%s", text);
    predictor->model_fingerprint = strtoull(fingerprint, &end, 16);
    if (strlen(fingerprint) != 16 || *end)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %s is no 16 hexadecimal digits", butler_gguf_path(gguf), key);
    return 0;
}

static int check_model(const struct butler_predictor *predictor, struct butler_model *model, struct butler_error *err)
{
    uint64_t fingerprint = model->sampled_fingerprint;
    int code = predictor->model_sampled ? 0 : butler_model_fingerprint(model, &fingerprint, err);
    if (code < 0)
        return code;
    const struct butler_predictor_sizes *s = &predictor->sizes;
    const struct butler_hparams *hp = &model->hp;
    const char *path = butler_gguf_path(predictor->gguf);
    if (predictor->model_fingerprint != fingerprint)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s: a predictor for the model with fingerprint %016" PRIx64 "; that of %s is %016" PRIx64, path,
                           predictor->model_fingerprint, model->path, fingerprint);
    if (s->n_layers != hp->n_layers || s->n_embd != hp->n_embd || s->n_heads != hp->n_heads || s->n_kv_heads != hp->n_kv_heads ||
        s->head_dim != hp->head_dim)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: its sizes of the model are not those of %s", path, model->path);
    return 0;
}

static int bind(struct butler_predictor *predictor, struct butler_predictor_param *param, struct butler_error *err)
{
    const struct butler_tensor *tensor = butler_gguf_find(predictor->gguf, param->name);
    const char *path = butler_gguf_path(predictor->gguf);
    if (!tensor)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no tensor %s", path, param->name);
    if (tensor->n_cols != param->n_cols || tensor->n_rows != param->n_rows)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tensor %s has %lld rows of %lld, not %d of %d", path, param->name,
                           (long long)tensor->n_rows, (long long)tensor->n_cols, param->n_rows, param->n_cols);
    if (is_vector(param) && (tensor->type != BUTLER_F32 || (uintptr_t)tensor->data % sizeof(float)))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tensor %s is no aligned F32", path, param->name);
    if (!butler_types[tensor->type].dequantize)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tensor %s is of a type that weights cannot have", path, param->name);
    param->matrix = (struct butler_matrix){tensor->type, param->n_rows, param->n_cols, tensor->row_bytes, tensor->data, NULL};
    predictor->run_bytes += tensor->row_bytes * (uint64_t)tensor->n_rows;
    return 0;
}

static int check_frequencies(const struct butler_predictor *predictor, struct butler_error *err)
{
    const struct butler_predictor_param *param = &predictor->params[predictor->n_params - 1];
    const float *freq = param->matrix.data;
    for (int i = 0; predictor->sizes.head_freq && i < param->n_cols; i++)
        if (!(freq[i] >= 0 && freq[i] <= 10))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tensor %s: %g radians a position at place %d",
                               butler_gguf_path(predictor->gguf), param->name, (double)freq[i], i);
    return 0;
}

/* Converts what is bound to the mapping to floats; the mapping is not needed afterwards. */
static int widen(struct butler_predictor *predictor, struct butler_error *err)
{
    struct butler_predictor from = {.n_params = predictor->n_params};
    from.params = butler_alloc((size_t)from.n_params * sizeof *from.params, err);
    if (!from.params)
        return BUTLER_ERROR_MEMORY;
    memcpy(from.params, predictor->params, (size_t)from.n_params * sizeof *from.params);
    const int code = make_weights(predictor, err);
    for (int i = 0; i < predictor->n_params && code == 0; i++) {
        const struct butler_matrix *matrix = &from.params[i].matrix;
        for (int r = 0; r < matrix->n_rows; r++)
            butler_types[matrix->type].dequantize(predictor->params[i].data + (size_t)r * (size_t)matrix->n_cols,
                                                  (const unsigned char *)matrix->data + (size_t)r * matrix->row_bytes,
                                                  matrix->n_cols);
    }
    free(from.params);
    butler_gguf_free(predictor->gguf);
    predictor->gguf = NULL;
    return code;
}

struct butler_predictor *butler_predictor_load(const char *path, struct butler_model *model, bool trainable,
                                               struct butler_error *err)
{
    struct butler_predictor_sizes sizes = {0};
    struct butler_predictor *predictor = NULL;
    struct butler_gguf *gguf = butler_gguf_open(path, err);
    if (!gguf || read_sizes(gguf, &sizes, err) < 0 || !(predictor = make(&sizes, path, err)))
        goto fail;
    predictor->gguf = gguf;
    predictor->sampled_fingerprint = butler_gguf_sampled_fingerprint(gguf);
    gguf = NULL;
    if (butler_gguf_fingerprint(predictor->gguf, NULL, &predictor->fingerprint, err) < 0)
        goto fail;
    if (read_training(predictor->gguf, predictor, err) < 0 || (model && check_model(predictor, model, err) < 0))
        goto fail;
    for (int i = 0; i < predictor->n_params; i++)
        if (bind(predictor, &predictor->params[i], err) < 0)
            goto fail;
    if (check_frequencies(predictor, err) < 0 || (trainable && widen(predictor, err) < 0))
        goto fail;
    return predictor;
fail:
    butler_gguf_free(gguf);
    butler_predictor_free(predictor);
    return NULL;
}

uint64_t butler_predictor_step_bytes(const struct butler_predictor *predictor)
{
    uint64_t bytes = 0;
    for (int i = 0; i < predictor->n_params; i++) { /* vectors are not counted; neither are the model's */
        const struct butler_predictor_param *param = &predictor->params[i];
        if (!is_vector(param) && strncmp(param->name, "key.", 4) != 0)
            bytes += param->matrix.row_bytes * (uint64_t)param->n_rows;
    }
    return bytes;
}
