/* From logits to the next id: biases and penalties, then top-k, typical, top-p and min-p on the distribution at temperature 1, then
 * a softmax at the temperature of what they keep, then one draw. The order is llama.cpp's. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/abi.h"
#include "base/buffer.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "grammar/grammar.h"

enum {
    DEFAULT_LAST_N = 64,
    FEW = 256, /* candidates of top-k that are found without sorting all */
};

struct butler_sampler {
    struct butler_sampler_params params; /* its arrays are the sampler's own */
    uint64_t random;
    struct candidate {
        float logit, p;
        int32_t id;
    } * candidates;
    int max_candidates;
    float *adjusted; /* [n_adjusted] logits with biases and penalties */
    int n_adjusted;
    int32_t *text; /* [max_text] what penalties count */
    size_t n_text, max_text;
    int n_drawn;
    int32_t state;   /* of the grammar, behind what was drawn */
    size_t prepared; /* work for its mask so far, of butler_sampler_prepare */
};

/* -------------------------------------------------------------------------------------------------- grammars */

struct butler_grammar *butler_grammar_new(const struct butler_model *model, const char *gbnf, struct butler_error *err)
{
    if (BUTLER_IS_NULL(model, err) || BUTLER_IS_NULL(gbnf, err))
        return NULL;
    if (model->tokenizer)
        return butler_grammar_compile(model->tokenizer, gbnf, err);
    butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "%s has no tokenizer", model->path);
    return NULL;
}

static void begin_grammar(struct butler_sampler *sampler)
{
    sampler->state = sampler->params.grammar ? butler_grammar_start(sampler->params.grammar) : 0;
}

/* ------------------------------------------------------------------------------------------------ parameters */

static const char *find_wrong(const struct butler_sampler_params *params)
{
    if (!isfinite(params->temperature))
        return "temperature must be a number";
    if (params->top_k < 0)
        return "top-k must be 0 (off) or more";
    if (!(params->top_p >= 0 && params->top_p <= 1))
        return "top-p must be from 0 (off) to 1 (off)";
    if (!(params->min_p >= 0 && params->min_p <= 1))
        return "min-p must be from 0 (off) to 1";
    if (!(params->typical_p >= 0 && params->typical_p <= 1))
        return "typical must be from 0 (off) to 1 (off)";
    if (!(params->repeat_penalty >= 0 && params->repeat_penalty <= 1000))
        return "repeat-penalty must be from 0 (off) to 1000";
    if (!isfinite(params->frequency_penalty) || !isfinite(params->presence_penalty))
        return "frequency-penalty and presence-penalty must be numbers";
    if (params->penalty_last_n < -1)
        return "repeat-last-n must be -1 (the whole text) or more";
    if (params->n_logit_bias < 0 || (params->n_logit_bias > 0 && !params->logit_bias))
        return "logit biases are a number and an array of as many";
    if (params->n_end_ids < 0 || (params->n_end_ids > 0 && !params->end_ids))
        return "ids that end a text are a number and an array of as many";
    for (int i = 0; i < params->n_logit_bias; i++)
        if (params->logit_bias[i].id < 0 || isnan(params->logit_bias[i].bias) || params->logit_bias[i].bias == INFINITY)
            return "a logit bias must be a number below infinity, of a token id";
    return NULL;
}

/* A copy of n elements; NULL with *err filled when there is no memory. */
static void *copy(const void *from, int n, size_t size, struct butler_error *err)
{
    void *to = butler_alloc((size_t)n * size + 1, err);
    if (to && n > 0)
        memcpy(to, from, (size_t)n * size);
    return to;
}

