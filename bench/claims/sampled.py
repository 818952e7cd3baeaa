"""Answers of a small model to many prompts, in one batch, by transformers: for thousands of short answers on a GPU.

A row of the batch is an answer. Its tokens are drawn from the model's distribution at the row's temperature and top-p,
by the inverse of the cumulative distribution at numbers that depend on the seed, the row and the position alone: arms
that are compared get the same numbers. Log-probs of training rollouts never come from here; vLLM samples those.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

MOST_ROWS = 8192
"""Rows that are sampled at once: each keeps its keys and values."""


@dataclass(frozen=True)
class Way:
    """How answers are drawn, and how many to a prompt. Temperature 0 takes the likeliest token."""

    name: str
    temperature: float
    top_p: float
    answers: int


WAYS = (Way("t1", 1.0, 1.0, 16), Way("t06", 0.6, 0.95, 8), Way("greedy", 0.0, 1.0, 1))
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
    cache.batch_repeat_interleave(answers)
    logits, seen = out.logits[:, -1].repeat_interleave(answers, 0), seen.repeat_interleave(answers, 0)
    place = place[:, -1:].repeat_interleave(answers, 0)
    of_answer = [way for way in ways for _ in range(way.answers)] * len(prompts)
    temperature = torch.tensor([way.temperature for way in of_answer], device=device)
    top_p = torch.tensor([way.top_p for way in of_answer], device=device)
    uniform, end = uniform_PAT.flatten(0, 1).to(device), torch.tensor(list(ends), device=device)
    found = torch.full((len(of_answer), most), -1, dtype=torch.int16, device=device)
    alive = torch.arange(len(of_answer), device=device)
    for t in range(most):
        token = drawn(logits, temperature[alive], top_p[alive], uniform[alive, t])
        found[alive, t] = token.to(torch.int16)
        going = ~torch.isin(token, end)
        left = int(going.sum())
        if not left or t + 1 == most:
            break
        # rows that ended are computed too, until half of them have
        if left < 0.6 * len(going):
            cache.batch_select_indices(going.nonzero()[:, 0])
            alive, seen, place, token = (x[going] for x in (alive, seen, place, token))
        seen, place = torch.cat([seen, torch.ones_like(seen[:, :1])], 1), place + 1
        given = {"attention_mask": seen, "position_ids": place, "past_key_values": cache}
        logits = model(input_ids=token[:, None], **given).logits[:, -1]
    tokens_RT = found.cpu().numpy().astype(np.int16)
    # what a row that had ended was still given
    is_end = np.isin(tokens_RT, list(ends))
    behind = (np.cumsum(is_end, axis=1) - is_end) > 0
    tokens_RT[behind] = -1
    return tokens_RT.reshape(len(prompts), answers, most)


def drawn(logits_RV: Tensor, temperature_R: Tensor, top_p_R: Tensor, uniform_R: Tensor) -> Tensor:
    """A token of each row, [R]: the one at whose place the cumulative distribution passes the row's number."""
    logits_RV = logits_RV.float()
    is_greedy = temperature_R == 0
    probability = torch.softmax(logits_RV / temperature_R.where(~is_greedy, 1.0)[:, None], -1)
    token_R = _at(probability.cumsum(-1), uniform_R)
    cut = (top_p_R < 1).nonzero()[:, 0]  # only these are sorted, which is a quarter of the time
    if len(cut):
        sorted_RV, order_RV = probability[cut].sort(-1, descending=True)
        before_RV = sorted_RV.cumsum(-1) - sorted_RV
        # the fewest likeliest tokens whose probabilities reach top_p, as vLLM takes them
        kept_RV = sorted_RV * (before_RV < top_p_R[cut][:, None])
        token_R[cut] = order_RV.gather(1, _at(kept_RV.cumsum(-1), uniform_R[cut])[:, None])[:, 0]
    return token_R.where(~is_greedy, logits_RV.argmax(-1))


def _at(cumulative_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Place at which each row passes its number, [R]."""
    at_R = torch.searchsorted(cumulative_RV, (uniform_R * cumulative_RV[:, -1])[:, None], right=True)[:, 0]
    return at_R.clamp(max=cumulative_RV.shape[1] - 1)
