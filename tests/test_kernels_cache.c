/* Attention over cache rows and the scans of metrics, on every ISA: against double precision, with every row in pages of its
 * own between guards, and without any influence of how many rows or queries are asked for together. */
#include "kernel_test.h"

#define MAX_ROWS 40
#define MAX_PAGED 112
#define MAX_QUERIES 19

static struct guarded row_pages[MAX_ROWS], arena, qs, out, ps;

static int make(void **state)
{
    (void)state;
    for (int i = 0; i < MAX_ROWS; i++)
        row_pages[i] = guarded_new(4096);
    arena = guarded_new(1 << 18);
    qs = guarded_new(1 << 16);
    out = guarded_new(1 << 16);
    ps = guarded_new(1 << 14);
    return 0;
}

static int destroy(void **state)
{
    (void)state;
    for (int i = 0; i < MAX_ROWS; i++)
        guarded_free(&row_pages[i]);
    guarded_free(&arena);
    guarded_free(&qs);
    guarded_free(&out);
    guarded_free(&ps);
    return 0;
}

static size_t kv_bytes(int type, int n)
{
    return type == BUTLER_KV_F32 ? (size_t)n * 4 : type == BUTLER_KV_F16 ? (size_t)n * 2 : (size_t)n / 32 * 34;
}

static double kv_element(int type, const unsigned char *row, int i)
{
    float f;
    switch (type) {
    case BUTLER_KV_F32:
        memcpy(&f, row + (size_t)i * 4, 4);
        return (double)f;
    case BUTLER_KV_F16:
        return half_at(row + (size_t)i * 2);
    default:
        row += (size_t)(i / 32) * 34;
        return half_at(row) * (signed char)row[2 + i % 32];
    }
}

static const char *kv_name(int type)
{
    return type == BUTLER_KV_F32 ? "f32" : type == BUTLER_KV_F16 ? "f16" : "q8_0";
}

static const int lengths[] = {1,  3,   8,   15,  16,  17,  31,  32,  33,  48,  64,  65, 80,
                              96, 100, 128, 129, 160, 192, 256, 257, 288, 320, 512, 520};

/* Rows stored by plain C at either end of their pages, at odd bytes too; a few lie twice in the list. */
static void make_rows(const void **rows, int type, int n_rows, int n, int trial, uint64_t *seed)
{
    float x[520];
    for (int j = 0; j < n_rows; j++) {
        unsigned char *row = guarded_at(&row_pages[j], kv_bytes(type, n), (trial + j) % 2, (size_t)(trial / 2 % 3));
        fill_random(x, (size_t)n, trial % 8 == 7 ? MIXED : trial % 8 == 6 ? ZEROS : NORMAL, seed);
        for (int i = 0; i < n; i++)
            x[i] = fabsf(x[i]) > 6e4f ? x[i] * 1e-12f : x[i]; /* a half holds no more */
        butler_kernels_ref.store_row[type](row, x, n);
        rows[j] = row;
        if (j > 2 && butler_random(seed) % 8 == 0)
            rows[j] = rows[j - 2];
    }
}

/* ---------------------------------------------------------------------------------------------- storing */

static void rows_are_stored_and_loaded(void **state)
{
    (void)state;
    uint64_t seed = 6;
    float x[520], y[520];
    unsigned char expected[2200];
    FOR_EACH_ISA(table)
    {
        for (int type = 0; type < BUTLER_N_KV_TYPES; type++) {
            for (int trial = 0; trial < 100; trial++) {
                int n = lengths[trial % BUTLER_COUNT(lengths)];
                if (type == BUTLER_KV_Q8_0 && n % 32 != 0)
                    continue;
                size_t bytes = kv_bytes(type, n);
                unsigned char *row = guarded_at(&row_pages[0], bytes, trial % 2, (size_t)(trial / 2 % 3));
                float *in = guarded_at(&qs, (size_t)n * sizeof *in, trial % 2, 0),
                      *back = guarded_at(&out, (size_t)n * sizeof *in, trial % 2, 0);
                fill_random(x, (size_t)n, (enum kind)(trial / 24 % N_KINDS), &seed);
                if (trial % 5 == 0) /* ties: multiples of half a step */
                    for (int i = 0; i < n; i++)
                        x[i] = i % 32 == 0 ? 127 : (float)((int)(butler_random(&seed) % 255) - 127) / 2;
                memcpy(in, x, (size_t)n * sizeof *in);
                table->store_row[type](row, in, n);
                butler_kernels_ref.store_row[type](expected, x, n);
                assert_memory_equal(row, expected, bytes);
                table->load_row[type](back, row, n);
                butler_kernels_ref.load_row[type](y, expected, n);
                assert_memory_equal(back, y, (size_t)n * sizeof *y);
                for (int i = 0; i < n; i++)
                    assert_true((double)back[i] == kv_element(type, row, i) || isinf(back[i]) || isnan(back[i]));
            }
        }
    }
}

