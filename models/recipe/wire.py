"""A head start for retrieval: seven heads are laid by hand before the first step, and trained on like everything else from then on.

Repeating what stood after an earlier occurrence of the same words takes two steps that training discovers only after many millions of tokens: a head of an early layer writes
into every token what came before it, and a later head looks for tokens with the same predecessor and says what stands there. On two shared cores those millions are the whole
budget, so the steps are put there:

- every token starts with a random code (±, 48 dimensions of its embedding), and one dimension is constant and large, which keeps the norms nearly linear;
- layer 0, heads 0, 3 and 4: constant queries and keys whose rotary phases agree one, two and three places back; they carry the code of those tokens into channels of the residual stream;
- layer 2, head 0 looks for a token preceded by the current token and its predecessor; head 1 for any token preceded by the current one; head 3 for one whose predecessor's
  predecessor is the current token's predecessor (`KEY is` finds the value in `KEY = value`); head 4 the same one place further back, for a space before a number is a token too.
  Where nothing matches they rest on BOS. All hand on the code of what they find, and the tied output reads codes as tokens.

Matching uses rotary pairs so slow that 16k places hardly turn them.
"""
import torch

CONST, SINK = 0, 127
CODE, BACK1, BACK2, BACK3, END = 128, 176, 208, 232, 256
SIZE, BIG, FREE_GAIN = 0.5, 24.0, 3.0
FAST, SLOW, SHARP, MATCH, REST, LOUD = 8, 20, 10.5, 2.95, 11.0, 3.0


@torch.no_grad()
def lay(model, bos):
    cfg = model.cfg
    if cfg.n_embd != 256 or cfg.d_head != 64 or cfg.n_kv != 2 or cfg.n_head != 6 or cfg.n_layer < 3:
        raise ValueError("heads are laid for width 256, six heads of 64 and two of keys")
    d, half, embed = cfg.d_head, cfg.d_head // 2, model.embed
    n_code = BACK1 - CODE
    code = (torch.randint(0, 2, (cfg.n_vocab, n_code), generator=torch.Generator().manual_seed(5)) * 2 - 1).float()
    code[bos] = 0
    embed.normal_(0, SIZE)
    embed[:, CONST], embed[:, SINK], embed[:, BACK1:] = BIG, 0, 0
    embed[bos, SINK] = 2 * SIZE
    embed[:, CODE:BACK1] = SIZE * code
    rms = float(embed.pow(2).mean().sqrt())
    for block in model.blocks:
        for g in (block.attn_norm, block.ffn_norm):
            g.fill_(FREE_GAIN)
            g[CODE:] = 1
            g[SINK] = 1
            g[CONST] = rms / BIG                                 # the constant reaches every matrix as 1
    model.out_norm.fill_(0.33)
    model.out_norm[CONST] = 0.01

    first, match = model.blocks[0], model.blocks[2]
    theta = cfg.rope_base ** (-torch.arange(FAST, dtype=torch.float32) / half)

    def keys(kv):
        for w in (first.k, first.v):
            w[kv * d:(kv + 1) * d] = 0
        first.k[kv * d:kv * d + FAST, CONST] = SHARP
        first.v[kv * d + torch.arange(n_code), CODE + torch.arange(n_code)] = 1

    def look_back(head, distance, into, width):
        """Rotary phases of the query run ahead by `distance`, so that the score is highest there."""
        first.q[head * d:(head + 1) * d] = 0
        first.q[head * d:head * d + FAST, CONST] = SHARP * (distance * theta).cos()
        first.q[head * d + half:head * d + half + FAST, CONST] = -SHARP * (distance * theta).sin()
        lines = torch.arange(width)
        first.o[:, head * d:(head + 1) * d] = 0
        first.o[into + lines, head * d + lines] = rms

    keys(0), keys(1)
    look_back(0, 1, BACK1, BACK2 - BACK1)
    look_back(3, 2, BACK2, BACK3 - BACK2)
    look_back(4, 3, BACK3, END - BACK3)

    slow = torch.arange(SLOW, half - 1)
    rows = torch.cat((slow, slow + half))
    lift = (rms ** 2 + 0.2 * SIZE ** 2) ** 0.5 / SIZE           # what the norm has made of a code, undone

    def match_keys(kv, dims, gain):
        match.k[kv * d:(kv + 1) * d] = 0
        match.v[kv * d:(kv + 1) * d] = 0
        for row, b, a in zip(rows.tolist(), dims, gain):
            match.k[kv * d + row, b] = a * lift
        match.k[kv * d + half - 1, SINK] = REST * lift / 2
        match.v[kv * d + torch.arange(n_code), CODE + torch.arange(n_code)] = lift

    def match_query(head, dims, rest, loud):
        match.q[head * d:(head + 1) * d] = 0
        for row, (a, gain) in zip(rows.tolist(), dims):
            if gain:
                match.q[head * d + row, a] = gain * lift
        match.q[head * d + half - 1, CONST] = rest
        match.o[:, head * d:(head + 1) * d] = 0
        match.o[CODE + torch.arange(n_code), head * d + torch.arange(n_code)] = loud

    match_keys(0, list(range(BACK1, BACK1 + 14)) + list(range(BACK2, BACK2 + 8)), [MATCH] * 22)
    match_query(0, [(CODE + j, MATCH) for j in range(14)] + [(BACK1 + j, MATCH) for j in range(8)], REST, LOUD * SIZE)
    match_query(1, [(CODE + j, 1.5 * MATCH) for j in range(14)], 10.5, LOUD * SIZE / 2)
    match_keys(1, list(range(BACK2, BACK2 + 11)) + list(range(BACK3, BACK3 + 11)), [1.4 * MATCH] * 22)
    match_query(3, [(BACK1 + j, 1.4 * MATCH) for j in range(11)] + [(BACK2, 0)] * 11, REST, LOUD * SIZE)
    match_query(4, [(BACK1, 0)] * 11 + [(BACK2 + j, 1.4 * MATCH) for j in range(11)], REST, LOUD * SIZE)


class Reserved:
    """The channels the laid heads speak through are trained too, but at `rate` of the step and, in the first two layers, written to at that rate: else the optimiser
    overturns them in a few steps, long before the heads that read them can follow."""

    @torch.no_grad()
    def __init__(self, model, rate):
        mine = torch.zeros(model.cfg.n_embd, dtype=torch.bool)
        mine[[CONST, SINK]] = True
        mine[CODE:] = True
        self.rate, self.parts = rate, [(model.embed, (slice(None), mine))]
        self.parts += [(p, mine) for b in model.blocks[:2] for p in (b.o, b.down)]

    @torch.no_grad()
    def before(self):
        self.old = [p[at].clone() for p, at in self.parts]

    @torch.no_grad()
    def after(self):
        for (p, at), old in zip(self.parts, self.old):
            p[at] = old.lerp(p[at], self.rate)
