/* What a session takes from the library and gives to it. See library.h. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "engine/library.h"
#include "engine/prefix.h"

enum {
    MOST = BUTLER_BLOCK_MOST,
    LEAST = 8,      /* tokens that are worth a file's being read */
    LEAST_NEW = 32, /* that the end of a text must have beyond what is kept, to be worth a file */
    ROW_BITS = 2,   /* to be raised when the rows that a prompt gives change in any bit */
};

/* ------------------------------------------------------------------------------------------------- the kind */

static void name_kind(struct butler_shelf *shelf, const struct butler_session *session)
{
    static const char *const types[BUTLER_N_KV_TYPES] = {
        [BUTLER_KV_F16] = "f16", [BUTLER_KV_F32] = "f32", [BUTLER_KV_Q8_0] = "q8_0"};
    const struct butler_backend *backend = session->engine->backend;
    const struct butler_metric_shape *shape = &session->shape;
    char text[256 + sizeof session->policy.text];
    const int n =
        snprintf(text, sizeof text, "%d %016llx %s %d %d %d long %d unrotated %d %s %s%s%s%s%s", ROW_BITS,
                 (unsigned long long)shelf->fingerprint, types[session->kv_type], shape->n_layers, shape->n_kv_heads,
                 shape->head_dim, session->rope_freq != session->model->rope_freq, session->policy.rope_in_cache, backend->name,
                 backend->isa, backend->activation_bits == 8 ? " activations 8" : "", session->kv.hadamard ? " hadamard" : "",
                 session->policy.prompt > 0 ? " " : "", session->policy.prompt > 0 ? session->policy.text : "");
    const XXH128_hash_t hash = XXH3_128bits(text, (size_t)n);
    shelf->kind = (struct butler_block_id){hash.high64, hash.low64};
    snprintf(shelf->kind_name, sizeof shelf->kind_name, "%016llx-%s-%016llx", (unsigned long long)shelf->fingerprint,
             types[session->kv_type], (unsigned long long)hash.low64);
}

int butler_session_use_library(struct butler_session *session, struct butler_library *library, struct butler_error *err)
{
    uint64_t fingerprint;
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (!library) {
        butler_shelf_free(session->shelf);
        session->shelf = NULL;
        return 0;
    }
    const int code = butler_model_fingerprint(session->model, &fingerprint, err);
    struct butler_shelf *shelf = code == 0 ? butler_alloc(sizeof *shelf, err) : NULL;
    if (!shelf)
        return code < 0 ? code : BUTLER_ERROR_MEMORY;
    shelf->fingerprint = fingerprint;
    name_kind(shelf, session);
    butler_shelf_free(session->shelf);
    session->shelf = shelf;
    shelf->library = library;
    butler_library_use(library, 1);
    return 0;
}

void butler_shelf_free(struct butler_shelf *shelf)
{
    if (shelf)
        butler_library_use(shelf->library, -1);
    free(shelf);
}

/* -------------------------------------------------------------------------------------------------- finding */

struct butler_block_id butler_shelf_root(const struct butler_session *session)
{
    const struct {
        struct butler_block_id kind;
        uint64_t salt;
    } root = {session->shelf->kind, session->prefix_salt};
    if (session->prefix_salt == 0)
        return session->shelf->kind;
    const XXH128_hash_t hash = XXH3_128bits(&root, sizeof root);
    return (struct butler_block_id){hash.high64, hash.low64};
}

/* Whether a block that was opened is of this session's kind, and of this place of the text. */
static bool fits(const struct butler_session *session, const struct butler_block_file *block, int first)
{
    const struct butler_kv *kv = &session->kv;
    const struct butler_block_header *header = &block->header;
    return butler_block_same(&header->kind, &session->shelf->kind) && header->first == first &&
           header->n_chunks == kv->n_layers * kv->n_kv_heads &&
           header->chunk_bytes == (uint64_t)header->n * 2 * (uint64_t)kv->row_bytes;
}

/* Opens a file of the session's kind; false: there is none that can be used. */
static bool open_fitting(const struct butler_session *session, const struct butler_library_file *file, int first,
                         struct butler_block_file *block)
{
    struct butler_library *library = session->shelf->library;
    struct butler_error err;
    if (!butler_library_open_block(library, file, block))
        return false;
    if (fits(session, block, first))
        return true;
    butler_fail(&err, BUTLER_ERROR_FORMAT, "%s: has a block of another model or place", block->path);
    butler_library_drop(library, block->path, block->bytes, &err);
    butler_block_close(block);
    return false;
}

