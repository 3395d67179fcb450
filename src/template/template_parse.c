/* Makes the syntax tree of a template from its tokens. */
#include <stdlib.h>
#include <string.h>

#include "template/template_parts.h"

struct parser {
    struct template_run *run;
    const struct template_token *at;
    int n_loops; /* around this place */
};

static struct template_node *parse_expression(struct parser *p, bool choose);

/* ------------------------------------------------------------------------------------------------- tokens */

static struct template_node *new_node(struct parser *p, enum template_node_kind kind)
{
    struct template_node *node = butler_template_alloc(p->run, sizeof *node);
    node->kind = kind;
    node->line = p->run->line = p->at->line;
    return node;
}

/* Before a TOKEN_EOF nothing is skipped, so at[1] exists wherever at[0] is of another kind. */
static bool is(const struct template_token *token, enum template_token_kind kind, const char *text)
{
    return token->kind == kind && butler_template_is(token->text, text);
}

static bool accept(struct parser *p, enum template_token_kind kind, const char *text)
{
    if (!is(p->at, kind, text))
        return false;
    p->at++;
    return true;
}

static _Noreturn void unexpected(struct parser *p, const char *wanted)
{
    p->run->line = p->at->line;
    if (p->at->kind == TOKEN_EOF)
        butler_template_fail(p->run, "the template ends where %s is expected", wanted);
    if (p->at->kind == TOKEN_DATA)
        butler_template_fail(p->run, "text where %s is expected", wanted);
    butler_template_fail(p->run, "'%.*s' where %s is expected", (int)BUTLER_MIN(p->at->text.n, 40), p->at->text.bytes, wanted);
}

static void expect(struct parser *p, enum template_token_kind kind, const char *text)
{
    char wanted[32] = "'";
    if (accept(p, kind, text))
        return;
    strncat(wanted, text, 20);
    unexpected(p, strcat(wanted, "'"));
}

static bool accept_operator(struct parser *p, const char *text)
{
    return accept(p, TOKEN_OPERATOR, text);
}

static struct template_text parse_name(struct parser *p)
{
    if (p->at->kind != TOKEN_NAME)
        unexpected(p, "a name");
    return p->at++->text;
}

static void append_node(struct template_node ***end, struct template_node *node)
{
    **end = node;
    *end = &node->next;
}

/* ---------------------------------------------------------------------------------------------- arguments */

/* What is between '(' and ')'; the first is consumed already. */
static struct template_node *parse_arguments(struct parser *p)
{
    struct template_node *first = NULL, **end = &first;
    while (!accept_operator(p, ")")) {
        struct template_node *argument = new_node(p, NODE_ARGUMENT);
        if (p->at->kind == TOKEN_NAME && is(p->at + 1, TOKEN_OPERATOR, "=")) {
            argument->text = p->at->text;
            p->at += 2;
        }
        argument->a = parse_expression(p, true);
        append_node(&end, argument);
        if (!is(p->at, TOKEN_OPERATOR, ")"))
            expect(p, TOKEN_OPERATOR, ",");
    }
    return first;
}

static struct template_node *parse_filter(struct parser *p, struct template_node *input)
{
    struct template_node *node = new_node(p, NODE_FILTER);
    node->a = input;
    node->text = parse_name(p);
    if (accept_operator(p, "("))
        node->first = parse_arguments(p);
    return node;
}

/* ------------------------------------------------------------------------------------------------- primary */

static struct template_node *literal(struct parser *p, struct template_value value)
{
    struct template_node *node = new_node(p, NODE_LITERAL);
    node->value = value;
    return node;
}

