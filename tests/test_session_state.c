/* What belongs to a session beside its rows goes along: into copies, files and the library, and not further than it holds. Drafts
 * leave observations that the text alone has not; a prompt that is read sparsely goes on in the middle of a block. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "library_tests.h"
#include "engine/session.h"

static void check(int code, const struct butler_error *err)
{
    if (code < 0)
        fail_msg("%s", err->message);
}

static void draft(const struct context *c, struct butler_session *session, int n_rounds)
{
    struct butler_error err;
    const struct butler_draft_params params = {.n_max = 4, .fixed = true};
    struct butler_draft *drafts = butler_draft_new(session, &params, &err);
    struct butler_sampler *sampler = butler_sampler_new(NULL, &err);
    int32_t ids[16], id = butler_sample(sampler, butler_logits(session), c->model->hp.n_vocab, &err);
    for (int i = 0; i < n_rounds; i++) {
        const int n = butler_draft_step(drafts, sampler, id, ids, 5, &err);
        check(n, &err);
        id = ids[n - 1];
    }
    butler_draft_free(drafts);
    butler_sampler_free(sampler);
}

static struct butler_session *through_a_file(const struct context *c, const struct butler_session *session)
{
    struct butler_error err;
    char path[128];
    snprintf(path, sizeof path, "%s/session", c->folder);
    check(butler_session_save(session, path, &err), &err);
    struct butler_session *restored = butler_session_restore(c->engine, path, 0, &err);
    if (!restored)
        fail_msg("%s", err.message);
    return restored;
}

/* ------------------------------------------------------------------------------------------------- drafts */

/* A text that was cut back after drafts, and read on: no state of it is kept for sessions that evict. */
static void test_drafts_leave_no_state(void **state)
{
    static const char *const pairs[][2] = {{"h2o:method=retrieve,budget=64", "h2o:budget=64"},
                                           {"h2o+vatp:method=retrieve,budget=64", "h2o:budget=64"},
                                           {"softprune:method=retrieve,ratio=0.5", "softprune:ratio=0.3"}};
    (void)state;
    for (int i = 0; i < BUTLER_COUNT(pairs); i++)
        for (int drafts = 0; drafts < 2; drafts++) {
            struct context c;
            struct butler_error err;
            open_model(&c, &models[0], 0);
            struct butler_library *library = open_library(&c, 1 << 30);
            struct butler_session *first = open_session(&c, pairs[i][0], library, 0);
            read_text(first, c.text, 300);
            if (drafts) {
                draft(&c, first, 8);
                check(butler_session_truncate(first, 300, &err), &err);
            }
            check(butler_prefill(first, c.text + 300, 260, NULL, NULL, &err), &err);
            butler_session_free(first);
            struct butler_session *kept = open_session(&c, pairs[i][1], library, 0),
                                  *alone = open_session(&c, pairs[i][1], NULL, 0);
            const int n_known = read_text(kept, c.text, N_PROMPT);
            read_text(alone, c.text, N_PROMPT);
            if (!drafts)
                assert_true(n_known > 300);
            assert_same(&c, kept, alone, pairs[i][1]);
            butler_session_free(kept);
            butler_session_free(alone);
            butler_library_free(library);
            close_model(&c);
        }
}

static void test_drafting_goes_along(void **state)
{
    static const char *const policies[] = {"h2o:method=retrieve,budget=12", "tova:method=retrieve,budget=12",
                                           "snapkv:method=retrieve,budget=40", "scissorhands:method=retrieve,budget=12"};
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < BUTLER_COUNT(policies); i++) {
        struct butler_session *session = open_session(&c, policies[i], NULL, 0), *copy = open_session(&c, policies[i], NULL, 0);
        read_text(session, c.text, 100);
        draft(&c, session, 6);
        check(butler_session_copy(copy, session, &err), &err);
        struct butler_session *restored = through_a_file(&c, session), *fork = butler_session_fork(session, &err);
        assert_non_null(fork);
        assert_same_for(&c, fork, copy, policies[i], 200);
        assert_same_for(&c, session, restored, policies[i], 200);
        butler_session_free(session);
        butler_session_free(copy);
        butler_session_free(restored);
        butler_session_free(fork);
    }
    close_model(&c);
}

