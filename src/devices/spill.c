/* See spill.h. Every operation that touches rows says first which: the lists of a decode step, the newest tokens, a window, or
 * where that cannot be known (a metric of somebody else's, an eviction) all rows of the layer. What several operations would do at
 * once is not offered: between the scores of a layer and its attention lies the fetching of what was selected. */
#include "devices/spill.h"

#include <stdlib.h>
#include <string.h>

struct pool {
    struct butler_frames *frames;
    unsigned char *addresses;
    size_t extent_bytes, piece_bytes, n_bytes;
    /* What the lists of a decode step want, all layers together: of the step under way, and of the last one. */
    uint64_t step_wanted, last_step_wanted;
    int layer;
    /* The layers of this cache up to this one have lists for the step at this position already. */
    const struct butler_kv *known;
    int known_layer, known_position;
    struct pool *next;
};

struct spill {
    struct butler_backend backend; /* first: a struct butler_backend * of it is one of this */
    struct butler_backend *inner;  /* only freed and copied: its functions run on the one above, which has all of its fields */
    struct butler_spill_params params;
    char *folder;
    struct pool *pools;
    struct butler_error fault; /* of an operation on memory */
};

static struct spill *spill_of(struct butler_backend *backend)
{
    return (struct spill *)backend;
}

static struct pool *pool_at(const struct butler_backend *backend, const void *address)
{
    const unsigned char *at = address;
    for (struct pool *pool = ((const struct spill *)backend)->pools; pool; pool = pool->next)
        if (at >= pool->addresses && at < pool->addresses + pool->n_bytes)
            return pool;
    return NULL;
}

/* -------------------------------------------------------------------------------------- operations on memory */

static void *spill_alloc_extents(struct butler_backend *backend, size_t extent_bytes, uint64_t n, struct butler_places *places,
                                 struct butler_error *err)
{
    struct spill *spill = spill_of(backend);
    struct pool *pool = butler_alloc(sizeof *pool, err);
    if (!pool)
        return NULL;
    const struct butler_frames_params params = {
        .extent_bytes = extent_bytes, .n_extents = n, .memory = spill->params.memory, .disk = spill->params.disk};
    pool->frames = butler_frames_new(&params, err);
    if (!pool->frames) {
        free(pool);
        return NULL;
    }
    pool->addresses = butler_frames_addresses(pool->frames);
    *places = *butler_frames_places(pool->frames);
    pool->extent_bytes = extent_bytes;
    pool->piece_bytes = extent_bytes / places->pieces;
    pool->n_bytes = (size_t)n * extent_bytes;
    pool->next = spill->pools;
    spill->pools = pool;
    return pool->addresses;
}

static void spill_free(struct butler_backend *backend, void *address, size_t n_bytes)
{
    struct pool *pool = pool_at(backend, address);
    if (!pool) {
        spill_of(backend)->inner->free(backend, address, n_bytes);
        return;
    }
    struct pool **at = &spill_of(backend)->pools;
    while (*at != pool)
        at = &(*at)->next;
    *at = pool->next;
    butler_frames_free(pool->frames);
    free(pool);
}

static void spill_discard(struct butler_backend *backend, void *address, size_t n_bytes)
{
    const struct pool *pool = pool_at(backend, address);
    if (!pool) {
        spill_of(backend)->inner->discard(backend, address, n_bytes);
        return;
    }
    const size_t first = (size_t)((unsigned char *)address - pool->addresses) / pool->extent_bytes;
    for (size_t i = 0; i < n_bytes / pool->extent_bytes; i++)
        butler_frames_discard(pool->frames, (uint32_t)(first + i));
}

static void want_bytes(const struct pool *pool, const void *address, size_t n_bytes)
{
    const size_t at = (size_t)((const unsigned char *)address - pool->addresses);
    for (size_t piece = at / pool->piece_bytes; piece * pool->piece_bytes < at + n_bytes; piece++)
        butler_frames_want(pool->frames, (uint32_t)piece, false);
}

/* Where the byte of an address lies, and up to *n bytes behind it. */
static unsigned char *open_bytes(const struct pool *pool, const void *address, size_t *n, bool write)
{
    const size_t at = (size_t)((const unsigned char *)address - pool->addresses), in = at % pool->piece_bytes;
    const uint32_t piece = (uint32_t)(at / pool->piece_bytes);
    *n = BUTLER_MIN(*n, pool->piece_bytes - in);
    if (write)
        butler_frames_dirty(pool->frames, piece);
    return butler_frames_at(pool->frames, piece) + in;
}

