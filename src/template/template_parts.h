/* What the files of the template interpreter share: values, syntax trees, and the state of one rendering.
 *
 * A template passes through template_lex.c (text to tokens), template_parse.c (tokens to a syntax tree) and template_eval.c (walks
 * the tree), with template_text.c and template_value.c (values), template_json.c, template_filters.c (filters and tests) and
 * template_methods.c (methods and functions). All memory of a rendering comes from one arena that is freed at its end. A failure
 * is a longjmp back to template.c, so that the functions below only return when they have worked. */
#ifndef BUTLER_TEMPLATE_PARTS_H
#define BUTLER_TEMPLATE_PARTS_H

#include <setjmp.h>

#include "base/util.h"
#include "template/template.h"

/* ------------------------------------------------------------------------------------------------ values */

enum template_kind {
    VALUE_UNDEFINED,
    VALUE_NONE,
    VALUE_BOOL,
    VALUE_INTEGER,
    VALUE_FLOAT,
    VALUE_STRING,
    VALUE_LIST,
    VALUE_TUPLE,
    VALUE_DICT,
    VALUE_NAMESPACE,
    VALUE_LOOP,
    VALUE_FUNCTION,
};

/* UTF-8 text; never changed after it is made. marks[i] is 1 where byte i was written by the template, 0 where it came from a
 * message: operations on text carry the marks along. */
struct template_text {
    const char *bytes, *marks;
    size_t n;
};

struct template_value {
    enum template_kind kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct template_text text; /* of VALUE_STRING; of VALUE_UNDEFINED the name that is not defined */
        struct template_list *list;
        struct template_dict *dict; /* of VALUE_DICT and VALUE_NAMESPACE */
        struct template_loop *loop;
        const struct template_function *function;
    };
};

struct template_list {
    struct template_value *items;
    size_t n, capacity;
};

/* In the order of insertion. Searched from the front: published templates see a dozen keys. */
struct template_dict {
    struct template_entry {
        struct template_value key, value;
    } * entries;
    size_t n, capacity;
};

/* The variable `loop` of a for statement. */
struct template_loop {
    const struct template_list *items;
    size_t index; /* from 0 */
};

struct template_run;

/* Arguments of a function, a method, a filter or a test. named: keys are strings. */
struct template_call {
    const struct template_value *args;
    size_t n;
    const struct template_dict *named;
};

/* self: the object of a method, the input of a filter or a test. */
typedef struct template_value template_builtin_fn(struct template_run *run, struct template_value self,
                                                  const struct template_call *call);
struct template_builtin {
    const char *name;
    template_builtin_fn *fn;
};

/* Something that can be called: a built-in function or method with its object, or a macro. */
struct template_function {
    const struct template_builtin *builtin; /* NULL: a macro */
    struct template_value self;
    const struct template_node *macro;
    struct template_scope *scope; /* where the macro was defined */
};

struct template_scope {
    struct template_scope *parent;
    struct template_dict variables;
};

/* --------------------------------------------------------------------------------------------- syntax tree */

enum template_token_kind { TOKEN_DATA, TOKEN_BEGIN, TOKEN_END, TOKEN_NAME, TOKEN_STRING, TOKEN_NUMBER, TOKEN_OPERATOR, TOKEN_EOF };

/* TOKEN_BEGIN and TOKEN_END: text is "{{", "{%", "}}" or "%}". TOKEN_STRING: text is what the literal means. */
struct template_token {
    enum template_token_kind kind;
    int line;
    struct template_text text;
};

enum template_node_kind {
    /* statements */
    NODE_DATA,      /* text */
    NODE_OUTPUT,    /* {{ a }} */
    NODE_IF,        /* first: NODE_BRANCH, tried in order */
    NODE_BRANCH,    /* a: the condition, NULL: else; body */
    NODE_FOR,       /* for a in b if c; body; otherwise */
    NODE_SET,       /* set a = b */
    NODE_SET_BLOCK, /* set a, b: filters or NULL; body; endset */
    NODE_MACRO,     /* text(first: NODE_ARGUMENT with defaults); body */
    NODE_BREAK,
    NODE_CONTINUE,
    /* expressions */
    NODE_LITERAL, /* value */
    NODE_NAME,    /* text */
    NODE_LIST,    /* first */
    NODE_TUPLE,   /* first */
    NODE_DICT,    /* first: key, value, key, value */
    NODE_UNARY,   /* op a: '-', '+' or 'n'ot */
    NODE_BINARY,  /* a op b */
    NODE_COMPARE, /* a, first: NODE_BINARY with op and b */
    NODE_CHOOSE,  /* a if b else c, which may be NULL */
    NODE_FIELD,   /* a.text */
    NODE_ITEM,    /* a[b] */
    NODE_SLICE,   /* of NODE_ITEM: a:b:c, each may be NULL */
    NODE_APPLY,   /* a(first: NODE_ARGUMENT) */
    NODE_FILTER,  /* a | text(first); a NULL: the text of a block set */
    NODE_TEST,    /* a is text(first) */
    NODE_ARGUMENT /* text = a, or a alone with text empty */
};

