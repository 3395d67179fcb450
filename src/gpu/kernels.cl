/* Kernels of a device: products, norms and the rest of a layer outside attention (which is in cache.cl). They are in a dialect of
 * OpenCL C that opencl.h defines. backend_gpu.c launches them.
 *
 * No result depends on how many rows share a launch: each is summed in the same order, with fma written out where it is meant. */

/* ------------------------------------------------------------------------------------------ sums over a group */

static float group_sum(LOCAL float *shared, float x)
{
    shared[THREAD] = x;
    BARRIER();
    for (int n = THREADS / 2; n > 0; n /= 2) {
        if (THREAD < n)
            shared[THREAD] += shared[THREAD + n];
        BARRIER();
    }
    x = shared[0];
    BARRIER();
    return x;
}

static float group_max(LOCAL float *shared, float x)
{
    shared[THREAD] = x;
    BARRIER();
    for (int n = THREADS / 2; n > 0; n /= 2) {
        if (THREAD < n)
            shared[THREAD] = fmax(shared[THREAD], shared[THREAD + n]);
        BARRIER();
    }
    x = shared[0];
    BARRIER();
    return x;
}

/* The sum of x of the threads before this one; *total: of all. shared[SCAN_INTS]: a thread adds those of its row of SCAN_ROW, and
 * rows' sums. */
#define SCAN_ROW 16
#define SCAN_INTS (THREADS + THREADS / SCAN_ROW)
static int group_scan(LOCAL int *shared, int x, int *total)
{
    const int row = THREAD / SCAN_ROW;
    int before = 0;
    shared[THREAD] = x;
    BARRIER();
    for (int i = 0; i < SCAN_ROW; i++)
        before += row * SCAN_ROW + i < THREAD ? shared[row * SCAN_ROW + i] : 0;
    if (THREAD % SCAN_ROW == SCAN_ROW - 1)
        shared[THREADS + row] = before + x;
    BARRIER();
    *total = 0;
    for (int i = 0; i < THREADS / SCAN_ROW; i++) {
        before += i < row ? shared[THREADS + i] : 0;
        *total += shared[THREADS + i];
    }
    BARRIER();
    return before;
}

/* --------------------------------------------------------------------------------------------------- weights */

/* Blocks are described in src/file/weight_blocks.h. Functions give 32 weights, of a block or number j of its eights, as v[32] and a
 * factor of each half: v[i] s[i / 16].
 *
 * What a block has most of is read 16 bytes a load: memory is kept busy by the bytes that threads wait for. */

static INLINE void load_fours(uint *w, const GLOBAL uint4 *from, int n, int last)
{
    for (int i = 0; i < n; i++) {
        const uint4 four = from[i < last ? i : last];
        w[4 * i] = four.x;
        w[4 * i + 1] = four.y;
        w[4 * i + 2] = four.z;
        w[4 * i + 3] = four.w;
    }
}

/* w = the n bytes at p, at least 16 and at most 34; p is even if n is. Whole aligned blocks of 16 bytes are read, of which each has
 * one of these bytes: the last may end behind a row, where a buffer goes on (memory_gpu.c). */
static INLINE void load_bytes(uint *w, const GLOBAL uchar *p, int n)
{
    const int at = (int)((ulong)p & 15), n_fours = (n + 29) / 16;
    uint a[14];
    a[4 * n_fours] = a[4 * n_fours + 1] = 0;
    load_fours(a, (const GLOBAL uint4 *)(p - at), n_fours, (at + n - 1) / 16);
    for (int i = 0; i < 4 * n_fours; i++)
        a[i] = at & 8 ? a[i + 2] : a[i];
    for (int i = 0; i < 4 * n_fours; i++)
        a[i] = at & 4 ? a[i + 1] : a[i];
    for (int i = 0; i < (n + 3) / 4; i++)
        w[i] = FUNNEL(a[i], a[i + 1], (uint)(at % 4 * 8));
}

/* The same for p of which 16 is a divisor, as of n. */
static INLINE void load_aligned(uint *w, const GLOBAL uchar *p, int n)
{
    load_fours(w, (const GLOBAL uint4 *)p, n / 16, n / 16 - 1);
}

/* Byte i of words, less an integer, as a float. */
#define BYTE_OF(w, i, less) BYTE_TO_FLOAT((w)[(i) / 4], (i) % 4, less)

static int signed_byte(int b)
{
    return b < 128 ? b : b - 256;
}

