/* Walks the syntax tree of a template and writes what it renders. */
#include <math.h>
#include <string.h>

#include "template/template_parts.h"

enum flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE };

static struct template_value eval(struct template_run *run, const struct template_node *node, struct template_scope *scope);
static enum flow exec(struct template_run *run, const struct template_node *nodes, struct template_scope *scope);

/* ------------------------------------------------------------------------------------------------- names */

/* Scopes and loops live in the arena: a macro or a namespace may hold on to them. */
static struct template_scope *new_scope(struct template_run *run, struct template_scope *parent)
{
    struct template_scope *scope = butler_template_alloc(run, sizeof *scope);
    scope->parent = parent;
    return scope;
}

static struct template_value look_up(struct template_run *run, struct template_text name, const struct template_scope *scope)
{
    for (; scope; scope = scope->parent) {
        const struct template_value *value = butler_template_get(run, &scope->variables, template_string(name));
        if (value)
            return *value;
    }
    const struct template_builtin *builtin = butler_template_find_function(name);
    if (!builtin)
        return template_undefined(name);
    struct template_function *function = butler_template_alloc(run, sizeof *function);
    function->builtin = builtin;
    return (struct template_value){.kind = VALUE_FUNCTION, .function = function};
}

static struct template_value loop_field(const struct template_loop *loop, struct template_text name)
{
    const size_t i = loop->index, n = loop->items->n;
    if (butler_template_is(name, "index"))
        return template_integer((int64_t)i + 1);
    if (butler_template_is(name, "index0"))
        return template_integer((int64_t)i);
    if (butler_template_is(name, "revindex"))
        return template_integer((int64_t)(n - i));
    if (butler_template_is(name, "revindex0"))
        return template_integer((int64_t)(n - i) - 1);
    if (butler_template_is(name, "length"))
        return template_integer((int64_t)n);
    if (butler_template_is(name, "first"))
        return template_bool(i == 0);
    if (butler_template_is(name, "last"))
        return template_bool(i + 1 == n);
    if (butler_template_is(name, "depth") || butler_template_is(name, "depth0")) /* of recursive loops, which are not here */
        return template_integer(name.n == 5);
    if (butler_template_is(name, "previtem") && i > 0)
        return loop->items->items[i - 1];
    if (butler_template_is(name, "nextitem") && i + 1 < n)
        return loop->items->items[i + 1];
    return template_undefined(name);
}

static struct template_value find_method(struct template_run *run, struct template_value object, struct template_text name)
{
    const struct template_builtin *builtin = butler_template_find_method(object.kind, name);
    if (!builtin)
        return template_undefined(name);
    struct template_function *function = butler_template_alloc(run, sizeof *function);
    function->builtin = builtin;
    function->self = object;
    return (struct template_value){.kind = VALUE_FUNCTION, .function = function};
}

static _Noreturn void fail_undefined(struct template_run *run, struct template_text name)
{
    butler_template_fail(run, "'%.*s' is undefined", (int)BUTLER_MIN(name.n, 60), name.bytes);
}

struct template_value butler_template_field(struct template_run *run, struct template_value value, struct template_text name)
{
    if (value.kind == VALUE_UNDEFINED)
        fail_undefined(run, value.text);
    const struct template_value method = find_method(run, value, name);
    if (method.kind != VALUE_UNDEFINED)
        return method;
    if (value.kind == VALUE_LOOP)
        return loop_field(value.loop, name);
    const bool has_fields = value.kind == VALUE_DICT || value.kind == VALUE_NAMESPACE;
    const struct template_value *found = has_fields ? butler_template_get(run, value.dict, template_string(name)) : NULL;
    return found ? *found : template_undefined(name);
}

/* Characters [from, to) of the text. */
static struct template_text chars(struct template_text text, size_t from, size_t to)
{
    size_t at = 0, start = 0;
    for (size_t i = 0; i < to && at < text.n; i++) {
        start = i == from ? at : start;
        at += butler_template_char(text.bytes + at, text.n - at);
    }
    return from < to ? template_part(text, start, at - start) : template_part(text, 0, 0);
}

