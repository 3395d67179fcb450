/* Every built-in metric against what its definition says, computed the plain way, over a head of the cache that is a few
 * arrays: records built token by token and in blocks, scores of whole heads and of pieces, every cache type and ISA. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/metric.h"
#include "kernels/kernels.h"

enum { DIM = 64, GROUP = 3, MAX_SLOTS = 6000 };
static const struct butler_metric_shape shape = {2, 2 * GROUP, 2, DIM, GROUP, 77, 0, 0};

/* ------------------------------------------------------------------------------------ a head over arrays */

struct head {
    struct butler_head_view view;
    unsigned char *keys, *values;
    uint64_t bytes;
};

static void rows(const struct butler_head_view *view, int first, int n, bool values, const void **out)
{
    const struct head *head = view->store;
    assert_true(first >= 0 && n > 0 && first + n <= view->n_slots);
    for (int i = 0; i < n; i++)
        out[i] = (values ? head->values : head->keys) + (size_t)(first + i) * butler_view_row_bytes(view);
}

static void head_init(struct head *head, const struct butler_metric *metric, const double *values, enum butler_kv_type type,
                      const char *isa)
{
    int record_slots = 1;
    size_t record_bytes = 0;
    if (metric->record)
        metric->record(&shape, values, &record_slots, &record_bytes);
    *head = (struct head){.view = {.layer = 1,
                                   .kv_head = 1,
                                   .head_dim = DIM,
                                   .record_bytes = record_bytes,
                                   .record_slots = record_slots,
                                   .kv_type = type,
                                   .kernels = butler_kernels_get(isa),
                                   .rows = rows}};
    head->keys = calloc(MAX_SLOTS, butler_view_row_bytes(&head->view));
    head->values = calloc(MAX_SLOTS, butler_view_row_bytes(&head->view));
    head->view.records = calloc((size_t)BUTLER_CEIL_DIV(MAX_SLOTS, record_slots), record_bytes + 1);
    assert_true(head->keys && head->values && head->view.records && head->view.kernels);
}

static void head_free(struct head *head)
{
    free(head->keys);
    free(head->values);
    free(head->view.records);
}

static void head_bind(struct head *head)
{
    head->view.store = head;
    head->view.bytes = &head->bytes;
}

/* n more tokens with random keys, told to the metric `block` at a time. */
static void grow(struct head *head, const struct butler_metric *metric, const double *values, int n, int block, uint64_t seed)
{
    head_bind(head);
    while (n > 0) {
        int m = BUTLER_MIN(n, block), first = head->view.n_slots;
        for (int i = first; i < first + m; i++) {
            float x[DIM];
            uint64_t random = seed * 1000003 + (uint64_t)i;
            for (int d = 0; d < DIM; d++)
                x[d] = butler_random_normal(&random) * (float)(1 + d % 5);
            head->view.kernels->store_row[head->view.kv_type](head->keys + (size_t)i * butler_view_row_bytes(&head->view), x, DIM);
        }
        head->view.n_slots += m;
        head->view.query_position = head->view.n_slots - 1;
        if (metric->append)
            metric->append(&shape, values, &head->view, first, m);
        n -= m;
    }
}

static void random_queries(float *q, int n, uint64_t seed)
{
    for (int i = 0; i < n * DIM; i++)
        q[i] = butler_random_normal(&seed);
}

static void key_of(const struct head *head, int slot, float *out)
{
    head->view.kernels->load_row[head->view.kv_type](out, head->keys + (size_t)slot * butler_view_row_bytes(&head->view), DIM);
}

static double dot(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < DIM; d++)
        sum += (double)a[d] * b[d];
    return sum;
}

/* Sum of |a_d b_d|: what the rounding of a dot product goes with. */
static double size(const float *a, const float *b)
{
    double sum = 0;
    for (int d = 0; d < DIM; d++)
        sum += fabs((double)a[d] * b[d]);
    return sum;
}

static void near(double got, double expected, double tolerance, const char *what, int at)
{
    if (!(fabs(got - expected) <= tolerance))
        fail_msg("%s at %d: %.9g, expected %.9g (tolerance %g)", what, at, got, expected, tolerance);
}

static const double *defaults(const struct butler_metric *metric, double *values)
{
    for (int i = 0; metric->params && metric->params[i].name; i++)
        values[i] = metric->params[i].value;
    return values;
}

/* ------------------------------------------------------------------------------------------- the contract */