/* Numbers of type 0, 1 or 30: F32, F16, BF16. Zeros behind the first n. */
static void load_plain(float *v, int type, const GLOBAL uchar *p, int n)
{
    uint w[8];
    for (int i = 0; i < 32 && n < 32; i++)
        v[i] = i >= n      ? 0.0f
               : type == 0 ? ((const GLOBAL float *)p)[i]
               : type == 1 ? LOAD_HALF(p + 2 * i)
                           : BITS_TO_FLOAT((uint)p[2 * i] << 16 | (uint)p[2 * i + 1] << 24);
    for (int k = 0; k < 4 && n >= 32; k++) {
        if (type == 0 || k % 2 == 0)
            load_bytes(w, p + k * (type == 0 ? 32 : 16), 32);
        for (int i = 0; i < 8; i++) {
            const uint pair = w[k % 2 * 4 + i / 2];
            v[k * 8 + i] = type == 0   ? BITS_TO_FLOAT(w[i])
                           : type == 1 ? HALF_TO_FLOAT(pair >> i % 2 * 16 & 0xffff)
                                       : BITS_TO_FLOAT(i % 2 ? pair & 0xffff0000u : pair << 16);
        }
    }
}

static void load_q8_0(float *v, float *s, const GLOBAL uchar *block)
{
    uint w[9];
    load_bytes(w, block, 34);
    s[0] = s[1] = HALF_TO_FLOAT(w[0] & 0xffff);
    for (int i = 0; i < 9; i++)
        w[i] ^= 0x80808080u; /* q + 128 */
    for (int i = 0; i < 32; i++)
        v[i] = BYTE_OF(w, 2 + i, 128);
}

/* Q4_0, Q4_1 (with a minimum), Q5_0 and Q5_1 (with fifth bits). */
static INLINE void load_nibbles(float *v, float *s, const GLOBAL uchar *block, int minimum, int five)
{
    const int at = 2 + 2 * minimum + 4 * five, n = (at + 19) / 4;
    uint low[6], high[6];
    load_bytes(low, block, at + 16);
    const float d = HALF_TO_FLOAT(low[0] & 0xffff), m = HALF_TO_FLOAT(low[0] >> 16);
    const uint bits = minimum ? low[1] : FUNNEL(low[0], low[1], 16);
    for (int i = 0; i < n; i++) {
        high[i] = low[i] >> 4 & 0x0f0f0f0fu;
        low[i] &= 0x0f0f0f0fu;
    }
    for (int i = 0; i < 16 && five; i++) {
        low[(at + i) / 4] |= (bits >> i & 1) << ((at + i) % 4 * 8 + 4);
        high[(at + i) / 4] |= (bits >> (i + 16) & 1) << ((at + i) % 4 * 8 + 4);
    }
    for (int i = 0; i < 16; i++) {
        v[i] = BYTE_OF(low, at + i, minimum ? 0 : five ? 16 : 8);
        v[i + 16] = BYTE_OF(high, at + i, minimum ? 0 : five ? 16 : 8);
    }
    for (int i = 0; i < 32 && minimum; i++)
        v[i] = fma(d, v[i], m);
    s[0] = s[1] = minimum ? 1 : d;
}

/* From byte `at` of words on, nibbles that are indices of a table of 16 signed bytes: low has the first 8. */
static void find_in_table(float *v, const uint *w, int at, ulong low, ulong high)
{
    for (int i = 0; i < 32; i++) {
        const int byte = at + i % 16, index = (int)(w[byte / 4] >> (byte % 4 * 8 + i / 16 * 4) & 15);
        v[i] = (float)signed_byte((int)((index < 8 ? low : high) >> (index % 8 * 8) & 255));
    }
}

static void find_iq4(float *v, const uint *w, int at)
{
    find_in_table(v, w, at, 0xf6eaddcfbfad9881ul, 0x7159453526190d01ul);
}

static void load_iq4_nl(float *v, float *s, const GLOBAL uchar *block)
{
    uint w[5];
    load_bytes(w, block, 18);
    s[0] = s[1] = HALF_TO_FLOAT(w[0] & 0xffff);
    find_iq4(v, w, 2);
}

/* Scales of 6 bits, 2 of which lie apart; the nibbles of an eighth are 16 bytes. */
static void load_iq4_xs(float *v, float *s, const GLOBAL uchar *block, int j)
{
    const int high = block[2 + j / 4] >> (j % 4 * 2) & 3, low = block[4 + j / 2] >> (j % 2 * 4) & 15;
    uint w[4];
    load_bytes(w, block + 8 + j * 16, 16);
    s[0] = s[1] = LOAD_HALF(block) * (float)((low | high << 4) - 32);
    find_iq4(v, w, 0);
}

