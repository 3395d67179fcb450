/* See mapped.h. */
#include "devices/mapped.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

enum {
    NONE = UINT32_MAX,
    CHUNKS = 64,     /* that are read and checked together */
    ASIDE = 8,       /* of these, so many may have pieces that nobody wants */
    FILES_SHARE = 4, /* of the descriptors that the process may have, one in so many is for mapped files */
};

/* A file whose chunks some extents have. */
struct file {
    struct butler_disk_other other; /* path NULL: the entry is not in use */
    uint64_t at, chunk_bytes;
    uint32_t per_chunk, n_extents;
    uint64_t *sums;    /* [n_chunks] */
    uint32_t *extents; /* [n_chunks][per_chunk] NONE: it is another one now */
};

/* Which part of which chunk an extent has. */
struct origin {
    struct file *file; /* NULL: none */
    uint32_t chunk, part;
};

/* What is read together: a chunk, or one piece that has been checked. */
struct reading {
    const struct file *file;
    uint32_t chunk; /* NONE: a piece */
    int first, n;   /* of the blocks */
};

struct butler_mapped {
    struct butler_mapped_params params;
    size_t piece_bytes;
    struct origin *origins; /* [n_extents] */
    uint64_t *sums;         /* [n_extents][pieces] XXH3-64 of a piece; 0: its chunk has not been checked */
    struct file *files;     /* [most_files] */
    int most_files;
    uint64_t n_extents; /* that are mapped */
    XXH3_state_t *hash;
    /* What is to be read next. */
    struct reading *readings;         /* [most_blocks] */
    struct butler_disk_block *blocks; /* [most_blocks] */
    uint32_t *pieces;                 /* [most_blocks] of the blocks; NONE: another extent has it now */
    unsigned char *aside;             /* [ASIDE chunks] for pieces that nobody wants */
    int most_blocks, most_aside, n_readings, n_blocks, n_aside;
};

static int most_files(void)
{
    struct rlimit limit;
    const rlim_t most = getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur / FILES_SHARE : 0;
    return (int)BUTLER_MIN(most, 1 << 12);
}

struct butler_mapped *butler_mapped_new(const struct butler_mapped_params *params, struct butler_error *err)
{
    enum { PARTS = BUTLER_WINDOW_CHUNK / BUTLER_EXTENT_TOKENS }; /* a chunk has at most */
    struct butler_mapped *mapped = butler_alloc(sizeof *mapped, err);
    if (!mapped)
        return NULL;
    mapped->params = *params;
    mapped->piece_bytes = params->extent_bytes / params->pieces;
    mapped->most_files = most_files();
    mapped->most_blocks = CHUNKS * PARTS * (int)params->pieces;
    mapped->most_aside = ASIDE * PARTS * (int)params->pieces;
    mapped->origins = butler_reserve(params->n_extents * sizeof *mapped->origins, false, err);
    mapped->sums = butler_reserve(params->n_extents * params->pieces * sizeof *mapped->sums, false, err);
    mapped->files = butler_alloc((size_t)mapped->most_files * sizeof *mapped->files + 1, err);
    mapped->readings = butler_alloc((size_t)mapped->most_blocks * sizeof *mapped->readings, err);
    mapped->blocks = butler_alloc((size_t)mapped->most_blocks * sizeof *mapped->blocks, err);
    mapped->pieces = butler_alloc((size_t)mapped->most_blocks * sizeof *mapped->pieces, err);
    mapped->aside = butler_alloc((size_t)mapped->most_aside * mapped->piece_bytes, err);
    mapped->hash = XXH3_createState();
    if (mapped->origins && mapped->sums && mapped->files && mapped->readings && mapped->blocks && mapped->pieces && mapped->aside &&
        mapped->hash)
        return mapped;
    butler_mapped_free(mapped);
    return NULL;
}

static void close_file(struct file *file)
{
    close(file->other.fd);
    free((char *)file->other.path);
    free(file->sums);
    free(file->extents);
    *file = (struct file){0};
}

void butler_mapped_free(struct butler_mapped *mapped)
{
    if (!mapped)
        return;
    for (int i = 0; mapped->files && i < mapped->most_files; i++)
        if (mapped->files[i].other.path)
            close_file(&mapped->files[i]);
    butler_unreserve(mapped->origins, mapped->params.n_extents * sizeof *mapped->origins);
    butler_unreserve(mapped->sums, mapped->params.n_extents * mapped->params.pieces * sizeof *mapped->sums);
    XXH3_freeState(mapped->hash);
    free(mapped->files);
    free(mapped->readings);
    free(mapped->blocks);
    free(mapped->pieces);
    free(mapped->aside);
    free(mapped);
}

