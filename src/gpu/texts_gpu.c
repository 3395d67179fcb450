/* The kernels' texts: the assembler takes the files in. */
#include "gpu/gpu.h"

#define EMBED(name, path)                                                                                                          \
    extern const char name[], name##_end[];                                                                                        \
    __asm__(".pushsection .rodata\n.globl " #name ", " #name "_end\n.hidden " #name ", " #name "_end\n" #name ":\n.incbin \"" path \
            "\"\n" #name "_end:\n.popsection\n")

EMBED(butler_gpu_text_opencl, "gpu/opencl.h");
EMBED(butler_gpu_text_cuda, "gpu/cuda.h");
EMBED(butler_gpu_text_kernels, "gpu/kernels.cl");
EMBED(butler_gpu_text_cache, "gpu/cache.cl");
EMBED(butler_gpu_text_attend, "gpu/attend.cl");
EMBED(butler_gpu_text_fused, "gpu/fused.cl");
EMBED(butler_gpu_text_one_bit, "gpu/one_bit.cl");
EMBED(butler_gpu_text_predicted, "gpu/predicted.cl");
EMBED(butler_gpu_text_evict, "gpu/evict.cl");

const char *butler_gpu_text(enum butler_gpu_text text, size_t *n_bytes)
{
    static const char *const texts[GPU_N_TEXTS][2] = {
        {butler_gpu_text_opencl, butler_gpu_text_opencl_end},   {butler_gpu_text_cuda, butler_gpu_text_cuda_end},
        {butler_gpu_text_kernels, butler_gpu_text_kernels_end}, {butler_gpu_text_cache, butler_gpu_text_cache_end},
        {butler_gpu_text_attend, butler_gpu_text_attend_end},   {butler_gpu_text_fused, butler_gpu_text_fused_end},
        {butler_gpu_text_one_bit, butler_gpu_text_one_bit_end}, {butler_gpu_text_predicted, butler_gpu_text_predicted_end},
        {butler_gpu_text_evict, butler_gpu_text_evict_end}};
    *n_bytes = (uintptr_t)texts[text][1] - (uintptr_t)texts[text][0];
    return texts[text][0];
}
