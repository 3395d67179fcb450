/* The whole forward pass against PyTorch: every architecture, weight type and rope scaling at every position of a text,
 * whatever way the text comes in (one block, odd blocks, token by token), on every ISA, with one thread and with two.
 * The cases are in tests/data/logits/manifest.txt, written by tools/fixtures/make_test_models.py. Only butler.h is used. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "butler.h"
#include "fixtures.h"
#include "share.h"

struct expectation {
    char name[64], gguf[128];
    int n_ids, n_vocab, n_ctx;
    enum butler_kv_type kv_type;
    double tolerance;
    int32_t *ids;  /* [n_ids] */
    float *logits; /* [n_ids][n_vocab] */
};

enum { MAX_CASES = 64 };
static struct expectation cases[MAX_CASES];
static int n_cases;
static const char *const isas[] = {"ref", "avx2", "avx512", "amx", "neon"};
enum { N_ISAS = 5 };

/* A text's way into the session: n_block tokens a pass for the first n_prompt, then single steps; activations of so many bits. */
struct way {
    const char *name;
    int n_block, n_prompt, bits;
};

struct collected {
    const struct expectation *e;
    float *logits; /* [n_ids][n_vocab] */
    int n;         /* positions seen, in order */
    bool in_order;
};

static bool collect(void *user, int position, const float *logits)
{
    struct collected *c = user;
    if (position != c->n || c->n >= c->e->n_ids) {
        c->in_order = false;
        return false;
    }
    memcpy(c->logits + (size_t)c->n++ * (size_t)c->e->n_vocab, logits, sizeof(float) * (size_t)c->e->n_vocab);
    return true;
}

static struct butler_model *open_model(const char *gguf)
{
    char path[FIXTURE_PATH];
    struct butler_error err = {0};
    fixture_path(path, gguf);
    struct butler_model *model = butler_model_load(path, NULL, &err);
    if (!model)
        fail_msg("%s: %s", gguf, err.message);
    return model;
}

/* NULL when this machine lacks the ISA, which ref never may. */
static struct butler_engine *open_engine(struct butler_model *model, const char *isa, int n_threads, struct way way)
{
    const struct butler_engine_params params = {.n_threads = n_threads,
                                                .isa = isa,
                                                .n_block = way.n_block,
                                                .kv_bytes = 1 << 26, /* qemu-user pays for reserved memory too */
                                                .activation_bits = way.bits};
    struct butler_error err = {0};
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    struct butler_engine *engine = butler_engine_new(model, &params, &err);
    if (!engine && (strcmp(isa, "ref") == 0 || err.code != BUTLER_ERROR_UNSUPPORTED))
        fail_msg("%s: %s", isa, err.message);
    if (engine) {
        butler_engine_get_info(engine, &info);
        assert_string_equal(info.isa, isa);
        assert_int_equal(info.n_threads, n_threads);
    }
    return engine;
}

/* All logits of the text, in the caller's [n_ids][n_vocab]. */
static void run(struct butler_engine *engine, const struct expectation *e, enum butler_kv_type kv_type, struct way way,
                float *logits)
{
    struct butler_error err = {0};
    struct butler_session_params params = {.n_ctx = e->n_ctx, .kv_type = kv_type};
    struct collected c = {.e = e, .logits = logits, .in_order = true};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session)
        fail_msg("%s: %s", e->name, err.message);
    int n_prompt = way.n_prompt < 0 ? e->n_ids : way.n_prompt;
    if (n_prompt > 0 && butler_prefill(session, e->ids, n_prompt, collect, &c, &err) < 0)
        fail_msg("%s: %s", e->name, err.message);
    assert_true(c.in_order);
    assert_int_equal(c.n, n_prompt);
    if (n_prompt > 0) /* what the callback saw last is what the session holds */
        assert_memory_equal(butler_logits(session), logits + (size_t)(n_prompt - 1) * (size_t)e->n_vocab,
                            sizeof(float) * (size_t)e->n_vocab);
    for (int i = n_prompt; i < e->n_ids; i++) {
        if (butler_step(session, e->ids[i], &err) < 0)
            fail_msg("%s: step %d: %s", e->name, i, err.message);
        assert_non_null(butler_logits(session));
        collect(&c, i, butler_logits(session));
    }
    assert_int_equal(c.n, e->n_ids);
    assert_int_equal(butler_n_past(session), e->n_ids);
    butler_session_free(session);
}

