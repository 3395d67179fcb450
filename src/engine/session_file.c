/* A session in a file: everything that decides what follows, so that a restored session continues bit for bit.
 *
 *   header   struct file_header, little endian as laid out below
 *   policy   its canonical text, header.n_policy bytes
 *   tokens   int32 [n_past]
 *   logits   float [n_vocab], if header.has_logits
 *   heads    for every layer, every KV head: int32 n_slots; with eviction positions and order; value norms if kept;
 *            in layers with a window int32 first: the slots before it have been given back; key and value row of every slot;
 *            the metric's records
 *   predict  where the policy has a predictor: uint64 its fingerprint; version 1: the heads of its own attention, as above
 *   lists    where the policy has every= above 1, or reads prompts sparsely: what the layers go by, int32 at[n_layers] and uint64
 *            units[n_layers][n_heads][words] of struct butler_selection
 *   sparse   if SPARSE: int32 sparse_end
 *   digest   XXH3-64 of all bytes before it
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/predict.h"
#include "engine/session.h"

/* Version 2 names models and predictors by their sampled fingerprints. */
static const char magic[8] = "butlerS3", sampled_magic[8] = "butlerS2";

struct file_header {
    char magic[8];
    uint64_t fingerprint, seed;
    int32_t n_ctx;
    int8_t kv_type, hadamard; /* hadamard: keys are stored behind that transform (kv.h) */
    int16_t activation_bits;  /* 0, in files of version 0.2: 16 */
    int32_t n_past, n_decoded, n_dense, n_observed, flags, has_logits, n_policy, n_vocab;
    int32_t n_layers, n_kv_heads, head_dim, record_slots;
    uint64_t record_bytes;
};

/* In header.flags. SPARSE: prompts are read sparsely; files of version 0.3.0 and before have neither sparse_end nor lists then. */
enum { EVICTED = 1, GUIDED = 2, OBSERVED_MORE = 4, STEERED = 8, STOP = 16, SPARSE = 32, SKIPPED_BITS = 6 }; /* n_skipped above */

static int flags_of(const struct butler_session *session)
{
    return (session->evicted ? EVICTED : 0) | (session->policy.plan.guided ? GUIDED : 0) |
           (session->observed_more ? OBSERVED_MORE : 0) | (session->steered ? STEERED : 0) | (session->stop ? STOP : 0) |
           (session->policy.prompt > 0 ? SPARSE : 0);
}

/* ------------------------------------------------------------------------------------------------- saving */

/* Device memory, by way of a buffer on the stack. */
static int write_device(struct butler_writer *writer, struct butler_backend *backend, const void *from, size_t n_bytes,
                        struct butler_error *err)
{
    unsigned char host[1 << 14];
    int code = 0;
    for (size_t done = 0, m; done < n_bytes && code == 0; done += m) {
        m = BUTLER_MIN(n_bytes - done, sizeof host);
        backend->download(backend, host, (const unsigned char *)from + done, m);
        code = butler_backend_check(backend, err);
        code = code < 0 ? code : butler_write(writer, host, m, err);
    }
    return code;
}

static int write_head(struct butler_writer *writer, const struct butler_kv *kv, const struct butler_kv_head *head, bool windowed,
                      struct butler_error *err)
{
    const int32_t n = head->n_slots, first = head->n_released * BUTLER_EXTENT_TOKENS;
    int code = butler_write(writer, &n, sizeof n, err);
    if (code == 0 && head->positions)
        code = write_device(writer, kv->backend, head->positions, (size_t)n * sizeof *head->positions, err);
    if (code == 0 && head->order)
        code = write_device(writer, kv->backend, head->order, (size_t)n * sizeof *head->order, err);
    if (code == 0 && head->value_norms)
        code = write_device(writer, kv->backend, head->value_norms, (size_t)n * sizeof *head->value_norms, err);
    if (code == 0 && windowed)
        code = butler_write(writer, &first, sizeof first, err);
    for (int slot = first; slot < n && code == 0; slot += BUTLER_PAGE)
        code = write_device(writer, kv->backend, butler_kv_row_address(kv, head, slot),
                            2 * kv->row_bytes * (size_t)BUTLER_MIN(n - slot, BUTLER_PAGE), err);
    if (code == 0 && kv->record_slots > 0 && !kv->records_off)
        code =
            write_device(writer, kv->backend, head->records, (size_t)BUTLER_CEIL_DIV(n, kv->record_slots) * kv->record_bytes, err);
    if (code == 0 && head->state)
        code = write_device(writer, kv->backend, head->state, kv->state_bytes, err);
    return code;
}

