"""The questions of the tasks of lm-evaluation-harness from files of the user's instead of the network: the harness's own task
definitions and scoring run on them. Used by compare_lm_eval.py and serve_lm_eval.py."""
import bz2
import json
import os
import subprocess
import tempfile
from pathlib import Path

import datasets

FILES = {  # task of the harness: subset of eval mc, names its file may have
    "hellaswag": ("hellaswag", ["hellaswag.jsonl", "hellaswag_val_full.txt", "hellaswag_val_full.txt.bz2"]),
    "piqa": ("piqa", ["piqa.jsonl", "piqa_valid.jsonl"]),
    "arc_easy": ("arc_easy", ["arc_easy.jsonl"]),
    "winogrande": ("winogrande", ["winogrande.jsonl"]),
    "boolq": ("boolq", ["boolq.jsonl"]),
    "lambada_openai": ("lambada", ["lambada.jsonl", "lambada_openai.jsonl"]),
    "leaderboard_bbh_causal_judgement": ("bbh", ["bbh.jsonl", "causal_judgement.jsonl"]),
    "leaderboard_mmlu_pro": ("mmlu_pro", ["mmlu_pro.jsonl"]),
}
SHOTS = {"leaderboard_mmlu_pro": 2}  # of the same file; the others 0
BEFORE = {"leaderboard_bbh_causal_judgement": "Answer questions about causal attribution."}  # the harness's description
HARNESS_PATHS = {"Rowan/hellaswag": "hellaswag", "baber/piqa": "piqa", "allenai/ai2_arc": "arc_easy",
                 "allenai/winogrande": "winogrande", "aps/super_glue": "boolq", "EleutherAI/lambada_openai": "lambada_openai",
                 "SaylorTwift/bbh": "leaderboard_bbh_causal_judgement", "TIGER-Lab/MMLU-Pro": "leaderboard_mmlu_pro"}


def find_file(data, task):
    """The task's file, unpacked; None: it is not there."""
    path = next((data / name for name in FILES[task][1] if (data / name).exists()), None)
    if path and path.suffix == ".bz2":
        unpacked = Path(os.environ.get("TMPDIR", "/tmp")) / path.stem
        unpacked.write_bytes(bz2.decompress(path.read_bytes()))
        return unpacked
    return path


def json_lines(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def hellaswag_docs(path):
    if path.suffix == ".jsonl":
        return [dict(doc, label=str(doc["label"])) for doc in json_lines(path)]
    lines = path.read_text(encoding="utf-8").split("\n")
    docs = []
    for i in range(0, len(lines) - 5, 6):
        activity, context = lines[i].split(": ", 1)
        docs.append(dict(activity_label=activity, ctx_a=context, ctx_b="", label=lines[i + 1], endings=lines[i + 2:i + 6]))
    return docs


def piqa_docs(path):
    docs = json_lines(path)
    if "label" not in docs[0]:
        labels = path.with_name(path.stem + "-labels.lst").read_text().split()
        docs = [dict(doc, label=int(label)) for doc, label in zip(docs, labels)]
    return docs


def arc_docs(path):
    docs = []
    for doc in json_lines(path):
        if "query" in doc:
            labels = [str(i + 1) for i in range(len(doc["choices"]))]
            assert doc["query"].startswith("Question: ")
            doc = dict(question=doc["query"][len("Question: "):], choices=dict(text=doc["choices"], label=labels),
                       answerKey=labels[doc["gold"]])
        docs.append(doc)
    return docs


def winogrande_docs(path):
    docs = []
    for doc in json_lines(path):
        if "context_options" in doc:
            first, second = doc["context_options"]
            common = os.path.commonprefix([first, second])
            assert "_" not in common
            doc = dict(sentence=common + "_ " + doc["continuation"], option1=first[len(common):], option2=second[len(common):],
                       answer=str(doc["gold"] + 1))
        docs.append(doc)
    return docs


def boolq_docs(path):
    docs = []
    for doc in json_lines(path):
        if "query" in doc:
            passage, question = doc["query"].rsplit("\nQuestion: ", 1)
            assert passage.startswith("Passage: ") and question.endswith("?") and doc["choices"] == ["no", "yes"]
            doc = dict(passage=passage[len("Passage: "):], question=question[:-1], label=doc["gold"])
        elif "label" not in doc:
            doc = dict(passage=doc["passage"], question=doc["question"], label=int(doc["answer"]))
        docs.append(doc)
    return docs


def lambada_docs(path):
    return [{"text": doc["text"] if "text" in doc else doc["context"] + " " + doc["continuation"]} for doc in json_lines(path)]


DOCS = {"hellaswag": hellaswag_docs, "piqa": piqa_docs, "arc_easy": arc_docs, "winogrande": winogrande_docs,
        "boolq": boolq_docs, "lambada_openai": lambada_docs, "leaderboard_bbh_causal_judgement": json_lines, "leaderboard_mmlu_pro": json_lines}


def use_files(data, tasks, limit):
    """From here on the harness's data sets are the files in this folder, their first `limit` items (0: all)."""
    files = {task: find_file(data, task) for task in tasks}

    def load_dataset(path=None, **_):
        docs = DOCS[HARNESS_PATHS[path]](files[HARNESS_PATHS[path]])
        split = datasets.Dataset.from_list(docs[:limit] if limit else docs)
        return datasets.DatasetDict({"validation": split, "test": split, "train": split})

    datasets.load_dataset = load_dataset


def log_likelihoods(out, task):
    """Of every item in order, from what simple_evaluate returned: its choices', and the task's results by our names."""
    samples = sorted(out["samples"][task], key=lambda sample: sample["doc_id"])
    found = out["results"][task]
    results = {ours: float(found[theirs + ",none"]) for ours, theirs in
               [("accuracy", "acc"), ("acc_norm", "acc_norm"), ("ppl", "perplexity")] if theirs + ",none" in found}
    return [[float(resp[0][0]) for resp in sample["resps"]] for sample in samples], results


def run_butler(butler, model_path, data, task, limit, length, *flags, reads="steps"):
    """The same from `butler eval mc`. The log-likelihoods are its journal's, which has all digits of a number."""
    path = find_file(data, task)
    command = [butler, "eval", "mc", "-m", model_path, "--data", str(path), "--set", f"subset={FILES[task][0]},items=1,reads={reads}", "--kv",
               "full", *flags]
    if task in SHOTS:
        command += ["--set", f"shots={SHOTS[task]},examples={path}"]
    if task in BEFORE:
        command += ["--set", f"before={BEFORE[task]}"]
    command += ["--limit", str(limit)] if limit else []
    command += ["--length", str(length)] if length else []
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.jsonl"
        subprocess.run([*command, "-o", str(results)], capture_output=True, check=True)
        rows, journal = json_lines(results), json_lines(f"{results}.items")
    n_choices = [len(item) for item in rows[0]["detail"]["items"]]
    values = {line["item"]: line["values"] for line in journal}  # of an item: right, right by acc_norm, then its choices'
    return [values[i][2:2 + n] for i, n in enumerate(n_choices)], {row["metric"]: row["value"] for row in rows}
