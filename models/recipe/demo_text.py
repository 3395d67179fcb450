"""Writes the long prompt that `run` uses by itself: the beginning of a book with a pass key and a place planted in it, ending with the question for the key."""
import argparse
import os
import re
import tarfile

from tokenizers import Tokenizer


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--data", required=True, help="folder with books-valid.tar.xz")
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--book", default="The_Prisoner_of_Zenda")
    ap.add_argument("--tokens", type=int, default=6500)
    ap.add_argument("--out", required=True)
    args = ap.parse_args()
    with tarfile.open(os.path.join(args.data, "books-valid.tar.xz")) as tar:
        text = next(tar.extractfile(m).read().decode() for m in tar if args.book in m.name)
    tok = Tokenizer.from_file(args.tokenizer)
    paragraphs, n = [], 0
    for p in re.split(r"\n\n+", text.strip()):
        paragraphs.append(p)
        n += len(tok.encode(p).ids) + 1
        if n > args.tokens:
            break
    key = "The pass key is 48213. Remember it. 48213 is the pass key."
    place = "The lantern of Clara is kept in Hazelwharf."
    for share, fact in ((0.62, place), (0.27, key)):
        at = int(len(paragraphs) * share)
        paragraphs[at] += " " + fact
    out = "\n\n".join(paragraphs) + "\nWhat is the pass key? The pass key is"
    with open(args.out, "w") as f:
        f.write(out)
    ids = tok.encode(out).ids
    before = len(tok.encode(out[:out.index(key)]).ids)
    print(f"{args.out}: {len(out.encode())} bytes, {len(ids)} tokens; the key stands at token {before}, {len(ids) - before} back")


if __name__ == "__main__":
    main()
