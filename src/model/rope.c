/* Part of binding a model: the rotation frequency of each pair of dimensions. All variants that files ask for (linear and
 * YaRN scaling, per-pair factors of Llama 3, long and short factors of Phi 3) result in one or two tables of frequencies. */
#include "model/arch.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum scaling { SCALING_NONE, SCALING_LINEAR, SCALING_YARN, SCALING_LONGROPE };

struct rope_keys {
    enum scaling scaling;
    double factor;      /* positions are this much denser than in training */
    double attn_factor; /* factor of cos and sin */
    double ext_factor;  /* YaRN: how much of the ramp is applied */
    double beta_fast, beta_slow;
};

static const char *const scaling_names[] = {
    [SCALING_NONE] = "none", [SCALING_LINEAR] = "linear", [SCALING_YARN] = "yarn", [SCALING_LONGROPE] = "longrope"};

static int read_scaling(struct butler_model *model, struct rope_keys *keys, struct butler_error *err)
{
    struct butler_arch_key key = butler_arch_key(model, "rope.scaling.type");
    const char *name = "linear"; /* meaning of a file with a factor but no type */
    int rc = butler_gguf_string(model->gguf, key.text, false, &name, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < BUTLER_COUNT(scaling_names); i++)
        if (strcmp(scaling_names[i], name) == 0) {
            keys->scaling = (enum scaling)i;
            return 0;
        }
    return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                       "%.160s: key '%s': rope scaling '%.64s' is not none, linear, yarn or longrope", model->path, key.text, name);
}

static int read_number(struct butler_model *model, const char *suffix, double min, double max, double *out,
                       struct butler_error *err)
{
    struct butler_arch_key key = butler_arch_key(model, suffix);
    int rc = butler_gguf_float(model->gguf, key.text, false, out, err);
    if (rc < 0)
        return rc;
    if (!(*out >= min && *out <= max))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %g is not in [%g, %g]", model->path, key.text, *out, min,
                           max);
    return 0;
}

/* The key rope.scaling.yarn_attn_factor is ignored: with plain YaRN the scale follows from the factor, and files with the key
 * contain either that same number or 1. */
static int read_keys(struct butler_model *model, struct rope_keys *keys, struct butler_error *err)
{
    struct butler_hparams *hp = &model->hp;
    *keys = (struct rope_keys){.factor = 0, .attn_factor = 1, .ext_factor = -1, .beta_fast = 32, .beta_slow = 1};
    double theta = 10000;
    int64_t original = hp->n_ctx_train;
    int rc;
    if ((rc = read_scaling(model, keys, err)) < 0 || (rc = read_number(model, "rope.freq_base", 1.001, 1e15, &theta, err)) < 0 ||
        (rc = read_number(model, "rope.scale_linear", 0, 1e6, &keys->factor, err)) < 0 || /* its name in early files */
        (rc = read_number(model, "rope.scaling.factor", 0, 1e6, &keys->factor, err)) < 0 ||
        (rc = read_number(model, "rope.scaling.attn_factor", 1e-3, 1e3, &keys->attn_factor, err)) < 0 ||
        (rc = read_number(model, "rope.scaling.yarn_ext_factor", -1, 1, &keys->ext_factor, err)) < 0 ||
        (rc = read_number(model, "rope.scaling.yarn_beta_fast", 1e-3, 1e6, &keys->beta_fast, err)) < 0 ||
        (rc = read_number(model, "rope.scaling.yarn_beta_slow", 1e-3, 1e6, &keys->beta_slow, err)) < 0 ||
        (rc = butler_gguf_int(model->gguf, butler_arch_key(model, "rope.scaling.original_context_length").text, false, 1, 1 << 30,
                              &original, err)) < 0)
        return rc;
    hp->rope_theta = (float)theta;
    model->rope_original_ctx = (int)original;
    if (keys->factor == 0 || keys->scaling == SCALING_NONE || keys->scaling == SCALING_LONGROPE)
        keys->factor = 1;
    if (keys->factor < 1e-3)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %g is not in [0.001, 1e6]", model->path,
                           butler_arch_key(model, "rope.scaling.factor").text, keys->factor);
    return 0;
}

/* What butler_model_params gives goes before what the file says, but for its original context and YaRN's two betas. */
static int take_given(struct butler_model *model, struct rope_keys *keys, struct butler_error *err)
{
    struct butler_rope_given *given = &model->rope_given;
    const int code = BUTLER_ERROR_ARGUMENT;
    int type = 0;
    if (!given->type && given->scale == 0 && given->original_ctx == 0)
        return 0;
    if (!given->type)
        return butler_fail(err, code, "a scale of rotary positions needs a rope scaling: linear or yarn");
    while (type < SCALING_LONGROPE && strcmp(scaling_names[type], given->type) != 0)
        type++;
    if (type == SCALING_LONGROPE)
        return butler_fail(err, code, "rope scaling '%.64s' is not none, linear or yarn", given->type);
    if (type == SCALING_NONE ? given->scale != 0 && given->scale != 1 : !(given->scale >= 1 && given->scale <= 1000))
        return butler_fail(err, code, "rope scaling %s with the scale %g: %s", given->type, given->scale,
                           type == SCALING_NONE ? "it has none" : "it needs one from 1 to 1000");
    if (model->hp.rope == BUTLER_ROPE_NONE)
        return butler_fail(err, code, "rope scaling '%s': %.160s has no rotary positions", given->type, model->path);
    if (given->original_ctx < 0)
        return butler_fail(err, code, "rope scaling '%s': an original context of %d tokens", given->type, given->original_ctx);
    if (given->original_ctx > 0)
        model->rope_original_ctx = given->original_ctx;
    keys->scaling = (enum scaling)type;
    keys->factor = type == SCALING_NONE ? 1 : given->scale;
    keys->attn_factor = 1;
    keys->ext_factor = -1;
    model->hp.n_ctx_train = (int)fmin(1 << 28, model->rope_original_ctx * keys->factor);
    snprintf(given->text, sizeof given->text, "%s:%.9g:%d", scaling_names[type], keys->factor, model->rope_original_ctx);
    given->type = NULL; /* the caller's */
    return 0;
}