static void the_view_gives_rows_as_stored_and_counts_them(void **state)
{
    (void)state;
    for (int type = 0; type < BUTLER_N_KV_TYPES; type++) {
        struct head head;
        const size_t row_bytes[] = {[BUTLER_KV_F16] = DIM * 2, [BUTLER_KV_F32] = DIM * 4, [BUTLER_KV_Q8_0] = DIM / 32 * 34};
        float q[GROUP * DIM], out[GROUP][400], x[DIM];
        head_init(&head, &butler_metric_exact, NULL, (enum butler_kv_type)type, "ref");
        grow(&head, &butler_metric_exact, NULL, 400, 400, 1);
        random_queries(q, GROUP, 2);
        assert_int_equal(butler_view_row_bytes(&head.view), row_bytes[type]);
        head.bytes = 0;
        butler_view_dot_keys(&head.view, q, GROUP, 7, 301, out[0], 400);
        assert_int_equal(head.bytes, 301 * row_bytes[type]);
        for (int i = 0; i < GROUP; i++)
            for (int j = 0; j < 301; j++) {
                key_of(&head, 7 + j, x);
                near(out[i][j], dot(q + i * DIM, x), 1e-5 * size(q + i * DIM, x), "dot", j);
            }
        float key[DIM], value[DIM];
        head.values[3 * row_bytes[type]] = 1; /* some value that is not the key */
        butler_view_key(&head.view, 3, key);
        butler_view_value(&head.view, 3, value);
        key_of(&head, 3, x);
        assert_memory_equal(key, x, sizeof x);
        assert_memory_not_equal(value, x, sizeof x);
        assert_int_equal(head.bytes, 303 * row_bytes[type]);
        float rows[5 * DIM];
        butler_view_keys(&head.view, 1, 5, rows);
        for (int i = 0; i < 5; i++) {
            key_of(&head, 1 + i, x);
            assert_memory_equal(rows + i * DIM, x, sizeof x);
        }
        butler_view_values(&head.view, 1, 5, rows);
        assert_memory_equal(rows + 2 * DIM, value, sizeof value);
        assert_int_equal(head.bytes, 313 * row_bytes[type]);
        assert_int_equal(butler_view_position(&head.view, 5), 5);
        head.view.bytes = NULL;
        butler_view_key(&head.view, 3, key);
        head_free(&head);
    }
}

/* Whatever pieces a metric is asked for in, and however its records came to be, the scores are the same. */
static void scores_do_not_depend_on_how_they_are_asked_for(void **state)
{
    (void)state;
    for (int m = 0; butler_metrics_builtin[m]; m++) {
        const struct butler_metric *metric = butler_metrics_builtin[m];
        if (metric->predictor || metric->earlier_layers) /* they need a session: tests/test_predict.c */
            continue;
        double values[BUTLER_METRIC_MAX_PARAMS];
        struct head once, often;
        enum { N = 333 };
        static float weights[GROUP][N], whole[GROUP][N], piece[GROUP][N];
        float q[GROUP * DIM];
        uint64_t random = 5;
        defaults(metric, values);
        random_queries(q, GROUP, 3);
        head_init(&once, metric, values, BUTLER_KV_F16, NULL);
        head_init(&often, metric, values, BUTLER_KV_F16, NULL);
        grow(&once, metric, values, N, N, 9);
        grow(&often, metric, values, 100, 7, 9);
        grow(&often, metric, values, N - 100, 1, 9);
        for (int t = 0; metric->observe && t < 40; t++) {
            for (int i = 0; i < GROUP * N; i++)
                weights[i / N][i % N] = butler_random_float(&random) / N;
            metric->observe(&shape, values, &once.view, t, weights[0], N, N);
            metric->observe(&shape, values, &often.view, t, weights[0], N, N);
        }
        const int n_q = metric->query_free ? 1 : GROUP, n = metric->page_scores ? BUTLER_CEIL_DIV(N, once.view.record_slots) : N;
        memset(whole, 0x7f, sizeof whole);
        memset(piece, 0x7f, sizeof piece);
        metric->score(&shape, values, &once.view, q, n_q, 0, n, whole[0], N);
        for (int first = 0, step = 1; first < n; first += step, step = step * 2 % 37 + 1) {
            step = BUTLER_MIN(step, n - first);
            metric->score(&shape, values, &often.view, q, n_q, first, step, piece[0] + first, N);
        }
        for (int i = 0; i < GROUP; i++)
            if (memcmp(whole[i], piece[i], sizeof whole[i]))
                fail_msg("%s: scores differ, query %d", metric->name, i);
        for (int i = 0; i < n_q; i++)
            for (int j = 0; j < n; j++)
                assert_true(isfinite(whole[i][j]));
        head_free(&once);
        head_free(&often);
    }
}

/* ------------------------------------------------------------------------------------ from the attention */

