/* A device's memory: buffers behind addresses, copies, weights; and launches, which translate addresses too. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "gpu/backend_gpu.h"
#include "gpu/gpu.h"

#define GPU_INFO(name, format) {#name, format},
const struct butler_gpu_kernel_info butler_gpu_kernels[] = {GPU_KERNELS(GPU_INFO)};
#undef GPU_INFO

void butler_gpu_fail(struct butler_gpu *gpu, const char *what, int code)
{
    char text[GPU_CODE];
    if (code == 0 || gpu->fault.code < 0)
        return;
    const bool memory = gpu->driver->is_memory(code);
    gpu->driver->name_code(gpu->api, code, text);
    butler_fail(&gpu->fault, memory ? BUTLER_ERROR_MEMORY : BUTLER_ERROR_IO, "%s: %s: %s (%s)", gpu->label, what,
                memory ? "out of memory" : "failed, or the device was lost", text);
}

/* Index of the first region that begins behind an address. */
static int region_behind(const struct butler_gpu *gpu, const void *address)
{
    int low = 0, high = gpu->n_regions;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (gpu->regions[middle].from <= (const unsigned char *)address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The buffer behind an address and where in it; an address of nothing that was allocated or bound is a bug of ours. */
static void *buffer_at(const struct butler_gpu *gpu, const void *address, size_t *offset)
{
    const int i = region_behind(gpu, address) - 1;
    if (i < 0 || (size_t)((const unsigned char *)address - gpu->regions[i].from) > gpu->regions[i].n_bytes)
        abort();
    *offset = (size_t)((const unsigned char *)address - gpu->regions[i].from);
    return gpu->regions[i].buffer;
}

static int add_region(struct butler_gpu *gpu, struct butler_gpu_region region, struct butler_error *err)
{
    if (gpu->n_regions == gpu->max_regions) {
        const int n = gpu->max_regions ? 2 * gpu->max_regions : 64;
        struct butler_gpu_region *more = realloc(gpu->regions, (size_t)n * sizeof *more);
        if (!more)
            return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d addresses of a device", n);
        gpu->regions = more;
        gpu->max_regions = n;
    }
    const int at = region_behind(gpu, region.from);
    memmove(gpu->regions + at + 1, gpu->regions + at, (size_t)(gpu->n_regions - at) * sizeof *gpu->regions);
    gpu->regions[at] = region;
    gpu->n_regions++;
    return 0;
}

/* Kernels read 16 bytes at a time, also where rows begin or end between, or are shorter: as many are behind each buffer. */
static void *make_buffer(struct butler_gpu *gpu, size_t n_bytes, struct butler_error *err)
{
    char text[GPU_CODE];
    void *buffer = NULL;
    const int code = gpu->driver->alloc(gpu, BUTLER_MAX(BUTLER_CEIL_DIV(n_bytes, (size_t)16) * 16 + GPU_BEHIND, 64), &buffer);
    if (code == 0)
        return buffer;
    gpu->driver->name_code(gpu->api, code, text);
    if (gpu->driver->is_memory(code))
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s has no memory for %zu bytes (%s)", gpu->label, n_bytes, text);
    else
        butler_fail(err, BUTLER_ERROR_IO, "%s: failed to allocate %zu bytes, or the device was lost (%s)", gpu->label, n_bytes,
                    text);
    return NULL;
}

/* --------------------------------------------------------------------------------------------------- launches */

/* The arguments of a kernel, by its format; how many there are. */
static int collect_args(const struct butler_gpu *gpu, const char *format, va_list given, struct butler_gpu_arg *args)
{
    struct butler_gpu_arg *arg = args;
    for (; *format; format++) {
        size_t offset = 0;
        const void *address;
        switch (*format) {
        case 'b':
            address = va_arg(given, const void *);
            *arg = (struct butler_gpu_arg){.is_buffer = true, .n_bytes = sizeof arg->value.buffer};
            if (address == GPU_STAGING(gpu))
                arg->value.buffer = gpu->staging;
            else if (address)
                arg->value.buffer = buffer_at(gpu, address, &offset);
            arg++;
            *arg++ = (struct butler_gpu_arg){.n_bytes = sizeof arg->value.l, .value.l = offset};
            break;
        case 'l':
            *arg++ = (struct butler_gpu_arg){.n_bytes = sizeof arg->value.l, .value.l = va_arg(given, uint64_t)};
            break;
        case 'i':
            *arg++ = (struct butler_gpu_arg){.n_bytes = sizeof arg->value.i, .value.i = va_arg(given, int)};
            break;
        default:
            *arg++ = (struct butler_gpu_arg){.n_bytes = sizeof arg->value.f, .value.f = (float)va_arg(given, double)};
        }
    }
    return (int)(arg - args);
}

void butler_gpu_launch(struct butler_gpu *gpu, enum butler_gpu_kernel kernel, int x, int y, int z, ...)
{
    struct butler_gpu_arg args[GPU_MOST_ARGS];
    va_list given;
    if (gpu->fault.code < 0 || x <= 0 || y <= 0 || z <= 0)
        return;
    va_start(given, z);
    const int n = collect_args(gpu, butler_gpu_kernels[kernel].format, given, args);
    va_end(given);
    const int code = gpu->driver->launch(gpu, (int)kernel, (const int[]){x, y, z}, args, n);
    gpu->launches[kernel] += code == 0;
    butler_gpu_fail(gpu, butler_gpu_kernels[kernel].name, code);
}

void butler_gpu_multiply(struct butler_gpu *gpu, float *y, const float *w, const float *x, const int shape[3])
{
    struct butler_gpu_product product = {.shape = {shape[0], shape[1], shape[2]}};
    if (gpu->fault.code < 0)
        return;
    product.y.buffer = buffer_at(gpu, y, &product.y.offset);
    product.w.buffer = buffer_at(gpu, w, &product.w.offset);
    product.x.buffer = buffer_at(gpu, x, &product.x.offset);
    butler_gpu_fail(gpu, "product", gpu->driver->multiply(gpu, &product));
}

uint64_t butler_gpu_launches(const struct butler_backend *backend, const char *kernel)
{
    for (int i = 0; i < GPU_N_KERNELS; i++)
        if (!strcmp(butler_gpu_kernels[i].name, kernel))
            return ((const struct butler_gpu *)backend)->launches[i];
    return 0;
}

bool butler_gpu_reserve_staging(struct butler_gpu *gpu, size_t n_bytes)
{
    if (gpu->fault.code < 0)
        return false;
    if (gpu->staging_bytes >= n_bytes)
        return true;
    if (gpu->staging)
        gpu->driver->free(gpu, gpu->staging);
    gpu->staging_bytes = BUTLER_MAX(n_bytes, (size_t)1 << 16);
    gpu->staging = make_buffer(gpu, gpu->staging_bytes, &gpu->fault);
    gpu->staging_bytes = gpu->staging ? gpu->staging_bytes : 0;
    return gpu->staging != NULL;
}

static void finish(struct butler_gpu *gpu)
{
    butler_gpu_fail(gpu, "upload", gpu->driver->finish(gpu)); /* after a failure too: until then host memory may be read */
    gpu->n_given = 0;
}

/* Host memory goes to a buffer: of little a copy, so that a step's few numbers are not awaited. False: the memory must stay until
 * finish. */
static bool begin_copy(struct butler_gpu *gpu, void *buffer, size_t offset, const void *host, size_t n_bytes)
{
    const bool little = n_bytes <= sizeof gpu->given / 4;
    if (little && n_bytes > sizeof gpu->given - gpu->n_given)
        finish(gpu);
    if (little) {
        host = memcpy(gpu->given + gpu->n_given, host, n_bytes);
        gpu->n_given += n_bytes;
    }
    butler_gpu_fail(gpu, "upload", gpu->driver->upload(gpu, buffer, offset, host, n_bytes));
    return little;
}

void butler_gpu_stage(struct butler_gpu *gpu, const void *host, size_t offset, size_t n_bytes)
{
    if (butler_gpu_reserve_staging(gpu, offset + n_bytes) && !begin_copy(gpu, gpu->staging, offset, host, n_bytes))
        finish(gpu);
}

void butler_gpu_read_staging(struct butler_gpu *gpu, void *host, size_t n_bytes)
{
    memset(host, 0, n_bytes);
    if (gpu->fault.code == 0)
        butler_gpu_fail(gpu, "download", gpu->driver->download(gpu, host, gpu->staging, 0, n_bytes));
    gpu->n_given = 0;
}

/* ----------------------------------------------------------------------------------------------------- memory */

static void fill_zero(struct butler_gpu *gpu, void *buffer, size_t offset, size_t n_bytes)
{
    if (n_bytes > 0 && gpu->fault.code == 0)
        butler_gpu_fail(gpu, "fill", gpu->driver->zero(gpu, buffer, offset, n_bytes));
}

static uint64_t gpu_memory_left(struct butler_backend *backend)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    return gpu->driver->memory_left ? gpu->driver->memory_left(gpu) : UINT64_MAX;
}

/* Pages (not sparse) are not zeroed: what an extent holds before it is written is undefined. */
static void *gpu_alloc(struct butler_backend *backend, size_t n_bytes, bool sparse, struct butler_error *err)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    void *address = mmap(NULL, BUTLER_MAX(n_bytes, 1), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "no addresses for %zu bytes of a device", n_bytes);
        return NULL;
    }
    void *buffer = make_buffer(gpu, n_bytes, err);
    if (!buffer || add_region(gpu, (struct butler_gpu_region){address, n_bytes, buffer, true}, err) < 0) {
        if (buffer)
            gpu->driver->free(gpu, buffer);
        munmap(address, BUTLER_MAX(n_bytes, 1));
        return NULL;
    }
    if (sparse)
        fill_zero(gpu, buffer, 0, n_bytes);
    return address;
}