static struct template_node *parse_number(struct parser *p)
{
    const struct template_text text = p->at->text;
    char digits[64];
    size_t n = 0;
    bool real = false;
    for (size_t i = 0; i < text.n; i++) {
        if (n + 1 == sizeof digits)
            butler_template_fail(p->run, "a number has more than %zu digits", sizeof digits - 1);
        if (text.bytes[i] != '_')
            digits[n++] = text.bytes[i];
        real = real || (text.bytes[i] != '_' && (text.bytes[i] < '0' || text.bytes[i] > '9'));
    }
    digits[n] = 0;
    struct template_node *node = literal(p, template_real(real ? strtod(digits, NULL) : 0));
    int64_t integer = 0;
    for (size_t i = 0; i < n && !real; i++)
        if (__builtin_mul_overflow(integer, 10, &integer) || __builtin_add_overflow(integer, digits[i] - '0', &integer))
            butler_template_fail(p->run, "the number %s does not fit in 64 bits", digits);
    if (!real)
        node->value = template_integer(integer);
    p->at++;
    return node;
}

/* Neighbouring string literals are one. */
static struct template_node *parse_string(struct parser *p)
{
    struct template_node *node = literal(p, template_string(p->at++->text));
    if (p->at->kind != TOKEN_STRING)
        return node;
    struct template_buffer out = {0};
    butler_template_append(p->run, &out, node->value.text);
    while (p->at->kind == TOKEN_STRING)
        butler_template_append(p->run, &out, p->at++->text);
    node->value = template_string(template_taken(&out));
    return node;
}

static bool tuple_ends(const struct parser *p)
{
    return p->at->kind == TOKEN_END || p->at->kind == TOKEN_EOF || is(p->at, TOKEN_OPERATOR, ")") || is(p->at, TOKEN_NAME, "if") ||
           is(p->at, TOKEN_NAME, "recursive");
}

/* One expression, or several with commas, which make a tuple. */
static struct template_node *parse_tuple(struct parser *p, bool choose)
{
    struct template_node *first = parse_expression(p, choose);
    if (!is(p->at, TOKEN_OPERATOR, ","))
        return first;
    struct template_node *tuple = new_node(p, NODE_TUPLE), **end = &tuple->first;
    append_node(&end, first);
    while (accept_operator(p, ",") && !tuple_ends(p))
        append_node(&end, parse_expression(p, choose));
    return tuple;
}

static struct template_node *parse_parentheses(struct parser *p)
{
    if (is(p->at + 1, TOKEN_OPERATOR, ")")) {
        struct template_node *empty = new_node(p, NODE_TUPLE);
        p->at += 2;
        return empty;
    }
    p->at++;
    struct template_node *node = parse_tuple(p, true);
    expect(p, TOKEN_OPERATOR, ")");
    return node;
}

static struct template_node *parse_items(struct parser *p, bool is_dict)
{
    struct template_node *node = new_node(p, is_dict ? NODE_DICT : NODE_LIST), **end = &node->first;
    const char *close = is_dict ? "}" : "]";
    p->at++;
    while (!accept_operator(p, close)) {
        append_node(&end, parse_expression(p, true));
        if (is_dict) {
            expect(p, TOKEN_OPERATOR, ":");
            append_node(&end, parse_expression(p, true));
        }
        if (!is(p->at, TOKEN_OPERATOR, close))
            expect(p, TOKEN_OPERATOR, ",");
    }
    return node;
}

static struct template_node *parse_primary(struct parser *p)
{
    static const struct {
        const char *name;
        enum template_kind kind;
        bool value;
    } constants[] = {{"true", VALUE_BOOL, true},   {"True", VALUE_BOOL, true},  {"false", VALUE_BOOL, false},
                     {"False", VALUE_BOOL, false}, {"none", VALUE_NONE, false}, {"None", VALUE_NONE, false}};
    p->run->line = p->at->line;
    if (p->at->kind == TOKEN_STRING)
        return parse_string(p);
    if (p->at->kind == TOKEN_NUMBER)
        return parse_number(p);
    if (is(p->at, TOKEN_OPERATOR, "("))
        return parse_parentheses(p);
    if (is(p->at, TOKEN_OPERATOR, "[") || is(p->at, TOKEN_OPERATOR, "{"))
        return parse_items(p, is(p->at, TOKEN_OPERATOR, "{"));
    if (p->at->kind != TOKEN_NAME)
        unexpected(p, "an expression");
    struct template_node *node = new_node(p, NODE_NAME);
    node->text = parse_name(p);
    for (int i = 0; i < BUTLER_COUNT(constants); i++)
        if (butler_template_is(node->text, constants[i].name)) {
            node->kind = NODE_LITERAL;
            node->value = (struct template_value){.kind = constants[i].kind, .boolean = constants[i].value};
        }
    return node;
}

