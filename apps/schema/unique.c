/* Arrays of different items, where the items are few values: a rule for each set of values that have been used. */
#include <string.h>

#include "schema/parts.h"

enum { MAX_VALUES = 32, MAX_RULES = 2000 };

struct unique {
    const json_t *values;
    json_t *rules; /* of sets, by their number in hexadecimal */
    int n, min, max;
};

static int compile_rest(struct schema_compiler *c, struct unique *u, uint32_t used, int n_used);

/* Items behind n_used others, each behind a comma but the first one, and the end. */
static void put_rest(struct schema_compiler *c, struct unique *u, uint32_t used, int n_used)
{
    struct schema_text *text = schema_begin(c);
    int n = 0;
    if (n_used >= u->min) {
        schema_put(c, text, n_used ? " ws \"]\"" : " \"]\"");
        n++;
    }
    for (int i = 0; i < u->n && n_used < u->max; i++) {
        if (used & UINT32_C(1) << i)
            continue;
        const int rest = compile_rest(c, u, used | UINT32_C(1) << i, n_used + 1);
        schema_put(c, text, "%s%s ws", n++ ? " |" : "", n_used ? " \",\"" : "");
        schema_put_value(c, text, json_array_get(u->values, (size_t)i));
        schema_put_rule(c, text, rest);
    }
    schema_end(c, text);
}

static int compile_rest(struct schema_compiler *c, struct unique *u, uint32_t used, int n_used)
{
    char key[16];
    snprintf(key, sizeof key, "%x", (unsigned)used);
    const json_t *known = json_object_get(u->rules, key);
    if (known)
        return (int)json_integer_value(known);
    schema_step(c, (size_t)u->n);
    put_rest(c, u, used, n_used);
    const int rule = SCHEMA_N_FIXED + c->n_rules - 1;
    if (json_object_set_new_nocheck(u->rules, key, json_integer(rule)) != 0)
        schema_no_memory(c);
    return rule;
}

/* Whether the sets of at most k of n values are few. */
static bool are_few(int n, int k)
{
    double sets = 0, of_size = 1;
    for (int i = 0; i <= k; i++) {
        sets += of_size;
        of_size *= (double)(n - i) / (i + 1);
    }
    return sets <= MAX_RULES;
}

int schema_compile_unique(struct schema_compiler *c, const json_t *values, int64_t min, int64_t max)
{
    const int n = json_array_size(values) <= MAX_VALUES ? (int)json_array_size(values) : MAX_VALUES + 1;
    const int most = max < 0 || max > n ? n : (int)max;
    if (n > MAX_VALUES || !are_few(n, most))
        return SCHEMA_MANY;
    if (min > most)
        return SCHEMA_NEVER;
    struct unique u = {.values = values, .rules = schema_keep(c, json_object()), .n = n, .min = (int)min, .max = most};
    const int rest = compile_rest(c, &u, 0, 0);
    struct schema_text *text = schema_begin(c);
    schema_put(c, text, " \"[\"");
    schema_put_rule(c, text, rest);
    return schema_end(c, text);
}
