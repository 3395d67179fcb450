#!/usr/bin/python3
"""Writes a GGUF file with the shape of a known model and random weights, to measure speed and memory with.

    tools/random_model.py bench-30m q8_0 /tmp/bench-30m.gguf
    tools/random_model.py llama-3.2-1b q4_0 /tmp/1b.gguf --ctx 131072 --seed 1

Quantised weights are random bytes under valid scales, straight to the disk: nothing is rounded and little memory is
held. The scales keep activations in the range of a trained model's. The vocabulary spells every byte and is filled up
with unused tokens, so that text goes in and comes out; what comes out means nothing. Needs numpy alone.
"""

import argparse
import math
import os
import struct

import numpy as np

# ctx is what the file declares unless --ctx says otherwise; where the published context would forbid measuring at depth,
# the shape gets a longer one.
SHAPES = {
    "llama-3.2-1b": dict(arch="llama", embd=2048, layers=16, heads=32, kv=8, head_dim=64, ff=8192, vocab=128256, tied=True,
                         theta=500000.0, llama3=(32.0, 1.0, 4.0, 8192), ctx=131072),
    "tinyllama-1.1b": dict(arch="llama", embd=2048, layers=22, heads=32, kv=4, head_dim=64, ff=5632, vocab=32000, tied=False,
                           theta=10000.0, ctx=32768),
    "110m": dict(arch="llama", embd=768, layers=12, heads=12, kv=12, head_dim=64, ff=2048, vocab=32000, tied=True, theta=10000.0,
                 ctx=32768),
    "bench-30m": dict(arch="llama", embd=512, layers=8, heads=8, kv=2, head_dim=64, ff=1536, vocab=8192, tied=True, theta=500000.0,
                      ctx=131072),
    "gpt2-medium": dict(arch="gpt2", embd=1024, layers=24, heads=16, kv=16, head_dim=64, ff=4096, vocab=50257, tied=True, ctx=32768),
}

# name -> GGUF's number, elements a block, bytes a block, general.file_type
TYPES = {"f32": (0, 1, 4, 0), "f16": (1, 1, 2, 1), "q4_0": (2, 32, 18, 2), "q8_0": (8, 32, 34, 7), "q6_k": (14, 256, 210, 18),
         "q3_k": (11, 256, 110, 12), "mxfp4": (39, 32, 17, 38)}
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
ALIGNMENT = 32
CHUNK = 1 << 22  # elements made at a time


def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(kind, v):
    if kind == STRING:
        return struct.pack("<I", STRING) + text(v)
    return struct.pack("<I" + {U32: "I", F32: "f"}[kind], kind, v)


def array(kind, values):
    head = struct.pack("<IIQ", ARRAY, kind, len(values))
    if kind == STRING:
        return head + b"".join(map(text, values))
    return head + np.asarray(values, dtype={F32: "<f4", I32: "<i4"}[kind]).tobytes()


def header_values(name, s, file_type):
    a = s["arch"]
    values = {"general.architecture": value(STRING, a), "general.name": value(STRING, f"random {name}"),
              "general.file_type": value(U32, TYPES[file_type][3]), "general.alignment": value(U32, ALIGNMENT),
              f"{a}.context_length": value(U32, s["ctx"]), f"{a}.embedding_length": value(U32, s["embd"]),
              f"{a}.block_count": value(U32, s["layers"]), f"{a}.feed_forward_length": value(U32, s["ff"]),
              f"{a}.attention.head_count": value(U32, s["heads"]), f"{a}.vocab_size": value(U32, s["vocab"])}
    if a == "gpt2":
        values[f"{a}.attention.layer_norm_epsilon"] = value(F32, 1e-5)
    else:
        values |= {f"{a}.attention.head_count_kv": value(U32, s["kv"]), f"{a}.attention.key_length": value(U32, s["head_dim"]),
                   f"{a}.attention.value_length": value(U32, s["head_dim"]),
                   f"{a}.attention.layer_norm_rms_epsilon": value(F32, 1e-5), f"{a}.rope.dimension_count": value(U32, s["head_dim"]),
                   f"{a}.rope.freq_base": value(F32, s["theta"])}
    n_spare = s["vocab"] - 259
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + [f"<unused{i}>" for i in range(n_spare)]
    values |= {"tokenizer.ggml.model": value(STRING, "llama"), "tokenizer.ggml.tokens": array(STRING, tokens),
               "tokenizer.ggml.scores": array(F32, [0.0] * len(tokens)),
               "tokenizer.ggml.token_type": array(I32, [2, 3, 3] + [6] * 256 + [5] * n_spare),
               "tokenizer.ggml.bos_token_id": value(U32, 1), "tokenizer.ggml.eos_token_id": value(U32, 2),
               "tokenizer.ggml.unknown_token_id": value(U32, 0)}
    return values


def llama3_factors(s):
    factor, low, high, original = s["llama3"]
    wavelength = 2 * math.pi * s["theta"] ** (np.arange(0, s["head_dim"], 2) / s["head_dim"])
    smooth = np.clip((original / wavelength - low) / (high - low), 0, 1)
    return (1 / ((1 - smooth) / factor + smooth)).astype("<f4")