enum template_operator {
    OP_NONE,
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR,
    OP_MODULO,
    OP_POWER,
    OP_CONCAT,
    OP_AND,
    OP_OR,
    OP_NOT,
    OP_EQUAL,
    OP_DIFFERENT,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN,
};

struct template_node {
    enum template_node_kind kind;
    enum template_operator op;
    int line;
    struct template_text text;
    struct template_value value;
    struct template_node *a, *b, *c, *first, *body, *otherwise;
    struct template_node *next; /* in the list that this node belongs to */
};

/* --------------------------------------------------------------------------------------------- the rendering */

/* A template comes with a file that anybody may have made, so every resource has a bound. Published templates have at most some
 * ten thousand bytes and take some thousand steps for each message. */
enum {
    TEMPLATE_MAX_BYTES = 1 << 20,
    TEMPLATE_MAX_DEPTH = 500,     /* nested syntax, nested calls, nested values */
    TEMPLATE_MAX_STEPS = 3000000, /* evaluated nodes and visited items, and one for each TEMPLATE_STEP_BYTES processed bytes */
    TEMPLATE_STEP_BYTES = 64,
    TEMPLATE_MAX_RANGE = 100000,
    TEMPLATE_MEMORY = 64 << 20, /* bytes of the arena, plus TEMPLATE_MEMORY_PER_BYTE for each byte of input */
    TEMPLATE_MEMORY_PER_BYTE = 64,
};

struct template_buffer {
    char *bytes, *marks;
    size_t n, capacity;
};

struct template_run {
    jmp_buf failed;
    struct butler_error *err; /* never NULL */
    int line;                 /* of the node being parsed or evaluated; 0: none */
    int depth;
    uint64_t n_steps, max_steps;
    struct template_block *blocks; /* the arena */
    size_t n_allocated, max_allocated;
    struct template_buffer *out;
    int64_t now; /* seconds since 1970, for strftime_now */
};

/* Ends the rendering with an error that names the line. */
void butler_template_fail(struct template_run *run, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));
void *butler_template_alloc(struct template_run *run, size_t n_bytes); /* zeroed */
/* Room for one more element in array[n]: the array itself, or a larger copy of it. *capacity: in elements. */
void *butler_template_grow(struct template_run *run, void *array, size_t n, size_t *capacity, size_t element);
/* n more bytes of input: the bounds on memory and time grow with them. */
void butler_template_allow(struct template_run *run, size_t n);
void butler_template_step(struct template_run *run, size_t n); /* n units of work, for the bound on time */
void butler_template_enter(struct template_run *run);          /* one level deeper; the caller takes it back by depth-- */

/* ------------------------------------------------------------------------------------- text (template_text.c) */

struct template_text butler_template_copy(struct template_run *run, const char *bytes, size_t n, bool is_template);
struct template_text butler_template_literal(struct template_run *run, const char *string); /* written by the template */
static inline struct template_text template_part(struct template_text text, size_t from, size_t n)
{
    return (struct template_text){text.bytes + from, text.marks + from, n};
}
bool butler_template_same(struct template_text a, struct template_text b);
bool butler_template_is(struct template_text text, const char *string);
/* Where `what` begins in text[from..], or SIZE_MAX. */
size_t butler_template_find(struct template_run *run, struct template_text text, struct template_text what, size_t from);
/* Bytes of the first character of text[n], n > 0; an invalid byte is a character of its own. */
size_t butler_template_char(const char *bytes, size_t n);
size_t butler_template_n_chars(struct template_run *run, struct template_text text);
/* Bytes of the white space character (as Python's str.isspace) that the text begins with, or ends with; 0: none. */
size_t butler_template_space(struct template_text text, bool at_end);
/* Bytes of the first line, without its end; *n_end: bytes of that (as Python's splitlines), 0: the text ends there. */
size_t butler_template_line(struct template_text text, size_t *n_end);
/* Without the characters of set (NULL: white space) at the chosen ends. */
struct template_text butler_template_strip(struct template_run *run, struct template_text text, const struct template_text *set,
                                           bool left, bool right);
struct template_text butler_template_replace(struct template_run *run, struct template_text text, struct template_text from,
                                             struct template_text to, int64_t max);
/* Of one character of a text: whether it is a letter, of any script. */
bool butler_template_is_letter(struct template_text character);
/* Whether the text has letters with cases and all are of this one. */
bool butler_template_has_case(struct template_run *run, struct template_text text, bool upper);

enum template_case { CASE_LOWER, CASE_UPPER, CASE_CAPITAL, CASE_TITLE_METHOD, CASE_TITLE_FILTER };
/* Each character by itself: one that has two letters as a capital stays. */
struct template_text butler_template_to_case(struct template_run *run, struct template_text text, enum template_case which);

