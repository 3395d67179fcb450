#!/usr/bin/env python3
"""How long `butler serve` takes to answer /health, /metrics and /slots while it reads long prompts.

    bench/serve_latency.py MODEL.gguf [--tokens 30000] [--prompts 1] [--pause 0.001]

Random tokens are the prompts, one after the other; until the last is read, the three paths are asked in turn, each on a new connection.
Prints one JSON object: the number of answers, and their times in milliseconds (median, 99 %, longest), connecting included.
"""
import argparse
import asyncio
import json
import os
import random
import sys
import time

from serve_client import ROOT, Server, exit_on_term, fetch, say
from serve_load import quantile

PATHS = ["/health", "/metrics", "/slots"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=30000, help="of each prompt")
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--pause", type=float, default=0.001, help="seconds from an answer to the next question")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--butler", default=str(ROOT / "butler"))
    return parser.parse_args()


async def read_prompts(port, args):
    status, found = await fetch(port, "GET", "/v1/models")
    n_vocab = json.loads(found)["data"][0]["meta"]["n_vocab"]
    for i in range(args.prompts):
        chosen = random.Random(i)
        prompt = [chosen.randrange(n_vocab) for _ in range(args.tokens)]
        status, found = await fetch(port, "POST", "/v1/completions", {"prompt": prompt, "max_tokens": 1})
        if status != 200:
            sys.exit(f"serve_latency: a prompt of {args.tokens} tokens gave status {status}: {found[:300].decode(errors='replace')}")


async def poll(port, args, times):
    while True:
        for path in PATHS:
            begin = time.perf_counter()
            status, _ = await fetch(port, "GET", path)
            times.append(time.perf_counter() - begin)
            assert status == 200, f"{path} gave status {status}"
            await asyncio.sleep(args.pause)


async def measure(port, args):
    times = []
    reading, asking = asyncio.create_task(read_prompts(port, args)), asyncio.create_task(poll(port, args, times))
    begin = time.perf_counter()
    done, _ = await asyncio.wait([reading, asking], return_when=asyncio.FIRST_COMPLETED)
    asking.cancel()
    for task in done:
        task.result()
    return times, time.perf_counter() - begin


def main():
    args = arguments()
    exit_on_term()
    server = Server([args.butler, "serve", "-m", args.model, "--port", "{port}", "-t", args.threads], "/dev/null")
    try:
        say(f"reading {args.prompts} prompts of {args.tokens} tokens")
        times, seconds = asyncio.run(measure(server.port, args))
    finally:
        server.stop()
    ms = {name: round(1000 * quantile(times, share), 2) for name, share in (("p50_ms", 0.5), ("p99_ms", 0.99), ("max_ms", 1))}
    print(json.dumps({"prompts": args.prompts, "tokens": args.tokens, "threads": args.threads, "seconds": round(seconds, 3), "answers": len(times), **ms}))


if __name__ == "__main__":
    main()
