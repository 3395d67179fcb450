/* What this machine can do, and how near to it a decode step comes: ceilings and steps measured in one process, in turns.
 *
 *     build/bench/bench_roofline [MODEL.gguf] [--depths D,...] [--policy POLICY]... [--kv-type f16|q8_0] [--tokens N]
 *                                [--rounds N] [--threads N] [--warmup N] [--memory GB] [--predictor FILE]... [--json]
 *                                [--skip-ceilings] [--isa NAME]
 *
 * Without a model only the ceilings are printed. With one, for every depth: a session for each policy with a cache of
 * random keys and values; then rounds, in each of which the read ceiling is measured and every policy decodes N tokens.
 * The floor of a step is the bytes that it must read (weights, the predictor's too; selected keys and values; what the metric
 * reads) over the best bandwidth that all threads together reached in the same round on a set of that size; share = floor / time.
 * Medians over rounds, ratios taken within a round. "x full" is against the first policy. */
#include <getopt.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "butler.h"
#include "ceilings.h"
#include "median.h"
#include "base/util.h"

#define MAX_POLICIES 32
#define MAX_DEPTHS 16
#define MAX_THREADS 64
#define N_SETS 3
static const size_t set_bytes[N_SETS] = {(size_t)64 << 20, (size_t)512 << 20, (size_t)2 << 30};
static const size_t row_bytes[] = {64, 128, 256, 1024, 2048};
#define N_ROW_SIZES ((int)(sizeof row_bytes / sizeof *row_bytes))

struct roofline {
    const char *model_path, *isa, *kv_type, *policies[MAX_POLICIES];
    int n_policies, depths[MAX_DEPTHS], n_depths, tokens, rounds, warmup, threads;
    double memory_gb;
    const char *predictors[2]; /* for tokenbutler and tokenbutler2 */
    int n_predictors;
    bool json, skip_ceilings;
    unsigned char *set; /* [set_bytes[N_SETS - 1]] */
    size_t ahead;       /* prefetch distance at which reading was fastest */
};

/* --------------------------------------------------------------------------------------------- ceilings */

enum work { READ, READ_STREAMS, GATHER, DOT };

struct worker {
    pthread_t thread;
    pthread_barrier_t *start;
    int cpu;
    enum work work;
    const unsigned char *part;
    size_t bytes, ahead;
    int passes;
    const void **rows;
    int n_rows;
    size_t row;
    enum ceiling_unit unit;
    double done, from, until; /* bytes or operations, clock */
    volatile uint64_t sink;
};

static void *run_worker(void *user)
{
    struct worker *w = user;
    cpu_set_t mine; /* work is shorter than it takes a scheduler to see that two threads share a core */
    CPU_ZERO(&mine);
    CPU_SET(w->cpu, &mine);
    pthread_setaffinity_np(pthread_self(), sizeof mine, &mine);
    pthread_barrier_wait(w->start);
    w->from = butler_seconds();
    for (int pass = 0; pass < w->passes; pass++)
        switch (w->work) {
        case READ:
            w->sink += ceiling_read(w->part, w->bytes, w->ahead);
            w->done += (double)w->bytes;
            break;
        case READ_STREAMS:
            w->sink += ceiling_read_streams(w->part, w->bytes);
            w->done += (double)w->bytes;
            break;
        case GATHER:
            w->sink += ceiling_gather(w->rows, w->n_rows, w->row);
            w->done += (double)w->n_rows * (double)w->row;
            break;
        case DOT: {
            double ops;
            w->sink += (uint64_t)ceiling_dot(w->unit, 1 << 18, &ops);
            w->done += ops;
        }
        }
    w->until = butler_seconds();
    return NULL;
}