static void accumulated_attention(void **state)
{
    (void)state;
    for (int power = 1; power <= 2; power++) {
        struct head head;
        const double values[] = {power, 0}, decaying[] = {power, 3};
        float weights[GROUP][4] = {{.5f, .25f, .25f, 0}, {1, 0, 0, 0}, {.125f, .125f, .75f, 0}}, out[GROUP][4];
        const float more[GROUP][4] = {{.25f, .25f, .25f, .25f}, {0, 0, 0, 1}, {.5f, 0, 0, .5f}};
        head_init(&head, &butler_metric_attention, values, BUTLER_KV_F16, "ref");
        grow(&head, &butler_metric_attention, values, 3, 1, 1);
        butler_metric_attention.observe(&shape, values, &head.view, 2, weights[0], 4, 3);
        grow(&head, &butler_metric_attention, values, 1, 1, 1);
        butler_metric_attention.observe(&shape, values, &head.view, 3, more[0], 4, 4);
        butler_metric_attention.score(&shape, values, &head.view, NULL, GROUP, 0, 4, out[0], 4);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < 4; i++) {
                double a = weights[h][i], b = more[h][i];
                near(out[h][i], power == 1 ? a + b : sqrt(a * a + b * b), 1e-7, "score", i);
            }
        assert_int_equal(butler_metric_attention.attention_window(values), INT_MAX);
        head_free(&head);
        head_init(&head, &butler_metric_attention, decaying, BUTLER_KV_F16, "ref");
        grow(&head, &butler_metric_attention, decaying, 4, 1, 1);
        for (int t = 0; t < 7; t++)
            butler_metric_attention.observe(&shape, decaying, &head.view, t, t == 0 ? weights[0] : more[0], 4, 4);
        butler_metric_attention.score(&shape, decaying, &head.view, NULL, GROUP, 0, 4, out[0], 4);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < 4; i++) { /* the first two half-lives ago */
                double sum = pow(weights[h][i], power) / 4;
                for (int age = 0; age < 6; age++)
                    sum += pow(more[h][i], power) * exp2(-age / 3.0);
                near(out[h][i], power == 1 ? sum : sqrt(sum), 1e-6, "decayed", i);
            }
        assert_int_equal(butler_metric_attention.attention_window(decaying), 24 * 3);
        head_free(&head);
    }
}

/* A tile of a prompt's weights at once: what its queries give one after the other, whatever the tiles are. */
static void attention_of_a_tile(void **state)
{
    (void)state;
    enum { N = 700, SEEN = 590, QUERIES = N - SEEN + 1, KEYS = 64, CHUNKS = (N + KEYS - 1) / KEYS };
    static const double parameters[][2] = {{1, 0}, {2, 0}, {1, 25}};
    static float weights[QUERIES * GROUP][N], factors[CHUNKS][QUERIES * GROUP], whole[GROUP][N], parts[GROUP][N];
    uint64_t random = 3;
    for (int i = 0; i < QUERIES * GROUP * N; i++)
        weights[i / N][i % N] = butler_random_float(&random);
    for (int i = 0; i < CHUNKS * QUERIES * GROUP; i++)
        factors[i / (QUERIES * GROUP)][i % (QUERIES * GROUP)] = butler_random_float(&random);
    for (int p = 0; p < BUTLER_COUNT(parameters); p++) {
        const double *values = parameters[p];
        const struct butler_metric *metric = &butler_metric_attention;
        struct butler_block_weights block = {weights[0], factors[0], N, QUERIES * GROUP, QUERIES, SEEN, KEYS};
        struct head once, often;
        head_init(&once, metric, values, BUTLER_KV_F16, NULL);
        head_init(&often, metric, values, BUTLER_KV_F16, NULL);
        grow(&once, metric, values, N, N, 1);
        grow(&often, metric, values, N, N, 1);
        butler_attention_observe_block(&shape, values, &once.view, &block);
        for (int t = 0, m; t < QUERIES; t += m) {
            m = BUTLER_MIN(QUERIES - t, 1 + t % 7);
            block =
                (struct butler_block_weights){weights[t * GROUP], factors[0] + t * GROUP, N, QUERIES * GROUP, m, SEEN + t, KEYS};
            butler_attention_observe_block(&shape, values, &often.view, &block);
        }
        metric->score(&shape, values, &once.view, NULL, GROUP, 0, N, whole[0], N);
        metric->score(&shape, values, &often.view, NULL, GROUP, 0, N, parts[0], N);
        assert_memory_equal(whole, parts, sizeof whole);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < N; i++) {
                double sum = 0;
                for (int t = BUTLER_MAX(i + 1 - SEEN, 0); t < QUERIES; t++) {
                    const double a = (double)weights[t * GROUP + h][i] * factors[i / KEYS][t * GROUP + h];
                    sum = sum * (values[1] > 0 ? exp2(-1 / values[1]) : 1) + pow(a, values[0]);
                }
                near(whole[h][i], values[0] == 2 ? sqrt(sum) : sum, 1e-4, "tile", i);
            }
        head_free(&once);
        head_free(&often);
    }
}

static void last_query(void **state)
{
    (void)state;
    struct head head;
    const float first[GROUP][2] = {{.5f, .5f}, {1, 0}, {.25f, .75f}}, then[GROUP][2] = {{.125f, .875f}, {0, 1}, {1, 0}};
    float out[GROUP][2];
    head_init(&head, &butler_metric_last_query, NULL, BUTLER_KV_F16, "ref");
    grow(&head, &butler_metric_last_query, NULL, 2, 1, 1);
    butler_metric_last_query.observe(&shape, NULL, &head.view, 1, first[0], 2, 2);
    butler_metric_last_query.observe(&shape, NULL, &head.view, 2, then[0], 2, 2);
    butler_metric_last_query.score(&shape, NULL, &head.view, NULL, GROUP, 0, 2, out[0], 2);
    assert_memory_equal(out, then, sizeof out);
    assert_int_equal(butler_metric_last_query.attention_window(NULL), 1);
    head_free(&head);
}

