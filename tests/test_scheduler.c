/* The server's scheduler where memory is short: every job ends whatever arrives when, and computes what one session alone computes,
 * although jobs leave memory for files and come back. */
#include <signal.h>
#include <sys/resource.h>

#include <pthread.h>

#include "fixtures.h"
#include "serve/choice.h"
#include "serve/map.h"
#include "serve/pace.h"
#include "serve/scheduler.h"
#include "tiny_model.h"

enum { N_CTX = 1000, N_VOCAB = 40, MAX_JOBS = 20, MAX_CHOICES = 2 };

/* A job, what it should give, and what it gave. */
struct wish {
    int n_prompt, max_tokens, n_choices, wait_us;
    bool scored, cancelled, lossless; /* lossless: wanted is what `full` gives, and the policy drafts */
    const char *policy, *key;
    uint64_t seed;
    float temperature;
    int32_t prompt[N_CTX], wanted[MAX_CHOICES][N_CTX], got[MAX_CHOICES][N_CTX];
    double wanted_scores[MAX_CHOICES][N_CTX], got_scores[MAX_CHOICES][N_CTX], prompt_scores[N_CTX];
    int n_got[MAX_CHOICES];
    int done, nth; /* nth: its prompt was read as the nth, from 1 on */
    struct serve_job *job;
};

static int n_read;
static struct wish wishes[MAX_JOBS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t woken = PTHREAD_COND_INITIALIZER;
static bool wake_called;

static void wake(void *user)
{
    (void)user;
    pthread_mutex_lock(&lock);
    wake_called = true;
    pthread_cond_signal(&woken);
    pthread_mutex_unlock(&lock);
}

static void wait_for_wake(void)
{
    pthread_mutex_lock(&lock);
    while (!wake_called)
        pthread_cond_wait(&woken, &lock);
    wake_called = false;
    pthread_mutex_unlock(&lock);
}

static int below(uint64_t *random, int n)
{
    return (int)(butler_random(random) % (uint64_t)n);
}

static struct butler_sampler_params sampling_of(const struct wish *wish)
{
    return (struct butler_sampler_params){.temperature = wish->temperature, .seed = wish->seed, .presence_penalty = 0.5f};
}

static bool score(void *user, int position, const float *logits)
{
    struct wish *wish = user;
    struct serve_score one;
    if (position + 1 < wish->n_prompt) {
        serve_score_token(logits, N_VOCAB, wish->prompt[position + 1], 1, &one);
        wish->prompt_scores[position + 1] = one.logprob;
    }
    return true;
}

/* What was held while the prompt was read is within what is said of it. */
static void check_memory(const struct butler_engine *engine, const struct wish *wish, const struct butler_session *session)
{
    struct butler_policy_cost cost = {BUTLER_INIT(butler_policy_cost)};
    struct butler_stats stats = {BUTLER_INIT(butler_stats)};
    assert_int_equal(butler_policy_estimate(engine, wish->policy, BUTLER_KV_F16, wish->n_prompt, &cost, NULL), 0);
    butler_session_stats(session, &stats);
    const uint64_t rounded = butler_kv_bytes(butler_engine_model(engine), BUTLER_KV_F16, 1);
    if (stats.kv_memory_peak + stats.metric_memory_peak > cost.prompt_memory + rounded)
        fail_msg("%s, %d tokens: held %llu + %llu bytes, not %llu + %llu", wish->policy, wish->n_prompt,
                 (unsigned long long)stats.kv_memory_peak, (unsigned long long)stats.metric_memory_peak,
                 (unsigned long long)cost.prompt_memory, (unsigned long long)rounded);
}

/* What one session alone gives. */
static void run_alone(struct butler_engine *engine, struct wish *wish)
{
    struct butler_error err = {0};
    const char *policy = wish->lossless ? "full" : wish->policy;
    for (int c = 0; c < wish->n_choices; c++) {
        struct butler_sampler_params sampling = sampling_of(wish);
        sampling.seed += (uint64_t)c;
        struct butler_sampler *sampler = butler_sampler_new(&sampling, &err);
        struct butler_session *session =
            butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_CTX, .policy = policy, .seed = wish->seed}, &err);
        assert_non_null(sampler);
        assert_non_null(session);
        assert_int_equal(butler_sampler_accept(sampler, wish->prompt, wish->n_prompt, &err), 0);
        assert_int_equal(butler_prefill(session, wish->prompt, wish->n_prompt, score, wish, &err), 0);
        check_memory(engine, wish, session);
        for (int i = 0; i < wish->max_tokens; i++) {
            struct serve_score one;
            if (i > 0)
                assert_int_equal(butler_step(session, wish->wanted[c][i - 1], &err), 0);
            wish->wanted[c][i] = butler_sample(sampler, butler_logits(session), N_VOCAB, &err);
            serve_score_token(butler_logits(session), N_VOCAB, wish->wanted[c][i], 0, &one);
            wish->wanted_scores[c][i] = one.logprob;
        }
        butler_sampler_free(sampler);
        butler_session_free(session);
    }
}

