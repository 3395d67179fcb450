/* Predicted keys for CPUs with AVX-512 VNNI: a lane is a token, and one instruction adds four of its channels. Keys lie with
 * an offset of half their range because the instruction multiplies unsigned by signed bytes. Intel's servers from 2019 on and AMD's
 * from Zen 4 on win; by how much over AVX2: `bench_kernels --compare`. */
#include "kernels/target.h"

BUTLER_TARGET(BUTLER_VNNI)

#include "kernels/kernels.h"

#if defined(__x86_64__)
#include "kernels/vec512.h"

enum { TOKENS = BUTLER_KEYS_TOKENS, SOON = 1024, LATER = 4096 /* bytes ahead */, LONG = 128 /* records */ };
_Static_assert(BUTLER_KEYS_TOKENS == VEC, "a vector is a record's tokens");

/* Channels d .. d + 3 of a record's tokens. */
INLINE __m512i load_quads(int bits, const uint8_t *k, int d)
{
    if (bits == 8)
        return _mm512_loadu_si512(k + (size_t)d * TOKENS);
    const __m512i both = _mm512_loadu_si512(k + (size_t)(d / 8 * 4) * TOKENS);
    return _mm512_and_si512(d % 8 ? _mm512_srli_epi16(both, 4) : both, _mm512_set1_epi8(15));
}

/* Scores of one record. q.n is a compile-time constant, as bits is. */
INLINE void keys_record(int bits, struct butler_results s, struct butler_byte_queries q, const __m512i *offset,
                        const uint8_t *record, int n)
{
    const int n_q = q.n;
    const uint8_t *k = record + TOKENS;
    __m512i sum[4];
    for (int a = 0; a < n_q; a++)
        sum[a] = offset[a];
    const int step = 32 / bits; /* channels of 32 bits */
    for (int first = 0; first < n; first += step) {
        UNROLL
        for (int d = first; d < first + step; d += 4) {
            const __m512i x = load_quads(bits, k, d);
            for (int a = 0; a < n_q; a++)
                sum[a] = _mm512_dpbusd_epi32(sum[a], x, _mm512_set1_epi32((int)load_u32(q.at + (size_t)a * (size_t)n + (size_t)d)));
        }
    }
    const vec scale = vec_load_key_scales(record);
    for (int a = 0; a < n_q; a++)
        vec_store(s.at + (size_t)a * s.stride, vec_mul(vec_mul(_mm512_cvtepi32_ps(sum[a]), scale), vec_set1(q.factor[a])));
}

/* Prefetches n_bytes of the records `soon` and `later` bytes behind this one: into the second-level cache early, into the first
 * when they are there. Fetched into the first only, lines keep its few places while they are under way. */
INLINE void prefetch_keys(const uint8_t *record, size_t soon, size_t later, size_t n_bytes)
{
    for (size_t line = 0; line < n_bytes; line += 64) {
        prefetch_second((const void *)((uintptr_t)record + later + line));
        prefetch(record, soon + line);
    }
}

/* Of many records both halves are read side by side: of two streams the core keeps more lines under way than of one. */
INLINE void keys_queries(int bits, struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)
{
    const size_t record_bytes = records.bytes;
    const int half = records.n < LONG ? 0 : records.n / 2;
    const size_t n_bytes = (size_t)(TOKENS * (8 + n * bits) / 8); /* of a record, which may hold other heads' keys too */
    const size_t soon = BUTLER_MAX(SOON / record_bytes, 1) * record_bytes,
                 later = BUTLER_MAX(LATER / record_bytes, 2) * record_bytes;
    const uint8_t *record = records.at, *others = record + (size_t)half * record_bytes;
    __m512i offset[4];
    for (int a = 0; a < q.n; a++) {
        int32_t sum = 0;
        for (int d = 0; d < n; d++)
            sum += q.at[(size_t)a * (size_t)n + (size_t)d];
        offset[a] = _mm512_set1_epi32(-(1 << (bits - 1)) * sum);
    }
#define SCORES_AT(r) ((struct butler_results){s.at + (size_t)(r)*TOKENS, s.stride})
    for (int r = 0; r < half; r++, record += record_bytes, others += record_bytes) {
        prefetch_keys(record, soon, later, n_bytes);
        prefetch_keys(others, soon, later, n_bytes);
        keys_record(bits, SCORES_AT(r), q, offset, record, n);
        keys_record(bits, SCORES_AT(r + half), q, offset, others, n);
    }
    for (int r = 2 * half; r < records.n; r++, others += record_bytes) {
        prefetch_keys(others, soon, later, n_bytes);
        keys_record(bits, SCORES_AT(r), q, offset, others, n);
    }
#undef SCORES_AT
}

#include "kernels/simd_keys.h"

void butler_kernels_keys_vnni(struct butler_kernels *table)
{
    table->keys8 = keys8;
    table->keys4 = keys4;
}
BUTLER_TARGET_END
#endif
