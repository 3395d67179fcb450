/* How much memory the process can have. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"

/* The number in a file; UINT64_MAX: there is none, or "max". */
static uint64_t read_number(const char *path)
{
    FILE *file = fopen(path, "re");
    unsigned long long value = ULLONG_MAX;
    if (file && fscanf(file, "%llu", &value) != 1)
        value = ULLONG_MAX;
    if (file)
        fclose(file);
    return value;
}

/* Of the group at `path` and all above it, which also count what it uses. */
static uint64_t group_limit(const char *root, char *path, const char *name)
{
    char file[PATH_MAX];
    uint64_t limit = UINT64_MAX;
    for (char *slash = path + strlen(path);; slash = strrchr(path, '/')) {
        if (!slash)
            return limit;
        *slash = 0;
        const int n = snprintf(file, sizeof file, "%s%s/%s", root, path, name);
        const uint64_t own = n < (int)sizeof file ? read_number(file) : UINT64_MAX;
        limit = own < limit ? own : limit;
    }
}

/* Of the process's control group, of version 2 ("0::/path") or 1 ("7:memory:/path"). */
static uint64_t read_group(void)
{
    FILE *file = fopen("/proc/self/cgroup", "re");
    char line[PATH_MAX];
    uint64_t limit = UINT64_MAX;
    while (file && fgets(line, sizeof line, file)) {
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path)
            continue;
        line[strcspn(line, "\n")] = 0;
        *path++ = 0;
        const bool is_v1 = strcmp(names + 1, "memory") == 0;
        if (!is_v1 && names[1])
            continue;
        const uint64_t one = is_v1 ? group_limit("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes")
                                   : group_limit("/sys/fs/cgroup", path, "memory.max");
        limit = one < limit ? one : limit;
    }
    if (file)
        fclose(file);
    return limit;
}

uint64_t cmd_memory_limit(const char **whose)
{
    const uint64_t machine = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE), group = read_group();
    *whose = group < machine ? "the limit of its control group" : "the machine's memory";
    return group < machine ? group : machine;
}
