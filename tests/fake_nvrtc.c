/* A stand-in for libnvrtc.so.12, for tests: what it is given must be the kernels' text in CUDA's dialect and the options that go
 * with it; what it makes is for fake_cuda.c, and begins with FAKE_CUBIN. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake_cuda.h"
#include "gpu/cuda_api.h"
#include "gpu/gpu.h"

#define EXPORT __attribute__((visibility("default")))
#define EXPORTED(type, name, parameters) EXPORT type nvrtc##name parameters;
NVRTC_FUNCTIONS(EXPORTED)

extern EXPORT struct fake_nvrtc fake_nvrtc;
struct fake_nvrtc fake_nvrtc = {.calls.fail_at = -1, .minor = 4, .newest = 90};

enum { INVALID_PROGRAM = 4, INVALID_OPTION = 5, COMPILATION = 6 };
static const int architectures[] = {80, 86, 89, 90, 100};
static const char log_text[] = "butler.cu(7): warning #177-D: variable \"a\" was never used\n"
                               "butler.cu(9): error: identifier \"b\" is undefined\n1 error detected\n";

struct program {
    bool failed, is_ptx;
    char image[64]; /* after compilation: a cubin, or PTX */
};

#define FAIL(name)                                                                                                                 \
    if (fake_fails(&fake_nvrtc.calls, name))                                                                                       \
        return fake_nvrtc.calls.fail_code;

static void complain(const char *what, const char *name)
{
    fprintf(stderr, "fake_nvrtc: %s: %s\n", what, name);
    abort();
}

int nvrtcVersion(int *major, int *minor)
{
    *major = 12;
    *minor = fake_nvrtc.minor;
    return 0;
}

int nvrtcGetNumSupportedArchs(int *n)
{
    FAIL("GetNumSupportedArchs")
    *n = 0;
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        *n += architectures[i] <= fake_nvrtc.newest;
    return 0;
}

int nvrtcGetSupportedArchs(int *supported)
{
    FAIL("GetSupportedArchs")
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures && architectures[i] <= fake_nvrtc.newest; i++)
        supported[i] = architectures[i];
    return 0;
}

int nvrtcCreateProgram(void **program, const char *text, const char *name, int n_headers, const char *const *headers,
                       const char *const *names)
{
#define KERNEL_NAME(kernel, format) #kernel,
    static const char *const kernels[] = {GPU_KERNELS(KERNEL_NAME)};
    FAIL("CreateProgram")
    (void)name, (void)headers, (void)names;
    if (n_headers != 0 || !strstr(text, "#define KERNEL extern \"C\" __global__"))
        complain("not the dialect", "cuda.h");
    for (int i = 0; i < GPU_N_KERNELS; i++) {
        char declared[64];
        const char *how = !strncmp(kernels[i], "matmul", 6) ? "MATMUL(" : i == GPU_retrieve_pages ? "LARGE_KERNEL " : "KERNEL ";
        snprintf(declared, sizeof declared, "\n%s%s", how, kernels[i]);
        if (!strstr(text, declared))
            complain("not in the text", kernels[i]);
    }
    *program = calloc(1, sizeof(struct program));
    fake_nvrtc.n_programs++;
    return 0;
}

int nvrtcDestroyProgram(void **program)
{
    free(*program);
    *program = NULL;
    fake_nvrtc.n_programs--;
    return 0;
}

/* Of the option for an architecture. */
static int choose(struct program *program, const char *option)
{
    int capability;
    program->is_ptx = sscanf(option, "-arch=sm_%d", &capability) != 1;
    if (program->is_ptx && sscanf(option, "-arch=compute_%d", &capability) != 1)
        complain("option", option);
    snprintf(program->image, sizeof program->image, "%s_%d", program->is_ptx ? "FAKE_PTX compute" : "FAKE_CUBIN sm", capability);
    for (size_t i = 0; i < sizeof architectures / sizeof *architectures; i++)
        if (architectures[i] == capability && capability <= fake_nvrtc.newest)
            return 0;
    return INVALID_OPTION;
}

int nvrtcCompileProgram(void *object, int n_options, const char *const *options)
{
    struct program *program = object;
    int n_known = 0, code = 0;
    program->failed = true;
    FAIL("CompileProgram")
    for (int i = 0; i < n_options; i++) {
        if (strcmp(options[i], "-default-device") != 0 && strcmp(options[i], "-fmad=false") != 0)
            code = choose(program, options[i]);
        n_known++;
    }
    if (n_known != 3)
        complain("options", "are missing");
    if (code != 0 || fake_nvrtc.does_not_compile)
        return code ? code : COMPILATION;
    program->failed = false;
    fake_nvrtc.n_compiled++;
    return 0;
}

int nvrtcGetProgramLogSize(void *object, size_t *n_bytes)
{
    *n_bytes = ((const struct program *)object)->failed ? sizeof log_text : 1;
    return 0;
}

int nvrtcGetProgramLog(void *object, char *log)
{
    *log = 0;
    if (((const struct program *)object)->failed)
        memcpy(log, log_text, sizeof log_text);
    return 0;
}

static int image_size(const struct program *program, bool is_ptx, size_t *n_bytes)
{
    *n_bytes = strlen(program->image) + 1;
    return program->failed || program->is_ptx != is_ptx ? INVALID_PROGRAM : 0;
}

int nvrtcGetCUBINSize(void *object, size_t *n_bytes)
{
    FAIL("GetCUBINSize")
    return image_size(object, false, n_bytes);
}

int nvrtcGetCUBIN(void *object, char *cubin)
{
    FAIL("GetCUBIN")
    strcpy(cubin, ((const struct program *)object)->image);
    return 0;
}

int nvrtcGetPTXSize(void *object, size_t *n_bytes)
{
    FAIL("GetPTXSize")
    return image_size(object, true, n_bytes);
}

int nvrtcGetPTX(void *object, char *ptx)
{
    FAIL("GetPTX")
    strcpy(ptx, ((const struct program *)object)->image);
    return 0;
}

const char *nvrtcGetErrorString(int code)
{
    return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : code == INVALID_OPTION ? "NVRTC_ERROR_INVALID_OPTION" : "NVRTC_ERROR";
}
