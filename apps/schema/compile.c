/* The rule of a schema: references, alternatives, enumerations and types. What follows is in values.c, number.c and string.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "schema/parts.h"

/* Strings have no control characters and only pairs of surrogates, so that each char is one character. Space between the parts of
 * an array or object is bounded: a model that writes spaces for ever would not end its answer. */
static const struct fixed {
    const char *name, *body;
    int needs[5]; /* 0 (SCHEMA_WS): the list ends */
} fixed_rules[SCHEMA_N_FIXED] = {
    [SCHEMA_WS] = {"ws", "\" \"? | \"\\n\" \" \"{0,20}", {0}},
    [SCHEMA_HEX] = {"hex", "[0-9a-fA-F]", {0}},
    [SCHEMA_CHAR] =
        {"char",
         "[^\"\\\\\\x00-\\x1f] | \"\\\\\" ( [\"\\\\/bfnrt] | \"u\" ( [0-9a-cA-CefEF] hex hex hex | [dD] ( [0-7] hex hex "
         "| [89abAB] hex hex \"\\\\u\" [dD] [c-fC-F] hex hex ) ) )",
         {SCHEMA_HEX}},
    [SCHEMA_KEY_CHAR] = {"key-char", "[^\"\\\\\\x00-\\x1f] | \"\\\\\" ( [\"\\\\bfnrt] | \"u00\" [01] hex )", {SCHEMA_HEX}},
    [SCHEMA_STRING] = {"string", "\"\\\"\" char* \"\\\"\"", {SCHEMA_CHAR}},
    [SCHEMA_INTEGER] = {"integer", "\"-\"? ( \"0\" | [1-9] [0-9]{0,17} )", {0}},
    [SCHEMA_NUMBER] = {"number", "integer ( \".\" [0-9]{1,18} )? ( [eE] [+-]? [0-9]{1,2} )?", {SCHEMA_INTEGER}},
    [SCHEMA_BOOLEAN] = {"boolean", "\"true\" | \"false\"", {0}},
    [SCHEMA_NULL] = {"null", "\"null\"", {0}},
    [SCHEMA_MEMBER] = {"member", "string \":\" \" \"? value", {SCHEMA_STRING, SCHEMA_VALUE}},
    [SCHEMA_OBJECT] = {"object", "\"{\" ( \"}\" | ws member ( \",\" ws member )* ws \"}\" )", {SCHEMA_MEMBER}},
    [SCHEMA_ARRAY] = {"array", "\"[\" ( \"]\" | ws value ( \",\" ws value )* ws \"]\" )", {SCHEMA_VALUE}},
    [SCHEMA_VALUE] = {"value",
                      "object | array | string | number | boolean | null",
                      {SCHEMA_OBJECT, SCHEMA_ARRAY, SCHEMA_NUMBER, SCHEMA_BOOLEAN, SCHEMA_NULL}},
    [SCHEMA_DATE] =
        {"date",
         "[0-9]{4} \"-\" ( ( \"0\" [13578] | \"1\" [02] ) \"-\" ( \"0\" [1-9] | [12] [0-9] | \"3\" [01] ) | ( \"0\" [469] | "
         "\"11\" ) \"-\" ( \"0\" [1-9] | [12] [0-9] | \"30\" ) | \"02-\" ( \"0\" [1-9] | \"1\" [0-9] | \"2\" [0-8] ) ) | "
         "( [0-9] [0-9] ( \"0\" [48] | [2468] [048] | [13579] [26] ) | ( [02468] [048] | [13579] [26] ) \"00\" ) "
         "\"-02-29\"",
         {0}},
    [SCHEMA_TIME] = {"time",
                     "( [01] [0-9] | \"2\" [0-3] ) \":\" [0-5] [0-9] \":\" [0-5] [0-9] ( \".\" [0-9]{1,9} )? ( \"Z\" | [+-] ( [01] "
                     "[0-9] | \"2\" [0-3] ) \":\" [0-5] [0-9] )",
                     {0}},
    [SCHEMA_DATE_TIME] = {"date-time", "date \"T\" time", {SCHEMA_DATE, SCHEMA_TIME}},
    [SCHEMA_UUID] = {"uuid", "hex{8} \"-\" hex{4} \"-\" hex{4} \"-\" hex{4} \"-\" hex{12}", {SCHEMA_HEX}},
    [SCHEMA_IPV4] = {"ipv4",
                     "ipv4-part ( \".\" ipv4-part ){3}\n"
                     "ipv4-part ::= [0-9] | [1-9] [0-9] | \"1\" [0-9] [0-9] | \"2\" ( [0-4] [0-9] | \"5\" [0-5] )",
                     {0}},
    [SCHEMA_IPV6] =
        {"ipv6",
         "( h16 \":\" ){7} h16 | \"::\" ( h16 ( \":\" h16 ){0,6} )? | h16 \"::\" ( h16 ( \":\" h16 ){0,5} )? | "
         "h16 \":\" h16 \"::\" ( h16 ( \":\" h16 ){0,4} )? | h16 ( \":\" h16 ){2} \"::\" ( h16 ( \":\" h16 ){0,3} )? | "
         "h16 ( \":\" h16 ){3} \"::\" ( h16 ( \":\" h16 ){0,2} )? | h16 ( \":\" h16 ){4} \"::\" ( h16 ( \":\" h16 )? )? | "
         "h16 ( \":\" h16 ){5} \"::\" h16? | h16 ( \":\" h16 ){6} \"::\"\n"
         "h16 ::= hex{1,4}",
         {SCHEMA_HEX}},
    /* Labels have at most 63 characters, the first one, or 31, and names 253; two hyphens behind each other are in encoded names.
     */
    [SCHEMA_HOSTNAME] = {"hostname",
                         "[a-zA-Z0-9] ( \"-\"? [a-zA-Z0-9] ){0,31} ( \".\" [a-zA-Z0-9] ( \"-\"? [a-zA-Z0-9] ){0,15} ){0,5}",
                         {0}},
    [SCHEMA_URI] =
        {"uri",
         "[a-zA-Z] [a-zA-Z0-9+.-]{0,15} \"://\" hostname ( \":\" [0-9]{1,5} )? ( \"/\" uri-char* )? ( \"?\" ( uri-char | "
         "\"?\" )* )? ( \"#\" ( uri-char | \"?\" )* )?\n"
         "uri-char ::= [a-zA-Z0-9._~!$&'()*+,;=:@/-] | \"%\" hex hex",
         {SCHEMA_HOSTNAME, SCHEMA_HEX}},
    [SCHEMA_DURATION] = {"duration",
                         "\"P\" ( amount \"W\" | days ( \"T\" hours )? | \"T\" hours )\n"
                         "days ::= amount ( \"Y\" ( amount \"M\" ( amount \"D\" )? )? | \"M\" ( amount \"D\" )? | \"D\" )\n"
                         "hours ::= amount ( \"H\" ( amount \"M\" ( amount \"S\" )? )? | \"M\" ( amount \"S\" )? | \"S\" )\n"
                         "amount ::= [0-9]{1,9}",
                         {0}},
    [SCHEMA_EMAIL] = {"email",
                      "[a-zA-Z0-9_+-]+ ( \".\" [a-zA-Z0-9_+-]+ )* \"@\" [a-zA-Z0-9]+ ( \"-\"+ [a-zA-Z0-9]+ )* ( \".\" [a-zA-Z0-9]+ "
                      "( \"-\"+ [a-zA-Z0-9]+ )* )+",
                      {0}},
};

