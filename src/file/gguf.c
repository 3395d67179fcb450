/* Reads a GGUF file: maps it and parses the header. Nothing in the file is trusted. Each count, length and offset is compared
 * with the file's size before it is used, and memory grows with what was read, not with what a count claims. The resulting
 * keys and tensors point into the mapping. */
#include "file/gguf_parts.h"
#include "base/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    DEFAULT_ALIGNMENT = 32,
    MAX_DIMS = 4,
    MAX_KEY = 65535, /* the format's own limits */
    MAX_TENSOR_NAME = 64,
    MIN_VALUE_BYTES = 14,  /* key length, one byte of key, type, one byte of value */
    MIN_TENSOR_BYTES = 33, /* name length, one byte of name, number of dimensions, one dimension, type, offset */
};

/* The read position, and what is being read, for errors. */
struct reader {
    struct butler_gguf *gguf;
    const unsigned char *data;
    uint64_t size, at;
    char subject[96];
    struct butler_error *err;
};

/* ------------------------------------------------------------------------------------------------ errors */

__attribute__((format(printf, 4, 5))) static int fail_at(struct reader *r, int code, uint64_t at, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return butler_fail(r->err, code, "%.160s: offset %llu: %s: %s", r->gguf->path, (unsigned long long)at, r->subject, text);
}

/* Names come from the file: bytes that a terminal should not receive are replaced by question marks. */
static void set_subject(struct reader *r, const char *kind, const char *name, size_t n)
{
    char shown[65];
    size_t k = BUTLER_MIN(n, sizeof shown - 1);
    for (size_t i = 0; i < k; i++)
        shown[i] = name[i] >= 0x20 && name[i] < 0x7f ? name[i] : '?';
    shown[k] = '\0';
    snprintf(r->subject, sizeof r->subject, "%s '%s'%s", kind, shown, k < n ? "..." : "");
}

/* ------------------------------------------------------------------------------------------------ memory */

static const char *keep_text(struct butler_gguf *gguf, const void *bytes, size_t n, struct butler_error *err)
{
    struct text_chunk *chunk = gguf->texts;
    if (!chunk || chunk->size - chunk->used < n + 1) {
        size_t size = BUTLER_MAX(n + 1, (size_t)4096);
        chunk = malloc(sizeof *chunk + size);
        if (!chunk) {
            butler_fail(err, BUTLER_ERROR_MEMORY, "%.160s: no memory for %zu bytes of names", gguf->path, size);
            return NULL;
        }
        *chunk = (struct text_chunk){.next = gguf->texts, .size = size};
        gguf->texts = chunk;
    }
    char *text = chunk->text + chunk->used;
    memcpy(text, bytes, n);
    text[n] = '\0';
    chunk->used += n + 1;
    return text;
}

/* Makes space for one more element. Growing by half keeps the allocation proportional to what has been read. */
static void *grow(struct reader *r, void *array, size_t n, size_t *max, size_t element)
{
    if (n < *max)
        return array;
    if (!butler_grow(&array, n + 1, max, element)) {
        fail_at(r, BUTLER_ERROR_MEMORY, r->at, "no memory for %zu entries", n + 1);
        return NULL;
    }
    return array;
}

/* ----------------------------------------------------------------------------------------- reading bytes */

static int need(struct reader *r, uint64_t n, const char *what)
{
    if (n <= r->size - r->at)
        return 0;
    return fail_at(r, BUTLER_ERROR_FORMAT, r->at, "%s needs %llu bytes, the file has %llu left", what, (unsigned long long)n,
                   (unsigned long long)(r->size - r->at));
}

static int get_u32(struct reader *r, const char *what, uint32_t *out)
{
    int rc = need(r, 4, what);
    if (rc < 0)
        return rc;
    *out = butler_gguf_load_u32(r->data + r->at);
    r->at += 4;
    return 0;
}

static int get_u64(struct reader *r, const char *what, uint64_t *out)
{
    int rc = need(r, 8, what);
    if (rc < 0)
        return rc;
    *out = butler_gguf_load_u64(r->data + r->at);
    r->at += 8;
    return 0;
}

static int get_string(struct reader *r, const char *what, const char **bytes, uint64_t *n)
{
    uint64_t start = r->at;
    int rc = get_u64(r, what, n);
    if (rc < 0)
        return rc;
    if (*n > r->size - r->at)
        return fail_at(r, BUTLER_ERROR_FORMAT, start, "%s of %llu bytes, the file has %llu left", what, (unsigned long long)*n,
                       (unsigned long long)(r->size - r->at));
    *bytes = (const char *)r->data + r->at;
    r->at += *n;
    return 0;
}

