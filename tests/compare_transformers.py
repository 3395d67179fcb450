"""Logits of real models beside those of transformers: the weights that butler reads are dequantised by the package gguf and put into
a float32 model of transformers, and both read the same texts.

    python3 tests/compare_transformers.py models/smollm2.gguf models/gemma3-270m.gguf [--json OUT] [--write-page]

Needs torch, transformers, gguf and numpy in the interpreter, and `make lib` (build/libbutler.so.*). Texts are the books of
../shared/data or $BUTLER_DATA where they are, else models/long_text.txt. Prints, for every text, in how many positions both have the
same best token, the mean and the highest KL divergence of butler's distribution from transformers', and the cosine of the mean hidden
states; after the first text also where 200 greedy tokens first differ. Models that were trained for 16,384 tokens also read 4,096 and
16,384, with caches of each type (three minutes and ten for half a billion parameters on two cores; no cosine).
Exits with 1 where a figure misses its limit. --write-page puts the table into docs/models.md."""
import argparse
import ctypes
import json
import os
import re
import sys
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIN_TOP1, MAX_KL, MIN_COSINE = 0.995, 1e-4, 0.9999
MAX_ROUNDED_KL = 1e-3  # with keys and values of 16 or 8 bits
NEAR_TIE = 0.01  # of logits; greedy texts may part where the two best are closer than this
LENGTHS, LONG, N_GREEDY = (512, 512, 2000), (4096, 16384), 200
CHUNK = 2048  # tokens that transformers reads at a time: eager attention stores every weight
ROWS = 64  # positions compared at a time: a vocabulary of 262,144 makes 64 MB of them


def need(name):
    try:
        return __import__(name)
    except ImportError:
        sys.exit(f"compare_transformers: the Python package {name} is absent; it takes torch, transformers, gguf and numpy")


np, torch, transformers, gguf = map(need, ("numpy", "torch", "transformers", "gguf"))


# ---------------------------------------------------------------------------------------------- butler, by its C API

class Error(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("message", ctypes.c_char * 512)]


class EngineParams(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("n_threads", ctypes.c_int), ("isa", ctypes.c_char_p), ("n_block", ctypes.c_int),
                ("kv_bytes", ctypes.c_uint64), ("prefix_bytes", ctypes.c_uint64), ("activation_bits", ctypes.c_int)]


class SessionParams(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("n_ctx", ctypes.c_int), ("kv_type", ctypes.c_int), ("policy", ctypes.c_char_p),
                ("seed", ctypes.c_uint64)]


class Span(ctypes.Structure):
    _fields_ = [("struct_size", ctypes.c_size_t), ("session", ctypes.c_void_p), ("ids", ctypes.POINTER(ctypes.c_int32)), ("n", ctypes.c_int), ("prompt_end", ctypes.c_int),
                ("exact", ctypes.c_bool), ("no_logits", ctypes.c_bool), ("each", ctypes.c_void_p), ("user", ctypes.c_void_p),
                ("hidden", ctypes.c_void_p)]


KV_TYPES, ADD_SPECIAL = {"f32": 1, "f16": 0, "q8_0": 2}, 1
EACH = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_float))


