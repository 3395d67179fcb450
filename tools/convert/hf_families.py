"""The model families that tools/convert/convert_hf.py converts: for each what its tensors and hyperparameters become in GGUF.

GGUF stores what its engines expect, not always what PyTorch stores:
- In llama and its relatives neighbouring elements of a head rotate together, in PyTorch the two halves do: the rows of q and k are
  reordered (`permute`).
- Gemma multiplies by 1 + weight: the stored norms are 1 + weight.
- GPT-2's Conv1D holds [inputs, outputs]: transposed.
- GPT-NeoX holds q, k and v head by head, InternLM2 group by group: GGUF wants all of q, then all of k, then all of v.
- Experts are one tensor [experts, rows, columns] for each of gate, up and down.

GGUF has no architecture `opt` elsewhere. The file written here has GPT-2's tensors, with attn_q, attn_k and attn_v separate and
position_embd without its first two rows, which OPT never uses; `opt.layer_norm_before` (default true) says whether norms come before
attention and FFN. Where OPT-350M projects between its embedding and a wider model, both matrices are multiplied into the
embedding and the output."""
import re
from dataclasses import dataclass, field, replace
from typing import Callable

import gguf
import numpy as np

from hf_base import Failure, Tensor

GELU_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast")
EXPERT = re.compile(r"(.*\.layers\.\d+\.\w+\.experts)\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight")
EXPERT_PART = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
UNUSED = re.compile(r".*\.(rotary_emb\.inv_freq|(attn|attention)\.(masked_)?bias)")


@dataclass
class Family:
    arch: str
    acts: tuple = ("silu",)
    permute: bool = False        # q and k rows from halves to neighbours
    norm_plus_one: bool = False
    window_period: int = 0       # of so many layers the last has no window, where config.json has no layer_types; 0: all have it
    pattern_implied: bool = True  # GGUF's engines know window_period
    rope_fraction: float = 1.0
    tied: bool = False           # config.json's default of tie_word_embeddings
    rewrite: tuple = ()          # functions (tensors, config): make PyTorch's tensors those that GGUF's names are known for
    keys: Callable = lambda writer, config: None  # the family's own hyperparameters
    defaults: dict = field(default_factory=dict)  # what a config.json may leave out
    fixed: dict = field(default_factory=dict)     # values of config.json that are built into the engines: others are refused


def get(config, *names, default=None):
    """The first of several spellings that config.json has."""
    return next((config[n] for n in names if config.get(n) is not None), default)


def need(config, *names, default=None):
    """As get, of a whole number above 0."""
    value = get(config, *names, default=default)
    if value is None:
        raise Failure(f"config.json: '{names[0]}' is missing")
    if not isinstance(value, int) or value < 1:
        raise Failure(f"config.json: '{names[0]}' is {value!r}; expected a whole number above 0")
    return value


def n_layers(config):
    return need(config, "num_hidden_layers", "n_layer")


def n_heads(config):
    return need(config, "num_attention_heads", "n_head")


def n_kv_heads(config):
    return need(config, "num_key_value_heads", default=n_heads(config))