/* YaRN: the pair that completes `turns` rotations within the original context. */
static double yarn_pair(const struct butler_model *model, double turns)
{
    const double pi = 3.14159265358979323846;
    return model->hp.n_rot * log(model->rope_original_ctx / (turns * 2 * pi)) / (2 * log((double)model->hp.rope_theta));
}

/* Pairs that rotate often keep their frequency, those that rotate little are slowed by the factor, those between are
 * interpolated. */
static void scale_yarn(const struct butler_model *model, const struct rope_keys *keys, double *freq)
{
    double ext = keys->ext_factor < 0 ? 1 : keys->ext_factor;
    double low = yarn_pair(model, keys->beta_fast), high = yarn_pair(model, keys->beta_slow);
    low = fmax(0, model->hp.exact_yarn ? low : floor(low));
    high = fmin(model->hp.n_rot - 1, model->hp.exact_yarn ? high : ceil(high));
    for (int i = 0; i < model->hp.n_rot / 2; i++) {
        double ramp = (i - low) / fmax(0.001, high - low);
        double keep = (1 - fmin(1, fmax(0, ramp))) * ext;
        freq[i] = freq[i] / keys->factor * (1 - keep) + freq[i] * keep;
    }
}

/* The n_rot / 2 frequencies for a base and one set of factors (NULL: none). */
static float *make_table(struct butler_model *model, const struct rope_keys *keys, float theta, const float *factors,
                         struct butler_error *err)
{
    int n = model->hp.n_rot / 2;
    float *table = butler_alloc((size_t)n * sizeof *table, err);
    double *freq = butler_alloc((size_t)n * sizeof *freq, err);
    if (!table || !freq)
        goto fail;
    for (int i = 0; i < n; i++)
        freq[i] = pow((double)theta, -2.0 * i / model->hp.n_rot) / (factors ? (double)factors[i] : 1.0);
    if (keys->scaling == SCALING_YARN)
        scale_yarn(model, keys, freq);
    else
        for (int i = 0; i < n; i++)
            freq[i] /= keys->factor;
    for (int i = 0; i < n; i++)
        table[i] = (float)freq[i];
    free(freq);
    return table;
fail:
    free(table);
    free(freq);
    return NULL;
}

/* The factors in a tensor, one per pair; *out is NULL if the file has no such tensor. */
static int read_factors(struct butler_model *model, const char *name, const float **out, struct butler_error *err)
{
    int n = model->hp.n_rot / 2;
    const struct butler_tensor *tensor = butler_gguf_find(model->gguf, name);
    *out = NULL;
    if (!tensor)
        return 0;
    if (tensor->n_rows != 1 || tensor->n_cols != n)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: tensor '%s': shape [%lld, %lld], %s needs [%d]", model->path, name,
                           (long long)tensor->n_cols, (long long)tensor->n_rows, model->info.architecture, n);
    const float *factors;
    int rc = butler_model_vector(model, tensor, 0, n, &factors, err);
    if (rc < 0)
        return rc;
    for (int i = 0; i < n; i++)
        if (!(factors[i] >= 1e-6f && factors[i] <= 1e6f))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: tensor '%s': factor %d is %g", model->path, name, i,
                               (double)factors[i]);
    *out = factors;
    return 0;
}

int butler_rope_init(struct butler_model *model, struct butler_error *err)
{
    model->rope_scale = model->rope_scale_long = 1;
    model->rope_original_ctx = model->hp.n_ctx_train;
    struct rope_keys keys = {0};
    if (model->hp.rope == BUTLER_ROPE_NONE)
        return take_given(model, &keys, err);
    const float *all, *long_ones, *short_ones;
    int rc;
    if ((rc = read_keys(model, &keys, err)) < 0 || (rc = take_given(model, &keys, err)) < 0 ||
        (rc = read_factors(model, "rope_freqs.weight", &all, err)) < 0 ||
        (rc = read_factors(model, "rope_factors_long.weight", &long_ones, err)) < 0 ||
        (rc = read_factors(model, "rope_factors_short.weight", &short_ones, err)) < 0)
        return rc;
    /* Beside factors for short texts alone, long ones have none, and the other way round. */
    const bool two = !all && (long_ones || short_ones);
    if (two && model->rope_given.text[0])
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a rope scaling: %.160s has factors of its own for long texts", model->path);
    if (!(model->rope_freq = make_table(model, &keys, model->hp.rope_theta, all ? all : short_ones, err)))
        return BUTLER_ERROR_MEMORY;
    if (two && !(model->rope_freq_long = make_table(model, &keys, model->hp.rope_theta, long_ones, err)))
        return BUTLER_ERROR_MEMORY;
    const struct rope_keys unscaled = {.scaling = SCALING_NONE, .factor = 1};
    if (model->hp.local_theta > 0 && !(model->rope_freq_local = make_table(model, &unscaled, model->hp.local_theta, NULL, err)))
        return BUTLER_ERROR_MEMORY;
    double scale = keys.attn_factor;
    if (keys.scaling == SCALING_YARN && keys.ext_factor != 0 && keys.factor > 1)
        scale *= 0.1 * log(keys.factor) + 1;
    model->rope_scale = model->rope_scale_long = (float)scale;
    return 0;
}