/* One row for all heads of a group: the maximum of this check's weights and of those before, faded. */
static void verified(void **state)
{
    (void)state;
    struct head head;
    const double values[] = {0.5};
    const float first[GROUP][3] = {{.5f, .5f, 0}, {1, 0, 0}, {.25f, .75f, 0}},
                then[GROUP][3] = {{.125f, .625f, .25f}, {0, .25f, .75f}, {.375f, .125f, .5f}};
    float out[3];
    head_init(&head, &butler_metric_verified, values, BUTLER_KV_F16, "ref");
    grow(&head, &butler_metric_verified, values, 3, 1, 1);
    butler_metric_verified.observe(&shape, values, &head.view, 1, first[0], 3, 2); /* of two slots: the third is not touched */
    butler_metric_verified.score(&shape, values, &head.view, NULL, 1, 0, 3, out, 3);
    assert_memory_equal(out, ((const float[]){1, .75f, 0}), sizeof out);
    butler_metric_verified.observe(&shape, values, &head.view, 2, then[0], 3, 3);
    butler_metric_verified.score(&shape, values, &head.view, NULL, 1, 0, 3, out, 3);
    assert_memory_equal(out, ((const float[]){.5f, .625f, .75f}), sizeof out);
    head_free(&head);
}

/* A sum in units of 2^-24 with four significant bits, ties upward: what a full block is rounded to. */
static double rounded_block(double units)
{
    int exponent;
    if (units < 16)
        return units;
    frexp(units, &exponent); /* units in [2^(exponent - 1), 2^exponent) */
    const double step = ldexp(1, exponent - 4);
    return floor(units / step + 0.5) * step;
}

/* 3000 queries through a window of two full blocks and the one being filled, with a gap of some blocks as a prompt leaves it: the
 * sum is that of the blocks, to the last bit, for tokens old and new. */
static void a_window_does_not_drift(void **state)
{
    (void)state;
    enum { N = 12, QUERIES = 3000, W = 20, BLOCK = 16, GAP = 2005, GAP_END = 2043 };
    const double values[] = {W};
    static double blocks[QUERIES / BLOCK + 1][GROUP][N];
    struct head head;
    float out[GROUP][N], seen[GROUP][N];
    uint64_t random = 11;
    head_init(&head, &butler_metric_windowed, values, BUTLER_KV_F16, "ref");
    grow(&head, &butler_metric_windowed, values, 4, 4, 1);
    for (int t = 0; t < QUERIES; t += t == GAP ? GAP_END - GAP : 1) {
        const int now = t / BLOCK;
        if (t % 300 == 299 && head.view.n_slots < N)
            grow(&head, &butler_metric_windowed, values, 1, 1, 1);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < head.view.n_slots; i++) { /* from 2^-40 to 1: such that become 0 too */
                seen[h][i] = powf(2, -40 * butler_random_float(&random));
                blocks[now][h][i] += floor((double)seen[h][i] * 16777216 + 0.5);
            }
        butler_metric_windowed.observe(&shape, values, &head.view, t, seen[0], N, head.view.n_slots);
        butler_metric_windowed.score(&shape, values, &head.view, NULL, GROUP, 0, head.view.n_slots, out[0], N);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < head.view.n_slots; i++) {
                double sum = blocks[now][h][i];
                for (int j = BUTLER_MAX(0, now - 2); j < now; j++)
                    sum += rounded_block(blocks[j][h][i]);
                if (out[h][i] != (float)(sum / 16777216))
                    fail_msg("query %d, head %d, slot %d: %.9g, expected %.9g", t, h, i, (double)out[h][i], sum / 16777216);
            }
    }
    head_free(&head);
}

/* VATP, eq. 3: the window of w = 400 has the last 401 queries at least, and 15 more at most; a record is at most 0.6 of a row of
 * keys and values in halves where three query heads share a KV head of 64 channels. */
static void a_window_holds_its_queries_in_few_bytes(void **state)
{
    (void)state;
    enum { W = 400 };
    const double values[] = {W};
    int n_slots;
    size_t n_bytes;
    struct head head;
    butler_metric_windowed.record(&shape, values, &n_slots, &n_bytes);
    assert_int_equal(n_slots, 1);
    assert_true(n_bytes <= 0.6 * 2 * 2 * DIM);
    assert_true(butler_metric_windowed.attention_window(values) >= W + 1 + 15);
    for (int begin = 0; begin < 16; begin++) { /* a single weight, at query `begin` */
        const float one[GROUP] = {1, 1, 1}, none[GROUP] = {0};
        float out[GROUP];
        int last = 0; /* query that it counts for last */
        head_init(&head, &butler_metric_windowed, values, BUTLER_KV_F16, "ref");
        grow(&head, &butler_metric_windowed, values, 1, 1, 1);
        for (int t = 0; t < 2 * W; t++) {
            butler_metric_windowed.observe(&shape, values, &head.view, t, t == begin ? one : none, 1, 1);
            butler_metric_windowed.score(&shape, values, &head.view, NULL, GROUP, 0, 1, out, 1);
            last = out[GROUP - 1] == 1 ? t : last;
        }
        assert_in_range(last, begin + W, begin + W + 15);
        head_free(&head);
    }
    assert_int_equal(butler_metric_windowed.score_bytes(&shape, values, 10), 10 * GROUP * 12);
    assert_int_equal(butler_metric_windowed.observe_bytes(&shape, values, 32), 32 * (GROUP + 1) * 4 + 2 * GROUP * 9);
}

