/* Every built-in metric against what its definition says, computed the plain way, over a head of the cache that is a few
 * arrays: records built token by token and in blocks, scores of whole heads and of pieces, every cache type and ISA. */
#include "metric_head.h"

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
    for (int m = 0; butler_builtin.metrics[m]; m++) {
        const struct butler_metric *metric = butler_builtin.metrics[m];
        if (metric->predictor || metric->earlier_layers ||
            metric->centres) /* they need a session: test_predict.c, test_policies.py */
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
        if (metric->begin_score) {
            metric->begin_score(&shape, values, &once.view, q, n_q);
            metric->begin_score(&shape, values, &often.view, q, n_q);
        }
        memset(whole, 0x7f, sizeof whole);
        memset(piece, 0x7f, sizeof piece);
        metric->score(&shape, values, &once.view, &(struct butler_score_request){q, n_q, 0, n, whole[0], N});
        for (int first = 0, step = 1; first < n; first += step, step = step * 2 % 37 + 1) {
            step = BUTLER_MIN(step, n - first);
            metric->score(&shape, values, &often.view, &(struct butler_score_request){q, n_q, first, step, piece[0] + first, N});
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
        const double values[] = {PAGE, bound, 0};
        struct head head;
        float q[GROUP * DIM], out[GROUP][PAGES], keys[N][DIM];
        head_init(&head, &butler_metric_page_bounds, values, type, isa);
        grow(&head, &butler_metric_page_bounds, values, N, 5, 4);
        random_queries(q, GROUP, 8);
        butler_metric_page_bounds.score(&shape, values, &head.view,
                                        &(struct butler_score_request){q, GROUP, 0, PAGES, out[0], PAGES});
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
        butler_metric_page_stats.score(&shape, values, &head.view,
                                       &(struct butler_score_request){q, GROUP, 0, PAGES, out[0], PAGES});
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
        const double values[] = {group, 1, 0};
        struct head head;
        static float q[GROUP * DIM], out[GROUP][N], keys[N][DIM];
        head_init(&head, &butler_metric_one_bit, values, type, isa);
        grow(&head, &butler_metric_one_bit, values, N, 10, 4);
        random_queries(q, GROUP, 8);
        butler_metric_one_bit.score(&shape, values, &head.view, &(struct butler_score_request){q, GROUP, 0, N, out[0], N});
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
    enum { N = 333, PAGE = 32, N_PAGES = (N + PAGE - 1) / PAGE };
    static const uint32_t pages[] = {0, 3, 4, 7, N_PAGES - 1};
    const double values[] = {PAGE, 1, 0};
    struct head head;
    static float q[GROUP * DIM], all[GROUP][N_PAGES * PAGE], some[GROUP][BUTLER_COUNT(pages) * PAGE], bounds[GROUP][N_PAGES],
        key[DIM];
    head_init(&head, &butler_metric_one_bit, values, type, isa);
    grow(&head, &butler_metric_one_bit, values, N, 10, 4);
    random_queries(q, GROUP, 8);
    butler_metric_one_bit.score(&shape, values, &head.view, &(struct butler_score_request){q, GROUP, 0, N, all[0], N_PAGES * PAGE});
    butler_metric_one_bit.scan->bounds(&head.view, q, GROUP, 0, N_PAGES, bounds[0], N_PAGES);
    butler_metric_one_bit.scan->score_pages(&head.view, q, GROUP, pages, BUTLER_COUNT(pages), some[0], BUTLER_COUNT(pages) * PAGE);
    assert_int_equal(butler_metric_one_bit.scan->bytes(DIM, N_PAGES, BUTLER_COUNT(pages)),
                     N_PAGES * (DIM * 3 + 4) + BUTLER_COUNT(pages) * (DIM * 7 + 4));
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
    butler_metric_exact.score(&shape, NULL, &head.view, &(struct butler_score_request){q, GROUP, 0, N, out[0], N});
    for (int h = 0; h < GROUP; h++)
        for (int i = 0; i < N; i++) {
            key_of(&head, i, key);
            near(out[h][i], dot(q + h * DIM, key), 2e-6 * size(q + h * DIM, key), "q.k", i);
        }
    head_free(&head);
    head_init(&head, &butler_metric_key_norm, NULL, type, isa);
    grow(&head, &butler_metric_key_norm, NULL, N, 10, 4);
    butler_metric_key_norm.score(&shape, NULL, &head.view, &(struct butler_score_request){q, 1, 0, N, out[0], N});
    for (int i = 0; i < N; i++) {
        key_of(&head, i, key);
        near(out[0][i], -sqrt(dot(key, key)), 1e-5, "-|k|", i);
    }
    head_free(&head);
}

/* Keys that leave the anchor's sum leave nothing behind: scores are those of a head that never held them. */
static void check_key_diff(const char *isa, enum butler_kv_type type)
{
    enum { N = 150, HELD = 100 };
    const struct butler_metric *metric = &butler_metric_key_diff;
    struct head head, fresh;
    static float out[N], of_fresh[N], key[DIM];
    double anchor[DIM] = {0}, length = 0;
    uint32_t last[N - HELD];
    head_init(&head, metric, NULL, type, isa);
    grow(&head, metric, NULL, N, 10, 4);
    head_init(&fresh, metric, NULL, type, isa);
    grow(&fresh, metric, NULL, HELD, 7, 4);
    for (int i = 0; i < N - HELD; i++)
        last[i] = (uint32_t)(HELD + i);
    metric->leave(&shape, NULL, &head.view, last, N - HELD);
    head.view.n_slots = HELD;
    metric->begin_score(&shape, NULL, &head.view, NULL, 1);
    metric->begin_score(&shape, NULL, &fresh.view, NULL, 1);
    metric->score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, 1, 0, HELD, out, N});
    metric->score(&shape, NULL, &fresh.view, &(struct butler_score_request){NULL, 1, 0, HELD, of_fresh, N});
    assert_memory_equal(out, of_fresh, HELD * sizeof *out);
    for (int i = 0; i < HELD; i++) {
        key_of(&head, i, key);
        for (int d = 0; d < DIM; d++)
            anchor[d] += (double)key[d] / sqrt(dot(key, key));
    }
    for (int d = 0; d < DIM; d++)
        length += anchor[d] * anchor[d];
    for (int i = 0; i < HELD; i++) {
        double product = 0;
        key_of(&head, i, key);
        for (int d = 0; d < DIM; d++)
            product += anchor[d] * (double)key[d];
        near(out[i], -product / sqrt(length * dot(key, key)), 1e-5, "minus the cosine", i);
    }
    head_free(&head);
    head_free(&fresh);
}

