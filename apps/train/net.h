/* A predictor in training on one text: it runs forward layer by layer over the text's states, and backward after each layer, so
 * that no layer's activations are kept. The loss sees a sample of the text's queries; nothing is computed that only other queries
 * would need. Used by one thread. */
#ifndef BUTLER_NET_H
#define BUTLER_NET_H

#include "dense.h"
#include "loss.h"
#include "states.h"

struct butler_net;

/* What a version of the predictor does in training: one table each, in net_v1.c and net_v2.c. */
struct butler_net_version {
    void (*request)(struct butler_net *net);                             /* asks net->arena for what this version alone holds */
    void (*prepare)(struct butler_net *net);                             /* fills its tables, once the arena is made */
    void (*input)(struct butler_net *net, int producer, const float *h); /* h[n][n_embd], what the producer reads */
    void (*layer)(struct butler_net *net, int layer, const float *q, const float *k); /* a predicted layer: loss, gradients */
};
extern const struct butler_net_version butler_net_v1, butler_net_v2;

/* The hidden layer of a two-layer network: mid = silu(first x). n: net->n or net->n_queries. */
struct butler_net_mid {
    int n;
    float *pre, *mid, *dmid; /* [n][n_mid] */
};

struct butler_net {
    const struct butler_predictor *predictor; /* weights are read; another thread may read them too */
    const struct butler_net_version *version;
    const struct butler_blas *blas;
    const struct butler_vector_loops *loops;
    enum butler_loss_kind kind;
    int max_n;
    /* Set by the caller before a text. */
    float *grads;     /* [n_weights], laid out as predictor->weights; accumulated. NULL: only the loss is computed */
    float weight;     /* of this text in the total loss */
    int measure_step; /* > 0: one row in measure_step is measured too */
    float dropout;    /* version 1: share of the feed-forward network's outputs that are set to 0, drawn by the text's seed */
    /* Results of a text. */
    double loss; /* mean over predicted layers and heads */
    struct butler_loss_measures measures;

    int n, n_queries;                 /* tokens of the text; queries that the loss sees */
    int *at;                          /* [n_queries] their positions, ascending */
    uint64_t seed;                    /* of the text */
    float *input, *wide, *dwide;      /* version 1: [n][n_embd] I, I' and its gradient; version 2: [n_queries], I' is I normed */
    struct butler_net_mid query, key; /* of n_queries and, in version 1, of n tokens */
    float *q, *qp, *dqp;              /* one layer's: [n_key_heads][n_queries][group][head_dim], the others [d] */
    float *kp, *dkp;                  /* one layer's: [n][n_key_heads][d] */
    float *panels;                    /* butler_loss_panel_floats, or for version 1's attention 2 BUTLER_LOSS_ROWS n */
    float *row;                       /* [n] */
    float *at_cosines, *at_sines;     /* [n_turns][n_queries][d / 2] */
    int n_turns;                      /* sets of frequencies of the queries: 1, or one for each key head */
    /* Version 1: [n][n_inner], the feed-forward part twice as wide. */
    float *z, *inner_q, *k, *v, *a, *normed, *up, *gelu;
    float *dz, *dq, *dk, *dv, *da, *dup;
    float *asked, *dasked;              /* [n_queries][n_embd] I' of the queries, and its gradient */
    float *freq, *cosines, *sines;      /* [d / 2], [n][d / 2] of predicted keys */
    float *inner_freq;                  /* [n_inner / n_inner_heads / 2] */
    float *inner_cosines, *inner_sines; /* [n][n_inner / n_inner_heads / 2] */
    struct butler_arena arena;
};

/* For texts of at most max_n tokens. NULL: no memory. */
struct butler_net *butler_net_new(const struct butler_predictor *predictor, const struct butler_blas *blas,
                                  const struct butler_vector_loops *loops, enum butler_loss_kind kind, int max_n,
                                  struct butler_error *err);
void butler_net_free(struct butler_net *net);
/* Bytes that one net holds. */
size_t butler_net_bytes(const struct butler_net *net);

/* Runs over a text, of whose queries the loss sees n_queries (0: all), drawn by seed (butler_loss_sample), which draws what drops
 * out too. */
void butler_net_run(struct butler_net *net, const struct butler_states *states, int n_queries, uint64_t seed);

/* ------------------------------------------------------------------------------------ what the versions share */

/* The parameter with this name; it must exist. */
const struct butler_predictor_param *butler_net_param(const struct butler_net *net, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Its gradient, from this row on. */
float *butler_net_grad(const struct butler_net *net, const struct butler_predictor_param *param, int row);

/* mid = silu(first x), and its gradient: dx is written, or with add accumulated. */
void butler_net_mid_forward(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *first,
                            const float *x);
void butler_net_mid_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *first,
                         const float *x, float *dx, bool add);
/* Rows [row, row + n_rows) of the second matrix: out[n][n_rows] = second[row ...] mid, and its gradient: dmid is written, or with
 * add accumulated. */
void butler_net_second_forward(const struct butler_net *net, const struct butler_net_mid *mid,
                               const struct butler_predictor_param *second, int row, int n_rows, float *out);
void butler_net_second_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *second,
                            int row, int n_rows, const float *dout, bool add);
/* Fills at_cosines and at_sines from freq[n_sets][d / 2]; n_sets is 1 or n_key_heads. */
void butler_net_turn(struct butler_net *net, const float *freq, int n_sets);
/* The same for one layer's predicted queries, qp and dqp, which are rotated as butler_net_turn was told: the layer's rows begin at
 * `row`, and its heads lie in groups that share a key. */
void butler_net_queries_forward(struct butler_net *net, const struct butler_predictor_param *second, int row);
void butler_net_queries_back(struct butler_net *net, const struct butler_predictor_param *second, int row, bool add);
/* Losses of one layer's heads: qp and kp against the model's q and k; with grads, dqp and dkp are written. */
void butler_net_heads(struct butler_net *net, const float *q, const float *k);

/* to[n_queries][width] = the queries' rows of from, which are `stride` floats apart. */
void butler_net_gather(const struct butler_net *net, const float *from, int stride, int width, float *to);
/* Scratch of a two-layer network's hidden layer. */
void butler_net_request_mid(struct butler_net *net, struct butler_net_mid *mid);
/* cosines and sines [max_n][dim / 2] of position times frequency. */
void butler_net_rotations(const struct butler_net *net, int dim, const float *freq, float *cosines, float *sines);

#endif
