/* See map.h. */
#include "serve/map.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct serve_map {
    struct serve_maps *maps;
    struct serve_map *next;
    struct serve_map_view view;
    char *policy;
    int32_t *ids;                  /* [capacity] */
    struct serve_map_step **steps; /* [capacity], behind the prompt's place too: as many as ids */
    int capacity;
    size_t bytes;
    /* Of the step that runs, or that ran last and whose token is not drawn yet. */
    struct serve_map_step *step; /* or NULL */
    float *head_mass;            /* [n_ctx] of the KV head that is being reported; NULL before the first step */
    bool *head_read;             /* [n_ctx] */
    double mass_read;
};

struct serve_maps {
    size_t max_bytes;
    int n_layers, n_heads, n_kv_heads;
    pthread_mutex_t lock;    /* of what follows, and of what views show */
    struct serve_map *first; /* oldest first */
    size_t bytes;
};

struct serve_maps *serve_maps_new(const struct butler_model_info *info, size_t max_bytes)
{
    struct serve_maps *maps = serve_alloc(1, sizeof *maps);
    maps->max_bytes = max_bytes;
    maps->n_layers = info->n_layers;
    maps->n_heads = info->n_heads;
    maps->n_kv_heads = info->n_kv_heads;
    pthread_mutex_init(&maps->lock, NULL);
    return maps;
}

static void free_step(const struct serve_maps *maps, struct serve_map_step *step)
{
    for (int i = 0; step && i < maps->n_layers * maps->n_kv_heads; i++) {
        free(step->heads[i].top);
        free(step->heads[i].runs);
    }
    if (step) {
        free(step->mass);
        free(step->readers);
        free(step->heads);
    }
    free(step);
}

static void free_map(struct serve_map *map)
{
    for (int i = map->view.n_prompt; i < map->view.n_tokens; i++)
        free_step(map->maps, map->steps[i]);
    free_step(map->maps, map->step);
    free(map->head_mass);
    free(map->head_read);
    free(map->steps);
    free(map->ids);
    free(map->policy);
    free(map);
}

void serve_maps_free(struct serve_maps *maps)
{
    if (!maps)
        return;
    for (struct serve_map *map = maps->first, *next; map; map = next) {
        next = map->next;
        free_map(map);
    }
    pthread_mutex_destroy(&maps->lock);
    free(maps);
}

/* Under the lock: texts that have ended make room for more bytes, the oldest first. */
static bool make_room(struct serve_maps *maps, size_t bytes)
{
    for (struct serve_map **at = &maps->first; *at && maps->bytes + bytes > maps->max_bytes;) {
        struct serve_map *map = *at;
        if (map->view.running) {
            at = &map->next;
            continue;
        }
        *at = map->next;
        maps->bytes -= map->bytes;
        free_map(map);
    }
    if (maps->bytes + bytes > maps->max_bytes)
        return false;
    maps->bytes += bytes;
    return true;
}

struct serve_map *serve_map_begin(struct serve_maps *maps, const struct serve_job *job, int i)
{
    struct serve_map *map = serve_alloc(1, sizeof *map), **end = &maps->first;
    map->maps = maps;
    map->capacity = job->n_prompt + 64;
    map->ids = serve_alloc((size_t)map->capacity, sizeof *map->ids);
    map->steps = serve_alloc((size_t)map->capacity, sizeof(struct serve_map_step *));
    memcpy(map->ids, job->prompt, (size_t)job->n_prompt * sizeof *map->ids);
    map->policy = strdup(job->policy);
    map->view = (struct serve_map_view){.id = job->id,
                                        .owner = job->owner,
                                        .choice = i,
                                        .n_layers = maps->n_layers,
                                        .n_kv_heads = maps->n_kv_heads,
                                        .n_prompt = job->n_prompt,
                                        .n_tokens = job->n_prompt,
                                        .running = true};
    map->bytes = (size_t)map->capacity * (sizeof *map->ids + sizeof(struct serve_map_step *));
    pthread_mutex_lock(&maps->lock);
    map->view.complete = make_room(maps, map->bytes);
    maps->bytes += map->view.complete ? 0 : map->bytes;
    while (*end)
        end = &(*end)->next;
    *end = map;
    pthread_mutex_unlock(&maps->lock);
    return map;
}