static int common(const struct butler_block_file *block, const int32_t *ids, int n)
{
    int same = 0;
    while (same < BUTLER_MIN(n, block->header.n) && block->tokens[same] == ids[same])
        same++;
    return same;
}

/* The blocks of the session's kind in the folder. */
struct index {
    struct butler_library_file *files;
    int n;
};

static bool is_after(const struct butler_library_file *file, const struct butler_block_id *parent)
{
    return !file->state && butler_block_same(&file->parent, parent);
}

/* Opens the block after `parent` that has most of ids[n] in common from its first token on. Returns how many; 0: none. */
static int open_closest(const struct butler_session *session, const struct index *index, const struct butler_block_id *parent,
                        int first, const int32_t *ids, int n, struct butler_block_file *block)
{
    const struct butler_block_id whole = butler_block_hash(parent, ids, BUTLER_MIN(n, MOST));
    const struct butler_library_file *best = NULL;
    int n_best = 0;
    for (int i = 0; i < index->n; i++)
        if (is_after(&index->files[i], parent) && butler_block_same(&index->files[i].id, &whole) &&
            open_fitting(session, &index->files[i], first, block)) {
            if ((n_best = common(block, ids, n)) == BUTLER_MIN(n, MOST))
                return n_best;
            butler_block_close(block);
        }
    n_best = 0;
    for (int i = 0; i < index->n; i++) {
        if (!is_after(&index->files[i], parent) || !open_fitting(session, &index->files[i], first, block))
            continue;
        const int same = common(block, ids, n);
        if (same > n_best) {
            best = &index->files[i];
            n_best = same;
        }
        butler_block_close(block);
    }
    return best && open_fitting(session, best, first, block) ? common(block, ids, n) : 0;
}

/* -------------------------------------------------------------------------------------------------- loading */

/* Extents [n_chunks][per_head] get the block's rows, which are read when they are wanted; takes the file. False: nothing done. */
static bool map(const struct butler_session *session, struct butler_block_file *block, const uint32_t *extents, int per_head)
{
    const struct butler_kv *kv = &session->kv;
    const struct butler_row_file file = {.fd = block->fd,
                                         .path = block->path,
                                         .at = butler_block_rows_at(&block->header),
                                         .chunk_bytes = block->header.chunk_bytes,
                                         .sums = block->sums,
                                         .n_chunks = block->header.n_chunks,
                                         .per_chunk = per_head};
    if (session->shelf->copies || !kv->backend->map_extents || !kv->backend->map_extents(kv->backend, kv->pool, extents, &file))
        return false;
    block->fd = -1;
    return true;
}

/* Extents [n_chunks][per_head] get the rows of the block's first n tokens, all of which are read and checked. */
static int copy(const struct butler_session *session, const struct butler_block_file *block, const uint32_t *extents, int n,
                struct butler_error *err)
{
    const struct butler_kv *kv = &session->kv;
    struct butler_library *library = session->shelf->library;
    const size_t bytes = (size_t)n * 2 * kv->row_bytes;
    int code = butler_library_reserve(library, (size_t)block->header.chunk_bytes, err) ? 0 : BUTLER_ERROR_MEMORY;
    for (int h = 0; h < block->header.n_chunks && code == 0; h++) {
        code = butler_block_read(block, h, library->buffer, err);
        for (size_t at = 0; at < bytes && code == 0; at += kv->extent_bytes) {
            kv->backend->upload(kv->backend, kv->pool + (size_t)*extents++ * kv->extent_bytes, library->buffer + at,
                                BUTLER_MIN(bytes - at, kv->extent_bytes));
            code = butler_backend_check(kv->backend, err);
        }
    }
    if (code == 0)
        library->info.bytes_read += block->bytes;
    return code;
}

/* The first n tokens of the block become the session's next ones: mapped, where the backend can do that. Otherwise all rows are
 * read and checked before the cache changes. */
