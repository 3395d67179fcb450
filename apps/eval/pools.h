/* Words and sentences for generated texts; none is in the training data of the default model. */
#ifndef EVAL_POOLS_H
#define EVAL_POOLS_H

enum { EVAL_N_PLACE_NAMES = 32, EVAL_N_PLACES = 12, EVAL_N_THOUGHTS = 12, EVAL_N_FOODS = 12, EVAL_N_SUMS = 12 };

extern const char *const eval_place_names[EVAL_N_PLACE_NAMES];
extern const char *const eval_places[EVAL_N_PLACES][2]; /* description before the name, description that asks for it */
extern const char *const eval_thoughts[EVAL_N_THOUGHTS], *const eval_foods[EVAL_N_FOODS], *const eval_sums[EVAL_N_SUMS];

#endif
