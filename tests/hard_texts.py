"""Texts that are hard to split into words, and a small vocabulary whose tokens show every place where they are split.

Everything follows from a seed: the same texts and the same vocabulary on every machine."""
import hashlib
import random
import re

import numpy as np

from cli import ROOT
from gguf_file import ARRAY, STRING, U32, Gguf

SEPARATOR, BOS = "<|next|>", "<|begin|>"
N_MERGES, N_WORDS = 2700, 200

WORDS = """the garden The HTTPServer camelCase iPhone McDonald's don't DON'T we'll WE'LL I've i'D 'tis it's rock'n'roll ça naïve
ÀÉÎ éÀ straße ǅungla ΣΊΣΥΦΟΣ λόγος Привет мир שלום مرحبا क्षेत्र हिन्दी ภาษาไทย 한국어 日本語 漢字かな カタカナ ﾊﾝｶｸ 你好 e\u0301te\u0301 n\u0303a o\u0308
fi\ufb01 ª º µ ʕ ƻ ǃ \u02b0x \u1f88 ა Ა \U00010400\U00010428 \U0001d400 x_1 a\u200db a\u200cb \u0915\u094d\u200d\u0937 <sentinel:12> IMGIMGABCZ""".split()
DIGITS = ["7", "42", "123", "2026", "12345", "1234567", "0x1F", "3.14", "1,234,567", "١٢٣٤", "१२३", "１２３４５", "½", "²³", "Ⅷ", "①②", "12٣456", "٣456", "1e-9"]
GAPS = [" ", "  ", "   ", "\t", "\n", "\n\n", "\r\n", "\r\n\r\n", " \n", "\n ", "\n\t", " \n \n", "\u00a0", "\u3000", "\u2009 ", "\u2028", "\u0085", "\v\f", " " * 7,
        " " * 33, "\t\t  ", "\u1680", "\u200b", "\ufeff", "\x1c"]
MARKS = list("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~") + ["...", "--", "!?", "://", "'s", "'S", "'re", "'LL", "'ſ", "’s", "«»", "、", "。", "，", "…", "—", "·", "€", "£", "×", "°", "©",
                                                     "۔", "،", "।", "！", "～", "“”", "/\n", ".\n\n", ",/", "\u0301", "\u20dd", "\u0600", "\x07", "\x00", "\x7f", "\ue000", "\u0378"]
EMOJI = ["😀", "👍🏽", "👨\u200d👩\u200d👧", "🇫🇷", "❤️", "1️⃣", "☃"]
BLOCKS = [(0xA1, 0xFF), (0x100, 0x17F), (0x370, 0x373), (0x391, 0x3A1), (0x410, 0x44F), (0x5D0, 0x5EA), (0x621, 0x63A), (0x905, 0x939), (0xE01, 0xE30), (0x10D0, 0x10F0),
          (0x1100, 0x1112), (0x1E00, 0x1EFF), (0x2010, 0x2027), (0x2070, 0x2071), (0x20A0, 0x20B5), (0x2160, 0x2188), (0x2190, 0x21FF), (0x2200, 0x22FF), (0x2500, 0x257F),
          (0x3041, 0x3096), (0x30A1, 0x30FA), (0x3131, 0x318E), (0x3105, 0x312C), (0x4E00, 0x9FA5), (0xAC00, 0xD7A3), (0xFE30, 0xFE4F), (0xFF01, 0xFF5E), (0x1F600, 0x1F64F),
          (0x20000, 0x2A6D6), (0x300, 0x36F), (0x80, 0x9F), (0x0, 0x1F)]


def hard_texts(n=1000, seed=30):
    rng = random.Random(seed)
    pick = lambda items: items[int(rng.random() * len(items))]  # choice() may differ between versions of Python
    texts = []
    for _ in range(n):
        text = ""
        for _ in range(1 + int(rng.random() * 14)):
            kind = rng.random()
            if kind < 0.32:
                text += pick(WORDS)
            elif kind < 0.45:
                text += pick(DIGITS)
            elif kind < 0.72:
                text += pick(GAPS)
            elif kind < 0.86:
                text += pick(MARKS)
            elif kind < 0.9:
                text += pick(EMOJI)
            else:
                first, last = pick(BLOCKS)
                text += "".join(chr(first + int(rng.random() * (last - first + 1))) for _ in range(1 + int(rng.random() * 3)))
            if rng.random() < 0.3:
                text += " "
        texts.append(text)
    return texts


def joined(pre, texts):
    """One text of all; SEPARATOR is a special token. For "whitespace" spaces stand alone: llama.cpp aborts at two in a row."""
    text = SEPARATOR.join(texts)
    return (re.sub(r"\s* \s*", " ", text) if pre == "whitespace" else text).encode()


def digest(ids):
    return hashlib.sha256(",".join(map(str, ids)).encode()).hexdigest()[:16]


def spelling():
    """The visible character that stands for each byte in a token's spelling."""
    table, n = {}, 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + n)
            n += 1
    return table