static int write_predict(struct butler_writer *writer, const struct butler_predict *predict, struct butler_error *err)
{
    int code = predict ? butler_write(writer, &predict->predictor->fingerprint, sizeof predict->predictor->fingerprint, err) : 0;
    for (int i = 0; predict && predict->predictor->sizes.version == 1 && i < predict->kv.n_kv_heads && code == 0; i++)
        code = write_head(writer, &predict->kv, &predict->kv.heads[i], false, err);
    return code;
}

/* What a layer that does not select in every step goes by, and its size. */
static size_t list_bytes(const struct butler_session *session)
{
    return (size_t)session->shape.n_layers * (size_t)session->shape.n_heads * session->selection.words *
           sizeof *session->selection.units;
}

static int write_lists(struct butler_writer *writer, const struct butler_session *session, struct butler_error *err)
{
    const struct butler_selection *selection = &session->selection;
    const int32_t sparse_end = session->sparse_end;
    int code = 0;
    if (session->policy.every > 1 || session->policy.prompt > 0) {
        code = butler_write(writer, selection->at, (size_t)session->shape.n_layers * sizeof *selection->at, err);
        code = code < 0 ? code : write_device(writer, session->engine->backend, selection->units, list_bytes(session), err);
    }
    if (code == 0 && session->policy.prompt > 0)
        code = butler_write(writer, &sparse_end, sizeof sparse_end, err);
    return code;
}

/* Everything but the digest. */
static int write_session(struct butler_writer *writer, const struct butler_session *session, struct butler_error *err)
{
    const struct butler_kv *kv = &session->kv;
    struct file_header header = {
        .seed = session->seed,
        .n_ctx = session->n_ctx,
        .kv_type = (int8_t)session->kv_type,
        .hadamard = kv->hadamard,
        .activation_bits = (int16_t)session->engine->backend->activation_bits,
        .n_past = session->n_past,
        .n_decoded = session->n_decoded,
        .n_dense = session->n_dense,
        .n_observed = session->n_observed,
        .flags = flags_of(session) | session->n_skipped << SKIPPED_BITS,
        .has_logits = session->has_logits,
        .n_policy = (int32_t)strlen(session->policy.text),
        .n_vocab = session->model->hp.n_vocab,
        .n_layers = kv->n_layers,
        .n_kv_heads = kv->n_kv_heads,
        .head_dim = kv->head_dim,
        .record_slots = kv->records_off ? 0 : kv->record_slots,
        .record_bytes = kv->record_bytes,
    };
    memcpy(header.magic, magic, sizeof magic);
    int code = butler_model_fingerprint(session->model, &header.fingerprint, err);
    if (code < 0 || (code = butler_write(writer, &header, sizeof header, err)) < 0 ||
        (code = butler_write(writer, session->policy.text, (size_t)header.n_policy, err)) < 0 ||
        (code = butler_write(writer, session->tokens, (size_t)session->n_past * sizeof *session->tokens, err)) < 0 ||
        (session->has_logits && (code = butler_write(writer, session->logits, (size_t)header.n_vocab * sizeof(float), err)) < 0))
        return code;
    for (int i = 0; i < kv->n_layers * kv->n_kv_heads; i++)
        if ((code = write_head(writer, kv, &kv->heads[i], session->model->layers[i / kv->n_kv_heads].window > 0, err)) < 0)
            return code;
    code = write_predict(writer, session->predict, err);
    return code < 0 ? code : write_lists(writer, session, err);
}

