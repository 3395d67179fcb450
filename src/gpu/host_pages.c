/* See host_pages.h. Copies that were written to go to host memory when their place is needed, or their bytes are read there. */
#include "gpu/host_pages.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, PACKED_BYTES = 8 << 20 };

struct butler_gpu_copy {
    uint32_t page; /* NONE: of none */
    uint64_t turn; /* that wanted it last */
    bool written;  /* since host memory had it */
    bool guessed;  /* it was prefetched, and has not been wanted yet */
};

/* -------------------------------------------------------------------------------------------------- making */

void butler_gpu_pages_free(struct butler_gpu_pages *pages)
{
    if (!pages)
        return;
    struct butler_backend *backend = &pages->gpu->backend;
    const struct butler_backend *plain = &pages->gpu->host->plain;
    if (pages->n_arriving > 0)
        butler_gpu_finish_aside(pages->gpu);
    plain->free(backend, pages->ahead, 0);
    plain->free(backend, pages->copies, 0);
    plain->free(backend, pages->places, 0);
    plain->free(backend, pages->packed, 0);
    butler_unreserve(pages->base, (size_t)pages->n_pages * pages->page_bytes);
    butler_unreserve(pages->copy_of, (size_t)pages->n_pages * sizeof *pages->copy_of);
    butler_unreserve(pages->held, pages->n_pages);
    if (pages->pack)
        pages->gpu->driver->free_host(pages->gpu, pages->pack);
    free(pages->own);
    free(pages->use);
    free(pages->missing);
    free(pages->leaving);
    free(pages);
}

/* Bytes of m pages behind their numbers. */
static size_t numbers_bytes(uint32_t m)
{
    return ((size_t)m * 2 * sizeof(uint32_t) + 15) / 16 * 16;
}

/* Host memory that bytes go to the device from, and come to. */
static unsigned char *make_pack(struct butler_gpu *gpu, size_t n_bytes, struct butler_error *err)
{
    char text[GPU_CODE];
    void *memory = NULL;
    const int code = gpu->driver->alloc_host(gpu, n_bytes, &memory);
    if (code == 0)
        return memory;
    gpu->driver->name_code(gpu->api, code, text);
    butler_fail(err, gpu->driver->is_memory(code) ? BUTLER_ERROR_MEMORY : BUTLER_ERROR_IO,
                "%s: no %zu bytes of host memory for copies (%s)", gpu->label, n_bytes, text);
    return NULL;
}

static bool make_memory(struct butler_gpu_pages *pages, struct butler_error *err)
{
    struct butler_backend *backend = &pages->gpu->backend;
    const struct butler_backend *plain = &pages->gpu->host->plain;
    const size_t packed = numbers_bytes(pages->batch) + pages->batch * pages->page_bytes;
    return (pages->base = butler_reserve((size_t)pages->n_pages * pages->page_bytes, false, err)) &&
           (pages->copy_of = butler_reserve((size_t)pages->n_pages * sizeof *pages->copy_of, false, err)) &&
           (pages->held = butler_reserve(pages->n_pages, false, err)) && (pages->pack = make_pack(pages->gpu, packed, err)) &&
           (pages->own = butler_alloc((pages->n_copies + 1) * sizeof *pages->own, err)) &&
           (pages->use = butler_alloc((pages->n_copies + 1) * sizeof *pages->use, err)) &&
           (pages->missing = butler_alloc(pages->n_copies * sizeof *pages->missing, err)) &&
           (pages->leaving = butler_alloc(pages->n_copies * sizeof *pages->leaving, err)) &&
           (pages->copies = plain->alloc(backend, pages->n_copies * pages->page_bytes, false, err)) &&
           (pages->places = plain->alloc(backend, (size_t)pages->n_pages * sizeof(uint32_t), false, err)) &&
           (pages->packed = plain->alloc(backend, packed, false, err)) &&
           (pages->ahead = plain->alloc(backend, packed, false, err));
}

