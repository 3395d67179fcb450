/* The properties that every policy has, looped over the registry and over points on the axes that have no name, for models with
 * and without grouped queries, caches in F16 and Q8_0, one thread and two. */
#include "invariants.h"

/* ---------------------------------------------------------------------------------------------- the properties */

/* Budget >= length gives exactly the dense result. */
static void dense_law(const struct context *c, const char *policy)
{
    char text[512];
    if (strstr(policy, "rope=cache")) /* keys rotated after rounding are not the keys that were rounded after rotation */
        return;
    struct butler_session *sparse = open_session(c, with_budget(policy, 100000, text)), *full = open_session(c, "full");
    prefill(sparse, c->text, c->n_prompt);
    prefill(full, c->text, c->n_prompt);
    for (int i = c->n_prompt; i < c->n_text; i++) {
        assert_same_logits(sparse, full, text, i - 1);
        step(sparse, c->text[i]);
        step(full, c->text[i]);
    }
    assert_same_logits(sparse, full, text, c->n_text - 1);
    butler_session_free(sparse);
    butler_session_free(full);
}

static void test_dense(void **state)
{
    (void)state;
    for_all(dense_law);
}

/* What one step read: sorted, unique, in range, within the budget, with what is always kept. */
static void check_selection(const struct butler_session *session, const char *policy, int n_prompt, int layer, int head)
{
    int32_t ids[N_TEXT];
    const struct butler_policy *p = &session->policy;
    const int n_past = butler_n_past(session), n = butler_last_selection(session, layer, head, ids, N_TEXT);
    const bool dense = !butler_policy_applies(p, layer) || !p->metric;
    const int window = session->model->layers[layer].window;
    const struct butler_limits limits = butler_policy_limits(p, layer, session->shape.n_layers, n_past);
    for (int i = 0; i < n; i++)
        if (ids[i] < 0 || ids[i] >= n_past || (i > 0 && ids[i] <= ids[i - 1]))
            fail_msg("%s: layer %d, head %d, %d tokens: id %d is %d", policy, layer, head, n_past, i, ids[i]);
    if (dense) {
        assert_int_equal(n, window > 0 ? BUTLER_MIN(window, n_past) : n_past);
        return;
    }
    /* Pages: sinks and recent tokens bring their pages, and the page being filled comes on top of whole ones. */
    const int unit = p->unit, slack = unit > 1 ? unit * (1 + (limits.sinks > 0) + 1) : 0;
    int most = BUTLER_MAX(limits.budget, limits.sinks + limits.recent) + slack;
    if (p->evict_at_prefill_only) /* what was decoded since is kept */
        most += n_past - n_prompt;
    if (p->method == BUTLER_RETRIEVE) /* what came since the selection was made */
        most += BUTLER_CEIL_DIV(p->every - 1, unit) * unit;
    if (n > most)
        fail_msg("%s: layer %d, head %d, %d tokens: %d read, %d allowed", policy, layer, head, n_past, n, most);
    if (n < BUTLER_MIN(limits.budget - slack, n_past))
        fail_msg("%s: layer %d, head %d, %d tokens: %d read of a budget of %d", policy, layer, head, n_past, n, limits.budget);
    assert_int_equal(ids[n - 1], n_past - 1);
    for (int i = 0; i < BUTLER_MIN(limits.sinks, n_past); i++)
        assert_int_equal(ids[i], i);
    for (int i = 0; i < BUTLER_MIN(limits.recent, n_past) && !p->evict_at_prefill_only; i++)
        if (ids[n - 1 - i] != n_past - 1 - i)
            fail_msg("%s: layer %d, head %d, %d tokens: recent token %d is missing", policy, layer, head, n_past, n_past - 1 - i);
}

