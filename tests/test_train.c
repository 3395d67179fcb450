/* The trainer: losses and gradients of both predictors against PyTorch's and against finite differences, what least squares makes,
 * and runs that must not depend on threads, on how texts are shared, or on having been interrupted. */
#include <math.h>
#include <xxhash.h>

#include "engine/session.h"
#include "fixtures.h"
#include "train_loops.h"
#include "train/net.h"
#include "tiny_model.h"
#include "train/train.h"

/* ------------------------------------------------------------------------------------------------ fixtures */

/* A problem that tools/fixtures/make_predictor_fixtures.py made. */
struct problem {
    char *bytes;
    int n;
    struct butler_predictor_sizes sizes;
    enum butler_loss_kind kind;
    float *numbers; /* aligned copy of what follows the first line */
    const float *inputs[8], *queries[8], *keys[8], *weights, *grads;
    float loss;
};

static void problem_read(struct problem *p, const char *name)
{
    struct butler_predictor_sizes *s = &p->sizes;
    size_t n_bytes = 0;
    char kind[16];
    *p = (struct problem){.bytes = fixture_read(name, &n_bytes)};
    assert_non_null(p->bytes);
    char *end = memchr(p->bytes, '\n', n_bytes);
    assert_non_null(end);
    *end = 0;
    assert_int_equal(sscanf(p->bytes, "%d %d %d %d %d %d %d %d %d %d %d %d %d %d %f %15s", &s->version, &p->n, &s->n_layers,
                            &s->n_embd, &s->n_heads, &s->n_kv_heads, &s->head_dim, &s->d, &s->n_mid, &s->n_inner, &s->n_inner_heads,
                            &s->n_key_heads, &s->stride, &s->rope_length, &s->rope_base, kind),
                     16);
    for (int i = 0; s->version == 2 && s->rope_base > 0 && i < s->d / 2; i++)
        s->rope_freq[i] = (float)pow((double)s->rope_base, -2.0 * i / s->d);
    p->kind = !strcmp(kind, "causal")   ? BUTLER_LOSS_CAUSAL_MSE
              : !strcmp(kind, "square") ? BUTLER_LOSS_SQUARE_MSE
                                        : BUTLER_LOSS_CROSS_ENTROPY;
    const size_t n_numbers = (n_bytes - (size_t)(end + 1 - p->bytes)) / sizeof(float), n = (size_t)p->n;
    p->numbers = malloc(n_numbers * sizeof(float));
    memcpy(p->numbers, end + 1, n_numbers * sizeof(float));
    const float *at = p->numbers;
    for (int l = 0; l < s->n_layers; l++) {
        p->inputs[l] = at;
        p->queries[l] = p->inputs[l] + n * (size_t)s->n_embd;
        p->keys[l] = p->queries[l] + n * (size_t)(s->n_heads * s->head_dim);
        at = p->keys[l] + n * (size_t)(s->n_kv_heads * s->head_dim);
    }
    const size_t n_weights = (n_numbers - (size_t)(at - p->numbers) - 1) / 2;
    p->weights = at;
    p->loss = at[n_weights];
    p->grads = at + n_weights + 1;
}

static void problem_free(struct problem *p)
{
    free(p->bytes);
    free(p->numbers);
}

/* What the model's forward pass would have shown. */
static double run_net(struct butler_net *net, const struct problem *p, int n_queries)
{
    struct butler_error err = {0};
    struct butler_states states;
    const struct butler_capture *capture = &butler_states_capture;
    assert_int_equal(butler_states_init(&states, &p->sizes, p->n + 5, &err), 0);
    butler_states_begin(&states, p->n);
    for (int l = 0; l < p->sizes.n_layers; l++) {
        capture->layer(&states, l, 0, p->n, p->inputs[l], p->inputs[l], p->queries[l], p->keys[l]);
        capture->fed(&states, l, 0, p->n, p->inputs[l]);
    }
    assert_int_equal(states.layers_seen, p->sizes.n_layers - 1);
    butler_net_run(net, &states, n_queries, 17);
    butler_states_free(&states);
    return net->loss;
}

