#!/usr/bin/env python3
"""Writes tests/corpus: small valid inputs from which the fuzz targets start. Run it from the root of the repository, with
./butler built, when a format changes; what fuzzing finds is added by hand:

    build/fuzz/fuzz/fuzz_gguf -merge=1 tests/corpus/gguf build/corpus/fuzz_gguf
"""
import contextlib
import http.client
import json
import random
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from gguf_file import ARRAY, F32, STRING, U32, Gguf  # noqa: E402

CORPUS = ROOT / "tests" / "corpus"
N_EMBD, N_FF, N_HEADS, N_KV_HEADS, N_VOCAB = 8, 8, 2, 1, 9


def floats(random_, *dims):
    n = 1
    for d in dims:
        n *= d
    return list(dims), [random_.gauss(0, 0.5) for _ in range(n)]


def tiny_model(arch, tokenizer):
    r, g = random.Random(7), Gguf()
    g.put("general.architecture", STRING, arch)
    for key, value in (("context_length", 16), ("embedding_length", N_EMBD), ("block_count", 1), ("feed_forward_length", N_FF),
                       ("attention.head_count", N_HEADS), ("attention.head_count_kv", N_KV_HEADS if arch != "gpt2" else N_HEADS)):
        g.put(f"{arch}.{key}", U32, value)
    eps = "layer_norm_epsilon" if arch == "gpt2" else "layer_norm_rms_epsilon"
    g.put(f"{arch}.attention.{eps}", F32, 1e-5)
    g.put("tokenizer.ggml.model", STRING, tokenizer)
    if tokenizer == "llama":
        tokens, types = ["<unk>", "<s>", "</s>", "<0x61>", "<0xFF>", "\u2581", "a", "b", "\u2581a"], [2, 3, 3, 6, 6, 1, 1, 1, 1]
        g.put("tokenizer.ggml.scores", ARRAY, (F32, [0.0, 0, 0, 0, 0, -1, -2, -3, -4]))
    else:
        tokens, types = ["<|endoftext|>", "a", "b", "\u0120", "ab", "\u0120a", "\u00ff", "!", "c"], [3, 1, 1, 1, 1, 1, 1, 1, 1]
        g.put("tokenizer.ggml.pre", STRING, "gpt-2")
        g.put("tokenizer.ggml.merges", ARRAY, (STRING, ["a b", "\u0120 a"]))
    g.put("tokenizer.ggml.tokens", ARRAY, (STRING, tokens))
    g.put("tokenizer.ggml.token_type", ARRAY, (5, types))
    g.put("tokenizer.ggml.bos_token_id", U32, 0 if tokenizer == "gpt2" else 1)
    g.put("tokenizer.ggml.eos_token_id", U32, 0 if tokenizer == "gpt2" else 2)
    kv = N_EMBD // N_HEADS * (N_HEADS if arch == "gpt2" else N_KV_HEADS)
    vectors = ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"]
    matrices = {"token_embd": (N_EMBD, N_VOCAB), "blk.0.ffn_up": (N_EMBD, N_FF), "blk.0.ffn_down": (N_FF, N_EMBD),
                "blk.0.attn_output": (N_EMBD, N_EMBD)}
    if arch == "gpt2":
        matrices |= {"position_embd": (N_EMBD, 16), "blk.0.attn_qkv": (N_EMBD, N_EMBD + 2 * kv)}
    else:
        matrices |= {"blk.0.ffn_gate": (N_EMBD, N_FF), "blk.0.attn_q": (N_EMBD, N_EMBD), "blk.0.attn_k": (N_EMBD, kv),
                     "blk.0.attn_v": (N_EMBD, kv)}
    for name in vectors:
        g.put_tensor(name + ".weight", *floats(r, N_EMBD))
    for name, dims in matrices.items():
        g.put_tensor(name + ".weight", *floats(r, *dims))
        if arch == "gpt2" and name.startswith("blk"):
            g.put_tensor(name + ".bias", *floats(r, dims[1]))
    if arch == "gpt2":
        for name in vectors:
            g.put_tensor(name + ".bias", *floats(r, N_EMBD))
    return g


# Types in blocks of up to 256: number in a GGUF file, bytes of 256 weights.
TYPES = {"q2_k": (10, 84), "q3_k": (11, 110), "iq4_nl": (20, 144), "iq4_xs": (23, 136), "tq1_0": (34, 54), "tq2_0": (35, 66), "mxfp4": (39, 136)}


