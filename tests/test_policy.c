/* Policy strings: what they parse to, that the canonical text parses to the same policy, what is refused and how the
 * refusal reads, the rounding of budgets, and metrics registered by a caller or loaded from a shared object. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/policy.h"
#include "metrics/registry.h"

static struct butler_model gqa_model = {
    .hp = {.n_layers = 6, .n_heads = 8, .n_kv_heads = 2, .head_dim = 32, .rope = BUTLER_ROPE_HALVES}};
static struct butler_model mha_model = {
    .hp = {.n_layers = 6, .n_heads = 4, .n_kv_heads = 4, .head_dim = 32, .rope = BUTLER_ROPE_NONE}};
/* Engines without a device: policies look at the model and at what was added to the engine. */
static struct butler_engine gqa = {.registry = &butler_builtin, .model = &gqa_model},
                            mha = {.registry = &butler_builtin, .model = &mha_model}, bare = {.registry = &butler_builtin};

static struct butler_policy parse(const char *text)
{
    struct butler_policy policy;
    struct butler_error err = {0};
    if (butler_policy_parse(&bare, text, &policy, &err))
        fail_msg("%s", err.message);
    return policy;
}

/* The text is refused, and the message has every word of `words` (separated by '|') in it. */
static void refused(const struct butler_engine *engine, const char *text, const char *words)
{
    struct butler_policy policy, before;
    struct butler_error err = {0};
    memset(&policy, 0x5a, sizeof policy);
    memcpy(&before, &policy, sizeof policy);
    int rc = butler_policy_parse(engine, text, &policy, &err);
    if (rc != BUTLER_ERROR_ARGUMENT || err.code != rc)
        fail_msg("\"%s\" was not refused as an argument: %d", text, rc);
    assert_memory_equal(&policy, &before, sizeof policy);
    char list[256];
    snprintf(list, sizeof list, "%s", words);
    for (char *word = strtok(list, "|"); word; word = strtok(NULL, "|"))
        if (!strstr(err.message, word))
            fail_msg("\"%s\": the message lacks \"%s\": %s", text, word, err.message);
}

static void every_row_is_canonical(void **state)
{
    (void)state;
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    int i = 0;
    for (; butler_policy_describe(NULL, i, &info); i++) {
        struct butler_policy policy = parse(info.name);
        assert_string_equal(policy.text, info.defaults);
        assert_string_equal(policy.name, info.name);
        assert_string_equal(policy.metric ? policy.metric->name : "none", info.metric);
        static const char *const methods[] = {"dense", "evict", "retrieve"};
        assert_string_equal(methods[policy.method], info.method);
        assert_true(strlen(info.summary) > 10);
    }
    assert_true(i >= 20);
    assert_false(butler_policy_describe(NULL, -1, &info));
    assert_false(butler_policy_describe(NULL, i + 1, &info));
    assert_string_equal(parse("full").text, parse("full").name);
    struct butler_policy policy;
    assert_int_equal(butler_policy_parse(&bare, NULL, &policy, NULL), 0);
    assert_string_equal(policy.text, "full");
}

static void the_text_parses_to_itself(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "full+entropystop:entropy=0.25,after=1",
        "h2o+vatp",
        "h2o+vatp:norm=linf,budget=0.1",
        "fier+vatp:norm=l2",
        "knorm+vatp",
        "h2o:recent=30,budget=100",
        "h2o:method=retrieve",
        "h2o:method=retrieve,mass=0.9",
        "scissorhands+vatp+entropystop:window=64,heavy=0.25",
        "scissorhands+entropystop+vatp",
        "snapkv:rolling=1,window=16",
        "snapkv:preset=code",
        "pyramidkv:pyramid=10,budget=512,dense=1",
        "streaming:preset=paper",
        "streaming:preset=code,prefill=dense",
        "softprune:ratio=0.3,min=10,share=layer",
        "quest:method=evict,page=8,bound=max",
        "quest:mass=0.95,share=query",
        "fier:budget=64,share=3",
        "tinyserve:on_top=1,sinks=16,recent=64,fused=0",
        "fier:g=64,budget=0.11",
        "fier:scan=4,every=2",
        "oracle:method=evict,group=mean",
        "knorm:method=retrieve,budget=0.3333333333333333",
        "random:pyramid=20,budget=0.1",
        "pagestats:preset=code,std=0.5",
    };
    for (int i = 0; i < BUTLER_COUNT(texts); i++) {
        struct butler_policy once = parse(texts[i]), twice = parse(once.text);
        assert_memory_equal(&once, &twice, sizeof once);
    }
    assert_string_equal(parse("scissorhands+entropystop+vatp").name, "scissorhands+vatp+entropystop");
}