/* The scale is 2^(block[0] - 128). */
static void load_mxfp4(float *v, float *s, const GLOBAL uchar *block)
{
    uint w[5];
    load_bytes(w, block, 17);
    const uint e = w[0] & 255;
    s[0] = s[1] = BITS_TO_FLOAT(e < 2 ? 0x200000u << e : (e - 1) << 23);
    find_in_table(v, w, 1, 0x0c08060403020100ul, 0xf4f8fafcfdfeff00ul);
}

/* 6 bits each of the scale and the minimum of an eighth: in a byte of their own, or in half of one and two bits of another. These
 * blocks are a multiple of 16 bytes long, and rows begin with one. */
static void load_q4_k(float *v, const GLOBAL uchar *block, int j, int five_bits)
{
    uint head[4], q[8], high[8];
    load_aligned(head, block, 16);
    load_aligned(q, block + (five_bits ? 48 : 16) + j / 2 * 32, 32);
    if (five_bits)
        load_aligned(high, block + 16, 32);
    const uint a = head[1] >> j % 4 * 8, b = head[2] >> j % 4 * 8, c = head[3] >> j % 4 * 8;
    const uint scale = j < 4 ? a & 63 : (c & 15) | (a >> 6 & 3) << 4, min = j < 4 ? b & 63 : (c >> 4 & 15) | (b >> 6 & 3) << 4;
    const float d = HALF_TO_FLOAT(head[0] & 0xffff) * (float)scale, m = HALF_TO_FLOAT(head[0] >> 16) * (float)min;
    for (int i = 0; i < 8; i++)
        q[i] = (q[i] >> j % 2 * 4 & 0x0f0f0f0fu) | (five_bits ? (high[i] >> j & 0x01010101u) << 4 : 0);
    for (int i = 0; i < 32; i++)
        v[i] = fma(d, BYTE_OF(q, i, 0), -m);
}

static void load_q6_k(float *v, float *s, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 208);
    uint low[8], high[8];
    load_bytes(low, block + j / 4 * 64 + j % 2 * 32, 32);
    load_bytes(high, block + 128 + j / 4 * 32, 32);
    for (int i = 0; i < 8; i++)
        low[i] = (low[i] >> j % 4 / 2 * 4 & 0x0f0f0f0fu) | (high[i] >> j % 4 * 2 & 0x03030303u) << 4;
    for (int i = 0; i < 32; i++)
        v[i] = BYTE_OF(low, i, 32);
    for (int i = 0; i < 2; i++)
        s[i] = d * (float)signed_byte(block[192 + j * 2 + i]);
}

/* Two bits of each weight, of q[64] for a block; less an integer. */
static void load_pairs(float *v, const GLOBAL uchar *q, int j, int less)
{
    uint w[8];
    load_bytes(w, q + j / 4 * 32, 32);
    for (int i = 0; i < 8; i++)
        w[i] = w[i] >> j % 4 * 2 & 0x03030303u;
    for (int i = 0; i < 32; i++)
        v[i] = BYTE_OF(w, i, less);
}

static void load_q2_k(float *v, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 80), d_min = LOAD_HALF(block + 82);
    load_pairs(v, block + 16, j, 0);
    for (int i = 0; i < 32; i++) {
        const int s = block[j * 2 + i / 16];
        v[i] = fma(d * (float)(s & 15), v[i], -d_min * (float)(s >> 4));
    }
}

static void load_q3_k(float *v, float *s, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 108);
    const GLOBAL uchar *scales = block + 96;
    uint third[8];
    load_bytes(third, block, 32);
    load_pairs(v, block + 32, j, 4);
    for (int i = 0; i < 32; i++)
        v[i] += (float)(third[i / 4] >> (i % 4 * 8 + j) & 1) * 4;
    for (int i = 0; i < 2; i++) {
        const int g = j * 2 + i;
        s[i] = d * (float)(((scales[g % 8] >> (g / 8 * 4) & 15) | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4) - 32);
    }
}

static int power_of_3(int r)
{
    return r == 0 ? 1 : r == 1 ? 3 : r == 2 ? 9 : r == 3 ? 27 : 81;
}

/* Digits to the base 3, 0 to 2 for -d to d: 160 weights are those of 32 bytes, 80 of 16, 16 of 4. A byte times 3^r, modulo 256, is
 * 256 times a fraction whose first digit is the byte's digit r. */
