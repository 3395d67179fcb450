/* The ceilings of one core, measured in the same run as the kernels. Each returns something that depends on all its work. */
#ifndef BUTLER_CEILINGS_H
#define BUTLER_CEILINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* n rounds of independent multiply-adds in the widest vectors of the ISA; *flops is how many operations that was. */
float ceiling_fma(const char *isa, long n, double *flops);
/* What one core can multiply with each of its units, n rounds; 0 where this CPU has no such unit. *ops counts multiplies
 * and adds. */
enum ceiling_unit { CEILING_FMA_F32, CEILING_FMA_F16, CEILING_VNNI, CEILING_AMX_INT8, CEILING_AMX_BF16, CEILING_N_UNITS };
extern const char *const ceiling_unit_names[CEILING_N_UNITS];
float ceiling_dot(enum ceiling_unit unit, long n, double *ops);
/* Reads p[n] from front to back, prefetching `ahead` bytes (0: the hardware alone). */
uint64_t ceiling_read(const void *p, size_t n, size_t ahead);
/* Reads p[n] in four places side by side, prefetched into the second-level cache first, as products read rows of weights. */
uint64_t ceiling_read_streams(const void *p, size_t n);
/* Touches every cache line of the rows in the order of the list. */
uint64_t ceiling_gather(const void *const *rows, int n_rows, size_t bytes);

#endif
