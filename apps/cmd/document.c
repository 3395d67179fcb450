/* Documents of ask, chat and run: read, recognised, and made text. What is not plain text is converted in a process of its own with
 * limits of time and memory: a hostile file ends that process, and butler says so. */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/util.h"
#include "cmd.h"
#include "cmd/document.h"

enum {
    MAX_SECONDS = 60,     /* of processor time */
    MAX_MEMORY = 1 << 30, /* bytes beyond what the process has when it begins */
};

/* ------------------------------------------------------------------------------------------------ the process */

/* What the process sends: this, then n bytes of text. */
struct answer {
    uint64_t n;
    bool ok;
    char error[sizeof(((struct document_result *)0)->error)], what[sizeof(((struct document_result *)0)->what)];
};

static bool convert(enum document_kind kind, const unsigned char *bytes, size_t n, struct document_result *result)
{
    switch (kind) {
    case DOCUMENT_HTML:
        return document_from_html(bytes, n, result);
    case DOCUMENT_PDF:
        return document_from_pdf(bytes, n, result);
    case DOCUMENT_ARCHIVE:
        return document_from_archive(bytes, n, result);
    case DOCUMENT_TEXT:
    case DOCUMENT_OTHER:
        break;
    }
    return document_from_text(bytes, n, result);
}

static bool write_all(int fd, const void *bytes, size_t n)
{
    for (const char *at = bytes; n > 0;) {
        const ssize_t written = write(fd, at, n);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0)
            return false;
        at += written;
        n -= (size_t)written;
    }
    return true;
}

/* Reads n bytes; false at an end before them. */
static bool read_all(int fd, void *bytes, size_t n)
{
    for (char *at = bytes; n > 0;) {
        const ssize_t got = read(fd, at, n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return false;
        at += got;
        n -= (size_t)got;
    }
    return true;
}

/* Bytes of addresses that the process has. */
static rlim_t address_space(void)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%llu", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE);
}

/* In the new process: never returns. Libraries that complain do it to nobody. */
static _Noreturn void convert_and_send(enum document_kind kind, const unsigned char *bytes, size_t n, int fd)
{
    struct document_result result = {0};
    const struct rlimit seconds = {MAX_SECONDS, MAX_SECONDS + 1}, none = {0, 0},
                        memory = {address_space() + MAX_MEMORY, address_space() + MAX_MEMORY};
    const int nobody = open("/dev/null", O_RDWR | O_CLOEXEC);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGINT, SIG_DFL); /* Ctrl-C ends it at once, whatever butler does with it */
    cmd_interrupts_block(false);
    setrlimit(RLIMIT_CPU, &seconds);
    setrlimit(RLIMIT_AS, &memory);
    setrlimit(RLIMIT_CORE, &none);
    setrlimit(RLIMIT_FSIZE, &none); /* no file is written */
    if (nobody < 0 || dup2(nobody, STDIN_FILENO) < 0 || dup2(nobody, STDOUT_FILENO) < 0 || dup2(nobody, STDERR_FILENO) < 0)
        _exit(1);
    struct answer answer = {.ok = convert(kind, bytes, n, &result)};
    answer.n = answer.ok ? result.n : 0;
    memcpy(answer.error, result.error, sizeof answer.error);
    memcpy(answer.what, result.what, sizeof answer.what);
    _exit(write_all(fd, &answer, sizeof answer) && write_all(fd, result.text, (size_t)answer.n) ? 0 : 1);
}

/* The text that the process sends, into *result. */
static bool receive(int fd, struct document_result *result)
{
    struct answer answer;
    char buffer[65536];
    if (!read_all(fd, &answer, sizeof answer))
        return false;
    memcpy(result->error, answer.error, sizeof result->error);
    memcpy(result->what, answer.what, sizeof result->what);
    for (uint64_t left = answer.ok ? answer.n : 0; left > 0;) {
        const size_t n = left < sizeof buffer ? (size_t)left : sizeof buffer;
        if (!read_all(fd, buffer, n) || !document_put(result, buffer, n))
            return false;
        left -= n;
    }
    return true;
}

static bool convert_apart(enum document_kind kind, const unsigned char *bytes, size_t n, struct document_result *result)
{
    int ends[2], state = 0;
    fflush(NULL); /* or both processes would write what is buffered */
    if (pipe2(ends, O_CLOEXEC) != 0)
        return document_fail(result, "cannot be converted: %s", strerror(errno));
    const pid_t child = fork();
    if (child == 0) {
        close(ends[0]);
        convert_and_send(kind, bytes, n, ends[1]);
    }
    const int error = errno;
    close(ends[1]);
    const bool received = child > 0 && receive(ends[0], result);
    close(ends[0]);
    if (child < 0)
        return document_fail(result, "cannot be converted: %s", strerror(error));
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        continue;
    if (received)
        return !*result->error;
    if (WIFSIGNALED(state) && WTERMSIG(state) == SIGINT) {
        cmd_interrupted(); /* this was what it was for */
        return document_fail(result, "is not converted: interrupted");
    }
    if (WIFSIGNALED(state) && (WTERMSIG(state) == SIGXCPU || WTERMSIG(state) == SIGKILL))
        return document_fail(result, "takes more than %d seconds to convert: it is damaged, or made to do so", MAX_SECONDS);
    return document_fail(result,
                         "cannot be converted: the program that reads it ended by an error, or took more than %d MB of memory",
                         MAX_MEMORY >> 20);
}

/* --------------------------------------------------------------------------------------------------- documents */

int cmd_document_read(const struct cmd_options *options, const char *path, struct butler_buffer *text)
{
    const char *name = strcmp(path, "-") == 0 ? "standard input" : path, *package;
    struct document_result result = {0};
    struct butler_buffer file = {0};
    char size[32];
    int status = cmd_file_read(options, path, &file);
    if (status != CMD_DONE)
        return status;
    const unsigned char *bytes = (const unsigned char *)(file.bytes ? file.bytes : "");
    const enum document_kind kind = document_kind_of(path, bytes, file.n);
    if (kind == DOCUMENT_OTHER) {
        const char *what = document_other_name(bytes, file.n, &package);
        document_fail(&result, "is %s and not text%s%s%s", what, package ? " (Debian's package " : "", package ? package : "",
                      package ? " reads it)" : "");
    } else if (file.n == 0)
        document_fail(&result, "is empty");
    else if (kind == DOCUMENT_TEXT)
        document_from_text(bytes, file.n, &result);
    else
        convert_apart(kind, bytes, file.n, &result);
    if (!*result.error && kind != DOCUMENT_TEXT && document_is_blank(&result))
        document_fail(&result, "has no text");
    if (*result.error) {
        cmd_say(options, "%s: %s", name, result.error);
        status = CMD_FAILED;
    } else if (*result.what)
        cmd_say(options, "note: %s: %s, converted to %s of text", name, result.what, cmd_bytes(size, sizeof size, result.n));
    if (status == CMD_DONE)
        cmd_append(text, result.text, result.n);
    document_result_free(&result);
    butler_buffer_free(&file);
    return status;
}
