/* Tests of src/gpu/cuda_graph.c, part of test_cuda.c: steps as graphs give the bits of the same launches one by one, and the
 * stand-in's counters prove which of the two ran. */
#ifndef CUDA_GRAPH_TESTS_H
#define CUDA_GRAPH_TESTS_H

enum { GRAPH_STEPS = 3, GRAPH_ROUNDS = 2, GRAPH_SESSIONS = 3, GRAPH_VOCAB = 40 };

/* One session steps in two rounds, more than one in the first alone. */
#define ROUNDS_OF(n_sessions) ((n_sessions) == 1 ? GRAPH_ROUNDS : 1)

/* What sessions that step together gave, and what the driver was given for each step. */
struct graph_run {
    float logits[GRAPH_ROUNDS][GRAPH_STEPS][GRAPH_SESSIONS][GRAPH_VOCAB];
    int n_launched[GRAPH_ROUNDS][GRAPH_STEPS], n_graphs[GRAPH_ROUNDS][GRAPH_STEPS], n_patched[GRAPH_ROUNDS][GRAPH_STEPS];
};

static void graph_step(struct butler_session **sessions, int n, struct graph_run *run, int round, int step)
{
    struct butler_error errs[GRAPH_SESSIONS] = {{0}};
    int32_t ids[GRAPH_SESSIONS];
    for (int i = 0; i < n; i++)
        ids[i] = (7 * step + 3 * i + round) % GRAPH_VOCAB;
    cuda->n_launched = cuda->n_graphs_launched = cuda->n_patched = 0;
    if (butler_step_batch(sessions, ids, n, errs) < 0)
        fail_msg("%s", errs[0].message);
    run->n_launched[round][step] = cuda->n_launched;
    run->n_graphs[round][step] = cuda->n_graphs_launched;
    run->n_patched[round][step] = cuda->n_patched;
    for (int i = 0; i < n; i++)
        memcpy(run->logits[round][step][i], butler_logits(sessions[i]), sizeof run->logits[round][step][i]);
}

static int graph_layers = 2; /* of the model */

/* An engine whose sessions read prompts of about n_prompt tokens and step together; those of the second round are new. The call
 * fail_at of `fails` fails. */
static void run_graphs(const char *const *policies, int n_sessions, int n_prompt, const char *fails, int fail_at,
                       struct graph_run *run)
{
    struct butler_error err = {0};
    struct tiny tiny = tiny_default;
    tiny.n_layers = graph_layers;
    tiny.n_kv_heads = 1;
    tiny.n_heads = 2;
    tiny.n_embd = tiny.n_ff = 32;
    const char *path = tiny_path("graphs.gguf");
    tiny_write(path, &tiny);
    begin_faults();
    if (fails)
        cuda->calls = (struct fake_calls){.only = fails, .fail_at = fail_at, .fail_code = 999};
    struct butler_engine *engine = engine_of(path, "cuda:0", 64, &err);
    memset(run, 0, sizeof *run);
    for (int round = 0; round < ROUNDS_OF(n_sessions); round++) {
        struct butler_session *sessions[GRAPH_SESSIONS];
        for (int i = 0; i < n_sessions; i++) {
            sessions[i] = session_on(engine, policies[i], BUTLER_KV_F16);
            for (int done = 0, m; done < n_prompt + i + round; done += m)
                read_prompt(sessions[i], m = BUTLER_MIN(n_prompt + i + round - done, N_PROMPT));
        }
        for (int step = 0; step < GRAPH_STEPS; step++)
            graph_step(sessions, n_sessions, run, round, step);
        for (int i = 0; i < n_sessions; i++)
            butler_session_free(sessions[i]);
    }
    free_engine(engine);
    if (fails && strstr(fails, "Destroy"))
        cuda->n_left = 0; /* what could not be destroyed ended with the context */
    begin_faults();
}

/* From its second time on a step is one graph and nothing else, of which some nodes are patched; so are those of later sessions. */
static void test_graphs(void **state)
{
    static const char *const policies[] = {"full", "quest:budget=8,page=4,dense=0", "tinyserve:budget=8,page=4",
                                           "fier:budget=8,dense=0", "h2o:budget=8"};
    static struct graph_run graphs, plain;
    (void)state;
    for (int p = 0; p < 7; p++) {
        const int n = p < 5 ? 1 : GRAPH_SESSIONS; /* alone, and from the first or the third on together */
        const char *const *own = p < 5 ? policies + p : policies + 2 * (p - 5);
        run_graphs(own, n, 16, NULL, 0, &graphs);
        run_graphs(own, n, 16, "GraphCreate", 0, &plain);
        assert_memory_equal(graphs.logits, plain.logits, sizeof plain.logits);
        for (int round = 0; round < ROUNDS_OF(n); round++)
            for (int step = 0; step < GRAPH_STEPS; step++) {
                const int n_kernels = plain.n_launched[round][step], known = round + step > 0;
                assert_true(n_kernels > 16);
                assert_int_equal(plain.n_graphs[round][step], 0);
                assert_int_equal(graphs.n_graphs[round][step], known);
                assert_int_equal(graphs.n_launched[round][step], known ? 0 : n_kernels);
                if (round + step > 1)
                    assert_in_range(graphs.n_patched[round][step], 1, n_kernels - n_kernels / 3);
            }
    }
}

