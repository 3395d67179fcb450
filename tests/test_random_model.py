"""tools/fixtures/random_model.py: its files are well formed, have the shape they are named for, and depend on the seed alone."""
import math
import os
import struct
import subprocess
import sys

import pytest

from gguf_file import Gguf

TOOL = os.path.join(os.path.dirname(__file__), "..", "tools", "fixtures", "random_model.py")
TYPE = {"f16": 1, "q4_0": 2, "q8_0": 8, "q6_k": 14, "q3_k": 11, "mxfp4": 39}


def make(tmp_path, shape, kind, *more):
    path = tmp_path / f"{shape}-{kind}.gguf"
    subprocess.run([sys.executable, TOOL, shape, kind, path, *more], check=True, stdout=subprocess.DEVNULL)
    return path


@pytest.mark.parametrize("kind", TYPE)
def test_shape_and_types(tmp_path, kind):
    model = Gguf(make(tmp_path, "bench-30m", kind, "--ctx", "4096"))
    value = lambda key: model.values[key][1]
    assert value("general.architecture") in ("llama", b"llama")
    assert (value("llama.embedding_length"), value("llama.block_count"), value("llama.context_length")) == (512, 8, 4096)
    assert (value("llama.attention.head_count"), value("llama.attention.head_count_kv")) == (8, 2)
    assert len(value("tokenizer.ggml.tokens")[1]) == model.tensors["token_embd.weight"][0][1] == 8192
    assert len(set(value("tokenizer.ggml.tokens")[1])) == 8192
    for name, (dims, number, data) in model.tensors.items():
        assert number == (0 if len(dims) == 1 else TYPE[kind]), name
    assert model.tensors["blk.7.attn_k.weight"][0] == [512, 128]
    assert len(model.tensors) == 2 + 8 * 9


def decode_q6_k(data, n):
    """Blocks of 256: low nibbles [2][64], high pairs [2][32], 16 signed scales, the block's own."""
    weights = []
    for at in range(0, n // 256 * 210, 210):
        scales = struct.unpack_from("<16b", data, at + 192)
        d, = struct.unpack_from("<e", data, at + 208)
        for i in range(256):
            half, quarter, column = i // 128, i % 128 // 32, i % 32
            low = data[at + half * 64 + quarter % 2 * 32 + column] >> 4 * (quarter // 2) & 15
            high = data[at + 128 + half * 32 + column] >> 2 * quarter & 3
            weights.append(d * scales[i // 16] * ((low | high << 4) - 32))
    return weights


def decode_q3_k(data, n):
    """Blocks of 256: third bits [32], pairs [2][32], 16 scales of six bits in 12 bytes, the block's own."""
    weights = []
    for at in range(0, n // 256 * 110, 110):
        thirds, pairs, packed = data[at : at + 32], data[at + 32 : at + 96], data[at + 96 : at + 108]
        d, = struct.unpack_from("<e", data, at + 108)
        for i in range(256):
            g = i // 16
            scale = (packed[g % 8] >> 4 * (g // 8) & 15) + 16 * (packed[8 + g % 4] >> 2 * (g // 4) & 3) - 32
            q = (pairs[i // 128 * 32 + i % 32] >> i % 128 // 32 * 2 & 3) + 4 * (thirds[i % 32] >> i // 32 & 1) - 4
            weights.append(d * scale * q)
    return weights


def decode_mxfp4(data, n):
    """Blocks of 32: an exponent, then nibbles: a sign and one of eight magnitudes."""
    values = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    return [2.0 ** (data[at] - 127) * values[q % 8] * (-1 if q > 7 else 1)
            for at in range(0, n // 32 * 17, 17) for b in data[at + 1 : at + 17] for q in (b & 15, b >> 4)]


@pytest.mark.parametrize("kind", TYPE)
def test_weights_are_finite_and_scaled(tmp_path, kind):
    """A standard deviation near 1/sqrt(columns), decoded here by hand."""
    dims, _, data = Gguf(make(tmp_path, "bench-30m", kind)).tensors["blk.3.ffn_up.weight"]
    if kind == "f16":
        weights = struct.unpack(f"<{dims[0]}e", data[: 2 * dims[0]])
    elif kind in ("q6_k", "q3_k", "mxfp4"):
        weights = {"q6_k": decode_q6_k, "q3_k": decode_q3_k, "mxfp4": decode_mxfp4}[kind](data, dims[0])
    else:
        size, weights = {"q8_0": 34, "q4_0": 18}[kind], []
        for at in range(0, dims[0] // 32 * size, size):
            scale, = struct.unpack_from("<e", data, at)
            quants = struct.unpack_from("<32b", data, at + 2) if kind == "q8_0" else [
                n - 8 for b in data[at + 2 : at + 18] for n in (b & 15, b >> 4)]
            weights += [scale * q for q in quants]
    assert len(weights) == dims[0] and all(map(math.isfinite, weights))
    spread = math.sqrt(sum(w * w for w in weights) / len(weights)) * math.sqrt(dims[0])
    assert 0.7 < spread < 1.4


def test_seed_decides(tmp_path):
    first = make(tmp_path, "bench-30m", "q4_0").read_bytes()
    assert make(tmp_path, "bench-30m", "q4_0").read_bytes() == first
    assert make(tmp_path, "bench-30m", "q4_0", "--seed", "1").read_bytes() != first


def test_gpt2_has_its_biases_and_positions(tmp_path):
    model = Gguf(make(tmp_path, "gpt2-medium", "q4_0", "--ctx", "256"))
    assert model.tensors["position_embd.weight"][0] == [1024, 256]
    assert model.tensors["blk.23.attn_qkv.bias"][0] == [3072]


def test_refuses_a_senseless_context(tmp_path):
    out = tmp_path / "x.gguf"
    done = subprocess.run([sys.executable, TOOL, "bench-30m", "q8_0", out, "--ctx", "0"], capture_output=True)
    assert done.returncode == 2 and not out.exists()
