/* What drafting needs of a sampler beside the public functions: to draw ahead, and to take it back. */
#ifndef BUTLER_SAMPLER_H
#define BUTLER_SAMPLER_H

#include "base/util.h"

/* All that a draw changes in a sampler. */
struct butler_sampler_mark {
    uint64_t random;
    size_t n_text;
    int n_drawn;
    int32_t state; /* of the grammar */
};

struct butler_sampler_mark butler_sampler_mark(const struct butler_sampler *sampler);
/* The sampler goes on as from the mark, which is of the same sampler and not later than its state. */
void butler_sampler_rewind(struct butler_sampler *sampler, const struct butler_sampler_mark *mark);

#endif
