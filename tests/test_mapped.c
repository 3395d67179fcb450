/* Texts of the library under a bound on memory: their rows are not copied, but read from the library's files when they are wanted.
 * What a session computes has the same bits as with all in memory; a file that is damaged, cut off or cannot be read is named, and
 * its text read again, or the session ends with an error; one that is removed meanwhile can still be read. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "damage.h"
#include "library_tests.h"
#include "share.h"
#include "trouble.h"
#include "engine/prefix.h"

static const char *const unnamed[] = {"h2o+vatp",
                                      "quest:method=evict,dense=0",
                                      "h2o:method=retrieve",
                                      "streaming:rope=cache",
                                      "tokenbutler2:on_top=0,sinks=4,recent=8,share=query,keys=int8",
                                      "quest:dense=0,share=layer"};

/* A text in a library, and an engine that has little more than a layer of it in memory. */
struct mapped {
    struct context c;
    struct butler_engine *resident, *spilled;
    struct butler_library *library;
    struct trouble trouble;
    struct butler_session *alone; /* of the policy that read_alone was given: resident, at the prompt's end */
};

/* prefix_bytes: of the engine with little memory. */
static void open_mapped(struct mapped *m, int model, bool threads, uint64_t prefix_bytes)
{
    *m = (struct mapped){.trouble = {.at = -1, .random = 7}};
    open_model(&m->c, &models[model], 0);
    m->library = open_library(&m->c, 1 << 30);
    m->resident = m->c.engine;
    const struct butler_engine_params params = {.n_threads = 2,
                                                .n_block = 128,
                                                .kv_bytes = 1 << 26,
                                                .kv_ram = layer_bytes(m->c.model, m->c.type, N_CTX) * 5 / 4,
                                                .prefix_bytes = prefix_bytes};
    m->spilled = spilled_engine(m->c.model, &m->trouble, &params, threads);
    struct butler_session *first = open_session(&m->c, "full", m->library, 0);
    assert_int_equal(read_text(first, m->c.text, N_KEPT), 0);
    butler_session_free(first);
}

static void close_mapped(struct mapped *m)
{
    butler_session_free(m->alone);
    butler_library_free(m->library);
    butler_engine_free(m->spilled);
    m->c.engine = m->resident;
    close_model(&m->c);
}

static struct butler_session *spilled_session(struct mapped *m, const char *policy)
{
    m->c.engine = m->spilled;
    struct butler_session *session = open_session(&m->c, policy, m->library, 0);
    m->c.engine = m->resident;
    return session;
}

static void read_alone(struct mapped *m, const char *policy)
{
    butler_session_free(m->alone);
    m->alone = open_session(&m->c, policy, NULL, 0);
    read_text(m->alone, m->c.text, N_PROMPT);
}

static void assert_prompt(const struct mapped *m, const struct butler_session *session, const char *what)
{
    if (memcmp(butler_logits(m->alone), butler_logits(session), (size_t)m->c.model->hp.n_vocab * sizeof(float)) != 0)
        fail_msg("%s: other logits", what);
}

/* ------------------------------------------------------------------------------------------------ equality */

