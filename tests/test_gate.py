"""`butler gate`: the verdict follows from the rows by the rules that are written down, for every candidate; a stopped run goes on."""
import json
import re
import shutil
import signal
import subprocess
import time

import pytest

from cli import BUTLER, FAILED, GQA, ROOT, USAGE, butler, refuses, rows
from test_serve import Server, pytestmark as serve_built  # skips where butler is built without libevent

MODEL = ROOT / "models" / "butler-default.gguf"
SETS = ("niah_single_2", "niah_multikey_2")
POLICIES = ("fier:budget=256", "random:budget=32", "quest:budget=100000")
FLAGS = ("-m", MODEL, "--length", "600,1024", "--limit", 2, "-t", 2, *[word for p in POLICIES for word in ("--kv", p)])


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """The verdict of a run, the rows it rests on, and its files."""
    path = tmp_path_factory.mktemp("gate") / "verdict.json"
    printed, = rows("gate", *FLAGS, "-o", path)
    assert printed == json.loads(path.read_text())
    return printed, lines(path.with_suffix(".jsonl")), path


def judge(found, length, policy):
    """The rules of docs/gate.md, written once more: whether a policy passes, and the number of reasons against it."""
    def one(task, metric, of, subset=None):
        match = [r for r in found if r["task"] == task and r["metric"] == metric and r["policy"] == of and r["length"] == length and r.get("subset") == subset]
        assert len(match) <= 1
        return match[0] if match else None

    against, testable = 0, 0
    for name in SETS:
        dense, own = one("ruler", "string_match", "full", name)["value"], one("ruler", "string_match", policy, name)["value"]
        testable += dense >= 0.5
        against += dense >= 0.5 and own < dense
    against += testable == 0
    against += one("ppl", "ppl", policy)["value"] > 1.005 * one("ppl", "ppl", "full")["value"]
    against += one("speed", "speed_up", policy)["ci"][0] <= 1
    return against


def test_the_verdict_follows_from_the_rows(judged):
    verdict, found, _ = judged
    assert [(c["length"], c["policy"]) for c in verdict["candidates"]] == [(length, p) for length in (600, 1024) for p in POLICIES]
    for c in verdict["candidates"]:
        against = judge(found, c["length"], c["policy"])
        assert (c["passes"], len(c["because"])) == (against == 0, against), c
    assert {c["passes"] for c in verdict["candidates"] if c["policy"].startswith("random")} == {False}
    for entry in verdict["on"]:
        passing = [c for c in verdict["candidates"] if c["length"] == entry["length"] and c["passes"]]
        assert entry["policy"] == (min(passing, key=lambda c: c["kv_read"])["policy"] if passing else "full")


def test_what_covers_the_text_changes_nothing(judged):
    """quest with a budget beyond the text is dense attention: equal needles and perplexity, so it can fail for its speed alone."""
    for c in judged[0]["candidates"]:
        if c["policy"].startswith("quest"):
            assert c["ppl"]["value"] == pytest.approx(c["ppl"]["dense"], rel=1e-6)
            assert all(c[name]["value"] == c[name]["dense"] for name in SETS)
            assert all("faster" in reason or "testable" in reason for reason in c["because"])


def test_verdicts_name_what_they_hold_for(judged):
    verdict, found, _ = judged
    assert verdict["fingerprint"] == found[0]["fingerprint"] and verdict["kv_type"] == "f16"
    assert re.search(r", 2 threads$", verdict["machine"])
    assert verdict["rules"] == {"needles_floor": 0.5, "perplexity_above": 0.005, "speed_up_above": 1}
    assert verdict["commit"] == found[-1]["commit"]


def test_without_flags(tmp_path):
    """Lengths that the text has, and budgets of at most half of them."""
    path = tmp_path / "verdict.json"
    said = butler("gate", "-m", MODEL, "--limit", 1, "-t", 1, "-o", path).stderr
    verdict = json.loads(path.read_text())
    assert "too few for the perplexity at 16384; --data FILE" in said and [entry["length"] for entry in verdict["on"]] == [4096]
    policies = [c["policy"] for c in verdict["candidates"]]
    assert policies == ["fier:budget=1024,levels=means", "fier:budget=2048,levels=means", "quest:budget=1024", "quest:budget=2048",
                        "tinyserve:budget=1024", "tinyserve:budget=2048", "tokenbutler2:budget=1024,on_top=0,sinks=16,recent=64", "tokenbutler2:budget=1024", "tokenbutler2:budget=2048"]
    assert all("ppl" in c and "speed_up" in c for c in verdict["candidates"])


def test_every_length_has_its_perplexity(tmp_path):
    text = tmp_path / "short.txt"
    text.write_text("It was a small house, and nobody had lived in it for years. " * 40)
    for flags in (("--length", 1024), ("--length", "300,1024"), ()):
        refuses(USAGE, "gate", "-m", MODEL, "--data", text, "--limit", 1, "-o", tmp_path / "verdict.json", *flags, says=["short.txt", "too few", "--data"])
    assert [p.name for p in tmp_path.iterdir()] == ["short.txt"], "nothing was measured"