def train(symbols):
    """Merges by frequency of a text's symbols, which are byte strings, as pairs of them, some at a time. The text is not split into
    words: tokens may reach over any border between words, so that a border in another place gives other tokens."""
    tokens = sorted(set(symbols))
    ids = {token: i for i, token in enumerate(tokens)}
    merges, text = {}, np.array([ids[s] for s in symbols], np.int64)
    while len(merges) < N_MERGES:
        pairs, counts = np.unique(text[:-1] << 20 | text[1:], return_counts=True)
        before = len(merges)
        for best in np.lexsort((pairs, -counts)):
            left, right = int(pairs[best] >> 20), int(pairs[best] & 0xFFFFF)
            pair = tokens[left], tokens[right]
            if pair in merges or len(pair[0] + pair[1]) > 24:
                continue
            merges[pair] = pair[0] + pair[1]
            whole = ids.setdefault(merges[pair], len(tokens))
            if whole == len(tokens):
                tokens.append(merges[pair])
            places = np.flatnonzero((text[:-1] == left) & (text[1:] == right))
            if left == right:  # of overlapping places every second one
                kept = []
                for place in places.tolist():
                    if not kept or place > kept[-1] + 1:
                        kept.append(place)
                places = np.array(kept, np.int64)
            text[places] = whole
            text = np.delete(text, places + 1)
            if len(merges) - before == 60 or len(merges) == N_MERGES:
                break
    return list(merges)


class Vocabulary:
    """A GGUF file of the vocabulary for every pre-tokenizer: 256 bytes, merges, and words that no merge makes."""

    def __init__(self):
        book = (ROOT / "tests" / "data" / "secret_garden.txt").read_bytes()[:30000]
        texts = "\x00".join(hard_texts(500, seed=31)).encode()
        self.merges = train([bytes([b]) for b in book + texts])
        words = sorted({word.encode() for text in hard_texts(300, seed=32) for word in text.split(" ") if 3 < len(word.encode()) < 24})
        self.tokens = list(dict.fromkeys([bytes([b]) for b in range(256)] + [a + b for a, b in self.merges] + words[:N_WORDS]))

    def write(self, path, pre):
        table = spelling()
        spell = lambda token: "".join(table[b] for b in token)
        special = [SEPARATOR, BOS]
        file = Gguf()
        file.put("general.architecture", STRING, "llama")
        file.put("tokenizer.ggml.model", STRING, "gpt2")
        file.put("tokenizer.ggml.pre", STRING, pre)
        file.put("tokenizer.ggml.tokens", ARRAY, (STRING, [*map(spell, self.tokens), *special]))
        file.put("tokenizer.ggml.token_type", ARRAY, (5, [1] * len(self.tokens) + [3] * len(special)))
        file.put("tokenizer.ggml.merges", ARRAY, (STRING, [f"{spell(a)} {spell(b)}" for a, b in self.merges]))
        for key, i in (("bos", 1), ("eos", 1)):
            file.put(f"tokenizer.ggml.{key}_token_id", U32, len(self.tokens) + i)
        file.write(path)
        return str(path)


# Names whose words begin as characters; their files spell a space as the character given here.
OF_CHARACTERS = {"gemma4": "\u2581", "granite-embed-multi-311m": "\u2581", "sarvam-moe": "\u2581", "whitespace": " "}


class CharacterVocabulary:
    """The same for the names in OF_CHARACTERS. One character in eight has no token of its own."""

    def __init__(self):
        book = (ROOT / "tests" / "data" / "secret_garden.txt").read_text()[:30000]
        texts = "\n".join(hard_texts(500, seed=31)).replace("\x00", "")
        symbols = [c.encode() for c in book + texts if c == " " or ord(c) % 8]
        self.merges = train(symbols)
        self.tokens = list(dict.fromkeys(sorted(set(symbols)) + [a + b for a, b in self.merges]))

    def write(self, path, pre):
        spell = lambda token: token.decode().replace(" ", OF_CHARACTERS[pre])
        merges = [(a, b) for a, b in self.merges if OF_CHARACTERS[pre] != " " or b" " not in a + b]
        special = [SEPARATOR, BOS]
        file = Gguf()
        file.put("general.architecture", STRING, "llama")
        file.put("tokenizer.ggml.model", STRING, "gpt2")
        file.put("tokenizer.ggml.pre", STRING, pre)
        file.put("tokenizer.ggml.tokens", ARRAY, (STRING, [*map(spell, self.tokens), *special, *(f"<0x{b:02X}>" for b in range(256))]))
        file.put("tokenizer.ggml.token_type", ARRAY, (5, [1] * len(self.tokens) + [3] * len(special) + [6] * 256))
        file.put("tokenizer.ggml.merges", ARRAY, (STRING, [f"{spell(a)} {spell(b)}" for a, b in merges]))
        for key, i in (("bos", 1), ("eos", 1)):
            file.put(f"tokenizer.ggml.{key}_token_id", U32, len(self.tokens) + i)
        file.write(path)
        return str(path)
