/* Packed blocks and their products on every ISA: a packed operand is the same bytes everywhere and reads nothing beyond its
 * lines; products are those of the numbers in double precision, as near as two bfloat16 hold a number; and a value does
 * not depend on the block it was computed in. The same for fixed point, whose sums are exact. */
#include "kernel_test.h"

enum { MAX_LINES = 80, MAX_K = 300 };

typedef void pack_fn(void *packed, const float *x, size_t stride, int n, int k);

/* The value that the two parts of element c of line i have, by the layout in kernels.h. */
static double packed_value(const unsigned char *packed, int i, int c, int k, bool columns, bool high_only)
{
    const size_t tiles = (size_t)(k + 31) / 32;
    const unsigned char *tile = packed + ((size_t)(i / 16) * tiles + (size_t)(c / 32)) * 2048;
    const size_t at = columns ? (size_t)(c % 32 / 2 * 64 + i % 16 * 4 + c % 2 * 2) : (size_t)(i % 16 * 64 + c % 32 * 2);
    double value = 0;
    for (int part = 0; part < (high_only ? 1 : 2); part++) {
        const unsigned char *p = tile + part * 1024 + at;
        const uint32_t bits = (uint32_t)p[0] << 16 | (uint32_t)p[1] << 24;
        float f;
        memcpy(&f, &bits, sizeof f);
        value += (double)f;
    }
    return value;
}

static void check_pack(const struct butler_kernels *table, int kind, int n, int k, bool end, enum kind values, uint64_t *seed)
{
    static struct guarded in, out;
    if (!in.base) {
        in = guarded_new(sizeof(float) * MAX_LINES * (MAX_K + 8));
        out = guarded_new(butler_packed_bytes(MAX_LINES, MAX_K));
    }
    static unsigned char reference[1 << 18];
    pack_fn *packs[] = {table->pack_rows, table->pack_columns, table->pack_turned};
    pack_fn *plain[] = {butler_kernels_ref.pack_rows, butler_kernels_ref.pack_columns, butler_kernels_ref.pack_turned};
    const bool turned = kind == 2;
    const int outer = turned ? k : n, inner = turned ? n : k;
    const size_t stride = (size_t)inner + (size_t)(n % 3), count = (size_t)(outer - 1) * stride + (size_t)inner,
                 bytes = butler_packed_bytes(n, k);
    float *x = guarded_at(&in, count * sizeof *x, end, 0);
    unsigned char *packed = guarded_at(&out, bytes, end, 0);
    fill_random(x, count, values, seed);
    memset(packed, 0xff, bytes);
    packs[kind](packed, x, stride, n, k);
    plain[kind](reference, x, stride, n, k);
    if (values != SUBNORMAL && values != MIXED)
        assert_memory_equal(packed, reference, bytes);
    for (int i = 0; i < (n + 15) / 16 * 16; i++)
        for (int c = 0; c < (k + 31) / 32 * 32; c++) {
            const double value =
                i < n && c < k ? (double)x[turned ? (size_t)c * stride + (size_t)i : (size_t)i * stride + (size_t)c] : 0;
            assert_near("pack", table->isa, k, i, packed_value(packed, i, c, k, kind == 1, false), value,
                        fabs(value) * 0x1p-17 + 0x1p-126);
            assert_near("pack, high part", table->isa, k, i, packed_value(packed, i, c, k, kind == 1, true), value,
                        fabs(value) * 0x1p-8 + 0x1p-126);
        }
}

static void operands_hold_their_numbers(void **state)
{
    (void)state;
    uint64_t seed = 6;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 120; trial++) {
            const int n = 1 + trial * 7 % 50, k = 1 + trial * 11 % 130;
            check_pack(table, trial % 3, n, k, trial % 2, (enum kind)(trial / 3 % N_KINDS), &seed);
        }
    }
}

/* A number in two parts is off by 2^-17, the product left out is at most 2^-16 of the whole; then sums in any order. Parts that are
 * subnormal may count as 0, whatever they are multiplied by: sizes is the sum of all magnitudes of both operands. */
static double product_bound(int k, double magnitude, double sizes)
{
    return (0x1p-15 + (k + 8) * EPS) * magnitude + sizes * 0x1p-125 + (k + 1) * 0x1p-125;
}

