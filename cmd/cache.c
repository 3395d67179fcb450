/* The folder of `ask`: sessions that have read documents, so that the next question about them need not wait. A file is a session
 * file, which has a checksum of its own; its name is a hash of all that the session depends on. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/util.h"
#include "cmd.h"

enum { N_DIGITS = 32 }; /* of a name: 128 bits */
#define SUFFIX ".session"

/* Under butler's own policies that do not evict the state behind the documents does not depend on the question: nothing is dropped
 * when a prompt ends. A method of the user's own, or a policy of a plug-in, may observe the attention of the prompt's last queries,
 * the question among them; plug-ins that are loaded and not used change nothing. */
static bool is_independent(const char *policy)
{
    const size_t n = strcspn(policy, ":+");
    struct butler_policy_info info;
    for (int i = 0; butler_policy_describe(NULL, i, &info); i++)
        if (strlen(info.name) == n && memcmp(info.name, policy, n) == 0)
            return strcmp(info.method, "evict") != 0 && !strstr(policy, "method=");
    return false;
}

static char *join(const char *folder, const char *name)
{
    const size_t n = strlen(folder) + strlen(name) + 2;
    char *path = cmd_alloc(n, 1);
    snprintf(path, n, "%s/%s", folder, name);
    return path;
}

char *cmd_user_folder(void)
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (base && base[0] == '/')
        return join(base, "butler");
    return home && home[0] == '/' ? join(home, ".cache/butler") : NULL;
}

