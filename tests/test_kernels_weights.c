/* Rows of every weight type on every ISA: what a row means, element by element; products against double precision; rows
 * that start at any byte and end where memory ends; and results that do not depend on how rows are split. */
#include "kernel_test.h"

static const enum butler_type types[] = {BUTLER_F32,  BUTLER_F16,    BUTLER_BF16,   BUTLER_Q8_0,  BUTLER_Q4_0,  BUTLER_Q4_1,
                                         BUTLER_Q5_0, BUTLER_Q5_1,   BUTLER_Q2_K,   BUTLER_Q3_K,  BUTLER_Q4_K,  BUTLER_Q5_K,
                                         BUTLER_Q6_K, BUTLER_IQ4_NL, BUTLER_IQ4_XS, BUTLER_MXFP4, BUTLER_TQ1_0, BUTLER_TQ2_0};

/* An element of a row, d q + m, and |d q| + |m|, which bounds the rounding of any way to compute it. */
struct element {
    double value, magnitude;
};

static struct element element_of(double scaled, double m)
{
    return (struct element){scaled + m, fabs(scaled) + fabs(m)};
}

static int bit(const unsigned char *bytes, int i)
{
    return bytes[i / 8] >> i % 8 & 1;
}

/* Element i of a block of 32: its nibble stands in byte i % 16, low half first. */
static int nibble_of_32(const unsigned char *quants, int i)
{
    return quants[i % 16] >> (i < 16 ? 0 : 4) & 15;
}

static const int iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const double mxfp4[] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};

/* Six bits of scale and of minimum of group g, read off the layout one bit field at a time. */
static void k_scale(const unsigned char *packed, int g, int *scale, int *minimum)
{
    if (g < 4) {
        *scale = packed[g] % 64;
        *minimum = packed[g + 4] % 64;
    } else {
        *scale = packed[g + 4] % 16 + packed[g - 4] / 64 * 16;
        *minimum = packed[g + 4] / 16 + packed[g] / 64 * 16;
    }
}

static struct element element_k(const unsigned char *b, int i, bool five)
{
    const unsigned char *quants = b + (five ? 48 : 16);
    int g = i / 32, scale, minimum;
    int q = quants[i / 64 * 32 + i % 32] >> (g % 2 ? 4 : 0) & 15;
    if (five)
        q += 16 * (b[16 + i % 32] >> g & 1);
    k_scale(b + 4, g, &scale, &minimum);
    return element_of(half_at(b) * scale * q, -half_at(b + 2) * minimum);
}

static struct element element_q6_k(const unsigned char *b, int i)
{
    int half = i / 128, j = i % 128;
    int low = b[half * 64 + j % 64] >> (j < 64 ? 0 : 4) & 15, high = b[128 + half * 32 + j % 32] >> j / 32 * 2 & 3;
    return element_of(half_at(b + 208) * (signed char)b[192 + i / 16] * (low + 16 * high - 32), 0);
}

