/* See opencl_api.h. */
#include "gpu/opencl_api.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>

static struct butler_opencl api;
static const struct butler_opencl *opened;  /* written once, by open_once */
static const struct butler_opencl *instead; /* a test's */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_once(void)
{
    void *library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return;
    void *symbol;
#define OPENCL_LOAD(type, name, parameters)                                                                                        \
    if (!(symbol = dlsym(library, "cl" #name)))                                                                                    \
        return;                                                                                                                    \
    memcpy(&api.name, &symbol, sizeof symbol);
    OPENCL_FUNCTIONS(OPENCL_LOAD)
    opened = &api;
}

const struct butler_opencl *butler_opencl_open(void)
{
    if (instead)
        return instead->GetPlatformIDs ? instead : NULL;
    pthread_once(&once, open_once);
    return opened;
}

void butler_opencl_use(const struct butler_opencl *driver)
{
    instead = driver;
}
