#!/usr/bin/env python3
"""Writes the retrieval tasks that the default model was trained on as plain text, one document after another, for a predictor to learn
from: pass keys, facts, co-references and key-value pairs lie far from where they are asked for, which book text hardly shows.

    python3 models/recipe/task_text.py --prep PREP --out tasks.txt [--bytes N] [--seed S]

PREP is what models/recipe/prepare.py leaves (tokenizer.json, books.npy); needs models/recipe/requirements.txt."""
import argparse
import sys
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent / "default_model"))
from tasks import Tasks, Text, common_words  # noqa: E402


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--prep", type=Path, required=True)
    ap.add_argument("--out", type=Path, required=True)
    ap.add_argument("--bytes", type=int, default=6_000_000)
    ap.add_argument("--longest", type=int, default=900, help="tokens of a document")
    ap.add_argument("--seed", type=int, default=20)
    args = ap.parse_args()
    tok = Tokenizer.from_file(str(args.prep / "tokenizer.json"))
    books = np.load(args.prep / "books.npy", mmap_mode="r")
    tasks = Tasks(tok, Text(tok, books), common_words(tok, books), args.seed)
    rng = np.random.default_rng(args.seed + 1)
    written = 0
    with open(args.out, "w") as out:
        while written < args.bytes:
            _, (ids, _) = tasks.document(int(rng.integers(120, args.longest)))
            written += out.write(tok.decode(ids).strip() + "\n\n")
    print(f"{args.out}: {written} characters")


if __name__ == "__main__":
    main()
