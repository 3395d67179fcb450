/* See host_pages.h. Copies that were written to go to host memory when their place is needed, or their bytes are read there. */
#include "gpu/host_pages.h"

#include <stdlib.h>
#include <string.h>

enum { NONE = -1, PACKED_BYTES = 8 << 20 };

struct butler_gpu_copy {
    uint32_t page; /* NONE: of none */
    uint32_t newer, older;
    uint64_t turn; /* that wanted it last */
    bool written;  /* since host memory had it */
};

/* -------------------------------------------------------------------------------------------------- making */

void butler_gpu_pages_free(struct butler_gpu_pages *pages)
{
    if (!pages)
        return;
    struct butler_backend *backend = &pages->gpu->backend;
    const struct butler_backend *plain = &pages->gpu->host->plain;
    plain->free(backend, pages->copies, 0);
    plain->free(backend, pages->places, 0);
    plain->free(backend, pages->packed, 0);
    butler_unreserve(pages->base, (size_t)pages->n_pages * pages->page_bytes);
    butler_unreserve(pages->copy_of, (size_t)pages->n_pages * sizeof *pages->copy_of);
    butler_unreserve(pages->held, pages->n_pages);
    if (pages->pack)
        pages->gpu->driver->free_host(pages->gpu, pages->pack);
    free(pages->own);
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
           (pages->own = butler_alloc(pages->n_copies * sizeof *pages->own, err)) &&
           (pages->missing = butler_alloc(pages->n_copies * sizeof *pages->missing, err)) &&
           (pages->leaving = butler_alloc(pages->n_copies * sizeof *pages->leaving, err)) &&
           (pages->copies = plain->alloc(backend, pages->n_copies * pages->page_bytes, false, err)) &&
           (pages->places = plain->alloc(backend, (size_t)pages->n_pages * sizeof(uint32_t), false, err)) &&
           (pages->packed = plain->alloc(backend, packed, false, err));
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
    for (uint32_t i = 0; i < pages->n_copies; i++)
        pages->own[i] = (struct butler_gpu_copy){.page = (uint32_t)NONE,
                                                 .newer = i > 0 ? i - 1 : (uint32_t)NONE,
                                                 .older = i + 1 < pages->n_copies ? i + 1 : (uint32_t)NONE};
    pages->oldest = pages->n_copies - 1;
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

/* --------------------------------------------------------------------------------------------------- order */

static void take_out(struct butler_gpu_pages *pages, uint32_t c)
{
    const struct butler_gpu_copy *copy = &pages->own[c];
    if (copy->newer == (uint32_t)NONE)
        pages->newest = copy->older;
    else
        pages->own[copy->newer].older = copy->older;
    if (copy->older == (uint32_t)NONE)
        pages->oldest = copy->newer;
    else
        pages->own[copy->older].newer = copy->newer;
}

static void make_newest(struct butler_gpu_pages *pages, uint32_t c)
{
    if (pages->newest == c)
        return;
    take_out(pages, c);
    pages->own[c].newer = (uint32_t)NONE;
    pages->own[c].older = pages->newest;
    pages->own[pages->newest].newer = c;
    pages->newest = c;
}

static void make_oldest(struct butler_gpu_pages *pages, uint32_t c)
{
    if (pages->oldest == c)
        return;
    take_out(pages, c);
    pages->own[c].older = (uint32_t)NONE;
    pages->own[c].newer = pages->oldest;
    pages->own[pages->oldest].older = c;
    pages->oldest = c;
}

/* ------------------------------------------------------------------------------------------------ transfers */

static void launch(const struct butler_gpu_pages *pages, uint32_t m, uint32_t n_filled, bool to_host)
{
    butler_gpu_launch(pages->gpu, GPU_move_pages, (int)m, 1, 1, pages->copies, pages->packed, pages->places,
                      (uint64_t)numbers_bytes(m), (int)(pages->page_bytes / sizeof(uint32_t)), (int)n_filled, (int)to_host);
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
        launch(pages, m, 0, true);
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

static void bring_missing(struct butler_gpu_pages *pages, struct butler_gpu_moved *moved)
{
    struct butler_backend *backend = &pages->gpu->backend;
    const uint32_t n_held = sort_missing(pages);
    for (uint32_t first = 0, m; first < pages->n_missing; first += m) {
        m = BUTLER_MIN(pages->n_missing - first, pages->batch);
        const uint32_t n_filled = BUTLER_MIN(n_held > first ? n_held - first : 0, m);
        const size_t at = numbers_bytes(m), n_bytes = at + n_filled * pages->page_bytes;
        uint32_t *numbers = (uint32_t *)(void *)pages->pack;
        for (uint32_t i = 0; i < m; i++) {
            const uint32_t c = pages->missing[first + i], page = pages->own[c].page;
            numbers[2 * i] = c;
            numbers[2 * i + 1] = page;
            if (i < n_filled)
                memcpy(pages->pack + at + i * pages->page_bytes, pages->base + page * pages->page_bytes, pages->page_bytes);
        }
        pages->gpu->host->plain.upload(backend, pages->packed, pages->pack, n_bytes);
        launch(pages, m, n_filled, false);
        moved->bytes += n_bytes;
    }
    moved->n_fetched += n_held;
}

static void give_up(struct butler_gpu_pages *pages, uint32_t c)
{
    struct butler_gpu_copy *copy = &pages->own[c];
    pages->copy_of[copy->page] = 0;
    copy->page = (uint32_t)NONE;
    copy->written = false;
    make_oldest(pages, c);
}

/* ----------------------------------------------------------------------------------------------- operations */

void butler_gpu_pages_begin(struct butler_gpu_pages *pages)
{
    pages->turn++;
    pages->n_wanted = 0;
    pages->n_missing = 0;
}

/* The copy that was wanted longest ago, for another page. An operation wants a layer at most, which has room (session.c). */
static uint32_t take_oldest(struct butler_gpu_pages *pages)
{
    const uint32_t c = pages->oldest;
    struct butler_gpu_copy *copy = &pages->own[c];
    if (copy->turn == pages->turn)
        abort();
    if (copy->written) {
        pages->leaving[pages->n_leaving][0] = c;
        pages->leaving[pages->n_leaving++][1] = copy->page;
    }
    if (copy->page != (uint32_t)NONE)
        pages->copy_of[copy->page] = 0;
    copy->written = false;
    return c;
}

void butler_gpu_pages_want(struct butler_gpu_pages *pages, uint32_t page)
{
    uint32_t c = pages->copy_of[page];
    if (c > 0 && pages->own[--c].turn == pages->turn)
        return;
    if (pages->copy_of[page] == 0) {
        c = take_oldest(pages);
        pages->own[c].page = page;
        pages->copy_of[page] = c + 1;
        pages->missing[pages->n_missing++] = c;
    }
    pages->own[c].turn = pages->turn;
    pages->n_wanted++;
    make_newest(pages, c);
}

void butler_gpu_pages_fetch(struct butler_gpu_pages *pages, bool scan, struct butler_gpu_moved *moved)
{
    const double start = butler_seconds();
    send_leaving(pages);
    bring_missing(pages, moved);
    for (uint32_t i = 0; i < pages->n_missing && scan; i++)
        make_oldest(pages, pages->missing[i]);
    moved->n_wanted += pages->n_wanted;
    moved->ns += (uint64_t)(1e9 * (butler_seconds() - start));
}

void butler_gpu_pages_wrote(struct butler_gpu_pages *pages, uint32_t page)
{
    pages->own[pages->copy_of[page] - 1].written = true;
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
    for (uint32_t page = first; page < end; page++) {
        struct butler_gpu_copy *copy = pages->copy_of[page] ? &pages->own[pages->copy_of[page] - 1] : NULL;
        if (!copy || !copy->written)
            continue;
        pages->leaving[pages->n_leaving][0] = (uint32_t)(copy - pages->own);
        pages->leaving[pages->n_leaving++][1] = page;
        copy->written = false;
    }
    send_leaving(pages);
    for (uint32_t page = first; page < end && drop; page++)
        if (pages->copy_of[page])
            give_up(pages, pages->copy_of[page] - 1);
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
    for (; page < end; page++) {
        if (pages->copy_of[page])
            give_up(pages, pages->copy_of[page] - 1);
        pages->n_held -= pages->held[page];
        pages->held[page] = 0;
    }
    butler_reserve_discard((void *)(uintptr_t)address, n_bytes);
}
