"""The forward pass of a small llama model in float64, from its equations. Tests that need more than logits compare butler with it."""
import numpy as np

from gguf_file import Gguf
from policies_reference import log_softmax, rotate


class Llama:
    """A GGUF file of architecture llama whose tensors are all F32."""

    def __init__(self, path):
        gguf = Gguf(path)
        number = lambda key: gguf.values["llama." + key][1]
        self.n_layers, self.n_heads, self.n_kv = (number(k) for k in ("block_count", "attention.head_count", "attention.head_count_kv"))
        self.eps, base, self.dim = number("attention.layer_norm_rms_epsilon"), number("rope.freq_base"), number("embedding_length") // self.n_heads
        self.freq = base ** (-np.arange(self.dim // 2) * 2.0 / self.dim)
        self.weights = {}
        for name, (dims, kind, data) in gguf.tensors.items():
            assert kind == 0, name
            self.weights[name] = np.frombuffer(data, np.float32).reshape(dims[::-1]).astype(np.float64)

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weights[name]

    def heads(self, x, name, n, rotated):
        """[tokens, width] -> [n, tokens, dim]."""
        out = (x @ self.weights[name].T).reshape(len(x), n, self.dim).transpose(1, 0, 2)
        return np.stack([rotate(h, np.arange(len(x)), self.freq, 1.0, self.dim, True) for h in out]) if rotated else out

    def forward(self, ids):
        """Logits [tokens, vocabulary], and each layer's q·k before scaling, [layers, query heads, tokens, tokens]. self.values:
        [layers, KV heads, tokens, dim], self.attention: as q·k, after the softmax."""
        x, dots, group = self.weights["token_embd.weight"][ids], [], self.n_heads // self.n_kv
        self.values, self.attention = [], []
        hidden = np.triu(np.full((len(ids), len(ids)), -np.inf), 1)
        for l in range(self.n_layers):
            w = lambda name: f"blk.{l}.{name}.weight"
            h = self.norm(x, w("attn_norm"))
            q, k = self.heads(h, w("attn_q"), self.n_heads, True), self.heads(h, w("attn_k"), self.n_kv, True)
            v = self.heads(h, w("attn_v"), self.n_kv, False)
            dots.append(np.stack([q[i] @ k[i // group].T for i in range(self.n_heads)]))
            self.values.append(v)
            self.attention.append([np.exp(log_softmax(dots[-1][i] / np.sqrt(self.dim) + hidden)) for i in range(self.n_heads)])
            seen = [self.attention[-1][i] @ v[i // group] for i in range(self.n_heads)]
            x = x + np.concatenate(seen, 1) @ self.weights[w("attn_output")].T
            h = self.norm(x, w("ffn_norm"))
            gate = h @ self.weights[w("ffn_gate")].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ self.weights[w("ffn_up")].T)) @ self.weights[w("ffn_down")].T
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return self.norm(x, "output_norm.weight") @ head.T, np.array(dots)
