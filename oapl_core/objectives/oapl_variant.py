"""OAPL with other divergences than KL and other anchors, each a part of OAPL's regression (``oapl.py``) exchanged.

The optimum of  max E r(x,y) - beta D_f(pi || b)  satisfies  beta f'(w) = r - V  for w = pi/b. So does the regression

    L = (1/N) sum_i ( beta2 f'(w_i) - A_i )^2,     w_i = exp(s_i),     A_i = r_i - V

    kl            f'(w) = ln w, OAPL itself
    tapered       f'(w) = ln w where w >= 1 or A >= 0, else w - 1: KL above, chi-squared below
    asymmetric    beta2 ln w where w >= 1, else another temperature times ln w

A bad answer (A < 0) is pushed by 2 beta2 (beta2 (w - 1) - A) w under `tapered`. The factor w fades as the policy leaves
the answer, which is TOPR's taper as beta2 goes to 0. A good answer that fell is pulled back by ln w. chi-squared
beside KL is the argument of chiPO (arXiv 2407.13399).
"""

from typing import TYPE_CHECKING, Literal, Self

from pydantic import PositiveFloat, model_validator

from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.values import ValueRule, values

if TYPE_CHECKING:
    from torch import Tensor


class OaplVariant(Method):
    """OAPL's regression with another divergence or without some anchors; OAPL itself until told otherwise."""

    name: Literal["oapl_variant"] = "oapl_variant"
    value_temperature: PositiveFloat = 1.0
    """beta1 of V, as in OAPL."""
    regression_temperature: PositiveFloat = 1e-3
    """beta2."""
    value: ValueRule = "log_mean_exp"
    """V, as in OAPL."""
    value_shift: float = 0.0
    """Shift that `shifted_mean` adds to the mean, in units of the reward."""
    divergence: Literal["kl", "tapered", "asymmetric"] = "kl"
    """f'(w): ln w, or w - 1 for bad answers (A < 0) below w = 1, or ln w with two temperatures."""
    regression_temperature_below: PositiveFloat | None = None
    """beta2 below w = 1, for `asymmetric` alone, which needs it."""
    anchors_good: bool = True
    """Whether good answers (A > 0) are held to b. Without, their loss is A^2 - 2 beta2 A s, whose gradient is OAPL's at
    pi = b wherever the policy is."""
    learns_from_bad: bool = True
    """Whether answers with A <= 0 take part. Without, they count in N alone."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Self:
        if (self.divergence == "asymmetric") != (self.regression_temperature_below is not None):
            raise ValueError("divergence 'asymmetric' and regression_temperature_below need each other: set both")
        if self.divergence == "asymmetric" and not self.anchors_good:
            raise ValueError("divergence 'asymmetric' is an anchor of good answers: leave anchors_good at true")
        if self.divergence != "kl" and not self.learns_from_bad:
            raise ValueError(f"divergence {self.divergence!r} is of bad answers: leave learns_from_bad at true")
        return self

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute r - V in float64, as OAPL; needs every valid rollout of each group."""
        shift = -self.regression_temperature if self.value == "beta_shifted_mean" else self.value_shift
        return reward_S.double() - values(self.value, reward_S, group_S, self.value_temperature, shift)

    def target_side(self, s_S: "Tensor", advantage_S: "Tensor") -> "Tensor":
        """Compute beta2 f'(exp(s)), [S]: what the regression brings to the advantage."""
        if self.divergence == "tapered":
            from torch.nn.functional import elu  # s above 0, else exp(s) - 1; its derivative at 0 is 1 from both sides

            s_S = elu(s_S).where(advantage_S < 0, s_S)
        scaled_S = self.regression_temperature * s_S
        if self.regression_temperature_below is None:
            return scaled_S
        return scaled_S.where(s_S >= 0, self.regression_temperature_below * s_S)

    def loss(self, inputs: Inputs) -> Loss:
        """Compute (1/N) sum_i ( beta2 f'(w_i) - A_i )^2 over the answers that take part."""
        s_S, advantage_S = inputs.log_ratio_S, inputs.advantage_S
        residual_S = self.target_side(s_S, advantage_S) - advantage_S
        square_S, good_S = residual_S.square(), advantage_S > 0
        if not self.anchors_good:
            linear_S = advantage_S * (advantage_S - 2 * self.regression_temperature * s_S)
            square_S = linear_S.where(good_S, square_S)
        if not self.learns_from_bad:
            square_S = square_S.where(good_S, 0.0)
        return Loss(square_S.sum() / inputs.sizes.sequences, residual_S=residual_S.detach())
