/* The library of the command: where texts that were read are kept between its runs. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "cmd.h"
#include "base/util.h"

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

char *cmd_library_folder(const struct cmd_options *options)
{
    if (options->cache)
        return *options->cache ? cmd_copy(options->cache) : NULL;
    char *user = cmd_user_folder(), *folder = user ? join(user, "library") : NULL;
    free(user);
    return folder;
}

static void say_note(void *user, const char *message)
{
    cmd_say(user, "warning: %s", message);
}

/* Versions up to 0.2.0 kept whole sessions in the user's folder, by names of 32 digits, which nothing reads any more. */
static void remove_old_sessions(void)
{
    char *folder = cmd_user_folder();
    DIR *dir = folder ? opendir(folder) : NULL;
    for (struct dirent *found; dir && (found = readdir(dir));)
        if (strspn(found->d_name, "0123456789abcdef") == 32 && strcmp(found->d_name + 32, ".session") == 0)
            unlinkat(dirfd(dir), found->d_name, 0);
    if (dir)
        closedir(dir);
    free(folder);
}

struct butler_library *cmd_library_open(const struct cmd_options *options, struct butler_error *err)
{
    char size[32];
    char *folder = cmd_library_folder(options);
    if (!folder) {
        err->code = BUTLER_ERROR_ARGUMENT;
        snprintf(err->message, sizeof err->message, "neither --cache nor HOME names a folder");
        return NULL;
    }
    const bool is_new = access(folder, F_OK) != 0;
    const struct butler_library_params params = {
        .folder = folder, .max_bytes = options->cache_bytes, .note = say_note, .user = (void *)options};
    struct butler_library *library = butler_library_open(&params, err);
    struct butler_library_info info = {BUTLER_INIT(butler_library_info)};
    butler_library_get_info(library, &info);
    if (library && is_new)
        cmd_say(options, "what is read is kept in %s, up to %s%s; `butler library` shows it", folder,
                cmd_bytes(size, sizeof size, info.max_bytes),
                options->cache_bytes ? "" : ", a tenth of the free bytes of its disk (--cache-size)");
    if (library && !options->cache)
        remove_old_sessions();
    free(folder);
    return library;
}

struct butler_library *cmd_library_try(const struct cmd_options *options)
{
    struct butler_error err = {0};
    struct butler_library *library = options->no_cache ? NULL : cmd_library_open(options, &err);
    if (err.code < 0)
        cmd_say(options, "warning: what is read is not kept: %s", err.message);
    return library;
}

int cmd_library_secret(const struct cmd_options *options, unsigned char *secret, size_t n, struct butler_error *err)
{
    struct butler_writer writer;
    char *folder = cmd_library_folder(options), *path = join(folder ? folder : "", "secret");
    FILE *file = fopen(path, "rb");
    const bool found = file && fread(secret, 1, n, file) == n;
    int code = 0;
    if (file)
        fclose(file);
    if (!found && getrandom(secret, n, 0) != (ssize_t)n)
        code = err->code = BUTLER_ERROR_IO;
    if (code < 0)
        snprintf(err->message, sizeof err->message, "the system gives no random numbers");
    if (!found && code == 0 && (code = butler_writer_open(&writer, path, BUTLER_WRITER_PRIVATE, err)) == 0) {
        code = butler_write(&writer, secret, n, err);
        code = code == 0 ? butler_writer_commit(&writer, err) : code;
        butler_writer_abort(&writer);
    }
    free(path);
    free(folder);
    return code;
}

void cmd_library_use(const struct cmd_options *options, struct butler_library *library, struct butler_session *session)
{
    struct butler_error err = {0};
    if (library && session && butler_session_use_library(session, library, &err) < 0)
        cmd_say(options, "warning: what is read is not kept: %s", err.message);
}
