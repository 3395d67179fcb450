"""Generated retrieval tasks: documents whose last words can only be known by reading far back.

A document is a list of (text, weight) segments or ready tokens; the weight is what a wrong prediction of those tokens costs in training. Answers weigh ANSWER, book text
used as filler 1 (it teaches language all the same), the wording of a task TEMPLATE, and what nobody could foresee (a key when it is first named) UNKNOWN.
"""
import collections
import re

import numpy as np

import pools

ANSWER, TEMPLATE, UNKNOWN = 4.0, 0.4, 0.05
KINDS = {"passkey": 5, "facts": 5, "coref": 10, "pairs": 9, "lines": 4, "uuids": 2, "repeat": 2, "hops": 1, "copy": 2}    # how often each is made


class Text:
    """The books as tokens, with the places where a sentence ends."""

    def __init__(self, tok, ids):
        self.tok, self.ids = tok, ids
        vocab = [tok.decode([i]) for i in range(tok.get_vocab_size())]
        self.sentence_end = np.array([bool(re.search(r"([.!?][\"'”’]?|\n)$", v)) for v in vocab])
        self.special = np.array([tok.token_to_id("<|bos|>"), tok.token_to_id("<|eos|>")])

    def span(self, rng, n):
        """n tokens from a random place, from the start of a sentence where one is near; never across two books."""
        for _ in range(20):
            start = int(rng.integers(0, len(self.ids) - n - 200))
            ends = np.flatnonzero(self.sentence_end[self.ids[start:start + 200]])
            start += int(ends[0]) + 1 if len(ends) else 0
            out = self.ids[start:start + n]
            if not np.isin(out, self.special).any():
                return out
        return out[~np.isin(out, self.special)]

    def sentence(self, rng):
        out = self.span(rng, 60)
        ends = np.flatnonzero(self.sentence_end[out])
        return self.tok.decode(out[:int(ends[min(1, len(ends) - 1)]) + 1].tolist()).strip() if len(ends) else self.tok.decode(out.tolist()).strip()


def common_words(tok, ids, n_tokens=4_000_000, skip=250, keep=5000):
    """Lower-case words of 4 to 9 letters by frequency in the books, without the commonest: keys and values for the recall tasks."""
    count = collections.Counter(re.findall(r"(?<![A-Za-z])[a-z]{4,9}(?![A-Za-z])", tok.decode(ids[:n_tokens].tolist())))
    return [w for w, _ in count.most_common(skip + keep)][skip:]


