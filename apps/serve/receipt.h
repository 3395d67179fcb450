/* The passages of a prompt that an answer rests on, for usage.kv.receipt. */
#ifndef BUTLER_SERVE_RECEIPT_H
#define BUTLER_SERVE_RECEIPT_H

#include "serve/scheduler.h"

enum { SERVE_PASSAGE_BYTES = 400 };

/* Releases a choice that is over (serve_choice_release). If steps of its session were compared with exact attention and the job has
 * no passages yet, fills job->passages: the lines of the prompt with most attention, the highest first, none with less than one in
 * a hundred. A line longer than SERVE_PASSAGE_BYTES counts in parts. The first four tokens are left out: they have attention
 * whatever they say. Without memory there are no passages. */
void serve_receipt_take(struct serve_job *job, const struct butler_model *model, struct serve_choice *choice);
/* Before a choice's session is released to be parked: keeps what its steps attended to, for the passages of the whole answer.
 * Without memory it is forgotten. */
void serve_receipt_park(const struct serve_job *job, struct serve_choice *choice);
void serve_passages_free(struct serve_job *job);

#endif
