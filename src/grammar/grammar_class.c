/* A class of characters becomes rules over the bytes of their UTF-8. Characters of one length that can be told by each byte alone
 * are one alternative: of "not a quote" those are the bytes of ASCII, and one alternative for each longer form. */
#include <stdlib.h>

#include "base/utf8.h"
#include "grammar/grammar_parts.h"

enum { MAX_CHARACTER = 0x10ffff };

static int by_low(const void *a, const void *b)
{
    const struct butler_range *x = a, *y = b;
    return (x->low > y->low) - (x->low < y->low);
}

/* Sorted, without overlaps; returns their number. */
static size_t merge(struct butler_range *ranges, size_t n)
{
    size_t kept = 0;
    if (n) /* `.` has no ranges at all */
        qsort(ranges, n, sizeof *ranges, by_low);
    for (size_t i = 0; i < n; i++)
        if (kept > 0 && ranges[i].low <= ranges[kept - 1].high + 1)
            ranges[kept - 1].high = BUTLER_MAX(ranges[kept - 1].high, ranges[i].high);
        else
            ranges[kept++] = ranges[i];
    return kept;
}

/* The class that is being written. */
struct class
{
    struct butler_rules *rules;
    struct butler_byte_set first[5]; /* by length: first bytes behind which every continuation is allowed */
    uint32_t rule;                   /* BUTLER_NO_INDEX until there is one */
    struct butler_error *err;
};

static void add_bytes(struct butler_byte_set *set, unsigned low, unsigned high)
{
    for (unsigned byte = low; byte <= high; byte++)
        set->bits[byte / 64] |= (uint64_t)1 << byte % 64;
}

static bool is_empty(const struct butler_byte_set *set)
{
    return !(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3]);
}

/* One more alternative of the class: n sets, one for each byte. */
static int add_alternative(struct class *class, const struct butler_byte_set *sets, int n)
{
    struct butler_element elements[4];
    int code = class->rule == BUTLER_NO_INDEX ? butler_rules_new_rule(class->rules, &class->rule, class->err) : 0;
    for (int i = 0; i < n && code == 0; i++) {
        uint32_t index = 0;
        code = butler_rules_new_set(class->rules, &sets[i], &index, class->err);
        elements[i] = butler_element_of(BUTLER_ELEMENT_BYTES, index);
    }
    return code < 0 ? code : butler_rules_add(class->rules, class->rule, elements, (size_t)n, class->err);
}

/* Characters low to high, all of n bytes. */
static int add_range(struct class *class, uint32_t low, uint32_t high, int n)
{
    /* Cut where the last bytes do not run over all their values, from the last byte to the first. */
    for (int i = 1; i < n; i++) {
        const uint32_t mask = (UINT32_C(1) << 6 * i) - 1;
        if ((low & ~mask) == (high & ~mask))
            continue;
        if (low & mask) {
            const int code = add_range(class, low, low | mask, n);
            return code < 0 ? code : add_range(class, (low | mask) + 1, high, n);
        }
        if ((high & mask) != mask) {
            const int code = add_range(class, low, (high & ~mask) - 1, n);
            return code < 0 ? code : add_range(class, high & ~mask, high, n);
        }
    }
    char from[4], to[4];
    struct butler_byte_set sets[4] = {{{0}}};
    bool all = true;
    butler_utf8_encode(low, from);
    butler_utf8_encode(high, to);
    for (int i = 1; i < n; i++)
        all = all && (unsigned char)from[i] == 0x80 && (unsigned char)to[i] == 0xbf;
    if (all) {
        add_bytes(&class->first[n], (unsigned char)from[0], (unsigned char)to[0]);
        return 0;
    }
    for (int i = 0; i < n; i++)
        add_bytes(&sets[i], (unsigned char)from[i], (unsigned char)to[i]);
    return add_alternative(class, sets, n);
}

/* A range cut where UTF-8 changes length, without the surrogates, which are no characters. */
static int add_characters(struct class *class, uint32_t low, uint32_t high)
{
    static const struct {
        uint32_t low, high;
        int n;
    } parts[] = {{0, 0x7f, 1}, {0x80, 0x7ff, 2}, {0x800, 0xd7ff, 3}, {0xe000, 0xffff, 3}, {0x10000, MAX_CHARACTER, 4}};
    int code = 0;
    for (int i = 0; i < BUTLER_COUNT(parts) && code == 0; i++) {
        const uint32_t from = BUTLER_MAX(low, parts[i].low), to = BUTLER_MIN(high, parts[i].high);
        if (from <= to)
            code = add_range(class, from, to, parts[i].n);
    }
    return code;
}

/* The alternatives whose continuations are free, and then the class as an element: bytes alone where no character is longer. */
static int finish(struct class *class, struct butler_sequence *sequence, bool *empty)
{
    bool longer = class->rule != BUTLER_NO_INDEX;
    for (int n = 2; n <= 4; n++)
        longer = longer || !is_empty(&class->first[n]);
    *empty = !longer && is_empty(&class->first[1]);
    if (!longer) {
        uint32_t index = 0;
        const int code = butler_rules_new_set(class->rules, &class->first[1], &index, class->err);
        return code < 0 ? code : butler_sequence_add(sequence, BUTLER_ELEMENT_BYTES, index, class->err);
    }
    int code = 0;
    for (int n = 1; n <= 4 && code == 0; n++) {
        struct butler_byte_set sets[4] = {class->first[n]};
        for (int i = 1; i < n; i++)
            add_bytes(&sets[i], 0x80, 0xbf);
        if (!is_empty(&sets[0]))
            code = add_alternative(class, sets, n);
    }
    return code < 0 ? code : butler_sequence_add(sequence, BUTLER_ELEMENT_RULE, class->rule, class->err);
}

int butler_class_add(struct butler_rules *rules, struct butler_sequence *sequence, struct butler_range *ranges, size_t n,
                     bool negated, bool *empty, struct butler_error *err)
{
    struct class class = {.rules = rules, .rule = BUTLER_NO_INDEX, .err = err};
    uint32_t next = 0; /* the first character that a negated class may still have */
    int code = 0;
    n = merge(ranges, n);
    for (size_t i = 0; i < n && code == 0; i++) {
        if (!negated)
            code = add_characters(&class, ranges[i].low, ranges[i].high);
        else if (ranges[i].low > next)
            code = add_characters(&class, next, ranges[i].low - 1);
        next = ranges[i].high + 1;
    }
    if (code == 0 && negated && next <= MAX_CHARACTER)
        code = add_characters(&class, next, MAX_CHARACTER);
    return code < 0 ? code : finish(&class, sequence, empty);
}
