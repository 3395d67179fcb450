/* The table's decode attention, from the loops of simd_attend.h. Included behind it. */
#ifndef BUTLER_SIMD_ATTEND_ROWS_H
#define BUTLER_SIMD_ATTEND_ROWS_H

#ifndef ATTEND_ANY /* simd_narrow.h has another */
#define ATTEND_ANY attend_any
#endif

/* The lengths of most models (32: of a predictor's own attention) are constants: loops that are as long as that are none. Each has
 * a function of its own: compilers do badly with all in one. */
#define ATTEND_LENGTH(name, type, length)                                                                                          \
    static __attribute__((noinline)) void name(struct butler_attended out, struct butler_vectors q,                                \
                                               const struct butler_pairs *pairs, int n)                                            \
    {                                                                                                                              \
        (void)n;                                                                                                                   \
        ATTEND_ANY(type, out, q, pairs, length);                                                                                   \
    }
#define ATTEND_TYPE(name, type)                                                                                                    \
    ATTEND_LENGTH(name##_32, type, 32)                                                                                             \
    ATTEND_LENGTH(name##_64, type, 64)                                                                                             \
    ATTEND_LENGTH(name##_128, type, 128)                                                                                           \
    ATTEND_LENGTH(name##_other, type, n)                                                                                           \
    static void name(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n)                 \
    {                                                                                                                              \
        (n == 64 ? name##_64 : n == 128 ? name##_128 : n == 32 ? name##_32 : name##_other)(out, q, pairs, n);                      \
    }

ATTEND_LENGTH(attend_f32, ROW_F32, n) /* a type of tests */
ATTEND_TYPE(attend_f16, ROW_F16)
ATTEND_TYPE(attend_q8_0, ROW_Q8_0)

INLINE void fill_attend(struct butler_kernels *table)
{
    table->attend[BUTLER_KV_F32] = attend_f32;
    table->attend[BUTLER_KV_F16] = attend_f16;
    table->attend[BUTLER_KV_Q8_0] = attend_q8_0;
    table->attend_q16 = false;
}

#endif
