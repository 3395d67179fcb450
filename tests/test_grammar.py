"""--grammar: files that are refused, and a real model whose answers follow a grammar."""
import json
import re

import pytest

from cli import ROOT, SMOLLM2, butler, rows

GQA = ROOT / "tests/data/models/llama-gqa.gguf"
JSON = ROOT / "tests/corpus/grammar/json"
PROMPT = "<|im_start|>user\nDescribe a person as JSON with name, age and hobbies.<|im_end|>\n<|im_start|>assistant\n"
real = pytest.mark.skipif(not SMOLLM2.exists(), reason="models/smollm2.gguf is absent (./setup --model smollm2)")


@pytest.mark.parametrize("command", [["run", "-p", "a"], ["ask", "-f", str(JSON), "--no-cache", "-c", "2048", "--chat-template", "plain", "Why?"],
                                     ["chat", "--chat-template", "plain"]])
@pytest.mark.parametrize("text, says", [
    (None, "No such file"), (b"root ::= \"a\"\nb ::= [", "line 2, column 7"), (b"root ::= \0", "zero byte"), (b"", "there is no rule 'root'"),
])
def test_bad_files(tmp_path, command, text, says):
    path = tmp_path / "grammar.gbnf"
    if text is not None:
        path.write_bytes(text)
    result = butler(*command, "-m", GQA, "--grammar", path, expect=1, input="")
    assert str(path) in result.stderr and says in result.stderr and not result.stdout


def test_text_follows_the_grammar(tmp_path):
    path = tmp_path / "grammar.gbnf"
    path.write_text('root ::= [0-9]{3} ("-" [0-9]{2,3})* "." \n')
    for seed in range(5):
        row = rows("run", "-m", GQA, "-p", "a", "-n", "60", "--temp", "1", "-s", seed, "--grammar", path, "--json")[-1]
        assert re.fullmatch(r"[0-9]{3}(-[0-9]{2,3})*(\.)?", row["text"]) or re.fullmatch(r"[0-9-]*", row["text"])
    assert rows("run", "-m", GQA, "-p", "a", "-n", "3", "--temp", "0", "--grammar", path, "--json")[-1]["text"].isdigit()


@real
@pytest.mark.parametrize("flags", [["--temp", "0"], ["--temp", "0.8", "-s", "3"], ["--temp", "0.8", "-s", "4", "--top-k", "40", "--repeat-penalty", "1.1"]])
def test_json(flags):
    row = rows("run", "-m", SMOLLM2, "-p", PROMPT, "-n", "200", *flags, "--grammar", JSON, "--json")[-1]
    assert isinstance(json.loads(row["text"]), dict)


@real
def test_drafts_agree():
    flags = ["-m", SMOLLM2, "-p", PROMPT, "-n", "40", "--temp", "0.7", "-s", "5", "--grammar", JSON, "--json"]
    exact = rows("run", *flags, "--kv", "full")[-1]["ids"]
    assert rows("run", *flags, "--kv", "quest:budget=16", "--lossless=4")[-1]["ids"] == exact
