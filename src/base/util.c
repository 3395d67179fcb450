/* Errors, memory, files that are written atomically, time, random numbers. Nothing here knows about models. */
#include "base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)

int butler_fail(struct butler_error *err, int code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        err->code = code;
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return code;
}

bool butler_mul_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_mul_overflow(a, b, out);
}

bool butler_add_size(size_t a, size_t b, size_t *out)
{
    return !__builtin_add_overflow(a, b, out);
}

void butler_cpu_relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ __volatile__("yield");
#endif
}

/* ------------------------------------------------------------------------------------------------ memory */

static bool round_up(size_t n, size_t unit, size_t *out)
{
    size_t sum;
    if (!butler_add_size(n, unit - 1, &sum))
        return false;
    *out = sum / unit * unit;
    return true;
}

void *butler_alloc(size_t n_bytes, struct butler_error *err)
{
    size_t size;
    void *p = NULL;
    if (round_up(BUTLER_MAX(n_bytes, 1), ALIGNMENT, &size))
        p = aligned_alloc(ALIGNMENT, size);
    if (!p) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot allocate %zu bytes", n_bytes);
        return NULL;
    }
    memset(p, 0, size);
    return p;
}

static size_t page_size(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

void *butler_reserve(size_t n_bytes, bool huge, struct butler_error *err)
{
    size_t size, mapped;
    /* A huge page must start at a multiple of its size, which mmap does not guarantee. So map more and unmap both ends. */
    if (!round_up(BUTLER_MAX(n_bytes, 1), page_size(), &size) ||
        !butler_add_size(size, size >= HUGE_PAGE ? HUGE_PAGE : 0, &mapped)) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot reserve %zu bytes", n_bytes);
        return NULL;
    }
    unsigned char *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "cannot reserve %zu bytes: %s", n_bytes, strerror(errno));
        return NULL;
    }
    if (mapped > size) {
        size_t head = (HUGE_PAGE - (uintptr_t)p % HUGE_PAGE) % HUGE_PAGE;
        if (head)
            munmap(p, head);
        if (HUGE_PAGE - head)
            munmap(p + head + size, HUGE_PAGE - head);
        p += head;
    }
    madvise(p, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    return p;
}

void butler_unreserve(void *base, size_t n_bytes)
{
    if (base)
        munmap(base, BUTLER_MAX(n_bytes, 1));
}

void butler_reserve_discard(void *base, size_t n_bytes)
{
    size_t page = page_size();
    uintptr_t begin = (uintptr_t)base, end = begin + n_bytes;
    begin = (begin + page - 1) / page * page;
    end = end / page * page;
    if (begin < end)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

void butler_arena_want(struct butler_arena *arena, void *where, size_t count, size_t element)
{
    size_t bytes, end;
    if (arena->n_pieces == BUTLER_COUNT(arena->pieces) || !butler_mul_size(count, element, &bytes) ||
        !round_up(bytes, ALIGNMENT, &bytes) || !butler_add_size(arena->size, bytes, &end)) {
        arena->overflow = true;
        return;
    }
    arena->pieces[arena->n_pieces++] = (struct butler_arena_piece){where, arena->size};
    arena->size = end;
}

int butler_arena_make(struct butler_arena *arena, struct butler_error *err)
{
    if (arena->overflow)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "the sizes of an arena overflow after %d pieces, %zu bytes", arena->n_pieces,
                           arena->size);
    arena->base = butler_reserve(arena->size, false, err); /* no huge pages: much of it is used only by the longest texts */
    if (!arena->base)
        return BUTLER_ERROR_MEMORY;
    butler_arena_place(arena);
    return 0;
}

void butler_arena_place(struct butler_arena *arena)
{
    for (int i = 0; i < arena->n_pieces; i++) {
        /* memcpy because `where` points to a T *, which may not be written through a void **. */
        void *piece = arena->base + arena->pieces[i].offset;
        memcpy(arena->pieces[i].where, &piece, sizeof piece);
    }
}