class Butler:
    def __init__(self, path, n_vocab, n_threads=0, prefix_bytes=0):
        libraries = sorted((ROOT / "build").glob("libbutler.so.*"))
        if not libraries:
            sys.exit("compare_transformers: build/libbutler.so.* is absent (make lib)")
        self.lib, self.error, self.n_vocab = ctypes.CDLL(str(libraries[-1])), Error(), n_vocab
        for name in ("butler_model_load", "butler_engine_new", "butler_session_new"):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.lib.butler_logits.restype = ctypes.POINTER(ctypes.c_float)
        self.model = ctypes.c_void_p(self.check(self.lib.butler_model_load(str(path).encode(), None, ctypes.byref(self.error))))
        # What is compared is the model, not the rounding of activations.
        params = EngineParams(ctypes.sizeof(EngineParams), n_threads=n_threads, prefix_bytes=prefix_bytes, activation_bits=16)
        self.engine = ctypes.c_void_p(self.check(self.lib.butler_engine_new(self.model, ctypes.byref(params), ctypes.byref(self.error))))

    def check(self, result):
        """A pointer or a number that says whether a call went well."""
        if result is None or result < 0:
            sys.exit(f"compare_transformers: {self.error.message.decode()}")
        return result

    def tokenize(self, text):
        data, ids = text.encode(), (ctypes.c_int32 * (len(text.encode()) + 8))()
        return list(ids[:self.check(self.lib.butler_tokenize(self.model, data, ctypes.c_size_t(len(data)), ADD_SPECIAL, ids, len(ids),
                                                             ctypes.byref(self.error)))])

    def session(self, n_ctx, policy="full", kv_type="f32"):
        params = SessionParams(n_ctx=n_ctx, kv_type=KV_TYPES[kv_type], policy=policy.encode())
        return ctypes.c_void_p(self.check(self.lib.butler_session_new(self.engine, ctypes.byref(params), ctypes.byref(self.error))))

    def prefill(self, session, ids, each=None):
        """each(position, logits of one position, which lie there only during the call)"""
        call = EACH(lambda _, position, logits: each(position, np.ctypeslib.as_array(logits, (self.n_vocab,))) or True) if each else None
        self.check(self.lib.butler_prefill(session, (ctypes.c_int32 * len(ids))(*ids), len(ids), call, None, ctypes.byref(self.error)))

    def hidden(self, ids, n_embd):
        """The hidden states of a prompt's positions, after the final norm."""
        rows, session = [], self.session(len(ids))
        call = EACH(lambda _, position, hidden: rows.append(np.ctypeslib.as_array(hidden, (n_embd,)).copy()) is None)
        span = Span(session=session, ids=(ctypes.c_int32 * len(ids))(*ids), n=len(ids), prompt_end=len(ids), no_logits=True,
                    hidden=ctypes.cast(call, ctypes.c_void_p))
        self.check(self.lib.butler_run(self.engine, ctypes.byref(span), 1, ctypes.byref(self.error)))
        self.lib.butler_session_free(session)
        return np.stack(rows)

    def greedy(self, ids, n):
        """The greedy tokens after ids, and the logits that each was chosen by."""
        session, found, seen = self.session(len(ids) + n), [], []
        self.prefill(session, ids)
        for _ in range(n):
            seen.append(np.ctypeslib.as_array(self.lib.butler_logits(session), (self.n_vocab,)).copy())
            found.append(int(seen[-1].argmax()))
            self.check(self.lib.butler_step(session, found[-1], ctypes.byref(self.error)))
        self.lib.butler_session_free(session)
        return found, seen


# --------------------------------------------------------------------------------------------- transformers' model

MODELS = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "gemma3": "Gemma3ForCausalLM"}
LAYER = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
         "attn_output": "self_attn.o_proj", "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
         "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj", "ffn_norm": "post_attention_layernorm"}
GEMMA_LAYER = {**LAYER, "ffn_norm": "pre_feedforward_layernorm", "post_attention_norm": "post_attention_layernorm",
               "post_ffw_norm": "post_feedforward_layernorm"}


def config_of(read):
    """transformers' configuration of what the file says; read(key) without the architecture's name, None where there is none."""
    common = dict(hidden_size=read("embedding_length"), num_hidden_layers=read("block_count"), intermediate_size=read("feed_forward_length"),
                  num_attention_heads=read("attention.head_count"), num_key_value_heads=read("attention.head_count_kv"),
                  max_position_embeddings=read("context_length"), rms_norm_eps=read("attention.layer_norm_rms_epsilon"))
    if read("") != "gemma3":
        return (transformers.LlamaConfig if read("") == "llama" else transformers.Qwen2Config)(**common, rope_parameters={"rope_type": "default", "rope_theta": read("rope.freq_base")})
    ropes = {"full_attention": read("rope.freq_base"), "sliding_attention": 10000.0}
    kinds = ["full_attention" if l % 6 == 5 else "sliding_attention" for l in range(common["num_hidden_layers"])]
    return transformers.Gemma3TextConfig(
        **common, head_dim=read("attention.key_length"), query_pre_attn_scalar=read("attention.key_length"), layer_types=kinds,
        sliding_window=read("attention.sliding_window"), rope_parameters={k: {"rope_type": "default", "rope_theta": v} for k, v in ropes.items()})