/* What evicts goes by all decode steps; a session that drafted observed only its checks. What observes nothing may take it over,
 * and go back in it. */
static void test_who_adopts_a_drafted_text(void **state)
{
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_session *session = open_session(&c, "h2o:method=retrieve,budget=640", NULL, 0),
                          *evicts = open_session(&c, "h2o:budget=20", NULL, 0),
                          *quest = open_session(&c, "quest:budget=64", NULL, 0);
    read_text(session, c.text, 100);
    check(butler_session_adopt(evicts, session, &err), &err); /* so far they are alike */
    check(butler_session_truncate(evicts, 0, &err), &err);
    draft(&c, session, 20);
    assert_int_equal(butler_session_adopt(evicts, session, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "not observed"));
    check(butler_session_adopt(quest, session, &err), &err);
    check(butler_session_truncate(quest, 90, &err), &err);
    butler_session_free(session);
    butler_session_free(evicts);
    butler_session_free(quest);
    close_model(&c);
}

/* Tokens that fit a pool of so many bytes behind a prompt of 50, exactly decoded or drafted. */
static int room(const struct context *c, uint64_t bytes, bool drafts)
{
    struct butler_error err;
    const struct butler_engine_params params = {.n_threads = 1, .kv_bytes = bytes};
    const struct butler_session_params own = {.n_ctx = N_CTX, .policy = "quest:budget=32,dense=0"};
    const struct butler_draft_params eager = {.n_max = 8, .fixed = true};
    struct butler_engine *engine = butler_engine_new(c->model, &params, &err);
    struct butler_session *session = butler_session_new(engine, &own, &err);
    struct butler_sampler *sampler = butler_sampler_new(NULL, &err);
    check(butler_prefill(session, c->text, 50, NULL, NULL, &err), &err);
    struct butler_draft *draft = butler_draft_new(session, &eager, &err);
    int32_t ids[16], id = butler_sample(sampler, butler_logits(session), c->model->hp.n_vocab, &err);
    for (int n = 1; n > 0;) {
        const struct butler_span span = {.session = session, .ids = &id, .n = 1, .exact = true};
        n = drafts ? butler_draft_step(draft, sampler, id, ids, 16, &err) : butler_run(engine, &span, 1, &err) == 0;
        if (n > 0)
            id = drafts ? ids[n - 1] : butler_sample(sampler, butler_logits(session), c->model->hp.n_vocab, &err);
    }
    assert_int_equal(err.code, BUTLER_ERROR_MEMORY);
    const int n_past = butler_n_past(session);
    butler_draft_free(draft);
    butler_sampler_free(sampler);
    butler_session_free(session);
    butler_engine_free(engine);
    return n_past;
}

static void test_drafts_fit_where_tokens_do(void **state)
{
    struct context c;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_session *session = open_session(&c, "full", NULL, 0);
    read_text(session, c.text, 50);
    butler_session_stats(session, &stats);
    butler_session_free(session);
    assert_int_equal(room(&c, stats.kv_memory, false), 64);
    assert_int_equal(room(&c, stats.kv_memory, true), 64);
    close_model(&c);
}

/* ------------------------------------------------------------------------------------------------- files and copies */

static void run_prompt(const struct context *c, struct butler_session *session, int from, int to)
{
    struct butler_error err;
    const struct butler_span span = {.session = session, .ids = c->text + from, .n = to - from, .prompt_end = N_PROMPT};
    check(butler_run(c->engine, &span, 1, &err), &err);
}

