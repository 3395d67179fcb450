#!/usr/bin/env python3
"""The table of docs/speed.md: decode speed of the shapes that people run, beside the machine's ceilings and llama.cpp.

    bench/speed.py MODELS_DIR -o speed.jsonl [--shapes 110m-q8_0,…] [--depths 0,4096,16384,32768] [--rounds 5] [--memory GB] [--peer PYTHON]
    bench/speed.py --tables speed.jsonl            prints the Markdown tables
    bench/speed.py --draw speed.svg speed.jsonl    draws milliseconds a token against depth, F16 caches

MODELS_DIR holds files made by tools/fixtures/random_model.py, named SHAPE-TYPE.gguf, and random predictors for them (bench_predictor
MODEL write v1 SHAPE-TYPE.tokenbutler.gguf, v2 SHAPE-TYPE.tokenbutler2.gguf; without them those policies are left out). For every shape, KV type and depth one process
(bench_roofline) takes turns between all policies and the read ceiling; llama.cpp (through PYTHON, an interpreter that has
llama-cpp-python) is measured at the same depth right before and right after. Rows are appended as they come, and what the
file already holds is not measured again.
"""
import argparse
import json
import math
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHAPES = ["llama-3.2-1b-q8_0", "llama-3.2-1b-q4_0", "tinyllama-1.1b-q8_0", "110m-q8_0", "gpt2-medium-q8_0"]
# Each at 1/16 of the depth, nothing read densely that the policy does not need.
POLICIES = ["full", "quest:dense=0,budget={b}", "tinyserve:budget={b}", "fier:dense=0,budget={b}", "tokenbutler:budget={b}",
            "tokenbutler2:on_top=0,sinks=4,recent=0,budget={b}", "h2o:budget={b}", "streaming:budget={b}",
            "quest:dense=0,budget={b},every=4", "tokenbutler2:on_top=0,sinks=4,recent=0,budget={b},page=16,every=4"]
