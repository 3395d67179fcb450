/* A training step: threads process texts, their gradients are summed, the optimiser applies the sum. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/threads.h"
#include "fit.h"
#include "net.h"

enum { PAGES = 256 /* tokens by which a text's pages may be longer than the text */ };

/* What one thread needs: a view of the model with threads of its own, and room for a predictor's text. */
struct butler_train_worker {
    struct butler_engine *engine; /* of its own: sessions of one engine are used by one thread at a time */
    struct butler_net *net;
    struct butler_states measured; /* of a held-out text */
    int32_t *ids;
    bool has_multiplied; /* and so has the BLAS's buffer */
};

struct butler_train_result {
    double loss;
    struct butler_loss_measures measures;
    int n_tokens, code;
    struct butler_error err;
};

/* -------------------------------------------------------------------------------------------------- set up */

static int check_params(const struct butler_model *model, const struct butler_train_params *params,
                        const struct butler_gather *reduce, struct butler_error *err)
{
    if (butler_tokenize(model, "a", 1, 0, NULL, 0, err) < 0)
        return BUTLER_ERROR_UNSUPPORTED;
    if (params->sizes.version == 2 && params->loss != BUTLER_LOSS_CROSS_ENTROPY)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a predictor of version 2 is trained on the cross-entropy, not on squares");
    if (params->fit && params->sizes.version != 2)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "only a predictor of version 2 begins with least squares");
    if (params->batch < reduce->n_ranks)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "a batch of %d texts is too small for %d processes", params->batch,
                           reduce->n_ranks);
    if (params->accumulate < 1 || params->n_valid_texts < 1 || params->n_threads < 1 || params->n_uses < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "accumulate %d, held-out texts %d, threads %d and uses %d must be at least 1", params->accumulate,
                           params->n_valid_texts, params->n_threads, params->n_uses);
    return 0;
}

static int make_workers(struct butler_trainer *trainer, struct butler_error *err)
{
    const struct butler_train_params *params = &trainer->params;
    trainer->n_workers = BUTLER_MIN(params->n_threads, BUTLER_MAX(trainer->n_local, 1));
    struct butler_engine_info device = {BUTLER_INIT(butler_engine_info)};
    struct butler_policy_cost token = {BUTLER_INIT(butler_policy_cost)};
    butler_engine_get_info(trainer->engine, &device);
    if (butler_policy_estimate(trainer->engine, "full", BUTLER_KV_F16, 1, &token, err) < 0)
        return BUTLER_ERROR_ARGUMENT;
    trainer->pool = butler_pool_new(trainer->n_workers, err);
    trainer->workers = butler_alloc((size_t)trainer->n_workers * sizeof *trainer->workers, err);
    trainer->n_results = BUTLER_MAX(trainer->n_local, params->n_valid_texts);
    trainer->results = butler_alloc((size_t)trainer->n_results * sizeof *trainer->results, err);
    if (!trainer->pool || !trainer->workers || !trainer->results)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < trainer->n_workers; i++) {
        struct butler_train_worker *worker = &trainer->workers[i];
        /* A text is one pass, so that a layer's queries and keys are there at once and need not be kept. */
        const struct butler_engine_params engine = {.n_threads = BUTLER_MAX(params->n_threads / trainer->n_workers, 1),
                                                    .isa = device.isa,
                                                    .n_block = params->length,
                                                    .kv_bytes = token.full_kv_bytes * (uint64_t)(params->length + PAGES)};
        worker->engine = butler_engine_new(trainer->model, &engine, err);
        worker->net = butler_net_new(trainer->predictor, trainer->blas, &trainer->loops, params->loss, params->length, err);
        worker->ids = butler_alloc((size_t)params->length * sizeof *worker->ids, err);
        if (!worker->engine || !worker->net || !worker->ids ||
            butler_states_init(&worker->measured, &trainer->predictor->sizes, params->length, err) < 0)
            return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

static int make_states(struct butler_trainer *trainer, struct butler_error *err)
{
    trainer->n_kept = trainer->params.n_uses > 1 ? BUTLER_TRAIN_KEPT : 1;
    const int n = trainer->n_kept * trainer->n_local;
    trainer->kept = butler_alloc((size_t)n * sizeof *trainer->kept, err);
    trainer->kept_number = butler_alloc((size_t)n * sizeof *trainer->kept_number, err);
    if (!trainer->kept || !trainer->kept_number)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < n; i++) {
        trainer->kept_number[i] = -1;
        if (butler_states_init(&trainer->kept[i], &trainer->predictor->sizes, trainer->params.length, err) < 0)
            return BUTLER_ERROR_MEMORY;
    }
    return 0;
}

