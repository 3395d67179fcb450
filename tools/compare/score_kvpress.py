#!/usr/bin/env python3
"""Scores the same prompts under evicting policies of butler and under presses of NVIDIA's kvpress, cut to the same number of tokens.

    butler eval ruler -m MODEL --length 4096 --set chat=off,write=ITEMS.jsonl --limit 100
    python tools/compare/score_kvpress.py MODEL ITEMS.jsonl -o SCORES.jsonl

Both read context, question and answer prefix as one prompt, cut the cache once at its end, and then take the answer's tokens one by one.
An answer token is right if it is the likeliest after the true tokens before it. A side's tokens of an item are a line of SCORES.jsonl as
soon as it is done with the item; the same command goes on where it was stopped, and --side does one side alone. Of the items that both
sides have, it prints for each task, policy and press the share of right tokens, butler's / kvpress's, with its 95 % interval over items,
and how many tokens are judged alike, all in %. kvpress runs on --device, butler on --jobs threads, an item each; both read a prompt once
for all presses and policies. Needs what tools/compare/compare_kvpress.py needs."""
import argparse
import concurrent.futures
import ctypes
import json
import os
import queue
import sys
from dataclasses import dataclass, field

import numpy as np
import torch
from compare_kvpress import POOLED, Butler, load
from kvpress import KnormPress, SnapKVPress
from kvpress.presses.base_press import BasePress
from kvpress.utils import compute_n_kept
from transformers import DynamicCache

SIDES = ("butler", "kvpress")
PREFIX_BYTES = 1 << 29  # the pages of a prompt or two, for the other policies that read it
CASES = {"full": None}  # name: policy, press, share removed. kvpress cuts only prompts, so knorm must not cut while the answer is read
for removed in (0.5, 0.9):
    CASES[f"SnapKV, {100 * removed:.0f} % removed"] = (f"snapkv:{POOLED}", SnapKVPress, removed)
CASES["Knorm, 50 % removed"] = ("knorm:rolling=0", KnormPress, 0.5)


def ours(butlers, prompt, answer):
    """Which answer tokens are right under every case's policy, by a butler that no other thread has."""
    butler, found, ids = butlers.get(), {}, (ctypes.c_int32 * len(prompt))(*prompt)
    for name, case in CASES.items():
        policy = f"{case[0]}{',' if ':' in case[0] else ':'}budget={compute_n_kept(len(prompt), case[2])}" if case else "full"
        session, found[name] = butler.session(len(prompt) + len(answer), policy), []
        known = butler.check(butler.lib.butler_session_adopt_prefix(session, ids, len(prompt), ctypes.byref(butler.error)))
        butler.prefill(session, prompt[known:])
        for token in answer:
            found[name].append(int(np.ctypeslib.as_array(butler.lib.butler_logits(session), (butler.n_vocab,)).argmax()) == token)
            butler.check(butler.lib.butler_step(session, token, ctypes.byref(butler.error)))
        butler.lib.butler_session_free(session)
    butlers.put(butler)
    return found


@dataclass
class EveryCase(BasePress):
    """Cuts each layer's keys and values by the press of every case, into a cache for each; what the prompt attends to stays whole, as with one
    press, which cuts a layer after its attention."""

    presses: dict = field(default_factory=dict)
    caches: dict = field(default_factory=dict)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        for name, press in self.presses.items():
            left = press.compress(module, hidden_states, keys, values, attentions, kwargs) if press else (keys, values)
            self.caches[name].update(*left, module.layer_idx)
        return keys, values


def theirs(model, prompt, answer):
    """Which answer tokens are right after every case's press. The answer is read in one pass: a press cuts only prompts."""
    found, device = {}, model.device
    presses = {name: case and case[1](compression_ratio=case[2]) for name, case in CASES.items()}
    every = EveryCase(presses=presses, caches={name: DynamicCache() for name in CASES})
    with torch.no_grad(), every(model):
        first = model(torch.tensor([prompt], device=device), past_key_values=DynamicCache(), logits_to_keep=1).logits
    positions = torch.arange(len(prompt), len(prompt) + len(answer), device=device)[None]  # those of the text, as in butler
    for name, cache in every.caches.items():
        with torch.no_grad():
            rest = model(torch.tensor([answer], device=device), past_key_values=cache, position_ids=positions).logits
        likeliest = torch.cat([first[0, -1:], rest[0, :-1]]).argmax(-1).tolist()
        found[name] = [a == b for a, b in zip(likeliest, answer)]
    return found


