"""Answers of a small model to many prompts, in one batch, by transformers: for thousands of short answers on a GPU.

An answer's tokens are drawn from the model's distribution at its temperature and top-p, by the inverse of the
cumulative distribution at numbers that depend on the seed, the answer and the position alone: arms that are compared
get the same numbers. A row of the batch is a beginning that one answer or many have. Log-probs of training rollouts
never come from here; vLLM samples those.

Axes: R answers, N different beginnings of them, V tokens of the vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_ROWS = 8192
"""Answers that are sampled at once: each different beginning keeps its keys and values."""


@dataclass(frozen=True)
class Way:
    """How answers are drawn, and how many to a prompt. Temperature 0 takes the likeliest token."""

    name: str
    temperature: float
    top_p: float
    answers: int


WAYS = (Way("t1", 1.0, 1.0, 16), Way("t06", 0.6, 0.95, 16), Way("greedy", 0.0, 1.0, 1))
"""Held-out answers."""
TUNED_BY = Way("t06", 0.6, 0.95, 16)
"""Validation answers, which settings are chosen by."""


@torch.inference_mode()
def sampled(
    model: Any, prompts: Sequence[Sequence[int]], ways: Sequence[Way], most_tokens: int, ends: Sequence[int], seed: int
) -> NDArray[np.int16]:
    """Answers as [prompts, answers of all ways, tokens]; -1 behind an answer's end token, which is its last.

    An answer without an end token was cut.
    """
    rows = sum(way.answers for way in ways)
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(len(prompts), rows, most_tokens, generator=generator)
    at_once = max(1, MOST_ROWS // rows)
    parts = [
        _sampled(model, prompts[i : i + at_once], ways, uniform[i : i + at_once], ends)
        for i in range(0, len(prompts), at_once)
    ]
    return np.concatenate(parts)


def _sampled(
    model: Any, prompts: Sequence[Sequence[int]], ways: Sequence[Way], uniform_PAT: Tensor, ends: Sequence[int]
) -> NDArray[np.int16]:
    from transformers import DynamicCache

    device = next(model.parameters()).device
    longest, (_, answers, most) = max(map(len, prompts)), uniform_PAT.shape
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    cache = DynamicCache()
    place = (seen.cumsum(1) - 1).clamp(min=0)
    out = model(input_ids=ids, attention_mask=seen, position_ids=place, past_key_values=cache, logits_to_keep=1)
    logits_NV, place = out.logits[:, -1], place[:, -1:]
    way_R = torch.tensor([n for n, way in enumerate(ways) for _ in range(way.answers)] * len(prompts), device=device)
    uniform, end = uniform_PAT.flatten(0, 1).to(device), torch.tensor(list(ends), device=device)
    found = torch.full((len(way_R), most), -1, dtype=torch.int16, device=device)
    alive = torch.arange(len(way_R), device=device)
    beginning_R = alive // answers
    for t in range(most):
        token = torch.zeros_like(alive)
        for number, way in enumerate(ways):
            own = (way_R[alive] == number).nonzero()[:, 0]
            token[own] = drawn(logits_NV, beginning_R[own], uniform[alive[own], t], way)
        found[alive, t] = token.to(torch.int16)
        going = ~torch.isin(token, end)
        alive, token, before = alive[going], token[going], beginning_R[going]
        if not len(alive) or t + 1 == most:
            break
        # answers that have begun alike are computed once: of a trained policy most have
        pairs, beginning_R = torch.unique(before * logits_NV.shape[1] + token, return_inverse=True)
        before, token = pairs // logits_NV.shape[1], pairs % logits_NV.shape[1]
        cache.batch_select_indices(before)
        seen, place = torch.cat([seen[before], torch.ones_like(before)[:, None]], 1), place[before] + 1
        given = {"attention_mask": seen, "position_ids": place, "past_key_values": cache}
        logits_NV = model(input_ids=token[:, None], **given).logits[:, -1]
    return found.cpu().numpy().astype(np.int16).reshape(len(prompts), answers, most)


def drawn(logits_NV: Tensor, beginning_R: Tensor, uniform_R: Tensor, way: Way) -> Tensor:
    """A token of each row, [R], behind its beginning, one of N: where the cumulative distribution passes its number."""
    own, at_R = beginning_R.unique(return_inverse=True)
    logits_NV = logits_NV[own].float()
    if way.temperature == 0:
        return logits_NV.argmax(-1)[at_R]
    probability_NV = torch.softmax(logits_NV / way.temperature, -1)
    if way.top_p == 1:
        return passed_at(probability_NV.cumsum(-1)[at_R], uniform_R)
    sorted_NV, order_NV = probability_NV.sort(-1, descending=True)
    before_NV = sorted_NV.cumsum(-1) - sorted_NV
    # the fewest likeliest tokens whose probabilities reach top_p, as vLLM takes them
    kept_NV = sorted_NV * (before_NV < way.top_p)
    return order_NV[at_R, passed_at(kept_NV.cumsum(-1)[at_R], uniform_R)]


def passed_at(cumulative_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Place at which each row passes its number, [R]."""
    at_R = torch.searchsorted(cumulative_RV, (uniform_R * cumulative_RV[:, -1])[:, None], right=True)[:, 0]
    return at_R.clamp(max=cumulative_RV.shape[1] - 1)