static size_t n_summed(const struct butler_trainer *trainer)
{
    return trainer->predictor->n_weights + 2 * (size_t)trainer->params.batch;
}

static int make_sums(struct butler_trainer *trainer, struct butler_error *err)
{
    const size_t n_bytes = n_summed(trainer) * sizeof(float);
    const int rank = trainer->reduce->rank, n_ranks = trainer->reduce->n_ranks, batch = trainer->params.batch;
    trainer->first_text = (int)((int64_t)batch * rank / n_ranks);
    trainer->n_local = (int)((int64_t)batch * (rank + 1) / n_ranks) - trainer->first_text;
    trainer->grads = butler_alloc((size_t)trainer->n_local * sizeof *trainer->grads, err);
    trainer->sum = butler_alloc(n_bytes, err);
    trainer->total = butler_alloc(n_bytes, err);
    if (!trainer->grads || !trainer->sum || !trainer->total)
        return BUTLER_ERROR_MEMORY;
    for (int i = 0; i < trainer->n_local; i++)
        if (!(trainer->grads[i] = butler_alloc(n_bytes, err)))
            return BUTLER_ERROR_MEMORY;
    return 0;
}

/* The number of steps, where it was given in tokens or not at all. */
static void count_steps(struct butler_trainer *trainer)
{
    struct butler_train_params *params = &trainer->params;
    const int64_t texts = (int64_t)params->batch * params->accumulate;
    if (params->adam.n_steps == 0)
        params->adam.n_steps = params->n_tokens ? params->n_tokens / (texts * params->length) : trainer->data.n_train / texts;
    params->adam.n_steps = BUTLER_MAX(params->adam.n_steps, 1);
}

/* A new predictor, or one from a file. */
static int make_predictor(struct butler_trainer *trainer, struct butler_error *err)
{
    struct butler_train_params *params = &trainer->params;
    const int version = params->sizes.version;
    params->sizes.head_freq = params->fit;
    trainer->predictor = params->start ? butler_predictor_load(params->start, trainer->model, true, err)
                                       : butler_predictor_new(&params->sizes, params->seed, err);
    if (!trainer->predictor)
        return BUTLER_ERROR_ARGUMENT;
    params->sizes = trainer->predictor->sizes;
    if (params->sizes.version != version)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s is a predictor of version %d, not %d", params->start,
                           params->sizes.version, version);
    trainer->predictor->model_sampled = false;
    return butler_model_fingerprint(trainer->model, &trainer->predictor->model_fingerprint, err);
}

struct butler_trainer *butler_trainer_new(struct butler_engine *engine, const struct butler_train_params *params,
                                          const struct butler_gather *reduce, struct butler_error *err)
{
    if (check_params(butler_engine_model(engine), params, reduce, err) < 0)
        return NULL;
    struct butler_trainer *trainer = butler_alloc(sizeof *trainer, err);
    if (!trainer)
        return NULL;
    trainer->engine = engine;
    trainer->model = butler_engine_model(engine);
    trainer->info = butler_model_get_info(trainer->model);
    trainer->loops.struct_size = sizeof trainer->loops;
    butler_engine_vector_loops(engine, &trainer->loops);
    trainer->params = *params;
    trainer->reduce = reduce;
    const struct butler_data_params texts = {params->data,    params->valid,  params->n_data,
                                             params->n_valid, params->length, params->seed};
    if (!(trainer->blas = butler_blas_load(err)) || butler_data_open(&trainer->data, trainer->model, &texts, err) < 0 ||
        make_predictor(trainer, err) < 0)
        goto fail;
    count_steps(trainer);
    if (make_sums(trainer, err) < 0 || make_states(trainer, err) < 0 || make_workers(trainer, err) < 0 ||
        butler_adamw_init(&trainer->adam, &trainer->params.adam, trainer->predictor->n_weights, err) < 0)
        goto fail;
    for (int i = 0; i < params->n_valid_texts; i++) /* what is too short is told now, not at the first measurement */
        if (butler_data_valid(&trainer->data, i, params->n_valid_texts, trainer->workers[0].ids, err) < 0)
            goto fail;
    trainer->to_fit = params->fit && !params->start;
    return trainer;
fail:
    butler_trainer_free(trainer);
    return NULL;
}

