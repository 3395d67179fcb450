/* A stand-in for libcuda.so.1, for tests on machines without a GPU: kernels are those of simt.h, in this process. It is as strict
 * as a driver may be. What a stream is given happens only when somebody waits for it, so that host memory that is used too early
 * shows; each buffer is an allocation by itself, so that a sanitizer sees its ends, and its first contents are no zeros. A call
 * that breaks the rules ends the process, or gives the code that a driver gives. */
#include <pthread.h>

#include "fake_cuda.h"
#include "gpu/cuda_api.h"
#include "simt.h"

#define EXPORT __attribute__((visibility("default")))
#define EXPORTED(type, name, parameters) EXPORT type cu##name parameters;
CUDA_FUNCTIONS(EXPORTED)
CUDA_GRAPH_FUNCTIONS(EXPORTED)

extern EXPORT struct fake_cuda fake_cuda;
struct fake_cuda fake_cuda = {.calls.fail_at = -1, .version = 12040, .n_devices = SIMT_CALLS, .capability = 90, .kernels_left = -1};

enum {
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
    MOST_CONTEXTS = 8,
    MOST_DEVICES = 4,
    MOST_STREAMS = 16,
    MOST_NODES = 1024,
    MOST_PER_GRID = 65535, /* groups along y and z */
    MEMORY = 1 << 28       /* bytes of a device */
};

struct buffer {
    struct buffer *next;
    size_t n_bytes;
    unsigned char *bytes;
};

/* Something that a stream was given to do. */
struct work {
    enum { UPLOAD, DOWNLOAD, COPY, FILL, KERNEL_OF, CALL } what;
    void *to;
    const void *from;
    size_t n_bytes;
    int byte, kernel, groups[3];
    const struct module *module; /* the kernel's */
    uint64_t ints[SIMT_INTS];
    float floats[SIMT_FLOATS];
    void (*call)(const void *data);
    unsigned char data[FAKE_DATA];
};

struct module {
    struct module *next;
    const unsigned char *image;
    struct module_function {
        struct module *module;
        int kernel;
    } functions[GPU_N_KERNELS];
};

static const struct {
    const char *name, *format;
} kernel_table[] = {
#define KERNEL_ROW(name, format) {#name, format},
    GPU_KERNELS(KERNEL_ROW)};

/* A graph, or an executable one: nodes in the order in which they were added. */
struct graph {
    struct graph *next;
    const struct graph *of; /* executable: what it was made of */
    int n;
    struct node {
        struct graph *graph;
        int index, after; /* the node that must have run before; -1: none */
        struct work work;
    } * nodes[MOST_NODES];
};

/* A device with its primary context, which exists while it is retained. Streams do their work in no order but each its own: when
 * they are waited for, but an upload to one beside the first now and then at once. */
static struct device {
    int n_retained, n_streams;
    bool lost, hurries;
    struct buffer *buffers, *host_buffers;
    struct module *modules;
    struct graph *graphs;
    struct stream {
        struct device *device; /* NULL: there is no such stream */
        struct work *queue;    /* [n_queued] */
        int n_queued, max_queued;
    } streams[MOST_STREAMS];
} devices[MOST_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* of everything but: */
static _Thread_local struct device *current[MOST_CONTEXTS];
static _Thread_local int n_current;
static bool initialized;

static pthread_mutex_t *take_lock(void)
{
    pthread_mutex_lock(&lock);
    return &lock;
}

static void drop_lock(pthread_mutex_t **taken)
{
    pthread_mutex_unlock(*taken);
}

/* The calling thread's context, that of a device; NULL: none. */
static struct device *here(void)
{
    return n_current > 0 && current[n_current - 1]->n_retained > 0 ? current[n_current - 1] : NULL;
}

__attribute__((noreturn)) static void complain(const char *what, const char *name)
{
    fprintf(stderr, "fake_cuda: %s: %s\n", what, name);
    abort();
}

/* Whether an argument or an operand of what waits is an address in bytes[n_bytes]. */
static bool touches(const struct work *work, const void *bytes, size_t n_bytes)
{
    uint64_t words[SIMT_INTS + FAKE_DATA / sizeof(uint64_t) + 2];
    memcpy(words, work->ints, sizeof work->ints);
    memcpy(words + SIMT_INTS, work->data, sizeof work->data);
    memcpy(words + SIMT_INTS + FAKE_DATA / sizeof *words, (const void *[]){work->to, work->from}, 2 * sizeof *words);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i] - (uint64_t)(uintptr_t)bytes < n_bytes)
            return true;
    return false;
}