struct template_value butler_template_item(struct template_run *run, struct template_value value, struct template_value key)
{
    const bool is_list = value.kind == VALUE_LIST || value.kind == VALUE_TUPLE;
    const struct template_value *found = value.kind == VALUE_DICT ? butler_template_get(run, value.dict, key) : NULL;
    if (found)
        return *found;
    if (value.kind == VALUE_UNDEFINED)
        fail_undefined(run, value.text);
    if ((is_list || value.kind == VALUE_STRING) && (key.kind == VALUE_INTEGER || key.kind == VALUE_BOOL)) {
        const int64_t n = (int64_t)(is_list ? value.list->n : butler_template_n_chars(run, value.text));
        int64_t i = butler_template_to_integer(run, key, "the index");
        i += i < 0 ? n : 0;
        if (i >= 0 && i < n)
            return is_list ? value.list->items[i] : template_string(chars(value.text, (size_t)i, (size_t)i + 1));
    }
    if (key.kind == VALUE_STRING)
        return butler_template_field(run, value, key.text);
    return template_undefined(butler_template_literal(run, "an item"));
}

/* --------------------------------------------------------------------------------------------------- calls */

static const struct template_call *eval_arguments(struct template_run *run, const struct template_node *node,
                                                  struct template_scope *scope)
{
    struct template_call *call = butler_template_alloc(run, sizeof *call);
    struct template_list *args = butler_template_list(run, VALUE_LIST).list;
    struct template_dict *named = butler_template_dict(run, VALUE_DICT).dict;
    for (; node; node = node->next) {
        const struct template_value value = eval(run, node->a, scope);
        if (node->text.n)
            butler_template_put(run, named, template_string(node->text), value);
        else if (named->n)
            butler_template_fail(run, "an argument without a name follows one with a name");
        else
            butler_template_push(run, args, value);
    }
    *call = (struct template_call){args->items, args->n, named};
    return call;
}

/* The text that the nodes render. */
static struct template_text capture(struct template_run *run, const struct template_node *nodes, struct template_scope *scope)
{
    struct template_buffer out = {0}, *before = run->out;
    run->out = &out;
    exec(run, nodes, scope);
    run->out = before;
    return template_taken(&out);
}

static struct template_value call_macro(struct template_run *run, const struct template_function *function,
                                        const struct template_call *call)
{
    const struct template_node *macro = function->macro;
    struct template_scope *scope = new_scope(run, function->scope);
    size_t n = 0, n_named = 0;
    butler_template_enter(run);
    for (const struct template_node *a = macro->first; a; a = a->next, n++) {
        const struct template_value *given = butler_template_get(run, call->named, template_string(a->text));
        n_named += given != NULL;
        if (given && n < call->n)
            butler_template_fail(run, "macro '%.*s' gets an argument twice", (int)macro->text.n, macro->text.bytes);
        const struct template_value value = n < call->n ? call->args[n]
                                            : given     ? *given
                                            : a->a      ? eval(run, a->a, scope)
                                                        : template_undefined(a->text);
        butler_template_put(run, &scope->variables, template_string(a->text), value);
    }
    if (call->n > n || n_named < call->named->n)
        butler_template_fail(run, "macro '%.*s' has no such argument", (int)macro->text.n, macro->text.bytes);
    const struct template_text text = capture(run, macro->body, scope);
    run->depth--;
    return template_string(text);
}

struct template_value butler_template_apply(struct template_run *run, struct template_value function,
                                            const struct template_call *call)
{
    if (function.kind == VALUE_UNDEFINED)
        fail_undefined(run, function.text);
    if (function.kind != VALUE_FUNCTION)
        butler_template_fail(run, "%s cannot be called", butler_template_kind_name(function));
    if (!function.function->builtin)
        return call_macro(run, function.function, call);
    return function.function->builtin->fn(run, function.function->self, call);
}

static struct template_value eval_filter(struct template_run *run, const struct template_node *node, struct template_value input,
                                         struct template_scope *scope)
{
    const struct template_builtin *filter = butler_template_find_filter(run, node->text);
    const struct template_call *call = eval_arguments(run, node->first, scope);
    run->line = node->line;
    return filter->fn(run, input, call);
}

static struct template_value eval_test(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_builtin *test = butler_template_find_test(run, node->text);
    const struct template_value value = eval(run, node->a, scope);
    const struct template_call *call = eval_arguments(run, node->first, scope);
    run->line = node->line;
    return test->fn(run, value, call);
}

/* -------------------------------------------------------------------------------------------------- slices */

