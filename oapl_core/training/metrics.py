"""Measurements of an optimiser step, beside the step: loss, log-ratios, divergence, entropy, sizes, memory.

Log-ratios are ln pi - ln b in nats. "Right" in a metric's name is a correct rollout. docs/objectives.md explains each
name of a step's metrics. Reads and writes no files.
"""

import resource
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from oapl_core.objectives import Loss

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine
    from oapl_core.training.examples import Batch

Metrics = dict[str, Any]

_NAMES = """
    loss right log_ratio log_ratio_right residual residual_right residuals
    clippable clipped_tokens maskable masked_tokens token_log_ratio_abs kl compared_logprob
    sequences response_tokens tokens squared_tokens padded_tokens shared_tokens shared_squared_tokens
    ratios squared_ratios
"""
_SUMS = _NAMES.split()
"""First what a device measures, in the order of ``StepMeter.add``; then what the host knows (``Counts``). The last two
are made at the end of a step, when its largest ratio is known."""
_OF_RATIOS = """
    log_ratio log_ratio_right log_ratio_wrong token_log_ratio token_log_ratio_abs token_log_ratio_max kl kl_k1
    effective_sample_size
""".split()
"""Metrics without a meaning where the policy is compared with none."""


@dataclass(frozen=True)
class Counts:
    """Counts of a micro-batch that the host knows without asking the device."""

    sequences: int
    response_tokens: int
    tokens: int
    squared_tokens: int
    padded_tokens: int
    shared_tokens: int
    """Tokens of prompts that were not computed, as another row has them."""
    shared_squared_tokens: int

    @classmethod
    def of(cls, batch: "Batch", packed: bool, repeated: Sequence[int]) -> Self:
        """Count a micro-batch; ``repeated``: tokens of each prompt that was not computed."""
        lengths, (rows, width) = batch.length_S.tolist(), batch.id_ST.shape
        return cls(
            rows,
            int(batch.mask_ST.sum()),
            sum(lengths),
            sum(n * n for n in lengths),
            sum(lengths) if packed else rows * width,
            sum(repeated),
            sum(n * n for n in repeated),
        )


