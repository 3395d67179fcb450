/* Files that shrink while they are in use, files that are none, writers that die, and fingerprints. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <xxhash.h>

#include "base/threads.h"
#include "engine/engine.h"
#include "model/predictor.h"
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

/* Flips one bit in the middle of the largest tensor, where no sample of its first and last 4 KiB sees it. */
static void change_middle(const char *path)
{
    struct butler_gguf *gguf = butler_gguf_open(path, NULL);
    struct tiny_bytes bytes = tiny_read(path);
    const struct butler_tensor *largest = butler_gguf_tensor(gguf, 0);
    for (int64_t i = 1; i < butler_gguf_n_tensors(gguf); i++)
        if (butler_gguf_tensor(gguf, i)->n_rows * butler_gguf_tensor(gguf, i)->n_cols > largest->n_rows * largest->n_cols)
            largest = butler_gguf_tensor(gguf, i);
    const size_t n = (size_t)largest->n_rows * largest->row_bytes;
    unsigned char *found = memmem(bytes.data, bytes.size, largest->data, n);
    assert_true(n > (size_t)(4 * 4096));
    assert_non_null(found);
    found[n / 2] ^= 1;
    butler_gguf_free(gguf);
    put(path, bytes.data, bytes.size);
    free(bytes.data);
}

static struct butler_model *load(const char *path, const char *cache_folder)
{
    struct butler_error err = {0};
    struct butler_model *model = butler_model_load(path, &(struct butler_model_params){.cache_folder = cache_folder}, &err);
    if (!model)
        fail_msg("%s", err.message);
    return model;
}

static uint64_t fingerprint_of(const char *path, const char *cache_folder)
{
    struct butler_error err = {0};
    uint64_t fingerprint = 0;
    struct butler_model *model = load(path, cache_folder);
    if (butler_model_fingerprint(model, &fingerprint, &err) < 0)
        fail_msg("%s", err.message);
    butler_model_free(model);
    return fingerprint;
}

