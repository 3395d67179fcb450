#!/usr/bin/env python3
"""Makes the tables of README.md, docs/results.md, bench/tables.md and bench/ruler.md, and docs/results.svg and docs/results-qwen.svg,
from bench/results.jsonl and the verdicts of `butler gate`, bench/gates/MODEL-TOKENS.json.

    bench/results.py [ROWS.jsonl ...]    takes rows of `butler eval` over into bench/results.jsonl, then writes tables and picture
Of several rows of one measurement the one with most items is kept."""
import json
import math
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL, GEMMA, QWEN, LARGE = "smollm2.gguf", "gemma3-270m.gguf", "qwen2.5-coder-0.5b.gguf", "qwen2.5-coder-1.5b.gguf"
MODEL_NAMES = {LARGE: "Qwen 1.5B", QWEN: "Qwen 0.5B", MODEL: "SmolLM2"}  # of the claims, the first that was measured
KEPT = "task subset model policy settings budget length limit seed config metric value ci n items difference kv_read found agreement kl compared date version commit fingerprint data".split()

# A task is (task, subset, metric); a column of a table is (task, budget).
PPL, NAMED, KEY, BOOK, NEWS, LONG_KEY, TOP_HALF, QUESTIONS, RULER_4K, RULER_8K, BOOLQ = (
    ("ppl", None, "ppl"), ("coref", None, "coverage"), ("ruler", "niah_single_1", "string_match"), ("ppl", "book", "ppl"),
    ("longbench", "multi_news", "rouge_l"), ("ruler", "niah_single_1 7900", "string_match"), ("recall", None, "top_half_accuracy"),
    ("mc", "all sets, 5 shots", "mean"), ("ruler", "all", "mean"), ("ruler", "all 7900", "mean"), ("mc", "boolq, 5 shots", "accuracy"))
MULTIKEY, WHOLE, SPEED = ("ruler", "niah_multikey_2", "string_match"), ("coref", None, "accuracy"), ("speed", None, "speed_up")
DECODED, ZERO_SHOT = ("coref", "decoded", "accuracy"), ("mc", "four sets, decoded", "mean")
FIRST_ANSWER, LATER_ANSWERS, ROUTE = ("turns", None, "first"), ("turns", None, "later"), ("chain", None, "coverage")
FOUND, AGREEMENT, KL = BESIDE_DENSE = [("ppl", "book", name) for name in ("found", "agreement", "kl")]  # fields of the book's rows
SPEED_LARGE = ("speed", "Qwen 1.5B", "speed_up")  # beside the 0.5B's in one table
KEY_10K, MULTIKEY_16K, MULTIKEY_30K = (("ruler", name, "string_match") for name in ("niah_single_1 10000", "niah_multikey_2 16384",
                                                                                    "niah_multikey_2 30000"))
SHORT_BOOK = ("ppl", "book 2560", "ppl")
TITLES = {
    PPL: "WikiText-2, ppl", BOOK: "a book, ppl", SHORT_BOOK: "2,048 tokens of a book, then 512, ppl", FOUND: "best tokens that were read, %", AGREEMENT: "same likeliest token as dense, %", KL: "KL from dense, nats",
    NAMED: "co-reference, %", WHOLE: "co-reference, whole names, %", DECODED: "the same, the text before it decoded too, %",
    KEY: "pass key in 4,096 tokens, %", MULTIKEY: "one key of many in 4,096 tokens, %", LONG_KEY: "pass key in 7,900 tokens, %",
    KEY_10K: "pass key in 10,000 tokens, %", MULTIKEY_16K: "one key of many in 16,384 tokens, %", MULTIKEY_30K: "in 30,000 tokens, %",
    FIRST_ANSWER: "the first answer, %", LATER_ANSWERS: "the four after it, %", ROUTE: "tokens of a route, %",
    SPEED: "speed of steps at 16,384 tokens, % of full's", SPEED_LARGE: "the same, 1.5B", NEWS: "multi_news, Rouge-L",
    ("recall", None, "recall"): "of the 11 % with the most attention, %", ("recall", None, "mass"): "of the attention, %",
    TOP_HALF: "top half of the tokens, %", QUESTIONS: "five question sets, %", ZERO_SHOT: "their mean, %", BOOLQ: "BoolQ, %",
    RULER_4K: "RULER, 4,096 tokens, %", RULER_8K: "RULER, 7,900 tokens, %"}
FIER, QUEST, BUTLER2, H2O, VATP = "fier", "quest", "tokenbutler2:on_top=0,sinks=4,recent=0", "h2o", "h2o+vatp"
FIRST, HALF, BUDGETS = 0.11, 0.5, (0.05, 0.11, 0.25, 0.5)
SHORT = [(task, budget) for task in (PPL, NAMED) for budget in BUDGETS]
LONG = [(task, budget) for task in (KEY, BOOK, QUESTIONS) for budget in BUDGETS]
OTHERS = [(task, budget) for task in (RULER_4K, RULER_8K, BOOLQ, NEWS) for budget in BUDGETS]
RULER_NAMES = ("niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multivalue",
               "niah_multiquery", "vt", "cwe", "fwe")  # qa_1 and qa_2 need data
