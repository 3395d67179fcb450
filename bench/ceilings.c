/* What this machine can do at all on one core: the ceilings the kernels are measured against. The only loops of the
 * repository beside kernels/ that name instructions. */
#include "ceilings.h"

const char *const ceiling_unit_names[CEILING_N_UNITS] = {"f32 multiply-add", "f16 multiply-add", "VNNI int8", "AMX int8",
                                                         "AMX bf16"};

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    bool wide = strcmp(isa, "avx512") == 0 || strcmp(isa, "amx") == 0;
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

__attribute__((target("avx512f,avx512bw,avx512vl,avx512fp16"))) static float fma_f16(long n)
{
    __m512h a[10], x = _mm512_set1_ph((_Float16)0.999f), y = _mm512_set1_ph((_Float16)1e-3f);
    for (int i = 0; i < 10; i++)
        a[i] = _mm512_set1_ph((_Float16)i);
    for (long k = 0; k < n; k++)
        for (int i = 0; i < 10; i++)
            a[i] = _mm512_fmadd_ph(a[i], x, y);
    __m512h sum = a[0];
    for (int i = 1; i < 10; i++)
        sum = _mm512_add_ph(sum, a[i]);
    return (float)_mm512_reduce_add_ph(sum);
}

__attribute__((target("avx512f,avx512vnni"))) static float vnni(long n)
{
    __m512i a[10], x = _mm512_set1_epi8(3), y = _mm512_set1_epi8(5);
    for (int i = 0; i < 10; i++)
        a[i] = _mm512_set1_epi32(i);
    for (long k = 0; k < n; k++) {
        for (int i = 0; i < 10; i++)
            a[i] = _mm512_dpbusd_epi32(a[i], x, y);
        __asm__ volatile("" : "+v"(x)); /* or the compiler multiplies once */
    }
    __m512i sum = a[0];
    for (int i = 1; i < 10; i++)
        sum = _mm512_add_epi32(sum, a[i]);
    return (float)_mm512_reduce_add_epi32(sum);
}

/* Linux gives the tile registers to a process that asks. */
static bool tiles_allowed(void)
{
    const int arch_req_xcomp_perm = 0x1023, xtiledata = 18;
    return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xtiledata) == 0;
}

struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Four sums of two by two tiles, as a matrix product would keep them. */
#define TILE_LOOP(product)                                                                                                         \
    struct tile_config config = {.palette = 1};                                                                                    \
    unsigned char zero[1024] = {0};                                                                                                \
    int32_t out[256];                                                                                                              \
    for (int i = 0; i < 8; i++) {                                                                                                  \
        config.row_bytes[i] = 64;                                                                                                  \
        config.rows[i] = 16;                                                                                                       \
    }                                                                                                                              \
    __asm__ volatile("" ::"r"(&config) : "memory"); /* gcc 12 drops the stores otherwise */                                        \
    _tile_loadconfig(&config);                                                                                                     \
    _tile_zero(0);                                                                                                                 \
    _tile_zero(1);                                                                                                                 \
    _tile_zero(2);                                                                                                                 \
    _tile_zero(3);                                                                                                                 \
    _tile_loadd(4, zero, 64);                                                                                                      \
    _tile_loadd(5, zero, 64);                                                                                                      \
    _tile_loadd(6, zero, 64);                                                                                                      \
    _tile_loadd(7, zero, 64);                                                                                                      \
    for (long k = 0; k < n; k++) {                                                                                                 \
        product(0, 4, 6);                                                                                                          \
        product(1, 4, 7);                                                                                                          \
        product(2, 5, 6);                                                                                                          \
        product(3, 5, 7);                                                                                                          \
    }                                                                                                                              \
    _tile_stored(0, out, 64);                                                                                                      \
    _tile_release();                                                                                                               \
    return (float)out[0];

__attribute__((target("amx-tile,amx-int8"))) static float tiles_int8(long n)
{
    TILE_LOOP(_tile_dpbssd)
}
__attribute__((target("amx-tile,amx-bf16"))) static float tiles_bf16(long n)
{
    TILE_LOOP(_tile_dpbf16ps)
}

/* CPUID leaf 7: what __builtin_cpu_supports of older compilers has no names for. */
static bool has_unit(int ebx_bit, int ecx_bit, int edx_bit)
{
    unsigned a, b, c, d;
    if (!has512() || !__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return false;
    return (ebx_bit < 0 || b >> ebx_bit & 1) && (ecx_bit < 0 || c >> ecx_bit & 1) && (edx_bit < 0 || d >> edx_bit & 1);
}

float ceiling_dot(enum ceiling_unit unit, long n, double *ops)
{
    *ops = 0;
    switch (unit) {
    case CEILING_FMA_F32:
        return __builtin_cpu_supports("avx2") ? ceiling_fma(has512() ? "avx512" : "avx2", n, ops) : 0;
    case CEILING_FMA_F16:
        if (!has_unit(30, -1, 23))
            return 0;
        *ops = (double)n * 10 * 2 * 32;
        return fma_f16(n);
    case CEILING_VNNI:
        if (!has_unit(-1, 11, -1))
            return 0;
        *ops = (double)n * 10 * 2 * 64;
        return vnni(n);
    case CEILING_AMX_INT8:
        if (!has_unit(-1, -1, 25) || !tiles_allowed())
            return 0;
        *ops = (double)n * 4 * 2 * 16 * 16 * 64;
        return tiles_int8(n);
    case CEILING_AMX_BF16:
        if (!has_unit(-1, -1, 22) || !tiles_allowed())
            return 0;
        *ops = (double)n * 4 * 2 * 16 * 16 * 32;
        return tiles_bf16(n);
    default:
        return 0;
    }
}
#else
float ceiling_dot(enum ceiling_unit unit, long n, double *ops)
{
    if (unit == CEILING_FMA_F32)
        return ceiling_fma("", n, ops);
    *ops = 0;
    return 0;
}

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

uint64_t ceiling_read_streams(const void *p, size_t n)
{
    enum { STREAMS = 4, LATER = 1536, SOON = 512 };
    const size_t part = n / STREAMS / 64 * 64;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < part; i += 64)
        for (size_t s = 0; s < STREAMS; s++) {
            const unsigned char *line = (const unsigned char *)p + s * part + i;
            uint64_t words[8];
            __builtin_prefetch((const void *)((uintptr_t)line + LATER), 0, 2);
            __builtin_prefetch((const void *)((uintptr_t)line + SOON), 0, 3);
            memcpy(words, line, 64);
            for (int k = 0; k < 8; k++)
                sum[k] ^= words[k];
        }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
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