static void release_region(struct butler_gpu *gpu, const struct butler_gpu_region *region)
{
    gpu->driver->free(gpu, region->buffer);
    if (region->owned)
        munmap((void *)(uintptr_t)region->from, BUTLER_MAX(region->n_bytes, 1));
}

static void gpu_free(struct butler_backend *backend, void *address, size_t n_bytes)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    (void)n_bytes;
    if (!address)
        return;
    const int i = region_behind(gpu, address) - 1;
    release_region(gpu, &gpu->regions[i]);
    memmove(gpu->regions + i, gpu->regions + i + 1, (size_t)(gpu->n_regions - i - 1) * sizeof *gpu->regions);
    gpu->n_regions--;
}

static void gpu_discard(struct butler_backend *backend, void *address, size_t n_bytes)
{
    (void)backend, (void)address, (void)n_bytes;
}

/* As begin_copy, to an address. */
static bool begin_upload(struct butler_gpu *gpu, void *to, const void *host, size_t n_bytes)
{
    size_t offset;
    if (n_bytes == 0 || gpu->fault.code < 0)
        return true;
    void *buffer = buffer_at(gpu, to, &offset);
    return begin_copy(gpu, buffer, offset, host, n_bytes);
}

void butler_gpu_upload_aside(struct butler_gpu *gpu, void *to, const void *host, size_t n_bytes)
{
    size_t offset;
    if (gpu->fault.code < 0)
        return;
    void *buffer = buffer_at(gpu, to, &offset);
    butler_gpu_fail(gpu, "upload", gpu->driver->upload_aside(gpu, buffer, offset, host, n_bytes));
}

