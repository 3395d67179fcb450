/* The rules of a grammar: how they are stored, which of them match the empty text, which match any text, and an order in which no
 * rule can begin with an earlier one. */
#include <stdlib.h>
#include <string.h>

#include "grammar/grammar_parts.h"
#include "base/buffer.h"

void butler_rules_free(struct butler_rules *rules)
{
    free(rules->elements);
    free(rules->alternatives);
    free(rules->rules);
    free(rules->sets);
    free(rules->canonicals);
    *rules = (struct butler_rules){0};
}

/* Makes room for n elements of that size. */
static int grow(void *array /* T ** */, size_t n, size_t *max, size_t size, struct butler_error *err)
{
    return butler_grow(array, n, max, size) ? 0 : butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a grammar of %zu parts", n);
}

int butler_sequence_add(struct butler_sequence *sequence, enum butler_element_kind kind, uint32_t arg, struct butler_error *err)
{
    if (sequence->n >= BUTLER_MAX_ELEMENTS)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "grammar: too large: more than %d elements", (int)BUTLER_MAX_ELEMENTS);
    const int code = grow(&sequence->elements, sequence->n + 1, &sequence->max, sizeof *sequence->elements, err);
    if (code == 0)
        sequence->elements[sequence->n++] = butler_element_of(kind, arg);
    return code;
}

int butler_rules_new_rule(struct butler_rules *rules, uint32_t *rule, struct butler_error *err)
{
    const int code = grow(&rules->rules, rules->n_rules + 1, &rules->max_rules, sizeof *rules->rules, err);
    if (code < 0)
        return code;
    *rule = rules->n_rules++;
    rules->rules[*rule] = (struct butler_rule){.first = BUTLER_NO_INDEX, .last = BUTLER_NO_INDEX};
    return 0;
}

int butler_rules_new_set(struct butler_rules *rules, const struct butler_byte_set *set, uint32_t *index, struct butler_error *err)
{
    /* The same classes and letters come often; a few are searched, so that a large grammar stays cheap. */
    for (uint32_t i = rules->n_sets; i > 0 && rules->n_sets - i < 64; i--)
        if (memcmp(&rules->sets[i - 1], set, sizeof *set) == 0) {
            *index = i - 1;
            return 0;
        }
    const int code = grow(&rules->sets, rules->n_sets + 1, &rules->max_sets, sizeof *rules->sets, err);
    if (code < 0)
        return code;
    *index = rules->n_sets++;
    rules->sets[*index] = *set;
    return 0;
}

int butler_rules_add(struct butler_rules *rules, uint32_t rule, const struct butler_element *elements, size_t n,
                     struct butler_error *err)
{
    if (rules->n_elements + n + 1 > BUTLER_MAX_ELEMENTS)
        return butler_fail(err, BUTLER_ERROR_FORMAT, "grammar: too large: more than %d elements", (int)BUTLER_MAX_ELEMENTS);
    int code = grow(&rules->elements, rules->n_elements + n + 1, &rules->max_elements, sizeof *rules->elements, err);
    if (code == 0)
        code = grow(&rules->alternatives, rules->n_alternatives + 1, &rules->max_alternatives, sizeof *rules->alternatives, err);
    if (code < 0)
        return code;
    struct butler_rule *r = &rules->rules[rule];
    const uint32_t index = rules->n_alternatives++;
    rules->alternatives[index] = (struct butler_alternative){.start = rules->n_elements, .next = BUTLER_NO_INDEX};
    if (r->last == BUTLER_NO_INDEX)
        r->first = index;
    else
        rules->alternatives[r->last].next = index;
    r->last = index;
    if (n)
        memcpy(rules->elements + rules->n_elements, elements, n * sizeof *elements);
    rules->n_elements += (uint32_t)n;
    rules->elements[rules->n_elements++] = (struct butler_element){.kind = BUTLER_ELEMENT_END};
    return 0;
}