struct bench {
    struct problem p;
    struct butler_blas *blas;
    struct butler_predictor *predictor;
    struct butler_net *net;
    float *grads;
};

/* head_freq: the queries' frequencies are given for each KV head, all the same. */
static void bench_make(struct bench *b, const char *name, bool head_freq)
{
    struct butler_error err = {0};
    problem_read(&b->p, name);
    b->p.sizes.head_freq = head_freq;
    if (!(b->blas = butler_blas_load(&err)))
        fail_msg("%s", err.message);
    if (!(b->predictor = butler_predictor_new(&b->p.sizes, 3, &err)))
        fail_msg("%s", err.message);
    const size_t n_freq = head_freq ? (size_t)b->predictor->params[--b->predictor->n_params].n_cols : 0;
    memcpy(b->predictor->weights, b->p.weights, (b->predictor->n_weights - n_freq) * sizeof(float));
    b->predictor->n_params += head_freq;
    b->net = butler_net_new(b->predictor, b->blas, train_loops(), b->p.kind, b->p.n, &err);
    assert_non_null(b->net);
    b->grads = calloc(b->predictor->n_weights, sizeof(float));
    b->net->grads = b->grads;
    b->net->weight = 1;
}

static void bench_free(struct bench *b)
{
    free(b->grads);
    butler_net_free(b->net);
    butler_predictor_free(b->predictor);
    butler_blas_free(b->blas);
    problem_free(&b->p);
}

/* |a - b| / |b| over a parameter. */
static double distance(const float *a, const float *b, size_t n)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
        size += (double)b[i] * (double)b[i];
    }
    return sqrt(difference / size);
}

static void against_torch(const char *name, bool head_freq)
{
    struct bench b;
    bench_make(&b, name, head_freq);
    const double loss = run_net(b.net, &b.p, 0);
    assert_true(fabs(loss - (double)b.p.loss) <= 1e-5 * fabs((double)b.p.loss));
    for (int i = 0; i < b.predictor->n_params; i++) {
        const struct butler_predictor_param *param = &b.predictor->params[i];
        const size_t at = (size_t)(param->data - b.predictor->weights), n = (size_t)param->n_rows * (size_t)param->n_cols;
        if (!strcmp(param->name, "rope_freq")) /* is not learned */
            continue;
        const double error = distance(b.grads + at, b.p.grads + at, n);
        print_message("%s %s: %.1e\n", name, param->name, error);
        if (!(error <= 1e-4))
            fail_msg("%s: gradient of %s is off by %g", name, param->name, error);
    }
    bench_free(&b);
}

static void test_torch_v1_causal(void **state)
{
    (void)state;
    against_torch("predictor/v1-causal.bin", false);
}

static void test_torch_v1_square(void **state)
{
    (void)state;
    against_torch("predictor/v1-square.bin", false);
    against_torch("predictor/v1-fast.bin", false);
}

static void test_torch_v2(void **state)
{
    (void)state;
    against_torch("predictor/v2.bin", false);
    against_torch("predictor/v2-rotated.bin", false);
    against_torch("predictor/v2-rotated.bin", true);
}