struct butler_sampler *butler_sampler_new(const struct butler_sampler_params *params, struct butler_error *err)
{
    struct butler_sampler_params own;
    if (butler_take_struct(&own, sizeof own, params, BUTLER_END_OF(butler_sampler_params, grammar), "butler_sampler_params", err) <
        0)
        return NULL;
    params = &own;
    const char *wrong = find_wrong(params);
    struct butler_sampler *sampler = NULL;
    if (wrong)
        butler_fail(err, BUTLER_ERROR_ARGUMENT, "sampler: %s", wrong);
    else
        sampler = butler_alloc(sizeof *sampler, err);
    if (!sampler)
        return NULL;
    sampler->params = *params;
    sampler->random = params->seed;
    begin_grammar(sampler);
    if (params->grammar)
        butler_grammar_keep(params->grammar);
    sampler->params.logit_bias = copy(params->logit_bias, params->n_logit_bias, sizeof *params->logit_bias, err);
    sampler->params.end_ids = copy(params->end_ids, params->n_end_ids, sizeof *params->end_ids, err);
    if (sampler->params.logit_bias && sampler->params.end_ids)
        return sampler;
    butler_sampler_free(sampler);
    return NULL;
}

void butler_sampler_free(struct butler_sampler *sampler)
{
    if (!sampler)
        return;
    butler_grammar_free((struct butler_grammar *)sampler->params.grammar);
    free((void *)sampler->params.logit_bias);
    free((void *)sampler->params.end_ids);
    free(sampler->candidates);
    free(sampler->adjusted);
    free(sampler->text);
    free(sampler);
}

/* --------------------------------------------------------------------------------------- biases and penalties */

static bool has_penalties(const struct butler_sampler_params *params)
{
    return (params->repeat_penalty > 0 && params->repeat_penalty != 1) || params->frequency_penalty != 0 ||
           params->presence_penalty != 0;
}

/* Appends to the text that penalties count. */
static int append(struct butler_sampler *sampler, const int32_t *ids, int n, struct butler_error *err)
{
    if (n < 1 || !has_penalties(&sampler->params))
        return 0;
    if (!butler_grow(&sampler->text, sampler->n_text + (size_t)n, &sampler->max_text, sizeof *sampler->text))
        return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for the tokens that penalties count");
    memcpy(sampler->text + sampler->n_text, ids, (size_t)n * sizeof *ids);
    sampler->n_text += (size_t)n;
    return 0;
}

int butler_sampler_accept(struct butler_sampler *sampler, const int32_t *ids, int n, struct butler_error *err)
{
    if (BUTLER_IS_NULL(sampler, err) || (n > 0 && BUTLER_IS_NULL(ids, err)))
        return BUTLER_ERROR_ARGUMENT;
    sampler->n_drawn = 0;
    begin_grammar(sampler);
    return append(sampler, ids, n, err);
}

static int by_id(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

static int penalise(const struct butler_sampler *sampler, float *logits, int n_vocab, struct butler_error *err)
{
    const struct butler_sampler_params *params = &sampler->params;
    const int last_n = params->penalty_last_n ? params->penalty_last_n : DEFAULT_LAST_N;
    const size_t n = last_n < 0 ? sampler->n_text : BUTLER_MIN(sampler->n_text, (size_t)last_n);
    int32_t *ids = butler_alloc(n * sizeof *ids + 1, err);
    if (!ids)
        return BUTLER_ERROR_MEMORY;
    if (n)
        memcpy(ids, sampler->text + sampler->n_text - n, n * sizeof *ids);
    qsort(ids, n, sizeof *ids, by_id); /* equal ones stand together */
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i; end < n && ids[end] == ids[i]; end++)
            ;
        if (ids[i] < 0 || ids[i] >= n_vocab)
            continue;
        float *logit = &logits[ids[i]];
        if (params->repeat_penalty > 0)
            *logit = *logit > 0 ? *logit / params->repeat_penalty : *logit * params->repeat_penalty;
        *logit -= (float)(end - i) * params->frequency_penalty + params->presence_penalty;
    }
    free(ids);
    return 0;
}

/* The sampler's own copy of the logits, which may be that already. NULL with *err filled when there is no memory. */
static float *own_logits(struct butler_sampler *sampler, const float *logits, int n_vocab, struct butler_error *err)
{
    if (logits == sampler->adjusted)
        return sampler->adjusted;
    if (n_vocab > sampler->n_adjusted) {
        float *grown = realloc(sampler->adjusted, (size_t)n_vocab * sizeof *grown);
        if (!grown) {
            butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d logits", n_vocab);
            return NULL;
        }
        sampler->adjusted = grown;
        sampler->n_adjusted = n_vocab;
    }
    memcpy(sampler->adjusted, logits, (size_t)n_vocab * sizeof *logits);
    return sampler->adjusted;
}

