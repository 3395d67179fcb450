/* The forward pass: one layer loop for every architecture, every policy and every backend, over the rows of a pass: tokens of one
 * or of many sessions, parts of prompts and decode steps. Products take all rows of the pass at once, so its weights are read once;
 * attention is per session. */
#include <math.h>
#include <string.h>

#include "engine/method.h"
#include "engine/pass.h"
#include "engine/schedule.h"

/* cos and sin of positions [first, first + n), times scale, into rows [0, n) of host tables. */
static void rotations(const float *freq, float scale, size_t half, int first, int n, float *cosines, float *sines)
{
    for (int t = 0; t < n; t++)
        for (size_t i = 0; i < half; i++) {
            const double angle = (double)(first + t) * (double)freq[i];
            cosines[(size_t)t * half + i] = (float)(cos(angle) * (double)scale);
            sines[(size_t)t * half + i] = (float)(sin(angle) * (double)scale);
        }
}

/* Where keys stay unrotated, attention rotates them by their place in the cache: the table grows with the places. */
static void place_rotations(const struct butler_pass *pass, struct butler_session *session, int n)
{
    struct butler_kv *kv = &session->kv;
    const size_t half = (size_t)kv->n_rot / 2;
    int n_places = 0;
    for (int l = 0; l < kv->n_layers; l++)
        n_places = BUTLER_MAX(n_places, butler_kv_at(kv, l, 0)->n_slots + n);
    while (session->n_places < n_places) {
        const int m = BUTLER_MIN(n_places - session->n_places, pass->s->max_rows);
        const size_t at = (size_t)session->n_places * half, bytes = (size_t)m * half * sizeof(float);
        rotations(session->rope_freq, session->rope_scale, half, session->n_places, m, pass->s->host_cos, pass->s->host_sin);
        pass->backend->upload(pass->backend, kv->rope_cos + at, pass->s->host_cos, bytes);
        pass->backend->upload(pass->backend, kv->rope_sin + at, pass->s->host_sin, bytes);
        session->n_places += m;
    }
}

void butler_pass_multiply(const struct butler_pass *pass, const struct butler_product *products, int n_products, const float *x,
                          struct butler_rows rows)
{
    struct butler_backend *backend = pass->backend;
    struct butler_product own[BUTLER_MAX_PRODUCTS];
    const int n = backend->matmul_prompt ? rows.n_decode : rows.n;
    if (n > 0)
        backend->matmul(backend, &pass->s->work, products, n_products, x, n);
    for (int i = 0; i < n_products; i++) {
        own[i] = (struct butler_product){products[i].y + (size_t)n * (size_t)products[i].w->n_rows, products[i].w};
        pass->weights->weight_bytes += products[i].w->row_bytes * (uint64_t)products[i].w->n_rows;
    }
    if (n < rows.n)
        backend->matmul_prompt(backend, own, n_products, x + (size_t)n * (size_t)products[0].w->n_cols, rows.n - n);
}

void butler_pass_matmul(const struct butler_pass *pass, float *y, const struct butler_matrix *w, const float *x, int n)
{
    butler_pass_multiply(pass, &(struct butler_product){y, w}, 1, x, (struct butler_rows){n, n});
}

void butler_pass_norm(const struct butler_pass *pass, float *y, const float *x, const struct butler_vector *v, int n, int dim)
{
    if (v->weight)
        pass->backend->norm(pass->backend, y, x, v, n, dim, pass->hp->norm, pass->hp->norm_eps);
    else if (y != x)
        pass->backend->copy(pass->backend, y, x, (size_t)n * (size_t)dim * sizeof *y);
}

/* ------------------------------------------------------------------------------------------------ attention */

