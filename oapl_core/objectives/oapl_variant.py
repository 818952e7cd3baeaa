"""OAPL with other divergences than KL and other anchors, each a part of OAPL's regression (``oapl.py``) exchanged.

The optimum of  max E r(x,y) - beta D_f(pi || b)  satisfies  beta f'(w) = r - V  for w = pi/b. So does the regression

    L = (1/N) sum_i ( beta2 f'(w_i) - A_i )^2,     w_i = exp(s_i),     A_i = r_i - V

    kl            f'(w) = ln w, OAPL itself
    tapered       f'(w) = ln w where w >= 1 or A >= 0, else w - 1: KL above, chi-squared below
    asymmetric    beta2 ln w where w >= 1, else another temperature times ln w

A bad answer (A < 0) is pushed by 2 beta2 (beta2 (w - 1) - A) w under `tapered`. The factor w fades as the policy leaves
the answer, which is TOPR's taper as beta2 goes to 0. A good answer that fell is pulled back by ln w. A margin of m nats
moves the taper's beginning to ln w = -m. L = T^a, T the answer's tokens, softens it. Then f' is, below -m,

    L (w e^m)^(1/L) - L - m

chiPO (arXiv 2407.13399) mixes chi-squared with KL on both sides, where it matters above w = 1. Here it stands below
alone. Derivations and limits: docs/objectives_tapered.md.
"""

import math
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from oapl_core.objectives.group_means import group_mean
from oapl_core.objectives.inputs import Inputs, Loss
from oapl_core.objectives.method import Method
from oapl_core.objectives.values import ValueRule, log_mean_exp_values, values

if TYPE_CHECKING:
    from torch import Tensor

FiniteNonNegative = Annotated[NonNegativeFloat, Field(allow_inf_nan=False)]
OF_THE_TAPER = ("taper_margin", "taper_length_exponent", "taper_of")
HALVINGS = 64
"""Halvings of the bracket of V: beyond float64's 53 bits."""


def tapered_values(reward_S: "Tensor", group_S: "Tensor", temperature: float, margin: float) -> "Tensor":
    """Compute V_S for which the tapered divergence's optimum is a distribution: mean w = 1 over the group.

    w is exp(a) for a = (r - V) / temperature >= -margin, else exp(-margin) (1 + a + margin), and never below 0. The
    mean falls as V rises, from 1 or more at the worst reward to 1 or less at the best. V is halved in between. An
    infinite temperature gives the mean reward.
    """
    if math.isinf(temperature):
        return group_mean(reward_S, group_S)
    low_S, high_S = -log_mean_exp_values(-reward_S, group_S, 0.0), log_mean_exp_values(reward_S, group_S, 0.0)
    for _ in range(HALVINGS):
        middle_S = (low_S + high_S) / 2
        a_S = (reward_S.double() - middle_S) / temperature
        # w - 1, as 1 + a loses a small a: at a large temperature V would leave the mean
        below_S = math.expm1(-margin) + math.exp(-margin) * (a_S + margin).clamp(min=-1.0)
        is_low_S = group_mean(a_S.expm1().where(a_S >= -margin, below_S), group_S) > 0
        low_S, high_S = middle_S.where(is_low_S, low_S), high_S.where(is_low_S, middle_S)
    return (low_S + high_S) / 2


