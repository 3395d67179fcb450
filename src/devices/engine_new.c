/* An engine on a device of this machine, with the built-in metrics and policies: no other file of the library knows all of them. */
#include <stdlib.h>
#include <string.h>

#include "cpu/backend_cpu.h"
#include "devices/spill.h"
#include "engine/abi.h"
#include "engine/engine.h"
#include "gpu/backend_gpu.h"
#include "metrics/registry.h"

enum { CPU = -1, UNKNOWN = -2 };

bool butler_device_describe(int i, struct butler_device_info *info)
{
    struct butler_gpu_info gpu;
    if (!info || !butler_gpu_describe(i, &gpu))
        return false;
    struct butler_device_info own = {.memory = gpu.memory, .is_gpu = gpu.is_gpu};
    memcpy(own.name, gpu.name, sizeof own.name);
    memcpy(own.driver, gpu.driver, sizeof own.driver);
    butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_device_info, is_gpu));
    return true;
}

/* The index of the first OpenCL device that is a GPU; or CPU. */
static int first_gpu(void)
{
    struct butler_gpu_info info;
    for (int i = 0; butler_gpu_describe(i, &info); i++)
        if (info.is_gpu)
            return i;
    return CPU;
}

/* CPU, the index of an OpenCL device, or UNKNOWN. */
static int device_of(const char *name)
{
    char *end;
    if (!name || !strcmp(name, "cpu"))
        return CPU;
    if (strncmp(name, "opencl:", 7) != 0 || name[7] < '0' || name[7] > '9')
        return UNKNOWN;
    const long index = strtol(name + 7, &end, 10);
    return *end || index > 255 ? UNKNOWN : (int)index;
}

/* Takes the pool's threads; NULL with *err filled on failure. */
static struct butler_backend *make_backend(const struct butler_engine_params *params, int device, struct butler_pool *pool,
                                           struct butler_error *err)
{
    const struct butler_spill_params spill = {.memory = params->kv_ram,
                                              .disk = {.folder = params->kv_folder ? params->kv_folder : "/var/tmp"}};
    if (device != CPU && params->kv_ram > 0) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "--kv-ram: pages of device opencl:%d do not go to a disk", device);
        return NULL;
    }
    struct butler_backend *cpu = butler_backend_cpu(pool, params->isa, err);
    if (!cpu || device == CPU)
        return cpu && params->kv_ram > 0 ? butler_spill_backend(cpu, &spill, err) : cpu;
    const struct butler_kernels *kernels = cpu->kernels;
    butler_backend_free(cpu);
    return butler_backend_gpu(pool, kernels, device, err);
}

static struct butler_engine *make_engine(struct butler_model *model, const struct butler_engine_params *params, int device,
                                         struct butler_error *err)
{
    struct butler_pool *pool = butler_pool_new(butler_engine_threads(params->n_threads), err);
    struct butler_backend *backend = pool ? make_backend(params, device, pool, err) : NULL;
    return butler_engine_new_on(model, params, &butler_builtin, pool, backend, err);
}

/* The first GPU, else the CPU: *err then says why, with code 0. */
static struct butler_engine *make_engine_auto(struct butler_model *model, const struct butler_engine_params *params,
                                              struct butler_error *err)
{
    struct butler_error why = {0};
    const int device = first_gpu();
    struct butler_engine *engine = device == CPU ? NULL : make_engine(model, params, device, &why);
    if (engine)
        return engine;
    if (device == CPU)
        butler_fail(&why, 0, "no device of OpenCL here is a GPU");
    engine = make_engine(model, params, CPU, err);
    if (engine && err) {
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
    const int device = automatic ? CPU : device_of(params->device);
    if (device == UNKNOWN) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "device '%s': there are cpu, auto and opencl:N", params->device);
        return NULL;
    }
    if (params->n_block < 0 || params->n_block > 1 << 16) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "passes of %d tokens: they must be between 1 and %d", params->n_block, 1 << 16);
        return NULL;
    }
    return automatic ? make_engine_auto(model, params, err) : make_engine(model, params, device, err);
}
