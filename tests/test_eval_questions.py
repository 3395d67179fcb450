"""`butler eval mc` and `butler eval longbench`: log-likelihoods against lm-evaluation-harness (tests/data/mc/lm_eval.json, from
tools/compare/compare_lm_eval.py), what must not change them, and invalid data files."""
import bz2
import importlib
import json
import math
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from cli import FAILED, GQA, ROOT, USAGE, data_folder, refuses, rows, with_values

DATA = ROOT / "tests" / "data" / "mc"
HARNESS = json.loads((DATA / "lm_eval.json").read_text())
SUBSETS = sorted(HARNESS["subsets"])
POLICIES = ["full", "quest:budget=32,dense=0", "h2o:budget=24", "streaming:budget=20", "snapkv:budget=24,rolling=1,window=8"]


# What the harness's tasks add: a description, and solved questions of the same file.
ADDED = {"bbh": ["--set", "before=Answer questions about causal attribution."],
         "mmlu_pro": ["--set", f"shots=2,examples={DATA / 'mmlu_pro.jsonl'}"]}


def mc(path, *args, subset=None, model=GQA):
    setting = ["--set", f"subset={subset}"] if subset else []
    return rows("eval", "mc", "-m", model, "--data", path, "--kv-type", "f32", "--set", "items=1", *setting, *args)


def items(row):
    return row["detail"]["items"]


@pytest.mark.parametrize("reads", ["steps", "prompt"])
@pytest.mark.parametrize("subset", SUBSETS)
def test_equals_the_harness(subset, reads):
    expected = HARNESS["subsets"][subset]
    out = mc(DATA / f"{subset}.jsonl", "--set", f"reads={reads}", *ADDED.get(subset, []))
    assert all(row["task"] == "mc" and row["subset"] == subset for row in out)
    assert [len(item) for item in items(out[0])] == [len(item) for item in expected["items"]]
    for ours, theirs in zip(items(out[0]), expected["items"]):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert {row["metric"]: row["value"] for row in out if row["metric"] in expected["results"]} == pytest.approx(expected["results"], rel=1e-5)