/* Moves bytes of which one or both ends are in pools. */
static void move(struct butler_backend *backend, void *to, const void *from, size_t n_bytes)
{
    const struct pool *pool_to = pool_at(backend, to), *pool_from = pool_at(backend, from), *pool = pool_to ? pool_to : pool_from;
    struct butler_fetched uncounted = {0};
    struct butler_error *fault = &spill_of(backend)->fault;
    if (pool_to && pool_from && pool_to != pool_from) {
        butler_fail(fault, BUTLER_ERROR_UNSUPPORTED, "rows are not copied between pools");
        return;
    }
    butler_frames_begin(pool->frames);
    if (pool_to)
        want_bytes(pool, to, n_bytes);
    if (pool_from)
        want_bytes(pool, from, n_bytes);
    if (butler_frames_fetch(pool->frames, &uncounted, fault) < 0)
        return;
    for (size_t done = 0, n; done < n_bytes; done += n) {
        unsigned char *target = (unsigned char *)to + done;
        const unsigned char *source = (const unsigned char *)from + done;
        n = n_bytes - done;
        if (pool_to)
            target = open_bytes(pool, target, &n, true);
        if (pool_from)
            source = open_bytes(pool, source, &n, false);
        memcpy(target, source, n);
    }
}

static void spill_upload(struct butler_backend *backend, void *to, const void *host, size_t n_bytes)
{
    if (pool_at(backend, to))
        move(backend, to, host, n_bytes);
    else
        spill_of(backend)->inner->upload(backend, to, host, n_bytes);
}

static void spill_download(struct butler_backend *backend, void *host, const void *from, size_t n_bytes)
{
    if (pool_at(backend, from))
        move(backend, host, from, n_bytes);
    else
        spill_of(backend)->inner->download(backend, host, from, n_bytes);
}

static void spill_copy(struct butler_backend *backend, void *to, const void *from, size_t n_bytes)
{
    if (pool_at(backend, to) || pool_at(backend, from))
        move(backend, to, from, n_bytes);
    else
        spill_of(backend)->inner->copy(backend, to, from, n_bytes);
}

static bool spill_map_extents(struct butler_backend *backend, const void *address, const uint32_t *extents,
                              const struct butler_row_file *file)
{
    const struct pool *pool = pool_at(backend, address);
    return pool && butler_frames_map(pool->frames, extents, file);
}

static int spill_check(struct butler_backend *backend, struct butler_error *err)
{
    struct butler_error *fault = &spill_of(backend)->fault;
    const int code = fault->code;
    if (code < 0)
        butler_fail(err, code, "%s", fault->message);
    fault->code = 0;
    return code;
}

static void spill_spilled(const struct butler_backend *backend, uint64_t *resident, uint64_t *on_disk, const char **method)
{
    *resident = *on_disk = 0;
    *method = NULL;
    for (const struct pool *pool = ((const struct spill *)backend)->pools; pool; pool = pool->next) {
        *resident += butler_frames_resident(pool->frames);
        *on_disk += butler_frames_written(pool->frames);
        *method = butler_frames_method(pool->frames);
    }
}

/* --------------------------------------------------------------------------------------- operations on a layer */

/* What an operation on a layer wants. frames NULL: the cache is another kind of memory, nothing has to be done. */
struct wants {
    struct butler_frames *frames;
    struct pool *pool;
    const struct butler_places *places;
    const struct butler_layer_state *state;
    bool scan;
};

/* False: the session's cache has failed, and no more is done for it. */
static bool begin(struct butler_backend *backend, const struct butler_layer_state *state, struct wants *wants)
{
    struct pool *pool = state->kv->places.frames ? pool_at(backend, state->kv->pool) : NULL;
    *wants = (struct wants){.frames = pool ? pool->frames : NULL, .pool = pool, .places = &state->kv->places, .state = state};
    if (pool)
        butler_frames_begin(pool->frames);
    return state->kv->fault.code == 0;
}

static uint32_t piece_of(const struct wants *wants, const struct butler_kv_head *head, uint32_t slot)
{
    return head->table[slot / BUTLER_EXTENT_TOKENS] * wants->places->pieces + slot % BUTLER_EXTENT_TOKENS / wants->places->tokens;
}

/* Slots [first, end) of a head. */
static void want_slots(const struct wants *wants, const struct butler_kv_head *head, int first, int end)
{
    const int tokens = wants->frames ? (int)wants->places->tokens : 1;
    first = BUTLER_MAX(first, head->n_released * BUTLER_EXTENT_TOKENS);
    for (int slot = first / tokens * tokens; slot < end && wants->frames; slot += tokens)
        butler_frames_want(wants->frames, piece_of(wants, head, (uint32_t)slot), wants->scan);
}