/* ------------------------------------------------------------------------------------------------- postfix */

/* a[b] or a[b:c:d]; '[' is consumed. */
static struct template_node *parse_subscript(struct parser *p, struct template_node *object)
{
    struct template_node *node = new_node(p, NODE_ITEM), *parts[3] = {NULL};
    int n = 0;
    node->a = object;
    for (;;) {
        if (!is(p->at, TOKEN_OPERATOR, ":") && !is(p->at, TOKEN_OPERATOR, "]"))
            parts[n] = parse_expression(p, true);
        if (n == 2 || !accept_operator(p, ":"))
            break;
        n++;
    }
    expect(p, TOKEN_OPERATOR, "]");
    if (n == 0) {
        node->b = parts[0];
        if (!node->b)
            unexpected(p, "an index");
        return node;
    }
    node->b = new_node(p, NODE_SLICE);
    node->b->a = parts[0];
    node->b->b = parts[1];
    node->b->c = parts[2];
    return node;
}

static struct template_node *parse_call(struct parser *p, struct template_node *function)
{
    struct template_node *node = new_node(p, NODE_APPLY);
    node->a = function;
    node->first = parse_arguments(p);
    return node;
}

static struct template_node *parse_postfix(struct parser *p, struct template_node *node)
{
    for (;;) {
        struct template_node *object = node;
        if (accept_operator(p, "[")) {
            node = parse_subscript(p, object);
        } else if (accept_operator(p, "(")) {
            node = parse_call(p, object);
        } else if (accept_operator(p, ".")) {
            node = new_node(p, p->at->kind == TOKEN_NUMBER ? NODE_ITEM : NODE_FIELD);
            node->a = object;
            if (node->kind == NODE_ITEM)
                node->b = parse_number(p);
            else
                node->text = parse_name(p);
        } else
            return node;
    }
}

/* Whether the token can begin the argument of a test without parentheses: `is divisibleby 3`. */
static bool begins_argument(const struct template_token *token)
{
    static const char *const words[] = {"else", "or", "and", "if", "is", "not", "in"};
    for (int i = 0; i < BUTLER_COUNT(words); i++)
        if (is(token, TOKEN_NAME, words[i]))
            return false;
    return token->kind == TOKEN_NAME || token->kind == TOKEN_STRING || token->kind == TOKEN_NUMBER ||
           is(token, TOKEN_OPERATOR, "[") || is(token, TOKEN_OPERATOR, "{");
}

/* a is [not] name(arguments); `is` is consumed. */
static struct template_node *parse_test(struct parser *p, struct template_node *value)
{
    struct template_node *negation = accept(p, TOKEN_NAME, "not") ? new_node(p, NODE_UNARY) : NULL;
    struct template_node *node = new_node(p, NODE_TEST);
    node->a = value;
    node->text = parse_name(p);
    if (accept_operator(p, "("))
        node->first = parse_arguments(p);
    else if (begins_argument(p->at)) {
        node->first = new_node(p, NODE_ARGUMENT);
        node->first->a = parse_postfix(p, parse_primary(p));
    }
    if (!negation)
        return node;
    negation->op = OP_NOT;
    negation->a = node;
    return negation;
}

static struct template_node *parse_unary(struct parser *p, bool filters)
{
    struct template_node *node;
    butler_template_enter(p->run);
    if (is(p->at, TOKEN_OPERATOR, "-") || is(p->at, TOKEN_OPERATOR, "+")) {
        node = new_node(p, NODE_UNARY);
        node->op = is(p->at++, TOKEN_OPERATOR, "-") ? OP_SUBTRACT : OP_ADD;
        node->a = parse_unary(p, false);
    } else
        node = parse_primary(p);
    node = parse_postfix(p, node);
    while (filters) {
        if (accept_operator(p, "|"))
            node = parse_filter(p, node);
        else if (accept(p, TOKEN_NAME, "is"))
            node = parse_test(p, node);
        else if (accept_operator(p, "("))
            node = parse_call(p, node);
        else
            break;
    }
    p->run->depth--;
    return node;
}

