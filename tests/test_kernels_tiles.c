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
    pack_fn *packs[] = {table->pack_rows, table->pack_columns, table->pack_transposed};
    pack_fn *plain[] = {butler_kernels_ref.pack_rows, butler_kernels_ref.pack_columns, butler_kernels_ref.pack_transposed};
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
    table->pack_transposed(c->values, lines, (size_t)dim, dim, n_packed);
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
            if (!in_share(trial))
                continue;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(operands_hold_their_numbers),
        cmocka_unit_test(attention_keeps_nan),
        cmocka_unit_test(attention_of_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