def interval(values):
    """Bounds of the mean: 95 % of 10,000 means of items drawn with replacement."""
    means = np.random.default_rng(0).choice(values, (10000, len(values))).mean(axis=1)
    return np.quantile(means, (0.025, 0.975))


def cell(pairs):
    """The two shares of right tokens in %, each with its interval over items, and how many tokens are judged alike."""
    shares = [100 * np.array([np.mean(pair[side]) for pair in pairs]) for side in (0, 1)]
    alike = 100 * np.mean(np.concatenate([np.array(a) == np.array(b) for a, b in pairs]))
    both = [f"{share.mean():.1f} [{low:.1f}, {high:.1f}]" for share in shares for low, high in [interval(share)]]
    return f"{' / '.join(both)} · {alike:.1f}"


def report(items, done):
    """A table in Markdown of the items that both sides have: one row a task, one column a case."""
    both = [i for i in range(len(items)) if all((i, side) in done for side in SIDES)]
    print("| task | n | " + " | ".join(CASES) + " |\n| --- | --- |" + " --- |" * len(CASES))
    for task in dict.fromkeys(items[i]["task"] for i in both):
        chosen = [i for i in both if items[i]["task"] == task]
        cells = [cell([[done[i, side][name] for side in SIDES] for i in chosen]) for name in CASES]
        print(f"| {task} | {len(chosen)} | {' | '.join(cells)} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    parser.add_argument("items", metavar="ITEMS.jsonl", type=argparse.FileType(encoding="utf-8"))
    parser.add_argument("-o", "--output", metavar="SCORES.jsonl", required=True)
    parser.add_argument("--side", choices=SIDES, help="only this one (default: both)")
    parser.add_argument("--device", default="cpu", help="of torch (default: cpu)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="threads of butler (default: one per core)")
    args = parser.parse_args()
    model = load(args.model)[0].to(args.device)
    model.set_attn_implementation("sdpa")  # a prompt's weights, of all heads, need not be held
    butlers = queue.SimpleQueue()
    tokenizer, items = Butler(args.model, model.config.vocab_size, n_threads=1), list(map(json.loads, args.items))
    for _ in range(args.jobs):
        butlers.put(Butler(args.model, model.config.vocab_size, n_threads=1, prefix_bytes=PREFIX_BYTES))
    with open(args.output, "a+", encoding="utf-8") as output, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        output.seek(0)
        done = {(row["item"], row["side"]): row["right"] for row in map(json.loads, output)}

        def keep(i, side, right):
            done[i, side] = right
            output.write(json.dumps({"item": i, "task": items[i]["task"], "side": side, "right": right}) + "\n")
            output.flush()
            print(f"item {i}: {side}, {sum(s == side for _, s in done)} of {len(items)} done", file=sys.stderr, flush=True)

        waiting, pressed = {}, []
        for i, item in enumerate(items):
            text = item["context"] + item["question"] + item["answer_prefix"]
            prompt = tokenizer.tokenize(text)
            answer = tokenizer.tokenize(text + " " + ", ".join(item["answer"]))[len(prompt):]
            if args.side != "kvpress" and (i, "butler") not in done:
                waiting[pool.submit(ours, butlers, prompt, answer)] = i
            if args.side != "butler" and (i, "kvpress") not in done:
                pressed.append((i, prompt, answer))
        for i, prompt, answer in pressed:  # while butler's threads work
            keep(i, "kvpress", theirs(model, prompt, answer))
            for future in [future for future in waiting if future.done()]:
                keep(waiting.pop(future), "butler", future.result())
        for future in concurrent.futures.as_completed(waiting):
            keep(waiting[future], "butler", future.result())
    report(items, done)


if __name__ == "__main__":
    main()
