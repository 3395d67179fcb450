#!/usr/bin/env python3
"""Decode and prefill speed of llama.cpp on a GGUF file, at depths of the cache: the peer that bench/speed.py sets beside us.

    pip install llama-cpp-python numpy                   built for this processor: docs/speed.md
    pip install xllamacpp llama_cpp_py_sync cffi numpy   without a compiler, but AVX2 alone: used where the other is absent
    bench/peer_llama_cpp.py MODEL.gguf --depths 0,4096 [--kv-type f16|q8_0] [--flash] [--tokens N] [--threads N] [--prefill 512,2048]
                            [--batch 1,4,16] [--block 16,512]

One JSON object a line: {"engine", "model", "kv_type", "flash", "depth", "batch", "ms_tok", "tok_s"}: a step of so many sequences, each of that
depth, takes ms_tok (median), and all together write tok_s; or {..., "prefill", "block", "tok_s"}: a prompt in passes of so many tokens. A depth is
reached without running the model over a text: the state of a short text is taken, its cells repeated until there are as
many as asked for, and put back; keys and values are then no text's, but as many and as large.
"""
import argparse
import ctypes
import glob
import importlib.metadata
import json
import os
import statistics
import struct
import sys
import time

import numpy as np

try:
    import llama_cpp as lib
except ImportError:
    import xllamacpp
    from llama_cpp_py_sync import _cffi_bindings
    ffi = _cffi_bindings.get_ffi()
    lib = ffi.dlopen(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "xllamacpp*.so"))[0])
    ENGINE = f"llama.cpp (xllamacpp {importlib.metadata.version('xllamacpp')})"

    def array(data):
        """For the library to read or write."""
        return ffi.new("uint8_t[]", data)

    def quiet():
        quiet.keep = ffi.callback("void(int, const char *, void *)", lambda level, text, user: None)
        lib.llama_log_set(ffi.cast("ggml_log_callback", quiet.keep), ffi.NULL)
else:
    ENGINE = f"llama.cpp ({lib.__version__})"

    def array(data):
        return (ctypes.c_uint8 * len(data)).from_buffer_copy(data)

    def quiet():
        quiet.keep = lib.llama_log_callback(lambda level, text, user: None)
        lib.llama_log_set(quiet.keep, ctypes.c_void_p())

SEED_CELLS = 32  # of the state that is repeated; a multiple of no cache's padding is needed


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


