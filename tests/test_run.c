/* butler_run: what a session computes is the same, bit for bit, alone or in any company of spans, however its text is cut; what is
 * wrong is named; runs stop when asked; texts with a common beginning share it.
 * $BUTLER_TEST_SHARE: of the random schedules and of the sessions in each. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <xxhash.h>

#include "fixtures.h"
#include "random_predictor.h"
#include "engine/session.h"

enum { MAX_SESSIONS = 16, LONGEST = 120, N_CTX = 128 };

static int n_sessions = MAX_SESSIONS;

static struct butler_engine *open_engine(const char *name, const struct butler_engine_params *params)
{
    char path[FIXTURE_PATH];
    struct butler_error err = {0};
    fixture_path(path, name);
    struct butler_model *model = butler_model_load(path, NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, params, &err) : NULL;
    if (!engine)
        fail_msg("%s: %s", name, err.message);
    return engine;
}

static void close_engine(struct butler_engine *engine)
{
    struct butler_model *model = butler_engine_model(engine);
    butler_engine_free(engine);
    butler_model_free(model);
}

static struct butler_session *open_context(struct butler_engine *engine, const char *policy, int n_ctx)
{
    struct butler_error err = {0};
    const struct butler_session_params params = {.n_ctx = n_ctx, .policy = policy, .kv_type = BUTLER_KV_F16, .seed = 5};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        fail_msg("%s: %s", policy, err.message);
    return session;
}

static struct butler_session *open_session(struct butler_engine *engine, const char *policy)
{
    return open_context(engine, policy, N_CTX);
}

static void run_one(const struct butler_span *span)
{
    struct butler_error err = {0};
    if (butler_run(span->session->engine, span, 1, &err) < 0)
        fail_msg("%s: %s", span->session->policy.text, err.message);
}

static void run_span(struct butler_session *session, const int32_t *ids, int n, int prompt_end)
{
    run_one(&(struct butler_span){.session = session, .ids = ids, .n = n, .prompt_end = prompt_end});
}

static void make_text(const struct butler_engine *engine, uint64_t seed, int32_t *ids, int n)
{
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(butler_random(&seed) % (uint64_t)engine->model->hp.n_vocab);
}

static uint64_t digest_logits(const struct butler_session *session)
{
    return XXH3_64bits(butler_logits(session), (size_t)session->model->hp.n_vocab * sizeof(float));
}

/* ------------------------------------------------------------------------------------------- random schedules */

struct text {
    int32_t ids[LONGEST];
    int n, n_prompt, done;
    uint64_t alone[LONGEST];  /* digest of the logits after token i, from the prompt's last on */
    uint64_t hidden[LONGEST]; /* digest of the hidden state of token i */
    int n_embd, n_hidden, n_differ;
};

static bool note_hidden(void *user, int position, const float *hidden)
{
    struct text *text = user;
    text->hidden[position] = XXH3_64bits(hidden, (size_t)text->n_embd * sizeof(float));
    return true;
}

static bool compare_hidden(void *user, int position, const float *hidden)
{
    struct text *text = user;
    text->n_hidden++;
    text->n_differ += text->hidden[position] != XXH3_64bits(hidden, (size_t)text->n_embd * sizeof(float));
    return true;
}

static int draw(uint64_t *random, int from, int to)
{
    return from + (int)(butler_random(random) % (uint64_t)(to - from + 1));
}

static void read_alone(struct butler_engine *engine, const char *policy, struct text *text)
{
    struct butler_session *session = open_session(engine, policy);
    struct butler_span span = {.session = session,
                               .ids = text->ids,
                               .n = text->n_prompt,
                               .prompt_end = text->n_prompt,
                               .user = text,
                               .hidden = note_hidden};
    text->n_embd = engine->model->hp.n_embd;
    run_one(&span);
    text->alone[text->n_prompt - 1] = digest_logits(session);
    span.n = 1;
    for (int i = text->n_prompt; i < text->n; i++) {
        span.ids = text->ids + i;
        run_one(&span);
        text->alone[i] = digest_logits(session);
    }
    butler_session_free(session);
}

