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
};

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

#endif
