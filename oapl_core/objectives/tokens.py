"""Sums over tokens that the policy-gradient objectives share.

A policy gradient is written as a loss whose derivative by ln pi of a token is minus its weight, a constant. Here the
weight is beside ln pi; ``clipped/masks.py`` has it inside pi/b, and masks.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from oapl_core.objectives.inputs import Inputs

if TYPE_CHECKING:
    from torch import Tensor

TokenAverage = Annotated[Literal["sum", "sequence", "batch"], Field(description="How tokens are weighed.")]
"""Weighting of tokens in a loss. `sum` adds up a sequence's tokens, `sequence` averages them over its own length; both
then average over sequences. `batch` averages over all tokens of the step (DAPO).
"""


def share(inputs: Inputs, average: TokenAverage) -> "Tensor":
    """Return the factor of each sequence's sum over tokens, [S, 1]."""
    one_S1 = inputs.length_S.new_ones(len(inputs.length_S), 1)
    if average == "batch":
        return one_S1 / inputs.sizes.tokens
    return (one_S1 / inputs.length_S[:, None] if average == "sequence" else one_S1) / inputs.sizes.sequences


def weighted_logprobs(weight_ST: "Tensor", inputs: Inputs, average: TokenAverage = "sum") -> "Tensor":
    """Compute - sum of weight * (ln pi - ln b); ``weight_ST`` may be [S, 1] and is held constant."""
    return -(weight_ST.detach() * share(inputs, average) * inputs.log_ratio * inputs.mask_ST).sum()