static void key_diff(void **state)
{
    (void)state;
    for_every_isa_and_type(check_key_diff);
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
        metrics[m]->score(&shape, values, &head.view, &(struct butler_score_request){q, 1, 0, n, out, 40});
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
    butler_metric_recency.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, 1, 10, 5, out[0], N});
    assert_true(out[0][0] == 10 && out[0][4] == 14);
    butler_metric_random.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, GROUP, 0, N, out[0], N});
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
    butler_metric_random.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, GROUP, 0, N, again[0], N});
    butler_metric_recency.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, 1, 0, 1, again[0] + 1, N});
    assert_true(again[0][1] == N - 1);
    butler_metric_random.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, GROUP, 0, N, again[0], N});
    for (int h = 0; h < GROUP; h++)
        for (int i = 0; i < N; i++)
            assert_true(again[h][i] == out[h][N - 1 - i]); /* the token's, wherever it lies */
    int equal = 0;
    head.view.query_position++;
    butler_metric_random.score(&shape, NULL, &head.view, &(struct butler_score_request){NULL, GROUP, 0, N, out[0], N});
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
        cmocka_unit_test(page_bounds),
        cmocka_unit_test(page_stats),
        cmocka_unit_test(one_bit),
        cmocka_unit_test(exact_and_key_norm),
        cmocka_unit_test(key_diff),
        cmocka_unit_test(a_moved_token_leaves_no_trace),
        cmocka_unit_test(keys_beyond_a_half_stay_finite),
        cmocka_unit_test(recency_and_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