/* The place that a bound of a slice means in n items; `otherwise` where it is not given. */
static int64_t slice_bound(struct template_run *run, struct template_value bound, int64_t n, bool backwards, int64_t otherwise)
{
    if (bound.kind == VALUE_NONE)
        return otherwise;
    int64_t i = butler_template_to_integer(run, bound, "a bound of a slice");
    i += i < 0 ? n : 0;
    return BUTLER_MAX(backwards ? -1 : 0, BUTLER_MIN(i, backwards ? n - 1 : n));
}

static struct template_value eval_slice(struct template_run *run, const struct template_node *node, struct template_value value,
                                        struct template_scope *scope)
{
    struct template_value bounds[3];
    const struct template_node *const nodes[] = {node->a, node->b, node->c};
    for (int i = 0; i < 3; i++)
        bounds[i] = nodes[i] ? eval(run, nodes[i], scope) : template_none();
    if (value.kind != VALUE_LIST && value.kind != VALUE_TUPLE && value.kind != VALUE_STRING) {
        if (value.kind == VALUE_UNDEFINED)
            fail_undefined(run, value.text);
        butler_template_fail(run, "%s has no slices", butler_template_kind_name(value));
    }
    const bool is_text = value.kind == VALUE_STRING;
    const int64_t n = (int64_t)(is_text ? butler_template_n_chars(run, value.text) : value.list->n);
    const int64_t step = bounds[2].kind == VALUE_NONE ? 1 : butler_template_to_integer(run, bounds[2], "the step of a slice");
    if (step == 0)
        butler_template_fail(run, "the step of a slice is 0");
    const int64_t from = slice_bound(run, bounds[0], n, step < 0, step < 0 ? n - 1 : 0);
    const int64_t to = slice_bound(run, bounds[1], n, step < 0, step < 0 ? -1 : n);
    if (is_text && step == 1)
        return template_string(chars(value.text, (size_t)from, (size_t)BUTLER_MAX(from, to)));
    const struct template_list *items = butler_template_items(run, value);
    struct template_value out = butler_template_list(run, is_text ? VALUE_LIST : value.kind);
    struct template_buffer text = {0};
    const int64_t count = step > 0 ? (to > from ? (to - from - 1) / step + 1 : 0)
                                   : (from > to ? (int64_t)((uint64_t)(from - to - 1) / (0 - (uint64_t)step)) + 1 : 0);
    for (int64_t k = 0; k < count; k++) {
        const struct template_value item = items->items[from + k * step];
        if (is_text)
            butler_template_append(run, &text, item.text);
        else
            butler_template_push(run, out.list, item);
    }
    return is_text ? template_string(template_taken(&text)) : out;
}

/* ---------------------------------------------------------------------------------------------- operators */

static _Noreturn void refuse_operands(struct template_run *run, const char *what, struct template_value a, struct template_value b)
{
    if (a.kind == VALUE_UNDEFINED || b.kind == VALUE_UNDEFINED)
        fail_undefined(run, a.kind == VALUE_UNDEFINED ? a.text : b.text);
    butler_template_fail(run, "%s of %s and %s is not possible", what, butler_template_kind_name(a), butler_template_kind_name(b));
}

static const char *const operator_names[] = {
    [OP_ADD] = "the sum",    [OP_SUBTRACT] = "the difference", [OP_MULTIPLY] = "the product", [OP_DIVIDE] = "the quotient",
    [OP_FLOOR] = "the '//'", [OP_MODULO] = "the '%'",          [OP_POWER] = "the power",
};

static struct template_value integer_power(struct template_run *run, int64_t a, int64_t b)
{
    int64_t result = 1;
    if (b < 0)
        return template_real(pow((double)a, (double)b));
    for (; b > 0; b--) {
        if (__builtin_mul_overflow(result, a, &result))
            butler_template_fail(run, "the power does not fit in 64 bits");
        if (a >= -1 && a <= 1) /* only its parity matters */
            b = b % 2 ? 1 : b - 1 > 0 ? 2 : 1;
    }
    return template_integer(result);
}

static struct template_value integer_operation(struct template_run *run, enum template_operator op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    if ((op == OP_DIVIDE || op == OP_FLOOR || op == OP_MODULO) && b == 0)
        butler_template_fail(run, "division by zero");
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case OP_SUBTRACT:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case OP_MULTIPLY:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case OP_DIVIDE:
        return template_real((double)a / (double)b);
    case OP_FLOOR:
        overflow = a == INT64_MIN && b == -1;
        result = overflow ? 0 : a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case OP_MODULO:
        result = b == -1 ? 0 : a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        break;
    default:
        return integer_power(run, a, b);
    }
    if (overflow)
        butler_template_fail(run, "%s does not fit in 64 bits", operator_names[op]);
    return template_integer(result);
}

