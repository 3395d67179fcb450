#!/usr/bin/env python3
"""How fast OpenVINO GenAI reads prompts of a GGUF file: a peer that bench/prompts.py sets beside us.

    pip install openvino-genai
    bench/peer_openvino.py MODEL.gguf --prefill 512,2048 [--threads N]

One JSON object a line, as bench/peer_llama_cpp.py has them: {"engine", "model", "prefill", "tok_s"}. The prompts are random tokens; the time is
that of the first token, of the second prompt of each length: the first one's has the compiling of kernels. It loads types Q8_0, Q4_0 and Q4_1 of
the architectures llama, qwen2 and qwen3; with others it ends with an error."""
import argparse
import importlib.metadata
import json
import time
from pathlib import Path

import numpy as np
import openvino
import openvino_genai

VOCABULARY = (1000, 30000)  # tokens that every model has and none of which is special


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--prefill", type=lambda text: [int(n) for n in text.split(",")], required=True)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    pipeline = openvino_genai.LLMPipeline(args.model, "CPU", INFERENCE_NUM_THREADS=args.threads)
    config = openvino_genai.GenerationConfig(max_new_tokens=1, do_sample=False)
    random = np.random.default_rng(1)
    row = {"engine": f"OpenVINO GenAI {importlib.metadata.version('openvino-genai')}", "model": Path(args.model).stem, "threads": args.threads}
    for n in args.prefill:
        for turn in range(2):
            ids = random.integers(*VOCABULARY, (1, n), dtype=np.int64)
            prompt = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
            start = time.perf_counter()
            pipeline.generate(prompt, config)
            seconds = time.perf_counter() - start
        print(json.dumps(row | {"prefill": n, "tok_s": n / seconds}), flush=True)


if __name__ == "__main__":
    main()
