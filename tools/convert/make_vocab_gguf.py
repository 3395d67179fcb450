#!/usr/bin/env python3
"""Writes a GGUF file that holds a byte-level BPE vocabulary and nothing else, from the files its model was published with:

    make_vocab_gguf.py llama-bpe OUT encoder.json vocab.bpe   tokens and merges of Llama 3, specials added
    make_vocab_gguf.py qwen2     OUT qwen.tiktoken            tokens and ranks of Qwen; merges recovered from the ranks
    make_vocab_gguf.py gpt-2     OUT vocab.json merges.txt    tokens and merges of GPT-2
"""
import argparse
import base64
import json
import struct
import sys

NORMAL, CONTROL = 1, 3


def spelling():
    """The visible character that stands for each byte in a token's spelling."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in set(shown)]
    table = {b: chr(b) for b in shown}
    table.update({b: chr(0x100 + i) for i, b in enumerate(hidden)})
    return table


def last_two(token, ranks):
    """The two parts whose merge makes this token: what is left of it when only tokens of lower rank are merged."""
    parts = [token[i:i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 2:
        best, where = limit, -1
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1], limit)
            if rank < best:
                best, where = rank, i
        if where < 0:
            return None
        parts[where:where + 2] = [parts[where] + parts[where + 1]]
    return parts


def from_ranks(path):
    ranks = {}
    with open(path, "rb") as file:
        for line in file:
            token, rank = line.split()
            ranks[base64.b64decode(token)] = int(rank)
    if sorted(ranks.values()) != list(range(len(ranks))):
        sys.exit(f"{path}: the ranks are not 0 to {len(ranks) - 1}")
    table = spelling()
    spelt = lambda token: "".join(table[b] for b in token)
    merges = []
    for token in sorted(ranks, key=ranks.get):
        if len(token) > 1:
            parts = last_two(token, ranks)
            if parts is None:
                print(f"{path}: {token!r} comes of no merge", file=sys.stderr)
            else:
                merges.append(" ".join(map(spelt, parts)))
    return [spelt(token) for token in sorted(ranks, key=ranks.get)], merges


def from_merges(vocabulary, merges):
    with open(vocabulary, encoding="utf-8") as file:
        ids = json.load(file)
    with open(merges, encoding="utf-8", newline="\n") as file:
        lines = file.read().split("\n")
    lines = [line for line in lines if line and not line.startswith("#version")]
    tokens = sorted(ids, key=ids.get)
    if [ids[token] for token in tokens] != list(range(len(ids))):
        sys.exit(f"{vocabulary}: the ids are not 0 to {len(ids) - 1}")
    return tokens, lines


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def write(path, values):
    """values: (key, number of the GGUF type, bytes)."""
    with open(path, "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)))
        for key, kind, data in values:
            file.write(string(key) + struct.pack("<I", kind) + data)


def strings(items):
    return struct.pack("<IQ", 8, len(items)) + b"".join(map(string, items))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pre", choices=["llama-bpe", "qwen2", "gpt-2"])
    parser.add_argument("out")
    parser.add_argument("files", nargs="+")
    args = parser.parse_args()
    if len(args.files) != (1 if args.pre == "qwen2" else 2):
        parser.error(f"{args.pre} takes other files")
    tokens, merges = from_ranks(*args.files) if args.pre == "qwen2" else from_merges(*args.files)
    special = {
        "llama-bpe": ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                      "<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|start_header_id|>", "<|end_header_id|>",
                      "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"] + [f"<|reserved_special_token_{i}|>" for i in range(3, 248)],
        "qwen2": ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        "gpt-2": ["<|endoftext|>"],
    }[args.pre]
    special = [token for token in special if token not in set(tokens)]
    bos, eos = {"llama-bpe": (0, 9), "qwen2": (0, 2), "gpt-2": (0, 0)}[args.pre]
    types = [NORMAL] * len(tokens) + [CONTROL] * len(special)
    u32 = lambda value: struct.pack("<I", value)
    write(args.out, [
        ("general.architecture", 8, string({"llama-bpe": "llama", "qwen2": "qwen2", "gpt-2": "gpt2"}[args.pre])),
        ("general.name", 8, string(args.pre)),
        ("tokenizer.ggml.model", 8, string("gpt2")),
        ("tokenizer.ggml.pre", 8, string(args.pre)),
        ("tokenizer.ggml.tokens", 9, strings(tokens + special)),
        ("tokenizer.ggml.token_type", 9, struct.pack("<IQ", 5, len(types)) + struct.pack(f"<{len(types)}i", *types)),
        ("tokenizer.ggml.merges", 9, strings(merges)),
        ("tokenizer.ggml.bos_token_id", 4, u32(len(tokens) + bos)),
        ("tokenizer.ggml.eos_token_id", 4, u32(len(tokens) + eos)),
    ])


if __name__ == "__main__":
    main()
