/* The named policies: points on the axes metric, method, granularity, sharing, budget. Numbers are the papers' where a
 * paper names one; where none does:
 *   - a budget is the one its paper reports near-full quality at (h2o 0.2, scissorhands and knorm 0.5 as in VATP's runs,
 *     tova 512, snapkv, quest, fier, pagestats 1024, streaming, pyramidkv 2048, tokenbutler 0.5), and oracle, random, layer0
 *     and prevlayer have quest's;
 *   - page policies keep the first page, where the attention sinks are: without it pages of a text's middle win and half of the
 *     attention is lost. preset=paper does not;
 *   - streaming keeps original positions: unrotated keys in a half-precision cache could not give the dense result bit for
 *     bit at budgets beyond the length, as every policy must. preset=paper rotates by rank in the cache, as the paper does. */
#include <string.h>

#include "engine/abi.h"
#include "engine/engine.h"
#include "metrics/registry.h"

#define EVICT ",dense=0,pyramid=0,prefill=dense,rolling=1,rope=original"
#define EVICT_KEYS ",dense=0,pyramid=0,prefill=dense,rolling=1"
#define PROMPT_ONLY(pyramid) ",dense=0,pyramid=" pyramid ",prefill=dense,rolling=0,rope=original"
#define PER_HEAD ",share=kv,group=max"
#define BY_MEAN ",share=kv,group=mean" /* one query for the heads of a KV head: src/metrics/predicted.c */

