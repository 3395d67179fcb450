/* The passages of a prompt that an answer rests on, for usage.kv.receipt. */
#ifndef BUTLER_SERVE_RECEIPT_H
#define BUTLER_SERVE_RECEIPT_H

#include "serve/scheduler.h"

/* Fills job->passages, where steps of the session, one of the job's choices, were compared with exact attention and it has none
 * yet: the lines of the prompt with most attention, the highest first, none with less than one in a hundred. A line longer than
 * SERVE_PASSAGE_BYTES counts in parts. The first four tokens are left out: they have attention whatever they say. Without memory
 * there are none. */
enum { SERVE_PASSAGE_BYTES = 400 };
void serve_passages_find(struct serve_job *job, const struct butler_model *model, const struct butler_session *session);
void serve_passages_free(struct serve_job *job);

#endif