/* ----------------------------------------------------------------------------------------------- operators */

enum { LEVEL_OR = 1, LEVEL_AND, LEVEL_NOT, LEVEL_COMPARE, LEVEL_ADD, LEVEL_CONCAT, LEVEL_MULTIPLY, LEVEL_POWER };

static const struct infix {
    const char *text;
    enum template_token_kind kind;
    int level;
    enum template_operator op;
} operators[] = {
    {"or", TOKEN_NAME, LEVEL_OR, OP_OR},
    {"and", TOKEN_NAME, LEVEL_AND, OP_AND},
    {"in", TOKEN_NAME, LEVEL_COMPARE, OP_IN},
    {"not", TOKEN_NAME, LEVEL_COMPARE, OP_NOT_IN},
    {"==", TOKEN_OPERATOR, LEVEL_COMPARE, OP_EQUAL},
    {"!=", TOKEN_OPERATOR, LEVEL_COMPARE, OP_DIFFERENT},
    {"<", TOKEN_OPERATOR, LEVEL_COMPARE, OP_LESS},
    {"<=", TOKEN_OPERATOR, LEVEL_COMPARE, OP_LESS_EQUAL},
    {">", TOKEN_OPERATOR, LEVEL_COMPARE, OP_GREATER},
    {">=", TOKEN_OPERATOR, LEVEL_COMPARE, OP_GREATER_EQUAL},
    {"+", TOKEN_OPERATOR, LEVEL_ADD, OP_ADD},
    {"-", TOKEN_OPERATOR, LEVEL_ADD, OP_SUBTRACT},
    {"~", TOKEN_OPERATOR, LEVEL_CONCAT, OP_CONCAT},
    {"*", TOKEN_OPERATOR, LEVEL_MULTIPLY, OP_MULTIPLY},
    {"/", TOKEN_OPERATOR, LEVEL_MULTIPLY, OP_DIVIDE},
    {"//", TOKEN_OPERATOR, LEVEL_MULTIPLY, OP_FLOOR},
    {"%", TOKEN_OPERATOR, LEVEL_MULTIPLY, OP_MODULO},
    {"**", TOKEN_OPERATOR, LEVEL_POWER, OP_POWER},
};

/* The operator at this place, or NULL. */
static const struct infix *find_operator(const struct parser *p)
{
    for (int i = 0; i < BUTLER_COUNT(operators); i++)
        if (is(p->at, operators[i].kind, operators[i].text) && (operators[i].op != OP_NOT_IN || is(p->at + 1, TOKEN_NAME, "in")))
            return &operators[i];
    return NULL;
}

/* An expression of operators that bind at least as strongly as this level; all of them bind to the left. */
static struct template_node *parse_operators(struct parser *p, int level)
{
    const struct infix *infix;
    struct template_node *left, *compare = NULL, **end = NULL;
    butler_template_enter(p->run);
    if (level <= LEVEL_NOT && is(p->at, TOKEN_NAME, "not")) {
        left = new_node(p, NODE_UNARY);
        p->at++;
        left->op = OP_NOT;
        left->a = parse_operators(p, LEVEL_NOT);
    } else
        left = parse_unary(p, true);
    while ((infix = find_operator(p)) && infix->level >= level) {
        struct template_node *node = new_node(p, NODE_BINARY);
        p->at += infix->op == OP_NOT_IN ? 2 : 1;
        node->op = infix->op;
        node->b = parse_operators(p, infix->level + 1);
        if (infix->level != LEVEL_COMPARE) {
            node->a = left;
            left = node;
            continue;
        }
        if (compare != left || !compare) { /* a < b < c compares b only once, so that all are one node */
            compare = new_node(p, NODE_COMPARE);
            compare->a = left;
            end = &compare->first;
            left = compare;
        }
        append_node(&end, node);
    }
    p->run->depth--;
    return left;
}