/* Some of the sessions that are not done, in a random order, each with some of its next tokens. */
static int draw_spans(struct butler_session *const *sessions, struct text *texts, struct butler_span *spans, int *which,
                      uint64_t *random)
{
    int order[MAX_SESSIONS], n = 0;
    for (int i = 0; i < n_sessions; i++) {
        const int j = draw(random, 0, i);
        order[i] = order[j];
        order[j] = i;
    }
    for (int i = 0; i < n_sessions; i++) {
        struct text *text = &texts[order[i]];
        const int left = text->n - text->done;
        if (left == 0 || draw(random, 0, 2) == 0)
            continue;
        spans[n] = (struct butler_span){.session = sessions[order[i]],
                                        .ids = text->ids + text->done,
                                        .n = draw(random, 1, draw(random, 0, 1) ? left : BUTLER_MIN(left, 5)),
                                        .prompt_end = text->n_prompt,
                                        .user = text,
                                        .hidden = draw(random, 0, 1) ? compare_hidden : NULL};
        text->n_hidden = text->n_differ = 0;
        which[n++] = order[i];
    }
    return n;
}

static void follow_schedule(struct butler_engine *engine, const char *const *policies, struct text *texts, uint64_t *random)
{
    struct butler_session *sessions[MAX_SESSIONS];
    int n_left = n_sessions;
    for (int i = 0; i < n_sessions; i++) {
        sessions[i] = open_session(engine, policies[i]);
        texts[i].done = 0;
    }
    while (n_left > 0) {
        struct butler_span spans[MAX_SESSIONS];
        struct butler_error errs[MAX_SESSIONS];
        int which[MAX_SESSIONS];
        const int n = draw_spans(sessions, texts, spans, which, random);
        if (n == 0)
            continue;
        if (butler_run(engine, spans, n, errs) < 0)
            for (int i = 0; i < n; i++)
                if (errs[i].code < 0)
                    fail_msg("%s: %s", policies[which[i]], errs[i].message);
        for (int i = 0; i < n; i++) {
            struct text *text = &texts[which[i]];
            text->done += spans[i].n;
            if (text->n_differ > 0 || text->n_hidden != (spans[i].hidden ? spans[i].n : 0))
                fail_msg("%s: %d of %d hidden states differ among %d spans", policies[which[i]], text->n_differ, text->n_hidden, n);
            n_left -= text->done == text->n;
            if (text->done < text->n_prompt)
                assert_null(butler_logits(sessions[which[i]]));
            else if (digest_logits(sessions[which[i]]) != text->alone[text->done - 1])
                fail_msg("%s: other logits at position %d of %d (prompt %d) among %d spans", policies[which[i]], text->done - 1,
                         text->n, text->n_prompt, n);
        }
    }
    for (int i = 0; i < n_sessions; i++)
        butler_session_free(sessions[i]);
}

static const char *const more_policies[] = {
    "h2o+vatp:budget=40",
    "oracle:share=query,budget=20",
    "oracle:share=layer,group=mean,budget=20",
    "h2o:share=layer,budget=24",
    "knorm:prefill=evict,budget=30",
    "quest:dense=0,every=3,budget=32",
    "tokenbutler2:on_top=0,sinks=4,recent=8,budget=24",
    "tokenbutler:budget=0.25,page=16",
    "fier:dense=0,budget=16,every=2",
    "fier:dense=0,budget=16,scan=1",
    "quest:method=evict,dense=0,budget=48",
};

/* For a model with three query heads on a KV head: subgroups of two and one. */
static const char *const of_subgroups[] = {"oracle:share=2,budget=20", "fier:share=2,dense=0,budget=16,every=2",
                                           "tokenbutler2:share=2,on_top=0,sinks=4,recent=8,budget=24",
                                           "h2o:method=retrieve,share=2,budget=40"};

/* The policy i, with a small budget where it has one. */
static bool policy_of(const struct butler_engine *engine, int i, char out[256])
{
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    int n = 0;
    while (butler_policy_describe(engine, n, &info))
        n++;
    if (i >= n + BUTLER_COUNT(more_policies))
        return false;
    if (i >= n) {
        snprintf(out, 256, "%s", more_policies[i - n]);
        return true;
    }
    butler_policy_describe(engine, i, &info);
    const bool none = !strcmp(info.name, "full") || !strcmp(info.name, "entropystop"), prune = !strcmp(info.name, "softprune");
    snprintf(out, 256, none ? "%s" : prune ? "%s:min=24" : "%s:budget=40", info.name);
    return true;
}