void butler_gpu_finish_aside(struct butler_gpu *gpu)
{
    butler_gpu_fail(gpu, "upload", gpu->driver->finish_aside(gpu)); /* after a failure too: until then host memory may be read */
}

static void gpu_upload(struct butler_backend *backend, void *to, const void *host, size_t n_bytes)
{
    if (!begin_upload((struct butler_gpu *)backend, to, host, n_bytes))
        finish((struct butler_gpu *)backend);
}

static void gpu_upload_many(struct butler_backend *backend, const struct butler_upload *uploads, int n)
{
    bool copied = true;
    for (int i = 0; i < n; i++)
        copied = begin_upload((struct butler_gpu *)backend, uploads[i].to, uploads[i].host, uploads[i].n_bytes) && copied;
    if (!copied)
        finish((struct butler_gpu *)backend);
}

static void gpu_download(struct butler_backend *backend, void *host, const void *from, size_t n_bytes)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    size_t offset;
    if (n_bytes == 0)
        return;
    void *buffer = buffer_at(gpu, from, &offset);
    if (gpu->fault.code == 0)
        butler_gpu_fail(gpu, "download", gpu->driver->download(gpu, host, buffer, offset, n_bytes));
    gpu->n_given = 0;
    if (gpu->fault.code < 0)
        memset(host, 0, n_bytes);
}

