"""`butler eval ruler`: the items by the published definitions of the thirteen tasks, transcribed here; their length, recounted by
`butler tokenize`; their scores, recomputed from what the model wrote."""
import json
import math
import re
from collections import Counter

import pytest

from cli import FAILED, ROOT, SMOLLM2, USAGE, butler, refuses, rows
from eval_rows import bos, ids_of, journal, kv, piece_of, steady, wilson

MODEL = str(ROOT / "models" / "butler-default.gguf")
NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
PLANTED = ("pass key", "lantern of Clara")  # facts that long_text.txt hides for other purposes
ESSAY = " ".join(line for line in (ROOT / "models" / "long_text.txt").open() if not any(p in line for p in PLANTED)).split()
NEEDLE = re.compile(r"One code (?:number|identifier) of (\S+) is (\S+)\.")
ANSWER_TOKENS = {"niah": 128, "vt": 30, "cwe": 120, "fwe": 50, "qa": 32}
LENGTH = 1536


def written(path, *args, length=LENGTH, limit=4):
    """The items that the command writes instead of measuring them."""
    assert rows("eval", "ruler", "-m", MODEL, "--length", length, "--limit", limit, *args, "--set", f"write={path}") == []
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def items(tmp_path_factory):
    found = {}
    for item in written(tmp_path_factory.mktemp("ruler") / "items.jsonl"):
        found.setdefault(item["task"], []).append(item)
    return found


def test_every_set_that_needs_no_data(items):
    assert list(items) == ["niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
                           "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe"]
    assert all(len(found) == 4 and len({item["context"] for item in found}) == 4 for found in items.values())


def test_length(items):
    """Frame, context, question and beginning of the answer, each tokenized by itself, and the tokens of the answer."""
    for task, found in items.items():
        for item in found:
            tokens = len(bos(MODEL) + ids_of(item["context"], MODEL) + piece_of(item["question"], MODEL) + piece_of(item["answer_prefix"], MODEL))
            assert item["max_new_tokens"] == ANSWER_TOKENS[task.partition("_")[0]]
            assert tokens + item["max_new_tokens"] == item["length"] <= LENGTH
            # one more unit would not fit; a unit of fwe adds a word or none, a rare word of cwe occurs once
            assert item["length"] > LENGTH - max(60, len(ids_of(NOISE + "\n", MODEL))), task


# --------------------------------------------------------------------------------------------------------- needles

KINDS = {  # haystack, keys, values of a key, keys asked for
    "niah_single_1": ("noise", 1, 1, 1), "niah_single_2": ("essay", 1, 1, 1), "niah_single_3": ("essay", 1, 1, 1),
    "niah_multikey_1": ("essay", 4, 1, 1), "niah_multikey_2": ("needles", 1, 1, 1), "niah_multikey_3": ("needles", 1, 1, 1),
    "niah_multivalue": ("essay", 1, 4, 1), "niah_multiquery": ("essay", 4, 1, 4)}
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
NAME, NUMBER = re.compile(r"[a-z]+-[a-z]+"), re.compile(r"[1-9]\d{6}")


@pytest.mark.parametrize("task", KINDS)
def test_needles(items, task):
    haystack, n_keys, n_values, n_queries = KINDS[task]
    for item in items[task]:
        text = item["context"].split("\n", 1)[1]
        needles = NEEDLE.findall(text)
        asked = re.search(r" of (.*) in the text above\?", item["question"])[1].replace(", and ", ", ").split(", ")
        assert re.search(r" of (.*) in the text", item["answer_prefix"])[1].replace(", and ", ", ").split(", ") == asked
        assert len(asked) == n_queries and len(item["answer"]) == n_queries * n_values
        for i, key in enumerate(asked):
            assert Counter(v for k, v in needles if k == key) == Counter(item["answer"][i * n_values:(i + 1) * n_values])
        assert all(item["context"].count(answer) == 1 for answer in item["answer"])
        for key, value in needles:
            assert (UUID if task.endswith("key_3") else NAME).fullmatch(key)
            assert (UUID if task.endswith("_3") else NUMBER).fullmatch(value)
        if haystack == "essay":
            assert len(needles) == n_keys * n_values
            rest = NEEDLE.sub("", text).split()
            assert rest == (ESSAY * 9)[:len(rest)]
            before = [part.strip() for part in re.split(NEEDLE.pattern, text)[:-1:3]]
            assert all(re.search(r"(^|[.!?][\"')\]]*)$", part) for part in before), "needles stand between sentences"
        else:
            lines = text.split("\n")
            plain = [line for line in lines if line == NOISE]
            assert len(lines) == len(needles) + len(plain)
            assert len(needles) == n_keys * n_values if haystack == "noise" else not plain
            assert Counter(k for k, _ in needles)[asked[0]] == n_values


