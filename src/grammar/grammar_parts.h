/* Shared by the files of grammars: the rules that GBNF is compiled to, and the machine that follows them. */
#ifndef BUTLER_GRAMMAR_PARTS_H
#define BUTLER_GRAMMAR_PARTS_H

#include "base/util.h"

struct butler_tokenizer;

enum {
    BUTLER_MAX_ELEMENTS = 1 << 20, /* of all rules together, repetitions written out */
    BUTLER_MAX_REPEATS = 100000,
    BUTLER_MANY_REPEATS = 24,
};
#define BUTLER_NO_INDEX UINT32_MAX

enum butler_element_kind {
    BUTLER_ELEMENT_END,   /* of an alternative */
    BUTLER_ELEMENT_BYTES, /* one byte of the set `arg` */
    BUTLER_ELEMENT_RULE,  /* rule `arg` */
    /* The same, but not empty. In x* = x x* | "" and x? a rule x that matches nothing adds nothing, and would make the loop
     * left-recursive. */
    BUTLER_ELEMENT_NONEMPTY,
};

struct butler_element {
    unsigned kind : 2; /* enum butler_element_kind */
    unsigned arg : 30;
};

static inline struct butler_element butler_element_of(enum butler_element_kind kind, uint32_t arg)
{
    return (struct butler_element){.kind = kind, .arg = arg & ((1u << 30) - 1)};
}

struct butler_byte_set {
    uint64_t bits[4];
};

static inline bool butler_byte_in(const struct butler_byte_set *set, unsigned byte)
{
    return set->bits[byte / 64] >> byte % 64 & 1;
}

struct butler_rule {
    uint32_t first, last; /* alternatives, linked by next; BUTLER_NO_INDEX: none */
    uint32_t rank;        /* a rule that can begin with another one has the lower rank */
    bool nullable, productive;
};

/* A context-free grammar over bytes. A position is the index of an element. */
struct butler_rules {
    struct butler_element *elements; /* every alternative ends with BUTLER_ELEMENT_END */
    struct butler_alternative {
        uint32_t start, next;
    } * alternatives;
    struct butler_rule *rules;
    struct butler_byte_set *sets;
    uint32_t n_elements, n_alternatives, n_rules, n_sets;
    size_t max_elements, max_alternatives, max_rules, max_sets;
    uint32_t start; /* position of an alternative that is rule root alone */
    /* x{m,n} is a chain of rules "x rest | nothing". A position from `start` to start + 2 of one that may have more than
     * BUTLER_MANY_REPEATS times x has a canonical one, the same from `canonical` on, of the rule that may have just so many: what
     * may follow differs only behind so many bytes or more. Ascending. */
    struct butler_canonical {
        uint32_t start, canonical;
    } * canonicals;
    uint32_t n_canonicals;
    size_t max_canonicals;
};

/* A sequence that is being parsed. */
struct butler_sequence {
    struct butler_element *elements;
    size_t n, max;
};

/* grammar_rules.c. Functions that return an int return 0 or a code. */
void butler_rules_free(struct butler_rules *rules);
int butler_sequence_add(struct butler_sequence *sequence, enum butler_element_kind kind, uint32_t arg, struct butler_error *err);
int butler_rules_new_rule(struct butler_rules *rules, uint32_t *rule, struct butler_error *err);
int butler_rules_new_set(struct butler_rules *rules, const struct butler_byte_set *set, uint32_t *index, struct butler_error *err);
/* Gives the rule one more alternative: the n elements. */
int butler_rules_add(struct butler_rules *rules, uint32_t rule, const struct butler_element *elements, size_t n,
                     struct butler_error *err);
/* Says that the last rule to which an alternative was added, from position `start` on, has its canonical positions from `canonical`
 * on. */
int butler_rules_add_canonical(struct butler_rules *rules, uint32_t start, uint32_t canonical, struct butler_error *err);
/* The canonical position of this one; of most it is itself. */
uint32_t butler_rules_canonical(const struct butler_rules *rules, uint32_t position);
/* Fills nullable, productive and rank when all rules are complete. *cycle: BUTLER_NO_INDEX, or a rule that is left-recursive. */
int butler_rules_analyse(struct butler_rules *rules, uint32_t *cycle, struct butler_error *err);

/* grammar_class.c: adds to the sequence what matches one character of ranges[n] (inclusive; sorted and merged in place), or with
 * `negated` one of all others. *empty: there is none. */
struct butler_range {
    uint32_t low, high;
};
int butler_class_add(struct butler_rules *rules, struct butler_sequence *sequence, struct butler_range *ranges, size_t n,
                     bool negated, bool *empty, struct butler_error *err);

/* grammar.c. The tokenizer tells which tokens <references> mean. */
int butler_gbnf_parse(struct butler_rules *rules, const char *gbnf, const struct butler_tokenizer *tokenizer,
                      struct butler_error *err);

/* grammar_machine.c. State 0 has no way on. */
struct butler_machine;
/* shared: counts its states together with those of other machines; borrowed. */
struct butler_machine *butler_machine_new(const struct butler_rules *rules, struct butler_shared_memory *shared,
                                          struct butler_error *err);
void butler_machine_free(struct butler_machine *machine);
int32_t butler_machine_start(const struct butler_machine *machine);
/* The state of a text that is complete and goes on nowhere. */
int32_t butler_machine_end(const struct butler_machine *machine);
bool butler_machine_can_end(const struct butler_machine *machine, int32_t state);
/* The state behind a byte, or a negative code. */
int32_t butler_machine_step(struct butler_machine *machine, int32_t state, unsigned byte, struct butler_error *err);
/* The states behind all bytes, as far as they are known: -1 where butler_machine_step must be asked. NULL: none is. Valid until
 * the next step. */
const int32_t *butler_machine_known(const struct butler_machine *machine, int32_t state);
/* The state with only the nearest places to return to, and long repetitions shortened; so many states become the same.
 * Where a step from such a state (or from one behind it) fails and butler_machine_escapes held before, or behind
 * BUTLER_MANY_REPEATS bytes or more, the whole state may go on. */
int32_t butler_machine_shorten(struct butler_machine *machine, int32_t state, struct butler_error *err);
/* Whether a way leads from this state to where its shortened stack ends. */
bool butler_machine_escapes(const struct butler_machine *machine, int32_t state);
/* Begins a call of the user: the work until the next one, in items that are made, is bounded. After `pause` items, 1 or more, steps
 * that are not known fail, and butler_machine_paused says so: at least one was made. */
enum { BUTLER_GRAMMAR_WORK = 1 << 22 };
void butler_machine_begin(struct butler_machine *machine, size_t pause);
bool butler_machine_paused(const struct butler_machine *machine);
size_t butler_machine_work(const struct butler_machine *machine); /* since then */

#endif
