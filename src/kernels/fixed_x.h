/* Activations in 16-bit fixed point (kernels.h, fix) as the products of simd_fixed.h read them: included by the file of an
 * instruction set behind its vector and BYTES, before its operations. */
#ifndef BUTLER_FIXED_X_H
#define BUTLER_FIXED_X_H

/* Fixed x: the pieces, a scale for 32 columns, and the scaled sum of each 32 columns (Q6_K: of each 16). low: a compile-time
 * constant, that high bytes are 0. */
struct fixed_x {
    const int8_t *pieces;
    const float *scales, *sums;
    bool low;
};

INLINE struct fixed_x fixed_parts(const void *fixed, int n, bool low)
{
    const size_t n_columns = BUTLER_CEIL_DIV((size_t)n, BUTLER_FIXED_X_COLUMNS) * BUTLER_FIXED_X_COLUMNS;
    const int8_t *pieces = fixed;
    const float *scales = (const float *)(pieces + n_columns * 2);
    return (struct fixed_x){pieces, scales, scales + n_columns / BLOCK, low};
}

#endif
