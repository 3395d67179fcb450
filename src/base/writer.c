/* Files that are written atomically, and the folders they lie in. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/util.h"

#define SUFFIX ".tmp"
enum { N_DIGITS = 16, N_ATTEMPTS = 100 };

/* The folder of path as an open directory; -1 with errno. */
static int open_folder(const char *path)
{
    char *folder = strdup(path), *slash;
    if (!folder)
        return -1;
    slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = '\0';
    const int fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    free(folder);
    return fd;
}

/* What stands in /proc for an open file, by which it can get a name. */
static void link_path(char text[64], int fd)
{
    snprintf(text, 64, "/proc/self/fd/%d", fd);
}

/* A file without a name in the folder of path; -1 where there are none. */
static int open_unnamed(const char *path, mode_t mode)
{
    char folder[PATH_MAX], link[64];
    const char *slash = strrchr(path, '/');
    const int n = slash ? (int)(slash - path) + 1 : 1;
    if (snprintf(folder, sizeof folder, "%.*s", n, slash ? path : ".") >= (int)sizeof folder)
        return -1;
    const int fd = open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, mode);
    if (fd < 0)
        return -1;
    link_path(link, fd);
    if (access(link, F_OK) == 0)
        return fd;
    close(fd); /* no /proc: it could never get a name */
    return -1;
}

/* Room for the temporary name of path, and the next such name. */
static char *temporary_name(const char *path, char *name, uint64_t *random)
{
    const size_t size = strlen(path) + 1 + N_DIGITS + sizeof SUFFIX;
    if (!name)
        name = malloc(size);
    if (name)
        snprintf(name, size, "%s.%016llx" SUFFIX, path, (unsigned long long)butler_random(random));
    return name;
}

static uint64_t random_start(const void *address)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((uint64_t)getpid() << 32 ^ (uint64_t)(uintptr_t)address) ^ (uint64_t)now.tv_nsec << 20 ^ (uint64_t)now.tv_sec;
}

/* Creates a file in the folder of path under a name that no other has, locked while its writer lives. Not mkstemp: the file must
 * have the permissions that a plain open gives. */
static int open_named(const char *path, mode_t mode, char **name)
{
    uint64_t random = random_start(name);
    for (int attempt = 0; attempt < N_ATTEMPTS; attempt++) {
        struct stat st;
        *name = temporary_name(path, *name, &random);
        const int fd = *name ? open(*name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode) : -1;
        if (fd < 0 && (!*name || errno != EEXIST))
            return -1;
        if (fd < 0)
            continue;
        /* Another writer may have taken it for a dead one's before it was locked. */
        if (flock(fd, LOCK_EX | LOCK_NB) != 0 || (fstat(fd, &st) == 0 && st.st_nlink > 0))
            return fd; /* without locks nobody removes it either */
        close(fd);
    }
    return -1;
}

/* Removes temporary files of path whose writers have died: a living writer holds a lock on its own. */
static void remove_stale(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    const size_t n_base = strlen(base);
    const int folder = open_folder(path);
    DIR *list = folder >= 0 ? fdopendir(folder) : NULL;
    if (!list) {
        if (folder >= 0)
            close(folder);
        return;
    }
    for (const struct dirent *entry; (entry = readdir(list));) {
        const char *name = entry->d_name;
        if (strncmp(name, base, n_base) != 0 || name[n_base] != '.' || strspn(name + n_base + 1, "0123456789abcdef") != N_DIGITS ||
            strcmp(name + n_base + 1 + N_DIGITS, SUFFIX) != 0)
            continue;
        const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            unlinkat(folder, name, 0);
        close(fd);
    }
    closedir(list);
}

static int begin_hash(struct butler_writer *writer, int flags, const char *path, struct butler_error *err)
{
    if (!(flags & BUTLER_WRITER_HASH))
        return 0;
    writer->hash = XXH3_createState();
    if (writer->hash && XXH3_64bits_reset(writer->hash) == XXH_OK)
        return 0;
    return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a checksum", path);
}

