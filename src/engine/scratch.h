/* Scratch of an engine: activations of one pass and temporary buffers of attention. All sessions share it, one pass after the
 * other, so that another session costs only its pages and records. */
#ifndef BUTLER_SCRATCH_H
#define BUTLER_SCRATCH_H

#include "engine/backend.h"

struct butler_part; /* session.h */

struct butler_scratch {
    int max_rows, max_slots;
    bool rotates;
    /* Device memory. */
    struct butler_buffers memory;
    float *x, *h;         /* [max_rows][n_embd] residual stream, its normed copy */
    float *q, *k, *v, *o; /* [max_rows][n_heads or n_kv_heads][head_dim] */
    float *up;            /* [max_rows][n_ff], or n_embd where that is more */
    float *gate;          /* [gate_floats], where q, k, v and o lie: attention is over when it is computed, a part at a time */
    size_t gate_floats;
    float *router;           /* [max_rows][n_experts], of a mixture of experts */
    float *expert_x, *mixed; /* [max_rows][n_embd] rows of one expert; what the experts give together */
    float *cos, *sin;        /* [max_rows][n_rot / 2]; behind it, where the model has such layers, the local ones */
    float *logits;           /* [logit_rows][n_vocab] */
    int logit_rows;
    struct butler_workspace work;   /* for one session with all threads */
    struct butler_workspace *batch; /* [n_threads] for a thread with one KV head of one session */
    int n_batch;
    /* Host memory. */
    struct butler_arena host;
    float *host_cos, *host_sin;                        /* as cos and sin, before they are uploaded */
    float *host_router;                                /* [max_rows][n_experts] weights of the experts; 0: not used */
    int *rows;                                         /* [max_rows] rows that are gathered, or that use an expert */
    float *factors;                                    /* [max_rows] weights of an expert */
    struct butler_top *tops;                           /* [max_rows] and for as many rows as have logits at a time */
    float *host_x, *host_h, *host_q, *host_k, *host_o; /* for captures; written only then */
    struct butler_part *parts;                         /* [max_rows] of a pass */
    struct butler_attend_span *spans;                  /* [max_rows] */
    struct butler_cut *cuts;                           /* [max_rows] */
};

/* Makes scratch for passes of max_rows rows and texts of max_slots tokens, or makes it larger; what it held is lost. On failure
 * it stays as it was. */
int butler_scratch_make(struct butler_scratch *scratch, const struct butler_hparams *hp, struct butler_backend *backend,
                        int max_rows, int max_slots, bool rotates, struct butler_error *err);
void butler_scratch_free(struct butler_scratch *scratch);
uint64_t butler_scratch_bytes(const struct butler_scratch *scratch); /* reserved */

#endif
