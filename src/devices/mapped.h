/* Pieces of KV pages (frames.h) that lie in files of the library. A file has its rows in chunks, each with a checksum. The first
 * time that a piece of a chunk is wanted the whole chunk is read and compared; the checksums of its pieces, which are made on the
 * way, tell whether what is read later is still the same. */
#ifndef BUTLER_MAPPED_H
#define BUTLER_MAPPED_H

#include "base/disk.h"
#include "engine/pages.h"

struct butler_mapped; /* functions take NULL where nothing has been mapped */

struct butler_mapped_params {
    uint64_t n_extents;
    size_t extent_bytes;
    uint32_t pieces;          /* of an extent */
    struct butler_disk *disk; /* that reads; borrowed */
};

/* NULL with *err filled on failure. */
struct butler_mapped *butler_mapped_new(const struct butler_mapped_params *params, struct butler_error *err);
void butler_mapped_free(struct butler_mapped *mapped);

/* See butler_frames_map. */
bool butler_mapped_add(struct butler_mapped *mapped, const uint32_t *extents, const struct butler_row_file *file);
/* The extent is another one from now on. */
void butler_mapped_forget(struct butler_mapped *mapped, uint32_t extent);

bool butler_mapped_has(const struct butler_mapped *mapped, uint32_t piece); /* any byte of it */
bool butler_mapped_is_checked(const struct butler_mapped *mapped, uint32_t piece);
uint64_t butler_mapped_bytes(const struct butler_mapped *mapped); /* of extents that are mapped */

/* How to read a piece that has been checked; and whether what was read is what it was. */
struct butler_disk_block butler_mapped_block(const struct butler_mapped *mapped, uint32_t piece, void *memory);
bool butler_mapped_matches(const struct butler_mapped *mapped, uint32_t piece, const void *memory);

/* Pieces, of which those are read that `take` has memory for: it gives that only once. The highest bit of a piece is ignored. */
struct butler_mapped_wants {
    const uint32_t *pieces; /* [n] */
    int n;
    unsigned char *(*take)(void *user, uint32_t piece);
    void *user;
};
/* Adds to *n_bytes what was read. BUTLER_ERROR_IO; BUTLER_ERROR_FORMAT where a file is not what it was. Both name the file. */
int butler_mapped_read(struct butler_mapped *mapped, const struct butler_mapped_wants *wants, uint64_t *n_bytes,
                       struct butler_error *err);

#endif