/* Ids keep their form; reported memory stays at the budget. */
static void selection_law(const struct context *c, const char *policy)
{
    char text[512];
    struct butler_session *session = open_session(c, with_budget(policy, BUDGET, text));
    const struct butler_policy *p = &session->policy;
    prefill(session, c->text, c->n_prompt);
    for (int i = c->n_prompt; i < c->n_text; i++) {
        step(session, c->text[i]);
        for (int l = 0; l < session->shape.n_layers; l++)
            for (int h = 0; h < session->shape.n_heads; h++)
                check_selection(session, text, c->n_prompt, l, h);
        if (p->method == BUTLER_EVICT && !p->evict_at_prefill_only && p->budget_kind == BUTLER_BUDGET_COUNT &&
            p->dense_layers == 0 && session->model->hp.n_windowed == 0) {
            struct butler_stats stats = {BUTLER_INIT(butler_stats)};
            butler_session_stats(session, &stats);
            assert_true(stats.kv_memory <= butler_kv_bytes(c->model, c->from->kv_type, BUDGET));
        }
    }
    butler_session_free(session);
}

static void test_selection(void **state)
{
    (void)state;
    for_all(selection_law);
}

/* While the budget covers the text every step reads all, and no more: nothing is scored or selected, and what is observed and
 * summarised counts as upkeep. The step that outgrows it selects or evicts. */
static void covered_law(const struct context *c, const char *policy)
{
    enum { COVERED = 14 };
    char text[512];
    struct butler_session *session = open_session(c, with_budget(policy, c->n_prompt + COVERED, text));
    const struct butler_policy *p = &session->policy;
    const int last = session->shape.n_layers - 1;
    prefill(session, c->text, c->n_prompt);
    for (int i = 0; i < 2 * COVERED && p->metric && p->budget_kind != BUTLER_BUDGET_MASS && !session->evicted; i++) {
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        const bool covered = butler_policy_covers(p, last, last + 1, c->n_prompt + i + 1);
        assert_true(covered || i >= COVERED);
        butler_session_stats_reset(session);
        step(session, c->text[c->n_prompt + i]);
        if (p->method == BUTLER_RETRIEVE)
            check_selection(session, text, c->n_prompt, last, session->shape.n_heads - 1);
        butler_session_stats(session, &stats);
        if (i < COVERED) { /* in every layer */
            assert_int_equal(stats.units_selected, 0);
            if (p->metric->predictor != 1) /* version 1 keeps keys of its own up to date */
                assert_int_equal(stats.predict_bytes, 0);
            if (stats.metric_bytes > 0 || stats.kv_bytes != stats.full_kv_bytes)
                fail_msg("%s: a step of %d tokens reads %llu bytes and %llu to score, of %llu", text, c->n_prompt + i + 1,
                         (unsigned long long)stats.kv_bytes, (unsigned long long)stats.metric_bytes,
                         (unsigned long long)stats.full_kv_bytes);
            if (p->method == BUTLER_RETRIEVE && p->metric->predictor != 1 && !p->metric->observe) /* is made up for later */
                assert_int_equal(stats.upkeep_bytes, 0);
        } else if (!covered && butler_policy_applies(p, last) && !p->evict_at_prefill_only)
            assert_true(p->method == BUTLER_EVICT ? session->evicted : stats.units_selected > 0);
    }
    butler_session_free(session);
}

/* Where no step of the whole context can evict, nothing is observed or summarised at all; and a session file of it goes on in a
 * larger context only where what was left out can be made from the keys. */