static struct butler_attend_span span_of(const struct butler_pass *pass, const struct butler_part *part, int layer)
{
    struct butler_session *session = part->session;
    const size_t n_q = (size_t)(session->shape.n_heads * session->shape.head_dim),
                 n_kv = (size_t)(session->shape.n_kv_heads * session->shape.head_dim), row = (size_t)part->row;
    const int window = pass->model->layers[layer].window;
    return (struct butler_attend_span){
        .state = butler_session_layer(session, part->traffic, layer, session->n_past),
        .q = pass->s->q + row * n_q,
        .k = pass->s->k + row * n_kv,
        .v = pass->s->v + row * n_kv,
        .out = pass->s->o + row * n_q,
        .n = part->n,
        .window = window > 0 ? window : INT32_MAX,
        .decode = part->decode,
        .exact = part->exact,
        .sparse = part->sparse && butler_policy_applies(&session->policy, layer),
        .observe_from = butler_schedule_observe(part, layer),
    };
}

/* Whether the policy evicts from this layer of the part's cache, before (decode) or after (prompt) its tokens are appended: *cut
 * says what stays. */
static bool evicts(const struct butler_part *part, int layer, struct butler_cut *cut)
{
    const struct butler_session *session = part->session;
    return !part->failed && part->cuts && butler_schedule_cut(session, layer, session->n_past + part->n, part->decode, cut);
}

/* Cuts the caches of decode steps, or of prompts. */
static void evict(const struct butler_pass *pass, int layer, bool decode)
{
    int n = 0;
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        if (part->decode != decode || !evicts(part, layer, &pass->s->cuts[n]))
            continue;
        if (butler_kv_unshare(&part->session->kv, layer, part->err) < 0) {
            butler_part_fail(part);
            continue;
        }
        struct butler_attend_span *span = &pass->s->spans[n++];
        *span = span_of(pass, part, layer);
        span->q += (size_t)(part->n - 1) * (size_t)(span->state.n_heads * part->session->shape.head_dim);
        span->state.position += part->n - 1 - part->decode; /* decode: the cache ends with the token before */
        part->session->evicted = true;
        butler_receipt_before_cut(part->session, layer, decode, span->state.position, span->q);
    }
    if (n > 0)
        butler_method_evict(pass->backend, pass->s->spans, pass->s->cuts, n);
    for (int i = 0; i < pass->n_parts; i++)
        butler_receipt_after_cut(pass->parts[i].session, layer, decode);
}

static uint64_t attention_ns(const struct butler_part *part)
{
    return part->traffic->score_ns + part->traffic->select_ns + part->traffic->attend_ns;
}

/* Divides the wall time of attention among the decode steps, in proportion to the thread time of each. before_sum: the thread time
 * of all parts before this layer. */
static void share_time(const struct butler_pass *pass, double seconds, uint64_t before_sum)
{
    uint64_t sum = 0;
    for (int i = 0; i < pass->n_parts; i++)
        sum += attention_ns(&pass->parts[i]);
    for (int i = 0; i < pass->n_parts && sum > before_sum; i++) {
        struct butler_part *part = &pass->parts[i];
        part->session->stats.attend_s +=
            part->decode ? seconds * (double)(attention_ns(part) - part->ns_before) / (double)(sum - before_sum) : 0;
    }
}

static void observe(const struct butler_pass *pass, int layer, enum butler_layer_point point)
{
    for (int o = 0; butler_layer_observers[o]; o++)
        for (int i = 0; butler_layer_observers[o]->at[point] && i < pass->n_parts; i++)
            if (!pass->parts[i].failed)
                butler_layer_observers[o]->at[point](pass, &pass->parts[i], layer);
}

