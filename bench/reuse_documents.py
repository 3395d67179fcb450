#!/usr/bin/env python3
"""Documents that were read before, each alone, put together behind others without reading them again: how much of the answers that costs.

    bench/reuse_documents.py MODEL.gguf [--needles 14] [--lines 10] [--passages 10] [--ways rotate,link=0.15,blend=0.15] [-o ROWS.jsonl]
    bench/reuse_documents.py MODEL.gguf --check

A prompt has four documents of 400 to 700 tokens, then a question. All but the first document were read behind the template's beginning alone.
Their keys are rotated to their places in the prompt, their values stay, and the cache is put together in a session file:

    rotate    nothing is computed again
    link=S    the first S of each document is read at its place, behind what then stands there (as EPIC does, arXiv 2410.15332)
    blend=S   the first layer is computed for all tokens that were moved; then the share S of them whose keys and values differ most in the second
              layer is computed through the others (as CacheBlend does, arXiv 2405.16444). In NumPy, with the file's weights in F32

The question is always read exactly, and the answer is greedy, under --kv full. `full` reads all. "Computed again" is a share of the work on the
moved tokens: of their layers. Documents, from $BUTLER_DATA or ../shared/data:

    needles   excerpts of the books for validation; in each sentences that give numbers of names, a variable, and the keeper of a thing.
              niah: the number of a name; multiquery, multivalue: four numbers, one in each document; vt: the four variables of a chain through
              the documents; two_hop: the number of the keeper, whose name is in another document
    lines     records of LongEval: the number of a line
    passages  of BoolQ, three in a document: yes or no

niah, lines and passages ask for what is in documents that were moved. A task counts if `full` has at least 50 % in it: that was fixed before.

Needs the package of ../python, xxhash and gguf, and memory for the weights in F32. Rows that ROWS.jsonl has are not made again. Prints, for each
task, what each way gets, its difference from `full` with a 95 % interval (over groups of four documents), how often the answer's first token is the
same, and the mean KL divergence of its distribution from that of `full`, in nats. --check shows that a cache put together from exact pieces is the
exact one, bit for bit, and what a rotation forth and back, and a blend of all tokens, leave.
"""
import argparse
import json
import math
import os
import random
import re
import struct
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import butler
import numpy as np
import xxhash

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("BUTLER_DATA", ROOT.parent / "shared" / "data"))
N_DOCUMENTS, FLOOR, N_CTX, CHECKED = 4, 0.5, 4096, 200  # --check takes so many tokens of each document
ADJECTIVES = "quiet amber hollow brisk copper gentle narrow silver distant velvet rapid crooked marble frozen golden humble".split()
NOUNS = "harbour lantern orchard bridge meadow compass chimney ribbon garden anchor kettle saddle pillow mirror ladder basket".split()
THINGS = "seal sword ledger crown bell map flute chest".split()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    for kind, n in (("needles", 14), ("lines", 10), ("passages", 10)):
        parser.add_argument(f"--{kind}", type=int, default=n, help=f"groups of four documents, {n}")
    parser.add_argument("--ways", default="rotate,link=0.15,blend=0.15", help="besides full")
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("-o", "--output", help="rows, one JSON object a line; what it has is not made again")
    return parser.parse_args()


# ------------------------------------------------------------------------------------------- documents and questions


class Question:
    """text and prefix: of the question and of the answer, which goes on behind it. expected: strings, or the right one of yes and no."""

    def __init__(self, task, text, prefix, expected, n_answer):
        self.task, self.text, self.prefix, self.expected, self.n_answer = task, text, prefix, expected, n_answer


def books():
    with tarfile.open(DATA / "books-valid.tar.xz") as archive:
        members = sorted((m for m in archive if m.name.endswith(".txt")), key=lambda m: m.name)
        return [archive.extractfile(m).read().decode() for m in members]


