#!/usr/bin/env python3
"""Compares `butler eval mc` with lm-evaluation-harness on the same model, run dense in PyTorch.

    python tools/compare/compare_lm_eval.py -m models/butler-default.gguf --data ../shared/data/mc --limit 200
    python tools/compare/compare_lm_eval.py -m tests/data/models/llama-gqa.gguf --data tests/data/mc --write tests/data/mc/lm_eval.json

The harness's own task definitions, scoring and model class run; only the files come from --data instead of the network, put
back into the form its data sets have. The model is a LlamaForCausalLM in float32 with the GGUF file's weights dequantised.
Byte-level vocabularies are read by the `tokenizers` package; for others the ids are butler's. Needs lm-eval, torch,
transformers, gguf and tokenizers (tools/requirements.txt).
"""
import argparse
import json
import math
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from harness_data import FILES, SHOTS, find_file, log_likelihoods, run_butler, use_files

# ---------------------------------------------------------------------------------------------------------- the model

def load_llama(path):
    reader = gguf.GGUFReader(path)
    field = {key: value.contents() for key, value in reader.fields.items()}
    assert field["general.architecture"] == "llama", "this tool reads llama models"
    at = lambda key, default=None: field.get("llama." + key, default)
    heads, kv_heads, dim = at("attention.head_count"), at("attention.head_count_kv"), at("embedding_length")
    head_dim = at("attention.key_length", dim // heads)
    tensors = {t.name: torch.from_numpy(np.array(gguf.dequantize(t.data, t.tensor_type), dtype=np.float32)) for t in reader.tensors}
    config = transformers.LlamaConfig(
        hidden_size=dim, intermediate_size=at("feed_forward_length"), num_hidden_layers=at("block_count"),
        num_attention_heads=1, num_key_value_heads=1, head_dim=head_dim, vocab_size=tensors["token_embd.weight"].shape[0],
        max_position_embeddings=at("context_length"), rms_norm_eps=at("attention.layer_norm_rms_epsilon"),
        rope_theta=at("rope.freq_base", 10000.0), tie_word_embeddings="output.weight" not in tensors)
    config.num_attention_heads, config.num_key_value_heads = heads, kv_heads  # the constructor wants them to divide the width
    config.rope_parameters = {"rope_type": "default", "rope_theta": at("rope.freq_base", 10000.0)}
    model = transformers.LlamaForCausalLM(config)

    def halves(weight, n):  # GGUF keeps rotated pairs side by side, transformers in two halves
        return weight.reshape(n, head_dim // 2, 2, -1).transpose(1, 2).reshape(weight.shape)

    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    state = {"model.embed_tokens.weight": tensors["token_embd.weight"], "model.norm.weight": tensors["output_norm.weight"],
             "lm_head.weight": tensors.get("output.weight", tensors["token_embd.weight"])}
    for i in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = tensors[f"blk.{i}.{ours}.weight"]
            if ours in ("attn_q", "attn_k"):
                weight = halves(weight, heads if ours == "attn_q" else kv_heads)
            state[f"model.layers.{i}.{theirs}.weight"] = weight
    model.load_state_dict(state)
    return model.float().eval(), field


def load_tokenizer(field):
    tokens = field["tokenizer.ggml.tokens"]
    bos, eos = tokens[field["tokenizer.ggml.bos_token_id"]], tokens[field["tokenizer.ggml.eos_token_id"]]
    byte_level = field["tokenizer.ggml.model"] == "gpt2"
    if byte_level:
        assert field["tokenizer.ggml.pre"] == "gpt-2", "other cuts of text into words are not written here"
        merges = [tuple(merge.split(" ")) for merge in field["tokenizer.ggml.merges"]]
        inner = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=merges))
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        inner.decoder = decoders.ByteLevel()
    else:  # only a place for the special tokens: ids come from butler
        inner = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=tokens[0]))
    inner.add_special_tokens([AddedToken(bos, special=True), AddedToken(eos, special=True)])
    if byte_level and field.get("tokenizer.ggml.add_bos_token"):
        inner.post_processor = processors.TemplateProcessing(single=f"{bos} $A", special_tokens=[(bos, tokens.index(bos))])
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=bos, eos_token=eos, pad_token=eos), byte_level


def run_harness(model_path, butler, data, tasks, limit, length):
    import lm_eval
    from lm_eval.models.huggingface import HFLM

    use_files(data, tasks, limit)
    model, field = load_llama(model_path)
    tokenizer, byte_level = load_tokenizer(field)

    class Model(HFLM):
        def tok_encode(self, string, add_special_tokens=None, **kwargs):
            if byte_level:
                return super().tok_encode(string, add_special_tokens=add_special_tokens, **kwargs)
            flags = ["--no-special"] if add_special_tokens is False else []
            out = subprocess.run([butler, "tokenize", "-m", model_path, "-f", "-", "--json", *flags], input=string.encode(),
                                 capture_output=True, check=True).stdout
            return json.loads(out)["ids"]

    lm = Model(pretrained=model, tokenizer=tokenizer, batch_size=8, max_length=length or field["llama.context_length"])
    found = {}
    for task in tasks:
        out = lm_eval.simple_evaluate(model=lm, tasks=[task], num_fewshot=SHOTS.get(task, 0), log_samples=True, bootstrap_iters=0)
        found[task] = log_likelihoods(out, task)
    return {task: scores for task, (scores, _) in found.items()}, {task: results for task, (_, results) in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--butler", default="./butler")
    parser.add_argument("--tasks", default=",".join(FILES))
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--length", type=int, default=0)
    parser.add_argument("--tolerance", type=float, default=1e-3, help="of a log-likelihood, relative or absolute, whichever allows more")
    parser.add_argument("--write", type=Path, help="also keeps the harness's log-likelihoods in this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tasks = [task for task in args.tasks.split(",") if find_file(args.data, task)]
    scores, results = run_harness(args.model, args.butler, args.data, tasks, args.limit, args.length)
    worst = 0.0
    for task in tasks:
        ours, values = run_butler(args.butler, args.model, args.data, task, args.limit, args.length, "--kv-type", "f32", "-t", "1")
        theirs = scores[task]
        assert [len(item) for item in ours] == [len(item) for item in theirs], f"{task}: other items"
        pairs = [(a, b) for x, y in zip(ours, theirs) for a, b in zip(x, y)]
        apart = max(abs(a - b) / max(1.0, abs(b)) for a, b in pairs)
        worst = max(worst, apart)
        print(f"{task}: {len(ours)} items, {len(pairs)} log-likelihoods, at most {apart:.2e} apart;",
              ", ".join(f"{name} {values[name]:.6g} / {value:.6g}" for name, value in results[task].items()), flush=True)
        for name, value in results[task].items():
            if not math.isclose(values[name], value, rel_tol=args.tolerance, abs_tol=1e-9):
                print(f"{task}: {name} differs")
                worst = math.inf
    if args.write:
        kept = {FILES[task][0]: {"items": scores[task], "results": results[task]} for task in tasks}
        args.write.write_text(json.dumps({"model": Path(args.model).name, "length": args.length, "subsets": kept}, indent=1) + "\n")
    if worst > args.tolerance:
        sys.exit(f"not equal: {worst:.3g} apart, {args.tolerance:.3g} allowed")


if __name__ == "__main__":
    main()