static void gpu_copy(struct butler_backend *backend, void *to, const void *from, size_t n_bytes)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    size_t to_offset, from_offset;
    if (n_bytes == 0 || gpu->fault.code < 0)
        return;
    void *to_buffer = buffer_at(gpu, to, &to_offset), *from_buffer = buffer_at(gpu, from, &from_offset);
    butler_gpu_fail(gpu, "copy", gpu->driver->copy(gpu, to_buffer, to_offset, from_buffer, from_offset, n_bytes));
}

static void gpu_zero_many(struct butler_backend *backend, const struct butler_piece *pieces, int n)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    for (int i = 0; i < n; i++) {
        size_t offset = 0;
        void *buffer = pieces[i].n_bytes > 0 ? buffer_at(gpu, pieces[i].address, &offset) : NULL;
        if (buffer)
            fill_zero(gpu, buffer, offset, pieces[i].n_bytes);
    }
}

static int gpu_check(struct butler_backend *backend, struct butler_error *err)
{
    const struct butler_gpu *gpu = (struct butler_gpu *)backend;
    return gpu->fault.code < 0 ? butler_fail(err, gpu->fault.code, "%s", gpu->fault.message) : 0;
}

static int gpu_bind_weights(struct butler_backend *backend, const struct butler_weights *weights, int n, struct butler_error *err)
{
    struct butler_gpu *gpu = (struct butler_gpu *)backend;
    for (int i = 0; i < n; i++) {
        void *buffer = make_buffer(gpu, weights[i].n_bytes, err);
        if (!buffer || add_region(gpu, (struct butler_gpu_region){weights[i].data, weights[i].n_bytes, buffer, false}, err) < 0) {
            if (buffer)
                gpu->driver->free(gpu, buffer);
            finish(gpu);
            return BUTLER_ERROR_MEMORY;
        }
        begin_upload(gpu, (void *)(uintptr_t)weights[i].data, weights[i].data, weights[i].n_bytes);
    }
    finish(gpu);
    return gpu_check(backend, err);
}

void butler_gpu_free_memory(struct butler_gpu *gpu)
{
    for (int i = 0; i < gpu->n_regions; i++)
        release_region(gpu, &gpu->regions[i]);
    if (gpu->staging)
        gpu->driver->free(gpu, gpu->staging);
    free(gpu->regions);
}

void butler_gpu_use_memory(struct butler_backend *backend)
{
    backend->memory_left = gpu_memory_left;
    backend->alloc = gpu_alloc;
    backend->free = gpu_free;
    backend->discard = gpu_discard;
    backend->upload = gpu_upload;
    backend->download = gpu_download;
    backend->copy = gpu_copy;
    backend->upload_many = gpu_upload_many;
    backend->zero_many = gpu_zero_many;
    backend->check = gpu_check;
    backend->bind_weights = gpu_bind_weights;
}
