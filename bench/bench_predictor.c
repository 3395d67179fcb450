/* What a predictor costs a decode step, with random weights: its share of the model's parameters, the weights and the predicted
 * keys a step reads, and the time, beside a dense session and one that reads as many tokens by a score that costs nothing. Its
 * matrices are in Q4_0, as `butler train` leaves them, or in Q8_0, its keys of 4 bits a channel, or 8.
 *
 *     build/bench/bench_predictor MODEL [DEPTH,...] [STEPS] [ROW]    default 2048,16384, 30 and all; ROW: those whose name begins
 *     build/bench/bench_predictor MODEL write v1|v2 FILE             such a predictor, for other measurements
 *
 * Rows of `every 4th step` select in turns (policies.md, every=), and so does what they are compared with: a step has a quarter of
 * it. The cost is what its stage and scores take, less what it takes to store new keys and values, which counts as scoring too and
 * is all that a session scores which repeats its selection, and what its selection takes beyond that of the score for free, if it
 * does.
 *
 * Sessions take turns, step by step, so that a busy machine is busy for all of them; what is printed are medians. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "median.h"
#include "model/predictor.h"
#include "engine/session.h"

enum { MAX_STEPS = 1000, N_WARM = 2, N_RUNS = 4 /* dense, score for free, with the predictor, repeating */ };

static void die(const struct butler_error *err)
{
    fprintf(stderr, "bench_predictor: %s\n", err->message);
    exit(1);
}

static void write_random(struct butler_model *model, const struct butler_predictor_sizes *sizes, enum butler_type type,
                         const char *path)
{
    struct butler_error err;
    struct butler_predictor *predictor = butler_predictor_new(sizes, 1, &err);
    if (!predictor)
        die(&err);
    if (butler_model_fingerprint(model, &predictor->model_fingerprint, &err) < 0)
        die(&err);
    snprintf(predictor->training.text, sizeof predictor->training.text, "nothing: random weights");
    if (butler_predictor_save(predictor, path, type, &err) < 0)
        die(&err);
    butler_predictor_free(predictor);
}

static void attach(struct butler_engine *engine, const struct butler_predictor_sizes *sizes, enum butler_type type)
{
    char path[] = "/tmp/bench-predictor-XXXXXX";
    struct butler_error err;
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) < 0)
        exit(1);
    write_random(engine->model, sizes, type, path);
    butler_predictor_free(engine->predictors[sizes->version - 1]);
    engine->predictors[sizes->version - 1] = NULL;
    if (butler_predictor_attach(engine, path, &err) < 0)
        die(&err);
    unlink(path);
}

struct run {
    const char *policy;
    struct butler_session *session;
    struct butler_stats stats;
    double ms[MAX_STEPS], predict[MAX_STEPS], score[MAX_STEPS], select[MAX_STEPS]; /* a step each, milliseconds */
};

static double middle(const double *x, int n)
{
    double values[MAX_STEPS];
    memcpy(values, x, (size_t)n * sizeof *x);
    return median(values, n);
}

static void step(struct run *run, int at)
{
    struct butler_stats before = {BUTLER_INIT(butler_stats)}, after = {BUTLER_INIT(butler_stats)};
    butler_session_stats(run->session, &before);
    butler_step(run->session, 1, NULL);
    butler_session_stats(run->session, &after);
    run->stats = after;
    if (at < 0)
        return;
    run->ms[at] = 1e3 * (after.decode_s - before.decode_s);
    run->predict[at] = 1e3 * (after.predict_s - before.predict_s);
    run->score[at] = 1e3 * (after.score_s - before.score_s);
    run->select[at] = 1e3 * (after.select_s - before.select_s);
}

static void measure(struct butler_engine *engine, const char *name, const char *policy, int version, int depth, int n_steps)
{
    static struct run runs[N_RUNS];
    struct butler_predictor_info info = {BUTLER_INIT(butler_predictor_info)};
    struct butler_error err;
    const char *const policies[] = {"full",
                                    strstr(policy, "every=4") ? "streaming:method=retrieve,budget=0.5,dense=1,every=4"
                                                              : "streaming:method=retrieve,budget=0.5,dense=1",
                                    policy, "streaming:method=retrieve,budget=0.5,dense=1,every=1024"};
    for (int i = 0; i < N_RUNS; i++) {
        runs[i].policy = policies[i];
        runs[i].session = butler_session_new(
            engine,
            &(struct butler_session_params){.n_ctx = depth + n_steps + N_WARM, .kv_type = BUTLER_KV_F16, .policy = policies[i]},
            &err);
        if (!runs[i].session || butler_fill(runs[i].session, depth, 1, &err) < 0)
            die(&err);
    }
    for (int s = -N_WARM; s < n_steps; s++)
        for (int i = 0; i < N_RUNS; i++)
            step(&runs[i], s);
    const double full = middle(runs[0].ms, n_steps), bare = middle(runs[1].ms, n_steps);
    const double free_of_cost = middle(runs[1].select, n_steps), stored = middle(runs[3].score, n_steps);
    const double all = middle(runs[2].ms, n_steps), predict = middle(runs[2].predict, n_steps),
                 score = middle(runs[2].score, n_steps), select = middle(runs[2].select, n_steps);
    const double steps = n_steps + N_WARM, cost = predict + score - stored + BUTLER_MAX(select - free_of_cost, 0);
    butler_predictor_describe(engine, version, &info);
    printf("%-26s %6d %6.2f %8.1f %8.1f %8.1f %8.2f %8.2f %8.2f %8.2f %8.2f %8.1f %8.1f %8.2f %9.2f\n", name, depth,
           100 * info.share, (double)runs[2].stats.predict_bytes / steps / 1e6, (double)runs[2].stats.metric_bytes / steps / 1e6,
           all, predict, score, stored, select, free_of_cost, full, bare, cost, 100 * cost / full);
    fflush(stdout);
    for (int i = 0; i < N_RUNS; i++)
        butler_session_free(runs[i].session);
}

