/* The capture hooks copy what training needs out of the model's forward pass. */
#include "states.h"

#include <string.h>

int butler_states_producer(const struct butler_predictor_sizes *s, int layer)
{
    int first;
    if (s->version == 1)
        return layer == 0 ? 0 : -1;
    return layer % s->stride == 0 && butler_predictor_serves(s, layer / s->stride, &first) > 0 ? layer / s->stride : -1;
}

static size_t input_floats(const struct butler_states *states)
{
    return (size_t)states->n * (size_t)states->sizes->n_embd;
}

static size_t query_floats(const struct butler_states *states)
{
    return (size_t)states->n * (size_t)(states->sizes->n_heads * states->sizes->head_dim);
}

static size_t key_floats(const struct butler_states *states)
{
    return (size_t)states->n * (size_t)(states->sizes->n_kv_heads * states->sizes->head_dim);
}

int butler_states_init(struct butler_states *states, const struct butler_predictor_sizes *sizes, int max_n,
                       struct butler_error *err)
{
    const size_t layers = (size_t)(sizes->n_layers - 1);
    size_t n_producers = 0;
    for (int l = 0; l < sizes->n_layers; l++)
        n_producers += butler_states_producer(sizes, l) >= 0;
    *states = (struct butler_states){.sizes = sizes, .max_n = max_n, .n = max_n};
    butler_arena_want(&states->arena, &states->inputs, n_producers * input_floats(states), sizeof(float));
    butler_arena_want(&states->arena, &states->q, layers * query_floats(states), sizeof(float));
    butler_arena_want(&states->arena, &states->k, layers * key_floats(states), sizeof(float));
    return butler_arena_make(&states->arena, err);
}

void butler_states_free(struct butler_states *states)
{
    butler_arena_free(&states->arena);
}

void butler_states_begin(struct butler_states *states, int n)
{
    states->n = n;
    states->layers_seen = 0;
    states->whole = true;
}

const float *butler_states_input(const struct butler_states *states, int producer)
{
    return states->inputs + (size_t)producer * input_floats(states);
}

const float *butler_states_queries(const struct butler_states *states, int layer)
{
    return states->q + (size_t)(layer - 1) * query_floats(states);
}

const float *butler_states_keys(const struct butler_states *states, int layer)
{
    return states->k + (size_t)(layer - 1) * key_floats(states);
}

/* h: a layer's input, of the kind that this predictor reads. */
static void take_input(struct butler_states *states, int layer, const float *h)
{
    const int producer = butler_states_producer(states->sizes, layer);
    if (states->whole && producer >= 0)
        memcpy(states->inputs + (size_t)producer * input_floats(states), h, input_floats(states) * sizeof *h);
}

static void at_layer(void *user, int layer, int first, int n, const float *x, const float *h, const float *q, const float *k)
{
    struct butler_states *states = user;
    (void)x;
    states->whole = states->whole && first == 0 && n == states->n;
    if (!states->whole)
        return;
    if (layer > 0) {
        memcpy(states->q + (size_t)(layer - 1) * query_floats(states), q, query_floats(states) * sizeof *q);
        memcpy(states->k + (size_t)(layer - 1) * key_floats(states), k, key_floats(states) * sizeof *k);
        states->layers_seen++;
    }
    if (states->sizes->input == BUTLER_PREDICTOR_INPUT_NORM)
        take_input(states, layer, h);
}

static void at_fed(void *user, int layer, int first, int n, const float *h)
{
    struct butler_states *states = user;
    (void)first;
    (void)n;
    if (states->sizes->input == BUTLER_PREDICTOR_INPUT_ATTENTION)
        take_input(states, layer, h);
}

const struct butler_capture butler_states_capture = {.layer = at_layer, .fed = at_fed};