static void check_policy(struct mapped *m, const char *name)
{
    char policy[256], file[64];
    struct butler_error err;
    const bool dense = strcmp(name, "full") == 0 || strncmp(name, "entropystop", 11) == 0;
    snprintf(policy, sizeof policy, dense ? "%s" : "%s%c%s=%d", name, strchr(name, ':') ? ',' : ':',
             strncmp(name, "softprune", 9) == 0 ? "min" : "budget", BUDGET);
    if (butler_policy_check(m->resident, policy, &err) < 0)
        return;
    read_alone(m, policy);
    struct butler_session *hit = spilled_session(m, policy);
    const int known = read_text(hit, m->c.text, N_PROMPT);
    if (!hit->policy.rope_in_cache && butler_prefix_shareable(hit, N_PROMPT) >= N_KEPT && known < N_KEPT)
        fail_msg("%s: %d tokens were known", policy, known);
    assert_same(&m->c, m->alone, hit, policy);
    struct butler_session *fork = butler_session_fork(hit, &err);
    if (!fork)
        fail_msg("%s: %s", policy, err.message);
    assert_same(&m->c, m->alone, fork, policy);
    butler_session_free(fork);
    /* Into the middle of a page that lies in a file, and other tokens from there on. */
    if (butler_session_truncate(hit, N_KEPT - 70, &err) == 0) {
        if (butler_session_truncate(m->alone, N_KEPT - 70, &err) < 0 || butler_step(hit, m->c.text[0], &err) < 0 ||
            butler_step(m->alone, m->c.text[0], &err) < 0)
            fail_msg("%s: %s", policy, err.message);
        assert_same(&m->c, m->alone, hit, policy);
        snprintf(file, sizeof file, "/tmp/butler-test-mapped-%d", (int)getpid());
        if (butler_session_save(hit, file, &err) < 0)
            fail_msg("%s: %s", policy, err.message);
        butler_session_free(hit);
        hit = butler_session_restore(m->spilled, file, 0, &err);
        if (!hit)
            fail_msg("%s: %s", policy, err.message);
        assert_same(&m->c, m->alone, hit, policy);
        unlink(file);
    }
    butler_session_free(hit);
}

static void test_equality(void **state)
{
    (void)state;
    for (int i = 0; i < BUTLER_COUNT(models); i += i == 0 ? 2 : 1) { /* F32 has no other pieces than F16 */
        struct mapped m;
        struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
        open_mapped(&m, i, i % 2, 0);
        m.trouble.shaky = true;
        for (int p = 0; butler_policy_describe(m.resident, p, &info); p++)
            if (in_share(i + p) && strcmp(info.name, "layer0") != 0 && strcmp(info.name, "prevlayer") != 0)
                check_policy(&m, info.name);
        for (int p = 0; p < BUTLER_COUNT(unnamed); p++)
            if (in_share(i + p))
                check_policy(&m, unnamed[p]);
        if (m.c.n_notes)
            fail_msg("%s", m.c.notes);
        close_mapped(&m);
    }
}

/* What is taken from the library is not read before it is wanted, and never written to the engine's own file. */
static void test_nothing_is_copied(void **state)
{
    static const char *const policies[] = {"full", "fier:budget=64,dense=0"};
    (void)state;
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        struct mapped m;
        struct butler_error err;
        open_mapped(&m, 0, false, 0);
        struct butler_session *hit = spilled_session(&m, policies[p]);
        assert_int_equal(butler_session_adopt_prefix(hit, m.c.text, N_PROMPT, &err), N_KEPT);
        if ((m.trouble.n > 0) != (p > 0))
            fail_msg("%s: %d requests", policies[p], m.trouble.n); /* one-bit keys are made of the keys */
        assert_int_equal(butler_prefill(hit, m.c.text + N_KEPT, 3, NULL, NULL, &err), 0);
        assert_true(m.trouble.n > 0);
        assert_int_equal(m.trouble.n_writes, 0);
        butler_session_free(hit);
        close_mapped(&m);
    }
}

/* -------------------------------------------------------------------------------------------------- faults */

/* A file that is damaged before the rows are taken, or between that and the first pass over them: the text is right, the file is
 * named, and whole again afterwards. `early` false: one that was removed can still be read. */
