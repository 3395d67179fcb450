/* Part of binding a model: keys that only some architectures have. They say which layers see a window of the text, which layers
 * rotate queries and keys, and by what activations are scaled or capped. A key with a meaning that is not implemented refuses the
 * file. */
#include "model/arch.h"

#include <limits.h>
#include <math.h>
#include <string.h>

static int read_float(struct butler_model *model, const char *suffix, float min, float max, float *out, struct butler_error *err)
{
    struct butler_arch_key key = butler_arch_key(model, suffix);
    double value;
    int rc;
    if (!butler_gguf_value(model->gguf, key.text))
        return 0;
    if ((rc = butler_gguf_float(model->gguf, key.text, true, &value, err)) < 0)
        return rc;
    if (!(value >= (double)min && value <= (double)max))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %g is not in [%g, %g]", model->path, key.text, value,
                           (double)min, (double)max);
    *out = (float)value;
    return 0;
}

/* Keys with a meaning that no code here has, unless they say "none". */
static int refuse_others(struct butler_model *model, struct butler_error *err)
{
    static const struct {
        const char *suffix;
        double none;
    } keys[] = {
        {"attention.clamp_kqv", 0}, {"attention.max_alibi_bias", 0}, {"attention.causal", 1}, {"attention.temperature_length", 0}};
    for (int i = 0; i < BUTLER_COUNT(keys); i++) {
        struct butler_arch_key key = butler_arch_key(model, keys[i].suffix);
        const struct butler_gguf_value *value = butler_gguf_value(model->gguf, key.text);
        double number = keys[i].none;
        int64_t whole = (int64_t)keys[i].none;
        if (!value)
            continue;
        if (value->type == BUTLER_GGUF_FLOAT32 || value->type == BUTLER_GGUF_FLOAT64) {
            int rc = butler_gguf_float(model->gguf, key.text, false, &number, err);
            if (rc < 0)
                return rc;
        } else {
            int rc = butler_gguf_int(model->gguf, key.text, false, INT64_MIN, INT64_MAX, &whole, err);
            if (rc < 0)
                return rc;
            number = (double)whole;
        }
        if (number != keys[i].none)
            return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%.160s: key '%s' is %g: this is not implemented", model->path,
                               key.text, number);
    }
    return 0;
}

static int read_scales(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err)
{
    struct butler_hparams *hp = &model->hp;
    const float head_scale = 1 / sqrtf((float)hp->head_dim);
    float scale = arch->wide_scale_layers && hp->n_layers == arch->wide_scale_layers ? sqrtf((float)hp->n_heads / (float)hp->n_embd)
                                                                                     : head_scale;
    int rc;
    hp->embd_scale = arch->scales_embd ? sqrtf((float)hp->n_embd) : 1;
    hp->residual_scale = hp->logit_scale = 1;
    if ((rc = read_float(model, "embedding_scale", 1e-6f, 1e6f, &hp->embd_scale, err)) < 0 ||
        (rc = read_float(model, "residual_scale", 1e-6f, 1e6f, &hp->residual_scale, err)) < 0 ||
        (rc = read_float(model, "logit_scale", 1e-6f, 1e6f, &hp->logit_scale, err)) < 0 ||
        (rc = read_float(model, "attention.scale", 1e-6f, 1e6f, &scale, err)) < 0 ||
        (rc = read_float(model, "attn_logit_softcapping", 0, 1e6f, &hp->attn_softcap, err)) < 0 ||
        (rc = read_float(model, "final_logit_softcapping", 0, 1e6f, &hp->logit_softcap, err)) < 0)
        return rc;
    hp->logit_scale = arch->divides_logits ? 1 / hp->logit_scale : hp->logit_scale;
    hp->query_scale = fabsf(scale / head_scale - 1) < 1e-6f ? 1 : scale / head_scale;
    return 0;
}

