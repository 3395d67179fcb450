/* GET /kv/map: the list of maps; with id= the tokens of one; with token= too what was read, and the attention, for that token. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>

#include "serve/api_parts.h"
#include "serve/map.h"

struct query {
    struct serve_api *api;
    int id, choice, token, layer, head; /* -1: not given */
    const struct http_exchange *exchange;
    json_t *answer; /* NULL: no such map yet */
    struct serve_error *error;
};

static json_t *head_json(const struct serve_map_view *view)
{
    return json_pack("{s:i, s:i, s:s, s:b, s:b, s:i, s:i, s:i, s:i}", "id", view->id, "choice", view->choice, "policy",
                     view->policy, "running", (int)view->running, "complete", (int)view->complete, "n_prompt_tokens",
                     view->n_prompt, "n_tokens", view->n_tokens, "n_layers", view->n_layers, "n_kv_heads", view->n_kv_heads);
}

/* The text of every token; bytes of a character that several tokens share are in the last of them. */
static json_t *tokens_json(const struct butler_model *model, const struct serve_map_view *view)
{
    json_t *list = json_array();
    struct butler_utf8 stream = {0};
    for (int i = 0; i < view->n_tokens; i++) {
        size_t n_bytes = 0;
        const char *bytes = butler_token_bytes(model, view->ids[i], &n_bytes);
        const size_t room = 3 * (n_bytes + 3);
        char *out = serve_alloc(room, 1);
        const size_t n = bytes ? butler_utf8_push(&stream, bytes, n_bytes, out, room) : 0;
        json_array_append_new(list, json_stringn(out, n));
        free(out);
    }
    return list;
}

/* Six digits: a text of 100,000 tokens has as many numbers. */
static json_t *share(double value)
{
    return value > 0 ? json_real(round(value * 1e6) / 1e6) : json_integer(0);
}

/* Sums over the heads that are asked for. */
static json_t *step_json(const struct query *query, const struct serve_map_view *view, const struct serve_map_step *step)
{
    const bool all = query->layer < 0;
    double *mass = serve_alloc((size_t)step->n_tokens, sizeof *mass), mass_read = 0, n_read = 0;
    int *readers = serve_alloc((size_t)step->n_tokens, sizeof *readers), n_heads = 0;
    json_t *mass_list = json_array(), *read_list = json_array(), *grid = json_array();
    for (int l = 0; l < view->n_layers; l++) {
        json_t *line = json_array();
        for (int h = 0; h < view->n_kv_heads; h++) {
            const struct serve_map_head *head = &step->heads[l * view->n_kv_heads + h];
            json_array_append_new(line, share((double)head->mass_read));
            if (!all && (l != query->layer || (query->head >= 0 && h != query->head)))
                continue;
            n_heads++;
            mass_read += (double)head->mass_read;
            for (int i = 0; i < head->n_top && !all; i++)
                mass[head->top[i].position] += (double)head->top[i].mass;
            for (int r = 0; r < head->n_runs; r++) {
                n_read += head->runs[r].n;
                for (int i = 0; i < head->runs[r].n; i++)
                    readers[head->runs[r].first + i]++;
            }
        }
        json_array_append_new(grid, line);
    }
    for (int i = 0; i < step->n_tokens; i++) {
        json_array_append_new(mass_list, share(all ? (double)step->mass[i] : mass[i] / n_heads));
        json_array_append_new(read_list, json_integer(readers[i]));
    }
    free(mass);
    free(readers);
    return json_pack("{s:i, s:i, s:i, s:f, s:f, s:o, s:o, s:o}", "token", query->token, "n_tokens", step->n_tokens, "n_heads",
                     n_heads, "read_share", n_read / n_heads / step->n_tokens, "mass_read", mass_read / n_heads, "mass", mass_list,
                     "readers", read_list, "heads", grid);
}

static bool on_map(void *user, const struct serve_map_view *view)
{
    struct query *query = user;
    if (!serve_may_see(query->exchange, view->owner)) /* as if it were not there */
        return true;
    if (query->id < 0) {
        json_array_append_new(query->answer, head_json(view));
        return true;
    }
    if (view->id != query->id || view->choice != query->choice)
        return true;
    const struct serve_map_step *step = NULL;
    if (query->token < 0) {
        query->answer = head_json(view);
        json_object_set_new(query->answer, "tokens", tokens_json(query->api->model, view));
    } else if (query->token < view->n_prompt || query->token >= view->n_tokens) {
        serve_fail(query->error, 404, "'token' must be one of the answer's: %d to %d", view->n_prompt, view->n_tokens - 1);
    } else if (query->layer >= view->n_layers || query->head >= view->n_kv_heads) {
        serve_fail(query->error, 404, "the model has %d layers with %d KV heads", view->n_layers, view->n_kv_heads);
    } else if (!(step = view->steps[query->token - view->n_prompt])) {
        serve_fail(query->error, 404, "there is no map of this token: %s",
                   query->token == view->n_prompt ? "the first one follows from the prompt, which attends densely"
                                                  : "there was no room for more");
    } else {
        query->answer = step_json(query, view, step);
    }
    return false;
}

json_t *serve_map_json(struct serve_api *api, const struct http_exchange *exchange, struct serve_error *error)
{
    struct query query = {.api = api, .exchange = exchange, .error = error};
    const char *text = exchange->query;
    query.id = serve_query_number(text, "id", -1, INT_MAX, error);
    query.choice = serve_query_number(text, "choice", 0, SERVE_MAX_CHOICES, error);
    query.token = serve_query_number(text, "token", -1, INT_MAX, error);
    query.layer = serve_query_number(text, "layer", -1, INT_MAX, error);
    query.head = serve_query_number(text, "head", -1, INT_MAX, error);
    if (!error->status &&
        ((query.token >= 0 && query.id < 0) || (query.layer >= 0 && query.token < 0) || (query.head >= 0 && query.layer < 0)))
        serve_fail(error, 400, "'token' needs 'id', 'layer' needs 'token', 'head' needs 'layer'");
    if (error->status)
        return NULL;
    if (query.id < 0)
        query.answer = json_array();
    serve_maps_each(serve_devices_params(api->devices)->maps, on_map, &query);
    if (!query.answer && !error->status)
        serve_fail(error, 404, "there is no map %d; requests ask for one by \"kv\": {\"map\": true}, and old ones make room",
                   query.id);
    return query.id < 0 ? json_pack("{s:o}", "maps", query.answer) : query.answer;
}
