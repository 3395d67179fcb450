/* The device of this machine's OpenCL driver against the CPU (Debian: pocl-opencl-icd runs the kernels on the CPU). */
#define GPU_DRIVER butler_gpu_opencl
#define GPU_DEVICE "opencl"
#define GPU_FEW 0
#include "gpu_tests.h"

/* argv[1]: a pattern of tests' names; else all run. */
int main(int argc, char **argv)
{
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    butler_opencl_use(&(struct butler_opencl){0}); /* drivers are not built for sanitizers: test_simt.c is */
#endif
    return run_gpu_tests();
}
