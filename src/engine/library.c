/* The library's folder: its blocks, its limit and who uses it. See library.h; sessions are in library_text.c. */
#include "engine/abi.h"
#include "base/buffer.h"
#include "engine/library.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define SUFFIX ".kv"
#define STATE_SUFFIX ".st" /* as long */
#define USE_SUFFIX ".use"
#define UNFINISHED ".tmp"

enum { SHARE = 10 /* the default limit: this part of the disk */ };

void butler_library_say(struct butler_library *library, const char *format, ...)
{
    char message[640];
    va_list args;
    if (!library->note)
        return;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    library->note(library->note_user, message);
}

char *butler_library_path(const struct butler_library *library, const char *kind, const char *name)
{
    char *path = NULL;
    if (asprintf(&path, "%s%s%s/%s", library->folder, *kind ? "/" : "", kind, name) < 0)
        return NULL;
    return path;
}

void butler_block_name(const struct butler_block_id *parent, const struct butler_block_id *id, bool state,
                       char out[BUTLER_BLOCK_NAME + 1])
{
    snprintf(out, BUTLER_BLOCK_NAME + 1, "%016llx%016llx-%016llx%016llx%s", (unsigned long long)parent->high,
             (unsigned long long)parent->low, (unsigned long long)id->high, (unsigned long long)id->low,
             state ? STATE_SUFFIX : SUFFIX);
}

struct butler_block_id butler_block_hash(const struct butler_block_id *parent, const int32_t *tokens, int n)
{
    struct {
        struct butler_block_id parent;
        int32_t tokens[BUTLER_BLOCK_MOST];
    } all = {.parent = *parent};
    memcpy(all.tokens, tokens, (size_t)n * sizeof *tokens);
    const XXH128_hash_t hash = XXH3_128bits(&all, sizeof all.parent + (size_t)n * sizeof *tokens);
    return (struct butler_block_id){hash.high64, hash.low64};
}

/* --------------------------------------------------------------------------------------------------- files */

static bool parse_id(const char *digits, struct butler_block_id *id)
{
    char half[17] = "";
    if (strspn(digits, "0123456789abcdef") < 32)
        return false;
    memcpy(half, digits, 16);
    id->high = strtoull(half, NULL, 16);
    memcpy(half, digits + 16, 16);
    id->low = strtoull(half, NULL, 16);
    return true;
}

static bool parse_name(const char *name, struct butler_library_file *file)
{
    if (strlen(name) != BUTLER_BLOCK_NAME || !parse_id(name, &file->parent) || name[32] != '-' || !parse_id(name + 33, &file->id) ||
        (strcmp(name + 65, SUFFIX) != 0 && strcmp(name + 65, STATE_SUFFIX) != 0))
        return false;
    file->state = strcmp(name + 65, STATE_SUFFIX) == 0;
    memcpy(file->name, name, BUTLER_BLOCK_NAME + 1);
    return true;
}

struct files {
    struct butler_library_file *values;
    int n;
    size_t capacity;
    bool stat, failed;
};

