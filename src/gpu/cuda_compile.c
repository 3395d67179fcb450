/* See cuda_compile.h. A file of the folder is a line that says what it was compiled from, for and by, padded with zeros to LINE
 * bytes; what was compiled; and the XXH3-64 of both. Its name is the XXH3-64 of the line. One that is not as it should be is
 * compiled and written again; one that cannot be written is not missed. */
#include "gpu/cuda_compile.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "gpu/cuda_api.h"

enum {
    LINE = 256,
    SUM = 8,              /* bytes of a checksum */
    MOST_BYTES = 1 << 28, /* of a file */
    MOST_ARCHITECTURES = 128,
};

struct image {
    struct image *next;
    size_t n_bytes;           /* of the file without its sum */
    _Alignas(16) char file[]; /* [n_bytes], then the sum */
};
static struct image *images;
static pthread_mutex_t images_lock = PTHREAD_MUTEX_INITIALIZER;

/* What is to be compiled, and how. */
struct target {
    const struct butler_gpu *gpu;
    const struct butler_nvrtc *nvrtc;
    char *text;            /* owned */
    bool ptx;              /* else machine code */
    char architecture[32]; /* an option */
    char line[LINE];
};
static const char *const more_options[] = {"-default-device", "-fmad=false"};

static struct image *image_new(size_t n_bytes)
{
    struct image *image = malloc(sizeof *image + n_bytes + SUM);
    if (image)
        image->n_bytes = n_bytes;
    return image;
}

/* The dialect and the kernels as one text; NULL: no memory. */
static char *join_texts(void)
{
    static const enum butler_gpu_text which[] = {GPU_TEXT_CUDA,  GPU_TEXT_KERNELS, GPU_TEXT_CACHE,     GPU_TEXT_ATTEND,
                                                 GPU_TEXT_FUSED, GPU_TEXT_ONE_BIT, GPU_TEXT_PREDICTED, GPU_TEXT_EVICT};
    const char *texts[BUTLER_COUNT(which)];
    size_t lengths[BUTLER_COUNT(which)], n = 0;
    for (size_t i = 0; i < BUTLER_COUNT(which); i++) {
        texts[i] = butler_gpu_text(which[i], &lengths[i]);
        n += lengths[i];
    }
    char *text = malloc(n + 1), *to = text;
    for (size_t i = 0; text && i < BUTLER_COUNT(which); i++) {
        memcpy(to, texts[i], lengths[i]);
        to += lengths[i];
    }
    if (text)
        *to = 0;
    return text;
}

/* --------------------------------------------------------------------------------------------------- compilation */

/* The highest architecture that NVRTC and the device have; the device's where NVRTC does not say; 0: there is none. */
static int choose_architecture(const struct butler_nvrtc *nvrtc, int capability)
{
    int known[MOST_ARCHITECTURES], n = 0, best = 0;
    if (nvrtc->GetNumSupportedArchs(&n) != 0 || n > MOST_ARCHITECTURES || nvrtc->GetSupportedArchs(known) != 0)
        return capability;
    for (int i = 0; i < n; i++)
        best = known[i] <= capability ? BUTLER_MAX(best, known[i]) : best;
    return best;
}

/* The newest NVRTC of the driver's major version or an older one that makes code for the device: newer ones leave out old
 * architectures. NULL: there is none; then *found is one that was passed over, or NULL. */
static const struct butler_nvrtc *choose_nvrtc(int version, int capability, const struct butler_nvrtc **found)
{
    *found = NULL;
    for (int major = version / 1000; major >= CUDA_OLDEST; major--) {
        const struct butler_nvrtc *nvrtc = butler_nvrtc_open(major);
        if (nvrtc && choose_architecture(nvrtc, capability))
            return nvrtc;
        *found = *found ? *found : nvrtc;
    }
    return NULL;
}

/* version: the driver's. */
static void describe(struct target *target, int version, int capability)
{
    const int architecture = choose_architecture(target->nvrtc, capability);
    int major = 0, minor = 0;
    target->nvrtc->Version(&major, &minor);
    target->ptx = architecture != capability;
    snprintf(target->architecture, sizeof target->architecture, "-arch=%s_%d", target->ptx ? "compute" : "sm", architecture);
    snprintf(target->line, LINE, "butler kernels 1 %016" PRIx64 " %s %s %s for %d by NVRTC %d.%d, CUDA %d\n",
             (uint64_t)XXH3_64bits(target->text, strlen(target->text)), target->architecture, more_options[0], more_options[1],
             capability, major, minor, version);
}

/* The log's first line with an error, else its first. */
static void fail_with_log(const struct target *target, void *program, int code, struct butler_error *err)
{
    const struct butler_nvrtc *nvrtc = target->nvrtc;
    size_t n = 0;
    char *log = program && nvrtc->GetProgramLogSize(program, &n) == 0 ? calloc(n + 1, 1) : NULL;
    const char *line = log && nvrtc->GetProgramLog(program, log) == 0 ? log : "";
    for (const char *each = line; each && *each; each = strchr(each, '\n')) {
        each += *each == '\n';
        if (memmem(each, strcspn(each, "\n"), "error", 5)) {
            line = each;
            break;
        }
    }
    butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: NVRTC does not compile the kernels (%s) %.*s", target->gpu->label,
                nvrtc->GetErrorString(code), (int)BUTLER_MIN(strcspn(line, "\n"), 256), line);
    free(log);
}