def units(text, essay):
    """Sentences or lines of a haystack, without its needles."""
    words = NEEDLE.sub("", text).split()
    return sum(bool(re.search(r"[.!?][\"')\]]*$", word)) for word in words) if essay else text.count("\n")


@pytest.mark.parametrize("task", ["niah_single_1", "niah_single_2", "niah_multikey_1", "niah_multikey_2"])
def test_depths(tmp_path, task):
    """The needle that is asked for stands after 0, 25, 50, 75, 100 % of the lines or sentences."""
    essay = KINDS[task][0] == "essay"
    for i, item in enumerate(written(tmp_path / "items.jsonl", "--set", f"subset={task},depths=5", limit=10)):
        text = item["context"].split("\n", 1)[1]
        before, after = re.split(rf"One code number of \S+ is {item['answer'][0]}\.", text)
        n, n_all = units(before, essay), units(before, essay) + units(after, essay)
        assert abs(n - i % 5 / 4 * n_all) <= 1, (task, i, n, n_all)


def test_random_depths_are_spread(tmp_path):
    places = []
    for item in written(tmp_path / "items.jsonl", "--set", "subset=niah_single_1", length=600, limit=60):
        lines = item["context"].split("\n")[1:]
        places.append(next(i for i, line in enumerate(lines) if line != NOISE) / (len(lines) - 1))
    assert abs(sum(places) / 60 - 0.5) < 4 / math.sqrt(12 * 60) and len(set(places)) > 8


def test_a_text_of_ones_own(tmp_path):
    path = tmp_path / "own.txt"
    path.write_text("One  two\nthree. Four!  Five six seven. ")
    for item in written(tmp_path / "items.jsonl", "--set", f"subset=niah_single_2,text={path}", length=400):
        rest = NEEDLE.sub("", item["context"].split("\n", 1)[1]).split()
        assert rest == ("One two three. Four! Five six seven.".split() * 99)[:len(rest)] and len(rest) > 30


# ---------------------------------------------------------------------------------------------- tracing and counting

def test_chain(items):
    """Solved by following the assignments of the text after the example."""
    for item in items["vt"]:
        example, text = item["context"].rsplit("The text below", 1)
        value = re.search(r"have the value (\d{5}) in", item["question"])[1]
        found, order = {}, []
        for name, source in re.findall(r"^VAR (\w+) = (.*)$", text, re.M):
            found[name] = found[source[4:]] if source.startswith("VAR ") else source
            order.append(name)
        assert order == item["answer"] and len(order) == 5 and set(found.values()) == {value}
        assert all(re.fullmatch("[A-Z]{5}", name) for name in order) and f"5 variables have the value {value}" in item["answer_prefix"]
        solved = re.search(r"5 variables have the value (\d{5}):((?: [A-Z]{3}){5})\n\n$", example)
        assert re.findall(r"^VAR (\w+) =", example, re.M) == solved[2].split() and f"= {solved[1]}\n" in example
        assert set(text.split("\n")[2:]) - {NOISE} == {line for line in text.split("\n") if line.startswith("VAR ")}


def listed(text):
    pairs = re.findall(r"(\d+)\. ([a-z]+)", text.split("\n", 1)[1].split("\n")[0])
    assert [int(i) for i, _ in pairs] == list(range(1, len(pairs) + 1))
    return Counter(word for _, word in pairs)


@pytest.mark.parametrize("length, common, rare, example", [(LENGTH, 6, 1, (20, 3, 1)), (4096, 30, 3, (40, 10, 3)), (16384, 30, 3, (40, 10, 3))])
def test_common_words(tmp_path, length, common, rare, example):
    for item in written(tmp_path / "items.jsonl", "--set", "subset=cwe", length=length, limit=2):
        first, text = re.split(r"(?=Here is a numbered list)", item["context"])[1:]
        count = listed(text)
        assert {word for word, n in count.items() if n == common} == set(item["answer"]) and len(item["answer"]) == 10
        assert all(n == rare for word, n in count.items() if word not in item["answer"])
        count, (words, often, seldom) = listed(first), example
        answer = re.findall(r"\d+\. ([a-z]+)", first.rsplit("are:", 1)[1])
        assert len(count) == words and count == Counter({word: often if word in answer else seldom for word in count})