struct butler_gpu_pages *butler_gpu_pages_new(struct butler_gpu *gpu, size_t extent_bytes, uint64_t n_extents,
                                              struct butler_error *err)
{
    struct butler_gpu_pages *pages = butler_alloc(sizeof *pages, err);
    if (!pages)
        return NULL;
    pages->gpu = gpu;
    pages->page_bytes = extent_bytes / BUTLER_EXTENT;
    pages->n_pages = (uint32_t)n_extents * BUTLER_EXTENT;
    pages->n_copies = (uint32_t)BUTLER_MIN(BUTLER_MAX(gpu->host->memory / pages->page_bytes, 1), pages->n_pages);
    pages->batch = (uint32_t)BUTLER_MIN(BUTLER_MAX(PACKED_BYTES / pages->page_bytes, 1), pages->n_copies);
    if (!make_memory(pages, err)) {
        butler_gpu_pages_free(pages);
        return NULL;
    }
    for (uint32_t c = 1; c <= pages->n_copies; c++) {
        pages->own[c].page = (uint32_t)NONE;
        butler_by_use_put_in(pages->use, c, true);
    }
    return pages;
}

struct butler_gpu_pages *butler_gpu_pages_at(const struct butler_gpu *gpu, const void *address)
{
    const unsigned char *at = address;
    for (struct butler_gpu_pages *pages = gpu->host ? gpu->host->pools : NULL; pages; pages = pages->next)
        if (at >= pages->base && at < pages->base + (size_t)pages->n_pages * pages->page_bytes)
            return pages;
    return NULL;
}

static void move_to(struct butler_gpu_pages *pages, uint32_t c, bool newest)
{
    butler_by_use_take_out(pages->use, c);
    butler_by_use_put_in(pages->use, c, newest);
}

/* ------------------------------------------------------------------------------------------------ transfers */

static void launch(const struct butler_gpu_pages *pages, const void *packed, uint32_t m, uint32_t n_filled, bool to_host)
{
    butler_gpu_launch(pages->gpu, GPU_move_pages, (int)m, 1, 1, pages->copies, packed, pages->places, (uint64_t)numbers_bytes(m),
                      (int)(pages->page_bytes / sizeof(uint32_t)), (int)n_filled, (int)to_host);
}

static void note(struct butler_gpu_pages *pages, uint32_t page)
{
    pages->n_held += !pages->held[page];
    pages->held[page] = 1;
}

/* What leaves its place, or is read, goes to host memory. */
static void send_leaving(struct butler_gpu_pages *pages)
{
    struct butler_backend *backend = &pages->gpu->backend;
    const struct butler_backend *plain = &pages->gpu->host->plain;
    for (uint32_t first = 0, m; first < pages->n_leaving; first += m) {
        m = BUTLER_MIN(pages->n_leaving - first, pages->batch);
        const size_t at = numbers_bytes(m);
        memcpy(pages->pack, pages->leaving + first, m * sizeof *pages->leaving);
        plain->upload(backend, pages->packed, pages->pack, m * sizeof *pages->leaving);
        launch(pages, pages->packed, m, 0, true);
        plain->download(backend, pages->pack, (unsigned char *)pages->packed + at, m * pages->page_bytes);
        for (uint32_t i = 0; i < m; i++) {
            const uint32_t page = pages->leaving[first + i][1];
            memcpy(pages->base + page * pages->page_bytes, pages->pack + i * pages->page_bytes, pages->page_bytes);
            note(pages, page);
        }
    }
    pages->n_leaving = 0;
}

/* Those with contents first. Returns how many have. */
static uint32_t sort_missing(struct butler_gpu_pages *pages)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < pages->n_missing; i++) {
        const uint32_t c = pages->missing[i];
        if (!pages->held[pages->own[c].page])
            continue;
        pages->missing[i] = pages->missing[n];
        pages->missing[n++] = c;
    }
    return n;
}

/* Missing ones [first, first + m) into the pack, with the contents of the first n_filled; how many bytes. */
static size_t pack_missing(struct butler_gpu_pages *pages, uint32_t first, uint32_t m, uint32_t n_filled)
{
    const size_t at = numbers_bytes(m);
    uint32_t *numbers = (uint32_t *)(void *)pages->pack;
    for (uint32_t i = 0; i < m; i++) {
        const uint32_t c = pages->missing[first + i], page = pages->own[c].page;
        numbers[2 * i] = c - 1;
        numbers[2 * i + 1] = page;
        if (i < n_filled)
            memcpy(pages->pack + at + i * pages->page_bytes, pages->base + page * pages->page_bytes, pages->page_bytes);
    }
    return at + n_filled * pages->page_bytes;
}