void butler_trainer_free(struct butler_trainer *trainer)
{
    if (!trainer)
        return;
    for (int i = 0; trainer->workers && i < trainer->n_workers; i++) {
        butler_engine_free(trainer->workers[i].engine);
        butler_net_free(trainer->workers[i].net);
        butler_states_free(&trainer->workers[i].measured);
        free(trainer->workers[i].ids);
    }
    for (int i = 0; trainer->kept && i < trainer->n_kept * trainer->n_local; i++)
        butler_states_free(&trainer->kept[i]);
    free(trainer->kept);
    free(trainer->kept_number);
    for (int i = 0; trainer->grads && i < trainer->n_local; i++)
        free(trainer->grads[i]);
    free(trainer->grads);
    free(trainer->sum);
    free(trainer->total);
    free(trainer->workers);
    free(trainer->results);
    butler_pool_free(trainer->pool);
    butler_adamw_free(&trainer->adam);
    butler_predictor_free(trainer->predictor);
    butler_data_close(&trainer->data);
    butler_blas_free(trainer->blas);
    free(trainer);
}

/* -------------------------------------------------------------------------------------------------- a text */

/* The model reads worker->ids[n] into states. */
static int read_text(struct butler_train_worker *worker, const struct butler_model_info *info, int n_workers, int n,
                     struct butler_states *states, struct butler_error *err)
{
    const struct butler_session_params params = {.n_ctx = n, .kv_type = BUTLER_KV_F16};
    struct butler_session *session = butler_session_new(worker->engine, &params, err);
    if (!session)
        return err->code;
    if (!worker->has_multiplied && butler_blas_check_room(n_workers, err) < 0) {
        butler_session_free(session);
        return BUTLER_ERROR_MEMORY;
    }
    worker->has_multiplied = true;
    struct butler_capture capture = butler_states_capture;
    capture.user = states;
    butler_session_set_capture(session, &capture, NULL);
    butler_states_begin(states, n);
    int code = butler_prefill(session, worker->ids, n, NULL, NULL, err);
    if (code == 0 && states->layers_seen != info->n_layers - 1)
        code = butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "a text of %d tokens was not read in one block", n);
    butler_session_free(session);
    return code;
}

struct batch {
    struct butler_trainer *trainer;
    int64_t number; /* of the batch, or -1: held-out texts */
};

/* The states of text i of the batch in *states, read now unless they were kept. A round of n_kept batches is used n_uses times, one
 * batch after the other. */
static int find_states(const struct batch *batch, struct butler_train_worker *worker, int i, struct butler_states **states,
                       struct butler_error *err)
{
    struct butler_trainer *trainer = batch->trainer;
    const struct butler_train_params *params = &trainer->params;
    int n;
    if (batch->number < 0) {
        *states = &worker->measured;
        n = butler_data_valid(&trainer->data, i, params->n_valid_texts, worker->ids, err);
        return n < 0 ? n : read_text(worker, trainer->info, trainer->n_workers, n, *states, err);
    }
    const int64_t round = batch->number / (trainer->n_kept * params->n_uses), turn = batch->number % trainer->n_kept;
    const int64_t number = (round * trainer->n_kept + turn) * params->batch + trainer->first_text + i;
    const int place = (int)turn * trainer->n_local + i;
    *states = &trainer->kept[place];
    if (trainer->kept_number[place] == number)
        return 0;
    trainer->kept_number[place] = -1;
    n = butler_data_train(&trainer->data, number, worker->ids, err);
    const int code = n < 0 ? n : read_text(worker, trainer->info, trainer->n_workers, n, *states, err);
    if (code == 0)
        trainer->kept_number[place] = number;
    return code;
}

static void run_text(void *context, int i, int thread)
{
    const struct batch *batch = context;
    struct butler_trainer *trainer = batch->trainer;
    const struct butler_train_params *params = &trainer->params;
    struct butler_train_worker *worker = &trainer->workers[thread];
    struct butler_train_result *result = &trainer->results[i];
    struct butler_net *net = worker->net;
    struct butler_states *states;
    const bool train = batch->number >= 0;
    result->code = find_states(batch, worker, i, &states, &result->err);
    if (result->code < 0)
        return;
    net->grads = train ? trainer->grads[i] : NULL;
    net->weight = 1.0f / (float)(params->batch * params->accumulate);
    net->dropout = train ? params->dropout : 0;
    net->measure_step = train ? 0 : BUTLER_MAX(params->length / 64, 1);
    if (train)
        memset(net->grads, 0, n_summed(trainer) * sizeof(float));
    /* A sample depends on its number alone. Held-out texts are measured whole. */
    uint64_t seed = params->seed + (uint64_t)(batch->number * params->batch + trainer->first_text + i);
    seed = butler_random(&seed);
    butler_net_run(net, states, train ? params->n_queries : 0, seed);
    result->n_tokens = states->n;
    result->loss = net->loss;
    result->measures = net->measures;
}

