#!/usr/bin/env python3
"""Writes tests/data/architectures.json: a tiny model of each family and the logits that transformers computes for it.

    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install -r tools/requirements.txt
    /tmp/venv/bin/python tools/make_arch_fixtures.py [--only NAME]

The output is committed; run this only to add a family. It does not hold weights: tests/arch_folder.py makes them. A case is only
written if transformers loads every tensor of the folder, float32 agrees with float64, and taking away any tensor moves the logits.
"""
import argparse
import copy
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from arch_folder import make_folder, names_and_shapes, weight  # noqa: E402
from hf_folder import read_header  # noqa: E402

OUT = ROOT / "tests" / "data" / "architectures.json"
N_VOCAB, N_IDS = 96, 80
POSITIONS = [0, 1, 17, 40, N_IDS - 1]
WINDOW = 24
SINGLE, FELT = 2e-5, 1e-3  # how far float32 may be from float64, how far at least the logits move without a tensor


# -------------------------------------------------------------------------------------------------- cases

def sized(embd=64, heads=4, kv=2, ff=96, layers=2, ctx=128, **more):
    return dict(hidden_size=embd, num_attention_heads=heads, num_key_value_heads=kv, intermediate_size=ff, num_hidden_layers=layers,
                max_position_embeddings=ctx, **more)


def rope(kind="default", theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


LLAMA3 = rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=32)
EXPERTS = dict(num_experts_per_tok=2, router_aux_loss_coef=0.0)
PLAIN = dict(vocab_size=N_VOCAB, bos_token_id=None, eos_token_id=None, pad_token_id=None)


def cases():
    """name: (model_type, configuration, other things of the case)"""
    yield "llama", "llama", sized(**LLAMA3, tie_word_embeddings=False), {}
    yield "llama-bias", "llama", sized(attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **rope("linear", factor=4.0)), {}
    yield "mistral", "mistral", sized(sliding_window=WINDOW, head_dim=32, tie_word_embeddings=False), {}
    yield "qwen2", "qwen2", sized(kv=1, tie_word_embeddings=True, **rope(theta=1e6)), {}
    yield "qwen3", "qwen3", sized(head_dim=32, tie_word_embeddings=True, **rope(theta=1e6)), {}
    yield "phi3", "phi3", sized(sliding_window=WINDOW, tie_word_embeddings=False), {}
    yield "phi3-longrope", "phi3", sized(original_max_position_embeddings=32, tie_word_embeddings=False, rope_parameters=dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1 + .05 * i for i in range(8)], long_factor=[1.5 + .5 * i for i in range(8)],
        original_max_position_embeddings=32)), {}
    yield "qwen2-yarn", "qwen2", sized(heads=2, ctx=4096, tie_word_embeddings=False, **rope(
        "yarn", 10000.0, factor=4.0, original_max_position_embeddings=1024)), {}
    yield "gpt2", "gpt2", dict(n_embd=48, n_head=3, n_layer=2, n_inner=None, n_positions=96), {}
    yield "gemma", "gemma", sized(kv=1, head_dim=32), {"embedding_scale": 0.15}
    yield "gemma2", "gemma2", sized(head_dim=16, layers=4, sliding_window=WINDOW, query_pre_attn_scalar=24,
                                    attn_logit_softcapping=3.0, final_logit_softcapping=2.0), {"embedding_scale": 0.15}
    yield "gemma3", "gemma3_text", sized(head_dim=16, layers=7, sliding_window=WINDOW, query_pre_attn_scalar=16, rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}), {"embedding_scale": 0.15}
    yield "gptneox", "gpt_neox", dict(sized(kv=4, tie_word_embeddings=False), num_key_value_heads=None,
                                      **rope(partial_rotary_factor=0.25)), {}
    yield "gptneox-serial", "gpt_neox", dict(sized(kv=4, tie_word_embeddings=False, use_parallel_residual=False),
                                             num_key_value_heads=None, **rope(partial_rotary_factor=0.5)), {}
    yield "opt", "opt", dict(hidden_size=64, word_embed_proj_dim=64, num_attention_heads=4, num_hidden_layers=2, ffn_dim=96,
                             max_position_embeddings=96), {}
    yield "opt-350m", "opt", dict(hidden_size=64, word_embed_proj_dim=32, num_attention_heads=4, num_hidden_layers=2, ffn_dim=96,
                                  max_position_embeddings=96, do_layer_norm_before=False), {}
    yield "phi2", "phi", sized(kv=4, tie_word_embeddings=False, **rope(partial_rotary_factor=0.5)), {}
    yield "stablelm", "stablelm", sized(use_qkv_bias=True, tie_word_embeddings=False, **rope(partial_rotary_factor=0.25)), {}
    yield "stablelm-12b", "stablelm", sized(use_parallel_residual=True, qk_layernorm=True, tie_word_embeddings=False,
                                            **rope(partial_rotary_factor=0.25)), {}
    yield "starcoder2", "starcoder2", sized(use_bias=True, sliding_window=None, hidden_act="gelu_pytorch_tanh", **rope(theta=1e5)), {}
    yield "olmo2", "olmo2", sized(tie_word_embeddings=False, **rope(theta=5e5)), {}
    yield "granite", "granite", sized(attention_multiplier=0.2, embedding_multiplier=3.0, residual_multiplier=0.4,
                                      logits_scaling=2.0, tie_word_embeddings=True), {}
    yield "smollm3", "smollm3", sized(layers=5, tie_word_embeddings=True, **rope(theta=5e6)), {}
    yield "cohere2", "cohere2", sized(layers=5, sliding_window=WINDOW, logit_scale=0.25, head_dim=16, **rope(theta=5e4)), {}
    yield "glm4", "glm4", sized(head_dim=32, attention_bias=True, tie_word_embeddings=False, **rope(partial_rotary_factor=0.5)), {}
    yield "exaone4", "exaone4", sized(layers=5, sliding_window=WINDOW, sliding_window_pattern=4, head_dim=16,
                                      tie_word_embeddings=False, **LLAMA3), {}
    yield "exaone4-full", "exaone4", sized(sliding_window=None, sliding_window_pattern=None, tie_word_embeddings=True,
                                           layer_types=["full_attention"] * 2), {}
    yield "internlm2", "internlm2", sized(rms_norm_eps=1e-5, tie_word_embeddings=False, rope_theta=1e6), {}
    yield "mixtral", "mixtral", sized(num_local_experts=4, sliding_window=None, head_dim=16, tie_word_embeddings=False, **EXPERTS), {}
    yield "qwen2moe", "qwen2_moe", sized(num_experts=6, moe_intermediate_size=32, shared_expert_intermediate_size=64,
                                         tie_word_embeddings=False, **EXPERTS), {}
    yield "qwen3moe", "qwen3_moe", sized(num_experts=6, moe_intermediate_size=32, norm_topk_prob=True, head_dim=32,
                                         tie_word_embeddings=False, **EXPERTS), {}
    yield "gpt-oss", "gpt_oss", sized(layers=4, num_local_experts=4, num_experts_per_tok=2, head_dim=16, sliding_window=WINDOW,
                                      tie_word_embeddings=False, **rope("yarn", 150000.0, factor=4.0, beta_fast=32.0, beta_slow=1.0,
                                                                        truncate=False, original_max_position_embeddings=32)), {}


