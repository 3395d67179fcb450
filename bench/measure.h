/* How bench_kernels measures: jobs beside the ceilings of one core, or (compare) a job with every instruction set in turns. */
#ifndef BENCH_MEASURE_H
#define BENCH_MEASURE_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "ceilings.h"
#include "kernels/kernels.h"
#include "median.h"

enum { MAX_ISAS = 5, N_COMPARED = 1 << 18 /* of y */ };
#define DIFFERENCE 2e-3 /* from the reference, relative */

struct bench {
    const struct butler_kernels *table;
    const struct butler_kernels *tables[MAX_ISAS]; /* --compare: the reference first, the best last; else none */
    int n_tables, n_wrong;
    float *expected; /* what the reference makes of y */
    const char *only;
    int repeat;
    unsigned char *set; /* the large set, in slices: a repetition reads one, so it comes back when no cache holds it any more */
    size_t set_bytes;
    const void **rows; /* rows of the set, slice by slice */
    int max_rows;
    float *x, *y; /* small arrays of 1 << 22 floats */
    size_t ahead; /* best prefetch distance of the reading ceiling */
    volatile double sink;
};

#define SLICE ((size_t)64 << 20)
#define MAX_REPEAT 255

enum unit { BYTES, FLOPS, TILE_FLOPS, TILE_OPS, ELEMENTS };
static const char *const unit_names[] = {"GB/s", "GFLOP/s", "GFLOP/s", "Gop/s", "Gelem/s"};

/* What one measurement runs. */
struct job {
    struct bench *bench;
    int type, n, n_rows, n_q, n_tokens;
    size_t row_bytes;
    const unsigned char *slice;
    const void *const *rows;
    double allowed;                         /* difference from the reference, where not DIFFERENCE */
    void (*prepare)(const struct job *job); /* what each instruction set needs before its first run, or NULL */
};
typedef void job_fn(const struct job *job);

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static double seconds_of(job_fn *fn, const struct job *job)
{
    double start = cpu_seconds();
    fn(job);
    return cpu_seconds() - start;
}

static void read_slice(const struct job *job)
{
    job->bench->sink += (double)ceiling_read(job->slice, SLICE, job->bench->ahead);
}

static void read_rows(const struct job *job)
{
    job->bench->sink += (double)ceiling_gather(job->rows, job->n_rows, job->row_bytes);
}

/* The job over slice i of the set. */
static void choose_slice(struct job *job, int i)
{
    int slice = i % (int)(job->bench->set_bytes / SLICE);
    job->slice = job->bench->set + (size_t)slice * SLICE;
    job->rows = job->bench->rows + (size_t)slice * (size_t)job->n_rows;
}

static double fma_peak(struct bench *bench, enum unit unit)
{
    double flops, start = cpu_seconds();
    bench->sink += unit == FLOPS ? (double)ceiling_fma(bench->table->isa, 100000, &flops)
                                 : (double)ceiling_dot(unit == TILE_OPS ? CEILING_AMX_INT8 : CEILING_AMX_BF16, 40000, &flops);
    return flops / (cpu_seconds() - start);
}

static void print_rate(const struct bench *bench, const char *name, enum unit unit, double *rates, double *ceilings, double *ratios)
{
    double top = median(ceilings, bench->repeat);
    printf("%-34s %-12s %8.2f %-8s", name, bench->table->isa, median(rates, bench->repeat) / 1e9, unit_names[unit]);
    if (top > 0)
        printf(" %8.2f %6.0f %%", top / 1e9, 100 * median(ratios, bench->repeat));
    printf("\n");
    fflush(stdout);
}

static double run_once(struct bench *bench, job_fn *fn, const struct job *job)
{
    memcpy(bench->y, bench->x, N_COMPARED * sizeof(float));
    bench->sink = 0;
    fn(job);
    return bench->sink;
}

/* How far the results of a run are from the reference's, relative to the largest of these. */
static double difference(struct bench *bench, double sink, double expected_sink)
{
    double most = fabs(expected_sink), worst = fabs(sink - expected_sink);
    for (int i = 0; i < N_COMPARED; i++)
        if (memcmp(&bench->y[i], &bench->expected[i], sizeof(float)) != 0) {
            const double apart = fabs((double)bench->y[i] - (double)bench->expected[i]);
            worst = isnan(worst) || apart <= worst ? worst : apart;
            most = fmax(most, fabs((double)bench->expected[i]));
        }
    return worst == 0 ? 0 : worst / most;
}