def test_frequent_words(items):
    """The k-th word of length / 50 occurs n / (k^2 zeta(2)) times, rounded down; the first is noise."""
    for item in items["fwe"]:
        words = item["context"].split("\n", 1)[1].split()
        count = Counter(words)
        assert count.most_common(1)[0][0] == "..." and [w for w, _ in count.most_common(4)[1:]] == item["answer"]
        assert all(re.fullmatch("[a-z]{6}", word) for word in count if word != "...")
        zeta = math.pi ** 2 / 6

        def counts(n):
            return [c for k in range(1, LENGTH // 50 + 1) if (c := int(n / k ** 2 / zeta)) > 0]
        assert any(sorted(count.values(), reverse=True) == counts(n) for n in range(len(words), 4 * len(words)))
        assert words != sorted(words, key=lambda w: -count[w])


# ------------------------------------------------------------------------------------------------------- questions

SQUAD = {"data": [{"title": f"t{a}", "paragraphs": [
    {"context": f"Article {a}, paragraph {p}: the {w} is {c}.", "qas": [
        {"question": f"What is the {w} of {a}-{p}?", "answers": [{"text": c}, {"text": f"a {c}"}], "is_impossible": False},
        {"question": "No answer?", "answers": [], "is_impossible": True}]}
    for p, (w, c) in enumerate([("door", "blue"), ("roof", "red"), ("wall", "white")])]} for a in range(30)]}
HOTPOT = [{"question": f"Who met {i}?", "answer": f"person {i}",
           "context": [[f"title {i + k}", [f"It is about {i + k}. ", f"And about person {i + k}."]] for k in range(10)]} for i in range(40)]


def test_squad(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD, indent=1))
    everything = [p["context"] for d in SQUAD["data"] for p in d["paragraphs"]]
    for i, item in enumerate(written(tmp_path / "items.jsonl", "--set", "subset=qa_1", "--data", path, length=700, limit=7)):
        passages = re.findall(r"^Passage (\d+):\n(.*)$", item["context"], re.M)
        assert [int(n) for n, _ in passages] == list(range(1, len(passages) + 1)) and len(passages) > 12
        texts = [text for _, text in passages]
        assert len(set(texts)) == len(texts) and set(texts) <= set(everything)
        article = SQUAD["data"][i // 3]["paragraphs"]
        assert {p["context"] for p in article} <= set(texts), "the article's other paragraphs come first"
        qa = article[i % 3]["qas"][0]
        assert item["question"].endswith(f"Question: {qa['question']}") and item["answer"] == [a["text"] for a in qa["answers"]]
        assert texts.index(article[i % 3]["context"]) != 0 or i > 0, "shuffled"
        assert item["length"] <= 700
    (tmp_path / "items.jsonl").unlink()
    item = written(tmp_path / "items.jsonl", "--set", "subset=qa_1", "--data", path, length=8192, limit=1)[0]
    assert item["context"].count("Passage ") == 90, "no passage twice, however much room there is"


def test_hotpot(tmp_path):
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps(HOTPOT))
    for i, item in enumerate(written(tmp_path / "items.jsonl", "--set", "subset=qa_2", "--data", path, length=700, limit=3)):
        titles = re.findall(r"^title (\d+)\nIt is about \1\. And about person \1\.$", item["context"], re.M)
        assert len(titles) == item["context"].count("Passage ") == len(set(titles)) > 10
        assert {str(i + k) for k in range(10)} <= set(titles) and item["answer"] == [f"person {i}"]


def test_data_that_does_not_fit(tmp_path):
    squad, hotpot, bad = tmp_path / "squad.json", tmp_path / "hotpot.json", tmp_path / "bad.json"
    squad.write_text(json.dumps(SQUAD))
    hotpot.write_text(json.dumps(HOTPOT))
    common = ["eval", "ruler", "-m", MODEL, "--length", 500, "--limit", 1]
    refuses(USAGE, *common, "--set", "subset=qa_1", says=["qa_1", "--data", "SQuAD"])
    refuses(USAGE, *common, "--set", "subset=qa_2", "--data", squad, says=["qa_2", "HotpotQA"])
    refuses(USAGE, *common, "--set", "subset=qa_1", "--data", hotpot, says=["qa_1", "SQuAD"])
    for content, says in (('{"data": []}', "articles"), ('{"data": [{}]}', "paragraphs"), ('{"data": [{"paragraphs": [{}]}]}', "context"),
                          ('{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "y"}]}]}]}', "answers"),
                          ('{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "y", "answers": [{}]}]}]}]}', '"text"'),
                          ('{"data": [{"paragraphs": [{"context": "x", "qas": [{"question": "y", "answers": [{"text": 5}]}]}]}]}', '"text"'),
                          ('{"data": [{"paragraphs": [{"context": "x"}]}]}', "no questions"), ("{", "not JSON"), ("A text.\n", "neither JSON lines")):
        bad.write_text(content)
        refuses(FAILED, *common, "--set", "subset=qa_1", "--data", bad, says=["bad.json", says])
    for content, says in (("[]", "array of questions"), ("[1]", "context"), ('[{"question": "x", "answer": "y", "context": [["t", 1]]}]', "sentences")):
        bad.write_text(content)
        refuses(FAILED, *common, "--set", "subset=qa_2", "--data", bad, says=["bad.json", says])
    refuses(USAGE, *common[:-4], "--length", 100, "--set", "subset=vt", says=["--length", "100 tokens", "vt"])
    refuses(USAGE, *common, "--set", "subset=niah", says=["niah", "niah_single_1"])
    refuses(USAGE, *common, "--set", "subset=vt,depths=3", says=["depths", "vt"])
    refuses(FAILED, *common, "--set", "subset=niah_single_2,text=/nosuch", says=["/nosuch"])
    refuses(FAILED, *common, "--set", "subset=vt,write=/nosuch/file", says=["/nosuch/file"])


# --------------------------------------------------------------------------------------------------------- scoring

def string_match(answers, output, any_of):
    """RULER's string_match_all and string_match_part for one answer."""
    hits = [answer.lower() in output.lower() for answer in answers]
    return float(any(hits)) if any_of else sum(hits) / len(hits)


@pytest.mark.parametrize("task, length", [("niah_single_1", 400), ("niah_multiquery", 500), ("cwe", 1100), ("fwe", 500), ("qa_1", 300)])
def test_scores(tmp_path, task, length):
    data = tmp_path / "squad.json"
    data.write_text(json.dumps(SQUAD))
    args = ["--set", f"subset={task}", *(["--data", data] if task == "qa_1" else [])]
    texts = written(tmp_path / "items.jsonl", *args, length=length, limit=5)
    row, = rows("eval", "ruler", "-m", MODEL, "--length", length, "--limit", 5, *args, "-o", tmp_path / "rows.jsonl")
    kept = sorted(journal(tmp_path / "rows.jsonl"), key=lambda item: item["item"])
    scores = [string_match(text["answer"], item["output"], task == "qa_1") for text, item in zip(texts, kept, strict=True)]
    assert [item["values"][0] for item in kept] == pytest.approx(scores)
    if set(scores) <= {0, 1}:
        assert row["ci"] == pytest.approx(wilson(sum(scores), 5), abs=1e-6)
    assert row["value"] == pytest.approx(sum(scores) / 5) and row["metric"] == "string_match" and row["subset"] == task and row["n"] == 5


@pytest.mark.skipif(not SMOLLM2.exists(), reason="no models/smollm2.gguf (./setup --model smollm2)")
def test_a_good_model_finds_needles():
    common = ["eval", "ruler", "-m", SMOLLM2, "--length", 512, "--limit", 4, *kv("full", "streaming:budget=0.1")]
    dense, window = rows(*common, "--set", "subset=niah_single_1")
    assert dense["value"] >= 0.75 and window["value"] <= 0.25


def test_the_text_goes_on_after_a_wrong_answer(tmp_path):
    """An item ends when all expected strings are there; otherwise after max_new_tokens."""
    base = dict(task="niah_single_1", context="A text.\n", question="", answer_prefix="The", max_new_tokens=9)
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps(dict(base, answer=["qqq-none"])) + "\n")
    rows("eval", "ruler", "-m", MODEL, "--data", path, "-o", tmp_path / "a.jsonl", "--set", "subset=niah_single_1")
    whole = journal(tmp_path / "a.jsonl")[0]
    assert whole["values"][0] == 0 and whole["cost"][0] >= 8
    start = whole["output"][:4]
    path.write_text(json.dumps(dict(base, answer=[start.upper()])) + "\n")
    rows("eval", "ruler", "-m", MODEL, "--data", path, "-o", tmp_path / "b.jsonl", "--set", "subset=niah_single_1")
    part = journal(tmp_path / "b.jsonl")[0]
    assert part["values"][0] == 1 and whole["output"].startswith(part["output"]) and part["cost"][0] < whole["cost"][0]