static void idle_law(const struct context *c, const char *policy)
{
    enum { STEPS = 6 };
    char text[512], saved[] = "/tmp/butler-idle-XXXXXX";
    const int budget = c->n_prompt + STEPS + 2;
    struct butler_error err;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    struct butler_session *session = butler_session_new(
        c->engine,
        &(struct butler_session_params){
            .n_ctx = budget, .kv_type = c->from->kv_type, .policy = with_budget(policy, budget, text), .seed = 3},
        &err);
    if (!session)
        fail_msg("%s: %s", text, err.message);
    const struct butler_policy *p = &session->policy;
    prefill(session, c->text, c->n_prompt);
    for (int i = 0; i < STEPS; i++)
        step(session, c->text[c->n_prompt + i]);
    butler_session_stats(session, &stats);
    if (p->plan.idle) {
        if (stats.metric_bytes + stats.upkeep_bytes > 0 || stats.kv_bytes != stats.full_kv_bytes)
            fail_msg("%s: %llu bytes read, %llu to score, %llu for later, of %llu", text, (unsigned long long)stats.kv_bytes,
                     (unsigned long long)stats.metric_bytes, (unsigned long long)stats.upkeep_bytes,
                     (unsigned long long)stats.full_kv_bytes);
        assert_int_equal(close(mkstemp(saved)), 0);
        assert_int_equal(butler_session_save(session, saved, &err), 0);
        struct butler_session *same = butler_session_restore(c->engine, saved, 0, &err);
        assert_non_null(same);
        struct butler_session *larger = butler_session_restore(c->engine, saved, c->n_text, &err);
        remove(saved);
        struct butler_policy parsed;
        assert_int_equal(butler_policy_parse(c->engine, text, &parsed, &err), 0);
        if (parsed.plan.observe[1] > 0) {
            assert_null(larger);
            assert_int_equal(err.code, BUTLER_ERROR_LENGTH);
        } else {
            struct butler_session *fresh = open_session(c, text);
            assert_non_null(larger);
            prefill(fresh, c->text, c->n_prompt);
            for (int i = 0; i < STEPS; i++)
                step(fresh, c->text[c->n_prompt + i]);
            for (int i = c->n_prompt + STEPS; i < c->n_text; i++) {
                step(fresh, c->text[i]);
                step(larger, c->text[i]);
                assert_memory_equal(butler_logits(fresh), butler_logits(larger),
                                    (size_t)c->engine->model->hp.n_vocab * sizeof(float));
            }
            butler_session_free(fresh);
        }
        butler_session_free(larger);
        butler_session_free(same);
    } else
        assert_true(p->method != BUTLER_EVICT || p->budget_kind != BUTLER_BUDGET_COUNT || p->pyramid > 0 || p->prune_ratio >= 0 ||
                    p->plan.own_text);
    butler_session_free(session);
}

static void test_idle(void **state)
{
    (void)state;
    for_all(idle_law);
}

static void test_covered(void **state)
{
    (void)state;
    for_all(covered_law);
}

/* What was put off while a budget covered the text is the same when it is made for all tokens at once. Of the first layer that the
 * policy is for: what this one reads does not depend on the budget. */
static void late_law(const struct context *c, const char *policy)
{
    char text[512];
    if (c->n_prompt <= BUDGET) /* a model of a short context */
        return;
    struct butler_session *late = open_session(c, with_budget(policy, c->n_prompt, text)),
                          *early = open_session(c, with_budget(policy, BUDGET, text));
    const struct butler_policy *p = &late->policy;
    const int n_layers = late->shape.n_layers, n = c->n_prompt + 1;
    int layer = 0;
    while (layer < n_layers - 1 && !butler_policy_applies(p, layer))
        layer++;
    if (!c->from->glass && p->metric && butler_policy_defers(p, layer, n_layers, c->n_prompt) &&
        !butler_policy_defers(&early->policy, layer, n_layers, c->n_prompt)) {
        prefill(late, c->text, c->n_prompt);
        prefill(early, c->text, c->n_prompt);
        step(late, c->text[c->n_prompt]);
        step(early, c->text[c->n_prompt]);
        for (int h = 0; h < late->shape.n_kv_heads; h++) {
            const struct butler_kv_head *a = butler_kv_at(&late->kv, layer, h), *b = butler_kv_at(&early->kv, layer, h);
            if (late->kv.record_slots > 0)
                assert_memory_equal(a->records, b->records,
                                    (size_t)BUTLER_CEIL_DIV(n, late->kv.record_slots) * late->kv.record_bytes);
            if (a->value_norms)
                assert_memory_equal(a->value_norms, b->value_norms, (size_t)n * sizeof *a->value_norms);
        }
    }
    butler_session_free(late);
    butler_session_free(early);
}

static void test_late(void **state)
{
    (void)state;
    for_all(late_law);
}

/* What the last of n tokens read, and what was said that it would. Of what it read for the metric, what came with the new token
 * alone (its record) is not said. */