static void fields(void **state)
{
    (void)state;
    struct butler_policy p = parse("h2o+vatp:budget=0.5,sinks=40");
    assert_ptr_equal(p.metric, &butler_metric_attention);
    assert_int_equal(p.method, BUTLER_EVICT);
    assert_int_equal(p.budget_kind, BUTLER_BUDGET_FRACTION);
    assert_true(p.budget == 0.5 && p.heavy == 0.5);
    assert_int_equal(p.sinks, 40);
    assert_int_equal(p.value_norm, BUTLER_NORM_L1);
    assert_int_equal(parse("h2o+vatp").sinks, 20);
    p = parse("quest:budget=1024,group=mean,page=64");
    assert_int_equal(p.unit, 64);
    assert_int_equal(p.dense_layers, 2);
    assert_int_equal(p.reduce, BUTLER_REDUCE_MEAN);
    assert_int_equal(p.budget_kind, BUTLER_BUDGET_COUNT);
    assert_false(p.fused);
    assert_int_equal(parse("quest:reduce=mean").reduce, BUTLER_REDUCE_MEAN);
    p = parse("tinyserve:mass=0.95");
    assert_true(p.fused);
    assert_int_equal(p.budget_kind, BUTLER_BUDGET_MASS);
    assert_true(p.budget == 0.95);
    p = parse("snapkv:window=64");
    assert_int_equal(p.recent, 64);
    assert_true(p.evict_at_prefill_only);
    assert_false(p.prefill_evict);
    assert_int_equal(parse("snapkv:window=64,recent=0").recent, 0);
    assert_int_equal(parse("snapkv:window=16,rolling=1").recent, 0);
    p = parse("snapkv:preset=code");
    assert_true(p.values[0] == 32 && p.values[1] == 5 && p.values[2] == 0 && p.budget == 2048);
    p = parse("snapkv:kernel=3,preset=code");
    assert_true(p.values[1] == 3 && p.values[2] == 0);
    p = parse("pyramidkv:preset=code");
    assert_int_equal(p.recent, 8);
    assert_true(p.pyramid == 20);
    p = parse("streaming:preset=paper");
    assert_true(p.rope_in_cache && p.prefill_evict && !p.evict_at_prefill_only);
    assert_false(parse("streaming").rope_in_cache);
    p = parse("softprune");
    assert_true(p.prune_ratio == 0.1 && p.prune_min == 100 && p.values[0] == 2);
    p = parse("entropystop:after=3");
    assert_int_equal(p.method, BUTLER_DENSE);
    assert_true(p.stop_entropy == 0.5 && p.stop_after == 3);
    assert_true(parse("full").stop_entropy < 0);
    p = parse("tova");
    assert_int_equal(p.share, BUTLER_SHARE_LAYER);
    assert_int_equal(p.reduce, BUTLER_REDUCE_MEAN);
    assert_false(parse("tinyserve:share=layer").fused);
    /* A default that has no meaning under another method goes silently. */
    p = parse("snapkv:method=retrieve");
    assert_false(p.evict_at_prefill_only || p.prefill_evict || p.rope_in_cache);
    assert_null(strstr(p.text, "rolling"));
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "no policy \"\"|quest"},
        {"queste", "no policy \"queste\"; did you mean quest? there|quest|streaming|entropystop"},
        {":budget=3", "no policy \"\""},
        {"h2o+v", "no modifier \"v\"|vatp"},
        {"h2o+vapt", "did you mean vatp?"},
        {"h2o+", "no modifier \"\""},
        {"h2o+vatp+vatp", "+vatp is there twice"},
        {"entropystop+entropystop", "twice"},
        {"quest:", "nothing follows the colon"},
        {"quest:budget=3,", "comma"},
        {"quest:,budget=3", "key=value"},
        {"quest:budget", "\"budget\" is not key=value"},
        {"quest:=3", "key=value"},
        {"quest:bugdet=3", "no key \"bugdet\" here; did you mean budget? there|budget|page|bound|share"},
        {"quest:budget=", "budget=: not a number"},
        {"quest:budget=abc", "budget=abc: not a number"},
        {"quest:budget=0x10", "not a number"},
        {"quest:budget=nan", "not a number"},
        {"quest:budget=1e999", "not a number"},
        {"quest:budget=0", "budget=0: must be above 0"},
        {"quest:budget=-1", "budget=-1: must be above 0"},
        {"quest:budget=10.5", "whole"},
        {"quest:budget=1e10", "budget=1e10"},
        {"quest:budget=3,budget=4", "budget= is given twice"},
        {"quest:group=max,reduce=max", "twice"},
        {"quest:page=8,page=16", "page= is given twice"},
        {"quest:budget=64,mass=0.5", "exclude"},
        {"quest:mass=0", "mass=0"},
        {"quest:mass=1.5", "mass=1.5"},
        {"quest:page=0", "page=0|1|1024"},
        {"quest:page=3.5", "page=3.5"},
        {"quest:bound=mean", "bound=mean: sum or max"},
        {"quest:share=head", "share=head: layer or kv or query, or a number of query heads"},
        {"quest:method=dense", "method=dense: evict or retrieve"},
        {"quest:budget=64,sinks=65", "sinks=65 are more than budget=64"},
        {"quest:budget=64,sinks=60,recent=5", "budget=64 cannot hold sinks=60 and 5"},
        {"quest:budget=64,sinks=64", "cannot hold"},
        {"h2o:budget=100,sinks=51", "cannot hold sinks=51 and 50"},
        {"quest:sinks=-1", "sinks=-1"},
        {"quest:preset=fast", "paper or code"},
        {"quest:preset=code,preset=code", "preset= is given twice"},
        {"quest+vatp", "+vatp|pages"},
        {"quest+vatp:method=evict", "+vatp|pages"},
        {"random+vatp", "+vatp|random"},
        {"streaming+vatp", "+vatp|recency"},
        {"full+vatp", "+vatp|reads everything"},
        {"full:budget=3", "budget= has no meaning|reads everything"},
        {"entropystop:method=evict", "method= has no meaning"},
        {"quest:rope=cache", "rope=|method=evict"},
        {"knorm:rope=cache", "rope=|reads keys"},
        {"quest:prefill=evict", "prefill=|method=evict"},
        {"quest:rolling=1", "rolling="},
        {"h2o:page=16", "page= has no meaning"},
        {"h2o:mass=0.9", "mass=|method=retrieve"},
        {"knorm:method=retrieve,mass=0.9", "mass=|no shares of attention"},
        {"streaming:heavy=0.5", "heavy="},
        {"quest:heavy=0.5,mass=0.9", "heavy="},
        {"h2o:heavy=0.5,recent=10", "exclude"},
        {"h2o:on_top=1", "on_top=|heavy="},
        {"quest:on_top=1,mass=0.5", "on_top="},
        {"quest:pyramid=20,mass=0.5", "pyramid="},
        {"quest:pyramid=0.5", "pyramid=0.5"},
        {"softprune:budget=100", "budget=|ratio= and min="},
        {"softprune:ratio=1", "ratio=1"},
        {"h2o:ratio=0.1", "ratio=|only softprune"},
        {"fier:fused=1", "fused="},
        {"quest:fused=1,method=evict", "fused="},
        {"tinyserve:fused=1,share=query", "fused=|share=kv"},
        {"h2o:norm=l1", "norm=|+vatp"},
        {"quest:entropy=1", "entropy=|+entropystop"},
        {"snapkv:kernel=4", "kernel=4"},
        {"fier:g=16", "g=16"},
        {"fier:g=48", "g=48"},
    };
    for (int i = 0; i < BUTLER_COUNT(cases); i++)
        refused(&bare, cases[i].text, cases[i].words);
    char text[700] = "quest:budget=";
    memset(text + strlen(text), '1', 600);
    refused(&bare, text, "longer than 512");
}

