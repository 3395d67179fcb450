#!/usr/bin/env python3
"""How long each turn of an agent waits for its first token: `butler serve --reread-answers --cache` under one policy after the other.

    bench/agent_turns.py MODEL.gguf [--kv POLICY]... [--system 6000] [--turns 12] [--answer 48] [--result 60] [--pause 4] [--cache FOLDER]
                         [--clock] [--peer PYTHON]

The system prompt is the beginning of models/long_text.txt, repeated to about so many tokens; each turn adds an answer of the model and what a tool
said, of about so many tokens; the agent then waits --pause seconds for its tool. All policies share the library's folder and the system prompt, and
each has a conversation of its own. --clock: the system prompt begins with the time, which is another each turn.
--peer names a Python that has xllamacpp, whose server then has the same turns (with --clock it moves known pieces, its --cache-reuse 256).
Prints one JSON object a policy: seconds to the first token of every turn, tokens of the last prompt.
"""
import argparse
import asyncio
import json
import os
import sys
import tempfile
import time

from serve_client import ROOT, Server, exit_on_term, fetch, make_documents, say, send

POLICIES = ["full", "fier:budget=1024", "quest:budget=1024", "snapkv:budget=1024", "h2o:budget=1024"]
PEER = "llama.cpp"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kv", action="append")
    parser.add_argument("--system", type=int, default=6000, help="tokens")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--answer", type=int, default=48, help="tokens")
    parser.add_argument("--result", type=int, default=60, help="tokens")
    parser.add_argument("--pause", type=float, default=4, help="seconds")
    parser.add_argument("--cache", help="the library's folder; without it a new one")
    parser.add_argument("--clock", action="store_true")
    parser.add_argument("--peer", metavar="PYTHON")
    parser.add_argument("--butler", default=str(ROOT / "butler"))
    return parser.parse_args()


async def make_text(port, n_tokens, number):
    """A text of about so many tokens."""
    text = make_documents(number + 1, 8 * n_tokens)[number]
    status, found = await fetch(port, "POST", "/tokenize", {"content": text})
    ids = json.loads(found)["tokens"]
    return text[:len(text) * n_tokens // max(len(ids), n_tokens)]


async def chat(port, messages, n):
    """(seconds to the first token, the answer, tokens of the prompt)"""
    begin, first, answer, usage = time.perf_counter(), None, "", {}
    body = {"messages": messages, "max_tokens": n, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    reader, writer, status, _ = await send(port, "POST", "/v1/chat/completions", body)
    if status != 200:
        sys.exit(f"status {status}: {(await reader.read())[:300]!r}")
    while line := await reader.readline():  # lengths of chunks and empty lines are skipped
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        piece = json.loads(line[6:])
        if "error" in piece:
            sys.exit(str(piece["error"]))
        usage = piece.get("usage") or usage
        content = piece["choices"][0]["delta"].get("content") if piece["choices"] else None
        if content:
            first = first or time.perf_counter() - begin
            answer += content
    writer.close()
    return first, answer, usage.get("prompt_tokens")


async def run_agent(port, number, args):
    system = await make_text(port, args.system, 0)
    messages = [{"role": "system", "content": system}]
    seconds, n_prompt = [], 0
    for turn in range(args.turns):
        if args.clock:
            messages[0]["content"] = f"It is {turn + 8:02d}:{7 * turn % 60:02d} o'clock.\n\n{system}"
        messages.append({"role": "user", "content": await make_text(port, args.result, number * args.turns + turn + 1)})
        first, answer, n_prompt = await chat(port, messages, args.answer)
        messages.append({"role": "assistant", "content": answer})
        seconds.append(round(first, 3))
        say(f"turn {turn + 1}: {first:.2f} s, a prompt of {n_prompt}")
        await asyncio.sleep(args.pause)
    return seconds, n_prompt


def command(args, policy, folder):
    if policy == PEER:
        context = 2 * (args.system + args.turns * (args.answer + args.result + 50))
        return [args.peer, ROOT / "bench" / "peer_llama_server.py", args.model, "{port}", 1, -(-context // 256) * 256, os.cpu_count(),
                *[256] * args.clock]
    return [args.butler, "serve", "-m", args.model, "--port", "{port}", "--kv", policy, "--reread-answers", "--cache", folder]


def main():
    exit_on_term()
    args = arguments()
    with tempfile.TemporaryDirectory() as new:
        for number, policy in enumerate((args.kv or POLICIES) + [PEER] * bool(args.peer)):
            say(policy)
            server = Server(command(args, policy, args.cache or new), os.path.join(new, "log"))
            try:
                seconds, n_prompt = asyncio.run(run_agent(server.port, number, args))
            finally:
                server.stop()
            print(json.dumps({"policy": policy, "seconds": seconds, "prompt_tokens": n_prompt}), flush=True)


if __name__ == "__main__":
    main()
