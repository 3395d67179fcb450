#!/usr/bin/env python3
"""llama.cpp reads a text once and goes on from what it saved, for comparison with `butler ask`: llama_state_seq_save_file and _load_file.

    pip install xllamacpp llama_cpp_py_sync cffi
    bench/peer_llama_store.py MODEL.gguf read FILE.state < TEXT          reads the text, saves the state
    bench/peer_llama_store.py MODEL.gguf ask FILE.state "QUESTION"       restores it, reads the question

Prints one JSON object: tokens, seconds of each part, and of the process up to the first token (load_s: of the model; the interpreter's start is not
counted).
"""
import argparse
import glob
import json
import os
import sys
import time

START = time.perf_counter()

import xllamacpp
from llama_cpp_py_sync import _cffi_bindings

ffi = _cffi_bindings.get_ffi()
lib = ffi.dlopen(glob.glob(os.path.join(os.path.dirname(xllamacpp.__file__), "xllamacpp*.so"))[0])
BLOCK = 512  # tokens of a pass


def tokenize(model, text):
    ids = ffi.new("llama_token[]", len(text) + 16)
    n = lib.llama_tokenize(lib.llama_model_get_vocab(model), text, len(text), ids, len(ids), False, False)
    return list(ids[0:n])


def make_context(model, n_ctx, threads):
    params = lib.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = params.n_ubatch = BLOCK
    params.n_threads = params.n_threads_batch = threads
    return lib.llama_init_from_model(model, params)


def decode(context, ids, first):
    """Reads ids, which follow `first` others; the last one gives logits."""
    batch = lib.llama_batch_init(BLOCK, 0, 1)
    for begin in range(0, len(ids), BLOCK):
        part = ids[begin:begin + BLOCK]
        batch.n_tokens = len(part)
        for i, token in enumerate(part):
            batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, first + begin + i, 1
            batch.seq_id[i][0], batch.logits[i] = 0, begin + i + 1 == len(ids)
        if lib.llama_decode(context, batch):
            sys.exit("llama_decode failed")
    lib.llama_get_logits_ith(context, -1)


def timed(seconds, name, fn):
    begin = time.perf_counter()
    result = fn()
    seconds[name] = round(time.perf_counter() - begin, 3)
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("what", choices=["read", "ask"])
    parser.add_argument("file")
    parser.add_argument("question", nargs="?", default="")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    args = parser.parse_args()
    quiet = ffi.callback("void(int, const char *, void *)", lambda level, text, user: None)
    lib.llama_log_set(ffi.cast("ggml_log_callback", quiet), ffi.NULL)
    lib.llama_backend_init()
    params, seconds = lib.llama_model_default_params(), {}
    params.n_gpu_layers = 0
    model = timed(seconds, "load_s", lambda: lib.llama_model_load_from_file(args.model.encode(), params))
    if args.what == "read":
        ids = tokenize(model, sys.stdin.buffer.read())
        context = make_context(model, args.context, args.threads)
        timed(seconds, "read_s", lambda: decode(context, ids, 0))
        seconds["first_token_s"] = round(time.perf_counter() - START, 3)
        timed(seconds, "save_s", lambda: lib.llama_state_seq_save_file(context, args.file.encode(), 0, ids, len(ids)))
    else:
        room, count = 1 << 17, ffi.new("size_t *")
        saved = ffi.new("llama_token[]", room)
        context = make_context(model, args.context, args.threads)
        if not timed(seconds, "restore_s", lambda: lib.llama_state_seq_load_file(context, args.file.encode(), 0, saved, room, count)):
            sys.exit(f"{args.file}: llama.cpp does not restore it")
        ids = tokenize(model, args.question.encode())
        timed(seconds, "read_s", lambda: decode(context, ids, count[0]))
        seconds["first_token_s"] = round(time.perf_counter() - START, 3)
    print(json.dumps({"tokens": len(ids), "bytes": os.path.getsize(args.file), **seconds}))


if __name__ == "__main__":
    main()