/* path NULL: the file that is open as fd. */
static int save(const struct butler_session *session, const char *path, int fd, struct butler_error *err)
{
    struct butler_writer writer;
    if (session->failed)
        return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: a session that ended with an error cannot be saved",
                           path ? path : "a file descriptor");
    int code = path ? butler_writer_open(&writer, path, BUTLER_WRITER_HASH | BUTLER_WRITER_PRIVATE, err)
                    : butler_writer_open_fd(&writer, fd, BUTLER_WRITER_HASH, err);
    if (code < 0)
        return code;
    code = write_session(&writer, session, err);
    if (code == 0)
        return butler_writer_commit(&writer, err);
    butler_writer_abort(&writer);
    return code;
}

int butler_session_save(const struct butler_session *session, const char *path, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err) || BUTLER_IS_NULL(path, err))
        return BUTLER_ERROR_ARGUMENT;
    return save(session, path, -1, err);
}

int butler_session_save_fd(const struct butler_session *session, int fd, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    return save(session, NULL, fd, err);
}

/* ----------------------------------------------------------------------------------------------- restoring */

/* A cursor over the mapped file. Running past its end is remembered: `take` then gives NULL for good. */
struct cursor {
    const char *path;
    const unsigned char *data;
    size_t size, at;
    bool sampled; /* fingerprints are sampled ones */
};

static const void *take(struct cursor *cursor, size_t n_bytes, const char *what, struct butler_error *err)
{
    if (n_bytes > cursor->size - cursor->at) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: ends at byte %zu, inside %s at byte %zu", cursor->path, cursor->size, what,
                    cursor->at);
        return NULL;
    }
    cursor->at += n_bytes;
    return cursor->data + cursor->at - n_bytes;
}

static bool sizes_are_possible(const struct file_header *header)
{
    return header->n_ctx >= 1 && header->n_ctx <= 1 << 28 && header->n_past >= 0 && header->n_past <= header->n_ctx &&
           header->n_decoded >= 0 && header->n_decoded <= header->n_past && header->n_dense >= 0 &&
           header->n_dense <= header->n_past && header->n_observed >= 0 && header->n_observed <= header->n_past &&
           header->flags >= 0 && header->flags >> SKIPPED_BITS <= header->n_past && header->kv_type >= 0 &&
           header->kv_type < BUTLER_N_KV_TYPES && (header->hadamard == 0 || header->hadamard == 1) &&
           (header->activation_bits == 0 || header->activation_bits == 8 || header->activation_bits == 16) &&
           header->n_policy >= 1 && header->n_policy < (int)sizeof((struct butler_policy *)NULL)->text;
}

/* The header of a file that is whole; the cursor then ends before the digest. */
static int read_header(struct cursor *cursor, struct file_header *header, struct butler_error *err)
{
    uint64_t digest;
    if (cursor->size < sizeof *header + sizeof digest)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes are too few for a session", cursor->path, cursor->size);
    cursor->size -= sizeof digest;
    memcpy(header, take(cursor, sizeof *header, "the header", err), sizeof *header);
    memcpy(&digest, cursor->data + cursor->size, sizeof digest);
    cursor->sampled = memcmp(header->magic, sampled_magic, sizeof sampled_magic) == 0;
    if (!cursor->sampled && memcmp(header->magic, magic, sizeof magic) != 0)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: not a session file of this version (byte 0)", cursor->path);
    if (digest != XXH3_64bits(cursor->data, cursor->size))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: corrupt: the checksum at byte %zu does not match", cursor->path,
                           cursor->size);
    if (!sizes_are_possible(header))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: impossible sizes in the header", cursor->path);
    return 0;
}

static int check_model(const struct cursor *cursor, const struct file_header *header, struct butler_model *model,
                       struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    uint64_t fingerprint = model->sampled_fingerprint;
    const int code = cursor->sampled ? 0 : butler_model_fingerprint(model, &fingerprint, err);
    if (code < 0)
        return code;
    if (header->fingerprint != fingerprint)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: saved with another model than %s", cursor->path, model->path);
    if (header->n_vocab != hp->n_vocab || header->n_layers != hp->n_layers || header->n_kv_heads != hp->n_kv_heads ||
        header->head_dim != hp->head_dim)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: impossible sizes in the header", cursor->path);
    return 0;
}