/* Queries, keys and values of an attention and what comes of them: numbers first, then as the kernel takes them. */
enum { MAX_QUERIES = 70, MAX_KEYS = 200, MAX_DIM = 160, QUERY_ROOM = 96, KEY_ROOM = 256, KEPT_STRIDE = 208 };

struct attention_case {
    int n_rows, n_keys, dim;
    float q[MAX_QUERIES * MAX_DIM], k[MAX_KEYS * MAX_DIM], v[MAX_KEYS * MAX_DIM];
    int32_t begin[QUERY_ROOM], end[QUERY_ROOM];
    _Alignas(64) unsigned char queries[QUERY_ROOM * MAX_DIM * 4], keys[KEY_ROOM * MAX_DIM * 4], values[KEY_ROOM * MAX_DIM * 4];
    _Alignas(64) float max[QUERY_ROOM], sum[QUERY_ROOM], out[QUERY_ROOM * MAX_DIM];
    float kept[MAX_QUERIES * KEPT_STRIDE], maxima[4 * MAX_QUERIES];
};

/* Keys [first, first + n) with the queries, on top of what was there. */
static void attend_keys(struct attention_case *c, const struct butler_kernels *table, int first, int n, bool keep)
{
    static float lines[KEY_ROOM * MAX_DIM];
    const int dim = c->dim, n_packed = (n + 63) / 64 * 64;
    int32_t begin[QUERY_ROOM], end[QUERY_ROOM];
    for (int i = 0; i < QUERY_ROOM; i++) {
        begin[i] = c->begin[BUTLER_MIN(i, c->n_rows - 1)] - first;
        end[i] = BUTLER_MIN(c->end[BUTLER_MIN(i, c->n_rows - 1)] - first, n);
    }
    memset(c->values, 0, sizeof c->values);
    memset(lines, 0, sizeof lines);
    for (int i = 0; i < n; i++)
        memcpy(lines + butler_attend_place(i) * dim, c->k + (first + i) * dim, (size_t)dim * sizeof *lines);
    table->pack_rows(c->keys, lines, (size_t)dim, n_packed, dim);
    memset(lines, 0, sizeof lines);
    memcpy(lines, c->v + first * dim, (size_t)(n * dim) * sizeof *lines);
    table->pack_turned(c->values, lines, (size_t)dim, dim, n_packed);
    table->attend_packed(&(struct butler_attention){.queries = c->queries,
                                                    .keys = c->keys,
                                                    .values = c->values,
                                                    .begin = begin,
                                                    .end = end,
                                                    .max = c->max,
                                                    .sum = c->sum,
                                                    .out = c->out,
                                                    .kept = keep ? c->kept + first : NULL,
                                                    .maxima = c->maxima + first / 64 * MAX_QUERIES,
                                                    .kept_stride = KEPT_STRIDE,
                                                    .maxima_stride = MAX_QUERIES,
                                                    .n_rows = c->n_rows,
                                                    .n_keys = n,
                                                    .dim = dim});
}

/* All keys, `at_once` of them a call. */
static void attend(struct attention_case *c, const struct butler_kernels *table, int at_once, bool keep)
{
    for (int i = 0; i < QUERY_ROOM; i++) {
        c->max[i] = BUTLER_ATTEND_LEAST;
        c->sum[i] = 0;
    }
    memset(c->out, 0, sizeof c->out);
    for (int i = 0; i < MAX_QUERIES * KEPT_STRIDE; i++)
        c->kept[i] = -12345;
    table->pack_columns(c->queries, c->q, (size_t)c->dim, c->n_rows, c->dim);
    for (int i = 0; i < c->n_keys; i += at_once)
        attend_keys(c, table, i, BUTLER_MIN(at_once, c->n_keys - i), keep);
}

