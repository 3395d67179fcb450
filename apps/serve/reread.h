/* Answers are read as prompts while nothing else runs, so that the next turn of a conversation reads only what is new. A decoded
 * token's keys and values have not the bits of a prompt's, so those of the answer's session are of no use to others. All functions
 * are the engine's thread's. */
#ifndef SERVE_REREAD_H
#define SERVE_REREAD_H

#include "serve/scheduler.h"

struct serve_reread;

struct serve_reread *serve_reread_new(struct butler_engine *engine, const struct serve_params *params);
void serve_reread_free(struct serve_reread *reread); /* may be NULL */

/* The prompt of a job that is over, and what a choice has behind it. */
void serve_reread_add(struct serve_reread *reread, const struct serve_job *job, const struct serve_choice *choice);

/* Whether there is something to read. */
bool serve_reread_pending(const struct serve_reread *reread);
/* Reads a pass of the text that was added last. Returns how many tokens. */
int serve_reread_step(struct serve_reread *reread);
/* Takes its own look-ups in the prefix cache, which no request made, off what the engine counted. reread may be NULL. */
void serve_reread_discount(const struct serve_reread *reread, struct butler_engine_info *info);

#endif
