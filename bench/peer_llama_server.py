#!/usr/bin/env python3
"""llama.cpp's server, from the PyPI package xllamacpp, for bench/serve_load.py --peer: serves until it is ended.

    bench/peer_llama_server.py MODEL.gguf PORT N_PARALLEL CONTEXT_OF_EACH THREADS [CACHE_REUSE]

CACHE_REUSE, its --cache-reuse: pieces of so many tokens that stand at another place than before are moved there, not read (approximate).
"""
import signal
import sys

import xllamacpp


def main():
    model, port, parallel, context, threads = sys.argv[1], *map(int, sys.argv[2:6])
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.hostnames, params.port = ["127.0.0.1"], port
    params.n_parallel, params.n_ctx = parallel, parallel * context
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_cache_reuse = int(sys.argv[6]) if len(sys.argv) > 6 else 0
    params.warmup = False
    params.verbosity = 0
    server = xllamacpp.Server(params)
    print(f"llama.cpp (xllamacpp {xllamacpp.__version__}) serves at {server.listening_address}", flush=True)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])


if __name__ == "__main__":
    main()
