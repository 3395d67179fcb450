/* Gives an engine predictors that learned nothing: enough for everything but the quality of what they select. */
#ifndef RANDOM_PREDICTOR_H
#define RANDOM_PREDICTOR_H

#include <stdlib.h>
#include <unistd.h>

#include "engine/engine.h"
#include "model/centres.h"
#include "model/predictor.h"

/* From a temporary file that is gone when it returns. */
static inline void attach_random(struct butler_engine *engine, const struct butler_predictor_sizes *sizes, uint64_t seed)
{
    char path[] = "/tmp/butler-test-predictor-XXXXXX";
    struct butler_error err = {0};
    const int fd = mkstemp(path);
    struct butler_predictor *predictor = butler_predictor_new(sizes, seed, &err);
    assert_true(fd >= 0);
    close(fd);
    if (!predictor)
        fail_msg("%s", err.message);
    if (butler_model_fingerprint(engine->model, &predictor->model_fingerprint, &err) < 0 ||
        butler_predictor_save(predictor, path, BUTLER_F32, &err) < 0 || butler_predictor_attach(engine, path, &err) < 0)
        fail_msg("%s", err.message);
    butler_predictor_free(predictor);
    unlink(path);
}

/* Random query centres, from a temporary file that is gone when it returns. */
static inline void attach_centres(struct butler_engine *engine, uint64_t seed)
{
    char path[] = "/tmp/butler-test-centres-XXXXXX";
    struct butler_error err = {0};
    const struct butler_hparams *hp = &engine->model->hp;
    const size_t n = (size_t)hp->n_layers * (size_t)hp->n_heads * (size_t)(hp->head_dim / 2);
    const int fd = mkstemp(path);
    float *values = calloc(3 * n, sizeof *values);
    assert_true(fd >= 0 && values);
    close(fd);
    for (size_t i = 0; i < 3 * n; i++)
        values[i] = 2 * butler_random_float(&seed) - (i < 2 * n ? 1.0f : 0.0f);
    if (butler_centres_save(path, engine->model, 1, (const float *const[3]){values, values + n, values + 2 * n}, &err) < 0 ||
        butler_predictor_attach(engine, path, &err) < 0)
        fail_msg("%s", err.message);
    free(values);
    unlink(path);
}

/* Query centres, and both versions; keys per query head (version 1) or as they are by default. Version 1's window is shorter than
 * most texts. */
static inline void attach_both(struct butler_engine *engine, bool per_query_head)
{
    struct butler_predictor_sizes sizes = butler_predictor_sizes_for(engine->model, 1);
    sizes.rope_length = 8;
    if (per_query_head)
        sizes.n_key_heads = sizes.n_heads;
    attach_random(engine, &sizes, 11);
    sizes = butler_predictor_sizes_for(engine->model, 2);
    sizes.stride = 2;
    sizes.input = per_query_head ? BUTLER_PREDICTOR_INPUT_ATTENTION : BUTLER_PREDICTOR_INPUT_NORM;
    attach_random(engine, &sizes, 12);
    attach_centres(engine, 13);
}

#endif
