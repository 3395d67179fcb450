/* A predictor in training on one text: it runs forward layer by layer, inside the model's forward pass, and backward after each
 * layer, so that no layer's activations are kept. Used by one thread. */
#ifndef BUTLER_NET_H
#define BUTLER_NET_H

#include "dense.h"
#include "loss.h"
#include "model/predictor.h"
#include "engine/session.h"

struct butler_net;

/* What a version of the predictor does in training: one table each, in net_v1.c and net_v2.c. */
struct butler_net_version {
    void (*request)(struct butler_net *net);                              /* asks net->arena for what this version alone holds */
    void (*prepare)(struct butler_net *net);                              /* fills its tables, once the arena is made */
    bool (*reads)(const struct butler_predictor_sizes *sizes, int layer); /* whether the predictor reads this layer's input */
    void (*input)(struct butler_net *net, int layer);                     /* net->input is that layer's */
    void (*layer)(struct butler_net *net, int layer, const float *q, const float *k); /* a predicted layer: loss, gradients */
};
extern const struct butler_net_version butler_net_v1, butler_net_v2;

/* The hidden layer of a two-layer network: mid = silu(first x). */
struct butler_net_mid {
    float *pre, *mid, *dmid; /* [n][n_mid] */
};

struct butler_net {
    const struct butler_predictor *predictor; /* weights are read; another thread may read them too */
    const struct butler_net_version *version;
    const struct butler_blas *blas;
    const struct butler_kernels *kernels;
    enum butler_loss_kind kind;
    int max_n;
    /* Set by the caller before a text. */
    float *grads;     /* [n_weights], laid out as predictor->weights; accumulated. NULL: only the loss is computed */
    float weight;     /* of this text in the total loss */
    int measure_step; /* > 0: one row in measure_step is measured too */
    /* Results of a text. */
    double loss; /* mean over predicted layers and heads */
    struct butler_loss_measures measures;
    int layers_seen; /* predicted layers whose loss was added */
    bool whole;      /* every block so far was the whole text, which is required */

    int n;               /* tokens of the text */
    float *input;        /* [n][n_embd] I */
    float *wide, *dwide; /* [n][n_embd] I' (v1) or I normed (v2), and its gradient */
    struct butler_net_mid query, key;
    float *qp, *dqp, *kp, *dkp; /* one layer's: [n][n_heads][d], [n][n_key_heads][d] */
    float *panels;              /* [2][BUTLER_LOSS_ROWS][n] */
    float *row;                 /* [n] */
    float *cosines, *sines;     /* [n][d / 2] */
    /* Version 1: [n][n_inner], the feed-forward part twice as wide. */
    float *z, *q, *k, *v, *a, *normed, *up, *gelu;
    float *dz, *dq, *dk, *dv, *da, *dup;
    float *inner_freq;                  /* [n_inner / n_inner_heads / 2] */
    float *inner_cosines, *inner_sines; /* [n][n_inner / n_inner_heads / 2] */
    struct butler_arena arena;
};

/* For texts of at most max_n tokens. NULL: no memory. */
struct butler_net *butler_net_new(const struct butler_predictor *predictor, const struct butler_blas *blas,
                                  const struct butler_kernels *kernels, enum butler_loss_kind kind, int max_n,
                                  struct butler_error *err);
void butler_net_free(struct butler_net *net);
/* Bytes that one net holds. */
size_t butler_net_bytes(const struct butler_net *net);

/* Begins a text of n tokens; the session's capture, with the net as its user, calls the rest. */
void butler_net_begin(struct butler_net *net, int n);
extern const struct butler_capture butler_net_capture; /* user is NULL: copy it and set user */

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
/* One layer's rows of the second matrix: out[n][n_rows] = second[row ...] mid, and its gradient: dmid is written, or with add
 * accumulated. */
void butler_net_second_forward(const struct butler_net *net, const struct butler_net_mid *mid,
                               const struct butler_predictor_param *second, int row, int n_rows, float *out);
void butler_net_second_back(const struct butler_net *net, struct butler_net_mid *mid, const struct butler_predictor_param *second,
                            int row, int n_rows, const float *dout, bool add);
/* Losses of one layer's heads: qp and kp against the model's q and k; with grads, dqp and dkp are written. */
void butler_net_heads(struct butler_net *net, const float *q, const float *k);

/* Scratch of a two-layer network's hidden layer. */
void butler_net_request_mid(struct butler_net *net, struct butler_net_mid *mid);
/* cosines and sines [max_n][dim / 2] of position times frequency. */
void butler_net_rotations(const struct butler_net *net, int dim, const float *freq, float *cosines, float *sines);

#endif
