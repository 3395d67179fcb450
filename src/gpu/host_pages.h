/* Pages of a KV cache that lie in host memory, and copies of some of them on the device. Which are wanted is said before each
 * operation; then those that have no copy get one, in the places of those that were wanted longest ago. What later operations will
 * want can be brought here beside the work that the device has been given. */
#ifndef BUTLER_HOST_PAGES_H
#define BUTLER_HOST_PAGES_H

#include "base/by_use.h"
#include "gpu/gpu.h"

struct butler_gpu_copy;

/* A pool of extents. Its pages are all of one size, BUTLER_PAGE tokens of a KV head. */
struct butler_gpu_pages {
    struct butler_gpu *gpu;
    unsigned char *base; /* host memory, [n_pages][page_bytes]: the addresses of the pool */
    uint32_t *copy_of;   /* host, [n_pages]: which copy; 0: none */
    unsigned char *held; /* host, [n_pages]: there are contents in host memory */
    size_t page_bytes;
    uint32_t n_pages, n_copies, n_held;
    void *copies, *places, *packed; /* device memory; kernels.cl's arguments of move_pages */
    void *ahead;                    /* the same as packed, of what is prefetched */
    unsigned char *pack;            /* host, as packed: for `batch` pages */
    uint32_t batch;
    struct butler_gpu_copy *own;       /* [n_copies + 1], from 1 on */
    struct butler_by_use *use;         /* [n_copies + 1] by when they were wanted last */
    uint64_t turn;                     /* of operations */
    uint64_t n_wanted;                 /* by this one */
    uint32_t *missing, n_missing;      /* [n_copies]: copies that are to be filled */
    uint32_t n_guessed;                /* copies that it wanted and that were prefetched: the last ones of `missing` */
    uint32_t n_arriving;               /* copies that are being prefetched: the device has no word of them yet */
    uint32_t next_clean;               /* where prefetching looks for the next copy to give up */
    uint32_t (*leaving)[2], n_leaving; /* [n_copies]: copies and pages that host memory does not have yet */
    /* What decode steps wanted, all layers together: the one under way, whose latest layer this is, and the last one. */
    uint64_t step_wanted, last_step_wanted;
    int layer;
    struct butler_gpu_pages *next;
};

/* What a device has whose pages lie in host memory. */
struct butler_gpu_host {
    struct butler_backend plain; /* the operations, of rows that are on the device */
    uint64_t memory;             /* most bytes of copies, of each pool */
    struct butler_gpu_pages *pools;
    uint64_t *units; /* [units_bytes / 8] what the lists of layers from units_layer on chose */
    size_t units_bytes;
    int units_layer;
};

/* What an operation moved: pages that it wanted, that were brought here; bytes that went to the device for these; the time; how
 * many of the wanted ones had been prefetched, and had not been wanted since. */
struct butler_gpu_moved {
    uint64_t n_wanted, n_fetched, bytes, ns, n_guessed;
};

/* NULL with *err filled on failure. */
struct butler_gpu_pages *butler_gpu_pages_new(struct butler_gpu *gpu, size_t extent_bytes, uint64_t n_extents,
                                              struct butler_error *err);
void butler_gpu_pages_free(struct butler_gpu_pages *pages);

/* The pool that has this address; or NULL. */
struct butler_gpu_pages *butler_gpu_pages_at(const struct butler_gpu *gpu, const void *address);

/* An operation begins; says what it wants, of at most as many pages as there are copies; and has it. scan: what is brought here
 * goes first afterwards, as a pass over more than there is room for would otherwise find nothing. */
void butler_gpu_pages_begin(struct butler_gpu_pages *pages);
void butler_gpu_pages_want(struct butler_gpu_pages *pages, uint32_t page);
void butler_gpu_pages_fetch(struct butler_gpu_pages *pages, bool scan, struct butler_gpu_moved *moved);
/* After a fetch, when its operation has been given to the device: pages that the next ones will want. First all of them are kept,
 * where they have copies; then those that have none are guessed, and prefetch begins to bring them here, as far as copies can be
 * given up that nobody has to write back. Returns how many. */
void butler_gpu_pages_keep(struct butler_gpu_pages *pages, uint32_t page);
void butler_gpu_pages_guess(struct butler_gpu_pages *pages, uint32_t page);
uint32_t butler_gpu_pages_prefetch(struct butler_gpu_pages *pages);
/* The copy of a page that was wanted has been written to. */
void butler_gpu_pages_wrote(struct butler_gpu_pages *pages, uint32_t page);

/* Host memory has what the pages of these bytes hold, which the caller will read, or (drop) write: their copies are given up. */
void butler_gpu_pages_settle(struct butler_gpu_pages *pages, const void *address, size_t n_bytes, bool drop);
/* Host memory was written there. */
void butler_gpu_pages_hold(struct butler_gpu_pages *pages, const void *address, size_t n_bytes);
/* These pages hold nothing any more. */
void butler_gpu_pages_discard(struct butler_gpu_pages *pages, const void *address, size_t n_bytes);

#endif