/* growing: long answers, most of them under policies whose caches grow with them. */
static void make_wishes(struct butler_engine *alone, int n, bool growing, uint64_t *random)
{
    static const char *const policies[] = {"full",
                                           "quest:budget=64",
                                           "fier:budget=96",
                                           "h2o:budget=0.5",
                                           "quest:budget=64,every=3",
                                           "h2o:budget=64",
                                           "snapkv:budget=80",
                                           "h2o+vatp:budget=100",
                                           "pyramidkv:budget=64",
                                           "tova:budget=70",
                                           "softprune",
                                           "streaming:budget=48,prefill=evict"};
    for (int i = 0; i < n; i++) {
        struct wish *wish = &wishes[i];
        *wish = (struct wish){.n_prompt = 1 + below(random, below(random, 3) ? 60 : 300),
                              .max_tokens = growing ? 300 + below(random, 390) : 1 + below(random, below(random, 2) ? 60 : 690),
                              .n_choices = below(random, 4) ? 1 : 1 + below(random, MAX_CHOICES),
                              .scored = below(random, 3) == 0,
                              .cancelled = below(random, 8) == 0,
                              .policy = policies[below(random, growing && below(random, 3) ? 5 : BUTLER_COUNT(policies))],
                              .key = below(random, 2) ? "a" : NULL,
                              .seed = butler_random(random),
                              .temperature = below(random, 3) ? 1 : 0,
                              .wait_us = below(random, 3) ? 0 : below(random, 5000)};
        const bool common = below(random, 2); /* beginnings that the prefix cache has */
        for (int t = 0; t < wish->n_prompt; t++)
            wish->prompt[t] = common ? 3 + t * 7 % 31 : below(random, N_VOCAB);
        run_alone(alone, wish);
    }
}

static struct serve_job *make_job(struct wish *wish)
{
    struct serve_job *job = serve_alloc(1, sizeof *job);
    job->prompt = serve_alloc((size_t)wish->n_prompt, sizeof *job->prompt);
    memcpy(job->prompt, wish->prompt, (size_t)wish->n_prompt * sizeof *job->prompt);
    job->n_prompt = wish->n_prompt;
    job->policy = strdup(wish->policy);
    job->key = wish->key ? strdup(wish->key) : NULL;
    job->sampling = sampling_of(wish);
    job->n_choices = wish->n_choices;
    job->max_tokens = wish->max_tokens;
    job->lossless = wish->lossless;
    job->map = !wish->lossless && wish->n_prompt % 2; /* changes nothing */
    job->n_drafts = wish->lossless ? 3 : 0;
    job->n_top = wish->lossless ? -1 : 0; /* what has scores makes no drafts */
    job->score_prompt = wish->scored;
    job->ignore_end = true;
    job->user = wish;
    wish->job = job;
    return job;
}

