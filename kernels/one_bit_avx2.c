/* One-bit keys for CPUs with AVX2: a lane is a token, four bytes of it are channels. Four bits are spread over the four bytes as 1
 * or 0 and meet what a set bit adds, a query's integer times the channel's range, in two signed bytes: sums of pairs then fit 16
 * bits for all channels of a record, where products of whole bytes would not. */
#include "kernels.h"

#if defined(__x86_64__)
#include "one_bit.h"
#include "vec256.h"

#include "simd_fetch.h"

enum {
    TOKENS = 32,
    VECS = TOKENS / VEC,
    CHANNELS = BUTLER_ONE_BIT_CHANNELS,
    QUERIES = 8, /* at a time */
    SOON = 2048, /* bytes */
};
_Static_assert(CHANNELS / 4 * 2 * 128 <= 32768, "sums of pairs fit 16 bits");

/* Queries as integers times a factor each, 0 beyond the last channel. */
struct one_bit_queries {
    _Alignas(32) int8_t x[QUERIES][CHANNELS];
    float factor[QUERIES];
};

/* What set bits of a record add, 256 high + low. */
struct one_bit_steps {
    _Alignas(32) int8_t high[CHANNELS], low[CHANNELS];
};

INLINE void one_bit_steps(struct one_bit_steps *steps, const int8_t *x, const uint8_t *range, int n)
{
    for (int d = 0; d < n; d += 16) { /* beyond the ranges come bits, which a query's 0 takes out again */
        _Alignas(32) int16_t words[16];
        const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(range + d)));
        const __m256i q = _mm256_cvtepi8_epi16(_mm_load_si128((const __m128i *)(x + d)));
        _mm256_store_si256((__m256i *)words, _mm256_mullo_epi16(wide, q));
        split_words(steps->high + d, steps->low + d, words);
    }
}

/* The eight tokens of 32 bits: 1 in the bytes of channels whose bits are set. */
INLINE __m256i one_bit_mask(const uint8_t *bits)
{
    const __m256i place =
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    const __m256i bytes = _mm256_shuffle_epi8(_mm256_set1_epi32((int)load_u32(bits)), place);
    return _mm256_min_epu8(_mm256_and_si256(bytes, bit), _mm256_set1_epi8(1));
}

/* Sums over all channels for n_vecs vectors of tokens from vector `first` on and n_q queries; n_q n_vecs = VECS, compile-time
 * constants. */
INLINE void one_bit_sums(__m256i sum[VECS], const struct one_bit_steps *steps, int n_q, const uint8_t *bits, int first, int n_vecs,
                         int n)
{
    __m256i high[VECS], low[VECS];
    UNROLL
    for (int k = 0; k < VECS; k++)
        high[k] = low[k] = _mm256_setzero_si256();
    for (int d = 0; d < n; d += 4) {
        __m256i h[2], l[2];
        UNROLL
        for (int a = 0; a < n_q; a++) {
            h[a] = _mm256_set1_epi32((int)load_u32(steps[a].high + d));
            l[a] = _mm256_set1_epi32((int)load_u32(steps[a].low + d));
        }
        UNROLL
        for (int v = 0; v < n_vecs; v++) {
            const __m256i mask = one_bit_mask(bits + (size_t)d * 4 + (size_t)(first + v) * 4);
            UNROLL
            for (int a = 0; a < n_q; a++) {
                const int k = a * n_vecs + v;
                add_words(&high[k], _mm256_maddubs_epi16(mask, h[a]));
                add_words(&low[k], _mm256_maddubs_epi16(mask, l[a]));
            }
        }
    }
    UNROLL
    for (int k = 0; k < VECS; k++)
        sum[k] =
            _mm256_add_epi32(_mm256_madd_epi16(high[k], _mm256_set1_epi16(256)), _mm256_madd_epi16(low[k], _mm256_set1_epi16(1)));
}

/* Functions of their own, for compilers that see more at once keep sums in memory. */
static __attribute__((noinline)) void sums_of_one(__m256i sum[VECS], const struct one_bit_steps *steps, const uint8_t *bits, int n)
{
    one_bit_sums(sum, steps, 1, bits, 0, VECS, n);
}
static __attribute__((noinline)) void sums_of_two(__m256i sum[VECS], const struct one_bit_steps *steps, const uint8_t *bits,
                                                  int first, int n)
{
    one_bit_sums(sum, steps, 2, bits, first, VECS / 2, n);
}