/* The slope of the loss along a random direction, by central differences and by the gradient, a parameter at a time. */
static void finite_differences(const char *name, int n_queries, bool head_freq, float dropout)
{
    struct bench b;
    bench_make(&b, name, head_freq);
    b.net->dropout = dropout;
    const struct butler_predictor_param *freq = &b.predictor->params[b.predictor->n_params - 1];
    for (int i = 0; head_freq && i < freq->n_cols; i++)
        freq->data[i] = 0.3f / (float)(i + 1);
    run_net(b.net, &b.p, n_queries);
    b.net->grads = NULL;
    uint64_t seed = 11;
    float *start = malloc(b.predictor->n_weights * sizeof(float)), *direction = malloc(b.predictor->n_weights * sizeof(float));
    memcpy(start, b.predictor->weights, b.predictor->n_weights * sizeof(float));
    for (int i = 0; i < b.predictor->n_params - head_freq; i++) {
        const struct butler_predictor_param *param = &b.predictor->params[i];
        const size_t at = (size_t)(param->data - b.predictor->weights), n = (size_t)param->n_rows * (size_t)param->n_cols;
        const double h = 3e-3;
        double slope = 0, values[2];
        for (size_t j = 0; j < n;
             j++) { /* along the gradient's own signs, so that the slope is no small difference of large terms */
            direction[j] = butler_random_float(&seed) * (b.grads[at + j] < 0 ? -1.0f : 1.0f);
            slope += (double)direction[j] * (double)b.grads[at + j];
        }
        const double step = h / sqrt((double)n);
        for (int side = 0; side < 2; side++) {
            for (size_t j = 0; j < n; j++)
                param->data[j] = start[at + j] + (float)(side ? step : -step) * direction[j];
            values[side] = run_net(b.net, &b.p, n_queries);
        }
        memcpy(param->data, start + at, n * sizeof(float));
        const double measured = (values[1] - values[0]) / (2 * step);
        if (!(fabs(measured - slope) <= 0.02 * fabs(slope) + 1e-4))
            fail_msg("%s: slope along %s is %g, the gradient says %g", name, param->name, measured, slope);
    }
    free(start);
    free(direction);
    bench_free(&b);
}

static void test_finite_differences(void **state)
{
    (void)state;
    for (int n_queries = 0; n_queries <= 9; n_queries += 9) {
        finite_differences("predictor/v1-causal.bin", n_queries, false, 0);
        finite_differences("predictor/v1-causal.bin", n_queries, false, 0.3f);
        finite_differences("predictor/v2-rotated.bin", n_queries, false, 0);
        finite_differences("predictor/v2-rotated.bin", n_queries, true, 0);
    }
}

/* The share that was asked for drops out, what is left grows, and the text's seed decides which. */
static void test_dropout(void **state)
{
    (void)state;
    const float share = 0.3f;
    struct bench b;
    bench_make(&b, "predictor/v1-causal.bin", false);
    const size_t n = (size_t)(b.p.n * b.p.sizes.n_embd);
    const float *input = b.p.inputs[0];
    float *plain = malloc(n * sizeof(float)), *dropped = malloc(n * sizeof(float));
    size_t n_zero = 0;
    run_net(b.net, &b.p, 0);
    memcpy(plain, b.net->wide, n * sizeof(float));
    b.net->dropout = share;
    run_net(b.net, &b.p, 0);
    memcpy(dropped, b.net->wide, n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        const bool zero = dropped[i] == input[i];
        n_zero += zero;
        if (!zero)
            assert_true(fabsf((dropped[i] - input[i]) * (1 - share) - (plain[i] - input[i])) < 1e-5f);
    }
    assert_true(fabs((double)n_zero / (double)n - (double)share) < 4 * sqrt(0.21 / (double)n));
    run_net(b.net, &b.p, 0);
    assert_memory_equal(b.net->wide, dropped, n * sizeof(float));
    free(plain);
    free(dropped);
    bench_free(&b);
}

/* ---------------------------------------------------------------------------------------------------- runs */

static const char *write_text(void)
{
    const char *path = tiny_path("text.txt");
    FILE *file = fopen(path, "w");
    uint64_t seed = 4;
    for (int i = 0; i < 6000; i++)
        fprintf(file, "t%d%s", 3 + (int)(butler_random(&seed) % 37), butler_random(&seed) % 9 ? " " : "\n");
    fclose(file);
    return path;
}

struct setup {
    struct butler_engine *engine;
    const char *text[1];
    struct butler_train_params params;
};

static void setup_make(struct setup *s, int version)
{
    const char *path = tiny_path("model.gguf");
    struct tiny tiny = tiny_default;
    tiny.n_layers = 4;
    tiny_write(path, &tiny);
    s->engine = load_engine(path, 1, NULL);
    s->text[0] = write_text();
    s->params = (struct butler_train_params){
        .data = s->text,
        .n_data = 1,
        .sizes = butler_predictor_sizes_for(s->engine->model, version),
        .loss = version == 1 ? BUTLER_LOSS_CAUSAL_MSE : BUTLER_LOSS_CROSS_ENTROPY,
        .length = 48,
        .n_uses = 2,
        .n_queries = 16,
        .batch = 4,
        .accumulate = 2,
        .n_valid_texts = 3,
        .adam = {.lr = 3e-3f, .weight_decay = 0.01f, .clip = 20, .spike = 10, .warmup = 0.1f, .n_steps = 12},
        .seed = 1,
        .n_threads = 1,
    };
    if (version == 2) {
        s->params.sizes.stride = 2;
        s->params.fit = true;
    }
}