/* One query against double precision. */
static void check_query(const struct attention_case *c, const char *isa, int row, bool keep)
{
    static double scores[MAX_KEYS], bounds[MAX_KEYS];
    const int dim = c->dim;
    double most = -INFINITY, sum = 0, sum_bound = 0;
    for (int j = c->begin[row]; j < c->end[row]; j++) {
        double magnitude = 0, sizes = 0;
        scores[j] = 0;
        for (int d = 0; d < dim; d++) {
            const double u = (double)c->q[row * dim + d], v = (double)c->k[j * dim + d];
            scores[j] += u * v;
            magnitude += fabs(u * v);
            sizes += fabs(u) + fabs(v);
        }
        bounds[j] = product_bound(dim, magnitude, sizes);
        most = fmax(most, scores[j]);
    }
    const double max = (double)c->max[row], log2_e = 1.4426950408889634;
    if (c->begin[row] >= c->end[row]) {
        assert_true(c->max[row] == BUTLER_ATTEND_LEAST && c->sum[row] == 0);
        return;
    }
    /* A whole number not below the greatest score and less than 1 above it, but for that score's own error. */
    assert_true(c->max[row] == ceilf(c->max[row]) && max - most * log2_e > -1e-3 && max - most * log2_e < 1 + 1e-3);
    for (int j = c->begin[row]; j < c->end[row]; j++) {
        /* the score's error; 4 units in the last place; the argument is rounded once, and so is log2(e) */
        const double e = exp2(scores[j] * log2_e - max),
                     bound = e * (expm1(bounds[j]) + EPS * (4 + fabs(scores[j]) + fabs(scores[j] * log2_e - max))) + 0x1p-126;
        sum += e;
        sum_bound += bound;
        bounds[j] = bound;
        scores[j] = e;
        if (keep)
            assert_near("kept weights", isa, dim, j,
                        (double)c->kept[row * KEPT_STRIDE + j] * exp2((double)c->maxima[j / 64 * MAX_QUERIES + row] - max), e,
                        bound);
    }
    assert_near("sum of weights", isa, dim, row, c->sum[row], sum, sum_bound + sum * EPS * (100 + c->n_keys / 8));
    for (int d = 0; d < dim; d++) {
        double out = 0, bound = 0, magnitude = 0, sizes = 0;
        for (int j = c->begin[row]; j < c->end[row]; j++) {
            const double v = (double)c->v[j * dim + d];
            out += scores[j] * v;
            bound += bounds[j] * fabs(v);
            magnitude += scores[j] * fabs(v);
            sizes += scores[j] + fabs(v);
        }
        assert_near("weighted values", isa, dim, d, c->out[butler_attend_at(row, d, dim)], out,
                    bound + product_bound(c->n_keys, magnitude, sizes));
    }
}

/* Queries that see all keys, as many as their place in the text, a window of them or none; whole blocks of both and parts. Neither
 * keeping weights, nor other queries, nor how keys come changes a bit. */
static void attention_of_blocks(void **state)
{
    (void)state;
    static struct attention_case c, other;
    uint64_t seed = 7;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 60; trial++) {
            const bool keep = trial % 3 == 1;
            c.n_rows = 1 + trial * 23 % MAX_QUERIES, c.n_keys = 1 + trial * 41 % MAX_KEYS, c.dim = 16 * (1 + trial * 3 % 10);
            fill_random(c.q, (size_t)(c.n_rows * c.dim), trial % 7 == 6 ? SUBNORMAL : NORMAL, &seed);
            fill_random(c.k, (size_t)(c.n_keys * c.dim), trial % 5 == 4 ? ZEROS : NORMAL, &seed);
            fill_random(c.v, (size_t)(c.n_keys * c.dim), NORMAL, &seed);
            for (int i = 0; i < c.n_rows * c.dim; i++)
                c.q[i] *= trial % 4 == 3 ? 8 : 0.5f; /* scores some hundreds apart, or some units */
            for (int i = 0; i < c.n_rows; i++) {
                const int place = c.n_keys - c.n_rows + i;
                c.begin[i] = trial % 5 == 2 ? BUTLER_MAX(place - 20, 0) : 0;
                c.end[i] = trial % 5 == 0 ? c.n_keys : BUTLER_MAX(place + 1, 0);
            }
            attend(&c, table, 256, keep);
            for (int i = 0; i < c.n_rows; i++)
                check_query(&c, table->isa, i, keep);
            other = c;
            attend(&other, table, 64, !keep);
            assert_memory_equal(c.out, other.out, sizeof c.out);
            assert_memory_equal(c.sum, other.sum, sizeof c.sum);
            if (c.n_rows <= 32)
                continue;
            other = c; /* the last by itself, where it was in another place */
            other.n_rows = 1;
            memcpy(other.q, c.q + (c.n_rows - 1) * c.dim, (size_t)c.dim * sizeof *c.q);
            other.begin[0] = c.begin[c.n_rows - 1], other.end[0] = c.end[c.n_rows - 1];
            attend(&other, table, 256, false);
            for (int d = 0; d < c.dim; d++)
                assert_same_bits("a query alone", table->isa, c.dim, d, other.out[butler_attend_at(0, d, c.dim)],
                                 c.out[butler_attend_at(c.n_rows - 1, d, c.dim)]);
        }
    }
}