int butler_rules_add_canonical(struct butler_rules *rules, uint32_t start, uint32_t canonical, struct butler_error *err)
{
    const int code = grow(&rules->canonicals, rules->n_canonicals + 1, &rules->max_canonicals, sizeof *rules->canonicals, err);
    if (code == 0)
        rules->canonicals[rules->n_canonicals++] = (struct butler_canonical){start, canonical};
    return code;
}

uint32_t butler_rules_canonical(const struct butler_rules *rules, uint32_t position)
{
    uint32_t low = 0, high = rules->n_canonicals; /* the first that begins behind the position */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (rules->canonicals[middle].start <= position)
            low = middle + 1;
        else
            high = middle;
    }
    const struct butler_canonical *last = low ? &rules->canonicals[low - 1] : NULL;
    return last && position - last->start <= 2 ? last->canonical + (position - last->start) : position;
}

/* -------------------------------------------------------------------------------------------------- analysis */

static bool is_rule(struct butler_element element)
{
    return element.kind == BUTLER_ELEMENT_RULE || element.kind == BUTLER_ELEMENT_NONEMPTY;
}

/* Arrays of one run of saturate(). */
struct uses {
    uint32_t *first;   /* [n_rules + 1] uses of a rule begin there in `alternatives` */
    uint32_t *where;   /* [n_elements] alternatives that use a rule, one for each use */
    uint32_t *missing; /* [n_alternatives] rules of the alternative that do not hold yet */
    uint32_t *owner;   /* [n_alternatives] rule */
    uint32_t *queue;   /* [n_rules] rules that hold */
};

static void count_uses(const struct butler_rules *rules, struct uses *uses)
{
    for (uint32_t i = 0; i < rules->n_elements; i++)
        if (is_rule(rules->elements[i]))
            uses->first[rules->elements[i].arg + 1]++;
    for (uint32_t r = 0; r < rules->n_rules; r++)
        uses->first[r + 1] += uses->first[r];
}

/* A rule holds when one alternative has only rules that hold; with `bytes` an alternative may have bytes too. Linear in the size of
 * the grammar. */
static void saturate(struct butler_rules *rules, struct uses *uses, bool bytes, uint32_t *filled)
{
    uint32_t n_queue = 0;
    memcpy(filled, uses->first, rules->n_rules * sizeof *filled);
    for (uint32_t r = 0; r < rules->n_rules; r++)
        for (uint32_t a = rules->rules[r].first; a != BUTLER_NO_INDEX; a = rules->alternatives[a].next) {
            uint32_t missing = 0;
            uses->owner[a] = r;
            for (uint32_t p = rules->alternatives[a].start; rules->elements[p].kind != BUTLER_ELEMENT_END; p++) {
                if (is_rule(rules->elements[p]))
                    uses->where[filled[rules->elements[p].arg]++] = a;
                missing += is_rule(rules->elements[p]) || !bytes;
            }
            uses->missing[a] = missing;
            bool *holds = bytes ? &rules->rules[r].productive : &rules->rules[r].nullable;
            if (missing == 0 && !*holds) {
                *holds = true;
                uses->queue[n_queue++] = r;
            }
        }
    for (uint32_t i = 0; i < n_queue; i++)
        for (uint32_t u = uses->first[uses->queue[i]]; u < filled[uses->queue[i]]; u++) {
            const uint32_t a = uses->where[u];
            struct butler_rule *owner = &rules->rules[uses->owner[a]];
            bool *holds = bytes ? &owner->productive : &owner->nullable;
            if (--uses->missing[a] == 0 && !*holds) {
                *holds = true;
                uses->queue[n_queue++] = uses->owner[a];
            }
        }
}