static struct butler_trainer *trainer_make(const struct setup *s)
{
    struct butler_error err = {0};
    struct butler_trainer *trainer = butler_trainer_new(s->engine, &s->params, &butler_gather_local, &err);
    if (!trainer)
        fail_msg("%s", err.message);
    return trainer;
}

/* Steps to the end or n of them; the losses into losses. */
static void steps(struct butler_trainer *trainer, int n, double *losses)
{
    struct butler_train_report report;
    struct butler_error err = {0};
    for (int i = 0; i < n; i++) {
        if (butler_trainer_step(trainer, &report, &err) != 1)
            fail_msg("%s", err.message);
        losses[report.step - 1] = report.loss;
    }
}

static void same_weights(const struct butler_trainer *a, const struct butler_trainer *b)
{
    assert_memory_equal(a->predictor->weights, b->predictor->weights, a->predictor->n_weights * sizeof(float));
}

static void learns_whatever_the_threads(int version)
{
    struct setup s;
    double losses[2][12];
    setup_make(&s, version);
    struct butler_trainer *one = trainer_make(&s);
    s.params.n_threads = 3;
    struct butler_trainer *three = trainer_make(&s);
    struct butler_loss_measures measures;
    struct butler_error err = {0};
    double before, after;
    struct butler_train_report report;
    assert_int_equal(butler_trainer_measure(one, &before, &measures, &err), 0);
    steps(one, 12, losses[0]);
    steps(three, 12, losses[1]);
    assert_int_equal(butler_trainer_step(one, &report, &err), 0);
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    same_weights(one, three);
    assert_int_equal(butler_trainer_measure(one, &after, &measures, &err), 0);
    assert_true(after < before);
    butler_trainer_free(one);
    butler_trainer_free(three);
    free_engine(s.engine);
}

static void test_threads_v1(void **state)
{
    (void)state;
    learns_whatever_the_threads(1);
}

static void test_threads_v2(void **state)
{
    (void)state;
    learns_whatever_the_threads(2);
}

static void test_resume_is_exact(void **state)
{
    (void)state;
    struct setup s;
    struct butler_error err = {0};
    double losses[2][12];
    setup_make(&s, 2);
    struct butler_trainer *whole = trainer_make(&s), *first = trainer_make(&s), *second = trainer_make(&s);
    const char *path = tiny_path("checkpoint");
    steps(whole, 12, losses[0]);
    steps(first, 5, losses[1]);
    assert_int_equal(butler_trainer_save(first, path, &err), 0);
    butler_trainer_free(first);
    assert_int_equal(butler_trainer_restore(second, path, &err), 0);
    steps(second, 7, losses[1]);
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
    same_weights(whole, second);
    assert_memory_equal(whole->adam.second, second->adam.second, whole->predictor->n_weights * sizeof(float));
    assert_true(whole->n_tokens == second->n_tokens);
    butler_trainer_free(whole);
    butler_trainer_free(second);
    free_engine(s.engine);
}

