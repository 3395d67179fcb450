"""Made-up rows in the format of `butler eval`: policies whose quality falls at different rates with the bytes that they do not read."""
import json
import math

POLICIES = {  # how fast quality falls, what the metric reads beside the budget
    "full": (0, 0), "oracle": (0.2, 0.5), "tokenbutler2": (0.3, 0.03), "tokenbutler": (0.35, 0.05), "fier": (0.4, 0.12), "quest": (0.8, 0.3),
    "quest:dense=0": (1.0, 0.06), "tinyserve": (1.0, 0.06), "pagestats": (0.9, 0.06), "h2o": (1.2, 0.02), "h2o+vatp": (1.1, 0.02),
    "scissorhands": (1.3, 0.02), "scissorhands+vatp": (1.25, 0.02), "snapkv": (1.0, 0.03), "pyramidkv": (0.95, 0.03), "tova": (1.1, 0.01),
    "knorm": (2.2, 0.01), "streaming": (1.8, 0), "random": (2, 0), "layer0": (0.9, 0.1), "prevlayer": (0.45, 0.1),
}
BUDGETS = [0.05, 0.1, 0.25, 0.5, 0.75]
TASKS = [  # task, data, config, length, metric, dense
    ("ppl", "test.txt#0123456789abcdef", "mode=simulate,kv-type=f16", 1024, "ppl", 38.2),
    ("ppl", "book.txt#1123456789abcdef", "mode=prefill,kv-type=f16", 8192, "ppl", 31.9),
    ("coref", "mrcr_custom.json#01", "mode=simulate", 512, "accuracy", 0.56),
    ("coref", "mrcr_custom.json#01", "mode=simulate", 512, "coverage", 0.9),
    ("passkey", "", "mode=prefill", 8192, "accuracy", 0.97),
    ("mc", "hellaswag.txt#2", "mode=simulate,set=hellaswag", 512, "acc_norm", 0.31),
    ("mc", "piqa.jsonl#3", "mode=simulate,set=piqa", 512, "acc_norm", 0.57),
    ("recall", "test.txt#0123456789abcdef", "mode=simulate", 1024, "recall", 1.0),
    ("recall", "test.txt#0123456789abcdef", "mode=simulate", 1024, "mass", 1.0),
]
TEXT = ("The name of the keeper was Kimberly Reyes . \n She liked the sea , and the bread that is made by it . What is true ? Nothing that "
        "is said twice . Twelve and thirty make forty-two . \n Who was the keeper ? It was Kimberly Reyes .").split(" ")


def wobble(*parts):
    """A number between -1 and 1 that depends only on the words."""
    value = 0
    for letter in "|".join(map(str, parts)):
        value = (value * 31 + ord(letter)) % 65521
    return math.sin(value)


def detail(task, metric, policy, budget, dense, value, length):
    if metric == "ppl":
        step = length // 16
        return {"by_position": [{"from": i * step, "to": (i + 1) * step, "ppl": value * (1.6 - 0.6 * i / 15 + 0.05 * wobble(policy, i)),
                                 "n": step} for i in range(16)]}
    if task == "passkey":
        return {"grid": [{"length": length, "depth": d, "right": round(8 * max(0, min(1, value + 0.2 * wobble(policy, budget, d)))), "n": 8}
                         for d in (0, 0.25, 0.5, 0.75, 1)]}
    if metric in ("recall", "mass"):
        layers = [[round(max(0, min(1, value + 0.15 * wobble(policy, budget, metric, i, h))), 3) for h in range(6)] for i in range(6)]
        return {"layers" if metric == "recall" else "mass": layers}
    return None


def settings(name):
    """Every key written out, as `butler eval` does: some more than the name says."""
    return name + (",share=kv,every=1" if ":" in name else ":share=kv,every=1")


def eval_row(task, data, config, length, metric, dense, policy, budget):
    fall, overhead = POLICIES[policy]
    kv_read = 1.0 if policy == "full" else round(budget + overhead, 4)
    loss = 0 if policy == "full" else fall * (1 - budget) ** 3 * 0.45
    value = dense * (1 + 2 * loss) if metric == "ppl" else dense * max(0, 1 - loss + 0.01 * wobble(policy, budget, metric))
    spread = 0.02 * value + (0 if metric == "ppl" else 0.02)
    base, _, keys = policy.partition(":")
    name = policy if policy == "full" else f"{policy}{',' if keys else ':'}budget={budget:g}"
    row = {"task": task, "model": "butler-default.gguf", "policy": name, "settings": settings(name), "budget": 1 if policy == "full" else budget, "length": length,
           "limit": 20, "seed": 0, "fingerprint": "00", "data": data, "config": config, "metric": metric, "value": value,
           "ci": [value - spread, value + spread], "n": 100, "kv_read": kv_read,
           "bytes": {"kv": 1e6 * budget, "metric": 1e6 * overhead, "full_kv": 1e6}, "seconds": 12.5, "date": "2026-01-02T03:04:05Z",
           "version": "0.1.0", "more": 0}
    extra = None if policy == "full" and metric != "ppl" else detail(task, metric, policy, budget, dense, value, length)
    return {**row, "detail": extra} if extra else row


def heat(policy, budget):
    keep = [1.0 if i in (0, 1) or "Kimberly" in t or "Reyes" in t else round(max(0, wobble(policy, i)), 2) for i, t in enumerate(TEXT)]
    return {"task": "heat", "policy": f"{policy}:budget={budget:g}", "model": "butler-default.gguf", "tokens": [" " + t for t in TEXT], "kept": keep, "metric": "answer_read", "value": 1, "n": 2, "budget": budget, "kv_read": budget,
            "answer": [6, 7]}


HEADS = [[round(abs(wobble(i, h)), 3) for h in range(3)] for i in range(6)]
SHOWN = [{"layer": l, "attention": [round(200 / (1 + (t + l) % 200) + 0.01, 3) for t in range(200)],
          "norm": [round(3 + wobble(l, t), 3) for t in range(200)]} for l in (0, 5)]
ATTENTION = [  # task, metric, detail: a model's own attention
    ("sparsity", "sparsity", {"heads": HEADS}),
    ("sparsity", "top_tenth", {"tops": [0.01, 0.1, 0.5], "held": [[0.2 + l / 50, 0.5 + l / 50, 0.8 + l / 50] for l in range(6)]}),
    ("norms", "first_norm", {"heads": HEADS, "shown": SHOWN}),
    ("norms", "rank_correlation", {"heads": [[-x for x in row] for row in HEADS]}),
]


def all_rows():
    out = []
    for task in TASKS:
        for policy in POLICIES:
            for budget in BUDGETS if policy != "full" else [1]:
                out.append(eval_row(*task, policy, budget))
    layers = [[[1 if a == b else round(0.6 * wobble(i, min(a, b), max(a, b)), 3) for a in range(6)] for b in range(6)] for i in range(6)]
    out.append({"task": "consensus", "policy": "full", "model": "butler-default.gguf", "budget": None, "metric": "correlation", "value": 0.41,
                "ci": [0.38, 0.44], "n": 512, "length": 512, "kv_read": 1.0, "detail": {"layers": layers}})
    for task, metric, more in ATTENTION:
        out.append({"task": task, "policy": "full", "model": "butler-default.gguf", "budget": None, "metric": metric, "value": 0.83,
                    "ci": [0.8, 0.86], "n": 4, "length": 200, "kv_read": 1.0, "detail": more})
    return out + [heat(policy, 0.5) for policy in ("oracle", "tokenbutler", "quest", "h2o", "streaming")]


def write(path, rows):
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return str(path)
