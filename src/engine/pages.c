/* The page pool: extents with reference counts. Its tables are host memory, the extents device memory. */
#include <stdlib.h>

#include "engine/backend.h"
#include "engine/pages.h"

struct butler_pages *butler_pages_new(struct butler_backend *backend, size_t extent_bytes, uint64_t max_bytes, bool spills,
                                      struct butler_error *err)
{
    struct butler_pages *pages = butler_alloc(sizeof *pages, err);
    if (!pages)
        return NULL;
    const uint64_t n = BUTLER_MIN(BUTLER_MAX(max_bytes / extent_bytes, 1), UINT32_MAX / BUTLER_EXTENT / 2);
    pages->backend = backend;
    pages->extent_bytes = extent_bytes;
    pages->n_extents = (uint32_t)n;
    pages->n_bytes = (size_t)n * extent_bytes;
    pages->tables_bytes = n * 2 * sizeof(uint32_t);
    pages->references = butler_reserve(pages->tables_bytes, false, err);
    pages->spills = spills;
    if (pages->references && spills && backend->alloc_extents)
        pages->base = backend->alloc_extents(backend, extent_bytes, n, &pages->places, err);
    else if (pages->references)
        pages->base = backend->alloc(backend, pages->n_bytes, false, err);
    if (!pages->base) {
        butler_pages_free(pages);
        return NULL;
    }
    pages->unused = pages->references + n;
    return pages;
}

void butler_pages_free(struct butler_pages *pages)
{
    if (!pages)
        return;
    pages->backend->free(pages->backend, pages->base, pages->n_bytes);
    butler_unreserve(pages->references, pages->tables_bytes);
    free(pages);
}

int butler_pages_take(struct butler_pages *pages, uint32_t *extent, struct butler_error *err)
{
    while (butler_pages_free_extents(pages) == 0 && pages->spare && pages->spare(pages->spare_user, pages))
        continue;
    if (pages->n_unused > 0)
        *extent = pages->unused[--pages->n_unused];
    else if (pages->n_used < pages->n_extents)
        *extent = pages->n_used++;
    else
        return butler_fail(err, BUTLER_ERROR_MEMORY, "all %zu bytes of KV pages are in use", pages->n_bytes);
    pages->references[*extent] = 1;
    return 0;
}

void butler_pages_share(struct butler_pages *pages, uint32_t extent)
{
    pages->references[extent]++;
}

void butler_pages_release(struct butler_pages *pages, uint32_t extent)
{
    if (--pages->references[extent] > 0)
        return;
    pages->backend->discard(pages->backend, pages->base + (size_t)extent * pages->extent_bytes, pages->extent_bytes);
    pages->unused[pages->n_unused++] = extent;
    if (pages->n_unused == pages->n_used) /* none has a reference: the next ones are neighbours again */
        pages->n_unused = pages->n_used = 0;
}