/* Rows that were read at one precision do not go on at another. */
static int check_precision(const struct cursor *cursor, const struct file_header *header, const struct butler_engine *engine,
                           struct butler_error *err)
{
    const int saved = header->activation_bits ? header->activation_bits : 16, bits = engine->backend->activation_bits;
    if (saved == bits)
        return 0;
    return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: saved with activations of %d bits, this engine has %d", cursor->path, saved,
                       bits);
}

/* text: of sizeof(struct butler_policy){0}.text bytes. */
static int read_policy(struct cursor *cursor, const struct file_header *header, char *text, struct butler_error *err)
{
    const void *from = take(cursor, (size_t)header->n_policy, "the policy", err);
    if (!from)
        return BUTLER_ERROR_FORMAT;
    memcpy(text, from, (size_t)header->n_policy);
    text[header->n_policy] = '\0';
    return 0;
}

int butler_session_describe(const struct butler_map *map, const char *path, struct butler_file_info *info, struct butler_error *err)
{
    struct cursor cursor = {.path = path, .data = map->data, .size = map->size};
    struct file_header header = {0};
    _Static_assert(sizeof info->policy >= sizeof((struct butler_policy *)NULL)->text, "a policy's text fits");
    int code = read_header(&cursor, &header, err);
    if (code == 0)
        code = read_policy(&cursor, &header, info->policy, err);
    if (code < 0)
        return code;
    info->model_fingerprint = header.fingerprint;
    info->model_sampled = cursor.sampled;
    info->n_layers = header.n_layers;
    info->n_kv_heads = header.n_kv_heads;
    info->head_dim = header.head_dim;
    info->n_tokens = header.n_past;
    info->n_ctx = header.n_ctx;
    info->kv_type = header.kv_type;
    return 0;
}

/* Whether the saved text can go on in a context of n_ctx tokens (0: that of the header). */
static int check_context(const char *path, const struct file_header *header, const struct butler_model *model, int n_ctx,
                         struct butler_error *err)
{
    if (n_ctx == 0)
        return 0;
    if (n_ctx < header->n_past)
        return butler_fail(err, BUTLER_ERROR_LENGTH, "%s: has %d tokens, more than a context of %d holds", path, header->n_past,
                           n_ctx);
    if (butler_long_context(model, n_ctx) != butler_long_context(model, header->n_ctx))
        return butler_fail(err, BUTLER_ERROR_LENGTH,
                           "%s: saved in a context of %d; on the other side of %d tokens than that the model rotates keys by other "
                           "angles, which a context of %d would need",
                           path, header->n_ctx, model->rope_original_ctx, n_ctx);
    return 0;
}

/* positions are a head's text positions, order its slots by ascending position: anything else would read elsewhere. */
static int check_positions(const void *positions, const void *order, int n, int n_past, const char *path, struct butler_error *err)
{
    int32_t last = -1;
    for (int i = 0; i < n; i++) {
        int32_t position = -1;
        uint32_t slot;
        memcpy(&slot, (const unsigned char *)order + (size_t)i * sizeof slot, sizeof slot);
        if (slot < (uint32_t)n)
            memcpy(&position, (const unsigned char *)positions + slot * sizeof position, sizeof position);
        if (position <= last || position >= n_past)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the order of the cache is not one (slot %d)", path, i);
        last = position;
    }
    return 0;
}

