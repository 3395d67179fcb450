/* The library: texts that were read and are not read again. Conventions are those of butler.h. */
#ifndef BUTLER_TOOLS_H
#define BUTLER_TOOLS_H

#include "butler.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A folder with keys and values of texts that were read, in files of up to 256 tokens, so that no text is read twice: not by
 * another session or process, under another policy, with another end or in another context. A file is found by the model's
 * fingerprint, the KV type, the kernels, and the tokens up to its last one; what is read of it is compared with checksums, and what
 * is damaged counts as absent. Several processes may use a folder. Used by the thread that runs the sessions that use it. */

/* Told in a sentence what the library could not do, where its caller goes on without: a file that is damaged, a full disk. */
typedef void butler_library_note_fn(void *user, const char *message);

struct butler_library;

struct butler_library_params {
    size_t struct_size;
    const char *folder; /* made if need be, for the user alone */
    uint64_t max_bytes; /* most bytes of its files; what was used longest ago goes first. 0: a tenth of the disk's free bytes */
    butler_library_note_fn *note; /* or NULL */
    void *user;
};

/* NULL on failure: BUTLER_ERROR_IO where the folder cannot be made or written to. */
struct butler_library *butler_library_open(const struct butler_library_params *params, struct butler_error *err);
void butler_library_free(struct butler_library *library);

/* From now on butler_session_adopt_prefix also looks in the library, and what the session reads as a prompt is kept there while it
 * is read: after every pass, and where it is cancelled. NULL: no longer. It must outlive the session; forks and copies have none.
 */
int butler_session_use_library(struct butler_session *session, struct butler_library *library, struct butler_error *err);

struct butler_library_info {
    size_t struct_size;
    const char *folder;                                   /* the library's */
    uint64_t max_bytes, bytes, bytes_read, bytes_written; /* the latter two by this process */
    int n_damaged;                                        /* files that could not be used */
};
void butler_library_get_info(const struct butler_library *library, struct butler_library_info *info);

/* A text of the library: all its files up to one that no other goes on from. */
struct butler_library_entry {
    size_t struct_size;
    char id[33];                               /* names it: the hash of its tokens */
    char model[64], isa[16];                   /* its model's name; the kernels that made the rows, and can use them */
    char text[160], end[160];                  /* how its first and its last file's text begin */
    int kv_type, n_tokens;                     /* kv_type: enum butler_kv_type */
    uint64_t model_fingerprint, bytes, shared; /* bytes of its files; of those that other texts have, too */
    int64_t used_ns;                           /* since 1970: when it was last read or written */
    bool broken;                               /* a file of its beginning is gone: what is behind it cannot be used */
};
typedef bool butler_library_entry_fn(void *user, const struct butler_library_entry *entry); /* false: stop */

/* All texts, the latest used first. Returns their number. */
int butler_library_list(struct butler_library *library, butler_library_entry_fn *fn, void *user, struct butler_error *err);
/* Removes the texts whose id begins with `id` (NULL: all), but what others share; returns their number. No text is an error. */
int butler_library_remove(struct butler_library *library, const char *id, struct butler_error *err);
/* Compares every file with its checksums. Damaged ones, and those whose beginning is gone, are removed: a note each. How many. */
int butler_library_verify(struct butler_library *library, struct butler_error *err);
/* Copies the files of the one text whose id begins with `id` into the library `to`; returns their number. */
int butler_library_export(struct butler_library *library, const char *id, struct butler_library *to, struct butler_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