/* Two bits of element i of 256: 32 bytes serve four rows of 32. */
static int pair_of_256(const unsigned char *pairs, int i)
{
    return pairs[i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3;
}

static struct element element_q3_k(const unsigned char *b, int i)
{
    const unsigned char *packed = b + 96;
    int g = i / 16, low = packed[g % 8] >> (g < 8 ? 0 : 4) & 15, high = packed[8 + g % 4] >> g / 4 * 2 & 3;
    int q = pair_of_256(b + 32, i) - (b[i % 32] >> i / 32 & 1 ? 0 : 4);
    return element_of(half_at(b + 108) * (low + 16 * high - 32) * q, 0);
}

static struct element element_iq4_xs(const unsigned char *b, int i)
{
    int g = i / 32, low = b[4 + g / 2] >> g % 2 * 4 & 15, high = (b[2] | b[3] << 8) >> 2 * g & 3;
    return element_of(half_at(b) * (low + 16 * high - 32) * iq4[nibble_of_32(b + 8 + 16 * g, i % 32)], 0);
}

/* Digit by digit: the byte is multiplied by 3 until the digit in question stands above its 8 bits. */
static struct element element_tq1_0(const unsigned char *b, int i)
{
    const int at = i < 160   ? i % 32
                   : i < 240 ? 32 + i % 16
                             : 48 + i % 4,
              digit = i < 160   ? i / 32
                      : i < 240 ? (i - 160) / 16
                                : (i - 240) / 4;
    int value = b[at];
    for (int k = 0; k < digit; k++)
        value = value * 3 & 255;
    return element_of(half_at(b + 52) * (value * 3 / 256 - 1), 0);
}

static struct element element(enum butler_type type, const unsigned char *row, int i)
{
    const int block = butler_types[type].block, k = i % block;
    const unsigned char *b = row + (size_t)(i / block) * (size_t)butler_types[type].block_bytes;
    float f;
    uint32_t bits;
    switch (type) {
    case BUTLER_F32:
        memcpy(&f, b, 4);
        return element_of((double)f, 0);
    case BUTLER_F16:
        return element_of(half_at(b), 0);
    case BUTLER_BF16:
        bits = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 24;
        memcpy(&f, &bits, 4);
        return element_of((double)f, 0);
    case BUTLER_Q8_0:
        return element_of(half_at(b) * (signed char)b[2 + k], 0);
    case BUTLER_Q4_0:
        return element_of(half_at(b) * (nibble_of_32(b + 2, k) - 8), 0);
    case BUTLER_Q4_1:
        return element_of(half_at(b) * nibble_of_32(b + 4, k), half_at(b + 2));
    case BUTLER_Q5_0:
        return element_of(half_at(b) * (nibble_of_32(b + 6, k) + 16 * bit(b + 2, k) - 16), 0);
    case BUTLER_Q5_1:
        return element_of(half_at(b) * (nibble_of_32(b + 8, k) + 16 * bit(b + 4, k)), half_at(b + 2));
    case BUTLER_Q4_K:
    case BUTLER_Q5_K:
        return element_k(b, k, type == BUTLER_Q5_K);
    case BUTLER_Q6_K:
        return element_q6_k(b, k);
    case BUTLER_Q2_K:
        return element_of(half_at(b + 80) * (b[k / 16] % 16) * pair_of_256(b + 16, k), -half_at(b + 82) * (b[k / 16] / 16));
    case BUTLER_Q3_K:
        return element_q3_k(b, k);
    case BUTLER_IQ4_NL:
        return element_of(half_at(b) * iq4[nibble_of_32(b + 2, k)], 0);
    case BUTLER_IQ4_XS:
        return element_iq4_xs(b, k);
    case BUTLER_MXFP4:
        return element_of(ldexp(mxfp4[nibble_of_32(b + 1, k) % 8], b[0] - 127) * (nibble_of_32(b + 1, k) < 8 ? 1 : -1), 0);
    case BUTLER_TQ1_0:
        return element_tq1_0(b, k);
    case BUTLER_TQ2_0:
        return element_of(half_at(b + 64) * (pair_of_256(b, k) - 1), 0);
    default:
        return element_of(NAN, 0);
    }
}

static void put_half(unsigned char *p, float f)
{
    uint16_t h = butler_float_to_half(f);
    memcpy(p, &h, 2);
}

/* A row with random quants and scales of a kind; a half holds no huge number, so that kind becomes its largest ones. */
static void random_row(enum butler_type type, unsigned char *row, int n, enum kind kind, uint64_t *seed)
{
    const struct butler_type_info *info = &butler_types[type];
    for (size_t i = 0; i < butler_row_bytes(type, n); i++)
        row[i] = (unsigned char)butler_random(seed);
    for (int i = 0; i < n / info->block; i++) {
        unsigned char *b = row + (size_t)i * (size_t)info->block_bytes;
        float v = random_value(seed, kind);
        float small = kind == HUGE_VALUES ? copysignf(30000, v) : kind == SUBNORMAL ? v * 1e34f : v;
        switch (type) {
        case BUTLER_F32:
            memcpy(b, &v, 4);
            break;
        case BUTLER_F16:
            put_half(b, small);
            break;
        case BUTLER_BF16:
            butler_quantize_row(BUTLER_BF16, b, &v, 1);
            break;
        default:
            put_scales(type, b, type == BUTLER_MXFP4 ? v : small, random_value(seed, NORMAL) * small);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- one row */

static void rows_mean_what_their_layout_says(void **state)
{
    (void)state;
    struct guarded in = guarded_new(8192), out = guarded_new(8192);
    uint64_t seed = 2;
    FOR_EACH_ISA(table)
    {
        for (int t = 0; t < BUTLER_COUNT(types); t++) {
            for (int trial = 0; trial < 200; trial++) {
                if (!in_share(trial))
                    continue;
                enum butler_type type = types[t];
                int block = butler_types[type].block, n = block * (1 + trial % (block == 1 ? 70 : 4));
                size_t bytes = butler_row_bytes(type, n), skip = (size_t)(trial / 2 % 3);
                unsigned char *row = guarded_at(&in, bytes, trial % 2, skip);
                float *y = guarded_at(&out, (size_t)n * sizeof *y, trial % 2, 0);
                random_row(type, row, n, (enum kind)(trial % N_KINDS), &seed);
                table->dequant[type](y, row, n);
                for (int i = 0; i < n; i++) {
                    struct element e = element(type, row, i);
                    if (isnan(e.value))
                        assert_true(isnan(y[i]));
                    else if (isinf(e.value))
                        assert_true((double)y[i] == e.value);
                    else /* exact but for the rounding of the minimum and of the sum */
                        assert_near(butler_types[type].name, table->isa, n, i, y[i], e.value, 2 * EPS * e.magnitude + 0x1p-149);
                }
                /* Bit for bit what plain C makes of it. */
                float expected[256];
                for (int c = 0; c < n; c += 256) {
                    int count = BUTLER_MIN(n - c, 256);
                    butler_kernels_ref.dequant[type](expected, row + butler_row_bytes(type, c), count);
                    for (int i = 0; i < count; i++)
                        assert_true(y[c + i] == expected[i] || (isnan(y[c + i]) && isnan(expected[i])));
                }
            }
        }
    }
    guarded_free(&in);
    guarded_free(&out);
}

/* Blocks worked out on paper, so that the layout above is itself held to something. */
static void blocks_by_hand(void **state)
{
    (void)state;
    unsigned char q8_0[34] = {0x00, 0x3c /* 1 */, 0x01, 0xff, 0x80, 0x7f};
    unsigned char q4_0[18] = {0x00, 0x40 /* 2 */, 0x1f};
    unsigned char q4_1[20] = {0x00, 0x38 /* 0.5 */, 0x00, 0xbc /* -1 */, 0xf3};
    unsigned char q5_0[22] = {0x00, 0x3c, 0x01, 0x00, 0x02, 0x00, 0x20, 0x43};
    unsigned char q5_1[24] = {0x00, 0x3c, 0x00, 0x3c, 0x00, 0x00, 0x00, 0x80};
    static unsigned char q4_k[144] = {0x00, 0x3c, 0x00, 0x38}, q5_k[176] = {0x00, 0x3c, 0x00, 0x38}, q6_k[210];
    float y[256];
    q5_1[23] = 0xf0;
    q4_k[4] = q5_k[4] = 0xc3;   /* group 0: scale 3; group 4: top of scale 3 */
    q4_k[8] = q5_k[8] = 0x45;   /* group 0: minimum 5; group 4: top of minimum 1 */
    q4_k[12] = q5_k[12] = 0x21; /* group 4: scale 49, minimum 18 */
    q4_k[16] = q5_k[48] = 0xb7; /* groups 0 and 1 */
    q4_k[16 + 64] = q5_k[48 + 64] = 0x0f;
    q5_k[16] = 0x11; /* fifth bit of element 0 in groups 0 and 4 */
    q6_k[0] = 0x9f;
    q6_k[128] = 0x9 | 0x3 << 6; /* rows 0: 1, 1: 2, 2: 0, 3: 3 */
    q6_k[192] = 2;
    q6_k[194] = 0xff; /* -1 */
    q6_k[196] = 1;
    q6_k[198] = 4;
    q6_k[209] = 0x3c;
    FOR_EACH_ISA(table)
    {
        table->dequant[BUTLER_Q8_0](y, q8_0, 32);
        assert_true(y[0] == 1 && y[1] == -1 && y[2] == -128 && y[3] == 127 && y[4] == 0);
        table->dequant[BUTLER_Q4_0](y, q4_0, 32);
        assert_true(y[0] == 14 && y[16] == -14 && y[1] == -16 && y[31] == -16);
        table->dequant[BUTLER_Q4_1](y, q4_1, 32);
        assert_true(y[0] == 0.5f && y[16] == 6.5f && y[1] == -1 && y[31] == -1);
        table->dequant[BUTLER_Q5_0](y, q5_0, 32);
        assert_true(y[0] == 0 && y[16] == -14 && y[1] == -13 && y[17] == 4 && y[2] == -16);
        table->dequant[BUTLER_Q5_1](y, q5_1, 32);
        assert_true(y[0] == 1 && y[15] == 1 && y[31] == 32);
        table->dequant[BUTLER_Q4_K](y, q4_k, 256);
        assert_true(y[0] == 3 * 7 - 2.5f && y[1] == -2.5f && y[32] == 0 && y[128] == 49 * 15 - 9 && y[129] == -9);
        table->dequant[BUTLER_Q5_K](y, q5_k, 256);
        assert_true(y[0] == 3 * 23 - 2.5f && y[1] == -2.5f && y[32] == 0 && y[128] == 49 * 31 - 9 && y[129] == -9);
        table->dequant[BUTLER_Q6_K](y, q6_k, 256);
        assert_true(y[0] == 2 * (15 + 16 - 32) && y[1] == -64 && y[32] == 0 + 32 - 32 && y[33] == 32);
        assert_true(y[64] == 9 - 32 && y[96] == 4 * (48 - 32) && y[97] == 4 * -32 && y[128] == 0);
    }
}

/* -------------------------------------------------------------------------------------------- quantising */

static void quantised_rows_are_close(void **state)
{
    (void)state;
    static const struct {
        enum butler_type type;
        double share; /* of the block's largest magnitude: half a step and what rounding the scale to a half costs at the end */
    } cases[] = {{BUTLER_F32, 0},
                 {BUTLER_F16, 0x1p-11},
                 {BUTLER_BF16, 0x1p-8},
                 {BUTLER_Q8_0, 0.5 / 127 + 0x1p-10},
                 {BUTLER_Q4_0, 1.0 / 8 + 0x1p-9},
                 {BUTLER_Q6_K, 1.0 / 32 + 0x1p-7},
                 {BUTLER_Q4_K, 1.0 / 6}};
    unsigned char row[1024];
    float x[256];
    uint64_t seed = 3;
    for (int c = 0; c < BUTLER_COUNT(cases); c++) {
        for (int trial = 0; trial < 100; trial++) {
            fill_random(x, 256, trial % 3 == 2 ? ZEROS : NORMAL, &seed);
            assert_true(butler_quantize_row(cases[c].type, row, x, 256));
            for (int i = 0; i < 256; i++) {
                double largest = fabs((double)x[i]);
                for (int k = i / 32 * 32; butler_types[cases[c].type].block > 1 && k < i / 32 * 32 + 32; k++)
                    largest = fabs((double)x[k]) > largest ? fabs((double)x[k]) : largest;
                assert_near("quantize", butler_types[cases[c].type].name, 256, i, element(cases[c].type, row, i).value, x[i],
                            cases[c].share * largest + 0x1p-24);
            }
        }
    }
    assert_false(butler_quantize_row(BUTLER_Q5_K, row, x, 256));
    assert_false(butler_quantize_row(BUTLER_Q4_K, row, x, 128));
    assert_false(butler_quantize_row(BUTLER_Q8_0, row, x, 33));
    assert_false(butler_quantize_row(BUTLER_Q4_0, row, x, 31));
}

/* The root mean square of the error of normally distributed rows, some of them off zero, against what the two types of one scale a
 * block leave. Groups of one sign, of one value and of a single number other than 0 come back, too. */
static void searched_scales_pay(void **state)
{
    (void)state;
    static const enum butler_type cases[] = {BUTLER_Q4_0, BUTLER_Q4_K, BUTLER_Q8_0, BUTLER_Q6_K};
    unsigned char row[272];
    float x[256];
    double squares[4] = {0};
    uint64_t seed = 8;
    for (int trial = 0; trial < 400; trial++) {
        for (int i = 0; i < 256; i++)
            x[i] = random_value(&seed, NORMAL) + (trial % 2 ? (float)(i / 32 - 4) / 2 : 0);
        for (int c = 0; c < 4; c++) {
            assert_true(butler_quantize_row(cases[c], row, x, 256));
            for (int i = 0; i < 256; i++)
                squares[c] += pow(element(cases[c], row, i).value - (double)x[i], 2) / (400 * 256);
        }
    }
    print_message("root mean square error: Q4_0 %.4f, Q4_K %.4f, Q8_0 %.4f, Q6_K %.4f\n", sqrt(squares[0]), sqrt(squares[1]),
                  sqrt(squares[2]), sqrt(squares[3]));
    assert_true(sqrt(squares[1]) < 0.85 * sqrt(squares[0]));
    assert_true(sqrt(squares[3]) < 0.3 * sqrt(squares[1]));
    for (int i = 0; i < 256; i++)
        x[i] = i < 32 ? 3 : i < 64 ? -3 : i < 96 ? (i == 70) : i < 128 ? -(i == 100) : i < 160 ? 0 : (float)(i % 16);
    for (int c = 1; c < 4; c += 2) {
        assert_true(butler_quantize_row(cases[c], row, x, 256));
        for (int i = 0; i < 256; i++)
            assert_near("quantize", butler_types[cases[c]].name, 256, i, element(cases[c], row, i).value, x[i], 0.25);
    }
}

/* No crash and no undefined conversion on what is not a number; the finite rest of other blocks is untouched. */
static void quantising_survives_anything(void **state)
{
    (void)state;
    unsigned char row[512], again[512];
    float x[512];
    for (int i = 0; i < 512; i++)
        x[i] = i % 256 < 32 ? (i % 4 == 0 ? NAN : i % 4 == 1 ? INFINITY : i % 4 == 2 ? -INFINITY : 1e38f) : (float)(i % 64);
    for (int t = 0; t < BUTLER_COUNT(types); t++) {
        if (types[t] == BUTLER_Q8_0 || types[t] == BUTLER_Q4_0) {
            butler_quantize_row(types[t], row, x, 64);
            assert_near("quantize", butler_types[types[t]].name, 64, 63, element(types[t], row, 63).value, 63, 8);
        } else
            butler_quantize_row(types[t], row, x, butler_types[types[t]].block);
    }
    butler_quantize_row(BUTLER_Q8_0, row, x, 64);
    FOR_EACH_ISA(table)
    {
        table->store_row[BUTLER_KV_Q8_0](again, x, 64);
        assert_memory_equal(again, row, butler_row_bytes(BUTLER_Q8_0, 64));
    }
    for (int i = 0; i < 64; i++)
        x[i] = 1e-44f;
    assert_true(butler_quantize_row(BUTLER_Q8_0, row, x, 64));
    assert_true(fabs(element(BUTLER_Q8_0, row, 5).value) < 1e-4);
}

/* -------------------------------------------------------------------------------------------- matrix . vector */

#define GEMV_ROWS 11

/* Whether row r is summed up by its definition, too, which takes an emulator long: of long rows the first and the last. */
static bool by_definition(int n, int r, int n_rows)
{
    return n <= 8192 || r == 0 || r == n_rows - 1;
}

static void check_gemv(const struct butler_kernels *table, enum butler_type type, int n, int trial, uint64_t *seed)
{
    static struct guarded in, xs, ys;
    if (!in.base) {
        in = guarded_new(1 << 21);
        xs = guarded_new(1 << 18);
        ys = guarded_new(4096);
    }
    const char *name = butler_types[type].name;
    bool end = trial % 2;
    size_t row_bytes = butler_row_bytes(type, n) + (size_t)(trial / 2 % 3),
           bytes = row_bytes * (GEMV_ROWS - 1) + butler_row_bytes(type, n);
    unsigned char *w = guarded_at(&in, bytes, end, (size_t)(trial / 6 % 2));
    float *x = guarded_at(&xs, (size_t)n * sizeof *x, end, 0), *y = guarded_at(&ys, GEMV_ROWS * sizeof *y, end, 0), alone;
    enum kind kind = (enum kind)(trial % N_KINDS);
    fill_random(x, (size_t)n, kind, seed);
    for (int r = 0; r < GEMV_ROWS; r++)
        random_row(type, w + (size_t)r * row_bytes, n, type == BUTLER_F32 || type == BUTLER_BF16 ? kind : NORMAL, seed);
    if (type == BUTLER_F16) /* random bytes hold infinities and NaN */
        for (int i = 0; i < GEMV_ROWS * n; i++)
            put_half(w + (size_t)(i / n) * row_bytes + (size_t)(i % n) * 2, random_value(seed, NORMAL));
    table->gemv[type](y, w, row_bytes, GEMV_ROWS, x, n);
    for (int r = 0; r < GEMV_ROWS; r++) {
        const unsigned char *row = w + (size_t)r * row_bytes;
        double sum = 0, magnitude = 0;
        for (int i = 0; i < n && by_definition(n, r, GEMV_ROWS); i++) {
            struct element e = element(type, row, i);
            sum += e.value * x[i];
            magnitude += e.magnitude * fabs((double)x[i]);
        }
        if (by_definition(n, r, GEMV_ROWS))
            assert_near(name, table->isa, n, r, y[r], sum, sum_bound(n, magnitude));
        table->gemv[type](&alone, row, row_bytes, 1, x, n);
        assert_same_bits(name, table->isa, n, r, alone, y[r]);
        static float widened[33024];
        table->dequant[type](widened, row, n);
        table->gemm(&alone, 1, widened, 1, x, 0, 1, n);
        assert_same_bits("gemv and gemm", table->isa, n, r, alone, y[r]);
    }
    /* Split anywhere: the same bits. */
    float split[GEMV_ROWS];
    int at = 1 + trial % (GEMV_ROWS - 1);
    table->gemv[type](split, w, row_bytes, at, x, n);
    table->gemv[type](split + at, w + (size_t)at * row_bytes, row_bytes, GEMV_ROWS - at, x, n);
    assert_memory_equal(split, y, sizeof split);
}

/* Row r of w times x[n], and what its magnitude is at most where weights are taken from an offset of their own: in groups of
 * 16, which share scales, as if all were twice as great as the greatest. */
static double offset_product(enum butler_type type, const unsigned char *row, const double *x, int n, double *magnitude)
{
    double sum = 0;
    *magnitude = 0;
    for (int first = 0; first < n; first += 16) {
        double most = 0, of_x = 0;
        for (int i = first; i < first + 16; i++) {
            struct element e = element(type, row, i);
            sum += e.value * x[i];
            most = fmax(most, e.magnitude);
            of_x += fabs(x[i]);
        }
        *magnitude += 2 * most * of_x;
    }
    return sum;
}

/* Many tokens with rows of integers, each token and row also by itself: the same bits, in a call with one token and in one with
 * two. */
static void check_matmul(const struct butler_kernels *table, enum butler_type type, int n_rows, int n_tokens, int n, int trial,
                         uint64_t *seed)
{
    static struct guarded ws, xs, q16s, ys;
    static double exact[33024];
    static _Alignas(64) unsigned char one[2 * 33024 * 4];
    if (!ws.base) {
        ws = guarded_new(1 << 21);
        xs = guarded_new(1 << 20);
        q16s = guarded_new(1 << 20);
        ys = guarded_new(1 << 14);
    }
    const char *name = butler_types[type].name;
    const bool end = trial % 2;
    const float canary = -12345;
    const size_t row_bytes = butler_row_bytes(type, n) + (size_t)(trial / 2 % 3), y_stride = (size_t)n_rows + 2,
                 size = butler_q16_bytes(n), n_y = (size_t)(n_tokens - 1) * y_stride + (size_t)n_rows;
    unsigned char *w = guarded_at(&ws, row_bytes * (size_t)(n_rows - 1) + butler_row_bytes(type, n), end, (size_t)(trial / 6 % 2));
    float *x = guarded_at(&xs, (size_t)n_tokens * (size_t)n * sizeof *x, end, 0), *y = guarded_at(&ys, n_y * sizeof *y, end, 0),
          pair[2];
    unsigned char *q16 = guarded_at(&q16s, size * (size_t)n_tokens, end, 0);
    fill_random(x, (size_t)n_tokens * (size_t)n, (enum kind)(trial % N_KINDS), seed);
    for (int r = 0; r < n_rows; r++)
        random_row(type, w + (size_t)r * row_bytes, n, NORMAL, seed);
    for (size_t i = 0; i < n_y; i++)
        y[i] = canary;
    for (int t = 0; t < n_tokens; t++)
        table->quantise_q16(q16 + (size_t)t * size, type, x + (size_t)t * (size_t)n, n, n_tokens == 1, BUTLER_Q16_MAX);
    table->matmul_q16[type](y, y_stride, w, row_bytes, n_rows, q16, n_tokens, n);
    for (int t = 0; t < n_tokens; t++) {
        const float *token = x + (size_t)t * (size_t)n;
        fixed_by_definition(exact, token, n, 32639);
        for (size_t r = 0; r < y_stride && (size_t)t * y_stride + r < n_y; r++) {
            const float got = y[(size_t)t * y_stride + r];
            if (r >= (size_t)n_rows) {
                assert_true(got == canary);
                continue;
            }
            if (by_definition(n, (int)r, n_rows)) {
                double magnitude, sum = offset_product(type, w + r * row_bytes, exact, n, &magnitude);
                assert_near(name, table->isa, n, (int)r, got, sum, sum_bound(n, magnitude));
            }
            table->quantise_q16(one, type, token, n, true, BUTLER_Q16_MAX);
            table->matmul_q16[type](pair, 1, w + r * row_bytes, row_bytes, 1, one, 1, n);
            assert_same_bits(name, table->isa, n, (int)r, pair[0], got);
            table->quantise_q16(one, type, token, n, false, BUTLER_Q16_MAX);
            table->quantise_q16(one + size, type, x, n, false, BUTLER_Q16_MAX);
            table->matmul_q16[type](pair, 1, w + r * row_bytes, row_bytes, 1, one, 2, n);
            assert_same_bits(name, table->isa, n, (int)r, pair[0], got);
        }
    }
    /* Scales that are no numbers make none of their row's results a number, and change nobody else's. */
    static float before[1 << 12];
    const size_t bad = (size_t)(butler_random(seed) % (uint64_t)n_rows), block_bytes = (size_t)butler_types[type].block_bytes;
    unsigned char row[1 << 17];
    assert_true(n_y <= BUTLER_COUNT(before) && butler_row_bytes(type, n) <= sizeof row);
    memcpy(before, y, n_y * sizeof *y);
    memcpy(row, w + bad * row_bytes, butler_row_bytes(type, n));
    for (size_t i = 0; i < butler_row_bytes(type, n) && type != BUTLER_MXFP4; i += block_bytes)
        put_scales(type, w + bad * row_bytes + i, NAN, NAN);
    table->matmul_q16[type](y, y_stride, w, row_bytes, n_rows, q16, n_tokens, n);
    for (size_t i = 0; i < n_y; i++)
        if (i % y_stride != bad)
            assert_same_bits(name, table->isa, n, (int)(i % y_stride), y[i], before[i]);
        else
            assert_true(isnan(y[i]) || type == BUTLER_MXFP4);
    memcpy(w + bad * row_bytes, row, butler_row_bytes(type, n));
    table->matmul_q16[type](y, y_stride, w, row_bytes, n_rows, q16, n_tokens, n);
    /* What is no number anywhere is none in that token's results, and nobody else's. */
    const int t = (int)(butler_random(seed) % (uint64_t)n_tokens);
    const float first = y[(size_t)((t + 1) % n_tokens) * y_stride];
    x[(size_t)t * (size_t)n + (size_t)butler_random(seed) % (size_t)n] = trial % 3 == 0   ? NAN
                                                                         : trial % 3 == 1 ? INFINITY
                                                                                          : -INFINITY;
    table->quantise_q16(q16 + (size_t)t * size, type, x + (size_t)t * (size_t)n, n, n_tokens == 1, BUTLER_Q16_MAX);
    table->matmul_q16[type](y, y_stride, w, row_bytes, n_rows, q16, n_tokens, n);
    for (int r = 0; r < n_rows; r++)
        assert_false(isfinite(y[(size_t)t * y_stride + (size_t)r]));
    if (n_tokens > 1)
        assert_same_bits(name, table->isa, n, 0, y[(size_t)((t + 1) % n_tokens) * y_stride], first);
}

/* Activations in 8-bit integers: panels and blocks between guard pages, against the definition and against the products for few
 * tokens, whose bits they are. */
static void check_q8(const struct butler_kernels *table, enum butler_type type, int n_rows, int n_tokens, int n, int trial,
                     uint64_t *seed)
{
    static struct guarded ws, xs, q8s, panels, ys;
    static double exact[33024];
    static _Alignas(64) unsigned char one[33024 * 4];
    if (!ws.base) {
        ws = guarded_new(1 << 22);
        xs = guarded_new(1 << 23);
        q8s = guarded_new(1 << 23);
        panels = guarded_new(1 << 22);
        ys = guarded_new(1 << 16);
    }
    const char *name = butler_types[type].name;
    const bool end = trial % 2;
    const float canary = -12345;
    const size_t row_bytes = butler_row_bytes(type, n) + (size_t)(trial / 2 % 3), y_stride = (size_t)n_rows + 2,
                 n_y = (size_t)(n_tokens - 1) * y_stride + (size_t)n_rows, panel_bytes = butler_q8_panel_bytes(n_rows, n),
                 n_blocks = BUTLER_CEIL_DIV((size_t)n_tokens, BUTLER_Q8_TOKENS);
    unsigned char *w = guarded_at(&ws, row_bytes * (size_t)(n_rows - 1) + butler_row_bytes(type, n), end, (size_t)(trial / 6 % 2));
    float *x = guarded_at(&xs, (size_t)n_tokens * (size_t)n * sizeof *x, end, 0), *y = guarded_at(&ys, n_y * sizeof *y, end, 0);
    unsigned char *q8 = guarded_at(&q8s, n_blocks * butler_q8_bytes(n), end, 0), *panel = guarded_at(&panels, panel_bytes, end, 0);
    fill_random(x, (size_t)n_tokens * (size_t)n, (enum kind)(trial % N_KINDS), seed);
    if (trial % 3 == 0) /* one number decides its block's scale */
        x[(size_t)butler_random(seed) % ((size_t)n_tokens * (size_t)n)] = 1e4f;
    for (int r = 0; r < n_rows; r++)
        random_row(type, w + (size_t)r * row_bytes, n, NORMAL, seed);
    for (size_t i = 0; i < n_y; i++)
        y[i] = canary;
    memset(panel, 0xff, panel_bytes); /* no number that was there before counts */
    memset(q8, 0xff, n_blocks * butler_q8_bytes(n));
    for (size_t b = 0; b < n_blocks; b++)
        table->quantise_q8(q8 + b * butler_q8_bytes(n), type, x + b * BUTLER_Q8_TOKENS * (size_t)n,
                           BUTLER_MIN(n_tokens - (int)b * BUTLER_Q8_TOKENS, (int)BUTLER_Q8_TOKENS), n);
    table->unpack_q8[type](panel, w, row_bytes, n_rows, n, table->q8_signed);
    table->multiply_q8[type](y, y_stride, panel, n_rows, q8, n_tokens, n);
    for (int t = 0; t < n_tokens; t++) {
        fixed_by_definition(exact, x + (size_t)t * (size_t)n, n, 127);
        table->quantise_q16(one, type, x + (size_t)t * (size_t)n, n, true, BUTLER_Q8_MAX);
        for (size_t r = 0; r < y_stride && (size_t)t * y_stride + r < n_y; r++) {
            const float got = y[(size_t)t * y_stride + r];
            float few;
            if (r >= (size_t)n_rows) {
                assert_true(got == canary);
                continue;
            }
            if (by_definition(n, (int)r, n_rows)) {
                double magnitude, sum = offset_product(type, w + r * row_bytes, exact, n, &magnitude);
                assert_near(name, table->isa, n, (int)r, got, sum, sum_bound(n, magnitude));
            }
            table->matmul_q16[type](&few, 1, w + r * row_bytes, row_bytes, 1, one, 1, n);
            assert_same_bits(name, table->isa, n, (int)r, few, got);
            if (!table->matmul_low[type])
                continue;
            table->matmul_low[type](&few, 1, w + r * row_bytes, row_bytes, 1, one, 1, n);
            assert_same_bits(name, table->isa, n, (int)r, few, got);
        }
    }
    /* What is no number anywhere is none in that token's results, and nobody else's. */
    const size_t t = (size_t)butler_random(seed) % (size_t)n_tokens, other = (t + 1) % (size_t)n_tokens;
    const float before = y[other * y_stride];
    x[t * (size_t)n + (size_t)butler_random(seed) % (size_t)n] = trial % 3 == 0 ? NAN : trial % 3 == 1 ? INFINITY : -INFINITY;
    const size_t b = t / BUTLER_Q8_TOKENS;
    table->quantise_q8(q8 + b * butler_q8_bytes(n), type, x + b * BUTLER_Q8_TOKENS * (size_t)n,
                       BUTLER_MIN(n_tokens - (int)b * BUTLER_Q8_TOKENS, (int)BUTLER_Q8_TOKENS), n);
    table->multiply_q8[type](y, y_stride, panel, n_rows, q8, n_tokens, n);
    for (int r = 0; r < n_rows; r++)
        assert_false(isfinite(y[t * y_stride + (size_t)r]));
    if (n_tokens > 1)
        assert_same_bits(name, table->isa, n, 0, y[other * y_stride], before);
}

static void products_of_8_bits(void **state)
{
    (void)state;
    uint64_t seed = 15;
    FOR_EACH_ISA(table)
    {
        for (int t = 0; t < BUTLER_COUNT(types); t++) {
            const int block = butler_types[types[t]].block;
            assert_int_equal(table->multiply_q8[types[t]] != NULL, block > 1);
            assert_int_equal(table->unpack_q8[types[t]] != NULL, block > 1);
            for (int trial = 0; trial < 60 && table->multiply_q8[types[t]]; trial++) {
                if (!in_share(trial) && trial != 40)
                    continue;
                const int n = trial == 40 ? 33024 : block == 32 ? 32 * (1 + trial % 37) : 256 * (1 + trial % 4);
                check_q8(table, types[t], 1 + trial * 7 % 37, trial == 40 ? 2 : 1 + trial * 3 % 35, n, trial, &seed);
            }
        }
    }
}

static void products_of_integers(void **state)
{
    (void)state;
    uint64_t seed = 14;
    FOR_EACH_ISA(table)
    {
        for (int t = 0; t < BUTLER_COUNT(types); t++) {
            const int block = butler_types[types[t]].block;
            assert_int_equal(table->matmul_q16[types[t]] != NULL, block > 1);
            if (!table->matmul_q16[types[t]])
                continue;
            for (int trial = 0; trial < 60; trial++) {
                if (!in_share(trial) && trial != 40)
                    continue;
                const int n = trial == 40 ? 33024 : block == 32 ? 32 * (1 + trial % 37) : 256 * (1 + trial % 4);
                check_matmul(table, types[t], 1 + trial * 7 % 13, trial == 40 ? 2 : 1 + trial * 3 % 19, n, trial, &seed);
            }
        }
    }
}

static void products_with_rows(void **state)
{
    (void)state;
    uint64_t seed = 4;
    FOR_EACH_ISA(table)
    {
        for (int t = 0; t < BUTLER_COUNT(types); t++) {
            int block = butler_types[types[t]].block;
            for (int trial = 0; trial < 60; trial++) {
                if (!in_share(trial) && trial != 40)
                    continue;
                int n = block == 1    ? 1 + trial * 5 % 131 + (trial % 7 == 0) * 256
                        : block == 32 ? 32 * (1 + trial % 13)
                        : trial == 40 ? 33024
                                      : 256 * (1 + trial % 4);
                check_gemv(table, types[t], n, trial, &seed);
            }
        }
    }
}

/* -------------------------------------------------------------------------------------------- matrix . matrix */

static void check_gemm(const struct butler_kernels *table, int n_rows, int n_tokens, int n, bool end, uint64_t *seed)
{
    static struct guarded ws, xs, ys;
    if (!ws.base) {
        ws = guarded_new(1 << 18);
        xs = guarded_new(1 << 18);
        ys = guarded_new(1 << 14);
    }
    const float canary = -12345;
    size_t x_stride = (size_t)n + 3, y_stride = (size_t)n_rows + 2;
    float *w = guarded_at(&ws, (size_t)n_rows * (size_t)n * sizeof *w, end, 0);
    float *x = guarded_at(&xs, ((size_t)(n_tokens - 1) * x_stride + (size_t)n) * sizeof *x, end, 0);
    size_t n_y = (size_t)(n_tokens - 1) * y_stride + (size_t)n_rows;
    float *y = guarded_at(&ys, n_y * sizeof *y, end, 0), alone;
    fill_random(w, (size_t)n_rows * (size_t)n, NORMAL, seed);
    fill_random(x, (size_t)(n_tokens - 1) * x_stride + (size_t)n, NORMAL, seed);
    for (size_t i = 0; i < n_y; i++)
        y[i] = canary;
    table->gemm(y, y_stride, w, n_rows, x, x_stride, n_tokens, n);
    for (int t = 0; t < n_tokens; t++) {
        for (size_t r = 0; r < y_stride && (size_t)t * y_stride + r < n_y; r++) {
            float got = y[(size_t)t * y_stride + r];
            if (r >= (size_t)n_rows) {
                assert_true(got == canary);
                continue;
            }
            double sum = 0, magnitude = 0;
            for (int i = 0; i < n; i++) {
                double product = (double)w[r * (size_t)n + (size_t)i] * x[(size_t)t * x_stride + (size_t)i];
                sum += product;
                magnitude += fabs(product);
            }
            assert_near("gemm", table->isa, n, (int)r, got, sum, sum_bound(n, magnitude));
            table->gemm(&alone, 1, w + r * (size_t)n, 1, x + (size_t)t * x_stride, x_stride, 1, n);
            assert_same_bits("gemm", table->isa, n, (int)r, alone, got);
        }
    }
}

static void products_with_tokens(void **state)
{
    (void)state;
    static const int lengths[] = {1, 7, 8, 15, 16, 17, 32, 63, 64, 100, 257, 1024, 1025, 2100};
    uint64_t seed = 5;
    FOR_EACH_ISA(table)
    {
        for (int l = 0; l < BUTLER_COUNT(lengths); l++)
            for (int n_rows = 1; n_rows <= 9; n_rows += 1 + (lengths[l] > 100) * 3)
                for (int n_tokens = 1; n_tokens <= 14; n_tokens += 1 + (lengths[l] > 100) * 4)
                    if (in_share(17 * n_rows + n_tokens + l))
                        check_gemm(table, n_rows, n_tokens, lengths[l], (l + n_rows + n_tokens) % 2, &seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_mean_what_their_layout_says),
        cmocka_unit_test(blocks_by_hand),
        cmocka_unit_test(quantised_rows_are_close),
        cmocka_unit_test(searched_scales_pay),
        cmocka_unit_test(quantising_survives_anything),
        cmocka_unit_test(products_with_rows),
        cmocka_unit_test(products_of_integers),
        cmocka_unit_test(products_of_8_bits),
        cmocka_unit_test(products_with_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