/* A score or a value that is no number makes its own query's result none. */
static void attention_keeps_nan(void **state)
{
    (void)state;
    static struct attention_case c;
    FOR_EACH_ISA(table)
    {
        memset(&c, 0, sizeof c);
        c.n_rows = 40, c.n_keys = 100, c.dim = 64;
        for (int i = 0; i < c.n_rows; i++)
            c.end[i] = c.n_keys;
        c.q[33 * 64 + 5] = NAN;
        attend(&c, table, 256, false);
        for (int i = 0; i < c.n_rows; i++) {
            const float got = c.out[butler_attend_at(i, 7, 64)] / c.sum[i];
            assert_true(i == 33 ? isnan(got) : got == 0);
        }
    }
}

/* ------------------------------------------------------------------------------------- 16-bit fixed point */

/* What element c of line i was packed as, in units of its scale. */
static int fixed_value(const unsigned char *packed, int i, int c, int k, bool columns)
{
    const unsigned char *tile = packed + ((size_t)(i / 16) * ((size_t)(k + 63) / 64) + (size_t)(c / 64)) * 2048;
    const size_t at = columns ? (size_t)(c % 64 / 4 * 64 + i % 16 * 4 + c % 4) : (size_t)(i % 16 * 64 + c % 64);
    return 256 * (int8_t)tile[at] + (int8_t)tile[1024 + at];
}

static void check_pack_fixed(const struct butler_kernels *table, bool columns, int n, int k, bool end, enum kind values,
                             uint64_t *seed)
{
    static struct guarded in, out, out_scales;
    static unsigned char reference[1 << 18];
    float plain_scales[MAX_LINES];
    if (!in.base) {
        in = guarded_new(sizeof(float) * MAX_LINES * (MAX_K + 8));
        out = guarded_new(butler_fixed_bytes(MAX_LINES, MAX_K));
        out_scales = guarded_new(sizeof plain_scales);
    }
    const size_t stride = (size_t)(k + n % 3), count = (size_t)(n - 1) * stride + (size_t)k, bytes = butler_fixed_bytes(n, k),
                 scale_bytes = (size_t)(n + 15) / 16 * 16 * sizeof(float);
    float *x = guarded_at(&in, count * sizeof *x, end, 0), *scales = guarded_at(&out_scales, scale_bytes, end, 0);
    unsigned char *packed = guarded_at(&out, bytes, end, 0);
    fill_random(x, count, values, seed);
    if (n > 2) /* a line of nothing, and one too small to count */
        for (int c = 0; c < k; c++)
            x[stride + (size_t)c] = 0, x[2 * stride + (size_t)c] = 0x1p-101f;
    memset(packed, 0xff, bytes);
    memset(scales, 0xff, scale_bytes);
    (columns ? table->pack_fixed_columns : table->pack_fixed_rows)(packed, scales, x, stride, n, k);
    (columns ? butler_kernels_ref.pack_fixed_columns : butler_kernels_ref.pack_fixed_rows)(reference, plain_scales, x, stride, n,
                                                                                           k);
    assert_memory_equal(packed, reference, bytes);
    assert_memory_equal(scales, plain_scales, scale_bytes);
    for (int i = 0; i < (n + 15) / 16 * 16; i++) {
        double most = 0;
        for (int c = 0; i < n && c < k; c++) { /* fmax in a loop is an internal error of gcc 12 for aarch64 */
            const double size = fabs((double)x[(size_t)i * stride + (size_t)c]);
            most = size > most ? size : most;
        }
        assert_true(most < 0x1p-100 ? scales[i] == 0 : fabs((double)scales[i] * 32639 - most) <= most * EPS);
        for (int c = 0; c < (k + 63) / 64 * 64; c++) {
            const double value = i < n && c < k ? (double)x[(size_t)i * stride + (size_t)c] : 0;
            const int q = fixed_value(packed, i, c, k, columns);
            assert_near("fixed point", table->isa, k, i, q * (double)scales[i], value, most * (0.5 / 32639 + 2 * EPS) + 0x1p-100);
            assert_true(c < k || q == 0);
        }
    }
}

