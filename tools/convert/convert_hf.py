#!/usr/bin/env python3
"""Converts a model in a Hugging Face folder to GGUF.

    tools/convert/convert_hf.py FOLDER -o OUT.gguf [--type f32|f16|bf16|q8_0] [--pre NAME]

FOLDER holds config.json, *.safetensors or pytorch_model.bin (one file, or several with their index), and tokenizer.json, or
tokenizer.model, or vocab.json with merges.txt. The families are those of tools/convert/hf_families.py. Vectors, and the matrix that chooses
experts, are written as F32, other matrices in the type of --type (default f16); in q8_0 a matrix whose rows are no multiple of 32
becomes F16. The file appears under its name only when it is complete. Needs the Python packages gguf and numpy.
"""
import argparse
import math
import os
import re
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

import hf_tokenizer
from hf_base import Failure, Tensor
from hf_families import FAMILIES, UNUSED, change, get, gguf_names, head_dim, n_heads, n_kv_heads, n_layers, need, permute
from hf_folder import read_config, read_json, read_tensors

TYPES = {"f32": Type.F32, "f16": Type.F16, "bf16": Type.BF16, "q8_0": Type.Q8_0}


# --------------------------------------------------------------------------------------- hyperparameters

def rope_settings(config, family):
    """(parameters, those of layers with a window or None): of new config.json files in rope_parameters, of older ones here and there."""
    both = config.get("rope_parameters") or {}
    if "full_attention" in both:
        main, local = dict(both["full_attention"]), dict(both.get("sliding_attention") or {})
    else:
        main, local = dict(both), None
        if "rope_local_base_freq" in config:
            local = {"rope_theta": config["rope_local_base_freq"]}
    for name, value in (config.get("rope_scaling") or {}).items():
        main.setdefault(name, value)
    main.setdefault("rope_theta", get(config, "rope_theta", "rotary_emb_base", default=10000.0))
    main.setdefault("partial_rotary_factor", get(config, "partial_rotary_factor", "rotary_pct", default=family.rope_fraction))
    main.setdefault("rope_type", main.get("type", "default"))
    main.setdefault("original_max_position_embeddings",
                    get(config, "original_max_position_embeddings", default=config.get("max_position_embeddings")))
    return main, local


def llama3_factors(rope, dims):
    """Long wavelengths are slowed by the factor, short ones are kept, those between are interpolated."""
    wavelength = 2 * math.pi * rope["rope_theta"] ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    low, high, turns = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"] / wavelength
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    return 1 / ((1 - smooth) / rope["factor"] + smooth)


def rope_keys(writer, config, family):
    """Writes the rope keys; returns tensors of factors by name."""
    rope, local = rope_settings(config, family)
    dims = int(head_dim(config) * rope["partial_rotary_factor"])
    writer.add_rope_dimension_count(dims)
    writer.add_rope_freq_base(float(rope["rope_theta"]))
    if local:
        writer.add_rope_freq_base_swa(float(local["rope_theta"]))
    kind, vectors = rope["rope_type"], {}
    try:
        if kind == "linear":
            writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
            writer.add_rope_scaling_factor(float(rope["factor"]))
        elif kind == "yarn":
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(float(rope["factor"]))
            writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
            writer.add_rope_scaling_yarn_beta_fast(float(rope.get("beta_fast") or 32))
            writer.add_rope_scaling_yarn_beta_slow(float(rope.get("beta_slow") or 1))
            usual = 0.1 * math.log(rope["factor"]) + 1
            if rope.get("attention_factor") not in (None, usual) or rope.get("mscale") or rope.get("mscale_all_dim"):
                raise Failure("config.json: rope scaling 'yarn' with an attention_factor or mscale of its own has no place in GGUF")
        elif kind == "llama3":
            vectors["rope_freqs.weight"] = llama3_factors(rope, dims)
        elif kind in ("longrope", "su"):
            original, longest = rope["original_max_position_embeddings"], need(config, "max_position_embeddings")
            scale = longest / original
            usual = 1.0 if scale <= 1 else math.sqrt(1 + math.log(scale) / math.log(original))
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors(float(rope.get("attention_factor") or usual))
            vectors |= {f"rope_factors_{n}.weight": np.array(rope[f"{n}_factor"], float) for n in ("long", "short")}
        elif kind == "dynamic":
            print("convert_hf: rope scaling 'dynamic' acts beyond max_position_embeddings only, and is left out", file=sys.stderr)
        elif kind != "default":
            raise Failure(f"config.json: rope scaling '{kind}' has no place in GGUF")
    except KeyError as error:
        raise Failure(f"config.json: rope scaling '{kind}' without {error}") from error
    return {name: Tensor(v.shape, lambda v=v: v.astype(np.float32)) for name, v in vectors.items()}