static void test_bad_checkpoints(void **state)
{
    (void)state;
    struct setup s;
    struct butler_error err = {0};
    setup_make(&s, 2);
    struct butler_trainer *trainer = trainer_make(&s);
    const char *path = tiny_path("checkpoint");
    assert_int_equal(butler_trainer_save(trainer, path, &err), 0);
    struct tiny_bytes bytes = tiny_read(path);
    const size_t cuts[] = {0, 10, 100, bytes.size / 2, bytes.size - 1};
    for (int i = 0; i < BUTLER_COUNT(cuts); i++) {
        FILE *file = fopen(path, "wb");
        fwrite(bytes.data, 1, cuts[i], file);
        fclose(file);
        assert_true(butler_trainer_restore(trainer, path, &err) < 0);
        assert_non_null(strstr(err.message, path));
    }
    bytes.data[bytes.size / 2] ^= 1;
    FILE *file = fopen(path, "wb");
    fwrite(bytes.data, 1, bytes.size, file);
    fclose(file);
    assert_int_equal(butler_trainer_restore(trainer, path, &err), BUTLER_ERROR_FORMAT);
    assert_non_null(strstr(err.message, "checksum"));
    assert_int_equal(butler_trainer_save(trainer, path, &err), 0);
    butler_trainer_free(trainer);
    s.params.batch = 2;
    trainer = trainer_make(&s);
    assert_int_equal(butler_trainer_restore(trainer, path, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "--batch was 4 there and is 2 here"));
    butler_trainer_free(trainer);
    free_engine(s.engine);
    free(bytes.data);
}

/* An older checkpoint, whose run had another course, is refused by name. */
static void test_old_checkpoints(void **state)
{
    enum { VERSION_AT = 16 };
    (void)state;
    struct setup s;
    struct butler_error err = {0};
    setup_make(&s, 2);
    struct butler_trainer *trainer = trainer_make(&s);
    const char *path = tiny_path("old-checkpoint");
    assert_int_equal(butler_trainer_save(trainer, path, &err), 0);
    struct tiny_bytes bytes = tiny_read(path);
    const uint64_t version = 5;
    memcpy(bytes.data + VERSION_AT, &version, sizeof version);
    const uint64_t digest = XXH3_64bits(bytes.data, bytes.size - sizeof digest);
    memcpy(bytes.data + bytes.size - sizeof digest, &digest, sizeof digest);
    FILE *file = fopen(path, "wb");
    fwrite(bytes.data, 1, bytes.size, file);
    fclose(file);
    assert_int_equal(butler_trainer_restore(trainer, path, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "the checkpoint's format was 5 there and is 6 here"));
    butler_trainer_free(trainer);
    free_engine(s.engine);
    free(bytes.data);
}

/* What least squares makes: keys that are the model's own channels, queries that turn as these do, and a choice of tokens that no
 * step of training has improved yet and that is far better than one at random. */
static void test_fit(void **state)
{
    (void)state;
    struct setup s;
    struct butler_error err = {0};
    struct butler_train_report report;
    struct butler_loss_measures random, fitted;
    double loss;
    setup_make(&s, 2);
    s.params.adam.lr = 0;
    struct butler_trainer *trainer = trainer_make(&s);
    assert_int_equal(butler_trainer_measure(trainer, &loss, &random, &err), 0);
    assert_int_equal(butler_trainer_step(trainer, &report, &err), 1);
    assert_int_equal(butler_trainer_measure(trainer, &loss, &fitted, &err), 0);
    print_message("top half: at random %.3f, fitted %.3f; recall: %.3f, %.3f\n", random.top_half / random.n_rows,
                  fitted.top_half / fitted.n_rows, random.recall / random.n_rows, fitted.recall / fitted.n_rows);
    assert_true(fitted.top_half / fitted.n_rows > random.top_half / random.n_rows + 0.15);
    assert_true(fitted.recall > 2 * random.recall);
    const struct butler_predictor_sizes *sizes = &trainer->predictor->sizes;
    const struct butler_hparams *hp = &trainer->model->hp;
    for (int layer = 1; layer < sizes->n_layers; layer++) {
        int n_sets;
        char name[40];
        snprintf(name, sizeof name, "key.%d.weight", layer);
        const float *row = butler_predictor_find(trainer->predictor, name)->data;
        const float *freq = butler_predictor_layer_freq(trainer->predictor, layer, &n_sets);
        assert_int_equal(n_sets, sizes->n_kv_heads);
        for (int r = 0; r < sizes->n_kv_heads * sizes->d; r++, row += sizes->head_dim) {
            int n_used = 0, channel = -1;
            for (int c = 0; c < sizes->head_dim; c++)
                if (row[c] != 0)
                    n_used++, channel = c;
            if (r % (sizes->d / 2) >= sizes->head_dim / 2) /* there are no more pairs */
                continue;
            assert_int_equal(n_used, 1);
            const int pair = hp->rope == BUTLER_ROPE_ADJACENT ? channel / 2 : channel % (hp->n_rot / 2);
            assert_true(freq[r / sizes->d * (sizes->d / 2) + r % (sizes->d / 2)] ==
                        (pair < hp->n_rot / 2 ? trainer->model->rope_freq[pair] : 0));
        }
    }
    butler_trainer_free(trainer);
    free_engine(s.engine);
}

