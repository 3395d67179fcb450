"""Writes the tokenizer of a Hugging Face folder as GGUF keys. For tools/convert/convert_hf.py.

tokenizer.model (SentencePiece) is preferred to tokenizer.json, which for the same model holds merges instead of scores. The tokens
that either adds, the ids of special tokens and the chat template come from the other JSON files."""
import json
import struct
import sys

from gguf import TokenType

from hf_base import Failure
from hf_folder import read_json

# What a tokenizer.json splits text by, and the name that GGUF has for it. Stages: a regular expression; BYTES for a ByteLevel stage
# that splits by GPT-2's expression itself; DIGITS for single digits.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
          r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
          r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
BYTES, DIGITS = "ByteLevel", "Digits"
# Stages, and whether a word that is a token stays whole (ignore_merges) -> name.
PRE_TOKENIZERS = {
    ((BYTES,), False): "gpt-2",
    ((DIGITS, BYTES), False): "smollm",
    ((LLAMA3,), True): "llama-bpe",
    ((LLAMA3,), False): "dbrx",
    ((LLAMA3.replace("{1,3}", ""),), False): "qwen2",
    ((GPT4O,), False): "gpt-4o",
    ((TEKKEN,), True): "tekken",
}


# ------------------------------------------------------------------------------------------ SentencePiece

def fields(data, what):
    """(number, value) of each field of a protobuf message; value: int, bytes, or 4 or 8 raw bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise Failure(f"{what}: truncated, or not a SentencePiece model")
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        tag = varint()
        if tag & 7 == 0:
            yield tag >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(tag & 7) or (varint() if tag & 7 == 2 else None)
        if size is None or size > len(data) - at:
            raise Failure(f"{what}: truncated, or not a SentencePiece model")
        yield tag >> 3, data[at:at + size]
        at += size


def sentencepiece(path):
    """(tokens, scores, types, add_space_prefix) of a tokenizer.model. The numbers of types are GGUF's."""
    tokens, scores, types, prefix = [], [], [], True
    for number, value in fields(path.read_bytes(), path):
        if number == 1:
            piece = dict(fields(value, path))
            if not isinstance(piece.get(1), bytes):
                raise Failure(f"{path}: piece {len(tokens)} has no text")
            tokens.append(piece[1])
            scores.append(struct.unpack("<f", piece[2])[0] if 2 in piece else 0.0)
            types.append(piece.get(3, 1))
        elif number == 2 and dict(fields(value, path)).get(3, 1) != 2:
            raise Failure(f"{path}: no BPE model: GGUF's type 'llama' merges pairs, which gives other tokens than a unigram model")
        elif number == 3:
            prefix = bool(dict(fields(value, path)).get(3, 1))
    return tokens, scores, types, prefix


# ------------------------------------------------------------------------------------------ tokenizer.json

def stages(pre):
    """The stages of a pre_tokenizer as in PRE_TOKENIZERS, or None for one that has no place there."""
    kind = (pre or {}).get("type")
    if kind == "Sequence":
        each = [stages(p) for p in pre.get("pretokenizers", [])]
        return None if None in each else sum(each, ())
    if kind == BYTES:
        return None if pre.get("add_prefix_space") else (BYTES,) if pre.get("use_regex", True) else ()
    if kind == DIGITS:
        return (DIGITS,) if pre.get("individual_digits") else None
    pattern = (pre or {}).get("pattern", {}).get("Regex")
    if kind == "Split" and pattern and (pre.get("behavior"), bool(pre.get("invert"))) in (("Isolated", False), ("Removed", True)):
        return (DIGITS,) if pattern in (r"\p{N}", r"\d") else (pattern,)
    return None


def pre_name(path, data, wanted):
    if wanted:
        return wanted
    found = PRE_TOKENIZERS.get((stages(data.get("pre_tokenizer")), bool(data["model"].get("ignore_merges"))))
    if not found:
        shape = json.dumps(data.get("pre_tokenizer"))
        raise Failure(f"{path}: a pre-tokenizer that is not known; name GGUF's with --pre NAME. It is {shape[:400]}")
    return found


def merge_lines(merges):
    return [m if isinstance(m, str) else " ".join(m) for m in merges]


def is_byte_level(data):
    """Byte-level BPE spells every byte as a letter; the other kind marks spaces and falls back to <0x..> tokens."""
    return not data["model"].get("byte_fallback")


def with_rows(added, n_vocab):
    """The added tokens (id -> token) that the embedding has rows for. Gemma 3's tokenizer has one, for pictures, that text models lack."""
    beyond = sorted(i for i in added if n_vocab and i >= n_vocab)
    if beyond:
        print(f"convert_hf: {len(beyond)} added tokens from id {beyond[0]} are left out: the embedding has {n_vocab} rows", file=sys.stderr)
    return {i: token for i, token in added.items() if i not in beyond}


