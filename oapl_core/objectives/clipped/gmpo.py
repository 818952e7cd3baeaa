"""GMPO, geometric-mean policy optimisation (arXiv 2507.20673): GRPO with the geometric mean of an answer's ratios.

    L = -(1/N) sum_i A_i exp( (1/T_i) sum_t clip(ln rho_it) ),     A = (r - mean r) / std r
    clip(x) = min(x, width) where A > 0, max(x, -width) where A < 0

A token's ln rho is clipped, on the side to which A pushes it; then it still counts in the mean, but carries no
gradient. From the authors' code (callsys/GMPO, train_zero_math_gmpo.py, with their width of 0.4: ratios from e^-0.4 to
e^0.4) and verl's `compute_policy_loss_geo_mean`. Without the clip it is GSPO without its own.
"""

from typing import ClassVar, Literal

from pydantic import NonNegativeFloat

from oapl_core.objectives.clipped.masks import clipped
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method


class Gmpo(Method):
    """Sequence ratios of clipped tokens."""

    name: Literal["gmpo"] = "gmpo"
    width: NonNegativeFloat = 0.4
    """Bound of a token's ln rho, on the side to which the advantage pushes. Nats."""

    standardises: ClassVar[bool] = True

    def loss(self, inputs: Inputs) -> Loss:
        """Compute -(1/N) sum A exp(mean of clipped ln rho)."""
        x_ST, better_S1 = inputs.log_ratio, inputs.advantage_S[:, None] > 0
        bounded_ST = x_ST.clamp(max=self.width).where(better_S1, x_ST.clamp(min=-self.width))
        mean_S = bounded_ST.sum(1) / inputs.length_S
        # an answer without an advantage may have a ratio that overflows, and 0 times infinity is not-a-number
        ratio_S = mean_S.where(inputs.advantage_S != 0, 0.0).exp()
        value = -(inputs.advantage_S * ratio_S).sum() / inputs.sizes.sequences
        kept_ST = (inputs.held <= self.width).where(better_S1, inputs.held >= -self.width)
        return Loss(value, clipped_ST=clipped(kept_ST, inputs))
