/* Every public function with NULL where butler.h does not allow it: an error with the parameter's name, or a zero. test_docs.py
 * checks that no function is left out. */
#include "engine/metric.h"
#include "fixtures.h"
#include "butler_tools.h"

static struct butler_error err;

/* The call that was just made gave this code, and its message has the function and the parameter. */
static void named(int code, const char *function, const char *parameter)
{
    char text[128];
    snprintf(text, sizeof text, "%s: %s is NULL", function, parameter);
    assert_int_equal(code, BUTLER_ERROR_ARGUMENT);
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    if (!strstr(err.message, text))
        fail_msg("\"%s\" is not \"%s\"", err.message, text);
    err = (struct butler_error){0};
}

#define FAILS(parameter, function, ...) named(function(__VA_ARGS__), #function, parameter)
#define GIVES_NULL(parameter, function, ...) named(function(__VA_ARGS__) ? 0 : err.code, #function, parameter)

static struct butler_engine *engine;
static struct butler_model *model;
static struct butler_session *session;

static int make(void **state)
{
    char path[FIXTURE_PATH];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    engine = load_engine(path, 1, NULL);
    model = butler_engine_model(engine);
    session = butler_session_new(engine, NULL, NULL);
    return session ? 0 : -1;
}

static int unmake(void **state)
{
    (void)state;
    butler_session_free(session);
    free_engine(engine);
    return 0;
}

