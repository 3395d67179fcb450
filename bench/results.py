#!/usr/bin/env python3
"""Makes the tables of docs/results.md from bench/results.jsonl.

    bench/results.py [ROWS.jsonl ...]    takes rows of `butler eval` over into bench/results.jsonl, then writes the tables
Of several rows of one measurement the one with most items is kept."""
import json
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MODEL = "smollm2.gguf"  # the page is about it; rows of others are kept
KEPT = "task subset model policy settings budget length limit seed config metric value ci n difference kv_read date version".split()
BUDGETS = (0.11, 0.5)  # of the page's tables
TASKS = {  # title: task, subset, metric
    "WikiText-2, ppl": ("ppl", None, "ppl"),
    "co-reference, % of tokens": ("coref", None, "coverage"),
    "a number in 4,096 tokens, %": ("ruler", "niah_single_2", "string_match"),
}
LONG = {  # other tasks on texts of 4,096 tokens and more, at one budget
    **{name: ("ruler", name, "string_match") for name in
       ("niah_single_1", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3", "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe")},
    "a number in 7,900 tokens": ("ruler", "niah_single_2 7900", "string_match"),
    "multi_news, Rouge-L": ("longbench", "multi_news", "rouge_l"),
    "a book, ppl": ("ppl", "book", "ppl"),
}
RECALL = {f"{title}, %": ("recall", None, metric) for title, metric in (("recall", "recall"), ("mass", "mass"), ("top half", "top_half_accuracy"))}
SETS = {"hellaswag": ("acc_norm", 40.9), "piqa": ("acc_norm", 66.3), "arc_easy": ("acc_norm", None), "winogrande": ("accuracy", None),
        "boolq": ("accuracy", None), "lambada": ("accuracy", None)}  # published
NOT_SHOWN = {"pagestats", "h2o:sinks=20", "fier:dense=0"}  # in tables of policies, which must fit the page
NEAR = 0.02  # the loss that counts as none
FIER, QUEST, BUTLER2, H2O, VATP = "fier", "quest", "tokenbutler2:on_top=0,sinks=4,recent=0", "h2o", "h2o+vatp"
PPL, NAMED, NUMBER = TASKS
BOOK = "a book, ppl"
KEY = "niah_single_1"  # a pass key in repeated sentences
CLAIMS = [  # paper and claim, (task, policy, policy it is compared with, budget), "as good" or "better"
    ("FIER: full quality at 11 %", (PPL, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (BOOK, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (NAMED, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (NUMBER, FIER, "full", 0.11), "as good"),
    ("FIER: full quality at 11 %", (KEY, FIER, "full", 0.11), "as good"),
    ("FIER finds more pass keys than Quest (87 to 60 %)", (NUMBER, FIER, QUEST, 0.11), "better"),
    ("FIER finds more pass keys than Quest (87 to 60 %)", (KEY, FIER, QUEST, 0.11), "better"),
    ("TokenButler: 2 % more perplexity at 50 %", (PPL, BUTLER2, "full", 0.5), "as good"),
    ("TokenButler: co-reference as with true attention (78 to 81 %)", (NAMED, BUTLER2, "oracle", 0.5), "as good"),
    ("TokenButler: pages lose co-references (6 %)", (NAMED, BUTLER2, QUEST, 0.5), "better"),
    ("TokenButler: eviction loses co-references (10 %)", (NAMED, BUTLER2, H2O, 0.5), "better"),
    ("VATP is better than H2O at 50 %", (NAMED, VATP, H2O, 0.5), "better"),
    ("VATP is better than H2O at 50 %", (PPL, VATP, H2O, 0.5), "better"),
    ("VATP is better than H2O with VATP's 20 sinks", (PPL, VATP, "h2o:sinks=20", 0.5), "better"),
    ("H2O keeps quality at 20 % (here 25 %)", (PPL, H2O, "full", 0.25), "as good"),
    ("H2O keeps quality at 20 % (here 25 %)", (NAMED, H2O, "full", 0.25), "as good"),
    ("TinyServe: pages keep quality at 2,048 tokens", (NUMBER, QUEST, "full", 0.5), "as good"),
]


def family(policy):
    """The policy without its budget."""
    return re.sub(r"[:,]budget=[^,]*", "", policy)  # eval puts it last


def subset_of(row):
    """RULER's tasks of another length than 4,096 have it in their name; a book read as a prompt is not a text decoded from its first token."""
    if row["task"] == "ruler" and row["length"] != 4096:
        return f"{row['subset']} {row['length']}"
    return "book" if row["task"] == "ppl" and "mode=prefill" in row.get("config", "") else row.get("subset")


def key_of(row):
    return row["task"], subset_of(row), row["metric"], family(row["policy"]), None if row["policy"] == "full" else row["budget"]


def number(task, value):
    return f"{value:.1f}" if task[2] == "ppl" else f"{100 * value:.0f}"


def interval(task, row):
    low, high = row["ci"] or (None, None)
    return f"{number(task, row['value'])} [{number(task, low)}, {number(task, high)}]" if low is not None else f"{number(task, row['value'])} [–]"


def loss(task, row, other):
    """(loss, its low, its high) as shares of `other`: over the same items where the row was measured beside it, otherwise between intervals.
    Where no item differs, the rule of three bounds the share of items that could."""
    sign, paired = 1 if task[2] == "ppl" else -1, row.get("difference") or {}
    if paired.get("to") == family(other["policy"]) and None not in paired["ci"]:
        base, change, ends = row["value"] - paired["value"] or 1, paired["value"], list(paired["ci"])
        if ends[0] == ends[1]:
            ends = [change - 3 / row["limit"], change + 3 / row["limit"]]
    elif None not in (row["ci"] or [None]) + (other["ci"] or [None]):
        base, change = other["value"] or 1, row["value"] - other["value"]
        ends = [row["ci"][0] - other["ci"][1], row["ci"][1] - other["ci"][0]]
    else:
        base, change, ends = 1, row["value"] - other["value"], [-float("inf"), float("inf")]
    return sign * change / base, *sorted(sign * end / base for end in ends)


def page_table(rows, budget, tasks):
    """One row a policy, in the order of the rows file; one column a task."""
    names = [name for name in dict.fromkeys(k[3] for k in rows if k[4] in (budget, None) and k[:3] in tasks.values()) if name not in NOT_SHOWN]
    lines = ["| policy | " + " | ".join(tasks) + " |", "| --- |" + " --- |" * len(tasks)]
    for name in names:
        cells = []
        for task in tasks.values():
            row = rows.get((*task, name, None if name == "full" else budget))
            cells.append(f"{interval(task, row)} · {100 * row['kv_read']:.0f} % · {row['n']:,}" if row else "")
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines)


def long_table(rows, budget):
    """One row a policy, one column a task that was measured; bytes once, as their mean over the tasks."""
    tasks = {title: task for title, task in LONG.items() if any(key[:3] == task for key in rows)}
    lines = ["| policy | KV read | " + " | ".join(tasks) + " |", "| --- |" + " ---: |" * (len(tasks) + 1)]
    for name in dict.fromkeys(key[3] for key in rows if key[:3] in tasks.values() and key[4] in (budget, None)):
        found = [rows.get((*task, name, None if name == "full" else budget)) for task in tasks.values()]
        read = [row["kv_read"] for row in found if row]
        cells = [f"{interval(task, row)} · {row['n']:,}" if row else "" for task, row in zip(tasks.values(), found)]
        lines.append(f"| `{name}` | {100 * sum(read) / len(read):.0f} % | {' | '.join(cells)} |")
    return "\n".join(lines)


def fewest(rows):
    """For each policy and task the fewest bytes with a value within NEAR of full attention's."""
    names = [name for name in dict.fromkeys(k[3] for k in rows if k[:3] in TASKS.values() and k[4] is not None) if name not in NOT_SHOWN]
    lines = ["| policy | " + " | ".join(TASKS) + " |", "| --- |" + " ---: |" * len(TASKS)]
    for name in names:
        cells = []
        for task in TASKS.values():
            dense, found = rows.get((*task, "full", None)), [row for k, row in rows.items() if k[:4] == (*task, name) and k[4] is not None]
            found = found if dense else []
            near = sorted((row["kv_read"], loss(task, row, dense)[2] > NEAR) for row in found if loss(task, row, dense)[0] <= NEAR)
            cells.append(f"{100 * near[0][0]:.0f} %{' ?' if near[0][1] else ''}" if near else "–" if found else "")
        lines += [f"| `{name}` | {' | '.join(cells)} |"] if any("%" in cell for cell in cells) else []
    return "\n".join(lines)


def verdict(kind, low, high):
    if kind == "as good":
        return "shows" if high <= NEAR else "does not" if low > NEAR else "undecided"
    return "shows" if high < 0 else "does not" if low > 0 else "undecided"


def claims(rows):
    lines = ["| claim | task, budget | policy | compared with | verdict |", "| --- | --- | --- | --- | --- |"]
    for text, (title, name, other, budget), kind in CLAIMS:
        task = {**TASKS, **LONG}[title]
        mine, theirs = rows.get((*task, name, budget)), rows.get((*task, other, None if other == "full" else budget))
        result = verdict(kind, *loss(task, mine, theirs)[1:]) if mine and theirs else "not measured"
        ours, others = (f"`{policy}`" + (f" {interval(task, row)}" if row else "") for policy, row in ((name, mine), (other, theirs)))
        paired = (mine or {}).get("difference") or {}
        if other == "full" and paired and None not in paired["ci"]:  # `full` on the items of this row
            ends = " … ".join(number(task, end) for end in paired["ci"])
            others = f"`full` {number(task, mine['value'] - paired['value'])}; difference {ends}"
        lines.append(f"| {text} | {title}, {100 * budget:.0f} % | {ours} | {others} | {result} |")
    return "\n".join(lines)


def published(rows):
    lines = ["| set, metric | here, % | items | published, % |", "| --- | --- | ---: | ---: |"]
    for name, (metric, score) in SETS.items():
        row = rows.get(("mc", name, metric, "full", None))
        if row:
            lines.append(f"| {name}, {metric} | {interval(('mc', name, metric), row)} | {row['n']:,} | {score or '–'} |")
    return "\n".join(lines)


def main(files, store=ROOT / "bench" / "results.jsonl", page=ROOT / "docs" / "results.md"):
    models = {MODEL: {}}
    for path in [store, *files]:
        for line in Path(path).read_text(encoding="utf-8").splitlines() if Path(path).exists() else []:
            row = {key: value for key, value in json.loads(line).items() if key in KEPT}
            row["config"] = re.sub(r"=[^,]*/", "=", row.get("config", ""))  # files by their names
            rows = models.setdefault(row.get("model", MODEL), {})
            if key_of(row) not in rows or row["n"] >= rows[key_of(row)]["n"]:
                rows[key_of(row)] = row
    store.write_text("".join(json.dumps(row) + "\n" for rows in models.values() for row in rows.values()), encoding="utf-8")
    rows = models[MODEL]
    pieces = {**{f"budget {100 * b:.0f}": page_table(rows, b, TASKS) for b in BUDGETS}, "long": long_table(rows, BUDGETS[0]), "recall": page_table(rows, 0.1, RECALL), "fewest": fewest(rows), "claims": claims(rows), "published": published(rows)}
    text = page.read_text(encoding="utf-8")
    for name, piece in pieces.items():
        text = re.sub(rf"(<!-- {name} -->).*?(<!-- /{name} -->)", lambda m, piece=piece: f"{m[1]}\n{piece}\n{m[2]}", text, flags=re.S)
    page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