def load(path):
    """(the model with dequantised weights in float32, its architecture)"""
    reader = gguf.GGUFReader(path)
    arch = reader.fields["general.architecture"].contents()
    if arch not in MODELS:
        sys.exit(f"compare_transformers: {path}: architecture {arch}; this script knows {', '.join(MODELS)}")

    def read(key):
        field = reader.fields.get(f"{arch}.{key}")
        return arch if not key else field.contents() if field else None

    tensors = {t.name: gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(int(d) for d in reversed(t.shape)))
               for t in reader.tensors}
    config = config_of(read)
    config.vocab_size, config.tie_word_embeddings = tensors["token_embd.weight"].shape[0], "output.weight" not in tensors
    config._attn_implementation = "eager"
    model = getattr(transformers, MODELS[arch])(config).float().eval()
    state = {}
    for name, value in tensors.items():
        if name == "rope_freqs.weight":
            continue
        parts = name.split(".")
        if parts[0] == "blk":
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(parts[2])
            if arch == "llama" and heads:  # GGUF stores pairs that rotate side by side, transformers half a head apart
                value = value.reshape(heads, -1, 2, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
            to = f"model.layers.{parts[1]}.{(GEMMA_LAYER if arch == 'gemma3' else LAYER)[parts[2]]}.{parts[3]}"
        else:
            to = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}[parts[0]] + ".weight"
        if arch == "gemma3" and "norm" in to:  # transformers adds 1 to a norm's weight, GGUF stores the sum
            value = value - 1
        state[to] = torch.from_numpy(np.ascontiguousarray(value))
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) - ({"lm_head.weight"} if config.tie_word_embeddings else set()):
        sys.exit(f"compare_transformers: {path}: tensors that do not fit: {missing} {unexpected}")
    model.tie_weights()
    return model, arch


# ------------------------------------------------------------------------------------------------------- comparing

def texts():
    """Three texts, each with its name."""
    books = Path(os.environ.get("BUTLER_DATA", ROOT.parent / "shared" / "data")) / "books-valid.tar.xz"
    if books.exists():
        with tarfile.open(books) as archive:
            books = sorted((m for m in archive.getmembers() if m.isfile() and m.size > 100000), key=lambda m: m.name)[:3]
            return [(Path(m.name).stem, archive.extractfile(m).read()[20000:120000].decode(errors="ignore")) for m in books]
    text = (ROOT / "models" / "long_text.txt").read_text()
    return [(f"long_text.txt from {at}", text[at:]) for at in (0, 6000, 12000)]


def read(model, ids):
    """transformers' hidden states after the final norm."""
    parts, cache = [], None
    for at in range(0, len(ids), CHUNK):
        with torch.no_grad():
            out = model.model(torch.tensor([ids[at:at + CHUNK]]), past_key_values=cache, use_cache=len(ids) > CHUNK)
        parts.append(out.last_hidden_state[0])
        cache = out.past_key_values
    return torch.cat(parts)


def compare(butler, model, ids, hidden, kv_type="f32"):
    """(how often the best token is the same, mean and highest KL of butler's distribution from transformers')"""
    rows, same, kl = [], 0, []

    def flush():
        nonlocal same
        first = len(kl)
        with torch.no_grad():
            want = torch.log_softmax(model.lm_head(hidden[first:first + len(rows)]).double(), -1)
            got = torch.log_softmax(torch.from_numpy(np.stack(rows)).double(), -1)
            same += int((want.argmax(-1) == got.argmax(-1)).sum())
            kl.extend((want.exp() * (want - got)).sum(-1).tolist())
        rows.clear()

    def each(position, logits):
        rows.append(logits.copy())
        if len(rows) == ROWS or position == len(ids) - 1:
            flush()

    session = butler.session(len(ids), kv_type=kv_type)
    butler.prefill(session, ids, each)
    butler.lib.butler_session_free(session)
    assert len(kl) == len(ids)
    return same / len(ids), sum(kl) / len(ids), max(kl)


def cosine(butler, ids, hidden):
    """Of the mean hidden states."""
    want, got = hidden.double().mean(0).numpy(), butler.hidden(ids, hidden.shape[1]).astype(np.float64).mean(0)
    return float(want @ got / np.sqrt((want @ want) * (got @ got)))