static void where_subgroups_have_no_meaning(void **state)
{
    (void)state;
    refused(&bare, "quest:share=0", "share=0: must be from 1 to 65536");
    refused(&bare, "quest:share=-1", "share=-1: must be from 1");
    refused(&bare, "quest:share=1.5", "share=1.5|query heads is whole");
    refused(&bare, "quest:share=", "share=: layer or kv or query");
    refused(&bare, "quest:share=2heads", "share=2heads: not a number");
    refused(&bare, "fier:scan=2,share=2", "scan=|share=kv");
    refused(&bare, "tinyserve:fused=1,share=3", "fused=|share=kv");
    refused(&bare, "quest:prompt=64,share=2", "prompt=|share=kv");
}

static void where_scan_has_no_meaning(void **state)
{
    (void)state;
    refused(&bare, "quest:scan=4", "scan=|one-bit keys");
    refused(&bare, "fier:scan=4,method=evict", "scan=|retrieved");
    refused(&bare, "fier:scan=4,share=layer", "scan=|share=kv");
    refused(&bare, "fier:scan=4,page=8", "scan=|page=1");
    refused(&bare, "fier+vatp:scan=4", "scan=|vatp");
    refused(&bare, "fier:scan=4,mass=0.5", "scan=|mass");
    refused(&bare, "fier:scan=4,levels=means", "scan=|levels=ends");
    assert_int_equal(parse("fier:scan=4").scan, 4);
    assert_int_equal(parse("fier").scan, 0);
}

