/* A device that has a part of the KV pages, all of which lie in host memory. */
#ifndef BUTLER_HOST_GPU_H
#define BUTLER_HOST_GPU_H

#include "engine/backend.h"

/* From now on a pool of pages has at most n_bytes on the device, one that butler_backend_gpu made, which has no pool yet. The
 * others are brought there when an operation reads them. Policies that evict or score all keys have no kernels then. The backend is
 * freed, and NULL returned with *err filled, on failure. */
struct butler_backend *butler_gpu_use_host(struct butler_backend *backend, uint64_t n_bytes, struct butler_error *err);

#endif
