/* Strings that match a pattern and have a length. The pattern's tree becomes an automaton; a rule for each of its positions and
 * each number of characters before it says what may follow. Rules from which no text of the right length ends are left out. */
#include <string.h>

#include "schema/pattern.h"

enum { MAX_STATES = 4000, MAX_POSITIONS = 1000, MAX_PAIRS = 60000, MAX_EDGES = 60000 };

/* Thompson's automaton: a state reads a character of its node, or goes on to one or two states without reading. */
struct state {
    int node, out, other; /* node: -1: reads nothing; other: -1: none */
};

struct automaton {
    struct schema_compiler *c;
    const struct schema_pattern *pattern;
    struct state states[MAX_STATES];
    int n_states, n; /* n: of positions, the states that read */
    int position[MAX_STATES], state_of[MAX_POSITIONS], set_rule[MAX_POSITIONS];
    unsigned char follow[MAX_POSITIONS + 1][MAX_POSITIONS]; /* the last row: what may come first */
    bool accepts[MAX_POSITIONS + 1];
    int min, max, levels; /* max: -1: none. Counts from `levels` - 1 on are one where there is no max */
    unsigned char live[MAX_PAIRS];
    int rules[MAX_PAIRS]; /* 0: not asked for */
    bool too_large;
};

static int add_state(struct automaton *a, int node, int out, int other)
{
    schema_step(a->c, 1);
    if (a->n_states == MAX_STATES || (node >= 0 && a->n == MAX_POSITIONS)) {
        a->too_large = true;
        return 0;
    }
    if (node >= 0) {
        a->state_of[a->n] = a->n_states;
        a->position[a->n_states] = a->n++;
    }
    a->states[a->n_states] = (struct state){node, out, other};
    return a->n_states++;
}

/* The state at which the node begins whose end is the state `next`. */
static int build(struct automaton *a, int index, int next)
{
    const struct schema_node *node = schema_pattern_node(a->pattern, index);
    int start = next;
    if (a->too_large)
        return 0;
    switch (node->kind) {
    case SCHEMA_NODE_EMPTY:
        return next;
    case SCHEMA_NODE_SET:
        return add_state(a, index, next, -1);
    case SCHEMA_NODE_ANY: /* any number of any characters */
        start = add_state(a, -1, next, next);
        a->states[start].out = add_state(a, index, start, -1);
        return start;
    case SCHEMA_NODE_BOTH: { /* two nodes, one behind the other */
        const int second = build(a, node->second, next);
        return build(a, node->first, second);
    }
    case SCHEMA_NODE_EITHER: {
        const int first = build(a, node->first, next), second = build(a, node->second, next);
        return add_state(a, -1, first, second);
    }
    case SCHEMA_NODE_REPEAT:
        break;
    }
    if (node->max < 0) {
        start = add_state(a, -1, next, next);
        const int body = build(a, node->first, start);
        a->states[start].out = body;
    }
    for (int i = node->min; i < node->max && !a->too_large; i++) {
        const int body = build(a, node->first, start);
        start = add_state(a, -1, body, next);
    }
    for (int i = 0; i < node->min && !a->too_large; i++)
        start = build(a, node->first, start);
    return start;
}

/* The positions that a state reaches without reading. */
static void close_over(struct automaton *a, int from, int row)
{
    int stack[MAX_STATES], n = 0;
    unsigned char seen[MAX_STATES] = {0};
    stack[n++] = from;
    seen[from] = 1;
    while (n > 0) {
        const struct state *state = &a->states[stack[--n]];
        schema_step(a->c, 1);
        if (state == &a->states[0]) {
            a->accepts[row] = true;
            continue;
        }
        if (state->node >= 0) {
            a->follow[row][a->position[state - a->states]] = 1;
            continue;
        }
        const int next[2] = {state->out, state->other};
        for (int i = 0; i < 2; i++)
            if (next[i] >= 0 && !seen[next[i]]) {
                seen[next[i]] = 1;
                stack[n++] = next[i];
            }
    }
}

static int next_count(const struct automaton *a, int count)
{
    return a->max < 0 && count + 1 >= a->levels ? a->levels - 1 : count + 1;
}

static bool may_end(const struct automaton *a, int row, int count)
{
    return a->accepts[row] && count >= a->min;
}

/* Whether a text can end that reads the position's character behind `count` others. */
static bool find_live(const struct automaton *a, int position, int count)
{
    const int next = next_count(a, count);
    if (may_end(a, position, next))
        return true;
    for (int q = 0; q < a->n && (a->max < 0 || next < a->max); q++)
        if (a->follow[position][q] && a->live[q * a->levels + next])
            return true;
    return false;
}