/* The same policy has one text: 1 query head, all of a KV head (4 here, 1 of mha), or scores that do not depend on the query. */
static void subgroups_have_one_spelling(void **state)
{
    static const struct {
        const struct butler_engine *engine;
        const char *text, *same;
    } cases[] = {
        {&bare, "quest:share=1", "quest:share=query"},
        {&gqa, "quest:share=1", "quest:share=query"},
        {&gqa, "quest:share=4", "quest:share=kv"},
        {&gqa, "fier:share=9,scan=2", "fier:scan=2"},
        {&gqa, "tinyserve:share=4,fused=1", "tinyserve"},
        {&gqa, "h2o:share=4", "h2o"},
        {&mha, "fier:share=query", "fier"},
        {&mha, "quest:share=2", "quest"},
        {&gqa, "knorm:method=retrieve,share=2", "knorm:method=retrieve"},
    };
    (void)state;
    for (int i = 0; i < BUTLER_COUNT(cases); i++) {
        struct butler_policy a, b;
        assert_int_equal(butler_policy_parse(cases[i].engine, cases[i].text, &a, NULL), 0);
        assert_int_equal(butler_policy_parse(cases[i].engine, cases[i].same, &b, NULL), 0);
        assert_string_equal(a.text, b.text);
        assert_memory_equal(&a, &b, sizeof a);
    }
    struct butler_policy policy;
    assert_int_equal(butler_policy_parse(&gqa, "quest:share=3", &policy, NULL), 0);
    assert_non_null(strstr(policy.text, ",share=3,"));
    assert_int_equal(policy.plan.share, 3);
}