static void fixed_point_holds_its_numbers(void **state)
{
    (void)state;
    uint64_t seed = 8;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 120; trial++)
            check_pack_fixed(table, trial % 2, 1 + trial * 7 % 50, 1 + trial * 23 % 290, trial / 2 % 2,
                             (enum kind)(trial / 2 % N_KINDS), &seed);
    }
}

/* Lines of two operands with the greatest parts they can have: sums must not overflow, and are exact. */
static void check_multiply_fixed(const struct butler_kernels *table, int m, int n, int k, enum kind kind, uint64_t *seed)
{
    static float x[MAX_LINES * BUTLER_FIXED_COLUMNS], y[MAX_LINES * BUTLER_FIXED_COLUMNS], twice[MAX_LINES * (MAX_LINES + 16)];
    static _Alignas(64) unsigned char a[1 << 18], b[1 << 18];
    float a_scales[MAX_LINES], b_scales[MAX_LINES], alone[16 * 16];
    static struct guarded out;
    if (!out.base)
        out = guarded_new(sizeof twice);
    const size_t stride = (size_t)n + 16 * (size_t)(m / 16 % 2), line = butler_fixed_bytes(16, k),
                 count = (size_t)(m - 1) * stride + (size_t)n;
    float *c = guarded_at(&out, count * sizeof *c, k % 2, 0);
    fill_random(x, (size_t)m * (size_t)k, kind, seed);
    fill_random(y, (size_t)n * (size_t)k, kind, seed);
    for (int d = 0; d < k; d++) /* sums as large as they come: lines of equal numbers */
        x[d] = 3, y[d] = -5;
    table->pack_fixed_rows(a, a_scales, x, (size_t)k, m, k);
    table->pack_fixed_columns(b, b_scales, y, (size_t)k, n, k);
    for (size_t i = 0; i < count; i++)
        c[i] = -12345;
    table->multiply_fixed(c, stride, a, a_scales, b, b_scales, m, n, k, false);
    /* The products of low parts are missing. */
    assert_near("multiply_fixed of the greatest parts", table->isa, k, 0, c[0], -15.0 * k, 15.0 * k * 0x1p-14);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < (int)stride && (size_t)i * stride + (size_t)j < count; j++) {
            const float got = c[(size_t)i * stride + (size_t)j];
            double sum = 0;
            if (j >= n) {
                assert_true(got == -12345);
                continue;
            }
            for (int d = 0; d < k; d++) {
                const int u = fixed_value(a, i, d, k, false), v = fixed_value(b, j, d, k, true);
                sum += (double)u * v - (double)(int8_t)(u & 255) * (double)(int8_t)(v & 255);
            }
            const double expected = sum * (double)a_scales[i] * (double)b_scales[j];
            assert_near("multiply_fixed", table->isa, k, i, got, expected, fabs(expected) * 4 * EPS + 0x1p-126);
        }
    table->multiply_fixed(alone, 16, a + (size_t)(m / 16 - 1) * line, a_scales + m - 16, b + (size_t)(n / 16 - 1) * line,
                          b_scales + n - 16, 16, 16, k, false);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 16; j++)
            assert_same_bits("multiply_fixed", table->isa, k, i, alone[i * 16 + j],
                             c[(size_t)(m - 16 + i) * stride + (size_t)(n - 16 + j)]);
    memcpy(twice, c, count * sizeof *c);
    table->multiply_fixed(twice, stride, a, a_scales, b, b_scales, m, n, k, true);
    for (int i = 0; i < m; i++)
        for (int j = 0; j < n; j++) {
            const double once = (double)c[(size_t)i * stride + (size_t)j];
            assert_near("multiply_fixed on top", table->isa, k, i, twice[(size_t)i * stride + (size_t)j], 2 * once,
                        4 * EPS * fabs(once) + 0x1p-126);
        }
}

