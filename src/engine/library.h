/* The library: keys and values of texts that were read, in a folder, so that no text is read twice. It lies below the prefix cache
 * (prefix.h), which has the same in memory.
 *
 *     FOLDER/KIND/PARENT-ID.kv     a block of up to BUTLER_BLOCK_MOST tokens (block_file.h)
 *     FOLDER/KIND/PARENT-ID.st     what a metric has kept when it has read all tokens before and these (library_state.c)
 *     FOLDER/RANDOM.use            locked while a process uses the library; blocks used since its time stay
 *
 * A block's id is a hash of its parent's id and its tokens: so texts that begin alike share files, and whoever knows the tokens
 * finds the rows. KIND is what rows depend on beside the tokens: the model, the KV type, how keys are rotated, the kernels. Blocks
 * have nothing of a policy: prompts are read densely (texts under prompt= are kept for that policy alone), and what a metric keeps
 * is made anew from the keys, or is in a file of its own. A block is whole or absent: it gets its name when it is complete, and all
 * that is read of it is compared with its checksums. */
#ifndef BUTLER_LIBRARY_H
#define BUTLER_LIBRARY_H

#include "butler_tools.h"
#include "engine/session.h"
#include "file/block_file.h"

struct butler_library {
    char *folder;
    uint64_t max_bytes;
    uint64_t bytes; /* in the folder, as far as this process knows */
    butler_library_note_fn *note;
    void *note_user;
    char *lock_path; /* the .use file */
    int lock;
    int n_sessions;
    unsigned char *buffer; /* for a chunk */
    size_t buffer_bytes;
    bool full; /* said */
    struct butler_library_info info;
};

enum { BUTLER_KIND_NAME = 64, BUTLER_BLOCK_NAME = 2 * 32 + 1 + 3 };

/* What a session has of a library. */
struct butler_shelf {
    struct butler_library *library;
    struct butler_block_id kind;
    char kind_name[BUTLER_KIND_NAME];
    uint64_t fingerprint;
    bool stopped; /* writing failed: nothing more of this session is kept */
    bool copies;  /* rows that it finds are copied, and checked before anything is computed: mapped ones were lost */
    /* The first n_known tokens, whose last block is `known`, are kept. */
    int n_known;
    struct butler_block_id known;
    int keep_at; /* butler_session_keep_at; 0: nowhere */
};

/* A file of the folder. */
struct butler_library_file {
    char kind[BUTLER_KIND_NAME], name[BUTLER_BLOCK_NAME + 1];
    struct butler_block_id parent, id;
    bool state; /* not a block */
    /* Filled if they are asked for. */
    int64_t used_ns; /* since 1970 */
    uint64_t bytes;
};

/* The order of two struct butler_library_file, for qsort and bsearch: by kind, then by id. */
int butler_library_by_id(const void *a, const void *b);
/* Tells the library's owner. */
void butler_library_say(struct butler_library *library, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The blocks and states of one kind (NULL: of all), to be freed. Returns their number; where a folder cannot be read it has none.
 * stat: with times and sizes. BUTLER_ERROR_MEMORY. */
int butler_library_files(const struct butler_library *library, const char *kind, bool stat, struct butler_library_file **files,
                         struct butler_error *err);
/* FOLDER/KIND/NAME, to be freed; NULL: no memory. */
char *butler_library_path(const struct butler_library *library, const char *kind, const char *name);
void butler_block_name(const struct butler_block_id *parent, const struct butler_block_id *id, bool state,
                       char out[BUTLER_BLOCK_NAME + 1]);
struct butler_block_id butler_block_hash(const struct butler_block_id *parent, const int32_t *tokens, int n);
static inline bool butler_block_same(const struct butler_block_id *a, const struct butler_block_id *b)
{
    return a->high == b->high && a->low == b->low;
}

/* Whether `bytes` more fit; removes what was used longest ago and is in use by no process. */
bool butler_library_make_room(struct butler_library *library, uint64_t bytes);
/* Removes a block; its size is no longer counted. */
void butler_library_unlink(struct butler_library *library, const char *path, uint64_t bytes);
/* A session begins or ends to use it. */
void butler_library_use(struct butler_library *library, int n_sessions);
/* Room for n bytes in library->buffer. */
bool butler_library_reserve(struct butler_library *library, size_t n, struct butler_error *err);
/* Opens a block or state and checks that it is the one that its name says. A damaged one is removed, after a note; one that cannot
 * be read is left out, after a note. False: there is none. */
bool butler_library_open_block(struct butler_library *library, const struct butler_library_file *file,
                               struct butler_block_file *block);
/* After a block's chunk was wrong: the note, and the file is gone if it is damaged. */
void butler_library_drop(struct butler_library *library, const char *path, uint64_t bytes, const struct butler_error *err);

/* How many of the first `most` tokens ids the library has. */
int butler_shelf_find(const struct butler_session *session, const int32_t *ids, int most);
/* Gives the session, which has the first `from` tokens (whole blocks), the rows of those behind them; records are not made. Returns
 * how many tokens it has then. */
int butler_shelf_load(struct butler_session *session, const int32_t *ids, int most, int from);
/* Whether the session has failed because rows that lie in the library's files cannot be had, for the first time: then it is empty
 * again, and will find only what can be read. The prefix cache, which may have the same rows, is empty too. */
bool butler_shelf_start_again(struct butler_session *session);
/* Keeps what the session has read as a prompt and the library has not: whole blocks, and if `whole` the tokens behind them. */
void butler_shelf_feed(struct butler_session *session, bool whole);
/* Where the session's next pass of a prompt must end at the latest: where a state is to be kept, or what was read can be kept the
 * last time before an evicting policy cuts the cache. Otherwise prompt_end. */
int butler_shelf_split(const struct butler_session *session, int prompt_end);
/* After a pass of a prompt, or the last of one that was cancelled: keeps what is to be kept now. */
void butler_shelf_keep(struct butler_session *session, int prompt_end, bool ends);
/* Where a text's chains begin. */
struct butler_block_id butler_shelf_root(const struct butler_session *session);

/* ---- states (library_state.c) ---- */

/* Whether the session's metric keeps of a prompt what cannot be made again from a part of it: sums over all queries, or what a
 * predictor saw. */
bool butler_shelf_has_states(const struct butler_session *session);
/* The longest beginning of ids, of at most `most` tokens, whose state the library has; 0: none. Its rows are another matter. */
int butler_shelf_find_state(const struct butler_session *session, const int32_t *ids, int most);
/* Gives the session, which has the rows of all its tokens, their state. False: it cannot be used, as a note has said. */
bool butler_shelf_load_state(struct butler_session *session);
/* Keeps the state of the session's tokens. */
void butler_shelf_keep_state(struct butler_session *session);
/* A state can be used only with the rows of its tokens, of whose last block fewer are not kept: the nearest place for one. */
int butler_shelf_state_place(int n);

void butler_shelf_free(struct butler_shelf *shelf); /* may be NULL */

#endif
