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

/* The sum of x of the threads before this one; *total: of all. */
static int group_scan(LOCAL int *shared, int x, int *total)
{
    shared[THREAD] = x;
    BARRIER();
    for (int n = 1; n < THREADS; n *= 2) {
        const int before = THREAD >= n ? shared[THREAD - n] : 0;
        BARRIER();
        shared[THREAD] += before;
        BARRIER();
    }
    const int inclusive = shared[THREAD];
    *total = shared[THREADS - 1];
    BARRIER();
    return inclusive - x;
}

/* --------------------------------------------------------------------------------------------------- weights */

/* Blocks are described in src/file/weight_blocks.h. Functions give 32 weights v: of a block, or number j of its eights. */

static int signed_byte(int b)
{
    return b < 128 ? b : b - 256;
}

/* Scale and minimum of sub-block j of a Q4_K or Q5_K block: 6 bits each. */
static void scale_min(const GLOBAL uchar *s, int j, int *scale, int *min)
{
    *scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    *min = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
}

static void load_nibbles(float *v, const GLOBAL uchar *q, const GLOBAL uchar *high, float d, float m)
{
    const uint bits = high ? high[0] | (uint)high[1] << 8 | (uint)high[2] << 16 | (uint)high[3] << 24 : 0;
    for (int i = 0; i < 16; i++) {
        v[i] = fma(d, (float)((q[i] & 15) | (bits >> i & 1) << 4), m);
        v[i + 16] = fma(d, (float)(q[i] >> 4 | (bits >> (i + 16) & 1) << 4), m);
    }
}

/* Nibbles that are indices of a table of 16 signed bytes: low has the first 8. */
static void load_table(float *v, const GLOBAL uchar *q, float d, ulong low, ulong high)
{
    for (int i = 0; i < 32; i++) {
        const int at = q[i % 16] >> (i / 16 * 4) & 15;
        v[i] = d * (float)signed_byte((int)((at < 8 ? low : high) >> (at % 8 * 8) & 255));
    }
}

static void load_iq4(float *v, const GLOBAL uchar *q, float d)
{
    load_table(v, q, d, 0xf6eaddcfbfad9881ul, 0x7159453526190d01ul);
}

/* Scales of 6 bits, 2 of which lie apart; the nibbles of an eighth are 16 bytes. */
static void load_iq4_xs(float *v, const GLOBAL uchar *block, int j)
{
    const int high = block[2 + j / 4] >> (j % 4 * 2) & 3, low = block[4 + j / 2] >> (j % 2 * 4) & 15;
    load_iq4(v, block + 8 + j * 16, LOAD_HALF(block) * (float)((low | high << 4) - 32));
}

static void load_q4_k(float *v, const GLOBAL uchar *block, int j, int five_bits)
{
    const float d = LOAD_HALF(block), d_min = LOAD_HALF(block + 2);
    const GLOBAL uchar *high = block + 16, *q = block + (five_bits ? 48 : 16) + j / 2 * 32;
    int scale, min;
    scale_min(block + 4, j, &scale, &min);
    for (int i = 0; i < 32; i++) {
        const int nibble = q[i] >> (j % 2 * 4) & 15, fifth = five_bits ? (high[i] >> j & 1) << 4 : 0;
        v[i] = d * (float)scale * (float)(nibble | fifth) - d_min * (float)min;
    }
}

static void load_q6_k(float *v, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 208);
    const GLOBAL uchar *low = block + j / 4 * 64 + j % 2 * 32, *high = block + 128 + j / 4 * 32;
    for (int i = 0; i < 32; i++) {
        const int q = (low[i] >> (j % 4 / 2 * 4) & 15) | (high[i] >> (j % 4 * 2) & 3) << 4;
        v[i] = d * (float)signed_byte(block[192 + j * 2 + i / 16]) * (float)(q - 32);
    }
}

/* Two bits of each weight, of q[64] for a block. */
static void load_pairs(float *v, const GLOBAL uchar *q, int j)
{
    for (int i = 0; i < 32; i++)
        v[i] = (float)(q[j / 4 * 32 + i] >> (j % 4 * 2) & 3);
}