def test_a_file_of_items(tmp_path):
    """Items that were written give the rows of those that are made; RULER's own form of them too."""
    common = ["eval", "ruler", "-m", MODEL, "--length", 400, "--limit", 3]
    texts = written(tmp_path / "items.jsonl", "--set", "subset=niah_multivalue", length=400, limit=3)
    other = written(tmp_path / "more.jsonl", "--set", "subset=fwe", length=400, limit=1)
    (tmp_path / "both.jsonl").write_text("".join(json.dumps(item) + "\n" for item in texts + other))
    made = rows(*common, "--set", "subset=niah_multivalue", *kv("full", "streaming:budget=0.3"))
    read = rows(*common, "--data", tmp_path / "both.jsonl", *kv("full", "streaming:budget=0.3"))
    names = ("subset", "policy", "value", "ci", "n", "kl", "difference", "kv_read")
    assert [{k: row.get(k) for k in names} for row in read if row["subset"] == "niah_multivalue"] == [{k: row.get(k) for k in names} for row in made]
    assert [row["subset"] for row in read] == ["niah_multivalue"] * 2 + ["fwe"] * 2
    (tmp_path / "blank.jsonl").write_text("\n" + (tmp_path / "both.jsonl").read_text())
    kept = [rows(*common[:-2], *more, "--data", tmp_path / "blank.jsonl", "-o", tmp_path / "kept.jsonl", "--set", "subset=niah_multivalue") for more in (("--limit", 2), ())]
    assert [found[0]["n"] for found in kept] == [2, 3], "without --limit all are read, and measured"
    own = [{"index": i, "input": t["context"] + t["question"], "outputs": t["answer"], "answer_prefix": t["answer_prefix"], "length": 400}
           for i, t in enumerate(texts)]
    (tmp_path / "own.jsonl").write_text("".join(json.dumps(item) + "\n" for item in own))
    row, = rows(*common, "--data", tmp_path / "own.jsonl", "--set", "subset=niah_multivalue")
    assert row["n"] == 3 and row["value"] == pytest.approx(made[0]["value"], abs=0.3), "the seam of context and question is tokenized"
    (tmp_path / "own.jsonl").write_text(json.dumps(own[0]) + "\n" + json.dumps({**own[0], "outputs": [1]}) + "\n")
    refuses(FAILED, *common, "--data", tmp_path / "own.jsonl", "--set", "subset=fwe", says=["own.jsonl:2:", "outputs", "entry 0"])
    refuses(FAILED, *common, "--data", tmp_path / "own.jsonl", says=["own.jsonl:1:", "task", "subset"])