RULER = {length: [("ruler", name if length == 4096 else f"{name} {length}", "string_match") for name in RULER_NAMES] for length in (4096, 7900)}
OTHER_MODEL = [(task, budget) for task in (PPL, NAMED, KEY) for budget in (FIRST, HALF)]
DEFAULTS = [("full", None), *((name, 2048) for name in ("tokenbutler2", "fier", "quest", "snapkv")), ("fier", 1024)]  # policies, tokens
DEFAULT_TASKS = [(task, None) for task in (LONG_KEY, BOOK, NEWS)]
SETS = {"hellaswag": ("acc_norm", "40.9"), "piqa": ("acc_norm", "66.3"), "arc_easy": ("acc_norm", "–"), "winogrande": ("accuracy", "–"),
        "boolq": ("accuracy", "–"), "lambada": ("accuracy", "–")}  # metric, published
FEW_SHOT = [name for name in SETS if name != "boolq"]  # whose five examples are over a thousand tokens
ZERO_SHOT_SETS = [("mc", name, SETS[name][0]) for name in ("hellaswag", "piqa", "arc_easy", "winogrande")]  # of TokenButler's figure 6
MEANS = {QUESTIONS: [("mc", f"{name}, 5 shots", SETS[name][0]) for name in FEW_SHOT],  # what a mean is of
         ZERO_SHOT: ZERO_SHOT_SETS,
         RULER_4K: RULER[4096], RULER_8K: RULER[7900]}
DRAWN = {"oracle": ("#000", "2 3"), FIER: ("#0072b2", ""), "fier:levels=means": ("#003860", ""), "tinyserve": ("#17becf", ""), QUEST: ("#009e73", ""), BUTLER2: ("#d55e00", ""), "tokenbutler2": ("#8c2d04", ""),
         "snapkv": ("#cc79a7", "6 3"), "pyramidkv": ("#8c564b", "6 3"), "tova": ("#9467bd", "6 3"), H2O: ("#e69f00", "6 3"), VATP: ("#b8a000", "6 3"),
         "scissorhands": ("#7f7f3f", "6 3"), "streaming": ("#56b4e9", "6 3"), "knorm": ("#444", "6 3"), "random": ("#aaa", "2 3")}  # colour, dashes
PASS_KEYS, LONG_KEYS = [(KEY_10K, budget) for budget in (32, 64, 128, 512, 0.11)], [(MULTIKEY_16K, 2048), (MULTIKEY_30K, 2048)]
QWEN_TABLE = [(BOOK, 0.11), (BOOK, 0.25), (KEY, 64), (KEY, 0.11), (MULTIKEY, 128), (MULTIKEY, 0.11), (NAMED, 0.11), (NAMED, 0.5)]
QWEN_SHORT, QWEN_SHORT_POLICIES = [(PPL, 0.25), (PPL, HALF), (QUESTIONS, 0.2)], [
    "full", "oracle", QUEST, H2O, VATP, "h2o:sinks=20", "h2o:heavy=1", "h2o:heavy=0", "scissorhands", "scissorhands+vatp", "streaming", BUTLER2]
PAGE_TASKS, PAGE_SIZES = [(SPEED, None), (MULTIKEY, None), (BOOK, None), (FOUND, None)], [
    ("full", None), *((f"tinyserve:page={page}", 0.11) for page in (4, 8, 16, 32, 64))]
AGREEING, AGREEING_POLICIES = [(task, 0.11) for task in (AGREEMENT, KL, BOOK, MULTIKEY)], ["full", "fier:levels=means", "tinyserve", "streaming"]
ONE_TEXT = [(task, 0.11) for task in (FIRST_ANSWER, LATER_ANSWERS, ROUTE)]
VALUES, VALUES_TASKS = ["full", H2O, "h2o:sinks=20", VATP, "h2o+vatp:norm=l2", "h2o+vatp:norm=linf", "scissorhands", "scissorhands:sinks=20",
                        "scissorhands+vatp"], [(NAMED, budget) for budget in (0.11, 0.25, 0.5, 0.75)]
SHARING = {model: [("full", None), *((f"fier:levels=means{share}", budget) for share, budget in (
    ("", 0.11), (",share=3", by_three), (",share=query", by_one), (",share=3", 0.11), (",share=query", 0.11)))]
    for model, by_three, by_one in ((QWEN, 0.0367, 0.0157), (LARGE, 0.055, 0.0183))}
for model, by_three, by_one in ((QWEN, 0.0367, 0.0157), (LARGE, 0.055, 0.0183)):
    SHARING[model] += [(f"{name}:share={share}" if share else name, budget) for name in (QUEST, "tokenbutler2")
                       for share, budget in (("", 0.11), ("3", by_three), ("query", by_one), ("3", 0.11), ("query", 0.11))]
PLUG_INS = [("full", None), ("softprune", 0.9), ("softprune:ratio=0.5", 0.5), ("softprune:ratio=0.9", 0.1), ("entropystop", 1), ("tinyserve", 2048),
            ("tinyserve+entropystop", 2048)]
