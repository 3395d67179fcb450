/* See disk.h: the file, requests made of neighbouring blocks, what follows from their results, and the threads that stand in for
 * the ring (disk_ring.c). */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/disk.h"

enum {
    MOST_PIECES = 64, /* blocks of a request: some can be under way at the same time */
    THREADS = 8,      /* so many requests at a time, without a ring */
    RETRIES = 100,    /* of a request that gets nowhere */
};

struct butler_disk {
    int fd;
    char *folder;
    size_t block_bytes;
    int max_blocks;
    bool cached;
    struct butler_ring *ring; /* NULL: threads */
    butler_disk_fault_fn *fault;
    void *user;
    struct iovec *pieces;                 /* [max_blocks] */
    struct butler_disk_request *requests; /* [max_blocks] */
    /* The call under way. */
    bool write;
    int n_requests;
    int error; /* errno of the first request that failed; 0: none */
    uint64_t error_at;
    const struct butler_disk_other *error_in; /* NULL: the disk's own file */
    /* Threads, which take requests[n_taken] next. */
    pthread_t threads[THREADS];
    int n_threads, n_taken, n_done;
    bool ends;
    pthread_mutex_t mutex;
    pthread_cond_t wake, finished;
};

/* The next n bytes of a request are done: of the disk's own file whole blocks of them. Whether that is any. */
static bool advance(struct butler_disk_request *request, size_t n)
{
    const uint64_t before = request->offset;
    for (; request->n_pieces > 0 && n >= request->pieces->iov_len; request->pieces++, request->n_pieces--) {
        n -= request->pieces->iov_len;
        request->offset += request->pieces->iov_len;
    }
    if (request->other && request->n_pieces > 0) {
        request->pieces->iov_base = (char *)request->pieces->iov_base + n;
        request->pieces->iov_len -= n;
        request->offset += n;
    }
    return request->offset > before;
}

/* After a request gave `result`: whether it is to run again. Not called at the same time. */
static bool request_done(void *user, struct butler_disk_request *request, int64_t result)
{
    struct butler_disk *disk = user;
    int error = result < 0 ? (int)-result : result == 0 ? ENODATA : 0;
    if (error == EINTR || error == EAGAIN)
        error = request->n_retries++ < RETRIES ? 0 : error;
    else if (error == 0) {
        request->n_retries = advance(request, (size_t)result) ? 0 : request->n_retries + 1;
        error = request->n_retries > RETRIES ? EIO : 0;
    }
    if (error && !disk->error) {
        disk->error = error;
        disk->error_at = request->offset;
        disk->error_in = request->other;
    }
    return !error && request->n_pieces > 0;
}

static bool ring_done(void *user, struct butler_disk_request *request, int64_t result)
{
    struct butler_disk *disk = user;
    return request_done(disk, request, disk->fault ? disk->fault(disk->user, disk->write, result) : result);
}

/* ------------------------------------------------------------------------------------------------- threads */

static int64_t call(const struct butler_disk *disk, const struct butler_disk_request *request)
{
    const ssize_t n = disk->write ? pwritev(request->fd, request->pieces, request->n_pieces, (off_t)request->offset)
                                  : preadv(request->fd, request->pieces, request->n_pieces, (off_t)request->offset);
    const int64_t result = n < 0 ? -errno : n;
    return disk->fault ? disk->fault(disk->user, disk->write, result) : result;
}

static void *work(void *context)
{
    struct butler_disk *disk = context;
    pthread_mutex_lock(&disk->mutex);
    while (!disk->ends) {
        if (disk->n_taken == disk->n_requests) {
            pthread_cond_wait(&disk->wake, &disk->mutex);
            continue;
        }
        struct butler_disk_request *request = &disk->requests[disk->n_taken++];
        bool again = true;
        while (again) {
            pthread_mutex_unlock(&disk->mutex);
            const int64_t result = call(disk, request);
            pthread_mutex_lock(&disk->mutex);
            again = request_done(disk, request, result);
        }
        if (++disk->n_done == disk->n_requests)
            pthread_cond_signal(&disk->finished);
    }
    pthread_mutex_unlock(&disk->mutex);
    return NULL;
}

static void begin_threads(struct butler_disk *disk, int n)
{
    pthread_mutex_lock(&disk->mutex);
    disk->n_taken = disk->n_done = 0;
    disk->n_requests = n;
    pthread_cond_broadcast(&disk->wake);
    pthread_mutex_unlock(&disk->mutex);
}

static void finish_threads(struct butler_disk *disk)
{
    pthread_mutex_lock(&disk->mutex);
    while (disk->n_done < disk->n_requests)
        pthread_cond_wait(&disk->finished, &disk->mutex);
    disk->n_taken = disk->n_done = disk->n_requests = 0;
    pthread_mutex_unlock(&disk->mutex);
}

static int start_threads(struct butler_disk *disk, struct butler_error *err)
{
    for (; disk->n_threads < THREADS; disk->n_threads++) {
        const int error = pthread_create(&disk->threads[disk->n_threads], NULL, work, disk);
        if (error)
            return butler_fail(err, BUTLER_ERROR_MEMORY, "cannot start a thread that reads KV pages: %s", strerror(error));
    }
    return 0;
}

/* ---------------------------------------------------------------------------------------------------- disk */

