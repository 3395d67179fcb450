/* The types that weights have in a file: their blocks, rows to floats, floats to rows. In plain C; the kernels do the same
 * faster. */
#ifndef BUTLER_WEIGHT_TYPES_H
#define BUTLER_WEIGHT_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Tensor types, with ggml's numbers. */
enum butler_type {
    BUTLER_F32 = 0,
    BUTLER_F16 = 1,
    BUTLER_Q4_0 = 2,
    BUTLER_Q4_1 = 3,
    BUTLER_Q5_0 = 6,
    BUTLER_Q5_1 = 7,
    BUTLER_Q8_0 = 8,
    BUTLER_Q2_K = 10,
    BUTLER_Q3_K = 11,
    BUTLER_Q4_K = 12,
    BUTLER_Q5_K = 13,
    BUTLER_Q6_K = 14,
    BUTLER_IQ4_NL = 20,
    BUTLER_IQ4_XS = 23,
    BUTLER_BF16 = 30,
    BUTLER_TQ1_0 = 34,
    BUTLER_TQ2_0 = 35,
    BUTLER_MXFP4 = 39,
    BUTLER_N_TYPES = 40, /* size of a table indexed by type; entries between are empty */
};

/* All of them: constant, name in functions, elements and bytes of a block. */
#define BUTLER_WEIGHT_TYPES(each)                                                                                                  \
    each(F32, f32, 1, 4) each(F16, f16, 1, 2) each(BF16, bf16, 1, 2) each(Q8_0, q8_0, 32, 34) each(Q4_0, q4_0, 32, 18)             \
        each(Q4_1, q4_1, 32, 20) each(Q5_0, q5_0, 32, 22) each(Q5_1, q5_1, 32, 24) each(Q2_K, q2_k, 256, 84)                       \
            each(Q3_K, q3_k, 256, 110) each(Q4_K, q4_k, 256, 144) each(Q5_K, q5_k, 256, 176) each(Q6_K, q6_k, 256, 210)            \
                each(IQ4_NL, iq4_nl, 32, 18) each(IQ4_XS, iq4_xs, 256, 136) each(MXFP4, mxfp4, 32, 17) each(TQ1_0, tq1_0, 256, 54) \
                    each(TQ2_0, tq2_0, 256, 66)

/* Elements and bytes of a block, which compilers know where the type is a constant. */
#define BUTLER_BLOCK_CASE(type, name, block, bytes)                                                                                \
    case BUTLER_##type:                                                                                                            \
        return block;
#define BUTLER_BYTES_CASE(type, name, block, bytes)                                                                                \
    case BUTLER_##type:                                                                                                            \
        return bytes;
static inline int butler_type_block(enum butler_type type)
{
    switch (type) {
        BUTLER_WEIGHT_TYPES(BUTLER_BLOCK_CASE)
    default:
        return 1;
    }
}
static inline int butler_type_bytes(enum butler_type type)
{
    switch (type) {
        BUTLER_WEIGHT_TYPES(BUTLER_BYTES_CASE)
    default:
        return 1;
    }
}
#undef BUTLER_BLOCK_CASE
#undef BUTLER_BYTES_CASE

/* Their names, each after a space, for messages. */
#define BUTLER_TYPE_NAME(type, ...) " " #type
#define BUTLER_TYPE_NAMES BUTLER_WEIGHT_TYPES(BUTLER_TYPE_NAME)

/* y[n] = the row; n is a multiple of the block. The row may start at any byte. */
typedef void butler_dequantize_fn(float *y, const void *row, int n);
#define BUTLER_DECLARE_DEQUANTIZE(type, name, ...) butler_dequantize_fn butler_dequantize_##name;
BUTLER_WEIGHT_TYPES(BUTLER_DECLARE_DEQUANTIZE)
#undef BUTLER_DECLARE_DEQUANTIZE

struct butler_type_info {
    const char *name; /* "Q8_0"; NULL: not a type we know */
    int block;        /* elements per block */
    int block_bytes;
    butler_dequantize_fn *dequantize;
};
extern const struct butler_type_info butler_types[BUTLER_N_TYPES];
bool butler_type_known(uint32_t type);
/* ggml's name of any type, also of one we cannot read; "unknown" where ggml has none either. */
const char *butler_type_name(uint32_t type);
/* Bytes of a row of n elements (n a multiple of the block). */
size_t butler_row_bytes(enum butler_type type, int64_t n);

/* Rounds x[n] to a row of the type. Only F32, F16, BF16, Q8_0, Q6_K, Q4_K and Q4_0 can be written, and only whole blocks:
 * false otherwise. */
bool butler_quantize_row(enum butler_type type, void *row, const float *x, int n);

/* binary16 to float and back, round to nearest even. */
float butler_half_to_float(uint16_t h);
uint16_t butler_float_to_half(float f);

#endif
