"""What llama.cpp takes as optional is optional in every architecture of the table: each optional tensor in turn is added to a small
model or left out of it, and the logits are those that llama.cpp computes (tests/data/optional_tensors.json, written by
tools/fixtures/record_optional_tensors.py)."""
import json

import numpy as np
import pytest

from cli import ROOT, needs_gguf, rows
from gguf_file import Gguf
from optional_tensors import variants
from test_architectures import IDS, convert

DATA = json.loads((ROOT / "tests" / "data" / "optional_tensors.json").read_text())
CASES, TOKENS, N_IDS = DATA["cases"], DATA["tokens"], DATA["n_ids"]
TOLERANCE = 2e-3  # of the largest logit: llama.cpp reads GELU from a table of 16-bit floats
NO_EFFECT = ("fuse",)


def last(path):
    """The logits after the last token."""
    row, = rows("logits", "-m", path, "--ids", ",".join(map(str, IDS[:N_IDS])), "--kv-type", "f32")
    return np.array(row["logits"])


def case_file(name, folder):
    folder.mkdir(exist_ok=True)
    return convert(name, folder)


@needs_gguf
@pytest.mark.parametrize("name", CASES)
def test_logits(name, tmp_path):
    base = case_file(name, tmp_path / "base")
    plain = last(base)
    recorded = dict(CASES[name])
    for variant, gguf in variants(Gguf(base)):
        want = recorded.pop(variant, None)
        if want is None:  # llama.cpp refuses it
            continue
        gguf.write(tmp_path / "variant.gguf")
        got = last(tmp_path / "variant.gguf")
        assert np.abs(got[TOKENS] - want).max() < TOLERANCE * np.abs(got).max(), variant
        if variant in NO_EFFECT:
            assert (got == plain).all()
        else:
            assert np.abs(got - plain).max() > 2 * TOLERANCE * np.abs(plain).max(), variant
    assert not recorded


@needs_gguf
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "phi3", "gemma2", "opt", "gpt-oss"])
def test_a_bias_of_zeros_is_none(name, tmp_path):
    """Also where llama.cpp needs the tensor."""
    base = Gguf(case_file(name, tmp_path / "base"))
    for variant, gguf in variants(base):
        word, _, part = variant.partition(" ")
        if word != "add" or not part.startswith(("attn_", "output")):
            continue
        for tensor in gguf.tensors.keys() - base.tensors.keys():
            gguf.put_tensor(tensor, gguf.tensors[tensor][0], [0.0] * gguf.tensors[tensor][0][0])
        gguf.write(tmp_path / "zeros.gguf")
        base.write(tmp_path / "base.gguf")
        assert (last(tmp_path / "zeros.gguf") == last(tmp_path / "base.gguf")).all(), variant
