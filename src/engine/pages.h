/* The page pool of an engine: the memory behind the KV caches of all its sessions. It hands out extents of BUTLER_EXTENT pages of
 * BUTLER_PAGE tokens of one KV head. An extent is counted: sessions with a common beginning and the prefix cache hold the same
 * extents, and whoever writes to a shared one copies it first. */
#ifndef BUTLER_PAGES_H
#define BUTLER_PAGES_H

#include "base/disk.h"
#include "base/util.h"

enum {
    BUTLER_PAGE = 16,
    BUTLER_EXTENT = 4, /* pages an extent has */
    BUTLER_EXTENT_TOKENS = BUTLER_PAGE * BUTLER_EXTENT,
    BUTLER_WINDOW_CHUNK = 256, /* keys that the attention of a prompt reads together: whole extents */
};

struct butler_backend;

/* Where the rows of a pool lie that does not have all of them in memory, inside operations: an extent has `pieces` pieces of
 * `tokens` tokens. */
struct butler_places {
    const uint32_t *frames; /* [n_extents][pieces]; NULL: extents lie at their addresses */
    unsigned char *base;    /* frame i lies i times frame_bytes behind it */
    size_t frame_bytes;
    uint32_t pieces, tokens;
};

/* The pieces of an extent of so many bytes where not all of them are in memory: as few tokens each as blocks of a disk hold without
 * much waste. *frame_bytes: memory of one. */
static inline uint32_t butler_extent_pieces(size_t extent_bytes, size_t *frame_bytes)
{
    for (uint32_t n = BUTLER_EXTENT;; n /= 2) {
        const size_t piece = extent_bytes / n;
        *frame_bytes = BUTLER_CEIL_DIV(piece, (size_t)BUTLER_DISK_ALIGN) * BUTLER_DISK_ALIGN;
        if (n == 1 || *frame_bytes - piece <= piece / 4)
            return n;
    }
}

/* A file of the library whose rows a pool shall have without their being copied: of each KV head of a layer ("chunk") some bytes,
 * and their XXH3-64. */
struct butler_row_file {
    int fd;
    const char *path;
    uint64_t at, chunk_bytes; /* where the first chunk begins */
    const uint64_t *sums;     /* [n_chunks] */
    int n_chunks, per_chunk;  /* per_chunk: extents of which a chunk has rows */
};

struct butler_pages {
    struct butler_backend *backend;
    struct butler_places places;
    bool spills;         /* not all of it is in memory */
    unsigned char *base; /* device memory, [n_extents][extent_bytes] */
    size_t extent_bytes, n_bytes;
    uint32_t n_extents, n_used; /* n_used: extents that were ever handed out, [0, n_used) */
    uint32_t *references;       /* [n_extents] */
    uint32_t *unused;           /* stack of extents below n_used that have no reference */
    uint32_t n_unused;
    uint64_t tables_bytes;
    bool (*spare)(void *user, struct butler_pages *pages); /* where all are in use: gives some back; false: nobody can. Or NULL */
    void *spare_user;
    struct butler_pages *next; /* of the engine's list */
};

/* A pool of at most max_bytes, of which only what is used costs memory. spills: where the backend has memory that spills, in that.
 * NULL with *err filled on failure. */
struct butler_pages *butler_pages_new(struct butler_backend *backend, size_t extent_bytes, uint64_t max_bytes, bool spills,
                                      struct butler_error *err);
void butler_pages_free(struct butler_pages *pages);

/* An extent with one reference into *extent, its contents undefined; BUTLER_ERROR_MEMORY when the pool is full, also of what only
 * the prefix cache holds. */
int butler_pages_take(struct butler_pages *pages, uint32_t *extent, struct butler_error *err);
void butler_pages_share(struct butler_pages *pages, uint32_t extent);
/* Drops a reference; the last one gives the extent back. */
void butler_pages_release(struct butler_pages *pages, uint32_t extent);

static inline uint32_t butler_pages_free_extents(const struct butler_pages *pages)
{
    return pages->n_extents - pages->n_used + pages->n_unused;
}

static inline uint64_t butler_pages_held(const struct butler_pages *pages) /* bytes */
{
    return (uint64_t)(pages->n_used - pages->n_unused) * pages->extent_bytes;
}

#endif
