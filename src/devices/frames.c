/* See frames.h. */
#include "devices/frames.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/by_use.h"
#include "devices/mapped.h"

enum {
    PENDING = UINT32_MAX, /* in frame_of: wanted, and not resident yet */
    MOST_GUESSED = 1024,  /* pieces of a prefetch */
    STAYS = 32,           /* of what a scan fetches, one in so many stays as if it had been wanted by itself */
};

/* Memory of one piece. */
struct frame {
    uint32_t piece;
    uint32_t wanted; /* the operation that wanted it last */
    bool dirty;      /* the file does not have its contents */
    bool guessed;    /* it was prefetched, and has not been wanted yet */
    bool arriving;   /* it is being read */
};

struct butler_frames {
    struct butler_places places;
    size_t extent_bytes, piece_bytes;
    uint64_t n_extents;
    uint32_t n_pieces, n_frames;
    unsigned char *addresses, *memory; /* memory: frames 0 to n_frames, of which nobody can touch the first */
    size_t memory_bytes;
    uint32_t *frame_of;        /* [n_pieces] 0: not resident */
    unsigned char *on_disk;    /* [n_pieces] */
    struct frame *frames;      /* [n_frames + 1] */
    struct butler_by_use *use; /* [n_frames + 1] those that have a piece */
    uint32_t *unused;          /* stack of frames below n_used that have no piece */
    uint32_t n_unused, n_used;
    uint64_t n_on_disk;
    struct butler_disk *disk;
    struct butler_disk_block *blocks; /* [n_frames] of a transfer */
    uint32_t *missing;                /* [n_frames] pieces of the operation that are not resident */
    uint32_t *leaving;                /* [n_frames] frames that they get */
    uint32_t operation, n_wanted, n_missing, n_scanned;
    bool too_many; /* more than memory has room for */
    uint32_t n_guessed;
    bool awaits; /* the operation wants what is being read */
    int n_arriving;
    uint32_t *arriving;           /* [n_frames] frames */
    struct butler_mapped *mapped; /* NULL: nothing has been mapped yet */
};

static int make_memory(struct butler_frames *frames, struct butler_error *err)
{
    frames->memory_bytes = ((size_t)frames->n_frames + 1) * frames->places.frame_bytes;
    frames->memory = butler_reserve(frames->memory_bytes, true, err);
    frames->addresses = butler_reserve((size_t)frames->n_extents * frames->extent_bytes, false, err);
    frames->frame_of = butler_reserve(frames->n_pieces * sizeof *frames->frame_of, false, err);
    frames->on_disk = butler_reserve(frames->n_pieces, false, err);
    frames->frames = butler_reserve(((size_t)frames->n_frames + 1) * sizeof *frames->frames, false, err);
    frames->use = butler_reserve(((size_t)frames->n_frames + 1) * sizeof *frames->use, false, err);
    frames->unused = butler_reserve(frames->n_frames * sizeof *frames->unused, false, err);
    frames->blocks = butler_reserve(frames->n_frames * sizeof *frames->blocks, false, err);
    frames->missing = butler_reserve(frames->n_frames * sizeof *frames->missing, false, err);
    frames->leaving = butler_reserve(frames->n_frames * sizeof *frames->leaving, false, err);
    frames->arriving = butler_reserve(frames->n_frames * sizeof *frames->arriving, false, err);
    if (!frames->arriving || !frames->memory || !frames->addresses || !frames->frame_of || !frames->on_disk || !frames->frames ||
        !frames->use || !frames->unused || !frames->blocks || !frames->missing || !frames->leaving)
        return BUTLER_ERROR_MEMORY;
    /* Who looks for a piece that is not there is stopped. */
    mprotect(frames->memory, frames->places.frame_bytes, PROT_NONE);
    mprotect(frames->addresses, (size_t)frames->n_extents * frames->extent_bytes, PROT_NONE);
    return 0;
}

