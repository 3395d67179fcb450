/* Attention of a prompt in plain C: what the vector kernels of simd_prompt.h compute. */
#include "kernels/ref.h"

void butler_ref_pack_keys(float *packed, const float *keys, int n_keys, int dim)
{
    for (int first = 0; first < n_keys; first += BUTLER_KEY_PANEL, packed += BUTLER_KEY_PANEL * dim)
        for (int d = 0; d < dim; d++)
            for (int j = 0; j < BUTLER_KEY_PANEL; j++)
                packed[d * BUTLER_KEY_PANEL + j] = first + j < n_keys ? keys[(size_t)(first + j) * (size_t)dim + (size_t)d] : 0;
}

void butler_ref_score_keys(float *s, size_t s_stride, const float *q, int n_q, const float *keys, int n_keys, int dim)
{
    for (int j = 0; j < n_keys; j++) {
        const float *key = keys + (size_t)(j / BUTLER_KEY_PANEL * BUTLER_KEY_PANEL) * (size_t)dim + j % BUTLER_KEY_PANEL;
        for (int i = 0; i < n_q; i++) {
            float sum = 0;
            for (int d = 0; d < dim; d++)
                sum += q[(size_t)i * (size_t)dim + (size_t)d] * key[d * BUTLER_KEY_PANEL];
            s[(size_t)i * s_stride + (size_t)j] = sum;
        }
    }
}

float butler_ref_weigh(float *s, float max, int n)
{
    float sums[REF_LANES] = {0};
    for (int j = 0; j < n; j++) {
        const double e = exp2((double)s[j] * 1.4426950408889634 - (double)max);
        s[j] = e < 0x1p-126 ? 0x1p-126f : (float)e;
        sums[j % REF_LANES] += s[j];
    }
    return ref_sum_lanes(sums);
}

void butler_ref_add_values(float *acc, const float *p, size_t p_stride, int n_q, const float *values, int n_keys, int dim)
{
    for (int i = 0; i < n_q; i++)
        for (int j = 0; j < n_keys; j++)
            for (int d = 0; d < dim; d++)
                acc[(size_t)i * (size_t)dim + (size_t)d] +=
                    p[(size_t)i * p_stride + (size_t)j] * values[(size_t)j * (size_t)dim + (size_t)d];
}
