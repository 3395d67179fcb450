/* The inner loops of the CPU backend. ref.c is plain C and defines what each entry computes; avx2.c, avx512.c, amx.c and
 * neon.c fill the same table for their instructions; an entry an ISA does not improve is taken from the ISA below. Chosen once.
 *
 * Conventions: x, y, s, q, acc are float; rows of weights and of the cache may start at any byte; n is the length of a row
 * (weights: a multiple of the type's block; cache rows: a multiple of 32 for Q8_0, else any n >= 1). No pointer may
 * alias another unless said. Nothing is read or written outside the stated shapes, not even by a vector load.
 */
#ifndef BUTLER_KERNELS_H
#define BUTLER_KERNELS_H

#include "file/gguf.h"
#include "kernels/views.h"

enum {
    BUTLER_TILE_K = 32,
    BUTLER_TILE_BYTES = 2048,
    BUTLER_ATTEND_ROWS = 32, /* queries and keys that meet at a time */
    BUTLER_ATTEND_KEYS = 64,
    BUTLER_PAIRS_NEXT = 64,
    BUTLER_KEY_PANEL = 32, /* keys whose elements lie together where a prompt meets them in vectors */
};
#define BUTLER_ATTEND_LEAST (-1e30f)
#define BUTLER_Q16_MAX 32639.0f           /* 127 * 256 + 127 */
#define BUTLER_Q16_LEAST_ABSMAX 0x1p-100f /* groups of columns with a smaller absmax count as 0 */
#define BUTLER_Q8_MAX 127.0f
enum { BUTLER_Q8_TOKENS = 16 }; /* whose activations lie together */

static inline size_t butler_packed_bytes(int n, int k)
{
    return BUTLER_CEIL_DIV((size_t)n, 16) * BUTLER_CEIL_DIV((size_t)k, BUTLER_TILE_K) * BUTLER_TILE_BYTES;
}

/* Activations of n columns in 16-bit integers: at most 4 bytes a column, the last 128 columns filled up. */
static inline size_t butler_q16_bytes(int n)
{
    return BUTLER_CEIL_DIV((size_t)n, 128) * 128 * 4;
}

/* Of BUTLER_Q8_TOKENS tokens in 8-bit integers: of a unit of 32 or 16 columns, and of n, a multiple of 32. */
static inline size_t butler_q8_unit_bytes(int columns)
{
    return BUTLER_Q8_TOKENS * ((size_t)columns + 8);
}
static inline size_t butler_q8_bytes(int n)
{
    return (size_t)n / 16 * butler_q8_unit_bytes(16);
}

/* Of unpacked rows of n columns. */
static inline size_t butler_q8_panel_bytes(int n_rows, int n)
{
    return BUTLER_CEIL_DIV((size_t)n_rows, 16) * 16 * (size_t)n / 16 * 24;
}

enum {
    BUTLER_ONE_BIT_CHANNELS = 512, /* most of a record */
    BUTLER_ONE_BIT_MOST = 127,     /* of a query's integers */
};

static inline size_t butler_one_bit_bytes(int n)
{
    const size_t m = ((size_t)n + 3) / 4 * 4;
    return (size_t)n * 2 + m + m * 4 + sizeof(float);
}
/* What one_bit_bounds reads of it. */
static inline size_t butler_one_bit_bounds_bytes(int n)
{
    return butler_one_bit_bytes(n) - ((size_t)n + 3) / 4 * 16;
}

/* Accumulates attention over one more chunk of keys and values (online softmax). All operands are packed. A query's scores are
 * products with keys, as they are: queries come scaled. Each float is split into two bfloat16; the low x low term is dropped;
 * subnormal numbers may count as 0. Weights are 2^(score log2(e) - max), max the least whole number that keeps the weights of all
 * keys so far at 1 or below, one for each BUTLER_ATTEND_KEYS keys; weights below 2^-126, and of keys that are not seen, are 0. The
 * result of a query does not depend on the others. Arrays have n_rows rounded up to BUTLER_ATTEND_ROWS; what lies beyond is read
 * and written.
 */
