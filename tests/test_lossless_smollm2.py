"""--lossless on a real model, SmolLM2-135M-Instruct: texts are those of dense decoding."""
import pytest

from cli import ROOT, rows
from test_smollm2 import MODEL, pytestmark  # noqa: F401: skips where the model is absent

TEXT = (ROOT / "models" / "long_text.txt").read_text()[:2000]


def run(*args):
    return rows("run", "-m", MODEL, "-p", TEXT, "-n", "64", *args)[-1]


@pytest.mark.parametrize("common", [["--temp", "0", "-t", "2"], ["--temp", "0", "-t", "1", "--kv-type", "q8_0"], ["-s", "7", "--temp", "0.7", "-t", "2"]], ids=" ".join)
def test_texts_are_those_of_dense_decoding(common):
    dense = run(*common)
    assert len(dense["ids"]) == 64
    for drafts in ["--lossless=4"], ["--lossless", "--kv", "quest:budget=256"]:
        last = run(*common, *drafts)
        assert last["ids"] == dense["ids"] and last["text"] == dense["text"]
        assert 0 <= last["stats"]["n_accepted"] <= last["stats"]["n_drafted"] and last["stats"]["n_drafted"] >= 2
