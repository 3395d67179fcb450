/* The optimiser: AdamW with a linear warm-up and a cosine decay. Gradients are clipped by their norm; a step whose norm is far
 * above the usual one is skipped. */
#ifndef BUTLER_ADAMW_H
#define BUTLER_ADAMW_H

#include "model/predictor.h"

struct butler_adamw_params {
    float lr;           /* the highest */
    float weight_decay; /* of matrices; vectors have none */
    float clip;         /* gradients with a larger norm are scaled down to it */
    float spike;        /* a step whose norm is this many times the usual one is skipped. 0: never */
    float warmup;       /* share of the steps in which lr rises from 0 */
    int64_t n_steps;    /* lr ends at 0 there */
};

struct butler_adamw {
    struct butler_adamw_params params;
    int64_t step, n_applied, n_skipped; /* step = n_applied + n_skipped */
    double usual_norm;                  /* running mean of accepted norms */
    float *first, *second;              /* [n_weights] moments */
};

int butler_adamw_init(struct butler_adamw *adam, const struct butler_adamw_params *params, size_t n_weights,
                      struct butler_error *err);
void butler_adamw_free(struct butler_adamw *adam);

/* Learning rate of the next step. */
double butler_adamw_rate(const struct butler_adamw *adam);
/* One step on predictor->weights with grads[n_weights], which are scaled in place. Returns false when it was skipped; *norm is
 * the gradient's, before clipping. */
bool butler_adamw_step(struct butler_adamw *adam, struct butler_predictor *predictor, float *grads, double *norm);

#endif
