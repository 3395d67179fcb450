/* The training loss: the distance of the predictor's scores from the model's own attention, for the heads of one layer of one
 * text that share a key. It is computed for a sample of the text's queries. Scores are computed one panel of rows at a time;
 * nothing of size n x n is stored. */
#ifndef BUTLER_LOSS_H
#define BUTLER_LOSS_H

#include "blas.h"
#include "butler_tools.h"

enum {
    BUTLER_LOSS_ROWS = 64,    /* rows of a panel: queries times heads */
    BUTLER_LOSS_MIN_ROW = 16, /* rows with fewer tokens are not measured: there is too little to choose from */
};

enum butler_loss_kind {
    BUTLER_LOSS_CAUSAL_MSE,    /* mean over i <= t of (s_ti - z_ti)^2; TokenButler v1, without the future */
    BUTLER_LOSS_SQUARE_MSE,    /* the same over all i, as published (tokenbutler, section 3.3) */
    BUTLER_LOSS_CROSS_ENTROPY, /* mean over t of -sum_i softmax(z_t)_i log softmax(s_t)_i, i <= t; TokenButler v2 */
};

/* Heads that share a key: z_ti = q_t . k_i / sqrt(dim) of the model, s_ti = qp_t . kp_i / sqrt(d) of the predictor. */
struct butler_loss_heads {
    int n, n_queries, n_heads, dim, d;
    const int *at;           /* [n_queries] positions of the queries in the text, ascending */
    const float *q, *qp;     /* [n_queries][n_heads][dim], [n_queries][n_heads][d] */
    const float *k, *kp;     /* of token i < n at k + i * k_stride [dim] and kp + i * kp_stride [d] */
    int k_stride, kp_stride; /* floats */
    float *dqp, *dkp;        /* gradients, as qp (written) and kp (accumulated). NULL: not computed */
    float weight;            /* of a head in the total loss: scales gradients, not the return value */
    float *panels;           /* scratch, butler_loss_panel_floats(n, n_heads) */
};

/* Floats of scratch for a text of n tokens. */
size_t butler_loss_panel_floats(int n, int n_heads);

/* Chooses the queries of a text of n tokens: one at random in each of n_queries equal parts of the text, so that each query has
 * the same chance. n_queries 0, or n and more: all. Returns how many; at[n] has their positions, ascending. */
int butler_loss_sample(int n, int n_queries, uint64_t seed, int *at);

/* The sum over these heads of their losses, estimated without bias from the sampled queries. Eq. of tokenbutler section 3.3 for
 * the squares; the cross-entropy is v2's. */
double butler_loss(const struct butler_blas *blas, const struct butler_vector_loops *loops, enum butler_loss_kind kind,
                   const struct butler_loss_heads *heads);

/* How well the predictor's ranking selects tokens: sums over the measured rows. */
struct butler_loss_measures {
    double n_rows;
    double top_half;    /* share of tokens whose membership in the row's true top 50 % is predicted */
    double recall;      /* of the true top 10 % */
    double mass;        /* share of the attention on the predicted top 10 % */
    double oracle_mass; /* and on the true top 10 % */
};

/* Adds every `step`-th query that has at least BUTLER_LOSS_MIN_ROW tokens, for each head. scratch: n floats. */
void butler_loss_measure(const struct butler_blas *blas, const struct butler_vector_loops *loops,
                         const struct butler_loss_heads *heads, int step, float *scratch, struct butler_loss_measures *sums);

#endif