/* The file of a call: O_DIRECT where the file system has it. */
static int open_file(struct butler_disk *disk, struct butler_error *err)
{
    char *path = NULL;
    disk->fd = open(disk->folder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL | O_DIRECT, 0600);
    if (disk->fd < 0) {
        disk->cached = true;
        disk->fd = open(disk->folder, O_TMPFILE | O_RDWR | O_CLOEXEC | O_EXCL, 0600);
    }
    if (disk->fd < 0 && asprintf(&path, "%s/kv-XXXXXX", disk->folder) > 0 && (disk->fd = mkostemp(path, O_CLOEXEC)) >= 0)
        unlink(path);
    free(path);
    if (disk->fd < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot make a file for KV pages: %s", disk->folder, strerror(errno));
    return 0;
}

struct butler_disk *butler_disk_new(const struct butler_disk_params *params, struct butler_error *err)
{
    struct butler_disk *disk = butler_alloc(sizeof *disk, err);
    if (!disk)
        return NULL;
    disk->fd = -1;
    disk->block_bytes = params->block_bytes;
    disk->max_blocks = params->max_blocks;
    disk->fault = params->fault;
    disk->user = params->user;
    pthread_mutex_init(&disk->mutex, NULL);
    pthread_cond_init(&disk->wake, NULL);
    pthread_cond_init(&disk->finished, NULL);
    disk->folder = strdup(params->folder);
    disk->pieces = butler_reserve((size_t)params->max_blocks * sizeof *disk->pieces, false, err);
    disk->requests = butler_reserve((size_t)params->max_blocks * sizeof *disk->requests, false, err);
    if (!disk->folder || !disk->pieces || !disk->requests) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "no memory to read KV pages from %s", params->folder);
        goto fail;
    }
    if (open_file(disk, err) < 0)
        goto fail;
    disk->ring = params->threads ? NULL : butler_ring_new();
    if (!disk->ring && start_threads(disk, err) < 0)
        goto fail;
    return disk;
fail:
    butler_disk_free(disk);
    return NULL;
}

void butler_disk_free(struct butler_disk *disk)
{
    if (!disk)
        return;
    if (disk->ring)
        butler_ring_finish(disk->ring); /* the kernel may still be writing to memory */
    pthread_mutex_lock(&disk->mutex);
    disk->ends = true;
    pthread_cond_broadcast(&disk->wake);
    pthread_mutex_unlock(&disk->mutex);
    for (int i = 0; i < disk->n_threads; i++)
        pthread_join(disk->threads[i], NULL);
    pthread_cond_destroy(&disk->finished);
    pthread_cond_destroy(&disk->wake);
    pthread_mutex_destroy(&disk->mutex);
    butler_ring_free(disk->ring);
    if (disk->fd >= 0)
        close(disk->fd);
    butler_unreserve(disk->pieces, (size_t)disk->max_blocks * sizeof *disk->pieces);
    butler_unreserve(disk->requests, (size_t)disk->max_blocks * sizeof *disk->requests);
    free(disk->folder);
    free(disk);
}

/* Requests of blocks[n]; returns how many. */
static int make_requests(struct butler_disk *disk, const struct butler_disk_block *blocks, int n)
{
    int n_requests = 0;
    uint64_t end = 0; /* of the last request */
    for (int i = 0; i < n; i++) {
        struct butler_disk_request *last = n_requests > 0 ? &disk->requests[n_requests - 1] : NULL;
        const struct butler_disk_other *other = blocks[i].other;
        const size_t n_bytes = other ? blocks[i].n_bytes : disk->block_bytes;
        const uint64_t offset = other ? blocks[i].index : blocks[i].index * disk->block_bytes;
        disk->pieces[i] = (struct iovec){blocks[i].memory, n_bytes};
        if (last && last->other == other && offset == end && last->n_pieces < MOST_PIECES)
            last->n_pieces++;
        else
            disk->requests[n_requests++] = (struct butler_disk_request){
                .pieces = &disk->pieces[i], .fd = other ? other->fd : disk->fd, .n_pieces = 1, .other = other, .offset = offset};
        end = offset + n_bytes;
    }
    return n_requests;
}

static void begin(struct butler_disk *disk, bool write, const struct butler_disk_block *blocks, int n)
{
    disk->write = write;
    disk->error = 0;
    const int n_requests = make_requests(disk, blocks, n);
    if (disk->ring)
        butler_ring_begin(disk->ring,
                          &(struct butler_ring_batch){
                              .n = n_requests, .write = write, .requests = disk->requests, .done = ring_done, .user = disk});
    else
        begin_threads(disk, n_requests);
}

void butler_disk_begin(struct butler_disk *disk, const struct butler_disk_block *blocks, int n)
{
    begin(disk, false, blocks, n);
}

int butler_disk_finish(struct butler_disk *disk, struct butler_error *err)
{
    if (disk->ring)
        butler_ring_finish(disk->ring);
    else
        finish_threads(disk);
    if (!disk->error)
        return 0;
    if (disk->error_in && disk->error == ENODATA)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: ends at byte %llu, too early", disk->error_in->path,
                           (unsigned long long)disk->error_at);
    if (disk->error_in)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot read at byte %llu: %s", disk->error_in->path,
                           (unsigned long long)disk->error_at, strerror(disk->error));
    return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot %s KV pages at byte %llu of their file: %s", disk->folder,
                       disk->write ? "write" : "read", (unsigned long long)disk->error_at,
                       disk->error == ENODATA ? "it ends before" : strerror(disk->error));
}

int butler_disk_transfer(struct butler_disk *disk, bool write, const struct butler_disk_block *blocks, int n,
                         struct butler_error *err)
{
    int code = 0;
    for (int done = 0, m; done < n && code == 0; done += m) {
        m = BUTLER_MIN(n - done, disk->max_blocks);
        begin(disk, write, blocks + done, m);
        code = butler_disk_finish(disk, err);
    }
    return code;
}

const char *butler_disk_method(const struct butler_disk *disk)
{
    if (disk->ring)
        return disk->cached ? "io_uring, cached" : "io_uring";
    return disk->cached ? "preadv, cached" : "preadv";
}
