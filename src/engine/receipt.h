/* The receipt of an answer (butler_session_keep_receipt): decode steps and cuts of the cache are compared with exact attention,
 * as audits do (audit.h), and summed up over the text. */
#ifndef BUTLER_RECEIPT_H
#define BUTLER_RECEIPT_H

#include <stdbool.h>

#include "engine/backend.h"

struct butler_session;

struct butler_receipt_state {
    int every, n_decoded;           /* decode steps from one look to the next; steps so far */
    int n_prompt_cuts, n_step_cuts; /* times that layers were cut, at whatever number of them */
    int cut_at[2];                  /* the newest token at the latest cut: of a prompt, of a step */
    struct butler_receipt sums;     /* of what is a mean in the end */
    double *attention;              /* [n_ctx] to each position, summed over steps */
    /* Exact attention to the tokens of a layer before it is cut, a mean over the query heads of a KV head. */
    float *weights;     /* [n_kv_heads][n_ctx] */
    int32_t *positions; /* [n_kv_heads][n_ctx] */
    int32_t *kept;      /* [n_ctx] */
    int n_before;       /* 0: no layer waits for butler_receipt_after_cut */
};

void butler_receipt_free(struct butler_receipt_state *receipt);

/* The session has another text from now on, or none. */
void butler_receipt_begin(struct butler_session *session);

/* Whether the decode step that runs is looked at. */
bool butler_receipt_wanted(const struct butler_session *session);
/* After the attention of a layer: exact has all its heads; ids[n_ctx] is scratch. */
void butler_receipt_layer(struct butler_session *session, int layer, const struct butler_exact *exact, int32_t *ids);
/* After a decode step. */
void butler_receipt_end_step(struct butler_session *session);

/* Around a cut of a layer's cache, whose newest token is at `position`. q[n_heads][head_dim], in device memory: the queries of that
 * token (prompt) or of the one that comes next (decode). */
void butler_receipt_before_cut(struct butler_session *session, int layer, bool decode, int position, const float *q);
void butler_receipt_after_cut(struct butler_session *session, int layer, bool decode);

#endif
