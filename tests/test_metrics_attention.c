/* The built-in metrics that observe attention, against what their definitions say, computed the plain way. */
#include "metric_head.h"

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
        butler_metric_attention.score(&shape, values, &head.view, &(struct butler_score_request){NULL, GROUP, 0, 4, out[0], 4});
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
        butler_metric_attention.score(&shape, decaying, &head.view, &(struct butler_score_request){NULL, GROUP, 0, 4, out[0], 4});
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

/* A query's factor of keys that it does not see is whatever was there before. */
static void spoil(float *factors, int n_rows, int n_chunks, int seen, int keys)
{
    for (int chunk = 0; chunk < n_chunks; chunk++)
        for (int row = 0; row < n_rows; row++)
            if (chunk * keys >= seen + row / GROUP)
                factors[chunk * n_rows + row] = row % 2 ? INFINITY : NAN;
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
    spoil(factors[0], QUERIES * GROUP, CHUNKS, SEEN, KEYS);
    for (int p = 0; p < BUTLER_COUNT(parameters); p++) {
        const double *values = parameters[p];
        const struct butler_metric *metric = &butler_metric_attention;
        struct butler_block_weights block = {weights[0], factors[0], N, QUERIES * GROUP, QUERIES, SEEN, KEYS};
        struct head once, often;
        head_init(&once, metric, values, BUTLER_KV_F16, NULL);
        head_init(&often, metric, values, BUTLER_KV_F16, NULL);
        grow(&once, metric, values, N, N, 1);
        grow(&often, metric, values, N, N, 1);
        butler_metric_attention.observe_block(&shape, values, &once.view, &block);
        for (int t = 0, m; t < QUERIES; t += m) {
            m = BUTLER_MIN(QUERIES - t, 1 + t % 7);
            block =
                (struct butler_block_weights){weights[t * GROUP], factors[0] + t * GROUP, N, QUERIES * GROUP, m, SEEN + t, KEYS};
            butler_metric_attention.observe_block(&shape, values, &often.view, &block);
        }
        metric->score(&shape, values, &once.view, &(struct butler_score_request){NULL, GROUP, 0, N, whole[0], N});
        metric->score(&shape, values, &often.view, &(struct butler_score_request){NULL, GROUP, 0, N, parts[0], N});
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

/* Records, bit for bit, are those of one query after the other: windows shorter and longer than the tile, weights of all sizes of
 * which halves have many bits, few or none, slots that only the later queries see. */
static void pooled_tile(void **state)
{
    (void)state;
    enum { N = 700, QUERIES = 75, SEEN = N - QUERIES + 1, CHUNKS = (N + 63) / 64 };
    static const int windows[] = {5, 16, 32, 33, 200};
    static float weights[QUERIES * GROUP][N], known[CHUNKS][QUERIES * GROUP], factors[CHUNKS][QUERIES * GROUP], all[GROUP][N];
    uint64_t random = 7;
    for (int i = 0; i < QUERIES * GROUP * N; i++)
        weights[i / N][i % N] = ldexpf(butler_random_float(&random), -(int)(butler_random(&random) % 30));
    for (int i = 0; i < QUERIES * GROUP; i++) {
        weights[i][i % 64] = 1;
        weights[i][64 + i % 64] = ldexpf(1 - ldexpf(1, -13 + i % 3), -14); /* next to the least normal half */
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            known[chunk][i] = chunk < 2 ? 1 : butler_random_float(&random);
    }
    for (int w = 0; w < BUTLER_COUNT(windows); w++)
        for (int keys = 64; keys <= 256; keys *= 4)
            for (int cut = 1; cut <= QUERIES; cut = cut * 2 + 7) {
                const double values[] = {windows[w], 7, 0};
                const struct butler_metric *metric = &butler_metric_pooled;
                struct head single, tiles;
                memcpy(factors, known, sizeof factors);
                spoil(factors[0], QUERIES * GROUP, CHUNKS, SEEN, keys);
                head_init(&single, metric, values, BUTLER_KV_F16, NULL);
                head_init(&tiles, metric, values, BUTLER_KV_F16, NULL);
                grow(&single, metric, values, N, N, 1);
                grow(&tiles, metric, values, N, N, 1);
                for (int t = 0; t < QUERIES; t++) {
                    for (int h = 0; h < GROUP; h++)
                        for (int i = 0; i < SEEN + t; i++)
                            all[h][i] = weights[t * GROUP + h][i] * factors[i / keys][t * GROUP + h];
                    metric->observe(&shape, values, &single.view, SEEN - 1 + t, all[0], N, SEEN + t);
                }
                for (int t = 0, m; t < QUERIES; t += m) {
                    m = BUTLER_MIN(QUERIES - t, cut);
                    const struct butler_block_weights block = {
                        weights[t * GROUP], factors[0] + t * GROUP, N, QUERIES * GROUP, m, SEEN + t, keys};
                    tiles.view.query_position = SEEN - 1 + t + m - 1;
                    metric->observe_block(&shape, values, &tiles.view, &block);
                }
                if (memcmp(single.view.records, tiles.view.records, N * single.view.record_bytes) != 0)
                    fail_msg("window %d, %d keys, tiles of %d: other records", windows[w], keys, cut);
                head_free(&single);
                head_free(&tiles);
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
    butler_metric_last_query.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, GROUP, 0, 2, out[0], 2});
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
    butler_metric_verified.score(&shape, values, &head.view, &(struct butler_score_request){NULL, 1, 0, 3, out, 3});
    assert_memory_equal(out, ((const float[]){1, .75f, 0}), sizeof out);
    butler_metric_verified.observe(&shape, values, &head.view, 2, then[0], 3, 3);
    butler_metric_verified.score(&shape, values, &head.view, &(struct butler_score_request){NULL, 1, 0, 3, out, 3});
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
        butler_metric_windowed.score(&shape, values, &head.view,
                                     &(struct butler_score_request){NULL, GROUP, 0, head.view.n_slots, out[0], N});
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
            butler_metric_windowed.score(&shape, values, &head.view, &(struct butler_score_request){NULL, GROUP, 0, 1, out, 1});
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
    static const int cases[][5] = {{50, 50, 8, 5, 0},    {50, 50, 8, 7, 1},       {900, 900, 16, 63, 0},
                                   {40, 5900, 16, 3, 0}, {3000, 5900, 32, 63, 1}, {5, 5, 32, 5, 0}};
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
        butler_metric_pooled.score(&shape, values, &head.view,
                                   &(struct butler_score_request){NULL, GROUP, 0, n, out[0], MAX_SLOTS});
        if (n == length) { /* positions that are written out, and in pieces: the same */
            static float again[GROUP][MAX_SLOTS];
            head.view.positions = positions;
            for (int first = 0, m; first < n; first += m) {
                m = BUTLER_MIN(n - first, 23);
                butler_metric_pooled.score(&shape, values, &head.view,
                                           &(struct butler_score_request){NULL, GROUP, first, m, again[0] + first, MAX_SLOTS});
            }
            for (int h = 0; h < GROUP; h++)
                assert_memory_equal(again[h], out[h], (size_t)n * sizeof(float));
        }
        for (int h = 0; h < GROUP; h++)
            for (int i = 0; i < n; i++)
                near(out[h][i], plain_pool(sums[h], length, positions[i], kernel, length - window, cases[c][4]), 1e-5, "pooled", i);
        head_free(&head);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(accumulated_attention),
        cmocka_unit_test(attention_of_a_tile),
        cmocka_unit_test(last_query),
        cmocka_unit_test(verified),
        cmocka_unit_test(a_window_does_not_drift),
        cmocka_unit_test(a_window_holds_its_queries_in_few_bytes),
        cmocka_unit_test(pooled_over_positions),
        cmocka_unit_test(pooled_tile),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
