"""Writes tests/data: small random models as GGUF files, and what PyTorch computes with them.

This is the outside view: every architecture is run by transformers, every file is written and every quantised weight
decoded by the gguf package, so none of butler's own code has a part in what its tests expect. The output is committed;
run this only to add a case.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -r tools/requirements.txt
    /tmp/venv/bin/python tools/make_test_models.py --out tests/data --weights ../shared/data/weights

A random model is only a test if every part of it matters. So weights are scaled to give attention that is far from
uniform, norms are not ones and biases not zeros, and before a case is written the script checks that taking any one
parameter away, or the rope scaling, moves the logits by a hundred times the tolerance or more.
"""

import argparse
import copy
import math
import os
import struct
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as QT
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.llama.modeling_llama import eager_attention_forward
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Phi3Config, Phi3ForCausalLM,
                          Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

N_VOCAB = 267  # odd, so that kernels that take rows by four or eight meet a remainder
SENSITIVITY = 1e-2

# Engines that keep activations in float32 come within 1e-5; a wrong epsilon or a different GELU is only seen below 1e-4.
F32_TOLERANCE, HALF_TOLERANCE, QUANT_TOLERANCE = 2e-5, 1e-3, 1e-4
# An element whose last bits differ may be rounded the other way; a few such are allowed for.
KV_TOLERANCE = {"f16": 3e-4, "q8_0": 5e-3}


# ------------------------------------------------------------------------------------------------ the models

def layer_names(arch, i, config):
    """(GGUF name, transformers name, how the one's layout follows from the other's) of one layer."""
    b, h = f"blk.{i}.", f"model.layers.{i}."
    both = lambda g, t, how="same": (b + g + ".weight", h + t + ".weight", how)
    if arch == "gpt2":
        h = f"transformer.h.{i}."
        names = []
        for g, t, how in (("attn_norm", "ln_1", "same"), ("attn_qkv", "attn.c_attn", "transpose"),
                          ("attn_output", "attn.c_proj", "transpose"), ("ffn_norm", "ln_2", "same"),
                          ("ffn_up", "mlp.c_fc", "transpose"), ("ffn_down", "mlp.c_proj", "transpose")):
            names += [(b + g + ".weight", h + t + ".weight", how), (b + g + ".bias", h + t + ".bias", "same")]
        return names
    names = [both("attn_norm", "input_layernorm"), both("ffn_norm", "post_attention_layernorm"),
             both("attn_output", "self_attn.o_proj"), both("ffn_down", "mlp.down_proj")]
    if arch == "phi3":
        return names + [both("attn_qkv", "self_attn.qkv_proj"), both("ffn_up", "mlp.gate_up_proj")]
    # llama's rope turns neighbouring elements in a GGUF file and halves in transformers
    permute = arch == "llama"
    names += [both("attn_q", "self_attn.q_proj", f"heads {config.num_attention_heads}" if permute else "same"),
              both("attn_k", "self_attn.k_proj", f"heads {config.num_key_value_heads}" if permute else "same"),
              both("attn_v", "self_attn.v_proj"), both("ffn_gate", "mlp.gate_proj"), both("ffn_up", "mlp.up_proj")]
    if getattr(config, "attention_bias", False) and arch == "llama":
        names += [(g[:-6] + "bias", t[:-6] + "bias", how) for g, t, how in list(names) if "norm" not in g]
    if arch == "qwen2":
        names += [(b + f"attn_{x}.bias", h + f"self_attn.{x}_proj.bias", "same") for x in "qkv"]
    if arch == "qwen3":
        names += [both("attn_q_norm", "self_attn.q_norm"), both("attn_k_norm", "self_attn.k_norm")]
    return names


def tensor_names(arch, config):
    if arch == "gpt2":
        names = [("token_embd.weight", "transformer.wte.weight", "same"), ("position_embd.weight", "transformer.wpe.weight", "same"),
                 ("output_norm.weight", "transformer.ln_f.weight", "same"), ("output_norm.bias", "transformer.ln_f.bias", "same")]
    else:
        names = [("token_embd.weight", "model.embed_tokens.weight", "same"), ("output_norm.weight", "model.norm.weight", "same")]
    if not config.tie_word_embeddings:
        names.append(("output.weight", "lm_head.weight", "same"))
    for i in range(config.num_hidden_layers):
        names += layer_names(arch, i, config)
    return names


