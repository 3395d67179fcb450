"""A checkpoint out as GGUF: architecture llama, Q8_0 matrices and F32 norms, the tokenizer inside."""
import argparse
import json
import os

import gguf
import numpy as np
import torch

from prepare import BOS, EOS


def interleave(w, n_head, d_head):
    """Rows of a query or key matrix from halves (i, i + d/2) to neighbours (2i, 2i + 1): how the llama architecture pairs them in GGUF."""
    return w.reshape(n_head, 2, d_head // 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape)


def weights(ckpt, raw):
    """name → float32 array: the averaged weights, or with `raw` those of the last step."""
    src = ckpt["model"] if raw else ckpt["ema"]
    return {k: v.float().cpu().numpy() for k, v in src.items()}


def add_tokenizer(w, path):
    with open(path) as f:
        model = json.load(f)["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([gguf.TokenType.CONTROL if t in (BOS, EOS) else gguf.TokenType.NORMAL for t in tokens])
    w.add_token_merges(merges)
    w.add_bos_token_id(model["vocab"][BOS])
    w.add_eos_token_id(model["vocab"][EOS])
    w.add_add_bos_token(True)
    w.add_add_eos_token(False)


def main():
    ap = argparse.ArgumentParser(description=__doc__)
    ap.add_argument("--checkpoint", required=True)
    ap.add_argument("--tokenizer", required=True)
    ap.add_argument("--out", required=True)
    ap.add_argument("--type", choices=["f32", "q8_0"], default="q8_0")
    ap.add_argument("--ctx", type=int, default=0, help="context length to declare (default: the configuration's)")
    ap.add_argument("--raw", action="store_true", help="the last step's weights, not their moving average")
    args = ap.parse_args()
    ckpt = torch.load(args.checkpoint, map_location="cpu")
    cfg, src = ckpt["config"], weights(ckpt, args.raw)
    w = gguf.GGUFWriter(args.out, "llama")
    w.add_name("butler-default")
    w.add_description(f"A small long-context model for butler, {ckpt['tokens'] / 1e6:.1f}M tokens of training")
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0 if args.type == "q8_0" else gguf.LlamaFileType.ALL_F32)
    w.add_context_length(args.ctx or cfg["n_ctx"])
    w.add_embedding_length(cfg["n_embd"])
    w.add_block_count(cfg["n_layer"])
    w.add_feed_forward_length(cfg["n_ff"])
    w.add_head_count(cfg["n_head"])
    w.add_head_count_kv(cfg["n_kv"])
    w.add_rope_dimension_count(cfg["d_head"])
    w.add_key_length(cfg["d_head"])
    w.add_value_length(cfg["d_head"])
    w.add_rope_freq_base(cfg["rope_base"])
    w.add_layer_norm_rms_eps(cfg["eps"])
    w.add_vocab_size(cfg["n_vocab"])
    add_tokenizer(w, args.tokenizer)

    def put(name, a):
        a = np.ascontiguousarray(a, dtype=np.float32)
        if a.ndim == 1 or args.type == "f32":
            w.add_tensor(name, a)
        else:
            w.add_tensor(name, gguf.quants.quantize(a, gguf.GGMLQuantizationType.Q8_0), raw_dtype=gguf.GGMLQuantizationType.Q8_0)

    put("token_embd.weight", src["embed"])
    for i in range(cfg["n_layer"]):
        p, b = f"blocks.{i}.", f"blk.{i}."
        put(b + "attn_norm.weight", src[p + "attn_norm"])
        put(b + "attn_q.weight", interleave(src[p + "q"], cfg["n_head"], cfg["d_head"]))
        put(b + "attn_k.weight", interleave(src[p + "k"], cfg["n_kv"], cfg["d_head"]))
        put(b + "attn_v.weight", src[p + "v"])
        put(b + "attn_output.weight", src[p + "o"])
        put(b + "ffn_norm.weight", src[p + "ffn_norm"])
        put(b + "ffn_gate.weight", src[p + "gate"])
        put(b + "ffn_up.weight", src[p + "up"])
        put(b + "ffn_down.weight", src[p + "down"])
    put("output_norm.weight", src["out_norm"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    print(f"{args.out}: {os.path.getsize(args.out) / 1e6:.1f} MB, {ckpt['tokens'] / 1e6:.2f}M tokens")


if __name__ == "__main__":
    main()
