/* Strings with lengths, and formats. Patterns are in pattern.c. */
#include <string.h>

#include "schema/parts.h"

static int compile_format(struct schema_compiler *c, const char *format)
{
    static const struct {
        const char *name;
        int rule;
    } formats[] = {{"date", SCHEMA_DATE}, {"time", SCHEMA_TIME},        {"date-time", SCHEMA_DATE_TIME}, {"uuid", SCHEMA_UUID},
                   {"ipv4", SCHEMA_IPV4}, {"ipv6", SCHEMA_IPV6},        {"hostname", SCHEMA_HOSTNAME},   {"email", SCHEMA_EMAIL},
                   {"uri", SCHEMA_URI},   {"duration", SCHEMA_DURATION}};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, format) == 0) {
            struct schema_text *text = schema_begin(c);
            schema_put(c, text, " \"\\\"\"");
            schema_put_rule(c, text, formats[i].rule);
            schema_put(c, text, " \"\\\"\"");
            return schema_end(c, text);
        }
    schema_fail(c, "format '%.64s' is not supported", format);
}

int schema_compile_string(struct schema_compiler *c, const json_t *flat)
{
    const int64_t min = schema_count(c, flat, "minLength", 0), max = schema_count(c, flat, "maxLength", -1);
    const char *pattern = json_string_value(json_object_get(flat, "pattern"));
    const char *format = json_string_value(json_object_get(flat, "format"));
    const bool has_length = min > 0 || max >= 0;
    if ((pattern != NULL) + (format != NULL) + has_length > 1)
        schema_fail(c, "only one of 'pattern', 'format' and a length is supported for a string");
    if (pattern)
        return schema_compile_pattern(c, pattern);
    if (format)
        return compile_format(c, format);
    if (!has_length)
        return SCHEMA_STRING;
    if (max >= 0 && min > max)
        return SCHEMA_NEVER;
    struct schema_text *text = schema_begin(c);
    schema_put(c, text, " \"\\\"\"");
    schema_put_rule(c, text, SCHEMA_CHAR);
    if (max >= 0)
        schema_put(c, text, "{%d,%d}", (int)min, (int)max);
    else
        schema_put(c, text, "{%d,}", (int)min);
    schema_put(c, text, " \"\\\"\"");
    return schema_end(c, text);
}