static void load_q2_k(float *v, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 80), d_min = LOAD_HALF(block + 82);
    load_pairs(v, block + 16, j);
    for (int i = 0; i < 32; i++) {
        const int s = block[j * 2 + i / 16];
        v[i] = d * (float)(s & 15) * v[i] - d_min * (float)(s >> 4);
    }
}

static void load_q3_k(float *v, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 108);
    const GLOBAL uchar *scales = block + 96;
    load_pairs(v, block + 32, j);
    for (int i = 0; i < 32; i++) {
        const int g = j * 2 + i / 16, s = (scales[g % 8] >> (g / 8 * 4) & 15) | (scales[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
        v[i] = d * (float)(s - 32) * (v[i] - (block[i] >> j & 1 ? 0.0f : 4.0f));
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
    const float d = LOAD_HALF(block + 52);
    for (int k = 0; k < 2; k++) {
        const GLOBAL uchar *bytes = block + (j < 5 ? k * 16 : 32);
        const int r = j < 5 ? j : (j - 5) * 2 + k, power = power_of_3(r);
        if (r < 5)
            for (int i = 0; i < 16; i++)
                v[k * 16 + i] = d * (float)(((bytes[i] * power & 255) * 3 >> 8) - 1);
        else
            for (int i = 0; i < 16; i++)
                v[k * 16 + i] = d * (float)(((bytes[16 + i % 4] * power_of_3(i / 4) & 255) * 3 >> 8) - 1);
    }
}

static void load_tq2_0(float *v, const GLOBAL uchar *block, int j)
{
    const float d = LOAD_HALF(block + 64);
    load_pairs(v, block, j);
    for (int i = 0; i < 32; i++)
        v[i] = d * (v[i] - 1);
}

/* v[32] = weights [32 at, 32 at + n) of a row of this type, zeros behind them. Types have ggml's numbers. */
static void load_weights(float *v, int type, const GLOBAL uchar *row, int at, int n)
{
    const GLOBAL uchar *b;
    switch (type) {
    case 0: /* F32 */
        for (int i = 0; i < 32; i++)
            v[i] = i < n ? ((const GLOBAL float *)row)[at * 32 + i] : 0;
        break;
    case 1: /* F16 */
        for (int i = 0; i < 32; i++)
            v[i] = i < n ? LOAD_HALF(row + (at * 32 + i) * 2) : 0;
        break;
    case 30: /* BF16 */
        for (int i = 0; i < 32; i++)
            v[i] = i < n ? BITS_TO_FLOAT((uint)row[(at * 32 + i) * 2] << 16 | (uint)row[(at * 32 + i) * 2 + 1] << 24) : 0;
        break;
    case 8: /* Q8_0 */
        b = row + at * 34;
        for (int i = 0; i < 32; i++)
            v[i] = LOAD_HALF(b) * (float)signed_byte(b[2 + i]);
        break;
    case 2: /* Q4_0 */
        b = row + at * 18;
        load_nibbles(v, b + 2, 0, LOAD_HALF(b), -8 * LOAD_HALF(b));
        break;
    case 3: /* Q4_1 */
        b = row + at * 20;
        load_nibbles(v, b + 4, 0, LOAD_HALF(b), LOAD_HALF(b + 2));
        break;
    case 6: /* Q5_0 */
        b = row + at * 22;
        load_nibbles(v, b + 6, b + 2, LOAD_HALF(b), -16 * LOAD_HALF(b));
        break;
    case 7: /* Q5_1 */
        b = row + at * 24;
        load_nibbles(v, b + 8, b + 4, LOAD_HALF(b), LOAD_HALF(b + 2));
        break;
    case 12: /* Q4_K */
        load_q4_k(v, row + at / 8 * 144, at % 8, 0);
        break;
    case 13: /* Q5_K */
        load_q4_k(v, row + at / 8 * 176, at % 8, 1);
        break;
    case 14: /* Q6_K */
        load_q6_k(v, row + at / 8 * 210, at % 8);
        break;
    case 10: /* Q2_K */
        load_q2_k(v, row + at / 8 * 84, at % 8);
        break;
    case 11: /* Q3_K */
        load_q3_k(v, row + at / 8 * 110, at % 8);
        break;
    case 20: /* IQ4_NL */
        b = row + at * 18;
        load_iq4(v, b + 2, LOAD_HALF(b));
        break;
    case 23: /* IQ4_XS */
        load_iq4_xs(v, row + at / 8 * 136, at % 8);
        break;
    case 34: /* TQ1_0 */
        load_tq1_0(v, row + at / 8 * 54, at % 8);
        break;
    case 35: /* TQ2_0 */
        load_tq2_0(v, row + at / 8 * 66, at % 8);
        break;
    case 39: /* MXFP4, whose scale is 2^(b[0] - 128) */
        b = row + at * 17;
        load_table(v, b + 1, BITS_TO_FLOAT(b[0] < 2 ? 0x200000u << b[0] : (uint)(b[0] - 1) << 23), 0x0c08060403020100ul,
                   0xf4f8fafcfdfeff00ul);
        break;
    }
}

/* y[n][n_cols] = rows ids[n] of the table. Groups: n x blocks of THREADS * 32 columns. */
KERNEL embed(BUFFER(y), BUFFER(table), BUFFER(ids), int type, int row_bytes, int n_cols)
{
    const int t = GROUP(0), at = GROUP(1) * THREADS + THREAD, n = n_cols - at * 32;
    float v[32];
    if (n <= 0)
        return;
    load_weights(v, type, AT(uchar, table) + (ulong)AT(int, ids)[t] * (ulong)row_bytes, at, n);
    for (int i = 0; i < 32 && i < n; i++)
        AT(float, y)[(ulong)t * (ulong)n_cols + (ulong)(at * 32 + i)] = v[i];
}

/* y[n][n_rows] = x[n][n_cols] W^T + bias. A row of W is work for 32 threads, which take every 32nd block of 32 weights. Groups: rows
 * of W by fours x tokens by `tokens`, which is a constant in each kernel. */
#define LANES 32
#define MATMUL(name, tokens)                                                                                                       \
    KERNEL name(BUFFER(y), BUFFER(w), BUFFER(bias), BUFFER(x), int type, int row_bytes, int n_rows, int n_cols, int n)             \
    {                                                                                                                              \
        SHARED float sums[tokens * THREADS];                                                                                       \
        const int lane = THREAD % LANES, row = GROUP(0) * (THREADS / LANES) + THREAD / LANES, first = GROUP(1) * tokens;           \
        float acc[tokens], v[32];                                                                                                  \
        for (int t = 0; t < tokens; t++)                                                                                           \
            acc[t] = 0;                                                                                                            \
        for (int at = lane; row < n_rows && at * 32 < n_cols; at += LANES) {                                                       \
            const int m = n_cols - at * 32;                                                                                        \
            load_weights(v, type, AT(uchar, w) + (ulong)row * (ulong)row_bytes, at, m);                                            \
            for (int t = 0; t < tokens && first + t < n; t++) {                                                                    \
                const GLOBAL float *in = AT(float, x) + (ulong)(first + t) * (ulong)n_cols + (ulong)(at * 32);                     \
                float part[4] = {0, 0, 0, 0};                                                                                      \
                for (int i = 0; i < 32; i += 4)                                                                                    \
                    for (int j = 0; j < 4; j++)                                                                                    \
                        part[j] = fma(v[i + j], i + j < m ? in[i + j] : 0.0f, part[j]);                                            \
                acc[t] += (part[0] + part[1]) + (part[2] + part[3]);                                                               \
            }                                                                                                                      \
        }                                                                                                                          \
        for (int t = 0; t < tokens; t++)                                                                                           \
            sums[t * THREADS + THREAD] = acc[t];                                                                                   \
        for (int half_n = LANES / 2; half_n > 0; half_n /= 2) {                                                                    \
            BARRIER();                                                                                                             \
            for (int t = 0; t < tokens && lane < half_n; t++)                                                                      \
                sums[t * THREADS + THREAD] += sums[t * THREADS + THREAD + half_n];                                                 \
        }                                                                                                                          \
        for (int t = 0; t < tokens && lane == 0 && row < n_rows && first + t < n; t++)                                             \
            AT(float, y)                                                                                                           \
            [(ulong)(first + t) * (ulong)n_rows + (ulong)row] =                                                                    \
                sums[t * THREADS + THREAD] + (GIVEN(bias) ? AT(float, bias)[row] : 0.0f);                                          \
    }

MATMUL(matmul_1, 1)
MATMUL(matmul_8, 8)

/* to[row][n_cols]: rows of w as floats, for a library of products (prompt_gpu.c), which reads neighbours together: so they are
 * written. Groups: rows x blocks of 32 * THREADS columns. */
KERNEL unpack(BUFFER(to), BUFFER(w), int type, int row_bytes, int n_cols)
{
    SHARED float all[33 * THREADS]; /* 33: threads that write the same of their 32 use other banks */
    const int row = GROUP(0), base = GROUP(1) * THREADS * 32, n = n_cols - base - THREAD * 32;
    GLOBAL float *out = AT(float, to) + (ulong)row * (ulong)n_cols + (ulong)base;
    float v[32];
    if (n > 0) {
        load_weights(v, type, AT(uchar, w) + (ulong)row * (ulong)row_bytes, base / 32 + THREAD, n);
        for (int i = 0; i < 32; i++)
            all[THREAD * 33 + i] = v[i];
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
    for (int i = THREAD; i < dim; i += THREADS)
        AT(float, y)[at + (ulong)i] =
            (from[i] - mean) * scale * AT(float, weight)[part + i] + (kind != 0 && GIVEN(bias) ? AT(float, bias)[i] : 0.0f);
}

/* Rotates the first n_rot of each of n_heads heads of row GROUP(0) of x; adjacent: pairs (2i, 2i + 1), else (i, i + n_rot / 2). */
KERNEL rope(BUFFER(x), BUFFER(cosines), BUFFER(sines), int n_heads, int dim, int n_rot, int adjacent)
{
    const int half_n = n_rot / 2;
    for (int i = THREAD; i < n_heads * half_n; i += THREADS) {
        const int pair = i % half_n, a = adjacent ? 2 * pair : pair, b = adjacent ? 2 * pair + 1 : pair + half_n;
        GLOBAL float *head = AT(float, x) + (ulong)(GROUP(0) * n_heads + i / half_n) * (ulong)dim;
        const float c = AT(float, cosines)[GROUP(0) * half_n + pair], s = AT(float, sines)[GROUP(0) * half_n + pair];
        const float xa = head[a], xb = head[b];
        head[a] = xa * c - xb * s;
        head[b] = xa * s + xb * c;
    }
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
        return x > 0 ? x : 0.0f;
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
        const float top = fmin(g, 7.0f);
        *u = (fmax(fmin(*u, 7.0f), -7.0f) + 1) * top / (1 + exp(-1.702f * top));
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

/* Of row GROUP(0) of x[n]: the first index that is not finite, or -1, and its bits; the k highest, ties to the lower index.
 * tops[row][2 + 2 k]: index, bits, k indices, bits of k values. */
KERNEL finite_top_k(BUFFER(tops), BUFFER(x), int n, int k)
{
    SHARED float values[THREADS];
    SHARED int ids[THREADS];
    const GLOBAL float *row = AT(float, x) + (ulong)GROUP(0) * (ulong)n;
    GLOBAL int *top = AT(int, tops) + GROUP(0) * (2 + 2 * k);
    float last = INFINITY;
    int last_id = -1, bad = n;
    for (int i = THREAD; i < n && bad == n; i += THREADS)
        if ((FLOAT_TO_BITS(row[i]) & 0x7f800000u) == 0x7f800000u)
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
        for (int i = THREAD; i < n; i += THREADS)
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