void butler_template_append(struct template_run *run, struct template_buffer *buffer, struct template_text text);
/* Appends text that an operation made; it counts as a message's. */
void butler_template_append_made(struct template_run *run, struct template_buffer *buffer, const char *bytes, size_t n);
static inline struct template_text template_taken(const struct template_buffer *buffer)
{
    return buffer->n ? (struct template_text){buffer->bytes, buffer->marks, buffer->n} : (struct template_text){"", "", 0};
}

/* ------------------------------------------------------------------------------ values (template_value.c) */

static inline struct template_value template_integer(int64_t value)
{
    return (struct template_value){.kind = VALUE_INTEGER, .integer = value};
}
static inline struct template_value template_real(double value)
{
    return (struct template_value){.kind = VALUE_FLOAT, .real = value};
}
static inline struct template_value template_bool(bool value)
{
    return (struct template_value){.kind = VALUE_BOOL, .boolean = value};
}
static inline struct template_value template_string(struct template_text text)
{
    return (struct template_value){.kind = VALUE_STRING, .text = text};
}
static inline struct template_value template_none(void)
{
    return (struct template_value){.kind = VALUE_NONE};
}
static inline struct template_value template_undefined(struct template_text name)
{
    return (struct template_value){.kind = VALUE_UNDEFINED, .text = name};
}
struct template_value butler_template_list(struct template_run *run, enum template_kind kind); /* empty */
void butler_template_push(struct template_run *run, struct template_list *list, struct template_value value);
struct template_value butler_template_dict(struct template_run *run, enum template_kind kind); /* empty */
/* NULL: the key is not there. */
struct template_value *butler_template_get(struct template_run *run, const struct template_dict *dict, struct template_value key);
void butler_template_put(struct template_run *run, struct template_dict *dict, struct template_value key,
                         struct template_value value);
void butler_template_put_name(struct template_run *run, struct template_dict *dict, const char *name, struct template_value value);

const char *butler_template_kind_name(struct template_value value);
bool butler_template_true(struct template_value value);
bool butler_template_equal(struct template_run *run, struct template_value a, struct template_value b);
int butler_template_compare(struct template_run *run, struct template_value a, struct template_value b); /* < 0, 0, > 0 */
bool butler_template_is_number(struct template_value value);                                             /* or a bool */
double butler_template_to_real(struct template_value value);                                             /* of a number */
int64_t butler_template_to_integer(struct template_run *run, struct template_value value, const char *what);
/* As Python's str() and repr(). */
struct template_text butler_template_to_text(struct template_run *run, struct template_value value);
void butler_template_repr(struct template_run *run, struct template_buffer *out, struct template_value value);
void butler_template_write_float(struct template_run *run, struct template_buffer *out, double value); /* as Python writes it */
/* The items of a list, the keys of a dict, the characters of a string; none of what is undefined. */
const struct template_list *butler_template_items(struct template_run *run, struct template_value value);
bool butler_template_contains(struct template_run *run, struct template_value container, struct template_value item);

/* ------------------------------------------------------------------------------------------ other files */

/* what: names the text in an error. */
struct template_value butler_template_read_json(struct template_run *run, const char *what, const char *json);
/* The same value as from its text. */
struct template_value butler_template_take_json(struct template_run *run, const struct butler_json *json);
template_builtin_fn butler_template_to_json; /* the filter */

const struct template_token *butler_template_lex(struct template_run *run, const char *source, size_t n);
struct template_node *butler_template_parse(struct template_run *run, const struct template_token *tokens);
void butler_template_eval(struct template_run *run, const struct template_node *nodes, struct template_scope *scope);

struct template_value butler_template_apply(struct template_run *run, struct template_value function,
                                            const struct template_call *call);
struct template_value butler_template_field(struct template_run *run, struct template_value value, struct template_text name);
struct template_value butler_template_item(struct template_run *run, struct template_value value, struct template_value key);
struct template_value butler_template_add(struct template_run *run, struct template_value a, struct template_value b);

extern const struct template_builtin butler_template_filters[]; /* ends with name NULL */
/* Fail where there is none of this name. */
const struct template_builtin *butler_template_find_filter(struct template_run *run, struct template_text name);
const struct template_builtin *butler_template_find_test(struct template_run *run, struct template_text name);
/* NULL: there is none. */
const struct template_builtin *butler_template_find_method(enum template_kind kind, struct template_text name);
const struct template_builtin *butler_template_find_function(struct template_text name);
const struct template_builtin *butler_template_find_builtin(const struct template_builtin *table, struct template_text name);

/* The argument at position i or of this name (NULL: only by position), or NULL. */
const struct template_value *butler_template_argument(struct template_run *run, const struct template_call *call, size_t i,
                                                      const char *name);
/* The same, which must be a string; `otherwise` where it is not given (NULL: it must be). */
struct template_text butler_template_text_argument(struct template_run *run, const struct template_call *call, size_t i,
                                                   const char *name, const char *otherwise);
int64_t butler_template_integer_argument(struct template_run *run, const struct template_call *call, size_t i, const char *name,
                                         int64_t otherwise);
bool butler_template_bool_argument(struct template_run *run, const struct template_call *call, size_t i, const char *name);

#endif
