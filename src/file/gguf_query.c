/* What a parsed GGUF file is asked for: tensors and keys by name, values of the type that the caller expects. */
#include "file/gguf_parts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

const char *butler_gguf_name(const void *array, size_t element, size_t i)
{
    const char *name;
    memcpy(&name, (const char *)array + i * element, sizeof name);
    return name;
}

/* Both kinds of element begin with their name, so one hash table implementation serves keys and tensors. */
_Static_assert(offsetof(struct entry, value.key) == 0 && offsetof(struct slot, tensor.name) == 0, "name first");

size_t *butler_gguf_cell(const struct name_index *index, const void *array, size_t element, const char *name)
{
    size_t i = (size_t)XXH3_64bits(name, strlen(name)) & index->mask;
    while (index->places[i] && strcmp(butler_gguf_name(array, element, index->places[i] - 1), name) != 0)
        i = (i + 1) & index->mask;
    return &index->places[i];
}

const char *butler_gguf_path(const struct butler_gguf *gguf)
{
    return gguf->path;
}

const char *butler_gguf_warnings(const struct butler_gguf *gguf)
{
    return gguf->warnings;
}

void butler_gguf_warn(const struct butler_gguf *gguf, const char *format, ...)
{
    size_t n = strlen(gguf->warnings);
    if (MAX_WARNINGS - n < 2)
        return;
    va_list args;
    va_start(args, format);
    if (n > 0)
        gguf->warnings[n++] = '\n';
    vsnprintf(gguf->warnings + n, MAX_WARNINGS - n, format, args);
    va_end(args);
}

int butler_gguf_check(const struct butler_gguf *gguf, struct butler_error *err)
{
    int code = gguf ? butler_map_check(&gguf->map, gguf->path, err) : 0;
    for (int64_t i = 0; gguf && i < gguf->n_parts && code == 0; i++)
        code = butler_map_check(&gguf->parts[i]->map, gguf->parts[i]->path, err);
    return code;
}

int64_t butler_gguf_n_tensors(const struct butler_gguf *gguf)
{
    return (int64_t)gguf->n_slots;
}

const struct butler_tensor *butler_gguf_tensor(const struct butler_gguf *gguf, int64_t i)
{
    return &gguf->slots[i].tensor;
}

const struct butler_tensor *butler_gguf_find(const struct butler_gguf *gguf, const char *name)
{
    size_t place = *butler_gguf_cell(&gguf->slot_index, gguf->slots, sizeof(struct slot), name);
    return place ? &gguf->slots[place - 1].tensor : NULL;
}

int64_t butler_gguf_n_values(const struct butler_gguf *gguf)
{
    return (int64_t)gguf->n_entries;
}

const struct butler_gguf_value *butler_gguf_value_at(const struct butler_gguf *gguf, int64_t i)
{
    return &gguf->entries[i].value;
}

static const struct entry *find_entry(const struct butler_gguf *gguf, const char *key)
{
    size_t place = *butler_gguf_cell(&gguf->entry_index, gguf->entries, sizeof(struct entry), key);
    return place ? &gguf->entries[place - 1] : NULL;
}

const struct butler_gguf_value *butler_gguf_value(const struct butler_gguf *gguf, const char *key)
{
    const struct entry *entry = find_entry(gguf, key);
    return entry ? &entry->value : NULL;
}

/* Looks up a key: 1 with *out set, 0 if it is absent and optional. */
static int want_entry(const struct butler_gguf *gguf, const char *key, bool required, const struct entry **out,
                      struct butler_error *err)
{
    *out = find_entry(gguf, key);
    if (*out)
        return 1;
    if (required)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: key '%s' is missing", gguf->path, key);
    return 0;
}

static int fail_value(const struct butler_gguf *gguf, const struct entry *entry, struct butler_error *err, const char *what)
{
    return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: offset %llu: key '%.64s': %s%s", gguf->path,
                       (unsigned long long)(entry->value.data - gguf->map.data), entry->value.key, what,
                       butler_gguf_value_names[entry->value.type]);
}

int butler_gguf_int(const struct butler_gguf *gguf, const char *key, bool required, int64_t min, int64_t max, int64_t *out,
                    struct butler_error *err)
{
    const struct entry *entry;
    int rc = want_entry(gguf, key, required, &entry, err);
    if (rc <= 0)
        return rc;
    enum butler_gguf_type type = entry->value.type;
    if (type == BUTLER_GGUF_FLOAT32 || type == BUTLER_GGUF_FLOAT64 || type == BUTLER_GGUF_STRING || type == BUTLER_GGUF_ARRAY)
        return fail_value(gguf, entry, err, "expected an integer, found type ");
    int64_t value;
    if (!butler_gguf_load_int(type, entry->value.data, &value) || value < min || value > max) {
        char shown[32];
        bool wide = type == BUTLER_GGUF_U64;
        snprintf(shown, sizeof shown, wide ? "%llu" : "%lld", (unsigned long long)value);
        return butler_fail(err, BUTLER_ERROR_FORMAT, "%.160s: offset %llu: key '%.64s': %s is not in [%lld, %lld]", gguf->path,
                           (unsigned long long)(entry->value.data - gguf->map.data), key, shown, (long long)min, (long long)max);
    }
    *out = value;
    return 0;
}

int butler_gguf_float(const struct butler_gguf *gguf, const char *key, bool required, double *out, struct butler_error *err)
{
    const struct entry *entry;
    int rc = want_entry(gguf, key, required, &entry, err);
    if (rc <= 0)
        return rc;
    double value;
    if (entry->value.type == BUTLER_GGUF_FLOAT32) {
        value = butler_gguf_array_float(&entry->value, 0);
    } else if (entry->value.type == BUTLER_GGUF_FLOAT64) {
        uint64_t bits = butler_gguf_load_u64(entry->value.data);
        memcpy(&value, &bits, sizeof value);
    } else {
        return fail_value(gguf, entry, err, "expected a float, found type ");
    }
    if (!isfinite(value))
        return fail_value(gguf, entry, err, "not a finite ");
    *out = value;
    return 0;
}

int butler_gguf_string(const struct butler_gguf *gguf, const char *key, bool required, const char **out, struct butler_error *err)
{
    const struct entry *entry;
    int rc = want_entry(gguf, key, required, &entry, err);
    if (rc <= 0)
        return rc;
    if (entry->value.type != BUTLER_GGUF_STRING)
        return fail_value(gguf, entry, err, "expected a string, found type ");
    if (!entry->text)
        return fail_value(gguf, entry, err, "NUL byte in the ");
    *out = entry->text;
    return 0;
}
