/* The file of query centres (centres.h): written by `butler calibrate`, read where an engine is given it. */
#include "model/centres.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY(name) BUTLER_CENTRES_ARCHITECTURE "." name

static const char *const names[3] = {"centre_real", "centre_imag", "abs_mean"};

enum { LAST_OFFSET = 65536 };

struct butler_predictor_pair *butler_centres_pairs(const struct butler_model *model, int *n_pairs, struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    *n_pairs = hp->head_dim / 2;
    if (model->rope_freq_long) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s rotates by other frequencies in long contexts: query centres have one set",
                    model->path);
        return NULL;
    }
    struct butler_predictor_pair *pairs = butler_alloc((size_t)hp->n_layers * (size_t)*n_pairs * sizeof *pairs, err);
    for (int l = 0; pairs && l < hp->n_layers; l++)
        for (int i = 0; i < *n_pairs; i++)
            pairs[(size_t)l * (size_t)*n_pairs + (size_t)i] = butler_predictor_pair_of(model, l, i);
    return pairs;
}

static size_t n_values(const struct butler_hparams *hp)
{
    return (size_t)hp->n_layers * (size_t)hp->n_heads * (size_t)(hp->head_dim / 2);
}

/* ----------------------------------------------------------------------------------------------- writing */

int butler_centres_save(const char *path, struct butler_model *model, int64_t n_tokens, const float *const values[3],
                        struct butler_error *err)
{
    const int64_t dims[3] = {model->hp.head_dim / 2, model->hp.n_heads, model->hp.n_layers};
    const size_t n = n_values(&model->hp);
    char digits[17];
    uint64_t fingerprint;
    int code = butler_model_fingerprint(model, &fingerprint, err);
    for (int t = 0; t < 3 && code == 0; t++)
        for (size_t i = 0; i < n && code == 0; i++)
            if (!isfinite(values[t][i]))
                code = butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: %s: value %zu is no number", path, names[t], i);
    if (code < 0)
        return code;
    struct butler_gguf_writer *writer = butler_gguf_writer_new(path, err);
    if (!writer)
        return BUTLER_ERROR_IO;
    snprintf(digits, sizeof digits, "%016" PRIx64, fingerprint);
    if ((code = butler_gguf_put_string(writer, "general.architecture", BUTLER_CENTRES_ARCHITECTURE, err)) == 0 &&
        (code = butler_gguf_put_string(writer, KEY("model_xxh3"), digits, err)) == 0)
        code = butler_gguf_put_int(writer, KEY("n_tokens"), BUTLER_GGUF_I64, n_tokens, err);
    for (int t = 0; t < 3 && code == 0; t++)
        code = butler_gguf_put_tensor(writer, names[t], BUTLER_F32, 3, dims, err);
    for (int t = 0; t < 3 && code == 0; t++)
        code = butler_gguf_put_data(writer, values[t], n * sizeof *values[t], err);
    if (code == 0)
        code = butler_gguf_writer_commit(writer, err);
    butler_gguf_writer_free(writer);
    return code;
}

/* ----------------------------------------------------------------------------------------------- reading */

static int check_model(const struct butler_gguf *gguf, struct butler_model *model, struct butler_error *err)
{
    const char *path = butler_gguf_path(gguf), *architecture, *text;
    char digits[17];
    uint64_t fingerprint;
    int code = butler_gguf_string(gguf, "general.architecture", true, &architecture, err);
    if (code < 0)
        return code;
    if (strcmp(architecture, BUTLER_CENTRES_ARCHITECTURE) != 0)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: general.architecture is \"%.40s\", not " BUTLER_CENTRES_ARCHITECTURE,
                           path, architecture);
    if ((code = butler_gguf_string(gguf, KEY("model_xxh3"), true, &text, err)) < 0 ||
        (code = butler_model_fingerprint(model, &fingerprint, err)) < 0)
        return code;
    snprintf(digits, sizeof digits, "%016" PRIx64, fingerprint);
    if (strcmp(text, digits) != 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s: query centres of the model with fingerprint %.40s; that of %s is %s: `butler calibrate` makes them",
                           path, text, model->path, digits);
    return 0;
}