def test_a_second_run_measures_nothing(judged, tmp_path):
    verdict, _, path = judged
    before = path.with_suffix(".jsonl").read_text()
    again, = rows("gate", *FLAGS, "-o", path)
    assert path.with_suffix(".jsonl").read_text() == before
    assert again["candidates"] == verdict["candidates"]


def test_each_run_is_judged_by_its_own_rows(tmp_path):
    """Two runs into one file, with other items and another text: each beside dense attention on the same ones."""
    path, long = tmp_path / "verdict.json", (ROOT / "models" / "long_text.txt").read_text()
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text(long[:6000])
    second.write_text(long[-5000:])
    flags = ("-m", MODEL, "--length", 300, "-t", 1, "-o", path)
    one, = rows("gate", *flags, "--limit", 3, "--data", first, "--kv", "fier:budget=64")
    two, = rows("gate", *flags, "--limit", 1, "--data", second, "--kv", "quest:budget=100000")
    only, = two["candidates"]
    assert only["ppl"]["value"] == only["ppl"]["dense"] and only["niah_single_2"]["n"] == 1
    assert all(only[name]["value"] == only[name]["dense"] for name in SETS)
    again, = rows("gate", *flags, "--limit", 3, "--data", first, "--kv", "fier:budget=64")
    assert again["candidates"] == one["candidates"]


def test_a_model_of_few_positions(tmp_path):
    """With learned positions a context cannot be longer than in training."""
    refuses(USAGE, "gate", "-m", ROOT / "tests" / "data" / "models" / "gpt2.gguf", "-o", tmp_path / "v.json", says=["257", "trained for 64"])
    row = rows("eval", "speed", "-m", ROOT / "tests" / "data" / "models" / "gpt2.gguf", "--length", 64, "--kv", "full")[0]
    assert row["length"] == 64 and row["value"] > 0
    refuses(USAGE, "eval", "speed", "-m", MODEL, "--length", 34, says=["--length", "more than 34"])


