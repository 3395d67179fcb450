/* What --device stands for. */
#include <string.h>

#include "cmd.h"

static bool names_all(const char *device)
{
    return !strcmp(device, "cuda:all") || !strcmp(device, "opencl:all");
}

bool cmd_names_devices(const struct cmd_options *options)
{
    return options->device && (names_all(options->device) || strchr(options->device, ','));
}

/* Whether a list of names has this one. */
static bool lists(const char *list, const char *device)
{
    for (size_t n; *list; list += n + (list[n] == ',')) {
        n = strcspn(list, ",");
        if (n == strlen(device) && !strncmp(list, device, n))
            return true;
    }
    return false;
}

/* Those of a list, in the order of `info`; 0 where one does not exist, or is named twice. */
static int listed_devices(const char *list, struct butler_device_info *devices, int most)
{
    struct butler_device_info info = {BUTLER_INIT(butler_device_info)};
    int n = 0, n_names = 1;
    for (const char *at = list; *at; at++)
        n_names += *at == ',';
    for (int i = 0; n < most && butler_device_describe(i, &info); i++)
        if (lists(list, info.device))
            devices[n++] = info;
    return n == n_names ? n : 0;
}

/* Of the drivers that --device names, GPUs or, where there is none, all. */
int cmd_devices(const struct cmd_options *options, struct butler_device_info *devices, int most)
{
    struct butler_device_info info = {BUTLER_INIT(butler_device_info)};
    const size_t n_name = strcspn(options->device, ":") + 1;
    int n = 0;
    bool has_gpu = false;
    if (!names_all(options->device))
        return listed_devices(options->device, devices, most);
    for (int i = 0; butler_device_describe(i, &info); i++)
        has_gpu = has_gpu || (info.is_gpu && !strncmp(info.device, options->device, n_name));
    for (int i = 0; n < most && butler_device_describe(i, &info); i++)
        if (!strncmp(info.device, options->device, n_name) && (info.is_gpu || !has_gpu))
            devices[n++] = info;
    return n;
}

uint64_t cmd_device_memory(const struct cmd_options *options, uint64_t *most)
{
    struct butler_device_info info = {BUTLER_INIT(butler_device_info)};
    uint64_t least = 0;
    *most = 0;
    if (!options->device)
        return 0;
    const bool all = names_all(options->device), automatic = !strcmp(options->device, "auto");
    const size_t n_name = strcspn(options->device, ":") + 1;
    for (int i = 0; butler_device_describe(i, &info); i++) {
        const bool named = all ? !strncmp(info.device, options->device, n_name) : lists(options->device, info.device);
        if (!named && !(automatic && info.is_gpu && !least))
            continue;
        const uint64_t own = info.memory / (strncmp(info.device, "cuda", 4) ? 4 : 2);
        least = least && least < info.memory ? least : info.memory;
        *most = *most && *most < own ? *most : own;
    }
    return least;
}
