/* Graphs of the stand-in for libcuda.so.1: part of fake_cuda.c. */
#ifndef FAKE_CUDA_GRAPHS_H
#define FAKE_CUDA_GRAPHS_H

/* Where a graph of the context is in its list; NULL: it is none, or executable or not as asked for. */
static struct graph **find_graph(const void *object, bool executable)
{
    for (struct graph **at = &here()->graphs; *at; at = &(*at)->next)
        if (*at == object && !(*at)->of == !executable)
            return at;
    return NULL;
}

static struct graph *add_graph(const struct graph *of)
{
    struct graph *graph = calloc(1, sizeof *graph);
    if (!graph)
        abort();
    graph->of = of;
    graph->next = here()->graphs;
    here()->graphs = graph;
    fake_cuda.n_graphs++;
    return graph;
}

static int remove_graph(const void *object, bool executable)
{
    struct graph **at = find_graph(object, executable), *graph = at ? *at : NULL;
    if (!graph)
        return INVALID_HANDLE;
    *at = graph->next;
    free_graph(graph);
    return 0;
}

static void add_node(struct graph *graph, int after, const struct work *work)
{
    struct node *node = malloc(sizeof *node);
    if (!node || graph->n == MOST_NODES)
        abort();
    *node = (struct node){graph, graph->n, after, *work};
    graph->nodes[graph->n++] = node;
}

int cuGraphCreate(void **object, unsigned flags)
{
    BEGIN("GraphCreate")
    *object = flags == 0 ? add_graph(NULL) : NULL;
    return *object ? 0 : INVALID_VALUE;
}

int cuGraphDestroy(void *object)
{
    BEGIN("GraphDestroy")
    return remove_graph(object, false);
}

int cuGraphExecDestroy(void *object)
{
    BEGIN("GraphExecDestroy")
    return remove_graph(object, true);
}

int cuGraphAddKernelNode_v2(void **object, void *to, void *const *before, size_t n_before,
                            const struct butler_cuda_node_params *params)
{
    struct work work;
    BEGIN("GraphAddKernelNode")
    struct graph **at = find_graph(to, false);
    const struct node *after = n_before == 1 ? *before : NULL;
    if (!at || n_before > 1 || (after && after->graph != *at))
        return INVALID_VALUE;
    const int code = make_work(&work, params);
    if (code != 0)
        return code;
    add_node(*at, after ? after->index : -1, &work);
    *object = (*at)->nodes[(*at)->n - 1];
    return 0;
}

int cuGraphInstantiateWithFlags(void **object, void *of, unsigned long long flags)
{
    BEGIN("GraphInstantiate")
    struct graph **at = find_graph(of, false);
    if (!at || flags != 0)
        return INVALID_VALUE;
    const struct graph *from = *at;
    struct graph *graph = add_graph(from);
    for (int i = 0; i < from->n; i++)
        add_node(graph, from->nodes[i]->after, &from->nodes[i]->work);
    *object = graph;
    return 0;
}

/* Kernels stay the same, and the graph that it was made of must still be there. */
int cuGraphExecKernelNodeSetParams_v2(void *object, void *of, const struct butler_cuda_node_params *params)
{
    struct work work;
    BEGIN("GraphExecKernelNodeSetParams")
    struct graph **at = find_graph(object, true);
    const struct node *node = of;
    if (!at || !find_graph((*at)->of, false) || node->graph != (*at)->of)
        return INVALID_VALUE;
    const int code = make_work(&work, params);
    if (code != 0 || work.kernel != node->work.kernel)
        return code ? code : INVALID_VALUE;
    (*at)->nodes[node->index]->work = work;
    fake_cuda.n_patched++;
    return 0;
}

/* Of nodes that may run next the latest does: where no order was asked for there is none. */
int cuGraphLaunch(void *object, void *stream)
{
    bool done[MOST_NODES] = {false};
    BEGIN("GraphLaunch")
    struct graph **at = find_graph(object, true);
    if (!at || !is_stream(stream))
        return INVALID_HANDLE;
    const struct graph *graph = *at;
    for (int n = 0; n < graph->n; n++) {
        int i = graph->n - 1;
        while (done[i] || (graph->nodes[i]->after >= 0 && !done[graph->nodes[i]->after]))
            i--;
        check_places(&graph->nodes[i]->work);
        enqueue(&graph->nodes[i]->work, stream);
        done[i] = true;
    }
    fake_cuda.n_graphs_launched++;
    return 0;
}

#endif