static int read_head(struct cursor *cursor, const struct butler_session *session, struct butler_kv *kv, int layer, int kv_head,
                     int n, struct butler_error *err)
{
    struct butler_kv_head *head = butler_kv_at(kv, layer, kv_head);
    const size_t slots = (size_t)n;
    const void *from;
    if (head->positions) {
        const void *positions = take(cursor, slots * sizeof *head->positions, "the positions of a head", err);
        if (!positions || !(from = take(cursor, slots * sizeof *head->order, "the order of a head", err)) ||
            check_positions(positions, from, n, session->n_past, cursor->path, err) < 0)
            return BUTLER_ERROR_FORMAT;
        kv->backend->upload(kv->backend, head->positions, positions, slots * sizeof *head->positions);
        kv->backend->upload(kv->backend, head->order, from, slots * sizeof *head->order);
    }
    if (head->value_norms) {
        if (!(from = take(cursor, slots * sizeof *head->value_norms, "the value norms of a head", err)))
            return BUTLER_ERROR_FORMAT;
        kv->backend->upload(kv->backend, head->value_norms, from, slots * sizeof *head->value_norms);
    }
    const int window = kv == &session->kv ? session->model->layers[layer].window : 0;
    int32_t first = 0;
    if (window > 0) {
        if (!(from = take(cursor, sizeof first, "the first slot of a head", err)))
            return BUTLER_ERROR_FORMAT;
        memcpy(&first, from, sizeof first);
    }
    if (first < 0 || first > n || first % BUTLER_EXTENT_TOKENS || (first > 0 && first > butler_kv_window_start(n, window)))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: layer %d, KV head %d begins at token %d of %d", cursor->path, layer,
                           kv_head, first, n);
    const unsigned char *rows = take(cursor, (slots - (size_t)first) * 2 * kv->row_bytes, "the rows of a head", err);
    if (!rows)
        return BUTLER_ERROR_FORMAT;
    for (int slot = first; slot < n; slot += BUTLER_PAGE, rows += kv->page_bytes)
        kv->backend->upload(kv->backend, butler_kv_row_address(kv, head, slot), rows,
                            2 * kv->row_bytes * (size_t)BUTLER_MIN(n - slot, BUTLER_PAGE));
    if (butler_backend_check(kv->backend, err) < 0)
        return BUTLER_ERROR_IO;
    if (kv->record_slots > 0 && !kv->records_off) {
        const size_t bytes = (size_t)BUTLER_CEIL_DIV(n, kv->record_slots) * kv->record_bytes;
        if (!(from = take(cursor, bytes, "the records of a head", err)))
            return BUTLER_ERROR_FORMAT;
        kv->backend->upload(kv->backend, head->records, from, bytes);
    }
    if (head->state) {
        if (!(from = take(cursor, kv->state_bytes, "the state of a head", err)))
            return BUTLER_ERROR_FORMAT;
        kv->backend->upload(kv->backend, head->state, from, kv->state_bytes);
    }
    return 0;
}

/* All heads of a layer have the same number of slots; each says so, and it is checked before any row is read. */
static int read_layer(struct cursor *cursor, const struct butler_session *session, struct butler_kv *kv, int layer,
                      struct butler_error *err)
{
    const bool keeps_all = session->policy.method != BUTLER_EVICT || kv != &session->kv;
    int32_t n = 0;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        const void *from = take(cursor, sizeof n, "the size of a head", err);
        int32_t n_head;
        if (!from)
            return BUTLER_ERROR_FORMAT;
        memcpy(&n_head, from, sizeof n_head);
        if (n_head < 0 || n_head > session->n_past || (h > 0 && n_head != n) || (keeps_all && n_head != session->n_past))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: layer %d, KV head %d claims %d tokens at byte %zu", cursor->path,
                               layer, h, n_head, cursor->at - sizeof n);
        if (h == 0 && n_head > 0 && butler_kv_grow(kv, layer, n_head, err) < 0)
            return BUTLER_ERROR_FORMAT;
        n = n_head;
        if (read_head(cursor, session, kv, layer, h, n, err) < 0)
            return BUTLER_ERROR_FORMAT;
    }
    return 0;
}

static int read_predict(struct cursor *cursor, const struct butler_session *session, struct butler_error *err)
{
    struct butler_predict *predict = session->predict;
    const uint64_t own = cursor->sampled ? predict->predictor->sampled_fingerprint : predict->predictor->fingerprint;
    uint64_t fingerprint;
    const void *from = take(cursor, sizeof fingerprint, "the predictor's fingerprint", err);
    if (!from)
        return BUTLER_ERROR_FORMAT;
    memcpy(&fingerprint, from, sizeof fingerprint);
    if (fingerprint != own)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: saved with the predictor %016llx; the model now has %016llx",
                           cursor->path, (unsigned long long)fingerprint, (unsigned long long)own);
    return predict->predictor->sizes.version == 1 ? read_layer(cursor, session, &predict->kv, 0, err) : 0;
}

/* n_ctx: of the session that was saved, whose lists have a bit for each slot. Bits beyond the text are no harm: a list is made of
 * those within it. */