bool butler_mapped_add(struct butler_mapped *mapped, const uint32_t *extents, const struct butler_row_file *from)
{
    struct file *file = mapped->files, *end = file + mapped->most_files;
    const size_t n = (size_t)from->n_chunks * (size_t)from->per_chunk;
    while (file < end && file->other.path)
        file++;
    if (file == end)
        return false;
    const struct file made = {.other = {from->fd, strdup(from->path)},
                              .at = from->at,
                              .chunk_bytes = from->chunk_bytes,
                              .per_chunk = (uint32_t)from->per_chunk,
                              .n_extents = (uint32_t)n,
                              .sums = malloc((size_t)from->n_chunks * sizeof *made.sums),
                              .extents = malloc(n * sizeof *made.extents)};
    if (!made.other.path || !made.sums || !made.extents) {
        free((char *)made.other.path);
        free(made.sums);
        free(made.extents);
        return false;
    }
    *file = made;
    memcpy(file->sums, from->sums, (size_t)from->n_chunks * sizeof *file->sums);
    memcpy(file->extents, extents, n * sizeof *file->extents);
    for (size_t i = 0; i < n; i++)
        mapped->origins[extents[i]] = (struct origin){file, (uint32_t)i / file->per_chunk, (uint32_t)i % file->per_chunk};
    mapped->n_extents += n;
    posix_fadvise(from->fd, 0, 0, POSIX_FADV_RANDOM); /* what is wanted is known, and asked for */
    return true;
}

void butler_mapped_forget(struct butler_mapped *mapped, uint32_t extent)
{
    struct origin *origin = mapped ? &mapped->origins[extent] : NULL;
    struct file *file = origin ? origin->file : NULL;
    if (!file)
        return;
    file->extents[origin->chunk * file->per_chunk + origin->part] = NONE;
    memset(mapped->sums + (size_t)extent * mapped->params.pieces, 0, mapped->params.pieces * sizeof *mapped->sums);
    *origin = (struct origin){0};
    mapped->n_extents--;
    if (--file->n_extents == 0)
        close_file(file);
}

/* Bytes of piece i of a part of a chunk. */
static size_t bytes_of(const struct butler_mapped *mapped, const struct file *file, uint32_t part, uint32_t i)
{
    const uint64_t before = part * mapped->params.extent_bytes + i * mapped->piece_bytes;
    return before < file->chunk_bytes ? (size_t)BUTLER_MIN(file->chunk_bytes - before, mapped->piece_bytes) : 0;
}

static struct butler_disk_block block_of(const struct butler_mapped *mapped, const struct file *file, uint32_t chunk, uint32_t part,
                                         uint32_t i, void *memory)
{
    return (struct butler_disk_block){.index = file->at + chunk * file->chunk_bytes + part * mapped->params.extent_bytes +
                                               i * mapped->piece_bytes,
                                      .memory = memory,
                                      .other = &file->other,
                                      .n_bytes = bytes_of(mapped, file, part, i)};
}

static const struct origin *origin_of(const struct butler_mapped *mapped, uint32_t piece)
{
    return &mapped->origins[piece / mapped->params.pieces];
}

bool butler_mapped_has(const struct butler_mapped *mapped, uint32_t piece)
{
    const struct origin *origin = mapped ? origin_of(mapped, piece) : NULL;
    return origin && origin->file && bytes_of(mapped, origin->file, origin->part, piece % mapped->params.pieces) > 0;
}

bool butler_mapped_is_checked(const struct butler_mapped *mapped, uint32_t piece)
{
    return mapped && mapped->sums[piece] != 0;
}

uint64_t butler_mapped_bytes(const struct butler_mapped *mapped)
{
    return mapped ? mapped->n_extents * mapped->params.extent_bytes : 0;
}

struct butler_disk_block butler_mapped_block(const struct butler_mapped *mapped, uint32_t piece, void *memory)
{
    const struct origin *origin = origin_of(mapped, piece);
    return block_of(mapped, origin->file, origin->chunk, origin->part, piece % mapped->params.pieces, memory);
}

static uint64_t sum_of(const void *memory, size_t n)
{
    const uint64_t sum = XXH3_64bits(memory, n);
    return sum ? sum : 1;
}

bool butler_mapped_matches(const struct butler_mapped *mapped, uint32_t piece, const void *memory)
{
    const struct origin *origin = origin_of(mapped, piece);
    return sum_of(memory, bytes_of(mapped, origin->file, origin->part, piece % mapped->params.pieces)) == mapped->sums[piece];
}

/* ------------------------------------------------------------------------------------------------- reading */

