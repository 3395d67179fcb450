/* Scratch of an engine, see scratch.h. Nearly all of it is address space until it is written. */
#include <stdlib.h>
#include <string.h>

#include "engine/scratch.h"
#include "engine/session.h"

int butler_buffers_make(struct butler_buffers *buffers, struct butler_backend *backend, struct butler_error *err)
{
    struct butler_arena *arena = &buffers->pieces;
    if (arena->overflow)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%d buffers of %zu bytes in all are more than this machine can address",
                           arena->n_pieces, arena->size);
    buffers->backend = backend;
    arena->base = backend->alloc(backend, arena->size, true, err);
    if (!arena->base)
        return BUTLER_ERROR_MEMORY;
    butler_arena_place(arena);
    return 0;
}

void butler_buffers_free(struct butler_buffers *buffers)
{
    if (buffers->backend)
        buffers->backend->free(buffers->backend, buffers->pieces.base, buffers->pieces.size);
    memset(buffers, 0, sizeof *buffers);
}

/* Floats of whole cache lines. */
static size_t whole_lines(size_t n)
{
    return (n + 15) / 16 * 16;
}

static int make_device(struct butler_scratch *scratch, const struct butler_hparams *hp, struct butler_backend *backend,
                       struct butler_error *err)
{
    enum { LOGIT_FLOATS = 4 << 20, FEWEST_ROWS = 8, MOST_ROWS = 64 };
    struct butler_arena *pieces = &scratch->memory.pieces;
    const size_t n = (size_t)scratch->max_rows, dim = (size_t)hp->head_dim,
                 rot = (size_t)hp->n_rot / 2 * (hp->local_theta > 0 ? 2 : 1);
    const size_t queries = whole_lines(n * (size_t)hp->n_heads * dim), keys = whole_lines(n * (size_t)hp->n_kv_heads * dim);
    scratch->gate_floats = 2 * queries + 2 * keys;
    if (backend->matmul_prompt) /* a gate in parts that depend on the rows would be other products */
        scratch->gate_floats = BUTLER_MAX(scratch->gate_floats, n * (size_t)butler_widest_ff(hp));
    scratch->logit_rows = BUTLER_MIN(BUTLER_MAX(LOGIT_FLOATS / hp->n_vocab, FEWEST_ROWS), MOST_ROWS);
    butler_arena_want(pieces, &scratch->x, n * (size_t)hp->n_embd, sizeof(float));
    butler_arena_want(pieces, &scratch->h, n * (size_t)hp->n_embd, sizeof(float));
    butler_arena_want(pieces, &scratch->gate, scratch->gate_floats, sizeof(float));
    butler_arena_want(pieces, &scratch->up, n * (size_t)BUTLER_MAX(butler_widest_ff(hp), hp->n_embd), sizeof(float));
    if (hp->n_experts > 0) {
        butler_arena_want(pieces, &scratch->router, n * (size_t)hp->n_experts, sizeof(float));
        butler_arena_want(pieces, &scratch->expert_x, n * (size_t)hp->n_embd, sizeof(float));
        butler_arena_want(pieces, &scratch->mixed, n * (size_t)hp->n_embd, sizeof(float));
    }
    butler_arena_want(pieces, &scratch->cos, n * rot, sizeof(float));
    butler_arena_want(pieces, &scratch->sin, n * rot, sizeof(float));
    butler_arena_want(pieces, &scratch->logits, (size_t)scratch->logit_rows * (size_t)hp->n_vocab, sizeof(float));
    if (butler_buffers_make(&scratch->memory, backend, err) < 0)
        return BUTLER_ERROR_MEMORY;
    scratch->q = scratch->gate;
    scratch->o = scratch->q + queries;
    scratch->k = scratch->o + queries;
    scratch->v = scratch->k + keys;
    return 0;
}

