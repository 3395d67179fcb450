/* Which pieces of a pool of KV pages are in memory. A piece is BUTLER_PAGE tokens of a KV head, or two or four times as many where
 * their bytes fill blocks of the disk better. Memory has room for n_frames of them; the others lie in a file. Pieces that are
 * wanted for an operation stay until it has run; for others the one goes that was wanted longest ago. */
#ifndef BUTLER_FRAMES_H
#define BUTLER_FRAMES_H

#include "base/disk.h"
#include "engine/pages.h"

struct butler_frames;

struct butler_frames_params {
    size_t extent_bytes;
    uint64_t n_extents;
    uint64_t memory;                /* bytes of pieces that are resident together */
    struct butler_disk_params disk; /* but for its sizes */
};

/* NULL with *err filled on failure. */
struct butler_frames *butler_frames_new(const struct butler_frames_params *params, struct butler_error *err);
void butler_frames_free(struct butler_frames *frames); /* may be NULL */

/* Addresses of the pool: [n_extents][extent_bytes] that name pieces, and that nobody can read or write. */
unsigned char *butler_frames_addresses(const struct butler_frames *frames);
const struct butler_places *butler_frames_places(const struct butler_frames *frames);
const char *butler_frames_method(const struct butler_frames *frames); /* butler_disk_method */
uint64_t butler_frames_resident(const struct butler_frames *frames);  /* bytes */
uint64_t butler_frames_written(const struct butler_frames *frames);   /* bytes of pieces that files hold */

/* butler_backend.map_extents. Each file stays open while an extent lies in it; there are no more of them than a quarter of the
 * descriptors that the process may have. A piece that is written to lies in the frames' own file from then on. */
bool butler_frames_map(struct butler_frames *frames, const uint32_t *extents, const struct butler_row_file *file);

/* An operation's pieces: begin, want each of them, fetch. */
void butler_frames_begin(struct butler_frames *frames);
/* scan: the operation is one of several that pass over more than memory holds, again and again. What is fetched for it goes first,
 * but for a few pieces: so the next time some are found, and not none (Qureshi et al., Adaptive Insertion Policies for High
 * Performance Caching, ISCA 2007: bimodal insertion). */
void butler_frames_want(struct butler_frames *frames, uint32_t piece, bool scan);

struct butler_fetched {
    uint64_t n_wanted, n_read; /* pieces: all that were wanted, those that came from the file */
    uint64_t bytes, ns;        /* read, and how long all of it took */
    uint64_t n_guessed;        /* of n_wanted: those that had been prefetched, and had not been wanted since */
    bool lost;                 /* it failed: a mapped file cannot be read, or has other bytes than its checksums say */
};
/* All that is wanted is resident, or *err says why it cannot be: BUTLER_ERROR_MEMORY, BUTLER_ERROR_IO, BUTLER_ERROR_FORMAT. Adds to
 * *fetched. */
int butler_frames_fetch(struct butler_frames *frames, struct butler_fetched *fetched, struct butler_error *err);

/* After a fetch, and before the operation runs: pieces that the next ones will or may want, then prefetch, which begins to read
 * those that are not resident, as far as there is room for them without writing. Returns how many. What of it cannot be read is
 * read again when it is wanted. */
void butler_frames_guess(struct butler_frames *frames, uint32_t piece);
int butler_frames_prefetch(struct butler_frames *frames);

/* A piece that is resident was written to. */
void butler_frames_dirty(struct butler_frames *frames, uint32_t piece);
/* Where it lies. */
unsigned char *butler_frames_at(const struct butler_frames *frames, uint32_t piece);
/* The contents of the extent are lost. */
void butler_frames_discard(struct butler_frames *frames, uint32_t extent);

#endif
