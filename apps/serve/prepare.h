/* A thread that works out what grammars allow next, where that takes long, so that the engine's thread goes on with other texts. It
 * takes the choices in turn, a slice each, and the one that has taken least time so far first: a text with an ordinary grammar does
 * not wait for ambiguous ones. */
#ifndef SERVE_PREPARE_H
#define SERVE_PREPARE_H

#include "serve/choice.h"

struct serve_prepare;

/* wake: in the thread, after a choice is done. NULL: the thread cannot be started. */
struct serve_prepare *serve_prepare_new(int n_vocab, void (*wake)(void *user), void *user);
/* In the engine's thread, after the choice's logits were made. A little is done at once. 1: all of it; 0: the thread has the
 * choice; or a code with *err. */
int serve_prepare_choice(struct serve_prepare *prepare, struct serve_job *job, struct serve_choice *choice,
                         struct butler_error *err);
/* Once a step: choices that are done, linked by next, with prepared and prepare_error; NULL: none. They are the caller's again. */
struct serve_choice *serve_prepare_collect(struct serve_prepare *prepare);
/* Ends the thread after the slice that runs. Every choice can be collected, those that are not done with prepared 0. */
void serve_prepare_stop(struct serve_prepare *prepare);
/* Stops it, if that was not done. May be NULL. */
void serve_prepare_free(struct serve_prepare *prepare);

#endif