/* Memory, or (bytes NULL) a module, may go if no stream of the thread's context has work that waits for it: other engines may be at
 * work there. */
static void check_unused(const void *bytes, size_t n_bytes, const struct module *module, const char *name)
{
    for (int i = 0; i < MOST_STREAMS; i++)
        for (int j = 0; j < here()->streams[i].n_queued; j++) {
            const struct work *work = &here()->streams[i].queue[j];
            if (module ? work->module == module : touches(work, bytes, n_bytes))
                complain("what may be in use is freed", name);
        }
}

#define FAIL(name)                                                                                                                 \
    pthread_mutex_t *taken __attribute__((cleanup(drop_lock))) = take_lock();                                                      \
    if (fake_fails(&fake_cuda.calls, name)) {                                                                                      \
        if (here() && fake_cuda.calls.fail_code == LAUNCH_FAILED)                                                                  \
            here()->lost = true;                                                                                                   \
        return fake_cuda.calls.fail_code;                                                                                          \
    }
/* What most functions begin with: a context must be the thread's, and not lost. */
#define BEGIN(name)                                                                                                                \
    FAIL(name)                                                                                                                     \
    if (!here())                                                                                                                   \
        return INVALID_CONTEXT;                                                                                                    \
    if (here()->lost)                                                                                                              \
        return LAUNCH_FAILED;

/* ------------------------------------------------------------------------------------------- devices, contexts */

/* NVIDIA's NVRTC opens the driver too, and asks it for tables of private functions: there are none. */
EXPORT int cuGetExportTable(const void **table, const void *id);
int cuGetExportTable(const void **table, const void *id)
{
    (void)table, (void)id;
    return NOT_FOUND;
}

int cuInit(unsigned flags)
{
    FAIL("Init")
    (void)flags;
    initialized = true;
    return fake_cuda.n_devices > 0 ? 0 : CUDA_NO_DEVICE;
}

int cuDriverGetVersion(int *version)
{
    FAIL("DriverGetVersion")
    *version = fake_cuda.version;
    return 0;
}

int cuGetErrorName(int code, const char **name)
{
    static const struct {
        int code;
        const char *name;
    } names[] = {{CUDA_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"}, {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                 {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},  {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
                 {LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"},      {999, "CUDA_ERROR_UNKNOWN"},
                 {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}};
    *name = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].code == code)
            *name = names[i].name;
    return *name ? 0 : INVALID_VALUE;
}

int cuDeviceGetCount(int *n)
{
    FAIL("DeviceGetCount")
    *n = fake_cuda.n_devices;
    return initialized ? 0 : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int index)
{
    FAIL("DeviceGet")
    *device = index;
    return !initialized ? NOT_INITIALIZED : index < 0 || index >= fake_cuda.n_devices ? INVALID_DEVICE : 0;
}

int cuDeviceGetName(char *name, int n_bytes, int device)
{
    FAIL("DeviceGetName")
    snprintf(name, (size_t)n_bytes, getenv("FAKE_CUDA_NUMBERED") ? "fake %d" : "fake", device);
    return device < fake_cuda.n_devices ? 0 : INVALID_DEVICE;
}

