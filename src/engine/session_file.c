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
 *   lists    where the policy has every= above 1: what the layers go by, int32 at[n_layers] and uint64 units[n_layers]
 *            [n_heads][words] of struct butler_selection
 *   digest   XXH3-64 of all bytes before it
 */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "engine/predict.h"
#include "engine/session.h"

static const char magic[8] = "butlerS2";

struct file_header {
    char magic[8];
    uint64_t fingerprint, seed;
    int32_t n_ctx, kv_type, n_past, n_decoded, n_dense, n_observed, evicted, has_logits, n_policy, n_vocab;
    int32_t n_layers, n_kv_heads, head_dim, record_slots;
    uint64_t record_bytes;
};

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
        code = butler_write(writer, host, m, err);
    }
    return code;
}

static int write_head(struct butler_writer *writer, const struct butler_kv *kv, const struct butler_kv_head *head, bool windowed,
                      struct butler_error *err)
{
    const int32_t n = head->n_slots, first = head->n_released * BUTLER_EXTENT_TOKENS;
    int code = butler_write(writer, &n, sizeof n, err);
    if (code == 0 && head->positions)
        code = butler_write(writer, head->positions, (size_t)n * sizeof *head->positions, err);
    if (code == 0 && head->order)
        code = butler_write(writer, head->order, (size_t)n * sizeof *head->order, err);
    if (code == 0 && head->value_norms)
        code = write_device(writer, kv->backend, head->value_norms, (size_t)n * sizeof *head->value_norms, err);
    if (code == 0 && windowed)
        code = butler_write(writer, &first, sizeof first, err);
    for (int slot = first; slot < n && code == 0; slot += BUTLER_PAGE)
        code = write_device(writer, kv->backend, butler_kv_key_row(kv, head, (uint32_t)slot),
                            2 * kv->row_bytes * (size_t)BUTLER_MIN(n - slot, BUTLER_PAGE), err);
    if (code == 0 && kv->record_slots > 0 && !kv->records_off)
        code =
            write_device(writer, kv->backend, head->records, (size_t)BUTLER_CEIL_DIV(n, kv->record_slots) * kv->record_bytes, err);
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
    if (session->policy.every <= 1)
        return 0;
    const int code = butler_write(writer, selection->at, (size_t)session->shape.n_layers * sizeof *selection->at, err);
    return code < 0 ? code : write_device(writer, session->engine->backend, selection->units, list_bytes(session), err);
}

int butler_session_save(const struct butler_session *session, const char *path, struct butler_error *err)
{
    if (!session || !path)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "no session to save, or no path to save it to");
    const struct butler_kv *kv = &session->kv;
    struct butler_writer writer;
    struct file_header header = {
        .fingerprint = session->model->fingerprint,
        .seed = session->seed,
        .n_ctx = session->n_ctx,
        .kv_type = (int32_t)session->kv_type,
        .n_past = session->n_past,
        .n_decoded = session->n_decoded,
        .n_dense = session->n_dense,
        .n_observed = session->n_observed,
        .evicted = session->evicted,
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
    if (session->failed)
        return butler_fail(err, BUTLER_ERROR_NUMERIC, "%s: a session that ended with an error cannot be saved", path);
    int code = butler_writer_open(&writer, path, true, err);
    if (code < 0)
        return code;
    if ((code = butler_write(&writer, &header, sizeof header, err)) < 0 ||
        (code = butler_write(&writer, session->policy.text, (size_t)header.n_policy, err)) < 0 ||
        (code = butler_write(&writer, session->tokens, (size_t)session->n_past * sizeof *session->tokens, err)) < 0 ||
        (session->has_logits && (code = butler_write(&writer, session->logits, (size_t)header.n_vocab * sizeof(float), err)) < 0))
        goto fail;
    for (int i = 0; i < kv->n_layers * kv->n_kv_heads; i++)
        if ((code = write_head(&writer, kv, &kv->heads[i], session->model->layers[i / kv->n_kv_heads].window > 0, err)) < 0)
            goto fail;
    if ((code = write_predict(&writer, session->predict, err)) < 0 || (code = write_lists(&writer, session, err)) < 0)
        goto fail;
    const uint64_t digest = butler_writer_digest(&writer);
    if ((code = butler_write(&writer, &digest, sizeof digest, err)) < 0 || (code = butler_writer_commit(&writer, err)) < 0)
        goto fail;
    return 0;
fail:
    butler_writer_abort(&writer);
    return code;
}

/* ----------------------------------------------------------------------------------------------- restoring */

