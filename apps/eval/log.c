/* Files of JSON lines that outlive an interrupted run: opened once, read, locked against a second run, and appended to. A line that
 * was not completely written is cut off; a file with anything else in it is refused and left as it is. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/utf8.h"
#include "parts.h"

static int fail(const struct eval_log *log, struct butler_error *err)
{
    return butler_fail(err, BUTLER_ERROR_IO, "%s: %s", log->path, strerror(errno));
}

/* Reads every complete line; *keep is the end of the last one after which nothing is missing. What follows it is cut off later, so
 * every byte of the file must be what this program writes. */
static int learn(const struct eval_log *log, const struct eval_log_kind *kind, const char *bytes, size_t n, size_t *keep,
                 struct butler_error *err)
{
    int line = 0;
    *keep = 0;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(bytes + at, '\n', n - at);
        json_error_t fault;
        line++;
        if (!end) /* not completely written: it begins as every line does */
            return memcmp(bytes + at, kind->begin, BUTLER_MIN(n - at, strlen(kind->begin))) == 0
                       ? 0
                       : butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not a row of results (nothing was changed)", log->path,
                                     line);
        json_t *object = json_loadb(bytes + at, (size_t)(end - bytes) - at, 0, &fault);
        const int taken = object ? kind->take(kind->user, object) : -1;
        const bool is_json = object != NULL;
        json_decref(object);
        if (taken < 0)
            return butler_fail(err, BUTLER_ERROR_FORMAT, "%s:%d: not a row of results (nothing was changed): %s", log->path, line,
                               is_json ? kind->fault : fault.text);
        at = (size_t)(end - bytes) + 1;
        if (taken > 0)
            *keep = at;
    }
    return 0;
}

/* Reads the whole file, then its lines; *keep as learn gives it, *size the file's. */
static int read_file(const struct eval_log *log, const struct eval_log_kind *kind, size_t *keep, size_t *size,
                     struct butler_error *err)
{
    const off_t end = lseek(log->fd, 0, SEEK_END);
    char *bytes = end < 0 ? NULL : malloc((size_t)end + 1);
    int code = bytes ? 0 : fail(log, err);
    for (off_t at = 0; code == 0 && at < end;) {
        const ssize_t n = pread(log->fd, bytes + at, (size_t)(end - at), at);
        if (n <= 0)
            code = n < 0 ? fail(log, err) : butler_fail(err, BUTLER_ERROR_IO, "%s: it shrank", log->path);
        at += n;
    }
    *size = end < 0 ? 0 : (size_t)end;
    if (code == 0)
        code = learn(log, kind, bytes, *size, keep, err);
    free(bytes);
    return code;
}

int eval_log_open(struct eval_log *log, const char *path, const struct eval_log_kind *kind, struct butler_error *err)
{
    *log = (struct eval_log){.fd = -1, .path = strdup(path)};
    if (!log->path)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for its name", path);
    log->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (log->fd < 0)
        return fail(log, err);
    if (flock(log->fd, LOCK_EX | LOCK_NB) < 0)
        return butler_fail(err, BUTLER_ERROR_IO, "%s: another run is writing to it", path);
    size_t keep = 0, size;
    int code = read_file(log, kind, &keep, &size, err);
    if (code == 0 && keep < size && ftruncate(log->fd, (off_t)keep) < 0)
        code = fail(log, err);
    return code;
}

int eval_log_read(const char *path, const struct eval_log_kind *kind, struct butler_error *err)
{
    struct eval_log log = {.fd = open(path, O_RDONLY | O_CLOEXEC), .path = (char *)path};
    size_t keep, size;
    if (log.fd < 0)
        return errno == ENOENT ? 0 : fail(&log, err);
    const int code = read_file(&log, kind, &keep, &size, err);
    close(log.fd);
    return code;
}

json_t *eval_text(const char *bytes, size_t n)
{
    struct butler_utf8 stream = {0};
    char *valid = malloc(3 * n + 32);
    if (!valid)
        return NULL;
    size_t n_valid = butler_utf8_push(&stream, bytes, n, valid, 3 * n + 16);
    n_valid += butler_utf8_push(&stream, NULL, 0, valid + n_valid, 16);
    json_t *text = json_stringn(valid, n_valid);
    free(valid);
    return text;
}

int eval_log_append(const struct eval_log *log, const json_t *lines, struct butler_error *err)
{
    char *text = NULL;
    size_t n_text = 0, i;
    json_t *line;
    FILE *memory = open_memstream(&text, &n_text);
    if (!memory)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a row", log->path);
    json_array_foreach(lines, i, line)
    {
        json_dumpf(line, memory, JSON_COMPACT | JSON_REAL_PRECISION(log->precision));
        fputc('\n', memory);
    }
    int code = fclose(memory) == 0 ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory for a row", log->path);
    for (size_t at = 0; code == 0 && at < n_text;) {
        const ssize_t n = write(log->fd, text + at, n_text - at);
        if (n < 0 && errno != EINTR)
            code = fail(log, err);
        at += n > 0 ? (size_t)n : 0;
    }
    if (code == 0 && fsync(log->fd) < 0 && errno != EINVAL && errno != EROFS) /* EINVAL: a pipe, a device */
        code = fail(log, err);
    free(text);
    return code;
}

void eval_log_close(struct eval_log *log)
{
    if (log->path && log->fd >= 0)
        close(log->fd);
    free(log->path);
    *log = (struct eval_log){.fd = -1};
}
