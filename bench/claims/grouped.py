"""A policy that computes a prompt once for all short answers to it: one row for each prompt, its answers one behind
the other, kept apart by the attention's mask and by positions that start anew after the prompt.

The trainer's own way (``oapl_core/training/layouts/shared_prompts.py``) attends to sequences one by one, which suits
answers of hundreds of tokens; here an answer has a dozen, and one masked call for all of a step is 2.5 times as fast
on a CPU. Its log-probs and gradients are those of ``Policy`` to rounding (tests/bench/test_claims.py).
"""

from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from torch import Tensor

from oapl_core.training.layouts.placing import response_mask
from oapl_core.training.model.logprobs import Policy


@dataclass(frozen=True)
class Layout:
    """Where a step's tokens lie: R rows, one a prompt; T response tokens, in the order of sequences."""

    id_RT: Tensor
    place_RT: Tensor
    """Positions: an answer's begin behind the prompt's."""
    seen_RTT: Tensor
    """Which tokens a token sees."""
    row_T: Tensor
    source_T: Tensor
    """Row and column of the state that predicts each response token."""
    target_T: Tensor
    """That token."""

    def sent(self, device: torch.device) -> Self:
        """The same on a device."""
        return type(self)(**{one.name: getattr(self, one.name).to(device) for one in fields(self)})


def laid_out(id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor, is_response_ST: Tensor) -> Layout:
    """Place right-padded sequences, on the host: a device would be asked for numbers token by token.

    ``is_response_ST``, [S, T - 1], says which tokens are scored; column t concerns token t + 1.
    """
    column_ST = torch.arange(id_ST.shape[1]).expand_as(id_ST)
    is_prompt_ST = column_ST < prompt_length_S[:, None]
    _, prompt_S = torch.where(is_prompt_ST, id_ST, -1).unique(dim=0, return_inverse=True)
    # where each answer begins in its prompt's row: behind the prompt and the answers before it
    begin_S, end_R = torch.zeros_like(prompt_S), prompt_S.new_zeros(int(prompt_S.max()) + 1)
    first_R: dict[int, int] = {}
    for s, r in enumerate(prompt_S.tolist()):
        if r not in first_R:
            first_R[r], end_R[r] = s, prompt_length_S[s]
        begin_S[s] = end_R[r]
        end_R[r] += length_S[s] - prompt_length_S[s]
    width = int(end_R.max())
    id_RT = id_ST.new_zeros(len(end_R), width)
    place_RT, part_RT = torch.zeros_like(id_RT), torch.full_like(id_RT, -1)
    for r, s in first_R.items():
        n = int(prompt_length_S[s])
        id_RT[r, :n], place_RT[r, :n], part_RT[r, :n] = id_ST[s, :n], torch.arange(n), 0
    # column t of a sequence lies at begin + t - prompt of its row
    is_answer_ST = (column_ST >= prompt_length_S[:, None]) & (column_ST < length_S[:, None])
    row_ST = prompt_S[:, None].expand_as(id_ST)
    target_ST = begin_S[:, None] + column_ST - prompt_length_S[:, None]
    at = row_ST[is_answer_ST], target_ST[is_answer_ST]
    id_RT[at], place_RT[at] = id_ST[is_answer_ST], column_ST[is_answer_ST]
    part_RT[at] = torch.arange(1, len(id_ST) + 1)[:, None].expand_as(id_ST)[is_answer_ST]
    causal_TT = torch.ones(width, width, dtype=torch.bool).tril()
    seen_RTT = causal_TT & ((part_RT[:, None, :] == 0) | (part_RT[:, None, :] == part_RT[:, :, None]))
    # what predicts an answer's first token is the prompt's last state, what predicts the others the one before
    source_ST = torch.where(column_ST == prompt_length_S[:, None], prompt_length_S[:, None], target_ST) - 1
    found = (row_ST, source_ST, id_ST)
    return Layout(id_RT, place_RT, seen_RTT, *(x_ST[:, 1:][is_response_ST] for x_ST in found))


class GroupedPolicy(Policy):
    """Scores right-padded rows of prompt + response, as ``Policy`` does."""

    shares_prompts = True

    def __init__(self, model: Any, temperature: float = 1.0, chunk: int = 4096) -> None:
        """As a ``Policy`` without padding."""
        super().__init__(model, temperature, chunk, packed=True)

    def forward(
        self, id_ST: Tensor, prompt_length_S: Tensor, length_S: Tensor, columns: Any = None, sampled_ST: Any = None
    ) -> Tensor:
        """Log-probs of the response tokens, [S, T - 1]; the inputs lie on the host."""
        assert columns is None, "models with optional columns are not what this is for"
        is_response_ST = response_mask(prompt_length_S, length_S, id_ST.shape[1], sampled_ST)
        device = next(self.model.parameters()).device
        at = laid_out(id_ST, prompt_length_S, length_S, is_response_ST).sent(device)
        hidden_RTD = self.model.base_model(
            input_ids=at.id_RT, position_ids=at.place_RT, attention_mask=at.seen_RTT[:, None], use_cache=False
        ).last_hidden_state
        logprob_T: Tensor = self.model.get_output_embeddings()(hidden_RTD[at.row_T, at.source_T], at.target_T)
        return logprob_T.new_zeros(is_response_ST.shape).masked_scatter(is_response_ST.to(device), logprob_T)
