/* Which table of inner loops runs: looked up by name, or the best one that both this build and this CPU have. */
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif
#include <pthread.h>
#include <string.h>

#include "kernels/kernels.h"

#define N_ISAS 4

/* The kernel tables: filled once, before anybody sees them, and never changed again. */
static struct butler_kernels tables[N_ISAS];
static const char *names[N_ISAS + 1];
static int n_tables;
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
/* What the compiler's table of CPU features cannot be asked for by every compiler we support. */
static bool cpu_has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}

/* Tiles of bfloat16 and of bytes, vector instructions that make bfloat16, and a system that saves tiles: it lets a process
 * use them when asked. */
static bool cpu_has_amx(void)
{
    enum { TILE = 1 << 24, TILE_BF16 = 1 << 22, TILE_INT8 = 1 << 25, VECTOR_BF16 = 1 << 5 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & TILE) && (d & TILE_BF16) && (d & TILE_INT8) &&
           __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & VECTOR_BF16) &&
           syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

static void add_table(const struct butler_kernels *below, void (*improve)(struct butler_kernels *))
{
    struct butler_kernels *table = &tables[N_ISAS - 1 - n_tables++];
    *table = *below;
    if (improve)
        improve(table);
}

/* From the bottom up, because each ISA starts from the one below; the best ends up first. The checks are here and not in
 * the ISA files, whose every function may contain instructions that the CPU does not have. */
static void fill(void)
{
    add_table(&butler_kernels_ref, NULL);
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && cpu_has_f16c()) {
        add_table(&tables[N_ISAS - n_tables], butler_kernels_avx2);
        butler_kernels_keys_avx2(&tables[N_ISAS - n_tables]);
        butler_kernels_matmul_avx2(&tables[N_ISAS - n_tables]);
        butler_kernels_attend_avx2(&tables[N_ISAS - n_tables]);
        butler_kernels_one_bit_avx2(&tables[N_ISAS - n_tables]);
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl")) {
            add_table(&tables[N_ISAS - n_tables], butler_kernels_avx512);
            const bool vnni = __builtin_cpu_supports("avx512vnni");
            if (vnni) {
                butler_kernels_keys_vnni(&tables[N_ISAS - n_tables]);
                butler_kernels_matmul_vnni(&tables[N_ISAS - n_tables]);
                butler_kernels_one_bit_vnni(&tables[N_ISAS - n_tables]);
            }
            if (cpu_has_amx()) {
                add_table(&tables[N_ISAS - n_tables], butler_kernels_amx);
                if (vnni) {
                    butler_kernels_matmul_amx(&tables[N_ISAS - n_tables]);
                    butler_kernels_one_bit_amx(&tables[N_ISAS - n_tables]);
                }
            }
        }
    }
#elif defined(__aarch64__)
    add_table(&tables[N_ISAS - n_tables], butler_kernels_neon);
    butler_kernels_keys_neon(&tables[N_ISAS - n_tables]);
    if (getauxval(AT_HWCAP) & HWCAP_ASIMDDP)
        butler_kernels_keys_dot(&tables[N_ISAS - n_tables]);
#endif
    for (int i = 0; i < n_tables; i++)
        names[i] = tables[N_ISAS - n_tables + i].isa;
}

const struct butler_kernels *butler_kernels_get(const char *isa)
{
    pthread_once(&once, fill);
    for (int i = N_ISAS - n_tables; i < N_ISAS; i++) {
        if (!isa || strcmp(tables[i].isa, isa) == 0)
            return &tables[i];
    }
    return NULL;
}

const char *const *butler_kernels_available(void)
{
    pthread_once(&once, fill);
    return names;
}