/* A cursor over the mapped file. Running past its end is remembered: `take` then gives NULL for good. */
struct cursor {
    const char *path;
    const unsigned char *data;
    size_t size, at;
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

static int check_header(const struct file_header *header, const struct butler_model *model, const char *path,
                        struct butler_error *err)
{
    const struct butler_hparams *hp = &model->hp;
    if (memcmp(header->magic, magic, sizeof magic) != 0)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: not a session file of this version (byte 0)", path);
    if (header->fingerprint != model->fingerprint)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: saved with another model than %s", path, model->path);
    if (header->n_ctx < 1 || header->n_past < 0 || header->n_past > header->n_ctx || header->n_decoded < 0 ||
        header->n_decoded > header->n_past || header->n_dense < 0 || header->n_dense > header->n_past || header->n_observed < 0 ||
        header->n_observed > header->n_past || (header->evicted != 0 && header->evicted != 1) || header->kv_type < 0 ||
        header->kv_type >= BUTLER_N_KV_TYPES || header->n_policy < 1 ||
        header->n_policy >= (int)sizeof((struct butler_policy *)NULL)->text || header->n_vocab != hp->n_vocab ||
        header->n_layers != hp->n_layers || header->n_kv_heads != hp->n_kv_heads || header->head_dim != hp->head_dim)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: impossible sizes in the header", path);
    return 0;
}

/* positions are a head's text positions, order its slots by ascending position: anything else would read elsewhere. */
static int check_positions(const struct butler_kv_head *head, int n, int n_past, const char *path, struct butler_error *err)
{
    for (int i = 0; i < n; i++) {
        const uint32_t slot = head->order[i];
        if (slot >= (uint32_t)n || head->positions[slot] < 0 || head->positions[slot] >= n_past ||
            (i > 0 && head->positions[slot] <= head->positions[head->order[i - 1]]))
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the order of the cache is not one (slot %d)", path, i);
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
        if (!(from = take(cursor, slots * sizeof *head->positions, "the positions of a head", err)))
            return BUTLER_ERROR_FORMAT;
        memcpy(head->positions, from, slots * sizeof *head->positions);
        if (!(from = take(cursor, slots * sizeof *head->order, "the order of a head", err)))
            return BUTLER_ERROR_FORMAT;
        memcpy(head->order, from, slots * sizeof *head->order);
        if (check_positions(head, n, session->n_past, cursor->path, err) < 0)
            return BUTLER_ERROR_FORMAT;
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
        kv->backend->upload(kv->backend, butler_kv_key_row(kv, head, (uint32_t)slot), rows,
                            2 * kv->row_bytes * (size_t)BUTLER_MIN(n - slot, BUTLER_PAGE));
    if (kv->record_slots > 0 && !kv->records_off) {
        const size_t bytes = (size_t)BUTLER_CEIL_DIV(n, kv->record_slots) * kv->record_bytes;
        if (!(from = take(cursor, bytes, "the records of a head", err)))
            return BUTLER_ERROR_FORMAT;
        kv->backend->upload(kv->backend, head->records, from, bytes);
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
        if (h == 0 && n_head > 0 && butler_kv_grow(kv, layer, n_head, 0, err) < 0)
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
    uint64_t fingerprint;
    const void *from = take(cursor, sizeof fingerprint, "the predictor's fingerprint", err);
    if (!from)
        return BUTLER_ERROR_FORMAT;
    memcpy(&fingerprint, from, sizeof fingerprint);
    if (fingerprint != predict->predictor->fingerprint)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: saved with the predictor %016llx; the model now has %016llx",
                           cursor->path, (unsigned long long)fingerprint, (unsigned long long)predict->predictor->fingerprint);
    return predict->predictor->sizes.version == 1 ? read_layer(cursor, session, &predict->kv, 0, err) : 0;
}

/* Bits beyond the text are no harm: a list is made of those within it. */
static int read_lists(struct cursor *cursor, struct butler_session *session, struct butler_error *err)
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
    if (!(from = take(cursor, list_bytes(session), "the selections", err)))
        return BUTLER_ERROR_FORMAT;
    session->engine->backend->upload(session->engine->backend, selection->units, from, list_bytes(session));
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
    session->n_observed = header->n_observed;
    session->evicted = header->evicted;
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
    if ((session->predict && read_predict(cursor, session, err) < 0) ||
        (session->policy.every > 1 && read_lists(cursor, session, err) < 0))
        return BUTLER_ERROR_FORMAT;
    if (cursor->at != cursor->size)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes too many at byte %zu", cursor->path, cursor->size - cursor->at,
                           cursor->at);
    return 0;
}

struct butler_session *butler_session_restore(struct butler_engine *engine, const char *path, struct butler_error *err)
{
    struct butler_session *session = NULL;
    struct butler_map map = {0};
    struct butler_policy policy;
    struct file_header header;
    char text[sizeof policy.text];
    uint64_t digest;
    const void *from;
    if (!engine || !path) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "no engine to restore a session for, or no path");
        return NULL;
    }
    if (butler_map_open(&map, path, err) < 0)
        return NULL;
    struct cursor cursor = {path, map.data, map.size, 0};
    if (map.size < sizeof header + sizeof digest) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %zu bytes are too few for a session", path, map.size);
        goto fail;
    }
    cursor.size -= sizeof digest;
    memcpy(&header, take(&cursor, sizeof header, "the header", err), sizeof header);
    memcpy(&digest, map.data + cursor.size, sizeof digest);
    if (check_header(&header, engine->model, path, err) < 0)
        goto fail;
    if (digest != XXH3_64bits(map.data, cursor.size)) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: corrupt: the checksum at byte %zu does not match", path, cursor.size);
        goto fail;
    }
    if (!(from = take(&cursor, (size_t)header.n_policy, "the policy", err)))
        goto fail;
    memcpy(text, from, (size_t)header.n_policy);
    text[header.n_policy] = '\0';
    if (butler_policy_parse(engine, text, &policy, err) < 0)
        goto fail;
    const struct butler_session_params params = {
        .n_ctx = header.n_ctx, .kv_type = (enum butler_kv_type)header.kv_type, .policy = text, .seed = header.seed};
    session = butler_session_make(engine, &policy, &params, err);
    if (!session)
        goto fail;
    session->kv.records_off = session->kv.prompt_records && header.record_slots == 0;
    if ((header.record_slots != session->kv.record_slots && !session->kv.records_off) ||
        header.record_bytes != session->kv.record_bytes) {
        butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the metric's records have another size than today's", path);
        goto fail;
    }
    if (read_session(&cursor, session, &header, err) < 0)
        goto fail;
    butler_map_close(&map);
    return session;
fail:
    butler_map_close(&map);
    butler_session_free(session);
    return NULL;
}