static void load_tq1_0(float *v, const GLOBAL uchar *block, int j)
{
    for (int k = 0; k < 2; k++) {
        const GLOBAL uchar *bytes = block + (j < 5 ? k * 16 : 32);
        const int r = j < 5 ? j : (j - 5) * 2 + k, power = power_of_3(r);
        if (r < 5)
            for (int i = 0; i < 16; i++)
                v[k * 16 + i] = (float)(((bytes[i] * power & 255) * 3 >> 8) - 1);
        else
            for (int i = 0; i < 16; i++)
                v[k * 16 + i] = (float)(((bytes[16 + i % 4] * power_of_3(i / 4) & 255) * 3 >> 8) - 1);
    }
}

/* Weights [32 at, 32 at + n) of a row of this type, zeros behind them. Types have ggml's numbers. */
static INLINE void load_weights(float *v, float *s, int type, const GLOBAL uchar *row, int at, int n)
{
    s[0] = s[1] = 1;
    switch (type) {
    case 0: /* F32 */
        load_plain(v, 0, row + at * 128, n);
        break;
    case 1: /* F16 */
        load_plain(v, 1, row + at * 64, n);
        break;
    case 30: /* BF16 */
        load_plain(v, 30, row + at * 64, n);
        break;
    case 8: /* Q8_0 */
        load_q8_0(v, s, row + at * 34);
        break;
    case 2: /* Q4_0 */
        load_nibbles(v, s, row + at * 18, 0, 0);
        break;
    case 3: /* Q4_1 */
        load_nibbles(v, s, row + at * 20, 1, 0);
        break;
    case 6: /* Q5_0 */
        load_nibbles(v, s, row + at * 22, 0, 1);
        break;
    case 7: /* Q5_1 */
        load_nibbles(v, s, row + at * 24, 1, 1);
        break;
    case 12: /* Q4_K */
        load_q4_k(v, row + at / 8 * 144, at % 8, 0);
        break;
    case 13: /* Q5_K */
        load_q4_k(v, row + at / 8 * 176, at % 8, 1);
        break;
    case 14: /* Q6_K */
        load_q6_k(v, s, row + at / 8 * 210, at % 8);
        break;
    case 10: /* Q2_K */
        load_q2_k(v, row + at / 8 * 84, at % 8);
        break;
    case 11: /* Q3_K */
        load_q3_k(v, s, row + at / 8 * 110, at % 8);
        break;
    case 20: /* IQ4_NL */
        load_iq4_nl(v, s, row + at * 18);
        break;
    case 23: /* IQ4_XS */
        load_iq4_xs(v, s, row + at / 8 * 136, at % 8);
        break;
    case 34: /* TQ1_0 */
        load_tq1_0(v, row + at / 8 * 54, at % 8);
        s[0] = s[1] = LOAD_HALF(row + at / 8 * 54 + 52);
        break;
    case 35: /* TQ2_0 */
        load_pairs(v, row + at / 8 * 66, at % 8, 1);
        s[0] = s[1] = LOAD_HALF(row + at / 8 * 66 + 64);
        break;
    case 39: /* MXFP4 */
        load_mxfp4(v, s, row + at * 17);
        break;
    }
}

/* y[n][n_cols] = rows ids[n] of the table. Groups: n x blocks of THREADS * 32 columns. */
KERNEL embed(BUFFER(y), BUFFER(table), BUFFER(ids), int type, int row_bytes, int n_cols)
{
    const int t = GROUP(0), at = GROUP(1) * THREADS + THREAD, n = n_cols - at * 32;
    float v[32], s[2];
    if (n <= 0)
        return;
    load_weights(v, s, type, AT(uchar, table) + (ulong)AT(int, ids)[t] * (ulong)row_bytes, at, n);
    for (int i = 0; i < 32 && i < n; i++)
        AT(float, y)[(ulong)t * (ulong)n_cols + (ulong)(at * 32 + i)] = v[i] * s[i / 16];
}

/* Products. A row of W is work for LANES threads, which take every LANES-th block of 32 weights; rows of x are shared by a group,
 * in blocks of BLOCK_FOURS times 4 numbers: 32, and a gap, so that the threads of a row read from different banks. */
#define LANES 16
#define BLOCK_FOURS 9