LARGE_TABLE = [(MULTIKEY, 0.11), *((WHOLE, budget) for budget in (0.11, 0.25, 0.5)), (DECODED, 0.5)]
RECALLED = [(("recall", None, metric), 0.11) for metric in ("recall", "mass", "top_half_accuracy")]
RECALLING = ["oracle", FIER, "fier:levels=means", BUTLER2, QUEST, "tinyserve", "prevlayer", "layer0", H2O, VATP, "snapkv", "streaming", "random"]
LARGE_POLICIES = ["full", "oracle", FIER, "fier:levels=means", QUEST, "tinyserve", H2O, VATP, "snapkv", "streaming", "tokenbutler2", BUTLER2]
QWEN_BUDGETS = (0.11, 0.25, 0.5, 64, 128)
QWEN_PANELS = {BOOK: 1.2, KEY: 0, MULTIKEY: 0, NAMED: 0}
LARGE_PANELS = {NAMED: 0, WHOLE: 0, MULTIKEY: 0}
PANELS = {RULER_4K: 0, KEY: 0, QUESTIONS: 0, NAMED: 0, BOOK: 1.2, PPL: 2}  # the lower edge, times full's value
NO_BUDGET = {"softprune", "entropystop"}  # what they keep follows from other keys
NOT_SHOWN = {"pagestats", "h2o:heavy=1", "h2o:heavy=0", "scissorhands+vatp", "fier:dense=0", "fier:levels=means,share=3", "fier:levels=means,share=query",
             *(name for name, _ in PAGE_SIZES[1:]), *(name for name in VALUES if ":" in name)}  # in tables of policies, which must fit the page