def to_gguf(w, how):
    if how == "transpose":
        return np.ascontiguousarray(w.T)
    if how.startswith("heads"):
        n = int(how.split()[1])
        return np.ascontiguousarray(w.reshape(n, 2, w.shape[0] // n // 2, -1).swapaxes(1, 2).reshape(w.shape))
    return w


def from_gguf(w, how):
    if how == "transpose":
        return np.ascontiguousarray(w.T)
    if how.startswith("heads"):
        n = int(how.split()[1])
        return np.ascontiguousarray(w.reshape(n, w.shape[0] // n // 2, 2, -1).swapaxes(1, 2).reshape(w.shape))
    return w


CLASSES = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
           "qwen3": (Qwen3Config, Qwen3ForCausalLM), "phi3": (Phi3Config, Phi3ForCausalLM), "gpt2": (GPT2Config, GPT2LMHeadModel)}


def build(arch, config_args):
    config_class, model_class = CLASSES[arch]
    config = config_class(vocab_size=N_VOCAB, attn_implementation="eager", pad_token_id=None, bos_token_id=None, eos_token_id=None,
                          **copy.deepcopy(config_args))
    for key, value in config_args.get("rope_parameters", {}).items():
        assert config.rope_parameters[key] == value, f"transformers replaced {key} = {value} by {config.rope_parameters[key]}"
    torch.manual_seed(0)
    return model_class(config).eval()


def random_gguf_weight(name, shape, tied, rng):
    """A tensor in GGUF layout. The gains make q.k/sqrt(d) spread by about 2 and give each block a say in the residual."""
    normal = lambda std: (rng.standard_normal(shape) * std).astype(np.float32)
    part = name.split(".")[-2]
    if name.endswith(".bias"):
        return normal(0.3)
    if part in ("attn_q_norm", "attn_k_norm"):
        return (1.4 * (1 + 0.3 * rng.standard_normal(shape))).astype(np.float32)
    if part.endswith("norm"):
        return (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32)
    if part in ("token_embd", "position_embd"):
        return normal(0.5 if tied or part == "position_embd" else 1.0)
    gain = {"attn_q": 1.4, "attn_k": 1.4, "attn_qkv": 1.3, "attn_v": 1.2, "attn_output": 1.0, "ffn_gate": 1.4, "ffn_up": 1.3,
            "ffn_down": 1.3, "output": 2.0}[part]
    return normal(gain / math.sqrt(shape[-1]))


# ---------------------------------------------------------------------------------------------- the weights

K_BLOCK = {QT.Q4_K: 144, QT.Q5_K: 176, QT.Q6_K: 210}


def random_k_blocks(qtype, shape, std, rng):
    """Random valid blocks of a K type, since the gguf package decodes but does not encode them: random quants and
    sub-block scales, and half scales that give the wanted spread. Minima near the scales keep the mean of a sub-block
    small, as real weights do: rows of large constant stretches would add up to nothing but themselves."""
    n = shape[0] * shape[1] // 256
    blocks = rng.integers(0, 256, (n, K_BLOCK[qtype]), dtype=np.uint8)
    if qtype != QT.Q6_K:  # 4 bytes of scales, 4 of minima, 4 that hold low halves of both
        blocks[:, 8:12] = blocks[:, 4:8] ^ rng.integers(0, 8, (n, 4), dtype=np.uint8)
        low = blocks[:, 12:16] & 15
        blocks[:, 12:16] = low | (low ^ rng.integers(0, 8, (n, 4), dtype=np.uint8)) << 4
    spread = rng.uniform(0.5, 1.5, n)
    balance = rng.uniform(0.8, 1.2, n) * (7.5 if qtype == QT.Q4_K else 15.5)  # a minimum of about the mean quant

    def put(scale):
        half = lambda x: x.astype(np.float16).view(np.uint8).reshape(n, 2)
        if qtype == QT.Q6_K:
            blocks[:, 208:210] = half(spread * scale)
        else:
            blocks[:, 0:2] = half(spread * scale)
            blocks[:, 2:4] = half(spread * scale * balance)

    put(1.0)
    put(std / gguf.dequantize(blocks.reshape(shape[0], -1), qtype).std())
    return blocks.reshape(shape[0], -1)


def encode(w, qtype, rng):
    """(bytes as the gguf package wants them, the floats they stand for)."""
    if qtype == QT.F32:
        return w, w
    if qtype == QT.F16:
        data = w.astype(np.float16)
        return data, data.astype(np.float32)
    if qtype in K_BLOCK:
        data = random_k_blocks(qtype, w.shape, w.std(), rng)
    else:
        data = gguf.quantize(w, qtype)
    return data, gguf.dequantize(data, qtype).reshape(w.shape)


def type_of(case, name, shape):
    """Which type a tensor is stored in. Vectors stay F32, as converters write them, unless the case asks otherwise; rows a
    type's blocks do not divide fall back to Q8_0, as quantisers do."""
    qtype = case["types"](name) if callable(case.get("types")) else case.get("types", QT.F32)
    if len(shape) == 1:
        return case.get("vectors", QT.F32)
    if shape[-1] % gguf.GGML_QUANT_SIZES[qtype][0] != 0:
        return QT.Q8_0
    return qtype


def fill_model(case, model, rng):
    """Random weights into the model; what the file will hold, as (name, type, bytes)."""
    parameters = dict(model.named_parameters())
    stored = []
    tied = model.config.tie_word_embeddings
    with torch.no_grad():
        for name, hf_name, how in tensor_names(case["arch"], model.config):
            p = parameters.pop(hf_name)
            shape = to_gguf(p.numpy(), how).shape
            qtype = type_of(case, name, shape)
            data, floats = encode(random_gguf_weight(name, shape, tied, rng), qtype, rng)
            p.copy_(torch.from_numpy(from_gguf(floats, how).copy()))
            stored.append((name, qtype, data))
    assert not parameters, f"parameters that no tensor name covers: {list(parameters)}"
    return stored


# ------------------------------------------------------------------------------------------------- the files

def byte_letters():
    """GPT-2's printable stand-ins for the 256 bytes."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = {}, 256
    for b in range(256):
        letters[b] = chr(b) if b in plain else chr(spare)
        spare += b not in plain
    return [letters[b] for b in range(256)]


def add_tokenizer(writer, arch):
    """A vocabulary that can spell anything: 256 bytes and a few pieces."""
    pieces = ["\u2581", "e", "t", "h", "\u2581t", "he", "\u2581the", "\u2581a"]
    if arch in ("llama", "phi3"):
        tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)] + pieces
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(len(pieces))])
        writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * len(pieces))
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)
    else:
        merges = ["\u0120 t", "h e", "\u0120t he", "\u0120 a", "i n", "r e", "o n", "e r", "a t", "n d"]
        tokens = byte_letters() + [m.replace(" ", "") for m in merges] + ["<|endoftext|>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2" if arch == "gpt2" else "qwen2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * (len(tokens) - 1) + [3])
        writer.add_token_merges(merges)
        writer.add_bos_token_id(len(tokens) - 1)
        writer.add_eos_token_id(len(tokens) - 1)
    assert len(tokens) == N_VOCAB


def add_rope(writer, case, config):
    rope = case["config"].get("rope_parameters") or {}
    kind = rope.get("rope_type", "default")
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    n_rot = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    writer.add_rope_dimension_count(n_rot)
    writer.add_rope_freq_base(rope.get("rope_theta", 10000.0))
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    elif kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, n_rot))
    elif kind == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))


def llama3_factors(rope, n_rot):
    """By how much each pair's frequency is divided: 1 for short wavelengths, factor for long ones, between them a blend."""
    original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
    factors = []
    for i in range(0, n_rot, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / n_rot)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    assert len(set(factors)) > 3, "all three regimes of the factors must appear"
    return np.array(factors, dtype=np.float32)


def write_gguf(path, case, config, stored):
    writer = gguf.GGUFWriter(path, case["arch"])
    writer.add_name(case["name"])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_vocab_size(N_VOCAB)
    if case["arch"] == "gpt2":
        writer.add_feed_forward_length(config.n_inner)
        writer.add_layer_norm_eps(config.layer_norm_epsilon)
    else:
        writer.add_feed_forward_length(config.intermediate_size)
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        if "head_dim" in case["config"]:
            writer.add_key_length(config.head_dim)
            writer.add_value_length(config.head_dim)
        if "gguf_sliding_window" in case:
            writer.add_sliding_window(case["gguf_sliding_window"])
        add_rope(writer, case, config)
    add_tokenizer(writer, case["arch"])
    for name, qtype, data in stored:
        if qtype in (QT.F32, QT.F16):
            writer.add_tensor(name, data)
        else:
            writer.add_tensor(name, data, raw_dtype=qtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


# ------------------------------------------------------------------------------------- the expectations

def run(model, ids):
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_attentions=True, use_cache=False)
    return out.logits[0].double().numpy(), [a[0].double().numpy() for a in out.attentions or ()]


def relative(a, b):
    """The measure of the tests: per position max|a - b| / max|b|."""
    return np.abs(a - b).max(axis=-1) / np.abs(b).max(axis=-1)


def entropy_share(attentions):
    """Mean entropy of the attention rows as a share of a uniform row's: 1 would mean that keys do not matter."""
    shares = []
    for a in attentions:
        for t in range(8, a.shape[-1]):
            p = a[:, t, : t + 1]
            shares.append(-(p * np.log(np.maximum(p, 1e-30))).sum(-1) / math.log(t + 1))
    return float(np.mean(shares))


def check_sensitivity(case, model, ids, expected):
    """Every parameter, and the rope scaling, must move the logits; otherwise an engine that drops it would pass."""
    least = ("", 1e9)
    for name, p in model.named_parameters():
        saved = p.detach().clone()
        with torch.no_grad():
            p.fill_(1.0 if "norm" in name and name.endswith("weight") or ".ln_" in name and name.endswith("weight") else 0.0)
        change = relative(run(model, ids)[0], expected).max()
        with torch.no_grad():
            p.copy_(saved)
        least = min(least, (name, change), key=lambda x: x[1])
    if case["config"].get("rope_parameters", {}).get("rope_type", "default") != "default":
        args = copy.deepcopy(case["config"])
        rope = args["rope_parameters"]
        args["rope_parameters"] = {k: rope[k] for k in ("rope_theta", "partial_rotary_factor") if k in rope} | {"rope_type": "default"}
        others = [("rope scaling", args)]
        if "long_factor" in rope:
            swapped = copy.deepcopy(case["config"])
            swapped["rope_parameters"] |= {"long_factor": rope["short_factor"], "short_factor": rope["long_factor"]}
            others.append(("long or short factors", swapped))
        for what, other_args in others:
            other = build(case["arch"], other_args).double()
            other.load_state_dict(model.state_dict())
            least = min(least, (what, relative(run(other, ids)[0], expected).max()), key=lambda x: x[1])
    assert least[1] > SENSITIVITY, f"{case['name']}: {least[0]} hardly matters ({least[1]:.2e})"
    return least


def random_ids(n, rng):
    ids = rng.integers(0, N_VOCAB, n)
    ids[0], ids[n // 2], ids[n // 3] = 1, N_VOCAB - 1, 0
    ids[n - n // 4 : n - n // 8] = ids[n // 4 : n // 4 + n // 4 - n // 8]  # a stretch seen before, at other positions
    return [int(i) for i in ids]


def write_case(out, case, seed):
    rng = np.random.default_rng(seed)
    model = build(case["arch"], case["config"])
    stored = fill_model(case, model, rng)
    file = f"models/{case['name']}.gguf"
    write_gguf(out / file, case, model.config, stored)
    lines = []
    exact = copy.deepcopy(model).double()
    for suffix, n_ids, n_ctx in case["texts"]:
        name = case["name"] + suffix
        ids = random_ids(n_ids, rng)
        expected, attentions = run(exact, ids)
        single = relative(run(model, ids)[0], expected).max()
        assert single < 3e-5, f"{name}: float32 differs from float64 by {single:.2e}, too ill conditioned for a test"
        share = entropy_share(attentions)
        assert 0.1 < share < 0.85, f"{name}: attention entropy is {share:.2f} of uniform"
        least = check_sensitivity(case, exact, ids, expected)
        np.array(ids, dtype="<i4").tofile(out / f"logits/{name}.ids")
        print(f"{name:22s} {os.path.getsize(out / file) / 1024:6.0f} KB  entropy {share:.2f}  float32 within {single:.1e}  "
              f"least felt: {least[0]} {least[1]:.3f}")
        for kv_type in ("f32", *case.get("kv_types", ())):
            tolerance = case["tolerance"] if kv_type == "f32" else KV_TOLERANCE[kv_type]
            cached = expected
            if kv_type != "f32":
                assert relative(run_with_cache(exact, ids, "f32"), expected).max() < 1e-12
                cached = run_with_cache(exact, ids, kv_type)
                moved = relative(cached, expected).max()
                assert moved > 3 * tolerance, f"{name}: a cache in {kv_type} moves it by only {moved:.1e}"
            tag = name if kv_type == "f32" else f"{name}-kv-{kv_type}"
            cached.astype("<f4").tofile(out / f"logits/{tag}.f32")
            lines.append(f"{tag} {file} logits/{name}.ids logits/{tag}.f32 {n_ids} {N_VOCAB} {n_ctx} {kv_type} {tolerance:g}\n")
            if kv_type != "f32":
                single = relative(run_with_cache(model, ids, kv_type), cached).max()
                assert single < tolerance / 2, f"{tag}: float32 differs by {single:.1e}, an element rounded the other way"
                print(f"{tag:22s} moves the logits by {moved:.1e}; float32 within {single:.1e}")
    return lines


def half_cache(x):
    return x.to(torch.float16).to(x.dtype)


def q8_cache(x):
    """Blocks of 32: a half scale of max/127 and 8-bit multiples of it."""
    blocks = x.float().reshape(*x.shape[:-1], -1, 32)
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    quants = torch.where(scale > 0, blocks / scale, torch.zeros_like(blocks)).round()
    return (quants * scale.half().float()).reshape(x.shape).to(x.dtype)


CACHES = {"f32": lambda x: x, "f16": half_cache, "q8_0": q8_cache}


def run_with_cache(model, ids, kv_type):
    """The model attending to keys (after rope) and values as a cache of that type gives them back."""

    def attention(module, query, key, value, mask, **more):
        return eager_attention_forward(module, query, CACHES[kv_type](key), CACHES[kv_type](value), mask, **more)

    ALL_ATTENTION_FUNCTIONS.register("rounded", attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register("rounded", eager_mask)
    model.config._attn_implementation = "rounded"
    try:
        return run(model, ids)[0]
    finally:
        model.config._attn_implementation = "eager"


# ---------------------------------------------------------------------------------------------- the cases

def llama(n_embd, n_heads, n_kv, n_ff, layers=2, **more):
    return dict(hidden_size=n_embd, num_attention_heads=n_heads, num_key_value_heads=n_kv, intermediate_size=n_ff,
                num_hidden_layers=layers, max_position_embeddings=more.pop("ctx", 256), rms_norm_eps=more.pop("eps", 1e-5),
                tie_word_embeddings=more.pop("tied", True), **more)


def cases():
    """A case's place seeds its weights: new ones go to the end, so that the files of the others stay as they are."""
    rope = lambda kind, theta=10000.0, **more: {"rope_parameters": dict(rope_type=kind, rope_theta=theta, **more)}
    def case(name, arch, config, n_ids=48, tolerance=F32_TOLERANCE, texts=None, **more):
        return dict(name=name, arch=arch, config=config, tolerance=tolerance, texts=texts or [("", n_ids, 0)], **more)

    yield case("llama-mha", "llama", llama(48, 3, 3, 112, tied=False), n_ids=100)
    yield case("llama-gqa", "llama", llama(64, 4, 2, 96, tied=False, **rope("default", 500000.0)))
    yield case("llama-mqa", "llama", llama(64, 2, 1, 96, eps=1e-6), kv_types=["f16", "q8_0"])
    yield case("llama-headdim", "llama", llama(48, 3, 1, 112, head_dim=32))
    yield case("llama-linear", "llama", llama(64, 4, 2, 96, **rope("linear", factor=4.0)))
    yield case("llama-llama3", "llama", llama(64, 2, 1, 96, **rope(
        "llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)), n_ids=72)
    yield case("llama-yarn", "llama", llama(64, 2, 1, 96, ctx=4096, **rope(
        "yarn", factor=4.0, original_max_position_embeddings=1024)), n_ids=72)
    yield case("qwen2", "qwen2", llama(48, 3, 1, 112, **rope("default", 1000000.0)))
    yield case("qwen3", "qwen3", llama(48, 4, 2, 80, head_dim=32, eps=1e-6, **rope("default", 1000000.0)),
               kv_types=["f16", "q8_0"])
    yield case("phi3", "phi3", llama(64, 2, 2, 80, tied=False))
    yield case("phi3-partial", "phi3", llama(64, 2, 1, 80, **rope("default", partial_rotary_factor=0.75)), gguf_sliding_window=0)
    factors = lambda base, step: [base + step * i for i in range(16)]
    yield case("phi3-longrope", "phi3", llama(64, 2, 1, 80, ctx=128, **rope(
        "longrope", short_factor=factors(1.0, 0.05), long_factor=factors(1.5, 0.5), original_max_position_embeddings=32),
        original_max_position_embeddings=32), texts=[("-short", 32, 32), ("-long", 80, 128)], gguf_sliding_window=2047)
    gpt2 = dict(n_embd=48, n_head=3, n_layer=2, n_inner=112, n_positions=64, activation_function="gelu_new")
    yield case("gpt2", "gpt2", dict(gpt2, tie_word_embeddings=True))

    yield case("llama-f16", "llama", llama(64, 4, 2, 96, tied=False), tolerance=HALF_TOLERANCE, types=QT.F16)
    yield case("llama-bf16", "llama", llama(64, 4, 2, 96), tolerance=HALF_TOLERANCE, types=QT.BF16, vectors=QT.BF16)
    yield case("gpt2-f16", "gpt2", dict(gpt2, tie_word_embeddings=False), tolerance=HALF_TOLERANCE, types=QT.F16, vectors=QT.F16)
    small = llama(64, 2, 1, 160)
    for qtype in (QT.Q8_0, QT.Q4_0, QT.Q4_1, QT.Q5_0, QT.Q5_1):
        yield case(f"llama-{qtype.name.lower()}", "llama", small, tolerance=QUANT_TOLERANCE, types=qtype)
    # K types need rows of 256; two heads of 32 keep the file small and leave attn_output to the fallback type
    wide = llama(256, 2, 1, 256, layers=1, head_dim=32)
    for qtype in (QT.Q4_K, QT.Q5_K, QT.Q6_K):
        yield case(f"llama-{qtype.name.lower()}", "llama", wide, tolerance=QUANT_TOLERANCE, types=qtype)
    mixed = lambda name: QT.Q6_K if name.split(".")[-2] in ("attn_v", "ffn_down", "token_embd") else QT.Q4_K
    yield case("qwen2-mixed", "qwen2", wide_qwen2(wide), tolerance=QUANT_TOLERANCE, types=mixed)
    yield case("llama-bias", "llama", llama(48, 3, 3, 80, layers=1, attention_bias=True, mlp_bias=True))


def wide_qwen2(config):
    return {k: v for k, v in config.items() if k != "head_dim"} | dict(num_attention_heads=4)


# --------------------------------------------------------------------------------------- decoding the types

def write_dequant(out):
    """Rows of every type with the floats the gguf package reads in them, among them the rows a decoder gets wrong:
    all bits zero, all bits one in the quants, negative and subnormal scales."""
    rng = np.random.default_rng(77)
    lines = ["# type id n_rows n_cols bytes floats\n"]
    layout = {QT.Q8_0: (34, [0]), QT.Q4_0: (18, [0]), QT.Q4_1: (20, [0, 2]), QT.Q5_0: (22, [0]), QT.Q5_1: (24, [0, 2]),
              QT.Q4_K: (144, [0, 2]), QT.Q5_K: (176, [0, 2]), QT.Q6_K: (210, [208]), QT.Q2_K: (84, [80, 82]), QT.Q3_K: (110, [108]),
              QT.IQ4_NL: (18, [0]), QT.IQ4_XS: (136, [0]), QT.MXFP4: (17, []), QT.TQ1_0: (54, [52]), QT.TQ2_0: (66, [64])}
    for qtype in (QT.F32, QT.F16, QT.BF16, *layout):
        rows, cols = 4, 512
        if qtype == QT.F32:
            data = rng.standard_normal((rows, cols)).astype("<f4")
            floats = data
        elif qtype in (QT.F16, QT.BF16):
            bits = rng.integers(0, 65536, (rows, cols), dtype=np.uint16)
            exponent = 0x7C00 if qtype == QT.F16 else 0x7F80
            bits[(bits & exponent) == exponent] &= 0x83FF if qtype == QT.F16 else 0x807F  # finite only; these become subnormal
            bits[0, :4] = [0, 0x8000, 1, 0x8001]
            data = bits
            floats = bits.view(np.float16).astype(np.float32) if qtype == QT.F16 else (bits.astype(np.uint32) << 16).view(np.float32)
        else:
            size, scales = layout[qtype]
            block = gguf.GGML_QUANT_SIZES[qtype][0]
            blocks = rng.integers(0, 256, (rows, cols // block, size), dtype=np.uint8)
            blocks[1, 0] = 0
            blocks[1, 1] = 255
            if qtype == QT.MXFP4:  # a scale of one byte, here around those of trained models, a subnormal and a great one
                blocks[:, :, 0] = rng.integers(115, 125, (rows, cols // block))
                blocks[1, :2, 0] = [0, 250]
            for at in scales:
                value = rng.uniform(-0.02, 0.02, (rows, cols // block)).astype(np.float16)
                value[2, 0] = 3e-6
                value[2, 1] = -1.0
                blocks[:, :, at : at + 2] = value.view(np.uint8).reshape(rows, cols // block, 2)
            data = blocks.reshape(rows, -1)
            floats = gguf.dequantize(data, qtype)
        assert floats.shape == (rows, cols) and np.isfinite(floats).all()
        name = qtype.name.lower()
        data.tofile(out / f"dequant/{name}.bin")
        floats.astype("<f4").tofile(out / f"dequant/{name}.f32")
        lines.append(f"{qtype.name} {int(qtype)} {rows} {cols} dequant/{name}.bin dequant/{name}.f32\n")
    (out / "dequant/manifest.txt").write_text("".join(lines))


# ------------------------------------------------------------------------------------------- a trained model

def load_llama2c(path):
    """A llama2.c checkpoint as a transformers model. Its rope turns neighbouring elements."""
    raw = path.read_bytes()
    dim, hidden, layers, heads, kv, vocab, ctx = struct.unpack("<7i", raw[:28])
    flat = np.frombuffer(raw, "<f4", offset=28)
    at = 0

    def take(*shape):
        nonlocal at
        at += math.prod(shape)
        return flat[at - math.prod(shape) : at].reshape(shape).copy()

    head_dim = dim // heads
    w = {"embed": take(vocab, dim), "input_layernorm": take(layers, dim), "self_attn.q_proj": take(layers, dim, dim),
         "self_attn.k_proj": take(layers, kv * head_dim, dim), "self_attn.v_proj": take(layers, kv * head_dim, dim),
         "self_attn.o_proj": take(layers, dim, dim), "post_attention_layernorm": take(layers, dim),
         "mlp.gate_proj": take(layers, hidden, dim), "mlp.down_proj": take(layers, dim, hidden), "mlp.up_proj": take(layers, hidden, dim),
         "norm": take(dim)}
    take(ctx, head_dim)  # cosines and sines
    assert at == flat.size, "a shared classifier ends the file"
    model = LlamaForCausalLM(LlamaConfig(vocab_size=vocab, attn_implementation="eager", **llama(
        dim, heads, kv, hidden, layers=layers, ctx=ctx, rope_parameters=dict(rope_type="default", rope_theta=10000.0)))).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.from_numpy(w.pop("embed")))
        model.model.norm.weight.copy_(torch.from_numpy(w.pop("norm")))
        for i, layer in enumerate(model.model.layers):
            for name, values in w.items():
                how = {"self_attn.q_proj": f"heads {heads}", "self_attn.k_proj": f"heads {kv}"}.get(name, "same")
                layer.get_parameter(name + ".weight").copy_(torch.from_numpy(from_gguf(values[i], how)))
    return model


def load_vocabulary(path):
    raw, at, tokens = path.read_bytes(), 4, []
    while at < len(raw):
        score, n = struct.unpack_from("<fi", raw, at)
        tokens.append((raw[at + 8 : at + 8 + n], score))
        at += 8 + n
    return tokens


def encode_text(tokens, text):
    """SentencePiece's merging: the best-scoring neighbours first."""
    index = {t: i for i, (t, _) in enumerate(tokens)}
    ids = [index[bytes([b])] for b in (" " + text).encode()]
    while True:
        pairs = [(tokens[i][1], -n, i) for n in range(len(ids) - 1)
                 if (i := index.get(tokens[ids[n]][0] + tokens[ids[n + 1]][0])) is not None]
        if not pairs:
            return [1] + ids
        _, n, i = max(pairs)
        ids[-n : -n + 2] = [i]


def write_story(out, weights, n_new=240):
    model = load_llama2c(weights / "stories260K.bin")
    tokens = load_vocabulary(weights / "tok512.bin")
    start = "Once upon a time, there was a little girl named Lily."
    prompt = encode_text(tokens, start)
    ids, gap = list(prompt), math.inf
    for _ in range(n_new):
        logits = run(model, ids)[0][-1]
        best = np.sort(logits)[-2:]
        gap = min(gap, (best[1] - best[0]) / np.abs(logits).max())
        ids.append(int(logits.argmax()))
    assert gap > 5e-5, f"two tokens within {gap:.1e}: another engine's rounding could choose the other"
    text = b"".join(tokens[i][0] for i in ids[1:]).decode(errors="replace")
    print(f"story: {len(prompt)} + {n_new} tokens, closest choice {gap:.1e} of the largest logit:{text}")
    (out / "stories260k_greedy.txt").write_text(
        "# stories260K (karpathy/tinyllamas, MIT), run by transformers in float32: the ids of a prompt and of the greedy text after it.\n"
        + f"text {start}\n" + "prompt " + " ".join(map(str, prompt)) + "\n" + "greedy " + " ".join(map(str, ids[len(prompt) :])) + "\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path("tests/data"))
    parser.add_argument("--weights", type=Path, help="folder of stories260K.bin and tok512.bin; without it that case stays as it is")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for folder in ("models", "logits", "dequant"):
        (args.out / folder).mkdir(parents=True, exist_ok=True)
    lines = ["# Logits that PyTorch computes for the models of ../models, at every position. Files are raw little-endian: int32 ids\n"
             "# [n_ids], float32 logits [n_ids][n_vocab]. An engine agrees when at each position max|a - b| / max|b| <= tolerance,\n"
             "# b being these. n_ctx is the context the session must be opened with, 0 for any.\n"
             "# kv is the type of the cache: PyTorch then rounded keys and values as that type does.\n"
             "# name gguf ids logits n_ids n_vocab n_ctx kv tolerance\n"]
    for seed, case in enumerate(cases()):
        lines += write_case(args.out, case, 1000 + seed)
    (args.out / "logits/manifest.txt").write_text("".join(lines))
    write_dequant(args.out)
    if args.weights:
        write_story(args.out, args.weights)


if __name__ == "__main__":
    main()