void schema_put_rule(struct schema_compiler *c, struct schema_text *text, int rule)
{
    if (rule < 0 || rule >= SCHEMA_N_FIXED) {
        schema_put(c, text, " r%d", rule);
        return;
    }
    c->used[rule] = true;
    schema_put(c, text, " %s", fixed_rules[rule].name);
}

static void put_fixed_rules(struct schema_compiler *c)
{
    c->used[SCHEMA_WS] = true;
    for (int again = 1; again;) {
        again = 0;
        for (int i = 0; i < SCHEMA_N_FIXED; i++)
            for (int k = 0; c->used[i] && k < 5 && fixed_rules[i].needs[k]; k++) {
                again |= !c->used[fixed_rules[i].needs[k]];
                c->used[fixed_rules[i].needs[k]] = true;
            }
    }
    for (int i = 0; i < SCHEMA_N_FIXED; i++)
        if (c->used[i]) {
            schema_put(c, &c->rules, "%s ::= ", fixed_rules[i].name);
            schema_put_bytes(c, &c->rules, fixed_rules[i].body, strlen(fixed_rules[i].body));
            schema_put(c, &c->rules, "\n");
        }
}

int64_t schema_count(struct schema_compiler *c, const json_t *schema, const char *name, int64_t otherwise)
{
    const json_t *value = json_object_get(schema, name);
    if (!value)
        return otherwise;
    const double real = json_number_value(value);
    if (!json_is_number(value) || !(real >= 0) || real != floor(real))
        schema_fail(c, "'%s' must be a whole number that is not negative", name);
    if (real > SCHEMA_MAX_REPEATS) {
        schema_cannot(c, name, "'%s' above %d is not supported", name, SCHEMA_MAX_REPEATS);
        return otherwise;
    }
    return (int64_t)real;
}

