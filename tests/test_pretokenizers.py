"""Every pre-tokenizer gives llama.cpp's tokens of 1,000 hard texts: compared with digests that tools/fixtures/record_pretokenizers.py made from
what llama.cpp gave for the same file and texts (the digests' file names the version)."""
import json
import random
import re

import pytest

from cli import ROOT, refuses, rows
from hard_texts import OF_CHARACTERS, CharacterVocabulary, Vocabulary, digest, hard_texts, joined

EXPECTED = json.loads((ROOT / "tests" / "data" / "pretokenizers.json").read_text())
NAMES = re.findall(r'^    \{"([\w.-]+)", [A-Z0-9_]+, (?:true|false), (?:true|false)\},', (ROOT / "src" / "text" / "pretokenizer.c").read_text(), re.M)
VOCABULARIES = Vocabulary(), CharacterVocabulary()


def vocabulary(pre):
    return VOCABULARIES[pre in OF_CHARACTERS]


@pytest.fixture(scope="module")
def texts():
    return hard_texts()


def test_every_name_has_been_compared():
    assert len(NAMES) == len(set(NAMES)) > 80 and set(NAMES) == set(EXPECTED["digests"])


@pytest.mark.parametrize("pre", NAMES)
def test_tokens(pre, texts, tmp_path):
    model = vocabulary(pre).write(tmp_path / "v.gguf", pre)
    (tmp_path / "texts").write_bytes(joined(pre, texts))
    ids = rows("tokenize", "-m", model, "-f", tmp_path / "texts")[0]["ids"]
    assert ids.count(len(vocabulary(pre).tokens)) == 999  # the separators: special tokens, which no rule sees
    assert digest(ids) == EXPECTED["digests"][pre]


def test_the_digests_tell_rules_apart():
    """Else the texts or the vocabulary would be too easy to show anything."""
    assert len(set(EXPECTED["digests"].values())) >= 30
    digits = {pre: EXPECTED["digests"][pre] for pre in ("llama-bpe", "qwen2", "dbrx")}
    assert len(set(digits.values())) == 3


def test_no_name_is_default(tmp_path):
    models = [vocabulary(pre).write(tmp_path / f"{i}.gguf", pre) for i, pre in enumerate(("", "default"))]
    assert rows("tokenize", "-m", models[0], "-p", "a,b 12345") == rows("tokenize", "-m", models[1], "-p", "a,b 12345")


def test_bytes_that_are_not_utf8_stay(tmp_path):
    """llama.cpp makes U+FFFD of each; here a text always comes back."""
    random_bytes = random.Random(8)
    text = b"".join(random_bytes.choice([b"abc", b" ", b"12", "\u00e9\u4f60".encode(), bytes([random_bytes.randrange(128, 256)])]) for _ in range(3000))
    (tmp_path / "text").write_bytes(text)
    for pre in NAMES:
        model = vocabulary(pre).write(tmp_path / "v.gguf", pre)
        ids = rows("tokenize", "-m", model, "-f", tmp_path / "text", "--no-special")[0]["ids"]
        tokens = vocabulary(pre).tokens + [b"", b""] + [bytes([b]) for b in range(256)]
        assert b"".join(tokens[i] for i in ids) == text, pre


def test_unknown_name(tmp_path):
    model = VOCABULARIES[0].write(tmp_path / "v.gguf", "of-tomorrow")
    refuses(1, "tokenize", "-m", model, "-p", "a", says=["of-tomorrow", "--pre", "llama-bpe", "superbpe"])
