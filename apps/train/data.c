/* Pieces of text files, in an order that depends only on the seed. */
#include "data.h"

#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

enum {
    SAMPLES = 8, /* positions at which bytes per token are estimated */
    SAMPLE_BYTES = 8192,
    MIN_PIECE_BYTES = 64,
};

static bool continues_character(unsigned char byte)
{
    return (byte & 0xc0) == 0x80;
}

/* Tokens of bytes [from, to) of a file, cut at whole characters; at most max. Returns the number of tokens of these bytes. */
static int tokens_of(const struct butler_data *data, const struct butler_data_file *file, size_t from, size_t to, int32_t *ids,
                     int max, struct butler_error *err)
{
    while (from < to && continues_character(file->map.data[from]))
        from++;
    while (to > from && to < file->map.size && continues_character(file->map.data[to]))
        to--;
    return butler_tokenize(data->model, (const char *)file->map.data + from, to - from, BUTLER_ADD_SPECIAL, ids, max, err);
}

/* Estimates the bytes of `length` tokens from samples spread over the files. */
static int measure_piece(struct butler_data *data, struct butler_error *err)
{
    uint64_t n_bytes = 0, n_tokens = 0;
    for (int f = 0; f < data->n_files; f++) {
        const struct butler_data_file *file = &data->files[f];
        for (size_t i = 0; i < SAMPLES; i++) {
            const size_t from = file->map.size / SAMPLES * i, to = BUTLER_MIN(from + SAMPLE_BYTES, file->map.size);
            const int n = tokens_of(data, file, from, to, NULL, 0, err);
            if (n < 0)
                return n;
            n_bytes += to - from;
            n_tokens += (uint64_t)n;
        }
    }
    data->piece_bytes = (size_t)((double)data->length * (double)n_bytes / (double)BUTLER_MAX(n_tokens, 1));
    data->piece_bytes = BUTLER_MAX(data->piece_bytes, MIN_PIECE_BYTES);
    return 0;
}

static int map_file(struct butler_data *data, struct butler_data_file *file, const char *path, struct butler_error *err)
{
    file->path = path;
    const int code = butler_map_open(&file->map, path, err);
    if (code < 0)
        return code;
    if (file->map.size < MIN_PIECE_BYTES)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes are no text to train on", path, file->map.size);
    const size_t n = BUTLER_MIN(file->map.size, 65536);
    const uint64_t parts[4] = {data->digest, file->map.size, XXH3_64bits(file->map.data, n),
                               XXH3_64bits(file->map.data + file->map.size - n, n)};
    data->digest = XXH3_64bits(parts, sizeof parts);
    return 0;
}

/* Divides every file into pieces for training and held-out pieces. */
static int cut(struct butler_data *data, struct butler_error *err)
{
    for (int f = 0; f < data->n_files + data->n_valid_files; f++) {
        struct butler_data_file *file = &data->files[f];
        const bool only_valid = f >= data->n_files, held_out = only_valid || data->n_valid_files == 0;
        size_t n_held = only_valid ? file->map.size : held_out ? BUTLER_MAX(file->map.size / 100, data->piece_bytes) : 0;
        n_held = BUTLER_MIN(n_held, file->map.size);
        file->n_train = file->map.size - n_held;
        file->first_train = data->n_train;
        file->n_train_pieces = (int64_t)(file->n_train / data->piece_bytes);
        file->n_valid_pieces = (int64_t)BUTLER_MAX(n_held / data->piece_bytes, n_held ? 1 : 0);
        data->n_train += file->n_train_pieces;
        data->n_valid += file->n_valid_pieces;
    }
    if (data->n_train == 0)
        return butler_fail(err, BUTLER_ERROR_LENGTH,
                           "%s%s: too short for a text of %d tokens and a held-out text: about %zu bytes per text are needed",
                           data->files[0].path, data->n_files > 1 ? " and the others" : "", data->length, data->piece_bytes);
    return 0;
}

