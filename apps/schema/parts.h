/* Shared by the files of the schema compiler. */
#ifndef BUTLER_SCHEMA_PARTS_H
#define BUTLER_SCHEMA_PARTS_H

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>

#include "schema/schema.h"

/* A schema may come from anybody, so every resource has a bound. */
enum {
    SCHEMA_MAX_DEPTH = 128,     /* nested schemas, nested groups of a pattern */
    SCHEMA_MAX_STEPS = 200000,  /* schemas visited, keywords and properties copied */
    SCHEMA_MAX_TEXT = 1 << 20,  /* bytes of the grammar */
    SCHEMA_MAX_REPEATS = 65536, /* maxLength, maxItems, {n} of a pattern */
    SCHEMA_MAX_DIGITS = 18,     /* of an integer; the integers that are written fit int64_t */
};

#define SCHEMA_LARGEST INT64_C(999999999999999999) /* the largest integer of SCHEMA_MAX_DIGITS digits */

/* Rules that are the same in every grammar come first, by the name in compile.c; rule r is "r<number>" behind them. */
enum schema_rule {
    SCHEMA_MANY = -2,  /* the rules would be too many, or it is not supported */
    SCHEMA_NEVER = -1, /* no value can satisfy the schema */
    SCHEMA_WS,
    SCHEMA_HEX,
    SCHEMA_CHAR,
    SCHEMA_KEY_CHAR,
    SCHEMA_STRING,
    SCHEMA_INTEGER,
    SCHEMA_NUMBER,
    SCHEMA_BOOLEAN,
    SCHEMA_NULL,
    SCHEMA_MEMBER,
    SCHEMA_OBJECT,
    SCHEMA_ARRAY,
    SCHEMA_VALUE,
    SCHEMA_DATE,
    SCHEMA_TIME,
    SCHEMA_DATE_TIME,
    SCHEMA_UUID,
    SCHEMA_IPV4,
    SCHEMA_EMAIL,
    SCHEMA_IPV6,
    SCHEMA_HOSTNAME,
    SCHEMA_URI,
    SCHEMA_DURATION,
    SCHEMA_N_FIXED,
};

/* The body of a rule that is being written. */
struct schema_text {
    char *bytes;
    size_t n, max;
    struct schema_text *below; /* bodies that were begun earlier and are not complete */
};

struct schema_compiler {
    jmp_buf failed;
    struct butler_error *err;
    const json_t *root;
    json_t *dropped;          /* array of places of keywords that are not held; NULL: such a keyword is an error */
    json_t *made;             /* array: owns the schemas that merging made */
    json_t *memo;             /* what was compiled already, by reference or text: struct memo of compile.c packed in an integer */
    struct schema_text rules; /* complete rules */
    struct schema_text *open; /* the innermost body */
    bool used[SCHEMA_N_FIXED];
    int n_rules, depth, guards;   /* guards: objects and arrays around the present schema; each consumes a byte */
    uint64_t n_steps, n_compared; /* n_compared: values compared with others; 64 are a step */
    char path[1024];              /* of the present schema, for errors */
    size_t n_path;
    const json_t *flattening[SCHEMA_MAX_DEPTH]; /* targets of $ref that are being merged */
    int n_flattening;
};

