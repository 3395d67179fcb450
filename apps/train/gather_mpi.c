/* Many processes, over MPI: the partial sum goes from rank to rank, each adds its texts in order, and the last rank broadcasts the
 * result. In segments, so that ranks work on different ones at the same time. A separate shared object (butler-mpi.so), loaded by
 * `butler train` and `butler eval` under mpirun: no other command loads MPI. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "gather.h"

enum { SEGMENT = 1 << 16 /* floats */, TAG = 1 };

static int failed(struct butler_error *err, int code, const char *what)
{
    char text[MPI_MAX_ERROR_STRING];
    int n = 0;
    if (code == MPI_SUCCESS)
        return 0;
    MPI_Error_string(code, text, &n);
    if (err) {
        err->code = BUTLER_ERROR_IO;
        snprintf(err->message, sizeof err->message, "MPI: %s: %.*s", what, n, text);
    }
    return BUTLER_ERROR_IO;
}

static int sum(const struct butler_gather *reduce, const float *const *parts, int n_parts, float *total, size_t n,
               struct butler_error *err)
{
    const int rank = reduce->rank, last = reduce->n_ranks - 1;
    int code = MPI_SUCCESS;
    for (size_t from = 0; from < n && code == MPI_SUCCESS; from += SEGMENT) {
        const int size = (int)(n - from < SEGMENT ? n - from : SEGMENT);
        int p = 0;
        if (rank > 0)
            code = MPI_Recv(total + from, size, MPI_FLOAT, rank - 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        else
            memcpy(total + from, parts[p++] + from, (size_t)size * sizeof *total);
        for (; p < n_parts && code == MPI_SUCCESS; p++)
            for (int i = 0; i < size; i++)
                total[from + (size_t)i] += parts[p][from + (size_t)i];
        if (code == MPI_SUCCESS && rank < last)
            code = MPI_Send(total + from, size, MPI_FLOAT, rank + 1, TAG, MPI_COMM_WORLD);
    }
    for (size_t from = 0; from < n && code == MPI_SUCCESS; from += SEGMENT)
        code = MPI_Bcast(total + from, (int)(n - from < SEGMENT ? n - from : SEGMENT), MPI_FLOAT, last, MPI_COMM_WORLD);
    return failed(err, code, "summing gradients");
}

static int share(const struct butler_gather *reduce, double *values, size_t n, struct butler_error *err)
{
    int code = MPI_SUCCESS;
    (void)reduce;
    for (size_t from = 0; from < n && code == MPI_SUCCESS; from += SEGMENT) {
        const int size = (int)(n - from < SEGMENT ? n - from : SEGMENT);
        code = MPI_Allreduce(MPI_IN_PLACE, values + from, size, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    }
    return failed(err, code, "sharing results");
}

static void end(const struct butler_gather *reduce)
{
    (void)reduce;
    MPI_Finalize();
}

__attribute__((visibility("default"))) butler_gather_begin_fn butler_gather_begin;

int butler_gather_begin(struct butler_gather *reduce, struct butler_error *err)
{
    *reduce = (struct butler_gather){.sum = sum, .share = share, .end = end};
    int code = MPI_Init(NULL, NULL);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_rank(MPI_COMM_WORLD, &reduce->rank);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_size(MPI_COMM_WORLD, &reduce->n_ranks);
    return failed(err, code, "starting");
}
