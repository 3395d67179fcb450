/* The library's folder as its owner sees it (butler.h, "library"): texts that are listed, removed, checked and copied. No model is
 * needed. Conventions are those of butler.h. */
#ifndef BUTLER_TOOLS_H
#define BUTLER_TOOLS_H

#include "butler.h"

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* A text of the library: all its files up to one that no other goes on from. */
struct butler_library_entry {
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
