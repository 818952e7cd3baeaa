"""GRPO (arXiv 2509.24203, section 4.1), and GRPO with token importance sampling around earlier weights of the trainer.

    g = (1/N) sum_i sum_t C_it A_i rho_it M_it grad ln pi(y_it),     A = (r - mean r) / std r
    M = 1(A > 0, rho <= 1 + high) + 1(A < 0, rho >= 1 - low)

`grpo` has rho = pi/b and C = 1. Token importance sampling has rho = pi/pi_old. There C = min(pi_old/b, bound) corrects
for the difference between pi_old and b: engine against trainer, or a lag. The mask gives the gradient of PPO's
surrogate.

`grpo_token_is` is the baseline of the OAPL paper (arXiv 2602.19362, section 2; AReaL's decoupled loss, arXiv
2505.24298). There pi_old is the trainer of the previous iteration, and tokens are averaged over the answer's length.
With `refresh = 1` rho is 1 and nothing is clipped: with sums it is CISPO with the bound C. `grpo_frozen` clips around
the weights of the round's start, whatever the round's length.
"""

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import PositiveFloat, PositiveInt

from oapl_core.objectives.clipped.masks import Clip, clipped, clipped_loss, one_side, weighted_ratios
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.tokens import TokenAverage

if TYPE_CHECKING:
    from torch import Tensor


class Grpo(Method):
    """Clipped token ratios to the behaviour policy."""

    name: Literal["grpo"] = "grpo"
    clip_low: Clip = 0.2
    """A token of a worse answer is left alone once its ratio is below 1 - clip_low."""
    clip_high: Clip = 0.2
    """A token of a better answer is left alone once its ratio is above 1 + clip_high."""
    token_average: TokenAverage = "sum"

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum A rho M."""
        kept_ST = one_side(inputs.held, inputs.advantage_S[:, None], self.clip_low, self.clip_high)
        return clipped_loss(kept_ST, inputs, self.token_average)


class _Decoupled(Method):
    """Clipped ratios to pi_old, each token weighted by pi_old's ratio to the behaviour."""

    clip_low: Clip = 0.2
    """Largest decrease of pi/pi_old that is not clipped, as in `grpo`."""
    clip_high: Clip = 0.2
    """Largest increase of pi/pi_old that is not clipped, as in `grpo`."""
    largest_weight: PositiveFloat = 2.0
    """C, the bound of pi_old/b."""

    standardises: ClassVar[bool] = True

    def _decoupled(self, old_ST: "Tensor", average: TokenAverage, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum C A rho M, for ``old_ST`` = ln pi_old - ln b."""
        advantage_S1, log_ratio_ST = inputs.advantage_S[:, None], inputs.log_ratio - old_ST
        kept_ST = one_side(log_ratio_ST.detach(), advantage_S1, self.clip_low, self.clip_high)
        # bounded from above only, as in CISPO: a small weight is harmless, a large one is noise
        weight_ST = old_ST.exp().clamp(max=self.largest_weight) * advantage_S1 * kept_ST
        value = weighted_ratios(weight_ST, log_ratio_ST, inputs, average)
        return Loss(value, clipped_ST=clipped(kept_ST, inputs))


class GrpoTokenIs(_Decoupled):
    """GRPO clipped around the trainer's weights of a few steps ago."""

    name: Literal["grpo_token_is"] = "grpo_token_is"
    refresh: PositiveInt = 2
    """Optimiser steps that share pi_old, counted within an epoch. 2 is how the paper's two batches for each update are
    read here: both are steps of one iteration."""
    token_average: TokenAverage = "sequence"

    @property
    def refresh_steps(self) -> int:
        """Optimiser steps that share one pi_old: the setting `refresh`."""
        return self.refresh

    def loss(self, inputs: Inputs) -> Loss:
        """Compute the loss around pi_old; for the first step that shares it, pi_old is the policy itself."""
        old_ST = inputs.held if inputs.old_log_ratio_ST is None else inputs.old_log_ratio_ST.double()
        return self._decoupled(old_ST, self.token_average, inputs)


class GrpoFrozen(_Decoupled):
    """GRPO clipped around the weights that the round starts from."""

    name: Literal["grpo_frozen"] = "grpo_frozen"
    token_average: TokenAverage = "sum"

    needs_start: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute the loss around the round's first weights."""
        assert inputs.old_log_ratio_ST is not None, f"{self.name} needs the log-probs of the round's first weights"
        return self._decoupled(inputs.old_log_ratio_ST.double(), self.token_average, inputs)
