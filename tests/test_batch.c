/* Sessions that decode together: each gets what it would have got alone, bit for bit, whatever its policy, its length and
 * its place in the batch; weights are read once; and a session that is wrong names itself. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "fixtures.h"
#include "engine/session.h"

enum { SESSIONS = 5, STEPS = 12 };

static struct butler_model *open_model(const char *name, int n_threads)
{
    char path[FIXTURE_PATH];
    struct butler_error err = {0};
    struct butler_model_params params = {.n_threads = n_threads};
    fixture_path(path, name);
    struct butler_model *model = butler_model_load(path, &params, &err);
    if (!model)
        fail_msg("%s: %s", name, err.message);
    return model;
}

/* Session i: a policy, a length and a text of its own. */
static struct butler_session *open_session(struct butler_model *model, int i)
{
    static const char *const policies[SESSIONS] = {"full", "quest:budget=16,dense=0,page=4", "h2o:budget=24",
                                                   "streaming:budget=16,rope=cache", "tova:budget=20"};
    struct butler_error err = {0};
    struct butler_session_params params = {.n_ctx = 64, .n_block = i == 0 ? 3 : 8, .policy = policies[i], .kv_type = BUTLER_KV_F16};
    const bool rotates = strcmp(butler_model_get_info(model)->architecture, "gpt2") != 0;
    if (!rotates && i == 3)
        params.policy = "streaming:budget=16";
    struct butler_session *session = butler_session_new(model, &params, &err);
    if (!session)
        fail_msg("%s: %s", params.policy, err.message);
    int32_t ids[64];
    for (int k = 0; k < 64; k++)
        ids[k] = (k * 37 + i * 11 + 5) % butler_model_get_info(model)->n_vocab;
    assert_int_equal(butler_prefill(session, ids, 12 + 7 * i, NULL, NULL, &err), 0);
    return session;
}

static int32_t id_of(const struct butler_model *model, int session, int step)
{
    return (session * 53 + step * 29 + 1) % butler_model_get_info(model)->n_vocab;
}

static void together_as_alone(void **state)
{
    (void)state;
    static const char *const models[] = {"models/llama-gqa.gguf", "models/llama-q8_0.gguf", "models/llama-q4_k.gguf",
                                         "models/qwen2-mixed.gguf", "models/gpt2.gguf"};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (int n_threads = 1; n_threads <= 2; n_threads++) {
            struct butler_model *model = open_model(models[m], n_threads);
            const size_t n_bytes = sizeof(float) * (size_t)butler_model_get_info(model)->n_vocab;
            struct butler_session *alone[SESSIONS], *together[SESSIONS];
            for (int i = 0; i < SESSIONS; i++) {
                alone[i] = open_session(model, i);
                together[i] = open_session(model, i);
            }
            for (int step = 0; step < STEPS; step++) {
                int32_t ids[SESSIONS];
                struct butler_error errs[SESSIONS], err;
                for (int i = 0; i < SESSIONS; i++)
                    ids[i] = id_of(model, i, step);
                assert_int_equal(butler_step_batch(together, ids, SESSIONS, errs), 0);
                for (int i = 0; i < SESSIONS; i++) {
                    assert_int_equal(errs[i].code, 0);
                    assert_int_equal(butler_step(alone[i], ids[i], &err), 0);
                    assert_memory_equal(butler_logits(alone[i]), butler_logits(together[i]), n_bytes);
                    assert_int_equal(butler_n_past(alone[i]), butler_n_past(together[i]));
                }
            }
            struct butler_stats one, all, sum = {0};
            for (int i = 0; i < SESSIONS; i++) {
                butler_session_stats(alone[i], &one);
                butler_session_stats(together[i], &all);
                assert_int_equal(all.n_decode, STEPS);
                assert_true(all.kv_bytes == one.kv_bytes && all.metric_bytes == one.metric_bytes);
                assert_true(all.full_kv_bytes == one.full_kv_bytes);
                sum.weight_bytes += all.weight_bytes;
                butler_session_free(alone[i]);
                butler_session_free(together[i]);
            }
            /* Two passes: of three sessions, as many as the first has rows, and of two. */
            assert_true(sum.weight_bytes < 3 * one.weight_bytes && sum.weight_bytes >= 2 * one.weight_bytes);
            butler_model_free(model);
        }
}

static void what_is_wrong_is_named(void **state)
{
    (void)state;
    struct butler_model *model = open_model("models/llama-gqa.gguf", 1), *other = open_model("models/llama-gqa.gguf", 1);
    struct butler_session *a = open_session(model, 0), *b = open_session(model, 1), *c = open_session(other, 2);
    struct butler_session *same[] = {a, b, a}, *mixed[] = {a, c}, *good[] = {a, b};
    struct butler_error errs[3];
    const int32_t ids[] = {1, 2, 3}, wrong[] = {1, -1, 3};
    const int past = butler_n_past(a);
    assert_int_equal(butler_step_batch(same, ids, 3, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(errs[0].code == 0 && errs[1].code == 0 && errs[2].code == BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_batch(mixed, ids, 2, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(errs[0].code == 0 && errs[1].code == BUTLER_ERROR_ARGUMENT && strstr(errs[1].message, "model"));
    assert_int_equal(butler_step_batch(good, wrong, 2, errs), BUTLER_ERROR_ARGUMENT);
    assert_true(errs[0].code == 0 && errs[1].code == BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_batch(good, ids, 0, errs), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_step_batch(good, wrong, 2, NULL), BUTLER_ERROR_ARGUMENT);
    assert_true(butler_n_past(a) == past); /* nothing has changed */
    while (butler_n_past(b) < butler_n_ctx(b))
        assert_int_equal(butler_step(b, 1, errs), 0);
    assert_int_equal(butler_step_batch(good, ids, 2, errs), BUTLER_ERROR_LENGTH);
    assert_true(errs[0].code == 0 && errs[1].code == BUTLER_ERROR_LENGTH && butler_n_past(a) == past);
    butler_session_free(a);
    butler_session_free(b);
    butler_session_free(c);
    butler_model_free(model);
    butler_model_free(other);
}

/* Where one session cannot go on in the middle of the layers, the caches of the others have grown too. */
static void one_failure_fails_all(void **state)
{
    (void)state;
    struct butler_model *model = open_model("models/llama-gqa.gguf", 1);
    struct butler_session *sessions[] = {open_session(model, 0), open_session(model, 1), open_session(model, 2)};
    struct butler_error errs[3], err;
    const int32_t ids[] = {1, 2, 3};
    const int last = sessions[1]->shape.n_layers - 1, past = butler_n_past(sessions[0]);
    assert_true(last > 0);
    butler_kv_at(&sessions[1]->kv, last, 0)->n_slots = sessions[1]->kv.max_slots; /* full in one layer alone */
    assert_int_equal(butler_step_batch(sessions, ids, 3, errs), BUTLER_ERROR_LENGTH);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(errs[i].code, BUTLER_ERROR_LENGTH);
        assert_non_null(strstr(errs[i].message, i == 1 ? "KV cache" : "session 1"));
        assert_true(butler_step(sessions[i], 1, &err) < 0);
        assert_true(butler_prefill(sessions[i], ids, 3, NULL, NULL, &err) < 0);
    }
    assert_int_equal(butler_n_past(sessions[0]), past);
    for (int i = 0; i < 3; i++)
        butler_session_free(sessions[i]);
    butler_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together_as_alone),
        cmocka_unit_test(what_is_wrong_is_named),
        cmocka_unit_test(one_failure_fails_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