/* Largest over positions of max|a - b| / max|b|; anything that is not a number counts as infinite. */
static double distance(const struct expectation *e, const float *logits, int *where)
{
    double worst = 0;
    for (int i = 0; i < e->n_ids; i++) {
        const float *a = logits + (size_t)i * (size_t)e->n_vocab, *b = e->logits + (size_t)i * (size_t)e->n_vocab;
        double apart = 0, size = 0;
        for (int j = 0; j < e->n_vocab; j++) {
            double d = fabs((double)a[j] - (double)b[j]);
            apart = d >= apart ? d : isnan(d) ? INFINITY : apart;
            size = fmax(size, fabs((double)b[j]));
        }
        if (apart / size > worst) {
            worst = apart / size;
            *where = i;
        }
    }
    return worst;
}

static void check(const struct expectation *e, const float *logits, double tolerance, const char *isa, const char *way,
                  int n_threads)
{
    int where = 0;
    double d = distance(e, logits, &where);
    if (getenv("BUTLER_TEST_VERBOSE"))
        print_message("%-22s %-6s %-12s %d threads: %.1e\n", e->name, isa, way, n_threads, d);
    if (!(d <= tolerance))
        fail_msg("%s, %s, %s, %d threads: position %d is %.2e from PyTorch, allowed %.0e", e->name, isa, way, n_threads, where, d,
                 tolerance);
}

/* A prompt whose logits nobody looks at before the last, where most rows end with the last cache: as near as with all. */
static void check_last(struct butler_engine *engine, const struct expectation *e, const char *isa, double tolerance)
{
    struct butler_error err = {0};
    struct butler_session_params params = {.n_ctx = e->n_ctx, .kv_type = e->kv_type};
    struct butler_session *session = butler_session_new(engine, &params, &err);
    if (!session || butler_prefill(session, e->ids, e->n_ids, NULL, NULL, &err) < 0)
        fail_msg("%s: %s", e->name, err.message);
    struct expectation last = *e;
    last.n_ids = 1;
    last.logits += (size_t)(e->n_ids - 1) * (size_t)e->n_vocab;
    check(&last, butler_logits(session), tolerance, isa, "last alone", 2);
    butler_session_free(session);
}

/* Weights that are rounded already meet activations in integers of 16 or 8 bits, 32 columns with one scale, where the CPU
 * multiplies integers (AVX2 and above). 16 bits move these models' logits by up to 3e-4 (8e-4 on AMX), 8 bits, the default, by up
 * to 8e-2: they are tiny and random, so that errors do not cancel as in models of a real width. */
static double allowed(const struct expectation *e, const struct butler_model *model, const char *isa, struct way way)
{
    const struct butler_model_info *info = butler_model_get_info(model);
    const bool blocks = way.n_prompt != 0 && way.n_block > 4;
    const bool amx = strcmp(isa, "amx") == 0, integers = strcmp(isa, "ref") != 0 && strcmp(isa, "neon") != 0;
    if (strcmp(info->file_type, "F32") == 0)
        return e->tolerance;
    if (integers && !strstr(info->file_type, "F16") && way.bits == 8)
        return 1e-1;
    if (amx && blocks)
        return 2e-3;
    return integers && !strstr(info->file_type, "F16") ? fmax(e->tolerance, 1e-3) : e->tolerance;
}

static void agrees_with_pytorch(void **state)
{
    const struct expectation *e = *state;
    static const struct way ways[] = {{"one block", 1024, -1, 16},       {"blocks of 13", 13, -1, 16}, {"blocks of 7", 7, -1, 16},
                                      {"blocks of 1", 1, -1, 16},        {"steps", 0, 0, 16},          {"prompt, steps", 7, 17, 16},
                                      {"one block", 1024, -1, 8},        {"blocks of 13", 13, -1, 8},  {"steps", 0, 0, 8},
                                      {"blocks of 16, steps", 16, 25, 8}};
    size_t n_bytes = sizeof(float) * (size_t)e->n_ids * (size_t)e->n_vocab;
    float *one = malloc(n_bytes), *two = malloc(n_bytes);
    assert_true(one && two);
    struct butler_model *model = open_model(e->gguf);
    int trial = (int)(e - cases); /* another one for every model */
    for (int i = 0; i < N_ISAS; i++)
        for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
            if (!in_share(trial++) && w > 0)
                continue;
            struct butler_engine *engine = open_engine(model, isas[i], 1, ways[w]),
                                 *engine2 = engine ? open_engine(model, isas[i], 2, ways[w]) : NULL;
            const double tolerance = allowed(e, model, isas[i], ways[w]);
            if (!engine) {
                print_message("this machine has no %s\n", isas[i]);
                break;
            }
            memset(one, 0xff, n_bytes);
            run(engine, e, e->kv_type, ways[w], one);
            check(e, one, tolerance, isas[i], ways[w].name, 1);
            memset(two, 0xff, n_bytes);
            run(engine2, e, e->kv_type, ways[w], two);
            check(e, two, tolerance, isas[i], ways[w].name, 2);
            assert_memory_equal(one, two, n_bytes);
            if (ways[w].n_prompt < 0)
                check_last(engine2, e, isas[i], tolerance);
            butler_engine_free(engine);
            butler_engine_free(engine2);
        }
    butler_model_free(model);
    free(one);
    free(two);
}