void butler_arena_free(struct butler_arena *arena)
{
    if (!arena)
        return;
    butler_unreserve(arena->base, arena->size);
    memset(arena, 0, sizeof *arena);
}

/* ------------------------------------------------------------------------------------------------- files */

int butler_map_open(struct butler_map *map, const char *path, struct butler_error *err)
{
    struct stat st;
    int code = 0;
    *map = (struct butler_map){0};
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot stat: %s", path, strerror(errno));
        goto fail;
    }
    if (!S_ISREG(st.st_mode)) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: not a regular file", path);
        goto fail;
    }
    if (st.st_size == 0) {
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the file is empty", path);
        goto fail;
    }
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        goto fail;
    }
    map->data = data;
    map->size = (size_t)st.st_size;
fail:
    close(fd);
    return code;
}

void butler_map_close(struct butler_map *map)
{
    if (map && map->data) {
        munmap((void *)(uintptr_t)map->data, map->size);
        *map = (struct butler_map){0};
    }
}

/* Creates a file in the directory of path, with a name that no other file has. Not mkstemp: the file must have the
 * permissions that a plain open gives. */
static int open_beside(const char *path, char **name)
{
    size_t size = strlen(path) + 48;
    uint64_t state = (uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)name;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    state ^= (uint64_t)now.tv_nsec << 20 ^ (uint64_t)now.tv_sec;
    *name = malloc(size);
    if (!*name)
        return -1;
    for (int attempt = 0; attempt < 100; attempt++) {
        snprintf(*name, size, "%s.%016llx.tmp", path, (unsigned long long)butler_random(&state));
        int fd = open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

int butler_writer_open(struct butler_writer *writer, const char *path, bool hash, struct butler_error *err)
{
    struct stat st;
    int fd = -1, code;
    *writer = (struct butler_writer){0};
    /* rename() would replace a device such as /dev/null by a plain file. */
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return butler_fail(err, BUTLER_ERROR_IO, "%s: not a regular file", path);
    if (hash) {
        writer->hash = XXH3_createState();
        if (!writer->hash || XXH3_64bits_reset(writer->hash) != XXH_OK) {
            code = butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a checksum", path);
            goto fail;
        }
    }
    writer->path = strdup(path);
    if (!writer->path) {
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to write it", path);
        goto fail;
    }
    fd = open_beside(path, &writer->temporary);
    if (fd >= 0)
        writer->file = fdopen(fd, "wb");
    if (!writer->file) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write: %s", path, strerror(errno));
        if (fd >= 0) {
            close(fd);
        } else {
            /* The file was not created, so there is nothing to unlink. */
            free(writer->temporary);
            writer->temporary = NULL;
        }
        goto fail;
    }
    return 0;
fail:
    butler_writer_abort(writer);
    return code;
}

int butler_write(struct butler_writer *writer, const void *bytes, size_t n, struct butler_error *err)
{
    if (n == 0)
        return 0;
    if (fwrite(bytes, 1, n, writer->file) != n)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write at byte %llu: %s", writer->path,
                           (unsigned long long)writer->n_written, strerror(errno));
    if (writer->hash)
        XXH3_64bits_update(writer->hash, bytes, n);
    writer->n_written += n;
    return 0;
}

uint64_t butler_writer_digest(const struct butler_writer *writer)
{
    return writer->hash ? XXH3_64bits_digest(writer->hash) : 0;
}

