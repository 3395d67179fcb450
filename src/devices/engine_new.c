/* An engine on a device of this machine, with the built-in metrics and policies: no other file of the library knows all of them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu/backend_cpu.h"
#include "devices/spill.h"
#include "engine/abi.h"
#include "engine/engine.h"
#include "gpu/backend_gpu.h"
#include "gpu/host_gpu.h"
#include "gpu/metric_gpu.h"
#include "metrics/registry.h"

/* Drivers of devices, in the order in which --device auto asks them. */
static const struct {
    const char *name;
    const struct butler_gpu_driver *driver;
} drivers[] = {{"cuda", &butler_gpu_cuda}, {"opencl", &butler_gpu_opencl}};

/* What --device names. */
struct device {
    const struct butler_gpu_driver *driver; /* NULL: the CPU */
    int index;
};

bool butler_device_describe(int i, struct butler_device_info *info)
{
    struct butler_gpu_info gpu;
    if (!info || i < 0)
        return false;
    for (size_t d = 0; d < BUTLER_COUNT(drivers); d++)
        for (int index = 0; butler_gpu_describe(drivers[d].driver, index, &gpu, NULL); index++)
            if (i-- == 0) {
                struct butler_device_info own = {.memory = gpu.memory, .is_gpu = gpu.is_gpu};
                memcpy(own.name, gpu.name, sizeof own.name);
                memcpy(own.driver, gpu.driver, sizeof own.driver);
                snprintf(own.device, sizeof own.device, "%s:%d", drivers[d].name, index);
                butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_device_info, device));
                return true;
            }
    return false;
}

/* The first device of a driver that is a GPU. False: it has none; *err says why, as butler_gpu_describe does. */
static bool first_gpu(const struct butler_gpu_driver *driver, struct device *device, struct butler_error *err)
{
    struct butler_gpu_info info;
    for (int i = 0; butler_gpu_describe(driver, i, &info, err); i++)
        if (info.is_gpu) {
            *device = (struct device){driver, i};
            return true;
        }
    return false;
}

/* False: the name is no device's. */
static bool device_of(const char *name, struct device *device)
{
    *device = (struct device){0};
    if (!name || !strcmp(name, "cpu"))
        return true;
    for (size_t i = 0; i < BUTLER_COUNT(drivers); i++) {
        const size_t n = strlen(drivers[i].name);
        if (strncmp(name, drivers[i].name, n) != 0 || name[n] != ':' || name[n + 1] < '0' || name[n + 1] > '9')
            continue;
        char *end;
        const long index = strtol(name + n + 1, &end, 10);
        *device = (struct device){drivers[i].driver, (int)index};
        return !*end && index <= 255;
    }
    return false;
}

/* Takes the pool's threads; NULL with *err filled on failure. */
static struct butler_backend *make_backend(const struct butler_model *model, const struct butler_engine_params *params,
                                           struct device device, struct butler_pool *pool, struct butler_error *err)
{
    const struct butler_spill_params spill = {.memory = params->kv_ram,
                                              .disk = {.folder = params->kv_folder ? params->kv_folder : "/var/tmp"}};
    struct butler_backend *cpu = butler_backend_cpu(pool, params->isa, err);
    if (!cpu || !device.driver)
        return cpu && params->kv_ram > 0 ? butler_spill_backend(cpu, &spill, err) : cpu;
    struct butler_backend *gpu = butler_gpu_use_metrics(
        butler_backend_gpu(pool, cpu->kernels, device.driver, device.index, model->cache_folder, err), cpu, err);
    return gpu && params->kv_ram > 0 ? butler_gpu_use_host(gpu, params->kv_ram, err) : gpu;
}

static struct butler_engine *make_engine(struct butler_model *model, const struct butler_engine_params *params,
                                         struct device device, struct butler_error *err)
{
    struct butler_pool *pool = butler_pool_new(butler_engine_threads(params->n_threads), err);
    struct butler_backend *backend = pool ? make_backend(model, params, device, pool, err) : NULL;
    return butler_engine_new_on(model, params, &butler_builtin, pool, backend, err);
}

/* The first GPU that starts, else the CPU: *err then says why not the first one there is, with code 0. */
static struct butler_engine *make_engine_auto(struct butler_model *model, const struct butler_engine_params *params,
                                              struct butler_error *err)
{
    struct butler_error why = {0};
    struct butler_engine *engine = NULL;
    struct device device;
    for (size_t i = 0; i < BUTLER_COUNT(drivers) && !engine; i++) {
        struct butler_error own = {0};
        if (first_gpu(drivers[i].driver, &device, &own))
            engine = make_engine(model, params, device, &own);
        else if (own.code == BUTLER_ERROR_UNSUPPORTED) /* no driver or no device: nothing to mention */
            continue;
        why = why.message[0] ? why : own;
    }
    if (!engine) {
        if (!why.message[0])
            butler_fail(&why, 0, "no device of CUDA or OpenCL here is a GPU");
        engine = make_engine(model, params, (struct device){0}, err);
    }
    if (engine && err && why.message[0]) {
        *err = why;
        err->code = 0;
    }
    return engine;
}

struct butler_engine *butler_engine_new(struct butler_model *model, const struct butler_engine_params *params,
                                        struct butler_error *err)
{
    struct butler_engine_params own;
    if (butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_engine_params, device), "butler_engine_params", err) < 0)
        return NULL;
    params = &own;
    if (BUTLER_IS_NULL(model, err))
        return NULL;
    if (!model->layers) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s was loaded for its vocabulary only", model->path);
        return NULL;
    }
    const bool automatic = params->device && !strcmp(params->device, "auto");
    struct device device = {0};
    if (!automatic && !device_of(params->device, &device)) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "device '%s': there are cpu, auto, cuda:N and opencl:N", params->device);
        return NULL;
    }
    if (params->n_block < 0 || params->n_block > 1 << 16) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "passes of %d tokens: they must be between 1 and %d", params->n_block, 1 << 16);
        return NULL;
    }
    return automatic ? make_engine_auto(model, params, err) : make_engine(model, params, device, err);
}