def excerpt(text, rng, n_words):
    """Whole sentences from a random place."""
    at = rng.randrange(len(text) // 10, len(text) * 9 // 10 - 20 * n_words)
    sentences = re.split(r"(?<=[.!?])\s+", re.sub(r"\s+", " ", text[at:at + 20 * n_words]))[1:]
    out = []
    while sum(len(s.split()) for s in out) < n_words:
        out.append(sentences[len(out)])
    return out


def numbers(rng, n):
    return [str(number) for number in rng.sample(range(1000000, 10000000), n)]


def needles(n):
    texts = books()
    for group in range(n):
        rng = random.Random(f"needles {group}")
        documents = [excerpt(texts[(N_DOCUMENTS * group + i) % len(texts)], rng, 320) for i in range(N_DOCUMENTS)]
        names = [f"{a}-{b}" for a, b in zip(rng.sample(ADJECTIVES, N_DOCUMENTS + 1), rng.sample(NOUNS, N_DOCUMENTS + 1))]
        values, many, thing = numbers(rng, N_DOCUMENTS), numbers(rng, N_DOCUMENTS), rng.choice(THINGS)
        variables, value = ["".join(rng.choices("ABCDEFGHIJKLMNOPQRSTUVWXYZ", k=5)) for _ in range(N_DOCUMENTS)], str(rng.randrange(10000, 100000))
        kept, where = rng.sample(range(N_DOCUMENTS), 2)
        for i, document in enumerate(documents):
            added = [f"One of the special numbers for {names[i]} is: {values[i]}.", f"One of the special numbers for {names[-1]} is: {many[i]}.",
                     f"VAR {variables[i]} = {f'VAR {variables[i - 1]}' if i else value}."]
            if i == where:
                added.append(f"The keeper of the {thing} is called {names[kept]}.")
            for sentence in added:
                document.insert(rng.randrange(1, len(document)), sentence)
        asked = [Question("niah", f"What is the special number for {names[i]} mentioned in the texts above?",
                          f"The special number for {names[i]} mentioned in the texts is:", [values[i]], 12) for i in range(1, N_DOCUMENTS)]
        asked += [Question("multiquery", f"What are the special numbers for {', '.join(names[:-1])} mentioned in the texts above?",
                           f"The special numbers for {', '.join(names[:-1])} mentioned in the texts are:", values, 56),
                  Question("multivalue", f"What are all the special numbers for {names[-1]} mentioned in the texts above?",
                           f"All the special numbers for {names[-1]} mentioned in the texts are:", many, 56),
                  Question("vt", f"Find all variables that are assigned the value {value} in the texts above.",
                           f"By the chain of assignments in the texts above, {N_DOCUMENTS} variables are assigned the value {value}. They are:",
                           variables, 32),
                  Question("two_hop", f"What is the special number for the one who is called the keeper of the {thing}?",
                           f"The keeper of the {thing} is called", [values[kept]], 40)]
        yield [" ".join(document) for document in documents], asked


def lines(n):
    items = [json.loads(line) for line in (DATA / "long" / "longeval_lines" / "200_lines.jsonl").open()]
    for group in range(n):
        rng = random.Random(f"lines {group}")
        found = re.findall(r"^line (\S+): REGISTER_CONTENT is <(\d+)>$", items[group % len(items)]["prompt"], re.M)
        found = rng.sample(list({name: (name, number) for name, number in found}.values()), N_DOCUMENTS * 28)
        parts = [found[i * 28:(i + 1) * 28] for i in range(N_DOCUMENTS)]
        asked = [rng.choice(part) for part in parts[1:] for _ in range(2)]
        yield (["\n".join(f"line {name}: REGISTER_CONTENT is <{number}>" for name, number in part) for part in parts],
               [Question("lines", f"What is the REGISTER_CONTENT of line {name}?", f"The REGISTER_CONTENT of line {name} is <", [number], 7)
                for name, number in asked])


def passages(n):
    items = [re.match(r"Passage: (.*)\nQuestion: (.*)", item["query"], re.S).groups() + (item["gold"],)
             for item in map(json.loads, (DATA / "mc" / "boolq.jsonl").open())]
    items = [item for item in items if 100 <= len(item[0].split()) <= 150]
    random.Random("passages").shuffle(items)
    for group in range(n):
        chosen = items[12 * group:12 * group + 12]
        yield ([" \n".join(item[0] for item in chosen[3 * i:3 * i + 3]) for i in range(N_DOCUMENTS)],
               [Question("passages", f"By the texts above: {question}? Answer yes or no.", "", ["no", "yes"][gold], 0)
                for _, question, gold in chosen[3:]])


KINDS = {"needles": needles, "lines": lines, "passages": passages}


# ------------------------------------------------------------------------------------------------------- caches


class Cache:
    """What a session file of policy `full` holds: tokens [n] and rows [n_layers, n_kv_heads, n, 2, head_dim], keys and values, of F16 or F32."""

    LAYOUT = struct.Struct("<8sQQibbh8i4iQ")  # struct file_header in src/engine/session_file.c
    N_PAST, N_DENSE, N_OBSERVED, HAS_LOGITS, N_POLICY, N_VOCAB, N_LAYERS, N_KV_HEADS, HEAD_DIM = 7, 9, 10, 12, 13, 14, 15, 16, 17

    def __init__(self, header, policy, tokens, rows):
        self.header, self.policy, self.tokens, self.rows = header, policy, tokens, rows

    @classmethod
    def of(cls, session, folder):
        path = Path(folder, "session")
        session.save(path)
        data = path.read_bytes()
        header = list(cls.LAYOUT.unpack_from(data))
        n, at = header[cls.N_PAST], cls.LAYOUT.size + header[cls.N_POLICY]
        policy, tokens = data[cls.LAYOUT.size:at], np.frombuffer(data, "<i4", n, at)
        at += 4 * n + 4 * header[cls.N_VOCAB] * header[cls.HAS_LOGITS]
        heads = header[cls.N_LAYERS] * header[cls.N_KV_HEADS]
        raw = np.frombuffer(data, np.uint8, len(data) - at - 8, at).reshape(heads, -1)
        kind = {0: np.float16, 1: np.float32}[header[4]]
        rows = raw[:, 4:].copy().view(kind).reshape(header[cls.N_LAYERS], header[cls.N_KV_HEADS], n, 2, header[cls.HEAD_DIM])
        assert (raw[:, :4].copy().view("<i4") == n).all()
        return cls(header, policy, tokens, rows)

    def restore(self, engine, folder):
        header = list(self.header)
        n = header[self.N_PAST] = header[self.N_DENSE] = len(self.tokens)
        header[self.N_OBSERVED], header[self.HAS_LOGITS] = min(header[self.N_OBSERVED], n), 0
        heads = self.rows.shape[0] * self.rows.shape[1]
        rows = np.ascontiguousarray(self.rows).view(np.uint8).reshape(heads, -1)
        body = np.concatenate([np.full((heads, 1), n, "<i4").view(np.uint8), rows], 1)
        data = self.LAYOUT.pack(*header) + self.policy + self.tokens.astype("<i4").tobytes() + body.tobytes()
        path = Path(folder, "session")
        path.write_bytes(data + struct.pack("<Q", xxhash.xxh3_64_intdigest(data)))
        return engine.restore(path)

    def cut(self, first, end):
        return Cache(self.header, self.policy, self.tokens[first:end], self.rows[:, :, first:end])

    def then(self, *others):
        return Cache(self.header, self.policy, np.concatenate([self.tokens] + [o.tokens for o in others]),
                     np.concatenate([self.rows] + [o.rows for o in others], 2))

    def moved(self, by, theta):
        """Keys as they would be stored so many positions later: dimensions i and i + head_dim / 2 are a pair."""
        rows = self.rows.copy()
        rows[..., 0, :] = turned(self.rows[..., 0, :].astype(np.float32), np.float64(by), theta)
        return Cache(self.header, self.policy, self.tokens, rows)


def turned(x, positions, theta):
    """Rotates the last axis; positions: one, or one for each element of the axis before it."""
    half = x.shape[-1] // 2
    angle = np.asarray(positions, np.float64)[..., None] * theta ** (-np.arange(half) / half)
    cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    return np.concatenate([x[..., :half] * cos - x[..., half:] * sin, x[..., half:] * cos + x[..., :half] * sin], -1)


class Network:
    """The layers of a model of architecture qwen2, in F32, for some tokens of a text whose cache is there."""

    def __init__(self, path):
        import gguf
        reader = gguf.GGUFReader(path)
        number = lambda key: reader.fields["qwen2." + key].contents()
        self.theta, self.eps = number("rope.freq_base"), number("attention.layer_norm_rms_epsilon")
        self.n_heads, self.n_kv_heads, self.n_layers = (number(k) for k in ("attention.head_count", "attention.head_count_kv", "block_count"))
        self.head_dim = number("embedding_length") // self.n_heads
        self.reader, self.dequantize, self.weights = reader, gguf.quants.dequantize, {}

    def weight(self, name):
        if not self.weights:
            self.weights = {t.name: self.dequantize(t.data, t.tensor_type) for t in self.reader.tensors if t.name != "output.weight"}
        return self.weights[name]

    def norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * self.weight(name)

    def heads(self, h, layer, part, n, positions=None):
        """[n heads, tokens, head_dim], rotated where there are positions."""
        x = h @ self.weight(f"blk.{layer}.attn_{part}.weight").T + self.weight(f"blk.{layer}.attn_{part}.bias")
        x = x.reshape(len(h), n, self.head_dim).transpose(1, 0, 2)
        return x if positions is None else turned(x, positions, self.theta)

    def keys_values(self, x, layer, positions):
        """[n_kv_heads, tokens, 2, head_dim]"""
        h = self.norm(x, f"blk.{layer}.attn_norm.weight")
        return np.stack([self.heads(h, layer, "k", self.n_kv_heads, positions), self.heads(h, layer, "v", self.n_kv_heads)], 2)

    def through(self, x, layer, positions, rows):
        """What the tokens are behind the layer. rows[n_kv_heads, n, 2, head_dim]: of the whole text, theirs included."""
        q = self.heads(self.norm(x, f"blk.{layer}.attn_norm.weight"), layer, "q", self.n_heads, positions) / math.sqrt(self.head_dim)
        hidden = np.where(np.arange(rows.shape[1]) > positions[:, None], np.float32(-1e30), np.float32(0))
        seen = []
        for head in range(self.n_heads):
            keys, values = rows[head // (self.n_heads // self.n_kv_heads)].transpose(1, 0, 2)
            weights = q[head] @ keys.T + hidden
            weights = np.exp(weights - weights.max(1, keepdims=True))
            seen.append(weights @ values / weights.sum(1, keepdims=True))
        x = x + np.concatenate(seen, 1) @ self.weight(f"blk.{layer}.attn_output.weight").T
        h = self.norm(x, f"blk.{layer}.ffn_norm.weight")
        gate = h @ self.weight(f"blk.{layer}.ffn_gate.weight").T
        return x + (gate / (1 + np.exp(-gate)) * (h @ self.weight(f"blk.{layer}.ffn_up.weight").T)) @ self.weight(f"blk.{layer}.ffn_down.weight").T

    def blend(self, cache, first, share):
        """The cache with a share of its tokens from `first` on computed again, and how much of their layers that was."""
        positions = np.arange(first, len(cache.tokens))
        n = round(share * len(positions))
        out = Cache(cache.header, cache.policy, cache.tokens, cache.rows.copy())
        x = self.through(self.weight("token_embd.weight")[cache.tokens[first:]], 0, positions, out.rows[0].astype(np.float32))
        exact = self.keys_values(x, 1, positions)
        change = ((exact - out.rows[1][:, first:].astype(np.float32)) ** 2).sum((0, 3))  # [tokens, 2]
        chosen = np.sort(np.argsort(-(change / change.mean(0)).sum(1), kind="stable")[:n])
        out.rows[1][:, first:] = exact
        x, positions = x[chosen], positions[chosen]
        for layer in range(1, self.n_layers):
            if layer > 1:
                out.rows[layer][:, positions] = self.keys_values(x, layer, positions)
            if layer + 1 < self.n_layers:
                x = self.through(x, layer, positions, out.rows[layer].astype(np.float32))
        return out, (1 + (self.n_layers - 1) * n / (len(cache.tokens) - first)) / self.n_layers


# ------------------------------------------------------------------------------------------------------ one group


class Trial:
    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.model = butler.Model(args.model)
        self.engine = butler.Engine(self.model, n_threads=args.threads)
        self.network = Network(args.model)
        text, _ = self.model.chat([{"role": "user", "content": "CONTENT"}])
        before, after = text.split("CONTENT")
        self.before, self.after = self.model.tokenize(before), after
        self.yes_no = [[self.token(word), self.token(word.capitalize())] for word in ("no", "yes")]

    def token(self, word):
        token, = self.model.tokenize(word, add_special=False)
        return token

    def ids(self, document):
        ids = self.model.tokenize(document + "\n\n", add_special=False, parse_special=False)
        if not 400 <= len(ids) <= 700:
            print(f"a document of {len(ids)} tokens", file=sys.stderr)
        return ids

    def read(self, *parts):
        session = self.engine.session("full", n_ctx=N_CTX, kv_type=self.args.kv_type)
        session.prefill(np.concatenate(parts), logits=None)
        return session

    def cache(self, session):
        return Cache.of(session, self.folder)

    def alone(self, document):
        """A document's rows, at the place that it has behind the template's beginning."""
        with self.read(self.before, document) as session:
            return self.cache(session).cut(len(self.before), None)

    def link(self, start, pieces, share):
        """start: the exact rows up to the first document's end; pieces: (document, rows of it at its place)."""
        cache, again = start, 0
        for document, rows in pieces:
            n = round(share * len(document))
            with cache.restore(self.engine, self.folder) as session:
                session.prefill(document[:n], logits=None)
                cache = self.cache(session).then(rows.cut(n, None))
            again += n
        return cache, again / sum(len(document) for document, _ in pieces)

    def prepare(self, documents):
        """By way, a session that has read the documents, and the share that was computed again."""
        exact = self.read(self.before, *documents)
        start = self.cache(exact).cut(0, len(self.before) + len(documents[0]))
        pieces, place = [], len(start.tokens)
        for document in documents[1:]:
            pieces.append((document, self.alone(document).moved(place - len(self.before), self.network.theta)))
            place += len(document)
        rotated = start.then(*(rows for _, rows in pieces))
        ways = {"full": (exact, 1.0)}
        for way in self.args.ways.split(","):
            name, _, share = way.partition("=")
            if name == "rotate":
                cache, again = rotated, 0.0
            elif name == "link":
                cache, again = self.link(start, pieces, float(share))
            else:
                cache, again = self.network.blend(rotated, len(start.tokens), float(share))
            ways[way] = cache.restore(self.engine, self.folder), again
        return ways

    def answer(self, session, question):
        """Its words, the logits of its first token, and how much of what is expected it has."""
        ids = self.model.tokenize(question.text + self.after + question.prefix, add_special=False)
        with session.fork() as asked:
            first = asked.prefill(ids)
            if question.n_answer == 0:
                no, yes = (max(first[token] for token in tokens) for tokens in self.yes_no)
                return ["no", "yes"][int(yes > no)], first, float(["no", "yes"][int(yes > no)] == question.expected)
            text = self.model.detokenize(asked.generate(question.n_answer))
        return text, first, sum(word in text for word in question.expected) / len(question.expected)

    def rows(self, kind, group, documents, questions):
        documents = [self.ids(document) for document in documents]
        ways, exact = self.prepare(documents), {}
        for way, (session, share) in ways.items():
            for q, question in enumerate(questions):
                text, logits, score = self.answer(session, question)
                if way == "full":
                    exact[q] = logits
                yield {"kind": kind, "group": group, "question": q, "task": question.task, "way": way, "again": round(share, 4), "score": score,
                       "same": bool(logits.argmax() == exact[q].argmax()), "kl": round(divergence(exact[q], logits), 5), "answer": text}
            session.close()


def divergence(p, q):
    """KL(p, q) of the distributions of two rows of logits."""
    p, q = (x.astype(np.float64) - x.max() for x in (p, q))
    p, q = p - np.log(np.exp(p).sum()), q - np.log(np.exp(q).sum())
    return float((np.exp(p) * (p - q)).sum())


def check(trial):
    documents, questions = next(needles(1))
    documents = [trial.ids(document)[:CHECKED] for document in documents]
    question = next(question for question in questions if question.task == "multivalue")
    ids = trial.model.tokenize(question.text + trial.after + question.prefix, add_special=False)
    with trial.read(trial.before, *documents) as session:
        cache = trial.cache(session)
        logits = session.prefill(ids)
    ends = np.cumsum([len(trial.before)] + [len(document) for document in documents])
    pieces = [cache.cut(a, b).moved(0, trial.network.theta) for a, b in zip([0, *ends], ends)]
    again = pieces[0].then(*pieces[1:])
    with again.restore(trial.engine, trial.folder) as session:
        found = session.prefill(ids)
    print(f"four documents, {ends[-1]} tokens, cut in pieces and put together: rows the same {np.array_equal(again.rows, cache.rows)}, "
          f"logits the same {np.array_equal(found, logits)}")
    back = cache.moved(1000, trial.network.theta).moved(-1000, trial.network.theta)
    keys, others = (c.rows[..., 0, :].astype(np.float32) for c in (cache, back))
    norm = np.linalg.norm(keys, axis=-1, keepdims=True)
    print(f"rotated by 1000 and back: largest difference of a key {np.max(np.abs(others - keys) / norm):.1e} of its norm")
    alone = trial.alone(documents[1]).moved(len(documents[0]), trial.network.theta)
    there = cache.cut(ends[1], ends[2])
    for layer in (0, 1, trial.network.n_layers - 1):
        left, right = alone.rows[layer].astype(np.float32), there.rows[layer].astype(np.float32)
        far = [np.sqrt(((left - right) ** 2).sum((0, 1, 3))[i] / (right ** 2).sum((0, 1, 3))[i]) for i in (0, 1)]
        print(f"second document, read alone and moved, layer {layer}: keys differ by {far[0]:.1e} of their size, values by {far[1]:.1e}")
    pieces = [trial.alone(document).moved(end - len(trial.before), trial.network.theta) for document, end in zip(documents[1:], ends[1:])]
    rotated = cache.cut(0, ends[1]).then(*pieces)
    for name, put in [("rotated", rotated)] + [(f"blend={share}", trial.network.blend(rotated, ends[1], share)[0]) for share in (0.15, 1.0)]:
        with put.restore(trial.engine, trial.folder) as session:
            print(f"{name}: KL divergence of the answer's first token {divergence(logits, session.prefill(ids)):.1e}")


# --------------------------------------------------------------------------------------------------------- the table


def student(freedom):
    """The 97.5 % quantile of Student's t."""
    exact = 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23
    return exact[freedom - 1] if freedom <= len(exact) else 1.96 + 2.6 / freedom


def mean_and_half(groups):
    """The mean over all values of the groups, and half of its 95 % interval: groups are what was drawn."""
    values = [v for group in groups for v in group]
    mean, n = sum(values) / len(values), len(groups)
    if n < 2:
        return mean, float("nan")
    spread = sum((sum(v - mean for v in group)) ** 2 for group in groups) * n / (n - 1)
    return mean, student(n - 1) * math.sqrt(spread) / len(values)


def table(rows):
    by = defaultdict(dict)
    for row in rows:
        by[row["task"], row["way"]][row["kind"], row["group"], row["question"]] = row
    tasks, ways = (list(dict.fromkeys(row[key] for row in rows)) for key in ("task", "way"))
    print("| task | n | way | computed again | score | less than `full` | same first token | KL |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for task in tasks:
        full = by[task, "full"]
        counts = sum(row["score"] for row in full.values()) / len(full) >= FLOOR
        for way in ways:
            found = [row for key, row in by[task, way].items() if key in full]
            if not found:
                continue
            groups = defaultdict(list)
            for key, row in by[task, way].items():
                groups[key[1]].append(100 * (full[key]["score"] - row["score"]))
            loss, half = mean_and_half(list(groups.values()))
            mean = lambda key: sum(row[key] for row in found) / len(found)
            less = "" if way == "full" else f"{loss:.1f} ± {half:.1f}"
            print(f"| {task}{'' if counts else ' (does not count)'} | {len(found)} | {way} | {100 * mean('again'):.0f} % | "
                  f"{100 * mean('score'):.1f} | {less} | {100 * mean('same'):.0f} % | {mean('kl'):.3f} |")


def main():
    args = arguments()
    rows = []
    if args.output and os.path.exists(args.output):
        rows = [json.loads(line) for line in open(args.output)]
    done = {(row["kind"], row["group"]) for row in rows}
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder, open(args.output or os.devnull, "a") as out:
        trial = Trial(args, folder)
        if args.check:
            check(trial)
            return
        for kind, make in KINDS.items():
            for group, (documents, questions) in enumerate(make(getattr(args, kind))):
                if (kind, group) in done:
                    continue
                began, cpu = time.time(), time.process_time()
                made = list(trial.rows(kind, group, documents, questions))
                print("\n".join(map(json.dumps, made)), file=out, flush=True)
                rows += made
                print(f"{kind} {group + 1}: {time.time() - began:.0f} s, {time.process_time() - cpu:.0f} s of processor", file=sys.stderr, flush=True)
    table(rows)


if __name__ == "__main__":
    main()
