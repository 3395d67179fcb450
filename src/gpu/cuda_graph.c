/* See cuda_graph.h.
 *
 * A step's launches are nearly those of the step before: the same kernels in the same order, some with another length, position or
 * grid. So the graph of a sequence of kernels is kept, and of its nodes those are patched whose arguments have changed; the rest
 * costs one call. A stream capture would make all launches again to find that out, and forbids copies and waits meanwhile; lengths
 * in device memory would need no patches, but kernels that read them there and grids that are rounded up. */
#include <stdlib.h>
#include <string.h>

#include "gpu/cuda_api.h"
#include "gpu/cuda_graph.h"

enum {
    LEAST_LAUNCHES = 16, /* of a graph: fewer are launched one by one */
    PIECE = 64,          /* launches of a graph: the device begins with a step while the host still makes the rest of it */
    MOST_GRAPHS = 64 /* sequences that are remembered: pieces of steps of other numbers of sessions, that select or do not, ... */
};

struct launch {
    int kernel, groups[3], first_arg, n_args;
};

/* Launches in their order. */
struct list {
    struct launch *launches; /* [n] */
    uint64_t *args;          /* [n_args] as the driver reads them: in the first bytes */
    int n, max, n_args, max_args;
};

/* A sequence of kernels. exec: NULL until it comes for the second time, for most of a prompt's never do. */
struct graph {
    struct list list; /* as it was launched last */
    int piece;        /* of a step: other layers may have the same kernels, but none of these arguments */
    void *graph, *exec, **nodes;
    uint64_t used; /* when */
};

struct butler_cuda_launches {
    struct list waiting;
    struct graph graphs[MOST_GRAPHS];
    uint64_t now;
    int piece; /* which the list that waits will be: how many went before without anything else between */
    bool off;  /* a function for graphs failed: launches go one by one */
};

static const struct butler_cuda *cuda_of(const struct butler_gpu *gpu)
{
    return gpu->api;
}

/* ------------------------------------------------------------------------------------------------------- lists */

/* *items has room for n more of `bytes` each behind n_used; false: no memory. */
static bool make_room(void *items, int *max, int n_used, int n, size_t bytes)
{
    void *old, *more;
    const int wanted = BUTLER_MAX(n_used + n, 2 * *max);
    if (n_used + n <= *max)
        return true;
    memcpy(&old, items, sizeof old);
    if (!(more = realloc(old, (size_t)wanted * bytes)))
        return false;
    memcpy(items, &more, sizeof more);
    *max = wanted;
    return true;
}

int butler_cuda_add_launch(struct butler_gpu *gpu, int kernel, const int groups[3], const struct butler_gpu_arg *args, int n)
{
    if (!gpu->waiting && !(gpu->waiting = calloc(1, sizeof *gpu->waiting)))
        return CUDA_OUT_OF_MEMORY;
    struct list *list = &gpu->waiting->waiting;
    if (!make_room(&list->launches, &list->max, list->n, 1, sizeof *list->launches) ||
        !make_room(&list->args, &list->max_args, list->n_args, n, sizeof *list->args))
        return CUDA_OUT_OF_MEMORY;
    list->launches[list->n++] = (struct launch){kernel, {groups[0], groups[1], groups[2]}, list->n_args, n};
    for (int i = 0; i < n; i++) {
        list->args[list->n_args] = 0;
        memcpy(&list->args[list->n_args++], &args[i].value, args[i].n_bytes);
    }
    return 0;
}

static bool same_kernels(const struct list *a, const struct list *b)
{
    for (int i = 0; i < a->n && a->n == b->n; i++)
        if (a->launches[i].kernel != b->launches[i].kernel)
            return false;
    return a->n == b->n;
}

/* Launch i of lists of the same kernels, whose arguments are in the same places then. */
static bool same_launch(const struct list *a, const struct list *b, int i)
{
    const struct launch *x = &a->launches[i], *y = &b->launches[i];
    return !memcmp(x->groups, y->groups, sizeof x->groups) &&
           !memcmp(a->args + x->first_arg, b->args + y->first_arg, (size_t)x->n_args * sizeof *a->args);
}

static void exchange(struct list *a, struct list *b)
{
    const struct list was = *a;
    *a = *b;
    *b = was;
}

static void point_at_args(const struct list *list, int i, void *values[GPU_MOST_ARGS])
{
    for (int a = 0; a < list->launches[i].n_args; a++)
        values[a] = list->args + list->launches[i].first_arg + a;
}

/* ------------------------------------------------------------------------------------------------------ graphs */

/* Launch i as a node, by arguments that values point at. */
static struct butler_cuda_node_params node_of(const struct butler_gpu *gpu, const struct list *list, int i,
                                              void *values[GPU_MOST_ARGS])
{
    const struct launch *launch = &list->launches[i];
    point_at_args(list, i, values);
    return (struct butler_cuda_node_params){
        .function = gpu->kernels[launch->kernel],
        .grid = {(unsigned)launch->groups[0], (unsigned)launch->groups[1], (unsigned)launch->groups[2]},
        .block = {GPU_THREADS, 1, 1},
        .args = values};
}

static void destroy_graph(struct butler_gpu *gpu, struct graph *graph)
{
    if (graph->exec)
        cuda_of(gpu)->GraphExecDestroy(graph->exec); /* one that runs ends first */
    if (graph->graph)
        cuda_of(gpu)->GraphDestroy(graph->graph);
    free(graph->nodes);
    graph->exec = graph->graph = NULL;
    graph->nodes = NULL;
}

