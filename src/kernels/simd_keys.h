/* Predicted keys, what every ISA has alike: included by its file behind keys_queries, which takes the bits of a channel as a
 * constant. */
#ifndef BUTLER_SIMD_KEYS_H
#define BUTLER_SIMD_KEYS_H

/* Runs `pass` for queries [at, at + count), count being a constant to the compiler: four of them share what is loaded of a key, and
 * what is left of them too. */
#define BY_QUERIES(n_q, pass)                                                                                                      \
    do {                                                                                                                           \
        int at = 0;                                                                                                                \
        for (; at + 4 <= (n_q); at += 4) {                                                                                         \
            enum { count = 4 };                                                                                                    \
            pass;                                                                                                                  \
        }                                                                                                                          \
        if ((n_q)-at == 3) {                                                                                                       \
            enum { count = 3 };                                                                                                    \
            pass;                                                                                                                  \
        } else if ((n_q)-at == 2) {                                                                                                \
            enum { count = 2 };                                                                                                    \
            pass;                                                                                                                  \
        } else if ((n_q)-at == 1) {                                                                                                \
            enum { count = 1 };                                                                                                    \
            pass;                                                                                                                  \
        }                                                                                                                          \
    } while (0)

#define KEYS_PASS(bits, width)                                                                                                     \
    BY_QUERIES(q.n, keys_queries(bits, butler_results_from(s, at),                                                                 \
                                 (struct butler_byte_queries){q.at + (size_t)at * (size_t)(width), q.factor + at, count}, records, \
                                 width))

#define KEYS_OF(name, bits)                                                                                                        \
    static void name(struct butler_results s, struct butler_byte_queries q, struct butler_records records, int n)                  \
    {                                                                                                                              \
        if (n == 16) /* the usual widths: loops that are as long as that are none */                                               \
            KEYS_PASS(bits, 16);                                                                                                   \
        else if (n == 32)                                                                                                          \
            KEYS_PASS(bits, 32);                                                                                                   \
        else                                                                                                                       \
            KEYS_PASS(bits, n);                                                                                                    \
    }

KEYS_OF(keys8, 8)
KEYS_OF(keys4, 4)

#endif
