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
struct fake_nvrtc fake_nvrtc = {.calls.fail_at = -1};

enum { COMPILATION = 6, INVALID_PROGRAM = 4 };
static const char log_text[] = "butler.cu(7): warning #177-D: variable \"a\" was never used\n"
                               "butler.cu(9): error: identifier \"b\" is undefined\n1 error detected\n";

struct program {
    bool failed;
    char cubin[64]; /* after compilation */
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
    *minor = 4;
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
        snprintf(declared, sizeof declared, "%s%s", !strncmp(kernels[i], "matmul", 6) ? "\nMATMUL(" : "\nKERNEL ", kernels[i]);
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

int nvrtcCompileProgram(void *object, int n_options, const char *const *options)
{
    struct program *program = object;
    int n_known = 0;
    program->failed = true;
    FAIL("CompileProgram")
    for (int i = 0; i < n_options; i++) {
        int capability;
        if (sscanf(options[i], "-arch=sm_%d", &capability) == 1)
            n_known += snprintf(program->cubin, sizeof program->cubin, "FAKE_CUBIN sm_%d", capability) > 0;
        else if (!strcmp(options[i], "-default-device") || !strcmp(options[i], "-fmad=false"))
            n_known++;
        else
            complain("option", options[i]);
    }
    if (n_known != 3)
        complain("options", "are missing");
    if (fake_nvrtc.does_not_compile)
        return COMPILATION;
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

int nvrtcGetCUBINSize(void *object, size_t *n_bytes)
{
    FAIL("GetCUBINSize")
    *n_bytes = sizeof((struct program *)object)->cubin;
    return ((const struct program *)object)->failed ? INVALID_PROGRAM : 0;
}

int nvrtcGetCUBIN(void *object, char *cubin)
{
    const struct program *program = object;
    FAIL("GetCUBIN")
    memcpy(cubin, program->cubin, sizeof program->cubin);
    return 0;
}

const char *nvrtcGetErrorString(int code)
{
    return code == COMPILATION ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
