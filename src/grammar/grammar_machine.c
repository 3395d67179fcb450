/* A pushdown machine over bytes whose states are numbered, so that what follows from one is computed once.
 *
 * It is Earley's recogniser with another bookkeeping. Where his items name the input position at which their rule began, ours name
 * a frame: the set of places to return to. All calls of a rule at one input position share one frame, so ambiguous grammars cost no
 * more than there. A call at the end of an alternative adds its caller's places instead of a frame of its own: loops need no stack.
 * Frames and states are both sorted sets of items, stored once; equal content is the same number. Two texts behind which the same
 * may follow thus nearly always lead to the same state. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "grammar/grammar_parts.h"

enum {
    MAX_ITEMS = 8192,       /* of a state or a frame */
    MAX_MEMORY = 256 << 20, /* bytes of all sets; of several machines: shared->max */
    MAX_SHORT = 32,         /* items of a set that is shortened */
    SHORT_DEPTH = 2,        /* levels of frames that stay */
};
#define COMPLETE UINT64_MAX      /* the item of a text that is complete */
#define ESCAPED (UINT64_MAX - 1) /* the item where a stack that was shortened ends */

/* A position in the rules, and the frame to return to. */
static inline uint64_t make_item(uint32_t position, uint32_t frame)
{
    return (uint64_t)position << 32 | frame;
}

struct set {
    uint64_t *items; /* [n], ascending */
    int32_t *known;  /* [256] of a state: the states behind each byte, -1: not computed; NULL: none is */
    uint32_t n, hash;
};

struct butler_machine {
    const struct butler_rules *rules;
    struct butler_shared_memory *shared;
    struct set *sets; /* [n_sets]; set 0 is empty */
    size_t n_sets, max_sets;
    uint32_t *slots; /* [n_slots] hash table of the sets; BUTLER_NO_INDEX: free */
    size_t n_slots;
    size_t memory, work, pause; /* work: items that the call of the user made; pause: after so many no step begins */
    bool paused;
    int32_t start, end;
    int32_t cut; /* the frame of only ESCAPED */
    /* Of one closure, in the arena. */
    struct butler_arena arena;
    uint64_t *items;   /* [n_items] in the order in which they came */
    uint32_t *callers; /* [n_items] of an item that calls a rule: the next such item of that rule */
    uint32_t n_items;
    uint32_t *item_slots; /* [4 MAX_ITEMS] hash table of items: index + 1, or 0 */
    uint64_t *places;     /* [MAX_ITEMS] a frame or a state that is collected */
    uint32_t n_places;
    uint32_t *heads;  /* [n_rules] the first caller; BUTLER_NO_INDEX: none */
    uint32_t *heap;   /* [n_heap] ranks of rules that are called and not yet entered */
    uint32_t *ranked; /* [n_rules + 1] rule by rank */
    uint32_t n_heap;
};

void butler_machine_free(struct butler_machine *machine)
{
    if (!machine)
        return;
    for (size_t i = 0; i < machine->n_sets; i++) {
        free(machine->sets[i].items);
        free(machine->sets[i].known);
    }
    free(machine->sets);
    free(machine->slots);
    __atomic_sub_fetch(&machine->shared->used, machine->memory, __ATOMIC_RELAXED);
    butler_arena_free(&machine->arena);
    free(machine);
}

static int too_ambiguous(struct butler_error *err)
{
    return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "the grammar is too ambiguous here: more than %d ways to go on",
                       (int)MAX_ITEMS);
}

/* ---------------------------------------------------------------------------------------------------- sets */

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 29) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 32;
}