static struct template_value real_operation(struct template_run *run, enum template_operator op, double a, double b)
{
    if ((op == OP_DIVIDE || op == OP_FLOOR || op == OP_MODULO) && b == 0)
        butler_template_fail(run, "division by zero");
    switch (op) {
    case OP_ADD:
        return template_real(a + b);
    case OP_SUBTRACT:
        return template_real(a - b);
    case OP_MULTIPLY:
        return template_real(a * b);
    case OP_DIVIDE:
        return template_real(a / b);
    case OP_FLOOR:
        return template_real(floor(a / b));
    case OP_MODULO:
        return template_real(a - b * floor(a / b));
    default:
        return template_real(pow(a, b));
    }
}

static struct template_value join_lists(struct template_run *run, struct template_value a, struct template_value b)
{
    struct template_value out = butler_template_list(run, a.kind);
    for (size_t i = 0; i < a.list->n + b.list->n; i++)
        butler_template_push(run, out.list, i < a.list->n ? a.list->items[i] : b.list->items[i - a.list->n]);
    return out;
}

static struct template_value join_text(struct template_run *run, struct template_value a, struct template_value b)
{
    struct template_buffer out = {0};
    butler_template_append(run, &out, butler_template_to_text(run, a));
    butler_template_append(run, &out, butler_template_to_text(run, b));
    return template_string(template_taken(&out));
}

static struct template_value repeat(struct template_run *run, struct template_value value, int64_t times)
{
    struct template_buffer text = {0};
    struct template_value out = butler_template_list(run, value.kind == VALUE_STRING ? VALUE_LIST : value.kind);
    const size_t n = value.kind == VALUE_STRING ? value.text.n : value.list->n;
    for (int64_t i = 0; i < times && n > 0; i++) {
        butler_template_step(run, 1);
        if (value.kind == VALUE_STRING)
            butler_template_append(run, &text, value.text);
        for (size_t k = 0; value.kind != VALUE_STRING && k < n; k++)
            butler_template_push(run, out.list, value.list->items[k]);
    }
    return value.kind == VALUE_STRING ? template_string(template_taken(&text)) : out;
}

static bool is_sequence(struct template_value value)
{
    return value.kind == VALUE_STRING || value.kind == VALUE_LIST || value.kind == VALUE_TUPLE;
}

static struct template_value arithmetic(struct template_run *run, enum template_operator op, struct template_value a,
                                        struct template_value b)
{
    if (butler_template_is_number(a) && butler_template_is_number(b)) {
        if (a.kind == VALUE_FLOAT || b.kind == VALUE_FLOAT)
            return real_operation(run, op, butler_template_to_real(a), butler_template_to_real(b));
        return integer_operation(run, op, butler_template_to_integer(run, a, ""), butler_template_to_integer(run, b, ""));
    }
    if (op == OP_ADD && is_sequence(a) && a.kind == b.kind)
        return a.kind == VALUE_STRING ? join_text(run, a, b) : join_lists(run, a, b);
    if (op == OP_MULTIPLY && is_sequence(a) && (b.kind == VALUE_INTEGER || b.kind == VALUE_BOOL))
        return repeat(run, a, butler_template_to_integer(run, b, ""));
    if (op == OP_MULTIPLY && is_sequence(b) && (a.kind == VALUE_INTEGER || a.kind == VALUE_BOOL))
        return repeat(run, b, butler_template_to_integer(run, a, ""));
    refuse_operands(run, operator_names[op], a, b);
}

struct template_value butler_template_add(struct template_run *run, struct template_value a, struct template_value b)
{
    return arithmetic(run, OP_ADD, a, b);
}

static bool compares(struct template_run *run, enum template_operator op, struct template_value a, struct template_value b)
{
    switch (op) {
    case OP_EQUAL:
        return butler_template_equal(run, a, b);
    case OP_DIFFERENT:
        return !butler_template_equal(run, a, b);
    case OP_IN:
        return butler_template_contains(run, b, a);
    case OP_NOT_IN:
        return !butler_template_contains(run, b, a);
    case OP_LESS:
        return butler_template_compare(run, a, b) < 0;
    case OP_LESS_EQUAL:
        return butler_template_compare(run, a, b) <= 0;
    case OP_GREATER:
        return butler_template_compare(run, a, b) > 0;
    default:
        return butler_template_compare(run, a, b) >= 0;
    }
}