def greedy(butler, model, ids):
    """Where the greedy texts part (N_GREEDY: nowhere), and by how much each side prefers its own token to the other's."""
    found, seen = butler.greedy(ids, N_GREEDY)
    text, cache = torch.tensor([ids]), None
    for n in range(N_GREEDY):
        with torch.no_grad():
            out = model(text, past_key_values=cache, use_cache=True, logits_to_keep=1)
        cache, logits = out.past_key_values, out.logits[0, -1].numpy()
        best = int(logits.argmax())
        if best != found[n]:
            return n, float(seen[n][found[n]] - seen[n][best]), float(logits[best] - logits[found[n]])
        text = torch.tensor([[best]])
    return N_GREEDY, 0.0, 0.0


def run(path):
    """Rows of the table, and whether every figure is within its limit."""
    model, _ = load(path)
    butler = Butler(path, model.config.vocab_size)
    lengths = LENGTHS + (LONG if model.config.max_position_embeddings >= LONG[-1] else ())
    rows, good, found = [], True, texts()
    for i, length in enumerate(lengths):
        name, text = found[min(i, len(found) - 1)]
        ids = butler.tokenize(text)[:length]
        if len(ids) < length and length in LONG:
            print(f"{Path(path).stem}: {name} has {len(ids)} tokens: nothing of {length} is compared", flush=True)
            continue
        if len(ids) < length:
            sys.exit(f"compare_transformers: {name} has {len(ids)} tokens, fewer than {length}")
        hidden = read(model, ids)
        for kv_type in KV_TYPES if length in LONG else ("f32",):
            top1, kl, highest = compare(butler, model, ids, hidden, kv_type)
            rows.append({"model": Path(path).stem, "text": name, "tokens": length, "cache": kv_type, "top1": top1, "kl": kl, "highest": highest})
            good = good and (top1 >= MIN_TOP1 and kl <= MAX_KL if kv_type == "f32" else kl <= MAX_ROUNDED_KL)
            print(f"{Path(path).stem}, {length} tokens of {name}, {kv_type}: top-1 {top1:.2%}, KL {kl:.1e}, at most {highest:.1e}", flush=True)
        if length in LENGTHS:
            near = cosine(butler, ids, hidden)
            good = good and near >= MIN_COSINE
            print(f"  mean hidden state: cosine {near:.6f}", flush=True)
        if i > 0:
            continue
        part, ours, theirs = greedy(butler, model, ids)
        rows[0].update(greedy=part, ours=ours, theirs=theirs)
        good = good and (part == N_GREEDY or max(ours, theirs) < NEAR_TIE)
        print(f"  greedy: equal for {part} of {N_GREEDY} tokens"
              + (f", then butler prefers its token by {ours:.4f}, transformers its own by {theirs:.4f}" if part < N_GREEDY else ""), flush=True)
    return rows, good


def write_page(rows):
    """The table between the two marks of docs/models.md."""
    lines = ["| model | tokens | cache | same best token | mean KL | highest KL | greedy tokens that are equal |", "| --- | --- | --- | --- | --- | --- | --- |"]
    for r in rows:
        same = f"{r['greedy']} of {N_GREEDY}" if "greedy" in r else ""
        if r.get("greedy", N_GREEDY) < N_GREEDY:
            same += f", then logits {r['ours']:.4f} and {r['theirs']:.4f} apart"
        lines.append(f"| {r['model']} | {r['tokens']} | {r['cache']} | {r['top1']:.2%} | {r['kl']:.0e} | {r['highest']:.0e} | {same} |")
    page = ROOT / "docs" / "models.md"
    pattern = r"(?<=<!-- compare_transformers -->\n\n)(\|.*\|\n)*"
    page.write_text(re.sub(pattern, lambda _: "\n".join(lines) + "\n", page.read_text(), count=1))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("--json", metavar="OUT", help="the rows as JSON")
    parser.add_argument("--write-page", action="store_true", help="write the table of docs/models.md")
    args = parser.parse_args()
    torch.manual_seed(0)
    all_rows, all_good = [], True
    for path in args.models:
        rows, good = run(path)
        all_rows, all_good = all_rows + rows, all_good and good
    if args.json:
        Path(args.json).write_text(json.dumps(all_rows, indent=1) + "\n")
    if args.write_page:
        write_page(all_rows)
    sys.exit(0 if all_good else 1)
