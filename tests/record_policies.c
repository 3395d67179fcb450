/* Runs a text through a model under a policy and writes what tests/test_policies.py compares with its transcription of the
 * methods: of every layer the queries of every token and its keys and values as the cache stores them, and after every
 * prompt and every decoded token which positions each query head has (evict) or has read (retrieve). Under prompt=, after a
 * prompt: what its last sparse block has chosen.
 *
 *     record_policies MODEL POLICY f32|f16|q8_0 ISA THREADS BLOCK SEED SCHEDULE IDS OUT [PREDICTOR]
 *
 * SCHEDULE: lengths of prompts (p) and runs of decoded tokens (d), "100p,300d,40p,60d". IDS: a file of int32. OUT: int32
 * {magic, layers, heads, KV heads, head_dim, tokens, events, n_rot, rope, one_bit_step}, float rope_scale, char policy[768],
 * float rope_freq[n_rot/2]; per layer float q[tokens][heads][head_dim], k, v[tokens][KV heads][head_dim]; per event, layer
 * and head int32 n, positions[n]. With a predictor there is also OUT.predicted (tests/predictor_reference.py, Recorded). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/predict.h"
#include "engine/session.h"
#include "kernels/kernels.h"

enum { MAGIC = 0x32525042 };

struct recording {
    struct butler_session *session;
    int n_tokens;
    float *q, *k, *v; /* [layers][tokens][heads or KV heads][head_dim] */
    FILE *out;
    FILE *queries; /* of a predictor, one step after another; or NULL */
    float *inputs; /* what it is fed at each layer, [layers][tokens][n_embd] */
    int n_steps;
};

static struct recording recording; /* the backend's operations have no argument to carry it */

static void die(const char *what)
{
    fprintf(stderr, "record_policies: %s\n", what);
    exit(1);
}

/* The queries of new tokens, and their keys and values as they lie in the newest slots. */
static void see_attended(void *user, int layer, int first, int n, const float *q, float *o)
{
    const struct butler_session *session = recording.session;
    const struct butler_kv *kv = &session->kv;
    const size_t dim = (size_t)kv->head_dim, n_heads = (size_t)session->shape.n_heads, n_kv = (size_t)kv->n_kv_heads;
    const size_t at = (size_t)layer * (size_t)recording.n_tokens + (size_t)first;
    (void)user, (void)o;
    memcpy(recording.q + at * n_heads * dim, q, (size_t)n * n_heads * dim * sizeof(float));
    for (int h = 0; h < kv->n_kv_heads; h++) {
        const struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        const struct butler_head_view view = butler_kv_view(kv, layer, h, first + n - 1);
        for (int i = 0; i < n; i++) {
            const uint32_t slot = (uint32_t)(head->n_slots - n + i);
            const size_t to = ((at + (size_t)i) * n_kv + (size_t)h) * dim;
            if (butler_kv_position(head, slot) != first + i)
                die("a new token is not in the slot it should be in");
            butler_view_key(&view, (int)slot, recording.k + to); /* as the model made it, however it is stored */
            kv->kernels->load_row[kv->type](recording.v + to, butler_kv_value_row(kv, head, slot), kv->head_dim);
        }
    }
}

static void put(const void *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, recording.out) != n)
        die("cannot write");
}

/* prompt=: the positions of the units that the last sparse block of a prompt has chosen. */
static int32_t chosen_by_block(int layer, int head, int32_t *ids)
{
    const struct butler_session *session = recording.session;
    const struct butler_selection *selection = &session->selection;
    const int unit = session->policy.unit, n_heads = session->shape.n_heads, group = n_heads / session->kv.n_kv_heads;
    const uint64_t *bits = selection->units + (size_t)(layer * n_heads + head / group) * selection->words;
    int32_t n = 0;
    for (int i = 0; i + unit <= recording.n_tokens; i++)
        if (bits[i / unit / 64] >> i / unit % 64 & 1)
            ids[n++] = i;
    return n;
}

static void put_event(int32_t *ids, bool prompt)
{
    const struct butler_metric_shape *shape = &recording.session->shape;
    const struct butler_policy *policy = &recording.session->policy;
    for (int layer = 0; layer < shape->n_layers; layer++)
        for (int head = 0; head < shape->n_heads; head++) {
            const bool sparse = prompt && policy->prompt > 0 && butler_policy_applies(policy, layer);
            const int32_t n = sparse ? chosen_by_block(layer, head, ids)
                                     : butler_last_selection(recording.session, layer, head, ids, recording.n_tokens);
            put(&n, sizeof n);
            put(ids, (size_t)n * sizeof *ids);
        }
}

