"""Every family that tools/convert/convert_hf.py converts: a tiny model with weights from a seed, its folder converted to F32, and the logits of
butler beside those that transformers computed (tests/data/architectures.json, written by tools/fixtures/make_arch_fixtures.py).

    python3 tests/test_architectures.py    runs every case and writes the table of docs/models.md"""
import json
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest

from arch_folder import make_folder, text_of
from cli import GQA, ROOT, butler, needs_gguf, python_tool, rows

DATA = json.loads((ROOT / "tests" / "data" / "architectures.json").read_text())
CASES, IDS, POSITIONS = DATA["cases"], DATA["ids"], DATA["positions"]
TOLERANCE = 2e-5  # of the largest logit of a position
POLICIES = ["full", "quest:budget=4096", "h2o:budget=4096", "fier:budget=4096"]
NAMES = list(CASES)


def convert(name, folder):
    """The path of the case's GGUF file."""
    out = folder / f"{name}.gguf"
    if not out.exists():
        make_folder(folder / name, CASES[name])
        python_tool("convert/convert_hf.py", folder / name, "-o", out, "--type", "f32")
    return out


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("architectures")
    return lambda name: convert(name, folder)


def distance(got, want):
    """The largest difference of two rows of logits, of the largest logit."""
    return max(np.abs(np.array(g) - w).max() / np.abs(w).max() for g, w in zip(got, np.array(want)))


def logits(model, *flags):
    found = rows("logits", "-m", model, "--ids", ",".join(map(str, IDS)), "--all", "--kv-type", "f32", *flags)
    assert [row["position"] for row in found] == list(range(len(IDS)))
    return [row["logits"] for row in found]


@needs_gguf
@pytest.mark.parametrize("name", NAMES)
def test_logits(name, files):
    """In one pass, in blocks of 7 that no window divides into, and token by token."""
    for block in ("0", "7", "1"):
        found = logits(files(name), "--block", block)
        assert distance([found[p] for p in POSITIONS], CASES[name]["logits"]) < TOLERANCE, f"--block {block}"


@needs_gguf
@pytest.mark.parametrize("name", NAMES)
def test_policies_that_read_everything(name, files, tmp_path):
    """Decoded token by token, with a budget above the length, every token has the probability that transformers gives it."""
    text = tmp_path / "text"
    text.write_text(text_of(IDS, CASES[name]["config"]["vocab_size"]))
    found = rows("eval", "ppl", "-m", files(name), "--data", text, "--length", len(IDS), "--kv-type", "f32", "--mode", "simulate",
                 *(word for policy in POLICIES for word in ("--kv", policy)))
    ppl = {row["policy"]: row["value"] for row in found if row["metric"] == "ppl"}
    assert len(ppl) == len(POLICIES)
    for policy, value in ppl.items():
        assert np.log(value) == pytest.approx(CASES[name]["nll"], rel=TOLERANCE), policy


@needs_gguf
@pytest.mark.skipif("opencl:0" not in butler("info", "-m", GQA, "--device", "auto").stdout, reason="there is no OpenCL device (Debian: pocl-opencl-icd)")
@pytest.mark.parametrize("name", NAMES)
def test_logits_of_a_device(name, files):
    """Of OpenCL's first, in blocks of 7."""
    found = logits(files(name), "--block", "7", "--device", "opencl:0")
    assert distance([found[p] for p in POSITIONS], CASES[name]["logits"]) < TOLERANCE


# ------------------------------------------------------------------------------------- docs/models.md

PAGE = ROOT / "docs" / "models.md"
FEATURES = [
    ("GQA", lambda c: 1 < (c.get("num_key_value_heads") or 1) < c.get("num_attention_heads", 0)),
    ("MQA", lambda c: c.get("num_key_value_heads") == 1),
    ("window", lambda c: c.get("sliding_window")),
    ("layers without a window", lambda c: len(set(c.get("layer_types") or [])) > 1),
    ("soft caps", lambda c: c.get("attn_logit_softcapping")),
    ("partial RoPE", lambda c: 0 < rope_of(c).get("partial_rotary_factor", 1) < 1),
    ("scaled RoPE", lambda c: rope_of(c).get("rope_type", "default") != "default"),
    ("parallel residual", lambda c: c.get("use_parallel_residual")),
    ("QKV biases", lambda c: c.get("attention_bias") or c.get("use_qkv_bias")),
    ("experts", lambda c: c.get("num_local_experts") or c.get("num_experts")),
]


def rope_of(config):
    rope = config.get("rope_parameters") or {}
    return rope.get("full_attention", rope)


def cells(name):
    """Of the row of a case, what does not depend on a measurement."""
    config = CASES[name]["config"]
    has = ", ".join(word for word, test in FEATURES if test(config))
    return [name, f"`{config['architectures'][0].removesuffix('ForCausalLM').removesuffix('LMHeadModel')}`", has, "yes"]


def table_of(text):
    """Rows of the first table of a page, as lists of cells."""
    table = re.search(r"(^\|.*\|\n)+", text, re.M)[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()][2:]


def test_page_lists_every_case():
    """Run this file to write the table again."""
    assert [row[:4] for row in table_of(PAGE.read_text())] == [cells(name) for name in CASES]


def write_table():
    lines = ["| case | transformers' class | has | loads | furthest logit |", "| --- | --- | --- | --- | --- |"]
    with tempfile.TemporaryDirectory() as folder:
        for name in CASES:
            found = logits(convert(name, Path(folder)))
            far = f"{distance([found[p] for p in POSITIONS], CASES[name]['logits']):.0e}"
            lines.append("| " + " | ".join([*cells(name), far]) + " |")
    PAGE.write_text(re.sub(r"(^\|.*\|\n)+", lambda _: "\n".join(lines) + "\n", PAGE.read_text(), count=1, flags=re.M))


if __name__ == "__main__":
    write_table()