/* The pool the plain way, from a table of sums by position (-1: no such token). */
static float plain_pool(const float *sums, int n, int p, int kernel, int edge, bool maximum)
{
    float sum = 0, most = 0;
    for (int j = p - kernel / 2; j <= p + kernel / 2; j++)
        if (j >= 0 && j < n && sums[j] >= 0 && (j < edge) == (p < edge)) {
            sum += sums[j];
            most = BUTLER_MAX(most, sums[j]);
        }
    return maximum ? most : sum / (float)kernel;
}

static void pooled_over_positions(void **state)
{
    (void)state;
    /* {slots, length of the text, window, kernel, max}: with slots < length the others were evicted and order is lost */
    static const int cases[][5] = {
        {50, 50, 8, 5, 0}, {50, 50, 8, 7, 1}, {40, 5900, 16, 3, 0}, {3000, 5900, 32, 63, 1}, {5, 5, 32, 5, 0}};
    for (int c = 0; c < BUTLER_COUNT(cases); c++) {
        const int n = cases[c][0], length = cases[c][1], window = cases[c][2], kernel = cases[c][3];
        const double values[] = {window, kernel, cases[c][4]};
        static float weights[GROUP][MAX_SLOTS], sums[GROUP][MAX_SLOTS], out[GROUP][MAX_SLOTS];
        static int32_t positions[MAX_SLOTS], all[MAX_SLOTS];
        struct head head;
        uint64_t random = (uint64_t)c;
        head_init(&head, &butler_metric_pooled, values, BUTLER_KV_F16, "ref");
        grow(&head, &butler_metric_pooled, values, n, n, 1);
        for (int i = 0; i < length; i++)
            all[i] = i;
        for (int i = 0; n < length && i < n; i++) { /* a random choice in random order, the newest among them */
            int j = i + (int)(butler_random(&random) % (uint64_t)(length - i)), swap = all[i];
            all[i] = all[j];
            all[j] = swap;
        }
        memcpy(positions, all, sizeof positions);
        bool newest = n == length;
        for (int i = 0; i < n; i++)
            newest |= positions[i] == length - 1;
        if (!newest)
            positions[n / 2] = length - 1;
        head.view.positions = n < length ? positions : NULL;
        for (int i = 0; i < GROUP * MAX_SLOTS; i++)
            sums[i / MAX_SLOTS][i % MAX_SLOTS] = -1;
        for (int t = 0; t < 3; t++) {
            for (int h = 0; h < GROUP; h++)
                for (int i = 0; i < n; i++)
                    weights[h][i] = butler_random_float(&random);
            butler_metric_pooled.observe(&shape, values, &head.view, t, weights[0], MAX_SLOTS, n);
            for (int h = 0; h < GROUP; h++)
                for (int i = 0; i < n; i++) {
                    float *sum = &sums[h][positions[i]], add = butler_half_to_float(butler_float_to_half(weights[h][i]));
                    *sum = *sum < 0 ? add : *sum + add;
                }
        }
        butler_metric_pooled.score(&shape, values, &head.view, NULL, GROUP, 0, n, out[0], MAX_SLOTS);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < n; i++)
                near(out[h][i], plain_pool(sums[h], length, positions[i], kernel, length - window, cases[c][4]), 1e-5, "pooled", i);
        head_free(&head);
    }
}

/* ------------------------------------------------------------------------------------------ from the keys */

static void for_every_isa_and_type(void (*check)(const char *isa, enum butler_kv_type type))
{
    for (const char *const *isa = butler_kernels_available(); *isa; isa++)
        for (int type = 0; type < BUTLER_N_KV_TYPES; type++)
            check(*isa, (enum butler_kv_type)type);
}

static void check_page_bounds(const char *isa, enum butler_kv_type type)
{
    enum { N = 203, PAGE = 12, PAGES = 17 };
    for (int bound = 0; bound < 2; bound++) {
        const double values[] = {PAGE, bound};
        struct head head;
        float q[GROUP * DIM], out[GROUP][PAGES], keys[N][DIM];
        head_init(&head, &butler_metric_page_bounds, values, type, isa);
        grow(&head, &butler_metric_page_bounds, values, N, 5, 4);
        random_queries(q, GROUP, 8);
        butler_metric_page_bounds.score(&shape, values, &head.view, q, GROUP, 0, PAGES, out[0], PAGES);
        for (int i = 0; i < N; i++)
            key_of(&head, i, keys[i]);
        for (int h = 0; h < GROUP; h++)
            for (int p = 0; p < PAGES; p++) {
                double sum = 0, most = -1e30, error = 0;
                for (int d = 0; d < DIM; d++) {
                    float up = keys[p * PAGE][d], down = up;
                    for (int i = p * PAGE; i < BUTLER_MIN(N, (p + 1) * PAGE); i++) {
                        up = fmaxf(up, keys[i][d]);
                        down = fminf(down, keys[i][d]);
                    }
                    double x = q[h * DIM + d], m = butler_half_to_float(butler_float_to_half(up)),
                           l = butler_half_to_float(butler_float_to_half(down)), part = x >= 0 ? x * m : x * l;
                    sum += part;
                    most = fmax(most, part);
                    error += fabs(part);
                }
                near(out[h][p], bound ? most : sum, 1e-6 * error, "bound", p);
                /* Halves hold F16 keys exactly: then it bounds every key of the page. */
                for (int i = p * PAGE; !bound && type == BUTLER_KV_F16 && i < BUTLER_MIN(N, (p + 1) * PAGE); i++)
                    assert_true(out[h][p] >= dot(q + h * DIM, keys[i]) - 1e-5 * error);
            }
        head_free(&head);
    }
}