/* q, k, v of the new tokens -> o, the caches grown and, where policies say so, cut. */
static void attention(const struct butler_pass *pass, int layer)
{
    uint64_t before = 0;
    int n = 0;
    observe(pass, layer, BUTLER_BEFORE_ATTENTION);
    const double start = butler_seconds();
    for (int i = 0; i < pass->n_parts; i++) {
        pass->parts[i].ns_before = attention_ns(&pass->parts[i]);
        before += pass->parts[i].ns_before;
        pass->parts[i].metric_bytes_before = pass->parts[i].traffic->metric_bytes;
    }
    evict(pass, layer, true);
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        struct butler_session *session = part->session;
        if (part->failed)
            continue;
        if (butler_kv_grow(&session->kv, layer, part->n, part->err) < 0) {
            butler_part_fail(part);
            continue;
        }
        struct butler_attend_span *span = &pass->s->spans[n++];
        *span = span_of(pass, part, layer);
        span->state.summarise_from = butler_schedule_summarise(session, layer, part->n);
        butler_schedule_span(session, layer, pass->n_parts == 1, span);
        if (span->sparse)
            butler_schedule_blocks(part, layer, span);
    }
    if (n > 0)
        butler_method_attend(pass->backend, pass->s->spans, n);
    share_time(pass, butler_seconds() - start, before);
    observe(pass, layer, BUTLER_AFTER_ATTENTION);
    evict(pass, layer, false);
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].decode && butler_schedule_covered(pass->parts[i].session, layer, pass->parts[i].n))
            butler_part_keep_for_later(pass->parts[i].traffic, pass->parts[i].metric_bytes_before);
}

/* ------------------------------------------------------------------------------------------ the rest of a layer */

static const struct butler_vector none;

/* What queries and keys go through between the products and attention. */
static void prepare_heads(const struct butler_pass *pass, const struct butler_layer *layer)
{
    const struct butler_hparams *hp = pass->hp;
    struct butler_backend *backend = pass->backend;
    struct butler_scratch *s = pass->s;
    const int q_parts = hp->wide_qk_norm ? 1 : hp->n_heads, k_parts = hp->wide_qk_norm ? 1 : hp->n_kv_heads;
    const size_t half = (size_t)hp->n_rot / 2, local = layer->rope == BUTLER_LAYER_ROTATES_LOCAL ? (size_t)s->max_rows * half : 0;
    butler_pass_norm(pass, s->q, s->q, &layer->q_norm, pass->n * q_parts, hp->n_heads / q_parts * hp->head_dim);
    butler_pass_norm(pass, s->k, s->k, &layer->k_norm, pass->n * k_parts, hp->n_kv_heads / k_parts * hp->head_dim);
    if (layer->rope != BUTLER_LAYER_UNROTATED) {
        const struct butler_rotation rotations[] = {{s->q, hp->n_heads}, {s->k, hp->n_kv_heads}};
        const struct butler_angles angles = {s->cos + local, s->sin + local, hp->head_dim, hp->n_rot, hp->rope};
        backend->rope(backend, rotations, BUTLER_COUNT(rotations), &angles, pass->n);
    }
    if (hp->query_scale != 1)
        backend->scale(backend, s->q, hp->query_scale, (size_t)pass->n * (size_t)(hp->n_heads * hp->head_dim));
}

/* x += what a layer's attention or FFN gave, y[n_rows][n_embd], normed and scaled as the model does it. */
static void add_residual(const struct butler_pass *pass, float *y, const struct butler_vector *post_norm, int n_rows)
{
    const size_t n = (size_t)n_rows * (size_t)pass->hp->n_embd;
    butler_pass_norm(pass, y, y, post_norm, n_rows, pass->hp->n_embd);
    if (pass->hp->residual_scale != 1)
        pass->backend->scale(pass->backend, y, pass->hp->residual_scale, n);
    pass->backend->add(pass->backend, pass->s->x, y, n);
}

/* Rows that go on after the attention of the last layer are those whose logits or hidden states somebody wants: they move to the
 * front. Returns them; in other layers, all. */
