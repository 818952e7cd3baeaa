"""Masks on pi/b, for any objective (`[[objective.masks]]`): what is far from b is left alone, or weighed by the ratio.

    dL/d ln pi(y_it)  becomes  dL/d ln pi(y_it) times the product of F(k_it) over the masks
    mask:     F(k) = 1(low <= k <= high)
    weight:   F(k) = min( max(k, low), high )                                 never above exp(80), nor is the product

k is pi/b of a token, exp(s_i / T_i) of an answer, or exp(s_i). Values are as without masks; only gradients change. So a
residual, a length or a statistic of the step still has every token. Published forms, as lists of these tables:

    IcePop (arXiv 2510.18855)            of token, 0.5 to 5, as mask; as weight too if the objective has no ratio
    DeepSeek-V3.2 (2512.02556, 3.1)      of mean, low exp(-delta), negative answers alone
    TIS, truncated importance sampling   of token or of sum, high 2, as weight: of objectives without a ratio
    Seq-MIS (verl)                       of sum, 0.5 to 2 as mask and high 2 as weight
    geometric rejection (verl)           of mean, 0.999 to 1.001
    a veto, as in verl's rejection       of any, low 1e-4: one token rejects its answer
    mu-GRPO (2605.17570)                 of suffix, negative answers alone: all tokens from the first one outside on

IcePop, TIS and Seq-MIS multiply a loss of pi/pi_old by k = pi_old/b. The product has pi/b once where pi = pi_old.
Objectives such as `grpo`, `cispo`, `dppo` and `sapo` hold pi/b already. A weight would square it: give them masks
alone. `reinforce` has no ratio, and needs the weight.

Here k is of the policy itself, and so is DeepSeek-V3.2's: its pi_old is what the engine recorded, b here. The others
have the trainer's earlier weights, pi_old, in the place of pi. The two are equal in a step that shares pi_old with no
other. Of mu-GRPO the abstract was read, which names neither side nor size of the band.
"""

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.settings_group import Settings

if TYPE_CHECKING:
    from torch import Tensor


class Mask(Settings):
    """Band of a ratio pi/b, and what happens outside of it."""

    of: Literal["token", "suffix", "any", "mean", "sum"] = "token"
    """Ratio that is held against the band: of each `token`, or of the answer, exp(s / T) (`mean`) or exp(s) (`sum`).
    `suffix` masks an answer from its first token outside on, and `any` the whole answer."""
    low: NonNegativeFloat = 0.0
    """Smallest ratio of the band."""
    high: PositiveFloat | None = None
    """Largest ratio of the band; unset: none."""
    answers: Literal["all", "negative"] = "all"
    """Answers it looks at: `all`, or those whose advantage is below 0."""
    role: Literal["mask", "weight"] = "mask"
    """Effect: outside the band gradients are 0 (`mask`), or everywhere multiplied by the bounded ratio (`weight`)."""

    @model_validator(mode="after")
    def _refuse_nothing(self) -> Self:
        if self.high is not None and self.high < self.low:
            raise ValueError(f"the band ends at {self.high:g}, below its beginning {self.low:g}")
        if self.role == "weight" and self.of in ("suffix", "any"):
            raise ValueError(f"of = {self.of!r} has no ratio of its own to weigh by: take token, mean or sum")
        if self.role == "mask" and self.high is None and not self.low:
            raise ValueError("no ratio is outside of this band: set low, high or both")
        return self

    def factor(self, inputs: Inputs) -> "Tensor":
        """Compute F, [S, T] or [S, 1], float64, constant."""
        ratio = inputs.held
        if self.of in ("mean", "sum"):
            s_S1 = inputs.log_ratio_S.detach()[:, None]
            ratio = s_S1 / inputs.length_S[:, None] if self.of == "mean" else s_S1
        # in logarithms: the ratio of a long answer may overflow
        low = math.log(self.low) if self.low else -math.inf
        high = math.inf if self.high is None else math.log(self.high)
        if self.role == "weight":
            factor = ratio.clamp(low, min(high, LARGEST_LOG)).exp()
        else:
            # columns of no token hold a ratio of 1, which a band need not contain
            outside = ((ratio < low) | (ratio > high)) & inputs.mask_ST
            if self.of == "suffix":
                outside = outside.cumsum(1) > 0
            elif self.of == "any":
                outside = outside.any(1, keepdim=True)
            factor = (~outside).double()
        return factor if self.answers == "all" else factor.where(inputs.advantage_S[:, None] < 0, 1.0)


LARGEST_LOG = 80.0
"""Logarithm of the largest factor, in nats: float32 holds it, and a gradient that is multiplied by it."""
Masks = Annotated[tuple[Mask, ...], Field(min_length=1)]


@cache
def masked(kind: type[Method]) -> type[Method]:
    """Derive an objective from ``kind`` whose gradients pass masks."""

    class Masked(kind):  # type: ignore[valid-type, misc]
        __doc__ = kind.__doc__
        masks: Masks
        """Bands of pi/b outside which tokens, or whole answers, are left alone; several multiply."""

        needs_behavior: ClassVar[bool] = True

        def loss(self, inputs: Inputs) -> Loss:
            """Compute the objective's loss, whose gradient is multiplied by the masks' factors."""
            factor_ST = self.masks[0].factor(inputs).expand_as(inputs.mask_ST)
            for mask in self.masks[1:]:
                factor_ST = factor_ST * mask.factor(inputs)
            # float32 ends at exp(88), where 0 times infinity would make the loss NaN
            factor_ST = factor_ST.clamp(max=math.exp(LARGEST_LOG))
            given = inputs.log_ratio_ST
            kept = given.detach() + factor_ST.to(given) * (given - given.detach())
            found: Loss = super().loss(replace(inputs, log_ratio_ST=kept))
            return replace(found, masked_ST=(factor_ST == 0) & inputs.mask_ST)

    Masked.__name__ = Masked.__qualname__ = kind.__name__
    return Masked
