/* The layout of a stored row: halves, bfloat16 and the quantised blocks of GGUF files. weight_types.c and the kernels read
 * rows by these offsets. Rows may start at any byte, so everything wider than a byte is loaded by memcpy. */
#ifndef BUTLER_WEIGHT_BLOCKS_H
#define BUTLER_WEIGHT_BLOCKS_H

#include <stdint.h>
#include <string.h>

/* Elements of a block: the first group, the K types. */
#define BLOCK 32
#define SUPER 256

/* Bytes of a block and where its parts are; the scale d (and minimum m) are halves, nibbles hold element i in the low and
 * i + 16 (Q4_K, Q5_K: i + 32) in the high half of a byte. */
enum {
    Q8_0_BYTES = 34, /* d, int8[32]                   x = d q */
    Q8_0_QUANTS = 2,
    Q4_0_BYTES = 18, /* d, nibbles[16]                x = d (q - 8) */
    Q4_0_QUANTS = 2,
    Q4_1_BYTES = 20, /* d, m, nibbles[16]             x = d q + m */
    Q4_1_QUANTS = 4,
    Q5_0_BYTES = 22, /* d, fifth bits, nibbles[16]    x = d (q - 16) */
    Q5_0_HIGH = 2,
    Q5_0_QUANTS = 6,
    Q5_1_BYTES = 24, /* d, m, fifth bits, nibbles[16] x = d q + m */
    Q5_1_HIGH = 4,
    Q5_1_QUANTS = 8,
    Q4_K_BYTES = 144, /* d, m, packed scales[12], nibbles[4][32]: 8 groups of 32, x = d s q - m t */
    Q4_K_SCALES = 4,
    Q4_K_QUANTS = 16,
    Q5_K_BYTES = 176, /* the same with fifth bits[32]: bit g of byte i belongs to element i of group g */
    Q5_K_HIGH = 16,
    Q5_K_QUANTS = 48,
    Q6_K_BYTES = 210, /* low nibbles[2][64], high pairs[2][32], int8 scales[16], d: 16 groups of 16, x = d s (q - 32) */
    Q6_K_HIGH = 128,
    Q6_K_SCALES = 192,
    Q6_K_SCALE = 208,
    /* Q2_K, Q3_K and TQ2_0 hold two bits of element i in byte i / 128 * 32 + i % 32, at bit i / 32 % 4 * 2. */
    Q2_K_BYTES = 84, /* scale and minimum nibbles[16], pairs[64], d, m: 16 groups of 16, x = d s q - m t */
    Q2_K_QUANTS = 16,
    Q2_K_SCALE = 80,
    Q3_K_BYTES = 110, /* third bits[32] (bit i / 32 of byte i % 32), pairs[64], packed scales[12], d: x = d (s - 32) (q - 4) */
    Q3_K_QUANTS = 32,
    Q3_K_SCALES = 96,
    Q3_K_SCALE = 108,
    IQ4_NL_BYTES = 18, /* d, nibbles[16]: x = d IQ4_VALUES[q] */
    IQ4_NL_QUANTS = 2,
    IQ4_XS_BYTES = 136, /* d, packed scales[6], nibbles[8][16]: 8 groups of 32, x = d (s - 32) IQ4_VALUES[q] */
    IQ4_XS_SCALES = 2,
    IQ4_XS_QUANTS = 8,
    MXFP4_BYTES = 17, /* exponent e, nibbles[16]: x = 2^(e - 128) MXFP4_VALUES[q] */
    MXFP4_QUANTS = 1,
    TQ1_0_BYTES = 54, /* five digits to the base 3 a byte[48], four digits a byte[4], d: x = d (digit - 1) */
    TQ1_0_SCALE = 52,
    TQ2_0_BYTES = 66, /* pairs[64], d: x = d (q - 1) */
    TQ2_0_SCALE = 64,
};