static void what_the_model_refuses(void **state)
{
    (void)state;
    refused(&gqa, "h2o:share=query", "share=query|4 query heads|share=kv");
    refused(&gqa, "h2o:share=2", "share=2|4 query heads|share=kv");
    refused(&gqa, "quest:dense=7", "dense=7|6 layers");
    refused(&mha, "streaming:rope=cache", "rope=cache");
    refused(&mha, "streaming:preset=paper", "rope=cache");
    assert_int_equal(butler_policy_check(&mha, "h2o:share=query", NULL), 0);
    assert_int_equal(butler_policy_check(&gqa, "quest:share=query,dense=6", NULL), 0);
    assert_int_equal(butler_policy_check(&gqa, "streaming:rope=cache", NULL), 0);
    assert_int_equal(butler_policy_check(NULL, "h2o:share=query", NULL), 0);
    struct butler_model one_model = gqa_model, words_model = {.hp = {0}};
    struct butler_engine one = {.registry = &butler_builtin, .model = &one_model},
                         words = {.registry = &butler_builtin, .model = &words_model};
    one_model.hp.n_layers = 1;
    struct butler_policy policy;
    assert_int_equal(butler_policy_parse(&one, "quest", &policy, NULL), 0);
    assert_int_equal(policy.dense_layers, 1);
    assert_int_equal(butler_policy_check(&words, "quest", NULL), 0);
}

static void limits_round_as_written(void **state)
{
    (void)state;
    struct butler_limits l;
    struct butler_policy p = parse("quest:budget=100,sinks=4,dense=2");
    l = butler_policy_limits(&p, 1, 6, 1000);
    assert_int_equal(l.budget, 1000);
    l = butler_policy_limits(&p, 2, 6, 1000);
    assert_true(l.budget == 100 && l.sinks == 4 && l.recent == 1);
    p = parse("oracle:budget=0.1");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 4).budget, 1);
    assert_int_equal(butler_policy_limits(&p, 0, 6, 14).budget, 1);
    assert_int_equal(butler_policy_limits(&p, 0, 6, 15).budget, 2); /* half up */
    assert_int_equal(butler_policy_limits(&p, 0, 6, 1004).budget, 100);
    p = parse("oracle:budget=1");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 77).budget, 77);
    p = parse("oracle:budget=10,on_top=1,sinks=4,recent=8");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 77).budget, 22);
    p = parse("h2o:budget=101");
    l = butler_policy_limits(&p, 0, 6, 1000);
    assert_true(l.budget == 101 && l.recent == 50);
    p = parse("softprune:ratio=0.25,min=100");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 120).budget, 100);
    assert_int_equal(butler_policy_limits(&p, 0, 6, 1002).budget, 752);
    p = parse("scissorhands:budget=0.01,recent=10,sinks=3");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 200).budget, 13); /* never less than what is always kept */
    p = parse("quest:budget=3,page=16,dense=0");
    l = butler_policy_limits(&p, 0, 6, 200);
    assert_true(l.budget == 48 && l.sinks == 2); /* the first page, the one being filled and one that scores choose */
    p = parse("quest:preset=paper,budget=3,dense=0");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 200).budget, 32);
    p = parse("pagestats:budget=0.1,sinks=20,recent=17");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 200).budget, 80); /* two pages, two at the end, one */
    p = parse("quest:method=evict,budget=20,dense=0");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 200).budget, 20);
    assert_int_equal(parse("quest").sinks, 4);
    assert_int_equal(parse("tinyserve").sinks, 4);
    assert_int_equal(parse("pagestats").sinks, 4);
    p = parse("quest:mass=0.9,dense=0");
    assert_int_equal(butler_policy_limits(&p, 0, 6, 200).budget, 0);
}