/* -------------------------------------------------------------------------------------------- references */

/* The value of a hexadecimal digit, or -1. */
static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

const json_t *schema_resolve(struct schema_compiler *c, const json_t *ref)
{
    const char *pointer = json_is_string(ref) ? json_string_value(ref) : "";
    if (pointer[0] != '#' || (pointer[1] && pointer[1] != '/')) {
        schema_cannot(c, "$ref", "$ref '%.80s' is not supported: only #/... of the same schema is", pointer);
        return schema_keep(c, json_true());
    }
    const json_t *at = c->root;
    for (const char *p = pointer + 1; *p == '/' && at;) {
        char word[256];
        size_t n = 0;
        for (p++; *p && *p != '/'; p++) {
            char letter = *p;
            const int high = letter == '%' ? hex(p[1]) : -1, low = high >= 0 ? hex(p[2]) : -1;
            if (low >= 0) { /* the pointer is the fragment of a URI (RFC 6901, section 6) */
                letter = (char)(16 * high + low);
                p += 2;
            }
            if (letter == '~' && (p[1] == '0' || p[1] == '1'))
                letter = *++p == '0' ? '~' : '/';
            if (n + 1 == sizeof word)
                schema_fail(c, "a name in the $ref is longer than %zu bytes", sizeof word - 1);
            word[n++] = letter;
        }
        word[n] = 0;
        char *end;
        at = json_is_array(at) && n ? json_array_get(at, strtoul(word, &end, 10)) : json_object_get(at, word);
    }
    if (!at)
        schema_fail(c, "$ref '%.80s' points to nothing", pointer);
    c->n_path = (size_t)snprintf(c->path, sizeof c->path, "%s", pointer);
    c->n_path = strlen(c->path);
    return at;
}

/* Of a memo: rule + 1 (0: SCHEMA_NEVER), guards when it was begun, whether it is complete, whether it was asked for meanwhile. */
struct memo {
    int rule, guards;
    bool complete, used;
};

static json_int_t pack(struct memo m)
{
    return (json_int_t)(m.rule + 1) << 24 | (json_int_t)m.guards << 2 | m.used << 1 | m.complete;
}

static struct memo unpack(json_int_t packed)
{
    return (struct memo){(int)(packed >> 24) - 1, (int)(packed >> 2 & 0x3fffff), packed & 1, packed >> 1 & 1};
}

static int compile_flat(struct schema_compiler *c, const json_t *flat);

static void remember(struct schema_compiler *c, const char *key, struct memo memo)
{
    if (json_object_set_new_nocheck(c->memo, key, json_integer(pack(memo))) != 0)
        schema_no_memory(c);
}