/* Takes what has happened; returns how many jobs ended. */
static int collect(struct serve_scheduler *scheduler)
{
    int n_done = 0;
    for (struct serve_event *event = serve_collect(scheduler), *next; event; event = next) {
        struct wish *wish = event->job->user;
        next = event->next;
        assert_int_equal(wish->done, 0);
        if (event->kind == SERVE_PROMPT)
            wish->nth = ++n_read;
        if (event->kind == SERVE_TOKEN) {
            int *n = &wish->n_got[event->choice];
            wish->got[event->choice][*n] = event->id;
            wish->got_scores[event->choice][(*n)++] = event->score.logprob;
        }
        if (event->kind == SERVE_DONE) {
            wish->done = 1;
            n_done++;
        }
        serve_event_free(event);
    }
    return n_done;
}

/* Of a job without an error every number is the one of the session alone. */
static void check_wish(const struct wish *wish)
{
    for (int c = 0; c < wish->n_choices; c++) {
        assert_int_equal(wish->n_got[c], wish->max_tokens);
        assert_memory_equal(wish->got[c], wish->wanted[c], (size_t)wish->max_tokens * sizeof(int32_t));
        if (!wish->lossless)
            assert_memory_equal(wish->got_scores[c], wish->wanted_scores[c], (size_t)wish->max_tokens * sizeof(double));
    }
    for (int i = 1; wish->scored && !wish->lossless && i < wish->n_prompt; i++)
        assert_true(wish->job->scores[i].logprob == wish->prompt_scores[i]);
}

static struct butler_model *make_model(void)
{
    struct tiny tiny = tiny_default;
    struct butler_error err;
    const char *path = tiny_path("model.gguf");
    tiny.n_ctx = N_CTX;
    tiny_write(path, &tiny);
    struct butler_model *model = butler_model_load(path, NULL, &err);
    assert_non_null(model);
    return model;
}

/* An engine whose pages are what jobs may hold and what the prefix cache may, and not a byte more. */
static struct butler_engine *make_engine(struct butler_model *model, int n_threads, uint64_t kv_bytes, uint64_t prefix_bytes)
{
    struct butler_error err;
    struct butler_engine *engine = butler_engine_new(
        model,
        &(struct butler_engine_params){
            .n_threads = n_threads, .n_block = 64, .kv_bytes = kv_bytes + prefix_bytes, .prefix_bytes = prefix_bytes},
        &err);
    assert_non_null(engine);
    return engine;
}

static struct serve_scheduler *make_scheduler(struct butler_engine *engine, uint64_t kv_bytes, const char *park)
{
    struct butler_error err = {0};
    const struct serve_params params = {.n_ctx = N_CTX,
                                        .kv_type = BUTLER_KV_F16,
                                        .kv_bytes = kv_bytes,
                                        .park = park,
                                        .max_stall_s = 0.01,
                                        .max_jobs = 16,
                                        .max_queue = MAX_JOBS,
                                        .wake = wake};
    struct serve_scheduler *scheduler = serve_scheduler_new(engine, &params, &err);
    if (!scheduler)
        fail_msg("%s", err.message);
    return scheduler;
}

/* What is said of a job never goes back, also while it is parked. */
static void check_slots(struct serve_scheduler *scheduler, int *n_read_of)
{
    struct serve_metrics metrics;
    struct serve_slot slots[MAX_JOBS];
    const int n = serve_inspect(scheduler, &metrics, slots, MAX_JOBS);
    for (int i = 0; i < n; i++) {
        assert_true(slots[i].id < MAX_JOBS && slots[i].n_read <= slots[i].n_prompt);
        assert_true(slots[i].n_read >= n_read_of[slots[i].id]);
        n_read_of[slots[i].id] = slots[i].n_read;
    }
}

/* Runs n wishes; returns what the scheduler says of itself at the end. Jobs stay, to be freed. */
static struct serve_metrics run_schedule(struct serve_scheduler *scheduler, int n)
{
    struct serve_metrics metrics;
    int n_done = 0, n_read_of[MAX_JOBS] = {0};
    for (int i = 0; i < n; i++) {
        if (wishes[i].wait_us)
            usleep((useconds_t)wishes[i].wait_us);
        assert_int_equal(serve_submit(scheduler, make_job(&wishes[i])), 0);
        n_done += collect(scheduler);
    }
    for (int i = 0; i < n; i++)
        if (wishes[i].cancelled && !wishes[i].done)
            serve_cancel(wishes[i].job);
    while (n_done < n) {
        wait_for_wake();
        check_slots(scheduler, n_read_of);
        n_done += collect(scheduler);
    }
    serve_scheduler_stop(scheduler);
    assert_null(serve_collect(scheduler));
    serve_inspect(scheduler, &metrics, NULL, 0);
    assert_int_equal(metrics.n_jobs, n);
    assert_int_equal(metrics.n_running + metrics.n_waiting + metrics.n_parked, 0);
    return metrics;
}