static void page_bounds(void **state)
{
    (void)state;
    for_every_isa_and_type(check_page_bounds);
}

static void check_page_stats(const char *isa, enum butler_kv_type type)
{
    enum { N = 75, PAGE = 16, PAGES = 5 };
    for (int coefficient = 0; coefficient < 3; coefficient++) {
        const double values[] = {PAGE, coefficient * 0.75};
        struct head head;
        float q[GROUP * DIM], out[GROUP][PAGES], keys[N][DIM];
        head_init(&head, &butler_metric_page_stats, values, type, isa);
        grow(&head, &butler_metric_page_stats, values, N, 3, 4);
        random_queries(q, GROUP, 8);
        butler_metric_page_stats.score(&shape, values, &head.view, q, GROUP, 0, PAGES, out[0], PAGES);
        for (int i = 0; i < N; i++)
            key_of(&head, i, keys[i]);
        for (int h = 0; h < GROUP; h++)
            for (int p = 0; p < PAGES; p++) {
                double sum = 0, error = 0;
                const int from = p * PAGE, to = BUTLER_MIN(N, from + PAGE);
                for (int d = 0; d < DIM; d++) {
                    double mean = 0, variance = 0, x = q[h * DIM + d];
                    for (int i = from; i < to; i++)
                        mean += (double)keys[i][d] / (to - from);
                    for (int i = from; i < to; i++)
                        variance += (keys[i][d] - mean) * (keys[i][d] - mean) / (to - from);
                    sum += x * mean + values[1] * fabs(x) * sqrt(variance);
                    error += fabs(x) * (fabs(mean) + values[1] * sqrt(variance));
                }
                near(out[h][p], sum, error / 2048, "mean + std", p); /* two halves a channel */
            }
        head_free(&head);
    }
}

static void page_stats(void **state)
{
    (void)state;
    for_every_isa_and_type(check_page_stats);
}

static void check_one_bit(const char *isa, enum butler_kv_type type)
{
    enum { N = 333 };
    for (int group = 32; group <= 96; group += 64) {
        const double values[] = {group};
        struct head head;
        static float q[GROUP * DIM], out[GROUP][N], keys[N][DIM];
        head_init(&head, &butler_metric_one_bit, values, type, isa);
        grow(&head, &butler_metric_one_bit, values, N, 10, 4);
        random_queries(q, GROUP, 8);
        butler_metric_one_bit.score(&shape, values, &head.view, q, GROUP, 0, N, out[0], N);
        for (int i = 0; i < N; i++)
            key_of(&head, i, keys[i]);
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < N; i++) {
                const int from = i / group * group, to = BUTLER_MIN(N, from + group);
                double sum = 0, error = 0;
                float up[DIM], down[DIM], widest = 0, most = 0;
                for (int d = 0; d < DIM; d++) {
                    up[d] = down[d] = keys[from][d];
                    for (int j = from; j < to; j++) {
                        up[d] = fmaxf(up[d], keys[j][d]);
                        down[d] = fminf(down[d], keys[j][d]);
                    }
                    widest = fmaxf(widest, up[d] - down[d]);
                    most = fmaxf(most, fabsf(q[h * DIM + d]));
                }
                const int step = head.view.kernels->one_bit_step;
                for (int d = 0; d < DIM; d++) {
                    const double low = butler_half_to_float(butler_float_to_half(down[d]));
                    const bool set = keys[i][d] >= (up[d] + down[d]) / 2;
                    const double range = set ? nearbyint((double)((up[d] - down[d]) / (widest / 255))) : 0;
                    const double x = nearbyint((double)(q[h * DIM + d] * (127 / most)));
                    const double product = floor(x * range / step + 0.5) * step / 127 * (double)most * (double)widest / 255;
                    sum += q[h * DIM + d] * low + product;
                    error += fabs(q[h * DIM + d] * low) + fabs(product);
                }
                near(out[h][i], sum, 2e-6 * error, "one bit", i);
            }
        head_free(&head);
    }
}

/* The two stages of scan=: the bounds are those of the keys' box, up to its rounding, and the scores of some pages are those that
 * they have among all. */