static void test_models(void **state)
{
    struct butler_chat_text text;
    uint64_t fingerprint;
    size_t n = 1;
    (void)state;
    struct butler_file_info file = {BUTLER_INIT(butler_file_info)};
    GIVES_NULL("path", butler_model_load, NULL, NULL, &err);
    FAILS("path", butler_file_describe, NULL, &file, &err);
    FAILS("info", butler_file_describe, "x", NULL, &err);
    FAILS("model", butler_model_fingerprint, NULL, &fingerprint, &err);
    FAILS("fingerprint", butler_model_fingerprint, model, NULL, &err);
    FAILS("model", butler_chat_render, NULL, NULL, 0, NULL, &text, &err);
    FAILS("messages", butler_chat_render, model, NULL, 1, NULL, &text, &err);
    FAILS("text", butler_chat_render, model, NULL, 0, NULL, NULL, &err);
    FAILS("model", butler_chat_tokenize, NULL, &text, 0, NULL, 0, &err);
    FAILS("text", butler_chat_tokenize, model, NULL, 0, NULL, 0, &err);
    text = (struct butler_chat_text){0};
    assert_int_equal(butler_chat_tokenize(model, &text, 0, NULL, 9, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_chat_render(model, &(struct butler_chat_message){0}, 1,
                                        &(struct butler_chat_options){.jinja = "{{ messages[0].role }}"}, &text, &err),
                     BUTLER_ERROR_FORMAT); /* a message without a role */
    FAILS("model", butler_tokenize, NULL, "a", 1, 0, NULL, 0, &err);
    assert_int_equal(butler_tokenize(model, NULL, 1, 0, NULL, 0, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_tokenize(model, "a", 1, 0, NULL, 1, &err), BUTLER_ERROR_ARGUMENT);
    assert_null(butler_token_bytes(NULL, 1, &n));
    assert_int_equal(n, 0);
    assert_null(butler_token_bytes(model, 1, NULL));
    assert_null(butler_token_spelling(NULL, 1, &n));
    assert_null(butler_token_spelling(model, 1, NULL));
    assert_int_equal(butler_token_bos(NULL), -1);
    assert_false(butler_token_is_end(NULL, 1));
    assert_int_equal(butler_model_fim(NULL).prefix, -1);
    assert_int_equal(butler_utf8_push(NULL, "a", 1, (char[4]){0}, 4), 0);
    assert_int_equal(butler_utf8_push(&(struct butler_utf8){0}, "a", 1, NULL, 4), 0);
    assert_null(butler_model_get_info(NULL));
    assert_int_equal(butler_kv_bytes(NULL, BUTLER_KV_F16, 10), 0);
    butler_model_free(NULL);
    butler_chat_text_free(NULL);
}

static void test_engines(void **state)
{
    const struct butler_metric metric = {.abi = BUTLER_METRIC_ABI};
    struct butler_engine_info info = {.n_threads = 7};
    struct butler_policy_info policy = {BUTLER_INIT(butler_policy_info)};
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    struct butler_predictor_info predictor = {BUTLER_INIT(butler_predictor_info)};
    (void)state;
    GIVES_NULL("model", butler_engine_new, NULL, NULL, &err);
    FAILS("engine", butler_predictor_attach, NULL, "x", &err);
    FAILS("path", butler_predictor_attach, engine, NULL, &err);
    FAILS("engine", butler_metric_register, NULL, &metric, &err);
    FAILS("metric", butler_metric_register, engine, NULL, &err);
    FAILS("engine", butler_plugin_load, NULL, "x", &err);
    FAILS("path", butler_plugin_load, engine, NULL, &err);
    FAILS("engine", butler_policy_estimate, NULL, "full", BUTLER_KV_F16, 10, &cost, &err);
    FAILS("cost", butler_policy_estimate, engine, "full", BUTLER_KV_F16, 10, NULL, &err);
    assert_int_equal(butler_policy_estimate(engine, NULL, BUTLER_KV_F16, 10, &cost, &err), 0);
    assert_int_equal(butler_policy_check(NULL, NULL, &err), 0);
    assert_int_equal(butler_policy_check(NULL, "no such policy", NULL), BUTLER_ERROR_ARGUMENT); /* *err may be NULL */
    assert_true(butler_policy_describe(NULL, 0, &policy));
    assert_false(butler_policy_describe(engine, 0, NULL));
    assert_null(butler_policy_paper(NULL));
    assert_null(butler_policy_help(engine, NULL, "no such parameter"));
    assert_null(butler_policy_help(engine, "exact", NULL));
    assert_non_null(butler_policy_help(NULL, NULL, "budget"));
    assert_false(butler_predictor_describe(NULL, 1, &predictor));
    assert_false(butler_predictor_describe(engine, 1, NULL));
    assert_null(butler_engine_model(NULL));
    butler_engine_get_info(engine, NULL);
    assert_false(butler_device_describe(0, NULL));
    butler_engine_get_info(NULL, &info);
    assert_int_equal(info.n_threads, 0);
    butler_engine_free(NULL);
}

static void test_sessions(void **state)
{
    const int32_t id = 1;
    const struct butler_span nobody = {.ids = &id, .n = 1};
    struct butler_session *none = NULL;
    struct butler_stats stats = {.n_decode = 7};
    struct butler_audit audit = {BUTLER_INIT(butler_audit)};
    int32_t ids[4];
    (void)state;
    GIVES_NULL("engine", butler_session_new, NULL, NULL, &err);
    GIVES_NULL("engine", butler_session_restore, NULL, "x", 0, &err);
    GIVES_NULL("path", butler_session_restore, engine, NULL, 0, &err);
    GIVES_NULL("engine", butler_session_restore_fd, NULL, 0, 0, &err);
    GIVES_NULL("session", butler_session_fork, NULL, &err);
    FAILS("engine", butler_run, NULL, &nobody, 1, &err);
    FAILS("spans", butler_run, engine, NULL, 1, &err);
    assert_int_equal(butler_run(engine, &nobody, 1, &err), BUTLER_ERROR_ARGUMENT);
    FAILS("session", butler_prefill, NULL, &id, 1, NULL, NULL, &err);
    assert_int_equal(butler_prefill(session, NULL, 1, NULL, NULL, &err), BUTLER_ERROR_ARGUMENT);
    FAILS("session", butler_step, NULL, 1, &err);
    FAILS("sessions", butler_step_batch, NULL, &id, 1, &err);
    FAILS("ids", butler_step_batch, &session, NULL, 1, &err);
    assert_int_equal(butler_step_batch(&none, &id, 1, &err), BUTLER_ERROR_ARGUMENT);
    FAILS("session", butler_session_truncate, NULL, 0, &err);
    FAILS("session", butler_session_adopt_prefix, NULL, &id, 1, &err);
    FAILS("ids", butler_session_adopt_prefix, session, NULL, 1, &err);
    FAILS("session", butler_session_set_prefix_salt, NULL, 1, &err);
    FAILS("session", butler_session_find_prefix, NULL, &id, 1, &err);
    FAILS("ids", butler_session_find_prefix, session, NULL, 1, &err);
    FAILS("session", butler_session_use_library, NULL, NULL, &err);
    FAILS("session", butler_fill, NULL, 1, 1, &err);
    FAILS("session", butler_session_save, NULL, "x", &err);
    FAILS("path", butler_session_save, session, NULL, &err);
    FAILS("session", butler_session_save_fd, NULL, 0, &err);
    FAILS("to", butler_session_copy, NULL, session, &err);
    FAILS("from", butler_session_copy, session, NULL, &err);
    assert_null(butler_logits(NULL));
    assert_int_equal(butler_n_past(NULL), 0);
    assert_int_equal(butler_n_ctx(NULL), 0);
    assert_false(butler_should_stop(NULL));
    assert_int_equal(butler_last_selection(NULL, 0, 0, ids, 4), 0);
    assert_int_equal(butler_last_selection(session, 0, 0, NULL, 4), 0);
    FAILS("session", butler_session_audit, NULL, &audit, &err);
    FAILS("audit", butler_session_audit, session, NULL, &err);
    FAILS("session", butler_session_keep_receipt, NULL, 1, &err);
    assert_int_equal(butler_session_receipt(NULL, NULL, NULL), 0);
    assert_int_equal(butler_session_receipt(session, NULL, NULL), 0);
    FAILS("session", butler_session_on_attention, NULL, NULL, NULL, &err);
    FAILS("session", butler_session_add_step, NULL, "x", &err);
    FAILS("text", butler_session_add_step, session, NULL, &err);
    FAILS("session", butler_session_set_policy, NULL, "full", &err);
    FAILS("policy", butler_session_set_policy, session, NULL, &err);
    FAILS("engine", butler_step_register, NULL, NULL, &err);
    FAILS("plugin", butler_step_register, engine, NULL, &err);
    struct butler_policy_parts parts = {BUTLER_INIT(butler_policy_parts)};
    struct butler_vector_loops loops = {BUTLER_INIT(butler_vector_loops)};
    FAILS("engine", butler_policy_read, NULL, "full", &parts, &err);
    FAILS("parts", butler_policy_read, engine, "full", NULL, &err);
    assert_false(butler_policy_can_adopt(NULL, "full", "full"));
    FAILS("session", butler_session_adopt, NULL, session, &err);
    FAILS("from", butler_session_adopt, session, NULL, &err);
    FAILS("session", butler_session_set_budget, NULL, 1, &err);
    FAILS("session", butler_session_unread, NULL, &err);
    FAILS("session", butler_session_set_capture, NULL, NULL, &err);
    assert_false(butler_session_can_unread(NULL, 1));
    assert_true(butler_session_metric_bytes(NULL, 1, 1) == 0);
    assert_int_equal(butler_model_window(NULL, 0), 0);
    GIVES_NULL("engine", butler_engine_clone, NULL, 1, 0, &err);
    butler_engine_vector_loops(NULL, &loops);
    butler_engine_vector_loops(engine, NULL);
    assert_null(loops.dot);
    assert_null(butler_policy_of(NULL));
    assert_int_equal(butler_step_list(NULL, NULL, 0), 0);
    butler_session_stats(session, NULL);
    butler_session_stats(NULL, &stats);
    assert_int_equal(stats.n_decode, 0);
    butler_session_stats_reset(NULL);
    butler_session_on_progress(NULL, NULL, NULL);
    butler_session_cancel(NULL);
    butler_session_free(NULL);
}

static void test_drafts(void **state)
{
    int32_t ids[4];
    (void)state;
    struct butler_session *drafting = butler_session_new(engine, &(struct butler_session_params){.policy = "verified"}, NULL);
    struct butler_draft *draft = butler_draft_new(drafting, NULL, NULL);
    struct butler_sampler *sampler = butler_sampler_new(NULL, NULL);
    assert_null(butler_sampler_new(&(struct butler_sampler_params){BUTLER_INIT(butler_sampler_params), .n_logit_bias = 2}, &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    assert_null(butler_sampler_new(&(struct butler_sampler_params){BUTLER_INIT(butler_sampler_params), .n_end_ids = 2}, &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    assert_non_null(draft);
    GIVES_NULL("session", butler_draft_new, NULL, NULL, &err);
    FAILS("draft", butler_draft_step, NULL, sampler, 1, ids, 4, &err);
    FAILS("sampler", butler_draft_step, draft, NULL, 1, ids, 4, &err);
    FAILS("ids", butler_draft_step, draft, sampler, 1, NULL, 4, &err);
    FAILS("draft", butler_draft_keep, NULL, sampler, 1, &err);
    FAILS("sampler", butler_draft_keep, draft, NULL, 1, &err);
    butler_draft_free(draft);
    butler_draft_free(NULL);
    butler_sampler_free(sampler);
    butler_session_free(drafting);
}

static bool no_entry(void *user, const struct butler_library_entry *entry)
{
    (void)user, (void)entry;
    return false;
}

static void test_libraries(void **state)
{
    const struct butler_library_params nowhere = {0};
    struct butler_library_info info = {.bytes = 7};
    (void)state;
    GIVES_NULL("params", butler_library_open, NULL, &err);
    GIVES_NULL("params->folder", butler_library_open, &nowhere, &err);
    FAILS("library", butler_library_list, NULL, no_entry, NULL, &err);
    FAILS("session", butler_session_keep_at, NULL, 1, &err);
    FAILS("library", butler_library_remove, NULL, NULL, &err);
    FAILS("library", butler_library_verify, NULL, &err);
    FAILS("library", butler_library_export, NULL, "x", NULL, &err);
    butler_library_get_info(NULL, &info);
    assert_int_equal(info.bytes, 0);
    butler_library_get_info(NULL, NULL);
    butler_library_free(NULL);
}

static void test_samplers(void **state)
{
    const float logits[] = {1, 2};
    struct butler_sampler *sampler = butler_sampler_new(NULL, &err);
    (void)state;
    GIVES_NULL("model", butler_grammar_new, NULL, "root ::= .", &err);
    GIVES_NULL("gbnf", butler_grammar_new, model, NULL, &err);
    butler_grammar_free(NULL);
    FAILS("sampler", butler_sampler_accept, NULL, NULL, 0, &err);
    FAILS("session", butler_generate, NULL, NULL, 1, NULL, NULL, &err);
    FAILS("sampler", butler_sample, NULL, logits, 2, &err);
    FAILS("logits", butler_sample, sampler, NULL, 2, &err);
    FAILS("sampler", butler_sampler_prepare, NULL, logits, 2, 1, &err);
    FAILS("logits", butler_sampler_prepare, sampler, NULL, 2, 1, &err);
    assert_int_equal(butler_sampler_prepare(sampler, logits, 2, 0, &err), BUTLER_ERROR_ARGUMENT);
    assert_int_equal(butler_sampler_prepare(sampler, logits, 2, 1, &err), 1); /* it has no grammar */
    assert_int_equal(butler_sample(sampler, logits, 0, &err), BUTLER_ERROR_ARGUMENT);
    butler_sampler_free(sampler);
    butler_sampler_free(NULL);
}

static void test_views(void **state)
{
    const struct butler_head_view view = {.n_slots = 1};
    float out[4] = {7, 7, 7, 7};
    (void)state;
    assert_int_equal(butler_view_layer(NULL), 0);
    assert_int_equal(butler_view_kv_head(NULL), 0);
    assert_int_equal(butler_view_n_slots(NULL), 0);
    assert_int_equal(butler_view_query_position(NULL), 0);
    assert_int_equal(butler_view_position(NULL, 3), 0);
    assert_null(butler_view_record(NULL, 3));
    assert_null(butler_view_state(NULL));
    butler_view_key(NULL, 0, out);
    butler_view_key(&view, 0, NULL);
    butler_view_value(NULL, 0, out);
    butler_view_value(&view, 0, NULL);
    butler_view_keys(NULL, 0, 1, out);
    butler_view_keys(&view, 0, 1, NULL);
    butler_view_values(NULL, 0, 1, out);
    butler_view_values(&view, 0, 1, NULL);
    butler_view_dot_keys(NULL, out, 1, 0, 1, out, 1);
    butler_view_dot_keys(&view, NULL, 1, 0, 1, out, 1);
    butler_view_dot_keys(&view, out, 1, 0, 1, NULL, 1);
    butler_view_dot_layer(NULL, 0, 1, 0, 1, out, 1);
    butler_view_dot_layer(&view, 0, 1, 0, 1, NULL, 1);
    for (int i = 0; i < 4; i++)
        assert_true(out[i] == 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models), cmocka_unit_test(test_engines),   cmocka_unit_test(test_sessions),
        cmocka_unit_test(test_drafts), cmocka_unit_test(test_libraries), cmocka_unit_test(test_samplers),
        cmocka_unit_test(test_views),
    };
    return cmocka_run_group_tests(tests, make, unmake);
}