static void check_damage(struct mapped *m, const char *policy, const char *name, bool early, int fault)
{
    struct butler_error err = {0};
    int n, known = 0;
    struct butler_library_file *files = files_of(m->library, &n);
    char *path = NULL, *other = NULL;
    for (int i = 0; i < n; i++)
        if (!strcmp(files[i].name, name)) {
            path = butler_library_path(m->library, files[i].kind, files[i].name);
            other = butler_library_path(m->library, files[i].kind, files[(i + 1) % n].name);
        }
    m->c.notes[0] = 0;
    m->c.n_notes = 0;
    struct butler_session *hit = spilled_session(m, policy), *third = spilled_session(m, policy);
    if (early)
        damage(path, other, fault);
    known = butler_session_adopt_prefix(hit, m->c.text, N_PROMPT, &err);
    assert_true(early ? known >= 0 : known == N_PROMPT - 1);
    if (!early)
        damage(path, other, fault);
    for (int done = known, part; done < N_PROMPT; done += part) { /* in two spans */
        part = done + 20 < N_PROMPT ? 20 : N_PROMPT - done;
        const struct butler_span span = {.session = hit, .ids = m->c.text + done, .n = part, .prompt_end = N_PROMPT};
        if (butler_run(m->spilled, &span, 1, &err) < 0)
            fail_msg("%s, fault %d, early %d: %s", policy, fault, early, err.message);
    }
    assert_prompt(m, hit, policy);
    /* Nothing but rows is read again. Of those that metrics have read some are still in memory. */
    const bool missed = strcmp(policy, "full") == 0 && (fault == 2 || fault == 3 || fault == 6 || fault == 7);
    if (fault != GONE && (early || missed) && !strstr(m->c.notes, name))
        fail_msg("%s, fault %d, early %d: not named: %s", policy, fault, early, m->c.notes);
    if (fault == GONE && !early && (m->c.n_notes || n_read(hit) != 1))
        fail_msg("a file that was removed was not in use");
    butler_session_free(hit);
    if (!early && !strstr(m->c.notes, name))
        unlink(path); /* what is damaged elsewhere than in its rows was not noticed by who had it open */
    read_text(third, m->c.text, N_PROMPT);
    assert_prompt(m, third, policy);
    butler_session_free(third);
    third = spilled_session(m, policy);
    assert_int_equal(read_text(third, m->c.text, N_PROMPT), N_PROMPT - 1);
    butler_session_free(third);
    free(path);
    free(other);
    free(files);
}

static void test_damage(void **state)
{
    static const char *const policies[] = {"full", "fier:budget=64,dense=0"};
    (void)state;
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        struct mapped m;
        int n;
        open_mapped(&m, 0, p, 0);
        read_alone(&m, policies[p]);
        struct butler_session *all = spilled_session(&m, policies[p]);
        read_text(all, m.c.text, N_PROMPT);
        butler_session_free(all);
        struct butler_library_file *files = files_of(m.library, &n);
        for (int i = 0; i < n; i++)
            for (int fault = 0; fault < N_FAULTS; fault++) {
                if (in_share(i + fault))
                    check_damage(&m, policies[p], files[i].name, true, fault);
                if (in_share(i + fault + 1))
                    check_damage(&m, policies[p], files[i].name, false, fault);
            }
        free(files);
        close_mapped(&m);
    }
}

/* Decodes behind the prompt, with the logits of the session that has all rows in memory, until an error: its code. */
static int decode_beside(const struct mapped *m, struct butler_session *hit, struct butler_error *err)
{
    struct butler_session *copy = butler_session_fork(m->alone, err);
    int code = 0;
    assert_non_null(copy);
    for (int i = 0; i < N_STEPS && code == 0; i++) {
        assert_int_equal(butler_step(copy, m->c.text[i], err), 0);
        code = butler_step(hit, m->c.text[i], err);
        if (code == 0)
            assert_memory_equal(butler_logits(copy), butler_logits(hit), (size_t)m->c.model->hp.n_vocab * sizeof(float));
    }
    butler_session_free(copy);
    return code;
}

/* A file that changes when its rows have been checked already, while tokens are decoded: they are the right ones, or an error names
 * the file. From then on the text is read again, also where the prefix cache had it. */
