"""Samplers."""
import threading

import numpy as np

from ._handle import Handle, Owner
from ._library import check, ffi, ids_of, lib, new_error, params_of, pointer_to


class Sampler(Owner):
    """Draws tokens from logits. Parameters are those of struct butler_sampler_params: temperature (0: greedy), top_k, top_p, min_p, seed,
    repeat_penalty, ...; logit_bias is {token: bias}, end_ids a list of tokens."""

    def __init__(self, *, logit_bias=None, end_ids=None, **params):
        err = new_error()
        native, keep = params_of("struct butler_sampler_params", params)
        if logit_bias:
            biases = ffi.new("struct butler_logit_bias[]", [{"id": int(token), "bias": bias} for token, bias in logit_bias.items()])
            native.logit_bias, native.n_logit_bias = biases, len(biases)
        if end_ids is not None:
            array, native.end_ids = ids_of(end_ids)
            native.n_end_ids = len(array)
        self._handle = Handle("sampler", check(lib.butler_sampler_new(native, err), err), lib.butler_sampler_free)
        self._lock = threading.Lock()

    def accept(self, ids):
        """Tells it tokens of the text that it did not draw itself, a prompt: penalties count them."""
        array, pointer = ids_of(ids)
        err = new_error()
        with self._lock, self._handle.use() as sampler:
            check(lib.butler_sampler_accept(sampler, pointer, len(array), err), err)

    def sample(self, logits):
        """One token drawn from logits [n_vocab]."""
        logits = np.ascontiguousarray(logits, dtype=np.float32)
        if logits.ndim != 1:
            raise ValueError(f"logits of one position have one dimension, not {logits.ndim}")
        err = new_error()
        with self._lock, self._handle.use() as sampler:
            return check(lib.butler_sample(sampler, pointer_to(logits, "float *"), len(logits), err), err)