/* A key or the name of a tensor: short, not empty, and without NUL, so that a terminated copy is exact. */
static int get_name(struct reader *r, const char *kind, uint64_t max, const char **name)
{
    uint64_t start = r->at, n;
    const char *bytes = NULL;
    int rc = get_string(r, "name", &bytes, &n);
    if (rc < 0)
        return rc;
    if (n == 0 || n > max)
        return fail_at(r, BUTLER_ERROR_FORMAT, start, "name of %llu bytes, 1 to %llu are allowed", (unsigned long long)n,
                       (unsigned long long)max);
    set_subject(r, kind, bytes, n);
    if (memchr(bytes, 0, n))
        return fail_at(r, BUTLER_ERROR_FORMAT, start, "NUL byte in the name");
    *name = keep_text(r->gguf, bytes, n, r->err);
    return *name ? 0 : BUTLER_ERROR_MEMORY;
}

/* ---------------------------------------------------------------------------------------- reading values */

static int warn_of_bools(struct reader *r, const unsigned char *data, uint64_t n)
{
    uint64_t i = 0;
    while (i < n && data[i] <= 1)
        i++;
    if (i < n)
        butler_gguf_warn(r->gguf, "offset %llu: %s: bool with the value %d, taken as true",
                         (unsigned long long)((uint64_t)(data - r->data) + i), r->subject, data[i]);
    return 0;
}

static int read_array_of_strings(struct reader *r, struct butler_gguf_value *value)
{
    if (value->n > (r->size - r->at) / 8)
        return fail_at(r, BUTLER_ERROR_FORMAT, r->at, "array of %llu strings, the file has %llu bytes left",
                       (unsigned long long)value->n, (unsigned long long)(r->size - r->at));
    uint64_t start = r->at;
    for (uint64_t i = 0; i < value->n; i++) {
        const char *bytes = NULL;
        uint64_t n;
        int rc = get_string(r, "string in an array", &bytes, &n);
        if (rc < 0)
            return rc;
    }
    if (value->n == 0)
        return 0;
    uint64_t *offsets = malloc((size_t)value->n * sizeof *offsets);
    if (!offsets)
        return fail_at(r, BUTLER_ERROR_MEMORY, start, "no memory for %llu strings", (unsigned long long)value->n);
    uint64_t at = start;
    for (uint64_t i = 0; i < value->n; i++) {
        offsets[i] = at - start;
        at += 8 + butler_gguf_load_u64(r->data + at);
    }
    value->string_offsets = offsets;
    return 0;
}

static int read_array(struct reader *r, struct butler_gguf_value *value)
{
    uint64_t at = r->at;
    uint32_t type;
    int rc = get_u32(r, "array element type", &type);
    if (rc < 0)
        return rc;
    if (type == BUTLER_GGUF_ARRAY)
        return fail_at(r, BUTLER_ERROR_UNSUPPORTED, at, "array of arrays");
    if (type >= BUTLER_GGUF_N_TYPES)
        return fail_at(r, BUTLER_ERROR_FORMAT, at, "array of unknown type %u", type);
    at = r->at;
    if ((rc = get_u64(r, "array length", &value->n)) < 0)
        return rc;
    value->element_type = (enum butler_gguf_type)type;
    value->data = r->data + r->at;
    if (type == BUTLER_GGUF_STRING)
        return read_array_of_strings(r, value);
    uint64_t left = r->size - r->at;
    if (value->n > left / butler_gguf_value_bytes[type])
        return fail_at(r, BUTLER_ERROR_FORMAT, at, "array of %llu %s, the file has %llu bytes left", (unsigned long long)value->n,
                       butler_gguf_value_names[type], (unsigned long long)left);
    r->at += value->n * butler_gguf_value_bytes[type];
    return type == BUTLER_GGUF_BOOL ? warn_of_bools(r, value->data, value->n) : 0;
}