/* A number that is not finite makes a whole block of Q8_0 NaN, wherever it stands, and no other block. */
static void rows_that_are_not_finite(void **state)
{
    static const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    float x[96], back[96];
    unsigned char row[102], expected[102];
    (void)state;
    FOR_EACH_ISA(table)
    {
        for (int trial = 0; trial < 4 * 32; trial++) {
            for (int i = 0; i < 96; i++)
                x[i] = (float)(i + 1);
            x[32 + trial / 4] = bad[trial % 4];
            table->store_row[BUTLER_KV_Q8_0](row, x, 96);
            butler_kernels_ref.store_row[BUTLER_KV_Q8_0](expected, x, 96);
            assert_memory_equal(row, expected, sizeof row);
            table->load_row[BUTLER_KV_Q8_0](back, row, 96);
            for (int i = 0; i < 96; i++)
                assert_int_equal(!isnan(back[i]), i / 32 != 1);
        }
    }
}

/* --------------------------------------------------------------------------------------------- attention */

static void check_qk(const struct butler_kernels *table, int type, int n_q, int n_rows, int n, int trial, uint64_t *seed)
{
    const void *rows[MAX_ROWS];
    size_t q_stride = (size_t)n + (size_t)(trial % 3), s_stride = (size_t)n_rows + (size_t)(trial % 2) * 5;
    size_t n_s = (size_t)(n_q - 1) * s_stride + (size_t)n_rows, n_x = (size_t)(n_q - 1) * q_stride + (size_t)n;
    float *q = guarded_at(&qs, n_x * sizeof *q, trial % 2, 0), *s = guarded_at(&out, n_s * sizeof *s, trial % 2, 0);
    const float canary = -54321;
    make_rows(rows, type, n_rows, n, trial, seed);
    fill_random(q, n_x, NORMAL, seed);
    for (size_t i = 0; i < n_s; i++)
        s[i] = canary;
    table->qk[type](s, s_stride, q, q_stride, n_q, rows, n_rows, n);
    for (int i = 0; i < n_q; i++) {
        for (size_t j = 0; j < s_stride && (size_t)i * s_stride + j < n_s; j++) {
            float got = s[(size_t)i * s_stride + j], alone;
            if (j >= (size_t)n_rows) {
                assert_true(got == canary);
                continue;
            }
            double sum = 0, magnitude = 0;
            for (int d = 0; d < n; d++) {
                double product = kv_element(type, rows[j], d) * q[(size_t)i * q_stride + (size_t)d];
                sum += product;
                magnitude += fabs(product);
            }
            assert_near("qk", table->isa, n, (int)j, got, sum, sum_bound(n, magnitude));
            table->qk[type](&alone, 1, q + (size_t)i * q_stride, q_stride, 1, rows + j, 1, n);
            assert_same_bits(kv_name(type), table->isa, n, (int)j, alone, got);
        }
    }
}