/* ------------------------------------------------------------------------------------------------- a step */

static int by_mass(const void *a, const void *b)
{
    const struct serve_map_top *x = a, *y = b;
    return x->mass > y->mass ? -1 : x->mass < y->mass ? 1 : x->position - y->position;
}

/* The tokens with the most attention of a KV head into top[SERVE_MAP_TOP], most first. Returns their number. */
static int find_top(const float *mass, int n, struct serve_map_top *top)
{
    int n_top = 0, least = 0; /* least: of top, where it is full */
    for (int i = 0; i < n; i++) {
        const bool is_full = n_top == SERVE_MAP_TOP;
        if (!(mass[i] > 0) || (is_full && mass[i] <= top[least].mass))
            continue;
        top[is_full ? least : n_top++] = (struct serve_map_top){i, mass[i]};
        for (int k = 0; n_top == SERVE_MAP_TOP && k < n_top; k++)
            least = k == 0 || top[k].mass < top[least].mass ? k : least;
    }
    qsort(top, (size_t)n_top, sizeof *top, by_mass);
    return n_top;
}

/* All query heads of a KV head were reported. */
static void end_head(struct serve_map *map, struct serve_map_head *head)
{
    const struct serve_maps *maps = map->maps;
    struct serve_map_step *step = map->step;
    struct serve_map_top top[SERVE_MAP_TOP];
    const float group = (float)maps->n_heads / (float)maps->n_kv_heads, n_kv = (float)(maps->n_layers * maps->n_kv_heads);
    for (int i = 0; i < step->n_tokens; i++) {
        map->head_mass[i] /= group;
        step->mass[i] += map->head_mass[i] / n_kv;
        step->readers[i] = (uint16_t)(step->readers[i] + map->head_read[i]);
        head->n_runs += map->head_read[i] && (i == 0 || !map->head_read[i - 1]);
    }
    head->mass_read = (float)map->mass_read / group;
    head->n_top = find_top(map->head_mass, step->n_tokens, top);
    head->top = serve_alloc((size_t)head->n_top + 1, sizeof *top);
    memcpy(head->top, top, (size_t)head->n_top * sizeof *top);
    head->runs = serve_alloc((size_t)head->n_runs + 1, sizeof *head->runs);
    for (int i = 0, run = -1; i < step->n_tokens; i++) {
        if (map->head_read[i] && (i == 0 || !map->head_read[i - 1]))
            head->runs[++run].first = i;
        if (map->head_read[i])
            head->runs[run].n++;
    }
    step->bytes += (size_t)head->n_top * sizeof *head->top + (size_t)head->n_runs * sizeof *head->runs;
}

static void on_attention(void *user, const struct butler_head_attention *attention)
{
    struct serve_map *map = user;
    const struct serve_maps *maps = map->maps;
    const int group = maps->n_heads / maps->n_kv_heads;
    if (attention->head % group == 0) {
        memset(map->head_mass, 0, (size_t)map->step->n_tokens * sizeof *map->head_mass);
        memset(map->head_read, 0, (size_t)map->step->n_tokens * sizeof *map->head_read);
        map->mass_read = 0;
    }
    for (int i = 0; i < attention->n; i++)
        map->head_mass[attention->positions[i]] += attention->weights[i];
    for (int i = 0, at = 0; i < attention->n_read; i++) {
        map->head_read[attention->read[i]] = true;
        while (at < attention->n && attention->positions[at] < attention->read[i])
            at++;
        if (at < attention->n && attention->positions[at] == attention->read[i])
            map->mass_read += (double)attention->weights[at];
    }
    if (attention->head % group == group - 1)
        end_head(map, &map->step->heads[attention->layer * maps->n_kv_heads + attention->head / group]);
}