/* NULL with *err filled on failure. */
static struct image *compile(const struct target *target, struct butler_error *err)
{
    const struct butler_nvrtc *nvrtc = target->nvrtc;
    const char *options[] = {target->architecture, more_options[0], more_options[1]};
    struct image *image = NULL;
    void *program = NULL;
    size_t n = 0;
    int code = nvrtc->CreateProgram(&program, target->text, "butler.cu", 0, NULL, NULL);
    if (program && code == 0)
        code = nvrtc->CompileProgram(program, BUTLER_COUNT(options), options);
    if (program && code == 0)
        code = (target->ptx ? nvrtc->GetPTXSize : nvrtc->GetCUBINSize)(program, &n);
    if (program && code == 0 && (image = image_new(LINE + n))) {
        memcpy(image->file, target->line, LINE);
        code = (target->ptx ? nvrtc->GetPTX : nvrtc->GetCUBIN)(program, image->file + LINE);
    }
    if (code != 0) {
        fail_with_log(target, program, code, err);
        free(image);
        image = NULL;
    } else if (!image)
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to compile the kernels", target->gpu->label);
    if (program)
        nvrtc->DestroyProgram(&program);
    return image;
}

/* ---------------------------------------------------------------------------------------------------- the folder */

static bool path_of(const struct target *target, char path[PATH_MAX])
{
    return target->gpu->folder && snprintf(path, PATH_MAX, "%s/%016" PRIx64 ".kernels", target->gpu->folder,
                                           (uint64_t)XXH3_64bits(target->line, LINE)) < PATH_MAX;
}

static bool read_all(int fd, char *to, size_t n)
{
    while (n > 0) {
        const ssize_t got = read(fd, to, n);
        if (got <= 0)
            return false;
        to += got;
        n -= (size_t)got;
    }
    return true;
}

/* NULL: there is none that is right. A file of another user's is not the folder's owner's. */
static struct image *find_file(const struct target *target)
{
    char path[PATH_MAX];
    struct stat st;
    uint64_t sum;
    const int fd = path_of(target, path) ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW) : -1;
    if (fd < 0)
        return NULL;
    const bool usable =
        fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_uid == geteuid() && st.st_size > LINE + SUM && st.st_size <= MOST_BYTES;
    struct image *image = usable ? image_new((size_t)st.st_size - SUM) : NULL;
    bool right = image && read_all(fd, image->file, image->n_bytes + SUM);
    close(fd);
    if (right) {
        memcpy(&sum, image->file + image->n_bytes, SUM);
        right = memcmp(image->file, target->line, LINE) == 0 && XXH3_64bits(image->file, image->n_bytes) == sum;
    }
    if (!right)
        free(image);
    return right ? image : NULL;
}

static void add_file(const struct target *target, const struct image *image)
{
    char path[PATH_MAX];
    struct butler_writer writer;
    const int flags = BUTLER_WRITER_HASH | BUTLER_WRITER_PRIVATE | BUTLER_WRITER_UNSYNCED;
    if (!path_of(target, path) || butler_make_folder(target->gpu->folder) != 0 ||
        butler_writer_open(&writer, path, flags, NULL) < 0)
        return;
    if (butler_write(&writer, image->file, image->n_bytes, NULL) < 0 || butler_writer_commit(&writer, NULL) < 0)
        butler_writer_abort(&writer);
}

/* -------------------------------------------------------------------------------------------------------- images */

/* Of this process, of the folder, or compiled. Under the lock. */
static struct image *find_image(const struct target *target, struct butler_error *err)
{
    struct image *image = images;
    while (image && memcmp(image->file, target->line, LINE) != 0)
        image = image->next;
    if (image)
        return image;
    if (!(image = find_file(target)) && (image = compile(target, err)))
        add_file(target, image);
    if (image) {
        image->next = images;
        images = image;
    }
    return image;
}

/* A driver runs what NVRTC of its own or an older major version makes. */
const char *butler_cuda_image(const struct butler_gpu *gpu, int version, int capability, struct butler_error *err)
{
    struct target target = {.gpu = gpu};
    const struct butler_nvrtc *other;
    if (!(target.nvrtc = choose_nvrtc(version, capability, &other)) && other) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: no compiler here makes kernels for its compute capability %d.%d",
                    gpu->label, capability / 10, capability % 10);
        return NULL;
    }
    if (!target.nvrtc) {
        butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s: there is no compiler for its kernels (libnvrtc.so.%d to .%d)", gpu->label,
                    CUDA_OLDEST, version / 1000);
        return NULL;
    }
    if (!(target.text = join_texts())) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%s: no memory to compile the kernels", gpu->label);
        return NULL;
    }
    describe(&target, version, capability);
    pthread_mutex_lock(&images_lock);
    const struct image *image = find_image(&target, err);
    pthread_mutex_unlock(&images_lock);
    free(target.text);
    return image ? image->file + LINE : NULL;
}

void butler_cuda_forget_images(void)
{
    for (struct image *image = images, *next; image; image = next) {
        next = image->next;
        free(image);
    }
    images = NULL;
}