/* A norm far out of the row, or one that is no number, moves nothing. */
static void test_spikes_are_skipped(void **state)
{
    (void)state;
    struct setup s;
    struct butler_error err = {0};
    setup_make(&s, 2);
    struct butler_predictor *predictor = butler_predictor_new(&s.params.sizes, 1, &err);
    const size_t n = predictor->n_weights;
    struct butler_adamw adam;
    struct butler_adamw_params params = s.params.adam;
    params.n_steps = 100;
    float *grads = malloc(n * sizeof *grads), *before = malloc(n * sizeof *before);
    double norm;
    assert_int_equal(butler_adamw_init(&adam, &params, n, &err), 0);
    for (int step = 0; step < 40; step++) {
        for (size_t i = 0; i < n; i++)
            grads[i] = step == 30 ? 5 : step == 31 ? NAN : 0.01f;
        memcpy(before, predictor->weights, n * sizeof *before);
        const bool applied = butler_adamw_step(&adam, predictor, grads, &norm);
        assert_int_equal(applied, step != 30 && step != 31);
        assert_int_equal(memcmp(before, predictor->weights, n * sizeof *before) != 0, applied);
    }
    assert_int_equal((int)adam.n_skipped, 2);
    butler_adamw_free(&adam);
    butler_predictor_free(predictor);
    free_engine(s.engine);
    free(grads);
    free(before);
}

/* What is trained is what is run: the tokens that a session's last step selects are those that the trainer's scores put first. */
static void selects_as_trained(int version, enum butler_predictor_input input)
{
    enum { N = 60, K = 30 };
    struct setup s;
    struct butler_error err = {0};
    int32_t ids[N], chosen[N];
    const char *path = tiny_path("p.gguf");
    setup_make(&s, version);
    const int last = s.engine->model->hp.n_layers - 1, group = s.engine->model->hp.n_heads / s.engine->model->hp.n_kv_heads;
    s.params.sizes.input = input;
    struct butler_trainer *trainer = trainer_make(&s);
    assert_int_equal(butler_trainer_write(trainer, path, BUTLER_F32, "a test", &err), 0);
    if (butler_predictor_attach(s.engine, path, &err) < 0)
        fail_msg("%s", err.message);
    uint64_t seed = 2;
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(3 + butler_random(&seed) % 37);

    struct butler_net *net = butler_net_new(trainer->predictor, trainer->blas, train_loops(), s.params.loss, N, &err);
    struct butler_states states;
    struct butler_capture capture = butler_states_capture;
    struct butler_session *watched =
        butler_session_new(s.engine, &(struct butler_session_params){.n_ctx = N, .kv_type = BUTLER_KV_F32}, &err);
    capture.user = &states;
    watched->capture = &capture;
    assert_int_equal(butler_states_init(&states, &trainer->predictor->sizes, N, &err), 0);
    butler_states_begin(&states, N);
    assert_int_equal(butler_prefill(watched, ids, N, NULL, NULL, &err), 0);
    butler_net_run(net, &states, 0, 1);
    butler_states_free(&states);

    const char *policy = version == 1 ? "tokenbutler:budget=0.5,sinks=0,recent=0,share=query,dense=3,keys=f16"
                                      : "tokenbutler2:budget=0.5,on_top=0,sinks=0,recent=0,share=query,dense=3,keys=f16";
    const struct butler_session_params params = {.n_ctx = N, .kv_type = BUTLER_KV_F32, .policy = policy};
    struct butler_session *session = butler_session_new(s.engine, &params, &err);
    if (!session)
        fail_msg("%s", err.message);
    assert_int_equal(butler_prefill(session, ids, N - 1, NULL, NULL, &err), 0);
    assert_int_equal(butler_step(session, ids[N - 1], &err), 0);
    int n_same = 0;
    const struct butler_predictor_sizes *sizes = &trainer->predictor->sizes;
    for (int h = 0; h < sizes->n_heads; h++) {
        const int n_group = sizes->n_heads / sizes->n_key_heads;
        const float *q = net->qp + (size_t)((h / n_group * N + N - 1) * n_group + h % n_group) * (size_t)sizes->d;
        float scores[N], sorted[N];
        for (int i = 0; i < N; i++)
            scores[i] = sorted[i] = s.engine->backend->kernels->dot(
                q, net->kp + (size_t)(i * sizes->n_key_heads + h * sizes->n_key_heads / sizes->n_heads) * (size_t)sizes->d,
                sizes->d);
        for (int i = 0; i < N; i++)
            for (int j = i + 1; j < N; j++)
                if (sorted[j] > sorted[i]) {
                    const float swap = sorted[i];
                    sorted[i] = sorted[j];
                    sorted[j] = swap;
                }
        assert_int_equal(butler_last_selection(session, last, h, chosen, N), K);
        for (int i = 0; i < K; i++)
            n_same += scores[chosen[i]] >= sorted[K - 1];
    }
    print_message("version %d, input %d: %d of %d (groups of %d)\n", version, (int)input, n_same, K * sizes->n_heads, group);
    assert_true(n_same >= K * sizes->n_heads * 95 / 100); /* ties of rounded keys, and the newest token, which is always read */
    butler_session_free(session);
    butler_session_free(watched);
    butler_net_free(net);
    butler_trainer_free(trainer);
    free_engine(s.engine);
}