/* Fails if a job failed that was not cancelled, or gave other numbers than the session alone. */
static void check_wishes(int round, int n)
{
    for (int i = 0; i < n; i++) {
        if (wishes[i].job->error.code && !(wishes[i].cancelled && wishes[i].job->error.code == BUTLER_ERROR_CANCELLED))
            fail_msg("round %d, job %d, %s: %s", round, i, wishes[i].policy, wishes[i].job->error.message);
        if (!wishes[i].job->error.code)
            check_wish(&wishes[i]);
    }
}

static void free_jobs(int n)
{
    for (int i = 0; i < n; i++)
        serve_job_free(wishes[i].job);
}

static void test_random_schedules(void **state)
{
    struct butler_model *model = make_model();
    struct butler_engine *alone = make_engine(model, 1, 64 << 20, 0);
    uint64_t parked = 0, random = 5;
    (void)state;
    const int n_schedules = share_of(8);
    for (int round = 0; round < n_schedules; round++) {
        const bool growing = round % 3 != 1;
        const int most = (growing ? 12 : 2) + below(&random, MAX_JOBS - (growing ? 11 : 1));
        const int n = BUTLER_MIN(most, BUTLER_MAX(share_of(2 * MAX_JOBS), 8)); /* under a share fewer jobs, too */
        /* About one to two of the largest jobs, two texts of 1000 tokens. */
        const uint64_t kv_bytes = (uint64_t)(600000 + below(&random, 150000));
        make_wishes(alone, n, growing, &random);
        struct butler_engine *engine = make_engine(model, 2, kv_bytes, 100000);
        struct serve_scheduler *scheduler = make_scheduler(engine, kv_bytes, round % 6 == 5 ? NULL : tiny_path(""));
        const struct serve_metrics metrics = run_schedule(scheduler, n);
        check_wishes(round, n);
        assert_true(round % 6 != 5 || metrics.parked_total == 0);
        assert_int_equal(metrics.park_failures, 0);
        parked += metrics.parked_total;
        struct butler_engine_info info = {BUTLER_INIT(butler_engine_info)};
        butler_engine_get_info(engine, &info);
        assert_true(info.kv_memory == info.prefix_memory); /* no page is lost */
        free_jobs(n);
        serve_scheduler_free(scheduler);
        butler_engine_free(engine);
    }
    print_message("%llu jobs were parked\n", (unsigned long long)parked);
    assert_true(parked >= (uint64_t)(n_schedules / 2));
    butler_engine_free(alone);
    butler_model_free(model);
}

/* Lossless jobs write what `full` writes: alone by rounds of drafts, among others by exact steps, and with memory for about two of
 * them, so that they leave it and come back. Rounds end at max_tokens and at the context's end, and with scores there are none. */
