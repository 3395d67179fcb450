/* `butler serve` where butler is built without libevent. */
#include "serve/api.h"

int serve_run(struct butler_engine *const *engines, int n, const struct serve_config *config, struct butler_error *err)
{
    (void)engines;
    (void)n;
    (void)config;
    *err = (struct butler_error){BUTLER_ERROR_UNSUPPORTED,
                                 "this butler was built without libevent, which serve needs (libevent-dev; then make again)"};
    return err->code;
}