int cuDeviceTotalMem_v2(size_t *n_bytes, int device)
{
    FAIL("DeviceTotalMem")
    *n_bytes = MEMORY;
    return device < fake_cuda.n_devices ? 0 : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    FAIL("DeviceGetAttribute")
    if (device >= fake_cuda.n_devices ||
        (attribute != CUDA_PROCESSORS && attribute != CUDA_CAPABILITY_MAJOR && attribute != CUDA_CAPABILITY_MINOR))
        return INVALID_VALUE;
    *value = attribute == CUDA_PROCESSORS         ? 132
             : attribute == CUDA_CAPABILITY_MAJOR ? fake_cuda.capability / 10
                                                  : fake_cuda.capability % 10;
    return 0;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    FAIL("DevicePrimaryCtxRetain")
    if (device >= fake_cuda.n_devices || device >= MOST_DEVICES)
        return INVALID_DEVICE;
    *context = &devices[device];
    devices[device].n_retained++;
    fake_cuda.n_contexts++;
    return 0;
}

static void free_graph(struct graph *graph)
{
    for (int i = 0; i < graph->n; i++)
        free(graph->nodes[i]);
    free(graph);
    fake_cuda.n_graphs--;
}

static void end_buffers(struct buffer *buffer)
{
    for (struct buffer *next; buffer; buffer = next) {
        next = buffer->next;
        free(buffer->bytes);
        free(buffer);
        fake_cuda.n_left++;
        fake_cuda.n_buffers--;
    }
}

/* Frees what a context still has when it ends. */
static void end_context(struct device *device)
{
    fake_cuda.n_left = device->n_streams;
    fake_cuda.n_streams -= device->n_streams;
    end_buffers(device->buffers);
    end_buffers(device->host_buffers);
    for (struct module *module = device->modules, *next; module; module = next) {
        next = module->next;
        free(module);
        fake_cuda.n_left++;
        fake_cuda.n_modules--;
    }
    for (struct graph *graph = device->graphs, *next; graph; graph = next) {
        next = graph->next;
        free_graph(graph);
        fake_cuda.n_left++;
    }
    for (int i = 0; i < MOST_STREAMS; i++)
        free(device->streams[i].queue);
    *device = (struct device){0};
}

/* The last release ends the context, and a lost one with it. */
int cuDevicePrimaryCtxRelease_v2(int device)
{
    pthread_mutex_t *taken __attribute__((cleanup(drop_lock))) = take_lock();
    if (device >= fake_cuda.n_devices || devices[device].n_retained == 0)
        complain("a context that nobody retains is released", "cuDevicePrimaryCtxRelease");
    fake_cuda.n_contexts--;
    if (--devices[device].n_retained == 0)
        end_context(&devices[device]);
    return 0;
}

int cuCtxPushCurrent_v2(void *context)
{
    struct device *device = context;
    FAIL("CtxPushCurrent")
    if (device < devices || device >= devices + MOST_DEVICES || device->n_retained == 0)
        return INVALID_CONTEXT;
    if (n_current == MOST_CONTEXTS)
        complain("contexts are pushed and not popped", "cuCtxPushCurrent");
    current[n_current++] = device;
    __atomic_fetch_add(&fake_cuda.n_current, 1, __ATOMIC_RELAXED);
    return 0;
}

int cuCtxPopCurrent_v2(void **context)
{
    if (n_current == 0)
        return INVALID_CONTEXT;
    *context = current[--n_current];
    __atomic_fetch_sub(&fake_cuda.n_current, 1, __ATOMIC_RELAXED); /* also where it fails */
    FAIL("CtxPopCurrent")
    return 0;
}

/* ------------------------------------------------------------------------------------------------------ modules */