/* staged[rows][columns / 32]: columns [base, base + columns) of n rows of x, zeros behind n_cols. */
static void stage_rows(LOCAL float4 *staged, const GLOBAL float *x, int n, int n_cols, int base, int columns)
{
    const int used = n_cols - base < columns ? n_cols - base : columns, n_fours = (used + 31) / 32 * 8;
    for (int t = 0; t < n; t++)
        for (int i = THREAD; i < n_fours; i += THREADS) {
            const GLOBAL float *in = x + (ulong)t * (ulong)n_cols + (ulong)(base + 4 * i);
            uint w[4] = {0, 0, 0, 0};
            float4 four;
            if (4 * i + 4 <= used)
                load_bytes(w, (const GLOBAL uchar *)in, 16);
            for (int j = 0; j < used - 4 * i && used < 4 * i + 4; j++)
                w[j] = FLOAT_TO_BITS(in[j]);
            four.x = BITS_TO_FLOAT(w[0]);
            four.y = BITS_TO_FLOAT(w[1]);
            four.z = BITS_TO_FLOAT(w[2]);
            four.w = BITS_TO_FLOAT(w[3]);
            staged[(t * columns / 32 + i / 8) * BLOCK_FOURS + i % 8] = four;
        }
}

/* The product of 32 weights and a staged block. */
static float multiply_block(const float *v, const float *s, const LOCAL float4 *x)
{
    float part[4] = {0, 0, 0, 0};
    for (int i = 0; i < 8; i++) {
        const float4 four = x[i];
        const int at = i / 4 * 2;
        part[at] = fma(v[4 * i], four.x, part[at]);
        part[at + 1] = fma(v[4 * i + 1], four.y, part[at + 1]);
        part[at] = fma(v[4 * i + 2], four.z, part[at]);
        part[at + 1] = fma(v[4 * i + 3], four.w, part[at + 1]);
    }
    return fma(s[0], part[0] + part[1], s[1] * (part[2] + part[3]));
}

/* What threads of a row have of it, and of the staged rows of x: blocks [base, base + n_staged), of which there are n_blocks in
 * all. */
struct factors {
    const GLOBAL uchar *row;
    const LOCAL float4 *staged;              /* [tokens][n_staged][BLOCK_FOURS] */
    int base, n_staged, n_blocks, n_cols, n; /* n: tokens that there are */
};

/* acc[tokens] += a row's products, over every LANES-th staged block from `lane` on. Of one token two blocks at a time: what is read
 * of both is awaited together. */
static INLINE void multiply_row(float *acc, int tokens, struct factors f, int type, int lane)
{
    const int end = f.base + f.n_staged < f.n_blocks ? f.base + f.n_staged : f.n_blocks, step = tokens == 1 ? 2 * LANES : LANES;
    float v[32], s[2], more_v[32], more_s[2];
    for (int at = f.base + lane; at < end; at += step) {
        const int next = step > LANES && at + LANES < end ? at + LANES : at;
        load_weights(v, s, type, f.row, at, f.n_cols - at * 32);
        if (step > LANES)
            load_weights(more_v, more_s, type, f.row, next, f.n_cols - next * 32);
        for (int t = 0; t < tokens && t < f.n; t++) {
            const LOCAL float4 *x = f.staged + (t * f.n_staged + at - f.base) * BLOCK_FOURS;
            acc[t] += multiply_block(v, s, x);
            if (next > at)
                acc[t] += multiply_block(more_v, more_s, x + (next - at) * BLOCK_FOURS);
        }
    }
}

/* The types that files have most of are constants to the compiler. */
static INLINE void multiply(float *acc, int tokens, struct factors f, int type, int lane)
{
    switch (type) {
    case 1:
        multiply_row(acc, tokens, f, 1, lane);
        break;
    case 2:
        multiply_row(acc, tokens, f, 2, lane);
        break;
    case 8:
        multiply_row(acc, tokens, f, 8, lane);
        break;
    case 12:
        multiply_row(acc, tokens, f, 12, lane);
        break;
    case 14:
        multiply_row(acc, tokens, f, 14, lane);
        break;
    default:
        multiply_row(acc, tokens, f, type, lane);
    }
}

/* A matrix, and what it is multiplied to: y[n][n_rows] = x[n][n_cols] W^T + bias. */
#define PRODUCT(i) BUFFER(y##i), BUFFER(w##i), BUFFER(bias##i), int type##i, int row_bytes##i, int n_rows##i
#define OF(i, zero, one, two) ((i) == 0 ? (zero) : (i) == 1 ? (one) : (two))

/* Products of three matrices, of which some may have no rows, with the same x. Groups: rows by THREADS / LANES, those of each
 * matrix behind those of the one before, x tokens by `tokens`, which is a constant in each kernel, as is how many columns are
 * staged at a time. */
