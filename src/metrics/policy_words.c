/* Policies in words: their papers and what their keys mean, for `butler policies NAME`. */
#include <string.h>

#include "engine/engine.h"
#include "metrics/registry.h"

const char *butler_policy_paper(const char *name)
{
    static const struct {
        const char *policy, *paper;
    } papers[] = {
        {"streaming", "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453"},
        {"h2o", "Zhang et al., H2O: Heavy-Hitter Oracle, arXiv 2306.14048; equation 2 of arXiv 2406.12335"},
        {"scissorhands", "Liu et al., Scissorhands, arXiv 2305.17118; equation 3 of arXiv 2406.12335"},
        {"snapkv", "Li et al., SnapKV, arXiv 2404.14469"},
        {"pyramidkv", "Cai et al., PyramidKV, arXiv 2406.02069"},
        {"tova", "Oren et al., Transformers are Multi-State RNNs, arXiv 2401.06104"},
        {"softprune", "Liu and Yu, TinyServe, arXiv 2509.12211"},
        {"quest", "Tang et al., Quest, arXiv 2406.10774; equation 2 of arXiv 2509.12211"},
        {"tinyserve", "Liu and Yu, TinyServe, arXiv 2509.12211, equation 2, algorithm 1"},
        {"fier", "Wang et al., FIER, arXiv 2508.08256, equation 5"},
        {"verified", "Vegas, verification-guided selection for self-speculative decoding, arXiv 2602.07223"},
        {"tokenbutler", "Akhauri et al., TokenButler: Token Importance is Predictable, arXiv 2503.07518"},
        {"tokenbutler2", "Akhauri et al., TokenButler: Token Importance is Predictable, arXiv 2503.07518, revision of 2026"},
        {"layer0", "Akhauri et al., TokenButler: Token Importance is Predictable, arXiv 2503.07518, figure 9"},
        {"prevlayer", "Akhauri et al., TokenButler: Token Importance is Predictable, arXiv 2503.07518, figure 9"},
        {"knorm", "Devoto et al., A Simple and Effective L2 Norm-Based Strategy for KV Cache Compression, arXiv 2406.11430"},
        {"keydiff", "Park et al., KeyDiff: Key Similarity-Based KV Cache Eviction, arXiv 2504.15364"},
        {"triattention", "TriAttention, arXiv 2604.04921"},
        {"entropystop", "Liu and Yu, TinyServe, arXiv 2509.12211"},
    };
    for (int i = 0; name && i < BUTLER_COUNT(papers); i++)
        if (!strcmp(papers[i].policy, name))
            return papers[i].paper;
    return NULL;
}

const char *butler_policy_help(const struct butler_engine *engine, const char *metric, const char *parameter)
{
    static const struct {
        const char *name, *help;
    } keys[] = {
        {"method", "evict: dropped tokens leave memory for good; retrieve: all stay, a step reads some"},
        {"budget", "tokens of a head; up to 1: a share of the current length"},
        {"mass", "instead of a budget: the fewest tokens expected to hold this share of the attention"},
        {"ratio", "share of the tokens that is dropped"},
        {"min", "tokens that stay in any case"},
        {"on_top", "1: sinks and recent are added to the budget; 0: they are part of it"},
        {"sinks", "first tokens, always kept"},
        {"recent", "latest tokens, always kept"},
        {"heavy", "share of the budget for the highest scores; the rest goes to the latest tokens"},
        {"share", "who shares a selection: layer, kv head, N of its query heads, or each has its own (query)"},
        {"group", "how scores of the query heads that share are reduced: max or mean"},
        {"dense", "first layers, which read everything"},
        {"pyramid", "more budget in low layers; 0: every layer the same"},
        {"prefill", "evict: also while the prompt is read; dense: once, after it"},
        {"rolling", "1: every decode step evicts; 0: only prompts are cut"},
        {"rope", "keys are rotated by their place in the text (original) or in the cache"},
        {"fused", "1: scores, selects and attends in one pass over a head"},
        {"scan",
         "first chooses pages of 32 tokens worth so many budgets by bounds of their keys, then scores only their tokens; 0: all"},
        {"every", "steps from one selection to the next"},
        {"prompt", "tokens that a block of 64 of a prompt reads of those before it; up to 1: a share of them; 0: all"},
        {"preset", "paper: the defaults of the paper instead of butler's"},
        {"norm", "of the values that scores are multiplied by: l1, l2 or linf"},
        {"entropy", "stops when the next token's entropy is below, in nats"},
        {"after", "decoded tokens before that"},
    };
    for (int i = 0; parameter && i < BUTLER_COUNT(keys); i++)
        if (!strcmp(keys[i].name, parameter))
            return keys[i].help;
    if (!parameter || !metric)
        return NULL;
    const struct butler_metric *found = butler_metric_find(&butler_builtin, engine ? engine->plugins : NULL, metric);
    for (int i = 0; found && found->params && found->params[i].name; i++)
        if (!strcmp(found->params[i].name, parameter))
            return found->params[i].help;
    return NULL;
}