static void schedules_of(const char *model, bool subgroups, int n_threads, int bits, int n)
{
    const struct butler_engine_params params = {
        .n_threads = n_threads, .n_block = 40, .kv_bytes = 1 << 26, .activation_bits = bits};
    struct butler_engine *engine = open_engine(model, &params);
    static char policies[64][256];
    static struct text texts[MAX_SESSIONS];
    uint64_t random = 17 + (uint64_t)n_threads;
    int n_policies = 0;
    attach_both(engine, n_threads == 2);
    for (; subgroups && n_policies < BUTLER_COUNT(of_subgroups); n_policies++)
        strcpy(policies[n_policies], of_subgroups[n_policies]);
    while (!subgroups && policy_of(engine, n_policies, policies[n_policies]))
        n_policies++;
    /* p == n_policies: a different policy for each session */
    for (int p = 0; p <= n_policies; p++) {
        const char *own[MAX_SESSIONS];
        for (int i = 0; i < n_sessions; i++) {
            own[i] = policies[p < n_policies ? p : draw(&random, 0, n_policies - 1)];
            texts[i].n = draw(&random, 2, LONGEST);
            texts[i].n_prompt = draw(&random, 1, BUTLER_MIN(texts[i].n, 100));
            make_text(engine, butler_random(&random), texts[i].ids, texts[i].n);
            read_alone(engine, own[i], &texts[i]);
        }
        for (int s = 0; s < n; s++)
            follow_schedule(engine, own, texts, &random);
    }
    close_engine(engine);
}

static void test_schedules(void **state)
{
    (void)state;
    schedules_of("models/llama-gqa.gguf", false, 2, 16, share_of(2));
    schedules_of("models/qwen2.gguf", true, 2, 16, 1);
#if !defined(__SANITIZE_THREAD__) /* which one thread does not concern */
    schedules_of("models/llama-q8_0.gguf", false, 1, 16, 1);
    schedules_of("models/llama-q8_0.gguf", false, 1, 8, 1);
#endif
}

struct products {
    const struct butler_engine *engine;
    float hidden[256];
};

static bool keep_hidden(void *user, int position, const float *hidden)
{
    struct products *products = user;
    (void)position;
    memcpy(products->hidden, hidden, (size_t)products->engine->model->hp.n_embd * sizeof(float));
    return true;
}

static bool stop_hidden(void *user, int position, const float *hidden)
{
    (void)user, (void)hidden;
    return position < 1;
}

/* The hidden state of the last token times the output matrix (of F32 here) is the logits; a callback can stop the run. */
static void test_hidden_states(void **state)
{
    struct butler_engine *engine =
        open_engine("models/llama-mha.gguf", &(struct butler_engine_params){.n_threads = 1, .n_block = 16});
    struct butler_session *session = open_session(engine, "full");
    const int32_t ids[] = {3, 1, 4, 1, 5}, many[40] = {0};
    const struct butler_hparams *hp = &engine->model->hp;
    struct products products = {.engine = engine};
    struct butler_error err = {0};
    (void)state;
    assert_true(hp->n_embd <= 256 && engine->model->output.type == BUTLER_F32);
    struct butler_span span = {.session = session, .ids = ids, .n = 5, .prompt_end = 5, .user = &products, .hidden = keep_hidden};
    run_one(&span);
    const float *logits = butler_logits(session), *output = engine->model->output.data;
    for (int t = 0; t < hp->n_vocab; t++) {
        double sum = 0;
        for (int i = 0; i < hp->n_embd; i++)
            sum += (double)products.hidden[i] * (double)output[t * hp->n_embd + i];
        assert_true(fabs(sum - (double)logits[t]) < 1e-4 * (1 + fabs(sum)));
    }
    assert_int_equal(butler_session_truncate(session, 0, NULL), 0);
    span.no_logits = true;
    run_one(&span);
    assert_null(butler_logits(session));
    assert_int_equal(butler_session_truncate(session, 0, NULL), 0);
    span.ids = many;
    span.n = span.prompt_end = 40;
    span.hidden = stop_hidden;
    assert_int_equal(butler_run(engine, &span, 1, &err), BUTLER_ERROR_CANCELLED);
    assert_int_equal(butler_n_past(session), 16); /* the pass that was stopped is whole */
    butler_session_free(session);
    close_engine(engine);
}