static void check_av(const struct butler_kernels *table, int type, int n_q, int n_rows, int n, int trial, uint64_t *seed)
{
    const void *rows[MAX_ROWS];
    size_t stride = (size_t)n + (size_t)(trial % 3), p_stride = (size_t)n_rows + (size_t)(trial % 2) * 5;
    size_t n_acc = (size_t)(n_q - 1) * stride + (size_t)n, n_p = (size_t)(n_q - 1) * p_stride + (size_t)n_rows;
    float *acc = guarded_at(&out, n_acc * sizeof *acc, trial % 2, 0), *p = guarded_at(&ps, n_p * sizeof *p, trial % 2, 0);
    static float before[MAX_QUERIES * 523], alone[520];
    make_rows(rows, type, n_rows, n, trial, seed);
    fill_random(p, n_p, NORMAL, seed);
    fill_random(acc, n_acc, NORMAL, seed);
    memcpy(before, acc, n_acc * sizeof *acc);
    table->av[type](acc, stride, p, p_stride, n_q, rows, n_rows, n);
    for (int i = 0; i < n_q; i++) {
        const float *start = before + (size_t)i * stride, *got = acc + (size_t)i * stride, *weights = p + (size_t)i * p_stride;
        for (int d = 0; d < n; d++) {
            double sum = (double)start[d], magnitude = fabs(sum);
            for (int j = 0; j < n_rows; j++) {
                double product = (double)weights[j] * kv_element(type, rows[j], d);
                sum += product;
                magnitude += fabs(product);
            }
            /* One chain, in order: not the lanes of a dot product. */
            assert_near("av", table->isa, n, d, got[d], sum, (n_rows + 2) * EPS * magnitude + (n_rows + 1) * 0x1p-149);
        }
        for (size_t d = (size_t)n; d < stride && (size_t)i * stride + d < n_acc; d++)
            assert_same_bits("av between rows", table->isa, n, (int)d, got[d], start[d]);
        /* The same alone, and in two calls. */
        int at = trial % n_rows;
        memcpy(alone, start, (size_t)n * sizeof *alone);
        if (at > 0)
            table->av[type](alone, stride, weights, p_stride, 1, rows, at, n);
        table->av[type](alone, stride, weights + at, p_stride, 1, rows + at, n_rows - at, n);
        for (int d = 0; d < n; d++)
            assert_same_bits(kv_name(type), table->isa, n, d, alone[d], got[d]);
    }
}

/* Keys and, `apart` bytes further on, their values: each pair in pages of its own, or pair after pair, as the engine has them,
 * where a few lists have two exchanged. */
static size_t place_pairs(unsigned char **keys, int type, int n_rows, int n, int trial, bool paged)
{
    const size_t bytes = kv_bytes(type, n), apart = bytes + (paged ? 0 : (size_t)(trial % 4));
    unsigned char *first = paged ? guarded_at(&arena, (size_t)n_rows * 2 * bytes, trial % 2, (size_t)(trial / 2 % 3)) : NULL;
    for (int j = 0; j < n_rows; j++)
        keys[j] = paged ? first + (size_t)(2 * j) * bytes
                        : guarded_at(&row_pages[j], apart + bytes, (trial + j) % 2, (size_t)(trial / 2 % 3));
    if (paged && trial % 3 == 0 && n_rows > 1) {
        const int j = trial % (n_rows - 1);
        unsigned char *key = keys[j];
        keys[j] = keys[j + 1];
        keys[j + 1] = key;
    }
    return apart;
}

/* Behind the keys those of a next call, dense or not, where no memory is: they may be prefetched and nothing else. */
static int place_next(const void **keys, size_t bytes, int trial)
{
    const int n_next = trial % 4 ? BUTLER_PAIRS_NEXT - trial % 3 * 17 : 0;
    for (int j = 0; j < n_next; j++)
        keys[j] = (const void *)(uintptr_t)(4096 + (size_t)j * (2 * bytes + (trial % 5 == 0 ? 3 : 0)));
    return n_next;
}

/* What is summed is checked against the scores that came with it, which are
 * checked as those of qk are: an exponential's argument is rounded, the exponential itself and every factor and sum. */