static struct template_value eval_compare(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    struct template_value left = eval(run, node->a, scope);
    for (const struct template_node *next = node->first; next; next = next->next) {
        const struct template_value right = eval(run, next->b, scope);
        run->line = next->line;
        if (!compares(run, next->op, left, right))
            return template_bool(false);
        left = right;
    }
    return template_bool(true);
}

static struct template_value eval_unary(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_value value = eval(run, node->a, scope);
    if (node->op == OP_NOT)
        return template_bool(!butler_template_true(value));
    if (!butler_template_is_number(value))
        refuse_operands(run, "the sign", value, value);
    return arithmetic(run, node->op, template_integer(0), value);
}

static struct template_value eval_binary(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_value a = eval(run, node->a, scope);
    if ((node->op == OP_AND && !butler_template_true(a)) || (node->op == OP_OR && butler_template_true(a)))
        return a;
    const struct template_value b = eval(run, node->b, scope);
    run->line = node->line;
    if (node->op == OP_AND || node->op == OP_OR)
        return b;
    return node->op == OP_CONCAT ? join_text(run, a, b) : arithmetic(run, node->op, a, b);
}

/* ---------------------------------------------------------------------------------------------- expressions */

static struct template_value eval_items(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    if (node->kind == NODE_DICT) {
        struct template_value dict = butler_template_dict(run, VALUE_DICT);
        for (const struct template_node *key = node->first; key; key = key->next->next)
            butler_template_put(run, dict.dict, eval(run, key, scope), eval(run, key->next, scope));
        return dict;
    }
    struct template_value list = butler_template_list(run, node->kind == NODE_LIST ? VALUE_LIST : VALUE_TUPLE);
    for (const struct template_node *item = node->first; item; item = item->next)
        butler_template_push(run, list.list, eval(run, item, scope));
    return list;
}

static struct template_value eval_choose(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    if (butler_template_true(eval(run, node->b, scope)))
        return eval(run, node->a, scope);
    return node->c ? eval(run, node->c, scope) : template_undefined(butler_template_literal(run, "the value without an else"));
}

static struct template_value eval_apply(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_value function = eval(run, node->a, scope);
    const struct template_call *call = eval_arguments(run, node->first, scope);
    run->line = node->line;
    return butler_template_apply(run, function, call);
}

static struct template_value eval_item(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_value object = eval(run, node->a, scope);
    if (node->b->kind == NODE_SLICE)
        return eval_slice(run, node->b, object, scope);
    const struct template_value key = eval(run, node->b, scope);
    run->line = node->line;
    return butler_template_item(run, object, key);
}

static struct template_value eval_kind(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    switch (node->kind) {
    case NODE_LITERAL:
        return node->value;
    case NODE_NAME:
        return look_up(run, node->text, scope);
    case NODE_UNARY:
        return eval_unary(run, node, scope);
    case NODE_BINARY:
        return eval_binary(run, node, scope);
    case NODE_COMPARE:
        return eval_compare(run, node, scope);
    case NODE_CHOOSE:
        return eval_choose(run, node, scope);
    case NODE_FIELD:
        return butler_template_field(run, eval(run, node->a, scope), node->text);
    case NODE_ITEM:
        return eval_item(run, node, scope);
    case NODE_APPLY:
        return eval_apply(run, node, scope);
    case NODE_FILTER:
        return eval_filter(run, node, eval(run, node->a, scope), scope);
    case NODE_TEST:
        return eval_test(run, node, scope);
    default:
        return eval_items(run, node, scope);
    }
}

static struct template_value eval(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    butler_template_enter(run);
    butler_template_step(run, 1);
    run->line = node->line;
    const struct template_value value = eval_kind(run, node, scope);
    run->depth--;
    return value;
}

/* ---------------------------------------------------------------------------------------------- statements */