/* Whether a layer has the file's window: as the file says for each layer or for a period, or else as the architecture has it. */
static int read_windows(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err)
{
    struct butler_hparams *hp = &model->hp;
    struct butler_arch_key key = butler_arch_key(model, "attention.sliding_window_pattern");
    const struct butler_gguf_value *pattern = butler_gguf_value(model->gguf, key.text);
    int64_t window = 0, period = arch->window_period;
    int rc = butler_gguf_int(model->gguf, butler_arch_key(model, "attention.sliding_window").text, false, 0, INT_MAX, &window, err);
    if (rc < 0 || window == 0)
        return rc;
    const bool each = pattern && pattern->type == BUTLER_GGUF_ARRAY;
    if (each && pattern->n != (uint64_t)hp->n_layers)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s': %llu entries for %d layers", model->path, key.text,
                           (unsigned long long)pattern->n, hp->n_layers);
    if (!each && (rc = butler_gguf_int(model->gguf, key.text, false, 0, INT_MAX, &period, err)) < 0)
        return rc;
    hp->window = (int)window;
    for (int l = 0; l < hp->n_layers; l++) {
        const bool windowed = each ? butler_gguf_array_int(pattern, (uint64_t)l) != 0 : period == 0 || l % period < period - 1;
        model->layers[l].window = windowed ? (int)window : 0;
        hp->n_windowed += windowed;
    }
    return 0;
}

/* Where a layer has its norms and its additions. */
static int read_order(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err)
{
    int64_t parallel = arch->parallel == BUTLER_PARALLEL_ALWAYS || arch->parallel == BUTLER_PARALLEL_KEY;
    if (arch->parallel == BUTLER_PARALLEL_NO_NORM)
        parallel = !butler_gguf_find(model->gguf, "blk.0.ffn_norm.weight");
    int rc = arch->parallel != BUTLER_PARALLEL_KEY
                 ? 0
                 : butler_gguf_int(model->gguf, butler_arch_key(model, "use_parallel_residual").text, false, 0, 1, &parallel, err);
    model->hp.parallel_residual = parallel != 0;
    int64_t before = 1;
    if (rc == 0)
        rc = butler_gguf_int(model->gguf, butler_arch_key(model, "layer_norm_before").text, false, 0, 1, &before, err);
    model->hp.norms_after = !before;
    return rc;
}

static void choose_ropes(struct butler_model *model, const struct butler_arch *arch, float local_theta)
{
    struct butler_hparams *hp = &model->hp;
    for (int l = 0; l < hp->n_layers; l++) {
        struct butler_layer *layer = &model->layers[l];
        const bool rotates = arch->rotates == BUTLER_ROTATES_NOT_FOURTH ? l % 4 != 3
                             : arch->rotates == BUTLER_ROTATES_WINDOWED ? layer->window > 0 || hp->n_windowed == 0
                                                                        : true;
        layer->rope = hp->rope == BUTLER_ROPE_NONE || !rotates ? BUTLER_LAYER_UNROTATED
                      : layer->window > 0 && local_theta > 0   ? BUTLER_LAYER_ROTATES_LOCAL
                                                               : BUTLER_LAYER_ROTATES;
        if (layer->rope == BUTLER_LAYER_ROTATES_LOCAL)
            hp->local_theta = local_theta;
    }
}

uint64_t butler_model_layer_tokens(const struct butler_model *model, int n)
{
    const struct butler_hparams *hp = &model->hp;
    return (uint64_t)(hp->n_layers - hp->n_windowed) * (uint64_t)n + (uint64_t)hp->n_windowed * (uint64_t)BUTLER_MIN(n, hp->window);
}

int butler_model_variants(struct butler_model *model, const struct butler_arch *arch, struct butler_error *err)
{
    float local_theta = arch->local_theta;
    int rc;
    model->hp.wide_qk_norm = arch->wide_qk_norm;
    model->hp.exact_yarn = arch->exact_yarn;
    if ((rc = refuse_others(model, err)) < 0 || (rc = read_scales(model, arch, err)) < 0 ||
        (rc = read_windows(model, arch, err)) < 0 || (rc = read_order(model, arch, err)) < 0 ||
        (rc = read_float(model, "rope.freq_base_swa", 1.001f, 1e15f, &local_theta, err)) < 0)
        return rc;
    choose_ropes(model, arch, local_theta);
    return 0;
}
