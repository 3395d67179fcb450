/* Files that shrink while they are in use, files that are none, writers that die. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "engine/engine.h"
#include "tests/tiny_model.h"

enum { PATH = 160 };

static void path_of(char path[PATH], const char *name)
{
    snprintf(path, PATH, "%s", tiny_path(name));
}

static void put(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void assert_contains(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("\"%s\" has no \"%s\"", text, part);
}

/* Files of the folder that have part in their names. */
static int count_files(const char *path, const char *part)
{
    int n = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *entry; (entry = readdir(folder));)
        n += strstr(entry->d_name, part) != NULL;
    closedir(folder);
    return n;
}

static struct butler_model *load(const char *path)
{
    struct butler_error err = {0};
    struct butler_model *model = butler_model_load(path, NULL, &err);
    if (!model)
        fail_msg("%s", err.message);
    return model;
}

static struct butler_engine *engine_of(const char *path)
{
    struct butler_error err = {0};
    struct butler_engine *engine = butler_engine_new(load(path), &(struct butler_engine_params){.n_threads = 2}, &err);
    if (!engine)
        fail_msg("%s", err.message);
    return engine;
}

static void free_engine(struct butler_engine *engine)
{
    struct butler_model *model = butler_engine_model(engine);
    butler_engine_free(engine);
    butler_model_free(model);
}

/* ----------------------------------------------------------------------------------------- files that shrink */

/* The library's handler: cmocka puts its own in its place when a test begins. */
static struct sigaction library_handler;

static void test_shrinking_map(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), size = 4 * page;
    char path[PATH];
    struct butler_map map;
    struct butler_error err = {0};
    unsigned char *bytes = malloc(size);
    (void)state;
    path_of(path, "shrinks");
    memset(bytes, 7, size);
    put(path, bytes, size);
    free(bytes);
    assert_int_equal(butler_map_open(&map, path, &err), 0);
    sigaction(SIGBUS, NULL, &library_handler);
    assert_int_equal(butler_map_check(&map, path, &err), 0);
    assert_int_equal(truncate(path, (off_t)(size - 1)), 0); /* within the last page: no signal */
    assert_int_equal(butler_map_check(&map, path, &err), BUTLER_ERROR_IO);
    assert_contains(err.message, "shrunk");
    assert_int_equal(truncate(path, (off_t)page), 0);
    assert_int_equal(*(volatile const unsigned char *)&map.data[page - 1], 7);
    assert_int_equal(*(volatile const unsigned char *)&map.data[2 * page + 5], 0); /* SIGBUS, which nobody sees */
    assert_int_equal(truncate(path, (off_t)size), 0); /* whole again in size, not in what was read of it */
    assert_int_equal(butler_map_check(&map, path, &err), BUTLER_ERROR_IO);
    char at[32];
    snprintf(at, sizeof at, "byte %zu", 2 * page + 5);
    assert_contains(err.message, at);
    assert_contains(err.message, path);
    butler_map_close(&map);
    assert_int_equal(butler_map_open(&map, path, &err), 0); /* the guard is used again, without what it remembers */
    assert_int_equal(butler_map_check(&map, path, &err), 0);
    butler_map_close(&map);
}

static void own_handler(int signal_number)
{
    _exit(signal_number == SIGBUS ? 42 : 1);
}

/* How a child ends that touches a page of its own mapping behind the end of a file; had: the handler that it had before ours. */
static int end_of_child(const char *path, void (*had)(int))
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct butler_map map;
        signal(SIGBUS, had);
        const int fd = open(path, O_RDWR);
        const volatile unsigned char *own = mmap(NULL, 1 << 16, PROT_READ, MAP_SHARED, fd, 0);
        if (butler_map_open(&map, path, NULL) < 0 || ftruncate(fd, 10) < 0)
            _exit(2);
        _exit(own[60000]);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

/* Runs first: in the process no file has been mapped, so that a child installs the handler anew. */
static void test_other_faults(void **state)
{
    char path[PATH], *bytes = calloc(1, 1 << 16);
    (void)state;
    path_of(path, "other");
    put(path, bytes, 1 << 16);
    int status = end_of_child(path, own_handler);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 42);
    put(path, bytes, 1 << 16);
    status = end_of_child(path, SIG_DFL);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGBUS);
    free(bytes);
}

static void test_no_file(void **state)
{
    char fifo[PATH];
    struct butler_error err = {0};
    (void)state;
    path_of(fifo, "fifo.gguf");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    alarm(20); /* opening a pipe that nobody writes to waits forever */
    assert_null(butler_model_load(fifo, NULL, &err));
    alarm(0);
    assert_int_equal(err.code, BUTLER_ERROR_IO);
    assert_contains(err.message, "fifo.gguf: not a regular file: it is a pipe");
    assert_null(butler_model_load("/dev/null", NULL, &err));
    assert_contains(err.message, "/dev/null: not a regular file: it is a device");
    assert_null(butler_model_load("/tmp", NULL, &err));
    assert_contains(err.message, "/tmp: not a regular file: it is a directory");
}