static void assign(struct template_run *run, const struct template_node *target, struct template_value value,
                   struct template_scope *scope)
{
    if (target->kind == NODE_NAME) {
        butler_template_put(run, &scope->variables, template_string(target->text), value);
    } else if (target->kind == NODE_FIELD) {
        const struct template_value object = look_up(run, target->a->text, scope);
        if (object.kind != VALUE_NAMESPACE)
            butler_template_fail(run, "a field of %s cannot be set; only those of a namespace can",
                                 butler_template_kind_name(object));
        butler_template_put(run, object.dict, template_string(target->text), value);
    } else {
        const struct template_list *items = butler_template_items(run, value);
        size_t n = 0;
        for (const struct template_node *name = target->first; name; name = name->next, n++)
            if (n < items->n)
                butler_template_put(run, &scope->variables, template_string(name->text), items->items[n]);
        if (n != items->n)
            butler_template_fail(run, "%zu values are assigned to %zu names", items->n, n);
    }
}

static enum flow exec_for(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_value value = eval(run, node->b, scope);
    const struct template_list *items = butler_template_items(run, value);
    struct template_scope *inner = new_scope(run, scope);
    if (node->c) {
        struct template_list *kept = butler_template_list(run, VALUE_LIST).list;
        for (size_t i = 0; i < items->n; i++) {
            inner->variables.n = 0;
            assign(run, node->a, items->items[i], inner);
            if (butler_template_true(eval(run, node->c, inner)))
                butler_template_push(run, kept, items->items[i]);
        }
        items = kept;
    }
    if (items->n == 0) {
        inner->variables.n = 0;
        return exec(run, node->otherwise, inner);
    }
    const struct template_text name = butler_template_literal(run, "loop");
    struct template_loop *loop = butler_template_alloc(run, sizeof *loop);
    loop->items = items;
    for (; loop->index < items->n; loop->index++) {
        butler_template_step(run, 1);
        inner->variables.n = 0;
        butler_template_put(run, &inner->variables, template_string(name),
                            (struct template_value){.kind = VALUE_LOOP, .loop = loop});
        assign(run, node->a, items->items[loop->index], inner);
        if (exec(run, node->body, inner) == FLOW_BREAK)
            break;
    }
    return FLOW_NEXT;
}

static enum flow exec_if(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    for (const struct template_node *branch = node->first; branch; branch = branch->next)
        if (!branch->a || butler_template_true(eval(run, branch->a, scope)))
            return exec(run, branch->body, scope);
    return FLOW_NEXT;
}

/* The filters of a block set; the innermost one has no input of its own. */
static struct template_value filter_block(struct template_run *run, const struct template_node *filter, struct template_value text,
                                          struct template_scope *scope)
{
    return filter ? eval_filter(run, filter, filter_block(run, filter->a, text, scope), scope) : text;
}

static void exec_set_block(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    const struct template_value text = template_string(capture(run, node->body, new_scope(run, scope)));
    assign(run, node->a, filter_block(run, node->b, text, scope), scope);
}

static void define_macro(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    struct template_function *function = butler_template_alloc(run, sizeof *function);
    function->macro = node;
    function->scope = scope;
    const struct template_value value = {.kind = VALUE_FUNCTION, .function = function};
    butler_template_put(run, &scope->variables, template_string(node->text), value);
}

static enum flow exec_one(struct template_run *run, const struct template_node *node, struct template_scope *scope)
{
    switch (node->kind) {
    case NODE_DATA:
        butler_template_append(run, run->out, node->text);
        break;
    case NODE_OUTPUT:
        butler_template_append(run, run->out, butler_template_to_text(run, eval(run, node->a, scope)));
        break;
    case NODE_IF:
        return exec_if(run, node, scope);
    case NODE_FOR:
        return exec_for(run, node, scope);
    case NODE_SET:
        assign(run, node->a, eval(run, node->b, scope), scope);
        break;
    case NODE_SET_BLOCK:
        exec_set_block(run, node, scope);
        break;
    case NODE_MACRO:
        define_macro(run, node, scope);
        break;
    default:
        return node->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
    }
    return FLOW_NEXT;
}

static enum flow exec(struct template_run *run, const struct template_node *nodes, struct template_scope *scope)
{
    enum flow flow = FLOW_NEXT;
    butler_template_enter(run);
    for (; nodes && flow == FLOW_NEXT; nodes = nodes->next) {
        butler_template_step(run, 1);
        run->line = nodes->line;
        flow = exec_one(run, nodes, scope);
    }
    run->depth--;
    return flow;
}

void butler_template_eval(struct template_run *run, const struct template_node *nodes, struct template_scope *scope)
{
    exec(run, nodes, scope);
}