/* A rounded cache against logits of an exact one. PyTorch with the same rounding moves these models' logits by 1.4e-3
 * (halves) and 3.5e-2 (8 bits); three times that is room for the other models, and still far from a wrong row. */
static void rounded_cache_stays_near(void **state)
{
    const struct expectation *e = *state;
    static const double near[BUTLER_N_KV_TYPES] = {[BUTLER_KV_F16] = 5e-3, [BUTLER_KV_Q8_0] = 1e-1};
    static const enum butler_kv_type types[] = {BUTLER_KV_F16, BUTLER_KV_Q8_0};
    static const struct way ways[] = {{"one block", 1024, -1, 0}, {"steps", 0, 0, 0}};
    float *logits = malloc(sizeof(float) * (size_t)e->n_ids * (size_t)e->n_vocab);
    assert_non_null(logits);
    struct butler_model *model = open_model(e->gguf);
    struct butler_engine *engine = open_engine(model, "ref", 1, (struct way){0});
    for (int t = 0; t < 2; t++) {
        const enum butler_kv_type type = types[t];
        struct butler_error err = {0};
        struct butler_session_params params = {.n_ctx = e->n_ctx, .kv_type = type};
        if (type == BUTLER_KV_Q8_0 && butler_model_get_info(model)->head_dim % 32 != 0) {
            assert_null(butler_session_new(engine, &params, &err)); /* blocks of 32 do not fit the head: refused, not padded */
            assert_true(err.code < 0 && err.message[0]);
            continue;
        }
        for (int w = 0; w < 2; w++) {
            run(engine, e, type, ways[w], logits);
            check(e, logits, near[type], "ref", type == BUTLER_KV_F16 ? "f16 cache" : "q8_0 cache", 1);
        }
    }
    butler_engine_free(engine);
    butler_model_free(model);
    free(logits);
}

/* Reads the manifest; false, saying why, when it is not what it should be. */
static bool load_cases(void)
{
    char path[FIXTURE_PATH], line[512], ids[128], logits[128], kv[16];
    static const char *const kv_names[BUTLER_N_KV_TYPES] = {
        [BUTLER_KV_F16] = "f16", [BUTLER_KV_F32] = "f32", [BUTLER_KV_Q8_0] = "q8_0"};
    fixture_path(path, "logits/manifest.txt");
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "cannot open %s (tests run in the repository root)\n", path);
        return false;
    }
    bool good = true;
    while (good && fgets(line, sizeof line, file)) {
        if (line[0] == '#')
            continue;
        struct expectation *e = &cases[n_cases];
        size_t n_ids = 0, n_logits = 0;
        good = n_cases < MAX_CASES && sscanf(line, "%63s %127s %127s %127s %d %d %d %15s %lf", e->name, e->gguf, ids, logits,
                                             &e->n_ids, &e->n_vocab, &e->n_ctx, kv, &e->tolerance) == 9;
        if (!good)
            break;
        n_cases++;
        while (e->kv_type < BUTLER_N_KV_TYPES && strcmp(kv, kv_names[e->kv_type]) != 0)
            e->kv_type++;
        e->ids = fixture_read(ids, &n_ids);
        e->logits = fixture_read(logits, &n_logits);
        good = e->kv_type < BUTLER_N_KV_TYPES && e->ids && e->logits && n_ids == sizeof(int32_t) * (size_t)e->n_ids &&
               n_logits == sizeof(float) * (size_t)e->n_ids * (size_t)e->n_vocab;
    }
    fclose(file);
    if (!good)
        fprintf(stderr, "%s: wrong at: %s", path, line);
    return good && n_cases > 0;
}

/* test_logits [PATTERN]: the cases whose names it fits, * and ? standing for anything. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[2 * MAX_CASES]; /* entries without a name are skipped */
    static char names[2 * MAX_CASES][96];
    int n = 0;
    if (!load_cases())
        return 1;
    for (int i = 0; i < n_cases; i++) {
        snprintf(names[n], sizeof names[n], "%.63s", cases[i].name);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = agrees_with_pytorch, .initial_state = &cases[i]};
        n++;
        if (cases[i].kv_type != BUTLER_KV_F32)
            continue;
        snprintf(names[n], sizeof names[n], "%.63s, rounded caches", cases[i].name);
        tests[n] = (struct CMUnitTest){.name = names[n], .test_func = rounded_cache_stays_near, .initial_state = &cases[i]};
        n++;
    }
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    int failed = cmocka_run_group_tests_name("logits", tests, NULL, NULL);
    for (int i = 0; i < n_cases; i++) {
        free(cases[i].ids);
        free(cases[i].logits);
    }
    return failed;
}