static void test_lossless(void **state)
{
    enum { N = 8 };
    static const char *const policies[] = {"verified:budget=64", "quest:budget=64", "verified:budget=800"};
    struct butler_model *model = make_model();
    struct butler_engine *alone = make_engine(model, 1, 64 << 20, 0);
    uint64_t random = 11, drafted = 0, accepted = 0, parked = 0;
    int n_tries = 0;
    (void)state;
    /* How much is drafted follows the clock: the first round is repeated until a draft was right. */
    for (int round = 0; round < 3; n_tries++) {
        const int n = round == 0 ? 1 : test_share() < 1 ? 6 : N;
        for (int i = 0; i < n; i++) {
            struct wish *wish = &wishes[i];
            *wish = (struct wish){.n_prompt = 40 + i,
                                  .max_tokens = 300 + below(&random, 200),
                                  .n_choices = i % 3 == 2 ? 2 : 1,
                                  .lossless = i % 4 != 3,
                                  .cancelled = i == 5,
                                  .policy = policies[i % 3],
                                  .seed = (uint64_t)i,
                                  .temperature = i % 2 ? 1 : 0,
                                  .wait_us = round == 2 ? 20000 : 0};
            if (round == 0) /* to the context's end */
                *wish = (struct wish){
                    .n_prompt = 600, .max_tokens = N_CTX - 600, .n_choices = 1, .lossless = true, .policy = policies[2]};
            for (int t = 0; t < wish->n_prompt; t++)
                wish->prompt[t] = below(&random, N_VOCAB);
            run_alone(alone, wish);
        }
        const uint64_t kv_bytes = 600000;
        struct butler_engine *engine = make_engine(model, 2, kv_bytes, 0);
        struct serve_scheduler *scheduler = make_scheduler(engine, kv_bytes, tiny_path(""));
        parked += run_schedule(scheduler, n).parked_total;
        check_wishes(round, n);
        for (int i = 0; i < n; i++) {
            const struct butler_stats *stats = &wishes[i].job->stats;
            drafted += stats->n_drafted;
            accepted += stats->n_accepted;
            assert_true(stats->n_accepted <= stats->n_drafted && stats->n_drafted <= 3 * stats->n_checks);
            assert_true(wishes[i].lossless || stats->n_checks == 0);
        }
        free_jobs(n);
        serve_scheduler_free(scheduler);
        butler_engine_free(engine);
        if (round > 0 || accepted > 0 || n_tries == 9)
            round += round == 1 && test_share() < 1 ? 2 : 1;
    }
    print_message("%llu drafts, %llu of them right, %llu jobs were parked\n", (unsigned long long)drafted,
                  (unsigned long long)accepted, (unsigned long long)parked);
    assert_true(accepted > 0 && parked > 0);
    butler_engine_free(alone);
    butler_model_free(model);
}

/* Files cannot be written: jobs wait, then the youngest end with an error that says why; the others are not touched, and the oldest
 * ends as always. */
static void test_full_disk(void **state)
{
    const int n = test_share() < 1 ? 4 : 8;
    struct butler_model *model = make_model();
    struct butler_engine *alone = make_engine(model, 1, 64 << 20, 0);
    struct rlimit limit, before;
    int n_failed = 0;
    (void)state;
    for (int i = 0; i < n; i++) {
        wishes[i] = (struct wish){
            .n_prompt = 20, .max_tokens = 600, .n_choices = 1, .policy = "full", .seed = (uint64_t)i, .temperature = 1};
        for (int t = 0; t < 20; t++)
            wishes[i].prompt[t] = (i + 3 * t) % N_VOCAB;
        run_alone(alone, &wishes[i]);
    }
    struct butler_engine *engine = make_engine(model, 2, 400000, 0);
    struct serve_scheduler *scheduler = make_scheduler(engine, 400000, tiny_path(""));
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = before;
    limit.rlim_cur = 4096;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    const struct serve_metrics metrics = run_schedule(scheduler, n);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    for (int i = 0; i < n; i++) {
        const struct butler_error *error = &wishes[i].job->error;
        n_failed += error->code != 0;
        if (error->code == 0) {
            check_wish(&wishes[i]);
            continue;
        }
        assert_int_equal(error->code, BUTLER_ERROR_MEMORY);
        if (!strstr(error->message, "could not leave it") || !strstr(error->message, "cannot write"))
            fail_msg("%s", error->message);
    }
    assert_int_equal(wishes[0].job->error.code, 0);
    assert_true(n_failed > 0 && n_failed < n);
    assert_true(metrics.parked_total == 0 && metrics.park_failures > 0);
    free_jobs(n);
    serve_scheduler_free(scheduler);
    butler_engine_free(engine);
    butler_engine_free(alone);
    butler_model_free(model);
}