static void check_pages_of_one_bit(const char *isa, enum butler_kv_type type)
{
    enum { N = 333, PAGE = BUTLER_ONE_BIT_PAGE, N_PAGES = (N + PAGE - 1) / PAGE };
    static const uint32_t pages[] = {0, 3, 4, 7, N_PAGES - 1};
    const double values[] = {PAGE};
    struct head head;
    static float q[GROUP * DIM], all[GROUP][N_PAGES * PAGE], some[GROUP][BUTLER_COUNT(pages) * PAGE], bounds[GROUP][N_PAGES],
        key[DIM];
    uint64_t bytes = 0;
    head_init(&head, &butler_metric_one_bit, values, type, isa);
    grow(&head, &butler_metric_one_bit, values, N, 10, 4);
    random_queries(q, GROUP, 8);
    butler_metric_one_bit.score(&shape, values, &head.view, q, GROUP, 0, N, all[0], N_PAGES * PAGE);
    head.view.bytes = &bytes;
    butler_one_bit_bounds(&head.view, q, GROUP, 0, N_PAGES, bounds[0], N_PAGES);
    assert_int_equal(bytes, N_PAGES * (DIM * 3 + 4));
    butler_one_bit_score_pages(&head.view, q, GROUP, pages, BUTLER_COUNT(pages), some[0], BUTLER_COUNT(pages) * PAGE);
    assert_int_equal(bytes, N_PAGES * (DIM * 3 + 4) + BUTLER_COUNT(pages) * (DIM * 7 + 4));
    for (int h = 0; h < GROUP; h++) {
        for (int i = 0; i < (BUTLER_COUNT(pages) - 1) * PAGE + N % PAGE; i++)
            assert_true(some[h][i] == all[h][(int)pages[i / PAGE] * PAGE + i % PAGE]);
        for (int p = 0; p < N_PAGES; p++) {
            double bound = 0, error = 0;
            float up[DIM], down[DIM], widest = 0;
            for (int i = p * PAGE; i < BUTLER_MIN(N, (p + 1) * PAGE); i++) {
                key_of(&head, i, key);
                for (int d = 0; d < DIM; d++) {
                    up[d] = i % PAGE ? fmaxf(up[d], key[d]) : key[d];
                    down[d] = i % PAGE ? fminf(down[d], key[d]) : key[d];
                    widest = fmaxf(widest, up[d] - down[d]);
                }
            }
            for (int d = 0; d < DIM; d++) {
                const double x = (double)q[h * DIM + d];
                bound += x * (double)(x >= 0 ? up[d] : down[d]);
                error += fabs(x) * (ldexp(fabs((double)down[d]), -11) + (double)widest / 509);
            }
            near(bounds[h][p], bound, error, "bound", p);
        }
    }
    head_free(&head);
}

static void one_bit(void **state)
{
    (void)state;
    for_every_isa_and_type(check_one_bit);
    for_every_isa_and_type(check_pages_of_one_bit);
    int slots;
    size_t bytes;
    butler_metric_one_bit.record(&shape, (double[]){32}, &slots, &bytes);
    assert_true(bytes * 8 <= (size_t)slots * DIM * 2); /* an eighth of the keys as halves, the paper's load ratio, or less */
}

static void check_exact_and_norm(const char *isa, enum butler_kv_type type)
{
    enum { N = 150 };
    struct head head;
    static float q[GROUP * DIM], out[GROUP][N], key[DIM];
    head_init(&head, &butler_metric_exact, NULL, type, isa);
    grow(&head, &butler_metric_exact, NULL, N, 10, 4);
    random_queries(q, GROUP, 8);
    butler_metric_exact.score(&shape, NULL, &head.view, q, GROUP, 0, N, out[0], N);
    for (int h = 0; h < GROUP; h++)
        for (int i = 0; i < N; i++) {
            key_of(&head, i, key);
            near(out[h][i], dot(q + h * DIM, key), 2e-6 * size(q + h * DIM, key), "q.k", i);
        }
    head_free(&head);
    head_init(&head, &butler_metric_key_norm, NULL, type, isa);
    grow(&head, &butler_metric_key_norm, NULL, N, 10, 4);
    butler_metric_key_norm.score(&shape, NULL, &head.view, q, 1, 0, N, out[0], N);
    for (int i = 0; i < N; i++) {
        key_of(&head, i, key);
        near(out[0][i], -sqrt(dot(key, key)), 1e-5, "-|k|", i);
    }
    head_free(&head);
}

static void exact_and_key_norm(void **state)
{
    (void)state;
    for_every_isa_and_type(check_exact_and_norm);
}

/* A slot whose contents changed: the record is what it would be had it been so from the start. */
static void a_moved_token_leaves_no_trace(void **state)
{
    (void)state;
    const struct butler_metric *const metrics[] = {&butler_metric_page_bounds, &butler_metric_page_stats, &butler_metric_one_bit,
                                                   &butler_metric_key_norm};
    for (int m = 0; m < BUTLER_COUNT(metrics); m++) {
        double values[BUTLER_METRIC_MAX_PARAMS];
        struct head moved, fresh;
        enum { N = 70 };
        defaults(metrics[m], values);
        head_init(&moved, metrics[m], values, BUTLER_KV_F16, "ref");
        head_init(&fresh, metrics[m], values, BUTLER_KV_F16, "ref");
        grow(&moved, metrics[m], values, N, 7, 4);
        memset(moved.keys + 40 * DIM * 2, 0x7b, DIM * 2); /* a key far from the others comes and goes */
        metrics[m]->append(&shape, values, &moved.view, 40, 1);
        memcpy(moved.keys + 40 * DIM * 2, moved.keys + (N - 1) * DIM * 2, DIM * 2);
        moved.view.n_slots = N - 1;
        metrics[m]->append(&shape, values, &moved.view, 40, 1);
        metrics[m]->append(&shape, values, &moved.view, 64, N - 1 - 64);
        memcpy(fresh.keys, moved.keys, N * DIM * 2);
        fresh.view.n_slots = N - 1;
        head_bind(&fresh);
        metrics[m]->append(&shape, values, &fresh.view, 0, N - 1);
        const int n_records = BUTLER_CEIL_DIV(N - 1, fresh.view.record_slots);
        assert_memory_equal(moved.view.records, fresh.view.records, (size_t)n_records * fresh.view.record_bytes);
        head_free(&moved);
        head_free(&fresh);
    }
}