static void want_list(const struct wants *wants, const struct butler_kv_head *head, const uint32_t *slots, int n)
{
    uint32_t last = UINT32_MAX;
    for (int i = 0; i < n && wants->frames; i++) {
        const uint32_t piece = piece_of(wants, head, slots[i]);
        if (piece != last)
            butler_frames_want(wants->frames, piece, wants->scan);
        last = piece;
    }
}

/* Slots [first, n_slots) of all heads of a layer. */
static void want_layer(const struct wants *wants, int layer, int first)
{
    const struct butler_kv *kv = wants->state->kv;
    for (int h = 0; h < kv->n_kv_heads; h++) {
        const struct butler_kv_head *head = butler_kv_at(kv, layer, h);
        want_slots(wants, head, first, head->n_slots);
    }
}

/* Whether all of it is there. If not, the cache has failed. */
static bool fetch(const struct wants *wants)
{
    struct butler_fetched fetched = {0};
    if (!wants->frames)
        return true;
    const int code = butler_frames_fetch(wants->frames, &fetched, &wants->state->kv->fault);
    struct butler_traffic *traffic = wants->state->traffic;
    traffic->n_wanted += fetched.n_wanted;
    traffic->n_fetched += fetched.n_read;
    traffic->n_guessed += fetched.n_guessed;
    traffic->disk_bytes += fetched.bytes;
    traffic->disk_ns += fetched.ns;
    wants->state->kv->lost = code < 0 && fetched.lost;
    return code == 0;
}

/* Slots [first, n_slots) of all heads have been written. */
static void wrote(const struct wants *wants, int first)
{
    const struct butler_kv *kv = wants->state->kv;
    const int tokens = wants->frames ? (int)wants->places->tokens : 1;
    for (int h = 0; h < kv->n_kv_heads && wants->frames; h++) {
        const struct butler_kv_head *head = butler_kv_at(kv, wants->state->layer, h);
        for (int slot = first / tokens * tokens; slot < head->n_slots; slot += tokens)
            butler_frames_dirty(wants->frames, piece_of(wants, head, (uint32_t)slot));
    }
}

/* Of a plug-in it is not known which keys it looks at. */
static bool is_plugin(const struct butler_layer_state *state)
{
    return state->plan->metric && state->plan->metric->abi != 0;
}

static int n_slots_of(const struct butler_layer_state *state)
{
    return butler_kv_at(state->kv, state->layer, 0)->n_slots;
}

/* The first slot that is read when the newest n tokens are appended: metrics read the tokens of the records that these fall into.
 */
static int append_start(const struct butler_layer_state *state, int n)
{
    const int first = n_slots_of(state) - n;
    if (is_plugin(state) || state->kv->state_bytes > 0 || state->summarise_from < first)
        return 0;
    return butler_kv_record_start(state->kv, first);
}

static void spill_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                         int n)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    want_layer(&wants, state->layer, append_start(state, n));
    if (!fetch(&wants))
        return;
    spill_of(backend)->inner->append(backend, state, k, v, n);
    wrote(&wants, n_slots_of(state) - n);
}

static void spill_summarise(struct butler_backend *backend, const struct butler_layer_state *state, int first)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    wants.scan = true;
    want_layer(&wants, state->layer, is_plugin(state) || state->kv->state_bytes > 0 ? 0 : first);
    if (fetch(&wants))
        spill_of(backend)->inner->summarise(backend, state, first);
}

/* The first slot that the oldest of the newest n tokens sees. */
static int window_start(const struct butler_layer_state *state, int n, int window)
{
    const int before = n_slots_of(state) - n;
    return is_plugin(state) || window > before ? 0 : (before + 1 - window) / BUTLER_WINDOW_CHUNK * BUTLER_WINDOW_CHUNK;
}

static void spill_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out,
                               int n, int window, int observe_from)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    wants.scan = true;
    want_layer(&wants, state->layer, window_start(state, n, window));
    if (fetch(&wants))
        spill_of(backend)->inner->attend_block(backend, state, q, out, n, window, observe_from);
}

/* Keys that scoring reads: of metrics that keep no records of them. */
static void want_scored(const struct wants *wants)
{
    const struct butler_layer_state *state = wants->state;
    const struct butler_metric *metric = state->plan->metric;
    if (metric->earlier_layers)
        for (int l = 0; l < state->layer; l++)
            if (is_plugin(state) || l == 0 || l == state->layer - 1)
                want_layer(wants, l, 0);
    if (is_plugin(state) || (metric->reads_keys && (state->kv->record_slots == 0 || state->kv->state_bytes > 0)))
        want_layer(wants, state->layer, 0);
}

