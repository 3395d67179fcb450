/* The table in plain C. It runs everywhere, and what it computes is what every other table must compute: same values up
 * to the rounding of sums taken in another order. */
#include "kernels/one_bit.h"
#include "kernels/ref.h"

/* ----------------------------------------------------------------------------------------------- vectors */

static float dot(const float *x, const float *y, int n)
{
    return ref_dot(x, y, n);
}

static void add(float *y, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] += x[i];
}

static void axpy(float *y, float a, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void scale(float *y, float a, int n)
{
    for (int i = 0; i < n; i++)
        y[i] *= a;
}

static void rms_norm(float *y, const float *x, const float *weight, int n, float eps)
{
    float r = 1.0f / sqrtf(ref_dot(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = x[i] * r * weight[i];
}

static void layer_norm(float *y, const float *x, const float *weight, const float *bias, int n, float eps)
{
    float sums[REF_LANES] = {0}, squares[REF_LANES] = {0};
    for (int i = 0; i < n; i++)
        sums[i % REF_LANES] += x[i];
    float mean = ref_sum_lanes(sums) / (float)n;
    /* A second pass, because the difference of the mean square and the squared mean loses all digits when the mean is large. */
    for (int i = 0; i < n; i++)
        squares[i % REF_LANES] += (x[i] - mean) * (x[i] - mean);
    float r = 1.0f / sqrtf(ref_sum_lanes(squares) / (float)n + eps);
    for (int i = 0; i < n; i++)
        y[i] = (x[i] - mean) * r * weight[i] + (bias ? bias[i] : 0);
}

static void silu_mul(float *y, const float *gate, const float *up, int n)
{
    for (int i = 0; i < n; i++)
        y[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i];
}

static void gelu(float *y, int n)
{
    for (int i = 0; i < n; i++) {
        float x = y[i];
        y[i] = 0.5f * x * (1.0f + tanhf(0.7978845608028654f * (x + 0.044715f * x * x * x)));
    }
}

static float max(const float *x, int n)
{
    float m = -INFINITY; /* NaN is passed over */
    for (int i = 0; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

static float exp_sum(float *x, float maximum, int n)
{
    float sums[REF_LANES] = {0};
    for (int i = 0; i < n; i++) {
        x[i] = expf(x[i] - maximum);
        sums[i % REF_LANES] += x[i];
    }
    return ref_sum_lanes(sums);
}

static inline void rotate(float *a, float *b, float c, float s)
{
    float x = *a, y = *b;
    *a = x * c - y * s;
    *b = x * s + y * c;
}

static void rope_adjacent(float *x, const float *cos, const float *sin, int n_rot)
{
    for (int i = 0; i < n_rot / 2; i++)
        rotate(&x[2 * i], &x[2 * i + 1], cos[i], sin[i]);
}

static void rope_halves(float *x, const float *cos, const float *sin, int n_rot)
{
    for (int i = 0; i < n_rot / 2; i++)
        rotate(&x[i], &x[i + n_rot / 2], cos[i], sin[i]);
}

/* -------------------------------------------------------------------------------------------- cache rows */

static void store_f32(void *row, const float *x, int n)
{
    memcpy(row, x, (size_t)n * 4);
}

static void store_f16(void *row, const float *x, int n)
{
    for (int i = 0; i < n; i++)
        store_half((uint8_t *)row + (size_t)i * 2, x[i]);
}

static void store_q8_0(void *row, const float *x, int n)
{
    butler_quantize_row(BUTLER_Q8_0, row, x, n);
}

/* Elements [first, first + count) of a cache row; first and count are multiples of 32 where the type needs it. */
typedef void decode_fn(float *t, const uint8_t *row, int first, int count);

static void decode_f32(float *t, const uint8_t *row, int first, int count)
{
    butler_dequantize_f32(t, row + (size_t)first * 4, count);
}

static void decode_f16(float *t, const uint8_t *row, int first, int count)
{
    butler_dequantize_f16(t, row + (size_t)first * 2, count);
}

static void decode_q8_0(float *t, const uint8_t *row, int first, int count)
{
    butler_dequantize_q8_0(t, row + (size_t)(first / BLOCK) * Q8_0_BYTES, count);
}

/* A row is decoded once, a piece at a time, and used for every query. */
#define PIECE 256

static inline void qk_with(decode_fn *decode, struct butler_results s, struct butler_vectors q, const void *const *rows, int n_rows,
                           int n)
{
    float t[PIECE];
    for (int j = 0; j < n_rows; j++) {
        for (int c = 0; c < n; c += PIECE) {
            int count = BUTLER_MIN(n - c, PIECE);
            decode(t, rows[j], c, count);
            for (int i = 0; i < q.n; i++) {
                float part = ref_dot(q.at + i * q.stride + c, t, count);
                float *out = &s.at[i * s.stride + j];
                *out = c == 0 ? part : *out + part;
            }
        }
    }
}

static inline void av_with(decode_fn *decode, struct butler_results acc, struct butler_row_weights p, const void *const *rows,
                           int n_rows, int n)
{
    float t[PIECE];
    for (int j = 0; j < n_rows; j++) {
        for (int c = 0; c < n; c += PIECE) {
            int count = BUTLER_MIN(n - c, PIECE);
            decode(t, rows[j], c, count);
            for (int i = 0; i < p.n; i++)
                axpy(acc.at + i * acc.stride + c, p.at[i * p.stride + j], t, count);
        }
    }
}

/* Two passes: scores, a few of them at a time, and what follows from the highest. */
#define SCORES 64

static inline void attend_with(decode_fn *decode, struct butler_attended out, struct butler_vectors q,
                               const struct butler_pairs *pairs, int n)
{
    const void *const *keys = pairs->keys;
    const int n_rows = pairs->n;
    for (int i = 0; i < q.n; i++) {
        float p[SCORES], total = 0;
        const struct butler_results scores = {p, 0}, acc = butler_results_from(out.acc, i);
        const struct butler_vectors one = butler_vectors_from(q, i, 1);
        out.top[i] = -INFINITY;
        for (int j = 0, count; j < n_rows; j += count) {
            count = BUTLER_MIN(n_rows - j, SCORES);
            qk_with(decode, scores, one, keys + j, count, n);
            out.top[i] = fmaxf(out.top[i], max(p, count));
            if (out.s.at)
                memcpy(out.s.at + i * out.s.stride + j, p, (size_t)count * sizeof *p);
        }
        memset(acc.at, 0, (size_t)n * sizeof *acc.at);
        for (int j = 0, count; j < n_rows; j += count) {
            const void *values[SCORES];
            count = BUTLER_MIN(n_rows - j, SCORES);
            for (int r = 0; r < count; r++)
                values[r] = (const uint8_t *)keys[j + r] + pairs->value_offset;
            qk_with(decode, scores, one, keys + j, count, n);
            total += exp_sum(p, out.top[i], count);
            av_with(decode, acc, (struct butler_row_weights){p, 0, 0, 1}, values, count, n);
        }
        out.sum[i] = total;
    }
}

#define CACHE_TYPE(name)                                                                                                           \
    static void qk_##name(float *s, size_t s_stride, const float *q, size_t q_stride, int n_q, const void *const *rows,            \
                          int n_rows, int n)                                                                                       \
    {                                                                                                                              \
        qk_with(decode_##name, (struct butler_results){s, s_stride}, (struct butler_vectors){q, q_stride, n_q}, rows, n_rows, n);  \
    }                                                                                                                              \
    static void av_##name(float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q, const void *const *rows,        \
                          int n_rows, int n)                                                                                       \
    {                                                                                                                              \
        av_with(decode_##name, (struct butler_results){acc, acc_stride}, (struct butler_row_weights){p, p_stride, 0, n_q}, rows,   \
                n_rows, n);                                                                                                        \
    }                                                                                                                              \
    static void attend_##name(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n)        \
    {                                                                                                                              \
        attend_with(decode_##name, out, q, pairs, n);                                                                              \
    }

CACHE_TYPE(f32)
CACHE_TYPE(f16)
CACHE_TYPE(q8_0)

/* ----------------------------------------------------------------------------------------------- metrics */

static inline float bound_term(float q, const uint8_t *record, int d, int n)
{
    return q >= 0 ? q * load_half(record + (size_t)d * 2) : q * load_half(record + ((size_t)n + d) * 2);
}

static void page_bounds(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                        int n)
{
    for (int j = 0; j < n_records; j++) {
        const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes;
        for (int i = 0; i < n_q; i++) {
            float lanes[REF_LANES] = {0};
            for (int d = 0; d < n; d++)
                lanes[d % REF_LANES] += bound_term(q[(size_t)i * n + d], record, d, n);
            s[i * s_stride + j] = ref_sum_lanes(lanes);
        }
    }
}

static void page_bounds_max(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                            int n_records, int n)
{
    for (int j = 0; j < n_records; j++) {
        const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes;
        for (int i = 0; i < n_q; i++) {
            float m = bound_term(q[(size_t)i * n], record, 0, n);
            for (int d = 1; d < n; d++) {
                float term = bound_term(q[(size_t)i * n + d], record, d, n);
                m = term > m ? term : m;
            }
            s[i * s_stride + j] = m;
        }
    }
}

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    for (int i = 0; i < n_q; i++) {
        int8_t x[BUTLER_ONE_BIT_CHANNELS];
        const float factor = one_bit_query(x, q + (size_t)i * n, n);
        for (int j = 0; j < n_records; j++) {
            const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes;
            const uint8_t *range = one_bit_ranges(record, n), *bits = one_bit_bits(record, n);
            const float scale = one_bit_unit(record, n) * factor;
            float low = 0;
            int32_t sums[32] = {0};
            for (int d = 0; d < n; d++) {
                low += q[(size_t)i * n + d] * load_half(record + (size_t)d * 2);
                for (int t = 0; t < 32; t++)
                    sums[t] += bits[d / 4 * 16 + t / 2] >> (t % 2 * 4 + d % 4) & 1 ? x[d] * range[d] : 0;
            }
            for (int t = 0; t < 32; t++)
                s[i * s_stride + (size_t)j * 32 + t] = low + (float)sums[t] * scale;
        }
    }
}

static void one_bit_bounds(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                           int n_records, int n)
{
    for (int j = 0; j < n_records; j++) {
        const uint8_t *record = (const uint8_t *)records + (size_t)j * record_bytes, *range = one_bit_ranges(record, n);
        const float unit = one_bit_unit(record, n);
        for (int i = 0; i < n_q; i++) {
            float lanes[REF_LANES] = {0};
            for (int d = 0; d < n; d++) {
                const float x = q[(size_t)i * n + d], low = load_half(record + (size_t)d * 2);
                lanes[d % REF_LANES] += x * (x >= 0 ? low + unit * (float)range[d] : low);
            }
            s[i * s_stride + j] = ref_sum_lanes(lanes);
        }
    }
}

#define QUANTISED_TYPES(each, what)                                                                                                \
    each(Q8_0, q8_0, what) each(Q4_0, q4_0, what) each(Q4_1, q4_1, what) each(Q5_0, q5_0, what) each(Q5_1, q5_1, what)             \
        each(Q4_K, q4_k, what) each(Q5_K, q5_k, what) each(Q6_K, q6_k, what) each(Q2_K, q2_k, what) each(Q3_K, q3_k, what)         \
            each(IQ4_NL, iq4_nl, what) each(IQ4_XS, iq4_xs, what) each(MXFP4, mxfp4, what) each(TQ1_0, tq1_0, what)                \
                each(TQ2_0, tq2_0, what)
#define ENTRY(type, name, what) [BUTLER_##type] = butler_ref_##what##_##name,
#define DEQUANTIZE(type, name, ...) [BUTLER_##type] = butler_dequantize_##name,
#define GEMV(type, name, ...) [BUTLER_##type] = butler_ref_gemv_##name,
const struct butler_kernels butler_kernels_ref = {
    .isa = "ref",
    .gemv = {BUTLER_WEIGHT_TYPES(GEMV)},
    .quantise_q16 = butler_ref_quantise_q16,
    .matmul_q16 = {QUANTISED_TYPES(ENTRY, matmul)},
    .quantise_q8 = butler_ref_quantise_q8,
    .unpack_q8 = {QUANTISED_TYPES(ENTRY, unpack)},
    .multiply_q8 = {QUANTISED_TYPES(ENTRY, multiply)},
    .dequant = {BUTLER_WEIGHT_TYPES(DEQUANTIZE)},
    .gemm = butler_ref_gemm,
    .pack_rows = butler_ref_pack_rows,
    .pack_columns = butler_ref_pack_columns,
    .pack_transposed = butler_ref_pack_transposed,
    .attend_packed = butler_ref_attend_packed,
    .pack_keys = butler_ref_pack_keys,
    .score_keys = butler_ref_score_keys,
    .weigh = butler_ref_weigh,
    .add_values = butler_ref_add_values,
    .dot = dot,
    .add = add,
    .axpy = axpy,
    .scale = scale,
    .rms_norm = rms_norm,
    .layer_norm = layer_norm,
    .silu_mul = silu_mul,
    .gelu = gelu,
    .max = max,
    .exp_sum = exp_sum,
    .rope_adjacent = rope_adjacent,
    .rope_halves = rope_halves,
    .store_row = {[BUTLER_KV_F32] = store_f32, [BUTLER_KV_F16] = store_f16, [BUTLER_KV_Q8_0] = store_q8_0},
    .load_row = {[BUTLER_KV_F32] = butler_dequantize_f32,
                 [BUTLER_KV_F16] = butler_dequantize_f16,
                 [BUTLER_KV_Q8_0] = butler_dequantize_q8_0},
    .qk = {[BUTLER_KV_F32] = qk_f32, [BUTLER_KV_F16] = qk_f16, [BUTLER_KV_Q8_0] = qk_q8_0},
    .av = {[BUTLER_KV_F32] = av_f32, [BUTLER_KV_F16] = av_f16, [BUTLER_KV_Q8_0] = av_q8_0},
    .attend = {[BUTLER_KV_F32] = attend_f32, [BUTLER_KV_F16] = attend_f16, [BUTLER_KV_Q8_0] = attend_q8_0},
    .page_bounds = page_bounds,
    .page_bounds_max = page_bounds_max,
    .one_bit_step = 1,
    .one_bit = one_bit,
    .one_bit_bounds = one_bit_bounds,
    .keys8 = butler_ref_keys8,
    .keys4 = butler_ref_keys4,
    .keys16 = butler_ref_keys16,
    .log_sum_exp = butler_ref_log_sum_exp,
    .moments = butler_ref_moments,
    .group_max = butler_ref_group_max,
    .count_reaching = butler_ref_count_reaching,
    .list_reaching = butler_ref_list_reaching,
    .keep_reaching = butler_ref_keep_reaching,
    .keep_between = butler_ref_keep_between,
    .note_bytes = butler_ref_note_bytes,
};