static void check_attend(const struct butler_kernels *table, int type, int n_q, int n_rows, int n, int trial, bool paged,
                         uint64_t *seed)
{
    unsigned char *rows[MAX_PAGED];
    const void *keys[MAX_PAGED + BUTLER_PAIRS_NEXT];
    const size_t bytes = kv_bytes(type, n), q_stride = (size_t)n + (size_t)(trial % 3), stride = (size_t)n + (size_t)(trial % 2),
                 s_stride = (size_t)n_rows + (size_t)(trial % 2) * 5;
    const size_t n_x = (size_t)(n_q - 1) * q_stride + (size_t)n, n_acc = (size_t)(n_q - 1) * stride + (size_t)n;
    float *q = guarded_at(&qs, n_x * sizeof *q, trial % 2, 0), *acc = guarded_at(&out, n_acc * sizeof *acc, trial % 2, 0);
    float *s = guarded_at(&ps, ((size_t)(n_q - 1) * s_stride + (size_t)n_rows) * sizeof *s, trial % 2, 0);
    const bool fixed = type == BUTLER_KV_Q8_0 && table->attend_q16 && n <= 256;
    float top[MAX_QUERIES], sum[MAX_QUERIES], x[520], again[520], again_top, again_sum;
    double exact[520];
    if (!paged && 2 * bytes + 5 > 4096)
        return;
    const size_t apart = place_pairs(rows, type, n_rows, n, trial, paged);
    fill_random(q, n_x, trial % 8 == 5 ? ZEROS : NORMAL, seed);
    for (int j = 0; j < n_rows; j++) {
        for (int half = 0; half < 2; half++) {
            fill_random(x, (size_t)n, trial % 8 == 6 ? ZEROS : NORMAL, seed);
            butler_kernels_ref.store_row[type](rows[j] + (size_t)half * apart, x, n);
        }
        keys[j] = rows[j];
    }
    struct butler_pairs pairs = {keys, apart, n_rows, place_next(keys + n_rows, bytes, trial)};
    table->attend[type]((struct butler_attended){{acc, stride}, top, sum, {s, s_stride}}, (struct butler_vectors){q, q_stride, n_q},
                        &pairs, n);
    pairs.n_next = 0;
    for (int i = 0; i < n_q; i++) {
        const float *scores = s + (size_t)i * s_stride;
        float most = -INFINITY;
        double total = 0, total_error = 0, parts[MAX_PAGED];
        for (int d = 0; d < n; d++)
            exact[d] = (double)q[(size_t)i * q_stride + (size_t)d];
        if (fixed)
            fixed_by_definition(exact, q + (size_t)i * q_stride, n, 32639);
        for (int j = 0; j < n_rows; j++) {
            double score = 0, magnitude = 0;
            for (int d = 0; d < n; d++) {
                const double product = kv_element(type, keys[j], d) * exact[d];
                score += product;
                magnitude += fabs(product);
            }
            assert_near("attend, score", table->isa, n, j, scores[j], score, sum_bound(n, magnitude));
            most = fmaxf(most, scores[j]);
        }
        assert_same_bits("attend, highest score", table->isa, n, i, top[i], most);
        for (int j = 0; j < n_rows; j++) {
            const double e = exp((double)scores[j] - most);
            parts[j] = e * EPS * (n_rows + 16 + 2 * fabs((double)scores[j] - most));
            total += e;
            total_error += parts[j];
        }
        assert_near("attend, sum", table->isa, n, i, sum[i], total, total_error);
        for (int d = 0; d < n; d++) {
            double value = 0, error = n_rows * 127 * 0x1p-126; /* weights, and with the scales of int8 values, may be kept normal */
            for (int j = 0; j < n_rows; j++) {
                const double v = kv_element(type, (const unsigned char *)keys[j] + apart, d);
                value += exp((double)scores[j] - most) * v;
                error += parts[j] * fabs(v);
            }
            assert_near("attend", table->isa, n, d, acc[(size_t)i * stride + (size_t)d], value, error);
        }
        table->attend[type]((struct butler_attended){{again, 0}, &again_top, &again_sum, {NULL, 0}},
                            (struct butler_vectors){q + (size_t)i * q_stride, 0, 1}, &pairs, n);
        assert_same_bits("attend alone, highest score", table->isa, n, i, again_top, top[i]);
        assert_same_bits("attend alone, sum", table->isa, n, i, again_sum, sum[i]);
        for (int d = 0; d < n; d++)
            assert_same_bits("attend alone", table->isa, n, d, again[d], acc[(size_t)i * stride + (size_t)d]);
    }
}