static int64_t ns_of(struct timespec t)
{
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void add_file(struct files *files, int folder, const char *kind, const char *name)
{
    struct butler_library_file file = {0};
    struct stat st;
    if (!parse_name(name, &file) || (files->stat && fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0))
        return;
    snprintf(file.kind, sizeof file.kind, "%s", kind);
    if (files->stat) {
        file.used_ns = ns_of(st.st_mtim);
        file.bytes = (uint64_t)st.st_size;
    }
    if (butler_grow(&files->values, (size_t)files->n + 1, &files->capacity, sizeof *files->values))
        files->values[files->n++] = file;
    else
        files->failed = true;
}

/* What a process that was killed between two steps of writing left behind. */
static void remove_unfinished(int folder, const char *name)
{
    const size_t n = strlen(name);
    if (n < sizeof UNFINISHED || strcmp(name + n - (sizeof UNFINISHED - 1), UNFINISHED) != 0)
        return;
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    if (fd < 0)
        return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        unlinkat(folder, name, 0);
    close(fd);
}

static void add_kind(const struct butler_library *library, const char *kind, struct files *files)
{
    char *path = butler_library_path(library, "", kind);
    DIR *dir = path ? opendir(path) : NULL;
    files->failed = files->failed || !path;
    for (struct dirent *found; dir && (found = readdir(dir));) {
        add_file(files, dirfd(dir), kind, found->d_name);
        if (files->stat)
            remove_unfinished(dirfd(dir), found->d_name);
    }
    if (dir)
        closedir(dir);
    free(path);
}

int butler_library_files(const struct butler_library *library, const char *kind, bool stat, struct butler_library_file **out,
                         struct butler_error *err)
{
    struct files files = {.stat = stat};
    DIR *dir = kind ? NULL : opendir(library->folder);
    if (kind)
        add_kind(library, kind, &files);
    for (struct dirent *found; dir && (found = readdir(dir));)
        if (found->d_name[0] != '.' && strlen(found->d_name) < BUTLER_KIND_NAME)
            add_kind(library, found->d_name, &files);
    if (dir)
        closedir(dir);
    *out = files.values;
    if (!files.failed)
        return files.n;
    free(files.values);
    *out = NULL;
    return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to list it", library->folder);
}

/* ----------------------------------------------------------------------------------------------------- use */

/* The earliest time since when a living process uses blocks; removes the files of dead ones. */
static int64_t in_use_since(const struct butler_library *library)
{
    DIR *dir = opendir(library->folder);
    int64_t since = INT64_MAX;
    for (struct dirent *found; dir && (found = readdir(dir));) {
        const size_t n = strlen(found->d_name);
        struct stat st;
        if (n < sizeof USE_SUFFIX || strcmp(found->d_name + n - (sizeof USE_SUFFIX - 1), USE_SUFFIX) != 0)
            continue;
        const int fd = openat(dirfd(dir), found->d_name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(dirfd(dir), found->d_name, 0);
        else if (fstat(fd, &st) == 0)
            since = BUTLER_MIN(since, ns_of(st.st_mtim));
        close(fd);
    }
    if (dir)
        closedir(dir);
    return since;
}

static int open_lock(struct butler_library *library, struct butler_error *err)
{
    struct timespec now;
    char name[32];
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t random = (uint64_t)ns_of(now) ^ (uint64_t)getpid() << 40 ^ (uint64_t)(uintptr_t)library;
    for (int attempt = 0; attempt < 100; attempt++) {
        struct stat st;
        free(library->lock_path);
        snprintf(name, sizeof name, "%016llx" USE_SUFFIX, (unsigned long long)butler_random(&random));
        library->lock_path = butler_library_path(library, "", name);
        library->lock =
            library->lock_path ? open(library->lock_path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : (errno = ENOMEM, -1);
        if (library->lock < 0 && errno == EEXIST)
            continue;
        /* Another process may have taken it for a dead one's before it was locked. */
        if (library->lock < 0 ||
            (flock(library->lock, LOCK_EX | LOCK_NB) == 0 && fstat(library->lock, &st) == 0 && st.st_nlink > 0))
            break;
        close(library->lock);
        library->lock = -1;
    }
    if (library->lock < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write: %s", library->folder, strerror(errno));
    butler_library_use(library, 0);
    return 0;
}

void butler_library_use(struct butler_library *library, int n_sessions)
{
    const struct timespec never[2] = {{.tv_sec = INT32_MAX}, {.tv_sec = INT32_MAX}};
    const int before = library->n_sessions;
    library->n_sessions += n_sessions;
    if (library->n_sessions == 0)
        futimens(library->lock, never);
    else if (before == 0)
        futimens(library->lock, NULL); /* now */
}

static int by_use(const void *a, const void *b)
{
    const int64_t x = ((const struct butler_library_file *)a)->used_ns, y = ((const struct butler_library_file *)b)->used_ns;
    return (x > y) - (x < y);
}

void butler_library_unlink(struct butler_library *library, const char *path, uint64_t bytes)
{
    if (unlink(path) == 0)
        library->bytes -= BUTLER_MIN(bytes, library->bytes);
}

/* A block by its id, for a search. */
struct place {
    const struct butler_library_file *file;
    int at;
};

int butler_library_by_id(const void *a, const void *b)
{
    const struct butler_library_file *x = a, *y = b;
    const int kinds = strcmp(x->kind, y->kind);
    if (kinds)
        return kinds;
    if (x->id.high != y->id.high)
        return x->id.high < y->id.high ? -1 : 1;
    return (x->id.low > y->id.low) - (x->id.low < y->id.low);
}

static int by_block(const void *a, const void *b)
{
    return butler_library_by_id(((const struct place *)a)->file, ((const struct place *)b)->file);
}

/* For each of files[n] the one that it stands behind, or -1, and how many stand behind it. false: no memory. */
static bool find_parents(const struct butler_library_file *files, int n, int *parents, int *n_children)
{
    struct place *blocks = malloc(((size_t)n + 1) * sizeof *blocks);
    int n_blocks = 0;
    if (!blocks)
        return false;
    for (int i = 0; i < n; i++) {
        n_children[i] = 0;
        if (!files[i].state)
            blocks[n_blocks++] = (struct place){&files[i], i};
    }
    qsort(blocks, (size_t)n_blocks, sizeof *blocks, by_block);
    for (int i = 0; i < n; i++) {
        struct butler_library_file before = {.id = files[i].parent};
        memcpy(before.kind, files[i].kind, sizeof before.kind);
        const struct place *found = bsearch(&(struct place){&before, 0}, blocks, (size_t)n_blocks, sizeof *blocks, by_block);
        parents[i] = found ? found->at : -1;
        if (found)
            n_children[found->at]++;
    }
    free(blocks);
    return true;
}

bool butler_library_make_room(struct butler_library *library, uint64_t bytes)
{
    struct butler_library_file *files;
    if (library->bytes + bytes <= library->max_bytes)
        return true;
    const int n = butler_library_files(library, NULL, true, &files, NULL);
    const int64_t since = in_use_since(library);
    int *parents = malloc((2 * (size_t)BUTLER_MAX(n, 0) + 1) * sizeof *parents), *n_children = parents ? parents + n : NULL;
    if (n > 0)
        qsort(files, (size_t)n, sizeof *files, by_use);
    library->bytes = 0;
    for (int i = 0; i < n; i++)
        library->bytes += files[i].bytes;
    /* Ends of texts go first: behind a block that is gone nothing can be used. */
    for (int i = 0; i < n && parents && (i > 0 || find_parents(files, n, parents, n_children)); i++)
        for (int at = i; at >= 0 && at <= i && n_children[at] == 0 && files[at].used_ns < since &&
                         library->bytes + bytes > library->max_bytes;) {
            char *path = butler_library_path(library, files[at].kind, files[at].name);
            if (path)
                butler_library_unlink(library, path, files[at].bytes);
            free(path);
            n_children[at] = -1; /* gone */
            at = parents[at];
            if (at >= 0)
                n_children[at]--;
        }
    free(parents);
    free(files);
    return library->bytes + bytes <= library->max_bytes;
}

bool butler_library_reserve(struct butler_library *library, size_t n, struct butler_error *err)
{
    if (n <= library->buffer_bytes)
        return true;
    free(library->buffer);
    library->buffer = butler_alloc(n, err);
    library->buffer_bytes = library->buffer ? n : 0;
    return library->buffer;
}

/* -------------------------------------------------------------------------------------------------- blocks */

void butler_library_drop(struct butler_library *library, const char *path, uint64_t bytes, const struct butler_error *err)
{
    library->info.n_damaged++;
    butler_library_say(library, "%s; it is %s, and its text read again", err->message,
                       err->code == BUTLER_ERROR_FORMAT ? "removed" : "not used");
    if (err->code == BUTLER_ERROR_FORMAT)
        butler_library_unlink(library, path, bytes);
}

bool butler_library_open_block(struct butler_library *library, const struct butler_library_file *file,
                               struct butler_block_file *block)
{
    struct butler_error err = {0};
    bool missing = false, found = false;
    char *path = butler_library_path(library, file->kind, file->name);
    if (!path)
        return false;
    int code = butler_block_open(block, path, &missing, &err);
    if (code == 0) {
        const struct butler_block_header *header = &block->header;
        const struct butler_block_id id = file->state ? file->id : butler_block_hash(&file->parent, block->tokens, header->n);
        found = butler_block_same(&header->parent, &file->parent) && butler_block_same(&header->id, &file->id) &&
                butler_block_same(&id, &file->id);
        if (!found) {
            code = butler_fail(&err, BUTLER_ERROR_FORMAT, "%s: is another block than its name says", path);
            butler_block_close(block);
        }
    }
    if (code < 0 && !missing)
        butler_library_drop(library, path, 0, &err);
    free(path);
    return found;
}

/* ------------------------------------------------------------------------------------------------- library */

/* A tenth of the disk's free bytes, those of the library among them. */
static uint64_t default_limit(const struct butler_library *library)
{
    struct statvfs disk;
    const uint64_t unused = statvfs(library->folder, &disk) == 0 ? (uint64_t)disk.f_bavail * disk.f_frsize : 0;
    return (unused + library->bytes) / SHARE;
}

struct butler_library *butler_library_open(const struct butler_library_params *params, struct butler_error *err)
{
    struct butler_library_file *files = NULL;
    struct butler_library_params own;
    if (BUTLER_IS_NULL(params, err) ||
        butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_library_params, user), "butler_library_params", err) < 0)
        return NULL;
    params = &own;
    if (BUTLER_IS_NULL(params->folder, err))
        return NULL;
    const int error = butler_make_folder(params->folder);
    if (error) {
        butler_fail(err, BUTLER_ERROR_IO, "%s: %s", params->folder, strerror(error));
        return NULL;
    }
    struct butler_library *library = butler_alloc(sizeof *library, err);
    if (!library)
        return NULL;
    library->lock = -1;
    library->note = params->note;
    library->note_user = params->user;
    library->folder = strdup(params->folder);
    if (!library->folder) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for its name", params->folder);
        goto fail;
    }
    const int n = butler_library_files(library, NULL, true, &files, err);
    if (n < 0 || open_lock(library, err) < 0)
        goto fail;
    in_use_since(library); /* removes what killed processes left */
    for (int i = 0; i < n; i++)
        library->bytes += files[i].bytes;
    free(files);
    library->max_bytes = params->max_bytes ? params->max_bytes : default_limit(library);
    return library;
fail:
    free(files);
    butler_library_free(library);
    return NULL;
}

void butler_library_free(struct butler_library *library)
{
    if (!library)
        return;
    if (library->lock >= 0) {
        unlink(library->lock_path);
        close(library->lock);
    }
    free(library->lock_path);
    free(library->buffer);
    free(library->folder);
    free(library);
}

void butler_library_get_info(const struct butler_library *library, struct butler_library_info *info)
{
    if (!info)
        return;
    struct butler_library_info own = library ? library->info : (struct butler_library_info){0};
    if (library) {
        own.folder = library->folder;
        own.max_bytes = library->max_bytes;
        own.bytes = library->bytes;
    }
    butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_library_info, n_damaged));
}