/* ---------------------------------------------------------------------------------------------------- writers */

static mode_t mode_of(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    return st.st_mode & 0777;
}

static void write_text(const char *path, int flags, const char *text)
{
    struct butler_writer writer;
    struct butler_error err = {0};
    if (butler_writer_open(&writer, path, flags, &err) < 0 || butler_write(&writer, text, strlen(text), &err) < 0 ||
        butler_writer_commit(&writer, &err) < 0)
        fail_msg("%s", err.message);
}

static void assert_text(const char *path, const char *text)
{
    struct tiny_bytes bytes = tiny_read(path);
    assert_int_equal(bytes.size, strlen(text));
    assert_memory_equal(bytes.data, text, bytes.size);
    free(bytes.data);
}

static void test_permissions(void **state)
{
    char path[PATH];
    const mode_t before = umask(022);
    (void)state;
    path_of(path, "p.txt");
    for (int named = 0; named <= BUTLER_WRITER_NAMED; named += BUTLER_WRITER_NAMED) {
        write_text(path, named, "open");
        assert_int_equal(mode_of(path), 0644);
        write_text(path, named | BUTLER_WRITER_PRIVATE, "private");
        assert_int_equal(mode_of(path), 0600);
        assert_text(path, "private");
    }
    umask(before);
    struct butler_error err = {0};
    char model[PATH], saved[PATH];
    path_of(model, "m.gguf");
    path_of(saved, "saved.session");
    tiny_write(model, &tiny_default);
    struct butler_engine *engine = engine_of(model);
    struct butler_session *session = butler_session_new(engine, NULL, &err);
    assert_int_equal(butler_session_save(session, saved, &err), 0);
    assert_int_equal(mode_of(saved), 0600);
    butler_session_free(session);
    free_engine(engine);
}

/* A child that writes half a file and is killed, or waits until the pipe is closed. */
static pid_t start_writer(const char *path, int flags, int until)
{
    int ready[2];
    char byte = 0;
    assert_int_equal(pipe(ready), 0);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct butler_writer writer;
        if (butler_writer_open(&writer, path, flags, NULL) < 0 || butler_write(&writer, "half", 4, NULL) < 0)
            _exit(1);
        fflush(writer.file);
        if (write(ready[1], "x", 1) != 1)
            _exit(1);
        if (until < 0)
            raise(SIGKILL);
        if (read(until, &byte, 1) < 0)
            _exit(1);
        _exit(butler_writer_commit(&writer, NULL) < 0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void test_killed_writers(void **state)
{
    char path[PATH], named[PATH];
    int status;
    (void)state;
    path_of(path, "k.txt");
    path_of(named, "n.txt");
    write_text(path, 0, "old");
    write_text(named, 0, "old");
    waitpid(start_writer(path, 0, -1), &status, 0);
    assert_true(WIFSIGNALED(status));
    assert_text(path, "old");
    assert_int_equal(count_files(tiny_path(""), "k.txt."), 0); /* ext4, xfs, btrfs and tmpfs have O_TMPFILE */
    waitpid(start_writer(named, BUTLER_WRITER_NAMED, -1), &status, 0);
    assert_int_equal(count_files(tiny_path(""), "n.txt."), 1);

    /* The dead writer's file goes with the next write, a living writer's does not. */
    int until[2];
    assert_int_equal(pipe(until), 0);
    const pid_t alive = start_writer(named, BUTLER_WRITER_NAMED, until[0]);
    assert_int_equal(count_files(tiny_path(""), "n.txt."), 1);
    write_text(named, 0, "new");
    assert_int_equal(count_files(tiny_path(""), "n.txt."), 1);
    assert_text(named, "new");
    assert_int_equal(write(until[1], "x", 1), 1);
    waitpid(alive, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_text(named, "half");
    assert_int_equal(count_files(tiny_path(""), "n.txt."), 0);
    close(until[0]);
    close(until[1]);
}

/* A limit on the size of files stands for a full disk. */
static void test_full_disk(void **state)
{
    char path[PATH], bytes[20000] = {0};
    int status;
    (void)state;
    path_of(path, "full.txt");
    write_text(path, 0, "old");
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct butler_writer writer;
        struct butler_error err = {0};
        const struct rlimit limit = {10000, 10000};
        signal(SIGXFSZ, SIG_IGN);
        if (setrlimit(RLIMIT_FSIZE, &limit) < 0 || butler_writer_open(&writer, path, 0, &err) < 0)
            _exit(1);
        int code = butler_write(&writer, bytes, sizeof bytes, &err);
        if (code == 0)
            code = butler_writer_commit(&writer, &err);
        else
            butler_writer_abort(&writer);
        _exit(code == BUTLER_ERROR_IO && strstr(err.message, "full.txt: cannot write") ? 0 : 2);
    }
    waitpid(child, &status, 0);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    assert_text(path, "old");
    assert_int_equal(count_files(tiny_path(""), "full.txt."), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_faults), cmocka_unit_test(test_shrinking_map),  cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_permissions),  cmocka_unit_test(test_killed_writers), cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