static int read_entry(struct reader *r, struct entry *entry)
{
    struct butler_gguf_value *value = &entry->value;
    int rc = get_name(r, "key", MAX_KEY, &value->key);
    if (rc < 0)
        return rc;
    uint64_t at = r->at;
    uint32_t type;
    if ((rc = get_u32(r, "value type", &type)) < 0)
        return rc;
    if (type >= BUTLER_GGUF_N_TYPES)
        return fail_at(r, BUTLER_ERROR_FORMAT, at, "unknown value type %u", type);
    value->type = value->element_type = (enum butler_gguf_type)type;
    if (type == BUTLER_GGUF_ARRAY)
        return read_array(r, value);
    if (type == BUTLER_GGUF_STRING) {
        const char *bytes = NULL;
        if ((rc = get_string(r, "string", &bytes, &value->n)) < 0)
            return rc;
        value->data = (const unsigned char *)bytes;
        if (!memchr(bytes, 0, value->n) && !(entry->text = keep_text(r->gguf, bytes, value->n, r->err)))
            return BUTLER_ERROR_MEMORY;
        return 0;
    }
    if ((rc = need(r, butler_gguf_value_bytes[type], butler_gguf_value_names[type])) < 0)
        return rc;
    value->data = r->data + r->at;
    value->n = 1;
    r->at += butler_gguf_value_bytes[type];
    return type == BUTLER_GGUF_BOOL ? warn_of_bools(r, value->data, 1) : 0;
}

