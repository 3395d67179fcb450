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
    schema_cannot(c, "format", "format '%.64s' is not supported", format);
    return SCHEMA_MANY;
}

int schema_compile_string(struct schema_compiler *c, const json_t *flat)
{
    const int64_t min = schema_count(c, flat, "minLength", 0), max = schema_count(c, flat, "maxLength", -1);
    const char *pattern = json_string_value(json_object_get(flat, "pattern"));
    const char *format = json_string_value(json_object_get(flat, "format"));
    const bool has_length = min > 0 || max >= 0;
    int rule = format ? compile_format(c, format) : SCHEMA_MANY;
    if (max >= 0 && min > max)
        return SCHEMA_NEVER;
    if (rule != SCHEMA_MANY && pattern)
        schema_cannot(c, "pattern", "'pattern' beside 'format' is not supported");
    if (rule != SCHEMA_MANY && has_length)
        schema_cannot(c, min > 0 ? "minLength" : "maxLength", "a length beside 'format' is not supported");
    if (rule == SCHEMA_MANY && pattern)
        rule = schema_compile_pattern(c, pattern, min, max);
    if (rule != SCHEMA_MANY)
        return rule;
    if (!has_length)
        return SCHEMA_STRING;
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
