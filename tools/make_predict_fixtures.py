"""Fixtures of tests/test_predict.c: both versions of the predictor, computed by PyTorch from random weights.

    python tools/make_predict_fixtures.py tests/data/predict

A file is int32 sizes (version, n_layers, n_embd, n_heads, n_kv_heads, head_dim, d, n_mid, n_inner, n_inner_heads,
n_key_heads, stride, n_tokens, rope_length), float rope base (version 2: of its queries, 0: not rotated), then floats: all weights in the order of src/model/predictor.h; the inputs
[producers][n_tokens][n_embd]; in version 2 the cached keys [n_layers - 1][n_tokens][n_kv_heads][head_dim]; and the expected
scores of the last token, [n_layers - 1][n_heads][n_tokens].
"""
import math
import struct
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

N, E, H, G, D, M, T = 6, 32, 4, 2, 8, 24, 37


def rotate(x, base, length=0):
    """x [tokens][...][n], pairs (i, i + n/2), by the token's position; with a length only pairs that turn within it."""
    n = x.shape[-1]
    freq = base ** (-torch.arange(0, n, 2).double() / n)
    if length:
        freq[freq * length < 2 * math.pi] = 0
    angle = torch.arange(x.shape[0]).double()[:, None] * freq
    shape = [x.shape[0]] + [1] * (x.dim() - 2) + [n // 2]
    c, s = angle.cos().view(shape), angle.sin().view(shape)
    a, b = x[..., : n // 2].double(), x[..., n // 2:].double()
    return torch.cat([a * c - b * s, a * s + b * c], -1)


class Weights:
    def __init__(self, generator):
        self.generator, self.all = generator, []

    def matrix(self, rows, cols):
        return self.keep(torch.randn(rows, cols, generator=self.generator) / math.sqrt(cols))

    def vector(self, n, mean):
        return self.keep(mean + 0.3 * torch.randn(n, generator=self.generator))

    def keep(self, w):
        self.all.append(w)
        return w.double()


def two_layers(x, first, second):
    return F.linear(F.silu(F.linear(x, first)), second)


def version1(generator, key_heads, length=0):
    d, inner, heads, base = 8, 16, 2, 500.0
    w = Weights(generator)
    down = w.matrix(inner, E)
    wq, wk, wv = (w.matrix(inner, inner) for _ in range(3))
    norm, shift = w.vector(inner, 1), w.vector(inner, 0)
    up, up_bias = w.matrix(2 * inner, inner), w.vector(2 * inner, 0)
    out, out_bias = w.matrix(E, 2 * inner), w.vector(E, 0)
    q1, q2 = w.matrix(M, E), w.matrix((N - 1) * H * d, M)
    k1, k2 = w.matrix(M, E), w.matrix((N - 1) * key_heads * d, M)
    x = torch.randn(T, E, generator=generator)
    z = F.linear(x.double(), down)
    q, k = (rotate(F.linear(z, m).view(T, heads, -1), base, length).transpose(0, 1) for m in (wq, wk))
    v = F.linear(z, wv).view(T, heads, -1).transpose(0, 1)
    back = torch.arange(T)[:, None] - torch.arange(T)
    seen = (back >= 0) & (back < (4 * length or T))
    a = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1).reshape(T, inner)
    a = F.layer_norm(a, (inner,), norm, shift, 1e-5)
    i = x.double() + F.linear(F.gelu(F.linear(a, up, up_bias), approximate="tanh"), out, out_bias)
    query = rotate(two_layers(i, q1, q2).view(T, N - 1, H, d), base, length)[-1]
    key = rotate(two_layers(i, k1, k2).view(T, N - 1, key_heads, d), base, length).repeat_interleave(H // key_heads, 2)
    scores = torch.einsum("lhd,tlhd->lht", query, key) / math.sqrt(d)
    return (1, N, E, H, G, D, d, M, inner, heads, key_heads, 0, T, length), base, w.all + [x, scores]


def version2(generator, base):
    d, stride = 4, 2
    w = Weights(generator)
    served = [range(p + 1, min(p + stride, N - 1) + 1) for p in range(0, N - 1, stride)]
    producers = [(w.vector(E, 1), w.vector(E, 0), w.matrix(M, E), w.matrix(len(s) * H * d, M)) for s in served]
    narrow = [w.matrix(G * d, D).view(G, d, D) for _ in range(N - 1)]
    x = torch.randn(len(served), T, E, generator=generator)
    cached = torch.randn(N - 1, T, G, D, generator=generator)
    scores = torch.empty(N - 1, H, T, dtype=torch.float64)
    for (norm, shift, q1, q2), layers, inputs in zip(producers, served, x):
        query = two_layers(F.layer_norm(inputs[-1].double(), (E,), norm, shift, 1e-5), q1, q2).view(len(layers), H, d)
        if base:  # as the last of T tokens
            query = rotate(query.expand(T, -1, -1, -1), base)[-1]
        for q, layer in zip(query, layers):
            key = torch.einsum("gdc,tgc->gtd", narrow[layer - 1], cached[layer - 1].double()).repeat_interleave(H // G, 0)
            scores[layer - 1] = torch.einsum("hd,htd->ht", q, key) / math.sqrt(d)
    return (2, N, E, H, G, D, d, M, 0, 0, G, stride, T, 0), base, w.all + [x, cached, scores]


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    generator = torch.Generator().manual_seed(4)
    cases = {"v1-query.bin": version1(generator, H), "v1-kv.bin": version1(generator, G), "v2.bin": version2(generator, 0.0),
             "v2-rotated.bin": version2(generator, 500.0), "v1-fast.bin": version1(generator, G, T),
             "v1-window.bin": version1(generator, G, 7)}
    for name, (sizes, base, tensors) in cases.items():
        data = struct.pack("<14if", *sizes, base)
        data += b"".join(t.float().contiguous().numpy().astype("<f4").tobytes() for t in tensors)
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
