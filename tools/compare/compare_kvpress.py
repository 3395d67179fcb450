#!/usr/bin/env python3
"""Compares the tokens that evicting policies keep of a prompt with those that the presses of NVIDIA's kvpress keep.

    python tools/compare/compare_kvpress.py models/smollm2.gguf

kvpress runs on transformers' model with the dequantised weights of the GGUF file (tests/compare_transformers.py), butler on the file
itself; both read the same tokens. The agreement is the share of kvpress's tokens that butler keeps too, over layers and KV heads;
both keep equally many. Needs kvpress, torch, transformers, gguf and numpy, and `make lib`; kvpress 0.5.5 takes transformers below 5.3,
older than tools/requirements.txt. Exits with 1 where an agreement is below 99 %."""
import argparse
import ctypes
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import DynamicCache

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent / "tests"))
from compare_transformers import Butler, load, texts  # noqa: E402
from kvpress import KeyDiffPress, KnormPress, PyramidKVPress, SnapKVPress, StreamingLLMPress, TOVAPress  # noqa: E402
from kvpress.presses.base_press import BasePress  # noqa: E402
from kvpress.utils import compute_n_kept  # noqa: E402

LENGTH, RATIOS, MIN_AGREEMENT = 1024, (0.25, 0.5, 0.75), 0.99
WINDOW = 64
POOLED = f"window={WINDOW},recent={WINDOW},kernel=5,pool=avg,group=mean"  # kvpress's window and pooling, and the mean over a group
POLICIES = {KnormPress: "knorm", KeyDiffPress: "keydiff", SnapKVPress: f"snapkv:{POOLED}", TOVAPress: "tova:recent=1", StreamingLLMPress: "streaming",
            PyramidKVPress: f"pyramidkv:{POOLED}"}


class SameBudgets(PyramidKVPress):
    """PyramidKVPress with butler's layer budgets: the two divide a budget by other rules (docs/kvpress.md)."""

    budgets: list = None

    def get_layer_budget(self, module, q_len):
        return self.budgets[module.layer_idx]


@dataclass
class Recorder(BasePress):
    """Runs presses on every layer and keeps which positions each leaves; the cache stays as it is."""

    presses: dict = field(default_factory=dict)
    kept: dict = field(default_factory=dict)

    def compress(self, module, hidden_states, keys, values, attentions, kwargs):
        positions = torch.arange(keys.shape[2], dtype=values.dtype)[None, None, :, None].expand_as(values)
        for name, press in self.presses.items():
            _, left = press.compress(module, hidden_states, keys, positions, attentions, kwargs)
            for head, row in enumerate(left[0, :, :, 0].long().numpy()):
                self.kept[name, module.layer_idx, head] = np.sort(row)
        return keys, values


def kept_by_presses(model, ids, presses):
    recorder = Recorder(presses=presses)
    with torch.no_grad(), recorder(model):
        model(torch.tensor([ids]), past_key_values=DynamicCache(), logits_to_keep=1)
    return recorder.kept


def kept_by_butler(butler, config, ids, policy):
    session, found = butler.session(len(ids), policy), (ctypes.c_int32 * len(ids))()
    butler.prefill(session, ids)
    group, kept = config.num_attention_heads // config.num_key_value_heads, {}
    for layer in range(config.num_hidden_layers):
        for head in range(config.num_key_value_heads):
            n = butler.lib.butler_last_selection(session, layer, head * group, found, len(found))
            kept[layer, head] = np.array(found[:n])
    butler.lib.butler_session_free(session)
    return kept


def agreement(theirs, name, ours):
    """Mean and least share of equal tokens over layers and KV heads."""
    shares = [len(np.intersect1d(kept, theirs[name, *key])) / len(theirs[name, *key]) for key, kept in ours.items()]
    return np.mean(shares), min(shares)


def compare(butler, model, ids):
    """Rows {(press, ratio): (mean agreement, least agreement)}."""
    ours, presses, layers = {}, {}, model.model.layers
    for press, policy in POLICIES.items():
        for ratio in RATIOS:
            name, budget = (press.__name__, ratio), compute_n_kept(len(ids), ratio)
            ours[name] = kept_by_butler(butler, model.config, ids, f"{policy}{',' if ':' in policy else ':'}budget={budget}")
            presses[name] = press(compression_ratio=ratio)
            if press is PyramidKVPress:
                theirs = [presses[name].get_layer_budget(layer.self_attn, len(ids)) for layer in layers]
                presses[name] = SameBudgets(compression_ratio=ratio)
                presses[name].budgets = [len(ours[name][layer, 0]) for layer in range(len(layers))]
                print(f"PyramidKV, {ratio:.0%} removed: kvpress keeps {theirs[0]} tokens in the first layer and {theirs[-1]} in the last, "
                      f"butler {presses[name].budgets[0]} and {presses[name].budgets[-1]}", flush=True)
    theirs = kept_by_presses(model, ids, presses)
    return {name: agreement(theirs, name, kept) for name, kept in ours.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", metavar="MODEL.gguf")
    args = parser.parse_args()
    model, _ = load(args.model)
    butler = Butler(args.model, model.config.vocab_size)
    found = [compare(butler, model, butler.tokenize(text)[:LENGTH]) for _, text in texts()]
    good = True
    print(f"{'press':20} {'removed':>8} {'same tokens':>12} {'least':>8}   (of {LENGTH} tokens, {len(found)} texts)")
    for name in found[0]:
        mean, least = np.mean([rows[name][0] for rows in found]), min(rows[name][1] for rows in found)
        print(f"{name[0]:20} {name[1]:8.0%} {mean:12.2%} {least:8.2%}")
        good = good and mean >= MIN_AGREEMENT
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
