#!/usr/bin/env python3
"""--lossless measured: that texts are dense decoding's, and what they cost beside it.

    bench/lossless.py texts MODEL.gguf TEXT [--prompts 20] [--tokens 1000] [--threads N]
    bench/lossless.py speed MODEL.gguf TEXT [--shapes FOLDER] [--tokens 96] [--threads N]

`texts` continues prompts of 2,000 to 7,000 tokens greedily, dense and lossless, with F16 and Q8_0 caches and four policies in turn,
and ends with an error where a token differs. `speed` prints a Markdown table: the model behind TEXT, whose drafts are real; then models of random weights in
FOLDER (tools/fixtures/random_model.py), whose drafts mean nothing: of those only the times of a dense step, a draft and a check are measured,
and the speed-up follows from them and from the share of right drafts that the first model had at its greatest depth.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ["verified", "quest:budget=512", "fier:budget=512", "tinyserve:budget=512"]
DRAFTS = [2, 4, 7]
CHARACTERS = 5  # of a token of English, about, and no more than twice as many


def ratio(value):
    """Without drafts there is none."""
    return "–" if value is None else f"{value:.2f}"


def butler(*args):
    command = [ROOT / "butler", *args, "--json"]
    result = subprocess.run([*map(str, command)], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")
    return [json.loads(line) for line in result.stdout.splitlines()]


def compare_texts(args):
    text = Path(args.text).read_text(errors="replace")
    for i in range(args.prompts):
        n_tokens = 2000 + 5000 * i // max(args.prompts - 1, 1)
        n = int(n_tokens * CHARACTERS)
        if n > len(text):
            sys.exit(f"{args.text} is too short for a prompt of {n_tokens} tokens")
        start = (len(text) - n) * i // args.prompts
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(text[start:start + 2 * n])
            file.flush()
            row = butler("bench", "-m", args.model, "-f", file.name, "-d", n_tokens, "-n", args.tokens, "-t", args.threads, "--warmup", 0,
                         f"--lossless={DRAFTS[i % 3]}", "--kv", POLICIES[i % 4], "--kv-type", ["f16", "q8_0"][i // 4 % 2])[0]
        print(f"{i + 1}/{args.prompts}: {row['policy']}, {n_tokens} tokens, then {row['n']}: equal, {row['n_accepted']} of {row['n_drafted']} "
              "drafts right", flush=True)
    print(f"{args.prompts} of {args.prompts} texts are equal")  # bench fails where one is not
    return 0


def tokens_of_check(a, n_drafts):
    return sum(a ** i for i in range(n_drafts + 1))


def share_of_right(row, n_drafts):
    """a, with which tokens_of_check is what was measured."""
    wanted, low, high = 1 + row["n_accepted"] / row["n_checks"], 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if tokens_of_check(middle, n_drafts) < wanted else (low, middle)
    return low


def print_row(cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def measure_text(args):
    """Rows of the model behind a text; returns the share of right drafts at the greatest depth."""
    common = ["bench", "-m", args.model, "-f", args.text, "-n", args.tokens, "-t", args.threads, "--kv", "verified"]
    for depth in args.depths:
        chosen = butler(*common, "--lossless", "-d", depth)[0]
        fixed = butler(*common, f"--lossless={DRAFTS[1]}", "-d", depth)[0]
        share = share_of_right(fixed, DRAFTS[1])
        print_row([Path(args.model).stem, str(depth), f"{chosen['dense_ms']:.1f}", f"{chosen['lossless_ms']:.1f}", f"{chosen['sparse_ms']:.1f}",
                   f"{100 * share:.0f} %", f"{chosen['n_drafted'] / max(chosen['n_checks'], 1):.1f}", ratio(chosen['speed_up']),
                   ratio(chosen['ceiling']), ratio(fixed['speed_up']), ratio(fixed['ceiling'])])
    return share


def measure_shape(args, path, share):
    for depth in args.shape_depths:
        rows = [(n, butler("bench", "-m", path, "-n", args.tokens // 2, "-t", args.threads, "-d", depth, "--kv", "verified", f"--lossless={n}")[0])
                for n in DRAFTS]
        best = (0, 0)
        for n, row in rows:
            tokens, draft, check = tokens_of_check(share, n), 1e3 * row["draft_s"] / row["n_drafted"], 1e3 * row["check_s"] / row["n_checks"]
            speed_up = tokens * row["dense_ms"] / (n * draft + check)
            if speed_up > best[0]:
                best = (speed_up, tokens * row["dense_ms"] / (n * draft + row["dense_ms"]), n, row["dense_ms"], (n * draft + check) / tokens, draft)
        speed_up, ceiling, n, dense, lossless, draft = best
        print_row([path.stem + "*", str(depth), f"{dense:.1f}", f"{lossless:.1f}", f"{draft:.1f}", f"{100 * share:.0f} %", str(n), "", "",
                   f"{speed_up:.2f}", f"{ceiling:.2f}"])


def measure_speed(args):
    print_row(["model", "cache", "dense ms", "lossless ms", "sparse ms", "right", "drafts", "speed-up", "ceiling", "best or 4 drafts", "ceiling"])
    print_row(["---"] + ["---:"] * 10)
    share = measure_text(args)
    for path in sorted(Path(args.shapes).glob("*.gguf")) if args.shapes else []:
        if "tokenbutler" not in path.name:
            measure_shape(args, path, share)
    print("\n* random weights: computed from measured times of a dense step, a draft and a check, and the share of right drafts of the model above.")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["texts", "speed"])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--shapes", metavar="FOLDER")
    parser.add_argument("--depths", type=lambda s: [int(d) for d in s.split(",")], default=[2000, 4000, 7400])
    parser.add_argument("--shape-depths", type=lambda s: [int(d) for d in s.split(",")], default=[16384, 32768])
    parser.add_argument("--threads", default=0)
    args = parser.parse_args()
    args.tokens = args.tokens or (1000 if args.what == "texts" else 96)
    return compare_texts(args) if args.what == "texts" else measure_speed(args)


if __name__ == "__main__":
    sys.exit(main())
