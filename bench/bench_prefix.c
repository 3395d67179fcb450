/* What sessions with a common beginning cost: through the prefix cache, by fork, and going back.
 *
 *     bench_prefix MODEL [--kv POLICY]... [--common N] [--own N] [--sessions N] [--threads N]
 *
 * For each policy: `sessions` sessions one after the other, all kept, each with a prompt of `common` tokens that all have and `own`
 * of its own, read by way of the prefix cache. Printed are the time to the first logits of the first, the median of the others and
 * its share of the first's; the tokens that the others did not read; KV pages in use (a shared one counts once), and the process's
 * resident anonymous memory, with one and with all sessions. Then the last session is forked and cut back to the common beginning:
 * time, and bytes of KV pages and of resident memory that a fork adds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/util.h"
#include "butler.h"
#include "median.h"
#include "resident.h"

enum { MAX_POLICIES = 16, MAX_SESSIONS = 64 };

struct options {
    const char *policies[MAX_POLICIES];
    int n_policies, common, own, sessions, threads;
};

static double kv_mb(const struct butler_engine *engine)
{
    struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
    butler_engine_get_info(engine, &info);
    return (double)info.kv_memory / 1e6;
}

/* Seconds from the empty session to the logits after ids[n], or less than 0. */
static double read_prompt(struct butler_engine *engine, struct butler_session *session, const int32_t *ids, int n,
                          struct butler_error *err)
{
    const double start = butler_seconds();
    const int known = butler_session_adopt_prefix(session, ids, n, err);
    const struct butler_span span = {.session = session, .ids = ids + known, .n = n - known, .prompt_end = n};
    if (known < 0 || butler_run(engine, &span, 1, err) < 0)
        return -1;
    return butler_seconds() - start;
}

static int report_fork(struct butler_engine *engine, struct butler_session *session, int common, struct butler_error *err)
{
    enum { FORKS = 9 };
    struct butler_session *forks[FORKS] = {0};
    double seconds[FORKS];
    const double kv = kv_mb(engine), resident = resident_anonymous_mb();
    int n = 0;
    for (; n < FORKS; n++) {
        const double start = butler_seconds();
        if (!(forks[n] = butler_session_fork(session, err)))
            break;
        seconds[n] = butler_seconds() - start;
    }
    if (n == FORKS) {
        printf("  fork_ms=%.2f kv_mb=%.2f resident_mb=%.2f", 1e3 * median(seconds, FORKS), (kv_mb(engine) - kv) / FORKS,
               (resident_anonymous_mb() - resident) / FORKS);
        const double start = butler_seconds();
        if (butler_session_truncate(session, common, err) < 0)
            printf(" truncate: %s\n", err->message);
        else
            printf(" truncate_ms=%.2f\n", 1e3 * (butler_seconds() - start));
    }
    for (int i = 0; i < n; i++)
        butler_session_free(forks[i]);
    return n == FORKS ? 0 : err->code;
}

static int bench_policy(struct butler_model *model, const struct options *options, const char *policy, struct butler_error *err)
{
    const struct butler_engine_params device = {.n_threads = options->threads, .prefix_bytes = (uint64_t)1 << 32};
    const int n = options->common + options->own, n_vocab = butler_model_get_info(model)->n_vocab;
    const struct butler_session_params params = {.n_ctx = n + 16, .policy = policy};
    struct butler_engine *engine = butler_engine_new(model, &device, err);
    struct butler_session *sessions[MAX_SESSIONS] = {0};
    int32_t *ids = butler_alloc((size_t)n * sizeof *ids, err);
    double seconds[MAX_SESSIONS], one_kv = 0, one_resident = 0;
    int code = engine && ids ? 0 : err->code;
    uint64_t random = 1;
    const double before = resident_anonymous_mb();
    for (int i = 0; i < n && ids; i++)
        ids[i] = (int32_t)(butler_random(&random) % (uint64_t)n_vocab);
    for (int s = 0; s < options->sessions && code == 0; s++) {
        for (int i = options->common; i < n; i++)
            ids[i] = (int32_t)(butler_random(&random) % (uint64_t)n_vocab);
        sessions[s] = butler_session_new(engine, &params, err);
        seconds[s] = sessions[s] ? read_prompt(engine, sessions[s], ids, n, err) : -1;
        code = seconds[s] < 0 ? err->code : 0;
        if (s == 0) {
            one_kv = kv_mb(engine);
            one_resident = resident_anonymous_mb() - before;
        }
    }
    if (code == 0) {
        struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
        butler_engine_get_info(engine, &info);
        const double first = seconds[0], others = median(seconds + 1, options->sessions - 1);
        printf("policy=%s common=%d own=%d sessions=%d\n", policy, options->common, options->own, options->sessions);
        printf("  first_s=%.3f others_s=%.4f share=%.4f tokens_saved=%llu\n", first, others, others / first,
               (unsigned long long)info.prefix_tokens);
        printf("  kv_mb: one=%.1f all=%.1f  resident_mb: one=%.1f all=%.1f\n", one_kv, kv_mb(engine), one_resident,
               resident_anonymous_mb() - before);
        code = report_fork(engine, sessions[options->sessions - 1], options->common, err);
    }
    for (int s = 0; s < options->sessions; s++)
        butler_session_free(sessions[s]);
    butler_engine_free(engine);
    free(ids);
    fflush(stdout);
    return code;
}

int main(int argc, char **argv)
{
    struct options options = {.common = 6144, .own = 32, .sessions = 8};
    struct butler_error err = {0};
    bool wrong = argc < 2 || argc % 2;
    for (int i = 2; i + 1 < argc; i += 2) {
        int *number = strcmp(argv[i], "--common") == 0     ? &options.common
                      : strcmp(argv[i], "--own") == 0      ? &options.own
                      : strcmp(argv[i], "--sessions") == 0 ? &options.sessions
                      : strcmp(argv[i], "--threads") == 0  ? &options.threads
                                                           : NULL;
        if (number)
            *number = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--kv") == 0 && options.n_policies < MAX_POLICIES)
            options.policies[options.n_policies++] = argv[i + 1];
        else
            wrong = true;
    }
    if (wrong || options.common < 1 || options.own < 1 || options.sessions < 2 || options.sessions > MAX_SESSIONS) {
        fprintf(stderr, "usage: %s MODEL [--kv POLICY]... [--common N] [--own N] [--sessions N] [--threads N]\n", argv[0]);
        return 2;
    }
    if (options.n_policies == 0)
        options.policies[options.n_policies++] = "full";
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    int code = model ? 0 : err.code;
    for (int p = 0; p < options.n_policies && code == 0; p++)
        code = bench_policy(model, &options, options.policies[p], &err);
    if (code)
        fprintf(stderr, "bench_prefix: %s\n", err.message);
    butler_model_free(model);
    return code ? EXIT_FAILURE : EXIT_SUCCESS;
}
