"""What is measured in an optimiser step, beside the step: loss, log-ratios, an estimate of the divergence, sizes.

Log-ratios are ln policy - ln behavior in nats. "Right" is a rollout with the full reward 1.
"""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from oapl_core.training.engine import Engine

Metrics = dict[str, Any]

_SUMS = ("loss", "sequences", "response_tokens", "tokens", "padded_tokens", "right", "log_ratio", "log_ratio_right",
         "token_log_ratio_abs", "kl")  # fmt: skip


class StepMeter:
    """Sums over one step's micro-batches on one rank; ``result`` joins the ranks."""

    def __init__(self, device: torch.device) -> None:
        """Sums stay on ``device`` until the step ends."""
        self._sums = torch.zeros(len(_SUMS), dtype=torch.float64, device=device)
        self._largest = torch.zeros(1, dtype=torch.float64, device=device)

    def add(self, loss: Tensor, log_ratio_ST: Tensor, mask_ST: Tensor, length_S: Tensor, right_S: Tensor) -> None:
        """Count a micro-batch.

        Args:
            loss: its share of the step's loss.
            log_ratio_ST: [S, T - 1], 0 outside the response.
            mask_ST: where the response is.
            length_S: tokens of prompt and response.
            right_S: 1 for a right answer, 0 for a wrong one.
        """
        ratio_ST = log_ratio_ST.detach().double()
        ratio_S, size_ST = ratio_ST.sum(1), ratio_ST.abs()
        # k3 estimates KL(behavior || policy) and is never negative: ratio - 1 - ln ratio, 0 outside the response
        k3 = (ratio_ST.expm1() - ratio_ST).sum()
        sequences, width = ratio_ST.shape[0], ratio_ST.shape[1] + 1
        sizes = torch.tensor([sequences, sequences * width], device=ratio_ST.device)
        numbers = [loss.detach(), sizes[0], mask_ST.sum(), length_S.sum(), sizes[1], right_S.sum()]
        numbers += [ratio_S.sum(), (ratio_S * right_S).sum(), size_ST.sum(), k3]
        self._sums += torch.stack([number.double() for number in numbers])
        self._largest = torch.maximum(self._largest, size_ST.max())

    def result(self, engine: "Engine") -> Metrics:
        """The step's metrics over all ranks; the same on each."""
        total = dict(zip(_SUMS, engine.total(self._sums).tolist(), strict=True))
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
            "token_log_ratio_abs": total["token_log_ratio_abs"] / total["response_tokens"],
            "token_log_ratio_max": float(engine.largest(self._largest)),
            "kl": total["kl"] / total["response_tokens"],
        }