struct butler_attention {
    const void *queries; /* pack_columns, lines of dim */
    const void *keys;    /* pack_rows, lines of dim, n_keys rounded up to BUTLER_ATTEND_KEYS; key i at butler_attend_place(i) */
    const void *values; /* pack_transposed, dim rounded up to 32 lines of as many keys as there are lines of them, in their order */
    const int32_t *begin, *end; /* of the keys that a query sees */
    float *max, *sum;           /* so far; BUTLER_ATTEND_LEAST and 0 before the first keys */
    float *out;                 /* sum of weighted values: [16 queries of 32][channels rounded up to 32] as butler_attend_at says */
    float *kept;                /* weights [n_rows][kept_stride], n_keys of them where any of 32 neighbours sees any; may be NULL */
    float *maxima;              /* where they are kept: [BUTLER_ATTEND_KEYS keys][maxima_stride], the max that they have */
    size_t kept_stride, maxima_stride;
    int n_rows, n_keys, dim;
};

/* Rows of the cache that lie anywhere: keys, each with its value `value_offset` bytes behind it. The list goes on with the keys
 * that the next call begins with, for a kernel to prefetch: nothing else is done with them. */
struct butler_pairs {
    const void *const *keys; /* [n + n_next] */
    size_t value_offset;     /* bytes from a key to its value */
    int n, n_next;           /* n >= 1; of n_next up to BUTLER_PAIRS_NEXT are of use */
};

/* Even keys of 32, then odd ones: pairs of their weights lie together without a step across lanes. */
static inline int butler_attend_place(int key)
{
    return key / 32 * 32 + key % 2 * 16 + key % 32 / 2;
}

/* Where the sum of a query's values lies in out: tiles of 16 channels by 16 queries. */
static inline size_t butler_attend_at(int row, int channel, int dim)
{
    const size_t tiles = BUTLER_CEIL_DIV((size_t)dim, 32) * 2;
    return ((size_t)(row / 32) * tiles + (size_t)(channel / 16)) * 512 +
           (size_t)(row % 32 / 16 * 256 + channel % 16 * 16 + row % 16);
}

struct butler_kernels {
    const char *isa; /* "ref", "avx2", "avx512", "amx", "neon" */

    /* -- weights: [n_rows] rows of n elements, row_bytes apart. */

    /* y[n] = the row as floats */
    void (*dequant[BUTLER_N_TYPES])(float *y, const void *row, int n);
    /* y[t * y_stride + r] = sum_c w[r * n + c] * x[t * x_stride + c], r < n_rows, t < n_tokens: w is dequantised and dense. A pair
     * (token, row) is summed in the same order whatever the other tokens and rows are. */
    void (*gemm)(float *y, size_t y_stride, const float *w, int n_rows, const float *x, size_t x_stride, int n_tokens, int n);
    /* y[r] = sum_c W[r][c] * x[c]: bit for bit what gemm makes of dequantised rows. */
    void (*gemv[BUTLER_N_TYPES])(float *y, const void *w, size_t row_bytes, int n_rows, const float *x, int n);
    /* The same products for quantised types (NULL for others) with activations in 16-bit integers: of each 32
     * columns x = scale q, scale = absmax / most (below BUTLER_Q16_LEAST_ABSMAX all count as 0), q to nearest; most is
     * BUTLER_Q16_MAX or, for activations in 8-bit integers, BUTLER_Q8_MAX.
     * quantise_q16 makes what the type's product takes of one token, in butler_q16_bytes(n) bytes at a multiple of 64; alone: for a
     * call with one token. matmul_q16 takes n_tokens of them one after the other and gives y[t * y_stride + r]. Sums of integers
     * that share both scales are exact; sums of different scales are added in an order that depends on n alone: a pair (token,
     * row) has the same bits in every call. Where x has an infinity or a NaN, y is none of the numbers. */
    bool q16; /* whether products of quantised types are these; else gemm and gemv make them */
    void (*quantise_q16)(void *q16, enum butler_type type, const float *x, int n, bool alone, float most);
    void (*matmul_q16[BUTLER_N_TYPES])(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16,
                                       int n_tokens, int n);
    /* matmul_q16 for tokens quantised alone, to BUTLER_Q8_MAX: their high bytes, all 0, are not multiplied. NULL: not faster. */
    void (*matmul_low[BUTLER_N_TYPES])(float *y, size_t y_stride, const void *w, size_t row_bytes, int n_rows, const void *q16,
                                       int n_tokens, int n);
    /* Activations in 8-bit integers for many tokens, with the bits of matmul_q16 for them. quantise_q8 makes blocks of
     * BUTLER_Q8_TOKENS tokens, each in butler_q8_bytes(n) bytes at a multiple of 64: here of n_tokens <= BUTLER_Q8_TOKENS,
     * x[n_tokens] [n]. unpack_q8 makes a panel of rows, at a multiple of 64, as q8_signed says; multiply_q8 takes it and the blocks
     * of all tokens and gives y[t * y_stride + r]. */
    bool q8_signed;
    void (*quantise_q8)(void *q8, enum butler_type type, const float *x, int n_tokens, int n);
    void (*unpack_q8[BUTLER_N_TYPES])(void *panel, const void *w, size_t row_bytes, int n_rows, int n, bool is_signed);
    void (*multiply_q8[BUTLER_N_TYPES])(float *y, size_t y_stride, const void *panel, int n_rows, const void *q8, int n_tokens,
                                        int n);

