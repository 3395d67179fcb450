"""A head start for retrieval: three heads are set by hand before training, the rest stays random.

Finding an earlier place where the same thing was said takes two steps that training discovers only after millions of tokens: a head of an early layer writes into
every token what came before it, and a later head looks for tokens whose predecessor is the current token and repeats what stands there. On two shared cores those millions are
most of the budget, so both steps are put there: layer 0 gets a head that looks one token back and one that looks two back (constant queries and keys whose rotary phases agree at
that distance only), layer 2 a head that matches them and copies. Training is free to change them.
"""
import torch

SPARE, BACK1, BACK2 = 0, 192, 160   # residual dimensions: the constant, predecessor (64 of them), predecessor's predecessor (32)
CONTENT = slice(1, 160)


def look_back(block, cfg, head, kv, distance, into, width, reader):
    d, half = cfg.d_head, cfg.d_head // 2
    fast = 12                                                  # only pairs that turn fast enough to tell one position from the next
    theta = cfg.rope_base ** (-torch.arange(fast, dtype=torch.float32) / half)
    alpha = 6.2 / 2.5                                          # the normalised constant is about 2.5
    block.q[head * d:(head + 1) * d] = 0
    block.k[kv * d:(kv + 1) * d] = 0
    block.q[head * d:head * d + fast, SPARE] = alpha
    block.k[kv * d:kv * d + fast, SPARE] = alpha * (distance * theta).cos()
    block.k[kv * d + half:kv * d + half + fast, SPARE] = alpha * (distance * theta).sin()
    block.v[kv * d:(kv + 1) * d] = 0
    block.v[kv * d:(kv + 1) * d, CONTENT] = reader
    block.o[into:into + width, head * d:head * d + width] = 0.016 * torch.eye(width)


def match_and_copy(block, cfg, head, kv, reader, writer, g1=3.2, g2=2.2, gain=0.16, first=20, n1=14):
    d, half = cfg.d_head, cfg.d_head // 2
    slow = torch.arange(first, half)                              # pairs that turn so slowly that the match hardly depends on the distance
    dims = torch.cat((slow, slow + half))
    one, two = dims[:n1], dims[n1:]
    block.q[head * d:(head + 1) * d] = 0
    block.k[kv * d:(kv + 1) * d] = 0
    for j, r in enumerate(one.tolist()):
        block.q[head * d + r, CONTENT] = g1 * reader[j]
        block.k[kv * d + r, BACK1 + j] = g1
    for j, r in enumerate(two.tolist()):
        block.q[head * d + r, BACK1 + j] = g2
        block.k[kv * d + r, BACK2 + j] = g2
    block.v[kv * d:(kv + 1) * d] = 0
    block.v[kv * d:(kv + 1) * d, CONTENT] = writer
    block.o[CONTENT, head * d:(head + 1) * d] = gain * writer.t()


@torch.no_grad()
def wire(model):
    cfg = model.cfg
    if cfg.n_embd != 256 or cfg.d_head != 64 or cfg.n_kv < 2 or cfg.n_layer < 3:
        raise ValueError("wire() is written for width 256 with heads of 64")
    n = CONTENT.stop - CONTENT.start
    reader = torch.linalg.qr(torch.randn(n, cfg.d_head))[0].t()
    writer = torch.linalg.qr(torch.randn(n, cfg.d_head))[0].t()
    model.embed[:, SPARE] = 0.04
    model.embed[:, BACK2:] = 0
    group = cfg.n_head // cfg.n_kv
    look_back(model.blocks[0], cfg, 0, 0, 1, BACK1, 64, reader)
    look_back(model.blocks[0], cfg, group, 1, 2, BACK2, 32, reader)
    match_and_copy(model.blocks[2], cfg, 0, 0, reader, writer)
