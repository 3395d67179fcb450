/* Audits: what a decode step read, compared with the exact attention of its queries to all keys (butler_session_audit). The step's
 * own results are not touched. */
#ifndef BUTLER_AUDIT_H
#define BUTLER_AUDIT_H

#include <stddef.h>

struct butler_session;

/* Scratch of an engine, as large as its largest audited session needs. */
struct butler_audit_scratch {
    double *shares; /* [n_heads][2] recall, mass */
    float *rows;    /* [threads][row_floats] */
    size_t n_shares, n_rows, row_floats;
};
void butler_audit_scratch_free(struct butler_audit_scratch *scratch);

/* After the attention of a layer of a decode step for q[n_heads][head_dim], in host memory: adds what it read to session->audit. */
void butler_audit_layer(struct butler_session *session, int layer, const float *q);
/* After the step: the sums become means, and the session is audited no longer. */
void butler_audit_end(struct butler_session *session);

#endif
