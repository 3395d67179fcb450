"""Variants of the small models of tests/data/architectures.json: each has one tensor, in all layers, less or more than the model, or q, k
and v as one tensor. Used by test_optional_tensors.py, and by tools/fixtures/record_optional_tensors.py for llama.cpp's answer."""
import zlib

import numpy as np

from gguf_file import Gguf

BIASED = ("attn_q", "attn_k", "attn_v", "attn_qkv", "attn_output", "ffn_gate", "ffn_up", "ffn_down")


def copy_of(gguf):
    other = Gguf()
    other.values, other.tensors = dict(gguf.values), dict(gguf.tensors)
    return other


def bias(gguf, name, n):
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    gguf.put_tensor(name, [n], list((0.2 * rng.standard_normal(n)).astype(np.float32)))


def fused(gguf, layers):
    """With attn_qkv in the place of attn_q, attn_k and attn_v."""
    out = copy_of(gguf)
    for layer in layers:
        for kind in (".weight", ".bias"):
            names = [f"blk.{layer}.attn_{c}{kind}" for c in "qkv"]
            if names[0] in out.tensors:
                parts = [out.tensors.pop(name) for name in names]
                dims = [*parts[0][0][:-1], sum(p[0][-1] for p in parts)]
                out.tensors[f"blk.{layer}.attn_qkv{kind}"] = (dims, parts[0][1], b"".join(p[2] for p in parts))
    return out


def variants(gguf):
    """(name, file) of each variant. gguf: a model of F32 tensors."""
    layers = sorted({name.split(".")[1] for name in gguf.tensors if name.startswith("blk.")})
    parts = sorted({name.split(".", 2)[2] for name in gguf.tensors if name.startswith("blk.")})
    for word in BIASED:
        if f"{word}.weight" in parts and f"{word}.bias" not in parts:
            out = copy_of(gguf)
            for layer in layers:
                bias(out, f"blk.{layer}.{word}.bias", gguf.tensors[f"blk.{layer}.{word}.weight"][0][1])
            yield f"add {word}.bias", out
    if "output.bias" not in gguf.tensors:
        out = copy_of(gguf)
        bias(out, "output.bias", gguf.tensors["token_embd.weight"][0][1])
        yield "add output.bias", out
    if "attn_q.weight" in parts:
        yield "fuse", fused(gguf, layers)
    for part in parts:
        if part.endswith(".bias"):
            out = copy_of(gguf)
            for layer in layers:
                del out.tensors[f"blk.{layer}.{part}"]
            yield f"drop {part}", out
    for name in gguf.tensors:
        if not name.startswith("blk.") and name != "token_embd.weight":
            out = copy_of(gguf)
            del out.tensors[name]
            yield f"drop {name}", out