/* Prompts of `lengths`, text i of which begins like text of[i]. */
static void run_prompts(int n, const int *lengths, const int *of, uint64_t prefix_bytes)
{
    const uint64_t kv_bytes = 8 << 20;
    struct butler_model *model = make_model();
    struct butler_engine *engine = make_engine(model, 1, kv_bytes, prefix_bytes);
    struct serve_scheduler *scheduler = make_scheduler(engine, kv_bytes, NULL);
    for (int i = 0; i < n; i++) {
        wishes[i] = (struct wish){.n_prompt = lengths[i], .max_tokens = 1, .n_choices = 1, .policy = "full"};
        for (int t = 0; t < lengths[i]; t++)
            wishes[i].prompt[t] = (t < lengths[i] - 10 ? of[i] + t : i + 3 * t) % N_VOCAB;
    }
    n_read = 0;
    run_schedule(scheduler, n);
    free_jobs(n);
    serve_scheduler_free(scheduler);
    butler_engine_free(engine);
    butler_model_free(model);
}

/* A short prompt and one whose beginning is in the prefix cache do not wait for a long one that came before them. */
static void test_shortest_prompt_first(void **state)
{
    static const int lengths[] = {890, 900, 905, 30}, of[] = {0, 1, 0, 2};
    (void)state;
    run_prompts(4, lengths, of, 1 << 20);
    assert_int_equal(wishes[1].nth, 4);
    assert_true(wishes[3].nth < wishes[2].nth);
    assert_true(wishes[0].nth < wishes[2].nth);
}

/* A long prompt is read at last, however many short ones come after it. */
static void test_long_prompt_ends(void **state)
{
    int lengths[MAX_JOBS], of[MAX_JOBS], n_before = 0;
    (void)state;
    for (int i = 0; i < MAX_JOBS; i++) {
        lengths[i] = i == 1 ? 900 : 250;
        of[i] = i;
    }
    run_prompts(MAX_JOBS, lengths, of, 0);
    for (int i = 2; i < MAX_JOBS; i++)
        n_before += wishes[i].nth < wishes[1].nth ? lengths[i] : 0;
    if (n_before < 500 || n_before > 2 * 900 + 500)
        fail_msg("%d tokens of short prompts were read before the long one", n_before);
}

/* A machine whose steps take what is linear in their work, up to 3 % more or less, and from `slower` on twice that: prompts of any
 * depth beside any number of texts fill the time that they may, and seldom more. */
static void test_pace(void **state)
{
    enum { N = 1200, SLOWER = 800, LEARNING = 20 };
    static const double stall = 0.1, factors[SERVE_N_WORK] = {4e-3, 4e-4, 3e-7, 9e-5, 3e-8};
    struct serve_pace pace = {0};
    uint64_t random = 3;
    int n_late = 0, n_long = 0;
    double sum = 0;
    (void)state;
    for (int i = 0, n_past = 0; i < N; i++) {
        const int n_texts = below(&random, 12);
        double work[SERVE_N_WORK] = {1, n_texts, n_texts * (2000.0 + below(&random, 1000))}, seconds = 0;
        n_past = below(&random, 10) ? n_past : below(&random, 8000); /* another prompt, of which the prefix cache had a part */
        const double left = stall - serve_pace_predict(&pace, work);
        const int n = n_texts == 0 ? 512 : serve_pace_tokens(&pace, n_past, left, i < LEARNING ? 32 : 512);
        work[SERVE_WORK_PROMPT] = n;
        work[SERVE_WORK_PAIRS] = n * (n_past + n / 2.0);
        for (int k = 0; k < SERVE_N_WORK; k++)
            seconds += factors[k] * work[k];
        seconds *= (i < SLOWER ? 1 : 2) * (0.97 + 0.01 * below(&random, 7));
        serve_pace_add(&pace, work, seconds);
        n_past += n;
        if (n_texts == 0 || i < LEARNING || (i >= SLOWER && i < SLOWER + LEARNING))
            continue;
        n_late += seconds > 1.03 * stall;
        n_long++;
        sum += seconds / stall;
    }
    print_message("%d of %d steps were too long, on average they took %.2f of what they may\n", n_late, n_long, sum / n_long);
    assert_true(n_late < n_long / 50);
    assert_true(sum / n_long > 0.75);
}