struct butler_frames *butler_frames_new(const struct butler_frames_params *params, struct butler_error *err)
{
    struct butler_frames *frames = butler_alloc(sizeof *frames, err);
    if (!frames)
        return NULL;
    size_t frame_bytes;
    const uint32_t per_extent = butler_extent_pieces(params->extent_bytes, &frame_bytes);
    const uint64_t n_frames = params->memory / frame_bytes;
    frames->extent_bytes = params->extent_bytes;
    frames->piece_bytes = params->extent_bytes / per_extent;
    frames->n_extents = params->n_extents;
    frames->n_pieces = (uint32_t)params->n_extents * per_extent;
    frames->n_frames = (uint32_t)BUTLER_MIN(BUTLER_MAX(n_frames, 1), INT32_MAX / 2);
    frames->places =
        (struct butler_places){.frame_bytes = frame_bytes, .pieces = per_extent, .tokens = BUTLER_EXTENT_TOKENS / per_extent};
    struct butler_disk_params disk = params->disk;
    disk.block_bytes = frame_bytes;
    disk.max_blocks = (int)frames->n_frames;
    if (make_memory(frames, err) < 0 || !(frames->disk = butler_disk_new(&disk, err))) {
        butler_frames_free(frames);
        return NULL;
    }
    frames->places.frames = frames->frame_of;
    frames->places.base = frames->memory;
    return frames;
}

void butler_frames_free(struct butler_frames *frames)
{
    if (!frames)
        return;
    butler_disk_free(frames->disk);
    butler_mapped_free(frames->mapped);
    butler_unreserve(frames->memory, frames->memory_bytes);
    butler_unreserve(frames->addresses, (size_t)frames->n_extents * frames->extent_bytes);
    butler_unreserve(frames->frame_of, frames->n_pieces * sizeof *frames->frame_of);
    butler_unreserve(frames->on_disk, frames->n_pieces);
    butler_unreserve(frames->frames, ((size_t)frames->n_frames + 1) * sizeof *frames->frames);
    butler_unreserve(frames->use, ((size_t)frames->n_frames + 1) * sizeof *frames->use);
    butler_unreserve(frames->unused, frames->n_frames * sizeof *frames->unused);
    butler_unreserve(frames->blocks, frames->n_frames * sizeof *frames->blocks);
    butler_unreserve(frames->missing, frames->n_frames * sizeof *frames->missing);
    butler_unreserve(frames->arriving, frames->n_frames * sizeof *frames->arriving);
    butler_unreserve(frames->leaving, frames->n_frames * sizeof *frames->leaving);
    free(frames);
}

unsigned char *butler_frames_addresses(const struct butler_frames *frames)
{
    return frames->addresses;
}

const struct butler_places *butler_frames_places(const struct butler_frames *frames)
{
    return &frames->places;
}

const char *butler_frames_method(const struct butler_frames *frames)
{
    return butler_disk_method(frames->disk);
}

uint64_t butler_frames_resident(const struct butler_frames *frames)
{
    return (uint64_t)(frames->n_used - frames->n_unused) * frames->places.frame_bytes;
}

uint64_t butler_frames_written(const struct butler_frames *frames)
{
    return frames->n_on_disk * frames->places.frame_bytes + butler_mapped_bytes(frames->mapped);
}

bool butler_frames_map(struct butler_frames *frames, const uint32_t *extents, const struct butler_row_file *file)
{
    struct butler_error ignored; /* without memory for it the rows are uploaded */
    if (!frames->mapped)
        frames->mapped = butler_mapped_new(
            &(struct butler_mapped_params){frames->n_extents, frames->extent_bytes, frames->places.pieces, frames->disk}, &ignored);
    return frames->mapped && butler_mapped_add(frames->mapped, extents, file);
}

/* Whether a file has the contents of a piece that is not resident. */
static bool is_stored(const struct butler_frames *frames, uint32_t piece)
{
    return frames->on_disk[piece] || butler_mapped_has(frames->mapped, piece);
}

static unsigned char *frame_memory(const struct butler_frames *frames, uint32_t frame)
{
    return frames->places.base + (size_t)frame * frames->places.frame_bytes;
}

unsigned char *butler_frames_at(const struct butler_frames *frames, uint32_t piece)
{
    return frame_memory(frames, frames->frame_of[piece]);
}

