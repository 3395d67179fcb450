/* What a metric has kept when it has read a text up to some token, for those that cannot make it again from stored rows: sums over
 * all queries of a prompt (h2o, softprune), keys that a predictor made of hidden states (tokenbutler, version 1). It is another for
 * every place of the text, so it is kept for few: where a document ends (butler_session_keep_at), where a prompt ends, where one
 * was interrupted. See library.h.
 *
 * The file is one of block_file.h. Its tokens are those behind the last whole block before the place; its chunks are one stream of
 * the records of all heads, their states, and rows of a predictor's own attention, in pieces of CHUNK bytes, the last one filled up
 * with zeros. Its id is the block's that would have these tokens, hashed with what the stream depends on beside KIND. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <xxhash.h>

#include "engine/library.h"
#include "engine/predict.h"

enum { MOST = BUTLER_BLOCK_MOST, CHUNK = 1 << 20 };

bool butler_shelf_has_states(const struct butler_session *session)
{
    const struct butler_policy *policy = &session->policy;
    const struct butler_plan *plan = &policy->plan;
    return session->shelf && policy->metric && !plan->idle && !policy->prefill_evict && !(policy->prompt > 0) &&
           (plan->own_text || plan->observe[0] == INT_MAX);
}

/* -------------------------------------------------------------------------------------------------- the name */

struct place {
    struct butler_block_id parent, id;
    int first, n; /* the last tokens of the text */
};

/* What the stream depends on: how the metric observes and keeps, and which layers do. Not the budget. */
static struct butler_block_id metric_id(const struct butler_session *session)
{
    const struct butler_policy *policy = &session->policy;
    const struct butler_kv *kv = &session->kv;
    char text[1024];
    int n = snprintf(text, sizeof text, "%s %d %d %d %zu %zu %016llx", policy->metric->name, policy->unit, policy->dense_layers,
                     kv->record_slots, kv->record_bytes, kv->state_bytes,
                     session->predict ? (unsigned long long)session->predict->predictor->fingerprint : 0ULL);
    for (int i = 0; i < BUTLER_METRIC_MAX_PARAMS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, " %a", policy->values[i]);
    const XXH128_hash_t hash = XXH3_128bits(text, (size_t)n);
    return (struct butler_block_id){hash.high64, hash.low64};
}

static struct place place_of(const struct butler_block_id *metric, const struct butler_block_id *parent, const int32_t *ids,
                             int first, int n)
{
    const struct butler_block_id tokens = butler_block_hash(parent, ids + first, n);
    const struct {
        struct butler_block_id tokens, metric;
    } all = {tokens, *metric};
    const XXH128_hash_t hash = XXH3_128bits(&all, sizeof all);
    return (struct place){*parent, {hash.high64, hash.low64}, first, n};
}

/* The place behind ids[n]. */
static struct place place_behind(const struct butler_session *session, const int32_t *ids, int n)
{
    const struct butler_block_id metric = metric_id(session);
    struct butler_block_id parent = butler_shelf_root(session);
    int first = 0;
    for (; n - first > MOST; first += MOST)
        parent = butler_block_hash(&parent, ids + first, MOST);
    return place_of(&metric, &parent, ids, first, n - first);
}

/* ------------------------------------------------------------------------------------------------ the stream */

struct stream {
    struct butler_backend *backend;
    struct butler_piece *pieces;
    int n;
    uint64_t bytes;
    size_t chunk;
};

static void add(struct stream *stream, void *address, size_t n_bytes)
{
    if (stream->pieces)
        stream->pieces[stream->n] = (struct butler_piece){address, n_bytes};
    stream->n++;
    stream->bytes += n_bytes;
}

static void add_all(struct stream *stream, const struct butler_session *session, int n)
{
    const struct butler_kv *kv = &session->kv, *own = session->predict ? &session->predict->kv : NULL;
    *stream = (struct stream){.backend = kv->backend, .pieces = stream->pieces};
    for (int h = 0; h < kv->n_layers * kv->n_kv_heads; h++) {
        if (kv->record_slots > 0)
            add(stream, kv->heads[h].records, (size_t)BUTLER_CEIL_DIV(n, kv->record_slots) * kv->record_bytes);
        if (kv->heads[h].state)
            add(stream, kv->heads[h].state, kv->state_bytes);
    }
    for (int h = 0; own && session->policy.plan.own_text && h < own->n_kv_heads; h++)
        for (int slot = 0; slot < n; slot += BUTLER_EXTENT_TOKENS)
            add(stream, butler_kv_row_address(own, &own->heads[h], slot),
                2 * own->row_bytes * (size_t)BUTLER_MIN(n - slot, BUTLER_EXTENT_TOKENS));
    stream->chunk = (size_t)BUTLER_MIN((stream->bytes + 63) / 64 * 64, (uint64_t)CHUNK);
}