def typed_model(kind, row_bytes):
    """The FFN's second matrix is of this type; its blocks are of equal bytes, whose scales are small numbers in all types."""
    model, n_ff = tiny_model("llama", "llama"), 256
    model.put("llama.feed_forward_length", U32, n_ff)
    for name in ("up", "gate"):
        model.tensors[f"blk.0.ffn_{name}.weight"] = [N_EMBD, n_ff], 1, struct.pack(f"<{N_EMBD * n_ff}e", *[0.25] * (N_EMBD * n_ff))
    model.tensors["blk.0.ffn_down.weight"] = [n_ff, N_EMBD], kind, bytes([0x11]) * (N_EMBD * row_bytes)
    return model


def split_model(n):
    """The first of n files that says so and has all tensors: valid alone for n = 1, else the others are missed."""
    model = tiny_model("llama", "llama")
    for key, kind, value in (("no", 2, 0), ("count", 2, n), ("tensors.count", 5, len(model.tensors))):
        model.put(f"split.{key}", kind, value)
    return model


def gguf_seeds(folder):
    for name, (kind, row_bytes) in TYPES.items():
        typed_model(kind, row_bytes).write(folder / name)
        subprocess.run([ROOT / "butler", "logits", "-m", folder / name, "--ids", "1,2,3"], capture_output=True, check=True)
    for n in (1, 2):
        split_model(n).write(folder / f"split-{n}")
    for arch, tokenizer in (("llama", "llama"), ("llama", "gpt2"), ("qwen2", "gpt2"), ("gpt2", "gpt2")):
        model = tiny_model(arch, tokenizer)
        if arch == "qwen2":
            r = random.Random(8)
            for part, n in (("q", N_EMBD), ("k", N_EMBD // N_HEADS), ("v", N_EMBD // N_HEADS)):
                model.put_tensor(f"blk.0.attn_{part}.bias", *floats(r, n))
        path = folder / f"{arch}-{tokenizer}"
        model.write(path)
        run = subprocess.run([ROOT / "butler", "logits", "-m", path, "--ids", "1,2,3"], capture_output=True, text=True)
        assert run.returncode == 0, f"{path}: {run.stderr}"


def tokenizer_seeds(folder):
    texts = ["Hello, world! It's 1234 o'clock.", "  two  spaces\n\n\ttab ", "caf\u00e9 \u4f60\u597d \U0001f600", "<s>a</s><|endoftext|>", "\xff\xfe"]
    for i, text in enumerate(texts):
        for which in (0, 1, 6, 7):
            raw = text.encode("latin-1") if text == "\xff\xfe" else text.encode()
            (folder / f"text-{i}-{which}").write_bytes(bytes([which]) + raw)


def policy_seeds(folder):
    listed = subprocess.run([ROOT / "butler", "policies", "--json"], capture_output=True, text=True, check=True).stdout
    rows = [json.loads(line) for line in listed.splitlines()]
    texts = [row["defaults"] for row in rows] + ["h2o+vatp:budget=0.5,sinks=20", "quest:mass=0.95", "quest:preset=code", "oracle:share=query"]
    for i, text in enumerate(texts):
        (folder / f"policy-{i:02}").write_text(text)


def session_seeds(folder):
    for policy in ("full", "h2o:budget=4", "quest:budget=16,dense=0", "fier:budget=4,dense=0", "streaming:budget=4,sinks=1,rope=cache",
                   "tinyserve:budget=4,page=2,every=3"):
        with tempfile.NamedTemporaryFile() as file:
            subprocess.run([ROOT / "butler", "run", "-m", ROOT / "tests/data/models/llama-gqa.gguf", "-p", "ab", "-n", "4", "-c", "16",
                            "--kv", policy, "--temp", "0", "--save-session", file.name], check=True, capture_output=True)
            # The target computes the digest itself.
            (folder / policy.split(":")[0]).write_bytes(Path(file.name).read_bytes()[:-8])


# What clients send, each to an endpoint: the byte that fuzz_request.c takes for it, and a body.
TOKENIZE, DETOKENIZE, APPLY_TEMPLATE, COMPLETION, CHAT, NATIVE, ANTHROPIC, RESPONSES, EMBEDDINGS, COUNT_TOKENS = range(10)
MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
CLIENT_BODIES = {
    "openai-completion": (COMPLETION, {"model": "m", "prompt": "a", "max_tokens": 3, "stream": False, "stop": ["\n"], "logit_bias": {"5": -100}}),
    "openai-chat": (CHAT, {"messages": MESSAGES, "model": "m", "logprobs": True, "top_logprobs": 3, "seed": 1, "stream": True,
                           "stream_options": {"include_usage": True}, "max_completion_tokens": 4, "response_format": {"type": "text"}}),
    "openai-tools": (CHAT, {"messages": [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]},
                                         {"role": "tool", "tool_call_id": "1", "content": "x"}], "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
                                 "tool_choice": "auto", "parallel_tool_calls": False, "reasoning_format": "auto"}),
    "prefill": (CHAT, {"messages": [*MESSAGES, {"role": "assistant", "content": "It"}], "chat_template_kwargs": {"enable_thinking": False}}),
    "lm-eval": (COMPLETION, {"model": "m", "prompt": [[1, 2, 3], [4, 5]], "temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}),
    "lm-eval-generate": (COMPLETION, {"model": "m", "prompt": [[1, 2]], "max_tokens": 256, "temperature": 0, "stop": ["\n\n", "</s>"], "seed": 1234}),
    "vllm-bench": (COMPLETION, {"model": "m", "prompt": "a b", "repetition_penalty": 1.0, "max_tokens": 8, "logprobs": None, "stream": True,
                                "stream_options": {"include_usage": True}, "ignore_eos": True}),
    "guidellm": (CHAT, {"model": "m", "messages": MESSAGES, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True},
                        "max_tokens": 8, "max_completion_tokens": 8, "stop": None, "ignore_eos": True}),
    "llama.cpp-web": (CHAT, {"messages": MESSAGES, "stream": True, "cache_prompt": True, "samplers": "edkypmxt", "temperature": 0.8, "dynatemp_range": 0,
                             "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1, "xtc_probability": 0, "xtc_threshold": 0.1,
                             "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0, "max_tokens": -1}),
    "llama.cpp": (NATIVE, {"prompt": "a", "n_predict": -1, "n_probs": 2, "logit_bias": [[5, 1.5], [6, False]], "min_tokens": 2, "n": 2, "n_cmpl": 2}),
    "policy": (NATIVE, {"prompt": [1, 5.0, 7], "kv": {"policy": "quest:budget=16"}, "add_special_tokens": False, "best_of": 1}),
    "grammar": (NATIVE, {"prompt": "a", "grammar": "root ::= \"a\"", "json_schema": {"type": "object"}}),
    "every-field": (COMPLETION, {"prompt": ["a", 5], "max_tokens": 5, "max_completion_tokens": 4, "n_predict": 3, "min_tokens": 1, "temperature": 0.5, "top_k": 5,
                                 "top_p": 0.9, "min_p": 0.1, "typical_p": 0.9, "repeat_penalty": 1.1, "repetition_penalty": 1.2, "frequency_penalty": 0.1,
                                 "presence_penalty": 0.2, "repeat_last_n": 8, "logit_bias": {"5": 1, "a": False}, "seed": 7, "n": 2, "n_cmpl": 2, "best_of": 1,
                                 "stop": ["a", ""], "stream": True, "stream_options": {"include_usage": True}, "cache_prompt": False, "ignore_eos": True,
                                 "logprobs": True, "top_logprobs": 2, "echo": True, "kv": {"policy": "full"}, "length_penalty": 1, "tool_choice": "none"}),
    "tokenize": (TOKENIZE, {"content": "It was\u00e9 <s>", "add_special": True, "parse_special": False, "with_pieces": True}),
    "tokenize-vllm": (TOKENIZE, {"model": "m", "prompt": "It was", "add_special_tokens": False}),
    "detokenize": (DETOKENIZE, {"tokens": [1, 5, 200, 201, 266]}),
    "anthropic": (ANTHROPIC, {"model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "Be", "cache_control": {"type": "ephemeral"}}],
                              "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "user", "content": "b"},
                                           {"role": "assistant", "content": "It"}], "stop_sequences": ["x", ""], "temperature": 1, "top_p": 0.9, "top_k": 5,
                              "stream": True, "metadata": {"user_id": "1"}, "thinking": {"type": "disabled"}, "tool_choice": {"type": "auto"}}),
    "anthropic-tools": (ANTHROPIC, {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f", "input_schema": {}}]}),
    "count-tokens": (COUNT_TOKENS, {"model": "m", "system": "Be brief.", "messages": [{"role": "user", "content": "a"}]}),
    "responses": (RESPONSES, {"model": "m", "input": [{"role": "developer", "content": "Be"}, {"type": "message", "role": "user",
                              "content": [{"type": "input_text", "text": "a"}]}, {"role": "assistant", "content": [{"type": "output_text", "text": "b"}]}],
                              "instructions": "brief", "max_output_tokens": 4, "temperature": 0, "top_p": 1, "stream": True, "store": True, "metadata": {"a": "b"},
                              "text": {"format": {"type": "text"}, "verbosity": "medium"}, "reasoning": {"effort": None}, "truncation": "disabled",
                              "include": ["reasoning.encrypted_content"], "tools": [], "tool_choice": "auto", "parallel_tool_calls": True}),
    "responses-schema": (RESPONSES, {"input": "a", "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}, "previous_response_id": "r"}),
    "embeddings": (EMBEDDINGS, {"model": "m", "input": ["a", [5, 6], "b"], "encoding_format": "base64", "dimensions": 64, "pooling": "last"}),
    "apply-template": (APPLY_TEMPLATE, {"messages": MESSAGES, "add_generation_prompt": False}),
}


def request_seeds(folder):
    for name, (endpoint, body) in CLIENT_BODIES.items():
        (folder / name).write_bytes(bytes([endpoint]) + json.dumps(body).encode())


# Answers with calls and reasoning: the two bytes that fuzz_tools.c takes for what to look for and how to cut it, and a text.
ANSWERS = {
    "tagged": (0x11, 3, '<think>a</think>\n<tool_call>\n{"name": "f", "arguments": {"a": "}\\""}}\n</tool_call> b'),
    "bare": (0x02, 0, '<|python_tag|>{"type": "function", "name": "f", "parameters": {}}; {"name": "f"}'),
    "mistral": (0x04, 5, 'a [TOOL_CALLS][{"name": "f", "arguments": {}, "id": "abcdefghi"}, {"name": "get_weather", "arguments": {"c": [1]}}]'),
    "mistral_args": (0x24, 1, '[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]f[ARGS]{}'),
    "action": (0x4f, 0x82, '<|START_THINKING|>x<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>'),
    "open": (0x11, 0x40, 'a</think>b <tool_call>{"name": "x"}</tool_call>'),
}


def answer_seeds(folder):
    for name, (forms, cut, text) in ANSWERS.items():
        (folder / name).write_bytes(bytes([forms, cut]) + text.encode())


def sent_by(client):
    """The bytes that client(port) sends."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=client, args=(listener.getsockname()[1],), daemon=True)
        thread.start()
        connection = listener.accept()[0]
        connection.settimeout(0.5)
        sent = b""
        with contextlib.suppress(TimeoutError):
            while piece := connection.recv(65536):
                sent += piece
        connection.close()
        thread.join()
    return sent


def post(port, body, **more):
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("POST", "/v1/completions", body, {"Authorization": "Bearer k", "Content-Type": "application/json"}, **more)
        connection.getresponse()


def http_seeds(folder):
    body = b'{"prompt": "a"}'
    clients = {"http.client": lambda port: post(port, body), "http.client-chunked": lambda port: post(port, iter([body[:5], body[5:]]), encode_chunked=True)}
    for i, flags in enumerate((["-d", body], ["-H", "Transfer-Encoding: chunked", "-H", "Origin: http://a", "-d", body], ["-0", "-I"], ["-X", "OPTIONS"])):
        if shutil.which("curl"):
            clients[f"curl-{i}"] = lambda port, flags=flags: subprocess.run(["curl", "-s", *flags, f"http://127.0.0.1:{port}/v1/completions?a=b"])
    for name, client in clients.items():
        (folder / name).write_bytes(sent_by(client))
    import test_serve_hostile as hostile
    cases = {**{name: data for name, (_, data) in hostile.REFUSED.items()}, **{name: data for name, (_, data) in hostile.ACCEPTED.items()}}
    for name, data in cases.items():
        if len(data) < 2000:
            (folder / re.sub(r"\W+", "-", name).strip("-")).write_bytes(data + hostile.LAST)


def main():
    for name, write in (("gguf", gguf_seeds), ("tokenizer", tokenizer_seeds), ("policy", policy_seeds), ("session", session_seeds),
                        ("http", http_seeds), ("request", request_seeds), ("tools", answer_seeds)):
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        write(folder)
        print(f"{name}: {sum(1 for _ in folder.iterdir())} seeds, {sum(f.stat().st_size for f in folder.iterdir())} bytes")


if __name__ == "__main__":
    main()