static int make_host(struct butler_scratch *scratch, const struct butler_hparams *hp, struct butler_error *err)
{
    struct butler_arena *host = &scratch->host;
    const size_t n = (size_t)scratch->max_rows, dim = (size_t)hp->head_dim,
                 rot = (size_t)hp->n_rot / 2 * (hp->local_theta > 0 ? 2 : 1);
    butler_arena_want(host, &scratch->host_cos, n * rot, sizeof(float));
    butler_arena_want(host, &scratch->host_sin, n * rot, sizeof(float));
    butler_arena_want(host, &scratch->host_router, n * (size_t)hp->n_experts, sizeof(float));
    butler_arena_want(host, &scratch->rows, n, sizeof(int));
    butler_arena_want(host, &scratch->factors, n, sizeof(float));
    butler_arena_want(host, &scratch->tops, BUTLER_MAX(n, (size_t)scratch->logit_rows), sizeof *scratch->tops);
    butler_arena_want(host, &scratch->host_x, n * (size_t)hp->n_embd, sizeof(float));
    butler_arena_want(host, &scratch->host_h, n * (size_t)hp->n_embd, sizeof(float));
    butler_arena_want(host, &scratch->host_q, n * (size_t)hp->n_heads * dim, sizeof(float));
    butler_arena_want(host, &scratch->host_k, n * (size_t)hp->n_kv_heads * dim, sizeof(float));
    butler_arena_want(host, &scratch->host_o, n * (size_t)hp->n_heads * dim, sizeof(float));
    butler_arena_want(host, &scratch->parts, n, sizeof *scratch->parts);
    butler_arena_want(host, &scratch->spans, n, sizeof *scratch->spans);
    butler_arena_want(host, &scratch->cuts, n, sizeof *scratch->cuts);
    return butler_arena_make(host, err);
}

int butler_scratch_make(struct butler_scratch *scratch, const struct butler_hparams *hp, struct butler_backend *backend,
                        int max_rows, int max_slots, bool rotates, struct butler_error *err)
{
    if (scratch->max_rows >= max_rows && scratch->max_slots >= max_slots && scratch->rotates >= rotates)
        return 0;
    const struct butler_workspace_sizes sizes = {BUTLER_MAX(max_slots, scratch->max_slots), BUTLER_MAX(max_rows, scratch->max_rows),
                                                 butler_pool_size(backend->pool), true, rotates || scratch->rotates};
    struct butler_workspace_sizes one = sizes;
    /* Where there is no memory for it the other sessions go on with the old one. */
    struct butler_scratch larger = {
        .max_rows = sizes.max_rows, .max_slots = sizes.max_slots, .rotates = sizes.rotates, .n_batch = sizes.n_threads};
    one.n_threads = 1;
    one.products = false;
    if (make_device(&larger, hp, backend, err) < 0 || make_host(&larger, hp, err) < 0 ||
        backend->make_workspace(backend, &larger.work, hp, &sizes, err) < 0 ||
        !(larger.batch = butler_alloc((size_t)sizes.n_threads * sizeof *larger.batch, err)))
        goto fail;
    for (int i = 0; i < sizes.n_threads; i++)
        if (backend->make_workspace(backend, &larger.batch[i], hp, &one, err) < 0)
            goto fail;
    butler_scratch_free(scratch);
    *scratch = larger;
    backend->batch = scratch->batch;
    return 0;
fail:
    butler_scratch_free(&larger);
    return BUTLER_ERROR_MEMORY;
}

void butler_workspace_free(struct butler_workspace *work)
{
    butler_buffers_free(&work->memory);
    memset(work, 0, sizeof *work);
}

void butler_scratch_free(struct butler_scratch *scratch)
{
    butler_buffers_free(&scratch->memory);
    butler_arena_free(&scratch->host);
    butler_workspace_free(&scratch->work);
    for (int i = 0; scratch->batch && i < scratch->n_batch; i++)
        butler_workspace_free(&scratch->batch[i]);
    free(scratch->batch);
    memset(scratch, 0, sizeof *scratch);
}

uint64_t butler_scratch_bytes(const struct butler_scratch *scratch)
{
    uint64_t bytes = scratch->memory.pieces.size + scratch->host.size + scratch->work.memory.pieces.size;
    for (int i = 0; i < scratch->n_batch; i++)
        bytes += scratch->batch[i].memory.pieces.size;
    return bytes;
}