/* The first error among n texts. */
static int check_results(const struct butler_trainer *trainer, int n, struct butler_error *err)
{
    for (int i = 0; i < n; i++)
        if (trainer->results[i].code < 0) {
            if (err)
                *err = trainer->results[i].err;
            return trainer->results[i].code;
        }
    return 0;
}

static int run_texts(struct batch *batch, int n, struct butler_error *err)
{
    butler_pool_run(batch->trainer->pool, run_text, batch, n);
    return check_results(batch->trainer, n, err);
}

struct sum {
    struct batch batch;
    butler_text_fn *add;
    void *user;
    size_t n;
    float **parts; /* [n_local][n] */
};

static void add_text(void *context, int i, int thread)
{
    const struct sum *sum = context;
    struct butler_trainer *trainer = sum->batch.trainer;
    struct butler_train_result *result = &trainer->results[i];
    struct butler_states *states;
    memset(sum->parts[i], 0, sum->n * sizeof **sum->parts);
    result->code = find_states(&sum->batch, &trainer->workers[thread], i, &states, &result->err);
    if (result->code == 0)
        result->code = sum->add(sum->user, states, sum->parts[i], &result->err);
}

int butler_trainer_sum(struct butler_trainer *trainer, butler_text_fn *add, void *user, size_t n, float *total,
                       struct butler_error *err)
{
    struct sum sum = {.batch = {trainer, 0}, .add = add, .user = user, .n = n};
    int code = 0;
    float *part = butler_alloc(n * sizeof *part, err);
    sum.parts = butler_alloc((size_t)trainer->n_local * sizeof *sum.parts, err);
    for (int i = 0; i < trainer->n_local && sum.parts && code == 0; i++)
        if (!(sum.parts[i] = butler_alloc(n * sizeof *total, err)))
            code = BUTLER_ERROR_MEMORY;
    code = part && sum.parts ? code : BUTLER_ERROR_MEMORY;
    memset(total, 0, n * sizeof *total);
    for (; sum.batch.number < BUTLER_TRAIN_KEPT && code == 0; sum.batch.number++) {
        butler_pool_run(trainer->pool, add_text, &sum, trainer->n_local);
        if ((code = check_results(trainer, trainer->n_local, err)) == 0)
            code = trainer->reduce->sum(trainer->reduce, (const float *const *)sum.parts, trainer->n_local, part, n, err);
        for (size_t i = 0; i < n && code == 0; i++)
            total[i] += part[i];
        trainer->n_fitted++;
        if (trainer->progress)
            trainer->progress(trainer->user, trainer->n_fitted, BUTLER_FIT_PASSES * BUTLER_TRAIN_KEPT);
    }
    for (int i = 0; i < trainer->n_local && sum.parts; i++)
        free(sum.parts[i]);
    free(sum.parts);
    free(part);
    return code;
}

/* Whether the texts of this batch have to be read by the model: the first ones of a round. */
static bool reads(const struct butler_trainer *trainer, int64_t number)
{
    return number % (trainer->n_kept * trainer->params.n_uses) < trainer->n_kept;
}

/* Of the batches before `number` those that read. */
static int64_t n_that_read(const struct butler_trainer *trainer, int64_t number)
{
    const int64_t round = trainer->n_kept * trainer->params.n_uses;
    return number / round * trainer->n_kept + BUTLER_MIN(number % round, trainer->n_kept);
}

/* What the batches that are left will take. Steps that read take much longer than others, so both kinds are counted apart. */
static double seconds_left(const struct butler_trainer *trainer)
{
    const struct butler_train_params *params = &trainer->params;
    const int64_t end = params->adam.n_steps * params->accumulate;
    const int64_t begin = trainer->n_texts / params->batch, n_reading = n_that_read(trainer, end) - n_that_read(trainer, begin);
    const int64_t n_left[2] = {end - begin - n_reading, n_reading};
    double seconds = 0;
    for (int kind = 0; kind < 2; kind++) {
        if (n_left[kind] > 0 && trainer->n_batches[kind] == 0)
            return -1;
        if (n_left[kind] > 0)
            seconds += (double)n_left[kind] * trainer->batch_s[kind] / (double)trainer->n_batches[kind];
    }
    return seconds;
}