/* A cubin that NVRTC made has a section with a kernel's name; what fake_nvrtc.c made has all. */
static bool has_kernel(const unsigned char *image, const char *name)
{
    char section[64];
    uint64_t headers;
    uint16_t size, n;
    if (memcmp(image, "\177ELF", 4) != 0)
        return true;
    memcpy(&headers, image + 40, sizeof headers); /* of sections, which are at the end: ELF, 64 bits */
    memcpy(&size, image + 58, sizeof size);
    memcpy(&n, image + 60, sizeof n);
    snprintf(section, sizeof section, ".text.%s", name);
    return memmem(image, headers + (uint64_t)size * n, section, strlen(section) + 1) != NULL;
}

/* Machine code for the device, or PTX for it or an older one. */
static bool can_load(const char *image)
{
    int capability;
    if (sscanf(image, "FAKE_PTX compute_%d", &capability) == 1)
        return capability <= fake_cuda.capability;
    return sscanf(image, "FAKE_CUBIN sm_%d", &capability) == 1 ? capability == fake_cuda.capability
                                                               : memcmp(image, "\177ELF", 4) == 0;
}

int cuModuleLoadData(void **object, const void *image)
{
    BEGIN("ModuleLoadData")
    if (!can_load(image))
        return INVALID_IMAGE;
    fake_cuda.loads_ptx = ((const char *)image)[5] == 'P';
    struct module *module = calloc(1, sizeof *module);
    if (!module)
        return CUDA_OUT_OF_MEMORY;
    module->image = image;
    module->next = here()->modules;
    here()->modules = module;
    *object = module;
    fake_cuda.n_modules++;
    return 0;
}

int cuModuleUnload(void *object)
{
    BEGIN("ModuleUnload")
    check_unused(NULL, 0, object, "cuModuleUnload");
    for (struct module **at = &here()->modules; *at; at = &(*at)->next)
        if (*at == object) {
            *at = (*at)->next;
            free(object);
            fake_cuda.n_modules--;
            return 0;
        }
    return INVALID_HANDLE;
}

int cuModuleGetFunction(void **function, void *object, const char *name)
{
    struct module *module = object;
    BEGIN("ModuleGetFunction")
    for (int i = 0; i < GPU_N_KERNELS; i++)
        if (!strcmp(kernel_table[i].name, name) && has_kernel(module->image, name)) {
            module->functions[i] = (struct module_function){module, i};
            *function = &module->functions[i];
            return 0;
        }
    return NOT_FOUND;
}

/* ------------------------------------------------------------------------------------------------------- streams */

/* One kernel. */
static void run_kernel(const struct work *work)
{
    memcpy(simt.ints, work->ints, sizeof simt.ints);
    memcpy(simt.floats, work->floats, sizeof simt.floats);
    simt.call = simt_kernels[work->kernel];
    for (simt.group[2] = 0; simt.group[2] < work->groups[2]; simt.group[2]++)
        for (simt.group[1] = 0; simt.group[1] < work->groups[1]; simt.group[1]++)
            for (simt.group[0] = 0; simt.group[0] < work->groups[0]; simt.group[0]++)
                simt_group(kernel_table[work->kernel].name);
}

/* 0, or the code of a kernel that failed: what follows it is not done. */
static int run_queue(struct stream *stream)
{
    struct device *device = stream->device;
    for (int i = 0; i < stream->n_queued && !device->lost; i++) {
        const struct work *work = &stream->queue[i];
        if (work->what == FILL)
            memset(work->to, work->byte, work->n_bytes);
        else if (work->what == CALL)
            work->call(work->data);
        else if (work->what != KERNEL_OF)
            memmove(work->to, work->from, work->n_bytes);
        else if (fake_cuda.kernels_left == 0) {
            device->lost = true;
            fake_cuda.kernels_left = -1; /* other devices go on */
        } else {
            fake_cuda.kernels_left -= fake_cuda.kernels_left > 0;
            run_kernel(work);
        }
    }
    stream->n_queued = 0;
    return device->lost ? LAUNCH_FAILED : 0;
}

/* The stream is one of the context that is the thread's. */
static bool is_stream(const void *stream)
{
    for (int i = 0; i < MOST_STREAMS; i++)
        if (stream == &here()->streams[i] && here()->streams[i].device)
            return true;
    return false;
}

