/* Fingerprints of GGUF files. That of a whole file takes the time of reading it, so it is kept in a folder of the user, in a small
 * file for each inode. The entry holds size and times too: it counts only for the state of the file that was read. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

#include "file/gguf_parts.h"

enum {
    SAMPLE = 4096,
    MAX_ENTRY = 256, /* bytes */
};

/* A file that changed so short a time ago may change again without getting another time. */
#define SETTLED_NS 2000000000

uint64_t butler_gguf_sampled_fingerprint(const struct butler_gguf *gguf)
{
    uint64_t hash = XXH3_64bits(gguf->map.data, (size_t)gguf->header_bytes);
    for (size_t i = 0; i < gguf->n_slots; i++) {
        const struct slot *slot = &gguf->slots[i];
        const unsigned char *data = slot->tensor.data;
        size_t n = (size_t)BUTLER_MIN(slot->n_bytes, (uint64_t)SAMPLE);
        hash = XXH3_64bits_withSeed(data, n, hash);
        hash = XXH3_64bits_withSeed(data + slot->n_bytes - n, n, hash);
    }
    return hash;
}

/* The line of an entry up to the fingerprint. */
static void describe(char line[MAX_ENTRY], const struct butler_file_id *id)
{
    snprintf(line, MAX_ENTRY, "butler fingerprint 1 %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRId64 " %" PRId64 " ", id->device,
             id->inode, id->size, id->modified_ns, id->changed_ns);
}

static bool find_entry(const char *path, const struct butler_file_id *id, uint64_t *fingerprint)
{
    char line[MAX_ENTRY], bytes[MAX_ENTRY] = "";
    unsigned long long value;
    int end = 0;
    describe(line, id);
    const size_t n_line = strlen(line);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return false;
    const ssize_t n = read(fd, bytes, sizeof bytes - 1);
    close(fd);
    if (n < (ssize_t)n_line || memcmp(bytes, line, n_line) != 0 || sscanf(bytes + n_line, "%16llx\n%n", &value, &end) != 1 ||
        end != 17 || n != (ssize_t)n_line + end)
        return false;
    *fingerprint = value;
    return true;
}

/* An entry that cannot be written is not missed: the next process reads the model again. */
static void add_entry(const char *folder, const char *path, const struct butler_file_id *id, uint64_t fingerprint)
{
    char line[MAX_ENTRY];
    struct timespec now;
    struct butler_writer writer;
    clock_gettime(CLOCK_REALTIME, &now);
    if ((int64_t)now.tv_sec * 1000000000 + now.tv_nsec - id->changed_ns < SETTLED_NS || butler_make_folder(folder) != 0 ||
        butler_writer_open(&writer, path, BUTLER_WRITER_PRIVATE, NULL) < 0)
        return;
    describe(line, id);
    snprintf(line + strlen(line), sizeof line - strlen(line), "%016" PRIx64 "\n", fingerprint);
    if (butler_write(&writer, line, strlen(line), NULL) < 0 || butler_writer_commit(&writer, NULL) < 0)
        butler_writer_abort(&writer);
}

static int fingerprint_of(const struct butler_gguf *gguf, const char *folder, uint64_t *fingerprint, struct butler_error *err)
{
    struct butler_file_id before, after;
    char path[PATH_MAX];
    bool has_id = folder && butler_map_id(&gguf->map, &before);
    if (has_id && snprintf(path, sizeof path, "%s/%" PRIx64 "-%" PRIx64 ".fingerprint", folder, before.device, before.inode) >=
                      (int)sizeof path)
        has_id = false;
    if (has_id && find_entry(path, &before, fingerprint))
        return 0;
    *fingerprint = XXH3_64bits(gguf->map.data, gguf->map.size);
    const int code = butler_map_check(&gguf->map, gguf->path, err);
    if (code == 0 && has_id && butler_map_id(&gguf->map, &after))
        add_entry(folder, path, &before, *fingerprint);
    return code;
}

int butler_gguf_fingerprint(const struct butler_gguf *gguf, const char *folder, uint64_t *fingerprint, struct butler_error *err)
{
    int code = fingerprint_of(gguf, folder, fingerprint, err);
    for (int64_t i = 0; i < gguf->n_parts && code == 0; i++) {
        uint64_t pair[2] = {*fingerprint, 0};
        code = fingerprint_of(gguf->parts[i], folder, &pair[1], err);
        *fingerprint = XXH3_64bits(pair, sizeof pair);
    }
    return code;
}