static void bring_missing(struct butler_gpu_pages *pages, struct butler_gpu_moved *moved)
{
    struct butler_backend *backend = &pages->gpu->backend;
    const uint32_t n_held = sort_missing(pages);
    for (uint32_t first = 0, m; first < pages->n_missing; first += m) {
        m = BUTLER_MIN(pages->n_missing - first, pages->batch);
        const uint32_t n_filled = BUTLER_MIN(n_held > first ? n_held - first : 0, m);
        const size_t n_bytes = pack_missing(pages, first, m, n_filled);
        pages->gpu->host->plain.upload(backend, pages->packed, pages->pack, n_bytes);
        launch(pages, pages->packed, m, n_filled, false);
        moved->bytes += n_bytes;
    }
    moved->n_fetched += n_held;
}

/* What is being prefetched is here from now on. */
static void arrive(struct butler_gpu_pages *pages)
{
    if (pages->n_arriving == 0)
        return;
    butler_gpu_finish_aside(pages->gpu);
    launch(pages, pages->ahead, pages->n_arriving, pages->n_arriving, false);
    pages->n_arriving = 0;
}

static void give_up(struct butler_gpu_pages *pages, uint32_t c)
{
    struct butler_gpu_copy *copy = &pages->own[c];
    pages->copy_of[copy->page] = 0;
    copy->page = (uint32_t)NONE;
    copy->written = copy->guessed = false;
    move_to(pages, c, false);
}

/* ----------------------------------------------------------------------------------------------- operations */

void butler_gpu_pages_begin(struct butler_gpu_pages *pages)
{
    arrive(pages);
    pages->turn++;
    pages->n_wanted = 0;
    pages->n_missing = pages->n_guessed = 0;
}

/* The copy that was wanted longest ago, for another page. An operation wants a layer at most, which has room (session.c). */
static uint32_t take_oldest(struct butler_gpu_pages *pages)
{
    const uint32_t c = pages->use[0].newer;
    struct butler_gpu_copy *copy = &pages->own[c];
    if (copy->turn == pages->turn)
        abort();
    if (copy->written) {
        pages->leaving[pages->n_leaving][0] = c - 1;
        pages->leaving[pages->n_leaving++][1] = copy->page;
    }
    if (copy->page != (uint32_t)NONE)
        pages->copy_of[copy->page] = 0;
    copy->written = copy->guessed = false;
    return c;
}

void butler_gpu_pages_want(struct butler_gpu_pages *pages, uint32_t page)
{
    uint32_t c = pages->copy_of[page];
    if (c > 0 && pages->own[c].turn == pages->turn)
        return;
    if (c == 0) {
        c = take_oldest(pages);
        pages->own[c].page = page;
        pages->copy_of[page] = c;
        pages->missing[pages->n_missing++] = c;
    }
    if (pages->own[c].guessed)
        pages->missing[pages->n_copies - ++pages->n_guessed] = c;
    pages->own[c].guessed = false;
    pages->own[c].turn = pages->turn;
    pages->n_wanted++;
    move_to(pages, c, true);
}

void butler_gpu_pages_fetch(struct butler_gpu_pages *pages, bool scan, struct butler_gpu_moved *moved)
{
    const double start = butler_seconds();
    send_leaving(pages);
    bring_missing(pages, moved);
    for (uint32_t i = 0; i < pages->n_missing && scan; i++)
        move_to(pages, pages->missing[i], false);
    for (uint32_t i = 1; i <= pages->n_guessed && scan; i++)
        move_to(pages, pages->missing[pages->n_copies - i], false);
    pages->n_missing = 0;
    pages->turn++; /* of what later operations will want */
    pages->next_clean = (uint32_t)NONE;
    moved->n_wanted += pages->n_wanted;
    moved->n_guessed += pages->n_guessed;
    moved->ns += (uint64_t)(1e9 * (butler_seconds() - start));
}