/* The weight of a nibble. MXFP4's 4-bit floats are doubled, so that all are integers. */
static const int8_t IQ4_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t MXFP4_VALUES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline uint16_t load_u16(const void *p)
{
    uint16_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline uint32_t load_u32(const void *p)
{
    uint32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float load_f32(const void *p)
{
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

static inline float bits_to_float(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

static inline uint32_t float_to_bits(float f)
{
    uint32_t v;
    memcpy(&v, &f, sizeof v);
    return v;
}

static inline float half_to_float(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, rest = h & 0x7fff;
    if (rest >= 0x7c00) /* infinity; a NaN comes out quiet, as from the hardware */
        return bits_to_float(sign | 0x7f800000 | rest << 13 | (rest > 0x7c00 ? 0x400000 : 0));
    /* Read with a float's exponent bias the number is 2^112 times too small; the product is exact, also for subnormals. */
    return bits_to_float(sign | float_to_bits(bits_to_float(rest << 13) * 0x1p112f));
}

static inline uint16_t float_to_half(float f)
{
    uint32_t bits = float_to_bits(f), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
    if (rest > 0x7f800000)
        return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x47800000) /* 2^16 and above */
        return (uint16_t)(sign | 0x7c00);
    if (rest < 0x38800000) /* below 2^-14: the last bit of 0.5 is 2^-24, the unit of subnormals, so the addition rounds */
        return (uint16_t)(sign | (float_to_bits(bits_to_float(rest) + 0.5f) - 0x3f000000));
    rest += 0xfff + (rest >> 13 & 1);
    return (uint16_t)(sign | (rest - 0x38000000) >> 13);
}

static inline float load_half(const void *p)
{
    return half_to_float(load_u16(p));
}

static inline void store_half(void *p, float f)
{
    uint16_t h = float_to_half(f);
    memcpy(p, &h, sizeof h);
}

/* A Q8_0 block that has a number which is not finite. Its codes could not say so: its scale does, in every product with it. */
static inline void store_q8_0_not_finite(uint8_t b[Q8_0_BYTES])
{
    store_half(b, bits_to_float(0x7fc00000));
    memset(b + Q8_0_QUANTS, 0, Q8_0_BYTES - Q8_0_QUANTS);
}

static inline float bf16_to_float(uint16_t b)
{
    return bits_to_float((uint32_t)b << 16);
}

static inline uint16_t float_to_bf16(float f)
{
    uint32_t bits = float_to_bits(f);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Towards zero, and into [low, high] also for NaN, whose conversion would be undefined. */
static inline int clamp_to_int(float v, int low, int high)
{
    if (!(v >= (float)low))
        return low;
    return v > (float)high ? high : (int)v;
}

/* The 12 bytes of a Q4_K or Q5_K block hold eight 6-bit scales and eight 6-bit minima: byte j the scale of group j and,
 * in its two top bits, the top of group j + 4's; byte j + 4 the same for minima; byte j + 8 the low four bits of the scale
 * and of the minimum of group j + 4. Four groups fit one 32-bit word: a byte per group. */
static inline void unpack_k_scales(const uint8_t packed[12], uint8_t scales[8], uint8_t minima[8])
{
    uint32_t a = load_u32(packed), b = load_u32(packed + 4), c = load_u32(packed + 8);
    uint32_t words[4] = {a & 0x3f3f3f3f, (c & 0x0f0f0f0f) | (a >> 2 & 0x30303030), b & 0x3f3f3f3f,
                         (c >> 4 & 0x0f0f0f0f) | (b >> 2 & 0x30303030)};
    memcpy(scales, words, 8);
    memcpy(minima, words + 2, 8);
}

/* Subtracts 32 from each of eight 6-bit numbers, a byte each: the top bit, set before, stops a borrow from the next byte. */
static inline uint64_t less_32(uint64_t bytes)
{
    return ((bytes | 0x8080808080808080) - 0x2020202020202020) ^ 0x8080808080808080;
}

/* The 16 scales of a Q3_K block, signed bytes: the low four bits of scale g in nibble g / 8 of byte g % 8, the top two at bit
 * g / 4 * 2 of byte 8 + g % 4. */
static inline void unpack_q3_scales(const uint8_t packed[12], uint64_t scales[2])
{
    const uint64_t low = load_u32(packed) | (uint64_t)load_u32(packed + 4) << 32, high = load_u32(packed + 8);
    const uint64_t pairs = high | high << 30; /* of groups 0 to 7, at the bottom of each byte */
    scales[0] = less_32((low & 0x0f0f0f0f0f0f0f0f) | (pairs & 0x0303030303030303) << 4);
    scales[1] = less_32((low >> 4 & 0x0f0f0f0f0f0f0f0f) | (pairs >> 4 & 0x0303030303030303) << 4);
}

/* The 8 scales of an IQ4_XS block, signed bytes: 16 bits, the top two of each scale, then nibbles, the low four bits. */
static inline uint64_t unpack_iq4_scales(const uint8_t packed[6])
{
    uint64_t high = load_u16(packed), low = load_u32(packed + 2);
    low = (low | low << 16) & 0x0000ffff0000ffff;
    low = (low | low << 8) & 0x00ff00ff00ff00ff;
    low = (low | low << 4) & 0x0f0f0f0f0f0f0f0f;
    high = (high | high << 24) & 0x000000ff000000ff;
    high = (high | high << 12) & 0x000f000f000f000f;
    high = (high | high << 6) & 0x0303030303030303;
    return less_32(low | high << 4);
}

/* q[r n + i] = digit r of byte i, the most significant first. A byte is ceil(256 f), f = 0.d0 d1 d2 ... to the base 3: 3^r times
 * the byte, modulo 256, is the same for 0.dr ..., and 3 times that, divided by 256, is dr. */
static inline void tq1_row_digits(uint8_t *q, const uint8_t *bytes, int n, int n_digits)
{
    for (int r = 0, power = 1; r < n_digits; r++, power *= 3)
        for (int i = 0; i < n; i++)
            q[r * n + i] = (uint8_t)((uint16_t)(uint8_t)(bytes[i] * power) * 3 >> 8);
}

/* The digits of a TQ1_0 block, 0 to 2, in the order of its elements. */
static inline void tq1_digits(uint8_t q[SUPER], const uint8_t *block)
{
    tq1_row_digits(q, block, 32, 5);
    tq1_row_digits(q + 160, block + 32, 16, 5);
    tq1_row_digits(q + 240, block + 48, 4, 4);
}

/* MXFP4's scale, 2^(e - 128), which is subnormal for e < 2. */
static inline float mxfp4_scale(uint8_t e)
{
    return bits_to_float(e < 2 ? 0x200000u << e : (uint32_t)(e - 1) << 23);
}

#endif