static struct butler_engine *engine_of(const char *path)
{
    struct butler_error err = {0};
    struct butler_engine *engine = butler_engine_new(load(path, NULL), &(struct butler_engine_params){.n_threads = 2}, &err);
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

struct touch {
    const volatile unsigned char *page;
    atomic_int n_started;
};

/* Both tasks read the page, one of them in a worker of the pool: neither goes on before both have begun. */
static void touch_page(void *context, int i, int thread)
{
    struct touch *touch = context;
    (void)thread;
    atomic_fetch_add(&touch->n_started, 1);
    while (atomic_load(&touch->n_started) < 2)
        butler_cpu_relax();
    assert_int_equal(touch->page[i], 0);
}

static void test_shrinking_under_workers(void **state)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char path[PATH];
    struct butler_map map;
    struct butler_error err = {0};
    (void)state;
    sigaction(SIGBUS, &library_handler, NULL);
    path_of(path, "workers");
    put(path, "x", 1);
    assert_int_equal(truncate(path, (off_t)(2 * page)), 0);
    assert_int_equal(butler_map_open(&map, path, &err), 0);
    struct butler_pool *pool = butler_pool_new(2, &err);
    struct touch touch = {.page = map.data + page};
    assert_int_equal(truncate(path, 1), 0);
    butler_pool_run(pool, touch_page, &touch, 2);
    assert_int_equal(butler_map_check(&map, path, &err), BUTLER_ERROR_IO);
    butler_pool_free(pool);
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

static void test_shrinking_model(void **state)
{
    struct butler_error err = {0};
    const int32_t ids[] = {1, 2, 3, 4};
    char path[PATH];
    (void)state;
    path_of(path, "model.gguf");
    sigaction(SIGBUS, &library_handler, NULL);
    for (int cut = 0; cut < 2; cut++) { /* the last byte, and all but the first page */
        tiny_write(path, &tiny_default);
        struct tiny_bytes bytes = tiny_read(path);
        struct butler_engine *engine = engine_of(path);
        struct butler_session *session = butler_session_new(engine, NULL, &err);
        assert_non_null(session);
        assert_int_equal(butler_prefill(session, ids, 4, NULL, NULL, &err), 0);
        assert_int_equal(truncate(path, cut == 0 ? (off_t)bytes.size - 1 : 4096), 0);
        assert_int_equal(butler_step(session, 5, &err), BUTLER_ERROR_IO);
        assert_contains(err.message, "model.gguf: the file has shrunk");
        assert_int_equal(butler_n_past(session), 4);
        assert_int_equal(butler_step(session, 5, &err), BUTLER_ERROR_NUMERIC); /* the session has ended */
        butler_session_free(session);
        assert_non_null(session = butler_session_new(engine, NULL, &err));
        assert_int_equal(butler_prefill(session, ids, 4, NULL, NULL, &err), BUTLER_ERROR_IO); /* so has the model */
        butler_session_free(session);
        free_engine(engine);
        free(bytes.data);
    }
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

/* ----------------------------------------------------------------------------------------------- fingerprints */

static void test_fingerprint_is_the_whole_files(void **state)
{
    char path[PATH];
    (void)state;
    path_of(path, "f.gguf");
    tiny_write(path, &tiny_default);
    struct tiny_bytes bytes = tiny_read(path);
    const uint64_t before = fingerprint_of(path, NULL);
    assert_true(before == XXH3_64bits(bytes.data, bytes.size));
    change_middle(path);
    assert_true(before != fingerprint_of(path, NULL));
    free(bytes.data);
}

static void test_fingerprints_are_kept(void **state)
{
    char path[PATH], cache[PATH], entry[PATH + 64];
    struct stat st;
    (void)state;
    path_of(path, "c.gguf");
    path_of(cache, "cache/of/butler");
    tiny_write(path, &tiny_default);
    const uint64_t whole = fingerprint_of(path, cache);
    assert_int_equal(access(cache, F_OK), -1); /* the file may change again within the clock's tick: nothing is kept */
    usleep(2100000);
    assert_true(fingerprint_of(path, cache) == whole);
    assert_int_equal(stat(path, &st), 0);
    snprintf(entry, sizeof entry, "%s/%llx-%llx.fingerprint", cache, (unsigned long long)st.st_dev, (unsigned long long)st.st_ino);
    assert_int_equal(mode_of(entry), 0600);
    struct tiny_bytes bytes = tiny_read(entry);
    bytes.data[bytes.size - 17] ^= 1; /* the first digit, another one */
    put(entry, bytes.data, bytes.size);
    assert_true((fingerprint_of(path, cache) ^ whole) >> 60 == 1); /* so the file was not read */
    put(entry, bytes.data, bytes.size - 1);
    assert_true(fingerprint_of(path, cache) == whole); /* a damaged entry counts for nothing */
    put(entry, bytes.data, bytes.size);
    free(bytes.data);

    change_middle(path); /* of the same size, and with the old time: */
    const struct timespec times[2] = {st.st_atim, st.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
    const uint64_t changed = fingerprint_of(path, cache);
    assert_true(changed != whole && (changed ^ whole) >> 60 != 1);
    assert_true(fingerprint_of(path, "/dev/null/no/folder") == changed);
}

/* As version 0.1 wrote it: with the sampled fingerprint, and without the new key. */
static void make_old_session(const char *path, const struct butler_model *model)
{
    struct tiny_bytes bytes = tiny_read(path);
    memcpy(bytes.data, "butlerS2", 8);
    memcpy(bytes.data + 8, &model->sampled_fingerprint, 8);
    const uint64_t digest = XXH3_64bits(bytes.data, bytes.size - 8);
    memcpy(bytes.data + bytes.size - 8, &digest, 8);
    put(path, bytes.data, bytes.size);
    free(bytes.data);
}

static void test_changed_model(void **state)
{
    struct butler_error err = {0};
    const int32_t ids[] = {1, 2, 3, 4};
    char path[PATH], saved[PATH], old[PATH], predictors[2][PATH];
    (void)state;
    path_of(path, "changes.gguf");
    path_of(saved, "s.session");
    path_of(old, "old.session");
    path_of(predictors[0], "whole.gguf");
    path_of(predictors[1], "sampled.gguf");
    tiny_write(path, &tiny_default);
    struct butler_engine *engine = engine_of(path);
    struct butler_session *session = butler_session_new(engine, NULL, &err);
    assert_int_equal(butler_prefill(session, ids, 4, NULL, NULL, &err), 0);
    assert_int_equal(butler_session_save(session, saved, &err), 0);
    assert_int_equal(butler_session_save(session, old, &err), 0);
    make_old_session(old, engine->model);
    butler_session_free(session);
    for (int sampled = 0; sampled < 2; sampled++) {
        const struct butler_predictor_sizes sizes = butler_predictor_sizes_for(engine->model, 1 + sampled);
        struct butler_predictor *predictor = butler_predictor_new(&sizes, 1, &err);
        predictor->model_sampled = sampled;
        predictor->model_fingerprint = engine->model->sampled_fingerprint;
        if (!sampled)
            assert_int_equal(butler_model_fingerprint(engine->model, &predictor->model_fingerprint, &err), 0);
        assert_int_equal(butler_predictor_save(predictor, predictors[sampled], BUTLER_F32, &err), 0);
        assert_int_equal(butler_predictor_attach(engine, predictors[sampled], &err), 0);
        butler_predictor_free(predictor);
    }
    for (int i = 0; i < 2; i++) {
        session = butler_session_restore(engine, i ? old : saved, 0, &err);
        if (!session)
            fail_msg("%s", err.message);
        assert_int_equal(butler_n_past(session), 4);
        butler_session_free(session);
    }
    free_engine(engine);

    change_middle(path);
    engine = engine_of(path);
    assert_null(butler_session_restore(engine, saved, 0, &err));
    assert_int_equal(err.code, BUTLER_ERROR_ARGUMENT);
    assert_contains(err.message, "s.session: saved with another model than");
    assert_int_equal(butler_predictor_attach(engine, predictors[0], &err), BUTLER_ERROR_ARGUMENT);
    assert_contains(err.message, "whole.gguf: a predictor for the model with fingerprint");
    free_engine(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_faults),
        cmocka_unit_test(test_shrinking_map),
        cmocka_unit_test(test_shrinking_under_workers),
        cmocka_unit_test(test_shrinking_model),
        cmocka_unit_test(test_no_file),
        cmocka_unit_test(test_permissions),
        cmocka_unit_test(test_killed_writers),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_fingerprint_is_the_whole_files),
        cmocka_unit_test(test_fingerprints_are_kept),
        cmocka_unit_test(test_changed_model),
    };
    return cmocka_run_group_tests(tests, NULL, tiny_clean);
}