struct estimated {
    struct butler_stats stats;
    struct butler_policy_cost cost;
    uint64_t append_bytes; /* what the newest token's record alone reads */
};

static uint64_t append_bytes(const struct butler_session *session)
{
    const struct butler_metric *metric = session->policy.metric;
    const int last = butler_n_past(session) - 1;
    uint64_t bytes = 0;
    for (int l = 0; metric && metric->append && l < session->shape.n_layers; l++)
        for (int h = 0; butler_policy_applies(&session->policy, l) && h < session->shape.n_kv_heads &&
                        !butler_policy_defers(&session->policy, l, session->shape.n_layers, last + 1);
             h++) {
            struct butler_head_view view = butler_kv_view(&session->kv, l, h, last);
            view.bytes = &bytes;
            metric->append(&session->shape, session->policy.values, &view, last, 1);
        }
    return bytes;
}

static struct estimated estimate_step(const struct context *c, const char *policy, int n)
{
    struct estimated e = {.stats = {BUTLER_INIT(butler_stats)}, .cost = {BUTLER_INIT(butler_policy_cost)}};
    struct butler_error err;
    struct butler_session *session = open_session(c, policy);
    prefill(session, c->text, c->n_prompt);
    for (int i = c->n_prompt; i < n; i++) {
        butler_session_stats_reset(session);
        step(session, c->text[i]);
    }
    butler_session_stats(session, &e.stats);
    if (butler_policy_estimate(c->engine, policy, c->from->kv_type, n, &e.cost, &err) < 0)
        fail_msg("%s: %s", policy, err.message);
    if (!c->from->glass && !(session->policy.metric && session->policy.metric->predictor == 1))
        e.append_bytes = append_bytes(session);
    butler_session_free(session);
    return e;
}

static void estimate_law(const struct context *c, const char *policy)
{
    char text[512], covering[512];
    struct butler_session *session = open_session(c, with_budget(policy, BUDGET, text));
    const struct butler_policy *p = &session->policy;
    const int n = p->evict_at_prefill_only ? c->n_prompt + 1 : c->n_text;
    const struct estimated e = estimate_step(c, text, n), all = estimate_step(c, with_budget(policy, 100000, covering), n);
    /* The page being filled is read in part; a budget of pages may not be a whole number of them. What is decoded
     * after a prompt that was cut stays. */
    const uint64_t slack =
        (uint64_t)(session->shape.n_layers * session->shape.n_heads) * 4 * session->kv.row_bytes * (uint64_t)p->unit;
    assert_int_equal(e.cost.full_kv_bytes, e.stats.full_kv_bytes);
    if (p->every == 1)
        assert_int_equal(all.cost.kv_bytes, all.stats.kv_bytes);
    if (p->every == 1 && (p->unit > 1 || p->evict_at_prefill_only
                              ? e.cost.kv_bytes > e.stats.kv_bytes + slack || e.stats.kv_bytes > e.cost.kv_bytes + slack
                              : e.cost.kv_bytes != e.stats.kv_bytes))
        fail_msg("%s: a step of %d tokens reads %llu bytes, not %llu", text, n, (unsigned long long)e.stats.kv_bytes,
                 (unsigned long long)e.cost.kv_bytes);
    /* Where nothing is put off what comes with the new token falls out of the difference: the text is as long. */
    const bool defers = butler_policy_defers(p, session->shape.n_layers - 1, session->shape.n_layers, 1);
    const uint64_t read = e.stats.metric_bytes - (defers ? e.append_bytes : all.stats.upkeep_bytes);
    if (p->every == 1 && p->method == BUTLER_RETRIEVE && !(defers && c->from->glass) &&
        read != e.cost.metric_bytes - all.cost.upkeep_bytes)
        fail_msg("%s: a step of %d tokens scores by %llu bytes, not %llu", text, n, (unsigned long long)read,
                 (unsigned long long)(e.cost.metric_bytes - all.cost.upkeep_bytes));
    /* Of what evicts, keys that a step's scores read; what comes with the new token and goes with another is not said. */
    if (p->method == BUTLER_EVICT && (strncmp(policy, "keydiff", 7) == 0 || strncmp(policy, "knorm", 5) == 0) &&
        (e.cost.metric_bytes > e.stats.metric_bytes || 1.25 * (double)e.cost.metric_bytes < (double)e.stats.metric_bytes))
        fail_msg("%s: a step of %d tokens scores by %llu bytes, not %llu", text, n, (unsigned long long)e.stats.metric_bytes,
                 (unsigned long long)e.cost.metric_bytes);
    const bool own_cache = p->metric && p->metric->predictor == 1; /* the predictor's, which counts with the metric's */
    if (p->method != BUTLER_EVICT && !own_cache && e.cost.metric_memory != e.stats.metric_memory)
        fail_msg("%s: %d tokens: %llu bytes of records, not %llu", text, n, (unsigned long long)e.stats.metric_memory,
                 (unsigned long long)e.cost.metric_memory);
    butler_session_free(session);
}

