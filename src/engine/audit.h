/* Audits: what a decode step read, compared with the exact attention of its queries to all keys, summed up (butler_session_audit)
 * or head by head (butler_session_on_attention). The step's own results are not touched. */
#ifndef BUTLER_AUDIT_H
#define BUTLER_AUDIT_H

#include <stdbool.h>
#include <stddef.h>

struct butler_error;
struct butler_exact;
struct butler_session;

/* Scratch of an engine, as large as its largest audited session needs. */
struct butler_audit_scratch {
    float *rows;   /* scores, weights, and what recall is counted with: see audit.c */
    size_t n_rows; /* floats */
};
void butler_audit_scratch_free(struct butler_audit_scratch *scratch);

/* Exact attention of q[n_heads][head_dim], in host memory, over what a layer of the session holds (backend.h), within a step: the
 * newest token is there. */
void butler_session_exact(struct butler_session *session, int layer, const float *q, const struct butler_exact *exact);

/* Makes the engine's scratch large enough for the session. */
int butler_audit_reserve(struct butler_session *session, struct butler_error *err);
/* Exact attention of q[n_heads][head_dim], in host memory, to the newest n tokens that a layer holds, the newest of all at
 * `position`; in the engine's scratch, till the next call. */
struct butler_exact butler_audit_exact(struct butler_session *session, int layer, int n, int position, const float *q);

bool butler_audit_wanted(const struct butler_session *session);
/* After the attention of a layer of a decode step for q[n_heads][head_dim], in host memory: adds what it read to session->audit and
 * calls session->on_attention. */
void butler_audit_layer(struct butler_session *session, int layer, const float *q);
/* After the step: the sums become means, and the session is audited no longer. */
void butler_audit_end(struct butler_session *session);

#endif