/* A step of more layers is a few graphs, of which the last has the rest: in none all nodes are patched. */
static void test_graphs_of_many_layers(void **state)
{
    static const char *const quest[] = {"quest:budget=8,page=4,dense=0"};
    static struct graph_run graphs, plain;
    (void)state;
    graph_layers = 9;
    run_graphs(quest, 1, 16, NULL, 0, &graphs);
    run_graphs(quest, 1, 16, "GraphCreate", 0, &plain);
    graph_layers = 2;
    assert_memory_equal(graphs.logits, plain.logits, sizeof plain.logits);
    for (int round = 0; round < GRAPH_ROUNDS; round++)
        for (int step = 0; step < GRAPH_STEPS; step++) {
            const int n_kernels = plain.n_launched[round][step], known = round + step > 0;
            assert_in_range(n_kernels, 2 * 64 - 1, 3 * 64 - 1);
            assert_int_equal(graphs.n_graphs[round][step], known ? (n_kernels + 63) / 64 : 0);
            assert_int_equal(graphs.n_launched[round][step], known ? 0 : n_kernels);
            if (round + step > 1)
                assert_in_range(graphs.n_patched[round][step], 1, n_kernels - n_kernels / 3);
        }
}

/* A step in which caches get more memory is launched in pieces. */
static void test_graphs_of_pieces(void **state)
{
    static const char *const full[] = {"full"};
    static struct graph_run graphs, plain;
    (void)state;
    run_graphs(full, 1, 62, NULL, 0, &graphs); /* of 64 tokens an extent */
    run_graphs(full, 1, 62, "GraphCreate", 0, &plain);
    assert_memory_equal(graphs.logits, plain.logits, sizeof plain.logits);
}

/* A function for graphs that fails costs the graphs, and no more. */
static void test_graphs_fail(void **state)
{
    static const struct {
        const char *name;
        int at;
    } calls[] = {{"GraphCreate", 0}, {"GraphAddKernelNode", 9}, {"GraphInstantiate", 0}, {"GraphExecKernelNodeSetParams", 1},
                 {"GraphLaunch", 2}, {"GraphExecDestroy", 0},   {"GraphDestroy", 0}};
    static const char *const tinyserve[] = {"tinyserve:budget=8,page=4"};
    static struct graph_run plain, run;
    (void)state;
    for (int c = 0; c < N(calls); c++) {
        run_graphs(tinyserve, 1, 16, calls[c].name, calls[c].at, &run);
        if (c == 0)
            plain = run;
        assert_memory_equal(run.logits, plain.logits, sizeof plain.logits);
        assert_int_equal(run.n_graphs[1][GRAPH_STEPS - 1], strstr(calls[c].name, "Destroy") != NULL);
    }
}

/* A step waits for the device where its logits are tested and where they are read, and nowhere else. */
static void test_waits(void **state)
{
    static const char *const policies[] = {"full", "quest:budget=8,page=4,dense=0"};
    struct butler_error err = {0};
    (void)state;
    begin_faults();
    struct butler_engine *engine = engine_on(usual_model, "cuda:0", 0, &err);
    for (int p = 0; p < N(policies); p++) {
        struct butler_session *session = session_on(engine, policies[p], BUTLER_KV_F16);
        read_prompt(session, 20);
        for (int step = 0; step < 4; step++) {
            cuda->calls = (struct fake_calls){.only = "StreamSynchronize", .fail_at = -1};
            assert_int_equal(butler_step(session, step, &err), 0);
            assert_int_equal(cuda->calls.n, 2);
        }
        butler_session_free(session);
    }
    free_engine(engine);
    begin_faults();
}

/* A graph that the device is lost with is a named error, as a launch is. */
static void test_graphs_lost(void **state)
{
    struct butler_error err = {0};
    int status = 0, n = 0;
    (void)state;
    begin_faults();
    struct butler_engine *engine = engine_on(usual_model, "cuda:0", 0, &err);
    struct butler_session *session = session_on(engine, "full", BUTLER_KV_F16);
    read_prompt(session, 5);
    cuda->calls = (struct fake_calls){.only = "GraphLaunch", .fail_at = 1, .fail_code = 719};
    while (status == 0 && ++n < 5)
        status = butler_step(session, n, &err);
    assert_int_equal(n, 3);
    assert_int_equal(err.code, BUTLER_ERROR_IO);
    assert_non_null(strstr(err.message, "device cuda:0 (fake): embed: failed, or the device was lost (CUDA error 719"));
    butler_session_free(session);
    free_engine(engine);
    cuda->n_left = 0;
    begin_faults();
}

#endif
