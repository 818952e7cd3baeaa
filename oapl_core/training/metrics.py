"""What is measured in an optimiser step, beside the step: loss, log-ratios, divergence, entropy, sizes, memory.

Log-ratios are ln pi - ln b in nats. "Right" in a metric's name is a correct rollout. docs/objectives.md
explains each name of a step's metrics. Reads and writes no files.
"""

import resource
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oapl_core.objectives import Loss

if TYPE_CHECKING:
    from oapl_core.training.engine import TrainingEngine

Metrics = dict[str, Any]

_NAMES = """
    loss sequences response_tokens tokens squared_tokens padded_tokens right log_ratio log_ratio_right residuals
    residual residual_right clippable clipped_tokens token_log_ratio_abs kl compared_logprob
    shared_tokens shared_squared_tokens ratios squared_ratios
"""
_SUMS = _NAMES.split()
"""The last two are made at the end of a step, when its largest ratio is known."""
_OF_RATIOS = """
    log_ratio log_ratio_right log_ratio_wrong token_log_ratio token_log_ratio_abs token_log_ratio_max kl kl_k1
    effective_sample_size
""".split()
"""What means nothing where the policy is compared with none."""


class StepMeter:
    """Sums over one step's micro-batches on one rank; ``result`` joins the ranks."""

    def __init__(
        self, device: torch.device, packed: bool = False, compared: bool = True, shares_prompts: bool = False
    ) -> None:
        """Sums stay on ``device`` until the step ends; ``packed`` rows have no padding, rows that are not ``compared``
        no ln b."""
        self._device, self._packed, self._compared, self._shares_prompts = device, packed, compared, shares_prompts
        # One vector on the device, in float64: reading a number of it would wait for the GPU at every micro-batch, and
        # a fixed order lets a rank that had no work take part in the sum over ranks with zeros.
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._entropy = torch.zeros((), dtype=torch.float64, device=device)
        self._largest = torch.zeros(1, dtype=torch.float64, device=device)
        self._log_ratios: list[Tensor] = []

    def add(
        self,
        loss: Loss,
        log_ratio_ST: Tensor,
        compared_ST: Tensor,
        mask_ST: Tensor,
        length_S: Tensor,
        right_S: Tensor,
        entropy_T: Tensor,
        repeated: Sequence[int] = (),
    ) -> None:
        """Count a micro-batch, after its backward pass.

        Args:
            loss: its share of the step's loss, with what the objective reports.
            log_ratio_ST: ln pi - ln b, [S, T - 1], 0 outside the response; so is ``compared_ST``, ln b.
            compared_ST: log-probs that the ratio is taken against.
            mask_ST: where the response is; ``length_S``: tokens of prompt and response.
            right_S: 1 for a correct answer, 0 for another.
            entropy_T: of the policy at each response token that this rank scored, nats; where ranks share sequences,
                that is only its part of them.
            repeated: tokens of each prompt that was not computed, as another row has it.
        """
        ratio_ST = log_ratio_ST.detach().double()
        ratio_S, size_ST = ratio_ST.sum(1), ratio_ST.abs()
        padded = int(length_S.sum()) if self._packed else len(ratio_ST) * (ratio_ST.shape[1] + 1)
        sizes = torch.tensor([len(ratio_ST), padded, sum(repeated), sum(n * n for n in repeated)], device=self._device)
        numbers = {
            "loss": loss.value.detach(),
            "sequences": sizes[0],
            "tokens": length_S.sum(),
            "response_tokens": mask_ST.sum(),
            "squared_tokens": length_S.square().sum(),
            "padded_tokens": sizes[1],
            "right": right_S.sum(),
            "log_ratio": ratio_S.sum(),
            "log_ratio_right": (ratio_S * right_S).sum(),
            **_reported(loss, mask_ST, right_S),
            "token_log_ratio_abs": size_ST.sum(),
            # k3 estimates KL(b || pi) and is never negative: ratio - 1 - ln ratio, 0 outside the response
            "kl": (ratio_ST.expm1() - ratio_ST).sum(),
            "compared_logprob": compared_ST.double().sum(),
            "shared_tokens": sizes[2],
            "shared_squared_tokens": sizes[3],
        }
        self._sums[: len(numbers)] += torch.stack([numbers[name].double() for name in _SUMS[: len(numbers)]])
        self._log_ratios.append(ratio_S)
        self._entropy += entropy_T.double().sum()
        self._largest = torch.maximum(self._largest, size_ST.max())

    def result(self, engine: "TrainingEngine") -> Metrics:
        """The step's metrics over all ranks; the same on each."""
        # a rank that had no work has none
        s_S = torch.cat([*self._log_ratios, self._largest.new_full((1,), -torch.inf)])
        memory = torch.tensor([peak_memory_mb(self._device)], dtype=torch.float64, device=self._device)
        largest, memory_mb, top = engine.largest(torch.cat([self._largest, memory, s_S.max()[None]])).tolist()
        for place, factor in (("ratios", 1), ("squared_ratios", 2)):
            self._sums[_SUMS.index(place)] = (factor * (s_S - top)).exp().sum()
        # Ranks that share a sequence know the same sums of it, so one of them counts; their entropies are of parts.
        total = dict(zip(_SUMS, engine.total(self._sums).tolist(), strict=True))
        entropy = float(engine.total_of_parts(self._entropy))
        sequences, tokens, right = total["sequences"], total["response_tokens"], total["right"]
        wrong, has_residual = sequences - right, total["residuals"] > 0
        found: Metrics = {
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
            found |= {name: int(total[name]) for name in ("shared_tokens", "shared_squared_tokens")}
        return found if self._compared else found | dict.fromkeys(_OF_RATIOS)


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
    }


def peak_memory_mb(device: torch.device) -> float:
    """Most memory this process has had: of the GPU, or of the process itself. MiB."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