/* Compiles a schema that other places may name too, or that contains itself. */
static int compile_shared(struct schema_compiler *c, const char *key, const json_t *schema, bool is_target)
{
    const json_t *known = json_object_get(c->memo, key);
    if (known) {
        struct memo memo = unpack(json_integer_value(known));
        if (!memo.complete && memo.guards == c->guards)
            schema_fail(c, "cyclic $ref: the schema is an alternative of itself");
        memo.used = true;
        remember(c, key, memo);
        return memo.rule;
    }
    struct memo memo = {SCHEMA_N_FIXED + c->n_rules++, c->guards, false, false};
    remember(c, key, memo);
    const int rule = is_target ? schema_compile(c, schema) : compile_flat(c, schema_flatten(c, schema));
    memo = unpack(json_integer_value(json_object_get(c->memo, key)));
    memo.complete = true;
    if (rule == SCHEMA_NEVER && memo.used)
        schema_fail(c, "no value can satisfy this schema, which contains itself");
    if (rule == SCHEMA_NEVER)
        memo.rule = SCHEMA_NEVER;
    else {
        struct schema_text *text = schema_begin(c);
        schema_put_rule(c, text, rule);
        schema_end_as(c, text, memo.rule);
    }
    remember(c, key, memo);
    return memo.rule;
}

static int compile_reference(struct schema_compiler *c, const json_t *ref)
{
    char path[sizeof c->path];
    const size_t n = c->n_path;
    memcpy(path, c->path, n + 1);
    const json_t *target = schema_resolve(c, ref);
    const int rule = compile_shared(c, json_string_value(ref), target, true);
    memcpy(c->path, path, n + 1);
    c->n_path = n;
    return rule;
}

static bool only_has(const json_t *schema, const char *keyword)
{
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)schema, key, value) if (strcmp(key, keyword) != 0 && schema_is_assertion(key)) return false;
    return json_object_get(schema, keyword);
}

int schema_compile(struct schema_compiler *c, const json_t *schema)
{
    schema_step(c, 1);
    if (json_is_true(schema))
        return SCHEMA_VALUE;
    if (json_is_false(schema))
        return SCHEMA_NEVER;
    if (!json_is_object(schema))
        schema_fail(c, "a schema must be an object or a boolean");
    schema_enter(c);
    int rule;
    const json_t *all = json_object_get(schema, "allOf");
    if (only_has(schema, "$ref"))
        rule = compile_reference(c, json_object_get(schema, "$ref"));
    else if (only_has(schema, "allOf") && json_array_size(all) == 1) {
        const size_t n = schema_path_push_index(c, "allOf", 0);
        rule = schema_compile(c, json_array_get(all, 0));
        c->path[c->n_path = n] = 0;
    } else if (all) { /* its text is the key: merging makes a new object each time, and may meet the same one again */
        char *key = json_dumps(schema, JSON_COMPACT);
        json_t *kept = key ? json_string_nocheck(key) : NULL;
        free(key);
        schema_keep(c, kept);
        schema_step(c, json_string_length(kept) / 64);
        rule = compile_shared(c, json_string_value(kept), schema, false);
    } else
        rule = compile_flat(c, schema_flatten(c, schema));
    c->depth--;
    return rule;
}

/* ------------------------------------------------------------------------------------ enumerations, types */

static unsigned type_of(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_NULL:
        return SCHEMA_TYPE_NULL;
    case JSON_OBJECT:
        return SCHEMA_TYPE_OBJECT;
    case JSON_ARRAY:
        return SCHEMA_TYPE_ARRAY;
    case JSON_STRING:
        return SCHEMA_TYPE_STRING;
    case JSON_INTEGER:
        return SCHEMA_TYPE_INTEGER;
    case JSON_REAL:
        return json_real_value(value) == floor(json_real_value(value)) ? SCHEMA_TYPE_INTEGER : SCHEMA_TYPE_FRACTION;
    default:
        return SCHEMA_TYPE_BOOLEAN;
    }
}

