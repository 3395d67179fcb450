/* What all levels use: errors, checked sizes, aligned memory, arenas, mapped files, files that are written atomically. */
#ifndef BUTLER_UTIL_H
#define BUTLER_UTIL_H

#include <stdarg.h>

#include "butler.h"

#define BUTLER_MIN(a, b) ((a) < (b) ? (a) : (b))
#define BUTLER_MAX(a, b) ((a) > (b) ? (a) : (b))
#define BUTLER_CEIL_DIV(a, b) (((a) + (b)-1) / (b))
#define BUTLER_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* Fills *err (may be NULL) and returns code. */
int butler_fail(struct butler_error *err, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Of a public function's parameter: whether it is NULL, and then *err names the function and it. */
#define BUTLER_IS_NULL(pointer, err)                                                                                               \
    (!(pointer) && butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s: %s is NULL", __func__, #pointer) < 0)

/* *out = a * b or a + b; false on overflow. */
bool butler_mul_size(size_t a, size_t b, size_t *out);
bool butler_add_size(size_t a, size_t b, size_t *out);

/* 64-byte aligned and zeroed; NULL with *err filled on failure. Freed with free(). */
void *butler_alloc(size_t n_bytes, struct butler_error *err);

/* Reserves address space whose pages are zero and use no memory until they are written. huge: use huge pages where the system
 * has them, for memory that is filled densely. Otherwise huge pages are disabled, so that a single written byte costs one
 * normal page. */
void *butler_reserve(size_t n_bytes, bool huge, struct butler_error *err);
void butler_unreserve(void *base, size_t n_bytes);
/* Returns the whole pages inside [base, base + n_bytes) to the system; they read as zero afterwards. */
void butler_reserve_discard(void *base, size_t n_bytes);

/* Bytes that several owners take within one bound. */
struct butler_shared_memory {
    size_t used, max; /* used: atomic */
};

/* One allocation divided into 64-byte aligned pieces: request all pieces (want), then allocate (make). */
struct butler_arena {
    unsigned char *base;
    size_t size;
    struct butler_arena_piece {
        void **where;
        size_t offset;
    } pieces[64];
    int n_pieces;
    bool overflow;
};
void butler_arena_want(struct butler_arena *arena, void *where /* T ** */, size_t count, size_t element);
int butler_arena_make(struct butler_arena *arena, struct butler_error *err);
void butler_arena_place(struct butler_arena *arena); /* the pieces of an arena whose base somebody else has allocated */
void butler_arena_free(struct butler_arena *arena);

/* A file mapped read-only. The first one installs a handler for SIGBUS (map.c), which passes on faults of other memory. */
struct butler_map {
    const unsigned char *data; /* [size] */
    size_t size;
    struct butler_map_guard *guard; /* NULL: memory of the caller, of which the functions below know nothing */
};
/* Anything but a regular file is refused by name, before it is opened. */
int butler_map_open(struct butler_map *map, const char *path, struct butler_error *err);
/* The same for a file that is open for reading: fd stays the caller's, path is what errors call it. */
int butler_map_open_fd(struct butler_map *map, int fd, const char *path, struct butler_error *err);
/* BUTLER_ERROR_IO once the file has shrunk or could not be read: zeros were read in place of the bytes lost. To be called after
 * the bytes were used and before the result is. Takes a system call. */
int butler_map_check(const struct butler_map *map, const char *path, struct butler_error *err);
void butler_map_close(struct butler_map *map);

/* What tells one state of a file from another, without reading it. */
struct butler_file_id {
    uint64_t device, inode, size;
    int64_t modified_ns, changed_ns; /* since 1970; the latter also when the former is set by hand */
};
/* The file's id now; false if it is not the one it had when it was mapped, or there is none. */
bool butler_map_id(const struct butler_map *map, struct butler_file_id *id);

/* mode: st_mode of path. BUTLER_ERROR_IO, with what it is, for anything but a regular file. */
int butler_require_file(const char *path, unsigned mode, struct butler_error *err);
/* Makes the folder and those above it, for the user alone. 0 or errno, also where it cannot be written to. */
int butler_make_folder(const char *folder);

/* A file that appears under its name only when it is complete and synced. Until then it has no name, so that a process that is
 * killed leaves nothing; where the file system has no such files (O_TMPFILE) it is PATH.<16 digits>.tmp, which the next writer of
 * the same path removes if its process has died. */
struct butler_writer {
    void *file;             /* FILE */
    char *path, *temporary; /* temporary: the name before the final one, or NULL */
    uint64_t n_written;
    void *hash;    /* running XXH3-64 of all bytes written, or NULL */
    bool borrowed; /* a file of the caller's: it gets no name and is not synced */
    bool unsynced;
};
enum butler_writer_flags {
    BUTLER_WRITER_HASH = 1,     /* ends the file with the XXH3-64 of all bytes before it */
    BUTLER_WRITER_PRIVATE = 2,  /* permissions 0600: for what holds somebody's text */
    BUTLER_WRITER_NAMED = 4,    /* as if there were no O_TMPFILE: for tests */
    BUTLER_WRITER_UNSYNCED = 8, /* not synced: for what a checksum tells from a file that a crash of the machine left unfinished */
};
int butler_writer_open(struct butler_writer *writer, const char *path, int flags, struct butler_error *err);
/* Replaces the contents of a file that the caller has open for writing; fd stays the caller's. flags: BUTLER_WRITER_HASH. */
int butler_writer_open_fd(struct butler_writer *writer, int fd, int flags, struct butler_error *err);
int butler_write(struct butler_writer *writer, const void *bytes, size_t n, struct butler_error *err);
/* Also on failure nothing is left but what was there before. */
int butler_writer_commit(struct butler_writer *writer, struct butler_error *err);
void butler_writer_abort(struct butler_writer *writer); /* does nothing after a commit */

/* The file `name` in the first of folders[n] that has it, readable; folders are relative to that of the running program. The
 * library itself looks for no file: this is for the command and its parts. */
bool butler_find_file(const char *name, const char *const *folders, int n, char *path, size_t n_path);

/* out[n_out]: " did you mean X?" where X, one of the words of list ("a, b, c"), is `word` but for a typing error or two; else "".
 * Returns out. */
const char *butler_did_you_mean(char *out, size_t n_out, const char *word, const char *list);

double butler_seconds(void); /* monotonic */
/* Time since *clock, in nanoseconds, is added to a counter that threads share; moves the clock. */
static inline void butler_count_ns(uint64_t *counter, double *clock)
{
    const double now = butler_seconds(), ns = (now - *clock) * 1e9;
    *clock = now;
    __atomic_fetch_add(counter, (uint64_t)ns, __ATOMIC_RELAXED);
}

/* The k-th largest of x[n], 1 <= k <= n, whose order is lost. No x is NaN. */
float butler_kth_largest(float *x, int n, int k);

int butler_n_processors(void); /* that this process may run on (taskset, a container's cpuset) */
void butler_cpu_relax(void);   /* tells the CPU that the caller spins */

/* splitmix64, one step. The only source of randomness in the library. */
uint64_t butler_random(uint64_t *state);
float butler_random_float(uint64_t *state);  /* [0, 1), 24 bits */
float butler_random_normal(uint64_t *state); /* N(0, 1) */

#endif