/* ---------------------------------------------------------------------------------------------------- batches */

/* Weights that several sessions read together count once. */
static void test_weights_once(void **state)
{
    enum { N = 5 };
    struct butler_engine *engine = open_engine("models/llama-q8_0.gguf", &(struct butler_engine_params){.n_threads = 2});
    struct butler_session *sessions[N], *alone = open_session(engine, "full");
    struct butler_error errs[N];
    struct butler_stats one = {BUTLER_INIT(butler_stats)}, each = {BUTLER_INIT(butler_stats)};
    const int32_t prompt[] = {1, 2, 3}, ids[N] = {4, 5, 6, 7, 8};
    uint64_t sum = 0;
    (void)state;
    run_span(alone, prompt, 3, 3);
    run_span(alone, ids, 1, 0);
    butler_session_stats(alone, &one);
    for (int i = 0; i < N; i++) {
        sessions[i] = open_session(engine, "full");
        run_span(sessions[i], prompt, 3, 3);
    }
    assert_int_equal(butler_step_batch(sessions, ids, N, errs), 0);
    for (int i = 0; i < N; i++) {
        butler_session_stats(sessions[i], &each);
        assert_int_equal(each.n_decode, 1);
        assert_int_equal(each.kv_bytes, one.kv_bytes);
        assert_int_equal(each.full_kv_bytes, one.full_kv_bytes);
        sum += each.weight_bytes;
        butler_session_free(sessions[i]);
    }
    assert_true(sum >= one.weight_bytes && sum < one.weight_bytes + one.weight_bytes / 2);
    butler_session_free(alone);
    close_engine(engine);
}

