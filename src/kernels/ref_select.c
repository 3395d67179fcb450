/* The scans of a selection in plain C: what they compute by definition. */
#include <math.h>

#include "kernels/ref.h"

float butler_ref_log_sum_exp(const float *x, float scale, int n)
{
    float maximum = x[0], sums[REF_LANES] = {0};
    for (int i = 1; i < n; i++)
        maximum = x[i] > maximum ? x[i] : maximum;
    for (int i = 0; i < n; i++)
        sums[i % REF_LANES] += expf(x[i] * scale - maximum * scale);
    return maximum * scale + logf(ref_sum_lanes(sums));
}

/* Squares of the distances to x[0], for those to the mean need a second pass; a mean far from 0 costs no digits this way. */
void butler_ref_moments(const float *x, int n, float *mean, float *deviation)
{
    float sums[REF_LANES] = {0}, squares[REF_LANES] = {0};
    for (int i = 0; i < n; i++) {
        const float far = x[i] - x[0];
        sums[i % REF_LANES] += far;
        squares[i % REF_LANES] += far * far;
    }
    const float shift = ref_sum_lanes(sums) / (float)n, variance = ref_sum_lanes(squares) / (float)n - shift * shift;
    *mean = x[0] + shift;
    *deviation = sqrtf(variance < 0 ? 0 : variance);
}

void butler_ref_group_max(float *y, const float *x, size_t x_stride, const float *scale, const float *shift, int n_rows, int n)
{
    for (int i = 0; i < n; i++) {
        float m = -INFINITY;
        for (int r = 0; r < n_rows; r++) {
            const float v = x[(size_t)r * x_stride + (size_t)i] * scale[r] - shift[r];
            m = v > m ? v : m;
        }
        y[i] = m;
    }
}

int butler_ref_count_reaching(const float *x, float bound, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++)
        count += x[i] >= bound;
    return count;
}

int butler_ref_list_reaching(uint32_t *ids, uint32_t first, const float *x, float bound, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        ids[count] = first + (uint32_t)i;
        count += x[i] >= bound;
    }
    return count;
}

int butler_ref_keep_reaching(uint32_t *ids, const float *x, float bound, int n)
{
    int count = 0;
    for (int i = 0; i < n; i++) {
        ids[count] = ids[i];
        count += x[i] >= bound;
    }
    return count;
}

int butler_ref_keep_between(float *values, const float *x, float low, float high, int n, int *n_high)
{
    int count = 0;
    *n_high = butler_ref_count_reaching(x, high, n);
    for (int i = 0; i < n; i++)
        if (x[i] >= low && !(x[i] >= high))
            values[count++] = x[i];
    return count;
}

int butler_ref_note_bytes(uint64_t *bits, const uint8_t *bytes, int n_words)
{
    int n_common = 0;
    for (int w = 0; w < n_words; w++) {
        uint64_t word = 0;
        for (int b = 0; b < 64; b++) {
            word |= (uint64_t)(bytes[w * 64 + b] != 0) << b;
            n_common += bytes[w * 64 + b] != 0 && bits[w] >> b & 1;
        }
        bits[w] = word;
    }
    return n_common;
}
