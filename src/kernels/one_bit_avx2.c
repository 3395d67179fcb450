/* One-bit keys for CPUs with AVX2: a lane is a token, four bytes of it are channels. Four bits are spread over the four bytes as 1
 * or 0 and meet what a set bit adds, a query's integer times the channel's range, as one signed byte: in two, which is all of it,
 * they would take half as many instructions again. Processors without VNNI win; by how much: `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_AVX2)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/one_bit.h"
#include "kernels/vec256.h"

#include "kernels/simd_prefetch.h"

enum {
    TOKENS = 32,
    VECS = TOKENS / VEC,
    CHANNELS = BUTLER_ONE_BIT_CHANNELS,
    QUERIES = 4, /* at a time */
    STEP = 256,  /* 1 of a byte */
    SOON = 2048, /* bytes */
};
_Static_assert(CHANNELS / 4 * 2 * 128 <= 32768, "sums of pairs fit 16 bits");
_Static_assert(BUTLER_ONE_BIT_MOST * 255 + STEP / 2 < 128 * STEP, "products fit a byte");

/* Queries as integers times 32768 / STEP, for the instruction that multiplies, rounds and drops 15 bits, and a factor each. 0
 * beyond the last channel. */
struct one_bit_queries {
    _Alignas(32) int16_t x[QUERIES][CHANNELS];
    float factor[QUERIES];
};

/* What set bits of a record add for each query. */
struct one_bit_steps {
    _Alignas(32) int8_t at[QUERIES][CHANNELS];
};

INLINE void one_bit_steps(struct one_bit_steps *steps, const struct one_bit_queries *queries, int n_q, const uint8_t *range, int n)
{
    for (int d = 0; d < n; d += 16) { /* beyond the ranges come bits, which a query's 0 takes out again */
        const __m256i wide = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(range + d)));
        UNROLL
        for (int a = 0; a < n_q; a++) {
            const __m256i words = _mm256_mulhrs_epi16(wide, _mm256_load_si256((const __m256i *)(queries->x[a] + d)));
            _mm_store_si128((__m128i *)(steps->at[a] + d),
                            _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
        }
    }
}

/* Vector v of tokens: 1 in the bytes of the channels, of four, whose bits are set. */
INLINE __m256i one_bit_mask(__m256i bits, int v)
{
    const __m256i first =
        _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3);
    const __m256i place = _mm256_add_epi8(first, _mm256_set1_epi8((char)(4 * v)));
    const __m256i bit = _mm256_set1_epi64x((long long)0x8040201008040201);
    return _mm256_min_epu8(_mm256_and_si256(_mm256_shuffle_epi8(bits, place), bit), _mm256_set1_epi8(1));
}

/* Sums over all channels for n_q queries and n_vecs vectors of tokens from vector `first` on; compile-time constants. */
INLINE void one_bit_sums(__m256i (*sum)[VECS], const struct one_bit_steps *steps, int n_q, const uint8_t *bits, int first,
                         int n_vecs, int n)
{
    __m256i words[QUERIES * 2];
    UNROLL
    for (int k = 0; k < n_q * n_vecs; k++)
        words[k] = _mm256_setzero_si256();
    for (int d = 0; d < n; d += 4) {
        const __m256i four = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(bits + (size_t)d * 4)));
        __m256i step[QUERIES];
        UNROLL
        for (int a = 0; a < n_q; a++)
            step[a] = _mm256_set1_epi32((int)load_u32(steps->at[a] + d));
        UNROLL
        for (int v = 0; v < n_vecs; v++) {
            const __m256i mask = one_bit_mask(four, first + v);
            UNROLL
            for (int a = 0; a < n_q; a++)
                add_words(&words[a * n_vecs + v], _mm256_maddubs_epi16(mask, step[a]));
        }
    }
    UNROLL
    for (int k = 0; k < n_q * n_vecs; k++)
        sum[k / n_vecs][first + k % n_vecs] = _mm256_madd_epi16(words[k], _mm256_set1_epi16(1));
}

