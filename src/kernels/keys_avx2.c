/* Predicted keys for CPUs with AVX2, FMA and F16C: eight tokens at a time. Sums of products of bytes would overflow 16 bits,
 * so keys of 8 bits are widened first. Processors without VNNI win; by how much: `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AVX2)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec256.h"

enum { TOKENS = BUTLER_KEYS_TOKENS, AHEAD = 2048 };

/* Four bytes of a query as 16-bit numbers, repeated for four tokens. */
INLINE __m256i query_quad(const int8_t *q)
{
    uint32_t bytes = load_u32(q);
    return _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128((int)bytes)));
}

/* Channels d .. d + 3 of four tokens from t on, as 16-bit numbers. */
INLINE __m256i load_quads(const uint8_t *k, int d, int t)
{
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(k + (size_t)d * TOKENS + (size_t)t * 4)));
}

/* Sums for eight tokens from t on of keys of 8 bits, as lanes. n_q is a compile-time constant. */
INLINE void sums8(__m256i sum[4], const int8_t *q, int n_q, const uint8_t *k, int t, int n)
{
    __m256i low[4], high[4];
    for (int a = 0; a < n_q; a++)
        low[a] = high[a] = _mm256_setzero_si256();
    for (int d = 0; d < n; d += 4) {
        const __m256i x = load_quads(k, d, t), y = load_quads(k, d, t + 4);
        for (int a = 0; a < n_q; a++) {
            const __m256i quad = query_quad(q + (size_t)a * (size_t)n + (size_t)d);
            low[a] = _mm256_add_epi32(low[a], _mm256_madd_epi16(x, quad));
            high[a] = _mm256_add_epi32(high[a], _mm256_madd_epi16(y, quad));
        }
    }
    for (int a = 0; a < n_q; a++)
        sum[a] = _mm256_permute4x64_epi64(_mm256_hadd_epi32(low[a], high[a]), 0xd8);
}

/* The same of keys of 4 bits, whose products with bytes fit 16 bits for 32 channels. */
INLINE void sums4(__m256i sum[4], const int8_t *q, int n_q, const uint8_t *k, int t, int n)
{
    const __m256i nibble = _mm256_set1_epi8(15);
    for (int a = 0; a < n_q; a++)
        sum[a] = _mm256_setzero_si256();
    for (int first = 0; first < n; first += 32) {
        __m256i pairs[4];
        for (int a = 0; a < n_q; a++)
            pairs[a] = _mm256_setzero_si256();
        for (int d = first; d < BUTLER_MIN(n, first + 32); d += 8) {
            const __m256i both = _mm256_loadu_si256((const __m256i *)(k + (size_t)(d / 2) * TOKENS + (size_t)t * 4));
            const __m256i x = _mm256_and_si256(both, nibble), y = _mm256_and_si256(_mm256_srli_epi16(both, 4), nibble);
            for (int a = 0; a < n_q; a++) {
                const int8_t *channels = q + (size_t)a * (size_t)n + (size_t)d;
                const __m256i xs = _mm256_maddubs_epi16(x, _mm256_set1_epi32((int)load_u32(channels)));
                const __m256i ys = _mm256_maddubs_epi16(y, _mm256_set1_epi32((int)load_u32(channels + 4)));
                pairs[a] = _mm256_add_epi16(pairs[a], _mm256_add_epi16(xs, ys));
            }
        }
        for (int a = 0; a < n_q; a++)
            sum[a] = _mm256_add_epi32(sum[a], _mm256_madd_epi16(pairs[a], _mm256_set1_epi16(1)));
    }
}

/* q.n is a compile-time constant, as bits is. */
INLINE void keys_record(int bits, struct butler_results s, struct butler_byte_queries q, const int32_t *offset,
                        const uint8_t *record, int n)
{
    for (int t = 0; t < TOKENS; t += 8) {
        __m256i sum[4];
        if (bits == 8)
            sums8(sum, q.at, q.n, record + TOKENS, t, n);
        else
            sums4(sum, q.at, q.n, record + TOKENS, t, n);
        const vec scale = vec_load_key_scales(record + t);
        for (int a = 0; a < q.n; a++) {
            const vec products = _mm256_cvtepi32_ps(_mm256_sub_epi32(sum[a], _mm256_set1_epi32(offset[a])));
            vec_store(s.at + (size_t)a * s.stride + t, vec_mul(vec_mul(products, scale), vec_set1(q.factor[a])));
        }
    }
}

INLINE void keys_queries(int bits, struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    const uint8_t *record = records.at;
    int32_t offset[4];
    for (int a = 0; a < q.n; a++) {
        int32_t sum = 0;
        for (int d = 0; d < n; d++)
            sum += q.at[(size_t)a * (size_t)n + (size_t)d];
        offset[a] = (1 << (bits - 1)) * sum;
    }
    for (int r = 0; r < records.n; r++, record += records.bytes) {
        for (size_t line = 0; line < (size_t)(TOKENS * (8 + n * bits) / 8); line += 64)
            prefetch(record, AHEAD + line);
        keys_record(bits, (struct butler_results){s.at + (size_t)r * TOKENS, s.stride}, q, offset, record, n);
    }
}

#include "kernels/simd_keys.h"
#include "kernels/simd_keys16.h"

void butler_kernels_keys_avx2(struct butler_kernels *table)
{
    table->keys8 = keys8;
    table->keys4 = keys4;
    table->keys16 = keys16;
}
BUTLER_TARGET_END
#endif
