/* What --device stands for. */
#include <string.h>

#include "cmd.h"

bool cmd_names_all_devices(const struct cmd_options *options)
{
    return options->device && (!strcmp(options->device, "cuda:all") || !strcmp(options->device, "opencl:all"));
}

/* Of the drivers that --device names, GPUs or, where there is none, all. */
int cmd_all_devices(const struct cmd_options *options, struct butler_device_info *devices, int most)
{
    struct butler_device_info info = {BUTLER_INIT(butler_device_info)};
    const size_t n_name = strcspn(options->device, ":") + 1;
    int n = 0;
    bool has_gpu = false;
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
    const bool all = cmd_names_all_devices(options), automatic = !strcmp(options->device, "auto");
    const size_t n_name = strcspn(options->device, ":") + 1;
    for (int i = 0; butler_device_describe(i, &info); i++) {
        const bool named = all ? !strncmp(info.device, options->device, n_name) : !strcmp(info.device, options->device);
        if (!named && !(automatic && info.is_gpu && !least))
            continue;
        const uint64_t own = info.memory / (strncmp(info.device, "cuda", 4) ? 4 : 2);
        least = least && least < info.memory ? least : info.memory;
        *most = *most && *most < own ? *most : own;
    }
    return least;
}
