/* AdamW (decoupled weight decay), with gradient clipping and a filter against batches with an extreme gradient. */
#include "adamw.h"

#include <math.h>
#include <stdlib.h>

#define BETA_1 0.9
#define BETA_2 0.999
#define EPSILON 1e-8
#define NORM_MEMORY 0.95

enum { STEPS_TO_KNOW_NORM = 20 };

int butler_adamw_init(struct butler_adamw *adam, const struct butler_adamw_params *params, size_t n_weights,
                      struct butler_error *err)
{
    *adam = (struct butler_adamw){.params = *params};
    adam->first = butler_alloc(n_weights * sizeof(float), err);
    adam->second = butler_alloc(n_weights * sizeof(float), err);
    if (!adam->first || !adam->second) {
        butler_adamw_free(adam);
        return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

void butler_adamw_free(struct butler_adamw *adam)
{
    free(adam->first);
    free(adam->second);
    adam->first = adam->second = NULL;
}

double butler_adamw_rate(const struct butler_adamw *adam)
{
    const double n = (double)adam->params.n_steps, rise = ceil((double)adam->params.warmup * n), at = (double)adam->step;
    if (at < rise)
        return (double)adam->params.lr * (at + 1) / rise;
    if (at >= n)
        return 0;
    return (double)adam->params.lr * 0.5 * (1 + cos(acos(-1) * (at - rise) / (n - rise)));
}

static double norm_of(const float *x, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

/* The usual norm grows by a fifth with every skipped step, so that a lasting change is accepted after some steps. */
static bool is_spike(struct butler_adamw *adam, double norm)
{
    const bool known = adam->n_applied >= STEPS_TO_KNOW_NORM && adam->params.spike > 0;
    if (!isfinite(norm))
        return true;
    if (known && norm > (double)adam->params.spike * adam->usual_norm) {
        adam->usual_norm *= 1.2;
        return true;
    }
    adam->usual_norm = adam->n_applied == 0 ? norm : NORM_MEMORY * adam->usual_norm + (1 - NORM_MEMORY) * norm;
    return false;
}

bool butler_adamw_step(struct butler_adamw *adam, struct butler_predictor *predictor, float *grads, double *norm)
{
    const double rate = butler_adamw_rate(adam);
    *norm = norm_of(grads, predictor->n_weights);
    adam->step++;
    if (is_spike(adam, *norm)) {
        adam->n_skipped++;
        return false;
    }
    const double t = (double)++adam->n_applied;
    const float shrink = *norm > (double)adam->params.clip ? (float)((double)adam->params.clip / *norm) : 1;
    const float step = (float)(rate / (1 - pow(BETA_1, t))), second_scale = (float)(1 / (1 - pow(BETA_2, t)));
    for (int p = 0; p < predictor->n_params; p++) {
        const struct butler_predictor_param *param = &predictor->params[p];
        const size_t from = (size_t)(param->data - predictor->weights), n = (size_t)param->n_rows * (size_t)param->n_cols;
        const float keep = param->n_rows > 1 ? (float)(1 - rate * (double)adam->params.weight_decay) : 1;
        for (size_t i = from; i < from + n; i++) {
            const float g = grads[i] * shrink;
            adam->first[i] = (float)BETA_1 * adam->first[i] + (float)(1 - BETA_1) * g;
            adam->second[i] = (float)BETA_2 * adam->second[i] + (float)(1 - BETA_2) * g * g;
            predictor->weights[i] =
                keep * predictor->weights[i] - step * adam->first[i] / (sqrtf(adam->second[i] * second_scale) + (float)EPSILON);
        }
    }
    return true;
}
