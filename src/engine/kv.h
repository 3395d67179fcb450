/* The KV cache of one session. Every (layer, KV head) has its own page table, its own number of tokens and, under an
 * evicting policy, its own set of them. A page holds BUTLER_PAGE tokens, each a key and, behind it, its value, so that a run of
 * tokens is one sequential read and a token by itself lies in neighbouring cache lines. Pages come from the engine's pool in
 * extents, so that neighbouring pages are neighbours in memory, and may be shared with other sessions (copy on write).
 *
 * A slot is the place of a token in a head: row slot % BUTLER_PAGE of page slot / BUTLER_PAGE. Slots in use are always
 * 0 .. n_slots-1. Without eviction slot i holds position i; with it `positions` says which.
 *
 * Rows, records, norms, page tables, positions and orders are device memory (backend.h). The host keeps numbers of slots, and which
 * extents a head has.
 */
#ifndef BUTLER_KV_H
#define BUTLER_KV_H

#include "engine/pages.h"
#include "engine/policy.h"
#include "model/model.h"

/* Some bytes of device memory. */
struct butler_piece {
    void *address;
    size_t n_bytes;
};

/* Some bytes of host memory, on their way. */
struct butler_upload {
    void *to;
    const void *host;
    size_t n_bytes;
};

struct butler_kv_head {
    uint32_t *extents; /* host, [max_pages / BUTLER_EXTENT]: which of the pool */
    uint32_t *table;   /* a copy of it, for operations */
    int n_pages;       /* pages up to the last one held: whole extents */
    int n_released;    /* extents at the beginning that were given back (a window has passed them) */
    int n_slots;
    int32_t *positions;     /* [max_slots] or NULL: slot i holds position i */
    uint32_t *order;        /* [max_slots] slots by ascending position, or NULL: as they are */
    float *value_norms;     /* [max_slots] norms of the values, or NULL */
    unsigned char *records; /* what the metric keeps */
    unsigned char *state;   /* and for the head as a whole; or NULL */
};

struct butler_kv {
    int n_layers, n_heads, n_kv_heads, head_dim;
    enum butler_kv_type type;
    size_t row_bytes, page_bytes, extent_bytes;
    int max_slots, max_pages; /* per head */
    struct butler_backend *backend;
    const struct butler_kernels *kernels; /* the backend's, for CPU functions */
    struct butler_kv_head *heads;         /* [n_layers][n_kv_heads] */
    struct butler_pages *extents;         /* the engine's pool */
    unsigned char *pool;                  /* its base */
    struct butler_places places;          /* the pool's */
    struct butler_error fault; /* code < 0: an operation could not get rows of it, and did nothing; so do all that follow */
    bool lost;                 /* the fault is of rows that lie in a file of the library */
    bool shares;               /* some extents may be shared */
    uint64_t pages_held, pages_held_peak; /* shared ones included */
    /* Records of the session's metric. */
    int record_slots; /* slots a record covers; 0: no records */
    size_t record_bytes;
    size_t records_stride, records_bytes; /* per head, in all */
    size_t state_bytes;                   /* of a head's state; 0: there is none */
    unsigned char *states;                /* [heads][state_bytes], each at a multiple of 64 bytes */
    size_t states_bytes;
    bool prompt_records;         /* they are of use only while a prompt is read: what they hold is observed, and decoding
                                    does not evict */
    bool records_off;            /* there are none now */
    uint64_t metric_memory_peak; /* of records and norms */
    enum butler_value_norm value_norm;
    unsigned char *records;
    float *norms; /* [heads][max_slots] or NULL */
    size_t norms_bytes;
    /* Keys stored unrotated (rope=cache): rotations by place in the cache, [max_slots][n_rot / 2]; NULL otherwise. */
    float *rope_cos, *rope_sin;
    int n_rot;
    enum butler_rope rope;
    /* Rows of keys of type Q8_0 hold H k - shift: H the Hadamard transform, as Q8_0 has one scale for 32 channels and some models
     * have few channels with keys a hundred times as large as the others'; shift the model's key_shifts. Queries are transformed
     * where they meet rows. rope=cache turns stored keys again, so it keeps them as they are. */
    bool hadamard;
    const float *key_shifts;              /* [n_layers][n_kv_heads][head_dim] or NULL; borrowed from the model */
    const struct butler_predict *predict; /* for views; borrowed from the session, or NULL */
    const struct butler_centres *centres; /* for views; borrowed from the engine, or NULL */
    float *queries;                       /* [n_layers][n_heads][head_dim] for views; borrowed, or NULL */
    uint32_t *extents_held;               /* host: the one reservation behind the heads' extents */
    size_t extents_held_bytes;
    unsigned char *tables; /* device: the one behind tables, positions, order */
    size_t tables_bytes;
};