static void find_all_live(struct automaton *a)
{
    for (int count = a->levels - 1; count >= 0; count--)
        for (bool again = true; again;) {
            again = false;
            for (int p = 0; p < a->n; p++) {
                unsigned char *live = &a->live[p * a->levels + count];
                schema_step(a->c, 1 + (size_t)a->n / 64);
                if (!*live && find_live(a, p, count))
                    *live = again = true;
            }
            again &= a->max < 0 && count == a->levels - 1;
        }
}

/* What may follow behind `count` characters, the last of which is that of the row; new rules are put into the queue. */
static void put_next(struct automaton *a, struct schema_text *text, int row, int count, int *queue, int *n_queue, int *n_edges)
{
    const char *bar = " (";
    for (int q = 0; q < a->n && (a->max < 0 || count < a->max); q++) {
        const int pair = q * a->levels + count;
        if (!a->follow[row][q] || !a->live[pair])
            continue;
        if (!a->rules[pair]) {
            a->rules[pair] = SCHEMA_N_FIXED + a->c->n_rules++;
            queue[(*n_queue)++] = pair;
        }
        schema_put(a->c, text, "%s", bar);
        schema_put_rule(a->c, text, a->rules[pair]);
        bar = " |";
        ++*n_edges;
    }
    if (may_end(a, row, count))
        schema_put(a->c, text, "%s \"\\\"\"", bar);
    schema_put(a->c, text, " )");
}

static int put_rules(struct automaton *a)
{
    struct schema_text *queue_text = schema_begin(a->c), *root = schema_begin(a->c);
    static const char zeros[256];
    int n_queue = 0, n_edges = 0;
    for (size_t i = 0; i < (size_t)(a->n * a->levels + 1) * sizeof(int); i += sizeof zeros)
        schema_put_bytes(a->c, queue_text, zeros, sizeof zeros);
    int *queue = (int *)(void *)queue_text->bytes;
    schema_put(a->c, root, " \"\\\"\"");
    put_next(a, root, a->n, 0, queue, &n_queue, &n_edges);
    const int rule = schema_end(a->c, root);
    for (int i = 0; i < n_queue && n_edges < MAX_EDGES; i++) {
        const int p = queue[i] / a->levels, count = queue[i] % a->levels;
        if (!a->set_rule[p]) {
            struct schema_text *set = schema_begin(a->c);
            const int node = a->states[a->state_of[p]].node;
            if (schema_pattern_node(a->pattern, node)->kind == SCHEMA_NODE_ANY)
                schema_put_rule(a->c, set, SCHEMA_CHAR);
            else
                schema_put_node(a->c, set, a->pattern, node);
            a->set_rule[p] = schema_end(a->c, set);
        }
        struct schema_text *text = schema_begin(a->c);
        schema_put_rule(a->c, text, a->set_rule[p]);
        put_next(a, text, p, next_count(a, count), queue, &n_queue, &n_edges);
        schema_end_as(a->c, text, a->rules[queue[i]]);
    }
    schema_drop(a->c);
    return n_edges < MAX_EDGES ? rule : SCHEMA_MANY;
}

int schema_compile_length(struct schema_compiler *c, const struct schema_pattern *pattern, int64_t min, int64_t max)
{
    struct schema_text *held = schema_begin(c); /* freed also where what follows fails */
    int rule = SCHEMA_MANY;
    if (!(held->bytes = calloc(1, sizeof(struct automaton))))
        schema_no_memory(c);
    struct automaton *a = (struct automaton *)(void *)held->bytes;
    *a = (struct automaton){.c = c, .pattern = pattern, .min = (int)min, .max = (int)max};
    add_state(a, -1, -1, -1);                                                       /* the end */
    a->too_large = pattern->nodes->n / sizeof(struct schema_node) > 4 * MAX_STATES; /* building is as deep as a row is long */
    const int start = build(a, pattern->root, 0);
    a->levels = (int)(max < 0 ? min + 1 : max);
    if (a->levels < 1)
        a->levels = 1;
    if (!a->too_large && a->n * a->levels < MAX_PAIRS) {
        close_over(a, start, a->n);
        for (int p = 0; p < a->n; p++)
            close_over(a, a->states[a->state_of[p]].out, p);
        find_all_live(a);
        bool possible = may_end(a, a->n, 0);
        for (int p = 0; p < a->n; p++)
            possible |= a->follow[a->n][p] && a->live[p * a->levels] && max != 0;
        rule = possible ? put_rules(a) : SCHEMA_NEVER;
    }
    schema_drop(c);
    return rule;
}
