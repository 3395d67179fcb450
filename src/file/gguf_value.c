/* The types of the GGUF format: size of each tensor and value type, and how to read its bytes. */
#include "file/gguf_value.h"

#include <string.h>

const struct butler_type_info butler_types[BUTLER_N_TYPES] = {
    [BUTLER_F32] = {"F32", 1, 4},       [BUTLER_F16] = {"F16", 1, 2},       [BUTLER_BF16] = {"BF16", 1, 2},
    [BUTLER_Q4_0] = {"Q4_0", 32, 18},   [BUTLER_Q4_1] = {"Q4_1", 32, 20},   [BUTLER_Q5_0] = {"Q5_0", 32, 22},
    [BUTLER_Q5_1] = {"Q5_1", 32, 24},   [BUTLER_Q8_0] = {"Q8_0", 32, 34},   [BUTLER_Q4_K] = {"Q4_K", 256, 144},
    [BUTLER_Q5_K] = {"Q5_K", 256, 176}, [BUTLER_Q6_K] = {"Q6_K", 256, 210},
};

const unsigned char butler_gguf_value_bytes[BUTLER_GGUF_N_TYPES] = {
    [BUTLER_GGUF_U8] = 1,  [BUTLER_GGUF_I8] = 1,      [BUTLER_GGUF_U16] = 2,     [BUTLER_GGUF_I16] = 2,    [BUTLER_GGUF_U32] = 4,
    [BUTLER_GGUF_I32] = 4, [BUTLER_GGUF_FLOAT32] = 4, [BUTLER_GGUF_BOOL] = 1,    [BUTLER_GGUF_STRING] = 0, [BUTLER_GGUF_ARRAY] = 0,
    [BUTLER_GGUF_U64] = 8, [BUTLER_GGUF_I64] = 8,     [BUTLER_GGUF_FLOAT64] = 8,
};
const char *const butler_gguf_value_names[BUTLER_GGUF_N_TYPES] = {
    "uint8", "int8", "uint16", "int16", "uint32", "int32", "float32", "bool", "string", "array", "uint64", "int64", "float64",
};

bool butler_type_known(uint32_t type)
{
    return type < BUTLER_N_TYPES && butler_types[type].name;
}

size_t butler_row_bytes(enum butler_type type, int64_t n)
{
    return (size_t)n / (size_t)butler_types[type].block * (size_t)butler_types[type].block_bytes;
}

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
    case BUTLER_GGUF_BOOL:
        *out = p[0];
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