/* The logits to sample from: the caller's, or a copy with biases and penalties. NULL with *err filled when there is no memory. */
static const float *adjust(struct butler_sampler *sampler, const float *logits, int n_vocab, struct butler_error *err)
{
    const struct butler_sampler_params *params = &sampler->params;
    const bool penalties = has_penalties(params), ends = sampler->n_drawn < params->min_tokens && params->n_end_ids > 0;
    if (!penalties && !ends && params->n_logit_bias == 0)
        return logits;
    float *out = own_logits(sampler, logits, n_vocab, err);
    if (!out)
        return NULL;
    for (int i = 0; i < params->n_logit_bias; i++)
        if (params->logit_bias[i].id < n_vocab)
            out[params->logit_bias[i].id] += params->logit_bias[i].bias;
    if (penalties && penalise(sampler, out, n_vocab, err) < 0)
        return NULL;
    for (int i = 0; ends && i < params->n_end_ids; i++)
        if (params->end_ids[i] >= 0 && params->end_ids[i] < n_vocab)
            out[params->end_ids[i]] = -INFINITY;
    return out;
}

/* ----------------------------------------------------------------------------------------------------- draw */

/* Highest logit first; equal logits by id, so that a seed always gives the same text. */
static int by_logit(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit ? 1 : -1) : by_id(&x->id, &y->id);
}

/* Lowest p first, which typical() sets to how far a token is from typical; equal ones as by_logit. */
static int by_distance(const void *a, const void *b)
{
    const struct candidate *x = a, *y = b;
    return x->p != y->p ? (x->p > y->p ? 1 : -1) : by_logit(a, b);
}

/* Probabilities at a temperature, over the first n candidates, sorted by logit. */
static void softmax(struct candidate *c, int n, float temperature)
{
    float sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].p = expf((c[i].logit - c[0].logit) / temperature);
    for (int i = 0; i < n; i++)
        c[i].p /= sum;
}

/* Keeps the candidates whose -log p is nearest to the entropy and that together reach probability `mass`; returns their number.
 * They are sorted by logit again. */
static int typical(struct candidate *c, int n, float mass)
{
    float entropy = 0, sum = 0;
    int kept = 0;
    softmax(c, n, 1);
    for (int i = 0; i < n; i++)
        entropy -= c[i].p > 0 ? c[i].p * logf(c[i].p) : 0;
    const float largest = c[0].logit;
    float total = 0;
    for (int i = 0; i < n; i++)
        total += expf(c[i].logit - largest);
    for (int i = 0; i < n; i++)
        c[i].p = c[i].p > 0 ? fabsf(-logf(c[i].p) - entropy) : INFINITY;
    qsort(c, (size_t)n, sizeof *c, by_distance);
    while (kept < n && sum < mass)
        sum += expf(c[kept++].logit - largest) / total;
    kept = BUTLER_MAX(kept, 1);
    qsort(c, (size_t)kept, sizeof *c, by_logit);
    return kept;
}

/* Number of the sorted candidates that top-k, typical, top-p and min-p keep: at least one. */
static int truncate(const struct butler_sampler_params *params, struct candidate *c, int n)
{
    if (params->top_k > 0)
        n = BUTLER_MIN(n, params->top_k);
    if (params->typical_p > 0 && params->typical_p < 1)
        n = typical(c, n, params->typical_p);
    softmax(c, n, 1);
    if (params->top_p > 0 && params->top_p < 1) {
        float sum = 0;
        int kept = 0;
        while (kept < n && sum < params->top_p)
            sum += c[kept++].p;
        n = BUTLER_MAX(kept, 1);
    }
    while (n > 1 && c[n - 1].p < params->min_p * c[0].p)
        n--;
    return n;
}