/* One batch into trainer->sum: the gradient, then losses and token counts of its texts. */
static int run_batch(struct butler_trainer *trainer, struct butler_error *err)
{
    const size_t n_weights = trainer->predictor->n_weights;
    const int n_batch = trainer->params.batch;
    struct batch batch = {trainer, trainer->n_texts / n_batch};
    const bool read = reads(trainer, batch.number);
    const double started = butler_seconds();
    const int code = run_texts(&batch, trainer->n_local, err);
    if (code < 0)
        return code;
    trainer->batch_s[read] += butler_seconds() - started;
    trainer->n_batches[read]++;
    for (int i = 0; i < trainer->n_local; i++) {
        trainer->grads[i][n_weights + (size_t)(trainer->first_text + i)] = (float)trainer->results[i].loss;
        trainer->grads[i][n_weights + (size_t)(n_batch + trainer->first_text + i)] = (float)trainer->results[i].n_tokens;
    }
    return trainer->reduce->sum(trainer->reduce, (const float *const *)trainer->grads, trainer->n_local, trainer->sum,
                                n_summed(trainer), err);
}

int butler_trainer_begin(struct butler_trainer *trainer, butler_fit_progress_fn *progress, void *user, struct butler_error *err)
{
    if (!trainer->to_fit || trainer->adam.step > 0)
        return 0;
    trainer->progress = progress;
    trainer->user = user;
    const int code = butler_fit(trainer, &trainer->loops, err);
    trainer->to_fit = code < 0;
    return code < 0 ? code : 1;
}

int butler_trainer_step(struct butler_trainer *trainer, struct butler_train_report *report, struct butler_error *err)
{
    const size_t n_weights = trainer->predictor->n_weights, n = n_summed(trainer);
    const int n_batch = trainer->params.batch, n_accumulate = trainer->params.accumulate;
    if (trainer->adam.step >= trainer->params.adam.n_steps)
        return 0;
    const int begun = butler_trainer_begin(trainer, NULL, NULL, err);
    if (begun < 0)
        return begun;
    double loss = 0, n_tokens = 0;
    memset(trainer->total, 0, n * sizeof *trainer->total);
    for (int a = 0; a < n_accumulate; a++) {
        const int code = run_batch(trainer, err);
        if (code < 0)
            return code;
        trainer->n_texts += n_batch;
        for (size_t i = 0; i < n_weights; i++)
            trainer->total[i] += trainer->sum[i];
        for (int i = 0; i < n_batch; i++) {
            loss += (double)trainer->sum[n_weights + (size_t)i];
            n_tokens += (double)trainer->sum[n_weights + (size_t)(n_batch + i)];
        }
    }
    trainer->n_tokens += (int64_t)n_tokens;
    trainer->loss = loss / (n_batch * n_accumulate);
    report->rate = butler_adamw_rate(&trainer->adam);
    report->skipped = !butler_adamw_step(&trainer->adam, trainer->predictor, trainer->total, &report->norm);
    report->loss = trainer->loss;
    report->step = trainer->adam.step;
    report->n_steps = trainer->params.adam.n_steps;
    report->n_tokens = trainer->n_tokens;
    report->n_skipped = trainer->adam.n_skipped;
    report->seconds_left = seconds_left(trainer);
    return 1;
}

int butler_trainer_measure(struct butler_trainer *trainer, double *loss, struct butler_loss_measures *measures,
                           struct butler_error *err)
{
    const int n = trainer->params.n_valid_texts;
    struct batch batch = {trainer, -1};
    const int code = run_texts(&batch, n, err);
    *loss = 0;
    *measures = (struct butler_loss_measures){0};
    for (int i = 0; i < n && code == 0; i++) {
        const struct butler_loss_measures *m = &trainer->results[i].measures;
        *loss += trainer->results[i].loss / n;
        measures->n_rows += m->n_rows;
        measures->top_half += m->top_half;
        measures->recall += m->recall;
        measures->mass += m->mass;
        measures->oracle_mass += m->oracle_mass;
    }
    return code;
}

int butler_trainer_write(struct butler_trainer *trainer, const char *path, enum butler_type type, const char *text,
                         struct butler_error *err)
{
    struct butler_predictor_training *training = &trainer->predictor->training;
    *training = (struct butler_predictor_training){trainer->n_tokens, trainer->adam.step, trainer->loss, ""};
    snprintf(training->text, sizeof training->text, "%s", text);
    return butler_predictor_save(trainer->predictor, path, type, err);
}

size_t butler_trainer_bytes(const struct butler_trainer *trainer)
{
    const size_t n_states = (size_t)(trainer->n_kept * trainer->n_local + trainer->n_workers);
    return (size_t)trainer->n_workers * butler_net_bytes(trainer->workers[0].net) +
           n_states * trainer->workers[0].measured.arena.size;
}
