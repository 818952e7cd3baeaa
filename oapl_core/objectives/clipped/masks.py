"""Masks over tokens, and sums of ratios, that objectives with importance ratios share.

The weight of a token is inside pi/b (``weighted_ratios``), where ``weighted_logprobs`` has it beside ln pi. The value
is the published surrogate, with clipped tokens counted as 0. The gradients agree where the weight holds the ratio.
"""

from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.tokens import TokenAverage, share, weighted_logprobs

if TYPE_CHECKING:
    from torch import Tensor

Clip = Annotated[float, Field(ge=0.0)]
"""Distance of a ratio's bound from 1."""


def weighted_ratios(
    weight_ST: "Tensor", log_ratio_ST: "Tensor", inputs: Inputs, average: TokenAverage = "sum"
) -> "Tensor":
    """Compute - sum of weight * exp(log_ratio); ``weight_ST`` is held constant."""
    weight_ST = weight_ST.detach() * share(inputs, average) * inputs.mask_ST
    # a clipped token's ratio may overflow, and 0 times infinity would make the whole gradient not-a-number
    return -(weight_ST * log_ratio_ST.where(weight_ST != 0, 0.0).exp()).sum()


def clipped_loss(kept_ST: "Tensor", inputs: Inputs, average: TokenAverage, with_ratio: bool = True) -> Loss:
    """Compute - sum of A rho M for the mask M = ``kept_ST``, or - sum of A M ln rho without the ratio.

    Reports the tokens that M leaves out.
    """
    weight_ST = inputs.advantage_S[:, None] * kept_ST
    if with_ratio:
        value = weighted_ratios(weight_ST, inputs.log_ratio, inputs, average)
    else:
        value = weighted_logprobs(weight_ST, inputs, average)
    return Loss(value, clipped_ST=clipped(kept_ST, inputs))


def clipped(kept_ST: "Tensor", inputs: Inputs) -> "Tensor":
    """Return the mask of response tokens with an advantage that ``kept_ST`` leaves out, [S, T]."""
    return ~kept_ST & inputs.mask_ST & (inputs.advantage_S[:, None] != 0)


def one_side(log_ratio: "Tensor", advantage: "Tensor", low: float, high: float) -> "Tensor":
    """Return PPO's mask: rho <= 1 + high where the advantage is positive, rho >= 1 - low where it is negative."""
    ratio = log_ratio.exp()
    return ((advantage > 0) & (ratio <= 1 + high)) | ((advantage < 0) & (ratio >= 1 - low))


def two_side(log_ratio: "Tensor", low: float, high: float) -> "Tensor":
    """Return the mask of 1 - low <= rho <= 1 + high."""
    ratio = log_ratio.exp()
    return (ratio >= 1 - low) & (ratio <= 1 + high)


def ring(
    log_ratio: "Tensor", advantage: "Tensor", low: float, high: float, far_low: float, far_high: float
) -> "Tensor":
    """Return the two-sided band, and far tokens that a step brings back into it: down from above, up from below."""
    ratio = log_ratio.exp()
    rising, falling = (advantage > 0) & (ratio <= 1 - far_low), (advantage < 0) & (ratio >= 1 + far_high)
    return two_side(log_ratio, low, high) | rising | falling