static int read_lists(struct cursor *cursor, struct butler_session *session, int n_ctx, struct butler_error *err)
{
    struct butler_selection *selection = &session->selection;
    const size_t n_layers = (size_t)session->shape.n_layers;
    const void *from;
    if (!(from = take(cursor, n_layers * sizeof *selection->at, "the steps that selected", err)))
        return BUTLER_ERROR_FORMAT;
    memcpy(selection->at, from, n_layers * sizeof *selection->at);
    for (size_t l = 0; l < n_layers; l++)
        if (selection->at[l] < 0 || selection->at[l] > session->n_past)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: layer %zu claims a selection at %d of %d tokens", cursor->path, l,
                               selection->at[l], session->n_past);
    const size_t n_lists = n_layers * (size_t)session->shape.n_heads, words = (size_t)BUTLER_CEIL_DIV(n_ctx, 64);
    const unsigned char *lists = take(cursor, n_lists * words * sizeof *selection->units, "the selections", err);
    if (!lists)
        return BUTLER_ERROR_FORMAT;
    const size_t n_bytes = BUTLER_MIN(words, (size_t)selection->words) * sizeof *selection->units; /* all that the text needs */
    for (size_t i = 0; i < n_lists; i++)
        session->engine->backend->upload(session->engine->backend, selection->units + i * selection->words,
                                         lists + i * words * sizeof *selection->units, n_bytes);
    return 0;
}

static int read_sparse_end(struct cursor *cursor, struct butler_session *session, struct butler_error *err)
{
    int32_t end;
    const void *from = take(cursor, sizeof end, "the end of what was read sparsely", err);
    if (!from)
        return BUTLER_ERROR_FORMAT;
    memcpy(&end, from, sizeof end);
    if (end < 0 || end > session->n_past)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: read sparsely up to token %d of %d", cursor->path, end, session->n_past);
    session->sparse_end = end;
    return 0;
}

static int read_session(struct cursor *cursor, struct butler_session *session, const struct file_header *header,
                        struct butler_error *err)
{
    const void *from = take(cursor, (size_t)header->n_past * sizeof(int32_t), "the tokens", err);
    if (!from)
        return BUTLER_ERROR_FORMAT;
    memcpy(session->tokens, from, (size_t)header->n_past * sizeof(int32_t));
    session->n_past = header->n_past;
    session->n_decoded = header->n_decoded;
    session->n_dense = header->n_dense;
    session->sparse_end = session->policy.prompt > 0 ? header->n_past : 0;
    session->n_observed = header->n_observed;
    session->evicted = (header->flags & EVICTED) != 0;
    session->observed_more = (header->flags & OBSERVED_MORE) != 0;
    session->n_skipped = header->flags >> SKIPPED_BITS;
    session->steered = (header->flags & STEERED) != 0;
    session->stop = (header->flags & STOP) != 0;
    if (header->flags & GUIDED)
        butler_plan_guide(&session->policy.plan);
    if (butler_session_has_skipped(session, &session->policy)) /* another budget had been set */
        return butler_fail(err, BUTLER_ERROR_ARGUMENT,
                           "%s: saved under a larger budget than that of %.150s, which has not observed all that it goes by",
                           cursor->path, session->policy.text);
    if (header->has_logits) {
        if (!(from = take(cursor, (size_t)header->n_vocab * sizeof(float), "the logits", err)))
            return BUTLER_ERROR_FORMAT;
        memcpy(session->logits, from, (size_t)header->n_vocab * sizeof(float));
        session->has_logits = true;
    }
    for (int l = 0; l < session->kv.n_layers; l++)
        if (read_layer(cursor, session, &session->kv, l, err) < 0)
            return BUTLER_ERROR_FORMAT;
    butler_session_release_windows(session);
    const bool sparse = (header->flags & SPARSE) != 0;
    if (sparse && !(session->policy.prompt > 0)) /* which has no lists */
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: impossible flags in the header", cursor->path);
    if ((session->predict && read_predict(cursor, session, err) < 0) ||
        ((session->policy.every > 1 || sparse) && read_lists(cursor, session, header->n_ctx, err) < 0) ||
        (sparse && read_sparse_end(cursor, session, err) < 0))
        return BUTLER_ERROR_FORMAT;
    if (cursor->at != cursor->size)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes too many at byte %zu", cursor->path, cursor->size - cursor->at,
                           cursor->at);
    return 0;
}

