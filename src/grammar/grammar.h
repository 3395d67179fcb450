/* Grammars that constrain what a sampler draws. GBNF text -> rules over bytes (grammar.c, grammar_class.c, grammar_rules.c) -> a
 * pushdown machine whose states are numbered (grammar_machine.c) -> the tokens that a state allows (grammar_mask.c). */
#ifndef BUTLER_GRAMMAR_H
#define BUTLER_GRAMMAR_H

#include "text/tokenizer.h"

struct butler_grammar;

/* As butler_grammar_new of butler.h. The tokenizer is borrowed. */
struct butler_grammar *butler_grammar_compile(struct butler_tokenizer *tokenizer, const char *gbnf, struct butler_error *err);

/* One more owner, who calls butler_grammar_free too. */
void butler_grammar_keep(const struct butler_grammar *grammar);

/* The state before the first byte. States are positive and stay valid until the grammar is freed. All functions below may be
 * called by several threads. */
int32_t butler_grammar_start(const struct butler_grammar *grammar);
/* The state behind a token; 0: the grammar does not allow it; negative: a code. */
int32_t butler_grammar_advance(const struct butler_grammar *grammar, int32_t state, int32_t id, struct butler_error *err);
/* Writes -infinity to the logits[n_vocab] of tokens that the state does not allow. Returns how many it allows, or a code. */
int butler_grammar_mask(const struct butler_grammar *grammar, int32_t state, float *logits, int n_vocab, struct butler_error *err);
/* Makes the mask that butler_grammar_mask needs, as far as `work` items of the machine go. 1: it is there; 0: more is left to do,
 * and what was done is kept; or a code. *spent grows by the work: beyond what one call may do the grammar is too ambiguous. */
int butler_grammar_prepare(const struct butler_grammar *grammar, int32_t state, size_t work, size_t *spent,
                           struct butler_error *err);

#endif
