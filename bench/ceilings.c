/* What this machine can do at all on one core: the ceilings the kernels are measured against. The only loops of the
 * repository beside kernels/ that name instructions. */
#include "ceilings.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define FMA_LOOP(type, set1, fma)                                                                                                  \
    type a[10], x = set1(0.999f), y = set1(1e-3f);                                                                                 \
    for (int i = 0; i < 10; i++)                                                                                                   \
        a[i] = set1((float)i);                                                                                                     \
    for (long k = 0; k < n; k++)                                                                                                   \
        for (int i = 0; i < 10; i++)                                                                                               \
            a[i] = fma(a[i], x, y);                                                                                                \
    float sum = 0;                                                                                                                 \
    for (int i = 0; i < 10; i++)                                                                                                   \
        sum += ((float *)&a[i])[0];                                                                                                \
    return sum;

__attribute__((target("avx512f"))) static float fma512(long n)
{
    FMA_LOOP(__m512, _mm512_set1_ps, _mm512_fmadd_ps)
}
__attribute__((target("avx2,fma"))) static float fma256(long n)
{
    FMA_LOOP(__m256, _mm256_set1_ps, _mm256_fmadd_ps)
}

float ceiling_fma(const char *isa, long n, double *flops)
{
    bool wide = strcmp(isa, "avx512") == 0;
    *flops = (double)n * 10 * 2 * (wide ? 16 : 8);
    return wide ? fma512(n) : fma256(n);
}

__attribute__((target("avx512f"))) static uint64_t read512(const unsigned char *p, size_t n, size_t ahead)
{
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (size_t i = 0; i + 256 <= n; i += 256) {
        for (size_t line = 0; line < 256 && ahead; line += 64)
            _mm_prefetch((const char *)((uintptr_t)p + i + ahead + line), _MM_HINT_T0);
        a = _mm512_xor_si512(a, _mm512_loadu_si512(p + i));
        b = _mm512_xor_si512(b, _mm512_loadu_si512(p + i + 64));
        c = _mm512_xor_si512(c, _mm512_loadu_si512(p + i + 128));
        d = _mm512_xor_si512(d, _mm512_loadu_si512(p + i + 192));
    }
    return (uint64_t)_mm512_reduce_add_epi64(_mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d)));
}

static bool has512(void)
{
    return __builtin_cpu_supports("avx512f");
}
#else
float ceiling_fma(const char *isa, long n, double *flops)
{
    (void)isa;
    float sum = 1;
    for (long k = 0; k < n; k++)
        sum = sum * 0.999f + 1e-3f;
    *flops = 0;
    return sum;
}

static uint64_t read512(const unsigned char *p, size_t n, size_t ahead)
{
    return p[ahead % n];
}
static bool has512(void)
{
    return false;
}
#endif

static uint64_t read_words(const unsigned char *p, size_t n, size_t ahead)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 64 <= n; i += 64) {
        uint64_t words[8];
        __builtin_prefetch((const void *)((uintptr_t)p + i + ahead));
        memcpy(words, p + i, 64);
        for (int k = 0; k < 8; k++)
            sum[k] ^= words[k];
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

uint64_t ceiling_read(const void *p, size_t n, size_t ahead)
{
    return has512() ? read512(p, n, ahead) : read_words(p, n, ahead);
}

uint64_t ceiling_gather(const void *const *rows, int n_rows, size_t bytes)
{
    uint64_t sum = 0;
    for (int j = 0; j < n_rows; j++) {
        const unsigned char *ahead = rows[j + 24 < n_rows ? j + 24 : n_rows - 1];
        for (size_t i = 0; i < bytes; i += 64) {
            __builtin_prefetch(ahead + i);
            sum += ((const unsigned char *)rows[j])[i];
        }
    }
    return sum;
}
