/* Drafts with exact checks: the tokens, the logits and the cache are those of dense decoding, bit for bit, whatever drafts, however
 * many, and whatever happens to the session in between. */
#include <math.h>
#include <unistd.h>

#include "fixtures.h"
#include "random_predictor.h"
#include "engine/session.h"
#include "kernels/kernels.h"

enum { N_PROMPT = 24, N_NEW = 38, N_CTX = 64, MOST = 16 };

static struct butler_session *open_session(struct butler_engine *engine, const char *policy, enum butler_kv_type type, int n_ctx)
{
    struct butler_error err = {0};
    const struct butler_session_params params = {.n_ctx = n_ctx, .policy = policy, .kv_type = type, .seed = 3};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

static struct butler_draft *open_draft(struct butler_session *session, int n_max, bool fixed)
{
    struct butler_error err = {0};
    const struct butler_draft_params params = {.n_max = n_max, .fixed = fixed};
    struct butler_draft *draft = butler_draft_new(session, &params, &err);
    if (!draft)
        fail_msg("%s", err.message);
    return draft;
}

static struct butler_sampler *open_sampler(float temperature)
{
    const struct butler_sampler_params params = {
        .temperature = temperature, .top_k = 20, .seed = 11, .repeat_penalty = 1.1f, .presence_penalty = 0.2f};
    struct butler_sampler *sampler = butler_sampler_new(&params, NULL);
    assert_non_null(sampler);
    return sampler;
}

/* Rows of keys and values of all tokens, of both caches. */
enum { ROW_BYTES = 1024 };
static void same_caches(const struct butler_session *a, const struct butler_session *b)
{
    for (int i = 0; i < a->kv.n_layers * a->kv.n_kv_heads; i++) {
        const struct butler_kv_head *x = &a->kv.heads[i], *y = &b->kv.heads[i];
        const int first = BUTLER_MAX(x->n_released, y->n_released) * BUTLER_EXTENT_TOKENS;
        assert_int_equal(x->n_slots, y->n_slots);
        assert_int_equal(x->n_released, y->n_released);
        for (int slot = first; slot < x->n_slots; slot++) {
            unsigned char of_x[ROW_BYTES], of_y[ROW_BYTES];
            assert_true(2 * a->kv.row_bytes <= ROW_BYTES);
            a->kv.backend->download(a->kv.backend, of_x, butler_kv_row_address(&a->kv, x, slot), 2 * a->kv.row_bytes);
            b->kv.backend->download(b->kv.backend, of_y, butler_kv_row_address(&b->kv, y, slot), 2 * b->kv.row_bytes);
            assert_memory_equal(of_x, of_y, 2 * a->kv.row_bytes);
        }
    }
}

/* The text that both write, the dense one at first: its tokens, and after each the digest of nothing but the logits themselves. */
struct text {
    int32_t ids[N_NEW + MOST];
    float *logits; /* [N_NEW + MOST][n_vocab]: row i after ids[0 .. i) are held */
    int n_vocab;
};

static void begin(struct butler_session *session, int depth)
{
    int32_t ids[N_PROMPT];
    uint64_t random = 5;
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)session->model->hp.n_vocab);
    if (depth > 0)
        assert_int_equal(butler_fill(session, depth, 9, NULL), 0);
    assert_int_equal(butler_prefill(session, ids, N_PROMPT, NULL, NULL, NULL), 0);
}

static void write_densely(struct butler_session *session, float temperature, struct text *text)
{
    struct butler_sampler *sampler = open_sampler(temperature);
    text->n_vocab = session->model->hp.n_vocab;
    text->logits = malloc((N_NEW + MOST) * (size_t)text->n_vocab * sizeof *text->logits);
    for (int i = 0; i < N_NEW; i++) {
        memcpy(text->logits + (size_t)i * (size_t)text->n_vocab, butler_logits(session), (size_t)text->n_vocab * sizeof(float));
        text->ids[i] = butler_sample(sampler, butler_logits(session), text->n_vocab, NULL);
        assert_true(text->ids[i] >= 0);
        if (i + 1 < N_NEW)
            assert_int_equal(butler_step(session, text->ids[i], NULL), 0);
    }
    butler_sampler_free(sampler);
}

