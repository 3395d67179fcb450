"""A head start for retrieval: five heads are set by hand and held there while everything around them is trained.

Repeating what stood after an earlier occurrence of the same words takes two steps that training discovers only after many millions of tokens: a head of an early layer writes
into every token what came before it, and a later head looks for tokens with the same predecessor and says what stands there. On two shared cores those millions are the whole
budget, so the steps are put there:

- every token has a fixed random code (±1, 48 dimensions of its embedding), and one dimension is constant;
- layer 0, head 0 and head 3: constant queries and keys whose rotary phases agree one and two places back; they carry the code of those tokens into two channels of the residual stream;
- layer 2, head 0 looks for a token preceded by the current token and its predecessor; head 3 for one whose predecessor's predecessor is the current token's predecessor
  (`KEY is` finds the value in `KEY = value`); head 1 for any token preceded by the current one; where nothing matches they rest on BOS. All hand on the code of what they find, and the tied output reads codes as tokens.

Matching uses rotary pairs so slow that 16k places hardly turn them. Norms shrink what they see as the residual stream grows, so the sizes are set anew from a probe text every few steps.
When the heads' outputs are no longer held (`release`), training decides how much they are listened to.
"""
import torch

from model import rope_tables

CONST, SINK = 0, 127
CODE, BACK1, BACK2 = 128, 176, 224
N_CODE, N_BACK2 = 48, 32
BIG, FAST, SLOW, SHARP, MATCH, REST, LOUD = 20.0, 8, 20, 10.5, 2.95, 11.0, 3.0


class Wires:
    @torch.no_grad()
    def __init__(self, model, probe, bos):
        cfg = self.cfg = model.cfg
        if cfg.n_embd != 256 or cfg.d_head != 64 or cfg.n_kv != 2 or cfg.n_layer < 3:
            raise ValueError("wires are laid for width 256 and two key-value heads of 64")
        self.model, self.probe, self.bos = model, probe, bos
        gen = torch.Generator().manual_seed(5)
        self.code = (torch.randint(0, 2, (cfg.n_vocab, N_CODE), generator=gen) * 2 - 1).float().to(model.embed.device)
        self.code[bos] = 0
        self.free = torch.ones(cfg.n_embd, dtype=torch.bool)
        self.free[[CONST, SINK]] = False
        self.free[CODE:] = False
        self.hold(True, True)

    @torch.no_grad()
    def measure(self):
        """Root mean square of the residual stream before layer 2 and after the last layer."""
        m = self.model
        ids = self.probe[None]
        cos, sin = rope_tables(m.cfg, torch.arange(ids.shape[1], device=ids.device)[None])
        x = torch.nn.functional.embedding(ids, m.embed)
        for i, block in enumerate(m.blocks):
            if i == 2:
                self.rms2 = x[:, 1:].pow(2).mean().sqrt()
            x = block(x, cos, sin)
        self.rms_out = x[:, 1:].pow(2).mean().sqrt()

    def look_back(self, head, kv, distance, into, width):
        block, d, half = self.model.blocks[0], self.cfg.d_head, self.cfg.d_head // 2
        theta = self.cfg.rope_base ** (-torch.arange(FAST, dtype=torch.float32, device=self.code.device) / half)
        const = SHARP * self.rms0 / (BIG * self.size)
        for w, at in ((block.q, head * d), (block.k, kv * d), (block.v, kv * d)):
            w[at:at + d] = 0
        block.q[head * d:head * d + FAST, CONST] = const
        block.k[kv * d:kv * d + FAST, CONST] = const * (distance * theta).cos()
        block.k[kv * d + half:kv * d + half + FAST, CONST] = const * (distance * theta).sin()
        lines = torch.arange(width)
        block.v[kv * d + lines, CODE + lines] = 1
        block.o[:, head * d:(head + 1) * d] = 0
        block.o[into + lines, head * d + lines] = self.rms0

    def match(self, head, kv, pairs, loud):
        """pairs: (query dimension, key dimension) of the residual stream, one for each slow rotary dimension."""
        block, d, half = self.model.blocks[2], self.cfg.d_head, self.cfg.d_head // 2
        slow = torch.arange(SLOW, half - 1)
        lift = self.rms2 / self.size
        block.q[head * d:(head + 1) * d] = 0
        block.k[kv * d:(kv + 1) * d] = 0
        for row, (a, b) in zip(torch.cat((slow, slow + half)).tolist(), pairs):
            block.q[head * d + row, a] = MATCH * lift
            block.k[kv * d + row, b] = MATCH * lift
        block.q[head * d + half - 1, CONST] = REST * lift / BIG
        block.k[kv * d + half - 1, SINK] = REST * lift / 2
        lines = torch.arange(N_CODE)
        block.v[kv * d + lines] = 0
        block.v[kv * d + lines, CODE + lines] = lift
        if loud:
            self.speak(head, LOUD)

    def loose(self, head):
        """A second query head on the keys of head 0 that asks for the predecessor alone, and rests less: after `:` it finds what stood after `:`."""
        block, d, half = self.model.blocks[2], self.cfg.d_head, self.cfg.d_head // 2
        slow = torch.arange(SLOW, half - 1)
        lift = self.rms2 / self.size
        block.q[head * d:(head + 1) * d] = 0
        for row, j in zip(torch.cat((slow, slow + half)).tolist(), range(14)):
            block.q[head * d + row, CODE + j] = 1.5 * MATCH * lift
        block.q[head * d + half - 1, CONST] = 10.5 * lift / BIG

    def speak(self, head, loud):
        """The head's output: the code of what it found, `loud` times the size of the residual stream."""
        block, d, lines = self.model.blocks[2], self.cfg.d_head, torch.arange(N_CODE)
        block.o[:, head * d:(head + 1) * d] = 0
        block.o[CODE + lines, head * d + lines] = loud * self.rms_out

    @torch.no_grad()
    def hold(self, measure, loud):
        m = self.model
        self.size = m.embed[:, 1:SINK].std()
        m.embed[:, CONST] = BIG * self.size                     # so big that a token's own norm hardly changes what the norm makes of it
        m.embed[:, SINK] = 0
        m.embed[self.bos, SINK] = 2 * self.size
        m.embed[:, CODE:CODE + N_CODE] = self.size * self.code
        m.embed[:, BACK1:] = 0
        self.rms0 = m.embed.pow(2).mean().sqrt()
        for block in m.blocks[:2]:
            block.o[~self.free] = 0
            block.down[~self.free] = 0
            block.attn_norm[~self.free] = 1
        m.blocks[2].attn_norm[~self.free] = 1
        self.look_back(0, 0, 1, BACK1, N_CODE)
        self.look_back(3, 1, 2, BACK2, N_BACK2)
        if measure:
            self.measure()
        self.match(0, 0, [(CODE + j, BACK1 + j) for j in range(14)] + [(BACK1 + j, BACK2 + j) for j in range(8)], loud)
        self.match(3, 1, [(BACK1 + j, BACK2 + j) for j in range(22)], loud)
        self.loose(1)
        if loud:
            self.speak(1, LOUD / 2)
