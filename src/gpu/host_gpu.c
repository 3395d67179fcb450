/* See host_gpu.h. Every operation that touches rows says first which: the newest tokens, a window, all of the layer, or what the
 * lists of a decode step chose, which the device noted, a bit for each unit: these come to the host, 8 bytes for 64 units. What
 * several operations would do in one launch is not offered: between selection and attention lies the fetching.
 *
 * Where a predictor gives the lists of several layers together, the first of them knows what the others want: it is brought to the
 * device while that layer is computed. */
#include "gpu/host_gpu.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/host_pages.h"

static struct butler_gpu *gpu_of(struct butler_backend *backend)
{
    return (struct butler_gpu *)backend;
}

static const struct butler_backend *plain_of(struct butler_backend *backend)
{
    return &gpu_of(backend)->host->plain;
}

/* -------------------------------------------------------------------------------------- operations on memory */

static void *host_alloc_extents(struct butler_backend *backend, size_t extent_bytes, uint64_t n, struct butler_places *places,
                                struct butler_error *err)
{
    struct butler_gpu_host *host = gpu_of(backend)->host;
    struct butler_gpu_pages *pages = butler_gpu_pages_new(gpu_of(backend), extent_bytes, n, err);
    memset(places, 0, sizeof *places);
    if (!pages)
        return NULL;
    pages->next = host->pools;
    host->pools = pages;
    return pages->base;
}

static void host_free(struct butler_backend *backend, void *address, size_t n_bytes)
{
    struct butler_gpu_pages *pages = butler_gpu_pages_at(gpu_of(backend), address), **at = &gpu_of(backend)->host->pools;
    if (!pages) {
        plain_of(backend)->free(backend, address, n_bytes);
        return;
    }
    while (*at != pages)
        at = &(*at)->next;
    *at = pages->next;
    butler_gpu_pages_free(pages);
}

static void host_discard(struct butler_backend *backend, void *address, size_t n_bytes)
{
    struct butler_gpu_pages *pages = butler_gpu_pages_at(gpu_of(backend), address);
    if (pages)
        butler_gpu_pages_discard(pages, address, n_bytes);
    else
        plain_of(backend)->discard(backend, address, n_bytes);
}

static void host_upload(struct butler_backend *backend, void *to, const void *host, size_t n_bytes)
{
    struct butler_gpu_pages *pages = butler_gpu_pages_at(gpu_of(backend), to);
    if (!pages) {
        plain_of(backend)->upload(backend, to, host, n_bytes);
        return;
    }
    butler_gpu_pages_settle(pages, to, n_bytes, true);
    memcpy(to, host, n_bytes);
    butler_gpu_pages_hold(pages, to, n_bytes);
}

static void host_download(struct butler_backend *backend, void *host, const void *from, size_t n_bytes)
{
    struct butler_gpu_pages *pages = butler_gpu_pages_at(gpu_of(backend), from);
    if (!pages) {
        plain_of(backend)->download(backend, host, from, n_bytes);
        return;
    }
    butler_gpu_pages_settle(pages, from, n_bytes, false);
    memcpy(host, from, n_bytes);
}

/* Rows are copied within a pool only. */
static void host_copy(struct butler_backend *backend, void *to, const void *from, size_t n_bytes)
{
    struct butler_gpu_pages *pages = butler_gpu_pages_at(gpu_of(backend), from);
    if (!pages) {
        plain_of(backend)->copy(backend, to, from, n_bytes);
        return;
    }
    butler_gpu_pages_settle(pages, from, n_bytes, false);
    host_upload(backend, to, from, n_bytes);
}

static void host_spilled(const struct butler_backend *backend, uint64_t *resident, uint64_t *on_disk, const char **method)
{
    const struct butler_gpu_host *host = ((const struct butler_gpu *)backend)->host;
    *resident = *on_disk = 0;
    *method = NULL;
    for (const struct butler_gpu_pages *pages = host->pools; pages; pages = pages->next) {
        *resident += pages->n_copies * pages->page_bytes;
        *on_disk += pages->n_held * pages->page_bytes;
        *method = "copies to the device";
    }
}

/* --------------------------------------------------------------------------------------- operations on a layer */

/* What an operation on a layer wants. pages NULL: a predictor's own cache, all of which is on the device. */
struct wants {
    struct butler_gpu_pages *pages;
    const struct butler_layer_state *state;
    bool scan;
};