static int load(struct butler_session *session, struct butler_block_file *block, int n, struct butler_error *err)
{
    struct butler_kv *kv = &session->kv;
    const int per_head = BUTLER_CEIL_DIV(n, BUTLER_EXTENT_TOKENS), n_extents = block->header.n_chunks * per_head;
    uint32_t *extents = butler_alloc((size_t)n_extents * sizeof *extents, err);
    int code = extents ? 0 : BUTLER_ERROR_MEMORY, n_taken = 0;
    while (n_taken < n_extents && code == 0 && (code = butler_pages_take(kv->extents, &extents[n_taken], err)) == 0)
        n_taken++;
    if (code == 0 && !map(session, block, extents, per_head))
        code = copy(session, block, extents, n, err);
    for (int i = 0; i < n_taken; i++) {
        const int e = i % per_head;
        if (code == 0)
            butler_kv_join(kv, &kv->heads[i / per_head], extents[i],
                           BUTLER_MIN(n - e * BUTLER_EXTENT_TOKENS, BUTLER_EXTENT_TOKENS));
        butler_pages_release(kv->extents, extents[i]);
    }
    free(extents);
    return code;
}

bool butler_shelf_start_again(struct butler_session *session)
{
    struct butler_shelf *shelf = session->shelf;
    if (!session->failed || session->kv.fault.code == 0 || !session->kv.lost || !shelf || shelf->copies)
        return false;
    shelf->copies = true;
    session->stats.n_shared = session->stats.n_library = 0;
    if (session->engine->prefix)
        butler_prefix_clear(session->engine->prefix);
    butler_session_truncate(session, 0, NULL);
    return !session->failed;
}

/* Walks down the chain of ids. Gives `loader`, the session or NULL, what lies behind its first `from` tokens. */
static int walk(const struct butler_session *session, const int32_t *ids, int most, struct butler_session *loader, int from)
{
    struct butler_shelf *shelf = session->shelf;
    struct butler_library *library = shelf->library;
    struct butler_block_id parent = butler_shelf_root(session);
    struct butler_block_file block;
    struct butler_error err;
    struct index index;
    int n_found = 0, n_same = MOST;
    if ((index.n = butler_library_files(library, shelf->kind_name, false, &index.files, NULL)) < 0)
        return 0;
    while (n_same == MOST && n_found < most) {
        n_same = open_closest(session, &index, &parent, n_found, ids + n_found, most - n_found, &block);
        if (n_same == 0)
            break;
        int code = n_same < LEAST ? BUTLER_ERROR_ARGUMENT : 0;
        if (code == 0 && loader) {
            futimens(block.fd, NULL); /* used now */
            if (n_found >= from && (code = load(loader, &block, n_same, &err)) < 0)
                butler_library_drop(library, block.path, block.bytes, &err);
        }
        parent = block.header.id;
        butler_block_close(&block);
        if (code < 0)
            break;
        n_found += n_same;
    }
    free(index.files);
    return n_found;
}

int butler_shelf_find(const struct butler_session *session, const int32_t *ids, int most)
{
    return session->shelf ? walk(session, ids, most, NULL, 0) : 0;
}

int butler_shelf_load(struct butler_session *session, const int32_t *ids, int most, int from)
{
    const double start = butler_seconds();
    const int n_found = walk(session, ids, most, session, from), n = BUTLER_MAX(n_found, from);
    session->stats.library_s += butler_seconds() - start;
    session->stats.n_library += (uint64_t)(n - from);
    return n;
}

/* -------------------------------------------------------------------------------------------------- keeping */

/* The rows of a block of the session's text, for butler_block_write. */
struct rows {
    const struct butler_session *session;
    int first, n;
};

static int copy_rows(void *user, int i, void *buffer, struct butler_error *err)
{
    const struct rows *rows = user;
    const struct butler_kv *kv = &rows->session->kv;
    for (int done = 0, m; done < rows->n; done += m) {
        m = BUTLER_MIN(rows->n - done, BUTLER_EXTENT_TOKENS);
        kv->backend->download(kv->backend, (unsigned char *)buffer + (size_t)done * 2 * kv->row_bytes,
                              butler_kv_row_address(kv, &kv->heads[i], rows->first + done), (size_t)m * 2 * kv->row_bytes);
    }
    return butler_backend_check(kv->backend, err);
}