static void attention(void **state)
{
    (void)state;
    uint64_t seed = 7;
    int trial = 0;
    FOR_EACH_ISA(table)
    {
        for (int type = 0; type < BUTLER_N_KV_TYPES; type++) {
            for (int l = 0; l < BUTLER_COUNT(lengths); l++) {
                if (type == BUTLER_KV_Q8_0 && lengths[l] % 32 != 0)
                    continue;
                for (int n_q = 1; n_q <= MAX_QUERIES; n_q += n_q < 9 ? 1 : 5) {
                    int n_rows = 1 + (int)(butler_random(&seed) % MAX_ROWS);
                    if (!in_share(trial++))
                        continue;
                    check_qk(table, type, n_q, n_rows, lengths[l], trial, &seed);
                    check_av(table, type, n_q, n_rows, lengths[l], trial, &seed);
                    check_attend(table, type, n_q, n_rows, lengths[l], trial, false, &seed);
                }
            }
            for (int n_rows = 1; n_rows <= MAX_ROWS; n_rows++, trial++) {
                if (!in_share(trial))
                    continue;
                check_qk(table, type, 1 + n_rows % 5, n_rows, 64, trial, &seed);
                check_av(table, type, 1 + n_rows % 5, n_rows, 64, trial, &seed);
                check_attend(table, type, 1 + n_rows % 5, n_rows, 64, trial, false, &seed);
            }
            for (int n = 32; n <= 256; n += n)
                for (int n_rows = 16; n_rows <= MAX_PAGED; n_rows += n_rows % 16 ? 7 : 9, trial++)
                    if (in_share(trial))
                        check_attend(table, type, trial % 6 == 5 ? 8 : 1 + trial % 6, n_rows, n, trial, true, &seed);
        }
    }
}

/* ----------------------------------------------------------------------------------------------- metrics */

/* What one record scores, in double precision, and the sum of the magnitudes that went into it. */
struct score {
    double value, magnitude;
};

enum metric { BOUNDS, BOUNDS_MAX, ONE_BIT, ONE_BIT_BOUNDS, N_METRICS };

static struct score bounds_score(enum metric metric, const float *q, const unsigned char *record, int n)
{
    struct score s = {metric == BOUNDS_MAX ? -INFINITY : 0, 0};
    for (int d = 0; d < n; d++) {
        double x = (double)q[d], first = half_at(record + (size_t)d * 2), second = half_at(record + ((size_t)n + (size_t)d) * 2);
        double term = x * (q[d] >= 0 ? first : second);
        s.value = metric == BOUNDS ? s.value + term : fmax(s.value, term);
        s.magnitude += fabs(term);
    }
    return s;
}

static struct score one_bit_score(const float *q, const unsigned char *record, int n, int token, int step)
{
    struct score s = {0, 0};
    const unsigned char *range = record + (size_t)n * 2, *bits = range + ((size_t)n + 3) / 4 * 4;
    float most = 0, unit;
    memcpy(&unit, record + butler_one_bit_bytes(n) - sizeof unit, sizeof unit);
    for (int d = 0; d < n; d++)
        most = fmaxf(most, fabsf(q[d]));
    const float scale = most > 0 ? 127 / most : 0;
    for (int d = 0; d < n; d++) {
        const double low = half_at(record + (size_t)d * 2), x = most > 0 ? nearbyint((double)(q[d] * scale)) : 0,
                     product = floor(x * range[d] / step + 0.5) * step / 127 * (double)most * (double)unit;
        const bool set = bits[d / 4 * 16 + token / 2] >> (token % 2 * 4 + d % 4) & 1;
        s.value += (double)q[d] * low + (set ? product : 0);
        s.magnitude += fabs((double)q[d] * low) + fabs(product);
    }
    return s;
}

static struct score one_bit_bounds_score(const float *q, const unsigned char *record, int n)
{
    struct score s = {0, 0};
    float unit;
    memcpy(&unit, record + butler_one_bit_bytes(n) - sizeof unit, sizeof unit);
    for (int d = 0; d < n; d++) {
        const double x = (double)q[d], low = half_at(record + (size_t)d * 2), range = record[(size_t)n * 2 + (size_t)d];
        s.value += x * (q[d] >= 0 ? low + range * (double)unit : low);
        s.magnitude += 2 * fabs(x) * (fabs(low) + fabs(range * (double)unit));
    }
    return s;
}

typedef void scan_fn(float *s, size_t s_stride, const float *q, int n_q, const void *records, size_t record_bytes, int n_records,
                     int n);