/* --------------------------------------------------------------------------------------------- operations */

void butler_frames_begin(struct butler_frames *frames)
{
    frames->operation++;
    frames->n_wanted = frames->n_missing = frames->n_guessed = 0;
    frames->too_many = frames->awaits = false;
}

void butler_frames_want(struct butler_frames *frames, uint32_t piece, bool scan)
{
    const uint32_t at = frames->frame_of[piece];
    if (at == PENDING || (at && frames->frames[at].wanted == frames->operation))
        return;
    frames->n_wanted++;
    if (at) {
        frames->frames[at].wanted = frames->operation;
        frames->n_guessed += frames->frames[at].guessed;
        frames->frames[at].guessed = false;
        frames->awaits = frames->awaits || frames->frames[at].arriving;
        butler_by_use_take_out(frames->use, at);
        butler_by_use_put_in(frames->use, at, true);
    } else if (frames->n_missing == frames->n_frames) {
        frames->too_many = true;
    } else {
        frames->frame_of[piece] = PENDING;
        frames->missing[frames->n_missing++] = piece | (scan ? (uint32_t)1 << 31 : 0);
    }
}

/* ------------------------------------------------------------------------------------------------- fetching */

static int by_index(const void *a, const void *b)
{
    const uint64_t x = ((const struct butler_disk_block *)a)->index, y = ((const struct butler_disk_block *)b)->index;
    return (x > y) - (x < y);
}

/* Adds a frame that only memory has, and such neighbours of its piece as make one long request of many short ones, to blocks[n].
 * Returns how many these are then. */
static int add_dirty(struct butler_frames *frames, uint32_t at, int n)
{
    enum { NEIGHBOURS = 32 };
    const uint32_t piece = frames->frames[at].piece;
    for (int way = -1; way <= 1; way += 2)
        for (uint32_t i = way > 0, next = piece + i; i < NEIGHBOURS && next < frames->n_pieces; i++, next += (uint32_t)way) {
            const uint32_t frame = frames->frame_of[next];
            if (frame == 0 || frame == PENDING || !frames->frames[frame].dirty)
                break;
            frames->frames[frame].dirty = false;
            frames->blocks[n++] = (struct butler_disk_block){.index = next, .memory = frame_memory(frames, frame)};
        }
    return n;
}

/* Writes blocks[n], which are no longer dirty. */
static int write_dirty(struct butler_frames *frames, int n, struct butler_error *err)
{
    qsort(frames->blocks, (size_t)n, sizeof *frames->blocks, by_index);
    const int code = n > 0 ? butler_disk_transfer(frames->disk, true, frames->blocks, n, err) : 0;
    for (int i = 0; i < n; i++) {
        const uint32_t piece = (uint32_t)frames->blocks[i].index;
        frames->frames[frames->frame_of[piece]].dirty = code < 0;
        frames->n_on_disk += code == 0 && !is_stored(frames, piece);
        frames->on_disk[piece] = frames->on_disk[piece] || code == 0;
    }
    return code;
}

/* Frames for what is missing into leaving[]: unused ones, and those whose pieces were wanted longest ago. What only they have is
 * written first. */
static int make_room(struct butler_frames *frames, struct butler_error *err)
{
    uint32_t n = 0, at = frames->use[0].newer;
    int n_dirty = 0;
    const uint32_t n_fresh = frames->n_unused + frames->n_frames - frames->n_used;
    while (n + BUTLER_MIN(n_fresh, frames->n_missing) < frames->n_missing && at != 0) {
        const struct frame *frame = &frames->frames[at];
        if (frame->wanted != frames->operation) {
            if (frame->dirty)
                n_dirty = add_dirty(frames, at, n_dirty);
            frames->leaving[n++] = at;
        }
        at = frames->use[at].newer;
    }
    const int code = write_dirty(frames, n_dirty, err);
    if (code < 0)
        return code;
    if (frames->too_many || n + BUTLER_MIN(n_fresh, frames->n_missing) < frames->n_missing)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "--kv-ram: more KV pages are needed together than %llu bytes hold",
                           (unsigned long long)((uint64_t)frames->n_frames * frames->places.frame_bytes));
    for (uint32_t i = 0; i < n; i++) {
        frames->frame_of[frames->frames[frames->leaving[i]].piece] = 0;
        butler_by_use_take_out(frames->use, frames->leaving[i]);
    }
    while (n < frames->n_missing)
        frames->leaving[n++] = frames->n_unused > 0 ? frames->unused[--frames->n_unused] : ++frames->n_used;
    return 0;
}