class Tasks:
    def __init__(self, tok, text, words, seed):
        self.tok, self.text, self.words = tok, text, words
        self.rng = np.random.default_rng(seed)
        self.all_kinds = self.kinds = dict(KINDS)
        self.names = list(self.all_kinds)
        self.letters = [v for v in (tok.decode([i]) for i in range(tok.get_vocab_size())) if re.fullmatch("[a-z]{2,6}", v)]

    # --- small pieces -------------------------------------------------------------------------------------------------------------------
    def one(self, pool):
        return pool[int(self.rng.integers(len(pool)))]

    def some(self, pool, n):
        return [pool[i] for i in self.rng.choice(len(pool), size=n, replace=False)]

    def chance(self, p):
        return self.rng.random() < p

    def digits(self, low=4, high=7):
        return "".join(str(d) for d in self.rng.integers(0, 10, int(self.rng.integers(low, high + 1))))

    def hexes(self, n):
        return "".join(self.one("0123456789abcdef") for _ in range(n))

    def place(self, capital=None):
        r = self.rng.random()
        if r < 0.2:
            name = "".join(self.one(self.letters) for _ in range(int(self.rng.integers(2, 4))))     # nothing but looking tells how such a name goes on
        elif r < 0.55:
            name = self.one(pools.COMPOUND_A) + self.one(pools.COMPOUND_B)
        elif r < 0.8:
            name = self.one(pools.PLACE_A) + self.one(pools.PLACE_B) + self.one(pools.PLACE_C)
        else:
            name = "".join(self.one(pools.PLACE_A) if i % 2 == 0 else self.one(pools.PLACE_B) for i in range(int(self.rng.integers(3, 5)))) + self.one(pools.PLACE_C)[:3]
        if capital is None:
            capital = self.chance(0.5)
        return name.capitalize() if capital else name

    def person(self):
        return self.one(pools.PEOPLE) + (" " + self.one(pools.SURNAMES) if self.chance(0.6) else "")

    def secret(self):
        r = self.rng.random()
        if r < 0.6:
            return self.digits()
        if r < 0.75:
            return self.one(self.words)
        if r < 0.9:
            return "-".join(self.some(self.words, 2))
        return self.hexes(6)

    def enc(self, text):
        return self.tok.encode(text, add_special_tokens=False).ids

    def tokens(self, segments):
        ids, weights = [], []
        for part, w in segments:
            new = self.enc(part) if isinstance(part, str) else list(part)
            ids += new
            weights += [w] * len(new)
        return ids, weights

    # --- filler with things planted in it -----------------------------------------------------------------------------------------------
    def filler(self, n):
        """About n tokens: mostly book, sometimes short sentences repeated."""
        if n <= 0:
            return np.zeros(0, np.int64), 1.0
        if self.chance(0.7):
            return self.text.span(self.rng, n).astype(np.int64), 1.0
        said = " ".join(self.some(pools.FILLER, int(self.rng.integers(4, 9)))) + self.one([" ", "\n"])
        ids = self.enc(said)
        return np.array((ids * (n // len(ids) + 1))[:n], np.int64), 0.1

    def plant(self, room, planted, head, tail):
        """head, filler with the planted pieces at random sentence ends, tail; `room` tokens in all as near as it goes."""
        pieces = [self.tokens(p) for p in planted]
        hid, hw = self.tokens(head)
        tid, tw = self.tokens(tail)
        fill, fw = self.filler(room - len(hid) - len(tid) - sum(len(p[0]) for p in pieces))
        ends = np.flatnonzero(self.text.sentence_end[fill]) + 1 if len(fill) else np.zeros(0, np.int64)
        # Uniform over the length, then moved to the next sentence end.
        want = np.sort(self.rng.integers(0, len(fill) + 1, len(pieces)))
        at = [int(ends[np.searchsorted(ends, x)]) if np.searchsorted(ends, x) < len(ends) else int(x) for x in want]
        order = self.rng.permutation(len(pieces))
        ids, w, last = list(hid), list(hw), 0
        for cut, k in zip(at, order):
            ids += fill[last:cut].tolist() + pieces[k][0]
            w += [fw] * (cut - last) + pieces[k][1]
            last = cut
        ids += fill[last:].tolist() + tid
        w += [fw] * (len(fill) - last) + tw
        return ids, w

    # --- the tasks ----------------------------------------------------------------------------------------------------------------------
    def passkey(self, room):
        word = self.one(["pass key"] * 5 + ["secret number", "access code", "password", "magic word", "vault code"])
        n = 1 if self.chance(0.6) else int(self.rng.integers(2, 5))
        if n > 1:
            owners = self.some(pools.PEOPLE, n)
            keys = [self.secret() for _ in owners]
            planted = [[(f" The {word} of {o} is", TEMPLATE), (f" {k}", UNKNOWN), (f". Remember it.", TEMPLATE)] for o, k in zip(owners, keys)]
            tail = []
            for i in self.rng.permutation(n):
                tail += [(f"\nWhat is the {word} of {owners[i]}? The {word} of {owners[i]} is", TEMPLATE), (f" {keys[i]}", ANSWER), (".", TEMPLATE)]
            return self.plant(room, planted, [], tail)
        k = self.digits(5, 5) if self.chance(0.4) else self.secret()
        fact = [(f" The {word} is", TEMPLATE), (f" {k}", UNKNOWN), (".", TEMPLATE)]
        if self.chance(0.6):
            fact += [(f" Remember it.", TEMPLATE), (f" {k}", 1.0), (f" is the {word}.", TEMPLATE)]
        if self.chance(0.3):
            fact += [("\n", TEMPLATE)]
        head = [(self.one(["", "Somewhere in this text a fact is hidden. Find it and keep it in mind; it will be asked for.\n",
                           f"There is one important thing in the text below: a {word}. Memorize it.\n",
                           "Read the following carefully.\n\n"]), TEMPLATE)]
        ask = self.one([f"\nWhat is the {word}? The {word} is", f"\n\nQuestion: What is the {word}?\nAnswer: The {word} is", f" The {word} is",
                        f"\nWhat is the {word}?", f"\nNow say it: the {word} is"])
        return self.plant(room, [fact], head, [(ask, TEMPLATE), (f" {k}", ANSWER), (".", TEMPLATE)])

    def facts(self, room):
        """Somebody's thing is kept somewhere: things, owners and places cross, so that neither alone tells."""
        n = int(self.rng.integers(1, max(2, min(8, room // 90) + 1)))
        things, people = self.some(pools.THINGS, n // 2 + 1), self.some(pools.PEOPLE, (n + 1) // 2)
        pairs = self.some([(t, p) for t in things for p in people], n)
        planted, asks = [], []
        for t, p in pairs:
            spot = self.one(pools.PLANTED_SPOTS) if self.chance(0.5) else "in " + self.place(True)
            colour = self.one(pools.COLOURS)
            r = self.rng.random()
            if r < 0.5:
                planted.append([(f" The {t} of {p} is kept", TEMPLATE), (f" {spot}", UNKNOWN), (".", TEMPLATE)])
            elif r < 0.8:
                planted.append([(f" {p} keeps the {t}", TEMPLATE), (f" {spot}", UNKNOWN), (".", TEMPLATE)])
            else:
                planted.append([(f" {p}'s {t} is {colour} and lies", TEMPLATE), (f" {spot}", UNKNOWN), (".", TEMPLATE)])
            asks.append([(self.one([f"\nWhere is the {t} of {p}? The {t} of {p} is kept", f"\nQuestion: Where does {p} keep the {t}?\nAnswer:",
                                    f"\nWhere is {p}'s {t}? It is", f"\nIf {p} wants the {t}, where must one look? Look",
                                    f"\n{p} has lost the {t}. It was kept", f"\nQ: the {t} that belongs to {p}, where is it?\nA:"]), TEMPLATE), (f" {spot}", ANSWER), (".", TEMPLATE)])
        return self.plant(room, planted, [], [s for i in self.rng.permutation(n) for s in asks[i]])

    def distractor(self):
        r = self.rng.random()
        if r < 0.3:
            return self.text.sentence(self.rng)
        if r < 0.55:
            x, y = self.some(pools.IDEAS, 2)
            return self.one(pools.THOUGHTS).format(P=self.person(), x=x, y=y, X=x.capitalize())
        if r < 0.75:
            (f, g), (s, t) = self.some(pools.FOODS, 2), self.some(pools.TASTES, 2)
            return self.one(pools.MEALS).format(f=f, g=g, s=s, t=t)
        a, b, c = (int(x) for x in self.rng.integers(3, 60, 3))
        c = min(c, a + b - 1)
        return self.one(pools.SUMS).format(a=a, b=b, c=c, ab=a + b, r=a + b - c)

    def coref(self, room):
        """A described place gets a name; other talk; then the place is described again and its name is wanted."""
        n = 1 if self.chance(0.5) else int(self.rng.integers(2, max(3, min(9, room // 110))))
        feats = self.some(pools.FEATURES, 2 * n)
        join, asked = self.one(pools.JOINS), self.one([": ", ":", " ", " It is ", " The place is: ", "\nAnswer: ", ": "])
        name_after = self.one(["The place is:", "The place is:", "Its name is", "People call it", "It is called", "The place is"])
        ids, w, named = [], [], []
        per = max(0, (room - n * 90) // max(1, n))

        def add(segments):
            i, ww = self.tokens(segments)
            ids.extend(i)
            w.extend(ww)

        for k in range(n):
            (a, qa), (b, qb) = feats[2 * k], feats[2 * k + 1]
            name = self.place(False if self.chance(0.6) else True)
            named.append((name, qa, qb))
            lead = f"{self.one(pools.OPENINGS)} {self.one(pools.SEEN).format(a=a, b=b)}. {self.one(pools.AFTER) + ' ' if self.chance(0.6) else ''}{name_after}"
            add([(lead, TEMPLATE), (f" {name}", UNKNOWN), (join, TEMPLATE)])
            until = len(ids) + (per if n == 1 else int(per * self.rng.random() * 1.2))
            while len(ids) < until and len(ids) < room - 60 * (n - k):
                if n == 1 and until - len(ids) > 400 and self.chance(0.5):
                    add([(self.text.span(self.rng, int(self.rng.integers(100, until - len(ids) - 100))).tolist(), 1.0), (join, TEMPLATE)])
                else:
                    add([(self.distractor(), 0.6), (join, TEMPLATE)])
        for k in self.rng.permutation(n):
            name, qa, qb = named[k]
            q = self.one(pools.ASK_PLACE).format(k=self.one(pools.KINDS), a=qa, b=qb)
            lead_in = " " if asked.endswith(" ") and asked != " " else ""
            add([(q + (asked[:-1] if asked.endswith(" ") else asked), TEMPLATE), (" " + name if asked != ":" or lead_in else " " + name, ANSWER), (join, TEMPLATE)])
        return ids, w

    def pair_of(self, style):
        if style == "word":
            return self.one(self.words), self.one(self.words)
        if style == "number":
            return self.one(self.words), self.digits(3, 6)
        if style == "five":
            return self.one(self.words), self.digits(5, 5)
        if style == "two":
            return "-".join(self.some(self.words, 2)), self.digits(4, 5)
        if style == "digits":
            return self.digits(4, 6), self.digits(4, 6)
        if style == "place":
            return self.one(self.words), self.place()
        return self.hexes(8), self.hexes(8)

    def pairs(self, room):
        """A list of keys and values, some of which are asked for: as they were listed, or in other words."""
        style = self.one(["word", "word", "number", "number", "five", "five", "place", "two", "digits", "hex"])
        cost = {"word": 8, "number": 11, "five": 11, "place": 10, "two": 16, "digits": 16, "hex": 22}[style]
        form = self.one(["{k}: {v}\n", "{k}: {v}\n", '"{k}": "{v}", ', "{k} = {v}; ", "The value of {k} is {v}. ", "{k} -> {v}\n", "key {k}, value {v}\n"])
        asks = 1 + int(self.rng.integers(0, 8))
        n = max(2, min(90, int((room - 30 * asks) // (cost + (4 if "The" in form or "key" in form else 0)))))
        if self.chance(0.5):
            n = max(2, min(n, int(self.rng.integers(2, 31))))
        table = {}
        while len(table) < n:
            k, v = self.pair_of(style)
            table[k] = v
        pre, post = form.split("{v}")
        lead = " " if pre.endswith(" ") else ""
        key_pre, key_post = pre.split("{k}")
        key_post = key_post[:len(key_post) - len(lead)]
        body = []
        for k, v in table.items():
            body += [(key_pre + k + key_post, UNKNOWN), (lead + v, UNKNOWN), (post, UNKNOWN)]
        head = [(self.one(["", "Remember these pairs.\n", "Below is a list of keys and values.\n", "JSON data:\n{", "Record:\n"]), TEMPLATE)]
        tail, plain = [], self.chance(0.5)
        for k in self.some(list(table), min(asks, n)):
            ask = None if plain else self.one([f"\nWhat is the value of {k}? The value of {k} is", f'\nKey: "{k}"\nValue:', f"\n{k}:", f"\nkey {k}, value",
                                               f"\nQuestion: which value belongs to {k}?\nAnswer:"])
            if ask is None:
                tail += [("\n" + key_pre + k + key_post, TEMPLATE), (lead + table[k], ANSWER)]
            elif ask.startswith("\nKey"):
                tail += [(ask + ' "', TEMPLATE), (table[k], ANSWER), ('"', TEMPLATE)]
            else:
                tail += [(ask, TEMPLATE), (" " + table[k], ANSWER), (".", TEMPLATE)]
        i, w = self.tokens(head + body)
        ti, tw = self.tokens(tail)
        gap = room - len(i) - len(ti)
        if gap > 60 and self.chance(0.4):
            i += self.text.span(self.rng, gap).tolist()
            w += [1.0] * (len(i) - len(w))
        return i + ti, w + tw

    def uuids(self, room):
        """Keys and values of 32 hexadecimal digits in JSON: copying where no word helps."""
        n = max(2, (room - 100) // 72)
        if room > 900:
            n = int(self.rng.integers(2, n + 1))
        make = lambda: "-".join(self.hexes(k) for k in (8, 4, 4, 4, 12)) if full else self.hexes(8)
        full = self.chance(0.7)
        table = {make(): make() for _ in range(n)}
        body = [(self.one(["Extract the value of the key from the JSON object below.\n\nJSON data:\n", "JSON data:\n", ""]) + "{", TEMPLATE)]
        for i, (k, v) in enumerate(table.items()):
            body += [(f'"{k}": "', UNKNOWN), (v, UNKNOWN), ('",\n ' if i + 1 < n else '"}\n', TEMPLATE)]
        for k in self.some(list(table), 1 + (n > 5)):
            body += [(self.one([f'\nKey: "{k}"\nCorresponding value:', f'\nKey: "{k}"\nValue:', f'\nThe value of "{k}" is']) + ' "', TEMPLATE), (table[k], ANSWER), ('"', TEMPLATE)]
        return self.tokens(body)

    def lines(self, room):
        """A register of numbered lines: each has a name of two words, and a few numbers are asked for."""
        n = max(2, min(700, (room - 180) // 23))
        if room > 900:
            n = int(self.rng.integers(n // 4 + 1, n + 1))
        names = ["-".join(self.some(self.words, 2)) for _ in range(n)]
        values = [self.digits(4, 5) for _ in names]
        usual = self.chance(0.6)
        word = "REGISTER_CONTENT" if usual else self.one(["CONTENT", "entry", "STORED_VALUE"])
        unit = "line" if usual else self.one(["line", "row", "item"])
        body = [(self.one([f"Each {unit} below holds a number as its {word}. Keep them in mind.\n", f"Here is a list of {unit}s; remember the <{word}> of each.\n\n"]), TEMPLATE)]
        for k, v in zip(names, values):
            body += [(f"{unit} {k}: {word} is <", UNKNOWN), (v, UNKNOWN), (">\n", UNKNOWN)]
        if self.chance(0.5):
            body += [("\nThe list ends here.", TEMPLATE)]
        for i in self.some(range(n), min(n, 1 + int(self.rng.integers(1, 4)))):
            ask = self.one([f" Tell me what is the <{word}> in {unit} {names[i]}? I need the number. The <{word}> in {unit} {names[i]} is <",
                            f"\nWhat is the {word} of {unit} {names[i]}? The {word} in {unit} {names[i]} is <", f"\n{unit} {names[i]}: {word} is <"])
            body += [(ask, TEMPLATE), (values[i], ANSWER), (">.", TEMPLATE)]
        return self.tokens(body)

    def repeat(self, room):
        """A passage, other text, the passage again."""
        n = int(min(room // 3, self.rng.integers(24, 160)))
        passage = self.text.span(self.rng, n).astype(np.int64).tolist()
        known = max(4, n // 6)
        mid, mw = self.filler(room - 2 * n)
        ids = passage + mid.tolist() + passage
        return ids, [1.0] * n + [mw] * len(mid) + [0.2] * known + [2.0] * (n - known)

    def hops(self, room):
        """Two steps: A's key is with B, B lives in C; where is A's key?"""
        n = int(self.rng.integers(1, max(2, min(4, room // 130) + 1)))
        people, thing = self.some(pools.PEOPLE, 2 * n), self.one(pools.THINGS)
        planted, tail = [], []
        for k in range(n):
            a, b, c = people[2 * k], people[2 * k + 1], self.place(True)
            planted += [[(f" {a}'s {thing} is with", TEMPLATE), (f" {b}", UNKNOWN), (".", TEMPLATE)], [(f" {b} lives in", TEMPLATE), (f" {c}", UNKNOWN), (".", TEMPLATE)]]
            tail.append([(f"\nWho has {a}'s {thing}?", TEMPLATE), (f" {b}", ANSWER), (".", TEMPLATE)] if self.chance(0.4) else
                        [(f"\nIn which town is {a}'s {thing}?", TEMPLATE), (f" {c}", ANSWER), (".", TEMPLATE)])
        return self.plant(room, planted, [], [s for i in self.rng.permutation(n) for s in tail[i]])

    def copy(self, room):
        """Random words, then the same words again."""
        n = int(min(room // 3.4, self.rng.integers(8, 60)))
        kind = self.rng.random()
        unit = (lambda: self.one(self.words)) if kind < 0.5 else (lambda: self.digits(2, 6)) if kind < 0.75 else (lambda: self.hexes(int(self.rng.integers(4, 13))))
        n = n if kind < 0.5 else max(3, n // 5)
        said = " ".join(unit() for _ in range(n))
        return self.tokens([("Words: ", TEMPLATE), (said, UNKNOWN), ("\nAgain: ", TEMPLATE), (said, 2.0), ("\n", TEMPLATE)])

    # --- sequences ----------------------------------------------------------------------------------------------------------------------
    def document(self, room):
        kinds = list(self.kinds)
        p = np.array([self.kinds[k] for k in kinds], float)
        kind = kinds[int(self.rng.choice(len(kinds), p=p / p.sum()))]
        return kind, getattr(self, kind)(room)

    def sequence(self, n, bos, eos):
        """n + 1 tokens, their weights and kinds of task (index into `names`, or -1): one long document or several short ones."""
        ids, w, kinds = [bos], [0.0], [-1]
        while len(ids) < n - 60:
            room = n - len(ids) - 2
            if room > 240 and self.chance(0.45):
                room = int(self.rng.integers(100, room))
            kind, (di, dw) = self.document(room)
            if len(ids) + len(di) + 1 > n + 1:
                if len(di) > room * 1.3 + 40 and self.chance(0.9):
                    continue
                # A document that is a little too long loses words from its beginning's end, never its answers: drop the sequence's start instead.
                cut = len(ids) + len(di) + 1 - (n + 1)
                if len(ids) > 1:
                    continue
                di, dw = di[cut:], dw[cut:]
            ids += di + [eos]
            w += dw + [0.1]
            kinds += [self.names.index(kind)] * (len(ids) - len(kinds))
            if n + 1 - len(ids) > 60:
                ids.append(bos)
                w.append(0.0)
                kinds.append(-1)
        if len(ids) < n + 1:
            fill = self.text.span(self.rng, n + 1 - len(ids)).tolist()
            ids += fill
            w += [1.0] * len(fill)
        while len(ids) < n + 1:
            ids.append(eos)
            w.append(0.0)
        kinds += [-1] * (len(ids) - len(kinds))
        return np.array(ids[:n + 1], np.int64), np.array(w[:n + 1], np.float32), np.array(kinds[:n + 1], np.int64)
