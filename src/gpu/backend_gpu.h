/* Devices behind a driver, OpenCL or CUDA: what there are, and a backend on one of them. */
#ifndef BUTLER_BACKEND_GPU_H
#define BUTLER_BACKEND_GPU_H

#include "engine/backend.h"

struct butler_gpu_info {
    char name[160], driver[64];
    uint64_t memory, most_at_once; /* bytes: of the device, of one allocation */
    int processors;                /* compute units */
    bool is_gpu;
};

struct butler_gpu_driver;
extern const struct butler_gpu_driver butler_gpu_cuda, butler_gpu_opencl;

/* Device cuda:index, or opencl:index of all OpenCL drivers' in their order. False with *err filled (which may be NULL): there is no
 * driver, or no such device (BUTLER_ERROR_UNSUPPORTED), or a driver of no use (BUTLER_ERROR_IO). */
bool butler_gpu_describe(const struct butler_gpu_driver *driver, int index, struct butler_gpu_info *info, struct butler_error *err);

/* kernels: the CPU's, for functions of host memory. folder: where a driver that keeps no compiled kernels itself has them kept
 * between processes, which must outlive the backend; or NULL. One that cannot be used is no error. NULL with *err filled on
 * failure: no driver, no such device, kernels that its driver does not compile. */
struct butler_backend *butler_backend_gpu(struct butler_pool *pool, const struct butler_kernels *kernels,
                                          const struct butler_gpu_driver *driver, int index, const char *folder,
                                          struct butler_error *err);

/* How often a kernel was launched by this backend, which is one that butler_backend_gpu made; 0 for a name that is no kernel's. */
uint64_t butler_gpu_launches(const struct butler_backend *backend, const char *kernel);

#endif
