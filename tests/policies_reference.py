"""The methods, transcribed in NumPy from their definitions: which positions a policy holds or reads at every step.

Nothing here knows how butler does it. A Layer is fed the queries, keys and values of one layer as they were recorded and
answers with the ids. Positions stand for tokens; there are no slots, pages are runs of positions, and what a metric
remembers is kept for every position of the text whether it is still cached or not.

Where two scores are closer than float rounding either choice is right. So a Layer may be told what was really chosen: it
checks that the difference lies among such near ties, counts it, and goes on from the choice that was made.
"""
import re
from collections import deque

import numpy as np

MASK = (1 << 64) - 1
PREFILL_CUT = 256  # with prefill=evict the cache is cut where the text has a multiple of so many tokens
SCAN_PAGE = 32  # tokens of a page that scan= chooses by bounds
BLOCK = 64  # tokens of a sparse prompt that share a choice
WINDOW_BLOCK = 16  # queries whose weights Scissorhands adds up
NOTHING = 1e-12  # accumulated attention that float sums do not keep apart


# ---------------------------------------------------------------------------------------------- policies

class Policy:
    """A policy string with every parameter written out."""

    def __init__(self, text):
        self.text = text
        head, _, rest = text.partition(":")
        self.name, *self.modifiers = head.split("+")
        self.values = dict(item.split("=") for item in rest.split(",")) if rest else {}
        self.numbers = {key: float(value) for key, value in self.values.items() if re.fullmatch(r"[-+.\de]*\d[-+.\de]*", value)}

    def __getitem__(self, key):
        return self.values[key]

    def number(self, key, default=0.0):
        return self.numbers.get(key, default)

    def count(self, key, default=0):
        return int(self.numbers.get(key, default))


METRICS = {"streaming": "recency", "h2o": "attention", "softprune": "attention", "scissorhands": "windowed", "snapkv": "pooled",
           "pyramidkv": "pooled", "tova": "last_query", "quest": "page_bounds", "tinyserve": "page_bounds",
           "pagestats": "page_stats", "fier": "one_bit", "tokenbutler": "predicted", "tokenbutler2": "predicted", "oracle": "exact", "random": "random", "knorm": "key_norm", "keydiff": "key_diff",
           "triattention": "query_centre"}
LOGITS = {"page_bounds", "page_stats", "one_bit", "exact", "predicted", "query_centre"}
PAGES = {"page_bounds", "page_stats", "predicted", "one_bit"}  # predicted and one_bit: tokens have the scores
# Slots that one record covers: a record of tokens on both sides of a block's first one would tell of later ones.
RECORD = {"page_bounds": lambda p: p.count("page"), "page_stats": lambda p: p.count("page"), "one_bit": lambda p: p.count("g")}
QUERY_FREE = {"recency", "key_norm", "key_diff"}

# What the papers name, as methods.md has it.
PAPERS = {
    "streaming": {"sinks": 4},
    "h2o": {"heavy": 0.5},
    "scissorhands": {"window": 400, "recent": 10},
    "h2o+vatp": {"sinks": 20, "norm": "l1"},
    "scissorhands+vatp": {"sinks": 20, "norm": "l1", "window": 400, "recent": 10},
    "snapkv": {"window": 32, "recent": 32, "kernel": 7, "pool": "max", "rolling": 0},
    "snapkv:preset=code": {"window": 32, "recent": 32, "kernel": 5, "pool": "avg"},
    "pyramidkv": {"pyramid": 20, "rolling": 0},
    "tova": {"share": "layer", "group": "mean"},
    "softprune": {"ratio": 0.1, "min": 100, "power": 2},
    "quest": {"page": 16, "dense": 2, "bound": "sum"},
    "tinyserve": {"page": 16, "budget": 2048, "fused": 1},
    "pagestats": {"page": 16},
    "fier": {"g": 32, "dense": 2},
    "tokenbutler": {"dense": 1, "sinks": 4},
    "tokenbutler2": {"dense": 1, "budget": 2048, "sinks": 128, "recent": 512, "on_top": 1},
    "tokenbutler2:preset=paper": {"group": "max"},
    "entropystop": {"entropy": 0.5, "after": 10},
}


def half_up(x):
    return int(np.floor(x + 0.5))