def vocabulary(path, data, n_vocab):
    """(tokens, types) by id. Ids without a token are unused ones."""
    every = {t["id"]: t for t in data.get("added_tokens") or []}
    added = list(with_rows(every, n_vocab).values())
    vocab = {text: i for text, i in data["model"]["vocab"].items() if i not in every}
    n = max([n_vocab, *(i + 1 for i in vocab.values()), *(t["id"] + 1 for t in added)])
    if n_vocab and n > n_vocab:
        raise Failure(f"{path}: token id {n - 1}, the embedding has {n_vocab} rows")
    tokens, types = [f"[PAD{i}]" for i in range(n)], [int(TokenType.UNUSED)] * n
    for text, i in vocab.items():
        is_byte = not is_byte_level(data) and len(text) == 6 and text.startswith("<0x")
        tokens[i], types[i] = text, int(TokenType.BYTE if is_byte else TokenType.NORMAL)
    for token in added:
        tokens[token["id"]] = token["content"]
        types[token["id"]] = int(TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED)
    return tokens, types


def scores_of(tokens, merges):
    """SentencePiece's scores that merge in the order of a list of merges: minus the rank of the first that makes a token."""
    rank = {}
    for i, line in enumerate(merge_lines(merges)):
        rank.setdefault(line.replace(" ", "", 1), i)
    return [-float(rank.get(token, len(merges))) for token in tokens]


def special_texts(folder, settings):
    """The texts of special tokens, wherever older files name them."""
    found = {token["content"] for token in (settings.get("added_tokens_decoder") or {}).values() if token.get("special")}
    for source in (read_json(folder / "special_tokens_map.json", optional=True) or {}, settings):
        for name, value in source.items():
            for token in value if name == "additional_special_tokens" and isinstance(value, list) else [value] if name.endswith("_token") else []:
                text = token.get("content") if isinstance(token, dict) else token
                found |= {text} if isinstance(text, str) else set()
    return found


# What classes without a tokenizer.json cut texts by, as GGUF calls it. Others are named by hand.
CLASSES = {"GPT2Tokenizer": "gpt-2", "CodeGenTokenizer": "gpt-2", "Qwen2Tokenizer": "qwen2"}


def pre_of_class(folder, settings):
    name = (settings.get("tokenizer_class") or "GPT2Tokenizer").removesuffix("Fast")
    if name not in CLASSES:
        raise Failure(f"{folder}: how the class {name} cuts texts stands in no file; name GGUF's pre-tokenizer with --pre NAME")
    return CLASSES[name]


def read_vocab_and_merges(folder, settings):
    """The older pair of files, as of GPT-2 and OPT, in the form of a tokenizer.json."""
    merges = (folder / "merges.txt").read_text(encoding="utf-8").split("\n")
    merges = [m for i, m in enumerate(merges) if m and not (i == 0 and m.startswith("#version"))]
    special = special_texts(folder, settings)
    vocab = read_json(folder / "vocab.json")
    more = {token["content"]: int(i) for i, token in (settings.get("added_tokens_decoder") or {}).items()}
    more.update(read_json(folder / "added_tokens.json", optional=True) or {})
    added = [{"id": i, "content": t, "special": t in special} for t, i in {**vocab, **more}.items() if t in special or t in more]
    byte_level = {"type": BYTES, "add_prefix_space": settings.get("add_prefix_space", False)}
    return {"model": {"type": "BPE", "vocab": vocab, "merges": merges}, "added_tokens": added, "pre_tokenizer": byte_level}


def add_bpe(writer, path, data, n_vocab, pre):
    """data: of a tokenizer.json, path: the file that errors name."""
    kind = (data.get("model") or {}).get("type")
    if kind != "BPE":
        raise Failure(f"{path}: a tokenizer of type {kind}; BPE converts, and SentencePiece from tokenizer.model")
    tokens, types = vocabulary(path, data, n_vocab)
    merges = data["model"].get("merges") or []
    if is_byte_level(data):
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre_name(path, data, pre))
        writer.add_token_list(tokens)
        writer.add_token_types(types)
        writer.add_token_merges(merge_lines(merges))
    else:
        unknown = data["model"].get("unk_token")
        types = [int(TokenType.UNKNOWN) if t == unknown else kind for t, kind in zip(tokens, types)]
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(tokens)
        writer.add_token_scores(scores_of(tokens, merges))
        writer.add_token_types(types)
        writer.add_add_space_prefix("Prepend" in json.dumps(data.get("normalizer")) or
                                    (data.get("pre_tokenizer") or {}).get("prepend_scheme") in ("always", "first"))
    return tokens