class StepMeter:
    """Sums over one step's micro-batches on one rank; ``result`` joins the ranks."""

    def __init__(self, device: torch.device, compared: bool = True, shares_prompts: bool = False) -> None:
        """Sums stay on ``device`` until the step ends; rows that are not ``compared`` have no ln b."""
        self._device, self._compared, self._shares_prompts = device, compared, shares_prompts
        # One vector on the device, in float64: reading a number of it would wait for the GPU at every micro-batch, and
        # a fixed order lets a rank that had no work take part in the sum over ranks with zeros.
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._entropy = torch.zeros((), dtype=torch.float64, device=device)
        self._largest = torch.zeros(1, dtype=torch.float64, device=device)
        self._log_ratios: list[Tensor] = []
        self._losses: list[Tensor] = []
        self._counts = [0] * len(_SUMS)

    def add(
        self,
        loss: Loss,
        log_ratio_ST: Tensor,
        compared_ST: Tensor,
        mask_ST: Tensor,
        counts: Counts,
        right_S: Tensor,
        entropy_T: Tensor,
    ) -> None:
        """Count a micro-batch, after its backward pass.

        Args:
            loss: its share of the step's loss, with what the objective reports.
            log_ratio_ST: ln pi - ln b, [S, T - 1], 0 outside the response; so is ``compared_ST``, ln b.
            compared_ST: log-probs that the ratio is taken against.
            mask_ST: where the response is.
            counts: what the host knows of its sizes.
            right_S: 1 for a correct answer, 0 for another.
            entropy_T: of the policy at each response token that this rank scored, nats; where ranks share sequences,
                that is only its part of them.
        """
        ratio_ST = log_ratio_ST.detach().double()
        ratio_S, size_ST = ratio_ST.sum(1), ratio_ST.abs()
        for name, count in vars(counts).items():
            self._counts[_SUMS.index(name)] += count
        self._losses.append(loss.value.detach())
        numbers = {
            "loss": loss.value.detach(),
            "right": right_S.sum(),
            "log_ratio": ratio_S.sum(),
            "log_ratio_right": (ratio_S * right_S).sum(),
            **_reported(loss, mask_ST, right_S),
            "token_log_ratio_abs": size_ST.sum(),
            # k3 estimates KL(b || pi) and is never negative: ratio - 1 - ln ratio, 0 outside the response
            "kl": (ratio_ST.expm1() - ratio_ST).sum(),
            "compared_logprob": compared_ST.double().sum(),
        }
        self._sums[: len(numbers)] += torch.stack([number.double() for number in numbers.values()])
        self._log_ratios.append(ratio_S)
        self._entropy += entropy_T.double().sum()
        self._largest = torch.maximum(self._largest, size_ST.max())

    def losses(self) -> list[float]:
        """Return the loss of each micro-batch that was added; waits for the device."""
        return torch.stack(self._losses).tolist() if self._losses else []

    def sample_size(self, engine: "TrainingEngine") -> float:
        """Compute the effective sample size of the sequences that were added on any rank; waits for the device."""
        s_S = torch.cat([*self._log_ratios, self._largest.new_full((1,), -torch.inf)])
        w_S = (s_S - engine.largest(s_S.max()[None])).exp()
        sums = torch.stack([w_S.sum(), w_S.square().sum(), w_S.new_tensor(len(s_S) - 1.0)])
        ratios, squares, sequences = engine.total(sums).tolist()
        return float(ratios**2 / (squares * sequences))

    def result(self, engine: "TrainingEngine") -> Metrics:
        """Compute the step's metrics over all ranks; the same on each."""
        # a rank that had no work has none
        s_S = torch.cat([*self._log_ratios, self._largest.new_full((1,), -torch.inf)])
        memory = torch.tensor([peak_memory_mb(self._device)], dtype=torch.float64, device=self._device)
        largest, memory_mb, top = engine.largest(torch.cat([self._largest, memory, s_S.max()[None]])).tolist()
        for place, factor in (("ratios", 1), ("squared_ratios", 2)):
            self._sums[_SUMS.index(place)] = (factor * (s_S - top)).exp().sum()
        self._sums += torch.tensor(self._counts, dtype=torch.float64, device=self._device)
        # Ranks that share a sequence know the same sums of it, so one of them counts; their entropies are of parts.
        total = dict(zip(_SUMS, engine.total(self._sums).tolist(), strict=True))
        entropy = float(engine.total_of_parts(self._entropy))
        sequences, tokens, right = total["sequences"], total["response_tokens"], total["right"]
        wrong, has_residual = sequences - right, total["residuals"] > 0
        metrics: Metrics = {
            "loss": total["loss"],
            "sequences": int(sequences),
            "tokens": int(total["tokens"]),
            "response_tokens": int(tokens),
            "squared_tokens": int(total["squared_tokens"]),
            "padding_share": 1.0 - total["tokens"] / total["padded_tokens"],
            "right_share": right / sequences,
            "log_ratio": total["log_ratio"] / sequences,
            "log_ratio_right": total["log_ratio_right"] / right if right else None,
            "log_ratio_wrong": (total["log_ratio"] - total["log_ratio_right"]) / wrong if wrong else None,
            "effective_sample_size": total["ratios"] ** 2 / (total["squared_ratios"] * sequences),
            "residual_right": total["residual_right"] / right if right and has_residual else None,
            "residual_wrong": (total["residual"] - total["residual_right"]) / wrong if wrong and has_residual else None,
            "clipped_tokens_share": total["clipped_tokens"] / total["clippable"] if total["clippable"] else None,
            "masked_tokens_share": total["masked_tokens"] / total["maskable"] if total["maskable"] else None,
            "token_log_ratio": total["log_ratio"] / tokens,
            "token_log_ratio_abs": total["token_log_ratio_abs"] / tokens,
            "token_log_ratio_max": largest,
            "kl": total["kl"] / tokens,
            "kl_k1": -total["log_ratio"] / tokens,
            "entropy": entropy / tokens,
            "token_entropy": -(total["compared_logprob"] + total["log_ratio"]) / tokens,
            "peak_memory_mb": round(memory_mb),
        }
        if self._shares_prompts:
            metrics |= {name: int(total[name]) for name in ("shared_tokens", "shared_squared_tokens")}
        return metrics if self._compared else metrics | dict.fromkeys(_OF_RATIOS)


def _reported(loss: Loss, mask_ST: Tensor, right_S: Tensor) -> dict[str, Tensor]:
    """Sums of what the objective reports, and over how many: 0 where it reports none."""
    none = torch.zeros((), device=mask_ST.device)
    residual_S = none if loss.residual_S is None else loss.residual_S.detach()
    return {
        "residual": residual_S.sum(),
        "residual_right": (residual_S * right_S).sum(),
        "residuals": none if loss.residual_S is None else none + len(residual_S),
        "clippable": none if loss.clipped_ST is None else mask_ST.sum(),
        "clipped_tokens": none if loss.clipped_ST is None else loss.clipped_ST.sum(),
        "maskable": none if loss.masked_ST is None else mask_ST.sum(),
        "masked_tokens": none if loss.masked_ST is None else loss.masked_ST.sum(),
    }


def peak_memory_mb(device: torch.device) -> float:
    """Return the most memory that this process has had: of the GPU, or of the process itself. MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