static void check_late_damage(const char *policy, bool threads)
{
    for (int fault = 2; fault < 8; fault += fault == 3 ? 3 : 1) {
        struct mapped m;
        struct butler_error err = {0};
        int n;
        open_mapped(&m, 0, threads, 1 << 22);
        read_alone(&m, policy);
        struct butler_session *hit = spilled_session(&m, policy), *next = spilled_session(&m, policy);
        read_text(hit, m.c.text, N_PROMPT);
        assert_true(butler_session_adopt_prefix(next, m.c.text, N_PROMPT, &err) > 0);
        struct butler_library_file *files = files_of(m.library, &n);
        for (int i = 0; i < n; i++) {
            char *path = butler_library_path(m.library, files[i].kind, files[i].name);
            damage(path, path, fault);
            free(path);
        }
        const int code = decode_beside(&m, hit, &err);
        if (code < 0 && (code != BUTLER_ERROR_FORMAT || !strstr(err.message, m.c.folder)))
            fail_msg("%s, fault %d: %d: %s", policy, fault, code, err.message);
        if (fault > 3 && code == 0)
            fail_msg("rows behind a file's end were not missed");
        const int known = butler_n_past(next);
        if (butler_prefill(next, m.c.text + known, N_PROMPT - known, NULL, NULL, &err) < 0)
            fail_msg("%s", err.message);
        assert_prompt(&m, next, "after damage");
        assert_true(m.c.n_notes > 0);
        free(files);
        butler_session_free(next);
        butler_session_free(hit);
        close_mapped(&m);
    }
}

/* Rows that a step reads, and rows that were prefetched for it. */
static void test_late_damage(void **state)
{
    (void)state;
    check_late_damage("fier:budget=64,dense=0", false);
    for (int threads = 0; threads < 2; threads++)
        check_late_damage("tokenbutler2:on_top=0,sinks=4,recent=8,budget=32,page=16", threads);
}

/* Whatever request fails, the text is the right one, or an error of a decode step says why not. */
static void check_requests(bool threads, const char *policy)
{
    struct mapped m;
    struct butler_error err = {0};
    open_mapped(&m, 0, threads, 0);
    read_alone(&m, policy);
    struct butler_session *hit = spilled_session(&m, policy);
    int n = 1 << 30;
    for (int at = -1; at < n; at += at < 0 ? 1 : BUTLER_MAX(n / share_of(24), 1)) {
        assert_int_equal(butler_session_truncate(hit, 0, &err), 0);
        butler_session_free(hit);
        hit = spilled_session(&m, policy);
        m.trouble.at = at;
        m.trouble.error = EIO;
        m.trouble.n = 0;
        const int known = butler_session_adopt_prefix(hit, m.c.text, N_PROMPT, &err);
        if (known < N_KEPT || butler_prefill(hit, m.c.text + known, N_PROMPT - known, NULL, NULL, &err) < 0)
            fail_msg("request %d of %d: %d tokens, %s", at, n, known, err.message);
        assert_prompt(&m, hit, policy);
        const int code = decode_beside(&m, hit, &err);
        if (code < 0 && (code != BUTLER_ERROR_IO || !strstr(err.message, strerror(EIO))))
            fail_msg("request %d of %d: %d, %s", at, n, code, err.message);
        n = at < 0 ? m.trouble.n : n;
    }
    butler_session_free(hit);
    close_mapped(&m);
}

static void test_requests(void **state)
{
    (void)state;
    check_requests(false, "full");
    check_requests(true, "fier:budget=64,dense=0");
}

/* More files than may be open: the others are copied. */
static void test_many_files(void **state)
{
    struct mapped m;
    struct rlimit before, few;
    struct butler_session *sessions[4];
    (void)state;
    open_mapped(&m, 0, false, 0);
    read_alone(&m, "full");
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    const int next = dup(0);
    close(next);
    few = (struct rlimit){.rlim_cur = (rlim_t)next + 12, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    for (int i = 0; i < BUTLER_COUNT(sessions); i++) { /* of three files each */
        sessions[i] = spilled_session(&m, "full");
        const int known = read_text(sessions[i], m.c.text, N_PROMPT);
        if (known != (i == 0 ? N_KEPT : N_PROMPT - 1))
            fail_msg("session %d: %d tokens known; %s", i, known, m.c.notes);
        assert_prompt(&m, sessions[i], "few files");
    }
    assert_true(m.trouble.n_writes > 0);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    for (int i = 0; i < BUTLER_COUNT(sessions); i++)
        butler_session_free(sessions[i]);
    if (m.c.n_notes)
        fail_msg("%s", m.c.notes);
    close_mapped(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equality), cmocka_unit_test(test_nothing_is_copied),
                                       cmocka_unit_test(test_damage),   cmocka_unit_test(test_late_damage),
                                       cmocka_unit_test(test_requests), cmocka_unit_test(test_many_files)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
