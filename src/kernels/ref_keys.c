/* Predicted keys in plain C: what keys8, keys4 and keys16 compute (kernels.h). */
#include "kernels/ref.h"

enum { TOKENS = BUTLER_KEYS_TOKENS };

/* Channel d of token t, without its offset. */
static int channel(int bits, const uint8_t *k, int d, int t)
{
    if (bits == 8)
        return k[(d / 4 * TOKENS + t) * 4 + d % 4] - 128;
    return (k[(d / 8 * TOKENS + t) * 4 + d % 4] >> (d % 8 < 4 ? 0 : 4) & 15) - 8;
}

static void keys_of(int bits, struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    const uint8_t *record = records.at;
    for (int r = 0; r < records.n; r++, record += records.bytes)
        for (int i = 0; i < q.n; i++)
            for (int t = 0; t < TOKENS; t++) {
                int32_t sum = 0;
                for (int d = 0; d < n; d++)
                    sum += q.at[(size_t)i * (size_t)n + (size_t)d] * channel(bits, record + TOKENS, d, t);
                s.at[(size_t)i * s.stride + (size_t)(r * TOKENS + t)] = (float)sum * key_scale(record[t]) * q.factor[i];
            }
}

void butler_ref_keys8(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    keys_of(8, s, q, records, n);
}

void butler_ref_keys4(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    keys_of(4, s, q, records, n);
}

void butler_ref_keys16(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                       int n)
{
    for (int r = 0; r < n_records; r++) {
        const uint8_t *record = (const uint8_t *)records + (size_t)r * record_bytes;
        for (int i = 0; i < n_q; i++)
            for (int t = 0; t < TOKENS; t++) {
                float lanes[REF_LANES] = {0};
                for (int d = 0; d < n; d++)
                    lanes[d % REF_LANES] +=
                        q[(size_t)i * (size_t)n + (size_t)d] * load_half(record + (size_t)(d * TOKENS + t) * sizeof(uint16_t));
                s[(size_t)i * s_stride + (size_t)(r * TOKENS + t)] = ref_sum_lanes(lanes);
            }
    }
}