    /* -- blocks for a matrix unit. An operand is n lines (rows of the left one, columns of the right) of k numbers, packed
     *    into tiles of 16 lines and BUTLER_TILE_K of k: all k of 16 lines, then of the next 16, in butler_packed_bytes(n, k)
     *    bytes at a multiple of 64. Each number is the sum of two bfloat16, high and low; a tile has all its high parts,
     *    then the low. Rows lie one after the other; of columns, pairs of neighbours in k do. What is missing in a tile is 0. */

    bool tiles;                                                                      /* the CPU has a matrix unit: packing pays */
    void (*pack_rows)(void *packed, const float *x, size_t stride, int n, int k);    /* row i: x[i * stride + c] */
    void (*pack_columns)(void *packed, const float *x, size_t stride, int n, int k); /* column i: x[i * stride + c] */
    void (*pack_transposed)(void *packed, const float *x, size_t stride, int n, int k); /* row i: x[c * stride + i] */
    void (*attend_packed)(const struct butler_attention *attention);

    /* -- vectors */
    float (*dot)(const float *x, const float *y, int n);
    void (*add)(float *y, const float *x, int n);                                                           /* y += x */
    void (*axpy)(float *y, float a, const float *x, int n);                                                 /* y += a x */
    void (*scale)(float *y, float a, int n);                                                                /* y *= a */
    void (*rms_norm)(float *y, const float *x, const float *weight, int n, float eps);                      /* y may be x */
    void (*layer_norm)(float *y, const float *x, const float *weight, const float *bias, int n, float eps); /* y may be x */
    void (*silu_mul)(float *y, const float *gate, const float *up, int n); /* silu(gate) * up; y may be gate or up */
    void (*gelu)(float *y, int n);                                         /* tanh approximation, in place */
    float (*max)(const float *x, int n);                                   /* n >= 1 */
    float (*exp_sum)(float *x, float max, int n);                          /* x = exp(x - max) in place, returns the sum */
    /* Rotates pairs of x[n_rot] by cos[n_rot/2], sin[n_rot/2]: (a, b) -> (a c - b s, a s + b c). */
    void (*rope_adjacent)(float *x, const float *cos, const float *sin, int n_rot);
    void (*rope_halves)(float *x, const float *cos, const float *sin, int n_rot);

    /* -- cache rows of n elements, indexed by enum butler_kv_type. Q8_0 rows are n/32 blocks {f16 scale, 32 int8}. */
    void (*store_row[BUTLER_N_KV_TYPES])(void *row, const float *x, int n);
    void (*load_row[BUTLER_N_KV_TYPES])(float *x, const void *row, int n);
    /* s[i * s_stride + j] = q_i . rows[j], i < n_q, j < n_rows; q_i = q + i * q_stride. The value for (i, j) does not
     * depend on n_q or n_rows. */
    void (*qk[BUTLER_N_KV_TYPES])(float *s, size_t s_stride, const float *q, size_t q_stride, int n_q, const void *const *rows,
                                  int n_rows, int n);
    /* acc_i += sum_j p[i * p_stride + j] * rows[j] in order of j; acc_i = acc + i * acc_stride. */
    void (*av[BUTLER_N_KV_TYPES])(float *acc, size_t acc_stride, const float *p, size_t p_stride, int n_q, const void *const *rows,
                                  int n_rows, int n);
    /* -- attention of a prompt: many queries meet keys and values that are floats. */