static void drop_step(struct serve_map *map)
{
    free_step(map->maps, map->step);
    map->step = NULL;
}

void serve_map_before(struct serve_map *map, struct butler_session *session)
{
    const size_t n = (size_t)butler_n_past(session) + 1, n_heads = (size_t)(map->maps->n_layers * map->maps->n_kv_heads);
    drop_step(map); /* of a step that failed */
    if (!map->view.complete || butler_session_on_attention(session, on_attention, map, NULL) < 0) {
        butler_session_on_attention(session, NULL, NULL, NULL);
        return;
    }
    map->step = serve_alloc(1, sizeof *map->step);
    map->step->n_tokens = (int)n;
    map->step->mass = serve_alloc(n, sizeof(float));
    map->step->readers = serve_alloc(n, sizeof(uint16_t));
    map->step->heads = serve_alloc(n_heads, sizeof(struct serve_map_head));
    map->step->bytes = sizeof *map->step + n * (sizeof(float) + sizeof(uint16_t)) + n_heads * sizeof(struct serve_map_head);
    if (!map->head_mass) {
        map->head_mass = serve_alloc((size_t)butler_n_ctx(session), sizeof(float));
        map->head_read = serve_alloc((size_t)butler_n_ctx(session), sizeof(bool));
    }
}

void serve_map_after(struct serve_map *map)
{
    struct serve_maps *maps = map->maps;
    if (!map->step)
        return;
    pthread_mutex_lock(&maps->lock);
    map->view.complete = make_room(maps, map->step->bytes);
    map->bytes += map->view.complete ? map->step->bytes : 0;
    pthread_mutex_unlock(&maps->lock);
    if (!map->view.complete)
        drop_step(map);
}

void serve_map_token(struct serve_map *map, int32_t id)
{
    struct serve_maps *maps = map->maps;
    pthread_mutex_lock(&maps->lock);
    if (map->view.n_tokens == map->capacity) {
        const size_t n = (size_t)map->capacity, more = n * (sizeof *map->ids + sizeof(struct serve_map_step *));
        int32_t *ids = serve_alloc(2 * n, sizeof *ids);
        struct serve_map_step **steps = serve_alloc(2 * n, sizeof(struct serve_map_step *));
        memcpy(ids, map->ids, n * sizeof *ids);
        memcpy(steps, map->steps, n * sizeof(struct serve_map_step *));
        free(map->ids);
        free(map->steps);
        map->ids = ids;
        map->steps = steps;
        map->capacity *= 2;
        map->bytes += more;
        maps->bytes += more;
    }
    map->ids[map->view.n_tokens] = id;
    map->steps[map->view.n_tokens++] = map->step;
    map->step = NULL;
    pthread_mutex_unlock(&maps->lock);
}

void serve_map_end(struct serve_map *map)
{
    if (!map)
        return;
    drop_step(map);
    free(map->head_mass);
    free(map->head_read);
    map->head_mass = NULL;
    map->head_read = NULL;
    pthread_mutex_lock(&map->maps->lock);
    map->view.running = false;
    pthread_mutex_unlock(&map->maps->lock);
}

void serve_maps_each(struct serve_maps *maps, bool (*fn)(void *user, const struct serve_map_view *view), void *user)
{
    bool more = true;
    pthread_mutex_lock(&maps->lock);
    for (struct serve_map *map = maps->first; map && more; map = map->next) {
        struct serve_map_view view = map->view;
        view.policy = map->policy;
        view.ids = map->ids;
        view.steps = (const struct serve_map_step *const *)(map->steps + view.n_prompt);
        more = fn(user, &view);
    }
    pthread_mutex_unlock(&maps->lock);
}