def window_keys(writer, config, family):
    """Which layers see a window of the text, and of how many tokens."""
    window, layers, period = config.get("sliding_window"), n_layers(config), family.window_period
    if not window or config.get("use_sliding_window") is False:
        return
    default = [not period or i % period < period - 1 for i in range(layers)]
    kinds, pattern = config.get("layer_types"), get(config, "sliding_window_pattern", "_sliding_window_pattern")
    if kinds is not None:
        windowed = [kind == "sliding_attention" for kind in kinds]
    elif isinstance(pattern, str):
        windowed = [pattern[i % len(pattern)] == "L" for i in range(layers)]
    elif pattern:
        windowed = [(i + 1) % pattern != 0 for i in range(layers)]
    elif config.get("use_sliding_window") and "max_window_layers" in config:
        windowed = [i >= config["max_window_layers"] for i in range(layers)]
    else:
        windowed = default
    if len(windowed) != layers:
        raise Failure(f"config.json: 'layer_types': {len(windowed)} entries for {layers} layers")
    if any(windowed):
        writer.add_sliding_window(window)
        if windowed != default or not family.pattern_implied:
            writer.add_sliding_window_pattern(windowed)


def hyperparameters(writer, config, family):
    embd = need(config, "hidden_size", "n_embd")
    writer.add_context_length(need(config, "max_position_embeddings", "n_positions", "n_ctx"))
    writer.add_embedding_length(embd)
    writer.add_block_count(n_layers(config))
    writer.add_feed_forward_length(need(config, "intermediate_size", "n_inner", "ffn_dim", default=4 * embd))
    writer.add_head_count(n_heads(config))
    writer.add_head_count_kv(n_kv_heads(config))
    writer.add_key_length(head_dim(config))
    writer.add_value_length(head_dim(config))
    writer.add_vocab_size(need(config, "vocab_size"))
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    else:
        writer.add_layer_norm_eps(get(config, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", default=1e-5))
    act = get(config, "hidden_activation", "hidden_act", "activation_function", default=family.acts[0])
    if act not in family.acts:
        raise Failure(f"config.json: activation '{act}'; GGUF's {family.arch} has {', '.join(family.acts)}")
    for name, value in family.fixed.items():
        if get(config, name, default=value) != value:
            raise Failure(f"config.json: '{name}' is {config[name]}; GGUF's {family.arch} has {value}")
    window_keys(writer, config, family)
    family.keys(writer, config)
    if family.arch in ("gpt2", "opt"):
        return {}
    return rope_keys(writer, config, family)


# ---------------------------------------------------------------------------------------------- tensors

def text_tensors(tensors):
    """Without the parts of a model that sees pictures."""
    kept = {}
    for name, tensor in tensors.items():
        if re.match(r"(model\.)?(vision_tower|multi_modal_projector)\.", name):
            continue
        name = re.sub(r"^model\.language_model\.", "model.", name)
        kept[name.removeprefix("language_model.")] = tensor
    return kept


def gguf_tensors(tensors, config, family):
    """GGUF's name -> Tensor of a family's."""
    tensors = {n: t for n, t in text_tensors(tensors).items() if not UNUSED.fullmatch(n)}
    for rewrite in family.rewrite:
        rewrite(tensors, config)
    name_of, out = gguf_names(family.arch, n_layers(config)), {}
    for source, tensor in tensors.items():
        name = name_of(source)
        if name is None:
            raise Failure(f"tensor '{source}' {list(tensor.shape)} has no place in GGUF's {family.arch}")
        if name == "output.weight" and get(config, "tie_word_embeddings", default=family.tied):
            continue
        if name in out:
            raise Failure(f"tensor '{source}': another one is '{name}' too")
        if family.permute and re.search(r"attn_[qk]\.(weight|bias)$", name):
            tensor = permute(tensor, n_heads(config) if "attn_q." in name else n_kv_heads(config))
        if family.norm_plus_one and name.endswith("norm.weight"):
            tensor = change(tensor, tensor.shape, lambda a: a + 1)
        if name.endswith("ffn_gate_inp_shexp.weight") and len(tensor.shape) == 2:
            tensor = change(tensor, tensor.shape[1:], lambda a: a[0])
        out[name] = tensor
    if not get(config, "tie_word_embeddings", default=family.tied) and "output.weight" not in out:
        raise Failure("the tensor of the output (lm_head.weight) is missing, and config.json does not tie it to the embedding")
    check_layers(out, n_layers(config))
    return out


def check_layers(tensors, layers):
    """A file that is missing from the folder would show as a layer with fewer tensors than another."""
    each = [set() for _ in range(layers)]
    for name in tensors:
        if found := re.match(r"blk\.(\d+)\.(.*)", name):
            each[int(found[1])].add(found[2])
    for i, names in enumerate(each):
        if lacking := set.union(*each) - names:
            raise Failure(f"layer {i} has no tensor '{sorted(lacking)[0]}', other layers have")


def type_of(name, tensor, wanted):
    if tensor.mxfp4:
        return Type.MXFP4
    matrix = len(tensor.shape) > 1 and name.endswith(".weight") and not re.search(r"(norm|ffn_gate_inp)\.weight$", name)
    if not matrix:
        return Type.F32
    return Type.F16 if wanted == Type.Q8_0 and tensor.shape[-1] % 32 else wanted


def stored(name, tensor, kind):
    array = tensor.read()
    if tensor.mxfp4:
        return array
    if not np.isfinite(array).all():
        raise Failure(f"tensor '{name}': it holds an infinity or NaN")
    if kind == Type.F16 and np.abs(array).max(initial=0) > 65504:
        raise Failure(f"tensor '{name}': values up to {np.abs(array).max():g} do not fit in F16; choose --type bf16 or f32")
    return gguf.quants.quantize(np.ascontiguousarray(array), kind)


def write(writer, tensors, wanted):
    """One tensor in memory at a time."""
    order = sorted(tensors, key=lambda n: [int(p) if p.isdigit() else -1 for p in n.split(".")[1:2]] + [n])
    kinds = {name: type_of(name, tensors[name], wanted) for name in order}
    for name in order:
        shape, kind = tensors[name].shape, kinds[name]
        if kind == Type.MXFP4:
            shape = gguf.quant_shape_from_byte_shape(shape, kind)
        block, size = gguf.GGML_QUANT_SIZES[kind]
        writer.add_tensor_info(name, shape, np.dtype(np.float32), math.prod(shape) // block * size, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for name in order:
        writer.write_tensor_data(stored(name, tensors[name], kinds[name]))
    writer.close()


# -------------------------------------------------------------------------------------------------- main

def convert(folder, out, wanted, pre=None):
    """Raises Failure; then there is no file `out`, or still the one that was there."""
    config = read_config(folder)
    family = next((FAMILIES[a] for a in config["architectures"] if a in FAMILIES), None)
    if family is None:
        raise Failure(f"{folder / 'config.json'}: architecture '{config['architectures'][0]}' is none of {', '.join(FAMILIES)}")
    config = {**family.defaults, **config}
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        writer = gguf.GGUFWriter(part, family.arch)
        writer.add_name(folder.resolve().name)
        writer.add_file_type({"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}[wanted])
        factors = hyperparameters(writer, config, family)
        tensors = {**gguf_tensors(read_tensors(folder), config, family), **factors}
        generation = read_json(folder / "generation_config.json", optional=True) or {}
        n_vocab = tensors["token_embd.weight"].shape[0] if "token_embd.weight" in tensors else 0
        try:
            hf_tokenizer.add(writer, folder, config, generation, n_vocab, pre)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            raise Failure(f"{folder}: a file of its tokenizer is not as published ones are: {error!r}") from error
        write(writer, tensors, TYPES[wanted])
        os.replace(part, out)
    except OSError as error:
        raise Failure(str(error)) from error
    finally:
        part.unlink(missing_ok=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="OUT.gguf")
    parser.add_argument("--type", choices=TYPES, default="f16", help="of matrices (default f16)")
    parser.add_argument("--pre", metavar="NAME", help="name of the pre-tokenizer, where tokenizer.json has one that is not known")
    args = parser.parse_args()
    try:
        convert(args.folder, args.output, args.type, args.pre)
    except Failure as failure:
        sys.exit(f"convert_hf: {failure}")


if __name__ == "__main__":
    main()