#define MATMUL(name, tokens, columns)                                                                                              \
    KERNEL name(PRODUCT(0), PRODUCT(1), PRODUCT(2), BUFFER(x), int n_cols, int n)                                                  \
    {                                                                                                                              \
        SHARED float4 staged[tokens * columns / 32 * BLOCK_FOURS];                                                                 \
        LOCAL float *sums = (LOCAL float *)staged;                                                                                 \
        const int at_once = THREADS / LANES, end0 = (n_rows0 + at_once - 1) / at_once;                                             \
        const int end1 = end0 + (n_rows1 + at_once - 1) / at_once;                                                                 \
        const int which = GROUP(0) < end0 ? 0 : GROUP(0) < end1 ? 1 : 2, block = GROUP(0) - OF(which, 0, end0, end1);              \
        const int lane = THREAD % LANES, row = block * at_once + THREAD / LANES, first = GROUP(1) * tokens;                        \
        const int n_rows = OF(which, n_rows0, n_rows1, n_rows2), type = OF(which, type0, type1, type2);                            \
        struct factors f = {OF(which, AT(uchar, w0), AT(uchar, w1), AT(uchar, w2)) +                                               \
                                (ulong)(row < n_rows ? row : n_rows - 1) * (ulong)OF(which, row_bytes0, row_bytes1, row_bytes2),   \
                            staged, 0, columns / 32, (n_cols + 31) / 32, n_cols, n - first < tokens ? n - first : tokens};         \
        float acc[tokens];                                                                                                         \
        for (int t = 0; t < tokens; t++)                                                                                           \
            acc[t] = 0;                                                                                                            \
        do {                                                                                                                       \
            stage_rows(staged, AT(float, x) + (ulong)first * (ulong)n_cols, f.n, n_cols, f.base * 32, columns);                    \
            BARRIER();                                                                                                             \
            multiply(acc, tokens, f, type, lane);                                                                                  \
            BARRIER();                                                                                                             \
            f.base += f.n_staged;                                                                                                  \
        } while (f.base < f.n_blocks);                                                                                             \
        for (int t = 0; t < tokens; t++)                                                                                           \
            sums[t * THREADS + THREAD] = acc[t];                                                                                   \
        for (int half_n = LANES / 2; half_n > 0; half_n /= 2) {                                                                    \
            BARRIER();                                                                                                             \
            for (int t = 0; t < tokens && lane < half_n; t++)                                                                      \
                sums[t * THREADS + THREAD] += sums[t * THREADS + THREAD + half_n];                                                 \
        }                                                                                                                          \
        const GLOBAL float *bias = OF(which, GIVEN(bias0), GIVEN(bias1), GIVEN(bias2))                                             \
                                       ? OF(which, AT(float, bias0), AT(float, bias1), AT(float, bias2))                           \
                                       : 0;                                                                                        \
        GLOBAL float *y = OF(which, AT(float, y0), AT(float, y1), AT(float, y2));                                                  \
        for (int t = 0; t < f.n && lane == 0 && row < n_rows; t++)                                                                 \
            y[(ulong)(first + t) * (ulong)n_rows + (ulong)row] = sums[t * THREADS + THREAD] + (bias ? bias[row] : 0.0f);           \
    }

MATMUL(matmul_1, 1, 4096)
MATMUL(matmul_8, 8, 512)

/* to[row][n_cols]: rows of w as floats, for a library of products (prompt_gpu.c), which reads neighbours together: so they are
 * written. Groups: rows x blocks of 32 * THREADS columns. */
KERNEL unpack(BUFFER(to), BUFFER(w), int type, int row_bytes, int n_cols)
{
    SHARED float all[33 * THREADS]; /* 33: threads that write the same of their 32 use other banks */
    const int row = GROUP(0), base = GROUP(1) * THREADS * 32, n = n_cols - base - THREAD * 32;
    GLOBAL float *out = AT(float, to) + (ulong)row * (ulong)n_cols + (ulong)base;
    float v[32], s[2];
    if (n > 0) {
        load_weights(v, s, type, AT(uchar, w) + (ulong)row * (ulong)row_bytes, base / 32 + THREAD, n);
        for (int i = 0; i < 32; i++)
            all[THREAD * 33 + i] = v[i] * s[i / 16];
    }
    BARRIER();
    for (int i = THREAD; i < 32 * THREADS && base + i < n_cols; i += THREADS)
        out[i] = all[i / 32 * 33 + i % 32];
}

