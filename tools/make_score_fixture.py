#!/usr/bin/env python3
"""Writes tests/data/scores.json: answers and what the published scorers of LongBench and of summaries give them.

    python tools/make_score_fixture.py        (PyPI: rouge 1.0.1, rouge-score 0.1.2, fuzzywuzzy 0.18.0 without python-Levenshtein)

The scorers are those packages and the few lines around them that the benchmark's definitions ask for.
"""
import collections
import importlib.util
import json
import random
import re
import string
import sys
from pathlib import Path

from fuzzywuzzy import fuzz
from rouge import Rouge
from rouge_score.rouge_scorer import RougeScorer

assert importlib.util.find_spec("Levenshtein") is None, "fuzzywuzzy would use python-Levenshtein, which gives other ratios"
ROUGE = Rouge()
ROUGES = RougeScorer(["rouge1", "rouge2", "rougeL"])


def f1(answer, right):
    def words(text):
        text = "".join(c for c in text.lower() if c not in string.punctuation)
        return collections.Counter(re.sub(r"\b(a|an|the)\b", " ", text).split())
    a, b = words(answer), words(right)
    same = sum((a & b).values())
    return 2 * same / (sum(a.values()) + sum(b.values())) if same else 0.0


def rouge_l(answer, right):
    try:
        return ROUGE.get_scores([answer], [right], avg=True)["rouge-l"]["f"]
    except ValueError:
        return 0.0


def rouges(answer, right):
    return [score.fmeasure for score in ROUGES.score(right, answer).values()]


def number(answer, right, before):
    wanted = re.findall(re.escape(before) + r"(\d+)", right)[0] if before else right
    numbers = re.findall(r"\d+", answer)
    return numbers.count(wanted) / len(numbers) if numbers else 0.0


def classes(answer, right, names):
    found = [name for name in names if name in answer]
    for name in found:  # the benchmark's loop changes the list that it walks, and its scores are what that gives
        if name in right and name != right:
            found.remove(name)
    return 1 / len(found) if right in found else 0.0


def edit(answer, right):
    lines = [line for line in answer.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//"))]
    return fuzz.ratio(lines[0] if lines else "", right) / 100


def text(rng, words, n, stops):
    out = []
    for _ in range(n):
        out.append(rng.choice(words) + (rng.choice(stops) if rng.random() < 0.25 else ""))
    return " ".join(out)


def cases():
    rng = random.Random(7)
    plain = "the a an cat sat on mat An THE dog's river, of Éire naïve über 42 don't well-known café's I".split()
    stops = [".", ". ", "..", " . ", ",", "!", "\n", "\t. ", "\u00a0"]
    pairs = [("", ""), ("", "x"), ("x", ""), ("the", "a"), ("The Cat!", "cat"), ("a.b", "ab"), ("an\u2014apple", "apple an"),
             ("...", "a"), (" . . ", "  "), (".", "."), ("A  cat .sat.", "cat. A sat"), ("one two three", "three two one"),
             ("ÀÉÎ straße", "àéî STRASSE"), ("the\u2019s the", "s"), ("theatre an aa", "theatre aa"), ("x\u3000y", "x y")]
    pairs += [(text(rng, plain, rng.randrange(1, 30), stops), text(rng, plain, rng.randrange(1, 30), stops)) for _ in range(60)]
    for answer, right in pairs:
        yield dict(kind="f1", answer=answer, right=right, score=f1(answer, right))
        yield dict(kind="rouge_l", answer=answer, right=right, score=rouge_l(answer, right))
        yield dict(kind="rouge", answer=answer, right=right, score=rouges(answer, right))
    numbers = [("7", "7", ""), ("The answer is 7 or 8.", "7", ""), ("none", "7", ""), ("17 7 77 7", "7", ""), ("", "7", ""),
               ("Paragraph 12", "Paragraph 12", "Paragraph "), ("12, not 3", "Paragraph 3", "Paragraph "),
               ("Paragraph 3", "Paragraph x Paragraph 31", "Paragraph "), ("段落5", "段落5", "段落"), ("no", "段落5", "段落")]
    for answer, right, before in numbers:
        yield dict(kind="number", answer=answer, right=right, before=before, score=number(answer, right, before))
    names = ["Food", "Other number", "number", "Other location", "Country", "City", "Other", "number", "Date"]
    for right in ["Other number", "Other location", "Country", "number", "Other"]:
        for answer in ["Other number", "number", "Other location and City", "Country Food Date", "", "Othernumber", " ".join(names)]:
            yield dict(kind="class", answer=answer, right=right, classes=names, score=classes(answer, right, names))
    code = ["return x", "    return x + 1", "# note\n    y = 2", "```python\nfoo(a, b)\n```", "\n\nfor i in range(10):\n  pass", "", "\n",
            "// c\n", "x" * 250, "ab" * 120 + " end", "if (a && b) { go(); } // why\nnext();", "été = 1", "   \nz"]
    code += ["".join(rng.choice("abc( )=_") for _ in range(rng.randrange(1, 320))) for _ in range(20)]
    for answer in code:
        for right in rng.sample(code, 3) + ["    return x", answer[:-1] + "y"]:
            yield dict(kind="edit", answer=answer, right=right, score=edit(answer, right))


def main():
    path = Path(__file__).resolve().parent.parent / "tests" / "data" / "scores.json"
    rows = list(cases())
    path.write_text("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n", encoding="utf-8")
    print(f"{path}: {len(rows)} answers, {path.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
