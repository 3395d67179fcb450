"""Measures a checkpoint with PyTorch, dense: bits per byte, passkey, co-reference, key-value recall, line recall; and writes samples.

An answer counts when every token of it is the most probable one given the true tokens before it, which is what greedy generation would give. Rows are JSON.
"""
import argparse
import gzip
import json
import math
import os
import time

import numpy as np
import torch
from tokenizers import Tokenizer

import pools
from model import Cache, Config, Llama
from ngram import token_bytes
from prepare import BOS, EOS
from tasks import common_words


def wilson(k, n, z=1.96):
    if n == 0:
        return [0.0, 1.0]
    p, d = k / n, 1 + z * z / n
    mid, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return [round((mid - half) / d, 4), round((mid + half) / d, 4)]


def round_q8(w):
    """What Q8_0 keeps of a matrix: blocks of 32 along the row, one scale each."""
    x = w.reshape(-1, 32)
    scale = (x.abs().amax(1, keepdim=True) / 127).half().float()
    inv = torch.where(scale > 0, 1 / scale, torch.zeros_like(scale))
    return ((x * inv).round() * scale).reshape(w.shape)


class Judge:
    def __init__(self, args):
        ckpt = torch.load(args.checkpoint, map_location="cpu")
        self.model = Llama(Config(**ckpt["config"])).eval()
        src = ckpt["model"] if args.raw else ckpt["ema"]
        self.model.load_state_dict({k: round_q8(v) if args.q8 and v.ndim == 2 else v for k, v in src.items()})
        self.tok = Tokenizer.from_file(os.path.join(args.prep, "tokenizer.json"))
        self.bos, self.eos = self.tok.token_to_id(BOS), self.tok.token_to_id(EOS)
        self.valid = np.load(os.path.join(args.prep, "valid.npy"), mmap_mode="r")
        self.n_bytes = token_bytes(os.path.join(args.prep, "tokenizer.json"))
        self.dtype = torch.float32 if args.f32 else torch.bfloat16
        self.args, self.rows, self.tokens = args, open(args.out, "a") if args.out else None, ckpt["tokens"]

    def emit(self, task, metric, value, n, length, **more):
        row = dict(task=task, metric=metric, value=round(value, 4), n=n, length=length, engine=f"pytorch {str(self.dtype)[6:]}{' q8_0 weights' if self.args.q8 else ''}",
                   trained_tokens=self.tokens, **more)
        print(json.dumps(row), flush=True)
        if self.rows:
            self.rows.write(json.dumps(row) + "\n")
            self.rows.flush()

    def enc(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    @torch.no_grad()
    def hits(self, prompt, answer):
        """For each token of the answer whether it is the first choice; prompt and answer are token lists."""
        ids = torch.tensor([[self.bos] + prompt + answer])
        h = self.model.hidden(ids[:, :-1], dtype=self.dtype)[0, -len(answer):]
        return ((h @ self.model.embed.to(self.dtype).t()).float().argmax(-1) == torch.tensor(answer)).tolist()

    @torch.no_grad()
    def bpb(self, length, n_tokens):
        """The same n_tokens of validation text, cut into windows of `length`; every token but a window's first is predicted."""
        total = count = n_bytes = 0
        for at in range(0, n_tokens, length):
            at += 20000
            ids = torch.from_numpy(np.concatenate(([self.bos], self.valid[at:at + length].astype(np.int64))))[None]
            h = self.model.hidden(ids[:, :-1], dtype=self.dtype)[0]
            for i in range(0, length, 1024):
                logits = (h[i:i + 1024] @ self.model.embed.to(self.dtype).t()).float()
                total += torch.nn.functional.cross_entropy(logits, ids[0, 1 + i:1 + i + 1024], reduction="sum").item()
                count += len(logits)
            n_bytes += int(self.n_bytes[ids[0, 1:].numpy()].sum())
        self.emit("ppl", "bpb", total / n_bytes / math.log(2), count, length, nats_per_token=round(total / count, 4))

    def valid_text(self, rng, n):
        at = int(rng.integers(0, len(self.valid) - n - 100))
        return [int(t) for t in self.valid[at:at + n] if t not in (self.bos, self.eos)]

    def passkey(self, length, items, filler, rng):
        right = 0
        for _ in range(items):
            key = "".join(str(d) for d in rng.integers(0, 10, 5))
            fact = self.enc(f" The pass key is {key}. Remember it. {key} is the pass key.")
            ask = self.enc("\nWhat is the pass key? The pass key is")
            answer = self.enc(f" {key}")
            room = length - len(fact) - len(ask) - len(answer) - 1
            if filler == "book":
                text = self.valid_text(rng, room)
            else:
                said = self.enc(" The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.\n")
                text = (said * (room // len(said) + 1))[:room]
            cut = int(rng.integers(0, len(text) + 1))
            right += all(self.hits(text[:cut] + fact + text[cut:] + ask, answer))
        self.emit("passkey", "accuracy", right / items, items, length, filler=filler, ci=wilson(right, items))

    def coref(self, path, items, rng):
        """<lead> <location> <philosophy> <culinary> <math> <prelude> <location>, parts drawn at random as the published generator does."""
        with open(path) as f:
            pool = json.load(f)
        pick = lambda name: pool[name][int(rng.integers(len(pool[name])))]
        right = tokens = covered = longest = 0
        for _ in range(items):
            pair, name = pick("loc_intro_tieback_list"), pick("location_names")
            prompt = self.enc(f"{pair['location_intro']} {name}. {pick('philosophy_statements')}. {pick('food_descriptions')}. {pick('math_problems')}. "
                              f"{pair['tieback_question']}:")
            answer = self.enc(f" {name}")
            hit = self.hits(prompt, answer)
            right += all(hit)
            tokens += len(hit)
            covered += sum(hit)
            longest = max(longest, len(prompt))
        self.emit("coref", "accuracy", right / items, items, longest, ci=wilson(right, items))
        self.emit("coref", "coverage", covered / tokens, tokens, longest)

    def pairs(self, n, items, style, rng, words):
        right, length = 0, 0
        for _ in range(items):
            keys = [words[i] for i in rng.choice(len(words), n, replace=False)]
            values = [words[int(rng.integers(len(words)))] if style == "words" else "".join(str(d) for d in rng.integers(0, 10, 5)) for _ in keys]
            k = int(rng.integers(n))
            prompt = self.enc("Remember these pairs.\n" + "".join(f"{a}: {b}\n" for a, b in zip(keys, values)) + f"\n{keys[k]}:")
            length = len(prompt)
            right += all(self.hits(prompt, self.enc(f" {values[k]}")))
        self.emit("kv", "accuracy", right / items, items, length, pairs=n, style=style, ci=wilson(right, items))

    def facts(self, length, n_facts, items, rng):
        """Several things of several people kept in several places, in book text; one is asked for."""
        right = 0
        for _ in range(items):
            pick = lambda pool: pool[int(rng.integers(len(pool)))]
            people, things = [str(x) for x in rng.choice(pools.PEOPLE, 2, replace=False)], [str(x) for x in rng.choice(pools.THINGS, (n_facts + 1) // 2, replace=False)]
            pairs = [(t, p) for t in things for p in people][:n_facts]
            spots = [(pick(pools.COMPOUND_A) + pick(pools.COMPOUND_B)).capitalize() for _ in pairs]
            planted = [self.enc(f" The {t} of {p} is kept in {s}.") for (t, p), s in zip(pairs, spots)]
            k = int(rng.integers(n_facts))
            ask, answer = self.enc(f"\nWhere is the {pairs[k][0]} of {pairs[k][1]}? The {pairs[k][0]} of {pairs[k][1]} is kept in"), self.enc(" " + spots[k])
            text = self.valid_text(rng, length - sum(map(len, planted)) - len(ask) - len(answer) - 1)
            prompt, last = [], 0
            for cut, piece in zip(sorted(int(x) for x in rng.integers(0, len(text) + 1, n_facts)), planted):
                prompt += text[last:cut] + piece
                last = cut
            right += all(self.hits(prompt + text[last:] + ask, answer))
        self.emit("facts", "accuracy", right / items, items, length, facts=n_facts, ci=wilson(right, items))

    def lines(self, path, items):
        right = n = length = 0
        with open(path) as f:
            for line in list(f)[:items]:
                item = json.loads(line)
                key = item["random_idx"][0]
                prompt = self.enc(item["prompt"].rstrip() + f" The <REGISTER_CONTENT> in line {key} is <")
                right += all(self.hits(prompt, self.enc(str(item["expected_number"]))))
                n, length = n + 1, max(length, len(prompt))
        self.emit("lines", "accuracy", right / n, n, length, ci=wilson(right, n), file=os.path.basename(path))

    def uuids(self, path, n, items):
        """The first n keys and values of each item of lost-in-the-middle, in JSON; one of them is asked for, another place in each item."""
        right = length = 0
        with gzip.open(path, "rt") as f:
            for i, line in zip(range(items), f):
                records = json.loads(line)["ordered_kv_records"][:n]
                key, value = records[(i * 7 + 3) % n]
                prompt = self.enc("Extract the value corresponding to the specified key in the JSON object below.\n\nJSON data:\n{"
                                  + ",\n ".join(f'"{k}": "{v}"' for k, v in records) + f'}}\n\nKey: "{key}"\nCorresponding value: "')
                right += all(self.hits(prompt, self.enc(value)))
                length = max(length, len(prompt))
        self.emit("uuids", "accuracy", right / items, items, length, pairs=n, ci=wilson(right, items))

    @torch.no_grad()
    def sample(self, prompt, n, rng, temp=0.7, top_k=40):
        past, ids = Cache(), [self.bos] + self.enc(prompt)
        new, out = ids, []
        for i in range(n):
            pos = torch.arange(len(ids) - len(new), len(ids))[None]
            logits = self.model.logits(torch.tensor([new]), pos, past, self.dtype, last=True)[0, -1]
            best, which = (logits / temp).topk(top_k)
            p = best.softmax(0).double().numpy()
            nxt = int(which[int(rng.choice(top_k, p=p / p.sum()))])
            if nxt == self.eos:
                break
            ids, new = ids + [nxt], [nxt]
            out.append(nxt)
        return prompt + self.tok.decode(out)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--prep", required=True)
    ap.add_argument("--data", required=True, help="folder with tokenbutler/mrcr_custom.json and long/")
    ap.add_argument("--lengths", default="512,2048,8192")
    ap.add_argument("--items", type=int, default=100)
    ap.add_argument("--tasks", default="ppl,passkey,coref,kv,facts,lines,uuids,sample")
    ap.add_argument("--ppl-tokens", type=int, default=65536)
    ap.add_argument("--seed", type=int, default=7)
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--raw", action="store_true")
    ap.add_argument("--q8", action="store_true", help="round the matrices to Q8_0 first, as the exported file has them")
    ap.add_argument("--f32", action="store_true")
    ap.add_argument("--out", help="append the rows to this file")
    args = ap.parse_args()
    torch.set_num_threads(args.threads)
    j, tasks, start = Judge(args), args.tasks.split(","), time.time()
    lengths = [int(x) for x in args.lengths.split(",")]
    rng = np.random.default_rng(args.seed)
    words = common_words(j.tok, np.load(os.path.join(args.prep, "valid.npy"), mmap_mode="r"), 2_000_000, 150, 2500)
    if "coref" in tasks:
        j.coref(os.path.join(args.data, "tokenbutler/mrcr_custom.json"), args.items, rng)
    if "kv" in tasks:
        for n in (20, 75):
            for style in ("words", "numbers"):
                j.pairs(n, args.items, style, rng, words)
    for length in lengths:
        if "ppl" in tasks:
            j.bpb(length, args.ppl_tokens)
        for filler in ("book", "repeated"):
            if "passkey" in tasks:
                j.passkey(length, args.items, filler, rng)
        if "facts" in tasks:
            j.facts(length, 4, args.items, rng)
    if "lines" in tasks:
        j.lines(os.path.join(args.data, "long/longeval_lines/200_lines.jsonl"), args.items)
    if "uuids" in tasks:
        for n in (10, 75):
            j.uuids(os.path.join(args.data, "long/lost_in_the_middle/kv-retrieval-75_keys.jsonl.gz"), n, args.items)
    if "sample" in tasks:
        for prompt in ("The old lighthouse keeper climbed the stairs and", '"You must not go there alone," said', "It was late in the autumn when the letter"):
            print("---\n" + j.sample(prompt, 120, rng))
    print(f"{time.time() - start:.0f} s")


if __name__ == "__main__":
    main()
