"""A real model, SmolLM2-135M-Instruct: its tokens and a greedy answer are those of llama.cpp, and policies read less of the cache.

`./setup --model smollm2` fetches the weights to models/; $BUTLER_MODELS names another folder for them."""
import json
import re
import subprocess

import pytest

from cli import ROOT, SMOLLM2 as MODEL, butler, rows

pytestmark = pytest.mark.skipif(not MODEL.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")

QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"


# Ids from llama.cpp, special tokens not read as such.
@pytest.mark.parametrize("text, ids", [
    ("The capital of France is", [504, 3575, 282, 4649, 314]),
    ("In 2026, 12345 people didn't pay $3.50.",
     [788, 216, 34, 32, 34, 38, 28, 216, 33, 34, 35, 36, 37, 701, 3683, 982, 2290, 1885, 35, 30, 37, 32, 30]),
    ("naïve café \u2014 \u65e5\u672c\u8a9e \U0001f600\n\n  x = 0x1F;\t# é",
     [3546, 46494, 37366, 1841, 17097, 241, 115, 40993, 179, 120, 248, 40303, 218, 8866, 1792, 446, 216, 32, 104, 33, 54, 43, 197, 19,
      26411]),
    # The byte 0x13 has no token and is left out. Digits of other scripts stand alone, too.
    ("a\x13b\xa0\u0663\u0664½\u2167", [81, 82, 15442, 164, 113, 164, 114, 16738, 173, 223, 117]),
    ("<|im_start|>user\nHi<|im_end|>\n", [44, 108, 306, 79, 3738, 108, 46, 4093, 198, 26843, 44, 108, 306, 79, 486, 108, 46, 198]),
])
def test_tokens(text, ids):
    assert rows("tokenize", "-m", MODEL, "-p", text, "--no-special")[0]["ids"] == ids


def test_bytes_without_a_token_are_noted():
    said = butler("tokenize", "-m", MODEL, "-p", "a\x13b\x13", "--json")
    assert "2 bytes of the text are left out" in said.stderr and json.loads(said.stdout)["ids"] == [81, 82]
    assert butler("tokenize", "-m", MODEL, "-p", "ab", "--json").stderr == ""
    chat = butler("chat", "-m", MODEL, "--temp", "0", "-n", "1", input="Hi\x13\n").stderr
    assert "1 bytes of the text are left out" in chat


def test_special_tokens():
    ids = rows("tokenize", "-m", MODEL, "-p", "<|im_start|>user\nHi<|im_end|>\n")[0]["ids"]
    assert ids == [1, 4093, 198, 26843, 2, 198]


def test_greedy_answer():
    """llama.cpp's answer; at every token the best logit is at least 1.4 above the second, so that rounding does not change it."""
    *_, last = rows("run", "-m", MODEL, "-p", QUESTION, "-n", "12", "--temp", "0", "--kv", "full")
    assert last["ids"] == [504, 3575, 282, 4649, 314, 7042, 30] and last["text"] == "The capital of France is Paris."
    assert last["stats"]["end"] == "end of text"


def after_a_text(policy):
    text = (ROOT / "models" / "long_text.txt").read_text()[:2500]
    return rows("run", "-m", MODEL, "-p", text, "-n", "8", "--temp", "0", "--kv", policy)[-1]


@pytest.fixture(scope="module")
def full():
    return after_a_text("full")


@pytest.mark.parametrize("policy", ["fier", "quest", "h2o", "snapkv"])
def test_policies(policy, full):
    assert after_a_text(f"{policy}:budget=2048")["ids"] == full["ids"]  # a budget above the length is the dense result
    part = after_a_text(f"{policy}:budget=128")
    assert len(part["ids"]) == 8
    assert part["stats"]["kv_bytes"] < 0.7 * full["stats"]["kv_bytes"]


def test_a_second_session_costs_its_pages_and_records(tmp_path):
    """At most 1 MB more, at 512 tokens: activations, and what a predictor works with, are the engine's."""
    programs = [f"build/bench/bench_{name}" for name in ("memory", "predictor")]
    subprocess.run(["make", "-s", *programs], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    memory, predictor = (ROOT / program for program in programs)
    weights = tmp_path / "tokenbutler2"
    subprocess.run([predictor, MODEL, "write", "v2", weights], check=True, stdout=subprocess.DEVNULL)
    policies = ["full", "streaming:budget=128", "tokenbutler2:budget=0.25"]
    said = subprocess.run([memory, MODEL, "504", "--predictor", weights, *policies], check=True, capture_output=True, text=True).stdout
    table = {line.split()[0]: [float(x) for x in line.split()[1:]] for line in said.splitlines()[1:]}
    assert list(table) == policies
    for policy, (depth, full_kv, kv, records, resident, beside, second, rest) in table.items():
        assert kv > 0.2 * full_kv and second > 0.8 * kv, policy  # it measures something
        assert rest <= 1, policy


def test_the_predictors_rank_tokens():
    """The shipped predictors attach, and at equal bytes find more of what matters than chance and the newest tokens; version 2 also more
    than quest."""
    policies = {"tokenbutler2": "tokenbutler2:on_top=0,sinks=4,recent=0", "tokenbutler": "tokenbutler:dense=1", "random": "random:dense=1",
                "streaming": "streaming:dense=1", "quest": "quest:dense=1"}
    flags = [word for policy in policies.values() for word in ("--kv", policy)]
    for name in ("tokenbutler", "tokenbutler2"):
        flags += ["--predictor", ROOT / "models" / f"smollm2.{name}.gguf"]
    found = {name: {} for name in policies}
    for row in rows("eval", "recall", "-m", MODEL, "--data", ROOT / "models" / "long_text.txt", "--length", "384", "--limit", "1",
                    "--set", "dense=1,steps=4", "--budget", "0.25", *flags):
        found[row["policy"].split(":")[0]][row["metric"]] = row["value"]
    assert found["tokenbutler2"]["top_half_accuracy"] > 0.7
    for ours, others in (("tokenbutler2", ("random", "streaming", "quest")), ("tokenbutler", ("random", "streaming"))):
        for other in others:
            for metric in ("mass", "top_half_accuracy"):
                assert found[ours][metric] > found[other][metric] + 0.05, (ours, other, metric)


def test_chat():
    """The template's own system message is there, and the second turn knows the first. With 8 bits the first word, a near tie, is
    another."""
    answers = butler("chat", "-m", MODEL, "--prompt-precision", "16", "--temp", "0", "-n", "30", input="What is the capital of France?\nAnd of Italy?\n").stdout.splitlines()
    assert "Paris" in answers[0] and "Rome" in answers[1]


def test_the_demo_finds_the_pass_key():
    """What ./demo shows, under the policy that reads least."""
    demo = (ROOT / "demo").read_text()
    question = re.search(r'^question="(.*)"$', demo, re.M)[1]
    policies = re.findall(r"^ask (\S+)", demo, re.M)
    assert policies == ["full", "fier:budget=256", "quest:budget=512"]
    text = "".join(line for line in (ROOT / "models" / "long_text.txt").open() if not line.startswith("What is the pass key?"))
    ran = butler("ask", "-m", MODEL, "-f", "-", "--no-cache", "-v", "--temp", "0", "-n", "24", "--kv", policies[1], question, input=text)
    assert "48213" in ran.stdout
    assert float(re.search(r"read (\S+) % of the KV cache", ran.stderr)[1]) < 20