def head_dim(config):
    return need(config, "head_dim", default=need(config, "hidden_size", "n_embd") // n_heads(config))


# ---------------------------------------------------------------------------------------------- tensors

def take(tensors, name):
    if name not in tensors:
        raise Failure(f"tensor '{name}' is missing")
    return tensors.pop(name)


def change(tensor, shape, how):
    """The tensor after how(array); shape: of the result, checked when it is read."""
    def read():
        array = how(tensor.read())
        assert array.shape == tuple(shape), f"{array.shape}, expected {shape}"
        return array
    return Tensor(tuple(shape), read, tensor.mxfp4)


def permute(tensor, heads):
    rows, rest = tensor.shape[0], tensor.shape[1:]
    if rows % (2 * heads):
        raise Failure(f"{rows} rows of q or k do not divide into {heads} heads of an even size")
    return change(tensor, tensor.shape, lambda a: a.reshape(heads, 2, rows // heads // 2, *rest).swapaxes(1, 2).reshape(a.shape))


def rows_of(tensor, first, end):
    return change(tensor, (end - first, *tensor.shape[1:]), lambda a: a[first:end])


def rename(**words):
    """Replaces parts of names between dots."""
    def rewrite(tensors, config):
        for name in list(tensors):
            new = ".".join(words.get(part, part) for part in name.split("."))
            if new != name:
                tensors[new] = tensors.pop(name)
    return rewrite


def stack_experts(tensors, config):
    groups = {}
    for name in list(tensors):
        if found := EXPERT.fullmatch(name):
            part = EXPERT_PART.get(found[3], found[3])
            groups.setdefault(f"{found[1]}.{part}.weight", {})[int(found[2])] = tensors.pop(name)
    n = need(config, "num_local_experts", "num_experts") if groups else 0
    for name, group in groups.items():
        name = re.sub(r"\.block_sparse_moe\.", ".mlp.", name)
        if sorted(group) != list(range(n)) or len({t.shape for t in group.values()}) != 1:
            raise Failure(f"tensor '{name}': {len(group)} experts, or of unequal shapes; expected {n}")
        members = [group[i] for i in range(n)]
        tensors[name] = Tensor((n, *members[0].shape), lambda m=members: np.stack([t.read() for t in m]))


def transpose_conv1d(tensors, config):
    for name, tensor in tensors.items():
        if re.search(r"\.(c_attn|c_proj|c_fc)\.weight$", name):
            tensors[name] = change(tensor, tensor.shape[::-1], lambda a: a.T)


def split_neox_qkv(tensors, config):
    heads, dim = n_heads(config), head_dim(config)
    for name, tensor in tensors.items():
        if ".query_key_value." in name:
            rest = tensor.shape[1:]
            tensors[name] = change(tensor, tensor.shape,
                                   lambda a, r=rest: a.reshape(heads, 3, dim, *r).swapaxes(0, 1).reshape(3 * heads * dim, *r))


def split_internlm2_qkv(tensors, config):
    heads, kv, dim = n_heads(config), n_kv_heads(config), head_dim(config)
    each = heads // kv
    parts = {"wq": (slice(0, each), heads), "wk": (slice(each, each + 1), kv), "wv": (slice(each + 1, each + 2), kv)}
    for name in [n for n in tensors if ".attention.wqkv." in n]:
        tensor = tensors.pop(name)
        if tensor.shape[0] != (heads + 2 * kv) * dim:
            raise Failure(f"tensor '{name}': {tensor.shape[0]} rows; expected {(heads + 2 * kv) * dim}")
        rest = tensor.shape[1:]
        for part, (which, n) in parts.items():
            tensors[name.replace("wqkv", part)] = change(
                tensor, (n * dim, *rest), lambda a, w=which, n=n, r=rest: a.reshape(kv, each + 2, dim, *r)[:, w].reshape(n * dim, *r))


def stack_stablelm_norms(tensors, config):
    """stablelm-2-12b: a norm of its own for each head, numbered."""
    for layer in range(n_layers(config)):
        for part, heads in (("q", n_heads(config)), ("k", n_kv_heads(config))):
            start = f"model.layers.{layer}.self_attn.{part}_layernorm"
            if f"{start}.norms.0.weight" in tensors:
                norms = [take(tensors, f"{start}.norms.{i}.weight") for i in range(heads)]
                tensors[f"{start}.weight"] = Tensor((heads, *norms[0].shape), lambda m=norms: np.stack([t.read() for t in m]))


def opt_tensors(tensors, config):
    """See the top of this file."""
    for name in [n for n in tensors if n.startswith("decoder.")]:
        tensors["model." + name] = tensors.pop(name)
    start = "model.decoder."
    places = take(tensors, start + "embed_positions.weight")
    tensors[start + "embed_positions.weight"] = rows_of(places, 2, places.shape[0])
    if start + "project_in.weight" not in tensors:
        return
    wide, narrow = take(tensors, start + "project_in.weight"), take(tensors, start + "project_out.weight")
    embed = take(tensors, start + "embed_tokens.weight")
    tensors.pop("lm_head.weight", None)
    shape = (embed.shape[0], wide.shape[0])
    tensors[start + "embed_tokens.weight"] = Tensor(shape, lambda: embed.read() @ wide.read().T)
    tensors["lm_head.weight"] = Tensor(shape, lambda: embed.read() @ narrow.read())
    config["tie_word_embeddings"] = False


def mxfp4_rows(blocks, scales):
    """GGUF's rows of 17-byte blocks from gpt-oss's: a scale, then 16 bytes of two 4-bit elements. gpt-oss has elements 2i and 2i + 1
    in byte i, GGUF has i and i + 16. blocks [experts, rows, n, 16], scales [experts, rows, n]."""
    elements = np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*blocks.shape[:-1], 32)
    pairs = elements[..., :16] | elements[..., 16:] << 4
    return np.concatenate([scales[..., None], pairs], axis=-1).reshape(*blocks.shape[:2], -1)


def gpt_oss_experts(tensors, config):
    """Rows of gate and up alternate in one tensor."""
    for name in [n for n in tensors if re.search(r"\.mlp\.experts\.(gate_up|down)_proj", n) and not n.endswith("_scales")]:
        tensor = take(tensors, name)
        stem, part, kind = re.fullmatch(r"(.*\.experts)\.(gate_up|down)_proj_?(.*)", name).groups()
        end = ".bias" if kind == "bias" else ".weight"
        if kind == "blocks":
            scales, shape = take(tensors, name.replace("_blocks", "_scales")), tensor.shape
            tensor = Tensor((*shape[:2], 17 * shape[2]), lambda t=tensor, s=scales: mxfp4_rows(t.read(), s.read()), True)
        elif kind == "":  # [experts, inputs, outputs]
            n, cols, rows = tensor.shape
            tensor = change(tensor, (n, rows, cols), lambda a: a.swapaxes(1, 2))
        if part == "down":
            tensors[f"{stem}.down_proj{end}"] = tensor
            continue
        shape = (tensor.shape[0], tensor.shape[1] // 2, *tensor.shape[2:])
        for i, half in enumerate(("gate", "up")):
            tensors[f"{stem}.{half}_proj{end}"] = change(tensor, shape, lambda a, i=i: a[:, i::2])


# --------------------------------------------------------------------------------------- hyperparameters

def parallel_keys(writer, config):
    writer.add_parallel_residual(get(config, "use_parallel_residual", default=writer.arch == "gptneox"))


def gemma2_keys(writer, config):
    """Engines derive the scale of scores from the size of a head, in the two largest models from the width."""
    scale = get(config, "query_pre_attn_scalar", default=256) ** -0.5
    wide = {"gemma2": 46, "gemma3": 62}[writer.arch] == n_layers(config)
    implied = (n_heads(config) / config["hidden_size"]) ** 0.5 if wide else head_dim(config) ** -0.5
    if abs(scale / implied - 1) > 1e-6:
        writer.add_attention_scale(scale)
    for name, add in (("attn_logit_softcapping", writer.add_attn_logit_softcapping),
                      ("final_logit_softcapping", writer.add_final_logit_softcapping)):
        if config.get(name):
            add(config[name])


def granite_keys(writer, config):
    for name, add in (("attention_multiplier", writer.add_attention_scale), ("embedding_multiplier", writer.add_embedding_scale),
                      ("residual_multiplier", writer.add_residual_scale), ("logits_scaling", writer.add_logit_scale)):
        if config.get(name):
            add(config[name])


def cohere2_keys(writer, config):
    writer.add_logit_scale(get(config, "logit_scale", default=0.0625))


def smollm3_keys(writer, config):
    """Engines leave every fourth layer without RoPE."""
    rotates = config.get("no_rope_layers")
    every = [int(i % 4 != 3) for i in range(n_layers(config))]
    if (rotates if rotates is not None else every) != every or get(config, "no_rope_layer_interval", default=4) != 4:
        raise Failure("config.json: 'no_rope_layers': GGUF's smollm3 leaves out RoPE in every fourth layer and in no other")


def moe_keys(writer, config):
    writer.add_expert_count(need(config, "num_local_experts", "num_experts"))
    writer.add_expert_used_count(need(config, "num_experts_per_tok", "experts_per_token"))
    if writer.arch != "llama":
        writer.add_expert_feed_forward_length(need(config, "moe_intermediate_size", "intermediate_size"))
    if config.get("shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def opt_keys(writer, config):
    writer.add_bool("opt.layer_norm_before", get(config, "do_layer_norm_before", default=True))


SPARSE = {"decoder_sparse_step": 1, "mlp_only_layers": []}
FAMILIES = {
    "LlamaForCausalLM": Family("llama", permute=True),
    "MistralForCausalLM": Family("llama", permute=True),
    "MixtralForCausalLM": Family("llama", permute=True, rewrite=(stack_experts,), keys=moe_keys),
    "Qwen2ForCausalLM": Family("qwen2"),
    "Qwen3ForCausalLM": Family("qwen3"),
    "Qwen2MoeForCausalLM": Family("qwen2moe", rewrite=(stack_experts,), keys=moe_keys, fixed={"norm_topk_prob": False, **SPARSE}),
    "Qwen3MoeForCausalLM": Family("qwen3moe", rewrite=(stack_experts,), keys=moe_keys, fixed={"norm_topk_prob": True, **SPARSE}),
    "Phi3ForCausalLM": Family("phi3"),
    "PhiForCausalLM": Family("phi2", acts=GELU_TANH, rope_fraction=0.5, fixed={"qk_layernorm": False}),
    "GPT2LMHeadModel": Family("gpt2", acts=GELU_TANH, tied=True, rewrite=(transpose_conv1d,),
                              fixed={"scale_attn_weights": True, "scale_attn_by_inverse_layer_idx": False}),
    "GPTNeoXForCausalLM": Family("gptneox", acts=("gelu",), rope_fraction=0.25, rewrite=(split_neox_qkv,), keys=parallel_keys),
    "OPTForCausalLM": Family("opt", acts=("relu",), tied=True, rewrite=(opt_tensors,), keys=opt_keys,
                             fixed={"enable_bias": True, "layer_norm_elementwise_affine": True, "_remove_final_layer_norm": False}),
    "GemmaForCausalLM": Family("gemma", acts=GELU_TANH + ("gelu",), norm_plus_one=True, tied=True),
    "Gemma2ForCausalLM": Family("gemma2", acts=GELU_TANH, norm_plus_one=True, tied=True, window_period=2, keys=gemma2_keys),
    "Gemma3ForCausalLM": Family("gemma3", acts=GELU_TANH, norm_plus_one=True, tied=True, window_period=6, keys=gemma2_keys,
                                 fixed={"use_bidirectional_attention": False}),
    "StableLmForCausalLM": Family("stablelm", rope_fraction=0.25, rewrite=(stack_stablelm_norms,), keys=parallel_keys),
    "Starcoder2ForCausalLM": Family("starcoder2", acts=GELU_TANH, tied=True),
    "Olmo2ForCausalLM": Family("olmo2"),
    "GraniteForCausalLM": Family("granite", permute=True, keys=granite_keys),
    "SmolLM3ForCausalLM": Family("smollm3", permute=True, tied=True, keys=smollm3_keys),
    "Cohere2ForCausalLM": Family("cohere2", tied=True, window_period=4, keys=cohere2_keys, fixed={"use_qk_norm": False}),
    "Glm4ForCausalLM": Family("glm4", rope_fraction=0.5),
    "Exaone4ForCausalLM": Family("exaone4", window_period=4, pattern_implied=False),
    "InternLM2ForCausalLM": Family("internlm2", permute=True, rewrite=(split_internlm2_qkv,)),
    "GptOssForCausalLM": Family("gpt-oss", window_period=2, rewrite=(gpt_oss_experts,), keys=moe_keys),
}
FAMILIES["Gemma3ForConditionalGeneration"] = replace(FAMILIES["Gemma3ForCausalLM"], defaults=dict(
    num_attention_heads=8, num_key_value_heads=4, head_dim=256, vocab_size=262208, rms_norm_eps=1e-6, max_position_embeddings=131072,
    rope_theta=1e6, rope_local_base_freq=1e4))

# GGUF's names of OPT's tensors; all others are in the gguf package.
OPT_NAMES = {
    "embed_tokens": "token_embd", "embed_positions": "position_embd", "final_layer_norm": "output_norm", "lm_head": "output",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.out_proj": "attn_output",
    "self_attn_layer_norm": "attn_norm", "fc1": "ffn_up", "fc2": "ffn_down",
}


def opt_name(name):
    found = re.fullmatch(r"(?:model\.decoder\.)?(?:layers\.(\d+)\.)?(.*)\.(weight|bias)", name)
    layer, stem, end = found.groups() if found else (None, None, None)
    if layer is not None:
        return f"blk.{layer}.{'ffn_norm' if stem == 'final_layer_norm' else OPT_NAMES[stem]}.{end}" if stem in OPT_NAMES else None
    return f"{OPT_NAMES[stem]}.{end}" if stem in OPT_NAMES else None


def gguf_names(arch, layers):
    """A function from a name of PyTorch's to that of GGUF, or None."""
    if arch == "opt":
        return opt_name
    number = next(n for n, text in gguf.MODEL_ARCH_NAMES.items() if text == arch)
    known = gguf.get_tensor_name_map(number, layers)

    def name_of(name):
        found = known.get_name(name, try_suffixes=(".weight", ".bias"))
        if found and not found.endswith((".weight", ".bias")):
            found += ".weight"
        return found
    return name_of