_Noreturn void schema_no_memory(struct schema_compiler *c);
_Noreturn void schema_fail(struct schema_compiler *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* The keyword of the present schema cannot be held. An error, as schema_fail; or, where the caller of the compiler allows it, its
 * place is noted, and the caller of this function goes on without the keyword. */
void schema_cannot(struct schema_compiler *c, const char *keyword, const char *format, ...) __attribute__((format(printf, 3, 4)));
void schema_step(struct schema_compiler *c, size_t n); /* n units of work */
void schema_enter(struct schema_compiler *c);          /* one level deeper; the caller takes it back by depth-- */
/* Appends "/word" to the path. Returns its length before, to which the caller sets n_path again. */
size_t schema_path_push(struct schema_compiler *c, const char *word);
size_t schema_path_push_index(struct schema_compiler *c, const char *word, size_t index);
/* Registers a value that was made, so that it is freed at the end; fails where it is NULL. */
json_t *schema_keep(struct schema_compiler *c, json_t *made);

struct schema_text *schema_begin(struct schema_compiler *c);
/* Pieces of at most 255 bytes. */
void schema_put(struct schema_compiler *c, struct schema_text *text, const char *format, ...) __attribute__((format(printf, 3, 4)));
void schema_put_bytes(struct schema_compiler *c, struct schema_text *text, const char *bytes, size_t n);
void schema_put_rule(struct schema_compiler *c, struct schema_text *text, int rule);
const char *schema_value_text(struct schema_compiler *c, const json_t *value); /* as compact JSON; freed at the end */
/* A GBNF literal: bytes[n], whole characters; the value as compact JSON. */
void schema_put_literal(struct schema_compiler *c, struct schema_text *text, const char *bytes, size_t n);
void schema_put_value(struct schema_compiler *c, struct schema_text *text, const json_t *value);
/* enum.c: alternatives of an array's values, at least one. */
void schema_put_values(struct schema_compiler *c, struct schema_text *text, const json_t *list);
/* A character inside of a GBNF class. */
void schema_put_character(struct schema_compiler *c, struct schema_text *text, uint32_t code);
void schema_drop(struct schema_compiler *c); /* the innermost body, without a rule */
/* Ends the innermost body. Returns its rule. */
int schema_end(struct schema_compiler *c, struct schema_text *text);
void schema_end_as(struct schema_compiler *c, struct schema_text *text, int rule);

/* finite.c: fails where every value of the schema would contain itself without an end. */
void schema_check_ends(struct schema_compiler *c, const json_t *schema);
/* compile.c: the rule of a schema, or SCHEMA_NEVER. */
int schema_compile(struct schema_compiler *c, const json_t *schema);
/* Values of "enum" that "type" allows: an array. */
const json_t *schema_possible_values(struct schema_compiler *c, const json_t *flat);
/* The target of a $ref; the path becomes the target's. */
const json_t *schema_resolve(struct schema_compiler *c, const json_t *ref);
/* A keyword of the schema that must be a whole number >= 0; `otherwise` where it is absent. */
int64_t schema_count(struct schema_compiler *c, const json_t *schema, const char *name, int64_t otherwise);

/* merge.c: the schema without $ref and allOf, whose parts are merged into it. Refuses keywords that are not supported. */
json_t *schema_flatten(struct schema_compiler *c, const json_t *schema);
/* Both at once, of flat schemas. */
json_t *schema_merge(struct schema_compiler *c, const json_t *a, const json_t *b);
enum {
    SCHEMA_TYPE_NULL = 1,
    SCHEMA_TYPE_BOOLEAN = 2,
    SCHEMA_TYPE_OBJECT = 4,
    SCHEMA_TYPE_ARRAY = 8,
    SCHEMA_TYPE_STRING = 16,
    SCHEMA_TYPE_INTEGER = 32,
    SCHEMA_TYPE_FRACTION = 64, /* "number" is both */
    SCHEMA_TYPE_ALL = 127,
};
/* The types that "type" and "nullable" name, or where there is no type those that the other keywords describe, or all. */
unsigned schema_types(const json_t *flat);
/* Whether a value is in the array; 1 and 1.0 are one value. */
bool schema_contains(const json_t *array, const json_t *value);
/* Whether a keyword says something about values, rather than about the schema. */
bool schema_is_assertion(const char *keyword);

/* values.c, number.c, string.c, pattern.c: rules of flat schemas for values of one type. */
int schema_compile_object(struct schema_compiler *c, const json_t *flat);
int schema_compile_array(struct schema_compiler *c, const json_t *flat);
int schema_compile_number(struct schema_compiler *c, const json_t *flat, bool fractions);
int schema_compile_string(struct schema_compiler *c, const json_t *flat);
/* min, max: of the string's length; max -1: none. SCHEMA_MANY: the pattern is not supported, which is noted. */
int schema_compile_pattern(struct schema_compiler *c, const char *pattern, int64_t min, int64_t max);
/* unique.c: arrays of min to max (-1: any number) different ones of these values. SCHEMA_MANY: they are too many. */
int schema_compile_unique(struct schema_compiler *c, const json_t *values, int64_t min, int64_t max);
/* Alternatives of integers low..high, 0 <= low <= high, without leading zeros. */
void schema_put_range(struct schema_compiler *c, struct schema_text *text, int64_t low, int64_t high);
/* number_multiple.c: the multiples from low to high. SCHEMA_MANY: their rules would be too many. */
int schema_compile_multiple(struct schema_compiler *c, int64_t of, int64_t low, int64_t high);
/* number_decimal.c: a number as its digits. */
struct schema_decimal {
    bool negative, exclusive; /* exclusive: as a bound */
    int64_t whole;
    char fraction[16];
    int n_fraction; /* digits, the last of which is not 0 */
};
/* False: it has too many digits. */
bool schema_read_decimal(struct schema_compiler *c, const json_t *value, struct schema_decimal *out);
/* Alternatives, each begun with *bar: the numbers from |low| to |high|, behind a sign or "". */
void schema_put_decimals(struct schema_compiler *c, struct schema_text *text, const char **bar, const char *sign,
                         const struct schema_decimal *low, const struct schema_decimal *high);

#endif
