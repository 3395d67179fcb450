/* A predictor at work in a session: it sees what a layer takes in and says, before later layers run, with which queries their
 * heads will look for tokens. The formulas are in predictor.h; the metrics in src/metrics/predicted.c score by them.
 *
 * Version 1 also has a small causal attention of its own: one layer of the same KV store, holding every token of the text
 * (an evicting policy drops nothing of it), though only those of its window are read. */
#ifndef BUTLER_PREDICT_H
#define BUTLER_PREDICT_H

#include "engine/engine.h"
#include "model/predictor.h"

/* What all sessions of an engine that have this predictor use one after the other: its matrices as they are run, activations of one
 * block, what its own attention needs beside the cache. Made for the first of them, and anew where one has a longer text. */
struct butler_predict_scratch {
    const struct butler_predictor *predictor;
    int max_rows, max_slots;
    const struct butler_matrix *matrices; /* as predictor->params, biases in their places */
    struct butler_matrix *bound;
    float *z, *q, *k, *v, *up, *out, *mid; /* activations of a block */
    float *cosines, *sines;                /* version 1: its rotations */
    /* Version 2: what a cached key is multiplied by, [n_layers - 1][n_kv_heads][d][head_dim]. */
    float *projections;
    struct butler_buffers buffers;
    struct butler_workspace work;
    /* Host memory. */
    float *freq_inner, *freq_head;    /* angles per position of a pair: [n_inner / h / 2], [d / 2] */
    float *host_cosines, *host_sines; /* before they are uploaded */
    float *staging;                   /* [n_staging] what is uploaded otherwise */
    size_t n_staging;
    struct butler_arena host;
};

/* The sizes of what a predictor gives, on which records of the metric that asks for it depend. */
static inline void butler_predictor_shape(const struct butler_predictor *predictor, struct butler_metric_shape *shape)
{
    shape->predicted_dim = predictor->sizes.d;
    shape->predicted_keys = predictor->sizes.n_key_heads / predictor->sizes.n_kv_heads;
}

void butler_predict_scratch_free(struct butler_predict_scratch *scratch); /* may be NULL */

struct butler_predict {
    const struct butler_predictor *predictor;
    struct butler_backend *backend;
    struct butler_predict_scratch *scratch; /* the engine's */
    /* Queries of the newest token, [n_layers][n_heads][d]; row 0 has no meaning. Those of layers [known_first, known_end) are
     * known by now: in version 1 all from 1 on once layer 0 has begun, in version 2 those of the last producer. */
    float *queries;
    int known_first, known_end;
    /* Version 2: rotations of the queries of layers from 1 on, all at once, so that a device is given them once a step: at position
     * rotated - 1. [n_layers - 1][n_kv_heads][d / 2], or where all heads have the same frequencies [d / 2]. */
    float *cosines, *sines;
    int rotated;
    /* Version 1: predicted keys of the tokens being appended, [n_new][n_layers - 1][n_key_heads][d]. */
    float *keys;
    int n_new;
    struct butler_buffers buffers;

    /* Version 1: its own attention. */
    struct butler_kv kv;
    struct butler_metric_shape shape;
    struct butler_policy policy; /* dense */
};

/* The engine's predictor of this version for a session of at most n_ctx tokens. kv_type: how version 1's own attention keeps its
 * keys and values, F16 where its rows are too short for the type. NULL with *err filled when there is no memory. */
struct butler_predict *butler_predict_new(struct butler_engine *engine, int version, enum butler_kv_type kv_type, int n_ctx,
                                          struct butler_error *err);
void butler_predict_free(struct butler_predict *predict);

/* Layers whose queries come from what this layer takes in: their number, from *first on; 0: this layer is none of its. */
int butler_predict_serves(const struct butler_predict *predict, int layer, int *first);

/* A block's tokens, at positions first_position ..., as they enter the layer. */
struct butler_predict_block {
    const float *input; /* [n][n_embd] (predictor.h, I) */
    int n, first_position;
    bool decode;
    bool queries; /* those of the last token are wanted */
};

/* Brings keys up to date and, where they are wanted, queries. Adds what it read to traffic. */
int butler_predict_run(struct butler_predict *predict, struct butler_traffic *traffic, int layer,
                       const struct butler_predict_block *block, struct butler_error *err);

/* Tells the engine's backend of the predictor's weights. */
int butler_predictor_bind(struct butler_engine *engine, const struct butler_predictor *predictor, struct butler_error *err);

/* As if a block of n tokens of unknown content had been seen: queries, keys and the attention's cache drawn by noise(). */
int butler_predict_fill(struct butler_predict *predict, int n, int first_position, float (*noise)(uint64_t *random),
                        uint64_t *random, struct butler_error *err);

/* Queries [n_heads][d] of a layer. */
static inline const float *butler_predict_queries(const struct butler_predict *predict, int layer)
{
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    return predict->queries + (size_t)layer * (size_t)(s->n_heads * s->d);
}

#endif