/* The k candidates of the highest logits, in the order of by_logit, into c. */
static void take_highest(const float *logits, int n_vocab, int k, struct candidate *c)
{
    int n = 0;
    for (int id = 0; id < n_vocab; id++) {
        if (n == k && !(logits[id] > c[k - 1].logit))
            continue;
        int at = n < k ? n++ : k - 1;
        for (; at > 0 && c[at - 1].logit < logits[id]; at--)
            c[at] = c[at - 1];
        c[at] = (struct candidate){.logit = logits[id], .id = id};
    }
}

/* A time with distribution Exp(1) for a token, from the random number of this draw. */
static double waiting_time(uint64_t random, int32_t id)
{
    uint64_t state = random ^ (uint64_t)id * 0xd1b54a32d192ed03u;
    return -log(((double)(butler_random(&state) >> 11) + 0.5) * 0x1p-53);
}

/* Each token waits for a time of its own, divided by its probability; the first to come is drawn (the Gumbel-max trick, as a race).
 * Where probabilities change a little, the same random number nearly always gives the same token: drafts rely on that. */
static int32_t draw(struct butler_sampler *sampler, const float *logits, int n_vocab, struct butler_error *err)
{
    if (n_vocab > sampler->max_candidates) {
        struct candidate *candidates = realloc(sampler->candidates, (size_t)n_vocab * sizeof *candidates);
        if (!candidates)
            return butler_fail(err, BUTLER_ERROR_MEMORY, "no memory for %d candidates", n_vocab);
        sampler->candidates = candidates;
        sampler->max_candidates = n_vocab;
    }
    struct candidate *c = sampler->candidates;
    const int top_k = sampler->params.top_k;
    const bool few = top_k > 0 && top_k <= BUTLER_MIN((int)FEW, n_vocab);
    if (few)
        take_highest(logits, n_vocab, top_k, c);
    for (int i = 0; i < n_vocab && !few; i++)
        c[i] = (struct candidate){.logit = logits[i], .id = i};
    if (!few)
        qsort(c, (size_t)n_vocab, sizeof *c, by_logit);
    const int n = truncate(&sampler->params, c, few ? top_k : n_vocab);
    softmax(c, n, sampler->params.temperature);
    const uint64_t random = butler_random(&sampler->random);
    double soonest = INFINITY;
    int first = 0;
    for (int i = 0; i < n; i++) {
        const double time = waiting_time(random, c[i].id) / (double)c[i].p; /* a probability of 0: infinity */
        if (time < soonest) {
            soonest = time;
            first = i;
        }
    }
    return c[first].id;
}

static int32_t find_highest(const float *logits, int n_vocab)
{
    int32_t id = 0;
    for (int i = 1; i < n_vocab; i++)
        if (logits[i] > logits[id])
            id = i;
    return id;
}

/* The same under the grammar: *adjusted become the sampler's own, -infinity where the grammar allows no token. `given` are the
 * logits without biases: where biases forbid all that the grammar allows, they do not count. */
static int32_t constrain(struct butler_sampler *sampler, const float **adjusted, const float *given, int n_vocab,
                         struct butler_error *err)
{
    const struct butler_grammar *grammar = sampler->params.grammar;
    float *logits = own_logits(sampler, *adjusted, n_vocab, err);
    int n = logits ? butler_grammar_mask(grammar, sampler->state, logits, n_vocab, err) : BUTLER_ERROR_MEMORY;
    int32_t id = n > 0 ? find_highest(logits, n_vocab) : 0;
    if (n > 0 && logits[id] == -INFINITY) {
        memcpy(logits, given, (size_t)n_vocab * sizeof *logits);
        n = butler_grammar_mask(grammar, sampler->state, logits, n_vocab, err);
        id = find_highest(logits, n_vocab);
    }
    *adjusted = logits;
    if (n < 0)
        return n;
    if (n == 0 || logits[id] == -INFINITY)
        return butler_fail(err, BUTLER_ERROR_UNSUPPORTED, "no token of the vocabulary goes on as the grammar asks");
    return id;
}