static void forget_graph(struct butler_gpu *gpu, struct graph *graph)
{
    destroy_graph(gpu, graph);
    free(graph->list.launches);
    free(graph->list.args);
    *graph = (struct graph){0};
}

/* Each launch after the one before. */
static int make_graph(struct butler_gpu *gpu, struct graph *graph, const struct list *list)
{
    const struct butler_cuda *cuda = cuda_of(gpu);
    void *values[GPU_MOST_ARGS];
    graph->nodes = calloc((size_t)list->n, sizeof *graph->nodes);
    int code = graph->nodes ? cuda->GraphCreate(&graph->graph, 0) : CUDA_OUT_OF_MEMORY;
    for (int i = 0; i < list->n && code == 0; i++) {
        const struct butler_cuda_node_params params = node_of(gpu, list, i, values);
        code = cuda->GraphAddKernelNode_v2(&graph->nodes[i], graph->graph, i > 0 ? &graph->nodes[i - 1] : NULL, i > 0, &params);
    }
    return code ? code : cuda->GraphInstantiateWithFlags(&graph->exec, graph->graph, 0);
}

/* The graph, launched last as graph->list has it, becomes that of a list of the same kernels. What runs keeps its arguments. */
static int patch_graph(struct butler_gpu *gpu, const struct graph *graph, const struct list *list)
{
    void *values[GPU_MOST_ARGS];
    int code = 0;
    for (int i = 0; i < list->n && code == 0; i++)
        if (!same_launch(list, &graph->list, i)) {
            const struct butler_cuda_node_params params = node_of(gpu, list, i, values);
            code = cuda_of(gpu)->GraphExecKernelNodeSetParams_v2(graph->exec, graph->nodes[i], &params);
        }
    return code;
}

static int launch_graph(struct butler_gpu *gpu, struct graph *graph, const struct list *list)
{
    const int code = graph->exec ? patch_graph(gpu, graph, list) : make_graph(gpu, graph, list);
    return code ? code : cuda_of(gpu)->GraphLaunch(graph->exec, gpu->queue);
}

/* The graph of the kernels of a list; of kernels that are new here an empty one, in the place of what was used longest ago. */
static struct graph *find_graph(struct butler_gpu *gpu, const struct list *list)
{
    struct butler_cuda_launches *launches = gpu->waiting;
    struct graph *oldest = launches->graphs, *found = NULL;
    for (struct graph *graph = launches->graphs; graph < launches->graphs + MOST_GRAPHS && !found; graph++) {
        found = graph->piece == launches->piece && same_kernels(&graph->list, list) ? graph : NULL;
        oldest = graph->used < oldest->used ? graph : oldest;
    }
    if (!found) {
        found = oldest;
        destroy_graph(gpu, found);
        found->list.n = found->list.n_args = 0;
        found->piece = launches->piece;
    }
    found->used = ++launches->now;
    return found;
}

/* ----------------------------------------------------------------------------------------------------- launches */

static int launch_each(struct butler_gpu *gpu, const struct list *list)
{
    int code = 0;
    for (int i = 0; i < list->n && code == 0; i++) {
        void *values[GPU_MOST_ARGS]; /* which the driver copies during the call */
        const struct butler_cuda_node_params node = node_of(gpu, list, i, values);
        code = cuda_of(gpu)->LaunchKernel(node.function, node.grid[0], node.grid[1], node.grid[2], node.block[0], node.block[1],
                                          node.block[2], 0, gpu->queue, values, NULL);
        butler_gpu_fail(gpu, butler_gpu_kernels[list->launches[i].kernel].name, code);
    }
    return code;
}

static void give_up_graphs(struct butler_gpu *gpu)
{
    for (int i = 0; i < MOST_GRAPHS; i++)
        forget_graph(gpu, &gpu->waiting->graphs[i]);
    gpu->waiting->off = true;
}

bool butler_cuda_has_piece(const struct butler_gpu *gpu)
{
    return gpu->waiting && gpu->waiting->waiting.n >= PIECE;
}

int butler_cuda_flush_piece(struct butler_gpu *gpu)
{
    struct butler_cuda_launches *launches = gpu->waiting;
    struct list *list = &launches->waiting;
    bool launched = false;
    int code = 0;
    const bool wanted = cuda_of(gpu)->has_graphs && !launches->off && list->n >= LEAST_LAUNCHES && gpu->fault.code == 0;
    struct graph *graph = wanted ? find_graph(gpu, list) : NULL;
    if (graph && graph->list.n > 0 && !(launched = launch_graph(gpu, graph, list) == 0)) {
        give_up_graphs(gpu); /* for what graphs alone need, as memory for them; a lost device fails below again, and is named */
        graph = NULL;
    }
    if (!launched && gpu->fault.code == 0)
        code = launch_each(gpu, list);
    if (graph)
        exchange(list, &graph->list);
    list->n = list->n_args = 0;
    launches->piece++;
    return code;
}

int butler_cuda_flush(struct butler_gpu *gpu)
{
    const int code = gpu->waiting && gpu->waiting->waiting.n > 0 ? butler_cuda_flush_piece(gpu) : 0;
    if (gpu->waiting)
        gpu->waiting->piece = 0;
    return code;
}

void butler_cuda_free_launches(struct butler_gpu *gpu)
{
    if (!gpu->waiting)
        return;
    give_up_graphs(gpu);
    free(gpu->waiting->waiting.launches);
    free(gpu->waiting->waiting.args);
    free(gpu->waiting);
    gpu->waiting = NULL;
}
