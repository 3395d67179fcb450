/* A pass of the forward computation: the rows of all parts, and what its stages share (forward.c, ffn.c, deliver.c, observe.c). */
#ifndef BUTLER_PASS_H
#define BUTLER_PASS_H

#include "engine/session.h"

struct butler_pass {
    struct butler_backend *backend;
    const struct butler_model *model;
    const struct butler_hparams *hp;
    struct butler_scratch *s;
    struct butler_part *parts;
    int n_parts, n;                 /* n: rows */
    struct butler_traffic *weights; /* where weights that are read count: the first decode step's session */
};

/* Ends the part with an error. Its session's state is lost. */
static inline void butler_part_fail(struct butler_part *part)
{
    part->failed = true;
    part->session->failed = true;
}

/* What the metric read since it had read `before` is for later steps: the layer reads all. */
static inline void butler_part_keep_for_later(struct butler_traffic *traffic, uint64_t before)
{
    traffic->upkeep_bytes += traffic->metric_bytes - before;
    traffic->metric_bytes = before;
}

/* Rows of a pass: those of decode steps come first, those of prompts after them. */
struct butler_rows {
    int n, n_decode;
};

/* y[n][n_rows] = x[n][n_cols] W^T + bias, of one matrix or several; counts the weights. */
void butler_pass_multiply(const struct butler_pass *pass, const struct butler_product *products, int n_products, const float *x,
                          struct butler_rows rows);
/* Of rows whose kind is of no matter: as those of decode steps. */
void butler_pass_matmul(const struct butler_pass *pass, float *y, const struct butler_matrix *w, const float *x, int n);
/* y[n][dim] = normed x[n][dim]; a copy of it where there is no such norm. */
void butler_pass_norm(const struct butler_pass *pass, float *y, const float *x, const struct butler_vector *v, int n, int dim);

/* h (normed) -> h: the feed-forward part of a layer for the first rows. */
void butler_pass_ffn(const struct butler_pass *pass, const struct butler_layer *layer, struct butler_rows rows);

/* After the last layer: hidden states and logits to their sessions and to who asked for them. */
void butler_pass_deliver(const struct butler_pass *pass);
/* And then: the tokens are part of the text. */
void butler_part_note_tokens(struct butler_part *part);

/* Where a layer is watched. */
enum butler_layer_point {
    BUTLER_BEFORE_ATTENTION, /* q, k, v are there, not in the cache yet */
    BUTLER_AFTER_ATTENTION,  /* o is there; prompts are cut after this */
    BUTLER_BEFORE_FFN,       /* h is what it takes in */
    BUTLER_LAYER_POINTS
};

/* Who watches layers. A function may be NULL; each is called for every part of a pass that has not failed, and looks itself whether
 * its session is watched. What it does is not counted as the time of attention. */
struct butler_layer_observer {
    void (*at[BUTLER_LAYER_POINTS])(const struct butler_pass *pass, struct butler_part *part, int layer);
};
extern const struct butler_layer_observer *const butler_layer_observers[]; /* ends with NULL */

#endif
