/* Launches of kernels wait here until there are some dozens, or until the stream's next copy or wait: a decode step is a few lists
 * of them, each of which goes to CUDA's driver as one graph. */
#ifndef BUTLER_CUDA_GRAPH_H
#define BUTLER_CUDA_GRAPH_H

#include "gpu/gpu.h"

/* Notes a launch, whose arguments are copied. A code: there is no host memory. */
int butler_cuda_add_launch(struct butler_gpu *gpu, int kernel, const int groups[3], const struct butler_gpu_arg *args, int n);

/* Whether as many wait as go together; gives them to the driver. Context and code as below. */
bool butler_cuda_has_piece(const struct butler_gpu *gpu);
int butler_cuda_flush_piece(struct butler_gpu *gpu);

/* Gives the driver all that waits: before anything else is given to the stream, and before memory is freed. The device's context is
 * the thread's. A code, which is noted as the device's error too. */
int butler_cuda_flush(struct butler_gpu *gpu);

/* What waits is dropped, and graphs are destroyed. The context is the thread's, or NULL is all that there is. */
void butler_cuda_free_launches(struct butler_gpu *gpu);

#endif