const json_t *schema_possible_values(struct schema_compiler *c, const json_t *flat)
{
    static const char *const allowed[] = {"enum", "type", "nullable", "format"};
    const char *key;
    const json_t *value;
    json_object_foreach((json_t *)flat, key, value)
    {
        bool known = !schema_is_assertion(key);
        for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++)
            known |= strcmp(key, allowed[i]) == 0;
        if (!known)
            schema_cannot(c, key, "'%.64s' beside 'enum' or 'const' is not supported", key);
    }
    const unsigned types = json_object_get(flat, "type") ? schema_types(flat) : SCHEMA_TYPE_ALL;
    json_t *possible = schema_keep(c, json_array());
    size_t i;
    json_array_foreach(json_object_get(flat, "enum"), i, value)
    {
        if ((types & type_of(value)) && json_array_append(possible, (json_t *)value) != 0)
            schema_no_memory(c);
    }
    return possible;
}

static int compile_enum(struct schema_compiler *c, const json_t *flat)
{
    const json_t *possible = schema_possible_values(c, flat);
    if (json_array_size(possible) == 0)
        return SCHEMA_NEVER;
    struct schema_text *text = schema_begin(c);
    schema_put_values(c, text, possible);
    return schema_end(c, text);
}

static int compile_alternatives(struct schema_compiler *c, const json_t *flat, const char *keyword)
{
    const json_t *list = json_object_get(flat, keyword);
    json_t *rest = schema_keep(c, json_copy((json_t *)flat));
    json_object_del(rest, keyword);
    const char *key;
    const json_t *value;
    bool alone = true;
    json_object_foreach(rest, key, value) alone &= !schema_is_assertion(key);
    struct schema_text *text = schema_begin(c);
    int n = 0, rule = SCHEMA_NEVER;
    size_t i;
    json_array_foreach(list, i, value)
    {
        const size_t n_path = schema_path_push_index(c, keyword, i);
        int alternative;
        if (alone)
            alternative = schema_compile(c, value);
        else {
            schema_enter(c);
            alternative = compile_flat(c, schema_merge(c, rest, schema_flatten(c, value)));
            c->depth--;
        }
        if (alternative != SCHEMA_NEVER) {
            rule = alternative;
            schema_put(c, text, n++ ? " |" : "");
            schema_put_rule(c, text, rule);
        }
        c->path[c->n_path = n_path] = 0;
    }
    if (n > 1)
        return schema_end(c, text);
    schema_drop(c);
    return rule;
}

static int compile_flat(struct schema_compiler *c, const json_t *flat)
{
    schema_step(c, 1);
    if (json_object_get(flat, "anyOf"))
        return compile_alternatives(c, flat, "anyOf");
    if (json_object_get(flat, "oneOf"))
        return compile_alternatives(c, flat, "oneOf");
    if (json_object_get(flat, "enum"))
        return compile_enum(c, flat);
    const unsigned types = schema_types(flat);
    if (types == SCHEMA_TYPE_ALL && !json_object_size(flat))
        return SCHEMA_VALUE;
    int rules[7], n = 0;
    c->guards++;
    rules[n++] = types & SCHEMA_TYPE_OBJECT ? schema_compile_object(c, flat) : SCHEMA_NEVER;
    rules[n++] = types & SCHEMA_TYPE_ARRAY ? schema_compile_array(c, flat) : SCHEMA_NEVER;
    c->guards--;
    rules[n++] = types & SCHEMA_TYPE_STRING ? schema_compile_string(c, flat) : SCHEMA_NEVER;
    rules[n++] = types & (SCHEMA_TYPE_INTEGER | SCHEMA_TYPE_FRACTION) ? schema_compile_number(c, flat, types & SCHEMA_TYPE_FRACTION)
                                                                      : SCHEMA_NEVER;
    rules[n++] = types & SCHEMA_TYPE_BOOLEAN ? SCHEMA_BOOLEAN : SCHEMA_NEVER;
    rules[n++] = types & SCHEMA_TYPE_NULL ? SCHEMA_NULL : SCHEMA_NEVER;
    int n_possible = 0, last = SCHEMA_NEVER;
    struct schema_text *text = schema_begin(c);
    for (int i = 0; i < n; i++)
        if (rules[i] != SCHEMA_NEVER) {
            schema_put(c, text, n_possible++ ? " |" : "");
            schema_put_rule(c, text, last = rules[i]);
        }
    if (n_possible > 1)
        return schema_end(c, text);
    schema_drop(c);
    return last;
}

