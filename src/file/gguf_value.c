/* The types of the GGUF format: size of each tensor and value type, and how to read its bytes. */
#include "file/gguf_value.h"

#include <string.h>

const unsigned char butler_gguf_value_bytes[BUTLER_GGUF_N_TYPES] = {
    [BUTLER_GGUF_U8] = 1,  [BUTLER_GGUF_I8] = 1,      [BUTLER_GGUF_U16] = 2,     [BUTLER_GGUF_I16] = 2,    [BUTLER_GGUF_U32] = 4,
    [BUTLER_GGUF_I32] = 4, [BUTLER_GGUF_FLOAT32] = 4, [BUTLER_GGUF_BOOL] = 1,    [BUTLER_GGUF_STRING] = 0, [BUTLER_GGUF_ARRAY] = 0,
    [BUTLER_GGUF_U64] = 8, [BUTLER_GGUF_I64] = 8,     [BUTLER_GGUF_FLOAT64] = 8,
};
const char *const butler_gguf_value_names[BUTLER_GGUF_N_TYPES] = {
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64",
};

static uint16_t load_u16(const unsigned char *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}
uint32_t butler_gguf_load_u32(const unsigned char *p)
{
    return load_u16(p) | (uint32_t)load_u16(p + 2) << 16;
}
uint64_t butler_gguf_load_u64(const unsigned char *p)
{
    return butler_gguf_load_u32(p) | (uint64_t)butler_gguf_load_u32(p + 4) << 32;
}

const char *butler_gguf_array_string(const struct butler_gguf_value *value, uint64_t i, size_t *n_bytes)
{
    const unsigned char *p = value->data + value->string_offsets[i];
    *n_bytes = (size_t)butler_gguf_load_u64(p);
    return (const char *)p + 8;
}

float butler_gguf_array_float(const struct butler_gguf_value *value, uint64_t i)
{
    uint32_t bits = butler_gguf_load_u32(value->data + 4 * i);
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

bool butler_gguf_load_int(enum butler_gguf_type type, const unsigned char *p, int64_t *out)
{
    switch (type) {
    case BUTLER_GGUF_U8:
        *out = p[0];
        return true;
    case BUTLER_GGUF_BOOL:
        *out = p[0] != 0;
        return true;
    case BUTLER_GGUF_I8:
        *out = (int8_t)p[0];
        return true;
    case BUTLER_GGUF_U16:
        *out = load_u16(p);
        return true;
    case BUTLER_GGUF_I16:
        *out = (int16_t)load_u16(p);
        return true;
    case BUTLER_GGUF_U32:
        *out = butler_gguf_load_u32(p);
        return true;
    case BUTLER_GGUF_I32:
        *out = (int32_t)butler_gguf_load_u32(p);
        return true;
    case BUTLER_GGUF_U64:
    case BUTLER_GGUF_I64:
        *out = (int64_t)butler_gguf_load_u64(p);
        return type == BUTLER_GGUF_I64 || *out >= 0;
    default:
        return false;
    }
}

int64_t butler_gguf_array_int(const struct butler_gguf_value *value, uint64_t i)
{
    int64_t out = 0;
    butler_gguf_load_int(value->element_type, value->data + i * butler_gguf_value_bytes[value->element_type], &out);
    return out;
}
