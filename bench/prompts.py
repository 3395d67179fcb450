#!/usr/bin/env python3
"""The table of prompts in docs/speed.md: tokens a second at both precisions of activations, and where the time goes.

    bench/prompts.py MODEL.gguf ... -o prompts.jsonl [--isa avx2,avx512,amx] [--tokens 512,2048] [--rounds 3] [--threads N] [--peer PYTHON]
    bench/prompts.py --tables prompts.jsonl        prints the Markdown table

For every model and length one process (bench_prompt) takes turns between instruction sets and precisions. llama.cpp, ik_llama.cpp
and OpenVINO GenAI read prompts of the same lengths right behind it, each if PYTHON, an interpreter, has it and it loads the file: peer_llama_cpp.py,
peer_ik_llama.py and peer_openvino.py say what to install. Rows are appended as they come, and what the
file already holds is not measured again."""
import argparse
import json
import statistics
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("-o", "--output")
    parser.add_argument("--isa", default="avx2,avx512,amx")
    parser.add_argument("--tokens", default="512,2048")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--peer", help="an interpreter with any of the peers")
    parser.add_argument("--tables", metavar="ROWS")
    return parser.parse_args()


def load(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


PEERS = {"llama.cpp": ("peer_llama_cpp.py", ["--depths", ""]), "ik_llama.cpp": ("peer_ik_llama.py", []),
         "ik_llama.cpp, repacked": ("peer_ik_llama.py", ["--repack"]), "OpenVINO": ("peer_openvino.py", [])}  # the first words of "engine"


def ask_peer(python, script, flags):
    """Its rows; none, with a line that says so, where it is absent or does not load the model."""
    command = [python, ROOT / "bench" / script, *flags]
    print(*command, flush=True)
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        print(f"{script}: {(done.stderr.strip().splitlines() or ['ended'])[-1]}", flush=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run(command):
    print(*command, flush=True)
    out = subprocess.run([str(word) for word in command], check=True, stdout=subprocess.PIPE, text=True).stdout
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def measure(args):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
    with open(args.output, "a") as file:
        for model in args.models:
            name = Path(model).stem
            for n in map(int, args.tokens.split(",")):
                known = load(args.output)
                if not any(row["model"] == name and row.get("tokens") == n for row in known):
                    rows = run([ROOT / "build/bench/bench_prompt", model, "--isa", args.isa, "--n", n, "--threads", args.threads,
                                "--repeat", args.rounds])
                    file.writelines(json.dumps({"model": name, "commit": commit, **row}) + "\n" for row in rows)
                for peer, (script, flags) in PEERS.items() if args.peer else ():
                    if not any(row["model"] == name and row.get("prefill") == n and row["engine"].startswith(peer + " ") for row in known):
                        rows = ask_peer(args.peer, script, [model, *flags, "--prefill", n, "--threads", args.threads])
                        file.writelines(json.dumps({**row, "model": name}) + "\n" for row in rows)
                file.flush()


def table(rows):
    own, peers = [row for row in rows if "bits" in row], [row for row in rows if "prefill" in row]
    print(f"| model | instructions | tokens | 16 bits, tokens/s | 8 bits | ratio | {' | '.join(PEERS)} | of 8 bits' time: products | quantising, unpacking"
          " | attention | rest | products, GOP/s |")
    print("| --- | --- |" + " ---: |" * (9 + len(PEERS)))
    for key in dict.fromkeys((row["model"], row["isa"], row["tokens"]) for row in own):
        mine = [row for row in own if (row["model"], row["isa"], row["tokens"]) == key]
        median = lambda bits, name: statistics.median(row[name] for row in mine if row["bits"] == bits)
        rounds = {row["round"] for row in mine}
        seconds = {(row["round"], row["bits"]): row["cpu_s"] for row in mine}
        ratio = statistics.median(seconds[r, 16] / seconds[r, 8] for r in rounds)
        peer = {name: [row["tok_s"] for row in peers if row["model"] == key[0] and row["prefill"] == key[2] and row["engine"].startswith(name + " ")]
                for name in PEERS}
        making = median(8, "quantise_s") + median(8, "unpack_s")
        products, whole, threads = median(8, "products_s"), median(8, "cpu_s"), mine[0]["threads"]
        share = lambda seconds: f"{100 * seconds / whole:.0f} %"
        print(f"| {key[0]} | {key[1]} | {key[2]:,} | {key[2] * threads / median(16, 'cpu_s'):.0f} | {key[2] * threads / whole:.0f} | {ratio:.2f} | "
              f"{' | '.join(f'{max(found):.0f}' if found else '–' for found in peer.values())} | {share(products - making)} | {share(making)} | {share(median(8, 'attention_s'))} | "
              f"{share(median(8, 'rest_s'))} | {mine[0]['product_gop'] / (products - making):.0f} |")


def main():
    args = arguments()
    if args.tables:
        table(load(args.tables))
    else:
        measure(args)


if __name__ == "__main__":
    main()
