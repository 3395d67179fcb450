/* Files mapped read-only. A file that shrinks while it is mapped leaves pages behind its new end whose access raises SIGBUS: a
 * handler puts pages of zeros in their place and notes the loss, so that the thread goes on, and butler_map_check then gives the
 * error. Checking the size before each access instead would be a race that a step of 100 ms loses. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/util.h"

/* A mapped file as the handler sees it. Guards are never freed, only used again: the handler may walk the list at any time. */
struct butler_map_guard {
    struct butler_map_guard *next;
    atomic_bool used;
    atomic_uintptr_t begin; /* 0: nothing is mapped */
    atomic_size_t size;
    atomic_bool lost;    /* bytes of the file could not be read; zeros were read instead */
    atomic_size_t first; /* where the first of them was */
    int fd;
    struct butler_file_id id;
};

/* A signal handler has no other argument than the signal: its state must be global. */
static _Atomic(struct butler_map_guard *) guards;
static struct sigaction previous; /* who had SIGBUS before us */
static size_t page_bytes;
static pthread_once_t handler_once = PTHREAD_ONCE_INIT;

/* Replaces everything from the page of address to the end of the mapping: a file that shrinks loses its end. */
static bool replace_lost_pages(struct butler_map_guard *guard, uintptr_t address)
{
    const uintptr_t begin = atomic_load(&guard->begin);
    const size_t size = atomic_load(&guard->size);
    if (begin == 0 || address < begin || address - begin >= (size + page_bytes - 1) / page_bytes * page_bytes)
        return false;
    const uintptr_t page = address / page_bytes * page_bytes;
    if (mmap((void *)page, begin + size - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
        return false;
    if (!atomic_exchange(&guard->lost, true))
        atomic_store(&guard->first, address - begin);
    return true;
}

/* Faults of other memory go to the handler that was there before. mmap is a plain system call, which a handler may make. */
static void on_bus_error(int signal_number, siginfo_t *info, void *context)
{
    const int saved = errno;
    for (struct butler_map_guard *guard = atomic_load(&guards); guard; guard = guard->next)
        if (info->si_code > 0 && replace_lost_pages(guard, (uintptr_t)info->si_addr)) {
            errno = saved;
            return;
        }
    if (previous.sa_flags & SA_SIGINFO) {
        previous.sa_sigaction(signal_number, info, context);
    } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
        previous.sa_handler(signal_number);
    } else if (previous.sa_handler == SIG_DFL || info->si_code > 0) {
        /* Ends the process as it would have ended without us. */
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    errno = saved;
}

static void install_handler(void)
{
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART};
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, &previous);
}

static struct butler_map_guard *take_guard(void)
{
    for (struct butler_map_guard *guard = atomic_load(&guards); guard; guard = guard->next)
        if (!atomic_exchange(&guard->used, true))
            return guard;
    struct butler_map_guard *guard = calloc(1, sizeof *guard);
    if (!guard)
        return NULL;
    atomic_store(&guard->used, true);
    guard->next = atomic_load(&guards);
    while (!atomic_compare_exchange_weak(&guards, &guard->next, guard))
        continue;
    return guard;
}

int butler_require_file(const char *path, unsigned mode, struct butler_error *err)
{
    const char *kind = S_ISDIR(mode)                    ? "a directory"
                       : S_ISFIFO(mode)                 ? "a pipe (FIFO)"
                       : S_ISCHR(mode) || S_ISBLK(mode) ? "a device"
                       : S_ISSOCK(mode)                 ? "a socket"
                                                        : "of an unknown kind";
    return S_ISREG(mode) ? 0 : butler_fail(err, BUTLER_ERROR_IO, "%s: not a regular file: it is %s", path, kind);
}

static struct butler_file_id id_of(const struct stat *st)
{
    return (struct butler_file_id){.device = (uint64_t)st->st_dev,
                                   .inode = (uint64_t)st->st_ino,
                                   .size = (uint64_t)st->st_size,
                                   .modified_ns = (int64_t)st->st_mtim.tv_sec * 1000000000 + st->st_mtim.tv_nsec,
                                   .changed_ns = (int64_t)st->st_ctim.tv_sec * 1000000000 + st->st_ctim.tv_nsec};
}

/* Takes over fd, which is closed on failure. */
static int map_file(struct butler_map *map, int fd, const char *path, struct butler_error *err)
{
    struct stat st;
    int code = 0;
    struct butler_map_guard *guard = NULL;
    pthread_once(&handler_once, install_handler);
    if (fstat(fd, &st) < 0) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot stat: %s", path, strerror(errno));
        goto fail;
    }
    if ((code = butler_require_file(path, st.st_mode, err)) < 0)
        goto fail;
    if (st.st_size == 0) {
        code = butler_fail(err, BUTLER_ERROR_FORMAT, "%s: the file is empty", path);
        goto fail;
    }
    guard = take_guard();
    if (!guard) {
        code = butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to map it", path);
        goto fail;
    }
    void *data = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        code = butler_fail(err, BUTLER_ERROR_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size, strerror(errno));
        goto fail;
    }
    guard->fd = fd;
    guard->id = id_of(&st);
    atomic_store(&guard->lost, false);
    atomic_store(&guard->size, (size_t)st.st_size);
    atomic_store(&guard->begin, (uintptr_t)data);
    *map = (struct butler_map){.data = data, .size = (size_t)st.st_size, .guard = guard};
    return 0;
fail:
    if (guard)
        atomic_store(&guard->used, false);
    close(fd);
    return code;
}

int butler_map_open(struct butler_map *map, const char *path, struct butler_error *err)
{
    struct stat st;
    *map = (struct butler_map){0};
    /* Before the file is opened: a pipe would block, and opening a device can do something. O_NONBLOCK for what is put in the
     * file's place in between. */
    if (stat(path, &st) == 0 && butler_require_file(path, st.st_mode, err) < 0)
        return BUTLER_ERROR_IO;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    return map_file(map, fd, path, err);
}

int butler_map_open_fd(struct butler_map *map, int fd, const char *path, struct butler_error *err)
{
    *map = (struct butler_map){0};
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot open: %s", path, strerror(errno));
    return map_file(map, own, path, err);
}

int butler_map_check(const struct butler_map *map, const char *path, struct butler_error *err)
{
    struct stat st;
    if (!map->guard)
        return 0;
    /* Before the flag: what shrinks inside its last page raises no signal, the rest of that page reads as zeros. */
    if (fstat(map->guard->fd, &st) == 0 && (uint64_t)st.st_size < map->size)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: the file has shrunk from %zu to %llu bytes while it was in use", path,
                           map->size, (unsigned long long)st.st_size);
    if (atomic_load(&map->guard->lost))
        return butler_fail(err, BUTLER_ERROR_IO, "%s: cannot read the file at byte %zu: it shrank while in use, or the disk failed",
                           path, atomic_load(&map->guard->first));
    return 0;
}

bool butler_map_id(const struct butler_map *map, struct butler_file_id *id)
{
    struct stat st;
    if (!map->guard || fstat(map->guard->fd, &st) < 0)
        return false;
    *id = id_of(&st);
    return memcmp(id, &map->guard->id, sizeof *id) == 0;
}

void butler_map_close(struct butler_map *map)
{
    if (!map || !map->guard)
        return;
    atomic_store(&map->guard->begin, 0);
    munmap((void *)(uintptr_t)map->data, map->size);
    close(map->guard->fd);
    atomic_store(&map->guard->used, false);
    *map = (struct butler_map){0};
}
