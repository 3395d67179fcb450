"""Every family that tools/convert_hf.py converts: a tiny model with weights from a seed, its folder converted to F32, and the logits of
butler beside those that transformers computed (tests/data/architectures.json, written by tools/make_arch_fixtures.py).

    tests/test_architectures.py --table    what docs/models.md says of each family"""
import json

import numpy as np
import pytest

from arch_folder import make_folder, text_of
from cli import ROOT, needs_gguf, python_tool, rows

DATA = json.loads((ROOT / "tests" / "data" / "architectures.json").read_text())
CASES, IDS, POSITIONS = DATA["cases"], DATA["ids"], DATA["positions"]
TOLERANCE = 1e-4  # of the largest logit of a position
POLICIES = ["full", "quest:budget=4096", "h2o:budget=4096", "fier:budget=4096"]
# Cases that butler does not load or compute yet; a test that passes all the same fails, so that its name is taken out.
PENDING = {"stablelm-12b"}
NAMES = [pytest.param(n, marks=pytest.mark.xfail(reason="not implemented", strict=True) if n in PENDING else ()) for n in CASES]


def convert(name, folder):
    """The path of the case's GGUF file."""
    out = folder / f"{name}.gguf"
    if not out.exists():
        make_folder(folder / name, CASES[name])
        python_tool("convert_hf.py", folder / name, "-o", out, "--type", "f32")
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
