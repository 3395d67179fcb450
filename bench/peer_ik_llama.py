#!/usr/bin/env python3
"""How fast ik_llama.cpp, a fork of llama.cpp with kernels of its own for CPUs, reads prompts of a GGUF file: a peer that
bench/prompts.py sets beside us.

    pip install ik-llama-cpp-python          a wheel built for AVX2
    bench/peer_ik_llama.py MODEL.gguf --prefill 512,2048 [--threads N] [--repack]

One JSON object a line, as bench/peer_llama_cpp.py has them: {"engine", "model", "prefill", "tok_s"}. --repack: weights are interleaved when the
model is loaded, as its option -rtr does. The prompts are random tokens, in passes of 512, with its flash attention; the first one is not timed."""
import argparse
import ctypes
import importlib.metadata
import json
import random
import time
from pathlib import Path

from ik_llama_cpp import _ctypes_api as lib

PASS = 512
QUIET = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda level, text, user: None)


class Peer:
    def __init__(self, args, n):
        model = lib.llama_model_default_params()
        model.n_gpu_layers, model.repack_tensors = 0, args.repack
        self.model = lib.llama_model_load_from_file(args.model.encode(), model)
        if not self.model:
            raise SystemExit(f"ik_llama.cpp cannot load {args.model}")
        context = lib.llama_context_default_params()
        context.n_ctx = -(-n // 256) * 256
        context.n_batch = context.n_ubatch = PASS
        context.n_threads = context.n_threads_batch = args.threads
        context.flash_attn = True
        self.context = lib.llama_init_from_model(self.model, context)
        if not self.context:
            raise SystemExit("ik_llama.cpp makes no context with these settings")
        self.batch = lib.llama_batch_init(PASS, 0, 1)

    def read(self, tokens):
        """Seconds of a prompt, up to the logits of its last token."""
        lib.llama_kv_cache_clear(self.context)
        batch, start = self.batch, time.perf_counter()
        for first in range(0, len(tokens), PASS):
            part = tokens[first:first + PASS]
            batch.n_tokens = len(part)
            for i, token in enumerate(part):
                batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + i, 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = first + i == len(tokens) - 1
            if lib.llama_decode(self.context, batch) != 0:
                raise SystemExit("llama_decode failed")
        if not lib.llama_get_logits_ith(self.context, -1):  # waits for the last pass
            raise SystemExit("no logits")
        return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=lambda text: [int(n) for n in text.split(",")], required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repack", action="store_true")
    args = parser.parse_args()
    lib._lib.llama_log_set(QUIET, None)
    lib.llama_backend_init()
    numbers = random.Random(1)
    version = importlib.metadata.version("ik-llama-cpp-python")
    row = {"engine": f"ik_llama.cpp{', repacked' if args.repack else ''} {version}", "model": Path(args.model).stem, "threads": args.threads}
    peer = Peer(args, max(args.prefill))
    peer.read([numbers.randrange(1000, 30000) for _ in range(PASS)])
    for n in args.prefill:
        seconds = peer.read([numbers.randrange(1000, 30000) for _ in range(n)])
        print(json.dumps(row | {"prefill": n, "tok_s": n / seconds}), flush=True)


if __name__ == "__main__":
    main()