/* The most probable token, under the grammar if there is one; *adjusted are then the logits to draw from. A greedy sampler first
 * tries the token that it would take without the grammar: mostly that is allowed, and the mask is not needed. */
static int32_t choose(struct butler_sampler *sampler, const float **adjusted, const float *given, int n_vocab,
                      struct butler_error *err)
{
    const struct butler_grammar *grammar = sampler->params.grammar;
    const bool greedy = !(sampler->params.temperature > 0);
    const int32_t id = greedy || !grammar ? find_highest(*adjusted, n_vocab) : 0;
    if (!grammar)
        return id;
    if (greedy && (*adjusted)[id] > -INFINITY) {
        const int32_t state = butler_grammar_advance(grammar, sampler->state, id, err);
        if (state != 0)
            return state < 0 ? state : id;
    }
    return constrain(sampler, adjusted, given, n_vocab, err);
}

int32_t butler_sample(struct butler_sampler *sampler, const float *logits, int n_vocab, struct butler_error *err)
{
    if (BUTLER_IS_NULL(sampler, err) || BUTLER_IS_NULL(logits, err))
        return BUTLER_ERROR_ARGUMENT;
    if (n_vocab < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d logits to sample from", n_vocab);
    for (int i = 0; i < n_vocab; i++)
        if (isnan(logits[i]) || logits[i] == INFINITY)
            return butler_fail(err, BUTLER_ERROR_NUMERIC, "the logit of token %d is %f", i, (double)logits[i]);
    const float *adjusted = adjust(sampler, logits, n_vocab, err);
    if (!adjusted)
        return BUTLER_ERROR_MEMORY;
    int32_t id = choose(sampler, &adjusted, logits, n_vocab, err);
    /* Where every token is banned there is no distribution to draw from. */
    if (id >= 0 && sampler->params.temperature > 0 && adjusted[id] > -INFINITY)
        id = draw(sampler, adjusted, n_vocab, err);
    const int32_t state =
        id >= 0 && sampler->params.grammar ? butler_grammar_advance(sampler->params.grammar, sampler->state, id, err) : 0;
    if (state < 0)
        return state;
    if (id < 0 || append(sampler, &id, 1, err) < 0)
        return id < 0 ? id : BUTLER_ERROR_MEMORY;
    sampler->state = state;
    sampler->prepared = 0;
    sampler->n_drawn++;
    return id;
}

int butler_sampler_prepare(struct butler_sampler *sampler, const float *logits, int n_vocab, int work, struct butler_error *err)
{
    if (BUTLER_IS_NULL(sampler, err) || BUTLER_IS_NULL(logits, err))
        return BUTLER_ERROR_ARGUMENT;
    if (n_vocab < 1 || work < 1)
        return butler_fail(err, BUTLER_ERROR_ARGUMENT, "%d units of work for %d logits", work, n_vocab);
    const struct butler_grammar *grammar = sampler->params.grammar;
    if (!grammar)
        return 1;
    if (!(sampler->params.temperature > 0)) {
        const float *adjusted = adjust(sampler, logits, n_vocab, err);
        if (!adjusted)
            return BUTLER_ERROR_MEMORY;
        const int32_t id = find_highest(adjusted, n_vocab);
        const int32_t state = adjusted[id] > -INFINITY ? butler_grammar_advance(grammar, sampler->state, id, err) : 0;
        if (state != 0)
            return state < 0 ? state : 1;
    }
    return butler_grammar_prepare(grammar, sampler->state, (size_t)work, &sampler->prepared, err);
}

struct butler_sampler_mark butler_sampler_mark(const struct butler_sampler *sampler)
{
    return (struct butler_sampler_mark){sampler->random, sampler->n_text, sampler->n_drawn, sampler->state};
}

void butler_sampler_rewind(struct butler_sampler *sampler, const struct butler_sampler_mark *mark)
{
    sampler->random = mark->random;
    sampler->n_text = mark->n_text;
    sampler->n_drawn = mark->n_drawn;
    sampler->state = mark->state;
}