/* Saved anywhere in a prompt that is read sparsely. */
static void test_sparse_prompts_go_on(void **state)
{
    static const int cuts[] = {256, 257, 296, 319, 320, 383};
    static const char *const policies[] = {"quest:budget=64,page=16,dense=0,prompt=32", "fier:budget=64,dense=1,prompt=48,every=4"};
    struct context c;
    (void)state;
    for (int m = 0; m < 2; m++) {
        open_model(&c, &models[m], 0);
        for (int i = 0; i < BUTLER_COUNT(cuts) * BUTLER_COUNT(policies); i++) {
            const char *policy = policies[i % BUTLER_COUNT(policies)];
            const int cut = cuts[i / BUTLER_COUNT(policies)];
            struct butler_session *saved = open_session(&c, policy, NULL, 0), *whole = open_session(&c, policy, NULL, 0);
            run_prompt(&c, saved, 0, cut);
            run_prompt(&c, whole, 0, cut);
            struct butler_session *restored = through_a_file(&c, saved);
            run_prompt(&c, restored, cut, N_PROMPT);
            run_prompt(&c, whole, cut, N_PROMPT);
            assert_same(&c, restored, whole, policy);
            butler_session_free(saved);
            butler_session_free(whole);
            butler_session_free(restored);
        }
        close_model(&c);
    }
}

static void test_budgets_go_along(void **state)
{
    static const char policy[] = "quest:budget=256,dense=0";
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_session *session = open_session(&c, policy, NULL, 0), *copy = open_session(&c, policy, NULL, 0);
    check(butler_session_set_budget(session, 64, &err), &err);
    read_text(session, c.text, 500);
    check(butler_session_copy(copy, session, &err), &err);
    assert_same(&c, session, copy, policy);
    check(butler_session_set_policy(session, butler_policy_of(session), &err), &err); /* the text's own again */
    assert_true(session->policy.budget == 256);
    butler_session_free(session);
    butler_session_free(copy);
    close_model(&c);
}

/* Under a budget that held all, the latest queries were not observed: a smaller one cannot go by them. Where the steps so far fit
 * both, it can. */
static void test_a_smaller_budget_needs_observations(void **state)
{
    static const struct {
        const char *policy;
        bool allowed;
    } cases[] = {{"tova:budget=500", false},
                 {"scissorhands:budget=500,window=40", false},
                 {"snapkv:budget=500,rolling=1", false},
                 {"tova:budget=1.0", true},
                 {"h2o:budget=500", true}};
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < BUTLER_COUNT(cases); i++) {
        struct butler_session *session = open_session(&c, cases[i].policy, NULL, 0);
        check(butler_prefill(session, c.text, 100, NULL, NULL, &err), &err);
        for (int t = 100; t < 150; t++)
            check(butler_step(session, c.text[t], &err), &err);
        assert_int_equal(butler_session_set_budget(session, 64, &err), cases[i].allowed ? 0 : BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_session_set_budget(session, 600, &err), 0);
        butler_session_free(session);
    }
    close_model(&c);
}

static void test_small_things_go_along(void **state)
{
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_session *session = open_session(&c, "entropystop:entropy=100,after=1", NULL, 0); /* that the text ends here */
    read_text(session, c.text, 100);
    check(butler_step(session, 3, &err), &err);
    check(butler_step(session, 3, &err), &err);
    assert_true(butler_should_stop(session));
    struct butler_session *restored = through_a_file(&c, session);
    assert_true(butler_should_stop(restored));
    butler_session_free(session);
    butler_session_free(restored);

    session = open_session(&c, "h2o:budget=64", NULL, 0); /* a token that was taken out again */
    read_text(session, c.text, 100);
    check(butler_step(session, 3, &err), &err);
    check(butler_session_unread(session, &err), &err);
    butler_session_free(through_a_file(&c, session));
    butler_session_free(session);

    session = open_session(&c, "full", NULL, 0); /* logits of another text */
    read_text(session, c.text, 20);
    check(butler_fill(session, 30, 1, &err), &err);
    assert_null(butler_logits(session));
    butler_session_free(session);
    close_model(&c);
}