    /* packed[((j / P) * dim + d) * P + j % P] = keys[j * dim + d], P = BUTLER_KEY_PANEL, j < n_keys; 0 for keys that the last panel
     * lacks. */
    void (*pack_keys)(float *packed, const float *keys, int n_keys, int dim);
    /* s[i * s_stride + j] = q_i . key j, i < n_q, j < n_keys; q_i = q + i * dim; keys: of pack_keys. The value for (i, j) does not
     * depend on n_q or n_keys. */
    void (*score_keys)(float *s, size_t s_stride, const float *q, int n_q, const float *keys, int n_keys, int dim);
    /* s = 2^(s log2(e) - max) in place, below 2^-126 that; returns the sum. n >= 0. */
    float (*weigh)(float *s, float max, int n);
    /* acc_i += sum_j p[i * p_stride + j] * values[j * dim + d] in order of j; acc_i = acc + i * dim. */
    void (*add_values)(float *acc, const float *p, size_t p_stride, int n_q, const float *values, int n_keys, int dim);

    /* One pass of decode over keys and their values: out.s as qk gives it (NULL: not wanted), top_i = max_j s_ij, acc_i = sum_j
     * exp(s_ij - top_i) value_j, sum_i the same without values. What belongs to a query does not depend on q.n. attend_q16: for
     * Q8_0 rows of at most 256 elements q is in 16-bit integers with a scale for each 32 elements, as in matmul_q16. */
    bool attend_q16;
    void (*attend[BUTLER_N_KV_TYPES])(struct butler_attended out, struct butler_vectors q, const struct butler_pairs *pairs, int n);

    /* -- what metrics scan. A half is an IEEE binary16. */

    /* Page bounds: record = {half max[n], half min[n]}, record_bytes apart.
     * s[i * s_stride + j] = sum_d (q_i[d] >= 0 ? q_i[d] * max_j[d] : q_i[d] * min_j[d]); q_i = q + i * n. */
    void (*page_bounds)(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                        int n);
    /* The same with a maximum over d instead of the sum. */
    void (*page_bounds_max)(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                            int n_records, int n);
    /* One-bit keys, n <= BUTLER_ONE_BIT_CHANNELS: record = {half low[n], uint8 range[m], uint8 bits[m / 4][16], float unit}, m = n
     * rounded up to a multiple of 4, butler_one_bit_bytes(n) bytes; channels beyond n are not counted. bits[c] has a nibble for
     * each of a group's 32 tokens, token t's in byte t / 2, the even ones' in the low half; its bit j is that of channel 4c + j.
     * q_i[d] becomes an integer, x_i[d] = q_i[d] / factor_i to nearest, factor_i = max_d |q_i[d]| / BUTLER_ONE_BIT_MOST.
     * s[i * s_stride + 32 j + t] = sum_d q_i[d] low_j[d] + factor_i unit_j (sum of x_i[d] range_j[d] over the bits that are set),
     * t < 32, j < n_records. q_i = q + i * n. The products x_i[d] range_j[d] are rounded to multiples of one_bit_step, halves up: 1
     * where they are taken as they are, 256 where bytes are what an ISA multiplies, which is far finer than a key's one bit. */
    int one_bit_step;
    void (*one_bit)(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                    int n);
    /* Page bounds of the same records, which a group's lowest keys and ranges are: s[i * s_stride + j] = sum_d (q_i[d] >= 0 ?
     * q_i[d] (low_j[d] + unit_j range_j[d]) : q_i[d] low_j[d]), q_i = q + i * n. The bits are not read. */
    void (*one_bit_bounds)(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes,
                           int n_records, int n);
    /* Predicted keys, 16 tokens a record; n a multiple of 4. keys8: record = {uint8 scale[16], uint8 k[n/4][16][4]}, where
     * channel 4c+j of token t is (k[c][t][j] - 128) scale[t], a byte b being the scale (1 + (b % 8) / 8) 2^(b / 8 - 23) (blocks.h);
     * queries q_i = q.at + i * n are int8 with a factor each.
     * s.at[i * s.stride + 16 r + t] = (float)(sum_d q_i[d] (k_rt[d] - 128)) * scale_r[t] * factor[i], the sum in integers. */
    void (*keys8)(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n);
    /* keys4: the same with record = {uint8 scale[16], uint8 k[n/8][16][4]}, n a multiple of 8, where channels 8c+j and 8c+4+j of
     * token t are the low and the high half of k[c][t][j], less 8, times scale[t]. */
    void (*keys4)(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n);
    /* keys16: record = {half k[n][16]}. s[i * s_stride + 16 r + t] = sum_d q_i[d] * k_r[d][t]. */
    void (*keys16)(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                   int n);