static int32_t *read_ids(const char *path, int *n)
{
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END))
        die("cannot read the ids");
    *n = (int)(ftell(file) / 4);
    rewind(file);
    int32_t *ids = malloc((size_t)*n * 4 + 1);
    if (!ids || fread(ids, 4, (size_t)*n, file) != (size_t)*n)
        die("cannot read the ids");
    fclose(file);
    return ids;
}

static void keep_input(int layer, int first, int n, const float *h)
{
    const size_t embd = (size_t)recording.session->model->hp.n_embd;
    memcpy(recording.inputs + ((size_t)layer * (size_t)recording.n_tokens + (size_t)first) * embd, h, (size_t)n * embd * sizeof *h);
}

static void see_layer(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    (void)user, (void)x, (void)q, (void)k;
    if (recording.session->predict->predictor->sizes.input == BUTLER_PREDICTOR_INPUT_NORM)
        keep_input(layer, first, n, h);
}

static void see_fed(void *user, int layer, int first, int n, const float *h)
{
    (void)user;
    if (recording.session->predict->predictor->sizes.input == BUTLER_PREDICTOR_INPUT_ATTENTION)
        keep_input(layer, first, n, h);
}

static void put_queries(void)
{
    const struct butler_predict *predict = recording.session->predict;
    const struct butler_predictor_sizes *s = &predict->predictor->sizes;
    const size_t n = (size_t)(s->n_layers * s->n_heads * s->d);
    if (fwrite(predict->queries, sizeof(float), n, recording.queries) != n)
        die("cannot write");
    recording.n_steps++;
}

static void copy_file(FILE *from)
{
    char bytes[4096];
    rewind(from);
    for (size_t got; (got = fread(bytes, 1, sizeof bytes, from)) > 0;)
        put(bytes, got);
    fclose(from);
}

static void put_predicted(const char *path)
{
    char name[4096];
    const struct butler_session *session = recording.session;
    const struct butler_predictor_sizes *s = &session->predict->predictor->sizes;
    const struct butler_kv *kv = &session->kv;
    const int32_t header[] = {recording.n_steps,
                              s->n_layers,
                              s->n_heads,
                              s->n_kv_heads,
                              s->d,
                              recording.n_tokens,
                              s->n_embd,
                              strstr(session->policy.text, "keys=f16")    ? 16
                              : strstr(session->policy.text, "keys=int8") ? 8
                                                                          : 4,
                              session->policy.dense_layers,
                              (int32_t)kv->record_bytes};
    snprintf(name, sizeof name, "%s.predicted", path);
    if (!(recording.out = fopen(name, "wb")))
        die("the output cannot be written");
    put(header, sizeof header);
    copy_file(recording.queries);
    put(recording.inputs, (size_t)s->n_layers * (size_t)recording.n_tokens * (size_t)s->n_embd * sizeof(float));
    for (int layer = session->policy.dense_layers; layer < s->n_layers; layer++)
        for (int h = 0; h < kv->n_kv_heads; h++)
            put(butler_kv_at(kv, layer, h)->records,
                BUTLER_CEIL_DIV((size_t)recording.n_tokens, (size_t)kv->record_slots) * kv->record_bytes);
    if (fclose(recording.out))
        die("cannot write");
}

/* Runs the schedule, or only counts its events and tokens. */
static int run(const char *schedule, const int32_t *ids, int32_t *scratch, int *n_tokens, struct butler_error *err)
{
    int n_events = 0, at = 0;
    for (const char *s = schedule; *s;) {
        char *end;
        const long n = strtol(s, &end, 10);
        if (n < 1 || n > 100000 || (*end != 'p' && *end != 'd'))
            die("the schedule is lengths and p or d");
        n_events += *end == 'p' ? 1 : (int)n;
        if (ids && *end == 'p') {
            if (butler_prefill(recording.session, ids + at, (int)n, NULL, NULL, err) < 0)
                die(err->message);
            put_event(scratch, true);
        }
        for (int i = 0; ids && *end == 'd' && i < n; i++) {
            if (butler_step(recording.session, ids[at + i], err) < 0)
                die(err->message);
            put_event(scratch, false);
            if (recording.queries)
                put_queries();
        }
        at += (int)n;
        s = end[1] == ',' ? end + 2 : end + 1;
    }
    *n_tokens = at;
    return n_events;
}

