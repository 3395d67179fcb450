/* The library: what a session computes has the same bits whether it read its text or found it, under every policy; what is damaged,
 * cut off, foreign or gone is read again; the folder keeps to its limit. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cmocka.h>

#include "damage.h"
#include "library_tests.h"
#include "share.h"
#include "engine/prefix.h"

/* System calls on files while `armed`: the one with the number fails_at fails. Of the C library's functions, which these replace in
 * this program, the same is done by other means. */
static struct {
    bool armed;
    int n, fails_at, error;
} calls = {.fails_at = -1};

static bool call_fails(void)
{
    if (!calls.armed || calls.n++ != calls.fails_at)
        return false;
    errno = calls.error;
    return true;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    const int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(args, int) : 0;
    va_end(args);
    return call_fails() ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

ssize_t pread(int fd, void *buffer, size_t n, off_t at)
{
    return call_fails() ? -1 : (ssize_t)syscall(SYS_pread64, fd, buffer, n, at);
}

size_t fwrite(const void *bytes, size_t size, size_t n, FILE *file)
{
    return call_fails() ? 0 : fwrite_unlocked(bytes, size, n, file);
}

int fflush(FILE *file)
{
    return call_fails() ? EOF : fflush_unlocked(file);
}

int linkat(int from, const char *old, int to, const char *new, int flags)
{
    return call_fails() ? -1 : (int)syscall(SYS_linkat, from, old, to, new, flags);
}

static const char *const unnamed[] = {"h2o+vatp",
                                      "fier+vatp:dense=1",
                                      "snapkv:rolling=1,recent=8,window=8",
                                      "quest:method=evict,dense=0",
                                      "h2o:method=retrieve",
                                      "streaming:rope=cache",
                                      "tokenbutler2:on_top=0,sinks=4,recent=8,share=query,keys=int8",
                                      "fier:scan=1,dense=0",
                                      "knorm:prefill=evict",
                                      "quest:dense=0,every=3",
                                      "pagestats:method=evict,page=32",
                                      "layer0:dense=2"};

/* ------------------------------------------------------------------------------------------------ equality */

static void with_budget(const char *policy, char out[256])
{
    const bool dense = strcmp(policy, "full") == 0 || strncmp(policy, "entropystop", 11) == 0;
    snprintf(out, 256, dense ? "%s" : "%s%c%s=%d", policy, strchr(policy, ':') ? ',' : ':',
             strncmp(policy, "softprune", 9) == 0 ? "min" : "budget", BUDGET);
}

/* Of what was read under `full`, a session of the policy computes what it would have computed; and the other way round. */
static void check_policy(struct context *c, struct butler_library *full, const char *name)
{
    char policy[256], folder[64];
    struct butler_error err;
    with_budget(name, policy);
    if (butler_policy_check(c->engine, policy, &err) < 0)
        return;
    struct butler_session *alone = open_session(c, policy, NULL, 0), *hit = open_session(c, policy, full, 0);
    const int known = read_text(hit, c->text, N_PROMPT), most = butler_prefix_shareable(hit, N_PROMPT);
    /* Sessions before it kept the whole prompt, some with a state. Of unrotated keys nothing was kept under `full`. */
    if (!hit->policy.rope_in_cache && known != BUTLER_MIN(most, N_KEPT) && known != most &&
        !(butler_shelf_has_states(hit) && known == N_PROMPT - 1))
        fail_msg("%s: %d tokens were known", policy, known);
    read_text(alone, c->text, N_PROMPT);
    assert_same(c, alone, hit, policy);
    butler_session_free(alone);
    butler_session_free(hit);

    memcpy(folder, c->folder, sizeof folder);
    snprintf(c->folder, sizeof c->folder, "/tmp/butler-test-library-XXXXXX");
    assert_non_null(mkdtemp(c->folder));
    struct butler_library *own = open_library(c, 1 << 30);
    struct butler_session *reader = open_session(c, policy, own, 0), *later = open_session(c, "full", own, 0),
                          *fresh = open_session(c, "full", NULL, 0);
    read_text(reader, c->text, N_PROMPT);
    const int found = read_text(later, c->text, N_PROMPT);
    if (!reader->policy.rope_in_cache && !reader->policy.prefill_evict && found != N_PROMPT - 1)
        fail_msg("%s: of what it read %d tokens are kept", policy, found);
    read_text(fresh, c->text, N_PROMPT);
    assert_same(c, fresh, later, policy);
    butler_session_free(reader);
    butler_session_free(later);
    butler_session_free(fresh);
    butler_library_free(own);
    nftw(c->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    memcpy(c->folder, folder, sizeof folder);
}

static void test_equality(void **state)
{
    (void)state;
    for (int m = 0; m < BUTLER_COUNT(models); m++) {
        struct context c;
        struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
        open_model(&c, &models[m], 0);
        struct butler_library *library = open_library(&c, 1 << 30);
        struct butler_session *first = open_session(&c, "full", library, 0);
        assert_int_equal(read_text(first, c.text, N_KEPT), 0);
        butler_session_free(first);
        for (int i = 0; butler_policy_describe(c.engine, i, &info); i++)
            if (in_share(m + i))
                check_policy(&c, library, info.name);
        for (int i = 0; i < BUTLER_COUNT(unnamed); i++)
            if (in_share(m + i))
                check_policy(&c, library, unnamed[i]);
        if (c.n_notes)
            fail_msg("%s", c.notes);
        butler_library_free(library);
        close_model(&c);
    }
}

/* The longest common beginning is taken, wherever it ends; the context's length and the prefix cache change nothing. */
static void test_beginnings(void **state)
{
    static const int ends[] = {7, 8, 100, 255, 256, 257, 400, 512, 530, 599};
    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        struct context c;
        open_model(&c, &models[0], cached ? 1 << 22 : 0);
        struct butler_library *library = open_library(&c, 1 << 30);
        struct butler_session *session = open_session(&c, "full", library, 0);
        assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
        butler_session_free(session);
        for (int i = 0; i < BUTLER_COUNT(ends); i++) {
            int32_t other[N_PROMPT];
            memcpy(other, c.text, sizeof other);
            for (int j = ends[i]; j < N_PROMPT; j++)
                other[j] = (other[j] + 1) % c.model->hp.n_vocab;
            struct butler_session *hit = open_session(&c, "quest:budget=64", library, 0),
                                  *alone = open_session(&c, "quest:budget=64", NULL, 0);
            struct butler_error err;
            const int promised = butler_session_find_prefix(hit, other, N_PROMPT, &err);
            const int known = read_text(hit, other, N_PROMPT);
            assert_int_equal(known, promised);
            if (known != (ends[i] < 8 ? 0 : ends[i] % 256 < 8 ? ends[i] - ends[i] % 256 : ends[i]) && !(cached && known == ends[i]))
                fail_msg("%d tokens in common: %d known", ends[i], known);
            assert_int_equal(butler_prefill(alone, other, N_PROMPT, NULL, NULL, &err), 0);
            assert_same(&c, alone, hit, "quest");
            butler_session_free(hit);
            butler_session_free(alone);
        }
        butler_library_free(library);
        close_model(&c);
    }
}

/* Another salt, KV type or rotation has nothing in common; another policy has all. */
static void test_kinds(void **state)
{
    struct context c;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "full", library, 11);
    assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
    butler_session_free(session);
    session = open_session(&c, "fier:budget=64", library, 11);
    assert_int_equal(read_text(session, c.text, N_PROMPT), N_PROMPT - 1);
    butler_session_free(session);
    static const uint64_t others[] = {12, 0};
    for (int i = 0; i < 2; i++) {
        session = open_session(&c, "full", library, others[i]);
        assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
        butler_session_free(session);
    }
    c.type = BUTLER_KV_Q8_0;
    struct butler_error err;
    struct butler_session_params params = {.n_ctx = N_CTX, .kv_type = BUTLER_KV_F32};
    session = butler_session_new(c.engine, &params, &err);
    assert_int_equal(butler_session_use_library(session, library, &err), 0);
    assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
    butler_session_free(session);
    butler_library_free(library);
    close_model(&c);
}