/* False: the session's cache has failed, and no more is done for it. */
static bool begin(struct butler_backend *backend, const struct butler_layer_state *state, bool scan, struct wants *wants)
{
    *wants = (struct wants){butler_gpu_pages_at(gpu_of(backend), state->kv->pool), state, scan};
    if (wants->pages)
        butler_gpu_pages_begin(wants->pages);
    return state->kv->fault.code == 0;
}

static uint32_t page_of(const struct butler_kv_head *head, int slot)
{
    return head->extents[slot / BUTLER_EXTENT_TOKENS] * BUTLER_EXTENT + (uint32_t)(slot % BUTLER_EXTENT_TOKENS / BUTLER_PAGE);
}

/* What pages of a pool are told. */
typedef void page_fn(struct butler_gpu_pages *pages, uint32_t page);

/* Tells the pages of slots [first, end) of a head. */
static void each_page(const struct wants *wants, const struct butler_kv_head *head, int first, int end, page_fn *tell)
{
    first = BUTLER_MAX(first, head->n_released * BUTLER_EXTENT_TOKENS);
    for (int slot = first / BUTLER_PAGE * BUTLER_PAGE; slot < end && wants->pages; slot += BUTLER_PAGE)
        tell(wants->pages, page_of(head, slot));
}

static int n_slots_of(const struct butler_layer_state *state)
{
    return butler_kv_at(state->kv, state->layer, 0)->n_slots;
}

/* Slots from `first` on of all heads of the layer. */
static void want_layer(const struct wants *wants, int first)
{
    const struct butler_layer_state *state = wants->state;
    for (int h = 0; h < state->kv->n_kv_heads; h++)
        each_page(wants, butler_kv_at(state->kv, state->layer, h), first, n_slots_of(state), butler_gpu_pages_want);
}

static void fetch(const struct wants *wants)
{
    struct butler_gpu_moved moved = {0};
    struct butler_traffic *traffic = wants->state->traffic;
    if (!wants->pages)
        return;
    butler_gpu_pages_fetch(wants->pages, wants->scan, &moved);
    traffic->n_wanted += moved.n_wanted;
    traffic->n_fetched += moved.n_fetched;
    traffic->n_guessed += moved.n_guessed;
    traffic->disk_bytes += moved.bytes;
    traffic->disk_ns += moved.ns;
}

/* Slots from `first` on of all heads have been written. */
static void wrote(const struct wants *wants, int first)
{
    const struct butler_layer_state *state = wants->state;
    for (int h = 0; h < state->kv->n_kv_heads && wants->pages; h++)
        for (int slot = first / BUTLER_PAGE * BUTLER_PAGE; slot < n_slots_of(state); slot += BUTLER_PAGE)
            butler_gpu_pages_wrote(wants->pages, page_of(butler_kv_at(state->kv, state->layer, h), slot));
}

/* The first slot that is read when the newest n tokens are appended: that of the record that the first of them falls into. */
static int append_start(const struct butler_layer_state *state, int n)
{
    const int first = n_slots_of(state) - n;
    return butler_kv_record_start(state->kv, BUTLER_MIN(state->summarise_from, first));
}

static void host_append(struct butler_backend *backend, const struct butler_layer_state *state, const float *k, const float *v,
                        int n)
{
    struct wants wants;
    if (!begin(backend, state, false, &wants))
        return;
    want_layer(&wants, append_start(state, n));
    fetch(&wants);
    plain_of(backend)->append(backend, state, k, v, n);
    wrote(&wants, n_slots_of(state) - n);
}

static void host_summarise(struct butler_backend *backend, const struct butler_layer_state *state, int first)
{
    struct wants wants;
    if (!begin(backend, state, true, &wants))
        return;
    want_layer(&wants, butler_kv_record_start(state->kv, first));
    fetch(&wants);
    plain_of(backend)->summarise(backend, state, first);
}

/* The first slot that the oldest of the newest n tokens sees. */
static int window_start(const struct butler_layer_state *state, int n, int window)
{
    const int before = n_slots_of(state) - n;
    return window > before ? 0 : before + 1 - window;
}

static void host_attend_block(struct butler_backend *backend, const struct butler_layer_state *state, const float *q, float *out,
                              int n, int window, int observe_from)
{
    struct wants wants;
    if (!begin(backend, state, true, &wants))
        return;
    want_layer(&wants, window_start(state, n, window));
    fetch(&wants);
    plain_of(backend)->attend_block(backend, state, q, out, n, window, observe_from);
}

