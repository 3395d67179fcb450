#!/usr/bin/python3
"""Perplexity of a text read as prompts, with and without a flag: what rounding in a prompt's products costs.

    tools/compare/prompt_perplexity.py models/butler-default.gguf TEXT --windows 8 --flag=--isa=avx2

The text is cut into windows of --length tokens, each a prompt of its own behind what the model begins texts with
(`butler logits --all`). Prints a line: tokens that counted, both perplexities, their ratio with its 95 % interval over
tokens, and the root mean square by which a token's -ln p differs. `butler eval ppl` decodes token by
token, which this does not. Needs numpy alone.
"""

import argparse
import json
import os
import subprocess

import numpy as np

BUTLER = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "butler")


def tokens_of(model, *text):
    done = subprocess.run([BUTLER, "tokenize", "-m", model, *text, "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["ids"]


def losses(model, ids, flags):
    """-ln p of each token of ids but the first."""
    command = [BUTLER, "logits", "-m", model, "--ids", ",".join(map(str, ids)), "--all", "--json", *flags]
    values = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        for line, following in zip(process.stdout, [*ids[1:], None]):
            if following is not None:
                logits = np.array(json.loads(line)["logits"], dtype=np.float64)
                values.append(np.logaddexp.reduce(logits) - logits[following])
    if process.returncode:
        raise SystemExit(process.returncode)
    return np.array(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--length", type=int, default=2048, help="tokens of a window")
    parser.add_argument("--windows", type=int, default=8)
    parser.add_argument("--flag", action="append", default=[], help="of butler logits; repeat it for several")
    args = parser.parse_args()
    begin = tokens_of(args.model, "-p", "")
    ids = tokens_of(args.model, "-f", args.text, "--no-special")
    windows = [begin + ids[k * args.length:(k + 1) * args.length] for k in range(min(args.windows, len(ids) // args.length))]
    if not windows:
        parser.error(f"{args.text} has {len(ids)} tokens, fewer than a window of {args.length}")
    without = np.concatenate([losses(args.model, window, []) for window in windows])
    with_flags = np.concatenate([losses(args.model, window, args.flag) for window in windows])
    more = with_flags - without
    print(f"tokens {len(more)} without {np.exp(without.mean()):.4f} with {np.exp(with_flags.mean()):.4f} "
          f"ratio {np.exp(more.mean()):.5f} +- {1.96 * more.std() / np.sqrt(len(more)):.5f} rms {np.sqrt((more ** 2).mean()):.4f}")


if __name__ == "__main__":
    main()
