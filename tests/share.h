/* How much of what a test draws at random or repeats it does: $BUTLER_TEST_SHARE, a number above 0 and at most 1 (default). Where a
 * program runs many times slower, under a sanitizer or an emulator, `./check` sets it below 1. */
#ifndef BUTLER_TESTS_SHARE_H
#define BUTLER_TESTS_SHARE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

static inline double test_share(void)
{
    const char *text = getenv("BUTLER_TEST_SHARE");
    const double share = text ? atof(text) : 1;
    return share > 0 && share < 1 ? share : 1;
}

/* The share of n repetitions, at least 1. */
static inline int share_of(int n)
{
    const int some = (int)(n * test_share());
    return some > 1 ? some : 1;
}

/* Whether case i, from 0 on, is among those to do; 0 always is. The cases are spread so that no period of 2, 3, 4, ... is left out:
 * i times the golden ratio, modulo 1, lies below the share. */
static inline bool in_share(int i)
{
    return (uint32_t)i * UINT32_C(2654435769) / 0x1p32 < test_share();
}

#endif