/* Of some layers' lists after the others': kept, for there are some in every step. NULL: the session's cache fails. */
static uint64_t *room_for_units(struct butler_gpu_host *host, size_t n_bytes, const struct butler_layer_state *state)
{
    if (host->units_bytes >= n_bytes)
        return host->units;
    free(host->units);
    host->units = butler_alloc(n_bytes, &state->kv->fault);
    host->units_bytes = host->units ? n_bytes : 0;
    return host->units;
}

/* The lists of a layer's step, whether they were made with those of a layer before, and how many layers they were made for, this
 * one included. */
struct listed {
    const struct butler_lists *lists;
    bool made;
    int n_layers;
};

static struct listed listed_of(const struct butler_layer_state *state, const struct butler_attend_token *token)
{
    const struct butler_selection *s = state->selection;
    const bool made = token->k != NULL; /* method.c */
    const bool begins = token->lists && !made && s->ahead_layer == state->layer && s->ahead_position == state->position;
    return (struct listed){token->lists, made, begins ? s->ahead_end - s->ahead_layer : 1};
}

/* What the lists chose, as the device noted it, comes to the host, unless it did with the first of the layers that they were made
 * for. False: there is no memory for it. */
static bool read_units(const struct wants *wants, struct butler_backend *backend, const struct listed *listed)
{
    const struct butler_layer_state *state = wants->state;
    const struct butler_selection *selection = state->selection;
    struct butler_gpu_host *host = gpu_of(backend)->host;
    const size_t n = (size_t)listed->lists->n_lists * selection->words;
    if (listed->made)
        return true;
    if (!room_for_units(host, (size_t)listed->n_layers * n * sizeof(uint64_t), state))
        return false;
    host->units_layer = state->layer;
    for (int i = 0; i < listed->n_layers; i++)
        plain_of(backend)->download(backend, host->units + (size_t)i * n,
                                    selection->units + (size_t)(state->layer + i) * (size_t)state->n_heads * selection->words,
                                    n * sizeof(uint64_t));
    return true;
}

/* Tells the pages of what the lists of a layer chose. */
static void each_listed(const struct wants *wants, struct butler_backend *backend, const struct butler_lists *lists, int layer,
                        page_fn *tell)
{
    const struct butler_layer_state *state = wants->state;
    const struct butler_gpu_host *host = gpu_of(backend)->host;
    const size_t words = state->selection->words;
    const uint64_t *units = host->units + (size_t)((layer - host->units_layer) * lists->n_lists) * words;
    const int unit = state->plan->unit, n = butler_kv_at(state->kv, layer, 0)->n_slots;
    for (int i = 0; i < lists->n_lists; i++) {
        const struct butler_kv_head *head = butler_kv_at(state->kv, layer, i * state->kv->n_kv_heads / lists->n_lists);
        for (int w = 0; w < BUTLER_CEIL_DIV(BUTLER_CEIL_DIV(n, unit), 64); w++)
            for (uint64_t bits = units[(size_t)i * words + (size_t)w]; bits; bits &= bits - 1) {
                const int first = (w * 64 + __builtin_ctzll(bits)) * unit;
                each_page(wants, head, first, BUTLER_MIN(first + unit, n), tell);
            }
    }
}

/* What the lists of the next layers want, which were made with this one's, is brought here while it is computed. */
static void prefetch(const struct wants *wants, struct butler_backend *backend, const struct listed *listed)
{
    const int layer = wants->state->layer;
    if (!wants->pages || listed->n_layers == 1)
        return;
    for (int i = 1; i < listed->n_layers; i++)
        each_listed(wants, backend, listed->lists, layer + i, butler_gpu_pages_keep);
    for (int i = 1; i < listed->n_layers; i++)
        each_listed(wants, backend, listed->lists, layer + i, butler_gpu_pages_guess);
    wants->state->traffic->n_prefetched += butler_gpu_pages_prefetch(wants->pages);
}

/* Whether a step wants more than there are copies: then it is like a scan, of which some should be found next time. */
static bool step_exceeds(const struct wants *wants)
{
    struct butler_gpu_pages *pages = wants->pages;
    if (!pages)
        return false;
    if (wants->state->layer <= pages->layer) {
        pages->last_step_wanted = pages->step_wanted;
        pages->step_wanted = 0;
    }
    pages->layer = wants->state->layer;
    return pages->last_step_wanted > pages->n_copies;
}