/* q . the lowest keys of a record */
INLINE float one_bit_clear(const float *q, const uint8_t *record, int n)
{
    vec acc = vec_zero(), sums[4] = {acc, acc, acc, acc};
    int i = 0;
    for (; i + 4 * VEC <= n; i += 4 * VEC)
        UNROLL
    for (int k = 0; k < 4; k++)
        sums[k] = vec_fma(vec_load(q + i + k * VEC), vec_load_half(record + (size_t)(i + k * VEC) * 2), sums[k]);
    for (; i + VEC <= n; i += VEC)
        acc = vec_fma(vec_load(q + i), vec_load_half(record + (size_t)i * 2), acc);
    if (i < n)
        acc = vec_fma(vec_load_some(q + i, n - i), vec_load_half_some(record + (size_t)i * 2, n - i), acc);
    return vec_sum(vec_add(vec_add(sums[0], sums[1]), vec_add(vec_add(sums[2], sums[3]), acc)));
}

/* Scores of one record for n_q queries, 1 or 2, a compile-time constant; x: their integers. */
INLINE void one_bit_record(float *s, size_t s_stride, const float *q, const int8_t (*x)[CHANNELS], const float *factor, int n_q,
                           const uint8_t *record, int n)
{
    const float unit = one_bit_unit(record, n);
    struct one_bit_steps steps[2];
    const int n_vecs = VECS / n_q;
    float clear[2];
    for (int a = 0; a < n_q; a++) {
        one_bit_steps(&steps[a], x[a], one_bit_ranges(record, n), n);
        clear[a] = one_bit_clear(q + (size_t)a * (size_t)n, record, n);
    }
    for (int first = 0; first < VECS; first += n_vecs) {
        __m256i sum[VECS];
        if (n_q == 1)
            sums_of_one(sum, steps, one_bit_bits(record, n), n);
        else
            sums_of_two(sum, steps, one_bit_bits(record, n), first, n);
        UNROLL
        for (int k = 0; k < VECS; k++) {
            const int a = k / n_vecs;
            vec_store(s + (size_t)a * s_stride + (size_t)((first + k % n_vecs) * VEC),
                      vec_fma(_mm256_cvtepi32_ps(sum[k]), vec_set1(unit * factor[a]), vec_set1(clear[a])));
        }
    }
}

/* Up to QUERIES queries: a record meets all before the next comes. */
static void one_bit_scan(float *s, size_t s_stride, const float *q, int n_q, const uint8_t *records, size_t record_bytes,
                         int n_records, int n)
{
    struct one_bit_queries queries;
    struct walk walk = walk_from(records);
    memset(&queries, 0, sizeof queries);
    for (int a = 0; a < n_q; a++)
        queries.factor[a] = one_bit_query(queries.x[a], q + (size_t)a * (size_t)n, n);
    for (int j = 0; j < n_records; j++, records += record_bytes, s += TOKENS) {
        int a = 0;
        walk_to(&walk, (uintptr_t)records + record_bytes + SOON);
        for (; a + 2 <= n_q; a += 2)
            one_bit_record(s + (size_t)a * s_stride, s_stride, q + (size_t)a * (size_t)n, (const int8_t(*)[CHANNELS])queries.x[a],
                           queries.factor + a, 2, records, n);
        if (a < n_q)
            one_bit_record(s + (size_t)a * s_stride, s_stride, q + (size_t)a * (size_t)n, (const int8_t(*)[CHANNELS])queries.x[a],
                           queries.factor + a, 1, records, n);
    }
}

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    for (int i = 0; i < n_q; i += QUERIES)
        one_bit_scan(s + (size_t)i * s_stride, s_stride, q + (size_t)i * (size_t)n, BUTLER_MIN(n_q - i, QUERIES), records,
                     record_bytes, n_records, n);
}

void butler_kernels_one_bit_avx2(struct butler_kernels *table)
{
    table->one_bit = one_bit;
}
#endif