static void put_rows(const struct butler_model *model, int n_events)
{
    const struct butler_hparams *hp = &model->hp;
    const int32_t header[] = {MAGIC,
                              hp->n_layers,
                              hp->n_heads,
                              hp->n_kv_heads,
                              hp->head_dim,
                              recording.n_tokens,
                              n_events,
                              hp->n_rot,
                              (int32_t)hp->rope,
                              recording.session->kv.kernels->one_bit_step};
    put(header, sizeof header);
    put(&recording.session->rope_scale, sizeof(float));
    put(recording.session->policy.text, sizeof recording.session->policy.text);
    if (hp->rope != BUTLER_ROPE_NONE)
        put(recording.session->rope_freq, (size_t)hp->n_rot / 2 * sizeof(float));
    const size_t row = (size_t)recording.n_tokens * (size_t)hp->head_dim * sizeof(float);
    for (int l = 0; l < hp->n_layers; l++) {
        put(recording.q + (size_t)l * row / 4 * (size_t)hp->n_heads, row * (size_t)hp->n_heads);
        put(recording.k + (size_t)l * row / 4 * (size_t)hp->n_kv_heads, row * (size_t)hp->n_kv_heads);
        put(recording.v + (size_t)l * row / 4 * (size_t)hp->n_kv_heads, row * (size_t)hp->n_kv_heads);
    }
}

int main(int argc, char **argv)
{
    static const char *const types[] = {[BUTLER_KV_F16] = "f16", [BUTLER_KV_F32] = "f32", [BUTLER_KV_Q8_0] = "q8_0"};
    struct butler_error err = {0};
    struct butler_session_params params = {0};
    int n_ids;
    if (argc != 11 && argc != 12)
        die("MODEL POLICY KV_TYPE ISA THREADS BLOCK SEED SCHEDULE IDS OUT [PREDICTOR | CENTRES]");
    /* 16 bits: predictions are compared with those in double precision. */
    const struct butler_engine_params device = {
        .n_threads = atoi(argv[5]), .isa = argv[4], .n_block = atoi(argv[6]), .activation_bits = 16};
    struct butler_model *model = butler_model_load(argv[1], NULL, &err);
    struct butler_engine *engine = model ? butler_engine_new(model, &device, &err) : NULL;
    if (!engine || (argc == 12 && butler_predictor_attach(engine, argv[11], &err) < 0))
        die(err.message);
    int32_t *ids = read_ids(argv[9], &n_ids);
    const int n_events = run(argv[8], NULL, NULL, &recording.n_tokens, &err);
    if (recording.n_tokens > n_ids)
        die("fewer ids than the schedule wants");
    for (int type = 0; type < BUTLER_N_KV_TYPES; type++)
        if (!strcmp(types[type], argv[3]))
            params.kv_type = (enum butler_kv_type)type;
    params.policy = argv[2];
    params.n_ctx = recording.n_tokens;
    params.seed = strtoull(argv[7], NULL, 10);
    recording.session = butler_session_new(engine, &params, &err);
    if (!recording.session)
        die(err.message);
    const size_t n = (size_t)model->hp.n_layers * (size_t)recording.n_tokens * (size_t)model->hp.head_dim;
    recording.q = calloc(n * (size_t)model->hp.n_heads, sizeof(float));
    recording.k = calloc(n * (size_t)model->hp.n_kv_heads, sizeof(float));
    recording.v = calloc(n * (size_t)model->hp.n_kv_heads, sizeof(float));
    int32_t *scratch = calloc((size_t)recording.n_tokens, sizeof *scratch);
    char events[4096];
    FILE *out = fopen(argv[10], "wb");
    snprintf(events, sizeof events, "%s.events", argv[10]);
    recording.out = fopen(events, "w+b");
    if (!recording.q || !recording.k || !recording.v || !scratch || !out || !recording.out)
        die("no memory, or the output cannot be written");
    static const struct butler_capture attended = {.attended = see_attended},
                                       all = {.layer = see_layer, .fed = see_fed, .attended = see_attended};
    const bool predicts = recording.session->predict != NULL;
    recording.session->capture = predicts ? &all : &attended;
    if (predicts) {
        recording.queries = tmpfile();
        recording.inputs =
            calloc((size_t)model->hp.n_layers * (size_t)recording.n_tokens, (size_t)model->hp.n_embd * sizeof(float));
        if (!recording.queries || !recording.inputs)
            die("no memory");
    }
    run(argv[8], ids, scratch, &recording.n_tokens, &err);

    FILE *selections = recording.out;
    recording.out = out;
    put_rows(model, n_events);
    copy_file(selections);
    if (fclose(out))
        die("cannot write");
    if (predicts)
        put_predicted(argv[10]);
    snprintf(events, sizeof events, "%s.events", argv[10]);
    remove(events);
    free(recording.inputs);
    free(scratch);
    free(recording.v);
    free(recording.k);
    free(recording.q);
    free(ids);
    butler_session_free(recording.session);
    butler_engine_free(engine);
    butler_model_free(model);
    return 0;
}
