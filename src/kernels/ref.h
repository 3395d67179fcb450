/* What the plain C kernels share: the order of a dot product's sum which is part of the definition; and the entries of
 * ref_weights.c, for the table in ref.c. */
#ifndef BUTLER_REF_H
#define BUTLER_REF_H

#include <math.h>

#include "kernels/blocks.h"
#include "kernels/kernels.h"

/* Several partial sums: closer to the exact value than one long chain, and a compiler can keep them in a vector. */
#define REF_LANES 8

static inline void ref_dot_lanes(float lanes[REF_LANES], const float *x, const float *y, int n)
{
    int i = 0;
    for (; i + REF_LANES <= n; i += REF_LANES)
        for (int k = 0; k < REF_LANES; k++)
            lanes[k] += x[i + k] * y[i + k];
    for (int k = 0; i < n; i++, k++)
        lanes[k] += x[i] * y[i];
}

static inline float ref_sum_lanes(const float lanes[REF_LANES])
{
    return ((lanes[0] + lanes[4]) + (lanes[2] + lanes[6])) + ((lanes[1] + lanes[5]) + (lanes[3] + lanes[7]));
}

static inline float ref_dot(const float *x, const float *y, int n)
{
    float lanes[REF_LANES] = {0};
    ref_dot_lanes(lanes, x, y, n);
    return ref_sum_lanes(lanes);
}

#define REF_DECLARE(type, name, ...)                                                                                               \
    void butler_ref_gemv_##name(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n);                     \
    void butler_ref_matmul_##name(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16,         \
                                  int n_tokens, int n);                                                                            \
    void butler_ref_unpack_##name(void *panel, const void *w, size_t row_bytes, int n_rows, int n, bool is_signed);                \
    void butler_ref_multiply_##name(float *y, size_t y_stride, const void *panel, int n_rows, const void *q8, int n_tokens, int n);
BUTLER_WEIGHT_TYPES(REF_DECLARE)
void butler_ref_quantise_q16(void *q16, enum butler_type type, const float *x, int n, bool alone, float largest);
void butler_ref_quantise_q8(void *q8, enum butler_type type, const float *x, int n_tokens, int n);
void butler_ref_keys8(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n);
void butler_ref_keys4(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n);
void butler_ref_keys16(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                       int n);
void butler_ref_gemm(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n);
void butler_ref_pack_rows(void *packed, const float *x, size_t stride, int n, int k);
void butler_ref_pack_columns(void *packed, const float *x, size_t stride, int n, int k);
void butler_ref_pack_transposed(void *packed, const float *x, size_t stride, int n, int k);
void butler_ref_attend_packed(const struct butler_attention *a);
void butler_ref_pack_keys(float *packed, const float *keys, int n_keys, int dim);
void butler_ref_score_keys(float *s, size_t s_stride, const float *q, int n_q, const float *keys, int n_keys, int dim);
float butler_ref_weigh(float *s, float max, int n);
void butler_ref_add_values(float *acc, const float *p, size_t p_stride, int n_q, const float *values, int n_keys, int dim);

/* Scans of a selection: ref_select.c. */
float butler_ref_log_sum_exp(const float *x, float scale, int n);
void butler_ref_moments(const float *x, int n, float *mean, float *deviation);
void butler_ref_group_max(float *y, const float *x, size_t x_stride, const float *scale, const float *shift, int n_rows, int n);
int butler_ref_count_reaching(const float *x, float bound, int n);
int butler_ref_list_reaching(uint32_t *ids, uint32_t first, const float *x, float bound, int n);
int butler_ref_keep_reaching(uint32_t *ids, const float *x, float bound, int n);
int butler_ref_keep_between(float *values, const float *x, float low, float high, int n, int *n_high);
int butler_ref_note_bytes(uint64_t *bits, const uint8_t *bytes, int n_words);

#endif
