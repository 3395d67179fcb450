/* The kernels of src/gpu as plain C, and the host's side of them, against the CPU: what sanitizers say of both, and barriers. */
#define GPU_FEW 1
#include "gpu_tests.h"

#include "simt_opencl.h"

int main(void)
{
    butler_opencl_use(SIMT_CALLS ? &simt_opencl : &(struct butler_opencl){0});
    const int failed = run_gpu_tests();
    simt_free();
    return failed;
}
