#!/usr/bin/env python3
"""Mixed load on `butler serve` for a long time: memory must stay flat, every request must be answered.

    bench/serve_soak.py MODEL.gguf --seconds 3600 [--clients 16] [--bound 0.1] [-o soak.jsonl]

Clients send random requests: streams and whole answers, policies, several choices, scored prompts (echo), tokens, wrong requests, and
clients that go away in the middle. The server's resident memory is sampled every second (--interval). After --warm-up (a share of the time) its largest
value is the level; the run fails when memory grows beyond the level by more than --bound of it, or by a trend: when the mean of the last
quarter is more than --trend above that of the quarter after the warm-up. It also fails when a request fails that should not.
"""
import argparse
import asyncio
import json
import os
import random
import sys
import time

from serve_client import ROOT, Server, exit_on_term, fetch, generate, make_documents, say

POLICIES = ["full", "fier:budget=0.125", "quest:budget=64", "tinyserve:budget=64", "h2o:budget=64", "streaming:budget=32", "snapkv:budget=64"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=3600)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--warm-up", type=float, default=0.25, help="share of the time")
    parser.add_argument("--interval", type=float, default=1, help="seconds from one sample to the next")
    parser.add_argument("--bound", type=float, default=0.1)
    parser.add_argument("--trend", type=float, default=0.02)
    parser.add_argument("--characters", type=int, default=600, help="of the longest prompt; prompt and answer must fit the context")
    parser.add_argument("--tokens", type=int, default=32, help="of the longest answer")
    parser.add_argument("--kv-ram", default="64M", help="a quarter of it is the prefix cache, which must be full when the warm-up ends")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--butler", default=str(ROOT / "butler"))
    parser.add_argument("-o", "--output", help="every sample")
    return parser.parse_args()


class Soak:
    def __init__(self, args, server):
        self.args, self.server, self.texts = args, server, make_documents(8, args.characters)
        self.counts, self.wrong, self.samples = {}, [], []
        self.begin = time.time()

    def is_over(self):
        return time.time() - self.begin > self.args.seconds or self.server.process.poll() is not None

    def body(self, r):
        text = r.choice(self.texts)
        text = text[r.randrange(len(text) // 2):]  # so many beginnings that the prefix cache has to drop some
        return {"prompt": text[:r.randrange(1, len(text))] if r.random() < 0.5 else text, "max_tokens": r.randrange(1, self.args.tokens + 1),
                "temperature": r.choice([0, 1]), "seed": r.randrange(1000), "kv": {"policy": r.choice(POLICIES)}}

    async def request(self, r, kind):
        """An answer's status and what it should be."""
        port = self.server.port
        if kind == "stream":
            await generate(port, self.body(r))
        elif kind == "gone":
            await generate(port, {**self.body(r), "max_tokens": 200, "ignore_eos": True}, stop_after=r.randrange(1, 20))
        elif kind == "wrong":
            body = r.choice([{"prompt": 5}, {"prompt": "a", "kv": {"policy": "none such"}}, {"prompt": "a", "temperature": "x"}, [], {"prompt": "a", "n": 0}])
            return (await fetch(port, "POST", "/v1/completions", body))[0], 400
        elif kind == "tokens":
            return (await fetch(port, "POST", "/tokenize", {"content": r.choice(self.texts)}))[0], 200
        elif kind == "look":
            return (await fetch(port, "GET", r.choice(["/metrics", "/kv/trace", "/slots", "/props", "/health"])))[0], 200
        else:
            more = {"whole": {}, "choices": {"n": 3}, "scored": {"echo": True, "logprobs": 1, "max_tokens": 1}}[kind]
            return (await fetch(port, "POST", "/v1/completions", {**self.body(r), **more}))[0], 200
        return 200, 200

    async def client(self, seed):
        r = random.Random(seed)
        while not self.is_over():
            kind = r.choice(["stream", "gone", "whole", "choices", "scored", "wrong", "tokens", "look"])
            try:
                got, expected = await self.request(r, kind)
            except (OSError, RuntimeError, ValueError, asyncio.IncompleteReadError) as error:
                got, expected = repr(error)[:200], 200
            self.counts[kind] = self.counts.get(kind, 0) + 1
            if got != expected:
                self.wrong.append((kind, got, expected))

    async def sample(self):
        while not self.is_over():
            self.samples.append((time.time() - self.begin, self.server.memory()))
            if len(self.samples) % 60 == 0:
                say(f"{sum(self.counts.values())} requests, {self.samples[-1][1] / 1e6:.1f} MB resident, {len(self.wrong)} wrong answers")
            await asyncio.sleep(self.args.interval)

    async def run(self):
        await asyncio.gather(self.sample(), *(self.client(i) for i in range(self.args.clients)))

    def judge(self):
        """What is wrong, in words."""
        args, n = self.args, len(self.samples)
        memory = [bytes for _, bytes in self.samples]
        warm, rest = memory[:int(n * args.warm_up)], memory[int(n * args.warm_up):]
        faults = [f"{len(self.wrong)} wrong answers, the first: {self.wrong[0]}"] if self.wrong else []
        if self.server.process.poll() is not None:
            return faults + [f"the server ended with status {self.server.process.returncode}"]
        if len(rest) < 8 or not warm:
            return faults + ["too short to judge memory"]
        level, quarter = max(warm), len(rest) // 4
        first, last = sum(rest[:quarter]) / quarter, sum(rest[-quarter:]) / quarter
        say(f"memory: at most {level / 1e6:.1f} MB in the warm-up, {max(rest) / 1e6:.1f} MB after it; mean {first / 1e6:.1f} MB, in the end {last / 1e6:.1f} MB")
        if max(rest) > (1 + args.bound) * level:
            faults.append(f"memory grew beyond the bound: {level} to {max(rest)} bytes")
        if last > (1 + args.trend) * first:
            faults.append(f"memory keeps growing: a mean of {first:.0f} bytes became {last:.0f}")
        return faults


def main():
    args = arguments()
    exit_on_term()
    server = Server([args.butler, "serve", "-m", args.model, "--port", "{port}", "-t", args.threads, "--kv-ram", args.kv_ram, "--audit", "8"],
                    (args.output or "soak") + ".log")
    soak = Soak(args, server)
    try:
        asyncio.run(soak.run())
        faults = soak.judge()
    finally:
        server.stop()
    if args.output:
        with open(args.output, "w") as file:
            file.writelines(json.dumps({"seconds": seconds, "bytes": bytes}) + "\n" for seconds, bytes in soak.samples)
    print(json.dumps({"seconds": time.time() - soak.begin, "requests": soak.counts, "wrong": len(soak.wrong), "faults": faults}))
    if faults:
        sys.exit("; ".join(faults))


if __name__ == "__main__":
    main()
