/* The first NVIDIA GPU of this machine against the CPU: the tests of test_gpu.c by CUDA's driver, with the device's own kernels
 * alone (cuBLAS rounds the products of prompts to TF32). bench/gpu.sh runs it where it is built. */
#define GPU_DRIVER butler_gpu_cuda
#define GPU_DEVICE "cuda"
#define GPU_FEW 0
#include "gpu_tests.h"

#include "gpu/cuda_api.h"

/* argv[1]: a pattern of tests' names; else all run. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    butler_cublas_hide(true);
    return run_gpu_tests();
}