# ------------------------------------------------------------------------------------------------- oracle

def random_ids():
    rng = np.random.default_rng(2026)
    ids = rng.integers(0, N_VOCAB, N_IDS)
    ids[50:65] = ids[5:20]  # a stretch seen before, at other positions
    return [int(i) for i in ids]


def patterns(header):
    """names_and_shapes of tests/arch_folder.py backwards."""
    found = {}
    for name, tensor in header.items():
        name = re.sub(r"\.(layers|h)\.\d+\.", r".\1.*.", name)
        name = re.sub(r"\.experts\.\d+\.", ".experts.**.", name)
        shape = list(tensor.shape)
        assert found.setdefault(name, shape) == shape, f"{name} has two shapes"
    return found


def internlm2_shapes(config):
    """transformers has no InternLM2: this is its remote code's naming of a llama whose q, k and v lie group by group."""
    embd, ff, kv = config["hidden_size"], config["intermediate_size"], config["num_key_value_heads"]
    dim = embd // config["num_attention_heads"]
    layer = {"attention.wqkv": [embd + 2 * kv * dim, embd], "attention.wo": [embd, embd], "feed_forward.w1": [ff, embd],
             "feed_forward.w3": [ff, embd], "feed_forward.w2": [embd, ff], "attention_norm": [embd], "ffn_norm": [embd]}
    return {"model.tok_embeddings.weight": [N_VOCAB, embd], "model.norm.weight": [embd], "output.weight": [N_VOCAB, embd],
            **{f"model.layers.*.{name}.weight": shape for name, shape in layer.items()}}