static struct butler_rows keep_rows(const struct butler_pass *pass, int layer)
{
    const bool last = layer == pass->hp->n_layers - 1;
    const struct butler_scratch *s = pass->s;
    bool moves = false;
    int n_rows = 0, n_decode = 0;
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        part->n_kept = !last || part->each || part->hidden || part->session->capture ? part->n : part->logits ? 1 : 0;
        part->kept_row = n_rows;
        for (int t = 0; t < part->n_kept; t++, n_rows++) {
            s->rows[n_rows] = part->row + part->n - part->n_kept + t;
            moves = moves || s->rows[n_rows] != n_rows;
        }
        n_decode = part->decode ? n_rows : n_decode;
    }
    if (moves) {
        pass->backend->gather_rows(pass->backend, s->x, s->x, s->rows, n_rows, pass->hp->n_embd);
        pass->backend->gather_rows(pass->backend, s->h, s->h, s->rows, n_rows, pass->hp->n_embd);
        pass->backend->gather_rows(pass->backend, s->o, s->o, s->rows, n_rows, pass->hp->n_heads * pass->hp->head_dim);
    }
    return (struct butler_rows){n_rows, n_decode};
}

/* What a layer does after its attention, for the first rows. */
static void close_layer(const struct butler_pass *pass, int l, struct butler_rows rows)
{
    const struct butler_layer *layer = &pass->model->layers[l];
    const struct butler_hparams *hp = pass->hp;
    struct butler_scratch *s = pass->s;
    const int n = rows.n;
    butler_pass_multiply(pass, &(struct butler_product){s->up, &layer->wo}, 1, s->o, rows); /* the FFN's memory is still free */
    if (hp->parallel_residual && layer->ffn_norm.weight) /* else h is still what attn_norm gave */
        butler_pass_norm(pass, s->h, s->x, &layer->ffn_norm, n, hp->n_embd);
    add_residual(pass, s->up, &layer->attn_post_norm, n);
    if (hp->norms_after)
        butler_pass_norm(pass, s->x, s->x, &layer->attn_norm, n, hp->n_embd);
    if (!hp->parallel_residual)
        butler_pass_norm(pass, s->h, s->x, hp->norms_after ? &none : &layer->ffn_norm, n, hp->n_embd);
    observe(pass, l, BUTLER_BEFORE_FFN);
    butler_pass_ffn(pass, layer, rows);
    add_residual(pass, s->h, &layer->ffn_post_norm, n);
    if (hp->norms_after)
        butler_pass_norm(pass, s->x, s->x, &layer->ffn_norm, n, hp->n_embd);
}

/* Rotation tables of a part's rows. Keys that are stored unrotated get the identity. */
static void part_rotations(const struct butler_pass *pass, const struct butler_part *part)
{
    const struct butler_session *session = part->session;
    const size_t half = (size_t)pass->hp->n_rot / 2, local = (size_t)pass->s->max_rows * half;
    float *cosines = pass->s->host_cos + (size_t)part->row * half, *sines = pass->s->host_sin + (size_t)part->row * half;
    if (session->kv.rope_cos)
        for (size_t j = 0; j < (size_t)part->n * half; j++)
            cosines[j] = 1, sines[j] = 0;
    else
        rotations(session->rope_freq, session->rope_scale, half, session->n_past, part->n, cosines, sines);
    if (pass->model->rope_freq_local)
        rotations(pass->model->rope_freq_local, 1, half, session->n_past, part->n, cosines + local, sines + local);
}

/* Before the first operation of the pass, so that a device may be given all of them together. */
static void upload_rotations(const struct butler_pass *pass)
{
    const struct butler_scratch *s = pass->s;
    const size_t half = (size_t)pass->hp->n_rot / 2, bytes = (size_t)pass->n * half * sizeof(float);
    if (pass->hp->rope == BUTLER_ROPE_NONE)
        return;
    const size_t local = pass->model->rope_freq_local ? (size_t)s->max_rows * half : 0;
    const struct butler_upload tables[] = {{s->cos, s->host_cos, bytes},
                                           {s->sin, s->host_sin, bytes},
                                           {s->cos + local, s->host_cos + local, bytes},
                                           {s->sin + local, s->host_sin + local, bytes}};
    pass->backend->upload_many(pass->backend, tables, local > 0 ? 4 : 2);
}

