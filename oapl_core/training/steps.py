"""Optimiser steps: cuts an epoch into steps, a step into micro-batches, runs the objective on them, and measures.

The loss of a step is normalised by the step's GLOBAL number of sequences, a short last batch by its own; so neither the
micro-batch budget nor the number of ranks changes the gradient. Advantages are computed once, over whole groups,
before the groups' rollouts are scattered over steps.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from oapl_core.config import TrainingConfig
from oapl_core.errors import StageFailed
from oapl_core.objectives import Objective
from oapl_core.training.batching import epoch_order, global_batches, micro_batches
from oapl_core.training.examples import Batch, Examples
from oapl_core.training.logprobs import response_mask
from oapl_core.training.schedule import learning_rate

if TYPE_CHECKING:
    from oapl_core.training.engine import Engine

Metrics = dict[str, Any]
_SUMS = ("loss", "sequences", "response_tokens", "tokens", "padded_tokens", "right", "log_ratio", "log_ratio_right", "abs", "k3")


@dataclass(frozen=True)
class Trainer:
    """What the steps of one round share."""

    engine: "Engine"
    objective: Objective
    examples: Examples
    advantage_S: torch.Tensor
    training: TrainingConfig
    seed: int
    round_number: int
    epochs: int

    def epoch(self, epoch: int, on_step: Callable[[Metrics], None]) -> list[Metrics]:
        """Train on every sequence once; ``epoch`` counts from 1. Returns one row of metrics for each step."""
        lengths = self.examples.lengths
        order = epoch_order(len(lengths), self.seed, self.round_number, epoch)
        batches = global_batches(order, self.training.batch_size)
        rows = []
        for number, batch in enumerate(batches):
            step = (epoch - 1) * len(batches) + number
            rate = learning_rate(
                step, self.epochs * len(batches), self.training.learning_rate, self.training.warmup_share, self.training.floor_share
            )
            metrics = {"step": step + 1, "epoch": epoch, "learning_rate": rate, **self.step(batch, lengths, rate)}
            rows.append(metrics)
            on_step(metrics)
        return rows

    def step(self, batch: Sequence[int], lengths: Sequence[int], rate: float) -> Metrics:
        """One optimiser step over ``batch``; returns its metrics, the same on every rank.

        Raises:
            StageFailed: the loss or the gradient is not finite; names the rollouts.
        """
        start = time.monotonic()
        shares = micro_batches(batch, lengths, self.training.tokens_per_micro_batch, self.engine.ranks)
        mine = shares[self.engine.rank]
        sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=self.engine.device)
        largest = torch.zeros(1, dtype=torch.float64, device=self.engine.device)
        for number, rows in enumerate(mine):
            self._micro_batch(rows, len(batch), number == len(mine) - 1, sums, largest)
        norm = self.engine.step(rate)
        if not norm < float("inf"):
            raise StageFailed(f"gradient norm is {norm} in a step over {self._names(batch)}; lower training.learning_rate")
        total = dict(zip(_SUMS, self.engine.total(sums).tolist(), strict=True))
        seconds = time.monotonic() - start
        return {"grad_norm": norm, "seconds": seconds, **_averages(total, float(self.engine.largest(largest)))}

    def _micro_batch(self, rows: Sequence[int], sequences: int, last: bool, sums: torch.Tensor, largest: torch.Tensor) -> None:
        batch = self.examples.batch(rows)
        device = self.engine.device
        mask_ST = response_mask(batch.prompt_length_S, batch.length_S, batch.id_ST.shape[1]).to(device)
        inputs = (batch.id_ST.to(device), batch.prompt_length_S.to(device), batch.length_S.to(device))
        logprob_ST = self.engine(*inputs, last=last)
        log_ratio_ST = logprob_ST - batch.behavior_ST.to(device)
        loss = self.objective.loss(log_ratio_ST, self.advantage_S[batch.row_S].to(device), sequences) * batch.weight
        if not torch.isfinite(loss):
            raise StageFailed(f"loss is not finite over {self._names(rows)}; lower training.learning_rate or remove those rollouts")
        self.engine.backward(loss)
        if rows:
            self._measure(batch, loss.detach(), log_ratio_ST.detach().double(), mask_ST, sums, largest)

    def _measure(
        self, batch: Batch, loss: torch.Tensor, log_ratio_ST: torch.Tensor, mask_ST: torch.Tensor, sums: torch.Tensor, largest: torch.Tensor
    ) -> None:
        right_S = torch.from_numpy(self.examples.reward_S[batch.row_S.numpy()] >= 1.0).to(log_ratio_ST.device)
        s_S, size_ST = log_ratio_ST.sum(1), log_ratio_ST.abs()
        # k3, an estimate of KL(behavior || policy) that is never negative: ratio - 1 - ln ratio, 0 outside the response
        k3 = (log_ratio_ST.expm1() - log_ratio_ST).sum()
        numbers = [loss, len(s_S), mask_ST.sum(), batch.length_S.sum(), batch.id_ST.numel(), right_S.sum()]
        numbers += [s_S.sum(), s_S[right_S].sum(), size_ST.sum(), k3]
        sums += torch.tensor([float(x) for x in numbers], dtype=torch.float64, device=sums.device)
        largest.clamp_(min=float(size_ST.max()))

    def _names(self, rows: Sequence[int]) -> str:
        """The first few rollout ids of ``rows``."""
        names = [str(self.examples.rollout_ids[i]) for i in rows[:8]]
        return f"rollouts {', '.join(names)}" + (f" and {len(rows) - 8} more" if len(rows) > 8 else "")


def _averages(total: dict[str, float], largest: float) -> Metrics:
    wrong = total["sequences"] - total["right"]
    return {
        "loss": total["loss"],
        "sequences": int(total["sequences"]),
        "tokens": int(total["tokens"]),
        "response_tokens": int(total["response_tokens"]),
        "padding_share": 1.0 - total["tokens"] / total["padded_tokens"],
        "log_ratio": total["log_ratio"] / total["sequences"],
        "log_ratio_right": total["log_ratio_right"] / total["right"] if total["right"] else None,
        "log_ratio_wrong": (total["log_ratio"] - total["log_ratio_right"]) / wrong if wrong else None,
        "token_log_ratio_abs": total["abs"] / total["response_tokens"],
        "token_log_ratio_max": largest,
        "kl": total["k3"] / total["response_tokens"],
    }