/* Syncs the directory, so that the new name survives a crash. Some file systems cannot sync a directory; that is not a failure. */
static int sync_directory(const char *path)
{
    char *slash, *directory = strdup(path);
    if (!directory)
        return -1;
    slash = strrchr(directory, '/');
    if (slash)
        slash[slash == directory] = '\0';
    int fd = open(slash ? directory : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(directory);
    if (fd < 0)
        return errno == EACCES ? 0 : -1;
    int status = fsync(fd);
    if (status < 0 && (errno == EINVAL || errno == ENOTSUP || errno == EROFS))
        status = 0;
    int saved = errno;
    close(fd);
    errno = saved;
    return status;
}

int butler_writer_commit(struct butler_writer *writer, struct butler_error *err)
{
    int code = 0;
    FILE *file = writer->file;
    int status = fflush(file);
    if (status == 0)
        status = fsync(fileno(file));
    int saved = errno;
    if (fclose(file) != 0 && status == 0) {
        status = -1;
        saved = errno;
    }
    writer->file = NULL;
    if (status != 0) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write %llu bytes: %s", writer->path,
                           (unsigned long long)writer->n_written, strerror(saved));
        goto fail;
    }
    if (rename(writer->temporary, writer->path) != 0) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot rename into place: %s", writer->path, strerror(errno));
        goto fail;
    }
    free(writer->temporary);
    writer->temporary = NULL;
    if (sync_directory(writer->path) != 0)
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot sync its directory: %s", writer->path, strerror(errno));
fail:
    butler_writer_abort(writer);
    return code;
}

void butler_writer_abort(struct butler_writer *writer)
{
    if (!writer)
        return;
    if (writer->file)
        fclose(writer->file);
    if (writer->temporary)
        unlink(writer->temporary);
    free(writer->temporary);
    free(writer->path);
    XXH3_freeState(writer->hash);
    *writer = (struct butler_writer){0};
}

/* -------------------------------------------------------------------------------- time and random numbers */

bool butler_find_file(const char *name, const char *const *folders, int n, char *path, size_t n_path)
{
    char self[4096];
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    if (length <= 0)
        return false;
    self[length] = 0;
    char *slash = strrchr(self, '/');
    if (!slash)
        return false;
    *slash = 0;
    for (int i = 0; i < n; i++) {
        const int written = snprintf(path, n_path, "%s/%s/%s", self, folders[i], name);
        if (written > 0 && (size_t)written < n_path && access(path, R_OK) == 0)
            return true;
    }
    return false;
}

double butler_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

uint64_t butler_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float butler_random_float(uint64_t *state)
{
    return (float)(butler_random(state) >> 40) * 0x1p-24f;
}

float butler_random_normal(uint64_t *state)
{
    /* Box-Muller; 1 - u lies in (0, 1], so the logarithm is finite. */
    float radius = sqrtf(-2.0f * logf(1.0f - butler_random_float(state)));
    return radius * cosf(6.28318530717958648f * butler_random_float(state));
}

/* -------------------------------------------------------------------------------------------- misspelt words */

enum { WORD_MAX = 40 };

/* How many letters must be inserted, left out, replaced or exchanged with their neighbour to make b[n_b] of a[n_a]. */
static int edit_distance(const char *a, int n_a, const char *b, int n_b)
{
    int rows[3][WORD_MAX + 1], *before = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= n_b; j++)
        above[j] = j;
    for (int i = 1; i <= n_a; i++) {
        row[0] = i;
        for (int j = 1; j <= n_b; j++) {
            row[j] = BUTLER_MIN(BUTLER_MIN(above[j], row[j - 1]) + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = BUTLER_MIN(row[j], before[j - 2] + 1);
        }
        int *free_row = before;
        before = above;
        above = row;
        row = free_row;
    }
    return above[n_b];
}

const char *butler_did_you_mean(char *out, size_t n_out, const char *word, const char *list)
{
    const size_t n_word = strlen(word);
    int least = (int)BUTLER_MIN(n_word, 6) / 3 + 1; /* one error in a short word, two in a longer one */
    *out = 0;
    while (*list && n_word > 1 && n_word <= WORD_MAX) {
        const size_t n = strcspn(list, ",");
        const int distance = n <= WORD_MAX ? edit_distance(word, (int)n_word, list, (int)n) : least;
        if (distance < least) {
            least = distance;
            snprintf(out, n_out, " did you mean %.*s?", (int)n, list);
        }
        list += n;
        list += strspn(list, ", ");
    }
    return out;
}