/* What n workers did together, per second. */
static double rate(struct worker *workers, int n)
{
    pthread_barrier_t start;
    double from = INFINITY, until = 0, done = 0;
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        workers[i].start = &start;
        workers[i].cpu = i;
        if (pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) != 0)
            exit(1);
    }
    for (int i = 0; i < n; i++) {
        pthread_join(workers[i].thread, NULL);
        from = fmin(from, workers[i].from);
        until = fmax(until, workers[i].until);
        done += workers[i].done;
    }
    pthread_barrier_destroy(&start);
    return done / (until - from);
}

/* GB/s of n threads that read a set together, each its own part, in one way or the other. */
static double read_rate_as(enum work work, const struct roofline *r, size_t bytes, int n, int passes)
{
    struct worker workers[MAX_THREADS] = {0};
    const size_t part = bytes / (size_t)n & ~(size_t)4095;
    for (int i = 0; i < n; i++)
        workers[i] =
            (struct worker){.work = work, .part = r->set + (size_t)i * part, .bytes = part, .ahead = r->ahead, .passes = passes};
    return rate(workers, n) / 1e9;
}

static double read_rate(const struct roofline *r, size_t bytes, int n, int passes)
{
    return read_rate_as(READ, r, bytes, n, passes);
}

static int passes_for(size_t bytes)
{
    int passes = (int)(((size_t)1 << 30) / bytes);
    return passes < 1 ? 1 : passes;
}

/* GB/s of random rows out of the largest set. */
static double gather_rate(const struct roofline *r, size_t row, int n)
{
    struct worker workers[MAX_THREADS] = {0};
    const int n_rows =
        (int)(((size_t)256 << 20) / row / (size_t)n) > 1 << 20 ? 1 << 20 : (int)(((size_t)256 << 20) / row / (size_t)n);
    uint64_t random = 12345;
    for (int i = 0; i < n; i++) {
        const void **rows = malloc((size_t)n_rows * sizeof *rows);
        if (!rows)
            exit(1);
        for (int j = 0; j < n_rows; j++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            rows[j] = r->set + (random >> 20) % (set_bytes[N_SETS - 1] / row) * row;
        }
        workers[i] = (struct worker){.work = GATHER, .rows = rows, .n_rows = n_rows, .row = row, .passes = 1};
    }
    double result = rate(workers, n) / 1e9;
    for (int i = 0; i < n; i++)
        free(workers[i].rows);
    return result;
}

static double dot_rate(enum ceiling_unit unit, int n)
{
    struct worker workers[MAX_THREADS] = {0};
    for (int i = 0; i < n; i++)
        workers[i] = (struct worker){.work = DOT, .unit = unit, .passes = 8};
    return rate(workers, n) / 1e9;
}

static void choose_ahead(struct roofline *r)
{
    static const size_t candidates[] = {0, 512, 1024, 2048, 4096};
    size_t best = 0;
    double best_rate = 0;
    for (int i = 0; i < 5; i++) {
        r->ahead = candidates[i];
        double a = read_rate(r, set_bytes[1], r->threads, 2);
        if (a > best_rate)
            best_rate = a, best = candidates[i];
    }
    r->ahead = best;
}

static void print_ceiling(const struct roofline *r, const char *what, double one, double all, const char *unit)
{
    if (r->json)
        printf("{\"ceiling\": \"%s\", \"one\": %.2f, \"all\": %.2f, \"threads\": %d, \"unit\": \"%s\"}\n", what, one, all,
               r->threads, unit);
    else
        printf("%-36s %10.1f %10.1f %s\n", what, one, all, unit);
    fflush(stdout);
}