/* choose: `a if b else c` is one too; it is not where an `if` may follow. */
static struct template_node *parse_expression(struct parser *p, bool choose)
{
    struct template_node *left = parse_operators(p, LEVEL_OR);
    butler_template_enter(p->run);
    while (choose && is(p->at, TOKEN_NAME, "if")) {
        struct template_node *node = new_node(p, NODE_CHOOSE);
        p->at++;
        node->a = left;
        node->b = parse_operators(p, LEVEL_OR);
        node->c = accept(p, TOKEN_NAME, "else") ? parse_expression(p, true) : NULL;
        left = node;
    }
    p->run->depth--;
    return left;
}

/* ---------------------------------------------------------------------------------------------- statements */

static struct template_node *parse_statement(struct parser *p);

/* Whether this is the tag {% name of one of the names. */
static bool at_tag(const struct parser *p, const char *const *names)
{
    if (!is(p->at, TOKEN_BEGIN, "{%"))
        return false;
    while (*names && !is(p->at + 1, TOKEN_NAME, *names))
        names++;
    return *names;
}

static void end_tag(struct parser *p)
{
    if (p->at->kind != TOKEN_END)
        unexpected(p, "the end of the tag");
    p->at++;
}

/* Statements up to a tag of one of these names, or to the end of the template (names NULL). */
static struct template_node *parse_body(struct parser *p, const char *const *names)
{
    struct template_node *first = NULL, **end = &first;
    butler_template_enter(p->run);
    while (p->at->kind != TOKEN_EOF && !(names && at_tag(p, names))) {
        struct template_node *node;
        if (p->at->kind == TOKEN_DATA) {
            node = new_node(p, NODE_DATA);
            node->text = p->at++->text;
        } else if (accept(p, TOKEN_BEGIN, "{{")) {
            node = new_node(p, NODE_OUTPUT);
            node->a = parse_tuple(p, true);
            end_tag(p);
        } else {
            expect(p, TOKEN_BEGIN, "{%");
            node = parse_statement(p);
        }
        append_node(&end, node);
    }
    if (names && p->at->kind == TOKEN_EOF)
        butler_template_fail(p->run, "the template ends without '%s'", names[0]);
    p->run->depth--;
    return first;
}

/* Statements up to {% name %}, and that tag. */
static struct template_node *parse_body_to(struct parser *p, const char *name)
{
    const char *const names[] = {name, NULL};
    struct template_node *body = parse_body(p, names);
    p->at += 2;
    end_tag(p);
    return body;
}

static struct template_node *parse_if(struct parser *p)
{
    static const char *const names[] = {"endif", "elif", "else", NULL};
    struct template_node *node = new_node(p, NODE_IF), **end = &node->first;
    for (bool more = true, has_condition = true; more;) {
        struct template_node *branch = new_node(p, NODE_BRANCH);
        if (has_condition)
            branch->a = parse_tuple(p, true);
        end_tag(p);
        branch->body = parse_body(p, names);
        append_node(&end, branch);
        p->at++;
        more = !is(p->at, TOKEN_NAME, "endif");
        if (more && !has_condition)
            unexpected(p, "'endif'");
        has_condition = is(p->at++, TOKEN_NAME, "elif");
    }
    end_tag(p);
    return node;
}

/* Names that a value is assigned to: a, or a, b, or namespace.field. */
static struct template_node *parse_target(struct parser *p, bool allow_field)
{
    const bool in_parentheses = accept_operator(p, "(");
    struct template_node *tuple = NULL, *first = NULL, **end = &first;
    do {
        if (tuple && p->at->kind != TOKEN_NAME) /* a comma at the end */
            break;
        struct template_node *node = new_node(p, NODE_NAME);
        node->text = parse_name(p);
        if (allow_field && !first && accept_operator(p, ".")) {
            struct template_node *field = new_node(p, NODE_FIELD);
            field->a = node;
            field->text = parse_name(p);
            return field;
        }
        append_node(&end, node);
        if (is(p->at, TOKEN_OPERATOR, ",") && !tuple)
            tuple = new_node(p, NODE_TUPLE);
    } while (accept_operator(p, ","));
    if (in_parentheses)
        expect(p, TOKEN_OPERATOR, ")");
    if (!tuple)
        return first;
    tuple->first = first;
    return tuple;
}