/* --------------------------------------------------------------------------------------------------- states */

enum { N_DOCUMENT = 530 };

/* A text, another that goes on differently behind a document, and the first one with more behind it: what cannot be made again of
 * keys and values is found where the document and where the text ended, by every budget, and by no other metric. */
static void check_states(struct context *c, const char *name)
{
    static const struct {
        int other_from, n, known;
    } cases[] = {{N_DOCUMENT, N_KEPT, 0}, {N_DOCUMENT, N_PROMPT, N_DOCUMENT}, {N_KEPT, N_PROMPT, N_KEPT - 1}, {100, N_PROMPT, 0}};
    char policy[256];
    struct butler_error err;
    with_budget(name, policy);
    if (butler_policy_check(c->engine, policy, &err) < 0)
        return;
    struct butler_library *library = open_library(c, 1 << 30);
    struct butler_session *session = open_session(c, policy, library, 0);
    const bool states = butler_shelf_has_states(session);
    butler_session_free(session);
    for (int i = 0; i < BUTLER_COUNT(cases) && states; i++) {
        int32_t text[N_PROMPT];
        for (int j = 0; j < N_PROMPT; j++)
            text[j] = (c->text[j] + (i > 0 && j >= cases[i].other_from)) % c->model->hp.n_vocab;
        struct butler_session *hit = open_session(c, policy, library, 0), *alone = open_session(c, policy, NULL, 0);
        assert_int_equal(butler_session_keep_at(hit, N_DOCUMENT, &err), 0);
        const int promised = butler_session_find_prefix(hit, text, cases[i].n, &err);
        const int known = read_text(hit, text, cases[i].n);
        if (known != cases[i].known || known != promised)
            fail_msg("%s, case %d: %d known, %d promised", policy, i, known, promised);
        read_text(alone, text, cases[i].n);
        assert_same(c, alone, hit, policy);
        butler_session_free(hit);
        butler_session_free(alone);
    }
    assert_true(butler_library_remove(library, NULL, &err) >= 0);
    assert_int_equal(library->bytes, 0); /* states go with their texts */
    butler_library_free(library);
}