/* y[row][i] = tile[row][i] + bias[i] for i < dim; rows of y are y_stride apart. Groups: rows x blocks of THREADS columns. */
KERNEL take_product(BUFFER(y), BUFFER(tile), BUFFER(bias), int y_stride, int dim)
{
    const int row = GROUP(0), i = GROUP(1) * THREADS + THREAD;
    if (i >= dim)
        return;
    const float sum = AT(float, tile)[(ulong)row * (ulong)dim + (ulong)i];
    AT(float, y)[(ulong)row * (ulong)y_stride + (ulong)i] = GIVEN(bias) ? sum + AT(float, bias)[i] : sum;
}

/* ------------------------------------------------------------------------------------------------ rows of activations */

/* y[n][dim] from x[n][dim] (may be y); kind: enum butler_norm. Groups: n. */
KERNEL norm_rows(BUFFER(y), BUFFER(x), BUFFER(weight), BUFFER(bias), int n_parts, int dim, int kind, float eps)
{
    SHARED float shared[THREADS];
    const ulong at = (ulong)GROUP(0) * (ulong)dim;
    const int part = GROUP(0) % n_parts * dim;
    const GLOBAL float *from = AT(float, x) + at;
    float sum = 0, mean = 0, squares = 0;
    if (kind != 0) {
        for (int i = THREAD; i < dim; i += THREADS)
            sum += from[i];
        mean = group_sum(shared, sum) / (float)dim;
    }
    for (int i = THREAD; i < dim; i += THREADS)
        squares = fma(from[i] - mean, from[i] - mean, squares);
    const float scale = 1 / sqrt(group_sum(shared, squares) / (float)dim + eps);
    for (int i = THREAD; i < dim; i += 4 * THREADS) { /* y may be x: what is read together is read before it is written */
        float some[4];
        for (int j = 0; j < 4; j++)
            if (i + j * THREADS < dim)
                some[j] = (from[i + j * THREADS] - mean) * scale * AT(float, weight)[part + i + j * THREADS] +
                          (kind != 0 && GIVEN(bias) ? AT(float, bias)[i + j * THREADS] : 0.0f);
        for (int j = 0; j < 4; j++)
            if (i + j * THREADS < dim)
                AT(float, y)[at + (ulong)(i + j * THREADS)] = some[j];
    }
}

/* Rotates the first n_rot of each head of row GROUP(0): of n_heads in x, n_more in `more`; adjacent: pairs (2i, 2i + 1), else (i,
 * i + n_rot / 2). Groups: rows x blocks of THREADS pairs. */
KERNEL rope(BUFFER(x), BUFFER(more), BUFFER(cosines), BUFFER(sines), int n_heads, int n_more, int dim, int n_rot, int adjacent)
{
    const int half_n = n_rot / 2, i = GROUP(1) * THREADS + THREAD, h = i / half_n, pair = i % half_n;
    const int a = adjacent ? 2 * pair : pair, b = adjacent ? 2 * pair + 1 : pair + half_n;
    if (h >= n_heads + n_more)
        return;
    GLOBAL float *head = h < n_heads ? AT(float, x) + (ulong)(GROUP(0) * n_heads + h) * (ulong)dim
                                     : AT(float, more) + (ulong)(GROUP(0) * n_more + h - n_heads) * (ulong)dim;
    const float c = AT(float, cosines)[GROUP(0) * half_n + pair], s = AT(float, sines)[GROUP(0) * half_n + pair];
    const float xa = head[a], xb = head[b];
    head[a] = xa * c - xb * s;
    head[b] = xa * s + xb * c;
}

static float activated(float x, int kind)
{
    switch (kind) {
    case 0: /* silu */
        return x / (1 + exp(-x));
    case 1: /* gelu */
        return 0.5f * x * (1 + tanh(0.79788456f * fma(0.044715f * x * x, x, x)));
    case 2: /* gelu_erf */
        return 0.5f * x * (1 + erf(x * 0.70710678f));
    default: /* relu */
        return x < 0 ? 0.0f : x;
    }
}