/* How a text begins, as far as whole characters fit. */
static void quote(const struct butler_session *session, int first, int n, char *out, size_t n_out)
{
    struct butler_utf8 stream = {0};
    char piece[512];
    size_t used = 0;
    for (int i = 0; i < n; i++) {
        size_t n_bytes = 0;
        const char *bytes = butler_token_bytes(session->model, session->tokens[first + i], &n_bytes);
        if (!bytes || n_bytes > 128)
            break;
        const size_t m = butler_utf8_push(&stream, bytes, n_bytes, piece, sizeof piece);
        if (used + m >= n_out)
            break;
        memcpy(out + used, piece, m);
        used += m;
    }
    out[used] = 0;
}

/* Whether the end of a text, ids[n] behind `parent`, adds little to what is kept. */
static bool adds_little(const struct butler_session *session, const struct index *index, const struct butler_block_id *parent,
                        int first, int n)
{
    struct butler_block_file block;
    const int same = open_closest(session, index, parent, first, session->tokens + first, n, &block);
    if (same > 0)
        butler_block_close(&block);
    return same > 0 && n - same < LEAST_NEW;
}

/* Removes ends of shorter texts that the block [first, first + n) has, too. */
static void remove_shorter(const struct butler_session *session, const struct index *index, const struct butler_block_id *parent,
                           int first, int n)
{
    struct butler_library *library = session->shelf->library;
    for (int i = 0; i < index->n; i++) {
        struct butler_block_file block;
        if (!is_after(&index->files[i], parent) || !open_fitting(session, &index->files[i], first, &block))
            continue;
        if (block.header.n < n && common(&block, session->tokens + first, n) == block.header.n)
            butler_library_unlink(library, block.path, block.bytes);
        butler_block_close(&block);
    }
}

static int write_block(struct butler_session *session, const struct butler_block_id *parent, const struct butler_block_id *id,
                       int first, int n, const char *path, struct butler_error *err)
{
    const struct butler_kv *kv = &session->kv;
    struct butler_shelf *shelf = session->shelf;
    struct butler_library *library = shelf->library;
    struct rows rows = {session, first, n};
    struct butler_block_header header = {.kind = shelf->kind,
                                         .parent = *parent,
                                         .id = *id,
                                         .fingerprint = shelf->fingerprint,
                                         .kv_type = (int32_t)session->kv_type,
                                         .first = first,
                                         .n = n,
                                         .n_chunks = kv->n_layers * kv->n_kv_heads,
                                         .chunk_bytes = (uint64_t)n * 2 * (uint64_t)kv->row_bytes};
    snprintf(header.model, sizeof header.model, "%.*s", (int)sizeof header.model - 1, session->model->info.name);
    snprintf(header.isa, sizeof header.isa, "%.*s", (int)sizeof header.isa - 1, session->engine->backend->isa);
    quote(session, first, n, header.text, sizeof header.text);
    const uint64_t bytes = butler_block_file_bytes(&header);
    if (!butler_library_make_room(library, bytes)) {
        if (!library->full && bytes > library->max_bytes)
            butler_library_say(library, "%s: a file of %llu bytes is more than the %llu that it may have; what is read is not kept",
                               library->folder, (unsigned long long)bytes, (unsigned long long)library->max_bytes);
        else if (!library->full)
            butler_library_say(library, "%s: full: %llu bytes, the most it may have, are in use; what is read now is not kept",
                               library->folder, (unsigned long long)library->max_bytes);
        library->full = shelf->stopped = true;
        return BUTLER_ERROR_LENGTH;
    }
    if (!butler_library_reserve(library, (size_t)header.chunk_bytes, err))
        return BUTLER_ERROR_MEMORY;
    const int code = butler_block_write(path, &header, session->tokens + first, copy_rows, &rows, library->buffer, err);
    if (code == 0) {
        library->bytes += bytes;
        library->info.bytes_written += bytes;
    }
    return code;
}