/* cap 132, w 32, beta 20: c 100, low 5, high 195; 6 layers step 38. */
static void pyramid(void **state)
{
    (void)state;
    struct butler_policy p = parse("pyramidkv:budget=132");
    static const int far[] = {227, 189, 151, 113, 75, 37};
    for (int layer = 0; layer < 6; layer++)
        assert_int_equal(butler_policy_limits(&p, layer, 6, 5000).budget, far[layer]);
    /* n 200: high 168, low 32, step 27 */
    static const int near[] = {200, 173, 146, 119, 92, 65};
    for (int layer = 0; layer < 6; layer++)
        assert_int_equal(butler_policy_limits(&p, layer, 6, 200).budget, near[layer]);
    for (int layer = 0; layer < 6; layer++) {
        assert_int_equal(butler_policy_limits(&p, layer, 6, 132).budget, 132);
        assert_int_equal(butler_policy_limits(&p, layer, 6, 199).budget, 132); /* shorter than 2 c: uniform */
    }
    assert_int_equal(butler_policy_limits(&p, 0, 1, 5000).budget, 132);
    struct butler_layer layers[11] = {{0}}; /* every second has a window, and is dense: the others have the same budgets as above */
    for (int layer = 0; layer < 11; layer++)
        layers[layer].window = layer % 2 ? 16 : 0;
    p.layers = layers;
    for (int layer = 0; layer < 11; layer++)
        assert_int_equal(butler_policy_limits(&p, layer, 11, 5000).budget, layer % 2 ? 5000 : far[layer / 2]);
    p = parse("pyramidkv:budget=132,dense=1");
    assert_int_equal(butler_policy_limits(&p, 0, 7, 5000).budget, 5000);
    for (int layer = 1; layer < 7; layer++)
        assert_int_equal(butler_policy_limits(&p, layer, 7, 5000).budget, far[layer - 1]);
}

static void commas_of_a_locale_do_not_matter(void **state)
{
    (void)state;
    char *before = strdup(setlocale(LC_ALL, NULL));
    /* Whichever of these the machine has; with none of them the test still holds the default to its word. */
    (void)(setlocale(LC_ALL, "de_DE.UTF-8") || setlocale(LC_ALL, "fr_FR.UTF-8"));
    struct butler_policy p = parse("oracle:budget=0.25");
    setlocale(LC_ALL, before);
    free(before);
    assert_true(p.budget == 0.25);
    assert_non_null(strstr(p.text, "budget=0.25,"));
}

/* ------------------------------------------------------------------------------------------ plug-ins */

static void score(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                  const struct butler_score_request *request)
{
    (void)shape, (void)values, (void)view;
    for (int i = 0; i < request->n; i++)
        request->out[i] = 0;
}

static void record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    *n_slots = (int)values[0];
    *n_bytes = (size_t)shape->head_dim;
}

static void endless_record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = 1;
    *n_bytes = (size_t)1 << 60;
}

static void backward_record(const struct butler_metric_shape *shape, const double *values, int *n_slots, size_t *n_bytes)
{
    (void)shape, (void)values;
    *n_slots = -1;
    *n_bytes = 16;
}

static const struct butler_param params[] = {{"size", 24, 1, 100, ""}, {"blend", 0.5, 0, 1, ""}, {NULL, 0, 0, 0, NULL}};
static const struct butler_metric mine = {.abi = BUTLER_METRIC_ABI,
                                          .name = "mine",
                                          .summary = "a test",
                                          .page_scores = true,
                                          .params = params,
                                          .record = record,
                                          .score = score};

