/* From scores to ids: the budgeted choice every policy makes, written once. Indices are units (tokens or pages). */
#ifndef BUTLER_SELECT_H
#define BUTLER_SELECT_H

#include "engine/backend.h"
#include "kernels/kernels.h"

/* The first `first` and the last `last` of n units are kept whatever their score; of the rest the `budget` - first - last
 * highest scores, ties to the lower index (NaN counts as lowest). Writes the kept indices ascending to ids[n] and returns
 * their number: min(n, max(budget, first + last)). O(n). scratch[n]. */
int butler_select_top(const struct butler_kernels *kernels, const float *scores, int n, int budget, int first, int last,
                      float *scratch, uint32_t *ids);

/* The same of choice->n_units units with, in place of a budget, the smallest number of highest scores that brings the kept mass to
 * at least choice->mass of the total. scores are probabilities >= 0 in any scale. beside: in the same scale, mass that is kept
 * beside the units (of learned sinks). order is scratch[n_units] too. */
int butler_select_mass(const struct butler_kernels *kernels, const float *scores, const struct butler_choice *choice, double beside,
                       float *scratch, uint32_t *order, uint32_t *ids);

#endif