/* What was missing is not there: all of it is to be asked for again. */
static void give_up(struct butler_frames *frames, bool frames_taken)
{
    for (uint32_t i = 0; i < frames->n_missing; i++) {
        frames->frame_of[frames->missing[i] & INT32_MAX] = 0;
        if (frames_taken)
            frames->unused[frames->n_unused++] = frames->leaving[i];
    }
}

/* Waits for what is being read. What cannot be read, or is not what its checksum says, is not resident; it is missing where the
 * operation wants it already, which reads it again and says why it cannot be. */
static int finish(struct butler_frames *frames, struct butler_error *err)
{
    const int code = frames->n_arriving > 0 ? butler_disk_finish(frames->disk, err) : 0;
    for (int i = 0; i < frames->n_arriving; i++) {
        const uint32_t at = frames->arriving[i], piece = frames->frames[at].piece;
        frames->frames[at].arriving = false;
        if (code < 0 || (!frames->on_disk[piece] && !butler_mapped_matches(frames->mapped, piece, frame_memory(frames, at)))) {
            butler_by_use_take_out(frames->use, at);
            frames->frame_of[piece] = 0;
            frames->unused[frames->n_unused++] = at;
            if (!frames->awaits || frames->frames[at].wanted != frames->operation)
                continue;
            frames->too_many = frames->too_many || frames->n_missing == frames->n_frames;
            if (frames->n_missing < frames->n_frames) {
                frames->frame_of[piece] = PENDING;
                frames->missing[frames->n_missing++] = piece;
            }
        }
    }
    frames->awaits = false;
    frames->n_arriving = 0;
    return code;
}

/* Where a mapped piece of the operation goes, once. */
static unsigned char *take_memory(void *user, uint32_t piece)
{
    struct butler_frames *frames = user;
    const uint32_t at = frames->frame_of[piece];
    if (at == 0 || at == PENDING || !frames->frames[at].arriving)
        return NULL;
    frames->frames[at].arriving = false;
    return frame_memory(frames, at);
}

/* Reads what is missing into leaving[]. */
static int read_missing(struct butler_frames *frames, struct butler_fetched *fetched, struct butler_error *err)
{
    int n = 0, n_mapped = 0, code;
    for (uint32_t i = 0; i < frames->n_missing; i++) {
        const uint32_t piece = frames->missing[i] & INT32_MAX, at = frames->leaving[i];
        const bool mapped = !frames->on_disk[piece] && butler_mapped_has(frames->mapped, piece);
        frames->frames[at] = (struct frame){.piece = piece, .arriving = mapped};
        frames->frame_of[piece] = at;
        n_mapped += mapped;
        if (frames->on_disk[piece])
            frames->blocks[n++] = (struct butler_disk_block){.index = piece, .memory = frame_memory(frames, at)};
    }
    if (n > 0 && (code = butler_disk_transfer(frames->disk, false, frames->blocks, n, err)) < 0)
        return code;
    fetched->n_read += (uint64_t)(n + n_mapped);
    fetched->bytes += (uint64_t)n * frames->places.frame_bytes;
    if (n_mapped == 0)
        return 0;
    code = butler_mapped_read(frames->mapped,
                              &(struct butler_mapped_wants){frames->missing, (int)frames->n_missing, take_memory, frames},
                              &fetched->bytes, err);
    fetched->lost = code < 0;
    return code;
}

