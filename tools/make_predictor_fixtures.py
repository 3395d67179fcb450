#!/usr/bin/env python3
"""Losses and gradients of TokenButler predictors by PyTorch's autograd, for tests/test_train.c.

A small random problem in each file of tests/data/predictor: the model's side (what its layers are given, queries, keys) is random
too, since for the predictor it is only data. Formulas as src/model/predictor.h has them, losses over whole L x L matrices. A file is
a line of text with the sizes, then float32 values: for each layer normed input, queries, keys; weights; loss; gradients.

    python3 tools/make_predictor_fixtures.py tests/data/predictor      (needs torch)
"""
import math
import struct
import sys
from pathlib import Path

import torch

torch.set_default_dtype(torch.float64)


def rotate(x, base, length=0):
    """x [tokens, heads, dim]; pairs (i, i + dim/2); with a length only those that turn within it."""
    n, _, dim = x.shape
    freq = base ** (-2 * torch.arange(dim // 2) / dim)
    if length:
        freq[freq * length < 2 * math.pi] = 0
    angle = torch.arange(n)[:, None] * freq
    c, s = angle.cos()[:, None], angle.sin()[:, None]
    a, b = x[..., :dim // 2], x[..., dim // 2:]
    return torch.cat([a * c - b * s, a * s + b * c], -1)


def causal(n, window=0):
    """Which tokens each sees; with a window so many of the newest."""
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    return mask.triu(1 - window) if window else mask


def attention_scores(q, k, group):
    """[heads, tokens, tokens]"""
    k = k.repeat_interleave(group, 1)
    return torch.einsum("thd,ihd->hti", q, k) / math.sqrt(q.shape[-1])


def head_losses(true, predicted, kind):
    n = true.shape[-1]
    mask = causal(n)
    if kind == "square":
        return ((predicted - true) ** 2).mean((1, 2)).sum()
    if kind == "causal":
        return ((predicted - true) ** 2)[:, mask].mean(1).sum()
    hide = lambda x: x.masked_fill(~mask, -math.inf)
    target, log = hide(true).softmax(-1), hide(predicted).log_softmax(-1)
    return -(target * log.masked_fill(~mask, 0)).sum((1, 2)).sum() / n


def parameters(s):
    """Names and shapes, in the file's order."""
    E, M, H, d, I, layers = s["embd"], s["mid"], s["heads"], s["d"], s["inner"], s["layers"] - 1
    if s["version"] == 1:
        return [("down", (I, E)), ("attn_q", (I, I)), ("attn_k", (I, I)), ("attn_v", (I, I)), ("norm", (I,)), ("norm.bias", (I,)),
                ("ffn_up", (2 * I, I)), ("ffn_up.bias", (2 * I,)), ("ffn_down", (E, 2 * I)), ("ffn_down.bias", (E,)),
                ("query_1", (M, E)), ("query_2", (layers * H * d, M)), ("key_1", (M, E)), ("key_2", (layers * s["key_heads"] * d, M))]
    out, first = [], 1
    while first <= layers:
        served = min(s["stride"], layers - first + 1)
        b = first // s["stride"]
        out += [(f"{b}.norm", (E,)), (f"{b}.norm.bias", (E,)), (f"{b}.query_1", (M, E)), (f"{b}.query_2", (served * H * d, M))]
        first += served
    return out + [(f"key.{l}", (s["kv_heads"] * d, s["head_dim"])) for l in range(1, s["layers"])]


def v1(s, w, inputs, queries, keys):
    n, H, d = s["tokens"], s["heads"], s["d"]
    F = torch.nn.functional
    I = inputs[0]
    z = I @ w["down"].T
    split = lambda x: x.view(n, s["inner_heads"], -1)
    q, k, v = (split(z @ w[f"attn_{x}"].T) for x in "qkv")
    q, k = rotate(q, s["base"], s["length"]), rotate(k, s["base"], s["length"])
    scores = attention_scores(q, k, 1).masked_fill(~causal(n, 4 * s["length"]), -math.inf)
    a = torch.einsum("hti,ihd->thd", scores.softmax(-1), v).reshape(n, -1)
    normed = F.layer_norm(a, (s["inner"],), w["norm"], w["norm.bias"], 1e-5)
    f = F.gelu(normed @ w["ffn_up"].T + w["ffn_up.bias"], approximate="tanh") @ w["ffn_down"].T + w["ffn_down.bias"]
    wide = I + f
    Q = (F.silu(wide @ w["query_1"].T) @ w["query_2"].T).view(n, s["layers"] - 1, H, d)
    K = (F.silu(wide @ w["key_1"].T) @ w["key_2"].T).view(n, s["layers"] - 1, s["key_heads"], d)
    loss = 0
    for l in range(1, s["layers"]):
        Ql, Kl = (rotate(x[:, l - 1], s["base"], s["length"]) for x in (Q, K))
        predicted = attention_scores(Ql, Kl, H // s["key_heads"])
        loss = loss + head_losses(attention_scores(queries[l], keys[l], H // s["kv_heads"]), predicted, s["loss"])
    return loss / ((s["layers"] - 1) * H)


def v2(s, w, inputs, queries, keys):
    n, H, G, d = s["tokens"], s["heads"], s["kv_heads"], s["d"]
    F = torch.nn.functional
    loss = 0
    for l in range(1, s["layers"]):
        b = (l - 1) // s["stride"]
        normed = F.layer_norm(inputs[b * s["stride"]], (s["embd"],), w[f"{b}.norm"], w[f"{b}.norm.bias"], 1e-5)
        Q = (F.silu(normed @ w[f"{b}.query_1"].T) @ w[f"{b}.query_2"].T).view(n, -1, H, d)[:, l - 1 - b * s["stride"]]
        K = torch.einsum("tgD,gdD->tgd", keys[l], w[f"key.{l}"].view(G, d, -1))
        predicted = attention_scores(rotate(Q, s["base"]) if s["base"] else Q, K, H // G)
        loss = loss + head_losses(attention_scores(queries[l], keys[l], H // G), predicted, "entropy")
    return loss / ((s["layers"] - 1) * H)


FIELDS = ["version", "tokens", "layers", "embd", "heads", "kv_heads", "head_dim", "d", "mid", "inner", "inner_heads", "key_heads",
          "stride", "length", "base"]


def make(path, **s):
    generator = torch.Generator().manual_seed(7)
    draw = lambda *shape: torch.randn(*shape, generator=generator).float().double()  # what a float can hold
    n, layers = s["tokens"], s["layers"]
    inputs = [draw(n, s["embd"]) for _ in range(layers)]
    queries = [draw(n, s["heads"], s["head_dim"]) for _ in range(layers)]
    keys = [draw(n, s["kv_heads"], s["head_dim"]) for _ in range(layers)]
    w = {}
    for name, shape in parameters(s):
        x = draw(*shape) * (1 / math.sqrt(shape[-1]) if len(shape) == 2 else 0.1) + (1 if name.endswith("norm") else 0)
        w[name] = x.float().double().requires_grad_()
    loss = (v1 if s["version"] == 1 else v2)(s, w, inputs, queries, keys)
    loss.backward()
    values = [t for l in range(layers) for t in (inputs[l], queries[l], keys[l])]
    values += [*w.values(), loss, *(x.grad for x in w.values())]
    numbers = torch.cat([v.detach().reshape(-1) for v in values]).tolist()
    head = " ".join(str(s[f]) for f in FIELDS) + f" {s['loss']}\n"
    Path(path).write_bytes(head.encode() + struct.pack(f"<{len(numbers)}f", *numbers))
    print(path, f"loss {loss.item():.6f}", sum(x.numel() for x in w.values()), "parameters")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    small = dict(tokens=70, layers=4, embd=12, heads=4, kv_heads=2, head_dim=6, d=4, mid=10)
    one = dict(version=1, inner=8, inner_heads=2, stride=0, base=100.0, **small)
    two = dict(version=2, length=0, loss="entropy", key_heads=2, inner=0, inner_heads=0, stride=2, **small)
    make(folder / "v1-causal.bin", loss="causal", key_heads=2, length=0, **one)
    make(folder / "v1-square.bin", loss="square", key_heads=4, length=0, **one)
    make(folder / "v1-fast.bin", loss="entropy", key_heads=2, length=14, **one)
    make(folder / "v2.bin", base=0.0, **two)
    make(folder / "v2-rotated.bin", base=100.0, **two)