static void keys_beyond_a_half_stay_finite(void **state)
{
    (void)state;
    const struct butler_metric *const metrics[] = {&butler_metric_page_bounds, &butler_metric_page_stats, &butler_metric_one_bit};
    for (int m = 0; m < BUTLER_COUNT(metrics); m++) {
        double values[BUTLER_METRIC_MAX_PARAMS];
        struct head head;
        float q[DIM] = {0, 1}, out[40];
        defaults(metrics[m], values);
        head_init(&head, metrics[m], values, BUTLER_KV_F32, NULL);
        grow(&head, metrics[m], values, 40, 40, 4);
        ((float *)head.keys)[5 * DIM] = 1e20f;
        ((float *)head.keys)[9 * DIM] = -1e20f;
        metrics[m]->append(&shape, values, &head.view, 0, 40);
        const int n = metrics[m]->page_scores ? 3 : 40;
        metrics[m]->score(&shape, values, &head.view, q, 1, 0, n, out, 40);
        for (int i = 0; i < n; i++)
            assert_true(isfinite(out[i]));
        head_free(&head);
    }
}

static void recency_and_random(void **state)
{
    (void)state;
    enum { N = 4000 };
    static int32_t positions[N];
    static float out[GROUP][N], again[GROUP][N];
    struct head head;
    head_init(&head, &butler_metric_random, NULL, BUTLER_KV_F16, "ref");
    grow(&head, &butler_metric_random, NULL, N, N, 1);
    butler_metric_recency.score(&shape, NULL, &head.view, NULL, 1, 10, 5, out[0], N);
    assert_true(out[0][0] == 10 && out[0][4] == 14);
    butler_metric_random.score(&shape, NULL, &head.view, NULL, GROUP, 0, N, out[0], N);
    double sum = 0, squares = 0, across = 0;
    for (int h = 0; h < GROUP; h++)
        for (int i = 0; i < N; i++) {
            assert_true(out[h][i] >= 0 && out[h][i] < 1);
            sum += out[h][i];
            squares += out[h][i] * out[h][i];
            across += out[h][i] * out[(h + 1) % GROUP][i];
        }
    near(sum / (GROUP * N), 1.0 / 2, 0.02, "mean", 0);
    near(squares / (GROUP * N), 1.0 / 3, 0.02, "second moment", 0);
    near(across / (GROUP * N), 1.0 / 4, 0.02, "product of heads", 0);
    for (int i = 0; i < N; i++)
        positions[i] = N - 1 - i;
    head.view.positions = positions;
    butler_metric_random.score(&shape, NULL, &head.view, NULL, GROUP, 0, N, again[0], N);
    butler_metric_recency.score(&shape, NULL, &head.view, NULL, 1, 0, 1, again[0] + 1, N);
    assert_true(again[0][1] == N - 1);
    butler_metric_random.score(&shape, NULL, &head.view, NULL, GROUP, 0, N, again[0], N);
    for (int h = 0; h < GROUP; h++)
        for (int i = 0; i < N; i++)
            assert_true(again[h][i] == out[h][N - 1 - i]); /* the token's, wherever it lies */
    int equal = 0;
    head.view.query_position++;
    butler_metric_random.score(&shape, NULL, &head.view, NULL, GROUP, 0, N, out[0], N);
    for (int i = 0; i < GROUP * N; i++)
        equal += out[i / N][i % N] == again[i / N][i % N];
    assert_true(equal < 10);
    head_free(&head);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_view_gives_rows_as_stored_and_counts_them),
        cmocka_unit_test(scores_do_not_depend_on_how_they_are_asked_for),
        cmocka_unit_test(accumulated_attention),
        cmocka_unit_test(attention_of_a_tile),
        cmocka_unit_test(last_query),
        cmocka_unit_test(verified),
        cmocka_unit_test(a_window_does_not_drift),
        cmocka_unit_test(a_window_holds_its_queries_in_few_bytes),
        cmocka_unit_test(pooled_over_positions),
        cmocka_unit_test(page_bounds),
        cmocka_unit_test(page_stats),
        cmocka_unit_test(one_bit),
        cmocka_unit_test(exact_and_key_norm),
        cmocka_unit_test(a_moved_token_leaves_no_trace),
        cmocka_unit_test(keys_beyond_a_half_stay_finite),
        cmocka_unit_test(recency_and_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
