/* A file of the library: the keys and values of one block of a text's tokens, as the cache has them. What it is found by stands in
 * it too, so that a file that was renamed or copied to a wrong place is noticed.
 *
 *   header   struct butler_block_header
 *   tokens   int32 [n]
 *   padding  zeros up to a multiple of BUTLER_BLOCK_ALIGN
 *   rows     [n_chunks][chunk_bytes]: of every layer and KV head, its n keys and values
 *   sums     uint64 [n_chunks]: the XXH3-64 of each chunk
 *   digest   the XXH3-64 of header, tokens and sums
 *
 * Little endian. A chunk is checked when it is read, in the reader's own memory: later changes of the file cannot matter. */
#ifndef BUTLER_BLOCK_FILE_H
#define BUTLER_BLOCK_FILE_H

#include "base/util.h"

enum { BUTLER_BLOCK_ALIGN = 4096, BUTLER_BLOCK_MOST = 256 /* tokens */ };

/* Names a block by its tokens and all tokens before it. */
struct butler_block_id {
    uint64_t high, low;
};

struct butler_block_header {
    char magic[8];
    struct butler_block_id kind;   /* what the rows depend on beside the tokens */
    struct butler_block_id parent; /* the block before it; of the first one, where its chain begins */
    struct butler_block_id id;
    uint64_t fingerprint;               /* of the model */
    int32_t kv_type, first, n;          /* the block's tokens are [first, first + n) of the text */
    int32_t n_chunks;                   /* layers times KV heads */
    uint64_t chunk_bytes;               /* of n tokens */
    char model[64], isa[16], text[160]; /* the model's name, the kernels that made the rows, how the block's text begins */
};

struct butler_block_file {
    struct butler_block_header header;
    int32_t tokens[BUTLER_BLOCK_MOST];
    uint64_t *sums; /* [n_chunks] */
    uint64_t bytes; /* of the file */
    char *path;
    int fd;
};

/* Opens a block and checks all but its rows. BUTLER_ERROR_IO where it cannot be read, with *missing where there is none;
 * BUTLER_ERROR_FORMAT where it is damaged or no such file. */
int butler_block_open(struct butler_block_file *block, const char *path, bool *missing, struct butler_error *err);
/* Where the rows begin. */
uint64_t butler_block_rows_at(const struct butler_block_header *header);
/* Reads chunk i of chunk_bytes into buffer, and checks it: errors as above. */
int butler_block_read(const struct butler_block_file *block, int i, void *buffer, struct butler_error *err);
void butler_block_close(struct butler_block_file *block); /* also one that could not be opened */

/* Gives the bytes of chunk i, or an error's code. */
typedef int butler_block_chunk_fn(void *user, int i, void *buffer, struct butler_error *err);
/* Writes a block whose header (but for magic) and tokens are given; buffer: room for a chunk. The file appears when it is complete,
 * readable by its owner alone. */
int butler_block_write(const char *path, struct butler_block_header *header, const int32_t *tokens, butler_block_chunk_fn *chunk,
                       void *user, void *buffer, struct butler_error *err);
/* Bytes of the file of such a block. */
uint64_t butler_block_file_bytes(const struct butler_block_header *header);

#endif
