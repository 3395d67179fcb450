"""A 5-gram model of the same tokens, to stand beside the network: interpolated Kneser-Ney with one discount an order (Kneser & Ney 1995; Chen & Goodman 1999, eq. 10).

Counts are sorted arrays: an n-gram's key is the number of its first n - 1 tokens' n-gram, then its last token. NumPy only; some 60 bytes of memory per training token.
"""
import argparse
import json
import math
import os
import time

import numpy as np


class KneserNey:
    def __init__(self, ids, n_vocab, order):
        self.n_vocab, self.levels = n_vocab, []
        gram = ids.astype(np.int64)                              # number of the n-gram that ends at each token
        for n in range(1, order + 1):
            key = gram if n == 1 else gram[:-1] * n_vocab + ids[n - 1:]
            keys, first, number, count = np.unique(key, return_index=True, return_inverse=True, return_counts=True)
            if n > 1:
                # Below the highest order what counts is how many different tokens an n-gram was seen to follow.
                suffix = gram[1:][first]
                self.levels[-1]["count"] = np.bincount(suffix, minlength=len(self.levels[-1]["keys"])).astype(np.int64)
            self.levels.append(dict(keys=keys, count=count.astype(np.int64)))
            gram = number.reshape(-1)
            del key, first
        for n, level in enumerate(self.levels):
            context = level["keys"] // n_vocab if n else np.zeros(len(level["keys"]), np.int64)
            size = len(self.levels[n - 1]["keys"]) if n else 1
            ones, twos = int((level["count"] == 1).sum()), int((level["count"] == 2).sum())
            level["discount"] = ones / (ones + 2 * twos) if ones and twos else 0.5
            level["total"] = np.bincount(context, weights=level["count"], minlength=size)
            level["kinds"] = np.bincount(context[level["count"] > 0], minlength=size)

    def probability(self, ids):
        """Of each token of ids given those before it."""
        ids = ids.astype(np.int64)
        p, before = np.full(len(ids), 1 / self.n_vocab), np.zeros(len(ids), np.int64)      # before: number of the context's n-gram, -1 where it was never seen
        for n, level in enumerate(self.levels):
            key = np.where(before >= 0, before * self.n_vocab + ids, -1) if n else ids
            at = np.searchsorted(level["keys"], key).clip(max=len(level["keys"]) - 1)
            seen = level["keys"][at] == key
            total = np.where(before >= 0, level["total"][before], 0)
            known = total > 0
            count = np.where(seen, level["count"][at], 0)
            with np.errstate(divide="ignore", invalid="ignore"):
                mixed = np.maximum(count - level["discount"], 0) / total + level["discount"] * level["kinds"][before] / total * p
            p = np.where(known, mixed, p)
            number = np.where(seen, at, -1)
            before = np.concatenate(([-1], number[:-1]))
        return p


def token_bytes(path):
    """Bytes of text that each token stands for; special tokens stand for none."""
    with open(path) as f:
        tok = json.load(f)
    n = np.zeros(len(tok["model"]["vocab"]), np.int64)
    for token, i in tok["model"]["vocab"].items():
        n[i] = len(token)                                       # byte-level: one character a byte
    for special in tok["added_tokens"]:
        n[special["id"]] = 0
    return n


def check():
    """Probabilities of every token after some contexts sum to one."""
    rng = np.random.default_rng(1)
    ids = (rng.random(3000) ** 2 * 20).astype(np.uint16)
    model = KneserNey(ids, 20, 5)
    for start in (0, 7, 500):
        context = ids[start:start + 4]
        total = sum(model.probability(np.append(context, w).astype(np.uint16))[-1] for w in range(20))
        assert abs(total - 1) < 1e-9, total


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--prep", required=True)
    ap.add_argument("--train-tokens", type=int, default=40_000_000)
    ap.add_argument("--test-tokens", type=int, default=65536, help="the same that evaluate.py measures bits per byte on")
    ap.add_argument("--order", type=int, default=5)
    args = ap.parse_args()
    check()
    start = time.time()
    books, valid = (np.load(os.path.join(args.prep, f + ".npy"), mmap_mode="r") for f in ("books", "valid"))
    ids = np.array(books[:args.train_tokens])
    model = KneserNey(ids, 8192, args.order)
    text = np.array(valid[20000 - 8:20000 + args.test_tokens])
    p = model.probability(text)[8:]
    nats = float(-np.log(p).mean())
    print(json.dumps(dict(task="ppl", metric="bpb", value=round(nats * len(p) / math.log(2) / int(token_bytes(os.path.join(args.prep, "tokenizer.json"))[text[8:]].sum()), 4), n=len(p), nats_per_token=round(nats, 4),
                          engine=f"{args.order}-gram, interpolated Kneser-Ney", trained_tokens=len(ids), seconds=round(time.time() - start))))


if __name__ == "__main__":
    main()
