/* Predicted keys with NEON, written once over quad_add(), which adds to each of four sums the products of four neighbouring
 * bytes. Included by the files that say how quads are added. */
#ifndef BUTLER_KEYS_NEON_H
#define BUTLER_KEYS_NEON_H

enum { TOKENS = BUTLER_KEYS_TOKENS, AHEAD = 2048 };

/* Channels d .. d + 3 of four tokens from t on, without their offset. */
INLINE int8x16_t load_quads(int bits, const uint8_t *k, int d, int t)
{
    const int at = bits == 8 ? d : d / 8 * 4;
    uint8x16_t x = vld1q_u8(k + (size_t)at * TOKENS + (size_t)t * 4);
    if (bits == 4)
        x = d % 8 ? vshrq_n_u8(x, 4) : vandq_u8(x, vdupq_n_u8(15));
    return vreinterpretq_s8_u8(vsubq_u8(x, vdupq_n_u8((uint8_t)(1 << (bits - 1)))));
}

/* q.n is a compile-time constant, as bits is. */
INLINE void keys_queries(int bits, struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    const uint8_t *record = records.at;
    const int n_q = q.n;
    for (int r = 0; r < records.n; r++, record += records.bytes, s.at += TOKENS) {
        const uint8_t *k = record + TOKENS;
        int32x4_t sum[4][TOKENS / 4];
        for (size_t line = 0; line < (size_t)(TOKENS * (8 + n * bits) / 8); line += 64)
            prefetch(record, AHEAD + line);
        for (int a = 0; a < n_q; a++)
            for (int t = 0; t < TOKENS / 4; t++)
                sum[a][t] = vdupq_n_s32(0);
        for (int d = 0; d < n; d += 4)
            for (int t = 0; t < TOKENS / 4; t++) {
                const int8x16_t keys = load_quads(bits, k, d, 4 * t);
                for (int a = 0; a < n_q; a++)
                    sum[a][t] = quad_add(sum[a][t], keys,
                                         vreinterpretq_s8_u32(vdupq_n_u32(load_u32(q.at + (size_t)a * (size_t)n + (size_t)d))));
            }
        for (int t = 0; t < TOKENS / 4; t += 2) {
            const vec scales = vec_load_key_scales(record + t * 4);
            for (int a = 0; a < n_q; a++) {
                const vec x = {vcvtq_f32_s32(sum[a][t]), vcvtq_f32_s32(sum[a][t + 1])};
                vec_store(s.at + (size_t)a * s.stride + t * 4, vec_mul(vec_mul(x, scales), vec_set1(q.factor[a])));
            }
        }
    }
}

#include "kernels/simd_keys.h"
#include "kernels/simd_keys16.h"

INLINE void fill_keys(struct butler_kernels *table)
{
    table->keys8 = keys8;
    table->keys4 = keys4;
    table->keys16 = keys16;
}

#endif