static void a_metric_of_the_caller(void **state)
{
    (void)state;
    struct butler_engine engine = gqa;
    struct butler_policy policy;
    struct butler_policy_info info = {BUTLER_INIT(butler_policy_info)};
    struct butler_error err;
    int n_builtin = 0;
    while (butler_policy_describe(NULL, n_builtin, &info))
        n_builtin++;
    assert_int_equal(butler_metric_register(&engine, &mine, &err), 0);
    assert_int_equal(butler_policy_parse(&engine, "mine:budget=99,blend=0.25,sinks=1", &policy, &err), 0);
    assert_ptr_equal(policy.metric, &mine);
    assert_int_equal(policy.unit, 24);
    assert_true(policy.values[0] == 24 && policy.values[1] == 0.25);
    assert_int_equal(policy.method, BUTLER_RETRIEVE);
    assert_true(butler_policy_describe(&engine, n_builtin, &info));
    assert_string_equal(info.name, "mine");
    assert_non_null(strstr(info.defaults, "mine:method=retrieve,budget=1024,"));
    assert_int_equal(butler_policy_parse(&engine, info.defaults, &policy, &err), 0);
    assert_string_equal(policy.text, info.defaults);
    assert_false(butler_policy_describe(&engine, n_builtin + 1, &info));
    refused(&engine, "mine:blend=2", "blend=2");
    refused(&engine, "nothing", "mine");
    refused(&bare, "mine", "no policy");
    assert_int_equal(butler_metric_register(&engine, &mine, &err), BUTLER_ERROR_ARGUMENT);
    assert_non_null(strstr(err.message, "taken"));
    static const struct butler_param taken[] = {{"budget", 1, 0, 2, ""}, {NULL, 0, 0, 0, NULL}};
    static const struct butler_param twice[] = {{"a", 1, 0, 2, ""}, {"a", 1, 0, 2, ""}, {NULL, 0, 0, 0, NULL}};
    static const struct butler_param beyond[] = {{"a", 3, 0, 2, ""}, {NULL, 0, 0, 0, NULL}};
    const struct butler_metric bad[] = {
        {.abi = BUTLER_METRIC_ABI, .name = "quest", .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "exact", .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "vatp", .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "Upper", .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "a,b", .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "", .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = NULL, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "scoreless"},
        {.abi = BUTLER_METRIC_ABI, .name = "pages", .page_scores = true, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "p", .params = taken, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "p", .params = twice, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "p", .params = beyond, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "p", .scale = (enum butler_metric_scale)7, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "backward", .record = backward_record, .score = score},
        {.abi = BUTLER_METRIC_ABI, .name = "endless", .record = endless_record, .score = score},
    };
    for (int i = 0; i < BUTLER_COUNT(bad); i++)
        if (butler_metric_register(&engine, &bad[i], &err) != BUTLER_ERROR_ARGUMENT)
            fail_msg("bad metric %d was registered", i);
    assert_non_null(strstr(err.message, "metric endless: records of 1152921504606846976 bytes"));
    assert_int_equal(butler_metric_register(&engine, NULL, &err), BUTLER_ERROR_ARGUMENT);
    static const struct butler_metric without = {.name = "q", .score = score};
    assert_int_equal(butler_metric_register(&engine, &without, &err), BUTLER_ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "BUTLER_METRIC_ABI"));
    static const struct butler_metric later = {.abi = BUTLER_METRIC_ABI + 1, .name = "q", .score = score};
    assert_int_equal(butler_metric_register(&engine, &later, &err), BUTLER_ERROR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "ABI"));
    assert_int_equal(engine.plugins->n, 1);
    static const struct butler_metric earlier = {
        .abi = BUTLER_METRIC_ABI, .name = "earlier", .earlier_layers = true, .score = score};
    assert_int_equal(butler_metric_register(&engine, &earlier, &err), 0);
    assert_non_null(strstr(engine.plugins->entries[1].defaults, ",dense=1"));
    butler_metric_list_free(engine.plugins);
    butler_metric_list_free(NULL);
}

static void score_mean(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                       const float *q, int n_q, int first, int n, float *out)
{
    (void)shape, (void)values, (void)view, (void)q, (void)n_q;
    memset(out + first, 0, (size_t)n * sizeof *out);
}

static int window(const double *values)
{
    (void)values;
    return 8;
}

static void observe(const struct butler_metric_shape *shape, const double *values, const struct butler_head_view *view,
                    int position, const float *weights, size_t stride, int n)
{
    (void)shape, (void)values, (void)view, (void)position, (void)weights, (void)stride, (void)n;
}