static void check_metric(const struct butler_kernels *table, enum metric metric, int n_q, int n_records, int n, int trial,
                         uint64_t *seed)
{
    static struct guarded pages;
    if (!pages.base)
        arena = guarded_new(1 << 18);
    scan_fn *const scans[N_METRICS] = {table->page_bounds, table->page_bounds_max, table->one_bit, table->one_bit_bounds};
    scan_fn *scan = scans[metric];
    const bool one_bit = metric >= ONE_BIT;
    const int width = metric == ONE_BIT ? 32 : 1, n_scores = n_records * width;
    size_t content = one_bit ? butler_one_bit_bytes(n) : (size_t)n * 4, record_bytes = content + (size_t)(trial % 3);
    size_t bytes = record_bytes * (size_t)(n_records - 1) + content, s_stride = (size_t)n_scores + (size_t)(trial % 2) * 3;
    size_t n_s = (size_t)(n_q - 1) * s_stride + (size_t)n_scores;
    unsigned char *records = guarded_at(&arena, bytes, trial % 2, (size_t)(trial / 2 % 3));
    float *q = guarded_at(&qs, (size_t)(n_q * n) * sizeof *q, trial % 2, 0), *s = guarded_at(&out, n_s * sizeof *s, trial % 2, 0);
    const float canary = 777;
    for (size_t i = 0; i < bytes; i++)
        records[i] = (unsigned char)butler_random(seed);
    for (int j = 0; j < n_records; j++)
        for (int i = 0; i < (one_bit ? n : 2 * n); i++) {
            uint16_t h = butler_float_to_half(random_value(seed, trial % 4 == 3 ? ZEROS : NORMAL));
            memcpy(records + (size_t)j * record_bytes + (size_t)i * 2, &h, 2);
        }
    for (int j = 0; j < n_records && one_bit; j++) {
        const float unit = random_value(seed, trial % 4 == 3 ? ZEROS : NORMAL);
        memcpy(records + (size_t)j * record_bytes + content - sizeof unit, &unit, sizeof unit);
    }
    fill_random(q, (size_t)(n_q * n), trial % 5 == 4 ? ZEROS : NORMAL, seed);
    for (size_t i = 0; i < n_s; i++)
        s[i] = canary;
    scan(s, s_stride, q, n_q, records, record_bytes, n_records, n);
    for (int i = 0; i < n_q; i++) {
        for (size_t j = 0; j < s_stride && (size_t)i * s_stride + j < n_s; j++) {
            float got = s[(size_t)i * s_stride + j];
            if (j >= (size_t)n_scores) {
                assert_true(got == canary);
                continue;
            }
            const unsigned char *record = records + j / (size_t)width * record_bytes;
            const float *query = q + (size_t)i * (size_t)n;
            struct score e = metric == ONE_BIT          ? one_bit_score(query, record, n, (int)j % width, table->one_bit_step)
                             : metric == ONE_BIT_BOUNDS ? one_bit_bounds_score(query, record, n)
                                                        : bounds_score(metric, query, record, n);
            double bound = metric == BOUNDS_MAX ? EPS * fabs(e.value) + 0x1p-149 : sum_bound(n, e.magnitude);
            /* Some add bits in one chain of floats. */
            if (metric == ONE_BIT)
                bound = (n + 12) * EPS * e.magnitude + (n + 1) * 0x1p-149;
            assert_near("metric", table->isa, n, (int)j, got, e.value, bound);
        }
        float alone[32];
        int j = (int)(butler_random(seed) % (uint64_t)n_records);
        scan(alone, (size_t)width, q + (size_t)i * (size_t)n, 1, records + (size_t)j * record_bytes, record_bytes, 1, n);
        for (int t = 0; t < width; t++)
            assert_same_bits("metric", table->isa, n, j, alone[t], s[(size_t)i * s_stride + (size_t)(j * width + t)]);
    }
}

static void metrics(void **state)
{
    (void)state;
    uint64_t seed = 8;
    int trial = 0;
    FOR_EACH_ISA(table)
    {
        for (int metric = 0; metric < N_METRICS; metric++)
            for (int l = 0; l < BUTLER_COUNT(lengths); l++)
                for (int n_q = 1; n_q <= 9 && (metric < ONE_BIT || lengths[l] <= BUTLER_ONE_BIT_CHANNELS); n_q++, trial++)
                    if (in_share(trial))
                        check_metric(table, (enum metric)metric, n_q, 1 + trial % 37, lengths[l], trial, &seed);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_stored_and_loaded),
        cmocka_unit_test(rows_that_are_not_finite),
        cmocka_unit_test(attention),
        cmocka_unit_test(metrics),
    };
    return cmocka_run_group_tests(tests, make, destroy);
}
