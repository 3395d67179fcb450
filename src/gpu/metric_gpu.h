/* Metrics that a device has no kernels for, plug-ins among them: they run on the CPU, attention on the device. */
#ifndef BUTLER_METRIC_GPU_H
#define BUTLER_METRIC_GPU_H

#include "engine/backend.h"

/* From now on a device, one that butler_backend_gpu made, takes policies of such metrics too. cpu: a CPU backend of the same pool
 * of threads, which belongs to it from now on. Each of the two may be NULL, and what is freed is both, with NULL returned and *err
 * filled, on failure. */
struct butler_backend *butler_gpu_use_metrics(struct butler_backend *backend, struct butler_backend *cpu, struct butler_error *err);

#endif