static void print_ceilings(const struct roofline *r)
{
    double one[5], all[5];
    char what[64];
    if (!r->json)
        printf("%-36s %10s %10s   (prefetching %zu bytes ahead)\n", "ceiling", "1 thread", "all", r->ahead);
    for (int s = 0; s < N_SETS; s++) {
        for (int k = 0; k < 5; k++) {
            one[k] = read_rate(r, set_bytes[s], 1, passes_for(set_bytes[s]));
            all[k] = read_rate(r, set_bytes[s], r->threads, passes_for(set_bytes[s]));
        }
        snprintf(what, sizeof what, "read, set of %zu MB", set_bytes[s] >> 20);
        print_ceiling(r, what, median(one, 5), median(all, 5), "GB/s");
        for (int k = 0; k < 5; k++) {
            one[k] = read_rate_as(READ_STREAMS, r, set_bytes[s], 1, passes_for(set_bytes[s]));
            all[k] = read_rate_as(READ_STREAMS, r, set_bytes[s], r->threads, passes_for(set_bytes[s]));
        }
        snprintf(what, sizeof what, "read in four places, set of %zu MB", set_bytes[s] >> 20);
        print_ceiling(r, what, median(one, 5), median(all, 5), "GB/s");
    }
    for (int s = 0; s < N_ROW_SIZES; s++) {
        for (int k = 0; k < 3; k++) {
            one[k] = gather_rate(r, row_bytes[s], 1);
            all[k] = gather_rate(r, row_bytes[s], r->threads);
        }
        snprintf(what, sizeof what, "random rows of %zu B from 2 GB", row_bytes[s]);
        print_ceiling(r, what, median(one, 3), median(all, 3), "GB/s");
    }
    for (int u = 0; u < CEILING_N_UNITS; u++) {
        for (int k = 0; k < 3; k++) {
            one[k] = dot_rate((enum ceiling_unit)u, 1);
            all[k] = dot_rate((enum ceiling_unit)u, r->threads);
        }
        print_ceiling(r, ceiling_unit_names[u], median(one, 3), median(all, 3), "Gop/s");
    }
}

/* ------------------------------------------------------------------------------------------------ steps */

#define MAX_ROUNDS 64
#define MAX_TOKENS 256 /* of a round */

struct lane { /* one policy at one depth */
    const char *policy;
    struct butler_session *session;
    struct butler_stats stats; /* of all rounds */
    double ms[MAX_ROUNDS], share[MAX_ROUNDS], gain[MAX_ROUNDS];
};

/* GB/s of reading a set of as many bytes as a step reads, in one place a thread or in four, whichever is faster: measured, since
 * bandwidth falls at once where a cache is too small. Beyond the largest set it falls no more. The set is read as often as steps
 * are taken, and the middle reading counts as the middle step does: either finds in a cache what its own have left there. */
static double bandwidth_at(const struct roofline *r, double bytes)
{
    double best = 0;
    for (enum work work = READ; work <= READ_STREAMS; work++) {
        double rates[MAX_TOKENS];
        for (int i = 0; i < r->tokens; i++)
            rates[i] = read_rate_as(work, r, BUTLER_MIN((size_t)bytes, set_bytes[N_SETS - 1]), r->threads, 1);
        best = fmax(best, median(rates, r->tokens));
    }
    return best;
}

static double bytes_of(const struct butler_stats *stats)
{
    return stats->n_decode ? (double)(stats->weight_bytes + stats->predict_bytes + stats->kv_bytes + stats->metric_bytes) /
                                 (double)stats->n_decode
                           : 0;
}

static int decode(struct lane *lane, int n, double *ms, struct butler_error *err)
{
    double each[MAX_TOKENS];
    for (int i = 0; i < n; i++) {
        double start = butler_seconds();
        if (butler_step(lane->session, (int32_t)(i * 7919 % 256), err) < 0)
            return err->code;
        each[i] = 1e3 * (butler_seconds() - start);
    }
    *ms = median(each, n);
    return BUTLER_OK;
}

static int run_rounds(const struct roofline *r, struct lane *lanes, int n_lanes, struct butler_error *err)
{
    double ignored;
    for (int i = 0; i < n_lanes; i++) {
        if (r->warmup && decode(&lanes[i], r->warmup, &ignored, err) < 0)
            return err->code;
        butler_session_stats_reset(lanes[i].session);
    }
    for (int round = 0; round < r->rounds; round++)
        for (int i = 0; i < n_lanes; i++) {
            if (decode(&lanes[i], r->tokens, &lanes[i].ms[round], err) < 0)
                return err->code;
            butler_session_stats(lanes[i].session, &lanes[i].stats);
            double bytes = bytes_of(&lanes[i].stats);
            lanes[i].share[round] = 1e3 * bytes / 1e9 / bandwidth_at(r, bytes) / lanes[i].ms[round];
            lanes[i].gain[round] = lanes[0].ms[round] / lanes[i].ms[round];
        }
    return BUTLER_OK;
}