const struct butler_policy_row butler_policy_rows[] = {
    {.name = "full", .text = "full", .summary = "reads everything: the reference for quality and speed"},
    {.name = "streaming",
     .metric = "recency",
     .summary = "StreamingLLM: the first tokens and the latest ones",
     .text = "streaming:method=evict,budget=2048,on_top=0,sinks=4,recent=0" PER_HEAD
             ",dense=0,pyramid=0,prefill=evict,rolling=1,rope=original",
     .paper = "rope=cache",
     .code = "budget=2004,rope=cache"},
    {.name = "h2o",
     .metric = "attention",
     .summary = "H2O: half the budget to tokens that drew most attention, half to the latest",
     .text = "h2o:method=evict,budget=0.2,sinks=0,heavy=0.5" PER_HEAD ",power=1,half_life=0" EVICT},
    {.name = "scissorhands",
     .metric = "windowed",
     .summary = "Scissorhands: tokens that drew attention from the last 400 queries",
     .text = "scissorhands:method=evict,budget=0.5,on_top=0,sinks=0,recent=10" PER_HEAD ",window=400" EVICT},
    {.name = "snapkv",
     .metric = "pooled",
     .summary = "SnapKV: cuts the prompt to what its last queries looked at, and around it",
     .text = "snapkv:method=evict,budget=1024,on_top=0,sinks=0,recent=32" PER_HEAD ",window=32,kernel=7,pool=max" PROMPT_ONLY("0"),
     .code = "budget=2048,window=32,kernel=5,pool=avg",
     .keeps_window = true},
    {.name = "pyramidkv",
     .metric = "pooled",
     .summary = "PyramidKV: SnapKV with more budget in low layers",
     .text =
         "pyramidkv:method=evict,budget=2048,on_top=0,sinks=0,recent=32" PER_HEAD ",window=32,kernel=7,pool=max" PROMPT_ONLY("20"),
     .code = "window=8,kernel=7,pool=max",
     .keeps_window = true},
    {.name = "tova",
     .metric = "last_query",
     .summary = "TOVA: one set per layer by the latest query's attention, averaged over heads",
     .text = "tova:method=evict,budget=512,on_top=0,sinks=0,recent=0,share=layer,group=mean" EVICT},
    {.name = "softprune",
     .metric = "attention",
     .summary = "TinyServe's pruning: drops the tenth of the tokens with the lowest attention norm",
     .text = "softprune:method=evict,ratio=0.1,min=100,on_top=0,sinks=0,recent=0" PER_HEAD ",power=2,half_life=0" EVICT,
     .prunes = true},
    {.name = "quest",
     .metric = "page_bounds",
     .summary = "Quest: pages whose channel bounds promise the largest q.k",
     .text = "quest:method=retrieve,budget=1024,on_top=0,sinks=4,recent=0" PER_HEAD
             ",page=16,bound=sum,bounds=box,dense=2,pyramid=0,fused=0,every=1",
     .paper = "sinks=0",
     .code = "sinks=0"},
    {.name = "tinyserve",
     .metric = "page_bounds",
     .summary = "TinyServe: Quest's pages, scored, selected and attended to in one pass",
     .text = "tinyserve:method=retrieve,budget=2048,on_top=0,sinks=4,recent=0" PER_HEAD
             ",page=16,bound=sum,bounds=box,dense=0,pyramid=0,fused=1,every=1",
     .paper = "sinks=0",
     .code = "sinks=0"},
    {.name = "pagestats",
     .metric = "page_stats",
     .summary = "pages by mean and standard deviation of their keys",
     .text = "pagestats:method=retrieve,budget=1024,on_top=0,sinks=4,recent=0" PER_HEAD ",page=16,std=1,dense=0,pyramid=0,every=1",
     .code = "sinks=16,recent=256"},
    {.name = "fier",
     .metric = "one_bit",
     .summary = "FIER: tokens by q.k with 1-bit keys",
     .text = "fier:method=retrieve,budget=1024,on_top=0,sinks=0,recent=0" PER_HEAD
             ",g=32,page=1,levels=ends,dense=2,pyramid=0,scan=0,every=1"},
    {.name = "tokenbutler",
     .metric = "predicted",
     .summary = "TokenButler: tokens by a predictor that the first layer feeds",
     .text = "tokenbutler:method=retrieve,budget=0.5,on_top=0,sinks=4,recent=0" BY_MEAN
             ",keys=int4,page=1,normalise=zscore,dense=1,pyramid=0,every=1"},
    {.name = "tokenbutler2",
     .metric = "predicted2",
     .summary = "TokenButler, second version: predicted queries every few layers, narrowed keys",
     .text = "tokenbutler2:method=retrieve,budget=2048,on_top=1,sinks=128,recent=512" BY_MEAN
             ",keys=int4,page=1,normalise=zscore,dense=1,pyramid=0,every=1",
     .paper = "group=max",
     .code = "group=max"},
    {.name = "layer0",
     .metric = "first_layer",
     .summary = "tokens by the attention of the same head of the first layer",
     .text = "layer0:method=retrieve,budget=1024,on_top=0,sinks=0,recent=0" PER_HEAD ",dense=1,pyramid=0,every=1"},
    {.name = "prevlayer",
     .metric = "previous_layer",
     .summary = "tokens by the attention of the same head of the layer before",
     .text = "prevlayer:method=retrieve,budget=1024,on_top=0,sinks=0,recent=0" PER_HEAD ",dense=1,pyramid=0,every=1"},
    {.name = "oracle",
     .metric = "exact",
     .summary = "tokens by their true attention: the upper bound of quality, no faster than full",
     .text = "oracle:method=retrieve,budget=1024,on_top=0,sinks=0,recent=0" PER_HEAD ",dense=0,pyramid=0,every=1"},
    {.name = "random",
     .metric = "random",
     .summary = "random tokens: the lower bound of quality",
     .text = "random:method=retrieve,budget=1024,on_top=0,sinks=0,recent=0" PER_HEAD ",dense=0,pyramid=0,every=1"},
    {.name = "verified",
     .metric = "verified",
     .summary = "drafts for exact checks: tokens that the latest check attended to",
     .text =
         "verified:method=retrieve,budget=512,on_top=0,sinks=0,recent=16,share=kv,group=max,decay=0.5,dense=0,pyramid=0,every=64"},
    {.name = "knorm",
     .metric = "key_norm",
     .summary = "keeps tokens whose keys have a low norm",
     .text = "knorm:method=evict,budget=0.5,on_top=0,sinks=0,recent=0" PER_HEAD EVICT_KEYS},
    {.name = "keydiff",
     .metric = "key_diff",
     .summary = "KeyDiff: keeps tokens whose keys are unlike the others",
     .text = "keydiff:method=evict,budget=0.5,on_top=0,sinks=0,recent=0" PER_HEAD EVICT_KEYS},
    {.name = "triattention",
     .metric = "query_centre",
     .summary = "TriAttention: keeps tokens that calibrated query centres look for",
     .text = "triattention:method=evict,budget=2048,on_top=0,sinks=4,recent=0" PER_HEAD ",normalise=zscore" EVICT_KEYS},
    {.name = "entropystop",
     .summary = "reads everything and stops when the next token is all but certain",
     .text = "entropystop:entropy=0.5,after=10"},
    {.name = NULL},
};

bool butler_policy_describe(const struct butler_engine *engine, int i, struct butler_policy_info *info)
{
    int n_rows = 0;
    while (butler_policy_rows[n_rows].name)
        n_rows++;
    const struct butler_metric_list *list = engine ? engine->plugins : NULL;
    if (!info || i < 0 || i >= n_rows + (list ? list->n : 0))
        return false;
    struct butler_policy_info own = {BUTLER_INIT(butler_policy_info)};
    if (i < n_rows) {
        const struct butler_policy_row *row = &butler_policy_rows[i];
        const char *method = !row->metric ? "dense" : strstr(row->text, "method=evict") ? "evict" : "retrieve";
        own =
            (struct butler_policy_info){sizeof own, row->name, row->metric ? row->metric : "none", method, row->summary, row->text};
    } else {
        const struct butler_metric_entry *entry = &list->entries[i - n_rows];
        const char *summary = entry->metric->summary ? entry->metric->summary : "";
        own =
            (struct butler_policy_info){sizeof own, entry->metric->name, entry->metric->name, "retrieve", summary, entry->defaults};
    }
    butler_give_struct(info, &own, sizeof own, BUTLER_END_OF(butler_policy_info, defaults));
    return true;
}
