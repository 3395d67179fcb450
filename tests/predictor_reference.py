"""TokenButler's predictors in NumPy: files of random weights, the network's output (src/model/predictor.h), and scores from stored keys.
Independent of butler's forward pass and kernels."""
import re

import numpy as np

from cli import USAGE, refuses, rows
from gguf_file import ARRAY, F32, STRING, U32, Gguf

TOKENS = 16  # of a record


def n_producers(sizes):
    return -(-(sizes["n_layers"] - 1) // sizes["stride"])


def shapes_of(s):
    layers, embd, d, mid = s["n_layers"] - 1, s["n_embd"], s["d"], s["n_mid"]
    if s["version"] == 1:
        inner = s["n_inner"]
        return {"down.weight": (inner, embd), "attn_q.weight": (inner, inner), "attn_k.weight": (inner, inner),
                "attn_v.weight": (inner, inner), "norm.weight": (inner,), "norm.bias": (inner,), "ffn_up.weight": (2 * inner, inner),
                "ffn_up.bias": (2 * inner,), "ffn_down.weight": (embd, 2 * inner), "ffn_down.bias": (embd,),
                "query_1.weight": (mid, embd), "query_2.weight": (layers * s["n_heads"] * d, mid), "key_1.weight": (mid, embd),
                "key_2.weight": (layers * s["n_key_heads"] * d, mid)}
    shapes = {}
    for b in range(n_producers(s)):
        served = min(s["stride"], layers - b * s["stride"])
        shapes |= {f"producer.{b}.norm.weight": (embd,), f"producer.{b}.norm.bias": (embd,),
                   f"producer.{b}.query_1.weight": (mid, embd), f"producer.{b}.query_2.weight": (served * s["n_heads"] * d, mid)}
    shapes |= {f"key.{layer}.weight": (s["n_kv_heads"] * d, s["head_dim"]) for layer in range(1, layers + 1)}
    return shapes | ({"rope_freq": (layers * s["n_kv_heads"] * d // 2,)} if s.get("head_freq") else {})


def fingerprint_of(model, folder):
    """The model's fingerprint, taken from the error about a predictor for another model."""
    path = folder / "of-nobody.gguf"
    write_random(path, model, "0123456789abcdef", 2)
    error = refuses(USAGE, "run", "-m", model, "-p", "a", "--predictor", path, says=["0123456789abcdef", path]).stderr
    other, = set(re.findall(r"\b[0-9a-f]{16}\b", error)) - {"0123456789abcdef"}
    return other


def write_random(path, model, fingerprint, version, per_query_head=False, input=0, d=8, mid=32, stride=4, seed=1,
                 rotated=False, head_freq=False):
    """Writes a predictor with random weights. head_freq (version 2): each KV head rotates its queries in its own way. Returns the number
    of its parameters."""
    info = rows("info", model)[0]
    s = {"version": version, "input": input, "d": d, "n_mid": mid}
    s |= {key: info[key] for key in ("n_layers", "n_embd", "n_heads", "n_kv_heads", "head_dim")}
    s["n_key_heads"] = s["n_heads"] if per_query_head else s["n_kv_heads"]
    if version == 1:
        s |= {"n_inner": s["n_embd"] // 8 // 4 * 4, "n_inner_heads": 2}
    else:
        s["stride"] = stride
    file = Gguf()
    file.put("general.architecture", STRING, b"butler-predictor")
    for key, value in s.items():
        file.put(f"butler-predictor.{key}", U32, value)
    if version == 1:
        file.put("butler-predictor.rope_base", F32, 10000.0)
        if rotated:
            file.put("butler-predictor.rope_length", U32, 13)
    elif rotated:
        file.put("butler-predictor.rope_freq", ARRAY, (F32, [100.0 ** (-i / (d // 2)) for i in range(d // 2)]))
    file.put("butler-predictor.model_xxh3", STRING, fingerprint.encode())
    file.put("butler-predictor.training.loss", F32, 0.5)
    random = np.random.default_rng(seed)
    shapes = shapes_of(s | {"head_freq": head_freq})
    for name, shape in shapes.items():
        data = random.normal(0, 1.5 / np.sqrt(shape[-1]), shape) if len(shape) == 2 else random.normal("norm.weight" in name, 0.2, shape)
        if name == "rope_freq":
            data = random.uniform(0, 1, shape)
        file.tensors[name] = (list(reversed(shape)), 0, data.astype("<f4").tobytes())
    file.write(path)
    return sum(int(np.prod(shape)) for shape in shapes.values())


# ---------------------------------------------------------------------------------------------- the network

def silu(x):
    return x / (1 + np.exp(-x))


def gelu(x):
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def layer_norm(x, weight, bias):
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt((x ** 2).mean(axis=-1, keepdims=True) + 1e-5) * weight + bias


def rotate(x, freq):
    """x[n][...][dim]: row t at position t, pairs (i, i + dim/2), freq radians per position."""
    n, half = len(x), x.shape[-1] // 2
    angle = np.arange(n)[:, None] * np.array(freq)
    cos, sin = (f(angle).reshape(n, *[1] * (x.ndim - 2), half) for f in (np.cos, np.sin))
    a, b = x[..., :half], x[..., half:]
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def numbers(kind, data):
    """The elements of a tensor: F32, F16 or Q4_0, which has blocks of {half d, nibbles} with elements d (q - 8), the low halves
    of 16 bytes being the first 16 numbers of a block."""
    if kind < 2:
        return np.frombuffer(data, ("<f4", "<f2")[kind]).astype(float)
    assert kind == 2
    blocks = np.frombuffer(data, np.uint8).reshape(-1, 18)
    nibbles = np.concatenate([blocks[:, 2:] % 16, blocks[:, 2:] // 16], axis=1)
    return (np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(float) * (nibbles - 8.0)).reshape(-1)


class Network:
    """A predictor from its file."""

    def __init__(self, path):
        file = Gguf(path)
        self.sizes = {key.split(".", 1)[1]: value for key, (_, value) in file.values.items() if key.startswith("butler-predictor.")}
        self.w, self.quantised = {}, any(kind > 1 for _, kind, _ in file.tensors.values())
        for name, (dims, kind, data) in file.tensors.items():
            self.w[name] = numbers(kind, data).reshape(dims[::-1])

    def queries_and_keys(self, inputs, cached):
        """inputs[layer][n][n_embd] as tokens enter the layers, cached[layer][n][KV heads][head_dim] -> queries
        [n][layers - 1][heads][d] and keys [n][layers - 1][key heads][d]."""
        return (self.first if self.sizes["version"] == 1 else self.second)(inputs, cached)

    def frequencies(self, width):
        """Version 1's frequencies of a vector's pairs: 0 for those that do not complete a turn within rope_length."""
        freq = self.sizes["rope_base"] ** (-np.arange(width // 2) / (width // 2))
        return np.where(freq * self.sizes.get("rope_length", np.inf) >= 2 * np.pi, freq, 0)

    def first(self, inputs, _):
        s, w, x = self.sizes, self.w, inputs[0]
        n, heads, dim = len(x), s["n_inner_heads"], s["n_inner"] // s["n_inner_heads"]
        turn = {width: self.frequencies(width) for width in (dim, s["d"])}
        z = x @ w["down.weight"].T
        q, k = (rotate((z @ w[f"attn_{c}.weight"].T).reshape(n, heads, dim), turn[dim]) for c in "qk")
        v = (z @ w["attn_v.weight"].T).reshape(n, heads, dim)
        scores = np.einsum("thd,ihd->hti", q, k) / np.sqrt(dim)
        back = np.arange(n)[:, None] - np.arange(n)
        scores[:, (back < 0) | (back >= 4 * s.get("rope_length", np.inf))] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        attended = np.einsum("hti,ihd->thd", weights / weights.sum(axis=-1, keepdims=True), v).reshape(n, -1)
        up = gelu(layer_norm(attended, w["norm.weight"], w["norm.bias"]) @ w["ffn_up.weight"].T + w["ffn_up.bias"])
        x = x + up @ w["ffn_down.weight"].T + w["ffn_down.bias"]
        return tuple(rotate((silu(x @ w[f"{c}_1.weight"].T) @ w[f"{c}_2.weight"].T).reshape(n, s["n_layers"] - 1, -1, s["d"]), turn[s["d"]])
                     for c in ("query", "key"))

    def second(self, inputs, cached):
        s, w, queries = self.sizes, self.w, []
        for b in range(n_producers(s)):
            name = f"producer.{b}."
            x = layer_norm(inputs[b * s["stride"]], w[name + "norm.weight"], w[name + "norm.bias"])
            q = silu(x @ w[name + "query_1.weight"].T) @ w[name + "query_2.weight"].T
            q = q.reshape(len(x), -1, s["n_heads"], s["d"])
            if "rope_freq" in w:  # [layers - 1][KV heads][d / 2]
                first, group = b * s["stride"], s["n_heads"] // s["n_kv_heads"]
                freq = w["rope_freq"].reshape(-1, s["n_kv_heads"], s["d"] // 2)
                q = np.stack([np.stack([rotate(q[:, l, h], freq[first + l, h // group]) for h in range(s["n_heads"])], axis=1)
                              for l in range(q.shape[1])], axis=1)
            queries.append(rotate(q, s["rope_freq"][1]) if "rope_freq" in s else q)
        keys = [np.einsum("tgc,gdc->tgd", cached[layer], w[f"key.{layer}.weight"].reshape(s["n_kv_heads"], s["d"], -1))
                for layer in range(1, s["n_layers"])]
        return np.concatenate(queries, axis=1), np.stack(keys, axis=1)


# ------------------------------------------------------------------------------------------- stored keys

class Stored:
    """Predicted keys of one layer from its records (src/kernels/kernels.h, keys8, keys4 and keys16): per key head channels[n][d] and scales[n],
    whose product is the key. queries: [steps][heads][d], from the session."""

    def __init__(self, records, n, d, bits, queries):
        self.bits, self.queries, self.channels, self.scales = bits, queries, [], []
        for head in records:  # uint8 [records][bytes] of a KV head
            wide = -(-d // 8) * 8 if bits == 4 else d  # stored channels
            size = TOKENS * (wide * bits // 8 + (bits < 16))
            for at in range(0, head.shape[1], size):
                block = head[:, at:at + size]
                if bits == 16:
                    channels = np.ascontiguousarray(block).view("<f2").reshape(-1, d, TOKENS).transpose(0, 2, 1)
                    scales = np.ones((len(block), TOKENS))
                else:
                    numbers = block[:, TOKENS:].reshape(-1, wide * bits // 32, TOKENS, 4).transpose(0, 2, 1, 3)
                    if bits == 4:  # four channels in the low halves of bytes, the next four in the high ones
                        numbers = np.concatenate([numbers % 16, numbers // 16], axis=-1)
                    channels = numbers.reshape(-1, TOKENS, wide)[:, :, :d] - 2.0 ** (bits - 1)
                    scales = np.ldexp(1 + block[:, :TOKENS] % 8 / 8, block[:, :TOKENS].astype(int) // 8 - 23)
                self.channels.append(channels.reshape(-1, d)[:n].astype(float))
                self.scales.append(scales.reshape(-1)[:n].astype(float))

    def scores(self, step, head, key, n):
        """q.k / sqrt(d) of a query head with the first n keys."""
        q = self.queries[step][head]
        return self.products(q, key, slice(n)).astype(float) / np.sqrt(len(q))


    def mean_scores(self, step, heads, key, n):
        """Scores in the order of the mean of the heads' standard scores: q.k of one query, the mean of the heads' queries over their lengths."""
        queries = self.queries[step][heads].astype(float)
        lengths = np.linalg.norm(queries, axis=-1, keepdims=True)
        q = np.divide(queries, lengths, out=np.zeros_like(queries), where=lengths > 0).mean(axis=0)
        return self.products(q.astype(np.float32), key, slice(n)).astype(float)

    def products(self, q, key, tokens):
        """q.k rounded as in float."""
        if self.bits == 16:
            return self.channels[key][tokens] @ q.astype(float)
        scale = np.float32(np.abs(q).max()) / np.float32(127)
        numbers = np.rint(np.clip(q * (np.float32(1) / scale if scale > 0 else np.float32(0)), -127, 127)).astype(float)
        return (self.channels[key][tokens] @ numbers).astype(np.float32) * self.scales[key][tokens].astype(np.float32) * scale


class Recorded:
    """What tests/record_policies.c writes of a predictor: int32 {steps, layers, heads, KV heads, d, tokens, n_embd, bits,
    first layer with records, record bytes}, float queries[steps][layers][heads][d], inputs[layers][tokens][n_embd]; uint8
    records[layers][KV heads][records][bytes] of the layers that have them."""

    def __init__(self, path):
        data = path.read_bytes()
        head = np.frombuffer(data, np.int32, 10)
        steps, layers, heads, self.n_kv, d, self.n, embd, self.bits, self.dense, n_bytes = (int(x) for x in head)
        at = head.nbytes

        def take(kind, *shape):
            nonlocal at
            out = np.frombuffer(data, kind, int(np.prod(shape)), at).reshape(shape)
            at += out.nbytes
            return out

        self.queries = take(np.float32, steps, layers, heads, d)
        self.inputs = take(np.float32, layers, self.n, embd).astype(float)
        self.layers = [None] * layers
        for layer in range(self.dense, layers):
            records = take(np.uint8, self.n_kv, -(-self.n // TOKENS), n_bytes)
            self.layers[layer] = Stored(records, self.n, d, self.bits, self.queries[:, layer])
        assert at == len(data)

    def check(self, network, cached, decoded, tolerance):
        """Against the network. cached: keys of every layer as the cache stores them. decoded: positions of the steps. tolerance: of
        the arithmetic, as a share of the longest vector; a stored key may besides be half a step away."""
        queries, keys = network.queries_and_keys(self.inputs, cached)
        for layer in range(self.dense, len(self.layers)):
            want = queries[decoded, layer - 1]
            far = np.abs(self.queries[:, layer] - want).max() / np.linalg.norm(want, axis=-1).max()
            assert far <= tolerance, f"layer {layer}: queries are off by {far:g}"
            stored = self.layers[layer]
            for head, (channels, scales) in enumerate(zip(stored.channels, stored.scales)):
                want = keys[:, layer - 1, head]
                step = 2.0 ** -11 * np.abs(want) + 2.0 ** -25 if self.bits == 16 else 0.5 * scales[:, None]
                allowed = step * 1.001 + tolerance * np.linalg.norm(want, axis=-1).max()
                far = np.abs(channels * scales[:, None] - want) - allowed
                assert far.max() <= 0, f"layer {layer}, key {head}: token {far.max(axis=1).argmax()} is off"