static void range(const double *values, int n, double *low, double *high)
{
    *low = INFINITY, *high = -INFINITY;
    for (int i = 0; i < n; i++) {
        *low = fmin(*low, values[i]);
        *high = fmax(*high, values[i]);
    }
}

static enum butler_kv_type kv_type_of(const struct roofline *r)
{
    return strcmp(r->kv_type, "q8_0") == 0 ? BUTLER_KV_Q8_0 : BUTLER_KV_F16;
}

/* against_ms: what the lane is as fast as, times `gain`, where that has not been measured in turns with it; then the gain has no
 * range. 0: it has. */
static void print_lane(const struct roofline *r, int depth, struct lane *lane, double against_ms)
{
    const struct butler_stats *s = &lane->stats;
    const double n = s->n_decode ? (double)s->n_decode : 1;
    const double ms = median(lane->ms, r->rounds), share = median(lane->share, r->rounds);
    const double gain = against_ms > 0 ? against_ms / ms : median(lane->gain, r->rounds);
    const double score = 1e3 * s->score_s / n, select = 1e3 * s->select_s / n, attend = 1e3 * s->attend_s / n;
    double ms_low, ms_high, gain_low, gain_high;
    range(lane->ms, r->rounds, &ms_low, &ms_high);
    range(lane->gain, r->rounds, &gain_low, &gain_high);
    char ranges[64] = "\"gain_low\": null, \"gain_high\": null";
    if (!(against_ms > 0))
        snprintf(ranges, sizeof ranges, "\"gain_low\": %.4f, \"gain_high\": %.4f", gain_low, gain_high);
    else
        gain_low = gain_high = NAN;
    const char *slash = strrchr(r->model_path, '/');
    if (r->json)
        printf("{\"model\": \"%s\", \"policy\": \"%s\", \"depth\": %d, \"kv_type\": \"%s\", \"ms_tok\": %.4f, \"ms_low\": %.4f, "
               "\"ms_high\": %.4f, "
               "\"weight_bytes\": %.0f, \"kv_bytes\": %.0f, \"metric_bytes\": %.0f, \"full_kv_bytes\": %.0f, \"share\": %.4f, "
               "\"gain\": %.4f, %s, \"ms_score\": %.4f, \"ms_select\": %.4f, \"ms_attend\": "
               "%.4f, \"predict_bytes\": %.0f, \"ms_predict\": %.4f, "
               "\"rounds\": %d, \"tokens\": %d}\n",
               slash ? slash + 1 : r->model_path, lane->policy, depth, r->kv_type, ms, ms_low, ms_high, (double)s->weight_bytes / n,
               (double)s->kv_bytes / n, (double)s->metric_bytes / n, (double)s->full_kv_bytes / n, share, gain, ranges, score,
               select, attend, (double)s->predict_bytes / n, 1e3 * s->predict_s / n, r->rounds, r->tokens);
    else
        printf("%-36s %7d %9.2f %8.1f %8.1f %8.1f %7.2f %7.2f %5.2f-%-5.2f %7.2f %7.2f %7.2f\n", lane->policy, depth, ms,
               (double)s->weight_bytes / n / 1e6, (double)s->kv_bytes / n / 1e6, (double)s->metric_bytes / n / 1e6, share, gain,
               gain_low, gain_high, score, select, attend);
    fflush(stdout);
}

static double memory_of(struct butler_session *session)
{
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    butler_session_stats(session, &stats);
    return (double)stats.kv_memory + (double)stats.metric_memory;
}