/* The session, saved and restored. */
static struct butler_session *reopened(struct butler_session *session)
{
    struct butler_error err = {0};
    char path[] = "/tmp/butler_draft_XXXXXX";
    struct butler_engine *engine = session->engine;
    const int file = mkstemp(path), n_ctx = butler_n_ctx(session);
    assert_true(file >= 0);
    close(file);
    if (butler_session_save(session, path, &err) < 0)
        fail_msg("%s", err.message);
    butler_session_free(session);
    session = butler_session_restore(engine, path, n_ctx, &err);
    if (!session)
        fail_msg("%s", err.message);
    unlink(path);
    return session;
}

struct count {
    uint64_t drafted, accepted;
};

/* Drafts of another number in every step, and the session saved and restored once, compared with the dense text. */
static struct butler_session *write_by_drafts(struct butler_session *session, float temperature, bool fixed,
                                              const struct text *text, struct count *count)
{
    struct butler_sampler *sampler = open_sampler(temperature);
    struct butler_error err = {0};
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    int32_t ids[MOST];
    const int n_prompt = butler_n_past(session);
    bool restored = false;
    int n_known = 1;
    int32_t id = butler_sample(sampler, butler_logits(session), text->n_vocab, NULL);
    assert_int_equal(id, text->ids[0]);
    struct butler_draft *draft = open_draft(session, 4, fixed);
    for (int step = 1; n_known < N_NEW; step++) {
        const int most = BUTLER_MIN(N_NEW - n_known, MOST);
        const int n = butler_draft_step(draft, sampler, id, ids, most, &err);
        if (n < 1 || n > most)
            fail_msg("%s: step %d gives %d of %d: %s", session->policy.text, step, n, most, err.message);
        for (int i = 0; i < n; i++)
            if (ids[i] != text->ids[n_known + i])
                fail_msg("%s: token %d is %d, densely %d", session->policy.text, n_known + i, ids[i], text->ids[n_known + i]);
        n_known += n;
        id = ids[n - 1];
        assert_int_equal(butler_n_past(session), n_prompt + n_known - 1);
        assert_memory_equal(butler_logits(session), text->logits + (size_t)(n_known - 1) * (size_t)text->n_vocab,
                            (size_t)text->n_vocab * sizeof(float));
        if (!restored && n_known > N_NEW / 2) {
            butler_session_stats(session, &stats);
            count->drafted += stats.n_drafted;
            count->accepted += stats.n_accepted;
            session = reopened(session);
            restored = true;
        }
        butler_draft_free(draft);
        draft = open_draft(session, 1 + step * 5 % (MOST - 1), fixed);
    }
    butler_session_stats(session, &stats);
    count->drafted += stats.n_drafted;
    count->accepted += stats.n_accepted;
    butler_draft_free(draft);
    butler_sampler_free(sampler);
    return session;
}

static struct count compare(struct butler_engine *engine, const char *policy, enum butler_kv_type type, int depth,
                            float temperature)
{
    struct butler_session *dense = open_session(engine, "full", type, depth + N_CTX);
    struct butler_session *session = open_session(engine, policy, type, depth + N_CTX);
    struct text text;
    struct count count = {0};
    begin(dense, depth);
    begin(session, depth);
    write_densely(dense, temperature, &text);
    session = write_by_drafts(session, temperature, true, &text, &count);
    butler_session_release_windows(session); /* as the next step would */
    same_caches(dense, session);
    butler_session_free(session);
    butler_session_free(dense);
    free(text.logits);
    return count;
}

/* ------------------------------------------------------------------------------------------------ equality */

static struct butler_engine *open_engine(const char *name, int n_threads, const char *isa)
{
    char path[FIXTURE_PATH];
    fixture_path(path, name);
    return load_engine(path, n_threads, isa);
}

/* Architectures: rotations, biases, norms, windows, sinks, experts, learned positions. */
static void test_models(void **state)
{
    static const char *const models[] = {"models/llama-gqa.gguf", "models/llama-mqa.gguf", "models/llama-q4_k.gguf",
                                         "models/qwen2.gguf",     "models/qwen3.gguf",     "models/phi3-partial.gguf",
                                         "models/gemma3.gguf",    "models/gpt-oss.gguf",   "models/gpt2.gguf"};
    struct count sum = {0};
    (void)state;
    for (int m = 0; m < BUTLER_COUNT(models); m++)
        for (int n_threads = 1; n_threads <= 2; n_threads++) {
            struct butler_engine *engine = open_engine(models[m], n_threads, NULL);
            const bool q8_0 = engine->model->hp.head_dim % 32 == 0;
            for (int drawn = 0; drawn < 2; drawn++) {
                const struct count count = compare(engine, "verified:budget=16,sinks=1,recent=4",
                                                   n_threads == 2 && q8_0 ? BUTLER_KV_Q8_0 : BUTLER_KV_F16, 0, drawn ? 0.9f : 0);
                sum.drafted += count.drafted;
                sum.accepted += count.accepted;
            }
            free_engine(engine);
        }
    /* Some drafts were right and some were not. */
    assert_true(sum.accepted > sum.drafted / 50 && sum.accepted < sum.drafted);
}

