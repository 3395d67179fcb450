/* What a cache of type Q8_0 leaves out of the keys. Biases of keys can be a hundred times as large as what differs between tokens
 * (Qwen2.5: 146 beside 1 to 2), and in the channels that turn slowly they stay where they are over the whole context. A key's row
 * has one scale for 32 channels, so they would take its whole range. Softmax is the same for all keys less a constant. */
#include <complex.h>
#include <math.h>

#include "base/hadamard.h"
#include "model/arch.h"

/* The mean of exp(i freq p) over positions 0 <= p < n. */
static double complex mean_turn(double freq, int n)
{
    return fabs(freq) * n < 1e-9 ? 1 : (1 - cexp(I * freq * n)) / (n * (1 - cexp(I * freq)));
}

static void shift_head(const struct butler_model *model, const struct butler_layer *layer, const float *bias, float *shift)
{
    const struct butler_hparams *hp = &model->hp;
    const float *freq = layer->rope == BUTLER_LAYER_ROTATES_LOCAL ? model->rope_freq_local : model->rope_freq;
    const int n_rot = layer->rope == BUTLER_LAYER_UNROTATED || !freq ? 0 : hp->n_rot;
    const int step = hp->rope == BUTLER_ROPE_ADJACENT ? 2 : 1, apart = hp->rope == BUTLER_ROPE_ADJACENT ? 1 : n_rot / 2;
    for (int i = n_rot; i < hp->head_dim; i++)
        shift[i] = bias[i];
    for (int j = 0; j < n_rot / 2; j++) {
        const int at = j * step;
        const double complex mean = (bias[at] + I * bias[at + apart]) * mean_turn(freq[j], hp->n_ctx_train);
        shift[at] = (float)creal(mean);
        shift[at + apart] = (float)cimag(mean);
    }
    butler_hadamard(shift, hp->head_dim);
}

int butler_key_shifts_init(struct butler_model *model, struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    const size_t row = (size_t)(hp->n_kv_heads * hp->head_dim);
    for (int l = 0; l < hp->n_layers; l++) {
        const struct butler_layer *layer = &model->layers[l];
        /* Sinks and a soft cap are not the same for all keys less a constant. */
        if (!layer->wk.bias || layer->k_norm.weight || layer->sinks || hp->attn_softcap > 0)
            continue;
        if (!model->key_shifts && !(model->key_shifts = butler_alloc((size_t)hp->n_layers * row * sizeof(float), err)))
            return BUTLER_ERROR_MEMORY;
        float *shift = model->key_shifts + (size_t)l * row;
        for (int h = 0; h < hp->n_kv_heads; h++)
            shift_head(model, layer, layer->wk.bias + h * hp->head_dim, shift + h * hp->head_dim);
    }
    return 0;
}