static void test_states(void **state)
{
    (void)state;
    for (int m = 0; m < BUTLER_COUNT(models); m++) {
        struct context c;
        struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
        open_model(&c, &models[m], 0);
        for (int i = 0; butler_policy_describe(c.engine, i, &info); i++)
            if (in_share(m + i))
                check_states(&c, info.name);
        for (int i = 0; i < BUTLER_COUNT(unnamed); i++)
            if (in_share(m + i))
                check_states(&c, unnamed[i]);
        if (c.n_notes)
            fail_msg("%s", c.notes);
        close_model(&c);
    }
}

/* A state serves every budget of its metric and no other metric. One that is damaged is named, and its text read again. */
static void test_state_files(void **state)
{
    struct context c;
    int n;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "h2o:budget=64", library, 0),
                          *alone = open_session(&c, "h2o:budget=64", NULL, 0);
    read_text(session, c.text, N_PROMPT);
    read_text(alone, c.text, N_PROMPT);
    butler_session_free(session);
    static const char *const policies[] = {"h2o:budget=200,sinks=8", "h2o+vatp:budget=64", "h2o:budget=64,power=2"};
    for (int i = 0; i < BUTLER_COUNT(policies); i++) {
        struct butler_error err;
        session = open_session(&c, policies[i], library, 0);
        assert_int_equal(butler_session_find_prefix(session, c.text, N_PROMPT, &err), i < 2 ? N_PROMPT - 1 : 0);
        butler_session_free(session);
    }
    struct butler_library_file *files = files_of(library, &n);
    assert_int_equal(n, 4);
    for (int i = 0; i < n; i++)
        for (int fault = 0; fault < N_FAULTS && files[i].state; fault++) {
            if (!in_share(i + fault))
                continue;
            char *path = butler_library_path(library, files[i].kind, files[i].name),
                 *other = butler_library_path(library, files[(i + 1) % n].kind, files[(i + 1) % n].name);
            c.notes[0] = 0;
            c.n_notes = 0;
            damage(path, other, fault);
            session = open_session(&c, "h2o:budget=64", library, 0);
            assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
            if (memcmp(butler_logits(alone), butler_logits(session), (size_t)c.model->hp.n_vocab * sizeof(float)) != 0)
                fail_msg("fault %d of a state: other logits", fault);
            if (fault != GONE && !strstr(c.notes, files[i].name))
                fail_msg("fault %d of a state: not named", fault);
            butler_session_free(session);
            session = open_session(&c, "h2o:budget=64", library, 0);
            assert_int_equal(read_text(session, c.text, N_PROMPT), N_PROMPT - 1);
            butler_session_free(session);
            free(other);
            free(path);
        }
    free(files);
    butler_session_free(alone);
    butler_library_free(library);
    close_model(&c);
}

