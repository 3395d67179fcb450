/* io_uring by its system calls: a ring of requests that the kernel takes, a ring of results that it gives (io_uring(7)). */
#include <errno.h>
#include <linux/io_uring.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/disk.h"

enum { DEPTH = 128 }; /* requests at a time: a power of two */

struct butler_ring {
    int fd;
    unsigned char *rings; /* both, in one mapping */
    size_t rings_bytes;
    struct io_uring_sqe *requests; /* [DEPTH] */
    size_t requests_bytes;
    unsigned *tail, *results_head, *results_tail; /* shared with the kernel */
    unsigned mask, results_mask;
    unsigned *order; /* [DEPTH] which of requests is next */
    struct io_uring_cqe *results;
    struct butler_ring_batch batch; /* under way */
    int next, in_ring, n_pushed;    /* n_pushed: that the kernel has not taken yet */
};

static bool map_rings(struct butler_ring *ring, const struct io_uring_params *params)
{
    const struct io_sqring_offsets *sq = &params->sq_off;
    const struct io_cqring_offsets *cq = &params->cq_off;
    ring->rings_bytes =
        BUTLER_MAX(sq->array + params->sq_entries * sizeof(unsigned), cq->cqes + params->cq_entries * sizeof(struct io_uring_cqe));
    ring->requests_bytes = params->sq_entries * sizeof *ring->requests;
    void *rings = mmap(NULL, ring->rings_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    void *requests = mmap(NULL, ring->requests_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    ring->rings = rings == MAP_FAILED ? NULL : rings;
    ring->requests = requests == MAP_FAILED ? NULL : requests;
    if (!ring->rings || !ring->requests)
        return false;
    ring->tail = (unsigned *)(ring->rings + sq->tail);
    ring->mask = *(unsigned *)(ring->rings + sq->ring_mask);
    ring->order = (unsigned *)(ring->rings + sq->array);
    ring->results_head = (unsigned *)(ring->rings + cq->head);
    ring->results_tail = (unsigned *)(ring->rings + cq->tail);
    ring->results_mask = *(unsigned *)(ring->rings + cq->ring_mask);
    ring->results = (struct io_uring_cqe *)(ring->rings + cq->cqes);
    return true;
}

struct butler_ring *butler_ring_new(void)
{
    struct io_uring_params params = {0};
    struct butler_ring *ring = calloc(1, sizeof *ring);
    if (!ring)
        return NULL;
    ring->fd = (int)syscall(__NR_io_uring_setup, DEPTH, &params);
    if (ring->fd < 0 || !(params.features & IORING_FEAT_SINGLE_MMAP) || !map_rings(ring, &params)) {
        butler_ring_free(ring);
        return NULL;
    }
    return ring;
}

void butler_ring_free(struct butler_ring *ring)
{
    if (!ring)
        return;
    if (ring->rings)
        munmap(ring->rings, ring->rings_bytes);
    if (ring->requests)
        munmap(ring->requests, ring->requests_bytes);
    if (ring->fd >= 0)
        close(ring->fd);
    free(ring);
}

static void push(struct butler_ring *ring, bool write, const struct butler_disk_request *request)
{
    const unsigned tail = *ring->tail, at = tail & ring->mask;
    ring->requests[at] = (struct io_uring_sqe){.opcode = write ? IORING_OP_WRITEV : IORING_OP_READV,
                                               .fd = request->fd,
                                               .off = request->offset,
                                               .addr = (uint64_t)(uintptr_t)request->pieces,
                                               .len = (uint32_t)request->n_pieces,
                                               .user_data = (uint64_t)(uintptr_t)request};
    ring->order[at] = at;
    __atomic_store_n(ring->tail, tail + 1, __ATOMIC_RELEASE);
}

/* Lets the kernel take what was pushed, and waits until it has given n_awaited results. */
static void enter(struct butler_ring *ring, int n_awaited)
{
    const long taken = syscall(__NR_io_uring_enter, ring->fd, ring->n_pushed, n_awaited, IORING_ENTER_GETEVENTS, NULL, 0);
    ring->n_pushed -= taken > 0 ? (int)taken : 0; /* refused (EINTR, EAGAIN, EBUSY): again, when some have come back */
}

static void fill(struct butler_ring *ring)
{
    const struct butler_ring_batch *batch = &ring->batch;
    for (; ring->next < batch->n && ring->in_ring < DEPTH; ring->in_ring++, ring->n_pushed++)
        push(ring, batch->write, &batch->requests[ring->next++]);
}

void butler_ring_begin(struct butler_ring *ring, const struct butler_ring_batch *batch)
{
    ring->batch = *batch;
    ring->next = ring->in_ring = ring->n_pushed = 0;
    fill(ring);
    enter(ring, 0);
}

void butler_ring_finish(struct butler_ring *ring)
{
    const struct butler_ring_batch *batch = &ring->batch;
    while (ring->next < batch->n || ring->in_ring > 0) {
        fill(ring);
        enter(ring, ring->next < batch->n ? DEPTH / 4 : ring->in_ring); /* who waits for all is woken once */
        unsigned head = *ring->results_head;
        for (; head != __atomic_load_n(ring->results_tail, __ATOMIC_ACQUIRE); head++) {
            const struct io_uring_cqe *result = &ring->results[head & ring->results_mask];
            struct butler_disk_request *request = (struct butler_disk_request *)(uintptr_t)result->user_data;
            ring->in_ring--;
            if (batch->done(batch->user, request, result->res)) {
                push(ring, batch->write, request);
                ring->in_ring++;
                ring->n_pushed++;
            }
        }
        __atomic_store_n(ring->results_head, head, __ATOMIC_RELEASE);
    }
    ring->batch.n = ring->next = 0;
}