static void test_refusals(void **state)
{
    struct butler_model *model = make_model();
    struct butler_engine *engine = make_engine(model, 1, 200000, 0);
    struct butler_error err = {0};
    const struct serve_params params = {.kv_bytes = 200000, .park = "/no/such/folder", .max_jobs = 1, .max_queue = 1, .wake = wake};
    (void)state;
    assert_null(serve_scheduler_new(engine, &params, &err));
    assert_int_equal(err.code, BUTLER_ERROR_IO);
    assert_non_null(strstr(err.message, "/no/such/folder"));
    /* A job that could never have all it may come to need does not begin. */
    wishes[0] = (struct wish){.n_prompt = 20, .max_tokens = 600, .n_choices = 3, .policy = "full"};
    struct serve_scheduler *scheduler = make_scheduler(engine, 200000, tiny_path(""));
    run_schedule(scheduler, 1);
    assert_int_equal(wishes[0].job->error.code, BUTLER_ERROR_LENGTH);
    assert_non_null(strstr(wishes[0].job->error.message, "--kv-ram"));
    free_jobs(1);
    serve_scheduler_free(scheduler);
    butler_engine_free(engine);
    butler_model_free(model);
}

struct seen {
    int n, first_id, n_steps;
    size_t bytes;
    bool complete;
};

static bool see_map(void *user, const struct serve_map_view *view)
{
    struct seen *seen = user;
    seen->first_id = seen->n == 0 ? view->id : seen->first_id;
    seen->complete = view->complete; /* of the latest */
    seen->n++;
    for (int i = 0; i < view->n_tokens - view->n_prompt; i++) {
        seen->n_steps += view->steps[i] != NULL;
        seen->bytes += view->steps[i] ? view->steps[i]->bytes : 0;
    }
    return true;
}

/* Maps of texts that have ended make room, the oldest first; a text that has no room left goes on without. */
static void test_maps_make_room(void **state)
{
    enum { LIMIT = 60000 };
    struct butler_model *model = make_model();
    struct butler_engine *engine = make_engine(model, 1, 1 << 20, 0);
    struct serve_maps *maps = serve_maps_new(butler_model_get_info(model), LIMIT);
    int32_t prompt[100] = {0};
    struct seen seen;
    (void)state;
    for (int j = 0; j < 20; j++) {
        struct serve_job job = {.prompt = prompt, .n_prompt = 100, .policy = (char *)"fier:budget=20", .id = j};
        struct butler_session *session =
            butler_session_new(engine, &(struct butler_session_params){.n_ctx = N_CTX, .policy = job.policy}, NULL);
        assert_int_equal(butler_prefill(session, prompt, 100, NULL, NULL, NULL), 0);
        struct serve_map *map = serve_map_begin(maps, &job, 0);
        for (int i = 0; i < (j < 19 ? 4 : 300); i++) {
            serve_map_token(map, 1);
            serve_map_before(map, session);
            assert_int_equal(butler_step(session, 1, NULL), 0);
            serve_map_after(map);
            seen = (struct seen){0};
            serve_maps_each(maps, see_map, &seen);
            assert_true(seen.bytes <= LIMIT);
        }
        serve_map_token(map, 2);
        serve_map_end(map);
        butler_session_free(session);
        if (j < 2)
            assert_true(seen.n == j + 1 && seen.first_id == 0);
        if (j == 18)
            assert_true(seen.n > 1 && seen.n < 19 && seen.first_id == 19 - seen.n && seen.complete);
    }
    seen = (struct seen){0};
    serve_maps_each(maps, see_map, &seen);
    assert_true(seen.n == 1 && seen.n_steps > 4 && seen.n_steps < 300 && !seen.complete);
    serve_maps_free(maps);
    butler_engine_free(engine);
    butler_model_free(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_schedules), cmocka_unit_test(test_lossless),
        cmocka_unit_test(test_full_disk),        cmocka_unit_test(test_shortest_prompt_first),
        cmocka_unit_test(test_long_prompt_ends), cmocka_unit_test(test_pace),
        cmocka_unit_test(test_refusals),         cmocka_unit_test(test_maps_make_room),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
