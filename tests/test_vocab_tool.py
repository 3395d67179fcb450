"""tools/convert/make_vocab_gguf.py: ranks become merges again, and butler reads the files that it writes."""
import base64
import json
import random
import subprocess
import sys

from cli import ROOT, rows
from gguf_file import Gguf

TEXT = ("the other brother bathes another moth in the river; whether the weather is wetter there, neither the mother nor the father "
        "gathers feathers. caf\u00e9, na\u00efve, \u00e9t\u00e9 \u00e9t\u00e9 ") * 3


def spelling():
    """The reference's own table, built the other way round: which byte each character stands for."""
    table, n = {}, 0
    for byte in range(256):
        if 33 <= byte <= 126 or 161 <= byte <= 172 or byte >= 174:
            table[byte] = chr(byte)
        else:
            table[byte] = chr(256 + n)
            n += 1
    return table


def spell(token):
    return "".join(SPELLING[b] for b in token)


SPELLING = spelling()


def merge(parts, pair):
    out = []
    for part in parts:
        if out and (out[-1], part) == pair:
            out[-1] += part
        else:
            out.append(part)
    return out


def train(n_merges):
    """BPE by counting, on words; the merges in order, as pairs of bytes."""
    words = [[bytes([b]) for b in word.encode()] for word in TEXT.replace(" ", "  ").split(" ") if word]
    words += [[b" "] + word for word in words]
    merges = []
    for _ in range(n_merges):
        counts = {}
        for word in words:
            for pair in zip(word, word[1:]):
                counts[pair] = counts.get(pair, 0) + 1
        if not counts:
            break
        pair = max(counts, key=lambda p: (counts[p], p))
        merges.append(pair)
        words = [merge(word, pair) for word in words]
    return merges


def make(*args, expect=0):
    result = subprocess.run([sys.executable, str(ROOT / "tools" / "convert" / "make_vocab_gguf.py"), *map(str, args)], capture_output=True, text=True)
    assert result.returncode == expect, result.stderr
    return result.stderr


def ranks_file(path, merges, order):
    tokens = [bytes([b]) for b in order] + [a + b for a, b in merges]
    path.write_text("".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)))
    return tokens


def test_merges_are_recovered_from_ranks(tmp_path):
    merges = train(150)
    assert len(merges) > 60 and any(len(a + b) > 5 for a, b in merges)
    order = list(range(256))
    random.Random(7).shuffle(order)  # real files do not begin with byte 0 either
    tokens = ranks_file(tmp_path / "ranks", merges, order)
    assert make("qwen2", tmp_path / "out.gguf", tmp_path / "ranks") == ""
    model = Gguf(tmp_path / "out.gguf")
    value = lambda key: model.values["tokenizer.ggml." + key][1]
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert [t.decode() for t in value("merges")[1]] == [f"{spell(a)} {spell(b)}" for a, b in merges]
    assert [t.decode() for t in value("tokens")[1]] == [*map(spell, tokens), *special]
    assert value("token_type")[1] == [1] * len(tokens) + [3] * 3
    assert (value("pre"), value("eos_token_id")) == (b"qwen2", len(tokens) + 2)


def test_text_is_merged_as_it_was_in_training(tmp_path):
    merges = train(150)
    tokens = ranks_file(tmp_path / "ranks", merges, range(256))
    make("qwen2", tmp_path / "out.gguf", tmp_path / "ranks")
    for text in ("another weather", "the caf\u00e9 there", "brotherbrotherbrother feathers", "wetter"):
        expected = []
        for i, word in enumerate(text.split(" ")):
            parts = [bytes([b]) for b in (" " * (i > 0) + word).encode()]
            for pair in merges:
                parts = merge(parts, pair)
            expected += [tokens.index(part) for part in parts]
        assert rows("tokenize", "-m", tmp_path / "out.gguf", "-p", text)[0]["ids"] == expected
    ids = rows("tokenize", "-m", tmp_path / "out.gguf", "-p", "<|im_start|>the<|im_end|>")[0]["ids"]
    assert (ids[0], ids[-1]) == (len(tokens) + 1, len(tokens) + 2)


def test_published_lists_of_merges(tmp_path):
    merges = train(60)
    tokens = [bytes([b]) for b in range(256)] + [a + b for a, b in merges]
    (tmp_path / "vocab.json").write_text(json.dumps({spell(token): i for i, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{spell(a)} {spell(b)}\n" for a, b in merges))
    make("gpt-2", tmp_path / "out.gguf", tmp_path / "vocab.json", tmp_path / "merges.txt")
    assert rows("tokenize", "-m", tmp_path / "out.gguf", "-p", "<|endoftext|>")[0]["ids"] == [len(tokens)]
    assert rows("tokenize", "-m", tmp_path / "out.gguf", "-p", "the")[0]["ids"] == [tokens.index(b"the")]


def test_ranks_with_a_gap_are_refused(tmp_path):
    (tmp_path / "ranks").write_text("QQ== 0\nQg== 2\n")
    assert "ranks" in make("qwen2", tmp_path / "out.gguf", tmp_path / "ranks", expect=1)


def test_a_token_that_nothing_makes_is_reported(tmp_path):
    (tmp_path / "ranks").write_text("QQ== 0\nQg== 1\nQw== 2\nQUJD 3\nQUI= 4\n")  # ABC before AB
    assert "b'ABC'" in make("qwen2", tmp_path / "out.gguf", tmp_path / "ranks")
    assert Gguf(tmp_path / "out.gguf").values["tokenizer.ggml.merges"][1][1] == [b"A B"]
