/* The training loss: the distance of the predictor's scores from the model's own attention, for one head of one layer of one
 * text. Scores are computed one panel of rows at a time; nothing of size n x n is stored. */
#ifndef BUTLER_LOSS_H
#define BUTLER_LOSS_H

#include "blas.h"
#include "kernels/kernels.h"

enum {
    BUTLER_LOSS_ROWS = 64,    /* queries of a panel */
    BUTLER_LOSS_MIN_ROW = 16, /* rows with fewer tokens are not measured: there is too little to choose from */
};

enum butler_loss_kind {
    BUTLER_LOSS_CAUSAL_MSE,    /* mean over i <= t of (s_ti - z_ti)^2; TokenButler v1, without the future */
    BUTLER_LOSS_SQUARE_MSE,    /* the same over all i, as published (tokenbutler, section 3.3) */
    BUTLER_LOSS_CROSS_ENTROPY, /* mean over t of -sum_i softmax(z_t)_i log softmax(s_t)_i, i <= t; TokenButler v2 */
};

/* One head: z_ti = q_t . k_i / sqrt(dim) of the model, s_ti = qp_t . kp_i / sqrt(d) of the predictor. Strides in floats. */
struct butler_loss_head {
    int n, dim, d;
    const float *q, *k, *qp, *kp;
    int q_stride, k_stride, qp_stride, kp_stride;
    float *dqp, *dkp; /* gradients, accumulated; strides as qp and kp. NULL: not computed */
    float weight;     /* of this head in the total loss: scales gradients, not the return value */
    float *panels;    /* scratch, 2 * BUTLER_LOSS_ROWS * n floats */
};

/* The loss of this head. Eq. of tokenbutler section 3.3 for the squares; the cross-entropy is v2's. */
double butler_loss(const struct butler_blas *blas, const struct butler_kernels *kernels, enum butler_loss_kind kind,
                   const struct butler_loss_head *head);

/* How well the predictor's ranking selects tokens: sums over the measured rows. */
struct butler_loss_measures {
    double n_rows;
    double top_half;    /* share of tokens whose membership in the row's true top 50 % is predicted */
    double recall;      /* of the true top 10 % */
    double mass;        /* share of the attention on the predicted top 10 % */
    double oracle_mass; /* and on the true top 10 % */
};

/* Adds every `step`-th row that has at least BUTLER_LOSS_MIN_ROW tokens. scratch: n floats. */
void butler_loss_measure(const struct butler_blas *blas, const struct butler_kernels *kernels, const struct butler_loss_head *head,
                         int step, float *scratch, struct butler_loss_measures *sums);

#endif