def limits(p, layer, n_layers, n):
    """Tokens that layer may hold or read of a text of n, and of them the first and the last that it must."""
    sinks, recent = p.count("sinks"), p.count("recent")
    retrieve = p["method"] == "retrieve"
    if "mass" in p.values:
        return None, sinks, max(1, recent)
    if "ratio" in p.values:
        budget = max(p.count("min"), half_up((1 - p.number("ratio")) * n))
    elif p.number("budget") > 1:
        budget = p.count("budget")
    else:
        budget = max(1, half_up(p.number("budget") * n))
    beta = p.number("pyramid")
    if beta:  # PyramidKV: linear over the layers that are not dense, their mean is the budget
        window = 0 if "heavy" in p.values else recent
        first, m, c = p.count("dense"), n_layers - p.count("dense"), budget - window
        if n > budget and n >= 2 * c and m > 1 and c > 0:
            low = int(c // beta)
            high = 2 * c - low
            if high > n - window:
                high = n - window
                low = 2 * c - high
            budget = high - (layer - first) * ((high - low) // (m - 1)) + window
    if "heavy" in p.values:
        recent = budget - half_up(p.number("heavy") * budget)
    if retrieve:
        recent = max(1, recent)
    if p.values.get("on_top") == "1":
        budget += sinks + recent
    page = p.count("page", 1)
    if retrieve and page > 1:  # the scores choose a page at least
        budget = max(budget, (-(-sinks // page) - (1 - recent) // page + 2) * page)
    return max(budget, sinks + max(1, recent), page), sinks, recent


# ---------------------------------------------------------------------------------------------- small maths

def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def log_softmax(x):
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def to_half(x):
    """Rounded to binary16, the finite part of its range."""
    return np.minimum(np.maximum(np.asarray(x, np.float32), -65504), 65504).astype(np.float16).astype(np.float64)


def same(a, b):
    """Whether two lists of positions are equal; np.array_equal takes several times as long."""
    return len(a) == len(b) and bool((a == b).all())


def splitmix(state):
    """Of an int or, element by element, of an array of uint64."""
    z = (state + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def rotate(x, positions, freq, scale, n_rot, adjacent):
    """RoPE on rows x[n][dim]."""
    angle = np.asarray(positions, np.float64)[:, None] * freq[None, :]
    cos, sin = np.cos(angle) * scale, np.sin(angle) * scale
    out = np.array(x, np.float64)
    a, b = (slice(0, n_rot, 2), slice(1, n_rot, 2)) if adjacent else (slice(0, n_rot // 2), slice(n_rot // 2, n_rot))
    out[:, a], out[:, b] = x[:, a] * cos - x[:, b] * sin, x[:, a] * sin + x[:, b] * cos
    return out


# ---------------------------------------------------------------------------------------------- one layer

class Layer:
    def __init__(self, policy, layer, n_layers, n_heads, n_kv, dim, n_max, seed=0, rope=None):
        self.p, self.layer, self.n_layers, self.seed = policy, layer, n_layers, seed
        self.n_heads, self.n_kv, self.group, self.dim = n_heads, n_kv, n_heads // n_kv, dim
        self.metric = METRICS.get(policy.name)
        self.sparse = self.metric is not None and layer >= policy.count("dense")
        self.evicts = self.sparse and policy["method"] == "evict"
        self.prompts_only = self.evicts and policy["rolling"] == "0"
        self.page = policy.count("page", 1) if self.metric in PAGES else 1
        self.rope = rope if policy.values.get("rope") == "cache" else None
        self.k, self.v = np.zeros((n_kv, n_max, dim)), np.zeros((n_kv, n_max, dim))
        self.n, self.all = 0, np.arange(n_max)
        self.cached = [np.zeros(0, int) for _ in range(n_kv)]
        self.sum = np.zeros((n_heads, n_max))
        self.window, self.in_window = deque(), np.zeros((n_heads, n_max))
        self.blocks = {}  # windowed: [the block's queries, sums of weights in 2^-24]
        self.doubtful = None  # of the windowed scores: shares that float rounding may take or give
        self.summaries, self.boxes = {}, {}  # of groups and of pages: their keys do not change
        self.one_bit_step = 1  # what a query's integers times ranges are rounded to (kernels.h, one_bit)
        self.last = np.zeros((n_heads, n_max))
        self.selected_at, self.chosen = None, []  # the position after the step that selected last (every=), what it chose
        self.centres = self.pairs = None  # of the model's calibration: expected()
        self.predicted, self.n_steps = None, 0  # what a predictor says of this layer (predictor_reference.Stored)
        self.n_checked = self.n_ties = 0
        self.errors = []

    # -- what comes in

    def append(self, k, v):
        self.k[:, self.n], self.v[:, self.n] = k, v
        before, newest = list(self.cached), self.all[self.n:self.n + 1]
        for h in range(self.n_kv):
            shared = h and before[h] is before[h - 1]
            self.cached[h] = self.cached[h - 1] if shared else np.concatenate((before[h], newest))
        self.n += 1

    def attend(self, q, ids):
        """Attention weights of the newest token's query heads: {head: weights over ids[head]}; the metric sees them."""
        if not self.sparse or self.metric not in ("attention", "windowed", "pooled", "last_query"):
            return
        weights, head = np.zeros((self.n_heads, self.sum.shape[1])), 0
        while head < self.n_heads:  # heads that read the same keys at once
            end = head + 1
            while end % self.group and ids[end] is ids[head]:
                end += 1
            keys, queries = self.k[head // self.group][ids[head]], q[head:end]
            if self.rope:
                keys = rotate(keys, np.arange(len(keys)), *self.rope)
                queries = rotate(queries, [len(keys) - 1] * len(queries), *self.rope)
            weights[head:end, ids[head]] = softmax(queries @ keys.T / np.sqrt(self.dim))
            head = end
        if self.metric == "attention":
            half_life = self.p.number("half_life")
            self.sum *= 2 ** (-1 / half_life) if half_life else 1
            self.sum += weights ** self.p.count("power")
        elif self.metric == "last_query":
            self.last = weights
        elif self.metric == "windowed":
            block = (self.n - 1) // WINDOW_BLOCK
            sums = self.blocks.setdefault(block, np.zeros_like(weights))
            sums += np.floor(weights * 2.0 ** 24 + 0.5)
            for old in [b for b in self.blocks if b < block - -(-self.p.count("window") // WINDOW_BLOCK)]:
                del self.blocks[old]
        else:
            seen = to_half(weights[:, :self.n])
            self.window.append(seen)
            self.in_window[:, :self.n] += seen  # whole multiples of 2^-24: nothing is lost
            if len(self.window) > self.p.count("window"):
                gone = self.window.popleft()
                self.in_window[:, :gone.shape[1]] -= gone

    # -- what a metric says: one row per query head (or per KV head), one column per unit

    def units(self, ids):
        """Positions of each unit."""
        if not len(ids):
            return []
        if self.page == 1:
            return ids[:, None]
        edges = [0, *(np.flatnonzero(np.diff(ids // self.page)) + 1).tolist(), len(ids)]  # ids ascend
        return [ids[a:b] for a, b in zip(edges, edges[1:])]

    def rows(self, kv_head, q, newest):
        ids = self.cached[kv_head]
        heads = range(kv_head * self.group, (kv_head + 1) * self.group)
        queries, keys = q[heads.start:heads.stop], self.k[kv_head]
        if self.metric == "recency":
            return ids[None].astype(float)
        if self.metric == "key_norm":
            return -np.sqrt((keys[ids] ** 2).sum(axis=1))[None]
        if self.metric == "key_diff":  # KeyDiff: minus the cosine to the mean of the keys held, each of length 1 (kvpress: KeyDiffPress)
            lengths = np.sqrt((keys[ids] ** 2).sum(axis=1))
            anchor = (keys[ids] / lengths[:, None]).mean(axis=0)
            return -(keys[ids] @ anchor / lengths / np.sqrt((anchor ** 2).sum()))[None]
        if self.metric == "query_centre":
            return np.array([self.expected(head, keys[ids], ids, newest) for head in heads])
        if self.metric == "attention":
            received = self.sum[heads.start:heads.stop][:, ids]
            return np.sqrt(received) if self.p.count("power") == 2 else received
        if self.metric == "last_query":
            return self.last[heads.start:heads.stop][:, ids]
        if self.metric in ("windowed", "pooled"):
            received = self.in_window[heads.start:heads.stop]
            return self.block_sums(heads, ids) if self.metric == "windowed" else self.pool(received, ids)
        if self.metric == "random":
            return np.array([self.random_row(head, newest, ids) for head in heads])
        if self.metric == "exact":
            return queries @ keys[ids].T
        if self.metric == "predicted":  # a key for the group or one for each of its heads
            per_head = len(self.predicted.channels) > self.n_kv
            return np.array([self.predicted.scores(self.n_steps - 1, head, head if per_head else kv_head, self.n) for head in heads])
        if self.metric == "one_bit":
            g = self.p.count("g")
            groups = [ids[i:i + g] for i in range(0, len(ids), g)]
            groups = [self.summary(self.one_bit, kv_head, group) for group in groups]
            low, ranges, units = (np.concatenate(part) for part in zip(*groups))
            x, factor = self.rounded_queries(queries)
            products = np.floor(x[:, None] * ranges / self.one_bit_step + 0.5) * self.one_bit_step
            return queries @ low.T + factor * units * products.sum(axis=2)
        high, low = self.page_boxes(kv_head, ids)
        parts = np.where(queries[:, None] >= 0, queries[:, None] * high, queries[:, None] * low)
        return parts.max(axis=2) if self.p.values.get("bound") == "max" else parts.sum(axis=2)

    def expected(self, head, rotated, ids, newest):
        """TriAttention, with keys turned back to before RoPE. centres: {name: [heads][pairs]}; pairs: (first channels, second, w)."""
        first, second, freq = self.pairs
        centre = self.centres["centre_real"][head] + 1j * self.centres["centre_imag"][head]
        turned = rotated[:, first] + 1j * rotated[:, second]
        keys, size = turned * np.exp(-1j * freq * ids[:, None]), np.abs(turned)
        # The mean over the offsets of |centre| |key| cos(w (newest - id + offset) + angle(centre key*)): the real part of
        # centre key* e^(iw(newest - id)), times the mean of e^(iw offset).
        offsets = 2.0 ** np.arange(17)
        mean = np.exp(1j * freq * offsets[:, None]).sum(axis=0) / len(offsets)
        by_phase = (centre * keys.conj() * np.exp(1j * freq * (newest - ids[:, None])) * mean).real.sum(axis=1)
        return by_phase + (size * (self.centres["abs_mean"][head] - np.abs(centre))).sum(axis=1)

    def summary(self, function, kv_head, ids):
        key = (kv_head, ids[0], len(ids))
        if key not in self.summaries:
            self.summaries[key] = function(self.k[kv_head][ids])
        return self.summaries[key]

    def random_row(self, head, newest, ids):
        state = self.seed
        for x in (self.layer, head, newest):
            state = splitmix(state ^ x)
        return (splitmix(np.uint64(state) ^ ids.astype(np.uint64)) >> np.uint64(40)) / 2.0 ** 24

    def page_boxes(self, kv_head, ids):
        """Of each unit. boxes: of every page of the text, how many of its positions its box is of."""
        if kv_head not in self.boxes:
            n_pages = -(-self.k.shape[1] // self.page)
            self.boxes[kv_head] = np.zeros(n_pages, int), np.zeros((n_pages, self.dim)), np.zeros((n_pages, self.dim))
        sizes, high, low = self.boxes[kv_head]
        counts = np.bincount(ids // self.page, minlength=len(sizes))
        for page in np.flatnonzero((counts > 0) & (counts != sizes)):
            high[page], low[page] = self.page_box(self.k[kv_head][ids[ids // self.page == page]])
        sizes[:] = np.where(counts > 0, counts, sizes)
        return high[counts > 0], low[counts > 0]

    def page_box(self, keys):
        """What a query's positive and its negative channels are multiplied by."""
        if self.metric == "page_bounds" and self.p.values["bounds"] == "box":  # Quest
            return to_half(keys.max(axis=0)), to_half(keys.min(axis=0))
        std = 1 if self.metric == "page_bounds" else self.p.number("std")
        mean, spread = keys.mean(axis=0), std * keys.std(axis=0)  # mean + std: arXiv 2605.27740
        return to_half(mean + spread), to_half(mean - spread)

    def one_bit(self, keys):
        """FIER, algorithm 1: 1-bit round to nearest, per channel of a group of tokens; ranges in 1/255 of the group's widest.
        Every token's lowest keys, the ranges where its bits are set, and what 1 of these stands for."""
        keys = np.asarray(keys, np.float32)
        high, low = keys.max(axis=0), keys.min(axis=0)
        bits = keys >= (high + low) / np.float32(2)
        if self.p["levels"] == "means":  # of the keys with each bit, in place of the ends
            high, low = (self.mean_of(keys, side, end) for side, end in ((bits, high), (~bits, low)))
        unit, ranges = self.in_units(high, low)
        return np.tile(to_half(low), (len(keys), 1)), np.where(bits, ranges, 0), np.full(len(keys), unit, np.float64)

    @staticmethod
    def mean_of(keys, side, end):
        """Of each channel's keys on a side, added up in their order; its end where no key is there."""
        total, n = np.zeros(keys.shape[1], np.float32), side.sum(axis=0)
        for key, here in zip(keys, side):
            total += np.where(here, key, np.float32(0))
        return np.where(n > 0, total / np.maximum(n, 1).astype(np.float32), end)

    @staticmethod
    def in_units(high, low):
        """The range between in units, up to 255, and the unit."""
        unit = (high - low).max() / np.float32(255)
        return unit, np.rint((high - low) / unit if unit > 0 else 0 * low).astype(np.float64)

    def ranges(self, keys):
        """Of each channel of a group: the highest and the lowest key, and the range between in units; and the unit."""
        keys = np.asarray(keys, np.float32)
        high, low = keys.max(axis=0), keys.min(axis=0)
        return high, low, *self.in_units(high, low)

    def group_box(self, keys):
        """Quest's box of a group of one-bit keys, from what the group stores: its highest and lowest keys."""
        _, low, unit, ranges = self.ranges(keys)
        return to_half(low) + np.float64(unit) * ranges, to_half(low)

    def bounds(self, kv_head, q):
        """Of pages of one-bit keys, with the box of their group."""
        queries, g = q[kv_head * self.group:(kv_head + 1) * self.group], self.p.count("g")
        boxes = [self.group_box(self.k[kv_head][at // g * g:min(at // g * g + g, self.n)]) for at in range(0, self.n, SCAN_PAGE)]
        high, low = np.array([box[0] for box in boxes]), np.array([box[1] for box in boxes])
        return np.where(queries[:, None] >= 0, queries[:, None] * high, queries[:, None] * low).sum(axis=2)

    def rounded_queries(self, queries):
        """In integers up to 127, as the kernels of one-bit keys have them, and what 1 stands for."""
        queries = np.asarray(queries, np.float32)
        most = np.abs(queries).max(axis=1, keepdims=True)
        return np.rint(queries * (np.float32(127) / most)).astype(np.float64), most.astype(np.float64) / 127

    def block_sums(self, heads, ids):
        """Scissorhands: full blocks of queries in 8-bit floats with 3 bits of mantissa, the block being filled as it is."""
        out, doubt, filling = np.zeros((len(heads), len(ids))), 0, max(self.blocks, default=0)
        for block, sums in self.blocks.items():
            x = sums[heads.start:heads.stop][:, ids]
            if block < filling:
                step = 2.0 ** np.maximum(np.floor(np.log2(np.maximum(x, 1))) - 3, 0)
                rounded = np.floor(x / step + 0.5) * step
                near_tie = np.abs(x / step + 0.5 - np.rint(x / step + 0.5)) * step <= 1e-4 * x + WINDOW_BLOCK
                doubt, x = doubt + np.where(near_tie & (step > 1), step, 0), rounded
            out += x
        doubt = (doubt / np.maximum(out, 1)).max(axis=0)
        self.doubtful = doubt if self.doubtful is None else np.maximum(self.doubtful, doubt)
        return out / 2.0 ** 24

    def pool(self, received, ids):
        """SnapKV: neighbours are positions; the observation window pools apart from what is before it."""
        edge, kernel = ids.max() - self.p.count("window") + 1, self.p.count("kernel")
        out = np.empty((len(received), len(ids)))
        for side in (ids < edge, ids >= edge):
            if not side.any():
                continue
            here = ids[side]
            line = np.zeros((len(received), here.max() + kernel))  # 0 where no token is: weights are not negative
            line[:, here + kernel // 2] = received[:, here]
            near = np.lib.stride_tricks.sliding_window_view(line, kernel, axis=1)[:, here]
            out[:, side] = near.max(axis=2) if self.p["pool"] == "max" else near.sum(axis=2) / kernel
        return out

    # -- from rows to one score per unit, comparable inside a selection

    def reduced(self, heads, q, newest, score=None):
        """Scores over the heads' units and how far two of them must be apart to differ for certain. score: in place of rows."""
        rows, largest = [], 1.0
        self.doubtful = None
        zscores = self.p.values.get("normalise") == "zscore" and "mass" not in self.p.values and "norm" not in self.p.values
        combined = (zscores and self.metric == "predicted" and self.p["group"] == "mean" and self.p["share"] == "kv" and self.group > 1
                    and len(self.predicted.channels) == self.n_kv)
        for kv_head in range(heads[0] // self.group, heads[-1] // self.group + 1):
            if combined:
                rows.append(self.predicted.mean_scores(self.n_steps - 1, heads, kv_head, self.n)[None])
                largest = max(largest, np.abs(rows[-1]).max())
                continue
            r = score(kv_head) if score else self.rows(kv_head, q, newest)
            if self.metric not in QUERY_FREE:
                r = r[max(heads[0] - kv_head * self.group, 0):heads[-1] + 1 - kv_head * self.group]
            if self.metric in LOGITS:
                r = r if self.metric == "predicted" else r / np.sqrt(self.dim)
                if zscores:  # distances from the head's mean in its standard deviations
                    most, r = np.abs(r).max(axis=1, keepdims=True), r - r.sum(axis=1, keepdims=True) / r.shape[1]
                    deviation = np.sqrt((r * r).sum(axis=1, keepdims=True) / r.shape[1])
                    largest, r = max(largest, (most / deviation).max()), r / deviation
                else:
                    largest = max(largest, np.abs(r).max())
                    r = log_softmax(r)
            if "norm" in self.p.values:  # VATP
                values = np.abs(self.v[kv_head][self.cached[kv_head]])
                norm = {"l1": lambda: values.sum(axis=1), "l2": lambda: np.sqrt((values ** 2).sum(axis=1)), "linf": lambda: values.max(axis=1)}
                norm = norm[self.p["norm"]]()
                with np.errstate(divide="ignore"):
                    r = r + np.log(norm) if self.metric in LOGITS else norm / -r if self.metric == "key_norm" else r * norm
            rows.append(r)
        rows = np.concatenate(rows)
        if len(rows) == 1:  # the mean and the largest of one
            scores = rows[0]
        elif self.p["group"] == "max":
            scores = rows.max(axis=0)
        elif self.metric in LOGITS and not zscores:
            most = rows.max(axis=0)
            scores = most + np.log(np.exp(rows - most).mean(axis=0))
        else:
            scores = rows.mean(axis=0)
        if self.metric in ("predicted", "one_bit") and self.page > 1:  # a page has its best token's score; of probabilities the sum
            pages = [scores[at:at + self.page] for at in range(0, len(scores), self.page)]
            scores = np.array([np.logaddexp.reduce(p) if "mass" in self.p.values else p.max() for p in pages])
        return scores, largest

    def tolerance(self, threshold, largest):
        if self.metric in LOGITS:
            return 1e-5 * largest
        if self.metric in ("windowed", "pooled"):  # a float's last bit may turn a half the other way
            return 2e-3 * abs(threshold) + 2.0 ** -23
        return 1e-5 * abs(threshold) + NOTHING

    def doubt(self, missing, extra):
        """Of windowed scores: the share that rounding of full blocks may move."""
        return self.doubtful[np.concatenate([missing, extra])].max() if self.metric == "windowed" else 0

    # -- from scores to units

    def choose(self, scores, largest, keep, first, last, actual, what):
        """Units kept, ascending: the first, the last, and the highest of the rest; ties to the lower index."""
        n = len(scores)
        if keep >= n or first + last >= n:
            wanted = np.arange(n)
        else:
            free = np.arange(first, n - last)
            order = free[np.argsort(-scores[free], kind="stable")]
            kept = np.ones(n, bool)
            kept[order[max(keep - first - last, 0):]] = False
            wanted = np.flatnonzero(kept)
        return self.compare(scores, largest, wanted, actual, what)

    def compare(self, scores, largest, wanted, actual, what):
        if actual is None:
            return wanted
        self.n_checked += 1
        if same(wanted, actual):
            return actual
        missing, extra = np.setdiff1d(wanted, actual), np.setdiff1d(actual, wanted)
        near = len(missing) == len(extra) and len(extra) > 0 and (
            scores[missing].max() - scores[extra].min() <= self.tolerance(scores[missing].max(), largest)
            + self.doubt(missing, extra) * scores[missing].max())
        if near:  # what float sums cannot tell apart is no tie worth counting: heads that look at one token alone give each the same
            apart = scores[missing].max() - scores[extra].min()
            self.n_ties += bool(self.metric in LOGITS or apart > 2.0 ** -24 * abs(scores[missing].max()) + NOTHING)
        else:
            self.errors.append(f"{self.p.text}: layer {self.layer}, {what}, text of {self.n}: lacks {missing.tolist()[:8]}, "
                               f"has {extra.tolist()[:8]}; scores {scores[missing][:3]} and {scores[extra][:3]}")
        return actual

    def choose_mass(self, scores, largest, first, last, actual, what):
        """The smallest set of the highest probabilities that with what is always kept reaches the mass."""
        p = np.exp(scores - scores.max()) if self.metric in LOGITS else np.maximum(scores, 0)
        total, n = p.sum(), len(p)
        if first + last >= n:
            return self.compare(scores, largest, np.arange(n), actual, what)
        free = np.arange(first, n - last)
        order = free[np.argsort(-scores[free], kind="stable")]
        always = p[:first].sum() + p[n - last:].sum()
        reached = always + np.concatenate([[0.0], np.cumsum(p[order])])
        target = self.p.number("mass") * total
        m = int(np.argmax(reached >= target)) if (reached >= target).any() else len(order)
        if actual is not None:  # the mass may be reached one token sooner or later within rounding
            k = len(actual) - first - last
            if k != m and 0 <= k <= len(order) and abs(reached[min(k, m)] - target) <= 1e-5 * total:
                self.n_ties += 1
                m = k
        wanted = np.sort(np.concatenate([np.arange(first), order[:m], np.arange(n - last, n)]))
        return self.compare(scores, largest, wanted, actual, what)

    def scanned(self, heads, q, budget, sinks, recent, actual):
        """scan=: positions that are scored, those of the pages whose bounds are highest; None: all."""
        if not self.p.count("scan"):
            return None
        n_pages = -(-self.n // SCAN_PAGE)
        first, last = -(-sinks // SCAN_PAGE), n_pages - (self.n - recent) // SCAN_PAGE
        n_chosen = first + last + -(-self.p.count("scan") * (budget - sinks - recent) // SCAN_PAGE)
        if n_chosen >= n_pages:
            return None
        bounds, largest = self.reduced(heads, q, self.n - 1, lambda kv_head: self.bounds(kv_head, q))
        pages = self.choose(bounds, largest, n_chosen, first, last, None, "")
        if actual is not None:  # pages that were chosen in place of others with the same bound
            missing = np.setdiff1d(actual // SCAN_PAGE, pages)
            spare = pages[(pages >= first) & (pages < n_pages - last) & ~np.isin(pages, actual // SCAN_PAGE)]
            spare = spare[np.argsort(bounds[spare])][:len(missing)]
            if 0 < len(missing) == len(spare) and bounds[spare].max() - bounds[missing].min() <= self.tolerance(0, largest):
                pages = np.sort(np.append(np.setdiff1d(pages, spare), missing))
                self.n_ties += 1
        positions = (pages[:, None] * SCAN_PAGE + np.arange(SCAN_PAGE)).ravel()
        return positions[positions < self.n]

    # -- the two methods

    def cut(self, q, room, actual=None):
        """Evicts, so that `room` more tokens stay within the budget. actual: positions each KV head kept."""
        budget, sinks, recent = limits(self.p, self.layer, self.n_layers, self.n + room)
        target, recent = budget - room, max(recent - room, 0)
        shares = self.p["share"] == "layer"
        for h in [0] if shares else range(self.n_kv):
            ids = self.cached[h]
            if len(ids) <= target:
                continue
            heads = range(self.n_heads) if shares else range(h * self.group, (h + 1) * self.group)
            scores, largest = self.reduced(list(heads), q, self.n - 1)
            units, filling = self.units(ids), np.zeros(0, int)
            if len(units[-1]) < self.page:  # the page being filled stays
                *units, filling = units
                scores = scores[:-1]
            first = min(-(-sinks // self.page), len(units))
            last = min(-(-max(recent - len(filling), 0) // self.page), len(units) - first)
            kept = None
            if actual is not None:
                is_held = np.zeros(self.n, bool)
                is_held[actual[h]] = True
                kept = np.flatnonzero(is_held[[unit[0] for unit in units]] if self.page > 1 else is_held[ids])
            keep = self.choose(scores, largest, max(target - len(filling), 0) // self.page, first, last, kept, f"KV head {h}")
            after = np.concatenate([units[u] for u in keep] + [filling]) if self.page > 1 else ids[keep]
            for other in range(self.n_kv) if shares else [h]:
                self.cached[other] = after

    def select(self, q, actual=None):
        """Positions each query head reads. actual: what it really read."""
        n, share = self.n, self.p["share"]
        budget, sinks, recent = limits(self.p, self.layer, self.n_layers, n)
        ids = self.cached[0]
        units = self.units(ids)
        first, last = min(-(-sinks // self.page), len(units)), len(units) - max(n - recent, 0) // self.page
        run = {"query": 1, "kv": self.group, "layer": self.group}.get(share) or int(share)  # query heads of a KV head with one list
        runs = [list(range(head, min(head + run, end))) for end in range(self.group, self.n_heads + 1, self.group)
                for head in range(end - self.group, end, run)]
        read = []
        for heads in [sum(runs, [])] if share == "layer" else runs:
            head, kept = heads[0], None
            among = self.scanned(heads, q, budget, sinks, recent, None if actual is None else actual[head])
            score = None if among is None else lambda kv_head: self.rows(kv_head, q, n - 1)[:, among]
            scores, largest = self.reduced(heads, q, n - 1, score)
            if actual is not None:
                for other in heads:
                    if not same(actual[other], actual[head]):
                        self.errors.append(f"{self.p.text}: layer {self.layer}: heads {head} and {other} share and differ")
                kept = np.unique(actual[head] // self.page) if self.page > 1 else actual[head]
                if among is not None:
                    kept = np.flatnonzero(np.isin(among, kept))
            if budget is None:
                keep = self.choose_mass(scores, largest, first, last, kept, f"head {head}")
            else:
                pages = len(units) if budget >= n else max(budget // self.page, 1)
                keep = self.choose(scores, largest, pages, first, last, kept, f"head {head}")
            if among is None:
                among = ids if self.page == 1 else None
            read += [np.concatenate([units[u] for u in keep]) if among is None else among[keep]] * len(heads)
        return read

    # -- a text

    def by_query_head(self):
        return [self.cached[h // self.group] for h in range(self.n_heads)]

    def check(self, ids, actual):
        for head in range(self.n_heads):
            if actual is not None and not same(ids[head], actual[head]):
                self.errors.append(f"{self.p.text}: layer {self.layer}, head {head}, text of {self.n}: {ids[head]} but {actual[head]}")
        return ids

    def sparse_block(self, q, first, actual):
        """prompt=: what the last sparse block of a prompt chooses. Blocks of 64 positions, but the last of a prompt that are not whole
        and the one before, read so many earlier tokens: the first 16, the latest 256 (a quarter of the budget at most), and units
        by the scores that the block's first query gives them. q: queries of the text from position `first` on."""
        start = max(self.n - BLOCK, 0) // BLOCK * BLOCK - BLOCK
        position = max(start, first)  # a prompt that begins within a block
        p = self.p.number("prompt")
        tokens = int(p) if p > 1 else max(half_up(p * start), 1)
        if start + BLOCK <= first or tokens >= start:
            return
        base, n, cached = position // self.page * self.page, self.n, self.cached
        while base % RECORD.get(self.metric, lambda p: 1)(self.p):
            base -= self.page
        n_units = base // self.page
        budget = min(-(-tokens // self.page), n_units)
        sinks = min(-(-16 // self.page), budget)
        recent = min(min(256, tokens // 4) // self.page, budget - sinks)
        self.n, self.cached = base, [ids[:base] for ids in cached]
        for h in range(self.n_kv):
            heads = list(range(h * self.group, (h + 1) * self.group))
            scores, largest = self.reduced(heads, q[position - first], position)
            self.choose(scores, largest, budget, sinks, recent, np.unique(actual[heads[0]] // self.page), f"block at {position}, KV head {h}")
        self.n, self.cached = n, cached

    def prompt(self, q, k, v, actual=None):
        """A prompt, dense: q[n][heads][dim], k, v[n][KV heads][dim]. Returns what each head holds after it."""
        self.selected_at = None
        before = self.n
        if self.prompts_only:  # each prompt is cut by its own queries
            self.sum[:], self.last, self.in_window[:] = 0, np.zeros_like(self.last), 0
            self.window.clear()
            self.blocks.clear()
        for t in range(len(q)):
            self.append(k[t], v[t])
            self.attend(q[t], self.by_query_head())
            ends = t == len(q) - 1
            if self.evicts and (ends or (self.p["prefill"] == "evict" and self.n % PREFILL_CUT == 0)):
                self.cut(q[t], 0, [actual[h * self.group] for h in range(self.n_kv)] if ends and actual is not None else None)
        if self.sparse and "prompt" in self.p.values and actual is not None:
            self.sparse_block(q, before, actual)
        return self.check(self.by_query_head(), actual if self.p.values.get("method") == "evict" else None)

    def step(self, q, k, v, actual=None):
        """One decoded token. Returns what each query head reads."""
        if self.evicts and self.p["rolling"] == "1":
            held = None if actual is None else [actual[h * self.group][:-1] for h in range(self.n_kv)]
            self.cut(q, 1, held)
        self.append(k, v)
        self.n_steps += 1
        ids = self.by_query_head()
        if self.sparse and self.p["method"] == "retrieve":
            every, position = self.p.count("every", 1), self.n - 1
            due = (position + (self.layer + 3) // 4) % every == 0
            if self.selected_at is None or self.n - self.selected_at >= every or due:
                ids = self.chosen = self.select(q, actual)
                budget = limits(self.p, self.layer, self.n_layers, self.n)[0]
                # While the budget covers the text nothing is selected: the step that outgrows it does.
                self.selected_at = None if budget is not None and budget >= self.n else self.n
            else:  # those of the last selection and the units of the newest tokens
                fresh = self.selected_at // self.page * self.page
                ids = self.chosen = [np.append(c[c < fresh], np.arange(fresh, self.n)) for c in self.chosen]
        if not self.prompts_only:
            self.attend(q, ids)
        return self.check(ids, actual)