/* pieces to be freed. The session has n tokens, and so has its predictor. */
static int make_stream(struct stream *stream, const struct butler_session *session, int n, struct butler_error *err)
{
    stream->pieces = NULL;
    add_all(stream, session, n);
    if (stream->bytes == 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s keeps nothing", session->policy.name);
    if (!(stream->pieces = butler_alloc((size_t)stream->n * sizeof *stream->pieces, err)))
        return BUTLER_ERROR_MEMORY;
    add_all(stream, session, n);
    return 0;
}

static int n_chunks(const struct stream *stream)
{
    return (int)BUTLER_CEIL_DIV(stream->bytes, stream->chunk);
}

/* Chunk i of the stream to or from the buffer. */
static int copy_chunk(const struct stream *stream, int i, unsigned char *buffer, bool load, struct butler_error *err)
{
    const uint64_t from = (uint64_t)i * stream->chunk, to = BUTLER_MIN(from + stream->chunk, stream->bytes);
    uint64_t at = 0;
    for (int p = 0; p < stream->n && at < to; at += stream->pieces[p++].n_bytes) {
        const uint64_t first = BUTLER_MAX(at, from), end = BUTLER_MIN(at + stream->pieces[p].n_bytes, to);
        unsigned char *device = (unsigned char *)stream->pieces[p].address + (first > at ? first - at : 0);
        if (first >= end)
            continue;
        if (load)
            stream->backend->upload(stream->backend, device, buffer + (first - from), (size_t)(end - first));
        else
            stream->backend->download(stream->backend, buffer + (first - from), device, (size_t)(end - first));
    }
    if (!load)
        memset(buffer + (to - from), 0, stream->chunk - (size_t)(to - from));
    return butler_backend_check(stream->backend, err);
}

static int write_chunk(void *stream, int i, void *buffer, struct butler_error *err)
{
    return copy_chunk(stream, i, buffer, false, err);
}

/* --------------------------------------------------------------------------------------------------- keeping */

static int write_state(struct butler_session *session, const struct place *place, const char *path, struct butler_error *err)
{
    struct butler_shelf *shelf = session->shelf;
    struct butler_library *library = shelf->library;
    struct stream stream;
    int code = make_stream(&stream, session, session->n_past, err);
    if (code < 0)
        return code;
    struct butler_block_header header = {.kind = shelf->kind,
                                         .parent = place->parent,
                                         .id = place->id,
                                         .fingerprint = shelf->fingerprint,
                                         .kv_type = (int32_t)session->kv_type,
                                         .first = place->first,
                                         .n = place->n,
                                         .n_chunks = n_chunks(&stream),
                                         .chunk_bytes = stream.chunk};
    snprintf(header.model, sizeof header.model, "%.*s", (int)sizeof header.model - 1, session->model->info.name);
    snprintf(header.isa, sizeof header.isa, "%.*s", (int)sizeof header.isa - 1, session->engine->backend->isa);
    snprintf(header.text, sizeof header.text, "%.*s", (int)sizeof header.text - 1, session->policy.text);
    const uint64_t bytes = butler_block_file_bytes(&header);
    if (!butler_library_make_room(library, bytes)) /* rows that find no room say so */
        code = BUTLER_ERROR_LENGTH;
    else if (!butler_library_reserve(library, stream.chunk, err))
        code = BUTLER_ERROR_MEMORY;
    else
        code = butler_block_write(path, &header, session->tokens + place->first, write_chunk, &stream, library->buffer, err);
    if (code == 0) {
        library->bytes += bytes;
        library->info.bytes_written += bytes;
    }
    free(stream.pieces);
    return code;
}

void butler_shelf_keep_state(struct butler_session *session)
{
    struct butler_shelf *shelf = session->shelf;
    struct butler_error err = {0};
    char name[BUTLER_BLOCK_NAME + 1];
    if (!butler_shelf_has_states(session) || shelf->stopped || session->evicted || session->failed || session->steered ||
        session->observed_more || session->n_past == 0 || session->n_dense != session->n_past || session->kv.records_off)
        return;
    const struct place place = place_behind(session, session->tokens, session->n_past);
    butler_block_name(&place.parent, &place.id, true, name);
    char *path = butler_library_path(shelf->library, shelf->kind_name, name),
         *folder = butler_library_path(shelf->library, "", shelf->kind_name);
    if (path && folder && utimensat(AT_FDCWD, path, NULL, 0) != 0) { /* otherwise it is there already, and used now */
        if (mkdir(folder, 0700) != 0 && errno != EEXIST)
            butler_fail(&err, BUTLER_ERROR_IO, "%s: %s", folder, strerror(errno));
        else
            write_state(session, &place, path, &err);
    }
    if (err.code < 0) {
        butler_library_say(shelf->library, "what is read now is not kept: %s", err.message);
        shelf->stopped = true;
    }
    free(folder);
    free(path);
}

/* --------------------------------------------------------------------------------------------------- finding */

/* Opens the state of this place; false: there is none that can be used. */
static bool open_state(const struct butler_session *session, const struct butler_library_file *file, const struct place *place,
                       const int32_t *ids, struct butler_block_file *block)
{
    struct butler_library *library = session->shelf->library;
    struct butler_error err;
    if (!butler_library_open_block(library, file, block))
        return false;
    const struct butler_block_header *header = &block->header;
    if (butler_block_same(&header->kind, &session->shelf->kind) && header->first == place->first && header->n == place->n &&
        memcmp(block->tokens, ids + place->first, (size_t)place->n * sizeof *ids) == 0)
        return true;
    butler_fail(&err, BUTLER_ERROR_FORMAT, "%s: has the state of another text than its name says", block->path);
    butler_library_drop(library, block->path, block->bytes, &err);
    butler_block_close(block);
    return false;
}

/* The places of ids[n] behind one parent. */
struct candidates {
    const int32_t *ids;
    struct butler_block_id metric, parent;
    int first, n;
};

/* The longest of them that has one of the files; 0: none. */
static int longest(const struct butler_session *session, const struct candidates *candidates,
                   const struct butler_library_file *files, int n_files)
{
    for (int n = candidates->n; n > 0; n--) {
        const struct place place = place_of(&candidates->metric, &candidates->parent, candidates->ids, candidates->first, n);
        for (int i = 0; i < n_files; i++) {
            struct butler_block_file block;
            if (!files[i].state || !butler_block_same(&files[i].id, &place.id) ||
                !butler_block_same(&files[i].parent, &place.parent) ||
                !open_state(session, &files[i], &place, candidates->ids, &block))
                continue;
            butler_block_close(&block);
            return place.first + n;
        }
    }
    return 0;
}

static bool is_a_parent(const struct butler_library_file *files, int n_files, const struct butler_block_id *parent)
{
    for (int i = 0; i < n_files; i++)
        if (files[i].state && butler_block_same(&files[i].parent, parent))
            return true;
    return false;
}

int butler_shelf_find_state(const struct butler_session *session, const int32_t *ids, int most)
{
    struct butler_library_file *files;
    struct candidates candidates = {.ids = ids, .metric = metric_id(session), .parent = butler_shelf_root(session)};
    int found = 0;
    const int n_files = butler_library_files(session->shelf->library, session->shelf->kind_name, false, &files, NULL);
    if (n_files < 0)
        return 0;
    for (; candidates.first < most; candidates.first += MOST) {
        candidates.n = BUTLER_MIN(most - candidates.first, MOST);
        if (is_a_parent(files, n_files, &candidates.parent))
            found = BUTLER_MAX(found, longest(session, &candidates, files, n_files));
        candidates.parent = butler_block_hash(&candidates.parent, ids + candidates.first, candidates.n);
    }
    free(files);
    return found;
}

static int load_chunks(struct butler_session *session, const struct butler_block_file *block, struct butler_error *err)
{
    struct butler_library *library = session->shelf->library;
    struct butler_predict *predict = session->policy.plan.own_text ? session->predict : NULL;
    struct stream stream;
    int code = predict ? butler_kv_grow(&predict->kv, 0, session->n_past, err) : 0;
    if (session->kv.records_off)
        butler_kv_begin_records(&session->kv);
    code = code < 0 ? code : make_stream(&stream, session, session->n_past, err);
    if (code < 0)
        return code;
    if (block->header.n_chunks != n_chunks(&stream) || block->header.chunk_bytes != stream.chunk)
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: has the state of another metric", block->path);
    else if (!butler_library_reserve(library, stream.chunk, err))
        code = BUTLER_ERROR_MEMORY;
    for (int i = 0; i < block->header.n_chunks && code == 0; i++) {
        code = butler_block_read(block, i, library->buffer, err);
        code = code < 0 ? code : copy_chunk(&stream, i, library->buffer, true, err);
    }
    free(stream.pieces);
    if (code == 0)
        library->info.bytes_read += block->bytes;
    return code;
}

bool butler_shelf_load_state(struct butler_session *session)
{
    struct butler_shelf *shelf = session->shelf;
    struct butler_block_file block;
    struct butler_error err = {0};
    const double start = butler_seconds();
    const struct place place = place_behind(session, session->tokens, session->n_past);
    struct butler_library_file file = {.parent = place.parent, .id = place.id, .state = true};
    memcpy(file.kind, shelf->kind_name, sizeof file.kind);
    butler_block_name(&place.parent, &place.id, true, file.name);
    if (!open_state(session, &file, &place, session->tokens, &block))
        return false;
    futimens(block.fd, NULL); /* used now */
    const int code = load_chunks(session, &block, &err);
    if (code < 0)
        butler_library_drop(shelf->library, block.path, block.bytes, &err);
    butler_block_close(&block);
    if (code == 0 && session->policy.plan.observe[0] > 0 && !session->policy.plan.guided)
        session->n_observed = session->n_past;
    session->stats.library_s += butler_seconds() - start;
    return code == 0;
}