/* Twice as many slots. */
static int grow_slots(struct butler_machine *machine, struct butler_error *err)
{
    const size_t n = machine->n_slots ? 2 * machine->n_slots : 256;
    uint32_t *slots = malloc(n * sizeof *slots);
    struct set *sets = realloc(machine->sets, n / 2 * sizeof *sets);
    if (sets)
        machine->sets = sets;
    if (!slots || !sets) {
        free(slots);
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %zu states of a grammar", n / 2);
    }
    memset(slots, 0xff, n * sizeof *slots);
    for (size_t i = 0; i < machine->n_sets; i++) {
        size_t slot = sets[i].hash & (n - 1);
        while (slots[slot] != BUTLER_NO_INDEX)
            slot = (slot + 1) & (n - 1);
        slots[slot] = (uint32_t)i;
    }
    free(machine->slots);
    machine->slots = slots;
    machine->n_slots = n;
    machine->max_sets = n / 2;
    return 0;
}

static int charge(struct butler_machine *machine, size_t bytes, struct butler_error *err)
{
    machine->memory += bytes;
    const size_t all = __atomic_add_fetch(&machine->shared->used, bytes, __ATOMIC_RELAXED);
    if (machine->memory > MAX_MEMORY)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "the grammar needs more than %d MB for its states",
                           (int)(MAX_MEMORY >> 20));
    if (all > machine->shared->max)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "all grammars in use together need more than %zu MB for their states",
                           machine->shared->max >> 20);
    return 0;
}

/* Sorts the places and drops those that are there twice. */
static void sort_places(struct butler_machine *machine)
{
    uint64_t *items = machine->places;
    uint32_t n = 0;
    qsort(items, machine->n_places, sizeof *items, by_value);
    for (uint32_t i = 0; i < machine->n_places; i++)
        if (n == 0 || items[i] != items[n - 1])
            items[n++] = items[i];
    machine->n_places = n;
}

/* The number of the set that machine->places is; they are sorted. Negative: a code. */
static int32_t intern(struct butler_machine *machine, struct butler_error *err)
{
    sort_places(machine);
    const uint64_t *items = machine->places;
    const uint32_t n = machine->n_places;
    const uint32_t hash = (uint32_t)XXH3_64bits(items, n * sizeof *items);
    if (machine->n_sets == machine->max_sets && grow_slots(machine, err) < 0)
        return BUTLER_ERROR_MEMORY;
    size_t slot = hash & (machine->n_slots - 1);
    for (; machine->slots[slot] != BUTLER_NO_INDEX; slot = (slot + 1) & (machine->n_slots - 1)) {
        const struct set *set = &machine->sets[machine->slots[slot]];
        if (set->hash == hash && set->n == n && (n == 0 || memcmp(set->items, items, n * sizeof *items) == 0))
            return (int32_t)machine->slots[slot];
    }
    const int code = charge(machine, n * sizeof *items + sizeof(struct set) + 3 * sizeof(uint32_t), err);
    if (code < 0)
        return code;
    uint64_t *owned = malloc(n * sizeof *owned + 1);
    if (!owned)
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for a state of %u items", (unsigned)n);
    if (n)
        memcpy(owned, items, n * sizeof *owned);
    machine->sets[machine->n_sets] = (struct set){.items = owned, .n = n, .hash = hash};
    machine->slots[slot] = (uint32_t)machine->n_sets;
    return (int32_t)machine->n_sets++;
}

static int add_place(struct butler_machine *machine, uint64_t item, struct butler_error *err)
{
    if (machine->n_places == MAX_ITEMS)
        sort_places(machine);
    if (machine->n_places == MAX_ITEMS)
        return too_ambiguous(err);
    machine->places[machine->n_places++] = item;
    return 0;
}

/* ------------------------------------------------------------------------------------------------- closure */

static void push_rank(struct butler_machine *machine, uint32_t rank)
{
    uint32_t at = machine->n_heap++;
    for (; at > 0 && machine->heap[(at - 1) / 2] > rank; at = (at - 1) / 2)
        machine->heap[at] = machine->heap[(at - 1) / 2];
    machine->heap[at] = rank;
}

