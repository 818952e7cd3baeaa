"""Inputs that the trainer gives an objective, and the loss that it returns. No files, no settings.

Rows are padded, [S, T]: S sequences of a micro-batch (or of the whole optimiser step), T columns. Columns of the
prompt, of text that an environment wrote between two turns, and of padding hold exactly 0. They are False in the mask:
nothing may depend on their number or place. A response is what the model sampled.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class StepSizes:
    """Sizes of the WHOLE optimiser step, over all micro-batches and ranks: what sums are divided by."""

    sequences: int
    groups: int
    tokens: int
    """Response tokens that the model sampled."""


@dataclass(frozen=True)
class Inputs:
    """Some sequences of an optimiser step."""

    log_ratio_ST: "Tensor"
    """ln pi - ln b of each response token; carries the gradient. `training.reference` says whose ln b:
    the engine's record, or the trainer's."""
    mask_ST: "Tensor"
    """True at response tokens that the model sampled; between turns, where an environment speaks, False."""
    advantage_S: "Tensor"
    """Result of the objective's ``advantages`` for these sequences, [S], float64."""
    reward_S: "Tensor"
    group_S: "Tensor"
    """Integer label of each sequence's group."""
    sizes: StepSizes
    old_log_ratio_ST: "Tensor | None" = None
    """ln pi_old - ln b, [S, T]. pi_old is the round's first weights if the objective ``needs_start``. Otherwise it is
    the weights before the first of the steps that share it (``refresh_steps``), or their moving average (`ppo_ewma`).
    """
    behavior_ST: "Tensor | None" = None
    """ln b of each response token, as in ``log_ratio_ST``; unset in the whole step that ``statistics`` gets."""
    statistics_SK: "Tensor | None" = None
    """These sequences' rows of what the objective's ``statistics`` said of the whole step."""
    recorded_S: "Tensor | None" = None
    """Whether ln b of a sequence was recorded, [S] of bool; else b is 1, or the trainer's. Unset: of all."""

    @cached_property
    def log_ratio(self) -> "Tensor":
        """ln pi - ln b in float64, [S, T], 0 outside the responses."""
        # float64: thousands of small terms are summed, and squared after
        return self.log_ratio_ST.double().where(self.mask_ST, 0.0)

    @cached_property
    def held(self) -> "Tensor":
        """The same as a constant: for masks and weights, which carry no gradient."""
        return self.log_ratio.detach()

    @cached_property
    def log_ratio_S(self) -> "Tensor":
        """s_i, the sum over a response, float64."""
        return self.log_ratio.sum(1)

    @cached_property
    def length_S(self) -> "Tensor":
        """T_i, response tokens, float64, at least 1."""
        return self.mask_ST.sum(1).double().clamp(min=1.0)


@dataclass(frozen=True)
class Loss:
    """The given sequences' share of the step's loss, and what is reported beside it."""

    value: "Tensor"
    """A scalar; shares of one step add up to its loss."""
    residual_S: "Tensor | None" = None
    """How far each sequence is from what a regression aims at."""
    clipped_ST: "Tensor | None" = None
    """Response tokens whose gradient a mask or a bound removed or reduced; unset: the objective has no such thing."""
    masked_ST: "Tensor | None" = None
    """Response tokens whose gradient the option `masks` removed; unset: the objective has none."""