def add_sentencepiece(writer, path, settings, n_vocab):
    tokens, scores, types, prefix = sentencepiece(path)
    added = {int(i): t for i, t in (settings.get("added_tokens_decoder") or {}).items()}
    extra = read_json(path.parent / "added_tokens.json", optional=True) or {}
    special = special_texts(path.parent, settings)
    for text, i in extra.items():
        added.setdefault(i, {"content": text, "special": text in special})
    added = with_rows(added, n_vocab)
    n = max([n_vocab, len(tokens), *(i + 1 for i in added)])
    if n_vocab and n > n_vocab:
        raise Failure(f"{path}: token id {n - 1}, the embedding has {n_vocab} rows")
    for i in range(len(tokens), n):
        tokens.append(f"[PAD{i}]".encode())
        scores.append(-1000.0)
        types.append(int(TokenType.UNUSED))
    for i, token in added.items():
        tokens[i] = token["content"].encode()
        if types[i] not in (TokenType.UNKNOWN, TokenType.BYTE):
            types[i] = int(TokenType.CONTROL if token.get("special") else TokenType.USER_DEFINED)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_add_space_prefix(prefix)
    return [t.decode(errors="replace") for t in tokens]


# ------------------------------------------------------------------------------------------------- shared

def begins_with(data, bos):
    """Whether the post-processor of a tokenizer.json puts token bos before a text."""
    post = data.get("post_processor") or {}
    each = post.get("processors", []) if post.get("type") == "Sequence" else [post]
    for processor in each:
        single = processor.get("single") or [{}]
        if processor.get("type") == "TemplateProcessing" and (single[0].get("SpecialToken") or {}).get("id") == bos:
            return True
    return False


def as_list(value):
    return [] if value is None else value if isinstance(value, list) else [value]


def add_special(writer, settings, config, generation, tokens, data):
    index = {text: i for i, text in reversed(list(enumerate(tokens)))}

    def ids(name):
        """Of tokenizer_config.json first, then of the other two."""
        text = settings.get(f"{name}_token")
        text = text.get("content") if isinstance(text, dict) else text
        found = [index[text]] if text in index else []
        for source in (generation, config):
            found += [i for i in as_list(source.get(f"{name}_token_id")) if i not in found]
        for i in found:
            if not 0 <= i < len(tokens):
                print(f"convert_hf: {name}_token_id {i} is left out: there are {len(tokens)} tokens", file=sys.stderr)
        return [i for i in found if 0 <= i < len(tokens)]

    bos, eos, unknown, pad = ids("bos"), ids("eos"), ids("unk"), ids("pad")
    for found, add in ((bos, writer.add_bos_token_id), (eos, writer.add_eos_token_id), (unknown, writer.add_unk_token_id),
                       (pad, writer.add_pad_token_id), (eos[1:], writer.add_eot_token_id)):
        if found:
            add(found[0])
    add_bos = settings.get("add_bos_token")
    if add_bos is None:
        add_bos = bool(bos) and (begins_with(data, tokens[bos[0]]) or not data)
    writer.add_add_bos_token(bool(add_bos))
    writer.add_add_eos_token(bool(settings.get("add_eos_token")))


def add(writer, folder, config, generation, n_vocab, pre):
    """Writes every key of the tokenizer. n_vocab: rows of the embedding; tokens are filled up to it. pre: a name to use, or None."""
    settings = read_json(folder / "tokenizer_config.json", optional=True) or {}
    data = {}
    if (folder / "tokenizer.model").exists():
        tokens = add_sentencepiece(writer, folder / "tokenizer.model", settings, n_vocab)
    elif (folder / "tokenizer.json").exists():
        data = read_json(folder / "tokenizer.json")
        tokens = add_bpe(writer, folder / "tokenizer.json", data, n_vocab, pre)
    elif (folder / "vocab.json").exists() and (folder / "merges.txt").exists():
        data = read_vocab_and_merges(folder, settings)
        tokens = add_bpe(writer, folder / "vocab.json", data, n_vocab, pre or pre_of_class(folder, settings))
    else:
        raise Failure(f"{folder}: no tokenizer.json, no tokenizer.model, and not both of vocab.json and merges.txt")
    add_special(writer, settings, config, generation, tokens, data)
    template = settings.get("chat_template")
    if isinstance(template, list):
        template = next((t["template"] for t in template if t.get("name") == "default"), None)
    if (folder / "chat_template.jinja").exists():
        template = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    if template:
        writer.add_chat_template(template)
