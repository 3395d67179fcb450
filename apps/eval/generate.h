/* Shared by the tasks whose answers are generated and then scored. */
#ifndef EVAL_GENERATE_H
#define EVAL_GENERATE_H

#include "eval.h"

/* Decodes what the session lacks of the item's ids, then generates greedily: up to max_tokens tokens, up to a token that ends the
 * text, or until complete(trial, text so far) says that more text cannot change the score (NULL: never). trial->output is the
 * generated text. */
int eval_generate(struct eval_trial *trial, int max_tokens, bool (*complete)(const struct eval_trial *trial, const char *text),
                  struct butler_error *err);

#endif
