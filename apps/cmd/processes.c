/* The processes that mpirun started: a command joins them by butler-mpi.so, which no other command loads. */
#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>

#include "cmd.h"
#include "base/util.h"
#include "train/train.h"

int cmd_join_processes(const struct cmd_options *options, struct butler_gather *out)
{
    /* beside the command, in its build folder, or where it is installed */
    static const char *const folders[] = {".", "build", "../lib/butler"};
    char path[PATH_MAX + 64];
    struct butler_error err = {0};
    *out = butler_gather_local;
    const char *world = getenv("OMPI_COMM_WORLD_SIZE");
    if (!world)
        return CMD_DONE;
    const bool found = butler_find_file("butler-mpi.so", folders, BUTLER_COUNT(folders), path, sizeof path);
    void *object = found ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
    butler_gather_begin_fn *begin = NULL;
    if (object)
        *(void **)&begin = dlsym(object, "butler_gather_begin");
    if (!begin) {
        cmd_say(options, "mpirun started %s processes, but butler-mpi.so, which joins them, cannot be opened: %s", world,
                found ? dlerror() : "this butler was built without MPI (libopenmpi-dev)");
        return CMD_FAILED;
    }
    return begin(out, &err) < 0 ? cmd_fail(options, &err) : CMD_DONE;
}