class OaplVariant(Method):
    """OAPL's regression with another divergence or without some anchors; OAPL itself until told otherwise."""

    name: Literal["oapl_variant"] = "oapl_variant"
    value_temperature: PositiveFloat = 1.0
    """beta1 of V, as in OAPL."""
    regression_temperature: PositiveFloat = 1e-3
    """beta2."""
    value: ValueRule | Literal["tapered"] = "log_mean_exp"
    """V, as in OAPL, or `tapered`: with beta1 = beta2 the tapered regression's zero is then a distribution."""
    value_shift: float = 0.0
    """Shift that `shifted_mean` adds to the mean, in units of the reward."""
    divergence: Literal["kl", "tapered", "asymmetric"] = "kl"
    """f'(w): ln w, or w - 1 for bad answers (A < 0) below w = 1, or ln w with two temperatures."""
    regression_temperature_below: PositiveFloat | None = None
    """beta2 below w = 1, for `asymmetric` alone, which needs it."""
    taper_margin: FiniteNonNegative = 0.0
    """Nats below b at which the taper begins; above, a bad answer is regressed as in OAPL."""
    taper_length_exponent: FiniteNonNegative = 0.0
    """a of w^(1/T^a), the taper's weight of an answer of T tokens; 0 is the whole ratio, 1 a mean over tokens."""
    taper_of: Literal["sequence", "token"] = "sequence"
    """Ratios that the taper looks at: the answer's, or each token's own."""
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
        if self.divergence != "tapered":
            changed = [name for name in OF_THE_TAPER if getattr(self, name) != type(self).model_fields[name].default]
            if self.value == "tapered" or changed:
                said = changed[0] if changed else "value = 'tapered'"
                raise ValueError(f"{said} is of divergence 'tapered', and this one is {self.divergence!r}")
        by_length = self.taper_length_exponent > 0 or self.taper_of == "token"
        if self.taper_length_exponent and self.taper_of == "token":
            raise ValueError("taper_length_exponent is of whole answers: leave it at 0 with taper_of = 'token'")
        if self.value == "tapered" and by_length:
            raise ValueError("value 'tapered' is of whole answers' ratios: leave taper_length_exponent and taper_of")
        return self

    def advantages(self, reward_S: "Tensor", group_S: "Tensor") -> "Tensor":
        """Compute r - V in float64, as OAPL; needs every valid rollout of each group."""
        if self.value == "tapered":
            return reward_S.double() - tapered_values(reward_S, group_S, self.value_temperature, self.taper_margin)
        shift = -self.regression_temperature if self.value == "beta_shifted_mean" else self.value_shift
        return reward_S.double() - values(self.value, reward_S, group_S, self.value_temperature, shift)

    def target_side(self, inputs: Inputs) -> "Tensor":
        """Compute beta2 f'(exp(s)), [S]: what the regression brings to the advantage."""
        s_S = inputs.log_ratio_S
        if self.divergence == "tapered":
            s_S = self._tapered(inputs).where(inputs.advantage_S < 0, s_S)
        scaled_S = self.regression_temperature * s_S
        if self.regression_temperature_below is None:
            return scaled_S
        return scaled_S.where(s_S >= 0, self.regression_temperature_below * s_S)

    def _tapered(self, inputs: Inputs) -> "Tensor":
        from torch.nn.functional import elu  # s above 0, else exp(s) - 1; its derivative at 0 is 1 from both sides

        margin = self.taper_margin
        if self.taper_of == "token":
            # elu(m) - m is exactly 0, so columns outside of the answers add nothing
            return (elu(inputs.log_ratio + margin) - margin).sum(1)
        if not self.taper_length_exponent:
            return elu(inputs.log_ratio_S + margin) - margin
        scale_S = inputs.length_S**self.taper_length_exponent
        return scale_S * elu((inputs.log_ratio_S + margin) / scale_S) - margin

    def loss(self, inputs: Inputs) -> Loss:
        """Compute (1/N) sum_i ( beta2 f'(w_i) - A_i )^2 over the answers that take part."""
        advantage_S = inputs.advantage_S
        residual_S = self.target_side(inputs) - advantage_S
        square_S, good_S = residual_S.square(), advantage_S > 0
        if not self.anchors_good:
            linear_S = advantage_S * (advantage_S - 2 * self.regression_temperature * inputs.log_ratio_S)
            square_S = linear_S.where(good_S, square_S)
        if not self.learns_from_bad:
            square_S = square_S.where(good_S, 0.0)
        return Loss(square_S.sum() / inputs.sizes.sequences, residual_S=residual_S.detach())