/* The same work with every instruction set in turns. */
static void compare(struct bench *bench, const char *name, job_fn *fn, struct job *job, int rounds)
{
    double times[MAX_ISAS][MAX_REPEAT], apart[MAX_ISAS], below = 0, expected_sink = 0;
    const double allowed = job->allowed > 0 ? job->allowed : DIFFERENCE;
    for (int k = 0; k < bench->n_tables; k++) {
        bench->table = bench->tables[k];
        if (job->prepare)
            job->prepare(job);
        choose_slice(job, 0);
        const double sink = run_once(bench, fn, job);
        if (k == 0) {
            memcpy(bench->expected, bench->y, N_COMPARED * sizeof(float));
            expected_sink = sink;
        }
        apart[k] = difference(bench, sink, expected_sink);
    }
    for (int i = 0; i < bench->repeat; i++)
        for (int k = i ? 1 : 0; k < bench->n_tables; k++) { /* the reference, which is slow, once */
            bench->table = bench->tables[k];
            choose_slice(job, i * bench->n_tables + k); /* not what the set before has brought into the cache */
            if (job->prepare)
                job->prepare(job);
            const double start = cpu_seconds();
            for (int r = 0; r < (k ? rounds : 1); r++)
                fn(job);
            times[k][i] = (cpu_seconds() - start) / (k ? rounds : 1);
        }
    for (int k = 0; k < bench->n_tables; k++) {
        const double time = k ? median(times[k], bench->repeat) : times[k][0];
        printf("%-34s %-12s %12.0f ns %8.2f %9.1e%s\n", name, bench->tables[k]->isa, time * 1e9, k ? below / time : 1.0, apart[k],
               apart[k] <= allowed ? "" : " WRONG");
        bench->n_wrong += !(apart[k] <= allowed);
        below = time;
    }
    fflush(stdout);
}

/* A kernel that streams: its ceiling reads the slice half a set away. bytes: what one slice has of the kernel's operand. */
static void measure_stream(struct bench *bench, const char *name, double bytes, job_fn *fn, job_fn *ceiling, double ceiling_bytes,
                           struct job *job)
{
    double rates[MAX_REPEAT], ceilings[MAX_REPEAT], ratios[MAX_REPEAT];
    if (bench->only && !strstr(name, bench->only))
        return;
    if (bench->n_tables) {
        compare(bench, name, fn, job, 1);
        return;
    }
    for (int i = 0; i < bench->repeat; i++) {
        choose_slice(job, i + (int)(bench->set_bytes / SLICE / 2));
        ceilings[i] = ceiling_bytes / seconds_of(ceiling, job);
        choose_slice(job, i);
        rates[i] = bytes / seconds_of(fn, job);
        ratios[i] = rates[i] / ceilings[i];
    }
    print_rate(bench, name, BYTES, rates, ceilings, ratios);
}

/* A kernel that computes on what caches hold; amount is what one run handles, in the unit. */
static void measure(struct bench *bench, const char *name, enum unit unit, double amount, job_fn *fn, struct job *job)
{
    double rates[MAX_REPEAT], ceilings[MAX_REPEAT], ratios[MAX_REPEAT];
    if (bench->only && !strstr(name, bench->only))
        return;
    bench->table = bench->n_tables ? bench->tables[bench->n_tables - 1] : bench->table;
    if (job->prepare)
        job->prepare(job);
    choose_slice(job, 0);
    int rounds = 1;
    for (double t = seconds_of(fn, job); t * rounds < 0.004 && rounds < 1000000;)
        rounds *= 2;
    if (bench->n_tables) {
        compare(bench, name, fn, job, rounds);
        return;
    }
    for (int i = 0; i < bench->repeat; i++) {
        ceilings[i] = unit != ELEMENTS && unit != BYTES ? fma_peak(bench, unit) : 0;
        double start = cpu_seconds();
        for (int k = 0; k < rounds; k++)
            fn(job);
        rates[i] = amount * rounds / (cpu_seconds() - start);
        ratios[i] = ceilings[i] > 0 ? rates[i] / ceilings[i] : 0;
    }
    print_rate(bench, name, unit, rates, ceilings, ratios);
}

#endif