/* --------------------------------------------------------------------------------------------- interruption */

static bool stop_after(void *user, int done, int n)
{
    (void)n;
    return done < *(const int *)user;
}

/* A prompt that is cancelled goes on where it was. */
static void test_cancelled(void **state)
{
    static const char *const policies[] = {"full", "fier:budget=64", "snapkv:budget=64", "h2o:budget=64"};
    (void)state;
    for (int p = 0; p < BUTLER_COUNT(policies); p++) {
        struct context c;
        struct butler_error err;
        open_model(&c, &models[0], 0);
        struct butler_library *library = open_library(&c, 1 << 30);
        struct butler_session *session = open_session(&c, policies[p], library, 0);
        int stop = 384;
        butler_session_on_progress(session, stop_after, &stop);
        assert_int_equal(butler_prefill(session, c.text, N_PROMPT, NULL, NULL, &err), BUTLER_ERROR_CANCELLED);
        butler_session_free(session);
        session = open_session(&c, "full", library, 0);
        assert_int_equal(read_text(session, c.text, N_PROMPT), 384);
        butler_session_free(session);
        butler_library_free(library);
        close_model(&c);
    }
}

/* --------------------------------------------------------------------------------------------------- faults */

/* The text is right, the fault is named, and the file is whole again afterwards. */
static void check_fault(struct context *c, struct butler_library *library, const struct butler_session *alone,
                        const struct butler_library_file *file, const struct butler_library_file *neighbour, int fault)
{
    char *path = butler_library_path(library, file->kind, file->name),
         *other = butler_library_path(library, neighbour->kind, neighbour->name);
    const off_t size = size_of(path);
    c->notes[0] = 0;
    c->n_notes = 0;
    damage(path, other, fault);
    struct butler_session *again = open_session(c, "full", library, 0), *third = open_session(c, "full", library, 0);
    const int known = read_text(again, c->text, N_PROMPT);
    if (known >= N_PROMPT - 1 || known % 256 != 0)
        fail_msg("%s, fault %d: %d tokens known", file->name, fault, known);
    if (memcmp(butler_logits(alone), butler_logits(again), (size_t)c->model->hp.n_vocab * sizeof(float)) != 0)
        fail_msg("%s, fault %d: other logits", file->name, fault);
    if (fault != GONE && (c->n_notes == 0 || !strstr(c->notes, file->name)))
        fail_msg("%s, fault %d: not named", file->name, fault);
    assert_int_equal(size_of(path), size);
    assert_int_equal(read_text(third, c->text, N_PROMPT), N_PROMPT - 1);
    butler_session_free(again);
    butler_session_free(third);
    free(path);
    free(other);
}