void butler_gpu_pages_keep(struct butler_gpu_pages *pages, uint32_t page)
{
    const uint32_t c = pages->copy_of[page];
    if (c == 0)
        return;
    pages->own[c].turn = pages->turn;
    move_to(pages, c, true);
}

/* The next copy, from the one on that was wanted longest ago, that host memory has too and that is not for a later operation; 0:
 * there is none. The operation under way may still read it: what is prefetched takes its place after that. */
static uint32_t take_clean(struct butler_gpu_pages *pages)
{
    uint32_t c = pages->next_clean == (uint32_t)NONE ? pages->use[0].newer : pages->next_clean;
    while (c > 0 && (pages->own[c].written || pages->own[c].turn == pages->turn))
        c = pages->use[c].newer;
    pages->next_clean = pages->use[c].newer * (c > 0);
    return c;
}

void butler_gpu_pages_guess(struct butler_gpu_pages *pages, uint32_t page)
{
    if (pages->copy_of[page] || !pages->held[page] || pages->n_missing == pages->batch)
        return;
    const uint32_t c = take_clean(pages);
    if (c == 0)
        return;
    if (pages->own[c].page != (uint32_t)NONE)
        pages->copy_of[pages->own[c].page] = 0;
    pages->own[c].page = page;
    pages->own[c].guessed = true;
    pages->own[c].turn = pages->turn;
    pages->copy_of[page] = c;
    pages->missing[pages->n_missing++] = c;
    move_to(pages, c, true);
}

uint32_t butler_gpu_pages_prefetch(struct butler_gpu_pages *pages)
{
    const uint32_t m = pages->n_missing;
    if (m == 0)
        return 0;
    butler_gpu_upload_aside(pages->gpu, pages->ahead, pages->pack, pack_missing(pages, 0, m, m));
    pages->n_missing = 0;
    pages->n_arriving = m;
    return m;
}

void butler_gpu_pages_wrote(struct butler_gpu_pages *pages, uint32_t page)
{
    pages->own[pages->copy_of[page]].written = true;
}

/* ------------------------------------------------------------------------------------------- host memory */

/* The pages of some bytes: from *first on; one behind the last. */
static uint32_t pages_of(const struct butler_gpu_pages *pages, const void *address, size_t n_bytes, uint32_t *first)
{
    const size_t at = (size_t)((const unsigned char *)address - pages->base);
    *first = (uint32_t)(at / pages->page_bytes);
    return (uint32_t)BUTLER_CEIL_DIV(at + n_bytes, pages->page_bytes);
}

void butler_gpu_pages_settle(struct butler_gpu_pages *pages, const void *address, size_t n_bytes, bool drop)
{
    uint32_t first;
    const uint32_t end = pages_of(pages, address, n_bytes, &first);
    arrive(pages);
    for (uint32_t page = first; page < end; page++) {
        const uint32_t c = pages->copy_of[page];
        if (!pages->own[c].written)
            continue;
        pages->leaving[pages->n_leaving][0] = c - 1;
        pages->leaving[pages->n_leaving++][1] = page;
        pages->own[c].written = false;
    }
    send_leaving(pages);
    for (uint32_t page = first; page < end && drop; page++)
        if (pages->copy_of[page])
            give_up(pages, pages->copy_of[page]);
}

void butler_gpu_pages_hold(struct butler_gpu_pages *pages, const void *address, size_t n_bytes)
{
    uint32_t page;
    const uint32_t end = pages_of(pages, address, n_bytes, &page);
    for (; page < end; page++)
        note(pages, page);
}

void butler_gpu_pages_discard(struct butler_gpu_pages *pages, const void *address, size_t n_bytes)
{
    uint32_t page;
    const uint32_t end = pages_of(pages, address, n_bytes, &page);
    arrive(pages);
    for (; page < end; page++) {
        if (pages->copy_of[page])
            give_up(pages, pages->copy_of[page]);
        pages->n_held -= pages->held[page];
        pages->held[page] = 0;
    }
    butler_reserve_discard((void *)(uintptr_t)address, n_bytes);
}
