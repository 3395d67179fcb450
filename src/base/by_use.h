/* Numbered things in the order in which they were used last: a circle through number 0, which is none of them. all[0].newer is what
 * was used longest ago, all[0].older what was used last; zeros are a circle without any. */
#ifndef BUTLER_BY_USE_H
#define BUTLER_BY_USE_H

#include <stdbool.h>
#include <stdint.h>

struct butler_by_use {
    uint32_t newer, older;
};

static inline void butler_by_use_take_out(struct butler_by_use *all, uint32_t at)
{
    all[all[at].newer].older = all[at].older;
    all[all[at].older].newer = all[at].newer;
}

/* As the newest, or the oldest. */
static inline void butler_by_use_put_in(struct butler_by_use *all, uint32_t at, bool newest)
{
    const uint32_t newer = newest ? 0 : all[0].newer, older = newest ? all[0].older : 0;
    all[at] = (struct butler_by_use){newer, older};
    all[newer].older = at;
    all[older].newer = at;
}

#endif