    /* -- what selection scans */

    /* log of sum_i exp(scale * x[i]); scale > 0, n >= 1 */
    float (*log_sum_exp)(const float *x, float scale, int n);
    /* Mean and standard deviation of x[n], n >= 1: of the numbers themselves, not of what they are a sample of. */
    void (*moments)(const float *x, int n, float *mean, float *deviation);
    /* y[i] = max over r < n_rows of (scale[r] * x[r * x_stride + i] - shift[r]), NaN passed over; -inf where all are. y may be x.
     */
    void (*group_max)(float *y, const float *x, size_t x_stride, const float *scale, const float *shift, int n_rows, int n);
    /* How many of x[n] are >= bound. */
    int (*count_reaching)(const float *x, float bound, int n);
    /* first + i of each of them into ids, ascending; ids has room for n. Returns their number. */
    int (*list_reaching)(uint32_t *ids, uint32_t first, const float *x, float bound, int n);
    /* Moves the ids[n] whose x is >= bound to the front of ids, in order. Returns their number. */
    int (*keep_reaching)(uint32_t *ids, const float *x, float bound, int n);
    /* Copies the x[n] that are >= low but not >= high into values, in order; it has room for n. Returns their number; *n_high: how
     * many are >= high. */
    int (*keep_between)(float *values, const float *x, float low, float high, int n, int *n_high);
    /* Bit b of bits[w] = (bytes[64 w + b] is not 0), w < n_words. Returns how many of the bits now set were set before. */
    int (*note_bytes)(uint64_t *bits, const uint8_t *bytes, int n_words);
};

enum { BUTLER_KEYS_TOKENS = 16 /* of a record of predicted keys */ };

/* The table for an ISA by name (NULL: the best this CPU has), or NULL if this CPU or this build lacks it. Never changes. */
const struct butler_kernels *butler_kernels_get(const char *isa);
/* ISA names this build and CPU have, best first, NULL-terminated. */
const char *const *butler_kernels_available(void);

/* Each fills a table that holds the ISA below. dispatch.c alone calls these, and only on a CPU that has the instructions. */
extern const struct butler_kernels butler_kernels_ref;
void butler_kernels_avx2(struct butler_kernels *table);
void butler_kernels_avx512(struct butler_kernels *table);
void butler_kernels_keys_avx2(struct butler_kernels *table); /* predicted keys alone */
void butler_kernels_keys_vnni(struct butler_kernels *table);
void butler_kernels_matmul_avx2(struct butler_kernels *table); /* products with quantised weights alone */
void butler_kernels_matmul_vnni(struct butler_kernels *table);
void butler_kernels_attend_avx2(struct butler_kernels *table);  /* decode attention over Q8_0 rows alone */
void butler_kernels_one_bit_avx2(struct butler_kernels *table); /* one-bit keys alone */
void butler_kernels_one_bit_vnni(struct butler_kernels *table);
void butler_kernels_matmul_amx(struct butler_kernels *table);
void butler_kernels_one_bit_amx(struct butler_kernels *table);
void butler_kernels_amx(struct butler_kernels *table);
void butler_kernels_neon(struct butler_kernels *table);
void butler_kernels_keys_neon(struct butler_kernels *table);
void butler_kernels_keys_dot(struct butler_kernels *table);

#endif