/* One of the tensors into out[n_values]. */
static int read_values(const struct butler_gguf *gguf, const char *name, const struct butler_hparams *hp, float *out,
                       struct butler_error *err)
{
    const char *path = butler_gguf_path(gguf);
    const struct butler_tensor *tensor = butler_gguf_find(gguf, name);
    const size_t n = n_values(hp);
    if (!tensor)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no tensor %s", path, name);
    if (tensor->type != BUTLER_F32 || tensor->n_dims != 3 || tensor->dims[0] != hp->head_dim / 2 ||
        tensor->dims[1] != hp->n_heads || tensor->dims[2] != hp->n_layers)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tensor %s is not F32 of %d layers, %d heads and %d pairs", path, name,
                           hp->n_layers, hp->n_heads, hp->head_dim / 2);
    memcpy(out, tensor->data, n * sizeof *out);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(out[i]))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: tensor %s: value %zu is no number", path, name, i);
    return butler_gguf_check(gguf, err);
}

/* The mean of e^(i w o) over the offsets. */
static void mean_turn(double freq, double *real, double *imag)
{
    int n = 0;
    *real = *imag = 0;
    for (int offset = 1; offset <= LAST_OFFSET; offset *= 2, n++) {
        *real += cos(freq * offset);
        *imag += sin(freq * offset);
    }
    *real /= n;
    *imag /= n;
}

/* What can be worked out before a position is known. spread holds the mean of the absolute values. */
static void prepare(struct butler_centres *centres)
{
    const size_t n = (size_t)centres->n_pairs;
    for (size_t l = 0; l < (size_t)centres->n_layers; l++)
        for (size_t f = 0; f < n; f++) {
            double x, y;
            mean_turn((double)centres->pairs[l * n + f].freq, &x, &y);
            for (size_t h = 0; h < (size_t)centres->n_heads; h++) {
                const size_t i = (l * (size_t)centres->n_heads + h) * n + f;
                const double real = (double)centres->real[i], imag = (double)centres->imag[i];
                centres->spread[i] -= (float)hypot(real, imag);
                centres->real[i] = (float)(real * x - imag * y);
                centres->imag[i] = (float)(real * y + imag * x);
            }
        }
}

struct butler_centres *butler_centres_load(const char *path, struct butler_model *model, struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    struct butler_gguf *gguf = butler_gguf_open(path, err);
    struct butler_centres *centres = NULL;
    if (!gguf || check_model(gguf, model, err) < 0 || !(centres = butler_alloc(sizeof *centres, err)))
        goto fail;
    centres->n_layers = hp->n_layers;
    centres->n_heads = hp->n_heads;
    centres->path = strdup(path);
    if (!centres->path)
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the name of %s", path);
    if (!centres->path || !(centres->pairs = butler_centres_pairs(model, &centres->n_pairs, err)) ||
        !(centres->real = butler_alloc(n_values(hp) * sizeof *centres->real, err)) ||
        !(centres->imag = butler_alloc(n_values(hp) * sizeof *centres->imag, err)) ||
        !(centres->spread = butler_alloc(n_values(hp) * sizeof *centres->spread, err)) ||
        read_values(gguf, names[0], hp, centres->real, err) < 0 || read_values(gguf, names[1], hp, centres->imag, err) < 0 ||
        read_values(gguf, names[2], hp, centres->spread, err) < 0)
        goto fail;
    prepare(centres);
    butler_gguf_free(gguf);
    return centres;
fail:
    butler_centres_free(centres);
    butler_gguf_free(gguf);
    return NULL;
}

void butler_centres_free(struct butler_centres *centres)
{
    if (!centres)
        return;
    free(centres->path);
    free(centres->pairs);
    free(centres->real);
    free(centres->imag);
    free(centres->spread);
    free(centres);
}