/* Every policy that retrieves, with predictors and without, one that repeats its selections, pages, heads that select together; and
 * the metrics of those that evict, which see prompts and checks. */
static void test_policies(void **state)
{
    static const char *const policies[] = {"verified:budget=24",
                                           "quest:budget=32,page=8,dense=0",
                                           "tinyserve:budget=32,page=8",
                                           "pagestats:budget=32,page=8",
                                           "fier:budget=24,dense=1",
                                           "layer0:budget=24",
                                           "prevlayer:budget=24",
                                           "oracle:budget=24,every=4",
                                           "random:budget=24",
                                           "oracle:budget=24,share=layer",
                                           "oracle:mass=0.8,share=query",
                                           "knorm:method=retrieve,budget=24",
                                           "streaming:method=retrieve,budget=24",
                                           "h2o:method=retrieve,budget=24",
                                           "h2o+vatp:method=retrieve,budget=24,sinks=2",
                                           "h2o:method=retrieve,budget=24,half_life=8",
                                           "scissorhands:method=retrieve,budget=24,window=30",
                                           "snapkv:method=retrieve,budget=40",
                                           "pyramidkv:method=retrieve,budget=40",
                                           "tova:method=retrieve,budget=24",
                                           "softprune:method=retrieve,ratio=0.7,min=8",
                                           "tokenbutler:budget=24",
                                           "tokenbutler2:budget=16,on_top=0,sinks=1,recent=4"};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 2, NULL);
    (void)state;
    attach_both(engine, false);
    for (int i = 0; i < BUTLER_COUNT(policies); i++)
        compare(engine, policies[i], BUTLER_KV_F16, 0, 0);
    free_engine(engine);
}

/* Texts of more than a slice of attention, on every ISA: what tokens share of the cache, and what each reads alone. */
static void test_long_texts(void **state)
{
    static const char *const models[] = {"models/llama-gqa.gguf", "models/llama-mha.gguf", "models/gemma3.gguf"};
    (void)state;
    for (const char *const *isa = butler_kernels_available(); *isa; isa++)
        for (int m = 0; m < BUTLER_COUNT(models); m++) {
            struct butler_engine *engine = open_engine(models[m], 2, *isa);
            compare(engine, "verified:budget=64,recent=16", BUTLER_KV_F16, 2020, 0);
            compare(engine, "quest:budget=64", BUTLER_KV_F32, 1000, 0.7f);
            free_engine(engine);
        }
}

/* The number of drafts that times call for: the same text. */
static void test_chosen_number(void **state)
{
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 1, NULL);
    struct butler_session *dense = open_session(engine, "full", BUTLER_KV_F16, N_CTX);
    struct butler_session *session = open_session(engine, "verified:budget=24", BUTLER_KV_F16, N_CTX);
    struct text text;
    struct count count = {0};
    int32_t ids[MOST];
    (void)state;
    begin(dense, 0);
    begin(session, 0);
    write_densely(dense, 0, &text);
    struct butler_sampler *sampler = open_sampler(0);
    struct butler_draft *draft = open_draft(session, 0, false);
    ids[0] = butler_sample(sampler, butler_logits(session), text.n_vocab, NULL);
    for (int n = 1, m; n < N_NEW; n += m) {
        m = butler_draft_step(draft, sampler, ids[0], ids, BUTLER_MIN(N_NEW - n, MOST), NULL);
        assert_true(m > 0);
        assert_memory_equal(ids, text.ids + n, (size_t)m * sizeof *ids);
        ids[0] = ids[m - 1];
    }
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(session, &stats);
    count.drafted = stats.n_drafted;
    assert_true(count.drafted >= 2); /* it has tried */
    assert_int_equal(stats.n_decode, N_NEW - 1);
    butler_session_release_windows(session);
    same_caches(dense, session);
    butler_draft_free(draft);
    butler_sampler_free(sampler);
    butler_session_free(session);
    butler_session_free(dense);
    free(text.logits);
    free_engine(engine);
}