/* An alternative with a rule that matches no text matches none: it is taken out of its rule. */
static void drop_unproductive(struct butler_rules *rules)
{
    for (uint32_t r = 0; r < rules->n_rules; r++) {
        uint32_t *link = &rules->rules[r].first;
        while (*link != BUTLER_NO_INDEX) {
            bool productive = true;
            for (uint32_t p = rules->alternatives[*link].start; rules->elements[p].kind != BUTLER_ELEMENT_END; p++)
                productive = productive && (!is_rule(rules->elements[p]) || rules->rules[rules->elements[p].arg].productive);
            if (productive)
                link = &rules->alternatives[*link].next;
            else
                *link = rules->alternatives[*link].next;
        }
    }
}

/* A place in the walk over what rules can begin with. */
struct visit {
    uint32_t rule, alternative, position;
};

/* The next rule that the visited one can begin with, or BUTLER_NO_INDEX. */
static uint32_t next_beginning(const struct butler_rules *rules, struct visit *visit)
{
    while (visit->alternative != BUTLER_NO_INDEX) {
        const struct butler_element element = rules->elements[visit->position];
        const bool goes_on = element.kind == BUTLER_ELEMENT_RULE && rules->rules[element.arg].nullable;
        visit->position++;
        if (!goes_on) {
            visit->alternative = rules->alternatives[visit->alternative].next;
            if (visit->alternative != BUTLER_NO_INDEX)
                visit->position = rules->alternatives[visit->alternative].start;
        }
        if (is_rule(element))
            return element.arg;
    }
    return BUTLER_NO_INDEX;
}

static struct visit visit_of(const struct butler_rules *rules, uint32_t rule)
{
    const uint32_t a = rules->rules[rule].first;
    return (struct visit){rule, a, a == BUTLER_NO_INDEX ? 0 : rules->alternatives[a].start};
}

/* Ranks by a walk in depth, without recursion: grammars may be deep. Returns a left-recursive rule or BUTLER_NO_INDEX. */
static uint32_t rank_rules(struct butler_rules *rules, struct visit *stack)
{
    const uint32_t new = 0, open = BUTLER_NO_INDEX;
    uint32_t next = rules->n_rules; /* ranks are given from n_rules down to 1: a rule gets its own behind all it can begin with */
    for (uint32_t r = 0; r < rules->n_rules; r++) {
        uint32_t depth = 0;
        if (rules->rules[r].rank != new)
            continue;
        stack[depth++] = visit_of(rules, r);
        rules->rules[r].rank = open;
        while (depth > 0) {
            const uint32_t below = next_beginning(rules, &stack[depth - 1]);
            if (below == BUTLER_NO_INDEX) {
                rules->rules[stack[--depth].rule].rank = next--;
            } else if (rules->rules[below].rank == open) {
                return below;
            } else if (rules->rules[below].rank == new) {
                rules->rules[below].rank = open;
                stack[depth++] = visit_of(rules, below);
            }
        }
    }
    return BUTLER_NO_INDEX;
}

int butler_rules_analyse(struct butler_rules *rules, uint32_t *cycle, struct butler_error *err)
{
    struct butler_arena arena = {0};
    struct uses uses;
    uint32_t *filled;
    struct visit *stack;
    butler_arena_want(&arena, &uses.first, rules->n_rules + 1, sizeof *uses.first);
    butler_arena_want(&arena, &uses.where, rules->n_elements, sizeof *uses.where);
    butler_arena_want(&arena, &uses.missing, rules->n_alternatives, sizeof *uses.missing);
    butler_arena_want(&arena, &uses.owner, rules->n_alternatives, sizeof *uses.owner);
    butler_arena_want(&arena, &uses.queue, rules->n_rules, sizeof *uses.queue);
    butler_arena_want(&arena, &filled, rules->n_rules, sizeof *filled);
    butler_arena_want(&arena, &stack, rules->n_rules, sizeof *stack);
    const int code = butler_arena_make(&arena, err);
    if (code < 0)
        return code;
    count_uses(rules, &uses);
    saturate(rules, &uses, true, filled);
    drop_unproductive(rules);
    saturate(rules, &uses, false, filled);
    *cycle = rank_rules(rules, stack);
    butler_arena_free(&arena);
    return 0;
}
