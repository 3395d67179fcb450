"""CONTRIBUTING.md's recipes: applied to a copy of the tree, built, and used."""
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from cli import GPT2, GQA, PROMPT, ROOT, refuses, rows
from gguf_file import F32, STRING, Gguf
from llama_reference import Llama

RECIPES = (ROOT / "CONTRIBUTING.md").read_text().split("## Recipes")[1]


def squeeze(line):
    return re.sub(r"\s*\\$", " \\\\", line.rstrip())


def edit(path, diff):
    """Replaces the lines that the diff shows as being there, which must be there once."""
    lines = path.read_text().splitlines()
    old = [squeeze(line[1:]) for line in diff.splitlines() if line[:1] != "+"]
    new = [line[1:] for line in diff.splitlines() if line[:1] != "-"]
    at = [i for i in range(len(lines)) if [squeeze(line) for line in lines[i:i + len(old)]] == old]
    assert len(at) == 1, f"{path.name}: {len(at)} places for:\n{diff}"
    path.write_text("\n".join(lines[:at[0]] + new + lines[at[0] + len(old):]) + "\n")


def apply_recipes(tree):
    """Every example, to the file that was named last before it."""
    applied, path = [], None
    for name, language, text in re.findall(r"`(src/[\w/]+\.[ch])`|^```(c|diff)\n(.*?)^```$", RECIPES, re.M | re.S):
        if name:
            path = tree / name
        elif language == "diff":
            edit(path, text)
            applied.append(path.name)
        else:
            assert not path.exists(), f"{path} is no new file"
            path.write_text(text)
            applied.append(path.name)
    return applied


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The command in a copy of the tree with all recipes applied. What is built already is copied too, so that only what the recipes
    change is compiled."""
    tree = tmp_path_factory.mktemp("recipes") / "tree"
    tree.mkdir()
    for folder in ("include", "src", "apps", "tests"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("data", "corpus", "__pycache__"))
    shutil.copy2(ROOT / "Makefile", tree)
    (tree / "build").mkdir()
    for folder in ("src", "apps"):
        if (ROOT / "build" / folder).exists():
            shutil.copytree(ROOT / "build" / folder, tree / "build" / folder)
    applied = apply_recipes(tree)
    assert applied == ["newest_key.c", "registry.h", "long_key.c", "registry.h", "policy_table.c", "policy_table.c", "arch.c", "arch.c", "pretokenizer.c"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(["make", "-j2", "build/butler", "build/tests/test_policy"], cwd=tree, env=environment, capture_output=True,
                          text=True, timeout=800)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "warning" not in done.stderr, done.stderr[-4000:]
    return tree / "build"


def test_metric_and_policy(built):
    binary = built / "butler"
    row, = [r for r in rows("policies", binary=binary) if r["policy"] == "newest"]
    assert (row["metric"], row["method"]) == ("newest_key", "retrieve")
    wide = rows("run", "-m", GQA, "-p", PROMPT, "-n", "40", "--temp", "0", "--kv", "newest", binary=binary)[-1]
    assert wide["text"] == rows("run", "-m", GQA, "-p", PROMPT, "-n", "40", "--temp", "0")[-1]["text"]
    narrow = rows("run", "-m", GQA, "-p", PROMPT, "-n", "40", "--temp", "0", "--kv", "newest:budget=24", binary=binary)[-1]["stats"]
    assert narrow["kv_bytes"] < wide["stats"]["kv_bytes"]
    subprocess.run([built / "tests" / "test_policy"], check=True, capture_output=True, timeout=120)


def test_metric_with_a_state(built):
    binary = built / "butler"
    assert [r["metric"] for r in rows("policies", binary=binary) if r["policy"] == "longkeys"] == ["long_key"]
    some = rows("run", "-m", GQA, "-p", PROMPT, "-n", "40", "--temp", "0", "--kv", "longkeys:budget=24", binary=binary)[-1]["stats"]
    info, = rows("info", GQA, binary=binary)
    assert some["metric_memory"] == 8 * info["n_layers"] * info["n_kv_heads"]  # a state of 8 bytes a head, no records


class Orion(Llama):
    """The reference with layer norms that have biases."""

    def __init__(self, path, biases):
        super().__init__(path)
        self.biases = biases

    def norm(self, x, name):
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name] + self.biases[name.replace(".weight", ".bias")]


def test_architecture(built, tmp_path):
    model, random, biases = Gguf(GQA), np.random.default_rng(1), {}
    eps = model.values["llama.attention.layer_norm_rms_epsilon"][1]
    model.values = {key.replace("llama.", "orion.", 1) if key.startswith("llama.") else key: v for key, v in model.values.items()}
    model.put("general.architecture", STRING, "orion")
    model.put("orion.attention.layer_norm_epsilon", F32, eps)
    for name in [n for n in model.tensors if n.endswith("norm.weight")]:
        bias = random.normal(0, 0.3, model.tensors[name][0][0]).astype(np.float32)
        biases[name.replace(".weight", ".bias")] = bias
        model.put_tensor(name.replace(".weight", ".bias"), [len(bias)], bias.tolist())
    if "output.weight" not in model.tensors:
        model.tensors["output.weight"] = model.tensors["token_embd.weight"]
    model.write(tmp_path / "orion.gguf")
    refuses(1, "info", tmp_path / "orion.gguf", says=["orion", "llama, qwen2"])
    ids = rows("tokenize", "-m", GQA, "-p", PROMPT)[0]["ids"]
    want, _ = Orion(GQA, biases).forward(ids)
    got = rows("logits", "-m", tmp_path / "orion.gguf", "--ids", ",".join(map(str, ids)), "--all", binary=built / "butler")
    assert len(got) == len(ids)
    assert np.abs(np.array([row["logits"] for row in got]) - want).max() < 1e-3 * np.abs(want).max()


def test_pre_tokenizer(built, tmp_path):
    model = Gguf(GPT2)
    kind, tokens = model.values["tokenizer.ggml.tokens"][1]
    n = len(tokens)
    tokens.append(b"12")
    if "tokenizer.ggml.token_type" in model.values:
        model.values["tokenizer.ggml.token_type"][1][1].append(1)
    model.values["tokenizer.ggml.merges"][1][1].append(b"1 2")
    model.tensors = {}
    path = tmp_path / "oak.gguf"
    model.put("tokenizer.ggml.pre", STRING, "gpt-2")
    model.write(path)
    assert rows("tokenize", "-m", path, "-p", "12", "--no-special")[0]["ids"] == [n]
    model.put("tokenizer.ggml.pre", STRING, "oak")
    model.write(path)
    refuses(1, "tokenize", "-m", path, "-p", "12", says=["oak"])
    assert rows("tokenize", "-m", path, "-p", "12", "--no-special", binary=built / "butler")[0]["ids"] == [tokens.index(b"1"), tokens.index(b"2")]
