/* An engine on a device of this machine, with the built-in metrics and policies: no other file of the library knows all of them. */
#include "cpu/backend_cpu.h"
#include "devices/spill.h"
#include "engine/abi.h"
#include "engine/engine.h"
#include "metrics/registry.h"

struct butler_engine *butler_engine_new(struct butler_model *model, const struct butler_engine_params *params,
                                        struct butler_error *err)
{
    struct butler_engine_params own;
    if (butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_engine_params, kv_folder), "butler_engine_params", err) <
        0)
        return NULL;
    params = &own;
    if (BUTLER_IS_NULL(model, err))
        return NULL;
    if (!model->layers) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "%s was loaded for its vocabulary only", model->path);
        return NULL;
    }
    if (params->n_block < 0 || params->n_block > 1 << 16) {
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "passes of %d tokens: they must be between 1 and %d", params->n_block, 1 << 16);
        return NULL;
    }
    const struct butler_spill_params spill = {.memory = params->kv_ram,
                                              .disk = {.folder = params->kv_folder ? params->kv_folder : "/var/tmp"}};
    struct butler_pool *pool = butler_pool_new(butler_engine_threads(params->n_threads), err);
    struct butler_backend *backend = pool ? butler_backend_cpu(pool, params->isa, err) : NULL;
    if (backend && params->kv_ram > 0)
        backend = butler_spill_backend(backend, &spill, err);
    return butler_engine_new_on(model, params, &butler_builtin, pool, backend, err);
}
