/* The Hadamard transform, which spreads what is in one channel over all. */
#ifndef BUTLER_HADAMARD_H
#define BUTLER_HADAMARD_H

#include <math.h>

/* x[n] = H x, orthonormal, in pieces of the largest power of two that divides n. */
static inline void butler_hadamard(float *restrict x, int n)
{
    const int size = n & -n;
    const float scale = 1 / sqrtf((float)size);
    for (int half = 1; half < size; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            for (int j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (int i = 0; i < n; i++)
        x[i] *= scale;
}

#endif
