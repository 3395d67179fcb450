"""First step: books in, a tokenizer and token arrays out.

The tokenizer is byte-level BPE whose pre-tokenizer is GPT-2's, so that a GGUF reader needs nothing but `pre = gpt-2`. While the merges are
learned every digit stands alone: no merge with a digit in it exists, a number is always spelled digit by digit, and a key of five digits
is five tokens whichever digits they are.
"""
import argparse
import json
import os
import random
import re
import tarfile
import time

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS = "<|bos|>", "<|eos|>"


def read_texts(path):
    """(name, text) of every .txt in a tar archive, sorted by name; read front to back, for seeking in a compressed archive means unpacking it anew."""
    texts = []
    with tarfile.open(path) as tar:
        for member in tar:
            if member.name.endswith(".txt"):
                texts.append((member.name, tar.extractfile(member).read().decode("utf-8", "replace")))
    return sorted(texts)


def sample_pieces(texts, share, seed):
    """Paragraphs drawn at random: enough for the merges, a fraction of the time."""
    rng = random.Random(seed)
    for _, text in texts:
        for piece in re.split(r"(?<=\n\n)", text):
            if rng.random() < share:
                yield piece


def train_tokenizer(texts, n_vocab, share, seed):
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=n_vocab, special_tokens=[BOS, EOS], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tok.train_from_iterator(sample_pieces(texts, share, seed), trainer)
    # The merges hold no digit, so the plain GPT-2 split now gives the same ids; readers of the GGUF use that one.
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tok


def encode(tok, texts, out):
    """One uint16 array: BOS, text, EOS, BOS, text, EOS …  Returns tokens and bytes."""
    bos, eos = tok.token_to_id(BOS), tok.token_to_id(EOS)
    parts, n_bytes = [], 0
    for _, text in texts:
        n_bytes += len(text.encode())
        pieces = re.split(r"(?<=\n\n)", text)
        # Short paragraphs are joined: one call of the encoder for some 20 kB is several times faster than for 200 bytes.
        blocks, block = [], ""
        for piece in pieces:
            block += piece
            if len(block) > 20000:
                blocks.append(block)
                block = ""
        if block:
            blocks.append(block)
        ids = [np.array([bos], np.uint16)] + [np.array(e.ids, np.uint16) for e in tok.encode_batch(blocks, add_special_tokens=False)]
        parts += ids + [np.array([eos], np.uint16)]
    ids = np.concatenate(parts)
    np.save(out, ids)
    return len(ids), n_bytes


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--data", required=True, help="folder with books-train-1.tar.xz, -2, modern-text.tar.xz, books-valid.tar.xz")
    ap.add_argument("--out", required=True, help="work folder for tokenizer.json and *.npy")
    ap.add_argument("--vocab", type=int, default=8192)
    ap.add_argument("--share", type=float, default=0.12, help="share of the paragraphs the merges are learned from")
    ap.add_argument("--seed", type=int, default=1)
    args = ap.parse_args()
    os.makedirs(args.out, exist_ok=True)
    start = time.time()
    books = [t for n in ("books-train-1", "books-train-2") for t in read_texts(os.path.join(args.data, n + ".tar.xz"))]
    modern = [t for t in read_texts(os.path.join(args.data, "modern-text.tar.xz")) if "word" not in os.path.basename(t[0])]
    valid = read_texts(os.path.join(args.data, "books-valid.tar.xz"))
    tok = train_tokenizer(books + modern, args.vocab, args.share, args.seed)
    tok.save(os.path.join(args.out, "tokenizer.json"))
    print(f"tokenizer: {tok.get_vocab_size()} entries, {time.time() - start:.0f} s", flush=True)
    sizes = {}
    for name, texts in (("valid", valid), ("modern", modern), ("books", books)):
        n, b = encode(tok, texts, os.path.join(args.out, name + ".npy"))
        sizes[name] = {"tokens": n, "bytes": b, "files": [os.path.basename(t[0]) for t in texts] if len(texts) < 20 else len(texts)}
        print(f"{name}: {n} tokens, {b} bytes, {b / n:.2f} bytes a token, {time.time() - start:.0f} s", flush=True)
    with open(os.path.join(args.out, "sizes.json"), "w") as f:
        json.dump(sizes, f, indent=1)


if __name__ == "__main__":
    main()