static void test_what_is_wrong_is_named(void **state)
{
    const struct butler_engine_params params = {.n_threads = 1, .kv_bytes = 1 << 26};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params),
                         *other = open_engine("models/llama-gqa.gguf", &params);
    struct butler_session *a = open_session(engine, "full"), *b = open_session(engine, "full"), *c = open_session(other, "full");
    struct butler_session *same[] = {a, b, a}, *mixed[] = {a, c}, *good[] = {a, b};
    struct butler_error errs[3];
    const int32_t ids[] = {1, 2, 3}, wrong[] = {1, -1, 3};
    (void)state;
    run_span(a, ids, 3, 3);
    run_span(b, ids, 3, 3);
    assert_int_equal(butler_step_batch(same, ids, 3, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(errs[0].code == 0 && errs[1].code == 0 && errs[2].code == BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_batch(mixed, ids, 2, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(errs[0].code == 0 && errs[1].code == BUTLER_ERROR_ARGUMENT && strstr(errs[1].message, "engine"));
    assert_int_equal(butler_step_batch(good, wrong, 2, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(errs[0].code == 0 && errs[1].code == BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_batch(good, ids, 0, errs), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_batch(good, wrong, 2, NULL), BUTLER_ERROR_ARGUMENT);
    const struct butler_span beyond = {.session = a, .ids = ids, .n = 1, .prompt_end = N_CTX + 1}, none = {.ids = ids, .n = 1};
    assert_int_equal(butler_run(engine, &beyond, 1, errs), BUTLER_ERROR_LENGTH);
    assert_int_equal(butler_run(engine, &none, 1, errs), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_copy(a, c, errs), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(errs[0].message, "engine"));
    assert_int_equal(butler_session_truncate(a, 4, errs), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_truncate(a, -1, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(butler_n_past(a) == 3 && butler_n_past(b) == 3); /* nothing has changed */
    while (butler_n_past(b) < butler_n_ctx(b))
        assert_int_equal(butler_step(b, 1, errs), 0);
    assert_int_equal(butler_step_batch(good, ids, 2, errs), BUTLER_ERROR_LENGTH);
    assert_true(errs[0].code == 0 && errs[1].code == BUTLER_ERROR_LENGTH && butler_n_past(a) == 3);
    assert_null(butler_session_new(engine, &(struct butler_session_params){.struct_size = 1 << 20}, errs));
    assert_non_null(strstr(errs[0].message, "butler_session_params"));
    assert_null(butler_engine_new(engine->model, &(struct butler_engine_params){.struct_size = 3}, errs));
    butler_session_free(a);
    butler_session_free(b);
    butler_session_free(c);
    close_engine(engine);
    close_engine(other);
}

/* Every refused call leaves the session as it was: it continues as one that was never asked. */
static void test_refusals_change_nothing(void **state)
{
    enum { N = 60 };
    const struct butler_engine_params params = {.n_threads = 1, .kv_bytes = 1 << 26};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params),
                         *other_model = open_engine("models/qwen2.gguf", &params);
    struct butler_session *asked = open_session(engine, "h2o:budget=24"), *twin = open_session(engine, "h2o:budget=24"),
                          *stranger = open_session(other_model, "h2o:budget=24"), *empty = open_session(other_model, "full");
    const int n_vocab = engine->model->hp.n_vocab;
    struct butler_error errs[3];
    int32_t ids[N];
    (void)state;
    make_text(engine, 9, ids, N);
    run_span(asked, ids, N, N);
    run_span(twin, ids, N, N);
    const struct butler_span twice[] = {{.session = asked, .ids = ids, .n = 1}, {.session = asked, .ids = ids, .n = 2}};
    assert_int_equal(butler_run(engine, twice, 2, errs), BUTLER_ERROR_ARGUMENT);
    assert_string_equal(errs[1].message, "spans 0 and 1 are of the same session");
    const int32_t beyond[] = {1, n_vocab}, negative[] = {1, 2, -7};
    const struct butler_span bad[] = {{.session = asked, .ids = beyond, .n = 2},
                                      {.session = twin, .ids = negative, .n = 3},
                                      {.session = stranger, .ids = ids, .n = 1}};
    assert_int_equal(butler_run(engine, bad, 3, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(strstr(errs[0].message, "token 1 is") && strstr(errs[1].message, "token 2 is -7") &&
                strstr(errs[2].message, "another engine"));
    assert_int_equal(butler_session_truncate(asked, N - 5, errs), BUTLER_ERROR_ARGUMENT); /* the cut was at N */
    assert_non_null(strstr(errs[0].message, "h2o has evicted tokens"));
    assert_int_equal(butler_session_copy(asked, stranger, errs), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(errs[0].message, "another engine"));
    assert_int_equal(butler_session_copy(stranger, asked, errs), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_adopt(empty, asked, errs), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_session_adopt_prefix(asked, ids, N, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(butler_n_past(stranger) == 0 && butler_n_past(empty) == 0);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(butler_n_past(asked), N + i);
        assert_true(digest_logits(asked) == digest_logits(twin));
        run_span(asked, ids + i, 1, 0);
        run_span(twin, ids + i, 1, 0);
    }
    butler_session_free(asked);
    butler_session_free(twin);
    butler_session_free(stranger);
    butler_session_free(empty);
    close_engine(engine);
    close_engine(other_model);
}

/* A session that cannot go on in the middle of the layers is lost; the others are not. It can be emptied and used again. */
static void test_one_failure(void **state)
{
    const struct butler_engine_params params = {.n_threads = 2, .kv_bytes = 1 << 26};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params);
    struct butler_session *sessions[3], *alone = open_session(engine, "full");
    struct butler_error errs[3], err;
    const int32_t ids[] = {1, 2, 3};
    (void)state;
    for (int i = 0; i < 3; i++) {
        sessions[i] = open_session(engine, "full");
        run_span(sessions[i], ids, 3, 3);
    }
    run_span(alone, ids, 3, 3);
    run_span(alone, ids, 1, 0);
    const int last = sessions[1]->shape.n_layers - 1;
    struct butler_kv_head *head = butler_kv_at(&sessions[1]->kv, last, 0);
    const int n_slots = head->n_slots;
    head->n_slots = sessions[1]->kv.max_slots; /* full in one layer alone */
    assert_int_equal(butler_step_batch(sessions, (const int32_t[]){1, 1, 1}, 3, errs), BUTLER_ERROR_LENGTH);
    head->n_slots = n_slots;
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(errs[i].code, 0);
        assert_true(digest_logits(sessions[i]) == digest_logits(alone));
    }
    assert_non_null(strstr(errs[1].message, "KV cache"));
    assert_true(butler_step(sessions[1], 1, &err) == BUTLER_ERROR_NUMERIC);
    assert_true(butler_session_truncate(sessions[1], 2, &err) == BUTLER_ERROR_NUMERIC);
    assert_int_equal(butler_session_truncate(sessions[1], 0, &err), 0);
    run_span(sessions[1], ids, 3, 3);
    run_span(sessions[1], ids, 1, 0);
    assert_true(digest_logits(sessions[1]) == digest_logits(alone));
    for (int i = 0; i < 3; i++)
        butler_session_free(sessions[i]);
    butler_session_free(alone);
    close_engine(engine);
}

/* Where pages run out the session that needs them fails, and what the others hold stays. */
static void test_pages_run_out(void **state)
{
    const struct butler_engine_params params = {.n_threads = 1, .kv_bytes = 1};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params);
    struct butler_session *session = open_session(engine, "full");
    struct butler_error err;
    const struct butler_span span = {.session = session, .ids = (const int32_t[]){1, 2, 3}, .n = 3, .prompt_end = 3};
    (void)state;
    assert_int_equal(butler_run(engine, &span, 1, &err), BUTLER_ERROR_MEMORY);
    assert_non_null(strstr(err.message, "pages"));
    butler_session_free(session);
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &info);
    assert_int_equal(info.kv_memory, 0);
    close_engine(engine);
}

/* --------------------------------------------------------------------------------------------------- stopping */

static bool stop_at(void *user, int done, int n)
{
    (void)n;
    return done < *(int *)user;
}

static bool stop_logits_at(void *user, int position, const float *logits)
{
    (void)logits;
    return position < *(int *)user;
}

static void test_stopping(void **state)
{
    enum { N = 100 };
    const struct butler_engine_params params = {.n_threads = 1, .n_block = 16, .kv_bytes = 1 << 26};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params);
    struct butler_session *session = open_session(engine, "h2o:budget=24"), *whole = open_session(engine, "h2o:budget=24");
    struct butler_error err;
    int32_t ids[N];
    int limit = 40;
    (void)state;
    make_text(engine, 3, ids, N);
    butler_session_on_progress(session, stop_at, &limit);
    assert_int_equal(butler_prefill(session, ids, N, NULL, NULL, &err), BUTLER_ERROR_CANCELLED);
    assert_int_equal(butler_n_past(session), 48); /* whole passes */
    butler_session_on_progress(session, NULL, NULL);
    butler_session_cancel(session); /* while nothing runs: the next run ends before it begins */
    const struct butler_span rest = {.session = session, .ids = ids + 48, .n = N - 48, .prompt_end = N};
    assert_int_equal(butler_run(engine, &rest, 1, &err), BUTLER_ERROR_CANCELLED);
    assert_int_equal(butler_n_past(session), 48);
    assert_int_equal(butler_run(engine, &rest, 1, &err), 0); /* and goes on as if nothing had been */
    run_span(whole, ids, N, N);
    assert_true(digest_logits(session) == digest_logits(whole));
    assert_int_equal(butler_session_truncate(whole, 0, &err), 0);
    limit = 20;
    assert_int_equal(butler_prefill(whole, ids, N, stop_logits_at, &limit, &err), BUTLER_ERROR_CANCELLED);
    assert_int_equal(butler_n_past(whole), 32);
    butler_session_free(session);
    butler_session_free(whole);
    close_engine(engine);
}

struct canceller {
    struct butler_session *session;
    pthread_t thread;
    int n_calls;
};

static void *cancel(void *user)
{
    butler_session_cancel(((struct canceller *)user)->session);
    return NULL;
}

static bool cancel_from_thread(void *user, int done, int n)
{
    struct canceller *canceller = user;
    (void)done;
    (void)n;
    if (canceller->n_calls++ == 1) {
        pthread_create(&canceller->thread, NULL, cancel, canceller);
        pthread_join(canceller->thread, NULL);
    }
    return true;
}

static void test_cancel_from_another_thread(void **state)
{
    enum { N = 100 };
    const struct butler_engine_params params = {.n_threads = 2, .n_block = 8, .kv_bytes = 1 << 26};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params);
    struct canceller canceller = {.session = open_session(engine, "full")};
    struct butler_error err;
    int32_t ids[N];
    (void)state;
    make_text(engine, 3, ids, N);
    butler_session_on_progress(canceller.session, cancel_from_thread, &canceller);
    assert_int_equal(butler_prefill(canceller.session, ids, N, NULL, NULL, &err), BUTLER_ERROR_CANCELLED);
    assert_int_equal(butler_n_past(canceller.session), 16);
    butler_session_free(canceller.session);
    close_engine(engine);
}

/* ------------------------------------------------------------------------------------------------------ sharing */

static uint64_t kv_memory(const struct butler_engine *engine)
{
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &info);
    return info.kv_memory;
}

/* Forks hold the pages of one; each pays for what it writes. */
static void test_forks_share_pages(void **state)
{
    enum { N = 100, FORKS = 8 };
    const struct butler_engine_params params = {.n_threads = 1, .kv_bytes = 1 << 26};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params);
    struct butler_session *session = open_session(engine, "quest:budget=32,dense=0"), *forks[FORKS];
    struct butler_error err;
    int32_t ids[N];
    (void)state;
    make_text(engine, 9, ids, N);
    run_span(session, ids, N, N);
    const uint64_t one = kv_memory(engine);
    for (int i = 0; i < FORKS; i++)
        assert_non_null(forks[i] = butler_session_fork(session, &err));
    assert_int_equal(kv_memory(engine), one);
    for (int i = 0; i < FORKS; i++)
        run_span(forks[i], ids + i, 1, 0);
    assert_true(kv_memory(engine) == one + FORKS * one / 2); /* the second of two extents of every head */
    for (int i = 0; i < FORKS; i++)
        butler_session_free(forks[i]);
    assert_int_equal(kv_memory(engine), one);
    butler_session_free(session);
    assert_int_equal(kv_memory(engine), 0);
    close_engine(engine);
}

/* A text whose beginning is known reads only the rest, and computes what it would have; evicting policies too, up to the queries
 * that their metrics observe. */
static void test_prefix(void **state)
{
    static const struct {
        const char *policy;
        int shared; /* of 110 tokens */
    } cases[] = {{"full", 109},
                 {"quest:budget=32,dense=0", 109},
                 {"fier:budget=32,dense=0", 109},
                 {"pagestats:budget=32", 109},
                 {"oracle:share=query,budget=32", 109},
                 {"tokenbutler2:on_top=0,sinks=4,recent=8,budget=24", 109},
                 {"tokenbutler:budget=24", 0},
                 {"snapkv:budget=40", 78},
                 {"tova:budget=40", 109},
                 {"knorm:budget=40", 109},
                 {"scissorhands:budget=40", 0}, /* a window of 400 */
                 {"h2o:budget=40", 0},
                 {"streaming:budget=40", 0}};
    enum { N = 110 };
    const struct butler_engine_params params = {.n_threads = 2, .kv_bytes = 1 << 26, .prefix_bytes = 1 << 24};
    struct butler_engine *engine = open_engine("models/llama-gqa.gguf", &params);
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    int32_t ids[N + 10], other[N];
    (void)state;
    attach_both(engine, false);
    make_text(engine, 9, ids, N + 10);
    memcpy(other, ids, sizeof other);
    other[7]++; /* seven tokens are not worth it */
    struct butler_session *first = open_session(engine, "full");
    assert_int_equal(butler_session_adopt_prefix(first, ids, N, &err), 0);
    run_span(first, ids, N, N);
    butler_session_free(first);
    assert_true(kv_memory(engine) > 0); /* the cache holds it */
    for (int i = 0; i < BUTLER_COUNT(cases); i++) {
        /* the context ends within the prompt's last block */
        struct butler_session *alone = open_session(engine, cases[i].policy), *hit = open_context(engine, cases[i].policy, N + 10),
                              *miss = open_session(engine, cases[i].policy);
        const int n = butler_session_adopt_prefix(hit, ids, N, &err);
        if (n != cases[i].shared)
            fail_msg("%s: %d tokens from the prefix cache", cases[i].policy, n);
        assert_int_equal(butler_session_adopt_prefix(miss, other, N, &err), 0);
        run_span(hit, ids + n, N - n, N);
        run_span(alone, ids, N, N);
        for (int t = 0; t < 10; t++) {
            if (digest_logits(alone) != digest_logits(hit))
                fail_msg("%s: other logits after %d tokens", cases[i].policy, N + t);
            run_span(alone, ids + N + t, 1, 0);
            run_span(hit, ids + N + t, 1, 0);
        }
        assert_true(butler_session_adopt_prefix(alone, ids, N, &err) == BUTLER_ERROR_ARGUMENT); /* not empty */
        butler_session_free(alone);
        butler_session_free(hit);
        butler_session_free(miss);
    }
    butler_engine_get_info(engine, &info);
    assert_int_equal(info.prefix_hits, 9);
    assert_int_equal(info.prefix_tokens, 8 * 109 + 78);
    assert_true(info.prefix_memory > 0 && info.prefix_memory <= info.kv_memory);
    close_engine(engine);
}

/* The cache keeps to its memory; the beginnings used longest ago go first. */
static void test_prefix_memory(void **state)
{
    enum { N = 80 };
    struct butler_engine *engine = open_engine(
        "models/llama-gqa.gguf", &(struct butler_engine_params){.n_threads = 1, .kv_bytes = 1 << 26, .prefix_bytes = 1});
    const struct butler_hparams *hp = &engine->model->hp;
    const uint64_t bytes = butler_kv_extent_bytes(BUTLER_KV_F16, hp->head_dim) * (uint64_t)(hp->n_layers * hp->n_kv_heads);
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    int32_t ids[3][N];
    (void)state;
    close_engine(engine);
    engine = open_engine("models/llama-gqa.gguf",
                         &(struct butler_engine_params){.n_threads = 1, .kv_bytes = 1 << 26, .prefix_bytes = 4 * bytes});
    for (int i = 0; i < 4; i++) {
        const int text = i == 2 ? 0 : i == 3 ? 2 : i; /* 0, 1, 0 again, 2: text 1 goes */
        make_text(engine, (uint64_t)text + 1, ids[text], N);
        struct butler_session *session = open_session(engine, "full");
        const int n = butler_session_adopt_prefix(session, ids[text], N, &err);
        assert_int_equal(n, i == 2 ? N - 1 : 0);
        run_span(session, ids[text] + n, N - n, N);
        butler_session_free(session);
    }
    butler_engine_get_info(engine, &info);
    assert_int_equal(info.prefix_memory, 4 * bytes); /* a whole block and the rest, of two texts */
    for (int text = 0; text < 3; text++) {
        struct butler_session *session = open_session(engine, "full");
        assert_int_equal(butler_session_adopt_prefix(session, ids[text], N, &err), text == 1 ? 0 : N - 1);
        butler_session_free(session);
    }
    close_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_hidden_states),
        cmocka_unit_test(test_weights_once),
        cmocka_unit_test(test_what_is_wrong_is_named),
        cmocka_unit_test(test_refusals_change_nothing),
        cmocka_unit_test(test_one_failure),
        cmocka_unit_test(test_pages_run_out),
        cmocka_unit_test(test_stopping),
        cmocka_unit_test(test_cancel_from_another_thread),
        cmocka_unit_test(test_forks_share_pages),
        cmocka_unit_test(test_prefix),
        cmocka_unit_test(test_prefix_memory),
    };
    n_sessions = BUTLER_MAX(share_of(MAX_SESSIONS), 4);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
