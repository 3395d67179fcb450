/* The kernels compiled for a CUDA device: by NVRTC, which takes seconds, or as an earlier process left them in a folder. */
#ifndef BUTLER_CUDA_COMPILE_H
#define BUTLER_CUDA_COMPILE_H

#include "gpu/gpu.h"

/* What the driver loads as a module, kept for the process: machine code for the device's compute capability (90: 9.0), or PTX,
 * which the driver compiles, where NVRTC is older than the device. version: the driver's (12040: CUDA 12.4). NULL with *err filled.
 */
const char *butler_cuda_image(const struct butler_gpu *gpu, int version, int capability, struct butler_error *err);

/* For tests, while there is no engine on a device: as in a new process. */
void butler_cuda_forget_images(void);

#endif
