"""`butler eval`: what the tasks measure against a NumPy transcription over the logits of `butler logits`, the properties that hold for
every policy, runs that are interrupted, and data files that are not what they should be."""
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from eval_rows import VOLATILE, bos, by, ids_of, journal, kv, piece_of, steady, wilson
from cli import BUTLER, FAILED, GPT2, GQA, ROOT, USAGE, butler, data_folder, refuses, rows, with_values
from gguf_file import BOOL, Gguf
from llama_reference import Llama
from policies_reference import half_up, log_softmax

TEXT = ROOT / "tests" / "data" / "secret_garden.txt"
POLICIES = ["quest:dense=0,page=4", "fier:dense=0", "pagestats:page=4", "oracle", "random", "streaming", "h2o", "h2o+vatp", "scissorhands", "snapkv", "tova", "knorm"]
JOINT = ("difference",)  # depends on another policy of the command


def log_probs(ids, model=GQA):
    """ln softmax at every position, as float64."""
    out = rows("logits", "-m", model, "--all", "--ids", ",".join(map(str, ids)))
    logits = np.array([row["logits"] for row in out])
    logits -= logits.max(1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(1, keepdims=True))


# ------------------------------------------------------------------------------------------------- perplexity

@pytest.mark.parametrize("model,length,stride", [(GQA, 60, 0), (GQA, 64, 24), (GPT2, 40, 0)])
def test_ppl(model, length, stride):
    found = rows("eval", "ppl", "-m", model, "--data", TEXT, "--length", length, "--limit", 3, "--kv-type", "f32", "--set", f"stride={stride}")
    ids, lead = ids_of(TEXT.read_text(), model=model), bos(model)
    windows, counted = [], 0
    for k in range(3):
        at = k * (stride or length)
        window = lead + ids[at:at + length]
        table = log_probs(window[:-1], model)
        first = max(1, len(lead) + counted - at)
        windows.append([(-table[i - 1, window[i]], i - len(lead)) for i in range(first, len(window))])
        counted = at + length
    nats = [x for w in windows for x, _ in w]
    ppl, bpb = by(found, metric="ppl"), by(found, metric="bpb")
    assert ppl["n"] == len(nats) and ppl["length"] == length and ppl["kv_read"] == 1 and ppl["policy"] == "full"
    assert ppl["settings"].startswith("full")
    assert math.log(ppl["value"]) == pytest.approx(np.mean(nats), abs=1e-4)
    assert ppl["ci"][0] < ppl["value"] < ppl["ci"][1]
    counts = np.array([len(w) for w in windows])
    means = np.array([sum(x for x, _ in w) for w in windows])
    half = 4.302653 * math.sqrt(((means - np.mean(nats) * counts) ** 2).sum() / 2 * 3) / counts.sum()
    assert math.log(ppl["ci"][1] / ppl["value"]) == pytest.approx(half, rel=1e-3)
    buckets = ppl["detail"]["by_position"]
    assert sum(b["n"] for b in buckets) == len(nats) and buckets[0]["from"] == 0 and buckets[-1]["to"] == length
    for bucket in buckets:
        inside = [x for w in windows for x, place in w if bucket["from"] <= place < bucket["to"]]
        assert len(inside) == bucket["n"] and math.log(bucket["ppl"]) == pytest.approx(np.mean(inside), abs=1e-4)
    if model == GQA and stride == 0:
        n_bytes = sum(len(x) for x in pieces(ids[:3 * length], model))
        assert bpb["value"] == pytest.approx(sum(nats) / math.log(2) / n_bytes, rel=1e-6)


def pieces(ids, model):
    """Bytes of tokens: this vocabulary has bytes, and a few longer tokens."""
    tokens = Gguf(model).values["tokenizer.ggml.tokens"][1][1]
    out = []
    for i in ids:
        text = tokens[i].decode()
        out.append(b"?" if re.fullmatch(r"<0x[0-9A-F]{2}>", text) else text.replace("\u2581", " ").encode())
    return out


def test_bos_only_where_the_file_asks_for_it(tmp_path):
    model = Gguf(GQA)
    model.put("tokenizer.ggml.add_bos_token", BOOL, False)
    model.write(tmp_path / "plain.gguf")
    plain = str(tmp_path / "plain.gguf")
    assert len(bos()) == 1 and bos(plain) == []
    ppl = ["eval", "ppl", "--data", TEXT, "--length", 40, "--limit", 1]
    assert [rows(*ppl, "-m", m)[0]["n"] for m in (GQA, plain)] == [40, 39], "without BOS nothing predicts the first token"
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"ordered_kv_records": [["ab", "cd"], ["ef", "gh"]], "key": "ef", "value": "gh"}))
    for m in (GQA, plain):
        found = rows("eval", "kv", "-m", m, "--data", path, "--kv-type", "f32")
        prompt = ["Remember these pairs.\nab: cd\nef: gh\n", "\nef:"]
        check(found, [hits(prompt, " gh", m)])
        assert found[0]["length"] == len(bos(m) + ids_of(prompt[0], m) + piece_of(prompt[1], m) + piece_of(" gh", m))