static void test_selects_as_trained(void **state)
{
    (void)state;
    for (int version = 1; version <= 2; version++) {
        selects_as_trained(version, BUTLER_PREDICTOR_INPUT_NORM);
        selects_as_trained(version, BUTLER_PREDICTOR_INPUT_ATTENTION);
    }
}

/* Every piece once a pass, in another order the next time. */
static void test_data_order(void **state)
{
    (void)state;
    struct setup s;
    struct butler_error err = {0};
    struct butler_data data;
    setup_make(&s, 2);
    struct butler_data_params params = {.paths = s.text, .n_paths = 1, .length = 48, .seed = 1};
    assert_int_equal(butler_data_open(&data, s.engine->model, &params, &err), 0);
    const int n = (int)data.n_train;
    assert_true(n > 20);
    int32_t *ids = malloc((size_t)n * 2 * 48 * sizeof *ids);
    int n_moved = 0;
    for (int i = 0; i < 2 * n; i++) {
        int32_t *text = ids + (size_t)i * 48;
        assert_int_equal(butler_data_train(&data, i, text, &err), 48);
        for (int j = i < n ? 0 : n; j < i; j++)
            assert_memory_not_equal(text, ids + (size_t)j * 48, 48 * sizeof *ids);
        n_moved += i >= n && memcmp(text, text - (size_t)n * 48, 48 * sizeof *ids) != 0;
    }
    assert_true(n_moved > n / 2);
    butler_data_close(&data);
    params.paths = (const char *const[]){tiny_path("none")};
    assert_true(butler_data_open(&data, s.engine->model, &params, &err) < 0);
    params.paths = s.text;
    params.length = 1 << 20;
    assert_true(butler_data_open(&data, s.engine->model, &params, &err) < 0);
    assert_non_null(strstr(err.message, "too short"));
    free(ids);
    free_engine(s.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_v1_causal), cmocka_unit_test(test_torch_v1_square),
        cmocka_unit_test(test_torch_v2),        cmocka_unit_test(test_finite_differences),
        cmocka_unit_test(test_dropout),         cmocka_unit_test(test_fit),
        cmocka_unit_test(test_threads_v1),      cmocka_unit_test(test_threads_v2),
        cmocka_unit_test(test_resume_is_exact), cmocka_unit_test(test_bad_checkpoints),
        cmocka_unit_test(test_old_checkpoints), cmocka_unit_test(test_spikes_are_skipped),
        cmocka_unit_test(test_data_order),      cmocka_unit_test(test_selects_as_trained),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