/* ------------------------------------------------------------------------------------------------ public */

/* What is data, not a schema. */
static bool is_data(const char *keyword)
{
    return strcmp(keyword, "enum") == 0 || strcmp(keyword, "const") == 0 || strcmp(keyword, "default") == 0 ||
           strcmp(keyword, "examples") == 0;
}

static bool refers_to_root(const json_t *value)
{
    const char *key, *ref = json_string_value(json_object_get(value, "$ref"));
    const json_t *child;
    size_t i;
    bool found = ref && ref[0] == '#';
    json_object_foreach((json_t *)value, key, child) found = found || (!is_data(key) && refers_to_root(child));
    json_array_foreach(value, i, child) found = found || refers_to_root(child);
    return found;
}

/* In a schema with an $id, #/... begins there, not at the root. */
static void check_ids(struct schema_compiler *c, const json_t *value)
{
    const char *key, *id = json_string_value(json_object_get(value, "$id"));
    const json_t *child;
    size_t i;
    if (id && id[0] != '#' && value != c->root) {
        if (refers_to_root(value))
            schema_cannot(c, "$id", "$ref '#/...' within the schema with the $id '%.80s' is not supported", id);
        return;
    }
    json_object_foreach((json_t *)value, key, child) if (!is_data(key)) check_ids(c, child);
    json_array_foreach(value, i, child) check_ids(c, child);
}

static char *compile_root(struct schema_compiler *c)
{
    check_ids(c, c->root);
    const int rule = schema_compile(c, c->root);
    if (rule == SCHEMA_NEVER)
        schema_fail(c, "no JSON value can satisfy the schema");
    schema_check_ends(c, c->root);
    struct schema_text *text = schema_begin(c);
    schema_put_rule(c, text, rule);
    put_fixed_rules(c);
    schema_put(c, &c->rules, "root ::=%s\n", text->bytes);
    return c->rules.bytes;
}

char *schema_to_grammar(const json_t *schema, struct butler_error *err)
{
    return schema_to_wide_grammar(schema, NULL, err);
}

char *schema_to_wide_grammar(const json_t *schema, json_t *dropped, struct butler_error *err)
{
    struct schema_compiler *c = calloc(1, sizeof *c);
    char *volatile grammar = NULL; /* set behind setjmp */
    if (c) {
        c->err = err;
        c->root = schema;
        c->dropped = dropped;
        c->path[0] = '#';
        c->n_path = 1;
        c->made = json_array();
        c->memo = json_object();
    }
    if (!c || !c->made || !c->memo) {
        if (err) {
            err->code = BUTLER_ERROR_MEMORY;
            snprintf(err->message, sizeof err->message, "out of memory");
        }
    } else if (setjmp(c->failed) == 0)
        grammar = compile_root(c);
    else
        free(c->rules.bytes);
    if (c) {
        while (c->open)
            schema_drop(c);
        json_decref(c->made);
        json_decref(c->memo);
    }
    free(c);
    return grammar;
}

char *schema_text_to_grammar(const char *json, size_t n, struct butler_error *err)
{
    json_error_t error;
    json_t *schema = json_loadb(json, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &error);
    if (!schema) {
        if (err) {
            err->code = BUTLER_ERROR_FORMAT;
            snprintf(err->message, sizeof err->message, "the schema is not JSON: line %d, column %d: %.120s", error.line,
                     error.column, error.text);
        }
        return NULL;
    }
    char *grammar = schema_to_grammar(schema, err);
    json_decref(schema);
    return grammar;
}
