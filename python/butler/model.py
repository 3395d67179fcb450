"""A model: a file's weights and tokenizer."""
import json
import os
import warnings

import numpy as np

from ._handle import Handle, Owner
from ._library import c_path, c_string, check, copy_of, fields_of, ffi, kv_type_of, lib, new_error, new_struct, params_of


def describe(path):
    """What a model, a predictor or a session file is, as `butler info` says it (struct butler_file_info)."""
    info, err = new_struct("struct butler_file_info"), new_error()
    check(lib.butler_file_describe(c_path(path), info, err), err)
    return fields_of(info)


def grown(count_into, err):
    """The ids that count_into(array, length) writes, which says how many there are."""
    n = check(count_into(ffi.NULL, 0), err)
    ids = ffi.new("int32_t[]", max(n, 1))
    check(count_into(ids, n), err)
    if not err.code and err.message[0] != b"\0":
        warnings.warn(ffi.string(err.message).decode("utf-8", "replace"), stacklevel=3)
    return copy_of(ids, n, dtype=np.int32)


class Model(Owner):
    """A GGUF file. Parameters are those of struct butler_model_params: vocabulary_only, pre_tokenizer, cache_folder, rope_scaling, rope_scale,
    rope_original_ctx. Any number of threads may use it."""

    def __init__(self, path, **params):
        err = new_error()
        native, keep = params_of("struct butler_model_params", params)
        pointer = check(lib.butler_model_load(c_path(path), native, err), err)
        self._handle = Handle("model", pointer, lib.butler_model_free)
        self.path, self.n_vocab = os.fspath(path), self.info.n_vocab

    @property
    def info(self):
        """Architecture, sizes and the chat template (struct butler_model_info)."""
        with self._handle.use() as model:
            return fields_of(lib.butler_model_get_info(model))

    @property
    def fingerprint(self):
        value, err = ffi.new("uint64_t *"), new_error()
        with self._handle.use() as model:
            check(lib.butler_model_fingerprint(model, value, err), err)
        return value[0]

    def tokenize(self, text, *, add_special=True, parse_special=True):
        """Ids of a text (str or bytes) as an array of int32, as `butler tokenize` gives them. add_special: with BOS where the vocabulary asks
        for it. parse_special: "<|eot_id|>" in the text is that token, not its letters."""
        raw, err = text_bytes(text), new_error()
        flags = lib.BUTLER_ADD_SPECIAL * bool(add_special) | lib.BUTLER_PARSE_SPECIAL * bool(parse_special)
        with self._handle.use() as model:
            return grown(lambda ids, n: lib.butler_tokenize(model, raw, len(raw), flags, ids, n, err), err)

    def token_bytes(self, token):
        """The bytes of one token as they stand in text; b"" for control tokens."""
        return self._piece(lib.butler_token_bytes, token)

    def token_spelling(self, token):
        """How the vocabulary spells the token, control tokens too."""
        return self._piece(lib.butler_token_spelling, token)

    def _piece(self, function, token):
        n = ffi.new("size_t *")
        with self._handle.use() as model:
            if not 0 <= token < self.n_vocab:
                raise ValueError(f"token {token} is not one of the {self.n_vocab} of {self.path}")
            found = function(model, token, n)
            return b"" if found == ffi.NULL else bytes(ffi.buffer(found, n[0]))

    def detokenize(self, ids):
        """The text of token ids; bytes that are not UTF-8 become U+FFFD."""
        stream = ffi.new("struct butler_utf8 *")
        text = bytearray()
        for token in [*ids, None]:
            raw = ffi.NULL if token is None else self.token_bytes(int(token))
            size = 16 if token is None else 3 * (len(raw) + 3) + 16
            out = ffi.new("char[]", size)
            text += ffi.buffer(out, lib.butler_utf8_push(stream, raw, 0 if token is None else len(raw), out, size))
        return text.decode("utf-8")

    @property
    def bos(self):
        """The token that begins a text, or None."""
        with self._handle.use() as model:
            token = lib.butler_token_bos(model)
        return None if token < 0 else token

    def is_end(self, token):
        """Whether the token ends an answer."""
        with self._handle.use() as model:
            return lib.butler_token_is_end(model, token)

    def chat(self, messages, *, add_generation_prompt=True, jinja=None, tools=None, variables=None, now=0):
        """Text and ids of a conversation by the model's chat template. messages: [{"role": "user", "content": "..."}, ...]; other fields
        than these two, tools and variables become JSON. now: seconds since 1970 for templates that write the date; 0: the system's clock."""
        options = {"jinja": jinja, "add_generation_prompt": add_generation_prompt, "now": now,
                   "tools": None if tools is None else json.dumps(tools), "variables": None if variables is None else json.dumps(variables)}
        native, keep = params_of("struct butler_chat_options", options)
        list_ = ffi.new("struct butler_chat_message[]", max(len(messages), 1))
        for place, message in zip(list_, messages):
            fields = {name: value for name, value in message.items() if name not in ("role", "content")}
            for name, value in (("role", message["role"]), ("content", message.get("content")), ("fields", json.dumps(fields))):
                if value is not None:
                    keep.append(c_string(value))
                    setattr(place, name, keep[-1])
        text, err = ffi.new("struct butler_chat_text *"), new_error()
        with self._handle.use() as model:
            check(lib.butler_chat_render(model, list_, len(messages), native, text, err), err)
            try:
                ids = grown(lambda ids, n: lib.butler_chat_tokenize(model, text, 0, ids, n, err), err)
                return bytes(ffi.buffer(text.bytes, text.n)).decode("utf-8", "replace"), ids
            finally:
                lib.butler_chat_text_free(text)

    def kv_bytes(self, n_tokens, kv_type="f16"):
        """Bytes of cache that n_tokens need under dense attention."""
        with self._handle.use() as model:
            return lib.butler_kv_bytes(model, kv_type_of(kv_type), n_tokens)


def text_bytes(text):
    if isinstance(text, (bytes, bytearray, memoryview)):
        return bytes(text)
    if isinstance(text, str):
        return text.encode("utf-8")
    raise TypeError(f"a text is str or bytes, not {type(text).__name__}")  # bytes(5) would be five zero bytes