def internlm2_as_llama(case):
    config = case["config"]
    heads, kv, dim = config["num_attention_heads"], config["num_key_value_heads"], 16
    names = {"attention.wo": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj", "feed_forward.w3": "mlp.up_proj",
             "feed_forward.w2": "mlp.down_proj", "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
             "model.tok_embeddings": "model.embed_tokens", "model.norm": "model.norm", "output": "lm_head"}
    state = {}
    for name, shape in names_and_shapes(case):
        w, stem = weight(name, shape, case), re.sub(r"^model\.layers\.\d+\.|\.weight$", "", name)
        if stem != "attention.wqkv":
            state[name.replace(stem, names[stem], 1)] = w
            continue
        groups = w.reshape(kv, heads // kv + 2, dim, -1)
        for part, rows in (("q", groups[:, :-2]), ("k", groups[:, -2]), ("v", groups[:, -1])):
            state[name.replace("attention.wqkv", f"self_attn.{part}_proj")] = rows.reshape(-1, w.shape[1])
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **dict(PLAIN, **sized(
        rms_norm_eps=1e-5, tie_word_embeddings=False, **rope(theta=1e6)))), attn_implementation="eager")
    model.load_state_dict({n: torch.from_numpy(np.float32(w)) for n, w in state.items()})
    return model


def reference_model(case):
    if case["config"]["model_type"] == "internlm2":
        return internlm2_as_llama(case).eval()
    with tempfile.TemporaryDirectory() as folder:
        make_folder(Path(folder), case)
        (Path(folder) / "tokenizer.json").unlink()
        model, info = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32,
                                                           experts_implementation="eager", output_loading_info=True)
    wrong = {k: v for k, v in info.items() if v and k in ("missing_keys", "unexpected_keys", "mismatched_keys")}
    assert not wrong, wrong
    return model.eval()


def run(model, ids):
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].double().numpy()


def away(a, b):
    return np.abs(a - b).max() / np.abs(b).max()


def make_case(name, kind, config, more):
    if kind == "internlm2":
        full = dict(config, **PLAIN, model_type=kind, architectures=["InternLM2ForCausalLM"], hidden_act="silu")
        tensors = internlm2_shapes(full)
    else:
        built = AutoConfig.for_model(kind, **copy.deepcopy(config), **PLAIN)
        model = AutoModelForCausalLM.from_config(built)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            full = json.loads((Path(folder) / "config.json").read_text())
            tensors = patterns(read_header(Path(folder) / "model.safetensors"))
    for key in ("dtype", "transformers_version"):
        full.pop(key, None)
    full.update(PLAIN)  # what is saved leaves out a null that is not the default
    case = {"config": full, "tensors": tensors, **more}
    model, ids = reference_model(case), random_ids()
    single = run(model, ids)
    exact_model = model.double()
    exact = run(exact_model, ids)
    assert away(single, exact) < SINGLE, f"{name}: float32 differs from float64 by {away(single, exact):.1e}"
    check_sensitivity(name, exact_model, ids, exact)
    log_sum = np.log(np.exp(exact - exact.max(-1, keepdims=True)).sum(-1)) + exact.max(-1)
    nll = float(np.mean([log_sum[i] - exact[i, ids[i + 1]] for i in range(N_IDS - 1)]))
    print(f"{name:16} float32 within {away(single, exact):.1e}, logits {exact.std():.2f} +- {np.abs(exact).max():.2f}, nll {nll:.3f}")
    return {**case, "nll": round(nll, 6), "logits": [[float(f"{x:.6g}") for x in exact[p]] for p in POSITIONS]}


def check_sensitivity(name, model, ids, exact):
    """A bias of keys has no effect where keys are not rotated: it adds the same to every score of a query."""
    for what, parameter in model.named_parameters():
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.zero_()
            moved = away(run(model, ids)[POSITIONS], exact[POSITIONS])
            parameter.copy_(kept)
        assert moved > FELT or what.endswith("k_proj.bias"), f"{name}: without {what} the logits move by {moved:.1e} only"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="one case; the others stay as they are in the file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    data = json.loads(OUT.read_text()) if OUT.exists() else {}
    old, new = data.get("cases", {}), {}
    for name, kind, config, more in cases():
        new[name] = make_case(name, kind, config, more) if args.only in (None, name) else old.get(name)
    head = {"about": "Written by tools/make_arch_fixtures.py", "ids": random_ids(), "positions": POSITIONS}
    lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in head.items()]
    lines.append(' "cases": {\n' + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in new.items() if v) + "\n }")
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