static int read_entries(struct reader *r, uint64_t n)
{
    struct butler_gguf *gguf = r->gguf;
    for (uint64_t i = 0; i < n; i++) {
        snprintf(r->subject, sizeof r->subject, "key %llu of %llu", (unsigned long long)i, (unsigned long long)n);
        struct entry *grown = grow(r, gguf->entries, gguf->n_entries, &gguf->max_entries, sizeof *grown);
        if (!grown)
            return BUTLER_ERROR_MEMORY;
        gguf->entries = grown;
        struct entry *entry = &grown[gguf->n_entries++];
        memset(entry, 0, sizeof *entry);
        int rc = read_entry(r, entry);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* --------------------------------------------------------------------------------------- reading tensors */

static int read_dims(struct reader *r, struct butler_tensor *tensor)
{
    uint64_t at = r->at;
    uint32_t n_dims;
    int rc = get_u32(r, "number of dimensions", &n_dims);
    if (rc < 0)
        return rc;
    if (n_dims < 1 || n_dims > MAX_DIMS)
        return fail_at(r, BUTLER_ERROR_FORMAT, at, "%u dimensions, 1 to %d are allowed", n_dims, MAX_DIMS);
    tensor->n_dims = (int)n_dims;
    tensor->n_rows = 1;
    for (int d = 0; d < MAX_DIMS; d++)
        tensor->dims[d] = 1;
    for (int d = 0; d < tensor->n_dims; d++) {
        uint64_t dim;
        at = r->at;
        if ((rc = get_u64(r, "dimension", &dim)) < 0)
            return rc;
        if (dim < 1 || dim > INT64_MAX)
            return fail_at(r, BUTLER_ERROR_FORMAT, at, "dimension %d is %llu", d, (unsigned long long)dim);
        tensor->dims[d] = (int64_t)dim;
        if (d > 0 && __builtin_mul_overflow(tensor->n_rows, tensor->dims[d], &tensor->n_rows))
            return fail_at(r, BUTLER_ERROR_FORMAT, at, "the product of the dimensions overflows");
    }
    tensor->n_cols = tensor->dims[0];
    return 0;
}

static int read_slot(struct reader *r, struct slot *slot)
{
    struct butler_tensor *tensor = &slot->tensor;
    slot->at = r->at;
    int rc = get_name(r, "tensor", MAX_TENSOR_NAME, &tensor->name);
    if (rc < 0)
        return rc;
    uint64_t dims_at = r->at;
    if ((rc = read_dims(r, tensor)) < 0)
        return rc;
    uint64_t at = r->at;
    uint32_t type;
    if ((rc = get_u32(r, "tensor type", &type)) < 0)
        return rc;
    if (!butler_type_known(type))
        return fail_at(r, BUTLER_ERROR_UNSUPPORTED, at, "tensor type %s (%u) is not one of those we can read:%s",
                       butler_type_name(type), type, BUTLER_TYPE_NAMES);
    tensor->type = (enum butler_type)type;
    const struct butler_type_info *info = &butler_types[type];
    if (tensor->n_cols % info->block)
        return fail_at(r, BUTLER_ERROR_FORMAT, dims_at, "rows of %lld elements, %s needs a multiple of %d",
                       (long long)tensor->n_cols, info->name, info->block);
    uint64_t row_bytes;
    if (__builtin_mul_overflow((uint64_t)(tensor->n_cols / info->block), (uint64_t)info->block_bytes, &row_bytes) ||
        __builtin_mul_overflow(row_bytes, (uint64_t)tensor->n_rows, &slot->n_bytes) || slot->n_bytes > r->size)
        return fail_at(r, BUTLER_ERROR_FORMAT, dims_at, "%lld rows of %lld %s are more than the file holds",
                       (long long)tensor->n_rows, (long long)tensor->n_cols, info->name);
    tensor->row_bytes = (size_t)row_bytes;
    return get_u64(r, "tensor offset", &slot->offset);
}

static int read_slots(struct reader *r, uint64_t n)
{
    struct butler_gguf *gguf = r->gguf;
    for (uint64_t i = 0; i < n; i++) {
        snprintf(r->subject, sizeof r->subject, "tensor %llu of %llu", (unsigned long long)i, (unsigned long long)n);
        struct slot *grown = grow(r, gguf->slots, gguf->n_slots, &gguf->max_slots, sizeof *grown);
        if (!grown)
            return BUTLER_ERROR_MEMORY;
        gguf->slots = grown;
        struct slot *slot = &grown[gguf->n_slots++];
        memset(slot, 0, sizeof *slot);
        int rc = read_slot(r, slot);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int compare_offsets(const void *a, const void *b)
{
    const struct slot *const *x = a, *const *y = b;
    return ((*x)->offset > (*y)->offset) - ((*x)->offset < (*y)->offset);
}

/* Overlapping tensors mean a damaged header, and would let a small file claim many weights. */
static int check_overlaps(struct reader *r)
{
    struct butler_gguf *gguf = r->gguf;
    const struct slot **order = malloc(BUTLER_MAX(gguf->n_slots, (size_t)1) * sizeof *order);
    if (!order)
        return fail_at(r, BUTLER_ERROR_MEMORY, r->at, "no memory for %zu tensors", gguf->n_slots);
    for (size_t i = 0; i < gguf->n_slots; i++)
        order[i] = &gguf->slots[i];
    qsort(order, gguf->n_slots, sizeof *order, compare_offsets);
    int rc = 0;
    for (size_t i = 1; i < gguf->n_slots && rc == 0; i++)
        if (order[i]->offset < order[i - 1]->offset + order[i - 1]->n_bytes) {
            set_subject(r, "tensor", order[i]->tensor.name, strlen(order[i]->tensor.name));
            rc = fail_at(r, BUTLER_ERROR_FORMAT, order[i]->at, "its data overlap those of '%s'", order[i - 1]->tensor.name);
        }
    free(order);
    return rc;
}

static int place_tensors(struct reader *r)
{
    struct butler_gguf *gguf = r->gguf;
    gguf->header_bytes = r->at;
    gguf->data_offset = (r->at + gguf->alignment - 1) / gguf->alignment * gguf->alignment;
    for (size_t i = 0; i < gguf->n_slots; i++) {
        struct slot *slot = &gguf->slots[i];
        set_subject(r, "tensor", slot->tensor.name, strlen(slot->tensor.name));
        if (slot->offset % gguf->alignment)
            return fail_at(r, BUTLER_ERROR_FORMAT, slot->at, "data offset %llu is not a multiple of the alignment %llu",
                           (unsigned long long)slot->offset, (unsigned long long)gguf->alignment);
        uint64_t left = gguf->data_offset < r->size ? r->size - gguf->data_offset : 0;
        if (slot->offset > left || slot->n_bytes > left - slot->offset)
            return fail_at(r, BUTLER_ERROR_FORMAT, slot->at, "%llu bytes at data offset %llu, the file has %llu bytes of data",
                           (unsigned long long)slot->n_bytes, (unsigned long long)slot->offset, (unsigned long long)left);
        slot->tensor.data = r->data + gguf->data_offset + slot->offset;
    }
    return check_overlaps(r);
}

/* ---------------------------------------------------------------------------------------- lookup by name */

static int build_index(struct reader *r, struct name_index *index, const char *kind, const void *array, size_t n, size_t element)
{
    size_t n_cells = 8;
    while (n_cells < 2 * n)
        n_cells *= 2;
    index->places = calloc(n_cells, sizeof *index->places);
    if (!index->places)
        return fail_at(r, BUTLER_ERROR_MEMORY, r->at, "no memory for an index of %zu names", n);
    index->mask = n_cells - 1;
    for (size_t i = 0; i < n; i++) {
        const char *name = butler_gguf_name(array, element, i);
        size_t *cell = butler_gguf_cell(index, array, element, name);
        if (*cell) {
            set_subject(r, kind, name, strlen(name));
            return fail_at(r, BUTLER_ERROR_FORMAT, r->at, "the header has it twice, as number %zu and number %zu", *cell - 1, i);
        }
        *cell = i + 1;
    }
    return 0;
}

/* --------------------------------------------------------------------------------------------- the header */

static int read_counts(struct reader *r, uint64_t *n_slots, uint64_t *n_entries)
{
    uint32_t version;
    int rc = need(r, 4, "magic");
    if (rc < 0)
        return rc;
    if (memcmp(r->data, "GGUF", 4) != 0)
        return fail_at(r, BUTLER_ERROR_FORMAT, 0, "not a GGUF file");
    r->at = 4;
    if ((rc = get_u32(r, "version", &version)) < 0)
        return rc;
    if (version == 0x02000000 || version == 0x03000000)
        return fail_at(r, BUTLER_ERROR_UNSUPPORTED, 4, "a big-endian GGUF file");
    if (version != 2 && version != 3)
        return fail_at(r, BUTLER_ERROR_UNSUPPORTED, 4, "GGUF version %u, we read 2 and 3", version);
    if ((rc = get_u64(r, "number of tensors", n_slots)) < 0 || (rc = get_u64(r, "number of keys", n_entries)) < 0)
        return rc;
    uint64_t left = r->size - r->at;
    if (*n_slots > left / MIN_TENSOR_BYTES)
        return fail_at(r, BUTLER_ERROR_FORMAT, 8, "%llu tensors announced, the file has %llu bytes left",
                       (unsigned long long)*n_slots, (unsigned long long)left);
    if (*n_entries > left / MIN_VALUE_BYTES)
        return fail_at(r, BUTLER_ERROR_FORMAT, 16, "%llu keys announced, the file has %llu bytes left",
                       (unsigned long long)*n_entries, (unsigned long long)left);
    return 0;
}

static int read_alignment(struct reader *r)
{
    int64_t alignment = DEFAULT_ALIGNMENT;
    int rc = butler_gguf_int(r->gguf, "general.alignment", false, 1, 1 << 30, &alignment, r->err);
    if (rc < 0)
        return rc;
    if (alignment & (alignment - 1)) {
        set_subject(r, "key", "general.alignment", strlen("general.alignment"));
        const struct butler_gguf_value *value = butler_gguf_value(r->gguf, "general.alignment");
        return fail_at(r, BUTLER_ERROR_FORMAT, (uint64_t)(value->data - r->data), "%lld is not a power of two",
                       (long long)alignment);
    }
    r->gguf->alignment = (uint64_t)alignment;
    return 0;
}

static int read_header(struct butler_gguf *gguf, struct butler_error *err)
{
    struct reader r = {.gguf = gguf, .data = gguf->map.data, .size = gguf->map.size, .subject = "header", .err = err};
    uint64_t n_slots = 0, n_entries = 0;
    int rc = read_counts(&r, &n_slots, &n_entries);
    if (rc < 0 || (rc = read_entries(&r, n_entries)) < 0 ||
        (rc = build_index(&r, &gguf->entry_index, "key", gguf->entries, gguf->n_entries, sizeof(struct entry))) < 0 ||
        (rc = read_alignment(&r)) < 0 || (rc = read_slots(&r, n_slots)) < 0 ||
        (rc = build_index(&r, &gguf->slot_index, "tensor", gguf->slots, gguf->n_slots, sizeof(struct slot))) < 0)
        return rc;
    return place_tensors(&r);
}

struct butler_gguf *butler_gguf_open_memory(const void *data, size_t size, const char *name, struct butler_error *err)
{
    struct butler_gguf *gguf = calloc(1, sizeof *gguf);
    if (!gguf || !(gguf->path = strdup(name)) || !(gguf->warnings = calloc(MAX_WARNINGS, 1))) {
        butler_fail(err, BUTLER_ERROR_MEMORY, "%.160s: no memory for the header", name);
        goto fail;
    }
    gguf->map = (struct butler_map){.data = data, .size = size};
    if (read_header(gguf, err) < 0)
        goto fail;
    return gguf;
fail:
    butler_gguf_free(gguf);
    return NULL;
}

static struct butler_gguf *open_one(const char *path, struct butler_error *err)
{
    struct butler_map map;
    if (butler_map_open(&map, path, err) < 0)
        return NULL;
    struct butler_gguf *gguf = butler_gguf_open_memory(map.data, map.size, path, err);
    if (gguf)
        gguf->map = map;
    else
        butler_map_close(&map);
    return gguf;
}

/* Opens part i (from 0) of n and adds its tensors. */
static int add_part(struct butler_gguf *gguf, int64_t i, int64_t n, struct butler_error *err)
{
    char path[4096], tail[40]; /* a longer path cannot be opened */
    int64_t value;
    int n_tail = snprintf(tail, sizeof tail, "-%05lld-of-%05lld.gguf", (long long)i + 1, (long long)n);
    snprintf(path, sizeof path, "%.*s%s", (int)strlen(gguf->path) - n_tail, gguf->path, tail);
    struct butler_gguf *part = open_one(path, err);
    if (!part)
        return BUTLER_ERROR_IO;
    gguf->parts[gguf->n_parts++] = part;
    if (butler_gguf_int(part, "split.no", true, i, i, &value, err) < 0 ||
        butler_gguf_int(part, "split.count", true, n, n, &value, err) < 0)
        return BUTLER_ERROR_FORMAT;
    size_t n_slots = gguf->n_slots + part->n_slots; /* each has taken bytes of a file, so that this cannot overflow */
    struct slot *grown = realloc(gguf->slots, (n_slots + 1) * sizeof *grown);
    if (!grown)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "%.160s: no memory for the tensors of a part", part->path);
    for (size_t k = 0; k < part->n_slots; k++)
        grown[gguf->n_slots + k] = part->slots[k];
    gguf->slots = grown;
    gguf->n_slots = n_slots;
    return 0;
}

/* A model may be split into files NAME-00001-of-0000N.gguf; the first has all keys. */
static int add_parts(struct butler_gguf *gguf, struct butler_error *err)
{
    int64_t n = 1, no = 0, n_tensors = -1;
    char tail[40];
    int rc;
    if ((rc = butler_gguf_int(gguf, "split.count", false, 0, 99999, &n, err)) < 0 ||
        (rc = butler_gguf_int(gguf, "split.no", false, 0, 99998, &no, err)) < 0 ||
        (rc = butler_gguf_int(gguf, "split.tensors.count", false, 0, INT64_MAX, &n_tensors, err)) < 0 || n <= 1)
        return rc;
    size_t n_tail = (size_t)snprintf(tail, sizeof tail, "-%05lld-of-%05lld.gguf", (long long)no + 1, (long long)n);
    if (no != 0 || strlen(gguf->path) < n_tail || strcmp(gguf->path + strlen(gguf->path) - n_tail, tail) != 0)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED,
                           "%.160s: one of %lld files of a model (split.count), so its name must end in %s; open the first",
                           gguf->path, (long long)n, tail);
    gguf->parts = butler_alloc((size_t)n * sizeof *gguf->parts, err);
    for (int64_t i = 1; i < n; i++)
        if (!gguf->parts || add_part(gguf, i, n, err) < 0)
            return -1;
    if (n_tensors >= 0 && (uint64_t)n_tensors != gguf->n_slots)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key 'split.tensors.count': %lld, but the %lld files have %zu tensors",
                           gguf->path, (long long)n_tensors, (long long)n, gguf->n_slots);
    struct reader r = {.gguf = gguf, .data = gguf->map.data, .size = gguf->map.size, .at = gguf->header_bytes, .err = err};
    free(gguf->slot_index.places);
    gguf->slot_index.places = NULL;
    return build_index(&r, &gguf->slot_index, "tensor", gguf->slots, gguf->n_slots, sizeof(struct slot));
}

struct butler_gguf *butler_gguf_open(const char *path, struct butler_error *err)
{
    struct butler_gguf *gguf = open_one(path, err);
    if (gguf && add_parts(gguf, err) < 0) {
        butler_gguf_free(gguf);
        return NULL;
    }
    return gguf;
}

void butler_gguf_free(struct butler_gguf *gguf)
{
    if (!gguf)
        return;
    for (int64_t i = 0; i < gguf->n_parts; i++)
        butler_gguf_free(gguf->parts[i]);
    free(gguf->parts);
    for (size_t i = 0; i < gguf->n_entries; i++)
        free((uint64_t *)gguf->entries[i].value.string_offsets);
    while (gguf->texts) {
        struct text_chunk *next = gguf->texts->next;
        free(gguf->texts);
        gguf->texts = next;
    }
    free(gguf->entry_index.places);
    free(gguf->slot_index.places);
    free(gguf->entries);
    free(gguf->slots);
    butler_map_close(&gguf->map);
    free(gguf->warnings);
    free(gguf->path);
    free(gguf);
}
