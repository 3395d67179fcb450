#!/usr/bin/env python3
"""Decode speed against depth: `butler bench` for several policies and depths, as a Markdown table of medians.

    bench/depths.py MODEL.gguf [--depths 2048,8192,32768] [--rounds 5] [--tokens 16] [--policy POLICY]... [--svg FILE]

In each round all policies run one after another, so that a slow minute of a shared machine affects all of them. Trust the
speed-up over `full` at the same depth: it is computed within a round, and the table has its range.
"""
import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
POLICIES = ["full", "quest:budget=1024,dense=0", "tinyserve:budget=1024", "pagestats:budget=1024,dense=0", "fier:budget=1024,dense=0",
            "h2o:budget=1024", "streaming:budget=1024"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", default="0,2048,4096,8192,16384,32768")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--kv-type", default="f16")
    parser.add_argument("--policy", action="append", help=f"default: {', '.join(POLICIES)}")
    parser.add_argument("--svg", help="also draw the speed-up over full against depth into this file")
    args = parser.parse_args()
    args.policies = args.policy or POLICIES
    if "full" not in args.policies:
        args.policies.insert(0, "full")
    args.depths = [int(d) for d in args.depths.split(",")]
    return args


def measure(args):
    """{(policy, depth): [row of each round]}"""
    rows = {}
    for round_ in range(args.rounds):
        for depth in args.depths:
            print(f"round {round_ + 1} of {args.rounds}, depth {depth}", file=sys.stderr, flush=True)
            command = [str(ROOT / "butler"), "bench", "-m", args.model, "-d", str(depth), "-n", str(args.tokens), "--kv-type", args.kv_type, "--json"]
            for policy in args.policies:
                command += ["--kv", policy]
            result = subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True)
            for policy, line in zip(args.policies, result.stdout.splitlines(), strict=True):
                rows.setdefault((policy, depth), []).append(json.loads(line))
    return rows


def megabytes(n):
    return f"{n / 1e6:.1f}"


def table(args, rows):
    print("| policy | depth | ms/token | speed-up over full | range | KV MB | metric MB | score ms | select ms | attend ms |")
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for policy in args.policies:
        for depth in args.depths:
            mine = rows[policy, depth]
            ratios = sorted(f["ms_tok"] / m["ms_tok"] for f, m in zip(rows["full", depth], mine))
            median = {key: statistics.median(row[key] for row in mine) for key in mine[0] if isinstance(mine[0][key], (int, float))}
            print(f"| `{policy}` | {depth} | {median['ms_tok']:.2f} | {statistics.median(ratios):.2f} | {ratios[0]:.2f}–{ratios[-1]:.2f} "
                  f"| {megabytes(median['kv_bytes'])} | {megabytes(median['metric_bytes'])} "
                  f"| {median['us_score'] / 1e3:.2f} | {median['us_select'] / 1e3:.2f} | {median['us_attend'] / 1e3:.2f} |")


def draw(args, rows, path):
    """Speed-up over full against depth, one curve per policy."""
    width, height, left, bottom, right = 800, 420, 70, 50, 270
    colours = ["#222", "#0072b2", "#56b4e9", "#cc79a7", "#d55e00", "#009e73", "#e69f00", "#999"]
    gains = {(p, d): statistics.median(f["ms_tok"] / m["ms_tok"] for f, m in zip(rows["full", d], value)) for (p, d), value in rows.items()}
    top, deepest = max(gains.values()) * 1.05, max(args.depths) or 1

    def at(depth, gain):
        return f"{left + depth / deepest * (width - left - right):.1f},{height - bottom - gain / top * (height - bottom - 20):.1f}"
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
             f'<rect width="{width}" height="{height}" fill="white"/>']
    for gain in range(int(top) + 1):
        x, y = at(0, gain).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{width - right}" y2="{y}" stroke="#ddd"/>'
                     f'<text x="{float(x) - 6}" y="{float(y) + 4}" text-anchor="end">{gain}</text>')
    for depth in args.depths:
        x, y = at(depth, 0).split(",")
        if depth == 0 or depth >= deepest / 8:
            parts.append(f'<text x="{x}" y="{float(y) + 18}" text-anchor="middle">{depth}</text>')
    parts.append(f'<text x="{(left + width - right) / 2}" y="{height - 10}" text-anchor="middle">tokens in the cache</text>'
                 f'<text x="16" y="{height / 2}" transform="rotate(-90 16 {height / 2})" text-anchor="middle">times as fast as full</text>')
    for i, policy in enumerate(args.policies):
        colour = colours[i % len(colours)]
        points = " ".join(at(d, gains[policy, d]) for d in args.depths)
        y = 30 + 20 * i
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>'
                     f'<line x1="{width - right + 15}" y1="{y}" x2="{width - right + 35}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
                     f'<text x="{width - right + 40}" y="{y + 4}">{policy}</text>')
    Path(path).write_text("\n".join(parts) + "\n</svg>\n")


def main():
    args = arguments()
    rows = measure(args)
    table(args, rows)
    if args.svg:
        draw(args, rows, args.svg)


if __name__ == "__main__":
    main()