/* A plan follows what a metric says of itself, whoever wrote it. */
static void plans(void **state)
{
    static const struct butler_param own[] = {{"page", 4, 1, 64, ""}, {"normalise", 1, 0, 1, ""}, {NULL, 0, 0, 0, NULL}};
    static const struct butler_param_form forms[] = {{1, {NULL}}, {1, {"softmax", "zscore"}}};
    const struct butler_metric linear = {
        .abi = BUTLER_METRIC_ABI, .name = "linear", .params = own, .forms = forms, .score = score, .score_mean = score_mean};
    const struct butler_metric watching = {.abi = BUTLER_METRIC_ABI,
                                           .name = "watching",
                                           .record = record,
                                           .score = score,
                                           .observe = observe,
                                           .attention_window = window};
    struct butler_engine engine = gqa;
    struct butler_policy p;
    struct butler_error err;
    (void)state;
    assert_int_equal(butler_metric_register(&engine, &linear, &err), 0);
    assert_int_equal(butler_metric_register(&engine, &watching, &err), 0);
    assert_int_equal(butler_policy_parse(&engine, "linear:group=mean", &p, &err), 0);
    assert_true(p.plan.reduction.rows == BUTLER_ROWS_COMBINED && p.plan.unit == 4 && p.plan.reduction.pool == 4);
    assert_true(p.plan.from_rows && !p.plan.ahead && p.plan.score_slots == 1);
    assert_int_equal(butler_policy_parse(&engine, "linear:group=mean,normalise=softmax", &p, &err), 0);
    assert_true(p.plan.reduction.rows == BUTLER_ROWS_QUERY && p.plan.reduction.logits && !p.plan.reduction.zscores);
    assert_int_equal(butler_policy_parse(&engine, "watching", &p, &err), 0);
    assert_true(p.plan.observe[0] == 8 && p.plan.observe[1] == 8 && !p.plan.from_rows && !p.plan.prompt_records);
    butler_plan_guide(&p.plan);
    assert_true(p.plan.guided && p.plan.observe[0] == 8 && p.plan.observe[1] == 0);
    assert_int_equal(butler_policy_parse(&engine, "watching:method=evict,rolling=0", &p, &err), 0);
    assert_true(p.plan.observe[0] == 8 && p.plan.observe[1] == 0 && p.plan.prompt_records);
    assert_int_equal(butler_policy_parse(&engine, "streaming", &p, &err), 0);
    assert_true(p.plan.newest);
    assert_int_equal(butler_policy_parse(&engine, "h2o+vatp", &p, &err), 0);
    assert_true(p.plan.reduction.weigh == BUTLER_WEIGH_TIMES && !p.plan.newest);
    assert_int_equal(butler_policy_parse(&engine, "full", &p, &err), 0);
    assert_true(!p.plan.metric && p.plan.method == BUTLER_DENSE && p.plan.observe[0] == 0 && p.plan.unit == 1);
    butler_metric_list_free(engine.plugins);
}

static void a_plug_in_that_is_not_one(void **state)
{
    (void)state;
    struct butler_engine engine = gqa;
    struct butler_error err;
    assert_int_equal(butler_plugin_load(&engine, "/nonexistent/x.so", &err), BUTLER_ERROR_IO);
    assert_non_null(strstr(err.message, "/nonexistent/x.so"));
    /* A shared object that is there and is no plug-in: the C library. */
    Dl_info libc;
    void *symbol = dlsym(RTLD_DEFAULT, "gnu_get_libc_version");
    assert_true(symbol && dladdr(symbol, &libc));
    assert_int_equal(butler_plugin_load(&engine, libc.dli_fname, &err), BUTLER_ERROR_FORMAT);
    assert_non_null(strstr(err.message, "butler_plugin_metric"));
    assert_null(engine.plugins);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_canonical),
        cmocka_unit_test(the_text_parses_to_itself),
        cmocka_unit_test(fields),
        cmocka_unit_test(refusals),
        cmocka_unit_test(where_subgroups_have_no_meaning),
        cmocka_unit_test(where_scan_has_no_meaning),
        cmocka_unit_test(subgroups_have_one_spelling),
        cmocka_unit_test(what_the_model_refuses),
        cmocka_unit_test(limits_round_as_written),
        cmocka_unit_test(pyramid),
        cmocka_unit_test(commas_of_a_locale_do_not_matter),
        cmocka_unit_test(a_metric_of_the_caller),
        cmocka_unit_test(plans),
        cmocka_unit_test(a_plug_in_that_is_not_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