def repeat_state(data, depth, n_settings):
    """The saved cells of sequence 0, repeated to depth positions. Layout: a magic number and the sequence, number of streams (one a
    sequence), of the first number of cells, for each cell its position and its sequences, then whether values lie transposed, the
    number of layers, n_settings bytes of newer versions that stay as they are, every layer's keys as type, bytes a row, rows, and its values alike (transposed ones
    as type, bytes an element, elements a row, then a row for each element)."""
    r = Reader(data)
    out = [r.bytes(8)]
    streams, n = r.number("I"), r.number("I")
    if n != SEED_CELLS:
        raise ValueError(f"state has {n} cells, expected {SEED_CELLS}")
    cells = []
    for _ in range(n):
        position, n_seq = r.number("i"), r.number("I")
        cells.append((position, r.bytes(4 * n_seq)))
    times = -(-depth // n)
    out.append(struct.pack("<II", streams, depth))
    out += [struct.pack("<iI", i, len(cells[0][1]) // 4) + cells[0][1] for i in range(depth)]
    transposed, layers = r.number("I"), r.number("I")
    out.append(struct.pack("<II", transposed, layers) + r.bytes(n_settings))
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
    out.append(r.bytes(4 * (streams - 1)))  # the other sequences' streams have no cells
    if r.at != len(data):
        raise ValueError(f"{len(data) - r.at} bytes of the state were not understood: another version of llama.cpp?")
    return b"".join(out)


class Peer:
    """A context of n_seq sequences of depth tokens and room for more."""

    def __init__(self, args, depth, n_seq=1, block=512):
        self.args, self.n_seq = args, n_seq
        p = lib.llama_model_default_params()
        p.n_gpu_layers = 0
        self.model = lib.llama_model_load_from_file(args.model.encode(), p)
        if not self.model:
            sys.exit(f"llama.cpp cannot load {args.model}")
        c = lib.llama_context_default_params()
        c.n_ctx = n_seq * (-(-(depth + 256) // 256) * 256)
        c.n_seq_max = n_seq
        c.n_batch = c.n_ubatch = block
        c.n_threads = c.n_threads_batch = args.threads
        c.type_k = c.type_v = {"f16": 1, "q8_0": 8}[args.kv_type]
        c.flash_attn_type = 1 if args.flash else 0
        self.context = lib.llama_init_from_model(self.model, c)
        if not self.context:
            sys.exit("llama.cpp makes no context with these settings")
        self.batch = lib.llama_batch_init(max(block, n_seq), 0, 1)
        self.n_past = 0

    def close(self):
        lib.llama_batch_free(self.batch)
        lib.llama_free(self.context)
        lib.llama_model_free(self.model)

    def decode(self, rows):
        """One pass over rows of (position, sequence, logits wanted)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (position, sequence, logits) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = 3 + (position * 7919 + i * 31) % 250, position, 1, logits
            batch.seq_id[i][0] = sequence
        if lib.llama_decode(self.context, batch) != 0:
            sys.exit("llama_decode failed")
        lib.llama_synchronize(self.context)

    def run(self, n, block=512):
        """Runs n tokens of sequence 0, and asks for the logits of the last."""
        for done in range(0, n, block):
            m = min(block, n - done)
            self.decode([(self.n_past + i, 0, done + i == n - 1) for i in range(m)])
            self.n_past += m

    def step(self, n):
        """One token of each of the first n sequences. All are at depth n_past; the token is forgotten again."""
        start = time.perf_counter()
        self.decode([(self.n_past, s, True) for s in range(n)])
        seconds = time.perf_counter() - start
        for s in range(n):
            lib.llama_memory_seq_rm(lib.llama_get_memory(self.context), s, self.n_past, -1)
        return seconds

    def clear(self):
        lib.llama_memory_clear(lib.llama_get_memory(self.context), True)
        self.n_past = 0

    def fill(self, depth):
        self.clear()
        if depth == 0:
            return
        for _ in range(SEED_CELLS):
            self.run(1)
        buffer = array(bytes(lib.llama_state_seq_get_size(self.context, 0)))
        size = lib.llama_state_seq_get_data(self.context, buffer, len(buffer), 0)
        seed = bytes(buffer)[:size]
        try:
            data = repeat_state(seed, depth, 8)
        except ValueError:
            data = repeat_state(seed, depth, 0)
        self.clear()
        for s in range(self.n_seq):
            if lib.llama_state_seq_set_data(self.context, array(data), len(data), s) == 0:
                sys.exit("llama.cpp does not take the state back")
        self.n_past = depth


def numbers(text):
    return [int(n) for n in text.split(",") if n]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--depths", type=numbers, default=[])
    parser.add_argument("--batch", type=numbers, default=[1])
    parser.add_argument("--prefill", type=numbers, default=[])
    parser.add_argument("--block", type=numbers, default=[512])
    parser.add_argument("--kv-type", choices=["f16", "q8_0"], default="f16")
    parser.add_argument("--flash", action="store_true")
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    quiet()
    lib.llama_backend_init()
    row = {"engine": ENGINE, "model": os.path.basename(args.model), "kv_type": args.kv_type, "flash": args.flash}
    for depth in args.depths:
        peer = Peer(args, depth, max(args.batch))
        peer.fill(depth)
        times = {n: [] for n in args.batch}
        for _ in range(args.tokens + 2):
            for n in args.batch:
                times[n].append(1e3 * peer.step(n))
        for n in args.batch:
            ms = statistics.median(times[n][2:])
            print(json.dumps(row | {"depth": depth, "batch": n, "ms_tok": ms, "tok_s": 1e3 * n / ms}), flush=True)
        peer.close()
    for n in args.prefill:
        for block in args.block:
            peer = Peer(args, n, block=block)
            peer.run(min(n, 64), block)
            peer.clear()
            start = time.perf_counter()
            peer.run(n, block)
            print(json.dumps(row | {"prefill": n, "block": block, "tok_s": n / (time.perf_counter() - start)}), flush=True)
            peer.close()


if __name__ == "__main__":
    main()