int butler_data_open(struct butler_data *data, const struct butler_model *model, const struct butler_data_params *params,
                     struct butler_error *err)
{
    const int n_paths = params->n_paths, n_valid = params->n_valid, length = params->length;
    *data = (struct butler_data){.model = model, .length = length, .seed = params->seed};
    if (n_paths < 1 || n_paths > BUTLER_DATA_MAX_FILES || n_valid < 0 || n_valid > BUTLER_DATA_MAX_FILES)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d files of text: from 1 to %d can be trained on", n_paths,
                           BUTLER_DATA_MAX_FILES);
    if (length < BUTLER_DATA_MIN_TOKENS)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "texts of %d tokens: at least %d are needed", length,
                           BUTLER_DATA_MIN_TOKENS);
    int code = 0;
    for (int i = 0; i < n_paths && code == 0; i++)
        code = map_file(data, &data->files[data->n_files++], params->paths[i], err);
    for (int i = 0; i < n_valid && code == 0; i++)
        code = map_file(data, &data->files[data->n_files + data->n_valid_files++], params->valid[i], err);
    if (code == 0)
        code = measure_piece(data, err);
    if (code == 0)
        code = cut(data, err);
    if (code < 0)
        butler_data_close(data);
    return code;
}

void butler_data_close(struct butler_data *data)
{
    for (int f = 0; f < data->n_files + data->n_valid_files; f++)
        butler_map_close(&data->files[f].map);
    data->n_files = data->n_valid_files = 0;
}

/* A permutation of [0, n): a Feistel network on the next even number of bits, applied again until the result is below n. */
static uint64_t shuffle(uint64_t i, uint64_t n, uint64_t key)
{
    int half = 1;
    while (half < 31 && n > UINT64_C(1) << 2 * half)
        half++;
    const uint64_t mask = (UINT64_C(1) << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 4; round++) {
            uint64_t state = key ^ (round << 58) ^ right;
            const uint64_t next = left ^ (butler_random(&state) & mask);
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}

/* Starts at the first word at or after `from`; takes more bytes than a piece has if its tokens are long. */
static int read_piece(const struct butler_data *data, const struct butler_data_file *file, size_t from, size_t limit, int32_t *ids,
                      struct butler_error *err)
{
    const size_t begin = from;
    while (from > 0 && from < limit && from < begin + 64 && file->map.data[from - 1] != '\n' && file->map.data[from - 1] != ' ')
        from++;
    int n = 0;
    for (size_t n_bytes = data->piece_bytes * 5 / 4;; n_bytes *= 2) {
        const size_t to = n_bytes < limit - from ? from + n_bytes : limit;
        n = tokens_of(data, file, from, to, ids, data->length, err);
        if (n < 0 || n >= data->length || to == limit)
            break;
    }
    if (n >= 0 && n < BUTLER_DATA_MIN_TOKENS)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%s: only %d tokens from byte %zu on, at least %d make a text", file->path, n,
                           from, BUTLER_DATA_MIN_TOKENS);
    return BUTLER_MIN(n, data->length);
}

int butler_data_train(const struct butler_data *data, int64_t i, int32_t *ids, struct butler_error *err)
{
    uint64_t key = data->seed + (uint64_t)(i / data->n_train);
    const int64_t piece = (int64_t)shuffle((uint64_t)(i % data->n_train), (uint64_t)data->n_train, butler_random(&key));
    int f = 0;
    while (piece >= data->files[f].first_train + data->files[f].n_train_pieces)
        f++;
    const struct butler_data_file *file = &data->files[f];
    return read_piece(data, file, (size_t)(piece - file->first_train) * data->piece_bytes, file->n_train, ids, err);
}

int butler_data_valid(const struct butler_data *data, int i, int n, int32_t *ids, struct butler_error *err)
{
    int64_t piece = (2 * i + 1) * data->n_valid / (2 * n);
    int f = 0;
    for (; piece >= data->files[f].n_valid_pieces; f++)
        piece -= data->files[f].n_valid_pieces;
    const struct butler_data_file *file = &data->files[f];
    return read_piece(data, file, file->n_train + (size_t)piece * data->piece_bytes, file->map.size, ids, err);
}
