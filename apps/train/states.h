/* What training sees of a text, kept so that the model reads the text once: the predictor's inputs, and the queries and keys of
 * every predicted layer. */
#ifndef BUTLER_STATES_H
#define BUTLER_STATES_H

#include "butler_tools.h"
#include "model/predictor.h"

struct butler_states {
    const struct butler_predictor_sizes *sizes; /* borrowed */
    int max_n, n;                               /* tokens */
    int layers_seen;                            /* predicted layers whose queries and keys were taken */
    bool whole;                                 /* every block so far was the whole text, which is required */
    float *inputs;                              /* [producers][n][n_embd]; version 1: one producer */
    float *q, *k;                               /* [n_layers - 1][n][n_heads][head_dim], [n_layers - 1][n][n_kv_heads][head_dim] */
    struct butler_arena arena;
};

/* Room for texts of at most max_n tokens, for a predictor of these sizes. */
int butler_states_init(struct butler_states *states, const struct butler_predictor_sizes *sizes, int max_n,
                       struct butler_error *err);
void butler_states_free(struct butler_states *states);

/* Begins a text of n tokens; the session's capture, with the states as its user, fills them. */
void butler_states_begin(struct butler_states *states, int n);
extern const struct butler_capture butler_states_capture; /* user is NULL: copy it and set user */

/* The producer that reads this layer's input, or -1. */
int butler_states_producer(const struct butler_predictor_sizes *sizes, int layer);
/* Its input [n][n_embd], and a predicted layer's queries and keys. */
const float *butler_states_input(const struct butler_states *states, int producer);
const float *butler_states_queries(const struct butler_states *states, int layer);
const float *butler_states_keys(const struct butler_states *states, int layer);

#endif