# llama.cpp: with flash attention and either cache, and without it (where values lie transposed and cannot be quantised).
PEER_SETTINGS = [("f16", True), ("q8_0", True), ("f16", False)]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", help="MODELS_DIR, or with --tables or --draw the rows")
    parser.add_argument("-o", "--output")
    parser.add_argument("--shapes", default=",".join(SHAPES))
    parser.add_argument("--depths", default="0,4096,16384,32768")
    parser.add_argument("--kv-types", default="f16,q8_0")
    parser.add_argument("--policy", action="append", help="{b} stands for 1/16 of the depth, at least 64")
    parser.add_argument("--memory", type=float, default=16, help="GB for caches: as many policies as fit take turns in a process")
    parser.add_argument("--isa", help="kernels to run with, as bench_roofline takes them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=4)
    parser.add_argument("--peer", help="python with llama-cpp-python")
    parser.add_argument("--peer-depths", default="0,32768")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--draw", metavar="SVG")
    return parser.parse_args()


def load(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


class Sink:
    def __init__(self, path):
        self.path, self.rows = path, load(path)

    def add(self, rows):
        with open(self.path, "a") as file:
            for row in rows:
                file.write(json.dumps(row) + "\n")
        self.rows += rows

    def has(self, **wanted):
        return any(all(row.get(k) == v for k, v in wanted.items()) for row in self.rows)


def rows_of(command):
    print("+", " ".join(map(str, command)), file=sys.stderr, flush=True)
    result = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, text=True)
    if result.returncode:
        print(f"  exit status {result.returncode}", file=sys.stderr)
        return []
    return [json.loads(line) for line in result.stdout.splitlines()]


def peer_rows(args, model, depth, turn):
    rows = []
    for kv_type, flash in PEER_SETTINGS if args.peer and str(depth) in args.peer_depths.split(",") else []:
        command = [args.peer, ROOT / "bench" / "peer_llama_cpp.py", model, "--depths", depth, "--kv-type", kv_type, "--tokens", args.tokens]
        rows += [row | {"shape": model.stem, "turn": turn} for row in rows_of(command + (["--flash"] if flash else []))]
    return rows


def measure(args):
    sink = Sink(args.output)
    for shape in args.shapes.split(","):
        model = Path(args.path) / f"{shape}.gguf"
        for depth in map(int, args.depths.split(",")):
            if not sink.has(shape=shape, depth=depth, turn=1):
                sink.add(peer_rows(args, model, depth, 1))
            for kv_type in args.kv_types.split(","):
                if any("policy" in row and (row["shape"], row["depth"], row["kv_type"]) == (shape, depth, kv_type) for row in sink.rows):
                    continue
                command = [ROOT / "build/bench/bench_roofline", model, "--json", "--depths", depth, "--kv-type", kv_type, "--rounds", args.rounds,
                           "--tokens", args.tokens, "--memory", args.memory]
                if args.isa:
                    command += ["--isa", args.isa]
                if any("ceiling" in row and row["shape"] == shape for row in sink.rows):
                    command.append("--skip-ceilings")
                predictors = [p for p in (model.with_suffix(f".{v}.gguf") for v in ("tokenbutler", "tokenbutler2")) if p.exists()]
                for p in predictors:
                    command += ["--predictor", p]
                policies = [policy.format(b=max(64, depth // 16)) for policy in args.policy or POLICIES
                            if not policy.startswith("tokenbutler") or any(policy.split(":")[0] == p.suffixes[-2][1:] for p in predictors)]
                for policy in policies:
                    command += ["--policy", policy]
                sink.add([row | {"shape": shape, "depth": depth, "kv_type": kv_type, "engine": "butler"} for row in rows_of(command)])
            if not sink.has(shape=shape, depth=depth, turn=2):
                sink.add(peer_rows(args, model, depth, 2))


def best_peer(rows, shape, depth):
    """(ms, setting) of the fastest llama.cpp setting, each the median of its turns."""
    by_setting = {}
    for row in rows:
        if row.get("turn") and row["shape"] == shape and row["depth"] == depth:
            by_setting.setdefault((row["kv_type"], row["flash"]), []).append(row["ms_tok"])
    best = min(((statistics.median(ms), setting) for setting, ms in by_setting.items()), default=None)
    return best and (best[0], f"{best[1][0]}{', flash' if best[1][1] else ''}")


def name(policy):
    every = next((word for word in policy.split(",") if word.startswith("every=") and word != "every=1"), None)
    return policy.split(":")[0] + (f", {every}" if every else "")


def tables(rows):
    print("| ceiling | 1 thread | all threads | |\n| --- | ---: | ---: | --- |")
    for what in dict.fromkeys(r["ceiling"] for r in rows if "ceiling" in r):
        mine = [r for r in rows if r.get("ceiling") == what]
        one, every = (statistics.median(r[k] for r in mine) for k in ("one", "all"))
        low, high = min(r["all"] for r in mine), max(r["all"] for r in mine)
        print(f"| {what} | {one:.1f} | {every:.1f} ({low:.1f}–{high:.1f}) | {mine[0]['unit']} |")
    ours = [r for r in rows if r.get("engine") == "butler" and "policy" in r]
    for shape in dict.fromkeys(r["shape"] for r in ours):
        print(f"\n### {shape}\n")
        print("| depth | KV | policy | ms/token | spread | MB read: weights + KV + metric | share of floor | × full | spread | score + select + attend ms | × best llama.cpp |")
        print("| ---: | --- | --- | ---: | --- | --- | ---: | ---: | --- | --- | ---: |")
        for r in (r for r in ours if r["shape"] == shape):
            peer = best_peer(rows, shape, r["depth"])
            against = f"{peer[0] / r['ms_tok']:.2f}" if peer else "–"
            spread = f"{r['gain_low']:.2f}–{r['gain_high']:.2f}" if r["gain_low"] else "–"
            print(f"| {r['depth']} | {r['kv_type']} | {name(r['policy'])} | {r['ms_tok']:.2f} | {r['ms_low']:.2f}–{r['ms_high']:.2f} "
                  f"| {r['weight_bytes'] / 1e6:.0f} + {r['kv_bytes'] / 1e6:.1f} + {r['metric_bytes'] / 1e6:.1f} | {r['share']:.2f} "
                  f"| {r['gain']:.2f} | {spread} "
                  f"| {r['ms_score']:.2f} + {r['ms_select']:.2f} + {r['ms_attend']:.2f} | {against} |")
        for depth in dict.fromkeys(r["depth"] for r in ours if r["shape"] == shape):
            peer = best_peer(rows, shape, depth)
            if peer:
                print(f"\nllama.cpp at {depth}: {peer[0]:.1f} ms/token (best of its settings: {peer[1]}).")


DRAWN = {"llama.cpp": "#000", "full": "#888", "fier": "#e69f00", "tokenbutler2": "#cc79a7", "quest": "#0072b2", "quest, every=4": "#56b4e9", "h2o": "#d55e00",
         "streaming": "#009e73"}


def times(rows, shape):
    """{policy or llama.cpp: [(depth, ms a token with an F16 cache)]}; llama.cpp's by its fastest setting."""
    mine = [r for r in rows if r.get("engine") == "butler" and "policy" in r and r["shape"] == shape and r["kv_type"] == "f16"]
    lines = {what: sorted((r["depth"], r["ms_tok"]) for r in mine if name(r["policy"]) == what) for what in DRAWN}
    peers = [(depth, best_peer(rows, shape, depth)) for depth in sorted({r["depth"] for r in mine})]
    lines["llama.cpp"] = [(depth, peer[0]) for depth, peer in peers if peer]
    return lines


def panel(shape, lines, left, top, width, height):
    """SVG of one shape: milliseconds a token, by their logarithm, against depth."""
    depths = sorted({depth for line in lines.values() for depth, _ in line})
    every = [ms for line in lines.values() for _, ms in line]
    low, high = math.log(min(every) * 0.9), math.log(max(every) * 1.1)

    def x(depth):
        return left + width * depths.index(depth) / max(len(depths) - 1, 1)

    def y(ms):
        return top + height * (high - math.log(ms)) / (high - low)
    parts = [f'<text x="{left}" y="{top - 8}" font-weight="bold">{shape}</text>']
    for ms in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if low <= math.log(ms) <= high:
            parts.append(f'<line x1="{left}" y1="{y(ms):.1f}" x2="{left + width}" y2="{y(ms):.1f}" stroke="#ddd"/>'
                         f'<text x="{left - 5}" y="{y(ms) + 4:.1f}" text-anchor="end">{ms}</text>')
    parts += [f'<text x="{x(depth):.1f}" y="{top + height + 16}" text-anchor="middle">{f"{depth // 1024}k" if depth else 0}</text>' for depth in depths]
    for what, line in lines.items():
        points = [f"{x(depth):.1f},{y(ms):.1f}" for depth, ms in line]
        dashes = ' stroke-dasharray="4"' if what == "llama.cpp" else ""
        parts.append(f'<polyline points="{" ".join(points)}" fill="none" stroke="{DRAWN[what]}" stroke-width="2"{dashes}/>')
        parts += [f'<circle cx="{point.split(",")[0]}" cy="{point.split(",")[1]}" r="2.5" fill="{DRAWN[what]}"/>' for point in points]
    return parts


def draw(rows, path):
    """A panel for every shape, three in a row, and what the colours mean."""
    shapes = list(dict.fromkeys(r["shape"] for r in rows if r.get("engine") == "butler" and "policy" in r))
    width, height, across, down = 210, 170, 290, 230
    parts = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 880 %d" font-family="sans-serif" font-size="12">' % (down * (len(shapes) // 3 + 1) + 20),
             '<rect width="100%" height="100%" fill="white"/>']
    for i, shape in enumerate(shapes):
        parts += panel(shape, times(rows, shape), 50 + i % 3 * across, 30 + i // 3 * down, width, height)
    left, top = 50 + len(shapes) % 3 * across, 40 + len(shapes) // 3 * down
    parts.append(f'<text x="{left}" y="{top - 18}">ms a token; tokens in the cache</text>')
    for i, (what, colour) in enumerate(DRAWN.items()):
        parts.append(f'<line x1="{left}" y1="{top + 18 * i}" x2="{left + 20}" y2="{top + 18 * i}" stroke="{colour}" stroke-width="2"/>'
                     f'<text x="{left + 26}" y="{top + 4 + 18 * i}">{what}</text>')
    Path(path).write_text("\n".join(parts) + "\n</svg>\n")


def main():
    args = arguments()
    if args.tables:
        tables(load(args.path))
    elif args.draw:
        draw(load(args.path), args.draw)
    elif args.output:
        measure(args)
    else:
        sys.exit("speed.py: -o FILE is needed")


if __name__ == "__main__":
    main()