static uint32_t pop_rank(struct butler_machine *machine)
{
    uint32_t *heap = machine->heap;
    const uint32_t lowest = heap[0], last = heap[--machine->n_heap];
    uint32_t at = 0;
    for (uint32_t below = 1; below < machine->n_heap; below = 2 * at + 1) {
        below += below + 1 < machine->n_heap && heap[below + 1] < heap[below];
        if (heap[below] >= last)
            break;
        heap[at] = heap[below];
        at = below;
    }
    heap[at] = last;
    return lowest;
}

/* An item that is not there yet; one that calls a rule is also added to the rule's callers. */
static int add_item(struct butler_machine *machine, uint64_t item, struct butler_error *err)
{
    const uint32_t n_slots = 4 * MAX_ITEMS;
    uint32_t slot = (uint32_t)mix(item) & (n_slots - 1);
    for (; machine->item_slots[slot]; slot = (slot + 1) & (n_slots - 1))
        if (machine->items[machine->item_slots[slot] - 1] == item)
            return 0;
    if (machine->n_items == 2 * MAX_ITEMS || ++machine->work > BUTLER_GRAMMAR_WORK)
        return too_ambiguous(err);
    const uint32_t index = machine->n_items++;
    machine->items[index] = item;
    machine->item_slots[slot] = index + 1;
    if (item >= ESCAPED)
        return 0;
    const struct butler_element element = machine->rules->elements[item >> 32];
    if (element.kind == BUTLER_ELEMENT_RULE || element.kind == BUTLER_ELEMENT_NONEMPTY) {
        uint32_t *head = &machine->heads[element.arg];
        if (*head == BUTLER_NO_INDEX)
            push_rank(machine, machine->rules->rules[element.arg].rank);
        machine->callers[index] = *head;
        *head = index;
    }
    return 0;
}

/* What follows from an item without a byte: a rule that may be empty is passed. `returns`: behind the end of an alternative its
 * callers go on. Those of a rule that began at this input position have passed it by then. */
static int follow(struct butler_machine *machine, uint64_t item, bool returns, struct butler_error *err)
{
    int code = 0;
    if (item >= ESCAPED)
        return 0;
    const uint32_t position = (uint32_t)(item >> 32), frame = (uint32_t)item;
    const struct butler_element element = machine->rules->elements[position];
    if (element.kind == BUTLER_ELEMENT_RULE && machine->rules->rules[element.arg].nullable)
        return add_item(machine, make_item(position + 1, frame), err);
    if (element.kind != BUTLER_ELEMENT_END || !returns)
        return 0;
    for (uint32_t i = 0; i < machine->sets[frame].n && code == 0; i++)
        code = add_item(machine, machine->sets[frame].items[i], err);
    return code;
}

/* Collects the frame of a rule from the items that call it. */
static int32_t make_frame(struct butler_machine *machine, uint32_t rule, struct butler_error *err)
{
    int code = 0;
    machine->n_places = 0;
    for (uint32_t i = machine->heads[rule]; i != BUTLER_NO_INDEX && code == 0; i = machine->callers[i]) {
        const uint32_t position = (uint32_t)(machine->items[i] >> 32) + 1, frame = (uint32_t)machine->items[i];
        const struct set *set = &machine->sets[frame];
        if (machine->rules->elements[position].kind != BUTLER_ELEMENT_END) {
            code = add_place(machine, make_item(position, frame), err);
            continue;
        }
        machine->work += set->n;
        for (uint32_t k = 0; k < set->n && code == 0; k++)
            code = add_place(machine, set->items[k], err);
    }
    return code < 0 ? code : intern(machine, err);
}

/* Enters all rules that are called, callers before those that they can begin with: a frame is complete when it is made. */
static int enter_rules(struct butler_machine *machine, struct butler_error *err)
{
    const struct butler_rules *rules = machine->rules;
    int code = 0;
    while (machine->n_heap > 0 && code == 0) {
        const uint32_t rule = machine->ranked[pop_rank(machine)];
        const int32_t frame = make_frame(machine, rule, err);
        uint32_t done = machine->n_items;
        if (frame < 0)
            return frame;
        for (uint32_t a = rules->rules[rule].first; a != BUTLER_NO_INDEX && code == 0; a = rules->alternatives[a].next)
            code = add_item(machine, make_item(rules->alternatives[a].start, (uint32_t)frame), err);
        for (; done < machine->n_items && code == 0; done++)
            code = follow(machine, machine->items[done], false, err);
    }
    return code;
}