/* Keeps [first, first + n) of the session's text. False: it is not kept, and nothing behind it can be. */
static bool keep(struct butler_session *session, const struct butler_block_id *parent, const struct butler_block_id *id, int first,
                 int n)
{
    struct butler_shelf *shelf = session->shelf;
    struct butler_library *library = shelf->library;
    struct butler_error err = {0};
    struct index index = {0};
    char name[BUTLER_BLOCK_NAME + 1];
    butler_block_name(parent, id, false, name);
    char *path = butler_library_path(library, shelf->kind_name, name), *folder = butler_library_path(library, "", shelf->kind_name);
    bool kept = path && folder && utimensat(AT_FDCWD, path, NULL, 0) == 0; /* there already, and used now */
    const int error = !kept && folder && mkdir(folder, 0700) != 0 && errno != EEXIST ? errno : 0;
    if (kept || !path || !folder)
        goto done;
    if ((index.n = butler_library_files(library, shelf->kind_name, false, &index.files, &err)) < 0)
        goto fail;
    if (n < MOST && adds_little(session, &index, parent, first, n))
        goto done;
    if (error)
        butler_fail(&err, BUTLER_ERROR_IO, "%s: %s", folder, strerror(error));
    else if (write_block(session, parent, id, first, n, path, &err) == 0) {
        remove_shorter(session, &index, parent, first, n);
        kept = true;
    }
fail:
    if (err.code < 0) {
        butler_library_say(library, "what is read now is not kept: %s", err.message);
        shelf->stopped = true;
    }
done:
    free(index.files);
    free(folder);
    free(path);
    return kept;
}

/* Whether the session still has all rows of [first, first + n). */
static bool holds(const struct butler_session *session, int first)
{
    const struct butler_kv *kv = &session->kv;
    for (int h = 0; h < kv->n_layers * kv->n_kv_heads; h++)
        if (kv->heads[h].n_released * BUTLER_EXTENT_TOKENS > first)
            return false;
    return true;
}

void butler_shelf_feed(struct butler_session *session, bool whole)
{
    struct butler_shelf *shelf = session->shelf;
    if (!shelf || shelf->stopped || session->evicted || session->failed || session->steered)
        return;
    struct butler_block_id parent = butler_shelf_root(session);
    for (int first = 0; first < shelf->n_known; first += MOST)
        parent = butler_block_hash(&parent, session->tokens + first, MOST);
    if (shelf->n_known > session->n_dense || (shelf->n_known > 0 && !butler_block_same(&parent, &shelf->known))) {
        shelf->n_known = 0; /* it has gone back, and reads another text */
        parent = butler_shelf_root(session);
    }
    for (int first = shelf->n_known, n; first < session->n_dense; first += n) {
        n = BUTLER_MIN(session->n_dense - first, MOST);
        const struct butler_block_id id = butler_block_hash(&parent, session->tokens + first, n);
        if ((n < MOST && !whole) || !holds(session, first) || !keep(session, &parent, &id, first, n) || n < MOST)
            return;
        parent = shelf->known = id;
        shelf->n_known = first + n;
    }
}

int butler_shelf_state_place(int n)
{
    return n % MOST < LEAST ? n - n % MOST : n;
}

/* The last place of a prompt at which all that was read is there. */
static int last_split(const struct butler_session *session, int prompt_end)
{
    const struct butler_policy *policy = &session->policy;
    const bool states = butler_shelf_has_states(session);
    if (!session->shelf || (policy->method != BUTLER_EVICT && !states) || policy->prefill_evict || prompt_end < 1)
        return prompt_end;
    return states ? butler_shelf_state_place(prompt_end - 1) : prompt_end - 1;
}

int butler_shelf_split(const struct butler_session *session, int prompt_end)
{
    const int last = last_split(session, prompt_end), keep_at = session->shelf ? session->shelf->keep_at : 0;
    if (session->n_past < keep_at && keep_at < last && butler_shelf_has_states(session))
        return keep_at;
    return session->n_past < last ? last : prompt_end;
}

void butler_shelf_keep(struct butler_session *session, int prompt_end, bool ends)
{
    const struct butler_shelf *shelf = session->shelf;
    if (!shelf)
        return;
    const int n = session->n_past;
    const bool last = n == last_split(session, prompt_end);
    butler_shelf_feed(session, ends || last);
    if (!butler_shelf_has_states(session))
        return;
    if (n == shelf->keep_at ||
        ((last || (ends && n < prompt_end)) && butler_shelf_find(session, session->tokens, n) == n)) /* with its rows */
        butler_shelf_keep_state(session);
}

int butler_session_keep_at(struct butler_session *session, int n, struct butler_error *err)
{
    if (BUTLER_IS_NULL(session, err))
        return BUTLER_ERROR_ARGUMENT;
    if (!session->shelf || n < 0)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, n < 0 ? "a text of %d tokens" : "a session without a library", n);
    session->shelf->keep_at = butler_shelf_state_place(n);
    return 0;
}