def test_without_a_model(tmp_path):
    shutil.copy(BUTLER, tmp_path / "butler")
    done = subprocess.run([tmp_path / "butler", "gate"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == USAGE and "-m FILE" in done.stderr


def test_a_stopped_run_goes_on(tmp_path):
    path, flags = tmp_path / "verdict.json", FLAGS[:-2 * len(POLICIES) + 2]  # of one policy
    process = subprocess.Popen([BUTLER, "gate", *map(str, flags), "-o", path], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    journal = tmp_path / "verdict.jsonl"
    for _ in range(600):
        if journal.exists() and journal.stat().st_size or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=120)
    assert process.returncode == FAILED and "the same command goes on" in said and not path.exists()
    first = lines(journal)
    butler("gate", *flags, "-o", path)
    assert lines(journal)[:len(first)] == first and path.exists()


def test_beside_the_model_without_o(tmp_path):
    model = tmp_path / "own.gguf"
    shutil.copy(MODEL, model)
    butler("gate", "-m", model, "--length", 300, "--limit", 1, "--kv", "fier:budget=64")
    assert {p.name for p in tmp_path.iterdir()} == {"own.gguf", "own.gate.json", "own.gate.jsonl", "own.gate.jsonl.items"}
    assert "fier:budget=64" in butler("info", model).stdout
    gate = rows("info", model)[0]["gate"]
    assert gate["candidates"][0]["policy"] == "fier:budget=64"
    # of another file: a note, and no verdict
    (tmp_path / "own.gate.json").write_text(json.dumps({**gate, "fingerprint": "0" * 16}))
    other = butler("info", model)
    assert "fier:budget=64" not in other.stdout and "another model file" in other.stderr
    (tmp_path / "own.gate.json").write_text("{")
    assert "own.gate.json: not used" in butler("info", model).stderr


@pytest.fixture
def allowed(judged, tmp_path):
    """A model whose gate allows fier from 300 tokens on, with two threads."""
    model = tmp_path / "own.gguf"
    shutil.copy(MODEL, model)
    (tmp_path / "own.gate.json").write_text(json.dumps({**judged[0], "on": [{"length": 200, "policy": "full"}, {"length": 300, "policy": "fier:budget=64"}]}))
    return model


def test_auto_is_what_the_gate_allows(allowed):
    def policy(n_words, *flags, n=4):
        text = "one two " * (n_words // 2)
        found = rows("run", "-m", allowed, "-p", text, "-n", n, "-t", 2, *flags)
        return found[-1]["stats"]["policy"] if "policy" in found[-1]["stats"] else found[0]["policy"]
    assert policy(40) == policy(220) == "full"
    assert policy(400) == "fier:budget=64" == policy(220, n=200), "by the length that the text can come to have"
    assert policy(400, "-t", 1) == "full", "timed with another number of threads"
    assert policy(400, "--kv-type", "q8_0") == "full"
    assert policy(400, "--kv", "quest:budget=64") == "quest:budget=64"
    said = butler("run", "-m", allowed, "-p", "one two " * 200, "-n", 4, "-t", 2).stderr
    assert "--kv auto: fier:budget=64" in said


def test_auto_needs_the_predictor_of_the_gate(judged, tmp_path):
    model, text = tmp_path / "own.gguf", "one two " * 300
    shutil.copy(MODEL, model)
    shutil.copy(MODEL.with_name("butler-default.tokenbutler2.gguf"), tmp_path / "own.tokenbutler2.gguf")
    own, = rows("info", model)[0]["predictors"]
    for predictor, policy in ((own["fingerprint"], "tokenbutler2:budget=64"), ("0" * 16, "full"), (None, "full")):
        on = {"length": 300, "policy": "tokenbutler2:budget=64", **({"predictor": predictor} if predictor else {})}
        (tmp_path / "own.gate.json").write_text(json.dumps({**judged[0], "on": [on]}))
        said = butler("run", "-m", model, "-p", text, "-n", 2, "-t", 2).stderr
        assert ("--kv auto: tokenbutler2" in said) == (policy != "full"), said


def test_wrong_verdicts_are_not_used(judged, tmp_path):
    model = tmp_path / "own.gguf"
    shutil.copy(MODEL, model)
    for change, says in (({"on": [{"length": 300}]}, "its policy"), ({"on": [{"length": "300", "policy": "full"}]}, "lengths"),
                         ({"on": [{"length": 400, "policy": "full"}, {"length": 300, "policy": "full"}]}, "shorter ones first"),
                         ({"on": {}}, "no verdict"), ({"fingerprint": 3}, "no verdict")):
        (tmp_path / "own.gate.json").write_text(json.dumps({**judged[0], **change}))
        done = butler("info", model)
        assert says in done.stderr and "from 300" not in done.stdout and "null" not in done.stdout


def test_auto_without_a_gate_says_so_for_long_texts():
    def said(words):
        return butler("run", "-m", MODEL, "-p", "one two " * words, "-n", 2).stderr
    assert "no gate has run" in said(2200) and "gate" not in said(20)


@serve_built
def test_chat_and_serve_say_so_once(tmp_path):
    long = "one two " * 2100
    said = butler("chat", "-m", MODEL, "-n", 1, "--no-cache", input=f"hello\n{long}\nagain\n").stderr
    assert said.count("no gate has run") == 1
    assert "gate has" not in butler("chat", "-m", MODEL, "-n", 1, "--no-cache", input="hello\n").stderr
    process = subprocess.Popen([BUTLER, "serve", "-m", MODEL, "--port", "0", "-t", "1"], stderr=subprocess.PIPE, text=True)
    lines = [process.stderr.readline()]
    while lines[-1] and "listening on" not in lines[-1]:
        lines.append(process.stderr.readline())
    process.kill()
    process.communicate()
    assert sum("no gate has run" in line for line in lines) == 1


@serve_built
def test_the_server_chooses_by_request(allowed):
    verdict = allowed.with_name("own.gate.json")
    verdict.write_text(verdict.read_text().replace("2 threads", "1 threads"))  # as the tests' servers
    server = Server("--kv", "auto", model=allowed)

    def policy(words, max_tokens, **fields):
        return server.post("/v1/completions", {"prompt": "one two " * words, "max_tokens": max_tokens, **fields})["usage"]["kv"]["policy"]
    assert policy(20, 4) == "full" and policy(200, 4) == "fier:budget=64" == policy(20, 400)
    assert policy(200, 4, kv={"policy": "quest:budget=64"}) == "quest:budget=64"
    assert server.get("/props")["kv_policy"] == "auto"
    assert server.stop() == 0


def test_ask_and_chat_follow_the_gate(allowed, tmp_path):
    document = tmp_path / "long.txt"
    document.write_text("one two three four. " * 60)
    flags = ("-m", allowed, "-t", 2, "--cache", tmp_path / "library", "-n", 2)
    assert "--kv auto: fier:budget=64" in butler("ask", *flags, "-f", document, "What?").stderr
    assert "--kv auto" not in butler("ask", *flags, "-f", document, "--kv", "full", "What?").stderr
    turns = "hello\n/policy\n" + document.read_text() + "\n/policy\nand now?\n/policy full\nagain\n/policy\n"
    said = butler("chat", *flags, input=turns).stderr
    found = re.findall(r"the policy is (\S+)$", said, re.M)
    assert found == ["full", "fier:budget=64", "full"] and said.count("--kv auto: fier:budget=64 from here on") == 1


def test_other_commands_do_not_know_auto():
    refuses(USAGE, "bench", "-m", MODEL, "--kv", "auto", says=["auto"])


def test_wrong_flags():
    refuses(USAGE, "gate", "-m", GQA, "--length", 100, says=["--length", "100", "257"])
    refuses(USAGE, "gate", "-m", MODEL, "--length", "1024,600", says=["--length", "600 after 1024"])
    refuses(USAGE, "gate", "-m", MODEL, "--kv", "full", says=["--kv", "full"])
    refuses(USAGE, "gate", "-m", MODEL, "--kv", "nosuch", says=["nosuch"])
    refuses(FAILED, "gate", "-m", MODEL, "--data", "/nonexistent", says=["/nonexistent"])