static char *name_of(const struct cmd_options *options, const struct butler_engine *engine, int n_ctx,
                     const struct cmd_integers *ids)
{
    const char *policy = options->kv.values[0];
    const bool draws = strncmp(policy, "random", 6) == 0; /* of the other policies none uses the seed */
    uint64_t numbers[] = {0, draws ? options->seed : 0, (uint64_t)n_ctx, (uint64_t)options->kv_type};
    struct butler_error err = {0};
    if (butler_model_fingerprint(butler_engine_model(engine), &numbers[0], &err) < 0) {
        cmd_say(options, "warning: what is read is not kept: %s", err.message);
        return NULL;
    }
    struct cmd_text all = {0};
    cmd_text_append(&all, (const char *)numbers, sizeof numbers);
    cmd_text_append(&all, policy, strlen(policy) + 1);
    cmd_text_append(&all, (const char *)ids->values, (size_t)ids->n * sizeof *ids->values);
    const XXH128_hash_t hash = XXH3_128bits(all.bytes, all.n);
    cmd_text_free(&all);
    char *name = cmd_alloc(N_DIGITS + sizeof SUFFIX, 1);
    snprintf(name, N_DIGITS + sizeof SUFFIX, "%016llx%016llx" SUFFIX, (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
    return name;
}

void cmd_cache_find(const struct cmd_options *options, const struct butler_engine *engine, int n_ctx,
                    const struct cmd_integers *ids, struct cmd_cache *cache)
{
    const uint64_t bytes = butler_kv_bytes(butler_engine_model(engine), (enum butler_kv_type)options->kv_type, ids->n);
    *cache = (struct cmd_cache){0};
    if (options->no_cache)
        return;
    if (options->steps.n > 0) {
        cmd_say(options, "note: what is read is not kept: a plug-in of --step may depend on the question");
        return;
    }
    if (!is_independent(options->kv.values[0])) {
        cmd_say(options, "note: what is read is not kept: under %s the cache depends on the question", options->kv.values[0]);
        return;
    }
    if (bytes > options->cache_bytes) {
        cmd_say(options, "note: what is read is not kept: it takes %llu bytes, and --cache-size is %llu", (unsigned long long)bytes,
                (unsigned long long)options->cache_bytes);
        return;
    }
    if (options->cache)
        cache->folder = *options->cache ? cmd_copy(options->cache) : NULL;
    else
        cache->folder = cmd_user_folder();
    if (!cache->folder) {
        cmd_say(options, "note: what is read is not kept: neither --cache nor HOME names a folder");
        return;
    }
    /* For the user alone: a session holds the text of its documents. */
    const int error = butler_make_folder(cache->folder);
    if (error) {
        cmd_say(options, "warning: what is read is not kept: %s: %s", cache->folder, strerror(error));
        return;
    }
    char *name = name_of(options, engine, n_ctx, ids);
    cache->path = name ? join(cache->folder, name) : NULL;
    free(name);
}

struct butler_session *cmd_cache_restore(const struct cmd_options *options, struct butler_engine *engine,
                                         const struct cmd_cache *cache, int n_ctx, int n_tokens)
{
    struct butler_error err = {0};
    if (!cache->path || access(cache->path, F_OK) != 0)
        return NULL;
    struct butler_session *session = butler_session_restore(engine, cache->path, 0, &err);
    if (!session) {
        cmd_say(options, "warning: not used, and written anew: %s", err.message);
        return NULL;
    }
    if (butler_n_past(session) != n_tokens || butler_n_ctx(session) != n_ctx) {
        cmd_say(options, "warning: not used, and written anew: %s: a session of %d tokens where %d are expected", cache->path,
                butler_n_past(session), n_tokens);
        butler_session_free(session);
        return NULL;
    }
    utimensat(AT_FDCWD, cache->path, NULL, 0); /* the newest now; without effect it may be removed earlier, no more */
    butler_session_stats_reset(session);
    return session;
}

/* ------------------------------------------------------------------------------------------------ its size */

struct entry {
    char *path;
    struct timespec used;
    uint64_t bytes;
};

static int by_age(const void *a, const void *b)
{
    const struct timespec *x = &((const struct entry *)a)->used, *y = &((const struct entry *)b)->used;
    if (x->tv_sec != y->tv_sec)
        return x->tv_sec < y->tv_sec ? -1 : 1;
    return (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* A file of ours: a hash and the suffix; also one that is being written, or whose writer was killed. */
static bool is_ours(const char *name)
{
    return strspn(name, "0123456789abcdef") == N_DIGITS && strncmp(name + N_DIGITS, SUFFIX, sizeof SUFFIX - 1) == 0;
}

static struct entry *list(const char *folder, int *n)
{
    struct entry *entries = NULL;
    DIR *dir = opendir(folder);
    int capacity = 0;
    *n = 0;
    for (struct dirent *found; dir && (found = readdir(dir)) != NULL;) {
        struct stat st;
        char *path = is_ours(found->d_name) ? join(folder, found->d_name) : NULL;
        if (!path || lstat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
            free(path);
            continue;
        }
        if (*n == capacity) {
            capacity = 2 * capacity + 16;
            struct entry *grown = cmd_alloc((size_t)capacity, sizeof *grown);
            if (*n)
                memcpy(grown, entries, (size_t)*n * sizeof *grown);
            free(entries);
            entries = grown;
        }
        entries[(*n)++] = (struct entry){path, st.st_mtim, (uint64_t)st.st_size};
    }
    if (dir)
        closedir(dir);
    return entries;
}

/* Removes the oldest files until the others have at most max_bytes. */
static void trim(const char *folder, uint64_t max_bytes)
{
    uint64_t bytes = 0;
    int n;
    struct entry *entries = list(folder, &n);
    if (n)
        qsort(entries, (size_t)n, sizeof *entries, by_age);
    for (int i = 0; i < n; i++)
        bytes += entries[i].bytes;
    for (int i = 0; i < n; i++) {
        if (bytes > max_bytes && unlink(entries[i].path) == 0)
            bytes -= entries[i].bytes;
        free(entries[i].path);
    }
    free(entries);
}

void cmd_cache_save(const struct cmd_options *options, const struct cmd_cache *cache, const struct butler_session *session)
{
    struct butler_error err = {0};
    if (butler_session_save(session, cache->path, &err) < 0)
        cmd_say(options, "warning: what was read is not kept: %s", err.message);
    trim(cache->folder, options->cache_bytes);
}

void cmd_cache_free(struct cmd_cache *cache)
{
    free(cache->folder);
    free(cache->path);
    *cache = (struct cmd_cache){0};
}
