/* How many operations of the backend a decode step and a prompt take: on a GPU each is a launch. Counted on the glass backend. */
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "glass_backend.h"

#define butler_engine_new glass_engine
#include "fixtures.h"
#include "share.h"
#include "engine/session.h"

enum { N_PROMPT = 100 };

struct counted {
    struct butler_engine *engine;
    struct glass *glass;
    struct butler_session *session;
};

/* Operations since the last call. what: they are of it, and are printed; NULL: nothing is. */
static int operations(struct counted *c, const char *what)
{
    uint64_t n = 0;
    if (what)
        print_message("%s:", what);
    for (int i = 0; c->glass->counts[i].operation; i++) {
        n += c->glass->counts[i].n;
        if (what && c->glass->counts[i].n > 0)
            print_message(" %s %d", c->glass->counts[i].operation, (int)c->glass->counts[i].n);
        c->glass->counts[i].n = 0;
    }
    if (what)
        print_message("; %d in all\n", (int)n);
    return (int)n;
}

/* A session that has read a prompt; *n: operations of that. */
static struct counted begin(const char *path, const char *policy, int *n)
{
    int32_t ids[N_PROMPT];
    struct counted c = {.engine = load_engine(path, 1, NULL)};
    c.glass = (struct glass *)c.engine->backend;
    c.session = butler_session_new(c.engine, &(struct butler_session_params){.n_ctx = 2 * N_PROMPT, .policy = policy}, NULL);
    assert_non_null(c.session);
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = i * 37 % 40;
    operations(&c, NULL);
    assert_int_equal(butler_prefill(c.session, ids, N_PROMPT, NULL, NULL, NULL), 0);
    *n = operations(&c, "a prompt");
    return c;
}

/* Of the second of two decode steps. */
static int decode(struct counted *c)
{
    assert_int_equal(butler_step(c->session, 3, NULL), 0);
    operations(c, NULL);
    assert_int_equal(butler_step(c->session, 4, NULL), 0);
    return operations(c, c->session->policy.name);
}

static void end(struct counted *c)
{
    butler_session_free(c->session);
    free_engine(c->engine);
}

/* Of a layer: norm, products, rope, attention, product, sum, norm, products, activation, product, sum; of a step: embedding, the
 * tables of rotations, norm, product, a look at the logits and their download. Attention that retrieves is appending, scoring,
 * selecting and attending, an eviction scoring, selecting and compacting, or each is one where the backend does them at once. */
enum { OF_LAYER = 11, OF_STEP = 6 };

static void test_decode_step(void **state)
{
    static const struct {
        const char *policy;
        int of_layer[2]; /* one by one, at once */
    } cases[] = {{"full", {0, 0}},
                 {"streaming:budget=32", {2, 1}},
                 {"h2o:budget=32", {3, 1}},
                 {"quest:budget=32,dense=0", {3, 0}},
                 {"fier:budget=32,dense=0", {3, 0}}};
    char path[FIXTURE_PATH];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        int n_prompt;
        glass_fuses = i % 2;
        struct counted c = begin(path, cases[i / 2].policy, &n_prompt);
        assert_int_equal(decode(&c), c.session->shape.n_layers * (OF_LAYER + cases[i / 2].of_layer[i % 2]) + OF_STEP);
        end(&c);
    }
    glass_fuses = false;
}

/* Rows of experts are gathered and added together, not one by one. */
static void test_experts(void **state)
{
    char path[FIXTURE_PATH];
    int n_prompt;
    (void)state;
    fixture_path(path, "models/gpt-oss.gguf");
    struct counted c = begin(path, "full", &n_prompt);
    assert_true(n_prompt <= 300);
    end(&c);
}

/* What is asked about a selection comes in few pieces. */
static void test_last_selection(void **state)
{
    char path[FIXTURE_PATH];
    int n_prompt;
    int32_t ids[2 * N_PROMPT];
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct counted c = begin(path, "fier:budget=32,dense=0", &n_prompt);
    decode(&c);
    assert_int_equal(butler_last_selection(c.session, 0, 0, ids, 2 * N_PROMPT), 32);
    assert_int_equal(operations(&c, NULL), 1);
    end(&c);
}

/* What the glass backend is for: a child that does this ends with a signal, or with a sanitizer's report. */
static void ends(struct counted *c, void (*wrong)(struct counted *c))
{
    int status;
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        fclose(stderr);
        signal(SIGSEGV, SIG_DFL); /* cmocka's would tell of a failed test */
        signal(SIGABRT, SIG_DFL);
        wrong(c);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void read_a_row(struct counted *c)
{
    *(volatile unsigned char *)butler_kv_row_address(&c->session->kv, &c->session->kv.heads[0], 0);
}

static void read_a_position(struct counted *c)
{
    *(volatile int32_t *)c->session->kv.heads[0].positions;
}

static void pass_host_memory(struct counted *c)
{
    float host[4] = {0};
    c->engine->backend->add(c->engine->backend, c->engine->scratch.x, host, 4);
}

static void test_memory_is_the_devices(void **state)
{
    char path[FIXTURE_PATH];
    int n_prompt;
    (void)state;
    fixture_path(path, "models/llama-gqa.gguf");
    struct counted c = begin(path, "h2o:budget=32", &n_prompt);
    ends(&c, read_a_row);
    ends(&c, read_a_position);
    ends(&c, pass_host_memory);
    end(&c);
}

static void test_smollm2(void **state)
{
    const char *folder = getenv("BUTLER_MODELS");
    char path[FIXTURE_PATH];
    int n_prompt;
    (void)state;
    snprintf(path, sizeof path, "%s/smollm2.gguf", folder ? folder : "models");
    FILE *file = fopen(path, "rb");
    if (!file)
        skip();
    fclose(file);
    static const char *const policies[] = {"full", "h2o:budget=32", "quest:budget=32", "fier:budget=32"};
    for (size_t i = 0; i < 2 * sizeof policies / sizeof *policies; i++) {
        if (!in_share((int)i)) /* each reads a prompt */
            continue;
        glass_fuses = i % 2;
        struct counted c = begin(path, policies[i / 2], &n_prompt);
        assert_true(decode(&c) <= (glass_fuses ? 380 : 460));
        end(&c);
    }
    glass_fuses = false;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_decode_step), cmocka_unit_test(test_experts),
                                       cmocka_unit_test(test_last_selection), cmocka_unit_test(test_memory_is_the_devices),
                                       cmocka_unit_test(test_smollm2)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