/* A receipt is of the text that the session has. */
static void test_receipts_of_copies(void **state)
{
    struct context c;
    struct butler_error err;
    struct butler_receipt receipt = {BUTLER_INIT(butler_receipt)};
    double attention[N_CTX], sum = 0;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_session *from = open_session(&c, "quest:budget=64,dense=0", NULL, 0),
                          *to = open_session(&c, "quest:budget=64,dense=0", NULL, 0);
    check(butler_session_keep_receipt(to, 1, &err), &err);
    read_text(to, c.text, 300);
    for (int i = 0; i < 5; i++)
        check(butler_step(to, 3, &err), &err);
    read_text(from, c.text, 100);
    check(butler_session_copy(to, from, &err), &err);
    assert_int_equal(butler_session_receipt(to, &receipt, NULL), 1);
    assert_int_equal(receipt.n_steps, 0);
    check(butler_step(to, 3, &err), &err);
    assert_int_equal(butler_session_receipt(to, &receipt, attention), 1);
    for (int i = 0; i < butler_n_past(to); i++)
        sum += attention[i];
    assert_int_equal(receipt.n_steps, 1);
    assert_true(sum > 0.99 && sum < 1.01);
    check(butler_session_truncate(to, 0, &err), &err);
    assert_int_equal(butler_session_receipt(to, &receipt, NULL), 1);
    assert_int_equal(receipt.n_steps, 0);
    butler_session_free(from);
    butler_session_free(to);
    close_model(&c);
}

/* ------------------------------------------------------------------------------------------------- what others find */

static void steer(void *user, int layer, int first, int n, const float *q, float *o)
{
    (void)user, (void)first, (void)q;
    for (int i = 0; layer == 0 && i < n; i++)
        o[i] += 1;
}

/* Rows of a text whose attention was changed are of no use to others, also when nobody changes it any more. */
static void test_steered_rows_stay_alone(void **state)
{
    struct context c;
    struct butler_error err;
    const struct butler_capture capture = {BUTLER_INIT(butler_capture), .attended = steer};
    (void)state;
    open_model(&c, &models[0], 1 << 24);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "full", library, 0);
    check(butler_session_set_capture(session, &capture, &err), &err);
    check(butler_prefill(session, c.text, 300, NULL, NULL, &err), &err);
    check(butler_session_set_capture(session, NULL, &err), &err);
    check(butler_prefill(session, c.text + 300, 100, NULL, NULL, &err), &err);
    butler_session_free(session);
    session = open_session(&c, "full", library, 0);
    assert_int_equal(read_text(session, c.text, 400), 0);
    butler_session_free(session);
    butler_library_free(library);
    close_model(&c);
}

/* Text that only the prefix cache holds gives way to a session's. */
static void test_the_prefix_cache_gives_way(void **state)
{
    struct context c;
    struct butler_error err;
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_session *session = open_session(&c, "full", NULL, 0);
    read_text(session, c.text, 320);
    butler_session_stats(session, &stats);
    butler_session_free(session);
    const struct butler_engine_params params = {
        .n_threads = 1, .kv_bytes = stats.kv_memory * 3 / 2, .prefix_bytes = stats.kv_memory};
    const struct butler_session_params own = {.n_ctx = N_CTX};
    struct butler_engine *engine = butler_engine_new(c.model, &params, &err);
    for (int i = 0; i < 4; i++) {
        session = butler_session_new(engine, &own, &err);
        check(butler_prefill(session, c.text + i, 320, NULL, NULL, &err), &err);
        butler_session_free(session);
    }
    session = butler_session_new(engine, &own, &err);
    assert_true(butler_session_find_prefix(session, c.text + 3, 320, &err) > 300); /* of the latest text all is there */
    butler_session_free(session);
    butler_engine_free(engine);
    close_model(&c);
}

/* ------------------------------------------------------------------------------------------------- callbacks */

static bool until_third(void *user, int position, const float *row)
{
    (void)row;
    ++*(int *)user;
    return position < 2;
}

static struct butler_session *open_one(const struct context *c, const char *policy)
{
    struct butler_error err;
    struct butler_session *session =
        butler_session_new(c->engine, &(struct butler_session_params){.n_ctx = 250, .policy = policy}, &err);
    if (!session)
        fail_msg("%s", err.message);
    return session;
}