/* The state of the items in machine->places, and all that follows from them. */
static int32_t close_items(struct butler_machine *machine, struct butler_error *err)
{
    int code = 0;
    machine->n_items = machine->n_heap = 0;
    for (uint32_t i = 0; i < machine->n_places && code == 0; i++)
        code = add_item(machine, machine->places[i], err);
    for (uint32_t i = 0; i < machine->n_items && code == 0; i++)
        code = follow(machine, machine->items[i], true, err);
    if (code == 0)
        code = enter_rules(machine, err);
    machine->n_places = 0;
    for (uint32_t i = 0; i < machine->n_items; i++) {
        const uint64_t item = machine->items[i];
        const struct butler_element *element = item >= ESCAPED ? NULL : &machine->rules->elements[item >> 32];
        if (code == 0 && (!element || element->kind == BUTLER_ELEMENT_BYTES))
            code = add_place(machine, item, err);
        if (element && (element->kind == BUTLER_ELEMENT_RULE || element->kind == BUTLER_ELEMENT_NONEMPTY))
            machine->heads[element->arg] = BUTLER_NO_INDEX;
        uint32_t slot = (uint32_t)mix(item) & (4 * MAX_ITEMS - 1); /* empties the hash table for the next closure */
        for (; machine->item_slots[slot]; slot = (slot + 1) & (4 * MAX_ITEMS - 1))
            machine->item_slots[slot] = 0;
    }
    return code < 0 ? code : intern(machine, err);
}

/* --------------------------------------------------------------------------------------------------- states */

struct butler_machine *butler_machine_new(const struct butler_rules *rules, struct butler_shared_memory *shared,
                                          struct butler_error *err)
{
    struct butler_machine *machine = butler_alloc(sizeof *machine, err);
    if (!machine)
        return NULL;
    machine->rules = rules;
    machine->shared = shared;
    machine->pause = BUTLER_GRAMMAR_WORK;
    butler_arena_want(&machine->arena, &machine->items, 2 * MAX_ITEMS, sizeof *machine->items);
    butler_arena_want(&machine->arena, &machine->callers, 2 * MAX_ITEMS, sizeof *machine->callers);
    butler_arena_want(&machine->arena, &machine->item_slots, 4 * MAX_ITEMS, sizeof *machine->item_slots);
    butler_arena_want(&machine->arena, &machine->places, MAX_ITEMS, sizeof *machine->places);
    butler_arena_want(&machine->arena, &machine->heads, rules->n_rules, sizeof *machine->heads);
    butler_arena_want(&machine->arena, &machine->heap, rules->n_rules, sizeof *machine->heap);
    butler_arena_want(&machine->arena, &machine->ranked, (size_t)rules->n_rules + 1, sizeof *machine->ranked);
    if (butler_arena_make(&machine->arena, err) < 0)
        goto fail;
    memset(machine->heads, 0xff, (size_t)rules->n_rules * sizeof *machine->heads);
    for (uint32_t r = 0; r < rules->n_rules; r++)
        machine->ranked[rules->rules[r].rank] = r;
    if (intern(machine, err) < 0) /* the empty set: state 0 */
        goto fail;
    machine->places[0] = COMPLETE;
    machine->n_places = 1;
    machine->end = intern(machine, err); /* also the frame of rule root */
    if (machine->end < 0)
        goto fail;
    machine->places[0] = ESCAPED;
    machine->n_places = 1;
    machine->cut = intern(machine, err);
    if (machine->cut < 0)
        goto fail;
    machine->places[0] = make_item(rules->start, (uint32_t)machine->end);
    machine->n_places = 1;
    machine->start = close_items(machine, err);
    if (machine->start > 0)
        return machine;
fail:
    butler_machine_free(machine);
    return NULL;
}