static void products_in_fixed_point(void **state)
{
    (void)state;
    static const int lengths[] = {1, 3, 63, 64, 65, 128, 200, 256, 512};
    uint64_t seed = 9;
    FOR_EACH_ISA(table)
    {
        for (int l = 0; l < BUTLER_COUNT(lengths); l++)
            for (int m = 16; m <= 80; m += 16)
                for (int n = 16; n <= 80; n += 16)
                    if (l < 7 || (m >= 48 && n >= 64))
                        check_multiply_fixed(table, m, n, lengths[l], (enum kind)((l + m / 16 + n / 16) % N_KINDS), &seed);
    }
}

/* What is no number must not become one. */
static void fixed_point_keeps_what_is_no_number(void **state)
{
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    FOR_EACH_ISA(table)
    {
        for (int i = 0; i < 6; i++) {
            static _Alignas(64) unsigned char a[4096], b[4096];
            float x[16 * 40], y[16 * 40], a_scales[16], b_scales[16], c[256];
            for (int d = 0; d < 16 * 40; d++)
                x[d] = y[d] = (float)(d % 7);
            (i < 3 ? x : y)[3 * 40 + 33] = bad[i % 3];
            table->pack_fixed_rows(a, a_scales, x, 40, 16, 40);
            table->pack_fixed_columns(b, b_scales, y, 40, 16, 40);
            table->multiply_fixed(c, 16, a, a_scales, b, b_scales, 16, 16, 40, false);
            for (int j = 0; j < 256; j++)
                assert_true((bool)isfinite(c[j]) == ((i < 3 ? j / 16 : j % 16) != 3));
        }
    }
}

/* ------------------------------------------------------------------ quantised rows straight to fixed point */

static const struct {
    enum butler_type type;
    int range; /* of the integers: from -range to range - 1 */
} block_types[] = {{BUTLER_Q8_0, 128}, {BUTLER_Q4_0, 8}, {BUTLER_Q5_0, 16}};

static void fill_blocks(unsigned char *rows, size_t n_bytes, int block_bytes, enum kind kind, uint64_t *seed)
{
    for (size_t i = 0; i < n_bytes; i++)
        rows[i] = (unsigned char)butler_random(seed);
    for (size_t b = 0; b + (size_t)block_bytes <= n_bytes; b += (size_t)block_bytes) {
        const float v = random_value(seed, kind);
        const float size = fabsf(v); /* a half is at most 65504, and its subnormals are below 2^-14 */
        const uint16_t d = butler_float_to_half(size > 65504 ? copysignf(65504, v) : size < 1e-30f ? v * 1e34f : v);
        memcpy(rows + b, &d, 2);
        if (kind == MIXED && b % 3 == 0) /* the integer whose magnitude is the greatest, in most types */
            memset(rows + b + 2, 0x80, (size_t)block_bytes - 2);
    }
}