static int fill_lane(const struct roofline *r, struct butler_engine *engine, int depth, struct lane *lane, struct butler_error *err)
{
    const struct butler_session_params params = {
        .n_ctx = depth + r->warmup + r->rounds * r->tokens, .kv_type = kv_type_of(r), .policy = lane->policy};
    fprintf(stderr, "depth %d: filling for %s\n", depth, lane->policy);
    lane->session = butler_session_new(engine, &params, err);
    return !lane->session || (depth && butler_fill(lane->session, depth, 1, err) < 0) ? err->code : BUTLER_OK;
}

/* From policy *next on as many as memory has room for, each of up to `most` bytes, and the first policy, since the others are
 * measured against it. Where it does not fit beside another, they are against first_ms, its median. */
static int measure_group(const struct roofline *r, struct butler_engine *engine, int depth, double most, int *next,
                         double *first_ms, struct butler_error *err)
{
    struct lane lanes[MAX_POLICIES] = {0};
    const double limit = r->memory_gb * 1e9;
    const bool again = *next > 0 && 2 * most <= limit;
    double used = 0;
    int code = BUTLER_OK, n_lanes = 0;
    if (again)
        lanes[n_lanes++].policy = r->policies[0];
    for (int i = 0; code == BUTLER_OK; i++) {
        if (i == n_lanes) {
            if (*next == r->n_policies || (i > (again ? 1 : 0) && used + most > limit))
                break;
            lanes[n_lanes++].policy = r->policies[(*next)++];
        }
        code = fill_lane(r, engine, depth, &lanes[i], err);
        used += code == BUTLER_OK ? memory_of(lanes[i].session) : 0;
    }
    if (code == BUTLER_OK)
        code = run_rounds(r, lanes, n_lanes, err);
    if (code == BUTLER_OK && lanes[0].policy == r->policies[0])
        *first_ms = median(lanes[0].ms, r->rounds);
    for (int i = again ? 1 : 0; code == BUTLER_OK && i < n_lanes; i++)
        print_lane(r, depth, &lanes[i], lanes[0].policy == r->policies[0] ? 0 : *first_ms);
    for (int i = 0; i < n_lanes; i++)
        butler_session_free(lanes[i].session);
    return code;
}

static int measure_model(const struct roofline *r, struct butler_error *err)
{
    const struct butler_engine_params params = {.n_threads = r->threads, .isa = r->isa};
    struct butler_model *model = butler_model_load(r->model_path, NULL, err);
    struct butler_engine *engine = model ? butler_engine_new(model, &params, err) : NULL;
    int code = engine ? BUTLER_OK : err->code;
    for (int i = 0; i < r->n_predictors && code == BUTLER_OK; i++)
        code = butler_predictor_attach(engine, r->predictors[i], err);
    if (!r->json && code == BUTLER_OK)
        printf("\n%-36s %7s %9s %8s %8s %8s %7s %7s %11s %7s %7s %7s\n", "policy", "depth", "ms/token", "weights", "KV MB",
               "metric", "share", "x full", "", "score", "select", "attend");
    for (int d = 0; d < r->n_depths && code == BUTLER_OK; d++) {
        /* Records take a quarter of the cache or less. */
        const double most = 1.3 * (double)butler_kv_bytes(model, kv_type_of(r), r->depths[d] + 256);
        double first_ms = 0;
        for (int next = 0; next < r->n_policies && code == BUTLER_OK;)
            code = measure_group(r, engine, r->depths[d], most, &next, &first_ms, err);
    }
    butler_engine_free(engine);
    butler_model_free(model);
    return code;
}

/* ---------------------------------------------------------------------------------------------- options */

static int usage(void)
{
    fprintf(
        stderr,
        "usage: bench_roofline [MODEL.gguf] [--depths D,...] [--policy POLICY]... [--kv-type f16|q8_0] [--tokens N] [--rounds N]\n"
        "                      [--warmup N] [--threads N] [--memory GB] [--isa NAME] [--json]\n");
    return 2;
}