int butler_frames_fetch(struct butler_frames *frames, struct butler_fetched *fetched, struct butler_error *err)
{
    fetched->n_wanted += frames->n_wanted;
    fetched->n_guessed += frames->n_guessed;
    if (frames->n_missing == 0 && !frames->too_many && !frames->awaits)
        return 0;
    const double start = butler_seconds();
    struct butler_error ignored; /* of a prefetch */
    finish(frames, &ignored);
    int code = make_room(frames, err);
    if (code < 0) {
        give_up(frames, false);
        return code;
    }
    if ((code = read_missing(frames, fetched, err)) < 0) {
        give_up(frames, true);
        return code;
    }
    for (uint32_t i = 0; i < frames->n_missing; i++) {
        const uint32_t piece = frames->missing[i] & INT32_MAX, at = frames->leaving[i];
        frames->frames[at] = (struct frame){.piece = piece, .wanted = frames->operation};
        const bool scan = frames->missing[i] >> 31;
        frames->n_scanned += scan;
        butler_by_use_put_in(frames->use, at, !scan || frames->n_scanned % STAYS == 0);
    }
    frames->n_missing = 0;
    fetched->ns += (uint64_t)((butler_seconds() - start) * 1e9);
    return 0;
}

void butler_frames_guess(struct butler_frames *frames, uint32_t piece)
{
    if (frames->frame_of[piece] || frames->n_missing == frames->n_frames ||
        (!frames->on_disk[piece] && !butler_mapped_is_checked(frames->mapped, piece)))
        return;
    frames->frame_of[piece] = PENDING;
    frames->missing[frames->n_missing++] = piece;
}

int butler_frames_prefetch(struct butler_frames *frames)
{
    const uint32_t n_wanted = frames->n_missing;
    uint32_t at = frames->use[0].newer;
    int n = 0;
    struct butler_error ignored;
    if (n_wanted == 0 || finish(frames, &ignored) < 0) { /* who wants it asks again */
        give_up(frames, false);
        frames->n_missing = 0;
        return 0;
    }
    for (uint32_t next; at != 0 && n < (int)n_wanted && n < (int)MOST_GUESSED; at = next) {
        const struct frame *frame = &frames->frames[at];
        next = frames->use[at].newer;
        if (frame->dirty || frame->wanted == frames->operation)
            continue;
        const uint32_t piece = frames->missing[n];
        frames->frame_of[frame->piece] = 0;
        butler_by_use_take_out(frames->use, at);
        frames->frames[at] = (struct frame){.piece = piece, .wanted = frames->operation, .guessed = true, .arriving = true};
        frames->frame_of[piece] = at;
        butler_by_use_put_in(frames->use, at, true);
        frames->blocks[n] = frames->on_disk[piece] ? (struct butler_disk_block){.index = piece, .memory = frame_memory(frames, at)}
                                                   : butler_mapped_block(frames->mapped, piece, frame_memory(frames, at));
        frames->arriving[n++] = at;
    }
    for (uint32_t i = (uint32_t)n; i < n_wanted; i++)
        frames->frame_of[frames->missing[i]] = 0;
    frames->n_missing = 0;
    frames->n_arriving = n;
    if (n > 0)
        butler_disk_begin(frames->disk, frames->blocks, n);
    return n;
}

void butler_frames_dirty(struct butler_frames *frames, uint32_t piece)
{
    frames->frames[frames->frame_of[piece]].dirty = true;
}

void butler_frames_discard(struct butler_frames *frames, uint32_t extent)
{
    struct butler_error ignored; /* of a prefetch: who wants the piece asks again */
    finish(frames, &ignored);
    const uint32_t first = extent * frames->places.pieces;
    for (uint32_t piece = first; piece < first + frames->places.pieces; piece++) {
        const uint32_t at = frames->frame_of[piece];
        if (at) {
            butler_by_use_take_out(frames->use, at);
            frames->frame_of[piece] = 0;
            frames->unused[frames->n_unused++] = at;
        }
        frames->n_on_disk -= frames->on_disk[piece] && !butler_mapped_has(frames->mapped, piece);
        frames->on_disk[piece] = 0;
    }
    butler_mapped_forget(frames->mapped, extent);
}