static void decode(const struct context *c, struct butler_session *session, int n)
{
    struct butler_error err;
    for (int i = 0; i < n; i++)
        check(butler_step(session, c->text[butler_n_past(session)], &err), &err);
}

/* Decode steps that a large budget kept from being observed are not evicted by, whoever sets a smaller one. */
static void test_steps_that_were_not_observed(void **state)
{
    static const char *const policies[] = {"tova:budget=%d", "scissorhands:budget=%d,window=40",
                                           "snapkv:budget=%d,rolling=1,window=16", "h2o:budget=%d,half_life=1"};
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < BUTLER_COUNT(policies); i++) {
        char large[96], small[96], path[160];
        snprintf(large, sizeof large, policies[i], 200);
        snprintf(small, sizeof small, policies[i], 90);
        struct butler_session *donor = open_one(&c, large), *heir = open_one(&c, small);
        check(butler_prefill(donor, c.text, 60, NULL, NULL, &err), &err);
        assert_int_equal(butler_session_adopt(heir, donor, &err), 0); /* prompts are observed */
        butler_session_free(heir);
        heir = open_one(&c, small);
        decode(&c, donor, 28);
        if (i > 0) { /* tova goes by the last query alone */
            check(butler_prefill(donor, c.text + 88, 2, NULL, NULL, &err), &err);
            assert_int_equal(butler_session_set_budget(donor, 90, &err), BUTLER_ERROR_ARGUMENT);
        } else {
            decode(&c, donor, 2);
        }
        assert_int_equal(butler_session_adopt(heir, donor, &err), BUTLER_ERROR_ARGUMENT);
        butler_session_free(donor);
        donor = open_one(&c, small); /* a file has the policy's own budget */
        check(butler_session_set_budget(donor, 200, &err), &err);
        check(butler_prefill(donor, c.text, 60, NULL, NULL, &err), &err);
        decode(&c, donor, 30);
        snprintf(path, sizeof path, "%s/unobserved", c.folder);
        check(butler_session_save(donor, path, &err), &err);
        assert_null(butler_session_restore(c.engine, path, 0, &err));
        assert_non_null(strstr(err.message, "larger budget"));
        check(butler_session_truncate(donor, 60, &err), &err); /* no step is left */
        assert_int_equal(butler_session_set_budget(donor, 45, &err), 0);
        butler_session_free(donor);
        butler_session_free(heir);
    }
    close_model(&c);
}

/* Steps that were observed later do not make up for those that were not. */
static void test_files_know_what_was_skipped(void **state)
{
    static const char *const policies[] = {"snapkv:rolling=1,window=16,budget=45", "h2o:half_life=1,budget=45"};
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < BUTLER_COUNT(policies); i++) {
        char path[160];
        struct butler_session *session = open_one(&c, policies[i]), *heir = open_one(&c, policies[i]);
        check(butler_session_set_budget(session, 75, &err), &err);
        check(butler_prefill(session, c.text, 20, NULL, NULL, &err), &err);
        decode(&c, session, 53);
        assert_int_equal(butler_session_adopt(heir, session, &err), BUTLER_ERROR_ARGUMENT);
        snprintf(path, sizeof path, "%s/skipped", c.folder);
        check(butler_session_save(session, path, &err), &err);
        assert_null(butler_session_restore(c.engine, path, 0, &err));
        butler_session_free(session);
        butler_session_free(heir);
    }
    close_model(&c);
}