NEAR = 0.02  # the loss that counts as none
FLOOR = 0.3  # what full attention must reach in a task that is scored in %, or the task tests no policy; Rouge is no such score
CLAIMS = [  # paper and claim, (task, policy, the policy or the value it is compared with, budget), "as good" or "better"
    ("FIER: full quality at 11 %", (PPL, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (BOOK, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (NAMED, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (KEY, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (QUESTIONS, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (MULTIKEY, FIER, "full", 0.11), "as good"),
    ("FIER finds more pass keys than Quest (87 to 60 %)", (KEY, FIER, QUEST, 0.11), "better"),
    *(("FIER: full quality at 32 to 512 tokens of 10,000", (KEY_10K, FIER, "full", budget), "as good") for budget in (32, 64, 128, 512)),
    ("FIER: full quality at 11 %", (KEY_10K, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at few tokens", (MULTIKEY, FIER, "full", 128), "as good"),
    ("FIER finds more pass keys than Quest (87 to 60 %)", (KEY_10K, FIER, QUEST, 64), "better"),
    ("FIER finds more pass keys than Quest (87 to 60 %)", (MULTIKEY, FIER, QUEST, 128), "better"),
    ("FIER is better than SnapKV on LongBench", (NEWS, FIER, "snapkv", 2048), "better"),
    ("TokenButler: 75 % of the top half found", (TOP_HALF, BUTLER2, 0.75, 0.5), "better"),
    ("TokenButler, version 1: 75 % of the top half found", (TOP_HALF, "tokenbutler", 0.75, 0.5), "better"),
    ("TokenButler, version 1: 2 % more perplexity at 50 %", (PPL, "tokenbutler", "full", 0.5), "as good"),
    ("TokenButler, version 1: co-reference as with true attention", (NAMED, "tokenbutler", "oracle", 0.5), "as good"),
    ("TokenButler: 2 % more perplexity at 50 %", (PPL, BUTLER2, "full", 0.5), "as good"),
    ("TokenButler: 2 % more perplexity at 50 %", (BOOK, BUTLER2, "full", 0.5), "as good"),
    ("TokenButler: question sets as with full attention", (QUESTIONS, BUTLER2, "full", 0.5), "as good"),
    ("TokenButler: less perplexity than other metrics", (PPL, BUTLER2, QUEST, 0.5), "better"),
    ("TokenButler: co-reference as with true attention (78 to 81 %)", (NAMED, BUTLER2, "oracle", 0.5), "as good"),
    ("TokenButler: the same, every token decoded, whole names", (DECODED, BUTLER2, "oracle", 0.5), "as good"),
    ("TokenButler: pages lose co-references (6 %)", (NAMED, BUTLER2, QUEST, 0.5), "better"),
    ("TokenButler: eviction loses co-references (10 %)", (NAMED, BUTLER2, H2O, 0.5), "better"),
    ("TokenButler: layer 0's attention chooses worse (Fig. 9)", (NAMED, BUTLER2, "layer0", 0.5), "better"),
    ("TokenButler: the previous layer's chooses worse (Fig. 9)", (NAMED, BUTLER2, "prevlayer", 0.5), "better"),
    ("TokenButler: the previous layer's chooses worse than eviction", (NAMED, "oracle:method=evict", "prevlayer", 0.5), "better"),
    ("VATP is better than H2O at 50 %", (NAMED, VATP, H2O, 0.5), "better"),
    ("VATP is better than H2O at 50 %", (PPL, VATP, H2O, 0.5), "better"),
    ("VATP is better than H2O at 50 %", (KEY, VATP, H2O, 0.5), "better"),
    ("VATP is better than H2O with VATP's 20 sinks", (PPL, VATP, "h2o:sinks=20", 0.5), "better"),
    ("VATP is better than H2O with VATP's 20 sinks", (NAMED, VATP, "h2o:sinks=20", 0.5), "better"),
    ("VATP is better than H2O with VATP's 20 sinks", (NAMED, VATP, "h2o:sinks=20", 0.75), "better"),
    ("VATP is better than Scissorhands with VATP's 20 sinks", (NAMED, "scissorhands+vatp", "scissorhands:sinks=20", 0.5), "better"),
    ("H2O keeps quality at 20 % (here 25 %)", (PPL, H2O, "full", 0.25), "as good"),
    ("H2O keeps quality at 20 % (here 25 %)", (NAMED, H2O, "full", 0.25), "as good"),
    ("H2O keeps quality at 20 %", (QUESTIONS, H2O, "full", 0.2), "as good"),
    ("H2O needs recent tokens, too", (QUESTIONS, H2O, "h2o:heavy=1", 0.2), "better"),
    ("H2O needs heavy tokens, too", (QUESTIONS, H2O, "h2o:heavy=0", 0.2), "better"),
    ("VATP is better than Scissorhands", (QUESTIONS, "scissorhands+vatp", "scissorhands", 0.2), "better"),
    ("H2O is better than recent tokens alone", (PPL, H2O, "streaming", 0.25), "better"),
    ("TinyServe: pages keep quality at 2,048 tokens", (KEY, "tinyserve", "full", 0.5), "as good"),
    ("TinyServe: pages keep quality at 2,048 tokens", (BOOK, "tinyserve", "full", 0.25), "as good"),
    ("TinyServe: pages keep quality at 2,048 tokens (here 450)", (MULTIKEY, "tinyserve", "full", 0.11), "as good"),
    ("TinyServe: pages are better than StreamingLLM", (MULTIKEY, "tinyserve", "streaming", 0.11), "better"),
    ("TinyServe: 2.1 to 3.4 times as fast", (SPEED, "tinyserve", 2.1, 2048), "better"),
    ("FIER: 1.2 to 1.5 times as fast", (SPEED, FIER, 1.2, 0.11), "better"),
    ("VATP costs H2O no time", (SPEED, VATP, H2O, 0.11), "as good"),
]


def family(policy):
    """The policy without its budget."""
    return re.sub(r"([:,])budget=[^,]*(,?)", lambda m: m[1] if m[2] else "", policy)


def subset_of(row):
    """RULER's tasks of another length than 4,096 have it in their name, question sets the examples before each question; a book read as a
    prompt is not a text decoded from its first token, and neither are the texts of co-references, unless told so."""
    if row["task"] == "ruler" and row["length"] != 4096:
        return f"{row['subset']} {row['length']}"
    if row["task"] == "mc" and "shots=5" in row.get("config", ""):
        return f"{row['subset']}, 5 shots"
    if row["task"] == "coref" and "mode=simulate" in row.get("config", ""):
        return "decoded"
    if row["task"] == "ppl" and "mode=prefill" in row.get("config", ""):
        return f"book {row['length']}" if row["length"] == 2560 else "book"
    return row.get("subset")


def base_of(row):
    """The policy beside which a row was measured on the same items; None: beside none."""
    return family((row.get("difference") or {}).get("to") or "") or None


def key_of(row):
    """(task, subset, metric), policy, budget, base: the same measurement beside another policy is another row."""
    return (row["task"], subset_of(row), row["metric"]), family(row["policy"]), None if row["policy"] == "full" else row["budget"], base_of(row)


def find(rows, task, policy, budget, base="full"):
    """The row that was measured beside `base`, otherwise the one with most items; None: there is none."""
    found = {key[3]: row for key, row in rows.items() if key[:3] == (task, policy, None if policy == "full" else budget)}
    return found.get(base) or max(found.values(), key=lambda row: row["n"], default=None)


def oracle_of(rows, task, budget):
    """True attention at the same budget; recall is measured with one dense layer as version 2 has."""
    return find(rows, task, "oracle", budget) or find(rows, task, "oracle:dense=1", budget)


def paired(row):
    """(difference, its ends) over the items that a row shares with its base. Where all differ alike, mostly not at all, none of n items says
    otherwise: with 95 % confidence at most 1 - 0.05^(1/n) of all items do (about 3/n)."""
    change, ends = row["difference"]["value"], row["difference"]["ci"]
    if ends[0] < ends[1]:
        return change, ends
    room = 1 - 0.05 ** (1 / (row.get("items") or row["limit"] or row["n"]))
    return change, [change - room, change + room]


def means(rows):
    """Rows of MEANS, each part with the same weight, for every policy and budget that has all beside `full`. Intervals add in quadrature."""
    def middle(pairs):
        """(mean, ends) of (value, (low, high))"""
        value, width = sum(v for v, _ in pairs) / len(pairs), math.hypot(*(high - low for _, (low, high) in pairs)) / len(pairs)
        return value, [value - width / 2, value + width / 2]

    found = {}
    for task, parts in MEANS.items():
        for policy, budget in dict.fromkeys(key[1:3] for key in rows if key[0] == parts[0]):
            members = [rows.get((part, policy, budget, None if policy == "full" else "full")) for part in parts]
            if not all(members):
                continue
            value, ci = middle([(row["value"], row["ci"]) for row in members])
            row = {"policy": policy, "budget": budget, "value": value, "ci": [max(ci[0], 0), min(ci[1], 1)], "n": sum(row["n"] for row in members),
                   "kv_read": sum(row["kv_read"] for row in members) / len(members)}
            if policy != "full":
                change, ends = middle(list(map(paired, members)))
                row["difference"] = {"to": "full", "value": change, "ci": ends}
            found[task, policy, budget, base_of(row)] = row
    return found


def beside_dense(rows):
    """What steps over a book have in common with dense attention's, as rows."""
    return {(task, *key[1:3], None): {**row, "value": row[task[2]], "ci": None, "difference": None, "n": row["n"] if task == FOUND else row["compared"]}
            for task in BESIDE_DENSE for key, row in rows.items() if key[0] == BOOK and row.get(task[2]) is not None}


def budget_text(budget):
    return f"{100 * budget:.0f} %" if budget <= 1 else f"{budget:,} tokens"


def number(task, value):
    return f"{value:.1f}" if task[2] == "ppl" else f"{value:.3f}" if task[2] == "kl" else f"{100 * value:.0f}"


def interval(task, row):
    low, high = row["ci"] or (None, None)
    return f"{number(task, row['value'])} [{number(task, low)}, {number(task, high)}]" if low is not None else f"{number(task, row['value'])} [–]"


def loss(task, row, other):
    """(loss, its low, its high) as shares of `other`, a row or a value: over the same items where the row was measured beside it, otherwise
    between intervals."""
    other = other if isinstance(other, dict) else {"policy": "", "value": other, "ci": [other, other]}
    sign = 1 if task[2] == "ppl" else -1
    if base_of(row) == family(other["policy"]) and None not in (row.get("difference") or {"ci": [None]})["ci"]:
        change, ends = paired(row)
        base = row["value"] - change or 1
    elif None not in (row["ci"] or [None]) + (other["ci"] or [None]):
        base, change = other["value"] or 1, row["value"] - other["value"]
        ends = [row["ci"][0] - other["ci"][1], row["ci"][1] - other["ci"][0]]
    else:
        base, change, ends = 1, row["value"] - other["value"], [-float("inf"), float("inf")]
    return sign * change / base, *sorted(sign * end / base for end in ends)


def cell(rows, task, policy, budget, n=None):
    """Value, interval, bytes; bold where a loss of at most NEAR is shown; the number of items where it is not n."""
    row, full = find(rows, task, policy, budget), find(rows, task, "full", None)
    if not row:
        return ""
    text = f"{interval(task, row)} · {100 * row['kv_read']:.0f} %" + (f" · n {row['n']:,}" if row["n"] != n else "")
    good = policy != "full" and full and loss(task, row, full)[2] <= NEAR
    return f"**{text}**" if good else text


def table(rows, columns, chosen=None, titles=TITLES):
    """One row a policy with more than one cell, or a (policy, budget) of `chosen`; one column a (task, budget). A heading has the budget, unless
    all have the same, and the number of items of most cells."""
    measured = Counter(name for task, name, budget in dict.fromkeys(k[:3] for k in rows) if (task, budget) in columns or name == "full")
    names = chosen or [(name, None) for name, n in measured.items() if name not in NOT_SHOWN and (n > 1 or name == "full")]
    heads, counts, budgets = [], [], {budget for _, budget in columns}
    for task, budget in columns:
        found = [find(rows, task, name, own or budget) for name, own in names]
        counts.append(Counter(row["n"] for row in found if row).most_common(1)[0][0] if any(found) else 0)
        share = f", {budget_text(budget)}" if len(budgets) > 1 else ""
        heads.append(f"{titles.get(task) or task[1].split()[0]}{share} (n {counts[-1]:,})")
    lines = ["| policy | " + " | ".join(heads) + " |", "| --- |" + " --- |" * len(columns)]
    for name, own in names:
        has_budget = own and name.partition(":")[0] not in NO_BUDGET
        shown = f"{name}{',' if ':' in name else ':'}budget={own}" if has_budget else name
        cells = [cell(rows, task, name, own or budget, n) for (task, budget), n in zip(columns, counts)]
        lines.append(f"| `{shown}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def verdict(kind, low, high):
    if kind == "as good":
        return "shows" if high <= NEAR else "does not" if low > NEAR else "undecided"
    return "shows" if high < 0 else "does not" if low > 0 else "undecided"


def judge(rows, task, mine, theirs, kind, budget):
    """The verdict of a claim, or why the task cannot test it."""
    full, oracle = find(rows, task, "full", None), oracle_of(rows, task, budget)
    if full and task[2] not in ("ppl", "rouge_l") and full["value"] < FLOOR:
        return f"not testable: full attention has {number(task, full['value'])} %"
    if kind == "better" and isinstance(theirs, dict) and mine["value"] == theirs["value"] == 0:
        return "not testable: neither finds any"
    result = verdict(kind, *loss(task, mine, theirs)[1:])
    if result == "does not" and kind == "as good" and oracle and verdict(kind, *loss(task, oracle, theirs)[1:]) == result:
        return "not testable: oracle fails too"
    return result


def compared(task, mine, theirs, other):
    """What a claim's row is compared with: the difference on its own items where there is one, otherwise the other's interval."""
    if not isinstance(other, str):
        return number(task, other)
    if base_of(mine) == other and None not in (mine.get("difference") or {"ci": [None]})["ci"]:
        low, high = (number(task, end) for end in mine["difference"]["ci"])
        return f"`{other}` {number(task, mine['value'] - mine['difference']['value'])} ({low} … {high})"
    return f"`{other}` {interval(task, theirs)}"


def claims(models, decided=None):
    """One row for each claim, of the first model of {name: rows} that has what it compares. decided: only rows that decide the claim, or, on
    larger models than SmolLM2, show why none can; False: the others of these models."""
    lines = ["| claim | model | task, budget | policy | `oracle` | compared with (difference) | verdict |", "| --- | --- | --- | --- | ---: | --- | --- |"]
    for text, (task, name, other, budget), kind in CLAIMS:
        told = f"{TITLES[task]}, {budget_text(budget)}"
        for model, rows in models.items():
            mine = find(rows, task, name, budget, other)
            theirs = find(rows, task, other, budget) if isinstance(other, str) else other
            if mine and theirs:
                oracle = oracle_of(rows, task, budget)
                verdict = judge(rows, task, mine, theirs, kind, budget)
                wanted = {None: True, True: verdict in ("shows", "does not"), False: False}[decided]
                if decided is not None and model != MODEL_NAMES[MODEL]:  # of larger models also what cannot be tested, and the rest
                    wanted = decided == (verdict != "undecided")
                if wanted:
                    lines.append(f"| {text} | {model} | {told} | `{name}` {interval(task, mine)} | {number(task, oracle['value']) if oracle else ''} | "
                                 f"{compared(task, mine, theirs, other)} | {verdict} |")
                break
    return "\n".join(lines)


def published(rows):
    found = [(f"{name}, {metric}", score, task, row) for name, (metric, score) in SETS.items()
             for task in [("mc", name, metric)] for row in [find(rows, task, "full", None)] if row]
    lines = ["| | " + " | ".join(f"{name} (n {row['n']:,})" for name, _, _, row in found) + " |", "| --- |" + " --- |" * len(found),
             "| here, % | " + " | ".join(interval(task, row) for _, _, task, row in found) + " |",
             "| published, % | " + " | ".join(score for _, score, _, _ in found) + " |"]
    return "\n".join(lines)


def gates(folder):
    """(what is on for each model and length, and why; all candidates), from the verdicts of one length each. Models by their size."""
    names = {GEMMA: "Gemma 3 270M", MODEL: "SmolLM2-135M", QWEN: "Qwen2.5-Coder-0.5B", LARGE: "Qwen2.5-Coder-1.5B"}
    order, found = [MODEL, GEMMA, QWEN, LARGE], []
    for path in folder.glob("*.json"):
        stem, _, length = path.stem.rpartition("-")
        found.append((order.index(stem + ".gguf"), int(length), json.loads(path.read_text(encoding="utf-8"))))
    short = ["| model, tokens | `--kv auto` | times as fast | perplexity |", "| --- | --- | ---: | --- |"]
    all_of = ["| model, tokens | policy | steps | read | perplexity | |", "| --- | --- | ---: | ---: | ---: | --- |"]
    for model, length, verdict in sorted(found, key=lambda one: one[:2]):
        name, on, failed = f"{names[order[model]]}, {length:,}", verdict["on"][-1]["policy"], Counter()
        for c in verdict["candidates"]:
            low, high = c["speed_up"]["ci"]
            more, read = f"{100 * (c['ppl']['value'] / c['ppl']['dense'] - 1):+.2f} %", f"{100 * c['kv_read']:.0f} %"
            kinds = ["needles" if reason.startswith("niah") else "perplexity" if reason.startswith("perplexity") else "speed" for reason in c["because"]]
            failed.update(set(kinds))
            told = "; ".join(reason if kind == "needles" else kind for kind, reason in zip(kinds, c["because"]))
            state = "**on**" if c["policy"] == on else "passes" if c["passes"] else f"off: {told}"
            all_of.append(f"| {name} | `{c['policy']}` | {c['speed_up']['value']:.2f} [{low:.2f}, {high:.2f}] | {read} | {more} | {state} |")
            if c["policy"] == on:
                short.append(f"| {name} | `{on}` | {c['speed_up']['value']:.2f} | {more} |")
        if on == "full":
            short.append(f"| {name} | `full` | 1 | {len(verdict['candidates'])} fail: {', '.join(f'{kind} {failed[kind]}' for kind in ('needles', 'perplexity', 'speed') if failed[kind])} |")
        all_of.append(f"| | | | | | {verdict['machine']}; {verdict['commit']} |")
    return "\n".join(short), "\n".join(all_of)


def panel(rows, task, edge, budgets, left, top, width, height):
    """One task: the score (up is better, so perplexity is upside down) against the share of the KV bytes read, 1 to 100 %. What is worse than
    the lower edge, `edge` times full attention's score, lies on it. Returns its parts and the policies that have points."""
    full, named = find(rows, task, "full", None)["value"], []
    worst, least = full * edge, 0.05 if min(budgets) >= 0.05 and max(budgets) <= 1 else 0.01
    best = full + (full - worst) / 10

    def x(read):
        return left + width * math.log(max(read, least) / least) / math.log(1 / least)

    def y(value):
        return top + height * min(max((best - value) / (best - worst), 0), 1)
    parts = [f'<text x="{left}" y="{top - 8}" font-weight="bold">{TITLES[task]}</text>',
             f'<rect x="{left}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#ddd"/>',
             f'<line x1="{left}" y1="{y(full):.1f}" x2="{left + width}" y2="{y(full):.1f}" stroke="#bbb" stroke-width="3"/>']
    for value, text in ((full, "full " + number(task, full)), (worst, ("≥ " if worst else "") + number(task, worst))):
        parts.append(f'<text x="{left - 5}" y="{y(value) + 4:.1f}" text-anchor="end">{text}</text>')
    for read in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1):
        if read >= least:
            parts.append(f'<text x="{x(read):.1f}" y="{top + height + 16}" text-anchor="middle">{100 * read:.0f}</text>')
    for name, (colour, dashes) in DRAWN.items():
        points = sorted((row["kv_read"], row["value"]) for budget in budgets for row in [find(rows, task, name, budget)] if row)
        if points:
            named.append(name)
            line = " ".join(f"{x(read):.1f},{y(value):.1f}" for read, value in points)
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>')
            parts += [f'<circle cx="{x(read):.1f}" cy="{y(value):.1f}" r="2.5" fill="{colour}"/>' for read, value in points]
    return parts, named


def picture(rows, panels, budgets):
    """Panels, three in a row, and what the colours mean."""
    width, height, across, down = 220, 150, 300, 205
    tasks = [task for task in panels if find(rows, task, "full", None)]
    budgets = [budget for budget in budgets if any(find(rows, task, name, budget) for task in tasks for name in DRAWN)] or budgets
    below, parts, named = 26 + down * -(-len(tasks) // 3), [], set()
    for i, task in enumerate(tasks):
        drawn, names = panel(rows, task, panels[task], budgets, 62 + i % 3 * across, 26 + i // 3 * down, width, height)
        parts, named = parts + drawn, named | set(names)
    shown = [(name, how) for name, how in DRAWN.items() if name in named]
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 920 {}" font-family="sans-serif" font-size="12">'.format(
        below + 20 + 22 * -(-len(shown) // 5)), '<rect width="100%" height="100%" fill="white"/>', *parts,
        f'<text x="450" y="{below - 4}" text-anchor="middle">KV bytes read per step, % of full attention; budgets of {", ".join(map(budget_text, budgets))}</text>']
    for i, (name, (colour, dashes)) in enumerate(shown):
        left, top = 62 + i % 5 * 172, below + 22 + i // 5 * 22
        title = "tokenbutler2 (sinks)" if name == BUTLER2 else name if name.endswith("means") else name.partition(":")[0]
        parts.append(f'<line x1="{left}" y1="{top}" x2="{left + 26}" y2="{top}" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
                     f'<text x="{left + 32}" y="{top + 4}">{title}</text>')
    return "\n".join(parts) + "\n</svg>\n"


def one_predictor(models):
    """A table must not mix the rows of two predictors under one policy's name."""
    for model, rows in models.items():
        found = {}
        for row in rows.values():
            predictor = re.search(r"predictor=([^,]*)", row["config"])
            if predictor:
                found.setdefault(row["policy"].partition(":")[0], set()).add(predictor[1])
        for policy, predictors in found.items():
            if len(predictors) > 1:
                sys.exit(f"results.py: {model}, {policy}: rows of several predictors: {', '.join(sorted(predictors))}; remove those of all but one")


def one_protocol(models):
    """Nor rows of one task under other conditions: of another file under the model's name, other data, another seed or other options. Rows of
    before a field was written lack it, and go with all."""
    for model, rows in models.items():
        fields = {}
        for row in rows.values():
            options = dict(word.split("=", 1) for word in row["config"].split(",") if "=" in word)
            values = {name: options.get(name, row.get(name)) for name in ("fingerprint", "data", "seed", "kv-type", "ask", "chat", "mode", "prompt", "shots", "reads", "steps", "dense")}
            values |= {name: options.get(name, "the usual") for name in ("isa", "device", "pre", "plugin", "prompt-precision", "rope-scaling")}
            for name, value in values.items():
                key = name if name == "fingerprint" else (name, row["task"], subset_of(row), row.get("length"))
                if value not in (None, ""):
                    fields.setdefault(key, {}).setdefault(value, row["policy"])
        for key, values in fields.items():
            if len(values) > 1:
                sys.exit(f"results.py: {model}: rows of one table that differ in {key}: {'; '.join(f'{value} ({policy})' for value, policy in values.items())}")


def main(files, store=ROOT / "bench" / "results.jsonl", pages=(ROOT / "README.md", ROOT / "docs" / "results.md", ROOT / "bench" / "tables.md", ROOT / "bench" / "ruler.md"),
         drawings=(ROOT / "docs" / "results.svg", ROOT / "docs" / "results-qwen.svg", ROOT / "docs" / "results-qwen-1.5b.svg")):
    models = {MODEL: {}, GEMMA: {}, QWEN: {}, LARGE: {}}
    for path in [store, *files]:
        for line in Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []:
            row = {key: value for key, value in json.loads(line).items() if key in KEPT}
            if "method=evict" in row.get("settings", "") and row["kv_read"] == 1:
                continue  # it cuts prompts only, and there was none
            row["config"] = re.sub(r"=[^,]*/", "=", row.get("config", ""))  # files by their names
            rows = models.setdefault(row.get("model", MODEL), {})
            if row.get("agreement") is not None:
                row.setdefault("compared", row["n"])
            before = rows.get(key_of(row), {"n": -1})
            kept, other = (row, before) if row["n"] >= before["n"] else (before, row)
            if kept.get("agreement") is None and other.get("agreement") is not None:  # fewer items were compared with dense attention
                kept.update({name: other[name] for name in ("agreement", "kl", "compared")})
            rows[key_of(row)] = kept
    for rows in models.values():
        for key in [key for key in rows if key[3] is None and rows.get((*key[:3], "full"), {"n": -1})["n"] >= rows[key]["n"]]:
            del rows[key]
    one_predictor(models)
    one_protocol(models)
    store.write_text("".join(json.dumps(row) + "\n" for rows in models.values() for row in rows.values()), encoding="utf-8")
    found = {name: models[model] | means(models[model]) for model, name in MODEL_NAMES.items()}
    rows = found[MODEL_NAMES[MODEL]]
    on, candidates = gates(store.parent / "gates")
    pieces = {"gates": on, "candidates": candidates, "short": table(rows, SHORT), "long": table(rows, LONG), "others": table(rows, OTHERS),
              "defaults": table(rows, DEFAULT_TASKS, DEFAULTS), "gemma": table(models[GEMMA], OTHER_MODEL), "qwen": table(models[QWEN], QWEN_TABLE), "large": table(models[LARGE], LARGE_TABLE, [(name, None) for name in LARGE_POLICIES]),
              "large recall": table(models[LARGE], RECALLED, [(name, None) for name in RECALLING]),
              "page sizes": table(models[QWEN] | beside_dense(models[QWEN]), PAGE_TASKS, PAGE_SIZES),
              "agreement": table(models[QWEN] | beside_dense(models[QWEN]), AGREEING, [(name, None) for name in AGREEING_POLICIES]),
              "qwen short": table(found[MODEL_NAMES[QWEN]], QWEN_SHORT, [(name, None) for name in QWEN_SHORT_POLICIES]),
              "one text": table(models[QWEN], ONE_TEXT), "pass keys": table(models[QWEN], PASS_KEYS), "long keys": table(models[QWEN], LONG_KEYS),
              "values": table(models[QWEN], VALUES_TASKS, [(name, None) for name in VALUES]),
              "speed": table(models[QWEN] | {(SPEED_LARGE, *key[1:]): row for key, row in models[LARGE].items() if key[0] == SPEED},
                             [(task, budget) for task in (SPEED, SPEED_LARGE) for budget in (0.11, 2048)]),
              **{f"sharing of {MODEL_NAMES[model]}": table(models[model], [(SPEED, None), (SHORT_BOOK, None)], chosen) for model, chosen in SHARING.items()},
              "plug-ins": table(models[MODEL] | models[QWEN], [(MULTIKEY, None), (NEWS, None)], PLUG_INS),
              "zero-shot": table(found[MODEL_NAMES[QWEN]], [(task, HALF) for task in [*ZERO_SHOT_SETS, ZERO_SHOT]]),
              "claims": claims(found, decided=True), "undecided claims": claims(found, decided=False), "claims of SmolLM2": claims({MODEL_NAMES[MODEL]: rows}), "published": published(rows),
              **{f"{length} {budget_text(budget)}": table(rows, [(task, budget) for task in tasks], titles={})
                 for length, tasks in RULER.items() for budget in BUDGETS}}
    for page in pages:
        text = page.read_text(encoding="utf-8")
        for name, piece in pieces.items():
            text = re.sub(rf"(<!-- {name} -->\n)(\|.*\n)*", lambda m, piece=piece: f"{m[1]}{piece}\n", text)
        page.write_text(text, encoding="utf-8")
    for drawing, own, panels, budgets in zip(drawings, (rows, found[MODEL_NAMES[QWEN]], found[MODEL_NAMES[LARGE]]), (PANELS, QWEN_PANELS, LARGE_PANELS),
                                             (BUDGETS, QWEN_BUDGETS, BUDGETS)):
        drawing.write_text(picture(own, panels, budgets), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