/* clear[a] = q_a . the lowest keys of a record */
INLINE void one_bit_clear(float *clear, const float *q, int n_q, const uint8_t *record, int n)
{
    vec sums[2][QUERIES];
    int i = 0;
    UNROLL
    for (int a = 0; a < n_q; a++)
        sums[0][a] = sums[1][a] = vec_zero();
    for (; i + 2 * VEC <= n; i += 2 * VEC) {
        UNROLL
        for (int k = 0; k < 2; k++) {
            const vec low = vec_load_half(record + (size_t)(i + k * VEC) * 2);
            UNROLL
            for (int a = 0; a < n_q; a++)
                sums[k][a] = vec_fma(vec_load(q + a * n + i + k * VEC), low, sums[k][a]);
        }
    }
    for (; i < n; i += VEC) {
        const int count = BUTLER_MIN(n - i, VEC);
        const vec low = vec_load_half_some(record + (size_t)i * 2, count);
        UNROLL
        for (int a = 0; a < n_q; a++)
            sums[0][a] = vec_fma(vec_load_some(q + a * n + i, count), low, sums[0][a]);
    }
    UNROLL
    for (int a = 0; a < n_q; a++)
        clear[a] = vec_sum(vec_add(sums[0][a], sums[1][a]));
}

/* Scores of one record for n_q queries, a compile-time constant. */
INLINE void one_bit_record(float *s, size_t s_stride, const float *q, const struct one_bit_queries *queries, int n_q,
                           const uint8_t *record, int n)
{
    const uint8_t *bits = one_bit_bits(record, n);
    const float unit = one_bit_unit(record, n) * STEP;
    struct one_bit_steps steps;
    float clear[QUERIES];
    __m256i sum[QUERIES][VECS];
    one_bit_steps(&steps, queries, n_q, one_bit_ranges(record, n), n);
    one_bit_clear(clear, q, n_q, record, n);
    if (n_q < 4)
        one_bit_sums(sum, &steps, n_q, bits, 0, VECS, n);
    else
        for (int first = 0; first < VECS; first += VECS / 2)
            one_bit_sums(sum, &steps, n_q, bits, first, VECS / 2, n);
    UNROLL
    for (int a = 0; a < n_q; a++)
        for (int v = 0; v < VECS; v++)
            vec_store(s + (size_t)a * s_stride + (size_t)(v * VEC),
                      vec_fma(_mm256_cvtepi32_ps(sum[a][v]), vec_set1(unit * queries->factor[a]), vec_set1(clear[a])));
}

/* A function of its own for each number of queries, for compilers that see more at once keep sums in memory. */
#define ONE_BIT_RECORDS(n_q)                                                                                                       \
    static __attribute__((noinline)) void records_##n_q(float *s, size_t s_stride, const float *q, const uint8_t *records,         \
                                                        size_t record_bytes, int n_records, int n)                                 \
    {                                                                                                                              \
        struct walk walk = walk_from(records);                                                                                     \
        struct one_bit_queries queries;                                                                                            \
        one_bit_prepare(&queries, q, n_q, n);                                                                                      \
        for (int j = 0; j < n_records; j++, records += record_bytes, s += TOKENS) {                                                \
            walk_to(&walk, (uintptr_t)records + record_bytes + SOON);                                                              \
            one_bit_record(s, s_stride, q, &queries, n_q, records, n);                                                             \
        }                                                                                                                          \
    }

static void one_bit_prepare(struct one_bit_queries *queries, const float *q, int n_q, int n)
{
    int8_t x[CHANNELS];
    memset(queries, 0, sizeof *queries);
    for (int a = 0; a < n_q; a++) {
        queries->factor[a] = one_bit_query(x, q + (size_t)a * (size_t)n, n);
        for (int d = 0; d < n; d++)
            queries->x[a][d] = (int16_t)(x[d] * (32768 / STEP));
    }
}

ONE_BIT_RECORDS(1)
ONE_BIT_RECORDS(2)
ONE_BIT_RECORDS(4)

static void one_bit(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n)
{
    for (; n_q >= 4; n_q -= 4, q += 4 * (size_t)n, s += 4 * s_stride)
        records_4(s, s_stride, q, records, record_bytes, n_records, n);
    for (; n_q >= 2; n_q -= 2, q += 2 * (size_t)n, s += 2 * s_stride)
        records_2(s, s_stride, q, records, record_bytes, n_records, n);
    if (n_q > 0)
        records_1(s, s_stride, q, records, record_bytes, n_records, n);
}

void butler_kernels_one_bit_avx2(struct butler_kernels *table)
{
    table->one_bit = one_bit;
    table->one_bit_step = STEP;
}
BUTLER_TARGET_END
#endif