/* Compares what was read. */
static bool check(struct butler_mapped *mapped, const struct reading *reading)
{
    const struct butler_disk_block *blocks = mapped->blocks + reading->first;
    const uint32_t *pieces = mapped->pieces + reading->first;
    if (reading->chunk == NONE)
        return butler_mapped_matches(mapped, pieces[0], blocks[0].memory);
    XXH3_64bits_reset(mapped->hash);
    for (int i = 0; i < reading->n; i++)
        XXH3_64bits_update(mapped->hash, blocks[i].memory, blocks[i].n_bytes);
    if (XXH3_64bits_digest(mapped->hash) != reading->file->sums[reading->chunk])
        return false;
    for (int i = 0; i < reading->n; i++)
        if (pieces[i] != NONE)
            mapped->sums[pieces[i]] = sum_of(blocks[i].memory, blocks[i].n_bytes);
    return true;
}

static int read_all(struct butler_mapped *mapped, uint64_t *n_bytes, struct butler_error *err)
{
    int code = butler_disk_transfer(mapped->params.disk, false, mapped->blocks, mapped->n_blocks, err);
    for (int i = 0; i < mapped->n_readings && code == 0; i++) {
        const struct reading *reading = &mapped->readings[i];
        if (!check(mapped, reading))
            code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: corrupt: the checksum of the rows at byte %llu does not match",
                               reading->file->other.path, (unsigned long long)mapped->blocks[reading->first].index);
    }
    for (int i = 0; i < mapped->n_blocks; i++)
        *n_bytes += mapped->blocks[i].n_bytes;
    mapped->n_readings = mapped->n_blocks = mapped->n_aside = 0;
    return code;
}

/* All pieces of the chunk that this one is of. */
static void add_chunk(struct butler_mapped *mapped, const struct butler_mapped_wants *wants, uint32_t piece)
{
    const struct origin *origin = origin_of(mapped, piece);
    const struct file *file = origin->file;
    const uint32_t per_extent = mapped->params.pieces;
    struct reading *reading = &mapped->readings[mapped->n_readings++];
    *reading = (struct reading){.file = file, .chunk = origin->chunk, .first = mapped->n_blocks};
    for (uint32_t part = 0, i = 0; bytes_of(mapped, file, part, i) > 0; part += ++i / per_extent, i %= per_extent) {
        const uint32_t extent = part < file->per_chunk ? file->extents[origin->chunk * file->per_chunk + part] : NONE;
        const uint32_t own = extent == NONE ? NONE : extent * per_extent + i;
        unsigned char *memory = own == NONE ? NULL : wants->take(wants->user, own);
        if (!memory)
            memory = mapped->aside + (size_t)mapped->n_aside++ * mapped->piece_bytes;
        mapped->pieces[mapped->n_blocks] = own;
        mapped->blocks[mapped->n_blocks++] = block_of(mapped, file, origin->chunk, part, i, memory);
        reading->n++;
    }
}

static void add_piece(struct butler_mapped *mapped, uint32_t piece, unsigned char *memory)
{
    mapped->readings[mapped->n_readings++] =
        (struct reading){.file = origin_of(mapped, piece)->file, .chunk = NONE, .first = mapped->n_blocks, .n = 1};
    mapped->pieces[mapped->n_blocks] = piece;
    mapped->blocks[mapped->n_blocks++] = butler_mapped_block(mapped, piece, memory);
}

/* Whether a chunk to be read has this piece. */
static bool is_coming(const struct butler_mapped *mapped, uint32_t piece)
{
    const struct origin *origin = origin_of(mapped, piece);
    for (int i = mapped->n_readings - 1; i >= 0; i--)
        if (mapped->readings[i].file == origin->file && mapped->readings[i].chunk == origin->chunk)
            return true;
    return false;
}

int butler_mapped_read(struct butler_mapped *mapped, const struct butler_mapped_wants *wants, uint64_t *n_bytes,
                       struct butler_error *err)
{
    const int per_chunk = mapped->most_blocks / CHUNKS;
    int code = 0;
    for (int i = 0; i < wants->n && code == 0; i++) {
        const uint32_t piece = wants->pieces[i] & INT32_MAX;
        unsigned char *memory;
        if (!butler_mapped_has(mapped, piece))
            continue;
        if (mapped->n_blocks + per_chunk > mapped->most_blocks || mapped->n_aside + per_chunk > mapped->most_aside)
            code = read_all(mapped, n_bytes, err);
        if (code < 0)
            break;
        if (butler_mapped_is_checked(mapped, piece) && (memory = wants->take(wants->user, piece)))
            add_piece(mapped, piece, memory);
        else if (!butler_mapped_is_checked(mapped, piece) && !is_coming(mapped, piece))
            add_chunk(mapped, wants, piece);
    }
    return code == 0 ? read_all(mapped, n_bytes, err) : code;
}