/* Pearson's statistic of counts[n] against the softmax of logits[n] at a temperature, as standard deviations above its mean. Tokens
 * of which fewer than five are expected count as one. */
static double excess(const int *counts, int n_draws, const float *logits, int n, float temperature)
{
    double sum = 0, statistic = 0, rare = 0, n_rare = 0;
    int classes = 0;
    float max = logits[0];
    for (int i = 1; i < n; i++)
        max = fmaxf(max, logits[i]);
    for (int i = 0; i < n; i++)
        sum += exp((logits[i] - max) / temperature);
    for (int i = 0; i < n; i++) {
        const double expected = n_draws * exp((logits[i] - max) / temperature) / sum;
        if (expected < 5) {
            rare += expected;
            n_rare += counts[i];
            continue;
        }
        statistic += (counts[i] - expected) * (counts[i] - expected) / expected;
        classes++;
    }
    if (rare >= 5) {
        statistic += (n_rare - rare) * (n_rare - rare) / rare;
        classes++;
    }
    assert_true(classes > 10);
    return (statistic - (classes - 1)) / sqrt(2 * (classes - 1));
}

/* Draws are those of the softmax: of the sampler alone, and behind drafts, some of which are wrong. Each draw behind drafts is that
 * of another sampler with the same seed from dense logits. */
static void test_distribution(void **state)
{
#ifdef butler_engine_new /* test_glass_draft.c: draws do not depend on whose memory it is */
    if (test_share() < 1)
        skip();
#endif
    enum { N_DRAWS = 100000, FEWEST = 5000 };
    const int n_rounds = BUTLER_MAX(share_of(10000), FEWEST);
    static const float temperature = 0.3f;
    static const struct butler_sampler_params params = {.temperature = temperature, .seed = 3};
    struct butler_engine *engine = open_engine("models/gemma3.gguf", 1, NULL);
    struct butler_session *session = open_session(engine, "random:budget=2", BUTLER_KV_F16, N_CTX);
    struct butler_draft *draft = open_draft(session, 1, true);
    struct butler_sampler *sampler = butler_sampler_new(&params, NULL), *other = butler_sampler_new(&params, NULL);
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    const int n_vocab = engine->model->hp.n_vocab, first = 7;
    int *counts = calloc((size_t)n_vocab, sizeof *counts), ids[2], n_past;
    float *logits = malloc((size_t)n_vocab * sizeof *logits);
    (void)state;
    begin(session, 0);
    n_past = butler_n_past(session);
    const struct butler_span exact = {.session = session, .ids = &first, .n = 1, .exact = true};
    assert_int_equal(butler_run(engine, &exact, 1, NULL), 0);
    memcpy(logits, butler_logits(session), (size_t)n_vocab * sizeof *logits);
    for (int i = 0; i < N_DRAWS; i++)
        counts[butler_sample(other, logits, n_vocab, NULL)]++;
    assert_true(fabs(excess(counts, N_DRAWS, logits, n_vocab, temperature)) < 5);
    /* The test would see one other temperature. */
    assert_true(excess(counts, N_DRAWS, logits, n_vocab, 0.9f * temperature) > 10);

    butler_sampler_free(other);
    other = butler_sampler_new(&params, NULL);
    memset(counts, 0, (size_t)n_vocab * sizeof *counts);
    for (int i = 0; i < n_rounds; i++) {
        assert_int_equal(butler_session_truncate(session, n_past, NULL), 0);
        const int n = butler_draft_step(draft, sampler, first, ids, 2, NULL);
        assert_true(n == 1 || n == 2);
        assert_int_equal(butler_sample(other, logits, n_vocab, NULL), ids[0]);
        if (n == 2)
            assert_int_equal(butler_sample(other, butler_logits(session), n_vocab, NULL), ids[1]);
        counts[ids[0]]++;
    }
    assert_true(fabs(excess(counts, n_rounds, logits, n_vocab, temperature)) < 5);
    butler_session_stats(session, &stats);
    print_message("%llu of %llu drafts were right\n", (unsigned long long)stats.n_accepted, (unsigned long long)stats.n_drafted);
    assert_true(stats.n_accepted > FEWEST / 100 && stats.n_drafted > stats.n_accepted + FEWEST / 100);
    free(logits);
    free(counts);
    butler_sampler_free(other);
    butler_sampler_free(sampler);
    butler_draft_free(draft);
    butler_session_free(session);
    free_engine(engine);
}