/* Bytes of one cache row of n elements, or 0 when the type cannot hold rows of that length. */
size_t butler_kv_row_bytes(enum butler_kv_type type, int n);

/* Heads get what the policy needs: positions and order when it evicts, norms of values, records of its metric. */
int butler_kv_init(struct butler_kv *kv, const struct butler_metric_shape *shape, struct butler_pages *pages,
                   enum butler_kv_type type, int max_slots, const struct butler_policy *policy, struct butler_error *err);
void butler_kv_free(struct butler_kv *kv);

static inline struct butler_kv_head *butler_kv_at(const struct butler_kv *kv, int layer, int kv_head)
{
    return &kv->heads[layer * kv->n_kv_heads + kv_head];
}

/* Inside operations. */
static inline unsigned char *butler_kv_key_row(const struct butler_kv *kv, const struct butler_kv_head *head, uint32_t slot)
{
    const uint32_t extent = head->table[slot / BUTLER_EXTENT_TOKENS], token = slot % BUTLER_EXTENT_TOKENS;
    const struct butler_places *places = &kv->places;
    if (!places->frames)
        return kv->pool + (size_t)extent * kv->extent_bytes + token * 2 * kv->row_bytes;
    return places->base + places->frames[extent * places->pieces + token / places->tokens] * places->frame_bytes +
           token % places->tokens * 2 * kv->row_bytes;
}

static inline unsigned char *butler_kv_value_row(const struct butler_kv *kv, const struct butler_kv_head *head, uint32_t slot)
{
    return butler_kv_key_row(kv, head, slot) + kv->row_bytes;
}

/* The row's device address, as the host finds it. */
static inline unsigned char *butler_kv_row_address(const struct butler_kv *kv, const struct butler_kv_head *head, int slot)
{
    return kv->pool + (size_t)head->extents[slot / BUTLER_EXTENT_TOKENS] * kv->extent_bytes +
           (size_t)(slot % BUTLER_EXTENT_TOKENS) * 2 * kv->row_bytes;
}

static inline int32_t butler_kv_position(const struct butler_kv_head *head, uint32_t slot)
{
    return head->positions ? head->positions[slot] : (int32_t)slot;
}

/* Bytes of an extent: BUTLER_EXTENT_TOKENS keys and values of one KV head. 0 when the type cannot hold such rows. */
static inline size_t butler_kv_extent_bytes(enum butler_kv_type type, int head_dim)
{
    return 2 * (size_t)BUTLER_EXTENT_TOKENS * butler_kv_row_bytes(type, head_dim);
}

/* Whether the pool has extents for n more tokens in every layer. */
bool butler_kv_has_room(const struct butler_kv *kv, int n);

/* Makes room in every head of a layer for n more slots and takes them: n_slots grows. A shared extent that will be written is
 * copied. Rows, positions and order are then written by the backend's append. Fails, with nothing changed but pages held, when
 * max_slots would be exceeded or the pool is full. */
int butler_kv_grow(struct butler_kv *kv, int layer, int n, struct butler_error *err);

/* The records of a head whose first slot is `first` or a later one: they begin empty. */
struct butler_piece butler_kv_new_records(const struct butler_kv *kv, const struct butler_kv_head *head, int first);

/* Copies all shared extents of a layer, so that rows may move. */
int butler_kv_unshare(struct butler_kv *kv, int layer, struct butler_error *err);

