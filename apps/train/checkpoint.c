/* Saves and restores a training run: its settings, its progress, weights and moments, and a checksum of all that. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "train.h"

#define MAGIC "butler training\n"
enum { VERSION = 6 };

/* What must be equal to resume a run. setting_names has the flags that set it. */
struct settings {
    uint64_t version, model, data, predictor_version, input, d, n_mid, n_inner, n_inner_heads, n_key_heads, stride, rotated, fit,
        loss, length, n_uses, n_queries, dropout, batch, accumulate, n_steps, seed, rate, weight_decay, clip, spike, warmup;
};

static const char *const setting_names[] = {
    "the checkpoint's format",
    "the model",
    "--data",
    "--predictor",
    "--input",
    "--dim",
    "--mid",
    "inner width",
    "inner heads",
    "--key-heads",
    "stride",
    "--rotate",
    "--begin",
    "--loss",
    "--length",
    "--uses",
    "--queries",
    "--dropout",
    "--batch",
    "--accumulate",
    "the number of steps",
    "--seed",
    "--lr",
    "weight decay",
    "the clip",
    "the spike limit",
    "the warm-up",
};
_Static_assert(sizeof(struct settings) == sizeof setting_names / sizeof *setting_names * sizeof(uint64_t), "a name per setting");

struct progress {
    int64_t n_texts, n_tokens, step, n_applied, n_skipped;
    double usual_norm, loss;
};

static uint64_t bits(float x)
{
    uint32_t word;
    memcpy(&word, &x, sizeof word);
    return word;
}

static struct settings settings_of(const struct butler_trainer *trainer)
{
    const struct butler_train_params *params = &trainer->params;
    const struct butler_predictor_sizes *sizes = &trainer->predictor->sizes;
    return (struct settings){
        .version = VERSION,
        .model = trainer->predictor->model_fingerprint,
        .data = trainer->data.digest,
        .predictor_version = (uint64_t)sizes->version,
        .input = (uint64_t)sizes->input,
        .d = (uint64_t)sizes->d,
        .n_mid = (uint64_t)sizes->n_mid,
        .n_inner = (uint64_t)sizes->n_inner,
        .n_inner_heads = (uint64_t)sizes->n_inner_heads,
        .n_key_heads = (uint64_t)sizes->n_key_heads,
        .stride = (uint64_t)sizes->stride,
        .rotated = sizes->version == 1 ? sizes->rope_length > 0 : butler_predictor_rotates(sizes),
        .fit = params->fit,
        .loss = (uint64_t)params->loss,
        .length = (uint64_t)params->length,
        .n_uses = (uint64_t)params->n_uses,
        .n_queries = (uint64_t)params->n_queries,
        .dropout = bits(params->dropout),
        .batch = (uint64_t)params->batch,
        .accumulate = (uint64_t)params->accumulate,
        .n_steps = (uint64_t)params->adam.n_steps,
        .seed = params->seed,
        .rate = bits(params->adam.lr),
        .weight_decay = bits(params->adam.weight_decay),
        .clip = bits(params->adam.clip),
        .spike = bits(params->adam.spike),
        .warmup = bits(params->adam.warmup),
    };
}

int butler_trainer_save(const struct butler_trainer *trainer, const char *path, struct butler_error *err)
{
    struct butler_writer writer = {0};
    const struct butler_adamw *adam = &trainer->adam;
    const struct settings settings = settings_of(trainer);
    const struct progress progress = {trainer->n_texts, trainer->n_tokens, adam->step,   adam->n_applied,
                                      adam->n_skipped,  adam->usual_norm,  trainer->loss};
    const size_t n_bytes = trainer->predictor->n_weights * sizeof(float);
    int code = butler_writer_open(&writer, path, BUTLER_WRITER_HASH, err);
    if (code < 0)
        return code;
    if ((code = butler_write(&writer, MAGIC, sizeof MAGIC - 1, err)) < 0 ||
        (code = butler_write(&writer, &settings, sizeof settings, err)) < 0 ||
        (code = butler_write(&writer, &progress, sizeof progress, err)) < 0 ||
        (code = butler_write(&writer, trainer->predictor->weights, n_bytes, err)) < 0 ||
        (code = butler_write(&writer, adam->first, n_bytes, err)) < 0 ||
        (code = butler_write(&writer, adam->second, n_bytes, err)) < 0)
        goto fail;
    return butler_writer_commit(&writer, err);
fail:
    butler_writer_abort(&writer);
    return code;
}

static int check(const struct butler_trainer *trainer, const struct butler_map *map, const char *path, struct butler_error *err)
{
    const size_t n_head = sizeof MAGIC - 1;
    const struct settings mine = settings_of(trainer);
    struct settings theirs;
    uint64_t digest;
    if (map->size < n_head + sizeof theirs + sizeof digest || memcmp(map->data, MAGIC, n_head) != 0)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: not a training checkpoint", path);
    memcpy(&digest, map->data + map->size - sizeof digest, sizeof digest);
    if (digest != XXH3_64bits(map->data, map->size - sizeof digest))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the checksum at byte %zu does not match: the checkpoint is damaged", path,
                           map->size - sizeof digest);
    memcpy(&theirs, map->data + n_head, sizeof theirs);
    for (size_t i = 0; i < sizeof mine / sizeof(uint64_t); i++) {
        uint64_t a, b;
        memcpy(&a, (const char *)&theirs + i * sizeof a, sizeof a);
        memcpy(&b, (const char *)&mine + i * sizeof b, sizeof b);
        if (a != b)
            return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: another run: %s was %" PRIu64 " there and is %" PRIu64 " here",
                               path, setting_names[i], a, b);
    }
    if (map->size !=
        n_head + sizeof theirs + sizeof(struct progress) + 3 * trainer->predictor->n_weights * sizeof(float) + sizeof digest)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes are not what its sizes give", path, map->size);
    return butler_map_check(map, path, err);
}

int butler_trainer_restore(struct butler_trainer *trainer, const char *path, struct butler_error *err)
{
    struct butler_map map;
    struct progress progress;
    const size_t n_bytes = trainer->predictor->n_weights * sizeof(float);
    int code = butler_map_open(&map, path, err);
    if (code < 0)
        return code;
    code = check(trainer, &map, path, err);
    if (code == 0) {
        const unsigned char *at = map.data + sizeof MAGIC - 1 + sizeof(struct settings);
        memcpy(&progress, at, sizeof progress);
        at += sizeof progress;
        memcpy(trainer->predictor->weights, at, n_bytes);
        memcpy(trainer->adam.first, at + n_bytes, n_bytes);
        memcpy(trainer->adam.second, at + 2 * n_bytes, n_bytes);
        trainer->n_texts = progress.n_texts;
        trainer->n_tokens = progress.n_tokens;
        trainer->loss = progress.loss;
        trainer->adam.step = progress.step;
        trainer->adam.n_applied = progress.n_applied;
        trainer->adam.n_skipped = progress.n_skipped;
        trainer->adam.usual_norm = progress.usual_norm;
    }
    butler_map_close(&map);
    return code;
}
