/* A file without a name that holds blocks of one size, read and written many at a time: by io_uring, or where the system refuses
 * that by threads that call preadv and pwritev. Past the page cache (O_DIRECT) where the file system can do that. */
#ifndef BUTLER_DISK_H
#define BUTLER_DISK_H

#include <sys/types.h>

#include "base/util.h"

enum { BUTLER_DISK_ALIGN = 4096 }; /* blocks are a multiple of this, memory lies at one */

struct butler_disk;

/* A file of somebody else's, which is only read, at any byte. */
struct butler_disk_other {
    int fd;
    const char *path;
};

/* Where block `index` of the file goes or comes from: block_bytes of memory. Or, to be read: n_bytes of another file, from byte
 * `index` on. */
struct butler_disk_block {
    uint64_t index;
    void *memory;
    const struct butler_disk_other *other; /* NULL: the disk's own file */
    size_t n_bytes;
};

/* Sees, and may replace, what a system call or a request of the ring gave: bytes, or minus an errno. For tests: it may also wait.
 * Threads call it at the same time. */
typedef int64_t butler_disk_fault_fn(void *user, bool write, int64_t result);

struct butler_disk_params {
    const char *folder;          /* where the file is: it needs no name, and its bytes are free when the process ends */
    size_t block_bytes;          /* a multiple of BUTLER_DISK_ALIGN */
    int max_blocks;              /* most blocks of a call */
    bool threads;                /* no io_uring */
    butler_disk_fault_fn *fault; /* or NULL */
    void *user;
};

/* NULL with *err filled on failure. */
struct butler_disk *butler_disk_new(const struct butler_disk_params *params, struct butler_error *err);
void butler_disk_free(struct butler_disk *disk); /* may be NULL */

/* Reads or writes n blocks and returns when all are done; blocks that follow each other in the array and in the file are one
 * request. What is interrupted or comes short is asked for again. BUTLER_ERROR_IO, or BUTLER_ERROR_FORMAT where another file ends
 * too early: some blocks may have been read or written. */
int butler_disk_transfer(struct butler_disk *disk, bool write, const struct butler_disk_block *blocks, int n,
                         struct butler_error *err);

/* Begins to read n blocks, at most max_blocks. Before anything else is asked of the disk, butler_disk_finish waits for them: errors
 * as above. */
void butler_disk_begin(struct butler_disk *disk, const struct butler_disk_block *blocks, int n);
int butler_disk_finish(struct butler_disk *disk, struct butler_error *err);

const char *butler_disk_method(const struct butler_disk *disk); /* "io_uring" or "preadv", with ", cached" without O_DIRECT */

/* ---- between disk.c and disk_ring.c ---- */

/* Some blocks that follow each other in a file. */
struct butler_disk_request {
    struct iovec *pieces; /* of a block each */
    int fd, n_pieces, n_retries;
    const struct butler_disk_other *other;
    uint64_t offset;
};

struct butler_ring;
struct butler_ring *butler_ring_new(void); /* NULL: the system has none for us */
void butler_ring_free(struct butler_ring *ring);
/* done is called for each request that has run, in butler_ring_finish: true: it is to run again. */
struct butler_ring_batch {
    int n;
    bool write;
    struct butler_disk_request *requests;
    bool (*done)(void *user, struct butler_disk_request *request, int64_t result);
    void *user;
};
void butler_ring_begin(struct butler_ring *ring, const struct butler_ring_batch *batch);
void butler_ring_finish(struct butler_ring *ring);

#endif