static void test_damage(void **state)
{
    struct context c;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "full", library, 0), *alone = open_session(&c, "full", NULL, 0);
    read_text(session, c.text, N_PROMPT);
    read_text(alone, c.text, N_PROMPT);
    butler_session_free(session);
    int n;
    struct butler_library_file *files = files_of(library, &n);
    assert_int_equal(n, 3);
    for (int i = 0; i < n; i++)
        for (int fault = 0; fault < N_FAULTS; fault++)
            if (in_share(i + fault))
                check_fault(&c, library, alone, &files[i], &files[(i + 1) % n], fault);
    free(files);
    butler_session_free(alone);
    butler_library_free(library);
    close_model(&c);
}

/* A disk that is full in the middle of a file: the text is right, the fault is named once, no part of a file is left. */
static void test_full_disk(void **state)
{
    struct context c;
    struct rlimit before, small;
    (void)state;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "full", library, 0), *alone = open_session(&c, "full", NULL, 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){.rlim_cur = 10000, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    read_text(session, c.text, N_PROMPT);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    read_text(alone, c.text, N_PROMPT);
    assert_same(&c, alone, session, "full");
    assert_int_equal(c.n_notes, 1);
    assert_non_null(strstr(c.notes, "File too large"));
    int n;
    free(files_of(library, &n));
    assert_int_equal(n, 0);
    butler_session_free(session);
    session = open_session(&c, "full", library, 0);
    assert_int_equal(read_text(session, c.text, N_PROMPT), 0);
    butler_session_free(session);
    session = open_session(&c, "full", library, 0);
    assert_int_equal(read_text(session, c.text, N_PROMPT), N_PROMPT - 1);
    butler_session_free(session);
    butler_session_free(alone);
    butler_library_free(library);
    close_model(&c);
}

/* ---------------------------------------------------------------------------------------------------- limit */

/* What was used longest ago goes first; what is in use stays; files are their owner's alone. */
/* A text read with the library while one call fails. Returns how many of its tokens were known. */
static int read_with_fault(struct context *c, struct butler_library *library, struct butler_session *alone, int fails_at, int error)
{
    struct butler_session *session = open_session(c, "quest:budget=64", library, 0), *copy;
    struct butler_error err;
    calls.n = 0;
    calls.fails_at = fails_at;
    calls.error = error;
    calls.armed = true;
    const int known = read_text(session, c->text, N_PROMPT);
    calls.armed = false;
    copy = butler_session_fork(alone, &err);
    assert_non_null(copy);
    assert_same(c, copy, session, "quest");
    butler_session_free(copy);
    butler_session_free(session);
    return known;
}

/* Whatever call fails, the text is the right one, and what the folder has afterwards is right too. */
static void check_calls(bool writes, int error)
{
    struct context c;
    struct butler_error err;
    open_model(&c, &models[0], 0);
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *alone = open_session(&c, "quest:budget=64", NULL, 0);
    read_text(alone, c.text, N_PROMPT);
    if (!writes)
        read_with_fault(&c, library, alone, -1, 0);
    assert_int_equal(read_with_fault(&c, library, alone, -1, 0), writes ? 0 : N_PROMPT - 1);
    const int n = calls.n, step = BUTLER_MAX(n / share_of(20), 1);
    assert_true(n > 8);
    for (int at = 0; at < n; at += step) {
        c.n_notes = 0;
        c.notes[0] = 0;
        if (writes)
            assert_true(butler_library_remove(library, NULL, &err) >= 0);
        read_with_fault(&c, library, alone, at, error);
        if (c.n_notes > 0 ? !strstr(c.notes, strerror(error)) : !writes)
            fail_msg("call %d of %d failed, and the note is: %s", at, n, c.notes);
        const int kept = read_with_fault(&c, library, alone, -1, 0);
        if (c.n_notes == 0 && kept != N_PROMPT - 1) /* there was another way: a file with a name in place of one without */
            fail_msg("call %d of %d failed, only %d tokens are kept, and nobody said so", at, n, kept);
        if (read_with_fault(&c, library, alone, -1, 0) != N_PROMPT - 1)
            fail_msg("after call %d of %d had failed the text is not kept", at, n);
    }
    butler_session_free(alone);
    butler_library_free(library);
    close_model(&c);
}