int butler_writer_open(struct butler_writer *writer, const char *path, int flags, struct butler_error *err)
{
    const mode_t mode = flags & BUTLER_WRITER_PRIVATE ? 0600 : 0666;
    struct stat st;
    int fd = -1, code;
    *writer = (struct butler_writer){.unsynced = flags & BUTLER_WRITER_UNSYNCED};
    /* rename() would replace a device such as /dev/null by a plain file. */
    if (stat(path, &st) == 0 && butler_require_file(path, st.st_mode, err) < 0)
        return BUTLER_ERROR_IO;
    if ((code = begin_hash(writer, flags, path, err)) < 0)
        goto fail;
    /* A link that leads to a file stays a link: rename() would put the file in its place, even in that of /dev/stdout. */
    writer->path = lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && stat(path, &st) == 0 ? realpath(path, NULL) : strdup(path);
    if (!writer->path) {
        code = errno == ENOMEM ? butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to write it", path)
                               : butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write: %s", path, strerror(errno));
        goto fail;
    }
    path = writer->path;
    remove_stale(path);
    if (!(flags & BUTLER_WRITER_NAMED))
        fd = open_unnamed(path, mode);
    if (fd < 0)
        fd = open_named(path, mode, &writer->temporary);
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

int butler_writer_open_fd(struct butler_writer *writer, int fd, int flags, struct butler_error *err)
{
    char name[32];
    struct stat st;
    int code = 0, own = -1;
    snprintf(name, sizeof name, "file descriptor %d", fd);
    *writer = (struct butler_writer){.borrowed = true};
    if (fstat(fd, &st) == 0 && butler_require_file(name, st.st_mode, err) < 0)
        return BUTLER_ERROR_IO;
    if ((code = begin_hash(writer, flags, name, err)) < 0)
        goto fail;
    if (!(writer->path = strdup(name))) {
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to write it", name);
        goto fail;
    }
    if (ftruncate(fd, 0) != 0 || lseek(fd, 0, SEEK_SET) != 0 || (own = fcntl(fd, F_DUPFD_CLOEXEC, 0)) < 0 ||
        !(writer->file = fdopen(own, "wb"))) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write: %s", name, strerror(errno));
        if (own >= 0)
            close(own);
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

/* Syncs the folder, so that the new name survives a crash. Some file systems cannot sync a folder; that is not a failure. */
static int sync_folder(const char *path)
{
    const int fd = open_folder(path);
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

/* Gives the complete file a temporary name: no call replaces an existing name by a file without one. */
static int name_unnamed(struct butler_writer *writer, int fd)
{
    char link[64];
    uint64_t random = random_start(writer);
    link_path(link, fd);
    flock(fd, LOCK_EX | LOCK_NB);
    for (int attempt = 0; attempt < N_ATTEMPTS; attempt++) {
        writer->temporary = temporary_name(writer->path, writer->temporary, &random);
        if (!writer->temporary || linkat(AT_FDCWD, link, AT_FDCWD, writer->temporary, AT_SYMLINK_FOLLOW) == 0)
            return writer->temporary ? 0 : -1;
        if (errno != EEXIST)
            break;
    }
    const int saved = errno;
    free(writer->temporary); /* there is nothing to unlink */
    writer->temporary = NULL;
    errno = saved;
    return -1;
}

int butler_writer_commit(struct butler_writer *writer, struct butler_error *err)
{
    const uint64_t digest = writer->hash ? XXH3_64bits_digest(writer->hash) : 0;
    const int fd = fileno(writer->file);
    int code = writer->hash ? butler_write(writer, &digest, sizeof digest, err) : 0;
    if (code < 0)
        goto done;
    if (fflush(writer->file) != 0 ||
        (!writer->borrowed && ((!writer->unsynced && fsync(fd) != 0) || (!writer->temporary && name_unnamed(writer, fd) != 0)))) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot write %llu bytes: %s", writer->path,
                           (unsigned long long)writer->n_written, strerror(errno));
        goto done;
    }
    if (writer->borrowed)
        goto done;
    /* Before the file is closed, which gives up its lock. */
    if (rename(writer->temporary, writer->path) != 0) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot rename into place: %s", writer->path, strerror(errno));
        goto done;
    }
    free(writer->temporary);
    writer->temporary = NULL;
    if (!writer->unsynced && sync_folder(writer->path) != 0)
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot sync its folder: %s", writer->path, strerror(errno));
done:
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

int butler_make_folder(const char *folder)
{
    char path[PATH_MAX];
    struct stat st;
    if (snprintf(path, sizeof path, "%s", folder) >= (int)sizeof path)
        return ENAMETOOLONG;
    for (char *at = path + 1;; at++) {
        if (*at && *at != '/')
            continue;
        const char c = *at;
        *at = 0;
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return errno;
        *at = c;
        if (!c)
            break;
    }
    if (stat(folder, &st) != 0)
        return errno;
    return !S_ISDIR(st.st_mode) ? ENOTDIR : access(folder, W_OK | X_OK) != 0 ? errno : 0;
}