static void spill_score(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, bool bounds)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    wants.scan = true;
    want_scored(&wants);
    if (fetch(&wants))
        spill_of(backend)->inner->score(backend, state, q, bounds);
}

static void spill_select(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                         const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    wants.scan = true;
    if (is_plugin(state) && selecting->pages.budget > 0)
        want_layer(&wants, state->layer, 0);
    if (!fetch(&wants))
        return;
    spill_of(backend)->inner->select(backend, state, q, selecting, lists);
    if (wants.pool) {
        wants.pool->known = state->kv;
        wants.pool->known_layer = state->layer;
        wants.pool->known_position = state->position;
    }
}

static void spill_repeat(struct butler_backend *backend, const struct butler_layer_state *state, int selected_at,
                         const struct butler_selecting *selecting, const struct butler_lists *lists)
{
    if (state->kv->fault.code == 0)
        spill_of(backend)->inner->repeat(backend, state, selected_at, selecting, lists);
}

static void spill_select_leaving(struct butler_backend *backend, const struct butler_layer_state *state,
                                 const struct butler_cut *cut, const struct butler_lists *lists)
{
    if (state->kv->fault.code == 0)
        spill_of(backend)->inner->select_leaving(backend, state, cut, lists);
}

static void spill_compact(struct butler_backend *backend, const struct butler_layer_state *state, const struct butler_lists *lists)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    want_layer(&wants, state->layer, 0);
    if (!fetch(&wants))
        return;
    wrote(&wants, 0);
    spill_of(backend)->inner->compact(backend, state, lists);
}

/* Whether the lists of a step are more than memory holds: then they are like a scan, of which some should be found next time. */
static bool lists_exceed(const struct spill *spill, const struct wants *wants)
{
    struct pool *pool = wants->pool;
    if (!pool)
        return false;
    if (wants->state->layer <= pool->layer) {
        pool->last_step_wanted = pool->step_wanted;
        pool->step_wanted = 0;
    }
    pool->layer = wants->state->layer;
    return pool->last_step_wanted * wants->places->frame_bytes > spill->params.memory;
}

/* The units that a list of a layer had in its last step. */
static void guess_units(const struct wants *wants, const struct butler_kv_head *head, int layer, int list)
{
    const struct butler_layer_state *state = wants->state;
    const struct butler_selection *selection = state->selection;
    const uint64_t *units = selection->units + ((size_t)layer * (size_t)state->n_heads + (size_t)list) * selection->words;
    const int unit = state->plan->unit, n_words = BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(head->n_slots, unit), 64);
    uint32_t last = UINT32_MAX;
    for (int w = 0; w < n_words; w++)
        for (uint64_t bits = units[w]; bits; bits &= bits - 1) {
            const int first = (w * 64 + __builtin_ctzll(bits)) * unit;
            for (int slot = first; slot < BUTLER_MIN(first + unit, head->n_slots); slot += BUTLER_PAGE) {
                const uint32_t piece = piece_of(wants, head, (uint32_t)slot);
                if (piece != last)
                    butler_frames_guess(wants->frames, piece);
                last = piece;
            }
        }
}

/* While this layer is computed, what the next one wants is read: its list, where a predictor has made that possible, or as a guess
 * that of its last step. lists: this layer's. */
static void prefetch(const struct wants *wants, const struct butler_lists *lists)
{
    const struct butler_layer_state *state = wants->state;
    const struct butler_kv *kv = state->kv;
    const struct butler_selection *selection = state->selection;
    const struct pool *pool = wants->pool;
    const int layer = state->layer + 1;
    if (!pool || !lists || !selection || layer >= kv->n_layers || selection->at[layer] == 0)
        return;
    const bool known =
        selection->slots && pool->known == kv && pool->known_position == state->position && pool->known_layer >= layer;
    for (int i = 0; i < lists->n_lists; i++) {
        const struct butler_kv_head *head = butler_kv_at(kv, layer, i * kv->n_kv_heads / lists->n_lists);
        if (!known)
            guess_units(wants, head, layer, state->plan->share == BUTLER_SHARE_LAYER ? 0 : i);
        for (int j = 0; known && j < lists->n[lists->n_lists + i]; j++)
            if ((int)lists->slots[lists->n_lists + i][j] < head->n_slots)
                butler_frames_guess(wants->frames, piece_of(wants, head, lists->slots[lists->n_lists + i][j]));
    }
    state->traffic->n_prefetched += (uint64_t)butler_frames_prefetch(wants->frames);
}