def test_protocols_and_draws(tmp_path):
    common = ["eval", "ruler", "-m", MODEL, "--length", 300, "--limit", 2, "--set", "subset=niah_single_1"]
    assert steady(rows(*common)) == steady(rows(*common, "-t", 2))
    after, = rows(*common, "--set", "ask=after")
    assert 0 <= after["value"] <= 1 and "ask=after" in after["config"]
    one, two, other = (written(tmp_path / name, "--set", "subset=niah_single_1", "-s", seed, length=300)
                       for name, seed in (("a", 1), ("b", 1), ("c", 2)))
    assert one == two and not {i["answer"][0] for i in one} & {i["answer"][0] for i in other}
    assert one[:2] == written(tmp_path / "d", "--set", "subset=niah_single_1", "-s", 1, length=300, limit=2)


def test_rows_name_the_data_that_they_read(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD))
    data = {}
    for task in ("niah_single_1", "niah_single_2", "qa_1"):
        row, = rows("eval", "ruler", "-m", MODEL, "--length", 300, "--limit", 1, "--data", path, "--set", f"subset={task}")
        data[task] = row["data"]
    assert data["niah_single_1"] == "" and data["niah_single_2"].startswith("#") and data["qa_1"].startswith("squad.json#")


def test_a_grid(tmp_path):
    found = rows("eval", "ruler", "-m", MODEL, "--length", "300,400", "--limit", 6, "--set", "subset=niah_single_1,depths=3")
    for row in found:
        grid = row["detail"]["grid"]
        assert [(c["length"], c["depth"], c["n"]) for c in grid] == [(row["length"], d, 2) for d in (0, 0.5, 1)]
        assert sum(c["right"] for c in grid) == pytest.approx(row["value"] * 6)
    assert [row["length"] for row in found] == [300, 400]


def test_sets_that_lack_their_data_are_named(tmp_path):
    path = tmp_path / "squad.json"
    path.write_text(json.dumps(SQUAD))
    said = butler("eval", "ruler", "-m", MODEL, "--length", LENGTH, "--limit", 1, "--set", f"write={tmp_path / 'i.jsonl'}", "--data", path).stderr
    assert "qa_2: not measured" in said and "HotpotQA" in said and "qa_1: not measured: 1 items written" in said
    assert len((tmp_path / "i.jsonl").read_text().splitlines()) == 12
