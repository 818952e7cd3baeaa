"""Attention over sequences of different lengths that lie in one row, as an attention function of transformers.

``torch.nn.attention.varlen`` is part of torch: FlashAttention's kernels, forwards and backwards, for 16-bit floats on
GPUs. Elsewhere each sequence is given to torch's SDPA by itself: the same mathematics, for tests.
"""

from collections.abc import Callable
from functools import cache
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from oapl_core.training.layouts.placing import VARIABLE_LENGTH

_WIDEST_HEAD = 256
"""Widest head that FlashAttention's kernels compute."""


def has_kernel(model: Any, dtype: torch.dtype) -> bool:
    """Return whether ``model`` (of transformers, in ``dtype``) can have this attention and a kernel runs it."""
    config = model.config.get_text_config()
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    runs = torch.cuda.is_available() and dtype == torch.bfloat16 and head <= _WIDEST_HEAD
    return runs and is_plain(model)


def is_plain(model: Any) -> bool:
    """Return whether, by its settings, only this attention lets a token of ``model`` see others."""
    config = model.config.get_text_config()
    # neither soft caps nor sinks (GPT-OSS) are computed here; families without the interface have their own attention
    special = getattr(config, "attn_logit_softcapping", None) or any(
        name.endswith(".sinks") for name, _ in model.named_parameters()
    )
    return bool(getattr(model, "_supports_attention_backend", False) and not special)


def give(model: Any) -> None:
    """Let ``model`` attend with ``attend``."""
    from transformers import AttentionInterface

    # No mask is registered for it: then transformers makes none, and does not wait for a GPU to tell it whether the
    # positions are of several sequences.
    AttentionInterface.register(VARIABLE_LENGTH, attend)
    model.set_attn_implementation(VARIABLE_LENGTH)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int | None = None,
    cu_seq_lens_k: Tensor | None = None,
    max_length_k: int | None = None,
    key_place_K: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Compute causal attention within each sequence: [1, tokens, heads, value size].

    Keys of a sequence may lie elsewhere in the row: its queries are then those of its last tokens.

    Args:
        module: the layer; not used.
        query: [1, heads, tokens, head size].
        key: [1, key heads, tokens, head size]; a key head serves several heads.
        value: [1, key heads, tokens, value size].
        attention_mask: none; ``cu_seq_lens_q`` says what belongs together.
        scaling: factor of the products; unset: 1 / sqrt(head size).
        sliding_window: how many tokens back a token looks, itself included; unset: to the sequence's begin.
        cu_seq_lens_q: of ``bounds``; unset: one sequence.
        max_length_q: of ``bounds``.
        cu_seq_lens_k: where the keys of each sequence begin and end, among those of ``key_place_K``.
        max_length_k: the most keys that a sequence has.
        key_place_K: places in the row, of the keys of all sequences one after another; unset: as the queries lie.
    """
    assert attention_mask is None and query.shape[0] == 1, "packed rows have no mask and are one"
    tokens, size = query.shape[2], value.shape[3]
    bounds_of = [_one_sequence(query) if bound is None else bound for bound in (cu_seq_lens_q, cu_seq_lens_k)]
    longest = [tokens if most is None else most for most in (max_length_q, max_length_k)]
    scaling = query.shape[3] ** -0.5 if scaling is None else scaling
    value = pad(value, (0, query.shape[3] - size))  # latent attention has narrower values
    if key_place_K is not None:
        key, value = (tensor.index_select(2, key_place_K) for tensor in (key, value))
    compute = _kernel if query.is_cuda and query.dtype == torch.bfloat16 else _one_by_one
    output = compute(query[0], key[0], value[0], bounds_of, longest, scaling, sliding_window)
    return output[None, ..., :size], None


def _one_sequence(query: Tensor) -> Tensor:
    return torch.tensor([0, query.shape[2]], dtype=torch.int32, device=query.device)


@cache
def _takes(function: Callable[..., Any], argument: str) -> bool:
    """Return whether ``function`` has such an argument; asked once and not in every layer."""
    return argument in signature(function).parameters


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds_of: list[Tensor],
    longest: list[int],
    scaling: float,
    window: int | None,
) -> Tensor:
    from torch.nn.attention import varlen

    attend_rows: Callable[..., Any] = varlen.varlen_attn
    # before torch 2.13 there is no such argument, and fewer key heads are allowed
    grouped = {"enable_gqa": True} if _takes(attend_rows, "enable_gqa") else {}
    size = (-1 if window is None else window - 1, 0)
    q, k, v = (tensor.transpose(0, 1) for tensor in (query, key, value))
    # its causal mask ends with the last query at the last key, also where there are more keys than queries
    output: Tensor = attend_rows(q, k, v, *bounds_of, *longest, scale=scaling, window_size=size, **grouped)
    return output


def _one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bounds_of: list[Tensor],
    longest: list[int],
    scaling: float,
    window: int | None,
) -> Tensor:
    parts, (queries, keys) = [], (pairwise(bound.tolist()) for bound in bounds_of)
    for (first, last), (start, end) in zip(queries, keys, strict=True):
        near = None
        if end - start > min(last - first, window or end):
            place = torch.arange(end - start, device=query.device)
            back = place[first - last :, None] - place
            near = (back >= 0) & (back < (window or end))
        part = scaled_dot_product_attention(
            query[None, :, first:last],
            key[None, :, start:end],
            value[None, :, start:end],
            attn_mask=near,
            is_causal=near is None,
            scale=scaling,
            enable_gqa=len(query) != len(key),
        )
        parts.append(part[0].transpose(0, 1))
    return torch.cat(parts)
