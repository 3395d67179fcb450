#!/usr/bin/env python3
"""Scores the same prompts under evicting policies of butler and under presses of NVIDIA's kvpress, cut to the same number of tokens.

    butler eval ruler -m MODEL --length 2048 --set subset=niah_single_2,chat=off,write=ITEMS.jsonl --limit 20
    python tools/score_kvpress.py MODEL ITEMS.jsonl

Both read context, question and answer prefix as one prompt, cut the cache once at its end, and then take the answer's tokens one by one.
An answer token is right if it is the likeliest after the true tokens before it. Prints, for each policy, the share of right tokens and of
right answers on both sides, each with its number of items, and how many tokens are judged alike. Needs what tools/compare_kvpress.py needs."""
import argparse
import ctypes
import json

import numpy as np
import torch
from compare_kvpress import POOLED, Butler, load
from kvpress import KnormPress, SnapKVPress
from kvpress.utils import compute_n_kept
from transformers import DynamicCache

CASES = {"full": None}  # name: policy, press, share removed. kvpress cuts only prompts, so knorm must not cut while the answer is read
for removed in (0.5, 0.9):
    CASES[f"SnapKV, {removed:.0%} removed"] = (f"snapkv:{POOLED}", SnapKVPress, removed)
CASES["Knorm, 50% removed"] = ("knorm:rolling=0", KnormPress, 0.5)


def ours(butler, prompt, answer, policy):
    session, right = butler.session(len(prompt) + len(answer), policy), []
    butler.prefill(session, prompt)
    for token in answer:
        right.append(int(np.ctypeslib.as_array(butler.lib.butler_logits(session), (butler.n_vocab,)).argmax()) == token)
        butler.check(butler.lib.butler_step(session, token, ctypes.byref(butler.error)))
    butler.lib.butler_session_free(session)
    return right


def theirs(model, prompt, answer, press):
    cache, right = DynamicCache(), []
    with torch.no_grad():
        if press:
            with press(model):
                out = model(torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1)
        else:
            out = model(torch.tensor([prompt]), past_key_values=cache, logits_to_keep=1)
        for i, token in enumerate(answer):  # positions are those of the text, as in butler
            right.append(int(out.logits[0, -1].argmax()) == token)
            out = model(torch.tensor([[token]]), past_key_values=cache, position_ids=torch.tensor([[len(prompt) + i]]))
    return right


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("items", metavar="ITEMS.jsonl", type=argparse.FileType(encoding="utf-8"))
    parser.add_argument("--threads", type=int, default=1, help="of torch (default: 1)")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, _ = load(args.model)
    butler, found = Butler(args.model, model.config.vocab_size), {name: [] for name in CASES}
    for item in map(json.loads, args.items):
        text = item["context"] + item["question"] + item["answer_prefix"]
        prompt = butler.tokenize(text)
        answer = butler.tokenize(text + " " + item["answer"][0])[len(prompt):]
        for name, case in CASES.items():
            policy = f"{case[0]}{',' if ':' in case[0] else ':'}budget={compute_n_kept(len(prompt), case[2])}" if case else "full"
            found[name].append((ours(butler, prompt, answer, policy), theirs(model, prompt, answer, case[1](compression_ratio=case[2]) if case else None)))
        print(f"{len(found['full'])} items", flush=True)
        if len(found["full"]) % 2 == 0:
            report(found)


def report(found):
    print(f"{'press':24} {'tokens: butler, kvpress':>26} {'answers: butler, kvpress':>26} {'alike':>7}")
    for name, pairs in found.items():
        a, b = (np.concatenate([pair[side] for pair in pairs]) for side in (0, 1))
        whole = [sum(all(pair[side]) for pair in pairs) for side in (0, 1)]
        print(f"{name:24} {np.mean(a):13.1%}{np.mean(b):13.1%} {whole[0]:13}{whole[1]:13} {np.mean(a == b):7.1%}   n = {len(pairs)}", flush=True)


if __name__ == "__main__":
    main()