/* Cuts every head of a layer to its first n slots. Records of slots that stay must then be made anew from slot
 * butler_kv_record_start(kv, n) on, where one covers slots on both sides (backend's summarise). */
void butler_kv_truncate(struct butler_kv *kv, int layer, int n);
static inline int butler_kv_record_start(const struct butler_kv *kv, int n)
{
    return kv->record_slots > 0 ? n / kv->record_slots * kv->record_slots : n;
}

/* The first slot that a token after n others may read: whole extents. Prompts read keys in chunks of BUTLER_WINDOW_CHUNK, also in
 * front of the window, where they do not count. */
static inline int butler_kv_window_start(int n, int window)
{
    return n < window ? 0 : (n + 1 - window) / BUTLER_WINDOW_CHUNK * BUTLER_WINDOW_CHUNK;
}

/* A layer whose tokens attend to the `window` newest only: gives back the extents of slots that no later token will read, once the
 * layer holds n tokens. */
void butler_kv_release(struct butler_kv *kv, int layer, int n, int window);
/* Whether a layer with a window could go on from its first n slots: what the next token reads is still there. */
bool butler_kv_holds_window(const struct butler_kv *kv, int layer, int n, int window);

/* Gives `to` the rows of the first n slots of every head of a layer of `from`, by sharing its extents; what it held before is
 * given back. from must hold them in the order of the text. Both from one pool. Positions are set, norms and records are not. */
void butler_kv_share(struct butler_kv *to, struct butler_kv *from, int layer, int n);
/* Takes part in an extent, which gets one more reference: its first n slots are the next of a head that ends at an extent's end. */
void butler_kv_join(struct butler_kv *kv, struct butler_kv_head *head, uint32_t extent, int n);

/* ---- functions of the CPU backend (src/cpu/kv_rows.c), inside operations ---- */

/* Stores k[head_dim] and v[head_dim] in a slot. Safe in parallel for different heads. */
void butler_kv_write(struct butler_kv *kv, struct butler_kv_head *head, uint32_t slot, const float *k, const float *v);
/* Queries q[n][head_dim] that are to meet stored keys. */
void butler_kv_turn_queries(const struct butler_kv *kv, float *q, int n);
/* What butler_kv_write leaves out: norms of the values of slots [first, n_slots) of a head that keeps them, from the rows as they
 * are stored. */
void butler_kv_make_norms(const struct butler_kv *kv, struct butler_kv_head *head, int first);

/* Drops units[n] (ascending) of `unit` slots each from a head: later units move into the holes, rows and records alike,
 * a unit being filled stays last. Where records do not cover exactly what moved, `moved` (may be NULL) is told: first, for every
 * run of slots as it moves, from and to; when all have moved, with from = to, which slots changed. Dropping the unit being filled
 * is not allowed. new_slot is scratch[n_slots]. Safe in parallel for different heads. */
typedef void butler_kv_moved_fn(void *user, int from, int to, int n);
void butler_kv_drop(struct butler_kv *kv, struct butler_kv_head *head, int unit, const uint32_t *units, int n, uint32_t *new_slot,
                    butler_kv_moved_fn *moved, void *user);

/* Pages that the heads of a layer no longer need go back to the pool, their memory to the system. */
void butler_kv_trim(struct butler_kv *kv, int layer);

/* The metric's window on a head. query_position: of the token being decoded. */
struct butler_head_view butler_kv_view(const struct butler_kv *kv, int layer, int kv_head, int query_position);

uint64_t butler_kv_memory(const struct butler_kv *kv);        /* bytes of pages held */
uint64_t butler_kv_record_memory(const struct butler_kv *kv); /* bytes of records, states and norms of values in use */

/* States of the heads of a layer become zeros, as before the first token. */
void butler_kv_zero_states(struct butler_kv *kv, int layer);

/* Records become those of slots that nothing is known of; or are given back until then. */
void butler_kv_begin_records(struct butler_kv *kv);
void butler_kv_end_records(struct butler_kv *kv);

#endif