/* Embeddings of the new tokens into the residual stream, and their rotation tables. */
static void begin(const struct butler_pass *pass)
{
    const struct butler_model *model = pass->model;
    struct butler_backend *backend = pass->backend;
    struct butler_scratch *s = pass->s;
    const size_t n_embd = (size_t)pass->hp->n_embd;
    for (int i = 0; i < pass->n_parts; i++)
        if (pass->parts[i].session->kv.rope_cos)
            place_rotations(pass, pass->parts[i].session, pass->parts[i].n);
    for (int i = 0; i < pass->n_parts; i++)
        if (!pass->parts[i].decode && pass->parts[i].session->kv.records_off)
            butler_kv_begin_records(&pass->parts[i].session->kv);
    for (int i = 0; i < pass->n_parts; i++) {
        struct butler_part *part = &pass->parts[i];
        struct butler_session *session = part->session;
        if (session->steps && part->decode && !part->exact && butler_steps_before(session, part->err) < 0)
            butler_part_fail(part);
        memcpy(s->rows + part->row, part->ids, (size_t)part->n * sizeof *s->rows);
        part->traffic->weight_bytes += (uint64_t)part->n * model->tok_embd.row_bytes;
        if (pass->hp->rope != BUTLER_ROPE_NONE)
            part_rotations(pass, part);
    }
    upload_rotations(pass);
    backend->embed(backend, s->x, &model->tok_embd, s->rows, pass->n);
    if (pass->hp->embd_scale != 1)
        backend->scale(backend, s->x, pass->hp->embd_scale, (size_t)pass->n * n_embd);
    if (!model->pos_embd.data)
        return;
    for (int i = 0; i < pass->n_parts; i++)
        for (int t = 0; t < pass->parts[i].n; t++)
            s->rows[pass->parts[i].row + t] = pass->parts[i].session->n_past + t;
    backend->embed(backend, s->h, &model->pos_embd, s->rows, pass->n);
    backend->add(backend, s->x, s->h, (size_t)pass->n * n_embd);
}

void butler_forward(struct butler_engine *engine, int n_parts)
{
    struct butler_traffic uncounted = {0};
    struct butler_pass pass = {.backend = engine->backend,
                               .model = engine->model,
                               .hp = &engine->model->hp,
                               .s = &engine->scratch,
                               .parts = engine->scratch.parts,
                               .n_parts = n_parts,
                               .weights = &uncounted};
    const struct butler_hparams *hp = pass.hp;
    struct butler_scratch *s = pass.s;
    int n_decode = 0;
    for (int i = n_parts - 1; i >= 0; i--) {
        pass.parts[i].traffic = pass.parts[i].decode ? &pass.parts[i].session->traffic : &pass.parts[i].session->prompt_traffic;
        if (pass.parts[i].decode)
            pass.weights = pass.parts[i].traffic;
    }
    for (int i = 0; i < n_parts; i++) {
        pass.parts[i].row = pass.parts[i].kept_row = pass.n;
        pass.n += pass.parts[i].n;
        n_decode = pass.parts[i].decode ? pass.n : n_decode;
    }
    begin(&pass);
    for (int l = 0; l < hp->n_layers; l++) {
        const struct butler_layer *layer = &pass.model->layers[l];
        butler_pass_norm(&pass, s->h, s->x, hp->norms_after ? &none : &layer->attn_norm, pass.n, hp->n_embd);
        const struct butler_product products[] = {{s->q, &layer->wq}, {s->k, &layer->wk}, {s->v, &layer->wv}};
        butler_pass_multiply(&pass, products, BUTLER_COUNT(products), s->h, (struct butler_rows){pass.n, n_decode});
        prepare_heads(&pass, layer);
        attention(&pass, l);
        const struct butler_rows rows = keep_rows(&pass, l);
        if (rows.n > 0)
            close_layer(&pass, l, rows);
    }
    butler_pass_deliver(&pass);
    for (int i = 0; i < n_parts; i++)
        butler_part_note_tokens(&pass.parts[i]);
}