static struct template_node *parse_for(struct parser *p)
{
    static const char *const names[] = {"endfor", "else", NULL};
    struct template_node *node = new_node(p, NODE_FOR);
    node->a = parse_target(p, false);
    expect(p, TOKEN_NAME, "in");
    node->b = parse_tuple(p, false);
    if (accept(p, TOKEN_NAME, "if"))
        node->c = parse_expression(p, true);
    if (is(p->at, TOKEN_NAME, "recursive"))
        butler_template_fail(p->run, "recursive loops are not implemented");
    end_tag(p);
    p->n_loops++;
    node->body = parse_body(p, names);
    p->n_loops--;
    p->at++;
    if (is(p->at++, TOKEN_NAME, "else")) {
        end_tag(p);
        node->otherwise = parse_body_to(p, "endfor");
    } else
        end_tag(p);
    return node;
}

static struct template_node *parse_set(struct parser *p)
{
    struct template_node *node = new_node(p, NODE_SET);
    node->a = parse_target(p, true);
    if (accept_operator(p, "=")) {
        node->b = parse_tuple(p, true);
        end_tag(p);
        return node;
    }
    node->kind = NODE_SET_BLOCK;
    while (accept_operator(p, "|"))
        node->b = parse_filter(p, node->b);
    end_tag(p);
    node->body = parse_body_to(p, "endset");
    return node;
}

static struct template_node *parse_macro(struct parser *p)
{
    struct template_node *node = new_node(p, NODE_MACRO), **end = &node->first;
    const int n_loops = p->n_loops;
    node->text = parse_name(p);
    expect(p, TOKEN_OPERATOR, "(");
    while (!accept_operator(p, ")")) {
        struct template_node *argument = new_node(p, NODE_ARGUMENT);
        argument->text = parse_name(p);
        if (accept_operator(p, "="))
            argument->a = parse_expression(p, true);
        append_node(&end, argument);
        if (!is(p->at, TOKEN_OPERATOR, ")"))
            expect(p, TOKEN_OPERATOR, ",");
    }
    end_tag(p);
    p->n_loops = 0;
    node->body = parse_body_to(p, "endmacro");
    p->n_loops = n_loops;
    return node;
}

static struct template_node *parse_statement(struct parser *p)
{
    struct template_node *node;
    if (accept(p, TOKEN_NAME, "if"))
        return parse_if(p);
    if (accept(p, TOKEN_NAME, "for"))
        return parse_for(p);
    if (accept(p, TOKEN_NAME, "set"))
        return parse_set(p);
    if (accept(p, TOKEN_NAME, "macro"))
        return parse_macro(p);
    if (accept(p, TOKEN_NAME, "generation")) {
        node = new_node(p, NODE_IF); /* one branch without a condition: its body */
        node->first = new_node(p, NODE_BRANCH);
        end_tag(p);
        node->first->body = parse_body_to(p, "endgeneration");
        return node;
    }
    const bool is_break = is(p->at, TOKEN_NAME, "break");
    if (is_break || is(p->at, TOKEN_NAME, "continue")) {
        node = new_node(p, is_break ? NODE_BREAK : NODE_CONTINUE);
        if (!p->n_loops)
            butler_template_fail(p->run, "'%s' is outside of a loop", is_break ? "break" : "continue");
        p->at++;
        end_tag(p);
        return node;
    }
    p->run->line = p->at->line;
    butler_template_fail(p->run, "the tag '%.*s' is not known", (int)BUTLER_MIN(p->at->text.n, 40), p->at->text.bytes);
}

struct template_node *butler_template_parse(struct template_run *run, const struct template_token *tokens)
{
    struct parser parser = {.run = run, .at = tokens};
    return parse_body(&parser, NULL);
}
