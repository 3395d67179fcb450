#!/usr/bin/env python3
"""Load on `butler serve`: clients that ask about long documents, several about each, beside llama.cpp's server on the same requests.

    bench/serve_load.py MODEL.gguf -o load.jsonl [--clients 16] [--requests 3] [--kv POLICY]... [--peer PYTHON]
    bench/serve_load.py MODEL.gguf -o load.jsonl --clients 1,2,4,8,16,32,64      how the rate grows
    bench/serve_load.py MODEL.gguf -o load.jsonl --replicas                      two replicas with half of the threads, behind HAProxy
    bench/serve_load.py --table load.jsonl                                       prints the table

Every client sends one request after the other: a document of --document-tokens tokens, the same --documents documents for all
clients, and a question of its own; --tokens tokens are generated greedily and streamed. Client c's i-th question is about document
(c + i) modulo their number. Each server is started anew, with nothing cached. Time to first token is from sending a request, time
between tokens that of two pieces of one stream; both are of all requests of all clients. --peer names a Python that has xllamacpp,
whose server gets as many slots as there are clients. Rows are appended as they come; those that the file has are not measured again.
"""
import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path

from serve_client import ROOT, Replicas, Server, exit_on_term, fetch, generate, make_documents, say

POLICIES = ["full", "fier:budget=0.125", "tinyserve:budget=0.125"]
TWO = "butler, 2 replicas"
KEYS = ["server", "policy", "model", "clients", "requests", "documents", "document_tokens", "tokens", "threads"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("-o", "--output", default="load.jsonl")
    parser.add_argument("--clients", default="16")
    parser.add_argument("--requests", type=int, default=3, help="of each client")
    parser.add_argument("--documents", type=int, default=4)
    parser.add_argument("--document-tokens", type=int, default=6000)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--kv", action="append", help=f"may be repeated; by default {', '.join(POLICIES)}")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--max-stall", type=int, default=200)
    parser.add_argument("--butler", default=str(ROOT / "butler"))
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--replicas", action="store_true")
    parser.add_argument("--table", metavar="FILE")
    return parser.parse_args()


def quantile(values, share):
    values = sorted(values)
    return values[min(int(share * len(values)), len(values) - 1)] if values else float("nan")


async def cut_documents(port, args):
    """Texts of so many tokens: the tokens of a longer one, back as text."""
    cut = []
    for text in make_documents(args.documents, 8 * args.document_tokens):
        _, found = await fetch(port, "POST", "/tokenize", {"content": text})
        ids = json.loads(found)["tokens"][:args.document_tokens]
        assert len(ids) == args.document_tokens, "the documents are too short"
        _, found = await fetch(port, "POST", "/detokenize", {"tokens": ids})
        cut.append(json.loads(found)["content"])
    return cut


def prompt_of(documents, client, i):
    return f"{documents[(client + i) % len(documents)]}\n\nQuestion {client}.{i}: what happens in this text? Answer:"


async def run_clients(port, args, n_clients, documents):
    firsts, gaps, generated, prompts, cached, errors = [], [], 0, 0, 0, []

    async def client(c):
        nonlocal generated, prompts, cached
        for i in range(args.requests):
            body = {"prompt": prompt_of(documents, c, i), "max_tokens": args.tokens, "temperature": 0, "ignore_eos": True, "cache_prompt": True}
            try:
                times, usage = await generate(port, body)
            except (OSError, RuntimeError, asyncio.IncompleteReadError) as error:
                errors.append(str(error)[:200])
                continue
            firsts.append(times[0])
            gaps.extend(b - a for a, b in zip(times, times[1:]))
            generated += usage.get("completion_tokens", len(times))
            prompts += usage.get("prompt_tokens", 0)
            cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
            say(f"client {c}, request {i}: first token after {times[0]:.1f} s, {len(times)} tokens in {times[-1] - times[0]:.1f} s")

    begin = time.perf_counter()
    await asyncio.gather(*(client(c) for c in range(n_clients)))
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "generated": generated, "tok_s": generated / seconds, "prompt_tokens": prompts, "cached_tokens": cached,
            "first_p50": quantile(firsts, 0.5), "first_p99": quantile(firsts, 0.99), "between_p50": quantile(gaps, 0.5),
            "between_p99": quantile(gaps, 0.99), "errors": len(errors), "first_error": errors[0] if errors else None}


def command_of(args, server, policy, n_clients):
    if server.startswith("butler"):
        threads = max(args.threads // 2, 1) if server == TWO else args.threads
        return [args.butler, "serve", "-m", args.model, "--port", "{port}", "-t", threads, "--kv", policy, "--max-stall", args.max_stall]
    context = args.document_tokens + args.tokens + 256
    return [args.peer, ROOT / "bench" / "peer_llama_server.py", args.model, "{port}", n_clients, -(-context // 256) * 256, args.threads]


def measure(args, key, documents):
    log = f"{args.output}.{key['server']}.log"
    command = command_of(args, key["server"], key["policy"], key["clients"])
    server = Replicas(command, 2, log) if key["server"] == TWO else Server(command, log)
    try:
        found = asyncio.run(run_clients(server.port, args, key["clients"], documents))
        found["peak_bytes"] = server.memory(peak=True)
        if key["server"] == "butler":
            text = asyncio.run(fetch(server.port, "GET", "/metrics"))[1].decode()
            values = {line.split()[0]: float(line.split()[1]) for line in text.splitlines() if line[0] != "#" and "{" not in line}
            read = values["butler:kv_read_bytes_total"] + values["butler:metric_read_bytes_total"]
            found["read_share"] = read / values["butler:dense_read_bytes_total"]
    finally:
        server.stop()
    return {**key, **found}


def print_table(rows):
    print("| server | policy | clients | tokens/s | first token p50 / p99, s | between tokens p50 / p99, ms | KV read | peak memory, MB | errors |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for row in rows:
        share = f"{100 * row['read_share']:.1f} %" if "read_share" in row else ""
        print(f"| {row['server']} | {row['policy']} | {row['clients']} | {row['tok_s']:.1f} | {row['first_p50']:.1f} / {row['first_p99']:.1f} | "
              f"{1e3 * row['between_p50']:.0f} / {1e3 * row['between_p99']:.0f} | {share} | {row['peak_bytes'] / 1e6:.0f} | {row['errors']} |")


def load(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()] if Path(path).exists() else []


def main():
    args = arguments()
    if args.table:
        print_table(load(args.table))
        return
    if not args.model:
        sys.exit("which model?")
    exit_on_term()
    rows = load(args.output)
    servers = [(TWO if args.replicas else "butler", policy) for policy in args.kv or POLICIES] + ([("llama.cpp", "full")] if args.peer else [])
    documents = None
    for n_clients in map(int, args.clients.split(",")):
        for name, policy in servers:
            key = dict(zip(KEYS, [name, policy, Path(args.model).name, n_clients, args.requests, args.documents, args.document_tokens, args.tokens,
                                  args.threads]))
            if any(all(row[k] == key[k] for k in KEYS) for row in rows):
                say("already measured:", name, policy, n_clients)
                continue
            if documents is None:
                tokenizer = Server(command_of(args, "butler", "full", 1), args.output + ".log")
                documents = asyncio.run(cut_documents(tokenizer.port, args))
                tokenizer.stop()
            say(f"{name}, {policy}, {n_clients} clients")
            rows.append(measure(args, key, documents))
            with open(args.output, "a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
    print_table(rows)


if __name__ == "__main__":
    main()