static void check_pack_blocks(const struct butler_kernels *table, int t, int n, int n_blocks, int at, enum kind kind,
                              uint64_t *seed)
{
    const enum butler_type type = block_types[t].type;
    const int size = (int)butler_types[type].block_bytes, k = n_blocks * 32;
    const size_t row_bytes = (size_t)((n_blocks + n % 2) * size), row_end = (size_t)(n - 1) * row_bytes + (size_t)(n_blocks * size),
                 bytes = butler_fixed_bytes(n, k), scale_bytes = (size_t)(n + 15) / 16 * 16 * sizeof(float);
    static struct guarded in, out, out_scales;
    static unsigned char reference[1 << 18];
    static float values[BUTLER_FIXED_COLUMNS];
    float plain_scales[MAX_LINES];
    if (!in.base) {
        in = guarded_new((size_t)MAX_LINES * 17 * 34 + 8);
        out = guarded_new(butler_fixed_bytes(MAX_LINES, BUTLER_FIXED_COLUMNS));
        out_scales = guarded_new(sizeof plain_scales);
    }
    unsigned char *rows = guarded_at(&in, row_end, at % 2, (size_t)(at / 2)), *packed = guarded_at(&out, bytes, at % 2, 0);
    float *scales = guarded_at(&out_scales, scale_bytes, at % 2, 0);
    fill_blocks(rows, row_end, size, kind, seed);
    memset(packed, 0xff, bytes);
    memset(scales, 0xff, scale_bytes);
    table->pack_fixed_blocks[type](packed, scales, rows, row_bytes, n, k);
    butler_kernels_ref.pack_fixed_blocks[type](reference, plain_scales, rows, row_bytes, n, k);
    assert_memory_equal(packed, reference, bytes);
    assert_memory_equal(scales, plain_scales, scale_bytes);
    for (int i = 0; i < (n + 15) / 16 * 16; i++) {
        double top = 0;
        for (int b = 0; i < n && b < n_blocks; b++) {
            const double d = fabs(half_at(rows + (size_t)i * row_bytes + (size_t)(b * size)));
            top = d > top ? d : top;
        }
        assert_near("scale", table->isa, k, i, (double)scales[i] * 32639, top * block_types[t].range,
                    4 * EPS * top * block_types[t].range);
        if (i < n)
            table->dequant[type](values, rows + (size_t)i * row_bytes, k);
        /* Each of the two roundings is at most half a step: the factor's is multiplied by an integer of at most 1 / R. */
        for (int c = 0; c < (k + 63) / 64 * 64; c++)
            assert_near("fixed point of blocks", table->isa, k, i, fixed_value(packed, i, c, k, true) * (double)scales[i],
                        i < n && c < k ? (double)values[c] : 0, (double)scales[i] * 1.01);
    }
}

static void blocks_become_fixed_point(void **state)
{
    (void)state;
    uint64_t seed = 10;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 180; trial++)
            check_pack_blocks(table, trial % 3, 1 + trial * 7 % 50, 1 + trial * 5 % 16, trial % 6, (enum kind)(trial / 3 % N_KINDS),
                              &seed);
    }
}

/* A file may say anything: a row with a scale that is no number gives none, and the others are what they are without it. */
static void blocks_keep_what_is_no_number(void **state)
{
    (void)state;
    static const uint16_t bad[] = {0x7c00, 0xfc00, 0x7e00, 0x7d00, 0xffff};
    uint64_t seed = 11;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 30; trial++) {
            static _Alignas(64) unsigned char a[1 << 13], b[1 << 13], plain[1 << 13];
            const int t = trial % 3, size = (int)butler_types[block_types[t].type].block_bytes, k = 96;
            unsigned char rows[16 * 3 * 34];
            float x[16 * 96], a_scales[16], b_scales[16], plain_scales[16], c[256];
            fill_random(x, 16 * 96, NORMAL, &seed);
            fill_blocks(rows, (size_t)(16 * 3 * size), size, NORMAL, &seed);
            memcpy(rows + (5 * 3 + trial % 2) * size, &bad[trial / 3 % 5], 2);
            if (trial % 4 == 0) /* even where its integers are 0 */
                memset(rows + (5 * 3 + trial % 2) * size + 2, t == 0 ? 0 : 0x88, (size_t)size - 2);
            table->pack_fixed_rows(a, a_scales, x, 96, 16, k);
            table->pack_fixed_blocks[block_types[t].type](b, b_scales, rows, (size_t)(3 * size), 16, k);
            butler_kernels_ref.pack_fixed_blocks[block_types[t].type](plain, plain_scales, rows, (size_t)(3 * size), 16, k);
            assert_memory_equal(b, plain, butler_fixed_bytes(16, k));
            table->multiply_fixed(c, 16, a, a_scales, b, b_scales, 16, 16, k, false);
            for (int j = 0; j < 256; j++)
                assert_true((bool)isfinite(c[j]) == (j % 16 != 5));
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_hold_their_numbers), cmocka_unit_test(attention_keeps_nan),
        cmocka_unit_test(attention_of_blocks),         cmocka_unit_test(fixed_point_holds_its_numbers),
        cmocka_unit_test(products_in_fixed_point),     cmocka_unit_test(fixed_point_keeps_what_is_no_number),
        cmocka_unit_test(blocks_become_fixed_point),   cmocka_unit_test(blocks_keep_what_is_no_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