#define SECOND "tokenbutler2:budget=0.5,on_top=0,sinks=4,recent=0"

static const struct row {
    const char *name, *policy;
    int version;
    bool per_query_head;   /* predicted keys */
    enum butler_type type; /* of the predictor's matrices */
} rows[] = {
    {"v2", SECOND, 2, false, BUTLER_Q4_0},
    {"v2, int8", SECOND ",keys=int8", 2, false, BUTLER_Q4_0},
    {"v2 in Q8_0", SECOND, 2, false, BUTLER_Q8_0},
    {"v2 in Q8_0, int8", SECOND ",keys=int8", 2, false, BUTLER_Q8_0},
    {"v2, group=max", SECOND ",group=max", 2, false, BUTLER_Q4_0},
    {"v2, pages, every 4th step", SECOND ",page=16,every=4", 2, false, BUTLER_Q4_0},
    {"v1", "tokenbutler:budget=0.5", 1, false, BUTLER_Q4_0},
    {"v1, int8", "tokenbutler:budget=0.5,keys=int8", 1, false, BUTLER_Q4_0},
    {"v1 in Q8_0", "tokenbutler:budget=0.5", 1, false, BUTLER_Q8_0},
    {"v1 in Q8_0, int8", "tokenbutler:budget=0.5,keys=int8", 1, false, BUTLER_Q8_0},
    {"v1, pages, every 4th step", "tokenbutler:budget=0.5,page=16,every=4", 1, false, BUTLER_Q4_0},
    {"v1, key per query head", "tokenbutler:budget=0.5", 1, true, BUTLER_Q4_0},
};

int main(int argc, char **argv)
{
    struct butler_error err;
    struct butler_model *model = argc > 1 ? butler_model_load(argv[1], NULL, &err) : NULL;
    if (argc < 2) {
        fprintf(stderr, "bench_predictor MODEL [DEPTH,...] [STEPS] | bench_predictor MODEL write v1|v2 FILE\n");
        return 2;
    }
    struct butler_engine *engine = model ? butler_engine_new(model, NULL, &err) : NULL;
    if (!engine)
        die(&err);
    struct butler_predictor_sizes published = butler_predictor_sizes_for(model, 1), per_kv_head = published;
    const struct butler_predictor_sizes second = butler_predictor_sizes_for(model, 2);
    published.n_key_heads = published.n_heads;
    if (argc == 5 && strcmp(argv[2], "write") == 0) {
        write_random(model, strcmp(argv[3], "v1") == 0 ? &per_kv_head : &second, BUTLER_Q4_0, argv[4]);
        butler_engine_free(engine);
        butler_model_free(model);
        return 0;
    }
    const int n_steps = argc > 3 ? BUTLER_MIN(BUTLER_MAX(atoi(argv[3]), 1), MAX_STEPS) : 30;
    char depths[256];
    snprintf(depths, sizeof depths, "%s", argc > 2 ? argv[2] : "2048,16384");
    printf("%-26s %6s %6s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %8s %9s\n", "predictor", "depth", "par %", "MB weig.", "MB keys",
           "ms", "predict", "score", "stored", "select", "for free", "full ms", "bare ms", "cost", "% of full");
    for (char *depth = strtok(depths, ","); depth; depth = strtok(NULL, ",")) {
        const struct butler_predictor_sizes *attached = NULL;
        enum butler_type type = BUTLER_Q4_0;
        for (int i = 0; i < BUTLER_COUNT(rows); i++) {
            if (argc > 4 && strncmp(rows[i].name, argv[4], strlen(argv[4])) != 0)
                continue;
            const struct butler_predictor_sizes *sizes = rows[i].per_query_head ? &published
                                                         : rows[i].version == 1 ? &per_kv_head
                                                                                : &second;
            if (sizes != attached || rows[i].type != type)
                attach(engine, sizes, rows[i].type);
            attached = sizes;
            type = rows[i].type;
            measure(engine, rows[i].name, rows[i].policy, rows[i].version, atoi(depth), n_steps);
        }
    }
    butler_engine_free(engine);
    butler_model_free(model);
    return 0;
}