static int enqueue(const struct work *work, void *to)
{
    struct stream *stream = to;
    if (!is_stream(stream))
        return INVALID_HANDLE;
    if (stream->n_queued == stream->max_queued) {
        stream->max_queued = stream->max_queued ? 2 * stream->max_queued : 64;
        stream->queue = realloc(stream->queue, (size_t)stream->max_queued * sizeof *stream->queue);
        if (!stream->queue)
            abort();
    }
    stream->queue[stream->n_queued++] = *work;
    const bool aside = stream != here()->streams && work->what == UPLOAD;
    return aside && (here()->hurries = !here()->hurries) ? run_queue(stream) : 0;
}

int cuStreamCreate(void **stream, unsigned flags)
{
    BEGIN("StreamCreate")
    struct stream *own = here()->streams;
    while (own < here()->streams + MOST_STREAMS && own->device)
        own++;
    if (flags != CUDA_STREAM_NON_BLOCKING || own == here()->streams + MOST_STREAMS)
        return INVALID_VALUE;
    own->device = here();
    *stream = own;
    here()->n_streams++;
    fake_cuda.n_streams++;
    return 0;
}

int cuStreamDestroy_v2(void *stream)
{
    BEGIN("StreamDestroy")
    struct stream *own = stream;
    if (!is_stream(stream) || own->n_queued > 0)
        complain("a stream is destroyed that is none, or at work", "cuStreamDestroy");
    own->device = NULL;
    here()->n_streams--;
    fake_cuda.n_streams--;
    return 0;
}

int cuStreamSynchronize(void *stream)
{
    BEGIN("StreamSynchronize")
    return is_stream(stream) ? run_queue(stream) : INVALID_HANDLE;
}

/* -------------------------------------------------------------------------------------------------------- memory */

static uint64_t held(void)
{
    uint64_t n = 0;
    for (const struct buffer *buffer = here()->buffers; buffer; buffer = buffer->next)
        n += buffer->n_bytes;
    return n;
}

static uint64_t device_bytes(void)
{
    return fake_cuda.memory ? fake_cuda.memory : MEMORY;
}

int cuMemGetInfo_v2(size_t *n_free, size_t *n_bytes)
{
    BEGIN("MemGetInfo")
    *n_bytes = device_bytes();
    *n_free = *n_bytes - BUTLER_MIN(held(), *n_bytes);
    return 0;
}

static void add_buffer(struct buffer **buffers, struct buffer *buffer, void *bytes, size_t n_bytes)
{
    memset(bytes, 0xa5, n_bytes); /* NaN as a half, a large number as an index */
    *buffer = (struct buffer){*buffers, n_bytes, bytes};
    *buffers = buffer;
    fake_cuda.n_buffers++;
}

static void free_buffer(struct buffer **at, uint64_t address, const char *name)
{
    while (*at && (uint64_t)(uintptr_t)(*at)->bytes != address)
        at = &(*at)->next;
    struct buffer *buffer = *at;
    if (!buffer)
        complain("memory is freed that is not allocated", name);
    check_unused(buffer->bytes, buffer->n_bytes, NULL, name);
    *at = buffer->next;
    free(buffer->bytes);
    free(buffer);
    fake_cuda.n_buffers--;
}

int cuMemAlloc_v2(uint64_t *address, size_t n_bytes)
{
    BEGIN("MemAlloc")
    if (n_bytes == 0)
        return INVALID_VALUE;
    struct buffer *buffer = malloc(sizeof *buffer);
    void *bytes = NULL;
    const bool fits = held() + n_bytes <= device_bytes();
    if (!fits || !buffer || posix_memalign(&bytes, 256, n_bytes) != 0) {
        free(buffer);
        return CUDA_OUT_OF_MEMORY;
    }
    add_buffer(&here()->buffers, buffer, bytes, n_bytes);
    *address = (uint64_t)(uintptr_t)bytes;
    return 0;
}