void butler_machine_begin(struct butler_machine *machine, size_t pause)
{
    machine->work = 0;
    machine->pause = pause;
    machine->paused = false;
}

bool butler_machine_paused(const struct butler_machine *machine)
{
    return machine->paused;
}

size_t butler_machine_work(const struct butler_machine *machine)
{
    return machine->work;
}

int32_t butler_machine_start(const struct butler_machine *machine)
{
    return machine->start;
}

int32_t butler_machine_end(const struct butler_machine *machine)
{
    return machine->end;
}

bool butler_machine_can_end(const struct butler_machine *machine, int32_t state)
{
    const struct set *set = &machine->sets[state];
    return set->n > 0 && set->items[set->n - 1] == COMPLETE;
}

bool butler_machine_escapes(const struct butler_machine *machine, int32_t state)
{
    const struct set *set = &machine->sets[state];
    for (uint32_t i = set->n; i > 0 && set->items[i - 1] >= ESCAPED; i--)
        if (set->items[i - 1] == ESCAPED)
            return true;
    return false;
}

/* A set whose items return to frames of at most `depth` levels; the cut where it is large. */
static int32_t shorten(struct butler_machine *machine, int32_t index, int depth, struct butler_error *err)
{
    uint64_t items[MAX_SHORT];
    const uint32_t n = machine->sets[index].n;
    if (depth < 0 || n > MAX_SHORT)
        return machine->cut;
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t item = machine->sets[index].items[i];
        const int32_t frame = item >= ESCAPED ? 0 : shorten(machine, (int32_t)(uint32_t)item, depth - 1, err);
        if (frame < 0)
            return frame;
        items[i] =
            item >= ESCAPED ? item : make_item(butler_rules_canonical(machine->rules, (uint32_t)(item >> 32)), (uint32_t)frame);
    }
    qsort(items, n, sizeof *items, by_value);
    machine->n_places = 0;
    for (uint32_t i = 0; i < n; i++)
        if (i == 0 || items[i] != items[i - 1])
            machine->places[machine->n_places++] = items[i];
    return intern(machine, err);
}

int32_t butler_machine_shorten(struct butler_machine *machine, int32_t state, struct butler_error *err)
{
    return machine->sets[state].n > MAX_SHORT ? state : shorten(machine, state, SHORT_DEPTH, err);
}

const int32_t *butler_machine_known(const struct butler_machine *machine, int32_t state)
{
    return machine->sets[state].known;
}

int32_t butler_machine_step(struct butler_machine *machine, int32_t state, unsigned byte, struct butler_error *err)
{
    const struct butler_rules *rules = machine->rules;
    const struct set *set = &machine->sets[state];
    if (!set->known) {
        const int code = charge(machine, 256 * sizeof *set->known, err);
        int32_t *known = code < 0 ? NULL : malloc(256 * sizeof *known);
        if (code < 0)
            return code;
        if (!known)
            return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the states behind a state");
        memset(known, 0xff, 256 * sizeof *known);
        machine->sets[state].known = known;
    }
    if (set->known[byte] >= 0)
        return set->known[byte];
    int32_t *known = set->known;
    machine->paused = machine->work >= machine->pause;
    if (machine->paused)
        return too_ambiguous(err);
    machine->n_places = 0;
    machine->work += set->n;
    for (uint32_t i = 0; i < set->n; i++) {
        if (set->items[i] >= ESCAPED)
            break;
        const uint32_t position = (uint32_t)(set->items[i] >> 32);
        if (butler_byte_in(&rules->sets[rules->elements[position].arg], byte))
            machine->places[machine->n_places++] = make_item(position + 1, (uint32_t)set->items[i]);
    }
    const int32_t next = machine->n_places ? close_items(machine, err) : 0;
    if (next >= 0)
        known[byte] = next;
    return next;
}
