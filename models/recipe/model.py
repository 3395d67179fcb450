"""The network: Llama as GGUF readers know it (RMSNorm, rotary positions, grouped-query attention, SwiGLU, tied output), and nothing else.

Written for a CPU with a bfloat16 matrix unit: products and the residual stream are bfloat16, norms and the loss float32, and the cross-entropy runs in chunks
of rows with its gradient made on the way, so that no [tokens, vocabulary] matrix of float32 ever exists.
"""
from dataclasses import asdict, dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass
class Config:
    n_vocab: int = 8192
    n_embd: int = 384
    n_layer: int = 6
    n_head: int = 6
    n_kv: int = 2
    d_head: int = 64
    n_ff: int = 1024
    rope_base: float = 500000.0
    eps: float = 1e-5
    n_ctx: int = 16384

    def to_dict(self):
        return asdict(self)


def rope_tables(cfg, positions):
    """cos and sin, [batch, 1, tokens, d_head / 2], for integer positions [batch, tokens]; pairs are (i, i + d_head/2)."""
    half = cfg.d_head // 2
    freq = cfg.rope_base ** (-torch.arange(half, dtype=torch.float32, device=positions.device) / half)
    angle = positions.float()[:, None, :, None] * freq
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def loss_chunk(h, emb, target, weight):
    """Rows' losses [rows], and the gradients of Σ weight · loss for h and emb; in one function so that a compiler can fuse all between the products."""
    logits = (h @ emb.t()).float()
    lse = logits.logsumexp(-1)
    loss = lse - logits.gather(1, target[:, None]).squeeze(1)
    hit = torch.arange(emb.shape[0], device=h.device)[None, :] == target[:, None]
    grad = (((logits - lse[:, None]).exp() - hit.float()) * weight[:, None]).to(h.dtype)
    return loss, grad @ emb, grad.t() @ h


class ChunkedCrossEntropy(torch.autograd.Function):
    """Sum of weight · −log softmax(h·Eᵀ)[target]; the gradients of h and E are computed here, chunk by chunk, while the logits are still warm."""
    chunk = staticmethod(loss_chunk)

    @staticmethod
    def forward(ctx, h, emb, target, weight, rows):
        emb_h = emb.to(h.dtype)
        demb = torch.zeros(emb.shape, dtype=torch.float32, device=emb.device)
        parts = []
        for i in range(0, h.shape[0], rows):
            loss, dh, de = ChunkedCrossEntropy.chunk(h[i:i + rows], emb_h, target[i:i + rows], weight[i:i + rows])
            parts.append((loss, dh))
            demb += de
        losses, dh = torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
        ctx.save_for_backward(dh, demb)
        ctx.mark_non_differentiable(losses)
        return (losses * weight).sum(), losses

    @staticmethod
    def backward(ctx, grad, _):
        dh, demb = ctx.saved_tensors
        return dh * grad.to(dh.dtype), demb * grad, None, None, None


class Block(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.attn_norm = nn.Parameter(torch.ones(cfg.n_embd))
        self.ffn_norm = nn.Parameter(torch.ones(cfg.n_embd))
        self.q = nn.Parameter(torch.empty(cfg.n_head * cfg.d_head, cfg.n_embd))
        self.k = nn.Parameter(torch.empty(cfg.n_kv * cfg.d_head, cfg.n_embd))
        self.v = nn.Parameter(torch.empty(cfg.n_kv * cfg.d_head, cfg.n_embd))
        self.o = nn.Parameter(torch.zeros(cfg.n_embd, cfg.n_head * cfg.d_head))
        self.gate = nn.Parameter(torch.empty(cfg.n_ff, cfg.n_embd))
        self.up = nn.Parameter(torch.empty(cfg.n_ff, cfg.n_embd))
        self.down = nn.Parameter(torch.zeros(cfg.n_embd, cfg.n_ff))
        for w in (self.q, self.k, self.v, self.gate, self.up):
            nn.init.normal_(w, std=cfg.n_embd ** -0.5)

    def pre(self, x, cos, sin):
        cfg, dt = self.cfg, x.dtype
        b, t, _ = x.shape
        h = norm(x, self.attn_norm, cfg.eps)
        q = F.linear(h, self.q.to(dt)).view(b, t, cfg.n_head, cfg.d_head).transpose(1, 2)
        k = F.linear(h, self.k.to(dt)).view(b, t, cfg.n_kv, cfg.d_head).transpose(1, 2)
        v = F.linear(h, self.v.to(dt)).view(b, t, cfg.n_kv, cfg.d_head).transpose(1, 2)
        return rotate(q, cos, sin), rotate(k, cos, sin), v

    def post(self, x, a):
        cfg, dt = self.cfg, x.dtype
        b, t, _ = x.shape
        x = x + F.linear(a.transpose(1, 2).reshape(b, t, cfg.n_head * cfg.d_head), self.o.to(dt))
        h = norm(x, self.ffn_norm, cfg.eps)
        return x + F.linear(F.silu(F.linear(h, self.gate.to(dt))) * F.linear(h, self.up.to(dt)), self.down.to(dt))

    def forward(self, x, cos, sin, past=None):
        q, k, v = self.pre(x, cos, sin)
        if past is not None:
            k, v = past.append(self, k, v)
        rep = self.cfg.n_head // self.cfg.n_kv
        k, v = k.repeat_interleave(rep, dim=1), v.repeat_interleave(rep, dim=1)
        # A cached step asks with one query, which may see every key; a whole sequence needs the causal mask.
        return self.post(x, F.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1))


def norm(x, weight, eps):
    h = x.float()
    return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


class Cache:
    """Keys and values of one batch while generating; the prompt goes in at once, then one token a step."""

    def __init__(self):
        self.kv = {}

    def append(self, block, k, v):
        if id(block) in self.kv:
            pk, pv = self.kv[id(block)]
            k, v = torch.cat((pk, k), 2), torch.cat((pv, v), 2)
        self.kv[id(block)] = (k, v)
        return k, v


class Llama(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.cfg = cfg
        self.embed = nn.Parameter(torch.randn(cfg.n_vocab, cfg.n_embd) * 0.02)
        self.blocks = nn.ModuleList(Block(cfg) for _ in range(cfg.n_layer))
        self.out_norm = nn.Parameter(torch.ones(cfg.n_embd))

    def hidden(self, ids, positions=None, past=None, dtype=torch.bfloat16):
        if positions is None:
            positions = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        cos, sin = rope_tables(self.cfg, positions)
        x = F.embedding(ids, self.embed).to(dtype)
        for block in self.blocks:
            x = block(x, cos, sin, past)
        return norm(x, self.out_norm, self.cfg.eps)

    def logits(self, ids, positions=None, past=None, dtype=torch.bfloat16, last=False):
        h = self.hidden(ids, positions, past, dtype)
        if last:
            h = h[:, -1:]
        return (h @ self.embed.to(dtype).t()).float()

    def loss(self, ids, target, weight, positions, rows=512):
        """Weighted sum of the losses over all tokens, and each token's loss [tokens]; the caller divides."""
        h = self.hidden(ids, positions)
        return ChunkedCrossEntropy.apply(h.flatten(0, 1), self.embed, target.flatten(), weight.flatten(), rows)

    def compile(self):
        """Fuses what lies between the products; about twice as fast on a CPU. One compilation per shape."""
        self.hidden = torch.compile(self.hidden, dynamic=False)
        ChunkedCrossEntropy.chunk = staticmethod(torch.compile(loss_chunk, dynamic=False))