int cuMemFree_v2(uint64_t address)
{
    BEGIN("MemFree")
    free_buffer(&here()->buffers, address, "cuMemFree");
    return 0;
}

int cuMemHostAlloc(void **memory, size_t n_bytes, unsigned flags)
{
    BEGIN("MemHostAlloc")
    if (n_bytes == 0 || flags != 0)
        return INVALID_VALUE;
    struct buffer *buffer = malloc(sizeof *buffer);
    if (!buffer || !(*memory = malloc(n_bytes)))
        abort();
    add_buffer(&here()->host_buffers, buffer, *memory, n_bytes);
    return 0;
}

int cuMemFreeHost(void *memory)
{
    BEGIN("MemFreeHost")
    free_buffer(&here()->host_buffers, (uint64_t)(uintptr_t)memory, "cuMemFreeHost");
    return 0;
}

/* Bytes [address, address + n_bytes) of a buffer; NULL: of none. */
static void *bytes_at(uint64_t address, size_t n_bytes)
{
    for (struct buffer *buffer = here()->buffers; buffer; buffer = buffer->next) {
        const uint64_t from = (uint64_t)(uintptr_t)buffer->bytes;
        if (address >= from && address - from <= buffer->n_bytes && n_bytes <= buffer->n_bytes - (address - from))
            return buffer->bytes + (address - from);
    }
    return NULL;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n_bytes, void *stream)
{
    BEGIN("MemcpyHtoD")
    const struct work work = {.what = UPLOAD, .to = bytes_at(to, n_bytes), .from = from, .n_bytes = n_bytes};
    return work.to && from ? enqueue(&work, stream) : INVALID_VALUE;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n_bytes, void *stream)
{
    BEGIN("MemcpyDtoH")
    const struct work work = {.what = DOWNLOAD, .to = to, .from = bytes_at(from, n_bytes), .n_bytes = n_bytes};
    return work.from && to ? enqueue(&work, stream) : INVALID_VALUE;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n_bytes, void *stream)
{
    BEGIN("MemcpyDtoD")
    const struct work work = {.what = COPY, .to = bytes_at(to, n_bytes), .from = bytes_at(from, n_bytes), .n_bytes = n_bytes};
    if (to - from < n_bytes || from - to < n_bytes)
        complain("source and destination overlap", "cuMemcpyDtoDAsync");
    return work.to && work.from ? enqueue(&work, stream) : INVALID_VALUE;
}

int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t n_bytes, void *stream)
{
    BEGIN("MemsetD8")
    const struct work work = {.what = FILL, .to = bytes_at(to, n_bytes), .byte = byte, .n_bytes = n_bytes};
    return work.to ? enqueue(&work, stream) : INVALID_VALUE;
}

EXPORT fake_cuda_enqueue_fn fake_cuda_enqueue;
EXPORT fake_cuda_bytes_fn fake_cuda_bytes;

int fake_cuda_enqueue(void *stream, void (*call)(const void *data), const void *data, uint64_t n_bytes)
{
    struct work work = {.what = CALL, .call = call};
    BEGIN("Enqueue")
    memcpy(work.data, data, n_bytes);
    return enqueue(&work, stream);
}

void *fake_cuda_bytes(uint64_t address, uint64_t n_bytes)
{
    pthread_mutex_t *taken __attribute__((cleanup(drop_lock))) = take_lock();
    return here() ? bytes_at(address, n_bytes) : NULL;
}

/* ------------------------------------------------------------------------------------------------------- kernels */

/* A buffer's address and an offset in it, or both 0. */
static bool is_place(uint64_t address, uint64_t offset)
{
    const struct buffer *buffer = here()->buffers;
    while (buffer && (uint64_t)(uintptr_t)buffer->bytes != address)
        buffer = buffer->next;
    return buffer ? offset <= buffer->n_bytes : address == 0 && offset == 0;
}