static int read_depths(struct roofline *r, char *text)
{
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (r->n_depths == MAX_DEPTHS)
            return -1;
        r->depths[r->n_depths++] = atoi(word);
    }
    return 0;
}

static int read_options(struct roofline *r, int argc, char **argv)
{
    static const struct option options[] = {{"depths", 1, NULL, 'd'},
                                            {"policy", 1, NULL, 'p'},
                                            {"kv-type", 1, NULL, 'k'},
                                            {"tokens", 1, NULL, 'n'},
                                            {"rounds", 1, NULL, 'r'},
                                            {"warmup", 1, NULL, 'w'},
                                            {"json", 0, NULL, 'j'},
                                            {"threads", 1, NULL, 't'},
                                            {"memory", 1, NULL, 'm'},
                                            {"predictor", 1, NULL, 'P'},
                                            {"skip-ceilings", 0, NULL, 's'},
                                            {"isa", 1, NULL, 'i'},
                                            {0}};
    for (int c; (c = getopt_long(argc, argv, "", options, NULL)) != -1;)
        switch (c) {
        case 'd':
            if (read_depths(r, optarg) < 0)
                return -1;
            break;
        case 'p':
            if (r->n_policies == MAX_POLICIES)
                return -1;
            r->policies[r->n_policies++] = optarg;
            break;
        case 'k':
            r->kv_type = optarg;
            break;
        case 'n':
            r->tokens = atoi(optarg);
            break;
        case 'r':
            r->rounds = atoi(optarg);
            break;
        case 'w':
            r->warmup = atoi(optarg);
            break;
        case 't':
            r->threads = atoi(optarg);
            break;
        case 'm':
            r->memory_gb = atof(optarg);
            break;
        case 'P':
            if (r->n_predictors == 2)
                return -1;
            r->predictors[r->n_predictors++] = optarg;
            break;
        case 'i':
            r->isa = optarg;
            break;
        case 's':
            r->skip_ceilings = true;
            break;
        case 'j':
            r->json = true;
            break;
        default:
            return -1;
        }
    r->model_path = argv[optind];
    bool ok = argc - optind <= 1 && r->tokens > 0 && r->tokens <= MAX_TOKENS && r->rounds > 0 && r->rounds <= MAX_ROUNDS &&
              r->warmup >= 0 && r->warmup <= 256 && r->threads > 0 && r->threads <= MAX_THREADS && r->memory_gb > 0;
    return ok && (strcmp(r->kv_type, "f16") == 0 || strcmp(r->kv_type, "q8_0") == 0) ? 0 : -1;
}

int main(int argc, char **argv)
{
    struct roofline r = {
        .kv_type = "f16", .tokens = 8, .rounds = 5, .warmup = 2, .threads = (int)sysconf(_SC_NPROCESSORS_ONLN), .memory_gb = 16};
    struct butler_error err = {0};
    if (read_options(&r, argc, argv) < 0)
        return usage();
    if (r.n_depths == 0)
        r.depths[r.n_depths++] = 4096;
    if (r.n_policies == 0)
        r.policies[r.n_policies++] = "full";
    r.set = mmap(NULL, set_bytes[N_SETS - 1], PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (r.set == MAP_FAILED) {
        fprintf(stderr, "bench_roofline: no memory for a set of 2 GB\n");
        return 1;
    }
    madvise(r.set, set_bytes[N_SETS - 1], MADV_HUGEPAGE);
    uint64_t seed = 3;
    for (size_t i = 0; i < set_bytes[N_SETS - 1]; i += 64) { /* pages that are alike may share memory, and then a cache */
        const uint64_t random = butler_random(&seed);
        memcpy(r.set + i, &random, sizeof random);
    }
    choose_ahead(&r);
    if (!r.skip_ceilings)
        print_ceilings(&r);
    if (r.model_path && measure_model(&r, &err) < 0) {
        fprintf(stderr, "bench_roofline: %s\n", err.message);
        return 1;
    }
    return 0;
}
