/* A literal of several values: shared beginnings once, so that a grammar of 20,000 values has few ways to go on at any place. */
#include <stdlib.h>
#include <string.h>

#include "schema/parts.h"

enum { MAX_NESTED = 64 }; /* groups in groups; deeper ones are written out value by value */

static int by_bytes(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Bytes of the UTF-8 character at text; 1 at its end. */
static size_t character(const char *text)
{
    size_t n = 1;
    while (*text && (text[n] & 0xc0) == 0x80)
        n++;
    return n;
}

/* Bytes that both have in common, whole characters. */
static size_t common(const char *a, const char *b)
{
    size_t n = 0;
    while (a[n] && strncmp(a + n, b + n, character(a + n)) == 0)
        n += character(a + n);
    return n;
}

/* Alternatives of values[n], sorted, which have their first `done` bytes in common. */
static void put_alternatives(struct schema_compiler *c, struct schema_text *text, const char *const *values, size_t n, size_t done,
                             int nested)
{
    for (size_t i = 0, end; i < n; i = end) {
        const size_t first = character(values[i] + done);
        for (end = i + 1; end < n && nested < MAX_NESTED && strncmp(values[i] + done, values[end] + done, first) == 0;)
            end++;
        schema_step(c, 1);
        schema_put(c, text, i ? " |" : "");
        if (end - i == 1) {
            schema_put_literal(c, text, values[i] + done, strlen(values[i] + done));
            continue;
        }
        const size_t shared = common(values[i] + done, values[end - 1] + done);
        schema_put_literal(c, text, values[i] + done, shared);
        schema_put(c, text, " (");
        put_alternatives(c, text, values + i, end - i, done + shared, nested + 1);
        schema_put(c, text, " )");
    }
}

void schema_put_values(struct schema_compiler *c, struct schema_text *text, const json_t *list)
{
    struct schema_text *held = schema_begin(c); /* an array of pointers, which is freed also where what follows fails */
    json_t *value;
    size_t i, n = 0;
    json_array_foreach(list, i, value)
    {
        const char *own = schema_value_text(c, value);
        schema_step(c, 1);
        schema_put_bytes(c, held, (const char *)&own, sizeof own);
    }
    const char **values = (const char **)(void *)held->bytes;
    qsort(values, json_array_size(list), sizeof *values, by_bytes);
    for (i = 0; i < json_array_size(list); i++)
        if (n == 0 || strcmp(values[n - 1], values[i]) != 0)
            values[n++] = values[i];
    put_alternatives(c, text, values, n, 0, 0);
    schema_drop(c);
}
