/* See cuda_api.h. */
#include "gpu/cuda_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { FIRST_NVRTC = 12, MOST_NVRTC = 4 };

static struct butler_cuda cuda;
static const struct butler_cuda *opened; /* written once, by open_once */
static const char *missing;
static bool driver_hidden, compiler_hidden;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static struct butler_nvrtc compilers[MOST_NVRTC];
static bool have_compiler[MOST_NVRTC], tried_compiler[MOST_NVRTC];
static struct butler_cublas cublas;
static bool has_cublas, tried_cublas, cublas_hidden;
static pthread_mutex_t libraries_lock = PTHREAD_MUTEX_INITIALIZER; /* of all but the driver */

static void open_once(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *symbol;
    if (!library)
        return;
#define CUDA_LOAD(type, name, parameters)                                                                                          \
    if (!(symbol = dlsym(library, "cu" #name))) {                                                                                  \
        missing = "cu" #name;                                                                                                      \
        return;                                                                                                                    \
    }                                                                                                                              \
    memcpy(&cuda.name, &symbol, sizeof symbol);
    CUDA_FUNCTIONS(CUDA_LOAD)
    cuda.has_graphs = true;
#define CUDA_LOAD_GRAPHS(type, name, parameters)                                                                                   \
    symbol = dlsym(library, "cu" #name);                                                                                           \
    cuda.has_graphs = cuda.has_graphs && symbol;                                                                                   \
    memcpy(&cuda.name, &symbol, sizeof symbol);
    CUDA_GRAPH_FUNCTIONS(CUDA_LOAD_GRAPHS)
    opened = &cuda;
}

const struct butler_cuda *butler_cuda_open(const char **lacks)
{
    *lacks = NULL;
    if (driver_hidden)
        return NULL;
    pthread_once(&once, open_once);
    *lacks = missing;
    return opened;
}

static bool open_compiler(int major, struct butler_nvrtc *nvrtc)
{
    char name[32];
    snprintf(name, sizeof name, "libnvrtc.so.%d", major);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL), *symbol;
    if (!library)
        return false;
#define NVRTC_LOAD(type, name, parameters)                                                                                         \
    if (!(symbol = dlsym(library, "nvrtc" #name)))                                                                                 \
        return false;                                                                                                              \
    memcpy(&nvrtc->name, &symbol, sizeof symbol);
    NVRTC_FUNCTIONS(NVRTC_LOAD)
    return true;
}

const struct butler_nvrtc *butler_nvrtc_open(int major)
{
    const int i = major - FIRST_NVRTC;
    if (i < 0 || i >= MOST_NVRTC || compiler_hidden)
        return NULL;
    pthread_mutex_lock(&libraries_lock);
    if (!tried_compiler[i])
        have_compiler[i] = open_compiler(major, &compilers[i]);
    tried_compiler[i] = true;
    pthread_mutex_unlock(&libraries_lock);
    return have_compiler[i] ? &compilers[i] : NULL;
}

static bool open_cublas(int major)
{
    char name[32];
    snprintf(name, sizeof name, "libcublas.so.%d", major);
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL), *symbol;
    if (!library)
        return false;
#define CUBLAS_LOAD(type, name, parameters)                                                                                        \
    if (!(symbol = dlsym(library, "cublas" #name)))                                                                                \
        return false;                                                                                                              \
    memcpy(&cublas.name, &symbol, sizeof symbol);
    CUBLAS_FUNCTIONS(CUBLAS_LOAD)
    return true;
}

const struct butler_cublas *butler_cublas_open(int newest)
{
    pthread_mutex_lock(&libraries_lock);
    for (int major = newest; major >= CUDA_OLDEST && !tried_cublas && !has_cublas; major--)
        has_cublas = open_cublas(major);
    tried_cublas = true;
    pthread_mutex_unlock(&libraries_lock);
    return has_cublas && !cublas_hidden ? &cublas : NULL;
}

void butler_cublas_hide(bool hidden)
{
    cublas_hidden = hidden;
}

void butler_cuda_hide(bool driver, bool compiler)
{
    driver_hidden = driver;
    compiler_hidden = compiler;
}