static void spill_attend(struct butler_backend *backend, const struct butler_layer_state *state,
                         const struct butler_attend_token *token)
{
    struct wants wants;
    const struct butler_kv *kv = state->kv;
    const struct butler_lists *lists = token->lists;
    if (!begin(backend, state, &wants))
        return;
    const bool all = (token->observe && is_plugin(state)) || kv->rope_cos; /* whose places are those of an order */
    if (token->k)
        want_layer(&wants, state->layer, append_start(state, 1));
    wants.scan = lists_exceed(spill_of(backend), &wants) || (!lists && state->plan->method != BUTLER_RETRIEVE);
    if (all || !lists)
        want_layer(&wants, state->layer, all ? 0 : n_slots_of(state) - token->newest);
    for (int i = 0; lists && !all && i < lists->n_lists; i++) {
        const struct butler_kv_head *head = butler_kv_at(kv, state->layer, i * kv->n_kv_heads / lists->n_lists);
        if (lists->slots[i])
            want_list(&wants, head, lists->slots[i], lists->n[i]);
        else
            want_slots(&wants, head, head->n_slots - lists->n[i], head->n_slots);
    }
    const uint64_t before = state->traffic->n_wanted;
    if (!fetch(&wants))
        return;
    if (wants.pool)
        wants.pool->step_wanted += state->traffic->n_wanted - before;
    prefetch(&wants, lists);
    spill_of(backend)->inner->attend(backend, state, token);
    if (token->k)
        wrote(&wants, n_slots_of(state) - 1);
}

static void spill_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct wants wants;
    const struct butler_layer_state *state = &span->state;
    if (!begin(backend, state, &wants))
        return;
    wants.scan = true;
    want_layer(&wants, state->layer, BUTLER_MIN(window_start(state, span->n, span->window), append_start(state, span->n)));
    if (!fetch(&wants))
        return;
    spill_of(backend)->inner->attend_exact(backend, span);
    wrote(&wants, n_slots_of(state) - span->n);
}

static void spill_exact_weights(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                                const struct butler_exact *exact)
{
    struct wants wants;
    if (!begin(backend, state, &wants))
        return;
    wants.scan = true;
    want_layer(&wants, state->layer, butler_kv_at(state->kv, state->layer, 0)->order ? 0 : n_slots_of(state) - exact->n);
    if (fetch(&wants))
        spill_of(backend)->inner->exact_weights(backend, state, q, exact);
}

/* --------------------------------------------------------------------------------------------------- making */

static void spill_destroy(struct butler_backend *backend)
{
    struct spill *spill = spill_of(backend);
    butler_backend_free(spill->inner);
    free(spill->folder);
    free(spill);
}

static struct butler_backend *spill_another(const struct butler_backend *backend, struct butler_pool *pool,
                                            struct butler_error *err)
{
    const struct spill *spill = (const struct spill *)backend;
    struct butler_backend *inner = spill->inner->another(spill->inner, pool, err);
    return inner ? butler_spill_backend(inner, &spill->params, err) : NULL;
}

struct butler_backend *butler_spill_backend(struct butler_backend *inner, const struct butler_spill_params *params,
                                            struct butler_error *err)
{
    struct spill *spill = inner ? butler_alloc(sizeof *spill, err) : NULL;
    if (spill && !(spill->folder = strdup(params->disk.folder))) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the name of %s", params->disk.folder);
        free(spill);
        spill = NULL;
    }
    if (!spill) {
        butler_backend_free(inner);
        return NULL;
    }
    spill->params = *params;
    spill->params.disk.folder = spill->folder;
    spill->inner = inner;
    struct butler_backend *backend = &spill->backend;
    *backend = *inner;
    backend->alloc_extents = spill_alloc_extents;
    backend->check = spill_check;
    backend->map_extents = spill_map_extents;
    backend->spilled = spill_spilled;
    backend->free = spill_free;
    backend->discard = spill_discard;
    backend->upload = spill_upload;
    backend->download = spill_download;
    backend->copy = spill_copy;
    backend->append = spill_append;
    backend->summarise = spill_summarise;
    backend->attend_block = spill_attend_block;
    backend->attend_sparse = NULL;
    backend->score = spill_score;
    backend->select = spill_select;
    backend->repeat = spill_repeat;
    backend->select_leaving = spill_select_leaving;
    backend->compact = spill_compact;
    backend->attend = spill_attend;
    backend->attend_exact = spill_attend_exact;
    backend->exact_weights = spill_exact_weights;
    backend->retrieve_fused = NULL;
    backend->attend_spans = NULL;
    backend->evict_spans = NULL;
    backend->another = spill_another;
    backend->destroy = spill_destroy;
    return backend;
}