static void test_calls(void **state)
{
    (void)state;
    check_calls(true, ENOSPC);
    check_calls(false, EIO);
}

static void test_limit(void **state)
{
    struct context c;
    int32_t texts[3][N_PROMPT];
    int n;
    (void)state;
    open_model(&c, &models[0], 0);
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < N_PROMPT; i++)
            texts[t][i] = (c.text[i] + t) % c.model->hp.n_vocab;
    struct butler_library *library = open_library(&c, 1 << 30);
    struct butler_session *session = open_session(&c, "full", library, 0);
    read_text(session, texts[0], N_PROMPT);
    butler_session_free(session);
    const uint64_t one = library->bytes;
    struct butler_library_file *files = files_of(library, &n);
    for (int i = 0; i < n; i++) {
        struct stat st;
        char *path = butler_library_path(library, files[i].kind, files[i].name);
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        free(path);
    }
    free(files);
    butler_library_free(library);

    library = open_library(&c, 2 * one);
    assert_int_equal(library->bytes, one);
    static const int order[] = {1, 0, 2}; /* 1 was used longest ago when 2 comes */
    for (int i = 0; i < 3; i++) {
        usleep(20000); /* times of files are as coarse as the system's clock ticks */
        session = open_session(&c, "full", library, 0);
        read_text(session, texts[order[i]], N_PROMPT);
        butler_session_free(session);
        assert_true(library->bytes <= 2 * one);
    }
    static const bool left[] = {true, false, true};
    for (int t = 0; t < 3; t++) {
        struct butler_error err;
        session = open_session(&c, "full", library, 0);
        const int known = butler_session_find_prefix(session, texts[t], N_PROMPT, &err);
        if ((known == N_PROMPT - 1) != left[t])
            fail_msg("text %d: %d known", t, known);
        butler_session_free(session);
    }
    butler_library_free(library);

    /* In use by this process and by another one: text 1 finds no room. */
    library = open_library(&c, 2 * one);
    struct butler_library *second = open_library(&c, 2 * one);
    struct butler_session *user = open_session(&c, "full", second, 0);
    usleep(20000);
    session = open_session(&c, "full", library, 0);
    assert_int_equal(read_text(session, texts[0], N_PROMPT), N_PROMPT - 1);
    assert_int_equal(read_text(user, texts[2], N_PROMPT), N_PROMPT - 1);
    struct butler_session *third = open_session(&c, "full", library, 0);
    c.notes[0] = 0;
    assert_int_equal(read_text(third, texts[1], N_PROMPT), 0);
    assert_non_null(strstr(c.notes, "full"));
    butler_session_free(third);
    third = open_session(&c, "full", library, 0);
    assert_int_equal(read_text(third, texts[2], N_PROMPT), N_PROMPT - 1);
    butler_session_free(third);
    butler_session_free(session);
    butler_session_free(user);
    butler_library_free(library);
    butler_library_free(second);
    close_model(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equality),    cmocka_unit_test(test_beginnings),
                                       cmocka_unit_test(test_kinds),       cmocka_unit_test(test_states),
                                       cmocka_unit_test(test_state_files), cmocka_unit_test(test_cancelled),
                                       cmocka_unit_test(test_damage),      cmocka_unit_test(test_full_disk),
                                       cmocka_unit_test(test_calls),       cmocka_unit_test(test_limit)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