/* Closes the map. path: what errors call the file. */
/* What was not observed, for no step of the saved context could evict, cannot be made up for where one of the new context can. */
static int check_observed(const char *path, const struct file_header *header, const struct butler_policy *policy, bool was_idle,
                          int n_ctx, int n_layers, struct butler_error *err)
{
    if (!was_idle || butler_policy_idles(policy, n_layers, n_ctx) || policy->plan.observe[1] == 0 ||
        header->n_observed == header->n_past)
        return 0;
    return butler_fail(
        err, BUTLER_ERROR_LENGTH,
        "%s: saved with a context of %d, which the budget of %.150s covers: no attention was observed, which a context "
        "of %d needs",
        path, header->n_ctx, policy->text, n_ctx);
}

static struct butler_session *restore(struct butler_engine *engine, struct butler_map *map, const char *path, int n_ctx,
                                      struct butler_error *err)
{
    struct butler_session *session = NULL;
    struct butler_policy policy;
    struct file_header header = {0};
    char text[sizeof policy.text];
    struct cursor cursor = {.path = path, .data = map->data, .size = map->size};
    if (read_header(&cursor, &header, err) < 0 || check_model(&cursor, &header, engine->model, err) < 0 ||
        check_precision(&cursor, &header, engine, err) < 0 || read_policy(&cursor, &header, text, err) < 0)
        goto fail;
    if (butler_policy_parse(engine, text, &policy, err) < 0 || check_context(path, &header, engine->model, n_ctx, err) < 0)
        goto fail;
    const struct butler_session_params params = {
        .n_ctx = n_ctx ? n_ctx : header.n_ctx, .kv_type = (enum butler_kv_type)header.kv_type, .policy = text, .seed = header.seed};
    const int n_layers = engine->model->hp.n_layers;
    const bool was_idle = header.n_past > 0 && butler_policy_idles(&policy, n_layers, header.n_ctx);
    if (check_observed(path, &header, &policy, was_idle, params.n_ctx, n_layers, err) < 0)
        goto fail;
    session = butler_session_make(engine, &policy, &params, err);
    if (!session)
        goto fail;
    butler_session_rest(session);
    if (header.hadamard != session->kv.hadamard) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: its keys are stored in another way than today's: read the text again", path);
        goto fail;
    }
    session->kv.records_off = session->kv.prompt_records && header.record_slots == 0;
    if ((header.record_slots != session->kv.record_slots && !session->kv.records_off) ||
        header.record_bytes != session->kv.record_bytes) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the metric's records have another size than today's", path);
        goto fail;
    }
    if (read_session(&cursor, session, &header, err) < 0 || butler_map_check(map, path, err) < 0)
        goto fail;
    butler_map_close(map);
    if (was_idle && !session->policy.plan.idle)
        butler_session_summarise(session, 0, session->n_past);
    if (!session->failed)
        return session;
    butler_session_fault(session, err);
    butler_session_free(session);
    return NULL;
fail:
    butler_map_close(map);
    butler_session_free(session);
    return NULL;
}

struct butler_session *butler_session_restore(struct butler_engine *engine, const char *path, int n_ctx, struct butler_error *err)
{
    struct butler_map map;
    if (BUTLER_IS_NULL(engine, err) || BUTLER_IS_NULL(path, err) || butler_map_open(&map, path, err) < 0)
        return NULL;
    return restore(engine, &map, path, n_ctx, err);
}

struct butler_session *butler_session_restore_fd(struct butler_engine *engine, int fd, int n_ctx, struct butler_error *err)
{
    char name[32];
    struct butler_map map;
    snprintf(name, sizeof name, "file descriptor %d", fd);
    if (BUTLER_IS_NULL(engine, err) || butler_map_open_fd(&map, fd, name, err) < 0)
        return NULL;
    return restore(engine, &map, name, n_ctx, err);
}
