"""A policy that computes a prompt once for all answers to it: a step's prompts, then its answers, in one row, each as
wide as the widest; an answer's queries attend to its prompt's keys and to its own.

The trainer's own way (``oapl_core/training/layouts/shared_prompts.py``) attends to sequences one by one, which suits
answers of hundreds of tokens; here an answer has dozens, and two products serve a whole step. They are plain products,
so they can be mapped over the weights of many arms (``side_by_side.py``). Log-probs and gradients are those of
``Policy`` to rounding (tests/bench/test_claims.py).

Axes: S answers of A tokens, R different prompts of P tokens, N = R P + S A tokens of the row, H heads, D their size.
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from oapl_core.training.layouts.placing import response_mask
from oapl_core.training.model.logprobs import Policy

NAME = "answers_after_prompts"
"""Of the attention, for transformers."""


@dataclass(frozen=True)
class Layout:
    """Where a step's tokens lie; T are its scored tokens, in the order of sequences."""

    id_N: Tensor
    place_N: Tensor
    """Positions: an answer's begin behind its prompt's."""
    prompt_S: Tensor
    """Which prompt an answer has."""
    hidden_PP: Tensor
    """Tokens of a prompt that a token of it does not see."""
    hidden_SAK: Tensor
    """Tokens that an answer's token does not see: of its prompt's P, then of its own A."""
    source_T: Tensor
    """Place of the state that predicts each scored token."""
    target_T: Tensor
    """That token."""

    def sent(self, device: torch.device) -> Self:
        """The same on a device."""
        return type(self)(**{one.name: getattr(self, one.name).to(device) for one in fields(self)})

    def states(self, model: Any) -> Tensor:
        """What ``model``, which has this attention (``give``), computes of the row, [N, width]."""
        row = {"input_ids": self.id_N[None], "position_ids": self.place_N[None]}
        states_ND: Tensor = model(**row, use_cache=False, layout=self).last_hidden_state[0]
        return states_ND


def laid_out(id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor, is_scored_ST: Tensor) -> Layout:
    """Place right-padded sequences, on the host: a device would be asked for numbers token by token.

    ``is_scored_ST``, [S, T - 1], says which tokens are scored; column t concerns token t + 1.
    """
    assert int(prompt_length_S.min()) > 0, "a prompt's last state predicts an answer's first token"
    many, width = len(id_ST), int(prompt_length_S.max())
    column_ST = torch.arange(id_ST.shape[1]).expand_as(id_ST)
    is_prompt_ST = column_ST < prompt_length_S[:, None]
    id_RP, prompt_S = torch.where(is_prompt_ST, id_ST, -1)[:, :width].unique(dim=0, return_inverse=True)
    size = int((length_S - prompt_length_S).max())
    own_SA = torch.arange(size).expand(many, size)
    at_SA = (prompt_length_S[:, None] + own_SA).clamp(max=id_ST.shape[1] - 1)
    place_RP = torch.arange(width).expand_as(id_RP)
    of_prompts = id_RP.numel()
    hidden_PP = torch.ones(width, width, dtype=torch.bool).triu(1)
    beyond_SP = torch.arange(width) >= prompt_length_S[:, None]
    later_AA = torch.ones(size, size, dtype=torch.bool).triu(1)
    hidden_SAK = torch.cat([beyond_SP[:, None].expand(-1, size, -1), later_AA.expand(many, -1, -1)], 2)
    # what predicts an answer's first token is its prompt's last state, what predicts the others the one before
    behind_ST = column_ST - prompt_length_S[:, None]
    first_ST = (prompt_S * width + prompt_length_S - 1)[:, None].expand_as(id_ST)
    others_ST = of_prompts + torch.arange(many)[:, None] * size + behind_ST - 1
    source_ST = torch.where(behind_ST == 0, first_ST, others_ST)
    return Layout(
        torch.cat([id_RP.clamp(min=0).flatten(), id_ST.gather(1, at_SA).flatten()]),
        torch.cat([place_RP.flatten(), at_SA.flatten()]),
        prompt_S,
        hidden_PP,
        hidden_SAK,
        source_ST[:, 1:][is_scored_ST],
        id_ST[:, 1:][is_scored_ST],
    )


def give(model: Any) -> None:
    """Let ``model``, of transformers, attend with ``attend``: from now on it computes nothing without a layout."""
    from transformers import AttentionInterface

    # no mask is registered for it, so transformers makes none
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    layout: Layout,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of a row, [1, N, H, D]; ``query``, ``key`` and ``value`` are [1, heads, N, D]."""
    assert attention_mask is None, "the layout says who sees whom"
    many, size, width = *layout.hidden_SAK.shape[:2], len(layout.hidden_PP)
    of_prompts = query.shape[2] - many * size
    shared = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(shared, 1) if shared > 1 else x for x in (key, value))
    # of the prompts, [H, R, P, D], and of the answers, [H, S, A, D]
    query_P, key_P, value_P = (x[0, :, :of_prompts].unflatten(1, (-1, width)) for x in (query, key, value))
    query_A, *own = (x[0, :, of_prompts:].unflatten(1, (many, size)) for x in (query, key, value))
    seen = (x.index_select(1, layout.prompt_S) for x in (key_P, value_P))
    key_A, value_A = (torch.cat(parts, 2) for parts in zip(seen, own, strict=True))
    first_HND = _attended(query_P, key_P, value_P, layout.hidden_PP, scaling)
    later_HND = _attended(query_A, key_A, value_A, layout.hidden_SAK, scaling)
    return torch.cat([first_HND, later_HND], 1).transpose(0, 1)[None], None


def _attended(query: Tensor, key: Tensor, value: Tensor, is_hidden: Tensor, scaling: float) -> Tensor:
    """Attention within parts of a row, [H, parts, tokens, D] each; returns [H, their tokens, D]."""
    score = (query * scaling) @ key.transpose(-1, -2)
    share = torch.softmax(score.masked_fill(is_hidden, torch.finfo(score.dtype).min), -1)
    return (share @ value).flatten(1, 2)


class GroupedPolicy(Policy):
    """Scores right-padded rows of prompt + response, as ``Policy`` does."""

    shares_prompts = True

    def __init__(self, model: Any, temperature: float = 1.0, chunk: int = 4096) -> None:
        """As a ``Policy`` without padding."""
        give(model)
        super().__init__(model, temperature, chunk, packed=True)

    def forward(
        self, id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor, columns: Any = None, sampled_ST: Any = None
    ) -> Tensor:
        """Log-probs of the response tokens, [S, T - 1]; the inputs lie on the host."""
        assert columns is None, "models with optional columns are not what this is for"
        is_response_ST = response_mask(prompt_length_S, length_S, id_ST.shape[1], sampled_ST)
        device = next(self.model.parameters()).device
        at = laid_out(id_ST, prompt_length_S, length_S, is_response_ST).sent(device)
        states_ND = at.states(self.model.base_model)
        logprob_T: Tensor = self.model.get_output_embeddings()(states_ND[at.source_T], at.target_T)
        return logprob_T.new_zeros(is_response_ST.shape).masked_scatter(is_response_ST.to(device), logprob_T)