/* A text that ends between the tokens of a step: what stays is what fewer drafts would have given. */
static void test_keep(void **state)
{
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 1, NULL);
    struct butler_session *dense = open_session(engine, "full", BUTLER_KV_F16, N_CTX);
    struct text text;
    (void)state;
    begin(dense, 0);
    write_densely(dense, 0.5f, &text);
    for (int n_kept = 0; n_kept <= 3; n_kept++) {
        struct butler_session *session = open_session(engine, "oracle:budget=100", BUTLER_KV_F16, N_CTX);
        struct butler_sampler *sampler = open_sampler(0.5f);
        struct butler_draft *draft = open_draft(session, 8, true);
        struct butler_stats stats = {BUTLER_INIT(butler_stats)};
        int32_t ids[MOST];
        begin(session, 0);
        ids[0] = butler_sample(sampler, butler_logits(session), text.n_vocab, NULL);
        /* The whole text fits the budget, so that every draft is right. */
        assert_int_equal(butler_draft_step(draft, sampler, ids[0], ids, MOST, NULL), 9);
        assert_int_equal(butler_draft_keep(draft, sampler, -1, NULL), BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_draft_keep(draft, sampler, 10, NULL), BUTLER_ERROR_ARGUMENT);
        assert_int_equal(butler_draft_keep(draft, sampler, n_kept, NULL), 0);
        const int n_held = BUTLER_MAX(n_kept, 1);
        butler_session_stats(session, &stats);
        assert_int_equal(butler_n_past(session), N_PROMPT + n_held);
        assert_int_equal(stats.n_decode, n_held);
        assert_memory_equal(butler_logits(session), text.logits + (size_t)n_held * (size_t)text.n_vocab,
                            (size_t)text.n_vocab * sizeof(float));
        /* The text goes on as if nothing had been taken back. */
        if (n_kept == 0)
            ids[0] = butler_sample(sampler, butler_logits(session), text.n_vocab, NULL);
        assert_int_equal(ids[n_held - 1], text.ids[n_held]);
        assert_int_equal(butler_draft_step(draft, sampler, ids[n_held - 1], ids, 4, NULL), 4);
        assert_memory_equal(ids, text.ids + n_held + 1, 4 * sizeof *ids);
        butler_draft_free(draft);
        butler_sampler_free(sampler);
        butler_session_free(session);
    }
    butler_session_free(dense);
    free(text.logits);
    free_engine(engine);
}

/* Where a window has just passed the end of some pages, tokens can still be taken back. */
static void test_keep_behind_a_window(void **state)
{
    struct butler_engine *engine = open_engine("models/gemma3.gguf", 1, NULL);
    (void)state;
    for (int depth = BUTLER_WINDOW_CHUNK - 16; depth < BUTLER_WINDOW_CHUNK; depth += 3) {
        struct butler_session *session = open_session(engine, "oracle:budget=999", BUTLER_KV_F16, depth + N_CTX);
        struct butler_sampler *sampler = open_sampler(0);
        struct butler_draft *draft = open_draft(session, 15, true);
        struct butler_error err = {0};
        int32_t ids[MOST];
        begin(session, depth);
        ids[0] = butler_sample(sampler, butler_logits(session), engine->model->hp.n_vocab, NULL);
        assert_true(butler_draft_step(draft, sampler, ids[0], ids, MOST, NULL) > 0);
        if (butler_draft_keep(draft, sampler, 0, &err) < 0)
            fail_msg("%d tokens: %s", depth, err.message);
        butler_draft_free(draft);
        butler_sampler_free(sampler);
        butler_session_free(session);
    }
    free_engine(engine);
}

/* ------------------------------------------------------------------------------------------- exact spans */