def tensors(s):
    """(name, rows or None, columns, gain): gain 0 is a vector of zeros, None a vector of ones."""
    embd, q, kv, ff = s["embd"], s["heads"] * s["head_dim"], s["kv"] * s["head_dim"], s["ff"]
    plain = s["arch"] == "gpt2"

    def vector(name, n, bias=True):
        yield name + ".weight", None, n, None
        if plain and bias:
            yield name + ".bias", None, n, 0

    def matrix(name, rows, cols, gain=1.0):
        yield name + ".weight", rows, cols, gain
        if plain:
            yield name + ".bias", None, rows, 0

    yield "token_embd.weight", s["vocab"], embd, 1.0
    if plain:
        yield "position_embd.weight", s["ctx"], embd, 0.5
    if "llama3" in s:
        yield "rope_freqs.weight", None, s["head_dim"] // 2, llama3_factors(s)
    yield from vector("output_norm", embd)
    if not s["tied"]:
        yield "output.weight", s["vocab"], embd, 1.0
    for i in range(s["layers"]):
        b = f"blk.{i}."
        yield from vector(b + "attn_norm", embd)
        if plain:
            yield from matrix(b + "attn_qkv", q + 2 * kv, embd)
        else:
            yield from matrix(b + "attn_q", q, embd, 1.3)
            yield from matrix(b + "attn_k", kv, embd, 1.3)
            yield from matrix(b + "attn_v", kv, embd)
        yield from matrix(b + "attn_output", embd, q, 0.5)
        yield from vector(b + "ffn_norm", embd)
        if not plain:
            yield from matrix(b + "ffn_gate", ff, embd)
        yield from matrix(b + "ffn_up", ff, embd)
        yield from matrix(b + "ffn_down", embd, ff, 0.5)


def random_weights(kind, n, std, rng):
    """Bytes of n elements, n a multiple of the block."""
    if kind == "f16":  # random sign and fraction over one exponent: their root mean square is 1.53 times its power of two
        exponent = int(np.clip(round(math.log2(std / 1.53)) + 15, 1, 30))
        bits = np.frombuffer(rng.bytes(2 * n), dtype="<u2") & np.uint16(0x83FF)
        return (bits | np.uint16(exponent << 10)).tobytes()
    _, block, block_bytes, _ = TYPES[kind]
    blocks = np.frombuffer(rng.bytes(n // block * block_bytes), dtype=np.uint8).reshape(-1, block_bytes).copy()
    quant_std = {"q8_0": 73.9, "q4_0": 4.63, "q6_k": 18.47 * 97.27, "q3_k": 2.345 * 18.48, "mxfp4": 2.926}[kind]
    if kind == "mxfp4":  # the scale is a byte: 2^(e - 127) times values of 0 to 6 and their negatives
        blocks[:, 0] = 127 + round(math.log2(std / quant_std)) + rng.integers(-1, 2, len(blocks)) // 2
        return blocks.tobytes()
    at = block_bytes - 2 if kind in ("q6_k", "q3_k") else 0
    if kind == "q6_k":
        blocks[:, 192:208] = 64 + blocks[:, 192:208] % 64  # the scales of its groups, 97.27 in the root mean square
    scale = rng.uniform(0.7, 1.3, len(blocks)) * (std / quant_std)
    scale[blocks[:, 0] & 1 == 1] *= -1  # the quants' mean is half a step below zero: let it cancel between blocks
    blocks[:, at:at + 2] = scale.astype("<f2").view(np.uint8).reshape(-1, 2)
    return blocks.tobytes()


def plan(s, kind):
    """Every tensor with its type and bytes; a row that blocks do not divide is stored in F16."""
    for name, rows, cols, gain in tensors(s):
        used = "f32" if rows is None else kind if cols % TYPES[kind][1] == 0 else "f16"
        number, block, block_bytes, _ = TYPES[used]
        yield name, rows, cols, gain, used, number, (rows or 1) * cols // block * block_bytes


def write(f, name, s, kind, seed):
    rng = np.random.Generator(np.random.SFC64(seed))
    values = header_values(name, s, kind)
    entries = list(plan(s, kind))
    f.write(b"GGUF" + struct.pack("<IQQ", 3, len(entries), len(values)))
    for key, encoded in values.items():
        f.write(text(key) + encoded)
    offset = 0
    for tensor, rows, cols, _, _, number, n_bytes in entries:
        dims = [cols] if rows is None else [cols, rows]
        f.write(text(tensor) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims) + struct.pack("<IQ", number, offset))
        offset += -(-n_bytes // ALIGNMENT) * ALIGNMENT
    f.write(b"\0" * (-f.tell() % ALIGNMENT))
    for tensor, rows, cols, gain, used, _, _ in entries:
        if rows is None:
            vector = gain if isinstance(gain, np.ndarray) else np.full(cols, 1.0 if gain is None else gain)
            f.write(vector.astype("<f4").tobytes())
        else:
            std = gain * (1.0 if "embd" in tensor else 1 / math.sqrt(cols))
            rows_at_once = max(1, CHUNK // cols)
            for first in range(0, rows, rows_at_once):
                f.write(random_weights(used, min(rows_at_once, rows - first) * cols, std, rng))
        f.write(b"\0" * (-f.tell() % ALIGNMENT))


def main():
    parser = argparse.ArgumentParser(description="A GGUF file with a known model's shape and random weights.")
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("type", choices=[t for t in TYPES if t != "f32"])
    parser.add_argument("out")
    parser.add_argument("--ctx", type=int, help="context length the file declares")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    shape = dict(SHAPES[args.shape])
    if args.ctx is not None:
        if args.ctx < 1:
            parser.error("--ctx must be at least 1")
        shape["ctx"] = args.ctx
    temporary = f"{args.out}.part"
    try:
        with open(temporary, "wb") as f:
            write(f, args.shape, shape, args.type, args.seed)
        os.replace(temporary, args.out)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    print(f"{args.out}: {args.shape} in {args.type}, {os.path.getsize(args.out) / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
