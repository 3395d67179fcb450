/* For the library's tests: a model, a folder for texts, and sessions that read. Include stdarg.h, setjmp.h and cmocka.h first. */
#ifndef LIBRARY_TESTS_H
#define LIBRARY_TESTS_H

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fixtures.h"
#include "butler_tools.h"
#include "random_predictor.h"
#include "engine/library.h"

enum { N_CTX = 640, N_KEPT = 560, N_PROMPT = 600, N_STEPS = 8, BUDGET = 64 };

static const struct model_case {
    const char *file;
    enum butler_kv_type type;
} models[] = {{"models/llama-gqa.gguf", BUTLER_KV_F16},
              {"models/llama-gqa.gguf", BUTLER_KV_F32},
              {"models/llama-q8_0.gguf", BUTLER_KV_Q8_0},
              {"models/gemma3.gguf", BUTLER_KV_F16}, /* windows */
              {"models/gpt-oss.gguf", BUTLER_KV_F16}};

struct context {
    struct butler_model *model;
    struct butler_engine *engine;
    enum butler_kv_type type;
    int32_t text[N_CTX];
    char folder[64];
    char notes[4096];
    int n_notes;
};

static inline void on_note(void *user, const char *message)
{
    struct context *c = user;
    snprintf(c->notes + strlen(c->notes), sizeof c->notes - strlen(c->notes), "%s\n", message);
    c->n_notes++;
}

static inline void open_model(struct context *c, const struct model_case *from, uint64_t prefix_bytes)
{
    struct butler_error err;
    char path[FIXTURE_PATH];
    uint64_t random = 5;
    const struct butler_engine_params params = {.n_threads = 2, .n_block = 128, .kv_bytes = 1 << 26, .prefix_bytes = prefix_bytes};
    *c = (struct context){.type = from->type};
    fixture_path(path, from->file);
    c->model = butler_model_load(path, NULL, &err);
    c->engine = c->model ? butler_engine_new(c->model, &params, &err) : NULL;
    if (!c->engine)
        fail_msg("%s", err.message);
    attach_both(c->engine, false);
    for (int i = 0; i < N_CTX; i++)
        c->text[i] = (int32_t)(butler_random(&random) % (uint64_t)c->model->hp.n_vocab);
    snprintf(c->folder, sizeof c->folder, "/tmp/butler-test-library-XXXXXX");
    assert_non_null(mkdtemp(c->folder));
}

static inline int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline void close_model(struct context *c)
{
    nftw(c->folder, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    butler_engine_free(c->engine);
    butler_model_free(c->model);
}

static inline struct butler_library *open_library(struct context *c, uint64_t max_bytes)
{
    struct butler_error err;
    const struct butler_library_params params = {.folder = c->folder, .max_bytes = max_bytes, .note = on_note, .user = c};
    struct butler_library *library = butler_library_open(&params, &err);
    if (!library)
        fail_msg("%s", err.message);
    return library;
}

static inline struct butler_session *open_session(const struct context *c, const char *policy, struct butler_library *library,
                                                  uint64_t salt)
{
    struct butler_error err;
    const struct butler_session_params params = {.n_ctx = N_CTX, .kv_type = c->type, .policy = policy, .seed = 3};
    struct butler_session *session = butler_session_new(c->engine, &params, &err);
    if (!session || (library && (butler_session_use_library(session, library, &err) < 0 ||
                                 butler_session_set_prefix_salt(session, salt, &err) < 0)))
        fail_msg("%s: %s", policy, err.message);
    return session;
}

static inline uint64_t n_read(const struct butler_session *session)
{
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(session, &stats);
    return stats.n_prefill;
}

/* Reads text[n], what is known of it from the library. Returns how many tokens that is. */
static inline int read_text(struct butler_session *session, const int32_t *text, int n)
{
    struct butler_error err;
    const int known = butler_session_adopt_prefix(session, text, n, &err);
    if (known < 0 || butler_prefill(session, text + known, n - known, NULL, NULL, &err) < 0)
        fail_msg("%s", err.message);
    assert_int_equal(n_read(session), n - known);
    return known;
}

/* Both go on alike for n tokens, bit for bit. */
static inline void assert_same_for(const struct context *c, struct butler_session *a, struct butler_session *b, const char *policy,
                                   int n)
{
    struct butler_error err;
    for (int i = 0; i <= n; i++) {
        if (memcmp(butler_logits(a), butler_logits(b), (size_t)c->model->hp.n_vocab * sizeof(float)) != 0)
            fail_msg("%s: other logits %d tokens behind the prompt", policy, i);
        if (butler_step(a, c->text[i], &err) < 0 || butler_step(b, c->text[i], &err) < 0)
            fail_msg("%s: %s", policy, err.message);
    }
}

static inline void assert_same(const struct context *c, struct butler_session *a, struct butler_session *b, const char *policy)
{
    assert_same_for(c, a, b, policy, N_STEPS);
}

static inline struct butler_library_file *files_of(struct butler_library *library, int *n)
{
    struct butler_library_file *files;
    *n = butler_library_files(library, NULL, true, &files, NULL);
    return files;
}

#endif