static void host_attend(struct butler_backend *backend, const struct butler_layer_state *state,
                        const struct butler_attend_token *token)
{
    struct wants wants;
    const struct listed listed = listed_of(state, token);
    if (!begin(backend, state, false, &wants) || (token->lists && !read_units(&wants, backend, &listed)))
        return;
    wants.scan = step_exceeds(&wants) || (!token->lists && state->plan->method != BUTLER_RETRIEVE);
    if (token->k)
        want_layer(&wants, append_start(state, 1));
    if (token->lists)
        each_listed(&wants, backend, token->lists, state->layer, butler_gpu_pages_want);
    else
        want_layer(&wants, n_slots_of(state) - token->newest);
    fetch(&wants);
    if (wants.pages)
        wants.pages->step_wanted += wants.pages->n_wanted;
    plain_of(backend)->attend(backend, state, token);
    if (token->k)
        wrote(&wants, n_slots_of(state) - 1);
    prefetch(&wants, backend, &listed);
}

static void host_attend_exact(struct butler_backend *backend, const struct butler_attend_span *span)
{
    struct wants wants;
    const struct butler_layer_state *state = &span->state;
    if (!begin(backend, state, true, &wants))
        return;
    want_layer(&wants, BUTLER_MIN(window_start(state, span->n, span->window), append_start(state, span->n)));
    fetch(&wants);
    plain_of(backend)->attend_exact(backend, span);
    wrote(&wants, n_slots_of(state) - span->n);
}

static void host_exact_weights(struct butler_backend *backend, const struct butler_layer_state *state, const float *q,
                               const struct butler_exact *exact)
{
    struct wants wants;
    if (!begin(backend, state, true, &wants))
        return;
    want_layer(&wants, n_slots_of(state) - exact->n);
    fetch(&wants);
    plain_of(backend)->exact_weights(backend, state, q, exact);
}

/* --------------------------------------------------------------------------------------------------- making */

static int host_check_plan(const struct butler_backend *backend, const struct butler_plan *plan, enum butler_kv_type type,
                           int group, struct butler_error *err)
{
    const struct butler_gpu *gpu = (const struct butler_gpu *)backend;
    const bool keys = plan->metric && !strcmp(plan->metric->name, "exact");
    const int code = gpu->host->plain.check_plan(backend, plan, type, group, err);
    if (code < 0 || (plan->method != BUTLER_EVICT && !keys && butler_gpu_has_kernels(plan, group)))
        return code;
    return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                       "device %s:%d has all pages of this policy (metric %s), none in host memory: use full, quest, tinyserve, "
                       "pagestats, fier, tokenbutler2, or no --kv-ram",
                       gpu->driver->name, gpu->index, plan->metric ? plan->metric->name : "recency");
}

static void host_destroy(struct butler_backend *backend)
{
    struct butler_gpu_host *host = gpu_of(backend)->host;
    void (*destroy)(struct butler_backend *) = host->plain.destroy;
    while (host->pools)
        host_free(backend, host->pools->base, 0);
    destroy(backend);
    free(host->units);
    free(host);
}

static struct butler_backend *host_another(const struct butler_backend *backend, struct butler_pool *pool, struct butler_error *err)
{
    const struct butler_gpu_host *host = ((const struct butler_gpu *)backend)->host;
    return butler_gpu_use_host(host->plain.another(backend, pool, err), host->memory, err);
}

struct butler_backend *butler_gpu_use_host(struct butler_backend *backend, uint64_t n_bytes, struct butler_error *err)
{
    struct butler_gpu_host *host = backend ? butler_alloc(sizeof *host, err) : NULL;
    if (!host) {
        butler_backend_free(backend);
        return NULL;
    }
    host->plain = *backend;
    host->memory = n_bytes;
    gpu_of(backend)->host = host;
    backend->kv_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    backend->alloc_extents = host_alloc_extents;
    backend->spilled = host_spilled;
    backend->free = host_free;
    backend->discard = host_discard;
    backend->upload = host_upload;
    backend->download = host_download;
    backend->copy = host_copy;
    backend->append = host_append;
    backend->summarise = host_summarise;
    backend->attend_block = host_attend_block;
    backend->attend = host_attend;
    backend->attend_exact = host_attend_exact;
    backend->exact_weights = host_exact_weights;
    backend->retrieve_fused = NULL;
    backend->check_plan = host_check_plan;
    backend->another = host_another;
    backend->destroy = host_destroy;
    return backend;
}