/* up = activation(gate) * up; without gate activation(up). kind: enum butler_activation. Groups: rows x blocks of a row. */
KERNEL activate(BUFFER(up), BUFFER(gate), int up_stride, int dim, int kind)
{
    const int i = GROUP(1) * THREADS + THREAD;
    if (i >= dim)
        return;
    GLOBAL float *u = AT(float, up) + (ulong)GROUP(0) * (ulong)up_stride + (ulong)i;
    if (!GIVEN(gate)) {
        *u = activated(*u, kind);
        return;
    }
    const float g = AT(float, gate)[(ulong)GROUP(0) * (ulong)dim + (ulong)i];
    if (kind == 4) { /* swiglu_clamped */
        const float top = g > 7.0f ? 7.0f : g, within = *u > 7.0f ? 7.0f : *u < -7.0f ? -7.0f : *u; /* NaN stays, and is found */
        *u = (within + 1) * top / (1 + exp(-1.702f * top));
    } else
        *u = activated(g, kind) * *u;
}

/* y = y + x, factor y, or factor tanh(y / factor), for kind 0, 1, 2. */
KERNEL elementwise(BUFFER(y), BUFFER(x), ulong n, int kind, float factor)
{
    const ulong i = (ulong)GROUP(0) * THREADS + (ulong)THREAD;
    if (i >= n)
        return;
    GLOBAL float *at = AT(float, y) + i;
    *at = kind == 0 ? *at + AT(float, x)[i] : kind == 1 ? *at * factor : factor * tanh(*at / factor);
}

/* to[i] = from[rows[i]]; a thread moves one column, row after row, for to may be from. */
KERNEL gather_rows(BUFFER(to), BUFFER(from), BUFFER(rows), int n, int dim)
{
    const int d = GROUP(0) * THREADS + THREAD;
    for (int i = 0; i < n && d < dim; i++)
        AT(float, to)[(ulong)i * (ulong)dim + (ulong)d] = AT(float, from)[(ulong)AT(int, rows)[i] * (ulong)dim + (ulong)d];
}

/* to[rows[i]] += factors[i] from[i], for i = GROUP(0). rows: int[n], behind them the factors, float[n]. */
KERNEL scatter_add(BUFFER(to), BUFFER(from), BUFFER(rows), int n, int dim)
{
    const int d = GROUP(1) * THREADS + THREAD, i = GROUP(0);
    if (d < dim) {
        GLOBAL float *y = AT(float, to) + (ulong)AT(int, rows)[i] * (ulong)dim + (ulong)d;
        *y = fma(AT(float, rows)[n + i], AT(float, from)[(ulong)i * (ulong)dim + (ulong)d], *y);
    }
}

/* Of part GROUP(1) of row GROUP(0) of x[n], `part` numbers: the first index that is not finite, or -1, and its bits; the k
 * highest, ties to the lower index, and from where there are no more on index n. tops[row][parts][2 + 2 k]: index, bits, k
 * indices, bits of k values. */
KERNEL finite_top_k(BUFFER(tops), BUFFER(x), int n, int part, int n_parts, int k)
{
    SHARED float values[THREADS];
    SHARED int ids[THREADS];
    const GLOBAL float *row = AT(float, x) + (ulong)GROUP(0) * (ulong)n;
    GLOBAL int *top = AT(int, tops) + (GROUP(0) * n_parts + GROUP(1)) * (2 + 2 * k);
    const int begin = GROUP(1) * part + THREAD, end = (GROUP(1) + 1) * part < n ? (GROUP(1) + 1) * part : n;
    float last = INFINITY;
    int last_id = -1, bad = n;
    for (int i = begin; i < end; i += THREADS)
        if ((FLOAT_TO_BITS(row[i]) & 0x7f800000u) == 0x7f800000u && i < bad)
            bad = i;
    ids[THREAD] = bad;
    BARRIER();
    if (THREAD == 0) {
        for (int i = 1; i < THREADS; i++)
            bad = ids[i] < bad ? ids[i] : bad;
        top[0] = bad < n ? bad : -1;
        top[1] = bad < n ? (int)FLOAT_TO_BITS(row[bad]) : 0;
    }
    for (int j = 0; j < k; j++) {
        float best = -INFINITY;
        int best_id = n;
        for (int i = begin; i < end; i += THREADS)
            if ((row[i] < last || (row[i] == last && i > last_id)) && (row[i] > best || best_id == n)) {
                best = row[i];
                best_id = i;
            }
        BARRIER();
        values[THREAD] = best;
        ids[THREAD] = best_id;
        BARRIER();
        last_id = n;
        for (int i = 0; i < THREADS; i++)
            if (ids[i] < n && (last_id == n || values[i] > last || (values[i] == last && ids[i] < last_id))) {
                last = values[i];
                last_id = ids[i];
            }
        if (THREAD == 0) {
            top[2 + j] = last_id;
            top[2 + k + j] = (int)FLOAT_TO_BITS(last);
        }
    }
}