/* Exact spans of several sessions and prompts in one call give each what it gets alone. */
static void test_exact_spans(void **state)
{
    enum { N = 5 };
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 2, NULL);
    struct butler_session *sessions[3], *dense = open_session(engine, "full", BUTLER_KV_F16, 1200 + N_CTX);
    const int32_t ids[N] = {7, 3, 90, 11, 2};
    const size_t n_vocab = (size_t)engine->model->hp.n_vocab;
    (void)state;
    begin(dense, 1200);
    for (int i = 0; i < N; i++)
        assert_int_equal(butler_step(dense, ids[i], NULL), 0);
    for (int i = 0; i < 3; i++) {
        sessions[i] = open_session(engine, i == 1 ? "quest:budget=32" : "verified:budget=32", BUTLER_KV_F16, 1200 + N_CTX);
        if (i < 2)
            begin(sessions[i], 1200);
    }
    const struct butler_span spans[] = {{.session = sessions[0], .ids = ids, .n = N, .exact = true},
                                        {.session = sessions[1], .ids = ids, .n = N, .exact = true},
                                        {.session = sessions[2], .ids = ids, .n = N, .prompt_end = N}};
    assert_int_equal(butler_run(engine, spans, 3, NULL), 0);
    for (int i = 0; i < 2; i++) {
        assert_memory_equal(butler_logits(sessions[i]), butler_logits(dense), n_vocab * sizeof(float));
        same_caches(dense, sessions[i]);
    }
    for (int i = 0; i < 3; i++)
        butler_session_free(sessions[i]);
    butler_session_free(dense);
    free_engine(engine);
}

/* --------------------------------------------------------------------------------------------- what ends it */

static void test_errors(void **state)
{
    static const char *const refused[] = {"full", "h2o:budget=16", "snapkv:budget=40", "entropystop"};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", 1, NULL);
    struct butler_error err;
    (void)state;
    for (int i = 0; i < BUTLER_COUNT(refused); i++) {
        struct butler_session *session = open_session(engine, refused[i], BUTLER_KV_F16, N_CTX);
        assert_null(butler_draft_new(session, NULL, &err));
        assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
        butler_session_free(session);
    }
    struct butler_session *session = open_session(engine, "verified", BUTLER_KV_F16, N_PROMPT + 20);
    struct butler_sampler *sampler = open_sampler(0);
    int32_t ids[MOST];
    const struct butler_draft_params many = {.n_max = 16}, odd = {.struct_size = 4};
    assert_null(butler_draft_new(session, &many, &err));
    assert_null(butler_draft_new(session, &odd, &err));
    struct butler_draft *draft = open_draft(session, 8, true);
    begin(session, 0);
    assert_int_equal(butler_draft_step(draft, sampler, 1, ids, 0, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_draft_step(draft, sampler, -1, ids, MOST, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_n_past(session), N_PROMPT);
    butler_session_cancel(session);
    assert_int_equal(butler_draft_step(draft, sampler, 1, ids, MOST, &err), BUTLER_ERROR_CANCELLED);
    assert_int_equal(butler_n_past(session), N_PROMPT);
    /* Drafts end where the context does. */
    int n = 0;
    ids[0] = 1;
    while (butler_n_past(session) < butler_n_ctx(session)) {
        n = butler_draft_step(draft, sampler, ids[0], ids, MOST, &err);
        assert_true(n > 0 && butler_n_past(session) <= butler_n_ctx(session));
        ids[0] = ids[n - 1];
    }
    assert_int_equal(butler_draft_step(draft, sampler, ids[0], ids, MOST, &err), BUTLER_ERROR_LENGTH);
    const struct butler_span exact = {.session = session, .ids = ids, .n = 1, .exact = true};
    assert_int_equal(butler_run(engine, &exact, 1, &err), BUTLER_ERROR_LENGTH);
    butler_draft_free(draft);
    butler_draft_free(NULL);
    butler_sampler_free(sampler);
    butler_session_free(session);
    session = open_session(engine, "streaming:budget=32", BUTLER_KV_F16, N_CTX);
    begin(session, 0);
    const struct butler_span evicting = {.session = session, .ids = ids, .n = 1, .exact = true};
    assert_int_equal(butler_run(engine, &evicting, 1, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "streaming evicts"));
    butler_session_free(session);
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models),        cmocka_unit_test(test_policies), cmocka_unit_test(test_long_texts),
        cmocka_unit_test(test_chosen_number), cmocka_unit_test(test_keep),     cmocka_unit_test(test_keep_behind_a_window),
        cmocka_unit_test(test_exact_spans),   cmocka_unit_test(test_errors),   cmocka_unit_test(test_distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