static void test_estimate(void **state)
{
    (void)state;
    for_all(estimate_law);
}

/* A save and restore in the middle of the text changes nothing that follows. */
static void restore_law(const struct context *c, const char *policy)
{
    char text[512], path[] = "/tmp/butler-test-session-XXXXXX";
    struct butler_error err;
    const int fd = mkstemp(path), middle = (c->n_prompt + c->n_text) / 2;
    assert_true(fd >= 0);
    close(fd);
    struct butler_session *session = open_session(c, with_budget(policy, BUDGET, text)), *restored;
    prefill(session, c->text, c->n_prompt);
    for (int i = c->n_prompt; i < middle; i++)
        step(session, c->text[i]);
    if (butler_session_save(session, path, &err) < 0 || !(restored = butler_session_restore(c->engine, path, 0, &err)))
        fail_msg("%s: %s", text, err.message);
    unlink(path);
    assert_int_equal(butler_n_past(restored), middle);
    assert_same_logits(session, restored, text, middle - 1);
    for (int i = middle; i < c->n_text; i++) {
        int32_t a[N_TEXT], b[N_TEXT];
        step(session, c->text[i]);
        step(restored, c->text[i]);
        assert_same_logits(session, restored, text, i);
        const int n = butler_last_selection(session, 0, 0, a, N_TEXT);
        assert_int_equal(butler_last_selection(restored, 0, 0, b, N_TEXT), n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
    }
    butler_session_free(session);
    butler_session_free(restored);
}

static void test_restore(void **state)
{
    (void)state;
    for_all(restore_law);
}

/* A copy continues as the session it was made from, which goes its own way undisturbed. */
static void copy_law(const struct context *c, const char *policy)
{
    char text[512];
    struct butler_error err;
    struct butler_session *session = open_session(c, with_budget(policy, BUDGET, text)), *alone = open_session(c, text),
                          *copy = open_session(c, text);
    const int middle = (c->n_prompt + c->n_text) / 2;
    prefill(session, c->text, c->n_prompt);
    prefill(alone, c->text, c->n_prompt);
    prefill(copy, c->text + c->n_text - middle - 8, middle + 8);
    for (int i = c->n_prompt; i < middle; i++) {
        step(session, c->text[i]);
        step(alone, c->text[i]);
    }
    assert_int_equal(butler_session_copy(copy, session, &err), 0);
    for (int i = 0; i < c->n_text - middle; i++)
        step(copy, c->text[i]);
    assert_int_equal(butler_session_copy(copy, session, &err), 0);
    assert_int_equal(butler_n_past(copy), middle);
    assert_same_logits(session, copy, text, middle - 1);
    for (int i = middle; i < c->n_text; i++) {
        int32_t a[N_TEXT], b[N_TEXT];
        step(session, c->text[i]);
        step(alone, c->text[i]);
        step(copy, c->text[i]);
        assert_same_logits(alone, session, text, i);
        assert_same_logits(alone, copy, text, i);
        const int n = butler_last_selection(alone, 0, 0, a, N_TEXT);
        assert_int_equal(butler_last_selection(copy, 0, 0, b, N_TEXT), n);
        assert_memory_equal(a, b, (size_t)n * sizeof *a);
    }
    butler_session_free(session);
    butler_session_free(alone);
    butler_session_free(copy);
}

static void test_copy(void **state)
{
    (void)state;
    for_all(copy_law);
}

/* A fork goes on as a copy does; what it writes does not reach the session whose pages it shares. */
static void fork_law(const struct context *c, const char *policy)
{
    char text[512];
    struct butler_error err;
    struct butler_session *session = open_session(c, with_budget(policy, BUDGET, text)), *alone = open_session(c, text);
    prefill(session, c->text, c->n_prompt);
    prefill(alone, c->text, c->n_prompt);
    struct butler_session *fork = butler_session_fork(session, &err);
    if (!fork)
        fail_msg("%s: %s", text, err.message);
    for (int i = 0; i < c->n_text - c->n_prompt; i++) /* another text, to the end */
        step(fork, c->text[i]);
    for (int i = c->n_prompt; i < c->n_text; i++) {
        assert_same_logits(alone, session, text, i - 1);
        step(session, c->text[i]);
        step(alone, c->text[i]);
    }
    assert_same_logits(alone, session, text, c->n_text - 1);
    butler_session_free(session);
    butler_session_free(fork);
    butler_session_free(alone);
}

static void test_fork(void **state)
{
    (void)state;
    for_all(fork_law);
}

/* A session that goes back continues as one that never read what is gone; where it cannot, it says so and nothing changes. */
static void truncate_law(const struct context *c, const char *policy)
{
    char text[512];
    struct butler_error err = {0};
    struct butler_session *session = open_session(c, with_budget(policy, BUDGET, text)), *alone = open_session(c, text);
    const int middle = c->n_prompt - 7;
    prefill_part(session, c->text, middle, c->n_prompt);
    prefill_part(alone, c->text, middle, c->n_prompt);
    prefill_part(session, c->text + middle, c->n_prompt - middle, c->n_prompt);
    for (int i = c->n_prompt; i < c->n_prompt + 9; i++)
        step(session, c->text[i + 3]);
    const int code = butler_session_truncate(session, middle, &err);
    if (session->policy.method != BUTLER_EVICT && !(session->policy.metric && session->policy.metric->attention_window))
        assert_int_equal(code, 0);
    if (code < 0) {
        assert_int_equal(code, BUTLER_ERROR_ARGUMENT);
        assert_non_null(strstr(err.message, session->policy.name));
        assert_int_equal(butler_n_past(session), c->n_prompt + 9);
        assert_int_equal(butler_session_truncate(session, 0, &err), 0);
        butler_session_truncate(alone, 0, &err);
        prefill_part(session, c->text, middle, c->n_prompt);
        prefill_part(alone, c->text, middle, c->n_prompt);
    }
    prefill_part(session, c->text + middle, c->n_prompt - middle, c->n_prompt);
    prefill_part(alone, c->text + middle, c->n_prompt - middle, c->n_prompt);
    for (int i = c->n_prompt; i < c->n_text; i++) {
        assert_same_logits(alone, session, text, i - 1);
        step(session, c->text[i]);
        step(alone, c->text[i]);
    }
    butler_session_free(session);
    butler_session_free(alone);
}

static void test_truncate(void **state)
{
    (void)state;
    for_all(truncate_law);
}

static void test_copy_refused(void **state)
{
    (void)state;
    const struct context c = open_model(&models[1], 0);
    struct butler_error err = {0};
    struct butler_session *quest = open_session(&c, "quest:budget=32"), *full = open_session(&c, "full"),
                          *empty = open_session(&c, "full");
    assert_int_equal(butler_session_copy(quest, full, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "quest"));
    prefill(full, c.text, 20);
    assert_int_equal(butler_session_copy(full, empty, &err), 0);
    assert_int_equal(butler_n_past(full), 0);
    assert_null(butler_logits(full));
    butler_session_free(quest);
    butler_session_free(full);
    butler_session_free(empty);
    free_engine(c.engine);
}

/* A session that takes over a prompt from one of another policy goes on as if it had read it itself. False: it cannot. */
static bool adopts_from(const struct context *c, const char *policy, const char *donor_policy)
{
    char text[512], donor_text[512];
    struct butler_error err = {0};
    struct butler_session *alone = open_session(c, with_budget(policy, BUDGET, text)), *heir = open_session(c, text),
                          *donor = open_session(c, with_budget(donor_policy, BUDGET, donor_text));
    const int n = c->n_prompt - 1;
    const bool adopts = !heir->policy.prefill_evict && butler_session_can_adopt(&heir->policy, &donor->policy);
    if (adopts) {
        prefill_part(alone, c->text, n, c->n_prompt);
        prefill_part(donor, c->text, n, c->n_prompt);
        assert_int_equal(butler_session_adopt(heir, donor, &err), 0);
        prefill(alone, c->text + n, 1);
        prefill(heir, c->text + n, 1);
        assert_same_logits(alone, heir, text, n);
        for (int i = c->n_prompt; i < c->n_text; i++) {
            step(alone, c->text[i]);
            step(heir, c->text[i]);
            assert_same_logits(alone, heir, text, i);
        }
        struct butler_stats a = {BUTLER_INIT(butler_stats)}, b = {BUTLER_INIT(butler_stats)};
        butler_session_stats(alone, &a);
        butler_session_stats(heir, &b);
        assert_int_equal(a.kv_bytes, b.kv_bytes);
        assert_int_equal(a.metric_bytes, b.metric_bytes);
    }
    butler_session_free(alone);
    butler_session_free(heir);
    butler_session_free(donor);
    return adopts;
}

static void adopt_law(const struct context *c, const char *policy)
{
    struct butler_policy parsed;
    char text[512];
    assert_int_equal(butler_policy_parse(c->engine, with_budget(policy, BUDGET, text), &parsed, NULL), 0);
    if (!adopts_from(c, policy, "full") && !adopts_from(c, policy, policy))
        assert_true(parsed.prefill_evict || parsed.rope_in_cache || strstr(text, "tokenbutler"));
}

static void test_adopt(void **state)
{
    (void)state;
    for_all(adopt_law);
}

/* The same metric in another policy: what it has observed goes along. */
static void test_adopt_what_was_observed(void **state)
{
    static const char *const pairs[][2] = {
        {"h2o", "h2o+vatp"}, {"h2o+vatp", "h2o"}, {"h2o:sinks=4", "h2o+vatp"}, {"scissorhands+vatp", "scissorhands"}};
    (void)state;
    const struct context c = open_model(&models[1], 0);
    for (int i = 0; i < BUTLER_COUNT(pairs); i++)
        assert_true(adopts_from(&c, pairs[i][0], pairs[i][1]));
    free_engine(c.engine);
}

static void test_adopt_refused(void **state)
{
    (void)state;
    const struct context c = open_model(&models[1], 0);
    struct butler_error err = {0};
    struct butler_session *full = open_session(&c, "full"), *h2o = open_session(&c, "h2o:budget=16"),
                          *empty = open_session(&c, "full");
    prefill(full, c.text, 40);
    prefill(h2o, c.text, 40);
    assert_int_equal(butler_session_adopt(h2o, full, &err), BUTLER_ERROR_ARGUMENT); /* not empty, and it must see attention */
    assert_int_equal(butler_session_adopt(empty, h2o, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "h2o"));
    assert_int_equal(butler_n_past(empty), 0);
    butler_session_free(full);
    butler_session_free(h2o);
    butler_session_free(empty);
    free_engine(c.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),
        cmocka_unit_test(test_selection),
        cmocka_unit_test(test_covered),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_late),
        cmocka_unit_test(test_estimate),
        cmocka_unit_test(test_restore),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_fork),
        cmocka_unit_test(test_truncate),
        cmocka_unit_test(test_copy_refused),
        cmocka_unit_test(test_adopt),
        cmocka_unit_test(test_adopt_what_was_observed),
        cmocka_unit_test(test_adopt_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
