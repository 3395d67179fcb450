/* Files of the library: see block_file.h. */
#include "file/block_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char magic[8] = "butlerB1";

uint64_t butler_block_rows_at(const struct butler_block_header *header)
{
    const uint64_t end = sizeof *header + (uint64_t)header->n * sizeof(int32_t);
    return BUTLER_CEIL_DIV(end, BUTLER_BLOCK_ALIGN) * BUTLER_BLOCK_ALIGN;
}

static uint64_t sums_at(const struct butler_block_header *header)
{
    return butler_block_rows_at(header) + (uint64_t)header->n_chunks * header->chunk_bytes;
}

uint64_t butler_block_file_bytes(const struct butler_block_header *header)
{
    return sums_at(header) + ((uint64_t)header->n_chunks + 1) * sizeof(uint64_t);
}

static int digest_of(const struct butler_block_header *header, const int32_t *tokens, const uint64_t *sums, uint64_t *digest,
                     struct butler_error *err)
{
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a checksum");
    XXH3_64bits_reset(state);
    XXH3_64bits_update(state, header, sizeof *header);
    XXH3_64bits_update(state, tokens, (size_t)header->n * sizeof *tokens);
    XXH3_64bits_update(state, sums, (size_t)header->n_chunks * sizeof *sums);
    *digest = XXH3_64bits_digest(state);
    XXH3_freeState(state);
    return 0;
}

/* ------------------------------------------------------------------------------------------------- reading */

static int read_at(const struct butler_block_file *block, void *to, uint64_t n, uint64_t at, struct butler_error *err)
{
    for (uint64_t done = 0; done < n;) {
        const ssize_t got = pread(block->fd, (char *)to + done, (size_t)(n - done), (off_t)(at + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot read at byte %llu: %s", block->path,
                               (unsigned long long)(at + done), strerror(errno));
        if (got == 0)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: ends at byte %llu, too early", block->path,
                               (unsigned long long)(at + done));
        done += (uint64_t)got;
    }
    return 0;
}

static bool sizes_are_possible(const struct butler_block_header *header, uint64_t file_bytes)
{
    return header->n >= 1 && header->n <= BUTLER_BLOCK_MOST && header->first >= 0 && header->first < 1 << 24 &&
           header->first % BUTLER_BLOCK_MOST == 0 && header->kv_type >= 0 && header->kv_type < BUTLER_N_KV_TYPES &&
           header->n_chunks >= 1 && header->n_chunks < 1 << 20 && header->chunk_bytes >= 1 && header->chunk_bytes < 1 << 30 &&
           butler_block_file_bytes(header) == file_bytes;
}

static int read_head(struct butler_block_file *block, struct butler_error *err)
{
    struct butler_block_header *header = &block->header;
    uint64_t digest, wanted = 0;
    int code;
    if (block->bytes < sizeof *header)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: %llu bytes are too few for a block of the library", block->path,
                           (unsigned long long)block->bytes);
    if ((code = read_at(block, header, sizeof *header, 0, err)) < 0)
        return code;
    if (memcmp(header->magic, magic, sizeof magic) != 0)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: no block of the library of this version (byte 0)", block->path);
    if (!sizes_are_possible(header, block->bytes))
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: impossible sizes in the header, or %llu bytes are not all", block->path,
                           (unsigned long long)block->bytes);
    if (!(block->sums = butler_alloc((size_t)header->n_chunks * sizeof *block->sums, err)))
        return BUTLER_ERROR_MEMORY;
    if ((code = read_at(block, block->tokens, (uint64_t)header->n * sizeof *block->tokens, sizeof *header, err)) < 0 ||
        (code = read_at(block, block->sums, (uint64_t)header->n_chunks * sizeof *block->sums, sums_at(header), err)) < 0 ||
        (code = read_at(block, &digest, sizeof digest, block->bytes - sizeof digest, err)) < 0 ||
        (code = digest_of(header, block->tokens, block->sums, &wanted, err)) < 0)
        return code;
    if (digest != wanted)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: corrupt: the checksum of its header does not match", block->path);
    header->model[sizeof header->model - 1] = header->isa[sizeof header->isa - 1] = header->text[sizeof header->text - 1] = 0;
    return 0;
}

int butler_block_open(struct butler_block_file *block, const char *path, bool *missing, struct butler_error *err)
{
    struct stat st;
    int code;
    *block = (struct butler_block_file){.fd = -1};
    *missing = false;
    if (!(block->path = strdup(path)))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for its name", path);
    block->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (block->fd < 0 || fstat(block->fd, &st) < 0) {
        *missing = errno == ENOENT;
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
        goto fail;
    }
    if ((code = butler_require_file(path, st.st_mode, err)) < 0)
        goto fail;
    block->bytes = (uint64_t)st.st_size;
    if ((code = read_head(block, err)) == 0)
        return 0;
fail:
    butler_block_close(block);
    return code;
}

int butler_block_read(const struct butler_block_file *block, int i, void *buffer, struct butler_error *err)
{
    const uint64_t n = block->header.chunk_bytes, at = butler_block_rows_at(&block->header) + (uint64_t)i * n;
    const int code = read_at(block, buffer, n, at, err);
    if (code < 0)
        return code;
    if (XXH3_64bits(buffer, (size_t)n) != block->sums[i])
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%s: corrupt: the checksum of the rows at byte %llu does not match",
                           block->path, (unsigned long long)at);
    return 0;
}

void butler_block_close(struct butler_block_file *block)
{
    if (block->path && block->fd >= 0)
        close(block->fd);
    free(block->sums);
    free(block->path);
    *block = (struct butler_block_file){.fd = -1};
}

/* ------------------------------------------------------------------------------------------------- writing */

int butler_block_write(const char *path, struct butler_block_header *header, const int32_t *tokens, butler_block_chunk_fn *chunk,
                       void *user, void *buffer, struct butler_error *err)
{
    static const char zeros[BUTLER_BLOCK_ALIGN];
    const uint64_t padding = butler_block_rows_at(header) - sizeof *header - (uint64_t)header->n * sizeof *tokens;
    struct butler_writer writer = {0};
    uint64_t digest, *sums = butler_alloc((size_t)header->n_chunks * sizeof *sums, err);
    int code = sums ? 0 : BUTLER_ERROR_MEMORY;
    memcpy(header->magic, magic, sizeof magic);
    if (code == 0)
        code = butler_writer_open(&writer, path, BUTLER_WRITER_PRIVATE | BUTLER_WRITER_UNSYNCED, err);
    if (code < 0)
        goto done;
    if ((code = butler_write(&writer, header, sizeof *header, err)) < 0 ||
        (code = butler_write(&writer, tokens, (size_t)header->n * sizeof *tokens, err)) < 0 ||
        (code = butler_write(&writer, zeros, (size_t)padding, err)) < 0)
        goto done;
    for (int i = 0; i < header->n_chunks; i++) {
        if ((code = chunk(user, i, buffer, err)) < 0)
            goto done;
        sums[i] = XXH3_64bits(buffer, (size_t)header->chunk_bytes);
        if ((code = butler_write(&writer, buffer, (size_t)header->chunk_bytes, err)) < 0)
            goto done;
    }
    if ((code = digest_of(header, tokens, sums, &digest, err)) < 0 ||
        (code = butler_write(&writer, sums, (size_t)header->n_chunks * sizeof *sums, err)) < 0 ||
        (code = butler_write(&writer, &digest, sizeof digest, err)) < 0)
        goto done;
    code = butler_writer_commit(&writer, err);
done:
    butler_writer_abort(&writer);
    free(sums);
    return code;
}