/* A policy that cuts prompts alone goes by their queries, whoever read the text. */
static void test_prompts_are_cut_by_their_own_queries(void **state)
{
    static const char *const pairs[][2] = {{"h2o:budget=200", "h2o:budget=70,rolling=0"},
                                           {"snapkv:budget=200,rolling=1,window=16", "snapkv:budget=70,window=16"}};
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < BUTLER_COUNT(pairs); i++) {
        struct butler_session *donor = open_one(&c, pairs[i][0]), *heir = open_one(&c, pairs[i][1]),
                              *alone = open_one(&c, pairs[i][1]);
        for (int k = 0; k < 2; k++) {
            check(butler_prefill(k ? alone : donor, c.text, 50, NULL, NULL, &err), &err);
            decode(&c, k ? alone : donor, 15);
        }
        assert_int_equal(butler_session_adopt(heir, donor, &err), 0);
        for (int k = 0; k < 2; k++) {
            check(butler_prefill(k ? alone : heir, c.text + 65, 10, NULL, NULL, &err), &err);
            decode(&c, k ? alone : heir, 30);
        }
        assert_memory_equal(butler_logits(heir), butler_logits(alone), (size_t)c.model->hp.n_vocab * sizeof(float));
        butler_session_free(donor);
        butler_session_free(heir);
        butler_session_free(alone);
    }
    close_model(&c);
}

/* With a pyramid a low layer's budget can cover a longer text and not a shorter one, whose records are then wanted. */
static void test_back_where_a_pyramid_selects(void **state)
{
    static const char *const policies[] = {
        "quest:budget=60,recent=20,pyramid=5,dense=0,sinks=0,page=4", "oracle+vatp:budget=60,recent=20,pyramid=5,dense=0,sinks=0",
        "fier:budget=60,recent=20,pyramid=5,dense=0,sinks=0", "knorm:method=retrieve,budget=60,recent=20,pyramid=5"};
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < BUTLER_COUNT(policies); i++) {
        struct butler_session *back = open_one(&c, policies[i]), *alone = open_one(&c, policies[i]);
        check(butler_prefill(back, c.text, 85, NULL, NULL, &err), &err);
        check(butler_session_truncate(back, 70, &err), &err);
        check(butler_prefill(alone, c.text, 70, NULL, NULL, &err), &err);
        for (int k = 0; k < 40; k++) {
            decode(&c, back, 1);
            decode(&c, alone, 1);
            assert_memory_equal(butler_logits(back), butler_logits(alone), (size_t)c.model->hp.n_vocab * sizeof(float));
        }
        butler_session_free(back);
        butler_session_free(alone);
    }
    close_model(&c);
}

/* A callback that stops is told so, in whichever pass it was called. */
static void test_callbacks_that_stop(void **state)
{
    struct context c;
    struct butler_error err;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int i = 0; i < 4; i++) { /* logits or hidden states, one pass or several */
        int n_calls = 0;
        struct butler_session *session = open_session(&c, "full", NULL, 0);
        struct butler_span span = {
            .struct_size = sizeof span, .session = session, .ids = c.text, .n = i & 1 ? 10 : 300, .user = &n_calls};
        span.prompt_end = span.n;
        *(i & 2 ? &span.hidden : &span.each) = until_third;
        assert_int_equal(butler_run(c.engine, &span, 1, &err), BUTLER_ERROR_CANCELLED);
        assert_int_equal(n_calls, 3);
        butler_session_free(session);
    }
    close_model(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_drafts_leave_no_state),
        cmocka_unit_test(test_drafting_goes_along),
        cmocka_unit_test(test_who_adopts_a_drafted_text),
        cmocka_unit_test(test_drafts_fit_where_tokens_do),
        cmocka_unit_test(test_sparse_prompts_go_on),
        cmocka_unit_test(test_budgets_go_along),
        cmocka_unit_test(test_a_smaller_budget_needs_observations),
        cmocka_unit_test(test_small_things_go_along),
        cmocka_unit_test(test_receipts_of_copies),
        cmocka_unit_test(test_steered_rows_stay_alone),
        cmocka_unit_test(test_the_prefix_cache_gives_way),
        cmocka_unit_test(test_steps_that_were_not_observed),
        cmocka_unit_test(test_files_know_what_was_skipped),
        cmocka_unit_test(test_prompts_are_cut_by_their_own_queries),
        cmocka_unit_test(test_back_where_a_pyramid_selects),
        cmocka_unit_test(test_callbacks_that_stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
