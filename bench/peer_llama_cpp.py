#!/usr/bin/env python3
"""Decode and prefill speed of llama.cpp on a GGUF file, at given depths of the cache, for comparison by bench/speed.py.

    pip install llama-cpp-python numpy
    bench/peer_llama_cpp.py MODEL.gguf --depths 0,4096 [--kv-type f16|q8_0] [--flash] [--tokens N] [--threads N] [--prefill 512,2048]

One JSON object per line: {"engine", "model", "kv_type", "flash", "depth", "ms_tok"} or {..., "prefill", "tok_s"}. To fill the
cache without running the model, the state of a short text is saved, its cells are repeated up to the depth, and it is restored.
The keys and values belong to no text, but have the right number and size.
"""
import argparse
import ctypes
import json
import os
import statistics
import struct
import sys
import time

import llama_cpp
import numpy as np

SEED_CELLS = 32  # of the state that is repeated; need not be a multiple of the cache's padding


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, kind):
        (v,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return v

    def bytes(self, n):
        v = self.data[self.at:self.at + n]
        if len(v) != n:
            raise ValueError("state ends early: this version of llama.cpp writes another format")
        self.at += n
        return v


def repeat_state(data, depth):
    """The saved cells of sequence 0, repeated to depth positions. Layout: a magic number and the sequence, number of streams, number of
    cells; for each cell its position and its sequences; whether values are transposed, number of layers; for each layer its keys as
    type, bytes per row, rows, and its values likewise (transposed: type, bytes per element, elements per row, one row per element)."""
    r = Reader(data)
    out = [r.bytes(8)]
    streams, n = r.number("I"), r.number("I")
    if streams != 1 or n != SEED_CELLS:
        raise ValueError(f"state has {streams} streams and {n} cells, expected 1 and {SEED_CELLS}")
    cells = []
    for _ in range(n):
        position, n_seq = r.number("i"), r.number("I")
        cells.append((position, r.bytes(4 * n_seq)))
    times = -(-depth // n)
    out.append(struct.pack("<II", 1, depth))
    out += [struct.pack("<iI", i, len(cells[0][1]) // 4) + cells[0][1] for i in range(depth)]
    transposed, layers = r.number("I"), r.number("I")
    out.append(struct.pack("<II", transposed, layers))
    for side in "kv":
        for _ in range(layers):
            kind = r.number("i")
            if side == "v" and transposed:
                size, rows = r.number("I"), r.number("I")
                block = np.frombuffer(r.bytes(size * rows * n), np.uint8).reshape(rows, n * size)
                out.append(struct.pack("<iII", kind, size, rows))
                out.append(np.tile(block, (1, times))[:, :depth * size].tobytes())
            else:
                row = r.number("Q")
                block = np.frombuffer(r.bytes(row * n), np.uint8)
                out.append(struct.pack("<iQ", kind, row))
                out.append(np.tile(block, times)[:depth * row].tobytes())
    if r.at != len(data):
        raise ValueError(f"{len(data) - r.at} bytes of the state were not understood: another version of llama.cpp?")
    return b"".join(out)


class Peer:
    def __init__(self, args, depth):
        p = llama_cpp.llama_model_default_params()
        p.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(args.model.encode(), p)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {args.model}")
        c = llama_cpp.llama_context_default_params()
        c.n_ctx = -(-(depth + 2304) // 256) * 256
        c.n_batch = c.n_ubatch = 512
        c.n_threads = c.n_threads_batch = args.threads
        kind = {"f16": 1, "q8_0": 8}[args.kv_type]
        c.type_k = c.type_v = kind
        if hasattr(c, "flash_attn_type"):
            c.flash_attn_type = 1 if args.flash else 0
        else:
            c.flash_attn = args.flash
        self.context = llama_cpp.llama_init_from_model(self.model, c)
        if not self.context:
            sys.exit("llama.cpp makes no context with these settings")
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)
        self.n_past = 0

    def run(self, n):
        """Runs n tokens and requests the logits of the last."""
        for done in range(0, n, 512):
            m = min(512, n - done)
            self.batch.n_tokens = m
            for i in range(m):
                self.batch.token[i] = 3 + (self.n_past * 7919 + i * 31) % 250
                self.batch.pos[i] = self.n_past + i
                self.batch.n_seq_id[i] = 1
                self.batch.seq_id[i][0] = 0
                self.batch.logits[i] = done + i == n - 1
            if llama_cpp.llama_decode(self.context, self.batch) != 0:
                sys.exit("llama_decode failed")
            self.n_past += m
        llama_cpp.llama_synchronize(self.context)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)
        self.n_past = 0

    def fill(self, depth):
        self.clear()
        if depth == 0:
            return
        for _ in range(SEED_CELLS):
            self.run(1)
        size = llama_cpp.llama_state_seq_get_size(self.context, 0)
        buffer = (ctypes.c_uint8 * size)()
        size = llama_cpp.llama_state_seq_get_data(self.context, buffer, size, 0)
        data = repeat_state(bytes(buffer[:size]), depth)
        self.clear()
        if llama_cpp.llama_state_seq_set_data(self.context, (ctypes.c_uint8 * len(data)).from_buffer_copy(data), len(data), 0) == 0:
            sys.exit("llama.cpp does not take the state back")
        self.n_past = depth


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", default="")
    parser.add_argument("--prefill", default="")
    parser.add_argument("--kv-type", choices=["f16", "q8_0"], default="f16")
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    quiet = llama_cpp.llama_log_callback(lambda level, text, user: None)
    llama_cpp.llama_log_set(quiet, ctypes.c_void_p())
    llama_cpp.llama_backend_init()
    depths = [int(d) for d in args.depths.split(",") if d]
    row = {"engine": f"llama.cpp ({llama_cpp.__version__})", "model": os.path.basename(args.model), "kv_type": args.kv_type, "flash": args.flash}
    for depth in depths:
        peer = Peer(args, depth)
        peer.fill(depth)
        times = []
        for i in range(args.tokens + 2):
            start = time.perf_counter()
            peer.run(1)
            times.append(1e3 * (time.perf_counter() - start))
        print(json.dumps(row | {"depth": depth, "ms_tok": statistics.median(times[2:])}), flush=True)
        llama_cpp.llama_free(peer.context)
        llama_cpp.llama_model_free(peer.model)
    for n in [int(n) for n in args.prefill.split(",") if n]:
        peer = Peer(args, n)
        peer.run(64)
        peer.clear()
        start = time.perf_counter()
        peer.run(n)
        print(json.dumps(row | {"prefill": n, "tok_s": n / (time.perf_counter() - start)}), flush=True)
        llama_cpp.llama_free(peer.context)
        llama_cpp.llama_model_free(peer.model)


if __name__ == "__main__":
    main()
