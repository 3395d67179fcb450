"""Learned sinks (gpt-oss) are part of every mass of attention: a sink is always kept, so that it takes the place of tokens."""
import struct

import pytest

from cli import MODELS, ROOT, rows
from gguf_file import F32, Gguf

TEXT = ROOT / "tests" / "data" / "secret_garden.txt"
NONE, ALL = -30.0, 30.0  # logits of a sink that takes nothing, or all but nothing, of every softmax


@pytest.fixture(scope="module")
def with_sinks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sinks")

    def make(logit):
        path, model = folder / f"{logit}.gguf", Gguf(MODELS / "gpt-oss.gguf")
        for name, (dims, kind, _) in list(model.tensors.items()):
            if name.endswith("attn_sinks.weight"):
                model.tensors[name] = dims, kind, struct.pack(f"<{dims[0]}f", *[logit] * dims[0])
        model.write(path)
        return path

    return make


@pytest.mark.parametrize("how", ["", ",group=mean", ",share=query", ",share=layer"])
def test_mass_budget(how, with_sinks):
    """Where the sink takes nearly all, the newest token is enough; where it takes half, fewer tokens are read than without it."""
    def read(logit):
        stats = rows("run", "-m", with_sinks(logit), "-p", TEXT.read_text()[:110], "-n", "4", "--temp", "0", "--kv",
                     f"oracle:mass=0.9,dense=0{how}")[-1]["stats"]
        return stats["kv_bytes"] / stats["full_kv_bytes"]
    all_, some, none = read(ALL), read(4.0), read(NONE)
    assert all_ < some < none < 1
    assert all_ < 0.5 * none  # layers with a window read all of it in both


@pytest.mark.parametrize("cap, least", [(0.02, 0.85), (0, 0)])
def test_soft_caps_are_part_of_the_attention(cap, least, tmp_path):
    """Capped to nearly nothing, attention is the same to all tokens: nine of ten have nine tenths of it."""
    model = Gguf(MODELS / "llama-gqa.gguf")
    if cap:
        model.put("llama.attn_logit_softcapping", F32, cap)
    model.write(tmp_path / "model.gguf")
    stats = rows("run", "-m", tmp_path / "model.gguf", "-p", TEXT.read_text()[:110], "-n", "4", "--temp", "0", "--kv", "oracle:mass=0.9,dense=0,sinks=0")[-1]["stats"]
    read = stats["kv_bytes"] / stats["full_kv_bytes"]
    assert least < read < (0.97 if cap else 0.85)


def test_recall_counts_the_sink(with_sinks):
    def mass(logit):
        found = rows("eval", "recall", "-m", with_sinks(logit), "--data", TEXT, "--length", "100", "--kv", "oracle:budget=16,dense=0")
        return next(row["value"] for row in found if row["metric"] == "mass")
    assert mass(NONE) < mass(4.0) < 1
    assert mass(ALL) == pytest.approx(1, abs=1e-6)