def test_read_as_prompts_scores_are_the_servers(tmp_path):
    """To the last bit: what lm-evaluation-harness adds up when it asks the server for the prompts' log-probabilities."""
    test_serve = importlib.import_module("test_serve")
    if "libevent" not in test_serve.LINK:
        pytest.skip("butler is built without libevent")
    path, out = choice_orders(tmp_path)[0], tmp_path / "results"
    mc(path, "--set", "reads=prompt", "-o", out, "-t", 1, subset="arc_easy")  # items are written as they are done
    kept = [json.loads(line)["values"][2:6] for line in (tmp_path / "results.items").read_text().splitlines()]
    server = test_serve.Server("--kv-type", "f32")
    scored = []
    for question in map(json.loads, path.read_text().splitlines()):
        context = question["query"] + "\nAnswer:"
        first = server.post("/tokenize", {"prompt": context})["count"]
        scored.append([])
        for choice in question["choices"]:
            answer = server.post("/v1/completions", {"prompt": context + " " + choice, "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0})
            added = 0.0  # one after the other, as in C: sum() of Python 3.12 and later rounds once
            for logprob in answer["choices"][0]["logprobs"]["token_logprobs"][first:-1]:
                added += logprob
            scored[-1].append(added)
    assert server.stop() == 0
    assert scored == kept and len(set(scored[0])) == 4


def test_bad_ways_of_reading():
    path = DATA / "piqa.jsonl"
    refuses(USAGE, "eval", "mc", "-m", GQA, "--data", path, "--set", "reads=all", says=["reads", "all"])
    refuses(USAGE, "eval", "mc", "-m", GQA, "--data", path, "--set", "reads=prompt", "--kv", "quest:budget=32", says=["reads=prompt", "quest"])


def test_hellaswag_as_text_is_the_same_questions():
    text, lines = items(mc(DATA / "hellaswag.txt")[0]), items(mc(DATA / "hellaswag.jsonl")[0])
    assert len(text) == 2
    # the text form does not mark the second half of a context, which the JSON form capitalises: the contexts differ
    assert text[0] != lines[0] and all(math.isfinite(x) for item in text for x in item)


def test_shots_are_the_first_questions(tmp_path):
    """Without a file of examples the data's first questions are solved and not asked."""
    lines = (DATA / "arc_easy.jsonl").read_text().splitlines(True)
    (tmp_path / "arc_first.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "arc_rest.jsonl").write_text("".join(lines[2:]))
    mixed = mc(DATA / "arc_easy.jsonl", "--shots", 2)
    assert items(mixed[0]) == items(mc(DATA / "arc_easy.jsonl", "--set", "shots=2")[0])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--shots", 2, says=["shots", "passkey"])
    apart = mc(tmp_path / "arc_rest.jsonl", "--set", f"shots=2,examples={tmp_path / 'arc_first.jsonl'}")
    assert items(mixed[0]) == items(apart[0]) != items(mc(tmp_path / "arc_rest.jsonl")[0]) and mixed[0]["n"] == len(lines) - 2
    one, two = (dict(query=f"Question: {q}?", choices=["a ship", "a tree"], gold=g) for q, g in (("what sails", 0), ("what grows", 1)))
    (tmp_path / "arc_one.jsonl").write_text(json.dumps(one) + "\n" + json.dumps(two) + "\n")
    written = dict(two, query=f"Question: what sails?\nAnswer: a ship\n\n{two['query']}")
    (tmp_path / "arc_written.jsonl").write_text(json.dumps(written) + "\n")
    assert items(mc(tmp_path / "arc_written.jsonl")[0]) == items(mc(tmp_path / "arc_one.jsonl", "--set", "shots=1")[0])
    refuses(FAILED, "eval", "mc", "-m", GQA, "--data", tmp_path / "arc_first.jsonl", "--set", "shots=3", says=["arc_first.jsonl", "2 questions", "3"])


def choice_orders(tmp_path):
    """Three questions, and the same with the order of their choices reversed."""
    questions = [dict(query=f"Question: what is {n}?", choices=["a small thing", "a small ship that sails", "no", "a small thing too"],
                      gold=1) for n in ("this", "that over there by the door", "it")]
    turned = [dict(q, choices=q["choices"][::-1], gold=2) for q in questions]
    paths = []
    for name, data in (("one", questions), ("two", turned)):
        paths.append(tmp_path / f"{name}.jsonl")
        paths[-1].write_text("".join(json.dumps(q) + "\n" for q in data))
    return paths


@pytest.mark.parametrize("mode", ["simulate", "prefill"])
@pytest.mark.parametrize("policy", POLICIES)
def test_choices_do_not_disturb_each_other(tmp_path, policy, mode):
    one, two = (mc(path, "--kv", policy, "--mode", mode, subset="arc_easy") for path in choice_orders(tmp_path))
    assert [item[::-1] for item in items(one[0])] == items(two[0])
    assert [row["value"] for row in one] == [row["value"] for row in two]


def test_modes_and_threads_agree_under_dense_attention(tmp_path):
    path = choice_orders(tmp_path)[0]
    one, two = mc(path, "-t", 1, subset="arc_easy"), mc(path, "-t", 3, subset="arc_easy")
    assert items(one[0]) == items(two[0])
    prefill = mc(path, "--mode", "prefill", subset="arc_easy")
    for a, b in zip(items(one[0]), items(prefill[0])):
        assert a == pytest.approx(b, rel=1e-4)
    sparse = mc(path, "--kv", "quest:budget=1000", "--kv", "h2o:budget=1000", subset="arc_easy")
    assert items(sparse[0]) == items(one[0]) and items(sparse[2]) == items(one[0])
    assert mc(path, "--kv", "h2o:budget=16", subset="arc_easy")[0]["kv_read"] < 0.9


@pytest.mark.parametrize("subset, name", [("hellaswag", "hellaswag_val_full.txt.bz2"), ("piqa", "piqa_valid.jsonl"),
                                          ("arc_easy", "arc_easy.jsonl"), ("winogrande", "winogrande.jsonl"),
                                          ("boolq", "boolq.jsonl"), ("lambada", "lambada_openai.jsonl")])
def test_the_real_files_are_read(tmp_path, subset, name):
    data = data_folder()
    if not data or not (data / "mc" / name).exists():
        pytest.skip(f"no data folder with mc/{name}")
    path = data / "mc" / name
    if name.endswith(".bz2"):
        refuses(FAILED, "eval", "mc", "-m", GQA, "--data", path, says=[path, "bzip2 -d"])
        (tmp_path / name[:-4]).write_bytes(bz2.decompress(path.read_bytes()))
        path = tmp_path / name[:-4]
    out = mc(path, "--limit", 3, "--mode", "prefill")
    assert out[0]["subset"] == subset and out[0]["n"] == 3 and len(items(out[0])) == 3


ARC = dict(query="Question: q", choices=["a", "b"], gold=0)
BAD = [
    # subset, lines of the file, what the message must name
    ("arc_easy", ["{"], ":1:", "not JSON"),
    ("arc_easy", [json.dumps(ARC), "[1]"], ":2:", "not a JSON object"),
    ("arc_easy", [json.dumps(ARC), "", json.dumps(dict(ARC, gold="x"))], ":3:", "gold"),
    ("arc_easy", [dict(ARC, gold=2)], ":1:", "gold", "2 is not between 0 and 1"),
    ("arc_easy", [dict(ARC, gold=0.5)], ":1:", "gold"),
    ("arc_easy", [dict(query="q", choices=["a", "b"])], ":1:", "gold", "missing"),
    ("arc_easy", [dict(ARC, query=7)], ":1:", "query", "not a string"),
    ("arc_easy", [dict(ARC, choices=["a"])], ":1:", "choices"),
    ("arc_easy", [dict(ARC, choices=["a"] * 21)], ":1:", "choices", "at most 20"),
    ("arc_easy", [dict(ARC, choices=["a", 5])], ":1:", "choices[1]", "not a string"),
    ("arc_easy", [dict(ARC, choices=["", "b"])], ":1:", "choices[0]", "empty"),
    ("arc_easy", [dict(ARC, choices="ab")], ":1:", "choices", "not an array"),
    ("arc_easy", [dict(question="q", answerKey="A")], ":1:", "choices", "missing"),
    ("arc_easy", [dict(question="q", choices=dict(text=["a", "b"], label=["A"]), answerKey="A")], ":1:", "choices"),
    ("arc_easy", [dict(question="q", choices=dict(text=["a", "b"], label=["A", "B"]), answerKey="C")], ":1:", "answerKey"),
    ("piqa", [dict(goal="g", sol1="a", label=0)], ":1:", "sol2", "missing"),
    ("piqa", [dict(goal="g", sol1="a", sol2="b", label=2)], ":1:", "label"),
    ("piqa", [dict(goal="g", sol1="a", sol2="b")], "-labels.lst"),
    ("winogrande", [dict(sentence="no gap", option1="a", option2="b", answer="1")], ":1:", "sentence", "no gap"),
    ("winogrande", [dict(sentence="a _", option1="a", option2="b", answer="1")], ":1:", "sentence"),
    ("winogrande", [dict(sentence="_ is", option1="a", option2="b", answer="")], ":1:", "answer"),
    ("winogrande", [dict(sentence="_ is", option1="a", option2="b", answer="3")], ":1:", "answer", "between 1 and 2"),
    ("winogrande", [dict(context_options=["a", None], continuation="c", gold=0)], ":1:", "context_options[1]"),
    ("boolq", [dict(passage="p", question="q")], ":1:", "label", "missing"),
    ("boolq", [dict(passage="p", label=1)], ":1:", "question", "missing"),
    ("lambada", [dict(text="word")], ":1:", "text", "no last word"),
    ("lambada", [dict(context="a")], ":1:", "continuation", "missing"),
    ("bbh", [dict(input="a", target="Yes"), dict(input="b", target=3)], ":2:", "target", "not a string"),
    ("bbh", [dict(input="a", target="Yes"), dict(input="", target="No")], ":2:", "input", "empty"),
    ("bbh", [dict(input="a", target=str(i)) for i in range(21)], ":21:", "target", "more than 20"),
    ("bbh", [dict(input="a", target="Yes")] * 3, "every target is 'Yes'"),
    ("mmlu_pro", [dict(question="q", options=["a", "b"])], ":1:", "answer", "missing"),
    ("mmlu_pro", [dict(question="q", options=["a", "b"], answer="C")], ":1:", "answer", "A to B"),
    ("mmlu_pro", [dict(question="q", options=["a", "b"], answer_index=2)], ":1:", "answer_index", "between 0 and 1"),
    ("mmlu_pro", [dict(question="q", options=["a", 1], answer="A")], ":1:", "options[1]"),
    ("hellaswag", [dict(ctx_a="a", ctx_b="b", endings=["x", "y"], label=0)], ":1:", "activity_label"),
    ("hellaswag", [dict(ctx_a="a", ctx_b="b", activity_label="c", endings=["x", "y"], label="4")], ":1:", "label"),
    ("hellaswag", ["c", "0", "a", "b", "c"], ":6:", "ending 3", "missing"),
    ("hellaswag", ["c", "4", "a", "b", "c", "d"], ":2:", "label"),
    ("hellaswag", ["c", "0", "a", " ", "c", "d"], ":4:", "ending 1", "empty"),
]


@pytest.mark.parametrize("subset, lines, says", [(bad[0], bad[1], bad[2:]) for bad in BAD])
def test_bad_data(tmp_path, subset, lines, says):
    path = tmp_path / "data.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    refuses(FAILED, "eval", "mc", "-m", GQA, "--data", path, "--set", f"subset={subset}", says=[path.with_suffix("").name, *says])


def test_bad_piqa_labels(tmp_path):
    path, labels = tmp_path / "piqa.jsonl", tmp_path / "piqa-labels.lst"
    path.write_text(json.dumps(dict(goal="g", sol1="a", sol2="b")) + "\n" + json.dumps(dict(goal="g", sol1="a", sol2="b")) + "\n")
    labels.write_text("0\n")
    refuses(FAILED, "eval", "mc", "-m", GQA, "--data", path, says=[f"{labels}:2:", "missing"])
    labels.write_text("0\n2\n")
    refuses(FAILED, "eval", "mc", "-m", GQA, "--data", path, says=[f"{labels}:2:", "'2'"])


@pytest.mark.parametrize("task", ["mc", "longbench"])
@pytest.mark.parametrize("content, says", [(b"", "empty"), (b'{"a": "\xff"}\n', ":1: not UTF-8"), (b"\n{}\n\xc3", ":3: not UTF-8"),
                                           (b"\n \n", "no items"), (b"BZh9", "bzip2 -d"), (b"\x1f\x8b", "gzip -d")])
def test_bad_files(tmp_path, task, content, says):
    path = tmp_path / "boolq.jsonl"
    path.write_bytes(content)
    refuses(FAILED, "eval", task, "-m", GQA, "--data", path, says=[path, says])


def test_which_set(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(ARC) + "\n")
    refuses(USAGE, "eval", "mc", "-m", GQA, "--data", path, says=[path, "subset"])
    refuses(USAGE, "eval", "mc", "-m", GQA, "--data", path, "--set", "subset=mmlu", says=["mmlu", "hellaswag"])
    refuses(USAGE, "eval", "mc", "-m", GQA, says=["--data"])
    refuses(FAILED, "eval", "mc", "-m", GQA, "--data", tmp_path / "piqa.jsonl", says=["piqa.jsonl"])


# ---------------------------------------------------------------------------------------------------------- longbench

ASKED = dict(context="The dog sleeps. " * 5, input="Who sleeps?", answers=["the dog", "a dog"], dataset="hotpotqa", all_classes=None)


def longbench(path, *args, **options):
    return rows("eval", "longbench", "-m", GQA, "--data", path, *args, **options)


def write(path, *lines):
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_longbench_row(tmp_path):
    path = write(tmp_path / "q.jsonl", ASKED, ASKED)
    row, = longbench(path, "--length", 100)
    assert row["task"] == "longbench" and row["subset"] == "hotpotqa" and row["metric"] == "f1" and row["n"] == 2
    assert 0 <= row["value"] <= 1 and row["length"] == 100
    assert [r["value"] for r in longbench(path, "--length", 100, "--kv", "full", "--kv", "h2o:budget=1000")] == [row["value"]] * 2
    metrics = {"lcc": "edit_sim", "passage_count": "em", "multi_news": "rouge_l", "trec": "accuracy"}
    for subset, metric in metrics.items():
        path = write(tmp_path / "q.jsonl", dict(ASKED, dataset=subset, all_classes=["x", "the dog"]))
        assert longbench(path, "--length", 60)[0]["metric"] == metric


def first_line(text):
    """The line that the score of edit similarity takes, and that it must not be empty for."""
    line = next((line for line in text.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//"))), "")
    assert line
    return line


def generated(text, n):
    """The model's continuation, by `butler run`."""
    return rows("run", "-m", GQA, "-p", text, "-n", n, "--temp", 0, "--isa", "ref")[-1]["text"].replace("\0", "")


def test_longbench_scores_what_the_model_says(tmp_path):
    config = write(tmp_path / "config.json", {"own": dict(metric="edit", max_answer=12, prompt="{context}|{input}:")})
    said = first_line(generated("abc|d:", 12))
    path = write(tmp_path / "q.jsonl", dict(context="abc", input="d", answers=["nothing like it", said]))
    row, = longbench(path, "--isa", "ref", "--set", f"subset=own,config={config}")
    assert row["value"] == 1
    path = write(tmp_path / "q.jsonl", dict(context="abc", input="d", answers=["nothing like it"]))
    row, = longbench(path, "--isa", "ref", "--set", f"subset=own,config={config}")
    assert row["value"] < 1


def test_longbench_cuts_the_middle(tmp_path):
    """A prompt of more than --length tokens is answered like the same prompt without its middle."""
    config = write(tmp_path / "config.json", {"own": dict(metric="edit", max_answer=16, prompt="{context}")})
    head, tail = "qwzxqwzxqw" * 5, "zkzkzkzkzk" * 5  # every letter is a token; before them a beginning and a space
    assert len(rows("tokenize", "-m", GQA, "-p", head + tail)[0]["ids"]) == 102
    said = first_line(generated(head[:28] + tail[-30:], 16))
    path = write(tmp_path / "q.jsonl", dict(context=head + "mmm" * 10 + tail, input="", answers=[said]))
    row, = longbench(path, "--isa", "ref", "--set", f"subset=own,config={config}", "--length", 60)
    assert row["value"] == 1
    row, = longbench(path, "--isa", "ref", "--set", f"subset=own,config={config}", "--length", 200)
    assert row["value"] < 1


@pytest.mark.parametrize("change, says", [
    (dict(context=None), ["context", "not a string"]), (dict(context=""), ["context", "empty"]), (dict(input=3), ["input"]),
    (dict(answers=[]), ["answers"]), (dict(answers="x"), ["answers", "not an array"]), (dict(answers=[1]), ["answers", "entry 0"]),
    (dict(dataset="trec"), ["all_classes"]), (dict(dataset="trec", all_classes=[3]), ["all_classes", "entry 0"])])
def test_longbench_bad_fields(tmp_path, change, says):
    first = dict(ASKED, **{k: v for k, v in change.items() if k == "dataset"})
    if "dataset" in change:
        first["all_classes"] = ["x"]
    path = write(tmp_path / "q.jsonl", first, "", dict(ASKED, **change))
    refuses(FAILED, "eval", "longbench", "-m", GQA, "--data", path, "--length", 50, says=[f"{path}:3:", *says])


def test_longbench_configuration(tmp_path):
    path = write(tmp_path / "q.jsonl", ASKED)

    def with_config(text, *says, status=FAILED):
        config = tmp_path / "config.json"
        config.write_text(text if isinstance(text, str) else json.dumps(text))
        refuses(status, "eval", "longbench", "-m", GQA, "--data", path, "--length", 50, "--set", f"config={config}", says=says)

    good = dict(metric="f1", max_answer=4, prompt="{context}")
    with_config("{", "config.json:1", "not JSON")
    with_config("[]", "config.json", "not a JSON object")
    with_config({}, "hotpotqa", "config.json", status=USAGE)
    with_config({"hotpotqa": dict(good, metric="bleu")}, "hotpotqa", "metric")
    with_config({"hotpotqa": dict(good, max_answer=0)}, "hotpotqa", "max_answer")
    with_config({"hotpotqa": dict(good, prompt="none")}, "hotpotqa", "prompt", "{context}")
    refuses(USAGE, "eval", "longbench", "-m", GQA, "--data", path, "--set", "subset=dureader", says=["dureader"])
    refuses(USAGE, "eval", "longbench", "-m", GQA, "--data", path, "--length", 1, says=["--length"])
    prompts = write(tmp_path / "prompts.json", {"hotpotqa": "Read {context} and say {input}"})
    assert longbench(path, "--length", 120, "--set", f"prompts={prompts}")[0]["n"] == 1
    prompts.write_text("{}")
    refuses(FAILED, "eval", "longbench", "-m", GQA, "--data", path, "--length", 50, "--set", f"prompts={prompts}",
            says=["hotpotqa", "prompt"])


def test_longbench_with_a_chat_template(tmp_path):
    """The prompt is a user's turn, but of sets that say no; --length counts the template's tokens too."""
    model = with_values(tmp_path / "m.gguf", chat_template="{% for m in messages %}<{{ m.content }}>{% endfor %}{% if add_generation_prompt %}A{% endif %}")
    path = write(tmp_path / "q.jsonl", dict(context="tree", input="d", answers=[first_line(generated("<tree|d:>A", 12))]))
    entry = dict(metric="edit", max_answer=12, prompt="{context}|{input}:")
    config = write(tmp_path / "config.json", {"own": entry, "raw": dict(entry, chat=False)})

    def value(options, *args):
        return rows("eval", "longbench", "-m", model, "--data", path, "--isa", "ref", "--set", f"config={config},{options}", *args)[0]["value"]

    assert value("subset=own") == 1
    assert value("subset=own,chat=off") < 1 and value("subset=raw") == value("subset=own,chat=off")
    long = "tree" * 16
    whole = rows("tokenize", "-m", GQA, "-p", f"<{long}|d:>A")[0]["ids"]
    path = write(tmp_path / "q.jsonl", dict(context=long, input="d", answers=[first_line(generated(f"<{long}|d:>A", 12))]))
    assert value("subset=own", "--length", len(whole) + 2) == 1
    refuses(USAGE, "eval", "longbench", "-m", model, "--data", path, "--set", f"config={config},subset=own,chat=maybe", says=["chat", "maybe"])
    broken = with_values(tmp_path / "b.gguf", chat_template="\n{{ nosuch() }}")
    refuses(FAILED, "eval", "longbench", "-m", broken, "--data", path, "--set", f"config={config},subset=own", says=["line 2"])


def test_every_set_that_comes_with_the_command(tmp_path):
    config = json.loads((ROOT / "apps" / "eval" / "longbench.json").read_text())
    assert len(config) == 18
    for name, entry in config.items():
        assert entry["metric"] in ("f1", "rouge_l", "class", "number", "edit", "rouge") and "{context}" in entry["prompt"], name


NEWS = [{"document": f"The {w} was {c}.\nOk.", "summary": f"{w}\n{c}", "id": "1"}
        for w, c in (("bridge", "closed"), ("school", "opened"), ("river", "low"), ("market", "full"))]


def rouge_1(answer, right):
    """F-measure of common words."""
    a, b = (Counter(re.findall("[a-z0-9]+", text.lower())) for text in (answer, right))
    same = sum((a & b).values())
    return 2 * same / (sum(a.values()) + sum(b.values())) if same else 0


def summary(path, out, *args):
    found = rows("eval", "summary", "-m", GQA, "--data", path, "--isa", "ref", "-o", out, *args)
    kept = sorted((json.loads(line) for line in Path(f"{out}.items").read_text().splitlines()), key=lambda item: item["item"])
    return found, [item["output"] for item in kept]


@pytest.mark.parametrize("names", [("document", "summary", "xsum"), ("article", "highlights", "cnn_dailymail")])
def test_summaries(tmp_path, names):
    """Three rows of Rouge, the first recomputed; the set is found by its fields."""
    config = write(tmp_path / "config.json", {names[2]: dict(metric="rouge", max_answer=20, context=names[0], answer=names[1],
                                                             prompt="{context}\nSum:")})
    path = write(tmp_path / "news.jsonl", *[{names[0]: n["document"], names[1]: n["summary"]} for n in NEWS])
    found, outputs = summary(path, tmp_path / "rows.jsonl", "--set", f"config={config}")
    assert [row["metric"] for row in found] == ["rouge_1", "rouge_2", "rouge_l"] and all(row["subset"] == names[2] and row["n"] == 4 for row in found)
    assert outputs == [generated(n["document"] + "\nSum:", 20) for n in NEWS]
    assert found[0]["value"] == pytest.approx(np.mean([rouge_1(o, n["summary"]) for o, n in zip(outputs, NEWS)]), abs=1e-9)
    assert found[1]["value"] <= found[0]["value"] and all(row["ci"][0] <= row["value"] <= row["ci"][1] for row in found)
    said = write(tmp_path / "said.jsonl", {names[0]: NEWS[0]["document"], names[1]: outputs[0]})
    assert [row["value"] for row in summary(said, tmp_path / "said.rows", "--set", f"config={config}")[0]] == [1, 1, 1]
    assert len(rows("eval", "summary", "-m", GQA, "--data", path, "--limit", 1)) == 3, "the configuration that comes with the command"


def test_summaries_with_examples(tmp_path):
    """Solved articles come first, an answer ends with its line; the data's own first articles are not asked."""
    config = write(tmp_path / "config.json", {"xsum": dict(metric="rouge", max_answer=30, context="document", answer="summary", prompt="{context}\nSum:")})
    path, rest, first = (write(tmp_path / f"{name}.jsonl", *lines) for name, lines in (("news", NEWS), ("rest", NEWS[2:]), ("first", NEWS[:2])))
    found, outputs = summary(path, tmp_path / "a.jsonl", "--set", f"config={config},shots=2")
    assert found[0]["n"] == 2 and "shots=2" in found[0]["config"]
    solved = "".join(f"{n['document']}\nSum: {n['summary'].replace(chr(10), ' ')}\n\n" for n in NEWS[:2])
    for output, n in zip(outputs, NEWS[2:], strict=True):
        whole = generated(solved + n["document"] + "\nSum:", 30)
        assert whole.startswith(output) and (output == whole or output.lstrip("\n").count("\n") == 1)
    apart = summary(rest, tmp_path / "b.jsonl", "--set", f"config={config},shots=2,examples={first}")
    assert apart[1] == outputs and [r["value"] for r in apart[0]] == [r["value"] for r in found]
    refuses(FAILED, "eval", "summary", "-m", GQA, "--data", rest, "--set", f"shots=3,examples={first}", says=["first.jsonl", "2 examples", "3"])
    refuses(FAILED, "eval", "summary", "-m", GQA, "--data", write(tmp_path / "x.jsonl", dict(document="a", summary="")), says=["x.jsonl:1:", "summary", "empty"])
    refuses(USAGE, "eval", "summary", "-m", GQA, says=["--data", "summary"])


def test_longbench_real_file():
    data = data_folder()
    path = data / "long" / "longbench" / "multi_news.jsonl" if data else None
    if not path or not path.exists():
        pytest.skip("no data folder with long/longbench/multi_news.jsonl")
    row, = longbench(path, "--limit", 1, "--length", 100)
    assert row["subset"] == "multi_news" and row["metric"] == "rouge_l" and row["n"] == 1