def test_ppl_prefill_counts_what_is_decoded():
    both = [rows("eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 64, "--limit", 2, "--mode", mode, "--set", "prompt=48", "--kv-type", "f32")
            for mode in ("prefill", "simulate")]
    late = [b for b in both[1][0]["detail"]["by_position"] if b["from"] >= 48]
    assert both[0][0]["n"] < both[1][0]["n"]
    nats = sum(b["n"] * math.log(b["ppl"]) for b in late) / sum(b["n"] for b in late)
    start = [b for b in both[0][0]["detail"]["by_position"] if b["from"] >= 48]
    assert sum(b["n"] * math.log(b["ppl"]) for b in start) / sum(b["n"] for b in start) == pytest.approx(nats, abs=1e-4)


@pytest.mark.parametrize("mode", ["simulate", "prefill"])
def test_dense_equals_full_at_any_budget(mode):
    found = rows("eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 64, "--limit", 2, "--mode", mode, "--budget", "0.2,1", *kv("full", *POLICIES))
    full = [r for r in found if r["policy"] == "full"]
    assert len(full) == 2 and full[0]["budget"] == 1, "what has no budget is measured once"
    for policy in POLICIES:
        for metric in ("ppl", "bpb"):
            row = next(r for r in found if r["metric"] == metric and r["budget"] == 1 and r["policy"].startswith(policy.split(":")[0] + ":"))
            want = next(r for r in full if r["metric"] == metric)
            # Metrics that watch a prompt's attention read it in another order of sums.
            assert row["value"] == pytest.approx(want["value"], rel=1e-6 if mode == "simulate" else 1e-4), row["policy"]
    cheap = [r for r in found if r["budget"] == 0.2 and r["metric"] == "ppl"]
    assert len(cheap) == len(POLICIES)
    assert all(r["bytes"]["kv"] < 0.5 * r["bytes"]["full_kv"] for r in cheap
               if not r["policy"].startswith(("snapkv", "h2o+vatp")))  # they always keep 32 and 20 tokens, and snapkv cuts prompts only


@pytest.mark.parametrize("share, count", [("h2o:budget=0.25", "h2o:budget=24"), ("streaming:budget=0.25", "streaming:budget=24"),
                                          ("tova:budget=0.25", "tova:budget=24"), ("softprune:ratio=0.75,min=8", "softprune:ratio=0.999,min=24"),
                                          ("quest:dense=0,page=4,budget=0.25", "quest:dense=0,page=4,budget=24")])
def test_a_share_of_a_simulated_text(share, count):
    """What evicts keeps a share of the whole text, of 96 tokens here, from its first token on; what retrieves reads a share of the text so far."""
    found = rows("eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 96 - len(bos()), "--limit", 2, "--mode", "simulate", *kv(share, count))
    values = {policy: [r["value"] for r in found if r["policy"] == policy] for policy in (share, count)}
    assert len(values[share]) == 2
    assert (values[share] == values[count]) == (not share.startswith("quest"))


# ---------------------------------------------------------------------------------------- one run, many policies

def test_results_do_not_depend_on_the_threads():
    args = ["eval", "passkey", "-m", GQA, "--length", 200, "--limit", 5, "--budget", "0.3", *kv("full", "quest", "h2o", "streaming", "random")]
    assert steady(rows(*args, "-t", 1)) == steady(rows(*args, "-t", 3))


COMPANY = ["h2o", "h2o+vatp:sinks=0", "fier:dense=0", "quest:dense=0", "snapkv", "tova", "streaming", "random"]


@pytest.mark.parametrize("policy", COMPANY)
def test_results_do_not_depend_on_company(policy):
    """A prompt read for several policies serves each as if it had been read for it alone."""
    args = ["eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 240, "--limit", 2, "--mode", "prefill"]
    def steady(found):
        return [{k: v for k, v in row.items() if k not in VOLATILE + JOINT} for row in found]

    together = steady(rows(*args, "--budget", "0.5,0.25", *kv(*COMPANY)))
    alone = steady(rows(*args, "--budget", "0.25", *kv(policy)))
    assert alone and all(row in together for row in alone)


def test_the_same_policy_twice_is_one():
    assert len(rows("eval", "passkey", "-m", GQA, "--length", 150, "--limit", 1, "--budget", "0.5,0.5", *kv("full", "oracle", "oracle"))) == 2


def command(output, n=8):
    return [BUTLER, "eval", "ppl", "-m", GQA, "--data", str(TEXT), "--length", "120", "--limit", str(n), "-t", "1", "--budget", "0.2,0.6", "-o", str(output),
            *kv("full", "h2o", "quest:dense=0", "oracle", "random")]


def read(path):
    return steady(json.loads(line) for line in path.read_text().splitlines())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_and_resumed(tmp_path, number):
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    subprocess.run(command(whole), check=True, capture_output=True, timeout=300)
    process = subprocess.Popen(command(part), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    end = time.time() + 120
    while time.time() < end and (not part.exists() or part.read_bytes().count(b"\n") < 4):
        time.sleep(0.002)
    process.send_signal(number)
    said = process.communicate(timeout=120)[1].decode()
    n = len(part.read_bytes().splitlines())
    assert 4 <= n < len(read(whole)), "it was not stopped in the middle"
    if number == signal.SIGINT:
        assert process.returncode == FAILED and "continues" in said
    again = subprocess.run(command(part), check=True, capture_output=True, timeout=300).stderr.decode()
    assert "of 9 policies are in the results already" in again
    assert read(part) == read(whole)


def test_killed_at_random_moments(tmp_path):
    """At most the item at work is lost: no item is measured twice, and the rows are those of a run that nobody killed."""
    whole, part = tmp_path / "whole.jsonl", tmp_path / "part.jsonl"
    start = time.time()
    subprocess.run(command(whole, 24), check=True, capture_output=True, timeout=300)
    length, draw, n_killed, before = time.time() - start, random.Random(3), 0, 0
    for _ in range(100):
        process = subprocess.Popen(command(part, 24), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(draw.uniform(0.01, length / 4))
        process.kill()
        n_killed += process.wait() == -signal.SIGKILL
        complete = Path(f"{part}.items").read_bytes().count(b"\n") if Path(f"{part}.items").exists() else 0
        assert complete >= before
        before = complete
        if process.returncode == 0:
            break
    subprocess.run(command(part, 24), check=True, capture_output=True, timeout=300)
    names = [item["id"] for item in journal(part)]
    assert n_killed >= 3 and len(names) == len(set(names)) == len(journal(whole)) > 24
    assert read(part) == read(whole)


def test_an_interrupted_item_ends_at_once():
    """The only item takes most of a minute; it ends after a part of its prompt. The bound leaves room for a slow machine."""
    args = ["eval", "passkey", "--length", "15000", "--limit", "1", "-t", "1", *kv("full", "h2o:budget=0.5", "snapkv:budget=0.5")]
    process = subprocess.Popen([BUTLER, *args], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
    status, end = Path(f"/proc/{process.pid}/status"), time.time() + 60
    while time.time() < end and not int(re.search(r"SigCgt:\s*(\w+)", status.read_text())[1], 16) & 2:  # SIGINT has a handler
        time.sleep(0.01)
    time.sleep(0.7)
    start = time.time()
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=120)[1].decode()
    assert time.time() - start < 3 and process.returncode == FAILED and "stopped" in said


def test_outputs_are_kept(tmp_path):
    path = tmp_path / "rows.jsonl"
    data = tmp_path / "q.jsonl"
    data.write_text(json.dumps({"dataset": "qasper", "context": "A text.", "input": "What?", "answers": ["x"]}))
    rows("eval", "longbench", "--data", data, "--limit", 1, "-o", path, *kv("full"))
    item, = journal(path)
    assert isinstance(item["output"], str) and item["policy"] == "full" and item["item"] == 0
    row, = rows("eval", "passkey", "--length", 300, "--limit", 4, "-o", tmp_path / "keys.jsonl")
    kept = journal(tmp_path / "keys.jsonl")
    assert len(kept) == 4 and sum(re.fullmatch(r" \d{5}", item["output"]) is not None for item in kept) >= 4 * row["value"] > 0


def test_a_file_cut_anywhere_goes_on(tmp_path):
    path = tmp_path / "rows.jsonl"
    subprocess.run(command(path, 1), check=True, capture_output=True, timeout=300)
    whole, bytes_ = read(path), path.read_bytes()
    for cut in random.Random(1).sample(range(len(bytes_)), 4) + [len(bytes_) - 1, bytes_.index(b"\n") + 1]:
        path.write_bytes(bytes_[:cut])
        subprocess.run(command(path, 1), check=True, capture_output=True, timeout=300)
        assert read(path) == whole, cut
    before = path.read_bytes()
    subprocess.run(command(path, 1), check=True, capture_output=True, timeout=300)
    assert path.read_bytes() == before


def test_files_with_any_name(tmp_path):
    """Bytes that are no UTF-8, and a character where a row cuts the name."""
    for name in (b"caf\xe9", b"a" + 30 * "\u00fc".encode()):
        book = os.path.join(os.fsencode(tmp_path), name)
        shutil.copy(TEXT, book)
        args = ["eval", "ppl", "-m", GQA, "--length", "64", "--limit", "1", "--data", os.fsdecode(book), "-o", tmp_path / "rows.jsonl"]
        assert "bpb" in butler(*args).stdout
        assert "already" in butler(*args).stderr


def test_other_measurements_are_not_taken_for_done(tmp_path):
    path = tmp_path / "rows.jsonl"
    base = ["eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 40, "--limit", 1, "-o", path]
    other = tmp_path / "other.txt"
    other.write_text(TEXT.read_text()[100:])
    n = len(rows(*base))
    for change in (["--limit", 2], ["--length", 44], ["-s", 1], ["--mode", "prefill"], ["--set", "stride=20"], ["--data", other], ["-m", GPT2],
                   ["--kv-type", "f32"], ["--kv", "oracle"]):
        assert len(rows(*base, *change)) == n, change
    assert rows(*base) == []


@pytest.mark.parametrize("words", [
    ["ppl", "-m", GQA, "--data", TEXT, "--length", 80, "--mode", "prefill", *kv("full", "quest:budget=0.3", "random:budget=0.3", "h2o:budget=0.3")],
    ["ruler", "--length", 800, "--set", "subset=vt", *kv("full", "fier:budget=0.2", "snapkv:budget=0.2")],
    ["recall", "-m", GQA, "--data", TEXT, "--length", 60, *kv("quest:budget=0.3", "fier:budget=0.3")],
    ["coref", "-m", GQA, *kv("full", "random:budget=0.2")]])
def test_more_items_measure_only_the_new_ones(tmp_path, words):
    """The rows are those of a run that began with as many. recall takes its texts from all of the file: with another limit, others."""
    more, once = tmp_path / "more.jsonl", tmp_path / "once.jsonl"
    rows("eval", *words, "--limit", 1, "-o", more)
    few = journal(more)
    found, expected = rows("eval", *words, "--limit", 3, "-o", more), rows("eval", *words, "--limit", 3, "-o", once)
    assert steady(found) == steady(expected) != []
    names, wanted = [item["id"] for item in journal(more)], {item["id"] for item in journal(once)}
    assert len(few) == words.count("--kv") and len(names) == len(set(names)) and wanted <= set(names)
    assert words[0] == "recall" or wanted == set(names)


def test_bad_results_file(tmp_path):
    path = tmp_path / "rows.jsonl"
    row = '{"task":"ppl","policy":"full","metric":"ppl","more":0}\n'
    other = row.replace("}", ',"x":1}').replace('"more"', '"less"')
    for content, line in ((row + "nonsense\n", 2), ("a line without an end", 1), (row + "a line without an end", 2), ("{}\n", 1),
                          (other, 1), ('{"settings": 1}\n', 1), ("[1]\n", 1), (row + '{"task', 0)):
        path.write_text(content)
        if line:
            refuses(FAILED, "eval", "passkey", "-m", GQA, "--length", 150, "-o", path, says=[f"rows.jsonl:{line}"])
            assert path.read_text() == content
        else:
            butler("eval", "passkey", "-m", GQA, "--length", 150, "--limit", 1, "-o", path)
            assert path.read_text().startswith(row) and len(read(path)) == 2
    refuses(FAILED, "eval", "passkey", "-m", GQA, "--length", 150, "-o", tmp_path / "no" / "rows.jsonl", says=["rows.jsonl"])


# ------------------------------------------------------------------------------------------------- answers

def hits(prompt, answer, model=GQA):
    """Of each answer token whether it is the likeliest after the true ones before it; prompt and answer are lists of texts."""
    question = bos(model) + ids_of(prompt[0], model) + [i for piece in prompt[1:] for i in piece_of(piece, model)]
    wanted = piece_of(answer, model)
    table = log_probs((question + wanted)[:-1], model)[-len(wanted):]
    return [int(row.argmax()) == i for row, i in zip(table, wanted)]


def check(found, per_item):
    """Accuracy, coverage and their intervals from lists of hits."""
    accuracy = by(found, metric="accuracy")
    right = sum(all(h) for h in per_item)
    assert accuracy["value"] == pytest.approx(right / len(per_item)) and accuracy["n"] == len(per_item)
    assert accuracy["ci"] == pytest.approx(wilson(right, len(per_item)), abs=1e-6)
    coverage = [r for r in found if r["metric"] == "coverage"]
    if coverage:
        assert coverage[0]["value"] == pytest.approx(sum(map(sum, per_item)) / sum(map(len, per_item)), abs=1e-8)
        assert coverage[0]["n"] == sum(map(len, per_item))


def test_coref_is_scored_as_written_down(tmp_path):
    """The published template over pools with one entry each, so that the text is known."""
    pools = {"location_names": ["aeiou xyz"], "loc_intro_tieback_list": [{"location_intro": "Far away lies", "tieback_question": "It was"}],
             "philosophy_statements": ["All is one"], "food_descriptions": ["Soup"], "math_problems": ["1 and 1 is 2"]}
    path = tmp_path / "pools.json"
    path.write_text(json.dumps(pools))
    for mode in ("simulate", "prefill"):
        found = rows("eval", "coref", "-m", GQA, "--data", path, "--limit", 3, "--kv-type", "f32", "--mode", mode)
        check(found, [hits(["Far away lies aeiou xyz. All is one. Soup. 1 and 1 is 2. It was:"], " aeiou xyz")] * 3)


def test_coref_draws_and_first_layer():
    data = data_folder()
    args = ["eval", "coref", "-m", GQA, "--limit", 4, "--budget", "0.3", *kv("oracle")]
    found = rows(*args)
    assert rows(*args)[0]["value"] == found[0]["value"]
    dense, sparse = found[0], rows(*args, "--set", "dense=0")[0]
    assert dense["bytes"]["kv"] > 1.5 * sparse["bytes"]["kv"], "the first of two layers reads everything"
    if data is None:
        pytest.skip("no folder of data: set BUTLER_DATA")
    published = rows("eval", "coref", "-m", GQA, "--limit", 2, "--data", data / "tokenbutler" / "mrcr_custom.json", "--kv-type", "f16")
    assert {r["metric"] for r in published} == {"accuracy", "coverage"}


def test_pairs_from_a_file(tmp_path):
    items = [{"ordered_kv_records": [["ab", "cd"], ["ef", "gh"]], "key": "ef", "value": "gh"}, {"ordered_kv_records": [["k", "v"]], "key": "k", "value": "v"}]
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(json.dumps(i) + "\n\n" for i in items))
    common = ["eval", "kv", "-m", GQA, "--data", path, "--kv-type", "f32"]
    check(rows(*common), [hits(["Remember these pairs.\nab: cd\nef: gh\n", "\nef:"], " gh"), hits(["Remember these pairs.\nk: v\n", "\nk:"], " v")])
    check(rows(*common, "--set", "template=json"), [hits(['JSON data:\n{"ab": "cd",\n "ef": "gh"}\n', '\nKey: "ef"\nValue: "'], "gh"),
                                                    hits(['JSON data:\n{"k": "v"}\n', '\nKey: "k"\nValue: "'], "v")])
    assert by(rows(*common, "--limit", 1), metric="accuracy")["n"] == 1


def test_lines_from_a_file(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"prompt": "line a-b: REGISTER_CONTENT is <4711>\n\nTell me line a-b. ", "random_idx": ["a-b", 0], "expected_number": 4711}))
    found = rows("eval", "lines", "-m", GQA, "--data", path, "--kv-type", "f32")
    check(found, [hits(["line a-b: REGISTER_CONTENT is <4711>\n\n", "Tell me line a-b.", " The <REGISTER_CONTENT> in line a-b is <"], "4711")])


def test_right_answers_are_counted(tmp_path):
    """What the model says after a prompt, asked for as the answer, is right: scores are not zero for want of any chance."""
    ask = {"prompt": "line a: REGISTER_CONTENT is <1>\nTell me.", "random_idx": ["a", 0]}
    prompt = ["line a: REGISTER_CONTENT is <1>\n", "Tell me.", " The <REGISTER_CONTENT> in line a is <"]
    table = log_probs(bos() + ids_of(prompt[0]) + [i for p in prompt[1:] for i in piece_of(p)])
    digits = [piece_of(str(d))[-1] for d in range(10)]
    number = int(np.argmax(table[-1][digits]))
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(json.dumps({**ask, "expected_number": n}) + "\n" for n in range(10)))
    found = rows("eval", "lines", "-m", GQA, "--data", path, "--kv-type", "f32")
    check(found, [hits(prompt, str(n)) for n in range(10)])
    assert by(found, metric="accuracy")["value"] <= 0.1 and number in range(10)


def test_made_items():
    """The same seed makes the same texts, another makes others; a passkey text has the length asked for."""
    for task, more in (("kv", ["--set", "pairs=6"]), ("kv", ["--set", "pairs=6,style=numbers"]), ("lines", ["--set", "lines=3"])):
        found = rows("eval", task, "-m", GQA, "--limit", 2, "--seed", 5, *more)
        assert by(found, metric="accuracy")["n"] == 2
    found = rows("eval", "turns", "-m", GQA, "--limit", 2, "--set", "lines=4,turns=3", *kv("full", "random"), "--budget", "0.5")
    assert [(r["metric"], r["n"]) for r in found] == [("first", 2), ("later", 4)] * 2
    found = rows("eval", "chain", "-m", GQA, "--limit", 2, "--set", "places=5,steps=3", *kv("full"))
    assert [r["metric"] for r in found] == ["accuracy", "coverage"] and found[0]["n"] == 2 and found[1]["n"] > 40
    found = rows("eval", "passkey", "-m", GQA, "--length", "180,220", "--limit", 6, "--set", "depths=3", *kv("full", "random"), "--budget", "0.3")
    assert [(r["length"], r["policy"]) for r in found] == [(180, "full"), (180, "random:budget=0.3"), (220, "full"), (220, "random:budget=0.3")]
    for row in found:
        grid = row["detail"]["grid"]
        assert [(c["length"], c["depth"], c["n"]) for c in grid] == [(row["length"], d, 2) for d in (0, 0.5, 1)]
        assert sum(c["right"] for c in grid) == pytest.approx(row["value"] * row["n"])
    assert by(rows("eval", "passkey", "-m", GQA, "--length", 200, "--limit", 2, "--data", TEXT), metric="accuracy")["data"].startswith("secret_garden.txt#")


def test_the_default_model_answers():
    """The prompts are such that a model which can look things up does so: dense far above chance, a window far below dense."""
    found = rows("eval", "passkey", "--length", 400, "--limit", 10, *kv("full", "streaming"), "--budget", "0.1")
    assert by(found, policy="full")["value"] >= 0.6
    assert by(found, policy="streaming:budget=0.1")["value"] <= by(found, policy="full")["value"] - 0.3


@pytest.mark.parametrize("budget", [20, 40])
def test_the_policy_cuts_after_it_has_seen_the_question(budget):
    """A window of one query keeps what the last token of the question attends to: behind a dense layer, what the oracle reads for it."""
    snap, oracle = f"snapkv:window=1,kernel=1,group=mean,recent=1,budget={budget}", f"oracle:group=mean,recent=1,sinks=0,budget={budget}"
    cut, best = rows("eval", "heat", "-m", GQA, "--kv-type", "f32", *kv(snap, oracle))
    assert sum(k > 0 for k in cut["kept"]) >= budget and cut["kept"] == best["kept"]
    after = rows("eval", "heat", "-m", GQA, "--kv-type", "f32", "--set", "ask=after", *kv(snap))[0]["kept"]
    assert after != cut["kept"], "the document alone was cut, by its own last token"


@pytest.mark.parametrize("ask", ["before", "after"])
def test_a_budget_that_holds_everything_changes_nothing(ask):
    """Also after the last token of the prompt was taken out of the cache and decoded again."""
    policies = ["h2o", "snapkv", "tova", "streaming", "scissorhands", "knorm", "h2o+vatp", "quest:dense=0"]
    found = rows("eval", "passkey", "-m", GQA, "--length", 180, "--limit", 2, "--kv-type", "f32", "--set", f"ask={ask}", "--budget", "1", *kv(*policies))
    assert len(found) == len(policies)
    assert all(row["kl"] < 1e-5 and row["agreement"] == 1 and row["found"] in (1, None) for row in found)


def test_chat_template(tmp_path):
    model = with_values(tmp_path / "chat.gguf", chat_template="{{ 'U ' + messages[0].content + ' End\n' }}{% if add_generation_prompt %}{{ 'A\n' }}{% endif %}")
    path = tmp_path / "pairs.jsonl"
    path.write_text(json.dumps({"ordered_kv_records": [["ab", "cd"], ["ef", "gh"]], "key": "ef", "value": "gh"}))
    common = ["eval", "kv", "-m", model, "--data", path, "--kv-type", "f32"]
    body = "Remember these pairs.\nab: cd\nef: gh\n"
    prompt = ["U ", body, "\nWhich value belongs to ef?", " End\nA\n", "ef:"]
    tokens = len(bos(model)) + sum(len(piece_of(text, model)) for text in prompt + [" gh"])
    chat, plain = rows(*common), rows(*common, "--set", "chat=off")
    check(plain, [hits([body, "\nef:"], " gh")])
    assert abs(chat[0]["length"] - tokens) <= 1 and plain[0]["length"] < tokens - 20
    assert rows(*common, "--set", "chat=on")[0]["length"] == chat[0]["length"]
    refuses(USAGE, "eval", "kv", "-m", GQA, "--set", "chat=on", says=["chat", "template"])
    refuses(USAGE, "eval", "kv", "-m", GQA, "--set", "ask=never", says=["ask", "never", "before"])


def test_compared_with_dense_attention():
    """With a dense first layer the second's queries and keys are those of dense attention: the oracle finds its largest, all of them."""
    args = ["eval", "ppl", "-m", GQA, "--data", TEXT, "--length", 120, "--limit", 4, "--kv-type", "f32", "--mode", "prefill", "--set", "prompt=40"]
    found = rows(*args, *kv("full", "oracle:share=query,dense=1,budget=0.3", "random:share=query,dense=1,budget=0.3", "random:dense=2,budget=0.3"))
    full, oracle, chance, dense = (row for row in found if row["metric"] == "ppl")
    assert full["kl"] is None and full["found"] is None and "difference" not in full
    assert oracle["found"] == 1 and 0.2 < chance["found"] < 0.45
    assert oracle["curve"] and all(part["found"] in (1, None) for part in oracle["curve"])
    assert dense["kl"] < 1e-6 and dense["agreement"] == 1 and dense["difference"]["value"] == pytest.approx(0, abs=0.05)
    assert chance["kl"] > oracle["kl"] > 0 and chance["agreement"] < 1
    assert "kl" in found[0] and rows(*args, "--set", "compare=0", *kv("random:budget=0.3"))[0]["kl"] is None


def test_paired_differences(tmp_path):
    """The difference of two means, with Student's interval of the items' own differences; the journal has their values."""
    path = tmp_path / "rows.jsonl"
    found = rows("eval", "coref", "-m", GQA, "--limit", 30, "-o", path, *kv("random:budget=0.2", "full"))
    row = by(found, policy="random:budget=0.2", metric="coverage")
    values = {p: np.array([i["values"] for i in sorted(journal(path), key=lambda i: i["item"]) if i["policy"] == p]) for p in ("full", "random:budget=0.2")}
    ours, theirs = values["random:budget=0.2"], values["full"]
    def share(v, keep):
        return v[keep, 1].sum() / v[keep, 2].sum()
    all_, n = np.arange(30), 30
    whole = share(ours, all_) - share(theirs, all_)
    pseudo = [n * whole - (n - 1) * (share(ours, np.delete(all_, i)) - share(theirs, np.delete(all_, i))) for i in range(n)]
    half = 2.045230 * np.std(pseudo, ddof=1) / math.sqrt(n)
    assert row["difference"]["to"] == "full" and row["difference"]["value"] == pytest.approx(whole, abs=1e-8)
    assert row["difference"]["ci"] == pytest.approx([whole - half, whole + half], abs=1e-6)
    assert row["items"] == 30 and row["n"] == ours[:, 2].sum()
    Path(f"{path}.items").unlink()
    again = butler("eval", "coref", "-m", GQA, "--limit", 30, "-o", path, "--json", *kv("full", "random:budget=0.3"))
    assert "its items are gone" in again.stderr and all("difference" not in json.loads(line) for line in again.stdout.splitlines())


# --------------------------------------------------------------------------------------------------- recall

def recall(*args):
    return rows("eval", "recall", "-m", GQA, "--data", TEXT, "--length", 160, "--limit", 3, "--budget", "0.15,0.5", *args)


RECALLED = ["full", "oracle:share=query", "oracle", "oracle:group=mean", *POLICIES]


def test_what_reads_all_is_not_certain():
    """Wilson's interval of as many texts, none of which lost anything."""
    row = by(recall("--set", "steps=4", *kv("full")), metric="recall")
    assert row["value"] == 1 and row["ci"] == pytest.approx(wilson(3, 3), abs=1e-6)


@pytest.fixture(scope="module")
def recalled():
    return recall("--set", "steps=12", *kv(*RECALLED))


@pytest.fixture(scope="module")
def uncharged():
    """Every policy reads as many tokens as its budget says."""
    return recall("--set", "steps=12,charge=0", *kv(*RECALLED))


def values(found, metric, budget=None):
    return {r["policy"]: r["value"] for r in found if r["metric"] == metric and budget in (None, r["budget"])}


@pytest.mark.parametrize("metric", ["recall", "mass", "top_half_accuracy"])
def test_no_policy_beats_the_oracle(recalled, uncharged, metric):
    for budget in (0.15, 0.5):
        found = values(uncharged, metric, budget)
        best = found.pop(f"oracle:share=query,budget={budget}")
        assert len(found) == len(POLICIES) + 2 - ("oracle" in POLICIES)
        if metric != "mass":
            assert best == pytest.approx(1)
        assert all(value <= best + 1e-6 for value in found.values())
    assert values(recalled, metric, 1)["full"] == pytest.approx(0.5 if metric == "top_half_accuracy" else 1, abs=5e-3)


def test_best_shared_selection(recalled):
    """Of all selections that a group of query heads shares, the one by the sum of their weights holds most mass."""
    for budget in (0.15, 0.5):
        mass = values(recalled, "mass", budget)
        best = mass[f"oracle:group=mean,budget={budget}"]
        assert all(value <= best + 1e-6 for policy, value in mass.items() if "share=query" not in policy and not policy.startswith("tova"))


def test_random_is_near_its_expected_value(recalled):
    for budget in (0.15, 0.5):
        for metric in ("recall", "mass"):
            row = by(recalled, policy=f"random:budget={budget}", metric=metric)
            n = row["n"] * 2 * 4 * 160 * budget  # tokens chosen, over layers and heads; the newest is always among them
            spread = 4 * math.sqrt(budget * (1 - budget) / (n if metric == "recall" else row["n"]))
            assert abs(row["value"] - budget) < spread + 1 / (160 * budget)


def test_bytes_are_equal(recalled):
    """Nobody reads more than the budget pays for; three pages and what is known of all, or one token, is the least."""
    for row in recalled:
        name = row["policy"].split(":")[0]
        if row["metric"] != "recall" or name in ("full", "oracle") or (row["budget"] < 0.5 and name in ("h2o+vatp", "scissorhands", "snapkv")):
            continue  # the last: what they keep in any case is most of so few tokens
        page = 16 / 150 if name in ("quest", "pagestats") else 0
        # FIER's scales are made anew from the keys of a group of 32 as it fills: bytes of the append, not of the choice.
        append = 0.5 * 32 / 150 if name == "fier" else 0.02
        paid = max(row["budget"], 3 * page + 1 / 16 if page else 0)
        assert row["kv_read"] <= paid + max(page, 1 / 150) + append, row["policy"]


def test_unshared_selections_are_at_equal_bytes(recalled):
    """With share=query each of the two query heads of a KV head reads tokens of its own: half as many."""
    for budget in (0.15, 0.5):
        row, shared = (by(recalled, policy=f"oracle{share}budget={budget}", metric="recall") for share in (":share=query,", ":"))
        assert row["bytes"]["kv"] <= shared["bytes"]["kv"] <= budget * row["bytes"]["full_kv"] * 1.05
        assert row["value"] == pytest.approx(0.5, abs=0.03), "half of the largest, all of them right"


def test_subgroups_are_at_equal_bytes():
    """Three query heads on a KV head: subgroups of two and of one are two lists, each of half as many tokens."""
    found = rows("eval", "recall", "-m", ROOT / "tests" / "data" / "models" / "qwen2.gguf", "--data", TEXT, "--length", 160, "--budget", "0.5", *kv("oracle", "oracle:share=2"))
    shared, subgroups = (by(found, policy=f"oracle{share}budget=0.5", metric="recall") for share in (":", ":share=2,"))
    assert 0.95 * shared["bytes"]["kv"] <= subgroups["bytes"]["kv"] <= shared["bytes"]["kv"]


def test_the_charge_can_be_switched_off(recalled, uncharged):
    name = "fier:dense=0,budget=0.15"
    charged, free = (by(found, policy=name, metric="recall") for found in (recalled, uncharged))
    assert free["bytes"]["kv"] == pytest.approx(0.15 * free["bytes"]["full_kv"], rel=0.05)
    assert charged["bytes"]["kv"] < 0.8 * free["bytes"]["kv"] and charged["value"] < free["value"]


def test_two_stages_are_at_equal_bytes():
    """scan=: fewer bytes of one-bit keys leave more tokens to read."""
    found = rows("eval", "recall", "-m", GQA, "--data", TEXT, "--length", 480, "--limit", 1, "--budget", "0.2", "--set", "steps=8",
                 *kv("fier:dense=0", "fier:dense=0,scan=1"))
    one, two = (by(found, policy=f"fier:dense=0{scan},budget=0.2", metric="recall") for scan in ("", ",scan=1"))
    assert two["bytes"]["metric"] < 0.9 * one["bytes"]["metric"] and two["bytes"]["kv"] > 1.1 * one["bytes"]["kv"]
    append = 0.5 * 32 / 480  # scales are made anew as a group fills
    assert 0.17 < one["kv_read"] - append < 0.21 and 0.17 < two["kv_read"] - append < 0.21


def test_dense_layers_are_in_no_mean():
    """The second layer alone, whose queries do not depend on the first's selection, has the same recall and reads the same share."""
    policies = kv("oracle", "streaming", "full")
    every, second = (recall("--set", f"steps=12,dense={n}", *policies) for n in (0, 1))
    for row in second:
        if row["metric"] == "recall":
            layers = by(every, policy=row["policy"], metric="recall")["detail"]["layers"]
            assert row["detail"]["layers"][0] == [None] * 4 and row["detail"]["layers"][1] == pytest.approx(layers[1])
            assert row["value"] == pytest.approx(np.mean(layers[1])) == pytest.approx(row["found"])
            if row["policy"].startswith("streaming"):
                assert row["kv_read"] <= row["budget"] + 1 / 150


def test_what_the_first_predictor_reads_is_charged():
    model = ROOT / "models" / "butler-default.gguf"
    for budget in (0.1, 0.5):
        row = by(rows("eval", "recall", "-m", model, "--data", TEXT, "--length", 600, "--limit", 1, "--set", "steps=4", *kv(f"tokenbutler:budget={budget}")),
                 metric="recall")
        assert row["kv_read"] <= budget + 0.03, "its own attention too"


def test_rows_name_the_commit_and_the_predictor(tmp_path):
    """The predictor by its file: another one with the same numbers of parameters and tokens is another measurement."""
    source = ROOT / "models" / "butler-default.tokenbutler2.gguf"
    other = tmp_path / "other.gguf"
    content = bytearray(source.read_bytes())
    content[-5] ^= 1  # of a weight
    other.write_bytes(content)

    def run(predictor):
        row = rows("eval", "ppl", "-m", ROOT / "models" / "butler-default.gguf", "--data", TEXT, "--length", 32, "--limit", 1,
                   "--predictor", predictor, *kv("tokenbutler2:budget=16,sinks=4,recent=0"))[0]
        assert re.fullmatch(r"([0-9a-f]{12}|unknown)(\+changes)?", row["commit"])
        return re.search(r",predictor=([0-9a-f]{16})$", row["config"])[1]
    assert run(source) == run(source) != run(other)


def test_recall_groups_that_fit_the_memory(tmp_path):
    """Where the memory holds one policy's sessions only, policies run one after the other, with the same rows."""
    def run(memory):
        path = tmp_path / f"rows{memory}.jsonl"
        found = steady(rows("eval", "recall", "--data", ROOT / "models" / "long_text.txt", "--length", 400, "--limit", 2, "--set", f"steps=2,memory={memory}", "-t", 1, "-o", path,
                            *kv("oracle", "h2o", "streaming"), "--budget", "0.2"))
        return found, [json.loads(line)["policy"].split(":")[0] for line in Path(f"{path}.items").read_text().splitlines()]
    small, large = run(1), run(1000)
    assert small[0] == large[0]
    assert small[1] == ["oracle"] * 2 + ["h2o"] * 2 + ["streaming"] * 2 and large[1] == ["oracle", "h2o", "streaming"] * 2


def test_recall_details(recalled):
    for row in recalled:
        if row["metric"] == "recall":
            layers, mass = np.array(row["detail"]["layers"]), np.array(row["detail"]["mass"])
            assert layers.shape == mass.shape == (2, 4) and layers.mean() == pytest.approx(row["value"], abs=1e-6)
            assert mass.mean() == pytest.approx(by(recalled, policy=row["policy"], metric="mass")["value"], abs=1e-6)
            if row["page_hit"] is not None:
                assert row["page_hit"] + row["reuse"] == pytest.approx(1)
            assert row["found"] == pytest.approx(row["value"], abs=1e-6)


def test_consensus_and_heat():
    row, = rows("eval", "consensus", "-m", GQA, "--data", TEXT, "--length", 80, "--limit", 3, "--kv-type", "f32")
    layers = np.array(row["detail"]["layers"])
    assert row["metric"] == "correlation" and layers.shape == (2, 4, 4) and row["ci"][0] <= row["value"] <= row["ci"][1]
    assert np.allclose(layers, layers.transpose(0, 2, 1)) and np.allclose(np.einsum("lii->li", layers), 1) and np.abs(layers).max() <= 1 + 1e-6
    llama, text, inside, between = Llama(GQA), ids_of(TEXT.read_text()), [], []
    for i in range(3):  # texts spread evenly, from the first token to the last
        at = (len(text) - 79) * i // 2
        ids = bos() + text[at:at + 79]
        logits, dots = llama.forward(ids)
        if i == 0:
            assert np.allclose(log_softmax(logits), log_probs(ids), atol=1e-3)  # the reference is the same model
        matrix = np.corrcoef(dots[:, :, -1].reshape(8, 80))
        between.append(matrix[np.triu_indices(8, 1)].mean())
        inside.append([matrix[:4, :4], matrix[4:, 4:]])
    assert row["value"] == pytest.approx(np.mean(between), abs=1e-5) and np.allclose(layers, np.mean(inside, 0), atol=1e-5)
    refuses(USAGE, "eval", "consensus", "-m", GQA, "--data", TEXT, "--length", 80, *kv("h2o"), says=["full", "h2o"])
    found = rows("eval", "heat", "--set", "dense=0", *kv("full", "streaming"), "--budget", "0.25")
    for row in found:
        assert len(row["tokens"]) == len(row["kept"]) and all(0 <= k <= 1 + 1e-9 for k in row["kept"])
        answer = "".join(row["tokens"][i] for i in row["answer"])
        assert row["answer"] and "".join(row["tokens"]).count(answer) >= 1
    assert min(found[0]["kept"]) == pytest.approx(1)
    n = len(found[1]["tokens"])
    kept = np.zeros(n)  # what StreamingLLM reads is known beforehand: four sinks, and the last tokens
    kept[:4] = kept[4 - half_up(0.25 * n):] = 1
    assert np.allclose(found[1]["kept"], kept)


def test_sparsity_and_norms():
    """The definitions of H2O (weights below 1 % of their row's largest) and VATP (accumulated attention and |v|), over the reference's attention."""
    n, length = 2, 80
    common = ("-m", GQA, "--data", TEXT, "--length", length, "--limit", n, "--kv-type", "f32")
    found = {r["metric"]: r for task in ("sparsity", "norms") for r in rows("eval", task, *common)}
    llama, text, want = Llama(GQA), ids_of(TEXT.read_text()), {}
    def add(name, value):
        want[name] = want.get(name, 0) + np.array(value) / n
    for i in range(n):
        at = (len(text) - length + 1) * i // (n - 1)
        llama.forward(bos() + text[at:at + length - 1])
        weights, l1 = np.array(llama.attention), np.abs(llama.values).sum(-1)
        add("sparsity", np.mean([(weights[:, :, t, :t + 1] < 0.01 * weights[:, :, t].max(-1, keepdims=True)).mean(-1) for t in range(length)], 0))
        sums = weights.sum(2)
        ranked = np.cumsum(np.sort(sums, -1)[..., ::-1], -1)
        add("held", np.stack([ranked[..., max(half_up(top * length), 1) - 1] / ranked[..., -1] for top in (0.01, 0.05, 0.1, 0.2, 0.5)], -1).mean(1))
        grouped = sums.reshape(2, 2, 2, length).sum(2)
        order = np.argsort(-grouped, -1)
        ratio = l1 / l1.mean(-1, keepdims=True)
        add("first_norm", ratio[..., 0])
        add("top_norm", np.take_along_axis(ratio, order[..., :half_up(0.01 * length)], -1).mean(-1))
        ranks = [(y[..., None, :] < y[..., None]).sum(-1) + (y[..., None, :] == y[..., None]).sum(-1) / 2 for y in (grouped.round(9), l1.round(9))]
        add("rank_correlation", [[np.corrcoef(ranks[0][l, h], ranks[1][l, h])[0, 1] for h in range(2)] for l in range(2)])
        if i == 0:
            first = {l: (grouped[l].mean(0), l1[l].mean(0)) for l in range(2)}
    assert 0.01 < want["sparsity"].mean() < 0.99
    for metric in ("sparsity", "first_norm", "top_norm", "rank_correlation"):
        row = found[metric]
        assert np.allclose(row["detail"]["heads"], want[metric], atol=1e-3), metric
        assert row["value"] == pytest.approx(want[metric].mean(), abs=1e-4) and row["ci"][0] <= row["value"] <= row["ci"][1] and row["n"] == n
    assert np.allclose(found["top_tenth"]["detail"]["held"], want["held"], atol=1e-5)
    assert found["top_tenth"]["value"] == pytest.approx(want["held"][:, 2].mean(), abs=1e-5)
    for shown in found["first_norm"]["detail"]["shown"]:
        attention, norms = first[shown["layer"]]
        assert np.allclose(shown["attention"], attention, atol=1e-4) and np.allclose(shown["norm"], norms, rtol=1e-4)
    for task in ("sparsity", "norms"):
        refuses(USAGE, "eval", task, *common, *kv("h2o"), says=["full", "h2o", task])


# --------------------------------------------------------------------------------------------------- bad input

RECORD = {"ordered_kv_records": [["a", "b"]], "key": "a", "value": "b"}
LINE = {"prompt": "x", "random_idx": ["a", 1], "expected_number": 12}
POOLS = {"location_names": ["a"], "loc_intro_tieback_list": [{"location_intro": "a", "tieback_question": "b"}], "philosophy_statements": ["a"],
         "food_descriptions": ["a"], "math_problems": ["a"]}


def without(record, field):
    return {k: v for k, v in record.items() if k != field}


@pytest.mark.parametrize("task,content,says", [
    ("ppl", "", ["empty"]), ("ppl", b"ok\nno\xff\n", [":2", "UTF-8"]), ("ppl", b"\x1f\x8b\x08 packed", ["compressed"]), ("recall", "short", ["tokens"]),
    ("kv", [RECORD, "{broken"], [":2", "JSON"]), ("kv", [RECORD, "[1]"], [":2", "object"]), ("kv", "\n\n", ["no items"]),
    ("kv", [RECORD, without(RECORD, "key")], [":2", '"key"', "missing"]), ("kv", [without(RECORD, "ordered_kv_records")], [":1", "ordered_kv_records"]),
    ("kv", [{**RECORD, "ordered_kv_records": [["a"]]}], [":1", "ordered_kv_records", "entry 0"]), ("kv", [{**RECORD, "key": "z"}], [":1", '"key"']),
    ("kv", [{**RECORD, "value": 7}], [":1", '"value"', "string"]), ("kv", [{**RECORD, "value": ""}], [":1", '"value"', "empty"]),
    ("lines", [without(LINE, "prompt")], [":1", '"prompt"']), ("lines", [LINE, {**LINE, "expected_number": "x"}], [":2", "expected_number"]),
    ("lines", [{**LINE, "random_idx": []}], [":1", "random_idx"]), ("lines", [{**LINE, "random_idx": [3]}], [":1", "random_idx"]),
    ("coref", "{", [":1", "JSON"]), ("coref", [without(POOLS, "math_problems")], ["math_problems", "missing"]),
    ("coref", [{**POOLS, "location_names": []}], ["location_names"]), ("coref", [{**POOLS, "food_descriptions": [3]}], ["food_descriptions", "entry 0"]),
    ("coref", [{**POOLS, "loc_intro_tieback_list": [{"location_intro": "a"}]}], ["loc_intro_tieback_list", "entry 0", "tieback_question"]),
])
def test_bad_data_is_named(tmp_path, task, content, says):
    path = tmp_path / "data.bad"
    if isinstance(content, list):
        content = "\n".join(c if isinstance(c, str) else json.dumps(c) for c in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    output = tmp_path / "rows.jsonl"
    result = butler("eval", task, "-m", GQA, "--data", path, *(["--length", 64] if task in ("ppl", "recall") else []), "-o", output,
                    expect=USAGE if "tokens" in says else FAILED)
    for word in ["data.bad", *says]:
        assert word in result.stderr
    assert result.stdout == "" and output.read_text() == ""


def test_flags():
    refuses(USAGE, "eval", says=["usage"])
    refuses(USAGE, "eval", "dance", "-m", GQA, says=["dance", "ppl", "recall"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--mode", "fast", says=["--mode", "fast"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--budget", "0", says=["--budget"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--budget", "0.1,,2", says=["--budget"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--set", "depth=3", says=["--set", "depth=3", "depths"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--set", "depths=x", says=["depths", "x"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, "--length", "20", says=["--length"])
    refuses(USAGE, "eval", "ppl", "-m", GQA, says=["--data"])
    refuses(USAGE, "eval", "kv", "-m", GQA, "--length", "99", says=["--length", "pairs"])
    refuses(USAGE, "eval", "turns", "-m", GQA, "--length", "99", says=["--length", "lines"])
    refuses(USAGE, "eval", "turns", "-m", GQA, "--set", "lines=3,turns=4", says=["turns", "4", "3 lines"])
    refuses(USAGE, "eval", "chain", "-m", GQA, "--set", "places=3,steps=3", says=["steps", "3 places"])
    refuses(USAGE, "eval", "passkey", "-m", GQA, *kv("qest"), says=["qest"])
    refuses(FAILED, "eval", "ppl", "-m", GQA, "--data", "absent.txt", says=["absent.txt"])


def test_the_list_of_tasks():
    """What each needs, for people and for programs; it loads no model."""
    listed = rows("eval", "list", env={**os.environ, "XDG_CACHE_HOME": "/nosuch"})
    shown = butler("eval", "list").stdout
    assert {"ppl", "coref", "passkey", "kv", "lines", "turns", "chain", "recall", "consensus", "sparsity", "norms", "heat", "mc", "longbench", "ruler"} <= {row["task"] for row in listed}
    for row in listed:
        assert re.search(rf"^{row['task']} +{re.escape(row['summary'])}$", shown, re.M) and row["data"] in shown and row["work"] in shown
        assert row["data"] and row["work"] and all(f"--set {key}={value}:" in shown for key, value in row["options"].items())
    assert next(row for row in listed if row["task"] == "ruler")["length"] == 4096
    refuses(USAGE, "eval", "lists", says=["lists", "ruler"])


def test_prompts_are_kept_in_a_folder(tmp_path):
    """Other policies measured later find the prompts, and have the values that they have alone."""
    task = ["eval", "passkey", "-m", GQA, "--length", "600", "--limit", "2", "-t", "2", "--set", "depths=2"]
    later = ["--kv", "fier:budget=64,dense=0", "--kv", "snapkv:budget=64", "--kv", "h2o:budget=64"]
    rows(*task, "--kv", "full", "--cache", tmp_path)
    files = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.kv")}
    assert len(files) >= 4
    kept, alone = (steady(rows(*task, *later, *flags)) for flags in (["--cache", tmp_path], []))
    assert kept == alone
    assert all(path.stat().st_mtime_ns > used for path, used in files.items())


QWEN = Path(os.environ.get("BUTLER_MODELS", ROOT / "models")) / "qwen2.5-coder-0.5b.gguf"


@pytest.mark.skipif(not QWEN.exists(), reason="models/qwen2.5-coder-0.5b.gguf is absent (./setup --model qwen2.5-coder-0.5b)")
def test_later_questions_need_what_the_first_did_not():
    """A real model finds every line with full attention; what snapkv keeps for the first question does not answer the others."""
    found = rows("eval", "turns", "-m", QWEN, "--limit", 1, "--set", "lines=16,turns=4,compare=0", *kv("full", "snapkv:window=8"), "--budget", "0.15")
    full, snapkv = ({r["metric"]: r["value"] for r in found if r["policy"].startswith(name)} for name in ("full", "snapkv"))
    assert full == {"first": 1, "later": 1} and snapkv["later"] <= 1 / 3
    found = rows("eval", "chain", "-m", QWEN, "--limit", 1, "--set", "places=12,steps=6,compare=0", *kv("full"))
    assert by(found, metric="coverage")["value"] > 0.8
