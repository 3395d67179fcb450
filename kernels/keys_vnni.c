/* Predicted keys for CPUs with AVX-512 VNNI: a lane is a token, and one instruction adds four of its channels. Keys lie with
 * an offset of 128 because the instruction multiplies unsigned by signed bytes. */
#include "kernels.h"

#if defined(__x86_64__)
#include "vec512.h"

enum { TOKENS = BUTLER_KEYS_TOKENS, AHEAD = 4096 };
_Static_assert(BUTLER_KEYS_TOKENS == VEC, "a vector is a record's tokens");

/* n_q is a compile-time constant. */
INLINE void keys8_queries(float *s, size_t s_stride, const int8_t *q, const float *factor, int n_q, const uint8_t *records,
                          size_t record_bytes, int n_records, int n)
{
    __m512i offset[4];
    for (int a = 0; a < n_q; a++) {
        int32_t sum = 0;
        for (int d = 0; d < n; d++)
            sum += q[(size_t)a * (size_t)n + (size_t)d];
        offset[a] = _mm512_set1_epi32(-128 * sum);
    }
    for (int r = 0; r < n_records; r++, records += record_bytes) {
        const uint8_t *k = records + TOKENS * sizeof(uint16_t);
        __m512i sum[4];
        for (size_t line = 0; line < record_bytes; line += 64)
            prefetch(records, AHEAD + line);
        for (int a = 0; a < n_q; a++)
            sum[a] = offset[a];
        for (int d = 0; d < n; d += 4) {
            const __m512i x = _mm512_loadu_si512(k + (size_t)d * TOKENS);
            for (int a = 0; a < n_q; a++)
                sum[a] = _mm512_dpbusd_epi32(sum[a], x, _mm512_set1_epi32((int)load_u32(q + (size_t)a * (size_t)n + (size_t)d)));
        }
        const vec scale = vec_load_half(records);
        for (int a = 0; a < n_q; a++)
            vec_store(s + (size_t)a * s_stride + (size_t)r * TOKENS,
                      vec_mul(vec_mul(_mm512_cvtepi32_ps(sum[a]), scale), vec_set1(factor[a])));
    }
}

#include "simd_keys.h"

void butler_kernels_keys_vnni(struct butler_kernels *table)
{
    table->keys8 = keys8;
}
#endif