/* Addresses among the arguments are those of buffers, or 0, and offsets are inside. */
static void check_places(const struct work *work)
{
    int at = 0;
    for (const char *format = kernel_table[work->kernel].format; *format; format++) {
        if (*format == 'b' && !is_place(work->ints[at], work->ints[at + 1]))
            complain("a buffer is not allocated, or an offset is behind its end", kernel_table[work->kernel].name);
        at += *format == 'b' ? 2 : *format != 'f';
    }
}

/* Arguments by the kernel's format. */
static void load_args(struct work *work, void **args)
{
    int n_ints = 0, n_floats = 0;
    for (const char *format = kernel_table[work->kernel].format; *format; format++) {
        int32_t number;
        if (*format == 'f') {
            memcpy(&work->floats[n_floats++], *args++, sizeof(float));
        } else if (*format == 'i') {
            memcpy(&number, *args++, sizeof number);
            work->ints[n_ints++] = (uint64_t)(uint32_t)number;
        } else if (*format == 'l') {
            memcpy(&work->ints[n_ints++], *args++, sizeof(uint64_t));
        } else {
            uint64_t *both = &work->ints[n_ints];
            n_ints += 2;
            memcpy(&both[0], *args++, sizeof(uint64_t));
            memcpy(&both[1], *args++, sizeof(uint64_t));
        }
    }
    check_places(work);
}

/* A launch, or a node of a graph. A code. */
static int make_work(struct work *work, const struct butler_cuda_node_params *params)
{
    const struct module_function *function = params->function;
    const unsigned *grid = params->grid, *block = params->block;
    if (!function || !function->module || params->extra || params->kernel || params->context)
        return INVALID_HANDLE;
    if (grid[0] - 1 >= INT32_MAX || grid[1] - 1 >= MOST_PER_GRID || grid[2] - 1 >= MOST_PER_GRID)
        return INVALID_VALUE;
    /* As __launch_bounds__ and the static shared memory of the kernels have it: 128 threads, no more shared memory. */
    if (block[0] != THREADS || block[1] != 1 || block[2] != 1 || params->shared_bytes != 0)
        return INVALID_VALUE;
    *work = (struct work){.what = KERNEL_OF,
                          .kernel = function->kernel,
                          .groups = {(int)grid[0], (int)grid[1], (int)grid[2]},
                          .module = function->module};
    load_args(work, params->args);
    return 0;
}

int cuLaunchKernel(void *object, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void *stream, void **args, void **extra)
{
    struct work work;
    BEGIN("LaunchKernel")
    const int code = make_work(&work, &(struct butler_cuda_node_params){.function = object,
                                                                        .grid = {grid_x, grid_y, grid_z},
                                                                        .block = {block_x, block_y, block_z},
                                                                        .shared_bytes = shared_bytes,
                                                                        .args = args,
                                                                        .extra = extra});
    fake_cuda.n_launched += code == 0;
    return code ? code : enqueue(&work, stream);
}

#include "fake_cuda_graphs.h"

/* For tests of the command. */
__attribute__((constructor)) static void begin(void)
{
    const char *capability = getenv("FAKE_CUDA_CAPABILITY"), *version = getenv("FAKE_CUDA_VERSION"),
               *n_devices = getenv("FAKE_CUDA_DEVICES"), *kernels = getenv("FAKE_CUDA_KERNELS");
    fake_cuda.n_devices = n_devices && SIMT_CALLS ? atoi(n_devices) : fake_cuda.n_devices;
    fake_cuda.capability = capability ? atoi(capability) : fake_cuda.capability;
    fake_cuda.version = version ? atoi(version) : fake_cuda.version;
    fake_cuda.kernels_left = kernels ? atoi(kernels) : fake_cuda.kernels_left;
}

__attribute__((destructor)) static void end(void)
{
    simt_free();
}
